"""Random series on the toy project: on and off again is the identity, export of what apply made is, states are true."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm120_overlay.queue.blobs import blob_id, blob_of
from sm120_overlay.queue.build import Said, build_on
from sm120_overlay.queue.environment import find_packages
from sm120_overlay.queue.export import changes, export_commits, write_export
from sm120_overlay.queue.git import Repository
from sm120_overlay.queue.installed import change_installed, observe_installed, open_installed
from sm120_overlay.queue.patch import Edit, Patch
from sm120_overlay.queue.pins import Pin
from sm120_overlay.queue.series import Series, chains, observed_digest, select
from sm120_overlay.queue.state import State, patch_states
from sm120_overlay.queue.transaction import locked

from ..queue.scenes import ask, snapshot
from ..queue.toy import TOY, Toy, git, message, opened, write
from .given import LINES, examples

Files = dict[str, bytes | None]
BASE: Files = {path: text.encode() for path, text in TOY.items() if path.startswith("python/toy/")}
EXECUTABLE = "python/toy/run.py"
DATE = "Sun, 1 Mar 2026 12:00:00 +0100"


@dataclass(frozen=True)
class Step:
    """One patch to be: the files that it changes, and the overlay file among them."""

    slug: str
    files: Files
    overlay: str | None

    @property
    def message(self) -> str:
        """As lint wants it."""
        return message(self.slug, **({"Overlay": self.overlay} if self.overlay else {}))


@st.composite
def series_of(draw: st.DrawFn) -> list[Step]:
    """Two to five patches that share files, with everything upstream has: CRLF, no last line end, an executable."""
    now, steps, fixed = dict(BASE), [], set[str]()
    for number in range(draw(st.integers(2, 5))):
        files: Files = {}
        kinds = draw(st.lists(st.sampled_from(["edit", "edit", "edit", "new", "gone"]), min_size=1, max_size=3))
        for at, kind in enumerate(kinds):
            here = sorted(path for path, data in now.items() if data is not None and path not in {*fixed, *files})
            if kind == "new" or not here:
                files[f"python/toy/new/{number}-{at} é.py"] = draw(st.one_of(st.just(b""), st.binary(max_size=9)))
                continue
            # A file that comes and goes within a series would be at the pin and at its end alike: lint refuses that.
            gone = [path for path in here if kind == "gone" and path in BASE]
            path = draw(st.sampled_from(gone or here))
            files[path] = None if gone else draw(_edited(now[path] or b"", f"{number}.{at}"))
        overlay = f"python/toy/over/{number}.py" if draw(st.booleans()) else None
        files |= {overlay: draw(st.binary(max_size=9)) + b"\n"} if overlay else {}
        fixed |= {overlay} if overlay else set()
        now |= files
        steps.append(Step(f"patch-{number}", files, overlay))
    return steps


@st.composite
def _edited(draw: st.DrawFn, data: bytes, mark: str) -> bytes:
    """One line replaced, another one added, perhaps the last line end lost; never bytes that were there before."""
    lines = data.split(b"\n")
    end = b"\r" if b"\r\n" in data else b""
    at = draw(st.integers(0, len(lines) - 1))
    lines[at] = f"# {mark}".encode() + end
    lines.insert(draw(st.integers(0, len(lines))), draw(LINES).replace(b"\r", b"") + end)
    return b"\n".join(lines)


def states_of(steps: list[Step]) -> list[Files]:
    """The files at the pin and after each patch."""
    found = [dict(BASE)]
    for step in steps:
        found.append({**found[-1], **step.files})
    return found


def author(toy: Toy, clone: Path, steps: list[Step]) -> None:
    """Makes the steps the project's series: commits on our branch of an author's clone, exported."""
    repo, tip = Repository(clone), toy.pin().commit
    for step in steps:
        modes = {path: "100755" if path == EXECUTABLE else "100644" for path in step.files}
        files = {path: (modes[path], data) for path, data in step.files.items()}
        tip = build_on(repo, tip, Said("Ann <a@b>", "Ann <a@b>", DATE, step.message), files)
    git(clone, "update-ref", "refs/heads/sm120/v1", tip)
    checkout = opened(toy, clone)
    write_export(toy.home, changes(toy.home, checkout.pin, export_commits(checkout)))


def check_tree(root: Path, files: Mapping[str, bytes | None]) -> None:
    for path, data in files.items():
        assert (root / path).read_bytes() == data if data is not None else not (root / path).exists(), path


@examples(10)
@given(steps=series_of(), data=st.data())
def test_on_and_off_a_checkout_is_the_identity_and_so_is_the_export(
    toy: Toy, steps: list[Step], data: st.DataObject
) -> None:
    places = [toy.root / "author", toy.root / "user"]
    for place in places:
        if not place.exists():
            git(toy.root, "clone", "-q", str(toy.upstream()), str(place))
    writer, user = places
    author(toy, writer, steps)
    before, points = snapshot(user), states_of(steps)
    stop = data.draw(st.integers(1, len(steps)))
    assert ask("apply", user, "--through", steps[stop - 1].slug).code == 0
    check_tree(user, points[stop])
    assert ask("apply", user).code == 0
    check_tree(user, points[-1])
    if points[-1][EXECUTABLE] is not None:
        assert (user / EXECUTABLE).stat().st_mode & stat.S_IXUSR
    assert git(user, "status", "--porcelain") == ""
    made = export_commits(opened(toy, user))
    assert changes(toy.home, opened(toy, user).pin, made) == []
    assert made == export_commits(opened(toy, writer))
    assert ask("apply", user, "--reverse").code == 0
    assert snapshot(user) == before
    assert git(user, "status", "--porcelain", "--branch") == "## main...origin/main\n"


@examples(20)
@given(steps=series_of(), data=st.data())
def test_on_and_off_an_installed_package_is_the_identity_record_included(
    toy: Toy, steps: list[Step], data: st.DataObject
) -> None:
    writer, site = toy.root / "author", toy.root / "site"
    if not writer.exists():
        git(toy.root, "clone", "-q", str(toy.upstream()), str(writer))
        toy.site("toy")
    author(toy, writer, steps)
    series, pin = toy.series(), toy.pin()
    before, points = snapshot(site), states_of(steps)
    for stop in (data.draw(st.integers(1, len(steps) - 1)), len(steps), 0):
        _change(pin, site, replace(series, patches=series.patches[:stop]), series)
        check_tree(site, {str(pin.installed_path(path)): data for path, data in points[stop].items()})
        found = observe_installed(_open(pin, site), sorted(chains(series)))
        assert observed_digest(series, found) == replace(series, patches=series.patches[:stop]).digest
    assert snapshot(site) == before


def _open(pin: Pin, site: Path):  # type: ignore[no-untyped-def]
    return open_installed(pin, find_packages([str(site)], [pin.distribution])[pin.distribution])


def _change(pin: Pin, site: Path, wanted: Series, whole: Series) -> None:
    target = _open(pin, site)
    with locked(target.place.folder):
        assert change_installed(target, wanted, whole)
        assert not change_installed(_open(pin, site), wanted, whole)


# ---- states and digests, of the nouns alone


def as_series(pin: Pin, steps: list[Step]) -> Series:
    """The steps as a series without hunks."""
    now: Files = {}
    patches = []
    for step in steps:
        edits = []
        for path, data in step.files.items():
            old = now.get(path, BASE.get(path))
            edits.append(Edit(path, "100644", blob_of(old), blob_of(data)))
            now[path] = data
        patches.append(Patch(step.slug, "Ann <a@b>", DATE, step.message, (("Slug", step.slug),), tuple(edits)))
    return Series(pin, tuple(patches))


@examples(150)
@given(steps=series_of(), data=st.data())
def test_states_say_of_any_mix_of_files_what_is_there(toy: Toy, steps: list[Step], data: st.DataObject) -> None:
    series = as_series(toy.pin(), steps)
    known = chains(series)
    drift = blob_id(b"of nobody")
    points = {path: data.draw(st.sampled_from([*range(len(chain.points)), None])) for path, chain in known.items()}
    found = {path: drift if at is None else known[path].points[at] for path, at in points.items()}
    for step, state in zip(steps, patch_states(series, found), strict=True):
        drifted = {path for path in step.files if points[path] is None}
        past = {
            path for path in step.files.keys() - drifted if (points[path] or 0) > known[path].slugs.index(step.slug)
        }
        assert (state.state is State.DRIFTED) == bool(drifted)
        assert all(path in (state.reason or "") for path in drifted)
        if not drifted:
            expected = State.APPLIED if past == step.files.keys() else State.INTERRUPTED if past else State.PENDING
            assert state.state is expected


@examples(100)
@given(steps=series_of())
def test_a_prefix_on_the_target_is_applied_up_to_there_and_has_its_own_digest(toy: Toy, steps: list[Step]) -> None:
    series = as_series(toy.pin(), steps)
    digests = []
    for at, files in enumerate(states_of(steps)):
        found = {path: blob_of(files.get(path)) for path in chains(series)}
        states = [state.state for state in patch_states(series, found)]
        assert states == [State.APPLIED] * at + [State.PENDING] * (len(steps) - at)
        digests.append(observed_digest(series, found))
        chosen = select(series, through=steps[at - 1].slug) if at else replace(series, patches=())
        assert chosen.digest == digests[-1]
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize("at", [0, 1])
def test_the_generator_makes_series_that_lint_would_take(toy: Toy, at: int) -> None:
    """Its commits are what an author would make: else the properties above would hold of another thing."""
    writer = toy.clone("toy", "author")
    step = Step("patch-0", {"python/toy/over/0.py": b"x = 1\n", "python/toy/core.py": b"y\n"}, "python/toy/over/0.py")
    write(toy.home.root, {"tests/patches/test_patch_0.py": ""})
    author(toy, writer, [step] if at else [replace(step, overlay=None)])
    assert ask("lint").said["findings"] == []
