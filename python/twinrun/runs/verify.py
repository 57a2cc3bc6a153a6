"""Verify: every checksum of a history, or of files and their metadata."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from typing import NamedTuple

from .. import _core
from ..arguments import MEMORY, check_settings, checked_path
from ..errors import DamagedFile, MissingFile, Stale, TwinrunError
from ..formats.files import reading
from ..formats.folder import MANIFEST, is_history
from ..formats.model import FileContent, summary_fields
from .subject import (
    METADATA_SUFFIX,
    FieldRef,
    Journals,
    metadata_path,
    places_of,
    refs_of_fields,
    refs_of_metadata,
    reopening,
)

__all__ = ["Verified", "verify"]

_PADDING_AT_ONCE = 1 << 20
_STEP = re.compile(r"step-(-?\d{10,})(\.\d+)?")
_MARKER = re.compile(r"\.twinrun-[0-9a-f]{32}")


class Verified(NamedTuple):
    """What `verify` found. True only if there are no problems."""

    problems: list[str]
    files: int

    def __bool__(self) -> bool:
        return not self.problems


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


def _verify_padding(data: str, extents: list[tuple[int, int]], part: tuple[int, int]) -> list[str]:
    """What lies between the fields in a data file, and behind them, is zero. extents: (begin, end), ascending. part: (begin,
    end) of this rank's in the file."""
    problems = []
    end, last = part
    with reading(data), open(data, "rb") as file:
        for begin, next_end in [*extents, (last, last)]:
            while end < begin:
                file.seek(end)
                read = file.read(min(begin - end, _PADDING_AT_ONCE))
                if not read or any(read):
                    problems.append(
                        f"{data}: damaged: its padding from byte {end} on is not zero: restore it"
                    )
                    break
                end += len(read)
            end = max(end, next_end)
    return problems


def _verify_step(folder: str, rank: _core.RankFiles, threads: int) -> tuple[list[str], int]:
    """A rank's files of a step."""
    if not rank.metadata:  # another program's files: their bytes are the record's
        return [], 1
    name = os.path.join(folder, rank.metadata)
    try:
        metadata = _core.Metadata(name)
        if metadata.bytes != rank.metadata_bytes or metadata.header_xxh3() != rank.header_xxh3:
            raise DamagedFile("is not the file that the manifest names", where=name)
    except TwinrunError as e:
        return [str(e)], 1
    if (
        not rank.data or rank.difference is not None
    ):  # never kept, or dropped; or the record's, checked with it
        return _verify_metadata(metadata, [], threads), 1
    data = os.path.join(folder, rank.data)
    if not os.path.exists(data):
        return [f"{data}: missing: restore it"], 2
    size = os.path.getsize(data)
    if size != rank.file_bytes:
        return [f"{data}: damaged: {size} bytes, the manifest says {rank.file_bytes}: restore it"], 2
    refs = refs_of_metadata(metadata)
    problems = _verify_metadata(metadata, refs, threads)
    ours = os.path.realpath(data)
    extents = [
        (offset, offset + stride * count)
        for ref in refs
        for path, offset, stride, count in ref.extents or ()
        if os.path.realpath(path) == ours
    ]
    begin, end = rank.offset, rank.offset + rank.data_bytes
    outside = [e for e in extents if e[0] < begin or e[1] > end]
    if outside:
        problems.append(
            f"{name}: damaged: it names bytes {outside[0]} of {data}, and this rank has {(begin, end)}: restore it"
        )
    else:
        problems += _verify_padding(data, sorted(extents), (begin, end))
    return problems, 2


