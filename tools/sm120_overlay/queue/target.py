"""One view of both kinds of target: what each patch's state is there, and by which digest it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from .blobs import digest
from .checkout import Checkout, observe_files, unfinished
from .git import Entry, diff_trees
from .installed import Installed, hidden_patches, observe_installed
from .series import Chain, Series, chains, observed_digest
from .state import PatchState, State, patch_states

Target = Checkout | Installed
CUT = "a run was cut here; the next apply undoes it first"
OLDER = "an older series of ours is applied; apply upgrades it"


@dataclass(frozen=True)
class Report:
    """What a target holds, beside what it should hold (the fields of the JSON contract, docs/json.md)."""

    upstream: str
    version: str
    line: str
    path: Path
    kind: str
    base: str | None
    head: str | None
    digest: str
    expected_digest: str
    patches: tuple[PatchState, ...]
    note: str | None = None
    hidden: bool = False

    @property
    def ok(self) -> bool:
        """Whether the target is exactly what was asked for, and in effect."""
        cut = any(patch.state in (State.INTERRUPTED, State.DRIFTED) for patch in self.patches)
        return self.digest == self.expected_digest and not cut and not self.hidden


def inspect(target: Target, series: Series, selected: Series, moved: bool = False) -> Report:
    """The state of every patch of `series` on the target; `selected` is what should be applied of it.

    `moved` says that the caller has just brought it to this very series, so no older one can be on it.
    """
    known = chains(series)
    found = _observe(target, sorted(known))
    carried = {} if moved else _carried(target)
    extra = {path: Chain(mode, (blob,), ()) for path, (mode, blob, _) in carried.items() if path not in known}
    found |= _observe(target, sorted(extra))
    ours = isinstance(target, Installed) or all(commit.ours for commit in target.commits)
    strange = (path for path, (_, _, blob) in carried.items() if path in known and found[path] == blob)
    older = {path for path in strange if ours and found[path] not in known[path].points}
    others = sorted(path for path, chain in extra.items() if found[path] != chain.points[0])
    bare = patch_states(series, {**found, **_at_pin(known, older)}, partial(_shown, target))
    applied = {state.slug for state in bare if state.state is State.APPLIED}
    hidden = hidden_patches(target, series, applied) if isinstance(target, Installed) else {}
    states = _explained(target, series, older, bare, hidden)
    return Report(
        upstream=series.pin.upstream,
        version=series.pin.version,
        line=series.pin.line,
        path=target.repo.path if isinstance(target, Checkout) else target.package.site,
        kind="checkout" if isinstance(target, Checkout) else "installed",
        base=target.base if isinstance(target, Checkout) else f"{target.package.version} {target.package.tag}",
        head=target.head if isinstance(target, Checkout) else None,
        digest=observed_digest(series, found, extra),
        expected_digest=selected.digest,
        patches=states,
        note=_note(target, others, isinstance(target, Installed) and not target.manifest and _any_applied(states)),
        hidden=any(state.slug in hidden and state.state is State.APPLIED for state in states),
    )


def absent_report(series: Series, selected: Series, path: Path) -> Report:
    """A fresh checkout that is not made yet: nothing of the series is on it."""
    pin = series.pin
    states = tuple(PatchState(slug, State.PENDING) for slug in series.slugs)
    bare = digest(pin.base, {})
    return Report(pin.upstream, pin.version, pin.line, path, "checkout", None, None, bare, selected.digest, states)


def _shown(target: Target, path: str) -> str:
    """A repository path as it is on the target."""
    return str(target.pin.installed_path(path)) if isinstance(target, Installed) else path


def _at_pin(known: Mapping[str, Chain], older: set[str]) -> dict[str, str | None]:
    """An older series of ours counts as the pin: none of this series' patches is on those files."""
    return {path: known[path].points[0] for path in older}


def _note(target: Target, others: list[str], bare: bool) -> str | None:
    """What a reader of the states must know besides: commits of others, and changed files that no patch touches."""
    said = []
    busy = unfinished(target) if isinstance(target, Checkout) else None
    if busy:
        said.append(f"a git {busy[0]} of yours is unfinished there")
    commits = target.commits if isinstance(target, Checkout) else ()
    theirs = sum(not commit.ours for commit in commits)
    if theirs:
        said.append(
            f"HEAD {commits[-1].id[:12]} is {len(commits)} commit{'s' * (len(commits) > 1)} after the pin "
            f"{target.pin.tag}, "
            f"{theirs} of them not ours"
        )
    if isinstance(target, Installed) and target.overwritten:
        said.append(
            f"{target.package.name} was installed again over an applied series, which left {target.place.folder} "
            f"behind; apply (or --reverse) puts it right"
        )
    if bare:
        said.append(
            f"{target.place.folder} is gone, which kept pip's originals: the series cannot be taken off or changed"
        )
    if others:
        source = "commits above the pin" if theirs else "an older series of ours (apply takes it off)"
        said.append(f"{', '.join(others)} changed by {source}")
    return "; ".join(said) or None


def _any_applied(states: tuple[PatchState, ...]) -> bool:
    return any(state.state is State.APPLIED for state in states)


def _carried(target: Target) -> dict[str, tuple[str, str | None, str | None]]:
    """Path → declared mode, pinned blob and carried blob, of what an earlier apply or any commit changed there.

    On a checkout only files that have a place in the package count: the rest does not run.
    """
    if isinstance(target, Installed):
        return {path: (entry["mode"], entry["original"], entry["blob"]) for path, entry in target.files.items()}
    if not target.commits:
        return {}
    changes = diff_trees(target.repo, target.base, target.head)
    return {
        change.path: (
            (change.new or change.old or Entry("100644", "")).mode,
            change.old.blob if change.old else None,
            change.new.blob if change.new else None,
        )
        for change in changes
        if target.pin.installed_path(change.path)
    }


def _observe(target: Target, paths: list[str]) -> dict[str, str | None]:
    if isinstance(target, Checkout):
        return observe_files(target.repo.path, paths)
    return observe_installed(target, paths)


def _explained(
    target: Target, series: Series, older: set[str], states: tuple[PatchState, ...], hidden: Mapping[str, str]
) -> tuple[PatchState, ...]:
    if target.place.journal.is_file():
        return tuple(PatchState(state.slug, State.INTERRUPTED, CUT) for state in states)
    commits = {commit.slug: commit.id for commit in target.commits} if isinstance(target, Checkout) else {}
    touched = {patch.slug: {edit.path for edit in patch.edits} for patch in series.patches}
    explained = []
    for state in states:
        if touched[state.slug] & older and state.state is not State.DRIFTED:
            state = PatchState(state.slug, State.PENDING, OLDER)  # noqa: PLW2901 - what the files alone cannot tell
        applied, reason = state.state is State.APPLIED, state.reason
        if isinstance(target, Installed):
            reason = hidden.get(state.slug) if applied else reason
        explained.append(replace(state, commit=commits.get(state.slug) if applied else None, reason=reason))
    return tuple(explained)
