"""The headers of FITS files: cards of 80 characters in blocks of 2880 bytes.

Source: "Definition of the Flexible Image Transport System", version 4.0; sections 4, 7.3 and 10 for keywords.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import BinaryIO

from ..errors import DamagedFile, Unsupported
from .files import read_exact

__all__ = ["BLOCK", "Header", "parse_header"]

BLOCK = 2880
_CARD = 80
_MOST_BLOCKS = 20_000  # 57 MB of cards
_COMMENTARY = ("COMMENT", "HISTORY", "")
# A value is a text in quotes, in which '' is a quote, or anything else up to a slash.
_TEXT = re.compile(r"\s*'((?:[^']|'')*)'\s*(?:/(.*))?$", re.DOTALL)
_PLAIN = re.compile(r"([^/]*)(?:/(.*))?$", re.DOTALL)
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[EeDd][+-]?\d+)?"
_COMPLEX = re.compile(rf"\(\s*({_NUMBER})\s*,\s*({_NUMBER})\s*\)")


@dataclass
class Header:
    """The cards of one header.

    values: by keyword, the first one if there are several. comments: of those that have one. commentary: the
    lines of COMMENT, HISTORY and cards without keyword. more: values of further cards of a keyword.
    end: the offset of the data.
    """

    values: dict[str, object] = field(default_factory=dict)
    comments: dict[str, str] = field(default_factory=dict)
    commentary: dict[str, list[str]] = field(default_factory=dict)
    more: dict[str, list[object]] = field(default_factory=dict)
    end: int = 0

    def number(self, keyword: str, where: str, default: int | None = None) -> int:
        """The value of a keyword that is an integer.

        Raises DamagedFile if it is anything else, or missing without a default.
        """
        value = self.values.get(keyword, default)
        if type(value) is not int:
            raise DamagedFile(f"its header has {keyword} = {value!r:.60}, not an integer", where=where)
        return value

    def size(self, keyword: str, where: str, default: int | None = None) -> int:
        """As `number`; raises DamagedFile for negative integers too."""
        value = self.number(keyword, where, default)
        if value < 0 or value > (1 << 62):
            raise DamagedFile(f"its header has {keyword} = {value}", where=where)
        return value

    def text(self, keyword: str) -> str:
        """The value of a keyword if it is a text, without spaces at the end; else ''."""
        value = self.values.get(keyword)
        return value.rstrip(" ") if isinstance(value, str) else ""


def parse_header(file: BinaryIO, at: int, size: int, path: str) -> Header:
    """The header that begins at offset `at` of a file of `size` bytes. Raises DamagedFile if it has no
    end."""
    header = Header()
    last = None  # the keyword whose text the next card may continue
    begin = at
    while True:
        if at + BLOCK > size:
            raise DamagedFile(f"the header at byte {begin} has no END: the file is cut short", where=path)
        if at - begin > _MOST_BLOCKS * BLOCK:
            raise Unsupported(f"a header of more than {_MOST_BLOCKS} blocks", where=path)
        block = read_exact(file, at, BLOCK, path, "header")
        at += BLOCK
        try:
            text = block.decode("ascii")
        except UnicodeDecodeError:
            raise DamagedFile(
                f"the header at byte {begin} has bytes that are not ASCII", where=path
            ) from None
        for start in range(0, BLOCK, _CARD):
            card = text[start : start + _CARD]
            if card[:8] == "END     " or card.rstrip(" ") == "END":
                if text[start + 3 :].strip(" "):
                    raise DamagedFile(f"the header at byte {begin} goes on after its END", where=path)
                header.end = at
                return header
            if not card.isprintable():
                # No header may have control characters. A card with one is compared as it is.
                header.commentary.setdefault("(control characters)", []).append(card)
            last = _add(header, card, last)


def _add(header: Header, card: str, last: str | None) -> str | None:
    """Adds a card. Returns the keyword of a text that may continue on the next card, else None."""
    keyword = card[:8].rstrip(" ")
    if keyword == "CONTINUE" and last is not None:
        found = _TEXT.match(card[8:])
        before = header.values[last]
        if found is not None and isinstance(before, str) and before.endswith("&"):
            header.values[last] = (before[:-1] + _unquoted(found[1])).rstrip(" ")
            if found[2] and found[2].strip(" "):
                header.comments[last] = f"{header.comments.get(last, '')} {found[2].strip(' ')}".strip(" ")
            return last
    if keyword == "HIERARCH" and "=" in card[8:]:
        keyword, _, rest = card[8:].partition("=")
        keyword = keyword.strip(" ")
    elif card[8:10] == "= " and keyword not in _COMMENTARY:
        rest = card[10:]
    else:
        header.commentary.setdefault(keyword, []).append(card[8:].rstrip(" "))
        return None
    value, comment = _value(rest)
    if keyword in header.values:
        header.more.setdefault(keyword, []).append(value)
        return None
    header.values[keyword] = value
    if comment:
        header.comments[keyword] = comment
    return keyword if isinstance(value, str) else None


def _unquoted(text: str) -> str:
    return text.replace("''", "'").rstrip(" ")


def _value(rest: str) -> tuple[object, str]:
    """(value, comment) of the text after '= '. What is no value of FITS stays as it is, marked as such."""
    found = _TEXT.match(rest)
    if found is not None:
        return _unquoted(found[1]), (found[2] or "").strip(" ")
    found = _PLAIN.match(rest)
    assert found is not None
    text, comment = found[1].strip(" "), (found[2] or "").strip(" ")
    if not text:
        return None, comment
    if text in ("T", "F"):
        return text == "T", comment
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text), comment
    if re.fullmatch(_NUMBER, text):
        return float(text.upper().replace("D", "E")), comment
    pair = _COMPLEX.fullmatch(text)
    if pair is not None:
        return complex(*(float(part.upper().replace("D", "E")) for part in pair.groups())), comment
    return ["no value of FITS", text], comment
