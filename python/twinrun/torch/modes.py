"""What PyTorch does in this thread: it compiles, it computes gradients, it makes steps of optimizers, it
shows operations to modes and to the transforms of torch.func.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, ParamSpec, TypeVar

import torch
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _disable_current_modes

__all__ = [
    "can_leave_uncompiled", "compiling", "in_backward", "leave_uncompiled", "left_uncompiled", "no_dispatch_modes", "no_functions",
    "no_modes", "sees_functions", "sees_operations", "sees_operations_alone", "step_within_step", "unseen",
]  # fmt: skip

_P = ParamSpec("_P")
_R = TypeVar("_R")
_NONE = contextlib.nullcontext()
# Looked up once: every event asks. PyTorch includes the key PreDispatch while a mode is there that
# comes before the dispatch.
_modes = torch._C._len_torch_dispatch_stack
_mode_at = torch._C._get_dispatch_stack_at
_functions = torch._C._len_torch_function_stack
_function_at = torch._C._get_function_stack_at
_transform = torch._C._functorch.peek_interpreter_stack
_included = torch._C._dispatch_tls_is_dispatch_key_included
_EARLY = torch._C.DispatchKey.PreDispatch


def sees_operations(own: object = None) -> bool:
    """Whether a dispatch mode, other than `own`, or a transform of torch.func sees operations."""
    modes = _modes()
    return (
        _transform() is not None
        or modes > 1
        or (modes == 1 and (own is None or _mode_at(0) is not own))
        or _included(_EARLY)
    )


def sees_operations_alone(own: object) -> bool:
    """Whether the dispatch mode `own` sees operations, and nothing else does."""
    return _modes() == 1 and _mode_at(0) is own and _transform() is None and not _included(_EARLY)


def sees_functions() -> bool:
    """Whether a mode of the program sees functions of PyTorch, and what tensors are asked for. That of
    `torch.set_default_device` does not count: it does nothing that a trace could change.
    """
    number = _functions()
    return number > 0 and not (number == 1 and type(_function_at(0)) is DeviceContext)


def no_functions() -> contextlib.AbstractContextManager:
    """A context in which none does: such a mode may count, or draw random numbers."""
    return torch._C.DisableTorchFunction()


def no_modes() -> contextlib.AbstractContextManager:
    """A context in which no dispatch mode and no transform of torch.func sees operations."""
    if _transform() is not None:
        return _outside_of_transforms()
    return no_dispatch_modes()


@contextlib.contextmanager
def _outside_of_transforms() -> Iterator[None]:
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    with temporarily_clear_interpreter_stack(), no_dispatch_modes():
        yield


def unseen(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """A function whose operations are twinrun's own: no trace and no mode of the program sees them."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with no_modes():
            return function(*args, **kwargs)

    return call


def no_dispatch_modes() -> contextlib.AbstractContextManager:
    """A context in which no dispatch mode sees operations."""
    # PyTorch's own context takes 5 us also where there is no mode, as in most trainings.
    if _modes() == 0 and not _included(_EARLY):
        return _NONE
    return _disable_current_modes()


def can_leave_uncompiled() -> bool:
    """Whether `leave_uncompiled` can do what it says: this PyTorch lets it."""
    return _SKIP is not None


def leave_uncompiled(function: Callable) -> None:
    """Neither a function nor what it calls is compiled, also where `torch.compile` runs what calls it."""
    code = getattr(function, "__code__", None)
    if _SKIP is not None and code is not None:
        torch._C._dynamo.eval_frame.set_code_exec_strategy(code, _SKIP)


def left_uncompiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """A function that compiled code calls as it is. `torch.compiler.disable` does the same, and imports the
    compiler, which takes a second.
    """
    leave_uncompiled(function)
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function


def _skip() -> Any:
    """What says that a function and all that it calls are left as they are; None in a PyTorch without it."""
    frames = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    actions, strategy = getattr(frames, "_FrameAction", None), getattr(frames, "_FrameExecStrategy", None)
    if actions is None or strategy is None or not hasattr(frames, "set_code_exec_strategy"):
        return None
    return strategy(actions.SKIP, actions.SKIP)


_SKIP = _skip()


def compiling() -> bool:
    """Whether `torch.compile` reads this code now, instead of running it."""
    return torch.compiler.is_compiling()


def in_backward() -> bool:
    """Whether gradients are computed."""
    return torch._C._current_graph_task_id() != -1


def _nothing() -> None:
    pass


# What PyTorch runs in the place of each class's own `step`: it calls the hooks, too.
_STEP = torch.optim.Optimizer.profile_hook_step(_nothing).__code__


def step_within_step(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the step whose hook asks runs within another step of the same optimizer.

    A class may call the `step` of the class that it is made from. PyTorch runs all hooks for both, if an
    optimizer of that other class was made before. No hook learns that a step failed, so hooks cannot count
    the steps under way: the stack has them.
    """
    steps = 0
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _STEP and frame.f_locals.get("self") is optimizer:
            steps += 1
            if steps == 2:
                return True
        frame = frame.f_back
    return False
