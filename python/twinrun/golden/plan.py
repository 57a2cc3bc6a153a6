"""The tolerance of golden digests: it makes the cells within tolerance of a value fewer than the residues."""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import numpy as np

from .. import _core
from ..formats.element_types import FLOATING
from ..runs.entries import captured_entries

__all__ = ["digest_settings"]

# Residues would take half of the bytes of such types: where values must be equal, digests are
# enough.
_NARROW = frozenset({"i8", "u8", "bool"})


@functools.lru_cache(maxsize=256)
def _rule(atol: float, rtol: float, bits: int) -> tuple[str, int]:
    """(kind, exponent) of the cells that the core makes for this tolerance, for any type."""
    entries, keep = captured_entries({"x": np.zeros(1, np.float32)}, {}, None)
    facts = _core.sketch_fields(entries, atol, rtol, bits, 4096, "linear", 1)[0].facts
    del keep
    return facts.cells, facts.fine_exponent


def _absolute(atol: float, bits: int) -> tuple[float, int]:
    """(tolerance of digests, e): the smallest cells 2^e with atol <= (2^bits - 1) / 2 of them."""
    cells = Fraction(2**bits - 1, 2)
    ratio = Fraction(atol) / cells
    e = ratio.numerator.bit_length() - ratio.denominator.bit_length() - 1
    while (Fraction(2) ** e) < ratio:
        e += 1
    return (7.0 if bits == 4 else 2.0), e


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

    For absolute tolerances cells s with 3.75 s < atol <= 7.5 s (4 bits); for relative ones likewise. Integers
    are their own cells. Where no such cells exist, the tolerance itself: more is then undecided, and nothing
    is decided wrongly.
    """
    if bits == 0:
        return atol, rtol, 0
    floating = dtype in FLOATING
    if not floating and dtype in _NARROW:
        return atol, rtol, 0 if atol == 0 and rtol == 0 else bits
    try:
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
        if atol == 0 and floating:
            return 0.0, 0.0, 0  # equal values: tokens have no residues
        factor, e = _absolute(atol, bits) if atol > 0 else ((7.0 if bits == 4 else 2.0), 0)
        if not floating:
            e = max(e, 0)
        wanted = (math.ldexp(factor, e), 0.0)
        if wanted[0] > 0 and _rule(*wanted, bits) == ("absolute", e):
            return *wanted, bits
    except (OverflowError, ZeroDivisionError):
        pass
    return atol, rtol, bits
