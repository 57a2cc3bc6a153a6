"""Traces of trainings: nothing that they do changes a training or ends it, and what they say is true."""

import contextlib
import random
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="needs PyTorch 2.4: make test-torch")

from torch import nn  # noqa: E402
from trainings import (  # noqa: E402
    ITERATIONS,
    MODELS,
    Full,
    Training,
    Transformer,
    one_thread,
    traced_training,
)

import twinrun  # noqa: E402
from twinrun.torch import trace  # noqa: E402
from twinrun.trace.reading import TraceSubject  # noqa: E402
from twinrun.trace.words import trace_lines  # noqa: E402


def untraced(kind: str) -> dict[str, str]:
    with one_thread():
        training = Training(kind)
        training.run()
        return training.bits()


def events_of(path, iteration: int = 0):
    events, problems, _ = TraceSubject(path).events(0, iteration)
    assert not problems
    return events


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("level", ["modules", "ops"])
def test_no_bit_changes(kind: str, level: str, tmp_path) -> None:
    assert traced_training(kind, tmp_path / "a", level=level).bits() == untraced(kind)


def test_random_states_do_not_change(tmp_path) -> None:
    traced_training("cnn", tmp_path / "a")
    after = random.random(), np.random.random(), torch.rand(1).item()
    with one_thread():
        Training("cnn").run()
    assert after == (random.random(), np.random.random(), torch.rand(1).item())


def test_generators_of_python_are_traced_where_asked(tmp_path) -> None:
    def run(path, rng: str) -> None:
        model = nn.Linear(2, 2)
        with torch.no_grad():
            model.weight.fill_(1)
            model.bias.fill_(1)
        torch.manual_seed(1)
        random.seed()
        with trace(model, path, rng=rng, on_error="raise"):
            model(torch.ones(1, 2))

    for rng, verdict in (("torch", "same"), ("none", "same"), ("all", "different")):
        for name in "ab":
            run(tmp_path / f"{rng}{name}", rng)
        found = twinrun.compare_traces(tmp_path / f"{rng}a", tmp_path / f"{rng}b")
        assert found.verdict == verdict and (found.same or found.first_divergence.reason == "generator")


def test_every_kind_of_value_is_there(tmp_path) -> None:
    traced_training("transformer", tmp_path / "a")
    events = events_of(tmp_path / "a", 1)
    seen = {(e.phase, v.role, v.out) for e in events for v in e.values}
    assert seen >= {
        ("begin", "rng", False), ("forward", "value", False), ("forward", "value", True),
        ("forward", "parameter", False), ("forward", "buffer", False), ("forward", "setting", False),
        ("forward", "rng", False), ("backward", "gradient", False), ("backward", "gradient", True),
        ("record", "value", True), ("optimizer", "gradient", False), ("optimizer", "state", False),
        ("optimizer", "state", True), ("optimizer", "parameter", True),
    }  # fmt: skip
    paths = {name for name, _ in Transformer().named_modules()} - {"layers"}  # a list has no forward
    assert paths <= {e.module for e in events if e.phase == "forward"}
    # Every module that computes something itself is in the backward pass.
    own = {p for p in paths if not p.endswith(".mlp")}
    assert own <= {e.module for e in events if e.phase == "backward"}
    assert {e.microbatch for e in events if e.phase == "backward"} == {0, 1}
    assert all(v.digest for e in events for v in e.values)


def test_modules_are_chosen(tmp_path) -> None:
    traced_training("transformer", tmp_path / "a", modules=["layers.1.*", "head"])
    found = {e.module for e in events_of(tmp_path / "a") if e.phase == "forward"}
    assert {"", "head", "layers.1.attn"} <= found and "layers.1" not in found and "layers.0.attn" not in found


def test_a_fault_outside_of_what_is_traced_names_what_encloses_it(tmp_path) -> None:
    from faults import replaced

    plant = replaced("layers.1.attn.proj", lambda m, usual, x: usual(x) * 1.001)
    traced_training("transformer", tmp_path / "a", modules="layers.?")
    traced_training("transformer", tmp_path / "b", plant, modules="layers.?")
    first = twinrun.compare_traces(tmp_path / "a", tmp_path / "b").first_divergence
    assert (first.module, first.reason) == ("layers.1", "operation")


def test_some_iterations(tmp_path) -> None:
    traced_training("lstm", tmp_path / "a", every=2)
    assert TraceSubject(tmp_path / "a").iterations(0) == [0, 2]
    assert untraced("lstm") == traced_training("lstm", tmp_path / "b", every=3).bits()


