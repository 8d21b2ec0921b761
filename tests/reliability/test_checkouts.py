"""What can be wrong with a checkout, and with how it is named: exactly right, or refused with nothing changed."""

from __future__ import annotations

import os
import py_compile
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ..queue.toy import FIRST, HOOK, TOY, git, write
from .world import Case, World, check, marked

CORE = "python/toy/core.py"
Arrange = Callable[[World], Sequence[object]]


def ignored_by_another(world: World) -> Sequence[object]:
    outer = world.root / "outer"
    git(world.root, "init", "-q", "-b", "main", str(outer))
    write(outer, {".gitignore": "build/\n", "mine.txt": "mine\n"})
    git(outer, "add", "-A")
    git(outer, "commit", "-qm", "outer")
    git(world.root, "clone", "-q", str(world.toy.upstream()), str(outer / "build" / "toy"))
    return [outer / "build" / "toy"]


def plain_in_ignored(world: World) -> Sequence[object]:
    top = Path(str(ignored_by_another(world)[0]))
    shutil.rmtree(top / ".git")
    return [top]


def git_file_to_nowhere(world: World) -> Sequence[object]:
    clone = world.toy.clone()
    shutil.rmtree(clone / ".git")
    write(clone, {".git": "gitdir: /nowhere/at/all\n"})
    return [clone]


def git_file_of_words(world: World) -> Sequence[object]:
    clone = world.toy.clone()
    shutil.rmtree(clone / ".git")
    write(clone, {".git": b"\xff\0not a pointer"})
    return [clone]


def empty_git_folder(world: World) -> Sequence[object]:
    clone = world.toy.clone()
    shutil.rmtree(clone / ".git")
    (clone / ".git").mkdir()
    return [clone]


def no_git(world: World) -> Sequence[object]:
    clone = world.toy.clone()
    shutil.rmtree(clone / ".git")
    return [clone]


def git_folder_linked(world: World) -> Sequence[object]:
    clone = world.toy.clone()
    (clone / ".git").rename(world.toy.root / "moved.git")
    (clone / ".git").symlink_to(world.toy.root / "moved.git")
    return [clone]


def separate_git_folder(world: World) -> Sequence[object]:
    folder, clone = world.toy.root / "apart.git", world.toy.root / "apart"
    git(world.root, "clone", "-q", f"--separate-git-dir={folder}", str(world.toy.upstream()), str(clone))
    return [clone]


def work_tree_elsewhere(world: World) -> Sequence[object]:
    clone, other = world.toy.clone(), world.toy.clone(into="other")
    git(clone, "config", "core.worktree", str(other))
    return [clone]


def bare(world: World) -> Sequence[object]:
    git(world.root, "clone", "-q", "--bare", str(world.toy.upstream()), "bare")
    return [world.root / "bare"]


def unrelated(world: World) -> Sequence[object]:
    folder = world.root / "unrelated"
    git(world.root, "init", "-q", "-b", "main", str(folder))
    write(folder, {"python/toy/core.py": TOY[CORE], "setup.py": "x\n"})
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "another project")
    return [folder]


def neighbour(world: World) -> Sequence[object]:
    """Like v1.1 of the upstream: the touched files are the pin's, the commit is not."""
    clone = world.toy.clone()
    write(clone, {"README.md": "toy 1.1\n"})
    git(clone, "commit", "-qam", "release 1.1")
    git(clone, "tag", "v1.1")
    git(clone, "checkout", "-q", "v1.1")
    return [clone]


def neighbour_of_its_own(world: World) -> Sequence[object]:
    """The same files on a history that the pin is not part of, as on a release branch."""
    clone = world.toy.clone()
    git(clone, "checkout", "-q", "--orphan", "release")
    git(clone, "commit", "-qm", "release 1.1")
    return [clone]


def relative(world: World) -> Sequence[object]:
    world.monkeypatch.chdir(world.toy.clone().parent)
    return ["clone-toy"]


