"""AMReX plotfiles: a folder with a text file `Header`, and for every level a file `Cell_H` that lists the
boxes and where in which `Cell_D_…` file the cells of each box begin.

Each component of each level is a field `level-0/density` with the shape of the level's domain, however the
domain was cut into boxes. So runs with different numbers of ranks or box sizes compare cell by cell. Cells
without a box are 0; the field `level-1/covered` (u8) marks the cells that have one. If the boxes cover less
than a 64th of the domain, or with place=false, the field is the boxes in sequence, and `level-1/boxes` holds
their corners; then only runs with the same boxes compare.

Boxes of whole planes, and boxes in sequence, are extents of the data files. Otherwise a reader joins the rows
of the boxes. Cells are stored in Fortran order, x first; indices are (i, j, k) from the lower corner of the
domain.

The members of particles, `particles/…`, are strided extents in the order of the grids. The key is made from
id and cpu.

Source: AMReX_VisMF.cpp and AMReX_ParticleIO.H of AMReX.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from ..errors import DamagedFile, FormatError, Unsupported
from .blocks import BandCache, BandReader, Box
from .element_types import ITEMSIZE, storage_dtype
from .files import file_size, open_regular, read_exact
from .layout import add_others
from .model import LARGEST, Extent, Field, FileContent, Format, decoded, flag, header_field

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

_LONGEST_TEXT = 1 << 28
_MOST_COMPONENTS = 10_000
_MOST_LEVELS = 100
_SPARSE = 64
_CACHE = 64 << 20
_LONGEST_FAB_HEADER = 1 << 10
_BOX = re.compile(r"\(\s*\(([-\d, ]+)\)\s*\(([-\d, ]+)\)\s*\(([-\d, ]+)\)\s*\)")
_REAL = re.compile(r"\(\(\s*8\s*,\s*\(([\d ]+)\)\s*\)\s*,\s*\(\s*(\d+)\s*,\s*\(([\d ]+)\)\s*\)\s*\)")
_PARTICLES = re.compile(r"Version_Two_Dot_(Zero|One)_(single|double)")


@dataclass(frozen=True)
class _Boxes:
    """Boxes of cells. low, high: the corners, x first, both inclusive; i64 of shape (boxes, dimensions)."""

    low: np.ndarray
    high: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        return self.high - self.low + 1

    @property
    def cells(self) -> np.ndarray:
        return self.sizes.prod(axis=1)


@dataclass(frozen=True)
class _Level:
    """The boxes of a level and where they are stored.

    boxes: the boxes without ghost cells. stored: the boxes in the files, with ghost cells. paths, offsets:
    for each box its file and the offset of its first number.
    """

    boxes: _Boxes
    stored: _Boxes
    paths: list[str]
    offsets: np.ndarray
    dtype: str
    order: str


def open_amrex(path: str, place: object = None) -> FileContent:
    """Opens a plotfile.

    place: whether a level becomes arrays of its domain's shape. By default it does if its boxes cover at
    least a 64th of the domain and do not overlap. true raises FormatError if boxes overlap or extend beyond
    the domain.
    """
    placing = None if place is None else flag(place, "place", path)
    content = FileContent(path, "amrex")
    lines = _Words(_text(os.path.join(path, "Header")), os.path.join(path, "Header"))
    lines.line()  # the version, such as HyperCLaw-V1.1
    names = [lines.line() for _ in range(lines.integer(0, _MOST_COMPONENTS))]
    dimensions = lines.integer(1, 3)
    content.time = lines.real()
    content.say("", "time", content.time)
    finest = lines.integer(0, _MOST_LEVELS - 1)
    # Corners of the domain.
    content.add(header_field("geometry", lines.reals(2 * dimensions), path))
    content.say("", "(refinement)", lines.integers(finest))
    domains = [lines.box(dimensions) for _ in range(finest + 1)]
    content.say("", "(domains)", [[low.tolist(), high.tolist()] for low, high in domains])
    content.say("", "(steps)", lines.integers(finest + 1))
    content.say("", "(cell sizes)", lines.reals((finest + 1) * dimensions))
    content.say("", "(coordinates)", lines.integers(2))
    sources = [os.path.join(path, "Header")]
    for level in range(finest + 1):
        number, grids = lines.integers(2)
        lines.real()
        lines.integer(-LARGEST, LARGEST)
        if number != level or not 0 <= grids <= 10_000_000:
            raise DamagedFile(
                f"{grids} grids of level {number}, level {level} is expected", where=lines.where
            )
        lines.reals(2 * dimensions * grids)
        relative = lines.line()
        header_path = _inside(path, relative + "_H", lines.where)
        sources.append(header_path)
        if names:
            read = _level(header_path, names, dimensions, grids)
            sources += dict.fromkeys(read.paths)
            _add_level(content, f"level-{level}", names, domains[level], read, placing)
    _add_particles(content, path, dimensions, sources)
    content.sources = tuple(dict.fromkeys(sources))
    named = {os.path.relpath(source, path) for source in sources}
    # job_info says when and how the program was built and run, so it differs between any two runs.
    # Particle_H describes how particles were distributed.
    aside = re.compile(r"(.*/)?(\w*job_info|Particle_H)")
    add_others(content, path, lambda name: name in named or aside.fullmatch(name) is not None)
    return content


# ---- the text ----


def _text(path: str) -> str:
    file, size = open_regular(path)
    with file:
        if size > _LONGEST_TEXT:
            raise Unsupported(f"a header of {size} bytes, more than {_LONGEST_TEXT}", where=path)
        return read_exact(file, 0, size, path, "header").decode("utf-8", "backslashreplace")


def _inside(folder: str, relative: str, where: str) -> str:
    """The path of a file that a header names. Raises DamagedFile if it is outside of the plotfile."""
    parts = relative.strip().split("/")
    if not relative.strip() or os.path.isabs(relative) or ".." in parts or "\0" in relative:
        raise DamagedFile(f"a file outside of the plotfile: {relative!r:.60}", where=where)
    return os.path.join(folder, *parts)


class _Words:
    """Reads numbers and lines of a text in sequence.

    Raises DamagedFile if the text does not have what is expected.
    """

    def __init__(self, text: str, where: str) -> None:
        self._text, self._at, self.where = text, 0, where

    def line(self) -> str:
        """The next line that is not empty. The rest of the current line counts as a line."""
        while self._at < len(self._text):
            end = self._text.find("\n", self._at)
            end = len(self._text) if end < 0 else end
            found = self._text[self._at : end].strip()
            self._at = end + 1
            if found:
                return found
        raise DamagedFile("ends too early", where=self.where)

    def _match(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise DamagedFile(f"{self._text[self._at : self._at + 30]!r} instead of {what}", where=self.where)
        self._at = found.end()
        return found

    def integer(self, least: int, most: int) -> int:
        value = int(self._match(_INTEGER, "a number")[1])
        if not least <= value <= most:
            raise DamagedFile(f"{value} instead of a number from {least} to {most}", where=self.where)
        return value

    def integers(self, count: int) -> list[int]:
        return [self.integer(-LARGEST, LARGEST) for _ in range(count)]

    def real(self) -> float:
        return float(self._match(_FLOAT, "a number")[1])

    def reals(self, count: int) -> list[float]:
        return [self.real() for _ in range(count)]

    def box(self, dimensions: int) -> tuple[np.ndarray, np.ndarray]:
        return _corners(self._match(_NEXT_BOX, "a box")[1], dimensions, self.where)

    def boxes(self, dimensions: int) -> _Boxes:
        count = int(self._match(_BOX_COUNT, "boxes")[1])
        if count > len(self._text) // 10:
            raise DamagedFile(f"{count} boxes are more than its text can hold", where=self.where)
        corners = [self.box(dimensions) for _ in range(count)]
        self._match(_BOX_END, "the end of the boxes")
        shape = (count, dimensions)
        low = np.array([low for low, _ in corners], np.int64).reshape(shape)
        return _Boxes(low, np.array([high for _, high in corners], np.int64).reshape(shape))

    def rest(self) -> str:
        return self._text[self._at :]


_INTEGER = re.compile(r"\s*\(?\s*(-?\d{1,18})(?:\s*,\s*-?\d{1,18})*\s*\)?(?=\s|$)")
_FLOAT = re.compile(r"\s*([-+]?(?:\d[\d.eE+-]{0,60}|\.\d[\deE+-]{0,60}|inf|nan|-nan))(?=\s|$)")
_NEXT_BOX = re.compile(r"\s*(" + _BOX.pattern.replace("([", "(?:[") + r")")
_BOX_COUNT = re.compile(r"\s*\(\s*(\d{1,12})\s+\d+")
_BOX_END = re.compile(r"\s*\)")


def _corners(text: str, dimensions: int, where: str) -> tuple[np.ndarray, np.ndarray]:
    found = _BOX.fullmatch(text.strip())
    parts = [] if found is None else [re.findall(r"-?\d{1,10}", part) for part in found.groups()]
    if [len(p) for p in parts] != [dimensions] * 3:
        raise DamagedFile(f"{text[:60]!r} is not a box of {dimensions} dimensions", where=where)
    low, high, _ = (np.array([int(x) for x in p], np.int64) for p in parts)
    if (low > high).any() or max(abs(int(x)) for x in (*low, *high)) > 1 << 31:
        raise DamagedFile(f"the box {text[:60]} is empty or out of range", where=where)
    return low, high


# ---- the levels ----


def _level(path: str, names: list[str], dimensions: int, grids: int) -> _Level:
    """Parses a Cell_H and checks it against the files that it names."""
    words = _Words(_text(path), path)
    version, _how = words.integers(2)
    if version not in (1, 2, 3, 4):
        raise Unsupported(f"version {version} of its layout is not known", where=path)
    components = words.integer(1, _MOST_COMPONENTS)
    if components != len(names):
        raise DamagedFile(f"{components} components, the plotfile's Header names {len(names)}", where=path)
    words.integer(0, 1000)  # ghost cells; the boxes in the files include them
    boxes = words.boxes(dimensions)
    if len(boxes.low) != grids or words.integer(0, 10_000_000) != grids:
        raise DamagedFile(f"{len(boxes.low)} boxes, the plotfile's Header has {grids}", where=path)
    folder = os.path.dirname(path)
    paths, starts = [], []
    for _ in range(grids):
        line = words.line().split()
        if len(line) != 3 or line[0] != "FabOnDisk:" or not re.fullmatch(r"\d{1,18}", line[2]):
            raise DamagedFile(f"{' '.join(line)[:60]!r} instead of the place of a box", where=path)
        paths.append(_inside(folder, line[1], path))
        starts.append(int(line[2]))
    described = _REAL.findall(words.rest()) if version > 1 else []
    if version > 1 and not described:
        raise DamagedFile("it does not describe the type of its numbers", where=path)
    kind = None
    if described:
        layout, length, order = described[-1]
        kind = _kind(layout, length, order, path)
    return _places(boxes, paths, starts, components, kind, path)


def _places(
    boxes: _Boxes,
    paths: list[str],
    starts: list[int],
    components: int,
    kind: tuple[str, str] | None,
    where: str,
) -> _Level:
    """Finds the numbers of every box.

    kind: (type, byte order) of all boxes; None if each box has a header in its file.
    """
    low, high = boxes.low.copy(), boxes.high.copy()
    offsets = np.zeros(len(paths), np.int64)
    kinds = set() if kind is None else {kind}
    by_file: dict[str, list[int]] = {}
    for at, path in enumerate(paths):
        by_file.setdefault(path, []).append(at)
    for path, members in by_file.items():
        file, size = open_regular(path)
        with file:
            for at in members:
                begin = starts[at]
                if kind is None:
                    found, low[at], high[at], begin = _fab_header(
                        file, size, path, begin, components, low.shape[1]
                    )
                    kinds.add(found)
                    if (low[at] > boxes.low[at]).any() or (high[at] < boxes.high[at]).any():
                        raise DamagedFile(
                            f"box {at} in {os.path.basename(path)} is not the box that Cell_H lists",
                            where=where,
                        )
                item = ITEMSIZE[(kind or next(iter(kinds)))[0]]
                cells = math.prod(int(n) for n in high[at] - low[at] + 1)
                if cells * components * item > size - begin:
                    message = f"the {cells} cells of box {at} extend beyond its end"
                    raise DamagedFile(message, where=path, fix="is the plotfile complete?")
                offsets[at] = begin
    if len(kinds) > 1:
        raise Unsupported("boxes of several precisions or byte orders in one level", where=where)
    dtype, order = next(iter(kinds), ("f64", "little"))
    return _Level(boxes, _Boxes(low, high), paths, offsets, dtype, order)


def _fab_header(
    file: BinaryIO, size: int, path: str, at: int, components: int, dimensions: int
) -> tuple[tuple[str, str], np.ndarray, np.ndarray, int]:
    """((type, byte order), lower corner, upper corner, offset of the numbers) from the text line of a box at
    offset `at`."""
    if at >= size:
        raise DamagedFile(f"a box begins at byte {at}, but the file has {size} bytes", where=path)
    text = read_exact(file, at, min(_LONGEST_FAB_HEADER, size - at), path, "box")
    end = text.find(b"\n")
    line = text[: max(end, 0)].decode("ascii", "replace")
    real, box, count = _REAL.search(line), _BOX.search(line), line.split()[-1:]
    if end < 0 or not line.startswith("FAB") or real is None or box is None:
        raise DamagedFile(f"no box at byte {at}", where=path)
    if count != [str(components)]:
        raise DamagedFile(f"the box at byte {at} has {count} components, not {components}", where=path)
    low, high = _corners(box[0], dimensions, path)
    layout, length, order = real.groups()
    return _kind(layout, length, order, path), low, high, at + end + 1


def _kind(layout: str, bytes_: str, places: str, where: str) -> tuple[str, str]:
    """(type, byte order) of numbers, from AMReX's RealDescriptor.

    layout: number of bits in all, of the exponent and of the mantissa, and more. places: the order of the
    bytes.
    """
    numbers = tuple(int(n) for n in layout.split())
    known: dict[tuple[int, ...], str] = {(64, 11, 52): "f64", (32, 8, 23): "f32"}
    dtype = known.get(numbers[:3])
    order = [int(n) for n in places.split()]
    if dtype is None or len(order) != ITEMSIZE[dtype] or int(bytes_) != len(order):
        raise Unsupported(f"numbers of layout {layout!r:.40} are not supported", where=where)
    if order == list(range(1, len(order) + 1)):
        return dtype, "big"
    if order == list(range(len(order), 0, -1)):
        return dtype, "little"
    raise Unsupported(f"numbers with their bytes in the order {places!r:.40} are not supported", where=where)


def _add_level(
    content: FileContent,
    label: str,
    names: list[str],
    domain: tuple[np.ndarray, np.ndarray],
    level: _Level,
    placing: bool | None,
) -> None:
    """Adds the components of a level.

    placing: whether as arrays of the domain's shape; None decides by the boxes.
    """
    low, high = domain
    size = high - low + 1
    boxes = level.boxes
    covered = sum(int(c) for c in boxes.cells)
    whole = math.prod(int(n) for n in size)
    inside = bool((boxes.low >= low).all() and (boxes.high <= high).all())
    overlap = _overlap(boxes)
    possible = inside and not overlap and whole * 8 <= LARGEST
    if placing and not possible:
        raise FormatError(
            f"{label}: boxes overlap or leave the domain: they cannot be placed", where=content.path
        )
    if placing is None:
        placing = possible and covered * _SPARSE >= whole
        if not placing:
            reason = "cover little of the domain" if possible else "overlap or leave the domain"
            content.notes.append(
                f"{label}: its boxes {reason}, and are compared one after another: give place=true to place them"
            )
    if not placing:
        _add_boxes(content, label, names, level)
        return
    shape = tuple(int(n) for n in size[::-1])
    holes = covered < whole
    planes = _in_planes(boxes, low, size) if not holes and (level.stored.low == boxes.low).all() else None
    planes = planes if (level.stored.high == boxes.high).all() else None
    cache = BandCache(_CACHE)
    for component, name in enumerate(names):
        full = f"{label}/{name}"
        if planes is not None:
            extents = tuple(_extent(level, at, component) for at in planes)
            content.add(
                Field(full, level.dtype, level.order, shape, extents=extents, fortran_order=len(shape) > 1)
            )
        else:
            joined = _JoinedLevel(level, component, low, shape, content.path)
            chunks = tuple(int(n) for n in boxes.sizes.max(axis=0)[::-1]) if len(boxes.low) else shape
            dtype = storage_dtype(level.dtype)
            reader = decoded(
                full,
                level.dtype,
                whole,
                content.path,
                BandReader(shape, chunks, dtype, joined.read, cache).read,
            )
            content.add(
                Field(full, level.dtype, level.order, shape, read=reader, fortran_order=len(shape) > 1)
            )
    if holes:
        _add_mask(content, f"{label}/covered", boxes, low, shape)


def _add_mask(
    content: FileContent, name: str, boxes: _Boxes, low: np.ndarray, shape: tuple[int, ...]
) -> None:
    """Adds a field of u8: 1 for cells that a box covers, 0 for others."""

    def read_box(box: Box) -> np.ndarray:
        out = np.zeros(tuple(s.stop - s.start for s in box), np.uint8)
        for _, there, _ in _parts(boxes, low, box):
            out[there] = 1
        return out

    chunks = tuple(int(n) for n in boxes.sizes.max(axis=0)[::-1]) if len(boxes.low) else shape
    reader = BandReader(shape, chunks, np.dtype(np.uint8), read_box, BandCache(_CACHE // 4)).read
    read = decoded(name, "u8", math.prod(shape), content.path, reader)
    content.add(Field(name, "u8", "little", shape, read=read, fortran_order=len(shape) > 1))


def _add_boxes(content: FileContent, label: str, names: list[str], level: _Level) -> None:
    """Adds the components of a level as 1-D fields of the boxes in sequence, and a field of the boxes'
    corners."""
    boxes, stored = level.boxes, level.stored
    if (stored.low != boxes.low).any() or (stored.high != boxes.high).any():
        raise Unsupported(f"{label}: boxes with ghost cells that cannot be placed", where=content.path)
    count = sum(int(c) for c in boxes.cells)
    for component, name in enumerate(names):
        extents = tuple(_extent(level, at, component) for at in range(len(boxes.low)))
        content.add(Field(f"{label}/{name}", level.dtype, level.order, (count,), extents=extents))
    corners = np.stack([boxes.low, boxes.high], axis=1).reshape(-1)
    read = decoded(
        f"{label}/boxes", "i64", corners.size, content.path, lambda first, n: corners[first : first + n]
    )
    content.add(Field(f"{label}/boxes", "i64", "little", (len(boxes.low), 2, boxes.low.shape[1]), read=read))


def _extent(level: _Level, at: int, component: int) -> Extent:
    item = ITEMSIZE[level.dtype]
    cells = int(level.stored.cells[at])
    return Extent(level.paths[at], int(level.offsets[at]) + component * cells * item, cells, item)


def _overlap(boxes: _Boxes) -> bool:
    """Whether two boxes share a cell."""
    order = np.argsort(boxes.low[:, -1], kind="stable")
    low, high = boxes.low[order], boxes.high[order]
    # Compare each box only with the boxes that begin within its range along the last axis; usually
    # these are few.
    last = np.searchsorted(low[:, -1], high[:, -1], side="right")
    for at in range(len(order)):
        others = slice(at + 1, int(last[at]))
        if ((low[others] <= high[at]) & (high[others] >= low[at])).all(axis=1).any():
            return True
    return False


def _in_planes(boxes: _Boxes, low: np.ndarray, size: np.ndarray) -> list[int] | None:
    """The order of the boxes along the last axis if each consists of whole planes of the domain; otherwise
    None.

    Then the cells of the boxes in this order are the cells of the level in Fortran order.
    """
    if (boxes.low[:, :-1] != low[:-1]).any() or (boxes.sizes[:, :-1] != size[:-1]).any():
        return None
    return [int(at) for at in np.argsort(boxes.low[:, -1], kind="stable")]


def _parts(
    boxes: _Boxes, low: np.ndarray, box: Box
) -> list[tuple[int, tuple[slice, ...], tuple[slice, ...]]]:
    """The boxes of a level that intersect `box`: (number, slices within `box`, slices in indices of the
    domain), z first.

    low: the lower corner of the domain. `box` counts from it.
    """
    start = np.array([s.start for s in box][::-1]) + low
    stop = np.array([s.stop for s in box][::-1]) + low  # not inclusive
    found = []
    for at in np.flatnonzero(((boxes.low < stop) & (boxes.high >= start)).all(axis=1)):
        a, b = np.maximum(boxes.low[at], start), np.minimum(boxes.high[at] + 1, stop)
        there = tuple(
            slice(int(p), int(q)) for p, q in zip((a - start)[::-1], (b - start)[::-1], strict=True)
        )
        here = tuple(slice(int(p), int(q)) for p, q in zip(a[::-1], b[::-1], strict=True))
        found.append((int(at), there, here))
    return found


class _JoinedLevel:
    """Reads boxes of a component of a level as one array of the domain, z first, from the level's boxes."""

    def __init__(
        self, level: _Level, component: int, low: np.ndarray, shape: tuple[int, ...], path: str
    ) -> None:
        self._level, self._component, self._low, self._path = level, component, low, path
        self._native = storage_dtype(level.dtype)
        self._stored = storage_dtype(level.dtype, level.order)

    def read(self, box: Box) -> np.ndarray:
        out = np.zeros(tuple(s.stop - s.start for s in box), self._native)
        files: dict[str, BinaryIO] = {}
        try:
            for at, there, here in _parts(self._level.boxes, self._low, box):
                out[there] = self._part(at, here, files)
        finally:
            for file in files.values():
                file.close()
        return out

    def _part(self, at: int, here: tuple[slice, ...], files: dict[str, BinaryIO]) -> np.ndarray:
        """Cells of one box of the level, by slices in indices of the domain.

        Reads whole planes of the box.
        """
        level = self._level
        low = level.stored.low[at][::-1]
        sizes = [int(n) for n in level.stored.sizes[at][::-1]]
        plane = math.prod(sizes[1:])
        first, last = here[0].start - int(low[0]), here[0].stop - int(low[0])
        path = level.paths[at]
        if path not in files:
            files[path] = open_regular(path)[0]
        start = self._component * math.prod(sizes) + first * plane
        item = self._stored.itemsize
        data = read_exact(
            files[path],
            int(level.offsets[at]) + start * item,
            (last - first) * plane * item,
            path,
            f"box {at}",
        )
        array = np.frombuffer(data, self._stored).reshape(last - first, *sizes[1:])
        inner = tuple(
            slice(s.start - int(o), s.stop - int(o)) for s, o in zip(here[1:], low[1:], strict=True)
        )
        inside = (slice(None), *inner)
        return array[inside]


