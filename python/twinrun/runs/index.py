"""Index: metadata for files that some other program wrote, beside them (`x.npy` -> `x.npy.twm`)."""

from __future__ import annotations

import fnmatch
import functools
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _core
from ..arguments import check_settings, checked_path, utf8
from ..errors import Incomparable, Stale, TwinrunError
from ..formats import FileContent, open_file
from ..formats.folder import is_data_set, is_history, list_folder, told_format
from ..formats.model import labels_of, summary_fields
from .particles import find_particles, read_ids
from .subject import FieldRef, label_refs, metadata_path, refs_of_fields, status_code, untouched

__all__ = ["FLOATING", "IndexFacts", "build", "field_plan", "index", "index_content"]

FLOATING = frozenset({"f16", "bf16", "f32", "f64", "c64", "c128"})

_LONGEST_HOW = 1 << 16  # a text of metadata
_TICK = 0.002  # seconds; the clocks of Linux's own file systems move every 1 to 10 ms
_MOST_TICKS = 15
_SKEW = 2 * 10**9  # nanoseconds that are enough between the clocks of two file systems

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class IndexFacts:
    """What indexing one file did. path: of the data; bytes of its elements that were read, and of metadata written."""

    path: str
    metadata: str
    fields: int
    data_bytes: int
    metadata_bytes: int
    fresh: bool  # False: the metadata there was current, and kept


def field_plan(
    ref: FieldRef,
    files: list[str] | None,
    *,
    atol: float,
    rtol: float,
    residue_bits: int,
    chunk_bytes: int,
    digest: str,
    format: str = "",
    key: str = "",
    ids: np.ndarray | None = None,
) -> _core.FieldPlan:
    """What the core needs to lay out a field's metadata. files: None to leave out where the elements lie, and their byte order.

    key, ids: of particles, the name of the field with their IDs, and these IDs (uint64, a row each).
    """
    numbers = {path: i for i, path in enumerate(files or ())}
    extents = () if files is None else ref.extents or ()
    return _core.FieldPlan(
        name=utf8(ref.name, "the name of a field", ref.where),
        dtype=ref.dtype,
        byte_order="little" if files is None else ref.byte_order,
        fortran_order=ref.fortran_order,
        shape=ref.shape,
        atol=atol,
        rtol=rtol,
        residue_bits=residue_bits,
        chunk_bytes=chunk_bytes,
        digest=digest,
        format=format,
        extents=[(numbers[path], offset, stride, count) for path, offset, stride, count in extents],
        global_shape=() if ref.place is None else ref.place[0],
        global_offset=() if ref.place is None else ref.place[1],
        key=key,
        ids=ids,
    )


def build(
    target: str,
    refs: Iterable[FieldRef],
    files: list[str],
    plans: Callable[[FieldRef], _core.FieldPlan],
    *,
    step: int = -1,
    rank: int = 0,
    threads: int = 0,
    memory: int = 1 << 30,
    io: str = "auto",
    cache: str = "auto",
    progress: Callable[[int, int], None] | None = None,
    durable: bool = True,
) -> _core.WrittenMetadata:
    """Writes the metadata file `target`; the data files must not change meanwhile (Stale if one does).

    durable: it survives a crash of the machine.
    """
    before = [os.stat(path) for path in files]
    folder = os.path.dirname(os.path.abspath(target))
    status = _settled_status(before, folder)
    entries = [(plans(ref), ref.need_source(cache)) for ref in refs]
    facts = _core.write_metadata(
        target,
        step,
        rank,
        [(os.path.relpath(p, folder), s.st_size, s.st_mtime_ns) for p, s in zip(files, before, strict=True)],
        entries,
        threads=threads,
        memory=memory,
        io=io,
        progress=progress,
        durable=durable,
        status=status,
    )
    for path, old in zip(files, before, strict=True):
        new = os.stat(path)
        if (new.st_size, new.st_mtime_ns, new.st_ctime_ns) != (old.st_size, old.st_mtime_ns, old.st_ctime_ns):
            os.unlink(target)
            raise Stale(
                "was changed while it was indexed", where=path, fix="index it when its writer is done"
            )
    return facts


