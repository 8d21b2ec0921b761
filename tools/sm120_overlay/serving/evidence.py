"""A run of the checks on a card, made into one file to send: the card, the software, every answer, and nothing else.

What the checks are lies in tests/on_gpu; here they are started, judged and written down. A card of another kind than
SM12x is said to be one at the top of the file, and nothing is called shown there.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import Missing

SCHEMA = 1
SAID = "sm120-overlay: "  # begins the runner's line among whatever upstream prints
LIMIT_S = 3600  # of one check: FlashInfer compiles the MoE module on first use
SHOWN, RAN, NOT_SHOWN, FAILED, NOT_APPLICABLE = "shown", "ran", "not shown", "failed", "not applicable"
OUTCOMES = (SHOWN, RAN, NOT_SHOWN, FAILED, NOT_APPLICABLE)
ANSWERS = (SHOWN, NOT_SHOWN, FAILED, NOT_APPLICABLE)  # of a check, which does not judge the kind of card
APPLIED = "applied"
PATHS = re.compile(r"(?<![\w/])~?/[^\s'\":;,()\[\]]+")
IDS = re.compile(r"\b(?:GPU-|MIG-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE)
ADDRESSES = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")


@dataclass(frozen=True)
class Machine:
    """The card (number 0 of the visible ones) and the software, as the runner tells of them."""

    card: Mapping[str, Any]
    software: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Such as NVIDIA RTX PRO 6000 Blackwell Server Edition."""
        return str(self.card["name"])

    @property
    def capability(self) -> tuple[int, int]:
        """Such as (12, 0)."""
        major, minor = self.card["capability"]
        return int(major), int(minor)

    @property
    def is_sm12x(self) -> bool:
        """Whether it says anything about SM120."""
        return self.capability[0] == 12


@dataclass(frozen=True)
class Asked:
    """One patch of a series: its state on the target, and whether a check for it is written."""

    slug: str
    upstream: str
    state: str
    checked: bool


@dataclass(frozen=True)
class Result:
    """What came of one patch; `outcome` is one of OUTCOMES, `said` a sentence."""

    slug: str
    upstream: str
    state: str
    outcome: str
    said: str
    seconds: float


@dataclass(frozen=True)
class Ran:
    """One target: which series it carries, and whether it verifies equal to the line's."""

    upstream: str
    version: str
    digest: str
    expected_digest: str
    equal: bool


def ask_machine(python: str, runner: Path) -> Machine:
    """What the target's interpreter sees.

    Raises:
        Missing: it has no torch, or torch finds no GPU.
    """
    said, why = _run(python, runner, "card", 600)
    if said is None or "missing" in said:
        # why: without a card nothing can be shown, and a run that says nothing must not look like one
        raise Missing(
            f"{python}: expected torch and a CUDA GPU, and {said['missing'] if said else why}.",
            "Run it where the server runs, on the card, and name that environment: --installed PATH/bin/python.",
        )
    return Machine(said["card"], said["software"])


def run_check(python: str, runner: Path, asked: Asked, is_sm12x: bool, limit_s: int = LIMIT_S) -> Result:
    """Runs one patch's check in a process of its own, where one is written."""
    started = time.monotonic()
    if not asked.checked:
        test = f"tests/patches/test_{asked.slug.replace('-', '_')}.py"
        answer = NOT_APPLICABLE, f"no check on a card is written for it; {test} runs on a CPU"
    else:
        said, why = _run(python, runner, asked.slug, limit_s)
        answer = _answer(said) if said is not None else _silent(why)
    outcome, sentence = judged(asked.state, is_sm12x, *answer)
    seconds = round(time.monotonic() - started, 1)
    return Result(asked.slug, asked.upstream, asked.state, outcome, scrubbed(sentence), seconds)


def judged(state: str, is_sm12x: bool, outcome: str, said: str) -> tuple[str, str]:
    """What an answer counts for: nothing where the patch is not applied, and never as shown on another kind of card."""
    if state != APPLIED and outcome in (SHOWN, FAILED):
        return NOT_SHOWN, f"the patch is {state} here; as it is, the check says {outcome}: {said}"
    if outcome == SHOWN and not is_sm12x:
        return RAN, said
    return outcome, said


def _answer(said: Mapping[str, Any]) -> tuple[str, str]:
    if said.get("outcome") in ANSWERS and isinstance(said.get("said"), str):
        return said["outcome"], said["said"]
    return _silent("answers in another form")


