"""What a trace does not see, or cannot write: two such traces are never the same without a word of it."""

from __future__ import annotations

import datetime
import os
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="needs PyTorch 2.4: make test-torch")
from torch import nn  # noqa: E402

import twinrun.torch  # noqa: E402
from twinrun.trace.comparison import compare_traces  # noqa: E402

ODD = os.fsdecode(b"caf\xe9.png")  # what os.listdir gives for the name of a file in Latin-1


class OfDict(nn.Module):
    """A layer of the first value of a mapping."""

    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(3, 2)

    def forward(self, given: Any, *more: object) -> torch.Tensor:
        return self.l(next(iter(given.values())))


def train(
    folder: Path, call: Callable[[nn.Module, int], torch.Tensor], rate: float = 0.1, model: Any = None
) -> None:
    torch.manual_seed(0)
    m = OfDict() if model is None else model
    optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with twinrun.torch.trace(m, folder, optimizer=optimizer):
            for iteration in range(4):
                if iteration >= 2:
                    optimizer.param_groups[0]["lr"] = rate
                call(m, iteration).sum().backward()
                optimizer.step()
                optimizer.zero_grad()


@pytest.mark.parametrize("key", [ODD, "a\ud800\n", "\udc80"])
@pytest.mark.parametrize("step", [1, 2])
def test_names_that_utf_8_cannot_hold_are_traced(key: str, step: int, tmp_path: Path) -> None:
    def call(m: nn.Module, iteration: int) -> torch.Tensor:
        return m({"a" if iteration < 2 else key: torch.arange(12.0).reshape(4, 3)[::step]})

    train(tmp_path / "a", call)
    train(tmp_path / "again", call)
    train(tmp_path / "b", call, 0.9)
    assert compare_traces(tmp_path / "a", tmp_path / "again").same
    found = compare_traces(tmp_path / "a", tmp_path / "b")
    assert found.verdict == "different" and found.first_divergence.site.iteration == 2


@pytest.mark.parametrize("said", ["plain", "no \ud800"])
def test_a_trace_that_stopped_says_so(said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from twinrun.torch import recorder

    def fails(*_: object) -> None:
        raise RuntimeError(said)

    def call(m: nn.Module, iteration: int) -> torch.Tensor:
        if iteration == 2:
            monkeypatch.setattr(recorder.Recorder, "setting", fails)
        return m({"a": torch.ones(1, 3)})

    for name, rate in (("a", 0.1), ("b", 0.9)):
        train(tmp_path / name, call, rate)
        monkeypatch.undo()
    found = compare_traces(tmp_path / "a", tmp_path / "b")
    assert found.verdict == "incomparable" and "iteration 2: the trace stopped" in found.problems[0]


def test_a_problem_is_kept_where_its_values_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from twinrun.capture import events
    from twinrun.torch import recorder

    encode, fail = events.encoded_events, [False]

    def encoded(found: Any, problems: Any = (), wanted: Any = ()) -> Any:
        if fail[0] and found:
            raise RuntimeError("cannot be written")
        return encode(found, problems, wanted)

    def fails(*_: object) -> None:
        fail[0] = True
        raise RuntimeError("out of order")

    monkeypatch.setattr(events, "encoded_events", encoded)

    def call(m: nn.Module, iteration: int) -> torch.Tensor:
        if iteration == 2:
            monkeypatch.setattr(recorder.Recorder, "setting", fails)
        return m({"a": torch.ones(1, 3)})

    train(tmp_path / "a", call)
    assert fail[0]
    found = compare_traces(tmp_path / "a", tmp_path / "a")
    assert found.verdict == "incomparable" and "the trace stopped" in found.problems[0]


@pytest.mark.parametrize("way", ["compile", "in place"])
def test_a_forward_pass_that_only_compiled_code_ran_is_a_problem(way: str, tmp_path: Path) -> None:
    for name, scale in (("a", 1.0), ("b", 2.0)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 2))
        if way == "in place":
            model.compile(backend="aot_eager")
            compiled: Any = model
        else:
            compiled = torch.compile(model, backend="aot_eager")
        x = torch.arange(6.0).reshape(2, 3)
        train(
            tmp_path / name,
            lambda _, i, run=compiled, x=x, scale=scale: run(x.flip(0) if scale > 1 else x),
            model=model,
        )
    found = compare_traces(tmp_path / "a", tmp_path / "b")
    assert found.verdict != "same"
    assert any("gradients were seen, and no forward pass" in p for p in found.problems)