def _verify_place(
    path: str, step: int, folder: str, rank: _core.RankFiles, threads: int, journals: Journals
) -> tuple[list[str], int]:
    """A rank's files of a step. A run may be writing the history: what left it meanwhile, or was replaced, is not damaged."""
    while True:
        try:
            problems, files = _verify_step(os.path.join(path, folder), rank, threads)
        except TwinrunError as e:
            problems, files = [str(e)], 2
        except FileNotFoundError as e:
            problems, files = [f"{e.filename}: missing: restore it"], 2
        if not problems:
            return problems, files
        now = journals.entries().get((step, rank.rank))
        if now == (folder, rank):
            return problems, files
        if now is None:
            return [], 0
        folder, rank = now


def _check_record(
    path: str, rank: int, threads: int, memory: int, journals: Journals
) -> list[tuple[list[int], str]]:
    """Problems of a record, whose differences a run may be adding, and `compact` moving."""
    while True:
        before = journals.written()
        problems = _core.check_record(path, rank, threads, memory)
        if not problems or journals.written() == before:
            return problems


def _verify_history(path: str, threads: int, memory: int) -> tuple[list[str], int]:
    journals = Journals(path)
    history = _core.open_history(path)
    problems: list[str] = []
    files = 1
    if history.ranks > 1 and history.local_part is None:
        there = {name for name in os.listdir(path) if re.fullmatch(r"rank-\d{5,}\.jsonl", name)}
        files += len(there)
        # Every rank begins its journal before any of them captures.
        if len(there) < history.ranks and (history.steps or history.incomplete):
            first = next(n for r in itertools.count() if (n := f"rank-{r:05}.jsonl") not in there)
            more = history.ranks - len(there) - 1
            also = f", and of {more} more ranks" if more else ""
            problems.append(f"{os.path.join(path, first)}: missing{also}: restore it")
    elif history.ranks > 1:
        files += 1
    for step in history.steps:
        for own in step.ranks:
            found, checked = _verify_place(path, step.step, step.folder, own, threads, journals)
            problems += found
            files += checked
    if history.record is not None:
        ranks = [history.local_part] if history.local_part is not None else range(history.ranks)
        for rank in ranks:
            for steps, what in _check_record(path, rank, threads or os.cpu_count() or 1, memory, journals):
                lost = ", ".join(map(str, steps[:8])) + (", …" if len(steps) > 8 else "")
                takes = f": steps that need it: {lost}" if steps else ": no step needs what is damaged"
                problems.append(f"{what}{takes}")
            files += sum(1 for s in history.steps for r in s.ranks if r.difference is not None)
    return problems, files


def _parts(path: str) -> list[str]:
    """The ranks' folders of a node-local tier."""
    with os.scandir(path) as entries:
        return sorted(e.path for e in entries if e.name.startswith("rank-") and is_history(e.path))


def verify(path: str | os.PathLike[str], *, threads: int = 0, memory: int = MEMORY) -> Verified:
    """Checks every checksum under a path: a history, a folder, a file with metadata beside it, or a metadata file.

    Histories on a node-local tier too: a rank's folder, or the folder of all. Returns (problems, files checked), which is true if there are
    no problems: every byte that the checksums cover is as it was written; of a history every byte of every file, but for
    files of steps that were not committed. A run may be writing it: what leaves meanwhile is not damaged.
    memory: bytes that reading a record may take at once, beside its index.
    Raises MissingFile where there is nothing to verify, DamagedFile where even the manifest cannot be read.
    """
    path = checked_path(path)
    check_settings(threads=threads, memory=memory)
    if not os.path.exists(path):
        raise MissingFile("no such file or folder", where=path, fix="check the path")
    histories = [] if not os.path.isdir(path) else [path] if is_history(path) else _parts(path)
    if histories:
        found = [_verify_history(p, threads, memory) for p in histories]
        return Verified(
            [problem for problems, _ in found for problem in problems], sum(files for _, files in found)
        )
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
    problems: list[str] = _without_manifest(path) if os.path.isdir(path) else []
    for target in targets:
        try:
            metadata = _core.Metadata(checked_path(target))
            _check_beside(metadata, target)
            sizes = [
                (p, s) for p, s, _ in metadata.data_files if not os.path.exists(p) or os.path.getsize(p) != s
            ]
            if sizes:
                p = sizes[0][0]
                raise Stale("is missing or has another size than when it was indexed", where=p)
            with contextlib.ExitStack() as stack:
                problems.extend(_verify_metadata(metadata, _refs(metadata, stack), threads))
        except TwinrunError as e:
            problems.append(str(e))
    return Verified(problems, 2 * len(targets))


