"""Zarr, versions 2 and 3, with or without shards: a folder, or a zip archive, of groups and chunked arrays.

Uncompressed chunks are read by offset, without the zarr package: as extents if the chunks follow one another
in C order, otherwise by a reader that joins them. The package decodes compressed chunks, and texts and
structs, which are compared by their codes (see `facts`). The elements of a chunk that is not stored have the
array's fill value.

Source: the Zarr specifications, https://zarr-specs.readthedocs.io.
"""

from __future__ import annotations

import importlib
import itertools
import json
import math
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, BinaryIO

from ..errors import DamagedFile, FormatError, MissingPackage, Unsupported
from ..remote import object_of, store_of
from .archives import Archive, first_member
from .attributes import MEANING, add_attribute, note_meaning
from .blocks import BandCache, BandReader, Box
from .compressed import guard_numcodecs
from .element_types import ITEMSIZE, dtype_of, storage_dtype, unit_of
from .facts import DIMENSIONS, codes, encoded, shown
from .files import file_size, open_regular, read_exact, reading
from .layout import Decoded, Stored, add_other, add_others, kind_of
from .model import Field, FileContent, Format, checked_shape, decoded, flag, repeated, unreadable
from .strided import Part, Strided, field_of_parts
from .zarr_objects import Objects, package_store

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

_CACHE_BYTES = 256 << 20
_LONGEST_METADATA = 1 << 26
_MOST_NODES = 1_000_000
_DEEPEST = 64
# Finding a chunk costs about 10 us when the array is opened. Arrays of more chunks are read by the
# zarr package.
_MOST_CHUNKS = 100_000
_MARKERS = ("zarr.json", ".zgroup", ".zarray")
_V3_TYPES = {
    "bool": "bool", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8", "uint16": "u16",
    "uint32": "u32", "uint64": "u64", "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64",
    "complex64": "c64", "complex128": "c128",
    "numpy.datetime64": "i64", "numpy.timedelta64": "i64",
}  # fmt: skip
_MISSING_CHUNK = (1 << 64) - 1  # offset and size of a missing chunk in a shard's index


# Filters of version 2 that decode objects without running code. Others, such as pickle, might run
# code from the file.
_OBJECT_FILTERS = frozenset({"vlen-utf8", "vlen-bytes", "vlen-array", "json2", "msgpack2"})


_METADATA = frozenset({"zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata"})
_CHUNK = re.compile(r"c|(c[./])?\d+([./]\d+)*")


class _Skip(Exception):
    """This array cannot be compared; the message says why."""


class _NotNumeric(Exception):
    """The elements of this array are not numeric; the message is their kind."""


class _Folder:
    """A store that is a folder. Keys are paths with slashes."""

    def __init__(self, path: str) -> None:
        self.path = path

    def place(self, key: str) -> str:
        return os.path.join(self.path, *key.split("/")) if key else self.path

    def find(self, key: str) -> tuple[Stored | Decoded, int] | None:
        """(where the bytes of a key are, their number); None if the key is not stored."""
        path = self.place(key)
        if not os.path.lexists(path):
            return None
        return Stored(path, 0), file_size(path)

    def get(self, key: str) -> bytes | None:
        found = self.find(key)
        if found is None:
            return None
        return _bytes(found[0], 0, found[1], key, self.place(key))

    def below(self, key: str) -> list[str]:
        with os.scandir(self.place(key)) as entries:
            return sorted(e.name for e in entries if e.is_dir())

    def has_chunks(self, prefix: str) -> bool:
        """Whether a key that begins so may be a chunk."""
        folder, _, begin = prefix.rpartition("/")
        return os.path.isdir(self.place(folder)) and _has_files(self.place(folder), begin)

    def identity(self, key: str) -> object:
        status = os.stat(self.place(key))
        return status.st_dev, status.st_ino

    def others(self, content: FileContent, known: Callable[[str], bool]) -> None:
        """Adds the files that are not part of Zarr. known: whether a key is."""
        add_others(content, self.path, known)

    def close(self) -> None:
        pass


