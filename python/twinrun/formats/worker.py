"""The process that reads files through a package that may crash or hang: python worker.py MODULE PATH.

In a process of its own the package does no harm. MODULE is the file of a module beside this one. Its function
`opened(path, report_progress)` opens the file, and returns facts of it (for JSON) and a function that answers
requests: `read(request)` returns bytes, or facts. Its function `closed()`, if it has one,
closes what is open.

Requests are lines of JSON on stdin; the first one opens the file, one with "open" another file, and one
with "close" closes it. Answers are lines of JSON on stdout, each followed by as many bytes as its "bytes"
says. Lines with "progress" may precede an answer, and show that the process still works. The process ends
when its stdin is closed, even if the package hangs.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import select
import signal
import sys
import time
from typing import Any

_PROGRESS_EVERY = 1.0  # seconds


def end_with_stdin() -> None:
    """Forks a process that kills this one when stdin is closed.

    A thread could not do that, because a package may hold Python's global lock while it hangs.
    PR_SET_PDEATHSIG would not do either: it sends the signal when the thread that started this process ends,
    not the process.
    """
    worker = os.getpid()
    alive, held = os.pipe()  # `held` is closed when this process ends
    if os.fork():
        os.close(alive)
        return
    # A terminal sends them to all processes.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.close(held)
    os.close(1)
    poll = select.poll()
    poll.register(0, 0)  # only its hang-up, not its input
    poll.register(alive, 0)
    while not poll.poll():
        pass
    if os.getppid() == worker:
        os.kill(worker, signal.SIGKILL)
    os._exit(0)


def module_of(place: str) -> Any:
    """The module in a file, without the package that it belongs to."""
    spec = importlib.util.spec_from_file_location("served", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(place: str, path: str) -> None:
    """Answers requests until stdin is closed."""
    end_with_stdin()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # packages print to stdout
    module = module_of(place)

    def answer(data: bytes = b"", **facts: object) -> None:
        answers.write(json.dumps({**facts, "bytes": len(data)}).encode() + b"\n")
        answers.write(data)
        answers.flush()

    module_closed = getattr(module, "closed", lambda: None)
    last_report = time.monotonic()

    def report_progress() -> None:
        nonlocal last_report
        if time.monotonic() - last_report > _PROGRESS_EVERY:
            last_report = time.monotonic()
            answers.write(b'{"progress": true}\n')
            answers.flush()

    read: Any = None
    for line in sys.stdin.buffer:
        try:
            request = json.loads(line)
            if "close" in request or "open" in request:
                read = None
                module_closed()
                gc.collect()  # a file that stayed open could be locked, or show what it was
            if "close" in request:
                answer()
            elif read is None:
                facts, read = module.opened(request.get("open", path), report_progress)
                answer(**facts)
            else:
                found = read(request)
                if isinstance(found, dict):
                    answer(**found)
                else:
                    answer(found)
        except Exception as error:
            answer(error=f"{type(error).__name__}: {error}"[:1000])


if __name__ == "__main__":
    # The folder of this file, whose modules must not hide packages of the same name.
    del sys.path[0]
    main(sys.argv[1], sys.argv[2])
