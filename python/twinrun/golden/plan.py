"""The tolerance of golden digests: it makes the cells within tolerance of a value fewer than the residues."""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import numpy as np

from .. import _core
from ..formats.element_types import FLOATING
from ..runs.entries import captured_entries
from .proof import Rule, equal_cells_prove

__all__ = ["digest_settings"]

# Residues would take half of the bytes of such types: where values must be equal, digests are
# enough.
_NARROW = frozenset({"i8", "u8", "bool"})
# The largest magnitude of a type. Of 64 bits: as large as that of floating-point numbers.
_LARGEST = {
    "bool": 1,
    "i8": 1 << 7,
    "u8": 1 << 8,
    "i16": 1 << 15,
    "u16": 1 << 16,
    "i32": 1 << 31,
    "u32": 1 << 32,
}


@functools.lru_cache(maxsize=256)
def _rule(atol: float, rtol: float, bits: int) -> tuple[str, int]:
    """(kind, exponent) of the cells that the core makes for this tolerance, for any type."""
    entries, keep = captured_entries({"x": np.zeros(1, np.float32)}, {}, None)
    facts = _core.sketch_fields(entries, atol, rtol, bits, 4096, "linear", 1)[0].facts
    del keep
    return "tokens" if facts.exact else facts.cells, facts.fine_exponent


def _exponent(atol: float, bits: int) -> int:
    """e: the smallest cells 2^e with atol <= (2^bits - 1) / 2 of them."""
    cells = Fraction(2**bits - 1, 2)
    ratio = Fraction(atol) / cells
    e = ratio.numerator.bit_length() - ratio.denominator.bit_length() - 1
    while (Fraction(2) ** e) < ratio:
        e += 1
    return e


def _cells(e: int, bits: int) -> tuple[float, float] | None:
    """(atol, rtol) for which the core makes cells of 2^e; None where there is none."""
    wanted = (math.ldexp(7.0 if bits == 4 else 2.0, e), 0.0)
    return wanted if wanted[0] > 0 and _rule(*wanted, bits) == ("absolute", e) else None


def _of_integers(dtype: str, atol: float, rtol: float, bits: int) -> tuple[float, float] | None:
    """(atol, rtol) for integers whose tolerance is about the same for all values of the type, so that they
    are cells of their own, or have those of atol; None where it is not.
    """
    widest = atol
    if rtol > 0:
        least = max(atol, 1.0)  # integers differ by 1 at least
        if dtype not in _LARGEST:  # as for floating-point numbers
            if _rule(least, rtol, bits)[0] != "absolute":
                return None
        else:
            widest = atol + rtol * (_LARGEST[dtype] + atol) / (1 - rtol) if rtol < 0.25 else math.inf
            if widest > 1.125 * least and not widest < math.floor(least) + 1:
                return None
    e = _exponent(math.floor(widest), bits) if widest >= 1 else 0  # differences are whole numbers
    return _cells(_exponent(widest, bits) if e > 0 else 0, bits)


def _relative(rtol: float, bits: int) -> int:
    """m: the narrowest relative cells, 2^m keys, of which at most 2^bits lie within the tolerance."""
    share = Fraction(rtol) / (1 - Fraction(rtol))
    keys = 2 * share * 2**53 / (1 - share) + 2
    m = 0
    while keys > (2**bits - 1) * 2**m:
        m += 1
    return m


def digest_settings(dtype: str, atol: float, rtol: float, bits: int) -> tuple[float, float, int]:
    """(atol, rtol, residue bits) for digests that decide the tolerance atol + rtol |a| of elements of this
    type.

    With 2 bits the cells may be wider than the tolerance, those of a relative one always: then even unchanged
    values are not proven to agree, so that 4 bits are kept.
    """
    found = _settings(dtype, atol, rtol, bits)
    if bits == 2 and not _proves_unchanged(dtype, atol, rtol, *found):
        return _settings(dtype, atol, rtol, 4)
    return found


def _proves_unchanged(
    dtype: str, atol: float, rtol: float, wide_atol: float, wide_rtol: float, bits: int
) -> bool:
    """Whether digests under (wide_atol, wide_rtol) prove that unchanged values agree within (atol, rtol)."""
    kind, exponent = _rule(wide_atol, wide_rtol, bits)
    origin = wide_atol / wide_rtol if kind == "relative" and wide_atol > 0 else 0.0
    return equal_cells_prove(Rule(kind, bits, exponent, origin), atol, rtol, dtype not in FLOATING)


def _settings(dtype: str, atol: float, rtol: float, bits: int) -> tuple[float, float, int]:
    """`digest_settings` with these bits, whatever they prove.

    For absolute tolerances cells s with 3.75 s < atol <= 7.5 s (4 bits); for relative ones likewise. Integers
    are their own cells. Where no such cells exist, the tolerance itself: more is then undecided, and nothing
    is decided wrongly.
    """
    if bits == 0:
        return atol, rtol, 0
    floating = dtype in FLOATING
    if dtype in _NARROW and atol == 0 and rtol == 0:
        return 0.0, 0.0, 0
    try:
        if not floating and (found := _of_integers(dtype, atol, rtol, bits)) is not None:
            return *found, bits
        # Where |a| times rtol is negligible beside atol, the core makes the cells of atol.
        if rtol > 0 and not (
            floating and atol > 0 and rtol < 0.25 and _rule(atol, rtol, bits)[0] == "absolute"
        ):
            if not rtol < 0.25:
                return atol, rtol, bits
            m = _relative(rtol, bits)
            # Preferably with the same origin of keys, which rounding may move.
            for step in range(32):
                distance = (8 if bits == 4 else 2) * 2**m * (1.0025 + step / 256) + 4
                q = distance / 2.0**52
                wider = q / (1.0 - 2.0 * q)
                wanted = (atol / rtol * wider, wider)
                if wanted[0] / wanted[1] == atol / rtol:
                    break
            if q < 0.4 and math.isfinite(wanted[0]) and _rule(*wanted, bits) == ("relative", m):
                return *wanted, bits
            return atol, rtol, bits
        if atol == 0:
            return 0.0, 0.0, 0  # equal values: tokens have no residues
        found = _cells(_exponent(atol, bits), bits)
        if found is not None:
            return *found, bits
    except (OverflowError, ZeroDivisionError):
        pass
    return atol, rtol, bits