def _settled_status(before: list[os.stat_result], folder: str) -> int:
    """The code of the data files' status, once the file system's clock has moved on: whatever changes them from now on changes it too.

    0 where a change could still leave it as it is: the clock is too coarse to wait for. folder: where the metadata is to lie.
    """
    for _ in range(_MOST_TICKS if before else 0):
        try:
            with tempfile.TemporaryFile(dir=folder, prefix=".twinrun-") as probe:
                now = os.fstat(probe.fileno())
        except OSError:  # a folder that takes no metadata either: writing it says why
            return 0
        if all(s.st_ctime_ns < now.st_ctime_ns - _SKEW * (s.st_dev != now.st_dev) for s in before):
            return status_code(before)
        if any(s.st_ctime_ns > now.st_ctime_ns + 10**9 * _TICK * _MOST_TICKS for s in before):
            return 0
        time.sleep(_TICK)
    return 0


def index_content(
    content: FileContent,
    *,
    atol: float,
    rtol: float,
    residue_bits: int,
    chunk_bytes: int,
    digest: str,
    fields: Iterable[str] | None,
    threads: int,
    memory: int,
    io: str,
    progress: Callable[[int, int], None] | None,
    key: str | None = None,
) -> IndexFacts:
    """Indexes one opened file. key: as of `index`."""
    chosen = {
        name: f
        for name, f in content.fields.items()
        if fields is None or any(fnmatch.fnmatchcase(name, g) for g in fields)
    }
    if not chosen:
        raise Incomparable("no field to index", where=content.path, fix="check the file and --field")
    for f in chosen.values():
        if f.problem is not None:
            raise f.problem
    if len(content.how) >= _LONGEST_HOW:
        raise TwinrunError(
            "its options are too long to be recorded",
            where=content.path,
            fix=f"describe it in {os.path.basename(content.path)}.json instead",
        )
    refs = refs_of_fields(chosen, content.path)
    refs += label_refs(refs, content.path)
    own = summary_fields(content.facts, len(content.skipped), content.path)
    refs += refs_of_fields({f.name: f for f in own}, content.path)
    files = list(content.files())
    keys = _keys_of(refs, key, content.path)
    ids = {ref.name: read_ids(ref) for ref in refs if ref.name in keys.values()}

    def plan(ref: FieldRef) -> _core.FieldPlan:
        floating = ref.dtype in FLOATING
        return field_plan(
            ref,
            files,
            atol=atol if floating else 0.0,
            rtol=rtol if floating else 0.0,
            residue_bits=residue_bits,
            chunk_bytes=chunk_bytes,
            digest=digest,
            format=content.how,
            key=keys.get(ref.name, ""),
            ids=ids.get(keys.get(ref.name, "")),
        )

    target = metadata_path(content.path)
    facts = build(target, refs, files, plan, threads=threads, memory=memory, io=io, progress=progress)
    return IndexFacts(
        content.path,
        target,
        len(chosen),
        sum(f.size * f.itemsize for f in chosen.values()),
        facts.metadata_bytes,
        True,
    )


def _keys_of(refs: Iterable[FieldRef], key: str | None, path: str) -> dict[str, str]:
    """The field of IDs that each field of particles belongs to. Raises Incomparable where a key is asked for and none is there."""
    if key is None:
        return {}
    kinds = find_particles(([(0, {ref.name: ref for ref in refs})], []), key)
    if not kinds:
        raise Incomparable(f"no field of IDs is called {key!r}", where=path, fix="check --key and --field")
    keys = {name: name for name in kinds}
    for name, kind in kinds.items():
        for _, _, own in kind.parts_a:
            keys |= dict.fromkeys(own, name)
    return keys


def _open_forced(path: str, format: str | None, options: Mapping[str, object]) -> FileContent:
    return open_file(path, format, **options)


