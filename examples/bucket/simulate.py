"""A simulation that keeps its states in a bucket, and goes on from the newest one, on any machine.

usage: simulate.py URL STEPS [DISTURB]      such as simulate.py s3://results/runs/a 100

DISTURB: what is added to one number of the first state. Then compare two runs:

    twinrun compare s3://results/runs/a s3://results/runs/b
"""

import sys

import numpy as np

import twinrun


def main(url: str, steps: int, disturb: float = 0.0) -> None:
    x = np.linspace(0.0, 1.0, 10_000)
    x[77] += disturb
    with twinrun.Run(url, atol=1e-9, existing="append") as run:
        step = run.latest() or 0
        if step:
            run.restore(step, {"x": x})
            print(f"going on from step {step}")
        while step < steps:
            step += 1
            x = 3.9 * x * (1 - x)
            if step % 10 == 0:
                run.capture(step, {"x": x})  # it is uploaded while the next steps are computed


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *map(float, sys.argv[3:]))
