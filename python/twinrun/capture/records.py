"""Records: histories whose steps are kept as what is new in each, and every step given back bit for bit."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from .. import _core
from ..arguments import MEMORY, any_path, check_settings
from ..errors import FormatError, MissingFile, TwinrunError
from ..formats import detect
from ..formats.files import reading
from ..formats.folder import is_history
from ..formats.naming import parse_path

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
    """Lets the core find nvCOMP where the package nvidia-libnvcomp-cu12 or -cu13 is installed; TWINRUN_NVCOMP goes first."""
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
    """How a record is made.

    method: runs, tree, list, basic or full (see the guide). chunk: bytes, a power of two from 32 to 65536. compress: "zstd"
    or "none"; None: zstd where this build has it. level: of zstd. xor: new chunks may be packed after XOR with what they
    replace. bounded: chunks that are within the field's tolerance of what restore gives are not kept again. table: bytes that
    the table of hashes may take; 0: no limit. verify: bytes, not hashes alone, say that chunks are equal.
    """

    method: str = "runs"
    chunk: int = 256
    compress: str | None = None
    level: int = 1
    xor: bool | None = None
    bounded: bool = False
    table: int = 0
    verify: bool = False

    def settled(self) -> dict:
        """Names and values as the core has them. Raises TwinrunError for values that have no meaning."""
        if self.method not in METHODS:
            raise TwinrunError(f"method {self.method!r} is none of {', '.join(METHODS)}")
        if not (isinstance(self.chunk, int) and 32 <= self.chunk <= 65536 and self.chunk.bit_count() == 1):
            raise TwinrunError(f"chunks of {self.chunk!r} bytes: a power of two from 32 to 65536 is wanted")
        if self.table < 0:
            raise TwinrunError("table must not be negative")
        codec = self.compress or ("zstd" if _core.has_codec("zstd") else "none")
        xor = self.xor if self.xor is not None else codec != "none" and self.method != "full"
        return {
            "method": self.method,
            "chunk_bytes": self.chunk,
            "codec": codec,
            "level": self.level,
            "xor": xor,
            "bounded": self.bounded,
            "table_bytes": self.table,
            "verify": self.verify,
        }


@dataclass(frozen=True)
class PackedStep:
    """What one rank's step took. full_bytes: of its files; bytes: of its difference, entry_bytes of them no payload. new_version:
    the record had the step, and other files of it."""

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


@dataclass
class PackFacts:
    """What pack did, step by step. notes: (name, why) of all that was left out, or kept as something else than it leads to."""

    steps: list[PackedStep] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)

    @property
    def full_bytes(self) -> int:
        """Of all files that were packed."""
        return sum(s.full_bytes for s in self.steps)

    @property
    def bytes(self) -> int:
        """Of all differences."""
        return sum(s.bytes for s in self.steps)

    def ratio(self, without_first: bool = False) -> float:
        """full_bytes / bytes; without each rank's first step, which nothing can be a difference to."""
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
    """What compact did. Bytes: of all differences."""

    dropped_steps: int
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True)
class _Entry:
    """What is packed under a name. kind: file, link or folder. unit: what tells the step: its name, or that of the data set (a
    folder of many files) that it is a part of."""

    name: str
    path: str
    kind: str
    unit: str
    to: str = ""  # of a link


class _Tree:
    """All that is in a folder, hidden or not. entries: what is kept. notes: (name, why) of what is not, or not as it is."""

    def __init__(self, folder: str, record: str) -> None:
        self.folder = folder
        self.entries: list[_Entry] = []
        self.notes: list[tuple[str, str]] = []
        self._folders: list[tuple[str, str]] = []  # (name, unit)
        self._units: list[str] = []
        self._record = _identity(record)
        # A link to one of these would lead into itself.
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
        while links:  # after all else: then it is known which data sets there are
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
        """A link stays one where what it leads to is packed beside it. Else what it leads to is packed in its place."""
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
        """The step of what has this name."""
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
    """A place on the way through a folder. around: the folders that it lies in. root: the true path of the folder that links may
    not lead out of; inner: the name in that."""

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
    except FormatError:  # whatever it is, its files are packed
        return False


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFSOCK: "a socket",
        stat.S_IFIFO: "a pipe",
        stat.S_IFBLK: "a device",
        stat.S_IFCHR: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "neither a file nor a folder")


def _files(tree: _Tree, known: list[int]) -> list[tuple[int, list[tuple[str, str, str, str, str]]]]:
    """Steps of a folder that some program wrote: (name, path, key, kind, text of a link) of all that is in each. The key is what
    the same file of other steps has too: its name without the step. known: steps that the record has."""
    by_step: dict[int | None, list[_Entry]] = {}
    for entry in tree.entries:
        by_step.setdefault(parse_path(entry.unit).step, []).append(entry)
    # What has no step's number belongs to the run: it goes with its first step.
    unnumbered = by_step.pop(None, [])
    if unnumbered:
        by_step.setdefault(min([*by_step, *known], default=0), []).extend(unnumbered)  # type: ignore[type-var]
    return [(step, _keyed(by_step[step])) for step in sorted(by_step)]  # type: ignore[type-var, misc]


