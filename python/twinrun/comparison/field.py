"""What is known of one field of two runs, after it was compared."""

from __future__ import annotations

import array
import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .. import _core
from ..formats.texts import SUFFIX
from ..runs.fields import FieldRef
from ..runs.subject import Place
from .merge import Found
from .settings import Decision
from .words import field_repr

__all__ = [
    "MOST_TURNS",
    "NO_VALUE",
    "FieldComparison",
    "FieldGroup",
    "JoinedFields",
    "bytes_read_by",
    "distance",
    "facts_of",
    "finite_scalars",
    "place_text",
    "with_mask",
]


def place_text(place: Place) -> str:
    """'step 500, rank 0'."""
    step, rank = place
    return f"rank {rank}" if step is None else f"step {step}, rank {rank}"


@dataclass(repr=False)
class FieldComparison:
    """What is known of one field at one step and rank.

    >>> field = twinrun.compare({"x": np.zeros(4)}, {"x": np.array([0, 0, 1, 0.0])}, atol=0.5).fields[0]
    >>> field.elements, field.different, field.max_abs_diff, field.place()
    (4, 1, 1.0, 'rank 0, x[2]')

    `a` is the first-named run. Elements are scalars: a complex number counts twice, for its real and
    imaginary part. Indices are those of the array as the user knows it; the first difference is the first row
    by row, however the elements are stored.

    Attributes
    ----------
    step : int or None
        The step; None where the run has none.
    rank : int
        The rank; 0 where `ranks` is set.
    field, dtype, shape : str, str, tuple of int
        Name, element type and shape of the field.
    atol, rtol : float
        The tolerance that was used.
    elements : int
        Scalars of the field.
    bytes : int
        Bytes of the field in one run.
    different : int
        Scalars with |a - b| > atol + rtol |a|. Where `different_is_exact` is False, at least so many.
    infinite : int
        Scalars that differ, and whose difference counts as infinite: a NaN against a number, an infinity
        against anything else, or two numbers whose distance no float64 holds (1e308 and -1e308).
    first_index : tuple of int or None
        Where the first difference is.
    first_a, first_b : float, int, str or None
        The values there; texts for people where `kind` is set.
    first_abs_diff : float, int or None
        |a - b| there.
    max_abs_diff : float or None
        The largest |a - b|. Where `max_abs_diff_is_bound`, it is an upper bound; None where not even a bound
        is known. With a period, it is the exact distance at `max_abs_index`. Which element that is follows
        from a - b as float64 rounds it, and the verdict does not: an `atol` of this size may be too small.
        `max_rel_diff`, `rms_diff` and `rms_diff_all` are of such rounded differences altogether.
    max_abs_diff_is_bound : bool
        True: a part was proven without reading, and `max_abs_diff` bounds it.
    max_abs_diff_at_least : float
        A lower bound of the largest |a - b|.
    max_abs_index : tuple of int or None
        Where the largest |a - b| is, if that is known.
    max_abs_a, max_abs_b : float, int or None
        The values there.
    max_rel_diff : float or None
        The largest |a - b| / |a| of the scalars that differ; None where `different_is_exact` is False.
    max_rel_index : tuple of int or None
        Where it is.
    rms_diff : float or None
        Root mean square of |a - b| over the scalars that differ, without those of an infinite difference;
        None where `different_is_exact` is False. The squares are float64: of differences above 1e154 or below
        1e-154 it is infinite, 0 or not precise.
    rms_diff_all : float or None
        The same over all scalars, without those of an infinite difference, also where the tolerance allows
        it. Where `rms_diff_all_is_bound`, it is an upper bound.
    rms_diff_all_is_bound : bool
        True: a part was proven without reading.
    histogram, histogram_different : list of int
        Counts of |a - b| over the scalars that were read, and over those that differ. The edges are
        `histogram_edges` in a report's JSON.
    elements_read : int
        Scalars that were read and compared.
    proven_by_tree : int
        Scalars that equal coarse digests prove to agree.
    proven_by_cells : list of int
        Entry c: scalars that fine digests and residues prove to lie c cells apart.
    cell, coarse_cell : float
        Widths of a fine and of a coarse cell; 0 where the rule has none.
    chunks : int
        Chunks of the field.
    stages : dict of str to dict
        For each stage: chunks_in, chunks_out, bytes_read, seconds, and whether it ran.
    method : str
        The method that was used.
    reason : str
        Why this method, where the user may wonder.
    io : str
        How data was read.
    seconds : float
        Time of this field, in seconds.
    warnings : list of str
        Such as a tolerance below what the type can resolve.
    device, device_reason : str
        Where sketches and elements were compared ('cpu', 'cuda:0', 'cuda:0-3'), and why there.
    device_seconds : float
        Time of copies to devices and of their kernels, in seconds, added up over devices.
    ulps : int or None
        Representable values between a and b that still count as the same.
    period : tuple of float
        Lengths of the circles that values lie on, by component; empty on a line.
    key : str or None
        The field with the IDs by which rows were matched.
    first_id, max_abs_id : int or None
        With `key`: the particle of the first, and of the largest difference. Indices are then those of the
        component.
    particles : dict or None
        In the entry of the key itself, what became of the particles: the counts matched, lost, born,
        doubled_a, doubled_b and moved (to another rank; None where nothing was read), and the first ten of
        lost_ids, born_ids and doubled_ids.
    ranks : int or None
        Of how many ranks' parts the field was put together, where the runs cut it differently.
    kind : str or None
        What elements are that are no numbers, such as 'text'. |a - b| is then None or 0. 'value': where the
        first element differs, or that with the largest |a - b|, one run has no value.
    first_ranks : (int, int) or None
        With `ranks`: the rank of each run that holds the element of `first_index`.
    global_shape, global_offset : tuple of int or None
        Where the field is a part of a global array, which both runs cut alike: the shape of that array, and
        where the part begins in it. Indices are those of the part, see `global_index`.
    types : tuple of str or None
        The types of the field in both runs, where they differ and values were compared. `dtype` and `bytes`
        are then those of the numbers that were compared.
    different_is_exact : bool
        False: exact digests differ, and the data is not at hand. `different` then counts the chunks whose
        digests differ: at least one element of each does. Which ones, and by how much, is not known.
    first_chunk : (tuple of int, tuple of int) or None
        Then the first and the last index of the first of these chunks, in the order in which elements are
        stored.
    same : bool
        True where no element differs; `bool(field)` gives it.
    """

    step: int | None
    rank: int
    field: str
    dtype: str
    shape: tuple[int, ...]
    atol: float
    rtol: float
    elements: int
    bytes: int
    different: int
    infinite: int
    first_index: tuple[int, ...] | None
    first_a: float | int | str | None
    first_b: float | int | str | None
    first_abs_diff: float | int | None
    max_abs_diff: float | None
    max_abs_diff_is_bound: bool
    max_abs_diff_at_least: float
    max_abs_index: tuple[int, ...] | None
    max_abs_a: float | int | None
    max_abs_b: float | int | None
    max_rel_diff: float | None
    max_rel_index: tuple[int, ...] | None
    rms_diff: float | None
    rms_diff_all: float | None
    rms_diff_all_is_bound: bool
    histogram: list[int]
    histogram_different: list[int]
    elements_read: int
    proven_by_tree: int
    proven_by_cells: list[int]
    cell: float
    coarse_cell: float
    chunks: int
    stages: dict[str, dict]
    method: str
    reason: str
    io: str
    seconds: float
    warnings: list[str] = dataclasses.field(default_factory=list)
    device: str = "cpu"
    device_reason: str = ""
    device_seconds: float = 0.0
    ulps: int | None = None
    period: tuple[float, ...] = ()
    key: str | None = None
    first_id: int | None = None
    max_abs_id: int | None = None
    particles: dict | None = None
    ranks: int | None = None
    kind: str | None = None
    types: tuple[str, str] | None = None
    global_shape: tuple[int, ...] | None = None
    global_offset: tuple[int, ...] | None = None
    first_ranks: tuple[int, int] | None = None
    different_is_exact: bool = True
    first_chunk: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    _unit: str | None = dataclasses.field(default=None, repr=False, compare=False)  # of dates and time spans

    @property
    def same(self) -> bool:
        """No element differs."""
        return self.different == 0

    def __bool__(self) -> bool:
        return self.same

    def __repr__(self) -> str:
        return field_repr(self)

    def _repr_html_(self) -> str:
        from .notebook import field_html

        return field_html(self)

    def global_index(self, index: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """An index of this field as one of the global array that it is a part of.

        Parameters
        ----------
        index : tuple of int or None
            Such as `first_index` or `max_abs_index`.

        Returns
        -------
        tuple of int or None
            The index there; the same where the field is no part of an array.
        """
        if index is None or self.global_offset is None:
            return index
        offset = (*self.global_offset, *[0] * len(index))
        return tuple(i + o for i, o in zip(index, offset, strict=False))

    def place(self) -> str:
        """Where the field first differs, as text: 'step 500, rank 0, x[1234, 2]', 'x[0] to [1023]'.

        Returns
        -------
        str
            The place of the first difference, or of the field where nothing differs. It is that of a chunk
            where no data is at hand. Indices are those of the global array where the field is a part of one.
        """
        return self._place(True)

    def _place(self, with_rank: bool) -> str:
        """The place, with the rank or without."""
        parts = [] if self.step is None else [f"step {self.step}"]
        if with_rank and self.key is None and self.ranks is None:
            parts.append(f"rank {self.rank}")
        at = [] if self.first_id is None else [f"id {self.first_id}"]
        at += map(str, self.global_index(self.first_index) or ())
        index = "[" + ", ".join(at) + "]" if at else ""
        if self.first_ranks is not None and self.first_index:
            a, b = self.first_ranks
            index += f" (rank {a})" if a == b else f" (rank {a} of the first run, {b} of the second)"
        if self.first_chunk is not None:
            index = self._chunk_text()
        return ", ".join([*parts, self.field + index])

    def _chunk_text(self) -> str:
        """The first chunk that differs: '[0] to [1023]'; '' for one without an index."""
        # Of texts the last index is that of a digest's word.
        end = -1 if self.kind is not None and self.field.endswith(SUFFIX) else None
        ends = [(self.global_index(i) or ())[:end] for i in self.first_chunk or ()]
        first, last = (f"[{', '.join(map(str, i))}]" for i in ends)
        return "" if first == "[]" else first if first == last else f"{first} to {last}"

    def _counted(self, sign: str = "≥ ") -> str:
        """How many elements differ: '3', '≥ 3' where there may be more."""
        return ("" if self.different_is_exact else sign) + f"{self.different:,}"


class FieldGroup:
    """Many fields of one place, each made when it is asked for, by any thread.

    count: of fields. different: the numbers of those that differ, ascending. bytes: of one run.
    bytes_read: of both runs.
    numbers: of each, its field pair among all of the place; None: they are all pairs of the place.
    """

    def __init__(
        self,
        count: int,
        different: Sequence[int],
        bytes: int,
        bytes_read: int,
        numbers: Sequence[int] | None = None,
    ) -> None:
        self._count = count
        self._different = different
        self.bytes = bytes
        self.bytes_read = bytes_read
        self.numbers = numbers
        self._made: dict[int, FieldComparison] = {}

    def make(self, at: int) -> FieldComparison:
        """The comparison of a field."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, at: int) -> FieldComparison:
        made = self._made.get(at)
        if made is None:
            made = self._made.setdefault(at, self.make(at))
        return made

    @property
    def same(self) -> bool:
        """Nothing differs."""
        return not self._different

    @property
    def different(self) -> Sequence[int]:
        """The numbers of those that differ, ascending."""
        return self._different

    def all(self) -> list[FieldComparison]:
        """All, in their order."""
        return [self[at] for at in range(self._count)]

    def differing(self) -> Iterator[FieldComparison]:
        """Those that differ, in their order."""
        return (self[at] for at in self._different)

    def __getstate__(self) -> dict:
        """What was made is made again elsewhere."""
        return {**self.__dict__, "_made": {}}


class JoinedFields(FieldGroup):
    """The fields of several parts of a place, in the order of their field pairs.

    parts: groups with numbers, and single fields after the number of their field pair.
    """

    def __init__(self, parts: Sequence[tuple[int, FieldComparison | FieldGroup]]) -> None:
        self._parts = [part for _, part in parts]
        entries: list[tuple[int, int, int]] = []  # number, part, its number in the part
        for part, (number, one) in enumerate(parts):
            if isinstance(one, FieldGroup):
                assert one.numbers is not None
                entries += [(found, part, at) for at, found in enumerate(one.numbers)]
            else:
                entries.append((number, part, 0))
        entries.sort()
        self._part = array.array("I", [part for _, part, _ in entries])
        self._at = array.array("Q", [at for _, _, at in entries])
        differ = [
            {*one.different} if isinstance(one, FieldGroup) else set[int]() if one.same else {0}
            for one in self._parts
        ]
        different = [
            number
            for number, (part, at) in enumerate(zip(self._part, self._at, strict=True))
            if at in differ[part]
        ]
        super().__init__(
            len(entries),
            different,
            sum(one.bytes for one in self._parts),
            sum(bytes_read_by(one) for one in self._parts),
        )

    def make(self, at: int) -> FieldComparison:
        part = self._parts[self._part[at]]
        return part[self._at[at]] if isinstance(part, FieldGroup) else part


def bytes_read_by(found: FieldComparison | FieldGroup) -> int:
    """Bytes that comparing them read, of both runs."""
    if isinstance(found, FieldGroup):
        return found.bytes_read
    return sum(stage["bytes_read"] for stage in found.stages.values())


def distance(a: float | int, b: float | int) -> float:
    """|a - b| of numbers that may have two types, rounded once; infinite for a NaN or an infinity."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.inf
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b)
    from fractions import Fraction  # few comparisons need it

    return float(abs(Fraction(a) - Fraction(b)))