def _silent(why: str) -> tuple[str, str]:
    """A process that a signal ended has shown something; one that ended otherwise has not."""
    return (FAILED if why.startswith("died") else NOT_SHOWN), f"the check's process {why}"


def _run(python: str, runner: Path, what: str, limit_s: int) -> tuple[dict[str, Any] | None, str]:
    """What the runner said, or None and why it said nothing."""
    with tempfile.TemporaryDirectory(prefix="sm120-overlay-") as folder:
        try:
            done = subprocess.run(
                [python, str(runner), what], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                errors="replace", timeout=limit_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return None, f"did not end within {limit_s} s"
        except OSError as error:
            return None, f"does not start ({error.strerror})"
    lines = [line.removeprefix(SAID) for line in done.stdout.splitlines() if line.startswith(SAID)]
    if done.returncode < 0:
        return None, f"died of {_signal(-done.returncode)}"
    last = (done.stderr.strip().splitlines() or ["no word"])[-1]
    try:
        said = json.loads(lines[-1]) if lines else None
    except ValueError:
        said = None
    return (said, "") if isinstance(said, dict) else (None, f"ended with exit code {done.returncode} ({last[:200]})")


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def scrubbed(text: str, private: Iterable[str] | None = None) -> str:
    """A sentence without paths, addresses, ids, and names of this machine and its user.

    Args:
        private: words to take out (None: those that this machine has).
    """
    text = ADDRESSES.sub("(address)", IDS.sub("(id)", PATHS.sub("(path)", text)))
    for word in private_words() if private is None else private:
        text = re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", "(name)", text)
    return text


def private_words() -> list[str]:
    """Names that say whose machine this is, longest first; shorter ones than three letters are in any sentence."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):
        user = ""
    host = socket.gethostname()
    words = {host, host.partition(".")[0], user, os.environ.get("HOSTNAME", ""), Path.home().name}
    return sorted((word for word in words if len(word) >= 3), key=len, reverse=True)


def evidence(
    line: str, machine: Machine, targets: Sequence[Ran], misfits: Sequence[str], results: Sequence[Result]
) -> dict[str, Any]:
    """The file's content: what it says comes first."""
    return {
        "schema": SCHEMA,
        "says": headline(machine, targets, misfits, results),
        "sm12x": machine.is_sm12x,
        "all_shown": all_shown(machine, targets, misfits, results),
        "line": line,
        "card": dict(machine.card),
        "software": dict(machine.software),
        "targets": [asdict(target) for target in targets],
        "misfits": list(misfits),
        "results": [asdict(result) for result in results],
    }


def headline(machine: Machine, targets: Sequence[Ran], misfits: Sequence[str], results: Sequence[Result]) -> str:
    """The sentence at the top, which claims no more than was seen."""
    major, minor = machine.capability
    card = f"{machine.name} ({major},{minor})"
    if not machine.is_sm12x:
        return f"of another kind: {card}; says nothing about SM120"
    counted = Counter(result.outcome for result in results)
    said = f"{card}: " + ", ".join(f"{counted[outcome]} {outcome}" for outcome in OUTCOMES if counted[outcome])
    odd = [f"{target.upstream} is NOT the series" for target in targets if not target.equal]
    odd += [f"NOT the line's versions ({', '.join(misfits)})"] if misfits else []
    return "; ".join([said, *odd])


def all_shown(machine: Machine, targets: Sequence[Ran], misfits: Sequence[str], results: Sequence[Result]) -> bool:
    """Whether this is a full yes: SM12x, exactly the series, the line's versions, all shown that can be."""
    outcomes = {result.outcome for result in results}
    exact = all(target.equal for target in targets) and not misfits
    return machine.is_sm12x and exact and SHOWN in outcomes and outcomes <= {SHOWN, NOT_APPLICABLE}


def file_name(machine: Machine, targets: Sequence[Ran]) -> str:
    """DIGEST12-CARD.json: the digest over those of the targets, so that one file stands for one state on one card."""
    said = "\n".join(sorted(f"{target.upstream} {target.digest}" for target in targets))
    card = re.sub(r"[^a-z0-9]+", "-", machine.name.lower()).strip("-")
    return f"{hashlib.sha256(said.encode()).hexdigest()[:12]}-{card}.json"
