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
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .. import _core
from ..errors import DamagedFile
from ..formats.model import ITEMSIZE
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


def scalar_bytes(dtype: str) -> int:
    """Bytes of a scalar: complex numbers are two."""
    return ITEMSIZE[dtype] // (2 if dtype in ("c64", "c128") else 1)


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
            decision.atol,
            decision.rtol,
            decision.equal_nan,
        )
        if reason:
            return reason
    return ""


@dataclass
class _Stage:
    chunks_in: int = 0
    chunks_out: int = 0
    bytes_read: int = 0
    seconds: float = 0.0
    ran: bool = False


def _sums_of(parts: Sequence[FieldRef], kind: str) -> list[_core.BucketSums]:
    return [_core.read_sums(ref.need_metadata(), ref.metadata_field, _kind_of(ref) != kind) for ref in parts]


def _opened(parts: Sequence[FieldRef]) -> list[_core.Metadata]:
    return list({id(ref.metadata): ref.need_metadata() for ref in parts}.values())


class TwoSums:
    """The sums of one field of two runs, over all parts, and which buckets they prove.

    buckets: ascending. open: for each bucket, whether it is not proven yet. bucket_scalars: of the whole
    array.
    """

    def __init__(
        self, parts_a: Sequence[FieldRef], parts_b: Sequence[FieldRef], kind: str, decision: Decision
    ) -> None:
        start = time.perf_counter()
        facts = parts_a[0].facts
        assert facts is not None
        self.dtype, self.chunk_bytes, self.bits = facts.dtype, facts.chunk_bytes, facts.residue_bits
        self.tree, self.sketch = _Stage(ran=True), _Stage()
        self.proven_by_cells = [0] * 8
        self._metadata = _opened([*parts_a, *parts_b])
        self._proof = _core.Proof(
            parts_a[0].need_metadata(), parts_a[0].metadata_field, decision.atol, decision.rtol
        )
        before = self._bytes()
        sides = [_sums_of(parts, kind) for parts in (parts_a, parts_b)]
        self.height = max(part.height for side in sides for part in side)
        self.bucket_scalars = (self.chunk_bytes // scalar_bytes(self.dtype)) << self.height
        added = [_core.add_sums(s, self.height, self.dtype, self.chunk_bytes) for s in sides]
        self.buckets = np.union1d(added[0].buckets, added[1].buckets)
        self._coarse: list[np.ndarray] = []
        self._fine: list[np.ndarray] = []
        self._held = np.zeros((2, self.buckets.size), bool)
        for sums, held in zip(added, self._held, strict=True):
            at = np.searchsorted(self.buckets, sums.buckets)
            held[at] = True
            for own, into in ((sums.coarse, self._coarse), (sums.fine, self._fine)):
                values = np.zeros(self.buckets.size, np.uint64)
                values[at] = own
                into.append(values)
        if self._proof.by_tree:
            self.open = self._coarse[0] != self._coarse[1]
        else:
            self.open = np.ones(self.buckets.size, bool)
        self.counted = self.buckets.size
        self.tree.chunks_in = self.counted
        self.tree.chunks_out = int(self.open.sum())
        self.tree.bytes_read = self._bytes() - before
        self.tree.seconds = time.perf_counter() - start

    def _bytes(self) -> int:
        return sum(m.bytes_read for m in self._metadata)

    def keep(self, chosen: np.ndarray) -> None:
        """Restricts the comparison to these buckets, given by their places in `buckets`."""
        mask = np.zeros(self.buckets.size, bool)
        mask[chosen.astype(np.int64)] = True
        self.open &= mask
        self.counted = int(mask.sum())
        self.tree.chunks_in, self.tree.chunks_out = self.counted, int(self.open.sum())

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Measures the reading of residues for the sketch stage."""
        before, open_before = self._bytes(), int(self.open.sum())
        if not self.sketch.ran:
            self.sketch.ran, self.sketch.chunks_in, self.sketch.chunks_out = True, open_before, open_before
        yield
        self.sketch.bytes_read += self._bytes() - before
        self.sketch.chunks_out -= open_before - int(self.open.sum())

    @property
    def residues_help(self) -> bool:
        """Whether residues can prove the open buckets."""
        return self.bits != 0 and self._proof.widest >= 1

    def at(self, buckets: np.ndarray) -> np.ndarray:
        """The positions of buckets in `buckets`; both runs must have sums of them."""
        at = np.minimum(np.searchsorted(self.buckets, buckets), max(self.buckets.size - 1, 0))
        known = self.buckets.size and (self.buckets[at] == buckets).all() and self._held[:, at].all()
        if not known and buckets.size:
            raise DamagedFile(
                "elements lie where the metadata has no sums of digests",
                where=self._metadata[0].path,
                fix="index the data again",
            )
        return at

    def settle(self, starts: np.ndarray, row_scalars: int, of_a: np.ndarray, of_b: np.ndarray) -> None:
        """Takes the residues of all rows of some buckets, and closes the buckets that they prove.

        starts: uint64, index of each row's first scalar in the whole array. of_a, of_b: uint8, one a scalar.
        """
        residues = _core.residues_of_buckets(
            starts, row_scalars, of_a, of_b, self.bits, self.dtype, self.chunk_bytes, self.height
        )
        at = self.at(residues.buckets)
        proven = self._proof.buckets_proven(residues, self._fine[0][at], self._fine[1][at]).astype(bool)
        proven &= self.open[at]
        self.open[at[proven]] = False
        for cells, n in enumerate(residues.counts_of(proven.view(np.uint8))):
            self.proven_by_cells[cells] += n

    def held_by_both(self) -> bool:
        """Whether both runs have sums of every bucket."""
        return bool(self._held.all())

    def identical(self) -> bool:
        """Whether both runs have the same sum in every bucket."""
        return self.held_by_both() and bool(all((s[0] == s[1]).all() for s in (self._coarse, self._fine)))

    def is_sum_of(self, sums: _core.BucketSums) -> bool:
        """Whether the first run has these fine sums, which are of this height."""
        return np.array_equal(sums.buckets, self.buckets) and np.array_equal(sums.fine, self._fine[0])

    def result(self, found: Found, scalars: int, by_tree: int) -> Found:
        """Extends the core's result for the elements that were read to all elements.

        by_tree: scalars in buckets of equal sums.
        """
        unread = self._proof.largest_unread(by_tree, self.proven_by_cells)
        largest, is_bound = _core.largest_of_all(found.max_abs_read, unread)
        return replace(
            found,
            method="staged",
            scalars=scalars,
            chunks=self.counted,
            proven_by_tree=by_tree,
            proven_by_cells=list(self.proven_by_cells),
            cell=self._proof.cell,
            coarse_cell=self._proof.coarse_cell,
            max_abs_unread=unread,
            max_abs=largest,
            max_abs_is_bound=is_bound,
            stages=found.stages | {"tree": vars(self.tree), "sketch": vars(self.sketch)},
        )


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
    pair = 2 if a.dtype in ("c64", "c128") else 1
    scalars = a.items * pair
    asked = [(0, scalars)] if ranges is None else list(ranges)
    wanted = sum(n for _, n in asked)
    cuts = f"cut into {x.count} parts in one run, {y.count} in the other"
    without = why_not(x.refs, y.refs, "place", decision, settings)
    if without:
        for of_run in (x, y):
            of_run.check_data()
        part = compare_part(a, b, place, settings, ranges, progress)
        # By the parts' own sources.
        part.found.stages["elements"]["bytes_read"] = 2 * wanted // pair * a.itemsize
        part.reason = f"{cuts}: elements, as {without}"
    else:
        sums = TwoSums(x.refs, y.refs, "place", decision)
        size = sums.bucket_scalars
        every = -(-scalars // size)
        sums.at(np.arange(every, dtype=np.uint64))
        if sums.buckets.size > every:
            raise DamagedFile(
                "has sums of digests beyond the array", where=x.label, fix="index the data again"
            )
        if ranges is not None:
            buckets = [np.arange(f // size, -(-(f + n) // size)) for f, n in asked]
            sums.keep(np.concatenate(buckets or [np.zeros(0, np.int64)]))
        open_before = _stretches(sums.open, size, scalars)
        by_tree = wanted - sum(n for _, n in open_before)
        if open_before and sums.residues_help:
            _settle_stretches(sums, x, y, open_before, pair)
        left = _stretches(sums.open, size, scalars)
        for of_run in (x, y) if left else ():
            of_run.check_data()
        part = compare_part(a, b, place, replace(settings, method="direct"), left, progress)
        part.found.stages["elements"]["bytes_read"] = 2 * sum(n for _, n in left) * a.itemsize // pair
        part.found = sums.result(part.found, wanted, by_tree)
        part.first = asked[0][0] if asked else 0
        part.reason = f"{cuts}: by sums of digests"
    part.ranks = max(x.count, y.count)
    part.seconds = time.perf_counter() - start
    return part


def _stretches(chosen: np.ndarray, size: int, scalars: int) -> list[tuple[int, int]]:
    """(first scalar, scalars) of each run of chosen buckets."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], chosen.astype(np.int8), [0]])))
    return [
        (begin * size, min(end * size, scalars) - begin * size)
        for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    ]


def _settle_stretches(
    sums: TwoSums, x: Parts, y: Parts, stretches: Sequence[tuple[int, int]], pair: int
) -> None:
    """Residues of stretches of the array, a few at a time."""
    start = time.perf_counter()
    size = sums.bucket_scalars
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
    sums.sketch.seconds += time.perf_counter() - start
