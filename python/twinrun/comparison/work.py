"""Compare two runs: histories, folders, files or arrays.

`compare` finds facts; report/ makes them readable.
"""

from __future__ import annotations

import contextlib
import copy
import fnmatch
import math
import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from .. import _core
from ..arguments import check_settings, chosen_devices
from ..errors import Incomparable, TwinrunError, Unmatched
from ..runs.order import in_one_order
from ..runs.particles import find_particles, without_ids
from ..runs.parts import give_places, parts_of_both
from ..runs.provenance import Difference, Provenance, difference, read_provenance
from ..runs.subject import FieldRef, Opened, Place, Subject, check_alike, open_subject, opened_of
from .attributes import AttributeDifference, add_summaries, match_attributes, uncompared, under_one_name
from .by_id import compare_particles, order_note
from .differences import Again, Differences
from .differences import differences as list_differences
from .field import FieldComparison, Settings, compare_part, divisible, place_text, put_together
from .matching import ALIGNMENTS, StepMatch, lost, match_fields, match_steps, missing_ranks, same_ranks
from .shares import Outcome, Piece, Unit, in_shares, owners, pieces, shares_by_size
from .sums import compare_placed
from .tolerances import Periods, Tolerances, parse_periods, parse_steps, read_tolerances

if TYPE_CHECKING:
    import pandas
    import pyarrow

    from .parallel import Team

__all__ = ["ALIGNMENTS", "Comparison", "FieldComparison", "compare", "histogram_edges", "parse_steps"]

METHODS = ("auto", "staged", "direct", "published")
STAGES = ("tree", "sketch", "elements")
# Shares for each rank, where places have enough fields: a rank with a slow share takes fewer of them.
_SHARES_A_RANK = 4
_FILES_A_PLACE = 4  # open at once: metadata, data, files of a record
_OTHER_FILES = 256
_LEAST_MEMORY = 64 << 20  # bytes of a rank's read buffers: ranks of a node share what one process would take


def histogram_edges() -> list[float]:
    """The edges of the histograms of |a - b|.

    Bin 0 counts |a - b| = 0, and bin 1 what lies below the first edge. The last two bins count 1e40 and
    above, and infinite differences.

    Returns
    -------
    list of float
        The edges, ascending.
    """
    return _core.histogram_edges()


@dataclass
class Comparison:
    """The result of `compare`: the verdict, and what is known of each field.

    >>> result = twinrun.compare({"x": np.zeros(4)}, {"x": np.array([0, 0, 1, 0.0])}, atol=0.5)
    >>> result.verdict, result.different
    ('different', 1)
    >>> result.first_divergence
    {'step': None, 'rank': 0, 'field': 'x', 'index': [2], 'a': 0.0, 'b': 1.0, 'abs_diff': 1.0}

    Attributes
    ----------
    a, b : str
        The two runs, as messages call them.
    verdict : {'same', 'different', 'incomparable'}
        'same': everything was compared and agrees. 'incomparable': something was not compared, see
        `problems`.
    fields : list of FieldComparison
        One for each step, rank and field, in this order.
    seconds : float
        Time of all work, in seconds.
    bytes_compared : int
        Bytes of the data that was compared, of one run.
    bytes_read : int
        Bytes that were read: headers, metadata and data of both runs.
    notes : list of str
        What the user should know, such as left-out data sets.
    not_compared : int
        Things of both runs that cannot be compared. They are problems, or `common` left them out.
    device_asked : str
        The parameter `device` of `compare`.
    provenance_a, provenance_b : Provenance or None
        Under which conditions the runs ran. None where a history does not say.
    problems : list of str
        What could not be compared, a line each. A verdict is never 'same' with one of them.
    attributes : list of AttributeDifference
        What differs beside numbers. What changes the meaning of numbers comes first.
    attributes_compared : int
        How many attributes were compared.
    conditions : list of Difference or None
        Conditions in which the runs differ, the likeliest explanation first. None where a run does not say.
    device : str
        Where the fields were compared: 'cpu', 'cuda:0', or several, as 'cpu, cuda:0'.
    device_seconds : float
        Time of copies to devices and of their kernels, in seconds, added up over fields.
    same : bool
        True only if the verdict is 'same'; `bool(comparison)` gives it.
    different : int
        Elements that differ, in all fields.
    first : FieldComparison or None
        The field in which the runs first differ: the earliest step, then the lowest rank, then the order of
        fields. None where no field differs.
    first_divergence : dict or None
        step, rank, field, index, a, b and abs_diff of the first difference; with `key` also key and id.
    stages : dict of str to dict
        For each stage (tree, sketch, elements) the sums of chunks_in, chunks_out, bytes_read and seconds.

    Notes
    -----
    A result can be pickled. `differences` then works for paths, and not for arrays.
    """

    a: str
    b: str
    verdict: str
    fields: list[FieldComparison]
    seconds: float
    bytes_compared: int
    bytes_read: int
    notes: list[str]
    not_compared: int = 0
    device_asked: str = "auto"
    provenance_a: Provenance | None = None
    provenance_b: Provenance | None = None
    problems: list[str] = field(default_factory=list)
    attributes: list[AttributeDifference] = field(default_factory=list)
    attributes_compared: int = 0
    _again: Again | None = field(default=None, repr=False, compare=False)

    def differences(self) -> Iterator[Differences]:
        """Yields every element that differs, a stretch at a time.

        >>> a, b = {"x": np.zeros(4)}, {"x": np.array([0, 2, 0, 3.0])}
        >>> for part in twinrun.compare(a, b).differences():
        ...     print(part.index.ravel(), part.abs_diff)
        [1 3] [2. 3.]

        Both runs are opened again, and only fields that differ are read. Memory stays bounded.

        Returns
        -------
        iterator of Differences
            Stretches, in the order of `fields`.

        Raises
        ------
        TwinrunError
            A run is not there any more (keep the arrays until this is done), or changed since it was
            compared.
        """
        return list_differences(self)

    def to_arrow(self) -> pyarrow.Table:
        """Makes a table with a row for each step, rank and field.

        Returns
        -------
        pyarrow.Table
            The table.

        Raises
        ------
        MissingPackage
            pyarrow is not installed.
        """
        from .tables import arrow_table

        return arrow_table(self)

    def to_pandas(self) -> pandas.DataFrame:
        """Makes a table with a row for each step, rank and field.

        >>> table = twinrun.compare({"x": np.zeros(4)}, {"x": np.ones(4)}).to_pandas()
        >>> table[["field", "elements", "different"]].values.tolist()
        [['x', 4, 4]]

        Returns
        -------
        pandas.DataFrame
            The table.

        Raises
        ------
        MissingPackage
            pandas is not installed.
        """
        from .tables import data_frame

        return data_frame(self)

    def _repr_html_(self) -> str:
        from .notebook import comparison_html

        return comparison_html(self)

    @property
    def conditions(self) -> list[Difference] | None:
        """Conditions in which the runs differ, the likeliest explanation first; None where a run does not
        say.
        """
        if self.provenance_a is None or self.provenance_b is None:
            return None
        return difference(self.provenance_a, self.provenance_b)

    @property
    def device(self) -> str:
        """Where fields were compared: 'cpu', 'cuda:0', or several, as 'cpu, cuda:0'."""
        return ", ".join(sorted({f.device for f in self.fields}))

    @property
    def device_seconds(self) -> float:
        """Time of copies to devices and of their kernels, in all fields, in seconds."""
        return sum(f.device_seconds for f in self.fields)

    @property
    def same(self) -> bool:
        """True only if everything was compared and agrees within the tolerance; `bool(comparison)` gives it."""
        return self.verdict == "same"

    def __bool__(self) -> bool:
        return self.same

    @property
    def different(self) -> int:
        """Elements that differ, in all fields."""
        return sum(f.different for f in self.fields)

    @property
    def first(self) -> FieldComparison | None:
        """The field in which the runs first differ: the earliest step, then the lowest rank, then the order
        of fields.

        None where they only differ in `attributes`, or not at all.
        """
        return next((f for f in self.fields if not f.same), None)

    @property
    def first_divergence(self) -> dict | None:
        """{step, rank, field, index, a, b, abs_diff} of the first difference."""
        f = self.first
        if f is None:
            return None
        return {
            "step": f.step,
            "rank": f.rank,
            "field": f.field,
            "index": list(f.first_index or ()),
            **({} if f.key is None else {"key": f.key, "id": f.first_id}),
            "a": f.first_a,
            "b": f.first_b,
            "abs_diff": f.first_abs_diff,
        }

    @property
    def stages(self) -> dict[str, dict]:
        """Sums over all fields of each stage's chunks_in, chunks_out, bytes_read and seconds."""
        total = {s: {"chunks_in": 0, "chunks_out": 0, "bytes_read": 0, "seconds": 0.0} for s in STAGES}
        for f in self.fields:
            for name, stage in f.stages.items():
                into = total.setdefault(
                    name, {"chunks_in": 0, "chunks_out": 0, "bytes_read": 0, "seconds": 0.0}
                )
                for key in into:
                    into[key] += stage[key]
        return total


