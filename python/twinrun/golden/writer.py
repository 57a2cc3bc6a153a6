"""`save`: keeps the digests of a run in a folder of golden files."""

from __future__ import annotations

import contextlib
import glob
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .. import _core
from .._core import __version__
from ..arguments import check_settings, checked_path, names_given, own_folder, tolerance_number
from ..arithmetic import any_values
from ..comparison.field import place_text
from ..comparison.matching import names, steps_named
from ..comparison.settings import Decision, Settings
from ..comparison.tolerances import Rule, RulesInUse, Tolerances, read_tolerances
from ..errors import Incomparable, TwinrunError, Uncompared, Unsupported, in_short, in_words_of_the_caller
from ..outputs import check_folder
from ..runs.fields import MOST_UNIFORM, FieldRef
from ..runs.histories import HistorySubject
from ..runs.metadata import damaged_fields
from ..runs.opening import open_subject, without_effect
from ..runs.order import read_by_row
from ..runs.provenance import read_provenance
from ..runs.subject import Opened, Place, Subject
from .attributes import saved_attributes
from .fields import golden_bytes
from .folder import file_name, new_folder, old_files, put_in_place, write_new
from .manifest import MANIFEST, GoldenFieldFacts, GoldenFile, GoldenPlace, Manifest, checksum
from .particles import rows_by_id
from .result import SaveFacts
from .rules import needs_values, rule_settings, without_circle
from .selection import attribute_globs, chosen_places, field_globs, is_chosen, matches, unmet
from .values import KEEP_VALUES, values_bytes, values_name

__all__ = ["CHUNK_BYTES", "save"]

CHUNK_BYTES = 16384
# Conditions that explain results and do not change from run to run, because golden files live in
# repositories.
_PROVENANCE = ("compiler", "floating_point", "gpu", "libraries", "mpi", "python", "threads")
_OWN = frozenset({"rank", "script", "script_digest"})
_FOLDER = re.compile(r"/[^\s,;:]*/")


@dataclass(frozen=True)
class _Request:
    """What a call of `save` keeps, and within which tolerances: see its parameters.

    reading: how data is digested and read (`golden_bytes`). met: the chosen fields that the run has, those
    that are left out among them.
    """

    fields: tuple[str, ...] | None
    leave_out: tuple[str, ...]
    keep: Callable[[int | None, str], bool] | None
    ignored_attributes: tuple[str, ...]
    tolerances: Callable[[int | None, str], Rule | tuple[float, float] | None] | None
    settings: Settings
    key: str | None
    keep_values: int
    reading: Mapping[str, Any]
    met: set[str] = field(default_factory=set)

    def keeps(self, step: int | None, name: str) -> bool:
        """Whether the caller does not leave a field out; it may still not be among the chosen ones."""
        return self.keep(step, name) if self.keep is not None else not matches(name, self.leave_out)

    def decision(self, step: int | None, ref: FieldRef) -> Decision:
        """What counts as different in a field, as `compare` has it. Raises TwinrunError where it has no
        meaning.
        """
        own = self.tolerances(step, ref.name) if self.tolerances is not None and ref.kind is None else None
        settings = self.settings
        if own is not None:
            rule = (
                replace(own, fields=("*",), steps=None)
                if isinstance(own, Rule)
                else Rule(atol=own[0], rtol=own[1])
            )
            settings = replace(settings, tolerances=Tolerances((rule,)))
        found = settings.decision(ref, ref, step)
        _core.check_tolerance(float(found.atol), float(found.rtol))
        size = ref.items * ref.itemsize
        if ref.is_uniform and size > MOST_UNIFORM:
            raise Unsupported(
                f"field {ref.name!r}: none of its {ref.items} elements is stored, and digests of so many take more than the file",
                fix="leave it out, by --field or a rule",
            )
        if needs_values(found) and size > self.keep_values:
            raise Incomparable(
                f"{place_text((step, 0)) if step is not None else 'field'} {ref.name!r}: {needs_values(found)} needs "
                f"values, and of {size} bytes only digests are kept (--keep-values {self.keep_values})",
                fix=f"give --keep-values {size}, or an atol in a rule for this field",
            )
        return found

    def refuse(self, entries: Iterable[tuple[str, str, str]], step: int | None) -> None:
        """Raises Uncompared where something cannot be kept, and the caller does not leave it out."""
        for name, where, why in entries:
            kept = self.keeps(step, name)
            if not is_chosen(name, self.fields):
                continue
            self.met.add(name)
            if kept:
                raise Uncompared.of(name, where, why, "leave it out, by --field or a rule")

    def names_nothing(self, present: Opened) -> bool:
        """Whether the caller names fields, and the place has none of them."""
        skipped = [name for name, _, _ in present.skipped]
        return self.fields is not None and not any(is_chosen(n, self.fields) for n in (*present, *skipped))

    def check_data(self, present: Opened, step: int | None) -> None:
        """Raises DamagedFile where a history's data is not what was captured: no later check would pass."""
        kept = [
            ref for name, ref in present.items() if is_chosen(name, self.fields) and self.keeps(step, name)
        ]
        for problem in damaged_fields(kept, self.reading["threads"]).values():
            raise problem

    def fields_of(self, present: Opened, step: int | None) -> tuple[list[FieldRef], list[str]]:
        """The fields to keep, and globs of those that `keep` leaves out and `leave_out` does not name."""
        kept, left_out = [], []
        for name, ref in present.items():
            if not is_chosen(name, self.fields):
                continue
            self.met.add(name)
            if self.keeps(step, name):
                kept.append(read_by_row(ref))
            elif not matches(name, self.leave_out):
                left_out.append(glob.escape(name))
        return kept, left_out


