"""Arrays on a GPU for benchmarks, made by PyTorch or CuPy, whichever is there, and what these libraries reach by themselves."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np

PART = 16 << 20  # elements copied at a time: 64 MiB


class Library(ABC):
    """What a benchmark asks of PyTorch or CuPy. All arrays are float32."""

    name = ""

    @abstractmethod
    def version(self) -> str:
        """Name and version."""

    @abstractmethod
    def free(self) -> None:
        """Gives the memory of arrays that are gone back to the device."""

    @abstractmethod
    def synchronize(self) -> None:
        """Waits for the device."""

    @abstractmethod
    def free_bytes(self) -> int:
        """Of device memory."""

    @abstractmethod
    def pinned(self, elements: int) -> np.ndarray:
        """Page-locked host memory."""

    @abstractmethod
    def normal(self, elements: int) -> object:
        """N(0, 1) on the device."""

    @abstractmethod
    def shifted(self, a: object, distance: float) -> object:
        """A copy with every element off by +-distance."""

    @abstractmethod
    def copier(self, arrays: Sequence[np.ndarray]) -> Callable[[], None]:
        """A function that copies host arrays to the device, part by part in turn, and waits."""

    @abstractmethod
    def readers(self, arrays: Sequence[object]) -> dict[str, Callable[[], None]]:
        """Functions that read arrays once, and wait: title -> function."""

    def device_seconds(self, work: Callable[[], object]) -> float | None:
        """Of kernels and copies during `work`, added up; None where nothing can say."""
        return None


def _turns(arrays: Sequence[np.ndarray]) -> list[tuple[int, int]]:
    """(array, first element) of parts, the arrays taking turns."""
    longest = max(a.size for a in arrays)
    return [(i, at) for at in range(0, longest, PART) for i, a in enumerate(arrays) if at < a.size]


class _Torch(Library):
    name = "torch"

    def __init__(self) -> None:
        self.torch = importlib.import_module("torch")
        if not self.torch.cuda.is_available():
            raise RuntimeError("PyTorch sees no GPU")
        self.torch.manual_seed(20241202)

    def version(self) -> str:
        return f"PyTorch {self.torch.__version__}"

    def free(self) -> None:
        self.torch.cuda.empty_cache()

    def synchronize(self) -> None:
        self.torch.cuda.synchronize()

    def free_bytes(self) -> int:
        return self.torch.cuda.mem_get_info()[0]

    def pinned(self, elements: int) -> np.ndarray:
        return self.torch.empty(elements, dtype=self.torch.float32, pin_memory=True).numpy()

    def normal(self, elements: int) -> object:
        return self.torch.randn(elements, device="cuda")

    def shifted(self, a: object, distance: float) -> object:
        b = a.clone()
        for part in b.split(1 << 28):
            part += (self.torch.rand_like(part) < 0.5).to(part.dtype).mul_(2 * distance).sub_(distance)
        return b

    def copier(self, arrays: Sequence[np.ndarray]) -> Callable[[], None]:
        to = [self.torch.empty(min(PART, a.size), device="cuda") for a in arrays]
        # Views are made beforehand: what is timed are the copies.
        turns = [(to[i], self.torch.from_numpy(arrays[i][at : at + PART])) for i, at in _turns(arrays)]

        def run() -> None:
            for into, part in turns:
                into[: part.numel()].copy_(part, non_blocking=True)
            self.synchronize()

        return run

    def readers(self, arrays: Sequence[object]) -> dict[str, Callable[[], None]]:
        def sums() -> None:
            for a in arrays:
                a.sum()
            self.synchronize()

        def dots() -> None:  # lengths of cuBLAS are 32-bit
            parts = [a.split(1 << 29) for a in arrays]
            for x, y in zip(parts[0], parts[-1], strict=True):
                self.torch.dot(x, y)
            self.synchronize()

        return {"torch.sum of each": sums, "torch.dot of both": dots}

    def device_seconds(self, work: Callable[[], object]) -> float | None:
        profiler = self.torch.profiler
        with profiler.profile(activities=[profiler.ProfilerActivity.CUDA]) as p:
            work()
            self.synchronize()
        total = 0.0
        for e in p.key_averages():
            total += getattr(e, "self_device_time_total", None) or getattr(e, "self_cuda_time_total", 0.0)
        return total / 1e6 if total else None


class _CuPy(Library):
    name = "cupy"

    def __init__(self) -> None:
        self.cupy = importlib.import_module("cupy")
        if self.cupy.cuda.runtime.getDeviceCount() < 1:
            raise RuntimeError("CuPy sees no GPU")
        self.random = self.cupy.random.default_rng(20241202)

    def version(self) -> str:
        return f"CuPy {self.cupy.__version__}"

    def free(self) -> None:
        self.cupy.get_default_memory_pool().free_all_blocks()

    def synchronize(self) -> None:
        self.cupy.cuda.Device().synchronize()

    def free_bytes(self) -> int:
        return self.cupy.cuda.Device().mem_info[0]

    def pinned(self, elements: int) -> np.ndarray:
        return importlib.import_module("cupyx").empty_pinned(elements, np.float32)

    def normal(self, elements: int) -> object:
        return self.random.standard_normal(elements, dtype=np.float32)

    def shifted(self, a: object, distance: float) -> object:
        b = a.copy()
        for at in range(0, b.size, 1 << 28):
            part = b[at : at + (1 << 28)]
            signs = self.random.random(part.size, dtype=np.float32) < 0.5
            part += signs.astype(np.float32) * np.float32(2 * distance) - np.float32(distance)
        return b

    def copier(self, arrays: Sequence[np.ndarray]) -> Callable[[], None]:
        to = [self.cupy.empty(min(PART, a.size), np.float32) for a in arrays]
        turns = [(to[i], arrays[i][at : at + PART]) for i, at in _turns(arrays)]
        stream = self.cupy.cuda.Stream.null

        def run() -> None:
            for into, part in turns:
                into[: part.size].set(part, stream=stream)
            self.synchronize()

        return run

    def readers(self, arrays: Sequence[object]) -> dict[str, Callable[[], None]]:
        def sums() -> None:
            for a in arrays:
                a.sum()
            self.synchronize()

        return {"cupy.sum of each": sums}


def library() -> tuple[Library | None, str]:
    """PyTorch, else CuPy, else None and why."""
    reasons = []
    for make in (_Torch, _CuPy):
        try:
            return make(), ""
        except Exception as e:  # anything: they may be there for another machine than this
            reasons.append(f"{make.name}: {e}")
    return None, "; ".join(reasons)