def test_a_resumed_training_against_a_continuous_one(tmp_path) -> None:
    traced_training("transformer", tmp_path / "a")
    with one_thread():
        training = Training("transformer")
        with trace(training.model, tmp_path / "b", optimizer=training.optimizer, rng="all") as traced:
            training.run(traced, last=2)
        saved = {
            "model": training.model.state_dict(), "optimizer": training.optimizer.state_dict(),
            "rng": torch.get_rng_state(), "data": training.generator.get_state(),
        }  # fmt: skip
        torch.save(saved, tmp_path / "saved.pt")
        for forgotten, same in (("", True), ("rng", False)):
            loaded = torch.load(tmp_path / "saved.pt", weights_only=True)
            again = Training("transformer")
            again.model.load_state_dict(loaded["model"])
            again.optimizer.load_state_dict(loaded["optimizer"])
            again.generator.set_state(loaded["data"])
            if forgotten != "rng":
                torch.set_rng_state(loaded["rng"])
            path = tmp_path / f"resumed{forgotten}"
            with trace(again.model, path, optimizer=again.optimizer, start=2, rng="all") as traced:
                again.run(traced, first=2)
            found = twinrun.compare_traces(tmp_path / "a", path)
            # The first two iterations are only in one of them, which is never the same.
            assert [p for p in found.problems if "iteration" in p][:2] == [
                "iteration 0: only in a", "iteration 1: only in a"
            ]  # fmt: skip
            assert (found.different_values == 0) is same
            assert twinrun.compare_traces(tmp_path / "a", path, common=True).verdict == (
                "same" if same else "different"
            )
            if same:
                assert found.verdict == "incomparable" and found.first_divergence is None
            else:
                assert found.first_divergence.module == "layers.0.attn.drop"
                assert "random number generator" in str(found)


def test_checkpointed_layers(tmp_path, monkeypatch) -> None:
    from faults import bit

    plain = untraced("transformer")
    monkeypatch.setattr(Transformer, "checkpointed", True)
    assert traced_training("transformer", tmp_path / "a").bits() == untraced("transformer")
    assert "recompute" in {e.phase for e in events_of(tmp_path / "a")}
    traced_training("transformer", tmp_path / "b")
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "b").same
    traced_training("transformer", tmp_path / "c", bit("layers.2.ln2"))
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "c").first_divergence.module == "layers.2.ln2"
    assert plain.keys() == untraced("transformer").keys()


def test_autocast(tmp_path) -> None:
    def run(path):
        with one_thread():
            training = Training("transformer")
            with trace(training.model, path, optimizer=training.optimizer, on_error="raise") as traced:
                with torch.autocast("cpu", torch.bfloat16):
                    training.run(traced)
            return training.bits()

    with one_thread():
        training = Training("transformer")
        with torch.autocast("cpu", torch.bfloat16):
            training.run()
    assert run(tmp_path / "a") == run(tmp_path / "b") == training.bits()
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "b").same
    assert "bfloat16" in {v.dtype for e in events_of(tmp_path / "a") for v in e.values}


def test_what_is_compiled_is_seen_from_outside(tmp_path) -> None:
    # Compiling begins the use of a GPU: its generator would have a state in the second run only.
    if torch.cuda.is_available():
        torch.cuda.init()

    def run(path=None):
        with one_thread():
            torch._dynamo.reset()
            training = Training("transformer")
            compiled = torch.compile(training.model, backend="aot_eager")
            training.model.forward_compiled = None
            model, training.model = training.model, _Calls(compiled, training.model)
            if path is None:
                training.run()
            else:
                with trace(compiled, path, optimizer=training.optimizer, on_error="raise") as traced:
                    training.run(traced)
            training.model = model
            return training.bits()

    assert run(tmp_path / "a") == run()
    run(tmp_path / "b")
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "b").same
    found = {(e.phase, e.module) for e in events_of(tmp_path / "a")}
    assert ("forward", "") in found and ("forward", "layers.0") not in found
    assert any(phase == "backward" for phase, _ in found)


class _Calls:
    """A compiled model where `Training` expects a model."""

    def __init__(self, compiled, model) -> None:
        self._compiled, self.batch = compiled, model.batch

    def __call__(self, *args):
        return self._compiled(*args)


def test_inference(tmp_path) -> None:
    def run(path, change=0.0):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).eval()
        with torch.inference_mode(), trace(model, path, on_error="raise") as traced:
            for n in range(3):
                x = torch.ones(2, 4)
                for token in range(4):
                    x = model(x + (change if (n, token) == (1, 2) else 0))
                traced.step()

    run(tmp_path / "a")
    run(tmp_path / "b")
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "b").same
    run(tmp_path / "c", 2**-20)
    first = twinrun.compare_traces(tmp_path / "a", tmp_path / "c").first_divergence
    assert (first.site.iteration, first.site.microbatch, first.module, first.reason) == (1, 2, "", "input")


