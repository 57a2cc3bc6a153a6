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
import math
import os
import re
from typing import TYPE_CHECKING, Any

from ..errors import DamagedFile, FormatError, MissingFile, MissingPackage, Unsupported
from . import gadget_hdf5, netcdf4, openpmd, vtkhdf
from .attributes import add_attribute
from .blocks import BandCache, BandReader, Box
from .catalogue import has_hdf5_signature
from .facts import codes, shown
from .files import file_size, open_regular, read_exact, reading
from .layout import Decoded, Stored, array_fields, kind_of
from .model import (
    Field,
    FileContent,
    Format,
    checked_shape,
    decoded,
    dtype_of,
    flag,
    storage_dtype,
    unit_of,
    unreadable,
)

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

MAGIC = b"\x89HDF\r\n\x1a\n"
CACHE_BYTES = 256 << 20  # decoded chunks that are cached for each file
_MOST_LINKS = 1_000_000
_DEEPEST_VIRTUAL = 16
_FILTERS = {
    1: "deflate", 2: "shuffle", 3: "fletcher32", 4: "szip", 5: "nbit", 6: "scaleoffset", 307: "bzip2",
    32000: "lzf", 32001: "blosc", 32004: "lz4", 32008: "bitshuffle", 32013: "zfp", 32015: "zstd", 32017: "sz",
    32018: "fcidecomp", 32024: "sz3", 32026: "blosc2", 32028: "sperr",
}  # fmt: skip
# Bookkeeping attributes of HDF5's dimension scales and of NetCDF-4, which are not compared: the reverse of
# DIMENSION_LIST, and IDs that depend on the order in which dimensions were created.
_INTERNAL = frozenset("REFERENCE_LIST _Netcdf4Dimid _Netcdf4Coordinates".split())
# Attributes that do not describe the data: they never become fields.
_BOOKKEEPING = _INTERNAL | {"DIMENSION_LIST", "_nc3_strict", "_NCProperties"}
_LONGEST_USER_BLOCK = 1 << 26


class _NotNumeric(Exception):
    """Elements of this type are not numeric."""


