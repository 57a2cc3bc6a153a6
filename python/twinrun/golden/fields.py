"""One field: its golden digests, and its check against them."""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from .. import _core
from ..errors import DamagedFile, Incomparable, TwinrunError
from ..formats.element_types import FLOATING, scalar_bytes, scalar_values, scalars_of
from ..formats.texts import SUFFIX
from ..runs.fields import FieldRef, label_refs
from ..runs.index import build, field_plan
from ..runs.order import in_type, read_by_column, read_by_row
from ..runs.subject import Place
from .digests import Digests
from .plan import digest_settings
from .proof import DIFFERENT, SAME, UNDECIDED, Rule, Settled, equal_cells_prove, settle
from .result import GoldenElement, GoldenField, GoldenSpan

__all__ = [
    "alike",
    "check_field",
    "described",
    "golden_bytes",
    "kind_of",
    "readable",
    "told",
    "values_of",
]

_MEMORY = "/dev/shm"


@contextlib.contextmanager
def _moment(data_bytes: int) -> Iterator[str]:
    """A temporary folder for digests of this many bytes of data: in memory, where there is room."""
    folder = None
    with contextlib.suppress(OSError):
        room = os.statvfs(_MEMORY)
        if data_bytes < room.f_bavail * room.f_frsize // 4 and os.access(_MEMORY, os.W_OK):
            folder = _MEMORY
    try:
        made = tempfile.TemporaryDirectory(prefix="twinrun-", dir=folder, ignore_cleanup_errors=True)
    except OSError as e:
        raise TwinrunError(
            f"no folder for digests can be made in it: {e.strerror or e}",
            where=folder or tempfile.gettempdir(),
            fix="make room, or name another folder with TMPDIR",
        ) from None
    with made as name:
        yield name


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


def _digests(metadata: Digests, at: int, facts: _core.FieldFacts) -> np.ndarray:
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


def values_of(raw: bytes, dtype: str) -> np.ndarray:
    """Scalars in numpy types that hold every value: floats or integers; complex numbers as pairs."""
    values = scalar_values(np.frombuffer(raw, np.uint8), dtype)
    return (values != 0).astype(np.uint8) if dtype == "bool" else values


def _rule_of(facts: _core.FieldFacts) -> Rule:
    kind = "tokens" if facts.exact else facts.cells
    origin = facts.atol / facts.rtol if kind == "relative" and facts.atol > 0 else 0.0
    return Rule(kind, facts.residue_bits, facts.fine_exponent, origin)


def kind_of(ref: FieldRef) -> str | None:
    """What elements are that are no numbers: digests of texts, known by their name, are none either."""
    return ref.kind or ("text" if ref.name.endswith(SUFFIX) else None)


def told(ref: FieldRef, index: tuple[int, ...], scalar: int) -> str | None:
    """An element that is no number as text for people; None where the run does not say it."""
    if ref.tell is not None:
        return ref.tell(scalar)
    if ref.text is not None and ref.name.endswith(SUFFIX):
        return f"{ref.text(index):.200}"
    return None


def readable(ref: FieldRef) -> _core.Source:
    """The data of a field. Raises Incomparable where there is only metadata."""
    source = ref.source()
    if source is None:
        raise Incomparable("only its metadata is available, and golden checks read data", where=ref.where)
    return source


def alike(known: _core.FieldFacts, told: Mapping[str, str], ref: FieldRef, label: str) -> None:
    """Raises Incomparable where a field is of another type, unit or shape than the golden one.

    told: what labels say of the golden field.
    """
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
    golden: Digests,
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
    """Compares a field with the golden digests of field number `at`. The result has the name that was saved.

    An element differs where |a-b| > atol + rtol |a|.

    label: names the run in messages. most_listed: elements, and chunks, to list. Raises Incomparable,
    DamagedFile, and what reading the field raises.
    """
    known = golden.fields[at]
    ref = in_type(ref, known.dtype)
    alike(known, golden.labels.get(known.name, {}), ref, label)
    ref = read_by_column(ref) if known.fortran_order else read_by_row(ref)
    readable(ref)
    rule = _rule_of(known)
    per_item = scalars_of(ref.dtype)
    with _digested({known.name: ref}, golden, threads=threads, memory=memory, io=io) as now:
        sides = _Sides(golden, at, now, rule)
        opened = _open_chunks(sides, atol, rtol, known.dtype not in FLOATING)
        tally = _Tally(atol, most_listed, opened.at_least, opened.at_most)
        for first, x, settled in _settled(sides, opened.chunks, ref, atol, rtol):
            tally.add(settled, x, first, ref)
    kind = kind_of(ref)
    if kind is not None:
        tally.forget_distances()
    if known.fortran_order:
        tally.listed.sort(key=lambda e: e.index)
    return GoldenField(
        step=place[0],
        rank=place[1],
        field=known.name,
        dtype=ref.dtype,
        shape=ref.user_shape,
        atol=atol,
        rtol=rtol,
        elements=ref.items * per_item,
        bytes=ref.items * ref.itemsize,
        chunks=known.chunks,
        residue_bits=rule.bits,
        cell=_cell(rule),
        kind=kind,
        unit=ref.unit,
        **tally.facts(),
    )


