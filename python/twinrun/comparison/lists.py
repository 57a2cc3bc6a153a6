"""Fields of a place, compared by one call of the core: they become objects when somebody looks at them.

What is found is what comparing them one by one finds. See `place`, which does that with everything else, also with the few
fields of a container that the core cannot take.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from .. import _core
from ..errors import TwinrunError
from ..formats.model import FLOATING
from ..runs.fields import FieldRef
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
    """The comparison of each field of two lists, made when it is asked for.

    others: of each field beside the lists, by its place among all fields. None: it has no result, a problem says why.
    """

    def __init__(
        self,
        results: _core.ListResults,
        place: Place,
        decisions: tuple[Decision, Decision],
        reason: str,
        where: str,
        others: Mapping[int, FieldComparison | None],
    ) -> None:
        self._listed: list[int] | None = None  # the number in the lists of each field; -1: beside them
        different = results.different
        made: dict[int, FieldComparison] = {}
        if others:
            self._listed, made = _in_order(len(results), others)
            numbers = [at for at, listed in enumerate(self._listed) if listed >= 0]
            different = sorted(
                [*(numbers[at] for at in different), *(at for at, other in made.items() if not other.same)]
            )
        super().__init__(len(results) + len(made), different, results.bytes, results.bytes_read)
        self._made.update(made)
        self.bytes += sum(other.bytes for other in made.values())
        self.bytes_read += sum(
            stage["bytes_read"] for other in made.values() for stage in other.stages.values()
        )
        self._results = results
        self._place = place
        self._decisions = decisions  # of floating-point fields, and of others
        self._reason = reason
        self._where = where

    def make(self, at: int) -> FieldComparison:
        r = self._results
        if self._listed is not None:
            at = self._listed[at]
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
        for at in self._different:
            listed = at if self._listed is None else self._listed[at]
            dtype, shape = (
                (self[at].dtype, self[at].shape) if listed < 0 else (r.dtype(listed), r.shape(listed))
            )
            if dtype not in FLOATING and len(shape) == 1:
                yield self[at]


def _in_order(
    count: int, others: Mapping[int, FieldComparison | None]
) -> tuple[list[int], dict[int, FieldComparison]]:
    """The number in the lists of each field that has a result (-1: beside them), and the results beside them by their place in that."""
    listed: list[int] = []
    made: dict[int, FieldComparison] = {}
    left = iter(range(count))
    for place in range(count + len(others)):
        if place not in others:
            listed.append(next(left))
        elif (other := others[place]) is not None:
            made[len(listed)] = other
            listed.append(-1)
    return listed, made


def compare_lists(
    request: Request,
    match: StepMatch,
    ranks: tuple[int, int],
    place: Place,
    compare_rest: Callable[[Request], Outcome],
) -> Outcome | None:
    """Compares a place by one call. None where something else is to be compared, or not all of it can be compared.

    compare_rest: compares the fields that no list takes.
    """
    settings = request.settings
    chosen = request.globs is not None or request.key is not None or not request.use_metadata
    ruled = settings.tolerances.rules or settings.periods.axes or settings.periods.named
    if chosen or ruled:
        return None
    with contextlib.ExitStack() as stack:
        try:
            a = stack.enter_context(request.a.listed((match.step_a, ranks[0])))
            b = None if a is None else stack.enter_context(request.b.listed((match.step_b, ranks[1])))
        except TwinrunError:  # is found again where it is reported
            return None
        if a is None or b is None or a.of_arrays != b.of_arrays or set(a.rest_places) != set(b.rest_places):
            return None
        if settings.device == "cuda" and not a.fields.any_on_device:
            return None
        if settings.method not in (("auto", "direct") if a.of_arrays else ("auto", "staged")):
            return None
        found = Outcome(opening=a.bytes_read + b.bytes_read)
        floating, integers = (_asked_for(settings, dtype, a.of_arrays) for dtype in ("f64", "i64"))
        advance = None
        if request.progress is not None:
            advance = functools.partial(request.progress, place_text(place))
        results = _core.compare_lists(
            a.fields,
            b.fields,
            _core.Rule(**floating[0].arguments()),
            _core.Rule(**integers[0].arguments()),
            floating[1],
            integers[1],
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
        others: dict[int, FieldComparison | None] = dict.fromkeys(a.rest_places.values())
        if a.rest is not None and b.rest is not None:
            rest = compare_rest(replace(request, a=a.rest, b=b.rest))
            for _, one in rest.results:
                if not isinstance(one, FieldComparison) or one.field not in a.rest_places:
                    return None
                others[a.rest_places[one.field]] = one
            if rest.recut or rest.parts or rest.error is not None:
                return None
            rest.results = []
            found.add(rest)
    reason = DIRECT if a.of_arrays and settings.method == "auto" else ""
    group = ListedFields(results, place, (floating[0], integers[0]), reason, request.a.label, others)
    found.results.append((0, group))
    return found


def _asked_for(settings: Settings, dtype: str, of_arrays: bool) -> tuple[Decision, bool]:
    """The decision for all fields of a type, but for its tolerance where that of the metadata counts."""
    like = FieldRef("", dtype, "little", (), False, "")
    decision = settings.decision(like, like, None)
    asked = not (settings.atol is None and settings.rtol is None and settings.ulps is None)
    tolerant = dtype in FLOATING or settings.integers
    return decision, tolerant and not asked and not of_arrays
