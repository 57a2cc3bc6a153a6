"""One field: its golden digests, and its check against them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from .. import _core
from ..errors import DamagedFile, Incomparable, TwinrunError
from ..formats.model import labels_told, storage_dtype
from ..runs.index import FLOATING, build, field_plan
from ..runs.order import in_type, read_by_column, read_by_row
from ..runs.subject import FieldRef, Place, label_refs
from .plan import digest_settings
from .proof import DIFFERENT, SAME, UNDECIDED, Rule, Settled, equal_cells_prove, settle

__all__ = ["GoldenElement", "GoldenField", "GoldenSpan", "check_field", "golden_bytes", "known_fields"]

_MEMORY = "/dev/shm"


@dataclass(frozen=True)
class GoldenElement:
    """An element that differs, or that is undecided.

    >>> from twinrun import golden
    >>> facts = golden.save({"x": np.zeros(4)}, "golden/x", atol=1.0)
    >>> element = golden.check("golden/x", {"x": np.array([0, 0, 8.0, 0])}).fields[0].first
    >>> element.index, element.b, element.at_least <= 8 <= element.at_most
    ((2,), 8.0, True)

    Attributes
    ----------
    index : tuple of int
        Where it is in the array, as the user knows it.
    b : float, int or str
        Its value now.
    cells : int or None
        How many cells the golden value lies above b; None where only the residue is known.
    at_least, at_most : float
        Bounds of |a - b|. `at_most` may be infinite.
    verdict : {'different', 'undecided'}
        Whether it is known to differ.
    """

    index: tuple[int, ...]
    b: float | int | str
    cells: int | None
    at_least: float
    at_most: float
    verdict: str


@dataclass(frozen=True)
class GoldenSpan:
    """A chunk that differs, or may differ.

    Attributes
    ----------
    first, last : int
        Its first and last scalar, both included, in the order of the array.
    first_index, last_index : tuple of int
        The same, as indices.
    different : int
        Scalars that differ, at least.
    exact : bool
        True: it is known of each scalar how many cells apart it is.
    located : bool
        True: the digests are explained by one outlier, which is wrong with a probability of 2^-23.
    verdict : {'different', 'undecided'}
        Whether the chunk is known to differ.
    undecided : int
        Scalars of which it is undecided whether they differ, where `exact`.
    """

    first: int
    last: int
    first_index: tuple[int, ...]
    last_index: tuple[int, ...]
    different: int
    exact: bool
    located: bool
    verdict: str
    undecided: int = 0


@dataclass
class GoldenField:
    """What golden digests show of one field at one step and rank.

    >>> from twinrun import golden
    >>> facts = golden.save({"x": np.zeros(4)}, "golden/x", atol=1e-6)
    >>> field = golden.check("golden/x", {"x": np.array([0, 0, 1.0, 0])}).fields[0]
    >>> field.verdict, field.different, field.different_is_exact, field.place(field.first.index)
    ('different', 1, True, 'rank 0, x[2]')

    Attributes
    ----------
    step, rank : int or None
        Where the field is; None where the run has no steps.
    field, dtype, shape : str, str, tuple of int
        Name, element type and shape of the field.
    atol, rtol : float
        The tolerance that the golden files were saved for.
    elements : int
        Scalars; a complex number counts twice.
    bytes : int
        Bytes of the field.
    chunks : int
        Chunks of the field.
    residue_bits : int
        Bits an element in the golden files.
    cell : float
        Width of a cell; 0 where the rule has none.
    different : int
        Scalars that differ, at least.
    different_is_exact : bool
        True: exactly so many differ, because nothing is undecided.
    undecided : int
        Scalars whose cells are known, and of which it is undecided whether they agree.
    chunks_different : int
        Chunks that differ.
    chunks_undecided : int
        Chunks of which not even the cells are known.
    spans, listed : list of GoldenSpan, list of GoldenElement
        Chunks and elements that differ or may differ, in order, up to `most_listed`.
    spans_left_out, listed_left_out : int
        How many more there are.
    at_least, at_most : float or None
        Bounds of the largest |a - b|. `at_most` is None where none is known.
    kind : str or None
        What elements are that are no numbers; `listed` then has them as text.
    verdict : {'same', 'different', 'undecided'}
        'undecided': cannot be decided within one cell.
    first : GoldenElement or None
        The first element that is known to differ; else the first that is undecided.
    """

    step: int | None
    rank: int
    field: str
    dtype: str
    shape: tuple[int, ...]
    atol: float
    rtol: float
    elements: int
    bytes: int
    chunks: int
    residue_bits: int
    cell: float
    different: int = 0
    different_is_exact: bool = True
    undecided: int = 0
    chunks_different: int = 0
    chunks_undecided: int = 0
    spans: list[GoldenSpan] = dataclasses.field(default_factory=list)
    spans_left_out: int = 0
    listed: list[GoldenElement] = dataclasses.field(default_factory=list)
    listed_left_out: int = 0
    at_least: float = 0.0
    at_most: float | None = 0.0
    kind: str | None = None

    @property
    def verdict(self) -> str:
        """'same', 'different' or 'undecided' (within one cell)."""
        if self.different:
            return "different"
        return "undecided" if self.undecided or self.chunks_undecided else "same"

    def __bool__(self) -> bool:
        return self.verdict == "same"

    @property
    def first(self) -> GoldenElement | None:
        """The first element that is known to differ; else the first that is undecided."""
        return next(
            (e for e in self.listed if e.verdict == "different"), self.listed[0] if self.listed else None
        )

    def place(self, index: tuple[int, ...] | None = None) -> str:
        """Where the field is, as text: 'step 500, rank 0, x[1234, 2]'.

        Parameters
        ----------
        index : tuple of int, default None
            An element of the field; None for the field.

        Returns
        -------
        str
            The place.
        """
        parts = [] if self.step is None else [f"step {self.step}"]
        parts.append(f"rank {self.rank}")
        at = "" if not index else "[" + ", ".join(map(str, index)) + "]"
        return ", ".join([*parts, self.field + at])


def _moment(data_bytes: int) -> tempfile.TemporaryDirectory:
    """A temporary folder for digests of this many bytes of data: in memory, where there is room."""
    folder = None
    with contextlib.suppress(OSError):
        room = os.statvfs(_MEMORY)
        if data_bytes < room.f_bavail * room.f_frsize // 4 and os.access(_MEMORY, os.W_OK):
            folder = _MEMORY
    return tempfile.TemporaryDirectory(prefix="twinrun-", dir=folder)


def golden_bytes(
    refs: Iterable[FieldRef],
    tolerance: Callable[[FieldRef], tuple[float, float]],
    *,
    residue_bits: int,
    chunk_bytes: int,
    place: Place,
    threads: int = 0,
    memory: int = 1 << 28,
    io: str = "auto",
) -> bytes:
    """The metadata file of these fields, for the user's tolerances. Nothing in it depends on the machine."""

    def plan(ref: FieldRef) -> _core.FieldPlan:
        atol, rtol = (0.0, 0.0) if ref.name in labels else tolerance(ref)
        wide_atol, wide_rtol, bits = digest_settings(ref.dtype, atol, rtol, residue_bits)
        return field_plan(ref, None, atol=wide_atol, rtol=wide_rtol, residue_bits=bits, chunk_bytes=chunk_bytes,
                          digest="linear")  # fmt: skip

    refs = [read_by_row(ref) for ref in refs]  # in one order, whatever the order of a run
    labelled = label_refs(refs, "golden files")
    labels = {ref.name for ref in labelled}
    refs += labelled
    with _moment(sum(ref.items * ref.itemsize for ref in refs)) as folder:
        target = os.path.join(folder, "golden.twm")
        step, rank = place
        build(target, refs, [], plan, step=-1 if step is None else step, rank=rank, threads=threads,
              memory=memory, io=io)  # fmt: skip
        return _core.compact_metadata(_core.Metadata(target))


