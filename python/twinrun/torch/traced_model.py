"""The models of a trace as they are now: a program may replace or add layers while the trace is open."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from .model import Owner, Watched, modules_of, owners_of, watched_modules
from .wrappers import is_flattened

__all__ = ["Changes", "TracedModel"]


class Changes(NamedTuple):
    """Modules that came into the models, and that went out of them."""

    new: list[Watched]
    gone: list[Watched]


class TracedModel:
    """The modules that are watched, and which module each parameter belongs to.

    models: of a mapping with several ones, what it holds now counts. watched, owners: they stay the same
    objects, and hold what the models hold. Parameters that left a model keep their owner until the
    iteration ends: `torch.func.functional_call` puts others in their place for one call. No weak reference
    tells whether they live: `torch.utils.swap_tensors` refuses a tensor that has one.
    """

    def __init__(self, models: Mapping[str, torch.nn.Module], patterns: Sequence[str]) -> None:
        self._models, self._patterns = models, patterns
        self.watched: list[Watched] = []
        self.owners: dict[int, Owner] = {}
        self._owned: dict[int, torch.nn.Parameter] = {}  # by their ids
        # The mappings in which modules hold others, and parameters; and what they held.
        self._holders: list[Mapping[str, Any]] = []
        self._held: list[Any] = []
        # Those that have no gradients yet.
        self._waiting: list[torch.nn.Parameter] = []
        self.has_lazy = False  # whether a module waits for its first input to know its parameters
        # FSDP 2 puts whole parameters in the place of its own while these run.
        self._sharded: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        # And FSDP 1 views of one for all modules of a wrapper.
        self._flattened: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()

    def each(self) -> list[torch.nn.Module]:
        """The models now. What is none is left out."""
        return [model for model in self._models.values() if isinstance(model, torch.nn.Module)]

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """The parameters of all models, without those that FSDP 2 puts in their place for a while."""
        for model in self.each():
            for module in model.modules():
                sharded = module in self._sharded
                for p in module._parameters.values():
                    if p is not None and (not sharded or _is_distributed(p)):
                        yield p

    def swaps(self, module: torch.nn.Module) -> bool:
        """Whether a wrapper of FSDP puts other parameters in the place of a module's own while it runs."""
        return module in self._sharded or module in self._flattened

    def look(self, *, at_end: bool = False) -> Changes | None:
        """What changed since the last call; None for nothing, which is found out in microseconds.

        at_end: of an iteration. Parameters that left the models have no owner afterwards.
        """
        held = [one for holder in self._holders for one in holder.values()]
        same = len(held) == len(self._held) and all(map(operator.is_, held, self._held))
        if same and self._holders and not any(map(_has_gradients, self._waiting)):
            return None
        if not all(one is None or isinstance(one, (torch.nn.Module, torch.nn.Parameter)) for one in held):
            return None  # tensors in the place of parameters, for one call
        return self._read(at_end)

    def _read(self, at_end: bool) -> Changes:
        modules = [
            m
            for model in self.each()
            for _, m, within in modules_of(model)
            # What TorchScript holds is made anew each time that it is asked for.
            if not within and not isinstance(m, torch.jit.ScriptModule)
        ]
        self._sharded.update(m for m in modules if any(map(_is_distributed, m._parameters.values())))
        self._flattened.update(m for outer in modules if is_flattened(outer) for m in outer.modules())
        self._holders = [self._models, *(m._modules for m in modules)]
        self._holders += [m._parameters for m in modules if m not in self._sharded]
        self._held = [one for holder in self._holders for one in holder.values()]
        self._waiting = [p for p in self.parameters() if not _has_gradients(p)]
        self.has_lazy = any(map(torch.nn.parameter.is_lazy, self._waiting))
        self._read_owners(at_end)
        known = {(w.path, id(w.module)): w for w in self.watched}
        new: list[Watched] = []
        watched: list[Watched] = []
        for w in watched_modules(self._now(), self._patterns):
            old = known.pop((w.path, id(w.module)), None)
            if old is None:
                new.append(w)
            else:
                old.hold(w)
            watched.append(old or w)
        self.watched[:] = watched
        self._nest()
        return Changes(new, [*known.values()])

    def _nest(self) -> None:
        """Says of each module that is watched which ones are next below it."""
        known = {(w.path, id(w.module)): w for w in self.watched}
        for w in self.watched:
            w.below = []
            w.subtree = None
        for w in self.watched:
            if w.above is not None:
                w.above = known[w.above.path, id(w.above.module)]
                w.above.below.append(w)

    def _now(self) -> dict[str, torch.nn.Module]:
        return {name: m for name, m in self._models.items() if isinstance(m, torch.nn.Module)}

    def _read_owners(self, at_end: bool) -> None:
        if at_end:
            self.owners.clear()
            self._owned.clear()
        self.owners.update(owners_of(self._now()))
        self._owned.update({id(p): p for model in self.each() for p in model.parameters()})


def _has_gradients(p: torch.nn.Parameter) -> bool:
    return not torch.nn.parameter.is_lazy(p) and p.requires_grad


def _is_distributed(p: Any) -> bool:
    return hasattr(p, "placements")
