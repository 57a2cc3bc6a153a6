"""Opens a path, or arrays of the caller, as the subject for a history, files, a metadata file or arrays."""

from __future__ import annotations

import contextlib
import functools
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence

from .. import _core
from ..arguments import checked_path, format_options
from ..errors import MissingFile, Unsupported, in_words_of_the_caller
from ..formats import FileContent, formats
from ..formats.facts import NOT_COMPARED, SUMMARY
from ..formats.folder import Listing, is_data_set, is_history, list_folder, told_format
from ..formats.opaque import NAME as BYTES
from ..marks import METADATA_SUFFIX, has_manifest
from ..urls import foreign_scheme, is_url
from .fields import refs_of_metadata
from .files import Files, one_array_format
from .histories import HistorySubject
from .metadata import check_content, check_layout, reopening, untouched
from .subject import Opened, Place, Subject

__all__ = ["open_subject", "without_effect"]

_OWN = frozenset(("format", "dtype", "shape", "offset"))  # options of the command line themselves


class _Metadata(Subject):
    """A metadata file, given by its own path. Its data is used if it is available."""

    def __init__(self, path: str) -> None:
        super().__init__("file", path, [(None, 0)])

    @contextlib.contextmanager
    def open(self, place: Place, use_metadata: bool = True, whole: bool = True) -> Iterator[Opened]:
        metadata = _core.Metadata(self.label)
        reopen = reopening(metadata)
        with contextlib.ExitStack() as stack:
            once = None if reopen is None else functools.cache(lambda: stack.enter_context(reopen()))
            yield self._opened(metadata, once)

    def _opened(self, metadata: _core.Metadata, reopen: Callable[[], FileContent] | None) -> Opened:
        refs = refs_of_metadata(metadata, reopen)
        opened = Opened()
        for ref in refs:
            if ref.name == NOT_COMPARED:
                why = "the indexed file holds something that cannot be compared"
                opened.skipped.append((ref.name, self.label, why))
            elif ref.name == SUMMARY:
                ref.kind = "code"
        indexed, refs = refs, [ref for ref in refs if ref.name != NOT_COMPARED]
        plain = [ref for ref in refs if ref.name != SUMMARY]
        kinds = [ref.facts.format.partition(" ")[0] for ref in plain if ref.facts is not None]
        opened.one_array = len(plain) == 1 and one_array_format(kinds[0])
        opened.array_name = plain[0].name if opened.one_array else None
        opened.formats = set(kinds)
        try:
            if not untouched(metadata):
                if reopen is not None:
                    check_layout(metadata, indexed, reopen())
                opened.notes += check_content(metadata, refs)
            opened.reopen = reopen
        except MissingFile:
            opened.notes.append(f"{self.label}: its data is not available: only its metadata is compared")
            for ref in refs:
                ref.no_data = True
        opened.update({ref.name: ref for ref in refs})
        return opened


def _mode(path: str) -> int | None:
    """What a path is; None: it is not there, or cannot be looked at."""
    try:
        return os.stat(path).st_mode
    except (OSError, ValueError):
        return None


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _no_data(path: str, listing: Listing) -> MissingFile:
    """Why nothing in a folder is compared: it is empty, or all files in it are of unknown formats."""
    there = [file.relative for file in listing.files] + [name for name, _ in listing.unreadable]
    if not there:
        return MissingFile(
            "an empty folder",
            where=path,
            fix="name a history that twinrun captured, or a folder with the files of a run",
        )
    some = ", ".join(there[:3]) + (f" and {len(there) - 3} more" if len(there) > 3 else "")
    return MissingFile(
        f"a folder without data files of a known format; it has {some}",
        where=path,
        fix="--format bytes compares files of any kind",
    )


def open_subject(
    what: object,
    options: Mapping[str, object] | None = None,
    stream: object = None,
    read_small: bool = False,
) -> Subject:
    """Opens a path, an array or a container of arrays (see `containers`) as a subject. A Subject is returned
    as it is.

    options: options of formats (format, dtype, shape, …). stream: the GPU stream that computes arrays on a
    GPU. read_small: small .npy files of a folder are read as a whole when they are listed, so that they are
    opened once. Raises MissingFile if there is no such path or no data in it, FormatError if a file cannot
    be read, TwinrunError for an object that cannot be compared.
    """
    options = format_options(options)
    if isinstance(what, Subject):
        return what
    if not isinstance(what, (str, os.PathLike)):
        from .in_memory import open_arrays  # with NumPy

        return open_arrays(what, stream)
    path = checked_path(what)
    if is_url(path):
        from .remote import open_remote

        return open_remote(path, options)
    if has_manifest(path):
        return HistorySubject(path)
    mode = _mode(path)
    if mode is None:
        if scheme := foreign_scheme(path):
            fix = "name it by https://, s3:// or gs://, or download it first"
            raise Unsupported(f"{scheme}:// is not read", where=path, fix=fix)
        raise MissingFile.at(path)
    if not stat.S_ISDIR(mode):
        if path.endswith(METADATA_SUFFIX):
            return _Metadata(path)
        return Files("file", path, [path], options)
    is_history(path)  # raises where its manifest is no file
    forced = told_format(options)
    if is_data_set(path, forced):
        return Files("file", path, [path], options)
    at_hand = _core.FilesAtHand() if read_small and not options else None
    listing = list_folder(path, options, at_hand)
    if not listing.data() and forced is not None and formats()[forced].is_folder is not None:
        return Files("file", path, [path], options)  # opening it raises the error
    if not listing.data() and not (forced == BYTES and listing.files):
        raise _no_data(path, listing)
    subject = Files("folder", path, listing.files, options, listing.has_metadata, at_hand)
    subject.notes.extend(f"{path}/{name} is ignored: {why}" for name, why in listing.ignored)
    # A file whose name is not UTF-8 is not compared at all, which is a problem of its own.
    as_bytes = [(name, why) for name, why in listing.unknown if _is_utf8(name)]
    subject.notes.extend(f"{path}/{name} is compared as bytes: {why}" for name, why in as_bytes)
    subject.skipped = [(name, os.path.join(path, name), why) for name, why in listing.unreadable]
    return subject


def without_effect(subjects: Sequence[Subject], options: Mapping[str, object] | None) -> list[str]:
    """Notes on options of formats that none of these runs takes: the user may think that they count."""
    notes = []
    for option in options or ():
        if any(subject.takes(option) for subject in subjects):
            continue
        named = f"--{option}" if option in _OWN else f"the option {option!r}"
        takers = [name for name, known in formats().items() if option in known.options]
        if option == "format":
            why = "no file of another program is read here"
        elif takers:
            why = f"no file here has a format that takes it ({', '.join(takers)})"
        else:
            why = "no format has such an option"
        notes.append(in_words_of_the_caller(f"{named} has no effect: {why}"))
    return notes
