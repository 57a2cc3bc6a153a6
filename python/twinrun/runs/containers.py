"""Containers as named arrays: nested containers, models, tables, and arrays with labels, units or masks.

`compare`, `sketch`, `Run.capture` and golden checks all use these functions. Names are joined by dots, as in
PyTorch's files: `optimizer.state.0.exp_avg`. Labels of an array, such as its unit or its index, are compared
too: each is an entry of its own, named `array@label`. No package is imported: whoever has an object of a
package has imported the package.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
import sys
from collections import OrderedDict, UserString
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import TwinrunError, Uncompared
from ..formats.element_types import dtype_of
from ..formats.facts import title_of
from ..formats.texts import (
    MASK,
    SUFFIX,
    column_name,
    never_tolerated,
    object_text,
    repr_is_complete,
    text_array,
)
from .arrays import is_on_device

__all__ = ["Texts", "flattened", "is_container", "named_arrays", "state_of"]

_DEEPEST = 100
_MOST = 10_000_000


class Texts(np.ndarray):
    """An array of digests of texts (see `formats.texts`) with the texts, for messages.

    Its last axis has length 2. source: the array of texts, without this axis.
    """

    source: np.ndarray | None = None

    def text(self, index: tuple[int, ...]) -> str:
        """The text at an index of this array; '' if the texts are not known."""
        return object_text(self.source[index[:-1]]) if self.source is not None else ""


def _cannot(name: str, what: str) -> Uncompared:
    return Uncompared(what, where=name or None, fix="leave it out, or give it as arrays of numbers or texts")


@dataclasses.dataclass
class _Flat:
    """Collects the entries of a container.

    where: names the container in messages. as_given: objects that numpy converts stay as they are. exact:
    numbers become digests where a tolerance would hold for them. problems: where values go that cannot be
    compared, with their names; None: they are errors.
    """

    where: str | None
    as_given: bool = False
    problems: list[tuple[str, TwinrunError]] | None = None
    entries: dict[str, object] = dataclasses.field(default_factory=dict)
    # id() of each container around the current one.
    inside: list[int] = dataclasses.field(default_factory=list)
    # Whether an empty key at the top is above: {'': {'a': x}} holds '.a', and {'a': x} holds 'a'.
    below_empty: bool = False
    exact: bool = False

    def add(self, name: str, array: object) -> None:
        if self.exact and not isinstance(array, Texts) and (numbers := _on_host(array)) is not None:
            if numbers.dtype.kind in "fc" or (numbers.dtype.kind in "biu" and not never_tolerated(name)):
                # Digests of single values of NumPy, which keep their type.
                values = np.empty(numbers.shape, object)
                values.reshape(-1)[:] = _objects(numbers.reshape(-1))
                self.add_texts(name, values)
                return
        if name in self.entries:
            raise TwinrunError(
                f"two fields of the name {name!r:.200}",
                where=self.where,
                fix="rename one: names of nested containers are joined by dots, and the keys 1 and '1' give the same name",
            )
        if len(self.entries) >= _MOST:
            raise TwinrunError(f"more than {_MOST} arrays", where=self.where)
        self.entries[name] = array

    def add_texts(self, name: str, values: np.ndarray) -> None:
        """Adds an array of texts or other objects, as digests.

        Raises TwinrunError if one cannot be compared.
        """
        try:
            made = text_array(values).view(Texts)
        except (TypeError, RecursionError) as e:
            raise _cannot(name, f"cannot be compared: {e}") from None
        made.source = values
        self.add(name + SUFFIX, made)

    def walk(self, name: str, value: Any) -> None:
        """Adds the entries of any object.

        Raises TwinrunError for cycles and for objects that cannot be compared.
        """
        opened = _opener(_class_of(value))
        if opened is None and not self.as_given and (made := _converted(value)) is not None:
            value, opened = made, _opener(_class_of(made))
        if opened is None or (opened is _numpy and value.dtype.kind in "fiubc"):
            self.add(name, value)
            return
        if id(value) in self.inside:
            raise TwinrunError(
                "a container contains itself", where=name or self.where, fix="remove the cycle"
            )
        if len(self.inside) >= _DEEPEST:
            raise TwinrunError(f"containers nested more than {_DEEPEST} deep", where=name[:200] or self.where)
        before = len(self.entries)
        self.inside.append(id(value))
        try:
            opened(self, name, value)
            if (own := _own_class(_class_of(value))) is not None:
                self.label(name, "class", own)
        except Uncompared as problem:
            if self.problems is None:
                raise
            for added in list(self.entries)[before:]:
                del self.entries[added]
            self.problems.append((name, problem))
            return
        finally:
            self.inside.pop()
        # An empty container becomes an entry, so that its absence in the other run is a difference.
        if (name or self.below_empty) and len(self.entries) == before:
            self.add_texts(name, _objects([f"empty {_EMPTY.get(opened, 'object')}"]))

    def label(self, name: str, label: str, value: object) -> None:
        """Adds a label of `name`."""
        self.walk(f"{name}@{label}", value)

    def exactly(self, name: str, label: str, value: Any) -> None:
        """Adds a label of `name` whose numbers must be equal whatever the tolerance, at any depth."""
        before, self.exact = self.exact, True
        try:
            self.label(name, label, value)
        finally:
            self.exact = before

    def texts(self, name: str, values: Iterable[object]) -> None:
        self.add_texts(name, _objects(values))


def _on_host(array: Any) -> np.ndarray | None:
    """The numbers of an array on the host; None for others, and where numpy has no such type."""
    if is_on_device(array):
        return None
    try:
        return np.asarray(array.detach() if hasattr(array, "detach") else array)
    except (TypeError, ValueError, RuntimeError):
        return None


def _converted(value: Any) -> np.ndarray | None:
    """What numpy makes of an object on the host that is no array of its own: a masked array, for example.

    None for other objects, and where numpy fails: whoever takes the array says why.
    """
    if isinstance(value, (np.ndarray, np.generic)) or not hasattr(value, "__array__") or is_on_device(value):
        return None
    try:
        made = np.asanyarray(value)
    except MemoryError:
        raise
    except Exception:
        return None
    return made if isinstance(made, np.ma.MaskedArray) or made.dtype.kind in "fiubcmMOSU" else None


def _objects(values: Iterable[object]) -> np.ndarray:
    """A 1-D array of objects, without conversion."""
    listed = list(values)
    array = np.empty(len(listed), object)
    for at, value in enumerate(listed):
        array[at] = value
    return array


def _joined(name: str, key: object) -> str:
    key = str(key)
    return f"{name}.{key}" if name else key


# ---- containers ----


def _entries(flat: _Flat, name: str, entries: Iterable[tuple[object, object]]) -> None:
    nested = name != "" or flat.below_empty
    for key, value in entries:
        own = f"{name}.{key}" if nested else str(key)
        before, flat.below_empty = flat.below_empty, flat.below_empty or own == ""
        try:
            flat.walk(own, value)
        finally:
            flat.below_empty = before


# Names of labels as `_Flat.label` makes them; a caller's own key may look like one.
_LABEL = re.compile(
    r"@(attrs|categories|class|columns|compressed|coords|dense|dims|fill|group|index|indexes|indices|layout|mask|metadata|name|ordered|plain|rows|shape|title|types?|unit|variable)\b"
)


def _asked(name: str, ask: Callable[[], list]) -> list:
    """What an object's own methods give. What they raise is an error that names the object."""
    try:
        return ask()
    except (TwinrunError, MemoryError):
        raise
    except Exception as e:
        raise _cannot(name, f"its entries cannot be listed: {e!r:.100}") from None


