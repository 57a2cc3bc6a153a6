"""Columns of Apache Arrow, in memory or of Parquet: their types, metadata, numbers and missing values."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..errors import MissingPackage
from .element_types import dtype_of
from .texts import MASK, column_name, text_digests

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

__all__ = [
    "arrow_columns",
    "arrow_metadata",
    "arrow_type",
    "categories_of",
    "code_of",
    "digests_of",
    "import_pyarrow",
    "is_missing",
    "numbers_of",
]


def import_pyarrow(path: str) -> tuple[ModuleType, ModuleType]:
    """pyarrow, and pyarrow.parquet. Raises MissingPackage, which names the file."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingPackage.of("pyarrow", "twinrun[parquet]", path) from None
    return pyarrow, pyarrow.parquet


def code_of(kind: Any, pa: ModuleType) -> tuple[str | None, str | None]:
    """(type, unit) of the field for an Arrow type; the type is None for text and other non-numeric types."""
    t = pa.types
    if t.is_boolean(kind):
        return "bool", None
    if t.is_integer(kind) or t.is_floating(kind):
        known = dtype_of(np.dtype(kind.to_pandas_dtype()))
        return (None if known is None else known[0]), None
    # Units as NumPy writes them; a time of day is a span since midnight.
    if t.is_timestamp(kind):
        return "i64", f"M8[{kind.unit}]"
    if t.is_duration(kind) or t.is_time64(kind):
        return "i64", f"m8[{kind.unit}]"
    if t.is_date64(kind):
        return "i64", "M8[ms]"
    if t.is_time32(kind):
        return "i32", f"m8[{kind.unit}]"
    return ("i32", "M8[D]") if t.is_date32(kind) else (None, None)


def arrow_type(one: Any, pa: ModuleType) -> str:
    """The type of a column or member as pyarrow shows it, without details that are storage.

    Storage is: the width of offsets (large_string, views), the integer type of a dictionary, the name of a
    list's element.
    """
    return type_text(one.type, pa) + ("" if one.nullable else " not null")


def type_text(kind: Any, pa: ModuleType) -> str:
    def is_a(*names: str) -> bool:  # old versions of pyarrow lack some of them
        return any(hasattr(pa.types, f"is_{n}") and getattr(pa.types, f"is_{n}")(kind) for n in names)

    if isinstance(kind, pa.BaseExtensionType):
        return f"{kind} of {type_text(kind.storage_type, pa)}"
    if is_a("run_end_encoded"):
        return type_text(kind.value_type, pa)
    if is_a("dictionary"):
        return f"dictionary<{type_text(kind.value_type, pa)}{', ordered' if kind.ordered else ''}>"
    if is_a("string", "large_string", "string_view"):
        return "string"
    if is_a("binary", "large_binary", "binary_view"):
        return "binary"
    if is_a("fixed_size_list"):
        return f"fixed_size_list<{arrow_type(kind.value_field, pa)}>[{kind.list_size}]"
    if is_a("list", "large_list", "list_view", "large_list_view"):
        return f"list<{arrow_type(kind.value_field, pa)}>"
    if is_a("map"):
        of_each = f"{type_text(kind.key_type, pa)}, {arrow_type(kind.item_field, pa)}"
        return f"map<{of_each}{', keys sorted' if kind.keys_sorted else ''}>"
    if is_a("struct"):
        members = (kind.field(at) for at in range(kind.num_fields))
        return "struct<" + ", ".join(f"{m.name!r}: {arrow_type(m, pa)}" for m in members) + ">"
    return str(kind)


_STORAGE_METADATA = (b"ARROW:", b"PARQUET:")  # prefixes of keys that describe storage
_WRITER_KEYS = ("creator", "pandas_version")


def arrow_metadata(schema: Any, pa: ModuleType) -> Iterator[tuple[str, str, object]]:
    """(owner, key, value) of the metadata of a schema and its fields.

    owner: a column, a member of one, or '' for the schema.
    """

    def entries(where: str, metadata: Mapping[bytes, bytes] | None) -> Iterator[tuple[str, str, object]]:
        for key, value in (metadata or {}).items():
            if not key.startswith(_STORAGE_METADATA):
                yield (
                    where,
                    key.decode("utf-8", "replace"),
                    _without_writer(value) if key == b"pandas" else value,
                )

    def members(where: str, one: Any) -> Iterator[tuple[str, str, object]]:
        yield from entries(where, one.metadata)
        kind = one.type
        for at in range(kind.num_fields if hasattr(kind, "field") else 0):
            yield from members(f"{where}.{kind.field(at).name}", kind.field(at))

    yield from entries("", schema.metadata)
    for one in schema:
        yield from members(one.name, one)


