"""Two runs of repeat.py, compared by PyTorch alone, tensor by tensor; then whether twinrun says the same of them.

python brute_force.py runs/a runs/b --atol 1e-6

What PyTorch says comes from torch.load of the .pt files and arithmetic in float64. twinrun compares the captured histories,
with their metadata and without it, and the checkpoints in each format that both runs have. Exit status: 0 where twinrun's
reports agree with brute force, 1 where one does not.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from repeat import tensors

import twinrun

_SHOWN = 20


@dataclass
class Apart:
    """Of one tensor at one step; `first` is the N-D index of the first element that differs."""

    elements: int
    different: int
    maximum: float
    rms_of_different: float
    sum_of_squares: float
    first: tuple[int, ...] | None


def apart(a: torch.Tensor, b: torch.Tensor, atol: float, rtol: float) -> Apart:
    """Elements differ where |a - b| > atol + rtol |a|; integers and booleans where they are not equal. NaN equals NaN."""
    assert a.shape == b.shape and a.dtype == b.dtype
    x, y = a.double(), b.double()
    distance = (x - y).abs()
    equal = (a == b) | (x.isnan() & y.isnan())
    distance[equal] = 0
    distance[distance.isnan()] = math.inf
    if a.is_floating_point():
        differs = ~equal & (distance.isinf() | (distance > atol + rtol * x.abs()))
    else:
        differs = ~equal
    count = int(differs.sum())
    squares = distance**2
    return Apart(
        elements=a.numel(),
        different=count,
        maximum=float(distance.max()) if a.numel() else 0.0,
        rms_of_different=float(squares[differs].mean().sqrt()) if count else 0.0,
        sum_of_squares=float(squares.sum()),
        first=tuple(differs.nonzero()[0].tolist()) if count else None,
    )


def checkpoints(run: Path) -> dict[int, Path]:
    return {int(path.stem.removeprefix("step-")): path for path in sorted((run / "pt").glob("step-*.pt"))}


def read(path: Path) -> dict[str, torch.Tensor]:
    return dict(tensors(torch.load(path, map_location="cpu")))


def brute_force(a: Path, b: Path, atol: float, rtol: float) -> dict[tuple[int, str], Apart]:
    """{(step, name of the tensor): what sets it apart}, of all steps and tensors."""
    ours, theirs = checkpoints(a), checkpoints(b)
    assert ours and ours.keys() == theirs.keys(), "both runs must have the same steps"
    found = {}
    for step in ours:
        one, two = read(ours[step]), read(theirs[step])
        assert one.keys() == two.keys(), f"step {step}: both runs must have the same tensors"
        found.update({(step, name): apart(one[name], two[name], atol, rtol) for name in one})
    return found


def ways(a: Path, b: Path) -> dict[str, tuple[Path, Path, bool]]:
    """What twinrun compares: {name: (a, b, with metadata)}."""
    found = {}
    if all((run / "history").exists() for run in (a, b)):
        found["history"] = (a / "history", b / "history", True)
        found["history, no metadata"] = (a / "history", b / "history", False)
    for name in ("pt", "safetensors", "dcp"):
        if all((run / name).exists() for run in (a, b)):
            found[name] = (a / name, b / name, False)
    return found


def disagreements(result: twinrun.Comparison, truth: dict[tuple[int, str], Apart]) -> list[str]:
    """Where a report does not say what brute force says, a line each."""
    said = {(f.step, f.field): f for f in result.fields}
    wrong = []
    steps = [step for (step, _), t in truth.items() if t.different]
    first = result.first_divergence
    if result.verdict != ("different" if steps else "same"):
        wrong.append(f"verdict {result.verdict}, and {len(steps)} tensors differ")
    elif steps and (
        first is None or first["step"] != min(steps) or not truth[first["step"], first["field"]].different
    ):
        wrong.append(f"first divergence {first}; brute force: step {min(steps)}")
    wrong += [f"{key} is missing" for key in truth.keys() - said.keys()]
    wrong += [f"{key} is not in the files" for key in said.keys() - truth.keys()]
    for key in sorted(truth.keys() & said.keys()):
        f, t = said[key], truth[key]
        if (f.elements, f.different, f.first_index) != (t.elements, t.different, t.first):
            wrong.append(f"{key}: {f.different} of {f.elements}, first {f.first_index}; brute force: {t}")
        if f.max_abs_diff_is_bound:  # proven from metadata, without the elements
            if f.max_abs_diff is None or not t.maximum <= f.max_abs_diff:
                wrong.append(f"{key}: at most {f.max_abs_diff}; brute force: {t.maximum}")
        elif f.max_abs_diff != t.maximum:
            wrong.append(f"{key}: maximum {f.max_abs_diff}; brute force: {t.maximum}")
        if not math.isclose(f.rms_diff, t.rms_of_different, rel_tol=1e-9):
            wrong.append(f"{key}: RMS {f.rms_diff}; brute force: {t.rms_of_different}")
    return wrong


def by_step(truth: dict[tuple[int, str], Apart], prefix: str) -> list[dict]:
    """A row a step, of the tensors whose names begin with `prefix`."""
    rows = []
    for step in sorted({step for step, _ in truth}):
        some = [t for (s, name), t in truth.items() if s == step and name.startswith(prefix)]
        elements = sum(t.elements for t in some)
        rows.append(
            {
                "step": step,
                "tensors": len(some),
                "tensors_that_differ": sum(t.different > 0 for t in some),
                "elements": elements,
                "different": sum(t.different for t in some),
                "max_abs_diff": max(t.maximum for t in some),
                "rms_diff": math.sqrt(sum(t.sum_of_squares for t in some) / elements),
            }
        )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("a", type=Path)
    parser.add_argument("b", type=Path)
    parser.add_argument("--atol", type=float, default=0.0)
    parser.add_argument("--rtol", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=1, help="times of each are medians of so many")
    parser.add_argument("--json", type=Path, help="all figures")
    options = parser.parse_args()

    seconds: dict[str, list[float]] = {}
    lines = []
    wrong = [
        f"{run}: its history is not what PyTorch saved"  # to the last bit
        for run in (options.a, options.b)
        if twinrun.compare(
            run / "history", run / "pt", atol=0, options=twinrun.CompareOptions(use_metadata=False)
        ).verdict
        != "same"
    ]
    for _ in range(options.rounds):
        began = time.perf_counter()
        truth = brute_force(options.a, options.b, options.atol, options.rtol)
        seconds.setdefault("brute force", []).append(time.perf_counter() - began)
        for name, (a, b, metadata) in ways(options.a, options.b).items():
            result = twinrun.compare(
                a,
                b,
                atol=options.atol,
                rtol=options.rtol,
                options=twinrun.CompareOptions(use_metadata=metadata),
            )
            seconds.setdefault(name, []).append(result.seconds)
            if len(seconds[name]) == 1:
                lines.append({"way": name, "verdict": result.verdict, "bytes_read": result.bytes_read})
                lines[-1]["first_divergence"] = result.first_divergence
                wrong += [f"{name}: {line}" for line in disagreements(result, truth)]
    read_by_torch = sum(p.stat().st_size for run in (options.a, options.b) for p in checkpoints(run).values())
    differ = sum(t.different for t in truth.values())
    lines.insert(
        0, {"way": "brute force", "verdict": "different" if differ else "same", "bytes_read": read_by_torch}
    )
    for line in lines:
        line["seconds"] = statistics.median(seconds[line["way"]])
        line["seconds_from_to"] = [min(seconds[line["way"]]), max(seconds[line["way"]])]
    figures = {
        "atol": options.atol,
        "rtol": options.rtol,
        "tensors": len({name for _, name in truth}),
        "elements": sum(t.elements for t in truth.values()),
        "different": differ,
        "steps": by_step(truth, ""),
        "steps_of_the_model": by_step(truth, "model."),
        "ways": lines,
        "disagreements": wrong,
    }
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1))

    print("step  tensors that differ      elements that differ      max |a-b|  RMS |a-b|")
    for row in figures["steps"]:
        print(
            f"{row['step']:4}  {row['tensors_that_differ']:5} of {row['tensors']:5}  "
            f"{row['different']:12} of {row['elements']:12}  {row['max_abs_diff']:9.3g}  {row['rms_diff']:9.3g}"
        )
    for line in lines:
        print(
            f"{line['way']:22} {line['verdict']:10} {line['bytes_read']:13} bytes read  {line['seconds']:9.4f} s"
        )
    for line in wrong[:_SHOWN]:
        print("disagrees:", line)
    if len(wrong) > _SHOWN:
        print(f"… and {len(wrong) - _SHOWN} more: --json has all")
    print(
        "twinrun disagrees with brute force" if wrong else "twinrun agrees with brute force on every tensor"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
