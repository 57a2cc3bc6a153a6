"""Is the speed of I/O reproducible? Studies that repeat runs of apps/haccio until the answer is known, or say that it is not.

    size            bandwidth, standard deviation and coefficient of variation against particles a rank
    interference    a job alone, and the same job beside a second one of varying intensity
    split           the time of making the communicators of a file's partitions, several ways, by MPI library

Each is a set of conditions (`Condition`). A block runs each condition once, in an order that the seed shuffles, so that whatever
else changes with time hits all alike; runs are launches of their own. After `least` blocks, and then whenever there are a quarter
more, the intervals are looked at: the study ends when all are narrow enough, or at `most` blocks. Every run is a line of a journal
as soon as it has ended; a study that was stopped goes on from there (`journal`). Statistics: `statistics`.
"""

from ...ensemble.intervals import Interval
from .engine import Condition, Plan, conduct, looks
from .interference import Interference
from .journal import Journal
from .launch import Stack
from .size import Size
from .split import Split

__all__ = [
    "Condition",
    "Interference",
    "Interval",
    "Journal",
    "Plan",
    "Size",
    "Split",
    "Stack",
    "conduct",
    "looks",
]
