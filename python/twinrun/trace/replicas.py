"""What data-parallel ranks of one trace hold alike: the events that can be compared between them,
and who is in the majority.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence

from ..errors import Incomparable, TwinrunError
from ..runs.events import Event, Traced
from ..runs.gaps import OF_EACH_RANK, PART, gap, gap_value
from ..runs.structure import of_modules
from .reading import TraceSubject

__all__ = ["chosen_ranks", "replicated", "usual_rank"]

_LOCAL = "@local"  # of a distributed tensor: see twinrun.torch.values


def _alike(e: Event, v: Traced) -> bool:
    """Whether data-parallel ranks hold this value alike; inputs and what follows from them are each
    rank's own.
    """
    if v.role == "parameter":
        return True
    if e.phase == "optimizer":  # after the gradients are summed up
        return v.role in ("gradient", "state", "setting")
    return v.role == "setting" and v.name == "settings" and e.operation == "forward"


def replicated(events: Sequence[Event]) -> tuple[list[Event], int]:
    """(events with the values that ranks hold alike, how many parts of distributed tensors were left out).

    Where a value is left out, the event says so.
    """
    made: list[Event] = []
    parts = 0
    for e in events:
        values: list[Traced] = []
        compared = False
        for v in e.values:
            if v.role == "rng":
                continue
            if not _alike(e, v):
                values.append(gap_value(v.name, v.out, OF_EACH_RANK))
            elif _LOCAL in v.name:
                parts += 1
                values.append(gap_value(v.name, v.out, PART))
            else:
                compared = True
                values.append(v)
        if compared:
            made.append(
                Event(
                    e.phase,
                    e.microbatch,
                    e.module,
                    e.kind,
                    e.operation,
                    e.call,
                    e.enclosing,
                    values,
                    of_modules(e.structure),
                )
            )
    return made, parts


def chosen_ranks(subject: TraceSubject, ranks: Callable[[int], bool] | None) -> list[int]:
    """The ranks to compare. Raises TwinrunError where there are fewer than two."""
    there = subject.ranks
    found = [r for r in there if ranks is None or ranks(r)]
    if len(found) > 1:
        return found
    if len(there) > 1:
        raise TwinrunError(
            "fewer than two ranks are chosen", where=subject.label, fix="choose two ranks or more"
        )
    raise Incomparable(
        "has one rank, and replicas are compared between ranks",
        where=subject.label,
        fix="name the folder that holds those of all ranks",
    )


def usual_rank(subject: TraceSubject, ranks: Sequence[int]) -> tuple[int, bool]:
    """(a rank of the majority, whether there is one): the lowest of those that agree longest with
    most others.
    """
    if len(ranks) < 3:
        return ranks[0], False
    so_far = {rank: hashlib.blake2b(digest_size=16) for rank in ranks}
    iterations = {rank: set(subject.iterations(rank)) for rank in ranks}
    usual, parted = ranks[0], False
    for number in sorted(set().union(*iterations.values())):
        for rank in ranks:
            told = so_far[rank]
            told.update(f"\n{number}".encode())
            if number in iterations[rank]:
                for e in replicated(subject.events(rank, number)[0])[0]:
                    for v in e.values:
                        if gap(v):
                            continue
                        told.update(f"\n{e.phase} {e.module} {v.name} {v.form} {v.digest}".encode())
        classes = Counter(told.digest() for told in so_far.values())
        (largest, size), *others = classes.most_common()
        if size == 1 or (others and others[0][1] == size):
            return usual, parted  # from here on there is no majority; one of before stands
        usual = next(rank for rank in ranks if so_far[rank].digest() == largest)
        parted = parted or bool(others)
    return usual, True
