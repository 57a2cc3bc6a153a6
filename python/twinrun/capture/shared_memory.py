"""Arrays to restore into that lie in one place of memory, as tied weights and views of one buffer do.

What is written into one of them changes the others. A step fits where all can hold its values at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from ..errors import TwinrunError

__all__ = ["Memory", "check_fits"]


class Memory(NamedTuple):
    """Where an array lies. device: its number, or -1 for the host. strides: bytes."""

    name: str
    device: object
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int

    @property
    def begin(self) -> int:
        """The address of its first byte."""
        return self.address + sum(min(0, (n - 1) * s) for n, s in zip(self.shape, self.strides, strict=True))

    @property
    def end(self) -> int:
        """The address behind its last byte."""
        return (
            self.address
            + sum(max(0, (n - 1) * s) for n, s in zip(self.shape, self.strides, strict=True))
            + self.itemsize
        )

    @property
    def may_repeat(self) -> bool:
        """Whether elements of it may share memory. False is certain: each dimension steps over the others."""
        reach = self.itemsize
        for stride, n in sorted((abs(s), n) for s, n in zip(self.strides, self.shape, strict=True) if n > 1):
            if stride < reach:
                return True
            reach += (n - 1) * stride
        return False


def _groups(arrays: Iterable[Memory]) -> list[list[Memory]]:
    """Arrays whose memory may be shared: with each other, or between their own elements."""
    found: list[list[Memory]] = []
    end: dict[object, int] = {}
    last: dict[object, list[Memory]] = {}
    for one in sorted((a for a in arrays if 0 not in a.shape), key=lambda a: (str(a.device), a.begin)):
        if one.device in last and one.begin < end[one.device]:
            last[one.device].append(one)
        else:
            last[one.device] = [one]
            found.append(last[one.device])
        end[one.device] = max(end.get(one.device, 0), one.end)
    return [group for group in found if len(group) > 1 or group[0].may_repeat]


def check_fits(arrays: Iterable[Memory], read: Callable[[str], np.ndarray]) -> None:
    """Raises TwinrunError where arrays cannot hold a step's values at once, because they share memory.

    read: gives the values of an array by its name, in its shape. Nothing is written into the arrays.
    """
    for group in _groups(arrays):
        begin = min(one.begin for one in group)
        memory = np.zeros(max(one.end for one in group) - begin, np.uint8)
        written = []
        for one in group:
            shape = (*one.shape, one.itemsize)
            place = np.ndarray(shape, np.uint8, memory, one.address - begin, (*one.strides, 1))
            values = np.ascontiguousarray(read(one.name)).reshape(-1).view(np.uint8).reshape(shape)
            place[...] = values
            written.append((one.name, place, values))
        for name, place, values in written:
            if np.array_equal(place, values):
                continue
            others = [other for other, _, _ in written if other != name]
            shared = (
                f"the memory of {', '.join(map(repr, others[:3]))}" if others else "memory among its elements"
            )
            raise TwinrunError(
                f"shares {shared}, and the step has other values there: both cannot be restored",
                where=name,
                fix="give arrays of their own, or load() the step",
            )
