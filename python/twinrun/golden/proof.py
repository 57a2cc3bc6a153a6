"""What digests and residues of a reference prove about new values. Formulas and proofs:
docs/reference/golden.md.

a is the reference, of which residues of cells and digests of chunks are known; b is the new value. Everything
here is sound in floating point: a value that is called the same or different is so in exact arithmetic.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from .. import _core

__all__ = ["DIFFERENT", "SAME", "UNDECIDED", "UNKNOWN", "Rule", "Settled", "equal_cells_prove", "settle"]

P, TOKEN_LIMIT, SMALLEST_SUM = _core.PRIME, _core.TOKEN_LIMIT, _core.SMALLEST_SUM

# States of an element. UNKNOWN: the cells of its chunk are not known, and its residue proves no
# difference.
SAME, DIFFERENT, UNDECIDED, UNKNOWN = range(4)

_WIDEST_OUTLIER = 1 << 24  # the search for a single outlier ends at this many times 2^bits cells
_TINY = 2.0**-1000


@functools.lru_cache(maxsize=16)
def weights(scalars: int, block_scalars: int) -> tuple[int, ...]:
    """The coefficient of each scalar in a chunk digest, modulo 2^61 - 1, as in the core."""
    return tuple(_core.digest_weights(scalars, block_scalars).tolist())


@functools.lru_cache(maxsize=4)
def _inverse_weights(scalars: int, block_scalars: int, step: int) -> tuple[int, ...]:
    return tuple(pow(w * step % P, -1, P) for w in weights(scalars, block_scalars))


@functools.lru_cache(maxsize=8)
def _split_weights(scalars: int, block_scalars: int) -> tuple[np.ndarray, np.ndarray]:
    w = np.array(weights(scalars, block_scalars), np.int64)
    return w >> 31, w & ((1 << 31) - 1)


def digest_of(cells: np.ndarray, block_scalars: int) -> int:
    """The chunk digest of small integers: |c| <= 2^9, at most 2^20 of them."""
    high, low = _split_weights(cells.size, block_scalars)
    return ((int(cells @ high) << 31) + int(cells @ low)) % P


@dataclass(frozen=True)
class Rule:
    """How values became cells: spec/digest.md, section 4. kind: 'tokens' (or
    numbers by their bits), 'absolute' or 'relative'."""

    kind: str
    bits: int
    exponent: int
    origin: float = 0.0


@dataclass
class _Values:
    """The cells of the new values, and the cells of references within tolerance.

    cell: floor(x / s) or the relative cell; token: the value has no cell. low, high: cells away from its own
    within which a reference in tolerance lies. complete: any reference in tolerance has a cell in that
    window, or the same token. fraction_low, fraction_high: bounds of x / s - cell (absolute). point: the
    reference is exactly cell * s.
    """

    x: np.ndarray
    cell: np.ndarray
    token: np.ndarray
    low: np.ndarray
    high: np.ndarray
    complete: np.ndarray
    fraction_low: np.ndarray | None = None
    fraction_high: np.ndarray | None = None
    point: bool = False


def _tolerance_cells(atol: float, exponent: int) -> float:
    try:
        return math.ldexp(atol, -exponent)
    except OverflowError:
        return math.inf


def _absolute_floats(x: np.ndarray, rule: Rule, atol: float, rtol: float) -> _Values:
    x = x.astype(np.float64)
    reach = _tolerance_cells(atol, rule.exponent)
    with np.errstate(all="ignore"):
        scaled = np.ldexp(x, -rule.exponent)
        finite = np.isfinite(scaled)
        u = np.where(finite, scaled, 0.0)
        cell = np.floor(u)
        token = ~finite | (np.abs(cell) >= TOKEN_LIMIT)
        fraction = u - cell
        fraction_low, fraction_high = fraction.copy(), fraction.copy()
        # Inexact only where -1 < u < 0, and where scaling gives denormal numbers.
        inexact = (u > -1) & (u < 0) & (fraction - 1.0 != u)
        fraction_low[inexact] = np.nextafter(fraction[inexact], 0.0)
        fraction_high[inexact] = np.minimum(np.nextafter(fraction[inexact], 2.0), 1.0)
        tiny = (np.abs(u) < _TINY) & (x != 0) & finite
        negative = tiny & (x < 0)
        cell[negative] = -1.0
        fraction_low[negative], fraction_high[negative] = 1.0 - 2.0**-53, 1.0
        positive = tiny & (x > 0)
        fraction_low[positive], fraction_high[positive] = 0.0, _TINY
        cell[token] = 0.0
        within = np.full(x.shape, reach)  # cells to the farthest reference in tolerance
        if rtol > 0:
            within[...] = np.inf
            if rtol < 0.5:
                allowed = (atol + rtol * (np.abs(x) + atol) / (1.0 - rtol)) * (1.0 + 2.0**-45)
                within = np.nextafter(np.ldexp(allowed, -rule.exponent), np.inf)
        wide = np.fmin(within, 2.0**40)
        below = fraction_low - wide
        back = below - fraction_low
        error = (fraction_low - (below - back)) + (-wide - back)
        low = np.floor(below)
        low[(low == below) & (error < 0)] -= 1
        high = np.floor(fraction_high + wide)
    # Beyond 2^59 cells neighbours are at least 64 cells apart: only the value itself is within
    # tolerance.
    complete = within <= 32
    complete |= np.isnan(x) | np.isinf(x)
    low[token], high[token] = 0.0, 0.0
    return _Values(
        x,
        cell.astype(np.int64),
        token,
        low.astype(np.int64),
        high.astype(np.int64),
        complete,
        fraction_low,
        fraction_high,
    )


def _absolute_integers(x: np.ndarray, rule: Rule, atol: float, rtol: float) -> _Values:
    reach = min(_tolerance_cells(atol, rule.exponent), 2.0**40)
    e = rule.exponent
    kind = np.uint64 if x.dtype.kind == "u" else np.int64
    wide = x.astype(kind)
    if e >= 0:
        cell = wide >> kind(min(e, 63)) if e < 64 else np.where(wide < 0, -1, 0).astype(kind)
        token = (cell >= TOKEN_LIMIT) | ((cell <= -TOKEN_LIMIT) if kind is np.int64 else False)
    else:
        limit = TOKEN_LIMIT >> -e if -e < 60 else 0
        token = (wide >= max(limit, 1)) | ((wide <= -max(limit, 1)) if kind is np.int64 else False)
        cell = np.where(token, 0, wide) << kind(min(-e, 59))
    token = np.broadcast_to(token, x.shape)
    cell = np.where(token, 0, cell).astype(np.int64)
    within = np.full(x.shape, reach)  # cells to the farthest reference in tolerance
    if rtol > 0:
        with np.errstate(all="ignore"):
            most = np.full(x.shape, np.inf)
            if rtol < 0.5:
                most = (atol + rtol * (np.abs(x.astype(np.float64)) + atol) / (1.0 - rtol)) * (1.0 + 2.0**-45)
            within = np.fmin(np.nextafter(np.ldexp(most, -e), np.inf), 2.0**40)
    # Near the last cell a reference in tolerance may be a token.
    complete = (within <= 32 if rtol > 0 else True) & ~token & (np.abs(cell) < TOKEN_LIMIT >> 1)
    if atol == 0 and rtol == 0:
        # Only the value itself is within tolerance, in its cell or as its token.
        complete[...] = True
    if e <= 0:
        high = np.floor(within).astype(np.int64)
        low = -high
        low[token] = high[token] = 0
        return _Values(x, cell, token, low, high, complete, point=True)
    if e <= 40:
        fraction_low = (wide & kind((1 << e) - 1)).astype(np.float64) / float(1 << e)
        fraction_high = fraction_low
        low = np.floor(fraction_low - within - 2.0**-10).astype(np.int64)
        high = np.floor(fraction_high + within).astype(np.int64)
    else:
        fraction_low, fraction_high = np.zeros(x.shape), np.ones(x.shape)
        low = np.floor(-within).astype(np.int64) - 1
        high = np.floor(within).astype(np.int64) + 1
    low[token] = high[token] = 0
    return _Values(x, cell, token, low, high, complete, fraction_low, fraction_high)


def _keys(x: np.ndarray, rule: Rule) -> tuple[np.ndarray, np.ndarray]:
    """Cells under a relative rule, and which values have one. x: float64."""
    with np.errstate(all="ignore"):
        y = np.abs(x) + rule.origin
        valid = np.isfinite(x) & ((y == 0) | ((y >= SMALLEST_SUM) & np.isfinite(y)))
        key: np.ndarray = np.where(valid, y, rule.origin).view(np.int64) - np.float64(rule.origin).view(
            np.int64
        )
    key = np.where(np.signbit(x), -key, key) >> np.int64(rule.exponent)
    valid &= np.abs(key) < TOKEN_LIMIT
    return np.where(valid, key, 0), valid


def _relative(x: np.ndarray, rule: Rule, atol: float, rtol: float) -> _Values:
    exact = np.ones(x.shape, bool)
    large = x.dtype.kind in "iu" and x.dtype.itemsize == 8  # integers beyond 2^53 are tokens
    if large:
        magnitude = np.where(x < 0, 0 - x, x).astype(np.uint64)
        exact = magnitude <= np.uint64(1 << 53)
    x = x.astype(np.float64)
    cell, valid = _keys(x, rule)
    valid &= exact
    token = ~valid
    with np.errstate(all="ignore"):
        if rtol < 0.5:
            allowed = (atol + rtol * (np.abs(x) + atol) / (1.0 - rtol)) * (1.0 + 2.0**-45)
            below, above = x - allowed, x + allowed
            below = np.where(allowed > 0, np.nextafter(below, -np.inf), below)
            above = np.where(allowed > 0, np.nextafter(above, np.inf), above)
            first, first_valid = _keys(below, rule)
            last, last_valid = _keys(above, rule)
            complete = valid & first_valid & last_valid
            if (
                rule.origin < SMALLEST_SUM * 2
            ):  # sums between lie in the range of cells only if 0 is not passed
                complete &= (np.signbit(below) == np.signbit(above)) | (allowed == 0)
            if large:
                complete &= np.maximum(np.abs(below), np.abs(above)) < 2.0**53
        else:
            complete, first, last = np.zeros(x.shape, bool), cell, cell
    complete |= np.isnan(x) | np.isinf(x)
    low = np.where(complete & ~token, first - cell, 0)
    high = np.where(complete & ~token, last - cell, 0)
    return _Values(x, np.where(token, 0, cell), token, low, high, complete)


def _tokens(x: np.ndarray, atol: float, rtol: float) -> _Values:
    none = np.zeros(x.shape, np.int64)
    complete = np.full(x.shape, atol == 0 and rtol == 0)
    return _Values(x, none, np.ones(x.shape, bool), none, none, complete)


def _values(x: np.ndarray, rule: Rule, atol: float, rtol: float) -> _Values:
    if rule.kind == "tokens":
        return _tokens(x, atol, rtol)
    if rule.kind == "relative":
        return _relative(x, rule, atol, rtol)
    if x.dtype.kind == "f":
        return _absolute_floats(x, rule, atol, rtol)
    return _absolute_integers(x, rule, atol, rtol)


def equal_cells_prove(rule: Rule, atol: float, rtol: float, integers: bool) -> bool:
    """Whether values of one cell are always within tolerance."""
    if rule.kind == "tokens":
        return True
    if rule.kind == "absolute":
        return _tolerance_cells(atol, rule.exponent) >= 1 or (integers and rule.exponent <= 0)
    if rtol <= 0 or not math.isfinite(rtol):
        return False
    origin = atol / rtol if atol > 0 else 0.0
    distance = math.floor(rtol / (1.0 + 2.0 * rtol) * 2.0**52) - 4
    return origin == rule.origin and distance + 1 >= 1 << rule.exponent


def _absolute_bounds(v: _Values, c: np.ndarray, s: float) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of |a - b| / s for cells c apart: rounded to nearest, so that comparing them with < and > is
    sound.
    """
    if v.point:
        d = np.abs(c).astype(np.float64)
        return d, d
    t0, t1 = v.fraction_low, v.fraction_high
    assert t0 is not None and t1 is not None  # of absolute cells
    c = c.astype(np.float64)
    least = np.where(c >= 1, c - t1, np.where(c <= -1, (-c - 1.0) + t0, 0.0))
    most = np.where(c >= 1, (c + 1.0) - t0, np.where(c <= -1, t1 - c, np.maximum(t1, 1.0 - t0)))
    return least, most


