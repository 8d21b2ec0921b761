"""Presenting this machine as one with N cards of a kind, for as long as a `with` lasts.

What is replaced: the questions that upstream asks of torch about devices, the CUDA version, `nvidia-smi`, and the one
object in which later releases keep what machine this is (see `platforms`). What
is forgotten, on the way in and out: upstream's caches, which would keep one card's answers for the next. A question
that the card does not answer raises UnknownFact. While a module loads, the card is withdrawn: constants that modules
compute at import then mean "no CUDA" under every card and in every order of imports, and a test that needs another
value sets it itself, in the open.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NoReturn
from unittest import mock

from sm120_overlay.serving.rig import phase, platforms
from sm120_overlay.serving.rig.cards import Card
from sm120_overlay.serving.rig.errors import NeedsGpu, RigError, UnknownFact
from sm120_overlay.serving.rig.tree import UPSTREAM, standing

CUDA = "13.0"  # where no tree says otherwise
_SMI_MEMORY = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
_CACHED = type(lru_cache(int))
_presented: list[Card] = []


@dataclass(frozen=True)
class _Properties:
    """What `torch.cuda.get_device_properties` returns."""

    card: Card

    @property
    def name(self) -> str:
        return self.card.name

    @property
    def major(self) -> int:
        return self.card.capability[0]

    @property
    def minor(self) -> int:
        return self.card.capability[1]

    @property
    def total_memory(self) -> int:
        return self.card.memory_bytes

    @property
    def multi_processor_count(self) -> int:
        return self.card.sm_count

    @property
    def shared_memory_per_block_optin(self) -> int:
        return self.card.shared_memory_optin

    def __getattr__(self, fact: str) -> NoReturn:
        if fact.startswith("__"):
            raise AttributeError(fact)
        raise UnknownFact(self.card.name, f"the device property {fact!r}")


def _index(device: Any) -> int:
    """A device's number, from what torch accepts as one: None, an int, "cuda:1" or a torch.device."""
    if device is None or isinstance(device, int):
        return device or 0
    return int(str(device).partition(":")[2] or 0)


def _per_device(count: int, answer: Any) -> Callable[..., Any]:
    """A question about one device, refused for a device that is not there."""

    def ask(device: Any = None) -> Any:
        if not 0 <= _index(device) < count:
            raise RigError(f"Device {device!r} was asked about, and {count} are presented. Present more cards.")
        return answer

    return ask


def _answers(card: Card, count: int) -> dict[str, Callable[..., Any]]:
    """torch.cuda's questions about devices, as a machine with these cards answers them. All memory is free."""

    def start() -> NoReturn:
        raise NeedsGpu(card.name)

    def no_nvml(device: Any = None) -> NoReturn:
        raise RuntimeError(f"NVML knows no device {device!r}: it is only presented.")

    return {
        "_lazy_init": start,
        "_get_nvml_device_index": no_nvml,
        "is_available": lambda: True,
        "device_count": lambda: count,
        "current_device": lambda: 0,
        "get_device_capability": _per_device(count, card.capability),
        "get_device_name": _per_device(count, card.name),
        "get_device_properties": _per_device(count, _Properties(card)),
        "mem_get_info": _per_device(count, (card.memory_bytes, card.memory_bytes)),
    }


def _run(real: Callable[..., Any], card: Card, count: int, command: Any, *args: Any, **kwargs: Any) -> Any:
    """`subprocess.run`, with `nvidia-smi` answered for the card: real machines have it, this one has not."""
    argv = command.split() if isinstance(command, str) else [str(word) for word in command]
    if not argv or argv[0] != "nvidia-smi":
        return real(command, *args, **kwargs)
    if tuple(argv) != _SMI_MEMORY:
        raise UnknownFact(card.name, f"the answer to {' '.join(argv)!r}")
    shown = str(card.memory_mib) if card.smi_shows_memory else "[N/A]"
    return subprocess.CompletedProcess(command, 0, stdout=f"{shown}\n" * count, stderr="")


def _forget() -> None:
    """Empty every `lru_cache` at the top level of upstream's loaded modules: that is where probes keep answers."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == UPSTREAM:
            for value in list(vars(module).values()):
                if type(value) is _CACHED:
                    value.cache_clear()


@contextmanager
def _patched(card: Card, count: int, cuda: str) -> Iterator[None]:
    import torch  # seconds, and the `rig` extra: only when a card is presented

    machine = platforms.asked()
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch.version, "cuda", cuda))
        for name, answer in _answers(card, count).items():
            stack.enter_context(mock.patch.object(torch.cuda, name, answer))
        stack.enter_context(mock.patch.object(subprocess, "run", partial(_run, subprocess.run, card, count)))
        stack.callback(_forget)
        _forget()
        stack.enter_context(platforms.presented(machine))
        yield


@contextmanager
def _hidden(patches: list[ExitStack], again: Callable[[], ExitStack]) -> Iterator[None]:
    """The card taken away while a module loads, and put back after."""
    patches.pop().close()
    try:
        yield
    finally:
        patches.append(again())


@contextmanager
def present(card: Card, count: int = 8, *, cuda: str | None = None) -> Iterator[Card]:
    """Be a machine with `count` cards and a torch built for CUDA `cuda`, until the block ends; then, be as before.

    Without `cuda`, it is that of the torch which the tree pins on which this process stands.
    One kind of card at a time: a second `present` inside the first is refused with RigError.
    """
    if _presented:
        raise RigError(f"{_presented[0].name} is already presented. Leave its block before presenting {card.name}.")

    built_for = cuda or (standing[-1].cuda if standing else None) or CUDA

    def put() -> ExitStack:
        stack = ExitStack()
        stack.enter_context(_patched(card, count, built_for))
        return stack

    patches = [put()]
    _presented.append(card)
    try:
        with phase.stand_aside(lambda: _hidden(patches, put)):
            yield card
    finally:
        _presented.pop()
        patches.pop().close()
