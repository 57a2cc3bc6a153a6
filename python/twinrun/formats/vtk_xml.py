"""VTK's XML files, .vtu .vtp .vti .vtr .vts, and the files .pvtu .pvti … that list pieces.

Fields are named by section and array: PointData/velocity, CellData/owner, Points, Cells/connectivity. An
array in raw appended data without compression is one extent; text, base64 and compressed blocks are decoded.
Arrays of structured grids (image data, rectilinear and structured grids) have the shape (z, y, x) or (z, y,
x, components).

A data set may consist of several pieces, in one file or in several. The pieces of a structured grid are
joined to its whole extent, so that runs with other pieces compare. The pieces of an unstructured grid are
concatenated.

Source: "VTK XML formats", https://docs.vtk.org/en/latest/vtk_file_formats/vtkxml_file_format.html.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, BinaryIO

from ..errors import DamagedFile, FormatError, Unsupported
from .blocks import BandCache, BandReader, Box
from .element_types import storage_dtype
from .files import open_regular
from .model import LARGEST, Field, FileContent, Format, checked_shape, decoded, header_field
from .vtk_arrays import KEPT, TYPES, File, array_field, open_vtk_file
from .vtk_header import Array, Piece, extent_of, integer_of, reals

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

_KINDS = ("UnstructuredGrid", "PolyData", "ImageData", "RectilinearGrid", "StructuredGrid")
_SUFFIXES = (".vtu", ".vtp", ".vti", ".vtr", ".vts")


@dataclass
class _Grid:
    """The arrays of one piece.

    low, high: of a structured grid the lowest and highest indices of points, x first. component_names: of
    each field. active: as of the piece.
    """

    fields: dict[str, Field]
    low: tuple[int, ...] = ()
    high: tuple[int, ...] = ()
    component_names: dict[str, dict[str, str]] = field(default_factory=dict)
    active: dict[str, dict[str, str]] = field(default_factory=dict)


def _grid(source: File, piece: Piece, content: FileContent) -> _Grid:
    """The arrays of a piece, by the names of their fields. Adds facts and skipped arrays to `content`."""
    path, kind = source.path, source.document.kind
    result = _Grid({}, active=piece.active)
    cells: tuple[int, ...]
    if kind in ("UnstructuredGrid", "PolyData"):
        points: tuple[int, ...] = (integer_of(piece.attributes, "NumberOfPoints", path),)
        counts = {
            s: integer_of(piece.attributes, f"NumberOf{s}", path, 0)
            for s in ("Verts", "Lines", "Strips", "Polys")
        }
        cells = (
            integer_of(piece.attributes, "NumberOfCells", path, 0)
            if kind == "UnstructuredGrid"
            else sum(counts.values()),
        )
        counts["Cells"] = cells[0]
    else:
        result.low, result.high = extent_of(piece.attributes, "Extent", path)
        counts = {}
        points = _points(result)
        cells = _cells(result)
    for array in piece.arrays:
        label = array.attributes.get("Name", "").strip()
        section = array.section
        name = section if section == "Points" else f"{section}/{label or len(result.fields)}"
        if section in ("Verts", "Lines", "Strips", "Polys") and not counts.get(section):
            continue
        if array.attributes.get("type") == "String":
            result.fields[name] = _text_field(source, array, name)
            continue
        if array.attributes.get("type") not in TYPES:
            content.skipped.append(
                (name, f"elements of type {array.attributes.get('type')!r:.40} are not compared")
            )
            continue
        tuples: tuple[int, ...] | None = None
        if section in ("PointData", "Points"):
            tuples = points
        elif section == "CellData":
            tuples = cells
        elif section in counts and label in ("offsets", "types"):
            tuples = (counts[section],)
        elif section == "Coordinates":
            axis = sum(1 for n in result.fields if n.startswith("Coordinates/"))
            if axis > 2:
                raise DamagedFile("more than three arrays of coordinates", where=path)
            name, tuples = f"Coordinates/{'xyz'[axis]}", (points[2 - axis],)
        new = array_field(source, array, name, tuples, 3 if section == "Points" else None)
        result.component_names[name] = _component_names(array)
        if name in result.fields:
            raise DamagedFile(f"two arrays are named {name!r}", where=path)
        result.fields[name] = new
    return result


def _points(grid: _Grid) -> tuple[int, ...]:
    return tuple(b - a + 1 for a, b in zip(grid.low, grid.high, strict=True))[::-1]


def _cells(grid: _Grid) -> tuple[int, ...]:
    """Number of cells along each axis, z first.

    An axis with a single plane of points has one cell, as in VTK.
    """
    if any(n == 0 for n in _points(grid)):
        return (0, 0, 0)
    return tuple(max(n - 1, 1) for n in _points(grid))


def open_vtk(path: str) -> FileContent:
    """Opens a file of VTK's XML formats.

    For .pvtu and the other parallel formats: with all pieces that it lists.
    """
    source = open_vtk_file(path)
    content = FileContent(path, "vtk")
    document = source.document
    parallel = document.kind.startswith("P") and document.kind[1:] in _KINDS
    kind = document.kind[1:] if parallel else document.kind
    if kind not in _KINDS:
        raise Unsupported(f"files of type {document.kind!r:.40} are not supported", where=path)
    grids: list[_Grid] = []
    if parallel:
        for piece in document.pieces:
            inner = open_vtk_file(_source(path, piece))
            if inner.document.kind != kind:
                raise DamagedFile(f"holds {inner.document.kind!r:.40}, not {kind}", where=inner.path)
            grids += [_grid(inner, p, content) for p in inner.document.pieces]
            _add_field_data(content, inner, f"piece-{len(content.sources)}/")
            content.sources += (inner.path,)
    else:
        grids = [_grid(source, piece, content) for piece in document.pieces]
    if kind in ("UnstructuredGrid", "PolyData"):
        grids = [g for g in grids if any(f.size for f in g.fields.values())] or grids[:1]
        fields = _joined(grids, path)
    elif len(grids) == 1:
        fields = grids[0].fields
    else:
        whole = _Grid({}, *extent_of(document.whole, "WholeExtent", path))
        fields = _put_together(grids, whole, content)
    for new in fields.values():
        content.add(new)
    if kind == "ImageData":
        for name in ("Origin", "Spacing", "Direction"):
            if name in document.whole:
                content.add(header_field(name, reals(document.whole[name].split(), path), path))
    _add_field_data(content, source)
    content.say("", "(data set)", kind)
    for section in ("PointData", "CellData"):
        active = _by_piece([grid.active[section] for grid in grids if section in grid.active])
        for word, array in active.items():
            content.say(section, word, array)
    for name in fields:
        held = [grid.component_names[name] for grid in grids if name in grid.component_names]
        if names := _by_piece(held):
            content.say(name, "(component names)", names)
    if kind not in ("UnstructuredGrid", "PolyData"):
        content.say("", "(extent)", document.whole.get("WholeExtent", "").split())
    return content


def _text_field(source: File, array: Array, name: str) -> Field:
    """The field of an array of texts: its bytes, in which every text ends with a 0."""
    kept = {k: v for k, v in array.attributes.items() if k not in ("NumberOfTuples", "NumberOfComponents")}
    new = array_field(source, replace(array, attributes={**kept, "type": "UInt8"}), name, None)
    new.kind = "text"
    return new


def _component_names(array: Array) -> dict[str, str]:
    """The names of an array's components, by attribute."""
    return {k: v for k, v in array.attributes.items() if k.startswith("ComponentName")}


