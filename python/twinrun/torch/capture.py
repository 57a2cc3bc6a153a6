"""Captures of several processes: each holds its part of what DTensor, FSDP2 or the caller divided."""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
import torch.distributed as dist

from .. import _core
from ..arguments import checked_path, names_given, step_number
from ..capture.facts import CaptureFacts
from ..capture.run import Run
from ..errors import TwinrunError
from ..formats.texts import SUFFIX
from ..runs.boxes import StepBoxes, values_of
from ..runs.digest import digests_of
from ..runs.provenance import python_facts
from .division import divided
from .exchange import Exchange
from .modes import unseen
from .placements import Held, Sharded
from .replicas import ReplicasDiffer
from .restoration import Restoration

__all__ = ["ParallelRun"]

_Made = TypeVar("_Made")


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

    def latest(
        self, not_after: int | None = None, *, history: str | os.PathLike[str] | None = None
    ) -> int | None:
        """Finds the newest step that all processes committed; every process calls it. See `Run.latest`.

        Parameters
        ----------
        not_after : int, default None
            The largest step to return; None for no limit.
        history : path, default None
            Another history, which any number of processes captured; None for that of this run.

        Returns
        -------
        int or None
            The step; None if there is none.

        Raises
        ------
        TwinrunError
            The run is closed, `not_after` is no integer, or `history` is none.
        """
        self._open()
        self._exchange.all(None)  # a step is there when the slowest process has committed it
        if history is None:
            return super().latest(not_after)
        last = math.inf if not_after is None else step_number(not_after)
        steps = [s.step for s in _core.open_history(checked_path(history)).steps if s.step <= last]
        return max(steps, default=None)

    @unseen
    def capture(  # type: ignore[override]
        self,
        step: int,
        fields: object,
        *,
        stream: object = None,
        sharded: Mapping[str, Sharded] | None = None,
        local: Iterable[str] = (),
        phase: str | None = None,
    ) -> CaptureFacts:
        """Captures a step; every process calls it.

        Parameters
        ----------
        step : int
            Its number, the same on all processes.
        fields : model, optimizer, or container of tensors
            Names of wrappers (DDP, FSDP 1, torch.compile, …) are left out. Parts of DTensors have the
            places that their placements give.
        stream : int or stream object, default None
            As of `Run.capture`.
        sharded : dict of str to Sharded, default None
            Globs of plain tensors that are parts of global ones, and how. A warning names unused globs.
        local : str or iterable of str, default ()
            Globs of what each process has of its own: kept by each, compared rank by rank.
        phase : str, default None
            As of `Run.capture`: what has just been done, the same on all processes. Each keeps the values of
            its part, and `twinrun.compare_traces` compares rank by rank.

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

        Notes
        -----
        There is no `ids`: rows that are matched by IDs have no place in a global array. There is no
        `global_place`: placements and `sharded` give it.
        """
        self._open()
        own: dict[str, object] = {}
        parts: list[Held] = []
        failed = ""
        digests: list[tuple[str, str]] = []
        try:
            if phase is not None and (not isinstance(phase, str) or not phase):
                raise TwinrunError(f"a phase is a name, not {phase!r}")
            own, parts = divided(fields, sharded, names_given(local, "local"))
            found = digests_of({p.name: p.local for p in parts}, stream=stream)
            digests = [(str(d), kind) for d, kind, _ in found]
            if phase is not None:  # what cannot be digested ends the phase on all processes
                digests_of(own, stream=stream)
            if not own and not parts:
                raise TwinrunError("there is no field to capture")
        except TwinrunError as e:
            failed = str(e)
        except Exception as e:  # the others must not wait for this process
            failed = f"{type(e).__name__}: {e}"
        entries = [(p.key, own_digest) for p, own_digest in zip(parts, digests, strict=False)]
        told = self._exchange.all((failed, entries, (step, phase)))
        self._check_together([place for _, _, place in told])
        problems = [(rank, why) for rank, (why, _, _) in enumerate(told) if why]
        if problems:
            rank, why = problems[0]
            raise TwinrunError(f"step {step} is not captured: process {rank}: {why}", where=self._path)
        kept, places = self._kept(own, parts, _holders([entry for _, entry, _ in told], step))
        if phase is not None:
            return self._capture_phase(step_number(step), kept, phase, places)
        return super().capture(step, kept, stream=stream, global_place=places)

    def _check_together(self, places: list[tuple[int, str | None]]) -> None:
        """Raises TwinrunError where processes capture different steps or phases."""
        other = next((rank for rank, place in enumerate(places) if place != places[0]), None)
        if other is None:
            return
        said = [f"step {step!r}" + (f", phase {phase!r}" if phase else "") for step, phase in places]
        what = "steps" if places[0][0] != places[other][0] else "phases"
        raise TwinrunError(
            f"processes capture different {what}: process 0 {said[0]}, process {other} {said[other]}; neither is captured",
            where=self._path,
            fix=f"let all processes capture the same {what}",
        )

    def _kept(
        self, own: dict[str, object], parts: list[Held], holders: Mapping[tuple, int]
    ) -> tuple[dict[str, object], dict[str, Any]]:
        """What this process keeps: (fields, places of those that are parts)."""
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
        return kept, places

    # ---- back from a history ----

    def load(
        self,
        step: int,
        names: Iterable[str] | None = None,
        *,
        history: str | os.PathLike[str] | None = None,
    ) -> dict[str, np.ndarray]:
        """Reads fields of a step into new arrays, whole on every process; every process calls it.

        Parameters
        ----------
        step : int
            A committed step.
        names : str or iterable of str, default None
            The fields to read; None for all.
        history : path, default None
            Another history, which any number of processes captured; None for that of this run.

        Returns
        -------
        dict of str to numpy.ndarray
            New arrays: of what processes held in parts, the global ones; of what each had of its own
            (`local`), that of this process. bf16 comes as its bits, in uint16.

        Raises
        ------
        MissingFile
            The history has no such step or field, or its data was not kept; or a field is of each process
            alone, and this process had none.
        DamagedFile
            A checksum does not fit, or a part is missing.
        TwinrunError
            The run is closed, processes name different steps, or another process failed.
        """
        wanted = None if names is None else names_given(names, "names")

        def read(boxes: StepBoxes) -> dict[str, np.ndarray]:
            found = {}
            for name in boxes.names if wanted is None else wanted:
                if name in boxes and boxes.is_own(name):
                    found[name] = values_of(boxes.own(name, self._exchange.rank, self._exchange.size)).copy()
                else:
                    shape = boxes.whole(name).shape
                    found[name] = boxes.read(name, (0,) * len(shape), shape)
            return found

        return self._from(step, history, "loaded", read)

    def restore(
        self,
        step: int,
        fields: object,
        *,
        sharded: Mapping[str, Sharded] | None = None,
        local: Iterable[str] = (),
        history: str | os.PathLike[str] | None = None,
    ) -> None:
        """Puts a step back into what was captured; every process calls it, with what it gives to `capture`.

        Parameters
        ----------
        step : int
            A committed step.
        fields : model, optimizer, or container of tensors
            Tensors are written in place, DTensors in the part of this process. Numbers in dicts, lists,
            optimizers and schedulers are set. An optimizer that made no step yet gets its states.
        sharded : dict of str to Sharded, default None
            As of `capture`, for the tensors of now.
        local : str or iterable of str, default ()
            As of `capture`: each process gets what it had of its own.
        history : path, default None
            Another history, which any number of processes captured, however their tensors were divided; None
            for that of this run.

        Raises
        ------
        Incomparable
            A value has another type or shape than was captured, or a text is another one; or `local` names
            something, and another number of processes captured the step.
        MissingFile
            The history has no such step or field, or its data was not kept.
        DamagedFile
            A checksum does not fit, or a part is missing.
        Unsupported
            An optimizer without states, of which it is not known how it makes them.
        TwinrunError
            The run is closed, processes name different steps, a value cannot be written, or another process
            failed.

        Notes
        -----
        Everything is looked up before anything is written, and every byte is checked. After a later error
        some values may be those of the step, and others the old ones. Of texts only digests are kept, so they
        must be what they were.
        """
        globs = names_given(local, "local")

        def checked(boxes: StepBoxes) -> Restoration:
            made = Restoration(boxes, fields, self._exchange.rank, self._exchange.size)
            made.check(sharded, globs)
            return made

        self._from(step, history, "restored", checked, Restoration.write, Restoration.finish)

    def _from(
        self,
        step: int,
        history: str | os.PathLike[str] | None,
        what: str,
        first: Callable[[StepBoxes], Any],
        *then: Callable[[Any], None],
    ) -> Any:
        """Opens a step, and does one thing after the other with it. No process goes on before all did one,
        and none at all where one of them failed.
        """
        self._open()

        def begun() -> tuple[int, str]:
            if history is None:
                super(ParallelRun, self).wait()
            return step_number(step), os.path.abspath(
                self._path if history is None else checked_path(history)
            )

        number, path = self._all_of(step, what, begun)
        places = self._exchange.all((number, path))
        other = next((rank for rank, place in enumerate(places) if place != places[0]), None)
        if other is not None:
            raise TwinrunError(
                f"processes name different steps: process 0 step {places[0][0]} of {places[0][1]}, process {other} step "
                f"{places[other][0]} of {places[other][1]}; nothing is {what}",
                where=self._path,
                fix="let all processes name the same step",
            )
        with contextlib.ExitStack() as opened:
            made = self._all_of(step, what, lambda: first(opened.enter_context(StepBoxes(path, number))))
            for one in then:
                self._all_of(step, what, functools.partial(one, made))
        return made

    def _all_of(self, step: int, what: str, attempt: Callable[[], _Made]) -> _Made:
        """What an attempt gives in this process. Raises where it failed in any of them."""
        made: _Made | None = None
        error: Exception | None = None
        try:
            made = attempt()
        except Exception as e:  # the others must not wait for this process
            error = e
        told = self._exchange.all(
            ""
            if error is None
            else str(error)
            if isinstance(error, TwinrunError)
            else f"{type(error).__name__}: {error}"
        )
        if error is not None:
            raise error
        failed = next(((rank, why) for rank, why in enumerate(told) if why), None)
        if failed is not None:
            raise TwinrunError(
                f"step {step} is not {what}: process {failed[0]}: {failed[1]}", where=self._path
            )
        return made  # type: ignore[return-value]


def _holders(told: list[list[tuple]], step: int) -> dict[tuple, int]:
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
    for rank, entries in enumerate(told):
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
