"""Texts with names in braces, which stand for values of a task."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...errors import TwinrunError
from .shown import shown_line

__all__ = ["PLACES", "fill", "places"]

_PLACE = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_-]*)\}")
# Names in templates besides factors.
PLACES = (
    "task",
    "seed",
    "folder",
    "repetition",
    "replica",
    "block",
    "attempt",
    "study",
    "here",
    "cores",
    "core_count",
    "node",
)


def places(template: str, factors: set[str], where: str | None = None) -> set[str]:
    """Names in braces. Raises TwinrunError for an unknown name."""
    found = set()
    for match in _PLACE.finditer(template):
        name = match[1]
        if name is None:
            continue
        if name not in factors and name not in PLACES:
            raise TwinrunError(
                f"{{{name}}} means nothing in {shown_line(template)!r:.80}",
                where=where,
                fix="name a factor, or write {{ and }} for braces",
            )
        found.add(name)
    return found


def fill(template: str, values: Mapping[str, str]) -> str:
    """A template with its names replaced by values."""
    return _PLACE.sub(lambda m: values[m[1]] if m[1] else m[0][0], template)
