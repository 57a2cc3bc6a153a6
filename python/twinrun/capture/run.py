"""Capture: the states of a running Python program, as a history that can be compared.

Bytes on disk and the order of writes: src/core/history/history.hpp. Tiers, memory and threads: src/core/capture/session.hpp.
"""

from __future__ import annotations

import os
import re
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from .. import _core
from ..arguments import check_settings, checked_path, step_number
from ..errors import Incomparable, StepLost, TwinrunError
from ..formats.model import label_told, labels_told, storage_dtype, unit_of
from ..runs.arrays import DeviceArrayView, writable
from ..runs.entries import GlobalPlace, captured_entries, captured_field, own_tolerances
from ..runs.provenance import python_facts
from .records import RecordOptions, offer_packing_library

__all__ = ["CaptureFacts", "Divergence", "Run"]

_LAST_STEP = (1 << 63) - 1


def _check_unit(name: str, array: object, session: _core.Session, step: int) -> None:
    """Raises Incomparable where an array of times would take those of another unit; one of integers takes any."""
    unit = unit_of(array.dtype) if isinstance(array, np.ndarray) else None
    if unit is None:
        return
    stored = session.stored_fields(step, None)
    told, _ = labels_told({label: one.shape for label, one in stored.items()})
    kept = told.get(name, {}).get("unit")
    if kept != unit:
        raise Incomparable(
            f"step {step}: {kept or 'plain numbers'} was captured, the array is {unit}", where=name
        )


@dataclass(frozen=True)
class Divergence:
    """Where a step is not proven equal to the same step of the reference run.

    Only metadata was read: a difference above the tolerance, or, rarely, one just below it. field: the first one, in
    the order of capture. first_item: of the field as it is stored, where the first such chunk begins. chunks: of this field
    that are not proven equal, of chunks_in_all. fields: of the step that are not proven equal. reason: why they could
    not be compared (another shape, a field that one of the runs lacks), or "".
    """

    step: int
    rank: int
    field: str
    first_item: int
    chunks: int
    chunks_in_all: int
    fields: int
    reason: str
    text: str

    @classmethod
    def of(cls, d: _core.Divergence) -> Divergence:
        """As the core says it."""
        return cls(
            d.step, d.rank, d.field, d.first_item, d.chunks, d.chunks_in_all, d.fields, d.reason, d.text
        )

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class CaptureFacts:
    """What one capture cost.

    seconds: that it blocked the caller; waited_seconds: of these, for memory that earlier steps held. data_bytes,
    metadata_bytes: written, or to be; metadata_bytes is 0 while it is not known. staged_bytes: memory that steps under
    way hold now. divergence: from the reference, where it is known already (stop_on_divergence), else None.
    """

    step: int
    seconds: float
    data_bytes: int
    metadata_bytes: int
    waited_seconds: float = 0.0
    staged_bytes: int = 0
    divergence: Divergence | None = None


def _check_lost(lost: list[tuple[int, str]], where: str, facts: CaptureFacts | None = None) -> None:
    if lost:
        raise StepLost.of(dict(lost), where, facts)


def _end(session: _core.Session, path: str) -> None:
    """Of runs that nobody closed."""
    try:
        _check_lost(session.close(), path)
    except TwinrunError as e:
        warnings.warn(f"while a run ended that was not closed: {e}", RuntimeWarning, stacklevel=2)


def _record_settings(
    record: str | RecordOptions | None,
    against: str | os.PathLike[str] | None,
    where: str | os.PathLike[str] | None,
) -> dict[str, object]:
    """The settings of the core for a run's record."""
    if record is None:
        if against is not None:
            raise TwinrunError("record_against needs record", where=where, fix='give record="runs" too')
        return {}
    options = RecordOptions(record) if isinstance(record, str) else record
    if options.bounded or options.verify:
        raise TwinrunError(
            "bounded and verify are of twinrun.pack", where=where, fix="record exactly, and pack later"
        )
    settled = options.settled()
    return {
        "record": settled["method"],
        "record_chunk": settled["chunk_bytes"],
        "record_compress": settled["codec"],
        "record_level": settled["level"],
        "record_xor": "true" if settled["xor"] else "false",
        "record_table": settled["table_bytes"],
        "record_against": None if against is None else checked_path(against),
    }


