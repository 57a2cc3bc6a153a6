"""Golden files: what a run was, in a few percent of its bytes; and whether another run agrees with it.

>>> from twinrun import golden
>>> x = np.linspace(0, 1, 1000)
>>> facts = golden.save({"x": x}, "golden/x", atol=1e-6)  # once, and when a change of the results is meant
>>> result = golden.check("golden/x", {"x": x})  # ever after; the data of the first run is not needed
>>> result.verdict, len(result.fields)
('same', 1)

What is kept and why it suffices: docs/golden.md.
"""

from __future__ import annotations

import contextlib
import filecmp
import fnmatch
import functools
import glob
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from .. import _core
from .._core import __version__
from ..arguments import check_settings, checked_path
from ..comparison.attributes import AttributeDifference, concerns, renamed_array
from ..comparison.tolerances import attribute_glob, missing_steps
from ..comparison.work import parse_steps
from ..errors import DamagedFile, Incomparable, MissingFile, TwinrunError, Uncompared
from ..formats.files import file_size
from ..formats.texts import never_tolerated
from ..outputs import replacing
from ..runs.index import FLOATING
from ..runs.order import read_by_row
from ..runs.provenance import read_provenance
from ..runs.subject import FieldRef, Opened, Place, Subject, open_subject
from .fields import GoldenElement, GoldenField, GoldenSpan, check_field, golden_bytes, known_fields
from .manifest import (
    MANIFEST,
    GoldenAttribute,
    GoldenFieldFacts,
    GoldenPlace,
    Manifest,
    checksum,
    is_manifest,
    is_metadata,
)

__all__ = [
    "GoldenCheck",
    "GoldenElement",
    "GoldenField",
    "GoldenProblem",
    "GoldenSpan",
    "SaveFacts",
    "check",
    "save",
]

CHUNK_BYTES = 16384
# What explains results, and does not change from one run to the next: golden files live in repositories.
_PROVENANCE = ("compiler", "floating_point", "gpu", "libraries", "mpi", "python", "threads")
_OWN = frozenset({"rank", "script", "script_digest"})
_OWN_FILE = re.compile(r"(step_-?[0-9]+_)?rank_[0-9]+\.twm")
_FOLDER = re.compile(r"/[^\s,;:]*/")


@dataclass(frozen=True)
class SaveFacts:
    """What `save` kept.

    >>> from twinrun import golden
    >>> facts = golden.save({"x": np.zeros(100_000, np.float32)}, "golden/x", atol=1e-6)
    >>> facts.fields, facts.files, facts.data_bytes, facts.bytes < 0.2 * facts.data_bytes
    (1, 2, 400000, True)

    Attributes
    ----------
    path : str
        The folder of the golden files.
    files : int
        How many files it has.
    fields : int
        How many fields were kept, over all steps and ranks.
    data_bytes : int
        Bytes of the elements that the digests stand for.
    bytes : int
        Bytes of all files.
    notes : list of str
        What the user should know, such as left-out data sets.
    """

    path: str
    files: int
    fields: int
    data_bytes: int
    bytes: int
    notes: list[str]


@dataclass(frozen=True)
class GoldenProblem:
    """Something that was not compared, and why.

    >>> from twinrun import golden
    >>> facts = golden.save({"x": np.zeros(10)}, "golden/x")
    >>> problem = golden.check("golden/x", {"x": np.zeros(9)}).problems[0]
    >>> problem.field, problem.place()
    ('x', 'rank 0, x')

    Attributes
    ----------
    step, rank : int or None
        Where it belongs; None where it is not of one step or rank.
    field : str or None
        The field; None where it is a whole step or rank.
    text : str
        Why it was not compared.
    """

    step: int | None
    rank: int | None
    field: str | None
    text: str

    def place(self) -> str:
        """Where it belongs, as text: 'step 500, rank 0, x'.

        Returns
        -------
        str
            The place; '' where it is not of one step or rank.
        """
        parts = [] if self.step is None else [f"step {self.step}"]
        parts += [] if self.rank is None else [f"rank {self.rank}"]
        return ", ".join(parts + ([] if self.field is None else [self.field]))


