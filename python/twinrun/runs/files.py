"""Files of other programs as a subject: one, or a folder of them."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from .. import _core
from ..arguments import checked_path
from ..errors import FormatError, TwinrunError
from ..formats import FileContent, detect, format_named, is_plain, open_file, open_whatever
from ..formats.facts import FILE, Fact
from ..formats.files import is_metadata
from ..formats.folder import BYTES, DataFile
from ..formats.model import label_field
from ..formats.naming import field_name
from ..formats.safetensors import texts_of_header
from ..remote import object_of
from .fields import FieldRef, refs_of_fields
from .metadata import attach, metadata_path
from .subject import Listed, ListedPlaces, Opened, Place, Subject, Unopened

__all__ = ["Files", "one_array_format"]

_MOST_FILES = 16_384  # of a list of many places


class _Part(NamedTuple):
    """A file, or the fields of one step in a file of several steps.

    step: None for fields without a step of their own.
    """

    file: DataFile | str
    step: int | None

    @property
    def path(self) -> str:
        return self.file if isinstance(self.file, str) else self.file.path


class Files(Subject):
    """Files of other programs: one, or a folder of them."""

    def __init__(
        self,
        kind: str,
        path: str,
        files: Iterable[DataFile | str],
        options: dict,
        has_metadata: bool = True,
        at_hand: _core.FilesAtHand | None = None,
    ) -> None:
        """has_metadata: False where none of the files has metadata beside it. at_hand: files that were read
        when they were listed."""
        self._at_hand = at_hand
        self._options = options
        self._has_metadata = has_metadata
        # Of a single file: its format, once known, and its fields where the core reads its header.
        self._format: str | None = None
        self._plain: _core.FieldList | None = None
        self._times: dict[int | None, float] = {}
        self._timed = False
        self._by_place: dict[Place, list[_Part]] = {}
        self._one_step: dict[str, bool] = {}  # whether files of a format have one step, by its name
        super().__init__(kind, path, [])
        for file in files:
            place = (None, 0) if isinstance(file, str) else (file.step, file.rank)
            for step in self._steps_in(file):
                self._by_place.setdefault(place if step is None else (step, place[1]), []).append(
                    _Part(file, step)
                )
        self.unknown = {*self._by_place}
        for place, parts in self._by_place.items():
            for part in parts:
                if isinstance(part.file, str) or part.file.format != BYTES:
                    self.unknown.discard(place)
                    break
        self.unknown_names = [
            part.file.prefix
            for place in self.unknown
            for part in self._by_place[place]
            if not isinstance(part.file, str)
        ]
        self.places = sorted(self._by_place, key=lambda p: (-1 if p[0] is None else p[0], p[1]))

    def _steps_in(self, file: DataFile | str) -> list[int | None]:
        """The steps within a file, None for fields without a step; [None] for a file of one step."""
        if not isinstance(file, str):
            one_step = self._one_step.get(file.format)
            if one_step is None:
                known = format_named(file.format)
                one_step = self._one_step[file.format] = known is not None and not known.many_steps
            if one_step:
                return [None]
        if isinstance(file, str) and (plain := self._plain_file(file)) is not None:
            self._plain = plain
            return [None]
        with self._open_file(file) as content:
            steps = content.steps()
            self._times.update(content.times.items())
            alone = any(f.step is None for f in content.fields.values())
            return [*steps, *([None] if alone else [])] or [None]

    def takes(self, option: str) -> bool:
        if option == "format" or self.kind == "file":  # a file whose format lacks an option is an error
            return True
        files = {
            part.file.format
            for parts in self._by_place.values()
            for part in parts
            if not isinstance(part.file, str)
        }
        return any(option in known.options for known in map(format_named, files) if known is not None)

    def times(self) -> dict[int | None, float]:
        if not self._timed:
            self._timed = True
            for (step, _), parts in self._by_place.items():
                for part in parts:
                    if part.step is None and step not in self._times:
                        with self._open_file(part.file) as content:
                            if content.time is not None:
                                self._times[step] = content.time
        return self._times

    def size(self, place: Place) -> int:
        total = 0
        for part in self._by_place[place]:
            elsewhere = object_of(part.path)
            if elsewhere is not None:
                total += elsewhere.size
                continue
            with contextlib.suppress(OSError):
                total += os.stat(part.path).st_size
        return total

    def entry(self, place: Place) -> object:
        return self._by_place[place]

    def stamp(self, place: Place) -> str:
        import hashlib

        # Names in the folder: where the run lies may differ between processes.
        parts = [
            part.file if isinstance(part.file, str) else part.file.relative for part in self._by_place[place]
        ]
        names = "\0".join(map(os.path.basename, parts) if self.kind == "file" else parts)
        return f"{self.size(place)} {hashlib.sha256(names.encode(errors='surrogateescape')).hexdigest()}"

    def know(self, entries: Mapping[Place, Any]) -> None:
        self._by_place = dict(entries)

    def _open_file(self, file: DataFile | str) -> FileContent:
        options = {k: v for k, v in self._options.items() if k != "format"}
        if "format" in self._options:
            format = self._options["format"]
            return open_file(file, format, **options) if isinstance(file, str) else file.open(options)
        if not isinstance(file, str):
            return file.open_whatever(options)
        return open_whatever(file, self._format, **options)

    def __getstate__(self) -> dict:
        """For other processes, which read headers themselves."""
        return {**self.__dict__, "_plain": None, "_format": None, "_at_hand": None}

    def _plain_file(self, path: str) -> _core.FieldList | None:
        """The fields of a single file, where the core reads its header. Keeps the format of any other."""
        if self._options or os.path.isdir(path):
            return None
        try:
            found = detect(path)
        except TwinrunError:  # is found again, and reported, where it is opened
            return None
        if found is None:
            return None
        self._format = found.name
        return (
            _headers([path], [field_name(path) if found.one_array else ""], found.name)
            if is_plain(found)
            else None
        )

    @contextlib.contextmanager
    def listed(self, place: Place) -> Iterator[Listed | None]:
        yield self._listed(place)

    def listed_together(self, places: Sequence[Place]) -> ListedPlaces | None:
        """The arrays of .npy files. None where a place has anything else."""
        known = format_named("npy")
        if self._options or self.kind != "folder" or known is None or not is_plain(known):
            return None
        paths: list[str] = []
        names: list[str] = []
        counts: list[int] = []
        for place in places:
            before = len(names)
            for part in self._by_place[place]:
                file = part.file
                if isinstance(file, str) or file.format != "npy" or file.leads_to is not None:
                    return None
                if part.step is not None:
                    return None
                paths.append(file.path)
                names.append(file.prefix)
            counts.append(len(names) - before)
            if counts[-1] > 1 and len({*names[before:]}) < counts[-1]:
                return None
        found = _headers(
            paths, names, "npy", unique=False, has_metadata=self._has_metadata, at_hand=self._at_hand
        )
        return None if found is None else ListedPlaces(found, "files", counts, [0] * len(counts))

    def part_of_list(self, place: Place) -> float:
        return len(self._by_place[place]) / _MOST_FILES

    def _listed(self, place: Place) -> Listed | None:
        parts = self._by_place[place]
        if self._plain is not None and self._format is not None:
            return self._with_texts(self._plain, parts, self._format)
        files = [part.file for part in parts if not isinstance(part.file, str)]
        if self._options or len(files) != len(parts) or any(part.step is not None for part in parts):
            return None
        kind = files[0].format
        if any(file.format != kind or file.leads_to is not None for file in files):
            return None
        known = format_named(kind)
        if known is None or not is_plain(known):
            return None
        one_array = one_array_format(kind)
        names = [f.prefix if one_array else f"{f.prefix}/" if f.use_prefix else "" for f in files]
        found = _headers(
            [file.path for file in files], names, kind, has_metadata=self._has_metadata, at_hand=self._at_hand
        )
        return None if found is None else self._with_texts(found, parts, kind)

    def _with_texts(self, plain: _core.FieldList, parts: list[_Part], format: str) -> Listed:
        """The list, with what its files say beside their fields, as `_refs` keeps it."""
        opened = Opened()
        opened.facts = {}
        opened.formats.add(format)
        if one_array_format(format):
            return Listed(plain, "files", opened=opened)
        for part, texts in zip(parts, plain.texts, strict=True):
            owner = ""
            if not isinstance(part.file, str):
                if part.file.use_prefix:
                    owner = part.file.prefix
                else:
                    opened.keep(Fact.of(part.file.label, FILE, format), format)
            for fact in texts_of_header(part.path, texts).facts.values():
                opened.keep(replace(fact, owner=owner), format)
        return Listed(plain, "files", opened=opened)

    @contextlib.contextmanager
    def open(self, place: Place, use_metadata: bool = True, whole: bool = True) -> Iterator[Opened]:
        fields = Opened()
        fields.facts = {}
        with contextlib.ExitStack() as stack:
            for part in self._by_place[place]:
                try:
                    refs = self._refs(part, use_metadata, stack, fields)
                except TwinrunError as error:
                    if whole or isinstance(part.file, str):
                        raise
                    fields.unopened.append(_unopened(part.file, error))
                    continue
                for ref in refs:
                    if ref.name in fields:
                        raise FormatError(
                            f"field {ref.name!r} is in {fields[ref.name].where} too, at the same step and rank",
                            where=part.path,
                            fix="rename one of them, or compare single files",
                        )
                    fields[ref.name] = ref
            yield fields

    def _refs(
        self, part: _Part, use_metadata: bool, stack: contextlib.ExitStack, opened: Opened
    ) -> list[FieldRef]:
        """Opens a file, which `stack` closes.

        Returns its fields; adds its notes, facts and skipped parts to `opened`.
        """
        path = part.path
        checked_path(path)
        content = stack.enter_context(self._open_file(part.file))
        opened.notes += [f"{path}: {note}" for note in content.notes]
        opened.one_array = opened.one_array or content.one_array
        refs = refs_of_fields({n: f for n, f in content.fields.items() if f.step == part.step}, path)
        only = refs[0].name if content.one_array and len(refs) == 1 else content.array_name
        opened.array_name = only if self.kind == "file" else None
        beside = metadata_path(path)
        if use_metadata and is_metadata(beside, cut=True):
            opened.notes += attach(_core.Metadata(beside), refs, content)
        if part.step is not None:
            refs, notes = _of_step(refs, content, part)
            opened.notes += notes
        name_in_folder = self._naming(part.file, refs, content)
        for ref in refs:
            ref.name = name_in_folder(ref.name)
        if not isinstance(part.file, str) and not content.fields:
            # A file without fields is a field without elements, so that its absence in the other
            # run is a difference.
            label = part.file.label
            refs += refs_of_fields({label: label_field(label)}, path)
        dialect = content.dialect or content.format
        opened.formats.add(dialect)
        opened.models |= {content.model} - {""}
        if not isinstance(part.file, str) and self._needs_file_name(part.file, content):
            opened.keep(Fact.of(part.file.label, FILE, content.format), dialect)
        for fact in content.facts.values():
            if fact.step in (None, part.step):
                opened.keep(replace(fact, owner=name_in_folder(fact.owner)), dialect)
        for name, why in content.skipped:
            in_step = re.match(r"step-(\d+)/", name)
            if in_step is None or int(in_step[1]) == part.step:
                opened.skipped.append((name_in_folder(name[in_step.end() :] if in_step else name), path, why))
        return refs

    @staticmethod
    def _needs_file_name(file: DataFile, content: FileContent) -> bool:
        """Whether a file of one step needs a fact with its name, because the names of its fields do not
        contain it."""
        in_names = file.use_prefix or content.format == BYTES or not content.fields
        named_after = one_array_format(file.format) and len(content.fields) == 1
        return not (in_names or named_after or content.steps())

    @staticmethod
    def _naming(file: DataFile | str, refs: list[FieldRef], content: FileContent) -> Callable[[str], str]:
        """A function from the name of a field in its file to its name in the folder; '' stands for the file
        itself.

        The rules are those of `formats.folder.DataFile`.
        """
        if isinstance(file, str):
            return lambda name: name
        if content.format == BYTES and file.format != BYTES:
            return lambda name: file.relative
        if one_array_format(file.format) and len(refs) == 1:
            only = refs[0].name
            return lambda name: file.prefix if name in (only, "") else f"{file.prefix}/{name}"
        if file.use_prefix:
            return lambda name: f"{file.prefix}/{name}" if name else file.prefix
        return lambda name: name


def _unopened(file: DataFile, error: TwinrunError) -> Unopened:
    """What is known of a file that cannot be opened."""
    in_name = file.use_prefix or one_array_format(file.format)
    return Unopened(file.prefix if in_name else "", file.label, error)


def _headers(
    paths: list[str],
    names: list[str],
    format: str,
    unique: bool = True,
    has_metadata: bool = True,
    at_hand: _core.FilesAtHand | None = None,
) -> _core.FieldList | None:
    """The fields of files, if the core can read all their headers: see `_core.FieldList.of_files`.

    has_metadata: False where no file has metadata beside it, which is looked for otherwise. at_hand: files
    that need not be opened again.
    """
    try:
        "".join((*paths, *names)).encode()
    except UnicodeEncodeError:  # the core takes texts
        return None
    return _core.FieldList.of_files(
        paths, names, format, without_metadata=has_metadata, unique=unique, at_hand=at_hand
    )


def _of_step(refs: list[FieldRef], content: FileContent, part: _Part) -> tuple[list[FieldRef], list[str]]:
    """Renames fields to the names that arrays have in every step. Returns them and notes.

    If a step is in the file several times, its last fields are taken.
    """
    named: dict[str, FieldRef] = {}
    notes: list[str] = []
    for ref in refs:
        series = content.fields[ref.name].series or ref.name
        if series in named:
            notes.append(
                f"{part.path}: {series} of step {part.step} is in the file several times: only the last one is compared"
            )
        ref.name = series
        named[series] = ref
    return list(named.values()), notes


def one_array_format(name: str) -> bool:
    """Whether files of a format usually hold one array, which is named after the file."""
    known = format_named(name)
    return known is not None and known.one_array
