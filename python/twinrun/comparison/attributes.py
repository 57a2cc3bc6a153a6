"""Facts that files have beside their elements: attributes, dimensions, links. They compare exactly.

Where files of several ranks have the same fact of one place, the set of its values is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..errors import TwinrunError, Uncompared
from ..formats.facts import SUMMARY, Fact
from ..formats.facts_between import equal_between, texts_apart
from ..formats.model import summary_fields
from ..formats.texts import SUFFIX
from ..runs.fields import FieldRef, refs_of_fields
from ..runs.subject import Opened, Place, Subject

__all__ = [
    "AttributeDifference",
    "Attributes",
    "concerns",
    "match_attributes",
    "renamed_array",
    "uncompared",
    "under_one_name",
    "with_facts_of_files",
    "with_summaries",
]

_MOST_NAMED = 5


@dataclass(frozen=True)
class AttributeDifference:
    """An attribute, or something else that a file says beside its elements, in which two runs differ.

    Attributes
    ----------
    step, rank : int or None, int
        Where it differs.
    owner : str
        The field or group that it belongs to; '' for the file.
    name : str
        Its name; in parentheses where it is no attribute, as '(dimensions)'.
    a, b : str or None
        The values as text; None where a run has none.
    meaning : bool
        True: it changes what the numbers of its owner mean, as a unit does.
    label : str
        Owner and name: 'x@units'.
    """

    step: int | None
    rank: int
    owner: str
    name: str
    a: str | None
    b: str | None
    meaning: bool

    @property
    def label(self) -> str:
        """'x@units'."""
        return f"{self.owner}@{self.name}"

    def text(self) -> str:
        """The difference as text: "x@units: 'm' against 'km'".

        Returns
        -------
        str
            One line.
        """
        a, b = ("not there" if value is None else value for value in (self.a, self.b))
        return f"{self.label}: {a} against {b}"

    def place(self) -> str:
        """Where it is, as text: 'step 500, rank 0'.

        Returns
        -------
        str
            The place.
        """
        return f"rank {self.rank}" if self.step is None else f"step {self.step}, rank {self.rank}"


@dataclass
class Attributes:
    """The result for one place. compared: how many attributes. problem: why none could be compared."""

    compared: int = 0
    differences: list[AttributeDifference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problem: Uncompared | None = None


def _by_label(opened: Sequence[Opened]) -> dict[str, list[Fact]]:
    """Facts by label; each value once, in the order of values."""
    found: dict[str, dict[tuple[bytes, str], Fact]] = {}
    for side in opened:
        for label, fact in (side.facts or {}).items():
            found.setdefault(label, {}).setdefault((fact.identity, fact.kind), fact)
    return {label: [values[key] for key in sorted(values)] for label, values in found.items()}


def _equal(x: Sequence[Fact], y: Sequence[Fact], one_format: bool) -> bool:
    """Whether both runs say the same. Another format has other types for the same value."""
    if x and y and not one_format:
        return equal_between(x, y)
    return [(f.identity, f.kind) for f in x] == [(f.identity, f.kind) for f in y]


def _text(facts: Sequence[Fact]) -> str:
    more = f" and {len(facts) - _MOST_NAMED} more" if len(facts) > _MOST_NAMED else ""
    return ", ".join(fact.text for fact in facts[:_MOST_NAMED]) + more


def _in_order(x: Sequence[Fact], y: Sequence[Fact], left_out: Callable[[str], bool]) -> bool:
    """Whether both facts are an order of fields, and the common fields that no rule leaves out come in the
    same order.
    """
    if len(x) != 1 or len(y) != 1 or not (x[0].order and y[0].order):
        return False
    inside = f"{x[0].owner}/" if x[0].owner else ""
    both = {
        n for n in {*x[0].order} & {*y[0].order} if not any(map(left_out, (inside + n, inside + n + SUFFIX)))
    }
    return [n for n in x[0].order if n in both] == [n for n in y[0].order if n in both]


def _above(owner: str, names: Iterable[str]) -> bool:
    """Whether one of the names is the owner's, or of something within it. All are within '', the file."""
    return any(not owner or n == owner or n.startswith((owner + "/", owner + ".")) for n in names)


