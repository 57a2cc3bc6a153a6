"""Modules that are to be traced and whose calls no hook saw, though their parameters had gradients: code that
`torch.compile` made ran in their place, or somebody used their parameters.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

import torch

from .model import Owners, Watched

__all__ = ["UncalledModules", "may_be_called"]


def may_be_called(module: torch.nn.Module) -> bool:
    """Whether it has a `forward`: lists of modules and of parameters have none."""
    return getattr(type(module), "forward", None) is not torch.nn.Module.forward or "forward" in vars(module)


class UncalledModules:
    """Which of the modules that are watched were not called, by their parameters.

    all_modules: whether the caller chose none of them. What lies within a compiled module is then left out:
    of that module is traced what goes in and comes out.
    """

    def __init__(self, watched: Sequence[Watched], owners: Owners, all_modules: bool) -> None:
        self._all_modules = all_modules
        self._by_path = {w.path: w for w in watched}
        # With parameters that are their own: those that several hold belong to the first one.
        self._modules: list[tuple[Watched, list[str]]] = []
        for w in watched:
            if w.root or not may_be_called(w.module):
                continue
            named = ((f"{w.path}.{one.name}", one.tensor("parameter")) for one in w.parameters)
            own = [n for n, t in named if t is not None and id(t) in owners and owners[id(t)].name == n]
            self._modules.append((w, own))
        # Whether parameters would say that a module ran: otherwise nobody knows.
        self.tell = any(own for _, own in self._modules)

    def found(self, gradients: Set[str]) -> list[Watched]:
        """The modules that were not called in this iteration.

        gradients: the names of parameters that had some.
        """
        return [
            w
            for w, names in self._modules
            if not w.called and self._ran(w, names, gradients) and not self._is_usual(w)
        ]

    def _ran(self, w: Watched, names: Sequence[str], gradients: Set[str]) -> bool:
        """Whether there are gradients that its code made. One without parameters may be part of compiled
        code, where it was chosen by itself.
        """
        if names:
            return not gradients.isdisjoint(names)
        return w.inside and not self._all_modules and len(gradients) > 0

    def _is_usual(self, w: Watched) -> bool:
        """Whether it is as it should be that nobody saw a call."""
        around = self._called_around(w)
        if around is None:
            return False
        # Attention uses the parameters of this layer without calling it.
        attention = isinstance(around.module, torch.nn.MultiheadAttention)
        return attention or (around.compiled and self._all_modules)

    def _called_around(self, w: Watched) -> Watched | None:
        """The nearest module around it that was called."""
        path = w.path
        while path:
            path = path.rpartition(".")[0]
            found = self._by_path.get(path)
            if found is not None and found.called:
                return found
        return None
