"""Readers of file formats: `open_file` returns the named arrays of a file.

Every module of this folder that defines `FORMAT` is a format, and stands in `catalogue`; README.md
says how to add one. A module is imported when a file may be of its format, and optional packages
when a file needs them.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Set

from .. import _core
from ..errors import FormatError, MissingFile, MissingPackage, Unsupported
from ..remote import object_of, store_of
from .catalogue import BUILT_IN
from .element_types import ITEMSIZE
from .files import file_size, open_regular, reading
from .how import how_read, read_as
from .model import Extent, Field, FileContent, Format
from .texts import printable

__all__ = [
    "ITEMSIZE",
    "Extent",
    "Field",
    "FileContent",
    "Format",
    "detect",
    "formats",
    "open_as",
    "open_file",
    "open_whatever",
    "register",
]

_extra: dict[str, Format] = {}
_TEXT_SAMPLE = 4096
_HEAD = 16  # bytes: the longest magic
# Of these every byte is read through `files` or by the core. Readers of other packages would open a
# URL themselves, and would not see that an object changes.
_OF_STORES = frozenset({"bytes", "hdf5", "netcdf", "npy", "npz", "raw", "safetensors", "table", "zarr"})


def formats() -> dict[str, Format]:
    """All known formats by name.

    >>> "npy" in twinrun.formats.formats()
    True

    Returns
    -------
    dict of str to Format
        In the order in which detection asks them.
    """
    return dict(_ordered(*_extra.values()))


def format_named(name: str) -> Format | None:
    """The format of a name, as `formats` has it; None if there is none."""
    return _ordered(*_extra.values()).get(name)


@functools.cache
def _ordered(*extra: Format) -> dict[str, Format]:
    return {f.name: f for f in sorted((*BUILT_IN, *extra), key=lambda f: (f.order, f.name))}


def register(new: Format) -> None:
    """Adds a format of another package, or replaces one of the same name.

    >>> from twinrun.formats import Field, FileContent, Format, register
    >>> def open_mine(path):
    ...     x = np.ones(2)
    ...     content = FileContent(path, "mine")
    ...     content.add(Field("x", "f64", "little", (2,), read=lambda first, count: x[first : first + count]))
    ...     return content
    >>> register(Format("mine", "My format", open_mine, suffixes=(".mine",)))
    >>> with open("data.mine", "wb") as file:
    ...     _ = file.write(b"anything")
    >>> twinrun.compare("data.mine", {"x": np.ones(2)}).verdict
    'same'

    Parameters
    ----------
    new : Format
        The format.

    Notes
    -----
    Not thread-safe: register formats before other threads open files.
    """
    _extra[new.name] = new


def detect(path: str) -> Format | None:
    """Finds the format of a file or folder by its name, its content or its suffix, in this order.

    >>> np.save("x.npy", np.zeros(3))
    >>> twinrun.formats.detect("x.npy").name
    'npy'

    Parameters
    ----------
    path : str or path
        An existing file or folder.

    Returns
    -------
    Format or None
        None if the format is not known.

    Raises
    ------
    MissingFile
        The file does not exist.
    FormatError
        It is not a regular file, or it cannot be read.
    """
    path = os.fspath(path)
    known = list(formats().values())
    if _is_folder(path):
        return next((f for f in known if f.is_folder is not None and f.is_folder(path)), None)
    for candidate in known:
        if candidate.claims is not None and candidate.claims(path):
            return candidate
    promised = by_suffix(path)
    file, _ = open_regular(path)
    with file, reading(path):
        head = file.read(_HEAD)
        for candidate in known:
            if any(head.startswith(magic) for magic in candidate.magic):
                return candidate
        # Content without magic bytes may fit several formats: the format of the suffix is asked
        # first.
        for candidate in sorted(known, key=lambda f: f is not promised):
            if candidate.sniff is not None:
                file.seek(0)
                if candidate.sniff(path, file):
                    return candidate
    return promised


def _is_folder(path: str) -> bool:
    return store_of(path) is not None or os.path.isdir(path)


def is_plain(format: Format) -> bool:
    """Whether the core reads the headers of files of a format: it is its built-in reader, and none
    of another package.
    """
    return format.name in ("npy", "safetensors") and format.name not in _extra


def npy_among(paths: Iterable[str], at_hand: _core.FilesAtHand | None = None) -> Set[str]:
    """Those of these regular files of which `detect` finds that they are .npy, by suffix and first bytes.

    Of others more must be looked at. at_hand: where small files are kept, read as a whole.
    """
    named = [path for path in paths if path.endswith(".npy")]
    if _extra or not named:
        return frozenset()
    found = _core.are_npy([os.fsencode(path) for path in named], at_hand)
    return {path for path, is_npy in zip(named, found, strict=True) if is_npy}


def by_suffix(path: str) -> Format | None:
    """The format of a file's suffix, None if no format has it. The content is not read."""
    suffix = os.path.splitext(path)[1].lower()
    return next((f for f in _ordered(*_extra.values()).values() if suffix in f.suffixes), None)


def by_name(name: str, where: str) -> Format:
    """The format called `name`. Raises FormatError if there is none; `where` is for the message."""
    chosen = formats().get(name)
    if chosen is None:
        raise FormatError(f"unknown format {name!r}", where=where, fix="known are " + " ".join(formats()))
    return chosen


