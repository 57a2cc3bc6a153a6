"""Memory that nobody wrote: what it holds differs from run to run, and means nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, TypeAlias

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from .values import tensors_of

__all__ = ["UnwrittenMemory", "written_words"]

_FEW = 64

_Mask: TypeAlias = "torch.Tensor | None"  # which elements were written; None: all of them
_Masks: TypeAlias = "_Mask | list[_Mask]"  # of a result; of one that is a list, one of each tensor
_Named = Mapping[str, Any]

# How operations that write some elements mark them: (mask of the first argument, arguments).
_PARTS: dict[str, Callable[[torch.Tensor, _Named], object]] = {
    "index_put_": lambda m, a: _put(m, a),
    "_index_put_impl_": lambda m, a: _put(m, a),
    "scatter_": lambda m, a: None if a.get("reduce") else m.scatter_(a["dim"], a["index"].cpu(), True),
    "index_copy_": lambda m, a: m.index_fill_(a["dim"], a["index"].cpu(), True),
    "index_fill_": lambda m, a: m.index_fill_(a["dim"], a["index"].cpu(), True),
    "masked_fill_": lambda m, a: m.masked_fill_(a["mask"].cpu(), True),
    "masked_scatter_": lambda m, a: m.masked_fill_(a["mask"].cpu(), True),
    "tril_": lambda m, a: m.copy_(~torch.tril(~m, a.get("diagonal", 0))),
    "triu_": lambda m, a: m.copy_(~torch.triu(~m, a.get("diagonal", 0))),
}
_COPIES = {"_to_copy", "copy_", "clone", "complex"}
# Operations that only move elements: the arguments that hold them. What such an operation makes of
# the places that nobody wrote are the places of its result that nobody wrote.
_MOVES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("index_select", "gather", "index", "_unsafe_index", "take", "roll", "flip", "rot90",
                     "repeat", "constant_pad_nd", "tril", "triu", "diag_embed", "pixel_shuffle",
                     "pixel_unshuffle", "channel_shuffle", "repeat_interleave", "masked_select"), ("self",)),
    **dict.fromkeys(("slice_scatter", "select_scatter", "diagonal_scatter"), ("self", "src")),
    "index_copy": ("self", "source"),
    "index_fill": ("self",),
    "index_put": ("self", "values"),
    "scatter": ("self", "src"),
    "embedding": ("weight",),
    "masked_scatter": ("self", "source"),
    "index_add": ("self", "source"),
    **dict.fromkeys((f"{kind}{n}d" for kind in ("reflection_pad", "replication_pad") for n in (1, 2, 3)), ("self",)),
    **dict.fromkeys((f"{kind}{n}d" for kind in ("upsample_nearest", "_upsample_nearest_exact") for n in (1, 2, 3)),
                    ("self",)),
    "im2col": ("self",),
}  # fmt: skip
# The same of those that take a list.
_JOINS = ("cat", "stack", "block_diag")
# Operations on lists that sum up what they take. The other ones go element by element.
_SUMS_OF_LISTS = ("norm", "max", "powsum")
_VALUES = ("value", "fill_value")  # of elements that such an operation makes itself


def _put(mask: torch.Tensor, named: _Named) -> None:
    if not named.get("accumulate"):
        indices = [None if i is None else i.cpu() for i in named["indices"]]
        torch.ops.aten.index_put_(mask, indices, torch.tensor(True))


class _Room:
    """A storage. written: for each of its elements of `size` bytes, whether it was; None: none was.

    A tensor of another type may share it: its elements are then parts of those, or several of them.
    """

    __slots__ = ("alive", "size", "written")

    def __init__(self, t: torch.Tensor, written: torch.Tensor | None) -> None:
        # While the reference is held no other storage has its number.
        self.alive = StorageWeakRef(t.untyped_storage())
        self.size, self.written = t.element_size(), written

    def seen(self, t: torch.Tensor) -> torch.Tensor:
        """The marks of a tensor's elements, with one more dimension: each has the marks of its parts."""
        assert self.written is not None
        size = t.element_size()
        if size < self.size:  # sizes are powers of two
            marks = self.written.repeat_interleave(self.size // size)
            rest = t.untyped_storage().nbytes() // size - marks.numel()
            self.written, self.size = torch.cat([marks, torch.zeros(rest, dtype=torch.bool)]), size
        parts = size // self.size
        strides = [stride * parts for stride in t.stride()]
        return self.written.as_strided((*t.shape, parts), (*strides, 1), t.storage_offset() * parts)


def _key(t: torch.Tensor) -> int | None:
    if t.layout is not torch.strided or t.is_meta or t.numel() == 0:
        return None
    try:
        return t.untyped_storage()._cdata
    except (RuntimeError, NotImplementedError):
        return None


def _elements(t: torch.Tensor) -> int:
    return t.untyped_storage().nbytes() // t.element_size()


class UnwrittenMemory:
    """Which elements of fresh memory were written since. It knows what operations write; what else writes
    (NumPy, kernels of one's own) is not seen. rooms: the storages that hold others, by their numbers.
    """

    def __init__(self) -> None:
        self.rooms: dict[int, _Room] = {}
        self._purge_at = _FEW

    def __len__(self) -> int:
        return len(self.rooms)

    def forget(self) -> None:
        """From now on all memory counts as written: operations were not seen."""
        self.rooms.clear()

    def allocated(self, t: torch.Tensor, before: int = 0) -> None:
        """Memory is new, but for the first `before` elements."""
        key = _key(t)
        if key is None or before >= _elements(t):
            return
        written = None
        if before:
            written = torch.zeros(_elements(t), dtype=torch.bool)
            old = self.rooms.get(key)
            if old is None:
                written[:before] = True
            elif old.written is not None and old.size == t.element_size():
                written[:before] = old.written[:before]
        self._put(key, _Room(t, written))

    def _put(self, key: int, room: _Room) -> None:
        if len(self.rooms) >= self._purge_at:
            self.rooms = {k: r for k, r in self.rooms.items() if not r.alive.expired()}
            self._purge_at = max(_FEW, 2 * len(self.rooms))
        self.rooms[key] = room

    def _place(self, t: torch.Tensor) -> tuple[int, _Room] | None:
        key = _key(t) if self.rooms else None
        room = None if key is None else self.rooms.get(key)
        if key is None or room is None:
            return None
        if room.written is not None and room.written.numel() != t.untyped_storage().nbytes() // room.size:
            del self.rooms[key]  # it was resized, and nobody said what was written since
            return None
        return key, room

    def mask(self, t: torch.Tensor) -> _Mask:
        """Which elements of a tensor were written; None: all of them."""
        place = self._place(t)
        if place is None:
            return None
        room = place[1]
        if room.written is None:
            return torch.zeros(t.shape, dtype=torch.bool)
        found = room.seen(t)
        return None if bool(found.all()) else found.all(-1)

    def write(self, t: torch.Tensor, mask: _Mask = None) -> None:
        """Elements of a tensor were written, or got what nobody wrote. mask: those written; None: all."""
        place = self._place(t)
        if place is None:
            if mask is not None and not bool(mask.all()) and (key := _key(t)) is not None:
                self._put(key, _Room(t, torch.ones(_elements(t), dtype=torch.bool)))
                self._mark(t, self.rooms[key], mask)
            return
        key, room = place
        if mask is None and t.is_contiguous() and t.numel() == _elements(t):
            del self.rooms[key]
            return
        if room.written is None:
            room.written = torch.zeros(t.untyped_storage().nbytes() // room.size, dtype=torch.bool)
        self._mark(t, room, mask)
        if bool(room.written.all()):
            del self.rooms[key]

    @staticmethod
    def _mark(t: torch.Tensor, room: _Room, mask: _Mask) -> None:
        at = room.seen(t)
        if mask is None:
            at.fill_(True)
        else:
            at.copy_(mask.unsqueeze(-1))

    # ---- operations ----

    def ran(
        self, func: Any, name: str, named: _Named, fills: set[str], writes: list[str], result: Any
    ) -> None:
        """An operation ran. fills: its arguments that it writes without reading them. writes: all that it
        writes.
        """
        masks = {n: [self.mask(t) for t in tensors_of(one)] for n, one in named.items() if n not in fills}
        if getattr(func, "namespace", "") not in ("aten", "prims"):
            for t in tensors_of(dict(named)):  # what it writes is not known
                self.write(t)
            return
        first = named.get(writes[0]) if writes else None
        if name in _PARTS and isinstance(first, torch.Tensor):
            mask = self.mask(first)
            if mask is not None:
                _PARTS[name](mask, named)
                self.write(first, mask)
            return
        passed: _Masks = None
        if any(m is not None for each in masks.values() for m in each):
            passed = _passed_on(func, name, named, masks, writes)
        written = tensors_of([named[n] for n in writes if n in named])
        for number, t in enumerate(written):
            if name.startswith("rrelu_with_noise") and t is named.get("noise") and not named.get("training"):
                continue  # it writes noise in training only
            self.write(t, _fitting(passed, number, t))
        if not writes and passed is not None:
            for number, t in enumerate(tensors_of(result)):
                self.write(t, _fitting(passed, number, t))


def _fitting(masks: _Masks, number: int, t: torch.Tensor) -> _Mask:
    if isinstance(masks, list):
        mask = masks[number] if number < len(masks) else None
    else:
        mask = masks
    if mask is None:
        return None
    try:
        return mask.expand(t.shape)
    except RuntimeError:
        return None


def _passed_on(
    func: Any, name: str, named: _Named, masks: Mapping[str, list[_Mask]], writes: list[str]
) -> _Masks:
    """Which elements of a result follow from written ones alone, where each element follows from the
    one at its own place. None: all, or it is not known; then the result is compared.
    """

    def of(key: str) -> list[torch.Tensor]:
        return [
            torch.ones(t.shape, dtype=torch.bool) if m is None else m
            for t, m in zip(tensors_of(named.get(key)), masks.get(key, []), strict=True)
        ]

    if name == "where" and len(of("self")) == len(of("other")) == 1:
        return torch.where(named["condition"].cpu(), of("self")[0], of("other")[0])
    if name == "masked_fill" and len(of("self")) == 1:
        return of("self")[0] | named["mask"].cpu()
    if name in _JOINS:
        return _moved(func, ("tensors",), named, of, writes)
    if name.startswith("_foreach_"):
        return None if name.removeprefix("_foreach_") in _SUMS_OF_LISTS else _of_each(masks, of)
    by_element = torch.Tag.pointwise in func.tags or name in _COPIES
    moved = _MOVES.get(name) or (("self",) if name.endswith("_copy") and not by_element else None)
    if moved is not None:
        return _moved(func, moved, named, of, writes)
    if by_element:
        try:
            return reduce(torch.logical_and, [m for key in masks for m in of(key)])
        except RuntimeError:  # lists of tensors of several shapes
            return None
    return None


def _of_each(masks: Mapping[str, list[_Mask]], of: Callable[[str], list[torch.Tensor]]) -> _Masks:
    """The same of an operation on each tensor of several lists, and on single ones that all have."""
    lists = [of(key) for key in masks if masks[key]]
    most = max(map(len, lists))
    if any(len(one) not in (1, most) for one in lists):
        return None
    try:
        return [
            reduce(torch.logical_and, [one[number if len(one) == most else 0] for one in lists])
            for number in range(most)
        ]
    except RuntimeError:
        return None


def _moved(
    func: Any,
    moved: tuple[str, ...],
    named: _Named,
    of: Callable[[str], list[torch.Tensor]],
    writes: list[str],
) -> _Masks:
    """Which elements of a result are written ones that an operation moved, or its own.

    It runs once more, on the places that nobody wrote, as bool or as numbers. moved: the arguments that hold
    elements. writes: those that it writes, which are left as they are.
    """
    for dtype in (torch.bool, torch.float32):
        arguments = _of_places(moved, named, of, writes, dtype)
        try:
            given = func(**arguments)
        except (RuntimeError, TypeError, NotImplementedError):
            continue
        if given is None:  # it gives nothing, and writes a list
            given = arguments.get("out")
        if given is None:
            return None
        return [one == 0 for one in given] if isinstance(given, (list, tuple)) else given == 0
    return None


def _of_places(
    moved: tuple[str, ...],
    named: _Named,
    of: Callable[[str], list[torch.Tensor]],
    writes: list[str],
    dtype: torch.dtype,
) -> dict[str, Any]:
    """The arguments of an operation, with 1 at the places that nobody wrote in place of elements."""
    taken: dict[str, Any] = {}
    for key, value in named.items():
        if key in writes and key not in moved:  # `out`
            fresh = [torch.empty(tuple(t.shape), dtype=dtype) for t in tensors_of(value)]
            taken[key] = fresh if isinstance(value, (list, tuple)) else fresh[0]
        elif key in moved and isinstance(value, torch.Tensor):
            taken[key] = (~of(key)[0]).to(dtype)
        elif key in moved and isinstance(value, (list, tuple)):
            taken[key] = [(~one).to(dtype) for one in of(key)]
        elif isinstance(value, torch.Tensor):
            if key in _VALUES:
                taken[key] = torch.zeros((), dtype=dtype)
            else:
                taken[key] = value.cpu()
        elif key in _VALUES:
            taken[key] = 0
        elif key == "indices" and isinstance(value, (list, tuple)):
            taken[key] = [None if i is None else i.cpu() for i in value]
        else:
            taken[key] = value
    return taken


def written_words(t: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, 0 where nobody wrote."""
    # As one dimension: where there is one element, its stride may be any.
    dense = t.detach().resolve_conj().resolve_neg().contiguous().view(-1)
    words = dense.view(torch.uint8).view(*t.shape, dense.element_size())
    return words.masked_fill(~mask.to(words.device).unsqueeze(-1), 0)
