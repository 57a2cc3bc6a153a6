"""What a comparison of traces finds that other values would hide, and where it says that it is."""

from __future__ import annotations

import contextlib
import gc
import random
import warnings
import weakref
from collections import OrderedDict, UserDict, UserList, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="needs PyTorch 2.4: make test-torch")
from torch import nn  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import twinrun.torch  # noqa: E402
from twinrun.errors import TwinrunError  # noqa: E402
from twinrun.runs.plain_values import text_of  # noqa: E402
from twinrun.torch.readable import reads_plainly  # noqa: E402
from twinrun.trace.comparison import compare_traces  # noqa: E402
from twinrun.trace.result import TraceComparison  # noqa: E402
from twinrun.trace.words import trace_document  # noqa: E402


def both(folder: Path, run: Callable[[Path, bool], None]) -> TraceComparison:
    """The comparison of a run and of another one, in which something is changed. The same run twice agrees."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, changed in (("a", False), ("again", False), ("b", True)):
            run(folder / name, changed)
    assert compare_traces(folder / "a", folder / "again").different_values == 0
    return compare_traces(folder / "a", folder / "b")


def three_layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))


@pytest.mark.parametrize("level", ["modules", "ops"])
def test_tangents_of_forward_differentiation(level: str, tmp_path: Path) -> None:
    def run(path: Path, changed: bool) -> None:
        model = three_layers()
        with twinrun.torch.trace(model, path, level=level) as trace:
            for i in range(3):
                x, v = torch.randn(3, 6), torch.randn(3, 6)
                y, _ = torch.func.jvp(model, (x,), (v.flip(0) if changed and i == 1 else v,))
                trace.record("y", y.detach())
                trace.step()

    found = both(tmp_path, run)
    assert found.verdict == "different" and found.first_divergence.site.iteration == 1
    if level == "modules":
        assert [v.name for v in found.first_divergence.values] == ["args.0@tangent"]


def test_tangents_of_parameters(tmp_path: Path) -> None:
    def run(path: Path, changed: bool) -> None:
        model = three_layers()
        held = {name: p.detach().clone() for name, p in model.named_parameters()}
        with twinrun.torch.trace(model, path) as trace:
            tangents = {name: torch.full_like(p, 2.0 if changed else 1.0) for name, p in held.items()}
            torch.func.jvp(
                lambda p: torch.func.functional_call(model, p, torch.ones(2, 6)), (held,), (tangents,)
            )
            trace.step()

    assert both(tmp_path, run).verdict == "different"


def test_the_form_of_what_an_operation_fills_goes_into_it(tmp_path: Path) -> None:
    class Masked(nn.Module):
        def __init__(self, shown: int) -> None:
            super().__init__()
            self.l = nn.Linear(6, 6)
            self._shown = shown

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = torch.zeros(6)
            mask[self._shown :] = float("-inf")
            return (self.l(x) + mask).softmax(-1)

    def run(path: Path, changed: bool) -> None:
        torch.manual_seed(0)
        model = Masked(3 if changed else 4)
        with twinrun.torch.trace(model, path, level="ops") as trace:
            model(torch.ones(2, 6))
            trace.step()

    first = both(tmp_path, run).first_divergence
    assert first.site.operation.startswith(("aten.fill_", "aten.copy_")) and first.reason == "input"
    assert [v.name for v in first.values] == ["self"]


class Scaled(torch.optim.Optimizer):
    """Steps times a number that belongs to no parameter."""

    def __init__(self, parameters: Any, held: str) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.scale = torch.ones(())
        if held == "state":
            self.state["global"] = {"scale": self.scale}
        else:
            self.param_groups[0]["box"] = self

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            p.sub_(p.grad * 0.1 * self.scale)


@pytest.mark.parametrize("held", ["state", "object"])
def test_what_an_optimizer_holds_beside_its_parameters(held: str, tmp_path: Path) -> None:
    def run(path: Path, changed: bool) -> None:
        torch.manual_seed(0)
        model = nn.Linear(6, 6)
        optimizer = Scaled(model.parameters(), held)
        with twinrun.torch.trace(model, path, optimizer=optimizer):
            for i in range(3):
                if changed and i == 1:
                    optimizer.scale.fill_(1.5)
                optimizer.zero_grad()
                model(torch.ones(2, 6)).square().mean().backward()
                optimizer.step()

    first = both(tmp_path, run).first_divergence
    if held == "state":
        assert first.site.operation == "Scaled.step of its own state" and first.reason == "input"
        assert [v.name for v in first.values] == ["state.global.scale"]
    else:
        assert first.inputs_not_compared == 1


@pytest.mark.parametrize("kinds", [("_forward_hooks",), ("_forward_hooks", "_forward_pre_hooks")])
@pytest.mark.parametrize("at", [1, 2])
def test_hooks_that_the_program_removes(at: int, kinds: tuple[str, ...], tmp_path: Path) -> None:
    def run(path: Path, changed: bool) -> None:
        model = three_layers()
        with twinrun.torch.trace(model, path) as trace, torch.no_grad():
            for i in range(3):
                if i == at:
                    for module in model.modules():
                        for kind in kinds:
                            getattr(module, kind).clear()
                model(torch.ones(2, 6) * (3 if changed and i == at else 1))
                if i < 2:  # what is left belongs to the last iteration
                    trace.step()

    found = both(tmp_path, run)
    assert found.verdict != "same" and any("removed the hooks" in p for p in found.problems)


def test_hooks_that_were_removed_are_there_in_the_next_iteration(tmp_path: Path) -> None:
    def run(path: Path, changed: bool) -> None:
        model = three_layers()
        with twinrun.torch.trace(model, path) as trace, torch.no_grad():
            for i in range(4):
                if i == 1:
                    model[0]._forward_hooks.clear()
                model(torch.ones(2, 6) * (3 if changed and i == 3 else 1))
                trace.step()

    first = both(tmp_path, run).first_divergence
    assert first.site.iteration == 3


def test_a_step_counts_where_the_model_was_not_called(tmp_path: Path) -> None:
    def run(path: Path, changed: bool) -> None:
        model = three_layers()
        with twinrun.torch.trace(model, path) as trace, torch.no_grad():
            for i in range(6):
                if i not in (1, 3):
                    model(torch.ones(2, 6) * (3 if changed and i == 4 else 1))
                trace.step()
            assert trace.iteration == 6

    found = both(tmp_path, run)
    assert found.first_divergence.site.iteration == 4 and found.iterations == [0, 2, 4, 5]


def test_batches_that_a_training_skips_count(tmp_path: Path) -> None:
    model = three_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with twinrun.torch.trace(model, tmp_path, optimizer=optimizer) as trace:
        for i in range(6):
            assert trace.iteration == i
            if i not in (1, 2, 4):
                optimizer.zero_grad()
                model(torch.ones(2, 6)).square().mean().backward()
                optimizer.step()
            trace.step()
    assert compare_traces(tmp_path, tmp_path).iterations == [0, 3, 5]


def test_all_digits_of_a_long_double_count() -> None:
    one, eps = np.longdouble(1), np.finfo(np.longdouble).eps
    assert text_of(one + eps) != text_of(one + 2 * eps) != text_of(one)
    assert text_of(np.clongdouble(one + eps)) != text_of(np.clongdouble(one))


def test_addresses_in_what_a_module_says_of_itself(tmp_path: Path) -> None:
    class Says(nn.Tanh):
        def extra_repr(self) -> str:
            return f"of {object()!r}"

    def run(path: Path, changed: bool) -> None:
        model = nn.Sequential(Says())
        keep.append(object())  # the next one has another address
        with twinrun.torch.trace(model, path) as trace:
            model(torch.ones(2))
            trace.step()

    keep: list[object] = []
    assert both(tmp_path, run).same


def test_models_live_no_longer_than_without_a_trace(tmp_path: Path) -> None:
    model = three_layers()
    optimizer = torch.optim.Adam(model.parameters())
    with twinrun.torch.trace(model, tmp_path, optimizer=optimizer) as trace:
        model(torch.ones(2, 6)).sum().backward()
        optimizer.step()
    seen = weakref.ref(model), weakref.ref(optimizer)
    del model, optimizer
    gc.collect()
    assert [one() for one in seen] == [None, None]
    trace.record("x", 1.0)
    trace.step()
    assert trace.iteration == 1 and not trace.active and not trace.problems


def test_a_trace_may_be_left_twice(tmp_path: Path) -> None:
    with twinrun.torch.trace(three_layers(), tmp_path) as trace:
        trace.record("x", 1.0)
    trace.__exit__(None, None, None)


def test_hooks_that_are_removed_in_each_iteration(tmp_path: Path) -> None:
    model = three_layers()
    with warnings.catch_warnings(record=True) as told, torch.no_grad():
        warnings.simplefilter("always")
        with twinrun.torch.trace(model, tmp_path, every=2) as trace:
            known = len(trace._handles)
            for _ in range(8):
                model(torch.ones(2, 6))
                model[0]._forward_hooks.clear()
                trace.step()
            assert len(trace._handles) == known
    assert len(told) == 1 and len(trace.problems) == 4


@pytest.mark.parametrize("inner", ["grad", "vmap"])
def test_tangents_below_another_transform_count_as_not_compared(inner: str, tmp_path: Path) -> None:
    def run(path: Path, changed: bool) -> None:
        model = three_layers()
        x, v = torch.arange(12.0).view(2, 6), torch.full((2, 6), 2.0 if changed else 1.0)
        f = torch.func.grad(lambda x: model(x).sum()) if inner == "grad" else torch.func.vmap(model)
        with twinrun.torch.trace(model, path) as trace:
            torch.func.jvp(f, (x,), (v,))
            trace.step()
        assert not trace.problems

    found = both(tmp_path, run)
    assert found.same and any(note.startswith("not compared:") for note in found.notes)


def test_a_dispatch_mode_sees_nothing_of_tangents(tmp_path: Path) -> None:
    seen: list[str] = []

    class Sees(TorchDispatchMode):
        def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(f))
            return f(*args, **(kwargs or {}))

    def operations(path: Path | None) -> list[str]:
        seen.clear()
        model = three_layers()
        with contextlib.ExitStack() as traced:
            if path is not None:
                traced.enter_context(twinrun.torch.trace(model, path))
            with Sees():
                torch.func.jvp(model, (torch.ones(2, 6),), (torch.ones(2, 6),))
        return list(seen)

    assert operations(None) == operations(tmp_path) != []


def test_what_is_no_optimizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TwinrunError, match="optimizer: 'object' is no"):
        twinrun.torch.trace(three_layers(), tmp_path, optimizer=object())


def test_a_verdict_says_which_iterations_it_is_of(tmp_path: Path) -> None:
    def run(path: Path, changed: bool) -> None:
        model = three_layers()
        with twinrun.torch.trace(model, path) as trace:
            for _ in range(3):
                model(torch.ones(2, 6))
                trace.step()

    found = both(tmp_path, run)
    assert str(found).endswith(" events in iterations 0 to 2 agree bit by bit")
    assert trace_document(found)["iterations"] == [0, 1, 2]


@pytest.mark.parametrize("level", ["modules", "ops"])
def test_a_mode_of_the_program_sees_nothing_of_the_trace(level: str, tmp_path: Path) -> None:
    class Counting(TorchFunctionMode):
        calls = 0

        def __torch_function__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Counting.calls += 1
            return f(*args, **(kwargs or {}))

    def calls(path: Path | None) -> int:
        Counting.calls = 0
        model = three_layers()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with contextlib.ExitStack() as traced:
            if path is not None:
                traced.enter_context(twinrun.torch.trace(model, path, optimizer=optimizer, level=level))
            for _ in range(2):
                with Counting():
                    model(torch.ones(2, 6)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        return Counting.calls

    assert calls(None) == calls(tmp_path) > 0


@pytest.mark.parametrize("level", ["modules", "ops"])
@pytest.mark.parametrize("kind", ["mapping", "list"])
def test_containers_that_draw_what_they_are_asked_for(kind: str, level: str, tmp_path: Path) -> None:
    class Batch(Mapping):
        def __getitem__(self, key: str) -> torch.Tensor:
            return torch.ones(2, 6) + torch.randn(2, 6) * random.random() * np.random.rand()

        def __iter__(self) -> Iterator[str]:
            return iter(["x"])

        def __len__(self) -> int:
            return 1

    class Batches(list):
        def __iter__(self) -> Iterator[torch.Tensor]:
            return iter([torch.randn(2, 6)])

    class Takes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = nn.Linear(6, 6)

        def forward(self, batch: Any) -> torch.Tensor:
            return self.l(batch["x"] if kind == "mapping" else next(iter(batch)))

    def weights(path: Path | None) -> str:
        torch.manual_seed(0), random.seed(0), np.random.seed(0)
        model = Takes()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with contextlib.ExitStack() as traced:
            if path is not None:
                traced.enter_context(twinrun.torch.trace(model, path, optimizer=optimizer, level=level))
            for _ in range(3):
                optimizer.zero_grad()
                model(Batch() if kind == "mapping" else Batches()).square().mean().backward()
                optimizer.step()
        return str(twinrun.digest(model.l.weight))

    assert weights(None) == weights(tmp_path)


def test_containers_that_are_not_looked_into_are_counted(tmp_path: Path) -> None:
    class Own(dict):
        def __getitem__(self, key: str) -> Any:
            raise AssertionError("the trace does not ask")

    class Takes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = nn.Linear(6, 6)

        def forward(self, batch: Own) -> torch.Tensor:
            return self.l(batch.get("x"))

    def run(path: Path, changed: bool) -> None:
        torch.manual_seed(0)
        model = Takes()
        with twinrun.torch.trace(model, path) as trace:
            model(Own(x=torch.ones(2, 6) * (2 if changed else 1)))
            trace.step()

    first = both(tmp_path, run).first_divergence
    assert first.site.module == "l" and first.reason == "input"


@pytest.mark.parametrize(
    "kind", [dict, OrderedDict, defaultdict, UserDict, deque, UserList, namedtuple("P", "a b")]
)
def test_containers_of_python_are_read_as_they_are(kind: type) -> None:
    class Named(kind):
        pass

    assert reads_plainly(kind) and reads_plainly(Named)


@pytest.mark.parametrize("level", ["modules", "ops"])
def test_which_call_of_a_module_it_is(level: str, tmp_path: Path) -> None:
    class Loop(nn.Module):
        def __init__(self, changed: bool) -> None:
            super().__init__()
            self.l = nn.Linear(6, 6)
            self._changed = changed

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for k in range(6):
                x = self.l(torch.tanh(x) * (1.5 if self._changed and k == 4 else 1.0))
            return x

    def run(path: Path, changed: bool) -> None:
        torch.manual_seed(0)
        model = Loop(changed)
        with twinrun.torch.trace(model, path, level=level) as trace:
            model(torch.ones(2, 6))
            trace.step()

    first = both(tmp_path, run).first_divergence
    assert (first.call, first.calls) == (5, 6) and ", call 5 of 6: " in str(first)
