"""By how much values differ whose data both runs kept."""

from __future__ import annotations

import numpy as np

from ..formats.element_types import COMPLEX, widened
from ..runs.values import SMALL_FLOATS, small_values
from .reading import RankOfTrace
from .result import ValueDifference

__all__ = ["measure", "ulps"]

_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def ulps(a: np.ndarray, b: np.ndarray, kind: str) -> int | None:
    """The largest distance in representable numbers; None where one of them is no finite number."""
    if kind not in ("f16", "bf16", "f32", "f64", "c64", "c128") or not a.size:
        return None
    width = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8, "c64": 4, "c128": 8}[kind]
    keys = []
    for x in (a, b):
        words = np.ascontiguousarray(x).reshape(-1).view(_UNSIGNED[width]).astype(np.uint64)
        sign = np.uint64(1 << (8 * width - 1))
        magnitude = words & np.uint64((1 << (8 * width - 1)) - 1)
        exponent = {2: 0x7F80 if kind == "bf16" else 0x7C00, 4: 0x7F800000, 8: 0x7FF0000000000000}[width]
        if (magnitude >= np.uint64(exponent)).any():
            return None
        keys.append((magnitude, (words & sign) != 0))
    (ma, na), (mb, nb) = keys
    larger, smaller = np.maximum(ma, mb), np.minimum(ma, mb)
    # At most 2^64 - 2^53: no overflow.
    distance = np.where(na == nb, larger - smaller, larger + smaller)
    return int(distance.max())


def measure(differs: ValueDifference, a: RankOfTrace, b: RankOfTrace, iteration: int) -> None:
    """Says by how much a value differs, where both runs kept it."""
    if not all(differs._kept):
        return
    (x, kind, place), (y, other, place_b) = (
        s.subject.kept(s.rank, iteration, name) for s, name in ((a, differs._kept[0]), (b, differs._kept[1]))
    )
    if kind != other or x.shape != y.shape:
        return
    size = {"c64": 4, "c128": 8}.get(kind, x.dtype.itemsize)
    words = [np.ascontiguousarray(v).reshape(-1).view(_UNSIGNED[size]) for v in (x, y)]
    unequal = words[0] != words[1]
    if kind in COMPLEX:
        unequal = unequal.reshape(-1, 2).any(axis=1)
    differs.elements, differs.different = x.size, int(unequal.sum())
    if not differs.different:
        return
    at = int(np.flatnonzero(unequal)[0])
    differs.first_index = [int(i) for i in np.unravel_index(at, x.shape)] if x.shape else []
    # 8-bit floating-point numbers are kept as their bytes; the forms have the name of their type.
    small = differs.a.partition("[")[0]
    kind = small if kind == "u8" and small in SMALL_FLOATS and differs.a == differs.b else kind
    wide = [_wide(v, kind).reshape(-1) for v in (x, y)]
    differs.first_a, differs.first_b = wide[0][at].item(), wide[1][at].item()
    with np.errstate(all="ignore"):
        apart = np.abs(wide[0] - wide[1]) if kind != "bool" else (wide[0] != wide[1])
    places = np.unravel_index(np.flatnonzero(unequal), x.shape) if x.shape else ()
    differs.box = [(int(along.min()), int(along.max()) + 1) for along in places]
    if kind[0] in "fbc" and kind != "bool":
        finite = np.isfinite(apart)
        measured = unequal & finite  # beside a NaN nothing may be
        numbers = np.isfinite(wide[0]) & np.isfinite(wide[1])
        differs.infinite = int((unequal & ~numbers).sum())
        differs.overflowing = int((unequal & numbers & ~finite).sum())
        if measured.any():
            largest = int(np.where(measured, apart, -1).argmax())
            differs.max_abs_diff = float(apart[largest])
            if apart[largest] > 0:
                differs.max_index = [int(i) for i in np.unravel_index(largest, x.shape)] if x.shape else []
                differs.max_a, differs.max_b = wide[0][largest].item(), wide[1][largest].item()
    differs.max_ulp = ulps(x, y, kind)
    if place is not None and place == place_b and place[0] != x.shape:
        _move(differs, *place)


def _move(differs: ValueDifference, whole: tuple[int, ...], offset: tuple[int, ...]) -> None:
    """Makes places in a part those in the global array."""
    differs.whole, differs.offset = list(whole), list(offset)
    for name in ("first_index", "max_index"):
        index = getattr(differs, name)
        if index is not None:
            setattr(differs, name, [i + o for i, o in zip(index, offset, strict=True)])
    if differs.box is not None:
        differs.box = [(low + o, high + o) for (low, high), o in zip(differs.box, offset, strict=True)]


def _wide(x: np.ndarray, kind: str) -> np.ndarray:
    if kind in SMALL_FLOATS:
        return small_values(kind)[x]
    if kind == "bf16":
        return widened(x).astype(np.float64)
    if kind[0] == "f":
        return x.astype(np.float64)
    return x
