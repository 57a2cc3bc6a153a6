"""Compare two runs: histories, folders, files or arrays.

`compare` finds facts; report/ makes them readable.
"""

from __future__ import annotations

import glob
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from .. import _core
from ..arguments import check_settings, chosen_devices, names_given, tolerance_number
from ..errors import Incomparable, TwinrunError, Unsupported, in_short
from ..runs.opening import open_subject, without_effect
from ..runs.subject import Place, Subject
from ..runs.traces import has_traced_ranks, holds_history, is_trace, is_traced
from ..runs.values import InNumbers
from ..urls import is_url
from .again import Again
from .choices import ALIGNMENTS, METHODS, TYPES
from .facts import uncompared_things
from .field import FieldComparison
from .matching import StepMatch, match_steps
from .options import CompareOptions, chosen_options
from .outcome import Outcome, Remarks
from .pending import pending
from .renames import Rename, Renamed, renames_of, unused
from .request import Request, Selection
from .result import Comparison, Interrupted, histogram_edges
from .schedule import compare_steps
from .settings import Settings
from .start import may_start, start
from .summary import Summary
from .tolerances import Rule, Tolerances, parse_steps, periods_of, read_tolerances
from .words import INTERRUPTED

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .executors import Executor, Workers
    from .options import Moved
    from .parallel import Team

    # A test for the numbers of steps or ranks.
    _Chosen = Callable[[int | None], bool]
    _GivenTolerances = str | os.PathLike[str] | Tolerances | Mapping[str, float | tuple[float, float]] | None

__all__ = [
    "ALIGNMENTS",
    "Comparison",
    "FieldComparison",
    "Interrupted",
    "compare",
    "histogram_edges",
    "parse_steps",
]


