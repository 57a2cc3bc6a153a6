"""Objects of stores as subjects: one object, a Zarr store, a history."""

from __future__ import annotations

import contextlib
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
    """A history of which the files of a step are copied when it is opened.

    All data of a step is read at any rate: only its content tells that a copy belongs to its metadata.
    """

    def __init__(self, store: RemoteStore) -> None:
        if store.keys is None:
            raise Unsupported(
                "is a history, and a web server does not say which files it has",
                where=store.name,
                fix="download it first, or name it by s3:// or gs://",
            )
        self._store, self._copies = store, Copies(store)
        self._copies.bring(top_level(store))
        self._marks = [key for key in store.keys if STEP_MARK.fullmatch(key.rpartition("/")[2])]
        super().__init__(self._copies.folder, store.name)

    def _bring(self, place: Place, data: bool) -> None:
        folder, files = self._files[place]
        names = [files.metadata, *([files.data] if data else [])]
        marks = [key for key in self._marks if key.startswith(f"{folder}/")]
        self._copies.bring([*(f"{folder}/{name}" for name in names if name), *marks])
        if data and files.difference is not None:  # made of steps before
            self._copies.bring(self._store.keys or ())

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
