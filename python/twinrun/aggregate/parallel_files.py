"""Aggregated files from Python: arrays of numpy, ranks of mpi4py, by the library libtwinrun_aggregate."""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import DamagedFile, MissingFile, MissingPackage, TwinrunError, Unsupported

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

__all__ = ["LIBRARY", "Aggregate", "Block", "Place", "Variable"]

LIBRARY = "TWINRUN_AGGREGATE_LIBRARY"  # names the library, where the system does not find it
_KINDS = {2: MissingFile, 5: DamagedFile, 6: Unsupported}  # by twr_status; others are TwinrunError
_LAYOUTS = {"records": 0, "blocks": 1, "variables": 2}
_ORDERS = {"C": 0, "F": 1}


class Variable(NamedTuple):
    """An array of this rank: `items` items of `item_bytes`, the first of which goes to `file_offset`.

    Strides are bytes from item to item, in the file and in memory; 0 means dense.
    """

    item_bytes: int
    items: int
    file_offset: int
    file_stride: int = 0
    memory_stride: int = 0


@dataclass(frozen=True)
class Block:
    """A block of a global array, and its place in an array of this rank.

    >>> Block("f8", global_shape=(100, 100), start=(50, 0), shape=(50, 100))
    Block(dtype='f8', global_shape=(100, 100), start=(50, 0), shape=(50, 100), order='C', ...)

    Parameters
    ----------
    dtype : dtype
        Of an item; any of numpy's, also structured ones.
    global_shape : tuple of int
        The whole array, which lies in the file without gaps.
    start, shape : tuple of int
        The block's first item in it, and its lengths.
    order : 'C' or 'F', default 'C'
        Which index runs fastest, in the file and in memory.
    file_offset : int, default 0
        Where the global array begins.
    local_shape, local_start : tuple of int, default None
        The array in memory, with its halo, and the block's first item in it. None: the block is the array.
    """

    dtype: DTypeLike
    global_shape: Sequence[int]
    start: Sequence[int]
    shape: Sequence[int]
    order: str = "C"
    file_offset: int = 0
    local_shape: Sequence[int] | None = None
    local_start: Sequence[int] | None = None


class Place(NamedTuple):
    """Where a rank's data goes: its file of how many, and its number among the ranks of that file."""

    file: int
    files: int
    rank: int
    ranks: int


class _CVariable(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("item_bytes", "items", "file_offset", "file_stride", "memory_stride")
    ]


_Lengths = ctypes.POINTER(ctypes.c_uint64)


class _CBlock(ctypes.Structure):
    _fields_ = [
        ("item_bytes", ctypes.c_uint64),
        ("dimensions", ctypes.c_int),
        ("order", ctypes.c_int),
        ("file_offset", ctypes.c_uint64),
        *((name, _Lengths) for name in ("global_shape", "start", "shape", "local_shape", "local_start")),
    ]


def _load(path: str | os.PathLike[str] | None) -> ctypes.CDLL:
    name = path or os.environ.get(LIBRARY) or ctypes.util.find_library("twinrun_aggregate")
    try:
        library = ctypes.CDLL(os.fspath(name or "libtwinrun_aggregate.so.0"))
    except OSError as e:
        raise TwinrunError(
            f"libtwinrun_aggregate cannot be loaded: {e}",
            fix=f"install it for the MPI of this program, and name the file in {LIBRARY}",
        ) from None
    library.twr_error_message.restype = ctypes.c_char_p
    library.twr_aggregate_report.restype = ctypes.c_char_p
    library.twr_aggregate_free.restype = None
    library.twr_aggregate_settings_destroy.restype = None
    return library


def _lengths(values: Sequence[int]) -> ctypes.Array[ctypes.c_uint64]:
    if any(value < 0 for value in values):
        raise TwinrunError(f"lengths and places are not negative: {tuple(values)}")
    return (ctypes.c_uint64 * max(len(values), 1))(*values)


