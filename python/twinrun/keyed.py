"""Particles: elements matched by their IDs, whatever the order, the rank or the file they lie in.

IDs are matched in passes over shares of them (by a hash), so that memory stays bounded: in each, both runs' IDs are read and
sorted, and the rows of every field that belong to them are brought into the order of IDs and compared by the core. An ID that
a run holds several times has no partner of its own: such rows are compared in the order in which they lie, where both runs
hold it equally often, and count as differing where they do not.
"""

from __future__ import annotations

import fnmatch
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from . import _core
from .errors import Incomparable, TwinrunError
from .fieldwise import Decision, FieldComparison, Settings, facts_of
from .formats.model import storage_dtype
from .subject import FieldRef

__all__ = [
    "Particles",
    "compare_particles",
    "find_particles",
    "gather_rows",
    "ids_of_share",
    "match_ids",
    "order_note",
    "without_ids",
]

_INTEGERS = frozenset({"i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"})
_HASH = np.uint64(0x9E3779B97F4A7C15)
_KNOWN_IDS = (
    "id",
    "ids",
    "particleids",
    "particle_ids",
    "pid",
    "global_id",
)  # for the note that the order changed
_FEW = 10  # IDs that are named
_BYTES_A_ROW = 56  # of IDs, places and orders, both runs, while a pass matches them


@dataclass
class Particles:
    """Fields of one kind of particles at one step. parts: (rank, IDs, {field: its ref}) of each place that holds some."""

    key: str
    parts_a: list[tuple[int, FieldRef, dict[str, FieldRef]]] = field(default_factory=list)
    parts_b: list[tuple[int, FieldRef, dict[str, FieldRef]]] = field(default_factory=list)


def _rows(ref: FieldRef) -> int:
    return ref.user_shape[0] if ref.user_shape else -1


def _is_key(name: str, ref: FieldRef, key: str) -> bool:
    if ref.dtype not in _INTEGERS or len(ref.user_shape) != 1:
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
    """Kinds of particles by the name of their ID field.

    sides: of both runs, (rank, fields) of the places of one step. key: name or glob of the ID field; 'auto': what the
    formats say. To an ID field belong the fields of its place whose first axis is as long: of its group (the part of the
    name in front of the last slash), or of all names where it has none.
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
    return found


def without_ids(
    sides: Sequence[Sequence[tuple[int, Mapping[str, FieldRef]]]],
    kinds: Mapping[str, Particles],
    chosen: Callable[[str], bool],
) -> list[Incomparable]:
    """Fields that are matched by ID on some rank, and lie on another without IDs, or with another number of rows than IDs.

    Nobody else compares them: they must be told. sides, kinds: as of `find_particles`.
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
                Incomparable(f"field {n!r} on rank {rank} has no IDs of as many rows there", where=fields[n].where,
                             fix="leave out --key, or the field") for n in left
            ]  # fmt: skip
    return found


def _read(ref: FieldRef, first: int, count: int, sources: dict[int, _core.Source]) -> np.ndarray:
    """Items as native elements, 1-D."""
    if id(ref) not in sources:
        source = ref.source()
        if source is None:
            raise Incomparable(
                f"field {ref.name!r}: only its metadata is at hand, and matching by ID needs its data",
                where=ref.where,
            )
        sources[id(ref)] = source
    return _core.read_source(sources[id(ref)], first, count).view(storage_dtype(ref.dtype))


@dataclass
class _Ids:
    """IDs of one share of one run, sorted, with the row (numbered through all parts) of each."""

    ids: np.ndarray  # int64 or uint64
    rows: np.ndarray  # int64


