"""What modules change of what they are given, and what they take without being given it."""

import collections
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="needs PyTorch 2.4: make test-torch")

from torch import nn  # noqa: E402
from tracer_checks import events_of  # noqa: E402

import twinrun  # noqa: E402
from twinrun.torch import trace  # noqa: E402
from twinrun.torch.arguments import changed, given  # noqa: E402
from twinrun.torch.values import leaves  # noqa: E402

LEVELS = ["modules", "ops"]


class Writer(nn.Module):
    """Writes into what it is given, in one of several ways. wrong: by how much it writes something else."""

    def __init__(self, how: str, wrong: float) -> None:
        super().__init__()
        self.how, self.wrong = how, wrong

    def forward(self, cache, x) -> None:
        x = x * (1 + self.wrong)
        if self.how == "tensor":
            cache.add_(x)
        elif self.how == "view":
            cache[:, 1:].copy_(x[:, 1:])
        elif self.how == "item":
            cache["h"] = x
        elif self.how == "list":
            cache.append(x)
        elif self.how == "number":
            cache["n"] = float(x.sum())
        elif self.how == "removed" and self.wrong:
            del cache["old"]


class Model(nn.Module):
    def __init__(self, how: str, wrong: float, reads: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.writer, self.b = nn.Linear(4, 4), Writer(how, wrong), nn.Linear(4, 4)
        self.reads = reads

    def forward(self, x, cache):
        self.writer(cache, self.a(x))
        if not self.reads:
            return None
        tensors = [t for t in values_of(cache) if isinstance(t, torch.Tensor)]
        return self.b(sum(tensors, x))


def values_of(cache) -> list:
    if isinstance(cache, dict):
        return list(cache.values())
    return cache if isinstance(cache, list) else [cache]


def cache_for(how: str):
    if how in ("tensor", "view"):
        return torch.zeros(2, 4)
    return [] if how == "list" else {"old": torch.ones(2, 4)}


NAMES = {
    "tensor": "args.0",
    "view": "args.0",
    "item": "args.0.h",
    "list": "args.0.0",
    "number": "args.0.n",
    "removed": "args.0.old",
}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("how", NAMES)
def test_a_module_that_writes_into_its_arguments_is_named(how: str, reads: bool, mode, tmp_path) -> None:
    for name, wrong in (("a", 0.0), ("same", 0.0), ("b", 1e-3)):
        model = Model(how, wrong, reads)
        with mode(), trace(model, tmp_path / name) as traced:
            model(torch.ones(2, 4), cache_for(how))
            traced.step()
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "same").same
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "b")
    first = found.first_divergence
    if how == "removed":  # what only one of them has is no difference of values
        assert not found.same and any("writer" in p and NAMES[how] in p for p in found.problems)
        return
    assert found.verdict == "different" and first is not None, found.problems
    assert (first.module, first.reason) == ("writer", "operation"), str(found)
    assert NAMES[how] in [v.name for v in first.values]


