"""A rank of the jobs that test_parallel.py starts: runs verbs one after another, and writes down what this rank did.

usage: ranks.py COMMANDS FOLDER [FAULT]. COMMANDS: JSON, a list of lists of words. FOLDER: gets <number>.<rank>.json, each
{"status", "out", "err", "parts"}; parts: of fields that were divided, how many this rank compared. TWINRUN_TEST_PIECE: bytes from
which on fields are divided. FAULT: absent (a worker has no mpi4py); in its first unit: kill or defect (of a worker),
interrupt (of the leader).
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
import time

from commands import command

from twinrun.comparison import parallel
from twinrun.comparison import shares as units
from twinrun.comparison.unit import Worker


def rank() -> int:
    """As the launcher numbers this one."""
    found = parallel.launched()
    return 0 if found is None else found[2]


def break_down(fault: str, begun: pathlib.Path) -> None:
    """Lets the rank that the fault names fail in its first unit; no other rank works before that.

    Else a worker that is slow to start gets no unit: the leader has done all of them.
    begun: the file that the failing rank makes.
    """
    fails = (rank() == 0) == (fault == "interrupt")
    if fault == "absent":
        if fails:
            sys.modules["mpi4py"] = None
        return
    run = Worker.run

    def failing(self: object, unit: object) -> object:
        if not begun.exists():
            begun.touch()
            if fault == "defect":
                raise RuntimeError("made for a test")
            os.kill(os.getpid(), {"kill": signal.SIGKILL, "interrupt": signal.SIGINT}[fault])
        return run(self, unit)

    def waiting(self: object, unit: object) -> object:
        while not begun.exists():
            time.sleep(1e-3)
        return run(self, unit)

    Worker.run = failing if fails else waiting


def counted() -> list[object]:
    """Gets every part of a divided field that this rank compares."""
    parts: list[object] = []
    run = Worker.run

    def counting(self: object, unit: object) -> object:
        outcome = run(self, unit)
        parts.extend(outcome.parts)
        return outcome

    Worker.run = counting
    return parts


def main() -> None:
    units.LEAST_PIECE = int(os.environ.get("TWINRUN_TEST_PIECE", units.LEAST_PIECE))
    parts = counted()
    commands, folder = json.loads(pathlib.Path(sys.argv[1]).read_text()), pathlib.Path(sys.argv[2])
    if len(sys.argv) > 3:
        break_down(sys.argv[3], folder / "begun")
        from twinrun.cli import main as alone

        alone(commands[0])
    for number, words in enumerate(commands):
        parts.clear()
        outcome = command(*words)
        report = {"status": outcome.status, "out": outcome.out, "err": outcome.err, "parts": len(parts)}
        (folder / f"{number}.{rank()}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
