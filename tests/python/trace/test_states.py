"""State that a forward changes comes out of the module that changed it."""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="needs PyTorch 2.4: make test-torch")
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from tracer_checks import events_of, found  # noqa: E402

import twinrun.torch  # noqa: E402
from twinrun.torch.model import Watched  # noqa: E402
from twinrun.torch.states import Snapshot, Subtree, changed_by  # noqa: E402
from twinrun.trace.comparison import compare_traces  # noqa: E402

LAST = 3


class Keeps(nn.Module):
    """Has a buffer and a parameter, which `write` changes: before its layer runs, or after it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(4))
        self.center = nn.Parameter(torch.zeros(4), requires_grad=False)

    write: Callable[[Keeps, torch.Tensor], None] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x) + self.seen + self.center
        if self.write is not None:
            with torch.no_grad():
                self.write(self, y)
        return y


class Outer(nn.Module):
    """Runs a module, and changes what that holds: before the call, after it, or without one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Keeps()
        self.bank = nn.Module()
        self.bank.register_buffer("queue", torch.zeros(4))

    before: Callable[[Keeps], None] | None = None
    after: Callable[[Keeps], None] | None = None
    amount = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            if self.before is not None:
                self.before(self.inner)
        y = self.inner(x)
        with torch.no_grad():
            if self.after is not None:
                self.after(self.inner)
            if self.amount:
                self.bank.queue += self.amount
        return y


def amounts(model: nn.Module, path: Path, change: Callable[[float], None], **options: Any) -> None:
    """Traces iterations without an optimizer. change: is given what the model is to add in each."""
    x = torch.ones(3, 4)
    inference = options.pop("inference", False)
    with torch.inference_mode(inference), twinrun.torch.trace(model, path, **options) as trace:
        for i in range(LAST + 1):
            change(2.0 if i == LAST and path.name == "b" else 1.0)
            model(x)
            trace.step()


def adds(name: str, amount: float) -> Callable[..., None]:
    return lambda module, *_: getattr(module, name).add_(amount)


def replaces(name: str, amount: float) -> Callable[..., None]:
    def write(module: nn.Module, *_: Any) -> None:
        new = getattr(module, name) + amount
        setattr(module, name, nn.Parameter(new, requires_grad=False) if name == "center" else new)

    return write


@pytest.mark.parametrize("level", ["modules", "ops"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["seen", "center"])
@pytest.mark.parametrize("way", [adds, replaces])
def test_what_a_module_writes_of_its_own_comes_out_of_it(
    level: str, training: bool, name: str, way: Callable, tmp_path: Path
) -> None:
    def run(path: Path) -> None:
        model = nn.Sequential(nn.Linear(4, 4), Keeps()).train(training)

        def change(amount: float) -> None:
            model[1].write = way(name, amount)

        amounts(model, path, change, level=level)

    first = found(tmp_path, run).first_divergence
    assert first is not None and (first.site.iteration, first.site.module) == (LAST, "1")
    if level == "modules":  # the operation itself is named otherwise
        assert (first.reason, [v.name for v in first.values]) == ("operation", [name])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["seen", "center"])
@pytest.mark.parametrize("way", [adds, replaces])
@pytest.mark.parametrize("modules", ["*", "inner", "none"])
def test_what_a_module_writes_below_it_comes_out_of_that_module(
    training: bool, name: str, way: Callable, modules: str, tmp_path: Path
) -> None:
    def run(path: Path) -> None:
        model = nn.Sequential(Outer()).train(training)

        def change(amount: float) -> None:
            model[0].after = way(name, amount)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # no module is called "none"
            amounts(model, path, change, modules=["*" if modules == "*" else f"*{modules}"])

    first = found(tmp_path, run).first_divergence
    assert first is not None and first.site.iteration == LAST
    path = "0" if modules == "*" else ""
    assert (first.site.module, first.reason) == (path, "operation")
    assert [v.name for v in first.values] == [f"inner.{name}" if path else f"0.inner.{name}"]


