#!/usr/bin/env python3
"""HDF5 with the driver of twinrun: starts a program that knows nothing of it (program.c) under mpiexec, and h5py in one process.

usage: TWINRUN_HDF5_DRIVER=LIBRARY TWINRUN_HDF5=PREFIX TWINRUN_MPICC=MPICC
       scenarios.py --program - --mpiexec "MPIEXEC FLAGS" --ranks N SCENARIO [ARGUMENT ...]

PREFIX has a parallel HDF5 1.14 or later (tools/build_hdf5.sh). Without it all scenarios but those of one process (serial_...) are skipped.
Exit status 0 if all is as it should be; else what is not, on standard error.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))

from mpi import Job, Scenarios, Skipped, expect, is_hydra, start

PROJECT = Path(__file__).resolve().parents[3]
REPORT = re.compile(
    r"twinrun_hdf5: \S+: (\d+) collective transfers aggregated by (\d+) plans, (\d+) by each rank alone"
)
SET = "files = 3; stripe = 4096"  # small: every dataset lies in all files


def bytes_of(folder: Path) -> dict[str, str]:
    """A hash of each file in a folder."""
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


def join(path: Path, output: Path, *options: str) -> str:
    """What `twinrun aggregate join` says."""
    done = subprocess.run(
        [sys.executable, "-m", "twinrun", "aggregate", "join", str(path), "-o", str(output), *options],
        capture_output=True,
        text=True,
        timeout=600,
    )
    expect(done.returncode == 0, "join:", done.stdout, done.stderr)
    return done.stdout + done.stderr


def mpi_of(library: str) -> set[bytes]:
    """The MPI libraries whose names a library has in it, as those it needs."""
    return set(re.findall(rb"libmpi(?:ch)?\.so\.\d+", Path(library).read_bytes()))


class Tests(Scenarios):
    prefix = "twinrun-hdf5-"
    limit = 900.0

    def build(self) -> None:
        """Compiles program.c with the MPI of the test and the parallel HDF5."""
        prefix = os.environ.get("TWINRUN_HDF5", "")
        if not prefix:
            raise Skipped("no parallel HDF5 1.14: tools/build_hdf5.sh makes one, and TWINRUN_HDF5 names it")
        library = next(Path(prefix).glob("lib*/libhdf5.so"), None)
        expect(library is not None, f"{prefix}: there is no lib/libhdf5.so")
        self.program = str(self.folder.parent / "program")
        source = Path(__file__).parent / "program.c"
        folder = library.parent
        built = subprocess.run(
            [
                *(
                    os.environ["TWINRUN_MPICC"],
                    "-std=gnu11",
                    "-Wall",
                    "-Wextra",
                    "-Werror",
                    "-o",
                    self.program,
                ),
                *(str(source), f"-I{prefix}/include", str(library), f"-Wl,-rpath,{folder}"),
            ],
            capture_output=True,
            text=True,
        )
        expect(built.returncode == 0, built.stderr)

    def job(
        self,
        *arguments: object,
        config: str | None = None,
        ranks: int | None = None,
        preload: str | None = None,
    ) -> Job:
        """config: of the driver; None: without it. preload: another build of the driver."""
        set_environment: dict[str, str] = {}
        driver = preload or os.environ["TWINRUN_HDF5_DRIVER"]
        if config is not None:
            set_environment = {
                "HDF5_DRIVER": "twinrun",
                "HDF5_PLUGIN_PATH": str(Path(driver).parent),
                "HDF5_DRIVER_CONFIG": config,
            }
        if config is not None or preload is not None:
            set_environment["LD_PRELOAD"] = driver
        # mpiexec itself is not to have it preloaded.
        option: list[str] = []
        for name, value in set_environment.items():
            option += ["-genv", name, value] if is_hydra(self.mpiexec) else ["-x", f"{name}={value}"]
        words = [*self.program.split("\n"), *map(str, arguments)]
        command = [*self.mpiexec, *option, "-n", str(ranks or self.ranks), *words]
        return Job(command, self.environment, self.limit)

    def done(self, *arguments: object, **options) -> Job:
        job = self.job(*arguments, **options)
        expect(job.status == 0 and "done" in job.out, f"status {job.status}:", job)
        return job

    def refused(self, *arguments: object, words: str, **options) -> Job:
        """An error on all ranks, which says why."""
        job = self.job(*arguments, **options)
        ranks = options.get("ranks") or self.ranks
        expect(job.status == 0 and "done" not in job.out, f"status {job.status}, and not refused:", job)
        for rank in range(ranks):
            expect(f"rank {rank} refused" in job.out, f"rank {rank} was not told:", job)
        # Every rank prints HDF5's stack, which has the driver's words.
        expect(len(re.findall(words, job.out)) >= ranks, f"'{words}' is not said by all ranks:", job)
        return job

    # ---- several ranks ----

    def equal(self, files: str, readers: str, metadata: str = "") -> None:
        """The files of HDF5's own driver, byte for byte, and read by other numbers of ranks."""
        self.build()
        if metadata:
            self.environment["PROGRAM_METADATA"] = "1"
        config = "" if files == "one" else f"files = {files}; stripe = 4096"
        plain, ours, joined = (self.folder / name for name in ("plain.h5", "ours.h5", "joined.h5"))
        self.done("write", plain)
        self.environment["TWINRUN_HDF5_REPORT"] = "1"
        reported = REPORT.search(self.done("write", ours, config=config).out)
        expect(reported is not None, "there is no report")
        aggregated, plans, alone = map(int, reported.groups())
        # Each kind of a dataset is written twice, with one plan.
        expect(aggregated > 20 and aggregated > plans and alone == 0, "the report says", reported[0])
        del self.environment["TWINRUN_HDF5_REPORT"]
        for steps, reading in (("write", "read"), ("change", "read changed")):
            if steps == "change":
                other = int(readers.split(",")[0])
                self.done("change", plain, ranks=other)
                self.done("change", ours, config=config, ranks=other)
            if files == "one":
                joined = ours
                expect(sorted(f.name for f in self.folder.iterdir()) == ["ours.h5", "plain.h5"], "more files")
            else:
                expect(not ours.exists(), "there are sub-files and the file")
                said = join(ours, joined, "--replace")
                expect("changed" not in said, "join takes the sub-files for copies:", said)
            # HDF5 1.14.5 does not write the same bytes each time, with collective metadata of the newest format.
            if metadata:
                self.done(reading, joined)
            else:
                expect(joined.read_bytes() == plain.read_bytes(), f"after {steps} the files differ")
            for ranks in map(int, readers.split(",")):
                self.done(reading, ours, config="", ranks=ranks)
        self.done("read changed", joined)  # without the driver

    def parallel_h5py(self, reader: str) -> None:
        """h5py on several ranks: as equal()."""
        python = os.environ.get("TWINRUN_HDF5_PYTHON", "")
        if not python:
            raise Skipped("no h5py with MPI: TWINRUN_HDF5_PYTHON names an interpreter that has it")
        self.program = f"{python}\n{Path(__file__).parent / 'h5py_program.py'}"
        # mpi4py of a wheel is for any MPI, and asks which. libmpi.so may be a text for the linker.
        mpi = Path(os.environ["TWINRUN_MPI_LIBRARY"])
        named = [mpi.with_name(name) for name in ("libmpi.so.12", "libmpi.so.40")]
        self.environment["MPI4PY_LIBMPI"] = str(next((n for n in named if n.exists()), mpi))
        plain, one, several = (self.folder / name for name in ("plain.h5", "one.h5", "set.h5"))
        self.done("write", plain)
        self.environment["TWINRUN_HDF5_REPORT"] = "1"
        for path, config in ((one, ""), (several, SET)):
            reported = REPORT.search(self.done("write", path, config=config).out)
            expect(reported is not None and int(reported[1]) > 0 and int(reported[3]) == 0, reported)
            self.done("read", path, config="", ranks=int(reader))
        join(several, self.folder / "joined.h5")
        for path in (one, self.folder / "joined.h5"):
            expect(path.read_bytes() == plain.read_bytes(), f"{path.name} differs from the plain file")

    def again(self) -> None:
        """A file that is written again has nothing of the old one, and other sub-files may be as many."""
        self.build()
        plain, ours = self.folder / "plain.h5", self.folder / "ours.h5"
        self.done("write", plain)
        for config in ("files = 5; stripe = 1 KiB", SET, SET, ""):
            self.done("write", ours, config=config)
            self.done("read", ours, config="", ranks=1)
        expect(bytes_of(self.folder)["ours.h5"] == bytes_of(self.folder)["plain.h5"], "the files differ")
        names = sorted(f.name for f in self.folder.iterdir())
        expect(names == ["ours.h5", "plain.h5"], "sub-files were left:", names)

    def damage(self) -> None:
        """Sub-files and indices that are not what was written: an error on all ranks, and nothing changes."""
        self.build()
        good = self.folder / "good"
        good.mkdir()
        self.done("write", good / "a.h5", config=SET)
        index = "a.h5.twr-index"

        def cut(folder: Path) -> None:
            os.truncate(folder / "a.h5.00001", 5000)

        def lose(folder: Path) -> None:
            (folder / "a.h5.00002").unlink()

        def alter(folder: Path) -> None:
            text = (folder / index).read_bytes()
            (folder / index).write_bytes(text.replace(b"4096", b"4097", 1))

        def shorten(folder: Path) -> None:
            os.truncate(folder / index, 40)

        def forget(folder: Path) -> None:
            (folder / index).unlink()

        def foreign(folder: Path) -> None:
            (folder / index).write_text("somebody's own words\n")

        def both(folder: Path) -> None:
            (folder / "a.h5").write_text("somebody's own file\n")

        def exchange(folder: Path) -> None:
            one, two = folder / "a.h5.00000", folder / "a.h5.00001"
            one.rename(folder / "x")
            two.rename(one)
            (folder / "x").rename(two)

        cases = {
            cut: (r"a\.h5\.00001: has 5000 bytes", True),
            lose: (r"a\.h5\.00002", False),
            alter: (r"a\.h5\.twr-index", True),
            shorten: (r"a\.h5\.twr-index", True),
            forget: (r"there is no \S*a\.h5\.twr-index: the write of these sub-files did not end", True),
            foreign: (r"a\.h5\.twr-index", True),
            both: (r"there are this file and sub-files of its name|this file is there, and sub-files", True),
            exchange: (r"a\.h5\.0000", True),
        }
        for spoil, (words, stays) in cases.items():
            folder = self.folder / spoil.__name__
            # With their times and inodes: hard links would have a second name.
            folder.mkdir()
            for file in good.iterdir():
                shutil.copy2(file, folder / file.name)
            if spoil is exchange:
                shutil.rmtree(folder)
                folder.mkdir()
                self.done("write", folder / "a.h5", config=SET)
            spoil(folder)
            before = bytes_of(folder)
            self.refused("read", folder / "a.h5", words=words, config="")
            self.refused("change", folder / "a.h5", words=words, config="")
            if stays:
                self.refused("write", folder / "a.h5", words=r"a\.h5", config=SET)
            expect(bytes_of(folder) == before, f"{spoil.__name__}: files were changed")
        # A copy of a set is read as it is. It is not removed for a new one.
        copy = self.folder / "copy"
        copy.mkdir()
        for file in good.iterdir():
            shutil.copy2(file, copy / file.name)
        self.done("read", copy / "a.h5", config="")
        before = bytes_of(copy)
        self.refused("write", copy / "a.h5", words="is not the file that", config=SET)
        expect(bytes_of(copy) == before, "a copy was removed")

    def foreign(self) -> None:
        """Files of others under the names of sub-files, and files that others hold open: an error on all ranks, and they stay."""
        self.build()
        for name in ("b.h5", "b.h5.00000", "b.h5.00002"):
            folder = self.folder / name
            folder.mkdir()
            (folder / name).write_text("somebody's own file\n")
            before = bytes_of(folder)
            self.refused("write", folder / "b.h5", words=re.escape(name), config=SET)
            expect(bytes_of(folder) == before, f"{name}: files were changed or made")
        (self.folder / "folder.h5").mkdir()
        for config in ("", SET):
            self.refused("write", self.folder / "folder.h5", words=r"folder\.h5", config=config)
        self.refused("write", self.folder / "none" / "a.h5", words="No such file", config=SET)
        self.refused("read", self.folder / "none.h5", words="No such file", config="")
        for config, held in (("", "c.h5"), (SET, "d.h5.00001")):
            path = self.folder / f"{held[0]}.h5"
            self.done("write", path, config=config)
            before = (self.folder / held).read_bytes()
            with (self.folder / held).open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH)
                self.done("read", path, config="")
                self.refused("write", path, words=r"another program has it open", config=config)
                self.refused("change", path, words=r"another program has it open", config=config)
                expect((self.folder / held).read_bytes() == before, "a file in use was changed")
                fcntl.flock(file, fcntl.LOCK_EX)
                self.refused("read", path, words=r"another program has it open", config="")
            self.done("write", path, config=config)

    def hints(self) -> None:
        """Settings that are wrong, contradict each other, or differ between ranks."""
        self.build()
        for config, words in (
            ("files = none", "setting files = 'none'"),
            ("stripes = 3", "no setting of the name 'stripes'"),
            ("files", "is not of the form name = value"),
            ("stripe = 4096", "contradict each other"),
            ("files = 2; stripe = 1000", "multiple of 512"),
            ("files = 2; aggregators = many", "setting aggregators"),
        ):
            self.refused("write", self.folder / "a.h5", words=re.escape(words), config=config)
        words = "differ between ranks" if self.ranks > 1 else "."
        if self.ranks > 1:
            self.refused("hints", self.folder / "a.h5", words=words, config="files = 2")
        expect(not any(self.folder.iterdir()), "a file was made:", list(self.folder.iterdir()))

    def overlap(self) -> None:
        """Ranks that write the same bytes: an error on all, or, where the user allows it, what MPI does."""
        self.build()
        for scenario in ("overlap", "typed overlap"):
            for name, config in (("a.h5", ""), ("b.h5", SET)):
                path = self.folder / name
                self.refused(scenario, path, words="claim the byte", config=config)
                for file in self.folder.iterdir():
                    file.unlink()
                self.done(scenario, path, config=f"{config}; overlap = true")

    def full(self) -> None:
        """Storage that takes no more: an error on all ranks, and no index."""
        self.build()
        for name, config in (("a.h5", ""), ("b.h5", SET)):
            self.refused("full", self.folder / name, words="File too large", config=config)
        names = sorted(f.name for f in self.folder.iterdir())
        expect(names == ["a.h5", *(f"b.h5.0000{i}" for i in range(3))], "what is left is", names)

    def die(self) -> None:
        """A rank that is killed: the job ends, and what it left is no file."""
        self.build()
        path = self.folder / "a.h5"
        job = self.job("die", path, config=SET)
        expect(job.status != 0 and "a transfer ended" not in job.out, "the job went on:", job)
        names = sorted(f.name for f in self.folder.iterdir())
        expect(names == [f"a.h5.0000{i}" for i in range(3)], "what is left is", names)
        self.refused("read", path, words="the write of these sub-files did not end", config="")
        self.refused("write", path, words="no index shows that it is a sub-file", config=SET)

    def atomic(self) -> None:
        self.build()
        self.done("atomic", self.folder / "a.h5", config="")
        self.done("atomic", self.folder / "b.h5", config=SET)

    def other_mpi(self) -> None:
        """A driver that is built with another MPI than the program's: an error on all ranks. Without HDF5_DRIVER it changes nothing."""
        other = os.environ.get("TWINRUN_HDF5_OTHER_DRIVER", "")
        if not Path(other).is_file():
            raise Skipped("there is no driver of another MPI: tools/mpi_matrix.sh has one")
        if mpi_of(other) == mpi_of(os.environ["TWINRUN_HDF5_DRIVER"]):
            raise Skipped(f"{other} is built with the same MPI")
        self.build()
        self.done("write", self.folder / "plain.h5")
        self.done("write", self.folder / "a.h5", preload=other)
        expect(bytes_of(self.folder)["a.h5"] == bytes_of(self.folder)["plain.h5"], "the files differ")
        before = bytes_of(self.folder)
        for config in ("", SET):
            for scenario in ("write", "read"):
                path = self.folder / "a.h5"
                self.refused(
                    scenario, path, words="with another MPI than twinrun", config=config, preload=other
                )
        expect(bytes_of(self.folder) == before, "files were changed or made")

    def documented(self) -> None:
        """The command that the docs have for this MPI, with the variables that they export."""
        self.build()
        name = "MPICH" if is_hydra(self.mpiexec) else "Open MPI"
        text = (PROJECT / "docs/reference/hdf5-driver.md").read_text()
        exports = re.findall(r"^export .*$", text, re.MULTILINE)
        driver = re.search(r"^driver=.*$", text, re.MULTILINE)
        command = re.search(rf"^mpiexec (.*) \./program  +# {name}", text, re.MULTILINE)
        expect(exports and driver and command, f"the docs have no command for {name}")
        exported = re.findall(r"(\w+)=", re.sub(r'"[^"]*"', "", " ".join(exports)))
        expect(len(exported) == 3, "exported are", exported)
        # Open MPI gives ranks on other nodes nothing else. Here all would be there anyway.
        if name == "Open MPI":
            missing = [variable for variable in exported if f"-x {variable}" not in command[1]]
            expect(not missing, "ranks on other nodes do not get", missing)
        folder = str(Path(os.environ["TWINRUN_HDF5_DRIVER"]).parent)
        path = self.folder / "a.h5"
        lines = "\n".join([*exports, driver[0], f"{shlex.join(self.mpiexec)} {command[1]} "])
        lines = lines.replace("/usr/local/lib/twinrun/hdf5", folder).replace("-n 64", f"-n {self.ranks}")
        expect(folder in lines and f"-n {self.ranks}" in lines, "other words in the docs:", lines)
        for scenario in ("write", "read"):
            job = Job(
                ["bash", "-c", lines + shlex.join([self.program, scenario, str(path)])], self.environment
            )
            expect(job.status == 0 and "done" in job.out, f"status {job.status}:", job)
        names = sorted(f.name for f in self.folder.iterdir())
        expect(names == [*(f"a.h5.0000{i}" for i in range(4)), "a.h5.twr-index"], "what is written is", names)

    # ---- one process, with the HDF5 that h5py brings ----

    def h5py(
        self, code: str, *arguments: object, config: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ}
        if config is not None:
            environment |= {
                "HDF5_DRIVER": "twinrun",
                "HDF5_PLUGIN_PATH": str(Path(os.environ["TWINRUN_HDF5_DRIVER"]).parent),
                "HDF5_DRIVER_CONFIG": config,
            }
        program = "import sys, h5py, numpy as np\npath = sys.argv[1]\n" + code
        return subprocess.run(
            [sys.executable, "-c", program, *map(str, arguments)],
            capture_output=True,
            text=True,
            env=environment,
            timeout=600,
        )

    def h5py_done(self, *arguments: object, **options) -> None:
        done = self.h5py(*arguments, **options)
        expect(done.returncode == 0, done.stdout, done.stderr)
        expect(done.stdout == "" and done.stderr == "", "something was printed:", done.stdout, done.stderr)

    def h5py_refused(self, *arguments: object, words: str, **options) -> None:
        done = self.h5py(*arguments, **options)
        expect(done.returncode != 0 and re.search(words, done.stderr), f"'{words}' is not said:", done)

    def need_h5py(self) -> None:
        done = self.h5py("print(*h5py.h5.get_libversion())", "-")
        if done.returncode != 0:
            raise Skipped("there is no h5py here")
        if tuple(map(int, done.stdout.split())) < (1, 14, 0):
            raise Skipped(f"h5py has HDF5 {done.stdout.strip()}, and plug-ins are drivers from 1.14 on")

    def serial_equal(self) -> None:
        self.need_h5py()
        make = """
rng = np.random.default_rng(1)
with h5py.File(path, "w") as f:
    f["a"] = rng.random((100, 30))
    d = f.create_dataset("c", (64, 64), chunks=(16, 16), dtype="i4", compression="gzip")
    d[...] = np.arange(4096).reshape(64, 64)
    e = f.create_dataset("g/e", (50,), maxshape=(None,), chunks=(7,), dtype="f8")
    e[:] = 1.5
    f.flush()
    e.resize((80,))
    e[50:] = 2
    f.attrs["x"] = "words"
    f["s"] = ["text", "of", "several lengths"] * 50
    f["a"][::3, 1] = 7
"""
        change = """
with h5py.File(path, "a") as f:
    del f["c"]
    f["a"][5:90:7, ::2] = -1
    f["g/e"].resize((30,))
    f["new"] = np.arange(1000.0)
"""
        read = """
with h5py.File(path, "r") as f, h5py.File(path, "r") as same:
    a = np.random.default_rng(1).random((100, 30))
    a[::3, 1] = 7
    a[5:90:7, ::2] = -1
    assert np.array_equal(f["a"][...], a) and np.array_equal(f["new"][...], np.arange(1000.0))
    assert f["s"].asstr()[4] == "of" and same["g/e"].shape == (30,) and f.attrs["x"] == "words"
"""
        plain, one, several = (self.folder / name for name in ("plain.h5", "one.h5", "set.h5"))
        for code in (make, change):
            self.h5py_done(code, plain)
            self.h5py_done(code, one, config="")
            self.h5py_done(code, several, config=SET)
            join(several, self.folder / "joined.h5", "--replace")
            for file in (one, self.folder / "joined.h5"):
                expect(file.read_bytes() == plain.read_bytes(), f"{file.name} differs from the plain file")
        self.h5py_done(read, several, config="")
        self.h5py_done(read, self.folder / "joined.h5")
        self.h5py_done(make, several, config="files = 2; stripe = 64 KiB")  # again, in other files
        names = [f.name for f in sorted(self.folder.glob("set.h5*"))]
        expect(names == ["set.h5.00000", "set.h5.00001", "set.h5.twr-index"], names)

    def serial_libraries(self) -> None:
        """Two libraries of HDF5 in one process, each of which loads the driver."""
        self.need_h5py()
        if self.h5py("import netCDF4", "-").returncode != 0:
            raise Skipped("there is no netCDF4 here")
        self.h5py_done(
            """
import netCDF4
with h5py.File(path + ".h5", "w") as f:
    f["a"] = np.arange(5000)
    with netCDF4.Dataset(path + ".nc", "w") as d:
        d.createDimension("x", 5000)
        d.createVariable("v", "f8", ("x",))[:] = np.arange(5000)
with h5py.File(path + ".nc", "r") as f, h5py.File(path + ".h5", "r") as g:
    assert f["v"][4999] == 4999 and g["a"][4999] == 4999
try:
    h5py.File(path + ".none", "r")
except OSError as why:
    assert "No such file" in str(why)
""",
            self.folder / "x",
            config=SET,
        )
        names = sorted(f.name for f in self.folder.iterdir())
        wanted = [
            f"x.{kind}.{end}" for kind in ("h5", "nc") for end in ("00000", "00001", "00002", "twr-index")
        ]
        expect(names == wanted, names)

    def serial_refused(self) -> None:
        self.need_h5py()
        make = 'with h5py.File(path, "w") as f: f["a"] = np.arange(5000)'
        read = 'with h5py.File(path, "r") as f: assert f["a"][4999] == 4999'
        path = self.folder / "a.h5"
        for config, words in (("files = 0", "setting files = '0'"), ("stripe = 4096", "contradict")):
            self.h5py_refused(make, path, config=config, words=words)
        self.h5py_refused(make, path, config="communicator = worlds", words="own or world")
        self.h5py_refused(read, path, config="", words="No such file")
        expect(not any(self.folder.iterdir()), "a file was made")
        self.h5py_done(make, path, config=SET)
        self.h5py_done(read, path, config="")
        # A program that changes its folder while the file is open.
        self.h5py_done(
            """
import os
os.chdir(os.path.dirname(path))
with h5py.File("a.h5", "r+") as f:
    os.chdir("/")
    f["a"][0] = 3
    f["a"][0] = 0
assert os.path.exists(path + ".twr-index")
""",
            path,
            config="",
        )
        self.h5py_done(read, path, config="")
        # A sub-file that is a link is read, and not written.
        linked = self.folder / "linked"
        linked.mkdir()
        for file in self.folder.glob("a.h5.*"):
            shutil.copy2(file, linked / file.name)
        (linked / "a.h5.00001").rename(linked / "elsewhere")
        (linked / "a.h5.00001").symlink_to("elsewhere")
        before = bytes_of(linked)
        self.h5py_done(read, linked / "a.h5", config="")
        change = 'with h5py.File(path, "r+") as f: f["a"][0] = 3'
        self.h5py_refused(change, linked / "a.h5", config="", words=r"a\.h5\.00001: open")
        self.h5py_refused(make, linked / "a.h5", config=SET, words="is not the file that")
        expect(bytes_of(linked) == before, "files behind a link were changed")
        shutil.rmtree(linked)
        # A program that ends in the middle of a write: the index was there after the flush.
        self.h5py_refused(
            """
import os
f = h5py.File(path, "a")
f["b"] = np.arange(7)
f.flush()
assert os.path.exists(path + ".twr-index")
f["c"] = np.arange(7000)
assert not os.path.exists(path + ".twr-index")
sys.stderr.write("gone")
sys.stderr.flush()
os._exit(9)
""",
            path,
            config="",
            words="gone",
        )
        self.h5py_refused(read, path, config="", words="the write of these sub-files did not end")
        before = bytes_of(self.folder)
        self.h5py_refused(make, path, config=SET, words="no index shows that it is a sub-file")
        expect(bytes_of(self.folder) == before, "files were changed")
        for file in self.folder.iterdir():
            file.unlink()
        for config, held in (("", "c.h5"), (SET, "d.h5.00001")):
            path = self.folder / f"{held[0]}.h5"
            self.h5py_done(make, path, config=config)
            before = bytes_of(self.folder)
            with (self.folder / held).open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH)
                self.h5py_done(read, path, config="")
                self.h5py_refused(make, path, config=config, words="another program has it open")
            expect(bytes_of(self.folder) == before, "a file in use was changed")


if __name__ == "__main__":
    sys.exit(start(Tests))
