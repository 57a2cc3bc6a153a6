"""Containers that can be read without running code of the program's own, such as that of a batch which draws
random numbers for what is asked for.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

__all__ = ["reads_plainly"]

_READ_BY = ("__iter__", "__getitem__", "__len__", "keys", "items")
# Packages whose containers give what they hold, and do nothing else.
_PLAIN = frozenset({
    "builtins", "collections", "_collections_abc", "types", "typing", "numpy", "torch", "transformers", "diffusers",
    "tensordict",
})  # fmt: skip
_known: WeakKeyDictionary[type, bool] = WeakKeyDictionary()  # classes live no longer because of it


def reads_plainly(kind: type) -> bool:
    """Whether all of a container of this class is read by code of such packages."""
    try:
        known = _known.get(kind)
        if known is None:
            known = _known[kind] = all(_is_plain(kind, name) for name in _READ_BY)
        return known
    except TypeError:  # a class that cannot be a key
        return all(_is_plain(kind, name) for name in _READ_BY)


def _is_plain(kind: type, name: str) -> bool:
    owner = next((c for c in kind.__mro__ if name in vars(c)), None)
    return owner is None or str(owner.__module__).partition(".")[0] in _PLAIN
