"""The data files of a folder, each with its step, rank and name.

The rules for names are in `naming`. Files of unknown format are listed too, and compared as bytes: they
belong to no step, and are named by their path.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from .. import _core
from ..errors import FormatError, MissingFile, TwinrunError
from ..marks import MANIFEST, METADATA_SUFFIX, has_manifest
from . import by_name, by_suffix, detect, format_named, formats, npy_among, open_file, open_whatever
from .files import is_own, may_be_own, reading
from .model import Field, FileContent, Format, renamed
from .naming import natural, place_among, times_among
from .opaque import NAME as BYTES
from .opaque import link_content
from .pointers import place_elsewhere
from .texts import printable

__all__ = ["DataFile", "Listing", "is_data_set", "is_history", "list_folder"]

_MOST_FILES = 10_000_000


def is_history(folder: str) -> bool:
    """Whether a folder is a history that twinrun captured, by its manifest; a damaged one counts.

    Raises TwinrunError if that is not a file.
    """
    manifest = os.path.join(folder, MANIFEST)
    if os.path.isfile(manifest):
        return has_manifest(folder)
    # Without this error the rest of a damaged history would be read as plain files, and called
    # intact.
    if os.path.lexists(manifest):
        raise TwinrunError(
            "is not a regular file, so the content of the history in this folder is not known",
            where=manifest,
            fix="restore it from a copy, or move it away to read the folder as files",
        )
    return False


def is_data_set(path: str, format: str | None = None) -> bool:
    """Whether a folder is one data set, such as a Zarr group, and not a folder of files.

    format: None detects it.
    """
    return _data_set(path, None if format is None else by_name(format, path)) is not None


def told_format(options: Mapping[str, object]) -> str | None:
    """The option `format` as text; None if it is not given, so that the format is detected."""
    name = options.get("format")
    return None if name is None else str(name)


def _data_set(path: str, forced: Format | None) -> Format | None:
    """The format of a folder that is one data set; None if it is not one. forced: the only format to try."""
    if forced is None:
        return detect(path)
    return forced if forced.is_folder is not None and forced.is_folder(path) else None


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file of a folder.

    Attributes
    ----------
    path : str
        The path to open.
    relative : str
        The path relative to the folder.
    format : str
        The name of its format.
    step : int or None
        None if the path has no step.
    rank : int
        0 if the path has no rank.
    prefix : str
        The name of the field of a file with one array. For other files see `use_prefix`.
    use_prefix : bool
        True: fields are named `prefix/field`, because the folder holds several kinds of files.
    leads_to : str or None
        For a link to a folder that is listed under another path: that path.
    """

    path: str
    relative: str
    format: str
    step: int | None
    rank: int
    prefix: str
    use_prefix: bool = False
    leads_to: str | None = None

    @property
    def label(self) -> str:
        """The name of the file without step and rank: prefix and suffix."""
        suffix = os.path.splitext(self.relative)[1]
        without = "" if suffix[1:].isdecimal() or self.prefix.endswith(suffix) else suffix
        return self.prefix + without

    def open(self, options: Mapping[str, object] | None = None) -> FileContent:
        """Opens the file.

        Options that its format does not have are ignored: they are meant for other files.
        """
        return self._opened_by(open_file, options)

    def open_whatever(self, options: Mapping[str, object] | None = None) -> FileContent:
        """As `open`, for a file whose format was detected: text that is not a table becomes bytes, with a
        note."""
        return self._opened_by(open_whatever, options)

    def _opened_by(
        self, opener: Callable[..., FileContent], options: Mapping[str, object] | None
    ) -> FileContent:
        if self.leads_to is not None:
            return link_content(self.path, self.leads_to)
        if self.format == BYTES and (pointer := place_elsewhere(self.path)) is not None:
            raise pointer
        known = formats()[self.format].options
        return opener(self.path, self.format, **{k: v for k, v in (options or {}).items() if k in known})

    def fields(self, content: FileContent) -> dict[str, Field]:
        """The fields of the opened file by the names that they have in the folder."""
        if content.one_array:
            only = next(iter(content.fields.values()), None)
            return {} if only is None else {self.prefix: renamed(only, self.prefix)}
        if not self.use_prefix:
            return dict(content.fields)
        return {f"{self.prefix}/{n}": renamed(f, f"{self.prefix}/{n}") for n, f in content.fields.items()}