def _by_piece(of_pieces: list[dict[str, str]]) -> dict[str, Any]:
    """Attributes that all pieces have in common as they are; where the pieces disagree, those of
    each piece.
    """
    if all(one == of_pieces[0] for one in of_pieces):
        return dict(of_pieces[0]) if of_pieces else {}
    return {f"piece {at}: {key}": value for at, one in enumerate(of_pieces) for key, value in one.items()}


def _source(path: str, piece: Piece) -> str:
    """Path of the file of a piece. Raises DamagedFile if it is not below the folder of `path`."""
    relative = piece.attributes.get("Source", "")
    parts = relative.replace("\\", "/").split("/")
    if not relative or os.path.isabs(relative) or ".." in parts or "\0" in relative:
        raise DamagedFile(f"it lists a piece outside of its folder: {relative[:60]!r}", where=path)
    return os.path.join(os.path.dirname(path), *parts)


def _common(grids: list[_Grid], where: str) -> list[str]:
    """Names of the arrays. Raises DamagedFile unless all pieces have them, with the same types."""
    names = list(grids[0].fields) if grids else []
    for grid in grids[1:]:
        if sorted(grid.fields) != sorted(names):
            other = sorted(set(names) ^ set(grid.fields))[0]
            raise DamagedFile(f"array {other!r} is not in every piece", where=where)
        for name in names:
            a, b = grids[0].fields[name], grid.fields[name]
            if (a.dtype, len(a.shape)) != (b.dtype, len(b.shape)):
                raise DamagedFile(f"array {name!r} has several types", where=where)
    return names


