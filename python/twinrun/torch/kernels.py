"""Which kernels run one operation, as PyTorch's profiler sees them."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["Kernels"]

_MOST = 8  # names of one operation


class Kernels:
    """Runs operations under a profiler, in the thread that made this.

    No error of the profiler reaches the operation, which runs once in any case. Where another profiler is at
    work, none is begun.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def ran(self, run: Callable[[], Any]) -> tuple[Any, str]:
        """What an operation gives, and the names of its kernels; on a CPU of the operations within it. ''
        where they are not known.
        """
        profiler = self._begun()
        if profiler is None:
            return run(), ""
        try:
            result = run()
        except BaseException:
            with contextlib.suppress(Exception):
                profiler.__exit__(None, None, None)
            raise
        return result, _names(profiler)

    def _begun(self) -> Any:
        if threading.get_ident() != self._thread:
            return None
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if torch._C._autograd._profiler_enabled():
                return None
            kinds = [torch.profiler.ProfilerActivity.CPU]
            if torch.cuda.is_available() and torch.cuda.is_initialized():
                kinds.append(torch.profiler.ProfilerActivity.CUDA)
            return torch.profiler.profile(activities=kinds).__enter__()
        return None


def _names(profiler: Any) -> str:
    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        profiler.__exit__(None, None, None)
        events = profiler.events()
        cpu = torch.autograd.DeviceType.CPU
        found = [e.name for e in events if e.device_type != cpu]
        names = [*dict.fromkeys(found or [e.name for e in events if "::" in e.name])]
        return ", ".join(names[:_MOST]) + (f" and {len(names) - _MOST} more" if len(names) > _MOST else "")
    return ""
