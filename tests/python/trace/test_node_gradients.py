"""Nodes of the graph of gradients in traces of operations: which have events of their own, and that none is missed."""

import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="needs PyTorch 2.4: make test-torch")

from torch import nn  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import twinrun  # noqa: E402
from twinrun.torch import trace  # noqa: E402
from twinrun.torch.operations import _Schema  # noqa: E402
from twinrun.torch.values import tensors_of  # noqa: E402
from twinrun.trace.reading import TraceSubject  # noqa: E402


def model_of_two() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))


def backward_events(path) -> list:
    return [e for e in TraceSubject(path).events(0, 0)[0] if e.phase == "backward"]


def nodes_of(path) -> list[str]:
    """The names of the nodes that have events: beside operations, parameters, and borders of modules."""
    others = ("aten.", "gradient of", "backward")
    return [e.operation for e in backward_events(path) if not e.operation.startswith(others)]


def test_nodes_of_pytorch_have_no_events_beside_their_operations(tmp_path) -> None:
    model = model_of_two()
    with trace(model, tmp_path / "a", level="ops", on_error="raise"):
        (model(torch.ones(4, 3)) ** 2).sum().backward()
    assert nodes_of(tmp_path / "a") == []
    made = [(e.module, e.operation) for e in backward_events(tmp_path / "a")]
    assert made.count(("2", "aten.mm.default")) == 2
    assert sum(operation.startswith("gradient of") for _, operation in made) == 4


def test_a_gradient_that_goes_to_no_parameter_is_seen(tmp_path) -> None:
    """No operation and no parameter shows what reaches the input."""

    def traced(path, factor: float) -> None:
        x, gradient = torch.ones(2, 3, requires_grad=True), torch.full((3, 2), factor)
        with trace(nn.Identity(), path, level="ops", on_error="raise") as t:
            y = x.view(3, 2)
            t.record("y", y)
            y.backward(gradient)

    for name, factor in (("a", 1.0), ("b", 2.0), ("c", 1.0)):
        traced(tmp_path / name, factor)
    assert nodes_of(tmp_path / "a") == ["ViewBackward0", "ViewBackward0"]
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "c").same
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "b").first_divergence
    assert (found.site.phase, found.site.operation) == ("backward", "ViewBackward0")


def test_gradients_of_another_thread_that_reach_no_leaf_are_seen(tmp_path) -> None:
    """The trace sees no operation there, and no parameter or leaf gets a gradient."""

    def traced(path, factor: float) -> None:
        model, gradient = model_of_two(), torch.full((4, 2), factor)
        with trace(model, path, level="ops", on_error="raise"):
            middle = model[0](torch.ones(4, 3))
            y = model[2](model[1](middle))
            thread = threading.Thread(target=torch.autograd.grad, args=(y, middle, gradient))
            thread.start()
            thread.join()

    for name, factor in (("a", 1.0), ("b", 2.0), ("c", 1.0)):
        traced(tmp_path / name, factor)
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "c").same
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "b").first_divergence
    assert (found.site.module, found.site.phase) == ("2", "backward")
    assert nodes_of(tmp_path / "a") == ["AddmmBackward0", "AddmmBackward0", "TanhBackward0", "TanhBackward0"]


class _Rounds:
    """Changes a gradient by NumPy, in place, which no operation shows. factor: 1 changes nothing."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, gradient: torch.Tensor) -> None:
        gradient.detach().numpy()[...] *= self.factor


class _Passes(nn.Module):
    """Hands its gradient on, through nodes that run no operation."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + 1).view(-1, 3).view(x.shape)


def three_traces(folder, train) -> twinrun.TraceComparison:
    """Traces of a training with a fault and without it, twice. Gives the comparison with the fault."""
    for name, factor in (("a", 1.0), ("b", 1.5), ("c", 1.0)):
        train(folder / name, factor)
    assert twinrun.compare_traces(folder / "a", folder / "c").same
    return twinrun.compare_traces(folder / "a", folder / "b")


