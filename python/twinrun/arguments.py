"""Checks of arguments that the core takes as fixed-width numbers and UTF-8, so that a wrong one is a clear
error.
"""

from __future__ import annotations

import fnmatch
import operator
import os
import re
from collections.abc import Iterable, Mapping

from . import _core
from .errors import FormatError, TwinrunError, Unsupported, in_short
from .urls import looks_like_url, without_secrets

__all__ = [
    "Globs",
    "any_path",
    "check_settings",
    "checked_path",
    "chosen_devices",
    "format_options",
    "names_given",
    "own_folder",
    "own_source",
    "paths_given",
    "step_number",
    "utf8",
    "whole_number",
]

_MOST_THREADS = 4096
_WILDCARDS = re.compile(r"[*?[]")


def check_settings(
    *,
    threads: int = 0,
    memory: int = 1,
    residue_bits: int = 4,
    chunk_bytes: int = 4096,
    io: str = "auto",
    gds: bool = False,
) -> None:
    """Raises TwinrunError for settings that have no meaning. gds: io may also be 'gds'."""
    for name, value in (
        ("threads", threads), ("memory", memory), ("residue_bits", residue_bits), ("chunk_bytes", chunk_bytes),
    ):  # fmt: skip
        if not hasattr(value, "__index__"):
            raise TwinrunError(f"{name} must be a whole number, not {in_short(value)}")
    if not 0 <= threads <= _MOST_THREADS:
        raise TwinrunError(f"threads must be 0 (all cores) to {_MOST_THREADS}, not {in_short(threads)}")
    if not 0 < memory < 1 << 62:
        raise TwinrunError(f"memory must be a number of bytes above 0, not {in_short(memory)}")
    if residue_bits not in (0, 2, 4):
        raise TwinrunError(f"residue_bits must be 0, 2 or 4, not {in_short(residue_bits)}")
    if not 4096 <= chunk_bytes <= 1 << 20 or chunk_bytes & (chunk_bytes - 1):
        raise TwinrunError(
            f"the chunk size must be a power of two from 4096 to 1048576 bytes, not {in_short(chunk_bytes)}"
        )
    if io not in ("auto", "uring", "pread") and not (gds and io == "gds"):
        raise TwinrunError(
            f"io must be auto, uring{', pread or gds' if gds else ' or pread'}, not {in_short(io)}"
        )


def format_options(given: object) -> dict[str, object]:
    """What a caller gave as options of the file formats, by name. Raises TwinrunError for other things."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise TwinrunError(
            f"the options of file formats must be a dict with names, not {given!r:.60}",
            fix="write options={'dtype': 'f32'}",
        )
    return dict(given)


def chosen_devices(device: object) -> tuple[str, list[int]]:
    """('auto' | 'cpu' | 'cuda', numbers) of 'auto', 'cpu', 'cuda', 'cuda:1', 'cuda:0,2' or 'cuda:0-3'; no
    number means all.

    Raises TwinrunError for other texts, Unsupported where a requested device cannot be used.
    """
    text = str(device).strip().lower()
    if text in ("auto", "cpu"):
        return text, []
    if text != "cuda" and not re.fullmatch(
        r"cuda:[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*", text
    ):
        raise TwinrunError(
            f"device {str(device)!r:.60} is not understood", fix="write auto, cpu, cuda, cuda:0 or cuda:0,1"
        )
    numbers: list[int] = []
    for part in text[5:].split(",") if text != "cuda" else ():
        low, dash, high = part.partition("-")
        numbers.extend(range(int(low), int(high if dash else low) + 1))
    found = _core.devices()
    if found.reason:
        raise Unsupported(
            f"no GPU can be used: {found.reason}", fix="leave out the device, or ask for the cpu"
        )
    for number in numbers:
        if number >= len(found.devices):
            last = len(found.devices) - 1
            raise Unsupported(f"there is no cuda:{number}", fix=f"devices are cuda:0 to cuda:{last}")
        if found.devices[number].reason:
            raise Unsupported(f"cuda:{number} cannot be used: {found.devices[number].reason}")
    return "cuda", list(dict.fromkeys(numbers))


class Globs:
    """Globs of names, as `fnmatch.fnmatchcase` takes them. Names without wildcards are looked up, however
    many there are.
    """

    def __init__(self, globs: Iterable[str]) -> None:
        self._names: dict[str, list[int]] = {}
        self._patterns: list[tuple[int, re.Pattern[str]]] = []
        for at, glob in enumerate(globs):
            if _WILDCARDS.search(glob):
                self._patterns.append((at, re.compile(fnmatch.translate(glob))))
            else:
                self._names.setdefault(glob, []).append(at)

    def met(self, name: str) -> list[int]:
        """The numbers of the globs that match, ascending."""
        found = list(self._names.get(name, ()))
        found += [at for at, pattern in self._patterns if pattern.match(name)]
        return sorted(found)

    def match(self, name: str) -> bool:
        """Whether any matches."""
        return name in self._names or any(pattern.match(name) for _, pattern in self._patterns)


def names_given(given: str | Iterable[str], what: str) -> list[str]:
    """The names or globs that a caller gave: one text is a list of one, and not its letters.

    what: the parameter, for messages. Raises TwinrunError for what is no text.
    """
    if isinstance(given, str):
        return [given]
    if isinstance(given, (bytes, bytearray)) or not isinstance(given, Iterable):
        raise TwinrunError(f"{what} must be a text or a list of texts, not {given!r:.60}")
    try:
        names = list(given)
    except TypeError:  # an array of numpy without dimensions says that it can be iterated over
        raise TwinrunError(f"{what} must be a text or a list of texts, not {given!r:.60}") from None
    for name in names:
        if not isinstance(name, str):
            raise TwinrunError(f"{what} must be a text or a list of texts: {name!r:.60} is no text")
    return names


def paths_given(
    given: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
) -> list[str | os.PathLike[str]]:
    """The paths that a caller gave: one path is a list of one, and not its letters."""
    return [given] if isinstance(given, (str, os.PathLike)) else list(given)


def tolerance_number(name: str, value: object) -> float:
    """A tolerance as a number. Raises TwinrunError for a text, a boolean, and whatever else is no number."""
    try:
        # True is 1 for Python. It is more likely the value of another parameter.
        if isinstance(value, (str, bytes, bytearray)) or is_boolean(value):
            raise TypeError
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise TwinrunError(f"{name} must be a number, not {in_short(value)}") from None


def is_boolean(value: object) -> bool:
    """Whether a value is a boolean of Python or NumPy, which need not be loaded."""
    return isinstance(value, bool) or type(value).__name__ in ("bool", "bool_")


def whole_number(name: str, value: object) -> int:
    """A parameter that is a whole number. Raises TwinrunError for anything else."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TwinrunError(f"{name} must be a whole number, not {in_short(value)}") from None