def _without_manifest(path: str) -> list[str]:
    """Histories here, by the folders that their runs made, whose manifest is gone: nothing says what belongs to them."""
    lost = []
    for folder, folders, names in os.walk(path):
        if _STEP.fullmatch(os.path.basename(folder)) and any(_MARKER.fullmatch(name) for name in names):
            history = os.path.dirname(os.path.abspath(folder))
            if not is_history(history):
                lost.append(os.path.join(history, MANIFEST))
        folders.sort()
    return [f"{name}: missing: restore it from a copy" for name in dict.fromkeys(lost)]


def _check_beside(metadata: _core.Metadata, target: str) -> None:
    """Raises Stale where metadata lies beside a file that it does not describe."""
    beside = target.removesuffix(METADATA_SUFFIX)
    if not os.path.isfile(beside) or not metadata.data_files:
        return
    ours = os.path.realpath(beside)
    if all(os.path.realpath(name) != ours for name, _, _ in metadata.data_files):
        raise Stale(
            f"is metadata of {metadata.data_files[0][0]}, and {beside} was not checked",
            where=target,
            fix="index it with 'twinrun index'",
        )


def _check_layout(metadata: _core.Metadata, refs: list[FieldRef], content: FileContent) -> None:
    """Raises Stale where a file tells the type, the shape or the place of a field otherwise than when it was indexed."""
    own = {field.name: field for field in summary_fields(content.facts, len(content.skipped), content.path)}
    now = {ref.name: ref for ref in refs_of_fields({**content.fields, **own}, content.path)}
    plain = [ref for ref in refs if ref.name not in own]
    if (
        content.one_array and len(content.fields) == len(plain) == 1
    ):  # named after the file, which may have been renamed
        now[plain[0].name] = now[next(iter(content.fields))]
    for ref in refs:
        said = now.get(ref.name)
        if said is None or ref.name in own:
            continue
        if (ref.dtype, ref.byte_order, ref.shape, ref.fortran_order) != (
            said.dtype, said.byte_order, said.shape, said.fortran_order
        ) or (ref.extents and said.extents and places_of(ref) != places_of(said)):  # fmt: skip
            raise Stale(
                f"says field {ref.name!r} otherwise than when it was indexed",
                where=content.path,
                fix="restore it",
            )


def _refs(metadata: _core.Metadata, stack: contextlib.ExitStack) -> list[FieldRef]:
    """Fields with extents as they are; those that are decoded through their format's reader, opened once."""
    refs = refs_of_metadata(metadata)
    if all(ref.extents is not None or ref.no_data for ref in refs):
        if metadata.fields and metadata.fields[0].format and (open_again := reopening(metadata)) is not None:
            with open_again() as content:
                _check_layout(metadata, refs, content)
        return refs
    reopen = reopening(metadata)
    assert reopen is not None  # without data files no field has data
    content = stack.enter_context(reopen())
    _check_layout(metadata, refs, content)
    own = summary_fields(content.facts, len(content.skipped), content.path)
    fields = {**content.fields, **{field.name: field for field in own}}
    plain = [ref for ref in refs if ref.name in content.fields or ref.name not in fields]
    if (
        content.one_array and len(content.fields) == len(plain) == 1
    ):  # named after the file, which may have been renamed
        fields[plain[0].name] = next(iter(content.fields.values()))
    for ref in refs:
        if ref.extents is None and not ref.no_data:
            ref.reader = fields.get(ref.name)
    return refs
