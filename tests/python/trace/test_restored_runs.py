"""A training of several processes goes on from a captured step, bit by bit as one that nobody interrupted."""

from pathlib import Path

import processes
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("torch.distributed.tensor", reason="this PyTorch has no DTensor")

import twinrun  # noqa: E402

PROGRAM = Path(__file__).with_name("restored_runs.py")
# Kind of the model, number of processes, and optimizer.
TRAININGS = [
    ("ddp", 2, "adamw"), ("fsdp", 2, "adamw"), ("fsdp", 2, "sgd"), ("tp", 2, "adamw"),
    ("held", 2, "plain"), ("grid", 4, "adamw"), ("fsdp", 3, "adamw"), ("plain", 1, "adamw"),
]  # fmt: skip
LAST = 5


@pytest.fixture(scope="module")
def runs(tmp_path_factory, job_device):
    folder = tmp_path_factory.mktemp("restored")
    for number in {ranks for _, ranks, _ in TRAININGS}:
        of_number = [f"{kind}:{how}" for kind, ranks, how in TRAININGS if ranks == number]
        scenarios = [f"{what}:{one}" for one in of_number for what in ("train", "again")]
        processes.job(PROGRAM, folder, number, *scenarios)
    return folder


def lines(out):
    return dict(line.split(": ", 1) for line in out.splitlines())


@pytest.mark.parametrize("kind, ranks, how", TRAININGS)
def test_a_training_goes_on_bit_by_bit(runs, kind, ranks, how):
    straight, again = runs / f"{kind}{ranks}-{how}", runs / f"{kind}{ranks}-{how}-again2"
    found = twinrun.compare(straight, again, atol=0)
    assert found.verdict == "same", (found.problems, found.first_divergence)
    assert {f.step for f in found.fields} == set(range(LAST + 1))
    names = {f.field for f in found.fields if f.step == LAST}
    assert {"counts.step", "scheduler.last_epoch", "rng", "data"} <= names
    assert any(n.startswith("optimizer.state.0.") for n in names) == (how != "plain")


def test_an_optimizer_loses_states_that_the_step_did_not_have(runs):
    """A program goes back to step 0, which was captured before the first step of its optimizer."""
    processes.job(PROGRAM, runs, 2, "again:fsdp:adamw:0", "again:ddp:adamw:0")
    for kind in ("fsdp", "ddp"):
        found = twinrun.compare(runs / f"{kind}2-adamw", runs / f"{kind}2-adamw-again0", atol=0)
        assert found.verdict == "same", (kind, found.problems, found.first_divergence)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_other_processes_go_on_from_it_divided_otherwise(runs, ranks):
    """The step is the same where another number of processes, with other placements, captures it again."""
    sources = ["fsdp2-adamw", "tp2-adamw", "ddp2-adamw", "fsdp3-adamw", "plain1-adamw", "grid4-adamw"]
    kinds = ["plain"] if ranks == 1 else ["fsdp"] if ranks == 3 else ["fsdp", "tp", "ddp"]
    processes.job(PROGRAM, runs, ranks, *(f"other:{one}:{kind}" for one in sources for kind in kinds))
    for one in sources:
        for kind in kinds:
            found = twinrun.compare(
                runs / one, runs / f"{one}-{kind}{ranks}", atol=0, steps="2", leave_out=["rng"]
            )
            assert found.verdict == "same", (one, kind, found.problems, found.first_divergence)
            assert {"model.body.0.weight", "optimizer.state.0.exp_avg"} <= {f.field for f in found.fields}


def test_fields_are_loaded_whole_on_every_process(runs):
    sources = ("ddp2-adamw", "fsdp2-adamw")
    told = [
        lines(out)
        for ranks in (1, 2)
        for out in processes.job(PROGRAM, runs, ranks, *(f"whole:{one}" for one in sources))
    ]
    whole = {one[f"whole {source}"] for one in told for source in sources}
    assert len(whole) == 1  # DDP and FSDP2 hold the same
    assert "('model.body.0.weight', (8, 6)" in min(whole) and "('model.calls', ()," in min(whole)
    first, second = ([one[f"own {source}"] for source in sources] for one in told[1:])
    assert first[0] == first[1] != second[0] == second[1]  # states of generators are of each process alone


@pytest.fixture(scope="module")
def small(tmp_path_factory, job_device):
    """What each process of one job said."""
    folder = tmp_path_factory.mktemp("small")
    told = [lines(out) for out in processes.job(PROGRAM, folder, 2, "kinds", "fused", "damaged", "refused")]
    return told, [lines(out) for out in processes.job(PROGRAM, folder, 1, "fewer")]


def test_values_of_every_type_come_back_from_any_placement_into_any_other(small):
    assert [one["kinds"] for one in small[0]] == ["[]", "[]"]


def test_fused_tensors_come_back_part_by_part(small):
    assert [one["fused"] for one in small[0]] == ["all", "all"]


EXPECTED = {
    "type": "f32 was captured, and here it is f64", "shape": "shape [4] was captured, and here it is [5]",
    "shape of one": "shape [4] was captured", "missing": "no field of the name 'y'", "step": "there is no step 9",
    "steps": "process 0 step 0 of", "text": "only digests are kept", "no text": "another kind of value",
    "partial": "each process holds a summand", "own": "name it with local=", "local": "has no field of this name",
    "sparse": "cannot be restored in place", "history": "no such file or folder", "optimizer": "let it make a step before",
    "parameters": "hold other parameters", "read-only": "is read-only", "no field": "no field of the name 'y'",
    "number of a tuple": "1: cannot be restored in place", "scalar of a tuple": "1: cannot be restored in place",
    "expanded": "x: has several elements in one place", "expanded array": "x: has several elements in one place",
    "conjugated": "c: is a tensor with a pending", "negated": "i: is a tensor with a pending",
    "masked": "cannot be restored in place", "no data": "was not kept", "closed": "the run is closed",
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_what_cannot_be_restored_is_said_on_all_processes(small, name):
    for said in small[0]:
        assert EXPECTED[name] in said[name]


def test_what_each_process_had_alone_is_of_as_many_processes(small):
    (said,) = small[1]
    for name in ("fewer", "load"):
        assert "by 2 processes, and these are 1; leave it out" in said[name]


def test_a_damaged_part_is_found_before_anything_is_written(small):
    for said in small[0]:
        assert said["damaged"].startswith("DamagedFile") and "rank-00001" in said["damaged"]
        assert said["hidden"].startswith("DamagedFile") and "'x' is not what was captured" in said["hidden"]