def test_a_trace_of_some_modules_need_not_see_a_forward_pass(tmp_path: Path) -> None:
    model = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(3, 2)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with twinrun.torch.trace(model, tmp_path / "a", optimizer=optimizer, modules="b"):
        for _ in range(2):
            model["a"](torch.ones(1, 3)).sum().backward()
            optimizer.step()
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "a").same


@pytest.mark.parametrize(
    "values",
    [
        (np.zeros(3), np.ones(3)),
        (Decimal(1), Decimal(2)),
        (range(2), range(3)),
        (bytearray(b"a"), bytearray(b"b")),
    ],
)
def test_values_of_python_that_have_a_text_or_numbers_are_compared(values: tuple, tmp_path: Path) -> None:
    for name, value in zip("ab", values, strict=True):
        train(tmp_path / name, lambda m, _, value=value: m({"a": torch.ones(1, 3)}, value))
    found = compare_traces(tmp_path / "a", tmp_path / "b")
    assert found.verdict == "different" and "args.1" in str(found.first_divergence)


def test_objects_that_nobody_looks_into_are_counted(tmp_path: Path) -> None:
    for name, value in zip("ab", ({(1,)}, {(2,)}), strict=True):
        train(tmp_path / name, lambda m, _, value=value: m({"a": torch.ones(1, 3)}, value))
    found = compare_traces(tmp_path / "a", tmp_path / "b")
    assert found.same and any(
        note.startswith("not compared: 4 values that are objects") for note in found.notes
    )


def test_two_values_of_one_name_are_not_taken_for_equal(tmp_path: Path) -> None:
    x, y = torch.ones(1, 3), torch.zeros(1, 3)
    train(tmp_path / "a", lambda m, _: m({1: x, "1": y}))
    train(tmp_path / "b", lambda m, _: m({"1": x, 1: y}))
    found = compare_traces(tmp_path / "a", tmp_path / "b")
    assert not found.same and any("two values have this name" in p for p in found.problems)


def test_a_trace_that_saw_nothing_says_so(tmp_path: Path) -> None:
    """In inference there is no gradient that would show that a compiled model was called."""
    model = nn.Linear(3, 2)
    compiled = torch.compile(model, backend="eager")
    with pytest.warns(RuntimeWarning, match=r"nothing was traced.*trace\(torch\.compile\(model\)"):
        with twinrun.torch.trace(model, tmp_path / "a") as trace, torch.no_grad():
            compiled(torch.ones(4, 3))
            trace.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with twinrun.torch.trace(compiled, tmp_path / "b") as trace, torch.no_grad():
            compiled(torch.ones(4, 3))
            trace.step()
    with pytest.raises(ValueError, match="the body's own"), warnings.catch_warnings():
        warnings.simplefilter("error")
        with twinrun.torch.trace(model, tmp_path / "c"):
            raise ValueError("the body's own")
    for run in ("a", "c"):
        assert not compare_traces(tmp_path / run, tmp_path / run).same


# ---- modules that are to be traced, and that compiled code ran ----


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin, self.act = nn.Linear(3, 3), nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.lin(x))


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def compiled_stack(way: str) -> tuple[nn.Module, Callable[..., torch.Tensor]]:
    """(what is traced, what the training calls)."""
    torch._dynamo.reset()
    model = Stack()
    if way == "beside":
        return model, torch.compile(model, backend="aot_eager")
    if way == "traced":
        model = torch.compile(model, backend="aot_eager")
    elif way == "in place":
        model.compile(backend="aot_eager")
    elif way == "a layer in place":
        model.layers[0].compile(backend="aot_eager")
    elif way == "a layer's forward":
        model.layers[0].forward = torch.compile(model.layers[0].forward, backend="aot_eager")
    return model, model


def train_stack(path: Path, way: str, modules: str) -> tuple[list[str], Any]:
    """(the warnings, the trace)."""
    torch.manual_seed(0)
    model, call = compiled_stack(way)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with twinrun.torch.trace(
            model, path, optimizer=optimizer, modules=modules, on_error="raise"
        ) as trace:
            for n in range(2):
                call(torch.ones(2, 3) + n).sum().backward()
                optimizer.step()
    return [str(w.message) for w in seen if "twinrun" in str(w.message)], trace


