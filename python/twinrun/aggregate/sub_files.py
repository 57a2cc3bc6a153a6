"""Sub-files of aggregated writes: their index, and one file made of them."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import DamagedFile, FormatError, MissingFile, TwinrunError, Unsupported

__all__ = ["Index", "Joined", "Placed", "join_sub_files", "read_index"]

_FORMAT = "twinrun sub-files"
_LARGEST = 1 << 62
_WINDOW = 32 << 20  # bytes of the whole file that are put together at a time
_COPY = 8 << 20


@dataclass(frozen=True)
class Placed:
    """Bytes of the whole file in one sub-file: `count` pieces of `width` bytes, `stride` bytes from one to
    the next, which lie one behind the other from `at` on.
    """

    file: int
    at: int
    offset: int
    width: int
    count: int
    stride: int

    @property
    def end(self) -> int:
        return self.offset + (self.count - 1) * self.stride + self.width

    @property
    def bytes(self) -> int:
        return self.width * self.count


@dataclass(frozen=True)
class Index:
    """PATH.twr-index: which files belong together, and where their bytes lie in the whole."""

    path: str
    text: bytes
    files: tuple[tuple[int, int, int], ...]  # bytes, inode, nanoseconds since 1970
    whole_bytes: int
    placed: tuple[Placed, ...]
    identity: tuple[int, int, int]  # of the index itself, as it was read

    def name(self, number: int) -> str:
        """The path of a sub-file."""
        return f"{self.path}.{number:05}"


@dataclass(frozen=True)
class Joined:
    """What `join_sub_files` did.

    Attributes
    ----------
    path : str
        The new file.
    files : int
        How many sub-files it was made of.
    bytes : int
        Its size.
    removed : bool
        Whether the index and the sub-files were removed.
    kept : list of str
        Files that were not removed: an index that is not the one that was read, and sub-files that are
        not those that it names.
    """

    path: str
    files: int
    bytes: int
    removed: bool = False
    kept: list[str] = field(default_factory=list)


def _index_path(path: str) -> str:
    return f"{path}.twr-index"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64


def _placed(document: dict[str, Any], files: list[tuple[int, int, int]], whole_bytes: int) -> list[Placed]:
    """The sets of version 2. Raises ValueError where they are not what twinrun writes."""
    places = document["places"]
    if not isinstance(places, list) or len(places) != len(files):
        raise ValueError("one list of places for each file")
    placed = []
    for number, sets in enumerate(places):
        at = 0
        for offset, width, count, stride in sets:
            if not all(map(_is_count, (offset, width, count, stride))) or not width or not count:
                raise ValueError("a set of bytes")
            one = Placed(number, at, offset, width, count, stride)
            if stride < width or one.end > whole_bytes:
                raise ValueError("a set within the whole file")
            placed.append(one)
            at += one.bytes
        if at != files[number][0]:
            raise ValueError("as many bytes as the file has")
    return placed


def read_index(path: str) -> Index:
    """The index of the sub-files of `path`.

    Raises
    ------
    MissingFile
        There is none.
    FormatError
        A file of that name is not an index, or a damaged one, or of a newer version.
    """
    name = _index_path(path)
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise MissingFile(
            "no index of sub-files", where=name, fix="name the path that the program wrote to"
        ) from None
    except OSError as e:
        raise FormatError(f"cannot be opened: {e.strerror}", where=name) from e
    with open(handle, "rb") as file:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise FormatError("not an index of sub-files: no regular file", where=name)
        text = file.read()
    try:
        document = json.loads(text)
        ours = isinstance(document, dict) and document.get("format") == _FORMAT
    except ValueError:
        ours = False
    if not ours:
        raise FormatError("not an index of sub-files", where=name, fix="check the path")
    if document.get("version") not in (1, 2):
        raise Unsupported(
            f"version {document.get('version')!r} of an index", where=name, fix="update twinrun"
        )
    try:
        files = [(a, b, c) for a, b, c in document["files"]]
        if not files or not all(_is_count(a) and _is_count(b) and isinstance(c, int) for a, b, c in files):
            raise ValueError("files")
        if document["version"] == 1:
            whole_bytes, placed, at = sum(f[0] for f in files), [], 0
            for number, (length, _, _) in enumerate(files):
                if length:
                    placed.append(Placed(number, 0, at, length, 1, length))
                at += length
        else:
            whole_bytes = document["whole"]["bytes"]
            if not _is_count(whole_bytes) or whole_bytes > _LARGEST:
                raise ValueError("bytes of the whole")
            placed = _placed(document["whole"], files, whole_bytes)
    except (ValueError, KeyError, TypeError) as e:
        raise DamagedFile("cut or altered", where=name, fix="write the files again") from e
    return Index(path, text, tuple(files), whole_bytes, tuple(placed), _identity(about))


def _identity(about: os.stat_result) -> tuple[int, int, int]:
    return about.st_size, about.st_ino, about.st_mtime_ns


class _Files:
    """The sub-files, opened when they are first read."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._open: dict[int, int] = {}
        self._seen: dict[int, tuple[int, int, int]] = {}
        for number, (length, _, _) in enumerate(index.files):
            name = index.name(number)
            try:
                about = os.stat(name)
            except OSError as e:
                raise MissingFile(f"a sub-file cannot be read: {e.strerror}", where=name) from e
            if not stat.S_ISREG(about.st_mode):
                raise FormatError("a sub-file is no regular file", where=name)
            if about.st_size != length:
                raise DamagedFile(
                    f"has {about.st_size} bytes, and the index says {length}",
                    where=name,
                    fix="write the files again",
                )
            self._seen[number] = _identity(about)

    def handle(self, number: int) -> int:
        if number not in self._open:
            if len(self._open) >= 64:
                os.close(self._open.pop(next(iter(self._open))))
            self._open[number] = os.open(self._index.name(number), os.O_RDONLY | os.O_CLOEXEC)
        return self._open[number]

    def read(self, number: int, at: int, length: int) -> memoryview:
        """Bytes of a sub-file. Raises DamagedFile where it ends before them."""
        into = bytearray(length)
        view, done = memoryview(into), 0
        while done < length:
            got = os.preadv(self.handle(number), [view[done : done + (1 << 30)]], at + done)
            if got == 0:
                raise DamagedFile("a sub-file ends early", where=self._index.name(number))
            done += got
        return view

    def check_unchanged(self) -> None:
        """Raises TwinrunError where a program wrote the files or the index meanwhile."""
        changed = [n for n, was in self._seen.items() if _identity(os.stat(self._index.name(n))) != was]
        where = self._index.name(changed[0]) if changed else _index_path(self._index.path)
        with contextlib.suppress(TwinrunError):
            if not changed and read_index(self._index.path).text == self._index.text:
                return
        raise TwinrunError(
            "changed while the files were joined", where=where, fix="join them when no program writes them"
        )

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])


