"""Particles for golden files: the rows of all ranks of a step, in the order of their IDs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..comparison.by_id import common_fields
from ..comparison.ids import Ids, Matched, gather_rows, ids_of_share
from ..errors import Incomparable, TwinrunError
from ..formats.element_types import ITEMSIZE, storage_dtype
from ..runs.arrays import ArrayView, view
from ..runs.fields import FieldRef
from ..runs.particles import Particles, find_particles, without_ids
from ..runs.subject import Place
from .result import GoldenField, GoldenSpan

__all__ = ["Rows", "StepRows", "chosen_rows", "identity", "in_order", "rows_by_id", "with_ids"]

_PIECE = 1 << 20  # elements that are read at a time
_FEW = 10  # IDs that a note names


@dataclass(frozen=True)
class Rows:
    """One kind of particles.

    key: the name of the field of IDs. ids: of all rows, sorted. fields: by name, the key first, with their
    rows in this order.
    """

    key: str
    ids: np.ndarray
    fields: dict[str, FieldRef]


@dataclass
class StepRows:
    """All kinds of a step.

    names: of the fields that belong to a kind, kept or not. problems: what could not be brought into order.
    """

    kinds: list[Rows] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    problems: list[TwinrunError] = field(default_factory=list)

    def kept(self, chosen: Callable[[str], bool]) -> set[str]:
        """The names of the chosen fields of particles, and of the IDs that they need."""
        needed = {kind.key for kind in self.kinds if len(kind.fields) > 1}
        return needed | {name for name in self.names if chosen(name)}


def rows_by_id(
    ranks: Sequence[tuple[int, Mapping[str, FieldRef]]],
    key: str,
    chosen: Callable[[str], bool],
    label: str,
    step: int | None,
) -> StepRows:
    """The particles of one step, as `compare` finds them.

    ranks: (rank, its fields). key: the field, or a glob of the fields, with the IDs. chosen: whether a field
    of this name is kept. label: names the run in messages. Raises what reading the fields raises.
    """
    found = StepRows()
    kinds = find_particles((ranks, []), key)
    for kind in kinds.values():
        found.names |= {kind.key} | {n for _, _, own in kind.parts_a for n in own}
        if len({ids.dtype for _, ids, _ in kind.parts_a if ids.items}) > 1:
            found.problems.append(
                Incomparable(f"field {kind.key!r}: IDs have several types", where=label, fix="use one type")
            )
            continue
        fields, problems = common_fields(kind, chosen, label, label, step)
        found.problems += problems
        sources: dict = {}
        ids = ids_of_share(kind.parts_a, 0, 1, _PIECE, sources)
        rows = {kind.key: _gathered(kind, kind.key, ids, sources)}
        rows |= {name: _gathered(kind, name, ids, sources) for name in fields}
        found.kinds.append(Rows(kind.key, ids.ids, rows))
    found.problems += without_ids((ranks, []), kinds, chosen)
    return found


def _gathered(kind: Particles, name: str, ids: Ids, sources: dict) -> FieldRef:
    parts = [(of_ids if name == kind.key else own.get(name), of_ids.items) for _, of_ids, own in kind.parts_a]
    like = next((ref for ref, rows in parts if ref is not None and rows), None) or parts[0][0]
    assert like is not None  # of `common_fields`
    shape = (ids.rows.size, *like.user_shape[1:])
    width = math.prod(shape[1:])
    values = gather_rows(parts, ids.rows, width, _PIECE, sources, storage_dtype(like.dtype))
    if like.dtype == "bool":
        values = values.view(np.bool_)
    v = view(name, np.ascontiguousarray(values).reshape(shape))
    assert isinstance(v, ArrayView)
    memory = ArrayView(like.dtype, shape, v.address, v.stride, v.swap, False, v.owner)
    return FieldRef(name, like.dtype, "little", shape, False, like.where, memory=memory, unit=like.unit,
                    kind=like.kind, facts=like.facts, told_as_text=like.told_as_text)  # fmt: skip


def chosen_rows(ref: FieldRef, rows: np.ndarray) -> FieldRef:
    """Some rows of a field in memory, in this order."""
    assert isinstance(ref.memory, ArrayView)
    v = view(ref.name, np.ascontiguousarray(ref.memory.owner[rows]))
    assert isinstance(v, ArrayView)
    return replace(
        ref, shape=v.shape, memory=replace(ref.memory, shape=v.shape, address=v.address, owner=v.owner)
    )


def in_order(ref: FieldRef) -> Ids:
    """The IDs of a field of `rows_by_id`, which are sorted."""
    assert isinstance(ref.memory, ArrayView)
    return Ids(ref.memory.owner, np.arange(ref.items))


def identity(name: str, place: Place, dtype: str, found: Matched) -> tuple[GoldenField, str]:
    """The result of a field of IDs, and a note on those that differ: particles that only one side has.

    name, dtype: of the field. found: how its IDs match the saved ones.
    """
    different = int(found.lost.size + found.born.size + found.unequal)
    elements = int(found.ids.size) + different
    last = max(elements - 1, 0)
    span = GoldenSpan(0, last, (0,), (last,), different, True, False, "different")
    entry = GoldenField(
        step=place[0], rank=place[1], field=name, dtype=dtype, shape=(elements,), atol=0.0, rtol=0.0,
        elements=elements, bytes=elements * ITEMSIZE[dtype], chunks=1, residue_bits=0, cell=0.0,
        different=different, chunks_different=int(different > 0), spans=[span] if different else [],
        at_least=math.inf if different else 0.0, at_most=math.inf if different else 0.0, values_kept=True,
    )  # fmt: skip
    said = [f"{n} {what} ({_few(ids)})" for n, what, ids in (
        (found.lost.size, "lost", np.unique(found.lost)),
        (found.born.size, "new", np.unique(found.born)),
        (found.unequal, "not equally often", np.intersect1d(found.doubled_a, found.doubled_b)),
    ) if n]  # fmt: skip
    at = "" if place[0] is None else f"step {place[0]}: "
    return entry, f"{at}{name}: particles {', '.join(said)}" if said else ""


def _few(ids: np.ndarray) -> str:
    return ", ".join(map(str, ids[:_FEW].tolist())) + (", …" if ids.size > _FEW else "") if ids.size else "…"


def with_ids(result: GoldenField, ids: np.ndarray) -> GoldenField:
    """The result of a field of particles, whose elements are named by ID and component. ids: of its rows."""
    result.listed = [replace(e, id=int(ids[e.index[0]]), index=e.index[1:]) for e in result.listed]
    return result
