"""A folder that is packed: everything in it, hidden or not, and which step and key each file has."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass

from .. import _core
from ..errors import FormatError
from ..formats import detect
from ..formats.files import reading
from ..formats.naming import parse_path

__all__ = ["Tree", "steps_of"]

_ALL = "."  # the unit of a folder that is one data set
_LONGEST_KEY = 4000  # bytes: names of a record have at most 4096


@dataclass(frozen=True)
class _Entry:
    """Something to pack, by its name.

    kind: file, link or folder. unit: the name that has the step: its own, or that of the data set (a folder
    of many files) that it belongs to.
    """

    name: str
    path: str
    kind: str
    unit: str
    to: str = ""  # of a link


class Tree:
    """All that is in a folder, hidden or not.

    entries: what is kept. notes: (name, why) of what is left out or changed.
    """

    def __init__(self, folder: str, record: str) -> None:
        self.folder = folder
        self.entries: list[_Entry] = []
        self.notes: list[tuple[str, str]] = []
        self._folders: list[tuple[str, str]] = []  # (name, unit)
        self._units: list[str] = []
        self._record = _identity(record)
        # A link to one of these folders would lead into itself.
        place = os.path.realpath(folder)
        around = {_identity(place)}
        while (above := os.path.dirname(place)) != place:
            place = above
            around.add(_identity(place))
        links: list[_Visit] = []
        start = _Visit("", folder, "", frozenset(around), os.path.realpath(folder), "")
        self._walk(start, links)
        steps = [step for e in self.entries if (step := parse_path(e.unit).step) is not None]
        self._first = min(steps, default=None)
        while links:  # links come last: all data sets are known then
            self._link(links.pop(0), links)
        self._keep_empty_folders()

    def _walk(self, start: _Visit, links: list[_Visit]) -> None:
        stack = [start]
        while stack:
            at = stack.pop()
            with reading(at.path):
                own = _identity(at.path)
                if own == self._record:
                    raise FormatError("is within what is packed", where=at.path, fix="name another record")
                unit = at.unit
                if not unit and _is_data_set(at.path):
                    unit = at.name or _ALL
                    self._units.append(unit)
                with os.scandir(at.path) as found:
                    listed = sorted(found, key=lambda e: os.fsencode(e.name))
            if at.name:
                self._folders.append((at.name, unit or at.name))
            for item in listed:
                name = f"{at.name}/{item.name}" if at.name else item.name
                below = _Visit(
                    name, item.path, unit, at.around | {own}, at.root, f"{at.inner}/{item.name}".lstrip("/")
                )
                with reading(item.path):
                    if item.is_symlink():
                        links.append(below)
                    elif item.is_dir(follow_symlinks=False):
                        stack.append(below)
                    else:
                        self._file(below, item.stat(follow_symlinks=False).st_mode)

    def _file(self, at: _Visit, mode: int) -> None:
        if stat.S_ISREG(mode):
            self.entries.append(_Entry(at.name, at.path, "file", at.unit or at.name))
        else:
            self.notes.append((at.name, f"left out: {_kind(mode)}"))

    def _link(self, at: _Visit, links: list[_Visit]) -> None:
        """Packs a link as a link where its target is packed beside it; otherwise packs the target
        in its place.
        """
        with reading(at.path):
            to = os.readlink(at.path)
        link = _Entry(at.name, at.path, "link", at.unit or at.name, to)
        try:
            status = os.stat(at.path)
        except OSError as error:
            self.notes.append((at.name, f"a link that cannot be followed ({error.strerror}): kept as a link"))
            self.entries.append(link)
            return
        target = os.path.normpath(os.path.join(os.path.dirname(at.inner), to))
        real = os.path.realpath(at.path)
        if (
            not os.path.isabs(to)
            and target.split("/")[0] not in ("..", ".")
            and real.startswith(at.root.rstrip("/") + "/")
            and self._step(at.name[: len(at.name) - len(at.inner)] + target) == self._step(link.unit)
        ):
            self.entries.append(link)
        elif stat.S_ISDIR(status.st_mode):
            if _identity(at.path) in at.around:
                self.notes.append((at.name, "a link to a folder that it lies in: kept as a link"))
                self.entries.append(link)
            else:
                self._walk(_Visit(at.name, at.path, at.unit, at.around, real, ""), links)
        else:
            self._file(at, status.st_mode)

    def _step(self, name: str) -> int | None:
        """The step of a name."""
        unit = next((u for u in self._units if u == _ALL or name == u or name.startswith(u + "/")), name)
        step = parse_path(unit).step
        return self._first if step is None else step

    def _keep_empty_folders(self) -> None:
        names = [e.name for e in self.entries]
        used: set[str] = set()
        for name in names + [name for name, _ in self._folders]:
            while "/" in name:
                name = name.rpartition("/")[0]
                if name in used:
                    break
                used.add(name)
        self.entries += [_Entry(n, "", "folder", unit) for n, unit in self._folders if n not in used]


@dataclass(frozen=True)
class _Visit:
    """A place on the way through a folder.

    around: the folders around it. root: the true path of the folder that links must not leave; inner: the
    name in it.
    """

    name: str
    path: str
    unit: str
    around: frozenset
    root: str
    inner: str


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _is_data_set(folder: str) -> bool:
    try:
        return detect(folder) is not None
    except FormatError:  # its files are packed in any case
        return False


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFSOCK: "a socket",
        stat.S_IFIFO: "a pipe",
        stat.S_IFBLK: "a device",
        stat.S_IFCHR: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "neither a file nor a folder")


def steps_of(tree: Tree, known: list[int]) -> list[_core.FilesOfStep]:
    """Steps of a folder of any program, and everything in each.

    The key of a file is common to the same file in all steps: its name without the step. known:
    steps that the record has.
    """
    by_step: dict[int, list[_Entry]] = {}
    unnumbered: list[_Entry] = []
    for entry in tree.entries:
        step = parse_path(entry.unit).step
        (unnumbered if step is None else by_step.setdefault(step, [])).append(entry)
    # A file without a step belongs to the run, and goes with its first step.
    if unnumbered:
        by_step.setdefault(min([*by_step, *known], default=0), []).extend(unnumbered)
    return [_core.FilesOfStep(step, _keyed(by_step[step])) for step in sorted(by_step)]


def _keyed(entries: list[_Entry]) -> list[_core.PackedFile]:
    keyed = []
    seen: set[str] = set()
    for entry in sorted(entries, key=lambda e: os.fsencode(e.name)):
        place = parse_path(entry.unit)
        if entry.unit == entry.name:
            rest = os.path.splitext(entry.name)[1]
        else:
            rest = "/" + entry.name.removeprefix(entry.unit + "/")
        key = f"{place.rank}/{place.name}{rest}"
        if len(os.fsencode(key)) > _LONGEST_KEY:
            key = hashlib.sha256(os.fsencode(key)).hexdigest()
        number = 1
        while (unique := key if number == 1 else f"{key}#{number}") in seen:
            number += 1
        seen.add(unique)
        keyed.append(
            _core.PackedFile(name=entry.name, path=entry.path, key=unique, kind=entry.kind, to=entry.to)
        )
    return keyed