@pytest.mark.parametrize("modules", ["layers.*", "*.act", "head"])
@pytest.mark.parametrize("way", ["beside", "in place"])
def test_a_trace_of_some_modules_beside_a_compiled_model_is_a_problem(
    way: str, modules: str, tmp_path: Path
) -> None:
    said, trace = train_stack(tmp_path / "a", way, modules)
    assert len(trace.problems) == 2 and all("and no forward pass" in p for p in trace.problems)
    assert [s.removeprefix("twinrun: ") for s in said] == trace.problems
    of = {"layers.*": " of layers.0.lin, layers.1.lin", "*.act": "", "head": " of head"}[modules]
    if way == "in place":  # it is known what lies within
        of = {"layers.*": " of layers.0, layers.0.lin", "*.act": " of layers.0.act"}.get(modules, of)
    assert f"iteration 0: gradients were seen, and no forward pass{of}" in said[0]
    assert compare_traces(tmp_path / "a", tmp_path / "a").verdict == "incomparable"


@pytest.mark.parametrize(
    "way, modules, names",
    [
        ("traced", "layers.*", "layers.0, layers.0.lin, layers.0.act, layers.1, layers.1.lin and 1 more"),
        ("traced", "*.act", "layers.0.act, layers.1.act"),
        ("a layer in place", "*", "layers.0.lin"),
        ("a layer in place", "*.lin", "layers.0.lin"),
        ("a layer's forward", "layers.*", "layers.0.lin, layers.0.act"),
    ],
)
def test_modules_that_compiled_code_ran_are_named(way: str, modules: str, names: str, tmp_path: Path) -> None:
    (said,), trace = train_stack(tmp_path / "a", way, modules)
    assert f"iteration 0: no call of {names} was seen, though there were gradients" in said
    assert not trace.problems
    found = compare_traces(tmp_path / "a", tmp_path / "a")
    note = f"not compared: what goes into {names} and comes out"
    assert found.same and [n.startswith(note) for n in found.notes] == [True]
    # In one run alone it is a problem, as ever.
    train_stack(tmp_path / "b", "not compiled", modules)
    found = compare_traces(tmp_path / "a", tmp_path / "b")
    assert not found.same and found.unmatched and any(n.startswith(note) for n in found.notes)


@pytest.mark.parametrize(
    "way, modules",
    [("traced", "*"), ("a layer's forward", "*"), ("not compiled", "*"), ("not compiled", "layers.*")],
)
def test_what_is_traced_as_it_should_be_has_no_such_warning(way: str, modules: str, tmp_path: Path) -> None:
    said, trace = train_stack(tmp_path / "a", way, modules)
    assert not said and not trace.problems
    found = compare_traces(tmp_path / "a", tmp_path / "a")
    assert found.same and not found.notes


def test_parameters_that_code_uses_without_a_call(tmp_path: Path) -> None:
    """Attention does so, and layers that share a weight: this is no reason for a warning."""

    class Uses(nn.Module):
        def __init__(self, own: bool) -> None:
            super().__init__()
            self.attention, self.lin = nn.MultiheadAttention(4, 1), nn.Linear(4, 4)
            self.tied, self.scales = nn.Linear(4, 4), nn.ParameterList([torch.ones(4)])
            self.tied.weight, self.own = self.lin.weight, own

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x, _ = self.attention(x, x, x)
            y = nn.functional.linear(x, self.lin.weight, self.lin.bias) if self.own else self.lin(x)
            return self.tied(y) * self.scales[0]

    for own in (False, True):
        torch.manual_seed(0)
        model = Uses(own)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            with twinrun.torch.trace(model, tmp_path / str(own), optimizer=optimizer):
                for _ in range(2):
                    model(torch.ones(2, 3, 4)).sum().backward()
                    optimizer.step()
        said = [str(w.message) for w in seen if "no call of lin was seen" in str(w.message)]
        assert len(said) == len(seen) == own


class Handed(nn.Module):
    """Gives what it was made with; takes anything."""

    def __init__(self, gives: object = None) -> None:
        super().__init__()
        self.gives = [gives]

    def forward(self, taken: object) -> object:
        return self.gives[0]


class Around(nn.Module):
    def __init__(self, gives: object) -> None:
        super().__init__()
        self.inner = Handed(gives)

    def forward(self, x: object) -> torch.Tensor:
        self.inner(x)
        return torch.ones(2)