class Aggregate:
    """Writes and reads arrays of all ranks of a communicator.

    >>> with Aggregate(MPI.COMM_WORLD, files="node", offsets="whole") as aggregate:  # doctest: +SKIP
    ...     aggregate.declare_blocks([Block("f8", (ny, nx), (y0, 0), (rows, nx))])
    ...     for step in range(steps):
    ...         aggregate.write_begin(f"step-{step:06}.bin", [temperature])
    ...         compute()
    ...     aggregate.wait()

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        All its ranks call every method, in the same order, except `test`, `report` and `place`.
    library : path, default None
        libtwinrun_aggregate.so, built for the MPI of this program. None: the file that
        TWINRUN_AGGREGATE_LIBRARY names, otherwise the system's.
    **settings
        By their names in docs/reference/aggregate.md.

    Raises
    ------
    TwinrunError
        On all ranks if one of them fails: the others say which, and why.

    Notes
    -----
    Arrays are contiguous (of C or of Fortran, as the block says), and on the host. `close` it before MPI
    ends; a `with` block does.
    """

    def __init__(
        self, comm: Any, *, library: str | os.PathLike[str] | None = None, **settings: object
    ) -> None:
        try:
            from mpi4py import MPI
        except ImportError:
            raise MissingPackage.of("mpi4py", "twinrun[mpi]") from None
        self._pointer = ctypes.c_void_p()
        self._needed: list[int] = []
        self._library = _load(library)
        handle = MPI._handleof(comm)
        width = MPI._sizeof(MPI.Comm)
        made = ctypes.c_void_p()
        self._check(self._library.twr_aggregate_settings_create(ctypes.byref(made)))
        try:
            problem: TwinrunError | None = None
            for name, value in settings.items():
                text = str(value).lower() if isinstance(value, bool) else str(value)
                try:
                    self._check(
                        self._library.twr_aggregate_settings_set(made, name.encode(), os.fsencode(text))
                    )
                except TwinrunError as e:
                    problem = e
                    break
            if problem is not None:
                # The other ranks wait in create: a topology that is none makes it fail on all.
                self._library.twr_aggregate_settings_set(
                    made, b"topology", b"an invalid setting of another rank"
                )
            status = self._library.twr_aggregate_create_with(
                ctypes.byref(self._pointer),
                ctypes.c_int(handle) if width == ctypes.sizeof(ctypes.c_int) else ctypes.c_void_p(handle),
                made,
            )
            if problem is not None:
                raise problem
            self._check(status)
        finally:
            self._library.twr_aggregate_settings_destroy(made)

    def _check(self, status: int) -> None:
        if status == 0:
            return
        text = (self._library.twr_error_message() or b"").decode(errors="replace")
        raise _KINDS.get(status, TwinrunError)(text)

    def _call(self, function: str, *arguments: object) -> None:
        if not self._pointer:
            raise TwinrunError("the aggregate is closed")
        self._check(getattr(self._library, function)(self._pointer, *arguments))

    @property
    def place(self) -> Place:
        """This rank's file, and its number among that file's ranks."""
        numbers = [ctypes.c_int() for _ in range(4)]
        self._call("twr_aggregate_file", *map(ctypes.byref, numbers), None)
        return Place(*(number.value for number in numbers))

    def declare(self, variables: Iterable[Variable]) -> None:
        """Declares the arrays that this rank will write or read, in place of earlier ones."""
        given: list[Variable] = []
        self._needed = []
        with self._on_all_ranks("twr_aggregate_declare"):
            given = [Variable(*variable) for variable in variables]
            own = (_CVariable * max(len(given), 1))(*(_CVariable(*_lengths(v)) for v in given))
        self._call("twr_aggregate_declare", own, len(given))
        self._needed = [
            0 if v.items == 0 else (v.items - 1) * (v.memory_stride or v.item_bytes) + v.item_bytes
            for v in given
        ]

    def declare_records(
        self, item_bytes: Sequence[int], items: int, layout: str = "records", file_offset: int = 0
    ) -> None:
        """Declares variables with `items` items each on this rank. layout: records, blocks or variables."""
        self._needed = []
        with self._on_all_ranks("twr_aggregate_declare_records", ctypes.c_uint64(0), 0, ctypes.c_uint64(0)):
            sizes = _lengths(item_bytes)
            counts = _lengths([items, file_offset])
            if layout not in _LAYOUTS:
                raise TwinrunError(f"layout is {layout!r}, and may be {', '.join(_LAYOUTS)}")
        self._call(
            "twr_aggregate_declare_records",
            *(
                sizes,
                len(item_bytes),
                ctypes.c_uint64(counts[0]),
                _LAYOUTS[layout],
                ctypes.c_uint64(counts[1]),
            ),
        )
        self._needed = [size * items for size in item_bytes]

    def declare_blocks(self, blocks: Iterable[Block]) -> None:
        """Declares blocks of global arrays, one array each."""
        keep: list[object] = []
        self._needed = []
        with self._on_all_ranks("twr_aggregate_declare_blocks"):
            given = list(blocks)
            own = (_CBlock * max(len(given), 1))(*(_block(block, keep) for block in given))
        self._call("twr_aggregate_declare_blocks", own, len(given))
        self._needed = [
            np.dtype(b.dtype).itemsize * math.prod(b.shape if b.local_shape is None else b.local_shape)
            for b in given
        ]

    def write(self, path: str | os.PathLike[str], arrays: Sequence[np.ndarray]) -> None:
        """Writes a file, or the files, of the declared arrays: complete when it returns."""
        self._transfer("twr_aggregate_write", path, arrays, writes=True)

    def write_begin(self, path: str | os.PathLike[str], arrays: Sequence[np.ndarray]) -> None:
        """The same in the background: the arrays may change when it returns. `wait` for the files."""
        self._transfer("twr_aggregate_write_begin", path, arrays, writes=True)

    def wait(self) -> None:
        """Waits for all writes that began, and raises their first error."""
        self._call("twr_aggregate_wait")

    def test(self) -> bool:
        """Whether no write of this rank is under way. Does not wait."""
        done = ctypes.c_int()
        self._call("twr_aggregate_test", ctypes.byref(done))
        return bool(done.value)

    def read(self, path: str | os.PathLike[str], arrays: Sequence[np.ndarray]) -> None:
        """Reads the declared bytes into the arrays."""
        self._transfer("twr_aggregate_read", path, arrays, writes=False)

    def _transfer(
        self, function: str, path: str | os.PathLike[str], arrays: Sequence[np.ndarray], *, writes: bool
    ) -> None:
        # Without a path the call fails, and so it does on all ranks.
        with self._on_all_ranks(function, None, without=True):
            pointers = _pointers(arrays, self._needed, writes)
            name = os.fsencode(path)
        self._call(function, name, pointers)

    def report(self) -> dict[str, Any]:
        """Facts of the last declaration, write and read (docs/reference/aggregate.md)."""
        if not self._pointer:
            raise TwinrunError("the aggregate is closed")
        return json.loads(self._library.twr_aggregate_report(self._pointer))

    def close(self) -> None:
        """Waits for writes under way, and frees the aggregate. A second call does nothing."""
        if self._pointer:
            self._library.twr_aggregate_free(self._pointer)
            self._pointer = ctypes.c_void_p()

    def __enter__(self) -> Aggregate:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _on_all_ranks(self, function: str, *rest: object, without: bool = False) -> _OnAllRanks:
        return _OnAllRanks(self, function, (None, None) if without else (None, -1, *rest))


