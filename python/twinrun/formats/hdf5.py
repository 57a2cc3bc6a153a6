"""HDF5: every dataset of every group, through h5py (an optional package).

Contiguous datasets with a type that numpy shares become extents of the file or of its external files.
Datasets that are chunked, filtered, compact or virtual, or have another type, are read through h5py. Members
of compound types become fields of their own, `dataset.member`; a compound {r, i} of floats is a complex
number. Non-numeric elements (text, lists of any length, references, opaque bytes) are compared by their
codes, see `facts`.

A dataset that cannot be read, because a filter is not installed or an external file is missing, is a field
with a `problem`; the other datasets of the file can still be compared.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from ..errors import DamagedFile, FormatError, MissingFile, MissingPackage, Unsupported
from ..remote import object_of
from . import cgns, gadget_hdf5, netcdf4, openpmd, vtkhdf
from .attributes import add_attribute
from .blocks import BandCache
from .catalogue import has_hdf5_signature
from .facts import shown
from .files import file_size, open_regular, read_exact, reading
from .hdf5_dataset import Dataset
from .hdf5_places import (
    MOST_SOURCES,
    creation_list,
    file_beside,
    misplaced_file,
    opened,
    source_names,
    virtual_place,
)
from .hdf5_types import enum_names, name_of_target, named_type_text, tagged_dtype, type_text
from .model import FileContent, Format, flag

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

MAGIC = b"\x89HDF\r\n\x1a\n"
CACHE_BYTES = 256 << 20  # decoded chunks that are cached for each file
_MOST_LINKS = 1_000_000
_DEEPEST_VIRTUAL = 16
# Bookkeeping attributes of HDF5's dimension scales and of NetCDF-4, which are not compared: the
# reverse of DIMENSION_LIST, and IDs that depend on the order in which dimensions were created.
_INTERNAL = frozenset("REFERENCE_LIST _Netcdf4Dimid _Netcdf4Coordinates".split())
# Attributes that do not describe the data: they never become fields.
_BOOKKEEPING = _INTERNAL | {"DIMENSION_LIST", "_nc3_strict", "_NCProperties"}
_LONGEST_USER_BLOCK = 1 << 26


def open_hdf5(
    path: str, cache: object = CACHE_BYTES, attributes: object = False, convention: object = "auto"
) -> FileContent:
    """Opens an HDF5 file.

    cache: bytes of decoded chunks to cache. attributes: if true, numeric attributes become fields
    `dataset@attribute`, which may have tolerances; otherwise they are facts. convention: 'auto' applies the
    conventions of openPMD, VTKHDF, GADGET, CGNS and NetCDF-4 to files that follow one; 'none' reads every
    file as plain HDF5.

    Fields are named by their path in the file, without the leading slash. Soft and external links are
    followed. A group is entered once, so links may form loops.

    Raises FormatError if the file or an option is invalid, MissingPackage without h5py.
    """
    try:
        h5py = importlib.import_module("h5py")
    except ImportError as error:
        raise MissingPackage.of("h5py", "twinrun[hdf5]", where=path) from error
    if isinstance(cache, str) and cache.isdecimal():
        cache = int(cache[:18])
    if type(cache) is not int or cache < 0:
        raise FormatError(f"cache must be a number of bytes, not {cache!r:.40}", where=path)
    with_attributes = flag(attributes, "attributes", path)
    if convention not in ("auto", "none"):
        raise FormatError(f"convention must be auto or none, not {convention!r:.40}", where=path)
    file_size(path)
    with reading(path, "HDF5"):
        file = opened(h5py, path)
    walker = Walker(h5py, path, file, BandCache(cache), with_attributes)
    try:
        with reading(path, "HDF5"):
            walker.walk()
            if convention == "auto":
                known = next(
                    (m for m in (openpmd, vtkhdf, gadget_hdf5, cgns, netcdf4) if m.recognises(file)), None
                )
                if known is not None:
                    known.apply(h5py, file, walker.content)
                else:
                    netcdf4.say_dimensions_of_groups(h5py, file, walker.content)
    except BaseException:
        walker.close()
        raise
    walker.content.on_close = walker.close
    return walker.content


class _Unquoted(str):
    """Text in a message that repr() must not put into quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Walker:
    """Walks the groups of one file, and adds its fields and facts to `content`."""

    def __init__(
        self, h5py: Any, path: str, file: Any, cache: BandCache, with_attributes: bool = False
    ) -> None:
        self.h5py, self.path, self.file, self.cache = h5py, path, file, cache
        self.with_attributes = with_attributes
        self.content = FileContent(path, "hdf5")
        self.handles: list[Any] = []  # objects behind external links; they keep those files open
        self.sources: dict[str, None] = {}
        # (file, dataset) of each checked source of a virtual dataset, and its problem if it has
        # one.
        self.virtual: dict[tuple[str, str], FormatError | None] = {}
        self.names: dict[int, bytes] = {}  # of targets of references: see `name_of_target`

    def close(self) -> None:
        with self.cache.lock:
            self.cache.clear()
            for handle in [*self.handles, self.file]:
                with reading(self.path, "closing"):
                    if handle:
                        (handle if handle is self.file else handle.file).close()
            self.handles.clear()

    def walk(self) -> None:
        """Visits all objects depth first.

        A further link to a visited group becomes a fact and is not followed.
        """
        seen = {self.identity(self.file["/"]): "/"}
        stack: list[tuple[Any, str]] = [(self.file["/"], "")]
        links = 0
        self.attributes(self.file["/"], "")
        self.user_block()
        while stack:
            group, prefix = stack.pop()
            deeper = []
            with reading(self.path, f"group {'/' + prefix!r}"):
                # Soft and external links last, so that their target gets its own name: SWIFT writes
                # a link GasParticles to the group PartType0.
                named = self.text_names(group, prefix)
                hard_first = sorted((not self.is_hard(group, name), name) for name in named)
                names = [name for _, name in hard_first]
            for name in names:
                links += 1
                if links > _MOST_LINKS:
                    raise Unsupported(f"more than {_MOST_LINKS} links", where=self.path)
                label = prefix + name
                item = self.follow(group, name, label)
                if item is None:
                    continue
                is_group = isinstance(item, self.h5py.Group)
                if is_group or self.h5py.h5o.get_info(item.id).rc > 1:
                    identity = self.identity(item)
                    if identity in seen:
                        self.content.say(label, "(link)", f"the same as {seen[identity]!r}")
                        if is_group:
                            continue
                    else:
                        seen[identity] = label
                if is_group:
                    if not len(item):
                        self.content.say(label, "(group)", "empty")
                    deeper.append((item, label + "/"))
                elif isinstance(item, self.h5py.Dataset):
                    with reading(self.path, f"dataset {label!r}"):
                        Dataset(self, item, label).add()
                elif isinstance(item, self.h5py.Datatype):
                    self.content.say(label, "(type)", type_text(self.h5py, item.id))
                self.attributes(item, label)
            stack.extend(reversed(deeper))
        self.content.sources = tuple(self.sources)

    def text_names(self, of: Any, prefix: str) -> list[str]:
        """The names of links or attributes. Those that are not UTF-8 h5py gives as bytes, and looks up none
        of them: they are skipped.
        """
        names = []
        for name in of:
            if isinstance(name, str):
                names.append(name)
            else:
                self.skip(prefix + name.decode("utf-8", "backslashreplace"), "its name is not UTF-8")
        return names

    def attributes(self, item: Any, label: str) -> None:
        """Adds the attributes of an object."""
        attrs = item.attrs
        with reading(self.path, f"attributes of {label!r}"):
            names = sorted(self.text_names(attrs, f"{label}@"))
        for name in names:
            if name in _INTERNAL:
                continue
            as_field = self.with_attributes and not (
                name in _BOOKKEEPING or (name in ("CLASS", "NAME") and label)
            )
            try:
                value, names_of, kind = self.attribute(attrs, name)
            except (TypeError, ValueError, OSError, KeyError, RuntimeError):
                self.skip(f"{label}@{name}", "an attribute that h5py cannot read")
                continue
            if names_of is not None:  # an enumeration: compare its names with its value
                value, as_field = [names_of, value], False
            add_attribute(self.content, label, name, value, as_field, self.encode, kind, self.shown)

    def attribute(self, attrs: Any, name: str) -> tuple[Any, dict[str, int] | None, str]:
        """(value, {name: value} of its enumeration or None, type in words) of an attribute."""
        found = attrs.get_id(name)
        tid = found.get_type()
        kind = tid.get_class()
        # Most attributes; faster than attrs[name]
        if kind in (self.h5py.h5t.INTEGER, self.h5py.h5t.FLOAT):
            if found.get_space().get_simple_extent_type() != self.h5py.h5s.NULL:
                value = np.empty(found.shape, found.dtype)
                found.read(value)
                return value[()], None, named_type_text(self.h5py, tid)
        names_of = enum_names(self.h5py, tid) if kind == self.h5py.h5t.ENUM else None
        plain = tagged_dtype(self.h5py, tid)
        if plain is not None and found.get_space().get_simple_extent_type() != self.h5py.h5s.NULL:
            value = np.empty(found.shape, plain)
            found.read(value, mtype=tid)
            return value, None, named_type_text(self.h5py, tid)
        return attrs[name], names_of, named_type_text(self.h5py, tid)

    def encode(self, value: object) -> bytes | None:
        """An encoder for `facts.encoded` that knows references, by their target, and values without
        elements."""
        h5r = self.h5py.h5r
        if isinstance(value, self.h5py.Empty):
            return f"nothing, of {value.dtype}".encode()
        if not isinstance(value, (self.h5py.Reference, self.h5py.RegionReference)):
            return None
        if not value:
            return b"no reference"
        with reading(self.path, "a reference"):
            target = b"reference to " + name_of_target(self.h5py, self.file, value, self.names)
            if isinstance(value, self.h5py.RegionReference):
                space = h5r.get_region(value, self.file.id)
                if space.get_select_type() == self.h5py.h5s.SEL_POINTS:
                    chosen = space.get_select_elem_pointlist()
                elif space.get_select_type() == self.h5py.h5s.SEL_HYPERSLABS:
                    chosen = space.get_select_hyper_blocklist()
                else:
                    chosen = np.array([space.get_select_npoints()])
                target += f" at {np.asarray(chosen).tolist()}".encode()
        return target

    def shown(self, value: object) -> str:
        """A value as text for messages, with the targets of references."""
        return shown(self._named(value))

    def _named(self, value: object) -> object:
        if isinstance(value, (self.h5py.Reference, self.h5py.RegionReference)):
            return _Unquoted((self.encode(value) or b"").decode("utf-8", "replace"))
        if isinstance(value, np.void) and value.dtype.names is not None:
            return tuple(self._named(value[member]) for member in value.dtype.names)
        if isinstance(value, np.ndarray) and value.dtype.hasobject:
            named = np.empty(value.shape, object)
            for index in np.ndindex(value.shape):
                named[index] = self._named(value[index])
            return named
        return value

    def user_block(self) -> None:
        """Adds the user block, which are bytes of the user in front of the HDF5 data, as a fact."""
        size = int(self.file.userblock_size)
        if size > _LONGEST_USER_BLOCK:
            self.skip("@(user block)", f"a user block of {size} bytes, more than {_LONGEST_USER_BLOCK}")
        elif size:
            file, _ = open_regular(self.path)
            with file:
                self.content.say("", "(user block)", read_exact(file, 0, size, self.path, "user block"))

    def skip(self, name: str, reason: str) -> None:
        self.content.skipped.append((name, reason))

    def is_hard(self, group: Any, name: str) -> bool:
        try:
            return isinstance(group.get(name, getlink=True), self.h5py.HardLink)
        except (TypeError, KeyError):  # a user-defined link
            return False

    def follow(self, group: Any, name: str, label: str) -> Any:
        """The object behind a link, or None if it cannot be opened; then it is in `skipped`."""
        with reading(self.path, f"link {label!r}"):
            try:
                link = group.get(name, getlink=True)
            except TypeError:
                self.skip(label, "a user-defined link")
                return None
            if isinstance(link, self.h5py.ExternalLink) and object_of(self.path) is not None:
                self.skip(label, f"a link to {link.path!r} of {link.filename!r}, another object of the store")
                return None
            try:
                item = group[name]
            except (KeyError, OSError, RuntimeError) as error:
                if isinstance(link, self.h5py.ExternalLink):
                    self.skip(label, f"a link to {link.path!r} of {link.filename!r}, which cannot be opened")
                elif isinstance(link, self.h5py.SoftLink):
                    self.skip(label, f"a link to {link.path!r}, which leads nowhere")
                else:
                    raise DamagedFile(f"object {label!r} cannot be opened", where=self.path) from error
                return None
            except TypeError:
                self.skip(label, "an object of a kind that h5py does not know")
                return None
            if isinstance(link, self.h5py.ExternalLink):
                self.content.say(label, "(link)", f"to {link.path!r} of {link.filename!r}")
            elif isinstance(link, self.h5py.SoftLink):
                self.content.say(label, "(link)", f"to {link.path!r}")
            if item.file.id.id != self.file.id.id and item.file.filename != self.file.filename:
                self.handles.append(item)
                self.sources[item.file.filename] = None
            return item

    def virtual_problem(self, dataset: Any, path: str, where: str, depth: int = 0) -> FormatError | None:
        """Why a virtual dataset cannot be read, None if all its sources are there.

        HDF5 itself reads fill values where a source is missing. These are equal in two runs, so a difference
        would be missed. Adds all source files to `sources`. path: the file that holds the dataset. depth:
        levels of virtual datasets above it.
        """
        if depth > _DEEPEST_VIRTUAL:
            return Unsupported(
                f"virtual datasets made of each other, more than {_DEEPEST_VIRTUAL} deep", where=where
            )
        for source in dataset.virtual_sources():
            pairs = source_names(source.file_name, source.dset_name, path)
            for name, label in pairs:
                found = path if name == "." else virtual_place(name, path)
                if found is None:
                    return MissingFile(f"its source {name!r} is not there", where=where)
                self.sources[found] = None
                if (found, label) not in self.virtual:
                    if len(self.virtual) >= MOST_SOURCES:
                        return Unsupported(f"more than {MOST_SOURCES} sources", where=where)
                    # Met again during its own check: a source of itself. HDF5 reads without end.
                    self.virtual[found, label] = Unsupported(
                        f"is made of itself, by its source {label!r} of {found}", where=where
                    )
                    self.virtual[found, label] = self.source_problem(found, label, where, depth)
                problem = self.virtual[found, label]
                if problem is not None:
                    return problem
        return None

    def source_problem(self, path: str, label: str, where: str, depth: int) -> FormatError | None:
        """Why a dataset `label` of file `path`, a source of a virtual dataset, cannot be read.

        None if it can.
        """
        try:
            with reading(path, "HDF5"), opened(self.h5py, path) as file:
                dataset = file.get(label)
                if not isinstance(dataset, self.h5py.Dataset):
                    return MissingFile(f"its source {label!r} of {path} is not there", where=where)
                plist = creation_list(self.h5py, dataset)
                if plist.get_layout() == self.h5py.h5d.VIRTUAL:
                    return self.virtual_problem(dataset, path, where, depth + 1)
                misplaced = misplaced_file(plist, path)
                if misplaced is not None:
                    return Unsupported(
                        f"its source {label!r} of {path} has elements in {misplaced!r}, which HDF5 looks for in the working folder",
                        where=where,
                        fix="run in the folder of the file, or set HDF5_EXTFILE_PREFIX to it",
                    )
                for number in range(plist.get_external_count()):
                    self.sources[file_beside(os.fsdecode(plist.get_external(number)[0]), path) or path] = None
        except FormatError as error:
            return error
        return None

    def identity(self, item: Any) -> tuple[int, int, int]:
        """Identifies an object, also after its file was closed and opened again: device, inode, address in
        the file."""
        if object_of(self.path) is not None:  # no other file is opened then
            return 0, 0, self.h5py.h5o.get_info(item.id).addr
        status = os.stat(item.file.filename)
        return status.st_dev, status.st_ino, self.h5py.h5o.get_info(item.id).addr


FORMAT = Format(
    "hdf5",
    "HDF5",
    open_hdf5,
    suffixes=(".h5", ".hdf5", ".he5", ".h5part", ".vtkhdf", ".nc4"),
    magic=(MAGIC,),
    sniff=has_hdf5_signature,
    options=frozenset({"cache", "attributes", "convention"}),
    aside=frozenset({"cache"}),
    many_steps=True,
)
