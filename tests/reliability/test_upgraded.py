"""What pip and people do to an environment after the series was applied: said by name, put right, or refused whole."""

from __future__ import annotations

import shutil

import pytest

from ..queue.scenes import Venv, add_distribution, ask, make_newer, snapshot
from ..queue.toy import FIRST, TOY, make_wheel, write
from .world import World, sentence, told, well_said

VERBS = (("apply",), ("apply", "--reverse"), ("status",), ("verify",))
OURS = {"toy/extra/__init__.py", "toy/extra/hook.py"}


def applied(world: World) -> Venv:
    """An environment with the series on it."""
    venv = world.venv()
    assert ask("apply", "--installed", venv.python).code == 0
    return venv


def names(venv: Venv) -> set[str]:
    """What lies in its site-packages, less what pip says about the call that installed it."""
    return {path for path in snapshot(venv.site) if not path.endswith(("REQUESTED", "direct_url.json"))}


def without_toy(world: World) -> Venv:
    """An environment from which one upstream was uninstalled."""
    venv = world.venv()
    shutil.rmtree(venv.site / "toy")
    shutil.rmtree(venv.info())
    return venv


def answers(venv: Venv, *words: str, code: int = 1) -> None:
    """Every verb says no with these words and changes nothing."""
    before = snapshot(venv.root, skip=())
    for verb, *flags in VERBS:
        answer = ask(verb, "--installed", venv.python, *flags)
        assert (answer.code, well_said(answer)) == (code, True), (verb, answer)
        for word in words:
            assert word in sentence(answer), answer
    assert snapshot(venv.root, skip=()) == before


def next_release(world: World, version: str = "1.1") -> None:
    """A wheel of a release that no line knows, where pip finds it."""
    files = {
        name.removeprefix("python/"): text.encode() for name, text in TOY.items() if name.startswith("python/toy/")
    }
    make_wheel(world.toy.wheels, "toy", version, {**files, "toy/_version.py": b"version = '1.1'\n"})


@pytest.mark.case("pip upgraded the package under an applied series", target="installed", outcome="refused")
def test_an_upgraded_package_is_refused_by_version_and_nothing_of_ours_is_left_in_it(world: World) -> None:
    venv = applied(world)
    next_release(world)
    venv.pip("install", "-q", "--no-deps", "--upgrade", "toy")
    assert not [path for path in snapshot(venv.site) if "sm120-overlay" in path and path.startswith("toy")]
    assert not OURS & snapshot(venv.site).keys()
    answers(venv, "toy 1.1", "v1: toy 1.0")


@pytest.mark.case("a newer version was unpacked over an applied series", target="installed", outcome="refused")
def test_a_version_unpacked_over_a_patched_one_is_refused_by_both_versions(world: World) -> None:
    venv = applied(world)
    next_release(world)
    venv.pip("install", "-q", "--no-deps", "--ignore-installed", "toy==1.1")
    answers(venv, "toy", "1.0", "1.1", "two versions")


@pytest.mark.case("what an upgrade left of an applied series' metadata", target="installed", outcome="refused")
def test_metadata_that_holds_nothing_but_ours_is_named_with_what_to_do(world: World) -> None:
    """An installer that does not read RECORD takes its own files away and leaves our folder."""
    venv = applied(world)
    for path in venv.info().iterdir():
        path.unlink() if path.is_file() else None
    next_release(world)
    venv.pip("install", "-q", "--no-deps", "--ignore-installed", "toy==1.1")
    answers(venv, "toy-1.0.dist-info", "remove it")


@pytest.mark.case("the same version was installed again over an applied series", target="installed", outcome="told")
def test_a_reinstalled_package_is_said_to_be_pending(world: World) -> None:
    clean, venv = names(world.venv("clean")), applied(world)
    venv.pip("install", "-q", "--no-deps", "--force-reinstall", "toy==1.0")
    seen, said = told(world, ["--installed", venv.python, "--only", "toy"])
    assert (seen, said.count('"pending"')) == ("told", 4)
    assert ask("apply", "--installed", venv.python).code == 0
    assert ask("verify", "--installed", venv.python).code == 0
    assert ask("apply", "--installed", venv.python, "--reverse").code == 0
    assert names(venv) == clean


def overwritten(world: World) -> Venv:
    """Unpacked again without taking off what was there: RECORD is new, and our files and manifest stay behind."""
    venv = applied(world)
    shutil.copytree(world.venv("clean").site, venv.site, dirs_exist_ok=True)
    return venv


@pytest.mark.case("the same version was unpacked over an applied series", target="installed", outcome="told")
def test_a_package_unpacked_over_a_patched_one_is_told(world: World) -> None:
    venv = applied(world)
    venv.pip("install", "-q", "--no-deps", "--ignore-installed", "toy==1.0")
    assert names(venv) > OURS
    assert "sm120-overlay" not in (venv.info() / "RECORD").read_text()
    seen, said = told(world, ["--installed", venv.python])
    assert seen == "told", said
    assert str(venv.info() / "sm120-overlay") in said
    assert "installed again over an applied series" in said


@pytest.mark.case("the same version was unpacked over an applied series", target="installed", outcome="exact")
@pytest.mark.parametrize("first", ["apply", "reverse", "newer"])
def test_a_package_unpacked_over_a_patched_one_is_put_right_in_one_run(world: World, first: str) -> None:
    venv = overwritten(world)
    if first == "newer":
        make_newer(world.toy)
    if first != "reverse":
        answer = ask("apply", "--installed", venv.python)
        assert (answer.code, answer.targets["toy"]["digest"]) == (0, world.toy.series().digest), answer
        assert answer.targets["toy"]["note"] is None
        assert ask("apply", "--installed", venv.python).targets["toy"]["changed"] is False
    assert ask("apply", "--installed", venv.python, "--reverse").code == 0
    assert snapshot(venv.site) == snapshot(world.root / "clean" / venv.site.relative_to(venv.root))


