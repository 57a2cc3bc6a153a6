"""Tables: text with commas, tabs or spaces (`text_table`), and Parquet (`parquet`). Each column is
a field.
"""

from __future__ import annotations

import os
from typing import BinaryIO

from ..errors import DamagedFile, FormatError, Unsupported
from ..remote import object_of
from .files import open_regular, read_exact
from .model import FileContent, Format
from .parquet import open_parquet
from .pointers import place_elsewhere
from .text_table import HEAD, TEXT_SUFFIXES, looks_like_table, open_text

_PARQUET_SUFFIXES = (".parquet", ".pq")
_PARQUET = b"PAR1"


def _is_text(path: str) -> bool:
    """Whether a table is text: neither its first bytes nor its suffix are those of Parquet."""
    file, size = open_regular(path)
    with file:
        head = read_exact(file, 0, min(size, len(_PARQUET)), path, "header")
    return head != _PARQUET and os.path.splitext(path)[1].lower() not in _PARQUET_SUFFIXES


def open_table(path: str) -> FileContent:
    """Opens a table of text, or a Parquet file.

    Raises FormatError; MissingPackage without pandas or pyarrow.
    """
    file, size = open_regular(path)
    with file:
        head = read_exact(file, 0, min(size, len(_PARQUET)), path, "header")
    elsewhere = object_of(path)
    if head != _PARQUET:
        if elsewhere is not None:
            elsewhere.bring()  # lines are found in it, and then read
        if (pointer := place_elsewhere(path)) is not None:
            raise pointer
        try:
            return open_text(path)
        except FormatError as error:
            named = os.path.splitext(path)[1].lower() in _PARQUET_SUFFIXES
            if named and type(error) in (FormatError, DamagedFile):
                raise DamagedFile("does not begin like a Parquet file", where=path) from None
            raise
    if elsewhere is not None:  # pyarrow would open the URL itself
        raise Unsupported("Parquet files are not read from stores", where=path, fix="download it first")
    return open_parquet(path)


def _sniff(path: str, file: BinaryIO) -> bool:
    from . import by_suffix

    promised = by_suffix(path)  # files of other formats may look like tables of text
    if promised is not None and promised.name not in ("table", "raw"):
        return False
    head = file.read(HEAD + 1)
    return looks_like_table(path, head[:HEAD], len(head) <= HEAD)


FORMAT = Format(
    "table",
    "table: CSV, whitespace, Parquet",
    open_table,
    suffixes=(*TEXT_SUFFIXES, *_PARQUET_SUFFIXES),
    magic=(_PARQUET,),
    sniff=_sniff,
    is_text=_is_text,
    order=90,  # asked late: text may be of many other formats
)