@dataclass(frozen=True)
class _Saved:
    """One place, kept. contents: of its files, by name. left_out: globs of fields that are not kept.
    nothing: it has none of the fields that the caller names.
    """

    place: GoldenPlace
    contents: dict[str, bytes]
    data_bytes: int
    notes: list[str]
    left_out: list[str]
    nothing: bool = False


def _kept(
    request: _Request,
    label: str,
    place: Place,
    refs: Sequence[FieldRef],
    keys: Mapping[str, str] | None = None,
) -> _Saved:
    """Fields of a place, kept. keys: of particles, for each field that of its IDs; None for the rest."""
    step = place[0]
    for ref in refs:
        if ref.source() is None:
            raise Incomparable(
                f"{place_text(place)}: field {ref.name!r}: only its metadata is available",
                where=ref.where,
                fix="save golden files where the data is",
            )
    by_id = keys is not None
    # IDs say which rows belong together, so no tolerance holds for them, whatever the rules say.
    ids = set(keys.values()) if keys is not None else set()
    decisions = {ref.name: Decision() if ref.name in ids else request.decision(step, ref) for ref in refs}
    tolerance = {name: (d.atol, d.rtol) for name, d in decisions.items()}
    content = golden_bytes(refs, lambda ref: tolerance[ref.name], place=place, **request.reading)
    name = file_name(place, by_id)
    contents = {name: content}
    values = values_bytes(refs, request.keep_values, content)
    if values is not None:
        contents[values_name(name)] = values
    facts = tuple(
        GoldenFieldFacts(
            r.name, r.dtype, r.user_shape, r.fortran_order, d.atol, d.rtol, d.ulps or None, d.period, d.equal_nan,
            keys[r.name] if keys is not None else None,
        )
        for r, d in ((ref, decisions[ref.name]) for ref in refs)
    )  # fmt: skip
    files = [GoldenFile(n, len(c), checksum(c)) for n, c in contents.items()]
    made = GoldenPlace(
        step,
        place[1],
        files[0].file,
        files[0].bytes,
        files[0].xxh3,
        False,
        facts,
        values=files[1] if len(files) > 1 else None,
        by_id=by_id,
    )
    return _Saved(made, contents, sum(r.items * r.itemsize for r in refs), [], [])


def _save_opened(
    request: _Request,
    subject: Subject,
    place: Place,
    present: Opened,
    particles: Collection[str] = (),
    kept_by_id: Collection[str] = (),
) -> _Saved | None:
    """Keeps a place. particles: names of fields that belong to particles. kept_by_id: those of them that
    are kept. None where nothing is left beside them.
    """
    refs, left_out = request.fields_of(present, place[0])
    request.refuse(present.skipped, place[0])
    named = request.fields is not None
    known = {*(r.name for r in refs), *kept_by_id}
    attributes = saved_attributes(present, known, named, request.ignored_attributes)
    refs = [ref for ref in refs if ref.name not in particles]
    nothing = request.names_nothing(present)
    if not refs and not particles and not nothing:
        raise Incomparable(f"{place_text(place)}: no field to save", where=subject.label, fix="check --field")
    # A place that has none of the named fields is kept where no other says so: they may not appear.
    if not refs and not attributes and (particles or not nothing):
        return None
    saved = _kept(request, subject.label, place, refs)
    one_array = present.array_name is not None  # a folder's names are kept, and count
    made = replace(saved.place, one_array=one_array, attributes=attributes)
    return replace(saved, place=made, notes=present.notes, left_out=left_out, nothing=nothing)


