"""The comparison of one field of two runs, and what is known after it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .. import _core
from ..errors import Incomparable, TwinrunError
from ..formats.texts import never_tolerated
from ..runs.index import FLOATING, build, field_plan
from ..runs.order import columns_of, row_major_place
from ..runs.subject import FieldRef, Place
from .merge import Found, merged
from .tolerances import Periods, Rule, Tolerances

__all__ = [
    "Decision",
    "FieldComparison",
    "FieldPart",
    "Settings",
    "compare_part",
    "divisible",
    "facts_of",
    "place_text",
    "put_together",
]

# Why metadata is built for one side: it reads one run's data, where a direct comparison reads both.
_BUILT = "only one run had metadata: the other's was built on the fly, reading one run's data instead of both"
# Lists of integers up to this length are compared as a whole where they differ: they may be IDs in another
# order.
_WHOLE_LIST = 1 << 26
_SMALL = 1 << 20  # bytes of a field: reading both runs' takes less than building metadata
_NOT_WORTH_IT = "only one run had metadata, and the field is small: every element is compared"
_DIRECT = "no metadata at hand: every element is compared, which reads no more than building metadata would"


def place_text(place: Place) -> str:
    """'step 500, rank 0'."""
    step, rank = place
    return f"rank {rank}" if step is None else f"step {step}, rank {rank}"


@dataclass
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
        Scalars with |a - b| > atol + rtol |a|.
    infinite : int
        Scalars whose difference counts as infinite: a NaN against a number, or an infinity against anything
        else.
    first_index : tuple of int or None
        Where the first difference is.
    first_a, first_b : float, int, str or None
        The values there; texts for people where `kind` is set.
    first_abs_diff : float, int or None
        |a - b| there.
    max_abs_diff : float or None
        The largest |a - b|. Where `max_abs_diff_is_bound`, it is an upper bound; None where not even a bound
        is known.
    max_abs_diff_is_bound : bool
        True: a part was proven without reading, and `max_abs_diff` bounds it.
    max_abs_diff_at_least : float
        A lower bound of the largest |a - b|.
    max_abs_index : tuple of int or None
        Where the largest |a - b| is, if that is known.
    max_abs_a, max_abs_b : float, int or None
        The values there.
    max_rel_diff : float
        The largest |a - b| / |a| of the scalars that differ.
    max_rel_index : tuple of int or None
        Where it is.
    rms_diff : float
        Root mean square of |a - b| over the scalars that differ.
    rms_diff_all : float or None
        The same over all scalars. Where `rms_diff_all_is_bound`, it is an upper bound.
    rms_diff_all_is_bound : bool
        True: a part was proven without reading.
    histogram, histogram_different : list of int
        Counts of |a - b| over the scalars that were read, and over those that differ. The edges are
        `twinrun.comparison.histogram_edges()`.
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
        What elements are that are no numbers, such as 'text'. |a - b| is then None or 0.
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
    max_rel_diff: float
    max_rel_index: tuple[int, ...] | None
    rms_diff: float
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

    def __post_init__(self) -> None:
        # The first two texts that differ, of a field of their digests: for the verdict's line.
        self._texts: tuple[str, str] | None = None

    @property
    def same(self) -> bool:
        """No element differs."""
        return self.different == 0

    def __bool__(self) -> bool:
        return self.same

    def _repr_html_(self) -> str:
        from .notebook import field_html

        return field_html(self)

    def place(self) -> str:
        """Where the field first differs, as text: 'step 500, rank 0, x[1234, 2]'.

        Returns
        -------
        str
            The place of the first difference, or of the field where nothing differs.
        """
        parts = [] if self.step is None else [f"step {self.step}"]
        if self.key is None and self.ranks is None:
            parts.append(f"rank {self.rank}")
        at = [] if self.first_id is None else [f"id {self.first_id}"]
        at += map(str, self.first_index or ())
        index = "[" + ", ".join(at) + "]" if at else ""
        return ", ".join([*parts, self.field + index])


@dataclass(frozen=True)
class Decision:
    """What counts as different in one field: |a - b| > atol + rtol |a|, and more than `ulps` representable
    values apart.

    period: lengths of circles by component; component_stride: scalars from one component to the next.
    """

    atol: float = 0.0
    rtol: float = 0.0
    ulps: int | None = None
    period: tuple[float, ...] = ()
    component_stride: int = 1
    equal_nan: bool = True

    def period_of(self, scalar: int | None) -> float:
        """Length of the circle that a scalar lies on; 0 for a line."""
        if scalar is None or not self.period:
            return 0.0
        return self.period[scalar // self.component_stride % len(self.period)]

    def arguments(self) -> dict:
        """The rule as keyword arguments of the core."""
        return {
            "atol": self.atol,
            "rtol": self.rtol,
            "nan_equal": self.equal_nan,
            "ulps": self.ulps,
            "period": list(self.period),
            "component_stride": self.component_stride,
        }


@dataclass
class Settings:
    """The settings of one `compare` call.

    tolerances: rules by field and step; the others apply where no rule matches.
    """

    atol: float | None = None
    rtol: float | None = None
    equal_nan: bool = True
    method: str = "auto"
    integers: bool = False
    residue_bits: int = 4
    chunk_bytes: int = 4096
    threads: int = 0
    memory: int = 1 << 30
    io: str = "auto"
    cache: str = "auto"
    device: str = "auto"
    devices: list[int] = dataclasses.field(default_factory=list)
    progress: Callable[[str, int, int], None] | None = None
    ulps: int | None = None
    tolerances: Tolerances = dataclasses.field(default_factory=Tolerances)
    periods: Periods = dataclasses.field(default_factory=Periods)
    periodic: dict[str, tuple[float, ...]] = dataclasses.field(
        default_factory=dict
    )  # fields that were compared on circles

    def rule(self, name: str, step: int | None) -> Rule | None:
        """The rule of a field; its `skip` leaves the field out."""
        return self.tolerances.find(name, step)

    def decision(self, a: FieldRef, b: FieldRef, step: int | None) -> Decision:
        """The tolerance of a field: from its rule, else from the settings, else from its metadata, else
        equality.
        """
        rule = self.rule(a.name, step)
        if a.kind is not None or b.kind is not None:  # no numbers: they are equal or different
            return Decision()
        equal_nan = self.equal_nan if rule is None or rule.equal_nan is None else rule.equal_nan
        if a.dtype not in FLOATING:
            tolerant = self.integers if rule is None else rule.integers or self.integers
            if not tolerant or never_tolerated(a.name):
                return Decision(equal_nan=equal_nan)
        ulps = self.ulps if rule is None else rule.ulps
        if rule is not None and not (rule.atol is None and rule.rtol is None and rule.ulps is None):
            atol, rtol = rule.atol or 0.0, rule.rtol or 0.0
        elif self.atol is not None or self.rtol is not None or self.ulps is not None:
            atol, rtol, ulps = self.atol or 0.0, self.rtol or 0.0, self.ulps
        else:
            made = {(r.facts.atol, r.facts.rtol) for r in (a, b) if r.facts is not None}
            if len(made) > 1:
                raise Incomparable(
                    f"field {a.name!r}: the runs were captured for different tolerances",
                    fix="say which with --atol and --rtol",
                )
            atol, rtol = made.pop() if made else (0.0, 0.0)
        period = rule.period if rule is not None and rule.period else self.periods.of(a.name, a.user_shape)
        if a.dtype not in FLOATING:
            return Decision(atol, rtol, None, (), 1, equal_nan)
        return Decision(atol, rtol, ulps, *self._circles(a, period), equal_nan)

    def _circles(self, a: FieldRef, period: tuple[float, ...]) -> tuple[tuple[float, ...], int]:
        """The lengths, and scalars from one component to the next."""
        if not any(period):
            return (), 1
        if a.dtype in ("c64", "c128"):
            raise Incomparable(f"field {a.name!r}: complex numbers have no period")
        self.periodic[a.name] = period
        if len(period) == 1:
            return period, 1
        shape = a.user_shape
        if len(shape) < 2 or shape[-1] != len(period):
            raise Incomparable(
                f"field {a.name!r} has shape {list(shape)}, and {len(period)} periods were given",
                fix="its last axis must be the components",
            )
        return period, a.items // shape[-1] if a.fortran_order else 1


def _abs_diff(a: float | int | None, b: float | int | None, period: float = 0.0) -> float | int | None:
    if a is None or b is None:
        return None
    if isinstance(a, int) and isinstance(b, int):
        return abs(a - b)
    if math.isnan(a) or math.isnan(b) or math.isinf(a) or math.isinf(b):
        return math.inf
    return abs(math.remainder(a - b, period)) if period else abs(a - b)


@dataclass(frozen=True)
class _Digests:
    """Settings of metadata, named as FieldFacts names them."""

    atol: float
    rtol: float
    residue_bits: int
    chunk_bytes: int
    digest: str


def _build_on_the_fly(
    ref: FieldRef, like: _core.FieldFacts | _Digests, settings: Settings, stack: contextlib.ExitStack
) -> tuple[_core.Metadata, dict]:
    """Metadata of a field in a temporary file, with the settings of `like`."""
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="twinrun-"))
    target = os.path.join(folder, "field.twm")
    plan = field_plan(
        ref,
        None,
        atol=like.atol,
        rtol=like.rtol,
        residue_bits=like.residue_bits,
        chunk_bytes=like.chunk_bytes,
        digest=like.digest,
    )
    start = time.perf_counter()
    facts = build(
        target,
        [ref],
        [],
        lambda _: plan,
        threads=settings.threads,
        memory=settings.memory,
        io="auto" if settings.io == "gds" else settings.io,
        cache=settings.cache,
        durable=False,
    )
    stage = {
        "ran": True,
        "chunks_in": 0,
        "chunks_out": 0,
        "bytes_read": facts.bytes_read,
        "seconds": time.perf_counter() - start,
    }
    return _core.Metadata(target), stage


def _asked_for(decision: Decision, settings: Settings) -> _Digests:
    """Settings to build metadata with, where no run has any."""
    digest = "published" if settings.method == "published" else "linear"
    return _Digests(decision.atol, decision.rtol, settings.residue_bits, settings.chunk_bytes, digest)


@dataclass
class FieldPart:
    """The result of comparing some ranges of a field.

    Parts that cover the field become its comparison (`put_together`).

    found: the core's result. first: its first scalar. like: name, type and shape of the field, without data.
    ranks: of how many ranks' parts the field was put together, else None.
    """

    found: Found
    first: int
    like: FieldRef
    place: Place
    decision: Decision
    reason: str
    seconds: float
    ranks: int | None = None


@dataclass
class _Side:
    """A run's field, as the core compares it."""

    source: _core.Source | None
    metadata: _core.Metadata | None
    field: int  # of the metadata


