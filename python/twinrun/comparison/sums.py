"""Sums of digests: metadata that proves agreement however two runs cut an array or order their particles.

The metadata of a part holds what it adds to the digests of the whole, bucket by bucket. Added up over the
ranks of each run, these compare as the digests of one array: equal coarse sums prove a bucket, and so do
residues, brought into one order, that explain by how much the fine sums differ. A bucket that neither proves
is open, and elements decide there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from .. import _core
from ..errors import DamagedFile
from ..formats.element_types import scalars_of
from ..runs.fields import FieldRef
from ..runs.parts import Parts
from ..runs.subject import Place
from .merge import Found
from .ranges import FieldPart, compare_part
from .settings import Decision, Settings

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

__all__ = ["TwoSums", "compare_placed", "why_not"]

_STRETCH = 1 << 24  # scalars whose residues are in memory at a time
_METHODS = ("auto", "staged")


def _kind_of(ref: FieldRef) -> str | None:
    """What the sums of a field cover: 'place', 'ids', 'whole' (a whole array, which has its own digests), or
    nothing.
    """
    facts = ref.facts
    if ref.metadata is None or facts is None or facts.digest != "linear":
        return None
    if facts.sums is not None:
        return facts.sums.kind
    if facts.key:
        return None
    return "whole" if not facts.global_shape or facts.global_shape == facts.shape else None


def why_not(
    parts_a: Sequence[FieldRef],
    parts_b: Sequence[FieldRef],
    kind: str,
    decision: Decision,
    settings: Settings,
) -> str:
    """Why sums cannot compare these parts of two runs; empty: they can. kind: 'place' or 'ids'."""
    if settings.method not in _METHODS:
        return "another method was requested"
    if not parts_a or not parts_b:
        return "there are no elements"
    first = parts_a[0]
    for ref in (*parts_a, *parts_b):
        if ref.metadata is None:
            return f"{ref.where} has no metadata"
        if (ref.dtype, ref.fortran_order) != (first.dtype, first.fortran_order):
            return "types or orders of storage differ"
        own = _kind_of(ref)
        if own != kind and (kind != "place" or own != "whole"):
            return f"the metadata of {ref.where} holds no sums of digests"
        if own == "whole" and (ref.place is None or ref.place[0] != ref.shape):
            return f"the metadata of {ref.where} holds no sums of digests"
        reason = _core.why_not_staged(
            first.need_metadata(),
            first.metadata_field,
            ref.metadata,
            ref.metadata_field,
            decision.rule(),
        )
        if reason:
            return reason
    return ""


def _sums_of(parts: Sequence[FieldRef], kind: str) -> list[_core.BucketSums]:
    return [_core.read_sums(ref.need_metadata(), ref.metadata_field, _kind_of(ref) != kind) for ref in parts]


def _opened(parts: Sequence[FieldRef]) -> list[_core.Metadata]:
    return list({id(ref.metadata): ref.need_metadata() for ref in parts}.values())


class TwoSums:
    """The sums of one field of two runs, over all parts; which buckets they prove, the core decides.

    core: the sums. dtype, chunk_bytes: of the field.
    """

    def __init__(
        self, parts_a: Sequence[FieldRef], parts_b: Sequence[FieldRef], kind: str, decision: Decision
    ) -> None:
        start = time.perf_counter()
        facts = parts_a[0].facts
        assert facts is not None
        self.dtype, self.chunk_bytes = facts.dtype, facts.chunk_bytes
        self._metadata = _opened([*parts_a, *parts_b])
        before = self._bytes()
        self.core = _core.TwoSums(
            parts_a[0].need_metadata(),
            parts_a[0].metadata_field,
            _core.Tolerance(decision.atol, decision.rtol),
            _sums_of(parts_a, kind),
            _sums_of(parts_b, kind),
        )
        self._bytes_of_sums = self._bytes() - before
        self._seconds = time.perf_counter() - start
        self._open = self.core.count_open  # by coarse sums
        self._residues: _core.StageFacts | None = None

    def _bytes(self) -> int:
        return sum(m.bytes_read for m in self._metadata)

    def keep(self, scalars: Sequence[tuple[int, int]]) -> None:
        """Restricts the comparison to the buckets that hold these scalars: (first, count)."""
        self.core.keep(scalars)
        self._open = self.core.count_open

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Measures the reading of residues."""
        start, before = time.perf_counter(), self._bytes()
        known = self._residues or _core.StageFacts(chunks_in=self.core.count_open)
        yield
        self._residues = known + _core.StageFacts(
            bytes_read=self._bytes() - before, seconds=time.perf_counter() - start
        )

    def at(self, buckets: np.ndarray) -> np.ndarray:
        """The positions of buckets in `core.buckets`. Raises DamagedFile where a run has no sums of one."""
        at = self.core.at(buckets)
        if at is None:
            raise self._damaged()
        return at

    def settle(self, starts: np.ndarray, row_scalars: int, of_a: np.ndarray, of_b: np.ndarray) -> None:
        """Takes the residues of all rows of some buckets, and closes the buckets that they prove.

        starts: uint64, index of each row's first scalar in the whole array. of_a, of_b: uint8, one a scalar.
        """
        if not self.core.settle(starts, row_scalars, of_a, of_b):
            raise self._damaged()

    def _damaged(self) -> DamagedFile:
        return DamagedFile(
            "elements lie where the metadata has no sums of digests",
            where=self._metadata[0].path,
            fix="index the data again",
        )

    def contradicted(self, found: Found, what: str) -> DamagedFile | None:
        """The error where sums differ though all elements that they are of are equal; else None.

        found: the comparison of all elements that were left open. Equal elements have equal digests.
        """
        read = found.result
        if not self.core.count_open or read.different or read.max_abs_read:
            return None
        return DamagedFile(
            f"{what}: sums of digests of both runs differ, and the data is equal: the data of one of them is not what "
            "was digested",
            fix="twinrun verify finds which",
        )

    def result(self, found: Found, scalars: int, by_tree: int) -> Found:
        """Extends the result for the elements that were read to all elements.

        by_tree: scalars in buckets of equal sums.
        """
        tree = _core.StageFacts(
            chunks_in=self.core.count,
            chunks_out=self._open,
            bytes_read=self._bytes_of_sums,
            seconds=self._seconds,
        )
        sketch = _core.StageFacts(ran=False)
        if self._residues is not None:
            sketch = self._residues + _core.StageFacts(chunks_out=self.core.count_open)
        whole = _core.with_sums(found.result, self.core, scalars, by_tree, tree, sketch)
        return replace(found, result=whole)


