"""Files of no known format: their bytes are the same, or they are not. What is in them, nobody knows.

Never found by detection: a folder's files that nothing else reads are of this format, and those that the caller says so of.
"""

from __future__ import annotations

from .files import file_size
from .layout import Stored, bytes_field
from .model import FileContent, Format, coded
from .naming import field_name

NAME = "bytes"


def open_opaque(path: str) -> FileContent:
    """Opens any file: one field of bytes, which no tolerance holds for."""
    content = FileContent(path, NAME, one_array=True)
    content.add(bytes_field(field_name(path), Stored(path, 0), file_size(path)))
    return content


def link_content(path: str, leads_to: str) -> FileContent:
    """A link to a folder that is read elsewhere: where it leads, as text."""
    content = FileContent(path, NAME, one_array=True)
    content.add(
        coded(field_name(path), "link", (1,), path, lambda first, count: [leads_to][first : first + count])
    )
    return content


FORMAT = Format(NAME, "a file of any kind, as bytes", open_opaque, one_array=True, order=200)