def _joined(grids: list[_Grid], path: str) -> dict[str, Field]:
    """The arrays of all pieces, concatenated."""
    if len(grids) == 1:
        return grids[0].fields
    result = {}
    for name in _common(grids, path):
        parts = [g.fields[name] for g in grids]
        first = parts[0]
        if len({p.shape[1:] for p in parts}) > 1:
            raise DamagedFile(f"array {name!r} has several numbers of components", where=path)
        shape = checked_shape(
            (sum(p.shape[0] for p in parts), *first.shape[1:]), first.itemsize, path, f"array {name!r}"
        )
        if all(p.extents is not None and p.byte_order == first.byte_order for p in parts):
            extents = tuple(e for p in parts for e in p.extents or ())
            result[name] = replace(first, shape=shape, extents=extents)
            continue

        def read(at: int, count: int, parts: list[Field] = parts) -> np.ndarray:
            out = []
            for part in parts:
                here = min(count, part.size - at)
                if here > 0:
                    out.append(part.elements(at, here))
                    at, count = 0, count - here
                else:
                    at -= part.size
                if not count:
                    break
            return np.concatenate(out)

        reader = decoded(name, first.dtype, math.prod(shape), path, read)
        result[name] = replace(first, shape=shape, extents=None, read=reader)
    return result


def _put_together(grids: list[_Grid], whole: _Grid, content: FileContent) -> dict[str, Field]:
    """The arrays of a structured grid's whole extent, joined from its pieces.

    Neighbouring pieces share the points on their border, and must have equal values there.
    """
    path = content.path
    for grid in grids:
        inside = all(a <= b for a, b in zip(whole.low, grid.low, strict=True)) and all(
            a >= b for a, b in zip(whole.high, grid.high, strict=True)
        )
        if not inside:
            raise DamagedFile("a piece extends beyond the whole extent", where=path)
    grids = [g for g in grids if math.prod(_points(g))]
    if sum(math.prod(_cells(g)) for g in grids) != math.prod(_cells(whole)):
        message = "its pieces overlap, or leave holes in the whole extent"
        raise Unsupported(message, where=path, fix="compare the pieces by themselves")
    result = {}
    cache = BandCache(KEPT * 2)
    for name in _common(grids, path):
        first = grids[0].fields[name]
        if name.startswith("Coordinates/"):
            result[name] = _coordinates(name, grids, whole, path)
            continue
        cells = name.startswith("CellData/")
        components = first.shape[3:]
        shape = checked_shape(
            (_cells(whole) if cells else _points(whole)) + components, first.itemsize, path, f"array {name!r}"
        )
        if math.prod(shape) * 8 > LARGEST:
            raise DamagedFile(f"array {name!r} is too large", where=path)
        joined = _JoinedArray([(g, g.fields[name]) for g in grids], whole, shape, cells)
        chunks = tuple(max(g.fields[name].shape[axis] for g in grids) for axis in range(len(shape)))
        band = BandReader(shape, chunks, storage_dtype(first.dtype), joined.read, cache)
        reader = decoded(name, first.dtype, math.prod(shape), path, band.read)
        result[name] = Field(name, first.dtype, first.byte_order, shape, read=reader)
    return result


def _coordinates(name: str, grids: list[_Grid], whole: _Grid, path: str) -> Field:
    """The coordinates along one axis, joined from the pieces."""
    axis = "xyz".index(name[-1])
    count = whole.high[axis] - whole.low[axis] + 1
    first = grids[0].fields[name]

    def read(at: int, size: int) -> np.ndarray:
        out = np.zeros(count, storage_dtype(first.dtype))
        known = np.zeros(count, bool)
        for grid in grids:
            part = grid.fields[name].elements()
            here = slice(grid.low[axis] - whole.low[axis], grid.high[axis] - whole.low[axis] + 1)
            if out[here][known[here]].tobytes() != part[known[here]].tobytes():
                raise ValueError(
                    "its pieces have different coordinates for a plane that they share: compare the pieces"
                )
            out[here], known[here] = part, True
        if not known.all():
            raise ValueError("its pieces leave holes in the whole extent")
        return out[at : at + size]

    return Field(
        name,
        first.dtype,
        first.byte_order,
        (count,),
        read=decoded(name, first.dtype, count, path, read),
    )