def known_fields(metadata: _core.Metadata) -> dict[str, int]:
    """{field: its number} of golden digests, without the labels of units and kinds."""
    _, labels = _told(metadata)
    return {f.name: at for at, f in enumerate(metadata.fields) if f.name not in labels}


def _told(metadata: _core.Metadata) -> tuple[dict[str, dict[str, str]], set[str]]:
    return labels_told({f.name: f.shape for f in metadata.fields})


def _digests(metadata: _core.Metadata, at: int, facts: _core.FieldFacts) -> np.ndarray:
    """The fine digest of each chunk."""
    fine = np.frombuffer(metadata.section(at, "fine"), "<u8")
    if fine.size == 0:
        fine = np.frombuffer(metadata.section(at, "tree"), "<u8")[-facts.chunks :] if facts.chunks else fine
    if fine.size != facts.chunks:
        raise DamagedFile("holds another number of digests than of chunks", where=metadata.path)
    return fine


def _residues(packed: np.ndarray, scalars: int, block_scalars: int, bits: int) -> np.ndarray:
    """Residues of the scalars of one chunk, from its lines: spec/digest.md, section 7."""
    words = packed.view("<u8").reshape(-1, 8)  # a row a line
    shifts = np.arange(0, 64, bits, dtype=np.uint64)[None, :, None]
    spread = (words[:, None, :] >> shifts) & np.uint64((1 << bits) - 1)
    flat = spread.astype(np.uint8).reshape(-1)
    per_line = 512 // bits
    lines = -(-block_scalars // per_line)
    if lines * per_line == block_scalars:
        return flat[:scalars]
    # A block begins a new line.
    parts = [flat[at : at + block_scalars] for at in range(0, flat.size, lines * per_line)]
    return np.concatenate(parts)[:scalars]


def _values(raw: bytes, dtype: str) -> np.ndarray:
    """Scalars in numpy types that hold every value: floats or integers; complex numbers as pairs."""
    if dtype == "bf16":
        return (np.frombuffer(raw, np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    values = np.frombuffer(raw, storage_dtype(dtype).newbyteorder("="))
    if values.dtype.kind == "c":
        return values.view(values.real.dtype)
    if values.dtype.kind == "b" or dtype == "bool":
        return (np.frombuffer(raw, np.uint8) != 0).astype(np.uint8)
    return values


def _rule_of(facts: _core.FieldFacts) -> Rule:
    kind = facts.cells
    origin = facts.atol / facts.rtol if kind == "relative" and facts.atol > 0 else 0.0
    return Rule(kind, facts.residue_bits, facts.fine_exponent, origin)


def _alike(known: _core.FieldFacts, told: Mapping[str, str], ref: FieldRef, label: str) -> None:
    shape = known.shape
    shape = shape[::-1] if known.fortran_order else shape
    if known.dtype != ref.dtype:
        raise Incomparable(
            f"{known.dtype} in the golden files, {ref.dtype} in {label}", fix="types must agree"
        )
    for what, now, none in (("unit", ref.unit, "plain numbers"), ("kind", ref.kind, "numbers")):
        if told.get(what) != now:
            raise Incomparable(
                f"{told.get(what) or none} in the golden files, {now or none} in {label}",
                fix="types and units must agree; save again where twinrun did not keep them yet",
            )
    if shape != ref.user_shape:
        raise Incomparable(
            f"shape {list(shape)} in the golden files, {list(ref.user_shape)} in {label}",
            fix="shapes must agree",
        )
    if known.digest != "linear":
        raise DamagedFile("holds digests of another kind", fix="save again with 'twinrun golden save'")


def check_field(
    golden: _core.Metadata,
    at: int,
    ref: FieldRef,
    place: Place,
    atol: float,
    rtol: float,
    *,
    label: str,
    most_listed: int = 100,
    threads: int = 0,
    memory: int = 1 << 28,
    io: str = "auto",
) -> GoldenField:
    """Compares a field with the golden digests of field number `at`.

    An element differs where |a-b| > atol + rtol |a|.

    label: names the run in messages. most_listed: elements, and chunks, to list. Raises Incomparable,
    DamagedFile, and what reading the field raises.
    """
    known = golden.fields[at]
    ref = in_type(ref, known.dtype)
    _alike(known, _told(golden)[0].get(known.name, {}), ref, label)
    ref = read_by_column(ref) if known.fortran_order else read_by_row(ref)
    source = ref.source()
    if source is None:
        raise Incomparable("only its metadata is at hand, and golden checks read data", where=ref.where)
    rule = _rule_of(known)
    per_item = 2 if ref.dtype in ("c64", "c128") else 1
    scalar_bytes = ref.itemsize // per_item
    chunk_scalars = known.chunk_bytes // scalar_bytes
    result = GoldenField(
        step=place[0],
        rank=place[1],
        field=ref.name,
        dtype=ref.dtype,
        shape=ref.user_shape,
        atol=atol,
        rtol=rtol,
        elements=ref.items * per_item,
        bytes=ref.items * ref.itemsize,
        chunks=known.chunks,
        residue_bits=rule.bits,
        cell=float(np.ldexp(1.0, rule.exponent)) if rule.kind == "absolute" else 0.0,
        kind=ref.kind,
    )
    plan = field_plan(ref, None, atol=known.atol, rtol=known.rtol, residue_bits=known.residue_bits,
                      chunk_bytes=known.chunk_bytes, digest="linear")  # fmt: skip
    with _moment(result.bytes) as folder:
        target = os.path.join(folder, "now.twm")
        build(target, [ref], [], lambda _: plan, threads=threads, memory=memory, io=io)
        now = _core.Metadata(target)
        facts = now.fields[0]
        if _rule_of(facts) != rule or facts.chunks != known.chunks:
            raise TwinrunError("digests were made under another rule than the golden ones", where=golden.path)
        fine_a, fine_b = _digests(golden, at, known), _digests(now, 0, facts)
        open_chunks = _open_chunks(golden, at, now, fine_a, fine_b, rule, result)
        sides = None
        if rule.bits and open_chunks.size:
            sides = [np.frombuffer(m.section(i, "residues"), np.uint8) for m, i in ((golden, at), (now, 0))]
        block = 4096 // scalar_bytes
        lines = (chunk_scalars // block) * -(-block * rule.bits // 512) * 64 if rule.bits else 0
        for chunk in open_chunks.tolist():
            first = chunk * chunk_scalars
            n = min(chunk_scalars, result.elements - first)
            raw = bytes(_core.read_source(source, first // per_item, n // per_item))
            x = _values(raw, ref.dtype)
            residues: list[np.ndarray | None] = [None, None]
            if sides is not None:
                residues = [
                    _residues(s[chunk * lines : (chunk + 1) * lines], n, block, rule.bits) for s in sides
                ]
            s = settle(
                x, residues[0], residues[1], int(fine_a[chunk]), int(fine_b[chunk]), rule, atol, rtol, block
            )
            _add(result, s, x, first, ref, most_listed)
    if known.fortran_order:
        result.listed.sort(key=lambda e: e.index)
    return result


def _open_chunks(
    golden: _core.Metadata,
    at: int,
    now: _core.Metadata,
    fine_a: np.ndarray,
    fine_b: np.ndarray,
    rule: Rule,
    result: GoldenField,
) -> np.ndarray:
    """The chunks that equal digests, or the core's proof, leave open; proofs for the others go into the
    result.
    """
    atol, rtol = result.atol, result.rtol
    integers = result.dtype not in FLOATING
    equal = fine_a == fine_b
    if rule.kind == "absolute" and rule.bits and not integers and rtol == 0 and atol >= result.cell:
        (one,), (other,) = _core.load_sketches(golden, [at], -1), _core.load_sketches(now, [0], -1)
        found = _core.compare_sketches([(one, other, atol, 0.0)], True)[0]
        widest = max((c for c, n in enumerate(found.proven_by_cells) if n), default=0)
        proven = max(found.coarse_cell if found.proven_by_tree else 0.0, (widest + 1) * result.cell)
        result.at_most = min(proven, atol) if found.proven_by_tree + sum(found.proven_by_cells) else 0.0
        result.at_least = max(result.at_least, (widest - 1) * result.cell if widest > 1 else 0.0)
        return np.frombuffer(found.open, np.uint32)
    if equal.any() and equal_cells_prove(rule, atol, rtol, integers):
        if rule.kind == "absolute" and not (integers and rule.exponent <= 0):
            result.at_most = min(result.cell, atol)
        elif rule.kind == "relative":
            result.at_most = None
        return np.flatnonzero(~equal)
    return np.arange(fine_a.size)


def _number(value: np.generic) -> float | int:
    return value.item()


def _add(result: GoldenField, s: Settled, x: np.ndarray, first: int, ref: FieldRef, most: int) -> None:
    """Adds the result of one chunk."""
    result.different += s.different
    undecided = int((s.state == UNDECIDED).sum()) if s.exact else 0
    if s.exact:
        result.undecided += undecided
        result.different_is_exact &= undecided == 0  # each of them may differ
        result.at_least = max(result.at_least, float(s.least.max(initial=0.0)))
        if result.at_most is not None:
            result.at_most = max(result.at_most, float(s.most.max(initial=0.0)))
    else:
        result.at_most = None
        result.different_is_exact = False
        if s.different:
            result.at_least = max(result.at_least, result.atol)
    if s.verdict == SAME:
        return
    if s.verdict == DIFFERENT:
        result.chunks_different += 1
    elif not s.exact:
        result.chunks_undecided += 1
    said = "different" if s.verdict == DIFFERENT else "undecided"
    last = first + x.size - 1
    span = GoldenSpan(
        first, last, ref.index(first), ref.index(last), s.different, s.exact, s.located, said, undecided
    )
    result.spans_left_out += _list(result.spans, span, most)
    telling = np.flatnonzero((s.state == DIFFERENT) | (s.state == UNDECIDED))
    room = max(most - len(result.listed), 0)
    shown = telling[:room].tolist()
    # A span that differs is listed even where the list is full, because reports name it first.
    if not any(e.verdict == "different" for e in result.listed) and DIFFERENT not in s.state[shown]:
        shown += np.flatnonzero(s.state == DIFFERENT)[:1].tolist()
    for i in shown:
        element = GoldenElement(
            ref.index(first + i),
            _number(x[i]) if ref.tell is None else ref.tell(first + i),
            int(s.cells[i]) if s.exact else None,
            float(s.least[i]) if s.exact else result.atol,
            float(s.most[i]),
            "different" if s.state[i] == DIFFERENT else "undecided",
        )
        _list(result.listed, element, most)
    result.listed_left_out += max(telling.size - room, 0)


def _list(listed: list, entry: GoldenElement | GoldenSpan, most: int) -> int:
    """Lists an entry where there is room, or instead of the last one if it is the first that differs.

    Returns how many are left out.
    """
    if len(listed) < most:
        listed.append(entry)
        return 0
    if entry.verdict == "different" and all(e.verdict != "different" for e in listed):
        listed[-1] = entry
    return 1
