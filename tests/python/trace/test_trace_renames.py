"""Traces of programs that give the same modules and fields other names."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from commands import command
from test_compare_traces import event, written

import twinrun
from twinrun.runs.events import Event, Traced


def optimizer(values: dict[str, int]) -> Event:
    """Parameters at the optimizer's step: an event of no module."""
    made = [Traced(name, False, "parameter", "float32", (2,), "", "", v) for name, v in values.items()]
    return Event("optimizer", 0, "", "", "step", -1, -1, made)


@pytest.fixture
def traces(tmp_path: Path) -> tuple[str, str, str]:
    """a and b agree but for names; c has another value in its second layer, and b's names."""
    made = []
    for name, path, other in (("a", "layers", 2), ("b", "net.blocks", 2), ("c", "net.blocks", 9)):
        events = [event(f"{path}.{n}", (n + 1) if n == 0 else other) for n in range(2)]
        events.append(optimizer({f"{path}.0.weight": 5, f"{path}.1.weight": 6}))
        made.append(written(tmp_path / name, {0: events}))
    return made[0], made[1], made[2]


RULE = "net.blocks.*=layers.*"


def test_names_of_modules_and_parameters(traces: tuple[str, str, str]) -> None:
    a, b, c = traces
    assert twinrun.compare_traces(a, b).verdict == "different"
    assert twinrun.compare_traces(a, b, rename=RULE).verdict == "same"
    assert twinrun.compare_traces(a, b, rename={"net.blocks.*": "layers.*"}).verdict == "same"
    found = twinrun.compare_traces(a, c, rename=[RULE])
    assert found.verdict == "different" and found.first_divergence is not None
    assert found.first_divergence.site.module == "layers.1"


def test_on_the_command_line(traces: tuple[str, str, str], tmp_path: Path) -> None:
    a, b, c = traces
    assert command("compare", a, b).status == 1
    assert command("compare", a, b, "--rename", RULE).status == 0
    done = command("compare", a, c, "--rename", RULE, "--json", tmp_path / "r.json")
    assert done.status == 1 and "layers.1" in done.last
    assert json.loads((tmp_path / "r.json").read_text())["verdict"] == "different"


def test_rules_that_do_not_fit_are_never_the_same(traces: tuple[str, str, str]) -> None:
    a, b, _ = traces
    found = twinrun.compare_traces(a, b, rename=[RULE, "nothing.*=x.*"])
    assert found.verdict == "incomparable"
    assert any("'nothing.*=x.*' matches no module" in p for p in found.problems)
    # Also where both agree without any rule.
    assert twinrun.compare_traces(a, a, rename="nothing.*=x.*").verdict == "incomparable"
    with pytest.raises(twinrun.Incomparable, match="both get the name 'layers'"):
        twinrun.compare_traces(a, b, rename="net.blocks.*=layers")
    with pytest.raises(twinrun.TwinrunError, match="leave rename out"):
        twinrun.compare_traces(a, replicas=True, rename=RULE)
    with pytest.raises(twinrun.TwinrunError, match="is not understood"):
        twinrun.compare_traces(a, b, rename="x")


def test_fields_of_simulations(tmp_path: Path) -> None:
    x = np.arange(4.0)
    for path, name, factor in (("a", "rho", 1.0), ("b", "density", 1.0), ("c", "density", 2.0)):
        with twinrun.Run(tmp_path / path) as run:
            run.capture(0, {name: x}, phase="begin")
            run.capture(0, {name: factor * x}, phase="after forces")
    a, b, c = (tmp_path / name for name in "abc")
    assert twinrun.compare_traces(a, b).verdict == "different"
    assert twinrun.compare_traces(a, b, rename="density=rho").verdict == "same"
    found = twinrun.compare_traces(a, c, rename="density=rho")
    assert found.verdict == "different" and found.first_divergence is not None
    assert found.first_divergence.site.phase == "after forces"


def test_two_fields_never_become_one(tmp_path: Path) -> None:
    """Also where no phase has both."""
    for path, names in (("a", ("x", "x")), ("b", ("u", "v"))):
        with twinrun.Run(tmp_path / path) as run:
            for phase, name in zip(("begin", "end"), names, strict=True):
                run.capture(0, {name: np.ones(4)}, phase=phase)
    with pytest.raises(twinrun.Incomparable, match="'u' and 'v' both get the name 'x'"):
        twinrun.compare_traces(tmp_path / "a", tmp_path / "b", rename={"u": "x", "v": "x"})


def test_renamed_traces_compare_as_those_that_have_the_names(tmp_path: Path) -> None:
    """At random: modules with other names, and some values that differ."""
    draw = random.Random(3)
    verdicts = set()
    for round_ in range(30):
        names = [f"m.{draw.randrange(4)}" for _ in range(draw.randrange(1, 8))]
        ours = [draw.randrange(9) for _ in names]
        theirs = [draw.randrange(9) if draw.random() < 0.1 else v for v in ours]
        a = written(tmp_path / f"a{round_}", {0: [event(n, v) for n, v in zip(names, ours, strict=True)]})
        plain = written(
            tmp_path / f"p{round_}", {0: [event(n, v) for n, v in zip(names, theirs, strict=True)]}
        )
        other = written(
            tmp_path / f"b{round_}", {0: [event(f"w.{n}.v", v) for n, v in zip(names, theirs, strict=True)]}
        )
        expected = twinrun.compare_traces(a, plain)
        found = twinrun.compare_traces(a, other, rename="w.*.v=*")
        assert (found.verdict, found.first_divergence) == (expected.verdict, expected.first_divergence)
        assert found.problems == expected.problems
        verdicts.add(found.verdict)
    assert verdicts == {"same", "different"}


@pytest.mark.parametrize("rename", [["first=0", "second*=1*"], {"first": "0", "second": "1"}])
def test_trainings_of_models_with_other_names(rename: object, tmp_path: Path) -> None:
    """Gradients and steps are called by their parameters."""
    torch = pytest.importorskip("torch", minversion="2.4", reason="needs PyTorch 2.4: make test-torch")
    from twinrun.torch import trace

    for path, names, wrong in (("a", "01", 0), ("b", ["first", "second"], 0), ("c", ["first", "second"], 1)):
        torch.manual_seed(0)
        model = torch.nn.Sequential()
        for name in names:
            model.add_module(name, torch.nn.Linear(4, 4))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        with trace(model, tmp_path / path, optimizer=optimizer):
            for n in range(2):
                optimizer.zero_grad()
                model(torch.ones(2, 4)).square().sum().backward()
                if wrong and n == 1:
                    next(model[1].parameters()).grad[0, 0] += 1e-3
                optimizer.step()
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "b", rename=rename)
    assert found.same and not found.problems, found.problems
    first = twinrun.compare_traces(tmp_path / "a", tmp_path / "c", rename=rename).first_divergence
    assert first is not None and (first.site.iteration, first.values[0].name) == (1, "1.weight.grad")
