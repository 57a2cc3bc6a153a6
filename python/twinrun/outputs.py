"""Output files that the user names: written whole or not at all, and no other file is changed.

No input is overwritten, no file that twinrun keeps (of a history, of a study, ...), and no output
by another output of the command: every command gives all its outputs and inputs to `check_outputs`
before it reads or writes.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from .errors import TwinrunError
from .marks import (
    GOLDEN_MANIFEST,
    JOURNAL_KEYS,
    MANIFEST,
    METADATA_MAGIC,
    METADATA_SUFFIX,
    NOISE,
    STEP_MARK,
    STUDY_FILES,
    STUDY_FOLDERS,
    STUDY_KEYS,
    VALUES_MAGIC,
    has_manifest,
)

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "NOISE_MEASURED",
    "check_folder",
    "check_outputs",
    "check_writable",
    "csv_writer",
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
    """Replaces the file, whole or not at all; a link is replaced itself. Parameters and errors:
    `replacing`.
    """
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
    """A temporary name beside the file, to write to: it replaces the file at the end, also if other
    processes do so at the same time; after an error it is removed, and the file is as it was.

    The file keeps its mode, and a new one has that of the umask. durable: the new content survives
    a power cut.
    follow: what a link leads to is replaced, and not the link. ours: whether what is there may be replaced.

    Raises OSError where that is impossible: pipes and devices are not replaced; TwinrunError where
    what is there is not `ours`.
    """
    path = named_by_user(path) if follow else os.fspath(path)
    mode = None
    with contextlib.suppress(FileNotFoundError):
        about = os.lstat(path)
        if not stat.S_ISREG(about.st_mode) and not stat.S_ISLNK(about.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", path)
        mode = stat.S_IMODE(about.st_mode) if stat.S_ISREG(about.st_mode) else None
    folder = os.path.dirname(os.path.abspath(path))
    try:
        temporary = _new_file(folder, 0o666 if mode is None else mode & 0o666 | 0o600)
    except OSError as e:
        e.filename = path  # the temporary name tells a user nothing
        raise
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
    except BaseException as e:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        if isinstance(e, OSError) and e.errno is not None and e.filename in (None, temporary):
            e.filename, e.filename2 = path, None  # the temporary name tells a user nothing
        raise
    if durable:
        _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def _new_file(folder: str, mode: int) -> str:
    """Makes an empty file with a name of its own; the kernel applies the umask, which a process
    cannot read alone.
    """
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


_PICTURES = (
    "png",
    "svg",
    "pdf",
    "eps",
    "jpg",
    "jpeg",
    "tif",
    "tiff",
    "webp",
    "ps",
    "pgf",
    "raw",
    "rgba",
    "svgz",
)


def check_writable(outputs: Mapping[str, str | os.PathLike[str] | None]) -> None:
    """Raises TwinrunError where an output file, given by option, cannot be written: before what takes long.

    --picture must have a suffix of a picture.
    """
    for option, path in outputs.items():
        if path is None or os.fspath(path) == "-":
            continue
        if option == "--picture" and picture_form(path) not in _PICTURES:
            raise TwinrunError(
                f"has no suffix of a picture that {option} can write: nothing was done",
                where=path,
                fix="name another file, as .png, .pdf or .svg",
            )
        folder = os.path.dirname(os.path.realpath(path))
        why = ""
        if os.path.isdir(path):
            why = "is a folder"
        elif not os.path.isdir(folder):
            why = "lies in a folder that is not there"
        elif not os.access(path if os.path.exists(path) else folder, os.W_OK):
            why = "cannot be written"
        if why:
            raise TwinrunError(f"{why}: nothing was done", where=path, fix=f"name another file with {option}")


def save_figure(figure: Any, path: str | os.PathLike[str], **options: object) -> None:
    """Draws a figure of matplotlib into the file of exactly this name, whole or not at all.

    Raises TwinrunError.
    """
    try:
        with warnings.catch_warnings():
            # Names may be of any script, and the font draws a box for what it lacks.
            warnings.filterwarnings("ignore", r"Glyph .* missing from", UserWarning)
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


def csv_writer(file: TextIO) -> Any:
    r"""A writer of `csv` whose rows end with "\n", and which quotes a text with any end of a line.

    >>> import io
    >>> file = io.StringIO()
    >>> csv_writer(file).writerow(["a\rb", "c,d"])
    >>> file.getvalue()
    '"a\rb","c,d"\n'
    """

    import csv  # few commands write it

    class Lines:
        def write(self, row: str) -> None:
            file.write(row.removesuffix("\r\n") + "\n")

    # Before 3.13 Python quotes only the characters that end its own rows.
    return csv.writer(Lines(), lineterminator="\r\n")


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
    """Whether a JSON file is an earlier report; otherwise it may describe the raw file beside it."""
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
    if has_manifest(path):
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


NOISE_MEASURED = "a measurement of noise"
_PROFILE = re.compile(r"PROFILE-.*\.json")
_MOST_JSON = 64 << 20  # bytes
_HEAD = 4096  # bytes that say what a document is
_STEP_FOLDER = re.compile(r"step-\d+")
_OF_STEP = ("rank-", "group.", ".twinrun-")  # how names of a step's files begin
# How many folders deep a file of a study lies, at most: output/TASK/rank/file and a few more.
_DEEPEST = 6


def _first_line(path: str) -> object:
    """The first line as JSON; None where it is none."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        if stat.S_ISREG(os.stat(path).st_mode):  # reading a pipe would block
            with open(path, "rb") as file:
                return json.loads(file.readline(_MOST_JSON))
    return None


