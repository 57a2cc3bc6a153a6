"""Records: histories that keep only what is new in each step, and give every step back bit for bit."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields

from .. import _core
from ..arguments import MEMORY, any_path, check_settings
from ..errors import DamagedFile, FormatError, MissingFile, TwinrunError
from ..formats import detect
from ..formats.files import reading
from ..formats.folder import is_history
from ..formats.naming import parse_path
from ..runs.verify import damaged_metadata

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


def offer_packing_library() -> None:
    """Lets the core find nvCOMP where the package nvidia-libnvcomp-cu12 or -cu13 is installed; TWINRUN_NVCOMP
    goes first.
    """
    if os.environ.get("TWINRUN_NVCOMP"):
        return
    try:
        found = importlib.util.find_spec("nvidia.libnvcomp")
    except ImportError:
        return
    folders = found.submodule_search_locations if found is not None else None
    for folder in folders or []:
        for version in (6, 5):
            library = os.path.join(folder, "lib64", f"libnvcomp.so.{version}")
            if os.path.exists(library):
                os.environ["TWINRUN_NVCOMP"] = library
                return


METHODS = ("runs", "tree", "list", "basic", "full")
_ALL = "."  # the unit of a folder that is one data set
_LONGEST_KEY = 4000  # bytes: names of a record have at most 4096


@dataclass(frozen=True)
class RecordOptions:
    """How a record is made: the method, the unit, and the compression.

    >>> with twinrun.Run("runs/a") as run:
    ...     for step in range(3):
    ...         facts = run.capture(step, {"x": np.zeros(100_000)})
    >>> packed = twinrun.pack("runs/a", "records/a", options=twinrun.RecordOptions(chunk=1024))
    >>> packed.ratio() > 100
    True

    Attributes
    ----------
    method : {'runs', 'tree', 'list', 'basic', 'full'}
        How copies of earlier content are found and written down; docs/explanation/records.md has a table.
    chunk : int, default 256
        Bytes of a chunk, the unit of copies: a power of two from 32 to 65536.
    compress : {'zstd', 'none'}, default None
        How new chunks are compressed. None: zstd where this build has it.
    level : int, default 1
        The level of zstd.
    xor : bool, default None
        True: new chunks may be compressed after XOR with what they replace. None: True where new chunks are
        compressed.
    bounded : bool, default False
        True: a chunk that is within the tolerance of its field to what restore gives is not kept again. Only
        for `pack`.
    table : int, default 0
        Bytes that the table of hashes may take; 0 for no limit.
    verify : bool, default False
        True: chunks are compared byte by byte before they count as equal. False trusts 128-bit hashes. Only
        for `pack`.

    Notes
    -----
    'tree' is Algorithm 1 of Tan et al., ICPP 2023.
    """

    method: str = "runs"
    chunk: int = 256
    compress: str | None = None
    level: int = 1
    xor: bool | None = None
    bounded: bool = False
    table: int = 0
    verify: bool = False

    def settled(self) -> _core.RecordSettings:
        """Gives the options as the core takes them; `table` and `verify` are no settings of the record.

        Returns
        -------
        _core.RecordSettings
            The settings of the record.

        Raises
        ------
        TwinrunError
            An option has a value that has no meaning.
        """
        if self.method not in METHODS:
            raise TwinrunError(f"method {self.method!r} is none of {', '.join(METHODS)}")
        if not (isinstance(self.chunk, int) and 32 <= self.chunk <= 65536 and self.chunk.bit_count() == 1):
            raise TwinrunError(f"chunk must be a power of two from 32 to 65536 bytes, not {self.chunk!r}")
        if self.table < 0:
            raise TwinrunError("table must not be negative")
        codec = self.compress or ("zstd" if _core.has_codec("zstd") else "none")
        xor = self.xor if self.xor is not None else codec != "none" and self.method != "full"
        return _core.RecordSettings(
            method=self.method,
            chunk_bytes=self.chunk,
            codec=codec,
            level=self.level,
            xor=xor,
            bounded=self.bounded,
        )


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


@dataclass(frozen=True)
class _Entry:
    """Something to pack, by its name.

    kind: file, link or folder. unit: the name that has the step: its own, or that of the data set (a folder
    of many files) that it belongs to.
    """

    name: str
    path: str
    kind: str
    unit: str
    to: str = ""  # of a link


class _Tree:
    """All that is in a folder, hidden or not.

    entries: what is kept. notes: (name, why) of what is left out or changed.
    """

    def __init__(self, folder: str, record: str) -> None:
        self.folder = folder
        self.entries: list[_Entry] = []
        self.notes: list[tuple[str, str]] = []
        self._folders: list[tuple[str, str]] = []  # (name, unit)
        self._units: list[str] = []
        self._record = _identity(record)
        # A link to one of these folders would lead into itself.
        place = os.path.realpath(folder)
        around = {_identity(place)}
        while (above := os.path.dirname(place)) != place:
            place = above
            around.add(_identity(place))
        links: list[_Visit] = []
        start = _Visit("", folder, "", frozenset(around), os.path.realpath(folder), "")
        self._walk(start, links)
        steps = [step for e in self.entries if (step := parse_path(e.unit).step) is not None]
        self._first = min(steps, default=None)
        while links:  # links come last: all data sets are known then
            self._link(links.pop(0), links)
        self._keep_empty_folders()

    def _walk(self, start: _Visit, links: list[_Visit]) -> None:
        stack = [start]
        while stack:
            at = stack.pop()
            with reading(at.path):
                own = _identity(at.path)
                if own == self._record:
                    raise FormatError("is within what is packed", where=at.path, fix="name another record")
                unit = at.unit
                if not unit and _is_data_set(at.path):
                    unit = at.name or _ALL
                    self._units.append(unit)
                with os.scandir(at.path) as found:
                    listed = sorted(found, key=lambda e: os.fsencode(e.name))
            if at.name:
                self._folders.append((at.name, unit or at.name))
            for item in listed:
                name = f"{at.name}/{item.name}" if at.name else item.name
                below = _Visit(
                    name, item.path, unit, at.around | {own}, at.root, f"{at.inner}/{item.name}".lstrip("/")
                )
                with reading(item.path):
                    if item.is_symlink():
                        links.append(below)
                    elif item.is_dir(follow_symlinks=False):
                        stack.append(below)
                    else:
                        self._file(below, item.stat(follow_symlinks=False).st_mode)

    def _file(self, at: _Visit, mode: int) -> None:
        if stat.S_ISREG(mode):
            self.entries.append(_Entry(at.name, at.path, "file", at.unit or at.name))
        else:
            self.notes.append((at.name, f"left out: {_kind(mode)}"))

    def _link(self, at: _Visit, links: list[_Visit]) -> None:
        """Packs a link as a link where its target is packed beside it; otherwise packs the target
        in its place.
        """
        with reading(at.path):
            to = os.readlink(at.path)
        link = _Entry(at.name, at.path, "link", at.unit or at.name, to)
        try:
            status = os.stat(at.path)
        except OSError as error:
            self.notes.append((at.name, f"a link that cannot be followed ({error.strerror}): kept as a link"))
            self.entries.append(link)
            return
        target = os.path.normpath(os.path.join(os.path.dirname(at.inner), to))
        real = os.path.realpath(at.path)
        if (
            not os.path.isabs(to)
            and target.split("/")[0] not in ("..", ".")
            and real.startswith(at.root.rstrip("/") + "/")
            and self._step(at.name[: len(at.name) - len(at.inner)] + target) == self._step(link.unit)
        ):
            self.entries.append(link)
        elif stat.S_ISDIR(status.st_mode):
            if _identity(at.path) in at.around:
                self.notes.append((at.name, "a link to a folder that it lies in: kept as a link"))
                self.entries.append(link)
            else:
                self._walk(_Visit(at.name, at.path, at.unit, at.around, real, ""), links)
        else:
            self._file(at, status.st_mode)

    def _step(self, name: str) -> int | None:
        """The step of a name."""
        unit = next((u for u in self._units if u == _ALL or name == u or name.startswith(u + "/")), name)
        step = parse_path(unit).step
        return self._first if step is None else step

    def _keep_empty_folders(self) -> None:
        names = [e.name for e in self.entries]
        used: set[str] = set()
        for name in names + [name for name, _ in self._folders]:
            while "/" in name:
                name = name.rpartition("/")[0]
                if name in used:
                    break
                used.add(name)
        self.entries += [_Entry(n, "", "folder", unit) for n, unit in self._folders if n not in used]


@dataclass(frozen=True)
class _Visit:
    """A place on the way through a folder.

    around: the folders around it. root: the true path of the folder that links must not leave; inner: the
    name in it.
    """

    name: str
    path: str
    unit: str
    around: frozenset
    root: str
    inner: str


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _is_data_set(folder: str) -> bool:
    try:
        return detect(folder) is not None
    except FormatError:  # its files are packed in any case
        return False


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFSOCK: "a socket",
        stat.S_IFIFO: "a pipe",
        stat.S_IFBLK: "a device",
        stat.S_IFCHR: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "neither a file nor a folder")


def _files(tree: _Tree, known: list[int]) -> list[_core.FilesOfStep]:
    """Steps of a folder of any program, and everything in each.

    The key of a file is common to the same file in all steps: its name without the step. known:
    steps that the record has.
    """
    by_step: dict[int, list[_Entry]] = {}
    unnumbered: list[_Entry] = []
    for entry in tree.entries:
        step = parse_path(entry.unit).step
        (unnumbered if step is None else by_step.setdefault(step, [])).append(entry)
    # A file without a step belongs to the run, and goes with its first step.
    if unnumbered:
        by_step.setdefault(min([*by_step, *known], default=0), []).extend(unnumbered)
    return [_core.FilesOfStep(step, _keyed(by_step[step])) for step in sorted(by_step)]


def _keyed(entries: list[_Entry]) -> list[_core.PackedFile]:
    keyed = []
    seen: set[str] = set()
    for entry in sorted(entries, key=lambda e: os.fsencode(e.name)):
        place = parse_path(entry.unit)
        if entry.unit == entry.name:
            rest = os.path.splitext(entry.name)[1]
        else:
            rest = "/" + entry.name.removeprefix(entry.unit + "/")
        key = f"{place.rank}/{place.name}{rest}"
        if len(os.fsencode(key)) > _LONGEST_KEY:
            key = hashlib.sha256(os.fsencode(key)).hexdigest()
        number = 1
        while (unique := key if number == 1 else f"{key}#{number}") in seen:
            number += 1
        seen.add(unique)
        keyed.append(
            _core.PackedFile(name=entry.name, path=entry.path, key=unique, kind=entry.kind, to=entry.to)
        )
    return keyed


def _known_steps(record: str, append: bool) -> list[int]:
    return [s.step for s in _core.open_history(record).steps] if append and is_history(record) else []


def _notes_of_history(source: str) -> list[tuple[str, str]]:
    """Steps that a history names and that cannot be packed."""
    history = _core.open_history(source)
    notes = [(f"step {step}", "left out: not every rank committed it") for step in history.incomplete]
    for step in history.steps:
        if not all(rank.data for rank in step.ranks):
            notes.append((f"step {step.step}", "left out: only its metadata was kept"))
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
        The folder of the record: a new one, unless `append` or `update` is True.
    options : RecordOptions, default None
        How the record is made; None for `RecordOptions()`.
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
    source, record = any_path(source), any_path(record)
    check_settings(threads=threads)
    append = append or update
    chosen = options or RecordOptions()
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
    if is_history(source):
        facts.notes += _notes_of_history(source)
        _core.pack_history(source, record, settled, visit)
    elif os.path.isdir(source):
        if os.path.commonpath([os.path.realpath(source), os.path.realpath(record)]) == os.path.realpath(
            source
        ):
            raise FormatError(
                "would be within what is packed", where=record, fix="name a folder outside of it"
            )
        tree = _Tree(source, record)
        facts.notes += tree.notes
        if not tree.entries:
            raise MissingFile(
                "no files in it", where=source, fix="name a history, or a folder with the files of a run"
            )
        _core.pack_files(_files(tree, _known_steps(record, append)), record, settled, visit)
    else:
        raise FormatError(
            "is neither a history nor a folder", where=source, fix="name the folder that holds the steps"
        )
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
        The steps to restore; None for all.
    flat : bool, default False
        For files of other programs: True writes them into `to` itself, False into to/step-N.
    threads : int, default 0
        Threads that work; 0 takes all cores.
    memory : int, default 1 GiB
        Bytes that reading may take at once, beside the index of the record. A few MiB are always taken.

    Returns
    -------
    list of str
        The paths that were written. Steps that a history in `to` has already are not among them.

    Raises
    ------
    MissingFile
        The record or one of the steps does not exist.
    DamagedFile
        A checksum does not fit.
    TwinrunError
        The folder is not a record, or something in `to` has the name of a file to write.

    Notes
    -----
    Whatever is in `to` stays as it is, and no link in it is followed. Of a captured history the result is a
    history with these steps.
    """
    record, to = any_path(record), any_path(to)
    check_settings(threads=threads, memory=memory)
    history = _core.open_history(record)
    chosen = [s.step for s in history.steps] if steps is None else list(steps)
    if not chosen:
        raise MissingFile("no step to restore", where=record)
    return _core.unpack_steps(record, chosen, to, flat, threads or os.cpu_count() or 1, memory)


