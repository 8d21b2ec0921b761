"""resolve: what SGLang would choose on a machine with cards that this one has not, with the series and without."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from .. import report
from ..errors import Missing, UsageError
from ..queue.export import check_whole
from ..queue.home import PACKAGE, command, find_home
from ..queue.pins import load_lines
from ..queue.proof import proof_tree
from ..queue.series import Series, load_series
from ..queue.wheels import fetch_wheel
from ..serving.asking import Absent, Host, Question, answers, start
from ..serving.asking.plan import plan
from ..serving.asking.question import checkpoint_files
from ..serving.rig.cards import BY_NAME
from ..serving.rig.errors import RigError
from ..serving.rig.models import BUNDLED
from ._explained import explained
from ._options import Parser, count, given
from ._resolved import Sides, as_json, show, starts

WHAT = """\
Run the pinned SGLang's own argument resolution, weight loader and model classes as on a machine with these cards,
without our series and with it, and show what each would choose, and where it would not start. No GPU is needed.
"""
EXAMPLES = f"""\
  resolve.py --model glm-5-nvfp4 --gpu rtx-pro-6000 --tp 8 --ep 8
  resolve.py --model glm-5-nvfp4 --tp 8 --ep 8 --explain      and the patch behind each difference
  resolve.py --model ~/models/GLM-4.6-NVFP4 --tp 4            a folder with config.json (and hf_quant_config.json)
  resolve.py --model qwen3-30b-a3b --gpu rtx-5090 -- --kv-cache-dtype fp8_e4m3 --max-running-requests 64

models: {", ".join(BUNDLED)}
cards:  {", ".join(BY_NAME)}

exit codes: 0 it would start, 1 it would not, 2 usage (also of the server's flags), 4 something is missing
"""

LONG = {
    "--tp-size": "--tensor-parallel-size",
    "--ep-size": "--expert-parallel-size",
    "--dp-size": "--data-parallel-size",
}  # of upstream's parser
MOST_CARDS = 4096  # as in asking/answer.py, which is not for the process that asks


@dataclass(frozen=True)
class Asked:
    """The call, checked."""

    line: str
    model: str
    question: Question
    series: Series
    explain: bool
    cached: bool
    json: bool


def main(argv: list[str] | None = None) -> int:
    """Runs the verb."""
    asked = _asked(list(sys.argv[1:] if argv is None else argv))
    with _rig_speaks(), ExitStack() as stack:
        wheel = fetch_wheel(asked.series.pin, report.say)
        bare = proof_tree(replace(asked.series, patches=()), wheel)
        host = cache(lambda: stack.enter_context(start(bare)))
        told = _answers(
            asked, host, [bare, proof_tree(asked.series, wheel)], "asking SGLang with and without the series"
        )
        _check_flags(told[-1])
        ask = partial(_prefixes, asked, host, wheel)
        behind = explained(asked.series, told, ask) if asked.explain else None
    pinned, ours = ({**one, "plan": plan(one["facts"])} for one in told)
    sides = Sides(pinned, ours, behind)
    if asked.json:
        said = {"line": asked.line, "ok": starts(ours), "targets": []}
        report.show_json("resolve", {**said, **as_json(asked, sides)})
    else:
        show(asked, sides)
    return 0 if starts(ours) else 1


def _asked(argv: list[str]) -> Asked:
    """The command line; what stands after `--` is the server's."""
    at = argv.index("--") if "--" in argv else len(argv)
    options, flags = _parser().parse_args(argv[:at]), argv[at + 1 :]
    home = find_home()
    check_whole(home)
    line = load_lines(home.pins).line(options.line)
    try:
        files = checkpoint_files(options.model)
    except RigError as error:
        # why: a model that is guessed would be another's answer
        raise UsageError(
            str(error), "Name one of them, or a folder with config.json (--help lists the models)."
        ) from None
    if any(_names_a_model(flag.partition("=")[0]) for flag in flags):
        # why: the server's own flag would take the place of the model that was asked about
        raise UsageError("A model was named among the server's flags, after `--`.", "Name it with --model alone.")
    sizes = {"--tp-size": options.tp, "--ep-size": options.ep, "--dp-size": options.dp}
    for short, size in sizes.items():
        if size and any(_names_a_size(flag.partition("=")[0], short) for flag in flags):
            # why: the server's parser takes the last of two, and the call would not say which was meant
            raise UsageError(
                f"{short.removesuffix('-size')} was given, and the same size once more among the server's flags.",
                "Give it once.",
            )
    named = [word for flag, size in sizes.items() if size for word in (flag, str(size))]
    question = Question(options.gpu, files, (*named, *flags))
    series = load_series(home, line.pin("sglang"))
    return Asked(line.name, options.model, question, series, options.explain, not options.no_cache, options.json)


def _names_a_model(flag: str) -> bool:
    """Upstream's parser takes abbreviations."""
    return flag == "--model" or (flag.startswith("--model-p") and "--model-path".startswith(flag))


def _names_a_size(flag: str, short: str) -> bool:
    """Upstream's parser takes both names, and abbreviations of them; of a few letters it says that they are none."""
    return len(flag) > len("--t") and any(name.startswith(flag) for name in (short, LONG[short]))


def _size(text: str) -> int:
    """A number of ranks."""
    size = count(text)
    if size > MOST_CARDS:
        raise argparse.ArgumentTypeError(f"expected at most {MOST_CARDS}, found {text!r}")
    return size


def _parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="sm120-overlay resolve", description=WHAT, epilog="examples:\n" + EXAMPLES, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter, usage="%(prog)s --model MODEL [options] [-- FLAGS]",
    )  # fmt: skip
    made.add_argument("--line", type=given, help="the line, such as v0.5.9 (default: pins.toml's)")
    made.add_argument("--model", type=given, required=True, help="a bundled model, or a folder with config.json")
    made.add_argument("--gpu", choices=BY_NAME, default="rtx-pro-6000", metavar="CARD", help="default: rtx-pro-6000")
    made.add_argument("--tp", type=_size, metavar="N", help="tensor parallel size")
    made.add_argument("--ep", type=_size, metavar="N", help="expert parallel size")
    made.add_argument("--dp", type=_size, metavar="N", help="data parallel size")
    made.add_argument("--explain", action="store_true", help="name the patch behind each difference")
    made.add_argument("--no-cache", action="store_true", help="ask anew, and keep nothing")
    made.add_argument("--json", action="store_true", help="one JSON object on standard output (docs/json.md)")
    return made