def match_attributes(
    a: Subject,
    b: Subject,
    opened: tuple[Sequence[Opened], Sequence[Opened]],
    place: Place,
    *,
    wanted: Callable[[str], bool],
    left_out: Callable[[str], bool],
    ignored: Callable[[str], bool],
    named: bool,
    common: bool,
) -> Attributes:
    """Compares the facts of a place.

    wanted: whether to compare a field; left_out: whether a rule leaves a name out; ignored: whether a rule
    leaves an attribute out, by its label. named: fields were chosen by name: of other owners only facts that
    change the meaning of numbers are compared. common: facts that only one run has are left out.
    """
    result = Attributes()
    told = [any(side.facts is not None for side in sides) for sides in opened]
    facts = [_by_label(sides) for sides in opened]
    if not all(told):
        others = [
            label
            for side in facts
            for label, said in side.items()
            if not ignored(label) and not all(fact.between for fact in said)
        ]
        if others and not any(SUMMARY in side for sides in opened for side in sides):
            _add_silent(result, *((a, b) if told[1] else (b, a)), others)
        return result
    here = [{name for side in sides for name in side} for sides in opened]
    fields = {name for name in here[0] & here[1] if wanted(name)}
    everything = here[0] | here[1]
    formats = [{f for side in sides for f in side.formats} for sides in opened]
    said_by = [
        {label: format for side in sides for label, format in side.format_of.items()} for sides in opened
    ]
    models = [{m for side in sides for m in side.models} for sides in opened]
    one_model = bool(models[0] & models[1])
    alone: list[str] = []
    for label in dict.fromkeys((*facts[0], *facts[1])):
        x, y = facts[0].get(label, []), facts[1].get(label, [])
        fact = (x or y)[0]
        if ignored(label) or left_out(fact.owner):
            continue
        # Those of fields are reported where fields are matched.
        if not concerns(fact.owner, fact.meaning, everything, fields, named):
            continue
        one_format = said_by[0 if x else 1].get(label) in formats[1 if x else 0]
        if x and y:
            one_format = said_by[0].get(label) == said_by[1].get(label)
        if one_format and all(f.between for f in (*x, *y)):
            continue
        has_counterparts = all(f.has_counterparts for f in (*x, *y))
        if not x or not y:
            changes_meaning = fact.meaning and not fact.own
            if not (one_format or changes_meaning or (one_model and has_counterparts)):
                alone.append(label)
                continue
            if common:
                result.notes.append(f"{label}: only in {(a if x else b).label}")
                continue
        elif not (one_format or has_counterparts or fact.order):
            alone.append(label)
            continue
        result.compared += 1
        if not _in_order(x, y, left_out) and not _equal(x, y, one_format):
            of_texts = fact.owner in everything and all(
                _is_text(side[fact.owner]) for sides in opened for side in sides if fact.owner in side
            )
            result.differences.append(_difference(x, y, place, of_texts))
    if alone:
        # What a library keeps for itself comes last.
        alone.sort(key=lambda label: any(f.own for side in facts for f in side.get(label, ())))
        result.notes.append(
            "the files are of several formats: what only one of them says, or each in its own words, is not "
            f"compared ({_some(alone)})"
        )
    result.differences.sort(key=lambda d: not d.meaning)
    return result


def _some(labels: Sequence[str]) -> str:
    return ", ".join(labels[:_MOST_NAMED]) + (", …" if len(labels) > _MOST_NAMED else "")


def _add_silent(result: Attributes, silent: Subject, other: Subject, labels: Sequence[str]) -> None:
    """Says that one run has no attributes, and the other has these."""
    said = f"has no attributes: those of {other.label} are not compared ({_some(labels)})"
    # Metadata of an older twinrun: its file may have had attributes.
    if silent.kind == "file":
        fix = "index it again, or name the data files"
        result.problem = Uncompared(said, where=silent.label, fix=fix)
    else:  # arrays and histories have none
        result.notes.append(f"{silent.label} {said}")


def _is_text(ref: FieldRef) -> bool:
    """Whether a field holds texts, or the digests of texts: no attribute changes what they mean."""
    return (ref.kind or "").startswith("text") or ref.text is not None or ref.name.endswith(SUFFIX)


def _difference(
    x: Sequence[Fact], y: Sequence[Fact], place: Place, of_texts: bool = False
) -> AttributeDifference:
    """The difference of a fact. x, y: as files of each run say it; empty where a run has none. of_texts: its
    owner holds texts.
    """
    in_a, in_b = (_text(side) if side else None for side in (x, y))
    if in_a == in_b:
        in_a, in_b = _apart(x, y)
    fact = (x or y)[0]
    meaning = not of_texts and any(f.meaning for f in (*x, *y))
    return AttributeDifference(place[0], place[1], fact.owner, fact.name, in_a, in_b, meaning)


def _apart(x: Sequence[Fact], y: Sequence[Fact]) -> tuple[str, str]:
    """Values whose texts are the same, as texts that show how they differ."""
    in_both = {(f.identity, f.kind) for f in x} & {(f.identity, f.kind) for f in y}
    only = [[f for f in side if (f.identity, f.kind) not in in_both] for side in (x, y)]
    if only[0] and only[1]:
        return texts_apart(only[0][0], only[1][0])
    said_a, said_b = (f"{_text(side)} ({len(side)} values)" for side in (x, y))
    return said_a, said_b


def concerns(owner: str, meaning: bool, present: Iterable[str], chosen: Iterable[str], named: bool) -> bool:
    """Whether facts of an owner are compared.

    present, chosen: all fields, and the compared ones; named: chosen by name.
    """
    if owner in present:
        return owner in chosen
    if not named:
        return True
    return (meaning and _above(owner, chosen)) or _part_of(owner, chosen)


def _part_of(owner: str, fields: Iterable[str]) -> bool:
    """Whether an owner is a chosen field's dataset: a struct, whose members are the fields."""
    return bool(owner) and any(name.startswith(owner + ".") for name in fields)


