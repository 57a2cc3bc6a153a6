"""What a module has of its own beside tensors: its class, its device, and plain attributes such as
`training` or the `p` of a dropout. Reading them runs no code of the module.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from ..runs.structure import own_line

__all__ = ["OwnFacts"]

_MOST_BITS = 64
_MOST_ATTRIBUTES = 40
_LONGEST = 8  # of a tuple of numbers
_LONGEST_WORD = 40


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if value is None or _is_number(value):
        return True
    if kind is str:  # a word, such as a mode; other texts may be names of folders
        return len(value) <= _LONGEST_WORD and value.isidentifier()
    return kind is tuple and len(value) <= _LONGEST and all(map(_is_number, value))


def _is_number(value: Any) -> bool:
    kind = type(value)
    return kind is bool or kind is float or (kind is int and value.bit_length() <= _MOST_BITS)


class OwnFacts:
    """The facts of one module as a line of an event: once in an iteration, and again where they changed."""

    __slots__ = ("_device", "_keys", "_line", "_number", "_told", "_values", "module")

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        # What was read last: how many attributes, the plain ones, their values, and the device.
        self._number = -1
        self._keys: list[str] = []
        self._values: list[Any] = []
        self._line = self._device = ""
        self._told = False

    def begin_iteration(self) -> None:
        """No event has them yet."""
        self._told = False

    def line(self) -> str:
        """The line; '' where this iteration has it already."""
        attributes = self.module.__dict__
        device = self._device_now()
        # By identity: to ask whether values are equal may run the model's own code.
        if not (
            len(attributes) == self._number
            and device == self._device
            and all(map(operator.is_, map(attributes.get, self._keys), self._values))
        ):
            self._read(attributes, device)
        if self._told:
            return ""
        self._told = True
        return self._line

    def _device_now(self) -> str:
        for p in self.module._parameters.values():
            if p is not None:
                return p.device.type
        return ""

    def _read(self, attributes: dict[str, Any], device: str) -> None:
        plain = [(n, v) for n, v in attributes.items() if n[:1] != "_" and _is_plain(v)][:_MOST_ATTRIBUTES]
        self._number, self._device = len(attributes), device
        self._keys, self._values = [n for n, _ in plain], [v for _, v in plain]
        facts = [("class", type(self.module).__name__), *[("device", device)] * bool(device)]
        line = own_line([*facts, *((n, str(v)) for n, v in plain)])
        if line != self._line:
            self._line, self._told = line, False
