"""Which steps, ranks and fields of two runs belong together.

What has no partner is a problem: it is reported, and never counts as compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from ..errors import Incomparable, TwinrunError, Unmatched
from ..formats.naming import in_natural_order
from ..formats.texts import MASK, SUFFIX
from ..runs.fields import FieldRef, check_alike, lacks_any, mask_of_none, masked_field
from ..runs.order import in_one_order, in_one_type
from ..runs.subject import Opened, Place, Subject
from ..runs.values import are_comparable, by_values, castable
from .choices import ALIGNMENTS
from .field import place_text
from .tolerances import missing_steps

__all__ = [
    "ALIGNMENTS",
    "FieldMatch",
    "StepMatch",
    "Steps",
    "fields_named",
    "match_fields",
    "match_steps",
    "names",
    "steps_named",
]

# Two runs write nearly the same time for the same moment: the last digits depend on the order of
# additions.
_SAME_TIME = 1e-9


def names(values: Iterable[object], most: int = 5) -> str:
    """The first few names, and how many more."""
    listed = [str(v) for v in values]
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")


def fields_named(found: Sequence[str]) -> str:
    """'field 'u'', "fields 'u', 'w'"."""
    return f"field{'' if len(found) == 1 else 's'} {names(map(repr, found))}"


def steps_named(found: Sequence[int | None]) -> str:
    return f"step{'' if len(found) == 1 else 's'} {names(found)}"


def labels_of_both(a: Subject, b: Subject) -> tuple[str, str]:
    """What messages call the runs: their paths; arrays have none, and are the first and the second run."""
    return ("the first run", "the second run") if a.label == b.label else (a.label, b.label)


def at_place(place: Place, a: Subject, b: Subject) -> str:
    """'step 500, rank 0: ', as the begin of a problem, without what the runs do not have."""
    step, rank = place
    words = [] if step is None else [f"step {step}"]
    if rank != 0 or a.has_ranks or b.has_ranks:
        words.append(f"rank {rank}")
    return f"{', '.join(words)}: " if words else ""


@dataclass
class StepMatch:
    """A step of both runs. ranks_a, ranks_b: sorted."""

    step_a: int | None
    step_b: int | None
    ranks_a: list[int]
    ranks_b: list[int]

    @property
    def step(self) -> int | None:
        """The step as reports name it: the first run's, if it has one."""
        return self.step_b if self.step_a is None else self.step_a


