"""Every element that differs, a stretch at a time: both runs are opened again, and only fields that differ
are read.

A comparison keeps none of them, and memory stays bounded here, however many there are.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import _core
from ..arithmetic import any_values
from ..errors import Incomparable, Stale, TwinrunError
from ..formats.element_types import scalar_values, scalars_of, storage_dtype
from ..runs.fields import FieldRef
from ..runs.order import read_by_row
from ..runs.particles import Particles, find_particles
from ..runs.parts import give_places, parts_of_both
from ..runs.values import in_common_type, particles_by_values
from .again import Again, Gone
from .attributes import under_one_name
from .field import MOST_TURNS, FieldComparison, distance, place_text
from .ids import Matched, gather_rows, ids_of_share, match_ids
from .matching import StepMatch, match_fields, match_steps
from .settings import Decision
from .tolerances import parse_steps

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

if TYPE_CHECKING:
    from .result import Comparison

__all__ = ["Differences", "abs_diff", "differences"]

_WINDOW = 4 << 20  # bytes of a field that are compared at a time
_ROWS = 1 << 18  # differences that are returned at a time, at most
_BYTES_AN_ID = 112  # of IDs, places and orders, both runs, while a share of them is matched


@dataclass
class Differences:
    """Some of the elements in which one field differs.

    >>> a, b = {"x": np.zeros(4)}, {"x": np.array([0, 2, 0, 3.0])}
    >>> part = next(twinrun.compare(a, b).differences())
    >>> part.field.field, part.index.tolist(), part.b.tolist()
    ('x', [[1], [3]], [2.0, 3.0])

    Attributes
    ----------
    field : FieldComparison
        What the comparison knows of the field.
    index : numpy.ndarray
        (n, dimensions): where the elements are. Complex numbers have a last 0 (real part) or 1. With a key
        these are the components, without the particle.
    global_index : numpy.ndarray
        The same in the global array, where the field is a part of one.
    ids : numpy.ndarray or None
        (n,): with a key, the IDs of the particles.
    a, b : numpy.ndarray
        (n,): the values, in the type of the field; float32 for bf16.
    abs_diff : numpy.ndarray
        (n,) of float64: |a - b|; infinite where a NaN or an infinity meets something else.
    in_a, in_b : numpy.ndarray or None
        (n,) of bool: which run has the particle. None where all particles are in both.
    rows_a : numpy.ndarray or None
        (n,): rows of the first run, numbered through `parts_a`, where rows have IDs.
    parts_a : sequence of (int, dict)
        (rank, fields) of the first run at this place. They are open until the next stretch is asked for.
    count : int
        n, how many elements these are.
    """

    field: FieldComparison
    index: np.ndarray
    ids: np.ndarray | None
    a: np.ndarray
    b: np.ndarray
    abs_diff: np.ndarray
    in_a: np.ndarray | None = None
    in_b: np.ndarray | None = None
    rows_a: np.ndarray | None = None
    parts_a: Sequence[tuple[int, Mapping[str, FieldRef]]] = ()

    @property
    def global_index(self) -> np.ndarray:
        """`index` in the global array that the field is a part of; the same where it is none."""
        offset = self.field.global_offset
        if offset is None or self.ids is not None:
            return self.index
        width = self.index.shape[1]
        return self.index + np.array((*offset, *[0] * width)[:width], np.int64)

    @property
    def count(self) -> int:
        """How many elements these are."""
        return int(self.abs_diff.size)


def differences(
    comparison: Comparison,
    wanted: Callable[[FieldComparison], bool] | None = None,
    more: Callable[[FieldComparison, int], bool] | None = None,
) -> Iterator[Differences]:
    """Every element that differs, in stretches: by step, rank and field, within a field row by row; particles
    by shares of their IDs.

    wanted: which fields; all by default. more: is called before this many bytes are read for a field; False
    means that it is enough. Otherwise each field gives as many elements as the comparison counted. Raises
    Stale where the data changed since, and what reading raises.
    """
    fields = [f for f in comparison.fields if not f.same and (wanted is None or wanted(f))]
    if not fields:
        return
    for f in fields:
        if not f.different_is_exact:
            raise Incomparable(
                f"{place_text((f.step, f.rank))}: field {f.field!r}: digests say that elements differ, and not which",
                where=comparison.b,
                fix="keep the data of both runs",
            )
    again = comparison._again
    if again is None:
        raise Gone("this comparison does not say what it was made of", fix="compare again")
    walk = _Walk(again, more)
    found: dict[int, int] = {id(f): 0 for f in fields}
    for at, some in _by_place(fields):
        for part in walk.place(at, some):
            found[id(part.field)] += part.count
            yield part
        for f in some:
            if found[id(f)] != f.different and id(f) not in walk.enough:
                raise Stale(
                    f"{place_text((f.step, f.rank))}: field {f.field!r}: {found[id(f)]} elements differ, "
                    f"and {f.different} when it was compared",
                    where=comparison.b,
                    fix="the data was changed since: compare again",
                )


def _by_place(fields: Iterable[FieldComparison]) -> Iterator[tuple[tuple, list[FieldComparison]]]:
    """Fields that are opened together: those of a rank, of a global array, or of one kind of particles."""
    groups: dict[tuple, list[FieldComparison]] = {}
    for f in fields:
        kind = (
            ("key", f.key) if f.key is not None else ("whole",) if f.ranks is not None else ("rank", f.rank)
        )
        groups.setdefault((f.step, *kind), []).append(f)
    yield from groups.items()


class _Walk:
    """Both runs, open."""

    def __init__(self, again: Again, more: Callable[[FieldComparison, int], bool] | None) -> None:
        self.again, self.more = again, more
        self.enough: set[int] = set()  # fields that were not read to their end
        self.a, self.b = again.open()
        steps = None if again.steps is None else parse_steps(again.steps)
        ranks = None if again.ranks is None else parse_steps(again.ranks, "ranks")
        self.matches = {m.step: m for m in match_steps(self.a, self.b, steps, again.align, ranks).matches}

    def _goes_on(self, f: FieldComparison, size: int) -> bool:
        if id(f) not in self.enough and (self.more is None or self.more(f, size)):
            return True
        self.enough.add(id(f))
        return False

    def place(self, at: tuple, fields: list[FieldComparison]) -> Iterator[Differences]:
        step, kind = at[0], at[1]
        match = self.matches.get(step)
        if match is None:
            raise Stale(f"step {step} is not there any more", where=f"{self.a.label}, {self.b.label}")
        if kind == "rank":
            yield from self._rank(match, at[2], fields)
            return
        with contextlib.ExitStack() as stack:
            sides = tuple(
                [
                    (rank, stack.enter_context(subject.open((s, rank), self.again.use_metadata, False)))
                    for rank in ranks
                ]
                for subject, s, ranks in (
                    (self.a, match.step_a, match.ranks_a),
                    (self.b, match.step_b, match.ranks_b),
                )
            )
            if kind == "key":
                yield from self._particles(match, sides, at[2], fields)
                return
            for f in fields:
                held = []
                for side, label in zip(sides, (self.a.label, self.b.label), strict=True):
                    held.append([(rank, refs[f.field]) for rank, refs in side if f.field in refs])
                    if not held[-1]:
                        raise _missing(f, label)
                held = [side[f.field] for side in give_places([{f.field: side} for side in held])]
                if self.again.settings.by_values:
                    held = in_common_type(held)
                x, y = parts_of_both(f.field, held, (self.a.label, self.b.label), self.again.settings.cache)
                for of_run in (x, y):
                    of_run.check_data()
                yield from self._pair(f, x.field(), y.field(), ())

    def _rank(self, match: StepMatch, rank: int, fields: list[FieldComparison]) -> Iterator[Differences]:
        ranks = match.ranks_a if match.step_a is not None else match.ranks_b
        if rank not in ranks:
            raise _missing(fields[0], self.a.label)
        at = ranks.index(rank)
        rank_a, rank_b = match.ranks_a[at], match.ranks_b[at]
        metadata = self.again.use_metadata
        with (
            self.a.open((match.step_a, rank_a), metadata, False) as in_a,
            self.b.open((match.step_b, rank_b), metadata, False) as in_b,
        ):
            if self.again.globs is None:
                in_a, in_b = under_one_name(in_a, in_b)
            found = match_fields(
                self.a, self.b, in_a, in_b, lambda n: True, self.again.globs is not None, (match.step, rank),
                self.again.settings.by_values,
            )  # fmt: skip
            pairs = {x.name: (x, y) for x, y in found.pairs}
            for f in fields:
                if f.field not in pairs:
                    raise _missing(f, self.b.label)
                yield from self._pair(f, *pairs[f.field], [(rank_a, in_a)])

    def _source(self, f: FieldComparison, ref: FieldRef) -> _core.Source:
        source = ref.source(self.again.settings.cache)
        if source is None:
            raise Incomparable(f"field {f.field!r}: only its metadata is available", where=ref.where)
        return source

    def _pair(
        self, f: FieldComparison, x: FieldRef, y: FieldRef, parts_a: Sequence[tuple[int, Mapping]]
    ) -> Iterator[Differences]:
        """Differences of two fields whose elements lie in the same order, row by row."""
        x, y = read_by_row(x), read_by_row(y)
        decision = self.again.settings.decision(x, y, f.step)
        rule = decision.rule()
        source_a, source_b = (self._source(f, ref) for ref in (x, y))
        pair = scalars_of(x.dtype)
        window = max(1, _WINDOW // x.itemsize)
        left = f.different
        for first in range(_first_item(f, x), x.items, window):
            if left <= 0:
                break
            count = min(window, x.items - first)
            if not self._goes_on(f, 2 * count * x.itemsize):
                break
            scalars = _core.list_differences(source_a, source_b, first, count, rule)
            left -= scalars.size
            for part in _pieces(scalars):
                begin, end = int(part[0]) // pair, int(part[-1]) // pair + 1
                at = (part - np.uint64(begin * pair)).astype(np.int64)
                of_a, of_b = (
                    scalar_values(_core.read_source(s, begin, end - begin), ref.dtype)[at]
                    for s, ref in ((source_a, x), (source_b, y))
                )
                yield Differences(
                    f,
                    _indices(x.shape, part, pair),
                    None,
                    of_a,
                    of_b,
                    abs_diff(of_a, of_b, part, decision),
                    parts_a=parts_a,
                )

    def _particles(
        self, match: StepMatch, sides: tuple, key: str, fields: list[FieldComparison]
    ) -> Iterator[Differences]:
        assert self.again.key is not None
        kind = find_particles(sides, self.again.key).get(key)
        if kind is None or not kind.parts_a or not kind.parts_b:
            raise _missing(fields[0], self.b.label)
        settings = self.again.settings
        if settings.by_values:
            kind = particles_by_values(kind)
        sources: dict[int, _core.Source] = {}
        refs = {f.field: _ref(kind, f.field) for f in fields if f.particles is None}
        widest = max((math.prod(r.user_shape[1:]) * r.itemsize for r in refs.values()), default=8)
        total = sum(ids.items for _, ids, _ in (*kind.parts_a, *kind.parts_b))
        shares = max(1, math.ceil(total * (_BYTES_AN_ID + 2 * widest) / max(settings.memory, 1 << 20)))
        piece = max(1 << 16, settings.memory // 256)
        allowed = [self._goes_on(f, total * 8 * shares) for f in fields]  # each share reads all IDs
        if not all(allowed):
            self.enough.update(id(f) for f in fields)
            return
        for share in range(shares):
            of_a = ids_of_share(kind.parts_a, share, shares, piece, sources)
            of_b = ids_of_share(kind.parts_b, share, shares, piece, sources)
            m = match_ids(of_a, of_b)
            for f in fields:
                if f.particles is not None:
                    yield from _alone(f, of_a.ids, of_b.ids)
                    continue
                ref = refs[f.field]
                row = math.prod(ref.user_shape[1:]) * ref.itemsize
                if self._goes_on(f, total * row // shares):
                    yield from self._rows_of_particles(f, ref, kind, m, piece, sources)

    def _rows_of_particles(
        self,
        f: FieldComparison,
        ref: FieldRef,
        kind: Particles,
        matched: Matched,
        piece: int,
        sources: dict[int, _core.Source],
    ) -> Iterator[Differences]:
        """Differences of the field of particles that both runs have."""
        parts_a = [(rank, own) for rank, _, own in kind.parts_a]
        width, pair = math.prod(ref.user_shape[1:]), scalars_of(ref.dtype)
        storage = storage_dtype(ref.dtype)
        gathered = []
        for parts, rows in ((kind.parts_a, matched.rows_a), (kind.parts_b, matched.rows_b)):
            of = [(own.get(f.field), ids.items) for _, ids, own in parts]
            values = gather_rows(of, rows, width, piece, sources, storage)
            gathered.append(np.ascontiguousarray(values).reshape(-1))
        made = [
            _core.memory_source(ref.dtype, v.size, v.ctypes.data, storage.itemsize, False, v)
            for v in gathered
        ]
        of_a, of_b = (
            next((own[f.field] for _, _, own in parts if f.field in own), ref)
            for parts in (kind.parts_a, kind.parts_b)
        )
        decision = self.again.settings.decision(of_a, of_b, f.step)
        rule = decision.rule()
        flat = [scalar_values(v.view(np.uint8), ref.dtype) for v in gathered]
        window = max(1, _WINDOW // storage.itemsize)
        for first in range(0, gathered[0].size, window):
            count = min(window, gathered[0].size - first)
            scalars = _core.list_differences(made[0], made[1], first, count, rule)
            for part in _pieces(scalars):
                at = part.astype(np.int64)
                rows = at // (width * pair)
                values_a, values_b = (v[at] for v in flat)
                yield Differences(
                    f,
                    _indices(ref.user_shape[1:], part % np.uint64(width * pair), pair),
                    matched.ids[rows],
                    values_a,
                    values_b,
                    abs_diff(values_a, values_b, part, decision),
                    rows_a=matched.rows_a[rows],
                    parts_a=parts_a,
                )


def _missing(f: FieldComparison, label: str) -> TwinrunError:
    return Stale(
        f"{place_text((f.step, f.rank))}: field {f.field!r} is not there any more", where=label,
        fix="the data was changed since: compare again",
    )  # fmt: skip


def _ref(kind: Particles, name: str) -> FieldRef:
    for _, _, own in (*kind.parts_a, *kind.parts_b):
        if name in own:
            return own[name]
    raise Stale(f"field {name!r} is not there any more", fix="the data was changed since: compare again")


def _alone(f: FieldComparison, ids_a: np.ndarray, ids_b: np.ndarray) -> Iterator[Differences]:
    """Particles that only one run has, or that one run has more often: an entry for each without a partner.

    Where the multiplicity of an ID differs, every row counts, as in the comparison: `in_a` and `in_b` say how
    often.
    """
    if not ids_a.size or not ids_b.size:  # a run without particles has no type of IDs
        kind = ids_a.dtype if ids_a.size else ids_b.dtype
        ids_a, ids_b = ids_a.astype(kind), ids_b.astype(kind)
    unique_a, times_a = np.unique(ids_a, return_counts=True)
    unique_b, times_b = np.unique(ids_b, return_counts=True)
    every = np.union1d(unique_a, unique_b)
    times: np.ndarray = np.zeros((2, every.size), np.int64)
    times[0, np.searchsorted(every, unique_a)] = times_a
    times[1, np.searchsorted(every, unique_b)] = times_b
    # An ID that only one run has counts once, whatever its multiplicity.
    both = (times > 0).all(axis=0)
    times[:, ~both] = times[:, ~both] > 0
    odd = times[0] != times[1]
    every, times = every[odd], times[:, odd]
    most = times.max(axis=0, initial=0)
    ids = np.repeat(every, most)
    turn = np.arange(ids.size) - np.repeat(np.cumsum(most) - most, most)
    in_a, in_b = turn < np.repeat(times[0], most), turn < np.repeat(times[1], most)
    for first in range(0, ids.size, _ROWS):
        part = slice(first, first + _ROWS)
        n = ids[part].size
        yield Differences(
            f, np.empty((n, 0), np.int64), ids[part], ids[part], ids[part], np.full(n, np.inf),
            in_a=in_a[part], in_b=in_b[part],
        )  # fmt: skip


def _pieces(scalars: np.ndarray) -> Iterator[np.ndarray]:
    for first in range(0, scalars.size, _ROWS):
        yield scalars[first : first + _ROWS]


def _first_item(f: FieldComparison, ref: FieldRef) -> int:
    """Where the first difference lies: nothing before it needs to be read."""
    index = f.first_index or ()
    at = index[: len(ref.shape)]
    if len(at) != len(ref.shape) or ref.user_shape != tuple(f.shape):
        return 0
    if not at:
        return 0
    return int(np.ravel_multi_index(at, ref.shape))


def _indices(shape: tuple[int, ...], scalars: np.ndarray, pair: int) -> np.ndarray:
    """(n, dimensions) indices as the user knows them."""
    items, part = np.divmod(scalars.astype(np.int64), pair)
    columns = list(np.unravel_index(items, shape)) if shape else []
    if pair == 2:
        columns.append(part)
    return np.stack(columns, axis=1).astype(np.int64) if columns else np.empty((scalars.size, 0), np.int64)


@any_values
def abs_diff(a: np.ndarray, b: np.ndarray, scalars: np.ndarray, decision: Decision) -> np.ndarray:
    """|a - b| as float64, on the circle where there is one."""
    if a.dtype.kind in "iu" and a.dtype.kind == b.dtype.kind:
        high, low = np.maximum(a, b), np.minimum(a, b)
        kind = np.int64 if a.dtype.kind == "i" else np.uint64
        high, low = (v.astype(kind).view(np.uint64) for v in (high, low))
        return (high - low).astype(np.float64)  # modulo 2^64, where every difference fits
    if "i" in (a.dtype.kind, b.dtype.kind) or "u" in (a.dtype.kind, b.dtype.kind):
        exact = (distance(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True))
        return np.fromiter(exact, np.float64, a.size)
    with np.errstate(invalid="ignore", over="ignore"):
        x, y = a.astype(np.float64), b.astype(np.float64)
        d = np.abs(x - y)
        if any(decision.period):
            component = (scalars // np.uint64(decision.component_stride)).astype(np.int64) % len(
                decision.period
            )
            length = np.array(decision.period)[component]
            turns = np.divide(d, length, where=length > 0, out=np.full_like(d, np.inf))
            # Remainders are exact. What x - y loses is far less than x - y, and may be much on the
            # circle.
            u, v = np.fmod(x, length), np.fmod(y, length)
            d = np.where(turns < MOST_TURNS, _around(u, v, length), d)
    return np.where(np.isfinite(x) & np.isfinite(y), d, np.inf)


def _around(u: np.ndarray, v: np.ndarray, length: np.ndarray) -> np.ndarray:
    """|u - v| round circles of these lengths, for |u| and |v| below them; the exact distance, rounded."""
    difference = u - v
    other = difference - u
    lost = (u - (difference - other)) - (v + other)  # of the subtraction: its sum with `difference` is exact
    shortest = np.abs(difference)
    for turn in (-2, -1, 1, 2):
        # Where this is the shortest way, the subtraction of whole turns is exact.
        shortest = np.minimum(shortest, np.abs((difference - turn * length) + lost))
    return shortest
