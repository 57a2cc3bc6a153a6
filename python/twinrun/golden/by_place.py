"""A place against what was saved of it, element by element in the order of the run."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ..comparison.attributes import renamed_array
from ..errors import TwinrunError
from ..runs.subject import Opened, Place
from .attributes import AttributeCheck, check_attributes, saved_attributes
from .manifest import GoldenAttribute, GoldenPlace
from .request import Found, Kept, Request, check_saved
from .result import GoldenProblem
from .selection import is_chosen, matches

__all__ = ["alike", "check_opened", "check_place", "not_saved"]


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


def check_place(request: Request, place: GoldenPlace, of_run: Place) -> Found:
    """Compares one place. Raises TwinrunError where none of it can be compared."""
    kept = request.kept(place)
    with request.subject.open(of_run, whole=False) as opened:
        return check_opened(request, place, kept, opened)


def check_opened(
    request: Request,
    place: GoldenPlace,
    kept: Kept,
    opened: Opened,
    particles: Collection[str] = (),
    skipped: Collection[str] = (),
    compared_by_id: Collection[str] = (),
) -> Found:
    """Compares one place.

    particles: names of the run's fields that belong to particles. compared_by_id: those of them that are
    compared. skipped: of the saved ones.
    """
    known = {f.name for f in place.fields}
    chosen = (f for f in place.fields if is_chosen(f.name, request.fields))
    wanted = {f.name: f for f in chosen if f.name not in skipped}
    label = request.subject.label
    found = Found()

    def problem(name: str | None, text: str) -> None:
        found.problems.append(GoldenProblem(place.step, place.rank, name, text))

    found.notes += opened.notes
    present = _under_saved_name(place, opened, wanted)
    for name in present:
        if name not in known and name not in particles and request.compares(name):
            problem(name, _not_kept(request, place.step, name))
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
            found.fields.append(check_saved(request, saved, kept, present[name], (place.step, place.rank)))
        except TwinrunError as e:
            problem(name, str(e))
    return found


def alike(
    request: Request,
    attributes: Collection[GoldenAttribute],
    elsewhere: Collection[Collection[GoldenAttribute]],
) -> bool:
    """Whether another rank has these attributes, and no others, but for those that may change."""
    kept = lambda own: {a for a in own if not matches(a.label, request.ignored_attributes)}  # noqa: E731
    return any(kept(other) == kept(attributes) for other in elsewhere)


def not_saved(
    request: Request,
    step: int | None,
    rank: int,
    present: Opened,
    particles: Collection[str],
    compared_by_id: Collection[str],
    elsewhere: Collection[Collection[GoldenAttribute]] = (),
) -> list[GoldenProblem]:
    """Problems where the run has something on a rank of which nothing was saved. particles,
    compared_by_id: as for `check_opened`. elsewhere: the attributes that were saved of each other rank,
    such as what a file is: a rank with the same is nothing new.
    """
    left = [n for n in present if n not in particles and request.compares(n)]
    left += [n for n, _, _ in present.skipped if request.compares(n)]
    chosen = {*compared_by_id, *left}
    attributes = saved_attributes(present, chosen, request.named, request.ignored_attributes) or ()
    if not left and (not attributes or alike(request, attributes, elsewhere)):
        return []
    if not left:
        return [GoldenProblem(step, rank, None, f"not in {request.label}: save again, or choose steps")]
    return [GoldenProblem(step, rank, name, _not_kept(request, step, name)) for name in left]


def _not_kept(request: Request, step: int | None, name: str) -> str:
    """Why nothing is kept of a field of the run, in the order of the run."""
    by_id = (p for p in request.manifest.places if p.by_id and p.step == step)
    key = next((f.key for p in by_id for f in p.fields if f.name == name), None)
    if key is not None:
        return f"its rows were saved by the IDs {key!r}, and have none in {request.subject.label}"
    return f"not in {request.label}: save again, or choose fields"
