"""Engines on this node: processes with cores of their own, and mpirun."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping

from ...errors import TwinrunError
from ..study.study import Study
from ..study.templates import fill
from ..watch.cores import cores_of_level, list_of_numbers
from .children import ChildEngine
from .engines import Running, examine
from .ranks import sharing

__all__ = ["LocalEngine", "MpiEngine", "slots"]


def slots(study: Study, allowed: list[int]) -> list[list[int]]:
    """Cores of each of the tasks that run at once: no core twice, unless the study shares them.

    Raises TwinrunError.
    """
    engine, at_once = study.engine, study.concurrency
    each = engine.cores_per_task or (len(allowed) // at_once if not engine.share_cores else len(allowed))
    if engine.share_cores:
        if engine.cores_per_task and engine.cores_per_task < len(allowed):
            # As many as requested, spread so that as few as possible share a core.
            return [
                sorted(allowed[(i * each + k) % len(allowed)] for k in range(each)) for i in range(at_once)
            ]
        return [list(allowed)] * at_once
    if each < 1 or each * at_once > len(allowed):
        raise TwinrunError(
            f"{at_once} tasks at once with {max(each, 1)} cores each need more than the {len(allowed)} cores "
            f"{list_of_numbers(allowed)}",
            fix="lower concurrency or engine.cores_per_task, or set engine.share_cores = true",
        )
    # From the end: the first cores serve most interrupts, and stay for the system.
    start = len(allowed) - each * at_once
    return [allowed[start + i * each : start + (i + 1) * each] for i in range(at_once)]


class LocalEngine(ChildEngine):
    """Runs attempts as processes of this node."""

    name = "local"
    gate = 0.1

    def __init__(self, study: Study) -> None:
        super().__init__(study)
        self._allowed = sorted(os.sched_getaffinity(0))
        pinned = study.engine.pin
        self._slots = slots(study, self._allowed) if pinned else [self._allowed] * study.concurrency
        self._make_slots(len(self._slots))
        self._free = set(self._allowed).difference(*self._slots)
        for factor in study.factors:
            if factor.kind != "cores":
                continue
            if not pinned:
                raise TwinrunError(f"the factor {factor.name} needs engine.pin")
            for level in factor.levels:
                for slot in self._slots:
                    try:
                        cores_of_level(factor.value(level), slot, study.engine.spare)
                    except ValueError as e:
                        raise TwinrunError(
                            f"level {level} of {factor.name} cannot be on this node: {e}",
                            fix="give tasks more cores: lower concurrency, or set engine.cores_per_task",
                        ) from None
        if self._free:
            # This process and its watchers do not use the tasks' cores.
            os.sched_setaffinity(0, self._free)

    def cores(self) -> list[int] | None:
        return self._slots[self._unused[0]]

    def own_cores(self, level: str | None, cores: list[int] | None) -> list[int] | None:
        if self._free:
            return sorted(self._free)
        if level is not None and cores is not None:
            left = set(cores) - set(cores_of_level(level, cores, self.study.engine.spare))
            return sorted(left) or None
        return None

    def start(self, running: Running, node: str | None) -> None:
        self._take(running, self._unused[0])
        self._launch(running)

    def adopt(self, running: Running) -> None:
        """Its cores are taken while it runs."""
        for slot in self._unused:
            if running.cores is None or set(self._slots[slot]) & set(running.cores):
                self._take(running, slot)
                return

    def alive(self, running: Running) -> bool:
        if running.token is not None:
            return running.token.poll() is None
        return examine(running.folder) == "running"

    def stop(self, running: Running) -> None:
        if running.token is not None:
            running.token.terminate()
            return
        pid = _claimed_by(running)
        if pid is not None and examine(running.folder) == "running":
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    @contextlib.contextmanager
    def all_cores(self) -> Iterator[None]:
        own = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self._allowed)
        try:
            yield
        finally:
            os.sched_setaffinity(0, own)

    def close(self) -> None:
        if self._free:
            os.sched_setaffinity(0, self._allowed)


def _claimed_by(running: Running) -> int | None:
    import json

    try:
        return int(json.loads((running.folder / "claim").read_text())["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


class MpiEngine(LocalEngine):
    """Ranks of this node, by an MPI library's mpirun.

    The launcher binds no rank to cores: the study chose the task's.
    """

    name = "mpirun"

    def command(self, words: list[str], values: Mapping[str, str]) -> list[str]:
        launcher = [fill(w, values) for w in self.study.engine.launcher]
        return [*launcher, "-n", self._ranks(values), *words]

    def _ranks(self, values: Mapping[str, str]) -> str:
        ranks = fill(self.study.engine.ranks, values)
        if not ranks.isdigit() or int(ranks) < 1:
            raise TwinrunError(f"engine.ranks is {ranks!r:.40}, no number of ranks")
        return ranks

    def environment(self, values: Mapping[str, str]) -> dict[str, str]:
        # Names that an MPI library does not know do nothing.
        found = {
            "OMPI_MCA_hwloc_base_binding_policy": "none",
            "PRTE_MCA_hwloc_default_binding_policy": "none",
            "OMPI_MCA_osc": "^ucx",
        }
        if os.getuid() == 0:
            found |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return found | sharing(int(self._ranks(values)), int(values["core_count"] or 0))
