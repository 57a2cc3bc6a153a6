"""openPMD on top of HDF5: every iteration of a file is a step, and constant components are fields.

Source: https://github.com/openPMD/openPMD-standard, versions 1 and 2.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import Unsupported
from .attributes import constant
from .facts import Fact
from .files import reading
from .frames import Frame, add_frames
from .model import Field, FileContent, checked_shape

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

_MOST_OBJECTS = 1_000_000


def recognises(file: Any) -> bool:
    """Whether an HDF5 file has the attributes of openPMD."""
    return "openPMD" in file.attrs and "basePath" in file.attrs


def apply(h5py: Any, file: Any, content: FileContent) -> None:
    """Turns iterations into steps: `data/100/fields/E/x` becomes `fields/E/x` of step 100."""
    base = _text(file.attrs["basePath"])
    if "%T" not in base:  # variable-based encoding: the iteration has no group of its own
        content.notes.append("its basePath of openPMD has no iteration (%T): read as plain HDF5")
        return
    root = base.split("%T")[0].strip("/")
    group = file.get(root) if root else file
    if not isinstance(group, h5py.Group):
        content.notes.append("openPMD without an iteration")
        return
    above = root + "/" if root else ""
    iterations = sorted((name for name in group if name.isdecimal() and len(name) <= 18), key=int)
    particles = _text(file.attrs.get("particlesPath", "")).strip("/")
    inside: dict[str, list[Field]] = {name: [] for name in iterations}
    outside: dict[str, Field] = {}
    for name, field in content.fields.items():
        number, _, rest = name.removeprefix(above).partition("/")
        if name.startswith(above) and number in inside and rest:
            inside[number].append(replace(field, name=rest))
        else:
            outside[name] = field
    content.fields = outside
    facts: dict[str, list[Fact]] = {name: [] for name in iterations}
    for label, fact in list(content.facts.items()):
        number, _, rest = fact.owner.removeprefix(above).partition("/")
        if fact.owner.startswith(above) and number in facts:
            facts[number].append(replace(content.facts.pop(label), owner=rest))
    frames = []
    for name in iterations:
        with reading(content.path, f"iteration {name}"):
            iteration = group[name]
            if not isinstance(iteration, h5py.Group):
                continue
            frame = Frame(int(name), inside[name], facts=facts[name])
            constants = _constants(h5py, iteration, content, frame)
            frame.fields += constants
            of_fields = {f"{field.name}@{word}" for field in constants for word in ("value", "shape")}
            frame.facts = [fact for fact in frame.facts if fact.label not in of_fields]
            _group(frame.fields, particles)
            time = iteration.attrs.get("time")
            frame.time = float(np.asarray(time)) if time is not None else None
            frames.append(frame)
    add_frames(content, frames)


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _constants(h5py: Any, iteration: Any, content: FileContent, frame: Frame) -> list[Field]:
    """The constant components of an iteration: groups with attributes `value` and `shape` instead of
    datasets."""
    found: list[Field] = []
    seen = 0

    def visit(name: str, item: Any) -> None:
        nonlocal seen
        seen += 1
        if seen > _MOST_OBJECTS:
            raise Unsupported(f"more than {_MOST_OBJECTS} objects", where=content.path)
        if not isinstance(item, h5py.Group) or "value" not in item.attrs or "shape" not in item.attrs:
            return
        value = np.asarray(item.attrs["value"])
        sizes = np.atleast_1d(item.attrs["shape"]).tolist()
        shape = checked_shape(sizes, value.dtype.itemsize, content.path, f"component {name!r:.80}")
        if value.size != 1:
            frame.skipped.append((name, "a constant component of several values"))
            return
        field = constant(name, value.reshape(-1)[0], shape, content.path)
        if field is None:
            frame.skipped.append((name, f"a constant of type {value.dtype} is not supported"))
        else:
            found.append(field)

    iteration.visititems(visit)
    return found


def _group(fields: list[Field], particles: str) -> None:
    """Sets the group of the records of each particle species, and its `id` as their key."""
    names = {field.name for field in fields}
    for field in fields:
        parts = field.name.split("/")
        if particles and len(parts) > 2 and parts[0] == particles and parts[2] != "particlePatches":
            field.group = "/".join(parts[:2])
            key = field.group + "/id"
            field.key = key if key in names else None
