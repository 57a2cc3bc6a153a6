"""What operations leave in a trace that give nothing, that take memory which is not there, or that run after its end."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="needs PyTorch 2.4: make test-torch")

from torch import nn  # noqa: E402
from tracer_checks import events_of  # noqa: E402

import twinrun  # noqa: E402
from twinrun.torch import trace  # noqa: E402


class Does(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, what) -> torch.Tensor:
        y = self.linear(x)
        what(y)
        return y


def traced(path, what) -> list[str]:
    """The operations of a step whose forward pass does this besides."""
    torch.manual_seed(3)
    model = Does()
    with trace(model, path, level="ops", on_error="raise") as t:
        model(torch.ones(2, 4), what)
        t.step()
    return [event.operation for event in events_of(path, 0)]


@torch.library.custom_op("twinrun_test::send", mutates_args=())
def send(x: torch.Tensor, number: int) -> None:
    """An operation that gives nothing, such as one that sends or counts."""


def twice(y: torch.Tensor) -> None:
    send(y, 1)
    send(y, 1)


@pytest.mark.parametrize(
    ("other", "verdict"),
    [
        (lambda y: send(y, 1), "same"),
        (lambda y: send(y, 2), "different"),
        (lambda y: send(y.detach() * 1 + 1, 1), None),
        (twice, None),
        (lambda y: None, None),
    ],
)
def test_an_operation_that_gives_nothing_is_an_event(tmp_path, other, verdict) -> None:
    operations = traced(tmp_path / "a", lambda y: send(y, 1))
    assert operations.count("twinrun_test.send.default") == 1
    traced(tmp_path / "b", other)
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "b")
    if verdict is None:
        assert found.verdict != "same"
    else:
        assert found.verdict == verdict


def test_a_check_that_raises_is_an_event(tmp_path) -> None:
    def checks(size: int):
        def what(y: torch.Tensor) -> None:
            try:
                torch.ops.aten._assert_tensor_metadata(y, [size, 4], None, None)
            except RuntimeError:
                pass

        return what

    traced(tmp_path / "a", checks(2))
    traced(tmp_path / "b", checks(3))
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "b").verdict != "same"


@pytest.mark.parametrize(
    "other", [lambda y: torch.empty(2, dtype=torch.float64), lambda y: torch.empty(7, 9)]
)
def test_memory_that_nobody_wrote_has_a_type_and_a_shape(tmp_path, other) -> None:
    for name, room in (("a", lambda y: torch.empty(2)), ("same", lambda y: torch.empty(2)), ("b", other)):
        traced(tmp_path / name, lambda y, room=room: room(y) * 0 + 1)
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "same").verdict == "same"
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "b").verdict == "different"


def test_gradients_without_memory(tmp_path) -> None:
    """The backward pass of `sgn` gives a tensor of zeros that has no memory."""
    gradients = []
    for path in (None, tmp_path / "a", tmp_path / "b"):
        torch.manual_seed(1)
        model = nn.Linear(2, 2)
        if path is None:
            model(torch.ones(1, 2)).sgn().sum().backward()
        else:
            with trace(model, path, level="ops", on_error="raise") as t:
                model(torch.ones(1, 2)).sgn().sum().backward()
                t.step()
            assert not t.problems
        gradients.append([p.grad.clone() for p in model.parameters()])
    for got in gradients[1:]:
        assert all(torch.equal(x, y) for x, y in zip(gradients[0], got, strict=True))
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "b").verdict == "same"


def test_a_trace_with_its_own_path_is_entered_once(tmp_path) -> None:
    model = nn.Linear(2, 2)
    t = trace(model, tmp_path / "a")
    with t:
        model(torch.ones(1, 2))
    with pytest.raises(twinrun.TwinrunError, match="is entered once"):
        t.__enter__()
    with twinrun.Run(tmp_path / "b") as run:
        t = trace(model, run)
        for _ in range(2):
            with t:
                model(torch.ones(1, 2))
                t.step()
        assert len(run.steps) == 2


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        ({"alpha": 2}, {"alpha": 3}, "its alpha is 2 in a and 3 in b"),
        ({"alpha": 2}, {}, "its alpha is 2 in a and (a tensor, or not given) in b"),
        ({"alpha": 2}, {"alpha": 2.0}, "its alpha is 2 in a and 2.0 in b"),
    ],
)
def test_the_argument_that_differs_is_named(tmp_path, ours, theirs, said) -> None:
    for name, options in (("a", ours), ("b", theirs)):
        for path in (tmp_path / name, tmp_path / f"{name}2"):  # the second time by what is known of it
            torch.manual_seed(1)
            model = nn.Linear(3, 3)
            torch.nn.init.ones_(model.weight)
            torch.nn.init.ones_(model.bias)
            with trace(model, path, level="ops", on_error="raise") as t:
                for _ in range(2):
                    x = model(torch.ones(1, 3))
                    torch.add(x, x, **options)
                    t.step()
    for name in ("", "2"):
        found = twinrun.compare_traces(tmp_path / f"a{name}", tmp_path / f"b{name}")
        assert found.verdict == "different"
        assert "aten.add.Tensor: everything before agrees, and what it takes differs: " + said in str(found)
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "a2").verdict == "same"
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "a2").structure == []