@dataclass
class Listing:
    """The content of a folder.

    Attributes
    ----------
    folder : str
        The folder.
    files : list of DataFile
        Sorted by step, rank and path.
    ignored : list of (str, str)
        (relative path, reason) of files that are read as parts of other files.
    unreadable : list of (str, str)
        (relative path, reason) of broken links and special files. If there is any, every comparison is
        incomparable.
    unknown : list of (str, str)
        (relative path, reason) of files that are compared as bytes.
    has_metadata : bool
        Whether any file has a name as metadata of a data file has.
    """

    folder: str
    files: list[DataFile] = field(default_factory=list)
    ignored: list[tuple[str, str]] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    unknown: list[tuple[str, str]] = field(default_factory=list)
    has_metadata: bool = False

    def data(self) -> list[DataFile]:
        """The files of known formats."""
        return [f for f in self.files if f.format != BYTES]

    def steps(self) -> list[int | None]:
        """The steps of its files, ascending; None, for files without a step, comes first."""
        return sorted({f.step for f in self.files}, key=lambda s: -1 if s is None else s)


def list_folder(
    folder: str | os.PathLike[str],
    options: Mapping[str, object] | None = None,
    at_hand: _core.FilesAtHand | None = None,
) -> Listing:
    """Lists the data files in a folder and its subfolders, with the format, step, rank and name of each.

    Formats are detected as by `detect`. Hidden files are listed as bytes, whatever they hold. Twinrun's own
    files, sidecars of raw files and empty folders are not listed. A link to a folder that is listed already
    is listed as the path of its target.

    Parameters
    ----------
    folder : str or path
        The folder.
    options : mapping of str to object, default None
        Options of formats, as for `open_file`. With `format` every file has this format; with `dtype`,
        `fields` or `arrays` the files .bin, .raw and .dat are raw data.
    at_hand : FilesAtHand, default None
        Where small .npy files are kept, read as a whole, so that they are opened once.

    Returns
    -------
    Listing
        The files.

    Raises
    ------
    MissingFile
        There is no such folder.
    FormatError
        The folder cannot be read, no format has such an option, or two files are the same field of the same
        step and rank.
    """
    folder = os.fspath(folder)
    if not os.path.exists(folder):
        raise MissingFile("no such folder", where=folder, fix="check the path")
    if not os.path.isdir(folder):
        raise FormatError("is not a folder", where=folder)
    listing = Listing(folder)
    given = set(options or {}) - {"format"}
    forced = by_name(str(options["format"]), folder) if options and "format" in options else None
    known = (
        forced.options if forced is not None else frozenset().union(*(f.options for f in formats().values()))
    )
    if given - known:
        what = "no format" if forced is None else f"format {forced.name}"
        raise FormatError(
            f"{what} has {'an' if forced is None else 'no'} option {min(given - known)!r}", where=folder,
            fix=f"known are {' '.join(sorted(known))}" if known else "it takes none",
        )  # fmt: skip
    described = bool({"dtype", "fields", "arrays"} & given)
    sidecars: list[tuple[str, str]] = []
    entries = _walk(folder, listing, forced, sidecars)
    regular = (path for path, _, _, is_file in entries if is_file)
    npy = npy_among(regular, at_hand) if forced is None else frozenset()
    npy_format = format_named("npy")
    times = times_among(relative for _, relative, _, _ in entries)
    for path, relative, is_folder, is_file in entries:
        if not is_folder and not is_file:
            dangling = os.path.islink(path) and not os.path.exists(path)
            reason = "a link that leads nowhere" if dangling else "not a regular file"
            listing.unreadable.append((relative, reason))
            continue
        if is_folder:
            found = _data_set(path, forced)
        elif _is_hidden(relative):
            found = None
        elif forced is not None:
            found = forced if forced.opens_files else None
        else:
            found = npy_format if path in npy else _format_of(path, described)
        if found is None:
            listing.unknown.append((relative, _why_unknown(path, relative, is_folder, forced, described)))
            listing.files.append(DataFile(path, relative, BYTES, None, 0, relative))
            continue
        place = (found.place(relative) if found.place is not None else None) or place_among(relative, times)
        listing.files.append(
            DataFile(path, relative, found.name, place.step, place.rank, place.name or "data")
        )
    described_files = {f.relative for f in listing.data() if f.format in ("raw", "veloc")}
    described_by = frozenset().union(*(formats()[f].describers for f in {f.format for f in listing.data()}))
    for path, relative in sidecars:  # a JSON file beside a file that needs no description is data
        if (
            relative.removesuffix(".json") not in described_files
            and os.path.basename(path) not in described_by
        ):
            listing.unknown.append((relative, "not a data format that is known"))
            listing.files.append(DataFile(path, relative, BYTES, None, 0, relative))
    _drop_parts(listing)
    _settle_names(listing)
    listing.files.sort(
        key=lambda f: (-1, f.rank, natural(f.relative)) if f.step is None else (f.step, f.rank, f.relative)
    )
    return listing


