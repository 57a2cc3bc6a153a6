"""Studies of the reproducibility of I/O speed: they repeat runs of apps/haccio until the answer is known, or
report that it is open.

    size            bandwidth, standard deviation and coefficient of variation against particles of a rank
    interference    a job alone, and the same job beside a second one of varying intensity
    split           the time of making the communicators of a file's partitions, several ways, by MPI library

Each is a set of conditions (`Condition`). A block runs each condition once, in an order that the seed
shuffles, so that slow changes affect all alike; each run is a launch of its own. After `least` blocks, and
then after every quarter more, the intervals are checked: the study ends when all are narrow enough, or at
`most` blocks. Every run is a line of a journal as soon as it has ended; a stopped study goes on from there
(`journal`). Statistics: `ensemble.intervals`.
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