# ---- particles ----


def _add_particles(content: FileContent, path: str, dimensions: int, sources: list[str]) -> None:
    for name in sorted(os.listdir(path)):
        header_path = os.path.join(path, name, "Header")
        if not os.path.isfile(header_path):
            continue
        words = _Words(_text(header_path), header_path)
        version = _PARTICLES.fullmatch(words.line())
        if version is None:
            content.skipped.append((name, "particles in an unknown version of the format"))
            continue
        _add_kind(
            content,
            os.path.join(path, name),
            name,
            words,
            version[1] == "One",
            version[2],
            dimensions,
            sources,
        )


def _add_kind(
    content: FileContent,
    folder: str,
    name: str,
    words: _Words,
    packed: bool,
    precision: str,
    dimensions: int,
    sources: list[str],
) -> None:
    """Adds the fields of one kind of particles.

    packed: id and cpu are two halves of one u64. precision: of the reals.
    """
    if words.integer(1, 3) != dimensions:
        raise DamagedFile(
            "its particles have another number of dimensions than the plotfile", where=words.where
        )
    reals = ["xyz"[d] for d in range(dimensions)] + [
        words.line() for _ in range(words.integer(0, _MOST_COMPONENTS))
    ]
    integers = [words.line() for _ in range(words.integer(0, _MOST_COMPONENTS))]
    if words.integer(0, 1):
        integers = ["id", "cpu", *integers]
    item = 4 if precision == "single" else 8
    record_i, record_r = 4 * len(integers), item * len(reals)
    total, pieces = _particles(folder, words, record_i + record_r, sources)
    fields: list[Field] = []
    for at, label in enumerate(integers):
        kind = "u32" if packed and at < 2 else "i32"
        extents = tuple(Extent(p, start + 4 * at, n, record_i) for p, start, n in pieces)
        fields.append(Field(f"{name}/{label}", kind, "little", (total,), extents=extents))
    for at, label in enumerate(reals):
        extents = tuple(Extent(p, start + n * record_i + item * at, n, record_r) for p, start, n in pieces)
        fields.append(Field(f"{name}/{label}", f"f{8 * item}", "little", (total,), extents=extents))
    key = None
    if integers[:2] == ["id", "cpu"]:
        key = f"{name}/idcpu"
        high, low = (fields[0], fields[1]) if packed else (fields[1], fields[0])
        fields = [_ids(key, high, low, total, folder), *fields[2:]]
    for new in fields:
        new.group, new.key = name, key
        content.add(new)


