"""Records: histories whose steps are kept as what is new in each, and every step given back bit for bit."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from . import _core
from .errors import FormatError, MissingFile, TwinrunError
from .formats.files import reading
from .formats.folder import is_history
from .formats.naming import parse_path
from .settings import check_settings, checked_path

__all__ = [
    "CompactFacts",
    "PackFacts",
    "PackedStep",
    "RecordOptions",
    "compact",
    "pack",
    "read_part",
    "restore",
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
    """What one rank's step took. full_bytes: of its files; bytes: of its difference, entry_bytes of them no payload."""

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


@dataclass
class PackFacts:
    """What pack did, step by step."""

    steps: list[PackedStep] = field(default_factory=list)

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


def _keys(files: list[tuple[str, str]]) -> list[tuple[str, str, str]]:
    """(name, path, key) of a step's files. The key is what the same file of other steps has too: its name without the step."""
    keyed = []
    seen: dict[str, int] = {}
    for name, path in sorted(files):
        place = parse_path(name)
        key = f"{place.rank}/{place.name}{os.path.splitext(name)[1]}"
        seen[key] = seen.get(key, 0) + 1
        keyed.append((name, path, key if seen[key] == 1 else f"{key}#{seen[key]}"))
    return keyed


def _files(folder: str) -> list[tuple[int, list[tuple[str, str, str]]]]:
    """Steps of a folder that some program wrote, with their files as `_keys` gives them. Every file, but hidden ones."""
    by_step: dict[int | None, list[tuple[str, str]]] = {}
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        for name in sorted(names):
            path = os.path.join(where, name)
            if name.startswith(".") or not os.path.isfile(path):
                continue
            relative = os.path.relpath(path, folder)
            by_step.setdefault(parse_path(relative).step, []).append((relative, path))
    if not by_step:
        raise MissingFile(
            "no files in it", where=folder, fix="name a history, or a folder with the files of a run"
        )
    unnumbered = by_step.pop(None, [])
    steps = sorted((step, files) for step, files in by_step.items() if step is not None)
    if not steps:
        return [(0, _keys(unnumbered))]
    # Files without a step's number belong to the run: they go with its first step.
    first, files = steps[0]
    return [(step, _keys(files)) for step, files in [(first, unnumbered + files), *steps[1:]]]


def pack(
    source: str | os.PathLike[str],
    record: str | os.PathLike[str],
    *,
    options: RecordOptions | None = None,
    against: str | os.PathLike[str] | None = None,
    append: bool = False,
    threads: int = 0,
    progress: Callable[[PackedStep], None] | None = None,
) -> PackFacts:
    """Makes a record of a run's steps: a history that twinrun captured, or a folder of any program's files.

    against: another record, which must stay: what it has is not kept again. append: goes on with a record that is there.
    progress: called for each step of each rank when it is on storage. Raises TwinrunError: nothing that was packed before is
    lost, and with append the rest can follow.
    """
    source, record = checked_path(source), checked_path(record)
    check_settings(threads=threads)
    settled = {
        **(options or RecordOptions()).settled(),
        "threads": threads or os.cpu_count() or 1,
        "append": append,
        "against": checked_path(against) if against else "",
    }
    facts = PackFacts()

    def visit(step: dict) -> None:
        facts.steps.append(PackedStep(**step))
        if progress is not None:
            progress(facts.steps[-1])

    if not os.path.exists(source):
        raise MissingFile("no such folder", where=source, fix="check the path")
    if is_history(source):
        _core.pack_history(source, record, settled, visit)
    elif os.path.isdir(source):
        with reading(source):
            steps = _files(source)
        if os.path.commonpath([os.path.realpath(source), os.path.realpath(record)]) == os.path.realpath(
            source
        ):
            raise FormatError(
                "would be within what is packed", where=record, fix="name a folder outside of it"
            )
        _core.pack_files(steps, record, settled, visit)
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
) -> list[str]:
    """Gives steps of a record back, every byte checked. Returns the paths that were written.

    Of a history that was captured: a history in `to`, with these steps. Of other programs' files: these, in to/step-N, or in
    `to` itself if flat. steps: None for all. Raises TwinrunError; files that are there are never written over.
    """
    record, to = checked_path(record), checked_path(to)
    check_settings(threads=threads)
    history = _core.open_history(record)
    wanted = [s["step"] for s in history["steps"]] if steps is None else list(steps)
    if not wanted:
        raise MissingFile("no step to restore", where=record)
    return list(_core.unpack_steps(record, wanted, to, flat, threads or os.cpu_count() or 1))


def read_part(
    record: str | os.PathLike[str],
    step: int,
    name: str,
    *,
    rank: int = 0,
    offset: int = 0,
    count: int | None = None,
    threads: int = 0,
) -> bytes:
    """Bytes [offset, offset + count) of a field of a step (of a file, where files were packed), every one checked.

    Only the blocks that hold them are read. count: None for all that follow. A field's items lie densely, in the order in which
    they were captured, in native byte order. Raises MissingFile where the record has no such step, rank or name.
    """
    check_settings(threads=threads)
    store = _core.open_record(checked_path(record), rank, threads or os.cpu_count() or 1)
    files = store.files(step)
    for segment, file, _, size in store.segments(step):
        if name in (segment, files[file][0]):
            wanted = size - offset if count is None else count
            if offset < 0 or wanted < 0 or offset + wanted > size:
                raise TwinrunError(f"{name!r} of step {step} has {size} bytes", where=record)
            return store.read(step, segment, offset, wanted)
    raise MissingFile(f"step {step} has no {name!r}", where=record, fix="twinrun show lists the fields")


def compact(
    record: str | os.PathLike[str], *, keep_last: int = 0, drop: Iterable[int] = (), threads: int = 0
) -> CompactFacts:
    """Drops steps of a record, and folds what others need of them into few files. Readers may go on meanwhile.

    keep_last: all but so many of the newest go; drop: and these. With neither, nothing leaves, and files are folded.
    """
    check_settings(threads=threads)
    if keep_last < 0:
        raise TwinrunError("keep_last must not be negative")
    facts = _core.compact_record(checked_path(record), list(drop), keep_last, threads or os.cpu_count() or 1)
    return CompactFacts(**facts)
