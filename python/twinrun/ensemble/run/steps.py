"""The engine for the inside of a Slurm allocation: each attempt is a step, started by srun on a
slot of a node.

The runner works on any node of the allocation, or where salloc was called. The study's folder must
be on storage that the nodes share. Cores of a step are what Slurm binds it to; the watcher records
them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import time
from pathlib import Path

from ...errors import TwinrunError
from ..study.study import Study
from .children import ChildEngine
from .engines import Running, State, examine

__all__ = ["StepEngine", "cpus_of"]

_RECORD_LAG = 30.0  # seconds that a record may appear after the end of its step: shared storage


def cpus_of(text: str) -> list[int]:
    """The CPUs of each node, of SLURM_JOB_CPUS_PER_NODE: '4(x2),8'. Raises ValueError."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            raise ValueError(text)
        found += [int(match[1])] * int(match[2] or 1)
    return found


def _allocation() -> list[tuple[str, int]]:
    """(node, CPUs) of the allocation. Raises TwinrunError where there is none."""
    listed, cpus = os.environ.get("SLURM_JOB_NODELIST"), os.environ.get("SLURM_JOB_CPUS_PER_NODE")
    if not os.environ.get("SLURM_JOB_ID") or not listed or not cpus:
        raise TwinrunError(
            "engine srun needs an allocation of Slurm", fix="start the runner inside of salloc or sbatch"
        )
    try:
        done = subprocess.run(
            ["scontrol", "show", "hostnames", listed], capture_output=True, text=True, check=True
        )
        return list(zip(done.stdout.split(), cpus_of(cpus), strict=True))
    except (OSError, subprocess.CalledProcessError, ValueError) as e:
        raise TwinrunError(f"the nodes {listed!r:.80} of the allocation cannot be listed: {e}") from None


class StepEngine(ChildEngine):
    """Steps of the allocation that this process is in."""

    name = "srun"
    gate = 1.0  # shared storage shows a file late

    def __init__(self, study: Study) -> None:
        super().__init__(study)
        for factor in study.factors:
            if factor.kind == "cores":
                raise TwinrunError(f"the factor {factor.name} binds cores, and Slurm binds those of steps")
        if study.design.nodes:
            raise TwinrunError(
                "design.nodes is for engines that start a job for each task",
                fix="leave it out: slots are drawn at random",
            )
        each = study.engine.cores_per_task or 1
        # Round the nodes, so that fewer tasks than slots spread over them.
        free = {node: cpus // each for node, cpus in _allocation()}
        slots: list[str] = []
        while any(free.values()):
            for node in free:
                if free[node]:
                    free[node] -= 1
                    slots.append(node)
        if "concurrency" in study.document and study.concurrency > len(slots):
            raise TwinrunError(
                f"{study.concurrency} tasks at once with {each} cores each need more than the allocation's {len(slots)} slots",
                fix="lower concurrency or engine.cores_per_task, or ask Slurm for more",
            )
        self._nodes = slots[: study.concurrency]
        if not self._nodes:
            raise TwinrunError(
                f"no node of the allocation has {each} cores", fix="lower engine.cores_per_task"
            )
        self._make_slots(len(self._nodes))
        launcher = tuple(study.engine.launcher)
        self._launcher = ["srun"] if launcher == ("mpirun",) else list(launcher)

    def start(self, running: Running, node: str | None) -> None:
        slot = self._unused[0]
        each = self.study.engine.cores_per_task or 1
        self._take(running, slot)
        self._launch(running, [*self._launcher, "--nodes=1", "--ntasks=1", f"--cpus-per-task={each}", f"--nodelist={self._nodes[slot]}",
                               "--exact", "--mpi=none", "--input=none", "--unbuffered", f"--chdir={running.folder}"])  # fmt: skip
        (running.folder / "submitted.json").write_text(json.dumps({"native_id": running.token.pid}))

    def adopt(self, running: Running) -> None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            slot = json.loads((running.folder / "spec.json").read_text())["slot"]
            self._take(running, slot)

    def _srun_of(self, folder: Path) -> int | None:
        """The process of an earlier runner's srun for this attempt, if it still runs here."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            pid = int(json.loads((folder / "submitted.json").read_text())["native_id"])
            if os.fsencode(folder) in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                return pid
        return None

    def alive(self, running: Running) -> bool:
        if running.token is not None:
            ended = running.token.poll() is not None
        else:
            ended = examine(running.folder) != State.RUNNING and self._srun_of(running.folder) is None
        if not ended:
            return True
        # The record may not be visible here yet.
        since = running.extra.setdefault("ended", time.monotonic())
        claimed = (running.folder / "claim").exists() and examine(running.folder) != State.LOST
        return time.monotonic() - since < (_RECORD_LAG if claimed else 0.5)

    def stop(self, running: Running) -> None:
        if running.token is not None:
            running.token.terminate()  # srun hands it on to the watcher
            return
        pid = self._srun_of(running.folder)
        if pid is not None:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGTERM)

    def files(self) -> list[int]:
        # A step that has ended and whose record is awaited would wake every poll.
        return [f for f in self._files if not _ended(f)]


def _ended(file: int) -> bool:
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(0))
