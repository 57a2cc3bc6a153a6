"""Containers of arrays of all kinds, and pairs of them of which some fields differ."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

TYPES = "f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8 ? c8 c16".split()
SHAPES = [(), (1,), (7,), (300,), (3, 5), (2, 3, 4), (0,), (2, 0), (5000,), (40, 50)]


def odd_value(random: np.random.Generator) -> object:
    """Something that is no array, or one that Python has to look at."""
    values = [
        0.5, 3, -(1 << 63), 1 << 63, 1 << 70, True, None, "text", b"bytes", (0.9, 0.999), [1, 2], [1, "a"], ["a", "b"], {}, [],
        np.float32(2), np.arange(6.0)[::2], np.ones((3, 3))[:, 1:], np.ones(3, ">f4"), np.array(["a", "b"]),
        np.ma.masked_equal([1, 2, 3], 2), np.array([(1, 2.0)], [("i", "i4"), ("f", "f8")]), {"inner": [None, {"y": np.ones(3)}]},
        OrderedDict(b=np.ones(2), a=np.zeros(2)), np.array("2020-01-01", "M8[D]"), 2j, range(3),
    ]  # fmt: skip
    return values[random.integers(len(values))]


def random_array(random: np.random.Generator, kind: str, shape: tuple[int, ...], fortran: bool) -> np.ndarray:
    values = random.integers(0, 2 if kind == "?" else 100, shape)
    array = np.asarray(values + (0 if kind[0] not in "fc" else random.random(shape))).astype(kind)
    if kind[0] in "fc" and array.size and random.random() < 0.3:
        array.reshape(-1)[random.integers(array.size)] = random.choice([np.nan, np.inf, -0.0])
    return np.asfortranarray(array) if fortran else array


def changed(random: np.random.Generator, array: np.ndarray) -> np.ndarray:
    """A copy in which some elements are others."""
    other = array.copy(order="K")
    if other.size and random.random() < 0.5:
        for _ in range(random.integers(1, 4)):
            at = tuple(random.integers(n) for n in other.shape)
            other[at] = not other[at] if other.dtype == bool else other[at] + random.choice([1, 3])
            if other.dtype.kind in "fc":
                other[at] = random.choice([other[at] * (1 + 1e-6), np.nan, np.inf, other[at]])
    return other


def random_pair(random: np.random.Generator, count: int, nested: bool, odd: float) -> tuple[dict, dict]:
    """Two containers. odd: how often a field has another type, another shape, or is missing in b."""
    a: dict = {}
    b: dict = {}

    def put(into: dict, name: object, value: object, way: int) -> None:
        if way == 1:
            into = into.setdefault("inner", {})
        elif way == 2:  # an entry of a list
            into.setdefault("list", []).append(value)
            return
        elif way == 3:  # of several, in tuples of two
            into.setdefault("pairs", []).append((value, {"of": value}))
            return
        into[name] = value

    for at in range(count):
        kind, shape = random.choice(TYPES), SHAPES[random.integers(len(SHAPES))]
        name = [f"x{at}", f"id{at}", "ids", at if nested else str(at)][random.integers(4)]
        x = random_array(random, kind, shape, random.random() < 0.3)
        y = changed(random, x)
        if random.random() < odd:
            y = y.real.astype("f8")  # another type, perhaps
        if random.random() < odd:
            y = np.ascontiguousarray(y).reshape(-1)
        way = int(random.integers(8)) if nested else 0
        put(a, name, x, way)
        if random.random() >= odd or not b:
            put(b, name, y, way)
        if nested and random.random() < 0.3:
            value = odd_value(random)
            put(a, f"odd{at}", value, way)
            put(b, f"odd{at}", value if random.random() < 0.7 else odd_value(random), way)
    if random.random() < 0.3:
        b = dict(reversed(b.items()))
    return a, b
