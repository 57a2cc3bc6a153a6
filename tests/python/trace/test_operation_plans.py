"""Traces of operations find out once what there is to do for operations of certain types. What is recorded is
the same as where each of them is the first of its kind, and as without what is kept between modules.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import shutil
import weakref

import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="needs PyTorch 2.4: make test-torch")

from torch import nn  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402
from tracer_checks import events_of  # noqa: E402

from twinrun import _core  # noqa: E402
from twinrun.runs.events import Event  # noqa: E402
from twinrun.torch import operands, trace  # noqa: E402
from twinrun.torch.node_gradients import NodeGradients  # noqa: E402
from twinrun.torch.operations import OperationEvents  # noqa: E402


class Does(nn.Module):
    """A module that does what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 16).reshape(4, 4))

    def forward(self, what) -> torch.Tensor:
        return what(self.weight)


def traced(path, whats, **options) -> list[list[Event]]:
    """The events of each step; a step does one of `whats`."""
    model = Does()
    with trace(model, path, level="ops", on_error="raise", **options) as under_way:
        for what in whats:
            model.zero_grad()
            result = model(what)
            if result is not None and result.requires_grad:
                (torch.view_as_real(result) if result.is_complex() else result).sum().backward()
            under_way.step()
    return [events_of(path, n) for n in range(len(whats))]


def fixed(shape: tuple[int, ...], *, turned: bool = False, dtype=torch.float32) -> torch.Tensor:
    values = torch.arange(float(torch.Size(shape).numel())).reshape(shape).to(dtype)
    return values.t().contiguous().t() if turned else values


# Operations whose types, or whose values, differ in all that a record says.
ADDITIONS = [
    lambda w, a=a, b=b, needs=needs: torch.mul(w if needs else w.detach(), fixed((4, 4), turned=b, dtype=a))
    for a, b, needs in itertools.product(
        (torch.float32, torch.float64, torch.int32, torch.bool, torch.complex64), (False, True), (False, True)
    )
]
NUMBERS = [lambda w, n=n: torch.mul(w, n) for n in (0.0, -0.0, 1, 1.0, True, float("nan"), 2, 2.5, 1j)]
SHAPES = [
    lambda w: torch.mul(w, fixed((4, 1))),
    lambda w: torch.mul(w, fixed((1, 4))),
    lambda w: torch.mul(w, fixed((0, 4, 4))),
    lambda w: torch.mul(w, fixed((2, 4, 4))),
    lambda w: torch.mul(w.t(), w),
    lambda w: torch.mul(w, w),
]
LISTS = [
    lambda w: torch.cat([w, w]),
    lambda w: torch.cat([w, w, w], 1),
    lambda w: torch.cat([w, w.t()]),
    lambda w: torch.stack((w, w), 1),
    lambda w: torch.sum(w, [0]),
    lambda w: torch.sum(w, [0, 1]),
    lambda w: torch.sum(w, (1,), keepdim=True),
    lambda w: torch.sum(w, 1, dtype=torch.float64),
    lambda w: torch.clamp(w, min=0.5),
    lambda w: torch.clamp(w, max=0.5),
    lambda w: torch.clamp(w, 0, 0.5),
    lambda w: torch.max(w, 0)[0],
    lambda w: torch.max(w, 1)[0],
    lambda w: torch.sum(w.detach().double().expand(3, 4, 4), list(range(3))),
]
# Values elsewhere, which the type of a tensor does not tell, and those that have no digest.
OTHERS = [
    lambda w: torch.mul(w, w),
    lambda w: torch.mul(torch.ones(4, device="meta"), 2) and None,
    lambda w: torch.mul(w.detach().to_sparse(), 2).to_dense(),
    lambda w: torch.mul(w, 2),
    lambda w: torch.nested.nested_tensor([w.detach()[:2], w.detach()]).mul(2.0).to_padded_tensor(0.0),
    lambda w: torch.func.vmap(lambda row: torch.mul(row, row).sum())(w),
    lambda w: torch.func.grad(lambda v: torch.mul(v, v).sum())(w.detach()),
    lambda w: torch.mul(w._neg_view(), w),
    lambda w: torch.relu(torch.quantize_per_tensor(w.detach(), 0.1, 0, torch.qint8)).dequantize(),
    lambda w: torch.relu(w),
    lambda w: torch.mul(torch.view_as_complex(w.reshape(4, 2, 2)).conj(), 2).real,
    lambda w: torch.mul(w, w),
]


def filled(w: torch.Tensor, *what) -> torch.Tensor:
    """What some operations made of a copy, which is written in place."""
    made = w.detach().clone()
    for do in what:
        do(made)
    return made


