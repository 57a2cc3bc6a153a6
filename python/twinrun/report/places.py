"""Pictures of where the elements of a field differ: densities on grids, projections of particles.

They read both runs after the comparison, bounded in bytes and seconds. Of a large field a part is read, and
the page says so.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import _core
from ..arithmetic import any_values
from ..comparison.differences import Differences, differences
from ..comparison.tolerances import is_position
from ..comparison.work import Comparison, FieldComparison
from ..errors import TwinrunError
from ..formats.element_types import storage_dtype
from ..runs.fields import FieldRef

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

__all__ = ["BINS", "Places", "Plane", "look"]

BINS = 128  # along an axis
_PARTICLE_BINS = 96
_LISTED = 20  # differences that are listed
_MOST_PARTICLES = 4_000_000
# largest last axis that counts as components of vectors and tensors, and not as an axis of the grid
_MOST_COMPONENTS = 9
_AXES = "xyz"


@dataclass
class Plane:
    """Counts of differing elements in the plane of two axes, (rows, columns). behind: of all particles.

    ranges, labels: of columns and rows. upwards: the first row is the lowest. largest: the largest |a - b| of
    each entry, where that is known; 0 where nothing differs.
    """

    counts: np.ndarray
    ranges: tuple[tuple[float, float], tuple[float, float]]
    labels: tuple[str, str]
    behind: np.ndarray | None = None
    upwards: bool = False
    largest: np.ndarray | None = None


@dataclass
class Places:
    """The differences of one field.

    planes; or, with one axis, `line`: counts along it, each for `bin_size` indices.

    listed: (ID, index, a, b, |a-b|) of the first differences. seen: differences that were read. note: what
    was left out.
    """

    field: FieldComparison
    planes: list[Plane] = dataclasses.field(default_factory=list)
    line: np.ndarray | None = None
    line_length: int = 0
    bin_size: int = 1
    listed: list[tuple] = dataclasses.field(default_factory=list)
    seen: int = 0
    note: str = ""


@any_values
def look(
    comparison: Comparison,
    most: int = 4,
    bytes_each: int = 256 << 20,
    seconds: float = 8.0,
    wanted: Callable[[FieldComparison], bool] | None = None,
) -> tuple[list[Places], str]:
    """Pictures of the first differing fields, one for each name, and a note where there are none.

    wanted: which fields; all by default. bytes_each: bytes that are read of both runs for one
    field, at most. seconds: for all, about.
    """
    chosen: dict[str, FieldComparison] = {}
    for f in comparison.fields:
        if f.same or not f.different_is_exact:  # of digests alone no place is known
            continue
        if f.particles is None and f.elements > 1 and (wanted is None or wanted(f)):
            chosen.setdefault(f.field, f)
            if len(chosen) >= most:
                break
    looks = {id(f): _Look(f, bytes_each) for f in chosen.values()}
    deadline = time.monotonic() + seconds
    said = ""

    def more(f: FieldComparison, size: int) -> bool:
        return looks[id(f)].may(size, deadline)

    try:
        for part in differences(comparison, lambda f: id(f) in looks, more):
            looks[id(part.field)].add(part, functools.partial(more, part.field))
    except TwinrunError as error:
        said = f"Where more differs cannot be shown: {error}"
    return [found for one in looks.values() if (found := one.finished()) is not None], said


class _Look:
    """Limits and counts for one field."""

    def __init__(self, f: FieldComparison, most_bytes: int) -> None:
        self.places = Places(f)
        self.left = most_bytes
        self.view: _Grid | _Cloud | _Listed | None = None

    def may(self, size: int, deadline: float) -> bool:
        """Whether this many more bytes may be read."""
        if self.left < size or time.monotonic() > deadline:
            self.left = -1
            return False
        self.left -= size
        return True

    def add(self, part: Differences, more: Callable[[int], bool]) -> None:
        if not part.count:
            return
        if self.view is None:
            self.view = _view_of(self.places.field, part, more)
        self.view.add(part)
        self.places.seen += part.count
        _name(self.places, part)

    def finished(self) -> Places | None:
        """The differences of a field; None where an error left none."""
        if self.view is not None:
            self.view.finish(self.places)
        elif self.left >= 0:
            return None
        if self.places.seen < self.places.field.different:
            self.places.note = (
                f"This shows {self.places.seen:,} of {self.places.field.different:,} differences: looking is bounded, "
                "and stopped there."
            )
        return self.places


def _name(result: Places, part: Differences) -> None:
    room = _LISTED - len(result.listed)
    if room <= 0:
        return
    ids = [None] * part.count if part.ids is None else part.ids[:room].tolist()
    result.listed += list(
        zip(
            ids[:room],
            map(tuple, part.index[:room].tolist()),
            part.a[:room].tolist(),
            part.b[:room].tolist(),
            part.abs_diff[:room].tolist(),
            strict=True,
        )
    )


class _Grid:
    """Differences by their index."""

    def __init__(self, f: FieldComparison, shape: Sequence[int]) -> None:
        axes = list(range(len(shape)))
        names = [f"axis {d}" for d in axes]
        # The last axis of a vector field is not a direction in space.
        if len(axes) > 1 and shape[-1] <= _MOST_COMPONENTS and max(shape[:-1]) > _MOST_COMPONENTS:
            axes.pop()
        axes = [d for d in axes if shape[d] > 1] or axes[:1]
        axes = sorted(sorted(axes, key=lambda d: -shape[d])[:3])
        self.shape, self.axes, self.names = shape, axes, names
        # Each bin except the last has the same number of indices: bins with one more would stand
        # out.
        self.size = {d: -(-shape[d] // BINS) for d in axes}
        self.bins = {d: -(-shape[d] // self.size[d]) for d in axes}
        pairs = [(axes[i], axes[j]) for i in range(len(axes)) for j in range(i + 1, len(axes))]
        self.counts = {pair: np.zeros((self.bins[pair[0]], self.bins[pair[1]]), np.int64) for pair in pairs}
        self.largest = {pair: np.zeros(counts.shape) for pair, counts in self.counts.items()}
        self.line = np.zeros(self.bins[axes[0]], np.int64) if len(axes) == 1 else None

    def add(self, part: Differences) -> None:
        at = {d: part.index[:, d] // self.size[d] for d in self.axes}
        if self.line is not None:
            self.line += np.bincount(at[self.axes[0]], minlength=self.line.size)
        for (row, column), counts in self.counts.items():
            places = at[row] * counts.shape[1] + at[column]
            counts += np.bincount(places, minlength=counts.size).reshape(counts.shape)
            np.maximum.at(self.largest[row, column].reshape(-1), places, part.abs_diff)

    def finish(self, result: Places) -> None:
        result.line = self.line
        result.line_length = self.shape[self.axes[0]]
        result.bin_size = self.size[self.axes[0]]
        for (row, column), counts in self.counts.items():
            ranges = ((0.0, float(self.shape[column] - 1)), (0.0, float(self.shape[row] - 1)))
            names = self.names[column], self.names[row]
            result.planes.append(Plane(counts, ranges, names, largest=self.largest[row, column]))


class _Cloud:
    """Differences by the position of their particle."""

    def __init__(self, positions: np.ndarray) -> None:
        finite = np.isfinite(positions).all(axis=1)
        inside = positions[finite]
        low = inside.min(axis=0) if inside.size else np.zeros(positions.shape[1])
        high = inside.max(axis=0) if inside.size else np.ones(positions.shape[1])
        high = np.where(high > low, high, low + 1)
        self.low, self.high, self.finite = low, high, finite
        with np.errstate(invalid="ignore", over="ignore"):
            share = (positions - low) / (high - low) * _PARTICLE_BINS
        self.bins = np.clip(np.nan_to_num(share), 0, _PARTICLE_BINS - 1).astype(np.int64)
        axes = range(positions.shape[1])
        self.pairs = [(i, j) for i in axes for j in axes if i < j]
        self.behind = {pair: self._count(pair, np.flatnonzero(finite)) for pair in self.pairs}
        self.counts = {pair: np.zeros_like(self.behind[pair]) for pair in self.pairs}

    def _count(self, pair: tuple[int, int], rows: np.ndarray) -> np.ndarray:
        at = self.bins[rows, pair[1]] * _PARTICLE_BINS + self.bins[rows, pair[0]]
        return np.bincount(at, minlength=_PARTICLE_BINS**2).reshape(_PARTICLE_BINS, _PARTICLE_BINS)

    def add(self, part: Differences) -> None:
        rows = part.index[:, 0] if part.rows_a is None else part.rows_a
        rows = rows[self.finite[rows]]
        for pair in self.pairs:
            self.counts[pair] += self._count(pair, rows)

    def finish(self, result: Places) -> None:
        for x, y in self.pairs:
            of_x, of_y = ((float(self.low[d]), float(self.high[d])) for d in (x, y))
            result.planes.append(
                Plane(self.counts[x, y], (of_x, of_y), (_AXES[x], _AXES[y]), self.behind[x, y], upwards=True)
            )


class _Listed:
    """Differences without a picture."""

    def add(self, part: Differences) -> None: ...
    def finish(self, result: Places) -> None: ...


def _view_of(f: FieldComparison, part: Differences, more: Callable[[int], bool]) -> _Grid | _Cloud | _Listed:
    rows = None if part.rows_a is not None else f.shape[0] if f.shape else 0
    # One row for each particle: numbers or vectors, not a grid whose axes have coordinates.
    alike = len(f.shape) == 1 or (len(f.shape) == 2 and f.shape[1] <= _MOST_COMPONENTS)
    positions = _positions(part.parts_a, rows, more) if rows is None or alike else None
    if positions is not None:
        return _Cloud(positions)
    if part.rows_a is not None or not f.shape:
        return _Listed()
    return _Grid(f, f.shape)


def _positions(
    parts: Sequence[tuple[int, Mapping[str, FieldRef]]], rows: int | None, more: Callable[[int], bool]
) -> np.ndarray | None:
    """(particles, 2 or 3) positions of the particles of the first run in all its parts, if it has such
    fields.
    """
    if not parts:
        return None
    pieces = []
    for _, fields in parts:
        refs = _position_refs(fields, rows)
        if refs is None:
            return None
        pieces.append(refs)
    total = sum(refs[0].user_shape[0] for refs in pieces)
    if not 0 < total <= _MOST_PARTICLES or len({_width(refs) for refs in pieces}) > 1:
        return None
    if not more(sum(ref.items * ref.itemsize for refs in pieces for ref in refs)):
        return None
    found = []
    for refs in pieces:
        columns = [values for ref in refs if (values := _values(ref)) is not None]
        if len(columns) < len(refs):
            return None
        found.append(columns[0] if len(columns) == 1 else np.stack(columns, axis=1))
    return np.concatenate(found).astype(np.float64)


def _width(refs: list[FieldRef]) -> int:
    return refs[0].user_shape[1] if len(refs) == 1 else len(refs)


def _position_refs(fields: Mapping[str, FieldRef], rows: int | None) -> list[FieldRef] | None:
    """One field of shape (n, 2 or 3), or two or three of shape (n,)."""
    single: dict[str, FieldRef] = {}
    for name, ref in fields.items():
        shape = ref.user_shape
        if not is_position(name) or ref.dtype not in ("f32", "f64", "f16") or ref.fortran_order:
            continue
        if not shape or (rows is not None and shape[0] != rows):
            continue
        if len(shape) == 2 and shape[1] in (2, 3):
            return [ref]
        if len(shape) == 1:
            single.setdefault(name.lower()[-1:], ref)
    axes = [single[a] for a in _AXES if a in single]
    # Coordinates of a grid's axes are not positions of particles, which are as many as the values.
    return axes if len(axes) >= 2 and len({r.user_shape for r in axes}) == 1 else None


def _values(ref: FieldRef) -> np.ndarray | None:
    source = ref.source()
    if source is None:
        return None
    values = _core.read_source(source, 0, ref.items).view(storage_dtype(ref.dtype))
    return values.reshape(ref.user_shape).astype(np.float64)
