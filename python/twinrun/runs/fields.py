"""One field of one place of a run: its layout, where its elements are, and its metadata."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from .. import _core
from ..errors import DamagedFile, Incomparable, Stale, TwinrunError
from ..formats import Field, FileContent
from ..formats.element_types import COMPLEX, ITEMSIZE, storage_dtype
from ..formats.facts import SUMMARY
from ..formats.labels import labels_of, labels_told
from ..formats.model import label_field, summary_fields
from ..formats.texts import MASK, SUFFIX
from .arrays import ArrayView, DeviceArrayView, view

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

__all__ = [
    "MOST_UNIFORM",
    "FieldLayout",
    "FieldRef",
    "check_alike",
    "decoded_source",
    "label_refs",
    "lacks_any",
    "mask_of_none",
    "masked_field",
    "places_of",
    "refs_of_fields",
    "refs_of_metadata",
]

# Bytes of a field without stored elements of which digests are made, at most: they take 20 minutes.
MOST_UNIFORM = 1 << 40


def decoded_source(dtype: str, items: int, field: Field) -> _core.Source:
    """A source whose elements `field.read` decodes."""
    import ctypes

    storage = storage_dtype(dtype)

    def fetch(first: int, count: int, address: int) -> None:
        assert field.read is not None
        values = field.read(first, count)
        if values.size != count or values.dtype != storage:
            raise DamagedFile(f"{values.size} elements of {values.dtype} where {count} of {storage} belong")
        raw = (ctypes.c_uint8 * (count * storage.itemsize)).from_address(address)
        np.ctypeslib.as_array(raw).view(storage)[:] = values

    return _core.decoded_source(dtype, items, fetch)


@dataclass
class FieldRef:
    """One field of one place. shape: in the order of the stored elements (reversed where fortran_order)."""

    name: str
    dtype: str
    byte_order: str
    shape: tuple[int, ...]
    fortran_order: bool
    where: str
    extents: list[_core.PathExtent] | None = None
    reader: Field | None = None
    memory: ArrayView | DeviceArrayView | None = None
    metadata: _core.Metadata | None = None
    metadata_field: int = 0
    facts: _core.FieldFacts | None = None  # of the metadata's field
    no_data: bool = False
    # The record that holds its elements, and the step.
    recorded: tuple[_core.RecordStore, int] | None = None
    # Shape of the global array and offset in it, as `shape`.
    place: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    # Of particles: the field of their IDs and their group, as the file names them.
    key: str | None = None
    group: str | None = None
    own_name: str = ""  # in its file
    unit: str | None = None  # of dates and time spans; None for plain numbers
    kind: str | None = None  # of elements that are not numbers: their kind
    tell: Callable[[int], str] | None = None  # such an element as text
    parts: object = None  # of a global array: where its parts are (parts.Parts)
    # Of the format, where elements must be decoded.
    open_reader: Callable[[], Field | None] | None = None
    # Of digests of texts: the text at an index.
    text: Callable[[tuple[int, ...]], str] | None = None
    told_as_text: bool = False  # see formats.Field
    stored_name: str = ""  # in the record that holds its elements, where it is not `name`
    stored: FieldRef | None = None  # of a field in a wider type than it is stored in: that one
    told_shape: tuple[int, ...] | None = None  # see formats.Field
    null: bool = False  # see formats.Field
    characters: bool = False  # see formats.Field
    told_type: str = ""  # of numbers that the core does not know in their own type: its name
    mask: FieldRef | None = None  # a field of bool: True where an element has no value

    @property
    def type_in_run(self) -> str:
        """The type that it has in its run, whatever it is compared in."""
        return self.told_type or (self.dtype if self.stored is None else self.stored.type_in_run)

    @property
    def items(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return ITEMSIZE[self.dtype]

    @property
    def user_shape(self) -> tuple[int, ...]:
        """Shape as the user knows it."""
        return self.shape[::-1] if self.fortran_order else self.shape

    @property
    def reads_anywhere(self) -> bool:
        """Whether a part of its elements, or of its metadata, can be read at the cost of that part."""
        if self.stored is not None:
            return self.stored.reads_anywhere
        in_files = self.extents is not None or self.recorded is not None or self.no_data
        return in_files or (self.reader is not None and self.reader.reads_anywhere)

    @property
    def is_uniform(self) -> bool:
        """Whether none of its elements is stored, so that all are alike: see `formats.Field`. In a wider type
        they are alike too.
        """
        if self.stored is not None:
            return self.stored.is_uniform
        plain = self.memory is None and self.recorded is None
        return plain and self.extents is None and self.reader is not None and self.reader.uniform

    def one(self) -> FieldRef:
        """Any one element of a uniform field, as a field of its own."""
        stored = None if self.stored is None else self.stored.one()
        return replace(self, shape=(), fortran_order=False, place=None, stored=stored)

    @property
    def user_place(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Shape of the global array and offset in it, as the user knows them."""
        if self.place is None or not self.fortran_order:
            return self.place
        return self.place[0][::-1], self.place[1][::-1]

    @property
    def digest(self) -> str | None:
        """The kind of its metadata's digests."""
        return None if self.facts is None else self.facts.digest

    def need_metadata(self) -> _core.Metadata:
        """The facts of its metadata, if it has metadata."""
        assert self.metadata is not None
        return self.metadata

    def need_source(self, cache: str = "auto") -> _core.Source:
        """Its elements, where it is known to have them."""
        source = self.source(cache)
        assert source is not None
        return source

    def index(self, scalar: int) -> tuple[int, ...]:
        """N-D index of a scalar; for complex fields with a last 0 (real part) or 1 (imaginary part)."""
        part: tuple[int, ...] = ()
        if self.dtype in COMPLEX:
            scalar, component = divmod(scalar, 2)
            part = (component,)
        at = []
        for size in reversed(self.shape):
            scalar, i = divmod(scalar, size)
            at.append(i)
        return (tuple(at) if self.fortran_order else tuple(reversed(at))) + part

    def load(self) -> None:
        """Opens the file of a field that was known from its metadata alone. From then on the facts
        of the file count.
        """
        if self.stored is not None:
            self.stored.load()
            self.told_as_text = self.stored.told_as_text
            return
        if self.reader is None and self.open_reader is not None and not self.no_data:
            self.reader = self.open_reader()
            self.told_as_text = self.reader is not None and self.reader.told_as_text

    def source(self, cache: str = "auto", files: _core.OpenFiles | None = None) -> _core.Source | None:
        """A source of its elements; None if only metadata was kept. files: that are open for other
        sources too.
        """
        if self.no_data:
            return None
        if self.stored is not None:
            below = self.stored.source(cache, files)
            return None if below is None else _core.widened_source(self.dtype, below)
        if self.recorded is not None and self.items:
            store, step = self.recorded
            return store.source(step, self.stored_name or self.name, self.dtype, self.items)
        if self.memory is not None:
            m = self.memory
            if isinstance(m, DeviceArrayView):
                return _core.device_source(
                    m.dtype, m.shape, m.strides, m.address, m.device, m.stream, m.swap, m.owner
                )
            return _core.memory_source(m.dtype, m.items, m.address, m.stride, m.swap, m.owner)
        if self.extents is not None:
            return _core.file_source(self.dtype, self.byte_order, self.items, self.extents, cache, files)
        self.load()
        if self.reader is None:
            raise Stale(
                f"describes field {self.name!r}, which its data file does not hold",
                where=self.where,
                fix="index it again with 'twinrun index'",
            )
        if self.reader.problem is not None:
            raise self.reader.problem
        return decoded_source(self.dtype, self.items, self.reader)


