"""Fields of a step of a history by their place in global arrays, whichever processes kept their parts."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from .. import _core
from ..errors import DamagedFile, Incomparable, MissingFile, Stale
from ..formats.element_types import storage_dtype
from .fields import FieldRef
from .histories import HistorySubject

__all__ = ["StepBoxes", "Whole", "values_of"]

_FROM_A_COPY = "choose another step, or put back a copy of the history"


def values_of(ref: FieldRef) -> np.ndarray:
    """The elements of a field of a history, as they are stored. Every byte is checked first."""
    if ref.no_data:
        raise MissingFile(
            f"the data of field {ref.name!r} was not kept",
            where=ref.where,
            fix="choose a step that has its data",
        )
    dtype, shape = storage_dtype(ref.dtype), ref.user_shape
    if not ref.items:
        return np.empty(shape, dtype)
    source = ref.need_source()
    if ref.metadata is not None and _core.changed_parts(ref.metadata, ref.metadata_field, source):
        raise DamagedFile(
            f"the data of field {ref.name!r} is not what was captured",
            where=ref.where,
            fix=_FROM_A_COPY,
        )
    array = _core.read_source(source, 0, ref.items).view(dtype)
    return array.reshape(shape[::-1]).T if ref.fortran_order else array.reshape(shape)


@dataclass(frozen=True)
class Whole:
    """A field as a global array. kind: of elements that are not plain numbers; or None."""

    dtype: str
    kind: str | None
    unit: str | None
    shape: tuple[int, ...]


class StepBoxes(contextlib.AbstractContextManager["StepBoxes"]):
    """The fields of a step of a history, opened. It is a context.

    ranks: the processes that captured it.
    """

    def __init__(self, path: str | os.PathLike[str], step: int) -> None:
        """Raises TwinrunError where there is no such history or step."""
        self.path, self.step = os.fspath(path), step
        self._subject = HistorySubject(self.path)
        self.ranks = sorted(rank for number, rank in self._subject.places if number == step)
        if not self.ranks:
            raise MissingFile(
                f"there is no step {step} in it",
                where=self.path,
                fix="choose another step; those that are on node-local storage only 'twinrun flush' brings there",
            )
        self._held: dict[str, list[tuple[int, FieldRef]]] = {}
        self._open = contextlib.ExitStack()

    def __enter__(self) -> StepBoxes:
        """Raises DamagedFile where files are not those that were captured."""
        try:
            with contextlib.ExitStack() as opened:
                for rank in self.ranks:
                    for name, ref in opened.enter_context(self._subject.open((self.step, rank))).items():
                        self._held.setdefault(name, []).append((rank, ref))
                self._open = opened.pop_all()
        except Stale as e:
            raise DamagedFile(
                f"step {self.step}: {e.what}", where=e.where or self.path, fix=_FROM_A_COPY
            ) from None
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    @property
    def names(self) -> list[str]:
        """All fields of the step."""
        return list(self._held)

    def __contains__(self, name: str) -> bool:
        return name in self._held

    def _where(self, name: str) -> str:
        return f"{self.path}, step {self.step}, {name}"

    def _parts(self, name: str) -> list[tuple[int, FieldRef]]:
        if name not in self._held:
            raise MissingFile(f"step {self.step}: no field of the name {name!r}", where=self.path)
        return self._held[name]

    def is_own(self, name: str) -> bool:
        """Whether several processes kept a field each for itself, and not as parts of one."""
        return len(self._held[name]) > 1 and any(ref.place is None for _, ref in self._held[name])

    def own(self, name: str, rank: int, ranks: int) -> FieldRef:
        """What one process kept for itself. ranks: how many processes there are now.

        Raises Incomparable where others captured it, MissingFile where this process had none.
        """
        if name in self._held and len(self.ranks) != ranks:
            raise Incomparable(
                f"was captured as each process's own, by {len(self.ranks)} processes, and these are {ranks}",
                where=self._where(name),
                fix="leave it out, and set it yourself",
            )
        for number, ref in self._parts(name):
            if number == rank:
                return ref
        raise MissingFile(f"process {rank} has no field of this name", where=self._where(name))

    def whole(self, name: str) -> Whole:
        """Type and shape of a field as a global array. Raises TwinrunError where it is none."""
        parts = self._parts(name)
        if self.is_own(name):
            raise Incomparable(
                f"{len(parts)} processes have values of their own, which are no parts of one array",
                where=self._where(name),
                fix="name it with local=",
            )
        found = {
            Whole(ref.dtype, ref.kind, ref.unit, (ref.user_place or (ref.user_shape, ()))[0])
            for _, ref in parts
        }
        if len(found) > 1:
            raise DamagedFile("its parts are of different arrays", where=self._where(name))
        return found.pop()

    def read(self, name: str, offset: Iterable[int], shape: tuple[int, ...]) -> np.ndarray:
        """A box of a global array. Raises TwinrunError where the parts do not hold all of it."""
        whole = self.whole(name)
        low = tuple(offset)
        box = np.empty(shape, storage_dtype(whole.dtype))
        left = math.prod(shape)
        for _, ref in self._parts(name):
            begin = ref.user_place[1] if ref.user_place else (0,) * len(shape)
            starts = [max(o, b) for o, b in zip(low, begin, strict=True)]
            ends = [min(o + n, b + m) for o, n, b, m in zip(low, shape, begin, ref.user_shape, strict=True)]
            if all(s < e for s, e in zip(starts, ends, strict=True)):
                into = tuple(slice(s - o, e - o) for s, e, o in zip(starts, ends, low, strict=True))
                of = tuple(slice(s - b, e - b) for s, e, b in zip(starts, ends, begin, strict=True))
                box[into] = values_of(ref)[of]
                left -= math.prod(e - s for s, e in zip(starts, ends, strict=True))
        if left:
            raise DamagedFile(
                f"its parts do not hold {left} of the elements",
                where=self._where(name),
                fix="is a process missing?",
            )
        return box

    def check_kept(self, name: str) -> None:
        """Raises MissingFile where the data of a field was not kept."""
        for _, ref in self._parts(name):
            if ref.no_data:
                values_of(ref)