def _current(content: FileContent, wanted: dict) -> IndexFacts | None:
    """Facts of metadata that is there, up to date, whole, and made with these settings."""
    path = content.path
    target = metadata_path(path)
    if not os.path.exists(target):
        return None
    try:
        metadata = _core.Metadata(target)
        if not untouched(metadata, content.files()):
            return None
        metadata.verify()
    except TwinrunError:
        return None
    own = summary_fields(content.facts, len(content.skipped), path)
    labels = [label for f in content.fields.values() for label in labels_of(f.name, f.unit, f.kind)]
    if {f.name for f in metadata.fields} != {*content.fields, *labels, *(f.name for f in own)}:
        return None
    if any(f.format != content.how for f in metadata.fields):
        return None
    if wanted["key"] is not None:
        keys = _keys_of(refs_of_fields(content.fields, path), wanted["key"], path)
        if any(f.key != keys.get(f.name, "") for f in metadata.fields):
            return None
    for f in metadata.fields:
        floating = f.dtype in FLOATING
        has_bits = f.residue_bits if f.cells != "tokens" else wanted["residue_bits"]
        if (
            (floating and (f.atol, f.rtol) != (wanted["atol"], wanted["rtol"]))
            or f.chunk_bytes != wanted["chunk_bytes"]
            or f.digest != wanted["digest"]
            or (f.digest == "linear" and has_bits != wanted["residue_bits"])
        ):
            return None
    return IndexFacts(
        path,
        target,
        len(content.fields),
        sum(f.data_bytes for f in metadata.fields if f.name in content.fields),
        metadata.bytes,
        False,
    )


def index(
    *paths: str | os.PathLike[str],
    atol: float = 0.0,
    rtol: float = 0.0,
    residue_bits: int = 4,
    chunk_bytes: int = 4096,
    digest: str = "linear",
    fields: Iterable[str] | None = None,
    key: str | None = None,
    refresh: bool = False,
    threads: int = 0,
    memory: int = 1 << 30,
    io: str = "auto",
    progress: Progress | None = None,
    options: Mapping[str, object] | None = None,
) -> list[IndexFacts]:
    """Builds metadata for files or folders of files, so that later comparisons read a few percent of them.

    atol, rtol: the tolerance that later comparisons ask for (or wider); integers and booleans are indexed exactly.
    fields: globs of the fields to take, all by default. key: name or glob of the field with the IDs of particles ('auto': what the
    files say), for comparisons with the same key: they then read a few percent too, whatever the order and the file of a
    particle; a file's IDs are in memory meanwhile, 8 bytes each. refresh: also where current metadata is there already.
    memory: bytes for buffers. options: of formats (format, dtype, shape, …). progress(path, done, total).
    Raises TwinrunError; metadata of files that were done before stays.
    """
    fields = None if fields is None else list(fields)
    options = dict(options or {})
    check_settings(threads=threads, memory=memory, residue_bits=residue_bits, chunk_bytes=chunk_bytes, io=io)
    _core.check_tolerance(atol, rtol)
    settings: dict[str, Any] = {
        "atol": atol,
        "rtol": rtol,
        "residue_bits": residue_bits,
        "chunk_bytes": chunk_bytes,
        "digest": digest,
        "key": key,
    }
    done: list[IndexFacts] = []
    openers: list[tuple[str, Callable[[Mapping[str, object]], FileContent]]]
    for given in paths:
        path = checked_path(given)
        if os.path.isdir(path) and is_history(path):
            raise Incomparable("is a history: its metadata was written at capture", where=path)
        told, forced = "format" in options, told_format(options)
        if os.path.isdir(path) and not is_data_set(path, forced):
            files = list_folder(path, options).data()
            openers = [(f.path, f.open if told else f.open_whatever) for f in files]
            if not openers:
                raise Incomparable("no data files of a known format in this folder", where=path)
        else:
            openers = [(path, functools.partial(_open_forced, path, forced))]
        for name, opener in openers:
            checked_path(name)
            with opener({k: v for k, v in options.items() if k != "format"}) as content:
                facts = None if refresh or fields is not None else _current(content, settings)
                if facts is None:
                    report = None if progress is None else (lambda d, t, n=name: progress(n, d, t))
                    facts = index_content(
                        content,
                        **settings,
                        fields=fields,
                        threads=threads,
                        memory=memory,
                        io=io,
                        progress=report,
                    )
            done.append(facts)
    return done
