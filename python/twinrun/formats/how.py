"""How a file was read: its format and options, as one line of text that metadata files record.

    npy
    raw {"dtype": "f32", "shape": "100x3"}

Digests depend on both. Metadata is only used for a file that is opened with the same format and options.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import DamagedFile
from .model import Format

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

__all__ = ["how_read", "read_as"]


def how_read(format: Format, options: Mapping[str, object]) -> str:
    """The text for a format and its options, without the options that do not change what is read
    (`Format.aside`)."""
    recorded = {name: _plain(value) for name, value in options.items() if name not in format.aside}
    return format.name + (" " + json.dumps(recorded, sort_keys=True) if recorded else "")


def read_as(how: str, where: str) -> tuple[str, dict[str, Any]]:
    """(format, options) from a text that `how_read` made.

    Raises DamagedFile; `where` is the metadata file.
    """
    name, space, text = how.partition(" ")
    try:
        options = json.loads(text) if space else {}
    except (ValueError, RecursionError):
        options = None
    if not isinstance(options, dict):
        raise DamagedFile(
            "its record of how its data was read is damaged",
            where=where,
            fix="index it again with 'twinrun index'",
        )
    return name, options


def _plain(value: object) -> object:
    """The value of an option as the command line spells it; lists and mappings become those of JSON."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, (str, int)) and isinstance(value, (np.dtype, type)):
        kind = np.dtype(value)
        return kind.str if kind.byteorder == ">" else kind.name
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        if value and all(type(n) is int for n in value):
            return "x".join(map(str, value))  # a shape
        return [_plain(inner) for inner in value]
    return str(value).strip()