def test_several_models_and_optimizers(tmp_path) -> None:
    def run(path, factor=1.0):
        torch.manual_seed(3)
        first, second = nn.Linear(4, 4), nn.Linear(4, 1)
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (first, second)]
        with trace({"g": first, "d": second}, path, optimizer=optimizers, on_error="raise"):
            for n in range(3):
                for o in optimizers:
                    o.zero_grad()
                x = first(torch.ones(2, 4))
                second(x * (factor if n == 1 else 1)).sum().backward()
                for o in optimizers:
                    o.step()

    run(tmp_path / "a")
    run(tmp_path / "b")
    same = twinrun.compare_traces(tmp_path / "a", tmp_path / "b")
    assert same.same and TraceSubject(tmp_path / "a").iterations(0) == [0, 1, 2]
    run(tmp_path / "c", 1 + 2**-20)
    first = twinrun.compare_traces(tmp_path / "a", tmp_path / "c").first_divergence
    assert (first.site.module, first.reason, first.site.iteration) == ("d", "input", 1)


def test_the_data_of_a_place_is_kept(tmp_path) -> None:
    from faults import kernel

    plant = kernel("layers.1.attn.proj")
    traced_training("transformer", tmp_path / "a")
    traced_training("transformer", tmp_path / "b", plant)
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "b")
    assert found.first_divergence.values[0].elements is None
    traced_training("transformer", tmp_path / "a2", escalate=found)
    traced_training("transformer", tmp_path / "b2", plant, escalate=(tmp_path / "a", tmp_path / "b"))
    again = twinrun.compare_traces(tmp_path / "a2", tmp_path / "b2")
    first = again.first_divergence
    assert first.site == found.first_divergence.site
    value = first.values[0]
    assert value.elements == 4 * 6 * 16 and 0 < value.different < value.elements
    assert 0 < value.max_abs_diff < 1e-5 and value.max_ulp >= 1
    kept = [
        v.kept
        for n in range(ITERATIONS)
        for e in TraceSubject(tmp_path / "a2").events(0, n)[0]
        for v in e.values
    ]
    assert 0 < sum(map(bool, kept)) < 20
    with pytest.raises(twinrun.TwinrunError, match="do not part"):
        traced_training("transformer", tmp_path / "c", escalate=(tmp_path / "a", tmp_path / "a"))


def test_the_same_training_run_again_keeps_the_data_of_the_place(tmp_path) -> None:
    """The script stays as it is but for escalate=True: the second traces lie beside the first ones."""
    from faults import kernel

    plant = kernel("layers.1.attn.proj")
    traced_training("transformer", tmp_path / "a")
    traced_training("transformer", tmp_path / "b", plant)
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "b")
    traced_training("transformer", tmp_path / "a", reference=tmp_path / "b", escalate=True)
    traced_training("transformer", tmp_path / "b", plant, reference=tmp_path / "a", escalate=True)
    again = twinrun.compare_traces(tmp_path / "a.escalated", tmp_path / "b.escalated")
    first = again.first_divergence
    assert first.site == found.first_divergence.site
    value = first.values[0]
    x, y = (_kept(tmp_path / f"{name}.escalated", first.site, value.name) for name in "ab")
    unequal = x != y
    assert value.different == unequal.sum() and 0 < value.different < value.elements == x.size
    assert tuple(value.first_index) == tuple(np.argwhere(unequal)[0])
    apart = np.abs(x.astype(float) - y.astype(float))
    assert value.max_abs_diff == apart.max() == apart[tuple(value.max_index)]
    assert (value.max_a, value.max_b) == (x[tuple(value.max_index)], y[tuple(value.max_index)])
    assert (
        value.box == [(int(i.min()), int(i.max()) + 1) for i in np.nonzero(unequal)] and value.infinite == 0
    )
    text = str(again)
    assert "elements, |a-b| up to" in text and "largest at" in text
    # The first traces are as they were, and no other place has data.
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "b").first_divergence.values[0].elements is None
    for n in range(ITERATIONS):
        for event in TraceSubject(tmp_path / "a.escalated").events(0, n)[0]:
            if any(v.kept for v in event.values):
                assert (n, event.phase, event.module) == (
                    first.site.iteration,
                    first.site.phase,
                    first.site.module,
                )