def test_each_change_comes_out_of_the_innermost_module_that_made_it(tmp_path: Path) -> None:
    model = nn.Sequential(Outer()).eval()

    def outputs(**writes: Any) -> dict[str, list[str]]:
        inner = model[0].inner
        model[0].before, model[0].after, inner.write = (writes.get(k) for k in ("before", "after", "write"))
        path = tmp_path / str(len([*tmp_path.iterdir()]))
        amounts(model, path, lambda _: None)
        return {
            e.module: [v.name for v in e.values if v.out and v.role in ("buffer", "parameter")]
            for e in events_of(path, 1)
            if any(v.out for v in e.values)
        }

    nothing = {"": [], "0": [], "0.inner": [], "0.inner.layer": []}
    write = adds("seen", 1.0)
    assert outputs(none=None) == nothing
    assert outputs(write=write) == {**nothing, "0.inner": ["seen"]}
    assert outputs(after=write) == {**nothing, "0": ["inner.seen"]}
    assert outputs(before=write) == {**nothing, "0": ["inner.seen"]}
    assert outputs(before=write, write=write) == {**nothing, "0": ["inner.seen"], "0.inner": ["seen"]}
    assert outputs(write=replaces("seen", 1.0)) == {**nothing, "0.inner": ["seen"]}
    both = outputs(write=replaces("seen", 1.0), after=adds("seen", 1.0))
    assert both == {**nothing, "0": ["inner.seen"], "0.inner": ["seen"]}
    first, other = adds("seen", 1.0), adds("center", 1.0)
    assert outputs(write=first, after=other) == {**nothing, "0": ["inner.center"], "0.inner": ["seen"]}


def removes(name: str, way: str) -> Callable[..., None]:
    def write(module: nn.Module, *_: Any) -> None:
        if way == "del":
            delattr(module, name)
        else:
            setattr(module, name, None)

    return write


