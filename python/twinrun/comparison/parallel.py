"""Work shared by the ranks of an MPI job: everything that twinrun's Python does with MPI.

The leader (rank 0) opens the runs, hands out batches of tasks, joins their outcomes, and alone prints and
writes. The others serve. Batches are handed out as ranks ask for them, the largest tasks first and in ever
smaller batches: storage is uneven, and what a task takes cannot be known before. The leader works too: its
tasks run in a thread that never calls MPI (MPI_THREAD_FUNNELED).

    leader                               others
    ------                               ------
    share(job, tasks):                   serve():
      broadcast WORK, the job              wait for a broadcast
      until all outcomes are there:        WORK: ask twice; until no batches come:
        give batches, take outcomes                take a batch, run it, send outcomes
    dismiss(status):                       END: return the status
      broadcast END, status

A waiting rank sleeps between two polls: a rank that spins would take a core from one that compares. A rank
that ends other than by `dismiss` ends the job (MPI_Abort), and so does mpiexec where a rank is killed: no
rank waits for ever.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import pickle
import queue
import re
import signal
import stat
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from ..errors import MissingPackage, TwinrunError
from .launch import alone, launched
from .shares import largest_first

__all__ = ["MODES", "Team", "batches", "cores_each", "joined", "launched"]

MODES = ("auto", "on", "off")

_FAILED = 2  # exit status: something could not be done
_GRACE = 1.0  # seconds that the first rank has to print an error that all others would print too
_FINEST, _COARSEST = 50e-6, 2e-3  # seconds between two polls of a waiting rank
_MOST_TASKS = 256  # tasks of a batch: outcomes return now and then
_AHEAD = 2  # batches that a rank requests: one to work on, and the next
# seconds that the leader's own work keeps Python's lock from the thread that answers the others
_SWITCH = 0.5e-3
_RESULT, _BATCH = 1, 2  # tags
_WORK, _END = 1, 2  # what is broadcast


def batches(sizes: Sequence[int], ranks: int) -> Iterator[list[int]]:
    """Tasks by number, in the batches in which they are handed out: the largest first, each batch a share of
    what is left.
    """
    order = largest_first(sizes)
    left = sum(sizes) + len(sizes)  # every task has a cost, even an empty one
    at = 0
    while at < len(order):
        goal, held = left / (2 * ranks), 0
        batch: list[int] = []
        while at < len(order) and len(batch) < _MOST_TASKS:
            cost = sizes[order[at]] + 1
            if batch and held + cost > goal:
                break
            batch.append(order[at])
            held += cost
            at += 1
        left -= held
        yield batch


def cores_each(masks: Sequence[Sequence[int]], rank: int) -> int:
    """Threads of one rank of a node, at least 1.

    masks: the cores that each rank may use; ranks divide the cores that they share.
    """
    users: dict[int, int] = {}
    for mask in masks:
        for core in mask:
            users[core] = users.get(core, 0) + 1
    return max(1, int(sum(1 / users[core] for core in masks[rank]) + 1e-9))


@contextlib.contextmanager
def joined(mode: str = "auto") -> Iterator[Team | None]:
    """The team of this job's ranks; None where this process works alone.

    auto: where a launcher started several ranks.

    Raises MissingPackage without mpi4py, TwinrunError where MPI does not belong to the launcher.
    """
    if alone(mode):
        yield None
        return
    found = launched()
    try:
        team = _Only.team = _Only.team or Team(_mpi(found))
        if found is not None and team.size != found[1]:
            raise _strangers(found, f"{team.library} sees {team.size}")
    except TwinrunError:
        if found is not None and found[2] != 0:
            # the first rank prints it and ends the job; if the first rank is fine, this one must
            # print it
            time.sleep(_GRACE)
            atexit.register(_abort_launch)
        raise
    team.ended = False
    try:
        yield team
    except BaseException:
        if team.leads and not team.busy:  # the others wait: they can go
            team.dismiss(_FAILED)
        raise


def _abort_launch() -> None:
    """Ends a job that this rank never joined: others may wait for it in MPI_Init.

    Most launchers do that themselves; MPICH's needs a message on the pipe that it gave this process (PMI 1).
    """
    sys.stderr.flush()
    if os.environ.get("PMI_FD", "").isdigit():
        with contextlib.suppress(OSError):
            os.write(int(os.environ["PMI_FD"]), b"cmd=abort exitcode=%d\n" % _FAILED)


class _Only:
    """The only team of a process."""

    team: Team | None = None


def _strangers(found: tuple, what: str) -> TwinrunError:
    launcher, size, _, _ = found
    return TwinrunError(
        f"{launcher} started {size} ranks, and {what}",
        where="MPI",
        fix="use the mpirun of the MPI that mpi4py loads, or set MPI4PY_LIBMPI to the libmpi.so of the mpirun (srun: --mpi=pmix or "
        "pmi2); --mpi off compares in each process by itself",
    )


def _mpi(found: tuple | None) -> Any:
    """mpi4py.MPI, initialised, with the library of the launcher."""
    _choose_library(found)
    try:
        import mpi4py
    except ImportError:
        raise MissingPackage.of("mpi4py", "twinrun[mpi]") from None
    # Importing it must not initialise MPI before the library is known to be the right one.
    mpi4py.rc.initialize = False
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as e:
        raise TwinrunError(
            f"mpi4py finds no MPI library: {str(e).splitlines()[0]}",
            where="MPI",
            fix="load the module of one, set MPI4PY_LIBMPI to its libmpi.so, or pip install mpich",
        ) from None
    library = MPI.Get_library_version()
    if found is not None and found[3] is not None and ("Open MPI" in library) != (found[3] == "Open MPI"):
        raise _strangers(found, f"mpi4py loads {_name(library)}")
    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_FUNNELED)
    return MPI


def _name(library: str) -> str:
    """'Open MPI v5.0.11', 'MPICH 5.0.2'."""
    first = re.sub(r"\s+", " ", library.replace("Version:", "").strip().split("\n")[0])
    return first.split(",")[0].strip()


def _choose_library(found: tuple | None) -> None:
    """Puts the launcher's MPI first, where it is found: mpi4py's wheels prefer the MPI of the Python
    environment.
    """
    if found is None or found[3] is None or {"MPI4PY_LIBMPI", "MPI4PY_MPIABI"} & set(os.environ):
        return
    file = "libmpi.so.40" if found[3] == "Open MPI" else "libmpi.so.12"
    folders = ["", os.path.join(sys.exec_prefix, "lib")]
    with contextlib.suppress(OSError):
        above = os.readlink(f"/proc/{os.getppid()}/exe")  # the launcher, or its daemon on this node
        folders.insert(0, os.path.join(os.path.dirname(os.path.dirname(above)), "lib"))
    os.environ["MPI4PY_LIBMPI"] = os.pathsep.join(os.path.join(folder, file) for folder in folders)


def wait_until_read(descriptor: int, limit: float = 5.0) -> bool:
    """Waits until the other end of a pipe has read all that was written; what is no pipe needs no wait.

    limit: seconds, after which nobody seems to read. Returns whether all is read.
    """
    if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        return True
    end = time.monotonic() + limit
    while int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder):
        if time.monotonic() > end:
            return False
        time.sleep(1e-3)
    return True


class Team:
    """The ranks of this job.

    threads: of this rank, its part of the node's cores. node_rank, node_size: on this node.
    """

    sends_entries: Literal[True] = True  # the leader alone lists the runs

    def __init__(self, mpi: Any) -> None:
        self._mpi = mpi
        self._comm = mpi.COMM_WORLD.Dup()
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()
        self.library = _name(mpi.Get_library_version())
        self.busy = False  # other ranks are working
        # `memory` counts for each rank; otherwise ranks of a node share the memory of one process.
        self.memory_is_each = False
        self.ended = True  # no rank waits for this one
        atexit.register(self._leave)
        node = self._comm.Split_type(mpi.COMM_TYPE_SHARED, key=self.rank)
        self.node_rank, self.node_size = node.Get_rank(), node.Get_size()
        self.threads = cores_each(node.allgather(sorted(os.sched_getaffinity(0))), self.node_rank)
        node.Free()

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def _leave(self) -> None:
        """Runs at the end of the process.

        A rank that ends too early ends the job: the others would wait for ever. Its last words come first: a
        launcher may throw away what it has not read when the job is ended.
        """
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        if self.ended:
            self._mpi.Finalize()
        else:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError, AttributeError):
                    wait_until_read(stream.fileno())
            self._mpi.COMM_WORLD.Abort(_FAILED)

    # ---- the leader ----

    def share(
        self,
        job: Any,
        tasks: Sequence[Any],
        sizes: Sequence[int],
        progress: Callable[[str, int, int], None] | None = None,
    ) -> list[Any]:
        """Runs job.run(task) for every task on all ranks; results in the order of tasks.

        sizes: bytes of each. Called by the leader.

        job.arrive(team) is called once on each rank, for settings that differ between ranks. What job.run
        raises is raised here.
        """
        outcomes: list[Any] = [None] * len(tasks)
        missing, done, total = len(tasks), 0, sum(sizes)
        self.busy = True
        self._announce(_WORK, pickle.dumps(job, pickle.HIGHEST_PROTOCOL))
        waiting = batches(sizes, self.size)
        own = _Thread(job, self)
        serving = _AHEAD * (self.size - 1)
        sent: list[Any] = []
        interval = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH)
        pause = _Pause()
        status = self._mpi.Status()
        while missing or serving:
            if own.free and (batch := next(waiting, None)) is not None:
                own.give([(at, tasks[at]) for at in batch])
            found = []
            if self._comm.Iprobe(source=self._mpi.ANY_SOURCE, tag=_RESULT, status=status):
                pause.begin()
                found += self._comm.recv(source=status.Get_source(), tag=_RESULT)
                batch = next(waiting, [])
                serving -= not batch
                sent = [request for request in sent if not request.Test()]
                batch_of = [(at, tasks[at]) for at in batch]
                sent.append(self._comm.isend(batch_of, dest=status.Get_source(), tag=_BATCH))
            else:
                found += own.taken(pause.next())
            for at, outcome in found:
                outcomes[at] = outcome
                missing, done = missing - 1, done + sizes[at]
            if found and progress is not None:
                progress(f"{len(tasks) - missing} of {len(tasks)}", done, total)
        for request in sent:
            self._wait(request)
        sys.setswitchinterval(interval)
        own.end()
        self.busy = False
        if any(outcome is None for outcome in outcomes):
            # Must not happen; nothing then counts as compared.
            raise RuntimeError("a task was lost")
        return outcomes

    def dismiss(self, status: int) -> None:
        """Ends the other ranks, with the exit status of the job."""
        self._announce(_END, status=status)
        self.ended = True

    def _announce(self, what: int, payload: bytes = b"", status: int = 0) -> None:
        import numpy as np

        head = np.array([what, len(payload), status], np.int64)
        self._wait(self._comm.Ibcast(head, root=0))
        if payload:
            self._broadcast(bytearray(payload))

    # ---- the others ----

    def serve(self) -> int:
        """Works until the leader dismisses. Returns the exit status of the job."""
        import numpy as np

        head = np.zeros(3, np.int64)
        # mpirun sends Ctrl-C to all ranks: the leader reports it and ends the job.
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            while True:
                self._wait(self._comm.Ibcast(head, root=0))
                what, length, status = map(int, head)
                if what == _END:
                    self.ended = True
                    return status
                payload = bytearray(length)
                self._broadcast(payload)
                job = pickle.loads(payload)
                job.arrive(self)
                self._work(job)
        finally:
            signal.signal(signal.SIGINT, handler)

    def _work(self, job: Any) -> None:
        sent = [self._comm.isend([], dest=0, tag=_RESULT) for _ in range(_AHEAD)]
        last = 0
        while last < _AHEAD:
            pause = _Pause()
            while not self._comm.Iprobe(source=0, tag=_BATCH):
                pause.sleep()
            batch = self._comm.recv(source=0, tag=_BATCH)
            if not batch:
                last += 1
                continue
            found = [(at, job.run(task)) for at, task in batch]
            sent = [request for request in sent if not request.Test()]
            sent.append(self._comm.isend(found, dest=0, tag=_RESULT))
        for request in sent:
            self._wait(request)

    # ---- both ----

    def _broadcast(self, payload: bytearray) -> None:
        piece = 1 << 30  # counts of MPI 3 are of 31 bits
        for at in range(0, len(payload), piece):
            self._wait(self._comm.Ibcast(memoryview(payload)[at : at + piece], root=0))

    def _wait(self, request: Any) -> None:
        pause = _Pause()
        while not request.Test():
            pause.sleep()


class _Pause:
    """Sleeps between two polls: briefly at first."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._seconds = _FINEST

    def next(self) -> float:
        """Seconds to wait before the next poll."""
        self._seconds = min(_COARSEST, self._seconds * 1.5)
        return self._seconds

    def sleep(self) -> None:
        time.sleep(self.next())


class _Thread:
    """The leader's own work: one batch at a time, in a thread that does not call MPI."""

    def __init__(self, job: Any, team: Team) -> None:
        job.arrive(team)
        self._job = job
        self._given: queue.SimpleQueue = queue.SimpleQueue()
        self._done: queue.SimpleQueue = queue.SimpleQueue()
        self.free = True
        # A daemon: the process does not wait for it where the leader fails.
        threading.Thread(target=self._run, name="twinrun-unit", daemon=True).start()

    def _run(self) -> None:
        while (batch := self._given.get()) is not None:
            try:
                self._done.put([(at, self._job.run(task)) for at, task in batch])
            except BaseException as e:
                self._done.put(e)
                return

    def give(self, batch: list[tuple[int, Any]]) -> None:
        self.free = False
        self._given.put(batch)

    def taken(self, seconds: float) -> list[tuple[int, Any]]:
        """The outcomes of a batch, if they arrive within that time. Raises what a task raised."""
        try:
            found = self._done.get(timeout=seconds)
        except queue.Empty:
            return []
        if isinstance(found, BaseException):
            raise found
        self.free = True
        return found

    def end(self) -> None:
        self._given.put(None)