def _again(path, *, short: bool = False, other: bool = False) -> None:
    """The second run of a training, which ends sooner, or is of another model."""
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), *([] if other else [nn.Linear(4, 2)]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reference = path.with_name("b" if path.name == "a" else "a")
    with trace(model, path, optimizer=optimizer, reference=reference, escalate=True):
        for n in range(1 if short else 3):
            optimizer.zero_grad()
            model(torch.full((3, 4), float(n))).sum().backward()
            optimizer.step()


@pytest.mark.parametrize("sides, how", [("ab", "short"), ("a", "short"), ("ab", "other"), ("", "")])
def test_a_place_that_the_second_run_does_not_come_to_is_a_problem(tmp_path, sides, how) -> None:
    def plant(n: int, model: nn.Module, traced) -> None:
        if n == 2:
            with torch.no_grad():
                model[2].weight[1, 1] += 2**-10

    small(tmp_path / "a")
    small(tmp_path / "b", plant)
    site = twinrun.compare_traces(tmp_path / "a", tmp_path / "b").first_divergence.site
    assert (site.iteration, site.module) == (2, "2")
    for name in "ab":
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            _again(tmp_path / name, **({how: True} if name in sides else {}))
        told = [str(w.message) for w in said if "escalate" in str(w.message)]
        assert len(told) == (name in sides) and all(str(site) in text for text in told), told
    found = twinrun.compare_traces(tmp_path / "a.escalated", tmp_path / "b.escalated", common=how == "short")
    missed = [p for p in found.problems if f"did not come to {site}" in p]
    assert [p.split(".escalated")[0][-1] for p in missed] == [*sides]
    assert found.verdict == ("incomparable" if sides else "same") and found.different_values == 0
    if sides:
        assert found.problems[: len(missed)] == missed and not found.notes[1:]
    else:
        assert found.notes == [f"this time nothing differs at {site}, whose data was kept"]


def _operations(path, wrong: bool = False, profiled: bool = False, **options) -> list[str]:
    """A training whose second product is another one from iteration 1 on. Gives its weights."""
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))
    weights = []
    with trace(model, path, level="ops", on_error="raise", **options) as traced:
        for n in range(2):
            x = model(torch.full((3, 4), n + 1.0))
            with torch.profiler.profile() if profiled else contextlib.nullcontext() as profiler:
                y = torch.mm(x.t(), x * (1 + 2**-20 * (wrong and n == 1)))
            if profiled:
                assert any(e.name == "aten::mm" for e in profiler.events())
            y.sum().backward()
            weights.append(str(twinrun.digest(model[0].weight.grad)))
            traced.step()
    return weights


def test_an_operation_is_named_with_its_shapes_and_what_ran_it(tmp_path, monkeypatch) -> None:
    plain = _operations(tmp_path / "a"), _operations(tmp_path / "b", wrong=True)
    first = twinrun.compare_traces(tmp_path / "a", tmp_path / "b").first_divergence
    assert (first.site.operation, first.kind) == ("aten.mul.Tensor", "")
    assert first.signature == "aten.mul.Tensor(self float32[3,2]) -> output float32[3,2]"
    site = first.site._replace(operation="aten.mm.default", phase="outside", module="")
    _operations(tmp_path / "a2", escalate=site)
    again = _operations(tmp_path / "b2", wrong=True, escalate=site)
    assert again == plain[1]
    found = twinrun.compare_traces(tmp_path / "a2", tmp_path / "b2")
    (mm,) = [
        e
        for e in TraceSubject(tmp_path / "a2").events(0, 1)[0]
        if e.operation == "aten.mm.default" and e.phase == "outside"
    ]
    assert mm.kind.startswith("kernels: aten::mm")
    assert (
        found.first_divergence.signature
        and f"  operation: {found.first_divergence.signature}" in trace_lines(found)
    )
    # Of no other operation a profiler was begun; another profiler is left alone.
    assert (
        sum(
            e.kind != ""
            for n in (0, 1)
            for e in TraceSubject(tmp_path / "a2").events(0, n)[0]
            if "aten" in e.operation
        )
        == 1
    )
    assert _operations(tmp_path / "a3", profiled=True, escalate=site) == plain[0]
    assert all(e.kind == "" for e in TraceSubject(tmp_path / "a3").events(0, 1)[0] if "aten" in e.operation)
    for name in ("__enter__", "events"):  # a profiler that fails
        with monkeypatch.context() as patched:
            patched.setattr(torch.profiler.profile, name, _raises)
            assert _operations(tmp_path / f"broken{name}", escalate=site) == plain[0]
        assert twinrun.compare_traces(tmp_path / "a", tmp_path / f"broken{name}").same


def _raises(*given, **more):
    raise RuntimeError("no profiler")


def _kept(path, site, name):
    trace = TraceSubject(path)
    for event in trace.events(0, site.iteration)[0]:
        for v in event.values:
            if v.kept and v.out and v.name == name and event.module == site.module:
                return trace.kept(0, site.iteration, v.kept)[0]
    raise AssertionError(name)


