"""Output files that the user names: written whole or not at all, and no other file is changed.

No input is overwritten, no file of a history, and no output by another output of the command: every command
gives all its outputs and inputs to `check_outputs` before it reads or writes.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .errors import TwinrunError
from .marks import GOLDEN_MANIFEST, MANIFEST, METADATA_MAGIC, METADATA_SUFFIX, STEP_MARK

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "check_folder",
    "check_outputs",
    "named_by_user",
    "picture_form",
    "replacing",
    "save_figure",
    "write_whole",
]


def write_whole(
    path: str | os.PathLike[str],
    data: bytes,
    *,
    durable: bool = True,
    ours: Callable[[str], bool] | None = None,
) -> None:
    """Replaces the file, whole or not at all; a link is replaced itself. Parameters and errors: `replacing`."""
    with replacing(path, durable=durable, follow=False, ours=ours) as temporary:
        with open(temporary, "wb") as file:
            file.write(data)


def named_by_user(path: str | os.PathLike[str]) -> str:
    """The file that a name stands for: a link is followed and stays a link, as with a shell's redirection.

    Raises OSError where links form a circle.
    """
    if not os.path.islink(path):
        return os.fspath(path)
    target = os.path.realpath(path)
    if os.path.islink(target):  # reached where the chain of links has no end
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))
    return target


@contextlib.contextmanager
def replacing(
    path: str | os.PathLike[str],
    *,
    durable: bool = False,
    follow: bool = True,
    ours: Callable[[str], bool] | None = None,
) -> Iterator[str]:
    """A temporary name beside the file, to write to: it replaces the file at the end, also if other processes do so
    at the same time; after an error it is removed, and the file is as it was.

    The file keeps its mode, and a new one has that of the umask. durable: the new content survives a power cut.
    follow: what a link leads to is replaced, and not the link. ours: whether what is there may be replaced.

    Raises OSError where that is impossible: pipes and devices are not replaced; TwinrunError where what is there is
    not `ours`.
    """
    path = named_by_user(path) if follow else os.fspath(path)
    mode = None
    with contextlib.suppress(FileNotFoundError):
        about = os.lstat(path)
        if not stat.S_ISREG(about.st_mode) and not stat.S_ISLNK(about.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", path)
        mode = stat.S_IMODE(about.st_mode) if stat.S_ISREG(about.st_mode) else None
    folder = os.path.dirname(os.path.abspath(path))
    temporary = _new_file(folder, 0o666 if mode is None else mode & 0o666 | 0o600)
    try:
        yield temporary
        if mode is not None:
            os.chmod(temporary, mode)
        if durable:
            _sync(temporary, os.O_RDONLY)
        if ours is not None and os.path.lexists(path) and not ours(path):
            raise TwinrunError(
                "is there already, and is not what twinrun writes here", where=path, fix="move it away"
            )
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    if durable:
        _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def _new_file(folder: str, mode: int) -> str:
    """Makes an empty file with a name of its own; the kernel applies the umask, which a process cannot read alone."""
    while True:
        import secrets

        path = os.path.join(folder, f".twinrun-{secrets.token_hex(8)}.tmp")
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode))
            return path


def _sync(path: str, flags: int) -> None:
    opened = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def picture_form(path: str | os.PathLike[str]) -> str:
    """The type of a picture by its suffix: "svg" of x.svg; "png" without a suffix."""
    return os.path.splitext(path)[1][1:].lower() or "png"


def save_figure(figure: Any, path: str | os.PathLike[str], **options: object) -> None:
    """Draws a figure of matplotlib into the file of exactly this name, whole or not at all.

    Raises TwinrunError.
    """
    try:
        # a pipe or a device cannot be replaced by renaming
        if os.path.exists(path) and not os.path.isfile(path):
            with open(path, "wb") as out:
                figure.savefig(out, format=picture_form(path), **options)
            return
        with replacing(path) as temporary:
            figure.savefig(temporary, format=picture_form(path), **options)
    except (OSError, ValueError) as e:
        raise TwinrunError(
            f"cannot write the picture: {getattr(e, 'strerror', None) or e}",
            where=path,
            fix="name another file, as .png, .pdf or .svg",
        ) from None


def _history_parts(folder: Path) -> Iterator[Path]:
    """Files of a history; a report beside them is not one."""
    for path in folder.iterdir():
        name = path.name
        if (
            name == MANIFEST
            or name.startswith("step-")
            or (name.startswith("rank-") and name.endswith(".jsonl"))
        ):
            yield path


def _is_report(path: str) -> bool:
    """Whether a JSON file is an earlier report; else it may describe the raw file beside it."""
    with contextlib.suppress(OSError, ValueError):
        with open(path, "rb") as file:
            content = json.load(file)
        return isinstance(content, dict) and "verdict" in content
    return False


def _entries(path: str | os.PathLike[str]) -> Iterator[str | os.PathLike[str]]:
    """A file and the files that describe it; or all files of a folder, also through links."""
    if not os.path.isdir(path):
        yield path
        yield os.fspath(path) + METADATA_SUFFIX
        if not _is_report(beside := os.fspath(path) + ".json"):
            yield beside
        return
    if os.path.isfile(os.path.join(path, MANIFEST)):
        from pathlib import Path

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


_MOST_JSON = 64 << 20  # bytes


def _own_file(path: str) -> str | None:
    """The kind of a file of twinrun, which no report may replace; None for other files."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        with open(path, "rb") as file:
            if file.read(len(METADATA_MAGIC)) == METADATA_MAGIC:
                return "metadata of a run"
            file.seek(0)
            first = file.readline(_MOST_JSON)
            if os.path.basename(path) == GOLDEN_MANIFEST:
                first += file.read(_MOST_JSON)
        folder, name = os.path.split(path)
        if name.startswith("rank-") and any(map(STEP_MARK.fullmatch, os.listdir(folder))):
            return "data of a history"
        said = json.loads(first)
        if isinstance(said, dict):
            if "twinrun_history" in said or "twinrun_journal" in said:
                return f"the {'manifest' if 'twinrun_history' in said else 'journal'} of a history"
            if said.get("format") == "twinrun golden":
                return "the manifest of golden files"
    return None


