"""GROMACS .xtc trajectories: frames of positions that were rounded and packed, and the box.

The headers of frames are read here, and so are the positions of at most 9 atoms, which are not packed.
Others are unpacked by chemfiles (an optional package), in a process of its own, because libraries that read
them are not safe with damaged files, see `worker_client`. Positions are in nm, as GROMACS has them.

Source: libxdrf and xtcio of GROMACS.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, BinaryIO

from ..errors import DamagedFile, Unsupported
from . import xtc_worker
from .blocks import BandReader, Box
from .facts import Fact
from .files import MEND, open_regular, read_exact
from .frames import Frame, add_frames
from .model import Extent, Field, FileContent, Format, checked_shape, decoded
from .worker_client import PATIENCE, Worker, check_installed, seconds_of

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

_MAGIC, _LARGE_MAGIC = 1995, 2023
_MOST_FRAMES = 10_000_000
_MOST_ATOMS = 1 << 27
_PLAIN_ATOMS = 9  # so many are not packed


def open_xtc(path: str, patience: object = PATIENCE) -> FileContent:
    """Opens a .xtc file. Its fields are `box` and `x`.

    patience: seconds without progress after which reading fails.

    Raises FormatError if the file is damaged, MissingPackage without chemfiles.
    """
    seconds = seconds_of(patience, path)
    content = FileContent(path, "xtc")
    file, size = open_regular(path)
    frames: list[Frame] = []
    with file:
        at = 0
        packed: list[tuple[Frame, int]] = []
        while at < size or not frames:
            if len(frames) >= _MOST_FRAMES:
                raise Unsupported(f"more than {_MOST_FRAMES} frames in one file", where=path)
            frame, atoms, at = _frame(file, at, size, path)
            if atoms > _PLAIN_ATOMS:
                packed.append((frame, atoms))
            frames.append(frame)
    if packed:
        check_installed("chemfiles", "twinrun[xtc]", path)
        worker = Worker(path, xtc_worker.__file__, "chemfiles", seconds, again=True)
        content.on_close = worker.close
    try:
        if packed:
            found = worker.open()["frames"]
            if found != len(frames):
                raise DamagedFile(f"it has {len(frames)} frames, and chemfiles finds {found}", where=path)
            numbers = {id(frame): number for number, frame in enumerate(frames)}
            for frame, atoms in packed:
                frame.fields.append(_positions(worker, numbers[id(frame)], atoms))
        add_frames(content, frames)
    except BaseException:
        content.close()
        raise
    return content


def _frame(file: BinaryIO, at: int, size: int, path: str) -> tuple[Frame, int, int]:
    """The frame at offset `at` without packed positions, its number of atoms, and the offset after it."""
    where = f"frame at byte {at}"

    def damaged(what: str) -> DamagedFile:
        return DamagedFile(f"{where}: {what}", where=path, fix=f"the file is cut short or damaged: {MEND}")

    head = read_exact(file, at, min(92, size - at), path, "header")
    if len(head) < 56:
        raise damaged(f"{len(head)} bytes are too few for a header")
    magic, atoms, step, time = struct.unpack_from(">3if", head)
    if magic == _LARGE_MAGIC:
        raise Unsupported(f"{where}: the layout for more than 298 million atoms", where=path)
    if magic != _MAGIC:
        raise damaged("it does not begin like a frame of GROMACS")
    if not 0 <= atoms <= _MOST_ATOMS or struct.unpack_from(">i", head, 52)[0] != atoms or step < 0:
        raise damaged(f"it has {atoms} atoms and step {step}, or says so twice in two ways")
    box = Field("box", "f32", "big", (3, 3), extents=(Extent(path, at + 16, 9, 4),))
    frame = Frame(step, [box], float(time), _period(box.elements().reshape(3, 3)))
    end = at + 56
    if atoms <= _PLAIN_ATOMS:
        if end + 12 * atoms > size:
            raise damaged(f"its positions need {12 * atoms} bytes, and {size - end} are left")
        extents = (Extent(path, end, 3 * atoms, 4),) if atoms else ()
        frame.fields.append(Field("x", "f32", "big", (atoms, 3), extents=extents, group="atoms"))
        return frame, atoms, end + 12 * atoms
    if len(head) < 92:
        raise damaged("the file ends inside its header")
    precision = struct.unpack_from(">f", head, 56)[0]
    count = struct.unpack_from(">i", head, 88)[0]
    padded = count + -count % 4
    # Every atom takes at least a bit.
    if count < 0 or at + 92 + padded > size or atoms > 8 * count:
        raise damaged(f"its {atoms} atoms have {count} bytes, and {size - at - 92} are left")
    frame.facts.append(Fact.of("x", "(precision)", float(precision)))
    return frame, atoms, at + 92 + padded


def _period(box: np.ndarray) -> tuple[float, ...] | None:
    """Lengths of an orthogonal box; None if the box is tilted, empty or invalid."""
    lengths = np.diag(box)
    if not np.isfinite(box).all() or (box != np.diag(lengths)).any() or (lengths <= 0).any():
        return None
    return tuple(float(x) for x in lengths.astype(np.float64))


def _positions(worker: Worker, number: int, atoms: int) -> Field:
    shape = checked_shape((atoms, 3), 4, worker.path, "positions")

    def read_box(box: Box) -> np.ndarray:
        part = box[0]
        _, data = worker.ask({"frame": number, "atoms": atoms, "first": part.start, "stop": part.stop})
        return np.frombuffer(data, np.float32).reshape(part.stop - part.start, 3)[:, box[1]]

    reader = BandReader(shape, shape, np.dtype("f4"), read_box, worker.cache)
    read = decoded("x", "f32", math.prod(shape), worker.path, reader.read)
    return Field("x", "f32", "little", shape, read=read, group="atoms")


FORMAT = Format(
    "xtc",
    "GROMACS compressed trajectory",
    open_xtc,
    suffixes=(".xtc",),
    magic=(struct.pack(">i", _MAGIC), struct.pack(">i", _LARGE_MAGIC)),
    options=frozenset({"patience"}),
    aside=frozenset({"patience"}),
    many_steps=True,
)
