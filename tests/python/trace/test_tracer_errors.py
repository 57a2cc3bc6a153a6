"""Traces of trainings in which something goes wrong: the training goes on, and the trace says so."""

import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="needs PyTorch 2.4: make test-torch")

from torch import nn  # noqa: E402
from tracer_checks import events_of, small  # noqa: E402
from trainings import (  # noqa: E402
    Full,
)

import twinrun  # noqa: E402
from twinrun.torch import trace  # noqa: E402
from twinrun.trace.reading import TraceSubject  # noqa: E402


def test_another_structure_is_never_the_same(tmp_path) -> None:
    small(tmp_path / "a")

    def insert(n, model, traced):
        if n == 1:
            model.append(nn.Identity())

    small(tmp_path / "b")
    torch.manual_seed(4)
    other = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2), nn.Identity())
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    with trace(other, tmp_path / "c", optimizer=optimizer):
        for _ in range(3):
            optimizer.zero_grad()
            other(torch.ones(3, 4)).sum().backward()
            optimizer.step()
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "c")
    assert found.verdict != "same" and found.unmatched and any("only in b" in p for p in found.problems)


def test_hooks_that_vanish_are_a_problem(tmp_path) -> None:
    def remove(n, model, traced):
        if n == 1:
            model[0]._forward_hooks.clear()
            model[2]._forward_pre_hooks.clear()

    plain, _ = small(tmp_path / "a")
    weights, _ = small(tmp_path / "b", remove)
    assert weights == plain
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "b")
    assert found.verdict == "incomparable" and found.unmatched > 0


def test_nan_everywhere(tmp_path) -> None:
    def poison(n, model, traced):
        with torch.no_grad():
            model[0].weight.fill_(float("nan"))

    small(tmp_path / "a", poison)
    small(tmp_path / "b", poison)
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "b").same
    small(tmp_path / "c")
    first = twinrun.compare_traces(tmp_path / "c", tmp_path / "b").first_divergence
    assert (first.module, first.reason, first.values[0].name) == ("0", "input", "weight")


def test_an_error_of_the_trace_is_no_error_of_the_training(tmp_path) -> None:
    plain, _ = small(tmp_path / "a")
    with twinrun.Run(tmp_path / "b") as run:
        with pytest.warns(RuntimeWarning, match=r"No space left on device.*the training goes on"):
            weights, traced = small(run, lambda n, m, t: setattr(t, "run", Full(run)))
    assert weights == plain and traced.stopped and traced.problems
    with pytest.raises(OSError, match="No space left"):
        small(tmp_path / "c", lambda n, m, t: setattr(t, "run", Full(t.run)), on_error="raise")


def test_a_value_without_a_digest_is_a_problem(tmp_path) -> None:
    def quantized(n, model, traced):
        traced.record("q", torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8))

    small(tmp_path / "a", quantized)
    small(tmp_path / "b", quantized)
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "b")
    assert found.verdict == "incomparable" and "quantized" in found.problems[0]
    assert found.different_values == 0


def test_a_forward_that_raises_leaves_the_trace_in_order(tmp_path) -> None:
    class Odd(nn.Module):
        def forward(self, x):
            if x.sum() > 100:
                raise ValueError("too large")
            return x

    def run(path):
        torch.manual_seed(4)
        model = nn.Sequential(nn.Linear(4, 4), Odd(), nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with trace(model, path, optimizer=optimizer, on_error="raise"):
            for _ in range(2):
                with pytest.raises(ValueError, match="too large"):
                    model(torch.full((1, 4), 1e6).abs() * model[0].weight.detach().sign().sum(0))
                optimizer.zero_grad()
                model(torch.ones(3, 4)).sum().backward()
                optimizer.step()

    try:
        run(tmp_path / "a")
        run(tmp_path / "b")
    except BaseException as e:
        if "DID NOT RAISE" in str(e):
            pytest.fail("the input must make the module raise")
        raise
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "b").same
    outer = [e.enclosing for e in events_of(tmp_path / "a") if e.module == "" and e.phase == "forward"]
    assert set(outer) == {-1}


def test_nothing_is_left_behind(tmp_path) -> None:
    _, traced = small(tmp_path / "a")
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trace(model, tmp_path / "b", optimizer=optimizer):
        y = model(torch.ones(1, 4)).sum()
    y.backward()  # the hooks of its graph are still there, and do nothing
    optimizer.step()
    assert (
        not model._forward_hooks and not model._forward_pre_hooks and not optimizer._optimizer_step_pre_hooks
    )
    assert not model.weight._post_accumulate_grad_hooks
    assert not traced.active


