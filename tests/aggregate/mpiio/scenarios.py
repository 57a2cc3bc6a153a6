#!/usr/bin/env python3
"""MPI-IO of a program that knows nothing of twinrun: starts tests/aggregate/mpiio/views.cpp under mpiexec with libtwinrun_mpiio.so preloaded.

usage: TWINRUN_MPIIO_LIBRARY=LIBRARY scenarios.py --program VIEWS --mpiexec "MPIEXEC FLAGS" --ranks N [--nodes K] SCENARIO [ARGUMENT ...]

Exit status 0 if all is as it should be; else what is not, on standard error.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
import ior_runs
from lustre import fake_lustre

from mpi import Job, Scenarios, Skipped, expect, is_hydra, start, version

PROJECT = Path(__file__).resolve().parents[3]

REPORT = re.compile(
    r"twinrun_mpiio: \S*/ours: (\d+) collective calls aggregated by \d+ plans, (\d+) by MPI-IO"
)
IOR_REPORT = re.compile(
    r"twinrun_mpiio: \S+: (\d+) collective calls aggregated by \d+ plans, (\d+) by MPI-IO"
)
AHEAD = re.compile(
    r"twinrun_mpiio: \S*/ahead: (\d+) collective calls aggregated by (\d+) plans, (\d+) by MPI-IO"
)
# What is said once, for all files of a job.
SAID = (
    "the file is in atomic mode",
    "no setting of the name 'agregators'",
    "setting buffers = 'many'",
    "nonblocking collective calls are aggregated where",
)


class Tests(Scenarios):
    prefix = "twinrun-mpiio-"
    limit = 900.0

    def preloaded(self, *arguments: object) -> Job:
        """With the library in every rank, and in nothing else."""
        library = os.environ["TWINRUN_MPIIO_LIBRARY"]
        # Hydra hands over an environment that is given; Open MPI takes names of what is set.
        option = (
            ["-genv", "LD_PRELOAD", library] if is_hydra(self.mpiexec) else ["-x", f"LD_PRELOAD={library}"]
        )
        command = [*self.mpiexec, *option, "-n", str(self.ranks), self.program, *map(str, arguments)]
        return Job(command, {**self.environment, "TWINRUN_MPIIO_REPORT": "1"}, self.limit)

    def done(self, job: Job) -> tuple[int, int]:
        """Collective calls that were aggregated, and others, of the files that may be."""
        expect(job.status == 0, f"status {job.status}:", job)
        expect("\ndone\n" in "\n" + job.out, "it did not reach its end:", job)
        files = REPORT.findall(job.out)
        return sum(int(f[0]) for f in files), sum(int(f[1]) for f in files)

    def views(self, *arguments: str) -> None:
        job = self.preloaded("views", self.folder, *arguments)
        aggregated, plain = self.done(job)
        print(*(f"{word} {job.numbers(word)[0]}" for word in ("views", "calls")), sep="\n")
        expect(aggregated > 0 and plain == 0, aggregated, "calls were aggregated, and", plain, "were not")

    def semantics(self) -> None:
        job = self.preloaded("semantics", self.folder)
        aggregated, plain = self.done(job)
        expect(aggregated > 15 and plain > 0, aggregated, "calls were aggregated, and", plain, "were not")
        said = SAID if self.ranks == 1 else (*SAID, "both claim the byte", "hints twinrun_* differ")
        for text in said:
            expect(job.out.count(text) == 1, f"'{text}' is not said once:", job)

    def ahead(self) -> None:
        """Reads of one piece a rank need no plan, and never miss what a late rank wrote before."""
        job = self.preloaded("ahead", self.folder)
        self.done(job)
        alone, others = AHEAD.findall(job.out)
        expect(alone == ("40", "0", "0"), alone, "calls, plans and others:", job)
        expect(others[0] == "42" and others[2] == "0", others, "calls, plans and others:", job)
        expect(0 < int(others[1]) < 42, others, "calls, plans and others:", job)

    def together(self) -> None:
        """Small writes that repeat are one rank's, and an error of it is one of all."""
        self.done(self.preloaded("together", self.folder))

    def nonblocking_views(self, *arguments: str) -> None:
        job = self.preloaded("nonblocking_views", self.folder, *arguments)
        aggregated, plain = self.done(job)
        print(*(f"{word} {job.numbers(word)[0]}" for word in ("views", "calls")), sep="\n")
        expect(aggregated > 0 and plain == 0, aggregated, "calls were aggregated, and", plain, "were not")

    def nonblocking_semantics(self) -> None:
        job = self.preloaded("nonblocking_semantics", self.folder)
        aggregated, plain = self.done(job)
        expect(aggregated > 15 and plain > 0, aggregated, "calls were aggregated, and", plain, "were not")
        said = (
            ("the file is in atomic mode",)
            if self.ranks == 1
            else ("atomic mode", "both claim the byte at offset 0 of")
        )
        for text in said:
            expect(job.out.count(text) == 1, f"'{text}' is not said once:", job)

    def stripes(self, by: str) -> None:
        """New files have the stripes of MPI's own hints, whatever file systems the MPI was built for."""
        log = self.folder / "log"
        self.environment = {**self.environment, **fake_lustre.environment(by, log)}
        job = self.preloaded("stripes", self.folder)
        expect(self.done(job)[1] == 0, "calls that were not aggregated:", job)
        wanted = []
        for name in ("own", "named", "refused"):
            wanted += fake_lustre.expected(by, 3, 131072, f"{self.folder}/is-lustre/{name}")
        asked = log.read_text().splitlines()
        expect(asked == wanted, f"Lustre was asked for\n{asked}\ninstead of\n{wanted}")

    def linked(self) -> None:
        """Without LD_PRELOAD: the program is linked with the library."""
        self.program += "_linked"
        job = self.start("semantics", self.folder, environment={"TWINRUN_MPIIO_REPORT": "1"})
        expect(self.done(job)[0] > 15, "nothing was aggregated:", job)

    def hdf5(self) -> None:
        """A program with Debian's parallel HDF5, for MPICH: its libraries have the binary interface of every MPICH since 3.1."""
        if not is_hydra(self.mpiexec):
            raise Skipped("Debian's HDF5 for MPICH needs MPICH")
        root = self.packages("libhdf5-mpich-dev")
        library = root / "libhdf5_mpich.so"
        if not library.exists():
            raise Skipped("there is no libhdf5_mpich.so in libhdf5-mpich-dev")
        self.foreign("hdf5_program.c", root.parents[1] / "include/hdf5/mpich", library)

    def pnetcdf(self) -> None:
        """A program with Debian's PnetCDF, which is built for Debian's Open MPI, with its C++ classes."""
        if not re.search(r"\((Open MPI|OpenRTE)\) 4\.", version(self.mpiexec)):
            raise Skipped("Debian's PnetCDF needs Open MPI 4")
        root = self.packages("libpnetcdf-dev")
        self.foreign("pnetcdf_program.c", root.parents[1] / "include", root / "libpnetcdf.so")

    def packages(self, *names: str) -> Path:
        """The folder of libraries of these packages, unpacked under build/packages."""
        base = PROJECT / "build" / "packages" / names[0]
        done = subprocess.run(
            [str(PROJECT / "tools/unpack_packages.sh"), str(base), *names], capture_output=True, text=True
        )
        if done.returncode != 0:
            raise Skipped(done.stderr.strip() or done.stdout.strip())
        multiarch = subprocess.run(["gcc", "-print-multiarch"], capture_output=True, text=True, check=True)
        return base / "usr/lib" / multiarch.stdout.strip()

    def foreign(self, source: str, include: Path, library: Path) -> None:
        """Compiles a program with the MPI of the test, and runs it with the library preloaded."""
        compiler = os.environ["TWINRUN_MPICC"]
        mpi = Path(os.environ["TWINRUN_MPI_LIBRARY"])
        # Debian's MPICH has another file name for the same library.
        alias = self.folder / "lib"
        alias.mkdir()
        named = [mpi.with_name(name) for name in ("libmpich.so.12", "libmpi.so.12")]
        (alias / "libmpich.so.12").symlink_to(next((n for n in named if n.exists()), mpi.resolve()))
        program = self.folder / "program"
        folders = [alias, library.parent, mpi.parent]
        built = subprocess.run(
            [
                *(compiler, "-w", "-o", str(program), str(Path(__file__).parent / source), f"-I{include}"),
                *(str(library), "-Wl,--allow-shlib-undefined", *(f"-Wl,-rpath,{f}" for f in folders)),
                "-Wl,--disable-new-dtags",
            ],
            capture_output=True,
            text=True,
        )
        expect(built.returncode == 0, built.stderr)
        self.program = str(program)
        self.environment = {**self.environment, "LD_LIBRARY_PATH": f"{alias}:{library.parent}"}
        files = self.folder / "files"
        files.mkdir()
        job = self.preloaded(files)
        expect(self.done(job)[0] > 0, "nothing was aggregated:", job)

    def ior(self, seed: str, sets: str) -> None:
        """IOR, unchanged: with the library it writes the same files as without, byte for byte, and its own checks find what they should."""
        self.program = ior_runs.program_for(self.mpiexec)
        for number in range(int(sets)):
            options = ior_runs.random_options(random.Random(f"{seed}/{number}"), self.ranks)
            self.ior_set(options, f"seed {seed}, set {number}")
        print(f"seed {seed}: {sets} sets of options on {self.ranks} ranks, all equal")

    def ior_set(self, options: ior_runs.Options, name: str) -> None:
        files = {}
        for way in ("plain", "twinrun"):
            folder = self.folder / way
            folder.mkdir()
            options.prepare(folder / "data")
            self.environment |= ior_runs.hints_environment(options.hints)
            arguments = [*options.words, "-o", folder / "data"]
            job = self.preloaded(*arguments) if way == "twinrun" else self.start(*arguments)
            told = f"{name}, {way}:"
            expect(job.status == 0, told, f"status {job.status}:", job)
            # IOR warns of data that its checks find wrong, of short calls and of sizes. One warning is of a file that is there.
            bad = [
                line
                for line in re.findall(r"^.*(?:WARNING|ERROR).*$", job.out, re.MULTILINE)
                if "exists already" not in line
            ]
            expect(not bad, told, bad, job)
            if way == "twinrun":
                counts = [(int(some), int(others)) for some, others in IOR_REPORT.findall(job.out)]
                aggregated, others = (sum(count[k] for count in counts) for k in range(2))
                expect(others == 0, told, f"{others} calls were not aggregated:", job)
                expect(
                    (aggregated > 0) == options.collective, told, f"{aggregated} calls were aggregated:", job
                )
            files[way] = {
                str(path.relative_to(folder)): path.read_bytes()
                for path in folder.rglob("*")
                if path.is_file()
            }
            shutil.rmtree(folder)
            for hint in ior_runs.hints_environment(options.hints):
                del self.environment[hint]
        ours, plain = files["twinrun"], files["plain"]
        expect(
            bool(plain) and ours.keys() == plain.keys(),
            name,
            "files are",
            sorted(ours),
            sorted(plain),
            options,
        )
        for path, bytes_ in plain.items():
            expect(ours[path] == bytes_, f"{name}: {path} differs:", options)

    def die(self) -> None:
        job = self.preloaded("die", self.folder)
        for rank in range(self.ranks - 1):
            path = self.folder / f"survivor-{rank}"
            expect(path.exists(), f"rank {rank} came to no end:", job)
            text = path.read_text()
            expect("time_limit" in text and "1 s" in text, f"rank {rank} was told:", text)


if __name__ == "__main__":
    sys.exit(start(Tests))
