"""Times of other programs that compare files, beside twinrun, on the same values: the table of docs/howto/tools.md.

usage: peers_table.py [--elements N] [--repeat N] [--folder FOLDER]

Two runs of four f32 fields, as NetCDF-4 and as VTK image files; tolerance 1e-6. Programs that are not there are left
out, and named: h5diff, cdo, fieldcompare. NumPy reads with h5py. Writing the files needs netCDF4. All lines
are interleaved; a line's time is that of a process from its start to its end, files in the page cache.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

NAMES = ("density", "energy", "pressure", "velocity")
NUMPY = f"""
import sys, h5py, numpy as np
with h5py.File(sys.argv[1]) as a, h5py.File(sys.argv[2]) as b:
    for name in {NAMES!r}:
        np.testing.assert_allclose(a[name][...], b[name][...], rtol=0, atol=1e-6)
"""


def write_netcdf(path: Path, fields: dict[str, np.ndarray]) -> None:
    import netCDF4

    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("y", len(fields["density"]) // 1000)
        file.createDimension("x", 1000)
        for name, values in fields.items():
            variable = file.createVariable(name, "f4", ("y", "x"), contiguous=True)
            variable[:] = values.reshape(-1, 1000)


def write_vti(path: Path, fields: dict[str, np.ndarray]) -> None:
    count = len(fields["density"])
    arrays, offset = "", 0
    for name, values in fields.items():
        arrays += f'<DataArray type="Float32" Name="{name}" format="appended" offset="{offset}"/>\n'
        offset += 8 + values.nbytes
    extent = f"0 999 0 {count // 1000 - 1} 0 0"
    head = f"""<?xml version="1.0"?>
<VTKFile type="ImageData" version="1.0" byte_order="LittleEndian" header_type="UInt64">
<ImageData WholeExtent="{extent}" Origin="0 0 0" Spacing="1 1 1"><Piece Extent="{extent}"><PointData>
{arrays}</PointData><CellData/></Piece></ImageData>
<AppendedData encoding="raw">
_"""
    with path.open("wb") as file:
        file.write(head.encode())
        for values in fields.values():
            file.write(struct.pack("<Q", values.nbytes) + values.astype("<f4").tobytes())
        file.write(b"\n</AppendedData>\n</VTKFile>\n")


def commands(folder: Path, b: str) -> dict[str, list[str]]:
    nc = [str(folder / "a.nc"), str(folder / f"{b}.nc")]
    vti = [str(folder / "a.vti"), str(folder / f"{b}.vti")]
    ours = [sys.executable, "-m", "twinrun", "compare"]
    return {
        "`h5diff -d 1e-6`": ["h5diff", "-d", "1e-6", *nc],
        "`cdo diffn,abslim=1e-6`": ["cdo", "-s", "diffn,abslim=1e-6", *nc],
        "`numpy.testing.assert_allclose`": [sys.executable, "-c", NUMPY, *nc],
        "`twinrun compare --atol 1e-6`, NetCDF-4": [*ours, *nc, "--atol", "1e-6"],
        "`fieldcompare file`, VTK": ["fieldcompare", "file", *vti, "-rtol", "0", "-atol", "1e-6"],
        "`twinrun compare --atol 1e-6`, VTK": [*ours, *vti, "--atol", "1e-6"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--elements", type=int, default=4_000_000, help="of each field")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument(
        "--without", nargs="*", default=[], metavar="PROGRAM", help="what takes too long here"
    )
    given = parser.parse_args()
    random = np.random.default_rng(1)
    a = {name: random.normal(size=given.elements).astype(np.float32) for name in NAMES}
    one = {name: values.copy() for name, values in a.items()}
    one["pressure"][given.elements // 2] += 1e-3
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        for run, fields in (("a", a), ("same", a), ("one", one)):
            write_netcdf(folder / f"{run}.nc", fields)
            write_vti(folder / f"{run}.vti", fields)
        lines = [(line, b, words) for b in ("same", "one") for line, words in commands(folder, b).items()]
        left_out = sorted(
            {words[0] for _, _, words in lines if shutil.which(words[0]) is None} | {*given.without}
        )
        lines = [each for each in lines if each[2][0] not in left_out]
        times: dict[tuple[str, str], list[float]] = {}
        said: dict[tuple[str, str], tuple[int, str]] = {}
        for _ in range(given.repeat + 1):
            for line, b, words in lines:
                start = time.perf_counter()
                done = subprocess.run(words, capture_output=True, text=True, check=False)
                times.setdefault((line, b), []).append(time.perf_counter() - start)
                said[line, b] = done.returncode, (done.stdout + done.stderr).strip()
    print("| | the same: s | status | one element differs: s | status |\n|---|---:|---:|---:|---:|")
    for line in dict.fromkeys(line for line, _, _ in lines):
        cells = []
        for b in ("same", "one"):
            kept = times[line, b][1:]  # the first round warms the page cache
            cells += [
                f"{statistics.median(kept):.2f} ({min(kept):.2f} to {max(kept):.2f})",
                str(said[line, b][0]),
            ]
        print(f"| {line} | {' | '.join(cells)} |")
    print(f"\nnot there: {', '.join(left_out) or 'none'}")
    for (line, b), (_, text) in said.items():
        if b == "one":
            print(f"\n== {line}\n{text[-700:]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