# Operations that write what they take, and others whose schema does not tell that they do not.
WRITES = [
    lambda w: filled(w, lambda t: t.add_(1)),
    lambda w: filled(w, lambda t: t.add_(w.detach(), alpha=2)),
    lambda w: filled(w, lambda t: t.add_(t)),
    lambda w: filled(w, lambda t: t.t().add_(w.detach())),
    lambda w: filled(w, lambda t: t[1].mul_(2), lambda t: t[:, 1].mul_(2)),
    lambda w: filled(
        w, lambda t: t.lerp_(w.detach().t(), 0.5), lambda t: t.addcmul_(t, w.detach(), value=-1)
    ),
    lambda w: filled(w, lambda t: t.copy_(w), lambda t: t.zero_(), lambda t: t.fill_(3), lambda t: t.sqrt_()),
    lambda w: filled(w, lambda t: t.index_put_([torch.tensor([0, 2])], torch.ones(2, 4), accumulate=True)),
    lambda w: filled(
        w, lambda t: torch._foreach_add_([t, t.clone()], 1), lambda t: torch._foreach_mul_([t], [2])
    ),
    lambda w: filled(
        w, lambda t: torch._foreach_addcdiv_([t, t.clone()], [t, t], [t + 1, t + 1], [1.0, 2.0])
    ),
    lambda w: filled(w, lambda t: torch.add(t, 1, out=t)),
    lambda w: filled(
        w, lambda t: t.masked_fill_(t > 0, 0.5), lambda t: t.scatter_(0, torch.zeros(1, 4).long(), t.clone())
    ),
    lambda w: filled(w, lambda t: t.resize_(2, 2), lambda t: t.add_(1)),
    lambda w: filled(w, lambda t: refused(lambda: t.add_(torch.ones(3, 3))), lambda t: t.add_(1)),
    lambda w: filled(w, lambda t: refused(lambda: t.index_add_(0, torch.tensor([9]), t[:1]))),
    lambda w: nn.functional.batch_norm(w, torch.zeros(4), torch.ones(4), training=True),
    lambda w: torch.sort(w, 1)[0],
    lambda w: torch.linalg.svd(w)[1],
    lambda w: torch.unique(w.detach()),
    lambda w: nn.functional.scaled_dot_product_attention(*[w.view(1, 1, 4, 4)] * 3)[0, 0],
    lambda w: filled(w, lambda t: torch.empty(4, 4).copy_(t).add_(1)),
    lambda w: filled(w, lambda t: torch.empty(4, 4)[0].copy_(t[0]).add_(1)),
    lambda w: filled(w, lambda t: t.to_sparse().mul_(2), lambda t: t.add_(t.to_sparse())),
    lambda w: filled(
        w.to(torch.complex64), lambda t: t.conj().add_(1), lambda t: t.add_(1j), lambda t: t.imag.add_(1)
    ),
    lambda w: w.mul(2).add_(1).relu_().mul(w),
    lambda w: torch.func.grad(lambda v: v.clone().mul_(v).sum())(w.detach()),
]


def refused(what) -> None:
    with pytest.raises((RuntimeError, IndexError)):
        what()


def is_not_refused(what) -> bool:
    try:
        what(torch.ones(4, 4).requires_grad_())
    except (RuntimeError, TypeError, NotImplementedError, AttributeError):
        return False
    return True


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["ADDITIONS", "NUMBERS", "SHAPES", "LISTS", "OTHERS", "WRITES"])
def test_an_operation_is_recorded_as_if_none_had_run_before(tmp_path, name: str) -> None:
    whats = [what for what in globals()[name] if name != "OTHERS" or is_not_refused(what)]
    # Each of them three times, so that events are used again, and next to each other one.
    order = [*whats, *reversed(whats), *whats, *(one for what in whats for one in (what, what, what))]
    alone = {what: traced(tmp_path / str(n), [what])[0] for n, what in enumerate(whats)}
    assert len({str(events) for events in alone.values()}) > len(whats) / 2  # they do differ
    for what, events in zip(order, traced(tmp_path / "all", order), strict=True):
        assert events == alone[what]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["ADDITIONS", "NUMBERS", "SHAPES", "LISTS", "OTHERS", "WRITES"])