def open_hdf5(
    path: str, cache: object = CACHE_BYTES, attributes: object = False, convention: object = "auto"
) -> FileContent:
    """Opens an HDF5 file.

    cache: bytes of decoded chunks to cache. attributes: if true, numeric attributes become fields
    `dataset@attribute`, which may have tolerances; otherwise they are facts. convention: 'auto' applies the
    conventions of openPMD, VTKHDF, GADGET and NetCDF-4 to files that follow one; 'none' reads every file as
    plain HDF5.

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
        file = h5py.File(path, "r", locking="best-effort")
    walker = _Walker(h5py, path, file, BandCache(cache), with_attributes)
    try:
        with reading(path, "HDF5"):
            walker.walk()
            if convention == "auto":
                known = next((m for m in (openpmd, vtkhdf, gadget_hdf5, netcdf4) if m.recognises(file)), None)
                if known is not None:
                    known.apply(h5py, file, walker.content)
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


class _Walker:
    """Walks the groups of one file, and adds its fields and facts to `content`."""

    def __init__(
        self, h5py: Any, path: str, file: Any, cache: BandCache, with_attributes: bool = False
    ) -> None:
        self.h5py, self.path, self.file, self.cache = h5py, path, file, cache
        self.with_attributes = with_attributes
        self.content = FileContent(path, "hdf5")
        self.handles: list[Any] = []  # objects behind external links; they keep those files open
        self.sources: dict[str, None] = {}
        # (file, dataset) of each checked source of a virtual dataset, and its problem if it has one.
        self.virtual: dict[tuple[str, str], FormatError | None] = {}

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
                # Soft and external links last, so that their target gets its own name: SWIFT writes a link
                # GasParticles to the group PartType0.
                hard_first = sorted((not self.is_hard(group, name), name) for name in group)
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
                        _Dataset(self, item, label).add()
                elif isinstance(item, self.h5py.Datatype):
                    self.content.say(label, "(type)", _type_text(self.h5py, item.id))
                self.attributes(item, label)
            stack.extend(reversed(deeper))
        self.content.sources = tuple(self.sources)

    def attributes(self, item: Any, label: str) -> None:
        """Adds the attributes of an object."""
        attrs = item.attrs
        with reading(self.path, f"attributes of {label!r}"):
            names = sorted(attrs)
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
        if kind in (self.h5py.h5t.INTEGER, self.h5py.h5t.FLOAT):  # most attributes; faster than attrs[name]
            if found.get_space().get_simple_extent_type() != self.h5py.h5s.NULL:
                value = np.empty(found.shape, found.dtype)
                found.read(value)
                return value[()], None, _named_type_text(self.h5py, tid)
        names_of = _enum_names(self.h5py, tid) if kind == self.h5py.h5t.ENUM else None
        plain = _tagged_dtype(self.h5py, tid)
        if plain is not None and found.get_space().get_simple_extent_type() != self.h5py.h5s.NULL:
            value = np.empty(found.shape, plain)
            found.read(value, mtype=tid)
            return value, None, _named_type_text(self.h5py, tid)
        return attrs[name], names_of, _named_type_text(self.h5py, tid)

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
            target = b"reference to " + (h5r.get_name(value, self.file.id) or b"?")
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
            pairs = _source_names(source.file_name, source.dset_name, path)
            for name, label in pairs:
                found = path if name == "." else _virtual_place(name, path)
                if found is None:
                    return MissingFile(f"its source {name!r} is not there", where=where)
                self.sources[found] = None
                if (found, label) not in self.virtual:
                    if len(self.virtual) >= _MOST_LINKS:
                        return Unsupported(f"more than {_MOST_LINKS} sources", where=where)
                    self.virtual[found, label] = None  # during the check: a dataset may be a source of itself
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
            with reading(path, "HDF5"), self.h5py.File(path, "r", locking="best-effort") as file:
                dataset = file.get(label)
                if not isinstance(dataset, self.h5py.Dataset):
                    return MissingFile(f"its source {label!r} of {path} is not there", where=where)
                plist = dataset.id.get_create_plist()
                if plist.get_layout() == self.h5py.h5d.VIRTUAL:
                    return self.virtual_problem(dataset, path, where, depth + 1)
                misplaced = _misplaced(plist, path)
                if misplaced is not None:
                    return Unsupported(
                        f"its source {label!r} of {path} has elements in {misplaced!r}, which HDF5 looks for in the working folder",
                        where=where,
                        fix="run in the folder of the file, or set HDF5_EXTFILE_PREFIX to it",
                    )
                for number in range(plist.get_external_count()):
                    self.sources[_beside(os.fsdecode(plist.get_external(number)[0]), path) or path] = None
        except FormatError as error:
            return error
        return None

    def identity(self, item: Any) -> tuple[int, int, int]:
        """Identifies an object, also after its file was closed and opened again: device, inode, address in
        the file."""
        status = os.stat(item.file.filename)
        return status.st_dev, status.st_ino, self.h5py.h5o.get_info(item.id).addr


class _Dataset:
    """Turns one dataset into fields."""

    def __init__(self, walker: _Walker, dataset: Any, label: str) -> None:
        self.walker, self.dataset, self.label = walker, dataset, label
        self.h5py = walker.h5py
        self.plist = dataset.id.get_create_plist()
        # A null dataspace holds no elements, and neither does a shape of 0.
        self.shape = (0,) if dataset.shape is None else tuple(int(n) for n in dataset.shape)
        self.path = os.fspath(dataset.file.filename)

    def add(self) -> None:
        """Adds the fields and facts of the dataset."""
        content = self.walker.content
        tid = self.dataset.id.get_type()
        others: list[tuple[str, tuple[str, ...]]] = []  # non-numeric parts: label, path of members
        kind: np.dtype | None
        try:
            kind, is_exact = _file_dtype(self.h5py, tid, self.label, others, ())
        except _NotNumeric:
            kind, is_exact, others = None, False, [(self.label, ())]
        self.say(tid)
        checked_shape(self.shape, max(kind.itemsize if kind else 1, 1), self.path, f"dataset {self.label!r}")
        empty = math.prod(self.shape) == 0
        problem = None if empty else self.problem()
        for label, members in others:
            content.add(self.coded(label, members, tid, problem))
        if kind is None:
            return
        source = None
        if is_exact and problem is None and not empty:
            try:
                source = self.extents(kind)
            except FormatError as error:  # only this dataset cannot be read
                problem = error
        elif problem is None and not empty:
            problem = self.decoding_problem(tid)
        if empty or source is not None:
            fields, skipped = array_fields(self.label, kind, self.shape, source or Stored(self.path, 0))
        else:
            fields, skipped = self.decoded_fields(kind, problem)
        for field in fields:
            content.add(field)
        content.skipped += skipped

    def say(self, tid: Any) -> None:
        """Adds what HDF5 records about a dataset beside its elements: type, names of an enumeration, fill
        value, …"""
        content, h5t = self.walker.content, self.h5py.h5t
        names = _enum_names(self.h5py, tid)
        if names is not None:
            content.say(self.label, "(enum)", names, meaning=True)
        elif tid.get_class() not in (h5t.INTEGER, h5t.FLOAT, h5t.ENUM) or _has_unused_bits(h5t, tid):
            content.say(self.label, "(type)", _type_text(self.h5py, tid), meaning=True)
        if tid.committed():
            content.say(self.label, "(named type)", _type_name(self.h5py, tid))
        if self.dataset.shape is None:
            content.say(self.label, "(shape)", "null")
        elif self.dataset.maxshape != self.dataset.shape:
            content.say(self.label, "(largest shape)", list(self.dataset.maxshape))
        if self.plist.fill_value_defined() == self.h5py.h5d.FILL_VALUE_USER_DEFINED:
            try:
                fill = self.dataset.fillvalue
            except (TypeError, ValueError, OSError, RuntimeError):
                content.skipped.append((f"{self.label}@(fill value)", "a fill value that h5py cannot read"))
            else:
                if np.any(np.asarray(fill) != np.zeros((), np.asarray(fill).dtype)):  # 0 is the default
                    content.say(
                        self.label, "(fill value)", fill, encode=self.walker.encode, tell=self.walker.shown
                    )

    def coded(self, label: str, members: tuple[str, ...], tid: Any, problem: FormatError | None) -> Field:
        """The field of codes of non-numeric elements, or of a non-numeric member of compound elements."""
        for name in members:
            tid = tid.get_member_type(tid.get_member_index(os.fsencode(name)))
        kind = _kind(self.h5py, tid)
        if math.prod(self.shape) == 0:
            return Field(label, "u64", "little", self.shape, extents=(), kind=kind)
        if problem is not None:
            new = unreadable(label, "u64", "little", self.shape, problem)
            new.kind = kind
            return new
        chunks = self.dataset.chunks if self.plist.get_layout() == self.h5py.h5d.CHUNKED else None
        dataset, walker = self.dataset, self.walker
        plain = _plain_dtype(tid)
        file_type = (  # HDF5 reads this type without conversion; None: h5py reads the elements
            tid
            if plain is None
            else None
            if _tagged_dtype(self.h5py, tid) is None
            else _nested_type(self.h5py, tid, members)
        )

        def rows(box: Box) -> np.ndarray:
            """The elements of a box, one in each row."""
            if not walker.file:
                raise FormatError("the file was closed", where=self.path)
            count = math.prod(s.stop - s.start for s in box)
            # numpy has no such type, or h5py cannot convert opaque bytes with a tag.
            if file_type is not None:
                if members and plain is None:
                    raise Unsupported(
                        f"member {label!r} is of a type that h5py does not read", where=self.path
                    )
                part = np.zeros(count, f"V{tid.get_size()}")
                space = dataset.id.get_space()
                if box:
                    space.select_hyperslab(tuple(s.start for s in box), tuple(s.stop - s.start for s in box))
                dataset.id.read(self.h5py.h5s.create_simple((count,)), space, part, file_type)
                return (
                    part
                    if plain is None
                    else np.frombuffer(part.tobytes(), np.dtype((plain, (1,)))).reshape(
                        count, *(plain.shape or ())
                    )
                )
            found = dataset.fields(members[0])[box] if members else dataset[box]
            if not box and not isinstance(found, np.ndarray):
                part = np.empty(1, object)
                part[0] = found
            elif not box:  # a scalar dataset whose element is an array
                part = found.reshape(1, *found.shape)
            else:
                part = np.asarray(found)
                part = part.reshape(count, *part.shape[len(box) :])
            for member in members[1:]:
                part = np.asarray([row[member] for row in part]) if part.dtype == object else part[member]
            return part

        def read_box(box: Box) -> np.ndarray:
            part = rows(box)
            return codes(part, walker.encode).reshape([s.stop - s.start for s in box])

        reader = BandReader(
            self.shape, chunks or (1,) * len(self.shape), storage_dtype("u64"), read_box, walker.cache
        )

        def tell(position: int) -> str:
            index = np.unravel_index(position, self.shape) if self.shape else ()
            with reading(self.path, f"dataset {label!r}"), walker.cache.lock:
                return walker.shown(rows(tuple(slice(int(i), int(i) + 1) for i in index))[0])

        read = decoded(label, "u64", math.prod(self.shape), self.path, reader.read)
        return Field(label, "u64", "little", self.shape, read=read, kind=kind, tell=tell)

    def problem(self) -> FormatError | None:
        """Why the dataset cannot be read, None if it can: a missing filter, external file or virtual
        source."""
        where = f"{self.path}: dataset {self.label!r}"
        for number in range(self.plist.get_nfilters()):
            code, _, _, name = self.plist.get_filter(number)
            if self.h5py.h5z.filter_avail(code):
                continue
            title = (
                f"HDF5 filter {code} ({_FILTERS.get(code) or name.decode('utf-8', 'replace') or 'no name'})"
            )
            try:
                importlib.import_module("hdf5plugin")  # registers its filters
            except ImportError:
                return MissingPackage(
                    f"is compressed with {title}", where=where, fix="run: pip install hdf5plugin"
                )
            if not self.h5py.h5z.filter_avail(code):
                fix = "pip's hdf5plugin lacks it: set HDF5_PLUGIN_PATH, or rewrite the file by h5repack"
                return Unsupported(f"is compressed with {title}", where=where, fix=fix)
        if self.plist.get_layout() == self.h5py.h5d.VIRTUAL:
            return self.walker.virtual_problem(self.dataset, self.path, where)
        for number in range(self.plist.get_external_count()):
            name = os.fsdecode(self.plist.get_external(number)[0])
            if self.beside(name) is None:
                return MissingFile(f"its external file {name!r} is not there", where=where)
        return None

    def decoding_problem(self, tid: Any) -> FormatError | None:
        """Why HDF5 cannot read this dataset's external files correctly, None if it can.

        HDF5 looks for external files in the working folder, and reads zeros past their end.
        """
        if not self.plist.get_external_count():
            return None
        where = f"{self.path}: dataset {self.label!r}"
        misplaced = _misplaced(self.plist, self.path)
        if misplaced is not None:
            return Unsupported(
                f"its elements need HDF5 itself, which looks for {misplaced!r} in the working folder",
                where=where,
                fix="run in the folder of the file, or set HDF5_EXTFILE_PREFIX to it",
            )
        try:
            self.external(math.prod(self.shape) * tid.get_size())
        except FormatError as error:
            return error
        return None

    def beside(self, name: str) -> str | None:
        """As `_beside`, for the file of this dataset."""
        return _beside(name, self.path)

    def extents(self, kind: np.dtype) -> Stored | Decoded | None:
        """Where the elements lie in memory layout, or None if h5py must read them."""
        if self.plist.get_layout() != self.h5py.h5d.CONTIGUOUS or self.plist.get_nfilters():
            return None
        needed = math.prod(self.shape) * kind.itemsize
        if self.plist.get_external_count():
            return self.external(needed)
        stored = self.dataset.id.get_storage_size()
        if stored == 0:
            return None  # nothing is allocated: every element has the fill value
        offset = self.dataset.id.get_offset()
        if offset is None:
            return None
        size = file_size(self.path)
        if stored != needed or offset < 0 or offset + needed > size:
            message = f"dataset {self.label!r} needs {needed} bytes, but has {stored} at {offset} in a file of {size}"
            raise DamagedFile(message, where=self.path)
        return Stored(self.path, offset)

    def external(self, needed: int) -> Stored | Decoded:
        """Where elements in external files lie: one piece of a file, or a function that joins several
        pieces."""
        pieces: list[tuple[int, int, str, int]] = []  # first byte, last byte + 1, file, offset in it
        at = 0
        for number in range(self.plist.get_external_count()):
            name, offset, size = self.plist.get_external(number)
            path = self.beside(os.fsdecode(name))
            assert path is not None  # problem() checked it
            self.walker.sources[path] = None
            here = min(int(size), needed - at)
            if here <= 0:
                break
            if offset < 0 or offset + here > file_size(path):
                # HDF5 itself would read zeros there.
                message = (
                    f"ends before byte {offset + here}, which dataset {self.label!r} of {self.path} needs"
                )
                raise DamagedFile(message, where=path)
            pieces.append((at, at + here, path, int(offset)))
            at += here
        if at < needed:
            raise DamagedFile(
                f"dataset {self.label!r}: its external files hold {at} of {needed} bytes", where=self.path
            )
        if len(pieces) == 1:
            return Stored(pieces[0][2], pieces[0][3])

        def read_bytes(first: int, count: int) -> bytes:
            parts = []
            for begin, end, path, offset in pieces:
                low, high = max(first, begin), min(first + count, end)
                if low < high:
                    file, _ = open_regular(path)
                    with file:
                        parts.append(read_exact(file, offset + low - begin, high - low, path, self.label))
            return b"".join(parts)

        return Decoded(self.path, read_bytes)

    def decoded_fields(
        self, kind: np.dtype, problem: FormatError | None
    ) -> tuple[list[Field], list[tuple[str, str]]]:
        """Fields, and skipped parts, of elements that h5py reads."""
        fields: list[Field] = []
        skipped: list[tuple[str, str]] = []
        chunks = self.dataset.chunks if self.plist.get_layout() == self.h5py.h5d.CHUNKED else None
        for label, members, leaf, inner in _leaves(self.label, kind, (), ()):
            known = dtype_of(leaf)
            if known is None:  # cannot happen: _file_dtype returns only known types
                skipped.append((label, f"elements of type {leaf.name} are not supported"))
                continue
            shape = self.shape + inner
            checked_shape(shape, leaf.itemsize, self.path, f"dataset {label!r}")
            if problem is not None:
                fields.append(unreadable(label, known[0], "little", shape, problem))
                continue
            reader = self.reader(
                members, known[0], shape, (chunks or (1,) * len(self.shape)) + inner, len(inner)
            )
            read = decoded(label, known[0], math.prod(shape), self.path, reader.read)
            fields.append(
                Field(
                    label,
                    known[0],
                    "little",
                    shape,
                    read=read,
                    unit=unit_of(leaf),
                    reads_anywhere=reader.reads_anywhere,
                )
            )
        return fields, skipped

    def reader(
        self, members: tuple[str, ...], code: str, shape: tuple[int, ...], chunks: tuple[int, ...], inner: int
    ) -> BandReader:
        """Reads one numeric leaf of the elements.

        inner: number of axes of array elements, the last ones of `shape`.
        """
        dataset, native, walker = self.dataset, storage_dtype(code), self.walker
        if members:
            dataset = dataset.fields(members[0])  # convert only this member; others may have any type

        def read_box(box: Box) -> np.ndarray:
            if not walker.file:
                raise FormatError("the file was closed", where=self.path)
            # The axes of array elements follow those of the dataset. HDF5 always reads them whole.
            outer = box[: len(box) - inner] if box else ()
            part = np.asarray(dataset[outer])
            for member in members[1:]:
                part = part[member]
            if inner:
                cut: tuple[Any, ...] = (Ellipsis, *box[len(box) - inner :])
                part = part[cut]
            if part.dtype.kind in "mM":
                part = part.view("i8")
            return part.astype(native, copy=False)

        return BandReader(shape, chunks, native, read_box, walker.cache)


def _beside(name: str, path: str) -> str | None:
    """Path of the external file `name` of the HDF5 file `path`, None if there is none.

    It is looked for in HDF5_EXTFILE_PREFIX, then beside the HDF5 file, so that two runs do not share one,
    then as it is.
    """
    own = os.path.dirname(path) or "."
    prefix = os.environ.get("HDF5_EXTFILE_PREFIX", "").replace("${ORIGIN}", own)
    for folder in (prefix, own):
        candidate = os.path.join(folder, name) if folder else name
        if folder and os.path.isfile(candidate):
            return candidate
    return name if os.path.isfile(name) else None


def _misplaced(plist: Any, path: str) -> str | None:
    """The first external file that HDF5 itself would not find, or find in another place than `_beside`.

    None if all agree.
    """
    prefix = os.environ.get("HDF5_EXTFILE_PREFIX", "").replace("${ORIGIN}", os.path.dirname(path) or ".")
    for number in range(plist.get_external_count()):
        name = os.fsdecode(plist.get_external(number)[0])
        found, opened = _beside(name, path), os.path.join(prefix, name)
        if found is None or not os.path.isfile(opened) or not os.path.samefile(found, opened):
            return name
    return None


def _virtual_place(name: str, path: str) -> str | None:
    """Path of the source `name` of a virtual dataset in file `path`, searched as HDF5 does.

    None if there is none.
    """
    prefixes = [
        p.replace("${ORIGIN}", os.path.dirname(path) or ".")
        for p in os.environ.get("HDF5_VDS_PREFIX", "").split(":")
        if p
    ]
    folders = [*prefixes, os.path.dirname(path) or ".", "", os.path.dirname(os.path.realpath(path))]
    if os.path.isabs(name):
        if os.path.isfile(name):
            return name
        name = os.path.basename(name)
    return next((p for p in (os.path.join(f, name) for f in folders) if os.path.isfile(p)), None)


def _source_names(file: str, dataset: str, path: str) -> list[tuple[str, str]]:
    """The (file, dataset) sources of one mapping of a virtual dataset in file `path`.

    Without %b in the names there is one source. With it there is one for each block, numbered from 0, up to
    the first whose file does not exist (printf-style source names, H5Pset_virtual).
    """
    numbered = [re.search(r"(?<!%)(?:%%)*%b", text) is not None for text in (file, dataset)]

    def name(text: str, number: int) -> str:
        return re.sub(r"%[%b]", lambda m: "%" if m[0] == "%%" else str(number), text)

    if not any(numbered):
        return [(name(file, 0), name(dataset, 0))]
    found = []
    for number in range(_MOST_LINKS):
        entry = name(file, number), name(dataset, number)
        if number and numbered[0] and entry[0] != "." and _virtual_place(entry[0], path) is None:
            break
        found.append(entry)
        if not numbered[0]:
            break  # all blocks are in the same file
    return found


def _leaves(
    label: str, kind: np.dtype, members: tuple[str, ...], inner: tuple[int, ...]
) -> list[tuple[str, tuple[str, ...], np.dtype, tuple[int, ...]]]:
    """(name, path of members, scalar type, shape of array elements) of every scalar in `kind`."""
    if kind.subdtype is not None:
        return _leaves(label, kind.subdtype[0], members, inner + kind.subdtype[1])
    if kind.names is None:
        return [(label, members, kind, inner)]
    result = []
    for name in kind.names:
        result += _leaves(f"{label}.{name}", kind.fields[name][0], (*members, name), inner)  # type: ignore[index]
    return result


def _file_dtype(
    h5py: Any, tid: Any, label: str, others: list[tuple[str, tuple[str, ...]]], members: tuple[str, ...]
) -> tuple[np.dtype, bool]:
    """The numpy type for an HDF5 type, and whether the bytes in the file already have that type.

    Non-numeric members are left out and added to `others`: (label, path of members). Raises _NotNumeric if no
    numeric member is left.
    """
    h5t = h5py.h5t
    kind = tid.get_class()
    if kind in (h5t.STRING, h5t.VLEN, h5t.REFERENCE, h5t.OPAQUE, h5t.TIME):
        raise _NotNumeric
    if kind == h5t.ARRAY:
        base, exact = _file_dtype(h5py, tid.get_super(), label, [], ())
        if base.names is not None:
            raise _NotNumeric
        return np.dtype((base, tid.get_array_dims())), exact
    if kind == h5t.COMPOUND:
        plain = _plain_dtype(tid)
        if plain is not None and plain.kind == "c":
            if dtype_of(plain) is None:
                raise _NotNumeric
            return plain, bool(tid.equal(h5t.py_create(plain)))
        names, formats, offsets = [], [], []
        exact = not _points_elsewhere(h5t, tid)
        for number in range(tid.get_nmembers()):
            name = os.fsdecode(tid.get_member_name(number))
            inner = (*members, name)
            try:
                member, member_exact = _file_dtype(
                    h5py, tid.get_member_type(number), f"{label}.{name}", others, inner
                )
            except _NotNumeric:
                if all(known != inner for _, known in others):
                    others.append((f"{label}.{name}", inner))
                continue
            if member_exact and tid.get_member_offset(number) + member.itemsize > tid.get_size():
                raise DamagedFile(f"member {label}.{name} passes the end of its struct")
            names.append(name)
            formats.append(member)
            offsets.append(tid.get_member_offset(number))
            exact &= member_exact
        if not names:
            if members:  # replace the entries of its members by one entry for itself
                others[:] = [entry for entry in others if entry[1][: len(members)] != members]
            raise _NotNumeric
        if not exact:  # h5py converts, and chooses the offsets
            return np.dtype({"names": names, "formats": formats}), False
        return np.dtype(
            {"names": names, "formats": formats, "offsets": offsets, "itemsize": tid.get_size()}
        ), True
    plain = _plain_dtype(tid)
    if plain is None or dtype_of(plain) is None:
        raise _NotNumeric
    if kind == h5t.ENUM:
        if plain.kind == "b":
            return np.dtype(bool), tid.get_size() == 1
        base = tid.get_super()
        plain = np.dtype(plain.str)  # without the names of the values
        return plain, bool(base.equal(h5t.py_create(plain)))
    try:
        return np.dtype(plain.str), bool(tid.equal(h5t.py_create(np.dtype(plain.str))))
    except TypeError:
        return plain, False


def _enum_names(h5py: Any, tid: Any) -> dict[str, int] | None:
    """{name: value} of an enumeration; None for other types and for h5py's type of booleans."""
    if tid.get_class() != h5py.h5t.ENUM:
        return None
    plain = _plain_dtype(tid)
    if plain is not None and plain.kind == "b":
        return None
    return {
        os.fsdecode(tid.get_member_name(n)): int(tid.get_member_value(n)) for n in range(tid.get_nmembers())
    }


