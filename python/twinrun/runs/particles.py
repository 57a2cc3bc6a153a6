"""Finds the fields of particles: those whose rows have IDs in another field."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .. import _core
from ..errors import Incomparable
from ..formats.element_types import INTEGERS, storage_dtype
from ..formats.texts import MASK
from .fields import FieldRef, lacks_any, mask_of_none, masked_field

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

__all__ = ["Particles", "find_particles", "read_ids", "read_items", "without_ids"]

_PIECE = 1 << 22  # IDs that are read at a time


@dataclass
class Particles:
    """The fields of one kind of particles at one step.

    key: the name of the field of IDs. parts_a, parts_b: of each run, (rank, field of IDs, {name: field}) for
    each rank.
    """

    key: str
    parts_a: list[tuple[int, FieldRef, dict[str, FieldRef]]] = field(default_factory=list)
    parts_b: list[tuple[int, FieldRef, dict[str, FieldRef]]] = field(default_factory=list)


def _rows(ref: FieldRef) -> int:
    return ref.user_shape[0] if ref.user_shape else -1


def _is_key(name: str, ref: FieldRef, key: str) -> bool:
    if ref.dtype not in INTEGERS or len(ref.user_shape) != 1:
        return False
    if key == "auto":
        return ref.key is not None and (ref.key == ref.own_name or ref.key == name)
    return fnmatch.fnmatchcase(name, key) or fnmatch.fnmatchcase(name.rsplit("/", 1)[-1], key)


def _group_of(name: str) -> str:
    return name.rsplit("/", 1)[0] if "/" in name else ""


def find_particles(
    sides: tuple[Sequence[tuple[int, Mapping[str, FieldRef]]], Sequence[tuple[int, Mapping[str, FieldRef]]]],
    key: str,
) -> dict[str, Particles]:
    """The kinds of particles of one step, by the names of their fields of IDs.

    sides: for both runs, (rank, {name: field}) of the places of the step. key: name or glob of the field of
    IDs; 'auto' takes the keys that formats set. The fields of a kind are those of the same place whose first
    axis has as many rows as there are IDs, and that have the same group. If the format sets no groups, the
    group is the part of the name before the last slash; a field of IDs without slash then covers all fields.
    """
    found: dict[str, Particles] = {}
    for at, side in enumerate(sides):
        for rank, fields in side:
            keys = {n: f for n, f in fields.items() if _is_key(n, f, key)}
            for name, ids in keys.items():
                own = {}
                for n, f in fields.items():
                    if n in keys or _rows(f) != ids.items or (f.fortran_order and len(f.user_shape) > 1):
                        continue
                    group = _group_of(name)
                    if f.group is not None or ids.group is not None:
                        if f.group == ids.group:
                            own[n] = f
                    elif not group or n.startswith(group + "/"):
                        own[n] = f
                kind = found.setdefault(name, Particles(name))
                (kind.parts_a if at == 0 else kind.parts_b).append((rank, ids, own))
    for kind in found.values():
        _complete_masks(kind)
    return found


def _complete_masks(kind: Particles) -> None:
    """Gives a field a mask in each part where another rank of its run has one, or where values lack by one of
    the other run: where all elements have a value, none is stored.
    """
    sides = kind.parts_a, kind.parts_b
    of_sides = [
        [(n, ref) for _, _, own in parts for n, ref in own.items() if n.endswith(MASK)] for parts in sides
    ]
    for parts, ours, others in zip(sides, of_sides, of_sides[::-1], strict=True):
        masks = dict(ours)
        masks |= {name: ref for name, ref in others if name not in masks and lacks_any(ref)}
        for _, _, own in parts:
            for name, mask in masks.items():
                field = masked_field(name, own)
                if name not in own and field is not None:
                    made = mask_of_none(mask, field)
                    if made is not None:
                        own[name] = made


def without_ids(
    sides: Sequence[Sequence[tuple[int, Mapping[str, FieldRef]]]],
    kinds: Mapping[str, Particles],
    chosen: Callable[[str], bool],
) -> list[Incomparable]:
    """Errors for fields that are matched by ID on one rank, but on another rank have no IDs or another number
    of rows.

    No other code compares them, so they must be reported. sides: as for `find_particles`. kinds: its result.
    chosen: `chosen(name)` returns whether a field is to be compared.
    """
    parts = [(kind.parts_a, kind.parts_b) for kind in kinds.values()]
    matched = {n for pair in parts for side in pair for _, _, own in side for n in own} | set(kinds)
    found = []
    for at, side in enumerate(sides):
        for rank, fields in side:
            own = {
                id(ref) for pair in parts for r, ids, o in pair[at] if r == rank for ref in (ids, *o.values())
            }
            left = [
                n for n, f in fields.items() if n in matched and f.items and id(f) not in own and chosen(n)
            ]
            found += [
                Incomparable(f"field {n!r} on rank {rank} has no field of IDs with as many rows", where=fields[n].where,
                             fix="leave out --key, or the field") for n in left
            ]  # fmt: skip
    return found


def read_items(ref: FieldRef, first: int, count: int, sources: dict[int, _core.Source]) -> np.ndarray:
    """Items [first, first + count) of a field as a 1-D array in native byte order. sources: a cache of opened
    sources.

    Raises Incomparable if only the field's metadata is available.
    """
    if id(ref) not in sources:
        source = ref.source()
        if source is None:
            raise Incomparable(
                f"field {ref.name!r}: only its metadata is available, and matching by ID needs its data",
                where=ref.where,
            )
        sources[id(ref)] = source
    return _core.read_source(sources[id(ref)], first, count).view(storage_dtype(ref.dtype))


def read_ids(ids: FieldRef) -> np.ndarray:
    """All IDs of a field as u64; negative IDs in two's complement."""
    signed = not ids.dtype.startswith("u")
    out = np.empty(ids.items, np.uint64)
    sources: dict[int, _core.Source] = {}
    for first in range(0, ids.items, _PIECE):
        count = min(_PIECE, ids.items - first)
        values = read_items(ids, first, count, sources)
        out[first : first + count] = values.astype(np.int64).view(np.uint64) if signed else values
    return out
