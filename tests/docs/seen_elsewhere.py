"""What went wrong with patches elsewhere, as we found it reported: each must have a row in docs/reliability.md.

`references` are the words by which a test's mark names it; `rows` answer it and name it not. `answer` is for what no
test of a case on a target can show: where this project answers it instead.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Seen:
    """One thing that went wrong, where it is reported, and how we answer it if not with a row."""

    what: str
    references: tuple[str, ...]
    answer: str = ""
    rows: tuple[str, ...] = ()


TOOLS = (
    Seen(
        "a target nested in another repository",
        ("oven-sh/bun#35099", "kata-containers/kata-containers#3690", "wine-compholio/wine-staging#7"),
    ),
    Seen("CRLF line ends", ("electron/electron#28360", "electron/trop#254", "electron#14789")),
    Seen("commits signed by default, or no identity", ("electron#17282", "arm/ai-ml-sdk-model-converter#16")),
    Seen("apply.whitespace=fix", ("git-pile/git-pile#67", "pre-commit/pre-commit#574")),
    Seen(
        "GIT_DIR leaked into the run",
        ("j178/prek#2505", "2389-research/tracker#399"),
        rows=("every GIT_* variable is set to nonsense",),
    ),
    Seen("moved or duplicate context", ("landley/toybox#533", "aspect-build/rules_py#508")),
    Seen("`From ` or `diff --git` in a message", ("getpatchwork/patchwork#462",)),
    Seen("a shallow or blobless clone", ("m-ab-s/media-autobuild_suite#3168", "electron#42977")),
    Seen(
        "a stale rebase-apply",
        ("Electroid/SportPaper#35", "lynx-family/habitat#56"),
        rows=("git waits for the user there",),
    ),
    Seen("a dirty tree", ("PaperMC/paperweight#75", "arighi/virtme-ng#1")),
    Seen("already or partly applied", ("intel/opencl-clang#834",)),
    Seen("a binary patch", ("cruft/cruft#131", "matiasb/python-unidiff#105")),
    Seen(
        "spaces or octal escapes in paths, runs of /dev/null",
        ("python-unidiff#93", "python-unidiff#119", "python-unidiff#143"),
    ),
    Seen(
        "a symbolic link, the executable bit",
        ("ds300/patch-package#118", "ds300/patch-package#135", "conan-io/python-patch-ng#23"),
    ),
    Seen("a rename, an empty file", ("libgit2/libgit2#5460", "ecomfe/gitdiff-parser#24")),
    Seen("`.git` is a file (a worktree, a submodule)", ("flavorjones/mini_portile#69",)),
    Seen(
        "a checkout of another user",
        ("gitpython-developers/GitPython#1616",),
        rows=(
            "the checkout belongs to another user, who is not trusted",
            "the checkout belongs to another user, who is trusted by safe.directory",
        ),
    ),
    Seen(
        "versions, dates and abbreviations that churn",
        ("CadixDev/gitpatcher#4", "pulumi/ci-mgmt#2469"),
        rows=("another day, time zone and setting of git's",),
    ),
    Seen(
        "no newline at the end of a file",
        (),
        rows=(
            "no newline at the end of a file",
            "no line end at the end of a file",
        ),
    ),
    Seen(
        "a read-only checkout",
        (),
        rows=("one change fails (a full disk, a read-only one, a broken one)",),
    ),
    Seen(
        "an author's encoding or time zone",
        (),
        rows=(
            "git's settings: commits in another encoding",
            "another day, time zone and setting of git's",
        ),
    ),
    Seen("core.fileMode=false", (), rows=("a repository without file modes",)),
)
OVERLAYS = (
    Seen(
        "a failed apply counted as a skip, exit 0",
        ("InferenceX#2704", "jdjohndoe13"),
        rows=(
            "half of the series applied by hand",
            "a touched file was changed by sed",
        ),
    ),
    Seen(
        "APPLIED printed where nothing matched",
        ("brandonmmusic-max",),
        rows=(
            "a touched file was changed by sed",
            "the files of the series copied over",
        ),
    ),
    Seen("one pre-baked file makes the whole set skip", ("Hyperloom#505", "Hyperloom#511", "Hyperloom#516")),
    Seen("fuzz hits another call site", ("Hyperloom#205", "Hyperloom#207")),
    Seen("a patch of one version on another", ("Hyperloom#1157", "sglang#20554")),
    Seen(
        "the checker looks at a folder that is no more",
        ("check-optional.sh",),
        rows=(
            "an environment moved to another place after apply",
            "a missing interpreter",
        ),
    ),
    Seen(
        "the published image is not the patched tree",
        ("bold84", "sglang#31508"),
        rows=(
            "one patch taken off by hand after apply",
            "half of the package was unpacked over an applied series",
        ),
    ),
    Seen(
        "documents say other than the code",
        ("whitelok",),
        "docs/errors.md and this file are made from code and tests, which fail where they are not current",
    ),
    Seen(
        "a stale .pyc hides a patch",
        ("whitelok",),
        rows=(
            "a compiled file that hides its source",
            "a stale compiled file",
        ),
    ),
    Seen("a JIT cache that does not know the commit", ("nick-oconnor",)),
    Seen(
        "the crash shows elsewhere than its cause",
        ("nick-oconnor",),
        "the tools to bisect with are to come; `--through` and `--without` narrow a series down",
    ),
    Seen(
        "a kernel that is fast and loses accuracy",
        ("bold84",),
        "not of these tools: each patch says what was measured and what was not",
    ),
)
