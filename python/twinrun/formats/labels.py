"""Labels: fields without elements whose names tell the unit and the kind of another field."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

__all__ = ["label_told", "labels_of", "labels_told"]

_LABEL = re.compile(r"(.*)@(unit|kind)\.(.*)", re.DOTALL)


def labels_of(name: str, unit: str | None, kind: str | None = None) -> list[str]:
    """Names of the empty fields that record the unit and the kind of field `name`: 't@unit.M8[s]',
    'w@kind.F8_E4M3'.

    Metadata files have no place for a unit or a kind, so a field without elements carries it in its name.
    """
    return [f"{name}@{what}.{value}" for what, value in (("unit", unit), ("kind", kind)) if value is not None]


def label_told(label: str, shape: Sequence[int]) -> tuple[str, str, str] | None:
    """Parses a name that `labels_of` made: (field, 'unit' or 'kind', value).

    None if the field is not such a label.
    """
    found = _LABEL.fullmatch(label) if tuple(shape) == (0,) else None
    return None if found is None else (found[1], found[2], found[3])


def labels_told(shapes: Mapping[str, Sequence[int]]) -> tuple[dict[str, dict[str, str]], set[str]]:
    """Finds the labels (see `labels_of`) among fields. shapes: {field name: shape}.

    Returns {field: {'unit': value, 'kind': value}} and the names of the labels.
    """
    facts: dict[str, dict[str, str]] = {}
    labels = set()
    for label, shape in shapes.items():
        told = label_told(label, shape)
        if told is not None and told[0] in shapes:
            facts.setdefault(told[0], {})[told[1]] = told[2]
            labels.add(label)
    return facts, labels