def _answers(asked: Asked, host: Callable[[], Host], trees: Sequence[Path], title: str) -> list[dict[str, Any]]:
    with report.progress(title):
        return answers(trees, asked.question, host, jobs=os.cpu_count() or 1, cached=asked.cached)


def _prefixes(asked: Asked, host: Callable[[], Host], wheel: Path, lengths: Sequence[int]) -> list[dict[str, Any]]:
    """The answers of the series cut to these lengths."""
    cut = [replace(asked.series, patches=asked.series.patches[:length]) for length in lengths]
    named = ", ".join(series.slugs[-1] for series in cut)
    return _answers(asked, host, [proof_tree(series, wheel) for series in cut], f"asking the series up to {named}")


@contextmanager
def _rig_speaks() -> Iterator[None]:
    """What the rig lacks or refuses, as a refusal of this verb."""
    try:
        yield
    except Absent as error:
        # why: the tools do without torch and SGLang's other requirements; this verb runs SGLang
        raise Missing(f"{error}", _how_to_install()) from None
    except RigError as error:
        # why: what only a GPU or a missing fact could tell is no answer of upstream's
        raise Missing(f"{str(error).rstrip('.')}.", "docs/resolve.md says what the rig can answer.") from None


def _how_to_install() -> str:
    root = PACKAGE.parents[1]
    clone = (root / "pyproject.toml").is_file()
    what = f"-e '{root}[rig]'" if clone else "'sm120-overlay[rig]'"
    return f"{sys.executable} -m pip install {what} (torch may be a CPU build)."


def _check_flags(told: dict[str, Any]) -> None:
    """Flags that even the series' SGLang does not know are a typing error, not its refusal to start."""
    for fail in told["fails"]:
        if fail["stage"] == "flags":
            # why: upstream's own parser knows its flags; a server would not come to resolve anything
            raise UsageError(
                f"SGLang {told['version']}: {fail['sentence']}.",
                f"The server's flags stand after `--`: {command('resolve')} --help shows examples.",
            )
    if not told["choices"] and not told["fails"]:
        unknown = next(iter(told["unknown"]), {"stage": "flags", "why": "nothing was answered"})
        # why: a step that the rig could not take says nothing about the server
        raise Missing(
            f"{unknown['stage']}: {unknown['why'].rstrip('.')}.", "docs/resolve.md says what the rig can answer."
        )
