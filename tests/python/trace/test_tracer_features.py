"""Traces of trainings that use more of PyTorch: graphs, scalers, transforms, TorchScript, compiled functions, modules with hooks."""

import copy
import gc
import pickle
import threading
import warnings

import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="needs PyTorch 2.4: make test-torch")

from torch import nn  # noqa: E402
from tracer_checks import events_of  # noqa: E402
from trainings import (  # noqa: E402
    Full,
)

import twinrun  # noqa: E402
from twinrun.torch import trace  # noqa: E402
from twinrun.trace.reading import TraceSubject  # noqa: E402


class Graph:
    """Plays the capture of a CUDA graph: to read digests, or to digest anything, would end it. There is no GPU here."""

    def __init__(self, monkeypatch) -> None:
        self.captures, self.harmed = False, []
        from twinrun.capture import events

        read, made, started = events.digests_read, events.digests_started, events.start_digests
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: self.captures)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.captures)
        monkeypatch.setattr(events, "digests_read", self.watched(read, "read"))
        monkeypatch.setattr(events, "digests_started", self.watched(made, "made"))
        monkeypatch.setattr(events, "start_digests", self.watched(started, "started"))

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


def test_torchscript_that_was_optimized_agrees_with_one_that_was_not(tmp_path) -> None:
    """As in a training that is resumed. An optimized module has one node for all of its code, which takes other
    gradients besides those of its outputs. Whole numbers are added up alike in any order.
    """

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.second(torch.relu(self.first(x)))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        model = nn.Sequential(nn.Linear(4, 4), torch.jit.script(Inner()))
    with torch.no_grad():
        for n, p in enumerate(model.parameters()):
            p.copy_(torch.arange(p.numel()).view(p.shape) % 5 - 2 + n)
    for name in ("a", "b"):
        with trace(model, tmp_path / name) as t:
            for _ in range(5):
                model.zero_grad()
                model(torch.arange(12.0).view(3, 4) - 5).sum().backward()
                t.step()
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "b").verdict == "same"


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


def test_hooks_are_nothing_that_the_garbage_collector_looks_at() -> None:
    """A step makes thousands of them. Tracked, they set Python to look at all that PyTorch keeps, every few steps."""
    from twinrun.torch.module_gradients import _Entry, _Exit, _Region
    from twinrun.torch.node_gradients import _Node, _OfOperations

    region = _Region("layer", "Linear", "backward", 0, False)
    hooks = [
        region,
        _Entry(object(), region),
        _Exit(object(), region, (0,)),
        _Node(object(), "layer", "Linear", "AddmmBackward0", 0),
        _OfOperations(object(), "layer", "Linear", "AddmmBackward0", 0),
    ]
    assert not any(map(gc.is_tracked, hooks))


class _Doubled(torch.autograd.Function):
    """Its gradient is made by NumPy, which no operation shows."""

    factor = 2.0

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(gradient.numpy() * type(ctx)._forward_cls.factor)


class _Double(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Doubled.apply(x)


def test_a_node_whose_gradient_is_made_by_other_code_is_named(tmp_path, monkeypatch) -> None:
    """No operation shows what it does: the gradients into it and out of it do."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), _Double())

    def traced(path) -> list:
        with trace(model, path, level="ops", on_error="raise"):
            y = model(torch.ones(2, 3))
            (y**2).sum().backward()
        model.zero_grad()
        return TraceSubject(path).events(0, 0)[0]

    events = [e for e in traced(tmp_path / "a") if e.phase == "backward"]
    (into, out) = (e for e in events if e.operation == "_DoubledBackward")
    assert [v.out for v in (*into.values, *out.values)] == [False, True]
    made = {(e.module, e.operation) for e in events}
    assert ("1", "aten.tanh_backward.default") in made
    assert ("0", "aten.mm.default") in made

    monkeypatch.setattr(_Doubled, "factor", 2.0 + 2**-22)
    traced(tmp_path / "b")
    first = twinrun.compare_traces(tmp_path / "a", tmp_path / "b").first_divergence
    assert (first.site.phase, first.site.operation, first.reason) == (
        "backward",
        "_DoubledBackward",
        "operation",
    )


@pytest.mark.parametrize("level", ["modules", "ops"])
def test_gradients_of_another_thread_are_seen(tmp_path, level) -> None:
    """No mode is there that shows its operations. Nothing but these gradients differs, and no parameter has one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh()).requires_grad_(False)

    def traced(path, seed: float) -> None:
        x, gradient = torch.ones(2, 3, requires_grad=True), torch.full((2, 3), seed)
        with trace(model, path, level=level, on_error="raise"):
            y = model(x)
            thread = threading.Thread(target=y.backward, args=(gradient,))
            thread.start()
            thread.join()

    traced(tmp_path / "a", 1.0)
    traced(tmp_path / "b", 2.0)
    traced(tmp_path / "c", 1.0)
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "c").same
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "b")
    assert found.verdict == "different"
    assert found.first_divergence.site.phase == "backward"


