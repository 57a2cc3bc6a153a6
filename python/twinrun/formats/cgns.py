"""CGNS on top of HDF5: a node is a group, and its values are a dataset ` data` in it.

Fields get the names of nodes: `Base/Zone 1/FlowSolution#1/Pressure`. Arrays are column-major, as CGNS counts
them. Texts such as `GridLocation` are facts of their node.

Source: "CGNS/HDF5 File Mapping Manual" and the "Standard Interface Data Structures" of CGNS, versions 3 and
4.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .facts import Fact
from .model import Field, FileContent

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

_DATA = "/ data"
_LINK = "/ link/"
_VERSIONS = (" format", " hdf5version")
_LINKED = ("/ file", "/ path")  # where a link leads, beside the link itself
_LONGEST_TEXT = 1 << 20
# Nodes whose text says where or in what unit the numbers beside it are.
_MEANING = ("GridLocation", "DataClass", "DimensionalUnits", "AdditionalUnits", "SimulationType")


def recognises(file: Any) -> bool:
    """Whether an HDF5 file is CGNS."""
    return "CGNSLibraryVersion" in file and " hdf5version" in file


def apply(h5py: Any, file: Any, content: FileContent) -> None:
    """Names fields by their nodes, and makes texts facts."""
    old, content.fields = content.fields, {}
    for name, field in old.items():
        item = file.get(name)
        if name in _VERSIONS and isinstance(item, h5py.Dataset) and item.size <= _LONGEST_TEXT:
            content.say("", f"({name.strip()})", _text(item))
            continue
        node = _node(name)
        is_text = isinstance(item, h5py.Dataset) and item.dtype.kind == "i" and item.dtype.itemsize == 1
        if name.endswith(_LINKED) and is_text:
            content.say(_node(name.rpartition("/")[0]), f"({name.rpartition('/ ')[2]})", _text(item))
        elif name.endswith(_DATA) and is_text and item.size <= _LONGEST_TEXT and _is_text(item.parent):
            short = node.rpartition("/")[2]
            content.say(node, "(text)", _text(item), meaning=short in _MEANING)
        else:
            content.add(_field(field, node if node not in content.fields else name))
    for label, fact in list(content.facts.items()):
        del content.facts[label]
        if _is_compared(fact):
            content.add_fact(replace(fact, owner=_node(fact.owner)))


def _node(name: str) -> str:
    return (name + "/").replace(_LINK, "/").rstrip("/").removesuffix(_DATA)


def _is_text(node: Any) -> bool:
    kind = node.attrs.get("type", b"")
    return bytes(kind if isinstance(kind, bytes) else str(kind).encode()) == b"C1"


def _text(item: Any) -> object:
    """The text of a node: one, or a list of those of several rows. CGNS pads them with spaces or zeros."""
    rows = np.atleast_1d(item[()]).view(np.uint8)
    if rows.ndim == 1:
        return _line(rows)
    return [_line(row) for row in rows.reshape(-1, rows.shape[-1])]


def _line(row: np.ndarray) -> str:
    return row.tobytes().rstrip(b"\0 ").decode("utf-8", "backslashreplace")


def _field(field: Field, name: str) -> Field:
    several = len(field.shape) > 1 and not field.fortran_order
    return replace(field, name=name, fortran_order=field.fortran_order or several)


def _is_compared(fact: Fact) -> bool:
    """Whether an attribute says more than the name of its group, and how the library stored the node."""
    if fact.name == "flags":
        return False
    own = fact.owner.rpartition("/")[2]
    return fact.name != "name" or fact.text.strip("'\"") != own
