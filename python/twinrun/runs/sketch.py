"""Sketches: digests of arrays, kept where the arrays are, that show whether two runs agree while both are
running.

Nothing is written, and no element leaves the GPU. A field that two sketches prove to be the same is the same;
any other field is open: only the data can decide.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import _core
from ..arguments import (
    Globs,
    check_settings,
    checked_path,
    chosen_devices,
    names_given,
    step_number,
    tolerance_number,
)
from ..errors import Incomparable, TwinrunError
from ..formats.element_types import FLOATING
from ..formats.labels import labels_told
from ..formats.texts import names_to_choose
from ..marks import METADATA_SUFFIX
from ..words import counted
from .containers import flattened, state_of
from .entries import captured_entries, own_tolerances
from .fields import check_alike
from .histories import HistorySubject

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

__all__ = ["FieldSketchComparison", "Sketch", "SketchComparison", "sketch", "sketch_of"]

_HOST = -1  # as the number of a device


@dataclass(frozen=True)
class FieldSketchComparison:
    """What two sketches show of one field.

    >>> a, b = np.zeros(1000), np.zeros(1000)
    >>> b[700] = 1.0
    >>> found = twinrun.sketch({"x": a}, atol=1e-6).compare(twinrun.sketch({"x": b}, atol=1e-6))["x"]
    >>> found.verdict, found.open_chunks.tolist(), found.chunk_elements
    ('open', [1], 512)

    Attributes
    ----------
    field, dtype, shape : str, str, tuple of int
        Name, element type and shape of the field.
    atol, rtol : float
        The tolerance that was used.
    elements : int
        Scalars; a complex number counts twice.
    chunks : int
        Chunks of the field.
    chunks_open : int
        Chunks that may hold a difference. Each holds one where the verdict is 'different'.
    chunks_by_tree : int
        Chunks that equal digests alone prove to agree.
    chunk_elements : int
        Scalars of a chunk.
    open_chunks : numpy.ndarray
        Numbers of the open chunks, ascending. Chunk c holds the scalars from c * chunk_elements on, in stored
        order.
    proven_by_tree : int
        Scalars that equal digests alone prove to agree.
    proven_by_cells : list of int
        Entry c, for c = 0 to 7: other scalars that are proven to lie c cells apart, that is |a - b| < (c + 1)
        * cell.
    cell, coarse_cell : float
        Widths of a fine and of a coarse cell; 0 where the rule has none.
    device : str
        Where both sketches lie.
    digests_decide : bool
        Whether digests that differ prove a difference, as exact ones do. Those of the kind 'published' never
        do.
    chunks_proven : int
        Chunks without a difference.
    verdict : {'same', 'different', 'open'}
        'same': every element agrees within the tolerance. 'different': an element of each open chunk differs.
        'open': only the data can decide.
    same : bool
        True where the verdict is 'same'; `bool(found)` gives it.
    """

    field: str
    dtype: str
    shape: tuple[int, ...]
    atol: float
    rtol: float
    elements: int
    chunks: int
    chunks_open: int
    chunks_by_tree: int
    chunk_elements: int
    open_chunks: np.ndarray
    proven_by_tree: int
    proven_by_cells: list[int]
    cell: float
    coarse_cell: float
    device: str
    digests_decide: bool

    @property
    def chunks_proven(self) -> int:
        """Chunks without a difference."""
        return self.chunks - self.chunks_open

    @property
    def verdict(self) -> str:
        """'same': every element agrees within the tolerance; 'different': an element of each open chunk
        differs; 'open': only the data can decide.
        """
        if self.same:
            return "same"
        return "different" if self.digests_decide else "open"

    @property
    def same(self) -> bool:
        """Every element agrees within the tolerance."""
        return self.chunks_open == 0

    def __bool__(self) -> bool:
        return self.same


@dataclass(frozen=True)
class SketchComparison:
    """What two sketches show, by field.

    >>> a = twinrun.sketch({"x": np.zeros(10), "y": np.zeros(10)}, atol=1e-6)
    >>> b = twinrun.sketch({"x": np.zeros(10), "y": np.ones(10)}, atol=1e-6)
    >>> found = a.compare(b)
    >>> found.verdict, found.open, found["x"].verdict
    ('open', ['y'], 'same')

    Exact sketches decide, except those of the kind 'published':

    >>> found = twinrun.sketch({"y": np.zeros(10)}).compare(twinrun.sketch({"y": np.ones(10)}))
    >>> found.verdict, found.different
    ('different', ['y'])

    Attributes
    ----------
    fields : list of FieldSketchComparison
        In the order of the first sketch.
    seconds : float
        Time of the comparison, in seconds.
    verdict : {'same', 'different', 'open'}
        'same': all fields agree. 'different': at least one field differs. 'open': none is known to differ,
        and at least one needs its data.
    same : bool
        True where the verdict is 'same'; `bool(found)` gives it.
    different : list of str
        Names of the fields that differ.
    open : list of str
        Names of the fields that need their data. Fields that differ are not among them.
    """

    fields: list[FieldSketchComparison]
    seconds: float

    @property
    def verdict(self) -> str:
        """'same': all fields agree; 'different': one differs or more; 'open': one needs its data or more."""
        if self.same:
            return "same"
        return "different" if self.different else "open"

    @property
    def same(self) -> bool:
        """Every element of every field agrees within the tolerance."""
        return all(f.same for f in self.fields)

    def __bool__(self) -> bool:
        return self.same

    @property
    def different(self) -> list[str]:
        """Names of the fields that differ."""
        return [f.field for f in self.fields if f.verdict == "different"]

    @property
    def open(self) -> list[str]:
        """Names of the fields that need their data."""
        return [f.field for f in self.fields if f.verdict == "open"]

    def __getitem__(self, name: str) -> FieldSketchComparison:
        for f in self.fields:
            if f.field == name:
                return f
        raise KeyError(name)


def _device_name(number: int) -> str:
    return "cpu" if number == _HOST else f"cuda:{number}"


def _device_number(device: object) -> int:
    """The device number of 'cpu', 'cuda' (the first that can be used), 'cuda:1', or 'auto' (a GPU if there is
    one).
    """
    use, numbers = chosen_devices(device)
    if len(numbers) > 1:
        raise TwinrunError(f"a sketch lies on one device, not on {device!r:.60}", fix="write cuda:0")
    if numbers:
        return numbers[0]
    if use == "cpu":
        return _HOST
    return next((i for i, d in enumerate(_core.devices().devices) if d.usable), _HOST)


class _Listed(Mapping[str, _core.FieldSketch]):
    """Sketches by name, each an object when it is asked for. Who asks waits until all are made."""

    def __init__(self, made: _core.SketchList) -> None:
        self._made = made
        self._numbers: dict[str, int] | None = None

    def _number(self) -> dict[str, int]:
        if self._numbers is None:
            self._numbers = {name: at for at, name in enumerate(self._made.names)}
        return self._numbers

    def __getitem__(self, name: str) -> _core.FieldSketch:
        return self._made[self._number()[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._number())

    def __len__(self) -> int:
        return len(self._made)


@dataclass(frozen=True)
class _FieldFacts:
    """The settings of a field that decide whether and how it is compared."""

    dtype: str
    shape: tuple[int, ...]
    fortran_order: bool
    atol: float
    rtol: float
    unit: str | None
    kind: str | None

    @property
    def user_shape(self) -> tuple[int, ...]:
        return self.shape[::-1] if self.fortran_order else self.shape


class Sketch:
    """Digests of named arrays, which `sketch` and `sketch_of` make.

    >>> made = twinrun.sketch({"x": np.zeros(1000, np.float32)}, atol=1e-6)
    >>> made.names, made.device
    (['x'], 'cpu')

    Attributes
    ----------
    label : str
        What messages call it.
    names : list of str
        Its fields.
    bytes : int
        Bytes of memory that its digests take.
    device : str
        Where it lies: 'cuda:0', 'cpu', or several, as 'cpu, cuda:0'.

    Notes
    -----
    It holds about a seventh of the bytes of float32 arrays with 4 residue bits, half as much with 2, and 0.6%
    with none. The memory is released when nothing refers to it any more. Several threads may use one sketch.
    Digests: spec/digest.md.
    """

    def __init__(
        self,
        fields: Mapping[str, _core.FieldSketch],
        label: str,
        told: Mapping[str, Mapping[str, str]],
    ) -> None:
        self.label = label
        self._fields = fields
        self._told = told  # unit and kind, by field
        self._known: dict[str, _FieldFacts] = {}

    def _facts(self, name: str) -> _FieldFacts:
        """The facts of a field.

        They are read at its first comparison, because many tensors are sketched and never compared.
        """
        known = self._known.get(name)
        if known is None:
            f, told = self._fields[name].facts, self._told.get(name, {})
            known = _FieldFacts(f.dtype, f.shape, f.fortran_order, f.atol, f.rtol,
                                told.get("unit"), told.get("kind"))  # fmt: skip
            self._known[name] = known
        return known

    @property
    def names(self) -> list[str]:
        """The names of its fields."""
        return list(self._fields)

    @property
    def bytes(self) -> int:
        """Bytes of memory that its digests take."""
        return sum(f.bytes for f in self._fields.values())

    @property
    def device(self) -> str:
        """Where it lies: 'cuda:0', 'cpu', or several, as 'cpu, cuda:0'."""
        return ", ".join(sorted({_device_name(f.device) for f in self._fields.values()}))

    def __repr__(self) -> str:
        return f"<twinrun.Sketch of {self.label}: {counted(len(self._fields), 'field')}, {self.bytes} bytes, {self.device}>"

    def to(self, device: object) -> Sketch:
        """Copies the sketch to another device.

        >>> made = twinrun.sketch({"x": np.zeros(10)})
        >>> made.to("cpu") is made
        True

        Parameters
        ----------
        device : str
            'cpu', 'cuda' (the first GPU that can be used), 'cuda:1', or 'auto' (a GPU if there is one).

        Returns
        -------
        Sketch
            The copy; this sketch where all of it lies there already.

        Raises
        ------
        Unsupported
            The device cannot be used.
        TwinrunError
            `device` is not understood, or names several devices.
        """
        number = _device_number(device)
        if all(f.device == number for f in self._fields.values()):
            return self
        moved = _core.move_sketches(list(self._fields.values()), number)
        fields = dict(zip(self._fields, moved, strict=True))
        return Sketch(fields, self.label, self._told)

    def compare(
        self,
        other: Sketch,
        *,
        atol: float | None = None,
        rtol: float | None = None,
        equal_nan: bool = True,
        fields: Iterable[str] | None = None,
    ) -> SketchComparison:
        """Compares two sketches: which fields agree within the tolerance.

        >>> a = twinrun.sketch({"x": np.zeros(10)}, atol=1e-6)
        >>> b = twinrun.sketch({"x": np.full(10, 1e-9)}, atol=1e-6)
        >>> a.compare(b).verdict
        'same'

        Parameters
        ----------
        other : Sketch
            Made with the same settings, and for each field on the same device. This sketch is the reference
            a.
        atol, rtol : float, default None
            Elements agree where |a - b| <= atol + rtol |a|. None: the tolerance that the sketches were made
            for. It can be wider, and not narrower. Integers and booleans are compared exactly.
        equal_nan : bool, default True
            Whether a NaN equals a NaN.
        fields : str or iterable of str, default None
            Globs of the fields to compare; None for all.

        Returns
        -------
        SketchComparison
            'same' and 'different' are proven. 'open' is not a difference yet: only the data can decide.

        Raises
        ------
        Incomparable
            A field is missing, has another shape, type or settings, or lies on another device; or there is no
            field. A narrower tolerance is asked for. A field has NaNs, and `equal_nan` is False: digests do
            not tell where they are.
        TwinrunError
            `other` is not a sketch.
        """
        if not isinstance(other, Sketch):
            raise TwinrunError(
                f"{type(other).__name__!r:.60} is not a sketch",
                fix="make one: sketch({name: array}), sketch_of(history, step)",
            )
        start = time.perf_counter()
        globs = None if fields is None else names_given(fields, "fields")
        names = self._chosen(globs)
        theirs = other._chosen(globs)
        for here, there, mine, present in ((self, other, names, theirs), (other, self, theirs, names)):
            missing = sorted(set(mine) - set(present))
            if missing:
                listed = ", ".join(map(repr, missing[:5])) + (
                    f" and {len(missing) - 5} more" if len(missing) > 5 else ""
                )
                raise Incomparable(
                    f"field {listed} of {here.label}: not there",
                    where=there.label,
                    fix="choose the common ones with fields",
                )
        if not names:
            raise Incomparable("no field to compare", where=self.label, fix="nothing was compared")
        tolerances: list[_core.Tolerance] = []
        known: dict[tuple[float, float], _core.Tolerance] = {}
        for name in names:
            self._check_field(name, other)
            own = self._tolerance(name, other, atol, rtol)
            tolerances.append(known.get(own) or known.setdefault(own, _core.Tolerance(*own)))
        found = _core.compare_sketches(
            a=[self._fields[name] for name in names],
            b=[other._fields[name] for name in names],
            tolerances=tolerances,
            nan_equal=equal_nan,
        )
        results = [
            self._result(name, tolerance, f)
            for name, tolerance, f in zip(names, tolerances, found, strict=True)
        ]
        return SketchComparison(results, time.perf_counter() - start)

    def _result(
        self, name: str, tolerance: _core.Tolerance, found: _core.SketchComparison
    ) -> FieldSketchComparison:
        facts = self._facts(name)
        open_chunks = np.frombuffer(found.open, np.uint32)
        return FieldSketchComparison(
            field=name,
            dtype=facts.dtype,
            shape=facts.user_shape,
            atol=tolerance.atol,
            rtol=tolerance.rtol,
            elements=found.elements,
            chunks=found.chunks,
            chunks_open=open_chunks.size,
            chunks_by_tree=found.chunks - found.chunks_flagged,
            chunk_elements=found.chunk_elements,
            open_chunks=open_chunks,
            proven_by_tree=found.proven_by_tree,
            proven_by_cells=found.proven_by_cells,
            cell=found.cell,
            coarse_cell=found.coarse_cell,
            device=_device_name(self._fields[name].device),
            digests_decide=found.decided,
        )

    def _chosen(self, globs: list[str] | None) -> list[str]:
        if globs is None:
            return [*self._fields]
        chosen = Globs(globs)
        return [n for n in self._fields if any(map(chosen.match, names_to_choose(n)))]

    def _check_field(self, name: str, other: Sketch) -> None:
        a, b = self._facts(name), other._facts(name)
        what = f"field {name!r}"
        check_alike(a, b, what, self.label, other.label)
        if a.fortran_order != b.fortran_order and sum(n > 1 for n in a.shape) > 1:
            raise Incomparable(
                f"{what}: row-major in one sketch, column-major in the other",
                fix="compare the arrays themselves, or sketch both in one order",
            )
        here, there = self._fields[name].device, other._fields[name].device
        if here != there:
            raise Incomparable(
                f"{what}: on {_device_name(here)} in {self.label}, on {_device_name(there)} in {other.label}",
                fix=f"bring one to the other: sketch.to({_device_name(here)!r})",
            )

    def _tolerance(
        self, name: str, other: Sketch, atol: float | None, rtol: float | None
    ) -> tuple[float, float]:
        a, b = self._facts(name), other._facts(name)
        if atol is not None or rtol is not None:
            if a.dtype not in FLOATING:
                return 0.0, 0.0
            return float(atol or 0.0), float(rtol or 0.0)
        if (a.atol, a.rtol) != (b.atol, b.rtol):
            raise Incomparable(
                f"field {name!r}: the sketches were made for different tolerances",
                fix="make both for one tolerance",
            )
        return a.atol, a.rtol


def sketch(
    fields: object,
    *,
    atol: float = 0.0,
    rtol: float = 0.0,
    tolerances: Mapping[str, float | tuple[float, float]] | None = None,
    residue_bits: int = 4,
    chunk_bytes: int = 4096,
    digest: str = "linear",
    stream: object = None,
    threads: int = 0,
    wait: bool = True,
) -> Sketch:
    """Digests named arrays where they lie, so that runs can be compared while both are running.

    >>> a = twinrun.sketch({"x": np.zeros(1000)}, atol=1e-6)
    >>> b = twinrun.sketch({"x": np.full(1000, 2e-7)}, atol=1e-6)
    >>> a.compare(b).verdict
    'same'

    Parameters
    ----------
    fields : dict of str to array, or container of arrays
        Named arrays, a model, or nested mappings. All arrays of a GPU are digested in one batch, and digests
        stay there.
    atol, rtol : float, default 0
        Two sketches agree where |a - b| <= atol + rtol |a|. `atol` has the unit of the data.
    tolerances : dict of str to float or (float, float), default None
        `{field: atol}` or `{field: (atol, rtol)}` for fields with a tolerance of their own; integers too.
        Booleans, dates and texts are exact all the same.
    residue_bits : {4, 2, 0}
        Bits an element that prove small differences.
    chunk_bytes : int, default 4096
        Bytes of a chunk: a power of two from 4096 to 1048576.
    digest : {'linear', 'published'}
        The kind of digest.
    stream : int or stream object, default None
        The GPU stream whose work makes the arrays, as a handle or an object of PyTorch, CuPy or Numba. By
        default the arrays themselves name it.
    threads : int, default 0
        Threads for arrays on the host; 0 takes all cores.
    wait : bool, default True
        False: returns as soon as GPUs have the work; who asks the sketch for anything but its names waits.
        Until then its tensors are kept, and only later work of PyTorch's current stream may change them.
        Arrays on the host, and of other packages than PyTorch, are always digested before this returns.

    Returns
    -------
    Sketch
        The digests. The arrays may change as soon as this returns (but see `wait`).

    Raises
    ------
    TwinrunError
        A parameter has no meaning, or an array has an unsupported type. With `wait=False` a GPU's error is
        raised where the sketch is asked.

    Notes
    -----
    Sketches that are compared need the same settings. Nothing is written, and no element leaves a GPU. Calls
    from several threads do not share state.

    A second call with the same PyTorch tensors on GPUs is faster. How the arrays of the last 8 such states
    are sketched is kept. That takes about a kilobyte of host memory for each array, for 65,536 arrays at
    most. The tensors themselves are not kept.
    """
    if digest not in ("linear", "published"):
        raise TwinrunError("digest must be 'linear' or 'published'")
    check_settings(threads=threads, residue_bits=residue_bits, chunk_bytes=chunk_bytes)
    atol, rtol = tolerance_number("atol", atol), tolerance_number("rtol", rtol)
    _core.check_tolerance(atol, rtol)
    own = own_tolerances(tolerances)

    def _again(floating: dict[str, tuple[float, float]]) -> Sketch:
        return sketch(fields, atol=atol, rtol=rtol, tolerances=floating, residue_bits=residue_bits,
                      chunk_bytes=chunk_bytes, digest=digest, stream=stream, threads=threads, wait=wait)  # fmt: skip

    how = (float(atol), float(rtol), residue_bits, chunk_bytes, digest, threads)
    if stream is None:  # else it is for arrays of any package; a list follows PyTorch's own
        fields = state_of(fields)
        begun = _core.start_sketches(fields, flattened, own, *how)
        if begun is not None:
            if own and (again := _without_exact(_Listed(begun), own, {})) is not None:
                return _again(again)
            if wait:
                begun.wait()
            return Sketch(_Listed(begun), "arrays", {})
    entries, keep = captured_entries(fields, own, stream)
    told: dict[str, dict[str, str]] = {}
    if entries.has_labels:
        told, labels = labels_told(entries.shapes())
        entries.remove(labels)
    made = _core.sketch_fields(entries, *how)
    del keep
    found = dict(zip(entries.names, made, strict=True))
    if own and (again := _without_exact(found, own, told)) is not None:
        return _again(again)
    return Sketch(found, "arrays", told)


def _without_exact(
    made: Mapping[str, _core.FieldSketch],
    own: Mapping[str, _core.Tolerance],
    told: Mapping[str, Mapping[str, str]],
) -> dict[str, tuple[float, float]] | None:
    """The tolerances without those of booleans, dates and texts, which compare exactly; None if there is none
    of these. told: of fields, what their elements are.
    """
    exact = {n for n in own if n in made and (made[n].facts.dtype == "bool" or n in told)}
    return {n: (t.atol, t.rtol) for n, t in own.items() if n not in exact} if exact else None


def sketch_of(
    history: str | os.PathLike[str],
    step: int | None = None,
    *,
    rank: int = 0,
    device: object = "auto",
    fields: Iterable[str] | None = None,
) -> Sketch:
    """Loads the metadata of a captured step as a sketch; the data of the step need not exist.

    >>> with twinrun.Run("runs/a", atol=1e-6, keep_data=False) as run:
    ...     facts = run.capture(10, {"x": np.zeros(1000)})
    >>> now = twinrun.sketch({"x": np.zeros(1000)}, atol=1e-6)
    >>> twinrun.sketch_of("runs/a", 10, device="cpu").compare(now).verdict
    'same'

    Parameters
    ----------
    history : str or path
        The folder of a history, or a metadata file (.twm).
    step : int, default None
        A step of the history; None for a metadata file.
    rank : int, default 0
        The rank.
    device : str, default 'auto'
        'cpu', 'cuda', 'cuda:1', or 'auto': the first GPU that can be used, otherwise the host.
    fields : str or iterable of str, default None
        Globs of the fields to load; None for all.

    Returns
    -------
    Sketch
        The digests of this step.

    Raises
    ------
    MissingFile
        There is no such history or file.
    DamagedFile
        The metadata contradicts its checksums.
    Incomparable
        The history has no such step or rank, or no field matches.
    TwinrunError
        `step` is missing for a history, or given for a metadata file, or `device` is not understood.
    Unsupported
        The device cannot be used.
    """
    path = checked_path(history)
    number = _device_number(device)
    if path.endswith(METADATA_SUFFIX):
        if step is not None:
            raise TwinrunError(
                "a metadata file has no steps to choose from", where=path, fix="leave out the step"
            )
        metadata = _core.Metadata(path)
        label = path
    else:
        if step is None:
            raise TwinrunError(
                "is a history, and no step was given", where=path, fix="write sketch_of(history, step)"
            )
        subject = HistorySubject(path)
        place = (step_number(step), rank)
        if place not in subject.places:
            raise Incomparable(
                f"step {step}, rank {rank}: not there", where=path, fix="twinrun log says which steps are"
            )
        metadata = subject.whole_metadata(place)
        label = f"{path}, step {step}"
    globs = None if fields is None else Globs(names_given(fields, "fields"))
    metadata_fields = metadata.fields
    told, labels = labels_told({f.name: f.shape for f in metadata_fields})
    chosen = [
        i
        for i, f in enumerate(metadata_fields)
        if f.name not in labels
        if globs is None or globs.match(f.name)
    ]
    if not chosen:
        raise Incomparable("no field of these names", where=label, fix="check fields")
    names = [metadata_fields[i].name for i in chosen]
    made = dict(zip(names, _core.load_sketches(metadata, chosen, number), strict=True))
    return Sketch(made, label, told)
