"""Raw binary files: what lies in them comes from a suffix, from options, or from a sidecar `<file>.json`.

    x.f32                                                     a suffix that names the type is enough; 1-D
    dtype=f32 shape=100x3 offset=16 order=big                 one array, after 16 bytes of header
    fields=x:f32,y:f32,id:i64 record=24                       array of structs; packed, or with places:
    y:f32@8 {"arrays": [{"name": "x", "dtype": "f32", "shape": [9]}, …]}     one array after another (sidecar
    only)

The same keys are used in a sidecar. Options, where any is given, replace the sidecar altogether.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from typing import Any, BinaryIO

from ..errors import DamagedFile, FormatError
from .facts import Fact, shown
from .files import file_size, open_regular, read_exact, reading
from .model import ITEMSIZE, Extent, Field, FileContent, Format, checked_shape, flag, parse_dtype
from .naming import field_name
from .texts import printable

SUFFIXES = (".bin", ".raw", ".dat")
# .i8 is one byte, as everywhere in this project; .float64 and the like are common too.
TYPED = {"." + name: name for name in ITEMSIZE} | {
    f".{long}{bits}": f"{short}{bits}"
    for long, short, widths in (
        ("float", "f", (16, 32, 64)),
        ("int", "i", (8, 16, 32, 64)),
        ("uint", "u", (8, 16, 32, 64)),
    )
    for bits in widths
}
_KEYS = frozenset(
    {
        "dtype",
        "shape",
        "offset",
        "order",
        "name",
        "fields",
        "record",
        "arrays",
        "partial",
        "printable",
        "comment",
    }
)
_LONGEST_SIDECAR = 1 << 20
_MOST_FIELDS = 10_000
_SAMPLE = 1 << 16
_PIECE = 1 << 20
_SHOWN = 32
_SHORT = 64  # bytes: so few may be printable by chance, unless there are lines


def sidecar(path: str) -> str:
    """Path of the file that describes `path`."""
    return path + ".json"


def open_raw(path: str, **options: object) -> FileContent:
    """Opens a raw file.

    dtype: element type. shape: '100x3' or a list; without it 1-D, from the size of the file. offset: bytes
    before the first element, compared as a fact of the file. order: 'little' (default) or 'big'. name: of the field; without it the file's.
    fields: members of a record, [(name, dtype)], [(name, dtype, offset)], [{name, dtype, offset}] or text.
    record: bytes from one record to the next. partial: the description covers only part of the file;
    otherwise bytes behind it are an error, and others a fact. printable: read bytes as numbers of several bytes although all of them
    could be text; else that is an error.
    """
    size = file_size(path)
    where = path
    if options:
        given: dict[str, Any] = dict(options)
    elif os.path.lexists(sidecar(path)):
        where = sidecar(path)
        given = _load_sidecar(where)
    else:
        given = {}
    unknown = sorted(set(given) - _KEYS)
    if unknown:
        raise FormatError(
            f"unknown key {unknown[0]!r}", where=where, fix="known are " + " ".join(sorted(_KEYS))
        )
    kinds = [key for key in ("dtype", "fields", "arrays") if key in given]
    if not kinds:
        typed = TYPED.get(os.path.splitext(path)[1].lower())
        if typed is None:
            _refuse_text(path, 0, size)  # a type would make numbers of it
            fix = f"give dtype=f32 (and shape=, offset=, order=) or write {os.path.basename(sidecar(path))}"
            raise FormatError("a raw file whose element type is not known", where=path, fix=fix)
        given["dtype"] = typed
    elif len(kinds) > 1:
        raise FormatError(f"{kinds[0]} and {kinds[1]} exclude each other", where=where)
    order = given.get("order", "little")
    if order not in ("little", "big"):
        raise FormatError(f"order must be little or big, not {order!r:.40}", where=where)
    partial = given.get("partial", False)
    if options:
        partial = flag(partial, "partial", where)
    elif not isinstance(partial, bool):
        raise FormatError(f"partial must be true or false, not {partial!r:.40}", where=where)

    content = FileContent(path, "raw")
    offset = _integer(given.get("offset", 0), "offset", where)
    if not flag(given.get("printable", False), "printable", where):
        _refuse_text(path, offset, size)
    if offset > size:
        raise DamagedFile(f"offset {offset} lies behind the end of the file ({size} bytes)", where=path)
    if "arrays" in given:
        end = _arrays(content, given["arrays"], offset, order, size, where)
    elif "fields" in given:
        end = _records(content, given, offset, order, size, where)
    else:
        name = str(given.get("name") or field_name(path))
        end = _array(content, name, given["dtype"], given.get("shape"), offset, order, size, where)
        content.one_array = not given.get("name")
    if end < size and not partial:
        message = f"{size - end} bytes after the described {end} belong to nothing"
        raise DamagedFile(message, where=path, fix="correct the shape, or say partial=true")
    described = [(offset, end)]
    if "arrays" in given:
        described = [
            (e.offset, e.offset + e.stride * e.count)
            for f in content.fields.values()
            for e in f.extents or ()
        ]
    _others(content, sorted(described), size, partial)
    return content


def _others(content: FileContent, described: list[tuple[int, int]], size: int, partial: bool) -> None:
    """Bytes in front of what is described, and in between: a fact, or not compared where the description is of a part only."""
    others, at = [], 0
    for begin, end in [*described, (size, size)]:
        if begin > at:
            others.append((at, begin))
        at = max(at, end)
    if not others:
        return
    if partial:
        count = sum(end - begin for begin, end in others)
        content.notes.append(f"{count} bytes that its description leaves out (partial) are not compared")
        return
    digest, first = hashlib.blake2b(digest_size=16), b""
    file, _ = open_regular(content.path)
    with file:
        for begin, end in others:
            digest.update(f"{begin} {end} ".encode())
            for part in range(begin, end, _PIECE):
                piece = read_exact(file, part, min(_PIECE, end - part), content.path, "other bytes")
                digest.update(piece)
                first = first or piece[:_SHOWN]
    content.add_fact(Fact("", "(other bytes)", digest.digest(), shown(first)))


def _refuse_text(path: str, offset: int, size: int) -> None:
    """Text read as numbers gives numbers all the same, only not those that it tells."""
    count = min(_SAMPLE, max(size - offset, 0))
    file, _ = open_regular(path)
    with file:
        sample = read_exact(file, offset, count, path, "first bytes")
    if printable(sample) and (count >= _SHORT or b"\n" in sample):
        fix = "read it as a table: format=table" if offset == 0 else "is the offset right?"
        raise FormatError("holds text, not numbers as they lie in memory", where=path, fix=fix)


def _array(
    content: FileContent,
    name: str,
    dtype: object,
    shape: object,
    offset: int,
    order: str,
    size: int,
    where: str,
) -> int:
    """Adds a dense array; the byte after it."""
    code, order = _type(dtype, order, where)
    item = ITEMSIZE[code]
    if shape is None:
        if (size - offset) % item:
            message = f"{size - offset} bytes are not a multiple of {item}, the size of {code}"
            raise DamagedFile(message, where=content.path, fix="is the type right, is the file complete?")
        sizes: tuple[int, ...] = ((size - offset) // item,)
    else:
        sizes = checked_shape(_shape(shape, where), item, where, f"field {name!r}")
    count = math.prod(sizes)
    _fits(content.path, f"field {name!r}: {sizes} of {code}", offset, count * item, size)
    content.add(
        Field(name, code, order, sizes, extents=(Extent(content.path, offset, count, item),) if count else ())
    )
    return offset + count * item


def _records(
    content: FileContent, given: dict[str, Any], offset: int, order: str, size: int, where: str
) -> int:
    """Adds the members of an array of structs; the byte after it."""
    members = []
    at = 0
    for name, dtype, place in _members(given["fields"], where):
        code, member_order = _type(dtype, order, where)
        at = place if place is not None else at
        members.append((name, code, member_order, at))
        at += ITEMSIZE[code]
    least = max(place + ITEMSIZE[code] for _, code, _, place in members)
    record = least if given.get("record") is None else _integer(given["record"], "record", where)
    if record < least:
        raise FormatError(f"a record of {record} bytes cannot hold its members ({least} bytes)", where=where)
    if given.get("shape") is None:
        if (size - offset) % record:
            message = f"{size - offset} bytes are not a multiple of {record}, the size of a record"
            raise DamagedFile(message, where=content.path, fix="is the record right, is the file complete?")
        sizes: tuple[int, ...] = ((size - offset) // record,)
    else:
        sizes = checked_shape(_shape(given["shape"], where), record, where, "the records")
    count = math.prod(sizes)
    _fits(content.path, f"{count} records of {record} bytes", offset, count * record, size)
    for name, code, member_order, place in members:
        extents = (Extent(content.path, offset + place, count, record),) if count else ()
        content.add(Field(name, code, member_order, sizes, extents=extents))
    return offset + count * record


def _arrays(content: FileContent, arrays: object, at: int, order: str, size: int, where: str) -> int:
    """Adds arrays that lie one after another, or at offsets of their own; the byte after the last."""
    if not isinstance(arrays, (list, tuple)) or not arrays or len(arrays) > _MOST_FIELDS:
        raise FormatError(f"arrays must be a list of 1 to {_MOST_FIELDS} entries", where=where)
    end = at
    for entry in arrays:
        if not isinstance(entry, dict) or not {"name", "dtype", "shape"} <= set(entry):
            raise FormatError("each of arrays needs name, dtype and shape", where=where)
        unknown = sorted(set(entry) - {"name", "dtype", "shape", "offset", "order"})
        if unknown:
            raise FormatError(f"unknown key {unknown[0]!r} in arrays", where=where)
        if entry.get("offset") is not None:
            at = _integer(entry["offset"], "offset", where)
        entry_order = entry.get("order", order)
        if entry_order not in ("little", "big"):
            raise FormatError(f"order must be little or big, not {entry_order!r:.40}", where=where)
        at = _array(content, str(entry["name"]), entry["dtype"], entry["shape"], at, entry_order, size, where)
        end = max(end, at)
    return end


def _fits(path: str, what: str, offset: int, needed: int, size: int) -> None:
    if offset + needed > size:
        message = f"{what} at byte {offset} needs {needed} bytes, the file has {max(size - offset, 0)} there"
        raise DamagedFile(message, where=path, fix="is the description right, is the file complete?")


def _type(dtype: object, order: str, where: str) -> tuple[str, str]:
    code, own = parse_dtype(dtype, where)
    return code, own or order


def _integer(value: object, what: str, where: str) -> int:
    if isinstance(value, str) and re.fullmatch(r"\s*[0-9]{1,18}\s*", value):
        return int(value)
    if type(value) is int and 0 <= value < 1 << 63:
        return value
    raise FormatError(f"{what} must be a number of bytes, 0 or more, not {value!r:.40}", where=where)


def _shape(value: object, where: str) -> tuple[int, ...]:
    if isinstance(value, str):
        text = value.strip().strip("()[]").rstrip(",")
        parts = [p for p in re.split(r"\s*[x×,]\s*", text) if p] if text else []
        return tuple(_size(part, value, where) for part in parts)
    if type(value) is int:
        return (_size(value, value, where),)
    if isinstance(value, (list, tuple)):
        return tuple(_size(part, value, where) for part in value)
    raise FormatError(f"shape must look like 100x3, not {value!r:.40}", where=where)


def _size(part: object, whole: object, where: str) -> int:
    if isinstance(part, str) and re.fullmatch(r"[0-9]{1,18}", part.strip()):
        return int(part)
    if type(part) is int and part >= 0:
        return part
    raise FormatError(f"shape must look like 100x3, not {whole!r:.40}", where=where)


def _members(value: object, where: str) -> list[tuple[str, object, int | None]]:
    wrong = FormatError('fields must look like x:f32,y:f32@8 or [["x", "f32"], …]', where=where)
    if isinstance(value, str):
        value = [re.split(r"[:@]", entry.strip()) for entry in value.split(",") if entry.strip()]
    if not isinstance(value, (list, tuple)) or not value or len(value) > _MOST_FIELDS:
        raise wrong
    result: list[tuple[str, object, int | None]] = []
    for entry in value:
        if isinstance(entry, dict):
            if not {"name", "dtype"} <= set(entry) <= {"name", "dtype", "offset"}:
                raise wrong
            entry = [
                entry["name"],
                entry["dtype"],
                *([entry["offset"]] if entry.get("offset") is not None else []),
            ]
        if not isinstance(entry, (list, tuple)) or len(entry) not in (2, 3) or not isinstance(entry[0], str):
            raise wrong
        place = _integer(entry[2], "the place of a member", where) if len(entry) == 3 else None
        result.append((entry[0], entry[1], place))
    return result


def _load_sidecar(path: str) -> dict[str, Any]:
    file, size = open_regular(path)
    with file:
        if size > _LONGEST_SIDECAR:
            raise FormatError(f"a description of {size} bytes, more than {_LONGEST_SIDECAR}", where=path)
        text = read_exact(file, 0, size, path, "description")
    with reading(path, "JSON"):
        given = json.loads(text.decode("utf-8"))
    if not isinstance(given, dict):
        raise FormatError(
            "must hold a JSON object", where=path, fix='such as {"dtype": "f32", "shape": [100, 3]}'
        )
    return given


def _claims(path: str) -> bool:
    """A suffix that names the type, or a suffix of raw files and a sidecar: content may begin with anything."""
    suffix = os.path.splitext(path)[1].lower()
    return suffix in TYPED or (suffix in SUFFIXES and os.path.isfile(sidecar(path)))


def _sniff(path: str, file: BinaryIO) -> bool:
    return os.path.isfile(sidecar(path))


FORMAT = Format(
    "raw",
    "raw binary, described by suffix, options or a sidecar",
    open_raw,
    suffixes=SUFFIXES,
    claims=_claims,
    sniff=_sniff,
    options=_KEYS - {"comment"},
    one_array=True,
    order=100,  # asked last: it takes any file that has a description
)