def _has_files(folder: str, begin: str) -> bool:
    """Whether a folder, or one below it, has a file that is no metadata. begin: of the names in the folder
    itself.
    """
    with os.scandir(folder) as entries:
        return any(
            (entry.name.startswith(begin) and entry.name not in _METADATA)
            and (not entry.is_dir() or _has_files(entry.path, ""))
            for entry in entries
        )


class _Zip:
    """A store that is a zip archive."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.archive = Archive(path)
        self.folders: dict[str, dict[str, None]] = {"": {}}
        for name in self.archive.members:
            parts = name.split("/")[:_DEEPEST]
            for depth in range(1, len(parts)):
                self.folders.setdefault("/".join(parts[: depth - 1]), {})[parts[depth - 1]] = None

    def place(self, key: str) -> str:
        return self.path

    def find(self, key: str) -> tuple[Stored | Decoded, int] | None:
        if key not in self.archive.members:
            return None
        return self.archive.source(key), self.archive.members[key].file_size

    def get(self, key: str) -> bytes | None:
        return self.archive.read(key, _LONGEST_METADATA) if key in self.archive.members else None

    def below(self, key: str) -> list[str]:
        return sorted(self.folders.get(key, {}))

    def has_chunks(self, prefix: str) -> bool:
        """Whether a key that begins so may be a chunk."""
        return any(
            name.startswith(prefix) and not name.endswith("/") and name.rpartition("/")[2] not in _METADATA
            for name in self.archive.members
        )

    def identity(self, key: str) -> object:
        return key

    def others(self, content: FileContent, known: Callable[[str], bool]) -> None:
        """Adds the members that are not part of Zarr. known: whether a key is."""
        for name, info in self.archive.members.items():
            if not name.endswith("/") and not known(name):
                add_other(content, name, self.archive.source(name), info.file_size)

    def close(self) -> None:
        self.archive.close()


_Store = _Folder | _Zip | Objects


def _bytes(source: Stored | Decoded, offset: int, count: int, what: str, where: str) -> bytes:
    if count > _LONGEST_METADATA:
        raise Unsupported(f"{what!r:.80}: {count} bytes, more than {_LONGEST_METADATA}", where=where)
    if isinstance(source, Decoded):
        return bytes(source.read_bytes(offset, count))  # type: ignore[call-overload]
    file, _ = open_regular(source.path)
    with file:
        return read_exact(file, source.offset + offset, count, source.path, what)


@dataclass
class _Array:
    """The metadata of an array. shard: the shape of a stored object. chunk: the shape of a chunk in it."""

    name: str
    dtype: str
    byte_order: str
    shape: tuple[int, ...]
    shard: tuple[int, ...]
    chunk: tuple[int, ...]
    prefix: str  # of the keys of chunks
    separator: str
    is_plain: bool  # neither compressed nor encoded
    is_column_major: bool = False
    is_sharded: bool = False
    index_at_end: bool = True
    scalar_key: str = "0"
    fill: bytes | None = None  # the bytes of the fill value; None if they are not known
    unit: str | None = None

    def key(self, index: tuple[int, ...]) -> str:
        return self.prefix + (self.separator.join(map(str, index)) if index else self.scalar_key)


def open_zarr(path: str, attributes: object = False) -> FileContent:
    """Opens a Zarr group or array in a folder or a zip archive. Fields are named by their path in the store.

    attributes: if true, numeric attributes become fields `array@attribute`, which may have tolerances;
    otherwise they are facts. An array that needs the zarr package, which is not installed, becomes a field
    with a `problem`.
    """
    with_attributes = flag(attributes, "attributes", path)
    store = _opened(path)
    content = FileContent(path, "zarr", sources=_sources(path))
    cache = BandCache(_CACHE_BYTES)
    entries: list[tuple[str, dict[str, object]]] = []
    nodes: dict[str, bool] = {}
    own: dict[
        str, dict[str, Any]
    ] = {}  # metadata by the key of the node (version 3) or of the file (version 2)
    consolidated: list[tuple[str, dict[str, Any]]] = []
    try:
        for key, metadata, version in _nodes(store):
            nodes[key] = _is_array(metadata, version)
            if version == 3:
                own[key] = metadata
                merged = metadata.get("consolidated_metadata")
            else:
                files = {name: _json(store, _joined(key, name)) for name in (".zarray", ".zgroup", ".zattrs")}
                own |= {_joined(key, name): value for name, value in files.items() if value is not None}
                merged = _json(store, _joined(key, ".zmetadata"))
            if isinstance(merged, dict) and isinstance(merged.get("metadata"), dict):
                consolidated.append((key, merged["metadata"]))
            title = key or "the array"
            values = metadata.get("attributes") if version == 3 else _json(store, _joined(key, ".zattrs"))
            for name, value in values.items() if isinstance(values, dict) else ():
                add_attribute(content, key, name, value, with_attributes)
            if not _is_array(metadata, version):
                content.say(key, "(group)", "")
                continue
            with reading(store.place(key), f"array {title!r:.80}"):
                fill = _add_array(content, store, key, metadata, version, cache)
                _say(content, key, metadata, version)
                content.say(key, "(fill value)", fill)
                if isinstance(values, dict):
                    axes = values.get("_ARRAY_DIMENSIONS")
                    if version == 2 and isinstance(axes, list):  # by which xarray names the axes
                        content.say(key, DIMENSIONS, axes, between=True)
                    packed = {w: values[w] for w in MEANING if type(values.get(w)) in (int, float)}
                    entries.append((title, packed))
        for key, metadata in consolidated:
            _say_consolidated(content, key, metadata, own)
        note_meaning(content, entries)
        if "" in content.fields:  # the store is one array
            _name_only_array(content)
        store.others(content, lambda key: _is_key(key, nodes))
    except BaseException:
        store.close()
        raise

    def close() -> None:
        cache.clear()
        store.close()

    content.on_close = close
    return content


def _opened(path: str) -> _Store:
    elsewhere = store_of(path)
    if elsewhere is not None:
        return Objects(elsewhere, path)
    return _Folder(path) if os.path.isdir(path) else _Zip(path)


def _add_array(
    content: FileContent,
    store: _Store,
    key: str,
    metadata: dict[str, Any],
    version: int,
    cache: BandCache,
) -> object:
    """Adds the field of an array, or why it has none. Gives its fill value."""
    fill: object = metadata.get("fill_value")
    try:
        array = _parse(key, metadata, version, store.place(key))
        new = _field(store, key, array, cache)
        new.unit = array.unit
        content.add(new)
        # The same number may be written as 0 or 0.0, as "NaN" or its bits.
        if fill is not None and array.fill is not None:
            fill = np.frombuffer(array.fill, storage_dtype(array.dtype, array.byte_order))[0]
    except _NotNumeric as kind:
        content.add(_coded_field(store, key, metadata, str(kind), cache))
    except _Skip as reason:
        content.skipped.append((key or "data", str(reason)))
    return fill


def _name_only_array(content: FileContent) -> None:
    """The array of a store that is one array has no path: it is called data, and so are owners of facts."""
    only = content.fields.pop("")
    only.name = "data"
    content.add(only)
    for label, fact in list(content.facts.items()):
        if not fact.owner:
            content.add_fact(replace(content.facts.pop(label), owner="data"))
    content.one_array = len(content.fields) == 1


def _is_key(key: str, nodes: Mapping[str, bool]) -> bool:
    """Whether a key is metadata of a node, or may be a chunk of an array.

    nodes: {key of a node: whether it is an array}.
    """
    above, _, name = key.rpartition("/")
    if name in _METADATA:
        return above in nodes
    while above and not nodes.get(above):
        above = above.rpartition("/")[0]
    chunk = key[len(above) + 1 :] if above else key
    return nodes.get(above, False) and _CHUNK.fullmatch(chunk) is not None


def _say(content: FileContent, key: str, metadata: dict[str, Any], version: int) -> None:
    """Adds what Zarr records about an array beside its elements.

    Chunks and compression are storage and do not count.
    """
    kind = metadata.get("dtype") if version == 2 else metadata.get("data_type")
    if isinstance(kind, str) and kind[:1] in "<>|=":
        kind = kind[1:]
    if not isinstance(kind, str):
        field = content.fields.get(key)
        if field is None or field.unit is None:  # the unit of dates is compared with the field
            content.say(key, "(type)", kind, meaning=True)
    elif kind[:1] in "SUV" and version == 2:
        content.say(key, "(type)", kind)
    if version == 3 and metadata.get("dimension_names") is not None:
        content.say(key, DIMENSIONS, metadata["dimension_names"])


def _say_consolidated(
    content: FileContent, key: str, merged: dict[str, Any], own: Mapping[str, dict[str, Any]]
) -> None:
    """Adds as facts where the consolidated metadata of a group contradict the metadata of its nodes.

    Zarr reads consolidated metadata first, so they decide what a user sees.
    """

    def plain(metadata: object) -> object:
        if not isinstance(metadata, dict):
            return metadata
        return {k: v for k, v in metadata.items() if k != "consolidated_metadata" and v not in (None, {}, [])}

    inside = f"{key}/" if key else ""
    below = {place[len(inside) :] for place in own if place.startswith(inside)} - {""}
    for place in sorted({*merged, *below}):
        itself, there = plain(own.get(inside + place)), plain(merged.get(place))
        if encoded(itself) != encoded(there) and (itself or there):
            content.say(key, f"(consolidated metadata of {place})", there, meaning=True)


def _sources(path: str) -> tuple[str, ...]:
    """All files of a store that is a folder. Needed because readers that decode do not name their files."""
    if not os.path.isdir(path):
        return ()
    with reading(path):
        found = [os.path.join(root, name) for root, _, names in os.walk(path) for name in names]
    return tuple(sorted(p for p in found if os.path.isfile(p)))


def _joined(key: str, name: str) -> str:
    return f"{key}/{name}" if key else name


def _json(store: _Store, key: str) -> dict[str, Any] | None:
    with reading(store.place(key), key):
        text = store.get(key)
        if text is None:
            return None
        value = json.loads(text)
        if not isinstance(value, dict):
            raise DamagedFile(f"{key}: not a JSON object", where=store.path)
        return value


def _is_array(metadata: dict[str, Any], version: int) -> bool:
    return metadata.get("node_type") == "array" if version == 3 else "shape" in metadata


def _nodes(store: _Store) -> Iterator[tuple[str, dict[str, Any], int]]:
    """(path, metadata, version) of every group and array, depth first, from the nodes' own metadata."""
    stack = [""]
    seen: set[object] = set()
    while stack:
        key = stack.pop()
        if key.count("/") > _DEEPEST or len(seen) > _MOST_NODES:
            raise Unsupported("groups nested too deeply, or too many", where=store.path)
        with reading(store.place(key)):
            identity = store.identity(key)
            if identity in seen:
                continue  # a link to a folder above
            seen.add(identity)
            metadata, version = _json(store, _joined(key, "zarr.json")), 3
            if metadata is None:
                metadata, version = _json(store, _joined(key, ".zarray")), 2
            if metadata is None:
                metadata = _json(store, _joined(key, ".zgroup"))
            if metadata is not None:
                if metadata.get("zarr_format") != version:
                    raise Unsupported(
                        f"Zarr version {metadata.get('zarr_format')!r:.20}", where=store.place(key)
                    )
                yield key, metadata, version
                if _is_array(metadata, version):
                    continue
            elif not key:
                raise DamagedFile("it has neither zarr.json nor .zgroup nor .zarray", where=store.path)
            stack.extend(_joined(key, name) for name in reversed(store.below(key)))