def ids_of_share(
    parts: Sequence[tuple[int, FieldRef, dict]], share: int, shares: int, piece: int, sources: dict
) -> _Ids:
    """The IDs of one share of all, of one run. piece: elements that are read in one go."""
    kept, rows, base = [], [], 0
    for _, ref, _ in parts:
        kind = np.uint64 if ref.dtype.startswith("u") else np.int64
        for first in range(0, ref.items, piece):
            count = min(piece, ref.items - first)
            ids = _read(ref, first, count, sources).astype(kind)
            at = np.arange(base + first, base + first + count, dtype=np.int64)
            if shares > 1:
                mine = (ids.view(np.uint64) * _HASH >> np.uint64(32)) % np.uint64(shares) == share
                ids, at = ids[mine], at[mine]
            kept.append(ids)
            rows.append(at)
        base += ref.items
    if not kept:
        return _Ids(np.empty(0, np.int64), np.empty(0, np.int64))
    if len({k.dtype for k in kept}) > 1:
        raise Incomparable("IDs are signed in one part and unsigned in another")
    ids, at = np.concatenate(kept), np.concatenate(rows)
    order = np.argsort(ids, kind="stable")
    return _Ids(ids[order], at[order])


@dataclass
class _Matched:
    ids: np.ndarray
    rows_a: np.ndarray
    rows_b: np.ndarray
    lost: np.ndarray
    born: np.ndarray
    doubled_a: np.ndarray
    doubled_b: np.ndarray
    unequal: int  # rows of IDs that the runs hold not equally often, though both hold them


def match_ids(a: _Ids, b: _Ids) -> _Matched:
    """Rows that belong together, in the order of their IDs, and the IDs that have no partner."""
    unique_a, start_a, times_a = np.unique(a.ids, return_index=True, return_counts=True)
    unique_b, start_b, times_b = np.unique(b.ids, return_index=True, return_counts=True)
    common, in_a, in_b = np.intersect1d(unique_a, unique_b, assume_unique=True, return_indices=True)
    equal = times_a[in_a] == times_b[in_b]
    unequal = int(np.maximum(times_a[in_a], times_b[in_b])[~equal].sum())
    times = times_a[in_a][equal]
    # Rows of an ID that comes several times: stretches, one after another, of both sorted lists.
    within = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
    return _Matched(
        np.repeat(common[equal], times),
        a.rows[np.repeat(start_a[in_a][equal], times) + within],
        b.rows[np.repeat(start_b[in_b][equal], times) + within],
        np.setdiff1d(unique_a, common, assume_unique=True),
        np.setdiff1d(unique_b, common, assume_unique=True),
        unique_a[times_a > 1],
        unique_b[times_b > 1],
        unequal,
    )


