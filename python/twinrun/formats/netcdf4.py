"""NetCDF-4 on top of HDF5: dimensions without values become facts instead of fields, and packed values get a
note.

Names and sizes of dimensions are said a second time, as NetCDF classic and Zarr say them, so that files of
two formats compare by them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from . import exodus
from .attributes import MEANING, note_meaning
from .facts import DIMENSIONS
from .hdf5_types import name_of_target
from .model import FileContent, renamed

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

# The NetCDF library writes this as NAME of a dimension that has no variable of its own.
_NO_VARIABLE = b"This is a netCDF dimension but not a netCDF variable."

# Attributes by which the NetCDF library, or HDF5's dimension scales, keep their books. The NetCDF
# library lists none of them. The first ones are of the file, the others of variables.
_STRICT = "_nc3_strict"
_BOOKS_OF_FILE, _BOOKS = frozenset({"_NCProperties"}), frozenset({"DIMENSION_LIST", "DIMENSION_LABELS"})
_BOOKS_OF_SCALES = frozenset({"CLASS", "NAME"})

# The library stores a variable so whose name is that of a dimension, which it is no coordinate of.
_NO_COORDINATE = "_nc4_non_coord_"

_MOST_CHARACTERS = 1 << 24


def recognises(file: Any) -> bool:
    """Whether an HDF5 file is NetCDF-4: it has the library's mark, or a dimension scale among its first 1000
    objects."""
    return "_NCProperties" in file.attrs or any(
        _text(getattr(item, "attrs", {}).get("CLASS")) == b"DIMENSION_SCALE" for item in _datasets(file)
    )


def _datasets(file: Any) -> list[Any]:
    found = []
    for name in list(file)[:1000]:
        try:
            found.append(file[name])
        except (KeyError, OSError, RuntimeError):
            continue  # a link that leads nowhere
    return found


def _text(value: object) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    return bytes(value) if isinstance(value, (bytes, np.bytes_)) else b""


def apply(h5py: Any, file: Any, content: FileContent) -> None:
    """Turns dimensions without values into facts, says names and sizes of dimensions, and notes fill values,
    scales and offsets."""
    content.model = "netcdf"
    # It says by which rules the file was written, as the format of a classic file does.
    content.facts.pop(f"@{_STRICT}", None)
    entries = []
    variables: dict[str, Any] = {}
    scales: dict[str, Any] = {}
    for name in list(content.fields):
        if "@" in name:
            continue
        item = file.get(name)
        if not isinstance(item, h5py.Dataset):
            continue  # a member of a compound type
        if item.shape is None:
            continue  # the library has no variables without a shape
        attributes = item.attrs
        if _text(attributes.get("CLASS")) == b"DIMENSION_SCALE":
            scales[name] = item
            if _text(attributes.get("NAME")).startswith(_NO_VARIABLE):
                del content.fields[name]
                content.say(name, "(dimension)", list(item.shape))
                continue
        variables[name] = item
        content.fields[name].characters = item.dtype == np.dtype("S1")
        found = {}
        for word in MEANING:
            value = attributes.get(word)
            if value is not None and np.size(value) == 1 and np.asarray(value).dtype.kind in "fiu":
                found[word] = np.asarray(value).reshape(-1)[0].item()
        if found:
            entries.append((name, found))
    note_meaning(content, entries)
    _say_dimensions(h5py, file, content, variables, scales)
    _mark_books(content, scales)
    _name_as_the_library(content)
    if exodus.is_exodus(file.attrs, content.fields):
        exodus.apply(content, lambda name: _rows(h5py, file, name))


def say_dimensions_of_groups(h5py: Any, file: Any, content: FileContent) -> None:
    """Says the dimensions of an HDF5 file that is no NetCDF-4, and has dimension scales in its groups."""
    if not any(fact.name == "CLASS" and "DIMENSION_SCALE" in fact.text for fact in content.facts.values()):
        return
    items = {name: file.get(name) for name in content.fields if "@" not in name}
    datasets = {
        name: item
        for name, item in items.items()
        if isinstance(item, h5py.Dataset) and item.shape is not None
    }
    scales = {
        name: item for name, item in datasets.items() if _text(item.attrs.get("CLASS")) == b"DIMENSION_SCALE"
    }
    _say_dimensions(h5py, file, content, datasets, scales, all_between=True)
    _mark_books(content, scales)


def _say_dimensions(
    h5py: Any,
    file: Any,
    content: FileContent,
    variables: dict[str, Any],
    scales: dict[str, Any],
    all_between: bool = False,
) -> None:
    """Adds the names of the dimensions of each variable, and the sizes of dimensions.

    Files of this format compare by the scales themselves. So these facts count between formats, except those
    of variables that have no list of scales: all_between for a file that is no NetCDF-4.
    """
    for name, scale in scales.items():
        group, _, own = name.rpartition("/")
        size = "unlimited" if scale.maxshape[:1] == (None,) else int((*scale.shape, 1)[0])
        content.say(group, f"(dimension {own})", size, between=True)
    known: dict[int, bytes] = {}
    ids: dict[int, str] = {}
    for name, scale in scales.items():
        number = _attribute(scale, "_Netcdf4Dimid")
        if number is not None and np.size(number) == 1 and np.asarray(number).dtype.kind in "iu":
            ids[int(np.asarray(number).reshape(-1)[0])] = name
    for name, item in variables.items():
        listed = _listed(h5py, file, item, known)
        axes = listed or _by_number(item, ids) or ([name] if name in scales and item.ndim < 2 else None)
        if axes is not None or not (item.ndim or all_between):
            names = [_seen_from(name, axis, scales) for axis in axes or ()]
            # A scale of several axes has no list of scales: its numbers alone tell them apart.
            is_between = all_between or listed is not None or item.ndim < 2
            content.say(name, DIMENSIONS, names, between=is_between)


def _attribute(item: Any, name: str) -> Any:
    """The value of an attribute; None where there is none, or h5py cannot read it."""
    try:
        return item.attrs.get(name)
    except (TypeError, ValueError, OSError, KeyError, RuntimeError):
        return None


def _listed(h5py: Any, file: Any, item: Any, known: dict[int, bytes]) -> list[str] | None:
    """The first scale of each axis; None if an axis has none. known: see `name_of_target`."""
    found = _attribute(item, "DIMENSION_LIST")
    if found is None or np.shape(found) != (item.ndim,):
        return None
    axes = []
    for entry in found:
        first = entry[0] if isinstance(entry, np.ndarray) and entry.size else None
        if not isinstance(first, h5py.Reference) or not first:
            return None
        name = name_of_target(h5py, file, first, known)
        axes.append(name.decode("utf-8", "backslashreplace").lstrip("/"))
    return axes


def _by_number(item: Any, ids: dict[int, str]) -> list[str] | None:
    """The dimensions of a variable by the numbers that the NetCDF library gave them."""
    found = _attribute(item, "_Netcdf4Coordinates")
    if found is None or np.shape(found) != (item.ndim,) or np.asarray(found).dtype.kind not in "iu":
        return None
    names = [ids.get(int(number)) for number in found]
    return None if None in names else [name for name in names if name is not None]


def _seen_from(variable: str, dimension: str, scales: dict[str, Any]) -> str:
    """The name of a dimension without its groups, if that names it from the group of a variable.

    As in the NetCDF library, the group that is nearest has it. Otherwise the path from the root.
    """
    group, own = variable.rpartition("/")[0], dimension.rpartition("/")[2]
    while True:
        here = f"{group}/{own}" if group else own
        if here in scales:
            return own if here == dimension else f"/{dimension}"
        if not group:
            return f"/{dimension}"
        group = group.rpartition("/")[0]


def _name_as_the_library(content: FileContent) -> None:
    """Gives variables the names that the NetCDF library shows, with all that is said of them."""
    taken = set(content.fields)

    def shown(name: str) -> str:
        # Also of a member of a compound variable, and of an attribute.
        path, mark, attribute = name.partition("@")
        group, slash, own = path.rpartition("/")
        new = group + slash + own.removeprefix(_NO_COORDINATE)
        return name if new in taken else new + mark + attribute

    if not any(shown(name) != name for name in (*content.fields, *(f.owner for f in content.facts.values()))):
        return
    for name in list(content.fields):
        if (new := shown(name)) != name:
            content.add(renamed(content.fields.pop(name), new))
    for label, fact in list(content.facts.items()):
        if (owner := shown(fact.owner)) != fact.owner:
            del content.facts[label]
            content.add_fact(replace(fact, owner=owner))
    content.skipped[:] = [(shown(name), why) for name, why in content.skipped]


def _mark_books(content: FileContent, scales: dict[str, Any]) -> None:
    """Marks attributes that are no attributes of the NetCDF library's."""
    for label, fact in content.facts.items():
        if (
            fact.name in _BOOKS
            or (fact.name in _BOOKS_OF_FILE and not fact.owner)
            or (fact.name in _BOOKS_OF_SCALES and fact.owner in scales)
            # Classic files have characters too, and no other texts.
            or (
                fact.name == "(type)"
                and fact.owner in content.fields
                and content.fields[fact.owner].characters
            )
        ):
            content.facts[label] = replace(fact, own=True)


def _rows(h5py: Any, file: Any, name: str) -> list[str]:
    """The texts of a variable of characters; [] if there is none, or it is too long for names."""
    item = file.get(name)
    if not isinstance(item, h5py.Dataset) or item.dtype.kind != "S" or not 0 < item.size <= _MOST_CHARACTERS:
        return []
    rows = item[()].reshape(item.shape[0], -1)
    return [row.tobytes().decode("utf-8", "backslashreplace") for row in rows]
