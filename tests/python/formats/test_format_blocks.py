import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinrun.formats.blocks import BandCache, BandReader, boxes, plan_band

SHAPES = st.lists(st.integers(1, 9), min_size=0, max_size=4).map(tuple)


@given(SHAPES, st.data())
def test_boxes_are_the_range_in_order(shape, data):
    array = np.arange(math.prod(shape)).reshape(shape)
    first = data.draw(st.integers(0, array.size))
    count = data.draw(st.integers(0, array.size - first))
    if not shape:
        first, count = 0, 1
    found = [array[box].reshape(-1) for box in boxes(first, count, shape)]
    assert len(found) <= max(1, 2 * len(shape))
    assert np.concatenate([*found, []]).tolist() == list(range(first, first + count))


class Storage:
    """An array in chunks that counts how often each is decoded."""

    def __init__(self, array, chunks):
        self.array, self.chunks, self.decoded = array, chunks, {}

    def read_box(self, box):
        ranges = [range(s.start // c, -(-s.stop // c)) for s, c in zip(box, self.chunks, strict=True)]
        for index in np.ndindex(*(len(r) for r in ranges)):
            key = tuple(r[i] for r, i in zip(ranges, index, strict=True))
            self.decoded[key] = self.decoded.get(key, 0) + 1
        return self.array[box]


@settings(max_examples=300)
@given(SHAPES.filter(len), st.data())
def test_any_reads_equal_slices(shape, data):
    chunks = tuple(data.draw(st.integers(1, 2 * size)) for size in shape)
    storage = Storage(np.random.default_rng(0).random(shape), chunks)
    cache = BandCache(0)
    cache.budget = data.draw(st.integers(16, 4000))
    reader = BandReader(shape, chunks, storage.array.dtype, storage.read_box, cache)
    flat = storage.array.reshape(-1)
    at = 0
    for _ in range(12):
        if data.draw(st.booleans()):
            at = data.draw(st.integers(0, flat.size))
        count = data.draw(st.integers(0, flat.size - at))
        assert (reader.read(at, count) == flat[at : at + count]).all()
        at += count


@pytest.mark.parametrize("piece", [1, 7, 64, 1000])
@pytest.mark.parametrize("interleaved", [1, 2])
def test_a_pass_decodes_each_chunk_once(piece, interleaved):
    storages = [Storage(np.random.default_rng(n).random((30, 20, 10)), (7, 6, 5)) for n in range(interleaved)]
    cache = BandCache(1 << 20)
    readers = [BandReader(s.array.shape, s.chunks, s.array.dtype, s.read_box, cache) for s in storages]
    for at in range(0, 6000, piece):
        for reader, storage in zip(readers, storages, strict=True):
            count = min(piece, 6000 - at)
            assert (reader.read(at, count) == storage.array.reshape(-1)[at : at + count]).all()
    for storage in storages:
        assert set(storage.decoded.values()) == {1} and len(storage.decoded) == 5 * 4 * 2


def test_one_small_read_decodes_only_what_it_touches():
    storage = Storage(np.zeros((64, 64, 64)), (16, 16, 16))
    reader = BandReader(
        (64, 64, 64), storage.chunks, storage.array.dtype, storage.read_box, BandCache(64 << 20)
    )
    reader.read(100_000, 10)
    assert len(storage.decoded) == 1


@given(SHAPES.filter(len), st.integers(1, 10_000), st.data())
def test_bands_keep_to_their_budget(shape, largest, data):
    chunks = tuple(data.draw(st.integers(1, 2 * size)) for size in shape)
    axis, thickness = plan_band(shape, chunks, 8, largest)
    assert 1 <= thickness <= shape[axis]
    assert thickness * math.prod(shape[axis + 1 :]) * 8 <= max(largest, 8)


@pytest.mark.parametrize(
    ("shape", "chunks", "anywhere"),
    [
        ((1 << 20, 64, 64), (64, 64, 64), True),
        ((1 << 20, 64, 64), (1 << 10, 64, 64), True),  # 16 MiB each
        ((1 << 20, 64, 64), (1 << 11, 64, 64), False),
        ((1 << 26,), (1 << 26,), False),  # one chunk
        ((1 << 14, 1 << 14), (1 << 14, 1 << 7), False),  # chunks that every band cuts
        ((3, 4), (3, 4), True),
        ((), (), True),
    ],
)
def test_readers_may_begin_anywhere_where_bands_are_small(shape, chunks, anywhere):
    reader = BandReader(shape, chunks, np.dtype("f4"), lambda box: np.empty(0), BandCache(256 << 20))
    assert reader.reads_anywhere is anywhere


def test_huge_arrays_are_planned_without_memory():
    axis, thickness = plan_band((1 << 20, 1 << 20, 1 << 20), (64, 64, 64), 4, 128 << 20)
    assert thickness * (1 << 20) ** (2 - axis) * 4 <= 128 << 20