def _absolute_states(v: _Values, c: np.ndarray, rule: Rule, atol: float, rtol: float) -> np.ndarray:
    reach = _tolerance_cells(atol, rule.exponent)
    least, most = _absolute_bounds(v, c, 1.0)
    if v.point:
        same = most <= reach
    else:
        t0 = v.fraction_low
        up = c.astype(np.float64) + 1.0
        exact = np.where(c >= 0, up - most == t0, (c == 0) | (most + c == v.fraction_high))
        same = (most < reach) | ((most == reach) & exact)
    state = np.where(same, SAME, UNDECIDED)
    if rtol == 0:
        return np.where(least > reach, DIFFERENT, state)
    with np.errstate(all="ignore"):  # the reference lies at most `most` cells from b
        scaled = np.ldexp(np.abs(v.x.astype(np.float64)) * (1.0 + 2.0**-50), -rule.exponent)
        allowed = np.nextafter((reach + rtol * (scaled + most)) * (1.0 + 2.0**-50), np.inf)
        state = np.where(least * (1.0 - 2.0**-50) > allowed, DIFFERENT, state)
    if v.point:
        for i in np.flatnonzero((state == UNDECIDED) & ~v.token).tolist():
            # Both values are known: a is b and c cells, a whole number.
            apart, rest = divmod(int(c[i]), 1 << -rule.exponent)
            if not rest:
                within = Fraction(atol) + Fraction(rtol) * abs(int(v.x[i]) + apart)
                state[i] = SAME if abs(apart) <= within else DIFFERENT
    return state