def compare_placed(
    a: FieldRef,
    b: FieldRef,
    place: Place,
    settings: Settings,
    ranges: Sequence[tuple[int, int]] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> FieldPart:
    """Compares a field that two runs cut differently, as the global array that its parts are parts of.

    a, b: from `Parts.field`. ranges: (first scalar, count); both ends are multiples of a megabyte, or the
    end. Uses sums of digests where every part has them, else elements. Raises what `compare_part` raises.
    """
    start = time.perf_counter()
    x, y = a.parts, b.parts
    assert isinstance(x, Parts) and isinstance(y, Parts)
    decision = settings.decision(a, b, place[0])
    pair = scalars_of(a.dtype)
    scalars = a.items * pair
    asked = [(0, scalars)] if ranges is None else list(ranges)
    wanted = sum(n for _, n in asked)
    cuts = f"cut into {x.count} parts in one run, {y.count} in the other"
    without = why_not(x.refs, y.refs, "place", decision, settings)
    if without:
        for of_run in (x, y):
            of_run.check_data(without)
        part = compare_part(a, b, place, settings, ranges, progress)
        part.found = _read_by_parts(part.found, 2 * wanted // pair * a.itemsize)
        part.reason = f"{cuts}: elements, as {without}"
    else:
        sums = TwoSums(x.refs, y.refs, "place", decision)
        every = -(-scalars // sums.core.bucket_scalars)
        sums.at(np.arange(every, dtype=np.uint64))
        if sums.core.count > every:
            raise DamagedFile(
                "has sums of digests beyond the array", where=x.label, fix="index the data again"
            )
        if ranges is not None:
            sums.keep(asked)
        open_before = sums.core.open_scalars(scalars)
        by_tree = wanted - sum(n for _, n in open_before)
        if open_before and sums.core.residues_help:
            _settle_stretches(sums, x, y, open_before, pair)
        left = sums.core.open_scalars(scalars)
        for of_run in (x, y) if left else ():
            of_run.check_data()
        part = compare_part(a, b, place, replace(settings, method="direct"), left, progress)
        if left and (error := sums.contradicted(part.found, f"field {a.name!r}")) is not None:
            raise error
        found = _read_by_parts(part.found, 2 * sum(n for _, n in left) * a.itemsize // pair)
        part.found = sums.result(found, wanted, by_tree)
        part.first = asked[0][0] if asked else 0
        part.reason = f"{cuts}: by sums of digests"
    part.ranks, part.boxes = max(x.count, y.count), (x.boxes, y.boxes)
    part.seconds = time.perf_counter() - start
    return part


def _read_by_parts(found: Found, bytes_read: int) -> Found:
    """A result for elements that the parts' own sources read, of which the core knows nothing."""
    return replace(found, result=found.result.with_bytes_of_elements(bytes_read))


def _settle_stretches(
    sums: TwoSums, x: Parts, y: Parts, stretches: Sequence[tuple[int, int]], pair: int
) -> None:
    """Residues of stretches of the array, a few at a time."""
    size = sums.core.bucket_scalars
    piece = max(1, _STRETCH // size) * size
    with sums.reading():
        for begin, count in stretches:
            for first in range(begin, begin + count, piece):
                n = min(piece, begin + count - first)
                of_a, of_b = (parts.residues(first // pair, n // pair) for parts in (x, y))
                whole = n // size * size
                if whole:
                    rows: np.ndarray = np.arange(first, first + whole, size, dtype=np.uint64)
                    sums.settle(rows, size, of_a[:whole], of_b[:whole])
                if n > whole:  # the array ends within a bucket
                    rows = np.array([first + whole], np.uint64)
                    sums.settle(rows, n - whole, of_a[whole:], of_b[whole:])