def _mapping(flat: _Flat, name: str, value: Mapping) -> None:
    entries = _asked(name, lambda: list(value.items()))
    _entries(flat, name, entries)
    keys = {key for key, _ in entries if isinstance(key, str)}
    own = [key for key in keys if any(key[: m.start()] in keys for m in _LABEL.finditer(key))]
    if own:  # distinguishes {'x': …, 'x@mask': …} from an array x with a mask
        flat.texts(f"{name}@keys", sorted(own))


def _sequence(flat: _Flat, name: str, value: list | tuple) -> None:
    array = _array_of(value)
    if array is not None:
        flat.add(name, array)
        return
    if value and all(type(v) is str for v in value) and not hasattr(value, "_fields"):
        flat.texts(name, value)
        return
    named = getattr(value, "_fields", None)
    # As it is now: what looks at an entry may change the list.
    entries = zip(named, value, strict=True) if named is not None else enumerate(tuple(value))
    _entries(flat, name, entries)


def _other_sequence(flat: _Flat, name: str, value: Sequence) -> None:
    """Adds a deque, for example, as the list of what it holds. numpy would convert it to one type."""
    if _has_buffer(value):
        flat.add(name, value)
        return
    _sequence(flat, name, _asked(name, lambda: _listed(value)))


def _listed(value: Sequence) -> list:
    """The entries by their numbers. A class that calls itself no sequence may give its keys in a loop."""
    return list(value) if isinstance(value, Sequence) else [value[at] for at in range(len(value))]