def _relative_interval(q: np.ndarray, rule: Rule) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of the values whose relative cell is q."""
    origin = np.float64(rule.origin)
    base = origin.view(np.int64)
    size = np.int64(1) << np.int64(rule.exponent)
    first = q * size
    last = first + (size - 1)
    negative = q < 0
    small = np.where(negative, -last, first)  # keys of magnitudes, small <= large
    large = np.where(negative, -first, last)
    top = np.float64(np.inf).view(np.int64)
    with np.errstate(all="ignore"):
        y0 = np.minimum(small + base, top).view(np.float64)
        y1 = np.minimum(large + base, top).view(np.float64)
        if rule.origin == 0:  # sums below 2^-1000 have no cell, except 0
            least = np.where(y0 < SMALLEST_SUM, 0.0, y0)
            most = np.where(y1 < SMALLEST_SUM, 0.0, y1)
        else:  # sums were rounded
            least = np.nextafter(np.nextafter(y0, -np.inf) - origin, -np.inf)
            most = np.nextafter(np.nextafter(y1, np.inf) - origin, np.inf)
            # Below the cell of key 0 lie the tiny values of the other sign.
            least = np.where(small > 0, np.maximum(least, 0.0), -np.abs(least))
    return np.where(negative, -most, least), np.where(negative, -least, most)


def _relative_bounds(v: _Values, c: np.ndarray, rule: Rule) -> tuple[np.ndarray, ...]:
    """(least |a-b|, most |a-b|, least |a|, most |a|), rounded outwards."""
    low, high = _relative_interval(v.cell + c, rule)
    with np.errstate(all="ignore"):
        most = np.maximum(np.abs(low - v.x), np.abs(high - v.x)) * (1.0 + 2.0**-50)
        least = np.maximum(np.maximum(low - v.x, v.x - high), 0.0) * (1.0 - 2.0**-50)
        across = (low <= 0) & (high >= 0)
        least_a = np.where(across, 0.0, np.minimum(np.abs(low), np.abs(high)))
        most_a = np.maximum(np.abs(low), np.abs(high))
    return least, most, least_a, most_a


def _relative_states(v: _Values, c: np.ndarray, rule: Rule, atol: float, rtol: float) -> np.ndarray:
    least, most, least_a, most_a = _relative_bounds(v, c, rule)
    with np.errstate(all="ignore"):
        surely = np.nextafter((atol + rtol * least_a) * (1.0 - 2.0**-50), -np.inf)
        maybe = np.nextafter((atol + rtol * most_a) * (1.0 + 2.0**-50), np.inf)
        same = most <= surely
        # Zeros are equal where no difference is allowed: c = 0 and x = 0 under a purely relative
        # rule.
        same |= (v.x == 0) & (c == 0) & (rule.origin == 0) & (most == 0)
        state = np.where(same, SAME, np.where(least > maybe, DIFFERENT, UNDECIDED))
    return state


def _states(v: _Values, c: np.ndarray, rule: Rule, atol: float, rtol: float) -> np.ndarray:
    """The state of each element, for cells that are c apart."""
    if rule.kind == "tokens":
        return np.where(c == 0, SAME, np.where(v.complete, DIFFERENT, UNDECIDED))
    if rule.kind == "relative":
        state = _relative_states(v, c, rule, atol, rtol)
    else:
        state = _absolute_states(v, c, rule, atol, rtol)
    # Equal tokens are equal values. Different tokens are different values, and out of tolerance
    # where that is proven.
    return np.where(v.token, np.where(c == 0, SAME, np.where(v.complete, DIFFERENT, UNDECIDED)), state)


def _bounds(v: _Values, c: np.ndarray, rule: Rule) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of |a - b|, rounded outwards; infinite where b has no cell."""
    if rule.kind == "tokens":
        return np.zeros(c.shape), np.where(c == 0, 0.0, np.inf)
    with np.errstate(all="ignore"):
        if rule.kind == "relative":
            least, most, _, _ = _relative_bounds(v, c, rule)
        else:
            least, most = _absolute_bounds(v, c, 1.0)
            least = np.ldexp(least if v.point else least * (1.0 - 2.0**-50), rule.exponent)
            most = np.ldexp(most if v.point else most * (1.0 + 2.0**-50), rule.exponent)
    beyond = v.token & (c != 0)
    least, most = np.where(beyond, 0.0, least), np.where(beyond, np.inf, most)
    same = v.token & (c == 0)
    return np.where(same, 0.0, least), np.where(same, 0.0, most)


