"""Files that stand for others: Git LFS and git-annex leave a few lines in place of a large file.

What these lines say is no data. Read as a table or as bytes they would be compared in place of it.
Sources: the specification of Git LFS (docs/spec.md there), and git-annex's manual, "pointer files".
"""

from __future__ import annotations

import re

from ..errors import DamagedFile, FormatError
from .files import open_regular, read_exact

__all__ = ["place_elsewhere"]

_LARGEST = 32768
_LFS = re.compile(rb"version https?://(git-lfs|hawser)\.github\.com/spec/")
# One line with a key of git-annex; lines that it may add later begin as this one does.
_ANNEX = re.compile(rb"/annex/objects/[A-Z0-9_]+(-[A-Za-z0-9]+)*--[^\n]+\n?(/annex/[^\n]*\n?)*\Z")


def place_elsewhere(path: str) -> DamagedFile | None:
    """The error for a file that Git LFS or git-annex keeps elsewhere; None for any other file, and for one
    that cannot be read."""
    try:
        file, size = open_regular(path)
        with file:
            head = read_exact(file, 0, size, path, "") if size <= _LARGEST else b""
    except FormatError:
        return None
    for pattern, keeper, fix in ((_LFS, "Git LFS", "git lfs pull"), (_ANNEX, "git-annex", "git annex get")):
        if pattern.match(head):
            return DamagedFile(
                f"is not the file itself, but the place of it in {keeper}", where=path, fix=f"run: {fix}"
            )
    return None
