"""How a file was read: its format and the options, as one line of text that metadata records and compares.

    npy
    raw {"dtype": "f32", "shape": "100x3"}

What is digested depends on both. Metadata serves a reading whose text is the same, and no other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import DamagedFile
from .model import Format

__all__ = ["how_read", "read_as"]


def how_read(format: Format, options: Mapping[str, object]) -> str:
    """The text for a format and the options that were given, but for those that do not change what is read."""
    told = {name: _plain(value) for name, value in options.items() if name not in format.aside}
    return format.name + (" " + json.dumps(told, sort_keys=True) if told else "")


def read_as(how: str, where: str) -> tuple[str, dict[str, Any]]:
    """(format, options) of such a text. where: the metadata, for messages."""
    name, space, text = how.partition(" ")
    try:
        options = json.loads(text) if space else {}
    except (ValueError, RecursionError):
        options = None
    if not isinstance(options, dict):
        raise DamagedFile(
            "does not say how its data was read", where=where, fix="index it again with 'twinrun index'"
        )
    return name, options


def _plain(value: object) -> object:
    """A value as the command line would tell it; lists and mappings of such values as JSON has them."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (np.dtype, type)):
        kind = np.dtype(value)
        return kind.str if kind.byteorder == ">" else kind.name
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        if value and all(type(n) is int for n in value):
            return "x".join(map(str, value))  # a shape
        return [_plain(inner) for inner in value]
    return str(value).strip()
