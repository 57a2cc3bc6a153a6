"""The files of a folder that some program wrote: which step, rank and field each is.

See `naming` for the rules. Files of no known format are listed too, to be compared as bytes: they belong to no step, and are
named by their path.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..errors import FormatError, MissingFile, TwinrunError
from ..marks import MANIFEST
from . import by_name, by_suffix, detect, formats, open_file, open_whatever
from .files import is_own, reading
from .model import Field, FileContent, Format, renamed
from .naming import parse_path
from .opaque import NAME as BYTES
from .opaque import link_content
from .texts import printable

__all__ = ["DataFile", "Listing", "is_data_set", "is_history", "list_folder"]

_MOST_FILES = 10_000_000


def is_history(folder: str) -> bool:
    """Whether a folder is a history that twinrun captured; it has a reader of its own. TwinrunError where that cannot be told."""
    manifest = os.path.join(folder, MANIFEST)
    if os.path.isfile(manifest):
        return True
    if os.path.lexists(manifest):  # what is left would be read as files of nobody, and called intact
        raise TwinrunError(
            "is no regular file, so that nobody can tell what the history in this folder has",
            where=manifest,
            fix="restore it from a copy, or move it away to read the folder as files",
        )
    return False


def is_data_set(path: str, format: str | None = None) -> bool:
    """Whether a folder is one data set as a whole, of `format` where one is forced, and not a folder of files."""
    return _data_set(path, None if format is None else by_name(format, path)) is not None


def told_format(options: Mapping[str, object]) -> str | None:
    """The format that options force, None where it is to be found out."""
    told = options.get("format")
    return None if told is None else str(told)


def _data_set(path: str, forced: Format | None) -> Format | None:
    """The format of a folder that is one data set."""
    if forced is None:
        return detect(path)
    return forced if forced.is_folder is not None and forced.is_folder(path) else None


@dataclass(frozen=True)
class DataFile:
    """A data file of a folder.

    path: to open it. relative: to the folder. format: its name. step: None where the path has no number.
    rank: 0 where it names none. prefix: what its fields are named after: the whole name of the field of a
    one-array file; put in front of the others' ("prefix/field") only where the folder holds several kinds of
    such files. leads_to: of a link to a folder that is listed already, under which path.
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
        """What it is called in every step and rank: its prefix and its suffix."""
        suffix = os.path.splitext(self.relative)[1]
        without = "" if suffix[1:].isdecimal() or self.prefix.endswith(suffix) else suffix
        return self.prefix + without

    def open(self, options: Mapping[str, object] | None = None) -> FileContent:
        """Opens it. Options that its format does not have are left out: they are meant for other files."""
        if self.leads_to is not None:
            return link_content(self.path, self.leads_to)
        known = formats()[self.format].options
        return open_file(self.path, self.format, **{k: v for k, v in (options or {}).items() if k in known})

    def open_whatever(self, options: Mapping[str, object] | None = None) -> FileContent:
        """As `open`, of a file that nobody said the format of: a text that is no table is bytes, with a note."""
        if self.leads_to is not None:
            return link_content(self.path, self.leads_to)
        known = formats()[self.format].options
        return open_whatever(
            self.path, self.format, **{k: v for k, v in (options or {}).items() if k in known}
        )

    def fields(self, content: FileContent) -> dict[str, Field]:
        """Fields of the opened file under the names that they have in the folder."""
        if content.one_array:
            only = next(iter(content.fields.values()), None)
            return {} if only is None else {self.prefix: renamed(only, self.prefix)}
        if not self.use_prefix:
            return dict(content.fields)
        return {f"{self.prefix}/{n}": renamed(f, f"{self.prefix}/{n}") for n, f in content.fields.items()}


@dataclass
class Listing:
    """files: sorted by step, rank and path.

    ignored: (relative path, reason) of what is read otherwise: say it to the user. unreadable: the same
    of what can be no file at all: nothing that has any was compared. unknown: why a file is compared as bytes.
    """

    folder: str
    files: list[DataFile] = field(default_factory=list)
    ignored: list[tuple[str, str]] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    unknown: list[tuple[str, str]] = field(default_factory=list)

    def data(self) -> list[DataFile]:
        """The files of known formats."""
        return [f for f in self.files if f.format != BYTES]

    def steps(self) -> list[int | None]:
        """Steps that it holds, ascending; None (no number) first."""
        return sorted({f.step for f in self.files}, key=lambda s: -1 if s is None else s)


