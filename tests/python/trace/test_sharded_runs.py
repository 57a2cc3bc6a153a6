"""Runs that divide their tensors differently: TP 1 against TP 2, DP 2 against FSDP 2, on the host with Gloo and on GPUs with NCCL."""

import inspect
from pathlib import Path

import processes
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("torch.distributed.tensor", reason="this PyTorch has no DTensor")

import twinrun  # noqa: E402
from twinrun.runs.opening import open_subject  # noqa: E402
from twinrun.torch import ParallelRun  # noqa: E402
from twinrun.torch.placements import _intervals  # noqa: E402
from twinrun.trace.reading import TraceSubject  # noqa: E402

PROGRAM = Path(__file__).with_name("sharded_runs.py")


on_all_devices = pytest.mark.usefixtures("job_device")


def job(folder, ranks, *scenarios):
    return processes.job(PROGRAM, folder, ranks, *scenarios)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, job_device):
    folder = tmp_path_factory.mktemp("sharded")
    job(folder, 1, "plain", "fused", "uneven")
    job(folder, 2, "ddp", "fsdp", "tp", "fused", "uneven")
    return folder


def test_ddp_and_fsdp2_hold_the_same(runs):
    found = twinrun.compare(runs / "ddp2", runs / "fsdp2", atol=0)
    assert found.verdict == "same", (found.problems, found.first_divergence)
    names = {f.field for f in found.fields}
    assert {"model.0.weight", "model.2.bias", "optimizer.state.0.exp_avg_sq"} <= names
    # Digests prove it: no element is read where both have their places and sums.
    found = twinrun.compare(runs / "ddp2", runs / "fsdp2")
    sharded = [f for f in found.fields if f.field == "model.0.weight"]
    assert found.same and sharded and all(f.elements_read == 0 for f in sharded)


def test_tensor_parallelism_of_one_and_two_processes(runs):
    found = twinrun.compare(runs / "plain1", runs / "tp2", steps="0")
    assert found.verdict == "same", (found.problems, found.first_divergence)
    # Sums in another order part the trainings a little.
    found = twinrun.compare(runs / "plain1", runs / "tp2", atol=1e-5)
    assert found.verdict == "same", (found.problems, found.first_divergence)
    whole = next(f for f in found.fields if f.field == "model.0.weight")
    assert whole.shape == (8, 6) and whole.elements == 48


def test_a_difference_has_its_global_place(runs, tmp_path):
    with twinrun.Run(tmp_path / "other") as run:
        for step in range(3):
            fields = {}
            with open_subject(str(runs / "plain1")).open((step, 0)) as opened:
                for name, ref in opened.items():
                    fields[name] = _array(ref)
            if step == 1:
                fields["model.0.weight"][5, 2] += 1
            run.capture(step, fields)
    found = twinrun.compare(tmp_path / "other", runs / "tp2", atol=1e-5)
    assert found.first_divergence["step"] == 1
    assert (found.first_divergence["field"], found.first_divergence["index"]) == ("model.0.weight", [5, 2])
    assert found.different == 1


def _array(ref):
    from twinrun import _core
    from twinrun.formats.element_types import storage_dtype

    values = _core.read_source(ref.need_source(), 0, ref.items).view(storage_dtype(ref.dtype))
    return values.reshape(ref.user_shape).copy()


def test_uneven_parts_and_empty_ones(runs):
    found = twinrun.compare(runs / "uneven1", runs / "uneven2")
    assert found.verdict == "same", found.problems
    assert {f.field for f in found.fields} >= {"1", "2", "3", "4", "5", "0d"}


def test_fused_tensors_are_compared_part_by_part(runs):
    found = twinrun.compare(runs / "fused1", runs / "fused2")
    assert found.verdict == "same", found.problems
    assert {f.field: f.shape for f in found.fields} == {
        "qkv.weight.0": (8, 4), "qkv.weight.1": (4, 4), "qkv.weight.2": (4, 4), "norm": (4,),
    }  # fmt: skip


def test_what_is_replicated_is_kept_once(runs):
    subject = open_subject(str(runs / "ddp2"))
    kept = []
    for rank in (0, 1):
        with subject.open((2, rank)) as opened:
            kept.append(set(opened))
    assert not kept[0] & kept[1]
    assert {"model.0.weight", "optimizer.state.3.exp_avg"} <= kept[0] | kept[1]


def test_fsdp2_over_tensor_parallelism(runs):
    job(runs, 4, "grid")
    found = twinrun.compare(runs / "plain1", runs / "grid4", steps="0")
    assert found.verdict == "same", (found.problems, found.first_divergence)
    assert twinrun.compare(runs / "plain1", runs / "grid4", atol=1e-5).same


