"""Documents that people write in TOML: read whole, and checked against a description of their keys.

The description is a class of msgspec (`Struct`): keys with their types, ranges and defaults. Where
a document does not fit, `checked` looks for the innermost key that is wrong, and says which it is,
what it must be, and what it is:

    study.toml: engine.kind must be one of local, mpirun, psij, not 'mpirunn'; did you mean mpirun?

Values that have a form of their own are classes with a classmethod `of(value)`, which raises
ValueError: its text follows the key. A Struct's `__post_init__` may raise ValueError too: its text
begins with a key of the table.

msgspec is imported only where a document is checked.
"""

from __future__ import annotations

import os
import stat
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar, Union

from .errors import DamagedFile, FormatError, MissingFile, MissingPackage, TwinrunError

__all__ = ["Text", "Words", "checked", "nearest", "read_toml"]

_LARGEST = 16 << 20  # bytes of a file


def read_toml(path: str | os.PathLike[str], what: str = "file") -> dict[str, Any]:
    """The content of a TOML file. what: the word for it in messages.

    Raises MissingFile; DamagedFile where it is no TOML; TwinrunError where it cannot be read.
    """
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        try:
            import tomli as tomllib
        except ModuleNotFoundError:
            raise MissingPackage.of("tomli", "tomli", path) from None
    try:
        kind = os.stat(path).st_mode
        if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):  # reading a pipe would block
            raise TwinrunError("is not a regular file", where=path, fix="write its content to a file first")
        with open(path, "rb") as file:
            text = file.read(_LARGEST + 1)
    except FileNotFoundError:
        raise MissingFile(f"there is no such {what}", where=path, fix="check the path") from None
    except OSError as e:
        raise FormatError.of_system(e, path) from None
    if len(text) > _LARGEST:
        raise TwinrunError(f"has more than {_LARGEST} bytes", where=path, fix=f"is this a {what}?")
    try:
        return tomllib.loads(text.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as e:
        raise DamagedFile(f"is not TOML: {e}", where=path) from None
    except ValueError:  # Python reads integers of 4300 digits, and TOML has those of 64 bits
        raise DamagedFile("is not TOML: an integer has too many digits", where=path) from None


def nearest(word: str, known: Iterable[str]) -> str | None:
    """ "did you mean X?" where a known word resembles this one."""
    import difflib

    found = difflib.get_close_matches(word, list(known), 1)
    return f"did you mean {found[0]}?" if found else None


# ---- values with a form of their own -------------------------------------------------------------


class Text(str):
    """A text; of a number or a boolean, as TOML writes it."""

    @classmethod
    def of(cls, value: object) -> Text:
        """Raises ValueError for tables, lists and dates."""
        if isinstance(value, bool):
            return cls("true" if value else "false")
        if isinstance(value, (str, int, float)):
            return cls(value)
        raise ValueError(f"must be a text or a number, not {value!r:.60}")


class Words(tuple[str, ...]):
    """Words of a command: a list of texts and numbers, or one text that is split as a shell would."""

    @classmethod
    def of(cls, value: object) -> Words:
        """Raises ValueError for other values, and for quotes without an end."""
        if isinstance(value, str):
            import shlex

            try:
                return cls(shlex.split(value))
            except ValueError as e:
                raise ValueError(f"cannot be split into words: {e}") from None
        if isinstance(value, list):
            return cls(str(Text.of(word)) for word in value)
        raise ValueError(f"must be a text or a list of texts, not {_shown(value)}")


# ---- documents against their description ---------------------------------------------------------

_Kind = TypeVar("_Kind")
_UNKNOWN = "is not understood"


def checked(
    document: object, kind: type[_Kind], path: str | os.PathLike[str], keys: str | None = None
) -> _Kind:
    """A document as an object of this class. keys: where all keys are listed, for messages about
    unknown ones.

    Raises TwinrunError for the first key that is unknown, missing or wrong.
    """
    import msgspec

    try:
        return msgspec.convert(document, kind, dec_hook=_made)
    except msgspec.ValidationError as e:
        name, what, fix = _fault(document, kind, "") or ("", str(e), None)
        if what == _UNKNOWN:
            fix = fix or keys
        raise TwinrunError(f"{name or 'the file'} {what}", where=path, fix=fix) from None


def _made(kind: Any, value: object) -> object:
    return kind.of(value)


_Fault = tuple[str, str, str | None]  # the key, what is wrong with it, what to do


def _fault(value: object, kind: Any, name: str) -> _Fault | None:
    """The innermost part that is wrong; None where the value fits."""
    import msgspec

    try:
        msgspec.convert(value, kind, dec_hook=_made)
        return None
    except msgspec.ValidationError as e:
        cause = e.__cause__
    plain, _ = _alternative(value, kind)
    if isinstance(value, Mapping) and _is_struct(plain):
        fault = _fault_of_keys(value, plain, name)
        if fault is None and cause is not None:  # keys that contradict each other
            key, _, what = str(cause).partition(" ")
            fault = _joined(name, key), what, None
        if fault is not None:
            return fault
    if isinstance(value, Mapping) and typing.get_origin(plain) is dict:
        for key in value:
            if fault := _fault(key, typing.get_args(plain)[0], ""):
                return name, f"has the name {key!r:.60}, which {fault[1].partition(', not ')[0]}", None
    for inner, part, its_kind in _parts(value, plain, name):
        if fault := _fault(part, its_kind, inner):
            return fault
    if cause is not None:
        return name, str(cause), None
    choices = typing.get_args(plain) if typing.get_origin(plain) is Literal else ()
    near = nearest(value, choices) if isinstance(value, str) else None
    return name, f"must be {_wanted(kind, name)}, not {_shown(value)}", near


def _fault_of_keys(table: Mapping, kind: Any, name: str) -> _Fault | None:
    """The first key that is unknown, wrong, or missing."""
    from msgspec.structs import fields

    hints = typing.get_type_hints(kind, include_extras=True)
    own = {field.encode_name: field for field in fields(kind)}
    for key, value in table.items():
        inner = _joined(name, str(key))
        if key not in own:
            return inner, _UNKNOWN, nearest(str(key), own)
        if fault := _fault(value, hints[own[key].name], inner):
            return fault
    for key, field in own.items():
        if field.required and key not in table:
            return _joined(name, key), "is missing", f"it is {_wanted(hints[field.name], key)}"
    return None


def _parts(value: object, kind: Any, name: str) -> Iterator[tuple[str, object, Any]]:
    """Parts of a list, or of a table whose keys are names that the user gives."""
    arguments = typing.get_args(kind)
    if isinstance(value, list) and typing.get_origin(kind) in (list, tuple):
        if not (_is_struct(arguments[0]) and not all(isinstance(x, Mapping) for x in value)):
            yield from ((f"{name}[{n}]", x, arguments[0]) for n, x in enumerate(value, 1))
    elif isinstance(value, Mapping) and typing.get_origin(kind) is dict:
        yield from ((_joined(name, key), x, arguments[1]) for key, x in value.items())


def _joined(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key


def _is_struct(kind: object) -> bool:
    return hasattr(kind, "__struct_fields__")


def _bare(kind: Any) -> tuple[Any, Any]:
    """A type without its Meta, and the Meta."""
    if typing.get_origin(kind) is Annotated:
        return typing.get_args(kind)[0], kind.__metadata__[0]
    return kind, None


def _of_union(kind: Any) -> list[Any]:
    """The alternatives of a type, without None."""
    if typing.get_origin(kind) in (Union, types.UnionType):
        return [x for x in typing.get_args(kind) if x is not type(None)]
    return [kind]


def _alternative(value: object, kind: Any) -> tuple[Any, Any]:
    """The alternative of a type that a value was meant for, without its Meta, and the Meta."""
    found = [_bare(x) for x in _of_union(_bare(kind)[0])]
    for plain, meta in found:
        origin = typing.get_origin(plain)
        if (isinstance(value, list) and origin in (list, tuple)) or (
            isinstance(value, Mapping) and (origin is dict or _is_struct(plain))
        ):
            return plain, meta
    return found[0]


_WORDS = {bool: "true or false", int: "an integer", float: "a number", str: "a text"}


def _wanted(kind: Any, name: str) -> str:
    """What a value of this type must be."""
    plain, meta = _bare(kind)
    if len(every := _of_union(plain)) > 1 or every[0] is not plain:
        return " or ".join(dict.fromkeys(_wanted(x, name) for x in every))
    origin, arguments = typing.get_origin(plain), typing.get_args(plain)
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin in (list, tuple):
        return f"tables, [[{name}]]" if _is_struct(arguments[0]) else "a list"
    if origin is dict or _is_struct(plain):
        return "a table"
    said = (meta.description if meta is not None else None) or _WORDS.get(plain, "a text")
    if meta is not None and meta.ge is not None:
        said += f" from {meta.ge:g}" if plain is float else f" from {meta.ge}"
        if meta.le is not None:
            said += f" to {meta.le:g}" if plain is float else f" to {meta.le}"
    return said


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value!r:.60}"
