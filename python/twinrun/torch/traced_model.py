"""The models of a trace as they are now: a program may replace or add layers while the trace is open."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from .model import Owner, Watched, modules_of, owners_of, watched_modules

__all__ = ["Changes", "TracedModel"]


class Changes(NamedTuple):
    """Modules that came into the models, and that went out of them."""

    new: list[Watched]
    gone: list[Watched]


class TracedModel:
    """The modules that are watched, and which module each parameter belongs to.

    watched, owners: they stay the same objects, and hold what the models hold. Parameters that left a model
    keep their owner while they live: `torch.func.functional_call` puts others in their place for one call.
    """

    def __init__(self, models: Mapping[str, torch.nn.Module], patterns: Sequence[str]) -> None:
        self._models, self._patterns = models, patterns
        self.watched: list[Watched] = []
        self.owners: dict[int, Owner] = {}
        self._alive: dict[int, weakref.ref[torch.nn.Parameter]] = {}  # by the id of a parameter with an owner
        # The mappings in which modules hold others, and parameters; and what they held.
        self._holders: list[Mapping[str, Any]] = []
        self._held: list[Any] = []
        self._frozen: list[torch.nn.Parameter] = []
        # FSDP 2 puts whole parameters in the place of its own while these run.
        self._sharded: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """The parameters of all models, without those that FSDP 2 puts in their place for a while."""
        for model in self._models.values():
            for module in model.modules():
                sharded = module in self._sharded
                for p in module._parameters.values():
                    if p is not None and (not sharded or _is_distributed(p)):
                        yield p

    def look(self) -> Changes | None:
        """What changed since the last call; None for nothing, which is found out in microseconds."""
        held = [one for holder in self._holders for one in holder.values()]
        same = len(held) == len(self._held) and all(map(operator.is_, held, self._held))
        if same and self._holders and not any(p.requires_grad for p in self._frozen):
            return None
        if not all(one is None or isinstance(one, (torch.nn.Module, torch.nn.Parameter)) for one in held):
            return None  # tensors in the place of parameters, for one call
        return self._read()

    def _read(self) -> Changes:
        modules = [
            m
            for model in self._models.values()
            for _, m, within in modules_of(model)
            # What TorchScript holds is made anew each time that it is asked for.
            if not within and not isinstance(m, torch.jit.ScriptModule)
        ]
        self._sharded.update(m for m in modules if any(map(_is_distributed, m._parameters.values())))
        self._holders = [m._modules for m in modules]
        self._holders += [m._parameters for m in modules if m not in self._sharded]
        self._held = [one for holder in self._holders for one in holder.values()]
        self._frozen = [p for p in self.parameters() if not p.requires_grad]
        self._read_owners()
        known = {(w.path, id(w.module)): w for w in self.watched}
        new: list[Watched] = []
        watched: list[Watched] = []
        for w in watched_modules(self._models, self._patterns):
            old = known.pop((w.path, id(w.module)), None)
            if old is None:
                new.append(w)
            else:
                old.hold(w)
            watched.append(old or w)
        self.watched[:] = watched
        return Changes(new, [*known.values()])

    def _read_owners(self) -> None:
        for number in [n for n, one in self._alive.items() if one() is None]:
            del self._alive[number]
            self.owners.pop(number, None)
        self.owners.update(owners_of(self._models))
        for p in (p for model in self._models.values() for p in model.parameters()):
            self._alive[id(p)] = weakref.ref(p)


def _is_distributed(p: Any) -> bool:
    return hasattr(p, "placements")
