"""Collective writes and reads of parallel HDF5 by its drivers mpio and subfiling, and by twinrun's, as a table of Markdown.

python bench/hdf5_driver_table.py --hdf5 PREFIX --driver build/release/bin/hdf5/libtwinrun_hdf5.so --mpicc MPICC --mpiexec MPIEXEC [--ranks 4]

PREFIX: of tools/build_hdf5.sh. One process group runs all of a line: the drivers take turns, and each writes a new file and reads it, from
before H5Fcreate or H5Fopen to after H5Fclose of the slowest rank. Files stay in the page cache. MB/s: medians, with least and most. Sub-files
are as many and their stripes as long with subfiling and with twinrun. The last columns pair repetitions: how many times the bandwidth
twinrun has with sub-files, and with one file, with an interval of 95%.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from measure import Spread
from mpi_programs import build, parser_of, run, setting
from table import markdown, spread

from twinrun.ensemble.intervals import ratio_of_means

# Pattern, and bytes of a rank.
CASES = (
    ("slab", 1_000_000),
    ("slab", 16_000_000),
    ("rows", 1_000_000),
    ("rows", 4_000_000),
    ("block", 1_000_000),
    ("block", 4_000_000),
    ("chunks", 16_000_000),
)
METHODS = ("mpio", "subfiling", "twinrun", "twinrun-sub-files")


def main() -> None:
    """Measures, and prints the table."""
    parser = parser_of(__doc__, ranks=4, repeat=11)
    parser.add_argument("--hdf5", type=Path, required=True)
    parser.add_argument("--driver", type=Path, required=True)
    parser.add_argument("--files", type=int, default=2, help="sub-files")
    parser.add_argument("--stripe", type=int, default=1 << 20, help="bytes")
    parser.add_argument("--only", default="", help="patterns that begin so")
    arguments = parser.parse_args()
    os.environ["HDF5_PLUGIN_PATH"] = str(arguments.driver.resolve().parent)
    os.environ["H5FD_SUBFILING_IOC_PER_NODE"] = str(arguments.files)
    os.environ["H5FD_SUBFILING_STRIPE_SIZE"] = str(arguments.stripe)
    library = next(arguments.hdf5.resolve().glob("lib*/libhdf5.so"))
    flags = [f"-I{arguments.hdf5.resolve()}/include", str(library), f"-Wl,-rpath,{library.parent}"]
    rows = []
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory(dir=arguments.folder) as data:
        program = build(arguments.mpicc, "hdf5_driver_speed.c", folder, *flags)
        for pattern, size in CASES:
            if not pattern.startswith(arguments.only):
                continue
            rates: dict[str, list[float]] = {}
            words = [data, pattern, size, arguments.repeat, arguments.files, arguments.stripe]
            for method, kind, rate in run(arguments, program, words):
                rates.setdefault(f"{method} {kind}", []).append(float(rate))
            for kind in ("write", "read"):
                of = {method: rates[f"{method} {kind}"] for method in METHODS}
                rows.append(
                    [
                        f"{pattern}, {size / 1e6:g} MB a rank, {kind}",
                        *(spread(Spread([x / 1e6 for x in values])) for values in of.values()),
                        ratio_of_means(of["twinrun-sub-files"], of["subfiling"]).text(),
                        ratio_of_means(of["twinrun"], of["mpio"]).text(),
                    ]
                )
            print(*rows[-2:], sep="\n", file=sys.stderr)
    print(
        f"{setting(arguments)}; {arguments.files} sub-files, stripes of {arguments.stripe} bytes; {arguments.repeat} repetitions\n"
    )
    print(
        markdown(
            [
                "MB/s",
                *("HDF5's mpio", "HDF5's subfiling", "twinrun, one file", "twinrun, sub-files"),
                *("sub-files: twinrun is, times", "one file: twinrun is, times"),
            ],
            rows,
        )
    )


if __name__ == "__main__":
    main()
