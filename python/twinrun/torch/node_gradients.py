"""Hooks of gradients at every node of the graph, for traces of operations."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
import torch

from .guard import Guard
from .position import Position
from .recorder import Recorder
from .values import leaves

__all__ = ["NodeGradients", "module_of_node"]

_KEY = "twinrun"  # of what a node of the graph knows about itself


def module_of_node() -> str:
    """The path of the module that made the node whose gradient is computed now; '' where none is known."""
    node = torch._C._current_autograd_node()
    return "" if node is None else node.metadata.get(_KEY, "")


class _Node(msgspec.Struct, gc=False, eq=False):
    """A node of the graph of gradients, and its two hooks: PyTorch calls the one before it with the gradients
    that come, and the one after it with those that leave besides.

    gc=False: none is in a circle, and thousands of them would set Python's garbage collector to look at
    everything that PyTorch keeps. call: the number of its call, between the hooks.
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


class NodeGradients:
    """The hooks of the nodes of a graph."""

    def __init__(self, guard: Guard, position: Position, recorder: Recorder) -> None:
        self._guard, self._position, self._recorder = guard, position, recorder

    def forget(self) -> None:
        """The outermost module has ended. Nodes are not kept here."""

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
            if name.endswith("AccumulateGrad") or node._sequence_nr() < first:
                continue
            if _KEY not in node.metadata:
                node.metadata[_KEY] = path
                if not hidden:
                    one = _Node(self, path, kind, name, self._position.microbatch)
                    node.register_prehook(one)
                    node.register_hook(one)
            waiting.extend(n for n, _ in node.next_functions if n is not None)

    def before(self, one: _Node, gradients: tuple) -> None:
        """Gradients come into a node."""
        if not self._guard.records():
            return
        with self._guard.work((f"the gradient into {one.name} of", one.path)):
            one.call = self._position.new_call()
            self._see(one, gradients, out=False)

    def after(self, one: _Node, gradients: tuple) -> None:
        """Gradients leave a node."""
        if not self._guard.records() or one.call < 0:
            return
        with self._guard.work((f"the gradient out of {one.name} of", one.path)):
            self._see(one, gradients, out=True)
            one.call = -1

    def _see(self, one: _Node, gradients: tuple, *, out: bool) -> None:
        event = self._recorder.event("backward", one.path, one.kind, one.name, one.call, one.microbatch)
        self._recorder.see_leaves(event, leaves("grad", gradients), out=out, role="gradient")
