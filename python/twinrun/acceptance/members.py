"""All runs of an acceptance, opened side by side: the same steps, the same fields, the same elements.

What only some of the runs have is an error: nothing that is missing is ever accepted.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from .. import _core
from ..comparison.matching import fields_named, names, steps_named
from ..errors import Incomparable, TwinrunError, Unmatched
from ..formats.element_types import COMPLEX, FLOATING, storage_dtype, widened
from ..formats.texts import names_to_choose
from ..marks import TRACE_EVENTS
from ..runs.fields import FieldRef
from ..runs.opening import open_subject, without_effect
from ..runs.order import read_by_row
from ..runs.particles import find_particles, read_ids
from ..runs.parts import Parts
from ..runs.subject import Opened, Subject

__all__ = ["Column", "Members", "NoData", "open_members", "read_whole", "trace_fields"]

_ROUNDING = {
    "f16": 2.0**-11,
    "bf16": 2.0**-8,
    "f32": 2.0**-24,
    "c64": 2.0**-24,
    "f64": 2.0**-53,
    "c128": 2.0**-53,
}
_PIECE = 1 << 18  # elements of a run at a time, at most
_LEAST_PIECE = 1 << 10

Held = dict[str, list[tuple[int, FieldRef]]]  # of one run at one step: {field: [(rank, part)]}


class NoData(Incomparable):
    """Of a field at a step, a run has metadata only."""


@dataclass
class Column:
    """One field at one step in all runs.

    matched: how elements of different runs belong together: 'place', 'ID', or None where nothing is known.
    """

    step: int | None
    name: str
    rounding: float
    matched: str | None
    pieces: Callable[[], Iterator[np.ndarray]]


@dataclass
class Members:
    """The runs, the reference runs first.

    labels: their names. references: how many are reference runs. steps: of every run. notes: what
    the user should know. seen: a digest of everything that was read, for each run: equal digests
    are equal runs.
    """

    labels: list[str]
    subjects: list[Subject]
    references: int
    steps: list[int | None]
    memory: int
    key: str
    chosen: Callable[[str], bool]
    notes: list[str] = field(default_factory=list)
    seen: list[Digest] = field(default_factory=list)

    def columns(self, step: int | None) -> Iterator[Column]:
        """The fields of a step; each must be read before the next is asked for."""
        with contextlib.ExitStack() as stack:
            held = _one_name([self._held(stack, subject, step) for subject in self.subjects], self.subjects)
            self._check_names(held, step)
            kinds = [self._by_id(one) for one in held]
            for name in held[0]:
                if not self.chosen(name):
                    continue
                yield self._column(
                    step, name, [one[name] for one in held], [kind.get(name) for kind in kinds]
                )

    def not_numbers(self) -> list[tuple[int | None, str, int, int]]:
        """Where metadata alone shows that a new run has NaN and that all values of the reference
        runs are numbers.

        (step, field, run, how many) of each. Cells count as numbers, and only what has no cell is a
        token. Metadata does not distinguish infinity from large numbers, and at tolerance 0 it
        distinguishes nothing: then the list is empty.
        """
        found: list[tuple[int | None, str, int, int]] = []
        for step in self.steps:
            with contextlib.ExitStack() as stack:
                held = _one_name(
                    [self._held(stack, subject, step) for subject in self.subjects], self.subjects
                )
                self._check_names(held, step)
                for name in filter(self.chosen, held[0]):
                    runs = [[ref for _, ref in one[name]] for one in held]
                    if len({sum(ref.items for ref in run) for run in runs}) > 1:
                        continue
                    if any(_tokens(run) != 0 for run in runs[: self.references]):
                        continue
                    for number, run in enumerate(runs[self.references :], self.references):
                        nans = sum(0 if ref.facts is None else ref.facts.nans for ref in run)
                        if nans:
                            found.append((step, name, number, nans))
        return found

    def _with_data(self) -> str:
        """The advice where a step has metadata only: the steps that have data in all runs, or how
        to capture them.
        """
        again = "capture the runs with their data, and keep it at the steps that are to be judged"
        if any(subject.kind != "history" for subject in self.subjects):
            return f"choose steps that have data, with --steps; or {again}"
        steps = [
            step
            for step in self.steps
            if all(_has_data(s.entry(place)) for s in self.subjects for place in s.places if place[0] == step)
        ]
        if not steps:
            return again
        first = ",".join(map(str, steps[:8])) + (" and more" if len(steps) > 8 else "")
        return f"choose steps that have data in all runs, with --steps: {first}; or {again}"

    def _held(self, stack: contextlib.ExitStack, subject: Subject, step: int | None) -> Held:
        found: Held = {}
        for place in subject.places:
            if place[0] != step:
                continue
            opened: Opened = stack.enter_context(subject.open(place, use_metadata=subject.kind == "history"))
            for name, where, why in opened.skipped:
                if self.chosen(name):
                    raise Incomparable(
                        f"{name} cannot be read: {why}", where=where, fix="leave it out with --leave-out"
                    )
            traced = trace_fields(opened)
            if traced:
                self._note("traces are not tested: twinrun.compare_traces compares them")
            for name, ref in opened.items():
                if name in traced:
                    continue
                if _is_text(ref):
                    self._note(
                        f"texts and codes such as {name!r} are not tested: twinrun compare compares them"
                    )
                else:
                    found.setdefault(name, []).append((place[1], ref))
            if opened.facts:
                self._note("attributes of files are not tested: twinrun compare compares them")
        return found

    def _note(self, text: str) -> None:
        if not any(note[:20] == text[:20] for note in self.notes):
            self.notes.append(text)

    def _check_names(self, held: Sequence[Held], step: int | None) -> None:
        everywhere = {name for one in held for name in one if self.chosen(name)}
        for label, one in zip(self.labels, held, strict=True):
            missing = sorted(everywhere - set(one))
            if missing:
                raise Unmatched(
                    f"{_at(step)}{fields_named(missing)} of other runs: not there", where=label,
                    fix="leave the field out with --leave-out, or the run",
                )  # fmt: skip
        if not everywhere and any(held):
            raise Incomparable(f"{_at(step)}no field was chosen", where=self.labels[0], fix="check --field")

    def _by_id(self, held: Held) -> dict[str, list[tuple[FieldRef, FieldRef]]]:
        """{field: [(IDs, field)] by rank} of the fields of particles."""
        ranks: dict[int, dict[str, FieldRef]] = {}
        for name, parts in held.items():
            for rank, ref in parts:
                ranks.setdefault(rank, {})[name] = ref
        found: dict[str, list[tuple[FieldRef, FieldRef]]] = {}
        for key, kind in find_particles((sorted(ranks.items()), ()), self.key).items():
            for _, ids, own in kind.parts_a:
                for name, ref in {**own, key: ids}.items():
                    found.setdefault(name, []).append((ids, ref))
        return found

    def _column(
        self,
        step: int | None,
        name: str,
        parts: list[list[tuple[int, FieldRef]]],
        by_id: list[list[tuple[FieldRef, FieldRef]] | None],
    ) -> Column:
        what = f"{_at(step)}field {name!r}"
        types = {ref.dtype for run in parts for _, ref in run}
        if len(types) > 1 and (not types <= FLOATING or _pairs(types)):
            raise Incomparable(f"{what}: {names(sorted(types))} in different runs", fix="types must agree")
        if len(types) > 1:
            self._note(f"element types differ between runs, as {' and '.join(sorted(types))} of {name!r}")
        rounding = max(_ROUNDING.get(dtype, 0.0) for dtype in types)
        counts = [sum(ref.items for _, ref in run) for run in parts]
        for label, count in zip(self.labels, counts, strict=True):
            if count != counts[0]:
                raise Unmatched(
                    f"{what}: {count} elements, where {self.labels[0]} has {counts[0]}", where=label,
                    fix="the runs must hold the same elements",
                )  # fmt: skip
        for run, label in zip(parts, self.labels, strict=True):
            for _, ref in run:
                if ref.no_data:
                    raise NoData(
                        f"{what}: only its metadata is there, which bounds no growth and has no mean", where=label,
                        fix=self._with_data(),
                    )  # fmt: skip
        if all(by_id) and all(len(one or ()) == len(run) for one, run in zip(by_id, parts, strict=True)):
            pairs = [one for one in by_id if one]
            return Column(step, name, rounding, "ID", lambda: self._sorted(what, name, pairs))
        shapes = [[(rank, ref.user_shape) for rank, ref in run] for run in parts]
        if any(shape != shapes[0] for shape in shapes):
            if all(ref.place is not None for run in parts for _, ref in run):
                joined = [
                    self._whole(name, run, label) for run, label in zip(parts, self.labels, strict=True)
                ]
                return Column(step, name, rounding, "place", lambda: self._pieces([[ref] for ref in joined]))
            if len({tuple(shape for _, shape in run) for run in shapes}) > 1:
                self._note(
                    f"the runs divide {name!r} among ranks otherwise, without IDs: only statistics of it are tested"
                )
                return Column(step, name, rounding, None, lambda: self._pieces(_refs(parts)))
        return Column(step, name, rounding, "place", lambda: self._pieces(_refs(_one_order(parts))))

    def _whole(self, name: str, run: list[tuple[int, FieldRef]], label: str) -> FieldRef:
        rows = [(rank, read_by_row(ref) if ref.fortran_order else ref) for rank, ref in run]
        return Parts(name, rows, label).field()

    def _pieces(self, runs: list[list[FieldRef]]) -> Iterator[np.ndarray]:
        """The elements of all runs, piece by piece: (runs, elements)."""
        size = max(_LEAST_PIECE, min(_PIECE, self.memory // (64 * len(runs))))
        streams = [_elements(run, size, seen) for run, seen in zip(runs, self.seen, strict=True)]
        yield from map(np.stack, zip(*streams, strict=True))

    def _sorted(
        self, what: str, name: str, runs: list[list[tuple[FieldRef, FieldRef]]]
    ) -> Iterator[np.ndarray]:
        """The elements of all runs in the order of their IDs: in memory as a whole."""
        needed = 24 * len(runs) * sum(ref.items for _, ref in runs[0])
        if needed > self.memory:
            raise TwinrunError(
                f"{what}: {needed >> 20} MiB are needed to bring all runs into the order of their IDs",
                fix="give a larger --memory, or fewer fields",
            )
        rows, first = [], None
        for run, label, seen in zip(runs, self.labels, self.seen, strict=True):
            ids = np.concatenate([read_ids(key) for key, _ in run])
            order = np.argsort(ids, kind="stable")
            ids = ids[order]
            if (ids[1:] == ids[:-1]).any():
                raise Incomparable(
                    f"{what}: its IDs are not unique",
                    where=label,
                    fix="choose others with --key, or --key none",
                )
            if first is not None and not np.array_equal(ids, first):
                raise Unmatched(
                    f"{what}: other IDs than in {self.labels[0]}",
                    where=label,
                    fix="particles were lost or born",
                )
            first = ids
            own = _read_all([ref for _, ref in run])
            values = own.reshape(len(ids), -1)[order].reshape(-1)
            seen.add("", values)
            rows.append(_numbers(values, run[0][1].dtype))
        yield np.stack(rows)


class Digest:
    """Of everything that a run holds, to find runs that are equal bit for bit."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, what: str, values: np.ndarray) -> None:
        self._hash.update(what.encode())
        self._hash.update(str(values.dtype).encode())
        self._hash.update(np.ascontiguousarray(values).view(np.uint8).data)

    @property
    def value(self) -> bytes:
        return self._hash.digest()


