"""Runs a command as if on a node of this name, one of which is slow: the planted cause that an analysis has to find.

    on_node.py NODE COMMAND...

    SLOW_NODE         which one is slow
    SLOW_PROCESSES    how many processes burn time on each core of its tasks (1), as daemons gone wild would
    SLOW_SHARE        for how much of each 50 ms (1)
    SLOW_SECONDS      how long its tasks wait before they start, as on a node whose file system stalls (0)

The file `node` in the task's folder says where it ran ([record] node).
"""

from __future__ import annotations

import os
import signal
import sys
import time

PERIOD = 0.05  # s


def burn(core: int, share: float, parent: int) -> None:
    """Until the parent has ended."""
    os.sched_setaffinity(0, {core})
    while os.getppid() == parent:
        end = time.monotonic() + share * PERIOD
        while time.monotonic() < end:
            pass
        if share < 1:
            time.sleep((1 - share) * PERIOD)


def main() -> int:
    node, command = sys.argv[1], sys.argv[2:]
    with open(os.path.join(os.environ.get("TWINRUN_TASK_FOLDER", "."), "node"), "w") as file:
        print(node, file=file)
    if node != os.environ.get("SLOW_NODE"):
        os.execvp(command[0], command)
    parent = os.getpid()
    share = float(os.environ.get("SLOW_SHARE", "1"))
    burners = []
    for core in [*os.sched_getaffinity(0)] * int(os.environ.get("SLOW_PROCESSES", "1")):
        pid = os.fork()
        if pid == 0:
            burn(core, share, parent)
            os._exit(0)
        burners.append(pid)
    time.sleep(float(os.environ.get("SLOW_SECONDS", "0")))
    child = os.fork()
    if child == 0:
        os.execvp(command[0], command)
    _, status = os.waitpid(child, 0)
    for pid in burners:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) & 0xFF


if __name__ == "__main__":
    sys.exit(main())
