"""States of an optimizer as a captured step has them: made where the optimizer has none yet."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..errors import Incomparable, Unsupported
from ..formats.texts import SUFFIX, text_array
from ..runs.boxes import StepBoxes, Whole, values_of
from .division import joined

__all__ = ["parameters_of", "state_as_captured"]

_TYPES = {
    "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64, "c64": torch.complex64,
    "c128": torch.complex128, "bool": torch.bool, "u8": torch.uint8, "i8": torch.int8, "i16": torch.int16,
    "i32": torch.int32, "i64": torch.int64,
}  # fmt: skip


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Its parameters, in the order of the numbers that they have in its state."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def state_as_captured(
    boxes: StepBoxes, here: tuple[int, int], name: str, optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """The state of an optimizer with the entries that a step has of it. Those that it lacks are made, without
    values; nothing of the optimizer changes. name: what the step calls it. here: this process, and how many
    there are.

    Raises TwinrunError where it is not known how an entry is made.
    """
    begin = joined(name, "state") + "."
    stored: dict[int, list[str]] = {}
    for field in boxes.names:
        at, _, key = field.removeprefix(begin).partition(".")
        if field.startswith(begin) and at.isdigit() and key:
            stored.setdefault(int(at), []).append(key)
    parameters = parameters_of(optimizer)
    if stored and max(stored) >= len(parameters):
        raise Incomparable(
            f"the optimizer has {len(parameters)} parameters, and the captured one had more",
            where=begin,
            fix="give the optimizer the parameters that the captured one had",
        )
    devices = [_device_of_numbers(group, p) for group in optimizer.param_groups for p in group["params"]]
    state: dict[str, Any] = dict(optimizer.state_dict())
    had, state["state"] = state["state"], {}
    for number, keys in sorted(stored.items()):
        entries = {
            key: value
            for key, value in had.get(number, {}).items()
            if any(k.removesuffix(SUFFIX).split(".")[0] == str(key) for k in keys)
        }
        for key in keys:
            if key.removesuffix(SUFFIX).split(".")[0] not in map(str, entries):
                field = f"{begin}{number}.{key}"
                entries[key.removesuffix(SUFFIX)] = _made(
                    boxes, here, field, parameters[number], devices[number]
                )
        state["state"][number] = entries
    return state


def _device_of_numbers(group: dict[str, Any], parameter: torch.Tensor) -> Any:
    """Where the optimizers of PyTorch keep the number of steps."""
    return parameter.device if group.get("capturable") or group.get("fused") else torch.device("cpu")


def _made(boxes: StepBoxes, here: tuple[int, int], field: str, parameter: torch.Tensor, device: Any) -> Any:
    """An entry without values, as the optimizer would make it."""
    own = boxes.is_own(field)
    ref = boxes.own(field, *here) if own else None
    if field.endswith(SUFFIX):
        kept = boxes.read(field, (0,), (2,)) if ref is None else values_of(ref)
        if np.array_equal(kept, text_array(np.array(None, object))):
            return None
        raise _unknown(field)
    facts = boxes.whole(field) if ref is None else Whole(ref.dtype, ref.kind, ref.unit, ref.user_shape)
    kind = _TYPES.get(facts.dtype)
    if kind is None or facts.kind is not None or facts.unit is not None:
        raise _unknown(field)
    if facts.shape == ():  # a number of Python is kept as f64 or i64
        if kind is not torch.float32 and kind is not torch.get_default_dtype():
            raise _unknown(field)
        return torch.empty((), dtype=kind, device=device)
    placements = getattr(parameter, "placements", None)
    if placements is None or own:
        if facts.shape == tuple(parameter.shape):
            return torch.empty_like(parameter, dtype=kind, requires_grad=False)
        return torch.empty(facts.shape, dtype=kind, device=parameter.device)
    if facts.shape != tuple(parameter.shape):
        raise _unknown(field)
    from torch.distributed.tensor import DTensor

    with torch.no_grad():
        local = torch.empty_like(parameter.to_local(), dtype=kind)
    return DTensor.from_local(
        local,
        parameter.device_mesh,
        placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def _unknown(field: str) -> Unsupported:
    return Unsupported(
        "the optimizer has no such state yet, and it is not known how it makes one",
        where=field,
        fix="let it make a step before, with any gradients: restoring replaces what that changed",
    )
