"""The folder of this machine in which the steps of a run rest until they are in a bucket."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import tempfile

from .. import _core
from ..errors import FormatError, TwinrunError
from ..formats.files import reading
from ..marks import MANIFEST
from ..urls import without_secrets
from .journals import Snapshot

__all__ = ["LocalFolder"]

_MARK = "twinrun-bucket.json"  # proves that twinrun made the folder
_HISTORY = "history"
_ATTEMPTS = 10


class LocalFolder:
    """The local folder of one URL, which one process at a time holds.

    history: the folder in it that has the history.
    """

    def __init__(self, url: str, parent: str | None, store: str = "") -> None:
        """parent: where the folder lies; None: the user's folder of caches. store: tells two stores that have
        a bucket of one name from each other.

        Raises TwinrunError if another process holds it, or if twinrun did not make it.
        """
        self.url = without_secrets(url).rstrip("/")
        if parent is None:
            caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
            parent = os.path.join(caches, "twinrun", "buckets")
        self.path = os.path.join(os.path.abspath(parent), _name(self.url, store))
        self._of = {"twinrun_bucket": 1, "url": self.url, "store": store}
        self.history = os.path.join(self.path, _HISTORY)
        with reading(parent):
            os.makedirs(parent, mode=0o700, exist_ok=True)
        for _ in range(_ATTEMPTS):  # another process may remove it just now
            if self._hold():
                return
        raise FormatError("cannot be made: another process removes it", where=self.path, fix="try again")

    def _hold(self) -> bool:
        """Makes the folder, if it is not there, and locks it. False: it went meanwhile."""
        mark = os.path.join(self.path, _MARK)
        if not os.path.lexists(self.path):
            self._make()
        with reading(self.path):
            try:
                self._lock = os.open(mark, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                if not os.path.lexists(self.path):
                    return False
                raise FormatError(
                    "was not made by twinrun",
                    where=self.path,
                    fix="move it away, or give another local folder",
                ) from None
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(self._lock).st_nlink == 0:
                    os.close(self._lock)
                    return False
                self._check(os.pread(self._lock, 1 << 16, 0))
            except BlockingIOError:
                os.close(self._lock)
                raise TwinrunError(
                    f"another run of this machine writes it (by {self.path})",
                    where=self.url,
                    fix="let it end first, or choose another prefix",
                ) from None
            except BaseException:
                os.close(self._lock)
                raise
        return True

    def _make(self) -> None:
        """Makes the folder together with its mark."""
        with reading(self.path):
            new = tempfile.mkdtemp(prefix=".twinrun-", dir=os.path.dirname(self.path))
            with open(os.path.join(new, _MARK), "w") as file:
                json.dump(self._of, file)
            try:
                os.rename(new, self.path)
            except OSError as error:
                shutil.rmtree(new)
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise

    def _check(self, content: bytes) -> None:
        try:
            mine = json.loads(content) == self._of
        except ValueError:
            mine = False
        if not mine:
            raise FormatError(
                f"is not the local folder of {self.url}",
                where=self.path,
                fix="move it away, or give another local folder",
            )

    @property
    def exists(self) -> bool:
        """Whether there is a history in it."""
        return _core.history_exists(self.history)

    @property
    def brought(self) -> str:
        """A new name for a file that is brought."""
        return os.path.join(self.path, f"brought-{os.getpid()}-{os.urandom(4).hex()}")

    def clear(self, snapshot: Snapshot) -> None:
        """Removes the history, which is in the bucket: what its journals name, and what marks it.

        What else is there stays, and the folders that have it.
        """
        named = snapshot.named()
        paths = [
            path
            for path, size in named.files.items()
            if size is None or size == _size(os.path.join(self.history, path))
        ]
        paths += [f"{folder}/.twinrun-{snapshot.id}" for folder in named.folders]
        paths += [name for name in snapshot.journals if name != MANIFEST] + [MANIFEST]
        with contextlib.suppress(OSError):
            for path in paths:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self.history, path))
            for folder in named.folders:
                with contextlib.suppress(OSError):
                    os.rmdir(os.path.join(self.history, folder))
            os.rmdir(self.history)

    def close(self) -> None:
        """Lets go of the folder, and removes it if it has no history."""
        with contextlib.suppress(OSError):
            if not os.path.lexists(self.history) and os.listdir(self.path) == [_MARK]:
                os.unlink(os.path.join(self.path, _MARK))
                os.rmdir(self.path)
        os.close(self._lock)


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return -1


def _name(url: str, store: str) -> str:
    """A name that tells people which URL it is, and differs between URLs."""
    last = "".join(c if c.isalnum() or c in "-_." else "-" for c in url.rpartition("/")[2])[:40]
    return f"{last.lstrip('.') or 'bucket'}-{_core.xxh3(f'{url} {store}'.encode()):016x}"
