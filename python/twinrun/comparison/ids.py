"""IDs of particles: which rows of two runs they match, and these rows, gathered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import Incomparable
from ..runs.fields import FieldRef
from ..runs.particles import read_items

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

__all__ = ["Ids", "Matched", "gather_rows", "ids_of_share", "match_ids", "nobody"]

_HASH = 0x9E3779B97F4A7C15
_BLOCK_BITS = 20  # a bucket is a megabyte at most


@dataclass
class Ids:
    """IDs of one share of one run, sorted, with the row (numbered through all parts) of each."""

    ids: np.ndarray  # int64 or uint64
    rows: np.ndarray  # int64


def ids_of_share(
    parts: Sequence[tuple[int, FieldRef, dict]],
    share: int,
    shares: int,
    piece: int,
    sources: dict,
    by_block: bool = False,
) -> Ids:
    """The IDs of one share, of one run. piece: elements that are read at a time.

    by_block: consecutive IDs stay together, as many as a bucket of sums may hold.
    """
    block = np.uint64(_BLOCK_BITS if by_block else 0)
    kept, rows, base = [], [], 0
    for _, ref, _ in parts:
        kind = np.uint64 if ref.dtype.startswith("u") else np.int64
        for first in range(0, ref.items, piece):
            count = min(piece, ref.items - first)
            ids = read_items(ref, first, count, sources).astype(kind)
            at: np.ndarray = np.arange(base + first, base + first + count, dtype=np.int64)
            if shares > 1:
                blocks = ids.view(np.uint64) >> block
                mine = (blocks * np.uint64(_HASH) >> np.uint64(32)) % np.uint64(shares) == share
                ids, at = ids[mine], at[mine]
            kept.append(ids)
            rows.append(at)
        base += ref.items
    if not kept:
        return Ids(np.empty(0, np.int64), np.empty(0, np.int64))
    if len({k.dtype for k in kept}) > 1:
        raise Incomparable("IDs are signed in one part and unsigned in another")
    ids, at = np.concatenate(kept), np.concatenate(rows)
    order = np.argsort(ids, kind="stable")
    return Ids(ids[order], at[order])


@dataclass
class Matched:
    ids: np.ndarray
    rows_a: np.ndarray
    rows_b: np.ndarray
    lost: np.ndarray
    born: np.ndarray
    doubled_a: np.ndarray
    doubled_b: np.ndarray
    unequal: int  # rows of IDs that both runs have, with different multiplicity


def match_ids(a: Ids, b: Ids) -> Matched:
    """Rows that belong together, in the order of their IDs, and the IDs that have no partner."""
    if np.array_equal(a.ids, b.ids) and (a.ids[1:] > a.ids[:-1]).all():  # most often
        none = a.ids[:0]
        return Matched(a.ids, a.rows, b.rows, none, none, none, none, 0)
    unique_a, start_a, times_a = np.unique(a.ids, return_index=True, return_counts=True)
    unique_b, start_b, times_b = np.unique(b.ids, return_index=True, return_counts=True)
    common, in_a, in_b = np.intersect1d(unique_a, unique_b, assume_unique=True, return_indices=True)
    equal = times_a[in_a] == times_b[in_b]
    unequal = int(np.maximum(times_a[in_a], times_b[in_b])[~equal].sum())
    times = times_a[in_a][equal]
    # Rows of an ID that occurs several times: stretches of both sorted lists.
    within = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
    return Matched(
        np.repeat(common[equal], times),
        a.rows[np.repeat(start_a[in_a][equal], times) + within],
        b.rows[np.repeat(start_b[in_b][equal], times) + within],
        _alone(unique_a, times_a, in_a),
        _alone(unique_b, times_b, in_b),
        unique_a[times_a > 1],
        unique_b[times_b > 1],
        unequal,
    )


def _alone(unique: np.ndarray, times: np.ndarray, common: np.ndarray) -> np.ndarray:
    """The IDs of one run alone, as often as it has them. common: the places of the others."""
    alone = np.ones(unique.size, bool)
    alone[common] = False
    return np.repeat(unique[alone], times[alone])


def nobody() -> Matched:
    """The rows of runs without IDs."""
    none = np.empty(0, np.int64)
    return Matched(none, none, none, none, none, none, none, 0)


def gather_rows(
    refs: Sequence[tuple[FieldRef | None, int]],
    rows: np.ndarray,
    width: int,
    piece: int,
    sources: dict,
    storage: np.dtype,
    read: Callable[[FieldRef, int, int, dict], np.ndarray] | None = None,
) -> np.ndarray:
    """Rows of a field that lies in several parts, in the order of `rows`. refs: (field, its rows).

    read: gives `count` numbers of a part from `first` on, `width` a row; by default its elements.
    """
    read = read or read_items
    out = np.empty((rows.size, width), storage)
    order = np.argsort(rows, kind="stable")
    ascending = rows[order]
    base = 0
    for ref, count in refs:
        low, high = np.searchsorted(ascending, (base, base + count))
        if low == high:
            base += count
            continue
        step = max(1, piece // max(width, 1))
        for first in range(0, count, step):
            n = min(step, count - first)
            begin, end = np.searchsorted(ascending, (base + first, base + first + n))
            if begin == end:
                continue
            assert ref is not None
            low_row, high_row = int(ascending[begin]) - base, int(ascending[end - 1]) - base + 1
            values = read(ref, low_row * width, (high_row - low_row) * width, sources)
            out[order[begin:end]] = values.reshape(-1, width)[ascending[begin:end] - (base + low_row)]
        base += count
    return out