def _sizes(value: object, itemsize: int, where: str, what: str, rank: int | None = None) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise DamagedFile(f"{what}: not a list of sizes", where=where)
    sizes = checked_shape(value, itemsize, where, what)
    if rank is not None and (len(sizes) != rank or 0 in sizes):
        raise DamagedFile(f"{what}: {sizes} for an array of {rank} dimensions", where=where)
    return sizes


def _parse(key: str, metadata: dict[str, Any], version: int, where: str) -> _Array:
    array = (_parse_v3 if version == 3 else _parse_v2)(key, metadata, where)
    array.fill = _fill(metadata.get("fill_value"), array)
    return array


def _parse_v2(key: str, metadata: dict[str, Any], where: str) -> _Array:
    """Parses `.zarray` of version 2.

    Raises _NotNumeric or _Skip for other elements, FormatError if it is invalid.
    """
    text = metadata.get("dtype")
    if isinstance(text, list):
        raise _NotNumeric("struct")
    if not isinstance(text, str) or len(text) > 40:
        raise DamagedFile("it has no type", where=where)
    kind = np.dtype(text)
    if kind.hasobject:
        filters = [f.get("id") for f in metadata.get("filters") or () if isinstance(f, dict)]
        if not filters or not set(filters) <= _OBJECT_FILTERS:
            raise _Skip("Python objects: reading them might run code from the file")
        raise _NotNumeric("object")
    known = dtype_of(kind)
    if known is None:
        raise _NotNumeric(kind_of(kind))
    shape = _sizes(metadata.get("shape"), kind.itemsize, where, "shape")
    chunk = _sizes(metadata.get("chunks"), kind.itemsize, where, "chunks", len(shape))
    separator, order = metadata.get("dimension_separator", "."), metadata.get("order", "C")
    if separator not in (".", "/") or order not in ("C", "F"):
        raise DamagedFile("its order or its separator is unknown", where=where)
    plain = metadata.get("compressor") is None and not metadata.get("filters")
    prefix = key + "/" if key else ""
    return _Array(
        key, *known, shape, chunk, chunk, prefix, separator, plain, order == "F", unit=unit_of(kind)
    )


