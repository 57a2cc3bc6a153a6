"""What one more small field costs: whole calls of `twinrun.compare` on many fields, on files and in memory, by the field.

    .venv/bin/python bench/entries_bench.py            # a minute; --quick: seconds
    .venv/bin/python bench/entries_bench.py --only safetensors --json found.json
    .venv/bin/python bench/entries_bench.py --package OLD=/path/site-packages --package NEW=/path/site-packages

Each repetition runs in a process that has imported twinrun and compared the same inputs once. With packages, each repetition asks
a process of each of them in turn, so that what the machine does beside hits all alike. "memory" is what a
process holds more for a further result, by the field.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ATOL = 1e-6


def _state(fields: int, items: int) -> dict:
    import numpy as np

    random = np.random.default_rng(1)
    return {f"field_{at:05d}": random.standard_normal(items).astype("f4") for at in range(fields)}


def _history(folder: Path, name: str, fields: int, items: int) -> None:
    import twinrun

    with twinrun.Run(folder / name, atol=ATOL) as run:
        run.capture(0, _state(fields, items))


def _steps(folder: Path, name: str, fields: int, items: int) -> None:
    import twinrun

    state = _state(10, items)
    with twinrun.Run(folder / name, atol=ATOL) as run:
        for step in range(fields // 10):
            run.capture(step, state)


def _single_steps(folder: Path, name: str, fields: int, items: int) -> None:
    import twinrun

    state = _state(1, items)
    with twinrun.Run(folder / name, atol=ATOL) as run:
        for step in range(fields):
            run.capture(step, state)


def _npy(folder: Path, name: str, fields: int, items: int) -> None:
    import numpy as np

    os.makedirs(folder / name)
    for field, values in _state(fields, items).items():
        np.save(folder / name / f"{field}.npy", values)


def _safetensors(folder: Path, name: str, fields: int, items: int) -> None:
    state = _state(fields, items)
    header, at = {}, 0
    for field, values in state.items():
        header[field] = {"dtype": "F32", "shape": [items], "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / f"{name}.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + b"".join(v.tobytes() for v in state.values()))


def _nothing(folder: Path, name: str, fields: int, items: int) -> None:
    pass


# Fields, numbers of each, how the inputs are written, the paths without the run's name, and options of the call.
CASES: dict[str, tuple[int, int, Callable[[Path, str, int, int], None], str, dict]] = {
    "history, one step": (10_000, 256, _history, "{}", {}),
    "history, one step, rules": (10_000, 256, _history, "{}", {"rules": True}),
    "history, one step, globs": (10_000, 256, _history, "{}", {"fields": ["field_*"]}),
    "history, 1,000 steps": (10_000, 256, _steps, "{}", {}),
    "history, 1,000 steps of one field": (1_000, 256, _single_steps, "{}", {}),
    "history, three steps of one field": (3, 256, _single_steps, "{}", {}),
    "folder of .npy": (6_000, 2048, _npy, "{}", {"atol": ATOL}),
    ".safetensors": (2_000, 256, _safetensors, "{}.safetensors", {"atol": ATOL}),
    "arrays": (2_000, 256, _nothing, "", {"atol": ATOL}),
    # As the state of an optimizer of PyTorch: one dictionary for each parameter.
    "arrays, nested": (9_000, 8, _nothing, "", {"nested": True}),
    "arrays, a list": (2_000, 256, _nothing, "", {"atol": ATOL, "list": True}),
    "arrays, globs": (2_000, 256, _nothing, "", {"atol": ATOL, "fields": ["field_*"]}),
}

_ASKED = """
import gc, json, sys, time
folder, fields, items, path, options = json.loads(sys.stdin.readline())
import twinrun
def now():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
if path:
    a, b = (f"{folder}/{path.format(name)}" for name in "ab")
