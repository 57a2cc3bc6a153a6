"""The comparison of two traces: the first operation whose inputs agree and whose outputs differ."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ..comparison.renames import renames_of
from ..comparison.words import verdict_line
from ..comparison.work import compare
from ..errors import TwinrunError
from ..runs.events import DIGESTS, EVENTS, KEPT, Event
from ..runs.gaps import BY_CHANCE, UNCALLED, gap
from ..runs.opening import open_subject
from ..words import counted
from .alignment import is_rest, leading
from .distance import measure
from .reading import RankOfTrace, TraceSubject
from .replicas import chosen_ranks, replicated, usual_rank
from .result import TraceComparison
from .shardings import refuse_other_shardings
from .versions import KindsOfRecords
from .walk import Walk
from .words import spans, structure_note, uncalled_note

__all__ = ["TraceComparison", "compare_traces"]


def _iterations(
    result: TraceComparison, walk: Walk, a: RankOfTrace, b: RankOfTrace, at: str, common: bool
) -> Iterator[int]:
    """The iterations that both have. Says which others there are."""
    ours, theirs = (set(s.subject.iterations(s.rank)) for s in (a, b))
    both = sorted(ours & theirs)
    if common and both:
        outside = {
            side.label: sorted(n for n in had - other if not both[0] <= n <= both[-1])
            for side, had, other in ((a, ours, theirs), (b, theirs, ours))
        }
        for label, left in outside.items():
            if left:
                result.notes.append(
                    f"{at}iteration{'s' if len(left) > 1 else ''} {spans(left)} only in {label}: left out, "
                    f"compared are {both[0]} to {both[-1]}"
                )
        left_out = {n for left in outside.values() for n in left}
        ours, theirs = ours - left_out, theirs - left_out
    for n in sorted(ours | theirs):
        if n in ours and n in theirs:
            yield n
        else:
            result.unmatched += 1
            only = f"iteration {n}: only in {a.label if n in ours else b.label}"
            walk.problem(f"{at}{only}")
            walk.not_known(only)


_OF_MODULES = ("forward", "recompute", "backward")


def _is_uncalled(e: Event) -> bool:
    """Whether an event stands for a module whose calls were not seen."""
    return len(e.values) == 1 and gap(e.values[0]) == UNCALLED


def _without_rest(
    result: TraceComparison,
    number: int,
    sides: list[list[Event]],
    runs: tuple[RankOfTrace, RankOfTrace],
    at: str,
) -> list[list[Event]]:
    """The events of an iteration that are compared. A run that ends with values that were recorded after
    its last step has them in an iteration of their own: it is compared with the beginning of the
    other run's iteration.
    """
    for own, other in ((0, 1), (1, 0)):
        side = runs[own]
        if (
            is_rest(sides[own])
            and not is_rest(sides[other])
            and number == side.subject.iterations(side.rank)[-1]
        ):
            sides = [list(events) for events in sides]
            sides[other] = leading(sides[other])
            result.notes.append(
                f"{at}iteration {number} of {side.label} has only values recorded after the last step: compared with "
                f"those at the beginning of the iteration of {runs[other].label}"
            )
            break
    return sides


def _walked(
    result: TraceComparison,
    walk: Walk,
    a: RankOfTrace,
    b: RankOfTrace,
    at: str,
    common: bool,
    kinds: KindsOfRecords | None,
) -> tuple[bool, int]:
    """Compares two ranks: of two runs, whose kinds of records come into `kinds`, or of one. Gives whether
    there are fields beside their traces, and how many values were no replicas.
    """
    alike = kinds is None
    beside, parts = False, 0
    for number in _iterations(result, walk, a, b, at, common):
        sides, ordered = [], True
        result.iterations.append(number)
        for side in (a, b):
            events, told, others = side.subject.events(side.rank, number)
            beside = beside or bool(others)
            for text in told:
                said = f"{at}{side.label}: {text}" if not alike else f"{side.label}: {text}"
                if not alike or said not in result.problems:  # those of the reference are met again
                    walk.problem(said)
                walk.not_known(f"{said} (a problem of the trace)")
                ordered = ordered and not text.endswith(BY_CHANCE)
            if alike:
                events, left = replicated(events)
                parts += left
            sides.append(events)
            walk.uncalled.update((e.module, None) for e in events if _is_uncalled(e))
        if not ordered:  # the same call of a module may be another one in each run
            sides = [[e for e in events if e.phase not in _OF_MODULES] for events in sides]
        if common:
            sides = _without_rest(result, number, sides, (a, b), at)
        if kinds is not None:
            kinds.add(*sides)
        walk.iteration(number, *sides)
    walk.end()
    return beside, parts


def _others(result: TraceComparison, a: TraceSubject, b: TraceSubject, common: bool) -> None:
    """Fields beside the trace are compared as those of any history."""
    steps = None
    if common:
        ours, theirs = ({n for r in s.ranks for n in s.iterations(r)} for s in (a, b))
        shared = sorted(ours & theirs)
        steps = f"{shared[0]}:{shared[-1]}" if shared else None
    try:
        # Opened here: paths of traces are refused there, where their events would be compared as
        # bytes.
        both = open_subject(a.label), open_subject(b.label)
        rest = compare(*both, leave_out=[EVENTS, DIGESTS, f"{KEPT}*"], partial=True, steps=steps)
    except TwinrunError as e:
        result.problems.append(f"fields beside the trace: {e}")
        return
    result.problems.extend(f"fields beside the trace: {p}" for p in rest.problems)
    if rest.verdict == "different":
        result.different_values += 1
        result.beside = verdict_line(rest).removeprefix("different: ")
        result.notes.append(f"fields beside the trace differ: {result.beside}")


def _kept_places(result: TraceComparison, subjects: Sequence[TraceSubject]) -> None:
    """Says what became of the places whose data the traces were to keep (`escalate`)."""
    missed = {s.label: s.not_reached() for s in subjects}
    result.problems[:0] = [
        f"{label}: did not come to {site}, whose data it was to keep (escalate): nothing was compared there; "
        "run the program again as it was when it made the first trace"
        for label, sites in missed.items()
        for site in sites
    ]
    wanted = set.union(*(s.wanted for s in subjects)) - {site for sites in missed.values() for site in sites}
    if not result.different_values and not result.unmatched:
        result.notes += [
            f"this time nothing differs at {site}, whose data was kept" for site in sorted(wanted)
        ]


_Walks = tuple[TraceComparison, list[Walk], dict[int, tuple[RankOfTrace, RankOfTrace]]]


def _compared_runs(ours: TraceSubject, theirs: TraceSubject, common: bool) -> _Walks:
    """Each rank of a run against the same rank of the other one."""
    refuse_other_shardings(ours, theirs)
    result = TraceComparison(ours.label, theirs.label)
    result.provenance_a, result.provenance_b = ours.provenance, theirs.provenance
    result.notes = [*ours.notes, *theirs.notes]
    beside, kinds = False, KindsOfRecords(ours, theirs)
    walks: list[Walk] = []
    sides: dict[int, tuple[RankOfTrace, RankOfTrace]] = {}
    ranks = sorted({*ours.ranks, *theirs.ranks})
    for rank in ranks:
        walks.append(Walk(result, rank))
        sides[rank] = RankOfTrace(ours, rank, "a"), RankOfTrace(theirs, rank, "b")
        at = f"rank {rank}, " if len(ranks) > 1 else ""
        beside = _walked(result, walks[-1], *sides[rank], at, common, kinds)[0] or beside
    if beside:
        _others(result, ours, theirs, common)
    result.notes += kinds.notes()
    return result, walks, sides


def _compared_replicas(
    subject: TraceSubject, common: bool, replicas: bool | Iterable[int] | Callable[[int], bool]
) -> _Walks:
    """Each data-parallel rank of a run against one of the majority."""
    wanted = replicas if callable(replicas) else None
    if not isinstance(replicas, bool) and not callable(replicas):
        wanted = set(replicas).__contains__
    ranks = chosen_ranks(subject, wanted)
    usual, majority = usual_rank(subject, ranks)
    others = [r for r in ranks if r != usual]
    said = ", ".join(map(str, others))
    result = TraceComparison(
        f"{subject.label}, rank {usual}", f"{subject.label}, rank{'s' if len(others) > 1 else ''} {said}"
    )
    result.replicas = (usual, *others)
    result.provenance_a = result.provenance_b = subject.provenance
    result.notes = [*subject.notes]
    told = () if result.provenance_a is None else result.provenance_a.ranks
    if silent := [r for r in result.replicas if r not in told]:
        result.notes.append(
            f"conditions were not compared: rank{'s' if len(silent) > 1 else ''} {', '.join(map(str, silent))} "
            "recorded none"
        )
    walks: list[Walk] = []
    sides: dict[int, tuple[RankOfTrace, RankOfTrace]] = {}
    beside, parts = False, 0
    for rank in others:
        walks.append(Walk(result, rank, True))
        sides[rank] = RankOfTrace(subject, usual, f"rank {usual}"), RankOfTrace(subject, rank, f"rank {rank}")
        also, left = _walked(result, walks[-1], *sides[rank], f"rank {rank}, ", common, None)
        beside, parts = beside or also, parts + left
    if result.firsts and not majority:
        result.notes.append(f"no majority: it is not known whether rank {usual} or another one is right")
    if parts:
        result.notes.append("parts of distributed tensors were left out: ranks hold different ones")
    if beside:
        result.notes.append("fields beside the trace were not compared: each rank has its own")
    return result, walks, sides


def compare_traces(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str] | None = None,
    *,
    common: bool = False,
    replicas: bool | Iterable[int] | Callable[[int], bool] = False,
    rename: str | Mapping[str, str] | Iterable[str] | None = None,
) -> TraceComparison:
    """Compares two traces: which operation is the first whose inputs agree and whose outputs differ.

    >>> for path, factor in (("runs/a", 2.0), ("runs/b", 2.5)):
    ...     with twinrun.Run(path) as run:
    ...         x = np.ones(4)
    ...         _ = run.capture(0, {"x": x}, phase="begin")
    ...         _ = run.capture(0, {"x": factor * x}, phase="after forces")
    >>> result = twinrun.compare_traces("runs/a", "runs/b")
    >>> result.verdict, result.first_divergence.site.phase
    ('different', 'after forces')

    Parameters
    ----------
    a, b : path
        Histories that `twinrun.torch.trace` or `Run.capture` with `phase` made, or folders of
        ranks. `replicas` takes one.
    common : bool, default False
        True: iterations before or after those that both traces have are left out and noted, as
        where a resumed training is compared with a continuous one. One that is missing between them
        is a problem as ever. Values that a training recorded after its last step are compared with
        those at the beginning of the other one's next iteration.
    replicas : bool or iterable of int, default False
        True: the data-parallel ranks of trace `a` are compared among themselves; numbers choose
        some of them. The reference is a rank of the majority. Compared is what all of them hold
        alike: parameters, and gradients, states and settings at the optimizer's step. Parts of
        distributed tensors are left out.
    rename : str, mapping or iterable of str, default None
        Rules OLD=NEW for the names of `b`, as those of `compare`: 'blocks.*=layers.*'. They are for paths of
        modules, and for parameters, gradients, states and fields that stand for no module. Messages have the
        new names.

    Returns
    -------
    TraceComparison
        The verdict, and the places at which differences enter.

    Raises
    ------
    TwinrunError
        A folder is no history, or is damaged; or two traces are given with `replicas`, or one without; or a
        rule of `rename` is not understood, or given with `replicas`.
    Incomparable
        A history holds no trace; by `rename`, two names become one; with `replicas`, only one rank; or the
        traces cut their tensors differently, as with another number of processes for tensor parallelism.

    Notes
    -----
    Values are compared by their digests, bit by bit. Events of both runs are matched by phase,
    module and operation in their order; what only one run has is a problem, and never equal.
    """
    start = time.perf_counter()
    subjects: tuple[TraceSubject, ...]
    rules = renames_of(rename)
    if replicas is not False and replicas is not None:
        if b is not None:
            raise TwinrunError("replicas are the ranks of one trace", fix="give one trace")
        if rules:
            raise TwinrunError(
                "names are those of the second trace, and replicas are ranks of one", fix="leave rename out"
            )
        subjects = (one,) = (TraceSubject(a),)
        result, walks, sides = _compared_replicas(one, common, replicas)
    elif b is None:
        raise TwinrunError("there is nothing to compare the trace with", fix="give two traces, or replicas")
    else:
        subjects = ours, theirs = TraceSubject(a), TraceSubject(b, rules)
        result, walks, sides = _compared_runs(ours, theirs, common)
        result.problems += theirs.names.unused()
    result.iterations = sorted(set(result.iterations))
    _kept_places(result, subjects)
    if not result.events:
        result.problems.append("no event of the two traces could be compared")
    if result.structure:
        result.notes.append(structure_note(result.structure))
    if objects := sum(w.objects for w in walks):
        result.notes.append(
            f"not compared: {counted(objects, 'value')} that {'is an object' if objects == 1 else 'are objects'} "
            "that a trace does not look into, such as a cache"
        )
    if uncalled := list(dict.fromkeys(module for w in walks for module in w.uncalled)):
        result.notes.append(uncalled_note(uncalled))
    firsts = [(o.site.iteration, o.number, rank, o) for rank, o in result.firsts.items()]
    if firsts:
        result.first_divergence = min(firsts, key=lambda f: f[:3])[3]
        first = result.first_divergence
        since = max((n for n in result.iterations if n < first.site.iteration), default=first.site.iteration)
        if since + 1 < first.site.iteration:
            result.notes.append(
                f"the iterations between {since} and {first.site.iteration} are not in both traces: what differs first at "
                f"iteration {first.site.iteration} may have come about there"
            )
        result.around = next(w.near() for w in walks if w.first is first)
        for origin in [*result.firsts.values()]:
            for differs in origin.values:
                measure(differs, *sides[origin.rank], origin.site.iteration)
    result.verdict = (
        "different"
        if result.different_values
        else "incomparable"
        if result.problems or result.unmatched
        else "same"
    )
    result.seconds = time.perf_counter() - start
    return result
