"""What bisect's command line asks for: one parser for each of its subcommands, and what they mean as data."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..bisection.job import Scale
from ..errors import UsageError
from ..queue.home import Home
from ._options import Parser, count, folder, given

WHAT = "Find the upstream change behind a measurement, if there is one, with the series on every revision."
EXAMPLES = """\
  bisect.py run sglang v0.5.9..v0.5.16 --history ~/src/sglang --dry-run      what is to be measured, without a GPU
  bisect.py run sglang v0.5.9..v0.5.16 --history ~/src/sglang \\
      --server '{python} -m sglang.launch_server --model-path M --port {port}' \\
      --health 'http://127.0.0.1:{port}/health' \\
      --cmd '{python} -m sglang.bench_serving --port {port} --output-file {out}/bench.jsonl' \\
      --metric bench:output_throughput --min-effect 5% --budget 6h
  bisect.py run sglang 0.5.12..0.5.23 --releases --cmd './latency.sh' --metric 'regex:p99 ([0-9.]+) ms'
  bisect.py run sglang OLD..NEW --history ~/src/sglang --cmd 'pytest -q test_x.py' --metric exit --scale pass-fail
  bisect.py status                    what is known so far
  bisect.py log                       every run, one a line
  bisect.py void 7                    run 7 does not count: somebody used the machine
  bisect.py report --html bisect.html --png bisect.png

`run` again, with the same arguments, goes on where it was stopped; its limits (--budget, --most-runs, --confidence,
--ends, --verify) may be others. docs/bisecting.md says how it decides, what the
placeholders are, and what a command's exit codes mean (125 skip, 129 skip the neighbours too, 130 and more stop).

