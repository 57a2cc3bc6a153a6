"""Files that twinrun writes where a user says: whole or not at all, by a name that nothing has until then, and never over what is read."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from .errors import TwinrunError

__all__ = ["check_outputs", "named_by_user", "replacing", "write_whole"]


def write_whole(path: str | os.PathLike[str], data: bytes, durable: bool = True) -> None:
    """Replaces the file, whole or not at all, also if others do it at the same time. durable: it outlives a power cut."""
    folder = os.path.dirname(os.path.abspath(path))
    number, temporary = tempfile.mkstemp(dir=folder, prefix=".twinrun-", suffix=".tmp")
    try:
        with os.fdopen(number, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    if durable:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def named_by_user(path: str | os.PathLike[str]) -> str:
    """The file that a user's name stands for: a link leads to it and stays a link, as where a shell redirects."""
    return os.path.realpath(path) if os.path.islink(path) else os.fspath(path)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[str]:
    """A name beside the file that the user means, to write to. It takes the file's place, and its mode; after an error nothing stays."""
    path = named_by_user(path)
    mode = 0o644
    with contextlib.suppress(OSError):
        mode = stat.S_IMODE(os.stat(path).st_mode)
    number, temporary = tempfile.mkstemp(dir=os.path.dirname(os.path.abspath(path)), prefix=".twinrun-")
    os.close(number)
    try:
        yield temporary
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _history_parts(folder: Path) -> Iterator[Path]:
    """What a run wrote into its history; a report beside it is none of it."""
    for path in folder.iterdir():
        name = path.name
        if (
            name == "manifest.jsonl"
            or name.startswith("step-")
            or (name.startswith("rank-") and name.endswith(".jsonl"))
        ):
            yield path


def _is_report(path: str) -> bool:
    """Whether a JSON file is an earlier report; else it may describe the raw file that it lies beside."""
    with contextlib.suppress(OSError, ValueError):
        with open(path, "rb") as file:
            content = json.load(file)
        return isinstance(content, dict) and "verdict" in content
    return False


def _entries(path: str | os.PathLike[str]) -> Iterator[str | os.PathLike[str]]:
    """A file and what describes it, or all files of a folder, also through links."""
    if not os.path.isdir(path):
        yield path
        yield os.fspath(path) + ".twm"
        if not _is_report(beside := os.fspath(path) + ".json"):
            yield beside
        return
    if os.path.isfile(os.path.join(path, "manifest.jsonl")):
        for part in _history_parts(Path(path)):
            yield from _entries(part)
        return
    seen = set()
    for where, folders, names in os.walk(path, followlinks=True):
        about = os.stat(where)
        if (about.st_dev, about.st_ino) in seen:
            folders.clear()
            continue
        seen.add((about.st_dev, about.st_ino))
        yield from (os.path.join(where, name) for name in names)


def check_outputs(
    outputs: Mapping[str, str | os.PathLike[str] | None], inputs: Iterable[str | os.PathLike[str]]
) -> None:
    """TwinrunError where a file that is to be written, by option, is one of those that are read: files, or all files of folders.

    The same file by another name (a link, another path) is the same. What is not there yet is nobody's.
    """
    wanted: dict[tuple[int, int], str] = {}
    for option, path in outputs.items():
        if path is None or os.fspath(path) == "-":
            continue
        with contextlib.suppress(OSError, ValueError):
            about = os.stat(path)
            if stat.S_ISREG(about.st_mode):
                wanted[about.st_dev, about.st_ino] = option
    if not wanted:
        return
    for given in inputs:
        with contextlib.suppress(OSError, ValueError):  # what cannot be read is told by who reads it
            for path in _entries(given):
                with contextlib.suppress(OSError):
                    about = os.stat(path)
                    same = wanted.get((about.st_dev, about.st_ino))
                    if same is not None:
                        raise TwinrunError(
                            f"is read here, so that {option} must not replace it: nothing was done",
                            where=outputs[option],
                            fix="name another file",
                        )