def _tagged_dtype(h5py: Any, tid: Any) -> np.dtype | None:
    """The numpy type of elements that contain opaque bytes with a tag; None for other elements, and if they
    contain pointers.

    h5py's type for them has no tag, and HDF5 cannot convert from a type with a tag to one without. So these
    elements are read in the type of the file.
    """
    if not _has_tag(h5py.h5t, tid) or _points_elsewhere(h5py.h5t, tid):
        return None
    return _plain_dtype(tid)


def _has_tag(h5t: Any, tid: Any) -> bool:
    kind = tid.get_class()
    if kind == h5t.COMPOUND:
        return any(_has_tag(h5t, tid.get_member_type(n)) for n in range(tid.get_nmembers()))
    if kind == h5t.ARRAY:
        return _has_tag(h5t, tid.get_super())
    return kind == h5t.OPAQUE and tid.get_tag() != b"" and not tid.get_tag().startswith(b"NUMPY:")


def _nested_type(h5py: Any, tid: Any, members: tuple[str, ...]) -> Any:
    """A compound type with a single leaf of type `tid`, at the path `members`."""
    for name in reversed(members):
        outer = h5py.h5t.create(h5py.h5t.COMPOUND, tid.get_size())
        outer.insert(os.fsencode(name), 0, tid)
        tid = outer
    return tid