exit codes: 0 found, 1 no change or not sure, 2 usage, 4 something is missing or a command said stop, 130 interrupted
"""
SESSIONS = Path("build", "bisect")
UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
FIXED = (
    "upstream", "range", "releases", "line", "cmd", "metric", "scale", "build", "server", "health", "ready", "limit",
    "on_conflict", "model", "loads", "no_cull", "without", "no_series", "min_effect", "paired",
)  # fmt: skip


@dataclass(frozen=True)
class Effect:
    """The smallest difference that counts, as it was typed: a share of the old level, or a number of its unit."""

    number: float
    share: bool

    def on(self, scale: Scale) -> float:
        """The same on the scale of a decision."""
        return math.log1p(self.number) if scale is Scale.LOG else self.number


def parser() -> Parser:
    """The parser of the verb: it gives `options.what`, the subcommand."""
    made = _made("", WHAT, EXAMPLES)
    parts = made.add_subparsers(dest="what", required=True, metavar="run|status|log|replay|skip|void|report")
    _add_run(parts.add_parser("run", **_taught("measure until it is known, or go on with it")))
    status = parts.add_parser("status", **_taught("say what is known so far"))
    log = parts.add_parser("log", **_taught("list every run"))
    replay = parts.add_parser("replay", **_taught("decide again, run by run, from what was measured"))
    skip = parts.add_parser("skip", **_taught("take a revision for one that no run can judge"))
    skip.add_argument("revision", type=given, metavar="REV", help="a commit (or the beginning of its id) or a release")
    void = parts.add_parser("void", **_taught("take a run's number out: it does not count"))
    void.add_argument("number", type=count, metavar="NUMBER", help="the run's number, as log shows it")
    for part in (skip, void):
        part.add_argument("--undo", action="store_true", help="take that back")
        part.add_argument("--why", type=given, metavar="TEXT", help="the reason, for the log")
    report = parts.add_parser("report", **_taught("draw what is known: every run, both levels, the posterior"))
    for part in (status, log, replay, skip, void, report):
        _add_session(part)
    _add_pictures(report)
    return made


def _made(name: str, what: str, examples: str) -> Parser:
    return Parser(
        prog=f"sm120-overlay bisect {name}".strip(), description=what, epilog="examples:\n" + examples,
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip


def _taught(what: str) -> dict[str, Any]:
    return {
        "help": what, "description": what[0].upper() + what[1:] + ".", "epilog": "examples:\n" + EXAMPLES,
        "formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False,
    }  # fmt: skip


def _add_run(part: argparse.ArgumentParser) -> None:
    part.add_argument("upstream", type=given, metavar="UPSTREAM", help="sglang or flashinfer")
    part.add_argument("range", type=given, metavar="OLD..NEW", help="tags, versions or commits")
    _add_revisions(part.add_argument_group("which revisions"))
    _add_measuring(part.add_argument_group("what is measured"))
    _add_deciding(part.add_argument_group("how it is decided"))
    _add_session(part)
    _add_pictures(part)


def _add_revisions(part: argparse._ArgumentGroup) -> None:
    part.add_argument("--releases", action="store_true", help="the releases on the package index instead of commits")
    part.add_argument(
        "--history", type=folder, action="append", default=[], metavar="CLONE",
        help="a clone or mirror with both ends and what is between (repeatable: the first that has them)",
    )  # fmt: skip
    part.add_argument("--line", type=given, help="whose series (default: the line whose pin is OLD, or nearest to it)")
    part.add_argument("--without", type=given, action="append", default=[], metavar="SLUG", help="less this patch")
    part.add_argument("--no-series", action="store_true", help="upstream alone, without our patches")
    part.add_argument(
        "--on-conflict", choices=("skip", "drop", "stop"), default="skip",
        help="a revision that a patch does not go onto: cannot be judged, is measured without it, or ends all",
    )  # fmt: skip
    part.add_argument("--model", type=given, metavar="ARCH", help="the architecture that is served: culls other models")
    part.add_argument(
        "--loads", type=given, action="append", default=[], metavar="MODULE",
        help="a module that runs too: a plugin, an entry point of your own (what -m names in a command is known)",
    )  # fmt: skip
    part.add_argument("--no-cull", action="store_true", help="measure changes that no launch can reach, too")


def _add_measuring(part: argparse._ArgumentGroup) -> None:
    part.add_argument("--cmd", type=given, metavar="CMD", help="a shell command that measures once")
    part.add_argument(
        "--metric",
        type=given,
        metavar="M",
        help="bench:NAME, json:PATH, jsonl:PATH, regex:PATTERN (each @FILE), or exit",
    )
    part.add_argument(
        "--scale",
        choices=[scale.value for scale in Scale],
        help="how values compare (default: log; of exit: pass-fail)",
    )
    part.add_argument("--build", type=given, metavar="CMD", help="makes what a revision needs, first")
    part.add_argument("--server", type=given, metavar="CMD", help="a server that runs while --cmd measures")
    part.add_argument("--health", type=given, metavar="URL", help="answers 200 when the server is ready")
    part.add_argument("--ready", type=seconds, default=1200.0, metavar="TIME", help="how long that may take (20m)")
    part.add_argument("--limit", type=seconds, default=3600.0, metavar="TIME", help="how long a run may take (1h)")
    part.add_argument(
        "--on", type=given, default="local", metavar="HOSTS",
        help="local, ssh:HOST,HOST, tcp://HOST:PORT (a Dask scheduler) or slurm:PARTITION",
    )  # fmt: skip
    part.add_argument("--term-old", type=given, metavar="WORD", help="what the old side is called")
    part.add_argument("--term-new", type=given, metavar="WORD", help="what the new side is called")


def _add_deciding(part: argparse._ArgumentGroup) -> None:
    part.add_argument("--min-effect", type=effect, default=Effect(0.0, True), metavar="5%", help="less is no change")
    part.add_argument("--confidence", type=probability, default=0.99, metavar="P", help="sure enough (0.99)")
    part.add_argument("--ends", type=count, default=3, metavar="N", help="runs of each end that come first (3)")
    part.add_argument("--verify", type=count, default=3, metavar="N", help="runs of the culprit and its parent (3)")
    part.add_argument("--paired", action="store_true", help="beside every run one of OLD: for machines that drift")
    part.add_argument("--budget", type=seconds, metavar="TIME", help="end after this long (6h)")
    part.add_argument("--most-runs", type=count, default=2000, metavar="N", help="end after that many runs (2000)")
    part.add_argument("--dry-run", action="store_true", help="show what would be measured, and run nothing")
    part.add_argument("--run-minutes", type=minutes, metavar="M", help="with --dry-run: how long a run takes, about")


def _add_session(part: argparse.ArgumentParser) -> None:
    part.add_argument("--session", type=folder, metavar="DIR", help=f"where it is kept (default: in {SESSIONS}/)")
    part.add_argument("--json", action="store_true", help="one JSON object on standard output (docs/json.md)")


def _add_pictures(part: argparse.ArgumentParser) -> None:
    part.add_argument("--html", type=folder, metavar="FILE", help="the figure and all runs as a page")
    part.add_argument("--png", type=folder, metavar="FILE", help="the figure as an image")


def seconds(text: str) -> float:
    """A time such as 90, 90s, 20m or 1.5h, in seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|min|h|d|)", text)
    if not found or float(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"expected a time such as 90s, 20m or 6h, found {text!r}")
    return float(found[1]) * UNITS[found[2]]