def trace_fields(fields: Collection[str]) -> set[str]:
    """The fields that describe what the run did up to this step. They are not part of its state,
    and their digests hold for that run alone.
    """
    if TRACE_EVENTS not in fields:
        return set()
    from ..runs.events import is_trace_field  # it needs msgspec

    return {name for name in fields if is_trace_field(name)}


def _has_data(entry: object) -> bool:
    """Whether a rank's step in a history has data. entry: as `Subject.entry` gives it."""
    _, files = cast("tuple[str, _core.RankFiles]", entry)
    return bool(files.data) or files.difference is not None


def _tokens(run: Sequence[FieldRef]) -> int | None:
    """How many scalars of a field have no cell, as NaN, infinities and very large numbers; None
    where that is unknown.
    """
    facts = [ref.facts for ref in run]
    total = 0
    for one in facts:
        if one is None or one.digest != "linear" or one.exact:
            return None
        total += one.tokens
    return total


def _at(step: int | None) -> str:
    return "" if step is None else f"step {step}: "


def _one_name(held: list[Held], subjects: Sequence[Subject]) -> list[Held]:
    """Where each run is a file with one array, the array's name is the file's: all get the first run's."""
    alone = all(len(one) == 1 for one in held) and all(s.kind == "file" for s in subjects)
    first = next(iter(held[0]), "")
    return [{first: next(iter(one.values()))} for one in held] if alone else held


