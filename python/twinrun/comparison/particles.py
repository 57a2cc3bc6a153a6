"""The particles of a step, matched by ID whatever their rank: each kind, and those without IDs."""

from __future__ import annotations

from ..errors import Incomparable, TwinrunError, Unmatched
from ..formats.texts import MASK
from ..runs.particles import find_particles, without_ids
from ..runs.values import particles_by_values
from .by_id import circles_of, common_fields, compare_particles
from .field import with_mask
from .matching import StepMatch, labels_of_both, lost
from .outcome import Outcome
from .ranks import OpenStep
from .request import Request, Selection

__all__ = ["compare_by_id"]


def compare_by_id(request: Request, match: StepMatch) -> tuple[Outcome, set[str]]:
    """Compares the fields that have IDs. Returns their names too."""
    found, done = Outcome(), set[str]()
    assert request.key is not None
    wanted = Selection(request, match.step)
    labels = labels_of_both(request.a, request.b)
    step = OpenStep(request, match)
    try:
        with step as sides:
            kinds = find_particles(sides, request.key)
            for kind in kinds.values():
                found.remarks.keyed.add(kind.key)
                members = {n for part in (*kind.parts_a, *kind.parts_b) for n in part[2]}
                done |= members | {kind.key}
                wanted(kind.key)  # IDs are compared wherever their particles are; who asks for them met them
                if not kind.parts_a or not kind.parts_b:
                    label = labels[1] if kind.parts_a else labels[0]
                    at = "" if match.step is None else f"step {match.step}: "
                    said = f"{at}field {kind.key!r}: not there"
                    went = lost(match, [p[0] for p in (*kind.parts_a, *kind.parts_b)], bool(kind.parts_a))
                    alone = (Incomparable if went else Unmatched)(said, where=label)
                    found.problems.append((-1, request.kept(alone, match)))
                    continue
                if request.settings.by_values:
                    kind = particles_by_values(kind)
                fields, problems = common_fields(kind, wanted, *labels, match.step)
                found.remarks.periodic |= circles_of(kind, fields, request.settings, match.step)
                results, more, notes = compare_particles(kind, fields, match.step, request.settings, *labels)
                masks = {f.field.removesuffix(MASK): f for f in results if f.field.endswith(MASK)}
                results = [with_mask(f, masks[f.field]) if f.field in masks else f for f in results]
                found.results += [(-1, f) for f in results]
                found.remarks.notes += notes
                for problem in (*problems, *more):
                    found.problems.append((-1, request.kept(problem, match)))
            for problem in without_ids(sides, kinds, wanted):
                found.problems.append((-1, request.kept(problem, match)))
    except TwinrunError as error:
        found.problems.append((-1, request.kept(error, match)))
    found.remarks.notes_a, found.remarks.notes_b = step.notes_a, step.notes_b
    found.remarks.met = wanted.met()
    return found, done