@dataclass
class Steps:
    """Steps that both runs have, and problems and notes about the others."""

    matches: list[StepMatch] = field(default_factory=list)
    problems: list[TwinrunError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _by_step(places: Iterable[Place]) -> dict[int | None, list[int]]:
    found: dict[int | None, list[int]] = {}
    for step, rank in places:
        found.setdefault(step, []).append(rank)
    return found


def match_steps(
    a: Subject,
    b: Subject,
    steps: Callable[[int | None], bool] | None,
    align: str = "step",
    ranks: Callable[[int | None], bool] | None = None,
    dropped: tuple[Set[Place], Set[Place]] = (frozenset(), frozenset()),
) -> Steps:
    """The steps to compare: those with the same number, or the same time.

    steps, ranks: which to take; None for all. dropped: places of a and b that count as not there.

    Arrays have no step and match any single step. Raises Incomparable where no step remains, and what a run
    says where nothing of it can be compared.
    """
    for run in (a, b):
        if run.refusal is not None:
            raise run.refusal
    wanted = ranks or (lambda _: True)
    places_a, places_b = (
        [p for p in s.places if p not in gone] for s, gone in zip((a, b), dropped, strict=True)
    )
    arrays, other, of_other = (a, b, places_b) if a.kind == "arrays" else (b, a, places_a)
    if arrays.kind == "arrays" and any(step is not None for step, _ in of_other):
        chosen = [p for p in of_other if (steps is None or steps(p[0])) and wanted(p[1])]
        none, only = arrays.places[0], _only_place(chosen, other)
        first, second = (none, only) if arrays is a else (only, none)
        return Steps([StepMatch(first[0], second[0], [first[1]], [second[1]])])
    in_a = _by_step(p for p in places_a if steps is None or steps(p[0]))
    in_b = _by_step(p for p in places_b if steps is None or steps(p[0]))
    if not in_a and not in_b:
        what = "no steps were committed" if steps is None else "no step is among those asked for"
        there = sorted({step for step, _ in (*places_a, *places_b) if step is not None})
        said = f"--steps takes from these: {names(there, 12)}" if there else "the files have no steps"
        fix = "nothing was compared" if steps is None else said
        raise Incomparable(what, where=f"{a.label}, {b.label}", fix=fix)
    result = Steps()
    if align == "time":
        pairs = _by_time(a, b, in_a, in_b)
        result.notes += _note_of_times(a, b, pairs)
    else:
        pairs = [(s, s) for s in in_a if s in in_b]
    result.problems += _steps_alone(a, b, in_a, in_b, pairs, align)
    nowhere = missing_steps(steps, (*in_a, *in_b))
    if nowhere:
        result.problems.append(
            Unmatched(
                f"{steps_named(nowhere)}: not there",
                where=f"{a.label}, {b.label}",
                fix="compare the common ones with --common, or choose with --steps",
            )
        )
    # Ranks are chosen within steps: a step stays matched where one run lost the chosen ranks.
    for x, y in pairs:
        of_a, of_b = in_a[x], in_b[y]
        if ranks is not None:
            of_a, of_b = list(filter(ranks, of_a)), list(filter(ranks, of_b))
        match = StepMatch(x, y, _in_order(of_a), _in_order(of_b))
        if match.ranks_a or match.ranks_b:
            result.matches.append(match)
    if pairs and not result.matches:
        there = sorted({rank for x, y in pairs for rank in (*in_a[x], *in_b[y])})
        raise Incomparable(
            "no rank is among those asked for",
            where=f"{a.label}, {b.label}",
            fix=f"--ranks takes from these: {names(there, 12)}",
        )
    return result


def _in_order(ranks: list[int]) -> list[int]:
    return ranks if len(ranks) == 1 else sorted(ranks)


def _only_place(places: list[Place], run: Subject) -> Place:
    """The place of a run that arrays compare with. Raises Incomparable where there is not just one."""
    if len(places) > 1:  # files that belong to no step
        places = [p for p in places if p not in run.unknown]
    if len(places) != 1:
        raise Incomparable(
            f"{len(places)} steps and ranks are chosen, and arrays compare with one",
            where=run.label,
            fix="choose one with steps and ranks",
        )
    return places[0]


def _steps_alone(
    a: Subject, b: Subject, in_a: dict, in_b: dict, pairs: _Pairs, align: str
) -> Iterator[Unmatched]:
    """Problems for the steps of each run that have no partner."""
    for here, there, mine, matched in (
        (a, b, in_a, {s for s, _ in pairs}),
        (b, a, in_b, {s for _, s in pairs}),
    ):
        alone = sorted((s for s in mine if s not in matched), key=lambda s: -1 if s is None else s)
        if alone:
            said = "files without a step" if alone == [None] else steps_named(alone)
            fix = _fix(in_a, in_b, align)
            if not there.places and not there.incomplete:
                fix = "it has no steps: none was committed, or all were removed"
                fix = fix if there.unnamed is None else str(there.unnamed)
            if align == "step" and {*alone} <= {*there.incomplete}:
                why = f"not every rank committed {'it' if len(alone) == 1 else 'them'}"
                fix = f"{why}: {fix if there.unnamed is None else there.unnamed}"
            yield Unmatched(f"{said} of {here.label}: not there", where=there.label, fix=fix)


def _fix(in_a: dict, in_b: dict, align: str) -> str:
    common = [s for s in in_a if s in in_b]
    both = in_a and in_b and None not in in_a and None not in in_b
    if not common and align == "step" and both:
        return "the runs count their steps otherwise: --align time, if their files tell it"
    return "compare the common ones with --common, or choose with --steps"


_Pairs = list[tuple[int | None, int | None]]  # steps of a and b


def _by_time(a: Subject, b: Subject, in_a: dict, in_b: dict) -> _Pairs:
    times = []
    for subject, mine in ((a, in_a), (b, in_b)):
        known = subject.times()
        without = [s for s in mine if s not in known and not (s is None and (None, 0) in subject.unknown)]
        if without:
            raise Incomparable(
                "files without a step have no time"
                if without == [None]
                else f"{steps_named(without)} {'has' if len(without) == 1 else 'have'} no time",
                where=subject.label,
                fix="align by step" + (", or choose steps" if without != [None] else ""),
            )
        times.append(sorted((known[s], s) for s in mine if s in known))
    pairs: _Pairs = []
    if None in in_a and None in in_b:  # files that belong to no step
        pairs.append((None, None))
        times = [[entry for entry in side if entry[1] is not None] for side in times]
    at = 0
    for time, step in times[0]:
        while at < len(times[1]) and times[1][at][0] < time and not _same_time(times[1][at][0], time):
            at += 1
        if at < len(times[1]) and _same_time(times[1][at][0], time):
            pairs.append((step, times[1][at][1]))
            at += 1
    return pairs


def _note_of_times(a: Subject, b: Subject, pairs: _Pairs) -> list[str]:
    renamed = [(x, y) for x, y in pairs if x != y]
    if not renamed:
        return []
    said = names(f"{x} with {y}" for x, y in renamed)
    return [f"aligned by time: step {said} (of {a.label} and {b.label})"]


def _same_time(x: float, y: float) -> bool:
    return math.isclose(x, y, rel_tol=_SAME_TIME, abs_tol=1e-300)


@dataclass
class FieldMatch:
    """Fields of one place. recut: parts of global arrays that the runs cut differently. notes: on pairs."""

    pairs: list[tuple[FieldRef, FieldRef]] = field(default_factory=list)
    recut: list[str] = field(default_factory=list)
    problems: list[TwinrunError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def match_fields(
    a: Subject,
    b: Subject,
    in_a: Opened,
    in_b: Opened,
    chosen: Callable[[str], bool],
    named: bool,
    place: Place,
    values: bool = False,
) -> FieldMatch:
    """The fields to compare: those with the same name, or the single fields of one-array files, whatever
    their names.

    chosen: whether to compare a field of this name. named: whether the caller chose by names. values: fields
    of different types are compared by the numbers that they hold.
    """
    problems: list[TwinrunError] = []
    at = at_place(place, a, b)
    if not named and len(in_a) == 1 and len(in_b) == 1 and a.kind != "history" and b.kind != "history":
        x, y = next(iter(in_a.values())), next(iter(in_b.values()))
        alike = x.name == y.name or (a.kind != "folder" and in_a.one_array and in_b.one_array)
        if alike and chosen(x.name):
            return _checked([(x, y)], [], a, b, at, values)
    chosen_a = {n: f for n, f in in_a.items() if chosen(n)}
    chosen_b = {n: f for n, f in in_b.items() if chosen(n)}
    elsewhere: list[str] = []  # parts of global arrays, which other ranks of the other run may hold
    of_a, of_b = labels_of_both(a, b)
    _add_masks(chosen_a, chosen_b)
    _add_masks(chosen_b, chosen_a)
    for here, there, mine, theirs in ((of_a, of_b, chosen_a, chosen_b), (of_b, of_a, chosen_b, chosen_a)):
        missing = [n for n in mine if n not in theirs]
        elsewhere += [n for n in missing if mine[n].place is not None]
        missing = [n for n in missing if mine[n].place is None]
        masks = [n for n in missing if n.endswith(MASK) and masked_field(n, theirs) is not None]
        if masks:
            problems.append(
                Incomparable(
                    f"{at}{fields_named(masks)}: only in {here}, and no value is known to lack by it",
                    where=there,
                    fix="keep the data, or leave the field and its mask out",
                )
            )
        missing = [n for n in missing if n not in masks]
        as_text = [n for n in missing if f"{n}{SUFFIX}" in theirs and f"{n}{SUFFIX}" not in mine]
        if as_text:
            problems.append(
                Unmatched(
                    f"{at}{fields_named(as_text)}: numbers in {here}, and text in {there}",
                    where=there,
                    fix="store numbers in both, or text in both",
                )
            )
        # What the other run has as numbers alone is told when its turn comes.
        told = [
            n
            for n in missing
            if n.endswith(SUFFIX)
            and (numbers := n.removesuffix(SUFFIX)) in theirs
            and numbers not in mine
            and theirs[numbers].place is None
        ]
        missing = [n for n in missing if n not in as_text and n not in told]
        if missing:
            missing = _unknown(missing, in_b if mine is chosen_a else in_a, chosen)
        if missing:
            problems.append(
                Unmatched(
                    f"{at}{fields_named(missing)} of {here}: not there",
                    where=there,
                    fix="compare the common ones with --common, or choose with --field",
                )
            )
    common = [n for n in chosen_a if n in chosen_b]
    if a.kind not in ("arrays", "history"):  # HDF5 has step_10 before step_4
        common = in_natural_order(common)
    same = [(_with_mask(chosen_a[n], chosen_a), _with_mask(chosen_b[n], chosen_b)) for n in common]
    found = _checked(same, problems, a, b, at, values)
    found.recut += elsewhere
    return found


def _add_masks(mine: Mapping[str, FieldRef], theirs: dict[str, FieldRef]) -> None:
    """Gives a field a mask where the other run has one by which values lack: where none lacks, none is
    stored. A mask by which none lacks is a field like any other, which a run has or has not.
    """
    for name, mask in mine.items():
        field = masked_field(name, theirs) if name.endswith(MASK) and name not in theirs else None
        if field is not None and field.place is None and mask.place is None and lacks_any(mask):
            made = mask_of_none(mask, field)
            if made is not None:
                theirs[name] = made


def _with_mask(ref: FieldRef, fields: Mapping[str, FieldRef]) -> FieldRef:
    """A field that knows where its elements have no value."""
    mask = fields.get(f"{ref.name.removesuffix(SUFFIX)}{MASK}", fields.get(f"{ref.name}{MASK}"))
    return ref if mask is None else replace(ref, mask=mask)


def _unknown(missing: Sequence[str], other: Opened, chosen: Callable[[str], bool]) -> list[str]:
    """Of fields that the other run lacks, those that it does not have: others it has, and cannot compare, and
    a problem says why.
    """
    skipped = [name for name, _, _ in other.skipped if chosen(name)]
    within = tuple(f"{name}{mark}" for name in skipped for mark in "./@")
    return [n for n in missing if n not in skipped and not n.startswith(within)]


def _checked(
    same: Iterable[tuple[FieldRef, FieldRef]],
    problems: Iterable[TwinrunError],
    a: Subject,
    b: Subject,
    at: str,
    values: bool,
) -> FieldMatch:
    """The fields of both runs that can be compared, and why others cannot, after these problems."""
    result = FieldMatch(problems=list(problems))
    for x, y in same:
        try:
            of_x, of_y = x.user_place, y.user_place
            # that a part is equal proves nothing
            if of_x is not None and of_y is not None and of_x[0] != of_y[0]:
                raise Incomparable(
                    f"{at}field {x.name!r} is a part of {list(of_x[0])} in {a.label}, "
                    f"of {list(of_y[0])} in {b.label}",
                    fix="the shapes must be the same",
                )
            x, y = in_one_type(x, y)
            if values:
                x, y = by_values(x, y)
            if cut_otherwise(x, y):
                result.recut.append(x.name)
                continue
            mixed = values and are_comparable(x.dtype, y.dtype)
            may_cast = not values and castable(x.dtype, y.dtype)
            what = f"{at}field {x.name!r}"
            check_alike(x, y, what, a.label, b.label, mixed, may_cast)
            result.pairs.append(in_one_order(x, y, what))
            if (of_x is None) != (of_y is None) and (note := _placed_once(x, y, what, a, b)):
                result.notes.append(note)
        except Incomparable as error:
            result.problems.append(error)
    return result


def _placed_once(x: FieldRef, y: FieldRef, what: str, a: Subject, b: Subject) -> str:
    """What to note where one run alone says of which part of a global array a field is; "": of all of it."""
    ref, mine, theirs = (x, a, b) if y.user_place is None else (y, b, a)
    assert ref.user_place is not None
    whole, offset = ref.user_place
    if whole == ref.user_shape:
        return ""
    here, there = (mine.label, theirs.label) if mine.label != theirs.label else ("one run", "the other")
    return (
        f"{what} is the part of {list(whole)} from {list(offset)} on in {here}, and {there} does not say which part "
        "it is: they were compared as the same part"
    )


def cut_otherwise(x: FieldRef, y: FieldRef) -> bool:
    """Whether two parts of the same global array are different parts of it."""
    of_x, of_y = x.user_place, y.user_place
    if of_x is None or of_y is None or (of_x == of_y and x.user_shape == y.user_shape):
        return False
    return x.dtype == y.dtype and of_x[0] == of_y[0]


def same_ranks(match: StepMatch) -> bool:
    """Whether both runs have the same ranks in a step.

    Where one has no steps, single places match whatever their rank.
    """
    if match.ranks_a == match.ranks_b:
        return True
    return len(match.ranks_a) == len(match.ranks_b) == 1 and None in (match.step_a, match.step_b)


def lost(match: StepMatch, ranks: Iterable[int], of_a: bool) -> bool:
    """Whether the other run has none of these ranks: what lies on them was lost with its ranks."""
    theirs = match.ranks_b if of_a else match.ranks_a
    return not same_ranks(match) and not set(ranks) & set(theirs)


def missing_ranks(match: StepMatch, a: Subject, b: Subject) -> Sequence[TwinrunError]:
    """Problems for ranks that only one run has, where parts cannot be joined."""
    found: list[TwinrunError] = []
    for here, there, mine, theirs in (
        (a, b, match.ranks_a, match.ranks_b),
        (b, a, match.ranks_b, match.ranks_a),
    ):
        alone = [place_text((match.step, rank)) for rank in mine if rank not in theirs]
        if alone:
            found.append(
                Unmatched(
                    f"{names(alone)} of {here.label}: not there",
                    where=there.label,
                    fix="runs of other rank counts need fields with a place in a global array, or --key; "
                    "leave ranks out with --ranks",
                )
            )
    return found
