"""How the process that reads ADIOS2 files (see `worker`) asks the adios2 package, which may crash or hang on
truncated files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MOST_STEPS = 1_000_000
MOST_BLOCKS = 100_000  # of a variable in one step
DTYPES = {
    "int8_t": "i1", "int16_t": "i2", "int32_t": "i4", "int64_t": "i8", "uint8_t": "u1", "uint16_t": "u2",
    "uint32_t": "u4", "uint64_t": "u8", "float": "f4", "double": "f8", "float complex": "c8",
    "double complex": "c16", "char": "i1",
}  # fmt: skip


def steps(package: Any, path: str, report_progress: Callable[[], None]) -> list[list[dict[str, Any]]]:
    """The variables of every step. A variable may be missing in some steps, and have another shape in each.

    Entries: name; kind, the type in ADIOS2; at, the number of earlier steps that have the variable; shape,
    None for a local array; blocks, the shapes of its blocks (for a global array only the first); single,
    whether it is a single value; text, the value of a single text.
    """
    seen: dict[str, int] = {}
    result: list[list[dict[str, Any]]] = []
    io = package.Adios().declare_io("steps")
    # Otherwise the package waits an hour for an unfinished file.
    io.set_parameter("OpenTimeoutSecs", "0")
    with package.Stream(io, path, "r") as stream:
        for _ in stream.steps(timeout=0.0):
            found = []
            for name, facts in stream.available_variables().items():
                report_progress()
                at = seen[name] = seen.get(name, -1) + 1
                entry = {
                    "name": name,
                    "kind": facts["Type"],
                    "at": at,
                    "shape": [],
                    "blocks": [],
                    "single": True,
                }
                found.append(entry)
                variable = stream.inquire_variable(name)
                if facts["Type"] == "string":
                    entry["single"] = bool(variable.single_value())
                    if entry["single"]:
                        entry["text"] = str(stream.read(name))
                    continue
                entry["single"] = bool(variable.single_value())
                entry["shape"] = [int(n) for n in variable.shape()]
                # The shapes of blocks: for a global array how to read it, for a local array the
                # shapes of its fields.
                of_one = variable.shape_id() != package.ShapeID.LocalArray
                if not entry["single"]:
                    entry["blocks"] = _blocks(stream, name, variable, 1 if of_one else MOST_BLOCKS + 1)
                if not of_one:
                    entry["shape"] = None
                if len(entry["blocks"]) > MOST_BLOCKS:
                    raise ValueError(f"{name!r:.80}: more than {MOST_BLOCKS} blocks")
            report_progress()
            result.append(found)
            if len(result) > MOST_STEPS:
                raise ValueError(f"more than {MOST_STEPS} steps")
    return result


def _blocks(stream: Any, name: str, variable: Any, most: int) -> list[list[int]]:
    """The shapes of the first `most` blocks of a variable in the step under way."""
    try:
        blocks = stream.engine.blocks_info(name, stream.current_step())
    except UnicodeDecodeError:
        # The package takes the largest number of uint8 for a letter, which those above 127 are not.
        return _blocks_one_by_one(variable, most)
    return [[int(n) for n in block["Count"].split(",") if n.strip()] for block in list(blocks)[:most]]


def _blocks_one_by_one(variable: Any, most: int) -> list[list[int]]:
    found: list[list[int]] = []
    while len(found) < most:
        try:
            variable.set_block_selection(len(found))
            found.append([int(n) for n in variable.count()])
        except ValueError as e:
            if "out of bounds" not in str(e):
                raise
            break
    return found


def attributes(file: Any) -> dict[str, Any]:
    """{name: [type, value]} of the attributes. A value is a list of numbers, a text or a list of texts."""
    result: dict[str, Any] = {}
    for name, facts in sorted(file.available_attributes().items()):
        kind = facts["Type"]
        if kind == "string":
            result[name] = [kind, file.read_attribute_string(name)]
        else:
            value = file.read_attribute(name)
            pairs = kind.endswith("complex")  # JSON has no complex numbers
            result[name] = [kind, value.view(value.real.dtype).tolist() if pairs else value.tolist()]
    return result


def read(file: Any, request: dict[str, Any]) -> bytes:
    """The elements of a box of a variable in one step, in C order and native byte order."""
    import numpy as np

    # Into our own buffer, because the package's read() does not support every type that it writes.
    variable = file.inquire_variable(request["name"])
    if variable is None or variable.type() != request["kind"]:
        raise ValueError(f"no variable {request['name']!r:.80} of type {request['kind']}")
    variable.set_step_selection([request["at"], 1])
    if request["block"] is not None:
        variable.set_block_selection(request["block"])
    if request["count"] and not request["single"]:
        variable.set_selection([request["start"], request["count"]])
    part = np.empty(request["count"], DTYPES[request["kind"]])
    if variable.selection_size() != part.size:
        raise ValueError(f"the package selects {variable.selection_size()} elements instead of {part.size}")
    file.engine.get(variable, part)
    return part.tobytes()


_open: list[Any] = []


def closed() -> None:
    """Closes the data set."""
    while _open:
        _open.pop().close()


def opened(
    path: str, report_progress: Callable[[], None]
) -> tuple[dict[str, Any], Callable[[dict[str, Any]], bytes]]:
    """The steps and attributes of a data set, and a function that reads from it."""
    import adios2

    found = steps(adios2, path, report_progress)
    file = adios2.FileReader(path)
    _open.append(file)
    return {"steps": found, "attributes": attributes(file)}, lambda request: read(file, request)
