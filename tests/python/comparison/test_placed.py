"""Runs whose ranks cut a global array differently: against the arrays as wholes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import twinrun
from twinrun.errors import Incomparable
from twinrun.runs.arrays import taken
from twinrun.runs.fields import FieldRef
from twinrun.runs.parts import Parts as GlobalParts
from twinrun.runs.subject import Opened, Place, Subject

Box = tuple[tuple[int, ...], tuple[int, ...]]  # offset, shape


def part(whole: np.ndarray, box: Box, name: str = "u") -> FieldRef:
    offset, shape = box
    values = np.ascontiguousarray(whole[tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))])
    view = taken(name, values)
    return FieldRef(
        name, view.dtype, "little", shape, False, "memory", memory=view, place=(whole.shape, offset)
    )


class Parts(Subject):
    """A run of one step: of each rank, fields in boxes."""

    def __init__(self, label: str, ranks: list[dict[str, FieldRef]]) -> None:
        super().__init__("history", label, [(7, rank) for rank in range(len(ranks))])
        self.ranks = ranks

    @contextlib.contextmanager
    def open(self, place: Place, use_metadata: bool = True, whole: bool = True) -> Iterator[Opened]:
        yield Opened(self.ranks[place[1]])


@st.composite
def cuttings(draw: st.DrawFn, shape: tuple[int, ...]) -> list[Box]:
    """Boxes that cover the array, made by cutting boxes in two."""
    boxes: list[Box] = [((0,) * len(shape), shape)]
    for _ in range(draw(st.integers(0, 6))):
        offset, size = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        axis = draw(st.integers(0, len(shape) - 1))
        at = draw(st.integers(0, size[axis]))
        first = (*size[:axis], at, *size[axis + 1 :])
        second = (*size[:axis], size[axis] - at, *size[axis + 1 :])
        boxes += [(offset, first), ((*offset[:axis], offset[axis] + at, *offset[axis + 1 :]), second)]
    return draw(st.permutations(boxes))


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, list[Box], list[Box]]:
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    random = np.random.default_rng(draw(st.integers(0, 999)))
    a = random.normal(size=shape).astype(draw(st.sampled_from(["f4", "f8"])))
    b = np.where(random.random(shape) < draw(st.sampled_from([0, 0.02, 0.5])), a + 1, a).astype(a.dtype)
    return a, b, draw(cuttings(shape)), draw(cuttings(shape))


@given(case=cases())
@settings(max_examples=150)
def test_equals_the_comparison_of_the_wholes(case: tuple) -> None:
    a, b, cut_a, cut_b = case
    runs = [
        Parts(label, [{"u": part(whole, box)} for box in cut])
        for label, whole, cut in (("A", a, cut_a), ("B", b, cut_b))
    ]
    found = twinrun.compare(*runs, atol=0.5)
    whole = twinrun.compare(a, b, atol=0.5)
    assert found.verdict == whole.verdict
    assert sum(f.different for f in found.fields) == whole.fields[0].different
    assert sum(f.elements for f in found.fields) == a.size
    if len(found.fields) == 1 and found.fields[0].ranks is not None:
        for name in ("shape", "different", "first_index", "max_abs_diff", "max_abs_index", "histogram"):
            assert getattr(found.fields[0], name) == getattr(whole.fields[0], name), name


@given(case=cases(), data=st.data())
@settings(max_examples=100)
def test_any_stretch_can_be_read(case: tuple, data: st.DataObject) -> None:
    a, _, cut, _ = case
    ref = GlobalParts("u", [(rank, part(a, box)) for rank, box in enumerate(cut)], "A").field()
    assert ref.reader is not None and ref.user_shape == a.shape
    first = data.draw(st.integers(0, a.size))
    count = data.draw(st.integers(0, a.size - first))
    assert (ref.reader.elements(first, count) == a.reshape(-1)[first : first + count]).all()


def test_large_arrays_go_through_the_core() -> None:
    random = np.random.default_rng(1)
    a = random.normal(size=(64, 96, 80))
    b = a.copy()
    b[13, 57, 42] += 1
    slabs = [((i * 16, 0, 0), (16, 96, 80)) for i in range(4)]
    pencils = [((0, j * 32, k * 40), (64, 32, 40)) for j in range(3) for k in range(2)]
    runs = [
        Parts(label, [{"u": part(whole, box), "v": part(whole, box, "v")} for box in cut])
        for label, whole, cut in (("A", a, slabs), ("B", b, pencils))
    ]
    found = twinrun.compare(*runs)
    assert found.first_divergence is not None and found.first_divergence["index"] == [13, 57, 42]
    assert [(f.field, f.different, f.ranks) for f in found.fields] == [("u", 1, 6), ("v", 1, 6)]


def test_what_does_not_cover_the_array_is_refused() -> None:
    a = np.arange(24.0).reshape(4, 6)
    whole = Parts("A", [{"u": part(a, ((0, 0), (4, 6)))}])
    for boxes, said in (
        ([((0, 0), (2, 6)), ((1, 0), (3, 6))], "ranks 0 and 1 both hold"),
        ([((0, 0), (2, 6)), ((3, 0), (1, 6))], "hold 18 of the 24"),
    ):
        with pytest.raises(Incomparable, match=said):
            twinrun.compare(whole, Parts("B", [{"u": part(a, box)} for box in boxes]))


def test_ranks_without_places_are_missing() -> None:
    a = np.arange(24.0).reshape(4, 6)
    halves = [{"u": part(a, ((0, 0), (2, 6)))}, {"u": part(a, ((2, 0), (2, 6)))}]
    for ranks in halves:
        ranks["u"].place = None
    with pytest.raises(Incomparable, match="rank 1 of B: not there"):
        twinrun.compare(Parts("A", [{"u": part(a, ((0, 0), (4, 6)))}]), Parts("B", halves))


@pytest.mark.parametrize("keep_data", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_a_part_beside_an_array_without_a_place_is_noted(
    tmp_path: Path, keep_data: bool, first: bool
) -> None:
    x, placed = np.arange(12.0), {"x": ((24,), (12,))}
    for name, where in (("a", placed), ("b", {}), ("whole", {"x": ((12,), (0,))}), ("c", placed)):
        with twinrun.Run(tmp_path / name, keep_data=keep_data) as run:
            run.capture(0, {"x": x}, global_place=where)
    pair = ("a", "b") if first else ("b", "a")
    found = twinrun.compare(*(tmp_path / name for name in pair))
    assert found.verdict == "same"
    (note,) = found.notes
    assert f"field 'x' is the part of [24] from [12] on in {tmp_path / 'a'}" in note
    assert f"{tmp_path / 'b'} does not say which part it is" in note
    for name, other in (("a", "c"), ("b", "whole"), ("whole", "b")):
        assert twinrun.compare(tmp_path / name, tmp_path / other).notes == []