@dataclass
class Settled:
    """What is known of one chunk.

    verdict: SAME, DIFFERENT or UNDECIDED. exact: the distance in cells is known for every element; located:
    known from the single outlier that explains the digests. state, cells, least, most: of each element; where
    not exact, cells are the distances nearest to 0 that residues allow; least and most bound |a - b|.
    different: elements that differ, at least.
    """

    verdict: int
    exact: bool
    located: bool
    state: np.ndarray
    cells: np.ndarray
    least: np.ndarray
    most: np.ndarray
    different: int


def _least_outside(
    v: _Values, c: np.ndarray, rule: Rule, atol: float, rtol: float, outside: np.ndarray
) -> np.ndarray:
    """What |a - b| of elements that are proven to differ is at least, though their cells are not known; 0 for
    the others.

    It is above the tolerance. Under an absolute rule the golden value lies c cells from b, or a multiple of
    2^bits cells more or less; without a cell it lies farther away, at least 64 cells, than any of these.
    Where b is NaN or infinite, the golden value is another, and infinitely far away.
    """
    with np.errstate(all="ignore"):
        least = (atol + rtol * np.abs(v.x.astype(np.float64))) / (1.0 + rtol) * (1.0 - 2.0**-50)
        least = np.where(np.isfinite(least), least, atol)
        if rule.kind == "absolute":
            away = [_bounds(v, c + n * (1 << rule.bits), rule)[0] for n in (-1, 0, 1)]
            least = np.fmax(least, np.minimum.reduce(away))
    return np.where(outside, np.where(np.isfinite(v.x), least, np.inf), 0.0)