def _provenance(subject: Subject) -> Provenance | None:
    """The provenance of a history. Damaged provenance does not change the verdict; it becomes a note."""
    try:
        return read_provenance(subject.provenance)
    except TwinrunError as e:
        subject.notes.append(f"{subject.label}: {e}")
        return None


class _Work:
    """One comparison under way."""

    def __init__(
        self,
        a: Subject,
        b: Subject,
        settings: Settings,
        globs: list[str] | None,
        key: str | None,
        use_metadata: bool,
        partial: bool,
        common: bool = False,
        by_time: bool = False,
    ) -> None:
        self.common, self.by_time = common, by_time
        self.a, self.b, self.settings, self.globs, self.key = a, b, settings, globs, key
        self.use_metadata, self.partial = use_metadata, partial
        self.results: list[FieldComparison] = []
        self.problems: list[TwinrunError] = []
        self.attributes: list[AttributeDifference] = []
        self.attributes_compared = 0
        self.notes: list[str] = []
        self.opening = 0  # bytes of headers and directories
        self.keyed: set[str] = set()
        # The field pair whose particles only lie in another order, and the note about it.
        self.order: tuple[int, str] | None = None
        self.noted_order: int | None = None  # the first unit of this process that had such a note
        self.matched: StepMatch | None = None  # of what is being compared

    # ---- units: see shares.py ----

    def compare(self, matches: Sequence[StepMatch], team: Team | None) -> None:
        """Compares all steps, here or on all ranks of the team."""
        if team is None or team.size == 1 or "arrays" in (self.a.kind, self.b.kind):
            index = 0
            for match in matches:
                units = self._units(match, index)
                index += len(units)
                outcomes = [[self.run(unit)] for unit in units]
                again = self._left(match, index, outcomes)
                self._merge(outcomes, None if again is None else self.run(again))
            return
        steps: list[list[Unit]] = []
        index = 0
        for match in matches:
            steps.append(self._units(match, index))
            index += len(steps[-1])
        made = self._on_all([unit for units in steps for unit in units], team)  # in the units' order
        found = [[next(made) for _ in units] for units in steps]
        follow = [
            self._left(units[0].match, units[-1].index, outcomes)
            for units, outcomes in zip(steps, found, strict=True)
        ]
        made_again = self._on_all([unit for unit in follow if unit is not None], team)
        for outcomes, unit in zip(found, follow, strict=True):
            self._merge(outcomes, None if unit is None else in_shares(next(made_again), self._labels))

    def _units(self, match: StepMatch, first: int) -> list[Unit]:
        """The units of a step: its places, or the step as a whole. first: the number of the first unit."""
        paired = same_ranks(match)
        if self.key is not None or not paired:
            return [Unit(first, match)]
        pairs = zip(match.ranks_a, match.ranks_b, strict=True)
        return [Unit(first + at, match, ranks) for at, ranks in enumerate(pairs)]

    def _left(self, match: StepMatch, index: int, outcomes: Sequence[Sequence[Outcome]]) -> Unit | None:
        """The unit that remains of a step after its places are compared: fields that the runs cut
        differently.
        """
        recut = dict.fromkeys(name for of_place in outcomes for o in of_place for name in o.recut)
        return Unit(index, match, recut=tuple(recut)) if recut else None

    def _shares(self, units: Sequence[Unit], sizes: Sequence[int], ranks: int) -> list[int]:
        """How many shares each unit is cut into, so that all ranks have work.

        sizes: bytes of the units, of both runs.
        """
        wanted = _SHARES_A_RANK * ranks
        found = shares_by_size(sizes, wanted)
        places = [at for at, unit in enumerate(units) if unit.ranks is not None]
        if places and len(places) < wanted:  # few places: their fields are counted
            most = math.ceil(wanted / len(places))
            least = min(most, self._pieces_of(units[places[0]], most))
            for at in places:
                found[at] = max(found[at], least)
        if self.key is not None:
            return [1] * len(units)
        return found

    def _pieces_of(self, unit: Unit, shares: int) -> int:
        """How many pieces of fields a place has for so many shares, judged by the first run."""
        a = copy.copy(self.a)  # its notes are reported when it is compared
        a.notes = []
        with contextlib.suppress(TwinrunError), a.open(unit.places()[0][0], False) as opened:
            refs = list(opened.values())
            sizes = [ref.items * ref.itemsize for ref in refs]
            return max(1, len(pieces(sizes, [ref.reads_anywhere for ref in refs], shares)))
        return 1

    @property
    def _labels(self) -> str:
        return f"{self.a.label}, {self.b.label}"

    def _on_all(self, units: Sequence[Unit], team: Team) -> Iterator[list[Outcome]]:
        """Runs the units on all ranks of the team. Returns for each the outcomes of its shares."""
        if not units:
            return iter(())
        sizes = []
        for unit in units:
            of_a, of_b = unit.places()
            unit.entries_a = {place: self.a.entry(place) for place in of_a}
            unit.entries_b = {place: self.b.entry(place) for place in of_b}
            sizes.append(
                sum(self.a.size(place) for place in of_a) + sum(self.b.size(place) for place in of_b)
            )
        shares = self._shares(units, sizes, team.size)
        parts = [replace(unit, share=(k, n)) for unit, n in zip(units, shares, strict=True) for k in range(n)]
        part_sizes = [size // n for size, n in zip(sizes, shares, strict=True) for _ in range(n)]
        job = copy.copy(self)
        job.a, job.b = self.a.without_places(), self.b.without_places()
        job.settings = replace(self.settings, progress=None)
        job.results, job.problems, job.notes, job.attributes = [], [], [], []
        made = iter(team.share(_Job(job), parts, part_sizes, self.settings.progress))
        return iter([[next(made) for _ in range(n)] for n in shares])

    def run(self, unit: Unit) -> Outcome:
        """Compares a part of both runs. Changes nothing outside the returned outcome."""
        own = copy.copy(self)
        own.results, own.problems, own.notes, own.opening, own.keyed, own.order = [], [], [], 0, set(), None
        own.attributes, own.attributes_compared = [], 0
        own.a, own.b = copy.copy(self.a), copy.copy(self.b)
        for subject in (own.a, own.b):
            subject.notes, subject.left_out = [], 0
        tolerances = self.settings.tolerances
        own.settings = replace(
            self.settings, periodic={}, tolerances=Tolerances(tolerances.rules, tolerances.source)
        )
        if self.noted_order is not None and self.noted_order < unit.index:
            own.order = (-1, "")  # an earlier unit reported it
        found = Outcome()
        if unit.recut is not None:
            own._recut(unit.match, set(unit.recut), set(), unit.share, found)
        elif unit.ranks is not None:
            found.recut = own._place(unit.match, *unit.ranks, set(), unit.share, found)
        else:
            own.step(unit.match, unit.share, found)
        if own.order is not None and own.order[0] >= 0:
            found.order, self.noted_order = own.order, unit.index
        found.results, found.problems, found.notes = own.results, own.problems, own.notes
        found.keep_places(-1, len(found.results), len(found.problems))
        found.opening, found.keyed, found.periodic = own.opening, own.keyed, own.settings.periodic
        found.notes_a, found.notes_b = own.a.notes, own.b.notes
        found.left_out = (own.a.left_out, own.b.left_out)
        found.attributes, found.attributes_compared = own.attributes, own.attributes_compared
        found.rules = own.settings.tolerances.met()
        return found

    def _merge(self, outcomes: Sequence[Sequence[Outcome]], again: Outcome | None) -> None:
        """Adds the outcomes of a step: of its units in order, each in shares; and of the fields that
        remained.
        """
        results: list[FieldComparison] = []
        whole = [in_shares(of_place, self._labels) for of_place in outcomes]
        for outcome in [*whole, *([] if again is None else [again])]:
            if outcome.error is not None:
                raise outcome.error
            for problem in outcome.problems:
                self.tell(problem)
            if outcome is again:
                left = {name for of_place in outcomes for o in of_place for name in o.recut}
                results = [f for f in results if f.field not in left or f.key is not None]
            results += outcome.results
            self.notes += outcome.notes
            if outcome.order is not None and self.order is None:
                self.order = outcome.order
                self.notes.append(outcome.order[1])
            self.opening += outcome.opening
            self.keyed |= outcome.keyed
            self.a.notes += outcome.notes_a
            self.b.notes += outcome.notes_b
            self.attributes += outcome.attributes
            self.attributes_compared += outcome.attributes_compared
            self.a.left_out += outcome.left_out[0]
            self.b.left_out += outcome.left_out[1]
            self.settings.tolerances.add(outcome.rules)
            self.settings.periodic.update(outcome.periodic)
        self.results += results

    def tell(self, problem: TwinrunError) -> None:
        """Keeps a problem, or raises it where the caller wants all or nothing."""
        problem = self.explained(problem)
        if not self.partial:
            raise problem
        self.problems.append(problem)

    def explained(self, problem: TwinrunError) -> TwinrunError:
        """The problem itself; or, where a run that is still written dropped the step meanwhile, an error that
        says so.
        """
        if self.matched is None or isinstance(problem, Incomparable):
            return problem
        for subject, step in ((self.a, self.matched.step_a), (self.b, self.matched.step_b)):
            why = subject.explained(problem, step)
            if why is not problem:
                return why
        return problem

    def chosen(self, step: int | None) -> Callable[[str], bool]:
        """Whether a field is wanted: by --field, and by rules that leave fields out."""

        def wanted(name: str) -> bool:
            if self.globs is not None and not any(fnmatch.fnmatchcase(name, g) for g in self.globs):
                return False
            if "@" in name and self.settings.tolerances.ignores(name, step):  # an attribute that is a field
                return False
            rule = self.settings.rule(name, step)
            return rule is None or not rule.skip

        return wanted

    def say(self, opened: tuple[Sequence[Opened], Sequence[Opened]], place: tuple[int | None, int]) -> None:
        """Compares what the files of a place say beside their elements, and reports what in them cannot be
        compared.
        """
        step, tolerances = place[0], self.settings.tolerances
        wanted = self.chosen(step)
        sides = [
            (s, [e for o in held for e in o.skipped])
            for s, held in zip((self.a, self.b), opened, strict=True)
        ]
        for subject, problem in uncompared(sides, wanted):
            subject.left_out += 1
            if problem is not None:
                self.tell(problem)
        found = match_attributes(
            self.a,
            self.b,
            opened,
            place,
            wanted=wanted,
            left_out=lambda name: tolerances.leaves_out(name, step),
            ignored=lambda label: (self.by_time and label == "@time") or tolerances.ignores(label, step),
            named=self.globs is not None,
            common=self.common,
        )
        if found.problem is not None:
            self.tell(found.problem)
        self.attributes += found.differences
        self.attributes_compared += found.compared
        self.notes += found.notes

    def step(self, match: StepMatch, share: tuple[int, int], outcome: Outcome) -> None:
        """Compares one step of both runs.

        share, outcome: as for `_recut`; a step that is matched by ID has one share.
        """
        done: set[str] = set()
        before = len(self.results)
        if self.key is not None:
            done = self._particles(match)
        recut: dict[str, None] = {}
        if same_ranks(match):
            for rank_a, rank_b in zip(match.ranks_a, match.ranks_b, strict=True):
                recut.update(dict.fromkeys(self._place(match, rank_a, rank_b, done)))
        else:
            self._recut(match, None, done, share, outcome)
        if recut:
            self.results[before:] = [
                f for f in self.results[before:] if f.field not in recut or f.key is not None
            ]
            self._recut(match, set(recut), done)

    def _place(
        self,
        match: StepMatch,
        rank_a: int,
        rank_b: int,
        done: set[str],
        share: tuple[int, int] = (0, 1),
        outcome: Outcome | None = None,
    ) -> list[str]:
        """Compares one rank's part of a step. Returns the fields that the runs cut differently: they remain.

        share: (which, of how many) of the fields. outcome: receives the field that each result and problem
        belongs to.
        """
        step = match.step
        place = (step, rank_a if match.step_a is not None else rank_b)
        wanted = self.chosen(step)
        self.matched = match
        try:
            with (
                self.a.open((match.step_a, rank_a), self.use_metadata) as in_a,
                self.b.open((match.step_b, rank_b), self.use_metadata) as in_b,
            ):
                in_a, in_b = opened_of(in_a), opened_of(in_b)
                if self.globs is None:
                    under_one_name(self.a, self.b, in_a, in_b)
                add_summaries(in_a, in_b)
                found = match_fields(
                    self.a,
                    self.b,
                    in_a,
                    in_b,
                    lambda n: n not in done and wanted(n),
                    self.globs is not None,
                    place,
                )
                for problem in found.problems:
                    self.tell(problem)
                if share[0] == 0:
                    self.say(([in_a], [in_b]), place)
                outcome = outcome or Outcome()
                outcome.keep_places(-1, len(self.results), len(self.problems))
                opened = {
                    id(m): m for pair in found.pairs for m in (ref.metadata for ref in pair) if m is not None
                }
                self.opening += sum(m.bytes_read for m in opened.values())
                for piece in self._mine(list(enumerate(found.pairs)), share, outcome):
                    self._field(*found.pairs[piece.at], place, piece, outcome)
                if (
                    not found.pairs
                    and not found.recut
                    and not found.problems
                    and not done
                    and not in_a.skipped
                    and share[0] == 0
                    and not self.attributes_compared  # of this place: a file may hold nothing else
                    and not self._all_skipped(in_a, step)
                ):
                    self.tell(
                        Incomparable(
                            f"{place_text(place)}: no field to compare",
                            where=self.a.label,
                            fix="nothing was compared",
                        )
                    )
                self._say_order(in_a, in_b, place)
                return found.recut
        except TwinrunError as error:
            if not self.partial:
                raise
            self.problems.append(error)
            return []

    def _all_skipped(self, fields: Mapping[str, FieldRef], step: int | None) -> bool:
        rules = [self.settings.rule(n, step) for n in fields]
        return bool(rules) and all(rule is not None and rule.skip for rule in rules)

    def _mine(
        self,
        pairs: Sequence[tuple[int, tuple[FieldRef, FieldRef]]],
        share: tuple[int, int],
        outcome: Outcome,
    ) -> list[Piece]:
        """The pieces of field pairs that belong to a share.

        pairs: each with its number, ascending. outcome: receives all pairs.
        """
        if share[1] == 1:
            return [Piece(at, (0, 1), 0) for at, _ in pairs]
        outcome.pairs = [
            (x.name, max(x.items, y.items) * x.itemsize, divisible(x, y, self.settings))
            for _, (x, y) in pairs
        ]
        found = pieces([size for _, size, _ in outcome.pairs], [may for _, _, may in outcome.pairs], share[1])
        mine = owners([piece.bytes for piece in found], share[1])
        return [
            replace(piece, at=pairs[piece.at][0])
            for piece, owner in zip(found, mine, strict=True)
            if owner == share[0]
        ]

    def _field(
        self,
        x: FieldRef,
        y: FieldRef,
        place: tuple[int | None, int],
        piece: Piece,
        outcome: Outcome,
    ) -> None:
        """Compares a field, or a part of it."""
        scalars = 2 if x.dtype in ("c64", "c128") else 1
        try:
            ranges = piece.ranges(x.items, x.itemsize, scalars)
            compare_it = compare_part if x.parts is None else compare_placed
            part = compare_it(x, y, place, self.settings, ranges)
            if ranges is None:
                self.results.append(put_together([part]))
                self._say_texts(x, y, self.results[-1])
            else:
                outcome.parts.append((piece.at, part))
        except TwinrunError as error:
            self.tell(error)
        outcome.keep_places(piece.at, len(self.results), len(self.problems))

    def _say_texts(self, x: FieldRef, y: FieldRef, found: FieldComparison) -> None:
        """The first two texts that differ: their digests mean nothing to a person."""
        if not found.same and found.first_index is not None and x.text is not None and y.text is not None:
            try:
                of_a, of_b = x.text(found.first_index), y.text(found.first_index)
            except TwinrunError:  # only a note
                return
            found._texts = (f"{of_a:.200}", f"{of_b:.200}")
            at = ", ".join(map(str, found.first_index[:-1]))
            name = f"{found.field}[{at}]" if at else found.field
            self.notes.append(
                f"{place_text((found.step, found.rank))}: {name} is {of_a:.200} in {self.a.label}, "
                f"{of_b:.200} in {self.b.label}"
            )

    def _say_order(
        self, in_a: dict[str, FieldRef], in_b: dict[str, FieldRef], place: tuple[int | None, int]
    ) -> None:
        """Notes particles whose order changed, where no key was given."""
        if self.key is not None or self.order is not None:
            return
        names = list(in_a)
        for f in self.results:
            if (f.step, f.rank) != place or f.same:
                continue
            with contextlib.suppress(TwinrunError):  # only a hint
                note = order_note(in_a, in_b, [f.field], self.settings.memory)
                if note is not None:
                    self.order = (names.index(f.field), f"{place_text(place)}: {note}")
                    return

    @contextlib.contextmanager
    def _all_ranks(self, match: StepMatch):
        """(rank, fields) of each place of the step, for both runs, all open."""
        _allow_files(_FILES_A_PLACE * (len(match.ranks_a) + len(match.ranks_b)))
        with contextlib.ExitStack() as stack:
            yield tuple(
                [(rank, stack.enter_context(subject.open((step, rank), self.use_metadata))) for rank in ranks]
                for subject, step, ranks in (
                    (self.a, match.step_a, match.ranks_a),
                    (self.b, match.step_b, match.ranks_b),
                )
            )

    def _particles(self, match: StepMatch) -> set[str]:
        """Compares the fields that have IDs. Returns their names."""
        done: set[str] = set()
        assert self.key is not None
        self.matched = match
        try:
            with self._all_ranks(match) as sides:
                kinds = find_particles(sides, self.key)
                for kind in kinds.values():
                    self.keyed.add(kind.key)
                    members = {n for part in (*kind.parts_a, *kind.parts_b) for n in part[2]}
                    done |= members | {kind.key}
                    if not kind.parts_a or not kind.parts_b:
                        label = (self.b if kind.parts_a else self.a).label
                        said = f"{kind.key!r} at step {match.step}: not there"
                        went = lost(match, [p[0] for p in (*kind.parts_a, *kind.parts_b)], bool(kind.parts_a))
                        self.tell((Incomparable if went else Unmatched)(said, where=label))
                        continue
                    results, problems, notes = compare_particles(
                        kind, match.step, self.settings, self.chosen(match.step), self.a.label, self.b.label
                    )
                    self.results.extend(results)
                    self.notes.extend(notes)
                    for problem in problems:
                        self.tell(problem)
                for problem in without_ids(sides, kinds, self.chosen(match.step)):
                    self.tell(problem)
        except TwinrunError as error:
            self.tell(error)
        return done

    def _global_pair(
        self, match: StepMatch, name: str, held: Sequence[Mapping[str, Sequence[tuple[int, FieldRef]]]]
    ) -> tuple[FieldRef, FieldRef]:
        """A field of both runs as global arrays.

        held: its parts. Raises TwinrunError where the parts do not fit together.
        """
        labels = (self.a.label, self.b.label)
        for side, label in zip(held, labels, strict=True):
            if name not in side:
                raise Unmatched(f"{place_text((match.step, 0))}: field {name!r}: not there", where=label)
        parts = parts_of_both(name, [side[name] for side in held], labels, self.settings.cache)
        x, y = (of_run.field() for of_run in parts)
        check_alike(x, y, f"{place_text((match.step, 0))}: field {name!r}", *labels)
        return in_one_order(x, y)

    def _pair_at(self, place: Place, x: FieldRef, y: FieldRef) -> tuple[FieldRef, FieldRef] | TwinrunError:
        """A field of one rank of both runs, or why it cannot be compared."""
        try:
            check_alike(x, y, f"{place_text(place)}: field {x.name!r}", self.a.label, self.b.label)
        except TwinrunError as error:
            return error
        return in_one_order(x, y)

    def _recut(
        self,
        match: StepMatch,
        only: set[str] | None,
        done: set[str],
        share: tuple[int, int] = (0, 1),
        outcome: Outcome | None = None,
    ) -> None:
        """Compares fields that the runs' ranks cut differently, as the global arrays that they are parts of.

        share, outcome: as of `_place`.
        """
        outcome = outcome or Outcome()
        wanted = self.chosen(match.step)
        self.matched = match
        try:
            with self._all_ranks(match) as sides:
                if only is None and share[0] == 0:
                    said_a, said_b = ([opened_of(fields) for _, fields in side] for side in sides)
                    self.say((said_a, said_b), (match.step, 0))
                held: list[dict[str, list[tuple[int, FieldRef]]]] = [{}, {}]
                for mine_of, side in zip(held, sides, strict=True):
                    for rank, fields in side:
                        for name, ref in fields.items():
                            if name not in done and wanted(name) and (only is None or name in only):
                                mine_of.setdefault(name, []).append((rank, ref))
                give_places(held)
                scattered: list[
                    str
                ] = []  # fields that could only be compared rank by rank, on ranks that only one run has
                entries: list[tuple[Place, tuple[FieldRef, FieldRef] | TwinrunError]] = []
                for name in dict.fromkeys((*held[0], *held[1])):
                    parts = [*held[0].get(name, ()), *held[1].get(name, ())]
                    everywhere = all(name in side for side in held)
                    if not everywhere and lost(match, [rank for rank, _ in parts], name in held[0]):
                        scattered.append(name)
                        continue
                    if only is None and everywhere and any(ref.place is None for _, ref in parts):
                        of_a, of_b = (dict(side[name]) for side in held)
                        if set(of_a) != set(of_b):
                            scattered.append(name)
                            continue
                        # the same ranks of both runs have it: numbers of a header, for example
                        for rank in of_a:
                            place = (match.step, rank)
                            entries.append((place, self._pair_at(place, of_a[rank], of_b[rank])))
                        continue
                    try:
                        entries.append(((match.step, 0), self._global_pair(match, name, held)))
                    except TwinrunError as error:
                        entries.append(((match.step, 0), error))
                pairs = [(at, e) for at, (_, e) in enumerate(entries) if not isinstance(e, TwinrunError)]
                mine: dict[int, list[Piece]] = {}
                for piece in self._mine(pairs, share, outcome):
                    mine.setdefault(piece.at, []).append(piece)
                for at, (place, entry) in enumerate(entries):
                    if isinstance(entry, TwinrunError):
                        self.tell(entry)
                        outcome.keep_places(at, len(self.results), len(self.problems))
                        continue
                    for piece in mine.get(at, ()):
                        self._field(*entry, place, piece, outcome)
                if scattered:
                    # Not Unmatched: `common` must not leave out a rank that one run lost.
                    lacking = "; ".join(map(str, missing_ranks(match, self.a, self.b)))
                    self.tell(Incomparable(f"field {', '.join(map(repr, scattered))}: {lacking}"))
                    outcome.keep_places(len(entries), len(self.results), len(self.problems))
        except TwinrunError as error:
            if not self.partial:
                raise
            self.problems.append(error)


def compare(
    a: object,
    b: object,
    *,
    atol: float | None = None,
    rtol: float | None = None,
    ulp: int | None = None,
    tolerances: str | os.PathLike[str] | Tolerances | None = None,
    key: str | None = None,
    period: str | float | Iterable[float] | None = None,
    align: str = "step",
    common: bool = False,
    partial: bool = False,
    equal_nan: bool = True,
    method: str = "auto",
    fields: Iterable[str] | None = None,
    steps: str | None = None,
    ranks: str | None = None,
    tolerate_integers: bool = False,
    use_metadata: bool = True,
    residue_bits: int = 4,
    chunk_bytes: int = 4096,
    threads: int = 0,
    memory: int = 1 << 30,
    io: str = "auto",
    cache: str = "auto",
    device: str = "auto",
    stream: object = None,
    options: Mapping[str, object] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    team: Team | None = None,
    leave_out: Iterable[str] = (),
    ignore_attributes: Iterable[str] = (),
) -> Comparison:
    """Compares two runs: where, by how much, and from which step on they differ.

    >>> x = np.linspace(0, 1, 1000)
    >>> y = x.copy()
    >>> y[7] += 1e-3
    >>> result = twinrun.compare({"x": x}, {"x": y}, atol=1e-6)
    >>> result.verdict, result.first.first_index
    ('different', (7,))

    Parameters
    ----------
    a, b : path, array or container of arrays
        The two runs; `a` is the reference. A path is a history, a folder or a file. A container is `{name:
        array}`, nested mappings and lists, a model, a table or labelled arrays. Arrays lie on the host or on
        a GPU.
    atol, rtol : float, default None
        Elements differ where |a - b| > atol + rtol |a|, decided as if in infinite precision. `atol` has the
        unit of the data. With neither: the tolerance that the metadata was made for, or equality. Integers
        and booleans compare exactly.
    ulp : int, default None
        Floating-point numbers that are at most so many representable values apart agree, whatever `atol` and
        `rtol` say.
    tolerances : path or Tolerances, default None
        A TOML file with rules by field and step (docs/guide.md). A rule comes before `atol`, `rtol` and
        `ulp`.
    key : str, default None
        The field, or a glob of the fields, with the IDs of particles; 'auto' takes what the files say. Rows
        are matched by ID, whatever the order, rank or file. IDs that only one run has differ.
    period : float, iterable of float, or str, default None
        Lengths of the periodic box, in the unit of positions, for fields whose names say that they hold
        positions; or 'pos=10x10x20' for fields that match a glob.
    align : {'step', 'time'}
        How steps are matched: by their numbers, or by the physical time that files give.
    common : bool, default False
        True: steps and fields that only one run has are left out and noted. False: they are problems. A rank
        that only one run has in a step is always a problem.
    partial : bool, default False
        True: what cannot be compared goes to `problems`, and the rest is compared. False: the first problem
        raises.
    equal_nan : bool, default True
        Whether a NaN equals a NaN.
    method : {'auto', 'staged', 'direct', 'published'}
        'staged' works on metadata first (tree, sketch, elements), 'direct' reads every element, 'published'
        is the method of the paper. All give the same differences.
    fields : iterable of str, default None
        Globs of the fields to compare; None for all.
    steps, ranks : str, default None
        The steps and ranks to compare: '10,20' or '100:200', both ends included.
    tolerate_integers : bool, default False
        True: the tolerance holds for integers and booleans too.
    use_metadata : bool, default True
        False: metadata is ignored, and elements are compared.
    residue_bits : {4, 2, 0}
        For metadata that is built during the comparison: bits an element.
    chunk_bytes : int, default 4096
        For metadata that is built during the comparison: bytes of a chunk.
    threads : int, default 0
        Threads that work; 0 takes all cores.
    memory : int, default 1 GiB
        Bytes of read buffers, at most.
    io : {'auto', 'uring', 'pread', 'gds'}
        How data is read; 'gds' is GPUDirect Storage.
    cache : {'auto', 'buffered', 'direct'}
        Whether reads go through the page cache.
    device : str, default 'auto'
        'cpu'; 'cuda' for all GPUs; 'cuda:0' or 'cuda:0,1' for some; 'auto' for where it is expected to be
        faster.
    stream : int or stream object, default None
        The GPU stream whose work makes the arrays, as a handle or an object of PyTorch, CuPy or Numba. By
        default the arrays themselves name it.
    options : dict, default None
        Options of the file formats: format, dtype, shape, and others of docs/formats.md.
    progress : callable, default None
        `progress(label, done, total)` is called now and then.
    team : Team, default None
        The ranks of an MPI job that share the work; the leader calls this, the others serve
        (docs/scaling.md).
    leave_out : iterable of str, default ()
        Globs of fields and files that are not compared.
    ignore_attributes : iterable of str, default ()
        Globs of attributes that may differ, over `path@name`. A name alone is that attribute of anything.

    Returns
    -------
    Comparison
        The verdict, and what is known of each field. `bool(result)` is True only if everything was compared
        and is the same.

    Raises
    ------
    TwinrunError
        A parameter has no meaning. It is also the base of all errors here.
    MissingFile, DamagedFile, Unsupported, MissingPackage
        A run cannot be read.
    Incomparable
        Shapes, types or sets of fields differ (without `partial`), nothing was compared, or no field fits
        `key` or `period`.
    Stale
        Metadata is older than its data.

    Notes
    -----
    After an error nothing counts as compared. What files say beside elements (attributes, dimensions, links)
    is compared exactly, and what cannot be compared is a problem (docs/formats.md). Calls from several
    threads do not share state; arrays must not change meanwhile.

    The digests are defined in spec/digest.md, with a proof of the promise. 'published' follows Tan et al.,
    Middleware 2024 (see README.md).

    Examples
    --------
    Two histories:

    >>> for path, error in (("runs/a", 0.0), ("runs/b", 1e-3)):
    ...     with twinrun.Run(path, atol=1e-6) as run:
    ...         for step in (0, 10):
    ...             facts = run.capture(step, {"x": x + (error if step == 10 else 0)})
    >>> result = twinrun.compare("runs/a", "runs/b")
    >>> result.verdict, result.first_divergence["step"]
    ('different', 10)

    Particles in another order:

    >>> ids = np.array([3, 1, 2])
    >>> order = np.array([1, 2, 0])
    >>> a = {"id": ids, "x": ids * 0.5}
    >>> b = {"id": ids[order], "x": a["x"][order]}
    >>> twinrun.compare(a, b, key="id").verdict
    'same'
    """
    start = time.perf_counter()
    if method not in METHODS:
        raise TwinrunError(f"unknown method {method!r}", fix="use one of " + ", ".join(METHODS))
    if align not in ALIGNMENTS:
        raise TwinrunError(f"unknown alignment {align!r}", fix="use one of " + ", ".join(ALIGNMENTS))
    check_settings(
        threads=threads, memory=memory, residue_bits=residue_bits, chunk_bytes=chunk_bytes, io=io, gds=True
    )
    if cache not in ("auto", "buffered", "direct"):
        raise TwinrunError(f"cache must be auto, buffered or direct, not {cache!r}")
    for name, value in (("atol", atol), ("rtol", rtol)):
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise TwinrunError(f"{name} must be a finite number that is not negative, not {value!r}")
    if ulp is not None and not 0 <= ulp < (1 << 64) - 1:
        raise TwinrunError(f"ulp must be a number of representable values, not {ulp!r}")
    use, devices = chosen_devices(device)
    if tolerances is None or isinstance(tolerances, Tolerances):
        rules = Tolerances() if tolerances is None else Tolerances(tolerances.rules, tolerances.source)
    else:
        rules = read_tolerances(tolerances)
    rules = rules.with_left_out(_globs(leave_out), _globs(ignore_attributes))
    settings = Settings(
        atol=None if atol is None else float(atol),
        rtol=None if rtol is None else float(rtol),
        equal_nan=equal_nan,
        method=method,
        integers=tolerate_integers,
        residue_bits=residue_bits,
        chunk_bytes=chunk_bytes,
        threads=threads,
        memory=memory,
        io=io,
        cache=cache,
        device=use,
        devices=devices,
        progress=progress,
        ulps=ulp,
        tolerances=rules,
        periods=_periods(period),
    )
    globs = None if fields is None else list(fields)
    chosen_steps = None if steps is None else parse_steps(steps)
    chosen_ranks = None if ranks is None else parse_steps(ranks, "ranks")
    subject_a, subject_b = open_subject(a, options, stream), open_subject(b, options, stream)
    work = _Work(
        subject_a, subject_b, settings, globs, key, use_metadata, partial or common, common, align == "time"
    )
    wanted = work.chosen(None)
    # a place is dropped where all its files are unknown and not selected
    for subject in (subject_a, subject_b):
        asked_for = [name for name in subject.unknown_names if wanted(name)]
        if subject.unknown and not asked_for:
            subject.places = [place for place in subject.places if place not in subject.unknown]
    matched = match_steps(subject_a, subject_b, chosen_steps, align, chosen_ranks)
    work.notes.extend(matched.notes)
    for problem in matched.problems:
        work.tell(problem)
    for subject, untold in uncompared(((s, s.skipped) for s in (subject_a, subject_b)), wanted):
        subject.left_out += 1
        if untold is not None:
            work.tell(untold)
    work.compare(matched.matches, team)
    result = _result(work, common, partial, str(device), time.perf_counter() - start)
    result._again = Again.of(
        a, b, settings, globs=globs, key=key, use_metadata=use_metadata, steps=steps, ranks=ranks, align=align,
        options=options, stream=stream,
    )  # fmt: skip
    return result


def _globs(given: str | Iterable[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


class _Job:
    """The work in the form that ranks receive."""

    def __init__(self, work: _Work) -> None:
        self._work = work

    def arrive(self, team: Team) -> None:
        """Divides what ranks of a node share: cores, memory, devices."""
        work, asked = copy.copy(self._work), self._work.settings
        memory = asked.memory if team.memory_is_each else max(_LEAST_MEMORY, asked.memory // team.node_size)
        work.settings = replace(
            asked,
            threads=asked.threads or team.threads,
            memory=min(asked.memory, memory),
            devices=_own_devices(asked, team),
        )
        self._work = work

    def run(self, unit: Unit) -> Outcome:
        """Compares a part. An error becomes part of the outcome, and the leader raises it."""
        self._work.a.know(unit.entries_a)
        self._work.b.know(unit.entries_b)
        try:
            return self._work.run(unit)
        except (TwinrunError, OSError, MemoryError) as e:
            return Outcome(error=e)


def _allow_files(count: int) -> None:
    """Raises the soft limit of open files by `count`, up to the hard limit: the soft limit is often 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _own_devices(settings: Settings, team: Team) -> list[int]:
    """The GPUs of one rank of a node: ranks divide them where there are several."""
    if settings.device == "cpu" or team.node_size == 1:
        return settings.devices
    usable = settings.devices or [
        at for at, device in enumerate(_core.devices()["devices"]) if not device["reason"]
    ]
    return usable[team.node_rank % len(usable) :: team.node_size] if usable else settings.devices


def _periods(period: str | float | Iterable[float] | None) -> Periods:
    if period is None:
        return Periods()
    if isinstance(period, str):
        return parse_periods(period)
    return parse_periods(
        ",".join(repr(float(p)) for p in ([period] if isinstance(period, (int, float)) else period))
    )


def _result(work: _Work, common: bool, partial: bool, device: str, seconds: float) -> Comparison:
    a, b, settings, results = work.a, work.b, work.settings, work.results
    problems = work.problems
    notes = [*a.notes, *b.notes, *work.notes, *settings.tolerances.notes()]
    if common:  # what only one run has is no problem; what cannot be read is one
        if problems and not results and all(isinstance(p, Unmatched) for p in problems):
            raise Incomparable(
                "nothing was compared: the runs have no field in common",
                where=f"{a.label}, {b.label}",
                fix="name runs that share fields and steps",
            )
        notes += [str(p) for p in problems if isinstance(p, Unmatched)]
        problems = [p for p in problems if not isinstance(p, Unmatched)]
    if problems and (not partial or not (results or work.attributes_compared)):
        raise problems[0]
    if not results and not work.attributes_compared:
        raise Incomparable(
            "nothing was compared", where=f"{a.label}, {b.label}", fix="is every field left out?"
        )
    if work.key is not None and not work.keyed:
        raise Incomparable(
            f"no field {work.key!r} of integer IDs",
            where=a.label,
            fix="name the field that holds the particles' IDs",
        )
    if settings.periods.axes or settings.periods.named:
        if not settings.periodic:
            raise Incomparable(
                "no field holds positions, by its name: the period is of none", where=a.label,
                fix="say which: --period field=10x10x20",
            )  # fmt: skip
        said = ", ".join(
            f"{n} ({'x'.join(f'{p:g}' for p in v)})" for n, v in list(settings.periodic.items())[:8]
        )
        notes.append(f"compared on the circle: {said}")
    provenance = [_provenance(s) for s in (a, b)]
    notes = list(dict.fromkeys([*notes, *a.notes, *b.notes]))
    bytes_read = work.opening + sum(stage["bytes_read"] for f in results for stage in f.stages.values())
    agree = all(f.same for f in results) and not work.attributes
    verdict = "incomparable" if problems else "same" if agree else "different"
    return Comparison(
        a=a.label,
        b=b.label,
        verdict=verdict,
        fields=results,
        seconds=seconds,
        bytes_compared=sum(f.bytes for f in results),
        bytes_read=bytes_read,
        notes=notes,
        not_compared=a.left_out + b.left_out,
        device_asked=device,
        provenance_a=provenance[0],
        provenance_b=provenance[1],
        problems=[str(p) for p in problems],
        attributes=work.attributes,
        attributes_compared=work.attributes_compared,
    )
