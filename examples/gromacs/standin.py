"""Stands for `gmx mdrun` where there is no GROMACS: uses a fixed amount of CPU time, and leaves a log like its.

    standin.py -quiet mdrun -s every-10.tpr -nsteps 1000 -ntomp 2 -cpt 0.005 ...

1000 steps are 0.1 s of CPU time, on one thread whatever -ntomp says: what slows it is what takes its core. Files are written as
often as the .tpr says, and a checkpoint each 0.3 s.
"""

from __future__ import annotations

import os
import sys
import time

words = sys.argv[sys.argv.index("mdrun") + 1 :]


def option(name: str, default: str) -> str:
    return words[words.index(name) + 1] if name in words else default


steps = int(option("-nsteps", "1000"))
with open(option("-s", "every-0.tpr")) as file:
    every = int(file.read())
checkpoint = float(option("-cpt", "15")) * 60  # minutes
seconds = steps * 1e-4
begin = time.perf_counter()
used = time.process_time()
written = checkpoints = 0
with open("md.log", "w") as log, open("traj.trr", "wb") as trajectory:
    print(
        f"Command line:\n  gmx mdrun {' '.join(words)}\n   nstxout                        = {every}", file=log
    )
    while (share := (time.process_time() - used) / seconds) < 1:
        step = int(share * steps)
        if every and step // every > written:
            written = step // every
            trajectory.write(bytes(10_000))
        if 0 < checkpoint <= (time.perf_counter() - begin) / (checkpoints + 1):
            checkpoints += 1
            with open("state.cpt", "wb") as state:
                state.write(bytes(40_000))
                os.fsync(state.fileno())
            print(f"Writing checkpoint, step {step} at now", file=log)
    took = time.perf_counter() - begin
    print(f"Performance: {steps * 0.002e-3 * 86400 / took:12.3f} {took:12.3f}", file=log)
