#!/usr/bin/env python3
"""How often acceptances reject right runs, and find wrong ones: the tables of docs/reference/acceptance.md.

python bench/acceptance_rates.py alarms|found|published [--judgements N] [--climates N] [--design 20+3,...]
python bench/acceptance_rates.py digits [--judgements N] [--climates N] [--design 20+3,...]
python bench/acceptance_rates.py metadata [--climates N] [--design 10+3]

Runs are of Lorenz 96 (tests/python/support/acceptance_rates.py). Judgements share no run. `digits` is of right
runs that were written as texts of six digits, so that at first all reference runs are equal. `metadata` counts at how many growing
steps the bounds that residues of 4 bits give would decide whether new runs are within the bound of growth.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/python/support"))

import acceptance_rates as model
import numpy as np

from twinrun.acceptance.growth import grown
from twinrun.acceptance.samples import Sample

RELATIVE = {"relative": 1e-14}
ULP = {"ulp": 1}
ALL = (*model.GROWING, *model.SETTLED)
NULLS = {
    "the same code": (model.Code(), RELATIVE, RELATIVE),
    "another order of sums": (model.Code("second"), RELATIVE, RELATIVE),
    "another order of sums, 1 ulp": (model.Code("second"), ULP, ULP),
    "f32, both perturbed by 1e-6": (model.Code(precision="f4"), {"relative": 1e-6}, {"relative": 1e-6}),
}
WRONG = (8 * (1 + 1e-9), 8 * (1 + 1e-6), 8.008, 8.08, 8.4)


def designs(text: str) -> list[tuple[int, int]]:
    return [(int(a), int(b)) for a, _, b in (one.partition("+") for one in text.split(","))]


def rows(
    code: model.Code,
    own: dict,
    other: dict,
    design: tuple[int, int],
    steps: tuple[int, ...],
    judgements: int,
    climates: int,
):
    """Ensembles of one design, each of runs of its own."""
    n, m = design
    each = -(-judgements // climates)
    for climate in range(climates):
        reference = model.runs(model.Code(), each * n, climate, own, steps)
        new = model.runs(code, each * m, climate, other, steps, first=1 << 30)
        for k in range(each):
            yield model.together(reference, new, slice(k * n, (k + 1) * n), slice(k * m, (k + 1) * m))


def alarms(args: argparse.Namespace) -> None:
    print(
        "| new runs | design | rejected | by growth | by distribution | undecided |\n|---|---|---|---|---|---|"
    )
    for name, (code, own, other) in NULLS.items():
        for design in designs(args.design):
            found = [
                model.judged(states, design[0])
                for states in rows(code, own, other, design, ALL, args.judgements, args.climates)
            ]
            grew = sum(any(e.kind == "growth" for e in f.excesses) for f in found)
            moved = sum(f.p <= f.alpha for f in found)
            both = sum(f.verdict == "rejected" for f in found)
            open_ = sum(f.verdict == "undecided" for f in found)
            print(
                f"| {name} | {design[0]} + {design[1]} | {model.rate(both, len(found))} | {grew} | {moved} | {open_} |",
                flush=True,
            )


def digits(args: argparse.Namespace) -> None:
    print("| `--rounding` | design | rejected | by equal reference runs | by growth |\n|---|---|---|---|---|")
    code, own, other = NULLS["another order of sums"]
    for rounding in (0.0, 5e-6):
        for design in designs(args.design):
            seen = [
                model.judged(model.written(states, 6), design[0], rounding=max(rounding, 2.0**-53))
                for states in rows(code, own, other, design, ALL, args.judgements, args.climates)
            ]
            both = sum(f.verdict == "rejected" for f in seen)
            kinds = [sum(any(e.kind == k for e in f.excesses) for f in seen) for k in ("equal", "growth")]
            said = f"{model.rate(both, len(seen))} | {kinds[0]} | {kinds[1]}"
            print(f"| {rounding:g} | {design[0]} + {design[1]} | {said} |", flush=True)


def found(args: argparse.Namespace) -> None:
    print("| constant | design | all steps: rejected | settled steps only: rejected |\n|---|---|---|---|")
    for forcing in WRONG:
        for design in designs(args.design):
            seen = []
            for steps in (ALL, model.SETTLED):
                made = rows(
                    model.Code(forcing=forcing),
                    RELATIVE,
                    RELATIVE,
                    design,
                    steps,
                    args.judgements,
                    args.climates,
                )
                each = [model.judged(states, design[0]).verdict == "rejected" for states in made]
                seen.append(model.rate(sum(each), len(each)))
            print(
                f"| 8 (1 + {forcing / 8 - 1:.1g}) | {design[0]} + {design[1]} | {seen[0]} | {seen[1]} |",
                flush=True,
            )


def published(args: argparse.Namespace) -> None:
    print("| constant | design | here | ECT's rule | Kolmogorov-Smirnov with BH |\n|---|---|---|---|---|")
    for forcing in (8.0, *WRONG[2:]):
        for design in designs(args.design):
            hits, count = [0, 0, 0], 0
            for states in rows(
                model.Code(forcing=forcing),
                RELATIVE,
                RELATIVE,
                design,
                model.SETTLED,
                args.judgements,
                args.climates,
            ):
                count += 1
                hits[0] += model.judged(states, design[0]).verdict == "rejected"
                hits[1] += model.ect(states, design[0])
                hits[2] += model.smirnov(states, design[0])
            said = " | ".join(model.rate(h, count) for h in hits)
            name = "8, right" if forcing == 8 else f"8 (1 + {forcing / 8 - 1:.1g})"
            print(f"| {name} | {design[0]} + {design[1]} | {said} |", flush=True)


def cell_bounds(x: np.ndarray, spacing: float) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of the distances between all runs, from cells whose differences are known modulo 16 (spec/digest.md, section 10)."""
    cells = np.floor(x / spacing)
    true = cells[:, None] - cells[None]
    known = (true + 8) % 16 - 8
    low = np.sqrt((np.maximum(np.abs(known) - 1, 0) ** 2).mean(axis=2)) * spacing
    high = np.sqrt(((np.abs(known) + 1) ** 2).mean(axis=2)) * spacing
    high[(known != true).any(axis=2)] = np.inf  # the digests do not prove the differences
    for bound in (low, high):
        np.fill_diagonal(bound, 0)
    return low, high


