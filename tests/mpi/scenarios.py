#!/usr/bin/env python3
"""Runs of several ranks: starts tests/mpi/ranks.c under mpiexec, and looks at the histories that are left.

usage: scenarios.py --program RANKS --mpiexec "MPIEXEC FLAGS" --ranks N SCENARIO [ARGUMENT ...]

Needs twinrun in the interpreter that runs it: what C wrote is read and verified by the commands that users have. Exit
status 0 if all is as it should be; else what is not, on standard error.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

sys.path[:0] = [
    str(Path(__file__).resolve().parents[2] / part)
    for part in ("spec/reader", "tests/python/support", "tests/support")
]
from commands import command  # noqa: E402
from twinrun_spec.metadata import parse_file, verify  # noqa: E402

from mpi import Job, Scenarios, Skipped, expect, is_hydra, start  # noqa: E402


def twinrun(*arguments: object, status: int = 0) -> str:
    """What the command says, run in this process."""
    done = command(*arguments)
    expect(done.status == status, "twinrun", *arguments, "gives", done.status, done.out, done.err)
    return done.out


def steps_of(history: Path) -> list[int]:
    return [step["step"] for step in json.loads(twinrun("log", "--json", history))["steps"]]


def is_sound(history: Path, steps: list[int]) -> None:
    """These steps and no other, every checksum right, and nothing half done beside them."""
    twinrun("verify", history)
    expect(steps_of(history) == steps, history, "has steps", steps_of(history), "instead of", steps)


def fields_of(history: Path, step: int, rank: int) -> dict:
    """Fields of one rank's metadata file by name, read and computed again by the reader of spec/."""
    (path,) = history.glob(f"step-{step:010}*/rank-{rank:05}.twm")
    problems = verify(path)
    expect(not problems, path, problems)
    return {field.name: field for field in parse_file(path).fields}