class FieldLayout(Protocol):
    """The type and shape of a field of a run or a sketch."""

    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def user_shape(self) -> tuple[int, ...]: ...
    @property
    def fortran_order(self) -> bool: ...


def shape_text(field: FieldLayout) -> str:
    """The shape of a field for people."""
    return "null (no elements)" if getattr(field, "null", False) else str(list(field.user_shape))


def masked_field(name: str, fields: Mapping[str, FieldRef]) -> FieldRef | None:
    """The field whose elements a mask is of: that of its own name, or of digests of texts."""
    own = name.removesuffix(MASK)
    return fields.get(own, fields.get(f"{own}{SUFFIX}"))


def lacks_any(mask: FieldRef) -> bool:
    """Whether an element lacks a value by this mask. False where only digests are there: nothing is known."""
    if mask.dtype != "bool":
        return False
    source = mask.source()
    if source is None:
        return False
    step = 1 << 22
    try:
        return any(
            _core.read_source(source, first, min(step, mask.items - first)).any()
            for first in range(0, mask.items, step)
        )
    except TwinrunError:  # whoever compares it says what is wrong
        return True


def mask_of_none(mask: FieldRef, field: FieldRef) -> FieldRef | None:
    """A mask like `mask` for a field of which all elements have a value; None where the shapes do not fit.

    mask: of the same field of another run or rank, which may have another number of rows.
    """
    shape = (*field.user_shape[:1], *mask.user_shape[1:])
    if len(shape) != len(mask.user_shape) or field.user_shape[: len(shape)] != shape:
        return None
    values = view(mask.name, np.zeros(shape, np.bool_))
    assert isinstance(values, ArrayView)
    return FieldRef(mask.name, values.dtype, "little", values.shape, False, field.where,
                    memory=values, group=field.group)  # fmt: skip


