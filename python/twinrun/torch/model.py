"""The modules of a model that are traced, and the parameters and buffers that belong to each."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from .module_facts import OwnFacts
from .wrappers import is_compiled, paths_of

__all__ = [
    "Owned", "Owner", "Owners", "Watched", "hook_after", "hook_before", "kind_of", "modules_of", "move_last", "owners_of",
    "watched_modules",
]  # fmt: skip


class Owned(NamedTuple):
    """A parameter or buffer: its name below the module that is traced, and where it is held."""

    name: str
    module: torch.nn.Module
    key: str

    def tensor(self, role: str) -> torch.Tensor | None:
        """The tensor that is held now; None where there is none, or one that has no values yet."""
        # Those of TorchScript have no `get`.
        held = self.module._parameters if role == "parameter" else self.module._buffers
        t = held[self.key] if self.key in held else None
        kind = type(t)
        if kind is torch.nn.Parameter or kind is torch.Tensor:  # most of them
            return t
        return None if t is None or torch.nn.parameter.is_lazy(t) else t


class Owner(NamedTuple):
    """The path of the module that a parameter belongs to, and the parameter's own path."""

    path: str
    name: str


# By the id of a parameter.
Owners = Mapping[int, Owner]


class Watched:
    """A module of the model: its path and class, and the parameters and buffers that its own code uses.

    calls: of the model, in this iteration. called: whether it was called in this iteration. last_call: the
    number of the last call, -1 for none in this iteration. compiled: whether it is, or wraps, what
    `torch.compile` made of it. inside: whether it lies within such a module. own: facts of the module, and
    not of what wraps it. above: the nearest module around it that is watched. below: those that have it
    there. holds: the paths of the modules whose parameters and buffers belong to it, and these modules.
    subtree: of it and of those below; None until it is called.
    """

    __slots__ = (
        "above", "below", "buffers", "called", "calls", "compiled", "holds", "inside", "kind", "last_call", "module",
        "own", "parameters", "path", "root", "subtree",
    )  # fmt: skip

    def __init__(self, path: str, module: torch.nn.Module, above: Watched | None) -> None:
        self.path, self.module, self.root = path, module, above is None
        self.above = above
        self.below: list[Watched] = []
        self.last_call = -1
        self.kind = kind_of(module)
        self.own = OwnFacts(module)
        self.calls = 0
        self.called = self.compiled = self.inside = False
        self.parameters: list[Owned] = []
        self.buffers: list[Owned] = []
        self.holds: list[tuple[str, torch.nn.Module]] = []
        self.subtree: Any = None

    def hold(self, other: Watched) -> None:
        """Takes over what was found out anew of the same module. Its calls stay counted."""
        self.parameters, self.buffers = other.parameters, other.buffers
        self.holds = other.holds
        self.compiled, self.inside, self.above = other.compiled, other.inside, other.above
        if self.own.module is not other.own.module:
            self.own = other.own


def kind_of(module: torch.nn.Module) -> str:
    """The class of a module; of TorchScript: that which it was made from."""
    name = getattr(module, "original_name", None) if isinstance(module, torch.jit.ScriptModule) else None
    return name if isinstance(name, str) else type(module).__name__


def modules_of(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, bool]]:
    """(path, module, whether it runs within TorchScript) of each module. No hook sees the calls that
    TorchScript makes: what it holds is traced as a whole.
    """
    scripted: set[str] = set()
    for name, module in model.named_modules():
        within = name != "" and name.rpartition(".")[0] in scripted
        if within or isinstance(module, torch.jit.ScriptModule):
            scripted.add(name)
        yield name, module, within


def move_last(hooks: dict[int, Any], own: Any) -> None:
    """Lets one hook of an ordered dictionary of PyTorch run after all others. own: what removes it."""
    if next(reversed(hooks), own.id) != own.id and own.id in hooks:
        hooks[own.id] = hooks.pop(own.id)


def hook_before(module: torch.nn.Module, hook: Callable[..., None]) -> Any:
    """Adds a hook that runs before the module. Gives what removes it."""
    if isinstance(module, torch.jit.ScriptModule):  # it refuses hooks, for those that TorchScript calls
        return torch.nn.Module.register_forward_pre_hook(module, hook, with_kwargs=True)
    return module.register_forward_pre_hook(hook, with_kwargs=True)


def hook_after(module: torch.nn.Module, hook: Callable[..., None], *, always: bool = False) -> Any:
    """Adds a hook that runs after the module. always: also where the module raises."""
    if isinstance(module, torch.jit.ScriptModule):
        add = torch.nn.Module.register_forward_hook
        return add(module, hook, with_kwargs=True, always_call=always)
    return module.register_forward_hook(hook, with_kwargs=True, always_call=always)


def _paths(label: str, model: torch.nn.Module) -> dict[str, str]:
    """{name of each module: its path in the trace}."""
    return {name: ".".join(filter(None, (label, path))) for name, path in paths_of(model).items()}


def watched_modules(models: Mapping[str, torch.nn.Module], patterns: Sequence[str]) -> list[Watched]:
    """The models and those of their modules whose path fits a pattern.

    What is not traced itself hands its parameters and buffers to the nearest module above that is.
    """
    watched: list[Watched] = []
    for label, model in models.items():
        nearest: dict[str, Watched] = {}
        compiled: set[str] = set()  # names of modules that are compiled, or within such
        paths = _paths(label, model)
        for name, module, within in modules_of(model):
            path = paths[name]
            parent = nearest.get(name.rpartition(".")[0])
            same = name != "" and parent is not None and path == parent.path
            if name == "" or (
                not same and not within and any(fnmatch.fnmatchcase(path, p) for p in patterns)
            ):
                parent = Watched(path, module, None if name == "" else parent)
                parent.inside = name != "" and name.rpartition(".")[0] in compiled
                watched.append(parent)
            assert parent is not None
            nearest[name] = parent
            if path == parent.path:
                parent.own.module = module  # of wrappers of one path the innermost
            is_one = is_compiled(module)
            parent.compiled = parent.compiled or (is_one and path == parent.path)
            if is_one or (name != "" and name.rpartition(".")[0] in compiled):
                compiled.add(name)
            parent.holds.append((path, module))
            below = path[len(parent.path) :].lstrip(".")
            for held, into in ((module._parameters, parent.parameters), (module._buffers, parent.buffers)):
                into.extend(Owned(f"{below}.{key}".lstrip("."), module, key) for key in held.keys())
    return watched


def owners_of(models: Mapping[str, torch.nn.Module]) -> Owners:
    """Which module each parameter belongs to: the first one that holds it."""
    owners: dict[int, Owner] = {}
    for label, model in models.items():
        paths = _paths(label, model)
        for name, module in model.named_modules():
            path = paths[name]
            for key, p in module._parameters.items():
                if p is not None:
                    owners.setdefault(id(p), Owner(path, f"{path}.{key}".lstrip(".")))
    return owners