@pytest.mark.parametrize("asked", ["input", "behind a view", "backward"])
def test_a_hook_that_changes_what_a_module_hands_on_is_seen(tmp_path, asked: str) -> None:
    """No operation takes that gradient: it goes to the caller, or to a leaf that no module knows."""

    def train(path, factor: float) -> None:
        torch.manual_seed(0)
        model, last, leaf = _Passes(), nn.Linear(3, 1), torch.ones(2, 3, requires_grad=True)
        x = leaf.view(6).view(2, 3)
        with trace({"model": model, "last": last}, path, level="ops", on_error="raise"):
            y = model(x)
            y.register_hook(_Rounds(factor))
            loss = last(y).sum()
            if asked == "backward":
                loss.backward()
            else:
                torch.autograd.grad(loss, x if asked == "input" else leaf)

    found = three_traces(tmp_path, train)
    assert found.verdict == "different"
    assert found.first_divergence.site.phase == "backward"


@pytest.mark.parametrize("asked", ["middle", "everything"])
def test_gradients_that_the_code_of_a_module_asks_for_are_seen(tmp_path, asked: str) -> None:
    """There is no border of a module between the hook and the tensor whose gradient is asked for."""

    class Code(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.middle = x * 2
            moved = (self.middle + 1).view(-1)
            moved.register_hook(self.hook)
            self.moved = moved.view(3, 2) + 1
            return self.moved.sum()

    def train(path, factor: float) -> None:
        model, x = Code(), torch.ones(2, 3, requires_grad=True) * 1
        model.hook = _Rounds(factor)
        with trace(model, path, level="ops", on_error="raise"):
            loss = model(x)
            # The hook must not change what others hold: it gets a gradient of its own.
            seed = torch.ones(3, 2)
            inputs = [model.middle] if asked == "middle" else [model.middle, x]
            torch.autograd.grad(model.moved, inputs, seed)
            del loss

    assert three_traces(tmp_path, train).verdict == "different"


def test_a_hook_between_modules_is_named_where_it_is(tmp_path) -> None:
    """Behind it are modules that only hand on: the next operation is far away."""

    def train(path, factor: float) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), *(_Passes() for _ in range(4)), nn.Linear(3, 3))
        model[3].register_forward_hook(lambda module, args, out: out.register_hook(_Rounds(factor)) and None)
        with trace(model, path, level="ops", on_error="raise"):
            model(torch.ones(2, 3)).sum().backward()

    assert three_traces(tmp_path, train).first_divergence.site.module == "3"


def test_what_an_operation_takes_that_raises_is_seen(tmp_path) -> None:
    """The training catches the error and goes on."""

    def train(path, factor: float) -> None:
        x = torch.from_numpy(np.full((2, 2), factor, "f4"))
        with trace(nn.Identity(), path, level="ops", on_error="raise"):
            for call in (lambda: torch.mm(x, torch.ones(3, 3)), lambda: x.add_(torch.ones(3, 3))):
                with pytest.raises(RuntimeError):
                    call()

    found = three_traces(tmp_path, train)
    assert found.verdict == "different"
    assert found.first_divergence.site.operation == "aten.mm.default"
    events = [e for e in TraceSubject(tmp_path / "a").events(0, 0)[0] if e.operation != "aten.ones.default"]
    assert [e.operation for e in events] == ["aten.mm.default", "aten.add_.Tensor"]


@pytest.mark.parametrize("fresh", ["numpy", "empty"])
def test_a_kernel_before_the_dispatch_is_named_by_its_node(tmp_path, fresh: str) -> None:
    """A kernel in the place of PyTorch's gradients is called before any mode: what it gives comes from no operation."""

    def traced(path, factor: float) -> None:
        model = model_of_two()

        def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            made = torch.from_numpy(a.detach().numpy() @ b.detach().numpy() * factor)
            if fresh == "numpy":
                return made
            out = torch.empty(made.shape)
            out.numpy()[:] = made.numpy()
            return out

        with torch.library._scoped_library("aten", "IMPL") as library:
            library.impl("mm", product, "AutogradCPU")
            with trace(model, path, level="ops", on_error="raise"):
                model(torch.ones(4, 3)).sum().backward()

    traced(tmp_path / "a", 1.0)
    traced(tmp_path / "b", 1.0 + 2**-20)
    traced(tmp_path / "c", 1.0)
    assert "AddmmBackward0" in nodes_of(tmp_path / "a")
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "c").same
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "b").first_divergence
    assert (found.site.module, found.site.operation, found.reason) == ("2", "AddmmBackward0", "operation")