def test_a_second_run_needs_two_traces_that_part(tmp_path) -> None:
    small(tmp_path / "a")
    small(tmp_path / "b")
    with pytest.raises(twinrun.TwinrunError, match="needs the other trace"):
        small(tmp_path / "a", escalate=True)
    with pytest.raises(twinrun.TwinrunError, match="do not part"):
        small(tmp_path / "a", reference=tmp_path / "b", escalate=True)
    assert not (tmp_path / "a.escalated").exists()


# ---- what goes wrong ----


def small(path, during=None, **options):
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weights = []
    with trace(model, path, optimizer=optimizer, **options) as traced:
        for n in range(3):
            optimizer.zero_grad()
            if during is not None:
                during(n, model, traced)
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
            weights.append(str(twinrun.digest(model[0].weight)))
    return weights, traced


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


class Graph:
    """Plays the capture of a CUDA graph: to read digests, or to digest anything, would end it. There is no GPU here."""

    def __init__(self, monkeypatch) -> None:
        self.captures, self.harmed = False, []
        from twinrun.capture import events

        read, made = events.digests_read, events.digests_started
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: self.captures)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.captures)
        monkeypatch.setattr(events, "digests_read", self.watched(read, "read"))
        monkeypatch.setattr(events, "digests_started", self.watched(made, "made"))

    def watched(self, usual, name: str):
        def call(*given):
            if self.captures:
                self.harmed.append(name)
            return usual(*given)

        return call


@pytest.mark.parametrize("first", ["forward", "record", "optimizer", "outside"])
def test_nothing_is_read_while_a_graph_is_captured(tmp_path, monkeypatch, first: str) -> None:
    torch.manual_seed(4)
    graph = Graph(monkeypatch)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stops = first != "outside"
    with trace(model, tmp_path / "a", optimizer=optimizer, every=1 if stops else 2) as traced:
        for n in range(3):
            optimizer.zero_grad()
            if first == "outside":  # of an iteration that is not traced
                graph.captures = n == 1
            elif first == "forward" and n == 1:
                traced.record("before", torch.ones(3))
                graph.captures = True
                with pytest.warns(RuntimeWarning, match=r"a CUDA graph is captured.*the training goes on"):
                    model(torch.ones(3, 4))
                # What was traced before is read once the capture ended, by whatever comes next.
                assert traced.stopped and not graph.harmed
                graph.captures = False
            y = model(torch.ones(3, 4)).sum()
            y.backward()
            if n == 1 and first == "record":
                graph.captures = True
                with pytest.warns(RuntimeWarning, match="a CUDA graph is captured"):
                    traced.record("y", y)
            elif n == 1 and first == "optimizer":
                graph.captures = True
                with pytest.warns(RuntimeWarning, match="a CUDA graph is captured"):
                    optimizer.step()
                graph.captures = False
                continue
            optimizer.step()
            if n == 1:
                graph.captures = False
    assert not graph.harmed
    assert traced.stopped is stops
    found = TraceSubject(tmp_path / "a")
    assert found.iterations(0) == ([0, 1] if stops else [0, 2])
    if stops:
        events, problems, _ = found.events(0, 1)
        assert "iteration 1: the trace stopped" in problems[0]
        assert len(events) > 0
        assert all(v.digest for e in events for v in e.values)


def test_a_step_that_a_scaler_skips_ends_an_iteration(tmp_path) -> None:
    def run(path, skipped: int | None) -> None:
        torch.manual_seed(4)
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        with trace(model, path, optimizer=optimizer, on_error="raise") as traced:
            for n in range(4):
                optimizer.zero_grad()
                loss = model(torch.full((3, 4), 1.0 + n)).sum() * (float("inf") if n == skipped else 1)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                traced.step()
        assert traced.iteration == 4

    run(tmp_path / "a", 1)
    run(tmp_path / "b", 1)
    run(tmp_path / "c", None)
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "b").same
    subject = TraceSubject(tmp_path / "a")
    assert subject.iterations(0) == [0, 1, 2, 3]
    phases = [{e.phase for e in subject.events(0, n)[0]} for n in range(4)]
    assert ["optimizer" in p for p in phases] == [True, False, True, True]
    assert {e.microbatch for n in range(4) for e in subject.events(0, n)[0]} == {0}
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "c")
    assert found.first_divergence.site.iteration == 1 and "iteration 4" not in " ".join(found.problems)


def test_what_data_writes_is_seen(tmp_path) -> None:
    """A parameter is digested each time: `.data`, and what devices do, give a tensor no new version."""

    def run(path, changed: bool) -> None:
        torch.manual_seed(4)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with trace(model, path, optimizer=optimizer, on_error="raise"):
            model(torch.ones(3, 4)).sum().backward()
            version = model[1].weight._version
            if changed:
                model[1].weight.data.view(-1)[3] += 2**-10
            assert model[1].weight._version == version
            optimizer.step()

    run(tmp_path / "a", False)
    run(tmp_path / "b", True)
    first = twinrun.compare_traces(tmp_path / "a", tmp_path / "b").first_divergence
    assert (first.site.phase, first.values[0].name, first.reason) == ("optimizer", "1.weight", "input")