@pytest.mark.case("half of the package was unpacked over an applied series", target="installed", outcome="exact")
def test_a_package_half_unpacked_over_a_patched_one_is_put_right(world: World) -> None:
    """As a COPY of some files in a Dockerfile does it: RECORD and one file are pip's again, the others are ours."""
    clean, venv = world.venv("clean"), applied(world)
    for name in ("toy-1.0.dist-info/RECORD", "toy/core.py"):
        shutil.copy(clean.site / name, venv.site / name)
    assert told(world, ["--installed", venv.python])[0] == "told"
    assert ask("apply", "--installed", venv.python).code == 0
    assert ask("verify", "--installed", venv.python).code == 0
    assert ask("apply", "--installed", venv.python, "--reverse").code == 0
    assert snapshot(venv.site) == snapshot(clean.site)


@pytest.mark.case("edited after it was unpacked over an applied series", target="installed", outcome="refused")
def test_an_edit_in_an_overwritten_package_is_refused_and_the_advice_works(world: World) -> None:
    venv = overwritten(world)
    write(venv.site, {"toy/core.py": "mine\n"})
    before = snapshot(venv.site)
    answer = ask("apply", "--installed", venv.python)
    todo = answer.said["error"]["todo"]
    assert (answer.code, snapshot(venv.site) == before) == (1, True)
    assert f"rm -r {venv.info() / 'sm120-overlay'}" in todo
    shutil.rmtree(venv.info() / "sm120-overlay")
    shutil.copytree(world.root / "clean" / venv.site.relative_to(venv.root), venv.site, dirs_exist_ok=True)
    for path in sorted(OURS):  # named one by one by what refuses then
        again = ask("apply", "--installed", venv.python)
        assert (again.code, path in again.said["error"]["what"]) == (1, True), again
        assert "Move it away" in again.said["error"]["todo"]
        (venv.site / path).unlink()
    assert ask("apply", "--installed", venv.python).code == 0


@pytest.mark.case("a file put back by hand after apply", target="installed", outcome="refused")
def test_one_file_put_back_by_hand_is_told_and_refused(world: World) -> None:
    venv = applied(world)
    write(venv.site, {"toy/core.py": TOY["python/toy/core.py"]})
    seen, said = told(world, ["--installed", venv.python])
    assert (seen, "toy/core.py" in said) == ("told", True)
    before = snapshot(venv.site)
    answer = ask("apply", "--installed", venv.python)
    assert (answer.code, "toy/core.py was edited" in sentence(answer)) == (1, True)
    assert snapshot(venv.site) == before


@pytest.mark.case("one patch taken off by hand after apply", target="installed", outcome="told")
def test_a_file_set_back_to_the_middle_of_its_chain_is_told_by_name(world: World) -> None:
    venv = applied(world)
    write(venv.site, {"toy/core.py": FIRST["python/toy/core.py"]})
    seen, said = told(world, ["--installed", venv.python])
    assert (seen, "not yet in toy/core.py" in said) == ("told", True), said


@pytest.mark.case("an environment moved to another place after apply", target="installed", outcome="exact")
def test_a_moved_environment_is_known_and_reversed(world: World) -> None:
    clean, venv = snapshot(world.venv("clean").site), applied(world)
    moved = Venv(venv.root.rename(world.root / "moved here"))
    assert ask("verify", "--installed", moved.python).code == 0
    assert ask("apply", "--installed", moved.python).targets["toy"]["changed"] is False
    assert ask("apply", "--installed", moved.python, "--reverse").code == 0
    assert snapshot(moved.site) == clean


@pytest.mark.case("two environments share one site-packages", target="installed", outcome="told")
def test_a_series_reversed_through_one_environment_is_off_in_the_other(world: World) -> None:
    one, two = applied(world), world.venv("two")
    shutil.rmtree(two.site)
    two.site.symlink_to(one.site)
    assert ask("verify", "--installed", two.python).code == 0
    assert ask("apply", "--installed", two.python, "--reverse").code == 0
    assert ask("status", "--installed", one.python).states() == {"right-answer": "pending", "bring-hook": "pending"}


@pytest.mark.case("an upstream that --only names is not installed", target="installed", outcome="refused")
@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_an_upstream_asked_for_by_name_and_not_installed_is_no_success(world: World, verb: tuple[str, ...]) -> None:
    venv = without_toy(world)
    before = snapshot(venv.site)
    answer = ask(verb[0], "--installed", venv.python, "--only", "toy", *verb[1:])
    assert (answer.code, well_said(answer), snapshot(venv.site) == before) == (4, True, True), answer
    assert "toy is not installed" in sentence(answer)


@pytest.mark.case(
    "an upstream that pip does not know is imported from elsewhere", target="installed", outcome="refused"
)
def test_an_upstream_on_the_path_without_metadata_is_refused_by_its_folder(world: World) -> None:
    venv, clone = without_toy(world), world.toy.clone()
    write(venv.site, {"toy.pth": f"{clone / 'python'}\n"})
    answers(venv, str(clone / "python"), f"apply.py {clone})")
    assert ask("apply", "--installed", venv.python, "--only", "gear").code == 0


@pytest.mark.case("a prebuilt library came after a patch of its source", target="installed", outcome="told")
def test_a_prebuilt_library_that_comes_later_is_told_by_name(world: World) -> None:
    venv = applied(world)
    add_distribution(venv.site, "gear-jit-cache", "1.0")
    seen, said = told(world, ["--installed", venv.python])
    assert (seen, "gear-jit-cache is installed" in said) == ("told", True)
