"""A series on an installed package, in real virtual environments: on, off to pip's bytes, upgraded, refused."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sm120_overlay.queue.checkout import open_checkout
from sm120_overlay.queue.export import changes, export_commits, write_export
from sm120_overlay.queue.pins import load_lines
from sm120_overlay.queue.transaction import FOLDER, locked

from .scenes import LEVER, Venv, add_distribution, ask, copy_venv, make_newer, make_venv, snapshot, use_series
from .toy import SECOND, Toy, commit, git, write

ORIGINAL = "def answer():\n    return 41\n"


@pytest.fixture(scope="module")
def venv_master(toy_master: Toy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_venv(tmp_path_factory.mktemp("venv") / "master", toy_master.wheels)


@pytest.fixture
def venv(toy: Toy, venv_master: Path, tmp_path: Path) -> Venv:
    return copy_venv(venv_master, tmp_path / "venv")


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def refused(venv: Venv, *words: str, options: tuple[str, ...] = (), code: int = 1) -> None:
    """Apply refuses, says these words, and leaves every file as it was."""
    before = snapshot(venv.site)
    answer = ask("apply", "--installed", venv.python, *options)
    assert answer.code == code, answer
    for word in words:
        assert word in answer.said["error"]["what"] + answer.said["error"]["todo"], answer
    assert snapshot(venv.site) == before


# On and off


@pytest.mark.case(
    "a wheel lays files elsewhere than the repository", target="installed", outcome="exact", source="Hyperloom#205"
)
def test_an_installed_package_and_a_checkout_have_the_same_digest(toy: Toy, venv: Venv) -> None:
    clone = toy.clone()
    installed, checkout = ask("apply", "--installed", venv.python), ask("apply", clone)
    assert installed.code == checkout.code == 0
    assert installed.targets["toy"]["digest"] == checkout.targets["toy"]["digest"] == toy.series().digest
    assert installed.targets["toy"]["base"] == "1.0 py3-none-any"
    assert installed.targets["toy"]["head"] is None
    assert set(installed.states().values()) == {"applied"}


def test_the_patched_package_runs_and_reads_as_the_series_says(venv: Venv) -> None:
    ask("apply", "--installed", venv.python)
    assert venv.run("import toy, toy.extra.hook as h; print(toy.answer(), h.HOOK)") == "42 True"
    assert (venv.site / "toy/core.py").read_bytes() == SECOND["python/toy/core.py"].encode()
    assert (venv.site / "toy/dos.py").read_bytes() == b"A = 1\r\nB = 22\r\nC = 3\r\n"
    assert b"line fifty\n" in (venv.site / "gear/data/csrc/kernel.cu").read_bytes()


RECORDS = ("crlf", "lf", "no final newline", "touched line last and unended", "quoted", "touched line absent")


@pytest.mark.parametrize("kind", RECORDS)
def test_reverse_restores_every_byte_record_included(venv: Venv, kind: str) -> None:
    record = venv.info() / "RECORD"
    lines = record.read_bytes().splitlines()
    touched = next(line for line in lines if line.startswith(b"toy/core.py"))
    end = b"\r\n" if kind == "crlf" else b"\n"
    if kind == "touched line last and unended":
        lines = [line for line in lines if line != touched] + [touched]
    if kind == "touched line absent":
        lines.remove(touched)
    if kind == "quoted":
        lines = [b'"' + line.replace(b",", b'",', 1) if line == touched else line for line in lines]
    unended = kind in ("no final newline", "touched line last and unended")
    record.write_bytes(end.join(lines) + (b"" if unended else end))
    before = snapshot(venv.site)
    assert ask("apply", "--installed", venv.python).code == 0
    assert record.read_bytes() != before["toy-1.0.dist-info/RECORD"][1]  # type: ignore[index]
    assert ask("apply", "--installed", venv.python, "--reverse").code == 0
    assert snapshot(venv.site) == before


def test_reverse_leaves_nothing_of_ours(venv: Venv) -> None:
    before = snapshot(venv.site)
    assert ask("apply", "--installed", venv.python).code == 0
    assert ask("apply", "--installed", venv.python, "--reverse").code == 0
    assert sorted(snapshot(venv.site).keys() - before.keys()) == []


def test_record_lists_every_file_that_apply_left_with_its_hash(venv: Venv) -> None:
    ask("apply", "--installed", venv.python)
    check = (
        "import importlib.metadata as m, hashlib, base64\n"
        "for f in m.files('toy'):\n"
        "    if f.hash:\n"
        "        d = base64.urlsafe_b64encode(hashlib.sha256(f.read_binary()).digest()).rstrip(b'=').decode()\n"
        "        assert (d, f.size) == (f.hash.value, len(f.read_binary())), f\n"
        "print(sorted(str(f) for f in m.files('toy') if 'extra' in str(f)))"
    )
    assert venv.run(check) == "['toy/extra/__init__.py', 'toy/extra/hook.py']"


def test_applying_twice_changes_nothing_and_says_so(venv: Venv) -> None:
    assert ask("apply", "--installed", venv.python).targets["toy"]["changed"]
    before = snapshot(venv.site, stats=True)
    again = ask("apply", "--installed", venv.python)
    assert (again.code, again.targets["toy"]["changed"]) == (0, False)
    assert snapshot(venv.site, stats=True) == before


def test_reversing_what_is_not_applied_changes_nothing(venv: Venv) -> None:
    before = snapshot(venv.site)
    answer = ask("apply", "--installed", venv.python, "--reverse")
    assert (answer.code, answer.targets["toy"]["changed"]) == (0, False)
    assert snapshot(venv.site) == before


def test_a_dry_run_writes_nothing_at_all(venv: Venv) -> None:
    before = snapshot(venv.root, skip=(), stats=True)
    answer = ask("apply", "--installed", venv.python, "--dry-run")
    assert (answer.code, answer.targets["toy"]["would_change"]) == (0, True)
    assert sorted(snapshot(venv.root, skip=(), stats=True).items()) == sorted(before.items())


def test_a_dry_run_of_reverse_and_of_a_second_apply_change_no_file(venv: Venv) -> None:
    ask("apply", "--installed", venv.python)
    before = snapshot(venv.site, stats=True)
    assert ask("apply", "--installed", venv.python, "--dry-run").targets["toy"]["would_change"] is False
    assert ask("apply", "--installed", venv.python, "--reverse", "--dry-run").targets["toy"]["would_change"] is True
    assert snapshot(venv.site, stats=True) == before


def test_status_and_verify_of_an_installed_package_write_nothing(venv: Venv) -> None:
    before = snapshot(venv.root, skip=(), stats=True)
    assert ask("status", "--installed", venv.python).code == 1
    assert ask("verify", "--installed", venv.python).code == 1
    assert snapshot(venv.root, skip=(), stats=True) == before


# Other tools' files


@pytest.mark.case("files hard-linked elsewhere", target="installed", outcome="exact", source="ds300/patch-package#118")
def test_the_other_link_of_a_hard_linked_installation_keeps_its_bytes(venv: Venv, tmp_path: Path) -> None:
    cache = tmp_path / "uv-cache"
    shutil.copytree(venv.site, cache, copy_function=os.link)
    before = snapshot(cache, stats=True)
    assert ask("apply", "--installed", venv.python).code == 0
    assert venv.run("import toy; print(toy.answer())") == "42"
    assert ask("apply", "--installed", venv.python, "--reverse").code == 0
    assert snapshot(cache, stats=True) == before


@pytest.mark.case("a touched file is a link", target="installed", outcome="refused", source="ds300/patch-package#118")
def test_a_symlinked_file_is_refused_by_name(venv: Venv, tmp_path: Path) -> None:
    target = venv.site / "toy" / "dos.py"
    shutil.move(target, tmp_path / "cached.py")
    target.symlink_to(tmp_path / "cached.py")
    refused(venv, "toy/dos.py", "symbolic link")


@pytest.mark.case(
    "a folder above a touched file is a link", target="installed", outcome="refused", source="ds300/patch-package#118"
)
def test_a_symlinked_package_folder_is_refused_and_the_folder_it_points_to_stays(venv: Venv, tmp_path: Path) -> None:
    shutil.move(venv.site / "toy", tmp_path / "cached")
    (venv.site / "toy").symlink_to(tmp_path / "cached")
    before = snapshot(tmp_path / "cached")
    answer = ask("apply", "--installed", venv.python)
    assert snapshot(tmp_path / "cached") == before
    assert answer.code == 1


@pytest.mark.case("pip uninstalls the package after apply", target="installed", outcome="exact")
def test_uninstalling_after_apply_leaves_nothing_behind(venv: Venv) -> None:
    ask("apply", "--installed", venv.python)
    venv.run("import toy, toy.extra.hook")
    venv.pip("uninstall", "-q", "-y", "toy")
    assert sorted(path for path in snapshot(venv.site, skip=()) if "toy" in path) == []


def test_reinstalling_over_a_patched_package_gives_pips_bytes_and_apply_works_again(toy: Toy, venv: Venv) -> None:
    ask("apply", "--installed", venv.python)
    venv.pip("install", "-q", "--force-reinstall", "--no-deps", "toy==1.0")
    assert (venv.site / "toy/core.py").read_text().startswith(ORIGINAL)
    assert ask("status", "--installed", venv.python, "--only", "toy").states() == {
        "right-answer": "pending",
        "bring-hook": "pending",
    }
    assert ask("apply", "--installed", venv.python).code == 0


# Moving between series


@pytest.mark.case("an older series of ours is on it", target="installed", outcome="exact")
def test_an_older_series_is_upgraded_in_one_apply_and_reversed_by_the_newer_tool(toy: Toy, venv: Venv) -> None:
    clean = snapshot(venv.site)
    ask("apply", "--installed", venv.python)
    make_newer(toy)
    assert "an older series" in json.dumps(ask("status", "--installed", venv.python).said)
    assert ask("apply", "--installed", venv.python).code == 0
    assert (venv.site / "toy/dos.py").read_bytes() == b"A = 1\r\nB = 2\r\nC = 3\r\n"
    assert (venv.site / "toy/bare.txt").read_bytes() == b"one\ntwo\nfour"
    assert not (venv.site / "toy/extra/hook.py").exists()
    assert (venv.site / LEVER.removeprefix("python/")).is_file()
    assert ask("verify", "--installed", venv.python).targets["toy"]["digest"] == toy.series().digest
    assert ask("apply", "--installed", venv.python, "--reverse").code == 0
    assert snapshot(venv.site) == clean


@pytest.mark.case("an older series of ours is taken off by a newer tool", target="installed", outcome="exact")
def test_a_newer_tool_takes_an_older_series_off_at_once(toy: Toy, venv: Venv) -> None:
    clean = snapshot(venv.site)
    ask("apply", "--installed", venv.python)
    make_newer(toy)
    assert ask("apply", "--installed", venv.python, "--reverse").code == 0
    assert snapshot(venv.site) == clean


def test_an_older_tool_downgrades_in_one_apply(toy: Toy, venv: Venv) -> None:
    ask("apply", "--installed", venv.python)
    before = snapshot(venv.site)
    older = make_newer(toy)
    assert ask("apply", "--installed", venv.python).code == 0
    use_series(toy, older)
    assert ask("apply", "--installed", venv.python).code == 0
    assert snapshot(venv.site) == before


def test_taking_all_patches_of_an_upstream_away_takes_them_off(toy: Toy, venv: Venv) -> None:
    clean = snapshot(venv.site)
    ask("apply", "--installed", venv.python)
    for patch in toy.home.root.glob("patches/v1/*/*.patch"):
        patch.unlink()
    write(toy.home.root, {"patches/v1/toy/series": "", "patches/v1/gear/series": ""})
    assert ask("apply", "--installed", venv.python).code == 0
    assert snapshot(venv.site) == clean


def test_a_part_of_the_series_and_the_rest_of_it(venv: Venv) -> None:
    part = ask("apply", "--installed", venv.python, "--through", "right-answer", "--without", "more-gears")
    assert part.code == 0
    assert part.states() == {"right-answer": "applied", "bring-hook": "pending"}
    assert part.states("gear") == {"more-gears": "pending"}
    assert ask("status", "--installed", venv.python).code == 1
    assert ask("status", "--installed", venv.python, "--through", "right-answer", "--without", "more-gears").code == 0
    assert ask("apply", "--installed", venv.python).states() == {"right-answer": "applied", "bring-hook": "applied"}


def test_leaving_out_a_patch_that_a_later_one_builds_on_is_refused(venv: Venv) -> None:
    refused(venv, "right-answer", "bring-hook", options=("--without", "right-answer"))


def test_only_one_upstream_is_touched_when_asked(venv: Venv) -> None:
    before = {k: v for k, v in snapshot(venv.site, stats=True).items() if k.startswith("toy")}
    assert list(ask("apply", "--installed", venv.python, "--only", "gear").targets) == ["gear"]
    assert {k: v for k, v in snapshot(venv.site, stats=True).items() if k.startswith("toy")} == before


# Refusals


@pytest.mark.case("a touched file was edited", target="installed", outcome="refused")
def test_an_edited_file_is_refused_by_name(venv: Venv) -> None:
    (venv.site / "toy/core.py").write_text("mine\n")
    refused(venv, "core.py")


@pytest.mark.case("a file edited after apply", target="installed", outcome="refused")
@pytest.mark.case("a file edited after apply", target="installed", outcome="told")
def test_a_file_edited_after_apply_is_refused_by_name_on_upgrade_and_reverse(toy: Toy, venv: Venv) -> None:
    ask("apply", "--installed", venv.python)
    (venv.site / "toy/dos.py").write_text("mine\n")
    assert ask("status", "--installed", venv.python).states()["bring-hook"] == "drifted"
    refused(venv, "toy/dos.py")
    refused(venv, "toy/dos.py", options=("--reverse",))
    make_newer(toy)
    refused(venv, "toy/dos.py")


@pytest.mark.case("a file deleted after apply", target="installed", outcome="refused")
def test_a_file_deleted_after_apply_is_refused_by_name(venv: Venv) -> None:
    ask("apply", "--installed", venv.python)
    (venv.site / "toy/extra/hook.py").unlink()
    refused(venv, "toy/extra/hook.py", "no file", options=("--reverse",))


@pytest.mark.case("a new file is there", target="installed", outcome="refused")
def test_a_file_where_the_series_brings_a_new_one_is_refused_by_name(venv: Venv) -> None:
    write(venv.site, {"toy/extra/hook.py": "mine\n"})
    refused(venv, "toy/extra/hook.py")


@pytest.mark.case("a file where the series wants a folder", target="installed", outcome="refused")
def test_a_file_where_the_series_wants_a_folder_is_refused_and_everything_is_as_before(venv: Venv) -> None:
    write(venv.site, {"toy/extra": "mine\n"})
    refused(venv, "toy/extra", code=ask("apply", "--installed", venv.python).code)
    assert (venv.site / "toy/core.py").read_text().startswith(ORIGINAL)


@pytest.mark.case("a patch of a file that the wheel does not have", target="installed", outcome="refused")
def test_a_patch_of_a_file_that_has_no_place_in_the_package_is_refused_by_name(toy: Toy, venv: Venv) -> None:
    clone = toy.clone("toy", "author-unmapped")
    git(clone, "checkout", "-q", "-b", "sm120/v1")
    commit(clone, "right-answer", {"README.md": "patched\n"})
    checkout = open_checkout(clone, load_lines(toy.home.pins))
    write_export(toy.home, changes(toy.home, checkout.pin, export_commits(checkout)))
    refused(venv, "README.md")


@pytest.mark.case("one of two targets is refused", target="installed", outcome="refused", source="Hyperloom#505")
def test_one_package_refused_leaves_the_other_untouched(venv: Venv) -> None:
    (venv.site / "gear/data/csrc/kernel.cu").write_text("mine\n")
    refused(venv, "kernel.cu")


def test_a_lost_manifest_is_not_taken_for_a_clean_package(venv: Venv) -> None:
    ask("apply", "--installed", venv.python)
    (venv.info() / "sm120-overlay" / "manifest.json").unlink()
    refused(venv, "core.py")
    assert ask("apply", "--installed", venv.python, "--reverse").code == 1


@pytest.mark.case("our manifest is lost", target="installed", outcome="refused")
def test_a_lost_manifest_says_what_to_do_on_apply_and_on_reverse(venv: Venv) -> None:
    ask("apply", "--installed", venv.python)
    (venv.info() / "sm120-overlay" / "manifest.json").unlink()
    refused(venv, "manifest", "force-reinstall")
    refused(venv, "manifest", "force-reinstall", options=("--reverse",))


@pytest.mark.case("our manifest is damaged", target="installed", outcome="refused")
def test_a_manifest_that_does_not_parse_is_refused_by_name(venv: Venv) -> None:
    ask("apply", "--installed", venv.python)
    (venv.info() / "sm120-overlay" / "manifest.json").write_text("{")
    refused(venv, "manifest.json")


@pytest.mark.parametrize("damage", ["gone", "changed"])
@pytest.mark.case("a kept original is lost or damaged", target="installed", outcome="refused")
def test_a_damaged_original_is_refused_by_name(venv: Venv, damage: str) -> None:
    ask("apply", "--installed", venv.python)
    for original in (venv.info() / "sm120-overlay" / "originals").iterdir():
        original.unlink() if damage == "gone" else original.write_text("other")
    refused(venv, "originals", "force-reinstall", options=("--reverse",))


@pytest.mark.parametrize("version", ["1.0", "1.1.dev3+gabc"])
def test_an_editable_install_is_refused_with_a_pointer(venv: Venv, version: str) -> None:
    shutil.rmtree(venv.info())
    direct = json.dumps({"url": "file:///home/me/src/toy/python", "dir_info": {"editable": True}})
    add_distribution(venv.site, "toy", version, **{"direct_url.json": direct, "RECORD": ""})
    refused(venv, "editable", "/home/me/src/toy")


def test_a_package_without_record_is_refused(venv: Venv) -> None:
    (venv.info() / "RECORD").unlink()
    refused(venv, "RECORD")


def test_metadata_of_other_forms_beside_it_does_not_disturb(venv: Venv) -> None:
    write(venv.site, {"toy.egg-info/PKG-INFO": "Name: toy\nVersion: 0.1\n", "lone-1.dist-info/INSTALLER": "pip\n"})
    write(venv.site, {"gear_python-1.0.egg-info": "Name: gear-python\nVersion: 0.1\n"})
    assert ask("apply", "--installed", venv.python).code == 0


@pytest.mark.case("two versions in one folder", target="installed", outcome="refused")
def test_two_versions_in_one_folder_are_refused_by_version(venv: Venv) -> None:
    add_distribution(venv.site, "toy", "0.9")
    refused(venv, "0.9", "1.0", "toy")


@pytest.mark.case("the package is on the path twice", target="installed", outcome="exact")
def test_the_first_of_two_folders_counts(venv: Venv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other"
    shutil.copytree(venv.site, other)
    monkeypatch.setenv("PYTHONPATH", str(other))
    answer = ask("apply", "--installed", venv.python)
    assert answer.code == 0
    assert answer.targets["toy"]["path"] == str(other)
    assert (venv.site / "toy/core.py").read_text().startswith(ORIGINAL)


@pytest.mark.parametrize("kind", ["package", "module", "safe path"])
@pytest.mark.case("Python imports another copy than pip's", target="installed", outcome="refused")
def test_a_package_that_is_shadowed_is_refused(
    venv: Venv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    write(tmp_path / "shadow", {"toy.py" if kind == "module" else "toy/__init__.py": "SHADOW = 1\n"})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "shadow"))
    if kind == "safe path":
        monkeypatch.setenv("PYTHONSAFEPATH", "1")
    assert venv.run("import toy; print(toy.SHADOW)") == "1"
    refused(venv, str(tmp_path / "shadow"))


def test_a_clone_folder_on_the_path_that_python_does_not_import_is_no_shadow(
    venv: Venv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "src", {"toy/python/toy/__init__.py": "", "toy/README.md": ""})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "src"))
    assert venv.run("import toy; print(toy.__file__)") == str(venv.site / "toy/__init__.py")
    assert ask("apply", "--installed", venv.python).code == 0


@pytest.mark.case("upstreams of two lines together", target="installed", outcome="refused", source="Hyperloom#1157")
def test_upstreams_of_two_lines_are_refused_by_name_and_version(toy: Toy, venv: Venv) -> None:
    text = toy.home.pins.read_text()
    second = text[text.index("[line.v1.joint]") :].replace("line.v1", "line.v2").replace('"1.0"', '"2.0"')
    toy.home.pins.write_text(text + "\n" + second)
    shutil.move(venv.info("gear_python"), venv.site / "gear_python-2.0.dist-info")
    metadata = venv.site / "gear_python-2.0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("Version: 1.0", "Version: 2.0"))
    refused(venv, "toy 1.0", "gear-python 2.0", "v1", "v2")


@pytest.mark.case("a torch of another line", target="installed", outcome="refused")
def test_a_torch_of_another_line_is_refused_and_a_local_build_of_the_right_one_fits(venv: Venv) -> None:
    add_distribution(venv.site, "torch", "2.1")
    refused(venv, "torch 2.1", "2.0")
    shutil.rmtree(venv.site / "torch-2.1.dist-info")
    add_distribution(venv.site, "torch", "2.0+cu128")
    assert ask("apply", "--installed", venv.python).code == 0


@pytest.mark.case(
    "a prebuilt library of a patched source", target="installed", outcome="refused", source="nick-oconnor"
)
def test_a_prebuilt_library_is_refused_unless_its_patches_are_left_out(venv: Venv) -> None:
    add_distribution(venv.site, "Gear_JIT.cache", "1.0")
    refused(venv, "gear-jit-cache", "more-gears")
    assert ask("apply", "--installed", venv.python, "--without", "more-gears").code == 0
    assert ask("apply", "--installed", venv.python, "--reverse").code == 0


def test_a_prebuilt_library_that_came_later_makes_status_and_verify_say_no(venv: Venv) -> None:
    ask("apply", "--installed", venv.python)
    add_distribution(venv.site, "gear-jit-cache", "1.0")
    for verb in ("status", "verify"):
        answer = ask(verb, "--installed", venv.python)
        assert (answer.code, answer.said["ok"]) == (1, False)
        (patch,) = answer.targets["gear"]["patches"]
        assert "gear-jit-cache is installed" in patch["reason"]


def test_a_prebuilt_library_is_no_hazard_with_the_patch_that_keeps_it_from_being_loaded(toy: Toy, venv: Venv) -> None:
    pins = toy.home.pins
    pins.write_text(pins.read_text().replace("prebuilt = {", 'prebuilt_guard = "more-gears"\nprebuilt = {'))
    add_distribution(venv.site, "gear-jit-cache", "1.0")
    assert ask("apply", "--installed", venv.python).code == 0
    assert ask("verify", "--installed", venv.python).code == 0
    pins.write_text(pins.read_text().replace('"more-gears"', '"another"'))
    assert ask("verify", "--installed", venv.python).code == 1
    refused(venv, "gear-jit-cache", "more-gears")


def test_a_series_can_be_taken_off_where_a_prebuilt_library_came_later(venv: Venv) -> None:
    ask("apply", "--installed", venv.python)
    add_distribution(venv.site, "gear-jit-cache", "1.0")
    refused(venv, "gear-jit-cache")
    assert ask("apply", "--installed", venv.python, "--reverse").code == 0


def test_nothing_installed_is_an_answer_of_its_own(venv: Venv) -> None:
    for folder in (venv.info("toy"), venv.info("gear_python"), venv.site / "toy", venv.site / "gear"):
        shutil.rmtree(folder)
    refused(venv, "toy", "gear-python", code=4)


def test_one_upstream_alone_is_patched(venv: Venv) -> None:
    shutil.rmtree(venv.info("gear_python"))
    shutil.rmtree(venv.site / "gear")
    answer = ask("apply", "--installed", venv.python)
    assert (answer.code, list(answer.targets)) == (0, ["toy"])
    assert "gear-python is not installed" in answer.err


def test_an_interpreter_that_is_none_is_an_answer_of_its_own(toy: Toy, tmp_path: Path) -> None:
    for python in (tmp_path / "missing", tmp_path, "/bin/false", "/bin/true"):
        answer = ask("apply", "--installed", python)
        assert answer.code == 4
        assert str(python) in answer.said["error"]["what"]


def test_a_relative_interpreter_is_meant_from_the_current_folder(venv: Venv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(venv.root.parent)
    assert ask("apply", "--installed", "venv/bin/python").code == 0


def test_the_running_interpreter_is_meant_without_a_name(toy: Toy, venv: Venv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(venv.python))
    assert ask("apply", "--installed").targets["toy"]["path"] == str(venv.site)


# Compiled files


@pytest.mark.case("a compiled file that hides its source", target="installed", outcome="refused", source="whitelok")
def test_an_unchecked_compiled_file_is_refused_by_name(venv: Venv) -> None:
    compiled = "import py_compile as p; print(p.compile('{}', invalidation_mode=p.PycInvalidationMode.{}))"
    name = venv.run(compiled.format(venv.site / "toy/core.py", "UNCHECKED_HASH"))
    refused(venv, name, "unchecked")
    venv.run(compiled.format(venv.site / "toy/core.py", "CHECKED_HASH"))
    assert ask("apply", "--installed", venv.python).code == 0
    assert venv.run("import toy; print(toy.answer())") == "42"


@pytest.mark.case("a stale compiled file", target="installed", outcome="exact", source="whitelok")
def test_a_stale_compiled_file_is_never_used_within_one_second(venv: Venv) -> None:
    asked = "import toy, os; print(toy.answer())"
    said = []
    for _ in range(3):
        said.append(venv.run(asked))
        ask("apply", "--installed", venv.python, "--through", "right-answer", "--only", "toy")
        said.append(venv.run(asked))
        ask("apply", "--installed", venv.python, "--reverse", "--only", "toy")
    assert said == ["41", "42"] * 3


def test_a_compiled_file_of_a_new_module_goes_with_it(venv: Venv) -> None:
    ask("apply", "--installed", venv.python)
    venv.run("import toy.extra.hook")
    assert list((venv.site / "toy/extra/__pycache__").iterdir())
    ask("apply", "--installed", venv.python, "--reverse")
    assert not (venv.site / "toy/extra").exists()


# Modes


@pytest.mark.parametrize("mode", [0o644, 0o444, 0o755])
@pytest.mark.case("modes and owners of another installer", target="installed", outcome="exact")
def test_modes_and_owners_of_changed_files_stay(venv: Venv, mode: int) -> None:
    paths = [venv.site / "toy/core.py", venv.info() / "RECORD"]
    for path in paths:
        path.chmod(mode)
        if os.geteuid() == 0:
            os.chown(path, 1234, 1235)
    owner = [(path.stat().st_uid, path.stat().st_gid) for path in paths]
    for extra in ([], ["--reverse"]):
        assert ask("apply", "--installed", venv.python, *extra).code == 0
        assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [mode, mode]
        assert [(path.stat().st_uid, path.stat().st_gid) for path in paths] == owner


@pytest.mark.case("a strict umask", target="installed", outcome="exact")
def test_a_strict_umask_leaves_existing_files_readable(venv: Venv, no_umask: None) -> None:
    before = snapshot(venv.site)
    os.umask(0o077)
    assert ask("apply", "--installed", venv.python).code == 0
    assert stat.S_IMODE((venv.site / "toy/core.py").stat().st_mode) == 0o644
    assert ask("apply", "--installed", venv.python, "--reverse").code == 0
    assert snapshot(venv.site) == before


def test_another_user_can_import_what_apply_under_a_strict_umask_brought(venv: Venv, no_umask: None) -> None:
    os.umask(0o077)
    ask("apply", "--installed", venv.python)
    assert stat.S_IMODE((venv.site / "toy/extra/hook.py").stat().st_mode) & 0o044 == 0o044
    assert stat.S_IMODE((venv.site / "toy/extra").stat().st_mode) & 0o055 == 0o055


# Runs that were cut


def test_what_a_cut_in_the_last_step_left_is_gone_after_the_next_apply(venv: Venv) -> None:
    ask("apply", "--installed", venv.python)
    write(venv.info() / "sm120-overlay", {"before/0": "what a cut finish() left"})
    assert ask("apply", "--installed", venv.python).code == 0
    assert not (venv.info() / "sm120-overlay/before").exists()


@pytest.mark.case("another run is at work", target="installed", outcome="refused")
def test_a_living_run_is_not_disturbed(venv: Venv) -> None:
    with locked(venv.info() / FOLDER):
        refused(venv, "another run", str(venv.info()))
        assert ask("status", "--installed", venv.python).code == 1


def test_what_apply_keeps_is_as_open_as_the_package_under_any_umask(venv: Venv) -> None:
    """Whoever serves may be another user than the one who patched, and verifies at the start."""
    before = os.umask(0o077)
    try:
        assert ask("apply", "--installed", venv.python).code == 0
    finally:
        os.umask(before)
    kept = venv.info() / "sm120-overlay"
    modes = {path.stat().st_mode & 0o777 for path in (kept, *kept.rglob("*")) if path.is_dir()}
    assert modes == {venv.info().stat().st_mode & 0o777}
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in kept.rglob("*") if path.is_file())


def test_a_lost_manifest_is_told_by_status(venv: Venv) -> None:
    assert ask("apply", "--installed", venv.python).code == 0
    shutil.rmtree(venv.info() / "sm120-overlay")
    notes = [target["note"] for target in ask("status", "--installed", venv.python).said["targets"]]
    assert ["which kept pip's originals" in (note or "") for note in notes] == [True, False]