def minutes(text: str) -> float:
    """A number of minutes over 0."""
    return seconds(text) * 60 if re.fullmatch(r"[\d.]+", text) else seconds(text)


def probability(text: str) -> float:
    """A number between a half and 1, or a percentage."""
    number = _share(text)
    if number is None or not 0.5 < number < 1:
        raise argparse.ArgumentTypeError(f"expected a probability over 0.5 and under 1, such as 0.99, found {text!r}")
    return number


def effect(text: str) -> Effect:
    """A difference: 5% of the old level, or a number."""
    number = _share(text)
    if number is None:
        raise argparse.ArgumentTypeError(f"expected a difference such as 5% or 0.05, found {text!r}")
    return Effect(number, text.endswith("%"))


def _share(text: str) -> float | None:
    found = re.fullmatch(r"(\d*\.?\d+)(%?)", text)
    return float(found[1]) / (100 if found[2] else 1) if found else None


def check_run(options: argparse.Namespace) -> None:
    """Refuses a `run` whose options contradict each other, or that says too little.

    Raises:
        UsageError: it does.
    """
    if options.releases and options.history:
        # why: one of the two would be ignored
        raise UsageError("--history was given together with --releases.", "Ask about commits or about releases.")
    if options.no_series and options.without:
        # why: one of the two would be ignored
        raise UsageError("--without was given together with --no-series.", "Leave one of them out.")
    if options.model and options.no_cull:
        # why: --model is there to cull by
        raise UsageError("--model was given together with --no-cull.", "Leave one of them out.")
    if options.loads and options.no_cull:
        # why: --loads is there to cull less
        raise UsageError("--loads was given together with --no-cull.", "Leave one of them out.")
    if not options.dry_run and not (options.cmd and options.metric):
        # why: nothing else says what a run is
        raise UsageError("run needs --cmd and --metric.", "Or --dry-run, which measures nothing.")
    if options.dry_run and (options.png or options.html):
        # why: an empty figure would look like an answer
        raise UsageError("--dry-run was given together with --png or --html.", "It has no run to draw; leave one out.")
    if options.run_minutes and not options.dry_run:
        # why: it would be ignored: runs are timed
        raise UsageError("--run-minutes is about --dry-run.", "Leave it out.")
    if bool(options.server) != bool(options.health):
        # why: without a health check a command would measure a server that still loads its weights
        raise UsageError("--server and --health go together.", "Such as --health 'http://127.0.0.1:{port}/health'.")


def check_effect(asked: Effect, scale: Scale) -> None:
    """Refuses a difference that the scale does not have.

    Raises:
        UsageError: it is a percentage of a level on a scale where differences count, or a number where ratios do.
    """
    if asked.number and asked.share != (scale is Scale.LOG):
        name = scale.value
        # why: a share of a level is a difference of logarithms, and of nothing else
        raise UsageError(
            f"--min-effect is a percentage on the log scale and a number on all others; the scale is {name}.",
            "Write 5% or 0.5 accordingly, or name another --scale.",
        )


def check_files(options: argparse.Namespace) -> None:
    """The pictures can be made and written, before the work that they show.

    Raises:
        Missing, UsageError: no.
    """
    from ..picture.bisection import check_matplotlib

    wanted = [path for path in (options.png, options.html) if path]
    if wanted:
        check_matplotlib()
    for path in wanted:
        if path.is_dir():
            # why: it would be found out after hours of measuring
            raise UsageError(f"{path}: expected a file to write, found a folder.", "Name a file in it.")


def fixed(options: argparse.Namespace) -> Mapping[str, str]:
    """The options that make a session what it is: a run with others does not go on with it."""
    known = vars(options)
    return {name: str(known[name]) for name in FIXED}


def session_of_run(home: Home, options: argparse.Namespace) -> Path:
    """The folder of a session that `run` begins or goes on with."""
    if options.session:
        return Path(options.session)
    old, _, new = options.range.partition("..")
    name = "-".join((options.upstream, old or "pin", new or "main"))
    return home.root / SESSIONS / re.sub(r"[^\w.+-]", "_", name)


def session_of(home: Home, options: argparse.Namespace) -> Path:
    """The folder of a session that is there: the one that is named, else the only one.

    Raises:
        UsageError: there is none, or more than one.
    """
    if options.session:
        return Path(options.session)
    known = sorted(path.parent for path in (home.root / SESSIONS).glob("*/journal.jsonl"))
    if len(known) != 1:
        found = ", ".join(path.name for path in known) or "none"
        # why: the answer about another session than the one that was meant looks just like it
        raise UsageError(
            f"Expected one session in {home.root / SESSIONS}, found {found}.", "Name its folder with --session."
        )
    return known[0]