@contextlib.contextmanager
def _digested(refs: Mapping[str, FieldRef], golden: Digests, **reading: Any) -> Iterator[Digests]:
    """The digests of fields, made as the golden ones of these names were. reading: threads, memory, io."""

    def plan(ref: FieldRef) -> _core.FieldPlan:
        like = golden.fields[golden.numbers[names[id(ref)]]]
        return field_plan(ref, None, atol=like.atol, rtol=like.rtol, residue_bits=like.residue_bits,
                          chunk_bytes=like.chunk_bytes, digest="linear", tokens=like.outdated)  # fmt: skip

    names = {id(ref): name for name, ref in refs.items()}
    with _moment(sum(ref.items * ref.itemsize for ref in refs.values())) as folder:
        target = os.path.join(folder, "now.twm")
        build(target, list(refs.values()), [], plan, **reading)
        yield Digests(_core.Metadata(target))


def described(golden: Digests, refs: Mapping[str, FieldRef]) -> set[str]:
    """The names of those fields whose golden digests are those of these elements, bit for bit."""
    if not refs:
        return set()
    with _digested(refs, golden) as now:
        return {
            name
            for at, name in enumerate(refs)
            if all(
                golden.section(golden.numbers[name], section) == now.section(at, section)
                for section in ("tree", "fine", "residues")
            )
        }


def _cell(rule: Rule) -> float:
    """The width of a cell; 0 where the rule has none."""
    return float(np.ldexp(1.0, rule.exponent)) if rule.kind == "absolute" else 0.0


class _Sides:
    """The digests of a field, saved and of the run, under one rule."""

    def __init__(self, golden: Digests, at: int, now: Digests, rule: Rule) -> None:
        self.golden, self.at, self.now, self.rule = golden, at, now, rule
        self.known = golden.fields[at]
        facts = now.fields[0]
        if _rule_of(facts) != rule or facts.chunks != self.known.chunks:
            raise TwinrunError("digests were made under another rule than the golden ones", where=golden.path)
        self.fine_a = _digests(golden, at, self.known)
        self.fine_b = _digests(now, 0, facts)

    def residues(self) -> list[np.ndarray]:
        """The packed residues of both."""
        sides = (self.golden, self.at), (self.now, 0)
        return [np.frombuffer(metadata.section(at, "residues"), np.uint8) for metadata, at in sides]


