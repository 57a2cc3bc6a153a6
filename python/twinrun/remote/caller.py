"""Requests that the calling thread makes itself, in an event loop of its own. It waits for no other thread.

h5py reads a file of Python while it holds its lock. fsspec makes requests in a thread of its own, the same
for all. Any thread that makes objects may collect garbage, and then free an object of h5py, for which it
takes that lock. Where fsspec's thread does that while the reader waits for its answer, both wait without
end. To hold back the collector during the wait is too late: fsspec's thread may have begun before.

So the thread that reads runs the loop. It may take its own lock again, and it needs nothing that a thread
with another lock holds: a loop serves one thread at a time, and who finds none that is free makes another.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

__all__ = ["CallersLoop", "in_this_thread"]

_Value = TypeVar("_Value")


class _Here(ThreadPoolExecutor):
    """Calls at once what a loop leaves to other threads, such as looking for a host."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


class CallersLoop(asyncio.SelectorEventLoop):
    """A loop that runs only while a thread waits for a result."""

    def __init__(self) -> None:
        super().__init__()
        self.set_default_executor(_Here())

    def result(self, work: Callable[[], Awaitable[_Value]]) -> _Value:
        """What `work` gives, in the calling thread."""

        async def all_of_it() -> _Value:
            await asyncio.sleep(0)  # sees which connections were closed since the last time
            return await work()

        with _no_loop_runs():
            task = self.create_task(all_of_it())
            try:
                return self.run_until_complete(task)
            finally:
                if not task.done():  # interrupted
                    task.cancel()
                    with suppress(asyncio.CancelledError, KeyboardInterrupt):
                        self.run_until_complete(task)
                    if not task.cancelled():
                        task.exception()  # else asyncio says that nobody has seen it


@contextmanager
def _no_loop_runs() -> Iterator[None]:
    """Sets aside the loop that this thread runs, if it does, as in a notebook: asyncio runs one at a time."""
    outer = asyncio._get_running_loop()
    if outer is None:
        yield
        return
    swap = getattr(
        asyncio.tasks, "_swap_current_task", lambda loop, task: None
    )  # one for each loop before 3.12
    task = swap(outer, None)
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(outer)
        swap(outer, task)


# File systems that no thread uses, by process and by what they are a twin of. Pops and appends need
# no lock: a lock here could be held by a thread that waits for h5py's.
_free: dict[tuple[int, str], list[Any]] = {}


@contextmanager
def in_this_thread(fs: Any) -> Iterator[Any]:
    """fsspec's file system with a loop that the calling thread runs, and with connections of its own."""
    free = _free.setdefault((os.getpid(), fs._fs_token), [])
    try:
        own = free.pop()
    except IndexError:
        own = _twin(fs)
    try:
        yield own
    except Exception:
        free.append(own)
        raise
    free.append(own)  # not after an interrupt


def _twin(fs: Any) -> Any:
    loop = CallersLoop()
    own = type(fs)(*fs.storage_args, **{**fs.storage_options, "loop": loop, "skip_instance_cache": True})
    weakref.finalize(own, loop.close)  # after fsspec has closed the connections
    return own
