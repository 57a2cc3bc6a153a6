"""What capturing every step costs minihacc: runs with and without it, in turns; medians of the whole run's time.

python bench/capture_cost.py --minihacc build/release/bin/minihacc [--particles N] [--steps N] [--rounds N] [--json FILE]
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

ARMS: dict[str, list[str] | None] = {
    "no capture": None,
    "digests of every step": ["mode=digests"],
    "full data of every step": ["mode=full"],
    "digests, compared with a reference": ["mode=digests", "reference=@"],
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minihacc", required=True)
    parser.add_argument("--particles", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where histories are written (default: a temporary folder)")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="twinrun-cost-", dir=arguments.folder)
    every = ",".join(str(step) for step in range(arguments.steps + 1))
    base = [
        arguments.minihacc,
        f"--particles={arguments.particles}",
        f"--steps={arguments.steps}",
        "--deterministic",
        "--quiet",
    ]
    reference = os.path.join(folder, "reference")

    def run(settings: list[str] | None, history: str) -> float:
        command = list(base)
        if settings is not None:
            command += [f"--history={history}", f"--capture={every}"]
            command += [f"--setting={setting.replace('@', reference)}" for setting in settings]
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - start

    times: dict[str, list[float]] = {arm: [] for arm in ARMS}
    try:
        run(["mode=digests"], reference)
        for round_number in range(-1, arguments.rounds):
            # Another order each time, so that no arm always follows the same one.
            arms = list(ARMS)
            shift = round_number % len(arms)
            for arm in arms[shift:] + arms[:shift]:
                history = os.path.join(folder, "run")
                seconds = run(ARMS[arm], history)
                shutil.rmtree(history, ignore_errors=True)
                if round_number >= 0:
                    times[arm].append(seconds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    plain = statistics.median(times["no capture"])
    print(f"{arguments.particles} particles, {arguments.steps} steps, {arguments.rounds} rounds in turns")
    for arm, values in times.items():
        median = statistics.median(values)
        ratios = [x / y for x, y in zip(values, times["no capture"], strict=True)]
        print(
            f"{arm:38} {median:8.2f} s  ({min(values):.2f} to {max(values):.2f})  {median / plain:5.3f} of the plain run; "
            f"by rounds {min(ratios):.3f} to {max(ratios):.3f}"
        )
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(times, file, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
