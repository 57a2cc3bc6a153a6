"""Capture: the states of a running Python program, as a history that can be compared.

Bytes on disk and the order of writes: src/capture/history.hpp.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from . import _core
from .arrays import ArrayView, DeviceArrayView, taken, view
from .errors import TwinrunError
from .settings import check_settings, checked_path, step_number, utf8

__all__ = ["CaptureFacts", "Run", "captured_entries", "own_tolerances"]


def own_tolerances(
    given: Mapping[str, float | tuple[float, float]] | None,
) -> dict[str, tuple[float, float]]:
    """{field: (atol, rtol)} of fields that have a tolerance of their own."""
    return {
        name: (float(t), 0.0) if isinstance(t, (int, float)) else (float(t[0]), float(t[1]))
        for name, t in (given or {}).items()
    }


def captured_entries(
    fields: Mapping[str, object],
    tolerances: Mapping[str, tuple[float, float]],
    stream: object,
    where: str | None = None,
) -> tuple[list[tuple], list[object]]:
    """Arrays as the core captures them, and what must live until it has read them."""
    views: dict[str, ArrayView | DeviceArrayView] = {}
    for given, array in fields.items():
        name = utf8(str(given), "the name of a field")
        if name in views:
            raise TwinrunError(f"two fields of the name {name!r}", where=where)
        views[name] = taken(name, array, stream)
    entries = []
    keep: list[object] = []
    for name, v in views.items():
        atol, rtol = tolerances.get(name, (None, None))
        if isinstance(v, DeviceArrayView):
            keep.append(v)
            place = (v.device, v.strides, v.stream, v.swap)
            entries.append((name, v.dtype, v.shape, v.address, 0, v.fortran_order, atol, rtol, place))
            continue
        if v.swap:  # digests are of native byte order
            native = v.owner.astype(v.owner.dtype.newbyteorder("="))
            v = view(name, native)
        keep.append(v)
        entries.append((name, v.dtype, v.shape, v.address, v.stride, v.fortran_order, atol, rtol, None))
    return entries, keep


@dataclass(frozen=True)
class CaptureFacts:
    """What one capture cost: seconds that it blocked the caller, bytes of data and of metadata written."""

    step: int
    seconds: float
    data_bytes: int
    metadata_bytes: int


class Run:
    """One execution of an application, captured into the folder `path`.

    path: the history's folder; made if it is not there. atol, rtol: two runs agree where |a - b| <= atol + rtol |a|;
    this is fixed now, digests are made for it. Integers and booleans are compared exactly. tolerances: {field: atol
    or (atol, rtol)} for fields with one of their own. residue_bits: 0, 2 or 4 bits an element that prove small
    differences without reading data. chunk_bytes: a power of two from 4096 to 1048576. keep_data: False keeps
    digests only (0.4 to 13% of the bytes): enough to say whether and where runs part, not by how much. existing:
    "refuse" a folder that holds a history, "append" to it with the same settings, or "replace" it. threads: 0 for
    all cores.

    Not thread-safe. Raises TwinrunError; a step that could not be written whole is not there.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        atol: float = 0.0,
        rtol: float = 0.0,
        tolerances: Mapping[str, float | tuple[float, float]] | None = None,
        residue_bits: int = 4,
        chunk_bytes: int = 4096,
        digest: str = "linear",
        keep_data: bool = True,
        existing: str = "refuse",
        threads: int = 0,
    ) -> None:
        if existing not in ("refuse", "append", "replace"):
            raise TwinrunError("existing must be 'refuse', 'append' or 'replace'", where=path)
        if digest not in ("linear", "published"):
            raise TwinrunError("digest must be 'linear' or 'published'", where=path)
        check_settings(threads=threads, residue_bits=residue_bits, chunk_bytes=chunk_bytes)
        self._tolerances = own_tolerances(tolerances)
        self._threads = threads
        self._path = checked_path(path)
        self._writer: _core.HistoryWriter | None = _core.HistoryWriter(
            path=self._path,
            atol=float(atol),
            rtol=float(rtol),
            residue_bits=residue_bits,
            chunk_bytes=chunk_bytes,
            digest=digest,
            keep_data=keep_data,
            existing=existing,
        )

    @property
    def path(self) -> str:
        """Folder of the history."""
        return self._path

    @property
    def steps(self) -> list[int]:
        """Committed steps, ascending."""
        return sorted(s["step"] for s in self._open().steps)

    def _open(self) -> _core.HistoryWriter:
        if self._writer is None:
            raise TwinrunError("the run is closed", where=self._path)
        return self._writer

    def capture(self, step: int, fields: Mapping[str, object], *, stream: object = None) -> CaptureFacts:
        """Commits one step: when it returns, the step is on storage and the arrays may change.

        fields: {name: array}; anything that numpy takes for an array of numbers, any shape, 0-d and empty included, and
        arrays on GPUs (DLPack or __cuda_array_interface__), which are digested there: without keep_data no element is
        copied to the host. stream: the one whose work makes those arrays, as a handle or an object of PyTorch, CuPy or
        Numba; by default what the arrays themselves say.
        """
        writer = self._open()
        number = step_number(step)
        entries, keep = captured_entries(fields, self._tolerances, stream, self._path)
        facts = writer.capture(number, entries, self._threads)
        del keep
        return CaptureFacts(**facts)

    def close(self) -> None:
        """Ends the run. Every captured step was committed before; a second call does nothing."""
        self._writer = None

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