def _has_buffer(value: Any) -> bool:
    """Whether its elements lie in memory, as those of `array.array`."""
    try:
        memoryview(value).release()
    except (TypeError, BufferError, ValueError):
        return False
    return True


def _array_of(value: list | tuple) -> np.ndarray | None:
    """A list as an array.

    None unless it has only numbers, an exact common type in numpy, and rows of one length.
    """
    kinds: set[str] = set()
    if not _only_numbers(value, kinds, 0) or (len(kinds) > 1 and "b" in kinds):
        return None
    try:
        array = np.asarray(value)
        # i64 and u64 together
        if kinds == {"i"} and array.dtype.kind == "f" and (array >= 0).all():
            array = np.asarray(value, np.uint64)
    except (ValueError, OverflowError):
        return None
    if array.dtype.kind not in "biufc":
        return None
    # numpy may convert integers to floats, because of fractions or of their range. They must stay
    # exact.
    exact = (
        "i" not in kinds or array.dtype.kind in "iu" or bool((np.abs(array).astype(float) < 1 << 53).all())
    )
    return array if exact else None


def _only_numbers(value: list | tuple, kinds: set[str], depth: int) -> bool:
    """Whether nested lists have only numbers. Adds their kinds to `kinds`: 'b', 'i' or 'f'."""
    if hasattr(value, "_fields") or depth > 32:
        return False
    for v in value:
        if isinstance(v, (bool, np.bool_)):
            kinds.add("b")
        elif isinstance(v, (int, np.integer)):
            kinds.add("i")
        elif isinstance(v, (float, complex, np.inexact)):
            kinds.add("f")
        elif not isinstance(v, (list, tuple)) or not _only_numbers(v, kinds, depth + 1):
            return False
    return True


def _data_class(flat: _Flat, name: str, value: Any) -> None:
    fields = dataclasses.fields(value)
    _entries(flat, name, [(f.name, getattr(value, f.name)) for f in fields])


def _state(flat: _Flat, name: str, value: Any) -> None:
    flat.walk(name, value.state_dict())


# ---- single values ----


def _text(flat: _Flat, name: str, value: object) -> None:
    array = np.empty((), object)
    array[()] = value
    flat.add_texts(name, array)


def _bytes(flat: _Flat, name: str, value: Any) -> None:
    """Adds a bytearray, memoryview or other buffer as bytes.

    A memoryview of other elements than bytes as an array.
    """
    try:
        if isinstance(value, memoryview) and (value.ndim != 1 or value.format not in ("B", "c")):
            flat.add(name, value)
        else:
            _text(flat, name, bytes(value))
    except (BufferError, ValueError) as e:  # released or closed, or in GPU memory
        raise _cannot(name, f"its bytes cannot be read: {e}") from None


def _integer(flat: _Flat, name: str, value: int) -> None:
    if -(1 << 63) <= value < 1 << 64:
        flat.add(name, value)
    else:  # the core has no integers of more than 64 bits
        _text(flat, name, value)


# ---- arrays with more than numbers ----


def _numpy(flat: _Flat, name: str, value: np.ndarray) -> None:
    kind = value.dtype
    if kind.names is not None:
        for member in kind.names:
            flat.walk(_joined(name, member), value[member])
        _titles(flat, name, kind)
        if not kind.names:
            flat.texts(name, [f"struct without members, of shape {list(value.shape)}"])
    elif dtype_of(kind) is None and kind.kind in "SUOVT" and kind.name != "bfloat16":
        if kind.kind == "V" and kind.type is not np.void:  # a type of another package
            flat.add(name, value)
            return
        plain = np.asarray(value)
        flat.add_texts(name, plain.astype(object) if kind.kind == "T" else plain)
    else:
        flat.add(name, value)


