"""A step against what was saved of it, where the rows of particles or tables are matched by their IDs."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence

from ..comparison.ids import match_ids
from ..errors import Incomparable, TwinrunError
from ..runs.fields import FieldRef, check_alike
from ..runs.order import in_type
from ..runs.subject import Place
from .by_place import alike, check_opened, not_saved
from .elements import compared
from .fields import check_field
from .manifest import GoldenAttribute, GoldenFieldFacts, GoldenPlace
from .particles import Rows, chosen_rows, identity, in_order, rows_by_id, with_ids
from .request import Found, Kept, Request, check_saved
from .result import GoldenProblem
from .selection import is_chosen

__all__ = ["check_step", "check_step_by_values"]


_OTHER_IDS = "its rows belong to other IDs than the saved ones, and only digests are kept"
_OTHER_ORDER = "only digests are kept, in the order of the run that was saved"
_SAVE_BY_ID = "save again with --key, or with --keep-values for the whole field"
_KEEP_ALL = "save again with --keep-values, as many bytes as the field has"


def check_step(
    request: Request, step: int | None, places: Sequence[GoldenPlace], of_run: Sequence[Place]
) -> Found:
    """Compares a step whose particles were saved by ID. of_run: the places of the run at this step."""
    found = Found()
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
        text = f"not in {request.label}: save again, or choose fields"
        found.problems += _not_saved_kinds(request, step, kinds.values(), text)
        by_rank = {p.rank: p for p in places if not p.by_id}
        for rank, present in opened:
            # Arrays belong to any single rank.
            alone = len(opened) == 1 and len(by_rank) == 1 and request.subject.kind == "arrays"
            at = next(iter(by_rank)) if alone else rank
            if at in by_rank:
                of_rank = by_rank.pop(at)
                kept = request.kept(of_rank)
                found.add(check_opened(request, of_rank, kept, present, rows.names, compared_by_id=by_id))
                continue
            found.problems += not_saved(
                request,
                step,
                rank,
                present,
                rows.names,
                by_id,
                _attributes_of(p for p in places if not p.by_id),
            )
        # Rows may lie on fewer ranks, if nothing else is lost with the others.
        there = _attributes_of(p for p in places if not p.by_id and p.rank not in by_rank)
        for rank, place in by_rank.items():
            if place.fields or place.attributes is None or not alike(request, place.attributes, there):
                found.problems.append(GoldenProblem(step, rank, None, f"not in {label}"))
    return found


def _attributes_of(places: Iterable[GoldenPlace]) -> list[tuple[GoldenAttribute, ...]]:
    return [place.attributes for place in places if place.attributes is not None]


def _not_saved_kinds(
    request: Request, step: int | None, kinds: Iterable[Rows], text: str
) -> list[GoldenProblem]:
    """A problem for each kind of particles of which nothing was saved, if a field of it must be."""
    first = (next(filter(request.compares, kind.fields), None) for kind in kinds)
    return [GoldenProblem(step, None, name, text) for name in first if name is not None]


def _check_kind(
    request: Request,
    step: int | None,
    kept: Kept,
    of_ids: GoldenFieldFacts,
    saved: Sequence[GoldenFieldFacts],
    rows: Rows | None,
) -> Found:
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
        said = f"{saved_rows} particles in the golden files, {ids.items} in {label}"
        if not saved_rows or not ids.items:
            raise Incomparable(f"{said}: all of them are {'lost' if saved_rows else 'new'}")
        raise Incomparable(
            f"{said}: which of them are lost or new, digests do not say",
            fix=f"save again with --keep-values {saved_rows * ids.itemsize} to know",
        )
    entry = check_field(kept.digests, kept.digests.numbers[of_ids.name], ids, place, 0.0, 0.0, label=label,
                        **request.reading)  # fmt: skip
    if entry.verdict == "undecided" and (of_ids.atol or of_ids.rtol):
        raise Incomparable(
            "IDs were saved with a tolerance, and no tolerance holds for IDs", fix="save again"
        )
    found.fields.append(entry)
    for f in _asked_for(request, of_ids, saved):
        if f is of_ids:
            continue
        try:
            if f.name not in rows.fields:
                raise Incomparable(f"not in {label}")
            if entry.verdict != "same":
                raise Incomparable(_OTHER_IDS, fix=_KEEP_ALL)
            found.fields.append(with_ids(check_saved(request, f, kept, rows.fields[f.name], place), rows.ids))
        except TwinrunError as e:
            found.problems.append(GoldenProblem(step, None, f.name, str(e)))
    return found


def _asked_for(
    request: Request, of_ids: GoldenFieldFacts, saved: Sequence[GoldenFieldFacts]
) -> list[GoldenFieldFacts]:
    """The fields of a kind that are compared, its IDs first; none where nothing of it was asked for."""
    others = [f for f in saved if is_chosen(f.name, request.fields)]
    return [of_ids, *others] if others or is_chosen(of_ids.name, request.fields) else []


def _wanted_rows(
    request: Request,
    step: int | None,
    of_ids: GoldenFieldFacts,
    saved: Sequence[GoldenFieldFacts],
    rows: Rows | None,
) -> Found:
    """What only one side has of a kind of particles."""
    found = Found()
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
    request: Request,
    step: int | None,
    golden: Mapping[str, FieldRef],
    of_ids: GoldenFieldFacts,
    saved: Sequence[GoldenFieldFacts],
    rows: Rows | None,
    kept: Kept | None,
) -> Found:
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
                found.fields.append(with_ids(check_saved(request, f, kept, ref, place), rows.ids))
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


def _kept_as_digests(
    request: Request,
    step: int | None,
    sides: Iterable[tuple[GoldenPlace, Kept]],
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


def check_step_by_values(
    request: Request, key: str, step: int | None, places: Sequence[GoldenPlace], of_run: Sequence[Place]
) -> Found:
    """Compares a step by ID that was saved in the order of its run: as far as values are kept."""
    found = Found()
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
        if not then.kinds and facts:
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
        text = "no values of these IDs are kept: save again with --key"
        found.problems += _not_saved_kinds(request, step, kinds.values(), text)
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
                    check_opened(request, place, kept, present, done, skipped=done, compared_by_id=by_id)
                )
            elif any(f.name not in done for f in place.fields):
                found.problems.append(GoldenProblem(step, place.rank, None, f"not in {label}"))
        for rank, present in by_rank.items():
            found.problems += not_saved(request, step, rank, present, done, by_id, _attributes_of(places))
    return found
