"""Periodic noise, planted: burns each core for a share of each period, until it is ended.

    python disturb.py --period 10 --share 0.3 &

Periods are counted from the same moment on all cores.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--period", type=float, default=10.0, help="s")
    parser.add_argument("--share", type=float, default=0.3, help="of the period (default 0.3)")
    parser.add_argument("--processes", type=int, default=1, help="on each core")
    arguments = parser.parse_args()
    start, parent = time.monotonic(), os.getpid()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    children = []
    for core in sorted(os.sched_getaffinity(0)) * arguments.processes:
        pid = os.fork()
        if pid:
            children.append(pid)
            continue
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.sched_setaffinity(0, {core})
        k = 0
        while os.getppid() == parent:
            begin = start + k * arguments.period
            while time.monotonic() < begin + arguments.share * arguments.period:
                pass
            k += 1
            time.sleep(max(start + k * arguments.period - time.monotonic(), 0))
        os._exit(0)
    print("burning", flush=True)
    try:
        for pid in children:
            os.waitpid(pid, 0)
    except KeyboardInterrupt:
        pass
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
    return 0


if __name__ == "__main__":
    sys.exit(main())
