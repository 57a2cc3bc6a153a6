"""The manifest of a folder of golden files, golden.json: what was kept, for which tolerances.

It is not trusted.
"""

from __future__ import annotations

import fnmatch
import json
import math
import os
import re
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .. import _core
from ..comparison.settings import Decision
from ..errors import DamagedFile, FormatError, MissingFile, TwinrunError, Unsupported
from ..formats import pointers
from ..formats.element_types import COMPLEX, FLOATING, ITEMSIZE
from ..formats.files import file_size
from ..marks import GOLDEN_MANIFEST as MANIFEST
from ..marks import METADATA_MAGIC
from .selection import is_chosen

__all__ = [
    "MANIFEST",
    "VERSION",
    "GoldenAttribute",
    "GoldenFieldFacts",
    "GoldenFile",
    "GoldenPlace",
    "Manifest",
    "checksum",
    "is_golden_file",
    "is_manifest",
]

VERSION = 2
_PLAIN_VERSION = 1  # of manifests without what version 2 added, so that older readers know them
_FORMAT = "twinrun golden"
_MOST_BYTES = 1 << 28
_FILE = re.compile(r"[A-Za-z0-9_-]{1,80}\.twm")
_VALUES_FILE = re.compile(r"[A-Za-z0-9_-]{1,80}\.twv")
_ANY_FILE = re.compile(r"[A-Za-z0-9_-]{1,80}\.tw[mv]")
_MOST_ULPS = (1 << 64) - 2
_DIGITS = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class GoldenFieldFacts:
    """A field as it was saved.

    shape: as the user knows it. atol, rtol: the checked tolerance; digests have another. ulps, period,
    equal_nan: as in `Decision`. key: the field with the IDs of its rows, in whose order these are.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    fortran_order: bool
    atol: float
    rtol: float
    ulps: int | None = None
    period: tuple[float, ...] = ()
    equal_nan: bool = True
    key: str | None = None

    @property
    def decision(self) -> Decision:
        """What counts as different in it, for elements row by row."""
        return Decision(self.atol, self.rtol, self.ulps, self.period, 1, self.equal_nan)

    def added(self) -> dict[str, Any]:
        """What version 2 of the manifest says of it."""
        said = {"ulp": self.ulps, "period": list(self.period), "nan_differs": not self.equal_nan}
        return {
            key: value for key, value in {**said, "key": self.key}.items() if value not in (None, [], False)
        }


@dataclass(frozen=True)
class GoldenFile:
    """A file beside the manifest, by name: its size and checksum."""

    file: str
    bytes: int
    xxh3: str


@dataclass(frozen=True)
class GoldenAttribute:
    """An attribute, or another fact of a file: see `formats.facts`.

    digest: of its value; text: the value as text.
    """

    owner: str
    name: str
    digest: str
    text: str
    meaning: bool

    @property
    def label(self) -> str:
        """'x@units'."""
        return f"{self.owner}@{self.name}"


@dataclass(frozen=True)
class GoldenPlace:
    """The fields of one step and rank, and the file of their digests.

    attributes: facts of the files beside their elements; None for arrays, which have none, and for
    golden files of a version that did not keep attributes (then not `knows_attributes`). values: the file
    with the values of small fields; None where there is none. by_id: it holds the rows of all ranks, in the
    order of their IDs.
    """

    step: int | None
    rank: int
    file: str
    bytes: int
    xxh3: str
    one_array: bool
    fields: tuple[GoldenFieldFacts, ...]
    attributes: tuple[GoldenAttribute, ...] | None = None
    knows_attributes: bool = True
    values: GoldenFile | None = None
    by_id: bool = False

    def files(self) -> list[GoldenFile]:
        """The files of the place."""
        digests = GoldenFile(self.file, self.bytes, self.xxh3)
        return [digests] if self.values is None else [digests, self.values]


def is_manifest(path: str) -> bool:
    """Whether a regular file, no link, names itself a manifest of golden files; it may be damaged
    otherwise.
    """
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode) or os.path.getsize(path) > _MOST_BYTES:
            return False
        with open(path, "rb") as file:
            said = json.loads(file.read())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(said, dict) and said.get("format") == _FORMAT


def is_golden_file(path: str) -> bool:
    """Whether a regular file, no link, begins like a metadata file, and is not metadata of data
    files, which it would name.

    A file that is damaged behind its first bytes counts.
    """
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return False
        with open(path, "rb") as file:
            if file.read(len(METADATA_MAGIC)) != METADATA_MAGIC:
                return False
        return not _core.Metadata(path).data_files
    except OSError:
        return False
    except TwinrunError:
        return True


@dataclass(frozen=True)
class Manifest:
    """The content of a folder of golden files.

    chosen_fields, chosen_steps: what `save` was asked to keep; None for everything. left_out,
    ignored_attributes: globs of fields, and of attributes, that it was asked to leave out. key: the
    field, or glob, with the IDs of particles, by which rows are ordered. replacing: other files of twinrun
    that may lie in the folder while `save` puts new ones into their places (`folder.put_in_place`).
    """

    places: tuple[GoldenPlace, ...]
    residue_bits: int
    chunk_bytes: int
    chosen_fields: tuple[str, ...] | None = None
    chosen_steps: str | None = None
    provenance: dict[str, dict[str, str]] | None = None
    twinrun: str = ""
    left_out: tuple[str, ...] = ()
    ignored_attributes: tuple[str, ...] = ()
    key: str | None = None
    replacing: tuple[GoldenFile, ...] = ()

    @property
    def version(self) -> int:
        """The smallest version of the format that can say all of it."""
        new = self.key is not None or any(
            not p.fields or any(f.added() for f in p.fields) for p in self.places
        )
        return VERSION if new else _PLAIN_VERSION

    def with_names(self, names: Mapping[str, str]) -> Manifest:
        """The same with other names of files: {name: new one}."""

        def named(place: GoldenPlace) -> GoldenPlace:
            values = place.values
            if values is not None:
                values = replace(values, file=names.get(values.file, values.file))
            return replace(place, file=names.get(place.file, place.file), values=values)

        return replace(self, places=tuple(map(named, self.places)))

    def keeps(self, name: str) -> bool:
        """Whether `save` was asked to keep a field of this name."""
        if any(fnmatch.fnmatchcase(name, glob) for glob in self.left_out):
            return False
        return is_chosen(name, self.chosen_fields)

    def text(self) -> str:
        """JSON with a line for each field, so that small changes are small in a diff."""
        head: dict[str, Any] = {
            "format": _FORMAT,
            "version": self.version,
            "twinrun": self.twinrun,
            "residue_bits": self.residue_bits,
            "chunk_bytes": self.chunk_bytes,
            "chosen_fields": None if self.chosen_fields is None else list(self.chosen_fields),
            "chosen_steps": self.chosen_steps,
            "left_out": list(self.left_out),
            "ignored_attributes": list(self.ignored_attributes),
            "provenance": self.provenance,
        }
        if self.key is not None:
            head["key"] = self.key
        if self.replacing:
            head["replacing"] = [vars(file) for file in self.replacing]
        lines = ["{"]
        lines += [f" {json.dumps(k)}: {json.dumps(v, sort_keys=True)}," for k, v in head.items()]
        lines.append(' "places": [')
        for at, place in enumerate(self.places):
            facts: dict[str, Any] = {"step": place.step, "rank": place.rank, "file": place.file, "bytes": place.bytes,
                     "xxh3": place.xxh3, "one_array": place.one_array}  # fmt: skip
            if place.values is not None:
                facts["values"] = vars(place.values)
            if place.by_id:
                facts["by_id"] = True
            inner = ", ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in facts.items())
            lines.append(f'  {{{inner}, "fields": [')
            for n, f in enumerate(place.fields):
                fact = {"name": f.name, "dtype": f.dtype, "shape": list(f.shape), "fortran_order": f.fortran_order,
                        "atol": f.atol, "rtol": f.rtol, **f.added()}  # fmt: skip
                lines.append("   " + json.dumps(fact) + ("," if n + 1 < len(place.fields) else ""))
            end = "," if at + 1 < len(self.places) else ""
            if not place.knows_attributes:
                lines.append("  ]}" + end)
                continue
            if place.attributes is None:
                lines.append('  ], "attributes": null}' + end)
                continue
            lines.append('  ], "attributes": [')
            for n, a in enumerate(place.attributes):
                said = {
                    "owner": a.owner,
                    "name": a.name,
                    "digest": a.digest,
                    "text": a.text,
                    "meaning": a.meaning,
                }
                lines.append("   " + json.dumps(said) + ("," if n + 1 < len(place.attributes) else ""))
            lines.append("  ]}" + end)
        whole = json.loads("\n".join([*lines, " ]", "}"]))
        return "\n".join([*lines, " ],", f' "checksum": "{_checksum(whole)}"', "}", ""])

    @classmethod
    def read(cls, folder: str) -> Manifest:
        """Reads the manifest of a folder. Raises MissingFile, DamagedFile, Unsupported."""
        path = os.path.join(folder, MANIFEST)
        try:
            if os.path.exists(path) and file_size(path) > _MOST_BYTES:
                raise DamagedFile("is too large for a manifest", where=path, fix=_RESTORE)
            with open(path, "rb") as file:
                content = file.read()
        except FileNotFoundError:
            raise MissingFile(
                "no such file", where=path, fix="make it with: twinrun golden save RUN --output FOLDER"
            ) from None
        except NotADirectoryError:
            raise FormatError(
                "is a file, and no folder of golden files",
                where=folder,
                fix="make one with: twinrun golden save RUN --output FOLDER",
            ) from None
        except OSError as e:
            raise FormatError.of_system(e, path) from None
        return cls.parse(content, path)

    @classmethod
    def parse(cls, content: bytes, path: str) -> Manifest:
        """Reads the bytes of a manifest; path: for messages. Raises DamagedFile, Unsupported."""
        if not content.strip():
            raise DamagedFile("is empty", where=path, fix=_RESTORE)
        try:
            d = json.loads(content.decode("utf-8"))
        except (ValueError, RecursionError) as e:
            damaged = DamagedFile(f"is not JSON: {e}", where=path, fix=_RESTORE)
            raise pointers.error_of(content[: pointers.LARGEST], path) or damaged from None
        try:
            _need(isinstance(d, dict) and d.get("format") == _FORMAT, "is no manifest of golden files")
            version = d.get("version")
            _need(type(version) is int and version > 0, "has no version")
            if version not in (_PLAIN_VERSION, VERSION):
                raise Unsupported(
                    f"has version {version}, and this twinrun reads versions {_PLAIN_VERSION} and {VERSION}",
                    where=path,
                    fix="update twinrun",
                )
            said = d.pop("checksum", None)
            _need(said == _checksum(d), "has another checksum than content: it is damaged, or was edited")
            return cls._of(d, version)
        except _Wrong as e:
            raise DamagedFile(str(e), where=path, fix=_RESTORE) from None

    @classmethod
    def _of(cls, d: Any, version: int) -> Manifest:
        """The manifest of a JSON object. Raises _Wrong."""
        places = _places(d, version)
        fields = d.get("chosen_fields")
        _need(fields is None or _is_texts(fields), "has wrong chosen_fields")
        steps = d.get("chosen_steps")
        _need(steps is None or isinstance(steps, str), "has wrong chosen_steps")
        left_out = d.get("left_out", [])
        _need(_is_texts(left_out), "has wrong left_out")
        ignored = d.get("ignored_attributes", [])
        _need(_is_texts(ignored), "has wrong ignored_attributes")
        bits, chunk = d.get("residue_bits"), d.get("chunk_bytes")
        _need(type(bits) is int and bits in (0, 2, 4), "has wrong residue_bits")
        _need(type(chunk) is int and 4096 <= chunk <= 1 << 20, "has a wrong chunk_bytes")
        provenance = d.get("provenance")
        _need(provenance is None or isinstance(provenance, dict), "has a wrong provenance")
        key = d.get("key") if version > _PLAIN_VERSION else None
        _need(key is None or (isinstance(key, str) and bool(key)), "has a wrong key")
        _need(key is not None or not any(p.by_id for p in places), "has no key of its particles")
        replacing = [] if d.get("replacing") is None else _list(d, "replacing")
        said = d.get("twinrun")
        return cls(
            places,
            bits,
            chunk,
            None if fields is None else tuple(fields),
            steps,
            provenance,
            said if isinstance(said, str) else "",
            tuple(left_out),
            tuple(ignored),
            key,
            tuple(_file(f, _ANY_FILE) for f in replacing),
        )


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _places(d: dict, version: int) -> tuple[GoldenPlace, ...]:
    """Raises _Wrong where there are none, or one or a file is there twice."""
    places = tuple(_place(p, version) for p in _list(d, "places"))
    _need(len({(p.step, p.rank, p.by_id) for p in places}) == len(places), "has a place twice")
    names = [f.file for p in places for f in p.files()]
    _need(len({*names}) == len(names), "has a file twice")
    _need(bool(places), "has no places")
    return places


_RESTORE = "restore it, or save again with 'twinrun golden save'"


class _Wrong(Exception):
    pass


def _need(true: bool, said: str) -> None:
    if not true:
        raise _Wrong(said)


def _given(d: dict, name: str) -> Any:
    """As the document has it: anything, until it is checked."""
    return d.get(name)


def _list(d: dict, name: str) -> list:
    value = _given(d, name)
    _need(isinstance(value, list) and all(isinstance(v, dict) for v in value), f"has no list of {name}")
    return value


def _place(d: dict, version: int) -> GoldenPlace:
    step, rank = _given(d, "step"), _given(d, "rank")
    _need(step is None or (type(step) is int and -(1 << 63) <= step < 1 << 63), "has a wrong step")
    _need(type(rank) is int and 0 <= rank < 1 << 32, "has a wrong rank")
    digests = _file(d, _FILE)
    values = _given(d, "values")
    _need(values is None or isinstance(values, dict), "has wrong values")
    by_id = _given(d, "by_id") if version > _PLAIN_VERSION else None
    _need(by_id is None or type(by_id) is bool, "has a wrong by_id")
    _need(type(d.get("one_array")) is bool, "has a wrong one_array")
    fields = tuple(_field(f, version) for f in _list(d, "fields"))
    _need(len({f.name for f in fields}) == len(fields), "has a field twice")
    _need(bool(fields) or version > _PLAIN_VERSION, "has a place without fields")
    told = d.get("attributes")
    attributes = None if told is None else tuple(_attribute(a) for a in _list(d, "attributes"))
    _need(all((f.key is not None) == bool(by_id) for f in fields), "has a field with a wrong key")
    known = {f.name: len(f.shape) for f in fields}
    _need(all(f.key is None or known.get(f.key) == 1 for f in fields), "has a field without its key")
    return GoldenPlace(
        step,
        rank,
        digests.file,
        digests.bytes,
        digests.xxh3,
        d["one_array"],
        fields,
        attributes,
        "attributes" in d,
        None if values is None else _file(values, _VALUES_FILE),
        bool(by_id),
    )


def _file(d: dict, named: re.Pattern[str]) -> GoldenFile:
    file, size, digest = _given(d, "file"), _given(d, "bytes"), _given(d, "xxh3")
    _need(
        isinstance(file, str) and named.fullmatch(file) is not None, "names a file that is not one of its own"
    )
    _need(type(size) is int and 0 <= size < 1 << 62, "has a wrong size")
    _need(isinstance(digest, str) and _DIGITS.fullmatch(digest) is not None, "has a wrong checksum")
    return GoldenFile(file, size, digest)


def _attribute(d: dict) -> GoldenAttribute:
    owner, name, digest, text = (_given(d, key) for key in ("owner", "name", "digest", "text"))
    told = all(isinstance(t, str) for t in (owner, name, digest, text))
    _need(told, "has an attribute without owner, name, digest or text")
    _need(re.fullmatch(r"[0-9a-f]{32}", digest) is not None, "has a wrong digest of an attribute")
    _need(type(d.get("meaning")) is bool, "has a wrong meaning")
    return GoldenAttribute(owner, name, digest, text, d["meaning"])


def _field(d: dict, version: int) -> GoldenFieldFacts:
    name, dtype, shape = _given(d, "name"), _given(d, "dtype"), _given(d, "shape")
    _need(isinstance(name, str), "has a field without a name")
    _need(isinstance(dtype, str) and dtype in ITEMSIZE, "has a field of an unknown type")
    _need(
        isinstance(shape, list)
        and len(shape) <= 32
        and all(type(n) is int and 0 <= n < 1 << 60 for n in shape),
        "has a wrong shape",
    )
    _need(math.prod(shape) < 1 << 60, "has a wrong shape")
    _need(type(d.get("fortran_order")) is bool, "has a wrong fortran_order")
    atol, rtol = _given(d, "atol"), _given(d, "rtol")
    for key, value in (("atol", atol), ("rtol", rtol)):
        _need(type(value) in (int, float) and 0 <= value <= sys.float_info.max, f"has a wrong {key}")
    facts = GoldenFieldFacts(name, dtype, tuple(shape), d["fortran_order"], float(atol), float(rtol))
    return facts if version == _PLAIN_VERSION else _with_added(facts, d)


def _with_added(facts: GoldenFieldFacts, d: dict) -> GoldenFieldFacts:
    """What version 2 says of a field besides."""
    ulps, period, key = _given(d, "ulp"), _given(d, "period"), _given(d, "key")
    _need(ulps is None or (type(ulps) is int and 0 <= ulps <= _MOST_ULPS), "has a wrong ulp")
    lengths = [] if period is None else period
    _need(isinstance(lengths, list) and len(lengths) <= 4, "has a wrong period")
    for length in lengths:
        _need(type(length) in (int, float) and 0 <= length <= sys.float_info.max, "has a wrong period")
    _need(len(lengths) < 2 or facts.shape[-1:] == (len(lengths),), "has a period of other components")
    _need(type(d.get("nan_differs", False)) is bool, "has a wrong nan_differs")
    _need(key is None or isinstance(key, str), "has a wrong key")
    plain = facts.dtype not in FLOATING or facts.dtype in COMPLEX
    _need(not (plain and lengths), "has a period of a field that cannot have one")
    _need(facts.dtype in FLOATING or ulps is None, "has an ulp of a field that cannot have one")
    return replace(
        facts,
        ulps=ulps,
        period=tuple(map(float, lengths)),
        equal_nan=not d.get("nan_differs", False),
        key=key,
    )


def _checksum(document: dict) -> str:
    """The checksum of the content, independent of its line breaks."""
    return checksum(json.dumps(document, sort_keys=True).encode())


def checksum(content: bytes) -> str:
    """XXH3 as 16 digits."""
    return f"{_core.xxh3(content):016x}"
