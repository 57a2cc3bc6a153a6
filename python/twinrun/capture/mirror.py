"""A history that is brought into a bucket: spec/history.md, "In a bucket"."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Mapping

from ..errors import DamagedFile, FormatError, MissingFile, TwinrunError
from ..formats.files import reading
from ..marks import MANIFEST
from ..remote import Bucket, Held, Mark, Taken
from ..runs.metadata import status_code
from ..runs.verify import damage_of_step
from .journals import Named, Snapshot, read_snapshot, snapshot_of

__all__ = ["Mirror", "upload_history"]


class Mirror:
    """One history, in a folder of this machine and in a bucket. The folder is the source of truth.

    Not thread-safe. What the bucket's journals name is there: files are written before them, and removed
    after them. Nothing is written over, or removed, that has no mark of this history or of one that it
    replaced.
    """

    def __init__(self, folder: str, bucket: Bucket) -> None:
        """Reads what the bucket has. Raises TwinrunError if its history was written by something else."""
        self.folder, self.bucket = folder, bucket
        self._writer = secrets.token_hex(8)  # tells the objects of this process from those of others
        self._held: dict[str, Held | None] = {}  # the journals, as they were seen or written last
        self.committed = snapshot_of(self._journal, bucket.name)
        self._there: set[str] = set()  # files that are in the bucket and belong to the history
        if self.committed is not None:
            named = self.committed.named()
            self._there.update(named.files)
            self._there.update(_mark(folder, self.committed.id) for folder in named.folders)
        self._tags: dict[str, str] = {}  # of the objects with the data that was uploaded here
        self._leaving: dict[str, set[str]] = {}  # files to remove, and the histories that they may be of

    def _journal(self, name: str) -> bytes | None:
        held = self.bucket.head(name)
        self._held[name] = held
        if held is None:
            return None
        if not held.mark:
            raise FormatError(
                "is in the bucket already, and was not written there by twinrun",
                where=self.bucket.place(name),
                fix="choose another prefix",
            )
        return self.bucket.get(name)

    def push(self) -> None:
        """Brings the bucket to what the folder has, one committed step after the other.

        After an error the bucket has the steps that were committed there before, and a further call goes on.
        """
        latest = self._latest()
        while True:
            try:
                return self._push(latest)
            except (DamagedFile, MissingFile, FileNotFoundError):
                before, latest = latest, self._latest()
                if latest.journals == before.journals:
                    raise
                # A file may have left while it was read: then the journals say so by now.

    def _latest(self) -> Snapshot:
        latest = read_snapshot(self.folder)
        if latest is None:
            raise DamagedFile("its manifest is gone", where=self.folder)
        return latest

    def _push(self, latest: Snapshot) -> None:
        before = self.committed
        if before is not None and before.id != latest.id and before.id not in latest.replaced:
            raise FormatError(
                f"holds another history than {self.folder}",
                where=self.bucket.name,
                fix="choose another prefix",
            )
        if before is not None and before.id == latest.id and not latest.begins_with(before):
            raise _diverged(self.bucket.name, self.folder)
        if before is not None and before.id != latest.id:
            self._replace(before, latest)
        for snapshot in latest.growing(self.committed):
            named = snapshot.named()
            # Before the check: files with the same codes after the upload are what was checked.
            codes = {path: self._code(path) for path in set(named.data_of.values()) - self._there}
            damage = self._damage(snapshot, named)
            if damage and snapshot is not latest:
                continue  # its files left meanwhile, or another attempt replaced them: a later snapshot says so
            if damage:
                raise DamagedFile(
                    damage, where=self.bucket.name, fix="capture the step again with replace_steps"
                )
            self._bring(snapshot, named, codes)
            self._commit(snapshot)
            self._leave(snapshot, named)
        self._remove()

    def lacks(self) -> set[int]:
        """The steps that the folder's journals have, and the bucket's do not."""
        here = read_snapshot(self.folder)
        there = self.committed
        if here is None:
            return set()
        if there is None or there.id != here.id:
            return here.named().steps
        return here.named().steps - there.named().steps

    def up_to_date(self) -> bool:
        """Whether the bucket has all that the folder's journals say."""
        here = read_snapshot(self.folder)
        there = self.committed
        return here is not None and there is not None and here.journals == there.journals

    def gone(self) -> set[int]:
        """The committed steps that somebody removed from the bucket since, in whole or in part."""
        there = self.committed
        if there is None:
            return set()
        named, sizes = there.named(), self.bucket.sizes()
        absent = {
            path for path, size in named.files.items() if path not in sizes or size not in (None, sizes[path])
        }
        if any(sizes.get(name) != len(lines) for name, lines in there.journals.items()):
            return named.steps
        # Of a record any step may need a file.
        if absent - {path for paths in named.of_step.values() for path in paths}:
            return named.steps
        return {step for step, paths in named.of_step.items() if paths & absent}

    # ---- the steps of a push ----

    def _replace(self, before: Snapshot, latest: Snapshot) -> None:
        """Begins the history in the place of another one, whose files leave."""
        old = before.named()
        begun = {name: lines[: lines.find(b"\n") + 1] for name, lines in latest.journals.items()}
        self._commit(Snapshot(begun, self.folder))
        for path in {*old.files, *(_mark(folder, before.id) for folder in old.folders)}:
            self._leaving[path] = {before.id}
        for name in set(before.journals) - set(latest.journals):
            self._leaving[name] = {before.id}
        self._there.clear()
        self._remove()

    def _damage(self, snapshot: Snapshot, named: Named) -> str:
        """What is wrong with files that are to be uploaded; "": nothing. Each byte is checked."""
        new = set(named.files) - self._there
        absent = [path for path in sorted(new) if not os.path.isfile(self._path(path))]
        if absent:
            return f"cannot get {self._path(absent[0])}, which is not there"
        steps = [step for step in sorted(named.steps) if named.of_step[step] & new]
        return next(filter(None, (damage_of_step(self.folder, step) for step in steps)), "")

    def _bring(self, snapshot: Snapshot, named: Named, codes: Mapping[str, int]) -> None:
        """codes: of the files of data, before they were checked."""
        whose = {snapshot.id, *snapshot.replaced}
        # Data first: the mark of its metadata tells the object that has it.
        for path in sorted(set(named.files) - self._there, key=lambda path: (path in named.data_of, path)):
            size = os.stat(self._path(path)).st_size
            if named.files[path] is not None and size != named.files[path]:
                raise DamagedFile(
                    f"has {size} bytes, and its journal says {named.files[path]}", where=self._path(path)
                )
            mark = _mark(path.partition("/")[0], snapshot.id)
            if mark not in self._there:
                self._put(mark, b"", whose, snapshot.id)
                self._there.add(mark)
            with reading(self._path(path)):
                data = self._tags.get(named.data_of.get(path, ""), "")
                tag = self._put(path, self._path(path), whose, snapshot.id, data)
            if codes.get(path) and codes[path] == self._code(path):
                self._tags[path] = Mark.tag_word(tag)
            self._there.add(path)

    def _code(self, path: str) -> int:
        """A code of the identity and last change of a file; 0: it is not there."""
        try:
            return status_code([os.stat(self._path(path))])
        except OSError:
            return 0

    def _put(self, key: str, content: bytes | str, whose: set[str], own: str, data: str = "") -> str:
        """Writes an object that no journal of the bucket names yet. One that is there already stays.

        data: as of `Mark`. Returns the object's tag.
        """
        self._check_writer()
        digest = _digest(content)
        for _ in range(2):
            held = self.bucket.head(key)
            self._check_whose(key, held, whose)
            mark = Mark(own, self._writer, digest, data)
            if held is not None and Mark.read(held.mark)._replace(writer=self._writer) == mark:
                return held.tag
            with contextlib.suppress(Taken):
                return self.bucket.put(key, content, str(mark), None if held is None else held.tag)
        raise _another(self.bucket.place(key), held)

    def _commit(self, snapshot: Snapshot) -> None:
        """Writes the journals; the last one commits."""
        names = [name for name in snapshot.journals if name != MANIFEST]
        first = self.committed is not None and self.committed.id != snapshot.id
        for name in [MANIFEST, *names] if first else [*names, MANIFEST]:
            lines = snapshot.journals[name]
            if self.committed is not None and self.committed.journals.get(name) == lines:
                continue
            self._put_journal(name, lines, snapshot)
        self.committed = snapshot

    def _put_journal(self, name: str, lines: bytes, snapshot: Snapshot) -> None:
        mark = str(Mark(snapshot.id, self._writer, _digest(lines)))
        now = self.bucket.head(name)
        if name not in self._held:  # there may be one of an upload that did not get to the manifest
            self._check_whose(name, now, {snapshot.id, *snapshot.replaced})
            self._held[name] = now
        held = self._held[name]
        if now is not None and now.mark == mark:  # an answer was lost
            self._held[name] = now
            return
        if now != held:
            raise _another(self.bucket.place(name), now)
        try:
            tag = self.bucket.put(name, lines, mark, None if held is None else held.tag)
        except Taken:
            now = self.bucket.head(name)
            if now is None or now.mark != mark:
                raise _another(self.bucket.place(name), now) from None
            tag = now.tag
        self._held[name] = Held(len(lines), tag, mark)

    def _check_whose(self, key: str, held: Held | None, whose: set[str]) -> None:
        """Raises FormatError if an object is of none of these histories."""
        if held is not None and Mark.read(held.mark).history not in whose:
            raise FormatError(
                "is in the bucket already, and is not of this history",
                where=self.bucket.place(key),
                fix="choose another prefix, or remove the object if it is yours",
            )

    def _check_writer(self) -> None:
        """Raises TwinrunError if another process writes this history."""
        now = self.bucket.head(MANIFEST)
        if now != self._held.get(MANIFEST):
            raise _another(self.bucket.place(MANIFEST), now)

    def _leave(self, snapshot: Snapshot, named: Named) -> None:
        """Notes the files that the journals name no longer."""
        stay = {*named.files, *(_mark(folder, snapshot.id) for folder in named.folders)}
        for path in self._there - stay:
            self._leaving[path] = {snapshot.id, *snapshot.replaced}
        self._there &= stay

    def _remove(self) -> None:
        """Removes what left, if it has the mark. An object that cannot be removed only takes space."""
        for path, whose in list(self._leaving.items()):
            if path not in self._there:
                self._check_writer()
                with contextlib.suppress(TwinrunError):
                    held = self.bucket.head(path)
                    if held is not None and Mark.read(held.mark).history in whose:
                        self.bucket.remove(path)
            del self._leaving[path]

    def _path(self, path: str) -> str:
        return os.path.join(self.folder, *path.split("/"))