def _is_text(ref: FieldRef) -> bool:
    return ref.kind is not None or ref.told_as_text or ref.text is not None


def _pairs(types: set[str]) -> bool:
    """Whether complex and real numbers stand side by side."""
    return len({dtype in COMPLEX for dtype in types}) > 1


def _refs(parts: list[list[tuple[int, FieldRef]]]) -> list[list[FieldRef]]:
    return [[ref for _, ref in sorted(run, key=lambda p: p[0])] for run in parts]


def _one_order(parts: list[list[tuple[int, FieldRef]]]) -> list[list[tuple[int, FieldRef]]]:
    """All in row-major order where the orders of storage differ."""
    orders = {ref.fortran_order for run in parts for _, ref in run if sum(n > 1 for n in ref.shape) > 1}
    if len(orders) < 2:
        return parts
    return [[(rank, read_by_row(ref) if ref.fortran_order else ref) for rank, ref in run] for run in parts]


def _numbers(values: np.ndarray, dtype: str) -> np.ndarray:
    """Elements as float64, of which a complex number is two; 64-bit integers as they are, since
    float64 does not hold all of them.
    """
    if dtype in ("i64", "u64"):
        return values.astype(values.dtype.newbyteorder("="))
    if dtype == "bf16":
        return widened(values).astype(np.float64)
    if dtype in COMPLEX:
        return np.ascontiguousarray(values).view(values.real.dtype).astype(np.float64)
    return values.astype(np.float64)


