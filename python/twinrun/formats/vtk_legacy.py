"""VTK's legacy files, .vtk: lines of text that describe arrays, each followed by its numbers.

Binary numbers are big-endian, and become extents; numbers in text are decoded. Arrays have the same names
(PointData/velocity) and shapes as in VTK's XML files, see `vtk_xml`.

Source: "VTK file formats", "Simple legacy formats",
https://docs.vtk.org/en/latest/vtk_file_formats/vtk_legacy_file_format.html.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, BinaryIO

from ..errors import DamagedFile, Unsupported
from .element_types import ITEMSIZE
from .files import open_regular, read_exact
from .layout import Stored, bytes_field
from .model import Extent, Field, FileContent, Format, checked_shape, coded, header_field
from .vtk_arrays import File, text_field
from .vtk_header import Array, Document, reals

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

_TYPES = {
    "char": "i8", "unsigned_char": "u8", "short": "i16", "unsigned_short": "u16", "int": "i32", "unsigned_int": "u32",
    "long": "i64", "unsigned_long": "u64", "float": "f32", "double": "f64", "vtkidtype": "i32",
    "vtktypeint64": "i64", "vtktypeuint64": "u64", "signed_char": "i8",
}  # fmt: skip
_GRIDS = ("STRUCTURED_POINTS", "STRUCTURED_GRID", "RECTILINEAR_GRID", "UNSTRUCTURED_GRID", "POLYDATA")
_CELLS = {
    "CELLS": "Cells",
    "VERTICES": "Verts",
    "LINES": "Lines",
    "TRIANGLE_STRIPS": "Strips",
    "POLYGONS": "Polys",
}
_MOST_ARRAYS = 100_000
_LONGEST_LINE = 4096
_LONGEST_TEXT = 1 << 24


class _Cursor:
    """Reads lines, texts and numbers of a file in sequence. at: the offset of the next byte."""

    def __init__(self, file: BinaryIO, size: int, path: str) -> None:
        self._file, self.size, self.path, self.at = file, size, path, 0
        self.binary = False

    def line(self) -> str | None:
        """The next line that is not empty; None at the end of the file."""
        while self.at < self.size:
            piece = read_exact(
                self._file, self.at, min(_LONGEST_LINE, self.size - self.at), self.path, "line"
            )
            end = piece.find(b"\n")
            if end < 0 and len(piece) == _LONGEST_LINE:
                raise DamagedFile(f"a line of more than {_LONGEST_LINE} bytes at {self.at}", where=self.path)
            taken = piece if end < 0 else piece[: end + 1]
            self.at += len(taken)
            if text := taken.decode("utf-8", "backslashreplace").strip():
                return text
        return None

    def text(self) -> bytes:
        """The next text of an array of texts."""

        def taken(length: int) -> bytes:
            if length > self.size - self.at:
                raise DamagedFile(
                    f"a text of {length} bytes at {self.at} extends beyond its end", where=self.path
                )
            found = read_exact(self._file, self.at, length, self.path, "text")
            self.at += length
            return found

        if self.binary:  # the highest two bits encode the number of bytes of the length
            first = taken(1)
            more = {3: 0, 2: 1, 1: 3, 0: 7}[first[0] >> 6]
            return taken(int.from_bytes(bytes([first[0] & 63]) + taken(more), "big"))
        length = min(_LONGEST_TEXT, self.size - self.at)
        piece = read_exact(self._file, self.at, min(_LONGEST_LINE, length), self.path, "text")
        if b"\n" not in piece:
            piece = read_exact(self._file, self.at, length, self.path, "text")
        end = piece.find(b"\n")
        if end < 0 and (length == _LONGEST_TEXT or not piece):
            raise DamagedFile(f"a text at {self.at} has no end", where=self.path)
        line = taken(len(piece) if end < 0 else end + 1).removesuffix(b"\n").removesuffix(b"\r")
        return _decoded(line)

    def words(self, least: int, what: str) -> list[str]:
        found = (self.line() or "").split()
        if len(found) < least:
            raise DamagedFile(f"byte {self.at}: {what} is missing", where=self.path)
        return found

    def skip(self, count: int, item: int) -> tuple[int, int]:
        """Skips `count` numbers of `item` bytes. Returns the offsets of their begin and end."""
        begin = self.at
        if self.binary:
            self.at += count * item
            if self.at > self.size:
                raise DamagedFile(f"{count * item} bytes at {begin} extend beyond its end", where=self.path)
            return begin, self.at
        left, inside = count, False  # inside: the previous piece ended within a number
        while left or inside:
            piece = read_exact(self._file, self.at, min(1 << 20, self.size - self.at), self.path, "numbers")
            if not piece:
                if left:
                    missing = "1 number is missing" if left == 1 else f"{left} numbers are missing"
                    raise DamagedFile(f"{missing} at its end", where=self.path)
                break
            letters = np.frombuffer(piece, np.uint8) > 32
            before = np.concatenate([[inside], letters[:-1]])
            ends = np.flatnonzero(before & ~letters)  # positions after a number
            if ends.size >= left + inside:
                self.at += int(ends[left + inside - 1])
                return begin, self.at
            left -= int(np.count_nonzero(letters & ~before))
            inside = bool(letters[-1])
            if left < 0:
                raise DamagedFile(f"byte {self.at}: numbers without space between them", where=self.path)
            self.at += len(piece)
        return begin, self.at


def _decoded(line: bytes) -> bytes:
    """Replaces %20 and the like, by which VTK writes blanks and special characters."""
    return re.sub(rb"%([0-9A-Fa-f]{2})", lambda m: bytes([int(m[1], 16)]), line)


def _name(word: str) -> str:
    """The name that a word encodes, without surrounding blanks, as in XML."""
    whole = _decoded(word.encode("utf-8", "surrogateescape"))
    return whole.decode("utf-8", "backslashreplace").strip() or word


def _number(text: str, where: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text):
        raise DamagedFile(f"{text[:40]!r} instead of a number", where=where)
    return int(text)


def open_vtk_legacy(path: str) -> FileContent:
    """Opens a legacy .vtk file."""
    file, size = open_regular(path)
    content = FileContent(path, "vtk-legacy")
    with file:
        cursor = _Cursor(file, size, path)
        if not (cursor.line() or "").startswith("# vtk DataFile"):
            raise DamagedFile("does not begin like a VTK file", where=path)
        title = read_exact(file, cursor.at, min(_LONGEST_LINE, size - cursor.at), path, "title")
        content.say("", "(title)", title[: title.find(b"\n")].strip())
        cursor.at += title.find(b"\n") + 1  # may be empty
        mode = cursor.words(1, "ASCII or BINARY")[0].upper()
        if mode not in ("ASCII", "BINARY"):
            raise DamagedFile(f"{mode[:40]!r} instead of ASCII or BINARY", where=path)
        cursor.binary = mode == "BINARY"
        _Reader(content, cursor).read()
    return content


class _Reader:
    """Reads the sections of a file, and adds their arrays to `content`."""

    def __init__(self, content: FileContent, cursor: _Cursor) -> None:
        self._content, self._cursor, self._path = content, cursor, cursor.path
        self._text = File(cursor.path, cursor.size, Document(), "big", 4, "")
        self._grid: tuple[int, ...] = ()  # numbers of points of a structured grid, z first
        self._section, self._tuples = "", 0

    def read(self) -> None:
        cursor = self._cursor
        while (line := cursor.line()) is not None:
            words = line.split()
            word = words[0].upper()
            if len(self._content.fields) > _MOST_ARRAYS:
                raise Unsupported(f"more than {_MOST_ARRAYS} arrays", where=self._path)
            if word == "DATASET":
                if len(words) < 2 or words[1].upper() not in _GRIDS:
                    raise Unsupported(f"a data set {' '.join(words[1:])[:40]!r}", where=self._path)
                self._content.say("", "(data set)", words[1].upper())
            elif word == "DIMENSIONS":
                self._grid = tuple(_number(w, self._path) for w in self._rest(words, 3))[::-1]
            elif word in ("ORIGIN", "SPACING", "ASPECT_RATIO"):
                numbers = reals(self._rest(words, 3), self._path)
                self._content.add(
                    header_field("Origin" if word == "ORIGIN" else "Spacing", numbers, self._path)
                )
            elif word == "METADATA":
                self._take_metadata()
            elif word in ("POINT_DATA", "CELL_DATA"):
                self._section = "PointData" if word == "POINT_DATA" else "CellData"
                self._tuples = _number(self._rest(words, 1)[0], self._path)
            elif word == "POINTS":
                count, kind = self._rest(words, 2)
                self._array("Points", kind, _number(count, self._path), 3, points=True)
            elif word[1:] == "_COORDINATES" and word[0] in "XYZ":
                count, kind = self._rest(words, 2)
                self._array(f"Coordinates/{word[0].lower()}", kind, _number(count, self._path), 1)
            elif word in _CELLS:
                self._cells(_CELLS[word], *(_number(w, self._path) for w in self._rest(words, 2)))
            elif word == "CELL_TYPES":
                self._array("Cells/types", "int", _number(self._rest(words, 1)[0], self._path), 1)
            elif word == "FIELD":
                self._fields(_number(self._rest(words, 2)[1], self._path))
            else:
                self._attribute(word, words)

    def _rest(self, words: list[str], count: int) -> list[str]:
        if len(words) < count + 1:
            raise DamagedFile(f"{' '.join(words)[:60]!r} lacks an argument", where=self._path)
        return words[1 : count + 1]

    def _attribute(self, word: str, words: list[str]) -> None:
        """Reads an array of points or cells (SCALARS, VECTORS, …) or a lookup table."""
        if word == "LOOKUP_TABLE":  # an entry has four bytes, or four real numbers in a text file
            name, count = self._rest(words, 2)
            kind = "unsigned_char" if self._cursor.binary else "float"
            self._array(f"LOOKUP_TABLE/{_name(name)}", kind, _number(count, self._path), 4)
            return
        widths = {
            "VECTORS": 3, "NORMALS": 3, "TENSORS": 9, "TENSORS6": 6, "GLOBAL_IDS": 1, "PEDIGREE_IDS": 1, "EDGE_FLAGS": 1,
        }  # fmt: skip
        if not self._section or word not in (*widths, "SCALARS", "TEXTURE_COORDINATES", "COLOR_SCALARS"):
            raise DamagedFile(f"{word[:40]!r} is not a section of a VTK file", where=self._path)
        label = f"{self._section}/{_name(self._rest(words, 1)[0])}"
        self._content.say(label, "(kind)", word)  # an array in a FIELD section has no kind
        if word == "COLOR_SCALARS":
            width = _number(self._rest(words, 2)[1], self._path)
            self._array(
                label, "unsigned_char" if self._cursor.binary else "float", self._tuples, width, grid=True
            )
        elif word == "TEXTURE_COORDINATES":
            width = _number(self._rest(words, 2)[1], self._path)
            self._array(label, self._rest(words, 3)[2], self._tuples, width, grid=True)
        elif word == "SCALARS":
            width = _number(words[3], self._path) if len(words) > 3 else 1
            here = self._cursor.at
            line = self._cursor.line() or ""
            if line.upper().startswith("LOOKUP_TABLE"):
                self._content.say(label, "(lookup table)", line.split()[1:])
            else:
                self._cursor.at = here
            self._array(label, self._rest(words, 2)[1], self._tuples, width, grid=True)
        else:
            self._array(label, self._rest(words, 2)[1], self._tuples, widths[word], grid=True)

    def _fields(self, count: int) -> None:
        for _ in range(count):
            words = self._cursor.words(4, "an array")
            if words[0].upper() == "METADATA":
                self._take_metadata()
                words = self._cursor.words(4, "an array")
            width, tuples = _number(words[1], self._path), _number(words[2], self._path)
            own = self._section and tuples == self._tuples
            name = _name(words[0])
            self._array(f"{self._section or 'FieldData'}/{name}", words[3], tuples, width, grid=bool(own))
            if not self._section and name.lower() in ("time", "timevalue") and width * tuples == 1:
                new = self._content.fields.get(f"FieldData/{name}")
                if new is not None:
                    self._content.time = float(new.elements()[0])

    def _cells(self, section: str, first: int, second: int) -> None:
        """Reads cells: before version 5 a list of `second` integers, since then `first` offsets and `second`
        point IDs."""
        here = self._cursor.at
        piece = self._cursor.line() or ""
        if not piece.upper().startswith("OFFSETS"):
            self._cursor.at = here
            self._array(section, "int", second, 1)
            return
        self._array(f"{section}/offsets", self._rest(piece.split(), 1)[0], first, 1)
        words = self._cursor.words(2, "CONNECTIVITY")
        if words[0].upper() != "CONNECTIVITY":
            raise DamagedFile(f"{words[0][:40]!r} instead of CONNECTIVITY", where=self._path)
        self._array(f"{section}/connectivity", words[1], second, 1)

    def _take_metadata(self) -> None:
        """Adds the lines of a METADATA block, up to an empty line or the end of the file, as a fact of the
        last array."""
        cursor = self._cursor
        lines = []
        while cursor.at < cursor.size:
            start = cursor.at
            piece = read_exact(
                cursor._file, start, min(_LONGEST_LINE, cursor.size - start), self._path, "metadata"
            )
            end = piece.find(b"\n")
            line = piece if end < 0 else piece[: end + 1]
            cursor.at += len(line)
            if not line.strip():
                break
            lines.append(line.strip())
        self._content.say(next(reversed(self._content.fields), ""), "(metadata)", lines)

    def _array(
        self, name: str, kind: str, tuples: int, width: int, points: bool = False, grid: bool = False
    ) -> None:
        """Adds the array at the cursor, and moves the cursor after it.

        kind: VTK's name of the type. tuples, width: numbers of tuples and of components. points, grid:
        whether it has the shape of the structured grid, as coordinates of points or as data at points or
        cells.
        """
        dtype = _TYPES.get(kind.lower())
        numbers = tuples * width
        if kind.lower() == "string":
            self._texts(name, tuples, width)
            return
        if kind.lower() == "bit" and not self._cursor.binary:
            dtype = "u8"
        if dtype is None:
            if kind.lower() != "bit" or not self._cursor.binary:
                raise Unsupported(f"array {name!r} of type {kind[:40]!r}", where=self._path)
            begin, end = self._cursor.skip(-(-numbers // 8), 1)
            self._content.add(bytes_field(name, Stored(self._path, begin), end - begin, "bits"))
            self._content.say(name, "(bits)", numbers)
            return
        item = ITEMSIZE[dtype]
        shape = checked_shape(
            (*self._shape(name, tuples, points, grid), width), item, self._path, f"array {name!r}"
        )
        if width == 1:
            shape = shape[:-1]
        if not self._cursor.binary and numbers > self._cursor.size:
            raise DamagedFile(
                f"array {name!r}: {numbers} numbers in {self._cursor.size} bytes", where=self._path
            )
        begin, end = self._cursor.skip(numbers, item)
        if self._cursor.binary:
            extents = (Extent(self._path, begin, numbers, item),) if numbers else ()
            self._content.add(Field(name, dtype, "big", shape, extents=extents))
            return
        text = Array("", {}, begin, end)
        tuple_shape = shape if width == 1 else shape[:-1]
        self._content.add(text_field(self._text, text, name, dtype, tuple_shape, width, numbers))

    def _texts(self, name: str, tuples: int, width: int) -> None:
        """Adds an array of texts: each is a line with %20 for a blank, or in a binary file follows its
        length."""
        cursor, count = self._cursor, tuples * width
        if count > cursor.size:
            raise DamagedFile(f"array {name!r}: {count} texts in {cursor.size} bytes", where=self._path)
        texts = [cursor.text() for _ in range(count)]
        shape = (tuples,) if width == 1 else (tuples, width)
        self._content.add(
            coded(name, "text", shape, self._path, lambda first, count: texts[first : first + count])
        )

    def _shape(self, name: str, tuples: int, points: bool, grid: bool) -> tuple[int, ...]:
        """The shape without components: that of the structured grid for data at its points or cells,
        otherwise (tuples,)."""
        if self._grid and (points or grid):
            cells = tuple(max(n - 1, 1) for n in self._grid)
            shape = cells if name.startswith("CellData/") else self._grid
            if math.prod(shape) == tuples:
                return shape
            raise DamagedFile(
                f"array {name!r} has {tuples} entries, the grid has {math.prod(shape)}", where=self._path
            )
        return (tuples,)


FORMAT = Format(
    "vtk-legacy", "VTK legacy file", open_vtk_legacy, suffixes=(".vtk",), magic=(b"# vtk DataFile ",)
)
