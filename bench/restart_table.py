"""A three-dimensional array written by some ranks and read by others in another cutting, as a table of Markdown.

mpiexec -n RANKS python bench/restart_table.py --writers 6 --readers 4 [--side 256] [--repeat 7] [--folder DIR]

TWINRUN_AGGREGATE_LIBRARY names the library. Three ways take turns in one job: one file by twinrun, a file of each rank that are parts of the
whole, and one file by MPI-IO's collective calls. Each time is that of the slowest rank, from before the file is opened to after it is closed;
the first repetition is left out. Files stay in the page cache. GB/s: medians, with least and most.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from measure import Spread
from mpi4py import MPI
from table import markdown, spread

from twinrun.aggregate.parallel_files import Aggregate, Block

WORLD = MPI.COMM_WORLD


class Part:
    """A rank's box of a cube of doubles: one of a grid of as many boxes as the communicator has ranks."""

    def __init__(self, comm: MPI.Intracomm, side: int) -> None:
        grid = MPI.Compute_dims(comm.size, 3)
        at = np.unravel_index(comm.rank, grid)
        bounds = [np.linspace(0, side, n + 1).astype(int) for n in grid]
        self.start = tuple(int(b[i]) for b, i in zip(bounds, at, strict=True))
        self.shape = tuple(int(b[i + 1] - b[i]) for b, i in zip(bounds, at, strict=True))
        self.comm, self.side = comm, side

    def values(self) -> np.ndarray:
        """Each item is its place in the cube."""
        axes = [np.arange(s, s + n, dtype="f8") for s, n in zip(self.start, self.shape, strict=True)]
        return np.ascontiguousarray(
            (axes[0][:, None, None] * self.side + axes[1][:, None]) * self.side + axes[2]
        )


def by_twinrun(part: Part, files: str) -> tuple[Callable, Callable, Aggregate]:
    """Functions that write and read, and what they use."""
    aggregate = Aggregate(part.comm, files=files, offsets="whole")
    aggregate.declare_blocks([Block("f8", (part.side,) * 3, part.start, part.shape)])
    return (
        lambda path, array: aggregate.write(path, [array]),
        lambda path, array: aggregate.read(path, [array]),
        aggregate,
    )


def by_mpi_io(part: Part) -> tuple[Callable, Callable, None]:
    """The same with MPI_File_write_all and read_all."""
    view = MPI.DOUBLE.Create_subarray((part.side,) * 3, part.shape, part.start).Commit()

    def moved(path: Path, array: np.ndarray, mode: int, call: str) -> None:
        file = MPI.File.Open(part.comm, str(path), mode)
        file.Set_view(0, MPI.DOUBLE, view)
        getattr(file, call)(array)
        file.Close()

    return (
        lambda path, array: moved(path, array, MPI.MODE_CREATE | MPI.MODE_WRONLY, "Write_all"),
        lambda path, array: moved(path, array, MPI.MODE_RDONLY, "Read_all"),
        None,
    )


WAYS = {
    "twinrun, one file": lambda part: by_twinrun(part, "one"),
    "twinrun, a file of each rank": lambda part: by_twinrun(part, "rank"),
    "MPI-IO, one file": by_mpi_io,
}


def timed(comm: MPI.Intracomm, call: Callable, path: Path, array: np.ndarray) -> float:
    """Seconds of the slowest rank."""
    comm.Barrier()
    begin = time.perf_counter()
    call(path, array)
    return comm.allreduce(time.perf_counter() - begin, MPI.MAX)


def measure(arguments: argparse.Namespace, count: int, write: bool) -> dict[str, list[float]]:
    """Seconds by way, of the first `count` ranks; a read checks what it got."""
    comm = WORLD.Split(0 if WORLD.rank < count else MPI.UNDEFINED)
    seconds: dict[str, list[float]] = {}
    if comm != MPI.COMM_NULL:
        part = Part(comm, arguments.side)
        values = part.values()
        ways = {name: make(part) for name, make in WAYS.items()}
        for _ in range(arguments.repeat + 1):
            for number, (name, (writes, reads, _)) in enumerate(ways.items()):
                path = arguments.folder / f"restart-{number}"
                array = values if write else np.zeros_like(values)
                seconds.setdefault(name, []).append(timed(comm, writes if write else reads, path, array))
                if not (array == values).all():
                    raise AssertionError(f"{name}: other values")
        for _, _, aggregate in ways.values():
            if aggregate is not None:
                aggregate.close()
    WORLD.Barrier()
    return {name: times[1:] for name, times in seconds.items()}


def main() -> None:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--writers", type=int, default=6)
    parser.add_argument("--readers", type=int, default=4)
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=Path())
    arguments = parser.parse_args()
    written = measure(arguments, arguments.writers, write=True)
    read = measure(arguments, arguments.readers, write=False)
    if WORLD.rank != 0:
        return
    size = arguments.side**3 * 8 / 1e9
    rows = [
        [name, *(spread(Spread([size / s for s in times[name]])) for times in (written, read))]
        for name in WAYS
    ]
    print(
        f"{size:.3g} GB, {arguments.writers} ranks write and {arguments.readers} read, {os.cpu_count()} cores, {platform.system()} "
        f"{platform.release()}; {arguments.repeat} repetitions\n"
    )
    print(markdown(["", "write, GB/s", "read, GB/s"], rows))
    for path in arguments.folder.glob("restart-*"):
        path.unlink()


if __name__ == "__main__":
    sys.exit(main())
