"""Particles: rows matched by their IDs, whatever their order, rank or file.

IDs are matched in passes over shares of them (by a hash), so that memory stays bounded. In each pass the IDs
of both runs are read and sorted, and the core compares the rows of every field in the order of IDs. An ID
that occurs several times has no unique partner: such rows are compared in the order in which they lie, where
both runs have it with the same multiplicity, and count as different where they do not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from .. import _core
from ..errors import Incomparable, TwinrunError
from ..formats.element_types import INTEGERS, scalars_of, storage_dtype
from ..runs.fields import FieldRef
from ..runs.particles import Particles, read_items
from ..words import counted
from .field import FieldComparison, facts_of
from .ids import Matched, gather_rows, ids_of_share, match_ids, nobody
from .merge import Found, RowPlace, Values, merged, with_places
from .settings import Decision, Settings
from .sums import TwoSums, why_not

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

__all__ = ["circles_of", "common_fields", "compare_particles", "order_note"]

_KNOWN_IDS = (
    "id",
    "ids",
    "particleids",
    "particle_ids",
    "pid",
    "global_id",
)  # for the note that the order changed
_FEW = 10  # IDs that a report names
_NUMBERS = 1 << 20  # IDs whose sums are made at a time
_BYTES_A_ROW = 56  # of IDs, places and orders, both runs, while a pass matches them


@dataclass(frozen=True)
class _Pass:
    """How rows are read and compared.

    piece: elements that are read at a time. sources: of fields, once opened.
    """

    settings: Settings
    step: int | None
    piece: int
    sources: dict[int, _core.Source]


@dataclass
class _Fates:
    """What became of the particles, over all shares of their IDs.

    moved: to another rank; None: unknown. unequal: rows of IDs whose multiplicity differs. …_ids:
    the first few of them.
    """

    matched: int = 0
    lost: int = 0
    born: int = 0
    doubled_a: int = 0
    doubled_b: int = 0
    moved: int | None = 0
    unequal: int = 0
    lost_ids: list[int] = field(default_factory=list)
    born_ids: list[int] = field(default_factory=list)
    doubled_ids: list[int] = field(default_factory=list)

    def add(self, m: Matched, moved: int) -> None:
        """Adds a share. moved: how many of its matched rows lie on another rank."""
        self.matched += m.ids.size
        self.unequal += m.unequal
        self.lost += m.lost.size
        self.born += m.born.size
        self.doubled_a += m.doubled_a.size
        self.doubled_b += m.doubled_b.size
        self.moved = (self.moved or 0) + moved
        self.lost_ids = _few([*self.lost_ids, *np.unique(m.lost)[:_FEW].tolist()])
        self.born_ids = _few([*self.born_ids, *np.unique(m.born)[:_FEW].tolist()])
        both = (*m.doubled_a[:_FEW].tolist(), *m.doubled_b[:_FEW].tolist())
        self.doubled_ids = _few({*self.doubled_ids, *both})

    def first_ids(self) -> tuple[int | None, int | None]:
        """The smallest ID that only one run has, or has more often, in the run that has it."""
        lost, born = self.lost_ids, self.born_ids
        if lost or born:
            in_a = not born or bool(lost and lost[0] <= born[0])
            return (lost[0], None) if in_a else (None, born[0])
        if self.unequal:
            return self.doubled_ids[0], self.doubled_ids[0]
        return None, None


def _few(ids: Iterable[int]) -> list[int]:
    return sorted(ids)[:_FEW]


class _Found:
    """What the passes over shares of the IDs found of one field."""

    def __init__(self, sums: TwoSums | None) -> None:
        self.sums = sums
        self.total: Found | None = None
        self.by_tree = 0  # scalars in buckets of equal sums

    def add(self, found: Found, by_tree: int = 0) -> None:
        """Adds the result of a pass. by_tree: scalars in buckets of equal sums, which it did not read."""
        self.total = found if self.total is None else merged([self.total, found])
        self.by_tree += by_tree


def common_fields(
    kind: Particles, chosen: Callable[[str], bool], label_a: str, label_b: str, step: int | None
) -> tuple[list[str], list[TwinrunError]]:
    """Fields that every part of both runs has, with the same type; and problems for the others.

    chosen: whether to compare a field of this name.
    """
    problems: list[TwinrunError] = []
    parts = [*((label_a, p) for p in kind.parts_a), *((label_b, p) for p in kind.parts_b)]
    good = []
    for name in dict.fromkeys(n for _, (_, _, own) in parts for n in own if chosen(n)):
        rows: dict[tuple[str, tuple[int, ...]], str] = {}  # a unit or a kind makes another type
        missing = None
        for label, (rank, ids, own) in parts:
            if name in own:
                ref = own[name]
                rows.setdefault(
                    (ref.unit or ref.kind or ref.dtype, ref.user_shape[1:]), f"rank {rank} of {label}"
                )
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


def circles_of(
    kind: Particles, fields: Sequence[str], settings: Settings, step: int | None
) -> dict[str, tuple[float, ...]]:
    """The fields whose values lie on circles, and the lengths of these."""
    found = {name: settings.period(*_of_both(kind, name), step) for name in fields}
    return {name: period for name, period in found.items() if period}


def compare_particles(
    kind: Particles,
    fields: Sequence[str],
    step: int | None,
    settings: Settings,
    label_a: str,
    label_b: str,
) -> tuple[list[FieldComparison], list[TwinrunError], list[str]]:
    """Compares one kind of particles of one step: first the key itself (lost, born, doubled particles), then
    each field.

    fields: see `common_fields`. Returns comparisons, problems (fields that could not be compared), notes.
    """
    begin = time.perf_counter()
    problems: list[TwinrunError] = []
    types = [
        sorted({ids.unit or ids.dtype for _, ids, _ in parts if ids.items})
        for parts in (kind.parts_a, kind.parts_b)
    ]
    if all(types) and types[0] != types[1]:
        said = f"IDs are {', '.join(types[0])} in {label_a}, {', '.join(types[1])} in {label_b}"
        problems.append(Incomparable(f"{_at(step)}field {kind.key!r}: {said}", fix="types must agree"))
    sources: dict[int, _core.Source] = {}
    totals = [sum(ids.items for _, ids, _ in parts) for parts in (kind.parts_a, kind.parts_b)]
    found = {name: _Found(_sums_by_id(kind, name, settings, step)) for name in fields}
    if _proven_by_sums(kind, found, settings, step, totals):
        return _all_proven(kind, found, settings, step, totals, begin, label_a), problems, []
    by_sums = any(f.sums is not None for f in found.values())
    widest = max((_width(kind, n) * _item(kind, n) for n in fields), default=8)
    needed = sum(totals) * (_BYTES_A_ROW + 2 * widest)
    shares = max(1, math.ceil(needed / max(settings.memory, 1 << 20)))
    piece = max(1 << 16, settings.memory // 256)
    fates = _Fates()
    in_order = True
    ranks_of = _ranks_of_rows(kind.parts_a), _ranks_of_rows(kind.parts_b)
    how = _Pass(settings, step, piece, sources)
    for share in range(shares):
        of_a = ids_of_share(kind.parts_a, share, shares, piece, sources, by_sums)
        of_b = ids_of_share(kind.parts_b, share, shares, piece, sources, by_sums)
        if of_a.ids.size and of_b.ids.size and of_a.ids.dtype != of_b.ids.dtype:
            raise problems[0]  # signed in one run and unsigned in the other
        m = match_ids(of_a, of_b)
        fates.add(m, int((ranks_of[0](m.rows_a) != ranks_of[1](m.rows_b)).sum()) if m.ids.size else 0)
        in_order = in_order and bool((m.rows_a == m.rows_b).all())
        for name in fields:
            found[name].add(*_compare_share(kind, name, m, found[name].sums, how))
    result = [_identity(kind, step, fates, totals, time.perf_counter() - begin)]
    paired = not (fates.lost or fates.born or fates.doubled_a or fates.doubled_b)
    for name in fields:
        total, sums = found[name].total, found[name].sums
        if total is None:
            continue
        # A row without a partner is in sums of its run alone.
        error = (
            sums.contradicted(total, f"{_at(step)}field {name!r}") if sums is not None and paired else None
        )
        if error is not None:
            problems.append(error)
        else:
            result.append(_shaped(kind, name, found[name], settings, step, fates.matched, begin, label_a))
    return result, problems, list(_notes(f"{_at(step)}{kind.key}", fates, in_order, label_a, label_b))


def _ranks_of_rows(parts: Sequence[tuple]) -> Callable[[np.ndarray], np.ndarray]:
    """A function that gives the ranks on which rows lie. parts: (rank, IDs, …) in the order of rows."""
    ends = np.cumsum([ids.items for _, ids, _ in parts])
    ranks = np.array([rank for rank, _, _ in parts])
    return lambda rows: ranks[np.searchsorted(ends, rows, "right")]


def _notes(what: str, fates: _Fates, in_order: bool, label_a: str, label_b: str) -> Iterator[str]:
    """What a reader should know of the matching by ID."""
    if not in_order or fates.moved:
        where = f", {fates.moved} of them on another rank" if fates.moved else ""
        yield f"{what}: {fates.matched} particles lie in another order{where}: matched by ID"
    if fates.doubled_a or fates.doubled_b:
        said = ", ".join(map(str, fates.doubled_ids))
        yield (
            f"{what}: {counted(fates.doubled_a, 'ID')} of {label_a} and {fates.doubled_b} of {label_b} with several "
            f"rows each ({said}, …): compared in the order in which they lie"
        )


def _shaped(
    kind: Particles,
    name: str,
    found: _Found,
    settings: Settings,
    step: int | None,
    rows: int,
    begin: float,
    label: str,
) -> FieldComparison:
    """The result of a field as a FieldComparison. rows: how many were matched."""
    ref, total = _ref(kind, name), found.total
    assert total is not None
    if found.sums is not None:
        total = found.sums.result(total, rows * _scalars(kind, name), found.by_tree)
    like = FieldRef(name, ref.dtype, ref.byte_order, (rows, *ref.user_shape[1:]), False, label, kind=ref.kind)
    like.unit = ref.unit
    shaped = facts_of(
        with_places(total, lambda place: place.scalar),
        like,
        (step, 0),
        _decision(kind, name, settings, step),
        "matched by ID" if found.sums is None else "matched by ID: by sums of digests",
        time.perf_counter() - begin,
    )
    shaped.key = kind.key
    if ref.kind is not None:  # codes: their elements are not looked up
        shaped.first_a = shaped.first_b = None
    shaped.first_id = None if total.first is None else total.first.id
    shaped.max_abs_id = None if total.max_abs_at is None else total.max_abs_at.id
    cut = lambda index: None if index is None else tuple(index[1:])  # noqa: E731
    shaped.first_index, shaped.max_abs_index = cut(shaped.first_index), cut(shaped.max_abs_index)
    shaped.max_rel_index = cut(shaped.max_rel_index)
    return shaped


def _sums_by_id(kind: Particles, name: str, settings: Settings, step: int | None) -> TwoSums | None:
    """The sums of a field (the key itself among them), where every part of both runs has them for
    these IDs.
    """
    parts_a: list[FieldRef] = []
    parts_b: list[FieldRef] = []
    for parts, side in ((parts_a, kind.parts_a), (parts_b, kind.parts_b)):
        for _, ids, own in side:
            ref = ids if name == kind.key else own.get(name)
            if not ids.items or ref is None or not ref.items:
                continue
            if ref.facts is None or ids.facts is None or ref.facts.key != ids.facts.name:
                return None
            parts.append(ref)
    decision = Decision() if name == kind.key else _decision(kind, name, settings, step)
    if why_not(parts_a, parts_b, "ids", decision, settings):
        return None
    return TwoSums(parts_a, parts_b, "ids", decision)


def _proven_by_sums(
    kind: Particles, found: Mapping[str, _Found], settings: Settings, step: int | None, totals: Sequence[int]
) -> bool:
    """Whether sums alone prove that both runs have the same IDs, each once, and that no field differs.

    Consecutive IDs are proven to occur once: their sums are those of the numbers from the smallest to the
    largest, and there are as many rows. (A few IDs add nothing to a sum, 0 among them. The sum of rows that
    share an ID proves nothing about each row.)
    """
    if totals[0] != totals[1] or any(f.sums is None or f.sums.core.count_open for f in found.values()):
        return False
    if any(f.sums is not None and not f.sums.core.held_by_both for f in found.values()):
        return False
    refs = [ids for _, ids, _ in (*kind.parts_a, *kind.parts_b) if ids.items]
    if not refs or any(ref.facts is None or ref.facts.atol or ref.facts.rtol for ref in refs):
        return False
    sums = _sums_by_id(kind, kind.key, settings, step)
    if sums is None or not sums.core.identical:
        return False
    known = [s for ref in refs if ref.facts is not None and (s := ref.facts.sums) is not None]
    if len(known) != len(refs):
        return False
    low = min(own.smallest_id for own in known)
    high = max(own.largest_id for own in known)
    if high - low + 1 != totals[0]:
        return False
    tokens = refs[0].facts is not None and refs[0].facts.outdated  # all are alike: there are sums
    expected = []
    for first in range(low, high + 1, _NUMBERS):
        ids = np.arange(first, min(first + _NUMBERS, high + 1), dtype=np.uint64)
        values = ids.astype(storage_dtype(refs[0].dtype))
        made = _core.sums_of_rows(
            refs[0].dtype, ids, values.ctypes.data, 1, _core.Tolerance(), sums.chunk_bytes, tokens=tokens
        )
        if made is None:
            return False
        expected.append(made)
    return sums.core.is_sum_of(expected)


def _all_proven(
    kind: Particles,
    found: Mapping[str, _Found],
    settings: Settings,
    step: int | None,
    totals: Sequence[int],
    begin: float,
    label: str,
) -> list[FieldComparison]:
    """The comparisons where no element was read. Which particles changed their rank is then unknown."""
    fates = _Fates(matched=totals[0], moved=None)
    identity = _identity(kind, step, fates, totals, time.perf_counter() - begin)
    identity.elements_read, identity.proven_by_tree = 0, totals[0]
    identity.stages["elements"]["bytes_read"] = 0
    identity.method, identity.reason = "staged", "matched by ID: by sums of digests"
    result = [identity]
    for name, f in found.items():
        nothing = _compare_rows(kind, name, nobody(), _Pass(settings, step, 1, {}))
        f.add(nothing, totals[0] * _scalars(kind, name))
        result.append(_shaped(kind, name, f, settings, step, totals[0], begin, label))
    return result


def _at(step: int | None) -> str:
    return "" if step is None else f"step {step}: "


def _ref(kind: Particles, name: str) -> FieldRef:
    return next(own[name] for _, _, own in (*kind.parts_a, *kind.parts_b) if name in own)


def _width(kind: Particles, name: str) -> int:
    """Items of a row."""
    return math.prod(_ref(kind, name).user_shape[1:])


def _scalars(kind: Particles, name: str) -> int:
    """Scalars of a row."""
    return _width(kind, name) * scalars_of(_ref(kind, name).dtype)


def _item(kind: Particles, name: str) -> int:
    return _ref(kind, name).itemsize


def _of_both(kind: Particles, name: str) -> tuple[FieldRef, FieldRef]:
    """A field of each run; where only one has it, of this one twice."""
    of_a = next((own[name] for _, _, own in kind.parts_a if name in own), _ref(kind, name))
    of_b = next((own[name] for _, _, own in kind.parts_b if name in own), of_a)
    return of_a, of_b


def _decision(kind: Particles, name: str, settings: Settings, step: int | None) -> Decision:
    return settings.decision(*_of_both(kind, name), step)


def _compare_share(
    kind: Particles, name: str, m: Matched, sums: TwoSums | None, how: _Pass
) -> tuple[Found, int]:
    """Compares the rows of a share: by sums where they help, else by elements. Returns too how many scalars
    lie in buckets of equal sums.
    """
    if sums is None or not m.ids.size:
        return _compare_rows(kind, name, m, how), 0
    scalars = _scalars(kind, name)
    stride = np.uint64(_core.id_stride(scalars))
    size = np.uint64(sums.core.bucket_scalars)
    starts = m.ids.astype(np.uint64) * stride
    buckets = starts // size
    at = sums.at(buckets)
    # Where an ID has no partner, or occurs several times, sums prove nothing about single rows.
    alone = np.concatenate([m.lost, m.born, m.doubled_a, m.doubled_b]).astype(np.uint64)
    blind = np.isin(buckets, np.unique(alone * stride // size)) if alone.size else np.zeros(at.size, bool)
    is_open = sums.core.open.view(np.bool_)[at]
    by_tree = int((~is_open & ~blind).sum()) * scalars
    asked = is_open & ~blind
    if asked.any() and sums.core.residues_help:
        with sums.reading():
            residues = [
                gather_rows(refs, rows[asked], scalars, how.piece, how.sources, np.dtype(np.uint8), _residues)
                for refs, rows in zip(_refs_of(kind, name), (m.rows_a, m.rows_b), strict=True)
            ]
            sums.settle(starts[asked], scalars, *(np.ascontiguousarray(r).reshape(-1) for r in residues))
    left = sums.core.open.view(np.bool_)[at] | blind
    rest = replace(m, ids=m.ids[left], rows_a=m.rows_a[left], rows_b=m.rows_b[left])
    return _compare_rows(kind, name, rest, how), by_tree


def _refs_of(kind: Particles, name: str) -> list[list[tuple[FieldRef | None, int]]]:
    """(field, its rows) of each part, for both runs."""
    return [[(own.get(name), ids.items) for _, ids, own in parts] for parts in (kind.parts_a, kind.parts_b)]


def _residues(ref: FieldRef, first: int, count: int, sources: dict) -> np.ndarray:
    return _core.read_residues(ref.need_metadata(), ref.metadata_field, first, count)


def _compare_rows(kind: Particles, name: str, m: Matched, how: _Pass) -> Found:
    """Compares the elements of matched rows. Places are (ID, scalar of its row)."""
    ref = _ref(kind, name)
    width, storage = _width(kind, name), storage_dtype(ref.dtype)
    decision = _decision(kind, name, how.settings, how.step)
    gathered = [
        np.ascontiguousarray(gather_rows(refs, rows, width, how.piece, how.sources, storage)).reshape(-1)
        for refs, rows in zip(_refs_of(kind, name), (m.rows_a, m.rows_b), strict=True)
    ]
    made = [
        _core.memory_source(ref.dtype, x.size, x.ctypes.data, storage.itemsize, False, x) for x in gathered
    ]
    compared = _core.compare(
        _core.FieldSide(made[0]),
        _core.FieldSide(made[1]),
        decision.rule(),
        _core.CompareOptions(method="direct", threads=how.settings.threads),
    )
    read = sum(x.nbytes for x in gathered)
    found = Found(compared.with_bytes_of_elements(read))
    scalars = max(_scalars(kind, name), 1)
    return with_places(found, lambda at: RowPlace(int(m.ids[at // scalars]), at % scalars))


def _identity(
    kind: Particles, step: int | None, fates: _Fates, totals: Sequence[int], seconds: float
) -> FieldComparison:
    """The entry of the key itself: particles that only one run has differ."""
    ref = next(iter((*kind.parts_a, *kind.parts_b)))[1]
    different = fates.lost + fates.born + fates.unequal
    first_a, first_b = fates.first_ids()
    first = first_b if first_a is None else first_a
    like = FieldRef(kind.key, ref.dtype, ref.byte_order, (fates.matched + different,), False, "")
    found = Found(_core.result_of_keys(fates.matched, different), readable=Values(first_a, first_b))
    made = facts_of(found, like, (step, 0), Decision(), "matched by ID", seconds)
    place = () if different else None
    read = {"bytes_read": sum(totals) * ref.itemsize, "seconds": seconds}
    return replace(
        made, bytes=max(totals) * ref.itemsize, first_index=place, max_abs_index=place, max_rel_index=place,
        first_abs_diff=math.inf if different else None, max_abs_diff_at_least=0.0, max_abs_a=first_a, max_abs_b=first_b,
        stages={"elements": {"ran": True, "chunks_in": 0, "chunks_out": 0, **read}}, key=kind.key, first_id=first,
        max_abs_id=first, particles={**asdict(fates), "of_a": totals[0], "of_b": totals[1]},
    )  # fmt: skip


def order_note(
    a: Mapping[str, FieldRef], b: Mapping[str, FieldRef], differing: Sequence[str], memory: int
) -> str | None:
    """The note where an ID field of two places differs and holds the same IDs: the order changed."""
    for name in differing:
        x, y = a.get(name), b.get(name)
        if x is None or y is None or x.dtype not in INTEGERS or x.items != y.items or len(x.shape) != 1:
            continue
        known = name.rsplit("/", 1)[-1].lower() in _KNOWN_IDS or (
            x.key is not None and x.key in (name, x.own_name)
        )
        if not known or x.items * 16 > memory:
            continue
        ids = [np.sort(read_items(ref, 0, ref.items, {})) for ref in (x, y)]
        if bool((ids[0] == ids[1]).all()):
            return f"{name!r} holds the same IDs in another order: --key {name} compares particles by ID"
    return None