def _parse_v3(key: str, metadata: dict[str, Any], where: str) -> _Array:
    """Parses `zarr.json` of version 3.

    Raises _NotNumeric for other elements, FormatError if it is invalid.
    """
    kind = metadata.get("data_type")
    title = kind.get("name") if isinstance(kind, dict) else kind
    if not isinstance(title, str):
        raise DamagedFile("it has no type", where=where)
    code = _V3_TYPES.get(title)
    if code is None:
        raise _NotNumeric(f"{title:.40}")
    shape = _sizes(metadata.get("shape"), ITEMSIZE[code], where, "shape")
    grid, encoding = (
        _named(metadata.get("chunk_grid"), where),
        _named(metadata.get("chunk_key_encoding"), where),
    )
    if grid[0] != "regular":
        raise Unsupported(f"a chunk grid of the kind {grid[0]!r:.40} is not known", where=where)
    shard = _sizes(grid[1].get("chunk_shape"), ITEMSIZE[code], where, "chunk_shape", len(shape))
    if encoding[0] not in ("default", "v2"):
        raise Unsupported(f"chunk keys of the kind {encoding[0]!r:.40} are not known", where=where)
    separator = encoding[1].get("separator", "/" if encoding[0] == "default" else ".")
    if separator not in (".", "/"):
        raise DamagedFile("its separator is unknown", where=where)
    codecs = _codecs(metadata.get("codecs"), where)
    array = _Array(key, code, "little", shape, shard, shard, key + "/" if key else "", separator, False)
    if isinstance(kind, dict) and title.startswith("numpy."):  # dates and time spans
        settings = _named(kind, where)[1]
        count, unit = settings.get("scale_factor", 1), settings.get("unit", "generic")
        letter = "M" if "datetime" in title else "m"
        array.unit = unit_of(np.dtype(f"{letter}8[{count}{unit}]" if unit != "generic" else f"{letter}8"))
    if encoding[0] == "default":
        array.prefix += "c" + (separator if shape else "")
        array.scalar_key = ""
    if len(codecs) == 1 and codecs[0][0] == "sharding_indexed":
        settings = codecs[0][1]
        array.chunk = _sizes(settings.get("chunk_shape"), ITEMSIZE[code], where, "chunk_shape", len(shape))
        if any(s % c for s, c in zip(shard, array.chunk, strict=True)):
            raise DamagedFile("its chunks do not tile its shards", where=where)
        array.index_at_end = settings.get("index_location", "end") == "end"
        index = _codecs(settings.get("index_codecs"), where)
        array.is_sharded = [c[0] for c in index] == ["bytes", "crc32c"] and index[0][1].get(
            "endian"
        ) == "little"
        codecs = _codecs(settings.get("codecs"), where) if array.is_sharded else []
    if len(codecs) == 1 and codecs[0][0] == "bytes" and not metadata.get("storage_transformers"):
        order = codecs[0][1].get("endian", "little")
        if order not in ("little", "big"):
            raise DamagedFile("its byte order is unknown", where=where)
        array.byte_order, array.is_plain = order, True
    return array


