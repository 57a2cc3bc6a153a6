import itertools
import math

import numpy as np
import pytest
from format_checks import array_of, check_field, same
from hypothesis import given, settings
from hypothesis import strategies as st

from twinrun.errors import DamagedFile
from twinrun.formats.blocks import BandCache
from twinrun.formats.layout import Decoded, Stored
from twinrun.formats.strided import Part, Strided, field_of_parts, field_of_strided

FAST = settings(max_examples=200)


@FAST
@given(st.data())
def test_any_strides_are_what_numpy_says(tmp_path, data):
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=0, max_size=4)))
    strides = tuple(data.draw(st.integers(0, 9)) for _ in shape)
    if data.draw(st.booleans()):  # an array, its axes in another order
        dense = [math.prod(shape[a + 1 :]) for a in range(len(shape))]
        order = data.draw(st.permutations(range(len(shape))))
        shape, strides = tuple(shape[a] for a in order), tuple(dense[a] for a in order)
    big = data.draw(st.booleans())
    offset = data.draw(st.integers(0, 5))
    last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    base = array_of(">f4" if big else "<f4", (last + 1,))
    path = tmp_path / "x"
    path.write_bytes(b"abc" + base.tobytes())
    expected = np.lib.stride_tricks.as_strided(base[offset:], shape, [4 * s for s in strides])
    raw = base.tobytes()
    is_stored = data.draw(st.booleans())
    source = Stored(str(path), 3) if is_stored else Decoded(str(path), lambda at, n: raw[at : at + n])
    array = Strided(source, 4 * offset, "f32", "big" if big else "little", shape, strides)
    field = field_of_strided("x", array, str(path), BandCache(1 << 20))
    check_field(field, np.ascontiguousarray(expected).reshape(shape))
    if is_stored and all(s == math.prod(shape[a + 1 :]) for a, s in enumerate(strides)):
        assert len(field.extents) == 1
    box = tuple(
        slice(a, data.draw(st.integers(a + 1, n))) for n in shape for a in [data.draw(st.integers(0, n - 1))]
    )
    assert same(array.read_box(box), np.array(expected[box]))


@st.composite
def tilings(draw, shape):
    """Cuts along every axis: boxes (start, sizes) that tile the shape."""
    boxes = [((), ())]
    for n in shape:
        cuts = sorted({0, n, *draw(st.lists(st.integers(1, n), max_size=3))})
        boxes = [
            ((*start, a), (*sizes, b - a)) for start, sizes in boxes for a, b in itertools.pairwise(cuts)
        ]
    return draw(st.permutations(boxes))


def parts_of(path, array, boxes):
    parts, raw = [], b"junk"
    for start, sizes in boxes:
        inside = tuple(slice(a, a + n) for a, n in zip(start, sizes, strict=True))
        strides = tuple(math.prod(sizes[a + 1 :]) for a in range(len(sizes)))
        parts.append(Part(start, Strided(Stored(str(path), len(raw)), 0, "f64", "little", sizes, strides)))
        raw += np.ascontiguousarray(array[inside]).tobytes()
    path.write_bytes(raw)
    return parts


@FAST
@given(st.data())
def test_parts_of_any_tiling(tmp_path, data):
    shape = tuple(data.draw(st.lists(st.integers(1, 6), max_size=3)))
    array = array_of("<f8", shape)
    boxes = data.draw(tilings(shape))
    parts = parts_of(tmp_path / "x", array, boxes)
    field = field_of_parts("x", "f64", shape, parts, "here", BandCache(1 << 20))
    check_field(field, array)
    if all(sizes[1:] == shape[1:] for _, sizes in boxes):
        assert len(field.extents) == len(boxes)


def test_parts_that_do_not_tile(tmp_path):
    array = array_of("<f8", (4, 4))
    cache = BandCache(1 << 20)
    for boxes, words in [
        ([((0, 0), (2, 4))], "do not add up"),
        ([((0, 0), (2, 4)), ((3, 0), (2, 4))], "extends beyond"),
        ([((-1, 0), (4, 4))], "extends beyond"),
    ]:
        parts = parts_of(tmp_path / "x", np.zeros((8, 8)), boxes)
        with pytest.raises(DamagedFile, match=words):
            field_of_parts("x", "f64", (4, 4), parts, "here", cache)
    # As many elements as the whole, yet one box twice.
    parts = parts_of(tmp_path / "x", array, [((0, 0), (2, 4)), ((0, 0), (2, 4))])
    field = field_of_parts("x", "f64", (4, 4), parts, "here", cache)
    with pytest.raises(DamagedFile, match="overlap and leave holes"):
        field.elements()
