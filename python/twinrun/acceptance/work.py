"""From the call to the verdict: do new runs belong to the distribution of the reference runs?"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..arguments import names_given
from ..comparison.matching import fields_named
from ..comparison.tolerances import missing_steps, parse_steps
from ..errors import Incomparable, MissingPackage, TwinrunError, in_short, one_line
from ..words import counted, number, percent
from .growth import Grown, floors, grown, rate, saturated
from .members import Members, NoData, open_members
from .permutation import Tested, arrangements
from .permutation import test as test_of_choices
from .result import Acceptance, Alarms, Excess, FieldAcceptance
from .samples import STATISTICS, Sample, sample_of

__all__ = ["Settings", "accept", "judge"]

_POWER = 0.8416  # quantile of the normal distribution: 80%
_DRIFT = 0.01  # p value below which the reference runs' order is said to matter
_LEAST_FOR_DRIFT = 8
# Reference runs, from which on the bound holds for settled steps too: of three numbers, all may lie
# close together by chance.
_LEAST_FOR_BOUND = 8
_FIRST = {"no number": 0, "equal": 1}  # of the excesses of a step


@dataclass(frozen=True)
class Settings:
    """How runs are judged; see `accept`."""

    confidence: float = 0.95
    growth: float = 10.0
    spread: float = 0.05
    permutations: int = 4999
    seed: int = 20171128
    rounding: float = 0.0
    leave_one_out: bool = True  # simulations of many judgements leave it out

    def __post_init__(self) -> None:
        if not 0.5 <= self.confidence < 1:
            raise TwinrunError(
                f"confidence must be at least 0.5 and below 1, not {in_short(self.confidence)}"
            )
        if not 1 <= self.growth < math.inf:
            raise TwinrunError(f"growth must be a number of at least 1, not {in_short(self.growth)}")
        if not 0 < self.spread < 1:
            raise TwinrunError(f"spread must be between 0 and 1, not {in_short(self.spread)}")
        if not 0 <= self.rounding < 0.1:
            raise TwinrunError(f"rounding must be at least 0 and below 0.1, not {in_short(self.rounding)}")
        if not 99 <= self.permutations <= 10**7:
            raise TwinrunError(f"permutations must be from 99 to 10000000, not {in_short(self.permutations)}")

    @property
    def alpha(self) -> float:
        return round(1 - self.confidence, 12)  # 1 - 0.95 is more than 0.05


def accept(
    references: Iterable[object],
    new: Iterable[object],
    *,
    confidence: float = 0.95,
    growth: float = 10.0,
    spread: float = 0.05,
    fields: Iterable[str] | None = None,
    leave_out: Iterable[str] = (),
    steps: str | None = None,
    key: str = "auto",
    permutations: int = 4999,
    seed: int = 20171128,
    rounding: float = 0.0,
    memory: int = 1 << 30,
    options: Mapping[str, object] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Acceptance:
    """Says whether new runs belong to the distribution of reference runs.

    New runs are, for example, of another compiler, library, machine or precision.

    >>> rng = np.random.default_rng(1)
    >>> references = [{"x": rng.normal(0, 1, 500)} for _ in range(20)]
    >>> new = [{"x": rng.normal(0, 2, 500)} for _ in range(3)]  # as a wrong constant would do
    >>> result = twinrun.accept(references, new)
    >>> result.verdict, result.excesses[0].field
    ('rejected', 'x')

    Parameters
    ----------
    references : iterable of runs
        Runs that are right: at least three, each as `compare` takes it. They must vary as new runs may: by
        perturbations of their input (`perturb`), by seeds, by orders of summation.
    new : run or iterable of runs
        The runs to be judged, all made in the same way. A path or a mapping is one run.
    confidence : float, default 0.95
        1 - confidence is the rate of false alarms of the test of distributions.
    growth : float, default 10
        While differences between reference runs grow, a new run may be this many times as far from
        them as the farthest reference run.
    spread : float, default 0.05
        Differences count as settled from this share of a field's own variation on, and from half of
        their largest.
    fields, leave_out : str or iterable of str
        Globs of the fields to test, and of those to leave out; default: all fields.
    steps : str, default None
        The steps to test: '10,20' or '100:200', both ends included.
    key : str, default 'auto'
        The field with the IDs of particles, or a glob; 'auto' takes what files say, 'none' matches by place.
    permutations : int, default 4999
        Choices of new runs that are drawn where there are more.
    seed : int
        The same runs give the same result.
    rounding : float, default 0
        How exact the values are as they were written, relative to each, where that is less than their type
        holds: 5e-6 for texts of six digits. 8 times as much is no difference.
    memory : int, default 1 GiB
        Bytes, at most, for elements that are sorted by their IDs.
    options : dict, default None
        Options of the file formats (docs/reference/formats.md).
    progress : callable, default None
        `progress(label, done, total)` is called now and then.

    Returns
    -------
    Acceptance
        The verdict, and where and by how much new runs are off.

    Raises
    ------
    TwinrunError
        A parameter has no meaning, or there are too few runs.
    Incomparable
        Reference runs are all equal, hold values that are not numbers, or a field cannot be tested.
    Unmatched
        A run lacks a step, a field or elements of another.
    MissingPackage
        SciPy is not installed.

    Notes
    -----
    The test of distributions assumes only that the runs are exchangeable if the new runs are right. See
    docs/reference/acceptance.md for what it finds and what it misses.
    """
    given, judged = _listed(references), _listed(new)
    settings = Settings(confidence, growth, spread, permutations, seed, rounding)
    _check_packages()
    if len(given) < 3:
        raise TwinrunError(
            f"{counted(len(given), 'reference run')}: a distribution needs three at least",
            fix="name more reference runs; 'twinrun compare' compares two runs",
        )
    if not judged:
        raise TwinrunError("no new run", fix="name the runs to be judged after --new")
    chosen_steps = None if steps is None else parse_steps(steps)
    members = open_members(
        given,
        judged,
        steps=chosen_steps,
        fields=None if fields is None else names_given(fields, "fields"),
        leave_out=names_given(leave_out, "leave_out"),
        key=key,
        memory=memory,
        options=options,
    )
    if nowhere := missing_steps(chosen_steps, members.steps):
        raise Incomparable(f"step {', '.join(map(str, nowhere[:5]))}: in no run", fix="check --steps")
    try:
        samples = _samples(members, settings.rounding, progress)
    except NoData:
        if broken := members.not_numbers():
            return _by_metadata(members, broken, settings)
        raise
    kept, notes = _distinct(members)
    labels = [members.labels[k] for k in kept]
    count = sum(k < members.references for k in kept)
    samples = [_of_runs(sample, kept) for sample in samples]
    return judge(samples, labels, count, settings, [*members.notes, *notes])


def _check_packages() -> None:
    try:
        import scipy.stats  # noqa: F401
    except ImportError:
        raise MissingPackage.of("scipy", "twinrun[ensemble]") from None


def _listed(runs: object) -> list[object]:
    """The runs that a caller gave: a path, or a mapping of arrays, is one run."""
    if isinstance(runs, (str, os.PathLike, Mapping)):
        return [runs]
    return list(runs)  # type: ignore[call-overload]


def _samples(
    members: Members, rounding: float, progress: Callable[[str, int, int], None] | None
) -> list[Sample]:
    """Reads everything, a field of a step at a time."""
    found = []
    for at, step in enumerate(members.steps):
        for column in members.columns(step):
            try:
                found.append(
                    sample_of(
                        column.pieces(),
                        len(members.labels),
                        members.references,
                        step,
                        column.name,
                        max(column.rounding, rounding) if column.rounding else 0.0,
                        column.matched is not None,
                    )
                )
            except Incomparable as error:
                if error.where is not None:
                    raise
                where = "" if step is None else f"step {step}: "
                raise Incomparable(f"{where}field {column.name!r}: {error.what}", fix=error.fix) from None
        if progress is not None:
            progress("reading", at + 1, len(members.steps))
    return found


def _by_metadata(
    members: Members, broken: Sequence[tuple[int | None, str, int, int]], settings: Settings
) -> Acceptance:
    """The rejection where data is missing, and metadata shows a NaN where reference runs have numbers."""
    labels = [one_line(label) for label in members.labels]
    count = members.references
    excesses = [
        Excess("no number", step, name, "values", labels[run], float(nans))
        for step, name, run, nans in broken
    ]
    runs = counted(len(labels) - count, "new run")
    do = "does" if len(labels) - count == 1 else "do"
    said = f"rejected: {runs} {do} not belong to the distribution of {count} reference runs; {excesses[0]}"
    return Acceptance(
        verdict="rejected",
        sentence=one_line(said),
        references=labels[:count],
        new=labels[count:],
        steps=list(dict.fromkeys(step for step, _, _, _ in broken)),
        fields=[
            FieldAcceptance(name, growing=[], settled=[], exceeds=True)
            for name in dict.fromkeys(name for _, name, _, _ in broken)
        ],
        excesses=excesses,
        p=math.nan,
        tests={},
        ways=0,
        exact=True,
        alpha=settings.alpha,
        growth=settings.growth,
        alarms=None,
        detectable=math.nan,
        checked=[
            "steps without data: metadata says that new runs have NaN where reference runs have numbers; nothing else was tested"
        ],
        notes=[one_line(note) for note in members.notes],
    )


def _distinct(members: Members) -> tuple[list[int], list[str]]:
    """The runs that count: of runs that are equal bit for bit, one. And notes on the others."""
    count, first = members.references, {}
    kept, notes = [], []
    for run, label in enumerate(members.labels):
        digest = members.seen[run].value
        if digest not in first:
            first[digest] = run
            kept.append(run)
            continue
        same = members.labels[first[digest]]
        if run >= count > first[digest]:
            notes.append(f"{label} equals the reference run {same} bit for bit")
            kept.append(run)
        else:
            notes.append(f"{label} equals {same} bit for bit: both count as one run")
    left = sum(run < count for run in kept)
    if left < 3:
        said = (
            "all reference runs are equal bit for bit"
            if left == 1
            else f"only {left} reference runs are different"
        )
        raise Incomparable(
            f"{said}: they show no distribution",
            where=members.labels[0],
            fix="perturb their input with 'twinrun perturb'; 'twinrun compare' says whether a new run equals them",
        )
    return kept, notes


def _of_runs(sample: Sample, kept: Sequence[int]) -> Sample:
    if len(kept) == len(sample.values):
        return sample
    squares = None if sample.squares is None else sample.squares[np.ix_(kept, kept)]
    broken = {kept.index(run): n for run, n in sample.broken.items() if run in kept}
    unequal = {kept.index(run): how for run, how in sample.unequal.items() if run in kept}
    return replace(sample, values=sample.values[list(kept)], squares=squares, broken=broken, unequal=unequal)


@dataclass
class _Columns:
    """The statistics that are tested, side by side. where: (step, field, statistic, whether over
    all steps).
    """

    values: np.ndarray
    floors: np.ndarray
    where: list[tuple[int | None, str, str, bool]]


def _columns(by_field: Mapping[str, list[Sample]], settled: Mapping[str, list[bool]]) -> _Columns:
    values, floors, where = [], [], []
    for name, samples in by_field.items():
        chosen = [s for s, done in zip(samples, settled[name], strict=True) if done]
        for at, what in enumerate(STATISTICS):
            own = [s for s in chosen if np.isfinite(s.values[:, at]).all()]
            for s in own:
                values.append(s.values[:, at])
                floors.append(s.floor)
                where.append((s.step, name, what, False))
            scales = [s.values[:, at].std() for s in own]
            if sum(scale > 0 for scale in scales) > 1:
                # In units of the spread at each step, so that a step of large spread does not hide
                # the others.
                joined = [(s, scale) for s, scale in zip(own, scales, strict=True) if scale > 0]
                values.append(np.mean([s.values[:, at] / scale for s, scale in joined], axis=0))
                floors.append(float(np.mean([s.floor / scale for s, scale in joined])))
                where.append((None, name, what, True))
    runs = len(next(iter(by_field.values()))[0].values)
    table = np.array(values).T if values else np.zeros((runs, 0))
    return _Columns(table, np.array(floors), where)


def _tested(columns: _Columns, squares: list[np.ndarray], new: int, settings: Settings) -> Tested | None:
    """The test of all statistics together; None where there are none."""
    if not columns.where:
        return None
    return test_of_choices(
        columns.values,
        columns.floors,
        squares,
        new,
        alpha=settings.alpha,
        permutations=settings.permutations,
        seed=settings.seed,
    )


_ByField = dict[str, list[tuple[Sample, Grown]]]  # of each field, at its steps


def _growth(
    by_field: Mapping[str, list[Sample]], settled: Mapping[str, list[bool]], references: int, growth: float
) -> tuple[_ByField, _ByField]:
    """How far runs have grown apart: at all steps that can have a bound, and at those before saturation."""
    bounded: _ByField = {}
    growing: _ByField = {}
    for name, own in by_field.items():
        lows = floors(own)
        far = {
            s.step: (s, grown(s, references, growth, low))
            for s, done, low in zip(own, settled[name], lows, strict=True)
            if s.squares is not None and (not done or references >= _LEAST_FOR_BOUND)
        }
        bounded[name] = list(far.values())
        growing[name] = [far[s.step] for s, done in zip(own, settled[name], strict=True) if not done]
    return bounded, growing


def judge(
    samples: Sequence[Sample],
    labels: Sequence[str],
    references: int,
    settings: Settings | None = None,
    notes: Sequence[str] = (),
) -> Acceptance:
    """The verdict on samples of all runs; the first `references` labels are those of the reference runs."""
    settings = settings or Settings()
    if not samples:
        raise Incomparable("no field with numbers is there: nothing was tested")
    units: dict[str, int] = {}
    for sample in samples:
        units[sample.field] = max(units.get(sample.field, sample.exponent), sample.exponent)
    samples = [sample.in_units(units[sample.field]) for sample in samples]
    by_field: dict[str, list[Sample]] = {}
    for sample in samples:
        by_field.setdefault(sample.field, []).append(sample)
    settled = {name: saturated(own, references, settings.spread) for name, own in by_field.items()}
    columns = _columns(by_field, settled)
    new = len(labels) - references
    squares = [
        s.squares
        for name, own in by_field.items()
        for s, done in zip(own, settled[name], strict=True)
        if done and s.squares is not None
    ]
    tested = _tested(columns, squares, new, settings)
    bounded, growing = _growth(by_field, settled, references, settings.growth)
    excesses = _excesses(samples, bounded, labels, references)
    decidable = tested is None or 1 / min(arrangements(references, new), tested.ways) <= settings.alpha
    beyond = tested is not None and decidable and tested.p <= settings.alpha
    if tested is not None and beyond:
        excesses += _of_distribution(columns, tested, references, settings)
    excesses.sort(
        key=lambda e: (
            e.over_steps,
            e.step is not None,
            e.step or 0,
            _FIRST.get(e.kind, len(_FIRST)),
            -e.size,
        )
    )
    verdict = "rejected" if excesses or beyond else "accepted" if decidable else "undecided"
    fields = _fields(by_field, settled, growing, columns, tested, excesses)
    result = Acceptance(
        verdict=verdict,
        sentence="",
        references=[one_line(label) for label in labels[:references]],
        new=[one_line(label) for label in labels[references:]],
        steps=list(dict.fromkeys(s.step for s in samples)),
        fields=fields,
        excesses=excesses,
        p=math.nan if tested is None else tested.p,
        tests={} if tested is None else tested.by_kind,
        ways=0 if tested is None else tested.ways,
        exact=tested is None or tested.exact,
        alpha=settings.alpha,
        growth=settings.growth,
        alarms=_alarms(bounded, columns, squares, references, settings),
        detectable=(
            math.nan if tested is None or not decidable
            else (tested.threshold + _POWER) * math.sqrt(1 / new + 1 / references)
        ),
        checked=_checked(columns, growing, references, new, settings),
        notes=[one_line(note) for note in [*notes, *_rounded(bounded)]],
    )  # fmt: skip
    return replace(result, sentence=one_line(_sentence(result, columns, tested, decidable)))


def _excesses(
    samples: Sequence[Sample],
    bounded: Mapping[str, list[tuple[Sample, Grown]]],
    labels: Sequence[str],
    references: int,
) -> list[Excess]:
    """Values that are not numbers, and distances beyond the bound of growth."""
    found = [
        Excess("no number", s.step, s.field, "values", one_line(labels[run]), float(n))
        for s in samples
        for run, n in s.broken.items()
    ]
    for s in samples:
        if s.equal and s.squares is None:
            found += _differs(s, [run for run, u in s.unequal.items() if u.beyond], labels)
    for own in bounded.values():
        for s, g in own:
            if s.equal:
                found += _differs(s, [references + k for k in g.beyond], labels)
            elif g.beyond:
                far = max(g.beyond, key=lambda k: g.new[k])
                label = one_line(labels[references + far])
                found.append(Excess("growth", s.step, s.field, "distance", label, g.ratio))
    return found


def _differs(sample: Sample, runs: Sequence[int], labels: Sequence[str]) -> list[Excess]:
    """The excess of a field that all reference runs hold equal, by the run that is farthest off of
    `runs`, new runs that differ by more than rounding.
    """
    if not runs:
        return []
    far = max(runs, key=lambda run: sample.unequal[run].beyond)
    how = sample.unequal[far]
    return [
        Excess(
            "equal", sample.step, sample.field, "values", one_line(labels[far]), how.most,
            count=how.count, relative=_relative(how.most, sample),
        )
    ]  # fmt: skip


def _relative(difference: float, sample: Sample) -> float:
    """A difference as a share of the field's size; NaN where that is 0."""
    size = math.ldexp(sample.size, sample.exponent)
    return difference / size if size > 0 else math.nan