class RankTests(Scenarios):
    def __init__(self, *arguments: object):
        super().__init__(*arguments)
        self.history = self.folder / "history"

    def job(
        self,
        *arguments: object,
        status: int | None = 0,
        environment: dict[str, str] | None = None,
        ranks: int | None = None,
    ) -> Job:
        job = self.start(*arguments, environment=environment, ranks=ranks)
        if status == 0 and job.numbers("threads"):
            raise Skipped("this MPI gives no MPI_THREAD_MULTIPLE")
        if status is not None:
            expect(job.status == status, f"status {job.status}:", job)
            expect(status != 0 or "\ndone\n" in "\n" + job.out, "it did not reach its end:", job)
        return job

    def capture(self) -> None:
        """Every rank's arrays, and their place in the global one; then more by another job."""
        self.job("capture", self.history, 3)
        is_sound(self.history, [1, 2, 3])
        rows = 0
        for rank in range(self.ranks):
            fields = fields_of(self.history, 2, rank)
            expect(list(fields) == ["x", "mark"], "rank", rank, "has", list(fields))
            x = fields["x"]
            expect(
                x.global_shape == (24, 700) and x.global_offset == (rows, 0),
                rank,
                x.global_shape,
                x.global_offset,
            )
            expect(fields["mark"].global_shape is None, "mark has a place in a global array")
            rows += x.shape[0]
        expect(rows == 24, "the ranks have", rows, "rows in all")
        job = self.job("resume", self.history, 3, 5)
        expect(job.numbers("newest") == [3], job)
        is_sound(self.history, [1, 2, 3, 4, 5])
        # The same arrays again are the same history, and others are not.
        again = self.folder / "again"
        self.job("capture", again, 5)
        twinrun("compare", self.history, again)

    def recut(self) -> None:
        """The same global array on other numbers of ranks: the same where it has a place, and told where it has none."""
        self.job("capture", self.history, 2)
        for other in (1, self.ranks + 1, 24):
            if other == self.ranks:
                continue
            path = self.folder / f"on-{other}"
            self.job("capture", path, 2, ranks=other)
            for pair in ((self.history, path), (path, self.history)):
                said = twinrun("compare", *pair, "--field", "x")
                expect("same: 1 field, 2 steps, 33600 elements" in said, said)
            said = twinrun("compare", self.history, path, status=2)
            expect("could not be compared" in said and "not there" in said, said)
            # One value of one rank's file is found at its place in the global array.
            (data,) = path.glob("step-0000000002/rank-00000.data")
            before = data.stat()
            with data.open("r+b") as file:
                file.seek(8 * 5)
                file.write(bytes(8))
            os.utime(
                data, ns=(before.st_atime_ns, before.st_mtime_ns)
            )  # else it is refused as newer than its metadata
            said = twinrun("compare", self.history, path, "--field", "x", "--no-metadata", status=1)
            expect("first at step 2, x[0, 5]" in said, said)

    def disagree(self) -> None:
        self.job("disagree", self.history)
        is_sound(self.history, [1, 7])

    def invalid(self) -> None:
        self.job("invalid", self.history)
        is_sound(self.history, [1, 2, 3])

    def communicators(self) -> None:
        self.job("communicators", self.history)
        is_sound(self.history, [1, 2, 3])
        for part in range(min(2, self.ranks)):
            is_sound(self.folder / f"history-{part}", [10, 20, 30])

    def storage(self) -> None:
        self.job("storage", self.history)

    def finalize(self) -> None:
        """twr_close after MPI_Finalize: no call of MPI, and what was committed stays."""
        self.job("finalize", self.history)
        is_sound(self.history, [1])

    def incomplete(self) -> None:
        """A step that one rank did not commit is no step, for whoever asks, and is captured again."""
        self.job("capture", self.history, 4)
        journal = self.history / f"rank-{self.ranks - 1:05}.jsonl"
        lines = journal.read_bytes().splitlines(keepends=True)
        expect(b'"step":4' in lines[-1], "the last line is not step 4's", lines[-1])
        journal.write_bytes(b"".join(lines[:-1]))
        # As a rank leaves it that is killed before its commit: the mark goes last.
        (self.history / "step-0000000004" / f"rank-{self.ranks - 1:05}.begun").touch()
        is_sound(self.history, [1, 2, 3])
        job = self.job("resume", self.history, 3, 5)
        expect(job.numbers("newest") == [3], job)
        is_sound(self.history, [1, 2, 3, 4, 5])

    def shared(self) -> None:
        """Ranks' data in few files: as it was, whatever their number; what stays is what is to stay."""
        steps = list(range(1, 12))
        two_nodes = {"MPIR_CVAR_NUM_CLIQUES": "2"}  # MPICH's
        plain = self.folder / "plain"
        self.job("shared", plain, 1, 11)
        for name, files, settings, environment in (
            ("one", "one", (), {}),
            ("nodes", "node", (), two_nodes),
            ("waiting", "one", ("background", "false"), {}),
            ("waiting-nodes", "node", ("background", "false"), two_nodes),
            ("little-memory", "one", ("memory", "16 MiB", "flush_threads", "1"), two_nodes),
        ):
            history = self.folder / name
            self.job("shared", history, 1, 11, "shared_files", files, *settings, environment=environment)
            is_sound(history, steps)
            wanted = min(2, self.ranks) if files == "node" and is_hydra(self.mpiexec) else 1
            for step in steps:
                groups = list(history.glob(f"step-{step:010}/group.*"))
                expect(len(groups) == wanted, history, "has", groups)
                own = list(history.glob(f"step-{step:010}/rank-*.data"))
                expect(not own, "ranks have files of their own:", own)
            twinrun("compare", plain, history)
            self.job("shared_reread", history, 1, 11)
            # Goes on, with files of each rank's own, and with shared ones again.
            self.job("shared", history, 12, 13, "existing", "append")
            self.job("shared", history, 14, 15, "existing", "append", "shared_files", "one")
            is_sound(history, list(range(1, 16)))
            self.job("shared_reread", history, 1, 15)
        few = self.folder / "few"
        self.job("shared", few, 1, 11, "shared_files", "one", "keep_steps", 3)
        is_sound(few, [9, 10, 11])
        left = sorted(p.name for p in few.glob("step-*"))
        expect(left == [f"step-{s:010}" for s in (9, 10, 11)], "what stays:", left)
        # Steps in files of all ranks, and others of each rank's own, as a record; and what comes back.
        mixed, packed, back = (self.folder / name for name in ("one", "packed", "back"))
        whole = list(range(1, 16))
        twinrun("pack", mixed, packed)
        is_sound(packed, whole)
        twinrun("compare", mixed, packed)
        twinrun("compare", "--common", plain, packed)
        twinrun("restore", packed, back)
        is_sound(back, whole)
        twinrun("compare", mixed, back)
        for step in (1, 11, 15):
            own = b"".join(
                (back / f"step-{step:010}" / f"rank-{rank:05}.data").read_bytes()
                for rank in range(self.ranks)
            )
            there = sorted((mixed / f"step-{step:010}").glob("group.data*")) or sorted(
                (mixed / f"step-{step:010}").glob("rank-*.data")
            )
            expect(own == b"".join(path.read_bytes() for path in there), "other bytes in step", step)
        self.job("shared_reread", back, 1, 15)
        twinrun("compact", packed, "--keep-last", 4)
        is_sound(packed, whole[-4:])
        for verb in ("show", "log", "verify"):
            twinrun(verb, mixed)
            twinrun(verb, packed)
        changed = self.folder / "changed"  # the same run, but for a byte
        shutil.copytree(back, changed)
        (data,) = changed.glob("step-0000000014/rank-00000.data")
        bad = bytearray(data.read_bytes())
        bad[100] ^= 1
        data.write_bytes(bad)
        done = command("verify", changed)
        expect(done.status == 1 and "damaged" in done.out + done.err, done.out, done.err)
        # Each byte of the file is some rank's, and looked at.
        (file,) = few.glob("step-0000000009/group.data")
        good = file.read_bytes()
        for place in (0, len(good) // 2, len(good) - 1):
            bad = bytearray(good)
            bad[place] ^= 16
            file.write_bytes(bad)
            done = command("verify", few)
            expect(done.status != 0 and "damaged" in done.out + done.err, place, done.out, done.err)

    def shared_threads(self) -> None:
        """MPI for one thread alone: an error, or steps written by the caller."""
        self.job("shared_funneled", self.history)
        is_sound(self.history, [1, 2, 3])
        self.job("shared_refused", self.folder / "refused")
        expect(not (self.folder / "refused").exists(), "a history was made by what was refused")

    def shared_fault(self, point: str, *settings: str) -> None:
        """Storage fails on one rank, once, at the first, second, ... call of this kind."""
        for who in sorted({0, self.ranks - 1}):
            count, taken = 0, 0
            while True:
                shutil.rmtree(self.folder)
                self.folder.mkdir()
                job = self.job("shared_fault", self.history, point, count, who, "shared_files", *settings)
                hit = job.numbers("reached") == [count]
                expect(hit or job.numbers("spared") == [count], job)
                found = steps_of(self.history)
                # Of a step whose line is there and may not be synced nothing is promised.
                expect(found == [1, 2, 3, 4, 5] or (hit and found == [1, 2, 4, 5]), found, job)
                is_sound(self.history, found)
                partial = [f for f in self.history.rglob("*") if f.name.endswith((".tmp", ".twr-partial"))]
                expect(not partial, "left over:", partial)
                if not hit:
                    break
                taken += found != [1, 2, 3, 4, 5]
                count += 1
            expect(taken > 0, f"no fault of {point} on rank {who} took a step")

    def fortran(self) -> None:
        job = Job([*self.mpiexec, "-n", str(self.ranks), self.program, str(self.history)])
        expect(job.status == 0 and "done" in job.out, job)
        is_sound(self.history, [1, 2, 3])
        x = fields_of(self.history, 3, self.ranks - 1)["x"]
        expect(x.global_shape == (2 * self.ranks, 1000), x.global_shape)  # slowest first

    def stop(self, *settings: str) -> None:
        """A rank stops for good before twr_wait: the others get an error that says so, and what was committed stays."""
        self.job("capture", self.history, 3)
        history = self.folder / "stopped"
        job = self.start("stop", history, *settings)
        if job.numbers("threads"):
            raise Skipped("this MPI gives no MPI_THREAD_MULTIPLE")
        for rank in range(self.ranks - 1):
            path = self.folder / f"stopped.survivor-{rank}"
            expect(path.exists(), "rank", rank, "did not come out of twr_wait:", job)
            said = path.read_text()
            expect("TWINRUN_AGGREGATE_TIME_LIMIT" in said or "hangs" in said, said)
        expect(steps_of(history) in ([], [1]), "steps", steps_of(history))
        is_sound(self.history, [1, 2, 3])

    def die(self, point: str, *settings: str) -> None:
        """A rank dies at the first, second, ... call of this kind: the job ends, what was said to be committed is there, no
        half step is, and another job goes on."""
        for who in sorted({0, self.ranks - 1}):
            count, reached = 0, 0
            while True:
                shutil.rmtree(self.folder)
                self.folder.mkdir()
                given = [s.replace("FOLDER", str(self.folder)) for s in settings]
                job = self.job("die", self.history, point, count, who, *given, status=None)
                if job.status == 0:
                    expect("alive" in job.out, "it ended well, and nobody died:", job)
                    break
                expect(
                    "alive" not in job.out and "ranks.c:" not in job.out, "it did not die as planned:", job
                )
                reached += 1
                promised = max(job.numbers("committed"), default=0)
                expect(promised >= 2, job)
                if "local" not in given:  # else steps may still rest on the tier before
                    found = steps_of(self.history)
                    expect(
                        found == list(range(1, len(found) + 1)) and promised <= len(found) <= 5, found, job
                    )
                    is_sound(self.history, found)
                resumed = self.start("resume", self.history, promised, 7)
                expect(resumed.status == 0, job, resumed)
                is_sound(self.history, [1, 2, 3, 4, 5, 6, 7])
                left = [f for f in self.history.rglob("*") if f.name.endswith((".tmp", ".twr-partial"))]
                expect(not left, "left over:", left)
                if point == "captured":
                    break
                # All calls of the first step, which are five at most, then every third: those of later steps are the same again.
                count += 1 if count < 5 else 3
            expect(reached > 0, f"rank {who} never came to {point}")


if __name__ == "__main__":
    sys.exit(start(RankTests))