def _titles(flat: _Flat, name: str, kind: np.dtype) -> None:
    """Adds the titles of a struct's members as labels."""
    for member in kind.names or ():
        if (title := title_of(kind, member)) is not None:
            flat.label(_joined(name, member), "title", title)


def _masked(flat: _Flat, name: str, value: np.ma.MaskedArray) -> None:
    """Adds a masked array of numpy: its values, 0 under the mask.

    Its mask; and its fill value unless it is default.
    """
    if value is np.ma.masked:
        flat.texts(name, ["masked"])
        return
    if value.dtype.names is not None:
        if not value.dtype.names:
            _numpy(flat, name, np.ma.getdata(value))
        for member in value.dtype.names:
            flat.walk(_joined(name, member), value[member])
        _titles(flat, name, value.dtype)
        return
    filled = np.asarray(value.fill_value)  # numpy's default unless the user has set it
    with np.errstate(all="ignore"):  # that of a packed variable may have the type of what is stored
        default = np.asarray(np.ma.default_fill_value(value)).astype(filled.dtype)
    if filled.tobytes() != default.tobytes():
        flat.exactly(name, "fill", filled)
    mask = np.ma.getmaskarray(value)
    if not mask.any():
        flat.walk(name, np.ma.getdata(value))
        return
    data = np.array(np.ma.getdata(value))  # values under the mask do not count
    data[mask] = np.zeros((), data.dtype) if data.dtype.kind != "O" else None
    flat.walk(name, data)
    flat.label(name, "mask", mask)


def _quantity(flat: _Flat, name: str, value: object) -> None:
    for number, unit in (("magnitude", "units"), ("value", "unit"), ("value", "units")):
        if hasattr(value, number) and hasattr(value, unit):
            flat.walk(name, getattr(value, number))
            flat.label(name, "unit", str(getattr(value, unit)))
            return
    raise _cannot(name, f"quantities of type {type(value).__name__} are not supported")


def _polynomial(flat: _Flat, name: str, value: Any) -> None:
    flat.walk(name, value.coeffs)
    if value.variable != "x":
        flat.label(name, "variable", value.variable)


def _attributes(flat: _Flat, name: str, attributes: Mapping) -> None:
    for key, value in attributes.items():
        flat.exactly(name, f"attrs.{key}", value)


def _data_array(flat: _Flat, name: str, value: Any, coords: bool = True) -> None:
    """Adds a DataArray or Variable of xarray. Its encoding describes storage, and is not compared."""
    flat.walk(name, value.data)
    default = tuple(f"dim_{i}" for i in range(len(value.dims)))
    if tuple(value.dims) != default:
        flat.texts(f"{name}@dims", value.dims)
    _attributes(flat, name, value.attrs)
    if coords:
        if value.name is not None:
            flat.label(name, "name", value.name)
        _coordinates(flat, name, value)


def _coordinates(flat: _Flat, name: str, value: Any) -> None:
    if value.coords:  # which coordinates have an index
        indexes = {str(key): type(index).__name__ for key, index in value.xindexes.items()}
        flat.label(name, "indexes", str(dict(sorted(indexes.items()))))
    for key, coordinate in value.coords.items():
        _data_array(flat, f"{name}@coords.{key}", coordinate.variable, coords=False)


def _dataset(flat: _Flat, name: str, value: Any) -> None:
    for key, array in value.data_vars.items():
        _data_array(flat, _joined(name, key), array.variable, coords=False)
    _coordinates(flat, name, value)
    _attributes(flat, name, value.attrs)


def _data_tree(flat: _Flat, name: str, value: Any) -> None:
    _dataset(flat, name, value.to_dataset(inherit=False))
    for key, child in value.children.items():
        flat.walk(_joined(name, key), child)
        flat.texts(f"{name}@group.{key}", [str(key)])