def _type_text(h5py: Any, tid: Any) -> str:
    """An HDF5 type in words, without storage details: byte order, offsets, padding."""
    h5t = h5py.h5t
    kind = tid.get_class()
    if kind == h5t.STRING:
        cset = "utf-8" if tid.get_cset() == h5t.CSET_UTF8 else "ascii"
        if tid.is_variable_str():
            return f"text of any length, {cset}"
        pad = {
            h5t.STR_NULLTERM: "ended by 0",
            h5t.STR_NULLPAD: "filled with 0",
            h5t.STR_SPACEPAD: "filled with spaces",
        }
        return f"text of {tid.get_size()} bytes, {cset}, {pad.get(tid.get_strpad(), '?')}"
    if kind == h5t.VLEN:
        return f"lists of {_type_text(h5py, tid.get_super())}"
    if kind == h5t.ARRAY:
        return f"{list(tid.get_array_dims())} of {_type_text(h5py, tid.get_super())}"
    if kind == h5t.COMPOUND:
        members = (
            f"{os.fsdecode(tid.get_member_name(n))}: {_type_text(h5py, tid.get_member_type(n))}"
            for n in range(tid.get_nmembers())
        )
        return "{" + ", ".join(members) + "}"
    if kind == h5t.ENUM:
        return f"enum of {_type_text(h5py, tid.get_super())} {_enum_names(h5py, tid)}"
    if kind == h5t.OPAQUE:
        return f"{tid.get_size()} opaque bytes, {tid.get_tag()!r}"
    if kind == h5t.REFERENCE:
        return "region references" if tid.equal(h5t.STD_REF_DSETREG) else "references"
    words = {h5t.INTEGER: "integer", h5t.FLOAT: "float", h5t.TIME: "time", h5t.BITFIELD: "bits"}
    sign = ""
    if kind == h5t.INTEGER and tid.get_sign() == h5t.SGN_NONE:
        sign = "unsigned "
    precision = tid.get_precision() if kind in (h5t.INTEGER, h5t.FLOAT) else 8 * tid.get_size()
    return f"{sign}{words.get(kind, 'type')} of {precision} bits"


