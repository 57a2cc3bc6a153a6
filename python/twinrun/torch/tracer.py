"""`trace`: what goes into the modules of a model, what comes out, and how the model learns from it.

Nothing here changes a value: digests are made of what is there. Hooks return None; that of an optimizer's
step puts the program's closure into one that looks at its gradients.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from ..capture.events import EventWriter, refuse_later_steps
from ..capture.run import Run
from ..errors import TwinrunError
from ..runs.gaps import NOT_LOOKED_INTO
from ..trace.escalation import KeptPlaces
from ..trace.result import Origin
from .divergence import Divergence
from .generators import Generators
from .gradients import ParameterGradients
from .guard import Guard
from .iterations import Iterations
from .model import Watched
from .modes import compiling
from .module_gradients import ModuleGradients
from .modules import ModuleHooks
from .node_gradients import NodeGradients
from .operations import OperationEvents, OperationMode
from .optimizers import OptimizerHooks
from .position import Position
from .processes import rank_path
from .recorder import Recorder
from .replica_checks import ReplicaChecks
from .settings import Settings, check_version, models_of, optimizers_of
from .traced_model import TracedModel
from .uncalled import UncalledModules, may_be_called
from .values import tensors_of

__all__ = ["Trace", "trace"]


class Trace:
    """A trace under way; `trace` makes it.

    Attributes
    ----------
    iteration : int
        The iteration under way, from `start` on.
    run : Run
        The run that it is captured into.
    problems : list of str
        What could not be traced so far. A comparison reports it, and never says 'same'.
    stopped : bool
        Whether the trace ended because of an error.

    Notes
    -----
    See `trace`.
    """

    def __init__(
        self,
        models: Mapping[str, torch.nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        run: Run,
        settings: Settings,
        *,
        own_run: bool,
    ) -> None:
        self.problems: list[str] = []
        self._own_run, self._left = own_run, False
        self._told_unhooked = False  # whether a warning said that the program removed hooks
        self._stepped = False  # whether an optimizer ended an iteration since the last `step`
        self._limit = self._deeper = -1  # of Python's recursion: before the trace, and in it
        self._handles: list[Any] = []
        self._mode: OperationMode | None = None
        position = self._position = Position(settings.start, settings.every)
        self._divergence = (
            None
            if settings.reference is None
            else Divergence(settings.reference, settings.on_divergence, self.problems)
        )
        # Where only some are asked for, a program may never call the model itself, or these.
        self._patterns, self._all_modules = settings.modules, "*" in settings.modules
        self._kept = KeptPlaces(settings.keep)
        writer = EventWriter(run.path, run.keeps_data, settings.keep)
        self._iterations = Iterations(run, writer, position, self._divergence)
        guard = self._guard = Guard(position, self._iterations, self._handles, self.problems, settings.raises)
        writer.within = guard.unseen
        generators = Generators(settings.rng, writer)
        recorder = self._recorder = Recorder(
            writer,
            position,
            generators,
            self._kept,
            self._iterations.gradient_seen,
            self._iterations.gradient_due,
        )
        model = self._model = TracedModel(models, settings.modules)
        with guard.work("the modules of the model"):
            model.look()
        owners = model.owners
        replicas = (
            ReplicaChecks(settings.replicas, settings.group, guard, position, self._iterations, self.problems)
            if settings.replicas
            else None
        )
        self._parameters = ParameterGradients(owners, guard, position, recorder)
        self._gradients = (
            NodeGradients(guard, position, recorder, owners)
            if settings.level == "ops"
            else ModuleGradients(guard, position, recorder, owners)
        )
        self._modules = ModuleHooks(
            model,
            guard,
            position,
            recorder,
            generators,
            self._gradients,
            self._look_at_model,
        )
        self._uncalled = UncalledModules(model.watched, owners, self._all_modules)
        self._told: set[str] = set()  # modules of which it was told that they were not called
        self._steps = OptimizerHooks(
            optimizers, owners, guard, position, recorder, replicas, self._optimizer_stepped
        )
        self._operations = (
            OperationEvents(guard, position, recorder, generators) if settings.level == "ops" else None
        )

    @property
    def _released(self) -> bool:
        """Whether it ended for ever, and knows its models no more."""
        return self._left and self._own_run

    @property
    def iteration(self) -> int:
        return self._position.iteration

    @iteration.setter
    def iteration(self, number: int) -> None:
        self._position.iteration = number

    @property
    def run(self) -> Run:
        return self._iterations.run

    @run.setter
    def run(self, run: Run) -> None:
        self._iterations.run = run

    @property
    def stopped(self) -> bool:
        return self._guard.stopped

    @property
    def active(self) -> bool:
        """Whether values are recorded now."""
        return self._guard.active

    # ---- beginning and end ----

    def __enter__(self) -> Trace:
        # Nothing of what comes now would be recorded, and a comparison could not know that.
        if self._released:
            raise TwinrunError(
                "a trace with a path of its own is entered once: its run is closed",
                where=self.run.path,
                fix="make another trace, or give it a twinrun.Run in place of the path",
            )
        try:
            with self._guard.work("the hooks of modules"):
                self._deepen()
                self._model.look()
                self._warn_of_patterns()
                self._uncalled = UncalledModules(self._model.watched, self._model.owners, self._all_modules)
                self._modules.attach(self._model.watched, self._handles)
            with self._guard.work("the hooks of parameters"):
                self._parameters.attach(self._model.parameters(), self._handles)
            # Also after an error: other processes may wait for this one before a step.
            with self._guard.work("the hooks of optimizers"):
                self._steps.attach(self._handles)
            self._enter_mode()
        except BaseException:
            self._unhook()
            if self._own_run:
                self.run.close()
            raise
        return self

    def _deepen(self) -> None:
        """Makes room for the calls of hooks: PyTorch calls a module with hooks through one function more, and
        a model of many modules, one within the other, runs without a trace.
        """
        deepest = max(
            (name.count(".") for m in self._model.each() for name, _ in m.named_modules()), default=0
        )
        self._limit = sys.getrecursionlimit()
        self._deeper = self._limit + 2 * deepest + _FRAMES
        sys.setrecursionlimit(self._deeper)

    def _warn_of_patterns(self) -> None:
        paths = [w.path for w in self._model.watched if not w.root]
        for pattern in self._patterns:
            if pattern != "*" and not any(fnmatch.fnmatchcase(path, pattern) for path in paths):
                warnings.warn(
                    f"twinrun: modules={pattern!r} matches no module: see model.named_modules()",
                    RuntimeWarning,
                    stacklevel=4,
                )

    def _enter_mode(self) -> None:
        # Not as work of the guard, which takes modes away for its time.
        if self._operations is None or self._guard.stopped:
            return
        mode = OperationMode(self._guard, self._operations)
        try:
            mode.__enter__()
        except Exception as e:
            if not self._guard.failed("the operations", e):
                raise
        else:
            self._mode = self._guard.own_mode = mode

    def _leave_mode(self, kind: object, error: BaseException | None, trace: object) -> None:
        mode, self._mode = self._mode, None
        try:
            if mode is not None and mode.is_innermost():
                mode.__exit__(kind, error, trace)
        except Exception as e:
            if not self._guard.failed("the operations", e):
                raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._released:
            return
        unhooked: list[Watched] = []
        try:
            if not self._guard.stopped:
                with self._guard.work("the hooks of modules"):
                    unhooked = self._modules.unhooked()
            self._leave_mode(kind, error, trace)
            self._unhook()
            self._iterations.capture_late()
            with self._guard.work("the last iteration"):
                self._iterations.check_readable()
                self._note_unhooked(unhooked)
                self._commit(agree=error is None, last=True)
        finally:
            self._left = True
            self._unhook()
            self._close(error is None)
            if self._own_run:
                self._release()
        if error is None and not self._guard.stopped:
            self._kept.warn_of_others()
            if not self._iterations.any:
                warnings.warn(
                    f"twinrun: nothing was traced: {_UNCALLED}: {_COMPILED}", RuntimeWarning, stacklevel=2
                )

    def _close(self, alone: bool) -> None:
        if not self._own_run:
            return
        try:
            self.run.close()
        except Exception as e:
            if self._guard.raises and alone:
                raise
            warnings.warn(f"twinrun: the trace could not be closed: {e}", RuntimeWarning, stacklevel=3)

    def _release(self) -> None:
        """Models and optimizers live no longer than without a trace, whoever keeps the trace."""
        self._position.begin_iteration()
        del self._model, self._modules, self._uncalled, self._parameters, self._gradients, self._steps
        self._operations = None

    def _unhook(self) -> None:
        if sys.getrecursionlimit() == self._deeper:
            sys.setrecursionlimit(self._limit)
        for handle in self._handles:
            with contextlib.suppress(Exception):
                handle.remove()
        self._handles.clear()
        self._modules.forget()
        self._parameters.keep(())

    # ---- iterations ----

    def _look_at_model(self, *, at_end: bool = False) -> list[Watched]:
        """Hooks the modules and parameters that came into the models, in place of others or besides them."""
        if not at_end:
            self._steps.come_last()
        changes = self._model.look(at_end=at_end)
        if changes is None:
            return []
        if at_end:
            self._parameters.keep(self._model.parameters())
        self._modules.detach(changes.gone)
        self._modules.attach(changes.new, self._handles)
        self._parameters.attach(self._model.parameters(), self._handles)
        self._uncalled = UncalledModules(self._model.watched, self._model.owners, self._all_modules)
        return changes.new

    def step(self) -> None:
        """Ends an iteration, also one in which the model was not called. With `optimizer`, its `step` does
        that.

        Where an optimizer's step may be skipped, as `torch.amp.GradScaler` does, call it at the end
        of each iteration: after a step of the optimizer it does nothing.
        """
        if self._released:
            return
        ended, self._stepped = self._stepped, False
        if self._position.touched or not ended:
            self._end_iteration()

    def _optimizer_stepped(self) -> None:
        self._stepped = True
        self._end_iteration()

    def _end_iteration(self) -> None:
        """Iterations count in a trace that stopped, too: processes compare their replicas by this number."""
        self._position.touched = False
        self._iterations.capture_late()
        try:
            with self._guard.work("the end of the iteration"):
                self._iterations.check_readable()
                self._check_forward()
                self._commit()
        finally:
            self._position.iteration += 1

    def _check_forward(self) -> None:
        """Gradients without a forward pass: what went into the model, or into a module, was not seen, and
        may differ.
        """
        gradients, self._parameters.seen = self._parameters.seen, set()
        if self._guard.stopped:
            return
        if not self._position.chosen:
            self._hook_again(self._modules.unhooked())
            return
        self._note_late(self._look_at_model(at_end=True))
        unhooked = self._modules.unhooked()
        self._hook_again(unhooked)
        self._note_unhooked(unhooked)
        uncalled = self._uncalled.found(gradients)
        if self._modules.entered or not self._iterations.has_gradients_alone():
            self._note_uncalled(uncalled)
        elif uncalled or self._all_modules or not self._uncalled.tell:
            of = "" if self._all_modules or not uncalled else f" of {_names(uncalled)}"
            text = self._guard.problem(f"gradients were seen, and no forward pass{of}: {_COMPILED}")
            warnings.warn(f"twinrun: {text}", RuntimeWarning, stacklevel=4)
        else:  # a program may call others than those that were chosen: nobody knows
            self._note_uncalled([w for w in self._model.watched if w.root])

    def _note_late(self, late: Sequence[Watched]) -> None:
        """Modules that came into the models after the first call of this iteration."""
        late = [w for w in late if may_be_called(w.module)]
        for w in late:
            self._recorder.uncalled(w.path, w.kind)
        if late:
            warnings.warn(
                f"twinrun: iteration {self._position.iteration}: {_names(late)} came into the model while it ran. "
                "What goes in and comes out is traced from the next iteration on",
                RuntimeWarning,
                stacklevel=4,
            )

    def _hook_again(self, unhooked: Sequence[Watched]) -> None:
        if not unhooked:
            return
        gone = {id(handle) for handle in self._modules.detach(unhooked)}
        self._handles[:] = [handle for handle in self._handles if id(handle) not in gone]
        self._modules.attach(unhooked, self._handles)

    def _note_unhooked(self, unhooked: Sequence[Watched]) -> None:
        """Modules whose hooks the program removed: what went in and came out since is not traced. A warning
        says so once.
        """
        if unhooked:
            text = self._guard.problem(
                f"the program removed the hooks of {_names(unhooked)}. What went in and came out since is not traced"
            )
            if not self._told_unhooked:
                self._told_unhooked = True
                warnings.warn(f"twinrun: {text}", RuntimeWarning, stacklevel=4)

    def _note_uncalled(self, uncalled: Sequence[Watched]) -> None:
        """The trace says so of each iteration, and a warning once."""
        for w in uncalled:
            self._recorder.uncalled(w.path, w.kind)
        new = [w for w in uncalled if w.path not in self._told]
        self._told.update(w.path for w in new)
        if new:
            text = (
                f"iteration {self._position.iteration}: no call of {_names(new)} was seen, though there were gradients: "
                "compiled code ran in its place, or its parameters are used elsewhere. What goes in and comes out is "
                "not traced there"
            )
            fix = _COMPILED if any(w.root for w in new) else "run without torch.compile to trace it"
            warnings.warn(f"twinrun: {text}: {fix}", RuntimeWarning, stacklevel=4)

    def _commit(self, agree: bool = True, last: bool = False) -> None:
        self._position.begin_iteration()
        self._recorder.begin_iteration()
        self._modules.begin_iteration()
        stopped, divergence = self._guard.stopped, self._divergence
        found = None if stopped else self._iterations.capture(last)
        if divergence is None:
            return
        if found is not None:
            divergence.act(found)
        if agree and (self._position.chosen or last):
            divergence.agree(self._position.iteration, found, stopped=stopped, last=last)

    # ---- what the caller names ----

    def record(self, name: str, value: Any) -> None:
        """Adds a value of the training's own code to the trace, such as the loss.

        Call it before `optimizer.step()`, which ends the iteration: afterwards the value belongs to the
        next one.

        Parameters
        ----------
        name : str
            What a comparison calls it.
        value : tensor, number, or container of them
            The value. Gradients through what made it are traced too.
        """
        if compiling() or not self._guard.records():
            return
        grads = torch.is_grad_enabled()
        with self._guard.work(f"the value {name!r}"):
            event = self._recorder.event("record", "", "", str(name), self._position.new_call())
            attributes: list[str] = []
            self._recorder.see(event, str(name), value, out=True, attributes=attributes)
            for label in attributes:
                self._recorder.setting(event, label, NOT_LOOKED_INTO, out=True)
            if grads:
                nodes = [t.grad_fn for t in tensors_of(value) if t.grad_fn is not None]
                self._gradients.watch_record(nodes, str(name))


def _names(modules: Sequence[Watched]) -> str:
    """Modules in words."""
    names = [w.path or "the model" for w in modules[:_MOST_NAMES]]
    return ", ".join(names) + (
        f" and {len(modules) - _MOST_NAMES} more" if len(modules) > _MOST_NAMES else ""
    )


_MOST_NAMES = 5
_FRAMES = 100  # of the trace's own work within a hook
_UNCALLED = "the model was not called in an iteration to be traced"
_COMPILED = "what torch.compile makes of a model is traced by trace(torch.compile(model), …)"


def trace(
    model: torch.nn.Module | Mapping[str, torch.nn.Module],
    run: Run | str | os.PathLike[str],
    *,
    optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None = None,
    every: int = 1,
    modules: str | Iterable[str] = "*",
    level: str = "modules",
    escalate: Any = None,
    start: int = 0,
    rng: str = "torch",
    existing: str = "refuse",
    on_error: str = "warn",
    reference: str | os.PathLike[str] | None = None,
    on_divergence: Callable[[Origin], object] | str | None = None,
    replicas: bool | int = False,
    group: Any = None,
) -> Trace:
    """Traces a training: which values go into each module and come out, forwards and backwards.

    ::

        with twinrun.torch.trace(model, "runs/a", optimizer=optimizer) as trace:
            for batch in batches:
                ...  # the training, as it is: it calls optimizer.step(), which ends an iteration

    `twinrun compare runs/a runs/b` then names the operation at which two trainings part.

    Parameters
    ----------
    model : torch.nn.Module, or dict of str to torch.nn.Module
        The model; several have names.
    run : path or Run
        The folder of the history that is made, or a run with `keep_data=True` that is open. Where processes
        work together (torch.distributed), each makes a folder below it.
    optimizer : torch.optim.Optimizer or several, default None
        Its steps are traced, and the step of the last one ends an iteration. None: call `Trace.step`.
    every : int, default 1
        Every how many iterations are traced.
    modules : str or iterable of str, default '*'
        Globs of the paths of modules that are traced; the model itself always is.
    level : {'modules', 'ops'}
        'ops': every operation of PyTorch besides.
    escalate : True, TraceComparison, Site, (path, path) or iterable of Site, default None
        Keeps the data at these places; of two traces, at the place where they part first. True: of the trace
        that an earlier run left in `run`, and of `reference`; this one goes to `run.escalated`.
    start : int, default 0
        The number of the first iteration: of a training that is resumed, the one that comes next.
    rng : {'torch', 'all', 'none'}
        Which states of random number generators are traced: PyTorch's, on entry to each module;
        those of Python and NumPy too, at the beginning of each iteration; or none.
    existing : {'refuse', 'append', 'replace'}
        What happens where the folder holds a history.
    on_error : {'warn', 'raise'}
        What an error of the trace does: a warning, and the training goes on without it; or it is raised.
    reference : path, default None
        Another trace: each iteration is compared with the same iteration there, when it ends.
    on_divergence : callable, 'warn' or 'stop', default None
        What the first divergence from `reference` does: `on_divergence(origin)` is called; a
        warning, as with None; or `TraceDiverged` is raised, which ends the training. Where processes work
        together (torch.distributed), it is raised on all of them that have `on_divergence="stop"`,
        after the next iteration that is traced, so that none is left waiting; in the last
        iteration, only on those that differ.
    replicas : bool or int, default False
        Data-parallel processes compare parameters, gradients and states among themselves before
        each step of the optimizer, or before every so many: where they differ, `ReplicasDiffer` is
        raised on all processes.
    group : process group or dimension of a DeviceMesh, default None
        The processes that hold the same values, for `replicas`: with tensor or pipeline
        parallelism, the data-parallel group of this process. Every process of the job must trace
        with `replicas`, each with its own group. None: all processes.

    Returns
    -------
    Trace
        A context manager.

    Raises
    ------
    TwinrunError
        A parameter has no meaning, the folder holds a history, or the run has a step from `start` on.
    Unsupported
        This PyTorch is older than 2.4.

    Notes
    -----
    Values are digested exactly, bit by bit; no bit of the training changes. But at `level="ops"` PyTorch
    itself takes other kernels for a few operations (docs/reference/trace.md). A module of TorchScript is
    traced as a whole. Inside of what `torch.compile` makes code of nothing is traced, only what goes in and
    comes out. Its backends "eager" and "aot_eager" make none: `level="ops"` sees their operations.
    While a CUDA graph is captured nothing can be traced.
    """
    check_version()
    # A training that is run again: the first trace and the reference are compared once, before it.
    first = run if escalate is True and not isinstance(run, Run) else None
    settings = Settings.checked(
        every=every,
        modules=modules,
        level=level,
        escalate=escalate if first is None else None,
        start=start,
        rng=rng,
        on_error=on_error,
        reference=reference if first is None else None,
        on_divergence=on_divergence,
        replicas=replicas,
        group=group,
    )
    models, optimizers = models_of(model), optimizers_of(optimizer)
    if first is not None:
        run, settings = settings.of_second_run(first, reference)
    own = not isinstance(run, Run)
    made = run if isinstance(run, Run) else Run(rank_path(run), existing=existing, background=True)
    try:
        refuse_later_steps(made.path, made.steps, settings.start)
        return Trace(models, optimizers, made, settings, own_run=own)
    except BaseException:
        if own:
            made.close()
        raise
