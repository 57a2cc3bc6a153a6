"""Two runs and a reference: which of the two is farther from it, by field."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from ..arguments import names_given
from ..errors import Incomparable, TwinrunError, in_short
from ..words import counted, number
from .field import FieldComparison
from .numbers import holds_no_number
from .options import CompareOptions, Moved, chosen_options
from .result import Comparison
from .summary import TWICE, same_of_three
from .work import compare

__all__ = [
    "Distance",
    "Distances",
    "FieldDistances",
    "compare_distances",
    "distance_lines",
    "distances_document",
]

# Parameters of `compare` that are passed on, beside those that are deprecated.
_READING = {"threads", "device", "stream", "executor"}
# Sums of squares may differ in their last bits with the instruction set.
_LAST_BITS = 1e-12
# Between them, squares of distances neither overflow nor vanish.
_SMALLEST, _LARGEST = 1e-150, 1e150


@dataclass
class Distance:
    """How far a field of a run is from that of the reference, over all steps and ranks.

    >>> found = twinrun.compare_distances({"x": [1.5]}, {"x": [3.0]}, {"x": [1.0]})
    >>> found.fields[0].b.max, found.fields[0].b.index
    (2.0, (0,))

    Attributes
    ----------
    max : float
        The largest |run - reference|; infinite where `infinite` is not 0.
    step, rank, index : int or None, int, tuple of int or None
        Where it is.
    value, reference : float, int or None
        The values there.
    rms : float
        Root mean square of |run - reference| over all elements, but for those that `infinite` counts.
    infinite : int
        Elements where a NaN or an infinity meets something else.
    elements : int
        Scalars that were compared.
    """

    max: float = 0.0
    step: int | None = None
    rank: int = 0
    index: tuple[int, ...] | None = None
    value: float | int | None = None
    reference: float | int | None = None
    rms: float = 0.0
    infinite: int = 0
    elements: int = 0

    def _add(self, found: FieldComparison) -> None:
        """Adds what comparing the reference with the run found at a place."""
        assert found.max_abs_diff is not None and found.rms_diff_all is not None
        before, own = self.elements - self.infinite, found.elements - found.infinite
        if before + own:
            squares = before * self.rms**2 + own * found.rms_diff_all**2
            self.rms = math.sqrt(squares / (before + own))
        self.elements += found.elements
        self.infinite += found.infinite
        if found.max_abs_diff > self.max:
            self.max = found.max_abs_diff
            self.step, self.rank = found.step, found.rank
            self.index = found.global_index(found.max_abs_index)
            self.value, self.reference = found.max_abs_b, found.max_abs_a

    def _is_zero(self) -> bool:
        return self.max == 0 and not self.infinite

    def _is_nowhere_finite(self) -> bool:
        return 0 < self.elements == self.infinite

    def _has_squares(self) -> bool:
        """Whether `rms` is what it should be: squares of distances neither overflow nor vanish."""
        return self.max == 0 or (_SMALLEST < self.max < _LARGEST and math.isfinite(self.rms))


@dataclass
class FieldDistances:
    """One field: how far both runs are from the reference.

    >>> found = twinrun.compare_distances({"x": [1.5]}, {"x": [3.0]}, {"x": [1.0]})
    >>> found.fields[0].farther
    True

    Attributes
    ----------
    field : str
        Its name.
    a, b : Distance
        Of the first run (the old one), and of the second (the new one).
    farther : bool
        True where the second run has a larger `max` or `rms` than `factor` times that of the first. Sums are
        rounded, so an `rms` is larger from 1 part in 10^12 on. Where the numbers of infinite elements differ,
        they alone count.
    closer : bool
        True where `farther` is not, and the first run has a larger `max` or `rms` than the second.
    """

    field: str
    a: Distance
    b: Distance
    farther: bool = False
    closer: bool = False


@dataclass
class Distances:
    """Which of two runs is farther from a reference.

    >>> found = twinrun.compare_distances({"x": [1.5]}, {"x": [1.25]}, {"x": [1.0]})
    >>> found.verdict, bool(found)
    ('closer', True)

    Attributes
    ----------
    a, b, reference : str
        The runs.
    verdict : {'farther', 'closer', 'as far', 'incomparable'}
        'incomparable' where something could not be compared; 'farther' where the second run is, in any field.
    fields : list of FieldDistances
        In the order of the reference.
    factor : float
        How many times as far still counts as not farther.
    problems : list of str
        What could not be compared.
    notes : list of str
        What the user should know.
    """

    a: str
    b: str
    reference: str
    verdict: str
    fields: list[FieldDistances]
    factor: float = 1.0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Whether all was compared, and the second run is nowhere farther."""
        return self.verdict in ("closer", "as far")


_Place = tuple[int | None, int]  # step, rank