def gather_rows(
    refs: Sequence[tuple[FieldRef | None, int]],
    rows: np.ndarray,
    width: int,
    piece: int,
    sources: dict,
    storage: np.dtype,
) -> np.ndarray:
    """Rows of a field that lies in several parts, in the order of `rows`. refs: (field, its rows)."""
    out = np.empty((rows.size, width), storage)
    order = np.argsort(rows, kind="stable")
    ascending = rows[order]
    base = 0
    for ref, count in refs:
        low, high = np.searchsorted(ascending, (base, base + count))
        step = max(1, piece // max(width, 1))
        for first in range(0, count, step):
            n = min(step, count - first)
            begin, end = np.searchsorted(ascending, (base + first, base + first + n))
            if begin == end or low == high:
                continue
            assert ref is not None
            values = _read(ref, first * width, n * width, sources).reshape(n, width)
            out[order[begin:end]] = values[ascending[begin:end] - (base + first)]
        base += count
    return out


class _Found:
    """What the passes over shares of the IDs found of one field."""

    def __init__(self) -> None:
        self.total: dict | None = None
        self.first_id: int | None = None
        self.max_id: int | None = None

    def add(self, r: dict, ids: np.ndarray, width: int) -> None:
        """r: of the core, with places in the order of ids."""
        scalars = max(width, 1)
        first = None if r["first"] is None else int(ids[r["first"] // scalars])
        largest = None if r["max_abs_at"] is None else int(ids[r["max_abs_at"] // scalars])
        for place in ("first", "max_abs_at", "max_rel_different_at"):
            r[place] = None if r[place] is None else r[place] % scalars
        if self.total is None:
            self.total, self.first_id, self.max_id = r, first, largest
            return
        t = self.total
        if first is not None and (self.first_id is None or first < self.first_id):
            self.first_id = first
            t.update({k: r[k] for k in ("first", "first_a", "first_b")})
        if r["max_abs"] > t["max_abs"]:
            self.max_id = largest
            t.update({k: r[k] for k in ("max_abs", "max_abs_at", "max_abs_a", "max_abs_b", "max_abs_read")})
        if r["max_rel_different"] > t["max_rel_different"]:
            t.update({k: r[k] for k in ("max_rel_different", "max_rel_different_at")})
        for k in (
            "scalars",
            "chunks",
            "different",
            "infinite",
            "scalars_read",
            "sum_squares",
            "sum_squares_different",
        ):
            t[k] += r[k]
        for k in ("histogram", "histogram_different"):
            t[k] = [x + y for x, y in zip(t[k], r[k], strict=True)]
        for name, stage in r["stages"].items():
            for k in ("chunks_in", "chunks_out", "bytes_read", "seconds"):
                t["stages"][name][k] += stage[k]
        t["warnings"] = list(dict.fromkeys(t["warnings"] + r["warnings"]))


def _common_fields(
    kind: Particles, chosen: Callable[[str], bool], label_a: str, label_b: str, step: int | None
) -> tuple[list[str], list[TwinrunError]]:
    """Fields that every part of both runs has, alike; and what is to be said of the others."""
    problems: list[TwinrunError] = []
    parts = [*((label_a, p) for p in kind.parts_a), *((label_b, p) for p in kind.parts_b)]
    good = []
    for name in dict.fromkeys(n for _, (_, _, own) in parts for n in own if chosen(n)):
        rows: dict[tuple[str, tuple[int, ...]], str] = {}
        missing = None
        for label, (rank, ids, own) in parts:
            if name in own:
                rows.setdefault((own[name].dtype, own[name].user_shape[1:]), f"rank {rank} of {label}")
            elif ids.items:  # a rank without particles may have no such field
                missing = f"rank {rank} of {label} has no such field, or another number of rows than IDs"
        if missing is None and len(rows) > 1:
            missing = " against ".join(
                f"{dtype} rows of {list(row)} on {where}" for (dtype, row), where in rows.items()
            )
        if missing is None:
            good.append(name)
        else:
            problems.append(
                Incomparable(f"{_at(step)}field {name!r}: {missing}", fix="nothing was compared of it")
            )
    return good, problems


def compare_particles(
    kind: Particles,
    step: int | None,
    settings: Settings,
    chosen: Callable[[str], bool],
    label_a: str,
    label_b: str,
) -> tuple[list[FieldComparison], list[TwinrunError], list[str]]:
    """Compares one kind of particles of one step: the key's own entry first (which were lost, born, doubled), then each field.

    chosen: whether a field of this name is wanted. Returns comparisons, problems (fields that could not be compared), notes.
    """
    begin = time.perf_counter()
    fields, problems = _common_fields(kind, chosen, label_a, label_b, step)
    sources: dict[int, _core.Source] = {}
    totals = [sum(ids.items for _, ids, _ in parts) for parts in (kind.parts_a, kind.parts_b)]
    widest = max((_width(kind, n) * _item(kind, n) for n in fields), default=8)
    needed = sum(totals) * (_BYTES_A_ROW + 2 * widest)
    shares = max(1, math.ceil(needed / max(settings.memory, 1 << 20)))
    piece = max(1 << 16, settings.memory // 256)
    found = {name: _Found() for name in fields}
    sums = {"matched": 0, "lost": 0, "born": 0, "doubled_a": 0, "doubled_b": 0, "moved": 0, "unequal": 0}
    named: dict[str, list[int]] = {"lost_ids": [], "born_ids": [], "doubled_ids": []}
    in_order = True
    ends = [np.cumsum([ids.items for _, ids, _ in parts]) for parts in (kind.parts_a, kind.parts_b)]
    ranks = [np.array([rank for rank, _, _ in parts]) for parts in (kind.parts_a, kind.parts_b)]
    for share in range(shares):
        of_a = ids_of_share(kind.parts_a, share, shares, piece, sources)
        of_b = ids_of_share(kind.parts_b, share, shares, piece, sources)
        if of_a.ids.size and of_b.ids.size and of_a.ids.dtype != of_b.ids.dtype:
            raise Incomparable(f"field {kind.key!r}: IDs are signed in one run and unsigned in the other")
        m = match_ids(of_a, of_b)
        sums["matched"] += m.ids.size
        sums["unequal"] += m.unequal
        for name, ids in (("lost", m.lost), ("born", m.born)):
            sums[name] += ids.size
            named[f"{name}_ids"] = sorted([*named[f"{name}_ids"], *ids[:_FEW].tolist()])[:_FEW]
        for name, ids in (("doubled_a", m.doubled_a), ("doubled_b", m.doubled_b)):
            sums[name] += ids.size
            named["doubled_ids"] = sorted({*named["doubled_ids"], *ids[:_FEW].tolist()})[:_FEW]
        if m.ids.size:
            rank_a = ranks[0][np.searchsorted(ends[0], m.rows_a, "right")]
            rank_b = ranks[1][np.searchsorted(ends[1], m.rows_b, "right")]
            sums["moved"] += int((rank_a != rank_b).sum())
        in_order = in_order and bool((m.rows_a == m.rows_b).all())
        for name in fields:
            _compare_share(kind, name, m, found[name], settings, step, piece, sources)
    result = [_identity(kind, step, sums, named, totals, time.perf_counter() - begin)]
    for name in fields:
        ref = next(own[name] for _, _, own in (*kind.parts_a, *kind.parts_b) if name in own)
        total = found[name].total
        if total is None:
            continue
        like = FieldRef(
            name, ref.dtype, ref.byte_order, (sums["matched"], *ref.user_shape[1:]), False, label_a
        )
        shaped = facts_of(
            total,
            like,
            (step, 0),
            _decision(kind, name, settings, step),
            "matched by ID",
            time.perf_counter() - begin,
        )
        shaped.key, shaped.first_id, shaped.max_abs_id = kind.key, found[name].first_id, found[name].max_id
        cut = lambda index: None if index is None else tuple(index[1:])  # noqa: E731
        shaped.first_index, shaped.max_abs_index = cut(shaped.first_index), cut(shaped.max_abs_index)
        shaped.max_rel_index = cut(shaped.max_rel_index)
        result.append(shaped)
    notes = []
    if not in_order or sums["moved"]:
        where = f", {sums['moved']} of them on another rank" if sums["moved"] else ""
        notes.append(
            f"{_at(step)}{kind.key}: {sums['matched']} particles lie in another order{where}: matched by ID"
        )
    if sums["doubled_a"] or sums["doubled_b"]:
        said = ", ".join(map(str, named["doubled_ids"]))
        notes.append(
            f"{_at(step)}{kind.key}: {sums['doubled_a']} IDs of {label_a} and {sums['doubled_b']} of {label_b} come several "
            f"times ({said}, …): compared in the order in which they lie"
        )
    return result, problems, notes


def _at(step: int | None) -> str:
    return "" if step is None else f"step {step}: "


def _ref(kind: Particles, name: str) -> FieldRef:
    return next(own[name] for _, _, own in (*kind.parts_a, *kind.parts_b) if name in own)


def _width(kind: Particles, name: str) -> int:
    """Items a row."""
    return math.prod(_ref(kind, name).user_shape[1:])


def _item(kind: Particles, name: str) -> int:
    return _ref(kind, name).itemsize


def _decision(kind: Particles, name: str, settings: Settings, step: int | None) -> Decision:
    of_a = next((own[name] for _, _, own in kind.parts_a if name in own), _ref(kind, name))
    of_b = next((own[name] for _, _, own in kind.parts_b if name in own), of_a)
    return settings.decision(of_a, of_b, step)


def _compare_share(
    kind: Particles,
    name: str,
    m: _Matched,
    found: _Found,
    settings: Settings,
    step: int | None,
    piece: int,
    sources: dict,
) -> None:
    ref = _ref(kind, name)
    width, storage = _width(kind, name), storage_dtype(ref.dtype)
    decision = _decision(kind, name, settings, step)
    gathered = []
    for parts, rows in ((kind.parts_a, m.rows_a), (kind.parts_b, m.rows_b)):
        refs = [(own.get(name), ids.items) for _, ids, own in parts]
        gathered.append(
            np.ascontiguousarray(gather_rows(refs, rows, width, piece, sources, storage)).reshape(-1)
        )
    made = [
        _core.memory_source(ref.dtype, x.size, x.ctypes.data, storage.itemsize, False, x) for x in gathered
    ]
    r = _core.compare(
        made[0], None, 0, made[1], None, 0, **decision.arguments(), method="direct", threads=settings.threads
    )
    read = sum(x.nbytes for x in gathered)
    r["stages"]["elements"]["bytes_read"] = read
    found.add(r, m.ids, width * (2 if ref.dtype in ("c64", "c128") else 1))


def _identity(
    kind: Particles, step: int | None, sums: dict, named: dict, totals: list[int], seconds: float
) -> FieldComparison:
    """The entry of the key itself: particles that only one run has differ."""
    ref = next(iter((*kind.parts_a, *kind.parts_b)))[1]
    different = sums["lost"] + sums["born"] + sums["unequal"]
    lost, born = named["lost_ids"], named["born_ids"]
    first_a = first_b = None
    if lost or born:
        if not born or (lost and lost[0] <= born[0]):
            first_a = lost[0]
        else:
            first_b = born[0]
    elif sums["unequal"]:
        first_a = first_b = named["doubled_ids"][0]
    first = first_a if first_a is not None else first_b
    elements = sums["matched"] + different
    return FieldComparison(
        step=step, rank=0, field=kind.key, dtype=ref.dtype, shape=(elements,), atol=0.0, rtol=0.0, elements=elements,
        bytes=max(totals) * ref.itemsize, different=different, infinite=different, first_index=() if different else None,
        first_a=first_a, first_b=first_b, first_abs_diff=math.inf if different else None,
        max_abs_diff=math.inf if different else 0.0, max_abs_diff_is_bound=False, max_abs_diff_at_least=0.0,
        max_abs_index=() if different else None, max_abs_a=first_a, max_abs_b=first_b,
        max_rel_diff=math.inf if different else 0.0, max_rel_index=() if different else None, rms_diff=0.0,
        rms_diff_all=0.0, rms_diff_all_is_bound=False,
        histogram=[sums["matched"], *[0] * (len(_core.histogram_edges()) + 1), different],
        histogram_different=[0, *[0] * (len(_core.histogram_edges()) + 1), different],
        elements_read=elements, proven_by_tree=0, proven_by_cells=[0] * 8, cell=0.0, coarse_cell=0.0, chunks=0,
        stages={"elements": {"ran": True, "chunks_in": 0, "chunks_out": 0,
                             "bytes_read": sum(totals) * ref.itemsize, "seconds": seconds}},
        method="direct", reason="matched by ID", io="", seconds=seconds, key=kind.key, first_id=first,
        max_abs_id=first, particles={**sums, **named, "of_a": totals[0], "of_b": totals[1]},
    )  # fmt: skip


def order_note(
    a: Mapping[str, FieldRef], b: Mapping[str, FieldRef], differing: Sequence[str], memory: int
) -> str | None:
    """What to say where an ID field of two places differs and holds the same IDs: the order changed."""
    for name in differing:
        x, y = a.get(name), b.get(name)
        if x is None or y is None or x.dtype not in _INTEGERS or x.items != y.items or len(x.shape) != 1:
            continue
        known = name.rsplit("/", 1)[-1].lower() in _KNOWN_IDS or (
            x.key is not None and x.key in (name, x.own_name)
        )
        if not known or x.items * 16 > memory:
            continue
        ids = [np.sort(_read(ref, 0, ref.items, {})) for ref in (x, y)]
        if bool((ids[0] == ids[1]).all()):
            return f"{name!r} holds the same IDs in another order: --key {name} compares particles by ID"
    return None