def uncompared(
    sides: Iterable[Iterable[tuple[str, str, str]]], wanted: Callable[[str], bool]
) -> Iterator[Uncompared | None]:
    """A problem for each thing that cannot be compared; None where the other run reported the same."""
    said: set[tuple[str, str]] = set()
    for skipped in sides:
        for name, where, why in skipped:
            if not wanted(name):
                continue
            fix = "leave it out with a rule (skip), with --leave-out or --common"
            problem = Uncompared.of(name, where, why, fix)
            yield None if (name, why) in said else problem
            said.add((name, why))


def under_one_name(in_a: Opened, in_b: Opened) -> tuple[Opened, Opened]:
    """Both places, where the single array of b, and its facts, have the name of the single array of a: single
    arrays match whatever their names.

    Where b is metadata alone, which keeps no attributes by name, the array of a gets the name of b.
    """
    if in_a.array_name is None or in_b.array_name is None or in_a.array_name == in_b.array_name:
        return in_a, in_b
    if SUMMARY in in_b and SUMMARY not in in_a:
        return renamed_array(in_a, in_a.array_name, in_b.array_name), in_b
    return in_a, renamed_array(in_b, in_b.array_name, in_a.array_name)


def renamed_array(opened: Opened, old: str, new: str) -> Opened:
    """A place whose array has another name: its field or the fields of its members, and their facts."""

    def named(name: str) -> str:
        return new + name[len(old) :] if name == old or name.startswith((old + ".", old + "@")) else name

    fields = [replace(ref, name=named(ref.name)) for ref in opened.values()]
    made = opened.with_fields({ref.name: ref for ref in fields})
    made.skipped = [(named(name), where, why) for name, where, why in opened.skipped]
    if opened.facts is not None:
        renamed = [(label, replace(f, owner=named(f.owner))) for label, f in opened.facts.items()]
        # A label that occurs several times has marks behind it (see `subject`).
        labels = {label: f.label + label[len(opened.facts[label].label) :] for label, f in renamed}
        made.facts = {labels[label]: f for label, f in renamed}
        made.format_of = {labels[label]: format for label, format in opened.format_of.items()}
    return made


def with_facts_of_files(a: Opened, b: Opened, left_out: Callable[[str], bool]) -> tuple[Opened, Opened]:
    """Both places; of metadata whose file is at hand, with the facts of that file in place of their code.

    Rules and formats decide which attributes count, and the code is of all of them. Files are opened
    only where it matters: equal codes are equal attributes. Both stay as they are where one of them has
    nothing but its code, or a file cannot be opened, or has facts of several steps. left_out: whether a rule
    leaves a field out, as it may the code.
    """
    if not any(SUMMARY in side for side in (a, b)) or left_out(SUMMARY) or _equal_codes(a, b):
        return a, b
    made = _of_file(a), _of_file(b)
    return (a, b) if made[0] is None or made[1] is None else (made[0], made[1])


def _equal_codes(a: Opened, b: Opened) -> bool:
    """Whether metadata of both has the same code of all attributes, of files of one format."""
    if a.formats != b.formats:
        return False
    digests = []
    for side in (a, b):
        ref = side.get(SUMMARY)
        if ref is None or ref.metadata is None or ref.facts is None:
            return False
        sections = [ref.metadata.section(ref.metadata_field, name) for name in ("tree", "fine")]
        digests.append((ref.digest, ref.facts.cells, sections))
    return digests[0] == digests[1]


def _of_file(opened: Opened) -> Opened | None:
    """A place with the facts of its file; as it is where it is no metadata.

    None where they are not at hand.
    """
    if opened.reopen is None:
        unknown = SUMMARY in opened or any(ref.no_data for ref in opened.values())
        return None if unknown else opened
    try:
        content = opened.reopen()
    except TwinrunError:  # digests may prove all that is asked for
        return None
    facts = content.facts.values()
    if any(fact.step is not None for fact in facts):
        return None
    made = opened.with_fields({name: ref for name, ref in opened.items() if name != SUMMARY})
    made.facts, made.format_of = {}, {}
    dialect = content.dialect or content.format
    made.formats, made.models = {dialect}, {content.model} - {""}
    for fact in facts:
        made.keep(fact, dialect)
    # The array has the name of its file, which may have been renamed since.
    name = content.array_name or next(iter(content.fields), None)
    if content.one_array and opened.array_name is not None and name not in (None, opened.array_name):
        made = renamed_array(made, name, opened.array_name)
    return made


def with_summaries(a: Opened, b: Opened) -> tuple[Opened, Opened]:
    """Both places; where the other run has only metadata, with the facts summarized as metadata does."""
    return _summarized(a, b), _summarized(b, a)


def _summarized(here: Opened, other: Opened) -> Opened:
    if SUMMARY not in other or SUMMARY in here or not here.facts:
        return here
    found: Mapping = {f.name: f for f in summary_fields(here.facts, 0, "attributes")}
    return here.with_fields({**here, **{ref.name: ref for ref in refs_of_fields(found, "attributes")}})