def _write_all(handle: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(handle, data[done : done + (1 << 30)], offset + done)


def _bytes_before(one: Placed, end: int) -> int:
    """How many bytes of the set lie before this place of the whole file."""
    if end <= one.offset:
        return 0
    item, within = divmod(end - one.offset, one.stride)
    return one.bytes if item >= one.count else item * one.width + min(within, one.width)


def _place(window: np.ndarray, begin: int, one: Placed, files: _Files) -> None:
    """Puts the bytes of a set into the window of the whole file that begins at `begin`."""
    low, high = _bytes_before(one, begin), _bytes_before(one, begin + window.size)
    if low == high:
        return
    data = np.frombuffer(files.read(one.file, one.at + low, high - low), np.uint8)

    def put(item: int, within: int, piece: np.ndarray) -> None:
        place = one.offset + item * one.stride + within - begin
        window[place : place + piece.size] = piece

    first, cut = divmod(low, one.width)
    if cut:  # the end of an item
        taken = min(one.width - cut, data.size)
        put(first, cut, data[:taken])
        data, first = data[taken:], first + 1
    whole = data.size // one.width
    if whole:
        place = one.offset + first * one.stride - begin
        rows = np.lib.stride_tricks.as_strided(window[place:], (whole, one.width), (one.stride, 1))
        rows[:] = data[: whole * one.width].reshape(whole, one.width)
    if data.size % one.width:  # the beginning of one
        put(first + whole, 0, data[whole * one.width :])


def _copy(one: Placed, files: _Files, out: int) -> None:
    for at in range(0, one.bytes, _COPY):
        length = min(_COPY, one.bytes - at)
        _write_all(out, files.read(one.file, one.at + at, length), one.offset + at)


def _write_whole(index: Index, files: _Files, out: int) -> None:
    os.ftruncate(out, index.whole_bytes)
    long = [one for one in index.placed if one.count == 1 and one.width >= _COPY]
    # Short and interleaved ones go together, window by window. A long one may lie between them.
    short = sorted(set(index.placed) - set(long), key=lambda one: one.offset)
    active: list[Placed] = []
    begin, number = 0, 0
    while number < len(short) or active:
        if not active:
            begin = max(begin, short[number].offset)
        end = min(begin + _WINDOW, index.whole_bytes)
        while number < len(short) and short[number].offset < end:
            active.append(short[number])
            number += 1
        for low, high in _runs(active, begin, end):
            window = np.zeros(high - low, np.uint8)
            for one in active:
                _place(window, low, one, files)
            _write_all(out, window.data, low)
        active = [one for one in active if one.end > end]
        begin = end
    for one in long:
        _copy(one, files, out)


def _runs(active: list[Placed], begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Parts of a window that the sets reach over."""
    spans = sorted((max(one.offset, begin), min(one.end, end)) for one in active if one.end > begin)
    low = high = begin
    for first, last in spans:
        if first > high:
            if high > low:
                yield low, high
            low = first
        high = max(high, last)
    if high > low:
        yield low, high


def _put_in_place(temporary: str, output: str, replace: bool) -> None:
    if replace:
        os.rename(temporary, output)
    else:
        try:
            os.link(temporary, output, follow_symlinks=False)  # fails where a file is there
        except OSError as e:
            if e.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
                raise
            if os.path.lexists(output):  # a file system without links
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), output) from None
            os.rename(temporary, output)
        else:
            os.unlink(temporary)
    folder = os.open(os.path.dirname(output) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _remove(index: Index) -> list[str]:
    """Removes the index and its sub-files. Returns those that are not the index that was read and the files
    that it names, which stay.
    """
    kept = []
    named = [(_index_path(index.path), index.identity)]
    named += [(index.name(number), entry) for number, entry in enumerate(index.files)]
    for name, entry in named:
        with contextlib.suppress(FileNotFoundError):
            about = os.lstat(name)
            if stat.S_ISREG(about.st_mode) and _identity(about) == entry:
                os.unlink(name)
            else:
                kept.append(name)
    return kept


def _check_output(output: str, index: Index, replace: bool) -> None:
    own = {_index_path(index.path), *(index.name(number) for number in range(len(index.files)))}
    if os.path.abspath(output) in {os.path.abspath(name) for name in own}:
        raise TwinrunError("one of the files that are joined", where=output, fix="name another output")
    if not os.path.lexists(output):
        return
    if not replace:
        raise TwinrunError(
            "is there already, and stays",
            where=output,
            fix="name another file with --output, or give --replace",
        )
    if not stat.S_ISREG(os.lstat(output).st_mode):
        raise TwinrunError(
            "is no regular file, and stays", where=output, fix="name another file with --output"
        )


def join_sub_files(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    replace: bool = False,
    remove: bool = False,
) -> Joined:
    """Makes one file of the sub-files of an aggregated write.

    >>> join_sub_files("step-000500.bin")  # doctest: +SKIP
    Joined(path='step-000500.bin', files=16, bytes=1073741824, removed=False, kept=[])

    Parameters
    ----------
    path : str or path
        What the program gave to `twr_aggregate_write`: the files are PATH.00000 and so on.
    output : str or path, default None
        The file to make. None: `path` itself.
    replace : bool, default False
        Replace a file that is there.
    remove : bool, default False
        Remove the index and the sub-files when the new file is on storage. A file that somebody changed,
        copied or linked since the write stays.

    Returns
    -------
    Joined
        The new file, and what was removed.

    Raises
    ------
    TwinrunError
        No index, a damaged one, files that are not those that it names or that change meanwhile, an output
        that is there, or an error of storage. Then no file was made, replaced or removed.

    Notes
    -----
    The new file has the bytes that one shared file would have, with zeros where nobody wrote. It gets its
    name when it is complete and on storage.
    """
    index = read_index(os.fspath(path))
    target = os.fspath(output) if output is not None else index.path
    _check_output(target, index, replace)
    temporary = f"{target}.twr-partial.{secrets.token_hex(8)}"
    files = _Files(index)
    try:
        out = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            _write_whole(index, files, out)
            os.fsync(out)
            files.check_unchanged()
            _put_in_place(temporary, target, replace)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        finally:
            os.close(out)
    except FileExistsError as e:
        raise TwinrunError("came while the files were joined, and stays", where=target) from e
    except OSError as e:
        raise TwinrunError(f"cannot be written: {e.strerror}", where=target) from e
    finally:
        files.close()
    kept = _remove(index) if remove else []
    return Joined(target, len(index.files), index.whole_bytes, remove, kept)
