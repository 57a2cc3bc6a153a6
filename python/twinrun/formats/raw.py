"""Raw binary files, described by a suffix, by options, or by a sidecar `<file>.json`.

    x.f32                                           a suffix that names the type: a 1-D array
    dtype=f32 shape=100x3 offset=16 order=big       one array, after 16 bytes of header
    fields=x:f32,y:f32,id:i64 record=24             an array of structs without padding between members;
    fields=x:f32,y:f32@8                            with an offset for a member
    {"arrays": [{"name": "x", "dtype": "f32", "shape": [9]}, …]}     several arrays in sequence, in a sidecar

A sidecar has the same keys as the options. If any option is given, the sidecar is ignored.
"""

from __future__ import annotations

import json
import math
import os
import re
from typing import Any, BinaryIO

from ..errors import DamagedFile, FormatError, in_words_of_the_caller
from ..remote import object_of
from .element_types import ITEMSIZE, parse_dtype
from .facts import Fact, shown
from .files import file_size, open_regular, read_exact, reading
from .model import Extent, Field, FileContent, Format, checked_shape, flag
from .naming import field_name
from .texts import printable

SUFFIXES = (".bin", ".raw", ".dat")
# Names of this project (.i8 has one byte), and numpy's (.float64, …).
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
_FEW = 4096
_PIECE = 1 << 20
_SHOWN = 32
_SHORT = 64  # bytes: fewer may be printable by chance, unless they contain a line end


def sidecar(path: str) -> str:
    """Path of the sidecar that describes the raw file `path`."""
    return path + ".json"


def may_have_sidecar(path: str) -> bool:
    """Whether a file has the suffix of a raw file."""
    return os.path.splitext(path)[1].lower() in (*TYPED, *SUFFIXES)


def _has_sidecar(path: str) -> bool:
    return object_of(sidecar(path)) is not None or os.path.isfile(sidecar(path))


def open_raw(path: str, **options: object) -> FileContent:
    """Opens a raw file.

    Parameters
    ----------
    path : str
        The file.
    **options : object
        dtype: the element type. shape: '100x3' or a list; without it the array is 1-D and fills the file.
        offset: bytes before the first element; they are compared as a fact. order: 'little' (default) or
        'big'. name: the name of the field; by default from the file's name. fields: the members of a record,
        as [(name, dtype)], [(name, dtype, offset)], [{name, dtype, offset}] or text. record: bytes from one
        record to the next. arrays: as in a sidecar. partial: the description covers only a part of the file;
        without it, bytes after the description are an error, and bytes before it and between arrays are
        compared as a fact. printable: read the file as numbers although its bytes could be text, which
        otherwise is an error.

    Raises
    ------
    FormatError
        The description is invalid or does not fit the file, or the file looks like text.
    """
    size = file_size(path)
    where = path
    if options:
        given: dict[str, Any] = dict(options)
    elif object_of(sidecar(path)) is not None or os.path.lexists(sidecar(path)):
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
            _refuse_text(path, 0, size)  # otherwise the message would suggest a type for text
            raise _without_type(path, options)
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
        raise DamagedFile(f"offset {offset} is after the end of the file ({size} bytes)", where=path)
    if "arrays" in given:
        end = _arrays(content, given["arrays"], offset, order, size, where)
    elif "fields" in given:
        end = _records(content, given, offset, order, size, where)
    else:
        name = str(given.get("name") or field_name(path))
        end = _array(content, name, given["dtype"], given.get("shape"), offset, order, size, where)
        content.one_array = not given.get("name")
    if end < size and not partial:
        message = f"{size - end} bytes after the {end} described bytes are not described"
        raise DamagedFile(message, where=path, fix="correct the shape, or say --format-option partial=true")
    described = [(offset, end)]
    if "arrays" in given:
        described = [
            (e.offset, e.offset + e.stride * e.count)
            for f in content.fields.values()
            for e in f.extents or ()
        ]
    _others(content, sorted(described), size, partial)
    return content


def _without_type(path: str, options: dict[str, object]) -> FormatError:
    """Why a file cannot be read whose element type nothing tells. options: what the caller gave."""
    described = os.path.basename(sidecar(path))
    if not options:
        fix = f"give --dtype f32 (if need be --shape 100x200, --offset 512, --format-option order=F), or write {described}"
        return FormatError("a raw file whose element type is not known", where=path, fix=fix)
    option = min(options, key=lambda name: name not in ("shape", "offset"))
    named = f"--{option}" if option in ("shape", "offset") else f"the option {option!r}"
    return FormatError(
        in_words_of_the_caller(f"{named} is given without --dtype, and the element type is not known"),
        where=path,
        fix=f"add --dtype, such as f32; or describe the file in {described}, and give no options",
    )


def _others(content: FileContent, described: list[tuple[int, int]], size: int, partial: bool) -> None:
    """Adds the bytes before and between the described ones as a fact; with `partial` only a note that they
    are not compared.

    described: sorted (first byte, last byte + 1).
    """
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
    import hashlib

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
    """Raises FormatError if the first bytes after `offset` are text, which would be read as meaningless
    numbers."""
    count = min(_SAMPLE, max(size - offset, 0))
    file, _ = open_regular(path)
    with file:
        # Few bytes tell most files: text begins with text.
        few = read_exact(file, offset, min(_FEW, count), path, "first bytes")
        if few and not printable(few):
            return
        sample = few + read_exact(file, offset + len(few), count - len(few), path, "first bytes")
    if printable(sample) and (count >= _SHORT or b"\n" in sample):
        if offset:
            fix = "is the offset right?"
        elif b"\n" in sample:  # whoever reads a table as numbers compares nonsense
            fix = "read it as a table: --format table"
        else:
            fix = "if its bytes are numbers all the same: --format-option printable=true"
        raise FormatError("holds text, not binary numbers", where=path, fix=fix)


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
    """Adds the field of a dense array. Returns the offset after it."""
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
    """Adds the fields of an array of structs, one for each member. Returns the offset after the array."""
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
    """Adds the fields of several arrays, in sequence or at their own offsets.

    Returns the offset after the last byte.
    """
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
        message = f"{what} at byte {offset} needs {needed} bytes; the file has {max(size - offset, 0)} there"
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
    """(name, dtype, offset or None) of the members of a record, from the option `fields`.

    Raises FormatError.
    """
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
        place = _integer(entry[2], "the offset of a member", where) if len(entry) == 3 else None
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
    """Whether a file is raw by its name: a suffix that names the type, or a suffix of raw files and a
    sidecar.

    The content does not count, because it may begin with the magic bytes of another format by chance.
    """
    suffix = os.path.splitext(path)[1].lower()
    return suffix in TYPED or (suffix in SUFFIXES and _has_sidecar(path))


def _sniff(path: str, file: BinaryIO) -> bool:
    return _has_sidecar(path)


FORMAT = Format(
    "raw",
    "raw binary, described by suffix, options or a sidecar",
    open_raw,
    suffixes=SUFFIXES,
    claims=_claims,
    sniff=_sniff,
    options=_KEYS - {"comment"},
    one_array=True,
    order=100,  # asked last: it takes every file that has a sidecar
)
