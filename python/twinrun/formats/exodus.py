"""Exodus II on top of NetCDF: results get the names that the file gives them, and time steps are steps.

`vals_nod_var1` is `nodal/temperature` if that is the first text of `name_nod_var`; `vals_elem_var2eb1` is
`element/steel/stress`, by the names (`eb_names`) or numbers (`eb_prop1`) of blocks and sets. Everything else
keeps its name.

Source: "EXODUS: A Finite Element Data Model", appendix on the NetCDF implementation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

from ..errors import DamagedFile
from .frames import Frame, add_frames
from .model import Field, FileContent
from .strided import run_of

__all__ = ["apply", "is_exodus"]

# By the word in the names of variables: what it is called here, the mark before the number of the
# block or set, and where blocks or sets have their names and numbers.
_KINDS = {
    "nod": ("nodal", "", "", ""),
    "elem": ("element", "eb", "eb_names", "eb_prop1"),
    "edge": ("edge", "eb", "ed_names", "ed_prop1"),
    "face": ("face", "fb", "fa_names", "fa_prop1"),
    "nset": ("node set", "ns", "ns_names", "ns_prop1"),
    "sset": ("side set", "ss", "ss_names", "ss_prop1"),
    "eset": ("edge set", "es", "es_names", "es_prop1"),
    "fset": ("face set", "fs", "fs_names", "fs_prop1"),
    "elset": ("element set", "els", "els_names", "els_prop1"),
}
_VALUES = re.compile(r"vals_(nod|elem|edge|face|nset|sset|eset|fset|elset)_var(\d+)(?:([a-z]+)(\d+))?")
_MOST_STEPS = 1_000_000

Rows = Callable[[str], "list[str]"]


def is_exodus(attributes: object, names: object) -> bool:
    """Whether a NetCDF file is Exodus II, by the names of its attributes and of its variables."""
    return (
        "api_version" in attributes  # type: ignore[operator]
        and "floating_point_word_size" in attributes  # type: ignore[operator]
        and "time_whole" in names  # type: ignore[operator]
    )


def apply(content: FileContent, rows: Rows) -> None:
    """Names the results of a file, and splits them into steps.

    rows: `rows(name)` returns the texts of a variable of characters, one for each row; [] if there is no such
    variable.
    """
    times_field = content.fields["time_whole"]
    if len(times_field.shape) != 1 or times_field.size > _MOST_STEPS:
        raise DamagedFile(f"its times have the shape {times_field.shape}", where=content.path)
    times = [float(t) for t in times_field.elements()]
    names = _Names(content, rows)
    moving: list[tuple[str, Field, int | None]] = []  # name, variable, row within a step
    for name, field in content.fields.items():
        if not field.shape or field.shape[0] != len(times) or field.problem is not None:
            continue
        if name == "vals_glo_var" and len(field.shape) == 2:
            moving += [(names.of_row("glo", "global", at), field, at) for at in range(field.shape[1])]
        elif name == "vals_nod_var" and len(field.shape) == 3:  # as small models had it
            moving += [(names.of_row("nod", "nodal", at), field, at) for at in range(field.shape[1])]
        elif (found := _VALUES.fullmatch(name)) is not None:
            moving.append((names.of(found, name), field, None))
    if not moving or not times:
        return
    for label in {field.name for _, field, _ in moving}:
        del content.fields[label]
    for label in names.consumed():
        content.fields.pop(label, None)
    del content.fields["time_whole"]
    # What is said of a variable is said of what it is called now.
    new = {field.name: name for name, field, at in moving if at is None}
    for label, fact in list(content.facts.items()):
        if fact.owner in new:
            del content.facts[label]
            content.add_fact(replace(fact, owner=new[fact.owner]))
    frames = []
    for step, time in enumerate(times):
        fields = [_part(name, field, at, step) for name, field, at in moving]
        frames.append(Frame(step + 1, fields, time))
    add_frames(content, frames)


def _part(name: str, field: Field, at: int | None, step: int) -> Field:
    """The numbers of a variable in a step: all of them, or a row."""
    inner = field.shape[1:]
    first = step * math.prod(inner)
    if at is not None:
        inner = inner[1:]
        first += at * math.prod(inner)
    return replace(run_of(field, first, inner), name=name)


class _Names:
    """The names of results."""

    def __init__(self, content: FileContent, rows: Rows) -> None:
        self._content, self._rows = content, rows
        self._known: dict[str, list[str]] = {}
        self._given: set[str] = set()
        self._kept: set[str] = set()
        self._used: set[str] = set()

    def consumed(self) -> set[str]:
        """The variables whose texts are names of fields now, and nothing else."""
        return self._used - self._kept

    def _texts(self, variable: str) -> list[str]:
        """The texts of a variable if they can be names: each is there once, and none is empty.

        A text ends at its first zero. If there is more behind, the variable stays a field too.
        """
        if variable not in self._known:
            rows = [text.rstrip("\0") for text in self._rows(variable)]
            texts = [text.split("\0")[0].strip() for text in rows]
            if texts != rows:
                self._kept.add(variable)
            is_usable = len(set(texts)) == len(texts) and all(texts)
            self._known[variable] = [text.replace("@", "_") for text in texts] if is_usable else []
        return self._known[variable]

    def _unique(self, name: str, old: str) -> str:
        if name in self._given or name in self._content.fields:
            name = old
        self._given.add(name)
        return name

    def of_row(self, kind: str, word: str, at: int) -> str:
        """The name of row `at` of a variable that holds all results of a kind."""
        texts = self._texts(f"name_{kind}_var")
        old = f"vals_{kind}_var/{at + 1}"
        if at >= len(texts):
            return self._unique(old, old)
        self._used.add(f"name_{kind}_var")
        return self._unique(f"{word}/{texts[at]}", old)

    def of(self, found: re.Match[str], old: str) -> str:
        """The name of a variable of results."""
        kind, number, mark, block = found[1], int(found[2][:9]), found[3], found[4]
        word, own_mark, block_names, block_numbers = _KINDS[kind]
        texts = self._texts(f"name_{kind}_var")
        if not 1 <= number <= len(texts) or (mark or "") != own_mark:
            return self._unique(old, old)
        self._used.add(f"name_{kind}_var")
        if not own_mark:
            return self._unique(f"{word}/{texts[number - 1]}", old)
        where = self._block(int(block[:9]), block_names, block_numbers)
        return self._unique(f"{word}/{where}/{texts[number - 1]}", old)

    def _block(self, number: int, block_names: str, block_numbers: str) -> str:
        """The name of a block or set, or its number (ID)."""
        texts = self._texts(block_names)
        if 1 <= number <= len(texts):
            return texts[number - 1]
        ids = self._content.fields.get(block_numbers)
        if ids is not None and len(ids.shape) == 1 and 1 <= number <= ids.size <= _MOST_STEPS:
            values = ids.elements().tolist()
            if len(set(values)) == len(values):
                return str(values[number - 1])
        return f"number {number}"