def dot(world: World) -> Sequence[object]:
    world.monkeypatch.chdir(world.toy.clone())
    return ["."]


def trailing_slash(world: World) -> Sequence[object]:
    return [f"{world.toy.clone()}//"]


def through_link(world: World) -> Sequence[object]:
    (world.root / "link").symlink_to(world.toy.clone())
    return [f"{world.root / 'link'}/"]


def tilde(world: World) -> Sequence[object]:
    world.monkeypatch.setenv("HOME", str(world.toy.clone().parent))
    world.monkeypatch.chdir(world.root)
    return ["~/clone-toy"]


def odd_name(name: str) -> Arrange:
    def arrange(world: World) -> Sequence[object]:
        return [world.toy.clone(into=name)]

    return arrange


def shallow(world: World) -> Sequence[object]:
    folder = world.toy.root / "shallow"
    git(world.root, "clone", "-q", "--depth=1", f"file://{world.toy.upstream()}", str(folder))
    return [folder]


def at_a_tag(world: World) -> Sequence[object]:
    clone = world.toy.clone()
    git(clone, "tag", "v1.0")
    git(clone, "checkout", "-q", "v1.0")
    return [clone]


def tag_of_our_name(world: World) -> Sequence[object]:
    clone = world.toy.clone()
    git(clone, "tag", "sm120/v1")
    return [clone]


def tag_named_head(world: World) -> Sequence[object]:
    clone = world.toy.clone()
    git(clone, "update-ref", "refs/tags/HEAD", "HEAD")
    return [clone]


def submodule_changed(world: World) -> Sequence[object]:
    clone = world.toy.clone()
    source = str(world.toy.upstream("gear"))
    git(clone, "-c", "protocol.file.allow=always", "submodule", "add", "-q", source, "third/gear")
    write(clone / "third/gear", {"csrc/kernel.cu": "mine\n", "new.txt": "mine\n"})
    return [clone]


def in_worktree(world: World) -> Sequence[object]:
    linked = world.toy.root / "linked"
    git(world.toy.clone(), "worktree", "add", "-q", "--detach", str(linked))
    return [linked]


def in_submodule(world: World) -> Sequence[object]:
    outer = world.root / "outer"
    git(world.root, "init", "-q", "-b", "main", str(outer))
    git(outer, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(world.toy.upstream()), "sub/toy")
    git(outer, "commit", "-qm", "outer")
    return [outer / "sub/toy"]


def ours_in_another_worktree(world: World) -> Sequence[object]:
    """Our branch with an older tip is checked out elsewhere: moving it would change that worktree under its user."""
    linked = Path(str(in_worktree(world)[0]))
    clone = world.toy.root / "clone-toy"
    git(clone, "checkout", "-q", "-b", "sm120/v1")
    return [linked]


def worktree_pruned(world: World) -> Sequence[object]:
    linked = Path(str(in_worktree(world)[0]))
    shutil.rmtree(world.toy.root / "clone-toy" / ".git" / "worktrees")
    return [linked]


def worktree_moved(world: World) -> Sequence[object]:
    linked = Path(str(in_worktree(world)[0]))
    return [linked.rename(world.toy.root / "moved")]


def assumed_unchanged(world: World) -> Sequence[object]:
    clone = world.toy.clone()
    git(clone, "update-index", "--assume-unchanged", CORE)
    return [clone]


def assumed_and_edited(world: World) -> Sequence[object]:
    clone = Path(str(assumed_unchanged(world)[0]))
    write(clone, {CORE: "mine\n"})
    return [clone]


def skipped(world: World) -> Sequence[object]:
    clone = world.toy.clone()
    git(clone, "update-index", "--skip-worktree", CORE)
    return [clone]


def untouched_flagged(world: World) -> Sequence[object]:
    clone = world.toy.clone()
    git(clone, "update-index", "--assume-unchanged", "README.md")
    git(clone, "update-index", "--skip-worktree", "python/toy/run.py")
    return [clone]


