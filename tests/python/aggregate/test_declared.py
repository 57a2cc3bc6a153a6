"""What a rank declares for an aggregate, and which arrays of numpy are what was declared: no MPI is needed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest

from twinrun import TwinrunError
from twinrun.aggregate.declared import Block, Variable, c_blocks, c_variables, lengths, pointers


def _take(block: Block, array: object, *, writes: bool = True) -> bytes:
    """The bytes that C gets, if the array is what the block says."""
    _, declared = c_blocks([block], [])
    got = pointers([array], declared, writes)  # type: ignore[list-item]
    return ctypes.string_at(got[0], declared[0].bytes)


SQUARE = np.arange(6, dtype="i4").reshape(2, 3)


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_are_contiguous_in_the_order_of_their_block(order: str) -> None:
    block = Block("i4", (2, 3), (0, 0), (2, 3), order)
    right, wrong = np.asarray(SQUARE, order=order), np.asarray(SQUARE, order="F" if order == "C" else "C")  # type: ignore[call-overload]
    assert _take(block, right) == SQUARE.tobytes(order)  # type: ignore[arg-type]
    # In a flat array the items lie as in the block.
    assert _take(block, right.ravel(order)) == SQUARE.tobytes(order)  # type: ignore[call-overload, arg-type]
    for writes, way in ((True, "give numpy"), (False, "read into one")):
        with pytest.raises(
            TwinrunError, match=f"array 0 is contiguous in the other order.*order='{order}'; {way}"
        ):
            _take(block, wrong, writes=writes)
    with pytest.raises(TwinrunError, match="not contiguous"):
        _take(block, np.zeros((4, 3), "i4", order=order)[::2])  # type: ignore[call-overload]


def test_one_item_has_any_shape_and_order() -> None:
    assert _take(Block("f8", (5, 5), (1, 1), (1, 1)), np.array([[3.0]], order="F")) == np.float64(3).tobytes()
    assert _take(Block("f8", (), (), ()), np.array([3.0])) == np.float64(3).tobytes()


EIGHT = Block("<f8", (8,), (0,), (8,))


@pytest.mark.parametrize(
    ("block", "array", "words"),
    [
        (EIGHT, np.zeros(8, "i8"), "has the type int64, and its block float64"),
        (EIGHT, np.zeros(8, ">f8"), "has the type >f8"),
        (EIGHT, np.zeros(16, "f4"), "has the type float32"),
        (EIGHT, np.zeros(64, "u1"), "has the type uint8"),
        (EIGHT, np.zeros(7), r"the shape \(7,\), and its block \(8,\)"),
        (EIGHT, np.zeros(9), r"the shape \(9,\)"),
        (EIGHT, np.zeros((2, 4)), r"the shape \(2, 4\)"),
        (Block("<f8", (6, 4), (0, 0), (6, 4)), np.zeros((4, 6)), r"\(4, 6\), and its block \(6, 4\)"),
        (
            Block("<f8", (4,), (0,), (4,), local_shape=(6,), local_start=(1,)),
            np.zeros(4),
            r"its block \(6,\)",
        ),
        (EIGHT, np.ma.masked_array(np.zeros(8), mask=[1] * 8), "masked array"),
        (EIGHT, np.zeros(8, "O"), "pointers to objects"),
        (EIGHT, [0.0] * 8, "no array of numpy"),
        (EIGHT, None, "no array of numpy"),
        (
            Block([("a", "i4"), ("b", "i4")], (1,), (0,), (1,)),
            np.zeros(1, [("b", "i4"), ("a", "i4")]),
            "the type",
        ),
        (Block("V8", (8,), (0,), (8,)), np.zeros(8, "f4"), "the type"),
        (Block("V8", (8,), (0,), (8,)), np.zeros(63, "u1"), "the type"),
    ],
)
def test_another_array_than_the_block_is_refused(block: Block, array: object, words: str) -> None:
    with pytest.raises(TwinrunError, match=f"array 0 .*{words}"):
        _take(block, array)


@pytest.mark.parametrize("scalar", [np.float64(0), np.zeros(1)[0], b"12345678", memoryview(b"12345678")])
def test_what_would_be_read_into_a_copy_is_refused(scalar: object) -> None:
    _, declared = c_variables([Variable(8, 1, 0)])
    with pytest.raises(TwinrunError, match="array 0 is no array of numpy; read into an array"):
        pointers([scalar], declared, False)  # type: ignore[list-item]
    read_only = np.broadcast_to(np.zeros(1), (1,))
    with pytest.raises(TwinrunError, match="array 0 is read-only"):
        pointers([read_only], declared, False)
    zero = np.zeros(())
    assert pointers([zero], declared, False)[0] == zero.ctypes.data


def test_an_untyped_block_takes_any_type_of_its_length() -> None:
    block, data = Block("V8", (8,), (0,), (8,)), np.arange(8.0)
    for array in (data, data.view("i8"), data.view("V8"), data.view("u1")):
        assert _take(block, array) == data.tobytes()


@pytest.mark.parametrize(
    "dtype",
    ["O", np.dtype([("a", "i4"), ("b", "O")]), np.dtype(("O", 3)), np.dtype([("a", [("b", "O")])])],
)
def test_objects_are_refused(dtype: object) -> None:
    with pytest.raises(TwinrunError, match=r"block 0: .*pointers to objects"):
        c_blocks([Block(dtype, (2,), (0,), (2,))], [])  # type: ignore[arg-type]
    _, declared = c_variables([Variable(8, 2, 0)])
    with pytest.raises(TwinrunError, match="array 0 has pointers to objects"):
        pointers([np.zeros(2, "O")], declared, True)


@pytest.mark.parametrize(
    ("block", "words"),
    [
        (Block("S0", (2,), (0,), (2,)), "no bytes"),
        (Block(("f4", 3), (2,), (0,), (2,)), "an array itself"),  # type: ignore[arg-type]
        (Block("nothing", (2,), (0,), (2,)), "none of numpy's"),
        (Block("f8", (2,), (0,), (2,), "A"), "order is 'A'"),
        (Block("f8", 2, (0,), (2,)), "tuples of numbers"),  # type: ignore[arg-type]
        (Block("f8", (2, 2), (0,), (2,)), "as many numbers"),
        ("abc", "no Block"),
    ],
)
def test_what_is_no_block_is_refused(block: Block, words: str) -> None:
    with pytest.raises(TwinrunError, match=words):
        c_blocks([block], [])


_WRONG = [(-1, "must not be negative"), (1 << 63, r"less than 2\^63"), ((1 << 64) + 2, r"less than 2\^63"), (2.0, "no whole number"), ("2", "no whole number")]  # fmt: skip


@pytest.mark.parametrize(("value", "words"), _WRONG)
def test_numbers_never_wrap(value: int, words: str) -> None:
    for name in Variable._fields:
        with pytest.raises(TwinrunError, match=f"variable 0: {name} is .*{words}"):
            c_variables([Variable(8, 2, 0)._replace(**{name: value})])
    good = {"global_shape": (4,), "start": (0,), "shape": (2,), "local_shape": (3,), "local_start": (1,)}
    for name in good:
        with pytest.raises(TwinrunError, match=f"block 0: {name} is .*{words}"):
            c_blocks([Block("f8", **{**good, name: (value,)})], [])
    with pytest.raises(TwinrunError, match=f"file_offset is .*{words}"):
        c_blocks([Block("f8", (4,), (0,), (2,), file_offset=value)], [])
    with pytest.raises(TwinrunError, match=words):
        lengths("items", [value])


def test_numbers_of_numpy_count() -> None:
    own, _ = c_blocks(
        [Block("f8", (np.int32(8),), np.array([2]), (np.uint8(3),), file_offset=(1 << 63) - 1)], []
    )  # type: ignore[arg-type]
    assert (own[0].global_shape[0], own[0].start[0], own[0].shape[0]) == (8, 2, 3)
    assert own[0].file_offset == (1 << 63) - 1


def _variable(variable: Variable, array: np.ndarray) -> None:
    _, declared = c_variables([variable])
    pointers([array], declared, True)


def test_a_declared_stride_is_that_of_the_array() -> None:
    data = np.arange(16.0).reshape(4, 4)
    _variable(Variable(8, 4, 0, 0, 32), data[:, 1])
    _variable(Variable(16, 4, 0, 0, 32), data[:, :2])
    _variable(Variable(8, 8, 0, 0, 16), data)  # contiguous memory with gaps
    refused: list[Callable[[], None]] = [
        lambda: _variable(Variable(8, 4, 0), data[:, 1]),
        lambda: _variable(Variable(8, 4, 0, 0, 16), data[:, 1]),
        lambda: _variable(Variable(8, 5, 0, 0, 32), data[:, 1]),
        lambda: _variable(Variable(16, 4, 0, 0, 32), data[:, ::2]),
        lambda: _variable(Variable(8, 4, 0, 0, 32), data[::-1, 1]),
    ]
    for call in refused:
        with pytest.raises(TwinrunError, match="memory_stride"):
            call()
    with pytest.raises(TwinrunError, match="56 bytes, and 64"):
        _variable(Variable(8, 8, 0), np.zeros(7))


def test_one_array_is_no_list_of_arrays() -> None:
    _, declared = c_blocks([Block("f8", (2,), (0,), (2,))] * 2, [])
    with pytest.raises(TwinrunError, match="list of arrays"):
        pointers(np.zeros((2, 2)), declared, True)  # type: ignore[arg-type]
