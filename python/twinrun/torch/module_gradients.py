"""Hooks of gradients through modules: the gradients that come into a module's outputs, and those that leave
to its inputs. What happens in between has no events.

Each call of a module has a region of the graph of gradients. Hooks sit where the region begins and where its
own nodes lead out of it; what lies in the region of an inner call is that call's. No region holds a node,
and no node is held once the outermost module has ended: a trace keeps no graph alive.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from threading import get_ident
from typing import Any, NamedTuple

import msgspec
import torch

from .guard import Guard
from .model import Owners
from .modes import in_backward
from .position import Position
from .recorder import Recorder
from .values import gradient_leaves

__all__ = ["ModuleGradients", "sequence_number"]

# Of nodes that collect the gradients of parameters and other leaves: they come before all others.
_COLLECTORS = 1 << 62


def sequence_number() -> int:
    """The number that the next node of the graph gets in this thread; 0 where PyTorch does not tell."""
    ask = getattr(torch.autograd, "_get_sequence_nr", None)
    return 0 if ask is None else ask()


# A training makes thousands of these in a step, and they live as long as its graph. gc=False: none
# is in a circle, and they would set Python's garbage collector to look at all that PyTorch keeps.


class _Region(msgspec.Struct, gc=False, eq=False):
    """The part of the graph that one call of a module made.

    outer: the region around it, once that is known. call: the number of its pass of the graph `task`.
    """

    path: str
    kind: str
    operation: str
    microbatch: int
    hidden: bool
    outer: _Region | None = None
    task: int = -1
    call: int = -1


class _Entry(msgspec.Struct, gc=False, eq=False):
    """The hook where regions begin. inner, outer: the first one, and others that begin there, the outer ones
    first. coming: of the node's gradients; None: all.
    """

    of: ModuleGradients
    inner: _Region
    outer: tuple[_Region, ...] = ()
    coming: tuple[int, ...] | None = None

    def __call__(self, gradients: tuple) -> None:
        if self.coming is not None:
            gradients = tuple(gradients[i] for i in self.coming if i < len(gradients))
        self.of.entered((*self.outer, self.inner), gradients)


class _Exit(msgspec.Struct, gc=False, eq=False):
    """The hook where a region ends. leaving: of a node's gradients."""

    of: ModuleGradients
    region: _Region
    leaving: tuple[int, ...]

    def __call__(self, gradients: tuple, given: tuple) -> None:
        self.of.left(self.region, [gradients[i] for i in self.leaving])


def _outermost(region: _Region) -> _Region:
    while region.outer is not None:
        region = region.outer
    return region


class _End(NamedTuple):
    """A node at which regions begin, as gradients come: an output of modules. It must live as long as its
    number is used.

    thread, since: where the innermost module ran, and the number of its call.
    """

    node: Any
    entry: _Entry | None  # of regions with events
    innermost: _Region
    thread: int
    since: int


