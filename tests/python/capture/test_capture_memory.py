"""Memory of a long run: what it keeps of each step."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import numpy as np
import pytest

import twinrun

_FIRST, _MORE = 300, 1000  # steps


class _Info(ctypes.Structure):
    """`struct mallinfo2` of the GNU C library."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    ]  # fmt: skip


def in_use() -> int:
    """Bytes that are allocated, beside Python's own objects."""
    call = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if call is None:
        pytest.skip("this C library does not tell how much is allocated: it has no mallinfo2")
    call.restype = _Info
    info = call()
    return info.uordblks + info.hblkhd


@pytest.mark.parametrize("background", [False, True])
def test_a_run_keeps_little_of_each_step(tmp_path, background):
    """A training has millions of steps, and its trace is a run. 72 bytes a step are kept, and 400 were."""
    x = np.zeros(64)
    with twinrun.Run(tmp_path / "run", background=background) as run:

        def captured(steps: range) -> int:
            for step in steps:
                x[0] = step
                run.capture(step, {"x": x})
            run.wait()
            return in_use()

        before = captured(range(_FIRST))
        grown = captured(range(_FIRST, _FIRST + _MORE)) - before
        assert run.steps[-1] == _FIRST + _MORE - 1
    assert grown < 200 * _MORE


_LITTLE_MEMORY = """
import random, resource, sys
import numpy as np
import twinrun

seed, threads, background, record, folder = sys.argv[1:]
random.seed(int(seed))
x = np.random.default_rng(1).normal(size=200_000)
with twinrun.Run(folder + "-first", threads=1, record=record or None) as first:
    first.capture(0, {"x": x})  # so that what Python loads at the first call is there
run = twinrun.Run(folder, threads=int(threads), background=background == "1", record=record or None)
for step in range(40):
    x[random.randrange(191_000):][:9000] *= 1 + 1e-9
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    more = int(random.choice([0, 0.5, 1, 2, 4, 8, 12, 20, 40]) * 2**20)
    resource.setrlimit(resource.RLIMIT_AS, (used + more, resource.RLIM_INFINITY))
    try:
        run.capture(step, {"x": x})
    except Exception:  # of Python's own code, too, which finds no memory either
        pass
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
try:
    run.close()
except twinrun.TwinrunError:
    pass
print("alive")
"""


@pytest.mark.parametrize(
    ("threads", "background", "record"), [(8, 0, "runs"), (2, 0, "runs"), (8, 1, "runs"), (64, 1, "")]
)
def test_a_lack_of_memory_ends_no_program(tmp_path, threads, background, record):
    """The first exception of a thread allocates memory, and the C library ends the process where there is none."""
    for seed in range(3):
        command = [sys.executable, "-c", _LITTLE_MEMORY, str(seed), str(threads), str(background), record]
        done = subprocess.run(
            [*command, str(tmp_path / str(seed))], capture_output=True, text=True, timeout=300
        )
        assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr[-500:]