def farthest(distances: np.ndarray, references: int) -> tuple[float, float]:
    """Of the farthest reference run and the farthest new run: the distance to the reference runs."""
    count = len(distances)
    sample = Sample(0, "x", np.zeros((count, 3)), np.square(distances), 1.0, 0.0, 1)
    g = grown(sample, references, 10.0, 0.0)
    return g.largest, max(g.new)


def metadata(args: argparse.Namespace) -> None:
    steps = tuple(range(5, 400, 5))
    print(
        "| new runs | tolerance | growing steps | beyond, by data | beyond | within |\n|---|---|---|---|---|---|"
    )
    codes = {
        "another order of sums": model.Code("second"),
        "8 (1 + 1e-09)": model.Code(forcing=WRONG[0]),
    }
    n, m = designs(args.design)[0]
    for name, code in codes.items():
        counts = {tolerance: [0, 0, 0, 0] for tolerance in (1e-12, 1e-9, 1e-6, 1e-3)}
        for climate in range(args.climates):
            own = model.runs(model.Code(), n, climate, RELATIVE, steps)
            new = model.runs(code, m, climate, RELATIVE, steps, first=1 << 30)
            for x in model.together(own, new, slice(None), slice(None)).values():
                exact = np.sqrt(((x[:, None] - x[None]) ** 2).mean(axis=2))
                if np.median(exact[:n, :n][np.triu_indices(n, 1)]) > 0.2:  # 5% of the variation of a variable
                    continue
                reference, far = farthest(exact, n)
                for tolerance, count in counts.items():
                    low, high = cell_bounds(x, 2.0 ** np.floor(np.log2(tolerance)) / 8)
                    assert (low <= exact * (1 + 1e-9)).all() and (exact <= high * (1 + 1e-9)).all()
                    count[0] += 1
                    count[1] += far > 10 * reference
                    count[2] += farthest(low, n)[1] > 10 * farthest(high, n)[0]
                    count[3] += farthest(high, n)[1] <= 10 * farthest(low, n)[0]
        for tolerance, count in counts.items():
            print(f"| {name} | {tolerance:g} | " + " | ".join(map(str, count)) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", choices=["alarms", "digits", "found", "published", "metadata"])
    parser.add_argument("--judgements", type=int, default=200, help="of each row")
    parser.add_argument("--climates", type=int, default=5, help="states at which runs begin")
    parser.add_argument("--design", default="5+3,10+3,20+1,20+3", help="reference runs + new runs")
    args = parser.parse_args()
    tables = {
        "alarms": alarms,
        "digits": digits,
        "found": found,
        "published": published,
        "metadata": metadata,
    }
    tables[args.table](args)


if __name__ == "__main__":
    main()
