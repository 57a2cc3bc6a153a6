"""Captures of several processes: each holds its part of what DTensor, FSDP2 or the caller divided."""

from __future__ import annotations

import fnmatch
import math
import os
import warnings
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from .. import _core
from ..capture.run import CaptureFacts, Run
from ..errors import TwinrunError
from ..formats.texts import SUFFIX
from ..runs.containers import flattened, state_of
from ..runs.digest import digests_of
from ..runs.provenance import python_facts
from .exchange import Exchange
from .placements import Held, Sharded, held_parts
from .replicas import ReplicasDiffer
from .wrappers import plain_name, state_names

__all__ = ["ParallelRun"]

_DEEPEST = 20


class ParallelRun(Run):
    """A run of several processes of torch.distributed, as one history.

    Every process makes it and captures the same steps. Each keeps its part of every tensor, with its place in
    the global one; what several processes hold alike is checked to be equal, and kept once. So runs that
    divide their tensors differently compare: `twinrun compare tp1 tp2`.

    Parameters
    ----------
    path : path
        The folder of the history.
    group : process group or dimension of a device mesh, default None
        The processes of the run, which make it, and no others; None: all.
    **settings
        As of `twinrun.Run`.
    """

    def __init__(self, path: str | os.PathLike[str], *, group: Any = None, **settings: Any) -> None:
        if not dist.is_initialized():
            raise TwinrunError("needs torch.distributed", where=path, fix="call init_process_group first")
        self._exchange = Exchange(group)
        paths = self._exchange.all(os.path.abspath(path))
        other = next((rank for rank, one in enumerate(paths) if one != paths[0]), None)
        if other is not None:
            raise TwinrunError(
                f"processes name different folders: process 0 {paths[0]}, process {other} {paths[other]}",
                where=path,
                fix="give all processes the same path",
            )
        super().__init__(path, **settings)

    def _begun(self, settings: _core.SessionSettings) -> _core.Session:
        return _core.Session(self._path, settings, python_facts(), ranks=self._exchange.ranks())

    def latest(self, not_after: int | None = None) -> int | None:
        """Finds the newest step that all processes committed; every process calls it. See `Run.latest`.

        Parameters
        ----------
        not_after : int, default None
            The largest step to return; None for no limit.

        Returns
        -------
        int or None
            The step; None if there is none.

        Raises
        ------
        TwinrunError
            The run is closed, or `not_after` is no integer.
        """
        self._open()
        self._exchange.all(None)  # a step is there when the slowest process has committed it
        return super().latest(not_after)

    def capture(  # type: ignore[override]
        self,
        step: int,
        fields: object,
        *,
        sharded: Mapping[str, Sharded] | None = None,
        local: Iterable[str] = (),
    ) -> CaptureFacts:
        """Captures a step; every process calls it.

        Parameters
        ----------
        step : int
            Its number, the same on all processes.
        fields : model, optimizer, or container of tensors
            Names of wrappers (DDP, FSDP 1, torch.compile, …) are left out. Parts of DTensors have the
            places that their placements give.
        sharded : dict of str to Sharded, default None
            Globs of plain tensors that are parts of global ones, and how. A warning names unused globs.
        local : iterable of str, default ()
            Globs of what each process has of its own: kept by each, compared rank by rank.

        Returns
        -------
        CaptureFacts
            What the capture cost.

        Raises
        ------
        ReplicasDiffer
            Processes hold different values, shapes or types of what all must hold alike.
        TwinrunError
            A tensor has no place (a partial sum), on any process; on all of them.
        """
        own: dict[str, object] = {}
        parts: list[Held] = []
        failed = ""
        digests: list[tuple[str, str]] = []
        try:
            own, parts = _divided(fields, {} if sharded is None else sharded, [*local])
            found = digests_of({p.name: p.local for p in parts})
            digests = [(str(d), kind) for d, kind, _ in found]
        except TwinrunError as e:
            failed = str(e)
        except Exception as e:  # the others must not wait for this process
            failed = f"{type(e).__name__}: {e}"
        entries = [(p.key, own_digest) for p, own_digest in zip(parts, digests, strict=False)]
        told = self._exchange.all((failed, entries, step))
        steps = [number for _, _, number in told]
        other = next((rank for rank, number in enumerate(steps) if number != steps[0]), None)
        if other is not None:
            raise TwinrunError(
                f"processes capture different steps: process 0 step {steps[0]!r}, process {other} step "
                f"{steps[other]!r}; neither is captured",
                where=self._path,
                fix="let all processes capture the same steps",
            )
        problems = [(rank, why) for rank, (why, _, _) in enumerate(told) if why]
        if problems:
            rank, why = problems[0]
            raise TwinrunError(f"step {step} is not captured: process {rank}: {why}", where=self._path)
        holders = _holders(told, step)
        kept = dict(own)
        places = {}
        for p in parts:
            if holders[p.key] != self._exchange.rank or (0 in p.box[2] and 0 not in p.shape):
                continue  # another process has it, or there is nothing of it here
            kept[p.name] = p.local
            if p.shape:
                places[p.name] = p.shape, p.offset
        if not kept:  # every process of a history has a field: nothing of one that others hold
            some = next((p for p in parts if p.shape), None)
            if some is not None:
                kept[some.name] = some.local[:0]
                places[some.name] = some.shape, (0,) * len(some.shape)
        return super().capture(step, kept, global_place=places)


