"""Work shared by the workers of an executor of `concurrent.futures`' kind.

This process opens the runs, submits batches of units and joins their outcomes, as the leader of an
MPI job does (`parallel`). A worker gets the paths of both runs and what was asked, once for each
batch, and opens both runs itself when its first batch arrives. Units travel as the numbers of
steps, ranks and shares, and outcomes come back packed: nothing travels for each field.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol

from ..errors import Stale, TwinrunError
from ..runs.opening import open_subject
from ..runs.values import InNumbers
from .outcome import Outcome
from .parallel import batches
from .renames import Renamed
from .request import Request
from .shares import Unit
from .unit import Worker

__all__ = ["Executor", "Workers"]

_AHEAD = 2  # batches that a worker may have: one to work on, and the next
_KEPT = 2  # comparisons whose runs a worker keeps open
_LEAST_MEMORY = 64 << 20  # bytes of a worker's read buffers


class Executor(Protocol):
    """What a comparison asks of an executor."""

    def submit(self, fn: Callable, /, *args: Any) -> Any:
        """Calls fn in a worker. Returns a future, with `result`, `cancel` and `add_done_callback`."""


class Workers:
    """The workers of an executor, in place of the ranks of an MPI job."""

    sends_entries: Literal[False] = False  # workers list the runs themselves

    def __init__(self, executor: Executor, options: Mapping[str, object] | None) -> None:
        if not callable(getattr(executor, "submit", None)):
            raise TwinrunError(
                f"executor is {type(executor).__name__}, which has no `submit`",
                fix="give an executor of concurrent.futures' kind, for Dask `client.get_executor()`",
            )
        self._executor = executor
        self._options = dict(options or {})
        self.size = _count(executor)

    def share(
        self,
        request: Request,
        tasks: Sequence[Unit],
        sizes: Sequence[int],
        progress: Callable[[str, int, int], None] | None = None,
    ) -> list[Outcome]:
        """Compares every unit in some worker; outcomes in the order of units. sizes: bytes of each.

        Raises TwinrunError where a worker ended, or could not be given its work.
        """
        asked = request.settings
        own = replace(
            asked,
            threads=asked.threads or 1,
            memory=min(asked.memory, max(_LEAST_MEMORY, asked.memory // self.size)),
        )
        sent = replace(request, settings=own, progress=None)
        payload = pickle.dumps((sent, self._options, os.getcwd()), pickle.HIGHEST_PROTOCOL)
        token = uuid.uuid4().hex
        outcomes: list[Outcome | None] = [None] * len(tasks)
        missing, done, total = len(tasks), 0, sum(sizes)
        waiting: Iterator[list[int]] = batches(sizes, self.size)
        finished: queue.SimpleQueue = queue.SimpleQueue()
        under_way: set[Any] = set()
        try:
            while True:
                while len(under_way) < _AHEAD * self.size and (batch := next(waiting, None)) is not None:
                    work = [(at, tasks[at]) for at in batch]
                    with _said(request):
                        future = self._executor.submit(compare_batch, token, payload, work)
                    under_way.add(future)
                    future.add_done_callback(finished.put)
                if not under_way:
                    break
                future = finished.get()
                under_way.discard(future)
                with _said(request):
                    found = future.result()
                for at, outcome in found:
                    outcomes[at] = outcome
                    missing, done = missing - 1, done + sizes[at]
                if progress is not None:
                    progress(f"{len(tasks) - missing} of {len(tasks)}", done, total)
        finally:
            for future in under_way:
                future.cancel()
        whole = [outcome for outcome in outcomes if outcome is not None]
        if len(whole) != len(tasks):
            # Must not happen; nothing then counts as compared.
            raise RuntimeError("a unit was lost")
        return whole


@contextlib.contextmanager
def _said(request: Request) -> Iterator[None]:
    """Executors raise what they like where a worker ends, or where it cannot be given its work."""
    try:
        yield
    except Exception as error:
        raise TwinrunError(
            f"the executor could not compare a part of the runs: {type(error).__name__}: {error}",
            where=request.labels,
            fix="look at what its workers say, and compare again; without `executor` this process compares alone",
        ) from error


def _count(executor: object) -> int:
    """How many tasks the executor works on at a time; as many as this process has cores where it
    does not say.
    """
    for name in ("num_workers", "_max_workers", "max_workers"):
        count = getattr(executor, name, None)
        if isinstance(count, int) and count > 0:
            return count
    client = getattr(executor, "_client", None)  # Dask's
    threads = getattr(client, "nthreads", None)
    if callable(threads):
        return max(1, sum(threads().values()))
    return len(os.sched_getaffinity(0))


class _Job:
    """What a worker keeps of a comparison."""

    def __init__(self, payload: bytes) -> None:
        request, options, folder = pickle.loads(payload)
        # Reports name paths as the caller wrote them.
        near = os.getcwd() == folder
        a, b = (
            open_subject(side.label if near else os.path.join(folder, side.label), options)
            for side in (request.a, request.b)
        )
        if request.settings.by_values:
            a, b = InNumbers(a), InNumbers(b)
        if isinstance(request.b, Renamed):
            b = Renamed(b, request.b.renames)
        self._worker = Worker(replace(request, a=a, b=b))

    def run(self, unit: Unit) -> Outcome:
        """Compares a part. An error becomes part of the outcome, and the caller raises it."""
        try:
            of_a, of_b = unit.places()
            for subject, places, stamp in (
                (self._worker.request.a, of_a, unit.stamps[0]),
                (self._worker.request.b, of_b, unit.stamps[1]),
            ):
                if subject.stamp_of(places) != stamp:
                    raise Stale(
                        "was changed while it was compared, or is another run where the worker is",
                        where=subject.label,
                        fix="compare again; workers must see the same files",
                    )
            return self._worker.run(unit)
        except (TwinrunError, OSError, MemoryError) as e:
            return Outcome(error=e)


class _Kept(threading.local):
    """The comparisons that a thread of a worker knows, the last one last."""

    def __init__(self) -> None:
        self.jobs: dict[str, _Job] = {}


_kept = _Kept()


def compare_batch(token: str, payload: bytes, work: Sequence[tuple[int, Unit]]) -> list[tuple[int, Outcome]]:
    """Compares units of a comparison, in a worker. token: of the comparison."""
    job = _kept.jobs.pop(token, None)
    if job is None:
        try:
            job = _Job(payload)
        except (TwinrunError, OSError, MemoryError) as e:
            return [(at, Outcome(error=e)) for at, _ in work]
    _kept.jobs[token] = job
    while len(_kept.jobs) > _KEPT:
        del _kept.jobs[next(iter(_kept.jobs))]
    return [(at, job.run(unit)) for at, unit in work]
