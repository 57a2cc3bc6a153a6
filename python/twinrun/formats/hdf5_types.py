"""Types of HDF5 elements: as numpy types, and in words."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ..errors import DamagedFile
from .element_types import dtype_of
from .layout import kind_of

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np


class NotNumeric(Exception):
    """Elements of this type are not numeric."""


def leaves(
    label: str, kind: np.dtype, members: tuple[str, ...], inner: tuple[int, ...]
) -> list[tuple[str, tuple[str, ...], np.dtype, tuple[int, ...]]]:
    """(name, path of members, scalar type, shape of array elements) of every scalar in `kind`."""
    if kind.subdtype is not None:
        return leaves(label, kind.subdtype[0], members, inner + kind.subdtype[1])
    if kind.names is None:
        return [(label, members, kind, inner)]
    result = []
    for name in kind.names:
        result += leaves(f"{label}.{name}", kind.fields[name][0], (*members, name), inner)  # type: ignore[index]
    return result


def file_dtype(
    h5py: Any, tid: Any, label: str, others: list[tuple[str, tuple[str, ...]]], members: tuple[str, ...]
) -> tuple[np.dtype, bool]:
    """The numpy type for an HDF5 type, and whether the bytes in the file already have that type.

    Non-numeric members are left out and added to `others`: (label, path of members). Raises NotNumeric if no
    numeric member is left.
    """
    h5t = h5py.h5t
    kind = tid.get_class()
    if kind in (h5t.STRING, h5t.VLEN, h5t.REFERENCE, h5t.OPAQUE, h5t.TIME):
        raise NotNumeric
    if kind == h5t.ARRAY:
        base, exact = file_dtype(h5py, tid.get_super(), label, [], ())
        if base.names is not None:
            raise NotNumeric
        return np.dtype((base, tid.get_array_dims())), exact
    if kind == h5t.COMPOUND:
        plain = plain_dtype(tid)
        if plain is not None and plain.kind == "c":
            if dtype_of(plain) is None:
                raise NotNumeric
            return plain, bool(tid.equal(h5t.py_create(plain)))
        names, formats, offsets = [], [], []
        exact = not _points_elsewhere(h5t, tid)
        for number in range(tid.get_nmembers()):
            name = os.fsdecode(tid.get_member_name(number))
            inner = (*members, name)
            try:
                member, member_exact = file_dtype(
                    h5py, tid.get_member_type(number), f"{label}.{name}", others, inner
                )
            except NotNumeric:
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
            raise NotNumeric
        if not exact:  # h5py converts, and chooses the offsets
            return np.dtype({"names": names, "formats": formats}), False
        return np.dtype(
            {"names": names, "formats": formats, "offsets": offsets, "itemsize": tid.get_size()}
        ), True
    plain = plain_dtype(tid)
    if plain is None or dtype_of(plain) is None:
        raise NotNumeric
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


def enum_names(h5py: Any, tid: Any) -> dict[str, int] | None:
    """{name: value} of an enumeration; None for other types and for h5py's type of booleans."""
    if tid.get_class() != h5py.h5t.ENUM:
        return None
    plain = plain_dtype(tid)
    if plain is not None and plain.kind == "b":
        return None
    return {
        os.fsdecode(tid.get_member_name(n)): int(tid.get_member_value(n)) for n in range(tid.get_nmembers())
    }


def with_bytes(kind: np.dtype) -> np.dtype:
    """A type with int8 in the place of booleans."""
    if kind.subdtype is not None:
        return np.dtype((with_bytes(kind.subdtype[0]), kind.subdtype[1]))
    if kind.names is not None:
        members = [kind.fields[name][:2] for name in kind.names]  # type: ignore[index]
        return np.dtype(
            {
                "names": list(kind.names),
                "formats": [with_bytes(member) for member, _ in members],
                "offsets": [offset for _, offset in members],
                "itemsize": kind.itemsize,
            }
        )
    return np.dtype(np.int8) if kind.kind == "b" else kind


def check_booleans(values: np.ndarray, what: str, where: str) -> None:
    """Raises DamagedFile if a boolean, as h5py gives it, is neither FALSE nor TRUE.

    HDF5 shows the number that is stored. As booleans, two such numbers would be the same.
    """
    raw = np.ascontiguousarray(values).view(np.uint8)
    if raw.size and raw.max() > 1:
        odd = raw[raw > 1].view(np.int8)
        message = f"{what}: an element is {int(odd.flat[0])}, which is neither FALSE (0) nor TRUE (1)"
        raise DamagedFile(message, where=where)


