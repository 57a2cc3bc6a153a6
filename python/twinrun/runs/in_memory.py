"""Arrays of a program as a subject."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from .. import _core
from ..errors import TwinrunError, Uncompared, Unsupported
from ..formats.element_types import dtype_of, unit_of
from ..formats.layout import kind_of
from ..formats.model import coded
from .arrays import ArrayView, bits_of_small, taken
from .containers import Texts, flattened, is_container, state_of
from .fields import FieldRef, refs_of_fields
from .subject import Listed, Opened, Place, Subject, Unopened

__all__ = ["Arrays", "open_and_start", "open_arrays"]

_ALONE = "array"  # the name of an array that was given alone


class Arrays(Subject):
    """Arrays by name.

    plain: those that the core takes as a list, and beside them the rest; None where it takes none. problems:
    what else is there, which cannot be compared, by name.
    """

    def __init__(
        self,
        arrays: Mapping[str, object] | _core.FieldList,
        label: str,
        one_array: bool = False,
        stream: object = None,
        problems: Iterable[tuple[str, TwinrunError]] = (),
    ) -> None:
        super().__init__("arrays", label, [(None, 0)])
        self._one_array = one_array
        self._stream = stream
        self._problems = [Unopened(name, name, error) for name, error in problems]
        self.plain = arrays if isinstance(arrays, _core.FieldList) else None
        self._refs = None if isinstance(arrays, _core.FieldList) else self._fields(arrays)

    def _fields(self, arrays: Mapping[str, object]) -> dict[str, FieldRef]:
        refs: dict[str, FieldRef] = {}
        for name, array in arrays.items():
            if isinstance(array, (np.ndarray, np.generic)) and _is_wide(array.dtype):
                refs.update((ref.name, ref) for ref in _wide(name, array, self.label))
                continue
            try:
                bits, kind = bits_of_small(array)
                v = taken(name, bits, self._stream)
            except TwinrunError as problem:
                if not isinstance(problem, Unsupported):  # it has values: `common` must not leave them out
                    problem = Uncompared(problem.what, where=problem.where, fix=problem.fix)
                self._problems.append(Unopened(name, name, problem))
                continue
            ref = FieldRef(name, v.dtype, "little", v.shape, v.fortran_order, self.label, memory=v)
            ref.kind = kind
            if isinstance(v, ArrayView):
                ref.unit = unit_of(v.owner.dtype)
            if isinstance(array, Texts):
                ref.text = array.text
            refs[name] = ref
        return refs

    @contextlib.contextmanager
    def open(self, place: Place, use_metadata: bool = True, whole: bool = True) -> Iterator[Opened]:
        if self._refs is None:
            assert self.plain is not None
            self._refs = self._fields(self.plain.arrays())
        if whole and self._problems:
            raise self._problems[0].error
        opened = Opened(self._refs)
        opened.unopened = list(self._problems)
        opened.one_array, opened.array_name = self._one_array, "array" if self._one_array else None
        yield opened

    @contextlib.contextmanager
    def listed(self, place: Place) -> Iterator[Listed | None]:
        if self.plain is None:
            yield None
            return
        rest = self.plain.rest
        yield Listed(
            self.plain,
            kind="arrays",
            rest=Arrays(rest, self.label, stream=self._stream) if rest else None,
            rest_places=dict(zip(rest, self.plain.rest_places, strict=True)),
        )


def _is_wide(dtype: np.dtype) -> bool:
    """Whether these are long doubles, for which the core has no type."""
    return dtype.char in "gG" and dtype_of(dtype) is None


def _wide(name: str, array: np.ndarray | np.generic, label: str) -> list[FieldRef]:
    """Long doubles, as readers of files take them: by their codes, so that they are equal or different."""
    flat = np.ascontiguousarray(array).reshape(-1)
    field = coded(
        name, kind_of(array.dtype), array.shape, label, lambda first, count: flat[first : first + count]
    )
    return refs_of_fields({name: field}, label)


def open_arrays(what: object, stream: object = None) -> Arrays:
    """An array or a container of arrays as a subject (see `containers`). Raises TwinrunError."""
    what = state_of(what)
    # The stream of the caller's is for arrays of any package; a list follows PyTorch's own.
    return _opened(what, _core.FieldList.of_arrays(_listed(what), flattened, stream is None), stream)


def _is_alone(what: object) -> bool:
    """Whether this is one array, of a kind that the core takes as a list of one."""
    if type(what) is np.ndarray:
        return what.dtype.kind in "biufc"
    torch = sys.modules.get("torch")  # another thread may be loading it
    parameter = getattr(getattr(torch, "nn", None), "Parameter", None)
    return type(what) in (getattr(torch, "Tensor", None), parameter)


def _listed(what: object) -> object:
    """What the core is asked to take as a list: a container, or one of an array alone."""
    return {_ALONE: what} if _is_alone(what) else what


def _opened(what: object, plain: _core.FieldList | None, stream: object) -> Arrays:
    is_alone = _is_alone(what)
    if plain is not None and is_alone and not plain.rest:
        return Arrays(plain, _ALONE, one_array=True, stream=stream)
    if plain is not None and not is_alone and type(what) is not np.ndarray:
        return Arrays(plain, "arrays", stream=stream)
    if is_container(what):
        problems: list[tuple[str, TwinrunError]] = []
        named = flattened("", what, "arrays", problems=problems)
        if not named:
            raise problems[0][1] if problems else TwinrunError("an empty container has nothing to compare")
        return Arrays(named, "arrays", stream=stream, problems=problems)
    named = flattened(_ALONE, what)
    return Arrays(named, _ALONE, one_array=list(named) == [_ALONE], stream=stream)


def open_and_start(
    a: object,
    b: object,
    of_floating: _core.Rule,
    of_others: _core.Rule,
    options: _core.CompareOptions,
    may_leave: bool,
) -> tuple[Arrays, Arrays, _core.StartedPairs | None]:
    """`open_arrays` of two containers, whose arrays on devices are compared meanwhile: see
    `_core.start_lists`.
    """
    a, b = state_of(a), state_of(b)
    list_a, list_b, started = _core.start_lists(
        _listed(a), _listed(b), flattened, True, of_floating, of_others, options, may_leave
    )
    return _opened(a, list_a, None), _opened(b, list_b, None), started