def _part(
    record: str | os.PathLike[str],
    step: int,
    name: str,
    rank: int,
    offset: int,
    count: int | None,
    threads: int,
) -> tuple[_core.RecordStore, str, int]:
    """The record, a segment of it, and how many bytes of the segment are asked for."""
    store = _core.open_record(any_path(record), rank, threads or os.cpu_count() or 1)
    files = store.files(step)
    for segment in store.segments(step):
        if name in (segment.name, files[segment.file].name):
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
    raise MissingFile(f"step {step} has no {name!r}", where=record, fix="twinrun show lists the fields")


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
        A checksum does not fit.

    Notes
    -----
    Only the blocks that hold these bytes are read.
    """
    check_settings(threads=threads, memory=memory)
    store, segment, length = _part(record, step, name, rank, offset, count, threads)
    return store.read(step, segment, offset, length, memory)


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
        The range is not within the field, or a file of the name `to` exists.
    DamagedFile
        A checksum does not fit.
    """
    check_settings(threads=threads, memory=memory)
    store, segment, length = _part(record, step, name, rank, offset, count, threads)
    store.write(step, segment, offset, length, any_path(to), memory)
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
    if keep_last is not None and keep_last < 1:
        raise TwinrunError(
            f"keep_last must be 1 or more, not {keep_last}",
            where=record,
            fix="name steps that leave with drop",
        )
    path, leaving = any_path(record), set(drop)

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
