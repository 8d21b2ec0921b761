"""The CPU rig: SGLang's real code on a machine without a GPU that presents itself as one with N cards.

    standing = rig.load(tree)                      # once a process: which tree, which packages, which stubs
    model = rig.models.checkpoint(folder, rig.models.GLM_5, rig.models.QuantForm.GENERIC)
    with rig.present(rig.cards.RTX_PRO_6000_SERVER, count=8):
        outcome = rig.resolve(standing, model, tp_size=8)
        with rig.published(standing, outcome):         # for code that asks for the process's arguments
            ...
    print(standing.report())

Walls: `cards` are facts of hardware, `models` are facts of checkpoints, `stubs` and `packages` are what this machine
lacks, `newer` is what it has too new, `tree` is where upstream's code comes from, `present` and `platforms` are what
is pretended, `resolve` is what is asked, `publish` is where the answer is kept. It refuses rather than guesses: see
`errors`. Nothing here knows of patches.
"""

from sm120_overlay.serving.rig import cards, models, ops
from sm120_overlay.serving.rig.cards import Card
from sm120_overlay.serving.rig.errors import NeedsGpu, RigError, StubDecided, UnknownFact
from sm120_overlay.serving.rig.present import present
from sm120_overlay.serving.rig.publish import in_effect, published
from sm120_overlay.serving.rig.resolve import Resolution, resolve
from sm120_overlay.serving.rig.tree import Standing, load

__all__ = [
    "Card",
    "NeedsGpu",
    "Resolution",
    "RigError",
    "Standing",
    "StubDecided",
    "UnknownFact",
    "cards",
    "in_effect",
    "load",
    "models",
    "ops",
    "present",
    "published",
    "resolve",
]
