"""For mkdocstrings: examples of docstrings (>>> lines and what they print) become blocks of code."""

from __future__ import annotations

import re
from typing import Any

import griffe


def fenced(text: str) -> str:
    """A docstring whose examples are blocks of code."""
    paragraphs = re.split(r"(\n{2,})", text)
    return "".join(
        f"```pycon\n{part.rstrip()}\n```" if part.lstrip().startswith(">>> ") and part[:1] == ">" else part
        for part in paragraphs
    )


class Fences(griffe.Extension):
    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