def _save_step(
    request: _Request, subject: Subject, step: int | None, ranks: Sequence[int]
) -> Iterator[_Saved]:
    """Keeps all ranks of a step: particles by ID, and the rest by rank."""
    assert request.key is not None
    with contextlib.ExitStack() as stack:
        opened = [(rank, stack.enter_context(subject.open((step, rank)))) for rank in ranks]
        for _, present in opened:
            request.check_data(present, step)
        chosen = {ref.name for _, o in opened for ref in request.fields_of(o, step)[0]}
        rows = rows_by_id(opened, request.key, chosen.__contains__, subject.label, step)
        if rows.problems:
            raise rows.problems[0]
        # IDs are kept wherever a field needs them, chosen or not.
        kinds = [kind for kind in rows.kinds if len(kind.fields) > 1 or kind.key in chosen]
        refs = [ref for kind in kinds for ref in kind.fields.values()]
        if refs:
            keys = {name: kind.key for kind in kinds for name in kind.fields}
            yield _kept(request, subject.label, (step, 0), refs, keys)
        kept = rows.kept(chosen.__contains__)
        any_saved = bool(refs)
        for rank, present in opened:
            saved = _save_opened(request, subject, (step, rank), present, rows.names, kept)
            if saved is not None:
                any_saved = True
                yield saved
        if not any_saved and all(request.names_nothing(present) for _, present in opened):
            yield replace(_kept(request, subject.label, (step, ranks[0]), []), nothing=True)


def _save_places(
    request: _Request,
    subject: Subject,
    places: Sequence[Place],
    made: str,
    folder: str,
    progress: Callable[[str, int, int], None] | None,
) -> list[_Saved]:
    """Writes what is kept of all places into `made`; folder: where it will lie. What it returns has no
    content any more.
    """
    found = []

    def write(saved: _Saved) -> None:
        for name, content in saved.contents.items():
            write_new(made, name, content, folder)
        found.append(replace(saved, contents={}))

    steps: dict[object, list[Place]] = {}
    for place in places:
        steps.setdefault(place if request.key is None else place[0], []).append(place)
    done = 0
    for group in steps.values():
        if request.key is None:
            with subject.open(group[0]) as present:
                request.check_data(present, group[0][0])
                saved = _save_opened(request, subject, group[0], present)
                assert saved is not None
                write(saved)
        else:
            for saved in _save_step(request, subject, group[0][0], [rank for _, rank in group]):
                write(saved)
        done += len(group)
        if progress is not None:
            progress(place_text(group[-1]), done, len(places))
    if request.key is not None and not any(saved.place.by_id for saved in found):
        what = f"no field of IDs matches the key {request.key!r}"
        if request.key == "auto":
            what = in_words_of_the_caller(
                "--key auto finds no particles: the run does not say which field has IDs"
            )
        raise Incomparable(
            what,
            where=subject.label,
            fix="name a field of integers in one dimension with --key",
        )
    return found


def _kept_provenance(subject: Subject) -> tuple[dict[str, dict[str, str]] | None, list[str]]:
    """What golden.json keeps of the provenance of a run, and notes. Damaged provenance becomes a note."""
    try:
        provenance = read_provenance(subject.provenance)
    except TwinrunError as e:
        return None, [f"{subject.label}: {e}"]
    if provenance is None:
        return None, []
    facts = provenance.facts()
    kept = {
        group: {name: _FOLDER.sub("", text) for name, text in facts[group].items() if name not in _OWN}
        for group in _PROVENANCE
        if group in facts
    }
    return kept, []


