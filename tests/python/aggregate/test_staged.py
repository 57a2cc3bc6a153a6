"""Arrays on GPUs are copied to the host for an aggregate, by their own libraries: no MPI and no GPU is needed."""

from __future__ import annotations

import numpy as np
import pytest

from twinrun import TwinrunError
from twinrun.aggregate.staged import on_host


class OfCuPy:
    """An array that says it is on a GPU, as CuPy's do."""

    def __init__(self, array: np.ndarray) -> None:
        self.there = array
        self.__cuda_array_interface__ = {"shape": array.shape, "typestr": array.dtype.str, "version": 3}

    def get(self, order: str) -> np.ndarray:
        return self.there.copy(order=order)  # type: ignore[arg-type]

    def set(self, host: np.ndarray) -> None:
        self.there[...] = host


class OfNumba:
    """One that says so by DLPack, with Numba's names."""

    def __init__(self, array: np.ndarray) -> None:
        self.there = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def copy_to_host(self) -> np.ndarray:
        host = self.there.copy()
        host.flags.writeable = False
        return host

    def copy_to_device(self, host: np.ndarray) -> None:
        self.there[...] = host


@pytest.mark.parametrize("kind", [OfCuPy, OfNumba])
def test_a_write_takes_a_copy_in_the_order_of_the_array(kind: type) -> None:
    for order in ("C", "F"):
        array = np.asarray(np.arange(6.0).reshape(2, 3), order=order)  # type: ignore[call-overload]
        here = np.arange(3)
        taken, finish = on_host([kind(array), here], writes=True)
        assert taken[1] is here
        assert isinstance(taken[0], np.ndarray)
        assert taken[0].tobytes("A") == (array if kind is OfCuPy else array.copy()).tobytes("A")
        array[0, 0] = 9
        finish()
        assert array[0, 0] == 9


@pytest.mark.parametrize("kind", [OfCuPy, OfNumba])
def test_what_was_read_is_brought_back_and_the_rest_stays(kind: type) -> None:
    array = np.full(5, -1.0)
    taken, finish = on_host([kind(array)], writes=False)
    taken[0][1:4] = [1, 2, 3]
    assert array[2] == -1
    finish()
    assert array.tolist() == [-1, 1, 2, 3, -1]


def test_what_cannot_be_copied_is_refused_and_the_rest_stays_as_it_is() -> None:
    array = OfCuPy(np.zeros(2))
    nothing = type("Nothing", (), {"__cuda_array_interface__": {"shape": (2,)}})()
    with pytest.raises(TwinrunError, match="array 1 is on a GPU, and its library has no copy"):
        on_host([array, nothing], writes=True)
    on_cpu = type("OnCpu", (), {"__dlpack_device__": lambda self: (1, 0)})()
    broken = type("Broken", (), {"__dlpack_device__": lambda self: 1 / 0})()
    for arrays in ([on_cpu, broken, "text"], np.zeros(3), 5, None):
        taken, finish = on_host(arrays, writes=True)
        assert taken is arrays or taken == arrays
        finish()
