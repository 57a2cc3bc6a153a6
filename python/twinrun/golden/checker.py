"""`check`: compares a run with golden files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from ..arguments import check_settings, checked_path
from ..arithmetic import any_values
from ..comparison.field import place_text
from ..comparison.matching import names
from ..comparison.tolerances import missing_steps, periods_of
from ..comparison.work import parse_steps
from ..errors import Incomparable, MissingFile, TwinrunError, in_short
from ..runs.metadata import damaged_fields
from ..runs.opening import open_subject, without_effect
from ..runs.subject import Place
from ..urls import is_url, without_secrets
from .by_id import check_step, check_step_by_values
from .by_place import check_place
from .manifest import GoldenPlace, Manifest
from .remote import copied
from .request import Found, Request
from .result import GoldenCheck, GoldenProblem
from .rules import rule_settings, without_circle
from .selection import attribute_globs, chosen_places, field_globs, unmet

__all__ = ["check"]


def _fields_kept(manifest: Manifest, steps: str | None) -> str:
    """Which fields the golden files have at the steps asked for, for who asked for another field."""
    chosen = None if steps is None else parse_steps(steps)
    places = (place for place in manifest.places if chosen is None or chosen(place.step))
    kept = dict.fromkeys(repr(f.name) for place in places for f in place.fields)
    at = "" if steps is None else " at these steps"
    return f"the golden files have {names(kept, 8) or 'no field'}{at}"


def _chosen(
    request: Request, steps: str | None
) -> tuple[list[GoldenPlace], list[Place], list[GoldenProblem]]:
    """The saved places to check, the places of the run, and the steps that golden files lack."""
    folder, manifest = request.label, request.manifest
    chosen = None if steps is None else parse_steps(steps)
    wanted = [p for p in manifest.places if chosen is None or chosen(p.step)]
    if not wanted:
        kept = sorted({p.step for p in manifest.places if p.step is not None})
        said = f"--steps takes from these: {names(kept, 12)}" if kept else "they have no steps"
        raise Incomparable("no step is among those asked for", where=folder, fix=said)
    saved = chosen_places(request.subject, manifest.chosen_steps, "compare")
    at_hand = [p for p in saved if chosen is None or chosen(p[0])]
    problems = [
        GoldenProblem(missing, None, None, f"not in {folder}: choose other steps")
        for missing in missing_steps(chosen, [p.step for p in wanted])
    ]
    return wanted, at_hand, problems


def _pairs(
    request: Request, steps: str | None
) -> tuple[list[tuple[GoldenPlace, Place]], list[GoldenProblem]]:
    """The saved places to check, each with its place of the run; and what only one side has."""
    wanted, at_hand, problems = _chosen(request, steps)
    if (
        request.subject.kind == "arrays" and len(wanted) == 1
    ):  # arrays have no step, and belong to any single one
        return [(wanted[0], request.subject.places[0])], problems
    known = {(p.step, p.rank) for p in wanted}
    problems += [
        GoldenProblem(step, rank, None, f"not in {request.label}: save again, or choose steps")
        for step, rank in at_hand
        if (step, rank) not in known
    ]
    return [(p, (p.step, p.rank)) for p in wanted], problems


_Step = tuple["int | None", list[GoldenPlace], list[Place]]  # a step of both sides


def _steps(request: Request, steps: str | None) -> tuple[list[_Step], list[GoldenProblem]]:
    """The steps to check, each with its saved places and those of the run; and what only one side has."""
    wanted, at_hand, problems = _chosen(request, steps)
    by_step: dict[int | None, list[GoldenPlace]] = {}
    for place in wanted:
        by_step.setdefault(place.step, []).append(place)
    if request.subject.kind == "arrays" and len(by_step) == 1:
        ((step, places),) = by_step.items()
        return [(step, places, [*request.subject.places])], problems
    of_run: dict[int | None, list[Place]] = {}
    for at in at_hand:
        of_run.setdefault(at[0], []).append(at)
    problems += [
        GoldenProblem(step, None, None, f"not in {request.label}: save again, or choose steps")
        for step in of_run
        if step not in by_step
    ]
    problems += [
        GoldenProblem(step, None, None, f"not in {request.subject.label}")
        for step in by_step
        if step not in of_run
    ]
    return [(step, places, of_run[step]) for step, places in by_step.items() if step in of_run], problems


def _without_damage(request: Request, found: Found, of_run: Sequence[Place]) -> Found:
    """Data of a history that is not what was captured is damaged: neither different nor the same, however
    little it changed. All of it is read.

    of_run: places whose comparison this is.
    """
    names = {f.field for f in found.fields}
    if request.subject.kind != "history" or not names:
        return found
    for place in of_run:
        with request.subject.open(place, whole=False) as opened:
            kept = [ref for name, ref in opened.items() if name in names]
            for name, error in damaged_fields(kept, request.reading["threads"]).items():
                found.problems.append(GoldenProblem(*place, name, str(error)))
                found.fields = [f for f in found.fields if (f.field, f.rank) != (name, place[1])]
    return found


def _check_all(
    request: Request, steps: str | None, progress: Callable[[str, int, int], None] | None
) -> Found:
    """Compares place by place; or step by step, where particles were saved by ID."""
    work: list[tuple[Place, Callable[[], Found], list[Place]]] = []
    if request.manifest.key is not None:
        groups, problems = _steps(request, steps)
        work += [((group[0], 0), partial(check_step, request, *group), group[2]) for group in groups]
    elif request.key is not None:
        groups, problems = _steps(request, steps)
        work += [((g[0], 0), partial(check_step_by_values, request, request.key, *g), g[2]) for g in groups]
    else:
        pairs, problems = _pairs(request, steps)
        for place, of_run in pairs:
            if of_run in request.subject.places:
                compare_it = partial(check_place, request, place, of_run)
                work.append(((place.step, place.rank), compare_it, [of_run]))
            else:
                text = f"not in {request.subject.label}"
                problems.append(GoldenProblem(place.step, place.rank, None, text))
    found = Found(problems=problems)
    for done, ((step, rank), compare_one, places) in enumerate(work):
        try:
            found.add(_without_damage(request, compare_one(), places))
        except TwinrunError as e:
            found.problems.append(GoldenProblem(step, rank, None, str(e)))
        if progress is not None:
            progress(place_text((step, rank)), done + 1, len(work))
    return found


@any_values
def check(
    golden: str | os.PathLike[str],
    run: object,
    *,
    fields: Iterable[str] | None = None,
    steps: str | None = None,
    ulp: int | None = None,
    key: str | None = None,
    period: str | float | Iterable[float] | None = None,
    undecided: str = "fail",
    most_listed: int = 100,
    threads: int = 0,
    memory: int = 1 << 30,
    io: str = "auto",
    options: Mapping[str, object] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    ignore_attributes: Iterable[str] = (),
) -> GoldenCheck:
    """Compares a run with golden files: which elements differ, and by how much.

    >>> from twinrun import golden
    >>> x = np.linspace(0, 1, 1000)
    >>> facts = golden.save({"x": x}, "golden/x", atol=1e-6)
    >>> y = x.copy()
    >>> y[7] += 1e-3
    >>> result = golden.check("golden/x", {"x": y})
    >>> result.verdict, result.first.first.index
    ('different', (7,))

    Parameters
    ----------
    golden : str or path
        A folder that `save` wrote, or a URL of a copy (docs/reference/remote.md).
    run : path, array or container of arrays
        As for `save`. Arrays have no step, and are compared with golden files of one step.
    fields : str or iterable of str, default None
        Globs of the fields to check; None for all.
    steps : str, default None
        The steps to check: '10,20' or '100:200', both ends included; None for all.
    ulp, period : default None
        As for `save`, in place of what was saved, for fields whose values are kept. Fields of which
        only digests are kept become problems where this needs values.
    key : str, default None
        The key that `save` was called with is used in any case; another one is an error. Where
        `save` had none: rows are matched by these IDs, for fields whose values are kept; others
        become problems.
    undecided : {'fail', 'pass'}
        Whether what cannot be decided within one cell counts as a failure.
    most_listed : int, default 100
        How many elements and chunks to list of each field, at most.
    threads : int, default 0
        Threads that work; 0 takes all cores.
    memory : int, default 1 GiB
        Bytes of read buffers, at most.
    io : {'auto', 'uring', 'pread'}
        How data is read.
    options : dict, default None
        Options of the file formats (docs/reference/formats.md).
    progress : callable, default None
        `progress(place, done, total)` is called after each step of each rank.
    ignore_attributes : str or iterable of str, default ()
        Globs of attributes that may differ, over `path@name`, besides those of `save`.

    Returns
    -------
    GoldenCheck
        The verdict, and what is known of each field. What could not be compared (missing, new, of another
        shape or type) is in `problems`, and the rest is compared.

    Raises
    ------
    MissingFile
        The golden files or the run do not exist.
    DamagedFile
        golden.json cannot be read, or the run contradicts its checksums.
    Incomparable
        No step is left to check, or the golden files were saved with another `key`.
    TwinrunError
        A parameter has no meaning.

    Notes
    -----
    What golden digests prove, and how far: docs/reference/golden.md.
    """
    start = time.perf_counter()
    check_settings(threads=threads, memory=memory, io=io)
    if undecided not in ("fail", "pass"):
        raise TwinrunError(f"undecided must be 'fail' or 'pass', not {in_short(undecided)}")
    folder = label = checked_path(golden)
    copies = None
    if is_url(folder):
        label = without_secrets(folder)
        copies = copied(folder)
        folder = copies.folder
    if not os.path.exists(folder):
        if os.path.lexists(folder):
            raise MissingFile.at(folder)
        raise MissingFile(
            "no such folder", where=folder, fix="make it with: twinrun golden save RUN --output FOLDER"
        )
    manifest = Manifest.read(folder)
    rule_settings(None, None, ulp, period, False)
    if key is not None and manifest.key not in (None, key):
        raise Incomparable(
            f"was saved with the key {manifest.key!r}, so that the order of its rows is not that of {key!r}",
            where=folder,
            fix=f"save again with --key {key}",
        )
    globs, ignored = field_globs(fields), attribute_globs(ignore_attributes)
    subject = open_subject(run, options)
    reading = {"most_listed": most_listed, "threads": threads, "memory": memory, "io": io}
    request = Request(folder, manifest, subject, globs, (*manifest.ignored_attributes, *ignored), reading, key, ulp,
                       periods_of(period), label, copies)  # fmt: skip
    found = _check_all(request, steps, progress)
    found.notes[:0] = [*subject.notes, *without_effect([subject], options)]
    for name, where, why in subject.skipped:
        if request.compares(name):
            said = f"{where}: cannot be compared: {why}; mend it, or move it out of the run"
            found.problems.append(GoldenProblem(None, None, name, said))
    if not found.fields and not found.problems:
        asked = f"that matches {', '.join(map(repr, request.fields))}" if request.fields else "to check"
        found.problems.append(
            GoldenProblem(None, None, None, f"no field {asked}; {_fields_kept(manifest, steps)}")
        )
    else:
        met = {f.field for f in found.fields} | {p.field for p in found.problems if p.field is not None}
        # What is wrong with IDs keeps all fields that go by them from being compared.
        met |= {
            f.name for place in manifest.places for f in place.fields if f.key is not None and f.key in met
        }
        for glob in unmet(request.fields, met):
            said = f"no field that matches {glob!r}; {_fields_kept(manifest, steps)}"
            found.problems.append(GoldenProblem(None, None, None, said))
    if (request.periods.axes or request.periods.named) and not request.on_circles:
        found.problems.append(
            GoldenProblem(None, None, None, str(without_circle(request.periods, subject.label)))
        )
    return GoldenCheck(
        label,
        subject.label,
        found.fields,
        found.problems,
        list(dict.fromkeys(found.notes)),
        time.perf_counter() - start,
        undecided == "pass",
        sum(f.bytes for p in manifest.places for f in p.files()),
        manifest.provenance,
        found.attributes,
        found.attributes_compared,
    )