def _settled(
    sides: _Sides, chunks: np.ndarray, ref: FieldRef, atol: float, rtol: float
) -> Iterator[tuple[int, np.ndarray, Settled]]:
    """Reads chunks and settles each: its first scalar, its scalars, and what is known of them."""
    rule, source = sides.rule, ref.need_source()
    per_item = scalars_of(ref.dtype)
    scalars = ref.items * per_item
    size = scalar_bytes(ref.dtype)
    chunk_scalars = sides.known.chunk_bytes // size
    block = 4096 // size
    chunk_lines = (chunk_scalars // block) * -(-block * rule.bits // 512) * 64 if rule.bits else 0
    packed = sides.residues() if rule.bits and chunks.size else None
    for chunk in chunks.tolist():
        first = chunk * chunk_scalars
        n = min(chunk_scalars, scalars - first)
        x = values_of(bytes(_core.read_source(source, first // per_item, n // per_item)), ref.dtype)
        residues: list[np.ndarray | None] = [None, None]
        if packed is not None:
            lines = slice(chunk * chunk_lines, (chunk + 1) * chunk_lines)
            residues = [_residues(side[lines], n, block, rule.bits) for side in packed]
        a, b = int(sides.fine_a[chunk]), int(sides.fine_b[chunk])
        yield first, x, settle(x, residues[0], residues[1], a, b, rule, atol, rtol, block)


@dataclass(frozen=True)
class _OpenChunks:
    """Chunks that digests alone do not settle, and bounds of the largest |a - b| in the others."""

    chunks: np.ndarray
    at_least: float = 0.0
    at_most: float | None = 0.0


def _open_chunks(sides: _Sides, atol: float, rtol: float, integers: bool) -> _OpenChunks:
    """The chunks that neither equal digests nor the core's proof settle."""
    rule, cell = sides.rule, _cell(sides.rule)
    equal = sides.fine_a == sides.fine_b
    if rule.kind == "absolute" and rule.bits and not integers and rtol == 0 and atol >= cell:
        one = sides.golden.sketch(sides.at)
        other = sides.now.sketch(0)
        found = _core.compare_sketches(a=[one], b=[other], tolerances=[_core.Tolerance(atol)])[0]
        widest = max((c for c, n in enumerate(found.proven_by_cells) if n), default=0)
        proven = max(found.coarse_cell if found.proven_by_tree else 0.0, (widest + 1) * cell)
        return _OpenChunks(
            np.frombuffer(found.open, np.uint32),
            at_least=(widest - 1) * cell if widest > 1 else 0.0,
            at_most=min(proven, atol) if found.proven_by_tree + sum(found.proven_by_cells) else 0.0,
        )
    if not equal.any() or not equal_cells_prove(rule, atol, rtol, integers):
        return _OpenChunks(np.arange(equal.size))
    at_most: float | None = 0.0
    if rule.kind == "absolute" and not (integers and rule.exponent <= 0):
        at_most = min(cell, atol)
    elif rule.kind == "relative":
        at_most = None
    return _OpenChunks(np.flatnonzero(~equal), at_most=at_most)


@dataclass
class _Tally:
    """What the chunks of a field add up to: the facts of `GoldenField` that depend on values.

    Begins with what is known of the chunks that need no reading. atol: the tolerance. most: how many spans,
    and how many elements, are listed.
    """

    atol: float
    most: int
    at_least: float
    at_most: float | None
    different: int = 0
    different_is_exact: bool = True
    undecided: int = 0
    chunks_different: int = 0
    chunks_undecided: int = 0
    spans: list[GoldenSpan] = field(default_factory=list)
    spans_left_out: int = 0
    listed: list[GoldenElement] = field(default_factory=list)
    listed_left_out: int = 0

    def facts(self) -> dict[str, Any]:
        """The facts by the names that `GoldenField` has for them."""
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("atol", "most")}
        if math.isinf(self.at_least):
            found["at_most"] = math.inf
        return found

    def add(self, s: Settled, x: np.ndarray, first: int, ref: FieldRef) -> None:
        """Adds a chunk. x: its scalars. first: the number of the first one."""
        self.different += s.different
        undecided = int((s.state == UNDECIDED).sum()) if s.exact else 0
        if s.exact:
            self.undecided += undecided
            self.different_is_exact &= undecided == 0  # each of them may differ
            self.at_least = max(self.at_least, float(s.least.max(initial=0.0)))
            if self.at_most is not None:
                self.at_most = max(self.at_most, float(s.most.max(initial=0.0)))
        else:
            self.at_most = None
            self.different_is_exact = False
            if s.different:
                self.at_least = max(self.at_least, self.atol, float(s.least.max(initial=0.0)))
        if s.verdict == SAME:
            return
        if s.verdict == DIFFERENT:
            self.chunks_different += 1
        elif not s.exact:
            self.chunks_undecided += 1
        self._list_span(s, x.size, first, undecided, ref)
        self._list_elements(s, x, first, ref)

    def forget_distances(self) -> None:
        """Takes out what is known of |a - b|: elements that are no numbers have none."""
        self.at_least, self.at_most = 0.0, None if self.chunks_different or self.chunks_undecided else 0.0
        self.listed = [replace(e, at_least=0.0, at_most=math.inf) for e in self.listed]

    def _list_span(self, s: Settled, size: int, first: int, undecided: int, ref: FieldRef) -> None:
        said = "different" if s.verdict == DIFFERENT else "undecided"
        last = first + size - 1
        span = GoldenSpan(
            first, last, ref.index(first), ref.index(last), s.different, s.exact, s.located, said, undecided
        )
        if len(self.spans) < self.most:
            self.spans.append(span)
            return
        self.spans_left_out += 1
        if _is_first_different(span, self.spans):
            self.spans[-1] = span

    def _list_elements(self, s: Settled, x: np.ndarray, first: int, ref: FieldRef) -> None:
        telling = np.flatnonzero((s.state == DIFFERENT) | (s.state == UNDECIDED))
        room = max(self.most - len(self.listed), 0)
        shown = telling[:room].tolist()
        # An element that differs is listed even where the list is full, because reports name it
        # first.
        if not any(e.verdict == "different" for e in self.listed) and DIFFERENT not in s.state[shown]:
            shown += np.flatnonzero(s.state == DIFFERENT)[:1].tolist()
        for i in shown:
            index = ref.index(first + i)
            said = told(ref, index, first + i)
            element = GoldenElement(
                index,
                x[i].item() if said is None else said,
                int(s.cells[i]) if s.exact else None,
                float(s.least[i]),
                float(s.most[i]),
                "different" if s.state[i] == DIFFERENT else "undecided",
            )
            if len(self.listed) < self.most:
                self.listed.append(element)
            elif _is_first_different(element, self.listed):
                self.listed[-1] = element
        self.listed_left_out += max(telling.size - room, 0)


def _is_first_different(entry: GoldenElement | GoldenSpan, listed: list) -> bool:
    """Whether an entry is the first that differs; it then takes the last place of a full list."""
    return bool(listed) and entry.verdict == "different" and all(e.verdict != "different" for e in listed)