def _particles(
    folder: str, words: _Words, record: int, sources: list[str]
) -> tuple[int, list[tuple[str, int, int]]]:
    """(how many particles there are, where they lie: file, first byte, particles), by their header.

    record: bytes of a particle. sources: files that are read; those of the particles are added.
    """
    total, _next_id = words.integers(2)
    levels = words.integer(0, _MOST_LEVELS - 1) + 1
    pieces: list[tuple[str, int, int]] = []
    sizes: dict[str, int] = {}
    sources.append(words.where)
    grids = [words.integer(0, 10_000_000) for _ in range(levels)]
    for level, count in enumerate(grids):
        for _ in range(count):
            which, particles, where = words.integers(3)
            if particles == 0:
                continue
            data = os.path.join(folder, f"Level_{level}", f"DATA_{which:05}")
            if data not in sizes:
                sizes[data] = file_size(data)
                sources.append(data)
            if particles < 0 or where < 0 or particles * record > sizes[data] - where:
                raise DamagedFile(f"{particles} particles at byte {where} extend beyond its end", where=data)
            pieces.append((data, where, particles))
    found = sum(n for _, _, n in pieces)
    if found != total:
        raise DamagedFile(f"its header says {total} particles, but its grids have {found}", where=words.where)
    return total, pieces