def _named(value: object, where: str) -> tuple[str, dict[str, Any]]:
    """(name, configuration) of an extension point of version 3, such as a codec."""
    if isinstance(value, str):
        return value, {}
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise DamagedFile("a part of its metadata has no name", where=where)
    settings = value.get("configuration", {})
    if not isinstance(settings, dict):
        raise DamagedFile(f"the configuration of {value['name']!r:.40} is not an object", where=where)
    return value["name"], settings


def _codecs(value: object, where: str) -> list[tuple[str, dict[str, Any]]]:
    if not isinstance(value, list):
        raise DamagedFile("it has no list of codecs", where=where)
    return [_named(entry, where) for entry in value]


def _field(store: _Store, key: str, array: _Array, cache: BandCache) -> Field:
    """The field of an array: read by offset if possible, otherwise through the zarr package."""
    if math.prod(array.shape) == 0:
        return Field(key, array.dtype, array.byte_order, array.shape, extents=())
    if array.fill is not None and not store.has_chunks(array.prefix):
        return _never_written(key, array, store.place(key))
    if array.is_plain:
        chunks = math.prod(-(-n // c) for n, c in zip(array.shape, array.chunk, strict=True))
        if chunks <= _MOST_CHUNKS:
            parts = _parts(store, array)
            if parts is not None:
                return field_of_parts(key, array.dtype, array.shape, parts, store.place(key), cache)
    return _decoded_field(store, key, array, cache)


def _never_written(key: str, array: _Array, where: str) -> Field:
    """The field of an array without chunks: every element has the fill value."""
    assert array.fill is not None
    value = np.frombuffer(array.fill, storage_dtype(array.dtype, array.byte_order))
    value = value.astype(storage_dtype(array.dtype))
    read = decoded(key, array.dtype, math.prod(array.shape), where, repeated(lambda first, count: value))
    return Field(
        key, array.dtype, "little", array.shape, read=read, unit=array.unit, reads_anywhere=True, uniform=True
    )


def _fill(value: object, array: _Array) -> bytes | None:
    """The bytes of an array's fill value; None if its notation is not known."""
    if array.dtype == "bf16":
        return None
    kind = storage_dtype(array.dtype, array.byte_order)
    words = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
    if value is None:  # undefined in version 2; the zarr package reads 0
        value = 0
    if isinstance(value, str):
        if value in words and kind.kind in "f":
            value = words[value]
        elif re.fullmatch(r"0x[0-9a-fA-F]{1,16}", value) and kind.kind == "f":
            bits = int(value, 16)
            return bits.to_bytes(kind.itemsize, array.byte_order) if bits >> 8 * kind.itemsize == 0 else None  # type: ignore[arg-type]
        else:
            return None
    if isinstance(value, bool) != (kind.kind == "b") and not (kind.kind == "b" and value == 0):
        return None
    if kind.kind == "c" and isinstance(value, list) and len(value) == 2:
        both = [words.get(v, v) if isinstance(v, str) else v for v in value]
        if not all(isinstance(v, (int, float)) for v in both):
            return None
        value = complex(*both)
    if not isinstance(value, (bool, int, float, complex)):
        return None
    if isinstance(value, float) and kind.kind in "iu":
        return None
    return np.array(value).astype(kind).tobytes() if kind.kind in "fcb" else np.array(value, kind).tobytes()


def _parts(store: _Store, array: _Array) -> list[Part] | None:
    """Where all chunks of an array are; None if one is not stored and the fill value is not known."""
    size = ITEMSIZE[array.dtype]
    inner = array.chunk[::-1] if array.is_column_major else array.chunk
    strides = tuple(math.prod(inner[a + 1 :]) for a in range(len(inner)))
    strides = strides[::-1] if array.is_column_major else strides
    needed = size * math.prod(array.chunk)
    parts: list[Part] = []

    def add(
        source: Stored | Decoded | None, offset: int, start: tuple[int, ...], box: tuple[int, ...]
    ) -> None:
        clipped = tuple(min(c, n - s) for c, n, s in zip(box, array.shape, start, strict=True))
        by = strides
        if source is None:  # not stored: repeat the fill value, by strides of 0
            fill = array.fill
            assert fill is not None
            source, by = Decoded(store.path, lambda at, count: fill[at : at + count]), (0,) * len(clipped)
        parts.append(Part(start, Strided(source, offset, array.dtype, array.byte_order, clipped, by)))

    for index in itertools.product(
        *(range(-(-n // s)) for n, s in zip(array.shape, array.shard, strict=True))
    ):
        key = array.key(index)
        found = store.find(key)
        origin = tuple(i * s for i, s in zip(index, array.shard, strict=True))
        if found is None:
            if array.fill is None:
                return None
            add(None, 0, origin, array.shard)
            continue
        source, length = found
        if not array.is_sharded:
            if length != needed:
                raise DamagedFile(f"has {length} bytes; a chunk has {needed}", where=store.place(key))
            add(source, 0, origin, array.chunk)
            continue
        counts = tuple(s // c for s, c in zip(array.shard, array.chunk, strict=True))
        places = _shard_index(source, length, math.prod(counts), array.index_at_end, store.place(key))
        for inside, (offset, count) in zip(np.ndindex(*counts), places, strict=True):
            start = tuple(o + i * c for o, i, c in zip(origin, inside, array.chunk, strict=True))
            if any(s >= n for s, n in zip(start, array.shape, strict=True)):
                continue
            if offset == count == _MISSING_CHUNK:
                if array.fill is None:
                    return None
                add(None, 0, start, array.chunk)
                continue
            if count != needed or offset + count > length:
                message = f"a chunk of {count} bytes at {offset} of a shard of {length}; chunks have {needed}"
                raise DamagedFile(message, where=store.place(key))
            add(source, offset, start, array.chunk)
    return parts


def _shard_index(
    source: Stored | Decoded, length: int, chunks: int, at_end: bool, where: str
) -> list[tuple[int, int]]:
    """(offset, bytes) of every chunk of a shard, from its index."""
    size = 16 * chunks + 4
    if size > length:
        raise DamagedFile(f"{length} bytes are too few for a shard of {chunks} chunks", where=where)
    raw = _bytes(source, length - size if at_end else 0, size, "shard index", where)
    if crc32c(raw[:-4]) != struct.unpack("<I", raw[-4:])[0]:
        raise DamagedFile("the checksum of its shard index is wrong", where=where)
    return list(struct.iter_unpack("<QQ", raw[:-4]))


def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CRC_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli), as RFC 3720 defines it."""
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ _CRC_TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def _package_array(store: _Store, key: str) -> Any:
    """Opens an array by the zarr package. Raises MissingPackage, and any exception of the package."""
    try:
        package = importlib.import_module("zarr")
        guard_numcodecs()
        if isinstance(store, Objects):
            backing = package_store(store)
        elif isinstance(store, _Zip) and object_of(store.path) is not None:
            raise Unsupported(
                "a compressed array in an archive is not read from stores",
                where=store.path,
                fix="download it first",
            )
        elif isinstance(store, _Zip):
            backing = importlib.import_module("zarr.storage").ZipStore(store.path, mode="r")
        else:
            backing = store.path
    except ImportError:
        raise MissingPackage.of("zarr", "twinrun[zarr]", where=store.place(key)) from None
    return package.open_array(backing, path=key, mode="r")


def _coded_field(store: _Store, key: str, metadata: dict[str, Any], kind: str, cache: BandCache) -> Field:
    """A field of codes of non-numeric elements, which the zarr package reads."""
    where = store.place(key)
    shape = _sizes(metadata.get("shape"), 1, where, "shape")
    if math.prod(shape) == 0:
        return Field(key, "u64", "little", shape, extents=(), kind=kind)
    try:
        with reading(where, "zarr"):
            opened = _package_array(store, key)
            if tuple(opened.shape) != shape:
                raise Unsupported(f"the zarr package reads it as {opened.shape}", where=where)
            chunks = tuple(int(n) for n in opened.chunks)
    except FormatError as problem:
        new = unreadable(key, "u64", "little", shape, problem)
        new.kind = kind
        return new

    def rows(box: Box) -> np.ndarray:
        part = opened[box]
        if not isinstance(part, np.ndarray):
            one = np.empty(1, object)
            one[0] = part
            return one
        return part.reshape(-1)

    def read_box(box: Box) -> np.ndarray:
        return codes(rows(box)).reshape([s.stop - s.start for s in box])

    def tell(position: int) -> str:
        index = np.unravel_index(position, shape) if shape else ()
        with reading(where, f"array {key!r:.80}"):
            return shown(rows(tuple(slice(int(i), int(i) + 1) for i in index))[0])

    reader = BandReader(shape, chunks, storage_dtype("u64"), read_box, cache)
    read = decoded(key, "u64", math.prod(shape), where, reader.read)
    return Field(key, "u64", "little", shape, read=read, kind=kind, tell=tell)


def _decoded_field(store: _Store, key: str, array: _Array, cache: BandCache) -> Field:
    """A field whose chunks the zarr package decodes."""
    where = store.place(key)
    native = storage_dtype(array.dtype)
    try:
        with reading(where, "zarr"):
            opened = _package_array(store, key)
            found = dtype_of(np.dtype(opened.dtype))
            if tuple(opened.shape) != array.shape or found is None or found[0] != array.dtype:
                raise Unsupported(
                    f"the zarr package reads it as {opened.shape} of {opened.dtype}", where=where
                )
    except FormatError as problem:  # for example a codec that is not installed; other arrays can be read
        return unreadable(key, array.dtype, "little", array.shape, problem)

    def read_box(box: Box) -> np.ndarray:
        part = np.asarray(opened[box])
        if part.dtype.kind in "mM":
            part = part.view(part.dtype.str.replace(part.dtype.kind + "8", "i8").split("[")[0])
        return part.astype(native, copy=False)

    # By whole shards, so that the index of each is read once.
    reader = BandReader(array.shape, array.shard, native, read_box, cache)
    read = decoded(key, array.dtype, math.prod(array.shape), where, reader.read)
    return Field(key, array.dtype, "little", array.shape, read=read, reads_anywhere=reader.reads_anywhere)


def _is_folder(path: str) -> bool:
    elsewhere = store_of(path)
    if elsewhere is not None:
        return any(elsewhere.attach(name) is not None for name in _MARKERS)
    return any(os.path.isfile(os.path.join(path, name)) for name in _MARKERS)


def _sniff(path: str, file: BinaryIO) -> bool:
    return first_member(file).rpartition(b"/")[2] in (b"zarr.json", b".zgroup", b".zarray", b".zattrs")


FORMAT = Format(
    "zarr",
    "Zarr",
    open_zarr,
    suffixes=(".zarr",),
    sniff=_sniff,
    is_folder=_is_folder,
    options=frozenset({"attributes"}),
)
