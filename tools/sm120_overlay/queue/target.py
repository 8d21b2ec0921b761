"""One view of both kinds of target: what each patch's state is there, and by which digest it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from .blobs import digest
from .checkout import Checkout, observe_files
from .git import Entry, diff_trees
from .installed import Installed, observe_installed
from .series import Chain, Series, chains
from .state import PatchState, State, patch_states

Target = Checkout | Installed
CUT = "a run was cut here; the next apply undoes it first"
OLDER = "an older series of ours is applied; apply upgrades it"


@dataclass(frozen=True)
class Report:
    """What a target holds, beside what it should hold (the fields of the JSON contract, docs/json.md)."""

    upstream: str
    line: str
    path: Path
    kind: str
    base: str
    head: str | None
    digest: str
    expected_digest: str
    patches: tuple[PatchState, ...]

    @property
    def ok(self) -> bool:
        """Whether the target is exactly what was asked for."""
        cut = any(patch.state in (State.INTERRUPTED, State.DRIFTED) for patch in self.patches)
        return self.digest == self.expected_digest and not cut


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
    seen = {path: known[path].points[0] if path in older else blob for path, blob in found.items()}
    return Report(
        upstream=series.pin.upstream,
        line=series.pin.line,
        path=target.repo.path if isinstance(target, Checkout) else target.package.site,
        kind="checkout" if isinstance(target, Checkout) else "installed",
        base=target.base if isinstance(target, Checkout) else f"{target.package.version} {target.package.tag}",
        head=target.head if isinstance(target, Checkout) else None,
        digest=_digest(series, known | extra, found),
        expected_digest=selected.digest,
        patches=_explained(target, series, older, patch_states(series, seen)),
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
    target: Target, series: Series, older: set[str], states: tuple[PatchState, ...]
) -> tuple[PatchState, ...]:
    commits = {commit.slug: commit.id for commit in target.commits} if isinstance(target, Checkout) else {}
    touched = {patch.slug: {edit.path for edit in patch.edits} for patch in series.patches}
    if target.place.journal.is_file():
        return tuple(PatchState(state.slug, State.INTERRUPTED, CUT) for state in states)
    return tuple(
        replace(
            state,
            commit=commits.get(state.slug) if state.state is State.APPLIED else None,
            reason=OLDER if touched[state.slug] & older and state.state is State.PENDING else state.reason,
        )
        for state in states
    )
