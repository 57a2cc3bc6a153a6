"""Sub-files of aggregated writes: one file made of them, by their index."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ..arguments import any_path
from ..errors import DamagedFile, FormatError, MissingFile, TwinrunError
from .removal import Made, check_removal, remove_joined
from .sub_index import Index, Placed, identity_of, index_path, read_index, still_there

__all__ = ["Index", "Joined", "Placed", "join_sub_files", "read_index"]

_WINDOW = 32 << 20  # bytes of the whole file that are put together at a time
_COPY = 8 << 20


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
        Whether the index and the sub-files were removed, but for those in `kept`.
    kept : list of str
        Files that were not removed: sub-files with a second name (a hard link), and what was left with the
        index where the index or a sub-file changed meanwhile.
    changed : list of str
        Sub-files that were changed after the write, or copied without their times. The new file has what
        they hold now.
    """

    path: str
    files: int
    bytes: int
    removed: bool = False
    kept: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)


def _changed(where: str) -> TwinrunError:
    return TwinrunError(
        "changed or went while the files were joined, by a program that writes them or by another join",
        where=where,
        fix="look whether they are joined already, or join them when no program writes them",
    )


class _Files:
    """The sub-files, opened when they are first read.

    changed: those with another time of modification than the index says.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._open: dict[int, int] = {}
        self._seen: dict[int, tuple[int, int, int]] = {}
        self.changed: list[str] = []
        numbers = {entry: number for number, entry in enumerate(index.files)}
        for number, entry in enumerate(index.files):
            name, (length, _, modified) = index.name(number), entry
            try:
                about = os.stat(name)
            except OSError as e:
                raise MissingFile(f"a sub-file cannot be read: {e.strerror}", where=name) from e
            if not stat.S_ISREG(about.st_mode):
                raise FormatError("a sub-file is no regular file", where=name)
            found = identity_of(about)
            if found != entry and found in numbers:
                raise DamagedFile(
                    f"is the file that was written as {index.name(numbers[found])}: sub-files were renamed",
                    where=name,
                    fix="give each its own name again, or write the files again",
                )
            if about.st_size != length:
                raise DamagedFile(
                    f"has {about.st_size} bytes, and the index says {length}",
                    where=name,
                    fix="write the files again",
                )
            if about.st_mtime_ns != modified:
                self.changed.append(name)
            self._seen[number] = found

    def handle(self, number: int) -> int:
        if number not in self._open:
            if len(self._open) >= 64:
                os.close(self._open.pop(next(iter(self._open))))
            name = self._index.name(number)
            try:
                self._open[number] = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as e:
                raise _changed(name) from e
        return self._open[number]

    def read(self, number: int, at: int, length: int) -> memoryview:
        """Bytes of a sub-file. Raises DamagedFile where it ends before them."""
        into = bytearray(length)
        view, done = memoryview(into), 0
        while done < length:
            handle = self.handle(number)
            try:
                got = os.preadv(handle, [view[done : done + (1 << 30)]], at + done)
            except OSError as e:
                raise TwinrunError(
                    f"a sub-file cannot be read: {e.strerror}", where=self._index.name(number)
                ) from e
            if got == 0:
                raise DamagedFile("a sub-file ends early", where=self._index.name(number))
            done += got
        return view

    def check_unchanged(self) -> None:
        """Raises TwinrunError where a program wrote the files or the index meanwhile."""
        for number, was in self._seen.items():
            name = self._index.name(number)
            try:
                same = identity_of(os.stat(name)) == was
            except OSError:
                same = False
            if not same:
                raise _changed(name)
        if not still_there(self._index):
            raise _changed(index_path(self._index.path))

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])


def _write_all(handle: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(handle, data[done : done + (1 << 30)], offset + done)


def _set_time(handle: int) -> None:
    """Gives a file a time that no later write gives it: the clock for writes ticks in milliseconds."""
    now = time.time_ns()
    with contextlib.suppress(OSError):
        os.utime(handle, ns=(now, now))


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


def _check_output(output: str, index: Index, replace: bool) -> None:
    own = {index_path(index.path), *(index.name(number) for number in range(len(index.files)))}
    if os.path.abspath(output) in {os.path.abspath(name) for name in own}:
        raise TwinrunError("one of the files that are joined", where=output, fix="name another output")
    if output.endswith(os.sep) or os.path.isdir(output):
        raise TwinrunError("is a folder, and stays", where=output, fix="name a file with --output")
    folder = os.path.dirname(output)
    if folder and not os.path.isdir(folder):
        raise TwinrunError("its folder is not there", where=output, fix="make the folder")
    if not os.path.lexists(output):
        return
    if not stat.S_ISREG(os.lstat(output).st_mode):
        raise TwinrunError(
            "is no regular file, and stays", where=output, fix="name another file with --output"
        )
    if not replace:
        raise TwinrunError(
            "is there already, and stays",
            where=output,
            fix="name another file with --output, or give --replace",
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
    Joined(path='step-000500.bin', files=16, bytes=1073741824, removed=False, kept=[], changed=[])

    Parameters
    ----------
    path : str or path
        What the program gave to `twr_aggregate_write`: the files are PATH.00000 and so on.
    output : str or path, default None
        The file to make. None: `path` itself.
    replace : bool, default False
        Replace a file that is there.
    remove : bool, default False
        Remove the index and the sub-files when the new file is on storage. A sub-file with a second name (a
        hard link) stays. Where one was changed, copied or replaced since the write, or the index has no
        checksum, that is an error, and nothing is made or removed. The index goes last. Where the new file
        is changed, moved or replaced meanwhile, that is an error, and the index stays with what is left.

    Returns
    -------
    Joined
        The new file, and what was removed.

    Raises
    ------
    TwinrunError
        No index, a damaged one, files that have other lengths than it says, that were exchanged or that
        change meanwhile, an output that is there, or an error of storage. Then no file was made, replaced or
        removed.

    Notes
    -----
    The new file has the bytes that one shared file would have, with zeros where nobody wrote. It gets its
    name when it is complete and on storage. The index has no checksums of the sub-files' contents:
    `Joined.changed` names those that may hold other bytes than were written.
    """
    source = any_path(path)
    target = source if output is None else any_path(output)
    index = read_index(source)
    _check_output(target, index, replace)
    files = _Files(index)
    if remove:
        check_removal(index)
    temporary = f"{target}.twr-partial.{secrets.token_hex(8)}"
    try:
        out = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            _write_whole(index, files, out)
            _set_time(out)
            os.fsync(out)
            files.check_unchanged()
            made = Made(target, os.fstat(out))
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
    kept = remove_joined(index, made) if remove else []
    removed = remove and index_path(index.path) not in kept
    return Joined(target, len(index.files), index.whole_bytes, removed, kept, files.changed)
