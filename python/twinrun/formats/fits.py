"""FITS: images, compressed images, and tables.

Headers are read here. Images without compression and the columns of binary tables are extents (big-endian),
or gathered. Integers that FITS stores with a shift of half of their range, because it has no unsigned types
(BZERO = 32768), are unsigned integers. Other numbers are compared as stored; BSCALE, BZERO and their like
are facts that change the meaning of numbers. Compressed images are decoded by astropy (an optional
package), tile by tile, in a process of its own, see `worker_client`.

Fields are named by EXTNAME, the first image `PRIMARY`: `SCI`; a second one `SCI-2`; columns `EVENTS/ENERGY`.

Source: "Definition of the Flexible Image Transport System", version 4.0.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..errors import DamagedFile, Unsupported
from . import fits_images, fits_tables
from .attributes import add_attribute
from .facts import Fact
from .files import MEND, open_regular, read_exact
from .fits_header import BLOCK, Header, parse_header
from .model import FileContent, Format, flag
from .worker_client import PATIENCE, seconds_of

if TYPE_CHECKING:
    from typing import BinaryIO

MAGIC = b"SIMPLE  =       "
_MOST_UNITS = 100_000
# What says how a unit is laid out, and sums of its bytes: fields and their types show the former.
_LAYOUT = re.compile(
    r"SIMPLE|XTENSION|BITPIX|NAXIS\d*|PCOUNT|GCOUNT|GROUPS|TFIELDS|THEAP|EXTNAME|CHECKSUM|DATASUM|BLOCKED"
)
# The layout of a compressed image, and how it was compressed.
_COMPRESSION = re.compile(
    r"ZIMAGE|ZTENSION|ZSIMPLE|ZEXTEND|ZBLOCKED|ZBITPIX|ZNAXIS\d*|ZPCOUNT|ZGCOUNT|ZTILE\d+|ZCMPTYPE|ZNAME\d+|ZVAL\d+"
    r"|ZQUANTIZ|ZDITHER0|ZHECKSUM|ZDATASUM|ZMASKCMP|T[A-Z]+\d+|FZ[A-Z]+"
)
_OF_COLUMN = re.compile(r"(T[A-Z]{2,5})([1-9]\d{0,2})")
_LAYOUT_OF_COLUMN = ("TTYPE", "TBCOL")
_MEANING = frozenset("BSCALE BZERO BLANK BUNIT ZBLANK TSCAL TZERO TNULL TUNIT TDIM".split())


@dataclass
class Unit:
    """A header and its data.

    name: of its field, or of the group of its columns. kind: 'image', 'compressed image', 'table', 'table of
    text', 'groups', or what XTENSION says. data: the offset of its data. size: their bytes.
    """

    number: int
    name: str
    kind: str
    header: Header
    data: int
    size: int


def open_fits(path: str, attributes: object = False, patience: object = PATIENCE) -> FileContent:
    """Opens a FITS file without reading its data.

    attributes: if true, numbers in headers become fields `SCI@EXPTIME`, which may have tolerances; otherwise
    they are facts. patience: seconds without progress after which reading a compressed image fails.

    Raises FormatError if the file or an option is invalid, MissingPackage without astropy if an image is
    compressed.
    """
    with_attributes = flag(attributes, "attributes", path)
    seconds = seconds_of(patience, path)
    content = FileContent(path, "fits")
    file, size = open_regular(path)
    with file:
        units = _units(file, size, path)
    decoder = fits_images.Decoder(path, seconds)
    content.on_close = decoder.close
    scaled: list[str] = []
    order = [unit.name for unit in units]
    content.add_fact(replace(Fact.of("", "(units)", order), order=tuple(order)))
    try:
        for unit in units:
            kind = unit.kind.removeprefix("compressed ")
            content.say(unit.name, "(kind)", kind if unit.size else f"{kind} without data")
            columns: dict[int, str] = {}
            if unit.kind == "image":
                fits_images.add_image(content, unit.name, unit.header, unit.data, scaled)
            elif unit.kind == "compressed image":
                fits_images.add_compressed(content, unit.name, unit.header, unit.number, scaled, decoder)
            elif unit.kind in ("table", "table of text"):
                columns = fits_tables.add_table(
                    content, unit.name, unit.header, unit.data, unit.size, unit.kind, scaled
                )
            elif unit.size:
                why = f"{unit.kind}: not supported; write its data as an image or a table"
                content.skipped.append((unit.name, why))
            _add_cards(content, unit, columns, with_attributes)
    except BaseException:
        content.close()
        raise
    if scaled:
        content.notes.append(f"values are compared as stored: {', '.join(scaled)}")
    return content


def _units(file: BinaryIO, size: int, path: str) -> list[Unit]:
    """The units of a file. Raises DamagedFile if the last one does not end where the file ends."""
    units: list[Unit] = []
    names: set[str] = set()
    at = 0
    while at < size or not units:
        if len(units) >= _MOST_UNITS:
            raise DamagedFile(f"more than {_MOST_UNITS} headers", where=path)
        head = read_exact(file, at, min(9, size - at), path, "header")
        if not head.startswith(b"XTENSION=" if units else b"SIMPLE  ="):
            if units and not any(head) and _is_zero(file, at, size, path):
                break  # some programs fill up the file
            place = f"byte {at}, after {len(units)} headers" if units else "its first byte"
            raise DamagedFile(
                f"no header of FITS at {place}",
                where=path,
                fix=f"the file is cut short, or something was added: {MEND}",
            )
        header = parse_header(file, at, size, path)
        if not units and header.values.get("SIMPLE") is not True:
            raise Unsupported("its header says that it is not of the standard (SIMPLE is not T)", where=path)
        unit = _unit(header, len(units), names, path)
        whole = unit.size + -unit.size % BLOCK
        if whole > size - unit.data:
            message = f"the data of {unit.name!r:.60} need {whole} bytes, and {size - unit.data} are left"
            raise DamagedFile(
                message, where=path, fix=f"the file is cut short or its header is wrong: {MEND}"
            )
        units.append(unit)
        at = unit.data + whole
    return units


def _is_zero(file: BinaryIO, at: int, size: int, path: str) -> bool:
    while at < size:
        count = min(1 << 20, size - at)
        if any(read_exact(file, at, count, path, "bytes at its end")):
            return False
        at += count
    return True


def _unit(header: Header, number: int, names: set[str], path: str) -> Unit:
    """The unit of a header."""
    axes = header.size("NAXIS", path)
    if axes > 999:
        raise DamagedFile(f"its header has NAXIS = {axes}, more than 999", where=path)
    shape = [header.size(f"NAXIS{n + 1}", path) for n in range(axes)]
    bits = header.number("BITPIX", path)
    if bits not in fits_images.TYPES:
        raise DamagedFile(
            f"its header has BITPIX = {bits}, none of {', '.join(map(str, fits_images.TYPES))}", where=path
        )
    extra, groups = header.size("PCOUNT", path, 0), header.size("GCOUNT", path, 1)
    is_groups = number == 0 and header.values.get("GROUPS") is True and shape[:1] == [0]
    count = math.prod(shape[1:] if is_groups else shape) if axes else 0
    if count or extra:
        count = groups * (extra + count)
    size = abs(bits) // 8 * count
    kind = header.text("XTENSION")
    if number == 0 or kind in ("IMAGE", "IUEIMAGE"):
        kind = "groups" if is_groups else "image"
    elif kind in ("BINTABLE", "A3DTABLE"):
        kind = "compressed image" if header.values.get("ZIMAGE") is True else "table"
    elif kind == "TABLE":
        kind = "table of text"
    return Unit(number, _name(header, number, names), kind, header, header.end, size)


def _name(header: Header, number: int, names: set[str]) -> str:
    """The name of a unit, which no other has."""
    name = header.text("EXTNAME").replace("@", "_") or ("PRIMARY" if number == 0 else f"unit-{number}")
    version = header.values.get("EXTVER")
    if type(version) is int and version != 1:
        name += f"-{version}"
    while name in names:
        name += f"-unit{number}"
    names.add(name)
    return name


def _add_cards(content: FileContent, unit: Unit, columns: dict[int, str], with_attributes: bool) -> None:
    """Adds the cards of a header as facts. columns: names of the fields of columns, by number."""
    header = unit.header
    comments: dict[str, dict[str, str]] = {}
    for keyword, value in header.values.items():
        if _LAYOUT.fullmatch(keyword) or (
            unit.kind == "compressed image" and _COMPRESSION.fullmatch(keyword)
        ):
            continue
        found = _OF_COLUMN.fullmatch(keyword)
        owner, name = unit.name, keyword
        if found is not None and int(found[2]) in columns:
            if found[1] in _LAYOUT_OF_COLUMN:
                continue
            owner, name = columns[int(found[2])], found[1]
            if name == "TFORM" and _says_its_form(content, owner):
                continue
        if keyword in header.comments:
            comments.setdefault(owner, {})[name] = header.comments[keyword]
        values = [value, *header.more.get(keyword, [])]
        what: object = values if len(values) > 1 else value
        if what is None:
            what = "(undefined)"
        if name in _MEANING:
            content.say(owner, name, what, meaning=True)
        else:
            add_attribute(content, owner, name, what, with_attributes and not isinstance(value, (str, list)))
    for owner, texts in comments.items():
        content.say(owner, "(comments)", texts)
    for keyword, lines in header.commentary.items():
        if any(lines):
            content.say(unit.name, keyword or "(cards without keyword)", lines)


def _says_its_form(content: FileContent, column: str) -> bool:
    """Whether the type, kind and shape of a column's field say all that TFORM says."""
    kind = content.fields[column].kind if column in content.fields else ""
    return kind is None or kind.startswith("list of")


FORMAT = Format(
    "fits",
    "FITS",
    open_fits,
    suffixes=(".fits", ".fit", ".fts"),
    magic=(MAGIC,),
    options=frozenset({"attributes", "patience"}),
    aside=frozenset({"patience"}),
)
