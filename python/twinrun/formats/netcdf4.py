"""NetCDF-4 on top of HDF5: dimensions without values become facts instead of fields, and packed values get a
note."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import exodus
from .attributes import MEANING, note_meaning
from .model import FileContent

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

# The NetCDF library writes this as NAME of a dimension that has no variable of its own.
_NO_VARIABLE = b"This is a netCDF dimension but not a netCDF variable."

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
    """Turns dimensions without values into facts, and notes fill values, scales and offsets."""
    entries = []
    for name in list(content.fields):
        if "@" in name:
            continue
        item = file.get(name)
        if not isinstance(item, h5py.Dataset):
            continue  # a member of a compound type
        attributes = item.attrs
        if _text(attributes.get("CLASS")) == b"DIMENSION_SCALE" and _text(attributes.get("NAME")).startswith(
            _NO_VARIABLE
        ):
            del content.fields[name]
            content.say(name, "(dimension)", list(item.shape))
            continue
        found = {}
        for word in MEANING:
            value = attributes.get(word)
            if value is not None and np.size(value) == 1 and np.asarray(value).dtype.kind in "fiu":
                found[word] = np.asarray(value).reshape(-1)[0].item()
        if found:
            entries.append((name, found))
    note_meaning(content, entries)
    if exodus.is_exodus(file.attrs, content.fields):
        exodus.apply(content, lambda name: _rows(h5py, file, name))


def _rows(h5py: Any, file: Any, name: str) -> list[str]:
    """The texts of a variable of characters; [] if there is none, or it is too long for names."""
    item = file.get(name)
    if not isinstance(item, h5py.Dataset) or item.dtype.kind != "S" or not 0 < item.size <= _MOST_CHARACTERS:
        return []
    rows = item[()].reshape(item.shape[0], -1)
    return [row.tobytes().decode("utf-8", "backslashreplace") for row in rows]