def _column(flat: _Flat, name: str, series: Any) -> None:
    """Adds the values of a Series or an Index of pandas. Of the labels it adds only categories and mask."""
    kind = series.dtype
    if type(kind).__name__ == "CategoricalDtype":
        values = _objects(series.astype(object))
        values[np.asarray(series.isna())] = None
        flat.add_texts(name, values)
        flat.exactly(name, "ordered", bool(kind.ordered))
        flat.add_texts(f"{name}@categories", _objects(kind.categories.astype(object)))
        flat.texts(f"{name}@categories.type", [str(kind.categories.dtype)])
        return
    if type(kind).__name__ == "SparseDtype":
        flat.walk(name, np.asarray(series))
        return
    if isinstance(kind, np.dtype) and kind.kind != "O":
        flat.walk(name, series.to_numpy())
        return
    missing = np.asarray(series.isna())
    number = getattr(kind, "numpy_dtype", None) if hasattr(kind, "na_value") else None
    if isinstance(number, np.dtype) and dtype_of(number) is not None and number.kind in "biuf":
        flat.add(name, series.to_numpy(number, na_value=number.type(0)))
        if missing.any():
            flat.add(f"{name}{MASK}", missing)
        return
    values = _objects(series.astype(object))
    # Extension types have one missing value. An array of objects may have several, such as None and
    # NaN.
    if not isinstance(kind, np.dtype):
        values[missing] = None
    flat.add_texts(name, values)


def _is_int64(index: Any) -> bool:
    """Whether an index has the type of pandas' default index: int64, also as a range."""
    return isinstance(index.dtype, np.dtype) and index.dtype == np.int64


def _index(flat: _Flat, name: str, index: Any) -> None:
    """Adds the labels of rows, unless they are pandas' default index 0, 1, 2, …"""
    names = list(index.names)
    plain = len(names) == 1 and names[0] is None and _is_int64(index)
    if plain and np.array_equal(np.asarray(index), np.arange(len(index))):
        return
    if any(n is not None for n in names):
        flat.texts(f"{name}@index.names", names)
    if len(names) > 1:
        for at in range(len(names)):
            level = index.get_level_values(at)
            _column(flat, f"{name}@index.{at}", level)
            flat.texts(f"{name}@index.{at}.type", [str(level.dtype)])
    else:
        _column(flat, f"{name}@index", index)
        flat.texts(f"{name}@index.type", [str(index.dtype)])
        _frequency(flat, f"{name}@index", index)


def _frequency(flat: _Flat, label: str, index: Any) -> None:
    """Adds the frequency of an index of dates or time spans. For periods it is part of the type."""
    if type(index).__name__ in ("DatetimeIndex", "TimedeltaIndex"):
        flat.texts(f"{label}.freq", [str(index.freqstr)])


def _series(flat: _Flat, name: str, value: Any) -> None:
    _column(flat, name, value)
    if not isinstance(value.dtype, np.dtype):
        flat.label(name, "type", str(value.dtype))
    if value.name is not None:
        _text(flat, f"{name}@name", value.name)
    _index(flat, name, value.index)
    _attributes(flat, name, value.attrs)


def _pandas_index(flat: _Flat, name: str, value: Any) -> None:
    if value.nlevels > 1:
        for at in range(value.nlevels):
            _column(flat, _joined(name, at), value.get_level_values(at))
    else:
        _column(flat, name, value)
    flat.texts(f"{name}@index.names", list(value.names))
    flat.label(name, "type", str(value.dtype))
    _frequency(flat, f"{name}@index", value)


def _array_of_pandas(flat: _Flat, name: str, value: object) -> None:
    """Adds an extension array of pandas."""
    _series(flat, name, sys.modules["pandas"].Series(value, copy=False))


def _frame(flat: _Flat, name: str, value: Any) -> None:
    """Adds a DataFrame of pandas: its columns, and as labels their names and types, the index and the
    attributes."""
    columns = value.columns
    for at in range(len(columns)):
        _column(flat, _joined(name, column_name(str(columns[at]))), value.iloc[:, at])
    flat.texts(f"{name}@columns", list(columns))
    if not len(columns):
        flat.exactly(name, "rows", len(value))
    if not (
        _is_int64(columns)
        or (
            str(columns.dtype) in ("object", "str", "string")
            and all(isinstance(c, (str, tuple)) for c in columns)
        )
    ):
        flat.label(name, "columns.type", repr(columns.dtype))
    # The number of names distinguishes several levels from one level with tuples as names.
    if any(n is not None for n in columns.names) or columns.nlevels > 1:
        flat.texts(f"{name}@columns.names", list(columns.names))
    flat.texts(f"{name}@types", [str(t) for t in value.dtypes])
    _index(flat, name, value.index)
    _attributes(flat, name, value.attrs)