# Values on a circle that are farther apart, in turns, are compared as on a line: no float64 says in
# which turn they are. The core rounds turns to whole numbers, and then has kMostTurns.
MOST_TURNS = 2.0**52 - 0.5
# In place of an element that a run has none of: the number that is stored there means nothing.
NO_VALUE = "no value"


def _abs_diff(a: float | int | None, b: float | int | None, period: float = 0.0) -> float | int | None:
    if a is None or b is None:
        return None
    if isinstance(a, int) and isinstance(b, int):
        return abs(a - b)
    straight = distance(a, b)
    # As the core has it: so many turns apart, numbers are compared as on a line.
    if not period or not straight / period < MOST_TURNS:
        return straight
    from fractions import Fraction  # few comparisons need it

    around = (Fraction(a) - Fraction(b)) % Fraction(period)
    return float(min(around, Fraction(period) - around))


def _stages(found: Found) -> dict[str, dict]:
    return {
        name: {
            "ran": stage.ran,
            "chunks_in": stage.chunks_in,
            "chunks_out": stage.chunks_out,
            "bytes_read": stage.bytes_read,
            "seconds": stage.seconds,
        }
        for name, stage in found.stages.items()
    }


def finite_scalars(scalars: int, infinite: int, histogram: Sequence[int]) -> int:
    """How many scalars have a finite |a - b|, of which alone root mean squares are made.

    A tolerance may allow an infinite one: `infinite` counts those that differ, the last bin of the histogram
    all. Of particles that only one run has, no histogram is made.
    """
    return scalars - max(infinite, histogram[-1] if histogram else 0)


