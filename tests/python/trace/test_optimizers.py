"""Steps of optimizers: each is in the trace once, whatever is around `step` and within it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="needs PyTorch 2.4: make test-torch")
from torch import nn  # noqa: E402
from tracer_checks import events_of  # noqa: E402

import twinrun  # noqa: E402
import twinrun.torch  # noqa: E402
from twinrun.trace.reading import TraceSubject  # noqa: E402

STEPS = 3


def parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[nn.Parameter]:
    for group in optimizer.param_groups:
        yield from group["params"]


def made_from(parent: type, *, parent_is_hooked: bool) -> type:
    """A class whose step does something before that of its parent, and something after it.

    PyTorch hooks the step of a class when an optimizer of it is made. So it depends on the rest of the program
    whether the parent's step runs the hooks, too.
    """

    class Parent(parent):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    class Child(Parent):
        def step(self, closure: Any = None) -> Any:
            with torch.no_grad():
                for p in parameters_of(self):
                    p.mul_(1.5)
            loss = super().step(closure)
            with torch.no_grad():
                for p in parameters_of(self):
                    p.mul_(0.5)
            return loss

    if parent_is_hooked:
        parent([torch.zeros(1)])
        Parent([torch.zeros(1)])
    return Child


def gradients(model: nn.Module) -> torch.Tensor:
    model.zero_grad()
    loss = model(torch.ones(3, 4)).square().mean()
    loss.backward()
    return loss


def stepping(path: Path, make: Callable[..., Any], *, closure: bool = False, schedule: bool = False) -> Any:
    """A training of three steps. It records its weight before each step and after it."""
    torch.manual_seed(3)
    model = nn.Linear(4, 2)
    optimizer = make(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2) if schedule else None
    with twinrun.torch.trace(model, path, optimizer=optimizer, on_error="raise") as trace:
        for _ in range(STEPS):
            trace.record("before", model.weight.detach())
            if closure:
                optimizer.step(lambda: gradients(model))
            else:
                gradients(model)
                optimizer.step()
            trace.record("after", model.weight.detach())
            if scheduler is not None:
                scheduler.step()
    assert trace.iteration == STEPS
    return model.weight.tolist()


def told(path: Path, iteration: int = 0) -> list[list[tuple[str, bool]]]:
    """What the events of one parameter's step have of it and of its gradient."""
    steps = [
        e
        for e in events_of(path, iteration)
        if e.phase == "optimizer" and e.operation.endswith(".step of weight")
    ]
    assert len({e.call for e in steps}) == 1 and steps[0].call >= 0
    return [[(v.name, v.out) for v in e.values if v.role in ("gradient", "parameter")] for e in steps]


def recorded(path: Path, iteration: int, name: str) -> int:
    (digest,) = {
        v.digest
        for e in events_of(path, iteration)
        if e.phase == "record"
        for v in e.values
        if v.name == name
    }
    return digest


WHOLE = [[("weight.grad", False), ("weight", False)], [("weight", True)]]
WHOLE_WITH_CLOSURE = [[("weight", False)], [("weight.grad", False)], [("weight", True)]]


@pytest.mark.parametrize("schedule", [False, True])
@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize("parent", [torch.optim.SGD, torch.optim.AdamW])
def test_a_step_that_calls_the_step_of_its_parent(
    parent: type, closure: bool, schedule: bool, tmp_path: Path
) -> None:
    for name, hooked in (("alone", False), ("hooked", True)):
        path = tmp_path / name
        stepping(path, made_from(parent, parent_is_hooked=hooked), closure=closure, schedule=schedule)
        # What comes after the last step is a step of the run that has values recorded alone.
        assert TraceSubject(path).iterations(0) == list(range(STEPS + 1))
        for n in range(STEPS):
            assert told(path, n) == (WHOLE_WITH_CLOSURE if closure else WHOLE)
            weights = {
                v.out: v.digest
                for e in events_of(path, n)
                if e.operation == "Child.step of weight"
                for v in e.values
                if v.role == "parameter"
            }
            assert weights[False] == recorded(path, n, "before")
            assert weights[True] == recorded(path, n + 1, "after")
    # Which other optimizers a program made before is nothing that its training does.
    assert twinrun.compare_traces(tmp_path / "alone", tmp_path / "hooked").verdict == "same"