class _OnAllRanks:
    """What only this rank knows of a collective call: an error here makes the call fail on all ranks."""

    def __init__(self, aggregate: Aggregate, function: str, wrong: tuple[object, ...]) -> None:
        self._aggregate, self._function, self._wrong = aggregate, function, wrong

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            pointer = self._aggregate._pointer
            getattr(self._aggregate._library, self._function)(pointer, *self._wrong)


def _block(block: Block, keep: list[object]) -> _CBlock:
    dimensions = len(block.global_shape)
    given = [block.global_shape, block.start, block.shape, block.local_shape, block.local_start]
    if any(values is not None and len(values) != dimensions for values in given):
        raise TwinrunError(f"shapes and places of a block have as many numbers as its global shape: {block}")
    if block.order not in _ORDERS:
        raise TwinrunError(f"order is {block.order!r}, and may be C or F")
    arrays = [None if values is None else _lengths(values) for values in given]
    keep += arrays
    return _CBlock(
        np.dtype(block.dtype).itemsize,
        dimensions,
        _ORDERS[block.order],
        block.file_offset,
        *(None if array is None else ctypes.cast(array, _Lengths) for array in arrays),
    )


def _pointers(
    arrays: Sequence[np.ndarray], needed: Sequence[int], writes: bool
) -> ctypes.Array[ctypes.c_void_p]:
    if len(arrays) != len(needed):
        raise TwinrunError(f"{len(arrays)} arrays are given, and {len(needed)} are declared")
    for number, (array, length) in enumerate(zip(arrays, needed, strict=True)):
        if not isinstance(array, np.ndarray):
            raise TwinrunError(f"array {number} is no array of numpy")
        if not (array.flags.c_contiguous or array.flags.f_contiguous):
            raise TwinrunError(f"array {number} is not contiguous", fix="give a copy, or declare its stride")
        if array.nbytes < length:
            raise TwinrunError(f"array {number} has {array.nbytes} bytes, and {length} are declared")
        if not writes and not array.flags.writeable:
            raise TwinrunError(f"array {number} is read-only")
    return (ctypes.c_void_p * max(len(arrays), 1))(*(array.ctypes.data for array in arrays))