def _is_line_of_study(line: object) -> bool:
    return isinstance(line, dict) and any(keys <= line.keys() for keys in STUDY_KEYS.values())


def _is_study(folder: str) -> bool:
    return any(_is_line_of_study(_first_line(os.path.join(folder, name))) for name in STUDY_KEYS)


def _study_of(path: str) -> str | None:
    """The folder of the study that a file belongs to, there or not; None where there is no such study."""
    above, name = os.path.split(path)
    # What the study was started from.
    if name.endswith(".toml") and _is_study(path.removesuffix(".toml")):
        return path.removesuffix(".toml")
    named = name in STUDY_FILES or name == "lock" or (name.startswith("study-") and name.endswith(".toml"))
    if named and _is_study(above):
        return above
    if not os.path.lexists(path):
        return None
    for _ in range(_DEEPEST):
        above, name = os.path.split(above)
        if not name:
            return None
        if name in STUDY_FOLDERS and _is_study(above):
            return above
    return None


def _is_of_step(path: str) -> bool:
    """Whether a file lies in the folder of a history's step, and has a name as its files have."""
    folder, name = os.path.split(path)
    if not name.startswith(_OF_STEP):
        return False
    # Early histories have no marks.
    early = _STEP_FOLDER.fullmatch(os.path.basename(folder))
    return any(map(STEP_MARK.fullmatch, os.listdir(folder))) or (
        early is not None and has_manifest(os.path.dirname(folder))
    )


def _own_file(path: str) -> str | None:
    """The kind of a file that twinrun keeps, which no report may replace; None for other files."""
    if (study := _study_of(path)) is not None:
        return f"a file of the study {study}"
    with contextlib.suppress(OSError, ValueError, RecursionError):
        with open(path, "rb") as file:
            head = file.read(_HEAD)
            if head.startswith(METADATA_MAGIC):
                return "metadata of a run"
            if head.startswith(VALUES_MAGIC):
                return "a golden file"
            if b'"twinrun":' in head and f'"kind": "{NOISE}"'.encode() in head:
                return NOISE_MEASURED
            file.seek(0)
            first = file.readline(_MOST_JSON)
            if os.path.basename(path) == GOLDEN_MANIFEST:
                first += file.read(_MOST_JSON)
        if _is_of_step(path):
            return "data of a history"
        if _PROFILE.fullmatch(os.path.basename(path)):
            return "the profile of a process"
        said = json.loads(first)
        if isinstance(said, dict):
            if "twinrun_history" in said or "twinrun_journal" in said:
                return f"the {'manifest' if 'twinrun_history' in said else 'journal'} of a history"
            if said.get("format") == "twinrun golden":
                return "the manifest of golden files"
            if _is_line_of_study(said):
                return "a file of a study"
            if said.get("kind") == "study" and JOURNAL_KEYS <= said.keys():
                return "the journal of an I/O study"
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
    outputs: Mapping[str, str | os.PathLike[str] | None],
    inputs: Iterable[str | os.PathLike[str]] = (),
    replaceable: str = "",
) -> None:
    """Raises TwinrunError where an output file, given by option, must not be written.

    Nothing has been written then.

    That is: one of those that are read (files, or all files of folders); what another option names
    too; a file of a history, a study, metadata, golden files, a measurement of noise, whoever reads
    them; a link that leads to itself. replaceable: the kind that the command itself writes. The
    same file by another name (a link, another path) is the same. None and "-" of --json are no
    files; "-" of another option is an error. Pipes and devices are not replaced, and so they may be
    named twice.
    """

    def refuse(option: str, why: str) -> None:
        raise TwinrunError(
            f"{why}, so that {option} must not replace it: nothing was done",
            where=outputs[option],
            fix="name another file",
        )

    targets: dict[object, str] = {}
    for option, path in outputs.items():
        if path is None or (option == "--json" and os.fspath(path) == "-"):
            continue
        if not os.fspath(path):
            raise TwinrunError(
                f"{option} names no file: its name is empty: nothing was done", fix="name a file"
            )
        if os.fspath(path) == "-":  # a file of this name would be a surprise, and hard to remove
            raise TwinrunError(
                "is standard output for --json only: nothing was done",
                where=path,
                fix=f"name a file with {option}",
            )
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
            if target in targets:
                refuse(option, f"is what {targets[target]} names too")
            targets[target] = option
            if there is not None:
                targets[there] = option
    if not targets:
        return
    for given in inputs:
        with contextlib.suppress(OSError, ValueError):  # reading it later raises the error
            if os.path.realpath(given) in targets:  # also where no file exists yet
                refuse(targets[os.path.realpath(given)], "is read here")
            for path in _entries(given):
                there = _inode(path)
                if there in targets:
                    refuse(targets[there], "is read here")
    for named, option in targets.items():
        if isinstance(named, str) and (what := _own_file(named)) not in (None, replaceable):
            refuse(option, f"is {what}")
