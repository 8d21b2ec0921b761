"""One view of both kinds of target: what each patch's state is there, and by which digest it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from .blobs import digest
from .checkout import Checkout, observe_files
from .git import Entry, diff_trees
from .installed import Installed, hidden_patches, observe_installed
from .series import Chain, Series, chains
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
    older = {
        path for path, (_, _, blob) in carried.items() if path in known and _strange(known[path], found[path], blob)
    }
    hidden = hidden_patches(target, series) if isinstance(target, Installed) else {}
    states = _explained(target, series, older, patch_states(series, {**found, **_at_pin(known, older)}), hidden)
    return Report(
        upstream=series.pin.upstream,
        version=series.pin.version,
        line=series.pin.line,
        path=target.repo.path if isinstance(target, Checkout) else target.package.site,
        kind="checkout" if isinstance(target, Checkout) else "installed",
        base=target.base if isinstance(target, Checkout) else f"{target.package.version} {target.package.tag}",
        head=target.head if isinstance(target, Checkout) else None,
        digest=_digest(series, known | extra, found),
        expected_digest=selected.digest,
        patches=states,
        note=_note(target),
        hidden=any(state.slug in hidden and state.state is State.APPLIED for state in states),
    )


def absent_report(series: Series, selected: Series, path: Path) -> Report:
    """A fresh checkout that is not made yet: nothing of the series is on it."""
    pin = series.pin
    states = tuple(PatchState(slug, State.PENDING) for slug in series.slugs)
    bare = digest(pin.base, {})
    return Report(pin.upstream, pin.version, pin.line, path, "checkout", None, None, bare, selected.digest, states)


def _at_pin(known: Mapping[str, Chain], older: set[str]) -> dict[str, str | None]:
    """An older series of ours counts as the pin: none of this series' patches is on those files."""
    return {path: known[path].points[0] for path in older}


def _note(target: Target) -> str | None:
    """What a reader of the states must know of a checkout besides."""
    if isinstance(target, Installed) or not target.commits or target.branch == target.ours:
        return None
    theirs = sum(not commit.ours for commit in target.commits)
    return (
        f"HEAD {target.head[:12]} is {len(target.commits)} commits after the pin {target.pin.tag}, {theirs} of them "
        f"not ours"
        if theirs
        else None
    )


def _strange(chain: Chain, found: str | None, carried: str | None) -> bool:
    """Whether the file is what an older series of ours left, at no point of this series' chain."""
    return found == carried and found not in chain.points


def _carried(target: Target) -> dict[str, tuple[str, str | None, str | None]]:
    """Path → declared mode, pinned blob and carried blob, of what a series of ours (any version) changed there."""
    if isinstance(target, Installed):
        return {path: (entry["mode"], entry["original"], entry["blob"]) for path, entry in target.files.items()}
    if not target.commits or not all(commit.ours for commit in target.commits):
        return {}
    changes = diff_trees(target.repo, target.base, target.head)
    return {
        change.path: (
            (change.new or change.old or Entry("100644", "")).mode,
            change.old.blob if change.old else None,
            change.new.blob if change.new else None,
        )
        for change in changes
    }


def _observe(target: Target, paths: list[str]) -> dict[str, str | None]:
    if isinstance(target, Checkout):
        return observe_files(target.repo.path, paths)
    return observe_installed(target, paths)


def _digest(series: Series, known: Mapping[str, Chain], found: Mapping[str, str | None]) -> str:
    changed = {path: (chain.mode, found[path]) for path, chain in known.items() if found[path] != chain.points[0]}
    return digest(series.pin.base, changed)


def _explained(
    target: Target, series: Series, older: set[str], states: tuple[PatchState, ...], hidden: Mapping[str, str]
) -> tuple[PatchState, ...]:
    if target.place.journal.is_file():
        return tuple(PatchState(state.slug, State.INTERRUPTED, CUT) for state in states)
    commits = {commit.slug: commit.id for commit in target.commits} if isinstance(target, Checkout) else {}
    touched = {patch.slug: {edit.path for edit in patch.edits} for patch in series.patches}
    explained = []
    for state in states:
        reason = OLDER if touched[state.slug] & older and state.state is State.PENDING else state.reason
        applied = state.state is State.APPLIED
        if isinstance(target, Installed):
            reason = hidden.get(state.slug) if applied else _where_installed(target, touched[state.slug], reason)
        explained.append(replace(state, commit=commits.get(state.slug) if applied else None, reason=reason))
    return tuple(explained)


def _where_installed(target: Installed, paths: set[str], reason: str | None) -> str | None:
    """The reason with repository paths as they are in the package."""
    for path in paths if reason else ():
        reason = str(reason).replace(path, str(target.pin.installed_path(path)))
    return reason