@pytest.mark.parametrize("level", ["modules", "ops"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["seen", "center"])
@pytest.mark.parametrize("way", ["del", "none"])
@pytest.mark.parametrize("by", ["write", "after"])
def test_what_a_module_takes_out_comes_out_of_it(
    level: str, training: bool, name: str, way: str, by: str, tmp_path: Path
) -> None:
    def run(path: Path) -> None:
        model, counted = nn.Sequential(Outer()).train(training), itertools.count()

        def change(_: float) -> None:
            if next(counted) == LAST and path.name == "b":
                setattr(model[0].inner if by == "write" else model[0], by, removes(name, way))

        amounts(model, path, change, level=level)

    result = found(tmp_path, run)
    path, told = ("0.inner", name) if by == "write" else ("0", f"inner.{name}")
    first = result.first_divergence
    assert first is not None and str(first.site) == f"iteration {LAST}, forward of {path}"
    assert first.reason == "operation" and told in [v.name for v in first.values]
    gone = [
        (e.module, v.name)
        for e in events_of(tmp_path / "b", LAST)
        for v in e.values
        if v.out and v.role == "setting"
    ]
    assert gone == [(path, told)]


def test_what_is_taken_out_of_a_module_that_is_not_called(tmp_path: Path) -> None:
    model = nn.Sequential(Outer())
    model[0].after = lambda _: setattr(model[0].bank, "queue", None)
    amounts(model, tmp_path / "a", lambda _: None)
    of = {
        i: sorted((v.name, v.out, v.role) for v in e.values if v.name == "bank.queue")
        for i in range(2)
        for e in events_of(tmp_path / "a", i)
        if e.module == "0"
    }
    assert of == {0: [("bank.queue", False, "setting"), ("bank.queue", True, "setting")], 1: []}


@pytest.mark.parametrize("way", ["again", "rename", "none"])
def test_names_are_those_of_now(way: str, tmp_path: Path) -> None:
    """As many tensors as before, in another order or under other names."""

    class Moves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in "abc":
                self.register_buffer(name, None if name == "c" else torch.zeros(4))

        amount = 1.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            old = self.a
            if way == "again":
                del self.a
                self.register_buffer("a", old + self.amount)
            elif way == "rename":  # the tensors are the same ones
                del self.a
                self.register_buffer("d", old)
            else:
                self.a, self.c = None, old
            return x

    model = nn.Sequential(Moves()).eval()
    with twinrun.torch.trace(model, tmp_path / "a") as trace:
        model(torch.ones(3, 4))
        trace.step()
    told = [
        (v.name, v.role)
        for e in events_of(tmp_path / "a")
        for v in e.values
        if v.out and e.module == "0" and v.role != "value"
    ]
    assert (
        sorted(told)
        == {
            "again": [("a", "buffer")],
            "rename": [("a", "setting"), ("d", "buffer")],
            "none": [("a", "setting"), ("c", "buffer")],
        }[way]
    )


def test_state_that_two_modules_hold_comes_out_once(tmp_path: Path) -> None:
    model = nn.Sequential(Keeps(), Keeps()).eval()
    model[1].seen = model[0].seen
    model[0].write = adds("seen", 1.0)
    amounts(model, tmp_path / "a", lambda _: None)
    told = [
        (e.module, v.name)
        for e in events_of(tmp_path / "a")
        for v in e.values
        if v.out and v.role == "buffer"
    ]
    assert told == [("0", "seen")]


def test_state_of_a_module_that_is_not_called_comes_out(tmp_path: Path) -> None:
    def run(path: Path) -> None:
        model = nn.Sequential(Outer())

        def change(amount: float) -> None:
            model[0].amount = amount

        amounts(model, path, change)

    first = found(tmp_path, run).first_divergence
    assert first is not None and (first.site.iteration, first.site.module) == (LAST, "0")
    assert [v.name for v in first.values] == ["bank.queue"] and first.inputs_not_compared == 1
    assert "inputs agree," not in str(first)


@pytest.mark.parametrize("by", ["a", "b"])
@pytest.mark.parametrize("way", ["add", "none"])
def test_state_of_a_module_that_is_not_called_and_that_one_run_alone_changes(
    by: str, way: str, tmp_path: Path
) -> None:
    """What went in was the same: what comes out differs."""

    class Takes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bank = nn.Linear(4, 4)

        changes = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x @ self.bank.weight
            with torch.no_grad():
                if self.changes and way == "add":
                    self.bank.weight.add_(1.0)
                elif self.changes:
                    self.bank.weight = None
            return y

    for name in ("a", "b"):
        torch.manual_seed(1)
        model, counted = nn.Sequential(Takes()), itertools.count()

        def change(_: float, model: Any = model, name: str = name, counted: Any = counted) -> None:
            model[0].changes = next(counted) == LAST and name == by

        amounts(model, tmp_path / name, change)
    result = compare_traces(tmp_path / "a", tmp_path / "b")
    first = result.first_divergence
    assert first is not None and str(first.site) == f"iteration {LAST}, forward of 0"
    assert first.reason == "unknown" and {(v.name, v.out) for v in first.values} == {("bank.weight", True)}
    assert "bank.weight was not compared: what the call changed before it was seen" in str(first)
    assert "what it takes differs" not in str(result)
    assert result.problems == [f"iteration {LAST}, forward of 0: bank.weight is only in {by}"]


def test_a_change_that_one_run_alone_makes_is_a_problem(tmp_path: Path) -> None:
    def run(path: Path) -> None:
        torch.manual_seed(1)
        model, counted = nn.Sequential(Outer()).eval(), itertools.count()

        def change(_: float) -> None:
            model[0].after = None if next(counted) == 1 and path.name == "b" else adds("seen", 1.0)

        amounts(model, path, change)

    for name in ("a", "b"):
        run(tmp_path / name)
    result = compare_traces(tmp_path / "a", tmp_path / "b")
    assert result.problems[0] == "iteration 1, forward of 0: inner.seen is only in a"
    assert result.verdict == "different" and "everything before agrees" not in str(result.first_divergence)


@pytest.mark.parametrize("name", ["seen", "center"])
def test_state_whose_writes_pytorch_does_not_count(name: str, tmp_path: Path) -> None:
    def run(path: Path) -> None:
        with torch.inference_mode():
            model = nn.Sequential(nn.Linear(4, 4), Keeps()).eval()

        def change(amount: float) -> None:
            model[1].write = adds(name, amount)

        amounts(model, path, change, inference=True)

    first = found(tmp_path, run).first_divergence
    assert first is not None and (first.site.iteration, first.site.module) == (LAST, "1")
    assert [v.name for v in first.values] == [name]


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputed_modules_and_lazy_ones(reentrant: bool, tmp_path: Path) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), Keeps())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inner, x, use_reentrant=reentrant)

    def run(path: Path) -> None:
        model = nn.Sequential(Block(), nn.Linear(4, 1))
        x = torch.ones(3, 4, requires_grad=True)
        model(x)  # an optimizer takes no parameters that have no values
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with twinrun.torch.trace(model, path, optimizer=optimizer):
            for i in range(LAST + 1):
                model[0].inner[2].write = adds("seen", 2.0 if i == LAST and path.name == "b" else 1.0)
                model(x).sum().backward()
                optimizer.step()

    first = found(tmp_path, run).first_divergence
    assert first is not None and str(first.site) == f"iteration {LAST}, forward of 0.inner.2"


def test_lazy_modules_make_no_changes(tmp_path: Path) -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.Tanh(), nn.LazyBatchNorm1d(affine=False)).eval()
    amounts(model, tmp_path / "a", lambda _: None)
    for iteration in range(2):
        assert not [
            (e.module, v.name)
            for e in events_of(tmp_path / "a", iteration)
            for v in e.values
            if v.out and v.role in ("buffer", "parameter")
        ]