@dataclass
class GoldenCheck:
    """The result of `check`: a verdict, and what is known of each field.

    >>> from twinrun import golden
    >>> facts = golden.save({"x": np.zeros(10)}, "golden/x", atol=1e-6)
    >>> x = np.zeros(10)
    >>> x[3] = 1e-3
    >>> result = golden.check("golden/x", {"x": x})
    >>> result.verdict, result.different, result.status
    ('different', 1, 1)

    Attributes
    ----------
    golden, run : str
        The folder of golden files and the run, as messages call them.
    fields : list of GoldenField
        One for each step, rank and field, in this order.
    problems : list of GoldenProblem
        What was not compared, and why.
    notes : list of str
        What the user should know.
    seconds : float
        Time of the check, in seconds.
    undecided_passes : bool
        Whether `check` was called with undecided='pass'.
    golden_bytes : int
        Bytes of the golden files.
    provenance : dict or None
        Conditions of the saved run: {group: {name: text}}.
    attributes : list of AttributeDifference
        What files say otherwise than when they were saved: a is saved, b is now.
    attributes_compared : int
        How many attributes were compared.
    verdict : {'same', 'different', 'undecided', 'incomparable'}
        'incomparable' if anything was not compared; else 'different' if anything differs; else 'undecided' if
        something cannot be decided within one cell.
    same : bool
        True where `status` is 0; `bool(result)` gives it.
    status : {0, 1, 2}
        Exit status: 0 the same, 1 different or undecided, 2 something was not compared.
    first : GoldenField or None
        The first field that differs; else the first that is undecided.
    different : int
        Elements that differ, at least.
    """

    golden: str
    run: str
    fields: list[GoldenField]
    problems: list[GoldenProblem]
    notes: list[str]
    seconds: float
    undecided_passes: bool = False
    golden_bytes: int = 0
    provenance: dict[str, dict[str, str]] | None = field(default=None, repr=False)
    attributes: list[AttributeDifference] = field(default_factory=list)
    attributes_compared: int = 0

    @property
    def verdict(self) -> str:
        """'same', 'different', 'undecided' or 'incomparable'."""
        if self.problems or not self.fields:
            return "incomparable"
        verdicts = {f.verdict for f in self.fields} | ({"different"} if self.attributes else set())
        return next((v for v in ("different", "undecided") if v in verdicts), "same")

    @property
    def same(self) -> bool:
        """Every element of every field was compared and agrees, or is undecided where `undecided_passes`."""
        return self.status == 0

    def __bool__(self) -> bool:
        return self.same

    @property
    def status(self) -> int:
        """Exit status: 0 the same, 1 different, 2 something could not be compared."""
        return {"same": 0, "different": 1, "undecided": 0 if self.undecided_passes else 1}.get(
            self.verdict, 2
        )

    @property
    def first(self) -> GoldenField | None:
        """The first field that differs; else the first that is undecided."""
        return next(
            (f for v in ("different", "undecided") for f in self.fields if f.verdict == v),
            None,
        )

    @property
    def different(self) -> int:
        """Elements that differ, at least."""
        return sum(f.different for f in self.fields)


def _chosen(name: str, globs: Iterable[str] | None) -> bool:
    return globs is None or any(fnmatch.fnmatchcase(name, g) for g in globs)


def _places(subject: Subject, steps: str | None) -> list[Place]:
    """Those to save. Raises Incomparable where steps were asked for that are not there."""
    chosen = None if steps is None else parse_steps(steps)
    places = [p for p in subject.places if chosen is None or chosen(p[0])]
    missing = missing_steps(chosen, (step for step, _ in subject.places))
    if missing:
        said = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
        raise Incomparable(f"has no step {said}: nothing was saved", where=subject.label, fix="check --steps")
    if not places:
        raise Incomparable("no step to save", where=subject.label, fix="check --steps")
    return places


def _file_name(place: Place) -> str:
    step, rank = place
    return f"rank_{rank}.twm" if step is None else f"step_{step}_rank_{rank}.twm"


def _write(path: str, content: bytes) -> None:
    with open(path, "wb") as out:
        out.write(content)