def _unexplained(
    state: np.ndarray, c: np.ndarray, different: int, least: np.ndarray | None = None
) -> Settled:
    verdict = DIFFERENT if different else UNDECIDED
    return Settled(
        verdict,
        False,
        False,
        state.astype(np.int8),
        c,
        np.zeros(c.size) if least is None else least,
        np.full(c.size, np.inf),
        different,
    )


def _outlier(
    rest: int, v: _Values, outside: np.ndarray, bits: int, block_scalars: int
) -> tuple[int, int] | None:
    """The single outlier that explains the rest of the digests: (element, multiple of 2^bits); None where
    there is none.
    """
    inverses = _inverse_weights(v.x.size, block_scalars, 1 << bits)
    among = np.flatnonzero(outside) if outside.any() else range(v.x.size)
    found = []
    for i in among:
        k = rest * inverses[i] % P
        if k > P // 2:
            k -= P
        if abs(k) <= _WIDEST_OUTLIER and not v.token[i]:
            found.append((int(i), k))
    return found[0] if len(found) == 1 else None


def settle(
    x: np.ndarray,
    residues_a: np.ndarray | None,
    residues_b: np.ndarray | None,
    fine_a: int,
    fine_b: int,
    rule: Rule,
    atol: float,
    rtol: float,
    block_scalars: int,
) -> Settled:
    """Decides one chunk: x its new values (flat, float or integer), residues uint8 of each, fine_a and fine_b
    digests.

    residues may be None where there are none. An element differs where |a - b| > atol + rtol |a|.
    """
    v = _values(x, rule, atol, rtol)
    c = np.zeros(x.size, np.int64)
    located = False
    if fine_a != fine_b:
        if residues_a is None or residues_b is None:
            # Some cells differ: that is a difference where a cell, or a token, stands for one
            # value.
            exactly = atol == 0 and rtol == 0 and (rule.kind == "tokens" or v.point)
            return _unexplained(np.full(x.size, UNKNOWN), c, int(exactly))
        modulus = 1 << rule.bits
        apart = (residues_a.astype(np.int64) - residues_b) & (modulus - 1)
        # Residues beyond those of the window; negative where the window has more cells than there
        # are residues.
        room = modulus - (v.high - v.low + 1)
        start = np.where(room >= 0, v.low - room // 2, -(modulus // 2))
        c = start + ((apart - start) & (modulus - 1))
        outside = ((c < v.low) | (c > v.high)) & v.complete & (room >= 0)
        rest = (fine_a - fine_b - digest_of(c, block_scalars)) % P
        if rest != 0:
            complete = bool((room >= 0).all() and v.complete.all())
            alone = None
            if complete and outside.sum() <= 1:
                alone = _outlier(rest, v, outside, rule.bits, block_scalars)
            # If all were within tolerance, their cells would be c apart and the digests would
            # agree: so one element differs.
            different = max(int(outside.sum()), int(complete))
            unexplained = functools.partial(
                _unexplained, np.where(outside, DIFFERENT, UNKNOWN), c.copy(), different
            )
            least = _least_outside(v, c, rule, atol, rtol, outside)
            if alone is None:
                return unexplained(least)
            located = True
            c[alone[0]] += alone[1] << rule.bits
            if _states(v, c, rule, atol, rtol)[alone[0]] != DIFFERENT:
                return unexplained(least)
    state = _states(v, c, rule, atol, rtol).astype(np.int8)
    least, most = _bounds(v, c, rule)
    different = int((state == DIFFERENT).sum())
    verdict = DIFFERENT if different else UNDECIDED if (state != SAME).any() else SAME
    return Settled(verdict, True, located, state, c, least, most, different)