def _keyed(entries: list[_Entry]) -> list[tuple[str, str, str, str, str]]:
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
        keyed.append((entry.name, entry.path, unique, entry.kind, entry.to))
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
    """Makes a record of a run's steps: a history that twinrun captured, or a folder of any program's files.

    Of a folder everything is kept: hidden files, links, empty folders; what is not, or not as it is, is in the notes of what it
    returns. against: another record, which must stay: what it has is not kept again. append: goes on with a record that is
    there. A step that the record has, and whose files changed or came late, is an error before anything is written; with update,
    which is append too, it becomes a new version of the step. progress: called for each step of each rank when it is on storage.
    Raises TwinrunError: nothing that was packed before is lost, and with append the rest can follow.
    """
    source, record = any_path(source), any_path(record)
    check_settings(threads=threads)
    append = append or update
    settled = {
        **(options or RecordOptions()).settled(),
        "threads": threads or os.cpu_count() or 1,
        "append": append,
        "update": update,
        "against": any_path(against) if against else "",
    }
    facts = PackFacts()

    def visit(step: dict) -> None:
        facts.steps.append(PackedStep(**step))
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
    """Gives steps of a record back, every byte checked. Returns the paths that were written.

    Of a history that was captured: a history in `to`, with these steps. Of other programs' files: these, in to/step-N, or in
    `to` itself if flat. steps: None for all. memory: bytes that reading may take at once, beside the record's index; a few MiB
    are always had. Raises TwinrunError. Whatever is in `to` stays as it is, and no link in it is followed.
    """
    record, to = any_path(record), any_path(to)
    check_settings(threads=threads, memory=memory)
    history = _core.open_history(record)
    wanted = [s.step for s in history.steps] if steps is None else list(steps)
    if not wanted:
        raise MissingFile("no step to restore", where=record)
    return _core.unpack_steps(record, wanted, to, flat, threads or os.cpu_count() or 1, memory)


def _part(
    record: str | os.PathLike[str],
    step: int,
    name: str,
    rank: int,
    offset: int,
    count: int | None,
    threads: int,
) -> tuple[_core.RecordStore, str, int]:
    """The record, a segment of it, and how many bytes of that are wanted."""
    store = _core.open_record(any_path(record), rank, threads or os.cpu_count() or 1)
    files = store.files(step)
    for segment, file, _, size in store.segments(step):
        if name in (segment, files[file][0]):
            wanted = size - offset if count is None else count
            if offset < 0 or wanted < 0 or offset + wanted > size:
                asked = f"bytes from {offset} on" if count is None else f"{offset}:{count} (offset:count)"
                raise TwinrunError(
                    f"{name!r} of step {step} has {size} bytes, and {asked} are not all in it",
                    where=record,
                    fix=f"ask for bytes below {size}",
                )
            return store, segment, wanted
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
    """Bytes [offset, offset + count) of a field of a step (of a file, where files were packed), every one checked.

    Only the blocks that hold them are read. count: None for all that follow. A field's items lie densely, in the order in which
    they were captured, in native byte order. memory: as `restore` has it, beside the bytes themselves. Raises MissingFile where
    the record has no such step, rank or name.
    """
    check_settings(threads=threads, memory=memory)
    store, segment, wanted = _part(record, step, name, rank, offset, count, threads)
    return store.read(step, segment, offset, wanted, memory)


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
    """The same bytes to a new file, which is there whole or not at all. Returns how many they are."""
    check_settings(threads=threads, memory=memory)
    store, segment, wanted = _part(record, step, name, rank, offset, count, threads)
    store.write(step, segment, offset, wanted, any_path(to), memory)
    return wanted


def compact(
    record: str | os.PathLike[str],
    *,
    keep_last: int | None = None,
    drop: Iterable[int] = (),
    threads: int = 0,
    forget_missing: bool = False,
) -> CompactFacts:
    """Drops steps of a record, and folds what others need of them into few files. Readers may go on meanwhile.

    keep_last: all but so many of the newest leave, one at least stays; drop: these leave too. With neither nothing leaves, and files
    are folded. forget_missing: records that were packed against this one and are not there any more were removed, and need
    nothing. Without it they are taken for moved, and TwinrunError is raised.
    """
    check_settings(threads=threads)
    if keep_last is not None and keep_last < 1:
        raise TwinrunError(
            f"keep_last must be 1 or more, not {keep_last}",
            where=record,
            fix="name steps that leave with drop",
        )
    facts = _core.compact_record(
        any_path(record), list(drop), keep_last or 0, threads or os.cpu_count() or 1, forget_missing
    )
    return CompactFacts(**facts)
