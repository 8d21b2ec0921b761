"""A checkout of someone else, also bind-mounted: the user's own safe.directory counts, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.queue.scenes import snapshot

from .conftest import Outcome
from .test_environment import check_same
from .test_git_settings import config_of
from .world import World, checkout_round, set_config

SOMEONE = 12345
OWNED = "the checkout belongs to another user, who is trusted by safe.directory"
DISTRUSTED = "the checkout belongs to another user, who is not trusted"
MOUNT = 'mount --bind "$0" "$1" && shift && exec "$@"'


@pytest.fixture
def given(world: World) -> Path:
    """A checkout that was given away, whole."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    clone = world.clone()
    _give(clone)
    return clone


def _give(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, SOMEONE, SOMEONE, follow_symlinks=False)


def mounted(world: World, there: Path, here: Path) -> World:
    """The world in which a folder is bind-mounted at another place, for the tool alone."""
    here.mkdir()
    mount = ("unshare", "--mount", "sh", "-c", MOUNT, str(there), str(here))
    if not shutil.which("unshare") or subprocess.run([*mount, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no mount namespace can be made here, so nothing is bind-mounted")
    return replace(world, python=(*mount, sys.executable))


@pytest.fixture
def checks_owners(world: World) -> None:
    """git older than 2.35.2 (but for later patches of old versions) does not look at owners at all."""
    probe = world.clone("probe")
    if os.geteuid() == 0:
        _give(probe)
        env = {**world.env, "GIT_CEILING_DIRECTORIES": str(world.root)}
        if subprocess.run(["git", "status"], cwd=probe, env=env, check=False, capture_output=True).returncode == 0:
            pytest.skip("this git does not look at who owns a checkout")


@pytest.mark.case(OWNED, target="checkout", outcome="exact")
@pytest.mark.case(OWNED, target="export", outcome="exact")
def test_a_checkout_of_another_user_whom_the_user_trusts_is_a_target(world: World, given: Path, calm: Outcome) -> None:
    set_config(config_of(world), [f"safe.directory={given}"])
    check_same(checkout_round(world, given), calm)


@pytest.mark.case("the checkout of another user is bind-mounted", target="checkout", outcome="exact")
def test_a_bind_mounted_checkout_of_another_user_is_a_target(
    world: World, given: Path, calm: Outcome, tmp_path: Path
) -> None:
    here = tmp_path / "mnt"
    set_config(config_of(world), [f"safe.directory={here}"])
    inside = mounted(world, given, here)
    for verb in ("apply", "status", "verify"):
        answer = inside.ask(verb, here)
        assert answer.code == 0, answer
        assert answer.targets["toy"]["digest"] == calm["apply"]["toy"][0]
    assert snapshot(given) == calm["applied"]["files"]
    assert inside.ask("export", here, "--check").code == 0
    assert inside.ask("apply", here, "--reverse").code == 0
    assert snapshot(given) == calm["reversed"]["files"]


@pytest.mark.case(DISTRUSTED, target="checkout", outcome="refused")
@pytest.mark.case(DISTRUSTED, target="export", outcome="refused")
def test_a_checkout_of_another_user_is_refused_by_every_verb_with_gits_remedy(
    world: World, given: Path, checks_owners: None
) -> None:
    before = snapshot(world.root, ("__pycache__",), stats=True)
    for verb in ("apply", "status", "verify", "export"):
        answer = world.ask(verb, given)
        assert answer.code == 1, (verb, answer)
        assert "belongs to another user" in answer.said["error"]["what"]
        assert answer.said["error"]["todo"].endswith(f"git config --global --add safe.directory {given}")
    assert snapshot(world.root, ("__pycache__",), stats=True) == before
    assert not config_of(world).exists()


@pytest.mark.case(DISTRUSTED, target="source", outcome="refused")
def test_a_source_of_another_user_is_refused_with_gits_remedy_and_taken_when_trusted(
    world: World, given: Path, calm: Outcome, checks_owners: None
) -> None:
    fresh = ("--into", world.root / "fresh", "--source", given, "--only", "toy")
    answer = world.ask("apply", *fresh)
    assert answer.code in (1, 4) and "Traceback" not in answer.err, answer
    assert f"safe.directory {given}" in answer.said["error"]["todo"], answer
    assert not list((world.root / "fresh").rglob("*")) or not (world.root / "fresh").exists()
    set_config(config_of(world), [f"safe.directory={given}", f"safe.directory={given}/.git"])
    answer = world.ask("apply", *fresh)
    assert answer.code == 0, answer
    assert snapshot(Path(answer.targets["toy"]["path"])) == calm["applied"]["files"]
