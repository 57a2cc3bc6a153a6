"""IOR, unchanged, over MPI-IO: with libtwinrun_mpiio.so preloaded and without, of one MPI or several, as a table of Markdown.

python bench/ior_table.py --mpi "ROMIO;IOR;MPIEXEC;LIBRARY" [--mpi "OMPIO;..."] [--ranks 4] [--jobs 7] [--folder DIR] [--only WORD]

--mpi: the column's name, IOR's program for this MPI (tools/build_ior.sh), mpiexec with its options, and the library built for this MPI. Each
line is a set of IOR's options. Its jobs take turns: every MPI, plain and with twinrun, in rotating order. A job writes and reads a new file
`--repeat` times, and counts with the median of what IOR says (bwMiB, from before the open to after the close of the slowest rank). Files stay
in the page cache. All columns are medians of jobs, with least and most. "times" is of jobs that followed each other: how many times the
bandwidth twinrun has. Means are no use here: on a busy machine jobs of one kind differ tenfold. "transfers" is the same for IOR's time of
transfers (wrRdTime), without open and close. Lines below 0.95 are listed again below the table.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from measure import Spread
from mpi_programs import ENVIRONMENT, is_hydra, setting
from table import markdown, spread

VIEW = "--mpiio.useFileView"
STRIDED = f"{VIEW} --mpiio.useStridedDatatype"

# What it is, IOR's options, and whether it is of small interleaved records in one collective call.
CASES = (
    ("strided view, records of 64 B", f"-c {STRIDED} -b 64 -t 64 -s 4096", True),
    ("strided view, records of 64 B", f"-c {STRIDED} -b 64 -t 64 -s 65536", True),
    ("strided view, records of 512 B", f"-c {STRIDED} -b 512 -t 512 -s 512", True),
    ("strided view, records of 512 B", f"-c {STRIDED} -b 512 -t 512 -s 16384", True),
    ("strided view, records of 4 KiB", f"-c {STRIDED} -b 4k -t 4k -s 64", True),
    ("strided view, records of 4 KiB", f"-c {STRIDED} -b 4k -t 4k -s 2048", True),
    ("strided view, records of 64 KiB", f"-c {STRIDED} -b 64k -t 64k -s 256", False),
    ("strided view, four records of 1 KiB", f"-c {STRIDED} -b 4k -t 1k -s 2048", True),
    ("a record a call, 512 B", "-c -b 512 -t 512 -s 256", False),
    ("a record a call, 4 KiB", "-c -b 4k -t 4k -s 256", False),
    ("a record a call, 4 KiB, view", f"-c {VIEW} -b 4k -t 4k -s 256", False),
    ("a record a call, 64 KiB", "-c -b 64k -t 64k -s 128", False),
    ("a record a call, 1 MiB", "-c -b 1m -t 1m -s 16", False),
    ("a block in records of 4 KiB", "-c -b 1m -t 4k -s 1", False),
    ("a block in records of 256 KiB", "-c -b 16m -t 256k -s 1", False),
    ("a block in one call, 16 MiB", "-c -b 16m -t 16m -s 1", False),
    ("a file of each rank, 64 KiB", "-c -F -b 8m -t 64k -s 1", False),
    ("independent, 4 KiB", "-b 4k -t 4k -s 512", False),
    ("independent, 4 KiB, shuffled", "-z --random-offset-seed 7 -b 2m -t 4k -s 1", False),
    ("independent, a file of each rank, 256 KiB", "-F -b 16m -t 256k -s 1", False),
)


@dataclass
class Mpi:
    """One MPI: its column, and what runs IOR with it."""

    name: str
    program: str
    mpiexec: list[str]
    library: str

    @classmethod
    def parse(cls, text: str) -> Mpi:
        """Of the command line."""
        words = text.split(";")
        if len(words) != 4:
            raise argparse.ArgumentTypeError(f"{text!r}: not NAME;IOR;MPIEXEC;LIBRARY")
        name, program, mpiexec, library = words
        return cls(name, str(Path(program).resolve()), shlex.split(mpiexec), str(Path(library).resolve()))

    def job(
        self, arguments: argparse.Namespace, options: str, folder: Path, preload: bool
    ) -> dict[str, tuple[float, float]]:
        """Of "write" and "read": MiB/s, and transfers a second, medians of the job's repetitions."""
        summary = folder / "summary.json"
        start = list(self.mpiexec)
        if preload:
            start += (
                ["-genv", "LD_PRELOAD", self.library]
                if is_hydra(start)
                else ["-x", f"LD_PRELOAD={self.library}"]
            )
        words = ["-a", "MPIIO", *options.split(), "-w", "-r", "-i", str(arguments.repeat)]
        words += ["-o", str(folder / "data"), "-O", "summaryFormat=JSON", "-O", f"summaryFile={summary}"]
        done = subprocess.run(
            [*start, "-n", str(arguments.ranks), self.program, *words],
            env={**os.environ, **ENVIRONMENT},
            capture_output=True,
            text=True,
            timeout=arguments.limit,
        )
        if done.returncode != 0 or "WARNING" in done.stdout:
            raise SystemExit(f"{shlex.join(map(str, done.args))}\n{done.stdout}{done.stderr}")
        rates: dict[str, list[float]] = {}
        seconds: dict[str, list[float]] = {}
        for entry in json.loads(summary.read_text())["tests"][0]["Results"]:
            rates.setdefault(entry["access"], []).append(float(entry["bwMiB"]))
            seconds.setdefault(entry["access"], []).append(float(entry["wrRdTime"]))
        return {
            kind: (statistics.median(rates[kind]), 1 / max(statistics.median(seconds[kind]), 1e-6))
            for kind in rates
        }


