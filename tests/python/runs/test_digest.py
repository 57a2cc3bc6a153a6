"""`twinrun.digest`: equal for equal arrays wherever they lie, different for whatever fools XOR, sums and norms."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twinrun_spec import digest as spec

import twinrun

NUMBER = 1000


def xor_of_bits(x: np.ndarray) -> int:
    """`torch.hash_tensor`: the XOR of the elements' bits as float64."""
    return int(np.bitwise_xor.reduce(x.astype(np.float64).reshape(-1).view(np.uint64), initial=np.uint64(0)))


def l1_norm(x: np.ndarray) -> float:
    """PyTorch's "norm" hash."""
    return float(np.abs(np.nan_to_num(x.astype(np.float64), nan=0.0)).sum())


def plain_sum(x: np.ndarray) -> float:
    return float(x.astype(np.float64).sum())


OTHERS: dict[str, Callable] = {"xor": xor_of_bits, "norm": l1_norm, "sum": plain_sum}


def ways() -> Iterator[tuple[str, np.ndarray, np.ndarray, set[str]]]:
    """(name, array, another array, which of `OTHERS` it fools), exactly representable, so that sums have one value."""
    rng = np.random.default_rng(5)
    whole = rng.integers(-50, 50, NUMBER).astype(np.float32)
    for n in (2, 4, 6, 8, 16, 100, 1024, 4096):
        yield f"ones({n}) and zeros", np.ones(n, np.float32), np.zeros(n, np.float32), {"xor"}
        yield f"twos({n}) and threes", np.full(n, 2, np.float32), np.full(n, 3, np.float32), {"xor"}
    for i, j in ((0, 1), (0, NUMBER - 1), (17, 18), (3, 700), (511, 512), (1, 513), (100, 900), (998, 999)):
        y = whole.copy()
        y[i], y[j] = whole[j] + (whole[i] == whole[j]), whole[i]
        y[j] = whole[i]
        x = whole.copy()
        x[j] = y[i]
        yield f"elements {i} and {j} exchanged", x, y, {"xor", "sum", "norm"}
    for shift in (1, 2, 7, 500, 512, 999):
        yield f"rolled by {shift}", whole, np.roll(whole, shift), {"xor", "sum", "norm"}
    yield "reversed", whole, whole[::-1].copy(), {"xor", "sum", "norm"}
    yield "sorted", whole, np.sort(whole), {"xor", "sum", "norm"}
    for seed in range(6):
        yield (
            f"shuffled with {seed}",
            whole,
            np.random.default_rng(seed).permutation(whole),
            {"xor", "sum", "norm"},
        )
    for rows, columns in ((10, 100), (25, 40), (2, 500)):
        m = whole.reshape(rows, columns)
        yield f"transposed {rows} x {columns}", m, np.ascontiguousarray(m.T), {"xor", "sum", "norm"}
        yield f"rows of {rows} exchanged", m, m[::-1].copy(), {"xor", "sum", "norm"}
        yield f"columns of {columns} exchanged", m, m[:, ::-1].copy(), {"xor", "sum", "norm"}
        yield f"reshaped to {rows} x {columns}", whole, m, {"xor", "sum", "norm"}
    for k in (1, 2, 8, 1024):
        y = whole.copy()
        y[3], y[400] = y[3] + k, y[400] - k
        yield f"{k} carried from one element to another", whole, y, {"sum"}
        pair = np.concatenate([whole, np.full(2, k, np.float32)])
        other = np.concatenate([whole, np.full(2, -k, np.float32)])
        yield f"a pair of {k} with its sign changed", pair, other, {"xor", "norm"}
        yield f"a pair of {k} appeared", np.concatenate([whole, np.zeros(2, np.float32)]), pair, {"xor"}
    for i in (0, 5, 512, 999):
        y = whole.copy()
        x = whole.copy()
        x[i], y[i] = 7, -7
        yield f"the sign of element {i}", x, y, {"norm"}
    yield "all signs", whole, -whole, {"norm"}
    yield (
        "-0.0 for 0.0",
        np.zeros(4, np.float32),
        np.array([0, -0.0, 0, -0.0], np.float32),
        {"xor", "sum", "norm"},
    )
    yield "one -0.0", np.zeros(4, np.float32), np.array([0, 0, -0.0, 0], np.float32), {"sum", "norm"}
    yield "NaN for 0", np.zeros(4, np.float32), np.array([0, np.nan, np.nan, 0], np.float32), {"xor", "norm"}
    other_nan = np.array([0x7FC00001, 0x7FC00000], np.uint32).view(np.float32)
    yield "another NaN", np.array([np.nan, np.nan], np.float32), other_nan, {"norm"}
    for n in (1, 2, 100, 512, 1024, 5000):
        longer = np.concatenate([whole, np.zeros(n, np.float32)])
        yield f"{n} zeros at the end", whole, longer, {"xor", "sum", "norm"}
        yield (
            f"{n} zeros in front",
            whole,
            np.concatenate([np.zeros(n, np.float32), whole]),
            {"xor", "sum", "norm"},
        )
        yield (
            f"zeros({n}) and zeros({n + 1})",
            np.zeros(n, np.float32),
            np.zeros(n + 1, np.float32),
            {"xor", "sum", "norm"},
        )
    yield "nothing and a zero", np.zeros(0, np.float32), np.zeros(1, np.float32), {"xor", "sum", "norm"}
    yield (
        "nothing of another shape",
        np.zeros((0, 3), np.float32),
        np.zeros((3, 0), np.float32),
        {"xor", "sum", "norm"},
    )
    yield "a number and an array of one", np.float32(3), np.full(1, 3, np.float32), {"xor", "sum", "norm"}
    for kind in ("float16", "float64", "int32", "int64", "int8"):
        yield f"as {kind}", whole, whole.astype(kind), {"xor", "sum", "norm"}
    yield "twice", np.concatenate([whole, whole]), np.zeros(2 * NUMBER, np.float32), {"xor"}
    yield "halves exchanged", whole, np.concatenate([whole[500:], whole[:500]]), {"xor", "sum", "norm"}
    blocks = rng.integers(0, 9, (8, 1024)).astype(np.float32)
    for i, j in ((0, 1), (1, 2), (2, 3), (0, 7), (3, 4)):
        swapped = blocks.copy()
        swapped[[i, j]] = swapped[[j, i]]
        yield f"blocks {i} and {j} of 4096 bytes exchanged", blocks, swapped, {"xor", "sum", "norm"}
    chunks = rng.integers(0, 9, (8, 16384)).astype(np.float32)
    for i, j in ((1, 2), (2, 3), (0, 7)):
        swapped = chunks.copy()
        swapped[[i, j]] = swapped[[j, i]]
        yield f"chunks {i} and {j} of 65536 bytes exchanged", chunks, swapped, {"xor", "sum", "norm"}