def upload_history(folder: str, url: str) -> list[int]:
    """Brings a history into a bucket, where it may have been in part. Returns the steps that are there."""
    mirror = Mirror(folder, Bucket(url))
    mirror.push()
    assert mirror.committed is not None
    return sorted(mirror.committed.named().steps)


def _mark(folder: str, history: str) -> str:
    """The file that says whose the folder of a step is."""
    return f"{folder}/.twinrun-{history}"


def _digest(content: bytes | str) -> str:
    if isinstance(content, bytes):
        return hashlib.blake2b(content, digest_size=16).hexdigest()
    made = hashlib.blake2b(digest_size=16)
    with open(content, "rb") as file:
        while piece := file.read(1 << 20):
            made.update(piece)
    return made.hexdigest()


def _another(where: str, now: Held | None) -> FormatError:
    """now: what is there."""
    if now is None:
        return FormatError(
            "somebody has removed it since",
            where=where,
            fix="begin again with existing='append': steps that are in the local folder are uploaded again",
        )
    return FormatError(
        "another process has written it since",
        where=where,
        fix="let one process at a time write a history; then begin again with existing='append'",
    )


def _diverged(where: str, folder: str) -> FormatError:
    return FormatError(
        f"has other steps than {folder}: both were continued",
        where=where,
        fix="choose another prefix for one of them, or another local folder",
    )
