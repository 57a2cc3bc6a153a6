"""The attributes of files: what a manifest keeps of them, and how those of another run differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..comparison.attributes import AttributeDifference, concerns
from ..runs.subject import Opened
from .manifest import GoldenAttribute, GoldenPlace
from .result import GoldenProblem
from .selection import matches

__all__ = ["AttributeCheck", "check_attributes", "saved_attributes"]


def saved_attributes(
    present: Opened, chosen: Iterable[str], named: bool, ignored: Iterable[str]
) -> tuple[GoldenAttribute, ...] | None:
    """The facts of the files of a place that the manifest keeps, in the order of their labels.

    None where the place has no files, as for arrays. chosen: the saved fields. named: whether the caller
    chose fields by name. ignored: globs of attributes that may change.
    """
    if present.facts is None:
        return None
    chosen = set(chosen)
    return tuple(
        GoldenAttribute(f.owner, f.name, f.digest, f.text, f.meaning)
        for label, f in sorted(present.facts.items())
        if not f.between
        and concerns(f.owner, f.meaning, present, chosen, named)
        and not matches(label, ignored)
    )


@dataclass(frozen=True)
class AttributeCheck:
    """The result for one place. compared: how many attributes were compared."""

    compared: int = 0
    differences: tuple[AttributeDifference, ...] = ()
    problems: tuple[GoldenProblem, ...] = ()
    notes: tuple[str, ...] = ()


def check_attributes(
    place: GoldenPlace,
    present: Opened,
    wanted: Iterable[str],
    *,
    label: str,
    named: bool,
    renamed: Mapping[str, str],
    ignored: Iterable[str],
) -> AttributeCheck:
    """Compares the facts of the files of a place with the saved facts.

    wanted: the fields to check. label: names the run in messages. named: whether fields were chosen by name.
    renamed: the saved names of single arrays that the run calls otherwise. ignored: globs of attributes that
    may differ.
    """
    if present.facts and not place.knows_attributes:
        text = "attributes: the golden files were saved by a twinrun that did not keep them: save again"
        return AttributeCheck(problems=(GoldenProblem(place.step, place.rank, None, text),))
    if place.attributes is None or present.facts is None:
        if not place.attributes and not present.facts:
            return AttributeCheck()
        silent = "the golden files have" if place.attributes is None else f"{label} has"
        return AttributeCheck(notes=(f"{silent} no attributes: they are not compared",))
    fields = {*(f.name for f in place.fields), *present, *renamed}
    chosen = set(wanted)
    at_hand = (
        GoldenAttribute(renamed.get(f.owner, f.owner), f.name, f.digest, f.text, f.meaning)
        for f in present.facts.values()
        if not f.between
    )
    then, now = _by_label(place.attributes), _by_label(at_hand)
    compared = 0
    differences = []
    for name in dict.fromkeys((*then, *now)):
        a, b = then.get(name), now.get(name)
        one = a or b
        assert one is not None
        if matches(name, ignored) or not concerns(one.owner, one.meaning, fields, chosen, named):
            continue
        compared += 1
        if a is None or b is None or a.digest != b.digest:
            then_said, now_said = (None if side is None else side.text for side in (a, b))
            if a is not None and b is not None and then_said == now_said:
                then_said, now_said = (f"{side.text} (digest {side.digest[:12]})" for side in (a, b))
            differences.append(
                AttributeDifference(
                    place.step, place.rank, one.owner, one.name, then_said, now_said, one.meaning
                )
            )
    return AttributeCheck(compared, tuple(differences))


def _by_label(attributes: Iterable[GoldenAttribute]) -> dict[str, GoldenAttribute]:
    """Facts by label. A second fact with the same label gets another label, as in `Opened`."""
    found: dict[str, GoldenAttribute] = {}
    for one in attributes:
        label = one.label
        while label in found:
            label += "'"
        found[label] = one
    return found
