"""Fields of different types as the real numbers that they hold: each in a type that holds both exactly.

8-bit floating-point numbers are looked up in a table, and multiplied by their scales: what they stand for is
exact in float64.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .. import _core
from ..errors import Unsupported
from ..formats.element_types import COMPLEX
from ..formats.model import Field, decoded, unreadable
from .fields import FieldRef
from .particles import Particles
from .subject import Opened, Place, Subject, Wrapped

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

__all__ = [
    "SMALL_FLOATS",
    "InNumbers",
    "are_comparable",
    "by_values",
    "castable",
    "common_type",
    "in_common_type",
    "particles_by_values",
    "scale_of",
    "small_values",
]


@dataclass(frozen=True)
class _Layout:
    """A floating-point type of 8 bits.

    exponent, fraction: bits. has_infinity: the largest exponent is for infinities and NaN, as in IEEE 754.
    has_zero_sign: -0 is there; without it, its bits are the only NaN. has_sign: e8m0 has none.
    """

    exponent: int
    fraction: int
    bias: int
    has_infinity: bool = False
    has_zero_sign: bool = True
    has_sign: bool = True


_E4M3 = _Layout(4, 3, 7)
_E5M2 = _Layout(5, 2, 15, has_infinity=True)
_E4M3_UNSIGNED_ZERO = _Layout(4, 3, 8, has_zero_sign=False)
_E5M2_UNSIGNED_ZERO = _Layout(5, 2, 16, has_zero_sign=False)
_E8M0 = _Layout(8, 0, 127, has_sign=False)

# The names of these types in safetensors, PyTorch and ml_dtypes, as fields have them in `kind`.
SMALL_FLOATS: dict[str, _Layout] = {
    "F8_E4M3": _E4M3,
    "F8_E5M2": _E5M2,
    "F8_E4M3FNUZ": _E4M3_UNSIGNED_ZERO,
    "F8_E5M2FNUZ": _E5M2_UNSIGNED_ZERO,
    "F8_E8M0": _E8M0,
    "float8_e4m3fn": _E4M3,
    "float8_e5m2": _E5M2,
    "float8_e4m3fnuz": _E4M3_UNSIGNED_ZERO,
    "float8_e5m2fnuz": _E5M2_UNSIGNED_ZERO,
    "float8_e8m0fnu": _E8M0,
}
# What follows the name of a field in that of its scales. A number is multiplied by its scale.
_SCALES = ("_scale", "_scale_inv")
# Types of scales whose product with an 8-bit number is exact in float64: 24 and 4 bits.
_TYPES_OF_SCALES = frozenset({"f16", "bf16", "f32"})
_BLOCK = 128  # where sizes say nothing: of scales by block, as DeepSeek-V3 has them
_MOST_SCALES = 1 << 26
_PIECE = 1 << 18  # elements that are scaled at a time


def _value(code: int, layout: _Layout) -> float:
    if not layout.has_sign:
        return math.nan if code == 0xFF else math.ldexp(1.0, code - layout.bias)
    sign, rest = (-1.0 if code & 0x80 else 1.0), code & 0x7F
    if not layout.has_zero_sign and code == 0x80:
        return math.nan
    exponent, fraction = rest >> layout.fraction, rest & ((1 << layout.fraction) - 1)
    if layout.has_infinity and exponent == (1 << layout.exponent) - 1:
        return sign * math.inf if fraction == 0 else math.nan
    if not layout.has_infinity and layout.has_zero_sign and rest == 0x7F:
        return math.nan
    if exponent == 0:
        return sign * math.ldexp(fraction, 1 - layout.bias - layout.fraction)
    return sign * math.ldexp(fraction + (1 << layout.fraction), exponent - layout.bias - layout.fraction)


@functools.cache
def small_values(kind: str) -> np.ndarray:
    """The 256 values of an 8-bit type, as f64."""
    return np.array([_value(code, SMALL_FLOATS[kind]) for code in range(256)], np.float64)


# ---- one type for both ----

_WIDE = ("i64", "u64", "f64", "c128")
_MIXED = frozenset({"f64", "i64", "u64"})
_INTEGERS = frozenset({"bool", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"})


def common_type(types: Iterable[str]) -> str | None:
    """The type itself, where there is one; else a wide one that holds all values of all; None: none does."""
    kinds = set(types)
    if len(kinds) == 1:
        return kinds.pop()
    return next((wide for wide in _WIDE if all(_core.holds_exactly(wide, t) for t in kinds)), None)


def are_comparable(a: str, b: str) -> bool:
    """Whether the core compares fields of these types: of one, or 64-bit numbers of two."""
    return a == b or {a, b} <= _MIXED


def castable(a: str, b: str) -> bool:
    """Whether `types="values"` compares fields of these types."""
    return common_type((a, b)) is not None or not {a, b} & {*COMPLEX}


def _widened(ref: FieldRef, dtype: str) -> FieldRef:
    """The field in a wider type, whose elements are converted when they are read. It has no metadata."""
    if ref.dtype == dtype:
        return ref
    return replace(
        ref,
        dtype=dtype,
        byte_order=sys.byteorder,
        extents=None,
        reader=None,
        memory=None,
        metadata=None,
        recorded=None,
        open_reader=None,
        stored=ref,
    )


def _is_number(ref: FieldRef) -> bool:
    return ref.kind is None and ref.unit is None


def by_values(a: FieldRef, b: FieldRef) -> tuple[FieldRef, FieldRef]:
    """Both fields in types that hold their values and that the core compares; as they are where there are
    none: texts, dates, complex against real numbers.
    """
    if a.dtype == b.dtype or not (_is_number(a) and _is_number(b)):
        return a, b
    common = common_type((a.dtype, b.dtype))
    if common is not None:
        return _widened(a, common), _widened(b, common)
    if a.dtype in _INTEGERS and b.dtype in _INTEGERS:  # one has a sign, the other is u64: they stay integers
        types = ["i64" if ref.dtype.startswith("i") else "u64" for ref in (a, b)]
    else:
        types = [ref.dtype if ref.dtype in ("i64", "u64") else _wide_type(ref.dtype) for ref in (a, b)]
    if not are_comparable(*types):
        return a, b
    return replace(_widened(a, types[0]), metadata=None), replace(_widened(b, types[1]), metadata=None)


def _wide_type(dtype: str) -> str:
    return "c128" if dtype in COMPLEX else "f64"


def in_common_type(sides: Sequence[Sequence[tuple[int, FieldRef]]]) -> list[list[tuple[int, FieldRef]]]:
    """The parts of a field, of several runs, in one type; as they are where no type holds all."""
    refs = [ref for side in sides for _, ref in side]
    common = common_type(ref.dtype for ref in refs) if all(map(_is_number, refs)) else None
    if common is None:
        return [list(side) for side in sides]
    return [[(rank, _widened(ref, common)) for rank, ref in side] for side in sides]


def particles_by_values(kind: Particles) -> Particles:
    """The same particles; the IDs, and each field, in one type in all parts of both runs."""
    parts = [*kind.parts_a, *kind.parts_b]
    ids = in_common_type([[(rank, ids) for rank, ids, _ in parts]])[0]
    own: list[dict[str, FieldRef]] = [{} for _ in parts]
    for name in dict.fromkeys(n for _, _, fields in parts for n in fields):
        held = [(at, fields[name]) for at, (_, _, fields) in enumerate(parts) if name in fields]
        for at, ref in in_common_type([held])[0]:
            own[at][name] = ref
    made = [(rank, of_ids, fields) for (rank, of_ids), fields in zip(ids, own, strict=True)]
    return Particles(kind.key, made[: len(kind.parts_a)], made[len(kind.parts_a) :])


# ---- 8-bit numbers and their scales ----


def _block(size: int, count: int, axis: int, said: str) -> int:
    """How many elements of an axis one of `count` scales is for. said: the field and its scales."""
    fits = {size // count} if count and size % count == 0 else set[int]()
    if count > 1 and -(-size // _BLOCK) == count:
        fits.add(_BLOCK)
    if len(fits) != 1:
        why = "may lie in several ways" if fits else "do not fit"
        raise Unsupported(
            f"{said}: {count} scales along axis {axis}, which has {size} elements, {why}",
            fix="leave the field out, or store what it stands for",
        )
    return fits.pop()


def _blocks(shape: Sequence[int], of_scales: Sequence[int], said: str) -> tuple[tuple[int, ...], ...]:
    """Shape of the scales with as many axes as the field, and elements of each axis that one is for."""
    if math.prod(of_scales) == 1:
        return (1,) * len(shape), tuple(shape)
    if len(of_scales) == 1 and len(shape) > 1:
        axes = {axis for axis in (0, len(shape) - 1) if shape[axis] == of_scales[0]}
        if len(axes) != 1:
            why = "fit the rows and the columns" if axes else "fit neither the rows nor the columns"
            raise Unsupported(
                f"{said}: its {of_scales[0]} scales {why} of {list(shape)}",
                fix="leave the field out, or give the scales two axes",
            )
        axis = axes.pop()
        of_scales = tuple(of_scales[0] if d == axis else 1 for d in range(len(shape)))
    if len(of_scales) != len(shape):
        raise Unsupported(
            f"{said}: scales of shape {list(of_scales)} for a field of shape {list(shape)}",
            fix="leave the field out, or store what it stands for",
        )
    blocks = (_block(n, s, axis, said) for axis, (n, s) in enumerate(zip(shape, of_scales, strict=True)))
    return tuple(of_scales), tuple(max(block, 1) for block in blocks)


def _shape_of(ref: FieldRef) -> tuple[int, ...]:
    """The shape of a field; of one that is kept as bytes, the one that its file tells."""
    return tuple(ref.user_shape if ref.told_shape is None else ref.told_shape)


class _Scaled:
    """Reads an 8-bit field as the numbers that it stands for."""

    def __init__(self, ref: FieldRef, shape: tuple[int, ...], scales: FieldRef | None) -> None:
        assert ref.kind is not None
        self._ref, self._shape, self._scales = ref, shape, scales
        self._table = small_values(ref.kind)
        said = f"field {ref.name!r}"
        if scales is not None:
            self._layout = _blocks(shape, _shape_of(scales), f"{said} and {scales.name!r}")

    @functools.cached_property
    def _source(self) -> _core.Source:
        return self._ref.need_source()

    @functools.cached_property
    def _factors(self) -> np.ndarray:
        ref = self._scales
        assert ref is not None
        if ref.kind is not None:
            codes = _core.read_source(ref.need_source(), 0, ref.items)
            return small_values(ref.kind)[codes]
        wide = _core.widened_source("f64", ref.need_source())
        return _core.read_source(wide, 0, ref.items).view(np.float64)

    def read(self, first: int, count: int) -> np.ndarray:
        values = self._table[_core.read_source(self._source, first, count)]
        if self._scales is None:
            return values
        of_scales, blocks = self._layout
        with np.errstate(all="ignore"):
            for begin in range(0, count, _PIECE):
                end = min(begin + _PIECE, count)
                rest: np.ndarray = np.arange(first + begin, first + end, dtype=np.int64)
                at = np.zeros(rest.size, np.int64)
                stride = 1
                for size, of, block in zip(
                    reversed(self._shape), reversed(of_scales), reversed(blocks), strict=True
                ):
                    rest, i = np.divmod(rest, size)
                    at += np.minimum(i // block, of - 1) * stride
                    stride *= of
                values[begin:end] *= self._factors[at]
        return values


def scale_of(name: str, fields: Mapping[str, FieldRef], where: str) -> FieldRef | None:
    """The scales of an 8-bit field, where the place has any. Raises Unsupported where it has several, or
    some whose products would be rounded.
    """
    found = [fields[name + end] for end in _SCALES if name + end in fields]
    if not found:
        return None
    if len(found) > 1:
        said = " and ".join(repr(ref.name) for ref in found)
        raise Unsupported(f"field {name!r}: {said} may both be its scales", where=where, fix="leave one out")
    scales = found[0]
    exact = scales.kind in SMALL_FLOATS if scales.kind is not None else scales.dtype in _TYPES_OF_SCALES
    whole = math.prod(_shape_of(scales)) == scales.items
    if not (exact and whole) or scales.fortran_order or scales.items > _MOST_SCALES or scales.no_data:
        kind = scales.kind or scales.dtype
        raise Unsupported(
            f"field {name!r}: its scales {scales.name!r} are {scales.items} of {kind}, and are not taken",
            where=where,
            fix="scales are float32, float16, bfloat16 or 8-bit numbers, stored row by row",
        )
    return scales


class InNumbers(Wrapped):
    """A run whose 8-bit floating-point fields are numbers: what they stand for, with their scales."""

    @contextlib.contextmanager
    def open(self, place: Place, use_metadata: bool = True, whole: bool = True) -> Iterator[Opened]:
        with contextlib.ExitStack() as stack:
            opened = stack.enter_context(self.inner.open(place, use_metadata, whole))
            small = [name for name, ref in opened.items() if ref.kind in SMALL_FLOATS]
            if small and use_metadata:  # metadata knows no shapes of what it keeps as bytes
                opened = stack.enter_context(self.inner.open(place, False, whole))
                small = [name for name, ref in opened.items() if ref.kind in SMALL_FLOATS]
            yield _in_numbers(opened, small) if small else opened

    def copy_of(self, inner: Subject) -> InNumbers:
        return InNumbers(inner)


def _in_numbers(opened: Opened, small: Sequence[str]) -> Opened:
    fields = dict(opened)
    used: set[str] = set()
    notes = []
    for name in small:
        ref = opened[name]
        shape = _shape_of(ref)
        if ref.no_data or ref.fortran_order or math.prod(shape) != ref.items:
            continue  # stays what it is: bytes
        scales = None
        try:
            scales = scale_of(name, opened, ref.where)
            read = decoded(name, "f64", ref.items, ref.where, _Scaled(ref, shape, scales).read)
            reader = Field(name, "f64", sys.byteorder, shape, read=read)
        except Unsupported as problem:
            reader = unreadable(name, "f64", sys.byteorder, shape, problem)
        if scales is not None:
            used.add(scales.name)
            notes.append(f"{name}: values times {scales.name}")
        fields[name] = FieldRef(
            name, "f64", sys.byteorder, shape, False, ref.where, reader=reader, told_type=ref.kind or ""
        )
    made = opened.with_fields({name: ref for name, ref in fields.items() if name not in used})
    made.notes = [*opened.notes, *notes]
    if opened.facts is not None:
        # Shapes that facts tell of bytes: numbers have their own, and scales are no fields now.
        told = {
            f"{name}@(shape)" for name in small if name in used or (name in made and made[name].kind is None)
        }
        made.facts = {label: fact for label, fact in opened.facts.items() if label not in told}
    return made
