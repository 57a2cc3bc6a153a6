"""Whether metadata still describes the data that it was made from."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Sequence

from .. import _core
from ..errors import DamagedFile, Stale, TwinrunError
from ..formats import Field, FileContent, open_as
from ..formats.facts import NOT_COMPARED, SUMMARY
from ..formats.files import reading
from ..formats.model import summary_fields
from ..marks import METADATA_SUFFIX, STEP_MARK
from .fields import FieldRef, places_of, refs_of_fields, refs_of_metadata

__all__ = [
    "READ_TO_MAKE_SURE",
    "attach",
    "check_content",
    "check_current",
    "check_layout",
    "check_replaceable",
    "damaged_fields",
    "metadata_path",
    "reopening",
    "status_code",
    "untouched",
]

READ_TO_MAKE_SURE = "read to make sure"  # how the note on data ends whose times are not those of its metadata
_AGAIN = "index it again with 'twinrun index'"
_RESTORE = "restore the history from a copy"
_OF_METADATA = frozenset({SUMMARY, NOT_COMPARED})  # fields that belong to no file


def metadata_path(path: str) -> str:
    """The metadata file of a file of another program: beside it."""
    return path.rstrip("/") + METADATA_SUFFIX


def check_replaceable(target: str) -> None:
    """Raises TwinrunError where metadata of data files would replace twinrun's metadata of another
    kind: golden digests, which name no data file, or metadata of a history.

    What is no metadata at all the core refuses; what is damaged it replaces.
    """
    if not os.path.isfile(target):
        return
    try:
        is_golden = not _core.Metadata(target).data_files
    except TwinrunError:
        return
    if is_golden or any(map(STEP_MARK.fullmatch, os.listdir(os.path.dirname(target) or "."))):
        kind = "a golden file" if is_golden else "metadata of a history"
        raise TwinrunError(
            f"is {kind}, which metadata of data files does not replace",
            where=target,
            fix="give the data file another name, or move it away",
        )


def untouched(metadata: _core.Metadata, files: Iterable[str] | None = None) -> bool:
    """Whether the data files are those that the metadata was made from: same files, sizes, times and status.

    The status is a code in the metadata: an edit whose time was set back, another file of this name, or a
    copy that kept its time has another code, whatever the time of the metadata file. Metadata without a code
    proves nothing. files: the data files to check; by default those that the metadata names. Raises
    MissingFile, DamagedFile or Stale where their number or a size rules it out.
    """
    known = metadata.data_files
    at_hand = [file.path for file in known] if files is None else list(files)
    if len(at_hand) != len(known):
        raise Stale(
            f"was made from {len(known)} data files, now there are {len(at_hand)}",
            where=metadata.path,
            fix="index it again with 'twinrun index'",
        )
    same = True
    found = []
    for path, recorded in zip(at_hand, known, strict=True):
        with reading(path):
            now = os.stat(path)
        if now.st_size < recorded.bytes:
            raise DamagedFile(
                f"truncated: {recorded.bytes} bytes when it was indexed, {now.st_size} now",
                where=path,
                fix=_RESTORE if _of_history(metadata) else f"restore it, or {_AGAIN}",
            )
        if now.st_size != recorded.bytes:
            raise _stale(metadata, path)
        found.append(now)
        same = same and now.st_mtime_ns == recorded.mtime_ns
        # Links are followed only where names differ: that looks at every folder of both paths.
        if same and recorded.path != path:
            same = os.path.realpath(recorded.path) == os.path.realpath(path)
    return same and metadata.status == status_code(found)  # 0 stands for metadata without a code


def status_code(found: Iterable[os.stat_result]) -> int:
    """A code, not 0, of the identity and last change of files. No program can set back st_ctime."""
    packed = b"".join(struct.pack("<qQ", s.st_ctime_ns, s.st_ino & (1 << 64) - 1) for s in found)
    return _core.xxh3(packed) or 1


def _of_history(metadata: _core.Metadata) -> bool:
    """Whether a captured history has this metadata: its data is of no format."""
    return bool(metadata.data_files and metadata.fields) and not metadata.fields[0].format


def _stale(metadata: _core.Metadata, path: str) -> TwinrunError:
    """The error for a data file with other content than its metadata says.

    To index a step of a history again would take damage for its data.
    """
    if _of_history(metadata):
        return DamagedFile(
            f"does not hold what its metadata {metadata.path} says: one of them was changed or damaged",
            where=path,
            fix=_RESTORE,
        )
    return Stale(f"older than its data file {path}, which was changed since", where=metadata.path, fix=_AGAIN)


def _layout(ref: FieldRef) -> tuple:
    """The facts of a field that both metadata and file have, except the places of its elements."""
    return ref.dtype, ref.byte_order, ref.shape, ref.fortran_order, ref.unit, ref.kind


def check_layout(
    metadata: _core.Metadata, refs: Sequence[FieldRef], content: FileContent
) -> dict[str, Field]:
    """Raises Stale unless a file says of itself all that its metadata says: files, fields, what
    each is, and where it lies; and what is wrong with a field that cannot be read now.

    A field that was not indexed is not looked at. refs: all fields of the metadata. Returns the
    file's, by the names there.
    """

    def changed(what: str) -> Stale:
        return Stale(what, where=content.path, fix="restore it, or index it again with 'twinrun index'")

    own = {field.name: field for field in summary_fields(content.facts, len(content.skipped), content.path)}
    fields = {**content.fields, **own}
    indexed = [ref for ref in refs if ref.name not in _OF_METADATA]
    if (
        content.one_array and len(content.fields) == len(indexed) == 1
    ):  # named after the file, which may have been renamed
        fields[indexed[0].name] = next(iter(content.fields.values()))
    told = {ref.name for ref in refs}
    if own.keys() - told or (told & _OF_METADATA) - own.keys():
        raise changed(
            "has other attributes, or other parts that cannot be compared, than when it was indexed"
        )
    now = {
        ref.name: ref
        for ref in refs_of_fields(
            {ref.name: fields[ref.name] for ref in indexed if ref.name in fields}, content.path
        )
    }
    for ref in indexed:
        said = now.get(ref.name)
        if said is None:
            raise changed(f"has no field {ref.name!r}, which it had when it was indexed")
        problem = fields[ref.name].problem
        if problem is not None:
            raise problem
        if _layout(ref) != _layout(said) or places_of(ref) != places_of(said):
            raise changed(f"says field {ref.name!r} otherwise than when it was indexed")
    files = [os.path.realpath(file.path) for file in metadata.data_files]
    if [os.path.realpath(path) for path in content.files()] != files:
        raise changed("is made of other files than when it was indexed")
    return fields


def check_content(metadata: _core.Metadata, fields: list[FieldRef], data: str | None = None) -> list[str]:
    """Compares the data with the checksums of the metadata: for files that were touched or copied.

    data: the file that has it, where fields do not say so. Returns notes. Raises Stale, or DamagedFile
    in a history, unless all data is unchanged.
    """
    for ref in fields:
        source = ref.source()
        if source is not None and _core.changed_parts(metadata, ref.metadata_field, source):
            raise _stale(metadata, data or (ref.where if ref.extents is None else ref.extents[0].path))
    since = "may have been" if metadata.status == 0 else "was"
    return [
        f"{metadata.path}: its data {since} touched, copied or renamed since it was indexed, and the same content was found: {READ_TO_MAKE_SURE}"
    ]


def damaged_fields(refs: Iterable[FieldRef], threads: int = 0) -> dict[str, TwinrunError]:
    """What is wrong with the data of fields of a history, by name: it is not what its checksums say.

    All of it is read. A comparison finds no damage in what a program wrote behind twinrun's back with the
    old time: who takes the data itself for the run's asks here. Fields of other runs have no checksums.
    """
    found: dict[str, TwinrunError] = {}
    for ref in refs:
        metadata, source = ref.metadata, None
        if metadata is not None and _of_history(metadata):
            source = ref.source()
        if metadata is None or source is None or not ref.items:
            continue
        try:
            changed = _core.changed_parts(metadata, ref.metadata_field, source, threads)
        except TwinrunError as e:
            found[ref.name] = e
            continue
        if changed:
            found[ref.name] = _stale(metadata, ref.extents[0].path if ref.extents else ref.where)
    return found


def check_current(
    metadata: _core.Metadata, fields: list[FieldRef], files: Iterable[str] | None = None
) -> list[str]:
    """Raises Stale, MissingFile or DamagedFile unless the data files hold the data that the metadata was made
    from. Returns notes.
    """
    return [] if untouched(metadata, files) else check_content(metadata, fields)


def reopening(metadata: _core.Metadata) -> Callable[[], FileContent] | None:
    """How to open the data of a metadata file as when it was indexed; None where there is none, or
    a history has it.
    """
    if not metadata.data_files or not metadata.fields or not metadata.fields[0].format:
        return None
    path, how = metadata.path.removesuffix(METADATA_SUFFIX), metadata.fields[0].format
    data = (
        path if os.path.isdir(path) else metadata.data_files[0].path
    )  # a data set that is a folder has other files first
    return lambda: open_as(data, how, metadata.path)


def attach(metadata: _core.Metadata, refs: list[FieldRef], content: FileContent) -> list[str]:
    """Gives fields of a file the metadata that lies beside it. Returns notes."""
    others = next((f.format for f in metadata.fields if f.format != content.how), None)
    # digests of a file that was read with other options are digests of other values
    if others is not None:
        return [f"{metadata.path} is not used: made of {others}, and this is {content.how}"]
    known = {ref.name: ref for ref in refs_of_metadata(metadata) if ref.name not in _OF_METADATA}
    if (
        content.one_array and len(refs) == len(known) == 1
    ):  # named after the file, which may have been renamed
        known = {refs[0].name: next(iter(known.values()))}
    attached = []
    for ref in refs:
        had = known.get(ref.name)
        if had is None:  # left out of the index on purpose
            continue
        if _layout(had) != _layout(ref):
            raise Stale(
                f"describes field {ref.name!r} otherwise than its data file does",
                where=metadata.path,
                fix="index it again with 'twinrun index'",
            )
        # its description changed since
        if had.extents and ref.extents and places_of(had) != places_of(ref):
            raise Stale(
                f"was made from other bytes than those of field {ref.name!r} now",
                where=metadata.path,
                fix="index it again with 'twinrun index'",
            )
        ref.metadata, ref.metadata_field, ref.facts = metadata, had.metadata_field, had.facts
        attached.append(ref)
    if not attached:
        raise Stale(
            f"describes none of the fields of {content.path}",
            where=metadata.path,
            fix="index it again with 'twinrun index'",
        )
    return check_current(metadata, attached, content.files())
