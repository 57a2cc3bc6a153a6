"""Perturbed copies of input files and of captured states, in folders of their own: one a member of
the ensemble.

A member's folder appears whole or not at all. What is there already is replaced only where a mark
of twinrun lists each file with its checksum, so that no file of another program, and none that was
changed since, is ever lost.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from .. import _core
from ..arguments import any_path, names_given, paths_given
from ..capture.run import RankRun, Run
from ..errors import DamagedFile, FormatError, Incomparable, MissingFile, TwinrunError, Unsupported, in_short
from ..formats import Field, detect, open_file
from ..formats.element_types import scalars_of, storage_dtype
from ..formats.folder import is_history
from ..outputs import check_folder
from ..runs.opening import open_subject
from ..runs.subject import Subject
from .members import read_whole, trace_fields
from .perturbation import (
    Change,
    changed_numbers,
    checked_seed,
    perturb,
    perturbed_arrays,
    perturbed_text,
    perturbed_values,
)

__all__ = ["PerturbedCopy", "perturb_copies"]

MARK = ".twinrun-perturb.json"
_FORMAT = "twinrun perturbation"
_FLOATS = {"f16": "f16", "bf16": "bf16", "f32": "f32", "f64": "f64", "c64": "f32", "c128": "f64"}
# Formats whose files hold no checksum or extreme value of the elements, so that elements may change
# in place.
_IN_PLACE = frozenset(
    {"npy", "raw", "safetensors", "netcdf", "hdf5", "trr", "vtk-legacy", "vtk", "gadget", "veloc"}
)
_MOST_MEMBERS = 100_000
_MOST_TEXT = 1 << 30


@dataclass(frozen=True)
class PerturbedCopy:
    """A member of an ensemble that was written.

    Attributes
    ----------
    folder : str
        Its folder.
    files : list of str
        The files in it, without the mark.
    changed : int
        Numbers that were changed.
    seed : int
        The seed of its perturbation.
    """

    folder: str
    files: list[str]
    changed: int
    seed: int


def perturb_copies(
    sources: Iterable[str | os.PathLike[str]],
    folder: str | os.PathLike[str],
    *,
    members: int = 1,
    ulp: int | None = None,
    relative: float | None = None,
    seed: int = 0,
    fields: Iterable[str] | None = None,
    match: str | None = None,
    step: int | None = None,
    options: Mapping[str, object] | None = None,
) -> list[PerturbedCopy]:
    """Writes perturbed copies of input files, or of a step of a history, into `folder`/member-001 and so on.

    >>> from twinrun.acceptance import perturb_copies
    >>> np.save("start.npy", np.linspace(1, 2, 1000))
    >>> copies = perturb_copies(["start.npy"], "members", members=3, ulp=1)
    >>> [copy.folder for copy in copies], copies[0].changed
    (['members/member-001', 'members/member-002', 'members/member-003'], 1000)

    Parameters
    ----------
    sources : path or iterable of paths
        Files of formats that twinrun reads, texts (with `match`), or one history. They are only read.
    folder : path
        Where members are written.
    members : int, default 1
        How many, each with a seed of its own.
    ulp, relative : int or float
        By how much numbers change; see `perturb`.
    seed : int, default 0
        Of the first member; the others follow.
    fields : str or iterable of str, default None
        Globs of the fields to change.
    match : str, default None
        A regular expression for texts; each of its groups is a number to change. ^ and $ are ends of lines.
    step : int, default None
        The step of the history; default: its only one.
    options : dict, default None
        Options of the file formats (docs/reference/formats.md).

    Returns
    -------
    list of PerturbedCopy
        What was written.

    Raises
    ------
    TwinrunError
        Nothing would change, or something is there that twinrun did not write: no member is written then.
    Unsupported
        A file holds numbers that cannot be changed in place.
    """
    change, first = Change(ulp, relative), checked_seed(seed)
    paths = [any_path(source) for source in paths_given(sources)]
    if not paths:
        raise TwinrunError("no input file", fix="name the files to be perturbed")
    if isinstance(members, bool) or not isinstance(members, int) or not 1 <= members <= _MOST_MEMBERS:
        raise TwinrunError(f"members must be from 1 to {_MOST_MEMBERS}, not {in_short(members)}")
    globs = None if fields is None else names_given(fields, "fields")
    pattern = None if match is None else _pattern(match)
    _check_sources(paths, step)
    out = any_path(folder)
    check_folder("-o", out, [path for path in paths if os.path.isdir(path)])
    targets = [os.path.join(out, f"member-{k + 1:03d}") for k in range(members)]
    for target in targets:
        _check_ours(target)
        for path in paths:
            whole = os.path.realpath(target)
            if os.path.commonpath((os.path.realpath(path), whole)) == whole:
                raise TwinrunError(
                    "is read here, and would be replaced", where=path, fix="name another folder with -o"
                )
    work = _Work(change, globs, pattern, step, dict(options or {}))
    return [work.write(paths, target, first + k) for k, target in enumerate(targets)]


def _pattern(match: str) -> re.Pattern[str]:
    try:
        pattern = re.compile(match, re.MULTILINE)
    except (re.error, RecursionError, OverflowError) as error:
        raise TwinrunError(f"--match {match!r:.80} is not a regular expression: {error}") from None
    if not pattern.groups:
        raise TwinrunError(
            f"--match {match!r:.80} has no group", fix=r"put the number in parentheses: 'temperature = (\S+)'"
        )
    return pattern


def _check_sources(paths: Sequence[str], step: int | None) -> None:
    names = [os.path.basename(os.path.abspath(path)) for path in paths]
    for path, name in zip(paths, names, strict=True):
        if not os.path.exists(path):
            raise MissingFile.at(path)
        if names.count(name) > 1:
            raise TwinrunError("two inputs have this name", where=name, fix="give them in two calls")
        if name == MARK:
            raise TwinrunError(
                "is the file with which twinrun marks perturbed copies, and no input",
                where=path,
                fix="leave it out",
            )
        if os.path.isdir(path) and not is_history(path):
            raise TwinrunError("is a folder, and no history", where=path, fix="name its files")
    if step is not None and not any(os.path.isdir(path) for path in paths):
        raise TwinrunError("a step is given, and no input is a history", fix="leave out --step")


def _digest(path: str) -> str:
    found = hashlib.blake2b(digest_size=16)
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            found.update(piece)
    return found.hexdigest()


def _files_of(folder: str) -> list[str]:
    """All files below a folder, relative to it; links and other things are named too."""
    found = []
    for where, folders, names in os.walk(folder):
        linked = [name for name in folders if os.path.islink(os.path.join(where, name))]
        found += [os.path.relpath(os.path.join(where, name), folder) for name in (*names, *linked)]
    return sorted(found)


def _marked(folder: str) -> dict[str, str] | None:
    """{file: checksum} of the mark of a member; None where there is none."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        with open(os.path.join(folder, MARK), "rb") as file:
            said = json.load(file)
        if isinstance(said, dict) and said.get("format") == _FORMAT and isinstance(said.get("files"), dict):
            return {str(name): str(value) for name, value in said["files"].items()}
    return None