def intended_to_add(world: World) -> Sequence[object]:
    clone = world.toy.clone()
    write(clone, {HOOK: "mine\n"})
    git(clone, "add", "-N", HOOK)
    return [clone]


def staged_new(world: World) -> Sequence[object]:
    clone = world.toy.clone()
    write(clone, {HOOK: "mine\n"})
    git(clone, "add", HOOK)
    return [clone]


def ignored_in_folder(world: World) -> Sequence[object]:
    clone = world.toy.clone()
    write(clone, {".gitignore": "extra/\n", HOOK: "mine\n"})
    return [clone]


def half_by_hand(world: World) -> Sequence[object]:
    """What `git apply` or `patch` leaves: the files of one patch, and no commit."""
    clone = world.toy.clone()
    write(clone, FIRST)
    return [clone]


def half_by_am(world: World) -> Sequence[object]:
    clone = world.toy.clone()
    git(clone, "am", "-q", "--keep-cr", str(world.toy.home.root / "patches/v1/toy/right-answer.patch"))
    return [clone]


def ours_by_am(world: World) -> Sequence[object]:
    clone = world.toy.clone()
    git(clone, "checkout", "-qb", "sm120/v1")
    git(clone, "am", "-q", "--keep-cr", str(world.toy.home.root / "patches/v1/toy/right-answer.patch"))
    return [clone]


def damaged_index(world: World) -> Sequence[object]:
    clone = world.toy.clone()
    write(clone, {".git/index": "no index\n"})
    return [clone]


def no_index(world: World) -> Sequence[object]:
    clone = world.toy.clone()
    (clone / ".git/index").unlink()
    return [clone]


def damaged_head(world: World) -> Sequence[object]:
    clone = world.toy.clone()
    write(clone, {".git/HEAD": "\n"})
    return [clone]


def lost_commit(world: World) -> Sequence[object]:
    clone = world.toy.clone()
    write(clone, {".git/HEAD": "1" * 40 + "\n"})
    return [clone]


def hard_linked(world: World) -> Sequence[object]:
    clone = world.toy.clone()
    shutil.copytree(clone / "python", world.root / "backup", copy_function=os.link)
    return [clone]


def folder_of_the_pin(world: World) -> Sequence[object]:
    return [world.toy.clone() / "python"]


def a_file(world: World) -> Sequence[object]:
    return [world.toy.clone() / CORE]


def stashed(world: World) -> Sequence[object]:
    clone = world.toy.clone()
    write(clone, {CORE: "mine\n"})
    git(clone, "stash", "-q")
    return [clone]


def sparse_cone(world: World) -> Sequence[object]:
    clone = world.toy.clone()
    git(clone, "sparse-checkout", "set", "--cone", "python/toy")
    return [clone]


def package_unpacked_over(world: World) -> Sequence[object]:
    """An overlay image: someone's patch set written over the files with sed."""
    clone = world.toy.clone()
    write(clone, {CORE: TOY[CORE].replace("return 41", "return 43")})
    return [clone]


def context_twice(world: World) -> Sequence[object]:
    """The block that the patch changes, a second time above it: fuzz would take the wrong one."""
    clone = world.toy.clone()
    write(clone, {CORE: TOY[CORE].partition("# line")[0] + TOY[CORE]})
    return [clone]


def case_twin(world: World) -> Sequence[object]:
    clone = world.toy.clone()
    write(clone, {"python/toy/Core.py": "mine\n", "python/toy/Extra/hook.py": "mine\n"})
    return [clone]


def library_beside(world: World) -> Sequence[object]:
    """What `build_ext --inplace` leaves, and git ignores."""
    clone = world.toy.clone()
    write(clone, {".git/info/exclude": "*.so\n", "python/toy/core.so": b"\x7fELF"})
    return [clone]


