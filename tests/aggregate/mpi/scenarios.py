#!/usr/bin/env python3
"""Aggregated I/O of several ranks: starts tests/aggregate/mpi/ranks.cpp under mpiexec, and looks at what is left.

usage: scenarios.py --program RANKS --mpiexec "MPIEXEC FLAGS" --ranks N [--nodes K] SCENARIO [ARGUMENT ...]

--nodes: so many nodes, faked, where the MPI can do that (MPICH); else the scenario is skipped (exit status 77). Exit status 0
if all is as it should be; else what is not, on standard error.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
from lustre import fake_lustre

from mpi import Job, Scenarios, Skipped, expect, start


class Tests(Scenarios):
    prefix = "twinrun-aggregate-"
    limit = 900.0

    def job(self, *arguments: object, status: int | None = 0) -> Job:
        job = self.start(*arguments)
        if status is not None:
            expect(job.status == status, f"status {job.status}:", job)
            expect("\ndone\n" in "\n" + job.out, "it did not reach its end:", job)
        return job

    def run(self, scenario: str, *arguments: str) -> None:
        """One that is not here is the ranks' own affair."""
        if scenario == "die":
            self.die(*arguments)
        elif scenario == "python":
            self.python(*arguments)
        elif scenario == "stripes":
            self.stripes(*arguments)
        elif scenario == "wholes":
            self.wholes(*arguments)
        else:
            self.plain(scenario, *arguments)

    def stripes(self, by: str) -> None:
        """New files on Lustre have the stripes that were asked for, by its library, its command, or not at all."""
        log = self.folder / "log"
        self.environment = {**self.environment, **fake_lustre.environment(by, log)}
        self.job("stripes", self.folder)
        asked = [
            re.sub(r"(\.twr-partial\.)[0-9a-f]{16}", r"\1X", line) for line in log.read_text().splitlines()
        ]
        wanted = []
        for place in ("is-lustre", "refused-lustre"):
            for name in ("data.twr-partial.X", "data.twr-partial.X", "data.updated"):
                wanted += fake_lustre.expected(by, 4, 1 << 20, f"{self.folder}/{place}/{name}")
        wanted += fake_lustre.expected(by, 4, 1 << 20, f"{self.folder}/is-lustre/later.twr-partial.X")
        expect(asked == wanted, f"Lustre was asked for\n{asked}\ninstead of\n{wanted}")

    def plain(self, scenario: str, *arguments: str) -> None:
        """Files and links of names like those that a write uses are somebody's: they stay as they are."""
        own = self.folder / "somebody's"
        own.write_bytes(b"results of last year")
        names = [
            name + ".twr-partial"
            for name in ("data", "data.00000", "data.00001", "data-0", "data-1", "data-1.00000")
        ]
        for number, name in enumerate(names):
            if number % 2 == 0:
                (self.folder / name).write_text(name)
            else:
                (self.folder / name).symlink_to(own.name)
        self.job(scenario, self.folder, *arguments)
        for number, name in enumerate(names):
            path = self.folder / name
            expect(path.is_symlink() == (number % 2 == 1), "somebody's", name, "was replaced, or is gone")
            if number % 2 == 0:
                expect(path.read_text() == name, "somebody's", name, "was changed")
        expect(own.read_bytes() == b"results of last year", "what a link names was changed")
        left = [
            path.name for path in self.folder.rglob("*") if re.search(r"\.twr-(partial|index)\.", path.name)
        ]
        expect(not left, "left over:", left)

    def python(self, *arguments: str) -> None:
        """Ranks of Python: python_ranks.py, which says what it checks."""
        script = Path(__file__).with_name("python_ranks.py")
        library = Path(self.program).with_name("libtwinrun_aggregate.so")
        words = [sys.executable, script, self.folder, *arguments]
        environment = {"TWINRUN_AGGREGATE_LIBRARY": str(library), "TWINRUN_TEST_RANKS": str(self.ranks)}
        job = Job(
            [*self.mpiexec, "-n", str(self.ranks), *map(str, words)],
            {**self.environment, **environment},
            self.limit,
        )
        if "skipped: " in job.out:
            raise Skipped(job.out.partition("skipped: ")[2].splitlines()[0])
        expect(job.status == 0 and "\ndone\n" in "\n" + job.out, job)

    def wholes(self, *arguments: str) -> None:
        """Parts of a whole file, read by ranks in other cuttings; and joined, byte for byte one file's."""
        from twinrun.aggregate.sub_files import join_sub_files

        self.plain("wholes", *arguments)
        joined = 0
        for one in sorted(self.folder.glob("whole-*.one")):
            path = one.with_suffix("")
            if not path.with_name(f"{path.name}.twr-index").exists():
                expect(path.read_bytes() == one.read_bytes(), path, "differs from one file")
                continue
            join_sub_files(path, remove=True)
            expect(path.read_bytes() == one.read_bytes(), path, "joined differs from one file")
            joined += 1
        expect(joined > 0 or self.ranks == 1, "no round had several files")

    def die(self, how: str, where: str, *arguments: str) -> None:
        """A rank is killed, and the job ends; or it stops for good, and the others come out of the call with an error (across nodes a
        call of MPI's may not come back, and the job is ended). The file is as it was."""
        job = self.job("die", self.folder, how, where, *arguments, status=None)
        for stopped in self.folder.glob("stopped-*"):
            expect(how == "kill" and self.nodes > 1, stopped.name, stopped.read_text(), job)
        data = self.folder / "data"
        # Of the first write: items of 4 bytes of all ranks in turns, then 8 bytes each.
        expect(data.stat().st_size == 3000 * 12 * self.ranks, "the file has", data.stat().st_size, "bytes")
        if how == "stop" and self.nodes == 1:
            said = [self.folder / f"survivor-{rank}" for rank in range(self.ranks - 1)]
            expect(
                all(path.exists() for path in said),
                "not all survivors have an error:",
                [*self.folder.iterdir()],
                job,
            )
            words = [path.read_text() for path in said]
            expect(all("time_limit" in text and "1 s" in text for text in words), words)
            expect(not [*self.folder.glob("*.twr-partial.*")], "the partial file is still there")
        if "update" in arguments:
            return
        # The job wrote other bytes the second time. What the dead left is in nobody's way.
        before = data.read_bytes()
        left = {path.name: path.stat().st_ino for path in self.folder.glob("*.twr-partial.*")}
        expect(len(left) <= (how == "kill"), "more than one partial file:", left)
        self.job("again", self.folder)
        expect(data.read_bytes() == before, "the file was not as the first write left it")
        now = {path.name: path.stat().st_ino for path in self.folder.glob("*.twr-partial.*")}
        expect(now == left, "another job's partial file:", left, "became", now)


if __name__ == "__main__":
    sys.exit(start(Tests))