def _check_local(local: str | None, path: str) -> None:
    """TwinrunError where a history would lie in the folder of a rank on its own node-local tier, or be that tier's."""
    if not local:
        return
    place, tier = os.path.realpath(path), os.path.realpath(local)
    inside = os.path.relpath(place, tier).split(os.sep)[0]
    if place == tier or re.fullmatch(r"rank-[0-9]{5,}", inside):
        raise TwinrunError(
            f"is in the way of the node-local tier: local is {local!r}, and ranks keep their steps in {local}/rank-N",
            where=path,
            fix="give the history and local folders of their own",
        )


class Run:
    """One execution of an application, captured into the folder `path`.

    path: the history's folder; made if it is not there. atol, rtol: two runs agree where |a - b| <= atol + rtol |a|;
    this is fixed now, digests are made for it. Integers and booleans are compared exactly. tolerances: {field: atol
    or (atol, rtol)} for fields with one of their own. residue_bits: 0, 2 or 4 bits an element that prove small
    differences without reading data. chunk_bytes: a power of two from 4096 to 1048576. keep_data: False keeps
    digests only (0.4 to 13% of the bytes): enough to say whether and where runs part, not by how much. existing:
    "refuse" a folder that holds a history, "append" to it with the same settings, or "replace" it. threads: 0 for
    all cores.

    background: capture() returns as soon as the arrays may change, and the step is committed behind its back. memory:
    that steps under way may hold, in bytes or as "1 GiB"; capture() waits where there is none left. device_memory:
    the same of each GPU: arrays there are copied within it and brought on later; of a record, only what is new. flush_threads:
    that write them. local: a folder on storage of this node, where steps rest until they are in `path`; local_limit:
    bytes that they may take there. flusher: who brings them on: a "thread", a "process" that outlives this one, or
    "none" (`twinrun flush` later; until then steps are on this node only, and committed there). keep_steps: the newest so many stay, 0 for all; keep_data_steps: the newest so many
    keep their data, older ones their metadata. replace_steps: a step that is there may be captured again.

    record: a method ("runs") or `RecordOptions`: data is kept as what is new in each step, and every step is given back
    bit for bit; steps then leave by `twinrun.compact`, not by keep_steps. record_against: another run's record, which must
    stay where it is: what it has is not kept again.

    reference: the history of another run; every step is compared with its step as it is captured. on_divergence(d):
    called with a `Divergence` for each step that is not proven equal, from a thread of twinrun's (from capture() with
    stop_on_divergence); it must not use this run. stop_on_divergence: capture() waits for the comparison and says in
    its facts what it found. settings: {name: text} of docs/capture.md, for what has no parameter here; they come last.

    Not thread-safe. Raises TwinrunError; a step that could not be written whole is not there. StepLost tells of steps
    that were captured in the background and could not be committed.
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
        background: bool = False,
        memory: int | str | None = None,
        device_memory: int | str | None = None,
        local: str | os.PathLike[str] | None = None,
        local_limit: int | str | None = None,
        flusher: str | None = None,
        keep_steps: int = 0,
        keep_data_steps: int = 0,
        replace_steps: bool = False,
        flush_threads: int | None = None,
        record: str | RecordOptions | None = None,
        record_against: str | os.PathLike[str] | None = None,
        reference: str | os.PathLike[str] | None = None,
        stop_on_divergence: bool = False,
        on_divergence: Callable[[Divergence], object] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        if existing not in ("refuse", "append", "replace"):
            raise TwinrunError("existing must be 'refuse', 'append' or 'replace'", where=path)
        if digest not in ("linear", "published"):
            raise TwinrunError("digest must be 'linear' or 'published'", where=path)
        check_settings(threads=threads, residue_bits=residue_bits, chunk_bytes=chunk_bytes)
        _core.check_tolerance(float(atol), float(rtol))
        self._tolerances = own_tolerances(tolerances)
        self._path = checked_path(path)
        given = {
            "atol": repr(float(atol)),
            "rtol": repr(float(rtol)),
            "residue_bits": residue_bits,
            "chunk_bytes": chunk_bytes,
            "digest": digest,
            "mode": "full" if keep_data else "digests",
            "existing": existing,
            "threads": threads,
            "background": "true" if background else "false",
            "memory": memory,
            "device_memory": device_memory,
            "local": None if local is None else checked_path(local),
            "local_limit": local_limit,
            "flusher": flusher,
            "keep_steps": keep_steps,
            "keep_data_steps": keep_data_steps,
            "replace_steps": "true" if replace_steps else "false",
            "flush_threads": flush_threads,
            **_record_settings(record, record_against, path),
            "reference": None if reference is None else checked_path(reference),
            "stop_on_divergence": "true" if stop_on_divergence else "false",
        }
        chosen = {name: str(value) for name, value in given.items() if value is not None}
        for name, value in (settings or {}).items():
            if not isinstance(value, str):
                raise TwinrunError(f"setting {name!r}: its value must be text, not {value!r}", where=path)
            chosen[str(name)] = value
        _check_local(chosen.get("local"), self._path)
        if (
            chosen["existing"].strip() == "replace"
            and (other := chosen.get("reference"))
            and os.path.realpath(other) == os.path.realpath(self._path)
        ):
            raise TwinrunError(
                "is the reference, so that it must not be replaced", where=path, fix="name another folder"
            )
        self._keep_data = chosen["mode"].strip() == "full"
        if record is not None:
            offer_packing_library()
        session = _core.Session(self._path, chosen, python_facts())
        self._session: _core.Session | None = session
        if on_divergence is not None:
            session.on_divergence(lambda d: on_divergence(Divergence.of(d)))
        # Threads must not outlive the interpreter, nor losses go untold.
        self._end = weakref.finalize(self, _end, session, self._path)

    @property
    def path(self) -> str:
        """Folder of the history."""
        return self._path

    @property
    def steps(self) -> list[int]:
        """Committed steps, ascending. With flusher="none" those on the node-local tier are among them."""
        return self._open().committed

    @property
    def local_steps(self) -> list[int]:
        """Steps that are on the node-local tier only, ascending: `twinrun flush`, or a later run, brings them on."""
        return self._open().local_only

    def _open(self) -> _core.Session:
        if self._session is None:
            raise TwinrunError("the run is closed", where=self._path)
        return self._session

    def capture(
        self,
        step: int,
        fields: Mapping[str, object],
        *,
        stream: object = None,
        ids: Mapping[str, str] | None = None,
        global_place: GlobalPlace | None = None,
    ) -> CaptureFacts:
        """Takes one step: when it returns, the arrays may change, and unless it works in the background the step is on storage.

        fields: {name: array}, or any container of arrays: a model, nested mappings and lists, whose names are joined by dots;
        anything that numpy takes for an array of numbers, any shape, 0-d and empty included (of texts digests are kept), and
        arrays on GPUs (DLPack or __cuda_array_interface__), which are digested there: without keep_data no element is
        copied to the host. stream: the one whose work makes those arrays, as a handle or an object of PyTorch, CuPy or
        Numba; by default what the arrays themselves say. ids: {field: name of a 1-D integer field of this capture},
        with an ID for each item of the first dimension: items are kept in ascending order of IDs, whatever their order
        in memory. global_place: {field: (shape of the array of all ranks, offset of this part in it)}.

        Raises StepLost if a step could not be committed, which is an earlier one as a rule: then this one was taken even so
        (`.facts`), unless `.steps` has it too.
        """
        session = self._open()
        number = step_number(step)
        entries, keep = captured_entries(fields, self._tolerances, stream, self._path, ids, global_place)
        report = session.capture(number, entries)
        del keep
        facts = CaptureFacts(
            step=report.step,
            seconds=report.seconds,
            data_bytes=report.data_bytes if self._keep_data else 0,  # else nothing of them is written
            metadata_bytes=report.metadata_bytes,
            waited_seconds=report.waited_seconds,
            staged_bytes=report.staged_bytes,
            divergence=None if report.divergence is None else Divergence.of(report.divergence),
        )
        _check_lost(report.lost, self._path, facts)
        return facts

    def wait(self) -> None:
        """Returns when all captured steps are committed in `path`, or, with flusher="none", in `local`. Raises StepLost if some
        cannot be."""
        _check_lost(self._open().wait(), self._path)

    def latest(self, not_after: int | None = None) -> int | None:
        """The newest committed step, or the newest that is not after `not_after`; None if there is none."""
        return self._open().latest(_LAST_STEP if not_after is None else step_number(not_after))

    def load(self, step: int, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
        """Fields of a committed step, all or those named, as new arrays; every byte is checked first.

        Items are as they were kept: in ascending order of IDs where there were any; bf16 as its bits (uint16).
        """
        session, number = self._open(), step_number(step)
        entries: list[_core.CapturedField] = []
        arrays: dict[str, np.ndarray] = {}
        for name, stored in session.stored_fields(number, None if names is None else list(names)).items():
            told = label_told(name, stored.shape)
            if names is None and told is not None:  # a label, not what the caller captured
                continue
            arrays[name] = self._empty(stored)
            entries.append(_into(name, stored, arrays[name]))
        if entries:
            session.restore(number, entries)
        return arrays

    def restore(self, step: int, fields: Mapping[str, object]) -> None:
        """Puts fields of a committed step back into {name: array}; every byte is checked before it is written.

        Arrays must be writable and have the type and shape that was captured; they may be strided, and dense ones on
        GPUs will do too. After an error some of them may hold the step's values and others their old ones.
        """
        session, number = self._open(), step_number(step)
        entries: list[_core.CapturedField] = []
        copies: list[tuple[np.ndarray, np.ndarray]] = []
        keep: list[object] = []
        described = session.stored_fields(number, list(fields))
        for name, array in fields.items():
            stored = described[name]
            _check_unit(name, array, session, number)
            target = writable(name, array)
            keep.append(target)
            if isinstance(target, DeviceArrayView):
                entries.append(captured_field(name, target))
                continue
            into, dtype = target
            dense = into.flags.f_contiguous if stored.fortran_order else into.flags.c_contiguous
            shape = stored.shape[::-1] if stored.fortran_order else stored.shape
            if dtype != stored.dtype or into.shape != shape:
                raise Incomparable(
                    f"step {number}: {stored.dtype} of shape {list(shape)} was captured, the array is {dtype} of "
                    f"shape {list(into.shape)}",
                    where=name,
                )
            if not dense or not into.dtype.isnative:
                copies.append((into, self._empty(stored)))
                into = copies[-1][1]
            entries.append(_into(name, stored, into))
        if entries:
            session.restore(number, entries)
        for into, values in copies:
            into[...] = values.view(into.dtype.newbyteorder("="))
        del keep

    @staticmethod
    def _empty(stored: _core.StoredField) -> np.ndarray:
        shape = stored.shape
        fortran = stored.fortran_order
        return np.empty(
            shape[::-1] if fortran else shape, storage_dtype(stored.dtype), "F" if fortran else "C"
        )

    def close(self) -> None:
        """Ends the run when every captured step is committed; a second call does nothing. Raises StepLost if some cannot be."""
        if self._session is None:
            return
        session, self._session = self._session, None
        self._end.detach()
        _check_lost(session.close(), self._path)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except TwinrunError as e:
            if error is None:
                raise
            said = f"while the run was closed: {e}"  # beside what the body raised, not in its place
            if hasattr(error, "add_note"):
                error.add_note(said)
            else:  # Python 3.10
                warnings.warn(said, RuntimeWarning, stacklevel=2)


def _into(name: str, stored: _core.StoredField, array: np.ndarray) -> _core.CapturedField:
    """A dense array as the core restores into it."""
    address = array.__array_interface__["data"][0]
    return _core.CapturedField(
        name=name,
        dtype=stored.dtype,
        shape=stored.shape,
        address=address,
        fortran_order=stored.fortran_order,
    )
