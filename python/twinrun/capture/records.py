"""Records: histories that keep only what is new in each step, and give every step back bit for bit."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from .. import _core
from ..arguments import MEMORY, any_path, check_settings, own_folder, own_source, step_number, whole_number
from ..errors import DamagedFile, FormatError, MissingFile, TwinrunError
from ..formats.folder import is_history
from ..runs.beside import names_beside
from ..runs.histories import HistorySubject
from ..runs.unnamed import error_of_no_step, error_of_unnamed, unnamed_of
from ..runs.verify import damage_of_step, damaged_metadata
from .record_options import RecordOptions
from .taken import in_words
from .tree import Tree, steps_of

__all__ = [
    "CompactFacts",
    "PackFacts",
    "PackedStep",
    "RecordOptions",
    "compact",
    "pack",
    "read_part",
    "restore",
    "write_part",
]

_MOST_NAMED = 8
_SEVERAL = "files of several steps need a folder for each"  # as the core says it


@dataclass(frozen=True)
class PackedStep:
    """What one step of one rank took in a record.

    >>> with twinrun.Run("runs/a") as run:
    ...     facts = run.capture(5, {"x": np.zeros(1024)})
    >>> step = twinrun.pack("runs/a", "records/a").steps[0]
    >>> step.step, step.rank, step.full_bytes, step.collisions
    (5, 0, 8192, 0)

    Attributes
    ----------
    step, rank : int
        The step, and the rank that wrote it.
    full_bytes : int
        Bytes of the files of this step.
    bytes : int
        Bytes of its difference, which is what the record keeps.
    entry_bytes : int
        The part of `bytes` that is not a payload: headers and entries.
    payload_bytes : int
        The part of `bytes` that is new content, compressed.
    chunks : int
        Chunks of the step.
    changed_chunks : int
        Chunks that differ from the same place in the previous step.
    payload_chunks : int
        Chunks whose content no earlier step had.
    collisions : int
        Chunks with equal hashes and different bytes; counted with `RecordOptions(verify=True)`.
    new_version : bool
        True: the record had this step already, with other files.
    """

    step: int
    rank: int
    full_bytes: int
    bytes: int
    entry_bytes: int
    payload_bytes: int
    chunks: int
    changed_chunks: int
    payload_chunks: int
    collisions: int
    new_version: bool = False

    @classmethod
    def _of(cls, step: _core.PackedStep) -> PackedStep:
        """As the core says it."""
        return cls(**{part.name: getattr(step, part.name) for part in fields(cls)})


@dataclass
class PackFacts:
    """What `pack` did, step by step.

    >>> with twinrun.Run("runs/a") as run:
    ...     for step in range(3):
    ...         facts = run.capture(step, {"x": np.zeros(1024)})
    >>> packed = twinrun.pack("runs/a", "records/a")
    >>> [step.step for step in packed.steps], packed.full_bytes, packed.notes
    ([0, 1, 2], 24576, [])

    Attributes
    ----------
    steps : list of PackedStep
        One for each step of each rank, in the order in which they were packed.
    notes : list of (str, str)
        (name, why) of all that was left out, or that is kept as something else: a link instead of its target.
    full_bytes : int
        Bytes of all files that were packed.
    bytes : int
        Bytes of all differences.
    """

    steps: list[PackedStep] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)

    @property
    def full_bytes(self) -> int:
        """Bytes of all files that were packed."""
        return sum(s.full_bytes for s in self.steps)

    @property
    def bytes(self) -> int:
        """Bytes of all differences."""
        return sum(s.bytes for s in self.steps)

    def ratio(self, without_first: bool = False) -> float:
        """How many times smaller the record is than the files: full_bytes / bytes.

        Parameters
        ----------
        without_first : bool, default False
            True leaves out the first step of each rank, which has no earlier step to copy from.

        Returns
        -------
        float
            The ratio; 1.0 where nothing was packed.
        """
        seen: set[int] = set()
        full = kept = 0
        for s in self.steps:
            first = s.rank not in seen
            seen.add(s.rank)
            if not (first and without_first):
                full += s.full_bytes
                kept += s.bytes
        return full / kept if kept else 1.0


@dataclass(frozen=True)
class CompactFacts:
    """What `compact` did.

    >>> with twinrun.Run("records/a", record="runs") as run:
    ...     for step in range(3):
    ...         facts = run.capture(step, {"x": np.arange(1024.0) + step})
    >>> facts = twinrun.compact("records/a", keep_last=1)
    >>> facts.dropped_steps, facts.bytes_after < facts.bytes_before
    (2, True)

    Attributes
    ----------
    dropped_steps : int
        Steps that were removed.
    bytes_before, bytes_after : int
        Bytes of all differences, before and after.
    """

    dropped_steps: int
    bytes_before: int
    bytes_after: int


def _known_steps(record: str, append: bool) -> list[int]:
    return [s.step for s in _core.open_history(record).steps] if append and is_history(record) else []


def _notes_of_history(source: str) -> list[tuple[str, str]]:
    """Steps that a history names and that cannot be packed, and what lies beside it."""
    history = _core.open_history(source)
    notes = [(f"step {step}", "left out: not every rank committed it") for step in history.incomplete]
    for step in history.steps:
        if not all(rank.data for rank in step.ranks):
            notes.append((f"step {step.step}", "left out: only its metadata was kept"))
    notes += [
        (name, "left out: it lies beside the history and is no part of it")
        for name in names_beside(source, history)
    ]
    return notes


def pack(
    source: str | os.PathLike[str],
    record: str | os.PathLike[str],
    *,
    options: RecordOptions | None = None,
    against: str | os.PathLike[str] | None = None,
    append: bool = False,
    update: bool = False,
    threads: int = 0,
    progress: Callable[[PackedStep], None] | None = None,
) -> PackFacts:
    """Makes a record of the steps of a run: each step keeps only what is new in it.

    >>> with twinrun.Run("runs/a") as run:
    ...     for step in range(5):
    ...         facts = run.capture(step, {"x": np.arange(10_000.0)})
    >>> packed = twinrun.pack("runs/a", "records/a")
    >>> packed.ratio(without_first=True) > 10
    True

    Parameters
    ----------
    source : str or path
        A history that twinrun captured, or a folder with files of any program. Everything in a folder is
        kept: hidden files, links, empty folders.
    record : str or path
        The folder of the record: without a history, unless `append` or `update` is True. Other files in it
        stay as they are.
    options : RecordOptions or str, default None
        How the record is made: a method, as 'tree', or all options; None for `RecordOptions()`.
    against : str or path, default None
        Another record. Its content is not kept again, so it must stay where it is.
    append : bool, default False
        True goes on with a record that exists.
    update : bool, default False
        As `append`; and a step whose files changed since it was packed becomes a new version of that step.
        Without it such a step is an error, before anything is written.
    threads : int, default 0
        Threads that work; 0 takes all cores.
    progress : callable, default None
        `progress(packed_step)` is called for each step of each rank when it is on storage.

    Returns
    -------
    PackFacts
        What each step took, and notes on what could not be kept as it is.

    Raises
    ------
    MissingFile
        `source` does not exist or has no files, or `against` does not exist.
    FormatError
        `source` is a file, or the record would lie within it.
    TwinrunError
        The record exists and neither `append` nor `update` is True, an option has no meaning, or files of a
        packed step changed.
    DamagedFile
        The history or the record contradicts its checksums.

    Notes
    -----
    An error loses nothing that was packed before; with `append` the rest can follow. One process at a time
    writes a record. The method follows Tan et al., ICPP 2023; docs/explanation/records.md says what is new.
    """
    source, record = own_source(any_path(source)), own_folder(any_path(record))
    check_settings(threads=threads)
    append = append or update
    chosen = RecordOptions(options) if isinstance(options, str) else options or RecordOptions()
    settled = _core.PackOptions(
        settings=chosen.settled(),
        table_bytes=chosen.table,
        verify=chosen.verify,
        threads=threads or os.cpu_count() or 1,
        append=append,
        update=update,
        against=any_path(against) if against else "",
    )
    facts = PackFacts()

    def visit(step: _core.PackedStep) -> None:
        facts.steps.append(PackedStep._of(step))
        if progress is not None:
            progress(facts.steps[-1])

    if not os.path.exists(source):
        raise MissingFile("no such folder", where=source, fix="check the path")
    if os.path.isdir(source):
        _refuse_within(source, record)
    if is_history(source):
        if (unnamed := unnamed_of(source, _core.open_history(source))) is not None:
            raise unnamed  # the source may be removed next
        facts.notes += _notes_of_history(source)
        packed = functools.partial(_core.pack_history, source, record, settled, visit)
    elif os.path.isdir(source):
        tree = Tree(source, record)
        facts.notes += tree.notes
        if not tree.entries:
            raise MissingFile(
                "no files in it", where=source, fix="name a history, or a folder with the files of a run"
            )
        steps = steps_of(tree, _known_steps(record, append))
        packed = functools.partial(_core.pack_files, steps, record, settled, visit)
    else:
        raise FormatError(
            "is neither a history nor a folder", where=source, fix="name the folder that holds the steps"
        )
    try:
        packed()
    except TwinrunError as error:
        fix = "give --append to go on with it, --update where steps changed, or another folder"
        raise in_words(error, record, fix) from None
    return facts


def restore(
    record: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    steps: Iterable[int] | None = None,
    flat: bool = False,
    threads: int = 0,
    memory: int = MEMORY,
) -> list[str]:
    """Writes steps of a record back as files. Every byte is checked.

    >>> with twinrun.Run("records/a", record="runs") as run:
    ...     for step in (10, 20):
    ...         facts = run.capture(step, {"x": np.arange(4.0)})
    >>> paths = twinrun.restore("records/a", "back", steps=[20])
    >>> twinrun.compare("records/a", "back", steps="20").verdict
    'same'

    Parameters
    ----------
    record : str or path
        The folder of the record.
    to : str or path
        The folder that gets the files. It is made if it does not exist.
    steps : iterable of int, default None
        The steps to restore, each once; None for all.
    flat : bool, default False
        For files of other programs only: True writes them into `to` itself, False into to/step-N.
    threads : int, default 0
        Threads that work; 0 takes all cores.
    memory : int, default 1 GiB
        Bytes that reading may take at once, beside the index of the record. A few MiB are always taken.

    Returns
    -------
    list of str
        The paths that were written. Steps that a history in `to` has already are not among them: their
        files are checked.

    Raises
    ------
    MissingFile
        The record or one of the steps does not exist.
    DamagedFile
        A checksum does not fit, or a file of the record is missing. Or a step that was asked for is there,
        and no journal names it; where all steps were asked for, the others were written. Or `to` has one of
        the steps already, and files of it are missing or damaged.
    TwinrunError
        The folder is not a record, something in `to` has the name of a file to write, a history in `to` has
        another step of a number that the record has, `to` is a record or within this one, or `flat` is True
        for captured steps.

    Notes
    -----
    Whatever is in `to` stays as it is, and no link in it is followed. Of a captured history the result is a
    history with these steps.
    """
    restored = restore_named(record, to, steps=steps, flat=flat, threads=threads, memory=memory)
    if restored.unnamed is not None:
        raise restored.unnamed
    return restored.paths


class Restored(NamedTuple):
    """What `restore_named` did."""

    paths: list[str]
    unnamed: TwinrunError | None  # the error to raise where steps are there that no journal names
    notes: list[str]


def restore_named(
    record: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    steps: Iterable[int] | None,
    flat: bool,
    threads: int,
    memory: int,
) -> Restored:
    """As `restore`, which raises what this returns with the paths."""
    record, to = own_source(any_path(record)), own_folder(any_path(to))
    check_settings(threads=threads, memory=memory)
    history = _core.open_history(record)
    chosen = (
        [s.step for s in history.steps] if steps is None else list(dict.fromkeys(map(step_number, steps)))
    )
    # Who restores everything may remove what it came from.
    unnamed = None
    if steps is None:
        fix = "bring the journal back from a copy, or pack the step again"
        unnamed = error_of_unnamed(record, history, "not restored", fix)
    if not chosen:
        if unnamed is not None:
            raise unnamed
        raise MissingFile("no step to restore", where=record)
    for step in sorted({*chosen} - {s.step for s in history.steps}):
        raise error_of_no_step(record, history, step)
    ranks = [rank for s in history.steps if s.step in {*chosen} for rank in s.ranks]
    if flat and ranks and history.record is not None and all(rank.metadata for rank in ranks):
        raise TwinrunError(
            "has captured steps, which come back as a history",
            where=record,
            fix="leave out --flat, which is for files of other programs",
        )
    _refuse_records(record, to)
    workers = threads or os.cpu_count() or 1
    begun = _check_restored(history, to, {*chosen}, workers)
    notes = _notes_of_another_run(history, to)
    try:
        written = _core.unpack_steps(record, chosen, to, flat, workers, memory)
    except TwinrunError as error:
        if _SEVERAL not in str(error):
            raise
        raise TwinrunError(
            "holds files of several steps, which need a folder for each",
            where=record,
            fix="choose one step, or leave out --flat",
        ) from None
    for step in begun:
        _check_step(to, step, workers)
    return Restored(written, unnamed, notes)


def _notes_of_another_run(record: _core.History, to: str) -> list[str]:
    """A note where no process that captured the record captured what a history in `to` has.

    This does not prove another run: one that was begun again may have a record of its own.
    """
    if not os.path.isdir(to) or not is_history(to):
        return []
    ours, theirs = (
        {(one.rank, one.json) for one in history.provenance} for history in (record, _core.open_history(to))
    )
    if not ours or not theirs or ours & theirs:
        return []
    return [f"{to}: other processes captured its steps than those of the record: are they of one run?"]


def _refuse_within(source: str, record: str) -> None:
    """Raises FormatError if a record would come into what is packed."""
    inside = os.path.realpath(source)
    if os.path.commonpath([inside, os.path.realpath(record)]) == inside:
        raise FormatError("would be within what is packed", where=record, fix="name a folder outside of it")


def _refuse_records(record: str, to: str) -> None:
    """Raises TwinrunError if restored files would come into a record."""
    inside = os.path.realpath(record)
    if os.path.commonpath([inside, os.path.realpath(to)]) == inside:
        raise TwinrunError(
            "would be within the record, and files are not restored into one",
            where=to,
            fix="name another folder, outside of it",
        )
    if os.path.isdir(to) and is_history(to) and _core.open_history(to).record is not None:
        raise TwinrunError(
            "is a record, and files are not restored into one", where=to, fix="name another folder"
        )


def _check_restored(record: _core.History, to: str, chosen: set[int], threads: int) -> list[int]:
    """Raises TwinrunError if `to` and the record have different steps of one number: they are of two runs,
    and a history of both would pass for one. DamagedFile if `to` has a chosen step already, and files of it
    are missing or damaged.

    Returns the steps that some ranks only have there, and that restoring completes.
    """
    if not os.path.isdir(to) or not is_history(to):
        return []
    there = _core.open_history(to)
    kept = {
        s.step: [rank.header_xxh3 for rank in s.ranks]
        for s in record.steps
        if all(rank.metadata for rank in s.ranks)  # those of other programs join no history
    }
    for step in there.steps:
        own = [rank.header_xxh3 for rank in step.ranks]
        if kept.get(step.step, own) != own:
            raise TwinrunError(
                f"has another step {step.step} than the record: of another run, or an older version of it",
                where=to,
                fix="name another folder",
            )
    for step in there.steps:
        if step.step in chosen and step.step in kept:
            _check_step(to, step.step, threads)
    return sorted(chosen & {*there.incomplete})


def _check_step(to: str, step: int, threads: int) -> None:
    """Raises DamagedFile if files of a restored step are missing or damaged."""
    problem = damage_of_step(to, step, threads)
    if problem:
        raise DamagedFile(
            f"step {step} was restored there before, and it is not whole any more: "
            + problem.removesuffix(": restore it"),
            where=to,
            fix="name another folder, or remove this one and restore again; nothing was changed in it",
        )


def _fields_of(record: str, step: int, rank: int) -> set[str]:
    """The fields of a captured step; none where files of another program were packed."""
    subject = HistorySubject(record)
    at = (step, rank)
    if at not in subject.places or not any(
        s.step == step and r.rank == rank and r.metadata
        for s in _core.open_history(record).steps
        for r in s.ranks
    ):
        return set()
    return {f.name for f in subject.metadata(at).fields}


def _part(
    record: str | os.PathLike[str],
    step: int,
    name: str,
    rank: int,
    offset: int,
    count: int | None,
    threads: int,
) -> tuple[_core.RecordStore, str, int]:
    """The record, a segment of it, and how many bytes of the segment are asked for; '' for a field without
    elements.
    """
    step, rank, offset = step_number(step), whole_number("rank", rank), whole_number("offset", offset)
    count = None if count is None else whole_number("count", count)
    if not 0 <= rank < 1 << 32:
        raise MissingFile(f"there is no rank {rank}", where=record, fix="twinrun log lists the ranks")
    store = _core.open_record(own_source(any_path(record)), rank, threads or os.cpu_count() or 1)
    try:
        files, segments = store.files(step), store.segments(step)
    except MissingFile:
        history = _core.open_history(any_path(record))
        if any(s.step == step for s in history.steps):
            raise
        raise error_of_no_step(any_path(record), history, step) from None
    own = f"rank-{rank:05}."  # begins names by which twinrun stores a captured step
    for segment in segments:
        is_field = segment.file == 0 and segment.name == name
        if name in (segment.name, files[segment.file].name):
            if name.startswith(own) and not is_field and _fields_of(any_path(record), step, rank):
                continue
            size = segment.bytes
            length = size - offset if count is None else count
            if offset < 0 or length < 0 or offset + length > size:
                asked = f"bytes from {offset} on" if count is None else f"{offset}:{count} (offset:count)"
                raise TwinrunError(
                    f"{name!r} of step {step} has {size} bytes, and {asked} are not all in it",
                    where=record,
                    fix=f"ask for bytes below {size}",
                )
            return store, segment.name, length
    if name in _fields_of(any_path(record), step, rank):  # it has no elements
        if offset or count:
            raise TwinrunError(
                f"{name!r} of step {step} has 0 bytes", where=record, fix="ask for none of them"
            )
        return store, "", 0
    if any(file.name == name for file in files) and not any(files[s.file].name == name for s in segments):
        raise TwinrunError(
            f"{name!r} of step {step} is a link, a folder or an empty file, and has no bytes to read",
            where=record,
            fix="restore the step, which brings it back",
        )
    if any(file.metadata for s in _core.open_history(any_path(record)).steps for file in s.ranks):
        raise MissingFile(f"step {step} has no {name!r}", where=record, fix="twinrun show lists the fields")
    more = f" and {len(files) - _MOST_NAMED} more" if len(files) > _MOST_NAMED else ""
    names = ", ".join(file.name for file in files[:_MOST_NAMED]) + more
    raise MissingFile(f"step {step} has no {name!r}", where=record, fix=f"it has {names}")


def read_part(
    record: str | os.PathLike[str],
    step: int,
    name: str,
    *,
    rank: int = 0,
    offset: int = 0,
    count: int | None = None,
    threads: int = 0,
    memory: int = MEMORY,
) -> bytes:
    """Reads a range of bytes of one field of one step. Every byte is checked.

    >>> with twinrun.Run("records/a", record="runs") as run:
    ...     facts = run.capture(10, {"x": np.arange(1000.0)})
    >>> np.frombuffer(twinrun.read_part("records/a", 10, "x", offset=80, count=16))
    array([10., 11.])

    Parameters
    ----------
    record : str or path
        The folder of the record.
    step : int
        The step.
    name : str
        The name of the field, or of the file where files were packed.
    rank : int, default 0
        The rank that wrote it.
    offset : int, default 0
        The first byte.
    count : int, default None
        How many bytes; None for all that follow.
    threads : int, default 0
        Threads that work; 0 takes all cores.
    memory : int, default 1 GiB
        Bytes that reading may take at once, beside the result and the index of the record.

    Returns
    -------
    bytes
        The bytes. Elements of a field lie densely, in the order in which they were captured, in native byte
        order.

    Raises
    ------
    MissingFile
        The record has no such step, rank or name.
    TwinrunError
        The range is not within the field.
    DamagedFile
        A checksum does not fit, a file of the record is missing, or no journal names the step that is there.

    Notes
    -----
    Only the blocks that hold these bytes are read.
    """
    check_settings(threads=threads, memory=memory)
    store, segment, length = _part(record, step, name, rank, offset, count, threads)
    return store.read(step, segment, offset, length, memory) if segment else b""


def write_part(
    record: str | os.PathLike[str],
    step: int,
    name: str,
    to: str | os.PathLike[str],
    *,
    rank: int = 0,
    offset: int = 0,
    count: int | None = None,
    threads: int = 0,
    memory: int = MEMORY,
) -> int:
    """Writes a range of bytes of one field of one step to a new file.

    >>> with twinrun.Run("records/a", record="runs") as run:
    ...     facts = run.capture(10, {"x": np.arange(1000.0)})
    >>> twinrun.write_part("records/a", 10, "x", "x.bin")
    8000

    Parameters
    ----------
    record : str or path
        The folder of the record.
    step : int
        The step.
    name : str
        The name of the field, or of the file where files were packed.
    to : str or path
        The new file. It appears as a whole or not at all.
    rank : int, default 0
        The rank that wrote it.
    offset : int, default 0
        The first byte.
    count : int, default None
        How many bytes; None for all that follow.
    threads : int, default 0
        Threads that work; 0 takes all cores.
    memory : int, default 1 GiB
        Bytes that reading may take at once, beside the index of the record.

    Returns
    -------
    int
        How many bytes were written.

    Raises
    ------
    MissingFile
        The record has no such step, rank or name.
    TwinrunError
        The range is not within the field, a file of the name `to` exists, or it would be within a record.
    DamagedFile
        As `read_part`.
    """
    check_settings(threads=threads, memory=memory)
    _refuse_records(any_path(record), os.path.dirname(os.path.abspath(any_path(to))))
    if os.path.lexists(any_path(to)):
        raise TwinrunError("is there already", where=any_path(to), fix="name another file, or remove it")
    store, segment, length = _part(record, step, name, rank, offset, count, threads)
    if segment:
        store.write(step, segment, offset, length, any_path(to), memory)
    else:
        try:
            with open(any_path(to), "xb"):
                pass
        except OSError as e:
            raise TwinrunError(f"cannot be written: {e.strerror}", where=to, fix="check the path") from None
    return length


def compact(
    record: str | os.PathLike[str],
    *,
    keep_last: int | None = None,
    drop: Iterable[int] = (),
    threads: int = 0,
    forget_missing: bool = False,
) -> CompactFacts:
    """Drops steps of a record, and joins what the other steps need of them into few files.

    >>> with twinrun.Run("records/a", record="runs") as run:
    ...     for step in range(5):
    ...         facts = run.capture(step, {"x": np.arange(1000.0) + step})
    >>> twinrun.compact("records/a", keep_last=2).dropped_steps
    3

    Parameters
    ----------
    record : str or path
        The folder of the record.
    keep_last : int, default None
        How many of the newest steps stay, 1 or more; None drops none of them.
    drop : iterable of int, default ()
        Further steps to remove. Without `keep_last` and `drop` no step is removed, and files are joined.
    threads : int, default 0
        Threads that work; 0 takes all cores.
    forget_missing : bool, default False
        True: a record that was packed against this one, and that does not exist any more, was removed and
        needs nothing. False: it is taken for moved, which is an error.

    Returns
    -------
    CompactFacts
        How many steps left, and the bytes before and after.

    Raises
    ------
    MissingFile
        The record, or a step of `drop`, does not exist.
    TwinrunError
        The folder is not a record, `keep_last` is less than 1, or a record that was packed against
        this one is missing.
    DamagedFile
        A checksum does not fit, or the metadata of a step that would stay is damaged. Then nothing
        leaves: what leaves could be the last copy that is whole.

    Notes
    -----
    Other processes may read the record meanwhile.
    """
    check_settings(threads=threads)
    keep_last = None if keep_last is None else whole_number("keep_last", keep_last)
    if keep_last is not None and keep_last < 1:
        raise TwinrunError(
            f"keep_last must be 1 or more, not {keep_last}",
            where=record,
            fix="name steps that leave with drop",
        )
    path, leaving = own_source(any_path(record)), set(map(step_number, drop))

    def stay(steps: list[int]) -> set[int]:
        return {*steps[-keep_last if keep_last else 0 :]} - leaving

    damaged = damaged_metadata(path, stay, threads)
    if damaged is not None:
        step, problem = damaged
        raise DamagedFile(
            f"step {step} would stay, and it is damaged: {problem}: nothing was removed",
            where=path,
            fix="or let it leave too",
        )
    report = _core.compact_record(
        path, sorted(leaving), keep_last or 0, threads or os.cpu_count() or 1, forget_missing
    )
    return CompactFacts(report.dropped_steps, report.bytes_before, report.bytes_after)
