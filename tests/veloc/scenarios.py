#!/usr/bin/env python3
"""VELOC's interface: starts tests/veloc/functions.c and examples/veloc/heatdis.c, and looks at what is left.

usage: scenarios.py --program PROGRAM --mpiexec "MPIEXEC FLAGS" --ranks N SCENARIO [MODE]

Exit status 0 if all is as it should be; else what is not, on standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "mpi"))
from scenarios import Job, Scenarios, expect, fields_of, is_sound, start, steps_of, twinrun

COLUMNS, ROWS, STEPS, EVERY = 60, 47, 50, 10


class Tests(Scenarios):
    def config(self, name: str, mode: str = "async", **keys: object) -> Path:
        """A configuration file whose histories lie in folders of this name."""
        lines = {
            "scratch": self.folder / name / "scratch",
            "persistent": self.folder / name / "persistent",
            "mode": mode,
            "twinrun_log": self.folder / f"{name}.log",
            "twinrun_type_1": "f64",
            **keys,
        }
        path = self.folder / f"{name}.cfg"
        path.write_text("".join(f"{key} = {value}\n" for key, value in lines.items() if value is not None))
        return path

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def history(self, name: str) -> Path:
        return self.folder / name / "persistent" / "heatdis"

    # ---- each function ----

    def functions(
        self, command: list[str], kind: str, mode: str, ending: str, folder: str, **keys: object
    ) -> None:
        config = self.config(
            "all", mode, twinrun_name_1="temperature", chksum="true", meta="/nowhere", **keys
        )
        check = self.plant(kind, ending, "async" in mode and folder == "persistent")
        job = Job([*command, kind, str(config), str(self.folder)])
        expect(job.status == 0 and "done" in job.out, f"status {job.status}:", job)
        check()
        for name, steps in (
            ("heat", [1, 2, 5, 6]),
            ("cold.1", [1, 2]),
            ("own_regions", [11, 12]),
            ("file", [1, 2, 4]),
        ):
            is_sound(self.folder / "all" / folder / (name + ending), steps)
        rank = self.ranks - 1 if kind == "collective" else 0
        fields = fields_of(self.folder / "all" / folder / ("heat" + ending), 1, rank)
        types = {name: field.dtype.name for name, field in fields.items()}
        expect(types == {"region--2": "u8", "region-0": "u8", "temperature": "f64"}, types)
        parts = fields_of(self.folder / "all" / folder / ("heat" + ending), 6, rank)
        expect(sorted(parts) == ["region--2", "region-0"], list(parts))
        expect("protect some before" in self.log("all"), "errors are not in the log:", self.log("all"))
        expect("chksum" not in self.log("all"), "a key of VELOC's is called unknown")

    def plant(self, kind: str, ending: str, has_local: bool) -> Callable[[], None]:
        """Somebody's files beside those that VELOC_Cleanup("file") removes. What comes back checks that they are there."""
        own = 7 if kind == "single" else 0
        scratch = self.folder / "all" / "scratch"
        number = 0xCBF29CE484222325
        for byte in str(self.folder / "all" / "persistent" / ("file" + ending)).encode():
            number = (number ^ byte) * 0x100000001B3 % (1 << 64)
        local = scratch / f"twinrun-file{ending}-{number:016x}"
        files = [
            scratch / f"file-{own}-{rest}"
            for rest in ("007.dat", "-1.dat", "1x.dat", "1.dat.bak", ".dat", "99999999999.dat", "9.dat/notes")
        ]
        files += [scratch / "notes", scratch / f"file-{own + 100}-1.dat"]
        parts = [local, local / "rank-00000", local / "rank-00000" / "step-0000000001", local / "rank-00099"]
        files += [folder / "notes" for folder in parts]
        for path in files:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(path.name)
        link = scratch / f"file-{own}-8.dat"
        link.symlink_to("notes")
        routed = scratch / f"file-{own}-99.dat"
        routed.write_text("of a process that died")

        def check() -> None:
            for path in files:
                expect(path.exists() and path.read_text() == path.name, "somebody's", path, "is gone")
            expect(link.is_symlink(), "somebody's link is gone")
            expect(not routed.exists(), "a routed file of an earlier process is still there")
            if has_local:
                left = sorted(str(path.relative_to(local)) for path in local.rglob("*") if path.is_file())
                expect(
                    left == sorted(str((f / "notes").relative_to(local)) for f in parts), "left over:", left
                )

        return check

    def single(self, mode: str) -> None:
        self.functions([self.program], "single", mode, "-7", "persistent")

    def scratch_only(self, mode: str) -> None:
        self.functions([self.program], "single", mode, "-7", "scratch", persistent_interval=-1)

    def collective(self, mode: str) -> None:
        self.functions(
            [*self.mpiexec, "-n", str(self.ranks), self.program], "collective", mode, "", "persistent"
        )

    # ---- a code ----

    def heatdis(self, config: Path, *more: str, status: int | None = 0) -> tuple[Job, str]:
        """The job and the fingerprint of its result."""
        arguments = [config, COLUMNS, ROWS, STEPS, EVERY, *more]
        job = Job([*self.mpiexec, "-n", str(self.ranks), self.program, *map(str, arguments)])
        expect(status is None or job.status == status, f"status {job.status}:", job)
        words = job.out.split()
        return job, words[words.index("fingerprint") + 1] if "fingerprint" in words else ""

    def restart(self, mode: str) -> None:
        """Killed and started again, it ends with the same bits; so do its histories."""
        _, whole = self.heatdis(self.config("whole", mode))
        expect(whole != "", "no result")
        config = self.config("killed", mode)
        for die in (3, 25, 35, 49):
            job, _ = self.heatdis(config, f"die={die}", status=None)
            expect(job.status != 0 and "fingerprint" not in job.out, "it was not killed:", job)
            if self.history("killed").exists():
                twinrun("verify", self.history("killed"))
            if mode == "sync":  # then all that VELOC_Checkpoint returned for is there
                expected = list(range(EVERY, die, EVERY))
                found = steps_of(self.history("killed")) if self.history("killed").exists() else []
                expect(found == expected, found, "instead of", expected, job)
        job, again = self.heatdis(config)
        expect(again == whole, "another result:", whole, job)
        if mode == "sync":
            expect("restarted from step 40" in job.out, job)
        for name in ("whole", "killed"):
            is_sound(self.history(name), list(range(EVERY, STEPS + 1, EVERY)))
        twinrun("compare", self.history("whole"), self.history("killed"))
        # Once more: it restarts from the end, and there is nothing to do.
        job, again = self.heatdis(config)
        expect(again == whole and f"restarted from step {STEPS}" in job.out, job)

    def same(self, mode: str) -> None:
        """Two runs with one scratch folder: their histories do not meet there."""
        scratch = self.folder / "scratch"
        _, a = self.heatdis(self.config("a", mode, scratch=scratch))
        _, b = self.heatdis(self.config("b", mode, scratch=scratch))
        expect(a == b, "not deterministic")
        twinrun("compare", self.history("a"), self.history("b"))

    def different(self, mode: str) -> None:
        """Another order of summation: other bits, the same within a tolerance."""
        for name, keys in (("exact", {}), ("loose", {"twinrun_atol": "1e-9"})):
            keys = {"twinrun_name_1": "plate", **keys}
            _, a = self.heatdis(self.config(name + "_a", mode, **keys))
            _, b = self.heatdis(self.config(name + "_b", mode, **keys), "reverse")
            expect(a != b, "the order of summation made no difference")
            text = twinrun(
                "compare",
                self.history(name + "_a"),
                self.history(name + "_b"),
                status=1 if name == "exact" else 0,
            )
            last = text.strip().splitlines()[-1]
            expect(last.startswith("different" if name == "exact" else "same"), last)
            expect(name == "loose" or "plate[" in last, last)
            expect("region-0" not in last, "the step counter differs:", last)

    def online(self) -> None:
        """With a reference, a code that knows nothing of it stops where it first differs."""
        self.heatdis(self.config("a"))
        keys = {"twinrun_reference": self.folder / "a" / "persistent", "twinrun_stop_on_divergence": "true"}
        self.heatdis(self.config("b", **keys))
        job, result = self.heatdis(self.config("c", **keys), "reverse", status=None)
        expect(job.status != 0 and result == "", "it did not stop:", job)
        expect(
            "region-1" in self.log("c") and "step 10" in self.log("c"),
            "the log says not where:",
            self.log("c"),
        )
        # The same by the environment, with the file as it was.
        log = self.folder / "d.log"
        job = Job(
            [
                "env",
                f"VELOC_TWINRUN_REFERENCE={self.folder / 'a' / 'persistent'}",
                "VELOC_TWINRUN_STOP_ON_DIVERGENCE=true",
                *[*self.mpiexec, "-n", str(self.ranks), self.program, str(self.config("d"))],
                *map(str, (COLUMNS, ROWS, STEPS, EVERY, "reverse")),
            ]
        )
        expect(job.status != 0 and log.exists(), "it did not stop:", job)

    def versions(self) -> None:
        """max_versions: the newest stay, and a restart finds them."""
        config = self.config("few", "sync", max_versions=2, scratch_versions=1)
        _, whole = self.heatdis(config)
        found = steps_of(self.history("few"))
        expect(found[-2:] == [STEPS - EVERY, STEPS] and len(found) < STEPS // EVERY, found)
        twinrun("verify", self.history("few"))
        job, again = self.heatdis(config)
        expect(again == whole and f"restarted from step {STEPS}" in job.out, job)

    def incomplete(self) -> None:
        """A version that one rank did not complete is not offered."""
        config = self.config("cut", "sync")
        _, whole = self.heatdis(config)
        journal = self.history("cut") / f"rank-{self.ranks - 1:05}.jsonl"
        lines = journal.read_bytes().splitlines(keepends=True)
        expect(b'"step":50' in lines[-1], lines[-1])
        journal.write_bytes(b"".join(lines[:-1]))
        job, again = self.heatdis(config)
        expect("restarted from step 40" in job.out and again == whole, job)
        is_sound(self.history("cut"), [10, 20, 30, 40, 50])

    def damaged(self) -> None:
        """A flipped bit of one rank: it says so, and no rank reaches the end with it."""
        config = self.config("bit", "sync")
        self.heatdis(config)
        data = sorted(self.history("bit").rglob("rank-00001.data"))[-1]
        content = bytearray(data.read_bytes())
        content[4096 + 100] ^= 1
        data.write_bytes(content)
        twinrun("verify", self.history("bit"), status=1)
        job, _ = self.heatdis(config, status=None)
        # All ranks abort at once: what they print may be lost on its way through mpiexec.
        expect(job.status != 0 and "fingerprint" not in job.out, "it went on:", job)
        expect("rank 1: VELOC_Restart" in self.log("bit"), self.log("bit"))


if __name__ == "__main__":
    sys.exit(start(Tests))
