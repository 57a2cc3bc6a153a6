#!/usr/bin/env python3
"""How often acceptances reject right runs, and find wrong ones: the tables of docs/acceptance.md.

python bench/acceptance_rates.py alarms|found|published [--judgements N] [--climates N] [--design 20+3,...]

Runs are of Lorenz 96 (tests/python/support/acceptance_rates.py). Judgements share no run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/python/support"))

import acceptance_rates as model

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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", choices=["alarms", "found", "published"])
    parser.add_argument("--judgements", type=int, default=200, help="of each row")
    parser.add_argument("--climates", type=int, default=5, help="states at which runs begin")
    parser.add_argument("--design", default="5+3,10+3,20+1,20+3", help="reference runs + new runs")
    args = parser.parse_args()
    {"alarms": alarms, "found": found, "published": published}[args.table](args)


if __name__ == "__main__":
    main()
