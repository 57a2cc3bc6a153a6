"""The data model of format readers: `Field`, `Extent`, `FileContent` and `Format`.

A field is a named array. Its elements are either extents of a file, which the core reads itself, or come from
a function that decodes them. To add a format, add a module to this folder that defines `FORMAT =
Format(...)`; see README.md.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, BinaryIO

from ..errors import DamagedFile, FormatError
from .element_types import ITEMSIZE, storage_dtype
from .facts import NOT_COMPARED, SUMMARY, Encoder, Fact, codes, shown, summary
from .files import reading
from .naming import Place
from .records import read_records

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

__all__ = [
    "Extent",
    "Field",
    "FileContent",
    "Format",
    "checked_shape",
    "coded",
    "decoded",
    "flag",
    "header_field",
    "label_field",
    "repeated",
    "summary_fields",
    "unreadable",
]

LARGEST = (1 << 63) - 1  # elements or bytes: offsets are signed 64-bit integers everywhere

Skipped = list[tuple[str, str]]


def flag(value: object, name: str, where: str) -> bool:
    """The value of a boolean option: True, False, or a word from the command line ('yes', 'off', …).

    Raises FormatError for anything else; `name` is the option's name.
    """
    if isinstance(value, bool):
        return value
    words = {
        "true": True,
        "yes": True,
        "on": True,
        "1": True,
        "false": False,
        "no": False,
        "off": False,
        "0": False,
    }
    if isinstance(value, str) and value.strip().lower() in words:
        return words[value.strip().lower()]
    raise FormatError(f"{name} must be true or false, not {value!r:.40}", where=where)


def checked_shape(shape: Iterable[object], itemsize: int, where: str, what: str) -> tuple[int, ...]:
    """`shape` as a tuple of ints.

    Raises DamagedFile if a size is negative or not an integer, if there are more than 64 dimensions, or if
    the array would have more than 2^63 bytes. `what` names the array in the message.
    """
    sizes = tuple(shape)
    if len(sizes) > 64:
        raise DamagedFile(f"{what} has {len(sizes)} dimensions, more than 64", where=where)
    for size in sizes:
        if type(size) is not int and (
            isinstance(size, (bool, np.bool_)) or not isinstance(size, (int, np.integer))
        ):
            raise DamagedFile(f"{what}: a size in its shape is not an integer: {size!r:.40}", where=where)
        if size < 0 or size > LARGEST:
            raise DamagedFile(f"{what}: a size in its shape is out of range", where=where)
    result = tuple(int(size) for size in sizes)  # type: ignore[call-overload]
    if math.prod(result) * max(itemsize, 1) > LARGEST:
        raise DamagedFile(f"{what}: an array of shape {result} has more than 2^63 bytes", where=where)
    return result


@dataclass(frozen=True)
class Extent:
    """A run of elements in a file that can be read without a format library.

    >>> np.save("x.npy", np.zeros(4))
    >>> with twinrun.formats.open_file("x.npy") as content:
    ...     content.fields["x"].extents
    (Extent(path='x.npy', offset=128, count=4, stride=8),)

    Attributes
    ----------
    path : str
        The file.
    offset : int
        Bytes before the first element.
    count : int
        How many elements.
    stride : int
        Bytes from the start of one element to the start of the next: the size of an element if the array is
        dense, more for a member of an array of structs.
    """

    path: str
    offset: int
    count: int
    stride: int


Reader = Callable[[int, int], "np.ndarray"]


@dataclass
class Field:
    """A named array of a file. Exactly one of `extents` and `read` is set.

    >>> np.save("x.npy", np.arange(6.0).reshape(2, 3))
    >>> with twinrun.formats.open_file("x.npy") as content:
    ...     field = content.fields["x"]
    ...     field.dtype, field.shape, field.elements(first=1, count=2)
    ('f64', (2, 3), array([1., 2.]))

    Attributes
    ----------
    name : str
        Its name, unique in the file.
    dtype : str
        f16 bf16 f32 f64 i8 i16 i32 i64 u8 u16 u32 u64 bool c64 c128.
    byte_order : {'little', 'big'}
        The byte order of the elements in `extents`.
    shape : tuple of int
        May be (), for one element, and may contain zeros.
    extents : tuple of Extent or None
        In the order of the elements. Their counts add up to the number of elements; () for an empty array.
    read : callable or None
        `read(first, count)` returns elements [first, first + count) of the flattened array in C order, as a
        contiguous 1-D array in native byte order (bf16 as u16). Ascending reads, one field after another, are
        fast; any order works. It is thread-safe, and raises only FormatError.
    fortran_order : bool
        True if the file holds the array in column-major order. `shape` and the order of elements are then
        those of the transpose, which has the same bytes in C order; `stored_shape` and `index` convert back.
    problem : FormatError or None
        Why this field cannot be read although the file can, for example a missing filter or external file.
        `read` raises it.
    step : int or None
        The step that it belongs to, in files of several steps.
    series : str or None
        The name that the same array has in every step, in files of several steps.
    group : str or None
        Fields of one group describe the same things, such as particles: each has one element, or one row
        along the first axis, for each of them.
    key : str or None
        The name of the field that holds the IDs of these things; it has the same file, group and step. The
        field of IDs itself has its own name here.
    unit : str or None
        The unit of dates and time spans, such as 'M8[s]'.
    text : callable or None
        For a field of digests of texts: `text(index)` returns the text, for messages.
    told_as_text : bool
        True if the file holds the numbers as text, and f64 represents all of them exactly. Such a column may
        be integer in one file and float in the other.
    reads_anywhere : bool
        True if the cost of `read` depends only on the number of elements, not on where they begin. Several
        processes may then each read a part.
    kind : str or None
        The kind of non-numeric elements ('text', 'struct', …); None for numbers. Such elements are bytes (u8)
        or 64-bit codes (u64), and always compare exactly.
    tell : callable or None
        `tell(position)` returns a non-numeric element as text, for messages.
    told_shape : tuple of int or None
        The shape that the file gives for elements of one byte whose type the core does not have, where
        `shape` is that of their bytes.
    uniform : bool
        True if no element is stored, so that all of them are what `read(0, 1)` gives: the fill value. Two
        such fields are compared by one element, however many they have.
    null : bool
        True if the file says that there is no array at all (HDF5's null dataspace). `shape` is (0,) then.
    characters : bool
        True if each element is a text of one byte, as NetCDF's characters. One format reads them as bytes
        (u8), another one as codes (u64): such fields compare by their codes.
    size : int
        Number of elements.
    itemsize : int
        Bytes of an element.
    stored_shape : tuple of int
        The shape in the file: `shape`, reversed if `fortran_order`.
    """

    name: str
    dtype: str
    byte_order: str
    shape: tuple[int, ...]
    extents: tuple[Extent, ...] | None = None
    read: Reader | None = None
    fortran_order: bool = False
    problem: FormatError | None = None
    step: int | None = None
    series: str | None = None
    group: str | None = None
    key: str | None = None
    unit: str | None = None
    text: Callable[[tuple[int, ...]], str] | None = None
    told_as_text: bool = False
    reads_anywhere: bool = False
    kind: str | None = None
    tell: Callable[[int], str] | None = None
    told_shape: tuple[int, ...] | None = None
    uniform: bool = False
    null: bool = False
    characters: bool = False

    def __post_init__(self) -> None:
        if (self.extents is None) == (self.read is None):
            raise ValueError(f"field {self.name!r}: exactly one of extents and read must be set")
        if self.uniform and self.read is None:
            raise ValueError(f"field {self.name!r}: elements that are not stored have no extents")
        if self.dtype not in ITEMSIZE or self.byte_order not in ("little", "big"):
            raise ValueError(f"field {self.name!r}: type {self.dtype!r}, byte order {self.byte_order!r}")
        if self.extents is not None and sum(e.count for e in self.extents) != self.size:
            raise ValueError(f"field {self.name!r}: its extents do not hold {self.size} elements")

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return ITEMSIZE[self.dtype]

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape in the file: `shape`, reversed if `fortran_order`."""
        return self.shape[::-1] if self.fortran_order else self.shape

    def index(self, position: int) -> tuple[int, ...]:
        """The N-D index of an element in an array of shape `stored_shape`.

        Parameters
        ----------
        position : int
            The position in the flattened array.

        Returns
        -------
        tuple of int
            The index in `shape`, reversed if `fortran_order`.
        """
        result = []
        for size in reversed(self.shape):
            position, at = divmod(position, size)
            result.append(at)
        return tuple(result) if self.fortran_order else tuple(reversed(result))

    def elements(self, first: int = 0, count: int | None = None) -> np.ndarray:
        """Reads elements of the flattened array, in C order of `shape`.

        Parameters
        ----------
        first : int, default 0
            The first element.
        count : int, default None
            How many; None for all from `first` on.

        Returns
        -------
        numpy.ndarray
            1-D, in native byte order.

        Raises
        ------
        FormatError
            The file cannot be read, or the range is outside the field.

        Notes
        -----
        Meant for small arrays and tests. Comparisons read extents in the core, which is faster.
        """
        count = self.size - first if count is None else count
        if self.read is not None:
            return self.read(first, count)
        where = self.extents[0].path if self.extents else self.name
        return decoded(self.name, self.dtype, self.size, where, self._from_extents)(first, count)

    def _from_extents(self, first: int, count: int) -> np.ndarray:
        raw = np.empty((count, self.itemsize), np.uint8)
        done = 0
        for extent in self.extents or ():
            if first >= extent.count:
                first -= extent.count
                continue
            here = min(count - done, extent.count - first)
            if here:
                records = read_records(
                    extent.path, extent.offset + first * extent.stride, extent.stride, here, self.itemsize
                )
                raw[done : done + here] = records
                done += here
            first = 0
        return raw.reshape(-1).view(storage_dtype(self.dtype, self.byte_order))


def decoded(name: str, dtype: str, size: int, where: str, read: Reader) -> Reader:
    """Wraps a reader so that it keeps the contract of `Field.read`.

    The result checks the range, turns every failure into a FormatError that names field `name` of file
    `where`, and returns a contiguous 1-D array of `dtype` in native byte order. size: elements of the field.
    """
    native = storage_dtype(dtype)

    def checked(first: int, count: int) -> np.ndarray:
        if first < 0 or count < 0 or first + count > size:
            raise FormatError(
                f"elements {first} to {first + count} were requested of field {name!r}, which has {size}",
                where=where,
            )
        if count == 0:
            return np.empty(0, native)
        with reading(where, f"field {name!r}"):
            result = np.ascontiguousarray(read(first, count)).reshape(-1)
            if native.kind == "b":
                # numpy expects 0 or 1 in a bool; files may hold any byte.
                result = result.view(np.uint8) != 0
            result = result.astype(native, copy=False)
        if result.size != count:
            raise DamagedFile(f"field {name!r}: read {result.size} of {count} elements", where=where)
        return result

    return checked


def repeated(read: Reader) -> Reader:
    """A reader of a field without stored elements: the first one, which `read` gives, as often as asked for.

    Libraries of formats take longer for each of them, and may hold their own copy of all.
    """

    def same(first: int, count: int) -> np.ndarray:
        return np.repeat(read(0, 1), count)

    return same


def header_field(name: str, values: Iterable[float], where: str) -> Field:
    """A field of type f64 for numbers in a header, such as the box of a simulation, so that they are compared
    as numbers."""
    array = np.array(list(values), np.float64)
    read = decoded(name, "f64", array.size, where, lambda first, count: array[first : first + count])
    return Field(name, "f64", "little", array.shape, read=read)


def coded(
    name: str,
    kind: str,
    shape: tuple[int, ...],
    where: str,
    rows: Callable[[int, int], Sequence[object] | np.ndarray],
    encode: Encoder | None = None,
) -> Field:
    """A field of the codes (see `facts`) of non-numeric elements.

    rows: `rows(first, count)` returns elements [first, first + count) in C order. encode: as for
    `facts.encoded`.
    """

    def read(first: int, count: int) -> np.ndarray:
        return codes(rows(first, count), encode)

    def tell(position: int) -> str:
        with reading(where, f"field {name!r}"):
            return shown(rows(position, 1)[0])

    reader = decoded(name, "u64", math.prod(shape), where, read)
    return Field(name, "u64", sys.byteorder, shape, read=reader, kind=kind, tell=tell)


def summary_fields(facts: Mapping[str, Fact] | None, skipped: int, where: str) -> list[Field]:
    """Fields of one u64 by which metadata files record the facts of a file (the code of all facts together)
    and the number of things that cannot be compared. There is none for what the file does not have.
    """
    has_any = facts is not None and not all(fact.between for fact in facts.values())
    numbers = {SUMMARY: summary(facts)} if facts is not None and has_any else {}
    if skipped:
        numbers[NOT_COMPARED] = skipped

    def field(name: str, number: int) -> Field:
        value = np.array([number], np.uint64)
        read = decoded(name, "u64", 1, where, lambda first, count: value[first : first + count])
        return Field(
            name, "u64", sys.byteorder, (1,), read=read, kind="code", tell=lambda _: "one set of them"
        )

    return [field(name, number) for name, number in numbers.items()]


def label_field(label: str) -> Field:
    """The field without elements for a name that `labels_of` made."""
    return Field(label, "bool", "little", (0,), extents=())


def unreadable(name: str, dtype: str, byte_order: str, shape: tuple[int, ...], problem: FormatError) -> Field:
    """A field that exists in the file but cannot be read: `read` raises `problem`."""

    def read(first: int, count: int) -> np.ndarray:
        raise problem

    return Field(name, dtype, byte_order, shape, read=read, problem=problem)


@dataclass
class FileContent:
    """An open file. Close it, or use it in a `with` statement.

    >>> np.savez("both.npz", x=np.zeros(3), y=np.ones(3))
    >>> with twinrun.formats.open_file("both.npz") as content:
    ...     content.format, sorted(content.fields)
    ('npz', ['x', 'y'])

    Attributes
    ----------
    path : str
        The file.
    format : str
        The name of its format.
    fields : dict of str to Field
        By name, in the order of the file or of names.
    skipped : list of (str, str)
        (name, reason) of each part of the file that cannot be compared. If there is any, every comparison of
        the file is incomparable.
    facts : dict of str to Fact
        Attributes and other metadata of the format, by label.
    one_array : bool
        True if the file holds a single array without a name. Its field is then named after the file.
    array_name : str or None
        If that array is an array of structs: the prefix of its fields, `array_name.member`.
    sources : tuple of str
        Other files whose bytes belong to it.
    time : float or None
        Physical time of the file, in its own unit. None if the file has no time, or several steps.
    times : dict of int to float
        Physical time by step, of files of several steps.
    period : tuple of float or None
        Length of the periodic box along each axis, in the unit of positions.
    notes : list of str
        Notes for the user that go with every result, such as that values are compared as stored.
    how : str
        The format and the options that it was opened with, as metadata files record them.
    dialect : str
        The variant of the format, for formats whose variants have different facts ('parquet' for example).
    model : str
        The data model of the file, if several formats have it ('netcdf'): attributes and dimensions that
        only one of two such files has are a difference, whatever their formats are.
    on_close : callable or None
        `close` calls it.
    """

    path: str
    format: str
    fields: dict[str, Field] = field(default_factory=dict)
    skipped: Skipped = field(default_factory=list)
    facts: dict[str, Fact] = field(default_factory=dict)
    one_array: bool = False
    array_name: str | None = None
    sources: tuple[str, ...] = ()
    time: float | None = None
    times: dict[int, float] = field(default_factory=dict)
    period: tuple[float, ...] | None = None
    notes: list[str] = field(default_factory=list)
    how: str = ""
    dialect: str = ""
    model: str = ""
    on_close: Callable[[], None] | None = None

    def add(self, new: Field) -> None:
        """Adds a field.

        Parameters
        ----------
        new : Field
            Its name must not exist in the file.

        Raises
        ------
        DamagedFile
            A field of this name exists.
        """
        if new.name in self.fields:
            raise DamagedFile(f"two fields are named {new.name!r}", where=self.path)
        self.fields[new.name] = new

    def say(
        self,
        owner: str,
        name: str,
        value: object,
        *,
        encode: Encoder | None = None,
        meaning: bool | None = None,
        step: int | None = None,
        kind: str = "",
        tell: Callable[[object], str] | None = None,
        between: bool = False,
    ) -> None:
        """Adds a fact. A value that cannot be compared goes to `skipped`, with the reason.

        Parameters
        ----------
        owner : str
            The field or group that it belongs to; '' for the file.
        name : str
            Its name; in parentheses if it is not an attribute.
        value : object
            A number, a text, an array, or a nested mapping or list of these.
        encode : callable, default None
            `encode(value)` returns the bytes of a value of a type that only the format's reader knows, None
            for other values.
        meaning : bool, default None
            Whether it changes the meaning of its owner's numbers, as a unit does. None: its name decides.
        step : int, default None
            The step that it belongs to; None for all steps of the file.
        kind : str, default ''
            The type of the value in the file. Needed if several types of the format become the same Python
            value.
        tell : callable, default None
            `tell(value)` returns the value as text, for values that need `encode`.
        between : bool, default False
            Whether it counts only between files of two formats: see `Fact`.
        """
        try:
            fact = Fact.of(owner, name, value, encode)
            if tell is not None:
                fact = replace(fact, text=tell(value))
        except (TypeError, ValueError) as error:
            self.skipped.append((f"{owner}@{name}", f"an attribute that cannot be compared: {error}"))
            return
        if meaning is not None or step is not None or kind or between:
            meaning = fact.meaning if meaning is None else meaning
            fact = replace(fact, meaning=meaning, step=step, kind=kind, between=between)
        self.add_fact(fact)

    def add_fact(self, fact: Fact, label: str | None = None) -> None:
        """Adds an existing Fact.

        Parameters
        ----------
        fact : Fact
            The fact.
        label : str, default None
            Its key in `facts`; None for its own label. If the key exists, primes (') are appended.
        """
        key = fact.label if label is None else label
        while key in self.facts:
            key += "'"
        self.facts[key] = fact

    def steps(self) -> list[int]:
        """The steps that its fields belong to.

        Returns
        -------
        list of int
            Ascending; empty if the fields name no step, as in files of one step.
        """
        return sorted({f.step for f in self.fields.values() if f.step is not None})

    def files(self) -> tuple[str, ...]:
        """Every file that holds its data.

        Returns
        -------
        tuple of str
            This file first. If the data set is a folder: only the files in it.
        """
        named = [e.path for f in self.fields.values() for e in f.extents or ()]
        own = [] if os.path.isdir(self.path) else [self.path]
        return tuple(dict.fromkeys([*own, *self.sources, *named]))

    def close(self) -> None:
        """Closes the files that readers hold. A second call does nothing.

        Afterwards fields that have `read` may no longer be readable.
        """
        action, self.on_close = self.on_close, None
        if action is not None:
            action()

    def __enter__(self) -> FileContent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Format:
    """A file format: how to recognise its files, and how to open them.

    >>> twinrun.formats.formats()["npy"].suffixes
    ('.npy',)

    Attributes
    ----------
    name : str
        The name for --format.
    title : str
        The name in messages and lists.
    open : callable
        `open(path, **options)` returns a FileContent. The path is an existing regular file, or a folder for
        which `is_folder` is true.
    suffixes : sequence of str
        In lower case, with the dot.
    magic : sequence of bytes
        The first bytes of such a file; at most 16 are compared.
    claims : callable or None
        `claims(path)`: whether a file is of this format, from its name and the files beside it. Its content
        is not read.
    sniff : callable or None
        `sniff(path, file)`: whether a file is of this format, from its content. Asked if no magic bytes
        match.
    is_folder : callable or None
        `is_folder(path)`: whether a folder is one data set of this format.
    options : frozenset of str
        The options that `open` takes.
    one_array : bool
        True if its files usually hold a single array, which is named after the file.
    order : int
        Detection asks formats of a lower order first.
    place : callable or None
        `place(path)` returns step, rank and name for a path relative to the folder of the run; if it returns
        None, the common rules of `naming` apply.
    parts : callable or None
        `parts(path)` returns other files that `open` reads along with this one. A folder does not list them
        again.
    many_steps : bool
        True if its files may hold several steps, so that they must be opened when a folder is listed.
    aside : frozenset of str
        Options that do not change what is read. Metadata files stay valid if only these change.
    describers : frozenset of str
        Names of files that describe other files of their folder and hold no data.
    is_text : callable or None
        `is_text(path)`: whether a file of this format is plain text. If it cannot be opened, it is compared
        as bytes.
    opens_files : bool
        True if files, and not only folders, can be of this format.

    Notes
    -----
    python/twinrun/formats/README.md says how to add a format.
    """

    name: str
    title: str
    open: Callable[..., FileContent]
    suffixes: Sequence[str] = ()
    magic: Sequence[bytes] = ()
    claims: Callable[[str], bool] | None = None
    sniff: Callable[[str, BinaryIO], bool] | None = None
    is_folder: Callable[[str], bool] | None = None
    options: frozenset[str] = frozenset()
    one_array: bool = False
    order: int = 0
    place: Callable[[str], Place | None] | None = None
    parts: Callable[[str], Sequence[str]] | None = None
    many_steps: bool = False
    aside: frozenset[str] = frozenset()
    describers: frozenset[str] = frozenset()
    is_text: Callable[[str], bool] | None = None

    @property
    def opens_files(self) -> bool:
        """True if files, and not only folders, can be of this format."""
        return bool(self.is_folder is None or self.suffixes or self.magic or self.sniff or self.claims)


def renamed(old: Field, name: str) -> Field:
    """A copy of a field under another name."""
    return replace(old, name=name)