def _by_place(found: Comparison) -> dict[str, dict[_Place, list[FieldComparison]]]:
    """What was found of fields of numbers: {field: {(step, rank): its parts}}."""
    by_place: dict[str, dict[_Place, list[FieldComparison]]] = {}
    for f in found.fields:
        if f.kind is None and f.particles is None:
            by_place.setdefault(f.field, {}).setdefault((f.step, f.rank), []).append(f)
    return by_place


def _exceeds(b: Distance, a: Distance, factor: float) -> bool:
    if a.infinite != b.infinite:  # infinitely far: what the others do counts no more
        return b.infinite > a.infinite
    return (not a.infinite and b.max > factor * a.max) or b.rms > factor * a.rms * (1 + _LAST_BITS)


def _sum_at(parts: Mapping[_Place, list[FieldComparison]], places: Iterable[_Place]) -> Distance:
    """The distance of a field over these places of a run."""
    total = Distance()
    for place in places:
        for part in parts[place]:
            total._add(part)
    return total


def _unusable(name: str, one: Distance, other: Distance, all_nan: Callable[[], bool]) -> str | None:
    """Why the distances of a field say nothing of each other; None where they do.

    `all_nan` says whether the reference holds nothing but NaN; it reads the field.
    """
    if one._is_nowhere_finite() and other._is_nowhere_finite():
        return (
            f"field {name!r}: no element of either run has a finite distance from the reference, because of "
            "NaN or infinities in it or in both runs: nothing could be compared"
        )
    if one._is_zero() and other._is_zero() and all_nan():
        return f"field {name!r}: the reference holds nothing but NaN: nothing could be compared"
    if one.infinite == other.infinite > 0:
        return f"{_infinite_text(name, one, other)}: as many in both runs, so which of them is farther is not known"
    if one.infinite == other.infinite and not (one._has_squares() and other._has_squares()):
        return f"field {name!r}: its distances are too large or too small for the mean of their squares"
    return None


def _verdict(fields: list[FieldDistances], problems: list[str]) -> str:
    if problems:
        return "incomparable"
    if any(f.farther for f in fields):
        return "farther"
    return "closer" if any(f.closer for f in fields) else "as far"


def _held_against(name: str, a: Distance, b: Distance, factor: float) -> FieldDistances:
    farther = _exceeds(b, a, factor)
    return FieldDistances(name, a, b, farther, not farther and _exceeds(a, b, 1.0))


def compare_distances(
    a: object,
    b: object,
    reference: object,
    *,
    factor: float = 1.0,
    fields: Iterable[str] | None = None,
    steps: str | None = None,
    ranks: str | None = None,
    key: str | None = None,
    align: str = "step",
    common: bool = False,
    leave_out: Iterable[str] = (),
    options: Mapping[str, object] | CompareOptions | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    **reading: Any,
) -> Distances:
    """Compares how far two runs are from a reference: whether the new one is farther than the old one.

    >>> exact = np.linspace(0, 1, 1000)
    >>> old, new = exact.astype(np.float32), exact.astype(np.float16)
    >>> found = twinrun.compare_distances({"x": old}, {"x": new}, {"x": exact})
    >>> found.verdict, found.fields[0].b.max > found.fields[0].a.max
    ('farther', True)

    Parameters
    ----------
    a, b, reference : path, array or container of arrays
        The old run, the new one, and the reference, such as a run in float64. Types may differ: fields are
        compared by the numbers that they hold.
    factor : float, default 1
        The new run is farther where its distance is more than this many times that of the old one.
    fields : str or iterable of str, default None
        Globs of the fields to compare; None for all.
    steps, ranks : str, default None
        The steps and ranks to compare: '10,20' or '100:200'.
    key : str, default None
        The field with the IDs of particles, by which rows are matched.
    align : {'step', 'time'}
        How steps are matched.
    common : bool, default False
        True: steps and fields that only some of the runs have are left out and noted.
    leave_out : str or iterable of str, default ()
        Globs of fields and files that are not compared.
    options : dict or CompareOptions, default None
        Options of the file formats; or a `CompareOptions`, which has also how files are read.
    progress : callable, default None
        `progress(label, done, total)` is called now and then.
    **reading : options by name
        Where it is done, as of `compare`: `threads`, `device`. Deprecated: `memory`, `io` and `cache`, which
        are fields of `CompareOptions`.

    Returns
    -------
    Distances
        Both distances by field, with their places. `bool(result)` is True only if everything was compared and
        the new run is nowhere farther.

    Raises
    ------
    TwinrunError
        A parameter has no meaning, and what `compare` raises where nothing can be compared.
    Incomparable
        No field of numbers is in all three.

    Notes
    -----
    Every element is read: metadata only bounds distances. |run - reference| is exact before it
    is rounded to float64. Only numbers count: texts and attributes are left to `compare`.
    """
    if not (math.isfinite(factor) and factor > 0):
        raise TwinrunError(f"factor must be a positive number, not {in_short(factor)}")
    globs = None if fields is None else names_given(fields, "fields")
    without = names_given(leave_out, "leave_out")  # read once: it may be a generator
    for name in reading:
        if name not in _READING and name not in Moved.__optional_keys__:  # as Python says it
            raise TypeError(f"compare_distances() got an unexpected keyword argument {name!r}")
    moved = {name: reading.pop(name) for name in list(reading) if name in Moved.__optional_keys__}
    how = chosen_options(options, cast(Moved, moved))
    if how.method not in ("auto", "direct"):
        raise TwinrunError(
            f"distances are those of every element, and the method is {how.method!r}",
            fix="leave the method out",
        )
    how = replace(how, method="direct", use_metadata=False)
    found = [
        compare(
            reference,
            run,
            atol=0.0,
            types="values",
            partial=True,
            fields=globs,
            steps=steps,
            ranks=ranks,
            key=key,
            align=align,
            common=common,
            leave_out=without,
            options=how,
            progress=progress,
            **reading,
        )
        for run in (a, b)
    ]
    problems = [p for one in found for p in one.problems]
    notes = same_of_three(a, b, reference)
    notes += [n for one in found for n in one.notes if not n.startswith(TWICE)]
    at_a, at_b = (_by_place(one) for one in found)
    made = []
    for name in dict.fromkeys([*at_a, *at_b]):
        of_a, of_b = at_a.get(name, {}), at_b.get(name, {})
        shared = of_a.keys() & of_b.keys()
        # Where both are compared at other places, their distances say nothing of each other.
        if of_a.keys() != of_b.keys():
            said = f"field {name!r}: not both runs have it at the same steps and ranks as the reference"
            (notes if common else problems).append(said)
            if not common or not shared:
                continue
        far_a, far_b = (_sum_at(of, [place for place in of if place in shared]) for of in (of_a, of_b))
        all_nan = functools.partial(holds_no_number, reference, name, shared, how.formats)
        if why := _unusable(name, far_a, far_b, all_nan):
            problems.append(why)
        else:
            made.append(_held_against(name, far_a, far_b, factor))
    if not made and not problems:
        raise Incomparable(
            "all three have no field of numbers in common", where=f"{found[0].b}, {found[1].b}, {found[0].a}"
        )
    return Distances(
        found[0].b,
        found[1].b,
        found[0].a,
        _verdict(made, problems),
        made,
        factor,
        list(dict.fromkeys(problems)),
        list(dict.fromkeys(notes)),
    )


