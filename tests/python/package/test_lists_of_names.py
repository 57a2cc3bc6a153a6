"""A text where a list of names or globs is expected is a list of one, and not its letters."""

from __future__ import annotations

import json

import numpy as np
import pytest

import twinrun
from twinrun import golden
from twinrun.acceptance import perturb_copies
from twinrun.comparison.tolerances import Rule, Tolerances
from twinrun.ensemble.study.foreign import read_csv
from twinrun.ensemble.study.importing import import_tasks


@pytest.fixture
def history(tmp_path):
    """A history with the fields array, a and r."""
    with twinrun.Run(tmp_path / "run", atol=1e-6) as run:
        run.capture(0, {name: np.arange(3.0) for name in ("array", "a", "r")})
    return tmp_path / "run"


def test_compare():
    a, b = {"array": np.zeros(3), "a": np.zeros(3)}, {"array": np.zeros(3), "a": np.ones(3)}
    result = twinrun.compare(a, b, fields="array")
    assert [f.field for f in result.fields] == ["array"] and result
    assert twinrun.compare(a, b, leave_out="a")
    assert twinrun.compare_distances(a, b, a, fields="array").verdict == "as far"
    without = (glob for glob in ("array",))
    assert twinrun.compare_distances(a, a, a, leave_out=without).fields[0].field == "a"


def test_index(tmp_path):
    np.savez(tmp_path / "x.npz", array=np.zeros(3), a=np.zeros(3))
    (facts,) = twinrun.index(tmp_path / "x.npz", fields="array")
    assert [f.name for f in twinrun._core.Metadata(facts.metadata).fields] == ["array"]


def test_golden(tmp_path):
    a = {"array": np.zeros(3), "a": np.zeros(3)}
    golden.save(a, tmp_path / "all")
    result = golden.check(tmp_path / "all", {"array": np.zeros(3)}, fields="array")
    assert result and [f.field for f in result.fields] == ["array"]
    golden.save(a, tmp_path / "left", leave_out="array")
    assert [f.field for f in golden.check(tmp_path / "left", a, fields=["array", "a"]).fields] == ["a"]


def test_sketches(history):
    assert twinrun.sketch_of(history, 0, device="cpu", fields="array").names == ["array"]
    sketch = twinrun.sketch({"array": np.zeros(3), "a": np.zeros(3)}, atol=1e-6)
    other = twinrun.sketch({"array": np.zeros(3), "a": np.ones(3)}, atol=1e-6)
    assert [f.field for f in sketch.compare(other, fields="array").fields] == ["array"]


def test_what_a_run_loads(history):
    with twinrun.Run(history, existing="append", atol=1e-6) as run:
        assert list(run.load(0, "array")) == ["array"]


def test_the_runs_of_pytorch(tmp_path):
    torch = pytest.importorskip("torch")
    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_available():
        pytest.skip("PyTorch without torch.distributed")
    from twinrun.torch import ParallelRun

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        state = {"array": torch.ones(3), "a": torch.ones(3)}
        with ParallelRun(tmp_path / "run", atol=1e-6) as run:
            run.capture(0, state, local="array")  # one of each process's own, and not of letters
            assert list(run.load(0, "array")) == ["array"]
            state["array"].zero_()
            run.restore(0, state, local="array")
        assert state["array"].sum() == 3
    finally:
        distributed.destroy_process_group()


def test_perturbations(tmp_path):
    state = {"array": np.linspace(1, 2, 5), "a": np.linspace(1, 2, 5)}
    made = twinrun.perturb(state, ulp=1, fields="array")
    assert made["a"] is state["a"] and (made["array"] != state["array"]).any()
    np.save(tmp_path / "start.npy", state["a"])
    assert len(perturb_copies(str(tmp_path / "start.npy"), tmp_path / "one", ulp=1)) == 1
    assert len(perturb_copies(tmp_path / "start.npy", tmp_path / "two", ulp=1)) == 1