def _without_writer(value: bytes) -> object:
    """The metadata of pandas (index and types), parsed, without the versions of the writing program."""
    try:
        parsed = json.loads(value)
    except ValueError:
        return value
    return {k: v for k, v in parsed.items() if k not in _WRITER_KEYS} if isinstance(parsed, dict) else value


def numbers_of(array: Any, code: str, pa: ModuleType) -> np.ndarray:
    """The numbers of a column, with 0 in the place of missing values."""
    if code in ("i64", "i32") and not pa.types.is_integer(array.type):
        array = array.view(pa.int64() if code == "i64" else pa.int32())
    if array.null_count:
        import pyarrow.compute

        zero = (
            pa.scalar(np.float16(0) if pa.types.is_float16(array.type) else 0, array.type)
            if not pa.types.is_boolean(array.type)
            else pa.scalar(False)
        )
        array = pyarrow.compute.if_else(pyarrow.compute.is_null(array), zero, array)
    return array.to_numpy(zero_copy_only=False)


def digests_of(array: Any, pa: ModuleType) -> np.ndarray:
    """Digests of the values of a column: u64 of shape (n, 2)."""
    if pa.types.is_dictionary(array.type):  # hash each distinct text once
        missing = np.asarray(array.is_null().to_numpy(zero_copy_only=False), bool)
        import pyarrow.compute

        places = pyarrow.compute.fill_null(array.indices, 0).to_numpy(zero_copy_only=False)
        of_each = text_digests([*array.dictionary.to_pylist(), None])
        return of_each[np.where(missing, len(of_each) - 1, places)]
    return text_digests(array.to_pylist())


def is_missing(array: Any) -> np.ndarray:
    """Where an array has no value: bool, one for each element."""
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False), bool)


def _objects(values: Sequence[object]) -> np.ndarray:
    array = np.empty(len(values), object)
    for at, value in enumerate(values):
        array[at] = value
    return array


def _ordered_within(array: Any, pa: ModuleType, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path within the elements, categories) of each ordered dictionary in an array, whose order is part of
    the data."""
    t = pa.types
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if t.is_dictionary(array.type):
        if array.type.ordered:
            yield path, array.dictionary
        yield from _ordered_within(array.dictionary, pa, path)
    elif t.is_struct(array.type):
        for at, member in enumerate(array.flatten()):
            yield from _ordered_within(member, pa, f"{path}.{array.type.field(at).name}")
    elif t.is_list(array.type) or t.is_large_list(array.type) or t.is_fixed_size_list(array.type):
        yield from _ordered_within(array.flatten(), pa, f"{path}[]")
    elif t.is_map(array.type):
        yield from _ordered_within(array.keys, pa, f"{path}[]")
        yield from _ordered_within(array.items, pa, f"{path}[].value")


def categories_of(entry: Any, chunks: Iterable[Any], pa: ModuleType) -> dict[str, list[object]]:
    """{path: categories in order} of a column's ordered dictionaries. Each chunk may have its own dictionary.

    entry: the column in the schema. chunks: only read if its type has an ordered dictionary.
    """
    found: dict[str, dict[bytes, object]] = {}
    if "ordered" in type_text(entry.type, pa):
        for chunk in chunks:
            for path, categories in _ordered_within(chunk, pa):
                values = categories.to_pylist()
                known = found.setdefault(path, {})
                for digest, value in zip(text_digests(values), values, strict=True):
                    known.setdefault(digest.tobytes(), value)
    return {path: list(known.values()) for path, known in found.items()}


def arrow_columns(table: Any, where: str) -> Iterator[tuple[str, object]]:
    """(name, array) of the columns of an Arrow table in memory, of masks of missing values, and of ordered
    categories."""
    pa, _ = import_pyarrow(where)
    for entry, column in zip(table.schema, table.columns, strict=True):
        name = column_name(entry.name)
        code, unit = code_of(column.type, pa)
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        for path, categories in categories_of(entry, chunks, pa).items():
            yield f"{name}@categories{path}", _objects(categories)
        if code is None:
            yield name, _objects(list(itertools.chain.from_iterable(c.to_pylist() for c in chunks)))
            continue
        parts = [numbers_of(c, code, pa) for c in chunks]
        numbers = np.concatenate(parts) if parts else np.empty(0, code)
        yield name, numbers if unit is None else numbers.astype(np.int64, copy=False).view(unit)
        if column.null_count:
            yield f"{name}{MASK}", np.concatenate([is_missing(c) for c in chunks])