def _ids(key: str, high: Field, low: Field, total: int, folder: str) -> Field:
    """The field of IDs: id and cpu, because an id is only unique within the process that created the
    particle. Packed, they are the two halves of one 64-bit number, the higher half first.
    """

    def read(first: int, count: int) -> np.ndarray:
        upper, lower = (f.elements(first, count).astype(np.uint32) for f in (high, low))
        return upper.astype(np.uint64) << np.uint64(32) | lower

    return Field(key, "u64", "little", (total,), read=decoded(key, "u64", total, folder, read))


# ---- which folders are plotfiles ----


def _is_plotfile(path: str) -> bool:
    """Whether a folder has the Header of a plotfile and a folder Level_0."""
    try:
        with open(os.path.join(path, "Header"), "rb") as file:
            lines = file.read(4096).split(b"\n")
    except OSError:
        return False
    if (
        len(lines) < 4
        or not re.fullmatch(rb"[A-Za-z][\w.+-]{2,60}", lines[0].strip())
        or lines[0].startswith(b"Version_")
    ):
        return False
    return lines[1].strip().isdigit() and os.path.isdir(os.path.join(path, "Level_0"))


FORMAT = Format(
    "amrex", "AMReX plotfile", open_amrex, is_folder=_is_plotfile, options=frozenset({"place"}), order=10
)
