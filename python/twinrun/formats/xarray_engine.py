"""Whatever has a backend of xarray (an optional package): --format xarray --format-option engine=NAME.

So a format that twinrun does not know is compared where the user's xarray opens it. Variables of all groups
are fields, `group/variable`, with their numbers as stored (decode_cf=False), and attributes and dimensions
are facts. They are read in pieces, in a process of its own, because backends may crash, see
`worker_client`.

It is never detected: the formats that twinrun knows are read without xarray.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..errors import FormatError
from . import xarray_worker
from .attributes import MEANING, add_attribute, note_meaning
from .blocks import BandReader, Box
from .catalogue import is_zarr_store
from .element_types import ITEMSIZE, dtype_of, unit_of
from .facts import DIMENSIONS
from .model import Field, FileContent, Format, checked_shape, coded, decoded, flag
from .worker_client import PATIENCE, Worker, check_installed, seconds_of

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

_MOST_CHUNK = 1 << 24  # elements: larger chunks of a backend are read in parts


def open_with_xarray(
    path: str, engine: object = None, attributes: object = False, patience: object = PATIENCE
) -> FileContent:
    """Opens a file or folder with xarray.

    engine: the name of the backend; None lets xarray choose. attributes: if true, numeric attributes become
    fields `variable@attribute`, which may have tolerances; otherwise they are facts. patience: seconds
    without progress after which reading fails.

    Raises FormatError if xarray cannot open it, MissingPackage without xarray.
    """
    with_attributes = flag(attributes, "attributes", path)
    seconds = seconds_of(patience, path)
    if engine is not None and not isinstance(engine, str):
        raise FormatError(f"engine must be a name of a backend of xarray, not {engine!r:.40}", where=path)
    check_installed("xarray", "twinrun[xarray]", path)
    content = FileContent(path, "xarray")
    worker = Worker(path, xarray_worker.__file__, "xarray", seconds, again=True)
    content.on_close = worker.close
    try:
        facts = worker.open(engine=engine)
        content.skipped += [(name, why) for name, why in facts["skipped"]]
        content.notes += facts["notes"]
        meaning = []
        for group, found in facts["groups"].items():
            _add_attributes(content, group, found["attributes"], with_attributes)
            if group and not found["variables"]:
                content.say(group, "(group)", "empty")
            for variable in found["variables"]:
                name = f"{group}/{variable['name']}" if group else variable["name"]
                _add_variable(content, worker, group, name, variable)
                _add_attributes(content, name, variable["attributes"], with_attributes)
                content.say(name, DIMENSIONS, variable["dimensions"])
                values = {
                    w: _value(*variable["attributes"][w]) for w in MEANING if w in variable["attributes"]
                }
                meaning.append((name, {w: v for w, v in values.items() if np.size(v) == 1}))
        note_meaning(content, meaning)
    except BaseException:
        worker.close()
        raise
    return content


def _value(kind: str, value: Any) -> Any:
    """The value of an attribute: a text, or numbers of a type of NumPy."""
    if kind == "text":
        return value
    found = np.array(value, np.dtype(kind))
    return found[()] if found.ndim == 0 else found


def _add_attributes(content: FileContent, owner: str, attributes: dict[str, Any], as_fields: bool) -> None:
    for name, (kind, value) in attributes.items():
        add_attribute(content, owner, name, _value(kind, value), as_fields)


def _add_variable(content: FileContent, worker: Worker, group: str, name: str, facts: dict[str, Any]) -> None:
    path = content.path
    request = {"group": group, "name": facts["name"]}
    if facts["type"] == "text":
        shape = checked_shape(facts["shape"], 8, path, f"variable {name!r:.60}")

        def texts(first: int, count: int) -> list[object]:
            found, _ = worker.ask({**request, "first": first, "texts": count})
            return list(found["values"])

        content.add(coded(name, "text", shape, path, texts))
        return
    dtype = np.dtype(facts["type"])
    known = dtype_of(dtype)
    if known is None:
        why = f"elements of the type {dtype} are not supported"
        content.skipped.append((name, why))
        return
    code = known[0]
    shape = checked_shape(facts["shape"], ITEMSIZE[code], path, f"variable {name!r:.60}")
    count = math.prod(shape)
    if count == 0:
        content.add(Field(name, code, "little", shape, extents=(), unit=unit_of(dtype)))
        return
    native = np.dtype("i8") if dtype.kind in "mM" else dtype.newbyteorder("=")

    def read_box(box: Box) -> np.ndarray:
        ends = [[b.start, b.stop] for b in box]
        _, data = worker.ask({**request, "box": ends})
        return np.frombuffer(data, native).reshape([stop - start for start, stop in ends])

    chunks = tuple(max(1, min(c, n)) for c, n in zip(facts["chunks"] or [1] * len(shape), shape, strict=True))
    if math.prod(chunks) > _MOST_CHUNK:
        chunks = (1,) * len(shape)
    reader = BandReader(shape, chunks, native, read_box, worker.cache)
    read = decoded(name, code, count, path, reader.read)
    content.add(Field(name, code, "little", shape, read=read, unit=unit_of(dtype)))


def _never(path: str) -> bool:
    """xarray's formats are not detected."""
    return False


FORMAT = Format(
    "xarray",
    "what xarray opens, by option engine",
    open_with_xarray,
    claims=_never,
    is_folder=is_zarr_store,
    options=frozenset({"engine", "attributes", "patience"}),
    aside=frozenset({"patience"}),
    order=95,
)
