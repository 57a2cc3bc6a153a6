"""Collective MPI-IO of an unchanged program, with libtwinrun_mpiio.so preloaded and without, as a table of Markdown.

python bench/mpiio_table.py --library build/release/bin/libtwinrun_mpiio.so --mpicc MPICC --mpiexec MPIEXEC [--ranks 8] [--folder DIR]

One process group runs all of a line: it opens a file with twinrun and without (hint twinrun_enable) in turns, writes a new file and reads
it, each from before MPI_File_open to after MPI_File_close of the slowest rank. Files stay in the page cache. MB/s: medians, with least and
most. The last column pairs repetitions: how many times the bandwidth twinrun has, with an interval of 95%.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from measure import Spread
from mpi_programs import build, parser_of, run, setting
from table import markdown, spread

from twinrun.ensemble.intervals import ratio_of_means

# Pattern, and bytes of a rank.
CASES = (
    ("records-8", 200_000),
    ("records-38", 200_000),
    ("records-38", 2_000_000),
    ("records-38", 10_000_000),
    ("records-512", 10_000_000),
    ("records-65536", 20_000_000),
    ("block", 2_000_000),
    ("block", 16_000_000),
    ("halo", 16_000_000),
    ("contiguous", 200_000),
    ("contiguous", 32_000_000),
    ("calls-512", 512_000),
    ("calls-4096", 4_096_000),
    ("calls-65536", 16_384_000),
)


def measure(arguments: argparse.Namespace, program: Path, pattern: str, size: int) -> dict[str, list[float]]:
    """Rates by "METHOD read" and "METHOD write", in the order of repetitions."""
    words = [arguments.folder / "mpiio-table.data", pattern, size, arguments.repeat]
    rates: dict[str, list[float]] = {}
    for method, kind, rate in run(arguments, program, words, preload=arguments.library):
        rates.setdefault(f"{method} {kind}", []).append(float(rate))
    return rates


def main() -> None:
    """Measures, and prints the table."""
    parser = parser_of(__doc__, ranks=8, repeat=11)
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--only", default="", help="patterns that begin so")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        program = build(arguments.mpicc, "mpiio_speed.c", folder)
        for pattern, size in CASES:
            if not pattern.startswith(arguments.only):
                continue
            rates = measure(arguments, program, pattern, size)
            for kind in ("write", "read"):
                ours, plain = rates[f"twinrun {kind}"], rates[f"plain {kind}"]
                rows.append(
                    [
                        f"{pattern}, {size / 1e6:g} MB a rank, {kind}",
                        *(spread(Spread([x / 1e6 for x in values])) for values in (plain, ours)),
                        ratio_of_means(ours, plain).text(),
                    ]
                )
            print(*rows[-2:], sep="\n", file=sys.stderr)
    print(f"{setting(arguments)}; {arguments.repeat} repetitions\n")
    print(markdown(["", "plain MPI-IO, MB/s", "twinrun, MB/s", "twinrun is, times"], rows))


if __name__ == "__main__":
    main()
