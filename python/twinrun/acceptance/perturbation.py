"""Perturbed numbers: each changed in its last digits, with a sign of its own.

Zeros, NaN and infinities stay as they are, and so do integers, among them seeds and states of random number
generators: the perturbed run makes the same draws.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from ..arguments import names_given
from ..errors import TwinrunError, in_short
from ..formats.element_types import widened

__all__ = [
    "Change",
    "changed_numbers",
    "checked_seed",
    "perturb",
    "perturbed_arrays",
    "perturbed_text",
    "perturbed_values",
]

_MOST_ULP = 1 << 20
# Bits of the mantissa, by element type: one unit in the last place is at most 2**-bits of the
# value.
_BITS = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52}
_NAMES = {"e": "f16", "f": "f32", "d": "f64"}


@dataclass(frozen=True)
class Change:
    """By how much numbers change: by `ulp` representable values, or by at most `relative` of themselves."""

    ulp: int | None = None
    relative: float | None = None

    def __post_init__(self) -> None:
        if (self.ulp is None) == (self.relative is None):
            raise TwinrunError(
                "give either ulp or relative", fix="ulp=1 is the last digit; relative=1e-14 is usual for f64"
            )
        if self.ulp is not None and (
            isinstance(self.ulp, bool) or not isinstance(self.ulp, int) or not 1 <= self.ulp <= _MOST_ULP
        ):
            raise TwinrunError(f"ulp must be an integer from 1 to {_MOST_ULP}, not {in_short(self.ulp)}")
        if self.relative is not None and not 0 < self.relative <= 0.1:
            raise TwinrunError(f"relative must be above 0 and at most 0.1, not {in_short(self.relative)}")

    def __str__(self) -> str:
        return f"{self.ulp} ulp" if self.relative is None else f"{self.relative:g} relative"

    def check(self, dtype: str, name: str, where: str | None = None) -> None:
        """Raises TwinrunError where a change would be lost in the rounding of the type."""
        if self.relative is not None and self.relative < 2.0 ** -_BITS[dtype]:
            raise TwinrunError(
                f"{name} is {dtype}: {self.relative:g} is less than the last digit of most of its values ({2.0 ** -_BITS[dtype]:.2g})",
                where=where,
                fix="use ulp=1, or --ulp 1",
            )

    def bound(self, dtype: str) -> float:
        """No value changes by more than this share of itself, unless it is denormal."""
        if self.ulp is not None:
            return self.ulp * 2.0 ** -_BITS[dtype]
        return float(self.relative or 0.0) + 2.0 ** -_BITS[dtype]


def perturbed_bits(bits: np.ndarray, dtype: str, steps: int, rng: np.random.Generator) -> np.ndarray:
    """Numbers as unsigned integers of their size, each `steps` representable values away; 0 is not
    reached, nor infinity.
    """
    width = bits.dtype.itemsize * 8
    kind = bits.dtype.type
    magnitude = bits & kind((1 << (width - 1)) - 1)
    infinite = kind(((1 << (width - 1 - _BITS[dtype])) - 1) << _BITS[dtype])
    up = rng.random(bits.shape) < 0.5
    moves = (magnitude > 0) & (magnitude < infinite)
    up |= magnitude <= kind(steps)
    up &= magnitude < infinite - kind(min(steps, int(infinite)))
    by = kind(steps)
    moved = np.where(up, magnitude + by, magnitude - by)
    return np.where(moves, moved | (bits & kind(1 << (width - 1))), bits)


def perturbed_values(values: np.ndarray, dtype: str, change: Change, rng: np.random.Generator) -> np.ndarray:
    """Numbers in native byte order, perturbed. dtype: f16, bf16 (its bits, as u16), f32 or f64."""
    if change.ulp is not None:
        unsigned = np.dtype(f"u{values.dtype.itemsize}")
        return perturbed_bits(values.view(unsigned), dtype, change.ulp, rng).view(values.dtype)
    factor = 1 + float(change.relative or 0.0) * rng.uniform(-1, 1, values.shape)
    if dtype == "bf16":
        wide = widened(values).astype(np.float64)
        near = (wide * factor).astype(np.float32).view(np.uint32)
        rounded = ((near.astype(np.uint64) + 0x7FFF + ((near >> 16) & 1)) >> 16).astype(np.uint16)
        return np.where(np.isfinite(wide), rounded, values)
    with np.errstate(over="ignore", invalid="ignore"):
        found = (values.astype(np.float64) * factor).astype(values.dtype)
    return np.where(np.isfinite(values) & np.isfinite(found), found, values)


def _of_array(name: str, array: np.ndarray, change: Change, rng: np.random.Generator) -> np.ndarray:
    native = np.array(array, dtype=array.dtype.newbyteorder("="), order="C", copy=True)
    real = native.view(native.real.dtype) if native.dtype.kind == "c" else native
    dtype = _NAMES.get(real.dtype.char)
    if dtype is None:
        raise TwinrunError(
            f"{name!r} is {array.dtype}, which cannot be perturbed",
            fix="f16, f32, f64 and complex numbers can",
        )
    change.check(dtype, repr(name))
    found = perturbed_values(real, dtype, change, rng)
    return found.view(native.dtype).astype(array.dtype, copy=False)


def perturb(
    arrays: Mapping[str, np.ndarray],
    *,
    ulp: int | None = None,
    relative: float | None = None,
    seed: int = 0,
    fields: Iterable[str] | None = None,
) -> dict[str, np.ndarray]:
    """Returns copies of arrays with each number changed in its last digits: input of another reference run.

    >>> state = {"x": np.linspace(1, 2, 5), "seed": np.array([7])}
    >>> other = twinrun.perturb(state, ulp=1, seed=3)
    >>> bool(np.all(np.abs(other["x"] - state["x"]) <= 4.5e-16)), other["seed"]
    (True, array([7]))

    Parameters
    ----------
    arrays : dict of str to numpy.ndarray
        The state. Integers, booleans and texts stay as they are, so that seeds are kept.
    ulp : int, default None
        Each number moves by this many representable values, up or down.
    relative : float, default None
        Each number changes by a random share of itself, at most this one.
    seed : int, default 0
        Of the signs and shares: another seed gives another perturbation, the same one the same.
    fields : str or iterable of str, default None
        Globs of the arrays to change; None for all of numbers with fractions.

    Returns
    -------
    dict of str to numpy.ndarray
        Copies, of the same types and shapes; arrays that are not changed are the given ones.

    Raises
    ------
    TwinrunError
        Nothing would change, or a parameter has no meaning.

    Notes
    -----
    Zeros, NaN and infinities stay. Signs are never changed, and no number becomes 0 or infinite. Masks of
    masked arrays stay.
    """
    change = Change(ulp, relative)
    rng = np.random.default_rng(checked_seed(seed))
    globs = None if fields is None else names_given(fields, "fields")
    out, changed = perturbed_arrays(arrays, change, rng, globs)
    if not changed:
        raise TwinrunError(
            "nothing was perturbed: no array has a number with a fraction that is not 0", fix="check fields"
        )
    return out


def perturbed_arrays(
    arrays: Mapping[str, np.ndarray], change: Change, rng: np.random.Generator, globs: Sequence[str] | None
) -> tuple[dict[str, np.ndarray], int]:
    """Copies as `perturb` gives them, and how many of their numbers were changed: none is not an
    error here.
    """
    out: dict[str, np.ndarray] = {}
    changed = 0
    for name, given in arrays.items():
        whole = np.asanyarray(given)  # an object may give numpy a masked array
        array, mask = np.asarray(whole), np.ma.getmask(whole)
        chosen = globs is None or any(fnmatchcase(name, glob) for glob in globs)
        if not chosen or array.dtype.kind not in "fc":
            if chosen and globs is not None and name in globs:
                raise TwinrunError(f"{name!r} is {array.dtype}: only numbers with fractions are perturbed")
            out[name] = given
            continue
        made = _of_array(name, array, change, rng)
        if isinstance(whole, np.ma.MaskedArray):
            out[name] = np.ma.array(made, mask=mask.copy(), fill_value=whole.fill_value)
            changed += changed_numbers(made[~mask], array[~mask])
        else:
            out[name] = made
            changed += changed_numbers(made, array)
    return out, changed


def changed_numbers(made: np.ndarray, given: np.ndarray) -> int:
    """How many numbers are others now; NaN, which is never changed, is none."""
    return int(((made != given) & ~(np.isnan(made) & np.isnan(given))).sum())


def checked_seed(seed: object) -> int:
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise TwinrunError(f"seed must be an integer of at least 0, not {in_short(seed)}")
    return int(seed)


def perturbed_text(word: str, change: Change, rng: np.random.Generator) -> str | None:
    """A decimal number with all digits that f64 needs, perturbed; None where the word is not a number.
    Fortran's d is kept.
    """
    plain = word.replace("d", "e").replace("D", "e")
    try:
        value = float(plain)
    except ValueError:
        return None
    if not math.isfinite(value):
        return None
    moved = float(perturbed_values(np.array([value]), "f64", change, rng)[0])
    said = repr(moved)
    if plain != word:
        said = said.replace("e", "d") if "e" in said else said + "d0"
    return said