def package_beside(world: World) -> Sequence[object]:
    clone = world.toy.clone()
    write(clone, {"python/toy/core/__init__.py": "def answer():\n    return 0\n"})
    return [clone]


def unchecked_beside(world: World) -> Sequence[object]:
    clone = world.toy.clone()
    py_compile.compile(str(clone / CORE), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    return [clone]


def called_bare(world: World) -> Sequence[object]:
    clone = world.toy.clone()
    git(clone, "config", "core.bare", "true")
    return [clone]


def of_another_hash(world: World) -> Sequence[object]:
    folder = world.root / "sha256"
    git(world.root, "init", "-q", "-b", "main", "--object-format=sha256", str(folder))
    write(folder, TOY)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "release")
    return [folder]


def pin_merged_in(world: World) -> Sequence[object]:
    """A fork that took the release in: the pin is below HEAD, and not what HEAD stands on."""
    clone = world.toy.clone()
    git(clone, "checkout", "-q", "--orphan", "fork")
    git(clone, "commit", "-qm", "a fork")
    git(clone, "merge", "-q", "--allow-unrelated-histories", "-m", "take the release in", "main")
    return [clone]


EXACT: list[tuple[str, Arrange, str]] = [
    ("the target lies inside another repository that ignores it", ignored_by_another, "oven-sh/bun#35099"),
    ("the .git folder is a link", git_folder_linked, ""),
    ("the git directory lies elsewhere", separate_git_folder, "flavorjones/mini_portile#69"),
    ("the target is a linked worktree", in_worktree, "flavorjones/mini_portile#69"),
    ("the target is a submodule", in_submodule, "flavorjones/mini_portile#69"),
    ("a worktree that was moved by hand", worktree_moved, ""),
    ("a relative target", relative, ""),
    ("the target is the current folder", dot, ""),
    ("a trailing slash", trailing_slash, ""),
    ("the target is named through a link", through_link, ""),
    ("spaces, quotes and unicode in the target's path", odd_name("ä b'\"c $HOME `x`;é"), "python-unidiff#93"),
    ("a target's path that is not UTF-8", odd_name(os.fsdecode(b"caf\xe9")), ""),
    ("a target's name like an option", odd_name("-rf"), ""),
    ("a shallow clone", shallow, "m-ab-s/media-autobuild_suite#3168"),
    ("HEAD detached at a tag", at_a_tag, ""),
    ("a tag with the name of our branch", tag_of_our_name, ""),
    ("a submodule of the target has changes", submodule_changed, ""),
    ("flags on files that no patch touches", untouched_flagged, ""),
    ("files hard-linked elsewhere", hard_linked, "ds300/patch-package#118"),
    ("a stash of the user's", stashed, ""),
    ("a sparse checkout with every touched file", sparse_cone, ""),
    ("a file whose name differs in case alone", case_twin, ""),
]
REFUSED: list[tuple[str, Arrange, tuple[str, ...], str]] = [
    ("a plain folder inside another repository that ignores it", plain_in_ignored, ("build/toy", "outer"),
     "kata-containers/kata-containers#3690"),
    ("a .git file that points nowhere", git_file_to_nowhere, ("clone-toy", "/nowhere/at/all"), ""),
    ("a .git file of other content", git_file_of_words, ("clone-toy",), ""),
    ("an empty .git folder", empty_git_folder, ("clone-toy",), ""),
    ("no .git at all", no_git, ("clone-toy",), ""),
    ("a worktree whose repository forgot it", worktree_pruned, ("linked",), ""),
    ("our branch is checked out in another worktree", ours_in_another_worktree, ("sm120/v1", "clone-toy"), ""),
    ("a work tree that lies elsewhere", work_tree_elsewhere, ("clone-toy", "core.worktree"), ""),
    ("a repository that calls itself bare", called_bare, ("clone-toy", "work tree"), ""),
    ("a repository of another hash", of_another_hash, ("sha256", "v1.0"), ""),
    ("the pin was merged into other history", pin_merged_in, ("clone-toy", "v1.0"), ""),
    ("a bare repository", bare, ("bare",), ""),
    ("a checkout of another project", unrelated, ("unrelated", "v1.0"), ""),
    ("a neighbour release above the pin", neighbour, ("clone-toy",), "Hyperloom#205"),
    ("a neighbour release beside the pin", neighbour_of_its_own, ("clone-toy", "v1.0"), "Hyperloom#205"),
    ("a target named with ~ that no shell expanded", tilde, ("~/clone-toy",), ""),
    ("a folder inside the checkout", folder_of_the_pin, ("clone-toy/python",), ""),
    ("a file is named as the target", a_file, ("core.py",), ""),
    ("an edited file that is assumed unchanged", assumed_and_edited, ("core.py",), "PaperMC/paperweight#75"),
    ("a touched file is marked skip-worktree", skipped, ("core.py",), ""),
    ("a new file is there, intended to be added", intended_to_add, ("hook.py",), ""),
    ("a new file is there, staged", staged_new, ("hook.py",), ""),
    ("a new file is there, ignored", ignored_in_folder, ("hook.py",), ""),
    ("half of the series applied by hand", half_by_hand, ("core.py", "blob"), "intel/opencl-clang#834"),
    ("half of the series applied by git am", half_by_am, ("clone-toy", "main"), "intel/opencl-clang#834"),
    ("half of the series applied by git am on our branch", ours_by_am, ("sm120/v1", "export"), ""),
    ("a line end in the target's path", odd_name("a\nb"), ("line end",), ""),
    ("a tag named HEAD", tag_named_head, ("clone-toy", "ambiguous"), ""),
    ("a compiled library of a patched module beside it", library_beside, ("toy/core.so",), ""),
    ("a package of a patched module's name beside it", package_beside, ("toy/core/__init__.py",), ""),
    ("a compiled file that hides its source", unchecked_beside, ("__pycache__/core.", "unchecked"), "whitelok"),
    ("a damaged index", damaged_index, ("clone-toy",), ""),
    ("no index", no_index, ("clone-toy",), ""),
    ("a damaged HEAD", damaged_head, ("clone-toy",), ""),
    ("HEAD names a commit that is not there", lost_commit, ("clone-toy",), ""),
    ("a touched file was changed by sed", package_unpacked_over, ("core.py", "blob"), "Hyperloom#505"),
    ("the patched block is there twice", context_twice, ("core.py", "blob"), "landley/toybox#533"),
]  # fmt: skip
TOLD: list[tuple[str, Arrange, tuple[str, ...]]] = [
    ("a touched file was changed by sed", package_unpacked_over, ("drifted", "python/toy/core.py", "003f315f21ad")),
    ("half of the series applied by hand", half_by_hand, ("applied", "pending")),
    ("half of the series applied by git am", half_by_am, ("applied", "pending", "1 of them not ours")),
    ("the patched block is there twice", context_twice, ("drifted", "python/toy/core.py")),
    ("an edited file that is assumed unchanged", assumed_and_edited, ("drifted", "python/toy/core.py")),
    ("a new file is there, ignored", ignored_in_folder, ("drifted", "python/toy/extra/hook.py")),
    ("a neighbour release above the pin", neighbour, ("pending", "1 of them not ours")),
]
CASES = [Case(what, "checkout", "exact", arrange, (), source) for what, arrange, source in EXACT]
CASES += [Case(what, "checkout", "refused", arrange, names, source) for what, arrange, names, source in REFUSED]
CASES += [Case(what, "checkout", "told", arrange, names) for what, arrange, names in TOLD]
CASES.append(
    Case(
        "a touched file is assumed unchanged", "checkout", "refused", assumed_unchanged, ("core.py", "assume"),
    )
)  # fmt: skip


@pytest.mark.parametrize("case", marked(CASES))
def test_a_checkout_is_exactly_right_or_refused_whole(world: World, case: Case) -> None:
    check(world, case)
