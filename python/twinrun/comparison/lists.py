"""All fields of a place, compared by one call of the core: they become objects when somebody looks at them.

What is found is what comparing them one by one finds. See `place`, which does that with everything else.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import replace

from .. import _core
from ..errors import TwinrunError
from ..runs.fields import FieldRef
from ..runs.index import FLOATING
from ..runs.subject import Place
from .field import FieldComparison, FieldGroup, place_text
from .matching import StepMatch
from .merge import Found
from .outcome import Outcome
from .ranges import DIRECT, FieldPart, put_together
from .request import Request
from .settings import Decision, Settings

__all__ = ["ListedFields", "compare_lists"]


class ListedFields(FieldGroup):
    """The comparison of each field of two lists, made when it is asked for."""

    def __init__(
        self,
        results: _core.ListResults,
        place: Place,
        decisions: tuple[Decision, Decision],
        reason: str,
        where: str,
    ) -> None:
        super().__init__(len(results), results.different, results.bytes, results.bytes_read)
        self._results = results
        self._place = place
        self._decisions = decisions  # of floating-point fields, and of others
        self._reason = reason
        self._where = where

    def make(self, at: int) -> FieldComparison:
        r = self._results
        dtype = r.dtype(at)
        like = FieldRef(r.name(at), dtype, "little", r.shape(at), r.fortran_order(at), self._where)
        decision = replace(self._decisions[0 if dtype in FLOATING else 1], atol=r.atol(at), rtol=r.rtol(at))
        result = r.result(at)
        seconds = sum(stage["seconds"] for stage in result.stages.values())
        part = FieldPart(Found.of(result), 0, like, self._place, decision, self._reason, seconds)
        return put_together([part])

    def lists_of_integers(self) -> Iterator[FieldComparison]:
        """Those that differ and may be IDs of particles."""
        r = self._results
        for at in r.different:
            if r.dtype(at) not in FLOATING and len(r.shape(at)) == 1:
                yield self[at]


def compare_lists(request: Request, match: StepMatch, ranks: tuple[int, int], place: Place) -> Outcome | None:
    """Compares a place by one call. None where something else is to be compared, or not all of it can be compared."""
    settings = request.settings
    chosen = request.globs is not None or request.key is not None or not request.use_metadata
    ruled = settings.tolerances.rules or settings.periods.axes or settings.periods.named
    if chosen or ruled or settings.device == "cuda":
        return None
    with contextlib.ExitStack() as stack:
        try:
            a = stack.enter_context(request.a.listed((match.step_a, ranks[0])))
            b = None if a is None else stack.enter_context(request.b.listed((match.step_b, ranks[1])))
        except TwinrunError:  # is found again where it is reported
            return None
        if a is None or b is None or a.of_arrays != b.of_arrays:
            return None
        if settings.method not in (("auto", "direct") if a.of_arrays else ("auto", "staged")):
            return None
        found = Outcome(opening=a.bytes_read + b.bytes_read)
        floating, others = (_asked_for(settings, dtype, a.of_arrays) for dtype in ("f64", "i64"))
        advance = None
        if request.progress is not None:
            advance = functools.partial(request.progress, place_text(place))
        results = _core.compare_lists(
            a.fields,
            b.fields,
            _core.Rule(**floating[0].arguments()),
            _core.Rule(**others[0].arguments()),
            floating[1],
            others[1],
            threads=settings.threads,
            memory=settings.memory,
            io=settings.io,
            cache=settings.cache,
            device=settings.device,
            devices=settings.devices,
            method=settings.method,
            progress=advance,
        )
    if results is None:
        return None
    reason = DIRECT if a.of_arrays and settings.method == "auto" else ""
    group = ListedFields(results, place, (floating[0], others[0]), reason, request.a.label)
    found.results.append((0, group))
    return found


def _asked_for(settings: Settings, dtype: str, of_arrays: bool) -> tuple[Decision, bool]:
    """The decision for all fields of a type, but for its tolerance where that of the metadata counts."""
    like = FieldRef("", dtype, "little", (), False, "")
    decision = settings.decision(like, like, None)
    asked = not (settings.atol is None and settings.rtol is None and settings.ulps is None)
    tolerant = dtype in FLOATING or settings.integers
    return decision, tolerant and not asked and not of_arrays
