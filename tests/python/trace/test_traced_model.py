"""Models that change while a trace is open: layers that are replaced or added, and parameters that are unfrozen."""

import gc
import warnings
import weakref

import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="needs PyTorch 2.4: make test-torch")

from torch import nn  # noqa: E402
from tracer_checks import events_of  # noqa: E402

import twinrun  # noqa: E402
from twinrun.torch import trace  # noqa: E402
from twinrun.torch.traced_model import TracedModel  # noqa: E402


def new_layer(wrong: bool = False) -> nn.Module:
    torch.manual_seed(9)
    layer = nn.Linear(4, 4)
    if wrong:
        with torch.no_grad():
            layer.weight[1, 2] += 1
    return layer


def set_item(model, layer):
    model[0] = layer


def set_attribute(model, layer):
    setattr(model, "0", layer)


def set_in_mapping(model, layer):  # as tools that replace layers do
    model._modules["0"] = layer


def append(model, layer):
    model.append(layer)


CHANGES = [set_item, set_attribute, set_in_mapping, append]


def trained(path, change=None, *, iterations=3, at=1, level="modules", model=None, during=None):
    """A training whose model changes before iteration `at`."""
    torch.manual_seed(4)
    model = model or nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    weights = []
    with trace(model, path, level=level) if path else _Nothing() as traced:
        for n in range(iterations):
            if change is not None and n == at:
                change(model)
            optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
            model(torch.ones(2, 4)).square().sum().backward()
            if during is not None:
                during(model, n)
            optimizer.step()
            optimizer.zero_grad()
            traced.step()
            weights.append(twinrun.digest({n: p.detach() for n, p in model.named_parameters()}))
    return str(weights), traced


class _Nothing:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def step(self):
        pass


def seen_of(path, iteration: int, module: str) -> set:
    return {(e.phase, e.operation) for e in events_of(path, iteration) if e.module == module}


def whole(name: str, *parameters: str) -> set:
    """The events of a layer that is called and gets gradients."""
    gradients = {("backward", f"gradient of {name}.{p}") for p in parameters}
    return {("forward", "forward"), *gradients}


@pytest.mark.parametrize("level", ["modules", "ops"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_layer_in_the_place_of_another_is_traced(tmp_path, change, level: str) -> None:
    name = "3" if change is append else "0"

    def here(wrong: bool = False):
        layer = new_layer(wrong)  # here: operations that make it are part of a trace of operations
        return lambda model: change(model, layer)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain, _ = trained(None, here())
        weights, _ = trained(tmp_path / "a", here(), level=level)
        trained(tmp_path / "again", here(), level=level)
        trained(tmp_path / "wrong", here(wrong=True), level=level)
    assert weights == plain
    for iteration in (1, 2):
        assert seen_of(tmp_path / "a", iteration, name) >= whole(name, "weight", "bias")
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "again").same
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "wrong").first_divergence
    assert (found.site.iteration, found.site.module, found.values[0].name) == (1, name, "weight")
    assert found.values[0].role == "parameter" or level == "ops"


def test_the_layer_that_left_the_model_has_no_hooks_and_is_freed(tmp_path) -> None:
    kept = []

    def change(model):
        kept.append(model[0])
        model[0] = new_layer()

    old = []

    def free(model):
        old.append(weakref.ref(model[0]))
        model[0] = new_layer()

    trained(tmp_path / "a", change)
    assert not kept[0]._forward_hooks and not kept[0]._forward_pre_hooks
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    alive = []

    def during(model, n):
        if n == 2:
            gc.collect()
            alive.append(old[0]() is not None)

    trained(tmp_path / "b", free, model=model, during=during)
    assert alive == [False]
    assert not model[0]._forward_hooks