def _infinite_text(name: str, a: Distance, b: Distance) -> str:
    """How many elements of a field have no finite distance, and where the first of the largest is."""
    where = _place(a) or _place(b)
    return (
        f"field {name!r}: {counted(a.infinite, 'element')} of a and {b.infinite} of b have no finite distance from the "
        f"reference, because of NaN or infinities{f' (one at {where})' if where else ''}"
    )


def _place(d: Distance) -> str:
    if d.index is None:
        return ""
    at = "" if d.step is None else f"{d.step} "
    return f"{at}[{', '.join(map(str, d.index))}]"


def distance_lines(result: Distances) -> list[str]:
    """The result in lines: a row for each field, and the verdict."""
    rows = [("field", "max |a-r|", "at", "max |b-r|", "at", "rms a", "rms b", "")]
    for f in result.fields:
        word = "farther" if f.farther else "closer" if f.closer else ""
        rows.append(
            (
                f.field,
                number(f.a.max),
                _place(f.a),
                number(f.b.max),
                _place(f.b),
                number(f.a.rms),
                number(f.b.rms),
                word,
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [f"twinrun: {n}" for n in result.notes]
    lines += [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    lines += [
        f"{_infinite_text(f.field, f.a, f.b)}: they count as infinitely far"
        for f in result.fields
        if f.a.infinite or f.b.infinite
    ]
    lines += [f"not compared: {p}" for p in result.problems]
    worse = [f.field for f in result.fields if f.farther]
    if result.verdict == "farther":
        by = "" if result.factor == 1 else f" by more than {result.factor:g} times"
        said = f"farther: b is farther from {result.reference} than a{by}, in {', '.join(worse[:5])}"
        said += f" and {len(worse) - 5} more" if len(worse) > 5 else ""
    elif result.verdict == "incomparable":
        said = f"incomparable: {result.problems[0]}"
    elif result.verdict == "closer":
        said = f"closer: b is nowhere farther from {result.reference} than a, and closer in some fields"
    else:
        said = f"as far: b is nowhere farther from {result.reference} than a"
    return [*lines, said]


def distances_document(result: Distances) -> dict[str, Any]:
    """The result for JSON."""

    def of(d: Distance) -> dict[str, Any]:
        return {**vars(d), "index": None if d.index is None else list(d.index)}

    return {
        "verdict": result.verdict,
        "a": os.fspath(result.a),
        "b": os.fspath(result.b),
        "reference": os.fspath(result.reference),
        "factor": result.factor,
        "fields": [
            {"field": f.field, "a": of(f.a), "b": of(f.b), "farther": f.farther, "closer": f.closer}
            for f in result.fields
        ],
        "problems": result.problems,
        "notes": result.notes,
    }
