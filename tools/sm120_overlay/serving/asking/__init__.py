"""What would SGLang choose? A question is asked of trees, each standing in a process of its own, and answered as data.

`question` is what is asked; `warm` starts and asks the processes; `host` is what runs in them, and `answer` how one of
them answers: `parallel` stands for the other ranks, `choices` reads what was decided, `allreduce` and `experts` let
upstream decide what it decides only at run time, and `build` makes the model without its memory. `plan` is arithmetic
on an answer. Everything under a presented card is upstream's own code; nothing here knows of patches.
"""

from sm120_overlay.serving.asking.question import Question
from sm120_overlay.serving.asking.warm import Absent, Host, answers, key, start

__all__ = ["Absent", "Host", "Question", "answers", "key", "start"]
