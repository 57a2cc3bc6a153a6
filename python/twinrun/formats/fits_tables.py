"""Tables of FITS: every column is a field.

Numbers of binary tables are extents, or gathered from rows. Texts and lists of any length are codes (see
`facts`), logical values and bits bytes of their kind. The columns of tables of text are texts.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING, BinaryIO

from ..errors import DamagedFile
from .facts import Fact
from .files import open_regular, read_exact
from .fits_header import Header
from .fits_images import is_shift, note_scale, shifted
from .layout import Stored, array_fields
from .model import Field, FileContent, checked_shape, coded
from .records import read_records

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

__all__ = ["add_table"]

_FORM = re.compile(r"(\d*)([LXBIJKAEDCMPQ])(.*)", re.DOTALL)
_LIST = re.compile(r"([LXBIJKAEDCM])(?:\((\d*)\))?")
_TEXT_FORM = re.compile(r"[AIFED](\d+)(?:\.\d+)?")
_NUMPY = {
    "L": "u1", "X": "u1", "B": "u1", "I": ">i2", "J": ">i4", "K": ">i8", "A": "S1", "E": ">f4", "D": ">f8",
    "C": ">c8", "M": ">c16",
}  # fmt: skip
_KINDS = {"L": "logical value", "X": "bits"}
_DESCRIPTOR = {"P": ">u4", "Q": ">u8"}
_MOST_COLUMNS = 999


def add_table(
    content: FileContent, name: str, header: Header, at: int, size: int, kind: str, scaled: list[str]
) -> dict[int, str]:
    """Adds the columns of a table whose data begin at offset `at`. Returns the names of their fields by the
    numbers of the columns."""
    path = content.path
    if header.size("NAXIS", path) != 2 or header.number("BITPIX", path) != 8:
        raise DamagedFile(f"table {name!r:.60} is no table of bytes", where=path)
    width, rows = header.size("NAXIS1", path), header.size("NAXIS2", path)
    columns = header.size("TFIELDS", path)
    if columns > _MOST_COLUMNS:
        raise DamagedFile(f"table {name!r:.60} has {columns} columns, more than {_MOST_COLUMNS}", where=path)
    names: dict[int, str] = {}
    place = 0
    for number in range(1, columns + 1):
        own = header.text(f"TTYPE{number}").replace("@", "_") or f"column_{number}"
        label = f"{name}/{own}"
        while label in names.values():
            label += f"#{number}"
        names[number] = label
        form = header.text(f"TFORM{number}")
        column = _Column(content, label, header, number, rows, width, at, size)
        if kind == "table of text":
            column.add_text(form)
        else:
            place = column.add(form, place, scaled)
    if kind == "table" and place != width:
        raise DamagedFile(
            f"table {name!r:.60}: its columns have {place} bytes, and its rows {width}", where=path
        )
    order = [label.removeprefix(f"{name}/") for label in names.values()]
    content.add_fact(replace(Fact.of(name, "(columns)", order), order=tuple(order)))
    if not columns:
        content.say(name, "(rows)", rows)
    return names


class _Column:
    """A column of a table. at, size: the place of the table's data. width: bytes of a row."""

    def __init__(
        self,
        content: FileContent,
        label: str,
        header: Header,
        number: int,
        rows: int,
        width: int,
        at: int,
        size: int,
    ) -> None:
        self.content, self.label, self.header, self.number = content, label, header, number
        self.rows, self.width, self.at, self.size = rows, width, at, size
        self.path = content.path
        self.what = f"column {label!r:.60}"

    def add(self, form: str, place: int, scaled: list[str]) -> int:
        """Adds a column of a binary table that begins at byte `place` of a row; returns where it ends."""
        found = _FORM.fullmatch(form)
        if found is None:
            raise DamagedFile(f"{self.what} has TFORM = {form!r:.40}", where=self.path)
        repeat = int(found[1][:18]) if found[1] else 1
        letter = found[2]
        if letter not in (*_DESCRIPTOR, "A") and found[3].strip(" "):
            raise DamagedFile(f"{self.what} has TFORM = {form!r:.40}", where=self.path)
        if letter in _DESCRIPTOR:
            return self._add_lists(letter, repeat, found[3], place)
        count = -(-repeat // 8) if letter == "X" else repeat
        kind = np.dtype(_NUMPY[letter])
        end = place + count * kind.itemsize
        self._check(end)
        shape = self._shape(letter, count)
        if letter == "A":
            kind = np.dtype(f"S{shape[-1] if shape else 1}")
            shape = shape[:-1]
        elif shape == (1,):
            shape = ()
        member = np.dtype((kind, shape)) if shape else kind
        if kind.itemsize == 0 or 0 in shape:  # numpy has no texts of 0 bytes in a struct
            self.content.add(Field(self.label, "u8", "little", (self.rows, 0), extents=()))
            return end
        row = np.dtype({"names": ["x"], "formats": [member], "offsets": [place], "itemsize": self.width})
        fields, skipped = array_fields(self.label, row, (self.rows,), Stored(self.path, self.at))
        assert len(fields) == 1 and not skipped
        self._add(replace(fields[0], name=self.label), letter, scaled)
        return end

    def _check(self, end: int) -> None:
        if end > self.width:
            raise DamagedFile(f"{self.what} ends at byte {end} of rows of {self.width}", where=self.path)

    def _shape(self, letter: str, count: int) -> tuple[int, ...]:
        """The shape of an element: TDIM, if it fits."""
        text = self.header.text(f"TDIM{self.number}").replace(" ", "")
        if re.fullmatch(r"\(\d{1,18}(,\d{1,18})*\)", text) and letter != "X":
            shape = checked_shape([int(n) for n in reversed(text[1:-1].split(","))], 1, self.path, self.what)
            if math.prod(shape) == count and len(shape) < 32:
                return shape
        return (count,)

    def _add(self, new: Field, letter: str, scaled: list[str]) -> None:
        if letter in _KINDS:
            # `tell` shows the byte: T, F, or its bits.
            own = new

            def tell(position: int) -> str:
                byte = int(own.elements(position, 1)[0])
                return format(byte, "08b") if letter == "X" else repr(chr(byte))

            new = replace(new, kind=_KINDS[letter], tell=tell)
        scale, zero = (self.header.values.get(f"{word}{self.number}") for word in ("TSCAL", "TZERO"))
        if is_shift(new.dtype, scale, zero) and new.kind is None:
            new = shifted(new, self.path)
            for word in ("TSCAL", "TZERO"):
                self.header.values.pop(f"{word}{self.number}", None)
                self.header.comments.pop(f"{word}{self.number}", None)
        elif new.kind is None:
            note_scale(self.label, scale, zero, scaled)
        self.content.add(new)

    def _add_lists(self, letter: str, repeat: int, form: str, place: int) -> int:
        """Adds a column of lists, whose elements lie behind the rows."""
        found = _LIST.fullmatch(form.strip(" "))
        if found is None or repeat > 1:
            raise DamagedFile(f"{self.what} has lists of the type {form!r:.40}", where=self.path)
        descriptor = np.dtype((_DESCRIPTOR[letter], (2,)))
        if repeat == 0:
            self.content.say(self.label, "(type)", "no lists")
            return place
        self._check(place + descriptor.itemsize)
        element = np.dtype(_NUMPY[found[1]])
        heap = self.header.size("THEAP", self.path, self.width * self.rows)

        def one(file: BinaryIO, count: int, offset: int) -> object:
            stored = -(-count // 8) if found[1] == "X" else count
            begin = heap + offset
            if begin + stored * element.itemsize > self.size:
                message = f"{self.what}: a list of {count} elements at byte {offset} is outside of the table"
                raise DamagedFile(message, where=self.path)
            raw = read_exact(file, self.at + begin, stored * element.itemsize, self.path, self.what)
            # Bits and texts are bytes. How many bits there are is not in these.
            return [count, raw] if found[1] in "AX" else np.frombuffer(raw, element)

        def lists(first: int, count: int) -> list[object]:
            start = self.at + place + first * self.width
            raw = read_records(self.path, start, self.width, count, descriptor.itemsize)
            pairs = raw.reshape(-1).view(descriptor.base).reshape(count, 2).tolist()
            file, _ = open_regular(self.path)
            with file:
                return [one(file, *pair) for pair in pairs]

        shape = checked_shape((self.rows,), 8, self.path, self.what)
        self.content.add(coded(self.label, f"list of {found[1]}", shape, self.path, lists))
        scale, zero = (self.header.values.get(f"{word}{self.number}") for word in ("TSCAL", "TZERO"))
        if (scale, zero) != (None, None):
            self.content.say(self.label, "(scale)", [scale, zero], meaning=True)
        return place + descriptor.itemsize

    def add_text(self, form: str) -> None:
        """Adds a column of a table of text. Its elements are texts, as they stand there."""
        found = _TEXT_FORM.fullmatch(form)
        begin = self.header.size(f"TBCOL{self.number}", self.path) - 1
        if found is None or begin < 0:
            raise DamagedFile(f"{self.what} has TFORM = {form!r:.40}", where=self.path)
        length = int(found[1][:18])
        self._check(begin + length)
        row = np.dtype(
            {"names": ["x"], "formats": [f"S{length}"], "offsets": [begin], "itemsize": self.width}
        )
        fields, _ = array_fields(self.label, row, (self.rows,), Stored(self.path, self.at))
        self.content.add(replace(fields[0], name=self.label))
