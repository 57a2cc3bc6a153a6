"""Capture: the states of a running Python program, as a history that can be compared.

Bytes on disk and the order of writes: src/core/history/history.hpp. Tiers, memory and threads:
src/core/capture/session.hpp.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from ..arguments import (
    check_settings,
    checked_path,
    names_given,
    own_folder,
    step_number,
    tolerance_number,
)
from ..errors import Incomparable, StepLost, TwinrunError, in_short
from ..formats.element_types import storage_dtype, unit_of
from ..formats.labels import label_told, labels_told
from ..runs.arrays import DeviceArrayView, bits_of_small, writable
from ..runs.containers import named_arrays
from ..runs.entries import GlobalPlace, captured_entries, captured_field, own_tolerances
from ..runs.provenance import python_facts
from ..urls import is_url, without_secrets
from .facts import CaptureFacts, Divergence, divergence_of
from .record_options import RecordOptions, offer_packing_library
from .session_settings import bucket_tier, set_places, set_record
from .shared_memory import Memory, check_fits
from .taken import in_words

if TYPE_CHECKING:
    from .bucket_tier import BucketTier  # it needs what uploads need
    from .events import EventWriter  # it needs msgspec, which captures without phases do without

__all__ = ["RankRun", "Run"]

_LAST_STEP = (1 << 63) - 1


def _check_unit(name: str, array: object, session: _core.Session, step: int) -> None:
    """Raises Incomparable where an array of times has another unit than the captured one; arrays of integers
    take any unit.
    """
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


def _reasons(lost: list[_core.LostStep]) -> dict[int, str]:
    return {step.step: step.reason for step in lost}


def _check_lost(lost: dict[int, str], where: str, facts: CaptureFacts | None = None) -> None:
    if lost:
        raise StepLost.of(lost, where, facts)


def _end(session: _core.Session, path: str, bucket: BucketTier | None) -> None:
    """Closes a run that was not closed; a lost step becomes a warning."""
    try:
        _close(session, path, bucket)
    except TwinrunError as e:
        warnings.warn(f"while a run ended that was not closed: {e}", RuntimeWarning, stacklevel=2)


def _close(session: _core.Session, path: str, bucket: BucketTier | None) -> None:
    """Ends a session and then its uploads. Raises StepLost where a step could not be committed."""
    lost: dict[int, str] = {}
    try:
        lost = _reasons(session.close())
    finally:
        if bucket is not None:
            lost = bucket.close() | lost
    _check_lost(lost, path)


class Run:
    """One execution of an application, captured as a history that can be compared.

    >>> x = np.linspace(0, 1, 1000)
    >>> with twinrun.Run("runs/a", atol=1e-6) as run:
    ...     for step in range(3):
    ...         facts = run.capture(step, {"x": x + step})
    ...     print(run.steps)
    [0, 1, 2]

    Parameters
    ----------
    path : str or path
        The folder of the history. It is made if it does not exist. Or `s3://BUCKET/PREFIX` or
        `gs://BUCKET/PREFIX` (docs/howto/buckets.md): steps are uploaded in the background.
    atol, rtol : float, default 0
        Two runs agree where |a - b| <= atol + rtol |a|. `atol` has the unit of the data. Both are fixed now,
        because digests are made for them. Integers and booleans are compared exactly.
    tolerances : dict of str to float or (float, float), default None
        `{field: atol}` or `{field: (atol, rtol)}` for fields with a tolerance of their own; integers too.
        Booleans, dates and texts are exact all the same. `compare` takes integers exactly unless it is asked
        for a tolerance of theirs.
    residue_bits : {4, 2, 0}
        Bits an element that prove small differences without reading data.
    chunk_bytes : int, default 4096
        Bytes of a chunk: a power of two from 4096 to 1048576.
    digest : {'linear', 'published'}
        The kind of digest. 'published' is the method of the paper (see Notes).
    keep_data : bool, default True
        False keeps digests only: 0.4 to 13% of the bytes. Exact ones say whether runs differ, and in which
        chunks. Those for a tolerance prove that runs agree, and leave open what they cannot prove.
    existing : {'refuse', 'append', 'replace'}
        What happens where the folder holds a history: an error, more steps with the same settings, or a new
        history in its place.
    threads : int, default 0
        Threads that digest; 0 takes all cores.
    background : bool, default False
        True: `capture` returns as soon as the arrays may change, and the step is committed later by threads
        of twinrun.
    memory : int or str, default None
        Bytes that steps under way may hold, as a number or as "1 GiB". `capture` waits where none is left.
    device_memory : int or str, default None
        The same for all GPUs together. Arrays on a GPU are copied within it first, and are brought
        to the host later. With `keep_data=False` the digests of one step rest there in any case.
    local : str or path, default None
        A folder on storage of this node, where steps rest until they are in `path`. For a bucket: where
        twinrun makes that folder; None takes `~/.cache/twinrun/buckets`.
    local_limit : int or str, default None
        Bytes that steps may take in `local`.
    flusher : {'thread', 'process', 'none'}, default None
        What brings steps from `local` to `path`: a thread; a process that outlives this one; or nothing,
        until you run `twinrun flush`. With 'none' steps are committed in `local`.
    keep_steps : int, default 0
        How many of the newest steps stay in the history; 0 for all.
    keep_data_steps : int, default 0
        How many of the newest steps keep their data; older ones keep metadata only. 0 for all.
    replace_steps : bool, default False
        True: a step that the history has may be captured again.
    flush_threads : int, default None
        Threads that write steps in the background.
    record : str or RecordOptions, default None
        Keeps only what is new in each step, as a record: a method ("runs") or all options. Every step comes
        back bit for bit.
    record_against : str or path, default None
        The record of another run. Its content is not kept again, so it must stay where it is.
    reference : str or path, default None
        The history of another run. Each step is compared with the same step there while it is captured.
    stop_on_divergence : bool, default False
        True: `capture` waits for the comparison with `reference` and returns its result.
    on_divergence : callable, default None
        `on_divergence(divergence)` is called for each step that is not proven equal to the reference.
    settings : dict of str to str, default None
        Settings of docs/reference/capture.md that have no parameter here. They override the parameters.

    Attributes
    ----------
    path : str
        The folder of the history, or its URL without secrets.
    steps : list of int
        The committed steps, ascending; of a bucket those that are there.
    local_steps : list of int
        The steps that are only in `local`, ascending.
    keeps_data : bool
        Whether steps keep their data, and not digests only.

    Raises
    ------
    TwinrunError
        A parameter has no meaning, parameters contradict each other, or the folder holds a history and
        `existing` is 'refuse'.
    Incomparable
        `existing` is 'append', and the history was captured with other settings.
    MissingFile
        `reference` or `record_against` does not exist.
    FormatError
        The path is not UTF-8.

    Notes
    -----
    Not thread-safe: one thread at a time uses a run. `on_divergence` is called from a thread of twinrun (with
    `stop_on_divergence` from `capture`), and must not use the run. A step is committed as a whole or not at
    all. A run that nobody closed is closed at the end of the process, and a lost step becomes a
    RuntimeWarning.

    Digests are defined in spec/digest.md. 'published' follows Tan et al., Middleware 2024 (see README.md).
    Records follow Tan et al., ICPP 2023 (docs/explanation/records.md).

    Examples
    --------
    Compare with an earlier run while this one computes:

    >>> with twinrun.Run("runs/b", atol=1e-6, reference="runs/a", stop_on_divergence=True) as run:
    ...     for step in range(3):
    ...         if run.capture(step, {"x": x + step + (1e-3 if step == 2 else 0)}).divergence:
    ...             print("diverges at step", step)
    diverges at step 2
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
        atol, rtol = tolerance_number("atol", atol), tolerance_number("rtol", rtol)
        _core.check_tolerance(atol, rtol)
        self._tolerances = own_tolerances(tolerances)
        self._path = given = checked_path(path)
        if not is_url(given):
            own_folder(given, "it writes to s3:// and gs:// only")
        chosen = _core.SessionSettings()
        chosen.atol, chosen.rtol = atol, rtol
        chosen.residue_bits, chosen.chunk_bytes, chosen.digest = residue_bits, chunk_bytes, digest
        chosen.keep_data, chosen.existing, chosen.threads = bool(keep_data), existing, threads
        chosen.background, chosen.replace_steps = bool(background), bool(replace_steps)
        chosen.keep_steps, chosen.keep_data_steps = keep_steps, keep_data_steps
        set_places(chosen, local, local_limit, flusher, memory, device_memory, flush_threads)
        set_record(chosen, record, record_against, path)
        if reference is not None:
            chosen.reference = checked_path(reference)
        chosen.stop_on_divergence = bool(stop_on_divergence)
        own = {str(name): value for name, value in (settings or {}).items()}
        for name in sorted(own):
            if not isinstance(own[name], str):
                raise TwinrunError(f"setting {name!r}: its value must be text, not {own[name]!r}", where=path)
            chosen.set(name, own[name])
        self._keep_data = chosen.keep_data
        if record is not None:
            offer_packing_library()
        self._phases: EventWriter | None = None  # of the step `_phased`
        self._phased = 0
        self._bucket: BucketTier | None = None
        if is_url(given):
            self._path = without_secrets(given)
            self._bucket = bucket_tier(given, chosen)
        session = self._begun(chosen)
        self._session: _core.Session | None = session
        if on_divergence is not None:
            session.on_divergence(lambda d: on_divergence(divergence_of(d)))
        # Threads must not outlive the interpreter, and losses must be reported.
        self._end = weakref.finalize(self, _end, session, self._path, self._bucket)

    def _begun(self, settings: _core.SessionSettings) -> _core.Session:
        if self._bucket is None:
            try:
                return _core.Session(self._path, settings, python_facts())
            except TwinrunError as error:
                fix = "give existing='append' to go on with it, existing='replace' to begin anew, or another folder"
                raise in_words(error, self._path, fix) from None
        try:
            session = _core.Session(self._bucket.folder, settings, python_facts())
        except BaseException:
            self._bucket.abandon()
            raise
        try:
            self._bucket.begin()
        except BaseException:
            session.close()
            self._bucket.abandon()
            raise
        return session

    @property
    def path(self) -> str:
        """The folder of the history, or its URL without secrets."""
        return self._path

    @property
    def steps(self) -> list[int]:
        """The committed steps, ascending; with `flusher="none"` also those on the node-local tier."""
        committed = self._open().committed
        if self._bucket is None or self._bucket.ends_local:
            return committed
        there = self._bucket.committed()
        return [step for step in committed if step in there]

    @property
    def local_steps(self) -> list[int]:
        """The steps that are on the node-local tier only, ascending.

        `twinrun flush`, or a later run, brings them to `path`.
        """
        session = self._open()
        if self._bucket is None:
            return session.local_only
        there = self._bucket.committed()
        return [step for step in session.committed if step not in there]

    @property
    def keeps_data(self) -> bool:
        """Whether steps keep their data, and not digests only."""
        return self._keep_data

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
        phase: str | None = None,
    ) -> CaptureFacts:
        """Captures one step. When it returns, the arrays may change (see Notes for several GPU streams).

        >>> with twinrun.Run("runs/a", atol=1e-6) as run:
        ...     facts = run.capture(10, {"x": np.zeros(100), "v": np.zeros((100, 3))})
        >>> facts.data_bytes
        3200

        Parameters
        ----------
        step : int
            The number of the step: a new one, unless the run was made with `replace_steps`.
        fields : dict of str to array, or container of arrays
            Named arrays, on the host or on a GPU (DLPack or `__cuda_array_interface__`), of any shape. A
            model, or nested mappings and lists, give names that are joined by dots. Of texts only digests are
            kept.
        stream : int or stream object, default None
            The GPU stream whose work makes the arrays, as a handle or an object of PyTorch, CuPy or Numba. By
            default the arrays themselves name it.
        ids : dict of str to str, default None
            `{field: name of a 1-D integer field of this step}`, with an ID for each row. Rows are kept in
            ascending order of IDs, so that their order in memory does not matter.
        global_place : dict of str to (shape, offset), default None
            For a field that is a part of a global array: the shape of that array, and where this part begins
            in it.
        phase : str, default None
            What has just been done, such as "after forces": for several captures within a step, in
            this order. `twinrun.compare_traces` says after which of them two runs differ first. The
            step is committed with the first capture that has no phase or another step, or when the
            run is closed.

        Returns
        -------
        CaptureFacts
            What the capture cost. With `phase`, its bytes are those that were copied.

        Raises
        ------
        StepLost
            Steps could not be committed. As a rule they are earlier ones, and this step was captured:
            `error.facts` has its facts, and `error.steps` the lost steps.
        TwinrunError
            The run is closed, the step is no integer or is captured already, there is no field, or an array
            has an unsupported type.
        Incomparable
            IDs or global places do not fit their fields.

        Notes
        -----
        Unless the run works in the background, the step is on storage when this returns. Arrays on a GPU are
        digested there; with `keep_data=False` no element is copied to the host. In the background, tensors of
        PyTorch are then digested after this returns: what the current stream does later waits for that. Let
        another stream that changes them wait for the current stream first.
        """
        self._open()
        number = step_number(step)
        if phase is not None:
            if ids or global_place:
                raise TwinrunError("ids and global_place are not for captures with a phase", where=self._path)
            return self._capture_phase(number, fields, phase)
        writer, self._phases = self._phases, None
        if writer is not None and self._phased != number:
            self._commit_phases(writer)
        elif writer is not None:
            from ..runs.events import is_trace_field

            named = named_arrays(fields, self._path)
            mine = next((n for n in named if is_trace_field(n)), None)
            if mine is not None:
                raise TwinrunError(f"the name {mine!r} is that of a trace", where=self._path, fix="rename it")
            step_events = writer.take()
            assert step_events is not None
            places = {**step_events.places, **(global_place or {})}
            return self._capture(number, {**step_events.fields(), **named}, stream, ids, places)
        return self._capture(number, fields, stream, ids, global_place)

    def _capture_phase(
        self,
        number: int,
        fields: Mapping[str, object],
        phase: str,
        places: GlobalPlace | None = None,
    ) -> CaptureFacts:
        """Copies the arrays of a phase; the step is captured when it ends. places: of parts of arrays."""
        from ..runs.events import Event
        from .events import EventWriter, copied

        if not isinstance(phase, str) or not phase:
            raise TwinrunError(f"a phase is a name, not {in_short(phase)}", where=self._path)
        start = time.perf_counter()
        if self._phases is not None and self._phased != number:
            writer, self._phases = self._phases, None
            self._commit_phases(writer)
        if self._phases is None:
            self._phases, self._phased = EventWriter(self._path, self._keep_data), number
        named = named_arrays(fields, self._path)
        if not named:
            raise TwinrunError("there is no field to capture", where=self._path)
        event = Event(phase, 0, "", "", phase, -1, -1, [])
        self._phases.see(event, named, out=True, keep=copied, places=places)
        missing = next((v for v in event.values if v.missing), None)
        if missing is not None:
            raise TwinrunError(missing.missing, where=self._path)
        self._phases.add(event)
        held = self._phases.bytes_kept(event)
        return CaptureFacts(number, time.perf_counter() - start, held, 0)

    def _commit_phases(self, writer: EventWriter) -> None:
        events = writer.take()
        if events is not None:
            self._capture(self._phased, events.fields(), global_place=events.places)

    def _capture(
        self,
        number: int,
        fields: Mapping[str, object],
        stream: object = None,
        ids: Mapping[str, str] | None = None,
        global_place: GlobalPlace | None = None,
    ) -> CaptureFacts:
        session = self._open()
        entries, keep = captured_entries(fields, self._tolerances, stream, self._path, ids, global_place)
        if self._bucket is not None:
            self._bucket.before_capture()
        report = session.capture(number, entries)
        del keep
        facts = CaptureFacts(
            step=report.step,
            seconds=report.seconds,
            data_bytes=report.data_bytes if self._keep_data else 0,  # the data is not written
            metadata_bytes=report.metadata_bytes,
            waited_seconds=report.waited_seconds,
            staged_bytes=report.staged_bytes,
            divergence=None if report.divergence is None else divergence_of(report.divergence),
        )
        lost = _reasons(report.lost)
        if self._bucket is not None:
            lost = self._bucket.captured(number) | lost
        _check_lost(lost, self._path, facts)
        return facts

    def wait(self) -> None:
        """Waits until all captured steps are committed in `path`; with `flusher="none"`, in `local`.

        A step of captures with a phase ends.

        Raises
        ------
        StepLost
            A step could not be committed.
        TwinrunError
            The run is closed.
        """
        session = self._open()
        writer, self._phases = self._phases, None
        if writer is not None:
            self._commit_phases(writer)
        lost = _reasons(session.wait())
        if self._bucket is not None:
            lost = self._bucket.drain() | lost
        _check_lost(lost, self._path)

    def latest(self, not_after: int | None = None) -> int | None:
        """Finds the newest committed step.

        >>> with twinrun.Run("runs/a") as run:
        ...     facts = [run.capture(step, {"x": np.zeros(4)}) for step in (10, 20)]
        ...     run.latest(), run.latest(not_after=15), run.latest(not_after=5)
        (20, 10, None)

        Parameters
        ----------
        not_after : int, default None
            The largest step to return; None for no limit.

        Returns
        -------
        int or None
            The step; None if there is none.

        Raises
        ------
        TwinrunError
            The run is closed, or `not_after` is no integer.
        """
        return self._open().latest(_LAST_STEP if not_after is None else step_number(not_after))

    def load(self, step: int, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
        """Reads fields of a committed step into new arrays. Every byte is checked.

        >>> with twinrun.Run("runs/a") as run:
        ...     facts = run.capture(10, {"x": np.arange(3.0)})
        ...     run.load(10)
        {'x': array([0., 1., 2.])}

        Parameters
        ----------
        step : int
            A committed step.
        names : str or iterable of str, default None
            The fields to read; None for all.

        Returns
        -------
        dict of str to numpy.ndarray
            New arrays. Rows that were captured with IDs come in ascending order of IDs. bf16 comes as its
            bits, in uint16, and dates and time spans as int64.

        Raises
        ------
        MissingFile
            The history has no such step, or its data was not kept.
        DamagedFile
            A checksum does not fit.
        TwinrunError
            The run is closed, or the step has no field of a name.
        """
        session, number = self._stored(step)
        wanted = None if names is None else names_given(names, "names")
        entries: list[_core.CapturedField] = []
        arrays: dict[str, np.ndarray] = {}
        for name, stored in session.stored_fields(number, wanted).items():
            told = label_told(name, stored.shape)
            if wanted is None and told is not None:  # a label, which the caller did not capture
                continue
            arrays[name] = self._empty(stored)
            entries.append(_into(name, stored, arrays[name]))
        if entries:
            session.restore(number, entries)
        return arrays

    def restore(self, step: int, fields: Mapping[str, object]) -> None:
        """Copies fields of a committed step back into arrays. Every byte is checked before it is written.

        >>> x = np.arange(3.0)
        >>> with twinrun.Run("runs/a") as run:
        ...     facts = run.capture(10, {"x": x})
        ...     x[:] = 0
        ...     run.restore(10, {"x": x})
        >>> x
        array([0., 1., 2.])

        Parameters
        ----------
        step : int
            A committed step.
        fields : dict of str to array
            Writable arrays with the type and shape that was captured; for a scalar an array of
            shape (). Arrays on the host may be strided; arrays on a GPU must be dense. A masked array gets
            the mask that was captured. Names are those of the step: what was captured as a container or a
            structure has one for each array in it (`load` shows them).

        Raises
        ------
        Incomparable
            An array has another type, shape or unit of time than was captured.
        MissingFile
            The history has no such step, or its data was not kept.
        DamagedFile
            A checksum does not fit.
        TwinrunError
            The run is closed, an array is read-only or a scalar of numpy, or the step has no field of a
            name. Or arrays share memory, as tied weights do, and the step has other values for each of them.

        Notes
        -----
        After an error some of the arrays may hold the values of the step, and others their old values.
        """
        if not isinstance(fields, Mapping):
            raise TwinrunError(
                f"{type(fields).__name__} is no mapping of names to arrays",
                where=self._path,
                fix="give model.state_dict(), or use twinrun.torch.ParallelRun, which takes models",
            )
        session, number = self._stored(step)
        entries: list[_core.CapturedField] = []
        copies: list[tuple[np.ndarray, np.ndarray]] = []
        keep: list[object] = []
        described = session.stored_fields(number, None)
        if absent := [name for name in fields if name not in described]:
            session.stored_fields(number, absent)  # says so
        masks = self._masks(number, fields, described)
        told, _ = labels_told({label: one.shape for label, one in described.items()})
        targets = {}
        for name, array in fields.items():
            bits, kind = bits_of_small(array)  # 8-bit floating-point numbers
            was = told.get(name, {}).get("kind")
            if kind is not None and kind != was:
                raise Incomparable(
                    f"step {number}: {was or described[name].dtype} was captured, the array is {kind}",
                    where=name,
                )
            targets[name] = writable(name, bits)

        def read(name: str) -> np.ndarray:
            values = self._empty(described[name])
            session.restore(number, [_into(name, described[name], values)])
            return (
                values.T
                if isinstance(targets[name], DeviceArrayView) and described[name].fortran_order
                else values
            )

        check_fits(filter(None, (_memory(n, t, described[n]) for n, t in targets.items())), read)
        for name, array in fields.items():
            stored = described[name]
            _check_unit(name, array, session, number)
            target = targets[name]
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
        try:
            if entries:
                session.restore(number, entries)
            for into, values in copies:
                into[...] = values.view(into.dtype.newbyteorder("="))
            for masked, mask in masks:
                masked.mask = mask
        finally:  # after an error, too, some may have been written
            for array in fields.values():
                _changed(array)
        del keep

    def _masks(
        self, step: int, fields: Mapping[str, object], stored: Mapping[str, object]
    ) -> list[tuple[np.ma.MaskedArray, np.ndarray]]:
        """Masked arrays to restore, with the masks that were captured. stored: all fields of the step.

        Raises Incomparable where a mask was captured, and the array that is given cannot have one.
        """
        found = []
        for name, array in fields.items():
            label = f"{name}@mask"
            if label not in stored or label in fields:
                continue
            if not isinstance(array, np.ma.MaskedArray):
                raise Incomparable(
                    f"step {step}: it was captured with a mask",
                    where=name,
                    fix=f"give a masked array, or an array for {label!r} beside it",
                )
            found.append((array, self.load(step, [label])[label]))
        return found

    def _stored(self, step: int) -> tuple[_core.Session, int]:
        """The session, and a step whose files are on this machine now, if they are anywhere."""
        session, number = self._open(), step_number(step)
        if self._bucket is not None:
            self._bucket.bring_step(number)
        return session, number

    @staticmethod
    def _empty(stored: _core.StoredField) -> np.ndarray:
        shape = stored.shape
        fortran = stored.fortran_order
        return np.empty(
            shape[::-1] if fortran else shape, storage_dtype(stored.dtype), "F" if fortran else "C"
        )

    def close(self) -> None:
        """Ends the run when every captured step is committed. A second call does nothing.

        Raises
        ------
        StepLost
            A step could not be committed.
        """
        if self._session is None:
            return
        writer, self._phases = self._phases, None
        try:
            if writer is not None:
                self._commit_phases(writer)
        finally:
            session, self._session = self._session, None
            self._end.detach()
            _close(session, self._path, self._bucket)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except TwinrunError as e:
            if error is None:
                raise
            # A note on the error of the body, which is raised.
            said = f"while the run was closed: {e}"
            if hasattr(error, "add_note"):
                error.add_note(said)
            else:  # Python 3.10
                warnings.warn(said, RuntimeWarning, stacklevel=2)


class RankRun(Run):
    """One rank of a run whose ranks this process captures one after another.

    turns: the ranks that this process captures; this is the next one. It is closed before the next
    one begins. All ranks capture the same steps under the same settings, which are those of `Run`;
    a step is there once all of them have captured it.
    """

    def __init__(self, path: str | os.PathLike[str], turns: _core.Turns, **settings: Any) -> None:
        self._turns = turns
        super().__init__(path, **settings)

    def _begun(self, settings: _core.SessionSettings) -> _core.Session:
        return _core.Session(self._path, settings, python_facts(), self._turns)


def _memory(
    name: str, target: tuple[np.ndarray, str] | DeviceArrayView, stored: _core.StoredField
) -> Memory | None:
    """Where an array lies; None for one that the step does not fit into, which is refused elsewhere."""
    shape = tuple(stored.shape)
    if isinstance(target, DeviceArrayView):
        if (target.dtype, tuple(target.shape)) != (stored.dtype, shape):
            return None
        item = np.dtype(storage_dtype(stored.dtype)).itemsize
        dense, strides = item, []
        for n in reversed(shape):
            strides.append(dense)
            dense *= n
        return Memory(name, target.device, target.address, shape, tuple(reversed(strides)), item)
    into, dtype = target
    if dtype != stored.dtype or into.shape != (shape[::-1] if stored.fortran_order else shape):
        return None
    address = into.__array_interface__["data"][0]
    return Memory(name, -1, address, into.shape, into.strides, into.itemsize)


def _changed(array: object) -> None:
    """Tells PyTorch that a tensor was written: what autograd kept of it is not what it was."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(array, torch.Tensor):
        return
    try:
        with torch.no_grad():
            array.detach().as_strided((0,), (1,)).zero_()
    except RuntimeError:  # a tensor of inference mode has no count of its changes
        pass


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
