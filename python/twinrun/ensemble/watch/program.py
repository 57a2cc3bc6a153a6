"""The program: claims the attempt, runs it, and writes its record."""

from __future__ import annotations

import fcntl
import json
import os
import platform

from .attempt import Attempt
from .kernel import node_name

__all__ = ["main"]


def write_whole(path: str, document: dict) -> None:
    """Writes a file whole or not at all. Same as `twinrun.outputs.write_whole`, which this program
    cannot import.
    """
    temporary = f"{path}.tmp"
    with open(temporary, "w", encoding="utf-8", errors="surrogateescape") as file:
        json.dump(document, file, allow_nan=False)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def main(arguments: list[str]) -> int:
    """Runs the program. Status 0 where a record was written, or another process has the attempt."""
    path = os.path.abspath(arguments[0])
    # The task may put another folder, or a link, in place of this one: neither is read or written.
    folder = f"/proc/self/fd/{os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)}"
    with open(os.path.join(folder, "spec.json"), encoding="utf-8", errors="surrogateescape") as file:
        spec = json.load(file)
    lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return 3
    try:
        claim = os.open(
            os.path.join(folder, "claim"), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644
        )
    except FileExistsError:
        return 0
    os.write(claim, json.dumps({"node": node_name(), "host": platform.node(), "pid": os.getpid()}).encode())
    os.fsync(claim)
    os.close(claim)
    write_whole(os.path.join(folder, "record.json"), Attempt(folder, spec, path).run())
    return 0
