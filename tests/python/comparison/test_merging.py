"""A field that is compared in ranges: together they say what one comparison says, however it was divided."""

from __future__ import annotations

import itertools
import math
import pickle
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_compare import make_pair

from twinrun import _core
from twinrun.comparison.merge import Found, Values, merged, ranges_of, with_places
from twinrun.errors import TwinrunError

CODES = {
    "f2": "f16", "f4": "f32", "f8": "f64", "c8": "c64", "c16": "c128", "i1": "i8", "i4": "i32", "i8": "i64", "u8": "u64",
}  # fmt: skip
# What depends on which of the undecided scalars were read: the sketches of a few chunks alone are not worth reading.
HOW = {
    "scalars_read", "max_abs", "max_abs_is_bound", "max_abs_unread", "max_abs_read", "max_abs_at", "max_abs_a", "max_abs_b",
    "max_rel_read", "max_rel_at", "sum_squares", "largest", "histogram", "proven_by_cells", "warnings",
}  # fmt: skip


class Sides:
    """Two arrays, and what the core takes of them."""

    def __init__(self, folder: Path, a: np.ndarray, b: np.ndarray, code: str, **metadata: object) -> None:
        self.dtype = CODES[code]
        self.arrays = [np.ascontiguousarray(x).reshape(-1) for x in (a, b)]
        self.items = self.arrays[0].size
        self.scalars = self.items * (2 if code[0] == "c" else 1)
        self.sources = [
            _core.memory_source(self.dtype, x.size, x.ctypes.data, x.itemsize, False, x) for x in self.arrays
        ]
        self.metadata = [None, None]
        if metadata:
            for at, source in enumerate(self.sources):
                plan = _core.FieldPlan(name="x", dtype=self.dtype, byte_order="little", fortran_order=False,
                                       shape=[self.items], **metadata)  # fmt: skip
                _core.write_metadata(str(folder / f"{at}.twm"), -1, 0, [], [plan], [source])
                self.metadata[at] = _core.Metadata(str(folder / f"{at}.twm"))
        self.unit = _core.range_unit(self.dtype, self.metadata[0])

    def compare(self, ranges: Sequence[tuple[int, int]] | None = None, **asked: object) -> Found:
        sides = [_core.FieldSide(*side) for side in zip(self.sources, self.metadata, strict=True)]
        options = {name: asked.pop(name) for name in ("method", "threads", "memory") if name in asked}
        how = _core.CompareOptions(device="cpu", **options)
        return Found(_core.compare(*sides, _core.Rule(**asked), how, ranges=ranges))


