"""Facts of the kernel about this node and about processes, as text."""

from __future__ import annotations

import os
import platform
import re
import time

__all__ = ["IO", "clock", "io_of", "node_name", "pressure", "read_text", "reaped_io"]


def read_text(path: str) -> str | None:
    """A file's text; None where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return None


def node_name() -> str:
    """The name of this node in the batch system, or its own name."""
    return os.environ.get("SLURMD_NODENAME") or platform.node()


def clock() -> dict[str, float | str | None]:
    """Seconds since this node started, by a clock that nobody sets, and a name of that start."""
    boot = read_text("/proc/sys/kernel/random/boot_id")
    return {"boot": boot.strip() if boot else node_name(), "seconds": time.clock_gettime(time.CLOCK_BOOTTIME)}


def pressure() -> dict[str, float] | None:
    """Seconds that tasks of the node waited since it started (pressure stall information); None where not
    available.
    """
    found = {}
    for kind, lines in (("cpu", ("some",)), ("io", ("some", "full")), ("memory", ("some",))):
        text = read_text(f"/proc/pressure/{kind}")
        if text is None:
            return None
        for line in lines:
            total = re.search(rf"^{line} .*total=(\d+)", text, re.M)
            if total:
                found[f"{kind}_{line}"] = int(total[1]) / 1e6
    return found


IO = {
    "read_bytes": "read_bytes",
    "write_bytes": "write_bytes",
    "rchar": "read_chars",
    "wchar": "write_chars",
    "syscr": "read_calls",
    "syscw": "write_calls",
}


def io_of(path: str) -> tuple[dict[str, int], int]:
    """Reads an io file of /proc in one call; also returns its length."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(file, 4096)
    finally:
        os.close(file)
    fields = dict(line.split(": ") for line in data.decode().splitlines())
    return {name: int(fields[key]) for key, name in IO.items()}, len(data)


def reaped_io() -> dict[str, int] | None:
    """I/O of all processes that this process, or its children, have waited for.

    A process's figures hold its threads' and those of its children that ended; this one has a single thread.
    """
    try:
        own, length = io_of(f"/proc/self/task/{os.getpid()}/io")
        both, _ = io_of("/proc/self/io")
    except (OSError, ValueError, KeyError):
        return None
    found = {name: both[name] - own[name] for name in both}
    found["read_chars"] -= length  # of reading the first
    found["read_calls"] -= 1
    return found
