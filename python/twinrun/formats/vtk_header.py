"""The XML of VTK's files: which pieces and arrays there are, up to the appended data.

Expat reads it. A document type, and so any entity, is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import BinaryIO
from xml.parsers import expat

from ..errors import DamagedFile, Unsupported
from .files import read_exact
from .texts import real_number

__all__ = ["Array", "Document", "Piece", "extent_of", "integer_of", "is_real", "read_document", "reals"]

_SECTIONS = (
    "PointData",
    "CellData",
    "FieldData",
    "Points",
    "Cells",
    "Coordinates",
    "Verts",
    "Lines",
    "Strips",
    "Polys",
)
_MOST_ELEMENTS = 1_000_000
_DEEPEST = 64
_MOST_PIECES = 1_000_000


@dataclass
class Array:
    """A DataArray of the header.

    begin, end: the bytes of the file with its text, if the data is inline; otherwise -1.
    """

    section: str
    attributes: dict[str, str]
    begin: int = -1
    end: int = -1


@dataclass
class Piece:
    """One piece of a data set. active: the names of the active arrays, for PointData and CellData."""

    attributes: dict[str, str]
    arrays: list[Array] = field(default_factory=list)
    active: dict[str, dict[str, str]] = field(default_factory=dict)


@dataclass
class Document:
    """The content of the XML.

    appended: offset of the appended data, the byte after the underscore; -1 if there is none.
    """

    kind: str = ""
    attributes: dict[str, str] = field(default_factory=dict)  # of VTKFile
    whole: dict[str, str] = field(default_factory=dict)  # of the grid
    fields: list[Array] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    appended: int = -1
    appended_encoding: str = ""


class _AppendedData(Exception):
    """Stops the parser where the appended data begins, because that is not XML."""


class _Parser:
    """Hands the elements of the XML to a document."""

    def __init__(self, path: str) -> None:
        self.document = Document()
        self._path = path
        self._open: list[str] = []  # elements, the innermost last
        self._array: Array | None = None  # the array that is open
        self._elements = 0
        self._expat = expat.ParserCreate()
        self._expat.buffer_text = False

    @contextmanager
    def handlers(self) -> Iterator[expat.XMLParserType]:
        """The parser with its handlers. Afterwards the cycle of references to them is broken."""
        parser = self._expat
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.CharacterDataHandler = self._text
        parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = self._refuse
        parser.ProcessingInstructionHandler = parser.StartCdataSectionHandler = self._refuse
        parser.CommentHandler = lambda _: None if self._array is None else self._refuse()
        try:
            yield parser
        finally:
            parser.StartElementHandler = parser.EndElementHandler = parser.CharacterDataHandler = None
            parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = None
            parser.ProcessingInstructionHandler = parser.StartCdataSectionHandler = None
            parser.CommentHandler = None

    def _refuse(self, *_: object) -> None:
        raise DamagedFile(
            "its XML has a document type, entities, or other parts that VTK never writes", where=self._path
        )

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._elements += 1
        if self._elements > _MOST_ELEMENTS or len(self._open) > _DEEPEST:
            raise Unsupported("more XML than a header has", where=self._path)
        if not self._open and name != "VTKFile":
            raise DamagedFile(f"begins with <{name[:40]}>, not <VTKFile>", where=self._path)
        inside = self._open[-1] if self._open else ""
        self._open.append(name)
        document = self.document
        if name == "VTKFile":
            document.attributes = attributes
        elif inside == "VTKFile" and name == "AppendedData":
            document.appended = self._expat.CurrentByteIndex
            document.appended_encoding = attributes.get("encoding", "base64")
            raise _AppendedData
        elif inside == "VTKFile" and not document.kind:
            document.kind, document.whole = name, attributes
        elif name == "Piece":
            if len(document.pieces) >= _MOST_PIECES:
                raise Unsupported(f"more than {_MOST_PIECES} pieces", where=self._path)
            document.pieces.append(Piece(attributes))
        elif self._array is None and name in ("PointData", "CellData"):
            if document.pieces:
                document.pieces[-1].active[name] = attributes
        elif self._array is not None:  # an element within an array, such as InformationKey
            if self._array.begin >= 0 and self._array.end < 0:
                self._array.end = self._expat.CurrentByteIndex
        elif name in ("DataArray", "Array") and inside in _SECTIONS:
            self._begin_array(inside, attributes)

    def _begin_array(self, section: str, attributes: dict[str, str]) -> None:
        self._array = Array(section, attributes)
        if section == "FieldData":
            self.document.fields.append(self._array)
        elif not self.document.pieces:
            raise DamagedFile("an array outside of any piece", where=self._path)
        else:
            self.document.pieces[-1].arrays.append(self._array)

    def _text(self, data: str) -> None:
        # Keep only the position of the text, which may have gigabytes.
        array = self._array
        if array is None or self._open[-1] not in ("DataArray", "Array") or not data.strip():
            return
        if array.end >= 0:
            raise Unsupported("an array whose numbers are interrupted", where=self._path)
        if array.begin < 0:
            array.begin = self._expat.CurrentByteIndex + len(data) - len(data.lstrip())

    def _end(self, name: str) -> None:
        self._open.pop()
        array = self._array
        inside = self._open[-1] if self._open else None
        if name in ("DataArray", "Array") and array is not None and inside in (None, array.section):
            if array.end < 0:
                array.end = self._expat.CurrentByteIndex
            self._array = None


def read_document(file: BinaryIO, size: int, path: str) -> Document:
    """Parses the XML of a file up to its appended data."""
    reader = _Parser(path)
    document = reader.document
    at = 0
    try:
        with reader.handlers() as parser:
            while at < size:
                piece = read_exact(file, at, min(1 << 20, size - at), path, "XML")
                at += len(piece)
                parser.Parse(piece, False)
            parser.Parse(b"", True)
    except _AppendedData:
        tail = read_exact(file, document.appended, min(4096, size - document.appended), path, "XML")
        found = re.match(rb"<AppendedData[^>]*>\s*_", tail)
        if found is None:
            raise DamagedFile("its appended data does not begin with an underscore", where=path) from None
        document.appended += found.end()
    except expat.ExpatError as error:
        raise DamagedFile(f"its XML is damaged: {error}", where=path) from None
    return document


def integer_of(attributes: dict[str, str], name: str, where: str, default: int | None = None) -> int:
    text = attributes.get(name, "").strip()
    if not text and default is not None:
        return default
    if not re.fullmatch(r"\d{1,18}", text):
        raise DamagedFile(f"{name}={text[:40]!r} is not a number", where=where)
    return int(text)


def reals(words: list[str], where: str) -> list[float]:
    """Numbers of a header. Raises DamagedFile for a word that is none."""
    try:
        return [real_number(word) for word in words]
    except ValueError:
        wrong = next(word for word in words if not is_real(word))
        raise DamagedFile(f"{wrong[:40]!r} is no number", where=where) from None


def is_real(word: str | bytes) -> bool:
    """Whether a word is a number."""
    try:
        real_number(word)
    except ValueError:
        return False
    return True


def extent_of(attributes: dict[str, str], name: str, where: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(lowest, highest) indices of points, x first."""
    words = attributes.get(name, "").split()
    if len(words) != 6 or not all(re.fullmatch(r"-?\d{1,10}", w) for w in words):
        raise DamagedFile(f"{name}={' '.join(words)[:60]!r} is not six numbers", where=where)
    low, high = tuple(map(int, words[::2])), tuple(map(int, words[1::2]))
    if any(b < a - 1 for a, b in zip(low, high, strict=True)):
        raise DamagedFile(f"{name}: the extent ends before it begins", where=where)
    return low, high
