"""The comparison of ranges of one field of two runs; together they are the comparison of the field."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .. import _core
from ..errors import Incomparable, TwinrunError
from ..formats.element_types import FLOATING, scalars_of
from ..formats.facts import SUMMARY
from ..runs.fields import FieldRef
from ..runs.order import columns_of
from ..runs.subject import Place
from .field import NO_VALUE, FieldComparison, facts_of, place_text
from .merge import Found, Values, merged
from .settings import Decision, Settings

if TYPE_CHECKING:
    from ..runs.parts import Box

__all__ = [
    "DIRECT",
    "NOT_WORTH_IT",
    "FieldPart",
    "compare_part",
    "compare_stretches",
    "compare_uniform",
    "divisible",
    "is_small",
    "put_together",
]

# Why metadata is built for one side: it reads one run's data, where a direct comparison reads both.
_BUILT = "only one run had metadata: the other's was built on the fly, reading one run's data instead of both"
_BUILT_BOTH = "metadata was built on the fly, as requested"
_BUILT_ALIKE = "one run's exact digests are of an earlier kind: the other's were built on the fly like them, reading one run's data"
_BUILT_ANEW = (
    "one run's exact digests are of an earlier kind: they were built anew on the fly, reading one run's data"
)
# Lists of integers up to this length are compared as a whole where they differ: they may be IDs in
# another order.
_WHOLE_LIST = 1 << 26
# Bytes of a decoded field that are compared at once. The core plans all reads before it begins: it
# holds about 300 bytes for each MiB.
_AT_ONCE = 1 << 36
_SMALL = 1 << 20  # bytes of a field: reading both runs' takes less than building metadata
NOT_WORTH_IT = "only one run had metadata, and the field is small: every element is compared"
DIRECT = _core.NO_METADATA
TWO_TYPES = "numbers of two types: every element is compared"
UNIFORM = "neither run has stored an element: all are the fill value, and one was compared"


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
) -> tuple[_core.Metadata, _core.StageFacts]:
    """Metadata of a field in a temporary file, with the settings of `like`; and what building it took."""
    import tempfile  # rarely needed

    from ..runs.index import build, field_plan

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
        tokens=isinstance(like, _core.FieldFacts) and like.outdated,
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
    stage = _core.StageFacts(bytes_read=facts.bytes_read, seconds=time.perf_counter() - start)
    return _core.Metadata(target), stage


def _asked_for(decision: Decision, settings: Settings) -> _Digests:
    """Settings to build metadata with, where no run has any."""
    digest = "published" if settings.method == "published" else "linear"
    return _Digests(decision.atol, decision.rtol, settings.residue_bits, settings.chunk_bytes, digest)


@dataclass
class FieldPart:
    """The result of comparing some ranges of a field.

    Parts that cover the field become its comparison (`put_together`).

    found: what was found. first: its first scalar. like: name, type and shape of the field, without data.
    ranks: of how many ranks' parts the field was put together, else None. types: of the field in both runs,
    where they differ. boxes: which rank of each run holds what, if it was put together.
    """

    found: Found
    first: int
    like: FieldRef
    place: Place
    decision: Decision
    reason: str
    seconds: float
    ranks: int | None = None
    types: tuple[str, str] | None = None
    boxes: tuple[Sequence[Box], Sequence[Box]] | None = None


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
    found = merged([part.found for part in parts], columns_of(first.like))
    if found.result.scalars != first.like.items * scalars_of(first.like.dtype):
        # a defect of twinrun; nothing then counts as compared
        raise RuntimeError("a part of a field was lost")
    seconds = sum(part.seconds for part in parts)
    result = facts_of(found, first.like, first.place, first.decision, first.reason, seconds)
    result.ranks, result.types = first.ranks, first.types
    place = first.like.user_place
    if place is not None and place[0] != first.like.user_shape:
        result.global_shape, result.global_offset = place
    if first.boxes is not None and result.first_index is not None:
        holders = [_holder(boxes, result.first_index) for boxes in first.boxes]
        result.first_ranks = holders[0], holders[1]
    return result


def _holder(boxes: Sequence[Box], index: tuple[int, ...]) -> int:
    """The rank that holds an element of a global array."""
    return next(
        rank
        for rank, offset, shape in boxes
        if all(o <= i < o + n for i, o, n in zip(index, offset, shape, strict=False))
    )


def types_of(a: FieldRef, b: FieldRef) -> tuple[str, str] | None:
    """The types that two fields have in their runs, where these differ."""
    types = a.type_in_run, b.type_in_run
    return None if types[0] == types[1] else types


def is_small(ref: FieldRef) -> bool:
    """Whether reading both runs' elements of a field takes less than building metadata of one."""
    return ref.items * ref.itemsize <= _SMALL