def _inode(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    """The identity of a regular file, whatever its name; None for anything else."""
    with contextlib.suppress(OSError, ValueError):
        about = os.stat(path)
        if stat.S_ISREG(about.st_mode):
            return about.st_dev, about.st_ino
    return None


def check_folder(
    option: str, folder: str | os.PathLike[str], inputs: Iterable[str | os.PathLike[str]]
) -> None:
    """Raises TwinrunError where an output folder, given by option, is an input or lies in an input."""
    place = os.path.realpath(folder)
    for given in inputs:
        whole = os.path.realpath(given)
        if os.path.commonpath((place, whole)) == whole:
            said = "is" if place == whole else "lies in"
            raise TwinrunError(
                f"{said} {os.fspath(given)}, which is read here: nothing was done",
                where=folder,
                fix=f"name another folder with {option}",
            )


def check_outputs(
    outputs: Mapping[str, str | os.PathLike[str] | None], inputs: Iterable[str | os.PathLike[str]] = ()
) -> None:
    """Raises TwinrunError where an output file, given by option, must not be written.

    Nothing has been written then.

    That is: one of those that are read (files, or all files of folders); what another option names too; a
    file of a history, metadata or golden files, whoever reads them; a link that leads to itself. The same
    file by another name (a link, another path) is the same. None and "-" of --json are no files. Pipes and
    devices are not replaced, and so they may be named twice.
    """

    def refuse(option: str, why: str) -> None:
        raise TwinrunError(
            f"{why}, so that {option} must not replace it: nothing was done",
            where=outputs[option],
            fix="name another file",
        )

    wanted: dict[object, str] = {}
    for option, path in outputs.items():
        if path is None or (option == "--json" and os.fspath(path) == "-"):
            continue
        with contextlib.suppress(OSError, ValueError):
            target = os.path.realpath(path)
            if os.path.islink(target):
                raise TwinrunError(
                    "is a link that leads to itself: nothing was done",
                    where=path,
                    fix=f"name another file with {option}",
                )
            there = _inode(target)
            if there is None and os.path.lexists(target):
                continue
            if target in wanted:
                refuse(option, f"is what {wanted[target]} names too")
            wanted[target] = option
            if there is not None:
                wanted[there] = option
    if not wanted:
        return
    for given in inputs:
        with contextlib.suppress(OSError, ValueError):  # reading it later raises the error
            if os.path.realpath(given) in wanted:  # also where no file exists yet
                refuse(wanted[os.path.realpath(given)], "is read here")
            for path in _entries(given):
                there = _inode(path)
                if there in wanted:
                    refuse(wanted[there], "is read here")
    for named, option in wanted.items():
        if isinstance(named, str) and (what := _own_file(named)) is not None:
            refuse(option, f"is {what}")