def _rounded(bounded: _ByField) -> list[str]:
    """What is not an excess all the same: differences by rounding where all reference runs are equal."""
    found = {}
    for name, own in bounded.items():
        most = [how.most for s, g in own if s.equal and not g.beyond for how in s.unequal.values()]
        if most:
            largest = max((s for s, _ in own), key=lambda s: s.size)
            found[name] = max(most), _relative(max(most), largest)
    if not found:
        return []
    name, (size, share) = max(found.items(), key=lambda item: np.nan_to_num(item[1][1]))
    of = "" if math.isnan(share) else f", or {number(share)} of its size"
    return [
        f"new runs differ by rounding where all reference runs are equal, which is allowed: {fields_named(sorted(found))}; "
        f"{name} by up to {number(size)}{of}"
    ]


def _of_distribution(columns: _Columns, tested: Tested, references: int, settings: Settings) -> list[Excess]:
    """The statistics that lie outside by themselves, each with the interval of its difference."""
    from scipy import stats

    found = []
    width = stats.t.ppf(1 - settings.alpha / 2, references - 1)
    new = len(columns.values) - references
    for at in np.flatnonzero(tested.adjusted <= settings.alpha):
        step, name, what, over = columns.where[at]
        own, other = columns.values[:references, at], columns.values[references:, at]
        deviation = math.hypot(float(own.std(ddof=1)), float(columns.floors[at]))
        off = abs(float(other.mean() - own.mean()))
        size = off / deviation if deviation > 0 else math.inf
        half = width * math.sqrt(1 / new + 1 / references)
        low, high = (max(size - half, 0.0), size + half) if math.isfinite(size) else (math.nan, math.nan)
        found.append(
            Excess("distribution", step, name, what, "", size, low, high, float(tested.adjusted[at]), over)
        )
    return found


