"""VTKHDF: image data, unstructured grids, poly data and AMR, with one or several steps.

For grids every array holds the rows of all steps in sequence, and the group `Steps` has the offsets of each
step. For images the first axis is the step.

Source: VTK's documentation of its file formats, VTKHDF 1.0 to 2.3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import DamagedFile
from .attributes import PLAIN
from .files import reading
from .frames import Frame, add_frames
from .model import Field, FileContent
from .strided import run_of

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

_ROOT = "VTKHDF"
_MOST_NUMBERS = 1 << 24  # in the arrays with the offsets of steps
_MOST_STEPS = 1_000_000
_TOPOLOGIES = ("Vertices", "Lines", "Polygons", "Strips")
_DATA = ("PointData", "CellData")


def recognises(file: Any) -> bool:
    """Whether an HDF5 file is VTKHDF."""
    return _ROOT in file and "Type" in file[_ROOT].attrs


def apply(h5py: Any, file: Any, content: FileContent) -> None:
    """Removes `VTKHDF/` from the names of fields, and splits arrays of several steps into steps."""
    root = file[_ROOT]
    kind = _text(root.attrs["Type"])
    fields = [replace(f, name=n.removeprefix(_ROOT + "/")) for n, f in content.fields.items()]
    _keys(root, fields)
    content.fields = {}
    for label, fact in list(content.facts.items()):
        if fact.owner.startswith(_ROOT + "/"):
            content.add_fact(replace(content.facts.pop(label), owner=fact.owner.removeprefix(_ROOT + "/")))
    steps = root.get("Steps")
    if not isinstance(steps, h5py.Group):
        for field in fields:
            content.add(field)
        return
    with reading(content.path, "the steps of VTKHDF"):
        count = int(np.asarray(steps.attrs["NSteps"]).reshape(()))
        if not 0 <= count <= _MOST_STEPS:
            raise DamagedFile(f"NSteps is {count}, not 0 to {_MOST_STEPS}", where=content.path, fix=PLAIN)
        times = _numbers(steps, "Values", content.path) if "Values" in steps else None
        cut = _Cut(root, steps, kind, content.path)
        plain: list[Field] = []
        moving: list[Field] = []
        offsets: list[Field] = []
        for field in fields:
            if field.name.startswith("Steps/"):
                offsets.append(field)
            else:
                (moving if cut.has_steps(field) else plain).append(field)
        frames = []
        for step in range(count):
            time = float(times[step]) if times is not None and step < len(times) else None
            frames.append(Frame(step, [cut.field(f, step) for f in moving], time))
        for field in moving:
            plain += cut.rest(field, [cut.rows(field, step) for step in range(count)])
        # Offsets that were used are storage, and times are in `times`; only the rest of these
        # arrays is compared.
        for field in offsets:
            known = 0
            if moving and field.shape:
                is_time = field.name == "Steps/Values"
                known = count if is_time else count + 1 if cut.used(field.name.removeprefix("Steps/")) else 0
            plain += cut.rest(field, [(0, known)]) if known else [field]
        for field in plain:
            content.add(field)
        if moving:
            add_frames(content, frames)
        else:
            content.notes.append(
                f"steps are not supported for {kind}: arrays of all steps are compared as a whole"
            )


def _keys(root: Any, fields: list[Field]) -> None:
    """Sets the group of the arrays at points and at cells, and their array of global IDs as the key."""
    names = {field.name for field in fields}
    for name in _DATA:
        if name not in root:
            continue
        # Newer versions (from about 2.3) mark the array, older ones name it in an attribute of the
        # group.
        ids = _text(root[name].attrs.get("GlobalIds"))
        if not ids:
            arrays = (n for n in root[name] if f"{name}/{n}" in names)
            ids = next((n for n in arrays if _text(root[name][n].attrs.get("Attribute")) == "GlobalIds"), "")
        key = f"{name}/{ids}"
        for field in fields:
            if field.name.startswith(name + "/") or (name == "PointData" and field.name == "Points"):
                field.group, field.key = name, key if key in names else None


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else ""


def _numbers(group: Any, name: str, where: str) -> np.ndarray:
    """Reads a small dataset of numbers. Raises DamagedFile if it has more than _MOST_NUMBERS."""
    dataset = group[name]
    if math.prod(dataset.shape) > _MOST_NUMBERS:
        raise DamagedFile(
            f"{name!r} has {math.prod(dataset.shape)} numbers, more than {_MOST_NUMBERS}",
            where=where,
            fix=PLAIN,
        )
    return np.asarray(dataset[()])


class _Cut:
    """Finds the rows of each step in the arrays of a file, and cuts them out."""

    def __init__(self, root: Any, steps: Any, kind: str, path: str) -> None:
        self.root, self.steps, self.kind, self.path = root, steps, kind, path
        self._read: dict[str, np.ndarray | None] = {}

    def has_steps(self, field: Field) -> bool:
        """Whether an array holds the rows of several steps."""
        return field.problem is None and bool(field.shape) and self.rows(field, 0) is not None

    def used(self, name: str) -> bool:
        """Whether an array of `Steps` was used as offsets."""
        return self._read.get(f"{self.steps.name}/{name}") is not None

    def rest(self, field: Field, places: Sequence[tuple[int, int] | None]) -> list[Field]:
        """Fields of the rows of an array outside of `places`, which are (first row, number of rows)."""
        rest, at = [], 0
        for first, rows in [*sorted(place for place in places if place is not None), (field.shape[0], 0)]:
            if first > at:
                inner = field.shape[1:]
                part = run_of(field, at * math.prod(inner), (first - at, *inner))
                name = f"{field.name} (rows of no step, from {at})"
                rest.append(replace(part, name=name, group=None, key=None))
            at = max(at, first + rows)
        return rest

    def field(self, field: Field, step: int) -> Field:
        """The rows of a step as a field. Raises DamagedFile if the array does not have them."""
        place = self.rows(field, step)
        if place is None:
            what = f"{field.name!r:.80}: the file has no offset for step {step}"
            raise DamagedFile(what, where=self.path, fix=PLAIN)
        first, rows = place
        if first < 0 or rows < 0 or first + rows > field.shape[0]:
            what = f"{field.name!r:.80}: step {step} has rows {first} to {first + rows} of {field.shape[0]}"
            raise DamagedFile(what, where=self.path, fix=PLAIN)
        inner = field.shape[1:]
        if self.kind == "ImageData":  # the first axis is time
            return run_of(field, first * math.prod(inner), inner)
        return run_of(field, first * math.prod(inner), (rows, *inner))

    def rows(self, field: Field, step: int) -> tuple[int, int] | None:
        """(first row, number of rows) of a step along the first axis; None if the array has no steps."""
        group, _, name = field.name.rpartition("/")
        if self.kind == "ImageData":
            if group not in _DATA:
                return None
            offset = self._at(f"{group}Offsets/{name}", step)
            return (step if offset is None else offset), 1
        if self.kind not in ("UnstructuredGrid", "PolyData"):
            return None
        parts = self._at("NumberOfParts", step)
        first_part = self._at("PartOffsets", step)
        if parts is None:
            parts = 1
        if first_part is None:
            first_part = step
        if field.name in ("Points", "NumberOfPoints") or group == "PointData":
            if field.name == "NumberOfPoints":
                return first_part, parts
            label = "PointOffsets" if field.name == "Points" else f"PointDataOffsets/{name}"
            return self._place(label, step, self._sum("NumberOfPoints", first_part, parts))
        if group == "CellData":
            if self.kind == "PolyData":
                cells = sum(self._sum(f"{t}/NumberOfCells", first_part, parts) or 0 for t in _TOPOLOGIES)
            else:
                cells = self._sum("NumberOfCells", first_part, parts) or 0
            return self._place(f"CellDataOffsets/{name}", step, cells)
        topology = _TOPOLOGIES.index(group) if group in _TOPOLOGIES else 0
        if group not in ("", *_TOPOLOGIES) or (self.kind == "PolyData") != (group != ""):
            return None
        above = group + "/" if group else ""
        if name in ("NumberOfCells", "NumberOfConnectivityIds"):
            return first_part, parts
        if name == "Connectivity":
            count = self._sum(above + "NumberOfConnectivityIds", first_part, parts)
            return self._place("ConnectivityIdOffsets", step, count, topology)
        cells_here = self._sum(above + "NumberOfCells", first_part, parts)
        if name == "Types":
            return self._place("CellOffsets", step, cells_here, topology)
        if name == "Offsets":
            place = self._place("CellOffsets", step, cells_here, topology)
            # Every part has one offset more than it has cells.
            return None if place is None else (place[0] + first_part, place[1] + parts)
        return None

    def _place(self, label: str, step: int, count: int | None, column: int = 0) -> tuple[int, int] | None:
        offset = self._at(label, step, column)
        return None if offset is None or count is None else (offset, count)

    def _array(self, group: Any, name: str) -> np.ndarray | None:
        key = f"{group.name}/{name}"
        if key not in self._read:
            self._read[key] = _numbers(group, name, self.path).astype(np.int64) if name in group else None
        return self._read[key]

    def _at(self, label: str, step: int, column: int = 0) -> int | None:
        array = self._array(self.steps, label)
        if array is None or step >= len(array):
            return None
        row = np.atleast_1d(array[step])
        return int(row[min(column, len(row) - 1)]) if len(row) else None

    def _sum(self, label: str, first: int, count: int) -> int | None:
        array = self._array(self.root, label)
        if array is None or not 0 <= first <= first + count <= len(array):
            return None
        return int(array[first : first + count].sum())