def _polars_column(flat: _Flat, name: str, series: Any) -> None:
    kind = series.dtype
    missing = np.asarray(series.is_null().to_numpy(), np.bool_)
    if kind.is_numeric() and "Decimal" not in str(kind):
        flat.add(name, (series.fill_null(0) if missing.any() else series).to_numpy())
        if missing.any():
            flat.add(f"{name}{MASK}", missing)
        return
    flat.texts(name, series.to_list())


def _polars_series(flat: _Flat, name: str, value: Any) -> None:
    _polars_column(flat, name, value)
    flat.label(name, "type", str(value.dtype))
    if value.name:
        flat.label(name, "name", value.name)


def _polars_frame(flat: _Flat, name: str, value: Any) -> None:
    for series in value.get_columns():
        _polars_column(flat, _joined(name, column_name(series.name)), series)
    flat.texts(f"{name}@columns", list(value.columns))
    flat.texts(f"{name}@types", [str(t) for t in value.dtypes])


def _arrow(flat: _Flat, name: str, value: Any) -> None:
    """Adds a table or a record batch of pyarrow."""
    from ..formats.arrow import arrow_columns, arrow_metadata, arrow_type

    pa = sys.modules["pyarrow"]
    for column, array in arrow_columns(value, name):
        flat.walk(_joined(name, column), array)
    schema = value.schema
    flat.texts(f"{name}@columns", list(schema.names))
    if not schema.names:
        flat.exactly(name, "rows", value.num_rows)
    flat.texts(f"{name}@types", [arrow_type(field, pa) for field in schema])
    for column, key, text in arrow_metadata(schema, pa):
        flat.exactly(_joined(name, column_name(column)) if column else name, f"metadata.{key}", text)


def _arrow_array(flat: _Flat, name: str, value: Any) -> None:
    """Adds an array of pyarrow, like the column of a table. A plain numeric type needs no label."""
    _arrow_column(flat, name, value)


def _arrow_scalar(flat: _Flat, name: str, value: Any) -> None:
    """Adds a scalar of pyarrow, like an array of one element but with shape ()."""
    _arrow_column(flat, name, sys.modules["pyarrow"].repeat(value, 1), is_scalar=True)


def _arrow_column(flat: _Flat, name: str, value: Any, is_scalar: bool = False) -> None:
    from ..formats.arrow import arrow_columns, arrow_metadata, arrow_type

    pa = sys.modules["pyarrow"]
    table = pa.table({"": value})
    for column, array in arrow_columns(table, name):
        is_value = column in ("", MASK)
        flat.walk(name + column, np.asarray(array).reshape(()) if is_scalar and is_value else array)
    kind = value.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        flat.label(name, "type", arrow_type(table.schema.field(0), pa))
    for member, key, text in arrow_metadata(table.schema, pa):
        flat.exactly(name + member, f"metadata.{key}", text)


def _arrow_tensor(flat: _Flat, name: str, value: Any) -> None:
    flat.walk(name, value.to_numpy())
    if any(value.dim_names):
        flat.texts(f"{name}@dims", value.dim_names)


def _scipy_sparse(flat: _Flat, name: str, value: Any) -> None:
    """Adds a sparse array of SciPy as sorted indices and values, whatever its storage, without explicit
    zeros."""
    made = value.tocoo(copy=True)
    made.sum_duplicates()
    made.eliminate_zeros()
    places = np.stack([np.asarray(c, np.int64) for c in getattr(made, "coords", (made.row, made.col))])
    order = np.lexsort(places[::-1])
    _sparse(flat, name, np.ascontiguousarray(places[:, order]), made.data[order], made.shape)


def _pydata_sparse(flat: _Flat, name: str, value: Any) -> None:
    made = value.asformat("coo") if hasattr(value, "asformat") else value
    places = np.asarray(made.coords, np.int64)
    order = np.lexsort(places[::-1])
    _sparse(flat, name, np.ascontiguousarray(places[:, order]), np.asarray(made.data)[order], made.shape)
    flat.label(name, "fill", np.asarray(made.fill_value))