def _fields(
    by_field: Mapping[str, list[Sample]],
    settled: Mapping[str, list[bool]],
    growing: Mapping[str, list[tuple[Sample, Grown]]],
    columns: _Columns,
    tested: Tested | None,
    excesses: Sequence[Excess],
) -> list[FieldAcceptance]:
    exceeding = {e.field for e in excesses}
    places: dict[str, list[int]] = {}
    for at, (_, name, _, _) in enumerate(columns.where):
        places.setdefault(name, []).append(at)
    found = []
    for name, own in by_field.items():
        grown_of = growing[name]
        f = FieldAcceptance(
            name,
            growing=[s.step for s, _ in grown_of],
            settled=[s.step for s, done in zip(own, settled[name], strict=True) if done],
            distances=[
                (s.step, float(np.ldexp(g.reference, s.exponent)), float(np.ldexp(max(g.new), s.exponent)))
                for s, g in grown_of
            ],
            exceeds=name in exceeding,
        )
        if grown_of:
            s, g = max(grown_of, key=lambda pair: pair[1].ratio)
            steps = [s.step for s, _ in grown_of]
            f = replace(
                f,
                ratio=g.ratio,
                ratio_step=s.step,
                rate=rate(steps, [g.reference for _, g in grown_of]),
                new_rate=rate(steps, [max(g.new) for _, g in grown_of]),
            )
        if tested is not None and (mine := places.get(name)):
            worst = max(mine, key=lambda k: tested.scores[k])
            step, _, what, _ = columns.where[worst]
            f = replace(
                f,
                deviation=float(tested.scores[worst]),
                deviation_step=step,
                deviation_of=what,
                p=float(tested.adjusted[worst]),
            )
        found.append(f)
    return found


