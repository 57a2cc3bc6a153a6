"""The capture of a CUDA graph: nothing may wait for the device, allocate or free memory meanwhile."""

from __future__ import annotations

import torch

from ..errors import Unsupported

__all__ = ["capturing", "refuse_graph_capture"]


def capturing() -> bool:
    """Whether this thread's work goes into a CUDA graph."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def refuse_graph_capture() -> None:
    """Raises Unsupported while a CUDA graph is captured."""
    if capturing():
        raise Unsupported(
            "a CUDA graph is captured, and nothing can be read meanwhile",
            fix="trace the model without CUDA graphs",
        )
