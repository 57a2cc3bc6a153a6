"""From start to exit: the commands that people type most, beside Python's own start, `cmp` and `h5diff`.

    .venv/bin/python bench/startup_bench.py              # --repeat N, --json FILE

Each line starts a process and waits for its end; all lines run interleaved. Milliseconds: the median, with the fastest and the
slowest, and the median of the processor's time. The files are small: 1,000 numbers, or three steps of them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import twinrun


def inputs(folder: Path) -> dict[str, list[str]]:
    """Arguments of `compare` by the kind of what they name: two equal runs."""
    x = np.random.default_rng(1).standard_normal(1000)
    header = json.dumps({"x": {"dtype": "F64", "shape": [1000], "data_offsets": [0, 8000]}}).encode()
    for name in "ab":
        np.save(folder / f"{name}.npy", x)
        x.tofile(folder / f"{name}.raw")
        (folder / f"{name}.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + x.tobytes())
        with twinrun.Run(str(folder / name), atol=1e-6) as run:
            for step in range(3):
                run.capture(step, {"x": x})
    found = {
        "histories": ["a", "b"],
        ".npy": ["a.npy", "b.npy"],
        ".safetensors": ["a.safetensors", "b.safetensors"],
    }
    found["raw"] = ["a.raw", "b.raw", "--dtype", "f64"]
    try:
        import h5py
    except ModuleNotFoundError:
        return found
    for name in "ab":
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file["x"] = x
    return {**found, "HDF5": ["a.h5", "b.h5"]}


def commands(kinds: dict[str, list[str]]) -> dict[str, list[str]]:
    """What is measured, by name."""
    twinrun_program = str(Path(sys.executable).with_name("twinrun"))
    lines = {"python -c pass": [sys.executable, "-c", "pass"]}
    lines |= {
        f"twinrun {word}": [twinrun_program, *word.split()]
        for word in ("--version", "--help", "compare --help")
    }
    lines |= {
        f"twinrun compare, {kind}": [twinrun_program, "compare", *words] for kind, words in kinds.items()
    }
    lines["python -c 'import numpy'"] = [sys.executable, "-c", "import numpy"]
    if "HDF5" in kinds:
        lines["python -c 'import h5py'"] = [sys.executable, "-c", "import h5py"]
        if program := shutil.which("h5diff"):
            lines["h5diff"] = [program, "a.h5", "b.h5"]
    if program := shutil.which("cmp"):
        lines["cmp"] = [program, "a.npy", "b.npy"]
    return lines


def once(words: list[str], folder: Path) -> tuple[float, float]:
    """Seconds from start to exit, and of processors."""
    start = time.perf_counter()
    process = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    taken = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(words)}: status {process.returncode}")
    return taken, used.ru_utime + used.ru_stime


def main(arguments: list[str]) -> None:
    """Measures and prints a table in Markdown; --json keeps every repetition."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeat", type=int, default=21)
    parser.add_argument("--json", type=Path, help="where all repetitions go")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = commands(inputs(folder))
        seconds: dict[str, list[tuple[float, float]]] = {line: [] for line in lines}
        for words in lines.values():  # files into the page cache, and modules compiled
            once(words, folder)
        for _ in range(given.repeat):
            for line, words in lines.items():
                seconds[line].append(once(words, folder))
    print("| line | ms | processor, ms |", "|---|---:|---:|", sep="\n")
    for line, found in seconds.items():
        walls = sorted(1e3 * wall for wall, _ in found)
        used = 1e3 * statistics.median(cpu for _, cpu in found)
        print(
            f"| `{line}` | {statistics.median(walls):.0f} ({walls[0]:.0f} to {walls[-1]:.0f}) | {used:.0f} |"
        )
    if given.json is not None:
        given.json.write_text(json.dumps(seconds))


if __name__ == "__main__":
    main(sys.argv[1:])