def test_names_that_look_alike_are_two_values(tmp_path) -> None:
    class Takes(nn.Module):
        def forward(self, given):
            return sum(given.values())

    def run(path, first: float, second: float) -> None:
        with trace(Takes(), path, on_error="raise") as traced:
            for model in traced._models.values():
                model({1: torch.tensor(first), "1": torch.tensor(second)})

    run(tmp_path / "a", 1.0, 2.0)
    run(tmp_path / "b", 2.0, 1.0)
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "b")
    assert found.different_values == 2 and [v.name for v in found.first_divergence.values] == [
        "args.0.1", "args.0.1#2"
    ]  # fmt: skip


def test_containers_that_hold_themselves_end_the_trace_only(tmp_path) -> None:
    endless: list = [torch.ones(1)]
    endless.append(endless)

    class Takes(nn.Module):
        def forward(self, given):
            return given[0]

    model = Takes()
    with pytest.warns(RuntimeWarning, match="containers, one within the other"), trace(model, tmp_path / "a"):
        assert model(endless) == torch.ones(1)


def test_a_learning_rate_that_is_a_tensor_is_seen_whole(tmp_path) -> None:
    def run(path, rate: float) -> None:
        torch.manual_seed(1)
        model = nn.Linear(2, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(rate), foreach=False)
        with trace(model, path, optimizer=optimizer, on_error="raise"):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()

    run(tmp_path / "a", 1e-3)
    run(tmp_path / "b", 1e-3 * (1 + 2**-22))
    first = twinrun.compare_traces(tmp_path / "a", tmp_path / "b").first_divergence
    assert (first.site.phase, first.values[0].name) == ("optimizer", "settings.lr")


def test_parameters(tmp_path) -> None:
    model = nn.Linear(2, 2)
    for wrong, text in (
        ({"level": "kernels"}, "level"), ({"every": 0}, "every"), ({"every": True}, "every"),
        ({"on_error": "ignore"}, "on_error"), ({"rng": True}, "rng"), ({"replicas": 2}, "init_process_group"),
        ({"replicas": -1}, "replicas"), ({"on_divergence": "fail"}, "on_divergence"), ({"group": 3}, "group is for"),
        ({"reference": tmp_path / "none"}, "none"), ({"optimizer": [3]}, "no torch.optim.Optimizer"),
        ({"escalate": 3}, "not understood"),
    ):  # fmt: skip
        with pytest.raises(twinrun.TwinrunError, match=text):
            trace(model, tmp_path / "a", **wrong)
        assert not (tmp_path / "a").exists(), wrong
    with pytest.raises(twinrun.TwinrunError, match=r"torch\.nn\.Module"):
        trace({"x": 3}, tmp_path / "a")
    with (
        twinrun.Run(tmp_path / "a", keep_data=False) as run,
        pytest.raises(twinrun.TwinrunError, match="keep_data"),
    ):
        trace(model, run)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with twinrun.Run(tmp_path / "c") as run:
            with trace(model, run) as traced:
                model(torch.ones(1, 2))
            assert traced.run is run
            run.wait()
            assert run.steps == [0]
    with pytest.raises(twinrun.TwinrunError):
        trace(model, tmp_path / "c")