def _alarms(
    bounded: Mapping[str, list[tuple[Sample, Grown]]],
    columns: _Columns,
    squares: Sequence[np.ndarray],
    references: int,
    settings: Settings,
) -> Alarms | None:
    """Each reference run in the place of the new runs, against the others."""
    from scipy import stats

    testable = bool(columns.where) and 1 / references <= settings.alpha
    if references < 4 or not settings.leave_one_out or not (testable or any(bounded.values())):
        return None
    rejected = {run for own in bounded.values() for _, g in own for run in g.alarms}
    if testable:
        own = test_of_choices(
            columns.values[:references],
            columns.floors,
            [square[:references, :references] for square in squares],
            1,
            alpha=settings.alpha,
            permutations=max(settings.permutations, references),
            seed=settings.seed,
        )
        assert own.singles is not None
        rejected |= {run for run in range(references) if own.singles[run] <= settings.alpha}
    interval = stats.binomtest(len(rejected), references).proportion_ci(settings.confidence, method="exact")
    return Alarms(len(rejected), references, float(interval.low), float(interval.high))


def _checked(
    columns: _Columns,
    growing: Mapping[str, list[tuple[Sample, Grown]]],
    references: int,
    new: int,
    settings: Settings,
) -> list[str]:
    """The assumptions, each with what was seen of it."""
    from scipy import stats

    said = [
        f"n = {references} reference runs and {counted(new, 'new run')}, no two reference runs equal bit for bit"
    ]
    if any(growing.values()):
        said.append(
            f"while differences grow there is a bound and no p value: new runs may be {number(settings.growth)} times as far from the "
            "reference runs as the farthest of these; this assumes that rounding of the new kind is no larger than that"
        )
    equal = [name for name, own in growing.items() if any(s.equal for s, _ in own)]
    if equal:
        said.append(
            f"where all reference runs are equal ({counted(len(equal), 'field')}), new runs must equal them, but for rounding"
        )
    if not columns.where:
        said.append(
            f"at no step have differences between reference runs settled, which takes {percent(settings.spread)} of a field's own variation "
            "(--spread): distributions were not tested"
        )
        return said
    said.append(
        "exchangeable runs are assumed, and no distribution; a new run that is no independent draw breaks this"
    )
    if new > 1 and new / (references + new) > settings.alpha:
        enough = math.ceil(new / settings.alpha - new - 1e-9)
        said.append(
            f"new runs are judged together: one bad run among them is found only by the bound of {number(settings.growth)} times the "
            f"distance, or with {enough} reference runs; to judge it alone, name it alone"
        )
    own = columns.values[:references]
    scale = own.std(axis=0)
    if (scale > 0).any():
        scaled = (own[:, scale > 0] - own[:, scale > 0].mean(axis=0)) / scale[scale > 0]
        if references >= _LEAST_FOR_DRIFT:
            first = np.linalg.svd(scaled, full_matrices=False)[0][:, 0]
            p = float(stats.spearmanr(np.arange(references), first).pvalue)
            state = "do drift" if p < _DRIFT else "do not drift visibly"
            said.append(
                f"reference runs {state} in the order in which they are named (Spearman, p = {number(p)}, at {100 * _DRIFT:g}%)"
            )
            ps = [stats.shapiro(column).pvalue for column in scaled.T[:500] if np.ptp(column) > 0]
            few = sum(q < 0.01 for q in ps)
            said.append(
                f"intervals and the shift that would be found assume normal statistics: {few} of {len(ps)} fail (Shapiro-Wilk, 1%)"
            )
    return said


