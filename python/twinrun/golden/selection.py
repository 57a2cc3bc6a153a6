"""Which steps, fields and attributes a call names."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

from ..arguments import names_given
from ..comparison.tolerances import attribute_glob, missing_steps
from ..comparison.work import parse_steps
from ..errors import Incomparable
from ..formats.texts import names_to_choose
from ..runs.subject import Place, Subject

__all__ = ["attribute_globs", "chosen_places", "field_globs", "is_chosen", "matches", "unmet"]


def matches(name: str, globs: Iterable[str]) -> bool:
    """Whether a name matches one of the globs."""
    return any(fnmatch.fnmatchcase(name, glob) for glob in globs)


def is_chosen(name: str, globs: Iterable[str] | None) -> bool:
    """Whether a call names a field. globs: what the call names; None for every field."""
    return globs is None or any(matches(n, globs) for n in names_to_choose(name))


def unmet(globs: Iterable[str] | None, names: Iterable[str]) -> list[str]:
    """The globs that match none of these names."""
    known = {*names}
    return [glob for glob in globs or () if not any(matches(name, (glob,)) for name in known)]


def field_globs(fields: Iterable[str] | None) -> tuple[str, ...] | None:
    """The globs of fields that a caller gave: one text, several, or None for every field."""
    return None if fields is None else tuple(names_given(fields, "fields"))


def attribute_globs(attributes: Iterable[str]) -> tuple[str, ...]:
    """The globs of attributes that a caller gave, checked: one text, or several. Raises TwinrunError."""
    return tuple(attribute_glob(g) for g in names_given(attributes, "ignore_attributes"))


def chosen_places(subject: Subject, steps: str | None, verb: str) -> list[Place]:
    """The places of a run at these steps. Raises Incomparable where the run lacks one of the steps.

    verb: what the call does with them ('save', 'compare'), for messages.
    """
    chosen = None if steps is None else parse_steps(steps)
    places = [p for p in subject.places if chosen is None or chosen(p[0])]
    missing = missing_steps(chosen, (step for step, _ in subject.places))
    if missing:
        said = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
        raise Incomparable(
            f"has no step {said}: nothing was {verb}d", where=subject.label, fix="check --steps"
        )
    if not places:
        raise Incomparable(f"no step to {verb}", where=subject.label, fix="check --steps")
    return places
