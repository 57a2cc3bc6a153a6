"""All that a comparison found, step after step, and the verdict on it."""

from __future__ import annotations

import fnmatch
import itertools
import os
from collections.abc import Iterable
from dataclasses import replace

from ..errors import Incomparable, TwinrunError, Unmatched, in_words_of_the_caller
from ..formats.element_types import INTEGERS
from ..formats.facts import NOT_COMPARED, SUMMARY
from ..runs.provenance import Provenance, read_provenance
from ..runs.subject import Subject
from ..urls import shown
from ..words import counted
from .again import Again
from .field import FieldComparison, FieldGroup, bytes_read_by
from .matching import at_place, labels_of_both, names
from .outcome import Outcome
from .request import Request
from .result import Comparison
from .schedule import StepOutcome
from .tolerances import Met

__all__ = ["TWICE", "Summary", "same_of_three"]

TWICE = "both runs are the same path: "  # how the note about them begins


class Summary:
    """Adds up what a comparison found."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._found = Outcome()
        self._noted_order = False  # that particles only lie in another order
        self._ended = False  # before all steps were compared

    def add(self, found: Outcome) -> None:
        """Adds what was found before the steps were compared."""
        self._found.add(found)

    def add_step(self, step: StepOutcome) -> None:
        """Adds the outcomes of a step: of its units in order, and of the fields that remained."""
        found = Outcome()
        for outcome in step.units:
            self._add_unit(found, outcome)
        if step.again is not None:
            found.results = found.without(step.recut)
            self._add_unit(found, step.again)
        self._found.add(found)

    def _add_unit(self, step: Outcome, outcome: Outcome) -> None:
        if outcome.error is not None:
            raise outcome.error
        for _, problem in outcome.problems:
            self._request.kept(problem)
        step.add(outcome)
        if outcome.order is not None and not self._noted_order:
            self._noted_order = True
            step.remarks.notes.append(outcome.order[1])

    @property
    def met(self) -> Met:
        """What was met of the rules so far."""
        return self._found.remarks.met

    def end_here(self, why: str) -> None:
        """Makes a comparison of what was found so far: it is incomparable, whatever the caller asked for."""
        self._request = replace(self._request, partial=True)
        self._ended = True
        self.add(Outcome(problems=[(-1, Incomparable(why))]))

    def _unmet(self, compared: bool) -> tuple[list[str], list[Incomparable]]:
        """Notes and problems of what was asked for by name and was not met, at some places or at all.

        compared: whether anything was compared, or could not be.
        """
        request, said = self._request, self._found.remarks
        if request.globs is None or self._ended:
            return [], []
        if not compared:  # each place says which fields it has
            return [], [problem for _, problem in said.nothing]
        notes = []
        if said.nothing:
            first, *more = dict.fromkeys(place for place, _ in said.nothing)
            at = at_place(first, request.a, request.b).removesuffix(": ") or "one place"
            also = f" and {counted(len(more), 'more place')}" if more else ""
            asked = ", ".join(map(repr, request.globs))
            notes.append(f"neither run has a field that matches {asked} at {at}{also}")
        unmet = [g for at, g in enumerate(request.globs) if at not in said.met.asked]
        problems = [
            Incomparable(
                f"no field of either run matches {glob!r}", where=request.labels, fix="check the name"
            )
            for glob in unmet
        ]
        return notes, problems

    def comparison(self, device: str, seconds: float, again: Again) -> Comparison:
        """The verdict. device: as the caller named it. again: how both runs are opened again.

        Raises the first problem where the caller wants all or nothing, and Incomparable where nothing was
        compared, or no field fits what was asked for.
        """
        request, found, said = self._request, self._found, self._found.remarks
        a, b, settings = request.a, request.b, request.settings
        results = [f for _, f in found.results]
        problems = [p for _, p in found.problems]
        told, unmet = self._unmet(bool(results or problems or said.attributes_compared))
        problems += unmet
        of_runs = [*a.notes, *said.notes_a, *b.notes, *said.notes_b]
        notes = [*_twice(a, b), *of_runs, *said.notes, *told, *settings.tolerances.notes(said.met)]
        if request.common:  # what only one run has is no problem; what cannot be read is one
            if problems and not results and all(isinstance(p, Unmatched) for p in problems):
                raise Incomparable(
                    "nothing was compared: the runs have no field in common",
                    where=request.labels,
                    fix="name runs that share fields and steps",
                )
            # Without what to do about it: it was done.
            notes += [str(type(p)(p.what, where=p.where)) for p in problems if isinstance(p, Unmatched)]
            problems = [p for p in problems if not isinstance(p, Unmatched)]
        if problems and (not request.partial or not (results or said.attributes_compared)):
            raise problems[0]
        no_field = all(not isinstance(f, FieldGroup) and f.field in (SUMMARY, NOT_COMPARED) for f in results)
        # A file may hold nothing but attributes; where it has fields, these are what is compared.
        if no_field and (said.met.left_out or not (results or said.attributes_compared)):
            raise Incomparable("nothing was compared", where=request.labels, fix="is every field left out?")
        if request.key is not None and not said.keyed:
            raise _without_ids(request, found.fields())
        if settings.periods.axes or settings.periods.named:
            notes += self._circles()
        if settings.by_values:
            notes += _of_two_types(found.fields())
        provenance_a, said_a = _provenance(a)
        provenance_b, said_b = _provenance(b)
        notes = list(dict.fromkeys([*notes, *said_a, *said_b]))
        of_stages = sum(bytes_read_by(f) for f in results)
        agree = all(f.same for f in results) and not said.attributes
        return Comparison._of(
            results,
            a=a.label,
            b=b.label,
            verdict="incomparable" if problems else "same" if agree else "different",
            seconds=seconds,
            bytes_compared=sum(f.bytes for f in results),
            bytes_read=said.opening + of_stages,
            notes=notes,
            not_compared=said.left_out,
            device_asked=device,
            provenance_a=provenance_a,
            provenance_b=provenance_b,
            problems=[str(p) for p in problems],
            attributes=said.attributes,
            attributes_compared=said.attributes_compared,
            _again=again,
        )

    def _circles(self) -> list[str]:
        """Notes about fields on circles, and about periods without one. Raises Incomparable where no field
        lies on a circle.
        """
        periods, periodic = self._request.settings.periods, self._found.remarks.periodic
        compared = {f.field: f for _, f in self._found.fields()}.values()
        unused = [
            glob
            for glob, lengths in periods.named
            if any(lengths) and not any(fnmatch.fnmatchcase(name, glob) for name in periodic)
        ]
        why = {
            glob: [said for f in compared if (said := periods.why_not(f.field, f.dtype, f.shape, glob))]
            for glob in unused
        }
        if not periodic:
            known = [one for said in why.values() for one in said]
            known += [said for f in compared if (said := periods.why_not(f.field, f.dtype, f.shape))]
            fix = "leave the period out, or name other fields: --period field=10x10x20"
            if not known:
                named = names(repr(glob) for glob, _ in periods.named)
                known = [f"no name matches {named}" if named else "no name is that of positions"]
                fix = "say which: --period field=10x10x20"
            what = f"there is no field for the period: {known[0]}"
            raise Incomparable(what, where=self._request.a.label, fix=fix)
        said = ", ".join(f"{n} ({'x'.join(f'{p:g}' for p in v)})" for n, v in list(periodic.items())[:8])
        without = [
            f"the period for {glob!r} has no effect: {reasons[0] if reasons else 'no other name matches it'}"
            for glob, reasons in why.items()
        ]
        return [f"compared on the circle: {said}", *without]


def _twice(a: Subject, b: Subject) -> list[str]:
    """A note where one run was named twice, by whatever name: agreement then says nothing."""
    if "arrays" in (a.kind, b.kind) or not _is_one_path(a.label, b.label):
        return []
    return [f"{TWICE}{a.label}; name two different runs"]


def _is_one_path(a: str, b: str) -> bool:
    try:
        return os.path.samefile(a, b)
    except (OSError, ValueError):  # objects of stores
        return a == b


def same_of_three(a: object, b: object, reference: object) -> list[str]:
    """Notes where two of these three runs are one path: their distances are then 0, or the same."""
    named = (("a", a), ("b", b), ("the reference", reference))
    return [
        f"{one} and {other} are the same path: {shown(os.fspath(path))}; name three different runs"
        for (one, path), (other, second) in itertools.combinations(named, 2)
        if isinstance(path, (str, os.PathLike))
        and isinstance(second, (str, os.PathLike))
        and _is_one_path(os.fspath(path), os.fspath(second))
    ]


def _without_ids(request: Request, found: Iterable[tuple[int, FieldComparison]]) -> Incomparable:
    """Why no row was matched by its ID. found: what was compared as it lies."""
    if request.key == "auto":
        what = in_words_of_the_caller(
            "--key auto finds no particles: the runs do not say which field has IDs"
        )
    else:
        what = f"no field {request.key!r} of integer IDs"
    rows_of_integers = dict.fromkeys(
        f.field for _, f in found if f.kind is None and f.dtype in INTEGERS and len(f.shape) == 1
    )
    fix = "give --key the name of the field with the IDs, or leave it out: no field that was compared is a row of integers"
    if rows_of_integers:
        fix = (
            f"give --key the name of the field with the IDs; fields of integers are {names(rows_of_integers)}"
        )
    return Incomparable(what, where=", ".join(labels_of_both(request.a, request.b)), fix=fix)


def _of_two_types(results: Iterable[tuple[int, FieldComparison]]) -> list[str]:
    """Notes about fields whose types differ, the fields of the same two types together."""
    named: dict[tuple[str, str], dict[str, None]] = {}
    for _, f in results:
        if f.types is not None:
            named.setdefault(f.types, {})[f.field] = None
    return [
        f"{a} against {b}, compared by the numbers that they hold: {names(fields)}"
        for (a, b), fields in named.items()
    ]


def _provenance(subject: Subject) -> tuple[Provenance | None, list[str]]:
    """The provenance of a history. Damaged provenance does not change the verdict; it becomes a note."""
    try:
        return read_provenance(subject.provenance), []
    except TwinrunError as e:
        return None, [f"{subject.label}: {e}"]