WAYS = list(ways())


def test_a_hundred_ways() -> None:
    assert len(WAYS) >= 100 and len({name for name, *_ in WAYS}) == len(WAYS)
    for one in OTHERS:
        assert sum(one in fooled for *_, fooled in WAYS) >= 40


@pytest.mark.parametrize("name, a, b, fooled", WAYS, ids=[w[0] for w in WAYS])
def test_fools_others_and_not_this(name: str, a, b, fooled: set[str]) -> None:
    for other in fooled:
        assert OTHERS[other](np.asarray(a)) == OTHERS[other](np.asarray(b)), f"{other} sees it"
    assert fooled and twinrun.digest(a) != twinrun.digest(b)


# ---- the definition ----


def by_the_spec(x: np.ndarray) -> int:
    """spec/digest.md, section 13, by the independent reader."""
    width = x.itemsize // (2 if x.dtype.kind == "c" else 1)
    words = spec.array_words(np.ascontiguousarray(x).tobytes(), width)
    return spec.array_digest(x.dtype.name, x.shape, spec.array_root(*words))


@pytest.mark.parametrize(
    "kind",
    ["float16", "float32", "float64", "complex64", "complex128", "int8", "uint16", "int32", "uint64", "bool"],
)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (5, 7), (1025,), (-1, 5)])
def test_is_what_the_specification_says(kind: str, shape: tuple[int, ...]) -> None:
    if shape == (-1, 5):  # more than a chunk
        shape = (70000 // np.dtype(kind).itemsize // 5, 5)
    raw = np.random.default_rng(3).integers(
        0, 256, max(1, int(np.prod(shape))) * np.dtype(kind).itemsize, np.uint8
    )
    if kind == "bool":
        raw &= 1
    x = raw.view(kind)[: int(np.prod(shape))].reshape(shape)
    assert int(twinrun.digest(x)) == by_the_spec(x)


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "int8", "int32", "uint64", "bool"])
@pytest.mark.parametrize(("atol", "rtol"), [(0.125, 0.0), (0.0, 1e-3), (3.0, 0.5)])
def test_tolerances_are_what_the_specification_says(kind: str, atol: float, rtol: float) -> None:
    rng = np.random.default_rng(4)
    x = (rng.standard_normal((3, 700)) * 9).astype(kind)
    names = {"float": "f", "int": "i", "uint": "u"}
    short = "bool" if kind == "bool" else re.sub("[a-z]+", lambda m: names[m[0]], kind)
    dtype = spec.BY_NAME[short]
    rule = (atol, rtol) if kind.startswith("float") else (0.0, 0.0)
    root = spec.array_root(spec.scalars(x.tobytes(), dtype), dtype, *rule)
    how = f"atol={atol.hex()} rtol={rtol.hex()}"
    assert int(twinrun.digest(x, atol=atol, rtol=rtol)) == spec.array_digest(kind, x.shape, root, how)


def test_the_example_of_the_specification() -> None:
    x = np.array([1.0, -0.0], np.float32)
    root = spec.array_root([0x3F800000, -0x80000000], spec.BY_NAME["i32"])
    page = (Path(__file__).resolve().parents[3] / "spec/digest.md").read_text(encoding="utf-8")
    assert f"the root 0x{root:016X}, and the digest {twinrun.digest(x)}" in page


# ---- what does not matter ----


