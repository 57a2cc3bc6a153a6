"""Dumps of LAMMPS, binary and text: a table of atoms for every step. The atoms are in the order of the
writing ranks.

Binary: a header for each step, then for each writing rank an i32 n and n f64, which are an array of structs.
A column is a field with one strided extent for each rank. Since 2021 the header begins with an i64 -length
and a name ("DUMPATOM", "DUMPCUSTOM"), byte order and revision, and contains the names of the columns. For
older files the option `columns="id type x y z"` gives them.

Text: items such as `ITEM: TIMESTEP`. Columns are parsed in blocks of lines.

Columns that are integers in LAMMPS (id, type, mol, proc, image flags, custom i_ and i2_) are i64 fields in
both forms, although binary dumps hold them as f64. The column id is the key of the others.

Source: the LAMMPS documentation of the command `dump`, and dump_custom.cpp.
"""

from __future__ import annotations

import math
import os
import re
import struct
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from ..errors import DamagedFile, FormatError, Unsupported
from .facts import Fact
from .files import open_regular, read_exact
from .frames import Frame, add_frames
from .model import Extent, Field, FileContent, Format, coded, decoded, header_field
from .texts import is_beyond, real_number

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

_NAMES = (b"DUMPATOM", b"DUMPCUSTOM")
_MOST_COLUMNS = 10_000
_MOST_FRAMES = 10_000_000
# of `dump atom`; the last three with "image yes"
_ATOM = ["id", "type", "xs", "ys", "zs", "ix", "iy", "iz"]
# The columns that DumpCustom prints as integers. All others are real numbers or words.
_WHOLE = re.compile(r"(id|type|mol|proc|procp1|ix|iy|iz|i2?_[^#]*)(#\d+)?")
_WORDS = frozenset("element typelabel".split())
_Box = tuple[float, ...]


def open_lammps(path: str, columns: object = None) -> FileContent:
    """Opens a dump.

    columns: the names of the columns, for binary dumps without names; an error for text dumps.
    """
    file, size = open_regular(path)
    content = FileContent(path, "lammps")
    with file:
        if read_exact(file, 0, min(size, 6), path, "header") == b"ITEM: ":
            if columns is not None:
                raise FormatError(
                    "a text dump names its columns itself", where=path, fix="leave the option columns out"
                )
            frames = _text_frames(file, size, path, content)
        else:
            names = columns.split() if isinstance(columns, str) else columns
            frames = _binary_frames(file, size, path, None if names is None else list(names))  # type: ignore[call-overload]
    add_frames(content, frames)
    return content


def _with_key(fields: list[Field]) -> list[Field]:
    has_ids = any(f.name == "id" for f in fields)
    for new in fields:
        new.group = "atoms"
        new.key = "id" if has_ids else None
    return fields


def _period(box: _Box, boundary: tuple[int, ...], columns: list[str]) -> tuple[float, ...] | None:
    """Lengths of the periodic box, in the units of the columns of positions; 0 along an axis that is not
    periodic.

    None if no column holds wrapped positions. box: of an orthogonal box, low and high for each axis.
    boundary: for each axis two numbers, 0 for periodic.
    """
    if not {"x", "y", "z"} & set(columns):
        if not {"xs", "ys", "zs"} & set(columns):
            return None  # no positions, or unwrapped ones
        box = (0.0, 1.0) * 3
    lengths = tuple(
        high - low if both == (0, 0) else 0.0
        for low, high, both in zip(
            box[::2], box[1::2], zip(boundary[::2], boundary[1::2], strict=True), strict=True
        )
    )
    return lengths if all(math.isfinite(x) and x >= 0 for x in lengths) else None


# ---- binary ----


class _Cursor:
    """Reads numbers of a file in sequence.

    Raises DamagedFile at the end of the file. mark: '<' or '>', the byte order.
    """

    def __init__(self, file: BinaryIO, size: int, path: str, at: int, mark: str) -> None:
        self._file, self.size, self._path, self.at, self.mark = file, size, path, at, mark
        self._buffer, self._base = b"", 0

    def bytes(self, count: int) -> bytes:
        if count < 0 or count > self.size - self.at:
            raise DamagedFile(f"the file ends inside the header at byte {self.at}", where=self._path)
        if not (self._base <= self.at and self.at + count <= self._base + len(self._buffer)):
            length = min(max(count, 512), self.size - self.at)
            self._buffer, self._base = read_exact(self._file, self.at, length, self._path, "header"), self.at
        found = self._buffer[self.at - self._base :][:count]
        self.at += count
        return found

    def numbers(self, code: str) -> tuple:
        return struct.unpack(self.mark + code, self.bytes(struct.calcsize(self.mark + code)))