def divisible(a: FieldRef, b: FieldRef, settings: Settings) -> bool:
    """Whether ranges of a field can be compared separately, each at the cost of its share.

    They cannot where metadata must be built first, or where elements are decoded one after another.
    """
    if a.is_uniform and b.is_uniform:  # one element is compared
        return False
    have = [ref.metadata is not None for ref in (a, b)]
    builds = settings.method in ("staged", "published") or (settings.method == "auto" and any(have))
    if builds and (not all(have) or _of_two_kinds(a, b)):
        return False
    if a.dtype not in FLOATING and len(a.shape) == 1 and a.items <= _WHOLE_LIST:
        return False
    return all(ref.reads_anywhere for ref in (a, b))


def _without_data(settings: Settings, one_type: bool) -> str:
    """What to do where the data of a field is needed and missing. one_type: both runs have it in the same."""
    if not one_type:
        return "compare with the data at hand: digests say nothing of numbers of two types"
    if settings.by_values and settings.method == "direct":  # so are distances
        return "compare with the data at hand: every element is read"
    if settings.method in ("direct", "published"):
        return f"leave out --method {settings.method}, or compare with the data at hand"
    if settings.by_values:
        return "compare with the data at hand, or leave out --cast"
    return "compare with the data at hand, or leave out --no-metadata"


