"""Whether two traces cut their tensors differently: digests of parts tell nothing of digests of the whole."""

from __future__ import annotations

from typing import NamedTuple

from ..errors import Incomparable
from .reading import TraceSubject

__all__ = ["refuse_other_shardings"]

_LOCAL = "@local"  # what the names of local parts of distributed tensors end in


class _Held(NamedTuple):
    """A parameter as a trace has it: whether it is a part of a distributed tensor, its type and shape."""

    part: bool
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{'a local part, ' if self.part else ''}{self.dtype}[{','.join(map(str, self.shape))}]"


def _parameters(subject: TraceSubject, rank: int, iteration: int) -> dict[tuple[str, str], _Held]:
    """The parameters that went into modules, by module and name."""
    events, _, _ = subject.events(rank, iteration)
    return {
        (e.module, v.name.removesuffix(_LOCAL)): _Held(v.name.endswith(_LOCAL), v.dtype, v.shape)
        for e in events
        if e.phase == "forward"
        for v in e.values
        if v.role == "parameter"
    }


def refuse_other_shardings(a: TraceSubject, b: TraceSubject) -> None:
    """Raises Incomparable where a parameter is cut differently in the first iteration that both have."""
    ranks = sorted({*a.ranks} & {*b.ranks})
    if not ranks:
        return
    both = sorted({*a.iterations(ranks[0])} & {*b.iterations(ranks[0])})
    if not both:
        return
    ours, theirs = (_parameters(side, ranks[0], both[0]) for side in (a, b))
    other_number = len(a.ranks) != len(b.ranks)
    for name, one in ours.items():
        other = theirs.get(name)
        if other is None or one == other or one.dtype != other.dtype:
            continue
        if one.part != other.part or ((one.part or other_number) and one.shape != other.shape):
            raise Incomparable(
                f"the traces cut their tensors differently: {'.'.join(filter(None, name))} is {one} in a, and {other} in b "
                f"({len(a.ranks)} and {len(b.ranks)} ranks). A digest of a part tells nothing of that of the whole",
                where=f"{a.label}, {b.label}",
                fix="trace both with the same sharding, or capture the global tensors with twinrun.torch.ParallelRun and "
                "compare those",
            )
