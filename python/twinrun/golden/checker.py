"""`check`: compares a run with golden files."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from ..arguments import check_settings, checked_path
from ..arithmetic import any_values
from ..comparison.attributes import AttributeDifference, renamed_array
from ..comparison.field import place_text
from ..comparison.ids import match_ids
from ..comparison.matching import names
from ..comparison.settings import Decision, Settings
from ..comparison.tolerances import Periods, missing_steps, periods_of
from ..comparison.work import parse_steps
from ..errors import Incomparable, MissingFile, TwinrunError, in_short
from ..remote import Copies
from ..runs.fields import FieldRef, check_alike
from ..runs.metadata import damaged_fields
from ..runs.opening import open_subject, without_effect
from ..runs.order import in_type
from ..runs.subject import Opened, Place, Subject
from ..urls import is_url, without_secrets
from .attributes import AttributeCheck, check_attributes, saved_attributes
from .digests import Digests
from .elements import check_values, compared, kept_ref, kept_refs
from .fields import check_field
from .folder import open_place
from .manifest import GoldenFieldFacts, GoldenPlace, Manifest
from .particles import Rows, chosen_rows, identity, in_order, rows_by_id, with_ids
from .remote import copied
from .result import GoldenCheck, GoldenField, GoldenProblem
from .rules import needs_values, rule_settings, without_circle
from .selection import attribute_globs, chosen_places, field_globs, is_chosen, unmet
from .values import KeptValues

__all__ = ["check"]


@dataclass(frozen=True)
class _Request:
    """What a call of `check` compares: see its parameters.

    reading: how data is read, and how much is listed (`check_field`).
    """

    folder: str
    manifest: Manifest
    subject: Subject
    fields: tuple[str, ...] | None
    ignored_attributes: tuple[str, ...]
    reading: Mapping[str, Any]
    key: str | None = None
    ulp: int | None = None
    periods: Periods = field(default_factory=Periods)
    name: str | None = None  # of the golden files, where the folder has copies of them
    copies: Copies | None = None  # of golden files in a store: each is copied when it is needed
    on_circles: set[str] = field(default_factory=set)  # fields that `periods` gives lengths, as they are met

    @property
    def label(self) -> str:
        return self.folder if self.name is None else self.name

    def kept(self, place: GoldenPlace) -> _Kept:
        """What is kept of a place. Raises an error unless the files are those that the manifest lists."""
        if self.copies is not None:
            self.copies.bring(file.file for file in place.files())
        return _Kept(*open_place(self.folder, place))

    def decision(self, saved: GoldenFieldFacts, ref: FieldRef) -> Decision:
        """What counts as different in a field, element by element row by row."""
        found = saved.decision
        if ref.unit is not None and (found.atol or found.rtol):  # NaT may lie within it
            raise Incomparable(
                "was saved with a tolerance, and no tolerance holds for dates", fix="save again"
            )
        if self.ulp is None and not (self.periods.axes or self.periods.named):
            return found
        ulps = found.ulps if self.ulp is None else self.ulp
        settings = Settings(atol=found.atol, rtol=found.rtol, equal_nan=found.equal_nan, ulps=ulps,
                            integers=True, periods=self.periods)  # fmt: skip
        own = settings.decision(ref, ref, None)
        if own.period:
            self.on_circles.add(saved.name)
        return replace(own, period=own.period or found.period, component_stride=1)

    @property
    def named(self) -> bool:
        """Whether fields were chosen by name, by this call or when the golden files were saved."""
        return self.fields is not None or self.manifest.chosen_fields is not None

    def compares(self, name: str) -> bool:
        """Whether a field of the run must be in the golden files."""
        return is_chosen(name, self.fields) and self.manifest.keeps(name)

    def compared_of(self, places: Iterable[GoldenPlace]) -> Callable[[str], bool]:
        """Whether a field of the run is compared, or must be in these places."""
        saved = {f.name for place in places for f in place.fields}
        return lambda name: self.compares(name) or (name in saved and is_chosen(name, self.fields))


@dataclass
class _Found:
    """What is known of one place, or of several."""

    fields: list[GoldenField] = field(default_factory=list)
    problems: list[GoldenProblem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    attributes: list[AttributeDifference] = field(default_factory=list)
    attributes_compared: int = 0

    def add(self, other: _Found) -> None:
        """Adds what is known of another place."""
        self.fields += other.fields
        self.problems += other.problems
        self.notes += other.notes
        self.attributes += other.attributes
        self.attributes_compared += other.attributes_compared


def _under_saved_name(place: GoldenPlace, present: Opened, wanted: Iterable[str]) -> Opened:
    """The place of the run; its single array has the name that was saved, because files may be renamed."""
    if not place.one_array or present.array_name is None:
        return present
    structs = {a.owner for a in place.attributes or () if a.name == "(members)"}
    if structs:
        return renamed_array(present, present.array_name, min(structs, key=len))
    names = list(wanted)
    if len(names) == len(present) == 1:
        return present.with_fields(dict(zip(names, present.values(), strict=True)))
    return present


def _check_saved(
    request: _Request, saved: GoldenFieldFacts, kept: _Kept, ref: FieldRef, place: Place
) -> GoldenField:
    """Compares a field with what is kept of it. Raises TwinrunError where that cannot be."""
    decision = request.decision(saved, ref)
    if saved.name in kept.values:
        return check_values(kept.digests, kept.elements(saved.name), ref, place, decision,
                            label=request.subject.label, **request.reading)  # fmt: skip
    if needed := needs_values(decision):
        raise Incomparable(
            f"{needed} needs values, and only digests are kept of this field",
            fix=f"save again with --keep-values {ref.items * ref.itemsize}, or check without it",
        )
    return check_field(kept.digests, kept.digests.numbers[saved.name], ref, place, saved.atol, saved.rtol,
                       label=request.subject.label, **request.reading)  # fmt: skip


@dataclass(frozen=True)
class _Kept:
    """What is kept of a place: digests and values."""

    digests: Digests
    values: Mapping[str, KeptValues]

    def elements(self, name: str) -> FieldRef:
        """The values of a field. Raises DamagedFile where its digests are of others."""
        return kept_ref(self.digests, name, self._elements)

    @cached_property
    def _elements(self) -> dict[str, FieldRef]:
        return kept_refs(self.digests, self.values)


def _check_place(request: _Request, place: GoldenPlace, of_run: Place) -> _Found:
    """Compares one place. Raises TwinrunError where none of it can be compared."""
    kept = request.kept(place)
    with request.subject.open(of_run, whole=False) as opened:
        return _check_opened(request, place, kept, opened)


def _check_opened(
    request: _Request,
    place: GoldenPlace,
    kept: _Kept,
    opened: Opened,
    particles: Collection[str] = (),
    skipped: Collection[str] = (),
    compared_by_id: Collection[str] = (),
) -> _Found:
    """Compares one place.

    particles: names of the run's fields that belong to particles. compared_by_id: those of them that are
    compared. skipped: of the saved ones.
    """
    known = {f.name for f in place.fields}
    chosen = (f for f in place.fields if is_chosen(f.name, request.fields))
    wanted = {f.name: f for f in chosen if f.name not in skipped}
    label = request.subject.label
    found = _Found()

    def problem(name: str | None, text: str) -> None:
        found.problems.append(GoldenProblem(place.step, place.rank, name, text))

    found.notes += opened.notes
    present = _under_saved_name(place, opened, wanted)
    for name in present:
        if name not in known and name not in particles and request.compares(name):
            problem(name, f"not in {request.label}: save again, or choose fields")
    for name, where, why in present.skipped:
        if request.compares(name):
            problem(name, f"{where}: cannot be compared: {why}")
    for file in opened.unopened:
        if not file.name or request.compares(file.name):
            problem(file.name or None, str(file.error))
    wanted = {
        name: saved
        for name, saved in wanted.items()
        if name in present or not any(file.holds(name) for file in opened.unopened)
    }
    # A file that cannot be opened says nothing, so that its attributes would count as missing.
    facts = (
        AttributeCheck()
        if opened.unopened
        else check_attributes(
            place,
            present,
            {*wanted, *compared_by_id},
            label=label,
            named=request.named,
            renamed={ref.name: name for name, ref in present.items() if ref.name != name},
            ignored=request.ignored_attributes,
        )
    )
    found.problems += facts.problems
    found.notes += facts.notes
    found.attributes += facts.differences
    found.attributes_compared += facts.compared
    for name, saved in wanted.items():
        if name not in present:
            problem(name, f"not in {label}")
            continue
        try:
            found.fields.append(_check_saved(request, saved, kept, present[name], (place.step, place.rank)))
        except TwinrunError as e:
            problem(name, str(e))
    return found


def _check_step(
    request: _Request, step: int | None, places: Sequence[GoldenPlace], of_run: Sequence[Place]
) -> _Found:
    """Compares a step whose particles were saved by ID. of_run: the places of the run at this step."""
    found = _Found()
    label, key = request.subject.label, request.manifest.key
    assert key is not None
    with contextlib.ExitStack() as stack:
        opened = [(rank, stack.enter_context(request.subject.open((s, rank)))) for s, rank in of_run]
        asked = request.compared_of(places)
        rows = rows_by_id(opened, key, asked, label, step)
        by_id = rows.kept(asked)
        found.problems += [GoldenProblem(step, None, None, str(e)) for e in rows.problems]
        kinds = {kind.key: kind for kind in rows.kinds}
        for place in (p for p in places if p.by_id):
            kept = request.kept(place)
            for name in dict.fromkeys(f.key for f in place.fields if f.key is not None):
                saved = [f for f in place.fields if f.key == name and f.name != name]
                of_ids = next(f for f in place.fields if f.name == name)
                try:
                    found.add(_check_kind(request, step, kept, of_ids, saved, kinds.pop(name, None)))
                except TwinrunError as e:
                    found.problems.append(GoldenProblem(step, None, name, str(e)))
        for kind in kinds.values():
            if request.compares(kind.key):
                text = f"not in {request.label}: save again, or choose fields"
                found.problems.append(GoldenProblem(step, None, kind.key, text))
        by_rank = {p.rank: p for p in places if not p.by_id}
        for rank, present in opened:
            # Arrays belong to any single rank.
            alone = len(opened) == 1 and len(by_rank) == 1 and request.subject.kind == "arrays"
            at = next(iter(by_rank)) if alone else rank
            if at in by_rank:
                of_rank = by_rank.pop(at)
                kept = request.kept(of_rank)
                found.add(_check_opened(request, of_rank, kept, present, rows.names, compared_by_id=by_id))
                continue
            found.problems += _not_saved(request, step, rank, present, rows.names, by_id)
        for rank in by_rank:
            found.problems.append(GoldenProblem(step, rank, None, f"not in {label}"))
    return found


def _check_kind(
    request: _Request,
    step: int | None,
    kept: _Kept,
    of_ids: GoldenFieldFacts,
    saved: Sequence[GoldenFieldFacts],
    rows: Rows | None,
) -> _Found:
    """Compares one kind of particles: their IDs, then their fields.

    of_ids, saved: the field of IDs and the others, as they were saved. rows: of the run; None where it has
    none.
    """
    if of_ids.name in kept.values:
        names = [f.name for f in (of_ids, *saved) if f.name in kept.values]
        golden = {n: kept.elements(n) for n in names}
        return _check_rows(request, step, golden, of_ids, saved, rows, kept)
    found = _wanted_rows(request, step, of_ids, saved, rows)
    if rows is None or not _asked_for(request, of_ids, saved):
        return found
    label, place, ids = request.subject.label, (step, 0), rows.fields[of_ids.name]
    (saved_rows,) = of_ids.shape
    if saved_rows != ids.items and of_ids.dtype == ids.dtype:
        raise Incomparable(
            f"{saved_rows} particles in the golden files, {ids.items} in {label}: which of them are lost or "
            "new, digests do not say",
            fix=f"save again with --keep-values {saved_rows * ids.itemsize} to know",
        )
    entry = check_field(kept.digests, kept.digests.numbers[of_ids.name], ids, place, 0.0, 0.0, label=label,
                        **request.reading)  # fmt: skip
    found.fields.append(entry)
    for f in _asked_for(request, of_ids, saved):
        if f is of_ids:
            continue
        try:
            if f.name not in rows.fields:
                raise Incomparable(f"not in {label}")
            if entry.verdict != "same":
                raise Incomparable(_OTHER_IDS, fix=_KEEP_ALL)
            found.fields.append(
                with_ids(_check_saved(request, f, kept, rows.fields[f.name], place), rows.ids)
            )
        except TwinrunError as e:
            found.problems.append(GoldenProblem(step, None, f.name, str(e)))
    return found


_OTHER_IDS = "its rows belong to other IDs than the saved ones, and only digests are kept"
_OTHER_ORDER = "only digests are kept, in the order of the run that was saved"
_SAVE_BY_ID = "save again with --key, or with --keep-values for the whole field"
_KEEP_ALL = "save again with --keep-values, as many bytes as the field has"


def _asked_for(
    request: _Request, of_ids: GoldenFieldFacts, saved: Sequence[GoldenFieldFacts]
) -> list[GoldenFieldFacts]:
    """The fields of a kind that are compared, its IDs first; none where nothing of it was asked for."""
    others = [f for f in saved if is_chosen(f.name, request.fields)]
    return [of_ids, *others] if others or is_chosen(of_ids.name, request.fields) else []


def _wanted_rows(
    request: _Request,
    step: int | None,
    of_ids: GoldenFieldFacts,
    saved: Sequence[GoldenFieldFacts],
    rows: Rows | None,
) -> _Found:
    """What only one side has of a kind of particles."""
    found = _Found()
    if not _asked_for(request, of_ids, saved):
        return found
    if rows is None:
        text = f"not in {request.subject.label}"
        found.problems.append(GoldenProblem(step, None, of_ids.name, text))
        return found
    for name in rows.fields.keys() - {of_ids.name, *(f.name for f in saved)}:
        text = f"not in {request.label}: save again, or choose fields"
        found.problems.append(GoldenProblem(step, None, name, text))
    return found


def _check_rows(
    request: _Request,
    step: int | None,
    golden: Mapping[str, FieldRef],
    of_ids: GoldenFieldFacts,
    saved: Sequence[GoldenFieldFacts],
    rows: Rows | None,
    kept: _Kept | None,
) -> _Found:
    """Compares one kind of particles whose IDs keep their values.

    golden: kept values of it, in the order of IDs. kept: digests of its rows in this order, for
    fields that are not in `golden`; None where digests are of another order, which is a problem
    already. Others: as for `_check_kind`.
    """
    found = _wanted_rows(request, step, of_ids, saved, rows)
    if rows is None or not _asked_for(request, of_ids, saved):
        return found
    label, place = request.subject.label, (step, 0)
    then, now = golden[of_ids.name], rows.fields[of_ids.name]
    if (then.dtype, then.unit, then.kind) != (now.dtype, now.unit, now.kind):
        raise Incomparable(f"IDs are {then.dtype} in the golden files, {now.dtype} in {label}")
    matched = match_ids(in_order(then), in_order(now))
    entry, note = identity(of_ids.name, place, now.dtype, matched)
    found.notes += [note] if note else []
    found.fields.append(entry)
    for f in _asked_for(request, of_ids, saved)[1:]:
        try:
            if f.name not in rows.fields:
                raise Incomparable(f"not in {label}")
            ref = rows.fields[f.name]
            if f.name not in golden:
                if kept is None:
                    continue  # its places say why
                if entry.verdict != "same":
                    raise Incomparable(_OTHER_IDS, fix=_KEEP_ALL)
                found.fields.append(with_ids(_check_saved(request, f, kept, ref, place), rows.ids))
                continue
            a, b = golden[f.name], in_type(ref, f.dtype)
            a, b = (chosen_rows(r, at) for r, at in ((a, matched.rows_a), (b, matched.rows_b)))
            check_alike(a, b, "rows", "the golden files", label)
            one = compared(
                a, b, place, request.decision(f, b), request.manifest.chunk_bytes, **request.reading
            )
            found.fields.append(with_ids(one, matched.ids))
        except TwinrunError as e:
            found.problems.append(GoldenProblem(step, None, f.name, str(e)))
    return found


def _not_saved(
    request: _Request,
    step: int | None,
    rank: int,
    present: Opened,
    particles: Collection[str],
    compared_by_id: Collection[str],
) -> list[GoldenProblem]:
    """A problem where the run has something on a rank of which nothing was saved. particles,
    compared_by_id: as for `_check_opened`.
    """
    left = [n for n in present if n not in particles and request.compares(n)]
    left += [n for n, _, _ in present.skipped if request.compares(n)]
    chosen = {*compared_by_id, *left}
    if not left and not saved_attributes(present, chosen, request.named, request.ignored_attributes):
        return []
    text = f"not in {request.label}: save again, or choose steps"
    return [GoldenProblem(step, rank, left[0] if left else None, text)]


def _kept_as_digests(
    request: _Request,
    step: int | None,
    sides: Iterable[tuple[GoldenPlace, _Kept]],
    particles: Collection[str],
) -> list[GoldenProblem]:
    """Problems for fields of particles of which only digests are kept: they cannot be compared by rows."""
    text = f"{_OTHER_ORDER}; {_SAVE_BY_ID}"
    return [
        GoldenProblem(step, place.rank, f.name, text)
        for place, kept in sides
        for f in place.fields
        if f.name in particles and f.name not in kept.values and is_chosen(f.name, request.fields)
    ]


def _check_step_by_values(
    request: _Request, key: str, step: int | None, places: Sequence[GoldenPlace], of_run: Sequence[Place]
) -> _Found:
    """Compares a step by ID that was saved in the order of its run: as far as values are kept."""
    found = _Found()
    label = request.subject.label
    sides = [(place, request.kept(place)) for place in places]
    refs = [(place.rank, {n: k.elements(n) for n in k.values}) for place, k in sides]
    facts = {f.name: f for place in places for f in place.fields}
    with contextlib.ExitStack() as stack:
        opened = [(rank, stack.enter_context(request.subject.open((s, rank)))) for s, rank in of_run]
        then = rows_by_id(refs, key, lambda name: True, request.label, step)
        asked = request.compared_of(places)
        now = rows_by_id(opened, key, asked, label, step)
        by_id = now.kept(asked)
        found.problems += [GoldenProblem(step, None, None, str(e)) for e in (*then.problems, *now.problems)]
        kinds = {kind.key: kind for kind in now.kinds}
        if not then.kinds:
            raise Incomparable(
                f"the golden files keep no values of a field of IDs {key!r}",
                fix=f"save again with --key {key}",
            )
        for kind in then.kinds:
            ours = kinds.pop(kind.key, None)
            names = [
                n
                for n in facts
                if n != kind.key and (n in kind.fields or (ours is not None and n in ours.fields))
            ]
            try:
                found.add(
                    _check_rows(
                        request, step, kind.fields, facts[kind.key], [facts[n] for n in names], ours, None
                    )
                )
            except TwinrunError as e:
                found.problems.append(GoldenProblem(step, None, kind.key, str(e)))
        for name in kinds:
            if request.compares(name):
                text = "no values of these IDs are kept: save again with --key"
                found.problems.append(GoldenProblem(step, None, name, text))
        done = then.names | now.names
        found.problems += _kept_as_digests(request, step, sides, done)
        by_rank = dict(opened)
        alone = len(opened) == len(sides) == 1
        for place, kept in sides:
            present = (
                opened[0][1] if alone and request.subject.kind == "arrays" else by_rank.pop(place.rank, None)
            )
            if present is not None:
                by_rank.pop(opened[0][0] if alone else place.rank, None)
                found.add(
                    _check_opened(request, place, kept, present, done, skipped=done, compared_by_id=by_id)
                )
            elif any(f.name not in done for f in place.fields):
                found.problems.append(GoldenProblem(step, place.rank, None, f"not in {label}"))
        for rank, present in by_rank.items():
            found.problems += _not_saved(request, step, rank, present, done, by_id)
    return found


def _fields_kept(manifest: Manifest) -> str:
    """Which fields the golden files have, for who asked for another."""
    kept = dict.fromkeys(repr(f.name) for place in manifest.places for f in place.fields)
    return f"the golden files have {names(kept, 8)}"


def _chosen(
    request: _Request, steps: str | None
) -> tuple[list[GoldenPlace], list[Place], list[GoldenProblem]]:
    """The saved places to check, the places of the run, and the steps that golden files lack."""
    folder, manifest = request.label, request.manifest
    chosen = None if steps is None else parse_steps(steps)
    wanted = [p for p in manifest.places if chosen is None or chosen(p.step)]
    if not wanted:
        kept = sorted({p.step for p in manifest.places if p.step is not None})
        said = f"--steps takes from these: {names(kept, 12)}" if kept else "they have no steps"
        raise Incomparable("no step is among those asked for", where=folder, fix=said)
    saved = chosen_places(request.subject, manifest.chosen_steps, "compare")
    at_hand = [p for p in saved if chosen is None or chosen(p[0])]
    problems = [
        GoldenProblem(missing, None, None, f"not in {folder}: choose other steps")
        for missing in missing_steps(chosen, [p.step for p in wanted])
    ]
    return wanted, at_hand, problems


def _pairs(
    request: _Request, steps: str | None
) -> tuple[list[tuple[GoldenPlace, Place]], list[GoldenProblem]]:
    """The saved places to check, each with its place of the run; and what only one side has."""
    wanted, at_hand, problems = _chosen(request, steps)
    if (
        request.subject.kind == "arrays" and len(wanted) == 1
    ):  # arrays have no step, and belong to any single one
        return [(wanted[0], request.subject.places[0])], problems
    known = {(p.step, p.rank) for p in wanted}
    problems += [
        GoldenProblem(step, rank, None, f"not in {request.label}: save again, or choose steps")
        for step, rank in at_hand
        if (step, rank) not in known
    ]
    return [(p, (p.step, p.rank)) for p in wanted], problems


_Step = tuple["int | None", list[GoldenPlace], list[Place]]  # a step of both sides


def _steps(request: _Request, steps: str | None) -> tuple[list[_Step], list[GoldenProblem]]:
    """The steps to check, each with its saved places and those of the run; and what only one side has."""
    wanted, at_hand, problems = _chosen(request, steps)
    by_step: dict[int | None, list[GoldenPlace]] = {}
    for place in wanted:
        by_step.setdefault(place.step, []).append(place)
    if request.subject.kind == "arrays" and len(by_step) == 1:
        ((step, places),) = by_step.items()
        return [(step, places, [*request.subject.places])], problems
    of_run: dict[int | None, list[Place]] = {}
    for at in at_hand:
        of_run.setdefault(at[0], []).append(at)
    problems += [
        GoldenProblem(step, None, None, f"not in {request.label}: save again, or choose steps")
        for step in of_run
        if step not in by_step
    ]
    problems += [
        GoldenProblem(step, None, None, f"not in {request.subject.label}")
        for step in by_step
        if step not in of_run
    ]
    return [(step, places, of_run[step]) for step, places in by_step.items() if step in of_run], problems


def _without_damage(request: _Request, found: _Found, of_run: Sequence[Place]) -> _Found:
    """Data of a history that is not what was captured is damaged: neither different nor the same, however
    little it changed. All of it is read.

    of_run: places whose comparison this is.
    """
    names = {f.field for f in found.fields}
    if request.subject.kind != "history" or not names:
        return found
    for place in of_run:
        with request.subject.open(place, whole=False) as opened:
            kept = [ref for name, ref in opened.items() if name in names]
            for name, error in damaged_fields(kept, request.reading["threads"]).items():
                found.problems.append(GoldenProblem(*place, name, str(error)))
                found.fields = [f for f in found.fields if (f.field, f.rank) != (name, place[1])]
    return found


def _check_all(
    request: _Request, steps: str | None, progress: Callable[[str, int, int], None] | None
) -> _Found:
    """Compares place by place; or step by step, where particles were saved by ID."""
    work: list[tuple[Place, Callable[[], _Found], list[Place]]] = []
    if request.manifest.key is not None:
        groups, problems = _steps(request, steps)
        work += [((group[0], 0), partial(_check_step, request, *group), group[2]) for group in groups]
    elif request.key is not None:
        groups, problems = _steps(request, steps)
        work += [((g[0], 0), partial(_check_step_by_values, request, request.key, *g), g[2]) for g in groups]
    else:
        pairs, problems = _pairs(request, steps)
        for place, of_run in pairs:
            if of_run in request.subject.places:
                compare_it = partial(_check_place, request, place, of_run)
                work.append(((place.step, place.rank), compare_it, [of_run]))
            else:
                text = f"not in {request.subject.label}"
                problems.append(GoldenProblem(place.step, place.rank, None, text))
    found = _Found(problems=problems)
    for done, ((step, rank), compare_one, places) in enumerate(work):
        try:
            found.add(_without_damage(request, compare_one(), places))
        except TwinrunError as e:
            found.problems.append(GoldenProblem(step, rank, None, str(e)))
        if progress is not None:
            progress(place_text((step, rank)), done + 1, len(work))
    return found


@any_values
def check(
    golden: str | os.PathLike[str],
    run: object,
    *,
    fields: Iterable[str] | None = None,
    steps: str | None = None,
    ulp: int | None = None,
    key: str | None = None,
    period: str | float | Iterable[float] | None = None,
    undecided: str = "fail",
    most_listed: int = 100,
    threads: int = 0,
    memory: int = 1 << 30,
    io: str = "auto",
    options: Mapping[str, object] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    ignore_attributes: Iterable[str] = (),
) -> GoldenCheck:
    """Compares a run with golden files: which elements differ, and by how much.

    >>> from twinrun import golden
    >>> x = np.linspace(0, 1, 1000)
    >>> facts = golden.save({"x": x}, "golden/x", atol=1e-6)
    >>> y = x.copy()
    >>> y[7] += 1e-3
    >>> result = golden.check("golden/x", {"x": y})
    >>> result.verdict, result.first.first.index
    ('different', (7,))

    Parameters
    ----------
    golden : str or path
        A folder that `save` wrote, or a URL of a copy (docs/reference/remote.md).
    run : path, array or container of arrays
        As for `save`. Arrays have no step, and are compared with golden files of one step.
    fields : str or iterable of str, default None
        Globs of the fields to check; None for all.
    steps : str, default None
        The steps to check: '10,20' or '100:200', both ends included; None for all.
    ulp, period : default None
        As for `save`, in place of what was saved, for fields whose values are kept. Fields of which
        only digests are kept become problems where this needs values.
    key : str, default None
        The key that `save` was called with is used in any case; another one is an error. Where
        `save` had none: rows are matched by these IDs, for fields whose values are kept; others
        become problems.
    undecided : {'fail', 'pass'}
        Whether what cannot be decided within one cell counts as a failure.
    most_listed : int, default 100
        How many elements and chunks to list of each field, at most.
    threads : int, default 0
        Threads that work; 0 takes all cores.
    memory : int, default 1 GiB
        Bytes of read buffers, at most.
    io : {'auto', 'uring', 'pread'}
        How data is read.
    options : dict, default None
        Options of the file formats (docs/reference/formats.md).
    progress : callable, default None
        `progress(place, done, total)` is called after each step of each rank.
    ignore_attributes : str or iterable of str, default ()
        Globs of attributes that may differ, over `path@name`, besides those of `save`.

    Returns
    -------
    GoldenCheck
        The verdict, and what is known of each field. What could not be compared (missing, new, of another
        shape or type) is in `problems`, and the rest is compared.

    Raises
    ------
    MissingFile
        The golden files or the run do not exist.
    DamagedFile
        golden.json cannot be read, or the run contradicts its checksums.
    Incomparable
        No step is left to check, or the golden files were saved with another `key`.
    TwinrunError
        A parameter has no meaning.

    Notes
    -----
    What golden digests prove, and how far: docs/reference/golden.md.
    """
    start = time.perf_counter()
    check_settings(threads=threads, memory=memory, io=io)
    if undecided not in ("fail", "pass"):
        raise TwinrunError(f"undecided must be 'fail' or 'pass', not {in_short(undecided)}")
    folder = label = checked_path(golden)
    copies = None
    if is_url(folder):
        label = without_secrets(folder)
        copies = copied(folder)
        folder = copies.folder
    if not os.path.exists(folder):
        if os.path.lexists(folder):
            raise MissingFile.at(folder)
        raise MissingFile(
            "no such folder", where=folder, fix="make it with: twinrun golden save RUN --output FOLDER"
        )
    manifest = Manifest.read(folder)
    rule_settings(None, None, ulp, period, False)
    if key is not None and manifest.key not in (None, key):
        raise Incomparable(
            f"was saved with the key {manifest.key!r}, so that the order of its rows is not that of {key!r}",
            where=folder,
            fix=f"save again with --key {key}",
        )
    globs, ignored = field_globs(fields), attribute_globs(ignore_attributes)
    subject = open_subject(run, options)
    reading = {"most_listed": most_listed, "threads": threads, "memory": memory, "io": io}
    request = _Request(folder, manifest, subject, globs, (*manifest.ignored_attributes, *ignored), reading, key, ulp,
                       periods_of(period), label, copies)  # fmt: skip
    found = _check_all(request, steps, progress)
    found.notes[:0] = [*subject.notes, *without_effect([subject], options)]
    for name, where, why in subject.skipped:
        if request.compares(name):
            said = f"{where}: cannot be compared: {why}; mend it, or move it out of the run"
            found.problems.append(GoldenProblem(None, None, name, said))
    if not found.fields and not found.problems:
        asked = f"that matches {', '.join(map(repr, request.fields))}" if request.fields else "to check"
        found.problems.append(GoldenProblem(None, None, None, f"no field {asked}; {_fields_kept(manifest)}"))
    else:
        met = {f.field for f in found.fields} | {p.field for p in found.problems if p.field is not None}
        for glob in unmet(request.fields, met):
            said = f"no field that matches {glob!r}; {_fields_kept(manifest)}"
            found.problems.append(GoldenProblem(None, None, None, said))
    if (request.periods.axes or request.periods.named) and not request.on_circles:
        found.problems.append(
            GoldenProblem(None, None, None, str(without_circle(request.periods, subject.label)))
        )
    return GoldenCheck(
        label,
        subject.label,
        found.fields,
        found.problems,
        list(dict.fromkeys(found.notes)),
        time.perf_counter() - start,
        undecided == "pass",
        sum(f.bytes for p in manifest.places for f in p.files()),
        manifest.provenance,
        found.attributes,
        found.attributes_compared,
    )
