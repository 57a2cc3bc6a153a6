"""What a process has of the containers that all processes of a run hold together."""

from __future__ import annotations

import fnmatch
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ..errors import TwinrunError
from ..runs.containers import flattened, state_of
from .placements import Held, Sharded, held_parts
from .wrappers import plain_name, state_names

__all__ = ["States", "divided", "joined"]

_DEEPEST = 20


def joined(name: str, key: object) -> str:
    """The name of an entry of a container."""
    return f"{name}.{key}" if name else str(key)


class States:
    """The states of the models within a container, in which names of wrappers are left out."""

    def of(self, name: str, what: Any) -> Any:
        """The state of a model as a mapping; anything else as it is. name: what it is called."""
        if not isinstance(what, torch.nn.Module):
            return what
        state = what.state_dict()
        names = state_names(what, state)
        return {names[key]: value for key, value in state.items()}

    def opened(self, what: Any, name: str = "", depth: int = 0) -> Any:
        """A container with the states of its models."""
        what = self.of(name, what)
        if depth < _DEEPEST and type(what) in (dict, OrderedDict):
            return type(what)(
                (key, self.opened(one, joined(name, key), depth + 1)) for key, one in what.items()
            )
        if depth < _DEEPEST and type(what) in (list, tuple):
            return type(what)(self.opened(one, joined(name, n), depth + 1) for n, one in enumerate(what))
        return what


def divided(
    fields: object,
    sharded: Mapping[str, Sharded] | None,
    local: list[str],
    states: States | None = None,
) -> tuple[dict[str, object], list[Held]]:
    """What this process has of its own, and its parts of what all hold together."""
    sharded = {} if sharded is None else sharded
    if not isinstance(sharded, Mapping):
        raise TwinrunError("sharded is a mapping of globs", fix='give {"*.weight": Sharded(…)}')
    for glob, given_as in sharded.items():
        if not isinstance(given_as, Sharded):
            raise TwinrunError(
                f"sharded[{glob!r}] is no Sharded, but {type(given_as).__name__!r}",
                fix="give twinrun.torch.Sharded(dim, sizes, group)",
            )
    unused = {*sharded, *local}
    fields = (states or States()).opened(fields)
    own: dict[str, object] = {}
    parts: list[Held] = []
    for given, value in flattened("", state_of(fields), as_given=states is not None).items():
        name = plain_name(given)
        unused -= {g for g in unused if fnmatch.fnmatchcase(name, g)}
        if any(fnmatch.fnmatchcase(name, g) for g in local):
            if hasattr(value, "placements"):
                raise TwinrunError(
                    "is a DTensor, and is named by local=",
                    where=name,
                    fix="leave it out, or give its to_local()",
                )
            own[name] = value
            continue
        if not isinstance(value, torch.Tensor):
            array = value if isinstance(value, np.ndarray) else np.asarray(value)
            parts.append(Held(name, array.shape, (0,) * array.ndim, array))
            continue
        how = next((s for g, s in sharded.items() if fnmatch.fnmatchcase(name, g)), None)
        if how is not None and hasattr(value, "placements"):
            raise TwinrunError(
                "is a DTensor, which tells its own places", where=name, fix="leave it out of sharded"
            )
        t = value.detach()
        parts += held_parts(name, t) if how is None else how.parts(name, t)
    if unused:
        said = ", ".join(map(repr, sorted(unused)))
        warnings.warn(f"twinrun: sharded= or local= names no field: {said}", RuntimeWarning, stacklevel=4)
    names = [p.name for p in parts] + [*own]
    if len(names) != len(set(names)):
        twice = sorted({n for n in names if names.count(n) > 1})
        raise TwinrunError(f"two fields of the name {twice[0]!r}", fix="rename one")
    return own, parts
