"""What a module's forward changes of the parameters and buffers of its own and of the modules below it."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from .model import Watched

__all__ = ["Changed", "Snapshot", "Subtree", "changed_by"]

_PARAMETER = torch.nn.Parameter
_version_of = operator.attrgetter("_version")
_is_lazy = torch.nn.parameter.is_lazy
_UNCOUNTED = -1  # the version of a tensor whose writes PyTorch does not count
_LAZY = -2  # and of one that has no values yet


class _Place(NamedTuple):
    """Where a tensor is held. number: of the mapping, among those of the subtree."""

    number: int
    key: str


class _Holder(NamedTuple):
    """A mapping that holds parameters or buffers. below: the path of its module, from the top of the subtree.
    own: whether they belong to the top itself.
    """

    held: Mapping[str, Any]
    role: str
    below: str
    own: bool


class Changed(NamedTuple):
    """A tensor that a forward changed. tensor: what is there now; None where it was taken out. counted: False
    where PyTorch does not count writes, so that it may be what it was.
    """

    name: str
    role: str
    tensor: torch.Tensor | None
    counted: bool


class Subtree:
    """The mappings that hold the parameters and buffers of a module and of those below it.

    skips: whether the parameters of a module are left out, as a wrapper puts others in their place while the
    module runs.
    """

    __slots__ = ("_layout", "_places", "has_lazy", "holders", "mappings")

    def __init__(self, top: Watched, skips: Callable[[torch.nn.Module], bool]) -> None:
        self.holders: list[_Holder] = []
        for w in _below(top):
            for path, module in w.holds:
                below = path[len(top.path) :].lstrip(".")
                if not skips(module):
                    self.holders.append(_Holder(module._parameters, "parameter", below, w is top))
                self.holders.append(_Holder(module._buffers, "buffer", below, w is top))
        self.holders.sort(key=lambda holder: holder.role != "parameter")
        self.mappings = [h.held for h in self.holders]
        # The places of the last snapshot, and what they follow from.
        self._places: list[_Place] = []
        self._layout: tuple[list[tuple[str, ...]], list[bool]] = ([], [])
        # Whether some wait for their module's first input. A model that changes gets new subtrees.
        self.has_lazy = any(_is_lazy(t) for h in self.holders for t in h.held.values() if t is not None)

    def now(self) -> tuple[list[torch.Tensor], list[_Place]]:
        """The tensors that are held now, and where. The places are the same object while none has changed."""
        values = [t for held in self.mappings for t in held.values()]
        there = [*map(operator.is_not, values, itertools.repeat(None))]
        # The keys too: one that is taken out and put in again is the last one then.
        layout = [tuple(held.keys()) for held in self.mappings], there
        if layout != self._layout:
            places = [_Place(at, key) for at, keys in enumerate(layout[0]) for key in keys]
            self._layout, self._places = layout, [*itertools.compress(places, there)]
        return [*itertools.compress(values, there)], self._places


def _below(w: Watched) -> Iterator[Watched]:
    yield w
    for other in w.below:
        yield from _below(other)


class Snapshot:
    """Which tensors a subtree holds, and how often each was written.

    It holds them, while the forward runs before which it was made: a buffer that the forward puts another one
    in place of lives until its end. `torch.utils.swap_tensors` refuses tensors that have weak references, and
    an id may be that of another tensor once the first one is gone.
    """

    __slots__ = ("_at", "of", "places", "tensors", "versions")

    def __init__(self, of: Subtree) -> None:
        self.of = of
        self.tensors, self.places = of.now()
        try:
            self.versions = [*map(_version if of.has_lazy else _version_of, self.tensors)]
        except Exception:  # inference tensors have none
            self.versions = [*map(_version, self.tensors)]
        # The numbers of tensors, by what holds them and by themselves.
        # None until a module below has changed something.
        self._at: tuple[dict[tuple[int, str], int], dict[int, list[int]]] | None = None

    def is_as(self, other: Snapshot) -> bool:
        """Whether nothing has changed between two snapshots of a subtree, as far as PyTorch counts."""
        return (
            (self.places is other.places or self.places == other.places)
            and self.versions == other.versions
            and all(map(operator.is_, self.tensors, other.tensors))
            and (not self.versions or min(self.versions) >= 0)
        )

    def take_over(
        self,
        before: Snapshot,
        after: Snapshot,
        changes: Sequence[tuple[int | None, int]],
        gone: Sequence[_Place],
    ) -> None:
        """Takes changes that a module below made for no changes of this module.

        before, after: of that module. changes: numbers there, before and after. gone: places there that hold
        nothing any more.
        """
        if gone:
            left = {(id(before.of.mappings[place.number]), place.key) for place in gone}
            stay = [(id(self.of.mappings[place.number]), place.key) not in left for place in self.places]
            self.places = [*itertools.compress(self.places, stay)]
            self.tensors = [*itertools.compress(self.tensors, stay)]
            self.versions = [*itertools.compress(self.versions, stay)]
            self._at = None
        if self._at is None:
            by_holder: dict[tuple[int, str], int] = {}
            by_tensor: dict[int, list[int]] = {}
            for n, (place, t) in enumerate(zip(self.places, self.tensors, strict=True)):
                by_holder[id(self.of.mappings[place.number]), place.key] = n
                by_tensor.setdefault(id(t), []).append(n)
            self._at = by_holder, by_tensor
        by_holder, by_tensor = self._at
        for old, new in changes:
            tensor, version = after.tensors[new], after.versions[new]
            if old is not None and before.tensors[old] is tensor:
                # It may be held by several modules.
                numbers = by_tensor.get(id(tensor), [])
                same = [n for n in numbers if self._is(n, before, old)]
            else:
                place = after.places[new]
                held = id(after.of.mappings[place.number]), place.key
                at = by_holder.get(held)
                if at is None:
                    number = next((i for i, m in enumerate(self.of.mappings) if id(m) == held[0]), None)
                    if old is None and number is not None:  # it is new
                        by_holder[held] = at = len(self.tensors)
                        self.places = [*self.places, _Place(number, place.key)]
                        self.tensors.append(tensor)
                        self.versions.append(version)
                        by_tensor.setdefault(id(tensor), []).append(at)
                    continue
                same = [at] if old is not None and self._is(at, before, old) else []
                for n in same:
                    by_tensor.setdefault(id(tensor), []).append(n)
            for n in same:
                self.tensors[n], self.versions[n] = tensor, version

    def _is(self, number: int, other: Snapshot, at: int) -> bool:
        return self.tensors[number] is other.tensors[at] and self.versions[number] == other.versions[at]


def _version(t: torch.Tensor) -> int:
    if _is_lazy(t):
        return _LAZY
    try:
        return t._version
    except RuntimeError:
        return _UNCOUNTED


def changed_by(before: Snapshot, above: Sequence[Snapshot]) -> list[Changed]:
    """What changed since a snapshot, each tensor once, and each place that holds none any more.

    As far as PyTorch counts writes: those through `.data` are not counted. Of what it counts no writes, as
    tensors that were made in inference mode, all buffers, and the parameters of the module itself, are given.

    above: the snapshots of the modules that it runs in. They take these changes for none of their own.
    """
    after = Snapshot(before.of)
    if before.is_as(after):
        return []
    if after.places is before.places:
        pairs: list[tuple[int | None, int]] = [(n, n) for n in range(len(after.tensors))]
        gone: list[_Place] = []
    else:
        known = {place: n for n, place in enumerate(before.places)}
        pairs = [(known.get(place), n) for n, place in enumerate(after.places)]
        still = set(after.places)
        gone = [place for place in before.places if place not in still]
    # A module that had no values yet makes them before it runs.
    lazy = {
        before.of.holders[place.number].below
        for place, version in zip(before.places, before.versions, strict=True)
        if version == _LAZY
    }
    found: dict[int, Changed] = {}
    changes: list[tuple[int | None, int]] = []
    for old, new in pairs:
        version = after.versions[new]
        same = old is not None and before.tensors[old] is after.tensors[new]
        if same and version >= 0 and before.versions[old] == version:  # type: ignore[index]
            continue
        place, t = after.places[new], after.tensors[new]
        holder = before.of.holders[place.number]
        if holder.below in lazy:
            continue
        counted = not same or version >= 0
        if counted:
            changes.append((old, new))
        elif holder.role == "parameter" and not holder.own:
            continue
        if not t.is_meta:
            found.setdefault(id(t), Changed(_name(holder, place), holder.role, t, counted))
    holders = before.of.holders
    gone = [place for place in gone if holders[place.number].below not in lazy]
    if changes or gone:
        for one in above:
            one.take_over(before, after, changes, gone)
    removed = [(holders[place.number], place) for place in gone]
    return [*found.values(), *(Changed(_name(h, place), h.role, None, True) for h, place in removed)]


def _name(holder: _Holder, place: _Place) -> str:
    return f"{holder.below}.{place.key}".lstrip(".")