def _read(ref: FieldRef, source: _core.Source, first: int, count: int) -> np.ndarray:
    return _core.read_source(source, first, count).view(storage_dtype(ref.dtype))


def _read_all(refs: Sequence[FieldRef]) -> np.ndarray:
    return np.concatenate([_read(ref, ref.need_source(), 0, ref.items) for ref in refs])


def read_whole(ref: FieldRef) -> np.ndarray:
    """All elements of a field, in its shape."""
    flat = _read(ref, ref.need_source(), 0, ref.items)
    return flat.reshape(ref.shape).T if ref.fortran_order else flat.reshape(ref.shape)


def _elements(refs: Sequence[FieldRef], size: int, seen: Digest) -> Iterator[np.ndarray]:
    """The elements of the parts, in pieces of `size` that do not depend on how they are divided."""
    rest: list[np.ndarray] = []
    held = 0
    for ref in refs:
        if not ref.items:
            continue
        source = ref.need_source()
        first = 0
        while first < ref.items:
            count = min(size - held, ref.items - first)
            values = _read(ref, source, first, count)
            seen.add(str(ref.shape), values)
            rest.append(_numbers(values, ref.dtype))
            held += count
            first += count
            if held == size:
                yield np.concatenate(rest)
                rest, held = [], 0
    if held:
        yield np.concatenate(rest)


def _label(given: object, number: int, what: str) -> str:
    return os.fspath(given) if isinstance(given, (str, os.PathLike)) else f"{what} {number}"


def open_members(
    references: Sequence[object],
    new: Sequence[object],
    *,
    steps: Callable[[int | None], bool] | None,
    fields: Sequence[str] | None,
    leave_out: Sequence[str],
    key: str,
    memory: int,
    options: Mapping[str, object] | None,
) -> Members:
    """Opens all runs.

    Raises Unmatched where a run lacks a step of another, Incomparable where a run is named twice or
    nothing is left, and what opening a run raises.
    """
    given = [*references, *new]
    labels = [_label(one, k + 1, "reference") for k, one in enumerate(references)]
    labels += [_label(one, k + 1, "new run") for k, one in enumerate(new)]
    real = [os.path.realpath(one) if isinstance(one, (str, os.PathLike)) else None for one in given]
    for at, path in enumerate(real):
        if path is not None and path in real[:at]:
            raise Incomparable(
                "is named twice: a run is one draw, and counts once", where=labels[at], fix="name it once"
            )

    def chosen(name: str) -> bool:
        asked = names_to_choose(name)  # a field's mask is chosen with it
        if fields is not None and not any(fnmatch.fnmatchcase(n, glob) for n in asked for glob in fields):
            return False
        return not any(fnmatch.fnmatchcase(name, glob) for glob in leave_out)

    subjects = [open_subject(one, options) for one in given]
    unused = without_effect(subjects, options)
    for subject in subjects:
        for name, where, why in subject.skipped:
            if chosen(name):
                raise Incomparable(
                    f"{name} cannot be read: {why}", where=where, fix="leave it out with --leave-out"
                )
    every = [{step for step, _ in s.places if steps is None or steps(step)} for s in subjects]
    together = set().union(*every)
    for label, own in zip(labels, every, strict=True):
        missing = sorted((s for s in together - own), key=lambda s: -1 if s is None else s)
        if missing:
            said = "files without a step" if missing == [None] else steps_named(missing)
            raise Unmatched(
                f"{said} of other runs: not there",
                where=label,
                fix="choose steps that all runs have, with --steps",
            )
    if not together:
        raise Incomparable("no step is there, or none was chosen", where=labels[0], fix="check --steps")
    ordered = sorted(together, key=lambda s: (s is not None, s or 0))
    members = Members(labels, subjects, len(references), ordered, memory, key, chosen)
    members.notes += unused
    members.seen = [Digest() for _ in subjects]
    for subject in subjects:
        members.notes += [note for note in subject.notes if note not in members.notes]
    return members