def test_what_did_not_change_is_not_seen_again(tmp_path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    with trace(model, tmp_path / "a") as traced:
        model(torch.ones(2, 4)).sum().backward()
        traced.step()
    outputs = [
        v.name
        for e in events_of(tmp_path / "a")
        if e.phase == "forward"
        for v in e.values
        if v.out and v.role == "value"
    ]
    assert sorted(outputs) == ["args.0", *["output"] * 4], "only the layer in place changed what it was given"


def test_what_works_in_place_is_digested_once(tmp_path, monkeypatch) -> None:
    from twinrun.capture import events

    digested = []
    usual = events.digests_started
    monkeypatch.setattr(
        events, "digests_started", lambda arrays, *rest: digested.extend(arrays) or usual(arrays, *rest)
    )
    model = nn.ReLU(inplace=True)
    with torch.no_grad(), trace(model, tmp_path / "a") as traced:
        model(torch.tensor([1.0, -1.0]))
        traced.step()
    values = {(v.name, v.out): v for e in events_of(tmp_path / "a") for v in e.values}
    assert values["args.0", True].digest == values["output", True].digest != values["args.0", False].digest
    assert values["args.0", True].form == values["output", True].form == ("float32", (2,))
    assert sum(isinstance(t, torch.Tensor) and t.shape == (2,) for t in digested) == 2


def test_a_tensor_that_was_given_lives_no_longer() -> None:
    box = {"h": torch.ones(3)}
    before = given(leaves("args", (box,)))
    (one,) = [g for g in before if g.name == "args.0.h"]
    box["h"] = torch.zeros(3)
    assert one.tensor() is None
    (found,), gone = changed(before, leaves("args", (box,)))
    assert found[0] == "args.0.h" and not gone


class Shared(nn.Module):
    """Takes the parameters of layers that it does not call."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.held = nn.ModuleDict({"k": nn.Linear(4, 4, bias=False)})
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(4))])
        self.last = nn.Linear(4, 4)

    def forward(self, x):
        x = nn.functional.linear(self.first(x), self.held["k"].weight) * self.scales[0]
        return self.last(x)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("taken", ["held.k.weight", "scales.0"])
def test_parameters_of_layers_that_are_not_called_are_inputs(taken: str, level: str, tmp_path) -> None:
    for name in ("a", "b"):
        torch.manual_seed(0)
        model = Shared()
        if name == "b":
            with torch.no_grad():
                model.get_parameter(taken).view(-1)[0] += 1e-3
        with trace(model, tmp_path / name, level=level) as traced:
            model(torch.ones(2, 4)).sum().backward()
            traced.step()
    first = twinrun.compare_traces(tmp_path / "a", tmp_path / "b").first_divergence
    assert (first.reason, first.module, first.site.operation) == ("input", "", "forward"), str(first)
    assert [(v.name, v.role) for v in first.values] == [(taken, "parameter")]


@pytest.mark.parametrize("level", LEVELS)
def test_attention_takes_the_weight_of_its_last_layer(level: str, tmp_path) -> None:
    for name in ("a", "b"):
        torch.manual_seed(0)
        model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
        if name == "b":
            with torch.no_grad():
                model.self_attn.out_proj.weight[0, 0] += 1e-3
        with trace(model, tmp_path / name, level=level) as traced:
            model(torch.randn(2, 3, 8)).square().sum().backward()
            traced.step()
    first = twinrun.compare_traces(tmp_path / "a", tmp_path / "b").first_divergence
    assert (first.reason, first.module) == ("input", "self_attn"), str(first)
    assert [v.name for v in first.values] == ["out_proj.weight"]


def test_parameters_within_compiled_code_are_inputs(tmp_path) -> None:
    for name in ("a", "b"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        compiled = torch.compile(model, backend="eager")
        if name == "b":
            with torch.no_grad():
                model[1].weight[0, 0] += 1e-3
        with torch.no_grad(), trace(compiled, tmp_path / name) as traced:
            compiled(torch.ones(2, 4))
            traced.step()
    first = twinrun.compare_traces(tmp_path / "a", tmp_path / "b").first_divergence
    assert (first.reason, [v.name for v in first.values]) == ("input", ["1.weight"]), str(first)


# ---- kinds of values ----


class Giver(nn.Module):
    def __init__(self, value) -> None:
        super().__init__()
        self.value = value

    def forward(self, x):
        return self.value


def deep(n: int) -> list:
    found: list = [1]
    for _ in range(n):
        found = [found]
    return found


VALUES = {
    "size of a sparse tensor": (
        torch.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], (4, 5), check_invariants=True),
        torch.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], (4, 6), check_invariants=True),
    ),
    "mask": (np.ma.array([1.0, 2.0], mask=[0, 0]), np.ma.array([1.0, 2.0], mask=[0, 1])),
    "values beside a mask": (np.ma.array([1.0, 2.0], mask=[0, 1]), np.ma.array([3.0, 2.0], mask=[0, 1])),
    "list of a class": (collections.UserList([1, torch.ones(2)]), collections.UserList([1, torch.zeros(2)])),
    "array of a class": (np.ones((2, 2)).view(np.matrix), np.zeros((2, 2)).view(np.matrix)),
}


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@pytest.mark.parametrize("kind", VALUES)
def test_values_that_differ(kind: str, tmp_path) -> None:
    for name, value in zip(("a", "b"), VALUES[kind], strict=True):
        model = Giver(value)
        with trace(model, tmp_path / name) as traced:
            model(torch.ones(1))
            traced.step()
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "b")
    assert found.verdict == "different", found.notes
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "a").same


def test_what_a_mask_covers_has_no_value(tmp_path) -> None:
    for name, covered in (("a", 2.0), ("b", np.nan)):
        model = Giver(np.ma.array([1.0, covered], mask=[0, 1]))
        with trace(model, tmp_path / name) as traced:
            model(torch.ones(1))
            traced.step()
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "b").same


def test_a_value_in_too_many_containers_ends_no_trace(tmp_path) -> None:
    for name in ("a", "b"):
        model = Giver(deep(25))
        with trace(model, tmp_path / name) as traced:
            for _ in range(2):
                model(torch.ones(1))
                traced.step()
        assert not traced.stopped
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "b")
    assert found.verdict == "incomparable" and "more than 20 containers" in found.problems[0]
    assert len(found.problems) == 2, "of both iterations"


# ---- hooks of the program ----


def late_forward(model, optimizer, wrong: float) -> None:
    model[1].register_forward_hook(lambda module, args, output: output * (1 + wrong))


def late_forward_of_the_model(model, optimizer, wrong: float) -> None:
    model.register_forward_hook(lambda module, args, output: output * (1 + wrong))


def late_before(model, optimizer, wrong: float) -> None:
    model[1].register_forward_pre_hook(lambda module, args: (args[0] * (1 + wrong),))


def late_step(model, optimizer, wrong: float) -> None:
    def before(*_: object) -> None:
        with torch.no_grad():
            model[1].weight.grad.mul_(1 + wrong)

    optimizer.register_step_pre_hook(before)


HOOKS = {
    late_forward: ("1", "operation", "output"),
    late_forward_of_the_model: ("", "operation", "output"),
    late_before: ("", "input", "args.0"),
    late_step: ("1", "input", "1.weight.grad"),
}


@pytest.mark.parametrize("late", HOOKS, ids=lambda f: f.__name__)
def test_hooks_that_come_while_the_trace_is_open(late, tmp_path) -> None:
    for name, wrong in (("a", 0.0), ("b", 1e-3)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with trace(model, tmp_path / name, optimizer=optimizer):
            late(model, optimizer, wrong)
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    first = twinrun.compare_traces(tmp_path / "a", tmp_path / "b").first_divergence
    module, reason, value = HOOKS[late]
    assert first is not None, "what the hook changes is seen"
    assert (first.module, first.reason, first.values[0].name) == (module, reason, value), str(first)


# ---- models ----


class Recursive(nn.Module):
    def __init__(self, wrong: float) -> None:
        super().__init__()
        self.linear, self.wrong = nn.Linear(4, 4), wrong

    def forward(self, x, depth: int = 2):
        x = self.linear(x) * (1 + self.wrong)
        return self(x, depth - 1) if depth else x


def test_a_model_that_calls_itself_runs_once(tmp_path) -> None:
    for name, wrong in (("a", 0.0), ("b", 1e-3)):
        torch.manual_seed(0)
        model = Recursive(wrong)
        with trace(model, tmp_path / name) as traced:
            model(torch.ones(2, 4)).sum().backward()
            traced.step()
    assert {e.microbatch for e in events_of(tmp_path / "a")} == {0}
    first = twinrun.compare_traces(tmp_path / "a", tmp_path / "b").first_divergence
    assert "made by the own code of the model" in str(first), str(first)


@pytest.mark.parametrize("layers", [100, 190])
def test_a_deep_model_trains_as_without_a_trace(layers: int, tmp_path) -> None:
    model: nn.Module = nn.Linear(2, 2)
    for _ in range(layers):
        model = nn.Sequential(model)
    limit = sys.getrecursionlimit()
    model(torch.ones(1, 2)).sum().backward()
    with trace(model, tmp_path / "a") as traced:
        model(torch.ones(1, 2)).sum().backward()
        traced.step()
    assert not traced.stopped and sys.getrecursionlimit() == limit
    assert len(events_of(tmp_path / "a")) > 2 * layers


def test_a_pattern_that_matches_no_module_is_told(tmp_path) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with (
        pytest.warns(RuntimeWarning, match=r"modules='nix\*' matches no module"),
        trace(model, tmp_path / "a", modules=["0", "nix*"]) as traced,
    ):
        model(torch.ones(1, 2))
        traced.step()


def test_traces_of_two_levels_are_told(tmp_path) -> None:
    for level in LEVELS:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 2))
        with trace(model, tmp_path / level, level=level) as traced:
            model(torch.rand(1, 2)).sum().backward()
            traced.step()
    said = "level 'modules' in one trace, level 'ops' in the other: trace both with one level"
    found = twinrun.compare_traces(tmp_path / "modules", tmp_path / "ops")
    assert not found.same and said in found.notes
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2))
    on = {"reference": tmp_path / "modules", "on_divergence": "stop"}
    with trace(model, tmp_path / "again", level="ops", **on) as traced:
        model(torch.rand(1, 2)).sum().backward()
        traced.step()
    assert any(said in p for p in traced.problems)