def compare(
    a: object,
    b: object,
    *,
    atol: float | None = None,
    rtol: float | None = None,
    ulp: int | None = None,
    tolerances: _GivenTolerances = None,
    key: str | None = None,
    period: str | float | Iterable[float] | None = None,
    align: str = "step",
    common: bool = False,
    partial: bool = False,
    equal_nan: bool = True,
    fields: Iterable[str] | None = None,
    steps: str | None = None,
    ranks: str | None = None,
    leave_out: Iterable[str] = (),
    ignore_attributes: Iterable[str] = (),
    rename: str | Mapping[str, str] | Iterable[str] | None = None,
    types: str = "same",
    tolerate_integers: bool = False,
    threads: int = 0,
    device: str = "auto",
    stream: object = None,
    executor: Executor | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    wait: bool = True,
    options: Mapping[str, object] | CompareOptions | None = None,
    **moved: Unpack[Moved],
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
        The two runs; `a` is the reference. A path is a history, a folder or a file, or a URL of one
        (docs/reference/remote.md). A container is `{name: array}`, nested mappings and lists, a model, a
        table or labelled arrays. Arrays lie on the host or on a GPU.
    atol, rtol : float, default None
        Elements differ where |a - b| > atol + rtol |a|, decided as if in infinite precision. `atol` has the
        unit of the data. With neither: the tolerance that the metadata was made for, or equality. Integers
        and booleans compare exactly.
    ulp : int, default None
        Floating-point numbers that are at most so many representable values apart agree, whatever `atol` and
        `rtol` say.
    tolerances : path, Tolerances or mapping, default None
        A TOML file with rules by field and step (docs/howto/tolerance.md); or `{field: atol}` or `{field:
        (atol, rtol)}` for fields with a tolerance of their own, integers and booleans too. They come before
        `atol`, `rtol` and `ulp`.
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
    fields : str or iterable of str, default None
        Globs of the fields to compare; None for all.
    steps, ranks : str, default None
        The steps and ranks to compare: '10,20' or '100:200', both ends included.
    leave_out : str or iterable of str, default ()
        Globs of fields and files that are not compared.
    ignore_attributes : str or iterable of str, default ()
        Globs of attributes that may differ, over `path@name`. A name alone is that attribute of anything.
    rename : str, iterable of str, or dict, default None
        Other names for the fields of `b`, before fields are matched: 'transformer.*=*', several of these, or
        {old: new}. Each * or ? of the new name stands for what that of the old one matched; the first rule
        that matches counts. A rule that matches nothing, and a name that two fields get, are problems.
    types : {'same', 'values'}
        'values': fields of different types are compared by the real numbers that they hold, without rounding:
        float32 against bfloat16, integers against float64, 8-bit floating-point numbers times their scales
        (docs/howto/types.md). 'same': another type is a problem.
    tolerate_integers : bool, default False
        True: the tolerance holds for integers and booleans too.
    threads : int, default 0
        Threads that work; 0 takes all cores.
    device : str, default 'auto'
        'cpu'; 'cuda' for all GPUs; 'cuda:0' or 'cuda:0,1' for some; 'auto' for where it is expected to be
        faster.
    stream : int or stream object, default None
        The GPU stream whose work makes the arrays, as a handle or an object of PyTorch, CuPy or Numba. By
        default the arrays themselves name it.
    executor : executor, default None
        An executor of `concurrent.futures`' kind, whose workers share the work: ProcessPoolExecutor, mpi4py's
        MPIPoolExecutor, Dask's `client.get_executor()` and others. Workers open both paths themselves. Arrays
        are compared by this process. `threads` then counts for each worker, and 0 is one thread; the option
        `memory` is divided by the number of workers (docs/reference/scaling.md).
    progress : callable, default None
        `progress(label, done, total)` is called now and then.
    wait : bool, default True
        False: where all arrays are tensors of PyTorch on GPUs, this returns as soon as the GPUs
        have the work; who asks the result for anything but `done()` waits. Until then the tensors
        are kept, and only later work of PyTorch's current stream may change them. What else there
        is to compare is compared before this returns (docs/howto/gpus.md).
    options : dict or CompareOptions, default None
        Options of the file formats: format, dtype, shape, and others of docs/reference/formats.md. Or a
        `CompareOptions`, which has these and what only experts need: the method, the use of metadata,
        buffers, ways of reading.
    **moved : options by name
        Deprecated: `method`, `use_metadata`, `residue_bits`, `chunk_bytes`, `memory`, `io`, `cache` and
        `team`, which are fields of `CompareOptions`.

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
    KeyboardInterrupt
        Ctrl-C. After the first step it is an `Interrupted`, whose `comparison` has what was compared.

    Notes
    -----
    After an error nothing counts as compared. What files say beside elements (attributes, dimensions, links)
    is compared exactly, and what cannot be compared is a problem (docs/reference/formats.md). Calls from
    several threads do not share state; arrays must not change meanwhile.

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
    begin = time.perf_counter()
    how = chosen_options(
        options, moved, threads=threads, device=device, stream=stream, progress=progress, executor=executor
    )
    _check(how, align, types, atol, rtol, ulp)
    shared = _workers(how)
    if shared is not None and (is_url(a) or is_url(b)):
        raise Unsupported(
            "objects of stores are compared by one process alone",
            where=str(a if is_url(a) else b),
            fix="leave out the executor or --mpi, or download them first",
        )
    settings = _settings(
        how,
        atol=None if atol is None else tolerance_number("atol", atol),
        rtol=None if rtol is None else tolerance_number("rtol", rtol),
        ulps=ulp,
        equal_nan=equal_nan,
        integers=tolerate_integers,
        tolerances=_rules(tolerances).with_left_out(
            names_given(leave_out, "leave_out"), names_given(ignore_attributes, "ignore_attributes")
        ),
        periods=periods_of(period),
        by_values=types == "values",
    )
    globs = None if fields is None else names_given(fields, "fields")
    chosen_steps = None if steps is None else parse_steps(steps)
    chosen_ranks = None if ranks is None else parse_steps(ranks, "ranks")
    renames = (*renames_of(rename), *settings.tolerances.renames)
    whole = globs is None and key is None and shared is None and not renames and not settings.by_values
    own_a, own_b, started = _opened_runs(a, b, settings, how, whole, may_leave=not wait)
    subject_a, subject_b = _seen(own_a, own_b, settings, renames)
    request = Request(
        subject_a, subject_b, settings, globs, key, how.use_metadata, partial, common, align == "time",
        how.progress, started,
    )  # fmt: skip
    again = Again.of(
        _held(a, own_a), _held(b, own_b), settings, globs=globs, key=key, use_metadata=how.use_metadata,
        steps=steps, ranks=ranks, align=align, options=how.formats, stream=how.stream, renames=renames,
    )  # fmt: skip
    work = _Work(request, shared, renames, again, str(how.device))
    work.match(chosen_steps, align, chosen_ranks)
    work.spent = time.perf_counter() - begin
    if wait or started is None or not started.leave():
        return work.finish()
    return pending(work.finish, started.is_done)


class _Work:
    """A comparison from the matching of steps to the result. spent: seconds before `finish` is called."""

    def __init__(
        self,
        request: Request,
        shared: Team | Workers | None,
        renames: Sequence[Rename],
        again: Again,
        device: str,
    ) -> None:
        self._request, self._shared, self._renames = request, shared, renames
        self._again, self._device = again, device
        self._summary = Summary(request)
        self._matches: Sequence[StepMatch] = ()
        self.spent = 0.0

    def match(self, steps: _Chosen | None, align: str, ranks: _Chosen | None) -> None:
        """Finds the steps and ranks that belong together, and what has no partner."""
        request, summary = self._request, self._summary
        wanted = Selection(request, None)
        dropped = _unknown(request.a, wanted), _unknown(request.b, wanted)
        matched = match_steps(request.a, request.b, steps, align, ranks, dropped)
        alone = [(-1, request.kept(problem)) for problem in matched.problems]
        summary.add(Outcome(remarks=Remarks(notes=matched.notes), problems=alone))
        summary.add(uncompared_things(request, (request.a.skipped, request.b.skipped), wanted))
        summary.add(Outcome(remarks=Remarks(met=wanted.met())))
        self._matches = matched.matches

    def finish(self) -> Comparison:
        """Compares all steps. Raises Interrupted where some were compared before Ctrl-C."""
        request, summary, matches = self._request, self._summary, self._matches
        resumed, compared = time.perf_counter(), 0

        def result() -> Comparison:
            seconds = self.spent + time.perf_counter() - resumed
            return summary.comparison(self._device, seconds, self._again)

        try:
            for step in compare_steps(request, matches, self._shared):
                summary.add_step(step)
                compared += step.steps
        except KeyboardInterrupt:
            if not 0 < compared < len(matches):
                raise
            said = f"{INTERRUPTED}{compared} of {len(matches)} steps were compared"
            summary.end_here(said)
            raise Interrupted(result()) from None
        for problem in unused(self._renames, summary.met.renamed, request.b.label):
            summary.add(Outcome(problems=[(-1, request.kept(problem))]))
        return result()


def _check(
    how: CompareOptions,
    align: str,
    types: str,
    atol: float | None,
    rtol: float | None,
    ulp: int | None,
) -> None:
    """Raises TwinrunError where a parameter has no meaning."""
    if how.method not in METHODS:
        raise TwinrunError(f"unknown method {how.method!r}", fix="use one of " + ", ".join(METHODS))
    if align not in ALIGNMENTS:
        raise TwinrunError(f"unknown alignment {align!r}", fix="use one of " + ", ".join(ALIGNMENTS))
    check_settings(
        threads=how.threads,
        memory=how.memory,
        residue_bits=how.residue_bits,
        chunk_bytes=how.chunk_bytes,
        io=how.io,
        gds=True,
    )
    if how.progress is not None and not callable(how.progress):
        raise TwinrunError(f"progress must be a function, not {how.progress!r:.60}")
    if how.team is not None and not hasattr(how.team, "sends_entries"):
        raise TwinrunError(f"team must be a Team of twinrun.comparison.parallel, not {how.team!r:.60}")
    if how.cache not in ("auto", "buffered", "direct"):
        raise TwinrunError(f"cache must be auto, buffered or direct, not {in_short(how.cache)}")
    if types not in TYPES:
        raise TwinrunError(f"unknown types {types!r}", fix="use one of " + ", ".join(TYPES))
    for name, value in (("atol", atol), ("rtol", rtol)):
        if value is not None and not 0 <= tolerance_number(name, value) < math.inf:
            raise TwinrunError(f"{name} must be a finite number that is not negative, not {in_short(value)}")
    if ulp is not None and (
        isinstance(ulp, bool) or not hasattr(ulp, "__index__") or not 0 <= ulp < (1 << 64) - 1
    ):
        raise TwinrunError(f"ulp must be a number of representable values, not {in_short(ulp)}")


def _workers(how: CompareOptions) -> Team | Workers | None:
    """Who shares the work; None for nobody."""
    if how.executor is None:
        return how.team
    if how.team is not None:
        raise TwinrunError("team and executor are both given", fix="give one of them")
    from .executors import Workers  # few comparisons need it

    return Workers(how.executor, how.formats)


def _rules(tolerances: _GivenTolerances) -> Tolerances:
    if tolerances is None:
        return Tolerances()
    if isinstance(tolerances, Mapping):
        return _rules_by_field(tolerances)
    if isinstance(tolerances, Tolerances):
        return tolerances
    if not isinstance(tolerances, (str, os.PathLike)):
        raise TwinrunError(
            f"tolerances must be a path or a mapping, not {in_short(tolerances)}", fix="write {field: atol}"
        )
    return read_tolerances(tolerances)


def _rules_by_field(given: Mapping[str, float | tuple[float, float]]) -> Tolerances:
    """As `sketch` and `Run` take them: names, not globs, and integers too."""
    from ..runs.entries import own_tolerances  # few comparisons need it

    names_given(given, "tolerances")
    return Tolerances(
        tuple(
            Rule(fields=(glob.escape(name),), atol=t.atol, rtol=t.rtol, integers=True, said=False,
                 label=f"tolerances[{name!r}]")
            for name, t in own_tolerances(given).items()
        )
    )  # fmt: skip


def _settings(how: CompareOptions, **counts: Any) -> Settings:
    """Settings of the work, and of what counts as different."""
    use, devices = chosen_devices(how.device)
    return Settings(
        method=how.method,
        residue_bits=how.residue_bits,
        chunk_bytes=how.chunk_bytes,
        threads=how.threads,
        memory=how.memory,
        io=how.io,
        cache=how.cache,
        device=use,
        devices=devices,
        **counts,
    )


def _opened_runs(
    a: object, b: object, settings: Settings, how: CompareOptions, whole: bool, *, may_leave: bool
) -> tuple[Subject, Subject, _core.StartedPairs | None]:
    """As `_opened`. Raises Incomparable where a run is a trace, whatever else is wrong: its bytes may agree
    though it says that something was not traced."""
    given = [run for run in (a, b) if isinstance(run, (str, os.PathLike))]
    captured = [run for run in given if holds_history(run)]
    for run in given:
        if run not in captured and has_traced_ranks(run):
            raise _trace(run)
    try:
        own_a, own_b, started = _opened(a, b, settings, how, whole, may_leave=may_leave)
    except TwinrunError:
        for run in given:
            if is_trace(run):
                raise _trace(run) from None
        raise
    for side, subject in ((a, own_a), (b, own_b)) if captured else ():
        if isinstance(side, (str, os.PathLike)) and is_traced(subject):
            raise _trace(side)
    unused = without_effect((own_a, own_b), how.formats)
    own_a.notes += [note for note in unused if note not in own_a.notes]
    return own_a, own_b, started


def _trace(run: str | os.PathLike[str]) -> Incomparable:
    return Incomparable("is a trace", where=str(run), fix="compare traces with twinrun.compare_traces")


def _opened(
    a: object, b: object, settings: Settings, how: CompareOptions, whole: bool, *, may_leave: bool
) -> tuple[Subject, Subject, _core.StartedPairs | None]:
    """Both runs; and what devices work on already, where both are arrays there.

    whole: all fields are compared, by this process alone, by their names and in their own types.
    may_leave: the work may be left to the devices.
    """
    plain = whole and how.use_metadata and how.progress is None and how.stream is None
    if plain and may_start(a, b, settings):
        return start(a, b, settings, may_leave)
    # Where lists of the core take the files of a folder, and read them through the page cache.
    lists = whole and how.use_metadata and how.method in ("auto", "direct") and how.cache != "direct"
    own_a, own_b = (open_subject(run, how.formats, how.stream, lists) for run in (a, b))
    return own_a, own_b, None


def _seen(a: Subject, b: Subject, settings: Settings, renames: Sequence[Rename]) -> tuple[Subject, Subject]:
    """Both runs as they are compared: with 8-bit numbers as what they stand for, and with other names."""
    if settings.by_values:
        a, b = InNumbers(a), InNumbers(b)
    return a, Renamed(b, renames) if renames else b


def _held(given: object, subject: Subject) -> object:
    """What tells how to open one side again."""
    if is_url(given):  # the content that was compared, and no other
        return subject
    if isinstance(given, (dict, list, tuple)):
        from ..runs.in_memory import Arrays

        if isinstance(subject, Arrays) and subject.plain is not None:
            return subject.plain.held() or given
    return given


def _unknown(subject: Subject, wanted: Selection) -> Set[Place]:
    """Places that are dropped: all their files are unknown and not selected."""
    asked_for = [name for name in subject.unknown_names if wanted(name)]
    return frozenset() if asked_for else subject.unknown