def check_alike(
    a: FieldLayout,
    b: FieldLayout,
    what: str,
    label_a: str,
    label_b: str,
    mixed: bool = False,
    castable: bool = False,
) -> None:
    """Raises Incomparable where the types or shapes of two fields differ. what: names the field.

    mixed: numbers of these two types may be compared. castable: the caller may ask for that.
    """
    if label_a == label_b:  # arrays have no paths
        label_a, label_b = "the first run", "the second"
    if a.dtype != b.dtype and not mixed:
        kinds = [getattr(side, "kind", None) for side in (a, b)]
        helps = castable and kinds == [None, None]
        # The type of a kind is that of its codes, which no user knows.
        said = [kind or side.dtype for kind, side in zip(kinds, (a, b), strict=True)]
        raise Incomparable(
            f"{what}: {said[0]} in {label_a}, {said[1]} in {label_b}",
            fix=f"types must agree{', or --cast compares the numbers that they hold' if helps else ''}",
        )
    kinds = [getattr(side, "kind", None) for side in (a, b)]
    if kinds[0] != kinds[1]:
        said = [kind or "numbers" for kind in kinds]
        raise Incomparable(f"{what}: {said[0]} in {label_a}, {said[1]} in {label_b}", fix="types must agree")
    units = getattr(a, "unit", None), getattr(b, "unit", None)
    if units[0] != units[1]:
        # the same integers stand for other times, or for plain numbers
        said = [unit or "plain numbers" for unit in units]
        raise Incomparable(
            f"{what}: {said[0]} in {label_a}, {said[1]} in {label_b}", fix="units of time must agree"
        )
    if a.user_shape != b.user_shape:
        raise Incomparable(
            f"{what}: shape {shape_text(a)} in {label_a}, {shape_text(b)} in {label_b}",
            fix="shapes must agree",
        )


def refs_of_metadata(
    metadata: _core.Metadata, reopen: Callable[[], FileContent] | None = None
) -> list[FieldRef]:
    """The fields that a metadata file describes. reopen: gives its data opened, for those that must
    be decoded.
    """
    files = metadata.data_files
    refs = []
    for at, facts in enumerate(metadata.fields):
        ref = FieldRef(
            name=facts.name,
            dtype=facts.dtype,
            byte_order=facts.byte_order,
            shape=facts.shape,
            fortran_order=facts.fortran_order,
            where=metadata.path,
            metadata=metadata,
            metadata_field=at,
            facts=facts,
        )
        ref.key = facts.key or None
        if facts.global_shape:
            ref.place = facts.global_shape, facts.global_offset
        extents = facts.extents
        if extents or facts.items == 0:
            ref.extents = [
                _core.PathExtent(files[e.file].path, offset=e.offset, stride=e.stride, count=e.count)
                for e in extents
            ]
        elif not files:
            ref.no_data = True
        elif reopen is not None:
            ref.open_reader = functools.partial(_field_of, reopen, facts.name)
        refs.append(ref)
    return _as_labelled(refs)


def _as_labelled(refs: list[FieldRef]) -> list[FieldRef]:
    """The fields without labels; each field gets the unit and kind that its labels hold."""
    told, labels = labels_told({ref.name: ref.shape for ref in refs})
    kept = [ref for ref in refs if ref.name not in labels]
    for ref in kept:
        own = told.get(ref.name, {})
        ref.unit, ref.kind = own.get("unit"), own.get("kind")
    return kept


def _field_of(reopen: Callable[[], FileContent], name: str) -> Field | None:
    content = reopen()
    if name in content.fields or name != SUMMARY:
        return content.fields.get(name)
    return next(iter(summary_fields(content.facts, 0, content.path)), None)


def refs_of_fields(fields: Mapping[str, Field], path: str) -> list[FieldRef]:
    """The fields of an opened file that has no metadata."""
    refs = []
    for name, f in fields.items():
        ref = FieldRef(
            name,
            f.dtype,
            f.byte_order,
            f.shape,
            f.fortran_order,
            path,
            key=f.key,
            group=f.group,
            own_name=f.name,
            unit=f.unit,
            text=f.text,
            told_as_text=f.told_as_text,
            kind=f.kind,
            tell=f.tell,
            told_shape=f.told_shape,
            null=f.null,
            characters=f.characters,
        )
        if f.extents is not None:
            ref.extents = [
                _core.PathExtent(e.path, offset=e.offset, stride=e.stride, count=e.count) for e in f.extents
            ]
        else:
            ref.reader = f
        refs.append(ref)
    return refs


def label_refs(refs: Sequence[FieldRef], where: str) -> list[FieldRef]:
    """The labels that hold units and kinds of these fields in metadata.

    Raises Incomparable where a field has such a name.
    """
    taken = sorted(labels_told({ref.name: ref.shape for ref in refs})[1])
    if taken:
        raise Incomparable(
            f"field {taken[0]!r} has no elements, and metadata keeps the unit or the kind of a field by such a name",
            where=where,
            fix="name it otherwise, or choose fields",
        )
    labels = [label for ref in refs for label in labels_of(ref.name, ref.unit, ref.kind)]
    return refs_of_fields({label: label_field(label) for label in labels}, "labels")


def places_of(ref: FieldRef) -> list[tuple[int, int, int]]:
    """Where the elements lie in their files; adjacent extents are joined."""
    found: list[tuple[int, int, int]] = []
    last = None
    for extent in ref.extents or ():
        path, offset, stride, count = extent.path, extent.offset, extent.stride, extent.count
        if (
            found
            and last == path
            and found[-1][1] == stride
            and found[-1][0] + found[-1][2] * stride == offset
        ):
            found[-1] = (*found[-1][:2], found[-1][2] + count)
        else:
            found.append((offset, stride, count))
        last = path
    return found
