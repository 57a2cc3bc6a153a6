"""A folder of golden files: which of its files are golden files, how they are replaced, how they are read."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import filecmp
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from .. import _core
from ..errors import DamagedFile, FormatError, MissingFile, TwinrunError
from ..formats.files import file_size
from ..formats.pointers import place_elsewhere
from ..runs.subject import Place
from .digests import Digests
from .manifest import MANIFEST, GoldenFile, GoldenPlace, Manifest, checksum, is_golden_file, is_manifest
from .values import KeptValues, is_values_file, parsed_values

__all__ = ["file_name", "new_folder", "old_files", "open_place", "put_in_place", "write_new"]

_NAME = r"(?:step_-?[0-9]+_)?(?:rank_[0-9]+|particles)"
_OWN_FILE = re.compile(_NAME + r"(?:-[0-9a-f]{16})?\.tw[mv]")
_STAGED = re.compile(_NAME + r"-([0-9a-f]{16})\.tw[mv]")
# Beside the folder: new files before they are moved; the mark says for which folder.
_PREFIX, _MARK, _FILES = ".twinrun-golden-", ".twinrun-golden-of", "new"
_NEW = re.compile(r"\.twinrun-golden-[a-z0-9_]{8}")
_BETWEEN = "between.json"  # golden.json while files are moved, before it has its name
_RESTORE = "restore it, or move it away and save again with 'twinrun golden save'"


def file_name(place: Place, by_id: bool = False) -> str:
    """The name of the file with the digests of a place. by_id: of the particles of all ranks."""
    step, rank = place
    what = "particles" if by_id else f"rank_{rank}"
    return f"{what}.twm" if step is None else f"step_{step}_{what}.twm"


@contextlib.contextmanager
def new_folder(folder: str) -> Iterator[str]:
    """A folder for new golden files, beside `folder`, where they will lie. It is gone afterwards.

    What a `save` of the same folder left that was killed is removed: its mark names the folder, and its
    lock is free.
    """
    folder = os.path.abspath(folder)
    parent = os.path.dirname(folder)
    try:
        os.makedirs(parent, exist_ok=True)
    except OSError as e:
        raise TwinrunError(
            f"the folder cannot be made: {e.strerror or e}", where=parent, fix="name another folder with -o"
        ) from None
    made = ""
    lock: int | None = None
    try:
        for name in os.listdir(parent):
            if _NEW.fullmatch(name):
                _remove_left(os.path.join(parent, name), folder)
        while lock is None:
            made = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
            lock = _locked(made, folder)
        os.mkdir(os.path.join(made, _FILES))
    except OSError as e:
        _unlocked(made, lock)
        raise TwinrunError(
            f"no folder can be made in it: {e.strerror or e}",
            where=parent,
            fix="make room, or name another folder",
        ) from None
    except BaseException:
        _unlocked(made, lock)
        raise
    try:
        yield os.path.join(made, _FILES)
    finally:
        _unlocked(made, lock)


def _locked(made: str, folder: str) -> int | None:
    """The lock of a folder of new files, which is marked as one of `folder`; None where another process
    took the folder for one that was left.
    """
    try:
        lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:  # a file system without locks: without a mark nobody removes what is in it
            return lock
        _write(os.path.join(made, _MARK), os.fsencode(folder))
        return lock
    except BaseException as e:
        os.close(lock)
        if isinstance(e, FileNotFoundError):
            return None
        raise


def _unlocked(made: str, lock: int | None) -> None:
    if made:
        # The mark last: without it nobody removes what is left.
        shutil.rmtree(os.path.join(made, _FILES), ignore_errors=True)
        shutil.rmtree(made, ignore_errors=True)
    if lock is not None:
        os.close(lock)


def _remove_left(left: str, folder: str) -> None:
    """Removes a folder of new files whose `save` was killed, if it was for this folder or did not say."""
    with contextlib.suppress(OSError):
        lock = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mark = os.path.join(left, _MARK)
            if os.listdir(left):
                with open(mark, "rb") as file:
                    told = file.read()
                if told not in (b"", os.fsencode(folder)):
                    return
                if told:
                    shutil.rmtree(os.path.join(left, _FILES), ignore_errors=True)
                os.unlink(mark)
            os.rmdir(left)
        finally:
            os.close(lock)


def _write(path: str, content: bytes) -> None:
    with open(path, "wb") as out:
        out.write(content)


def write_new(made: str, name: str, content: bytes, folder: str) -> None:
    """Writes a file into the folder of new files. Raises TwinrunError, with its place in `folder`."""
    try:
        _write(os.path.join(made, name), content)
    except OSError as e:
        raise TwinrunError(
            f"cannot be written: {e.strerror or e}",
            where=os.path.join(folder, name),
            fix="make room, or name another folder; golden files that were there are as they were",
        ) from None


def old_files(folder: str) -> dict[str, tuple[GoldenFile, ...]]:
    """The golden files that `save` may replace, by name: those that golden.json lists, unchanged, and what
    a `save` that was killed left. Each with the contents that it may have.

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
    found: dict[str, tuple[GoldenFile, ...]] = {
        name: (left,) for name in present if (left := _left_behind(folder, name)) is not None
    }
    if found.keys() >= {*present}:
        return found
    if not is_manifest(os.path.join(folder, MANIFEST)):
        raise TwinrunError(
            "is a folder with other files in it", where=folder, fix="name a new folder for the golden files"
        )
    try:
        manifest = Manifest.read(folder)
    except DamagedFile:  # a damaged manifest proves nothing about the files
        return found
    for f in (*(f for p in manifest.places for f in p.files()), *manifest.replacing):
        if _OWN_FILE.fullmatch(f.file) and _is_listed(folder, f):
            found[f.file] = (f, *found.get(f.file, ()))
    return found