def _type_name(h5py: Any, tid: Any) -> str:
    return os.fsdecode(h5py.h5i.get_name(tid) or b"?")


def _named_type_text(h5py: Any, tid: Any) -> str:
    """The type in words, with its name if it is a named type of the file."""
    text = _type_text(h5py, tid)
    return f"{text}, named {_type_name(h5py, tid)}" if tid.committed() else text


def _has_unused_bits(h5t: Any, tid: Any) -> bool:
    """Whether a numeric type has a precision of fewer bits than its bytes hold."""
    return tid.get_class() in (h5t.INTEGER, h5t.FLOAT) and tid.get_precision() != 8 * tid.get_size()


def _kind(h5py: Any, tid: Any) -> str:
    """The kind of non-numeric elements, for `Field.kind`."""
    h5t = h5py.h5t
    words = {
        h5t.STRING: "text", h5t.VLEN: "list", h5t.REFERENCE: "reference", h5t.OPAQUE: "opaque bytes", h5t.TIME: "time",
        h5t.COMPOUND: "struct", h5t.ARRAY: "array",
    }  # fmt: skip
    plain = _plain_dtype(tid)
    return words.get(tid.get_class()) or (kind_of(plain) if plain is not None else "bytes")


def _points_elsewhere(h5t: Any, tid: Any) -> bool:
    """Whether elements contain pointers.

    Sizes and offsets of such a type are those in memory, not in the file.
    """
    kind = tid.get_class()
    if kind == h5t.COMPOUND:
        return any(_points_elsewhere(h5t, tid.get_member_type(n)) for n in range(tid.get_nmembers()))
    if kind == h5t.ARRAY:
        return _points_elsewhere(h5t, tid.get_super())
    return kind in (h5t.VLEN, h5t.REFERENCE) or (kind == h5t.STRING and tid.is_variable_str())


def _plain_dtype(tid: Any) -> np.dtype | None:
    """The numpy type that h5py gives for an HDF5 type; None if it has none."""
    try:
        return tid.dtype
    except (TypeError, ValueError, KeyError, NotImplementedError):
        return None


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
