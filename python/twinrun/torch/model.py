"""The modules of a model that are traced, and the parameters and buffers that belong to each."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

__all__ = ["Owned", "Owner", "Owners", "Watched", "owners_of", "watched_modules"]

# What wrappers put into the names of modules.
_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


class Owned(NamedTuple):
    """A parameter or buffer: its name below the module that is traced, and where it is held."""

    name: str
    module: torch.nn.Module
    key: str


class Owner(NamedTuple):
    """The path of the module that a parameter belongs to, and the parameter's own path."""

    path: str
    name: str


# By the id of a parameter.
Owners = Mapping[int, Owner]


class Watched:
    """A module of the model: its path and class, and the parameters and buffers that its own code uses."""

    __slots__ = ("buffers", "calls", "kind", "module", "parameters", "path", "root")

    def __init__(self, path: str, module: torch.nn.Module, root: bool) -> None:
        self.path, self.module, self.root = path, module, root
        self.kind = type(module).__name__
        self.calls = 0  # of this iteration
        self.parameters: list[Owned] = []
        self.buffers: list[Owned] = []


def _path(label: str, name: str, model: torch.nn.Module) -> str:
    parts = [p for p in name.split(".") if p not in _WRAPPERS]
    if isinstance(model, torch.nn.parallel.DistributedDataParallel) and parts and parts[0] == "module":
        del parts[0]
    return ".".join(p for p in (label, ".".join(parts)) if p)


def watched_modules(models: Mapping[str, torch.nn.Module], patterns: Sequence[str]) -> list[Watched]:
    """The models and those of their modules whose path fits a pattern.

    What is not traced itself hands its parameters and buffers to the nearest module above that is.
    """
    watched: list[Watched] = []
    for label, model in models.items():
        nearest: dict[str, Watched] = {}
        for name, module in model.named_modules():
            path = _path(label, name, model)
            parent = nearest.get(name.rpartition(".")[0])
            same = name != "" and parent is not None and path == parent.path
            if name == "" or (not same and any(fnmatch.fnmatchcase(path, p) for p in patterns)):
                parent = Watched(path, module, name == "")
                watched.append(parent)
            assert parent is not None
            nearest[name] = parent
            below = path[len(parent.path) :].lstrip(".")
            for held, into in ((module._parameters, parent.parameters), (module._buffers, parent.buffers)):
                into.extend(Owned(f"{below}.{key}".lstrip("."), module, key) for key in held)
    return watched


def owners_of(models: Mapping[str, torch.nn.Module]) -> Owners:
    """Which module each parameter belongs to: the first one that holds it."""
    owners: dict[int, Owner] = {}
    for label, model in models.items():
        for name, module in model.named_modules():
            path = _path(label, name, model)
            for key, p in module._parameters.items():
                if p is not None:
                    owners.setdefault(id(p), Owner(path, f"{path}.{key}".lstrip(".")))
    return owners
