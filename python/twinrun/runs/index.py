"""Indexing: writes metadata for files of other programs beside them (`x.npy` -> `x.npy.twm`)."""

from __future__ import annotations

import functools
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import _core
from ..arguments import (
    Globs,
    check_settings,
    checked_path,
    format_options,
    names_given,
    tolerance_number,
    utf8,
)
from ..errors import Incomparable, Stale, TwinrunError, Uncompared, Unsupported
from ..formats import FileContent, open_file
from ..formats.element_types import FLOATING
from ..formats.folder import is_data_set, is_history, list_folder, told_format
from ..formats.labels import labels_of
from ..formats.model import summary_fields
from ..formats.texts import names_to_choose
from ..urls import foreign_scheme, is_url
from .fields import MOST_UNIFORM, FieldRef, label_refs, refs_of_fields
from .metadata import check_replaceable, metadata_path, status_code, untouched
from .particles import find_particles, read_ids

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

__all__ = ["IndexFacts", "build", "field_plan", "index", "index_content"]


_LONGEST_HOW = 1 << 16  # characters of the format and options that metadata records
_TICK = 0.002  # seconds; the clocks of Linux's own file systems advance every 1 to 10 ms
_MOST_TICKS = 15
_SKEW = 2 * 10**9  # nanoseconds; assumed bound of the difference between clocks of two file systems

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class IndexFacts:
    """The result of indexing one file.

    >>> np.save("x.npy", np.zeros(1000))
    >>> facts = twinrun.index("x.npy", atol=1e-6)[0]
    >>> facts.metadata, facts.data_bytes, facts.fresh
    ('x.npy.twm', 8000, True)

    Attributes
    ----------
    path : str
        The data file.
    metadata : str
        The metadata file beside it.
    fields : int
        How many fields were indexed.
    data_bytes : int
        Bytes of their elements.
    metadata_bytes : int
        Bytes of the metadata file.
    fresh : bool
        True if the metadata was written now; False if current metadata existed and was kept.
    not_compared : tuple of str
        What of the file cannot be compared, with the reason: names that are not UTF-8, types that are not
        supported. It is not in the metadata, and a comparison with it is *incomparable*.
    """

    path: str
    metadata: str
    fields: int
    data_bytes: int
    metadata_bytes: int
    fresh: bool
    not_compared: tuple[str, ...] = ()


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
    tokens: bool = False,
) -> _core.FieldPlan:
    """The plan of a field's metadata, for the core.

    files: the data files, to which extents refer by number; None leaves out extents and byte order. format:
    the format and options, as in `FileContent.how`. key, ids: for particles, the name of the field with their
    IDs, and these IDs (u64, one for each row). tokens: exact digests as earlier versions of metadata had
    them, to be held against such ones. Other parameters: as for `index`.
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
        extents=[
            _core.Extent(file=numbers[e.path], offset=e.offset, stride=e.stride, count=e.count)
            for e in extents
        ],
        global_shape=() if ref.place is None else ref.place[0],
        global_offset=() if ref.place is None else ref.place[1],
        key=key,
        ids=ids,
        tokens=tokens,
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
    """Writes the metadata file `target` for fields of data files.

    plans: `plans(ref)` returns the plan of a field. step, rank: recorded in the metadata; -1 for no step.
    durable: the file is synced, so that it survives a crash of the machine. Other parameters: as for `index`.

    Raises Stale, and removes `target`, if a data file changes meanwhile.
    """
    before = [os.stat(path) for path in files]
    folder = os.path.dirname(os.path.abspath(target))
    status = _settled_status(before, folder)
    # From now on a write through mapped memory changes the status too: it is seen below, or later.
    if not all(_sync(path) for path in files):
        status = 0
    entries = [(plans(ref), ref.need_source(cache)) for ref in refs]
    facts = _core.write_metadata(
        target,
        step,
        rank,
        [
            _core.DataFile(path=os.path.relpath(p, folder), bytes=s.st_size, mtime_ns=s.st_mtime_ns)
            for p, s in zip(files, before, strict=True)
        ],
        [plan for plan, _ in entries],
        [source for _, source in entries],
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
                "was changed while it was indexed", where=path, fix="index it when its writer has finished"
            )
    return facts


def _sync(path: str) -> bool:
    """Brings a file to storage, so that the next write through memory that maps it changes its times.

    A page that was written to stays writable until it is on storage: later writes to it would change no time.
    Returns whether it could be done.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:  # reading it raises the error
        return False
    try:
        os.fsync(file)
    except OSError:
        return False
    finally:
        os.close(file)
    return True