def facts_of(
    found: Found, a: FieldRef, place: Place, decision: Decision, reason: str, seconds: float
) -> FieldComparison:
    """What was found as a FieldComparison."""
    r = found.result
    finite = r.different - r.infinite
    # Root mean square over everything: exact where all was read, else what the proofs allow.
    sum_squares = r.sum_squares_of_all(_core.Tolerance(decision.atol, decision.rtol))
    total_finite = finite_scalars(r.scalars, r.infinite, r.histogram)
    rms_all = (
        None if math.isnan(sum_squares) else math.sqrt(sum_squares / total_finite) if total_finite else 0.0
    )
    index = lambda scalar: None if scalar is None else a.index(scalar)  # noqa: E731
    first = found.first
    first_a, first_b = found.first_values
    chunk = None if r.unread_begin is None or r.unread_end is None else (r.unread_begin, r.unread_end)
    made = FieldComparison(
        step=place[0],
        rank=place[1],
        field=a.name,
        dtype=a.dtype,
        shape=a.user_shape,
        atol=decision.atol,
        rtol=decision.rtol,
        elements=r.scalars,
        bytes=a.items * a.itemsize,
        different=r.different,
        infinite=r.infinite,
        first_index=index(first),
        first_a=first_a,
        first_b=first_b,
        first_abs_diff=None,
        max_abs_diff=None if math.isnan(r.max_abs) else r.max_abs,
        max_abs_diff_is_bound=r.max_abs_is_bound,
        max_abs_diff_at_least=r.max_abs_at_least,
        max_abs_index=index(found.max_abs_at),
        max_abs_a=r.max_abs_a,
        max_abs_b=r.max_abs_b,
        max_rel_diff=r.max_rel_different if chunk is None else None,
        max_rel_index=index(found.max_rel_different_at),
        rms_diff=None
        if chunk is not None
        else math.sqrt(r.sum_squares_different / finite)
        if finite
        else 0.0,
        rms_diff_all=rms_all,
        rms_diff_all_is_bound=r.scalars != r.scalars_read and r.cell >= 0,
        histogram=r.histogram,
        histogram_different=r.histogram_different,
        elements_read=r.scalars_read,
        proven_by_tree=r.proven_by_tree,
        proven_by_cells=r.proven_by_cells,
        cell=max(r.cell, 0.0),
        coarse_cell=r.coarse_cell,
        chunks=r.chunks,
        stages=_stages(found),
        method=r.method,
        reason=reason or r.reason,
        io=r.io,
        seconds=seconds,
        warnings=r.warnings,
        device=r.device,
        device_reason=r.device_reason,
        device_seconds=r.device_seconds,
        ulps=decision.ulps,
        period=decision.period,
        kind=a.kind,
        different_is_exact=not r.unread_different,
        first_chunk=None if chunk is None else (a.index(chunk[0]), a.index(chunk[1] - 1)),
        _unit=a.unit,
    )
    if a.kind is not None:
        return _without_distances(made)
    if found.valueless:
        return dataclasses.replace(_without_distances(made), kind="value")
    if a.name.endswith(SUFFIX):  # digests of texts, whose numbers say nothing either
        return dataclasses.replace(_without_distances(made), kind="text")
    if a.unit is not None:
        kind = "date" if a.unit.startswith("M") else "time span"
        return dataclasses.replace(_without_distances(made), kind=kind)
    made.first_abs_diff = _abs_diff(r.first_a, r.first_b, decision.period_of(first))
    return _exact_on_circles(made, decision, first, found.max_abs_at)