else:
    import numpy as np
    made = lambda: {f"field_{at:05d}": np.full(items, at, "f4") for at in range(fields)}
    if options.pop("nested", False):
        flat, names = made, ("step", "exp_avg", "exp_avg_sq")
        threes = lambda: zip(*[iter(flat().values())] * 3)
        made = lambda: {"state": {n: dict(zip(names, three)) for n, three in enumerate(threes())}}
    if options.pop("list", False):
        named = made
        made = lambda: list(named().values())
    a, b = made(), made()
if options.pop("rules", False):
    with open(f"{folder}/rules.toml", "w") as file:
        file.write('[[tolerance]]\\nfield = "field_*1"\\natol = 1e-3\\n')
    options["tolerances"] = f"{folder}/rules.toml"
call = lambda: twinrun.compare(a, b, **options)
call()
print("ready", flush=True)
for line in sys.stdin:
    gc.collect()
    if line == "memory\\n":
        found = [call() for _ in range(2)]  # what is freed meanwhile is used again
        held = now()
        found += [call() for _ in range(4)]
        print(json.dumps((now() - held) / 4), flush=True)
        break
    start, used = time.perf_counter(), time.process_time()
    found = call()
    taken = time.perf_counter() - start, time.process_time() - used
    assert found.verdict == "same" and len(found.fields) == fields, (found.verdict, len(found.fields))
    print(json.dumps(taken), flush=True)
    del found
"""


class _Process:
    """A process that compares when it is asked to."""

    def __init__(self, package: str | None, given: list) -> None:
        environment = dict(os.environ)
        if package is not None:
            environment["PYTHONPATH"] = package
        self._process = subprocess.Popen(
            [sys.executable, "-c", _ASKED],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._say(json.dumps(given))

    def _say(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit("a measuring process ended")
        return answer

    def measure(self) -> list[float]:
        """Seconds, seconds of processors."""
        return json.loads(self._say("go"))

    def memory(self) -> float:
        """Bytes that a result holds."""
        return json.loads(self._say("memory"))

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def measured(
    case: str, packages: dict[str, str | None], repeat: int, scale: int
) -> tuple[dict[str, list[list[float]]], dict[str, float]]:
    """The repetitions of a case, and the bytes that a result holds, by package."""
    fields, items, write, path, options = CASES[case]
    fields = max(1, fields // scale)
    with tempfile.TemporaryDirectory() as name:
        for run in "ab":
            write(Path(name), run, fields, items)
        given = [name, fields, items, path, options]
        processes = {label: _Process(package, given) for label, package in packages.items()}
        found: dict[str, list[list[float]]] = {label: [] for label in packages}
        for _ in range(repeat):
            for label, process in processes.items():
                found[label].append(process.measure())
        memory = {label: process.memory() for label, process in processes.items()}
        for process in processes.values():
            process.end()
    return found, memory


def main(arguments: list[str]) -> None:
    """Measures and prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fiftieth of the fields, three repetitions")
    parser.add_argument("--only", help="cases whose names contain this")
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--json", type=Path, help="where all repetitions go")
    parser.add_argument("--package", action="append", default=[], help="NAME=FOLDER that holds twinrun")
    given = parser.parse_args(arguments)
    packages: dict[str, str | None] = dict(one.split("=", 1) for one in given.package) or {"twinrun": None}
    results = {}
    print("| case | fields | package | us a field | processors, us | memory, bytes a field |")
    print("|---|---:|---|---:|---:|---:|")
    for case in CASES:
        if given.only is not None and given.only not in case:
            continue
        scale = 50 if given.quick else 1
        found, memory = measured(case, packages, 3 if given.quick else given.repeat, scale)
        fields = max(1, CASES[case][0] // scale)
        for label, taken in found.items():
            each = [
                [1e6 * seconds / fields for seconds in part] for part in list(zip(*taken, strict=True))[:2]
            ]
            middle = [statistics.median(part) for part in each]
            held = memory[label] / fields
            print(
                f"| {case} | {fields} | {label} | {middle[0]:.2f} ({min(each[0]):.2f} to {max(each[0]):.2f}) "
                f"| {middle[1]:.2f} | {held:.0f} |",
                flush=True,
            )
        results[case] = found
    if given.json is not None:
        given.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