@on_all_devices
def test_what_has_no_place_or_differs_is_refused_on_all_processes(tmp_path):
    told = job(tmp_path, 2, "refused")
    for out in told:
        lines = dict(line.split(": ", 1) for line in out.splitlines())
        assert "each process holds a summand" in lines["partial"] and "'tp'" in lines["partial"]
        assert "(0, 1) ('y',)" in lines["differ"] and "must hold alike" in lines["differ"]
        assert "process 1" in lines["broken"]
        assert "give the global sizes" in lines["size"]
    subject = open_subject(str(tmp_path / "refused"))
    assert sorted(subject.places) == [(7, 0), (7, 1)]
    assert twinrun.compare(tmp_path / "refused", tmp_path / "refused").same


def _lines(out):
    return dict(line.split(": ", 1) for line in out.splitlines())


@on_all_devices
def test_a_run_of_some_processes_leaves_the_others_alone(tmp_path):
    told = [_lines(out) for out in job(tmp_path, 3, "subset")]
    assert [one["sum"] for one in told] == ["3.0"] * 3
    assert "not in the group of the run" in told[2]["outside"]
    for name, ranks in (("some0", 2), ("some1", 2), ("all", 3)):
        assert len(open_subject(str(tmp_path / name)).places) == ranks


@on_all_devices
def test_the_newest_step_is_that_which_was_just_captured(tmp_path):
    for out in job(tmp_path, 2, "newest"):
        assert _lines(out)["newest"] == str([*range(12)])


@on_all_devices
def test_values_of_another_shape_or_kind_are_refused_on_all_processes(tmp_path):
    from sharded_runs import UNLIKE

    for out in job(tmp_path, 2, "unlike"):
        lines = _lines(out)
        assert lines.pop("steps") == "[]" and list(lines) == list(UNLIKE)
        for name, said in lines.items():
            assert said.startswith("(0, 1) ('x") and "must hold alike" in said, (name, said)


@on_all_devices
def test_names_of_wrappers_are_left_out_within_containers_too(tmp_path):
    job(tmp_path, 2, "wrappers")
    for name in ("ddp", "compiled", "both", "fsdp2"):
        found = twinrun.compare(tmp_path / "wrapped-bare", tmp_path / f"wrapped-{name}")
        assert found.verdict == "same", (name, found.problems)
        assert {"model.0.weight", "more.list.0.2.bias", "2.bias"} <= {f.field for f in found.fields}


@pytest.fixture(scope="module")
def holding(tmp_path_factory, job_device):
    folder = tmp_path_factory.mktemp("holding")
    job(folder, 2, "held_wrappers", "traced_wrappers")
    return folder


def test_names_of_wrappers_are_left_out_where_a_model_holds_them(holding):
    for name in ("ddp", "compiled", "both", "fsdp1", "fsdp2", "averaged"):
        found = twinrun.compare(holding / "held-bare", holding / f"held-{name}", leave_out=["*n_averaged"])
        assert found.verdict == "same", (name, found.problems)
        assert {"model.net.0.weight", "model.other.module.bias"} <= {f.field for f in found.fields}
    with open_subject(str(holding / "held-averaged")).open((0, 0)) as fields:
        assert "model.net.n_averaged" in fields
    # No field is lost where two would have one name.
    kept = set()
    for rank in (0, 1):
        with open_subject(str(holding / "twice")).open((0, rank)) as fields:
            kept |= set(fields)
    assert kept == {"0.weight", "module.0.weight", "0.bias", "2.weight", "2.bias"}


def test_traces_leave_out_the_names_of_wrappers_that_a_model_holds(holding):
    bare, _, _ = TraceSubject(holding / "traced-bare").events(0, 0)
    for name in ("ddp", "compiled", "both", "fsdp1", "fsdp2", "averaged"):
        events, _, _ = TraceSubject(holding / f"traced-{name}").events(0, 0)
        assert {e.module for e in events} <= {e.module for e in bare}, name
        assert {"", "net", "other.module"} <= {e.module for e in events}, name
        owned = {v.name for e in events for v in e.values if v.role in ("parameter", "gradient")}
        assert not any(part in n.split(".") for n in owned for part in ("_orig_mod", "_fsdp_wrapped_module"))
        grads = {e.operation for e in events if e.phase == "backward" and e.operation.startswith("net")}
        assert not any(".module." in n for n in grads), name


@on_all_devices
def test_a_part_of_a_distributed_tensor_is_named_by_its_place_in_the_whole(tmp_path):
    job(tmp_path, 2, "traced_parts")
    found = twinrun.compare_traces(tmp_path / "parts-right.escalated", tmp_path / "parts-wrong.escalated")
    first = found.first_divergence
    assert (first.rank, first.site.iteration, first.site.phase) == (1, 1, "optimizer")
    (value,) = [v for v in first.values if not v.out]
    assert (value.name, value.different, value.whole, value.offset) == (
        "weight.grad@local",
        1,
        [8, 6],
        [4, 0],
    )
    assert value.first_index == value.max_index == [5, 2] and value.box == [(5, 6), (2, 3)]