def test_a_closure_that_a_step_makes_for_its_parent(tmp_path: Path) -> None:
    """The gradients that it makes go into the step, and what it runs is no work of the optimizer's own."""
    torch.optim.SGD([torch.zeros(1)])
    model = nn.Linear(4, 2)

    class Makes(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:  # type: ignore[override]
            def more() -> torch.Tensor:
                loss = gradients(model) if closure is None else closure()
                model(torch.ones(1, 4)).sum().backward()
                return loss

            return super().step(more)

    optimizer = Makes(model.parameters(), lr=0.1)
    with twinrun.torch.trace(model, tmp_path / "a", optimizer=optimizer, level="ops") as trace:
        gradients(model)
        optimizer.step()
        optimizer.step(lambda: gradients(model))
    assert trace.iteration == 2
    assert told(tmp_path / "a", 0) == [WHOLE[0], [("weight.grad", False)], [("weight", True)]]
    twice = [[("weight.grad", False)]] * 2  # of each closure that returned
    assert told(tmp_path / "a", 1) == [[("weight", False)], *twice, [("weight", True)]]
    for n in range(2):
        products = [e for e in events_of(tmp_path / "a", n) if "mm" in e.operation]
        assert products and {e.phase for e in products} == {"forward", "backward"}


def test_two_traces_of_one_optimizer(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = made_from(torch.optim.SGD, parent_is_hooked=True)(model.parameters(), lr=0.1)
    with (
        twinrun.torch.trace(model, tmp_path / "a", optimizer=optimizer),
        twinrun.torch.trace(model, tmp_path / "b", optimizer=optimizer),
    ):
        optimizer.step(lambda: gradients(model))
    assert told(tmp_path / "a") == told(tmp_path / "b") == WHOLE_WITH_CLOSURE


class Fails(torch.optim.SGD):
    """Its step fails the first time, within that of its parent where `within`, and else after it."""

    within = fails = True

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        fails, self.fails = self.fails, False
        if not fails:
            return super().step(closure)

        def raises() -> None:
            raise KeyError("own")

        super().step(raises if self.within else None)
        return raises()


@pytest.mark.parametrize("within", [True, False])
def test_a_step_after_one_that_failed(within: bool, tmp_path: Path) -> None:
    torch.optim.SGD([torch.zeros(1)])
    model = nn.Linear(4, 2)
    optimizer = Fails(model.parameters(), lr=0.1)
    optimizer.within = within
    with twinrun.torch.trace(model, tmp_path / "a", optimizer=optimizer) as trace:
        gradients(model)
        try:
            optimizer.step()
        except KeyError:
            # The error holds what was on the stack when it was raised; it is under way no more.
            optimizer.step()
        gradients(model)
        optimizer.step()
    assert trace.iteration == 2
    steps = [e for e in events_of(tmp_path / "a", 0) if e.operation == "Fails.step of weight"]
    calls = [e.call for e in steps if any(v.name == "weight" for v in e.values)]
    assert len(calls) == 3 and calls[0] != calls[1] == calls[2]
    assert told(tmp_path / "a", 1) == WHOLE


def test_a_step_that_goes_on_after_that_of_its_parent_failed(tmp_path: Path) -> None:
    torch.optim.SGD([torch.zeros(1)])

    class Again(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:  # type: ignore[override]
            def raises() -> None:
                raise KeyError("own")

            with pytest.raises(KeyError, match="own"):
                super().step(raises)
            return super().step(closure)

    model = nn.Linear(4, 2)
    optimizer = Again(model.parameters(), lr=0.1)
    with twinrun.torch.trace(model, tmp_path / "a", optimizer=optimizer) as trace:
        gradients(model)
        optimizer.step()
    assert trace.iteration == 1
    assert told(tmp_path / "a") == [WHOLE[0], [("weight.grad", False)], [("weight", True)]]


def test_processes_compare_their_replicas_once_for_a_step(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = made_from(torch.optim.SGD, parent_is_hooked=True)(model.parameters(), lr=0.1)
    trace = twinrun.torch.trace(model, tmp_path / "a", optimizer=optimizer)
    checks: list[Any] = []
    trace._steps._replicas = SimpleNamespace(due=lambda: True, check=checks.append)
    with trace:
        for _ in range(STEPS):
            gradients(model)
            optimizer.step()
    assert len(checks) == STEPS


def wrapped_by_accelerate(optimizer: torch.optim.Optimizer) -> Any:
    accelerate = pytest.importorskip("accelerate", reason="needs accelerate: make test-torch")
    return accelerate.Accelerator(cpu=True).prepare(optimizer)


class Wrapper(torch.optim.Optimizer):
    """One that has no hooks, and calls the step of the optimizer that it has."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.optimizer.param_groups

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        return self.optimizer.step(closure)


@pytest.mark.parametrize("wrap", [wrapped_by_accelerate, Wrapper, lambda o: Wrapper(Wrapper(o))])
def test_an_optimizer_that_wraps_another_one(wrap: Callable[[Any], Any], tmp_path: Path) -> None:
    usual = stepping(tmp_path / "plain", torch.optim.AdamW)
    assert stepping(tmp_path / "wrapped", lambda p, lr: wrap(torch.optim.AdamW(p, lr=lr))) == usual
    assert twinrun.compare_traces(tmp_path / "plain", tmp_path / "wrapped").verdict == "same"
    child = made_from(torch.optim.AdamW, parent_is_hooked=True)
    stepping(tmp_path / "child", lambda p, lr: wrap(child(p, lr=lr)), closure=True)
    assert told(tmp_path / "child") == WHOLE_WITH_CLOSURE


@pytest.mark.parametrize("within", [None, 3])
def test_an_optimizer_without_hooks(within: Any, tmp_path: Path) -> None:
    with pytest.raises(twinrun.TwinrunError, match="'Wrapper' has no hooks") as told_:
        twinrun.torch.trace(nn.Linear(4, 2), tmp_path / "a", optimizer=Wrapper(within))
    assert "give the optimizer that it wraps" in str(told_.value)


@pytest.mark.parametrize("level", ["modules", "ops"])
@pytest.mark.parametrize("hooked", [False, True])
def test_a_compiled_step(hooked: bool, level: str, tmp_path: Path) -> None:
    """What the trace does is not compiled with it."""
    torch._dynamo.reset()
    child = made_from(torch.optim.SGD, parent_is_hooked=hooked)

    def run(path: Path | None) -> Any:
        torch.manual_seed(3)
        model = nn.Linear(4, 2)
        optimizer = child(model.parameters(), lr=0.1)

        def steps() -> None:
            step = torch.compile(optimizer.step, backend="eager")
            for _ in range(STEPS):
                gradients(model)
                step()

        if path is None:
            steps()
            return model.weight.tolist()
        with twinrun.torch.trace(model, path, optimizer=optimizer, level=level) as trace:
            steps()
        assert (trace.iteration, trace.problems) == (STEPS, [])
        return model.weight.tolist()

    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert run(tmp_path / "a") == run(None)
    for n in range(STEPS):
        assert told(tmp_path / "a", n) == WHOLE