def list_folder(folder: str | os.PathLike[str], options: Mapping[str, object] | None = None) -> Listing:
    """Lists a folder and the folders in it.

    What a file is, is found out by its content, whatever its suffix. options: of formats, as in `open_file`; with
    a format, every file is of it; with a dtype, fields or arrays, .bin, .raw and .dat files are data. Metadata of
    twinrun and descriptions of raw files are passed over; hidden files are bytes, whatever they hold, and empty folders
    nothing. Of a link to a folder that is listed already only where it leads is listed. Raises FormatError: the folder is missing or unreadable, no format has such an option, or two files would be
    the same field of the same step and rank.
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
    for path, relative, is_folder in _walk(folder, listing, forced, sidecars):
        if not is_folder and not os.path.isfile(path):
            dangling = os.path.islink(path) and not os.path.exists(path)
            reason = "a link that leads nowhere" if dangling else "not a regular file"
            listing.unreadable.append((relative, reason))
            continue
        if is_folder:
            found = _data_set(path, forced)
        elif any(part.startswith(".") for part in relative.split("/")):
            found = None
        elif forced is not None:
            found = forced if forced.opens_files else None
        else:
            found = _format_of(path, described)
        if found is None:
            listing.unknown.append((relative, _why_unknown(path, is_folder, forced, described)))
            listing.files.append(DataFile(path, relative, BYTES, None, 0, relative))
            continue
        place = (found.place(relative) if found.place is not None else None) or parse_path(relative)
        listing.files.append(
            DataFile(path, relative, found.name, place.step, place.rank, place.name or "data")
        )
    described_files = {f.relative for f in listing.data() if f.format in ("raw", "veloc")}
    described_by = frozenset().union(*(formats()[f.format].describers for f in listing.data()))
    for path, relative in sidecars:  # x.h5.json describes nothing that is read by it
        if (
            relative.removesuffix(".json") not in described_files
            and os.path.basename(path) not in described_by
        ):
            listing.unknown.append((relative, "not a data format that is known"))
            listing.files.append(DataFile(path, relative, BYTES, None, 0, relative))
    _drop_parts(listing)
    _settle_names(listing)
    listing.files.sort(key=lambda f: (-1 if f.step is None else f.step, f.rank, f.relative))
    return listing


def _is_text(path: str) -> bool:
    if not os.path.isfile(path):  # a pipe would keep us waiting
        return False
    with reading(path), open(path, "rb") as file:
        return printable(file.read(4096))


def _why_unknown(path: str, is_folder: bool, forced: Format | None, described: bool) -> str:
    if forced is not None:
        return f"a file, and {forced.name} is a format of folders"
    promised = None if is_folder else by_suffix(path)
    if promised is not None and _is_text(path):
        return "text, and no table"
    if promised is not None:  # a .dat may be data as well as text: only a description tells
        return f"{promised.name} without a description: give dtype=, or write {os.path.basename(path)}.json"
    hint = "; format=raw reads every file as described" if described else ""
    return f"not a data format that is known{hint}"


def _format_of(path: str, described: bool) -> Format | None:
    promised = by_suffix(path)
    try:
        found = detect(path)
    except FormatError:
        # Not a regular file, or not readable: where its name promises data, opening it says what is wrong.
        return promised if promised is not None and promised.name != "raw" else None
    if found is not None and found.name == "raw" and promised is found and (not described or _is_text(path)):
        return found if found.claims is not None and found.claims(path) else None
    return found


def _walk(
    folder: str, listing: Listing, forced: Format | None, sidecars: list[tuple[str, str]]
) -> list[tuple[str, str, bool]]:
    """(path, relative path, is one data set in a folder) of all that may be data; every folder once.

    Links to a folder that has been go into the listing at once. sidecars: gets (path, relative path) of what may describe a file beside it.
    """
    found: list[tuple[str, str, bool]] = []
    seen: dict[tuple[int, int], str] = {}
    candidates = formats().values() if forced is None else (forced,)
    folder_formats = any(f.is_folder is not None for f in candidates)
    describers = frozenset().union(*(f.describers for f in candidates))
    stack = [("", folder)]
    links: list[tuple[str, str]] = []  # after all true folders: a folder keeps its own name
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
            entries = sorted(os.listdir(path))
        names = set(entries)
        for name in entries:
            below = os.path.join(path, name)
            label = f"{relative}/{name}" if relative else name
            if is_own(below):
                continue
            beside = name.endswith(".json") and name[:-5] in names and not name.startswith(".")
            if beside or name in describers:
                sidecars.append((below, label))
                continue
            if not os.path.isdir(below):
                found.append((below, label, False))
            elif folder_formats and _data_set(below, forced) is not None:
                found.append((below, label, True))
            elif os.path.islink(below):
                links.append((label, below))
            else:
                stack.append((label, below))
            if len(found) > _MOST_FILES:
                raise FormatError(f"more than {_MOST_FILES} files", where=folder)
    return found


def _drop_parts(listing: Listing) -> None:
    """Files that another file of the listing names as parts of itself are read with that one."""
    kinds = formats()
    parts: dict[str, str] = {}
    for file in listing.files:
        if (parts_of := kinds[file.format].parts) is not None:
            try:
                named = parts_of(file.path)
            except FormatError:
                continue  # opening it says what is wrong with it
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
    """Prefixes where files of several arrays are of several kinds, suffixes where names are the same."""
    kinds = formats()
    everything = {f.prefix for f in listing.data()}
    many = {f.prefix for f in listing.files if not kinds[f.format].one_array}
    places: dict[tuple[int | None, int, str], list[int]] = {}
    for at, file in enumerate(listing.files):
        if file.format == BYTES:  # its name is its path
            if file.prefix in everything:
                listing.files[at] = replace(file, prefix=f"./{file.prefix}")
            continue
        # A file of a one-array format may hold several all the same: records, arrays one after another.
        others = everything if kinds[file.format].one_array else many
        listing.files[at] = replace(file, use_prefix=len(others) > 1)
        places.setdefault((file.step, file.rank, file.prefix), []).append(at)
    for same in places.values():
        if len(same) == 1:
            continue
        for at in same:  # x.f32 and x.npy: the suffix tells them apart
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
                    message, where=listing.folder, fix="name one of them otherwise, or compare files"
                )