def _is_text(path: str) -> bool:
    if not os.path.isfile(path):  # opening a pipe would block
        return False
    with reading(path), open(path, "rb") as file:
        return printable(file.read(4096))


def _is_hidden(relative: str) -> bool:
    """Whether a file, or a folder that holds it, has a name that begins with a dot."""
    return relative.startswith(".") or "/." in relative


def _why_unknown(path: str, relative: str, is_folder: bool, forced: Format | None, described: bool) -> str:
    """The reason, for messages, why a file is compared as bytes."""
    if forced is not None:
        return f"a file, and {forced.name} is a format of folders"
    if _is_hidden(relative):
        return "a hidden file: rename it to compare what it holds, or leave it out"
    promised = None if is_folder else by_suffix(path)
    if promised is not None and _is_text(path):
        return "text, and no table"
    if promised is not None:  # for example a .dat, which may be binary data or text
        return f"{promised.name} without a description: give --dtype, or write {os.path.basename(path)}.json"
    hint = "; format=raw reads every file as described" if described else ""
    return f"not a data format that is known{hint}"


def _format_of(path: str, described: bool) -> Format | None:
    """The format of a file of a folder; None if it is compared as bytes.

    described: options describe raw files.
    """
    promised = by_suffix(path)
    try:
        found = detect(path)
    except FormatError:
        # The file cannot be read. With the suffix of a format it is listed, and opening it reports
        # the error.
        return promised if promised is not None and promised.name != "raw" else None
    if found is not None and found.name == "raw" and promised is found and (not described or _is_text(path)):
        return found if found.claims is not None and found.claims(path) else None
    return found


def _walk(
    folder: str, listing: Listing, forced: Format | None, sidecars: list[tuple[str, str]]
) -> list[tuple[str, str, bool, bool]]:
    """(path, relative path, whether it is a folder that is one data set, whether it is a regular
    file) of all files and data sets; each folder once.

    Adds links to folders that were visited already to `listing`, and (path, relative path) of files that may
    describe another file to `sidecars`.
    """
    found: list[tuple[str, str, bool, bool]] = []
    seen: dict[tuple[int, int], str] = {}
    candidates = formats().values() if forced is None else (forced,)
    folder_formats = any(f.is_folder is not None for f in candidates)
    describers = frozenset().union(*(f.describers for f in candidates))
    stack = [("", folder)]
    # Visited after all real folders, so that these keep their own names.
    links: list[tuple[str, str]] = []
    while stack or links:
        relative, path = stack.pop() if stack else links.pop(0)
        with reading(path):
            status = os.stat(path)
            first = seen.setdefault((status.st_dev, status.st_ino), relative)
            if first != relative:
                listing.files.append(
                    DataFile(path, relative, BYTES, None, 0, relative, leads_to=first or ".")
                )
                continue
            with os.scandir(path) as scanned:
                entries = sorted(scanned, key=lambda entry: entry.name)
        names = {entry.name for entry in entries}
        for entry in entries:
            name, below = entry.name, entry.path
            label = f"{relative}/{name}" if relative else name
            if may_be_own(name):
                listing.has_metadata = listing.has_metadata or name.endswith(METADATA_SUFFIX)
                if is_own(below):
                    continue
            beside = name.endswith(".json") and name[:-5] in names and not name.startswith(".")
            if beside or name in describers:
                sidecars.append((below, label))
                continue
            if not _is_folder(entry):
                found.append((below, label, False, _is_file(entry)))
            elif folder_formats and _data_set(below, forced) is not None:
                found.append((below, label, True, False))
            elif entry.is_symlink():
                links.append((label, below))
            else:
                stack.append((label, below))
            if len(found) > _MOST_FILES:
                raise FormatError(f"more than {_MOST_FILES} files", where=folder)
    return found


