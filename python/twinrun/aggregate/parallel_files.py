"""Aggregated files from Python: arrays of numpy, ranks of mpi4py, by the library libtwinrun_aggregate."""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import os
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from ..arguments import any_path
from ..errors import DamagedFile, MissingFile, MissingPackage, TwinrunError, Unsupported, one_line
from .declared import Block, Declared, Variable, c_blocks, c_variables, lengths, number, pointers
from .staged import on_host

__all__ = ["LIBRARY", "Aggregate", "Block", "Place", "Variable"]

LIBRARY = "TWINRUN_AGGREGATE_LIBRARY"  # names the library, where the system does not find it
_KINDS = {2: MissingFile, 5: DamagedFile, 6: Unsupported}  # by twr_status; others are TwinrunError
_LAYOUTS = {"records": 0, "blocks": 1, "variables": 2}


class Place(NamedTuple):
    """Where a rank's data goes: its file of how many, and its number among the ranks of that file."""

    file: int
    files: int
    rank: int
    ranks: int


def _load(path: str | os.PathLike[str] | None) -> ctypes.CDLL:
    name = path or os.environ.get(LIBRARY) or ctypes.util.find_library("twinrun_aggregate")
    try:
        library = ctypes.CDLL(os.fspath(name or "libtwinrun_aggregate.so.0"))
        library.twr_aggregate_refuse  # noqa: B018
    except AttributeError:
        raise TwinrunError(
            f"libtwinrun_aggregate is older than this package: {name}", fix="install that of this version"
        ) from None
    except (OSError, ValueError) as e:
        raise TwinrunError(
            f"libtwinrun_aggregate cannot be loaded: {e}",
            fix=f"install it for the MPI of this program, and name the file in {LIBRARY}",
        ) from None
    library.twr_error_message.restype = ctypes.c_char_p
    library.twr_aggregate_report.restype = ctypes.c_char_p
    library.twr_aggregate_free.restype = None
    library.twr_aggregate_settings_destroy.restype = None
    return library


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
    Arrays are numpy's, or on a GPU (CuPy, Numba, PyTorch): these are copied to the host for a write, and
    there and back for a read. That of a `Block` has the block's type and shape, and is contiguous in its
    order, or is a flat one of as many items. That of a `Variable` or of records is contiguous and has the
    declared bytes at least; or the items of its first axis are as far apart as `memory_stride` says. Masked
    arrays and those with objects are refused. `close` it before MPI ends; a `with` block does.
    """

    def __init__(
        self, comm: Any, *, library: str | os.PathLike[str] | None = None, **settings: object
    ) -> None:
        try:
            from mpi4py import MPI
        except ImportError:
            raise MissingPackage.of("mpi4py", "twinrun[mpi]") from None
        self._pointer = ctypes.c_void_p()
        self._declared: list[Declared] = []
        self._library = _load(library)
        if not isinstance(comm, MPI.Comm):
            raise TwinrunError(f"comm is {comm!r:.60}, and no communicator of mpi4py")
        handle = MPI._handleof(comm)
        width = MPI._sizeof(MPI.Comm)
        made = ctypes.c_void_p()
        self._check(self._library.twr_aggregate_settings_create(ctypes.byref(made)))
        try:
            problem = self._refused(lambda: self._set(made, settings))
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

    def _set(self, made: ctypes.c_void_p, settings: dict[str, object]) -> None:
        for name, value in settings.items():
            text = (
                str(value).lower()
                if isinstance(value, bool)
                else os.fspath(value)
                if isinstance(value, os.PathLike)
                else str(value)
            )
            if "\0" in name + os.fsdecode(text):
                raise TwinrunError(f"setting {name!r:.60}: a text has no zero byte")
            self._check(self._library.twr_aggregate_settings_set(made, name.encode(), os.fsencode(text)))

    def _refused(self, check: Callable[[], None]) -> TwinrunError | None:
        """Runs what only this rank knows of the collective call that is next. Its error, which makes that
        call fail on all ranks.
        """
        try:
            check()
        except TwinrunError as e:
            problem = e
        except Exception as e:
            problem = TwinrunError(one_line(f"a wrong argument: {type(e).__name__}: {e}"))
            problem.__cause__ = e
        else:
            return None
        self._library.twr_aggregate_refuse(str(problem).encode(errors="replace"))
        return problem

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

        def make() -> tuple[tuple[object, ...], list[Declared]]:
            own, declared = c_variables(variables)
            return (own, len(declared)), declared

        self._declare("twr_aggregate_declare", make, (None, 0))

    def declare_records(
        self, item_bytes: Sequence[int], items: int, layout: str = "records", file_offset: int = 0
    ) -> None:
        """Declares variables with `items` items each on this rank. layout: records, blocks or variables."""

        def make() -> tuple[tuple[object, ...], list[Declared]]:
            sizes = lengths("item_bytes", item_bytes)
            count, offset = number("items", items), number("file_offset", file_offset)
            if layout not in _LAYOUTS:
                raise TwinrunError(f"layout is {layout!r}, and may be {', '.join(_LAYOUTS)}")
            declared = [Declared(size * count, size) for size in sizes[: len(item_bytes)]]
            given = (sizes, len(declared), ctypes.c_uint64(count), _LAYOUTS[layout], ctypes.c_uint64(offset))
            return given, declared

        nothing = (None, 0, ctypes.c_uint64(0), 0, ctypes.c_uint64(0))
        self._declare("twr_aggregate_declare_records", make, nothing)

    def declare_blocks(self, blocks: Iterable[Block]) -> None:
        """Declares blocks of global arrays, one array each."""
        keep: list[object] = []

        def make() -> tuple[tuple[object, ...], list[Declared]]:
            own, declared = c_blocks(blocks, keep)
            return (own, len(declared)), declared

        self._declare("twr_aggregate_declare_blocks", make, (None, 0))

    def _declare(
        self,
        function: str,
        make: Callable[[], tuple[tuple[object, ...], list[Declared]]],
        nothing: tuple[object, ...],
    ) -> None:
        self._declared = []
        declared: list[Declared] = []

        def arguments() -> tuple[object, ...]:
            given, found = make()
            declared.extend(found)
            return given

        self._call_with(function, arguments, nothing)
        self._declared = declared

    def _call_with(
        self, function: str, make: Callable[[], tuple[object, ...]], nothing: tuple[object, ...]
    ) -> None:
        """A collective call with what `make` returns. Where that fails, the call is made with `nothing` all
        the same, and fails on all ranks.
        """
        if not self._pointer:
            raise TwinrunError("the aggregate is closed")
        made: list[tuple[object, ...]] = []
        problem = self._refused(lambda: made.append(make()))
        status = getattr(self._library, function)(self._pointer, *(made[0] if made else nothing))
        if problem is not None:
            raise problem
        self._check(status)

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
        kept: list[object] = []  # the copies, until the call has ended
        finish: list[Callable[[], None]] = []

        def make() -> tuple[object, ...]:
            taken, back = on_host(arrays, writes=writes)
            kept.append(taken)
            finish.append(back)
            given = pointers(taken, self._declared, writes)
            try:
                return os.fsencode(any_path(path)), given
            except TypeError:
                raise TwinrunError(f"path is {path!r:.60}, and no path", fix="give a text") from None

        self._call_with(function, make, (None, None))
        finish[0]()

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
