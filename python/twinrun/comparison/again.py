"""How to open both sides of a comparison again, after it was made."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from .. import _core
from ..errors import TwinrunError
from ..runs.opening import open_subject
from ..runs.subject import Subject
from ..runs.values import InNumbers
from .renames import Rename, Renamed
from .settings import Settings

__all__ = ["Again", "Gone"]


class Gone(TwinrunError):
    """The compared data is gone."""


def _held(what: object) -> object:
    """What is needed to open one side again. Arrays are the caller's: nothing here keeps them alive."""
    if isinstance(what, _core.HeldArrays):
        return what
    if isinstance(what, Subject):
        return what if what.kind != "arrays" else None
    if _is_list(what):
        names = getattr(what, "_fields", None)
        entries = enumerate(what) if names is None else zip(names, what, strict=True)
        return _Container(names is None, [(k, _held(v)) for k, v in entries])
    try:
        return weakref.ref(what)
    except TypeError:
        pass
    if isinstance(what, Mapping):
        return _Container(False, [(k, _held(v)) for k, v in what.items()])
    return _Value(what)  # numbers and texts


def _is_list(what: object) -> TypeGuard[list | tuple]:
    """Whether it is a list or a tuple of arrays."""
    if not isinstance(what, (list, tuple)):
        return False
    from ..runs.containers import is_container  # with NumPy

    return is_container(what)


@dataclass
class _Container:
    """Entries of a list or a mapping, by their keys."""

    is_list: bool
    entries: list[tuple[object, object]]


@dataclass
class _Value:
    value: object


def _there(held: object) -> object:
    """The argument that `_held` took. Raises Gone."""
    if isinstance(held, _Container):
        entries = [(k, _there(v)) for k, v in held.entries]
        return [v for _, v in entries] if held.is_list else dict(entries)
    if isinstance(held, _Value):
        return held.value
    if isinstance(held, _core.HeldArrays):
        found = held.there()
    else:
        found = held() if isinstance(held, weakref.ref) else None
    if found is None:
        raise Gone("the arrays that were compared are gone", fix="keep them until this is done")
    return found


@dataclass
class Again:
    """How to open both sides of a comparison again, and its settings."""

    a: object
    b: object
    settings: Settings
    globs: list[str] | None
    key: str | None
    use_metadata: bool
    steps: str | None
    ranks: str | None
    align: str
    options: Mapping[str, object] | None
    stream: object
    renames: tuple[Rename, ...] = ()

    @classmethod
    def of(cls, a: object, b: object, settings: Settings, **asked: Any) -> Again:
        """Takes paths and arrays as `compare` does, or arrays that are held; arrays are not kept alive."""
        held_a, held_b = (
            os.path.abspath(s) if isinstance(s, (str, os.PathLike)) else _held(s) for s in (a, b)
        )
        return cls(held_a, held_b, settings, **asked)

    def __getstate__(self) -> dict:
        state = dict(self.__dict__)  # arrays are not pickled
        state.update({k: None for k in ("a", "b") if not isinstance(state[k], str)}, stream=None)
        return state

    def open(self) -> tuple[Subject, Subject]:
        """Opens both sides. Raises TwinrunError where one is gone."""
        a: Subject = self._side(self.a)
        b: Subject = self._side(self.b)
        if self.settings.by_values:
            a, b = InNumbers(a), InNumbers(b)
        return a, Renamed(b, self.renames) if self.renames else b

    def _side(self, held: object) -> Subject:
        if isinstance(held, (str, Subject)):
            return open_subject(held, self.options, self.stream)
        return open_subject(_there(held), self.options, self.stream)