def _old_files(folder: str) -> dict[str, GoldenPlace]:
    """Golden files to replace, by name: those that golden.json lists, unchanged.

    Any other file there may be the user's.

    Raises TwinrunError where the folder to write is no folder of golden files.
    """
    if not os.path.lexists(folder):
        return {}
    if not os.path.isdir(folder):
        raise TwinrunError(
            "is a file, and golden files lie in a folder", where=folder, fix="name another one"
        )
    present = os.listdir(folder)
    if present and not is_manifest(os.path.join(folder, MANIFEST)):
        raise TwinrunError(
            "is a folder with other files in it", where=folder, fix="name a new folder for the golden files"
        )
    if not present:
        return {}
    try:
        listed = Manifest.read(folder).places
    except DamagedFile:  # then nothing says which they are
        return {}
    return {p.file: p for p in listed if _OWN_FILE.fullmatch(p.file) and _is_listed(folder, p)}


def _is_listed(folder: str, place: GoldenPlace) -> bool:
    """Whether the file of a place is, bit for bit, the one that golden.json lists."""
    path = os.path.join(folder, place.file)
    if not is_metadata(path) or os.path.getsize(path) != place.bytes:
        return False
    with open(path, "rb") as file:
        return checksum(file.read()) == place.xxh3


def _put_in_place(made: str, folder: str, old: dict[str, GoldenPlace], names: set[str]) -> None:
    """Moves new files over old ones, the manifest last: a check in between reports damaged files, and no
    false result. What is there is looked at again first: digests of a large run take a while.
    """
    os.makedirs(folder, exist_ok=True)
    for name in sorted(names | old.keys()):
        path = os.path.join(folder, name)
        # What was saved, and not to its end, is there already.
        if (
            os.path.lexists(path)
            and not (name in old and _is_listed(folder, old[name]))
            and not (
                name in names and is_metadata(path) and filecmp.cmp(path, os.path.join(made, name), False)
            )
        ):
            raise TwinrunError(
                "is there already, and is not the file that golden.json lists", where=path, fix="move it away"
            )
    for name in [*sorted(names), MANIFEST]:
        with replacing(os.path.join(folder, name), follow=False) as temporary:
            os.replace(os.path.join(made, name), temporary)
    for name in old.keys() - names:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, name))


def _kept_provenance(subject: Subject) -> tuple[dict[str, dict[str, str]] | None, list[str]]:
    """What is kept of the provenance of a history, and notes: of damaged provenance nothing is."""
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