def with_mask(field: FieldComparison, mask: FieldComparison) -> FieldComparison:
    """A field that was matched by ID, without distances where the runs lack different values. mask: of it."""
    if not field.different or not mask.different:
        return field
    first = [field.first_a, field.first_b]
    if (field.first_id, field.first_index) == (mask.first_id, mask.first_index):
        lacks = mask.first_a, mask.first_b
        first = [NO_VALUE if lack else value for lack, value in zip(lacks, first, strict=True)]
    return dataclasses.replace(
        _without_distances(field), kind="value", first_a=first[0], first_b=first[1], first_abs_diff=None,
        max_abs_id=None,
    )  # fmt: skip


def _exact_on_circles(
    made: FieldComparison, decision: Decision, first: int | None, largest: int | None
) -> FieldComparison:
    """With the exact distance of the element that is farthest off, out of the two that are known: the core
    finds it by distances that are made of a - b as float64 rounds it.
    """
    if not any(decision.period) or made.max_abs_diff is None or made.max_abs_diff_is_bound:
        return made
    at_largest = _abs_diff(made.max_abs_a, made.max_abs_b, decision.period_of(largest))
    at_first = made.first_abs_diff
    if at_largest is not None and (at_first is None or at_largest >= at_first):
        found = float(at_largest)
        return dataclasses.replace(made, max_abs_diff=found, max_abs_diff_at_least=found)
    a, b = made.first_a, made.first_b
    if at_first is None or not made.different or isinstance(a, str) or isinstance(b, str):
        return made
    found = float(at_first)
    return dataclasses.replace(
        made, max_abs_diff=found, max_abs_diff_at_least=found, max_abs_index=made.first_index,
        max_abs_a=a, max_abs_b=b,
    )  # fmt: skip


def _without_distances(field: FieldComparison) -> FieldComparison:
    """The comparison of codes, whose distance means nothing."""
    known = None if field.different else 0.0
    none = 0.0 if field.different_is_exact else None
    nothing = [0] * len(field.histogram)
    return dataclasses.replace(
        field, max_abs_diff=known, max_abs_diff_is_bound=False, max_abs_diff_at_least=0.0, max_abs_index=None,
        max_abs_a=None, max_abs_b=None, max_rel_diff=none, max_rel_index=None, rms_diff=none, rms_diff_all=known,
        histogram=nothing, histogram_different=[*nothing],
    )  # fmt: skip
