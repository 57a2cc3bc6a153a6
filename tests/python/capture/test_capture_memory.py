"""Memory of a long run: what it keeps of each step."""

from __future__ import annotations

import ctypes

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