def put_together(parts: Sequence[FieldPart]) -> FieldComparison:
    """Joins the results of ranges that cover a field. Seconds of all parts are added up."""
    parts = sorted(parts, key=lambda part: part.first)
    first = parts[0]
    found = merged([part.found for part in parts], lambda at: row_major_place(first.like, at))
    if found.scalars != first.like.items * (2 if first.like.dtype in ("c64", "c128") else 1):
        # a defect of twinrun; nothing then counts as compared
        raise RuntimeError("a part of a field was lost")
    seconds = sum(part.seconds for part in parts)
    result = facts_of(found, first.like, first.place, first.decision, first.reason, seconds)
    result.ranks = first.ranks
    return result


def divisible(a: FieldRef, b: FieldRef, settings: Settings) -> bool:
    """Whether ranges of a field can be compared separately, each at the cost of its share.

    They cannot where metadata must be built first, or where elements are decoded one after another.
    """
    have = [ref.metadata is not None for ref in (a, b)]
    builds = settings.method in ("staged", "published") or (settings.method == "auto" and any(have))
    if builds and not all(have):
        return False
    if a.dtype not in FLOATING and len(a.shape) == 1 and a.items <= _WHOLE_LIST:
        return False
    return all(ref.reads_anywhere for ref in (a, b))


