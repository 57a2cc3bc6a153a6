"""What comparing a unit, or a share of it, found; and the outcomes of a unit's shares, joined."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace

from ..errors import Incomparable, Stale, TwinrunError
from ..runs.subject import Place
from .attributes import AttributeDifference
from .field import FieldComparison, FieldGroup, JoinedFields
from .ranges import FieldPart, put_together
from .tolerances import Met

__all__ = ["Compared", "Outcome", "Remarks", "in_shares"]


@dataclass
class Compared:
    """What comparing one field pair, or a part of it, found: a result, a part of one, or a problem.

    at: its number. note: of its texts. period: lengths of the circles that its values lie on.
    """

    at: int
    field: str
    result: FieldComparison | None = None
    part: FieldPart | None = None
    problem: TwinrunError | None = None
    note: str = ""
    period: tuple[float, ...] = ()


@dataclass
class Remarks:
    """What is to be said beside results.

    opening: bytes of headers and directories. notes: about what was compared. notes_a, notes_b:
    what opening the runs noted.
    attributes, attributes_compared: those that differ, and how many were compared. left_out: how
    many things cannot be compared.
    met: what the rules of tolerances matched, missed and skipped. keyed: fields of IDs. periodic:
    fields that lie on circles. nothing: of each place that has no field that was asked for, what
    to say where none has.
    """

    opening: int = 0
    notes: list[str] = field(default_factory=list)
    notes_a: list[str] = field(default_factory=list)
    notes_b: list[str] = field(default_factory=list)
    attributes: list[AttributeDifference] = field(default_factory=list)
    attributes_compared: int = 0
    left_out: int = 0
    met: Met = field(default_factory=Met)
    keyed: set[str] = field(default_factory=set)
    periodic: dict[str, tuple[float, ...]] = field(default_factory=dict)
    nothing: list[tuple[Place, Incomparable]] = field(default_factory=list)

    def add(self, other: Remarks) -> None:
        """Adds what is to be said of another part of the unit, which comes after this one in the unit."""
        self.opening += other.opening
        self.notes += other.notes
        self.notes_a += other.notes_a
        self.notes_b += other.notes_b
        self.attributes += other.attributes
        self.attributes_compared += other.attributes_compared
        self.left_out += other.left_out
        self.met = self.met | other.met
        self.keyed |= other.keyed
        self.periodic |= other.periodic
        self.nothing += other.nothing


@dataclass
class Outcome:
    """The result of a unit, or of a share of it.

    results, problems: each after the number of the field pair that it belongs to, -1 for the place
    itself. A group of results has numbers of its own; without them it is all pairs of a place.
    pairs: of a share, all field pairs of the unit: name, bytes, whether they are divisible. parts: ranges of
    fields that several shares divide, after the number of the field pair. order: (field pair, note) where
    particles only lie in another order. recut: fields that remain because the runs cut them differently.
    remarks: what is to be said beside all these. error: the error that ended the share.
    """

    results: list[tuple[int, FieldComparison | FieldGroup]] = field(default_factory=list)
    problems: list[tuple[int, TwinrunError]] = field(default_factory=list)
    remarks: Remarks = field(default_factory=Remarks)
    order: tuple[int, str] | None = None
    recut: list[str] = field(default_factory=list)
    error: Exception | None = None
    pairs: list[tuple[str, int, bool]] | None = None
    parts: list[tuple[int, FieldPart]] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        """Adds what another part of the unit found, which comes after this one in the unit.

        Not what belongs to one part alone: `order`, `recut`, `pairs`, `error`.
        """
        self.results += other.results
        self.problems += other.problems
        self.parts += other.parts
        self.remarks.add(other.remarks)

    def fields(self) -> list[tuple[int, FieldComparison]]:
        """The results; a group comes one by one."""
        return [
            (at, one)
            for at, found in self.results
            for one in (found.all() if isinstance(found, FieldGroup) else [found])
        ]

    def without(self, names: Container[str]) -> list[tuple[int, FieldComparison | FieldGroup]]:
        """The results but those of these fields that were not matched by ID."""
        return [(at, f) for at, f in self.fields() if f.field not in names or f.key is not None]

    def add_entry(self, found: Compared) -> None:
        """Adds what comparing a field pair found."""
        if found.result is not None:
            self.results.append((found.at, found.result))
        if found.part is not None:
            self.parts.append((found.at, found.part))
        if found.problem is not None:
            self.problems.append((found.at, found.problem))
        if found.note:
            self.remarks.notes.append(found.note)
        if found.period:
            self.remarks.periodic[found.field] = found.period


def in_shares(outcomes: Sequence[Outcome], where: str = "") -> Outcome:
    """Joins the outcomes of the shares of one unit.

    What every share meets (opening) counts once. where: the place.
    """
    if len(outcomes) == 1:
        return outcomes[0]
    first = outcomes[0]
    whole = Outcome(remarks=replace(first.remarks, met=Met(), keyed=set(), periodic={}), recut=first.recut)
    divided: dict[int, list[FieldPart]] = {}
    for at, part in (found for o in outcomes for found in o.parts):
        divided.setdefault(at, []).append(part)
    problems = [found for o in outcomes for found in o.problems]
    said: set[int | str] = set()
    for at, problem in sorted(problems, key=lambda pair: pair[0]):
        once = (
            at if at >= 0 else str(problem)
        )  # a field has one problem, although several shares had parts of it
        if once not in said:
            whole.problems.append((at, problem))
        said.add(once)
    seen = [o.pairs for o in outcomes if o.pairs is not None]
    changed = any(pairs != seen[0] for pairs in seen)
    if changed:  # each share then left fields to shares that did not have them
        stale = Stale("was changed while it was compared", where=where, fix="compare again")
        whole.problems.append((-1, stale))
    results = [found for o in outcomes for found in o.results]
    # A share that failed has no ranges: its error is reported, and the field has no result.
    if not changed and len(seen) == len(outcomes):
        results += [(at, put_together(parts)) for at, parts in divided.items() if at not in said]
    if any(isinstance(found, FieldGroup) for _, found in results):
        whole.results = [(0, JoinedFields(results))]
    else:
        whole.results = sorted(results, key=lambda pair: pair[0])
    whole.order = min((o.order for o in outcomes if o.order is not None), default=None)
    for outcome in outcomes:
        whole.remarks.met = whole.remarks.met | outcome.remarks.met
        whole.remarks.periodic |= outcome.remarks.periodic
        whole.error = whole.error or outcome.error
    return whole
