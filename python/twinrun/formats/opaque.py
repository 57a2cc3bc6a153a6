"""Files of unknown format, which are compared byte by byte.

Detection never returns this format. It is used for files of a folder that have no other format, and on
request.
"""

from __future__ import annotations

from .files import file_size
from .layout import Stored, bytes_field
from .model import FileContent, Format, coded
from .naming import field_name

NAME = "bytes"


def open_opaque(path: str) -> FileContent:
    """Opens any file as one field of bytes, which always compare exactly."""
    content = FileContent(path, NAME, one_array=True)
    content.add(bytes_field(field_name(path), Stored(path, 0), file_size(path)))
    return content


def link_content(path: str, leads_to: str) -> FileContent:
    """The content for a link to a folder that is listed under another path: `leads_to`, that path, as
    text."""
    content = FileContent(path, NAME, one_array=True)
    content.add(
        coded(field_name(path), "link", (1,), path, lambda first, count: [leads_to][first : first + count])
    )
    return content


FORMAT = Format(NAME, "a file of any kind, as bytes", open_opaque, one_array=True, order=200)