def _is_folder(entry: os.DirEntry) -> bool:
    """As `os.path.isdir`: a link counts as what it leads to."""
    try:
        return entry.is_dir()
    except OSError:  # a link that leads round in a circle
        return False


def _is_file(entry: os.DirEntry) -> bool:
    """As `os.path.isfile`."""
    try:
        return entry.is_file()
    except OSError:
        return False


def _drop_parts(listing: Listing) -> None:
    """Removes the files that are parts of another file of the listing (`Format.parts`), and adds them to
    `ignored`."""
    kinds = formats()
    parts: dict[str, str] = {}
    for file in listing.files:
        if (parts_of := kinds[file.format].parts) is not None:
            try:
                named = parts_of(file.path)
            except FormatError:
                continue  # opening the file reports the error
            parts.update((os.path.realpath(part), file.relative) for part in named)
    if not parts:
        return

    def part_of(relative: str, path: str) -> str | None:
        whole = parts.get(os.path.realpath(path))
        return None if whole is None or whole == relative else f"a part of {whole}, and read with it"

    kept = []
    for file in listing.files:
        reason = part_of(file.relative, file.path)
        if reason is None:
            kept.append(file)
        else:
            listing.ignored.append((file.relative, reason))
    listing.files = kept
    there = {file.relative for file in kept}
    listing.unknown = [(relative, why) for relative, why in listing.unknown if relative in there]


def _settle_names(listing: Listing) -> None:
    """Makes names of fields unique in each step and rank, by prefixes and, if these are equal, by suffixes.

    Raises FormatError if two files still have the same name.
    """
    kinds = formats()
    everything = {f.prefix for f in listing.data()}
    many = {f.prefix for f in listing.files if not kinds[f.format].one_array}
    places: dict[tuple[int | None, int, str], list[int]] = {}
    one_array = {name: kind.one_array for name, kind in kinds.items()}
    for at, file in enumerate(listing.files):
        if file.format == BYTES:  # named by its path
            if file.prefix in everything:
                listing.files[at] = replace(file, prefix=f"./{file.prefix}")
            continue
        # A file of a format with one array may still hold several: members of records, several
        # arrays in sequence.
        others = everything if one_array[file.format] else many
        if len(others) > 1:
            listing.files[at] = DataFile(
                file.path, file.relative, file.format, file.step, file.rank, file.prefix, True, file.leads_to
            )
        places.setdefault((file.step, file.rank, file.prefix), []).append(at)
    for same in places.values():
        if len(same) == 1:
            continue
        for at in same:  # x.f32 and x.npy differ by the suffix
            file = listing.files[at]
            suffix = os.path.splitext(file.relative)[1]
            listing.files[at] = replace(file, prefix=file.prefix + suffix, use_prefix=True)
        by_name: dict[str, str] = {}
        for at in same:
            file = listing.files[at]
            other = by_name.setdefault(file.prefix, file.relative)
            if other != file.relative:
                message = f"{other!r} and {file.relative!r} are the same field of the same step and rank"
                raise FormatError(
                    message, where=listing.folder, fix="rename one of them, or compare single files"
                )
