"""How often reports on ensembles keep their promises, over simulated studies whose truth is known.

python bench/ensemble_rates.py alarms|power|causes|intervals|covariates [--studies N] [--tasks 10,40,200] [--noise normal,...] [--design ...] [--out FILE]

alarms: studies in which nothing is the matter; how many reports claim anything (a trend of a drift is no false claim).
intervals: how many of the 95% intervals of the same studies miss the truth, and how many are not given.
power: the effect that a report says it could have seen is planted in another study; how many reports find it.
covariates: a covariate adds an effect, in units of the noise; how many analyses claim it (0: none is there).
causes: one cause is planted, twice as large as promised; how many reports find it, and how many find it alone.

Each row is printed as it is done, as a row of a table in Markdown. Seeds are fixed: the same command prints the same.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "tests", "python", "support"))

import ensemble_rates as rates


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["alarms", "intervals", "power", "causes", "covariates"])
    parser.add_argument("--studies", type=int, default=100)
    parser.add_argument("--tasks", default="10,40,200")
    parser.add_argument("--noise", default=",".join(rates.NOISES))
    parser.add_argument("--design", default=",".join(rates.DESIGNS))
    parser.add_argument("--cause", default=",".join(rates.CAUSES))
    a = parser.parse_args()
    sizes = [int(n) for n in a.tasks.split(",")]
    begun = time.monotonic()
    if a.what in ("alarms", "intervals"):
        print(
            f"| noise | design | tasks | {'with a false claim' if a.what == 'alarms' else 'interval: missed, not given'} of {a.studies} | which |"
        )
        print("|---|---|---|---|---|")
        for noise in a.noise.split(","):
            for design in a.design.split(","):
                for n in sizes:
                    row = (rates.false_alarms if a.what == "alarms" else rates.missed)(
                        noise, design, n, a.studies
                    )
                    count, which = row
                    said = ", ".join(f"{k} {v}" for k, v in which.most_common())
                    print(f"| {noise} | {design} | {n} | {count} | {said} |", flush=True)
    elif a.what == "covariates":
        effects = (0.0, 0.25, 0.5, 1.0)
        print(f"| resembles the one before | tasks | {' | '.join(f'effect {e:g}' for e in effects)} |")
        print("|---|---|" + "---|" * len(effects))
        for memory in (0.0, 0.5, 0.8):
            for n in sizes:
                said = " | ".join(str(rates.covariates_found(n, e, memory, a.studies)) for e in effects)
                print(f"| {memory:g} | {n} | {said} |", flush=True)
    else:
        print(f"| cause | tasks | found, alone, interval holds, of {a.studies} | others | effect |")
        print("|---|---|---|---|---|")
        for cause in a.cause.split(","):
            for n in sizes:
                found = rates.planted(cause, n, a.studies, 1.0 if a.what == "power" else 2.0)
                if found is None:
                    continue
                others: Counter = found["others"]
                said = ", ".join(f"{k} {v}" for k, v in others.most_common())
                print(
                    f"| {cause} | {n} | {found['found']}, {found['alone']}, {found['holds']} | {said} | {found['effect']} |",
                    flush=True,
                )
    print(f"{time.monotonic() - begun:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