class _JoinedArray:
    """Reads boxes of an array of the whole extent from the arrays of the pieces."""

    def __init__(
        self, parts: list[tuple[_Grid, Field]], whole: _Grid, shape: tuple[int, ...], cells: bool
    ) -> None:
        self._parts, self._shape, self._cells = parts, shape, cells
        self._origin = whole.low[::-1]

    def read(self, box: Box) -> np.ndarray:
        dtype = storage_dtype(self._parts[0][1].dtype)
        out = np.zeros(tuple(s.stop - s.start for s in box), dtype)
        covered = np.zeros(out.shape[:3], bool)
        for grid, new in self._parts:
            low = [a - b for a, b in zip(grid.low[::-1], self._origin, strict=True)]
            start = [max(s.start, a) for s, a in zip(box[:3], low, strict=True)]
            stop = [min(s.stop, a + n) for s, a, n in zip(box[:3], low, new.shape[:3], strict=True)]
            if any(a >= b for a, b in zip(start, stop, strict=True)):
                continue
            plane = math.prod(new.shape[1:])
            rows = new.elements((start[0] - low[0]) * plane, (stop[0] - start[0]) * plane)
            array = rows.reshape(stop[0] - start[0], *new.shape[1:])
            here = tuple(slice(a - b, c - b) for a, b, c in zip(start[1:], low[1:], stop[1:], strict=True))
            there = tuple(
                slice(a - s.start, c - s.start) for a, s, c in zip(start, box[:3], stop, strict=True)
            )
            inside = (slice(None), *here, *box[3:])
            part = array[inside]
            known = covered[there]
            if known.any() and out[there][known].tobytes() != np.ascontiguousarray(part)[known].tobytes():
                # Only one of the two values could be compared, so a difference in the other would
                # be missed.
                raise ValueError(
                    "its pieces have different values at a point that they share: compare the pieces"
                )
            out[there] = part
            covered[there] = True
        if not covered.all():
            raise ValueError("its pieces leave holes in the whole extent")
        return out


def _add_field_data(content: FileContent, source: File, prefix: str = "") -> None:
    """Adds the arrays of the section FieldData. prefix: of their names, for the file of a piece."""
    for number, array in enumerate(source.document.fields):
        label = array.attributes.get("Name", "").strip() or str(number)
        name = f"{prefix}FieldData/{label}"
        if array.attributes.get("type") == "String":
            content.add(_text_field(source, array, name))
            continue
        if array.attributes.get("type") not in TYPES:
            content.skipped.append(
                (name, f"elements of type {array.attributes.get('type')!r:.40} are not compared")
            )
            continue
        new = array_field(source, array, name, None)
        content.add(new)
        if names := _component_names(array):
            content.say(name, "(component names)", names)
        if not prefix and label in ("TimeValue", "TIME", "time") and new.size == 1 and new.dtype[0] == "f":
            try:
                content.time = float(new.elements()[0])
            except FormatError:
                pass  # reading the field raises it again


def _sniff(path: str, file: BinaryIO) -> bool:
    return (
        re.match(rb"\s*(<\?xml[^>]*>)?\s*(<!--.*?-->\s*)?<VTKFile\b", file.read(2048), re.DOTALL) is not None
    )


def _parts(path: str) -> list[str]:
    """Paths of the pieces that a file of a parallel format (.pvtu, …) lists, whatever its suffix."""
    file, _ = open_regular(path)
    with file:
        if re.search(rb"""<VTKFile\b[^>]*\btype\s*=\s*["']P[A-Z]""", file.read(4096)) is None:
            return []
    return [_source(path, piece) for piece in open_vtk_file(path).document.pieces]


FORMAT = Format(
    "vtk",
    "VTK XML file",
    open_vtk,
    suffixes=(*_SUFFIXES, *(f".p{suffix[1:]}" for suffix in _SUFFIXES)),
    sniff=_sniff,
    order=20,
    parts=_parts,
)
