"""Gradients that the closure of an optimizer's step makes go into the step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="needs PyTorch 2.4: make test-torch")
from torch import nn  # noqa: E402
from tracer_checks import events_of, found  # noqa: E402

import twinrun.torch  # noqa: E402

LAST = 3


def closures(
    path: Path, make: Callable[[Any], Any], change: Callable[[nn.Module], None], **options: Any
) -> Any:
    model = nn.Linear(4, 2)
    optimizer = make(model.parameters())
    x = torch.randn(3, 4)
    losses = []
    with twinrun.torch.trace(model, path, optimizer=optimizer, **options):
        for i in range(LAST + 1):

            def closure(i: int = i) -> torch.Tensor:
                optimizer.zero_grad()
                loss = model(x).square().mean()
                loss.backward()
                if i == LAST - 1 and path.name == "b":
                    change(model)
                return loss

            # As an argument, and by its name.
            loss = optimizer.step(closure) if i % 2 else optimizer.step(closure=closure)
            losses.append(loss.item())
    return losses, model.weight.detach().clone()


def larger_gradients(model: nn.Module) -> None:
    for p in model.parameters():
        p.grad.mul_(1.001)


@pytest.mark.parametrize("level", ["modules", "ops"])
@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.Adam(p),
        lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=1),
        lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=4),
    ],
)
def test_the_gradients_that_a_closure_makes_go_into_the_step(
    level: str, make: Callable, tmp_path: Path
) -> None:
    result = found(tmp_path, lambda path: closures(path, make, larger_gradients, level=level))
    first = result.first_divergence
    assert first is not None and first.site.iteration == LAST - 1
    if level == "modules":  # the changes are operations of their own
        assert first.site.phase == "optimizer" and first.reason == "input"
        assert [v.name for v in first.values] == ["weight.grad"]
    steps = [o for o in result.origins if o.site.phase == "optimizer" and o.site.operation.count(".step of ")]
    assert not [o for o in steps if o.reason == "operation"]


def test_a_step_with_a_closure_is_what_it_is_without_a_trace(tmp_path: Path) -> None:
    def run(traced: bool) -> Any:
        torch.manual_seed(1)
        model = nn.Linear(4, 2)
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, line_search_fn="strong_wolfe")
        x, losses = torch.randn(3, 4), []

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        def steps() -> None:
            losses.extend(optimizer.step(closure).item() for _ in range(3))

        if traced:
            with twinrun.torch.trace(model, tmp_path / "a", optimizer=optimizer):
                steps()
        else:
            steps()
        return losses, model.weight.tolist()

    assert run(False) == run(True)


def test_a_closure_keeps_what_it_is_asked_for_and_what_it_raises(tmp_path: Path) -> None:
    class Asks(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:  # type: ignore[override]
            said.append((closure.tag, closure.__wrapped__ is closure, closure.__name__))
            return super().step(closure)

    def closure() -> float:
        if len(said) == 2:
            raise KeyError("own")
        return 3.0

    closure.tag = "mine"  # type: ignore[attr-defined]
    said: list[Any] = []
    model = nn.Linear(2, 2)
    optimizer = Asks(model.parameters(), lr=0.1)
    with twinrun.torch.trace(model, tmp_path / "a", optimizer=optimizer) as trace:
        assert optimizer.step(closure) == 3.0
        with pytest.raises(KeyError, match="own"):
            optimizer.step(closure)
        assert not trace.stopped
    assert said == [("mine", False, "closure")] * 2


def test_a_closure_that_nobody_calls(tmp_path: Path) -> None:
    class Ignores(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:  # type: ignore[override]
            return super().step()

    def run(path: Path) -> None:
        model = nn.Linear(4, 2)
        optimizer = Ignores(model.parameters(), lr=0.1)
        with twinrun.torch.trace(model, path, optimizer=optimizer):
            for i in range(LAST + 1):
                model(torch.ones(3, 4)).sum().backward()
                if i == LAST and path.name == "b":
                    larger_gradients(model)
                optimizer.step(lambda: 0.0)

    first = found(tmp_path, run).first_divergence
    assert first is not None and [v.name for v in first.values] == ["weight.grad"] and first.reason == "input"


class GoesOn(torch.optim.SGD):
    """Steps also where its closure raises."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with contextlib.suppress(KeyError):
            closure()
        with torch.no_grad():
            for p in self.param_groups[0]["params"]:
                p.sub_(p.grad)


def test_a_step_that_goes_on_after_its_closure_raised(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = GoesOn(model.parameters(), lr=0.1)

    def closure() -> None:
        optimizer.zero_grad()
        model(torch.ones(3, 4)).sum().backward()
        raise KeyError("own")

    with twinrun.torch.trace(model, tmp_path / "a", optimizer=optimizer, level="ops") as trace:
        optimizer.step(closure)
        assert not trace.stopped
    events = events_of(tmp_path / "a")
    steps = [e for e in events if e.operation == "GoesOn.step of weight"]
    told = [[(v.name, v.out) for v in e.values if v.role in ("gradient", "parameter")] for e in steps]
    assert told == [[("weight", False)], [("weight.grad", False)], [("weight", True)]]
    # What the optimizer does then is its own work.
    subtractions = [e for e in events if "sub_" in e.operation]
    assert [e.phase for e in subtractions] == ["optimizer"] * 2


def test_a_training_that_goes_on_after_a_step_raised(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure() -> None:
        raise KeyError("own")

    with twinrun.torch.trace(model, tmp_path / "a", optimizer=optimizer, level="ops"):
        with pytest.raises(KeyError, match="own"):
            optimizer.step(closure)
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
    events = events_of(tmp_path / "a")
    assert {e.phase for e in events if "linear" in e.operation or "mm" in e.operation} == {
        "forward",
        "backward",
    }


def test_a_step_within_the_closure_of_another_one(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    inner = torch.optim.Adam(model[0].parameters(), lr=0.1)
    outer = torch.optim.SGD(model[1].parameters(), lr=0.1)

    def closure() -> None:
        model.zero_grad()
        model(torch.ones(3, 4)).sum().backward()
        inner.step()

    with twinrun.torch.trace(model, tmp_path / "a", optimizer=[inner, outer]):
        for _ in range(2):
            outer.step(closure)
    for iteration in range(2):
        steps = [e for e in events_of(tmp_path / "a", iteration) if e.operation == "1.SGD.step of 1.weight"]
        told = [[(v.name, v.out) for v in e.values if v.role in ("gradient", "parameter")] for e in steps]
        assert told == [[("1.weight", False)], [("1.weight.grad", False)], [("1.weight", True)]]
        assert len({e.call for e in steps}) == 1 and steps[0].call >= 0
