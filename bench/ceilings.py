"""What the machine can do: the storage's read rate by fio, or dd where fio is not installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path


def _fio(files: list[Path], engine: str) -> float:
    """Seconds to read all files with O_DIRECT, a job a file, by fio's own clock (its start takes longer than the read)."""
    command = [
        "fio",
        "--output-format=json",
        "--readonly",
        "--rw=read",
        "--bs=1M",
        "--direct=1",
        f"--ioengine={engine}",
    ]
    command += ["--iodepth=16", "--thread", "--group_reporting"]
    for i, path in enumerate(files):
        command += [f"--name=job{i}", f"--filename={path}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    # Warnings may come before the document.
    read = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]["read"]
    expected = sum(path.stat().st_size for path in files)
    if read["io_bytes"] < expected - (len(files) << 20):
        raise RuntimeError(f"fio read {read['io_bytes']} of {expected} bytes")
    return read["runtime"] / 1000


def _dd(files: list[Path], direct: bool) -> float:
    start = time.perf_counter()
    for path in files:
        flags = ["iflag=direct"] if direct else []
        subprocess.run(["dd", f"if={path}", "of=/dev/null", "bs=4M", "status=none", *flags], check=True)
    return time.perf_counter() - start


def _works(read: Callable[[], float]) -> bool:
    try:
        read()
    except (OSError, subprocess.CalledProcessError, RuntimeError, ValueError, KeyError, IndexError):
        return False
    return True


def storage_readers(files: list[Path]) -> dict[str, Callable[[], float]]:
    """Programs that only read: title -> function that reads all files and returns the seconds that it took."""
    smallest = min(files, key=lambda p: p.stat().st_size)
    readers: dict[str, Callable[[], float]] = {}
    if shutil.which("fio") is not None:
        for engine in ("io_uring", "libaio"):
            if _works(lambda e=engine: _fio([smallest], e)):
                readers[f"fio, O_DIRECT, {engine}, 16 x 1 MiB a file"] = lambda e=engine: _fio(files, e)
                break
    if not readers and _works(lambda: _dd([smallest], True)):
        readers["dd iflag=direct bs=4M"] = lambda: _dd(files, True)
    readers["dd bs=4M (buffered)"] = lambda: _dd(files, False)
    return readers


def read_bytes_of_process() -> int:
    """Bytes that this process caused to be read from storage so far; 0 where the kernel does not say."""
    try:
        for line in Path("/proc/self/io").read_text().splitlines():
            if line.startswith("read_bytes:"):
                return int(line.split()[1])
    except OSError:
        pass
    return 0


def machine(data: Path) -> dict[str, str]:
    """The machine in words. data: where the benchmark's files lie."""
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        os.uname().machine,
    )
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": cpu,
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory / 2**30:.0f} GiB",
        "kernel": f"{os.uname().sysname} {os.uname().release}",
        "storage": _storage(data),
    }


def _storage(data: Path) -> str:
    device = os.stat(data).st_dev
    place = f"{os.major(device)}:{os.minor(device)}"
    fields = next(
        (f for f in map(str.split, Path("/proc/self/mountinfo").read_text().splitlines()) if f[2] == place),
        None,
    )
    if fields is None:
        return "unknown"
    kind, source = fields[fields.index("-") + 1 :][:2]
    block = Path(f"/sys/dev/block/{place}").resolve()
    for folder in (block, block.parent):
        model = folder / "device" / "model"
        if model.exists():
            source += f" ({model.read_text().strip()})"
            break
    return f"{kind} on {source}"
