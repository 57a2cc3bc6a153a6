"""Arrays on GPUs for an aggregate. The library takes memory of the host: they are copied there and back.

The array's own library copies (CuPy, Numba, PyTorch): it knows the streams whose work makes the data.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import TwinrunError

__all__ = ["on_host"]

_CUDA = (2, 13)  # DLPack: kDLCUDA, kDLCUDAManaged


def _on_device(array: Any) -> bool:
    if isinstance(array, np.ndarray):
        return False
    try:
        if getattr(array, "__cuda_array_interface__", None) is not None:
            return True
        device = getattr(array, "__dlpack_device__", None)
        return device is not None and int(device()[0]) in _CUDA
    except Exception:  # what an array of another kind says to such a question
        return False


def _copied(name: str, array: Any) -> tuple[np.ndarray, Callable[[np.ndarray], object]]:
    """A copy on the host, in the array's own order, and what brings such a copy back."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        tensor = array.detach()
        return tensor.cpu().numpy(), lambda host: tensor.copy_(torch.from_numpy(host))
    if hasattr(array, "get") and hasattr(array, "set"):  # CuPy
        return array.get(order="A"), array.set
    if hasattr(array, "copy_to_host") and hasattr(array, "copy_to_device"):  # Numba
        return array.copy_to_host(), array.copy_to_device
    raise TwinrunError(f"{name} is on a GPU, and its library has no copy to the host that is known here")


def on_host(arrays: Any, *, writes: bool) -> tuple[Any, Callable[[], None]]:
    """The arrays, with copies on the host in place of those on GPUs; and what brings what was read into these
    copies back. Anything that is no sequence stays as it is.
    """
    if isinstance(arrays, np.ndarray) or not isinstance(arrays, Sequence):
        return arrays, lambda: None
    taken: list[Any] = []
    back: list[tuple[Callable[[np.ndarray], object], np.ndarray]] = []
    for k, array in enumerate(arrays):
        if not _on_device(array):
            taken.append(array)
            continue
        host, put = _copied(f"array {k}", array)
        if not writes:
            # What the file does not have stays as it is.
            host = host if host.flags.writeable else host.copy(order="K")
            back.append((put, host))
        taken.append(host)

    def finish() -> None:
        for put, host in back:
            put(host)

    return taken, finish
