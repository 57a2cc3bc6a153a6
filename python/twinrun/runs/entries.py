"""Arrays of a program as the core captures and digests them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from .. import _core
from ..arguments import tolerance_number, utf8
from ..errors import TwinrunError, in_short
from ..formats.element_types import unit_of
from ..formats.labels import labels_of
from ..formats.texts import MASK, SUFFIX
from .arrays import ArrayView, DeviceArrayView, bits_of_small, row_major, taken
from .containers import flattened, named_arrays, state_of

__all__ = ["GlobalPlace", "captured_entries", "captured_field", "own_tolerances"]

# {field: (shape of the global array, index at which this rank's part begins)}.
GlobalPlace = Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]


def own_tolerances(
    given: Mapping[str, float | tuple[float, float]] | None,
) -> dict[str, _core.Tolerance]:
    """By field, from {field: atol or (atol, rtol)}."""
    return {name: _own_tolerance(name, t) for name, t in (given or {}).items()}


def _own_tolerance(name: str, given: object) -> _core.Tolerance:
    try:
        both = [given] if isinstance(given, (str, bytes)) else list(given)  # type: ignore[call-overload]
    except TypeError:
        both = [given]
    if len(both) not in (1, 2):
        raise TwinrunError(
            f"the tolerance of field {name!r} must be atol or (atol, rtol), not {in_short(given)}"
        )
    return _core.Tolerance(
        *(
            tolerance_number(f"{which} of field {name!r}", value)
            for which, value in zip(("atol", "rtol"), both, strict=False)
        )
    )


def captured_field(
    name: str,
    v: ArrayView | DeviceArrayView,
    tolerance: _core.Tolerance | None = None,
    ids: str = "",
    place: tuple[tuple[int, ...], tuple[int, ...]] = ((), ()),
) -> _core.CapturedField:
    """An array in the form that the core captures.

    v: the array; it must live until the core has read it. ids: the field of IDs of its rows, '' if it has
    none. place: its global shape and offset, as in GlobalPlace; empty if it is not a part of a global array.
    """
    shape, offset = place
    if shape:
        shape, offset = tuple(map(int, shape)), tuple(map(int, offset))
    if v.fortran_order:
        shape, offset = shape[::-1], offset[::-1]
    if isinstance(v, DeviceArrayView):
        return _core.CapturedField(
            name=name,
            dtype=v.dtype,
            shape=v.shape,
            address=v.address,
            fortran_order=v.fortran_order,
            tolerance=tolerance,
            device=v.device,
            strides=v.strides,
            stream=v.stream,
            swap=v.swap,
            ids=ids,
            global_shape=shape,
            global_offset=offset,
        )
    return _core.CapturedField(
        name=name,
        dtype=v.dtype,
        shape=v.shape,
        address=v.address,
        stride=v.stride,
        fortran_order=v.fortran_order,
        tolerance=tolerance,
        ids=ids,
        global_shape=shape,
        global_offset=offset,
    )


def captured_entries(
    fields: object,
    tolerances: Mapping[str, _core.Tolerance],
    stream: object,
    where: str | None = None,
    ids: Mapping[str, str] | None = None,
    global_place: GlobalPlace | None = None,
) -> tuple[_core.CapturedFields, list[object]]:
    """The arrays of a container in the form that the core captures.

    fields: a container of arrays, see `containers`. tolerances: of fields that have one of their
    own. stream: the GPU stream that computes the arrays. where: the run, for messages. ids: {field:
    its field of IDs}.

    Returns the arrays, and objects that must live until the core has read them. Raises TwinrunError for two
    fields of one name, an array that cannot be captured, and names in `ids` or `global_place` that are not
    fields.
    """
    ids = ids or {}
    places = global_place or {}
    plain = None
    if not ids and not places:
        plain = _core.FieldList.of_arrays(state_of(fields), flattened, stream is None)
    views: dict[str, ArrayView | DeviceArrayView] = {}
    kinds: dict[str, str] = {}  # of 8-bit floating-point numbers, which are kept as bytes
    for given, array in (named_arrays(fields, where) if plain is None else plain.rest).items():
        name = utf8(given, "the name of a field")
        if name in views:
            raise TwinrunError(f"two fields of the name {name!r}", where=where)
        bits, kind = bits_of_small(array)
        views[name] = taken(name, bits, stream)
        if kind is not None:
            kinds[name] = kind
    labelled = _labels(views, kinds)
    exact = {name for name, _ in labelled}  # dates: a tolerance has no unit that could be theirs
    for name, label in labelled:
        if label in views:
            raise TwinrunError(
                f"two fields of the name {label!r}",
                where=where,
                fix=f"rename one: twinrun keeps the unit or the type of {name!r} under this name",
            )
        views[label] = taken(label, np.empty(0, bool))
    for what, names in (("ids", [*ids, *ids.values()]), ("global_place", places)):
        for name in names:
            if name not in views:
                raise TwinrunError(
                    f"{what} names {name!r}, which is not among the captured fields", where=where
                )
    ids = _with_masks(ids, views)
    _refuse_labels_of_rows(ids, views, where)
    entries: list[_core.CapturedField] = []
    keep: list[object] = []
    for name, v in views.items():
        if isinstance(v, ArrayView) and v.swap:  # digests are computed in native byte order
            native = np.ascontiguousarray(v.owner.astype(v.owner.dtype.newbyteorder("="))).reshape(v.shape)
            address = native.__array_interface__["data"][0]
            v = replace(v, address=address, stride=native.itemsize, swap=False, owner=native)
        if name in ids:
            v = row_major(v)
        keep.append(v)
        entries.append(
            captured_field(
                name,
                v,
                None if name in exact else tolerances.get(name),
                ids.get(name, ""),
                places.get(name, ((), ())),
            )
        )
    if plain is None:
        return _core.CapturedFields(entries), keep
    every = plain.captured(tolerances)
    at = plain.rest_places
    for number, entry in enumerate(entries):  # labels of units come last
        every.insert(at[number] if number < len(at) else len(every), entry)
    return every, [plain, *keep]


def _with_masks(
    ids: Mapping[str, str], views: Mapping[str, ArrayView | DeviceArrayView]
) -> Mapping[str, str]:
    """IDs of fields are those of their masks, too: they have the same rows."""
    masks = {f"{name}{MASK}": key for name, key in ids.items()}
    return {**{name: key for name, key in masks.items() if name in views}, **ids}


def _refuse_labels_of_rows(
    ids: Mapping[str, str], views: Mapping[str, ArrayView | DeviceArrayView], where: str | None
) -> None:
    """Raises TwinrunError where rows have labels that would stay in the order of memory: an index,
    coordinates. Those of a table are labels of its columns.
    """
    for label, v in views.items():
        found = _OF_ROWS.match(label)
        if found is None or label in ids or label.endswith(_OF_LABELS):
            continue
        for name in ids:
            of_it = name == found[1] or name.startswith(f"{found[1]}.")
            if of_it and v.shape[:1] == views[name].shape[:1] != (1,):
                raise TwinrunError(
                    f"rows of {name!r} are stored by their IDs, and the label {label!r} is not",
                    where=where,
                    fix=f"capture the values alone (.values), or give ids for {label!r} as well",
                )


_OF_ROWS = re.compile(r"(.+?)@(?:index|coords)(?=[@.]|$)")
_OF_LABELS = tuple(f".{what}{SUFFIX}" for what in ("names", "type", "freq"))


def _labels(
    views: Mapping[str, ArrayView | DeviceArrayView], kinds: Mapping[str, str]
) -> list[tuple[str, str]]:
    """(field, its label; see `labels_of`) of dates and time spans, and of 8-bit numbers. kinds: of these."""
    units = {name: unit_of(v.owner.dtype) for name, v in views.items() if isinstance(v, ArrayView)}
    return [(name, label) for name in views for label in labels_of(name, units.get(name), kinds.get(name))]
