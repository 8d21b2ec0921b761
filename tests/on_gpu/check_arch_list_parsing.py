"""arch-list-parsing: this card's capability as people write it, with separators, is compiled for the full target."""

from __future__ import annotations

import os

from .kit import Answer, Card, one_of, short, upstream


def check(card: Card) -> Answer:
    """FlashInfer is imported anew for each list, since it reads the variable when it is imported."""
    full = "a" if card.is_sm12x else ""  # elsewhere a plain number stays one, as upstream has it
    wanted = f"compute_{card.major}{card.minor}{full}"
    failures = []
    os.environ.pop("FLASHINFER_CUDA_ARCH_LIST", None)
    context = upstream("flashinfer.compilation_context").CompilationContext
    lists = (card.capability, f"{card.capability};{card.capability}{full}", f"{card.capability}, {card.capability}")
    for text in lists:
        os.environ["FLASHINFER_CUDA_ARCH_LIST"] = text
        try:
            flags = context().get_nvcc_flags_list()
        except Exception as error:
            failures.append(f"the list {text!r} raises {short(error)}")
            continue
        targets = {flag.partition("arch=")[2].partition(",")[0] for flag in flags if "arch=" in flag}
        failures += [f"the list {text!r} compiles for {' '.join(sorted(targets))}"] if targets != {wanted} else []
    return one_of(failures, f"{len(lists)} ways to write {card.capability} compile for {wanted}")