def tagged_dtype(h5py: Any, tid: Any) -> np.dtype | None:
    """The numpy type of elements that contain opaque bytes with a tag; None for other elements, and if they
    contain pointers.

    h5py's type for them has no tag, and HDF5 cannot convert from a type with a tag to one without. So these
    elements are read in the type of the file.
    """
    if not _has_tag(h5py.h5t, tid) or _points_elsewhere(h5py.h5t, tid):
        return None
    return plain_dtype(tid)


def _has_tag(h5t: Any, tid: Any) -> bool:
    kind = tid.get_class()
    if kind == h5t.COMPOUND:
        return any(_has_tag(h5t, tid.get_member_type(n)) for n in range(tid.get_nmembers()))
    if kind == h5t.ARRAY:
        return _has_tag(h5t, tid.get_super())
    return kind == h5t.OPAQUE and tid.get_tag() != b"" and not tid.get_tag().startswith(b"NUMPY:")


def nested_type(h5py: Any, tid: Any, members: tuple[str, ...]) -> Any:
    """A compound type with a single leaf of type `tid`, at the path `members`."""
    for name in reversed(members):
        outer = h5py.h5t.create(h5py.h5t.COMPOUND, tid.get_size())
        outer.insert(os.fsencode(name), 0, tid)
        tid = outer
    return tid


def type_text(h5py: Any, tid: Any) -> str:
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
        return f"lists of {type_text(h5py, tid.get_super())}"
    if kind == h5t.ARRAY:
        return f"{list(tid.get_array_dims())} of {type_text(h5py, tid.get_super())}"
    if kind == h5t.COMPOUND:
        members = (
            f"{os.fsdecode(tid.get_member_name(n))}: {type_text(h5py, tid.get_member_type(n))}"
            for n in range(tid.get_nmembers())
        )
        return "{" + ", ".join(members) + "}"
    if kind == h5t.ENUM:
        return f"enum of {type_text(h5py, tid.get_super())} {enum_names(h5py, tid)}"
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


def type_name(h5py: Any, tid: Any) -> str:
    return os.fsdecode(h5py.h5i.get_name(tid) or b"?")


def name_of_target(h5py: Any, file: Any, reference: Any, known: dict[int, bytes]) -> bytes:
    """The path of the object that a reference leads to; b'?' if it has none.

    known: names by the address of the object, to be kept for other references of the file. HDF5 searches the
    whole file for each name.
    """
    try:
        address = h5py.h5o.get_info(h5py.h5r.dereference(reference, file.id)).addr
    except (ValueError, RuntimeError, OSError, KeyError):  # its target was removed
        return h5py.h5r.get_name(reference, file.id) or b"?"
    if address not in known:
        known[address] = h5py.h5r.get_name(reference, file.id) or b"?"
    return known[address]


def named_type_text(h5py: Any, tid: Any) -> str:
    """The type in words, with its name if it is a named type of the file."""
    text = type_text(h5py, tid)
    return f"{text}, named {type_name(h5py, tid)}" if tid.committed() else text


def has_unused_bits(h5t: Any, tid: Any) -> bool:
    """Whether a numeric type has a precision of fewer bits than its bytes hold."""
    return tid.get_class() in (h5t.INTEGER, h5t.FLOAT) and tid.get_precision() != 8 * tid.get_size()


def kind_of_elements(h5py: Any, tid: Any) -> str:
    """The kind of non-numeric elements, for `Field.kind`."""
    h5t = h5py.h5t
    words = {
        h5t.STRING: "text", h5t.VLEN: "list", h5t.REFERENCE: "reference", h5t.OPAQUE: "opaque bytes", h5t.TIME: "time",
        h5t.COMPOUND: "struct", h5t.ARRAY: "array",
    }  # fmt: skip
    plain = plain_dtype(tid)
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


def plain_dtype(tid: Any) -> np.dtype | None:
    """The numpy type that h5py gives for an HDF5 type; None if it has none."""
    try:
        return tid.dtype
    except (TypeError, ValueError, KeyError, NotImplementedError):
        return None