def test_a_layer_within_another_one_is_found_under_its_new_path(tmp_path) -> None:
    def wrap(model):
        model[0] = nn.Sequential(model[0], nn.Identity())

    trained(tmp_path / "a", wrap)
    assert seen_of(tmp_path / "a", 0, "0") == whole("0", "weight", "bias") | seen_of(tmp_path / "a", 0, "0")
    assert seen_of(tmp_path / "a", 1, "0.0") >= whole("0.0", "weight", "bias")
    assert not {s for s in seen_of(tmp_path / "a", 1, "0") if s[1].startswith("gradient of")}


def test_a_module_that_is_not_chosen_takes_its_parameters_along(tmp_path) -> None:
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return self.inner(x)

    def run(path, wrong):
        torch.manual_seed(4)
        model = nn.Sequential(Block(), Block())
        with trace(model, path, modules=["0", "1"]) as traced:
            for n in range(2):
                if n == 1:
                    model[1].inner = new_layer(wrong)
                model(torch.ones(2, 4)).sum().backward()
                traced.step()

    run(tmp_path / "a", False)
    run(tmp_path / "b", True)
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "b").first_divergence
    assert (found.site.module, found.values[0].name, found.values[0].role) == (
        "1",
        "inner.weight",
        "parameter",
    )


def test_parameters_that_are_unfrozen_or_new_have_gradients_in_the_trace(tmp_path) -> None:
    def unfreeze(model):
        model[0].requires_grad_(True)

    def replace(model):
        model[0].weight = nn.Parameter(torch.full((4, 4), 0.5))

    frozen = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4))
    trained(tmp_path / "frozen", unfreeze, model=frozen)
    assert ("backward", "gradient of 0.weight") not in seen_of(tmp_path / "frozen", 0, "0")
    assert seen_of(tmp_path / "frozen", 1, "0") >= whole("0", "weight", "bias")
    trained(tmp_path / "new", replace)
    assert seen_of(tmp_path / "new", 1, "0") >= whole("0", "weight", "bias")


def test_a_module_that_comes_while_the_model_runs_is_told(tmp_path) -> None:
    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(5)
            self.first = nn.Linear(4, 4)

        def forward(self, x):
            if not hasattr(self, "second"):
                self.second = new_layer()
            return self.second(self.first(x))

    with pytest.warns(RuntimeWarning, match=r"iteration 0: second came into the model while it ran"):
        trained(tmp_path / "a", model=Late())
    with pytest.warns(RuntimeWarning):
        trained(tmp_path / "b", model=Late())
    assert ("forward", "not seen") in seen_of(tmp_path / "a", 0, "second")
    assert seen_of(tmp_path / "a", 1, "second") >= whole("second", "weight", "bias")
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "b")
    assert found.same and "second" in str(found.notes)


def test_tensors_in_the_place_of_parameters_for_one_call_change_nothing(tmp_path) -> None:
    def run(path):
        torch.manual_seed(4)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        parameters = dict(model.named_parameters())
        averages = {n: nn.Parameter(p.detach() * 0.5) for n, p in parameters.items()}
        with trace(model, path) as traced:
            for _ in range(3):
                fast = {n: p * 0.5 for n, p in parameters.items()}
                torch.func.functional_call(model, fast, (torch.ones(2, 4),)).sum().backward()
                torch.func.functional_call(model, averages, (torch.ones(2, 4),))
                torch.func.grad(
                    lambda given: torch.func.functional_call(model, given, (torch.ones(2, 4),)).sum()
                )({n: p.detach() for n, p in parameters.items()})
                model(torch.ones(2, 4)).sum().backward()
                traced.step()
        assert not traced.problems and not traced.stopped

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(tmp_path / "a")
    for iteration in range(3):
        events = events_of(tmp_path / "a", iteration)
        gradients = [e.operation for e in events if e.operation.startswith("gradient of ")]
        assert sorted(gradients) == sorted(
            2 * [f"gradient of {n}.{p}" for n in "01" for p in ("weight", "bias")]
        )


def test_a_trace_that_is_entered_again_has_its_hooks_again(tmp_path) -> None:
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with twinrun.Run(tmp_path / "a", keep_data=True) as run:
        traced = trace(model, run)
        for _ in range(2):
            with traced:
                model(torch.ones(2, 4)).sum().backward()
                traced.step()
            model[1] = new_layer()
    for n in range(2):
        assert seen_of(tmp_path / "a", n, "0") >= whole("0", "weight", "bias")
        assert seen_of(tmp_path / "a", n, "1") >= whole("1", "weight", "bias")


