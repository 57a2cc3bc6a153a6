"""Two containers of plain arrays, compared by one call of the core: their fields become objects when somebody looks at them.

What is found is what `compare_place` finds, which compares everything else.
"""

from __future__ import annotations

from collections.abc import Iterator

from .. import _core
from ..runs.fields import FieldRef
from ..runs.in_memory import Arrays
from ..runs.index import FLOATING
from .field import FieldComparison
from .merge import Found
from .place import another_order
from .ranges import DIRECT, FieldPart, put_together
from .request import Request
from .settings import Decision

__all__ = ["ArrayFields", "compare_arrays"]

_METHODS = ("auto", "direct")
_PLACE = (None, 0)


class ArrayFields:
    """The comparison of each array, made when it is asked for."""

    def __init__(
        self, results: _core.ArrayResults, floating: Decision, others: Decision, reason: str
    ) -> None:
        self._results = results
        self._decisions = floating, others
        self._reason = reason
        self._made: dict[int, FieldComparison] = {}

    def __getitem__(self, at: int) -> FieldComparison:
        made = self._made.get(at)
        if made is None:
            made = self._made.setdefault(at, self._make(at))
        return made

    def _make(self, at: int) -> FieldComparison:
        r = self._results
        dtype = r.dtype(at)
        like = FieldRef(r.name(at), dtype, "little", r.shape(at), r.fortran_order(at), "arrays")
        decision = self._decisions[0 if dtype in FLOATING else 1]
        result = r.result(at)
        seconds = result.stages["elements"]["seconds"]
        part = FieldPart(Found.of(result), 0, like, _PLACE, decision, self._reason, seconds)
        return put_together([part])

    def all(self) -> list[FieldComparison]:
        """All, in their order."""
        return [self[at] for at in range(len(self._results))]

    def differing(self) -> Iterator[FieldComparison]:
        """Those that differ, in their order."""
        return (self[at] for at in self._results.different)

    @property
    def same(self) -> bool:
        """Nothing differs."""
        return not self._results.different

    @property
    def bytes(self) -> int:
        """Of one run."""
        return self._results.bytes

    @property
    def bytes_read(self) -> int:
        """That the core read."""
        return self._results.bytes_read


def compare_arrays(request: Request) -> tuple[ArrayFields, list[str]] | None:
    """The fields of two containers of plain arrays, and notes. None where something else is to be compared, or not all of it can be
    compared: `compare_place` does that.
    """
    a, b, settings = request.a, request.b, request.settings
    if not isinstance(a, Arrays) or not isinstance(b, Arrays) or a.plain is None or b.plain is None:
        return None
    chosen = request.globs is not None or request.key is not None or request.progress is not None
    ruled = settings.tolerances.rules or settings.periods.axes or settings.periods.named
    if chosen or ruled or settings.method not in _METHODS or settings.device == "cuda":
        return None
    floating, others = (
        settings.decision(like, like, None)
        for like in (FieldRef("", dtype, "little", (), False, "") for dtype in ("f64", "i64"))
    )
    results = _core.compare_arrays(
        a.plain,
        b.plain,
        _core.Rule(**floating.arguments()),
        _core.Rule(**others.arguments()),
        threads=settings.threads,
        memory=settings.memory,
        io=settings.io,
        cache=settings.cache,
        device=settings.device,
        devices=settings.devices,
        method=settings.method,
    )
    if results is None:
        return None
    fields = ArrayFields(results, floating, others, DIRECT if settings.method == "auto" else "")
    return fields, _note_of_order(request, results, fields)


def _note_of_order(request: Request, results: _core.ArrayResults, fields: ArrayFields) -> list[str]:
    """That particles only lie in another order. Only lists of integers can be their IDs."""
    lists = [
        fields[at]
        for at in results.different
        if results.dtype(at) not in FLOATING and len(results.shape(at)) == 1
    ]
    if not lists:
        return []
    with request.a.open(_PLACE) as in_a, request.b.open(_PLACE) as in_b:
        found = another_order(in_a, in_b, _PLACE, lists, request.settings.memory)
    return [] if found is None else [found[1]]
