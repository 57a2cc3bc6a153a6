"""`check`: compares a run with golden files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..arguments import check_settings, checked_path
from ..comparison.attributes import AttributeDifference, renamed_array
from ..comparison.field import place_text
from ..comparison.tolerances import missing_steps
from ..comparison.work import parse_steps
from ..errors import Incomparable, MissingFile, TwinrunError
from ..runs.opening import open_subject
from ..runs.subject import Opened, Place, Subject
from .attributes import check_attributes
from .fields import check_field
from .folder import open_metadata
from .manifest import GoldenPlace, Manifest
from .result import GoldenCheck, GoldenField, GoldenProblem
from .selection import attribute_globs, chosen_places, field_globs, is_chosen

__all__ = ["check"]


@dataclass(frozen=True)
class _Request:
    """What a call of `check` compares: see its parameters.

    reading: how data is read, and how much is listed (`check_field`).
    """

    folder: str
    manifest: Manifest
    subject: Subject
    fields: tuple[str, ...] | None
    ignored_attributes: tuple[str, ...]
    reading: Mapping[str, Any]

    def compares(self, name: str) -> bool:
        """Whether a field of the run must be in the golden files."""
        return is_chosen(name, self.fields) and self.manifest.keeps(name)


@dataclass
class _Found:
    """What is known of one place, or of several."""

    fields: list[GoldenField] = field(default_factory=list)
    problems: list[GoldenProblem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    attributes: list[AttributeDifference] = field(default_factory=list)
    attributes_compared: int = 0

    def add(self, other: _Found) -> None:
        """Adds what is known of another place."""
        self.fields += other.fields
        self.problems += other.problems
        self.notes += other.notes
        self.attributes += other.attributes
        self.attributes_compared += other.attributes_compared


def _under_saved_name(place: GoldenPlace, present: Opened, wanted: Iterable[str]) -> Opened:
    """The place of the run; its single array has the name that was saved, because files may be renamed."""
    if not place.one_array or present.array_name is None:
        return present
    structs = {a.owner for a in place.attributes or () if a.name == "(members)"}
    if structs:
        return renamed_array(present, present.array_name, min(structs, key=len))
    names = list(wanted)
    if len(names) == len(present) == 1:
        return present.with_fields(dict(zip(names, present.values(), strict=True)))
    return present


def _check_place(request: _Request, place: GoldenPlace, of_run: Place) -> _Found:
    """Compares one place. Raises TwinrunError where none of it can be compared."""
    metadata = open_metadata(request.folder, place)
    known = {f.name for f in place.fields}
    wanted = {f.name: (at, f) for at, f in enumerate(place.fields) if is_chosen(f.name, request.fields)}
    label = request.subject.label
    found = _Found()

    def problem(name: str | None, text: str) -> None:
        found.problems.append(GoldenProblem(place.step, place.rank, name, text))

    with request.subject.open(of_run) as opened:
        found.notes += opened.notes
        present = _under_saved_name(place, opened, wanted)
        for name in present:
            if name not in known and request.compares(name):
                problem(name, f"not in {request.folder}: save again, or choose fields")
        for name, where, why in present.skipped:
            if request.compares(name):
                problem(name, f"{where}: cannot be compared: {why}")
        facts = check_attributes(
            place,
            present,
            wanted,
            label=label,
            named=request.fields is not None or request.manifest.chosen_fields is not None,
            renamed={ref.name: name for name, ref in present.items() if ref.name != name},
            ignored=request.ignored_attributes,
        )
        found.problems += facts.problems
        found.notes += facts.notes
        found.attributes += facts.differences
        found.attributes_compared += facts.compared
        for name, (at, saved) in wanted.items():
            if name not in present:
                problem(name, f"not in {label}")
                continue
            try:
                found.fields.append(
                    check_field(
                        metadata,
                        at,
                        present[name],
                        (place.step, place.rank),
                        saved.atol,
                        saved.rtol,
                        label=label,
                        **request.reading,
                    )
                )
            except TwinrunError as e:
                problem(name, str(e))
    return found


def _pairs(
    request: _Request, steps: str | None
) -> tuple[list[tuple[GoldenPlace, Place]], list[GoldenProblem]]:
    """The saved places to check, each with its place of the run; and what only one side has."""
    folder, manifest, subject = request.folder, request.manifest, request.subject
    chosen = None if steps is None else parse_steps(steps)
    wanted = [p for p in manifest.places if chosen is None or chosen(p.step)]
    if not wanted:
        raise Incomparable("no step to check", where=folder, fix="check --steps")
    saved = chosen_places(subject, manifest.chosen_steps, "compare")
    at_hand = [p for p in saved if chosen is None or chosen(p[0])]
    problems = [
        GoldenProblem(missing, None, None, f"not in {folder}: choose other steps")
        for missing in missing_steps(chosen, [p.step for p in wanted])
    ]
    if subject.kind == "arrays" and len(wanted) == 1:  # arrays have no step, and belong to any single one
        return [(wanted[0], subject.places[0])], problems
    known = {(p.step, p.rank) for p in wanted}
    problems += [
        GoldenProblem(step, rank, None, f"not in {folder}: save again, or choose steps")
        for step, rank in at_hand
        if (step, rank) not in known
    ]
    return [(p, (p.step, p.rank)) for p in wanted], problems


def check(
    golden: str | os.PathLike[str],
    run: object,
    *,
    fields: Iterable[str] | None = None,
    steps: str | None = None,
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
        A folder that `save` wrote.
    run : path, array or container of arrays
        As for `save`. Arrays have no step, and are compared with golden files of one step.
    fields : iterable of str, default None
        Globs of the fields to check; None for all.
    steps : str, default None
        The steps to check: '10,20' or '100:200', both ends included; None for all.
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
        Options of the file formats (docs/formats.md).
    progress : callable, default None
        `progress(place, done, total)` is called after each step of each rank.
    ignore_attributes : iterable of str, default ()
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
        No step is left to check.
    TwinrunError
        A parameter has no meaning.

    Notes
    -----
    What golden digests prove, and how far: docs/golden.md.
    """
    start = time.perf_counter()
    check_settings(threads=threads, memory=memory, io=io)
    if undecided not in ("fail", "pass"):
        raise TwinrunError(f"undecided must be 'fail' or 'pass', not {undecided!r}")
    folder = checked_path(golden)
    if not os.path.exists(folder):
        raise MissingFile(
            "no such folder", where=folder, fix="make it with: twinrun golden save RUN --output FOLDER"
        )
    manifest = Manifest.read(folder)
    globs, ignored = field_globs(fields), attribute_globs(ignore_attributes)
    subject = open_subject(run, options)
    reading = {"most_listed": most_listed, "threads": threads, "memory": memory, "io": io}
    request = _Request(folder, manifest, subject, globs, (*manifest.ignored_attributes, *ignored), reading)
    pairs, problems = _pairs(request, steps)
    found = _Found(problems=problems, notes=list(subject.notes))
    for name, where, why in subject.skipped:
        if request.compares(name):
            found.problems.append(GoldenProblem(None, None, name, f"{where}: cannot be compared: {why}"))
    for done, (place, of_run) in enumerate(pairs):
        if of_run not in subject.places:
            text = f"not in {subject.label}"
            found.problems.append(GoldenProblem(place.step, place.rank, None, text))
            continue
        try:
            found.add(_check_place(request, place, of_run))
        except TwinrunError as e:
            found.problems.append(GoldenProblem(place.step, place.rank, None, str(e)))
        if progress is not None:
            progress(place_text((place.step, place.rank)), done + 1, len(pairs))
    if not found.fields and not found.problems:
        found.problems.append(GoldenProblem(None, None, None, "no field to check: check --field"))
    return GoldenCheck(
        folder,
        subject.label,
        found.fields,
        found.problems,
        list(dict.fromkeys(found.notes)),
        time.perf_counter() - start,
        undecided == "pass",
        sum(p.bytes for p in manifest.places),
        manifest.provenance,
        found.attributes,
        found.attributes_compared,
    )
