"""What the caller of `trace` asks for, checked."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..arguments import names_given, step_number
from ..errors import TwinrunError, Unsupported
from ..trace.online import Reference
from ..trace.result import Origin
from ..trace.site import Site
from .processes import is_distributed, rank
from .replicas import group_of

__all__ = ["Action", "Settings", "check_version", "models_of", "optimizers_of"]

Action = Callable[[Origin], object] | str
_OLDEST = (2, 4)


@dataclass(frozen=True)
class Settings:
    """The parameters of `trace`, as a trace needs them.

    keep: the places whose data is kept. raises: whether errors reach the training.
    replicas: of every how many iterations; 0 for none. group: the processes that hold the same values.
    """

    every: int
    modules: tuple[str, ...]
    level: str
    keep: frozenset[Site]
    start: int
    raises: bool
    rng: str
    reference: Reference | None
    on_divergence: Action
    replicas: int
    group: Any

    @classmethod
    def checked(
        cls,
        *,
        every: int,
        modules: str | Iterable[str],
        level: str,
        escalate: Any,
        start: int,
        rng: str,
        on_error: str,
        reference: str | os.PathLike[str] | None,
        on_divergence: Action | None,
        replicas: bool | int,
        group: Any,
    ) -> Settings:
        """Raises TwinrunError where a parameter has no meaning."""
        _check_word("level", level, ("modules", "ops"))
        _check_word("rng", rng, ("torch", "all", "none"))
        _check_word("on_error", on_error, ("warn", "raise"))
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise TwinrunError(f"every must be a positive integer, not {every!r}")
        keep = _places(escalate)
        asked, on_divergence = on_divergence is not None, "warn" if on_divergence is None else on_divergence
        if not callable(on_divergence) and on_divergence not in ("warn", "stop"):
            raise TwinrunError(f"on_divergence must be a function, 'warn' or 'stop', not {on_divergence!r}")
        if asked and reference is None:
            raise TwinrunError(
                "on_divergence is for a trace that is compared with a reference while it is made",
                fix="give reference, without escalate=True, or leave on_divergence out",
            )
        among = _group_of_replicas(replicas, group)
        return cls(
            every=every,
            modules=tuple(names_given(modules, "modules")),
            level=level,
            keep=keep,
            reference=None if reference is None else Reference(os.fspath(reference), rank()),
            start=step_number(start),
            raises=on_error == "raise",
            rng=rng,
            on_divergence=on_divergence,
            replicas=int(replicas),
            group=among,
        )

    def of_second_run(
        self, run: str | os.PathLike[str], reference: str | os.PathLike[str] | None
    ) -> tuple[str, Settings]:
        """Of a training that is run again: the folder of its trace, and these settings with the place whose
        data it keeps, where the trace in `run` and that of `reference` part. Raises TwinrunError.
        """
        from ..trace.escalation import second_run

        folder, sites = second_run(run, reference)
        return folder, replace(self, keep=sites)


def _check_word(name: str, given: str, words: tuple[str, ...]) -> None:
    if given not in words:
        *others, last = map(repr, words)
        raise TwinrunError(f"{name} must be {', '.join(others)} or {last}, not {given!r}")


def _places(escalate: Any) -> frozenset[Site]:
    if escalate is None:
        return frozenset()
    from ..trace.escalation import sites_of

    return sites_of(escalate)


def _group_of_replicas(replicas: bool | int, group: Any) -> Any:
    if not isinstance(replicas, int) or replicas < 0:
        raise TwinrunError(f"replicas must be True, False or a number of iterations, not {replicas!r}")
    if replicas and not is_distributed():
        raise TwinrunError("replicas need torch.distributed", fix="call init_process_group first")
    if group is not None and not replicas:
        raise TwinrunError("group is for replicas", fix="give replicas=True, or leave group out")
    return group_of(group) if replicas else None


def check_version() -> None:
    """Raises Unsupported where this PyTorch is too old for traces."""
    found = tuple(int(p) for p in torch.__version__.split("+")[0].split(".")[:2])
    if found < _OLDEST:
        raise Unsupported(
            f"PyTorch {torch.__version__} lacks hooks that traces need",
            fix=f"install PyTorch {'.'.join(map(str, _OLDEST))} or newer",
        )


def models_of(model: torch.nn.Module | Mapping[str, torch.nn.Module]) -> Mapping[str, torch.nn.Module]:
    """Models by name; one alone has none. A mapping stays what it is, as the program may change it. Raises
    TwinrunError.
    """
    models: Mapping[str, torch.nn.Module]
    if isinstance(model, torch.nn.Module):
        models = {"": model}
    elif isinstance(model, Mapping):
        models = model
    else:
        raise TwinrunError(
            f"model: {type(model).__name__!r} is no torch.nn.Module", fix="give a model, or a dict of models"
        )
    for name, one in models.items():
        if not isinstance(one, torch.nn.Module):
            raise TwinrunError(f"{name!r} is no torch.nn.Module", fix="give a model, or a dict of models")
    if not models:
        raise TwinrunError("there is no model to trace")
    return models


def optimizers_of(
    optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None,
) -> list[torch.optim.Optimizer]:
    """All optimizers that were given; of one that wraps another, and has no hooks of its own, that other one.
    Raises TwinrunError.
    """
    if optimizer is None:
        return []
    several = isinstance(optimizer, Iterable) and not isinstance(optimizer, torch.optim.Optimizer)
    optimizers: list[Any] = [_hooked(one) for one in (optimizer if several else [optimizer])]
    for one in optimizers:
        if not isinstance(one, torch.optim.Optimizer) or not _has_hooks(one):
            lacks = (
                "has no hooks" if isinstance(one, torch.optim.Optimizer) else "is no torch.optim.Optimizer"
            )
            raise TwinrunError(
                f"optimizer: {type(one).__name__!r} {lacks}",
                fix="give the optimizer that it wraps, or several in a list",
            )
    return optimizers


def _has_hooks(optimizer: object) -> bool:
    return hasattr(optimizer, "_optimizer_step_pre_hooks")


def _hooked(optimizer: Any) -> Any:
    """The optimizer whose hooks run. One of Accelerate has none, and calls the `step` of the one within."""
    while isinstance(optimizer, torch.optim.Optimizer) and not _has_hooks(optimizer):
        if not isinstance(getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
            break
        optimizer = optimizer.optimizer
    return optimizer
