"""Objects of stores as subjects: one object, a Zarr store, a history."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence

from .. import _core
from ..errors import MissingFile, Unsupported
from ..formats.folder import told_format
from ..formats.raw import may_have_sidecar, sidecar
from ..marks import MANIFEST, STEP_MARK, TRACE_EVENTS
from ..remote import Copies, RemoteStore, attach, below, detach, enter_store, forget_store, top_level
from ..urls import shown
from .files import Files
from .histories import HistorySubject
from .metadata import READ_TO_MAKE_SURE
from .subject import Listed, ListedPlaces, Opened, Place, Subject

__all__ = ["open_remote"]


_DATA_OF_STEP = re.compile(r"step-\d{10,}/rank-\d+\.(data|twm)")
_OF_RANK = re.compile(r"/rank-(\d+)\.(?:.*\.)?(\w+)\Z")
_WHOLE = 256 << 10  # bytes: smaller metadata is read as a whole, as each request takes its time


def open_remote(url: str, options: Mapping[str, object]) -> Subject:
    """Opens a URL as a subject, which forgets its objects when it goes.

    Raises MissingFile if there is nothing, MissingPackage where a package is missing, FormatError if it
    cannot be read.
    """
    store = below(url, told_format(options))
    if store is None:
        name = attach(url)
        return _files([name, *_beside(url, name, options)], options, detach)
    if store.attach(MANIFEST) is not None:
        return _RemoteHistory(store)
    if any(_DATA_OF_STEP.fullmatch(key) for key in store.keys or ()):
        raise MissingFile(
            f"has the steps of a history, and not its {MANIFEST}",
            where=store.name,
            fix="upload the history again: what no manifest names was never committed",
        )
    return _files([enter_store(store)], options, forget_store)


def _beside(url: str, name: str, options: Mapping[str, object]) -> list[str]:
    """The description of a raw file, if it has one."""
    if options or not may_have_sidecar(name):
        return []
    try:
        return [attach(url, sidecar(""), sidecar(name))]
    except MissingFile:
        return []
    except BaseException:
        detach(name)
        raise


def _files(names: list[str], options: Mapping[str, object], forget: Callable[..., None]) -> Subject:
    """The subject of the first of these names. forget: what is called with all of them when it goes."""
    try:
        subject = Files("file", names[0], names[:1], dict(options))
    except BaseException:
        forget(*names)
        raise
    weakref.finalize(subject, forget, *names)
    return subject


class _RemoteHistory(HistorySubject):
    """A history of which the metadata of a step is copied when it is opened.

    Its data is read by ranges where the mark of its metadata tells the object: twinrun checked each byte of
    it, when it uploaded both. Other data is copied, and all of it read: only its content tells that it
    belongs to its metadata.
    """

    def __init__(self, store: RemoteStore) -> None:
        self._store, self._copies = store, Copies(store)
        if store.keys is None:
            self._bring_journals()
        else:
            self._copies.bring(top_level(store))
        self._told: dict[Place, bool] = {}  # whether marks tell the data of a place
        self._marks = [key for key in store.keys or () if STEP_MARK.fullmatch(key.rpartition("/")[2])]
        super().__init__(self._copies.folder, store.name)

    def _bring_journals(self) -> None:
        """Brings what a web server does not list: the manifest, and by its name each journal up to the first
        one that is not there. Without that one no step is whole.
        """
        self._copies.bring([MANIFEST])
        with open(os.path.join(self._copies.folder, MANIFEST), "rb") as file:
            first = file.readline()
        try:
            ranks = json.loads(first).get("ranks", 1)
        except (ValueError, AttributeError):  # who opens the history says so
            return
        for rank in range(ranks if isinstance(ranks, int) and ranks > 1 else 0):
            name = f"rank-{rank:05}.jsonl"
            self._copies.bring([name])
            if not os.path.exists(os.path.join(self._copies.folder, name)):
                return

    def _bring(self, place: Place, data: bool) -> None:
        folder, files = self._files[place]
        marks = [key for key in self._marks if key.startswith(f"{folder}/")]
        self._copies.bring(marks)
        if files.metadata:
            self._bring_metadata(place)
        if not data or not files.data:
            return
        if files.difference is not None:  # made of steps before
            if self._store.keys is None:
                raise Unsupported(
                    "is a record, and a web server does not say which files it has",
                    where=self.label,
                    fix="download it first, or name it by s3:// or gs://",
                )
            self._copies.bring(self._needed(place, files.difference))
        elif self._is_told(place):
            self._copies.stand_in(f"{folder}/{files.data}")
        else:
            self._copies.bring([f"{folder}/{files.data}"])

    @functools.cached_property
    def _differences(self) -> dict[str, int]:
        """The differences of a record's steps, by their objects."""
        steps = self._files.values()
        return {f"{at}/{of.data}": of.difference for at, of in steps if of.difference is not None}

    def _needed(self, place: Place, difference: int) -> Iterator[str]:
        """The objects that a step of a record may be made of: of its rank, without later differences."""
        for key in self._store.keys or ():
            of_rank = _OF_RANK.search(key)
            if of_rank is not None and (int(of_rank[1]) != place[1] or of_rank[2] == "twm"):
                continue
            if self._differences.get(key, 0) <= difference:
                yield key

    def _bring_metadata(self, place: Place) -> None:
        folder, files = self._files[place]
        key = f"{folder}/{files.metadata}"
        # Where data is checked against metadata, all of both is read.
        if files.metadata_bytes > _WHOLE and (not files.data or self._is_told(place)):
            self._copies.stand_in(key)
        else:
            self._copies.bring([key])

    def _is_told(self, place: Place) -> bool:
        """Whether the mark of the metadata tells the object that has the data."""
        if place not in self._told:
            folder, files = self._files[place]
            tag = self._store.mark(f"{folder}/{files.metadata}").data if files.metadata else ""
            self._told[place] = bool(tag) and tag == self._store.tag(f"{folder}/{files.data}")
        return self._told[place]

    def _is_current(self, place: Place, metadata: _core.Metadata) -> bool:
        return self._is_told(place) or super()._is_current(place, metadata)

    def metadata(self, place: Place) -> _core.Metadata:
        self._bring(place, False)
        found = super().metadata(place)
        if any(field.name == TRACE_EVENTS for field in found.fields):
            raise Unsupported("is a trace", where=self.label, fix="download it first")
        return found

    @contextlib.contextmanager
    def _open(self, place: Place, use_metadata: bool) -> Iterator[Opened]:
        self._bring(place, True)
        with super()._open(place, use_metadata) as opened:
            # That a copy's times are others says nothing.
            notes = [note for note in opened.notes if not note.endswith(READ_TO_MAKE_SURE)]
            opened.notes = [shown(note) for note in notes]
            yield opened

    def _is_touched(self, rank: int) -> bool:
        return True  # it is a copy

    @contextlib.contextmanager
    def listed(self, place: Place) -> Iterator[Listed | None]:
        self._bring(place, True)
        with super().listed(place) as found:
            yield found

    def listed_together(self, places: Sequence[Place]) -> ListedPlaces | None:
        return None