def _sparse(flat: _Flat, name: str, places: object, values: object, shape: Iterable[int]) -> None:
    flat.label(name, "indices", places)
    flat.walk(_joined(name, "values"), values)
    flat.label(name, "shape", np.array(tuple(shape), np.int64))


def _tensor(flat: _Flat, name: str, value: Any) -> None:
    """Adds a tensor of PyTorch; a sparse one as its indices, values, shape and layout."""
    torch = sys.modules["torch"]
    if value.layout is not torch.strided:
        tensor = value.detach()
        if tensor.layout is torch.sparse_coo:
            tensor = tensor.coalesce()
            _sparse(flat, name, tensor.indices(), tensor.values(), tensor.shape)
            flat.exactly(name, "dense", tensor.dense_dim())
            return
        by_row = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
        if by_row or tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
            parts = ("crow_indices", "col_indices") if by_row else ("ccol_indices", "row_indices")
            for label, part in zip(("compressed", "plain"), parts, strict=True):
                flat.label(name, label, getattr(tensor, part)())
            flat.walk(_joined(name, "values"), tensor.values())
            flat.label(name, "shape", np.array(tuple(tensor.shape), np.int64))
            flat.label(name, "layout", str(tensor.layout))
            return
        raise _cannot(name, f"a tensor of the layout {tensor.layout} cannot be compared")
    if value.is_quantized or getattr(value, "is_nested", False):
        raise _cannot(name, "quantised and nested tensors cannot be compared")
    flat.add(name, value)
    if getattr(value, "has_names", bool)():
        flat.texts(f"{name}@dims", list(value.names))


_EMPTY = {_mapping: "mapping", _sequence: "list", _other_sequence: "list", _numpy: "struct"}
# By which other objects give numpy an array as it is.
_GIVE_ARRAYS = (
    "__array__",
    "__array_interface__",
    "__array_struct__",
    "__cuda_array_interface__",
    "__dlpack__",
)
# (package, name) of a class, which may also be a base of an object's class.
_KNOWN: dict[tuple[str, str], Callable[[_Flat, str, Any], None]] = {
    ("xarray", "DataArray"): _data_array,
    ("xarray", "Variable"): lambda flat, name, value: _data_array(flat, name, value, coords=False),
    ("xarray", "Dataset"): _dataset,
    ("xarray", "DataTree"): _data_tree,
    ("pandas", "DataFrame"): _frame,
    ("pandas", "Series"): _series,
    ("pandas", "Index"): _pandas_index,
    ("pandas", "ExtensionArray"): _array_of_pandas,
    ("polars", "DataFrame"): _polars_frame,
    ("polars", "Series"): _polars_series,
    ("pyarrow", "Table"): _arrow,
    ("pyarrow", "RecordBatch"): _arrow,
    ("pyarrow", "Array"): _arrow_array,
    ("pyarrow", "ChunkedArray"): _arrow_array,
    ("pyarrow", "Tensor"): _arrow_tensor,
    ("pyarrow", "Scalar"): _arrow_scalar,
    ("pyarrow", "Buffer"): _bytes,
    ("builtins", "bytearray"): _bytes,
    ("builtins", "memoryview"): _bytes,
    ("mmap", "mmap"): _bytes,
    ("numpy", "poly1d"): _polynomial,
    ("pint", "PlainQuantity"): _quantity,
    ("pint", "Quantity"): _quantity,
    ("astropy", "Quantity"): _quantity,
    ("unyt", "unyt_array"): _quantity,
    ("scipy", "_spbase"): _scipy_sparse,
    ("scipy", "spmatrix"): _scipy_sparse,
    ("sparse", "SparseArray"): _pydata_sparse,
    ("torch", "Tensor"): _tensor,
    ("torch", "Module"): _state,
    ("torch", "Optimizer"): _state,
    ("torch", "LRScheduler"): _state,
    # of PyTorch 1, and the next one is not a subclass of it there
    ("torch", "_LRScheduler"): _state,
    ("torch", "ReduceLROnPlateau"): _state,
}


def _class_of(value: object) -> type:
    return type(value)