class ModuleGradients:
    """The hooks where regions begin and end."""

    def __init__(self, guard: Guard, position: Position, recorder: Recorder, owners: Owners) -> None:
        self._guard, self._position, self._recorder, self._owners = guard, position, recorder, owners
        # While the outermost module is at work: its inner regions by the ids of their outputs, and
        # the nodes to which they lead.
        self._ends: dict[int, _End] = {}
        self._exits: dict[_Region, list[Any]] = {}
        self._ended = 0  # the sequence number when the last one ended

    def forget(self) -> None:
        """The outermost module has ended: no region is joined to another one any more."""
        self._ends.clear()
        self._exits.clear()
        if not in_backward():  # threads have numbers of their own
            self._ended = sequence_number()

    def watch_record(self, nodes: list[Any], name: str) -> None:
        """Adds hooks to what made a value of the training's own code since the last module ended."""
        self.watch(nodes, "", "", operation=f"backward of {name}", first=self._ended)
        if not self._position.frames:
            self._ends.clear()
            self._exits.clear()

    def watch(
        self,
        nodes: list[Any],
        path: str,
        kind: str,
        *,
        operation: str = "backward",
        stops: Collection[int] = (),
        first: int = 0,
        since: int = -1,
        hidden: bool = False,
        coming: Callable[[Any], tuple[int, ...]] | None = None,
    ) -> None:
        """Adds hooks to the region that ends in the outputs `nodes`.

        path, kind: of the module whose call made it. It ends at nodes whose id is in `stops`, and at
        those made before the sequence number `first`. Each thread has numbers of its own: an output of a
        module that another thread ran is within if its call came after the call `since`. hidden: it has no
        events.
        coming: which of a node's gradients belong to outputs of the module. Nodes of a hidden region may have
        others besides.
        """
        ends, owners, thread = self._ends, self._owners, get_ident()

        def outside(node: Any) -> bool:
            number = id(node)
            if number in stops:
                return True
            end = ends.get(number)
            return node._sequence_nr() < first if end is None or end.thread == thread else end.since < since

        if len(nodes) > 1:
            nodes = list({id(n): n for n in nodes}.values())
        nodes = [n for n in nodes if n._sequence_nr() < _COLLECTORS and not outside(n)]
        if not nodes:
            return
        region = _Region(path, kind, operation, self._position.microbatch, hidden)
        exits = self._exits[region] = []
        met: dict[int, Any] = {}  # nodes must live as long as their numbers are used
        waiting = list(nodes)
        while waiting:
            node = waiting.pop()
            number = id(node)
            if number in met:
                continue
            met[number] = node
            end = ends.get(number)
            if end is not None:
                inner = _outermost(end.innermost)
                if inner is not region:
                    inner.outer = region
                    for target in self._exits.pop(inner, ()):
                        (exits if outside(target) else waiting).append(target)
                continue
            leaving = []
            for at, (target, _) in enumerate(node.next_functions):
                if target is None:
                    continue
                if target._sequence_nr() >= _COLLECTORS:  # parameters have events of their own
                    if id(getattr(target, "variable", None)) not in owners:
                        leaving.append(at)
                elif outside(target):
                    leaving.append(at)
                    exits.append(target)
                else:
                    waiting.append(target)
            if leaving and not hidden:
                node.register_hook(_Exit(self, region, tuple(leaving)))
        for node in nodes:
            self._enter_at(node, region, since, coming)

    def _enter_at(
        self, node: Any, region: _Region, since: int, coming: Callable[[Any], tuple[int, ...]] | None
    ) -> None:
        end = self._ends.get(id(node))
        if end is not None and end.entry is not None:
            if not region.hidden:
                end.entry.outer = (region, *end.entry.outer)
            return
        entry = None if region.hidden else _Entry(self, region)
        if entry is not None and end is not None and coming is not None:
            entry.coming = coming(node)
        self._ends[id(node)] = (
            _End(node, entry, region, get_ident(), since) if end is None else end._replace(entry=entry)
        )
        if entry is not None:
            node.register_prehook(entry)

    def entered(self, regions: tuple[_Region, ...], gradients: tuple) -> None:
        """Gradients came to where these regions begin, the outer ones first."""
        if not self._guard.records():
            return
        what = "the gradient into", regions[0].path
        if self._recorder.is_light(gradients):
            self._guard.light(what, self._into, regions, gradients)
            return
        with self._guard.work(what):
            self._into(regions, gradients)

    def left(self, region: _Region, gradients: list) -> None:
        """Gradients leave a region."""
        if not self._guard.records():
            return
        what = "the gradient out of", region.path
        if self._recorder.is_light(gradients):
            self._guard.light(what, self._out_of, region, gradients)
            return
        with self._guard.work(what):
            self._out_of(region, gradients)

    def _into(self, regions: tuple[_Region, ...], gradients: tuple) -> None:
        for region in regions:
            self._see(region, gradients, out=False)

    def _out_of(self, region: _Region, gradients: list) -> None:
        self._see(region, gradients, out=True)

    def _see(self, region: _Region, gradients: Any, *, out: bool) -> None:
        task = torch._C._current_graph_task_id()
        if region.task != task:
            region.task, region.call = task, self._position.new_call()
        outer = region.outer
        enclosing = outer.call if outer is not None and outer.task == task else -1
        event = self._recorder.event(
            "backward", region.path, region.kind, region.operation, region.call, region.microbatch, enclosing
        )
        self._recorder.see_leaves(event, gradient_leaves(gradients), out=out, role="gradient")
