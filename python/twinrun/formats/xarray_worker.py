"""How the process that reads files with xarray (see `worker`) asks it."""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

_DECODERS = ("mask_and_scale", "decode_times", "decode_timedelta", "decode_coords", "concat_characters")

# Backends of xarray itself whose files may have groups. Others say what they show.
_WITH_GROUPS = frozenset({"h5netcdf", "netcdf4", "zarr"})

_open: list[Any] = []  # datasets of the file that was opened last


def closed() -> None:
    """Closes the file: HDF5 locks a file that is open."""
    while _open:
        _open.pop().close()


def opened(
    request: dict[str, Any], report_progress: Callable[[], None]
) -> tuple[dict[str, Any], Callable[[dict[str, Any]], Any]]:
    """The groups of a file with their variables, and a function that reads from them.

    A request names group and variable, and has a `box` of numbers, or `first` and a number of `texts`.
    """
    import numpy as np
    import xarray

    groups, notes = _groups(xarray, request["path"], request["engine"])
    if "numcodecs" in sys.modules:  # the engine reads Zarr, and decodes chunks when they are read
        _guard_numcodecs()
    _open.extend(groups.values())
    skipped: list[tuple[str, str]] = []
    found: dict[str, Any] = {}
    for group, dataset in groups.items():
        variables = []
        for name, variable in dataset.variables.items():
            report_progress()
            label = f"{group}/{name}" if group else str(name)
            variables.append(
                {
                    "name": str(name),
                    "type": _type(variable.dtype),
                    "shape": list(variable.shape),
                    "dimensions": [str(d) for d in variable.dims],
                    "chunks": _chunks(variable),
                    "attributes": _attributes(np, label, variable.attrs, skipped),
                }
            )
        found[group] = {
            "attributes": _attributes(np, group, dataset.attrs, skipped),
            "variables": variables,
        }
    names = {group: {str(n): v for n, v in dataset.variables.items()} for group, dataset in groups.items()}

    def read(request: dict[str, Any]) -> Any:
        variable = names[request["group"]][request["name"]]
        if "texts" in request:
            return {"values": _texts(np, variable, request["first"], request["texts"])}
        part = np.asarray(variable[tuple(slice(*ends) for ends in request["box"])].values)
        if part.dtype.kind in "mM":
            part = part.view("i8")
        return np.ascontiguousarray(part).astype(part.dtype.newbyteorder("="), copy=False).tobytes()

    return {"groups": found, "skipped": skipped, "notes": notes}, read


def _texts(np: Any, variable: Any, first: int, count: int) -> list[str]:
    """Elements of the flattened variable as texts. Whole rows of its first axis are read."""
    inner = int(np.prod(variable.shape[1:], dtype=object))
    start, stop = first // inner, -(-(first + count) // inner)
    rows = np.asarray((variable[start:stop] if variable.ndim else variable).values).reshape(-1)
    skip = first - start * inner if variable.ndim else first
    chosen = rows[skip : skip + count]
    if chosen.dtype.kind == "U" and chosen.dtype.itemsize:  # NumPy itself would make another character of it
        points = np.ascontiguousarray(chosen).view(chosen.dtype.str[0] + "u4")
        if points.size and int(points.max()) > sys.maxunicode:
            raise ValueError(f"a text with the character {int(points.max()):#x}, which Unicode does not have")
    return [
        value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
        for value in chosen.tolist()
    ]


def _guard_numcodecs() -> None:
    """Calls `compressed.guard_numcodecs`. The process has no package to import it from."""
    place = os.path.join(os.path.dirname(__file__), "compressed.py")
    spec = importlib.util.spec_from_file_location("compressed", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.guard_numcodecs()


def _groups(xarray: Any, path: str, engine: str | None) -> tuple[dict[str, Any], list[str]]:
    """The datasets of all groups by their path; '' is the root."""
    known = xarray.backends.list_engines()
    if engine is None:
        # As xarray does it. The same backend then shows all groups, and not the root alone.
        engine = next((name for name, each in known.items() if _takes(each, path)), None)
    chosen = known.get(engine)
    if chosen is None:
        why = "no engine of xarray opens it" if engine is None else f"xarray has no engine {engine!r:.40}"
        raise ValueError(f"{why}; it has {' '.join(known)}")
    opener = getattr(chosen, "open_groups_as_dict", None)
    if opener is not None and getattr(chosen, "supports_groups", False):
        # xarray.open_groups decodes whatever decode_cf says (2025).
        takes = inspect.signature(opener).parameters
        plain = {word: False for word in _DECODERS if word in takes}
        if "mask_and_scale" in plain:
            return {name.strip("/"): dataset for name, dataset in opener(path, **plain).items()}, []
    if engine in _WITH_GROUPS:
        # Other groups would be left out, and files that differ there would be the same.
        raise ValueError(
            f"engine {engine} of this xarray ({getattr(xarray, '__version__', '')}) shows the root group alone; "
            "run: pip install 'xarray>=2024.10'"
        )
    how: dict[str, Any] = {"engine": engine, "decode_cf": False, "cache": False}
    if "create_default_indexes" in inspect.signature(xarray.open_dataset).parameters:
        how["create_default_indexes"] = False  # an index would be read at once
    if "indexpath" in inspect.signature(chosen.open_dataset).parameters:
        how["indexpath"] = ""  # cfgrib writes a file beside the user's otherwise
    dataset = xarray.open_dataset(path, **how)
    if engine == "cfgrib":
        dataset.attrs.pop("history", None)  # when it was read, and from where
    note = "xarray shows one group of it: others, if there are any, are not compared"
    return {"": dataset}, [note]


def _takes(backend: Any, path: str) -> bool:
    try:
        return bool(backend.guess_can_open(path))
    except Exception:  # a backend of somebody
        return False


def _type(dtype: Any) -> str:
    return "text" if dtype.kind in "SUOT" else str(dtype.str)


def _chunks(variable: Any) -> list[int] | None:
    chunks = variable.encoding.get("chunksizes") or variable.encoding.get("preferred_chunks")
    if isinstance(chunks, dict):
        chunks = [chunks.get(d, n) for d, n in zip(variable.dims, variable.shape, strict=True)]
    if chunks is None or len(chunks) != len(variable.shape) or not all(isinstance(n, int) for n in chunks):
        return None
    return list(chunks)


def _attributes(np: Any, owner: str, attributes: Any, skipped: list[tuple[str, str]]) -> dict[str, Any]:
    """{name: [type, value]} of attributes. What is neither numbers nor text is left out, and said."""
    found: dict[str, Any] = {}
    for name, value in attributes.items():
        if isinstance(value, str):
            found[str(name)] = ["text", value]
            continue
        if isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value):
            found[str(name)] = ["text", list(value)]
            continue
        try:
            array = np.asarray(value)
        except (TypeError, ValueError):
            array = np.array(None)
        if array.dtype.kind in "fiub":
            found[str(name)] = [array.dtype.newbyteorder("=").str, array.tolist()]
        elif array.dtype.kind in "SU":
            found[str(name)] = ["text", [str(v) for v in array.reshape(-1).tolist()]]
        else:
            skipped.append((f"{owner}@{name}", f"an attribute of the type {type(value).__name__}"))
    return found