def _unwrapped(what: Any, depth: int = 0) -> Any:
    """Containers with the states of their models, in which names of wrappers are left out."""
    if isinstance(what, torch.nn.Module):
        state = what.state_dict()
        names = state_names(what, state)
        return {names[key]: value for key, value in state.items()}
    if depth < _DEEPEST and type(what) in (dict, OrderedDict):
        return type(what)((key, _unwrapped(one, depth + 1)) for key, one in what.items())
    if depth < _DEEPEST and type(what) in (list, tuple):
        return type(what)(_unwrapped(one, depth + 1) for one in what)
    return what


def _divided(
    fields: object, sharded: Mapping[str, Sharded], local: list[str]
) -> tuple[dict[str, object], list[Held]]:
    """What this process has of its own, and its parts of what all hold together."""
    if not isinstance(sharded, Mapping):
        raise TwinrunError("sharded is a mapping of globs", fix='give {"*.weight": Sharded(…)}')
    for glob, given_as in sharded.items():
        if not isinstance(given_as, Sharded):
            raise TwinrunError(
                f"sharded[{glob!r}] is no Sharded, but {type(given_as).__name__!r}",
                fix="give twinrun.torch.Sharded(dim, sizes, group)",
            )
    unused = {*sharded, *local}
    fields = _unwrapped(fields)
    own: dict[str, object] = {}
    parts: list[Held] = []
    for given, value in flattened("", state_of(fields)).items():
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


def _holders(told: list[tuple[str, list[tuple], int]], step: int) -> dict[tuple, int]:
    """The process that keeps each box: of those that hold it the one that keeps the least so far; of numbers
    the first. Raises ReplicasDiffer where processes hold a box differently.
    """
    first: dict[tuple, int] = {}
    all_of: dict[tuple, list[int]] = {}
    known: dict[tuple, tuple[str, str]] = {}
    differ: dict[str, set[int]] = {}
    forms: dict[
        str, tuple[int, tuple]
    ] = {}  # by name: the first process, its shape of the whole and its type
    for rank, (_, entries, _) in enumerate(told):
        for key, digest in entries:
            name = key[0].removesuffix(SUFFIX)  # a text of one process may be a number of another one
            form = key[0], key[1], digest[1]
            if forms.setdefault(name, (rank, form))[1] != form:
                differ.setdefault(name, {forms[name][0]}).add(rank)
            all_of.setdefault(key, []).append(rank)
            if key not in first:
                first[key], known[key] = rank, digest
            elif known[key] != digest:
                differ.setdefault(key[0], {first[key]}).add(rank)
    if differ:
        names = tuple(differ)
        ranks = tuple(sorted(set().union(*differ.values())))
        said = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        error = ReplicasDiffer(
            f"step {step} is not captured: processes {', '.join(map(str, ranks))} hold different values of {said}, "
            "which all must hold alike",
            fix="name what each process has of its own with local=",
        )
        error.ranks, error.names = ranks, names
        raise error
    load = [0] * len(told)
    chosen = {}
    for key, ranks_of in all_of.items():
        rank = min(ranks_of, key=load.__getitem__) if key[1] else ranks_of[0]
        load[rank] += math.prod(key[3])
        chosen[key] = rank
    return chosen