class Transforms(nn.Module):
    """Its own modules run within transforms of torch.func."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        given = dict(self.lin.named_parameters())
        slope = torch.func.grad(lambda p: torch.func.functional_call(self.lin, p, (x,)).sum())(given)
        forwards = torch.func.jacfwd(lambda z: self.lin(z))(x[0]).sum()
        return (
            torch.func.vmap(self.lin)(x) + torch.func.jacrev(self.lin)(x[0]).sum() + slope["bias"] + forwards
        )


@pytest.mark.parametrize("level", ["modules", "ops"])
def test_transforms_of_torch_func(tmp_path, level: str) -> None:
    def run(path=None, factor: float = 1.0):
        torch.manual_seed(4)
        model = Transforms()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def train():
            for n in range(2):
                optimizer.zero_grad()
                x = torch.arange(12.0).view(3, 4)
                x[2, 3] *= factor if n else 1  # an item within vmap
                model(x).sum().backward()
                optimizer.step()

        if path is None:
            train()
        else:
            with trace(model, path, optimizer=optimizer, level=level, on_error="raise"):
                train()
        return [str(d) for d in twinrun.digest(model).values()]

    assert run(tmp_path / "a") == run(tmp_path / "b") == run()
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "b")
    assert found.same, found.problems
    inner = [e for e in events_of(tmp_path / "a") if e.module == "lin" and e.phase == "forward"]
    assert any("@vmap" in v.name for e in inner for v in e.values)
    run(tmp_path / "c", 1 + 2**-20)
    first = twinrun.compare_traces(tmp_path / "a", tmp_path / "c").first_divergence
    assert (first.site.iteration, first.site.module, first.reason) == (1, "", "input")


def test_nested_tensors_are_seen_by_their_parts(tmp_path) -> None:
    def run(path, last: float) -> None:
        model = nn.Identity()
        with trace(model, path, on_error="raise"):
            for layout in (torch.jagged, torch.strided):
                parts = [torch.ones(3, 4), torch.tensor([[1.0, 1, 1, last]])]
                model(torch.nested.nested_tensor(parts, layout=layout))

    for name, last in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
        run(tmp_path / name, last)
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "b").same
    first = twinrun.compare_traces(tmp_path / "a", tmp_path / "c").first_divergence
    assert [v.name for v in first.values] == ["args.0.1"]


def scripted(kind: str) -> nn.Module:
    """The same parameters in any kind: `inner` runs by PyTorch or by TorchScript."""
    torch.manual_seed(4)
    inner = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4, bias=False))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        if kind.startswith("script"):
            inner = torch.jit.script(inner)
        elif kind.startswith("trace"):
            inner = torch.jit.trace(inner, torch.ones(3, 4))
    return inner if kind.endswith("alone") else nn.Sequential(inner, nn.Tanh(), nn.Linear(4, 2))


@pytest.mark.parametrize("level", ["modules", "ops"])
@pytest.mark.parametrize("kind", ["script", "trace", "script alone", "trace alone"])
def test_torchscript_is_traced_as_a_whole(tmp_path, kind: str, level: str) -> None:
    def run(path=None, factor: float = 1.0):
        model = scripted(kind)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def train():
            for n in range(3):
                optimizer.zero_grad()
                x = torch.arange(12.0).view(3, 4)
                if n == 1:
                    with torch.no_grad():
                        next(model.parameters()).view(-1)[0] *= factor
                model(x).sum().backward()
                optimizer.step()

        if path is None:
            train()
        else:
            # TorchScript optimises after its first calls: a later run would have other operations.
            with (
                torch.jit.optimized_execution(False),
                trace(model, path, optimizer=optimizer, level=level, on_error="raise") as traced,
            ):
                train()
            assert not traced.problems and not any(m._forward_hooks for m in model.modules())
        return [str(d) for d in twinrun.digest(model.state_dict()).values()]

    assert run(tmp_path / "a") == run(tmp_path / "b") == run()
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "b").same
    run(tmp_path / "c", 1 + 2**-20)
    first = twinrun.compare_traces(tmp_path / "a", tmp_path / "c").first_divergence
    path = "" if kind.endswith("alone") else "0"
    if level == "modules":
        assert (first.site.iteration, first.module, first.reason) == (1, path, "input")
        assert [v.name for v in first.values] == ["0.weight"]
    seen = [e for e in events_of(tmp_path / "a") if e.phase == "forward" and e.module == path]
    assert {"args.0", "0.weight", "0.bias", "1.running_mean", "2.weight", "output"} <= {
        v.name for e in seen for v in e.values
    }


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


def test_operations_of_higher_order_and_compiled_ones(tmp_path) -> None:
    """PyTorch refuses both under a dispatch mode that does not say that it takes them."""
    # Compiling begins the use of a GPU: its generator would have a state in the second run only.
    if torch.cuda.is_available():
        torch.cuda.init()

    class Either(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 4)
            self.whole = torch.compile(lambda x: x.sin().cos(), backend="aot_eager", fullgraph=True)

        def forward(self, x, factor):
            y = torch.cond(x.sum() > 0, lambda x: x * factor, lambda x: x.clone(), (self.lin(x),))
            return self.whole(y)

    def run(path, factor: float):
        torch.manual_seed(4)
        model = Either()
        with trace(model, path, level="ops", on_error="raise"), torch.no_grad():
            return model(torch.ones(2, 4), torch.tensor(factor))

    assert torch.equal(run(tmp_path / "a", 2.0), run(tmp_path / "b", 2.0))
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "b").same
    run(tmp_path / "c", 2.5)
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "c")
    assert found.verdict == "different"


@pytest.fixture
def as_on_devices(monkeypatch):
    """Digests count as under way on a device, and nobody waits for them."""
    from twinrun.capture.events import StepEvents

    monkeypatch.setattr(StepEvents, "on_devices", property(lambda self: bool(self.waiting)))


def test_an_iteration_on_a_device_is_captured_when_the_next_one_ends(tmp_path, as_on_devices) -> None:
    def train(path, **options):
        torch.manual_seed(3)
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        steps = []
        with trace(model, path, optimizer=optimizer, on_error="raise", **options) as traced:
            for n in range(5):
                model(torch.full((1, 2), float(n))).sum().backward()
                optimizer.step()
                traced.run.wait()
                steps.append(list(traced.run.steps))
        return steps

    assert train(tmp_path / "a") == [list(range(n)) for n in range(5)]
    # What an iteration that is not traced leaves waiting is captured with it.
    assert train(tmp_path / "b", every=2) == [[], [0], [0], [0, 2], [0, 2]]
    assert TraceSubject(tmp_path / "b").iterations(0) == [0, 2, 4]
    # A comparison does not wait.
    assert train(tmp_path / "c", reference=tmp_path / "a") == [list(range(n + 1)) for n in range(5)]
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "c").same
    assert TraceSubject(tmp_path / "a").iterations(0) == list(range(5))


def test_what_waits_is_captured_when_the_training_fails(tmp_path, as_on_devices) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(ZeroDivisionError), trace(model, tmp_path / "a") as traced:
        for n in range(3):
            model(torch.full((1, 2), 1 / (2 - n)))
            traced.step()
    assert TraceSubject(tmp_path / "a").iterations(0) == [0, 1]


def test_a_full_disk_at_an_iteration_that_waits(tmp_path, as_on_devices) -> None:
    model = nn.Linear(2, 2)
    with (
        pytest.warns(RuntimeWarning, match="No space left"),
        trace(model, tmp_path / "a") as traced,
    ):
        for n in range(4):
            if n == 1:
                traced.run = Full(traced.run)
            model(torch.ones(1, 2))
            traced.step()
    assert traced.stopped and any("No space left" in p for p in traced.problems)


class Own(nn.Module):
    """Code of its own before, between and behind two modules."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.wrong = ""

    def forward(self, x):
        from faults import Scaled

        def through(name, y):
            return Scaled.apply(y) if name == self.wrong else y * 1

        x = self.first(through("before", x * 2))
        return through("behind", self.second(through("between", torch.tanh(x))).relu())


