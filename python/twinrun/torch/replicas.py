"""Data-parallel processes hold the same parameters: they are compared among themselves while a training runs.

All processes meet in `dist.all_gather_object`, whatever happened before: a process that cannot
digest its values says so there instead of leaving the others waiting.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ..errors import TwinrunError
from ..runs.digest import digests_of
from ..runs.provenance import (
    Difference,
    ProvenanceOfRank,
    digest_between_ranks,
    rank_difference,
    read_provenance,
)
from .values import put

__all__ = ["ReplicasDiffer", "check_replicas", "group_of"]

_Values = Sequence[tuple[str, torch.Tensor]]


class ReplicasDiffer(TwinrunError):
    """Data-parallel processes hold different values where all must hold the same.

    Attributes
    ----------
    ranks : tuple of int
        The processes that are not of the majority; all of their group, where there is none.
    names : tuple of str
        What differs, in the order of parameters.

    Parameters: see `TwinrunError`.
    """

    ranks: tuple[int, ...] = ()
    names: tuple[str, ...] = ()


class _Row(NamedTuple):
    """What a process hands to the others: little, as all of them get it.

    number, names: how many values, and a digest of their names. missing: why a value has no digest.
    failed: why there is no row. conditions: a digest of those of this process; '' where they were compared
    before, or are not known.
    """

    number: int = 0
    names: bytes = b""
    digests: bytes = b""
    missing: tuple[tuple[str, str], ...] = ()
    failed: str = ""
    conditions: str = ""


class _Found(NamedTuple):
    """What the processes of a group find. problems: what they could not compare. failed: why they
    compared nothing.
    """

    ranks: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    said: str = ""
    fix: str = ""
    problems: tuple[str, ...] = ()
    failed: str = ""


def group_of(group: Any) -> Any:
    """The process group that a caller means: itself, or that of one dimension of a device mesh.
    Raises TwinrunError.
    """
    if group is None or isinstance(group, dist.ProcessGroup):
        return group
    if hasattr(group, "get_group") and hasattr(group, "mesh"):
        if group.ndim != 1:
            names = group.mesh_dim_names or ()
            raise TwinrunError(
                f"group is a mesh of {group.ndim} dimensions",
                fix=f"give one dimension, such as mesh[{names[0] if names else 'NAME'!r}]",
            )
        return group.get_group()
    raise TwinrunError(
        f"group must be a process group or a dimension of a device mesh, not {type(group).__name__!r}"
    )


def _is_replica(t: Any, ranks: frozenset[int]) -> bool:
    """Whether all these processes hold the same part of a distributed tensor."""
    mesh = t.device_mesh
    held = mesh.mesh.tolist()
    cut = [d for d, p in enumerate(t.placements) if not p.is_replicate()]
    found: set[tuple[int, ...]] = set()

    def walk(part: Any, at: tuple[int, ...]) -> None:
        if isinstance(part, list):
            for number, one in enumerate(part):
                walk(one, (*at, number))
        elif part in ranks:
            found.add(tuple(at[d] for d in cut))

    walk(held, ())
    return len(found) <= 1


def _row(values: Callable[[], _Values], ranks: Sequence[int]) -> tuple[_Row, tuple[str, ...]]:
    """(the digests of this process, the names of its values). Never raises."""
    try:
        whole: dict[str, torch.Tensor] = {}
        among = frozenset(ranks)
        # By mesh and placements, of which a model has few.
        known: dict[tuple[int, tuple], bool] = {}
        for name, t in values():
            if hasattr(t, "placements"):
                key = id(t.device_mesh), tuple(t.placements)
                if key not in known:
                    known[key] = _is_replica(t, among)
                if not known[key]:
                    continue
            put(whole, name, t.detach())
        missing: dict[str, str] = {}
        numbers: list[bytes] = []
        try:
            made = [d for d, _, _ in digests_of(whole)]
            numbers = [int(d).to_bytes(16, "big") for d in made]
        except TwinrunError:  # one of them has no digest: which one?
            for name, t in whole.items():
                try:
                    numbers.append(int(digests_of({name: t})[0][0]).to_bytes(16, "big"))
                except TwinrunError as e:
                    missing[name] = str(e)
                    numbers.append(bytes(16))
        of_names = hashlib.blake2b("\0".join(whole).encode("utf-8", "surrogatepass"), digest_size=16).digest()
        return _Row(len(whole), of_names, b"".join(numbers), tuple(missing.items())), tuple(whole)
    except Exception as e:
        return _Row(failed=f"{type(e).__name__}: {e}"), ()


def _compared(ranks: Sequence[int], rows: Sequence[_Row], names: Sequence[str]) -> _Found:
    for rank, row in zip(ranks, rows, strict=True):
        if row.failed:
            return _Found(failed=f"rank {rank} has no digests: {row.failed}")
    if len({row.names for row in rows}) > 1:
        counts = [row.number for row in rows]
        said = f"ranks hold {counts} values" if len(set(counts)) > 1 else "ranks hold values of other names"
        fix = "every rank trains the same parameters; where that is not so, give the data-parallel ranks as group"
        return _Found(tuple(ranks), (), said, fix)
    differing: dict[str, tuple[int, ...]] = {}
    problems: list[str] = []
    missing = [dict(row.missing) for row in rows]
    for at, name in enumerate(names):
        without = [(r, m[name]) for r, m in zip(ranks, missing, strict=True) if name in m]
        if without:
            problems.append(f"{name} was not compared: rank {without[0][0]}: {without[0][1]}")
            continue
        held = [row.digests[16 * at : 16 * at + 16] for row in rows]
        (usual, times), *others = Counter(held).most_common()
        if others:
            # Where two values are held equally often, nobody knows which of them is right.
            tied = others[0][1] == times
            differing[name] = tuple(r for r, h in zip(ranks, held, strict=True) if tied or h != usual)
    if not differing:
        return _Found(problems=tuple(problems))
    odd = tuple(sorted({r for some in differing.values() for r in some}))
    first = next(iter(differing))
    more = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
    said = (
        f"{first}{more}: ranks {', '.join(map(str, odd))} hold other values than the rest"
        if len(odd) < len(rows)
        else f"{first}{more}: ranks {', '.join(map(str, odd))} hold different values"
    )
    fix = "look for a faulty device or a collective that went wrong; the optimizer has not stepped"
    return _Found(odd, tuple(differing), said, fix, tuple(problems))


def _conditions_differ(own: str, ranks: Sequence[int], rows: Sequence[_Row], group: Any) -> list[Difference]:
    """Conditions in which the processes of a group differ. All of them see the same rows, so that either all
    of them meet again or none.
    """
    if len({row.conditions for row in rows if row.conditions}) < 2:
        return []
    texts: list[Any] = [None] * len(ranks)
    dist.all_gather_object(texts, own, group=group)
    said = [ProvenanceOfRank(r, text) for r, text in zip(ranks, texts, strict=True) if text]
    return rank_difference(read_provenance(said), ranks)


def _digest_of_conditions(own: str, rank: int) -> str:
    try:
        return digest_between_ranks(ProvenanceOfRank(rank, own)) if own else ""
    except TwinrunError:
        return ""


def check_replicas(
    values: Callable[[], _Values],
    where: str,
    group: Any = None,
    conditions: str = "",
    differ_in: Callable[[Sequence[Difference]], None] = lambda _: None,
) -> list[str]:
    """Compares values among the processes of a group by their digests. Gives what could not be compared.

    Every process of the job must call it, each with its own group, and with the same values as the
    others there. Raises ReplicasDiffer on every process of the job where the processes of any group
    differ, and TwinrunError on every one where a process has no digests at all. A part of a
    distributed tensor is compared where all processes of the group hold the same one. `values`
    makes them; what it raises is one more reason to have no digests.

    conditions: those of this process, as its history has them, the first time; '' later. differ_in: is
    called with those in which the processes of the group differ.
    """
    ranks = list(range(dist.get_world_size())) if group is None else dist.get_process_group_ranks(group)
    rows: list[Any] = [None] * len(ranks)
    mine, names = _row(values, ranks)
    mine = mine._replace(conditions=_digest_of_conditions(conditions, dist.get_rank()))
    dist.all_gather_object(rows, mine, group=group)
    if others := _conditions_differ(conditions if mine.conditions else "", ranks, rows, group):
        differ_in(others)
    found = [_compared(ranks, rows, names)]
    if len(ranks) < dist.get_world_size():
        # The others must not wait for those that raise.
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, found[0])
        found = list(dict.fromkeys(every))
    differ = [f for f in found if f.said]
    if differ:
        error = ReplicasDiffer("; ".join(f.said for f in differ), where=where, fix=differ[0].fix)
        error.ranks = tuple(sorted({r for f in differ for r in f.ranks}))
        error.names = tuple(dict.fromkeys(n for f in differ for n in f.names))
        raise error
    if failed := [f.failed for f in found if f.failed]:
        raise TwinrunError(f"replicas were not compared: {'; '.join(failed)}", where=where)
    return list(dict.fromkeys(p for f in found for p in f.problems))