@any_values
def save(
    run: object,
    output: str | os.PathLike[str],
    *,
    atol: float | None = None,
    rtol: float | None = None,
    ulp: int | None = None,
    tolerances: str
    | os.PathLike[str]
    | Tolerances
    | Callable[[int | None, str], Rule | tuple[float, float] | None]
    | None = None,
    key: str | None = None,
    period: str | float | Iterable[float] | None = None,
    keep_values: int = KEEP_VALUES,
    residue_bits: int = 4,
    chunk_bytes: int = CHUNK_BYTES,
    fields: Iterable[str] | None = None,
    leave_out: Iterable[str] = (),
    keep: Callable[[int | None, str], bool] | None = None,
    steps: str | None = None,
    tolerate_integers: bool = False,
    threads: int = 0,
    memory: int = 1 << 30,
    io: str = "auto",
    options: Mapping[str, object] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    ignore_attributes: Iterable[str] = (),
) -> SaveFacts:
    """Keeps the digests of a run: 13% of the bytes of float32 data; of small arrays also the values.

    >>> from twinrun import golden
    >>> x = np.linspace(0, 1, 1000)
    >>> facts = golden.save({"x": x}, "golden/x", atol=1e-6)
    >>> golden.check("golden/x", {"x": x + 1e-9}).verdict
    'same'

    Parameters
    ----------
    run : path, array or container of arrays
        A history, folder, file, array or `{name: array}`. Its data is read.
    output : str or path
        A new folder, or a folder of golden files. In the latter the files that golden.json lists are
        replaced, and no others.
    atol, rtol : float, default None
        The tolerance of floating-point fields: |a - b| <= atol + rtol |a|. `atol` has the unit of the data.
        With neither: the tolerance that the run was captured for, or equality.
    ulp : int, default None
        Floating-point numbers that are at most so many representable values apart agree. Needs values: see
        `keep_values`.
    tolerances : path or callable, default None
        A file of rules, as for `twinrun.compare`; or `tolerances(step, field)` gives (atol, rtol) of one
        field, a rule of such a file, or None for the common tolerance.
    key : str, default None
        The field, or a glob of the fields, with the IDs of particles; 'auto' takes what the files say. Their
        rows are kept in the order of the IDs, those of all ranks together, and `check` does the same with
        those of its run.
    period : float, iterable of float, or str, default None
        Lengths of the periodic box, as for `twinrun.compare`. Needs values: see `keep_values`.
    keep_values : int, default 65536
        Bytes of the largest array of which the values are kept beside the digests. `check` then says what
        `twinrun.compare` would say: each element that differs, and by how much. 0: of none.
    residue_bits : {4, 2, 0}
        Bits an element. They decide how far apart `check` can tell values (docs/reference/golden.md). Fields
        with a tolerance for which 2 prove nothing keep 4.
    chunk_bytes : int, default 16384
        Bytes of a chunk: a power of two from 4096 to 1048576.
    fields : str or iterable of str, default None
        Globs of the fields to keep; None for all.
    leave_out : str or iterable of str, default ()
        Globs of the fields to leave out.
    keep : callable, default None
        `keep(step, field)` decides in place of `leave_out`, which then names fields that may appear and
        disappear.
    steps : str, default None
        The steps to keep: '10,20' or '100:200', both ends included; None for all.
    tolerate_integers : bool, default False
        True: the tolerance holds for integers and booleans too.
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
        Globs of attributes that may change, over `path@name`.

    Returns
    -------
    SaveFacts
        How many files and bytes were written.

    Raises
    ------
    TwinrunError
        A parameter has no meaning; or `output` is a file, or a folder with other files, or cannot be written.
    Incomparable
        There is no step or field to save, or something cannot be compared and is not left out.
    MissingFile, DamagedFile
        The run cannot be read.

    Notes
    -----
    The same run gives the same files. After an error, or where the process is killed, `check` finds the old
    golden files whole, or the new ones; the next `save` removes what else was left. One process at a time
    writes a folder. Digests: spec/digest.md; what they prove: docs/reference/golden.md.
    """
    check_settings(threads=threads, memory=memory, residue_bits=residue_bits, chunk_bytes=chunk_bytes, io=io)
    _core.check_tolerance(
        tolerance_number("atol", 0.0 if atol is None else atol),
        tolerance_number("rtol", 0.0 if rtol is None else rtol),
    )
    if type(keep_values) is not int or keep_values < 0:
        raise TwinrunError(f"keep_values must be a number of bytes, not {keep_values!r}")
    folder = own_folder(checked_path(output))
    rules = None
    found: Callable[[int | None, str], Rule | tuple[float, float] | None] | None = None
    left_out, ignored = tuple(names_given(leave_out, "leave_out")), attribute_globs(ignore_attributes)
    if isinstance(tolerances, (str, os.PathLike, Tolerances)):
        rules = _rules_of(tolerances)
        found, keep = _by_rules(rules, keep, left_out)
        left_out += tuple(rules.tolerances.skipped())
        ignored += attribute_globs(rules.tolerances.ignored())
    elif callable(tolerances):
        found = tolerances
    elif tolerances is not None:
        raise TwinrunError(
            f"tolerances must be a file of rules or a function, not {in_short(tolerances)}",
            fix="give a path, or a function of step and field",
        )
    request = _Request(
        field_globs(fields),
        left_out,
        keep,
        ignored,
        found,
        rule_settings(atol, rtol, ulp, period, tolerate_integers),
        key,
        keep_values,
        {
            "residue_bits": residue_bits,
            "chunk_bytes": chunk_bytes,
            "threads": threads,
            "memory": memory,
            "io": io,
        },
    )
    old = old_files(folder)
    subject = open_subject(run, options)
    if subject.kind == "folder" and isinstance(run, (str, os.PathLike)):
        check_folder("--output", folder, [run])  # every later check would find golden files in its run
    if steps is None and isinstance(subject, HistorySubject) and subject.unnamed is not None:
        raise subject.unnamed  # golden files of a part would look like those of all
    places = chosen_places(subject, steps, "save")
    request.refuse(subject.skipped, None)
    notes = [*subject.notes, *without_effect([subject], options)]
    with new_folder(folder) as made:
        saved = _save_places(request, subject, places, made, folder, progress)
        for glob in unmet(request.fields, request.met):
            raise Incomparable(f"no field to save matches {glob!r}", where=subject.label, fix="check --field")
        if all(p.nothing for p in saved):
            raise Incomparable("no field to save", where=subject.label, fix="check --field")
        notes += _without_named(saved, request.fields)
        periods = request.settings.periods
        if (periods.axes or periods.named) and not any(f.period for p in saved for f in p.place.fields):
            raise without_circle(periods, subject.label)
        provenance, notes_of_it = _kept_provenance(subject)
        manifest = Manifest(
            tuple(p.place for p in saved),
            residue_bits,
            chunk_bytes,
            request.fields,
            steps,
            provenance,
            __version__,
            (*request.leave_out, *dict.fromkeys(name for p in saved for name in p.left_out)),
            request.ignored_attributes,
            key,
        )
        text = manifest.text().encode()
        Manifest.parse(text, os.path.join(folder, MANIFEST))
        write_new(made, MANIFEST, text, folder)
        try:
            put_in_place(made, folder, old, manifest)
        except OSError as e:
            raise TwinrunError(f"cannot be written: {e.strerror or e}", where=folder) from None
    if rules is not None:
        notes_of_it = [*notes_of_it, *rules.tolerances.notes(rules.met())]
    return _facts_of(saved, folder, len(text), [notes, *(p.notes for p in saved), notes_of_it])


