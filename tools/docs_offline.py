"""Checks that a built docs site needs no network: usage: docs_offline.py FOLDER

Scripts, styles, fonts and pictures must be files of the site. Links that a reader may follow are free.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

_LOADED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio)\b[^>]*?\bsrc=["']?((?:https?:)?//[^"' >]+)"""
    r"""|<link\b(?=[^>]*\brel=["']?(?:stylesheet|preload|icon|preconnect))[^>]*?\bhref=["']?((?:https?:)?//[^"' >]+)""",
    re.IGNORECASE,
)
_STYLE = re.compile(r"""(?:@import\s+|url\()\s*["']?((?:https?:)?//[^"')]+)""", re.IGNORECASE)


def loads(folder: Path) -> list[str]:
    """What pages and styles of the site would fetch from elsewhere, a line each."""
    found = []
    for path in sorted(folder.rglob("*")):
        pattern = {".html": _LOADED, ".css": _STYLE, ".svg": _STYLE}.get(path.suffix)
        if pattern is not None:
            for hit in pattern.finditer(path.read_text("utf-8", errors="replace")):
                found.append(f"{path.relative_to(folder)}: loads {next(filter(None, hit.groups()))}")
    return found


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0])
    pages = list(folder.rglob("*.html"))
    if not pages:
        print(f"{folder}: no page is there: make docs", file=sys.stderr)
        return 1
    found = loads(folder)
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    if not found:
        print(f"docs: {len(pages)} pages in {folder}, which load nothing from elsewhere")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
