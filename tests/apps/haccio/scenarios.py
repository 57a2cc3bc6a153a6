#!/usr/bin/env python3
"""Runs of haccio under mpiexec: what all methods leave in files, and what --verify finds.

usage: scenarios.py --program HACCIO --mpiexec "MPIEXEC FLAGS" --ranks N SCENARIO [ARGUMENT ...]

Exit status 0 if all is as it should be; else what is not, on standard error.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
from mpi import Job, Scenarios, expect, start

METHODS = (
    "aggregate",
    "posix",
    "posix-packed",
    "mpiio",
    "mpiio-packed",
    "mpiio-collective",
    "mpiio-collective-packed",
    "mpiio-two-phase",
    "mpiio-two-phase-packed",
)
PARTICLE = 38


class HaccioTests(Scenarios):
    def _run(self, *arguments: object, status: int = 0) -> Job:
        job = self.start(*arguments)
        expect(job.status == status, "status", job.status, "instead of", status, job)
        return job

    def _lines(self, kind: str) -> list[dict]:
        lines = [json.loads(x) for x in (self.folder / "results").read_text().splitlines()]
        return [x for x in lines if x["kind"] == kind]

    def methods(self, layout: str) -> None:
        """All methods write the same bytes and read them back; one rank has nothing, sizes are no multiple of anything."""
        counts = [1237, 0, 771][: self.ranks]
        self._run(
            *("--particles", ",".join(map(str, counts)), "--layout", layout, "--methods", ",".join(METHODS)),
            *("--operations", "write,read", "--verify", "--cold", "--keep", "--sync", "after", "--repeat", 2),
            *("--json", self.folder / "results", "--csv", self.folder / "table", self.folder / "data"),
        )
        reference = (self.folder / "data-posix").read_bytes()
        expect(len(reference) == PARTICLE * sum(counts), "size", len(reference))
        for method in METHODS:
            expect((self.folder / f"data-{method}").read_bytes() == reference, method, "wrote other bytes")
        repetitions = self._lines("repetition")
        expect(len(repetitions) == 2 * 2 * len(METHODS), len(repetitions), "repetitions")
        for x in repetitions:
            expect(x["verified"] and x["bytes"] == len(reference) and x["seconds"] > 0, x)
            expect(("sync_seconds" in x) == (x["operation"] == "write"), x)
        orders = [
            [x["method"] for x in repetitions if x["repetition"] == i and x["operation"] == "write"]
            for i in range(2)
        ]
        expect(sorted(orders[0]) == sorted(METHODS) and sorted(orders[1]) == sorted(METHODS), orders)
        expect({(x["method"], x["operation"]) for x in self._lines("summary")} == {
            (m, o) for m in METHODS for o in ("write", "read")
        }, "summaries")  # fmt: skip
        (run,) = self._lines("run")
        expect(run["ranks"] == self.ranks and sum(run["hosts"].values()) == self.ranks and run["mpi"], run)
        rows = list(csv.DictReader((self.folder / "table").open()))
        expect([r["method"] for r in rows] == [x["method"] for x in repetitions], "rows of the CSV file")

    def settings(self) -> None:
        """Ways of aggregating write the same bytes; files of their own for ranks and nodes; declared each time."""
        ways = [
            "placement=rank",
            "placement=worst buffers=3 buffer-bytes=4096",
            "backend=mpiio",
            "aggregators=2 block-bytes=512",
        ]
        methods = [word for way in ways for word in ("--method", f"aggregate {way}")]
        for layout in ("records", "variables"):
            self._run(
                *(
                    "--particles",
                    900,
                    "--skew",
                    0.7,
                    "--layout",
                    layout,
                    "--methods",
                    "posix-packed",
                    *methods,
                ),
                *(
                    "--operations",
                    "write,read",
                    "--verify",
                    "--keep",
                    "--declare",
                    "each",
                    "--sync",
                    "method",
                ),
                self.folder / layout,
            )
            files = sorted(self.folder.glob(f"{layout}-*"))
            expect(len(files) == 1 + len(ways), files)
            expect(len({f.read_bytes() for f in files}) == 1, "the bytes of", files, "differ")
        for how in ("rank", "node"):
            self._run(
                *(
                    "--particles",
                    "300,500",
                    "--files",
                    how,
                    "--methods",
                    "aggregate,posix,mpiio",
                    "--operations",
                ),
                *("write,read", "--verify", "--keep", self.folder / how),
            )
            posix = sorted(self.folder.glob(f"{how}-posix*"))
            expect(len(posix) == (self.ranks if how == "rank" else 1), posix)
            for method in ("aggregate", "mpiio"):
                files = sorted(self.folder.glob(f"{how}-{method}*"))
                index = self.folder / f"{how}-{method}.twr-index"
                expect(index.exists() == (method == "aggregate" and len(posix) > 1), files)
                files = [f for f in files if f != index]
                expect([f.read_bytes() for f in files] == [f.read_bytes() for f in posix], files, posix)

    def wrong(self, layout: str) -> None:
        """A flipped byte is found by each method's reads, and named; so is a file that ends early."""
        particles = 200
        common = ("--particles", particles, "--layout", layout, "--verify")
        file = self.folder / "data"
        self._run(*common, "--methods", "posix-packed", "--keep", file)
        good = file.read_bytes()
        at = len(good) * 2 // 3
        file.write_bytes(good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :])
        for method in METHODS:
            job = self._run(*common, "--methods", method, "--operations", "read", file, status=1)
            expect(job.out.count("1 value of this rank is wrong") == 1, job)
            expect(
                re.search(rf"{method}, read: rank \d+, particle \d+, \w+: 0x\w+ instead of 0x\w+", job.out),
                job,
            )
        file.write_bytes(good[:at])
        for method in ("posix", "aggregate"):
            self._run(*common, "--methods", method, "--operations", "read", file, status=2)

    def trouble(self) -> None:
        """What cannot be done is one line, and status 2."""
        nowhere = self.folder / "nowhere" / "data"
        for words, said in (
            (["--wrong", "f"], "--wrong"),
            (["--methods", "posix", nowhere], "nowhere"),
            (["--methods", "mpiio-collective", nowhere], "nowhere"),
            (["--methods", "aggregate", nowhere], "nowhere"),
            (["--methods", "posix", "--operations", "read", self.folder / "absent"], "absent"),
            (["--methods", "aggregate", "--operations", "read", self.folder / "absent"], "absent"),
            (["--methods", "aggregate", "--placement", "best", self.folder / "f"], "best"),
            (["--methods", "posix", "--json", self.folder / "no" / "file", self.folder / "f"], "no/file"),
            (["split", "--size", self.ranks + 1], f"there are {self.ranks} ranks"),
            (["split", "--wrong"], "--wrong"),
        ):
            job = self._run(*words, status=2)
            own = [
                line
                for line in job.out.splitlines()
                if line.startswith("haccio: ") and "particles:" not in line
            ]
            expect(len(own) == 1 and said in own[0], said, "is not in", own, job)

    def split(self) -> None:
        """All ways make the communicators that they should."""
        for communicators in (1, 2, 7):
            for size in (0, 1, self.ranks):
                words = ["--size", size] if size else []
                results = self.folder / "results"
                self._run("split", "--communicators", communicators, *words, "--repeat", 2, "--json", results)
                done = self._lines("repetition")
                expect(len(done) == 8 and all(x["seconds"] > 0 for x in done), done)

    def until(self) -> None:
        """A job ends when it is told to, and leaves nothing."""
        common = ("--methods", "posix-packed", "--repeat", 10**9, "--json", self.folder / "results")
        (self.folder / "stop").touch()
        self._run(*common, "--until", self.folder / "stop", self.folder / "data")
        expect(not self._lines("repetition"), "repetitions of a job that was to make none")
        self._run(*common, "--seconds", 0.05, "--quiet", self.folder / "data")
        expect(not list(self.folder.glob("data*")), "files are left")


if __name__ == "__main__":
    sys.exit(start(HaccioTests))