@functools.lru_cache(maxsize=4096)
def _opener(kind: type) -> Callable[[_Flat, str, Any], None] | None:
    """The function that adds the entries of objects of a type.

    None for arrays and for objects that numpy converts.
    """
    if kind in (float, complex, bool):
        return None
    for base in kind.__mro__:
        known = _KNOWN.get((base.__module__.split(".")[0], base.__name__))
        if known is not None:
            return known
    if issubclass(kind, np.ma.MaskedArray):
        return _masked
    if issubclass(kind, np.ndarray):
        return None if kind is Texts else _numpy
    if issubclass(kind, np.void):
        return lambda flat, name, value: _numpy(flat, name, np.asarray(value))
    if issubclass(kind, (str, bytes, type(None))):
        return _text
    if issubclass(kind, int) and kind is not bool:
        return _integer
    if issubclass(kind, Mapping):
        return _mapping
    if issubclass(kind, (list, tuple)):
        return _sequence
    if dataclasses.is_dataclass(kind) and not hasattr(kind, "__array__"):
        return _data_class
    # Dates, decimals.
    if repr_is_complete(kind) and kind is not range and not hasattr(kind, "__array__"):
        return _text
    if issubclass(kind, UserString):
        return lambda flat, name, value: _text(flat, name, str(value))
    # numpy takes any class with these two methods for a sequence.
    is_sequence = issubclass(kind, Sequence) or (hasattr(kind, "__len__") and hasattr(kind, "__getitem__"))
    if is_sequence and kind is not range and not any(hasattr(kind, name) for name in _GIVE_ARRAYS):
        return _other_sequence
    return None


@functools.lru_cache(maxsize=4096)
def _own_class(kind: type) -> str | None:
    """The name of a type that must be compared; None if it does not matter.

    It matters for subclasses of dict, list and tuple, for integer enumerations, and for sparse matrices of
    SciPy. It does not matter for other containers, so that an object is the same after it was saved and
    loaded. Named tuples are compared by the names of their entries.
    """
    if any(base.__name__ == "spmatrix" and base.__module__.split(".")[0] == "scipy" for base in kind.__mro__):
        return "matrix"  # the operator * means another product than for sparse arrays
    if kind in (dict, OrderedDict, list, tuple, int) or hasattr(kind, "_fields"):
        return None
    if issubclass(kind, (dict, list, tuple)) or (issubclass(kind, int) and issubclass(kind, enum.Enum)):
        return f"{kind.__module__}.{kind.__qualname__}"
    return None


def is_container(what: Any) -> bool:
    """Whether an object holds arrays with names: a mapping, a model, a table, a list of arrays."""
    opened = _opener(_class_of(what))
    return opened in (_mapping, _state, _dataset, _data_tree, _frame, _polars_frame, _arrow, _data_class) or (
        (opened is _sequence and _array_of(what) is None)
        or (opened is _other_sequence and not _has_buffer(what) and not _is_array(what))
    )


def _is_array(what: Sequence) -> bool:
    try:
        return _array_of(_listed(what)) is not None
    except MemoryError:
        raise
    except Exception:  # by its own methods: the walk says what
        return False


def state_of(what: Any) -> Any:
    """The content of a model or an optimizer as a mapping; any other object unchanged."""
    return what.state_dict() if _opener(_class_of(what)) is _state else what


def flattened(
    name: str,
    what: object,
    where: str | None = None,
    as_given: bool = False,
    problems: list[tuple[str, TwinrunError]] | None = None,
) -> dict[str, object]:
    """{name: array} of any object.

    name: the name of the object, with which all names begin; '' for a container. where: names the object in
    messages. Plain arrays are not copied. as_given: objects that are no arrays of numpy, but that it
    converts, stay as they are, so that they can be written to. problems: gets the names of parts that cannot
    be compared, and why.

    Raises TwinrunError if two parts have the same name, or a container contains itself; and if a part cannot
    be compared, unless `problems` is given.
    """
    flat = _Flat(where, as_given, problems)
    flat.walk(name, what)
    return flat.entries


def named_arrays(what: object, where: str | None = None) -> dict[str, object]:
    """{name: array} of a container, see `flattened`.

    Raises TwinrunError for objects that are not containers.
    """
    if not is_container(what):
        raise TwinrunError(
            "fields must be a mapping {name: array}, or a container of arrays",
            where=where,
            fix="write {'x': x}",
        )
    return flattened("", what, where)