def test_a_buffer_that_is_replaced_lives_until_the_forward_ends(tmp_path: Path) -> None:
    class Replaces(Keeps):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            before.append(weakref.ref(self.seen))
            self.seen = self.seen + 1
            return x

    before: list[Any] = []
    dead: list[Any] = []
    amounts(nn.Sequential(Replaces()).eval(), tmp_path / "a", lambda _: dead.append([b() for b in before]))
    assert dead == [[None] * n for n in range(LAST + 1)]


@pytest.mark.parametrize("name", ["seen", "center"])
def test_a_forward_may_swap_tensors(name: str, tmp_path: Path) -> None:
    def swap(module: Keeps, y: torch.Tensor) -> None:
        new = (getattr(module, name) + 1.0).add_(1.0)
        new = nn.Parameter(new, requires_grad=False) if name == "center" else new
        torch.utils.swap_tensors(getattr(module, name), new)

    model = nn.Sequential(Keeps()).eval()
    model[0].write = swap
    amounts(model, tmp_path / "a", lambda _: None)
    assert getattr(model[0], name).tolist() == [2.0 * (LAST + 1)] * 4


def test_any_changes_are_those_of_the_module_that_made_them() -> None:
    """Random changes around and within calls, against what each module has itself done."""
    draws = np.random.default_rng(3)
    for _ in range(300):
        depth = 4
        modules = [Keeps() for _ in range(depth)]
        for outer, inner in itertools.pairwise(modules):
            outer.inner = inner
        watched = [Watched("", modules[0], None)]
        for n in range(1, depth):
            watched.append(Watched(".".join(["inner"] * n), modules[n], watched[-1]))
            watched[-2].below.append(watched[-1])
        for w in watched:
            w.holds.append((w.path, w.module))
        done: dict[int, set[tuple[int, str]]] = {n: set() for n in range(depth)}

        def writes(by: int, done: dict = done, modules: list = modules) -> None:
            for _ in range(draws.integers(0, 3)):
                of, name = int(draws.integers(by, len(modules))), ("seen", "center")[draws.integers(0, 2)]
                way = (adds, replaces, lambda name, _: removes(name, "none"))[draws.integers(0, 3)]
                if getattr(modules[of], name) is None:
                    continue
                with torch.no_grad():
                    way(name, 1.0)(modules[of])
                done[by].add((of, name))
                if getattr(modules[of], name) is None:  # what others had written there is nowhere now
                    for outer in range(by):
                        done[outer].discard((of, name))

        def call(n: int, above: list, watched: list = watched, done: dict = done) -> None:
            before = Snapshot(Subtree(watched[n], lambda _: False))
            writes(n)
            if n + 1 < len(watched) and draws.integers(0, 4):
                call(n + 1, [*above, before])
                writes(n)
            told = {
                (one.name.count("inner.") + n, one.name.split(".")[-1]) for one in changed_by(before, above)
            }
            assert told == done[n]

        call(0, [])


def within(model: Keeps) -> None:
    model.write = lambda module, y: module.layer.weight.data.mul_(1.5)


def outside(model: Keeps) -> None:
    model.layer.weight.data.mul_(1.5)


@pytest.mark.parametrize(
    "when, change, place",
    [
        ("before the call", outside, (LAST - 1, "forward")),
        ("before the call", within, (LAST - 1, "optimizer")),
        ("before the step", outside, (LAST - 1, "optimizer")),
        ("after the step", outside, (LAST, "forward")),
    ],
)
def test_a_parameter_that_pytorch_does_not_see_written_differs_where_it_goes_in_next(
    when: str, change: Callable[[Keeps], None], place: tuple[int, str], tmp_path: Path
) -> None:
    def run(path: Path) -> None:
        model = Keeps()
        optimizer = torch.optim.SGD(model.layer.parameters(), lr=0.1)

        def at(now: str, i: int) -> None:
            if (path.name, now, i) == ("b", when, LAST - 1):
                change(model)

        with twinrun.torch.trace(model, path, optimizer=optimizer):
            for i in range(LAST + 1):
                model.write = None
                optimizer.zero_grad()
                at("before the call", i)
                model(torch.ones(3, 4)).square().mean().backward()
                at("before the step", i)
                optimizer.step()
                at("after the step", i)

    first = found(tmp_path, run).first_divergence
    assert first is not None and (first.site.iteration, first.site.phase) == place
    assert first.reason == "input" and [v.name for v in first.values] in (["weight"], ["layer.weight"])
