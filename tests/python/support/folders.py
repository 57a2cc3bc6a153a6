"""What is in a folder, to the last byte."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def looks(folder: Path) -> dict[str, tuple]:
    """Each entry below a folder, links as links."""
    seen: dict[str, tuple] = {}
    for where, folders, files in os.walk(folder):
        for name in folders + files:
            path = os.path.join(where, name)
            mode = os.lstat(path).st_mode
            kind = stat.S_IFMT(mode)
            content = (
                os.readlink(path)
                if stat.S_ISLNK(mode)
                else Path(path).read_bytes()
                if stat.S_ISREG(mode)
                else None
            )
            seen[os.path.relpath(path, folder)] = (kind, content)
    return seen