def save(
    run: object,
    output: str | os.PathLike[str],
    *,
    atol: float | None = None,
    rtol: float | None = None,
    tolerances: Callable[[int | None, str], tuple[float, float] | None] | None = None,
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
    """Keeps the digests of a run: 13% of the bytes of float32 data, or 0.4% without residue bits.

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
    tolerances : callable, default None
        `tolerances(step, field)` gives (atol, rtol) of one field, or None for the common tolerance.
    residue_bits : {4, 2, 0}
        Bits an element. They decide how far apart `check` can tell values (docs/golden.md).
    chunk_bytes : int, default 16384
        Bytes of a chunk: a power of two from 4096 to 1048576.
    fields : iterable of str, default None
        Globs of the fields to keep; None for all.
    leave_out : iterable of str, default ()
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
        Options of the file formats (docs/formats.md).
    progress : callable, default None
        `progress(place, done, total)` is called after each step of each rank.
    ignore_attributes : iterable of str, default ()
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
    The same run gives the same files. After an error the old golden files stay. One process at a time writes
    a folder. Digests: spec/digest.md; what they prove: docs/golden.md.
    """
    check_settings(threads=threads, memory=memory, residue_bits=residue_bits, chunk_bytes=chunk_bytes, io=io)
    _core.check_tolerance(float(atol or 0.0), float(rtol or 0.0))
    folder = checked_path(output)
    globs = None if fields is None else [fields] if isinstance(fields, str) else list(fields)
    skipped = tuple(leave_out)
    ignored = tuple(
        attribute_glob(g)
        for g in ([ignore_attributes] if isinstance(ignore_attributes, str) else ignore_attributes)
    )
    old = _old_files(folder)
    subject = open_subject(run, options)
    places = _places(subject, steps)

    def tolerance(step: int | None, ref: FieldRef) -> tuple[float, float]:
        own = tolerances(step, ref.name) if tolerances is not None and ref.kind is None else None
        if own is None and atol is None and rtol is None and ref.facts is not None:
            return ref.facts.atol, ref.facts.rtol
        chosen = (atol or 0.0, rtol or 0.0) if own is None else own
        integers = tolerate_integers and not never_tolerated(ref.name)
        if ref.kind is not None or (ref.dtype not in FLOATING and not integers):
            return 0.0, 0.0
        _core.check_tolerance(float(chosen[0]), float(chosen[1]))
        return float(chosen[0]), float(chosen[1])

    def refuse(entries: Iterable[tuple[str, str, str]], step: int | None) -> None:
        """Raises where something cannot be kept, and is not left out by the caller."""
        for name, where, why in entries:
            kept = keep(step, name) if keep is not None else not (skipped and _chosen(name, skipped))
            if _chosen(name, globs) and kept:
                raise Uncompared(
                    f"{name!r} cannot be compared: {why}",
                    where=where,
                    fix="leave it out, by --field or a rule",
                )

    refuse(subject.skipped, None)
    made_places: list[GoldenPlace] = []
    left_out: dict[str, None] = {}
    notes = list(subject.notes)
    data_bytes = total = 0
    parent = os.path.dirname(os.path.abspath(folder))
    try:
        os.makedirs(parent, exist_ok=True)
    except OSError as e:
        raise TwinrunError(
            f"the folder cannot be made: {e.strerror or e}", where=parent, fix="name another folder with -o"
        ) from None
    with tempfile.TemporaryDirectory(prefix=".twinrun-golden-", dir=parent) as made:
        for done, place in enumerate(places):
            with subject.open(place) as present:
                notes += present.notes
                refs = []
                for name, ref in present.items():
                    by_glob = bool(skipped) and _chosen(name, skipped)
                    if not _chosen(name, globs):
                        continue
                    kept = not by_glob if keep is None else keep(place[0], name)
                    if kept:
                        refs.append(read_by_row(ref))
                    elif not by_glob:
                        left_out[glob.escape(name)] = None
                refuse(present.skipped, place[0])
                said = _attributes(present, [r.name for r in refs], globs is not None, ignored)
                if not refs:
                    raise Incomparable(
                        f"{_said(place)}: no field to save", where=subject.label, fix="check --field"
                    )
                for ref in refs:
                    if ref.source() is None:
                        raise Incomparable(
                            f"{_said(place)}: field {ref.name!r}: only its metadata is at hand",
                            where=ref.where,
                            fix="save golden files where the data is",
                        )
                step = place[0]
                content = golden_bytes(
                    refs,
                    functools.partial(tolerance, step),
                    residue_bits=residue_bits,
                    chunk_bytes=chunk_bytes,
                    place=place,
                    threads=threads,
                    memory=memory,
                    io=io,
                )
                facts = tuple(
                    GoldenFieldFacts(r.name, r.dtype, r.user_shape, r.fortran_order, *tolerance(step, r))
                    for r in refs
                )
                data_bytes += sum(r.items * r.itemsize for r in refs)
                one_array = present.array_name is not None  # in a folder names count
            name = _file_name(place)
            _write(os.path.join(made, name), content)
            total += len(content)
            made_places.append(
                GoldenPlace(step, place[1], name, len(content), checksum(content), one_array, facts, said)
            )
            if progress is not None:
                progress(_said(place), done + 1, len(places))
        provenance, notes_of_it = _kept_provenance(subject)
        notes += notes_of_it
        manifest = Manifest(
            tuple(made_places),
            residue_bits,
            chunk_bytes,
            None if globs is None else tuple(globs),
            steps,
            provenance,
            __version__,
            (*skipped, *left_out),
            ignored,
        )
        text = manifest.text().encode()
        Manifest.parse(text, os.path.join(folder, MANIFEST))
        _write(os.path.join(made, MANIFEST), text)
        try:
            _put_in_place(made, folder, old, {p.file for p in made_places})
        except OSError as e:
            raise TwinrunError(f"cannot be written: {e.strerror or e}", where=folder) from None
    return SaveFacts(
        folder,
        len(made_places) + 1,
        sum(len(p.fields) for p in made_places),
        data_bytes,
        total + len(text),
        list(dict.fromkeys(notes)),
    )


def _attributes(
    present: Opened, chosen: Iterable[str], named: bool, ignored: Iterable[str]
) -> tuple[GoldenAttribute, ...] | None:
    """The facts of the files of a place, by label."""
    if present.facts is None:
        return None
    chosen = set(chosen)
    return tuple(
        GoldenAttribute(f.owner, f.name, f.digest, f.text, f.meaning)
        for label, f in sorted(present.facts.items())
        if concerns(f.owner, f.meaning, present, chosen, named) and not _matches(label, ignored)
    )


def _matches(label: str, globs: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(label, glob) for glob in globs)


def _said(place: Place) -> str:
    step, rank = place
    return f"rank {rank}" if step is None else f"step {step}, rank {rank}"


def _open_metadata(folder: str, place: GoldenPlace) -> _core.Metadata:
    """Opens the digests of a place, and checks that they are those of the manifest."""
    path = os.path.join(folder, place.file)
    try:
        if os.path.exists(path):
            file_size(path)  # a pipe would keep us waiting
        with open(path, "rb") as file:
            content = file.read(place.bytes + 1)
    except FileNotFoundError:
        raise MissingFile("no such file", where=path, fix=_RESTORE) from None
    except OSError as e:
        raise TwinrunError(f"cannot be read: {e.strerror}", where=path) from None
    if len(content) != place.bytes or checksum(content) != place.xxh3:
        raise DamagedFile("is not the file that golden.json names", where=path, fix=_RESTORE)
    metadata = _core.Metadata(path)
    fields = metadata.fields
    known = [
        (f.name, f.dtype, f.shape[:: -1 if f.fortran_order else 1], f.fortran_order)
        for f in (fields[at] for at in known_fields(metadata).values())
    ]
    if known != [(f.name, f.dtype, f.shape, f.fortran_order) for f in place.fields]:
        raise DamagedFile("holds other fields than golden.json says", where=path, fix=_RESTORE)
    return metadata


def _by_label(attributes: Iterable[GoldenAttribute]) -> dict[str, GoldenAttribute]:
    """Facts by label. A second fact with the same label gets another label, as in `Opened`."""
    found: dict[str, GoldenAttribute] = {}
    for one in attributes:
        label = one.label
        while label in found:
            label += "'"
        found[label] = one
    return found


def _check_attributes(
    place: GoldenPlace,
    present: Opened,
    wanted: Iterable[str],
    named: bool,
    renamed: Mapping[str, str],
    result: GoldenCheck,
    ignored: Iterable[str],
    subject: Subject,
) -> None:
    """Compares the facts of files with the saved facts.

    renamed: names of single arrays in the golden files.
    """
    if present.facts and not place.knows_attributes:
        text = "attributes: the golden files were saved by a twinrun that did not keep them: save again"
        result.problems.append(GoldenProblem(place.step, place.rank, None, text))
        return
    if place.attributes is None or present.facts is None:
        if place.attributes or present.facts:
            silent = "the golden files tell" if place.attributes is None else f"{subject.label} tells"
            result.notes.append(f"{silent} no attributes: they are not compared")
        return
    known = {f.name for f in place.fields}
    at_hand = (
        GoldenAttribute(renamed.get(f.owner, f.owner), f.name, f.digest, f.text, f.meaning)
        for f in present.facts.values()
    )
    then, now = _by_label(place.attributes), _by_label(at_hand)
    for label in dict.fromkeys((*then, *now)):
        a, b = then.get(label), now.get(label)
        one = a or b
        assert one is not None
        if _matches(label, ignored) or not concerns(
            one.owner, one.meaning, {*known, *present}, set(wanted), named
        ):
            continue
        result.attributes_compared += 1
        if a is None or b is None or a.digest != b.digest:
            result.attributes.append(
                AttributeDifference(
                    place.step,
                    place.rank,
                    one.owner,
                    one.name,
                    None if a is None else a.text,
                    None if b is None else b.text,
                    one.meaning,
                )
            )


_RESTORE = "restore it, or move it away and save again with 'twinrun golden save'"


def _check_place(
    folder: str,
    place: GoldenPlace,
    subject: Subject,
    of_run: Place,
    globs: Iterable[str] | None,
    result: GoldenCheck,
    options: dict,
) -> None:
    metadata = _open_metadata(folder, place)
    wanted = {f.name: (at, f) for at, f in enumerate(place.fields) if _chosen(f.name, globs)}
    with subject.open(of_run) as present:
        result.notes += present.notes
        called = {a.owner for a in place.attributes or () if a.name == "(members)"}
        if (
            place.one_array and called and present.array_name is not None
        ):  # a struct is named after its file too
            present = renamed_array(present, present.array_name, min(called, key=len))
        here = dict(present)
        if (
            place.one_array
            and present.array_name is not None
            and not called
            and len(wanted) == len(here) == 1
        ):
            here = dict(zip(wanted, here.values(), strict=True))  # one array: named after its file

        def problem(name: str | None, text: str) -> None:
            result.problems.append(GoldenProblem(place.step, place.rank, name, text))

        known = {f.name for f in place.fields}
        for name in here:
            if name not in known and _chosen(name, globs) and options["keeps"](name):
                problem(name, f"not in {folder}: save again, or choose fields")
        for name, where, why in present.skipped:
            if _chosen(name, globs) and options["keeps"](name):
                problem(name, f"{where}: cannot be compared: {why}")
        renamed = {ref.name: name for name, ref in here.items() if ref.name != name}
        named = globs is not None or options["named"]
        _check_attributes(place, present, wanted, named, renamed, result, options["ignored"], subject)
        for name, (at, facts) in wanted.items():
            if name not in here:
                problem(name, f"not in {subject.label}")
                continue
            try:
                found = check_field(metadata, at, here[name], (place.step, place.rank), facts.atol, facts.rtol,
                                    label=subject.label, **options["check"])  # fmt: skip
            except TwinrunError as e:
                problem(name, str(e))
                continue
            found.field = name
            result.fields.append(found)


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
        Globs of attributes that may differ, over `path@name`, besides those that `save` was told.

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
    globs = None if fields is None else [fields] if isinstance(fields, str) else list(fields)
    given = [ignore_attributes] if isinstance(ignore_attributes, str) else ignore_attributes
    ignored = [attribute_glob(g) for g in given]
    subject = open_subject(run, options)
    wanted = [p for p in manifest.places if steps is None or parse_steps(steps)(p.step)]
    result = GoldenCheck(
        folder,
        subject.label,
        [],
        [],
        list(subject.notes),
        0.0,
        undecided == "pass",
        sum(p.bytes for p in manifest.places),
        manifest.provenance,
    )
    if not wanted:
        raise Incomparable("no step to check", where=folder, fix="check --steps")
    at_hand = [
        p for p in _places(subject, manifest.chosen_steps) if steps is None or parse_steps(steps)(p[0])
    ]
    chosen = None if steps is None else parse_steps(steps)
    for missing in missing_steps(chosen, [p.step for p in wanted]):
        result.problems.append(GoldenProblem(missing, None, None, f"not in {folder}: choose other steps"))
    pairs = [(p, (p.step, p.rank)) for p in wanted]
    if subject.kind == "arrays" and len(wanted) == 1:  # arrays have no step, and belong to any single one
        pairs = [(wanted[0], subject.places[0])]
        at_hand = []
    for step, rank in at_hand:
        if (step, rank) not in {(p.step, p.rank) for p in wanted}:
            result.problems.append(
                GoldenProblem(step, rank, None, f"not in {folder}: save again, or choose steps")
            )
    for name, where, why in subject.skipped:
        if _chosen(name, globs) and manifest.keeps(name):
            result.problems.append(GoldenProblem(None, None, name, f"{where}: cannot be compared: {why}"))
    inner = {
        "keeps": manifest.keeps,
        "named": manifest.chosen_fields is not None,
        "ignored": (*manifest.ignored_attributes, *ignored),
        "check": {"most_listed": most_listed, "threads": threads, "memory": memory, "io": io},
    }
    for done, (place, of_run) in enumerate(pairs):
        if of_run not in subject.places:
            result.problems.append(GoldenProblem(place.step, place.rank, None, f"not in {subject.label}"))
            continue
        try:
            _check_place(folder, place, subject, of_run, globs, result, inner)
        except TwinrunError as e:
            result.problems.append(GoldenProblem(place.step, place.rank, None, str(e)))
        if progress is not None:
            progress(_said((place.step, place.rank)), done + 1, len(pairs))
    if not result.fields and not result.problems:
        result.problems.append(GoldenProblem(None, None, None, "no field to check: check --field"))
    result.notes = list(dict.fromkeys(result.notes))
    result.seconds = time.perf_counter() - start
    return result
