"""Events: what a run did, in the order in which it did it, and the digests of what went in and came out.

The fields of a step that hold them: spec/trace.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from ..errors import FormatError, Unsupported
from ..marks import TRACE_EVENTS

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

__all__ = [
    "DIGESTS",
    "EVENTS",
    "KEPT",
    "KERNELS",
    "VERSION",
    "Decoded",
    "Event",
    "Traced",
    "Wanted",
    "decoded_events",
    "encoded_events",
    "is_trace_field",
]

EVENTS = TRACE_EVENTS
DIGESTS = "trace.digests"
KEPT = "trace.kept."
KERNELS = "kernels: "  # how the kind of an operation begins whose kernels are known
VERSION = 2  # 1: events have no structure
_KEPT_NAME = re.compile(re.escape(KEPT) + r"[0-9]+")
_MOST_DIMENSIONS = 64


# A trace keeps thousands of these for each step. gc=False: none is in a circle, and Python's
# garbage collector took a third of a traced step to look at all of them again and again.


class Traced(msgspec.Struct, array_like=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A value that went into an event or came out of it.

    role: what it is: a value, a parameter, a buffer, a gradient, a state of an optimizer, a
    setting, or the state of a random number generator. kept: the field that has its data, or ''.
    missing: why it has no digest, or ''.
    digest: 128 bits; 0 where it is missing. It is stored apart, as a number.
    """

    name: str
    out: bool
    role: Literal["value", "parameter", "buffer", "gradient", "state", "setting", "rng"]
    dtype: str
    shape: tuple[int, ...]
    kept: str = ""
    missing: str = ""
    digest: int = 0

    @property
    def form(self) -> tuple[str, tuple[int, ...]]:
        """Type and shape."""
        return self.dtype, self.shape


class Event(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """A point of a run at which values were seen.

    phase: 'forward', 'backward', … module: the path of the module; '' for the model itself or none.
    kind: its class.
    operation: what was done. call: the number of the call, which is the same for its entry and its
    exit; -1 for none. enclosing: the call inside which this event is; -1 for none.
    structure: facts of the values beside their bits, see `twinrun.runs.structure`; None where nobody looked.
    """

    phase: str
    microbatch: int
    module: str
    kind: str
    operation: str
    call: int
    enclosing: int
    values: list[Traced]
    structure: str | None = None


# Iteration, microbatch, phase, module and operation of a place.
Wanted = tuple[int, int, str, str, str]


class _Table(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    format: str
    version: int
    problems: list[str]
    events: list[Event]
    wanted: list[Wanted] = []


class Decoded(NamedTuple):
    """The events of a step. wanted: the places whose data the whole trace is to keep.

    version: of the format.
    """

    events: list[Event]
    problems: list[str]
    wanted: list[Wanted]
    version: int


class _Version(msgspec.Struct):
    format: str
    version: int


def is_trace_field(name: str) -> bool:
    """Whether a field of a step belongs to its trace."""
    return name in (EVENTS, DIGESTS) or _KEPT_NAME.fullmatch(name) is not None


def _printed(found: Any) -> Any:
    """The same with texts that UTF-8 can hold: names of files may have bytes that no character stands for."""
    if isinstance(found, str):
        return found.encode("utf-8", "backslashreplace").decode()
    if isinstance(found, (list, tuple)):
        return [_printed(one) for one in found]
    if isinstance(found, dict):
        return {_printed(key): _printed(one) for key, one in found.items()}
    return found


def _encoded(table: _Table) -> bytes:
    try:
        return msgspec.json.encode(table)
    except UnicodeEncodeError:
        # No text may keep what was traced, or why it was not, from being written.
        return msgspec.json.encode(_printed(msgspec.to_builtins(table)))


def encoded_events(
    events: Sequence[Event], problems: Iterable[str] = (), wanted: Iterable[Wanted] = ()
) -> dict[str, np.ndarray]:
    """The fields that hold the events of a step. wanted: see `Decoded`."""
    values = [v for e in events for v in e.values]
    numbers = [v.digest for v in values]
    packed = b"".join([n.to_bytes(16, "big") for n in numbers])
    digests = np.frombuffer(packed, ">u8").astype(np.uint64).reshape(len(numbers), 2)
    table = _Table("twinrun trace", VERSION, list(problems), list(events), list(wanted))
    try:
        for v in values:
            v.digest = 0
        text = _encoded(table)
    finally:  # values may be those of later events, too
        for number, v in zip(numbers, values, strict=True):
            v.digest = number
    return {EVENTS: np.frombuffer(text, np.uint8), DIGESTS: digests}


def decoded_events(events: np.ndarray, digests: np.ndarray, where: str) -> Decoded:
    """The events of a step. Raises FormatError where the fields are no trace."""
    text = events.tobytes()
    try:
        if events.dtype != np.uint8 or events.ndim != 1:
            raise ValueError(f"the field {EVENTS} is not a text")
        version = msgspec.json.decode(text, type=_Version)
        if version.format == "twinrun trace" and version.version > VERSION:
            raise Unsupported(
                f"a trace of version {version.version}; this twinrun knows version {VERSION}",
                where=where,
                fix="update twinrun",
            )
        table = msgspec.json.decode(text, type=_Table)
        if table.format != "twinrun trace" or not 1 <= table.version <= VERSION:
            raise ValueError(f"{table.format!r:.40}, version {table.version}")
        values = [v for e in table.events for v in e.values]
        if digests.dtype != np.uint64 or digests.shape != (len(values), 2):
            raise ValueError(f"{len(values)} values, and digests of shape {list(digests.shape)}")
        for v in values:
            if len(v.shape) > _MOST_DIMENSIONS or any(n < 0 for n in v.shape):
                raise ValueError(f"{v.name!r:.80} has an impossible shape")
            if v.kept and _KEPT_NAME.fullmatch(v.kept) is None:
                raise ValueError(f"{v.kept!r:.80} is not a name of a kept value")
        calls = [e.call for e in table.events]
        if any(c < -1 for c in calls):
            raise ValueError("a call has a negative number")
    except (ValueError, msgspec.DecodeError, RecursionError) as e:
        raise FormatError(f"its trace cannot be read: {e}", where=where, fix="capture it again") from None
    for v, (high, low) in zip(values, digests.tolist(), strict=True):
        v.digest = high << 64 | low
    return Decoded(table.events, table.problems, table.wanted, table.version)
