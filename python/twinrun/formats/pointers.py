"""Files that stand for others: Git LFS and git-annex leave a few lines in place of a large file.

What these lines say is no data. Read as a table or as bytes they would be compared in place of it.
Sources: the specification of Git LFS, and git-annex's manual, "pointer files".
"""

from __future__ import annotations

import re

from ..errors import DamagedFile, FormatError
from .files import open_regular, read_exact

__all__ = ["LARGEST", "error_of", "place_elsewhere"]

LARGEST = 32768  # bytes
# The lines of a pointer are sorted by their keys, but for the first one. Editors may have put a
# mark before it.
_LFS = re.compile(
    rb"(\xef\xbb\xbf)?version https?://(git-lfs|hawser)\.github\.com/spec/v[0-9]+\r?\n"
    rb"([a-z0-9.-]+ [^\n]*\n)*?oid [a-z0-9]+:[0-9a-f]{64}\r?\n([a-z0-9.-]+ [^\n]*\n)*?size [0-9]+\s*\Z"
)
# One line with a key of git-annex; lines that it may add later begin as this one does. Or the text
# of a symbolic link, where git could not make one.
_KEY = rb"[A-Z0-9_]+(-[A-Za-z0-9]+)*--[^\n]+"
_ANNEX = re.compile(
    rb"(/annex/objects/"
    + _KEY
    + rb"(\n/annex/[^\n]*)*|(\.\./)*\.git/annex/objects/([^/\n]+/)+"
    + _KEY
    + rb")\n?\Z"
)


def place_elsewhere(path: str) -> DamagedFile | None:
    """The error for a file that Git LFS or git-annex keeps elsewhere; None for any other file, and for one
    that cannot be read."""
    try:
        file, size = open_regular(path)
        with file:
            head = read_exact(file, 0, size, path, "") if size <= LARGEST else b""
    except FormatError:
        return None
    return error_of(head, path)


def error_of(head: bytes, where: str) -> DamagedFile | None:
    """The same of all bytes of a small file, or of a member of one."""
    for pattern, keeper, fix in ((_LFS, "Git LFS", "git lfs pull"), (_ANNEX, "git-annex", "git annex get")):
        if pattern.match(head):
            return DamagedFile(
                f"is not the file itself, but the place of it in {keeper}", where=where, fix=f"run: {fix}"
            )
    return None
