"""GROMACS .trr trajectories: frames of big-endian f32 or f64 (x, v, f and the box).

A frame has a header (i32 magic 1993, a text after its length, 13 sizes and counts as i32, time and lambda),
then the parts whose size is not 0: box, virial and pressure (3 x 3), positions, velocities and forces (atoms
x 3). Every part is one extent. Atoms have the order of the topology, which is the same in every frame and for
any number of ranks.

Source: trrio.cpp of GROMACS.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

from ..errors import DamagedFile, Unsupported
from .facts import Fact
from .files import open_regular, read_exact
from .frames import Frame, add_frames
from .model import Extent, Field, FileContent, Format, checked_shape

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

_MAGIC = 1993
_TITLE = b"GMX_trn_file"
_MOST_FRAMES = 10_000_000
# Parts whose sizes in bytes are in the header, in this order. Those in _OLD come first, and belong
# to an old format.
_OLD = ("ir", "e")
_PARTS = ("box", "vir", "pres", "top", "sym", "x", "v", "f")


def open_trr(path: str) -> FileContent:
    """Opens a .trr file. Its fields are those of x, v, f, box, virial and pressure that its frames have."""
    file, size = open_regular(path)
    content = FileContent(path, "trr")
    frames: list[Frame] = []
    with file:
        at = 0
        while at < size or not frames:
            if len(frames) >= _MOST_FRAMES:
                raise Unsupported(f"more than {_MOST_FRAMES} frames in one file", where=path)
            head = read_exact(file, at, min(256, size - at), path, "header")
            frame, at = _frame(head, at, size, path)
            frames.append(frame)
            if frame.period is not None:
                box_field = next(f for f in frame.fields if f.name == "box")
                frame.period = _period(box_field.elements().reshape(3, 3).astype(np.float64))
    add_frames(content, frames)
    return content


def _frame(head: bytes, at: int, size: int, path: str) -> tuple[Frame, int]:
    """The frame at offset `at`, and the offset after it.

    head: its first bytes. The caller sets its period if it has a box.
    """
    where = f"frame at byte {at}"
    if len(head) < 12:
        raise DamagedFile(f"{where}: {len(head)} bytes are too few for a header", where=path)
    magic, length, again = struct.unpack_from(">3i", head)
    if magic != _MAGIC:
        raise DamagedFile(f"{where} does not begin like a frame of GROMACS", where=path)
    padded = -(-again // 4) * 4
    if length != again + 1 or not 0 <= again <= 80 or len(head) < 12 + padded + 52:
        raise DamagedFile(f"{where}: its header is cut short or wrong", where=path)
    if head[12 : 12 + again] != _TITLE:
        raise DamagedFile(f"{where}: {head[12 : 12 + again]!r} instead of {_TITLE!r}", where=path)
    numbers = struct.unpack_from(">13i", head, 12 + padded)
    old, sizes = numbers[:2], dict(zip(_PARTS, numbers[2:10], strict=True))
    atoms, step, _ = numbers[10:]
    if min(numbers[:11]) < 0 or step < 0:
        raise DamagedFile(f"{where}: a size or the step is negative", where=path)
    if any(old) or sizes["top"] or sizes["sym"]:
        raise Unsupported(f"{where}: it has parts that GROMACS has not written since version 2", where=path)
    item = _item(sizes, atoms, where, path)
    begin = 12 + padded + 52
    if len(head) < begin + 2 * item:
        raise DamagedFile(f"{where}: the file ends inside its header", where=path)
    time, coupling = struct.unpack_from(">2f" if item == 4 else ">2d", head, begin)
    at += begin + 2 * item
    dtype = "f32" if item == 4 else "f64"
    fields = []
    for name, label in (
        ("box", "box"),
        ("vir", "virial"),
        ("pres", "pressure"),
        ("x", "x"),
        ("v", "v"),
        ("f", "f"),
    ):
        if not sizes[name]:
            continue
        shape = (3, 3) if name in ("box", "vir", "pres") else (atoms, 3)
        count = math.prod(checked_shape(shape, item, path, f"{where}: {label}"))
        if count * item != sizes[name]:
            raise DamagedFile(f"{where}: {label} of {shape} has {sizes[name]} bytes", where=path)
        if sizes[name] > size - at:
            raise DamagedFile(f"{where}: {label} needs {sizes[name]} bytes, {size - at} are left", where=path)
        extents = (Extent(path, at, count, item),)
        group = "atoms" if shape[0] == atoms and name in "xvf" else None
        fields.append(Field(label, dtype, "big", shape, extents=extents, group=group))
        at += sizes[name]
    facts = [Fact.of("", "(lambda)", coupling)]
    return Frame(step, fields, time, (0.0, 0.0, 0.0) if sizes["box"] else None, facts=facts), at


def _item(sizes: dict[str, int], atoms: int, where: str, path: str) -> int:
    """Bytes of a number, 4 or 8, from the sizes of the parts. The header does not state it."""
    for name, count in (
        ("box", 9),
        ("x", 3 * atoms),
        ("v", 3 * atoms),
        ("f", 3 * atoms),
        ("vir", 9),
        ("pres", 9),
    ):
        if sizes[name] and count:
            if sizes[name] not in (4 * count, 8 * count):
                message = f"{where}: {sizes[name]} bytes of {name} are neither {count} f32 nor f64"
                raise DamagedFile(message, where=path)
            return sizes[name] // count
    if any(sizes.values()):
        raise DamagedFile(f"{where}: it has data, but no atoms", where=path)
    return 4


def _period(box: np.ndarray) -> tuple[float, ...] | None:
    """Lengths of an orthogonal box; None if the box is tilted, empty or invalid."""
    lengths = np.diag(box)
    if not np.isfinite(box).all() or (box != np.diag(lengths)).any() or (lengths <= 0).any():
        return None
    return tuple(float(x) for x in lengths)


FORMAT = Format(
    "trr",
    "GROMACS trajectory",
    open_trr,
    suffixes=(".trr",),
    magic=(struct.pack(">3i", _MAGIC, len(_TITLE) + 1, len(_TITLE)),),
    many_steps=True,
)
