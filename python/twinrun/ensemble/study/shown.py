"""Commands as names, messages and reports show them: without secrets. What is run is not changed.

shown_line      a line as one types it
shown_each      each word of a command
shown_words     words of a command, as a line
shown_command   one of the two: a single word is a line
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from ... import _core
from ..watch.hidden import without_secrets

__all__ = ["SHELL_SIGNS", "shown_command", "shown_each", "shown_line", "shown_words"]

SHELL_SIGNS = re.compile(r"[|&;<>()$`*?~\n]|\[|^\s*\w+=|(^|\s)(if|for|while|case|!|\{)(\s|$)|(^|\s)#")
_PLAIN = re.compile(r"[^\s'\"\\\\]+")
_ANY_SECRET = "0x0"
_BEFORE_SECRET = ("=", ":", "basic", "bearer", "digest", "negotiate", "token")


def _cleaned(text: str) -> str:
    rules = _core.variable_rules()
    words = {
        "secret_words": list(rules.secret_words),
        "secret_variable_words": list(rules.secret_variable_words),
    }
    return without_secrets(text, words)


def shown_each(words: Sequence[str]) -> list[str]:
    """Each word without its secrets, and without the secret that the word before it names."""
    found: list[str] = []
    hide = False
    for number, word in enumerate(words):
        if hide and word.lower() in _BEFORE_SECRET:
            found.append(word)
            continue
        own = "..." if hide else _cleaned(word)
        found.append(own)
        following = words[number + 1] if number + 1 < len(words) else ""
        if following.lower() in _BEFORE_SECRET:
            following = _ANY_SECRET
        both = f"{word} {_cleaned(following)}"
        hide = own == word and following != "" and _cleaned(f"{word} {following}") != both
    return found


def _quoted(words: Sequence[str]) -> str:
    return " ".join(w if _PLAIN.fullmatch(w) else shlex.quote(w) for w in words)


def shown_words(words: Sequence[str]) -> str:
    """The words as a line, quoted for a shell.

    >>> shown_words(["a", "--token", "x", "b c"])
    "a --token ... 'b c'"
    """
    shown = shown_each(words)
    return shlex.join(words) if shown == list(words) else _quoted(shown)


def shown_line(line: str) -> str:
    """A line without secrets; one without any stays as it is.

    A shell may write a secret in many ways: from the first name on, the rest of its line is hidden.

    >>> shown_line("a --token x b"), shown_line("a --token x | b"), shown_line("a  b")
    ('a --token ... b', 'a --token ...', 'a  b')
    """
    try:
        words = [] if SHELL_SIGNS.search(line) else shlex.split(line)
    except ValueError:
        words = []
    if not words:
        return _cleaned(line)
    shown = shown_each(words)
    return line if shown == words else _quoted(shown)


def shown_command(words: Sequence[str]) -> str:
    """A command as the user gave it: a single word is a line."""
    return shown_line(words[0]) if len(words) == 1 else shown_words(words)
