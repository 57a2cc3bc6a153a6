#!/usr/bin/env python3
"""Makes a small box of water for GROMACS from files that come with it, relaxes it, and leaves what a study needs.

    python prepare.py water                         # gmx is found on PATH
    python prepare.py water --unpacked FOLDER       # or in what tools/unpack_packages.sh FOLDER gromacs left
    python prepare.py water --stand-in              # without GROMACS: standin.py, which burns time

The folder afterwards has
    gmx             runs GROMACS, wherever it lies: the studies' command
    every-10.tpr    the run whose coordinates, velocities and energies go to files each 10 steps
    every-0.tpr     the same run, of which no file but the log is written
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

TOPOLOGY = """#include "amber99sb-ildn.ff/forcefield.itp"
#include "amber99sb-ildn.ff/spce.itp"
[ system ]
water
[ molecules ]
"""
COMMON = "cutoff-scheme=Verlet coulombtype=PME rcoulomb=0.9 rvdw=0.9 constraints=h-bonds pbc=xyz"
MINIMISE = f"{COMMON} integrator=steep nsteps=200 emtol=500"
DYNAMICS = f"{COMMON} integrator=md dt=0.002 tcoupl=v-rescale tc-grps=System tau-t=0.5 ref-t=300 ld-seed=1"
RELAX = f"{DYNAMICS} nsteps=500 gen-vel=yes gen-temp=300 gen-seed=1 nstlog=0 nstenergy=0 nstcalcenergy=100"
FILES = "nstxout=10 nstvout=10 nstxout-compressed=10 nstenergy=10 nstlog=10 nstcalcenergy=10"
NO_FILES = "nstxout=0 nstvout=0 nstxout-compressed=0 nstenergy=0 nstlog=0 nstcalcenergy=10"


def unpacked_environment(folder: Path) -> dict[str, str]:
    """What programs of an unpacked package need to find their libraries and data."""
    libraries = sorted({str(p.parent) for p in (folder / "usr" / "lib").rglob("*.so.*")})
    return {
        "LD_LIBRARY_PATH": ":".join(libraries),
        "GMXLIB": str(folder / "usr" / "share" / "gromacs" / "top"),
    }


def write_program(folder: Path, environment: dict[str, str], words: list[str]) -> Path:
    """FOLDER/gmx: the program with its environment."""
    wrapper = folder / "gmx"
    exports = "".join(f"export {k}={shlex.quote(v)}\n" for k, v in environment.items())
    # GROMACS ends where OMP_NUM_THREADS is another number than -ntomp, which the studies give.
    set_up = f"{exports}export GMX_MAXBACKUP=-1\nunset OMP_NUM_THREADS\n"
    wrapper.write_text(f'#!/bin/sh\n{set_up}exec {shlex.join(words)} "$@"\n')
    wrapper.chmod(0o755)
    return wrapper


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--unpacked", type=Path, help="folder that tools/unpack_packages.sh left")
    parser.add_argument("--stand-in", action="store_true", help="no GROMACS: a program that only takes time")
    parser.add_argument(
        "--box", type=float, default=2.1, help="nm, at least 2.1 (default: about 300 molecules)"
    )
    arguments = parser.parse_args()
    folder: Path = arguments.folder.resolve()
    if arguments.stand_in:
        folder.mkdir(parents=True, exist_ok=True)
        program = Path(__file__).resolve().with_name("standin.py")
        write_program(folder, {}, [sys.executable, "-I", "-S", str(program)])
        for every in (0, 10):
            (folder / f"every-{every}.tpr").write_text(f"{every}\n")
        print(f"{folder}: gmx (a stand-in), every-10.tpr, every-0.tpr")
        return 0
    environment: dict[str, str] = {}
    if arguments.unpacked:
        program = arguments.unpacked.resolve() / "usr" / "bin" / "gmx"
        environment = unpacked_environment(arguments.unpacked.resolve())
    else:
        program = Path(shutil.which("gmx") or "gmx")
    if not program.exists():
        print("prepare: there is no gmx: apt-get install gromacs, or --unpacked FOLDER", file=sys.stderr)
        return 2
    folder.mkdir(parents=True, exist_ok=True)
    wrapper = write_program(folder, environment, [str(program)])

    def gmx(*words: object) -> None:
        done = subprocess.run(
            [wrapper, "-quiet", *map(str, words)], cwd=folder, capture_output=True, text=True
        )
        if done.returncode != 0:
            print(done.stdout[-2000:], done.stderr[-4000:], sep="\n", file=sys.stderr)
            raise SystemExit(f"prepare: gmx {words[0]} failed (above)")

    def settings(name: str, text: str) -> str:
        (folder / name).write_text("".join(line.replace("=", " = ") + "\n" for line in text.split()))
        return name

    def compile_run(settings_text: str, coordinates: str, output: str, *more: str) -> None:
        gmx("grompp", "-f", settings("run.mdp", settings_text), "-c", coordinates, "-p", "topol.top",
            "-o", output, "-po", "mdout.mdp", "-maxwarn", "2", *more)  # fmt: skip

    (folder / "topol.top").write_text(TOPOLOGY)
    gmx("solvate", "-cs", "spc216.gro", "-box", arguments.box, arguments.box, arguments.box,
        "-o", "box.gro", "-p", "topol.top")  # fmt: skip
    threads = ("-ntmpi", 1, "-ntomp", len(os.sched_getaffinity(0)), "-pin", "off", "-noconfout")
    compile_run(MINIMISE, "box.gro", "minimise.tpr")
    gmx("mdrun", "-s", "minimise.tpr", "-deffnm", "minimise", *threads[:-1], "-c", "minimised.gro")
    compile_run(RELAX, "minimised.gro", "relax.tpr")
    gmx(
        "mdrun",
        "-s",
        "relax.tpr",
        "-deffnm",
        "relax",
        *threads[:-1],
        "-c",
        "relaxed.gro",
        "-cpo",
        "relaxed.cpt",
    )
    long = "nsteps=-1"  # the study says how many
    compile_run(f"{DYNAMICS} {long} {FILES}", "relaxed.gro", "every-10.tpr", "-t", "relaxed.cpt")
    compile_run(f"{DYNAMICS} {long} {NO_FILES}", "relaxed.gro", "every-0.tpr", "-t", "relaxed.cpt")
    kept = {"gmx", "every-10.tpr", "every-0.tpr"}
    for path in folder.iterdir():
        if path.name not in kept and path.is_file():
            path.unlink()
    print(f"{folder}: gmx, every-10.tpr, every-0.tpr")
    return 0


if __name__ == "__main__":
    sys.exit(main())
