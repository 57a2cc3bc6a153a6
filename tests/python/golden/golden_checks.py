"""What tests of golden files share: a check of an array, held against brute force."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
from support import brute_force, scalars

from twinrun import golden


def checked(a: np.ndarray, b: np.ndarray, folder: Path, bits: int = 4, **save: object) -> golden.GoldenField:
    golden.save({"x": a}, folder / "golden", residue_bits=bits, chunk_bytes=4096, keep_values=0, **save)
    result = golden.check(folder / "golden", {"x": b}, most_listed=10**6)
    assert result.problems == []
    (field,) = result.fields
    return field


def hold_against_brute_force(a: np.ndarray, b: np.ndarray, field: golden.GoldenField) -> None:
    """Everything that the field says is so."""
    truth = brute_force(a, b, field.atol, field.rtol)
    different = set(truth["different"])
    flat = {field_index(a, i): i for i in range(scalars(a).size)}
    assert field.verdict != "same" or not different
    assert field.different <= len(different)
    if field.different_is_exact:
        assert field.different == len(different) and not field.undecided and not field.chunks_undecided
    for e in field.listed:
        i = flat[e.index]
        if e.verdict == "different":
            assert i in different, (e, scalars(a)[i], scalars(b)[i])
        x, y = truth["a"][i].item(), truth["b"][i].item()
        if math.isfinite(x) and math.isfinite(y):
            exact = abs(Fraction(x) - Fraction(y))
            assert Fraction(e.at_least) <= exact, (e, x, y)
            assert math.isinf(e.at_most) or exact <= Fraction(e.at_most), (e, x, y)
        assert (
            np.array_equal(e.b, truth["b"][i].item(), equal_nan=True) if e.b != e.b else e.b == truth["b"][i]
        )
    for span in field.spans:
        inside = [i for i in different if span.first <= i <= span.last]
        assert span.different <= len(inside)
        if span.exact and not span.undecided:
            assert span.different == len(inside)
    # A difference lies in a chunk that is named; where all cells are known, its element is named too.
    listed = {flat[e.index] for e in field.listed}
    for i in different:
        (span,) = [s for s in field.spans if s.first <= i <= s.last]
        assert i in listed or not span.exact, (i, truth["a"][i], truth["b"][i])
    if field.at_most is not None:
        for i, d in enumerate(truth["diffs"]):
            assert d <= field.at_most or i in different, (i, d, field.at_most)


def field_index(a: np.ndarray, scalar: int) -> tuple[int, ...]:
    if a.dtype.kind == "c":
        item, part = divmod(scalar, 2)
        return (*map(int, np.unravel_index(item, a.shape)), part)
    return tuple(map(int, np.unravel_index(scalar, a.shape)))
