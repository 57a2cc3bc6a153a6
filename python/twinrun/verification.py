"""Verify: every checksum of a history, or of files and their metadata."""

from __future__ import annotations

import contextlib
import os

from . import _core
from .errors import DamagedFile, MissingFile, Stale, TwinrunError
from .formats.folder import is_history
from .settings import check_settings, checked_path
from .subject import METADATA_SUFFIX, FieldRef, metadata_path, open_subject, refs_of_metadata

__all__ = ["verify"]


def _verify_metadata(metadata: _core.Metadata, refs: list[FieldRef], threads: int) -> list[str]:
    try:
        metadata.verify()
    except TwinrunError as e:
        return [str(e)]
    problems = []
    for ref in refs:
        try:
            source = ref.source()
            changed = (
                [] if source is None else _core.changed_parts(metadata, ref.metadata_field, source, threads)
            )
        except TwinrunError as e:
            problems.append(str(e))
            continue
        if changed:
            where = ref.extents[0][0] if ref.extents else ref.where
            problems.append(
                f"{where}: damaged: field {ref.name!r}: {len(changed)} of its 1 MiB parts changed, the first is part "
                f"{changed[0]}: restore it"
            )
    return problems


def _verify_history(path: str, threads: int) -> tuple[list[str], int]:
    history = _core.open_history(path)
    problems: list[str] = []
    files = 1
    for step in history["steps"]:
        for rank in step["ranks"]:
            folder = os.path.join(path, step["folder"])
            name = os.path.join(folder, rank["metadata"])
            files += 1
            try:
                metadata = _core.Metadata(name)
                if metadata.bytes != rank["metadata_bytes"] or metadata.header_xxh3() != rank["header_xxh3"]:
                    raise DamagedFile("is not the file that the manifest names", where=name)
            except TwinrunError as e:
                problems.append(str(e))
                continue
            if rank["data"]:
                files += 1
                data = os.path.join(folder, rank["data"])
                if not os.path.exists(data):
                    problems.append(f"{data}: missing: restore it")
                    continue
                size = os.path.getsize(data)
                if size != rank["data_bytes"]:
                    problems.append(
                        f"{data}: damaged: {size} bytes, the manifest says {rank['data_bytes']}: restore it"
                    )
                    continue
            problems.extend(_verify_metadata(metadata, refs_of_metadata(metadata), threads))
    return problems, files


def verify(path: str | os.PathLike[str], *, threads: int = 0) -> tuple[list[str], int]:
    """Checks every checksum under a path: a history, a folder, a file with metadata beside it, or a metadata file.

    Returns (problems, files checked); no problems: every byte that the checksums cover is as it was written.
    Raises MissingFile where there is nothing to verify, DamagedFile where even the manifest cannot be read.
    """
    path = checked_path(path)
    check_settings(threads=threads)
    if not os.path.exists(path):
        raise MissingFile("no such file or folder", where=path, fix="check the path")
    if os.path.isdir(path) and is_history(path):
        return _verify_history(path, threads)
    targets: list[str] = []
    if os.path.isdir(path):
        for folder, _, names in os.walk(path):
            targets.extend(os.path.join(folder, n) for n in sorted(names) if n.endswith(METADATA_SUFFIX))
    elif path.endswith(METADATA_SUFFIX):
        targets.append(path)
    elif os.path.exists(metadata_path(path)):
        targets.append(metadata_path(path))
    if not targets:
        raise MissingFile("no metadata to verify it by", where=path, fix="make some with 'twinrun index'")
    problems: list[str] = []
    for target in targets:
        try:
            metadata = _core.Metadata(target)
            sizes = [
                (p, s) for p, s, _ in metadata.data_files if not os.path.exists(p) or os.path.getsize(p) != s
            ]
            if sizes:
                p = sizes[0][0]
                raise Stale("is missing or has another size than when it was indexed", where=p)
            with contextlib.ExitStack() as stack:
                problems.extend(_verify_metadata(metadata, _refs(target, metadata, stack), threads))
        except TwinrunError as e:
            problems.append(str(e))
    return problems, 2 * len(targets)


def _refs(target: str, metadata: _core.Metadata, stack: contextlib.ExitStack) -> list[FieldRef]:
    """Fields with extents as they are; those that are decoded through their format's reader, opened once."""
    refs = refs_of_metadata(metadata)
    if all(ref.extents is not None or ref.no_data for ref in refs):
        return refs
    subject = open_subject(target[: -len(METADATA_SUFFIX)])
    fields = stack.enter_context(subject.open(subject.places[0], use_metadata=False))
    for ref in refs:
        if ref.extents is None and not ref.no_data and ref.name in fields:
            ref.reader = fields[ref.name].reader
    return refs