@dataclass
class _Header:
    step: int
    atoms: int
    box: _Box
    box_at: int  # offset of the box in the file
    boundary: tuple[int, ...]
    triclinic: int
    width: int
    columns: list[str] | None
    time: float | None
    chunks: int
    units: bytes


def _binary_frames(file: BinaryIO, size: int, path: str, columns: list[str] | None) -> list[Frame]:
    """The frames of a binary dump. columns: names for files that do not contain them."""
    if size == 0:
        raise DamagedFile("is empty", where=path)
    mark = _byte_order(file, size, path)
    at = 0
    frames: list[Frame] = []
    while at < size:
        if len(frames) >= _MOST_FRAMES:
            raise Unsupported(f"more than {_MOST_FRAMES} steps in one file", where=path)
        cursor = _Cursor(file, size, path, at, mark)
        header = _header(cursor, path)
        what = f"step {header.step}"
        chunks: list[tuple[int, int]] = []
        total = 0
        if header.chunks > (size - cursor.at) // 4:
            raise DamagedFile(f"{what}: {header.chunks} ranks, more than fit into the file", where=path)
        for _ in range(header.chunks):
            (count,) = cursor.numbers("i")
            if count < 0 or count % header.width or 8 * count > size - cursor.at:
                raise DamagedFile(
                    f"{what}: a rank has {count} numbers, which do not fill {header.width} columns",
                    where=path,
                )
            if count:
                chunks.append((cursor.at, count // header.width))
            total += count // header.width
            cursor.at += 8 * count
        if total != header.atoms:
            raise DamagedFile(f"{what} has {header.atoms} atoms, but its ranks wrote {total}", where=path)
        frames.append(_binary_frame(path, header, chunks, mark, columns))
        at = cursor.at
    return frames


def _byte_order(file: BinaryIO, size: int, path: str) -> str:
    """'<' or '>': the byte order with which the first header is valid."""
    problems = []
    for mark in "<>":
        cursor = _Cursor(file, size, path, 0, mark)
        try:
            _header(cursor, path)
            return mark
        except FormatError as error:
            problems.append(error)
    raise min(problems, key=lambda e: isinstance(e, DamagedFile))


def _header(cursor: _Cursor, path: str) -> _Header:
    """Reads the header of a step of a binary dump. Raises FormatError if it is invalid."""
    (step,) = cursor.numbers("q")
    revision = 0
    if step < 0:
        if step not in (-8, -10):
            raise DamagedFile("does not begin like a LAMMPS dump", where=path)
        name = cursor.bytes(-step)
        if name not in _NAMES:
            if name.startswith(b"DUMP"):
                raise Unsupported(
                    f"dumps of kind {name.decode('ascii', 'replace')} are not supported", where=path
                )
            raise DamagedFile("does not begin like a LAMMPS dump", where=path)
        endian, revision = cursor.numbers("ii")
        if endian != 1:
            raise DamagedFile("the byte order in its header contradicts the name before it", where=path)
        if revision not in (1, 2):
            raise Unsupported(f"revision {revision} of binary dumps is not known", where=path)
        (step,) = cursor.numbers("q")
    else:
        name = b""
    atoms, triclinic = cursor.numbers("qi")
    boundary = cursor.numbers("6i")
    if step < 0 or atoms < 0 or triclinic not in (0, 1, 2) or not set(boundary) <= {0, 1, 2, 3}:
        raise DamagedFile(f"the header of a LAMMPS dump before byte {cursor.at} is invalid", where=path)
    box_at = cursor.at
    box = cursor.numbers("12d" if triclinic == 2 else "9d" if triclinic else "6d")
    (width,) = cursor.numbers("i")
    if not 0 < width <= _MOST_COLUMNS or atoms > cursor.size // (8 * width):
        raise DamagedFile(
            f"step {step}: {atoms} atoms in {width} columns do not fit into the file", where=path
        )
    names, time, units = None, None, b""
    if revision > 1:
        units = cursor.bytes(_length(cursor, path))
        if cursor.bytes(1) != b"\0":
            (time,) = cursor.numbers("d")
        names = cursor.bytes(_length(cursor, path)).decode("utf-8", "backslashreplace").split()
        if len(names) != width:
            raise DamagedFile(f"step {step}: {len(names)} names for {width} columns", where=path)
    elif name == b"DUMPATOM" and width in (5, 8):
        names = _ATOM[:width]
    (chunks,) = cursor.numbers("i")
    if chunks < 0:
        raise DamagedFile(f"step {step}: its header has {chunks} ranks, fewer than 0", where=path)
    return _Header(step, atoms, box, box_at, boundary, triclinic, width, names, time, chunks, units)


def _length(cursor: _Cursor, path: str) -> int:
    (length,) = cursor.numbers("i")
    if not 0 <= length <= 1 << 20:
        raise DamagedFile(f"a text of {length} bytes in its header, not 0 to {1 << 20}", where=path)
    return length


def _binary_frame(
    path: str, header: _Header, chunks: list[tuple[int, int]], mark: str, columns: list[str] | None
) -> Frame:
    """The frame of a step of a binary dump. chunks: (offset, number of atoms) for each rank."""
    names = header.columns or columns or [f"column-{i + 1}" for i in range(header.width)]
    if len(names) != header.width:
        raise FormatError(
            f"{len(names)} names for {header.width} columns", where=path, fix="correct columns="
        )
    order = "little" if mark == "<" else "big"
    record = 8 * header.width
    fields = []
    for at, name in enumerate(_distinct(names)):
        extents = tuple(Extent(path, offset + 8 * at, count, record) for offset, count in chunks)
        new = Field(name, "f64", order, (header.atoms,), extents=extents)
        fields.append(_integers(new, path) if _WHOLE.fullmatch(name) else new)
    period = None if header.triclinic else _period(header.box, header.boundary, names)
    numbers = len(header.box)
    box = Field("box", "f64", order, (numbers,), extents=(Extent(path, header.box_at, numbers, 8),))
    # In the words of a text dump: "pp ff ps".
    kinds = ["pfsm"[kind] for kind in header.boundary]
    words = [low + high for low, high in zip(kinds[::2], kinds[1::2], strict=True)]
    facts = [Fact.of("box", "(boundary)", words)]
    if header.units:
        facts.append(Fact.of("", "(units)", header.units.strip(b"\0").decode("utf-8", "replace")))
    return Frame(header.step, [box, *_with_key(fields)], header.time, period, facts=facts)


def _distinct(names: list[str]) -> list[str]:
    """Unique names of columns. LAMMPS can dump a column twice; the second x becomes x#2."""
    seen: dict[str, int] = {}
    result = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return result


def _integers(stored: Field, path: str) -> Field:
    """A field of i64 for a column of integers that is stored as f64."""

    def read(first: int, count: int) -> np.ndarray:
        return _whole(stored.elements(first, count), path, stored.name)

    reader = decoded(stored.name, "i64", stored.size, path, read)
    return Field(stored.name, "i64", stored.byte_order, stored.shape, read=reader)


def _whole(values: np.ndarray, path: str, name: str) -> np.ndarray:
    """`values` as i64. Raises DamagedFile if one is not an integer of at most 53 bits."""
    with np.errstate(invalid="ignore"):
        exact = (np.abs(values) <= 2.0**53) & (values == np.rint(values))
    if not exact.all():
        raise DamagedFile(f"column {name!r}: {values[~exact][0]} is not an integer", where=path)
    return values.astype(np.int64)


# ---- text ----

_BLOCK_LINES = 1 << 14
_BLOCKS_KEPT = 8
_LONGEST_LINE = 1 << 20


@dataclass
class _Table:
    """The atoms of one step in a text dump.

    starts: the offset of each block of _BLOCK_LINES lines. end: the offset after the last line. texts: the
    columns that are text, by their name or by the first atom.
    """

    path: str
    columns: list[str]
    atoms: int
    starts: list[int]
    end: int
    texts: frozenset[int]


class _Lines:
    """Reads the lines of a file. at: the offset of the next line."""

    def __init__(self, file: BinaryIO, size: int, path: str) -> None:
        self._file, self._size, self._path = file, size, path
        self.at = 0
        self._piece, self._base = b"", 0

    def _more(self) -> bytes:
        """The rest of the current piece, or the next piece; empty at the end of the file."""
        left = self._piece[self.at - self._base :] if self.at - self._base < len(self._piece) else b""
        if not left and self.at < self._size:
            left = read_exact(self._file, self.at, min(1 << 22, self._size - self.at), self._path, "text")
            self._piece, self._base = left, self.at
        return left

    def next(self) -> str | None:
        parts = []
        length = 0
        while piece := self._more():
            end = piece.find(b"\n", 0, _LONGEST_LINE)
            parts.append(piece[: end + 1] if end >= 0 else piece)
            self.at += len(parts[-1])
            length += len(parts[-1])
            if end >= 0:
                break
            if length > _LONGEST_LINE:
                raise DamagedFile(
                    f"a line of more than {_LONGEST_LINE} bytes at {self.at - length}", where=self._path
                )
        return b"".join(parts).decode("utf-8", "backslashreplace").strip() if parts else None

    def peek(self) -> str | None:
        """The next line, without moving to the one after it."""
        at = self.at
        line = self.next()
        self.at = at
        if self._base > at:  # the line began in the previous piece
            self._piece, self._base = b"", at
        return line

    def skip(self, lines: int, what: str) -> None:
        """Skips lines.

        Raises DamagedFile at a line without line break, whose last number may be cut short.
        """
        while lines:
            start = self.at - self._base
            if not (0 <= start < len(self._piece)):
                if not self._more():
                    raise DamagedFile(f"{what}: the file ends {lines} atoms too early", where=self._path)
                continue
            view = np.frombuffer(self._piece, np.uint8, offset=start)
            breaks = np.flatnonzero(view == 10)
            if breaks.size >= lines:
                self.at += int(breaks[lines - 1]) + 1
                return
            lines -= breaks.size
            self.at += view.size


def _text_frames(file: BinaryIO, size: int, path: str, content: FileContent) -> list[Frame]:
    """The frames of a text dump. Reads all lines once to find the blocks, without parsing the atoms."""
    lines = _Lines(file, size, path)
    frames: list[Frame] = []
    cache = _Blocks()
    step = atoms = time = None
    box: _Box = ()
    tilts: _Box = ()
    boundary: tuple[int, ...] = ()
    upright = True
    facts: list[Fact] = []
    while (line := lines.next()) is not None:
        if not line:
            continue
        item = line.removeprefix("ITEM:").strip()
        if item == line:
            raise DamagedFile(
                f"the line before byte {lines.at} belongs to no item: {line[:40]!r}", where=path
            )
        if item == "TIMESTEP":
            step = _number(lines.next(), "TIMESTEP", path)
        elif item == "UNITS":
            facts.append(Fact.of("", "(units)", lines.next()))
        elif item == "TIME":
            time = _real(lines.next(), "TIME", path)
        elif item == "NUMBER OF ATOMS":
            atoms = _number(lines.next(), item, path)
            if atoms > size:
                raise DamagedFile(
                    f"its header has {atoms} atoms, more than its {size} bytes can hold", where=path
                )
        elif item.startswith("BOX BOUNDS"):
            words = item.split()[2:]
            facts.append(Fact.of("box", "(boundary)", words))
            upright = words[:1] != ["xy"] and words[:1] != ["abc"]
            kinds = "".join(w for w in words if re.fullmatch(r"[pfsm]{2}", w))
            boundary = tuple(0 if k == "p" else 1 for k in kinds)
            rows = [[_real(w, item, path) for w in (lines.next() or "").split()[:4]] for _ in range(3)]
            box = tuple(x for row in rows for x in row[:2])
            tilts = tuple(x for row in rows for x in row[2:])
        elif item.startswith("ATOMS"):
            if step is None or atoms is None:
                raise DamagedFile("atoms before their TIMESTEP and NUMBER OF ATOMS", where=path)
            if len(frames) >= _MOST_FRAMES:
                raise Unsupported(f"more than {_MOST_FRAMES} steps in one file", where=path)
            table = _table(lines, item.split()[1:], atoms, path, f"step {step}")
            period = (
                _period(box, boundary, table.columns) if upright and len(box) == len(boundary) == 6 else None
            )
            frames.append(_text_frame(table, step, time, period, cache))
            frames[-1].facts, facts = facts, []
            if box:
                frames[-1].fields.insert(0, header_field("box", (*box, *tilts), path))
            step = atoms = time = None
            box, tilts, boundary = (), (), ()
        else:
            raise Unsupported(f"a dump with an item {item[:40]!r} is not supported", where=path)
    if not frames:
        raise DamagedFile("a dump without atoms", where=path)
    if step is not None:
        raise DamagedFile(f"step {step} is cut short", where=path)
    return frames


def _number(line: str | None, item: str, path: str) -> int:
    if line is None or not re.fullmatch(r"\d{1,18}", line):
        raise DamagedFile(f"{item}: {(line or '')[:40]!r} is not a number", where=path)
    return int(line)


def _real(line: str | None, item: str, path: str) -> float:
    try:
        return real_number(line or "")
    except ValueError:
        raise DamagedFile(f"{item}: {(line or '')[:40]!r} is not a number", where=path) from None


def _table(lines: _Lines, columns: list[str], atoms: int, path: str, what: str) -> _Table:
    """Skips the lines of the atoms of a step, and returns where they are."""
    if not columns or len(columns) > _MOST_COLUMNS:
        raise DamagedFile(f"{what}: {len(columns)} columns, not 1 to {_MOST_COLUMNS}", where=path)
    names = _distinct(columns)
    texts = {at for at, name in enumerate(names) if name.partition("#")[0] in _WORDS}
    first = (lines.peek() or "").split() if atoms else []
    texts |= {at for at, (_, word) in enumerate(zip(names, first, strict=False)) if not _is_number(word)}
    starts = []
    left = atoms
    while left:
        starts.append(lines.at)
        here = min(left, _BLOCK_LINES)
        lines.skip(here, what)
        left -= here
    return _Table(path, names, atoms, starts, lines.at, frozenset(texts))


def _is_number(word: str) -> bool:
    try:
        real_number(word)
    except ValueError:
        return False
    return True


class _Blocks:
    """A cache of the last few parsed blocks of lines, because the columns of a block are read in sequence.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, list[bytes] | np.ndarray] = OrderedDict()

    def column(self, table: _Table, block: int, at: int) -> list[bytes] | np.ndarray:
        """Column `at` of a block: numbers if the whole block is numeric and f64 is exact for its integers,
        otherwise words."""
        start = table.starts[block]
        with self._lock:
            found = self._kept.get(start)
            if found is not None:
                self._kept.move_to_end(start)
        if found is None:
            found = self._parse(table, block)
            with self._lock:
                self._kept[start] = found
                while len(self._kept) > _BLOCKS_KEPT:
                    self._kept.popitem(last=False)
        return found[at :: len(table.columns)]

    def _parse(self, table: _Table, block: int) -> list[bytes] | np.ndarray:
        start = table.starts[block]
        end = table.starts[block + 1] if block + 1 < len(table.starts) else table.end
        file, size = open_regular(table.path)
        with file:
            if end > size:
                raise DamagedFile("the file has become shorter since it was opened", where=table.path)
            text = read_exact(file, start, end - start, table.path, "atoms")
        rows = min(_BLOCK_LINES, table.atoms - block * _BLOCK_LINES)
        expected = rows * len(table.columns)
        if not table.texts:
            try:
                # Several times faster than words.
                numbers = np.fromstring(text, np.float64, sep=" ")
            except ValueError:
                numbers = np.empty(0)
            whole = [at for at, name in enumerate(table.columns) if _WHOLE.fullmatch(name)]
            # fromstring() stops at a word that is not a number. Then the words are needed for the
            # message.
            exact = all(_exact(numbers[at :: len(table.columns)]) for at in whole)
            # An infinity may be a number that is too large: its word tells.
            if numbers.size == expected and exact and not np.isinf(numbers).any():
                return numbers
        words = text.split()
        if len(words) != expected:
            message = f"{len(words)} words in {rows} lines of {len(table.columns)} columns"
            raise DamagedFile(f"lines from byte {start}: {message}", where=table.path)
        return words


def _exact(values: np.ndarray) -> bool:
    with np.errstate(invalid="ignore"):
        return bool(((np.abs(values) < 2.0**53) & (values == np.rint(values))).all())


def _converted(words: Sequence[bytes], dtype: str, path: str, name: str, row: int) -> list[int] | list[float]:
    """Words of a column as numbers.

    Raises DamagedFile if one is not a number. row: the atom of the first word.
    """
    numbers = []
    for at, word in enumerate(words):
        try:
            if b"_" in word:
                raise ValueError
            number = int(word) if dtype == "i64" else float(word)
            if dtype == "i64" and not -(1 << 63) <= number < 1 << 63:
                raise ValueError
            if is_beyond(word, number):
                raise ValueError
        except ValueError:
            kind = "an integer of 64 bits" if dtype == "i64" else "a number of 64 bits"
            text = word[:40].decode("utf-8", "backslashreplace")
            raise DamagedFile(
                f"column {name!r}: {text!r} of atom {row + at + 1} is not {kind}, although the column is numeric for the first atom",
                where=path,
                fix="leave it out with --leave-out",
            ) from None
        numbers.append(number)
    return numbers


def _text_frame(
    table: _Table, step: int, time: float | None, period: tuple[float, ...] | None, cache: _Blocks
) -> Frame:
    """The frame of a step of a text dump, with a field for each column."""
    frame = Frame(step, [], time, period)
    for at, name in enumerate(table.columns):
        if at in table.texts:

            def words(first: int, count: int, at: int = at) -> list[object]:
                out: list[object] = []
                while len(out) < count:
                    block, within = divmod(first + len(out), _BLOCK_LINES)
                    out += list(cache.column(table, block, at)[within : within + count - len(out)])
                return out

            frame.fields.append(coded(name, "text", (table.atoms,), table.path, words))
            continue
        dtype = "i64" if _WHOLE.fullmatch(name) else "f64"

        def read(first: int, count: int, at: int = at, name: str = name, dtype: str = dtype) -> np.ndarray:
            out = np.empty(count, np.int64 if dtype == "i64" else np.float64)
            done = 0
            while done < count:
                block, within = divmod(first + done, _BLOCK_LINES)
                part = cache.column(table, block, at)[within : within + count - done]
                row = block * _BLOCK_LINES + within
                out[done : done + len(part)] = (
                    part if isinstance(part, np.ndarray) else _converted(part, dtype, table.path, name, row)
                )
                done += len(part)
            return out

        reader = decoded(name, dtype, table.atoms, table.path, read)
        frame.fields.append(Field(name, dtype, "little", (table.atoms,), read=reader))
    _with_key(frame.fields)
    return frame


def _sniff(path: str, file: BinaryIO) -> bool:
    """Whether a file is an old binary dump, which has no magic bytes: its first header must be valid and fit
    the file."""
    start = file.read(24)
    if len(start) < 24:
        return False
    size = file.seek(0, os.SEEK_END)
    try:
        cursor = _Cursor(file, size, path, 0, _byte_order(file, size, path))
        header = _header(cursor, path)
        if header.chunks == 0 or header.atoms == 0:
            return False
        (count,) = cursor.numbers("i")
    except FormatError:
        return False
    return 0 <= count <= header.atoms * header.width and count % header.width == 0


FORMAT = Format(
    "lammps",
    "LAMMPS dump",
    open_lammps,
    suffixes=(".lammpstrj", ".lammpsbin", ".lammpsdump"),
    magic=(
        b"ITEM: TIMESTEP",
        b"ITEM: UNITS",
        b"ITEM: TIME\n",
        *(struct.pack(mark + "q", -len(name)) + name[:8] for name in _NAMES for mark in "<>"),
    ),
    sniff=_sniff,
    options=frozenset({"columns"}),
    order=80,
    many_steps=True,
)
