"""Hooks of gradients at every node of the graph, for traces of operations.

What PyTorch's own nodes do are operations, which a trace sees by itself. Such a node has no event where
each gradient that leaves it is what a seen operation gave, or what came in. Others have: those of
`autograd.Function`, those in a thread in which the trace sees no operation, and those whose values come from
elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import msgspec
import torch

from ..runs.events import Event
from .guard import Guard
from .model import Owners
from .modes import sees_operations_alone
from .position import Position
from .recorder import Recorder
from .values import is_plain, leaves, memory_of

__all__ = ["NodeGradients", "module_of_node"]

_KEY = "twinrun"  # of what a node of the graph knows about itself
_LEAF = "AccumulateGrad"
# PyTorch generates these classes: their code is operations. Those that somebody wrote by hand
# (`autograd.Function`, in C++ too, and what is compiled) may call kernels besides.
_GENERATED = re.compile(r"[A-Za-z0-9]*Backward[0-9]+")
_IN_OPERATIONS = "seen by the operations that took it"


def _is_operations(node: Any, name: str) -> bool:
    """Whether a node runs operations of PyTorch, and nothing else."""
    kind = type(node)
    return kind.__module__ == "builtins" and kind.__name__ == name and _GENERATED.fullmatch(name) is not None


def module_of_node() -> str:
    """The path of the module that made the node whose gradient is computed now; '' where none is known."""
    node = torch._C._current_autograd_node()
    return "" if node is None else node.metadata.get(_KEY, "")


class _Node(msgspec.Struct, gc=False, eq=False):
    """A node of the graph of gradients, and its two hooks: PyTorch calls the one before it with the gradients
    that come, and the one after it with those that leave besides.

    gc=False: none is in a circle, and thousands of them would set Python's garbage collector to look at
    everything that PyTorch keeps. operations: whether all that it does are operations. call: the number of its
    call, between the hooks; -1 where there is none.
    """

    of: NodeGradients
    path: str
    kind: str
    name: str
    microbatch: int
    operations: bool
    call: int = -1

    def __call__(self, gradients: tuple, given: tuple | None = None) -> None:
        if given is None:
            self.of.before(self, gradients)
        else:
            self.of.after(self, gradients)


class NodeGradients:
    """The hooks of the nodes of a graph."""

    def __init__(self, guard: Guard, position: Position, recorder: Recorder, owners: Owners) -> None:
        self._guard, self._position, self._recorder, self._owners = guard, position, recorder, owners

    def forget(self) -> None:
        """The outermost module has ended. Nodes are not kept here."""
        self._guard.thread.given = None

    def watch_record(self, nodes: list[Any], name: str) -> None:
        """Adds hooks to what made a value of the training's own code."""
        self.watch(nodes, "", name)

    def watch(
        self,
        nodes: list[Any],
        path: str,
        kind: str,
        *,
        stops: Collection[int] = (),
        first: int = 0,
        hidden: bool = False,
    ) -> None:
        """Adds hooks to nodes and to those before them: they live as long as their graph.

        path, kind: of the module that made them. It ends at nodes whose id is in `stops`, and at
        those made before the sequence number `first`. hidden: they have no events.
        """
        waiting = nodes
        met: dict[int, Any] = {}
        while waiting:
            node = waiting.pop()
            if id(node) in met or id(node) in stops:
                continue
            met[id(node)] = node  # it must live as long as its number is used
            name = node.name()
            if name.endswith(_LEAF) or node._sequence_nr() < first:
                continue
            following = [n for n, _ in node.next_functions if n is not None]
            if _KEY not in node.metadata:
                node.metadata[_KEY] = path
                if not hidden:
                    seen = _is_operations(node, name) and not self._ends_unseen(following)
                    one = _Node(self, path, kind, name, self._position.microbatch, seen)
                    node.register_prehook(one)
                    node.register_hook(one)
            waiting.extend(following)

    def _ends_unseen(self, following: list[Any]) -> bool:
        """Whether a gradient goes to a tensor that is no parameter of the model: nothing else sees it there."""
        return any(
            n.name().endswith(_LEAF) and id(getattr(n, "variable", None)) not in self._owners
            for n in following
        )

    def before(self, one: _Node, gradients: tuple) -> None:
        """Gradients come into a node."""
        if not self._guard.records():
            return
        one.call = -1
        thread = self._guard.thread
        if one.operations and self._seen_alone(gradients):
            thread.given = {memory_of(g) for g in gradients if g is not None}
            return
        thread.given = None
        with self._guard.work((f"the gradient into {one.name} of", one.path)):
            one.call = self._position.new_call()
            self._see(one, gradients, out=False)

    def _seen_alone(self, gradients: tuple) -> bool:
        """Whether the trace sees the operations of a node that takes these, and no other code does."""
        if not sees_operations_alone(self._guard.own_mode):
            return False
        return all(g is None or is_plain(g) for g in gradients)

    def after(self, one: _Node, gradients: tuple) -> None:
        """Gradients leave a node."""
        thread = self._guard.thread
        given, thread.given = thread.given, None
        if not self._guard.records() or (one.call < 0 and not one.operations):
            return
        if one.call < 0 and given is not None and _all_lie_in(given, gradients):
            return
        with self._guard.work((f"the gradient out of {one.name} of", one.path)):
            if one.call < 0:
                one.call = self._position.new_call()
                event = self._event(one)
                self._recorder.setting(event, "grad", _IN_OPERATIONS)
                self._recorder.see_leaves(event, leaves("grad", gradients), out=True, role="gradient")
            else:
                self._see(one, gradients, out=True)
            one.call = -1

    def _see(self, one: _Node, gradients: tuple, *, out: bool) -> None:
        event = self._event(one)
        self._recorder.see_leaves(event, leaves("grad", gradients), out=out, role="gradient")

    def _event(self, one: _Node) -> Event:
        return self._recorder.event("backward", one.path, one.kind, one.name, one.call, one.microbatch)


def _all_lie_in(memory: set[int], tensors: tuple) -> bool:
    return all(t is None or (is_plain(t) and (memory_of(t) in memory or t.numel() == 0)) for t in tensors)
