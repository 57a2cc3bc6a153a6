"""Traces of trainings: nothing that they do changes a training or ends it, and what they say is true."""

import contextlib
import random
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="needs PyTorch 2.4: make test-torch")

from torch import nn  # noqa: E402
from tracer_checks import events_of, small  # noqa: E402
from trainings import (  # noqa: E402
    ITERATIONS,
    MODELS,
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
    if torch.cuda.is_available():
        torch.cuda.init()  # else the profiler does that, and the traces after it have one generator more
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
        ({"escalate": 3}, "not understood"), ({"on_divergence": "stop"}, "with a reference"),
        ({"on_divergence": print}, "with a reference"), ({"on_divergence": "warn"}, "with a reference"),
        ({"on_divergence": "stop", "reference": tmp_path / "b", "escalate": True}, "with a reference"),
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