def compare_part(
    a: FieldRef,
    b: FieldRef,
    place: Place,
    settings: Settings,
    ranges: Sequence[tuple[int, int]] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> FieldPart:
    """Compares ranges of a `divisible` field, or all of any field.

    ranges: (first scalar, count), as `_core.compare` takes them. progress: called now and then with the
    place and the field, what is done and the total.

    Raises Incomparable, Stale and other TwinrunErrors, with the place in their text.
    """
    start = time.perf_counter()
    decision = settings.decision(a, b, place[0])
    if a.dtype != b.dtype:  # digests say nothing of numbers of two types
        settings = replace(settings, method="direct")
    with contextlib.ExitStack() as stack:
        sides, reason = _sides(a, b, place, settings)
        if a.dtype != b.dtype:
            reason = TWO_TYPES
        built: _core.StageFacts | None = None
        if _builds(a, b, sides, settings):
            if not reason:
                reason = _BUILT if any(s.metadata is not None for s in sides) else _BUILT_BOTH
            built = _build_missing(a, b, sides, decision, settings, stack)
        elif settings.method == "auto" and not any(s.metadata is not None for s in sides):
            reason = reason or DIRECT
        advance = None
        if progress is not None:
            advance = functools.partial(progress, f"{place_text(place)} {a.name}")
        try:
            compared = _core.compare(
                _core.FieldSide(sides[0].source, sides[0].metadata, sides[0].field),
                _core.FieldSide(sides[1].source, sides[1].metadata, sides[1].field),
                decision.rule(),
                settings.options(advance),
                ranges=ranges,
                columns=columns_of(a),
            )
        except TwinrunError as e:
            raise type(e)(f"{place_text(place)}: field {a.name!r}: {e}") from None
    # Rules and formats decide which attributes count, and this code is of all of them. Other fields
    # of its name have no kind.
    if a.name == SUMMARY and "code" in (a.kind, b.kind) and compared.unread_different:
        raise Incomparable(
            f"{place_text(place)}: field {a.name!r}: attributes of the indexed files differ; which, only the files could say",
            where=f"{a.where}, {b.where}",
            fix=f"compare with the data files at hand, or leave out {SUMMARY!r} with --leave-out",
        )
    like = FieldRef(a.name, a.dtype, a.byte_order, a.shape, a.fortran_order, a.where, kind=a.kind or b.kind)
    like.place = a.place if a.user_place == b.user_place else None
    like.unit = a.unit
    readable = None if like.kind is None else _readable(compared, a, b)
    valueless = False
    if readable is None:
        readable, valueless = _without_value(compared, a, b)
    first = 0 if not ranges else ranges[0][0]
    found = Found(compared, readable=readable, valueless=valueless, built=built)
    seconds = time.perf_counter() - start
    return FieldPart(found, first, like, place, decision, reason, seconds, types=types_of(a, b))


def compare_stretches(
    a: FieldRef,
    b: FieldRef,
    place: Place,
    settings: Settings,
    progress: Callable[[str, int, int], None] | None = None,
) -> FieldPart:
    """Compares a whole field, one of many terabytes stretch by stretch: only chunks that were written take
    space in a file, and what the core holds of a field grows with its size.
    """
    scalars = a.items * scalars_of(a.dtype)
    step = _AT_ONCE // a.itemsize * scalars_of(a.dtype)
    is_decoded = any(ref.reader is not None for ref in (a, b))
    if not is_decoded or scalars <= step or not divisible(a, b, settings):
        return compare_part(a, b, place, settings, None, progress)
    whole: FieldPart | None = None
    for first in range(0, scalars, step):
        count = min(step, scalars - first)
        part = compare_part(a, b, place, settings, [(first, count)], progress)
        if whole is not None:
            found = merged([whole.found, part.found], columns_of(part.like))
            part = replace(whole, found=found, seconds=whole.seconds + part.seconds)
        whole = part
    assert whole is not None
    return whole


def compare_uniform(a: FieldRef, b: FieldRef, place: Place, settings: Settings) -> FieldComparison | None:
    """Compares a field of which neither run has stored an element, by one element: counts are those of all.

    None where the elements of one side were stored, or elements of one value are not all alike because their
    components lie on circles of several lengths. Types may be two, as the core takes them: what an element
    of each has in common with its partner is the same for all. Stages say what was read.
    """
    if not (a.is_uniform and b.is_uniform) or not a.items:
        return None
    start = time.perf_counter()
    decision = settings.decision(a, b, place[0])
    if len(set(decision.period)) > 1:
        return None
    ones = [a.one(), b.one()]
    try:
        compared = _core.compare(
            _core.FieldSide(ones[0].source(), None, 0),
            _core.FieldSide(ones[1].source(), None, 0),
            decision.rule(),
            replace(settings, method="direct").options(),
        )
    except TwinrunError as e:
        raise type(e)(f"{place_text(place)}: field {a.name!r}: {e}") from None
    kind = a.kind or b.kind
    readable = None if kind is None else _readable(compared, *ones)
    like = replace(ones[0], kind=kind)
    one = facts_of(Found(compared, readable=readable), like, place, decision, UNIFORM, 0.0)
    begin = (0,) * len(a.shape)
    index_of = lambda index: None if index is None else (*begin, *index)  # noqa: E731
    count = a.items
    made = replace(
        one,
        shape=a.user_shape,
        elements=one.elements * count,
        bytes=one.bytes * count,
        different=one.different * count,
        infinite=one.infinite * count,
        first_index=index_of(one.first_index),
        max_abs_index=index_of(one.max_abs_index),
        max_rel_index=index_of(one.max_rel_index),
        histogram=[n * count for n in one.histogram],
        histogram_different=[n * count for n in one.histogram_different],
        elements_read=one.elements_read * count,
        types=types_of(a, b),
        seconds=time.perf_counter() - start,
    )
    if a.place is not None and a.user_place == b.user_place and a.place[0] != a.shape:
        made.global_shape, made.global_offset = a.user_place  # type: ignore[misc]
    return made


def _sides(a: FieldRef, b: FieldRef, place: Place, settings: Settings) -> tuple[list[_Side], str]:
    """(data and metadata of both, why metadata is not used). Raises Incomparable where data is needed
    and not there.
    """
    sides: list[_Side] = []
    for ref in (a, b):
        side = _Side(ref.source(settings.cache), ref.metadata, ref.metadata_field)
        sides.append(side)
        # Digests of the other kind do not fit the requested method.
        unfit = ref.metadata is not None and ref.digest != "published"
        if settings.method == "published" and unfit and side.source is not None:
            side.metadata = None
    reason = ""
    have = [s.metadata is not None for s in sides]
    at_hand = all(s.source is not None for s in sides)
    if settings.method == "auto" and have[0] != have[1] and at_hand and is_small(a):
        for side in sides:
            side.metadata = None
        reason = NOT_WORTH_IT
    if all(have) and settings.method in ("auto", "staged") and a.dtype == b.dtype and _of_two_kinds(a, b):
        reason = _make_one_kind(a, b, sides, settings)
    for ref, side in zip((a, b), sides, strict=True):
        if side.source is None and (side.metadata is None or settings.method in ("direct", "published")):
            if side.metadata is not None and settings.method == "published" and ref.digest == "published":
                continue
            raise Incomparable(
                f"{place_text(place)}: field {ref.name!r}: {_core.NO_DATA}",
                where=ref.where,
                fix=_without_data(settings, types_of(a, b) is None and a.dtype == b.dtype),
            )
    return sides, reason


def _of_two_kinds(a: FieldRef, b: FieldRef) -> bool:
    """Whether both have exact digests that cannot be held against each other: of one an earlier version made
    them.
    """
    facts = [ref.facts for ref in (a, b)]
    return all(f is not None and f.exact for f in facts) and facts[0].cells != facts[1].cells  # type: ignore[union-attr]


def _make_one_kind(a: FieldRef, b: FieldRef, sides: Sequence[_Side], settings: Settings) -> str:
    """Drops the metadata of one of two sides of two kinds, so that it is built like the other's; and returns
    why. '' where no side's data is at hand, or where reading both takes less.
    """
    at_hand = [side.source is not None for side in sides]
    if all(at_hand):
        if is_small(a) and settings.method == "auto":
            return ""
        earlier = [ref.facts is not None and ref.facts.outdated for ref in (a, b)]
        sides[earlier.index(True)].metadata = None
        return _BUILT_ANEW
    if not any(at_hand):
        return ""
    which = at_hand.index(True)
    sides[which].metadata = None
    facts = (a, b)[which].facts
    return _BUILT_ANEW if facts is not None and facts.outdated else _BUILT_ALIKE


def _builds(a: FieldRef, b: FieldRef, sides: Sequence[_Side], settings: Settings) -> bool:
    """Whether metadata is built for a side that has none."""
    have = [s.metadata is not None for s in sides]
    if all(have) or (a.memory is not None and b.memory is not None and settings.method == "auto"):
        return False
    return settings.method in ("staged", "published") or (settings.method == "auto" and any(have))


def _build_missing(
    a: FieldRef,
    b: FieldRef,
    sides: Sequence[_Side],
    decision: Decision,
    settings: Settings,
    stack: contextlib.ExitStack,
) -> _core.StageFacts | None:
    """Builds the metadata that sides lack, like that of the other side. It lasts as long as `stack`."""
    known: _core.FieldFacts | _Digests | None = next(
        (r.facts for r, side in zip((a, b), sides, strict=True) if side.metadata is not None), None
    )
    if known is None:
        known = _asked_for(decision, settings)
    built: _core.StageFacts | None = None
    for side, ref in zip(sides, (a, b), strict=True):
        if side.metadata is None:
            side.metadata, stage = _build_on_the_fly(ref, known, settings, stack)
            side.field = 0
            built = stage if built is None else built + stage
    return built


def _without_value(found: _core.FieldResult, a: FieldRef, b: FieldRef) -> tuple[Values | None, bool]:
    """The elements at the first difference, if one run has no value there; and whether that is so there or
    where the distance is largest. Some number is stored in the place of such a value, and means nothing.
    """
    if a.mask is None or b.mask is None:
        return None, False
    lacks = {at: [_has_no_value(ref, at) for ref in (a, b)]
             for at in {found.first, found.max_abs_at} if at is not None}  # fmt: skip
    alone = [at for at, (of_a, of_b) in lacks.items() if of_a is not of_b]
    if found.first not in alone:
        return None, bool(alone)
    numbers = (found.first_a, found.first_b)
    values = [NO_VALUE if lack else n for lack, n in zip(lacks[found.first], numbers, strict=True)]
    return Values(*values), True


def _has_no_value(ref: FieldRef, scalar: int) -> bool:
    mask = ref.mask
    if mask is None or mask.dtype != "bool" or mask.items != ref.items:
        return False
    source = mask.source()
    return source is not None and bool(_core.read_source(source, scalar // scalars_of(ref.dtype), 1)[0])


def _readable(found: _core.FieldResult, a: FieldRef, b: FieldRef) -> Values | None:
    """The elements at the first difference, which the core knows as codes, for people."""
    if found.first is None:
        return None
    values: list[float | int | str | None] = [found.first_a, found.first_b]
    for side, ref in enumerate((a, b)):
        if ref.tell is not None:
            with contextlib.suppress(TwinrunError):
                values[side] = ref.tell(found.first)
    if isinstance(values[0], str) and values[0] == values[1]:
        # They differ behind what a line has room for, or in type.
        for side, code in enumerate((found.first_a, found.first_b)):
            values[side] = f"{values[side]} (code {code:016x})" if isinstance(code, int) else values[side]
    return Values(*values)
