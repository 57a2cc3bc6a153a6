"""Modules that other threads run: a call that a module waits for is within it, and calls at the same time have
no order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="needs PyTorch 2.4: make test-torch")
from torch import nn  # noqa: E402
from tracer_checks import events_of  # noqa: E402

from twinrun.runs.gaps import BY_CHANCE  # noqa: E402
from twinrun.torch import trace  # noqa: E402
from twinrun.trace.comparison import compare_traces  # noqa: E402
from twinrun.trace.reading import TraceSubject  # noqa: E402

HANG = 60


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


class Outer(nn.Module):
    """call: runs its module in the middle. last: whether nothing comes after it."""

    def __init__(self, call: Callable, last: bool = False) -> None:
        super().__init__()
        self.before, self.inner = nn.Linear(4, 4), Inner()
        self.after = nn.Identity() if last else nn.Linear(4, 4)
        self.call, self.last = call, last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.call(self.inner, torch.relu(self.before(x)))
        return x if self.last else self.after(torch.relu(x))


def in_a_thread(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(module, x).result(HANG)


def trained(path: Path, model: Callable[[], nn.Module], **options) -> list[str]:
    torch.manual_seed(3)
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    with trace(made, path, optimizer=optimizer, **options) as traced:
        for _ in range(3):
            optimizer.zero_grad()
            made(torch.randn(2, 4)).square().sum().backward()
            optimizer.step()
    return traced.problems


@pytest.mark.parametrize("level", ["modules", "ops"])
@pytest.mark.parametrize("last", [False, True])
def test_a_call_that_is_waited_for_is_within_its_caller(tmp_path: Path, level: str, last: bool) -> None:
    """A new thread counts the nodes of the graph of gradients from 0, and one of a pool goes on counting."""
    pool = ThreadPoolExecutor(1)

    def in_the_pool(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return pool.submit(module, x).result(HANG)

    with pool:
        calls = {"here": lambda module, x: module(x), "thread": in_a_thread, "pool": in_the_pool}
        for name, call in calls.items():
            assert trained(tmp_path / name, lambda call=call: Outer(call, last), level=level) == []
    assert compare_traces(tmp_path / "thread", tmp_path / "pool").verdict == "same"

    def told(name: str) -> list[tuple]:
        """Events of modules with the module around each. The engine of gradients works in the order of the
        numbers that nodes have, and operations of another thread are not seen.
        """
        events = [e for e in events_of(tmp_path / name) if level == "modules" or e.phase == "forward"]
        path = {e.call: e.module for e in events}
        return sorted(
            (
                e.phase,
                e.module,
                e.operation,
                path.get(e.enclosing, ""),
                [(v.name, v.out, v.digest) for v in e.values],
            )
            for e in events
            if not e.operation.startswith("aten")
        )

    assert told("thread") == told("here")


def both_at_once(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with ThreadPoolExecutor(2) as pool:
        return sum(part.result(HANG) for part in [pool.submit(module, x * n) for n in (1, 2)])


class Meeting(nn.Module):
    """Two calls of it wait for each other; turn: the input whose call leaves first."""

    def __init__(self, first: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.barrier, self.first, self.left = threading.Barrier(2), first, threading.Event()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.barrier.wait(HANG)
        if float(x.flatten()[0]) == self.first:
            self.left.set()
        else:
            assert self.left.wait(HANG)
        return x * self.scale


@pytest.mark.parametrize("as_root", [False, True])
def test_calls_at_the_same_time_are_not_exchanged(tmp_path: Path, as_root: bool) -> None:
    """Two traces in which the calls come in another order are no different ones, and not the same either."""

    class Caller(nn.Module):
        def __init__(self, first: float) -> None:
            super().__init__()
            self.inner = Meeting(first)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return both_at_once(self.inner, x)

    for name, first in (("a", 1.0), ("b", 2.0)):
        model = Meeting(first) if as_root else Caller(first)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        with (
            pytest.warns(RuntimeWarning, match="at the same time"),
            trace(model, tmp_path / name, optimizer=optimizer) as traced,
        ):
            x = torch.ones(2)
            (both_at_once(model, x) if as_root else model(x)).sum().backward()
            optimizer.step()
        (problem,) = traced.problems
        assert problem.endswith(BY_CHANCE)
        events, told, _ = TraceSubject(tmp_path / name).events(0, 0)
        assert told == [problem]
        # Each call has its own results, whichever ended first.
        calls = {e.call: e for e in events if e.phase == "forward" and any(v.out for v in e.values)}
        inner = [e for e in calls.values() if e.kind == "Meeting"]
        assert len(inner) == 2
    found = compare_traces(tmp_path / "a", tmp_path / "b")
    assert (found.verdict, found.different_values, found.unmatched) == ("incomparable", 0, 0)


def test_a_difference_beside_overlapping_calls_is_found(tmp_path: Path) -> None:
    """What the optimizer takes and gives has an order."""
    for name, rate in (("a", 0.5), ("b", 0.25)):
        model = Meeting(1.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        with (
            pytest.warns(RuntimeWarning, match="at the same time"),
            trace(model, tmp_path / name, optimizer=optimizer),
        ):
            both_at_once(model, torch.ones(2)).sum().backward()
            optimizer.step()
    found = compare_traces(tmp_path / "a", tmp_path / "b")
    assert found.verdict == "different"
    assert found.firsts[0].site.phase == "optimizer"


def test_results_go_to_the_call_of_their_thread(tmp_path: Path) -> None:
    """Two modules at work at once, of which the outer one ends first."""

    class Slow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.begun, self.go_on = threading.Event(), threading.Event()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.begun.set()
            assert self.go_on.wait(HANG)
            return x + 2

    class Quick(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slow = Slow()
            self.pool = ThreadPoolExecutor(1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.later = self.pool.submit(self.slow, x)
            assert self.slow.begun.wait(HANG)
            return x + 1

    model = Quick()
    with pytest.warns(RuntimeWarning, match="at the same time"), trace(model, tmp_path / "a") as traced:
        x = torch.zeros(3)
        assert model(x).tolist() == [1.0] * 3
        model.slow.go_on.set()
        assert model.later.result(HANG).tolist() == [2.0] * 3
        traced.step()
    model.pool.shutdown()
    events, _, _ = TraceSubject(tmp_path / "a").events(0, 0)
    outer, inner = events[0], events[1]
    assert (outer.module, inner.module, inner.enclosing) == ("", "slow", outer.call)
    ends = {e.module: e.call for e in events[2:]}
    assert ends == {"": outer.call, "slow": inner.call}