def handed(path, value: object, how: str, level: str = "modules"):
    """A trace of a program that records, takes or gives a value."""
    model = Around(value if how == "gives" else None)
    with twinrun.torch.trace(model, path, level=level, on_error="raise") as traced:
        model(value if how == "takes" else torch.ones(1))
        if how == "records":
            traced.record("v", value)
        traced.step()
    return path


class Own:
    """An object that a trace does not look into."""


LONG = np.longdouble
# One value, another one, and the first one made again.
TOLD_APART = [
    lambda n: np.array([n], ">f4"),
    lambda n: np.array([1 + n * LONG(2) ** -60], LONG),
    lambda n: np.array([1 + n * 1j], np.clongdouble),
    lambda n: np.zeros(n, LONG),
    lambda n: n * np.array([LONG("1e4000"), LONG("-inf")]),
    lambda n: np.array(["a", f"b{n}"]),
    lambda n: np.array([b"a", bytes([n])]),
    lambda n: np.array([n], "M8[s]"),
    lambda n: np.array([3600], "m8[s]" if n == 1 else "m8[h]"),
    lambda n: np.float32(n),
    lambda n: LONG(n),
    lambda n: np.bool_(n == 1),
    lambda n: np.datetime64(2020 + n, "Y"),
    lambda n: {n, 7, 8},
    lambda n: frozenset({f"{n}", "a"}),
    lambda n: [1, {n}],
    lambda n: deque([torch.full((2,), n)]),
    lambda n: datetime.timedelta(n),
    lambda n: PurePosixPath(f"{n}"),
]
NOT_LOOKED_AT = [
    lambda n: Own(),
    lambda n: np.array([(1, n)], "i4,f4"),
    lambda n: np.array([n, None]),
    lambda n: {(n,)},
    lambda n: iter([n]),
]


@pytest.mark.parametrize("level", ["modules", "ops"])
@pytest.mark.parametrize("how", ["records", "takes", "gives"])
@pytest.mark.parametrize("number", range(len(TOLD_APART)))
def test_values_that_are_no_tensors_are_told_apart(tmp_path, number: int, how: str, level: str) -> None:
    make = TOLD_APART[number]
    a, b, again = (handed(tmp_path / n, make(v), how, level) for n, v in (("a", 1), ("b", 2), ("c", 1)))
    assert compare_traces(a, b).verdict == "different"
    result = compare_traces(a, again)
    assert result.verdict == "same" and not result.notes


@pytest.mark.parametrize("number", range(len(NOT_LOOKED_AT)))
def test_what_is_not_looked_into_is_said(tmp_path, number: int) -> None:
    make = NOT_LOOKED_AT[number]
    for how in ("takes", "gives"):
        a, b = (handed(tmp_path / f"{how}{n}", make(n), how) for n in (1, 2))
        result = compare_traces(a, b)
        assert result.verdict == "same"
        assert any("that a trace does not look into" in note for note in result.notes)
    a, b = (handed(tmp_path / f"{n}", make(n), "records") for n in (1, 2))
    result = compare_traces(a, b)
    assert result.verdict == "incomparable"
    assert "v was not digested: an object that is not looked into" in result.problems[0]


def test_what_the_model_s_own_code_makes_is_not_given_to_it(tmp_path) -> None:
    class Hidden(nn.Module):
        def __init__(self, add: float) -> None:
            super().__init__()
            self.add = [add]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.clone()
            y.numpy()[0] += self.add[0]  # no operation
            return y * 2

    for path, add in (("a", 0.0), ("b", 1.0)):
        model = Hidden(add)
        with twinrun.torch.trace(model, tmp_path / path, level="ops") as traced:
            model(torch.ones(2))
            traced.step()
    said = str(compare_traces(tmp_path / "a", tmp_path / "b"))
    assert "its input differs: self; made by the code around it" in said
    assert "the model is given" not in said


def test_attributes_of_a_recorded_data_class_are_counted(tmp_path) -> None:
    @dataclass
    class Known:
        x: int = 1

    paths = []
    for more in (1, 2):
        value = Known()
        value.more = more
        paths.append(handed(tmp_path / f"{more}", value, "records"))
    result = compare_traces(*paths)
    assert result.verdict == "same"
    assert any("1 value that is an object that a trace does not look into" in note for note in result.notes)
