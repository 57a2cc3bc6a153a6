"""What tests of containers share: verdicts on two of them."""

from __future__ import annotations

import copy

import twinrun


def verdict(a: object, b: object, **options: object) -> str:
    """'incomparable' where `compare` raises that."""
    try:
        return twinrun.compare(a, b, **options).verdict
    except twinrun.Incomparable:
        return "incomparable"


def check_differ(a: object, b: object) -> None:
    """Not the same, in either order; and each is the same as its copy."""
    for x, y in ((a, b), (b, a), ({"x": a}, {"x": b}), ([1, {"x": a}], [1, {"x": b}])):
        assert verdict(x, y) != "same"
        assert verdict(x, copy.deepcopy(x)) == "same"
