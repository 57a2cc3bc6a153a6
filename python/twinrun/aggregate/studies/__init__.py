"""Studies of the reproducibility of I/O speed: they repeat runs of apps/haccio until the answer is known, or
report that it is open.

    size            bandwidth, standard deviation and coefficient of variation against particles of a rank
    interference    a job alone, and the same job beside a second one of varying intensity
    split           the time of making the communicators of a file's partitions, several ways, by MPI library

Each is a design for the ensemble's engine (`engine`): factors, whose combinations are the
conditions; the launch of haccio that a run is (`launch`); what its output says; and when the
intervals are narrow enough. The ensemble's runner draws the order of runs in each block, starts
them under its watcher, and goes on with a study that was stopped. Every run is a line of a
`journal` as soon as it has ended. Statistics: `ensemble.intervals`.

    study       what all have in common
    engine      runs them, and checks their journal against them
    launch      command lines of haccio
    beside      a program that runs two jobs at once
    journal     the file that keeps all runs
    report      names, sentences, tables, pictures
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