@pytest.mark.parametrize("level", ["modules", "ops"])
def test_tensors_of_a_traced_model_may_be_swapped(tmp_path, level: str) -> None:
    """PyTorch refuses that of a tensor with weak references."""
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    def swap():
        torch.utils.swap_tensors(model[0].weight, nn.Parameter(torch.full((4, 4), 0.25)))

    with trace(model, tmp_path / "a", level=level) as traced:
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
            traced.step()
            swap()
    swap()
    assert not traced.problems


def test_a_model_of_several_may_be_replaced(tmp_path) -> None:
    def run(path, wrong):
        torch.manual_seed(4)
        models = {"g": nn.Linear(4, 4), "d": nn.Linear(4, 4)}
        with trace(models, path) as traced:
            for n in range(2):
                if n == 1:
                    models["d"] = new_layer(wrong)
                    models["e"] = new_layer()
                models["d"](models["g"](torch.ones(2, 4))).sum().backward()
                if n == 1:
                    models["e"](torch.ones(2, 4)).sum().backward()
                traced.step()

    run(tmp_path / "a", False)
    run(tmp_path / "again", False)
    run(tmp_path / "b", True)
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "again").same
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "b").first_divergence
    assert (found.site.iteration, found.site.module, found.values[0].name) == (1, "d", "weight")
    assert seen_of(tmp_path / "a", 1, "e") >= whole("e", "weight", "bias")


def test_a_lazy_layer_is_traced_from_its_first_call_on(tmp_path) -> None:
    torch.manual_seed(4)
    model = nn.Sequential(nn.LazyLinear(4), nn.Tanh(), nn.LazyLinear(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        with trace(model, tmp_path / "a") as traced:
            for _ in range(2):
                model(torch.ones(2, 4)).sum().backward()
                traced.step()
    for iteration in range(2):
        for name in "02":
            assert seen_of(tmp_path / "a", iteration, name) >= whole(name, "weight", "bias")


def test_a_second_trace_into_one_run_is_refused_unless_it_goes_on(tmp_path) -> None:
    model = nn.Linear(4, 4)
    with twinrun.Run(tmp_path / "a", keep_data=True) as run:
        for start in (0, 2):
            with trace(model, run, start=start) as traced:
                for _ in range(2):
                    model(torch.ones(2, 4))
                    traced.step()
        with pytest.raises(twinrun.TwinrunError, match=r"has step 3 already.*start=4"):
            trace(model, run)
    for step in range(4):
        assert whole("", "weight") - {("backward", "gradient of .weight")} <= seen_of(
            tmp_path / "a", step, ""
        )


def test_a_step_that_is_there_leaves_a_problem_in_the_trace(tmp_path) -> None:
    """Without it two traces that stopped there would be the same."""
    model = nn.Linear(4, 4)
    with twinrun.Run(tmp_path / "a", keep_data=True) as run:
        with pytest.warns(RuntimeWarning, match="captured already"), trace(model, run) as traced:
            for n in range(3):
                model(torch.ones(2, 4))
                if n == 1:
                    run.capture(1, {"x": torch.ones(3)})
                traced.step()
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "a")
    assert found.verdict == "incomparable" and "captured already" in str(found.problems)


def test_what_did_not_change_is_not_read_again(monkeypatch) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    models = TracedModel({"": model}, ["*"])
    assert [w.path for w in models.look().new] == ["", "0", "1"]
    assert models.look() is None
    first = models.watched[1]
    model[1] = nn.Linear(4, 4)
    changes = models.look()
    assert [w.path for w in changes.new] == ["1"] and [w.path for w in changes.gone] == ["1"]
    assert models.watched[1] is first and models.look() is None
    assert set(models.owners) >= {id(p) for p in model.parameters()}
