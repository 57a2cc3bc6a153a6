"""DCD trajectories of CHARMM, NAMD, X-PLOR and others: frames of f32 positions, or velocities, and the cell.

A file is a sequence of Fortran records. After three records of the header every frame has the record of the
cell (6 x f64, if there are cells) and one for each axis, all of one length. Every record is an extent.
Positions lie axis by axis, so the field is column-major: its index is (atom, axis).

Source: the reader of CHARMM's documentation (dynio), and the layout that NAMD and VMD write.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, BinaryIO

from ..errors import DamagedFile, Unsupported
from .facts import Fact
from .files import MEND, open_regular, read_exact
from .frames import Frame, add_frames
from .model import Extent, Field, FileContent, Format, checked_shape

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

_HEADER = 84  # bytes of the first record
_KINDS = {b"CORD": "x", b"VELD": "v"}
_PICOSECONDS = 0.0488882129  # a unit of time of CHARMM
_MOST_FRAMES = 10_000_000
_LONGEST_TITLE = 1 << 20
_NAMES = {1: "big", 0: "little"}


class _Records:
    """The records of a file from its start on. order: '<' or '>'."""

    def __init__(self, file: BinaryIO, size: int, path: str, order: str) -> None:
        self._file, self._size, self._path, self.order = file, size, path, order
        self.at = 0

    def length(self, at: int) -> int:
        if at + 4 > self._size:
            raise DamagedFile(f"the file ends inside the record at byte {at}", where=self._path)
        mark = read_exact(self._file, at, 4, self._path, "length of a record")
        return int(struct.unpack(self.order + "i", mark)[0])

    def take(self, length: int, what: str) -> int:
        """Passes a record of `length` bytes; returns the offset of its content."""
        begin = self.at + 4
        if self.length(self.at) != length or self.length(begin + length) != length:
            message = f"{what} at byte {self.at} is no record of {length} bytes"
            raise DamagedFile(message, where=self._path, fix=f"the file is cut short or damaged: {MEND}")
        self.at = begin + length + 4
        return begin

    def read(self, longest: int, what: str) -> bytes:
        length = self.length(self.at)
        if not 0 <= length <= longest:
            raise DamagedFile(f"{what} has {length} bytes, not 0 to {longest}", where=self._path)
        return read_exact(self._file, self.take(length, what), length, self._path, what)


def open_dcd(path: str) -> FileContent:
    """Opens a DCD file. Its fields are `x` (of a file of velocities `v`) and, if it has cells, `box`."""
    content = FileContent(path, "dcd")
    file, size = open_regular(path)
    with file:
        mark = read_exact(file, 0, min(8, size), path, "header")
        order = next(
            (o for o in "<>" if len(mark) == 8 and struct.unpack(o + "i", mark[:4])[0] == _HEADER), None
        )
        if order is None or mark[4:] not in _KINDS:
            raise DamagedFile("does not begin like a DCD file", where=path)
        records = _Records(file, size, path, order)
        head = records.read(_HEADER, "header")
        numbers = struct.unpack(order + "20i", head[4:])
        title = records.read(_LONGEST_TITLE, "title")
        atoms = struct.unpack(order + "i", records.read(4, "number of atoms"))[0]
        add_frames(content, _frames(records, size, numbers, _KINDS[mark[4:]], atoms, content))
        lines = struct.unpack(order + "i", title[:4])[0] if len(title) >= 4 else 0
        content.say("", "(title)", [lines, title[4:].rstrip(b" ").decode("latin-1")])
        # All but the number of frames and the time step, which are compared otherwise.
        content.say("", "(header)", [*numbers[1:9], *numbers[11:]])
        if numbers[19]:  # of X-PLOR it is half of the time step
            content.say("", "(has cells)", numbers[10])
    return content


def _frames(
    records: _Records, size: int, numbers: tuple[int, ...], name: str, atoms: int, content: FileContent
) -> list[Frame]:
    path = content.path
    said, first, between, fixed, has_cell, has_fourth = (*numbers[:3], numbers[8], numbers[10], numbers[11])
    if atoms <= 0 or first < 0 or between < 0 or said < 0:
        raise DamagedFile(
            f"its header has impossible numbers: {atoms} atoms, first step {first}, {between} steps a frame",
            where=path,
        )
    if fixed:
        raise Unsupported(f"{fixed} atoms are fixed and only in its first frame", where=path)
    # X-PLOR, which has no version, has a time step of f64.
    raw = struct.pack(records.order + "2i", *numbers[9:11])
    is_charmm = numbers[19] != 0
    delta = struct.unpack(records.order + ("f" if is_charmm else "d"), raw[: 4 if is_charmm else 8])[0]
    axes = 4 if is_charmm and has_fourth else 3
    cell = 56 if is_charmm and has_cell else 0
    shape = checked_shape((3, atoms), 4, path, "positions")
    whole = cell + axes * (8 + 4 * atoms)
    frames: list[Frame] = []
    while records.at < size:
        if len(frames) >= _MOST_FRAMES:
            raise Unsupported(f"more than {_MOST_FRAMES} frames in one file", where=path)
        if size - records.at < whole:
            message = f"frame {len(frames)} needs {whole} bytes, and {size - records.at} are left"
            raise DamagedFile(message, where=path, fix=f"the file is cut short or damaged: {MEND}")
        step = first + len(frames) * (between or 1)
        frame = Frame(step, [], step * delta * _PICOSECONDS if delta else None)
        order = _NAMES[records.order == ">"]
        if cell:
            at = records.take(48, "cell")
            frame.fields.append(Field("box", "f64", order, (6,), extents=(Extent(path, at, 6, 8),)))
            frame.period = _period(frame.fields[0].elements())
        places = [records.take(4 * atoms, f"axis {axis} of frame {len(frames)}") for axis in range(axes)]
        extents = tuple(Extent(path, at, atoms, 4) for at in places)
        frame.fields.append(Field(name, "f32", order, shape, extents=extents[:3], fortran_order=True))
        if axes == 4:
            frame.fields.append(Field("w", "f32", order, (atoms,), extents=extents[3:]))
        frame.facts.append(Fact.of("", "(time step)", delta))
        frames.append(frame)
    if said > len(frames):
        why = (
            f"the header says {said} frames: the file is cut short, or the program that wrote it was stopped"
        )
        content.skipped.append((f"frames from {len(frames)} on", why))
    elif said < len(frames):
        content.say("", "(frames of the header)", said)
        content.notes.append(f"its header says {said} frames, and it has {len(frames)}: all are compared")
    return frames


def _period(cell: np.ndarray) -> tuple[float, ...] | None:
    """Lengths of an orthogonal cell; None if it is tilted or invalid. Angles are degrees, or their
    cosines."""
    a, gamma, b, beta, alpha, c = cell.tolist()
    lengths = (a, b, c)
    if any(angle not in (0.0, 90.0) for angle in (alpha, beta, gamma)):
        return None
    return lengths if all(np.isfinite(length) and length > 0 for length in lengths) else None


FORMAT = Format(
    "dcd",
    "DCD trajectory",
    open_dcd,
    suffixes=(".dcd",),
    magic=(b"T\0\0\0CORD", b"\0\0\0TCORD", b"T\0\0\0VELD", b"\0\0\0TVELD"),
    many_steps=True,
)