def _without_named(saved: Sequence[_Saved], fields: Iterable[str] | None) -> list[str]:
    """A note on the places that have none of the fields that a call names."""
    places = [(p.place.step, p.place.rank) for p in saved if p.nothing]
    if not places:
        return []
    if any(p.place.rank for p in saved) or None in dict(places):
        said = names(map(place_text, places))
    else:
        said = steps_named([step for step, _ in places])
    return [f"the run has no field that matches {', '.join(map(repr, fields or ()))} at {said}"]


def _rules_of(tolerances: str | os.PathLike[str] | Tolerances) -> RulesInUse:
    """The rules of a file. Raises TwinrunError where golden files cannot follow them."""
    tolerant = tolerances if isinstance(tolerances, Tolerances) else read_tolerances(tolerances)
    if tolerant.renames:
        raise TwinrunError(
            "[[rename]] is for comparisons of two runs",
            where=tolerant.source,
            fix="leave it out: golden files keep names",
        )
    return RulesInUse(tolerant)


def _by_rules(
    rules: RulesInUse, keep: Callable[[int | None, str], bool] | None, left_out: Sequence[str]
) -> tuple[Callable[[int | None, str], Rule | None], Callable[[int | None, str], bool]]:
    """`tolerances` and `keep` of a call, by the rules of a file. keep, left_out: what the caller gives."""

    def keeps(step: int | None, name: str) -> bool:
        rule = rules.find(name, step)
        if rule is not None and rule.skip:
            return False
        return keep(step, name) if keep is not None else not matches(name, left_out)

    return lambda step, name: rules.find(name, step), keeps


def _facts_of(
    saved: Sequence[_Saved], folder: str, manifest_bytes: int, notes: Iterable[Iterable[str]]
) -> SaveFacts:
    return SaveFacts(
        folder,
        sum(len(p.place.files()) for p in saved) + 1,
        sum(len(p.place.fields) for p in saved),
        len({f.name for p in saved for f in p.place.fields}),
        len({p.place.step for p in saved} - {None}),
        sum(p.data_bytes for p in saved),
        sum(f.bytes for p in saved for f in p.place.files()) + manifest_bytes,
        list(dict.fromkeys(note for some in notes for note in some)),
    )