@given(st.integers(0, 2**32 - 1))
def test_layout_and_threads_do_not_matter(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(tuple(rng.integers(1, 9, 3)))
    same = [
        x.copy(order="F"),
        x[::-1][::-1],
        np.repeat(x, 2, axis=1)[:, ::2],
        x.astype(x.dtype.newbyteorder()),
    ]
    assert {twinrun.digest(y) for y in same} == {twinrun.digest(x)}


@given(st.integers(0, 2**32 - 1))
def test_any_bit_matters(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, int(rng.integers(1, 20000)), np.uint8)
    y = x.copy()
    y[rng.integers(x.size)] ^= np.uint8(1 << rng.integers(8))
    assert twinrun.digest(x) != twinrun.digest(y)


def test_large_arrays_take_all_threads_and_give_the_same() -> None:
    x = np.random.default_rng(1).standard_normal(1 << 20)
    assert twinrun.digest(x) == twinrun.digest(x.reshape(4, -1).copy(order="F").reshape(-1))


# ---- containers, numbers, tolerances, errors ----


@given(st.integers(0, 1 << 32))
def test_batches_are_read_together_as_one_by_one(seed: int) -> None:
    from twinrun.runs.digest import digests_read, digests_started

    rng = np.random.default_rng(seed)
    kinds, shapes = ("f4", "i4", "f8", "c8", "?"), ((), (0,), (3,), (1, 3), (3, 1), (2, 3), (3, 2))
    arrays = []
    for _ in range(rng.integers(1, 20)):
        few = np.array(rng.integers(0, 2, shapes[rng.integers(len(shapes))]))  # many are equal
        arrays.append(few.astype(kinds[rng.integers(len(kinds))]))
    cuts = np.sort(rng.integers(0, len(arrays) + 1, rng.integers(0, 4)))
    batches = [arrays[a:b] for a, b in zip([0, *cuts], [*cuts, len(arrays)], strict=True)]
    read = [*digests_read([digests_started(batch, str) for batch in batches])]
    assert [(int(twinrun.digest(a)), str(a.dtype), a.shape) for a in arrays] == read


def test_containers() -> None:
    x, y = np.arange(3.0), np.arange(4)
    one = twinrun.digest({"x": x, "deep": {"y": [y, x]}})
    assert list(one) == ["x", "deep.y.0", "deep.y.1"]
    assert one["x"] == one["deep.y.1"] == twinrun.digest(x) and one["deep.y.0"] == twinrun.digest(y)
    assert twinrun.digest([x, y]) == [twinrun.digest(x), twinrun.digest(y)]


def test_a_digest_is_a_number() -> None:
    d = twinrun.digest(np.arange(3.0))
    assert int(d) == int(d.hex, 16) and len(str(d)) == 32 and 0 < int(d) < 1 << 128
    assert pickle.loads(pickle.dumps(d)) == d == int(d) and {d: 1}[twinrun.digest(np.arange(3.0))] == 1
    assert abs(d) == int(d) and d - 1 == int(d) - 1 and 1 - d == 1 - int(d) and d - d == 0
    assert d != "d" and twinrun.Digest(5) == 5
    with pytest.raises(twinrun.TwinrunError, match="128 bits"):
        twinrun.Digest(1 << 128)


def test_the_array_may_change_at_once() -> None:
    x = np.arange(5000.0)
    made, expected = twinrun.digest(x), twinrun.digest(x.copy())
    x[:] = 0
    assert made == expected


def test_with_a_tolerance() -> None:
    x = np.full(1000, 0.3)
    assert twinrun.digest(x, atol=1e-3) == twinrun.digest(x + 1e-6, atol=1e-3)
    assert twinrun.digest(x, atol=1e-3) != twinrun.digest(x + 1e-2, atol=1e-3)
    assert twinrun.digest(x, atol=1e-3) != twinrun.digest(x, atol=1e-4) != twinrun.digest(x)
    assert twinrun.digest(x.astype(">f8"), rtol=1e-3) == twinrun.digest(x, rtol=1e-3)


@given(st.integers(0, 2**32 - 1))
def test_equal_digests_of_a_tolerance_prove_agreement(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(3)
    y = x + rng.standard_normal(3) * 10.0 ** rng.integers(-6, 0)
    if twinrun.digest(x, atol=1e-2) == twinrun.digest(y, atol=1e-2):
        assert (np.abs(x - y) <= 1e-2).all()


@pytest.mark.parametrize("wrong", [np.array(["a"], object), np.array([(1, 2.0)], "i4,f4")])
def test_types_without_a_digest(wrong) -> None:
    with pytest.raises(twinrun.TwinrunError):
        twinrun.digest(wrong)


def test_wrong_tolerances() -> None:
    for atol in (-1.0, float("nan"), float("inf")):
        with pytest.raises(twinrun.TwinrunError):
            twinrun.digest(np.zeros(3), atol=atol)


def test_times_have_units() -> None:
    days = np.array([1, 2], "datetime64[D]")
    assert (
        twinrun.digest(days)
        != twinrun.digest(days.astype("datetime64[s]"))
        != twinrun.digest(days.view(np.int64))
    )