class _ByNumpy(torch.Tensor):
    """A weight whose products are made by NumPy, and are plain tensors."""

    factor = 1.0

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def plain(t):
            return t.as_subclass(torch.Tensor) if isinstance(t, cls) else t

        with torch._C._DisableTorchDispatch():
            args = torch.utils._pytree.tree_map(plain, args)
            if func is torch.ops.aten.mm.default:
                a, b = (t.detach().numpy() for t in args)
                return torch.from_numpy(a @ b * cls.factor)
            return func(*args, **(kwargs or {}))


def test_what_a_subclass_computes_by_itself_is_seen(tmp_path, monkeypatch) -> None:
    """Its products have no operation below that the trace would see."""
    weight = torch.ones(3, 3).as_subclass(_ByNumpy)

    def traced(path, factor: float) -> None:
        monkeypatch.setattr(_ByNumpy, "factor", factor)
        x = torch.ones(2, 3, requires_grad=True)
        with trace(nn.Identity(), path, level="ops", on_error="raise") as t:
            y = torch.mm(x * 1, weight)
            t.record("y", y.sum())
            monkeypatch.setattr(_ByNumpy, "factor", factor)
            y.sum().backward()

    for name, factor in (("a", 1.0), ("b", 2.0), ("c", 1.0)):
        traced(tmp_path / name, factor)
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "c").same
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "b").verdict == "different"


def test_a_trace_that_keeps_data_has_the_same_events(tmp_path) -> None:
    """There an operation's arguments are digested before it runs, in a batch of their own."""

    def traced(path, **how) -> list:
        model = model_of_two()
        with trace(model, path, level="ops", on_error="raise", **how):
            model(torch.ones(4, 3)).sum().backward()
        events = TraceSubject(path).events(0, 0)[0]
        return [
            (e.operation, e.module, e.call, [(v.name, v.out, v.digest) for v in e.values]) for e in events
        ]

    plain = traced(tmp_path / "a")
    from twinrun.trace.site import Site

    kept = traced(tmp_path / "b", escalate=[Site(0, 0, "backward", "2", "aten.mm.default")])
    assert kept == plain


def memory_below(t: torch.Tensor) -> torch.Tensor:
    """A copy of all bytes that a tensor shares with its views."""
    return torch.empty(0, dtype=torch.uint8).set_(t.untyped_storage()).clone()


class _Watch(TorchDispatchMode):
    """Notes operations that are taken for ones that leave their arguments as they are, and do not."""

    def __init__(self) -> None:
        super().__init__()
        self.pure: set[str] = set()
        self.wrong: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not _Schema(func).pure:
            return func(*args, **kwargs)
        taken = [t for t in tensors_of([args, kwargs]) if t.layout is torch.strided]
        before = [memory_below(t) for t in taken]
        result = func(*args, **kwargs)
        self.pure.add(str(func))
        if not all(torch.equal(memory_below(t), b) for t, b in zip(taken, before, strict=True)):
            self.wrong.add(str(func))
        return result


def test_no_operation_that_counts_as_pure_writes_what_it_takes() -> None:
    """Every operation of PyTorch's own tests, forwards and backwards."""
    pytest.importorskip("expecttest", reason="PyTorch's list of operations needs expecttest: make test-torch")
    from torch.testing._internal.common_methods_invocations import op_db

    watch, ran = _Watch(), 0
    for op in op_db:
        if torch.float32 not in op.dtypes or op.name.startswith("jiterator"):  # that one is for GPUs
            continue
        try:
            samples = list(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd))[:2]
        except (RuntimeError, ImportError):  # it needs a library that is not there
            continue
        for sample in samples:
            try:
                with watch:
                    given = tensors_of(op.op(sample.input, *sample.args, **sample.kwargs))
                    sums = [t.abs().sum() for t in given if t.requires_grad]
                    if sums:
                        torch.stack(sums).sum().backward()
            except (
                RuntimeError,
                TypeError,
                NotImplementedError,
            ):  # operations of complex numbers, and others
                continue
            ran += 1
    assert not watch.wrong
    assert ran > 500
    assert len(watch.pure) > 100
