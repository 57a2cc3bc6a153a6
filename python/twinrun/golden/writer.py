"""`save`: keeps the digests of a run in a folder of golden files."""

from __future__ import annotations

import functools
import glob
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .. import _core
from .._core import __version__
from ..arguments import check_settings, checked_path
from ..comparison.field import place_text
from ..errors import Incomparable, TwinrunError, Uncompared
from ..formats.model import FLOATING
from ..formats.texts import never_tolerated
from ..runs.fields import FieldRef
from ..runs.opening import open_subject
from ..runs.order import read_by_row
from ..runs.provenance import read_provenance
from ..runs.subject import Opened, Place, Subject
from .attributes import saved_attributes
from .fields import golden_bytes
from .folder import file_name, old_files, put_in_place
from .manifest import MANIFEST, GoldenFieldFacts, GoldenPlace, Manifest, checksum
from .result import SaveFacts
from .selection import attribute_globs, chosen_places, field_globs, is_chosen, matches

__all__ = ["CHUNK_BYTES", "save"]

CHUNK_BYTES = 16384
# Conditions that explain results and do not change from run to run, because golden files live in repositories.
_PROVENANCE = ("compiler", "floating_point", "gpu", "libraries", "mpi", "python", "threads")
_OWN = frozenset({"rank", "script", "script_digest"})
_FOLDER = re.compile(r"/[^\s,;:]*/")


@dataclass(frozen=True)
class _Request:
    """What a call of `save` keeps, and within which tolerances: see its parameters.

    reading: how data is digested and read (`golden_bytes`).
    """

    fields: tuple[str, ...] | None
    leave_out: tuple[str, ...]
    keep: Callable[[int | None, str], bool] | None
    ignored_attributes: tuple[str, ...]
    atol: float | None
    rtol: float | None
    tolerances: Callable[[int | None, str], tuple[float, float] | None] | None
    tolerate_integers: bool
    reading: Mapping[str, Any]

    def keeps(self, step: int | None, name: str) -> bool:
        """Whether the caller does not leave a field out; it may still not be among the chosen ones."""
        return self.keep(step, name) if self.keep is not None else not matches(name, self.leave_out)

    def tolerance(self, step: int | None, ref: FieldRef) -> tuple[float, float]:
        """The tolerance (atol, rtol) of a field. Raises TwinrunError where it has no meaning."""
        own = self.tolerances(step, ref.name) if self.tolerances is not None and ref.kind is None else None
        if own is None and self.atol is None and self.rtol is None and ref.facts is not None:
            return ref.facts.atol, ref.facts.rtol
        atol, rtol = (self.atol or 0.0, self.rtol or 0.0) if own is None else own
        integers = self.tolerate_integers and not never_tolerated(ref.name)
        if ref.kind is not None or (ref.dtype not in FLOATING and not integers):
            return 0.0, 0.0
        _core.check_tolerance(float(atol), float(rtol))
        return float(atol), float(rtol)

    def refuse(self, entries: Iterable[tuple[str, str, str]], step: int | None) -> None:
        """Raises Uncompared where something cannot be kept, and the caller does not leave it out."""
        for name, where, why in entries:
            kept = self.keeps(step, name)
            if is_chosen(name, self.fields) and kept:
                raise Uncompared(
                    f"{name!r} cannot be compared: {why}",
                    where=where,
                    fix="leave it out, by --field or a rule",
                )

    def fields_of(self, present: Opened, step: int | None) -> tuple[list[FieldRef], list[str]]:
        """The fields to keep, and globs of those that `keep` leaves out and `leave_out` does not name."""
        kept, left_out = [], []
        for name, ref in present.items():
            if not is_chosen(name, self.fields):
                continue
            if self.keeps(step, name):
                kept.append(read_by_row(ref))
            elif not matches(name, self.leave_out):
                left_out.append(glob.escape(name))
        return kept, left_out


@dataclass(frozen=True)
class _Saved:
    """One place, kept. content: its digests. left_out: globs of fields that are not kept."""

    place: GoldenPlace
    content: bytes
    data_bytes: int
    notes: list[str]
    left_out: list[str]


def _save_place(request: _Request, subject: Subject, place: Place) -> _Saved:
    step, rank = place
    with subject.open(place) as present:
        refs, left_out = request.fields_of(present, step)
        request.refuse(present.skipped, step)
        named = request.fields is not None
        attributes = saved_attributes(present, [r.name for r in refs], named, request.ignored_attributes)
        if not refs:
            raise Incomparable(
                f"{place_text(place)}: no field to save", where=subject.label, fix="check --field"
            )
        for ref in refs:
            if ref.source() is None:
                raise Incomparable(
                    f"{place_text(place)}: field {ref.name!r}: only its metadata is available",
                    where=ref.where,
                    fix="save golden files where the data is",
                )
        tolerance = functools.partial(request.tolerance, step)
        content = golden_bytes(refs, tolerance, place=place, **request.reading)
        facts = tuple(
            GoldenFieldFacts(r.name, r.dtype, r.user_shape, r.fortran_order, *tolerance(r)) for r in refs
        )
        made = GoldenPlace(
            step,
            rank,
            file_name(place),
            len(content),
            checksum(content),
            present.array_name is not None,  # a folder's names are kept, and count
            facts,
            attributes,
        )
        data_bytes = sum(r.items * r.itemsize for r in refs)
        return _Saved(made, content, data_bytes, present.notes, left_out)


def _save_places(
    request: _Request,
    subject: Subject,
    places: Sequence[Place],
    made: str,
    progress: Callable[[str, int, int], None] | None,
) -> list[_Saved]:
    """Writes the digests of all places into the folder `made`. What it returns has no content any more."""
    found = []
    for done, place in enumerate(places):
        saved = _save_place(request, subject, place)
        _write(os.path.join(made, saved.place.file), saved.content)
        found.append(replace(saved, content=b""))
        if progress is not None:
            progress(place_text(place), done + 1, len(places))
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


def _write(path: str, content: bytes) -> None:
    with open(path, "wb") as out:
        out.write(content)


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
    request = _Request(
        field_globs(fields),
        tuple(leave_out),
        keep,
        attribute_globs(ignore_attributes),
        atol,
        rtol,
        tolerances,
        tolerate_integers,
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
    places = chosen_places(subject, steps, "save")
    request.refuse(subject.skipped, None)
    notes = list(subject.notes)
    parent = os.path.dirname(os.path.abspath(folder))
    try:
        os.makedirs(parent, exist_ok=True)
    except OSError as e:
        raise TwinrunError(
            f"the folder cannot be made: {e.strerror or e}", where=parent, fix="name another folder with -o"
        ) from None
    with tempfile.TemporaryDirectory(prefix=".twinrun-golden-", dir=parent) as made:
        saved = _save_places(request, subject, places, made, progress)
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
        )
        text = manifest.text().encode()
        Manifest.parse(text, os.path.join(folder, MANIFEST))
        _write(os.path.join(made, MANIFEST), text)
        try:
            put_in_place(made, folder, old, {p.place.file for p in saved})
        except OSError as e:
            raise TwinrunError(f"cannot be written: {e.strerror or e}", where=folder) from None
    return SaveFacts(
        folder,
        len(saved) + 1,
        sum(len(p.place.fields) for p in saved),
        sum(p.data_bytes for p in saved),
        sum(p.place.bytes for p in saved) + len(text),
        list(dict.fromkeys([*notes, *(note for p in saved for note in p.notes), *notes_of_it])),
    )
