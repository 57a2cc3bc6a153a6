"""The last tier of a run that is a bucket: the run's history lies in a local folder, and is uploaded."""

from __future__ import annotations

import contextlib
import os
import threading

from ..errors import DamagedFile, FormatError, MissingFile, TwinrunError
from ..formats.files import reading
from ..marks import MANIFEST
from ..remote import Bucket
from .journals import Snapshot, read_snapshot
from .local_folder import LocalFolder
from .mirror import Mirror
from .uploader import Uploader

__all__ = ["BucketTier"]


class BucketTier:
    """What a run adds to its history because the bucket is its last tier.

    folder: where the run's history lies. name: the URL, as messages have it.
    """

    def __init__(self, url: str, local: str | None, limit: int | None, existing: str, uploads: bool) -> None:
        """limit: bytes that steps may take in the local folder; None: any number. uploads: False leaves
        steps there.

        Raises TwinrunError as `Run` does.
        """
        bucket = Bucket(url)  # before anything is made here
        self.name, self._limit, self._uploads = bucket.name, limit, uploads
        self._local = LocalFolder(url, local, bucket.store)
        self.folder = self._local.history
        self._uploader: Uploader | None = None
        self._captured: set[int] = set()  # steps that may not be in the journals yet
        self._told: set[int] = set()
        self._lock = threading.Lock()
        try:
            self._mirror = Mirror(self.folder, bucket)
            self._settle(existing)
        except BaseException:
            self._local.close()
            raise

    def begin(self) -> None:
        """Uploads what is there, once the run has opened its history. Raises TwinrunError if that fails.

        A damaged step, or one that is not here, is no reason not to begin: it can be captured again. The
        next call says so.
        """
        if self._uploads:
            with contextlib.suppress(DamagedFile):
                self._mirror.push()
            self._uploader = Uploader(self._mirror, self._underway)

    # ---- before the run opens its history ----

    def _settle(self, existing: str) -> None:
        """Makes the local history that of the bucket, or one that goes on from there."""
        there = self._mirror.committed
        here = read_snapshot(self.folder) if self._local.exists else None
        if existing == "refuse" and (there is not None or here is not None):
            place = self.name if there is not None else self.folder
            raise TwinrunError(
                "holds a history"
                if there is not None
                else f"holds steps of a run that were to go to {self.name}",
                where=place,
                fix="give existing='append' to go on with it, existing='replace' to begin anew, or another path",
            )
        if there is None or (here is not None and here.begins_with(there)):
            return
        if here is not None and not there.begins_with(here):
            raise FormatError(
                f"has other steps than the local folder {self.folder}",
                where=self.name,
                fix="move the local folder away if its steps are not needed, or choose another prefix",
            )
        self._take(there)

    def _take(self, there: Snapshot) -> None:
        """Brings the journals, and of a record all files: the next differences are made against them."""
        named = there.named()
        with reading(self.folder):
            os.makedirs(self.folder, exist_ok=True)
        if there.is_record:
            for path in sorted(named.files):
                self._bring(path, named.files[path])
        for folder in named.folders if there.is_record else ():
            self._mark(folder, there.id)
        names = [name for name in there.journals if name != MANIFEST]
        for name in [*names, MANIFEST]:
            new = self._local.brought
            with reading(self.folder):
                with open(new, "wb") as file:
                    file.write(there.journals[name])
                os.replace(new, os.path.join(self.folder, name))

    def _mark(self, folder: str, history: str) -> None:
        with open(os.path.join(self.folder, folder, f".twinrun-{history}"), "ab"):
            pass

    def _bring(self, path: str, size: int | None) -> None:
        """Brings a file, unless it is here."""
        target = os.path.join(self.folder, *path.split("/"))
        with reading(target):
            if os.path.lexists(target) and size in (None, os.lstat(target).st_size):
                return
            os.makedirs(os.path.dirname(target), exist_ok=True)
            new = self._local.brought
            try:
                self._mirror.bucket.download(path, new)
                os.replace(new, target)
            except BaseException:
                if os.path.lexists(new):
                    os.unlink(new)
                raise

    # ---- while it goes on ----

    def bring_step(self, step: int) -> None:
        """Brings the files of a step that are not in the local folder."""
        snapshot = read_snapshot(self.folder)
        named = None if snapshot is None else snapshot.named()
        if snapshot is None or named is None:
            return
        for path in sorted(named.of_step.get(step, ())):
            if not os.path.lexists(os.path.join(self.folder, path)):
                try:
                    self._bring(path, named.files[path])
                except MissingFile:  # the core says what is missing
                    continue
                self._mark(path.partition("/")[0], snapshot.id)

    def before_capture(self) -> None:
        """Waits while the local folder has no room, unless uploads fail or rest: then steps stay there."""
        uploader = self._uploader
        while self._limit and uploader is not None and not self._make_room(self._limit):
            if not uploader.wait_for_push():
                return

    def captured(self, step: int) -> dict[int, str]:
        """Uploads a step in the background.

        Returns the steps whose upload has failed since the last call, and why.
        """
        if self._uploader is None:
            return {}
        with self._lock:
            self._captured.add(step)
        lacking = self._lacking()
        self._uploader.notify()
        return lacking

    def drain(self) -> dict[int, str]:
        """Waits until the bucket has all that the local folder has.

        Returns the steps whose upload fails, and why. Raises TwinrunError if the bucket lacks something else.
        """
        if self._uploader is None:
            return {}
        with self._lock:
            self._captured.clear()
        self._uploader.drain()
        error = self._uploader.error
        if error is None:
            return {}
        self._told.clear()
        lacking = self._lacking()
        if not lacking:
            raise error
        return lacking

    def close(self) -> dict[int, str]:
        """As `drain`, and ends the uploads. The local folder goes if the bucket has all of it."""
        try:
            lacking = self.drain()
            if self._uploader is not None:
                self._uploader.stop()
                if self._uploader.error is None and self._mirror.up_to_date():
                    lacking |= self._clear()
            return lacking
        finally:
            if self._uploader is not None:
                self._uploader.stop()
            self._local.close()

    def _clear(self) -> dict[int, str]:
        """Removes the local history, if the bucket still has it. Returns the steps that it lost, and why."""
        assert self._mirror.committed is not None
        gone = self._mirror.gone()
        if not gone:
            self._local.clear(self._mirror.committed)
        why = f"somebody removed objects of it from the bucket; what this machine has is in {self.folder}"
        return dict.fromkeys(sorted(gone), why)

    def abandon(self) -> None:
        """Lets go of the local folder, of a run that did not begin."""
        self._local.close()

    @property
    def ends_local(self) -> bool:
        """Whether steps stay in the local folder because nothing uploads them."""
        return not self._uploads

    def committed(self) -> set[int]:
        """The steps that the bucket has."""
        there = self._mirror.committed
        return set() if there is None else there.named().steps

    def _lacking(self) -> dict[int, str]:
        """The steps that the last push did not bring, without those that were reported."""
        uploader = self._uploader
        assert uploader is not None
        lacking, error = uploader.lacking - self._told, uploader.error
        self._told |= lacking
        why = f"it is in {self.folder} only (twinrun flush {self.folder} --to {self.name} brings it over): {error}"
        return dict.fromkeys(sorted(lacking), why)

    def _underway(self) -> bool:
        here = read_snapshot(self.folder)
        with self._lock:
            if here is not None and self._captured:
                self._captured -= here.named().steps
            return bool(self._captured)

    def _make_room(self, limit: int) -> bool:
        """Removes data of uploaded steps, in the order of their numbers. Whether there is room then."""
        here, there = read_snapshot(self.folder), self._mirror.committed
        if here is None or there is None:
            return True
        named = here.named()
        sizes = {path: _size(os.path.join(self.folder, path)) for path in named.files}
        used = sum(sizes.values())
        safe = there.named().files if here.begins_with(there) else {}
        for step in sorted(named.of_step):
            for path in sorted(named.of_step[step]):
                if used > limit and path in safe and sizes[path] == safe[path] != 0:
                    with contextlib.suppress(OSError):
                        os.unlink(os.path.join(self.folder, path))
                        used -= sizes[path]
        return used <= limit


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0