def test_what_is_known_changes_no_record(tmp_path, monkeypatch, name: str) -> None:
    """The same as where each operation is looked at anew."""
    whats = [what for what in globals()[name] if is_not_refused(what)]
    by_plan = []
    for path in ("_by_plan", "_before", "_after"):
        usual = getattr(OperationEvents, path)

        def counted(self, *given, usual=usual, path=path):
            done = usual(self, *given)
            by_plan.extend([path] * (done is not None and done is not False))
            return done

        monkeypatch.setattr(OperationEvents, path, counted)
    torch.manual_seed(7)
    known = traced(tmp_path / "known", whats * 3)
    assert {"_before", "_after"} <= {*by_plan} if name == "WRITES" else "_by_plan" in by_plan
    monkeypatch.setattr(OperationEvents, "_by_plan", lambda *_: False)
    monkeypatch.setattr(OperationEvents, "_before", lambda *_: None)
    torch.manual_seed(7)
    assert known == traced(tmp_path / "anew", whats * 3)


_REFUSED = (
    RuntimeError,
    TypeError,
    NotImplementedError,
    ValueError,
    AttributeError,
    IndexError,
    AssertionError,
)


def calls_of(op) -> list:
    """Calls of an operation of PyTorch's own tests, in place too, each of which gives a tensor or more."""
    calls, written = [], op.get_inplace()
    for dtype in (torch.float32, torch.int64, torch.complex64):
        if dtype not in op.supported_dtypes("cpu") or op.name.startswith("jiterator"):  # that one is for GPUs
            continue
        needs = dtype is torch.float32 and op.supports_autograd
        try:
            samples = [*itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=needs), 2)]
        except (RuntimeError, ImportError):  # it needs a library that is not there
            continue
        for sample in samples:
            given = tree_leaves((sample.input, sample.args, sample.kwargs))
            tensors = [t for t in given if isinstance(t, torch.Tensor)]

            def call(sample=sample, tensors=tensors, function=op):
                for t in tensors:
                    t.grad = None
                taken = sample.input
                return function(
                    taken.clone() if isinstance(taken, torch.Tensor) else taken, *sample.args, **sample.kwargs
                )

            def in_place(sample=sample, function=written):
                made = sample.input.detach().clone()
                with torch.no_grad():
                    for _ in range(2):
                        function(made, *sample.args, **sample.kwargs)
                return made

            calls += [call] if written is None else [call, in_place]
    return calls


class Calls(nn.Module):
    """A model that calls what it is given."""

    def forward(self, what):
        return what()


def events_of_calls(path, calls) -> list[list[Event]]:
    """The events of each of these calls, forwards and backwards."""
    model = Calls()
    with trace(model, path, level="ops", on_error="raise") as under_way:
        for call in calls:
            torch.manual_seed(2)
            with contextlib.suppress(*_REFUSED):
                result = model(call)
                given = result if isinstance(result, (tuple, list)) else [result]
                sums = [
                    t.abs().sum().float() for t in given if isinstance(t, torch.Tensor) and t.requires_grad
                ]
                if sums:
                    torch.stack(sums).sum().backward()
            under_way.step()
    return [events_of(path, n) for n in range(len(calls))]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(8))
def test_of_every_operation_of_pytorch_what_is_known_changes_no_record(
    tmp_path, monkeypatch, part: int
) -> None:
    pytest.importorskip("expecttest", reason="PyTorch's list of operations needs expecttest: make test-torch")
    from torch.testing._internal.common_methods_invocations import op_db

    same = 0
    for number, op in enumerate(op_db[part::8]):
        calls = calls_of(op) * 2
        # What gives memory that nobody wrote gives the same by chance, and then not.
        if not calls or op.name.removeprefix("new_").startswith("empty"):
            continue
        known = events_of_calls(tmp_path / f"{number}-known", calls)
        with monkeypatch.context() as patch:
            patch.setattr(OperationEvents, "_by_plan", lambda *_: False)
            patch.setattr(OperationEvents, "_before", lambda *_: None)
            anew, again = (events_of_calls(tmp_path / f"{number}-{n}", calls) for n in range(2))
        for n in ("known", "0", "1"):
            shutil.rmtree(tmp_path / f"{number}-{n}")
        if anew == again:  # else it draws numbers, or gives memory that nobody wrote
            same += 1
            assert known == anew, op.name
    assert same > 60