def _left_behind(folder: str, name: str) -> GoldenFile | None:
    """A file on its way to its place: it is named by its content, which proves that `save` wrote it."""
    named = _STAGED.fullmatch(name)
    path = os.path.join(folder, name)
    if named is None or not _is_golden(path):
        return None
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:  # another save has moved it
        return None
    left = GoldenFile(name, len(content), checksum(content))
    return left if left.xxh3 == named[1] else None


def _is_golden(path: str) -> bool:
    return is_values_file(path) if path.endswith(".twv") else is_golden_file(path)


def _is_listed(folder: str, listed: GoldenFile) -> bool:
    """Whether a file is, bit for bit, the one that golden.json lists."""
    path = os.path.join(folder, listed.file)
    try:
        if not _is_golden(path) or os.path.getsize(path) != listed.bytes:
            return False
        with open(path, "rb") as file:
            return checksum(file.read()) == listed.xxh3
    except FileNotFoundError:  # another save has moved it
        return False


def _staged(file: GoldenFile) -> str:
    """The name of a file on its way to its place: 'rank_0-0123456789abcdef.twm'."""
    stem, suffix = os.path.splitext(file.file)
    return f"{stem}-{file.xxh3}{suffix}"


@contextlib.contextmanager
def _alone(folder: str) -> Iterator[None]:
    """Keeps other processes that put golden files there waiting, where the file system has locks."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def put_in_place(made: str, folder: str, old: Collection[str], manifest: Manifest) -> None:
    """Moves new files over old ones. At every moment golden.json names files that are there, and whole.

    New files first get names made of their content. Then golden.json names those: from here on the new
    golden files hold. Then they take the places of the old ones, and golden.json names these places. A
    `save` that is killed leaves either the old golden files or the new ones, and files that the next one
    knows for twinrun's: by the content that their names say, or because golden.json lists them.

    The files in the folder are checked again first, because the digests of a large run take a while.

    made: the folder of the new files and their manifest; it goes away where nothing lies in the way. old: the
    names that might be replaced when the save began (`old_files`). manifest: the new one. Raises TwinrunError
    where a file in the folder may be the user's.
    """
    if not os.path.lexists(folder):
        try:
            os.rename(made, folder)
            return
        except OSError as e:  # somebody made it meanwhile
            if e.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
    os.makedirs(folder, exist_ok=True)
    with _alone(folder):
        new = {f.file: f for p in manifest.places for f in p.files()}
        now = old_files(folder)
        _check_replaceable(made, folder, {*old, *now}, now, new)
        moved = {name: f for name, f in new.items() if not _is_listed(folder, f)}
        gone = {name for name in now if name not in new and not _STAGED.fullmatch(name)}
        if moved or gone:
            _move(made, folder, now, gone, moved, manifest)
        _replace(made, folder, MANIFEST)
        for name in (*now, *map(_staged, moved.values())):
            if _STAGED.fullmatch(name):
                _remove(folder, name)


def _check_replaceable(
    made: str,
    folder: str,
    old: Collection[str],
    now: Mapping[str, tuple[GoldenFile, ...]],
    new: Mapping[str, GoldenFile],
) -> None:
    """Raises TwinrunError where a file is in the way that is not `now` known for twinrun's."""
    for name in sorted({*new, *map(_staged, new.values()), *old}):
        path = os.path.join(folder, name)
        if not os.path.lexists(path) or name in now:
            continue
        # An interrupted `save` of the same run leaves this file.
        if name in new and _is_golden(path) and filecmp.cmp(path, os.path.join(made, name), False):
            continue
        raise TwinrunError(
            "is there already, and is not the file that golden.json lists", where=path, fix="move it away"
        )