@pytest.mark.parametrize("wrong", ["before", "between", "behind"])
def test_a_wrong_gradient_in_a_module_s_own_code_names_the_module(tmp_path, wrong) -> None:
    for name, at in (("a", ""), ("b", wrong)):
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(3, 3), Own(), nn.Linear(3, 3))
        model[1].wrong = at
        with trace(model, tmp_path / name, on_error="raise") as traced:
            model(torch.ones(2, 3)).square().sum().backward()
            traced.step()
    first = twinrun.compare_traces(tmp_path / "a", tmp_path / "b").first_divergence
    assert (first.module, first.site.phase) == ("1", "backward"), first


def test_gradients_come_into_modules_and_leave_them(tmp_path) -> None:
    """One event each where a module begins and ends; own code in between has none."""
    model = nn.Sequential(nn.Linear(3, 3), Own(), nn.Sequential(nn.Linear(3, 3)))
    x = torch.ones(2, 3)
    with trace(model, tmp_path / "a", on_error="raise") as traced:
        model(x).square().sum().backward()
        model(x.requires_grad_()).sum().backward()
        traced.step()
    events = [e for e in events_of(tmp_path / "a") if e.operation == "backward"]
    way = [(e.module, e.values[0].out) for e in events if e.microbatch == 0]
    assert way == [
        ("", False), ("2", False), ("2.0", False), ("2.0", True),
        ("1", False), ("1.second", False), ("1.second", True), ("1.first", False), ("1.first", True), ("1", True),
        ("0", False),
    ]  # fmt: skip
    # With a gradient of its input the first layer hands one on.
    assert [(e.module, e.values[0].out) for e in events if e.microbatch == 1] == [*way, ("0", True)]
    calls = {(e.microbatch, e.module): e.call for e in events}
    for e in events:
        outer = {"2": "", "2.0": "2", "1.first": "1", "1.second": "1", "1": "", "0": ""}.get(e.module)
        assert e.enclosing == (-1 if outer is None else calls[e.microbatch, outer]), e


def test_a_graph_that_was_dropped_is_not_kept(tmp_path) -> None:
    import gc
    import weakref

    class Marked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, mark):
            ctx.mark = mark
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g, None

    class Mark:
        pass

    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    usual, marks = model[1].forward, []

    def forward(x):
        mark = Mark()
        marks.append(weakref.ref(mark))
        return Marked.apply(usual(x), mark)

    model[1].forward = forward
    with trace(model, tmp_path / "a", on_error="raise") as traced:
        for _ in range(2):
            y = model(torch.ones(1, 2))
            traced.record("loss", y.sum())
            del y
            gc.collect()
            assert marks[-1]() is None
