from collections.abc import Callable, Mapping, Sequence, Set
import os
from os import PathLike
from typing import Annotated

import numpy
from numpy import int64, uint64, uint8
from numpy.typing import NDArray

import builtins

__version__: str

def backend() -> str: ...
def backends() -> list[str]: ...
def backend_override_ignored() -> str: ...
def uring_available() -> bool: ...
def release_device_memory() -> None:
    """
    Releases memory of GPUs, and page-locked memory, that twinrun keeps between calls and does not use.

    >>> twinrun.release_device_memory()

    Notes
    -----
    Thread-safe. Without a GPU it does nothing. The next call that needs the memory allocates it again.
    """

class DeviceFacts:
    """A GPU."""

    @property
    def name(self) -> str: ...
    @property
    def bus(self) -> str: ...
    @property
    def compute_major(self) -> int: ...
    @property
    def compute_minor(self) -> int: ...
    @property
    def multiprocessors(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...
    @property
    def free_bytes(self) -> int: ...
    @property
    def usable(self) -> bool: ...
    @property
    def reason(self) -> str:
        """Why it cannot be used; '': it can."""

class DirectStorageFacts:
    """GPUDirect Storage on this machine."""

    @property
    def available(self) -> bool: ...
    @property
    def library(self) -> str: ...
    @property
    def reason(self) -> str: ...

class Devices:
    """The GPUs of this machine, and what they are used by."""

    @property
    def library(self) -> str: ...
    @property
    def reason(self) -> str:
        """Why no GPU can be used; '': one can."""

    @property
    def runtime_version(self) -> int: ...
    @property
    def driver_version(self) -> int: ...
    @property
    def devices(self) -> list[DeviceFacts]: ...
    @property
    def direct_storage(self) -> DirectStorageFacts: ...

def devices() -> Devices: ...
def device_problem(device: int) -> str: ...
def device_of(address: int) -> int | None: ...

class DlpackFacts:
    """Where the array of a capsule of DLPack lies."""

    @property
    def device_type(self) -> int: ...
    @property
    def device(self) -> int: ...
    @property
    def code(self) -> int: ...
    @property
    def bits(self) -> int: ...
    @property
    def lanes(self) -> int: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def strides(self) -> list[int] | None:
        """In elements; None: dense."""

    @property
    def address(self) -> int: ...
    @property
    def read_only(self) -> bool: ...

def dlpack_facts(capsule: object) -> DlpackFacts: ...
def worker_count() -> int: ...

class Source:
    pass

class OpenFiles:
    """Files that are open for several sources."""

    def __init__(self) -> None: ...

class PathExtent:
    """Items of a field in a file."""

    def __init__(self, path: str, *, offset: int, stride: int, count: int) -> None: ...
    @property
    def path(self) -> str: ...
    @property
    def offset(self) -> int:
        """Of the first item, in bytes."""

    @property
    def stride(self) -> int:
        """Bytes from one item to the next."""

    @property
    def count(self) -> int:
        """Items."""

def memory_source(dtype: str, items: int, address: int, stride: int, swap: bool, owner: object) -> Source: ...
def device_source(
    dtype: str,
    shape: Sequence[int],
    strides: Sequence[int],
    address: int,
    device: int,
    stream: int,
    swap: bool,
    owner: object,
) -> Source: ...
def file_source(
    dtype: str,
    byte_order: str,
    items: int,
    extents: Sequence[PathExtent],
    cache: str = "auto",
    files: OpenFiles | None = None,
) -> Source:
    """files: that are open for other sources too."""

def decoded_source(dtype: str, items: int, fetch: object) -> Source: ...
def holds_exactly(wider: str, narrower: str) -> bool:
    """Whether a type holds every value of another one."""

def widened_source(dtype: str, below: Source) -> Source:
    """The elements of a source in a wider type: f64, i64, u64 or c128."""

def xxh3(arg: bytes, /) -> int: ...

class DataFile:
    """A data file as it was when its metadata was made."""

    def __init__(self, *, path: str, bytes: int, mtime_ns: int) -> None:
        """path: relative to the metadata file."""

    @property
    def path(self) -> str: ...
    @property
    def bytes(self) -> int: ...
    @property
    def mtime_ns(self) -> int: ...

class Extent:
    """Items of a field in one of the data files of its metadata."""

    def __init__(self, *, file: int, offset: int, stride: int, count: int) -> None: ...
    @property
    def file(self) -> int:
        """Its number among the data files."""

    @property
    def offset(self) -> int:
        """Of the first item, in bytes."""

    @property
    def stride(self) -> int:
        """Bytes from one item to the next."""

    @property
    def count(self) -> int:
        """Items."""

class SumsFacts:
    """What a field that is a part adds to the digests of the whole."""

    @property
    def kind(self) -> str: ...
    @property
    def height(self) -> int: ...
    @property
    def buckets(self) -> int: ...
    @property
    def smallest_id(self) -> int: ...
    @property
    def largest_id(self) -> int: ...

class FieldFacts:
    """What metadata says of a field."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def byte_order(self) -> str: ...
    @property
    def fortran_order(self) -> bool: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def items(self) -> int: ...
    @property
    def data_bytes(self) -> int: ...
    @property
    def digest(self) -> str: ...
    @property
    def atol(self) -> float: ...
    @property
    def rtol(self) -> float: ...
    @property
    def residue_bits(self) -> int: ...
    @property
    def cells(self) -> str: ...
    @property
    def fine_exponent(self) -> int: ...
    @property
    def coarse_exponent(self) -> int: ...
    @property
    def chunk_bytes(self) -> int: ...
    @property
    def chunks(self) -> int: ...
    @property
    def nans(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def largest_sampled(self) -> float: ...
    @property
    def format(self) -> str: ...
    @property
    def extents(self) -> list[Extent]: ...
    @property
    def global_shape(self) -> tuple[int, ...]: ...
    @property
    def global_offset(self) -> tuple[int, ...]: ...
    @property
    def key(self) -> str: ...
    @property
    def sums(self) -> SumsFacts | None: ...
    @property
    def metadata_bytes(self) -> int: ...

class FieldPlan:
    """A field to index, before its data is seen."""

    def __init__(
        self,
        *,
        name: str,
        dtype: str,
        byte_order: str,
        fortran_order: bool,
        shape: Sequence[int],
        atol: float,
        rtol: float,
        residue_bits: int,
        chunk_bytes: int,
        digest: str,
        format: str = "",
        extents: Sequence[Extent] = [],
        global_shape: Sequence[int] = [],
        global_offset: Sequence[int] = [],
        key: str = "",
        ids: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu", writable=False)]
        | None = None,
    ) -> None:
        """
        shape, global_shape, global_offset: slowest dimension first. key, ids: of particles, the field of their IDs, and these.
        """

class WrittenMetadata:
    @property
    def bytes_read(self) -> int: ...
    @property
    def metadata_bytes(self) -> int: ...

class Metadata:
    def __init__(self, arg: str, /) -> None: ...
    @property
    def path(self) -> str: ...
    @property
    def step(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def status(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def bytes_read(self) -> int: ...
    @property
    def fields(self) -> list[FieldFacts]: ...
    @property
    def data_files(self) -> list[DataFile]: ...
    def check_data_files(self) -> None: ...
    def header_xxh3(self) -> int: ...
    def verify(self) -> None: ...
    def section(self, field: int, name: str, /) -> builtins.bytes: ...

def changed_parts(metadata: Metadata, field: int, source: Source, threads: int = 0) -> list[int]: ...
def write_metadata(
    path: str,
    step: int,
    rank: int,
    data_files: Sequence[DataFile],
    fields: Sequence[FieldPlan],
    sources: Sequence[Source],
    threads: int = 0,
    memory: int = 1073741824,
    io: str = "auto",
    progress: object | None = None,
    durable: bool = True,
    status: int = 0,
) -> WrittenMetadata: ...
def read_source(source: Source, first: int, count: int) -> NDArray[uint8]: ...

class Tolerance:
    """a and b agree where |a - b| <= atol + rtol |a|."""

    def __init__(self, atol: float = 0.0, rtol: float = 0.0) -> None: ...
    @property
    def atol(self) -> float: ...
    @property
    def rtol(self) -> float: ...

class Rule:
    """What counts as different."""

    def __init__(
        self,
        *,
        atol: float = 0.0,
        rtol: float = 0.0,
        nan_equal: bool = True,
        ulps: int | None = None,
        period: Sequence[float] = [],
        component_stride: int = 1,
    ) -> None: ...

def list_differences(a: Source, b: Source, first: int, count: int, rule: Rule) -> NDArray[uint64]: ...
def histogram_edges() -> list[float]: ...
def check_tolerance(arg0: float, arg1: float, /) -> None: ...
def why_not_staged(a: Metadata, a_field: int, b: Metadata, b_field: int, rule: Rule) -> str: ...

class StageFacts:
    """What a stage of a comparison did."""

    def __init__(
        self,
        *,
        ran: bool = True,
        chunks_in: int = 0,
        chunks_out: int = 0,
        bytes_read: int = 0,
        seconds: float = 0.0,
    ) -> None: ...
    @property
    def ran(self) -> bool: ...
    @property
    def chunks_in(self) -> int: ...
    @property
    def chunks_out(self) -> int:
        """Left open; of elements: those with a difference."""

    @property
    def bytes_read(self) -> int:
        """Of both runs."""

    @property
    def seconds(self) -> float: ...
    def __add__(self, other: StageFacts) -> StageFacts: ...
    def __getstate__(self) -> tuple[bool, int, int, int, float]: ...
    def __setstate__(self, arg: tuple[bool, int, int, int, float], /) -> None: ...

class FieldResult:
    """What comparing a field found."""

    @property
    def method(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def io(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def device_reason(self) -> str: ...
    @property
    def device_seconds(self) -> float: ...
    @property
    def scalars(self) -> int: ...
    @property
    def chunks(self) -> int: ...
    @property
    def different(self) -> int: ...
    @property
    def infinite(self) -> int: ...
    @property
    def scalars_read(self) -> int: ...
    @property
    def first(self) -> int | None: ...
    @property
    def first_a(self, /) -> int | float | None: ...
    @property
    def first_b(self, /) -> int | float | None: ...
    @property
    def max_abs(self) -> float: ...
    @property
    def max_abs_is_bound(self) -> bool: ...
    @property
    def max_abs_unread(self) -> float: ...
    @property
    def max_abs_read(self) -> float: ...
    @property
    def max_abs_at(self) -> int | None: ...
    @property
    def max_abs_a(self, /) -> int | float | None: ...
    @property
    def max_abs_b(self, /) -> int | float | None: ...
    @property
    def max_rel_read(self) -> float: ...
    @property
    def max_rel_at(self) -> int | None: ...
    @property
    def max_rel_different(self) -> float: ...
    @property
    def max_rel_different_at(self) -> int | None: ...
    @property
    def sum_squares(self) -> float: ...
    @property
    def sum_squares_different(self) -> float: ...
    @property
    def largest(self) -> float: ...
    @property
    def histogram(self) -> list[int]: ...
    @property
    def histogram_different(self) -> list[int]: ...
    @property
    def proven_by_tree(self) -> int: ...
    @property
    def proven_by_cells(self) -> list[int]: ...
    @property
    def cell(self) -> float: ...
    @property
    def coarse_cell(self) -> float: ...
    @property
    def tree(self) -> StageFacts: ...
    @property
    def sketch(self) -> StageFacts: ...
    @property
    def elements(self) -> StageFacts: ...
    @property
    def warnings(self) -> list[str]: ...
    @property
    def max_abs_at_least(self) -> float:
        """A lower bound of the largest |a - b|."""

    def sum_squares_of_all(self, tolerance: Tolerance) -> float:
        """
        Of all scalars: exact where all were read, else what it does not exceed; NaN: no bound is known.
        """

    def with_bytes_of_elements(self, bytes_read: int) -> FieldResult:
        """The same; reading the elements took so many bytes."""

    def renumbered(self, numbers: Mapping[int, int]) -> FieldResult:
        """The same with other places."""

    def __getstate__(self) -> tuple[bytes, str, str | None]: ...
    def __setstate__(self, arg: tuple[bytes, str, str | None], /) -> None: ...

def merge_results(parts: Sequence[FieldResult], columns: Sequence[int] = []) -> FieldResult:
    """
    The result of disjoint parts of one field together. columns: the shape of a column-major array.
    """

def with_sums(
    read: FieldResult, sums: TwoSums, scalars: int, by_tree: int, tree: StageFacts, sketch: StageFacts
) -> FieldResult:
    """
    The result for all scalars, where sums left open those that were read. by_tree: scalars in buckets of equal sums. tree, sketch: what reading sums and residues took.
    """

def result_of_keys(same: int, different: int) -> FieldResult:
    """
    The result for keys that rows were matched by. different: how many have no partner.
    """

class CompareOptions:
    """How fields are compared, whatever their rules."""

    def __init__(
        self,
        *,
        method: str = "auto",
        threads: int = 0,
        memory: int = 1073741824,
        io: str = "auto",
        cache: str = "auto",
        progress: object | None = None,
        device: str = "auto",
        devices: Sequence[int] = [],
    ) -> None:
        """progress(done, all): called now and then, by the thread that compares."""

class FieldSide:
    """One run's side of a field: its elements, its metadata, or both."""

    def __init__(self, source: Source | None, metadata: Metadata | None = None, field: int = 0) -> None:
        """field: its number in the metadata."""

def compare(
    a: FieldSide,
    b: FieldSide,
    rule: Rule,
    options: CompareOptions,
    ranges: Sequence[tuple[int, int]] | None = None,
    columns: Sequence[int] = [],
) -> FieldResult:
    """
    ranges: (first scalar, count), ascending; None for the whole field. columns: the shape of a column-major array.
    """

def range_unit(dtype: str, metadata: Metadata | None = None, field: int = 0) -> int: ...

RANGE_BYTES: int = 67108864

class FieldList:
    """All fields of a place, taken at once."""

    @staticmethod
    def of_arrays(
        container: object, flatten: Callable[[str, object], dict[str, object]], on_devices: bool
    ) -> FieldList | None:
        """
        The arrays and numbers of a dictionary, nested or not. flatten(name, value) gives the arrays of any other value by name. on_devices: those on GPUs, too, with PyTorch's current stream. None where the container is not for a list: see runs.containers.
        """

    @staticmethod
    def of_metadata(metadata: Metadata, has_data: bool) -> FieldList | None:
        """
        The fields of metadata, and their data. None where Python has to look at one of them.
        """

    @staticmethod
    def of_history(
        history: str, folders: Sequence[str], files: Sequence[RankFiles], threads: int = 0
    ) -> FieldList | None:
        """
        The fields of metadata of many places of a history, place after place, and their data. They belong to those at the same place of another list. None where Python has to look at one of them.
        """

    @property
    def counts(self) -> list[int]:
        """How many fields each place of a history has."""

    @property
    def bytes_read(self) -> list[int]:
        """Of each place: what opening its metadata read."""

    @staticmethod
    def of_files(
        paths: Sequence[str],
        names: Sequence[str],
        format: str,
        without_metadata: bool = True,
        unique: bool = True,
        threads: int = 0,
    ) -> FieldList | None:
        """
        The arrays of .npy or .safetensors files as they lie there. names: of the array of each .npy file, what stands before the names of a .safetensors file. None where Python has to look at one of them, or, without_metadata, where there is metadata beside it. unique: where a name is there twice; else fields belong to those at the same place.
        """

    @property
    def texts(self, /) -> list[dict[str, str] | None]:
        """Of each file its texts beside the arrays, None where it has none."""

    def arrays(self) -> dict[str, object]:
        """The arrays by name."""

    @property
    def rest(self) -> dict[str, object]:
        """
        The arrays by name that are not in the list, as Python has to look at them.
        """

    @property
    def rest_places(self) -> list[int]:
        """Their numbers among all fields."""

    def captured(self, tolerances: Mapping[str, Tolerance]) -> CapturedFields:
        """
        The fields of the list, as they are captured and sketched; they are valid as long as it is. tolerances: of fields that have one of their own.
        """

    @property
    def any_on_device(self) -> bool: ...
    @property
    def floating(self) -> list[bool]:
        """Whether each holds floating-point numbers."""

    @property
    def names(self) -> list[str]: ...
    def held(self) -> HeldArrays | None:
        """
        Where the arrays are, without keeping them alive. None where some are not the caller's own.
        """

    def __len__(self) -> int: ...

class HeldArrays:
    """Arrays that others keep alive."""

    def there(self) -> dict[str, object] | None:
        """The arrays by name; None where one is gone."""

    def __deepcopy__(self, memo: object) -> HeldArrays: ...

class ListResults:
    """What comparing two lists found, field by field."""

    def __len__(self) -> int: ...
    def result(self, at: int) -> FieldResult: ...
    def name(self, at: int) -> str: ...
    def dtype(self, at: int) -> str: ...
    def shape(self, at: int) -> tuple[int, ...]: ...
    def fortran_order(self, at: int) -> bool: ...
    def rule(self, at: int) -> int: ...
    def atol(self, at: int) -> float: ...
    def rtol(self, at: int) -> float: ...
    @property
    def different(self) -> list[int]:
        """Numbers of the fields that differ, ascending."""

    @property
    def failed(self) -> list[int]:
        """
        Numbers of the fields that could not be compared: comparing each alone says why.
        """

    def take_interrupt(self) -> BaseException | None:
        """
        The exception that ended the work, to be raised. The fields that were not reached failed.
        """

    def part(self, first: int, last: int) -> ListResults:
        """Those of the fields [first, last)."""

    @property
    def bytes(self) -> int:
        """Of one run."""

    @property
    def bytes_read(self) -> int: ...
    def __getstate__(self) -> tuple[builtins.bytes, builtins.bytes, list[int], list[int], int, int, bool]: ...
    def __setstate__(
        self, state: tuple[builtins.bytes, builtins.bytes, list[int], list[int], int, int, bool], /
    ) -> None: ...

class ListRule:
    """The rule of fields of a list."""

    def __init__(self, rule: Rule, own_tolerance: bool = False) -> None:
        """own_tolerance: that of the metadata counts."""

class RulesByKind:
    """The numbers of the rules of floating-point fields, and of all others."""

    def __init__(self, of_floating: int, of_others: int) -> None: ...

def are_npy(paths: Sequence[bytes]) -> list[bool]:
    """Whether each of these files begins as .npy files do."""

def compare_lists(
    a: FieldList,
    b: FieldList,
    rules: Sequence[ListRule],
    chosen: RulesByKind | Sequence[int],
    options: CompareOptions,
    started: StartedPairs | None = None,
) -> ListResults | None:
    """
    chosen: of each field of a the number of its rule, -1: it is left out; or by kind. started: what start_lists began, maybe of these lists. None where the lists do not match in names, types and shapes: Python then says why.
    """

class StartedPairs:
    """
    Pairs of arrays on devices that are compared already; reading only, so that they may be forgotten.
    """

    def __len__(self) -> int: ...
    def leave(self) -> bool:
        """
        Leaves the work to the devices: later work of the arrays' streams may change the arrays. False: it is not left, as something would have to be looked at again.
        """

    def is_done(self) -> bool:
        """Whether devices have done what was begun."""

def start_lists(
    a: object,
    b: object,
    flatten: Callable[[str, object], dict[str, object]],
    on_devices: bool,
    of_floating: Rule,
    of_others: Rule,
    options: CompareOptions,
    may_leave: bool = False,
) -> tuple[FieldList | None, FieldList | None, StartedPairs | None]:
    """
    FieldList.of_arrays of both containers; pairs on devices are compared from when they are known. of_floating, of_others: the rules that will be chosen for floating-point numbers and for others; options: those of compare_lists. may_leave: leave() follows.
    """

class PairList:
    """Pairs of fields, which the core compares at once."""

    def __init__(self) -> None: ...
    def add(
        self,
        name: str,
        dtype: str,
        shape: Sequence[int],
        fortran_order: bool,
        a: Source | None,
        a_metadata: Metadata | None,
        a_field: int,
        b: Source | None,
        b_metadata: Metadata | None,
        b_field: int,
        rule: int,
    ) -> None:
        """The sources are this pair's alone. rule: its number."""

    def __len__(self) -> int: ...
    def compare(self, rules: Sequence[ListRule], options: CompareOptions) -> ListResults: ...

def has_codec(arg: str, /) -> bool: ...

class RecordSettings:
    """How a record is made."""

    def __init__(
        self, *, method: str, chunk_bytes: int, codec: str, level: int, xor: bool, bounded: bool
    ) -> None: ...
    @property
    def method(self) -> str: ...
    @property
    def chunk_bytes(self) -> int: ...
    @property
    def codec(self) -> str: ...
    @property
    def level(self) -> int: ...
    @property
    def xor(self) -> bool: ...
    @property
    def bounded(self) -> bool: ...
    @property
    def against(self) -> str:
        """
        The other record, which has what this one does not keep again; '': none.
        """

class PackOptions:
    """What to pack, and how."""

    def __init__(
        self,
        *,
        settings: RecordSettings,
        table_bytes: int,
        verify: bool,
        threads: int,
        append: bool,
        update: bool,
        against: str | os.PathLike,
    ) -> None:
        """against: another record, or ''."""

class PackedStep:
    """What one step of one rank took in a record."""

    @property
    def step(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def full_bytes(self) -> int: ...
    @property
    def new_version(self) -> bool: ...
    @property
    def bytes(self) -> int: ...
    @property
    def entry_bytes(self) -> int: ...
    @property
    def payload_bytes(self) -> int: ...
    @property
    def chunks(self) -> int: ...
    @property
    def changed_chunks(self) -> int: ...
    @property
    def payload_chunks(self) -> int: ...
    @property
    def collisions(self) -> int: ...

class PackedFile:
    """A file, a link or an empty folder of another program, to pack."""

    def __init__(
        self,
        *,
        name: str | os.PathLike,
        path: str | os.PathLike,
        key: str | os.PathLike,
        kind: str,
        to: str | os.PathLike,
    ) -> None:
        """
        name: in the record. path: on storage. key: the same for the same file of other steps. kind: file, link or folder. to: a link's text.
        """

class FilesOfStep:
    def __init__(self, step: int, files: Sequence[PackedFile]) -> None: ...

def pack_history(
    source: str | os.PathLike,
    target: str | os.PathLike,
    options: PackOptions,
    visit: Callable[[PackedStep], None],
) -> None: ...
def pack_files(
    steps: Sequence[FilesOfStep],
    target: str | os.PathLike,
    options: PackOptions,
    visit: Callable[[PackedStep], None],
) -> None: ...

class RecordProblem:
    """Why steps of a record cannot be restored."""

    @property
    def steps(self) -> list[int]:
        """Those that need what is damaged; may be empty."""

    @property
    def what(self) -> str: ...

class CompactReport:
    @property
    def dropped_steps(self) -> int: ...
    @property
    def bytes_before(self) -> int: ...
    @property
    def bytes_after(self) -> int: ...

class RecordFile:
    """A file of a step in a record."""

    @property
    def name(self) -> str: ...
    @property
    def bytes(self) -> int: ...

class RecordSegment:
    """A part of such a file: a field."""

    @property
    def name(self) -> str: ...
    @property
    def file(self) -> int:
        """Its number among the step's files."""

    @property
    def offset(self) -> int:
        """In the file."""

    @property
    def bytes(self) -> int: ...

def unpack_steps(
    record: str | os.PathLike,
    steps: Sequence[int],
    target: str | os.PathLike,
    flat: bool,
    threads: int,
    memory: int,
) -> list[str]: ...
def check_record(path: str | os.PathLike, rank: int, threads: int, memory: int) -> list[RecordProblem]: ...
def compact_record(
    path: str | os.PathLike, drop: Sequence[int], keep_last: int, threads: int, forget_missing: bool = False
) -> CompactReport: ...

class RecordStore:
    def files(self, step: int) -> list[RecordFile]: ...
    def segments(self, step: int) -> list[RecordSegment]: ...
    def read(self, step: int, segment: str | PathLike, offset: int, bytes: int, memory: int) -> bytes: ...
    def write(
        self,
        step: int,
        segment: str | os.PathLike,
        offset: int,
        bytes: int,
        path: str | os.PathLike,
        memory: int,
    ) -> None: ...
    def source(self, step: int, segment: str, dtype: str, items: int) -> Source: ...

def open_record(path: str | os.PathLike, rank: int, threads: int = 1) -> RecordStore: ...

class CapturedField:
    """
    An array to capture, to sketch or to restore. Its memory must outlive its use.
    """

    def __init__(
        self,
        *,
        name: str,
        dtype: str,
        shape: Sequence[int],
        address: int,
        stride: int = 0,
        fortran_order: bool = False,
        tolerance: Tolerance | None = None,
        device: int | None = None,
        strides: Sequence[int] = [],
        stream: int = 0,
        swap: bool = False,
        ids: str = "",
        global_shape: Sequence[int] = [],
        global_offset: Sequence[int] = [],
    ) -> None:
        """
        shape, global_shape, global_offset: slowest dimension first, so reversed if fortran_order is set.
        stride: bytes between items; 0: dense. tolerance: its own; None: the run's. ids: the field of its rows' IDs, or ''.
        device: where the memory is on a device; then strides (bytes), stream and swap hold, and stride does not.
        """

    @property
    def name(self) -> str: ...

class CapturedFields:
    """The arrays of a step. A capture takes them away."""

    def __init__(self, fields: Sequence[CapturedField]) -> None: ...
    def __len__(self) -> int: ...
    def insert(self, at: int, field: CapturedField) -> None:
        """Before the field of this number; at the end where there is none."""

    def remove(self, names: Set[str]) -> None: ...
    @property
    def names(self) -> list[str]: ...
    @property
    def has_labels(self) -> bool:
        """Whether a name may be that of a label: see formats.model."""

    def shapes(self) -> dict[str, tuple]:
        """By name."""

class StoredField:
    """A field of a committed step. shape: slowest dimension first."""

    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def fortran_order(self) -> bool: ...

class Divergence:
    """Where a step is not proven equal to the same step of the reference."""

    @property
    def step(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def field(self) -> str: ...
    @property
    def first_item(self) -> int: ...
    @property
    def chunks(self) -> int: ...
    @property
    def chunks_in_all(self) -> int: ...
    @property
    def fields(self) -> int: ...
    @property
    def reason(self) -> str: ...
    @property
    def text(self) -> str: ...

class LostStep:
    """A step that was accepted and is not committed."""

    @property
    def step(self) -> int: ...
    @property
    def reason(self) -> str: ...

class CaptureReport:
    """What one capture cost."""

    @property
    def step(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def waited_seconds(self) -> float: ...
    @property
    def data_bytes(self) -> int: ...
    @property
    def metadata_bytes(self) -> int: ...
    @property
    def staged_bytes(self) -> int: ...
    @property
    def divergence(self) -> Divergence | None: ...
    @property
    def lost(self) -> list[LostStep]: ...

class SessionFacts:
    """What a session has done so far."""

    @property
    def captured(self) -> int: ...
    @property
    def committed(self) -> int: ...
    @property
    def lost(self) -> int: ...
    @property
    def most_staged_bytes(self) -> int: ...
    @property
    def flushed_bytes(self) -> int: ...

class SessionSettings:
    """
    The settings of a session, with their names and limits in docs/capture.md. A value outside of the limits is an error that names them.
    """

    def __init__(self) -> None: ...
    def set(self, name: str, value: str) -> None:
        """Any setting by its name, as text."""

    @property
    def atol(self) -> float: ...
    @atol.setter
    def atol(self, arg: float, /) -> None: ...
    @property
    def rtol(self) -> float: ...
    @rtol.setter
    def rtol(self, arg: float, /) -> None: ...
    @property
    def residue_bits(self) -> int: ...
    @residue_bits.setter
    def residue_bits(self, arg: int, /) -> None: ...
    @property
    def chunk_bytes(self) -> int: ...
    @chunk_bytes.setter
    def chunk_bytes(self, arg: int, /) -> None: ...
    @property
    def record_chunk(self) -> int: ...
    @record_chunk.setter
    def record_chunk(self, arg: int, /) -> None: ...
    @property
    def record_level(self) -> int: ...
    @record_level.setter
    def record_level(self, arg: int, /) -> None: ...
    @property
    def record_table(self) -> int: ...
    @record_table.setter
    def record_table(self, arg: int | str, /) -> None: ...
    @property
    def memory(self) -> int: ...
    @memory.setter
    def memory(self, arg: int | str, /) -> None: ...
    @property
    def device_memory(self) -> int: ...
    @device_memory.setter
    def device_memory(self, arg: int | str, /) -> None: ...
    @property
    def local_limit(self) -> int: ...
    @local_limit.setter
    def local_limit(self, arg: int | str, /) -> None: ...
    @property
    def keep_steps(self) -> int: ...
    @keep_steps.setter
    def keep_steps(self, arg: int, /) -> None: ...
    @property
    def keep_data_steps(self) -> int: ...
    @keep_data_steps.setter
    def keep_data_steps(self, arg: int, /) -> None: ...
    @property
    def threads(self) -> int: ...
    @threads.setter
    def threads(self, arg: int, /) -> None: ...
    @property
    def flush_threads(self) -> int: ...
    @flush_threads.setter
    def flush_threads(self, arg: int, /) -> None: ...
    @property
    def digest(self) -> str: ...
    @digest.setter
    def digest(self, arg: str, /) -> None: ...
    @property
    def record(self) -> str: ...
    @record.setter
    def record(self, arg: str, /) -> None: ...
    @property
    def record_compress(self) -> str: ...
    @record_compress.setter
    def record_compress(self, arg: str, /) -> None: ...
    @property
    def existing(self) -> str: ...
    @existing.setter
    def existing(self, arg: str, /) -> None: ...
    @property
    def flusher(self) -> str: ...
    @flusher.setter
    def flusher(self, arg: str, /) -> None: ...
    @property
    def keep_data(self) -> bool:
        """The setting mode: full or digests."""

    @keep_data.setter
    def keep_data(self, arg: bool, /) -> None: ...
    @property
    def record_xor(self) -> bool: ...
    @record_xor.setter
    def record_xor(self, arg: bool, /) -> None: ...
    @property
    def record_against(self) -> str: ...
    @record_against.setter
    def record_against(self, arg: str, /) -> None: ...
    @property
    def local(self) -> str: ...
    @local.setter
    def local(self, arg: str, /) -> None: ...
    @property
    def replace_steps(self) -> bool: ...
    @replace_steps.setter
    def replace_steps(self, arg: bool, /) -> None: ...
    @property
    def background(self) -> bool: ...
    @background.setter
    def background(self, arg: bool, /) -> None: ...
    @property
    def reference(self) -> str: ...
    @reference.setter
    def reference(self, arg: str, /) -> None: ...
    @property
    def stop_on_divergence(self) -> bool: ...
    @stop_on_divergence.setter
    def stop_on_divergence(self, arg: bool, /) -> None: ...

class Turns:
    """
    Ranks of one run that this process plays one after another: each Session that is made with it is the next rank, and is closed before the one after it is made.
    """

    def __init__(self, ranks: int) -> None: ...
    @property
    def begun(self) -> int: ...

class Session:
    def __init__(
        self,
        path: str,
        settings: SessionSettings,
        facts: Mapping[str, Mapping[str, str]],
        turns: Turns | None = None,
    ) -> None: ...
    def capture(self, step: int, fields: CapturedFields) -> CaptureReport: ...
    def wait(self) -> list[LostStep]: ...
    def close(self) -> list[LostStep]: ...
    def latest(self, not_after: int) -> int | None: ...
    def restore(self, step: int, fields: Sequence[CapturedField]) -> None: ...
    def stored_fields(self, step: int, names: Sequence[str] | None) -> dict[str, StoredField]: ...
    def on_divergence(self, call: object) -> None: ...
    @property
    def committed(self) -> list[int]: ...
    @property
    def local_only(self) -> list[int]: ...
    @property
    def facts(self) -> SessionFacts: ...

def history_exists(arg: str, /) -> bool: ...

class RankProvenance:
    """Facts of one process that wrote to a history."""

    @property
    def rank(self) -> int: ...
    @property
    def json(self) -> str: ...

class RankFiles:
    """
    A rank's files of a step: names in the step's folder, and what they must be.
    """

    @property
    def rank(self) -> int: ...
    @property
    def data(self) -> str:
        """'': only metadata is kept."""

    @property
    def data_bytes(self) -> int: ...
    @property
    def metadata(self) -> str:
        """'': of files that were packed as they were."""

    @property
    def metadata_bytes(self) -> int: ...
    @property
    def header_xxh3(self) -> int: ...
    @property
    def blocked_seconds(self) -> float: ...
    @property
    def difference(self) -> int | None:
        """Of a record: the number of the difference that `data` is."""

    @property
    def full_bytes(self) -> int:
        """Of the step, whatever a record takes for it."""

    @property
    def divergence(self) -> str: ...
    @property
    def offset(self) -> int:
        """Where this rank's part of a file begins that ranks share."""

    @property
    def file_bytes(self) -> int:
        """Of the whole data file."""

    def __eq__(self, arg: object, /) -> bool: ...
    def __getstate__(self) -> tuple[int, str, int, str, int, int, float, int, int, bool, int, int, str]: ...
    def __setstate__(
        self, arg: tuple[int, str, int, str, int, int, float, int, int, bool, int, int, str], /
    ) -> None: ...

class HistoryStep:
    @property
    def step(self) -> int: ...
    @property
    def folder(self) -> str:
        """In the history's."""

    @property
    def ranks(self) -> list[RankFiles]: ...

class History:
    """What a history's manifest and journals say."""

    @property
    def path(self) -> str: ...
    @property
    def atol(self) -> float: ...
    @property
    def rtol(self) -> float: ...
    @property
    def residue_bits(self) -> int: ...
    @property
    def chunk_bytes(self) -> int: ...
    @property
    def digest(self) -> str: ...
    @property
    def keep_data(self) -> bool: ...
    @property
    def record(self) -> RecordSettings | None: ...
    @property
    def torn(self) -> bool: ...
    @property
    def ranks(self) -> int: ...
    @property
    def local_part(self) -> int | None:
        """Of one rank's part on a node-local tier: whose."""

    @property
    def to(self) -> str | None:
        """Of such a part: the history that it goes to."""

    @property
    def incomplete(self) -> list[int]: ...
    @property
    def provenance(self) -> list[RankProvenance]: ...
    @property
    def steps(self) -> list[HistoryStep]: ...

def open_history(path: str | os.PathLike) -> History: ...

class UnnamedStep:
    """Whole files of a rank's step that its journal does not name."""

    @property
    def step(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def folder(self) -> str:
        """In the history's."""

    @property
    def journal(self) -> str: ...
    @property
    def lost(self) -> bool:
        """The journal is missing or empty; else it may have been cut."""

def unnamed_steps(path: str | os.PathLike) -> list[UnnamedStep]: ...
def entries_of_others(path: str | os.PathLike, known: Sequence[str] = []) -> list[str]:
    """
    Journals and folders of steps that are another history's. known: folders that this one's journals name.
    """

class Flushed:
    """What a flush brought to the history."""

    @property
    def steps(self) -> int:
        """How many."""

    @property
    def bytes(self) -> int: ...
    @property
    def lost(self) -> list[LostStep]:
        """The steps that stay where they are, and why."""

def flush(local: str, history: str, id: str = "") -> Flushed: ...
def id_of_parts(parts: Sequence[str], history: str) -> str: ...

class PlanPlace:
    """A node that is a core: None where hwloc does not say."""

    @property
    def host(self) -> int: ...
    @property
    def package(self) -> int | None: ...
    @property
    def numa(self) -> int | None: ...
    @property
    def cache(self) -> int | None: ...
    @property
    def core(self) -> int | None: ...

class PlanTopology:
    """The model of a machine."""

    @property
    def name(self) -> str: ...
    @property
    def nodes(self) -> int: ...
    @property
    def gateways(self) -> int: ...
    @property
    def gateway_of(self) -> list[int]:
        """By node."""

    @property
    def bridges(self) -> list[int]:
        """Nodes."""

    @property
    def places(self) -> list[PlanPlace]:
        """By node, where nodes are cores; else empty."""

class PlannedPartition:
    @property
    def file(self) -> int: ...
    @property
    def number(self) -> int:
        """In the file."""

    @property
    def offset(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def ranks(self) -> int: ...
    @property
    def first_rank(self) -> int: ...
    @property
    def last_rank(self) -> int: ...
    @property
    def nodes(self) -> int: ...
    @property
    def gateway(self) -> int: ...

class PlanAggregator:
    """Of a partition: who aggregates, and the predicted seconds."""

    @property
    def rank(self) -> int: ...
    @property
    def node(self) -> int: ...
    @property
    def gather(self) -> float: ...
    @property
    def write(self) -> float: ...

class PlannedPlacement:
    @property
    def placement(self) -> str: ...
    @property
    def sum(self) -> float: ...
    @property
    def most(self) -> float: ...
    @property
    def seconds(self) -> float: ...
    @property
    def aggregators(self) -> list[PlanAggregator]:
        """By partition."""

class AggregationPlan:
    @property
    def topology(self) -> PlanTopology: ...
    @property
    def ranks(self) -> int: ...
    @property
    def files(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def partitions(self) -> list[PlannedPartition]: ...
    @property
    def placements(self) -> list[PlannedPlacement]: ...
    @property
    def partition_of_node(self) -> list[int | None]: ...

def make_volumes(
    kind: str, ranks: int, mean: int, unit: int, spread: float, every: int, seed: int
) -> list[int]: ...
def topology_nodes(description: str, nodes: int) -> int: ...
def plan_aggregation(
    topology: str,
    nodes: int,
    volumes: Sequence[int],
    ranks_per_node: int,
    aggregators: int,
    nodes_per_file: int,
    layout: str,
    item_bytes: Sequence[int],
    block: int,
    placements: Sequence[str],
    seed: int,
) -> AggregationPlan: ...

class FieldSketch:
    @property
    def facts(self) -> FieldFacts: ...
    @property
    def device(self) -> int: ...
    @property
    def bytes(self) -> int: ...

class SketchList:
    """The sketches of a container, which may still be at work on devices."""

    def __len__(self) -> int: ...
    def __getitem__(self, at: int) -> FieldSketch:
        """Waits."""

    @property
    def names(self, /) -> list[str]: ...
    def wait(self) -> None:
        """Until all are made. Raises what went wrong."""

def start_sketches(
    container: object,
    flatten: Callable[[str, object], dict[str, object]],
    tolerances: Mapping[str, Tolerance],
    atol: float,
    rtol: float,
    residue_bits: int,
    chunk_bytes: int,
    digest: str,
    threads: int = 0,
) -> SketchList | None:
    """
    Those of a container, begun while it is walked. None where Python has to look at anything in it.
    """

def sketch_fields(
    fields: CapturedFields,
    atol: float,
    rtol: float,
    residue_bits: int,
    chunk_bytes: int,
    digest: str,
    threads: int = 0,
) -> list[FieldSketch]: ...
def load_sketches(metadata: Metadata, fields: Sequence[int], device: int) -> list[FieldSketch]: ...
def move_sketches(sketches: Sequence[FieldSketch], device: int) -> list[FieldSketch]: ...
def sketch_roots(sketches: Sequence[FieldSketch]) -> list[int]:
    """The root of each sketch's tree, which is 0 where there is no element."""

class SketchComparison:
    """What two sketches of a field say."""

    @property
    def elements(self) -> int: ...
    @property
    def chunks(self) -> int: ...
    @property
    def chunks_flagged(self) -> int: ...
    @property
    def open(self) -> bytes:
        """
        Numbers of chunks that are not proven equal, as 32-bit words of this machine.
        """

    @property
    def proven_by_tree(self) -> int: ...
    @property
    def proven_by_cells(self) -> list[int]: ...
    @property
    def cell(self) -> float: ...
    @property
    def coarse_cell(self) -> float: ...
    @property
    def chunk_elements(self) -> int: ...

def compare_sketches(
    *,
    a: Sequence[FieldSketch],
    b: Sequence[FieldSketch],
    tolerances: Sequence[Tolerance],
    nan_equal: bool = True,
) -> list[SketchComparison]:
    """Of each field its sketch in both runs, and its tolerance."""

class WordDigests:
    """Digests of the words of many arrays: start(), and later roots()."""

    def __init__(self, arrays: Sequence) -> None: ...
    @property
    def missing(self) -> list[int]:
        """Numbers of arrays that put() has to bring."""

    def put(self, at: int, words: CapturedField, kind: str, shape: tuple) -> None:
        """
        words: dense in host memory, or on a device. kind, shape: of the array.
        """

    def start(self, few_bytes: int) -> None:
        """
        The arrays may change afterwards: devices work in the order of the arrays' streams.
        """

    def roots(self) -> list[int]:
        """Waits. One an array; 0 where it has no element."""

    @property
    def facts(self) -> list:
        """(type, shape) of each array."""

def compact_metadata(metadata: Metadata) -> bytes:
    """
    The metadata file as small as the format allows, without data files and checksums of data.
    """

PRIME: int = 2305843009213693951

TOKEN_LIMIT: int = 576460752303423488

SMALLEST_SUM: float = 9.332636185032189e-302

def digest_weights(scalars: int, block_scalars: int) -> NDArray[uint64]:
    """By what a chunk's digest multiplies each of its scalars' values, modulo PRIME."""

class BucketSums:
    """Sums of digests, by bucket in ascending order."""

    def __init__(
        self, buckets: NDArray[uint64], coarse: NDArray[uint64], fine: NDArray[uint64], height: int
    ) -> None: ...
    @property
    def height(self) -> int:
        """A bucket has 2^height chunks."""

    @property
    def buckets(self) -> NDArray[uint64]: ...
    @property
    def coarse(self) -> NDArray[uint64]: ...
    @property
    def fine(self) -> NDArray[uint64]: ...

def read_sums(metadata: Metadata, field: int, whole: bool) -> BucketSums: ...
def read_residues(metadata: Metadata, field: int, first: int, count: int) -> NDArray[uint8]: ...
def sums_of_rows(
    dtype: str, ids: NDArray[uint64], address: int, row_scalars: int, tolerance: Tolerance, chunk_bytes: int
) -> BucketSums | None: ...
def put_rows(
    to: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
    rows: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
    starts: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    item_bytes: int,
) -> None: ...

class TwoSums:
    """The sums of one field of two runs, and which buckets they prove."""

    def __init__(
        self,
        metadata: Metadata,
        field: int,
        wanted: Tolerance,
        of_a: Sequence[BucketSums],
        of_b: Sequence[BucketSums],
    ) -> None:
        """metadata, field: of either run. of_a, of_b: of all parts of each run."""

    @property
    def height(self) -> int:
        """A bucket has 2^height chunks."""

    @property
    def bucket_scalars(self) -> int: ...
    @property
    def buckets(self) -> NDArray[uint64]:
        """Of which a run has sums, ascending."""

    @property
    def open(self) -> NDArray[uint8]:
        """Of each bucket 1 where it is not proven."""

    @property
    def count(self) -> int:
        """Buckets that are compared."""

    @property
    def count_open(self) -> int: ...
    def open_scalars(self, scalars: int) -> list[tuple[int, int]]:
        """
        (first, count) of each stretch of scalars in open buckets, of an array of so many.
        """

    def keep(self, scalars: Sequence[tuple[int, int]]) -> None:
        """
        Compares only the buckets that hold these stretches of scalars: (first, count).
        """

    def at(self, buckets: NDArray[uint64]) -> NDArray[uint64] | None:
        """Their positions in `buckets`. None where a run has no sums of one of them."""

    @property
    def residues_help(self) -> bool:
        """Whether residues can prove open buckets."""

    def settle(self, starts: NDArray[uint64], row_scalars: int, a: NDArray[uint8], b: NDArray[uint8]) -> bool:
        """
        Takes the residues of all rows of some buckets, one a byte, and closes the buckets that they prove. starts: of each row the index of its first scalar. False: a run has no sums of one.
        """

    @property
    def held_by_both(self) -> bool:
        """Both runs have sums of every bucket."""

    @property
    def identical(self) -> bool:
        """Both runs have the same sums of every bucket."""

    def is_sum_of(self, parts: Sequence[BucketSums]) -> bool:
        """Whether these add up to the fine sums of the first run."""

def id_stride(row_scalars: int) -> int: ...

class CoreNoise:
    """What the loops on a core saw. Times: ns since all cores began."""

    @property
    def core(self) -> int: ...
    @property
    def undisturbed_ns(self) -> float:
        """Length of a step of the loop."""

    @property
    def threshold_ns(self) -> float: ...
    @property
    def begin_ns(self) -> int:
        """Of the time in which detours were recorded."""

    @property
    def end_ns(self) -> int: ...
    @property
    def iterations(self) -> int: ...
    @property
    def full(self) -> bool:
        """It ended early, after as many detours as were asked for."""

    @property
    def starts(self) -> NDArray[int64]: ...
    @property
    def lengths(self) -> NDArray[int64]: ...
    @property
    def work_ns(self) -> NDArray[int64]: ...
    @property
    def window_work(self) -> NDArray[int64]: ...
    @property
    def involuntary_switches(self) -> int: ...
    @property
    def run_queue_ns(self) -> int:
        """-1: the system does not report it."""

    @property
    def moved(self) -> bool:
        """The thread was on another core at the end."""

class NoiseMeasurement:
    @property
    def clock(self) -> str: ...
    @property
    def tick_ns(self) -> float: ...
    @property
    def cores(self) -> list[CoreNoise]: ...

def measure_noise(
    cores: Sequence[int],
    detour_seconds: float = 1.0,
    work_seconds: float = 0.5,
    time_seconds: float = 0.5,
    threshold: float = 9.0,
    threshold_ns: int = 0,
    work_ns: int = 100000,
    window_ns: int = 1000000,
    most_detours: int = 262144,
    counter: bool = True,
) -> NoiseMeasurement: ...

class VariableRules:
    """Which environment variables are stored."""

    @property
    def names(self) -> list[str]: ...
    @property
    def prefixes(self) -> list[str]: ...
    @property
    def bookkeeping(self) -> list[str]: ...
    @property
    def of_one_job(self) -> list[str]: ...
    @property
    def secret_words(self) -> list[str]: ...
    @property
    def secret_variable_words(self) -> list[str]: ...

def variable_rules() -> VariableRules: ...
def keeps_variable(name: str) -> bool: ...

NO_METADATA: str = ...

NO_DATA: str = ...

def tolerance_text(tolerance: Tolerance, ulps: int | None = None) -> str: ...
def values_text(a: float, b: float, difference: float) -> str: ...
def percent_text(a: float, difference: float) -> str: ...
def proof_text(read: int, elements: int) -> str: ...