def step_number(step: object) -> int:
    """The number of a step: an integer of 64 bits. Raises TwinrunError for anything else."""
    if isinstance(step, bool):  # an argument in the wrong place
        raise TwinrunError(f"a step is an integer, not {step}")
    try:
        number = operator.index(step)  # type: ignore[arg-type]
    except TypeError:
        raise TwinrunError(f"a step is an integer, not {in_short(step)}") from None
    if not -(1 << 63) <= number < 1 << 63:
        raise TwinrunError(f"step {in_short(number)} does not fit into 64 bits")
    return number


def utf8(text: str, what: str, where: str | None = None) -> str:
    """`text`, or FormatError where it is not Unicode: metadata and manifests hold UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise FormatError(f"{what} is not UTF-8", where=where or text, fix="rename it") from None
    return text


def _path_text(path: object) -> str | bytes:
    try:
        return os.fspath(path)  # type: ignore[call-overload]
    except TypeError:
        raise _no_path(path) from None


def _no_path(given: object) -> TwinrunError:
    each = isinstance(given, (list, tuple, set))
    return TwinrunError(
        f"a path is a text or an object of pathlib, not {in_short(given)}",
        fix="give each path on its own" if each else None,
    )


def checked_path(path: str | os.PathLike[str]) -> str:
    """The path of a file or folder as the core can take it."""
    text = _path_text(path)
    if not isinstance(text, str):
        raise _no_path(path)
    if "\0" in text:  # the core would take what stands before it
        raise FormatError("a path has no zero byte", where=repr(text), fix="check the path")
    return utf8(text, "its name", text)


def any_path(path: str | os.PathLike[str]) -> str:
    """The path of a file or folder whose name may be any bytes: for functions that take paths by
    os.fsencode.
    """
    text = os.fsdecode(_path_text(path))
    if "\0" in text or not text:
        raise FormatError("a path is not empty and has no zero byte", where=repr(text), fix="check the path")
    return text


def own_folder(path: str, writes_to: str = "it writes this to folders of this machine only") -> str:
    """A path that is written. Raises Unsupported if it begins as a URL: a folder of that name would be made.

    writes_to: what is written to, for the message.
    """
    if looks_like_url(path):
        raise Unsupported(
            f"twinrun does not write to this URL: {writes_to}",
            where=path,
            fix=f"for a folder of that name write ./{without_secrets(path)}",
        )
    return path


def own_source(path: str) -> str:
    """A path that is read on this machine only. Raises Unsupported if it begins as a URL and there is no such
    path.
    """
    if looks_like_url(path) and not os.path.lexists(path):
        raise Unsupported(
            "is not read here: this works with folders of this machine",
            where=path,
            fix="download it first; compare, show and golden read s3, gs and https",
        )
    return path


MEMORY = 1 << 30  # bytes of memory for restore and verify, by default
