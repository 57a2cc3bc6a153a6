"""The journals of a history as bytes, and which files they name: what is uploaded, and in which order."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from ..errors import DamagedFile, Unsupported
from ..formats.files import reading
from ..marks import MANIFEST

__all__ = ["Named", "Snapshot", "read_snapshot", "snapshot_of"]

_MOST_RANKS = 1_000_000


@dataclass
class Named:
    """What one or more journals name.

    files: path in the history -> size; None where the journals do not tell it. steps: those that every
    journal has. folders: those of steps. data_of: of files of metadata, the file with their data.
    """

    files: dict[str, int | None] = field(default_factory=dict)
    steps: set[int] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)
    of_step: dict[int, set[str]] = field(default_factory=dict)
    data_of: dict[str, str] = field(default_factory=dict)


class Snapshot:
    """The journals of a history at one moment. journals: name of the file -> its whole lines."""

    def __init__(self, journals: Mapping[str, bytes], where: str) -> None:
        """where: for messages. Raises DamagedFile if lines are no journal's."""
        self.journals = dict(journals)
        self._where = where
        first = self._lines(MANIFEST, first=True)
        if not first or "twinrun_history" not in first[0]:
            raise DamagedFile("is no manifest of a history", where=f"{where}/{MANIFEST}")
        manifest = first[0]
        if "history" in manifest or "of" in manifest:
            raise Unsupported(
                "is a part of a history on a node-local tier",
                where=where,
                fix="bring it to the history's folder first (twinrun flush), and upload that",
            )
        self.id = str(manifest.get("id", ""))
        self.replaced = {str(one) for one in manifest.get("replaced", ())}
        self.is_record = "record" in manifest
        self.ranks = manifest.get("ranks", 1)
        if not isinstance(self.ranks, int) or not 1 <= self.ranks <= _MOST_RANKS:
            raise DamagedFile("its number of ranks has no meaning", where=f"{where}/{MANIFEST}")
        if not self.id:
            raise Unsupported("a history without an ID is not uploaded", where=where, fix="copy it by hand")
        if isinstance(manifest.get("record"), dict) and "against" in manifest["record"]:
            raise Unsupported(
                "a record against another record is not uploaded: a bucket has no paths between records",
                where=where,
            )

    @property
    def names(self) -> list[str]:
        """The journals that hold steps."""
        return journal_names(self.ranks)

    def named(self) -> Named:
        """What the journals name. A step counts where each of them has it, in the same folder."""
        found, common = Named(), None
        for name in self.names:
            state = _RankState()
            try:
                for line in self._lines(name)[1:]:
                    state.take(line)
                state.add_to(found)
            except (KeyError, TypeError, ValueError, IndexError, AttributeError):
                raise DamagedFile("a line is no journal's", where=f"{self._where}/{name}") from None
            mine = {(step, folder) for step, (folder, _) in state.steps.items()}
            common = mine if common is None else common & mine
        found.steps = {step for step, _ in common or ()}
        return found

    def growing(self, begun: Snapshot | None) -> Iterator[Snapshot]:
        """This snapshot and, before it, the earlier ones that end with a step which `begun` does not have.

        Only of one rank: journals of several ranks have no common order.
        """
        if self.ranks == 1:
            content = self.journals[MANIFEST]
            at = len(begun.journals[MANIFEST]) if begun is not None and begun.id == self.id else 0
            while at < len(content):
                end = content.find(b"\n", at) + 1
                line = content[at:end]
                at = end
                if b'"step":' in line and b'"ranks":[' in line and at < len(content):
                    yield Snapshot({MANIFEST: content[:at]}, self._where)
        yield self

    def begins_with(self, other: Snapshot) -> bool:
        """Whether each journal begins with the lines that it has in `other`."""
        return self.id == other.id and all(
            self.journals.get(name, b"").startswith(lines) for name, lines in other.journals.items()
        )

    def _lines(self, name: str, first: bool = False) -> list[dict]:
        """The lines of a journal, or only its first one."""
        content = self.journals.get(name, b"")
        try:
            texts = [content.partition(b"\n")[0]] if first else content.split(b"\n")
            lines = [json.loads(line) for line in texts if line]
        except ValueError:
            lines = [None]
        if not all(isinstance(line, dict) for line in lines):
            raise DamagedFile("a line is no JSON object", where=f"{self._where}/{name}")
        return lines


class _RankState:
    """What the lines of one journal come to: spec/history.md."""

    def __init__(self) -> None:
        self.steps: dict[int, tuple[str, dict]] = {}
        self._differences: dict[int, str] = {}  # ordinal -> path of its file
        self._sizes: dict[str, int] = {}

    def take(self, line: dict) -> None:
        if "step" in line and "folder" in line:
            folder, files = str(line["folder"]), dict(line["ranks"][0])
            self.steps[int(line["step"])] = folder, files
            if "difference" in files:
                path = f"{folder}/{files['data']}"
                self._differences[int(files["difference"])] = path
                self._sizes[path] = int(files["data_bytes"])
        elif "drop" in line:
            self.steps.pop(int(line["drop"]), None)
        elif "drop_data" in line and int(line["drop_data"]) in self.steps:
            self.steps[int(line["drop_data"])][1]["data"] = ""
        elif "moved" in line:
            for moved in line["moved"]:
                self._differences.update((int(one), str(moved["file"])) for one in moved["differences"])
            for one in line["gone"]:
                self._differences.pop(int(one), None)
        elif "difference" in line:
            self._differences[int(line["difference"])] = str(line["file"])

    def add_to(self, found: Named) -> None:
        for step, (folder, files) in self.steps.items():
            mine = found.of_step.setdefault(step, set())
            if files["metadata"]:
                mine.add(_add(found, f"{folder}/{files['metadata']}", int(files["metadata_bytes"])))
            if files["data"] and "difference" not in files:
                size = int(files.get("file_bytes", files["data_bytes"]))
                mine.add(data := _add(found, f"{folder}/{files['data']}", size))
                if files["metadata"]:
                    found.data_of[f"{folder}/{files['metadata']}"] = data
        for path in self._differences.values():
            _add(found, path, self._sizes.get(path))


def _add(found: Named, path: str, size: int | None) -> str:
    """Adds a file. Raises ValueError for a path that is no file in a folder of the history."""
    folder, slash, name = path.partition("/")
    if not slash or "/" in name or {folder, name} & {"", ".", ".."} or "\0" in path:
        raise ValueError
    found.files[path] = size
    found.folders.add(folder)
    return path


def journal_names(ranks: int) -> list[str]:
    return [MANIFEST] if ranks == 1 else [f"rank-{rank:05}.jsonl" for rank in range(ranks)]


def snapshot_of(journal: Callable[[str], bytes | None], where: str) -> Snapshot | None:
    """The journals that `journal(name)` gives as bytes or None; None: there is no manifest.

    A last line that is not whole is left out.
    """
    manifest = _whole(journal(MANIFEST))
    if not manifest:
        return None
    found = {MANIFEST: manifest}
    for name in Snapshot(found, where).names:
        if name != MANIFEST:
            found[name] = _whole(journal(name))
    return Snapshot(found, where)


def _whole(lines: bytes | None) -> bytes:
    return (lines or b"")[: (lines or b"").rfind(b"\n") + 1]


def read_snapshot(folder: str) -> Snapshot | None:
    """The journals of a history on this machine; None: there is none."""

    def journal(name: str) -> bytes | None:
        path = os.path.join(folder, name)
        if not os.path.lexists(path):
            return None
        with reading(path), open(path, "rb") as file:
            return file.read()

    return snapshot_of(journal, folder)