def test_names_that_look_alike_are_two_values(tmp_path) -> None:
    class Takes(nn.Module):
        def forward(self, given):
            return sum(given.values())

    def run(path, first: float, second: float) -> None:
        model = Takes()
        with trace(model, path, on_error="raise"):
            model({1: torch.tensor(first), "1": torch.tensor(second)})

    run(tmp_path / "a", 1.0, 2.0)
    run(tmp_path / "b", 2.0, 1.0)
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "b")
    assert found.different_values == 2 and [v.name for v in found.first_divergence.values] == [
        "args.0.1", "args.0.1#2"
    ]  # fmt: skip


def test_containers_that_hold_themselves_have_no_digest(tmp_path) -> None:
    endless: list = [torch.ones(1)]
    endless += [endless, endless]

    class Takes(nn.Module):
        def forward(self, given):
            return given[0]

    model = Takes()
    for name in ("a", "b"):
        with trace(model, tmp_path / name, on_error="raise"):
            assert model(endless) == torch.ones(1)
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "b")
    assert found.verdict == "incomparable" and "containers, one within the other" in found.problems[0]


@pytest.mark.parametrize(
    "during", ["construct", "attach", "parameters", "optimizer", "mode", "leave", "close"]
)
def test_no_part_of_a_trace_ends_the_training(tmp_path, monkeypatch, during: str) -> None:
    from twinrun.torch import optimizers, tracer

    class Mine(nn.Linear):
        """Fails where a trace asks it."""

        def named_modules(self, *given, **named):
            if during == "construct" and asked:
                raise KeyError("mine")
            return super().named_modules(*given, **named)

        def register_forward_hook(self, *given, **named):
            if during == "attach":
                raise RuntimeError("mine")
            return super().register_forward_hook(*given, **named)

        def parameters(self, recurse=True):
            if during == "parameters" and asked:
                raise RuntimeError("mine")
            return super().parameters(recurse)

    def fails(*given, **named):
        raise RuntimeError("mine")

    asked: list = []
    if during == "optimizer":
        monkeypatch.setattr(optimizers.OptimizerHooks, "attach", fails)
    elif during == "mode":
        monkeypatch.setattr(tracer.OperationMode, "__enter__", fails)
    elif during == "leave":
        monkeypatch.setattr(tracer.OperationMode, "is_innermost", fails)
    elif during == "close":
        monkeypatch.setattr(twinrun.Run, "close", fails)

    def run(path, on_error: str):
        torch.manual_seed(4)
        model = Mine(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        asked.append(model)
        try:
            with trace(model, path, optimizer=optimizer, level="ops", on_error=on_error) as traced:
                for _ in range(2):
                    model(torch.ones(3, 4)).sum().backward()
                    optimizer.step()
        finally:
            asked.clear()
        return str(twinrun.digest(model.weight)), traced, model

    torch.manual_seed(4)
    plain = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(2):
        plain(torch.ones(3, 4)).sum().backward()
        optimizer.step()
    try:
        with pytest.warns(RuntimeWarning, match="mine"):
            weight, traced, model = run(tmp_path / "a", "warn")
        assert weight == str(twinrun.digest(plain.weight))
        assert not model._forward_hooks and not model._forward_pre_hooks
        if during != "close":
            assert "mine" in traced.problems[0]
            _, problems, _ = TraceSubject(tmp_path / "a").events(0, 2 if during == "leave" else 0)
            assert "the trace stopped at" in problems[0]
        with pytest.raises((RuntimeError, KeyError), match="mine"):
            run(tmp_path / "b", "raise")
    finally:
        while torch.utils._python_dispatch._get_current_dispatch_mode() is not None:  # of 'leave'
            torch.utils._python_dispatch._get_current_dispatch_mode().__exit__(None, None, None)


@pytest.mark.parametrize("model", [None, torch.sin, [nn.ReLU()], {"a": torch.sin}])
def test_what_is_no_model_is_refused(tmp_path, model: object) -> None:
    with pytest.raises(
        twinrun.TwinrunError, match=r"is no torch\.nn\.Module; give a model, or a dict of models"
    ):
        trace(model, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_run_that_has_the_first_iteration_is_refused(tmp_path) -> None:
    """Before anything is written: an iteration that the run has already stops a trace in its middle."""
    small(tmp_path / "a")
    with pytest.raises(
        twinrun.TwinrunError, match=r"has step 2 already, and this trace would begin with 0; give start=3"
    ):
        trace(nn.ReLU(), tmp_path / "a", existing="append")
    with twinrun.Run(tmp_path / "a", existing="append") as run:
        assert run.steps == [0, 1, 2]
        with pytest.raises(twinrun.TwinrunError, match="would begin with 1; give start=3"):
            trace(nn.ReLU(), run, start=1)
    _, traced = small(tmp_path / "a", existing="append", start=3)
    assert traced.problems == []
    assert TraceSubject(str(tmp_path / "a")).iterations(0) == [0, 1, 2, 3, 4, 5]