def _settled_status(before: list[os.stat_result], folder: str) -> int:
    """The status code of the data files, once the file system's clock has advanced, so that any later change
    alters the code.

    Returns 0 if the clock is too coarse to wait for: then a change could leave the code unaltered. folder:
    the folder of the metadata file.
    """
    for _ in range(_MOST_TICKS if before else 0):
        try:
            with tempfile.TemporaryFile(dir=folder, prefix=".twinrun-") as probe:
                now = os.fstat(probe.fileno())
        except OSError:  # the folder is not writable; writing the metadata raises the error
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
    """Indexes one opened file. Parameters and errors are those of `index`."""
    globs = None if fields is None else Globs(fields)
    chosen = {
        n: f for n, f in content.fields.items() if globs is None or any(map(globs.match, names_to_choose(n)))
    }
    if not chosen:
        raise Incomparable("no field to index", where=content.path, fix="check the file and --field")
    for f in chosen.values():
        if f.problem is not None:
            raise f.problem
        if f.uniform and f.size * f.itemsize > MOST_UNIFORM:
            raise Unsupported(
                f"field {f.name!r}: none of its {f.size} elements is stored, and metadata of so many takes more than the file",
                where=content.path,
                fix="leave it out, by --field: comparisons of such fields need no metadata",
            )
    target = metadata_path(content.path)
    check_replaceable(target)
    if len(content.how) >= _LONGEST_HOW:
        raise TwinrunError(
            "its format options are too long to be recorded",
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

    facts = build(target, refs, files, plan, threads=threads, memory=memory, io=io, progress=progress)
    return IndexFacts(
        content.path,
        target,
        len(chosen),
        sum(f.size * f.itemsize for f in chosen.values()),
        facts.metadata_bytes,
        True,
        _not_compared(content),
    )


def _not_compared(content: FileContent) -> tuple[str, ...]:
    """What of a file cannot be compared, in the words of a comparison."""
    return tuple(str(Uncompared.of(name, content.path, why)) for name, why in content.skipped)


def _keys_of(refs: Iterable[FieldRef], key: str | None, path: str) -> dict[str, str]:
    """{field of particles: its field of IDs}; empty if `key` is None.

    Raises Incomparable if no field matches `key`.
    """
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


def _current(content: FileContent, settings: dict) -> IndexFacts | None:
    """The result for existing metadata.

    None unless it is current, intact, complete and made with these settings.
    """
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
    if settings["key"] is not None:
        keys = _keys_of(refs_of_fields(content.fields, path), settings["key"], path)
        if any(f.key != keys.get(f.name, "") for f in metadata.fields):
            return None
    for f in metadata.fields:
        floating = f.dtype in FLOATING
        # Exact digests of earlier versions would not compare with those of now.
        has_bits = settings["residue_bits"] if f.exact else f.residue_bits
        if (
            (floating and (f.atol, f.rtol) != (settings["atol"], settings["rtol"]))
            or f.chunk_bytes != settings["chunk_bytes"]
            or f.digest != settings["digest"]
            or (f.digest == "linear" and has_bits != settings["residue_bits"])
            or f.outdated
        ):
            return None
    return IndexFacts(
        path,
        target,
        len(content.fields),
        sum(f.data_bytes for f in metadata.fields if f.name in content.fields),
        metadata.bytes,
        False,
        _not_compared(content),
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
    """Writes metadata of files, so that later comparisons read only a few percent of their data.

    >>> np.save("x.npy", np.linspace(0, 1, 100_000))
    >>> facts = twinrun.index("x.npy", atol=1e-6)
    >>> facts[0].metadata
    'x.npy.twm'

    Parameters
    ----------
    *paths : str or path
        Files, or folders of files.
    atol, rtol : float, default 0
        The tolerance. Later comparisons with the same or a wider tolerance use the metadata. `atol` has the
        unit of the data. Integers and booleans are indexed exactly.
    residue_bits : {4, 2, 0}
        Bits for each element by which small differences are proved without reading data.
    chunk_bytes : int, default 4096
        Bytes of a chunk: a power of two from 4096 to 1048576.
    digest : {'linear', 'published'}
        The kind of digest.
    fields : str or iterable of str, default None
        Globs of the fields to index; None for all.
    key : str, default None
        Name or glob of the field with the IDs of particles; 'auto' takes the keys that the file formats
        define. Comparisons with the same key then also read only a few percent, whatever the order of
        particles. While a file is indexed, its IDs are in memory, 8 bytes each.
    refresh : bool, default False
        True writes metadata again even if it is current.
    threads : int, default 0
        Number of threads; 0 takes all cores.
    memory : int, default 1 GiB
        Most bytes of read buffers.
    io : {'auto', 'uring', 'pread'}
        How data is read: by io_uring, by pread, or automatically.
    progress : callable, default None
        `progress(path, done, total)` is called from time to time, with bytes that were read and all bytes.
    options : dict, default None
        Options of the file formats: format, dtype, shape, and others of docs/reference/formats.md.

    Returns
    -------
    list of IndexFacts
        One for each file.

    Raises
    ------
    MissingFile, DamagedFile, FormatError
        A file does not exist, or cannot be read.
    Incomparable
        A path is a history, or a file has no field to index.
    Unsupported
        A path is a URL: nothing is written to stores.
    Stale
        A file changed while it was indexed.
    TwinrunError
        A parameter is invalid.

    Notes
    -----
    After an error, the metadata of files that were indexed before remains. spec/metadata.md describes the
    layout of metadata files.
    """
    fields = None if fields is None else names_given(fields, "fields")
    options = format_options(options)
    check_settings(threads=threads, memory=memory, residue_bits=residue_bits, chunk_bytes=chunk_bytes, io=io)
    atol, rtol = tolerance_number("atol", atol), tolerance_number("rtol", rtol)
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
        if is_url(path) or foreign_scheme(path):
            raise Unsupported(
                "metadata lies beside its data, and nothing is written to stores",
                where=path,
                fix="index the files before they are copied there, or keep golden files of them: twinrun golden save",
            )
        if os.path.isdir(path) and is_history(path):
            raise Incomparable(
                "is a history: its metadata was written at capture",
                where=path,
                fix="compare it as it is: twinrun compare RUN_A RUN_B",
            )
        is_given, forced = "format" in options, told_format(options)
        if os.path.isdir(path) and not is_data_set(path, forced):
            files = list_folder(path, options).data()
            openers = [(f.path, f.open if is_given else f.open_whatever) for f in files]
            if not openers:
                raise Incomparable(
                    "no data files of a known format in this folder",
                    where=path,
                    fix="name a folder with the files of a run; --format NAME reads files of any name",
                )
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
