"""Wrappers of modules, such as DDP and torch.compile: their own names are left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

__all__ = ["is_compiled", "is_flattened", "paths_of", "plain_name", "state_names"]

# What wrappers call the module within them. No other module has such an attribute.
_NAMES = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})


@cache
def _classes() -> tuple[type, ...]:
    """Wrappers that call it `module`, as modules of users may do, too: known by their classes."""
    from torch.nn.parallel import DataParallel, DistributedDataParallel
    from torch.optim.swa_utils import AveragedModel

    return DistributedDataParallel, DataParallel, AveragedModel


def _wraps(module: Any, key: str) -> bool:
    """Whether a module is a wrapper, and this is its name for what is within it."""
    return key in _NAMES or (key == "module" and isinstance(module, _classes()))


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether calling a module runs what `torch.compile` made of it, or of its `forward`."""
    return (
        "_orig_mod" in module._modules
        or getattr(module, "_compiled_call_impl", None) is not None
        or hasattr(module.__dict__.get("forward"), "_torchdynamo_orig_callable")
    )


def is_flattened(module: torch.nn.Module) -> bool:
    """Whether it is a wrapper of FSDP 1, which makes one parameter of all that are within it."""
    return "_fsdp_wrapped_module" in module._modules


def plain_name(name: str) -> str:
    """A name without the parts that only wrappers have."""
    return ".".join(part for part in name.split(".") if part not in _NAMES)


def paths_of(model: torch.nn.Module, *, again: bool = False) -> dict[str, str]:
    """{path of each module: the same without the names of wrappers}. again: also of modules that are held
    twice, by each of their paths, as in a model's state.
    """
    modules: dict[str, torch.nn.Module] = {}
    paths: dict[str, str] = {}
    for name, module in model.named_modules(remove_duplicate=False) if again else model.named_modules():
        modules[name] = module
        outer, _, key = name.rpartition(".")
        above = paths.get(outer, plain_name(outer))
        if name == "" or _wraps(modules.get(outer), key):
            paths[name] = above
        else:
            paths[name] = f"{above}.{key}" if above else key
    return paths


def state_names(model: torch.nn.Module, state: Mapping[str, object]) -> dict[str, str]:
    """{key of a model's state: the same without the names of wrappers}. Two keys never become one: those
    that would keep their names.
    """
    paths = paths_of(model, again=True)
    found: dict[str, str] = {}
    for key in state:
        parts = key.split(".")
        at = next((n for n in range(len(parts) - 1, 0, -1) if ".".join(parts[:n]) in paths), 0)
        above = paths.get(".".join(parts[:at]), "")
        found[key] = ".".join(filter(None, (above, plain_name(".".join(parts[at:])))))
    often = Counter(found.values())
    apart = {key: name if often[name] == 1 else key for key, name in found.items()}
    return apart if len({*apart.values()}) == len(apart) else {key: key for key in state}