def _without_data(settings: Settings) -> str:
    """What to do where the data of a field is needed and missing."""
    if settings.method in ("direct", "published"):
        return f"leave out --method {settings.method}, or compare with the data at hand"
    return "compare with the data at hand: metadata alone compares arrays of one order, and not with --no-metadata"


def compare_part(
    a: FieldRef,
    b: FieldRef,
    place: Place,
    settings: Settings,
    ranges: Sequence[tuple[int, int]] | None = None,
) -> FieldPart:
    """Compares ranges of a `divisible` field, or all of any field.

    ranges: (first scalar, count), as `_core.compare` takes them.

    Raises Incomparable, Stale and other TwinrunErrors, with the place in their text.
    """
    start = time.perf_counter()
    decision = settings.decision(a, b, place[0])
    reason = ""
    built: dict | None = None
    with contextlib.ExitStack() as stack:
        sides: list[_Side] = []
        for ref in (a, b):
            side = _Side(ref.source(settings.cache), ref.metadata, ref.metadata_field)
            sides.append(side)
            # Digests of the other kind do not fit the requested method.
            unfit = ref.metadata is not None and ref.digest != "published"
            if settings.method == "published" and unfit and side.source is not None:
                side.metadata = None
        have = [s.metadata is not None for s in sides]
        at_hand = all(s.source is not None for s in sides)
        if settings.method == "auto" and have[0] != have[1] and at_hand and a.items * a.itemsize <= _SMALL:
            for side in sides:
                side.metadata = None
            have, reason = [False, False], _NOT_WORTH_IT
        for ref, side in zip((a, b), sides, strict=True):
            if side.source is None and (side.metadata is None or settings.method in ("direct", "published")):
                if side.metadata is not None and settings.method == "published" and ref.digest == "published":
                    continue
                raise Incomparable(
                    f"{place_text(place)}: field {ref.name!r}: only its metadata is at hand, and its data is needed",
                    where=ref.where,
                    fix=_without_data(settings),
                )
        on_the_fly = settings.method in ("staged", "published") or (settings.method == "auto" and any(have))
        in_memory = a.memory is not None and b.memory is not None and settings.method == "auto"
        if settings.method != "direct" and on_the_fly and not all(have) and not in_memory:
            known: _core.FieldFacts | _Digests | None = next(
                (r.facts for r, side in zip((a, b), sides, strict=True) if side.metadata is not None), None
            )
            if known is None:
                known = _asked_for(decision, settings)
            for side, ref in zip(sides, (a, b), strict=True):
                if side.metadata is None:
                    side.metadata, stage = _build_on_the_fly(ref, known, settings, stack)
                    side.field = 0
                    built = stage if built is None else {k: built[k] + stage[k] for k in built}
            reason = _BUILT if any(have) else "metadata was built on the fly, as requested"
        elif settings.method == "auto" and not any(have):
            reason = reason or _DIRECT
        progress = None
        if settings.progress is not None:
            progress = functools.partial(settings.progress, f"{place_text(place)} {a.name}")
        try:
            compared = _core.compare(
                sides[0].source,
                sides[0].metadata,
                sides[0].field,
                sides[1].source,
                sides[1].metadata,
                sides[1].field,
                **decision.arguments(),
                method=settings.method,
                threads=settings.threads,
                memory=settings.memory,
                io=settings.io,
                cache=settings.cache,
                progress=progress,
                device=settings.device,
                devices=settings.devices,
                ranges=ranges,
                columns=columns_of(a),
            )
        except TwinrunError as e:
            raise type(e)(f"{place_text(place)}: field {a.name!r}: {e}") from None
    r = Found.of(compared)
    if built is not None:
        r.stages["build"] = built
    like = FieldRef(a.name, a.dtype, a.byte_order, a.shape, a.fortran_order, a.where, kind=a.kind or b.kind)
    if like.kind is not None:
        _tell(r, a, b)
    first = 0 if not ranges else ranges[0][0]
    return FieldPart(r, first, like, place, decision, reason, time.perf_counter() - start)