def test_acceptance(tmp_path):
    pytest.importorskip("scipy")
    rng = np.random.default_rng(1)
    runs = [{"array": rng.normal(size=50), "a": rng.normal(size=50)} for _ in range(6)]
    found = twinrun.accept(runs[:5], runs[5:], fields="array")
    assert [f.field for f in found.fields] == ["array"]
    assert [f.field for f in twinrun.accept(runs[:5], runs[5:], leave_out="array").fields] == ["a"]
    np.savez(tmp_path / "new.npz", **runs[5])
    for new in (runs[5], str(tmp_path / "new.npz"), tmp_path / "new.npz"):  # one run
        assert twinrun.accept(runs[:5], new).verdict == twinrun.accept(runs[:5], runs[5:]).verdict
    with pytest.raises(twinrun.TwinrunError, match="1 reference run: a distribution needs three"):
        twinrun.accept("run", "run")


def test_placements():
    plan = twinrun.plan_aggregation("torus:2x2x2", aggregators=2, placements="cost")
    assert [p.placement for p in plan.placements] == ["cost"]


def test_ensembles(tmp_path):
    pytest.importorskip("pandas")
    from twinrun.ensemble import analyse

    rng = np.random.default_rng(1)
    lines = [{"task": k, "status": "ok", "wall": 1 + 0.001 * rng.normal()} for k in range(40)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "heat.csv").write_text("task,heat\n" + "".join(f"{k},{k % 7}\n" for k in range(40)))
    found = analyse(tmp_path, only="spread", covariates=str(tmp_path / "heat.csv"))
    assert [a.name for a in found.analyses] == ["spread"]
    text = "wall,size,s\n" + "1.0,3,4\n2.0,5,6\n" * 3
    assert all(list(line["factors"]) == ["size"] for line in read_csv(text, factors="size"))
    (tmp_path / "times.csv").write_text(text)
    assert import_tasks(str(tmp_path / "times.csv"), tmp_path / "study", factors="size") == 6


def test_a_rule():
    rules = Tolerances((Rule(fields="array"),))
    assert rules.number("array", None) == 0 and rules.number("a", None) is None


@pytest.mark.parametrize("given", [3, [3], b"x", [b"x"], ["x", None], np.array("x")], ids=repr)
def test_what_is_no_text(given, tmp_path):
    x = {"x": np.zeros(3)}
    for call in (
        lambda: twinrun.compare(x, x, fields=given),
        lambda: twinrun.compare(x, x, leave_out=given),
        lambda: twinrun.index(tmp_path, fields=given),
        lambda: golden.save(x, tmp_path / "golden", fields=given),
        lambda: twinrun.perturb(x, ulp=1, fields=given),
    ):
        with pytest.raises(twinrun.TwinrunError, match="must be a text or a list of texts"):
            call()


@pytest.mark.parametrize("given", [5, [5], b"a=b", np.array(5), ["a=b", None]])
def test_renames_that_are_no_texts(given):
    with pytest.raises(
        twinrun.TwinrunError, match="rename must be a text, a list of texts or a mapping, not"
    ):
        twinrun.compare({"a": 1.0}, {"a": 1.0}, rename=given)


def test_paths_that_are_no_paths(tmp_path):
    """A list where each path is an argument of its own, and what is no path at all."""
    np.save(tmp_path / "x.npy", np.zeros(3))
    path = tmp_path / "x.npy"
    for call in (
        lambda: twinrun.index([path]),
        lambda: twinrun.index(5),
        lambda: twinrun.index(b"x.npy"),
        lambda: twinrun.verify([path]),
        lambda: twinrun.pack([path], tmp_path / "r"),
        lambda: twinrun.restore(None, tmp_path / "r"),
    ):
        with pytest.raises(twinrun.TwinrunError, match="a path is a text or an object of pathlib, not"):
            call()
