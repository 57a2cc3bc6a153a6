"""Tensors that offer themselves to C (DLPack's exchange interface) are taken as they say, and left to Python where that is odd.

A package stands for PyTorch: its tensors say what the test wants.
"""

from __future__ import annotations

import ctypes
import sys
import types
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from dlpack_exchange import CPU, CUDA, OTHER, Exchange, Function, capsule, describe, in_items
from test_lists import listed


class Tensor:
    """A tensor of the package: an array, and what it says of itself that is not so."""

    def __init__(
        self, array: np.ndarray, negative: bool = False, named: bool = False, **says: object
    ) -> None:
        self.array, self.negative, self.named, self.says = array, negative, named, says
        self.shape_there, self.strides_there = in_items(array)

    def is_neg(self) -> bool:
        return self.negative

    def is_conj(self) -> bool:
        return False

    def has_names(self) -> bool:
        return self.named


@Function
def tensor_of(of: Tensor, into: ctypes.pointer) -> int:
    if of.says.get("fails"):
        return -1
    to = into.contents
    describe(to, of.array, of.shape_there, of.strides_there, CPU)
    for name, value in of.says.items():
        setattr(to, name, value)
    return 0


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Makes the package; the exchange interface is that of the version given."""
    kept = []

    def make(major: int = 1, name: bytes = b"dlpack_exchange_api", function: bool = True) -> None:
        own = Exchange(1, 3, None, None, None, None, ctypes.cast(tensor_of, ctypes.c_void_p), None)
        if not function:
            own.tensor_of = None
        if major != 1:
            newer = Exchange(major, 0, ctypes.addressof(own))
            kept.append(own)
            own = newer
        kept.append(own)
        monkeypatch.setattr(Tensor, "__dlpack_c_exchange_api__", capsule(own, name), raising=False)
        nn = types.SimpleNamespace(Parameter=type("Parameter", (), {}))
        monkeypatch.setitem(
            sys.modules, "torch", types.SimpleNamespace(Tensor=Tensor, nn=nn, strided=object())
        )

    yield make
    kept.clear()


def taken(tensor: Tensor) -> bool:
    """Whether the core took it without a look of Python's."""
    found = listed({"x": np.zeros(3), "t": tensor})
    return found is not None and list(found.arrays()) == ["x", "t"] and not found.rest


@pytest.mark.parametrize("kind", "i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16 ?".split())
@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 4), (2, 0, 3), (1, 4, 1)])
def test_what_is_dense_is_taken(package, kind: str, shape: tuple) -> None:
    package()
    array = np.ones(shape, kind)
    assert taken(Tensor(array))
    assert taken(Tensor(np.asfortranarray(array)))


def test_what_is_taken_is_the_array(package) -> None:
    import twinrun

    package()
    random = np.random.default_rng(1)
    for order in "CF":
        a = {f"x{at}": np.array(random.standard_normal((4, at + 1)), order=order) for at in range(20)}
        b = {name: x.copy(order=order) for name, x in a.items()}
        b["x7"][2, 3] += 1
        found = twinrun.compare(
            {name: Tensor(x) for name, x in a.items()}, {name: Tensor(x) for name, x in b.items()}
        )
        want = twinrun.compare(a, b)
        assert found.first is not None and found.first.first_index == (2, 3)
        assert [(f.field, f.shape, f.different) for f in found.fields] == [
            (f.field, f.shape, f.different) for f in want.fields
        ]


@pytest.mark.parametrize(
    "odd",
    [
        {"negative": True},
        {"named": True},
        {"fails": True},
        {"lanes": 2},
        {"bits": 12},
        {"code": 77},
        {"dimensions": -1},
        {"device_type": OTHER},
        {"device_type": CUDA, "device": -3},
        {"device_type": CUDA, "device": 4000},
        {"data": None},
    ],
)
def test_what_is_odd_is_left_to_python(package, odd: dict) -> None:
    package()
    assert not taken(Tensor(np.ones(4), **odd))


def test_sizes_that_are_none_are_left_to_python(package) -> None:
    package()
    for shape, strides in (((-1, 2), (2, 1)), ((1 << 62, 4), (4, 1)), ((2, 2), (-2, 1)), ((2, 2), (3, 1))):
        tensor = Tensor(np.ones((2, 2)))
        tensor.shape_there[:] = shape
        tensor.strides_there[:] = strides
        assert not taken(tensor)


def test_without_strides_it_is_dense(package) -> None:
    package()
    assert taken(Tensor(np.ones((2, 3)), strides=ctypes.POINTER(ctypes.c_int64)()))


@pytest.mark.parametrize("offer", [{"name": b"another"}, {"function": False}])
def test_what_offers_nothing_is_asked_by_its_attributes(package, offer: dict) -> None:
    package(**offer)
    assert not taken(Tensor(np.ones(4)))  # it has none of them


def test_a_newer_interface_leads_to_the_older_one(package) -> None:
    package(major=2)
    assert taken(Tensor(np.ones(4)))