def open_file(path: str | os.PathLike[str], format: str | None = None, **options: object) -> FileContent:
    """Opens a file, and returns its named arrays without reading them.

    >>> np.save("x.npy", np.arange(3.0))
    >>> with twinrun.formats.open_file("x.npy") as content:
    ...     content.fields["x"].elements()
    array([0., 1., 2.])

    Parameters
    ----------
    path : str or path
        The file, or the folder for formats that are folders.
    format : str, default None
        A name from `formats()`; None detects it.
    **options : object
        Options of the format: raw takes dtype, shape, offset, order, fields, record, name and partial; hdf5
        takes cache. docs/reference/formats.md lists all.

    Returns
    -------
    FileContent
        Its fields and facts. Close it, or use it in a `with` statement.

    Raises
    ------
    FormatError
        The format is not known, the file cannot be read as this format, or the format has no such option.
    MissingFile, DamagedFile, Unsupported, MissingPackage
        Subclasses of FormatError. No other error is raised.

    Notes
    -----
    Opening reads headers only; a text table is read whole, because only its cells show the types of its
    columns. Sizes in headers are checked against the size of the file before memory is allocated.
    """
    path = os.fspath(path)
    try:
        return _opened(path, format, options)
    except FormatError as error:
        from .advice import with_advice

        raise with_advice(error, path) from error.__cause__


def _opened(path: str, format: str | None, options: dict[str, object]) -> FileContent:
    """What `open_file` returns."""
    with reading(path):
        chosen = _choose(path, format, options)
        wrong = sorted(set(options) - chosen.options)
        if wrong:
            known = f"it takes {' '.join(sorted(chosen.options))}" if chosen.options else "it takes none"
            as_raw = format is None and chosen.name != "table"
            typed = "" if options.keys() & {"dtype", "fields", "arrays"} else " and --dtype"
            hint = f"; to read it as raw all the same, add --format raw{typed}" if as_raw else ""
            raise FormatError(
                f"format {chosen.name} has no option {wrong[0]!r}", where=path, fix=known + hint
            )
        if object_of(path) is not None and chosen.name not in _OF_STORES:
            raise Unsupported(
                f"files of the format {chosen.name} are not read from stores",
                where=path,
                fix="download it first",
            )
        content = chosen.open(path, **options)
        content.how = how_read(chosen, options)
        return content


def open_whatever(path: str, found: str | None = None, **options: object) -> FileContent:
    """Opens a file of an unknown format. Text that is not a table is opened as bytes, with a note.

    Parameters
    ----------
    path : str
        The file.
    found : str, default None
        The format that `detect` found; None detects it.
    **options : object
        Options of the format, as for `open_file`. If any is given, the file is never opened as bytes.

    Returns
    -------
    FileContent
        Its fields and facts.

    Raises
    ------
    FormatError
        As `open_file`.
    """
    try:
        return open_file(path, found, **options)
    except (MissingFile, MissingPackage):
        raise
    except FormatError as error:
        from .pointers import place_elsewhere

        if options or not _is_plain_text(path, found) or place_elsewhere(path) is not None:
            raise
        content = open_file(path, "bytes")
        content.notes.append(f"is compared as bytes: {error.what}")
        return content


def _is_plain_text(path: str, found: str | None) -> bool:
    """Whether a file is plain text: its format is a text format, or it has no known format and its bytes are
    text."""
    if found is None:
        detected = detect(path)
        found = None if detected is None else detected.name
    if found is not None:
        is_text = by_name(found, path).is_text
        return is_text is not None and is_text(path)
    file, _ = open_regular(path)
    with file:
        return printable(file.read(_TEXT_SAMPLE))


def open_as(path: str, how: str, where: str) -> FileContent:
    """Opens a file with the format and the options that a metadata file recorded.

    Parameters
    ----------
    path : str
        The file.
    how : str
        The format and its options, as in `FileContent.how`.
    where : str
        The metadata file, for messages.

    Returns
    -------
    FileContent
        Its fields and facts.

    Raises
    ------
    FormatError
        As `open_file`, or `how` is damaged.
    """
    name, options = read_as(how, where)
    return open_file(path, name or None, **options)


# By the ends of names: what is no array of numbers, and what to compare in its place.
_NO_ARRAYS = {
    "picture": (".png", ".jpg", ".jpeg", ".gif", ".svg", ".pdf"),
    "pickle": (".pkl", ".pickle", ".joblib"),
    "document": (".json", ".yaml", ".yml", ".toml", ".xml", ".md", ".log"),
}


def _of_no_format(path: str) -> str:
    """What to do with a file of no known format."""
    for kind, ends in _NO_ARRAYS.items():
        if path.lower().endswith(ends):
            return f"a {kind} has no arrays: --format bytes compares its bytes"
    return (
        "of a raw file give --dtype (f32, f64, i32, ...) and, if it has axes, --shape; else --format, one of: "
        + " ".join(formats())
        + "; xarray is for what a backend of that package opens"
    )


def _choose(path: str, format: str | None, options: dict[str, object]) -> Format:
    """The format to open a path with. Raises FormatError if it is not known, or not for this kind of path."""
    folder = _is_folder(path)
    if not folder:
        file_size(path)  # report a missing file before an unknown format
    if format is not None:
        chosen = by_name(format, path)
        if folder and chosen.is_folder is None:
            raise FormatError(
                f"is a folder, and {format} is a format of files", where=path, fix="name one of its files"
            )
        return chosen
    found = detect(path)
    if found is None and options and not folder:
        found = next((f for f in formats().values() if set(options) <= f.options), None)
    if found is None:
        if folder:
            raise FormatError(
                "is a folder, not a file of a known format", where=path, fix="name one of its files"
            )
        fix = _of_no_format(path)
        file, _ = open_regular(path)
        with file:
            if printable(file.read(_TEXT_SAMPLE)):
                raise FormatError(
                    "its format is not recognised: it is text, and no table",
                    where=path,
                    fix="if it has rows of one length, name it: --format table",
                )
        raise FormatError("its format is not recognised", where=path, fix=fix)
    return found
