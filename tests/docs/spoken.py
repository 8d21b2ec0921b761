"""A verb's answer as its user meets it, and what every answer must be: a known exit code, sentences, no traceback."""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest import mock

from sm120_overlay.cli import VERBS, main
from sm120_overlay.verbs._options import Parser

CODES = (0, 1, 2, 3, 4)


@dataclass(frozen=True)
class Spoken:
    """How a verb ended."""

    code: int
    out: str
    err: str


def speak(*arguments: object, errors: str = "surrogateescape") -> Spoken:
    """A verb in this process; `errors`: what standard output does with what UTF-8 cannot say."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors=errors, write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace", write_through=True)
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:  # --help
            code = int(stop.code or 0)
    said = [
        stream.buffer.getvalue().decode("utf-8", "replace")
        for stream in (out, err)
        if isinstance(stream.buffer, io.BytesIO)
    ]
    return Spoken(code, *said)


def wrong(said: Spoken, as_json: bool) -> str | None:
    """What no answer may be, None where it is one: an error has its two sentences, and in JSON the same."""
    if said.code not in CODES:
        return f"exit code {said.code}"
    if "Traceback" in said.err + said.out:
        return "a traceback"
    answered = said.code == 0 or (said.code == 1 and said.out)
    if as_json:
        answer = json.loads(said.out)
        return _wrong_json(said.code, answer) or (_wrong_sentences(said) if "error" in answer else None)
    return None if answered else _wrong_sentences(said)


def _wrong_sentences(said: Spoken) -> str | None:
    sentence, arrow, todo = said.err.rpartition("\n  → ")
    return (
        None if arrow and sentence.rstrip().endswith((".", ")")) and todo.strip() else f"no two sentences: {said.err!r}"
    )


def _wrong_json(code: int, answer: dict[str, Any]) -> str | None:
    if answer["ok"] != (code == 0):
        return f"ok is {answer['ok']} with exit code {code}"
    error = answer.get("error")
    if error is None:
        return None if code in (0, 1) else "no error in it"
    return None if error["exit"] == code and error["what"] and error["todo"] else f"half an error: {error}"


@cache
def options_of(verb: str) -> tuple[argparse.Action, ...]:
    """The real options of a verb, asked of its own parser."""
    seen: list[argparse.Action] = []

    def note(self: Parser, _arguments: Sequence[str] | None = None, _namespace: object = None) -> None:
        seen.extend(action for action in self._actions if action.option_strings and action.dest != "help")
        raise SystemExit(0)

    with mock.patch.object(Parser, "parse_args", note):
        speak(verb)
    return tuple(seen)


def every_option() -> Iterator[tuple[str, argparse.Action]]:
    """Verb and option, of all verbs."""
    return ((verb, option) for verb in VERBS for option in options_of(verb))
