"""Empties and fills the page cache, and checks that it worked: cold and warm mean what they say."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

_DROP = Path("/proc/sys/vm/drop_caches")
_COLD = 0.001  # of a file's pages may stay: a directory's or a sidecar's single page is nothing to a gigabyte
_WARM = 0.999
_MAP_POPULATE = getattr(mmap, "MAP_POPULATE", 0)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
_libc.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class CacheError(Exception):
    """The page cache did not do as it was told: a measurement would be called cold, or warm, and not be it."""


def resident_share(path: str | os.PathLike[str]) -> float:
    """Share of a file's pages in the page cache, 0 to 1, by mincore."""
    size = os.path.getsize(path)
    if size == 0:
        return 0.0
    pages = np.empty(-(-size // mmap.PAGESIZE), dtype=np.uint8)
    mapped = np.memmap(path, np.uint8, "r")
    if _libc.mincore(mapped.ctypes.data, size, pages.ctypes.data) != 0:
        raise CacheError(f"{path}: mincore: {os.strerror(ctypes.get_errno())}")
    return float(np.count_nonzero(pages & 1)) / pages.size


def may_drop_all() -> bool:
    """Whether the whole page cache can be dropped (root, outside most containers)."""
    try:
        _DROP.write_text("1\n")  # some containers show the file as writable and refuse
    except OSError:
        return False
    return True


def how_cold(everything: bool) -> str:
    """In words, for the report."""
    means = "/proc/sys/vm/drop_caches" if everything else "posix_fadvise(DONTNEED) for each file"
    return f"page cache dropped through {means} before each run, checked by mincore"


def drop(files: Iterable[str | os.PathLike[str]], everything: bool) -> None:
    """Takes the files out of the page cache; CacheError if they stay. everything: drops the whole cache, and inodes."""
    files = list(files)
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    if everything:
        _DROP.write_text("3\n")
    for path in files:
        share = resident_share(path)
        if share * os.path.getsize(path) > max(_COLD * os.path.getsize(path), 64 << 10):
            raise CacheError(f"{path}: {100 * share:.1f}% of it stayed in the page cache")


def why_not_cold(folder: Path) -> str | None:
    """Why files in this folder cannot be taken out of the page cache; None: they can."""
    path = folder / "probe"
    try:
        with open(path, "wb") as f:
            f.write(bytes(1 << 20))
            f.flush()
            os.fsync(f.fileno())
        drop([path], everything=False)
    except (OSError, CacheError) as e:
        return str(e)
    finally:
        path.unlink(missing_ok=True)
    return None


@contextlib.contextmanager
def resident(files: Iterable[str | os.PathLike[str]]) -> Iterator[None]:
    """Holds the files in the page cache; CacheError if they do not fit.

    Mapped and, where that is allowed, locked: some machines, virtual ones above all, take away pages that nobody maps
    within seconds (DAMON's proactive reclaim), and a comparison would silently be half cold.
    """
    with contextlib.ExitStack() as stack:
        for path in files:
            size = os.path.getsize(path)
            if size == 0:
                continue
            with open(path, "rb") as f:
                mapped = mmap.mmap(f.fileno(), size, mmap.MAP_SHARED | _MAP_POPULATE, mmap.PROT_READ)
            stack.callback(mapped.close)
            view = np.frombuffer(mapped, np.uint8)
            _libc.mlock(view.ctypes.data, size)  # it is no error where a limit forbids it
            view[:: mmap.PAGESIZE].max()  # where it is not locked, touch each page
            del view
            if resident_share(path) < _WARM:
                raise CacheError(f"{path}: does not stay in the page cache; use less data (--megabytes)")
        yield