def _check_ours(folder: str) -> None:
    """Raises TwinrunError unless there is nothing at `folder`, or a member that twinrun wrote and
    that is unchanged.
    """
    if not os.path.lexists(folder):
        return
    marked = None if os.path.islink(folder) or not os.path.isdir(folder) else _marked(folder)
    if marked is None:
        raise TwinrunError(
            "is there already, and twinrun did not write it",
            where=folder,
            fix="name another folder, or move it away",
        )
    for name in _files_of(folder):
        path = os.path.join(folder, name)
        if name == MARK and not os.path.islink(path):
            continue
        if (
            name not in marked
            or os.path.islink(path)
            or not os.path.isfile(path)
            or _digest(path) != marked[name]
        ):
            raise TwinrunError(
                "twinrun did not write it, or it was changed since",
                where=path,
                fix="name another folder, or move it away",
            )


def _remove_ours(folder: str) -> None:
    """Removes a member. What came into it since it was checked stays there."""
    _check_ours(folder)
    for name in _files_of(folder):
        os.unlink(os.path.join(folder, name))
    for where, _, _ in os.walk(folder, topdown=False):
        os.rmdir(where)


def _rng_of(seed: int, rank: int) -> np.random.Generator:
    """Of one rank of a captured state: ranks do not draw the same signs. Rank 0 draws what a
    history of one rank does.
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(rank,) if rank else ()))


@dataclass
class _Work:
    change: Change
    globs: list[str] | None
    pattern: re.Pattern[str] | None
    step: int | None
    options: dict[str, Any]

    def write(self, paths: Sequence[str], target: str, seed: int) -> PerturbedCopy:
        """One member, whole or not at all."""
        parent = os.path.dirname(target)
        os.makedirs(parent, exist_ok=True)
        temporary = os.path.join(parent, f".twinrun-{secrets.token_hex(8)}.tmp")
        os.mkdir(temporary)
        try:
            rng = np.random.default_rng(seed)
            changed = 0
            for path in paths:
                copy = os.path.join(temporary, os.path.basename(os.path.abspath(path)))
                changed += (
                    self._history(path, copy, seed) if os.path.isdir(path) else self._file(path, copy, rng)
                )
            files = _files_of(temporary)
            mark = {
                "format": _FORMAT,
                "version": 1,
                "sources": [os.path.abspath(path) for path in paths],
                "change": str(self.change),
                "seed": seed,
                "changed": changed,
                "files": {name: _digest(os.path.join(temporary, name)) for name in files},
            }
            with open(os.path.join(temporary, MARK), "x", encoding="utf-8", errors="surrogateescape") as file:
                json.dump(mark, file, indent=1)
                file.write("\n")
            self._put(temporary, target)
        except BaseException:
            # Made above, under a name that nobody else has.
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        return PerturbedCopy(target, files, changed, seed)

    def _put(self, temporary: str, target: str) -> None:
        if not os.path.lexists(target):
            os.rename(temporary, target)  # an error where a folder with files came there meanwhile
            return
        _check_ours(target)
        aside = f"{temporary}.old"
        os.rename(target, aside)
        os.rename(temporary, target)
        _remove_ours(aside)

    def _wanted(self, name: str) -> bool:
        return self.globs is None or any(fnmatchcase(name, glob) for glob in self.globs)

    def _history(self, path: str, copy: str, seed: int) -> int:
        """A history of one step with the perturbed state, under the same name."""
        subject = open_subject(path)
        steps = sorted({step for step, _ in subject.places if step is not None})
        step = self.step if self.step is not None else steps[0] if len(steps) == 1 else None
        if step is None or step not in steps:
            said = "has several steps" if self.step is None else f"has no step {self.step}"
            raise Incomparable(
                said, where=path, fix=f"choose one of {', '.join(map(str, steps[:5]))} with --step"
            )
        part = _core.open_history(path).local_part
        if part is not None:
            raise Unsupported(
                f"is the part of rank {part} on its way to a history", where=path,
                fix="bring all parts there with 'twinrun flush', and name the history",
            )  # fmt: skip
        ranks = [rank for at, rank in subject.places if at == step]
        # A step that a rank lacks is not a step of the history.
        assert ranks == list(range(len(ranks)))
        turns = _core.Turns(len(ranks)) if len(ranks) > 1 else None
        changed = sum(self._rank(subject, step, rank, copy, seed, turns) for rank in ranks)
        if [(step, rank) for rank in ranks] != open_subject(copy).places:
            raise DamagedFile("the copy lacks ranks of the step", where=copy, fix="try again")
        if not changed:
            raise TwinrunError(
                "nothing was perturbed: no field has a number with a fraction that is not 0", where=path,
                fix="check --field",
            )  # fmt: skip
        return changed

    def _rank(
        self, subject: Subject, step: int, rank: int, copy: str, seed: int, turns: _core.Turns | None
    ) -> int:
        """The perturbed state of one rank, which is captured into the copy."""
        stored: dict[str, np.ndarray] = {}
        columns, ids, places, tolerances = set(), {}, {}, {}
        with subject.open((step, rank)) as opened:
            left_out = trace_fields(opened)
            if opened and len(left_out) == len(opened):
                raise Unsupported(
                    f"step {step} holds a trace and no state", where=subject.label,
                    fix="perturb the input files of the program",
                )  # fmt: skip
            for name, ref in opened.items():
                if name in left_out:
                    continue
                if ref.no_data:
                    raise Incomparable(
                        f"step {step}: of field {name!r} only the metadata is there", where=subject.label,
                        fix="choose a step that has data with --step",
                    )  # fmt: skip
                if ref.kind is not None or ref.unit is not None or ref.dtype == "bf16":
                    raise Unsupported(
                        f"field {name!r} cannot be captured again as it is",
                        where=subject.label,
                        fix="perturb the input files of the program",
                    )
                whole = read_whole(ref)
                stored[name] = whole.T if ref.fortran_order else whole
                if ref.fortran_order:
                    columns.add(name)
                if ref.key is not None:
                    ids[name] = ref.key
                if ref.user_place is not None:
                    places[name] = ref.user_place
                if ref.facts is not None:
                    tolerances[name] = (ref.facts.atol, ref.facts.rtol)
            made, changed = perturbed_arrays(stored, self.change, _rng_of(seed, rank), self.globs)
        arrays = {name: array.T if name in columns else array for name, array in made.items()}
        with (
            Run(copy, tolerances=tolerances) if turns is None else RankRun(copy, turns, tolerances=tolerances)
        ) as run:
            run.capture(step, arrays, ids=ids or None, global_place=places or None)
        return changed

    def _file(self, path: str, copy: str, rng: np.random.Generator) -> int:
        shutil.copyfile(path, copy)
        found = None if self.options else detect(path)
        if (
            self.pattern is not None
            and (found is None or found.name in ("table", "lammps", "raw", "bytes"))
            and not self.options
        ):
            return self._text(path, copy, rng)
        if found is None and not self.options:
            raise FormatError(
                "its format is not recognised",
                where=path,
                fix="name the numbers of a text with --match, or its format",
            )
        options = dict(self.options)
        with open_file(copy, options.pop("format", None), **options) as content:
            name_of_format = content.format
            fields = [
                f
                for name, f in content.fields.items()
                if f.dtype in _FLOATS and f.kind is None and self._wanted(name)
            ]
            for f in fields:
                self.change.check(_FLOATS[f.dtype], repr(f.name), path)
            if not fields:
                raise TwinrunError(
                    "has no field of numbers with fractions to perturb", where=path, fix="check --field"
                )
            places = [(f, self._views(f, copy, name_of_format)) for f in fields]
        changed = 0
        if name_of_format == "npz":
            return self._archive(copy, [f.name for f in fields], rng)
        if name_of_format == "hdf5" and any(views is None for _, views in places):
            return self._hdf5(copy, fields, rng)
        with open(copy, "r+b") as file:
            whole = np.memmap(file, np.uint8, "r+")
            for f, views in places:
                assert views is not None
                for offset, stride, count in views:
                    changed += self._in_place(whole, f, offset, stride, count, rng)
            whole.flush()
        if not changed:
            raise TwinrunError(
                "nothing was perturbed: all its numbers are 0 or no numbers", where=path, fix="check --field"
            )
        return changed

    def _views(self, f: Field, copy: str, format: str) -> list[tuple[int, int, int]] | None:
        """(offset, stride, count) of the elements in the copy; None where a library must write them."""
        if format == "npz" or (format == "hdf5" and f.extents is None):
            return None
        here = os.path.realpath(copy)
        if (
            format not in _IN_PLACE
            or f.extents is None
            or any(os.path.realpath(e.path) != here for e in f.extents)
        ):
            raise Unsupported(
                f"field {f.name!r}: numbers of this file ({format}) cannot be changed in place",
                where=copy,
                fix="convert it to .npy, HDF5 or NetCDF, or perturb the arrays with twinrun.perturb",
            )
        return [(e.offset, e.stride, e.count) for e in f.extents]

    def _in_place(
        self, whole: np.ndarray, f: Field, offset: int, stride: int, count: int, rng: np.random.Generator
    ) -> int:
        kind = storage_dtype(_FLOATS[f.dtype], f.byte_order)
        inner = scalars_of(f.dtype)
        view: np.ndarray = np.ndarray((count, inner), kind, whole, offset, (stride, kind.itemsize))
        changed, piece = 0, 1 << 20
        for first in range(0, count, piece):
            part = view[first : first + piece]
            values = part.astype(kind.newbyteorder("="))
            moved = perturbed_values(values, _FLOATS[f.dtype], self.change, rng)
            unsigned = np.dtype(f"u{kind.itemsize}")
            changed += int((moved.view(unsigned) != values.view(unsigned)).sum())
            part[...] = moved
        return changed

    def _archive(self, copy: str, names: Sequence[str], rng: np.random.Generator) -> int:
        """A .npz has checksums: it is written again."""
        with np.load(copy) as held:
            arrays = {name: held[name] for name in held.files}
        made = perturb(
            arrays,
            ulp=self.change.ulp,
            relative=self.change.relative,
            seed=int(rng.integers(1 << 62)),
            fields=names,
        )
        with open(copy, "wb") as file:
            np.savez(file, **made)  # type: ignore[arg-type]
        return sum(changed_numbers(made[name], arrays[name]) for name in names)

    def _hdf5(self, copy: str, fields: Sequence[Field], rng: np.random.Generator) -> int:
        """Compressed or chunked data sets are written by their library."""
        h5py = importlib.import_module("h5py")  # it has no types

        changed = 0
        with h5py.File(copy, "r+") as file:
            for f in fields:
                data = file.get(f.name)
                if not isinstance(data, h5py.Dataset) or data.dtype.kind not in "fc":
                    raise Unsupported(
                        f"field {f.name!r} is no data set of its own",
                        where=copy,
                        fix="choose fields with --field",
                    )
                values = np.asarray(data[...])
                made = perturb(
                    {f.name: values},
                    ulp=self.change.ulp,
                    relative=self.change.relative,
                    seed=int(rng.integers(1 << 62)),
                )[f.name]
                data[...] = made
                changed += changed_numbers(made, values)
        return changed

    def _text(self, path: str, copy: str, rng: np.random.Generator) -> int:
        """Numbers that the pattern names."""
        assert self.pattern is not None
        if os.path.getsize(copy) > _MOST_TEXT:
            raise Unsupported("is too large for a text", where=path, fix="use a binary format")
        with open(copy, encoding="utf-8", errors="surrogateescape", newline="") as file:
            text = file.read()
        pieces, last, changed = [], 0, 0
        for found in self.pattern.finditer(text):
            for group in range(1, self.pattern.groups + 1):
                start, end = found.span(group)
                if start < last:
                    continue  # a group that took no part, or lies within another
                said = perturbed_text(text[start:end], self.change, rng)
                if said is None:
                    line = text.count("\n", 0, start) + 1
                    raise TwinrunError(
                        f"line {line}: --match finds {text[start:end]!r:.40}, which is not a number",
                        where=path,
                    )
                pieces += [text[last:start], said]
                changed += float(said.replace("d", "e")) != float(
                    text[start:end].replace("d", "e").replace("D", "e")
                )
                last = end
        if not changed:
            raise TwinrunError(
                "--match finds no number that is not 0", where=path, fix="check the expression"
            )
        with open(copy, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.write("".join([*pieces, text[last:]]))
        return changed