def test_modes_before_the_dispatch_are_noticed() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    from twinrun.torch.modes import no_modes, sees_operations

    met = []

    def seen(x: torch.Tensor) -> torch.Tensor:
        met.append(sees_operations())
        with no_modes():
            met.append(sees_operations())
        return x.sin()

    make_fx(seen, pre_dispatch=True)(torch.ones(2))
    assert met == [True, False]
    assert not sees_operations()


def test_what_an_operation_takes_is_that_of_before_where_it_writes(tmp_path) -> None:
    """Its arguments are digested before it runs, and what it wrote afterwards."""
    with trace(nn.Identity(), tmp_path / "a", level="ops", on_error="raise"):
        x = torch.ones(3)
        y = x + 1
        x.add_(y)
        torch.mul(y, 2, out=x)
        torch._foreach_add_([x, y], 1.0)
    events = {e.operation: e for e in TraceSubject(tmp_path / "a").events(0, 0)[0]}

    def digests(name: str) -> list[tuple[bool, int]]:
        return [(v.out, v.digest) for v in events[name].values if v.role == "value" and v.dtype != "python"]

    one, two, three, four, five = (int(twinrun.digest(torch.full((3,), float(n)))) for n in range(1, 6))
    assert digests("aten.add.Tensor") == [(False, one), (True, two)]
    taken = [d for out, d in digests("aten.add_.Tensor") if not out]
    given = {d for out, d in digests("aten.add_.Tensor") if out}
    assert taken == [one, two] and given == {three}
    assert [d for out, d in digests("aten.mul.out") if not out] == [two]
    assert {d for out, d in digests("aten.mul.out") if out} == {four}
    assert [d for out, d in digests("aten._foreach_add_.Scalar") if not out] == [four, two]
    assert {d for out, d in digests("aten._foreach_add_.Scalar") if out} == {five, three}


def test_statistics_that_a_schema_does_not_call_written_are_those_of_before(tmp_path) -> None:
    """`native_batch_norm` writes the running mean, and its schema does not say so."""
    model = nn.BatchNorm1d(2)
    before = int(twinrun.digest(model.running_mean))
    with trace(model, tmp_path / "a", level="ops", on_error="raise"):
        model(torch.arange(6.0).view(3, 2))
    assert int(twinrun.digest(model.running_mean)) != before
    events = [e for e in TraceSubject(tmp_path / "a").events(0, 0)[0] if "batch_norm" in e.operation]
    taken = {v.name: v.digest for e in events for v in e.values if not v.out}
    assert taken["running_mean"] == before


def test_values_of_a_step_are_its_own_where_lists_are_used_again(tmp_path) -> None:
    """Steps with more values, fewer and more again: each has those that a trace of it alone has."""
    steps = (1, 3, 0, 2)
    model = nn.Linear(2, 2)

    def traced(path, numbers) -> dict:
        with trace(model, path, start=numbers[0]) as of:
            for number in numbers:
                model(torch.full((1, 2), float(number)))
                for k in range(steps[number] + 1):
                    of.record(f"value {k}", torch.full((2,), float(number)))
                of.step()
        return {
            n: [(e.operation, [(v.name, v.digest) for v in e.values]) for e in events_of(path, n)]
            for n in numbers
        }

    together = traced(tmp_path / "all", list(range(len(steps))))
    for number in range(len(steps)):
        assert traced(tmp_path / f"alone {number}", [number])[number] == together[number]


def _model_of_pairs() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.Tanh())


@pytest.mark.parametrize("level", ["modules", "ops"])
def test_a_traced_model_is_saved_whole_and_copied(tmp_path, level: str) -> None:
    """What is loaded needs no twinrun, and no copy is traced."""
    torch.manual_seed(0)
    model, x = _model_of_pairs(), torch.ones(2, 3)
    with trace(model, tmp_path / "a", level=level, on_error="raise"):
        expected = model(x)
        torch.save(model, tmp_path / "model.pt")
        text = pickle.dumps(model)
        copied = copy.deepcopy(model)
        others = [torch.load(tmp_path / "model.pt", weights_only=False), pickle.loads(text), copied]
        assert b"twinrun" not in text
        if level == "modules":
            for other in others:
                assert torch.equal(other(x), expected)
    events = [
        e
        for e in TraceSubject(tmp_path / "a").events(0, 0)[0]
        if e.phase == "forward" and not e.operation.startswith("aten")
    ]
    assert len(events) == 6  # of three modules, once
    for other in others:
        assert torch.equal(other(x), expected)