def _needed(references: int, new: int, alpha: float) -> str:
    """What it takes until the smallest p value is small enough."""
    most = references
    while 1 / arrangements(most, new) > alpha:
        most += 1
    more = new
    while 1 / arrangements(references, more) > alpha:
        more += 1
    return f"{most} reference runs or {counted(more, 'new run')} would be enough"


def _sentence(result: Acceptance, columns: _Columns, tested: Tested | None, decidable: bool) -> str:
    n, m = len(result.references), len(result.new)
    runs, own = counted(m, "new run"), f"{n} reference runs"
    fields, steps = counted(len(result.fields), "field"), counted(len(result.steps), "step")
    ratios = [f.ratio for f in result.fields if not math.isnan(f.ratio)]
    if result.verdict == "rejected":
        do = "does" if m == 1 else "do"
        if result.excesses:
            why = f"first excess: {result.excesses[0]}"
            if result.excesses[0].kind == "growth":
                why += f" ({number(result.growth)} allowed)"
        else:
            assert tested is not None
            kind = min(tested.by_kind, key=lambda name: tested.by_kind[name])
            place = columns.where[
                int(tested.loadings.argmax() if kind == "principal components" else tested.scores.argmax())
            ]
            at = "" if place[0] is None else f" at step {place[0]}"
            why = f"no field alone exceeds, all together do (p = {number(tested.p)}, by {kind}); most of all the {place[2]} of {place[1]}{at}"
        return f"rejected: {runs} {do} not belong to the distribution of {own}; {why}"
    grew = f"while differences grow, new runs are at most {number(max(ratios, default=math.nan))} times as far away as reference runs ({number(result.growth)} allowed)"
    if result.verdict == "undecided":
        need = _needed(n, m, result.alpha)
        least = number(1 / arrangements(n, m))
        first = f"; {grew}" if ratios else ""
        return f"undecided: with {own} and {runs} no p value can be below {least}, and {number(result.alpha)} is asked for: {need}{first}"
    parts = []
    parts.append("no p value" if tested is None else f"p = {number(tested.p)} ({tested.ways} choices)")
    if ratios:
        parts.append(grew)
    belongs = "belongs" if m == 1 else "belong"
    return f"accepted: {runs} {belongs} to the distribution of {own}, as far as {fields} at {steps} can show: {'; '.join(parts)}"