def measure(
    arguments: argparse.Namespace, options: str, folder: Path
) -> dict[tuple[str, bool, str], list[tuple[float, float]]]:
    """What jobs give, by MPI, with twinrun or not, and "write" or "read": one of each job, jobs in turn."""
    lines = [(mpi, preload) for mpi in arguments.mpi for preload in (False, True)]
    rates: dict[tuple[str, bool, str], list[tuple[float, float]]] = {}
    for round_ in range(arguments.jobs):
        at = round_ % len(lines)
        for mpi, preload in [*lines[at:], *lines[:at]]:
            for kind, rate in mpi.job(arguments, options, folder, preload).items():
                rates.setdefault((mpi.name, preload, kind), []).append(rate)
    return rates


def main() -> None:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mpi", type=Mpi.parse, action="append", required=True)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=7)
    parser.add_argument("--repeat", type=int, default=3, help="files that a job writes and reads")
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--limit", type=float, default=600, help="seconds of one job, at most")
    parser.add_argument("--only", default="", help="lines that begin so")
    arguments = parser.parse_args()
    rows = []
    lost = []
    few = []  # lines of small interleaved records below 3
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for name, options, small in CASES:
            if not name.startswith(arguments.only):
                continue
            rates = measure(arguments, options, Path(folder))
            for kind in ("write", "read"):
                row = [f"{name}: `{options}`, {kind}"]
                for mpi in arguments.mpi:
                    plain, ours = (rates[mpi.name, preload, kind] for preload in (False, True))
                    whole, alone = (
                        Spread([x[k] / y[k] for x, y in zip(ours, plain, strict=True)]) for k in range(2)
                    )
                    row += [spread(Spread([x[0] for x in some])) for some in (plain, ours)]
                    row += [spread(whole), spread(alone)]
                    told = (
                        f"{name}, `{options}`, {kind}, {mpi.name}: {spread(whole)}; transfers {spread(alone)}"
                    )
                    if whole.median < 0.95:
                        lost.append(told)
                    elif small and alone.median < 3:
                        few.append(told)
                rows.append(row)
                print(row, file=sys.stderr, flush=True)
    header = ["MiB/s"]
    for mpi in arguments.mpi:
        header += [mpi.name, f"{mpi.name} and twinrun", "times", "transfers, times"]
    print(f"{setting(arguments)}; {arguments.jobs} jobs of {arguments.repeat} files\n")
    print(markdown(header, rows))
    for title, lines in (("Below 0.95", lost), ("Transfers of small interleaved records below 3", few)):
        print(f"\n{title}: {len(lines)}", *(f"- {line}" for line in lines), sep="\n")


if __name__ == "__main__":
    main()