@on_all_devices
def test_phases_of_several_processes(tmp_path):
    told = [_lines(out) for out in job(tmp_path, 2, "phases")]
    right, wrong = tmp_path / "phases-right", tmp_path / "phases-wrong"
    assert twinrun.compare_traces(right, right).same
    found = twinrun.compare_traces(right, wrong)
    first = found.first_divergence
    assert (first.rank, first.site.iteration, first.site.phase) == (1, 1, "after forces")
    (value,) = first.values
    assert (value.name, value.different, value.max_abs_diff) == ("x", 1, 1.0)
    # The part of process 1 begins in row 5 of 10.
    assert (value.whole, value.offset, value.first_index, value.box) == (
        [10, 4],
        [5, 0],
        [7, 3],
        [(7, 8), (3, 4)],
    )
    assert "1 of 20 elements of a part of [10, 4] that begins at [5, 0]" in str(found)
    names = [
        {v.name for e in TraceSubject(right).events(rank, 0)[0] for v in e.values if e.phase == "begin"}
        for rank in (0, 1)
    ]
    assert "x" in names[0] & names[1] and "own" in names[0] & names[1]
    assert ("all" in names[0]) != ("all" in names[1])  # held alike, and kept once
    for said in told:
        assert said["right"] == said["wrong"] == "[0, 1]"
        assert "('y',)" in said["differ"] and "must hold alike" in said["differ"]
        assert "different phases: process 0 step 0, phase 'a0', process 1 step 0, phase 'a1'" in said["phase"]
        assert "step 0, phase 'a', process 1 step 0;" in said["name"]
        assert "process 1: own" in said["object"] and "process 0: there is no field" in said["empty"]
        assert said["refused"] == "[(0, 0), (0, 1)]"


# Parameters in which the methods of ParallelRun differ from those of Run; the page says why.
DIFFERENT = {
    "__init__": {"group"}, "capture": {"ids", "global_place", "sharded", "local"}, "latest": {"history"},
    "load": {"history"}, "restore": {"sharded", "local", "history"},
}  # fmt: skip


def test_a_parallel_run_takes_what_a_run_takes():
    page = (Path(__file__).parents[3] / "docs/howto/decompositions.md").read_text()
    names = [n for n in dir(twinrun.Run) if not n.startswith("_")]
    assert set(names) <= {n for n in dir(ParallelRun) if not n.startswith("_")} == {*names}
    for name in ["__init__", *names]:
        ours, theirs = getattr(ParallelRun, name), getattr(twinrun.Run, name)
        if isinstance(theirs, property):
            assert isinstance(ours, property)
            continue
        mine, plain = (inspect.signature(f).parameters for f in (ours, theirs))
        if any(p.kind is p.VAR_KEYWORD for p in mine.values()):  # the settings of Run
            plain = {n: p for n, p in plain.items() if n in mine}
        apart = {n for n in {*mine, *plain} - {"settings"} if n not in mine or n not in plain}
        assert apart == DIFFERENT.get(name, set()), name
        for n in {*mine, *plain} - apart - {"settings"}:
            assert (mine[n].kind, mine[n].default) == (plain[n].kind, plain[n].default), (name, n)
        row = next((line for line in page.splitlines() if line.startswith(f"| `{name}` |")), "")
        assert all(f"`{n}=`" in row for n in apart), (name, row)


@on_all_devices
def test_errors_say_what_to_do_on_all_processes(tmp_path):
    for out in job(tmp_path, 2, "errors"):
        lines = _lines(out)
        assert "is a DTensor, and is named by local=" in lines["local"]
        assert "not in ascending order" in lines["mesh"]
        assert "sharded['x'] is no Sharded" in lines["number"]
        assert "sharded is a mapping" in lines["mapping"]
        assert "process 0 step 0, process 1 step 1" in lines["step"]
        assert "names no field: '*.qkv', 'rng*'" in lines["globs"]
        assert "name different folders" in lines["path"] and "path0" in lines["path"]


@pytest.mark.parametrize("size", range(18))
def test_intervals_of_all_processes_cover_a_dimension_once(size):
    """Against torch.chunk, for one and two dimensions of a mesh, in both orders of division."""
    for outer in range(1, 5):
        for inner in range(1, 5):
            whole = torch.arange(size)
            left, right = [], []
            for a in range(outer):
                for b in range(inner):
                    mine = _chunk(_chunk(whole, outer, a), inner, b).tolist()
                    assert _listed(_intervals("x", size, [(outer, a, 1), (inner, b, 1)])) == mine
                    left += mine
                    # As FSDP2 does it: `inner` divides first, `outer` what it gave.
                    mine = _chunk(_chunk(whole, inner, b), outer, a).tolist()
                    assert _listed(_intervals("x", size, [(outer, a, inner), (inner, b, 1)])) == mine
                    right += mine
            assert sorted(left) == sorted(right) == list(range(size))


def _chunk(t, ranks, rank):
    pieces = t.chunk(ranks)
    return pieces[rank] if rank < len(pieces) else t[:0]


def _listed(intervals):
    return [i for low, high in intervals for i in range(low, high)]
