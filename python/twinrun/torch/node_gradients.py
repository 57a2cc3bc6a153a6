"""Hooks of gradients at every node of the graph, for traces of operations.

What PyTorch's own nodes do are operations, which a trace sees by itself. Such a node has no event where
each gradient that leaves it is what a seen operation gave, or what came in, and goes on to other nodes.
Others have: those of `autograd.Function`, those in a thread in which the trace sees no operation, those whose
values come from elsewhere, and those whose gradients go to the caller. Hooks may change gradients between
nodes, and no operation shows that: the gradients at the borders of modules have events as well.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from threading import get_ident
from typing import Any, NamedTuple

import msgspec
import torch

from .guard import Guard
from .model import Owners
from .modes import sees_operations_alone
from .module_gradients import ModuleGradients
from .position import Position
from .recorder import Recorder
from .values import gradient_leaves, is_plain, memory_of, memory_of_plain

__all__ = ["NodeGradients", "module_of_node"]

_current_node = torch._C._current_autograd_node
_is_executed = torch._C._will_engine_execute_node
_KEY = "twinrun"  # of what a node of the graph knows about itself
_LEAF = "AccumulateGrad"
_COLLECTOR = getattr(torch._C._functions, _LEAF, None)  # the class of those of PyTorch
# PyTorch generates these classes: their code is operations. Those that somebody wrote by hand
# (`autograd.Function`, in C++ too, and what is compiled) may call kernels besides.
_GENERATED = re.compile(r"[A-Za-z0-9]*Backward[0-9]+")


class _Kind:
    """What the class of a node says of all of its nodes.

    leaf: they sum up the gradient of a leaf. operations: they run operations of PyTorch, and nothing
    else. name: None where each node has its own.
    """

    __slots__ = ("leaf", "name", "operations")

    def __init__(self, node: Any) -> None:
        kind, name = type(node), node.name()
        of_pytorch = kind.__module__ == "builtins" and kind.__name__ == name
        self.operations = of_pytorch and _GENERATED.fullmatch(name) is not None
        self.leaf = name.endswith(_LEAF)
        self.name = name if of_pytorch else None


def module_of_node() -> str:
    """The path of the module that made the node whose gradient is computed now; '' where none is known."""
    node = _current_node()
    return "" if node is None else node.metadata.get(_KEY, "")


class _Node(msgspec.Struct, gc=False, eq=False):
    """A node of the graph of gradients, and its two hooks: PyTorch calls the one before it with the gradients
    that come, and the one after it with those that leave besides.

    gc=False: none is in a circle, and thousands of them would set Python's garbage collector to look at
    everything that PyTorch keeps. call: the number of its call, between the hooks; -1 where there is none.
    """

    of: NodeGradients
    path: str
    kind: str
    name: str
    microbatch: int
    call: int = -1

    def __call__(self, gradients: tuple, given: tuple | None = None) -> None:
        if given is None:
            self.of.before(self, gradients)
        else:
            self.of.after(self, gradients)


class _OfOperations(msgspec.Struct, gc=False, eq=False):
    """A node that runs operations and nothing else, and the hook after it."""

    of: NodeGradients
    path: str
    kind: str
    name: str
    microbatch: int

    def __call__(self, gradients: tuple, given: tuple) -> None:
        self.of.after_operations(self, gradients, given)


class _Made(NamedTuple):
    """The only output of a module, and the nodes before what it made. thread, since: where the module ran,
    and the number of its call.
    """

    node: Any
    ends: list[Any]
    thread: int
    since: int


class NodeGradients:
    """The hooks of the nodes of a graph, and of the borders of modules in it."""

    def __init__(self, guard: Guard, position: Position, recorder: Recorder, owners: Owners) -> None:
        self._guard, self._position, self._recorder, self._owners = guard, position, recorder, owners
        self._kinds: dict[type, _Kind] = {}
        # While the outermost module is at work: by the number of the only output of a module within
        # it, that node, and those before what the module made. Outer modules look at these alone.
        self._beyond: dict[int, _Made] = {}
        self._borders = ModuleGradients(guard, position, recorder, owners)

    def forget(self) -> None:
        """The outermost module has ended. No node is kept any more."""
        self._guard.thread.given.clear()
        self._beyond.clear()
        self._borders.forget()

    def watch_record(self, nodes: list[Any], name: str) -> None:
        """Adds hooks to what made a value of the training's own code."""
        self._watch(list(nodes), "", name)
        if not self._position.frames:
            self._beyond.clear()
        self._borders.watch_record(nodes, name)

    def watch(self, nodes: list[Any], path: str, kind: str, **bounds: Any) -> None:
        """Adds hooks to nodes and to those before them: they live as long as their graph.

        path, kind: of the module that made them. bounds: where that ends, as of `ModuleGradients.watch`.
        """
        met = self._watch(list(nodes), path, kind, **bounds)
        self._borders.watch(nodes, path, kind, **bounds)
        del met

    def _watch(
        self,
        waiting: list[Any],
        path: str,
        kind: str,
        *,
        stops: Collection[int] = (),
        first: int = 0,
        since: int = -1,
        hidden: bool = False,
        coming: object = None,
    ) -> dict[int, Any]:
        """Gives the nodes by their numbers: Python makes objects for them anew where none is held."""
        met: dict[int, Any] = {}
        kinds, beyond, outputs, thread = self._kinds, self._beyond, list(waiting), get_ident()
        ends: list[Any] = []
        while waiting:
            node = waiting.pop()
            number = id(node)
            if number in met:
                continue
            met[number] = node  # it must live as long as its number is used
            if number in stops:
                ends.append(node)
                continue
            of = kinds.get(type(node)) or self._kind_of(node)
            if of.leaf:
                continue
            inner = beyond.get(number)
            # Each thread has numbers of its own.
            if inner is None or inner.thread == thread:
                outside = node._sequence_nr() < first
            else:
                outside = inner.since < since
            if outside:
                ends.append(node)
                continue
            if inner is not None:  # the nodes up to these were seen when an inner module ended
                waiting += inner.ends
                continue
            following = [n for n, _ in node.next_functions if n is not None]
            known = node.metadata
            if _KEY not in known:
                known[_KEY] = path
                if not hidden:
                    name, microbatch = of.name or node.name(), self._position.microbatch
                    if of.operations and not self._ends_unseen(following):
                        node.register_hook(_OfOperations(self, path, kind, name, microbatch))
                    else:
                        one = _Node(self, path, kind, name, microbatch)
                        node.register_prehook(one)
                        node.register_hook(one)
            waiting += following
        # Of several outputs an outer module may use some: not all ends need be reached from these.
        if len(outputs) == 1 and all(end is not outputs[0] for end in ends):
            beyond[id(outputs[0])] = _Made(outputs[0], ends, thread, since)
        return met

    def _kind_of(self, node: Any) -> _Kind:
        of = self._kinds.get(type(node))
        if of is None:
            of = _Kind(node)
            if of.name is not None or type(node) is _COLLECTOR:
                self._kinds[type(node)] = of
        return of

    def _ends_unseen(self, following: list[Any]) -> bool:
        """Whether a gradient goes to a tensor that is no parameter of the model: nothing else sees it."""
        kinds = self._kinds
        for node in following:
            of = kinds.get(type(node)) or self._kind_of(node)
            if of.leaf and id(getattr(node, "variable", None)) not in self._owners:
                return True
        return False

    def before(self, one: _Node, gradients: tuple) -> None:
        """Gradients come into a node."""
        if not self._guard.records():
            return
        with self._guard.work((f"the gradient into {one.name} of", one.path)):
            one.call = self._position.new_call()
            self._see(one, one.call, gradients, out=False)

    def after(self, one: _Node, gradients: tuple) -> None:
        """Gradients leave a node."""
        self._guard.thread.given.clear()
        if not self._guard.records() or one.call < 0:
            return
        with self._guard.work((f"the gradient out of {one.name} of", one.path)):
            self._see(one, one.call, gradients, out=True)
            one.call = -1

    def after_operations(self, one: _OfOperations, gradients: tuple, given: tuple) -> None:
        """Gradients leave a node that runs operations. given: those that came in, which it did not change."""
        guard = self._guard
        memory, shown = guard.thread.given, False
        if sees_operations_alone(guard.own_mode) and self._goes_to_leaves():
            shown = _all_lie_in(memory, given, gradients)
        memory.clear()
        if shown or not self._guard.records():
            return
        with self._guard.work((f"the gradients of {one.name} of", one.path)):
            call = self._position.new_call()
            self._see(one, call, given, out=False)
            self._see(one, call, gradients, out=True)

    def _goes_to_leaves(self) -> bool:
        """Whether all gradients of this pass go on to leaves, as those of `backward` do. Those of
        `torch.autograd.grad` may go to the caller from anywhere. The first node before a leaf tells: until
        then nobody knows.
        """
        thread, task = self._guard.thread, torch._C._current_graph_task_id()
        if thread.task != task:
            thread.task, thread.to_leaves = task, None
        if thread.to_leaves is None:
            for node, _ in _current_node().next_functions:
                if node is not None and self._kind_of(node).leaf:
                    thread.to_leaves = _takes_gradients(node)
                    break
        return thread.to_leaves is True

    def _see(self, one: _Node | _OfOperations, call: int, gradients: tuple, *, out: bool) -> None:
        event = self._recorder.event("backward", one.path, one.kind, one.name, call, one.microbatch)
        self._recorder.see_leaves(event, gradient_leaves(gradients), out=out, role="gradient")


def _all_lie_in(memory: set[int], given: tuple, gradients: tuple) -> bool:
    """Whether all gradients lie in this memory, or in that of the tensors `given`, which is added to it."""
    added = False
    for t in gradients:
        if t is None:
            continue
        if not is_plain(t):
            return False
        at = memory_of_plain(t)
        if at in memory:
            continue
        if not added:
            added = True
            memory.update([memory_of(one) for one in given if one is not None])
        if at not in memory and t.numel() != 0:
            return False
    return True


def _takes_gradients(leaf: Any) -> bool:
    try:
        return _is_executed(leaf)
    except RuntimeError:  # it is what `torch.autograd.grad` was asked for
        return False