def divided(rng: random.Random, scalars: int, unit: int) -> list[list[tuple[int, int]]]:
    """Parts of a field, each some of its ranges."""
    units = -(-scalars // unit)
    cuts = sorted(rng.sample(range(1, units), min(units - 1, rng.randint(0, 7))))
    ends = [*(c * unit for c in cuts), scalars]
    ranges = [(begin, end - begin) for begin, end in zip([0, *ends], ends, strict=False)]
    parts: dict[int, list[tuple[int, int]]] = {}
    for r in ranges:
        parts.setdefault(rng.randrange(3), []).append(r)
    found = list(parts.values())
    rng.shuffle(found)
    return found


STAGES = {"tree", "sketch", "elements"}
PLAIN = {
    name
    for name in dir(_core.FieldResult)
    if name[0] != "_" and not callable(getattr(_core.FieldResult, name))
}


def check_alike(found: Found, whole: Found, but: set[str]) -> None:
    if but:
        but = {*but, "max_abs_at_least"}
    for key in PLAIN - but - STAGES - {"io", "device_seconds", "device_reason"}:
        x, y = getattr(found.result, key), getattr(whole.result, key)
        if key.startswith("sum_squares"):
            assert x == pytest.approx(y, rel=1e-12, nan_ok=True), key
        else:
            assert x == y or repr(x) == repr(y), (key, x, y)  # repr: NaN
    r = found.result
    assert r.scalars_read + r.proven_by_tree + sum(r.proven_by_cells) == r.scalars == whole.result.scalars
    assert set(found.stages) == set(whole.stages) >= STAGES
    for name, stage in whole.stages.items():
        for key in ("ran", "chunks_in", "chunks_out"):
            if not but or name == "tree":
                assert getattr(found.stages[name], key) == getattr(stage, key), (name, key)


def cases() -> Iterator[tuple]:
    for seed, (code, kind, how) in enumerate(
        itertools.product(CODES, ("same", "sparse", "noise", "wild"), ("none", "staged", "published"))
    ):
        if how != "published" or code[0] == "f":
            yield pytest.param(seed, code, kind, how, id=f"{code}-{kind}-{how}")


@pytest.mark.parametrize(("seed", "code", "kind", "how"), list(cases()))
def test_ranges_together_say_what_one_comparison_says(
    tmp_path: Path, seed: int, code: str, kind: str, how: str
) -> None:
    rng = random.Random(seed)
    atol = rng.choice([0.0, 1e-3, 0.37]) if code[0] in "fc" else 0.0
    rtol = rng.choice([0.0, 0.0, 1e-4]) if code[0] in "fc" and how != "published" else 0.0
    items = rng.choice([1, 1024, 4097, 40_000, 150_000])
    a, b = make_pair(np.random.default_rng(seed), code, (items,), atol, kind)
    b[: items // 3] = a[: items // 3]  # a stretch that the tree proves
    metadata = {} if how == "none" else {
        "atol": atol, "rtol": rtol, "residue_bits": rng.choice([0, 2, 4]), "chunk_bytes": rng.choice([4096, 16384]),
        "digest": "published" if how == "published" else "linear",
    }  # fmt: skip
    sides = Sides(tmp_path, a, b, code, **metadata)
    asked = {"atol": atol, "rtol": rtol, "nan_equal": rng.random() < 0.8}
    if how == "none" and code[0] == "f":
        asked |= rng.choice(
            [{}, {"ulps": 3}, {"period": [5.0]}, {"period": [5.0, 0.0, 2.0], "component_stride": 7}]
        )
    for method in ("auto", "direct"):
        whole = sides.compare(**asked, method=method)
        assert whole.result.scalars == sides.scalars
        assert whole.stages["elements"].chunks_out <= whole.result.chunks
        for _ in range(4):
            parts = [
                sides.compare(ranges, **asked, method=method)
                for ranges in divided(rng, sides.scalars, sides.unit)
            ]
            check_alike(merged(parts), whole, HOW if whole.result.method == "staged" else set())
            if len(parts) > 2:  # in groups, and in another order
                check_alike(
                    merged([parts[-1], merged(parts[:-1])]),
                    whole,
                    HOW if whole.result.method == "staged" else set(),
                )


def test_ranges_that_end_where_sketches_are_settled_read_what_one_comparison_reads(tmp_path: Path) -> None:
    stretch = _core.RANGE_BYTES // 4
    a = np.zeros(2 * stretch + stretch // 3, np.float32)
    b = a.copy()
    rng = np.random.default_rng(1)
    chunks = b[: b.size // 1024 * 1024].reshape(-1, 1024)
    # Sketches of few chunks are not worth reading: which they are depends on their neighbours.
    for length in (1, 2, 3, 5, 12):
        for at in rng.integers(0, len(chunks) - length, 300):
            chunks[at : at + length, 5] = -0.6
    edge = stretch // 1024
    chunks[edge - 2 : edge + 2] -= 0.3
    b[rng.integers(0, b.size, 20)] = 9.0
    sides = Sides(tmp_path, a, b, "f4", atol=1.0, rtol=0.0, residue_bits=4, chunk_bytes=4096, digest="linear")
    whole = sides.compare(atol=1.0, rtol=0.0)
    ranges = ranges_of(b.size, stretch, 3)
    tree, sketch = whole.stages["tree"], whole.stages["sketch"]
    assert len(ranges) == 3 and tree.chunks_out > sketch.chunks_in > sketch.chunks_out > 0
    found = merged([sides.compare([r], atol=1.0, rtol=0.0) for r in ranges])
    check_alike(found, whole, set())


def test_a_range_is_all_that_is_looked_at(tmp_path: Path) -> None:
    a = np.zeros(20_000, np.float32)
    b = a.copy()
    b[[100, 7000, 19_999]] = 3.0, 5.0, 1.0
    for metadata in (
        {},
        {"atol": 0.5, "rtol": 0.0, "residue_bits": 4, "chunk_bytes": 4096, "digest": "linear"},
    ):
        sides = Sides(tmp_path, a, b, "f4", **metadata)
        r = sides.compare([(1024, 1024), (6144, 1024), (18_432, 1568)], atol=0.5, rtol=0.0).result
        assert (r.scalars, r.chunks, r.different, r.first) == (3616, 4, 2, 7000)
        assert (r.max_abs, r.max_abs_at, r.first_b) == (5.0, 7000, 5.0)
        assert r.elements.chunks_out == 2
        nothing = sides.compare([], atol=0.5, rtol=0.0).result
        assert nothing.scalars == nothing.chunks == nothing.different == nothing.scalars_read == 0


@pytest.mark.parametrize(
    "ranges",
    [
        [(1, 1024)],  # not at a multiple of the unit
        [(0, 1023)],
        [(0, 0)],
        [(0, 4096)],  # behind the end
        [(4096, 1024)],
        [(1024, 1024), (0, 1024)],
        [(0, 2048), (1024, 1024)],
        [(1024, 2**64 - 1)],
        [(1024, 2**64 - 1024)],
    ],
)
@pytest.mark.parametrize("indexed", [False, True])
def test_ranges_that_are_none_are_refused(
    tmp_path: Path, ranges: list[tuple[int, int]], indexed: bool
) -> None:
    metadata = {"atol": 0.0, "rtol": 0.0, "residue_bits": 0, "chunk_bytes": 4096, "digest": "linear"}
    sides = Sides(tmp_path, np.zeros(3000, "f4"), np.zeros(3000, "f4"), "f4", **(metadata if indexed else {}))
    with pytest.raises(TwinrunError, match="ranges must ascend, lie in the field"):
        sides.compare(ranges, atol=0.0, rtol=0.0)


def test_the_unit_is_a_chunk_of_the_metadata(tmp_path: Path) -> None:
    zeros = np.zeros(9000, "c8")
    metadata = {"atol": 0.0, "rtol": 0.0, "residue_bits": 0, "digest": "linear"}
    assert Sides(tmp_path, zeros, zeros, "c8").unit == 1024
    sides = Sides(tmp_path, zeros, zeros, "c8", chunk_bytes=16384, **metadata)
    assert sides.unit == 4096
    with pytest.raises(TwinrunError, match="multiples of 4096"):
        sides.compare([(1024, 4096)], atol=0.0, rtol=0.0)
    assert sides.compare([(1024, 4096)], atol=0.0, rtol=0.0, method="direct").result.scalars == 4096


def test_places_may_be_of_another_order(tmp_path: Path) -> None:
    a, b = np.zeros(6), np.array([0.0, 2.0, 1.0, 0.0, 0.0, 2.0])
    ids = ([40, 30, 20], [10, 50, 5])  # of the scalars, in two passes
    parts = []
    for at, own in enumerate(ids):
        sides = Sides(tmp_path, a[at * 3 : at * 3 + 3], b[at * 3 : at * 3 + 3], "f8")
        parts.append(with_places(sides.compare(atol=0.5, rtol=0.0), lambda i, own=own: (own[i], 0)))
    whole = merged(parts)
    assert whole.first == (5, 0) and whole.first_values == (0.0, 2.0) and whole.result.different == 3
    assert (whole.result.max_abs, whole.max_abs_at) == (2.0, (5, 0))
    again = merged([with_places(merged([parts[1]]), lambda at: at), parts[0]])
    assert again.first == (5, 0) and again.max_rel_different_at == whole.max_rel_different_at


def test_parts_of_different_methods_are_a_defect(tmp_path: Path) -> None:
    metadata = {"atol": 0.0, "rtol": 0.0, "residue_bits": 0, "chunk_bytes": 4096, "digest": "linear"}
    sides = Sides(tmp_path, np.zeros(1), np.ones(1), "f8", **metadata)
    one, other = (sides.compare(atol=0.0, rtol=0.0, method=method) for method in ("direct", "staged"))
    with pytest.raises(ValueError, match="different methods"):
        merged([one, other])


def test_elements_for_people_come_with_the_first_difference(tmp_path: Path) -> None:
    a, b = np.zeros(6), np.array([0.0, 0.0, 0.0, 0.0, 2.0, 0.0])
    sides = [Sides(tmp_path, x, y, "f8") for x, y in ((a, a), (a, b))]
    parts = [side.compare(atol=0.5, rtol=0.0) for side in sides]
    parts[1] = replace(parts[1], readable=Values("zero", "two"))
    for order in (parts, parts[::-1]):
        assert merged(order).first_values == ("zero", "two")
    assert merged([parts[0], parts[0]]).first_values == (None, None)


@given(st.integers(1, 10**12), st.integers(1, 10**7), st.integers(1, 40))
def test_ranges_of_a_field_cover_it(scalars: int, unit: int, parts: int) -> None:
    ranges = ranges_of(scalars, unit, parts)
    assert 1 <= len(ranges) <= parts
    assert [first for first, _ in ranges] == [0, *itertools.accumulate(n for _, n in ranges)][:-1]
    assert sum(n for _, n in ranges) == scalars
    assert all(n % unit == 0 and n > 0 for _, n in ranges[:-1]) and ranges[-1][1] > 0
    sizes = [-(-n // unit) for _, n in ranges]
    assert max(sizes) - min(sizes) <= 1


def test_results_go_to_other_processes(tmp_path: Path) -> None:
    a, b = np.zeros(9), np.array([0.0, 2.0, math.nan, 0.0, 0.0, 2.0, 1e-9, 0.0, 0.0])
    metadata = {"atol": 0.0, "rtol": 0.0, "residue_bits": 4, "chunk_bytes": 4096, "digest": "linear"}
    for how in ({}, metadata):
        found = Sides(tmp_path, a, b, "f8", **how).compare(atol=0.0, rtol=0.0)
        found = replace(found, built=_core.StageFacts(bytes_read=3, seconds=0.5))
        again = pickle.loads(pickle.dumps(found))
        check_alike(again, found, set())
        for name in ("io", "device_seconds", "device_reason"):
            assert getattr(again.result, name) == getattr(found.result, name)
        for name, stage in found.stages.items():
            for key in ("ran", "chunks_in", "chunks_out", "bytes_read", "seconds"):
                assert getattr(again.stages[name], key) == getattr(stage, key)