def test_values_of_a_call_are_told_apart() -> None:
    t, p = torch.ones(2), nn.Parameter(torch.ones(2))
    calls = [
        ((t, 1), {}, t),
        ((t, 2), {}, t),
        ((t, -1), {}, t),
        ((t, 1.0), {}, t),
        ((t, 0.0), {}, t),
        ((t, -0.0), {}, t),
        ((t, True), {}, t),
        ((t, False), {}, t),
        ((t, 1j), {}, t),
        ((t, "1"), {}, t),
        ((t, "sum"), {}, t),
        ((t,), {"other": 1}, t),
        ((t,), {"alpha": 1}, t),
        ((t,), {"alpha": 1, "other": 1}, t),
        ((p, 1), {}, t),
        ((t, p), {}, t),
        ((t, t), {}, t),
        ((t, [1]), {}, t),
        ((t, (1,)), {}, t),
        ((t, [1, 1]), {}, t),
        ((t, [1], 1), {}, t),
        ((t, [], 1, 1), {}, t),
        ((t, [t]), {}, t),
        ((t, [t, None]), {}, t),
        ((t, None), {}, t),
        ((t,), {}, t),
        ((t, 1), {}, (t,)),
        ((t, 1), {}, [t]),
        ((t, 1), {}, (t, None)),
        ((t, 1), {}, (None, t)),
        ((t, 1), {}, None),
        ((t, torch.float32), {}, t),
        ((t, torch.float64), {}, t),
        ((t, torch.strided), {}, t),
        ((t, torch.contiguous_format), {}, t),
        ((t, torch.device("cpu")), {}, t),
        ((t, torch.device("meta")), {}, t),
    ]
    plans = _core.OperationPlans()
    for number, call in enumerate(calls):
        made = plans.call(*call)
        assert made.known is None, call
        plans.keep(made, number)
    assert [plans.call(*call).known for call in calls] == [*range(len(calls))]
    inside = [
        [one for one in (*args, *named.values()) if isinstance(one, (torch.Tensor, list))]
        for args, named, _ in calls
    ]
    for (_, _, result), taken, call in zip(calls, inside, calls, strict=True):
        flat = [
            one for each in (*taken, result) for one in (each if isinstance(each, (list, tuple)) else [each])
        ]
        tensors = [one for one in flat if isinstance(one, torch.Tensor)]
        made = plans.call(*call)
        assert len(made.arrays) == len(tensors) and all(
            a is b for a, b in zip(made.arrays, tensors, strict=True)
        )


def test_values_that_are_not_told_have_no_plan() -> None:
    t = torch.ones(2)
    for one in (1 << 64, torch.Size([1]), b"1", {}, [[1]], (1, (2,)), object(), "\ud800", Odd(1)):
        assert _core.OperationPlans().call((t, one), {}, t) is None, one
    for result in (1, [1], (t, [t]), {}, nn.Parameter(t), Turned):
        assert _core.OperationPlans().call((t,), {}, result) is None, result


class Odd(int):
    """An integer with a text of its own."""

    def __repr__(self) -> str:
        return "odd"


def test_a_plan_is_forgotten_where_values_are_never_the_same() -> None:
    t, plans = torch.ones(2), _core.OperationPlans()
    for number in range(5000):
        call = plans.call((t, number), {}, t)
        assert call.known is None
        plans.keep(call, number)
    known = [plans.call((t, number), {}, t).known for number in range(5000)]
    assert known[-1] == 4999 and known[0] is None
    assert sum(one is not None for one in known) <= 1024


def test_plain_values_that_are_never_the_same_need_no_new_events(tmp_path, monkeypatch) -> None:
    """As the rate of an optimizer: what was made for one of them serves the next one."""
    made, usual = [], operands.ReadyEvent
    monkeypatch.setattr(operands, "ReadyEvent", lambda *given: made.append(given) or usual(*given))
    model, x = Does(), torch.ones(4, 4)
    with trace(model, tmp_path / "a", level="ops", on_error="raise") as under_way:
        for n in range(40):
            for _ in range(10):
                model(lambda w, n=n: x.mul_(1 + 1 / (n + 1)).mul(n / 7))
            under_way.step()
    assert 20 <= len(made) <= 80  # of 800
    rates = [[v.digest for e in events_of(tmp_path / "a", n) if "mul_" in e.operation for v in e.values if v.name == "settings"]
             for n in range(40)]  # fmt: skip
    assert all(len(each) == 10 and len({*each}) == 1 for each in rates[1:])
    assert len({each[0] for each in rates}) == 40


def test_other_operations_may_come_between(tmp_path) -> None:
    """Events of one step are not those of another one that is not written yet."""
    model = Does()
    seen = []
    for many in (False, True):
        with trace(model, tmp_path / str(many), level="ops") as under_way:
            for n in range(6):
                for _ in range(1 + n % 3 if many else 1):
                    model(lambda w, n=n: w * n).sum().backward()
                under_way.step()
        seen.append([events_of(tmp_path / str(many), n) for n in range(6)])
    for n in (0, 3):  # steps with one run of the model
        first = [e for e in seen[0][n] if e.phase == "forward"]
        assert first == [e for e in seen[1][n] if e.phase == "forward"] and len(first) > 2


