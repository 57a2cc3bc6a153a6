"""Libraries whose arrays lie on a GPU."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest


def imported(name: str) -> ModuleType:
    """A module, or a skip: any of these libraries may be there for another machine than this."""
    try:
        return importlib.import_module(name)
    except Exception as e:
        pytest.skip(f"{name} cannot be imported: {e}")


def library(name: str) -> Callable[[np.ndarray], object]:
    """What puts an array of the host onto the GPU."""
    if name == "cupy":
        return imported("cupy").asarray
    if name == "torch":
        torch = imported("torch")
        if not torch.cuda.is_available():
            pytest.skip("PyTorch sees no GPU")
        return lambda a: torch.from_numpy(np.array(a)).cuda()
    if name == "numba":
        cuda = imported("numba.cuda")
        if not cuda.is_available():
            pytest.skip("Numba sees no GPU")
        return cuda.to_device
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = imported("jax")
    jax.config.update("jax_enable_x64", True)
    try:
        target = jax.devices("gpu")[0]
    except RuntimeError:
        pytest.skip("JAX sees no GPU")
    return lambda a: jax.device_put(a, target)
