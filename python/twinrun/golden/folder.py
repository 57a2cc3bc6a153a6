"""A folder of golden files: which of its files are golden files, how they are replaced, how they are read."""

from __future__ import annotations

import contextlib
import filecmp
import os
import re
from collections.abc import Collection, Mapping

from .. import _core
from ..errors import DamagedFile, MissingFile, TwinrunError
from ..formats.files import file_size
from ..outputs import replacing
from ..runs.subject import Place
from .digests import Digests
from .manifest import MANIFEST, GoldenFile, GoldenPlace, Manifest, checksum, is_golden_file, is_manifest
from .values import KeptValues, is_values_file, parsed_values

__all__ = ["file_name", "old_files", "open_place", "put_in_place"]

_OWN_FILE = re.compile(r"(step_-?[0-9]+_)?(rank_[0-9]+|particles)\.tw[mv]")
_RESTORE = "restore it, or move it away and save again with 'twinrun golden save'"


def file_name(place: Place, by_id: bool = False) -> str:
    """The name of the file with the digests of a place. by_id: of the particles of all ranks."""
    step, rank = place
    what = "particles" if by_id else f"rank_{rank}"
    return f"{what}.twm" if step is None else f"step_{step}_{what}.twm"


def old_files(folder: str) -> dict[str, GoldenFile]:
    """The golden files that `save` may replace, by name: those that golden.json lists, unchanged.

    Any other file in the folder may be the user's.

    Raises TwinrunError where the folder to write is no folder of golden files.
    """
    if not os.path.lexists(folder):
        return {}
    if not os.path.isdir(folder):
        raise TwinrunError(
            "is a file, and golden files lie in a folder", where=folder, fix="name another one"
        )
    present = os.listdir(folder)
    if present and not is_manifest(os.path.join(folder, MANIFEST)):
        raise TwinrunError(
            "is a folder with other files in it", where=folder, fix="name a new folder for the golden files"
        )
    if not present:
        return {}
    try:
        listed = Manifest.read(folder).places
    except DamagedFile:  # a damaged manifest proves nothing about the files
        return {}
    return {
        f.file: f for p in listed for f in p.files() if _OWN_FILE.fullmatch(f.file) and _is_listed(folder, f)
    }


def _is_golden(path: str) -> bool:
    return is_values_file(path) if path.endswith(".twv") else is_golden_file(path)


def _is_listed(folder: str, listed: GoldenFile) -> bool:
    """Whether a file is, bit for bit, the one that golden.json lists."""
    path = os.path.join(folder, listed.file)
    if not _is_golden(path) or os.path.getsize(path) != listed.bytes:
        return False
    with open(path, "rb") as file:
        return checksum(file.read()) == listed.xxh3


def put_in_place(made: str, folder: str, old: Mapping[str, GoldenFile], names: Collection[str]) -> None:
    """Moves new files over old ones, the manifest last.

    A check that runs meanwhile reports damaged files, and no false result. The files in the folder are
    checked again first, because the digests of a large run take a while.

    made: the folder of the new files. old: the files that may be replaced (`old_files`). names: the names of
    the new files. Raises TwinrunError where a file in the folder may be the user's.
    """
    os.makedirs(folder, exist_ok=True)
    for name in sorted(set(names) | old.keys()):
        path = os.path.join(folder, name)
        if not os.path.lexists(path) or (name in old and _is_listed(folder, old[name])):
            continue
        # An interrupted `save` of the same run leaves this file.
        if name in names and _is_golden(path) and filecmp.cmp(path, os.path.join(made, name), False):
            continue
        raise TwinrunError(
            "is there already, and is not the file that golden.json lists", where=path, fix="move it away"
        )
    for name in [*sorted(names), MANIFEST]:
        with replacing(os.path.join(folder, name), follow=False) as temporary:
            os.replace(os.path.join(made, name), temporary)
    for name in old.keys() - names:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, name))


def _content(folder: str, listed: GoldenFile) -> bytes:
    """The bytes of a file. Raises an error unless they are those that the manifest lists."""
    path = os.path.join(folder, listed.file)
    try:
        if os.path.exists(path):
            file_size(path)  # reading a pipe would block
        with open(path, "rb") as file:
            content = file.read(listed.bytes + 1)
    except FileNotFoundError:
        raise MissingFile("no such file", where=path, fix=_RESTORE) from None
    except OSError as e:
        raise TwinrunError(f"cannot be read: {e.strerror}", where=path) from None
    if len(content) != listed.bytes or checksum(content) != listed.xxh3:
        raise DamagedFile("is not the file that golden.json names", where=path, fix=_RESTORE)
    return content


def open_place(folder: str, place: GoldenPlace) -> tuple[Digests, dict[str, KeptValues]]:
    """Opens what is kept of a place: its digests, and the values of small fields.

    Raises an error unless they are those that the manifest lists.
    """
    of_digests, *others = place.files()
    content = _content(folder, of_digests)
    path = os.path.join(folder, of_digests.file)
    digests = Digests(_core.Metadata(path))
    known = [
        (f.name, f.dtype, f.shape[:: -1 if f.fortran_order else 1], f.fortran_order)
        for f in (digests.fields[at] for at in digests.numbers.values())
    ]
    if known != [(f.name, f.dtype, f.shape, f.fortran_order) for f in place.fields]:
        raise DamagedFile("holds other fields than golden.json says", where=path, fix=_RESTORE)
    values: dict[str, KeptValues] = {}
    for listed in others:
        values = parsed_values(_content(folder, listed), os.path.join(folder, listed.file), content)
    if not {*values} <= {f.name for f in place.fields}:
        raise DamagedFile("has values of other fields than golden.json says", where=path, fix=_RESTORE)
    return digests, values