class Two(nn.Module):
    """Two outputs, one of which nothing else may use, and a value on the side."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        self.side = self.b(x * 2).relu()
        made = self.a(x).tanh()
        return made * 2, self.side * made


class Many(nn.Module):
    """Modules that give what they take, what another one gave, or several values."""

    def __init__(self) -> None:
        super().__init__()
        self.two, self.same = Two(), nn.Sequential(nn.Identity(), nn.Identity())
        self.deep = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Identity()), nn.Sequential(nn.Tanh()))
        self.last = nn.Linear(4, 4)

    def forward(self, x, trace_of) -> torch.Tensor:
        x = self.same(x * 1.5)
        one, _other = self.two(x)
        kept = self.same(one + 1)
        trace_of.record("kept", kept * 3)
        y = self.deep(kept) + self.two.side.exp()
        z = self.deep[0](y.sin()).cos()
        z[:, 0].mul_(2)
        return self.last(z) + x


class Forgetful(dict):
    """Keeps nothing."""

    def __setitem__(self, key: object, value: object) -> None:
        pass


@pytest.mark.parametrize("needs", [False, True])
def test_modules_within_modules_need_no_second_look(tmp_path, monkeypatch, needs: bool) -> None:
    def run(path):
        torch.manual_seed(3)
        model = Many()
        with trace(model, path, level="ops", on_error="raise") as under_way:
            for _ in range(3):
                x = torch.randn(3, 4, requires_grad=needs)
                loss = model(x, under_way).square().sum() + model.two.side.sum()
                under_way.record("loss", loss)
                loss.backward()
                under_way.step()
        return [events_of(path, n) for n in range(3)]

    kept = run(tmp_path / "a")
    init = NodeGradients.__init__

    def forgetful(self, *given):
        init(self, *given)
        self._beyond = Forgetful()

    monkeypatch.setattr(NodeGradients, "__init__", forgetful)
    assert kept == run(tmp_path / "b")


def test_no_node_is_kept_after_the_model_ran(tmp_path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    with trace(model, tmp_path / "a", level="ops") as under_way:
        result = model(torch.ones(2, 4))
        loss = result.exp().sum()
        under_way.record("loss", loss)
        mark = Does()
        result.grad_fn.metadata["mark"], alive = mark, weakref.ref(mark)
        del result, loss, mark
        gc.collect()
        assert alive() is None


class Watching(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Turned(torch.autograd.Function):
    """Gives gradients that are not row-major: twinrun makes them so before it digests them, by operations."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return (gradient * 2).t().contiguous().t()


@pytest.mark.parametrize("level", ["ops", "modules"])
def test_no_other_mode_sees_what_digests_need(tmp_path, level: str) -> None:
    def run(model) -> list[str]:
        model.zero_grad()
        with Watching() as mode:
            for _ in range(2):
                Turned.apply(model(Turned.apply(torch.ones(4, 4, requires_grad=True)).t())).sum().backward()
        return mode.seen

    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    model[0].weight.register_hook(lambda g: g.t().contiguous().t())
    usual = run(model)
    with trace(model, tmp_path / "a", level=level, on_error="raise") as under_way:
        for _ in range(3):
            assert run(model) == usual
            under_way.step()
    turned = [v for e in events_of(tmp_path / "a", 2) if "\tstrides\t" in e.structure for v in e.values]
    assert turned


@pytest.mark.filterwarnings("ignore")
def test_the_mode_is_not_compiled_where_compiled_code_calls_it(tmp_path) -> None:
    torch._dynamo.reset()
    seen: list[str] = []

    def hook(code, _new) -> None:
        seen.append(code.co_name)

    @torch._dynamo.disable(recursive=False)
    def eager(x: torch.Tensor) -> torch.Tensor:
        return x.mul(2)  # runs outside of what is compiled, while frames are looked at

    def shown(x: torch.Tensor) -> torch.Tensor:
        return eager(x + 1) + 0

    handle = torch._dynamo.convert_frame.register_bytecode_hook(hook)
    try:
        with trace(nn.Linear(2, 2), tmp_path / "a", level="ops", on_error="raise") as under_way:
            for _ in range(2):
                assert torch.compile(shown, backend="eager")(torch.ones(2)).tolist() == [4, 4]
                under_way.step()
    finally:
        handle.remove()
    assert "shown" in seen
    assert not {name for name in seen if "torch_dispatch" in name or name == "records"}
