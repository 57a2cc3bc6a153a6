"""Removal of what a task left, and of nothing else: no link and no mount point is followed."""

from __future__ import annotations

import contextlib
import os
import stat

__all__ = ["FOLDER_ITSELF", "remove"]

FOLDER_ITSELF = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _mount(folder: int) -> str:
    """The mount that an open folder is on. Its device does not tell: a bind mount has that of its source."""
    with open(f"/proc/self/fdinfo/{folder}", encoding="ascii") as file:
        return next(line for line in file if line.startswith("mnt_id:"))


def remove(name: str, folder: int) -> list[str]:
    """Removes an entry of an open folder, with all that is in it.

    Returns the mount points in it, as paths from that folder: these stay, and so do the folders above them.
    What may not be removed stays, too.
    """
    mounts: list[str] = []
    # RecursionError: folders in each other, deeper than Python's stack.
    with contextlib.suppress(OSError, RecursionError):
        if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=folder)
            return mounts
        own = os.open(name, FOLDER_ITSELF, dir_fd=folder)
        try:
            if _mount(own) != _mount(folder):
                return [name]
            with contextlib.suppress(OSError):
                os.fchmod(own, 0o700)  # in a folder that is read-only nothing can be removed
            for entry in os.listdir(own):
                mounts += [f"{name}/{path}" for path in remove(entry, own)]
        finally:
            os.close(own)
        os.rmdir(name, dir_fd=folder)
    return mounts
