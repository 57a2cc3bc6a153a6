"""The engine for batch systems: each attempt is a job, by PSI/J (Slurm, PBS, Flux, LSF, Cobalt; psij-python).

The folder of the study must be on storage that compute nodes share. A job runs the watcher on its first node:
what is measured is what runs there. Commands of several nodes hold their own srun or mpirun; pressure and
run-queue delay are then the first node's.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import MissingPackage, TwinrunError
from ..study.study import Study
from .engines import WATCH, EngineBase, Running, State, examine

if TYPE_CHECKING:
    import psij

__all__ = ["BatchEngine"]

_RECORD_LAG = 30.0  # seconds that a record may appear after the end of its job: shared storage


class BatchEngine(EngineBase):
    """Jobs of a batch system."""

    def __init__(self, study: Study, folder: Path) -> None:
        super().__init__(study)
        try:
            import psij
        except ModuleNotFoundError:
            raise MissingPackage.of("psij-python", "twinrun[batch]") from None
        self._psij = psij
        kind = study.engine.executor
        self.name = f"psij:{kind}"
        try:
            self._executor = psij.JobExecutor.get_instance(kind)
        except ValueError:
            known = ", ".join(sorted(psij.JobExecutor.get_executor_names()))
            raise TwinrunError(f"PSI/J knows no executor {kind!r:.40}", fix=f"it knows {known}") from None
        if hasattr(self._executor, "work_directory"):
            # Files that PSI/J itself writes: on shared storage, as the study's folder is.
            self._executor.work_directory = folder / "psij"
            self._executor.work_directory.mkdir(exist_ok=True)
        if study.engine.poll and hasattr(self._executor, "config"):
            for field in ("queue_polling_interval", "initial_queue_polling_delay"):
                if hasattr(self._executor.config, field):
                    setattr(self._executor.config, field, study.engine.poll)
        self._jobs = 0
        for factor in study.factors:
            if factor.kind == "cores" and study.engine.nodes > 1:
                raise TwinrunError(
                    f"the factor {factor.name} is of one node, and jobs have {study.engine.nodes}"
                )

    def free(self) -> bool:
        return self._jobs < self.study.concurrency

    def _spec(self, running: Running, node: str | None) -> psij.JobSpec:
        psij, engine = self._psij, self.study.engine
        resources = psij.ResourceSpecV1(
            node_count=engine.nodes,
            processes_per_node=engine.processes_per_node or 1,
            cpu_cores_per_process=engine.cores_per_process or engine.cores_per_task or 1,
            exclusive_node_use=engine.exclusive,
        )
        limit = engine.walltime or ((self.study.time_limit or 3540.0) + 60)
        custom: dict[str, str] = {**engine.attributes}
        if node is not None:
            custom.setdefault(f"{engine.executor}.nodelist", node)
        attributes = psij.JobAttributes(
            duration=datetime.timedelta(seconds=limit),
            queue_name=engine.queue or None,
            project_name=engine.project or None,
            custom_attributes=custom or None,
        )
        return psij.JobSpec(
            executable=sys.executable,
            arguments=["-I", "-S", str(WATCH), str(running.folder)],
            directory=str(running.folder),
            name=f"twinrun-{running.task}-{running.attempt}",
            stdout_path=str(running.folder / "agent"),
            stderr_path=str(running.folder / "agent"),
            resources=resources,
            attributes=attributes,
            launcher=engine.batch_launcher,
        )

    def start(self, running: Running, node: str | None) -> None:
        job = self._psij.Job(self._spec(running, node))
        try:
            self._executor.submit(job)
        except self._psij.SubmitException as e:
            raise TwinrunError(f"{self.name} did not take the job: {e}") from None
        running.token = job
        self._jobs += 1
        (running.folder / "submitted.json").write_text(json.dumps({"native_id": job.native_id}))

    def adopt(self, running: Running) -> None:
        self._jobs += 1
        try:
            native = json.loads((running.folder / "submitted.json").read_text())["native_id"]
        except (OSError, ValueError, KeyError):
            return  # its lock shows whether it lives
        job = self._psij.Job()
        try:
            self._executor.attach(job, str(native))
            running.token = job
        except Exception:  # whatever PSI/J's executors raise for a job that does not exist any more
            running.token = None

    def alive(self, running: Running) -> bool:
        job = running.token
        if job is None:
            return examine(running.folder) in (State.RUNNING, State.SUBMITTED)
        if not job.status.final:
            return True
        # The record may not be visible here yet.
        ended = running.extra.setdefault("ended", time.monotonic())
        waited = time.monotonic() - ended
        return waited < (_RECORD_LAG if (running.folder / "claim").exists() else 2.0)

    def stop(self, running: Running) -> None:
        if running.token is not None:
            with contextlib.suppress(self._psij.SubmitException, self._psij.InvalidJobException):
                running.token.cancel()

    def done(self, running: Running) -> None:
        self._jobs -= 1

    def pause(self) -> float:
        return 0.2 if self.study.engine.executor == "local" else 1.0
