"""IOR, the benchmark of parallel files: sets of its options at random. TWINRUN_IOR names the program
(tools/build_ior.sh makes it); with colons between, one for each MPI."""

from __future__ import annotations

import os
import random
import re
from dataclasses import dataclass, field
from pathlib import Path

from mpi import Job, Skipped

TRANSFERS = (8, 24, 64, 136, 512, 1000, 4096, 4104, 20_000, 65_536, 100_000, 262_144)
MOST_BYTES = 4 << 20  # of a rank
MOST_CALLS = 60  # of a rank, in one pass over the file


def program_for(mpiexec: list[str]) -> str:
    """The IOR of TWINRUN_IOR that is built with the MPI of this mpiexec."""
    given = [word for word in os.environ.get("TWINRUN_IOR", "").split(":") if word]
    if not given:
        raise Skipped("no IOR: tools/build_ior.sh makes one, and TWINRUN_IOR names it")
    for program in given:
        if not os.access(program, os.X_OK):
            raise AssertionError(f"TWINRUN_IOR names {program}, which is no program")
        # With another MPI each rank is a job of its own, or does not start.
        said = Job([*mpiexec, "-n", "2", program, "-a", "DUMMY", "-b", "8", "-t", "8"])
        if re.search(r"^tasks\s*: 2$", said.out, re.MULTILINE):
            return program
    raise Skipped(f"TWINRUN_IOR names no IOR of the MPI of {mpiexec[0]}")


@dataclass
class Options:
    """One set: words of the command line after `-o FILE`, hints of MPI, and what is there beforehand."""

    words: list[str]
    collective: bool
    strided: bool
    # Bytes of the file that is there before, which is written over; 0: none.
    before: int = 0
    seed: int = 0
    hints: dict[str, str] = field(default_factory=dict)

    def prepare(self, path: Path) -> None:
        if self.before:
            path.write_bytes(random.Random(self.seed).randbytes(self.before))


def random_options(rng: random.Random, ranks: int) -> Options:
    """A set that IOR accepts, and whose files and data follow from it alone."""
    transfer = rng.choice(TRANSFERS)
    per_block = rng.choice([1, 1, 1, 2, 3, 5, 16])
    most = max(1, min(MOST_CALLS, MOST_BYTES // transfer) // per_block)
    segments = rng.randint(1, most)
    collective = rng.random() < 0.75
    each = rng.random() < 0.2  # a file of each rank
    view = rng.random() < 0.45
    # IOR's strided views are right for one shared file that each rank reads as it wrote it.
    strided = view and not each and rng.random() < 0.5
    tasks = rng.randint(1, ranks) if rng.random() < 0.15 else ranks
    words = ["-a", "MPIIO", "-b", str(transfer * per_block), "-t", str(transfer), "-s", str(segments)]
    words += ["-w", "-r", "-k", "-G", str(rng.randint(1, 1 << 30)), "-N", str(tasks)]
    # IOR looks at every segment of a strided view, and has read them in one call, to one place.
    if not strided or segments == 1:
        words += ["-W", "-R"]
    if collective:
        words.append("-c")
    if each:
        words.append("-F")
        if rng.random() < 0.3:
            words.append("-u")
    if view:
        words.append("--mpiio.useFileView")
    if strided:
        words.append("--mpiio.useStridedDatatype")
    shuffled = not collective and not view and per_block > 1 and rng.random() < 0.5
    if shuffled:
        words += ["-z", "--random-offset-seed", str(rng.randint(1, 1 << 20))]
    if not strided and (each or not shuffled):
        # Ranks read what others wrote.
        words += rng.choice([[], [], ["-C"], ["-Z", "-X", str(rng.randint(1, 1 << 20))]])
    words += rng.choice([[], [], ["-l", "offset"], ["-l", "timestamp"], ["-l", "incompressible"]])
    words += rng.choice([[], [], [], ["-i", "2"], ["-i", "2", "-m"]])
    words += rng.choice([[], [], ["-e"], ["-g"], ["-g"] if each else ["--mpiio.preallocate"]])
    if segments * per_block <= 8 and rng.random() < 0.2:
        words.append("-Y")
    options = Options(words, collective, strided, seed=rng.randint(0, 1 << 30))
    if not each and "-m" not in words and rng.random() < 0.25:
        words.append("-E")
        options.before = rng.randint(1, 2 * tasks * segments * per_block * transfer)
    options.hints = rng.choice(
        [
            {},
            {},
            {"romio_cb_write": "enable", "romio_cb_read": "enable"},
            {"romio_ds_write": "enable", "romio_cb_write": "disable"},
            {"twinrun_aggregators": "2", "twinrun_buffer_bytes": "8192", "twinrun_block_bytes": "4096"},
            {"twinrun_aggregators": "1", "twinrun_backend": "uring"},
        ]
    )
    return options


def hints_environment(hints: dict[str, str]) -> dict[str, str]:
    """IOR gives hints of its environment to MPI_File_open."""
    return {f"IOR_HINT__MPI__{name}": value for name, value in hints.items()}
