"""What is installed works without a clone: the wheel carries pins, patches and the patches' tests."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sm120_overlay.queue.home import PACKAGE, find_home

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's wheel, unpacked as an installer does."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    with zipfile.ZipFile(next(folder.glob("sm120_overlay-*.whl"))) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


@pytest.mark.slow
@pytest.mark.network
def test_the_wheel_alone_knows_every_patch_and_its_test(unpacked: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sm120_overlay", "lint"]
    env = {**os.environ, "PYTHONPATH": str(unpacked)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "nothing is wrong\n"), done.stderr
    carried = {path.name for path in (unpacked / "sm120_overlay" / "data" / "tests" / "patches").iterdir()}
    assert {path.name for path in (ROOT / "tests" / "patches").glob("*.*")} <= carried
    named = [path.relative_to(unpacked) for path in unpacked.rglob("bisect.py")]
    assert named == [Path("sm120_overlay/verbs/bisect.py")], "nothing on the path may shadow the standard library"


def test_a_clone_reads_its_own_data() -> None:
    assert find_home().root == PACKAGE.parents[1] == ROOT