def _tell(found: Found, a: FieldRef, b: FieldRef) -> None:
    """Replaces codes by readable elements."""
    if found.first is None:
        return
    for key, ref in (("first_a", a), ("first_b", b)):
        if ref.tell is not None:
            with contextlib.suppress(TwinrunError):
                setattr(found, key, ref.tell(found.first))


def facts_of(
    r: Found, a: FieldRef, place: Place, decision: Decision, reason: str, seconds: float
) -> FieldComparison:
    """What was found as a FieldComparison."""
    atol, rtol = decision.atol, decision.rtol
    cells = r.proven_by_cells
    cell, coarse = r.cell, r.coarse_cell
    read, different = r.scalars_read, r.different
    finite = different - r.infinite
    at_least = max(r.max_abs_read, _core.least_unread(cells, cell))
    # Root mean square over everything: exact where all was read, else what the proofs allow.
    unread = r.scalars - read
    by_tree = r.proven_by_tree
    sum_squares = _core.sum_squares_of_all(r.sum_squares, by_tree, cells, cell, coarse, atol, rtol)
    total_finite = r.scalars - r.infinite
    rms_all = (
        None if math.isnan(sum_squares) else math.sqrt(sum_squares / total_finite) if total_finite else 0.0
    )
    max_abs = r.max_abs
    index = lambda scalar: None if scalar is None else a.index(scalar)  # noqa: E731
    if a.kind is not None:  # codes: their distance means nothing
        max_abs, at_least, rms_all = (math.nan if different else 0.0), 0.0, None if different else 0.0
        r = dataclasses.replace(
            r, max_abs=max_abs, max_abs_at=None, max_abs_a=None, max_abs_b=None, max_abs_is_bound=False,
            max_rel_different=0.0, max_rel_different_at=None, sum_squares_different=0.0,
            histogram=[0] * len(r.histogram), histogram_different=[0] * len(r.histogram),
        )  # fmt: skip
    return FieldComparison(
        step=place[0],
        rank=place[1],
        field=a.name,
        dtype=a.dtype,
        shape=a.user_shape,
        atol=atol,
        rtol=rtol,
        elements=r.scalars,
        bytes=a.items * a.itemsize,
        different=different,
        infinite=r.infinite,
        first_index=index(r.first),
        first_a=r.first_a,
        first_b=r.first_b,
        first_abs_diff=None
        if a.kind is not None
        else _abs_diff(r.first_a, r.first_b, decision.period_of(r.first)),
        max_abs_diff=None if math.isnan(max_abs) else max_abs,
        max_abs_diff_is_bound=r.max_abs_is_bound,
        max_abs_diff_at_least=at_least,
        max_abs_index=index(r.max_abs_at),
        max_abs_a=r.max_abs_a,
        max_abs_b=r.max_abs_b,
        max_rel_diff=r.max_rel_different,
        max_rel_index=index(r.max_rel_different_at),
        rms_diff=math.sqrt(r.sum_squares_different / finite) if finite else 0.0,
        rms_diff_all=rms_all,
        rms_diff_all_is_bound=bool(unread) and cell >= 0,
        histogram=r.histogram,
        histogram_different=r.histogram_different,
        elements_read=read,
        proven_by_tree=by_tree,
        proven_by_cells=cells,
        cell=max(cell, 0.0),
        coarse_cell=coarse,
        chunks=r.chunks,
        stages=r.stages,
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
    )
