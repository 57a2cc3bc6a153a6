"""How the process that reads .xtc files (see `worker`) asks chemfiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def opened(
    path: str, report_progress: Callable[[], None]
) -> tuple[dict[str, Any], Callable[[dict[str, Any]], bytes]]:
    """The number of frames, and a function that unpacks positions of a frame, as f32 in nm."""
    import chemfiles
    import numpy as np

    chemfiles.set_warnings_callback(lambda message: None)
    file = chemfiles.Trajectory(path, "r", "XTC")
    last: tuple[int, Any] = (-1, None)

    def read(request: dict[str, Any]) -> bytes:
        nonlocal last
        number = request["frame"]
        if last[0] != number:
            last = (-1, None)
            # chemfiles gives ten times as much, for Angstrom, as f64: this gives back the bits.
            frame = file.read_step(number)  # its positions are in its memory
            positions = np.array(frame.positions, np.float64)
            last = (number, (positions / 10).astype(np.float32))
        if last[1].shape != (request["atoms"], 3):
            raise ValueError(f"chemfiles finds {len(last[1])} atoms")
        result: bytes = last[1][request["first"] : request["stop"]].tobytes()
        return result

    return {"frames": int(file.nsteps)}, read