def _move(
    made: str,
    folder: str,
    old: Mapping[str, tuple[GoldenFile, ...]],
    gone: Collection[str],
    moved: Mapping[str, GoldenFile],
    manifest: Manifest,
) -> None:
    """Puts the files `moved` into their places, and removes those that are `gone`, under a manifest that
    names the new files by their content.
    """
    placed = []
    try:
        for name, file in sorted(moved.items()):
            shutil.copyfile(os.path.join(made, name), os.path.join(made, _staged(file)))
        known = [f for name in {*gone, *moved} for f in old.get(name, ())]
        listed = dict.fromkeys(sorted([*known, *moved.values()], key=lambda f: (f.file, f.xxh3)))
        between = replace(
            manifest.with_names({n: _staged(f) for n, f in moved.items()}), replacing=tuple(listed)
        )
        text = between.text().encode()
        Manifest.parse(text, os.path.join(folder, MANIFEST))
        _write(os.path.join(made, _BETWEEN), text)
        for file in moved.values():
            placed.append(_staged(file))
            _replace(made, folder, _staged(file))
        _replace(made, folder, MANIFEST, _BETWEEN)
    except BaseException:
        if not _names_one_of(folder, placed):
            for name in placed:
                _remove(folder, name)
        raise
    for name in sorted(moved):
        _replace(made, folder, name)
    for name in gone:
        _remove(folder, name)


def _names_one_of(folder: str, names: Collection[str]) -> bool:
    """Whether golden.json names one of these files, or cannot be read."""
    if not os.path.lexists(os.path.join(folder, MANIFEST)):
        return False
    try:
        return not {f.file for p in Manifest.read(folder).places for f in p.files()}.isdisjoint(names)
    except TwinrunError:
        return True


def _replace(made: str, folder: str, name: str, source: str | None = None) -> None:
    """Moves a new file to its name in the folder. A file that was there gives it its mode."""
    path, new = os.path.join(folder, name), os.path.join(made, source or name)
    with contextlib.suppress(FileNotFoundError):
        about = os.lstat(path)
        if stat.S_ISREG(about.st_mode):
            os.chmod(new, stat.S_IMODE(about.st_mode))
    os.replace(new, path)


def _remove(folder: str, name: str) -> None:
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
        raise FormatError.of_system(e, path) from None
    if len(content) != listed.bytes or checksum(content) != listed.xxh3:
        damaged = DamagedFile("is not the file that golden.json names", where=path, fix=_RESTORE)
        raise place_elsewhere(path) or damaged
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
