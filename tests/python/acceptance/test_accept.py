"""Verdicts on runs: right ones are accepted, wrong ones are not, and what is missing never is."""

from __future__ import annotations

import json
import math

import acceptance_rates as model
import numpy as np
import pytest
from commands import command
from support import run_of_ranks

import twinrun
from twinrun.errors import Incomparable, TwinrunError, Unmatched

STEPS = (20, 100, 550, 650, 750)
RELATIVE = {"relative": 1e-14}


def write(folder, states, names):
    for k, name in enumerate(names):
        for step, x in states.items():
            place = folder / name / f"step-{step:06d}"
            place.mkdir(parents=True)
            np.save(place / "x.npy", x[k])
    return [str(folder / name) for name in names]


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory):
    """Files of runs: reference runs, new runs with another order of sums, and with a wrong constant."""
    folder = tmp_path_factory.mktemp("ensemble")
    own = model.runs(model.Code(), 20, 1, RELATIVE, STEPS)
    right = model.runs(model.Code("second"), 3, 1, RELATIVE, STEPS, first=900)
    wrong = model.runs(model.Code(forcing=8.0 * (1 + 1e-6)), 3, 1, RELATIVE, STEPS, first=900)
    return {
        "reference": write(folder, own, [f"ref{k:02d}" for k in range(20)]),
        "right": write(folder, right, [f"right{k}" for k in range(3)]),
        "wrong": write(folder, wrong, [f"wrong{k}" for k in range(3)]),
    }


def test_another_order_of_sums_is_accepted(ensemble):
    found = twinrun.accept(ensemble["reference"], ensemble["right"])
    assert found and found.verdict == "accepted" and found.excesses == []
    (field,) = found.fields
    assert field.growing == [20, 100] and field.settled == [550, 650, 750]
    assert found.ways == 1771 and found.exact and found.p > 0.05
    assert found.alarms.runs == 20 and found.alarms.low <= found.alarms.rejected / 20 <= found.alarms.high
    assert 0 < found.detectable < 10
    assert str(found).startswith("accepted: 3 new runs belong to the distribution of 20 reference runs")


def test_a_wrong_constant_is_found_where_it_begins(ensemble):
    found = twinrun.accept(ensemble["reference"], ensemble["wrong"])
    assert found.verdict == "rejected" and not found
    first = found.excesses[0]
    assert (first.kind, first.step, first.field) == ("growth", 20, "x") and first.size > 1e4
    assert "first excess: step 20, x" in found.sentence


def test_order_of_the_runs_does_not_matter(ensemble):
    one = twinrun.accept(ensemble["reference"], ensemble["right"])
    other = twinrun.accept(ensemble["reference"][::-1], ensemble["right"][::-1])
    assert other.p == pytest.approx(one.p) and other.verdict == one.verdict
    assert other.alarms == one.alarms and other.fields[0].ratio == pytest.approx(one.fields[0].ratio)


def test_a_wrong_constant_is_found_after_growth_too():
    steps = (500, 600, 700, 800)
    own = model.runs(model.Code(), 20, 1, RELATIVE, steps)
    wrong = model.runs(model.Code(forcing=9.5), 3, 1, RELATIVE, steps, first=900)
    found = model.judged(model.together(own, wrong, slice(None), slice(None)), 20)
    assert found.verdict == "rejected" and found.p <= 0.05
    assert {e.kind for e in found.excesses} <= {"distribution"}
    for e in found.excesses:
        assert e.low <= e.size <= e.high and e.p <= 0.05


def test_planted_shift_lies_in_its_interval():
    rng = np.random.default_rng(3)
    inside = 0
    for trial in range(40):
        base = rng.normal(0, 1, (23, 400))
        base[20:] += 0.4  # eight deviations of the mean of 400 numbers
        found = twinrun.accept(*_split([{"x": b} for b in base], 20))
        shift = [e for e in found.excesses if e.what == "mean"]
        assert found.verdict == "rejected" and len(shift) == 1, trial
        # the deviation of the reference means is known only as well as 20 runs tell it
        inside += shift[0].low * 0.8 <= 8 <= shift[0].high * 1.3
    assert inside >= 36


def _split(runs, references):
    return runs[:references], runs[references:]


def test_one_bad_run_among_new_ones_is_found():
    """It is new in 3 of 23 choices anyway: only the bound finds it, or more reference runs."""
    rng = np.random.default_rng(5)
    runs = [{"x": rng.normal(0, 1, 300), "y": rng.normal(0, 1, 300)} for _ in range(63)]
    runs[-1]["y"] = runs[-1]["y"] * 3
    few = twinrun.accept(runs[:20], runs[-3:])
    assert few.verdict == "accepted" and any("one bad run among them" in line for line in few.checked)
    found = twinrun.accept(*_split(runs, 60), permutations=999)
    assert found.verdict == "rejected" and found.tests["single run"] <= 0.05
    assert twinrun.accept(runs[:20], runs[-1:]).verdict == "rejected"
    runs[-1]["y"] = runs[-1]["y"] * 30
    far = twinrun.accept(runs[:20], runs[-3:])
    assert far.verdict == "rejected" and (far.excesses[0].kind, far.excesses[0].run) == (
        "growth",
        "new run 3",
    )


def test_the_test_command(ensemble, tmp_path):
    page, facts = tmp_path / "page.html", tmp_path / "facts.json"
    outcome = command(
        "accept", *ensemble["reference"], "--new", *ensemble["right"], "--html", page, "--json", facts
    )
    assert outcome.status == 0 and outcome.out.startswith("accepted: ")
    document = json.loads(facts.read_text())
    assert document["verdict"] == "accepted" and document["format"] == "twinrun acceptance"
    assert len(document["references"]) == 20 and document["fields"][0]["growing"] == [20, 100]
    assert "<svg" in page.read_text() and "accepted" in page.read_text()
    # each new run may be named by an option of its own, and on standard output JSON is alone
    words = [w for run in ensemble["wrong"] for w in ("--new", run)]
    outcome = command("accept", *words, *[], "--json", "-", "--steps", "20", *["--", *ensemble["reference"]])
    assert outcome.status == 1 and json.loads(outcome.out)["verdict"] == "rejected"
    assert outcome.err.startswith("rejected: ")
    assert command("accept", *ensemble["reference"], "--new", *ensemble["wrong"], "-q").out == ""


def test_too_few_runs_decide_nothing(ensemble):
    outcome = command("accept", *ensemble["reference"][:5], "--new", ensemble["right"][0])
    assert outcome.status == 2
    assert outcome.out.startswith(
        "undecided: with 5 reference runs and 1 new run no p value can be below 0.167"
    )
    assert "19 reference runs or 2 new runs would be enough" in outcome.out
    # but what grows too fast is wrong all the same
    assert command("accept", *ensemble["reference"][:5], "--new", ensemble["wrong"][0]).status == 1
    # and while differences grow, three are enough for the bound, without a p value
    few = twinrun.accept(ensemble["reference"][:3], ensemble["right"][:1], steps="20,100")
    assert few.verdict == "accepted" and math.isnan(few.p) and "no p value" in few.sentence


def histories(folder, names, change=None, ranks=None):
    """Captured histories of particles in random orders."""
    rng = np.random.default_rng(11)
    base = rng.normal(0, 1, 400)
    paths = []
    for name in names:
        with twinrun.Run(str(folder / name), atol=1e-9) as run:
            for step in (1, 2):
                ids = rng.permutation(400)
                x = base + 1e-10 * step * rng.normal(0, 1, 400)
                if change and name.startswith("new"):
                    x = x + change
                run.capture(step, {"x": x[ids], "id": ids}, ids={"x": "id"})
        paths.append(str(folder / name))
    return paths


def test_particles_of_histories_are_matched_by_id(tmp_path):
    names = [*(f"ref{k}" for k in range(4)), "new"]
    paths = histories(tmp_path / "same", names)
    found = twinrun.accept(paths[:4], paths[4:])
    assert found.verdict == "accepted" and found.fields[0].growing == [1, 2] and found.fields[0].ratio < 3
    paths = histories(tmp_path / "off", names, change=1e-8)
    found = twinrun.accept(paths[:4], paths[4:])
    assert found.verdict == "rejected" and found.excesses[0].kind == "growth"


def test_traces_are_not_tested(tmp_path):
    rng = np.random.default_rng(4)
    paths = []
    for k in range(5):
        with twinrun.Run(str(tmp_path / f"r{k}"), atol=1e-9) as run:
            x = np.arange(50) + 1e-12 * rng.normal(0, 1, 50)
            for _ in range(1 + k % 2):  # traces of unequal lengths
                run.capture(1, {"x": x}, phase="after forces")
            run.capture(1, {"x": x})
        paths.append(str(tmp_path / f"r{k}"))
    found = twinrun.accept(paths[:4], paths[4:])
    assert found.verdict == "accepted" and [f.field for f in found.fields] == ["x"]
    assert any("traces are not tested" in note for note in found.notes)


def test_single_precision_against_reference_runs_that_are_perturbed_as_much():
    own = model.runs(model.Code(precision="f8"), 6, 2, {"relative": 1e-6}, (20, 60))
    new = model.runs(model.Code(precision="f4"), 1, 2, {"relative": 1e-6}, (20, 60), first=900)
    runs = [{"x": x} for x in own[20]]
    assert twinrun.accept(runs, [{"x": new[20][0].astype("f4")}]).verdict == "accepted"


# Reference runs that are equal ----------------------------------------------------------------------------------------

ONES = np.ones(50)
RAMP = np.linspace(0, 1, 50)
OFF = {
    "half as much more": (ONES, 1.5 * ONES),
    "one element": (ONES, ONES + 0.5 * (np.arange(50) == 3)),
    "another sign": (ONES, -ONES),
    "zeros": (0 * ONES, ONES),
    "twice": (RAMP, 2 * RAMP),
    "1e-12": (RAMP, RAMP * (1 + 1e-12)),
    "a small one beside a large one": (np.array([6.02e23, 0.06]), np.array([6.02e23, 0.0601])),
    "float32": (ONES.astype("f4"), 1.001 * ONES.astype("f4")),
    "booleans": (ONES > 0, ONES < 0),
    "integers": (np.arange(50), np.arange(50) + (np.arange(50) == 3)),
    "large integers": (np.full(9, 2**63, "u8"), np.full(9, 2**63 + 1, "u8")),
    "another infinity": (np.inf * ONES, -np.inf * ONES),
    "NaN in place of infinity": (np.where(RAMP > 0.5, np.inf, RAMP), np.where(RAMP > 0.5, np.nan, RAMP)),
}


@pytest.mark.parametrize("what", OFF)
@pytest.mark.parametrize("beside", ["settled", "growing"])
@pytest.mark.parametrize("design", [(19, 1), (5, 1), (20, 3)])
def test_what_all_reference_runs_hold_equal_is_never_off(what, beside, design):
    """However far the runs are apart in another field."""
    rng = np.random.default_rng(7)
    noise = 1.0 if beside == "settled" else 1e-14
    own, off = OFF[what]
    runs = [{"x": RAMP + noise * rng.normal(0, 1, 50), "box": own} for _ in range(sum(design))]
    runs[-1]["box"] = off
    found = twinrun.accept(*_split(runs, design[0]))
    assert found.verdict == "rejected" and found.excesses[0].field == "box"
    assert found.excesses[0].kind == ("no number" if "infinity" in what else "equal")


def test_a_step_that_all_reference_runs_hold_equal(tmp_path):
    """As a start from one state: the new run begins elsewhere."""
    rng = np.random.default_rng(5)
    base = rng.normal(0, 1, 300)
    runs = [{0: base, 100: rng.normal(0, 1, 300), 200: rng.normal(0, 1, 300)} for _ in range(21)]
    runs[20][0] = rng.normal(0, 1, 300)
    paths = captured(tmp_path, [{s: {"x": x} for s, x in run.items()} for run in runs])
    assert twinrun.accept(paths[:19], paths[19:20]).verdict == "accepted"
    facts = tmp_path / "facts.json"
    outcome = command("accept", *paths[:19], "--new", paths[20], "--json", facts)
    assert outcome.status == 1
    assert "first excess: step 0, x: 300 values differ by up to " in outcome.out
    assert "where all reference runs are equal" in outcome.out and "inf (step 0)" in outcome.out
    assert "any difference" not in outcome.out and "(10 allowed)" not in outcome.out
    excess = json.loads(facts.read_text())["excesses"][0]
    assert (excess["kind"], excess["step"], excess["count"]) == ("equal", 0, 300)
    assert 0.5 < excess["relative"] < 10


def test_a_constant_field_beside_settled_steps_of_a_model():
    """The constant is off, and only steps are chosen whose differences have settled."""
    own = model.runs(model.Code(), 22, 2, RELATIVE, (500, 600))
    states = model.samples_of(own, 19)
    labels = [f"run {k}" for k in range(22)]
    for box, verdict in ((10.0, "accepted"), (12.0, "rejected")):
        boxes = np.full((22, 3), 10.0)
        boxes[21, 0] = box
        made = states + [model.sample_of([boxes], 22, 19, step, "box", 2.0**-53) for step in own]
        assert model.judge(made, labels, 19).verdict == verdict


def test_rounding_where_reference_runs_are_equal_is_allowed_and_said():
    """A mesh that another compiler computes. Its last digits change no verdict, and the report says so."""
    rng = np.random.default_rng(9)
    changed = 0
    for _ in range(40):
        runs = [{"x": rng.normal(0, 1, 40)} for _ in range(22)]
        mesh = rng.uniform(1, 2, 30)
        alone = twinrun.accept(*_split(runs, 20), permutations=199)
        for k, run in enumerate(runs):
            run["mesh"] = mesh if k < 20 else np.nextafter(mesh, rng.choice([0.0, 9.0], 30))
        found = twinrun.accept(*_split(runs, 20), permutations=199)
        changed += found.verdict != alone.verdict
        assert not any(e.field == "mesh" for e in found.excesses)
        assert any("differ by rounding" in note and "mesh by up to 2.22e-16" in note for note in found.notes)
        runs[21]["mesh"] = mesh * (1 + 1e-14)
        found = twinrun.accept(*_split(runs, 20), permutations=199)
        assert found.excesses[0].kind == "equal" and found.excesses[0].relative == pytest.approx(
            1e-14, rel=0.5
        )
    assert changed == 0


def test_values_that_are_written_with_fewer_digits(tmp_path):
    rng = np.random.default_rng(6)
    runs = [{"x": rng.normal(0, 1, 50), "y": np.full(4, 1.23456)} for _ in range(20)]
    runs[19]["y"] = np.full(4, 1.23457)
    assert twinrun.accept(*_split(runs, 19)).verdict == "rejected"
    found = twinrun.accept(*_split(runs, 19), rounding=5e-6)
    assert found.verdict == "accepted" and any("differ by rounding" in note for note in found.notes)
    runs[19]["y"] = np.full(4, 1.23556)  # 8e-4 of it
    assert twinrun.accept(*_split(runs, 19), rounding=5e-6).verdict == "rejected"
    paths = []
    for k, run in enumerate(runs):
        paths.append(str(tmp_path / f"r{k}.npz"))
        np.savez(paths[-1], **run)
    assert command("accept", *paths[:19], "--new", paths[19], "--rounding", "5e-4").status == 0
    assert command("accept", *paths[:19], "--new", paths[19], "--rounding", "0.2").status == 2


def test_a_constant_field_of_unknown_order(tmp_path):
    """Ranks that hold unequal shares of a field, without IDs."""
    rng = np.random.default_rng(8)
    base = rng.normal(0, 1, 60)
    paths = []
    for k in range(6):
        x = rng.permutation(base) + (0.25 if k == 5 else 0.0)
        parts = [{1: {"x": x[: 20 + k]}}, {1: {"x": x[20 + k :]}}]
        paths.append(str(run_of_ranks(tmp_path / f"r{k}", parts)))
    found = twinrun.accept(paths[:4], paths[5:])
    assert found.verdict == "rejected" and found.excesses[0].kind == "equal"
    assert "the mean or the deviation differs by up to 0.25" in found.sentence
    assert twinrun.accept(paths[:4], paths[4:5]).excesses == []


# Very small and very large numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1e-310, 1e-200, 1e-163, 1e-155, 1.0, 1e155, 1e300])
@pytest.mark.parametrize("design", [(19, 1), (5, 3)])
def test_the_size_of_numbers_changes_no_verdict(size, design):
    rng = np.random.default_rng(4)
    runs = [{"u": rng.normal(0, 1, 300)} for _ in range(sum(design))]
    plain = twinrun.accept(*_split(runs, design[0]))
    found = twinrun.accept(*_split([{"u": size * run["u"]} for run in runs], design[0]))
    assert found.verdict == plain.verdict == "accepted" and found.p == pytest.approx(plain.p)
    for run in runs[design[0] :]:
        run["u"] = 50 + run["u"]
    found = twinrun.accept(*_split([{"u": size * run["u"]} for run in runs], design[0]))
    assert found.verdict == "rejected" and found.excesses[0].field == "u"


@pytest.mark.parametrize("size", [1e-200, 1e-163, 1.0, 1e200])
def test_the_size_of_numbers_changes_no_growth(size):
    rng = np.random.default_rng(4)
    base = size * rng.normal(0, 1, 100)
    runs = [{"u": base * (1 + 1e-12 * rng.normal(0, 1, 100))} for _ in range(6)]
    found = twinrun.accept(*_split(runs, 5))
    assert found.verdict == "accepted" and 0.1 < found.fields[0].ratio < 3
    assert found.fields[0].distances[0][1] == pytest.approx(1.4e-12 * size, rel=0.5)
    runs[5]["u"] = base * (1 + 1e-9 * rng.normal(0, 1, 100))
    found = twinrun.accept(*_split(runs, 5))
    assert found.verdict == "rejected" and found.excesses[0].size > 100


def test_reference_runs_that_differ_less_than_can_be_seen_beside_a_new_run():
    rng = np.random.default_rng(4)
    runs = [{"u": 1e-250 * rng.normal(0, 1, 30)} for _ in range(5)] + [{"u": np.ones(30)}]
    found = twinrun.accept(*_split(runs, 5))
    assert found.verdict == "rejected" and "u: differs, beside which no reference run does" in found.sentence


# Bad input ----------------------------------------------------------------------------------------------------------


def normal_runs(count, **more):
    rng = np.random.default_rng(2)
    return [{"x": rng.normal(0, 1, 50), **more} for _ in range(count)]


def test_equal_reference_runs_show_no_distribution(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(9.0))
    for name in "bcde":
        (tmp_path / f"{name}.npy").write_bytes((tmp_path / "a.npy").read_bytes())
    paths = [str(tmp_path / f"{n}.npy") for n in "abcde"]
    with pytest.raises(Incomparable, match="all reference runs are equal bit for bit") as error:
        twinrun.accept(paths[:4], paths[4:])
    assert "twinrun perturb" in str(error.value)
    runs = normal_runs(6)
    with pytest.raises(Incomparable, match="only 2 reference runs are different"):
        twinrun.accept([runs[0], runs[0], runs[1], runs[1]], runs[2:3])


def test_equal_runs_count_once():
    runs = normal_runs(24)
    found = twinrun.accept([*runs[:20], runs[3]], [runs[20], runs[20], runs[21], runs[4]])
    assert len(found.references) == 20 and len(found.new) == 3
    assert [n for n in found.notes if "both count as one run" in n] == [
        "reference 21 equals reference 4 bit for bit: both count as one run",
        "new run 2 equals new run 1 bit for bit: both count as one run",
    ]
    assert "new run 4 equals the reference run reference 5 bit for bit" in found.notes


@pytest.mark.parametrize(
    ("references", "new", "said"),
    [
        (normal_runs(1), normal_runs(1), "1 reference run: a distribution needs three"),
        (normal_runs(2), normal_runs(1), "2 reference runs: a distribution needs three"),
        (normal_runs(4), [], "no new run"),
        (normal_runs(4), normal_runs(1, y=np.ones(3)), "field 'y' of other runs: not there"),
        (normal_runs(4, y=np.ones(3)), normal_runs(1), "field 'y' of other runs: not there"),
        (normal_runs(4), [{"x": np.ones(49)}], "49 elements, where reference 1 has 50"),
        (normal_runs(4), [{"x": np.ones(50, int)}], "types must agree"),
        (normal_runs(4), [{"x": np.ones(50, complex)}], "types must agree"),
        ([*normal_runs(4), {"x": np.full(50, np.nan)}], normal_runs(1), "not numbers"),
        ([{"n": np.zeros(0)} for _ in range(4)], [{"n": np.zeros(0)}], "equal bit for bit"),
    ],
)
def test_bad_input_is_a_clear_error(references, new, said):
    with pytest.raises(TwinrunError, match=said) as error:
        twinrun.accept(references, new)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"confidence": 1.0}, "confidence"),
        ({"growth": 0.5}, "growth"),
        ({"spread": 0.0}, "spread"),
        ({"permutations": 3}, "permutations"),
        ({"steps": "7"}, "no step"),
        ({"fields": ["nobody"]}, "no field was chosen"),
    ],
)
def test_parameters_without_a_meaning(arguments, said):
    with pytest.raises(TwinrunError, match=said):
        twinrun.accept(normal_runs(4), normal_runs(2), **arguments)


def test_a_new_run_with_nan_is_rejected():
    runs = normal_runs(5)
    runs[4]["x"][7] = np.nan
    found = twinrun.accept(runs[:4], runs[4:])
    assert found.verdict == "rejected" and found.excesses[0].kind == "no number"
    assert "1 values are NaN or infinite (new run 1)" in found.sentence
    masked = normal_runs(24)
    for run in masked:
        run["x"][3] = np.nan  # in all of them
    assert twinrun.accept(masked[:20], masked[20:]).verdict in ("accepted", "rejected")


def test_runs_of_unequal_steps(ensemble, tmp_path):
    own = model.runs(model.Code(), 5, 1, RELATIVE, (20, 100))
    paths = write(tmp_path, own, [f"r{k}" for k in range(5)])
    short = write(tmp_path, {20: own[20] + 1e-14}, ["short"])
    with pytest.raises(Unmatched, match="step 100 of other runs: not there"):
        twinrun.accept(paths, short)
    assert command("accept", *paths, "--new", *short).status == 2
    assert twinrun.accept(paths, short, steps="20").verdict in ("accepted", "rejected")


def test_a_run_named_twice(ensemble):
    outcome = command("accept", *ensemble["reference"], "--new", ensemble["reference"][3])
    assert outcome.status == 2 and "is named twice" in outcome.err


def captured(folder, runs, **settings):
    """Histories of runs[k][step] = fields."""
    paths = []
    for k, steps in enumerate(runs):
        with twinrun.Run(str(folder / f"r{k}"), **settings) as run:
            for step, fields in steps.items():
                run.capture(step, fields)
        paths.append(str(folder / f"r{k}"))
    return paths


def test_history_without_data_is_not_accepted(tmp_path):
    rng = np.random.default_rng(1)
    paths = captured(
        tmp_path, [{1: {"x": rng.normal(0, 1, 100)}} for _ in range(5)], atol=1e-6, keep_data=False
    )
    with pytest.raises(Incomparable, match="only its metadata is there") as error:
        twinrun.accept(paths[:4], paths[4:])
    assert "capture the runs with their data" in str(error.value)
    outcome = command("accept", *paths[:4], "--new", *paths[4:])
    assert outcome.status == 2 and outcome.err.count("\n") == 1 and outcome.out == ""


def test_equal_metadata_is_not_accepted_either(tmp_path):
    """Values within a cell of each other have equal digests, and may be far apart beside the noise of the reference runs."""
    x = np.arange(100) + 0.5
    noise = np.random.default_rng(1).normal(0, 1, (5, 100)) * 1e-14
    noise[4] *= 1e6
    runs = [{1: {"x": x + own}} for own in noise]
    kept = captured(tmp_path / "kept", runs, atol=1e-3)
    bare = captured(tmp_path / "bare", runs, atol=1e-3, keep_data=False)
    assert twinrun.compare(bare[0], bare[4]).verdict == "same"
    assert twinrun.accept(kept[:4], kept[4:]).verdict == "rejected"
    with pytest.raises(Incomparable, match="only its metadata is there"):
        twinrun.accept(bare[:4], bare[4:])


def test_steps_that_have_data_are_named(tmp_path):
    rng = np.random.default_rng(2)
    runs = [{s: {"x": rng.normal(0, 1, 100)} for s in (1, 2, 3, 4)} for _ in range(23)]
    paths = captured(tmp_path, runs, atol=1e-6, keep_data_steps=2)
    with pytest.raises(Incomparable, match="step 1: field 'x': only its metadata is there") as error:
        twinrun.accept(paths[:20], paths[20:])
    assert "with steps: 3,4; or" in str(error.value)
    assert twinrun.accept(paths[:20], paths[20:], steps="3,4").verdict in ("accepted", "rejected")


@pytest.mark.parametrize("seed", range(12))
def test_metadata_never_contradicts_data(seed, tmp_path):
    """Values that are no numbers lie anywhere, also at the same place in all runs. Without data there is a rejection or an error."""
    rng = np.random.default_rng([7, seed])
    size, count = 30, 6
    runs = [
        {s: {"x": rng.normal(0, 1, size), "y": rng.normal(0, 1, size)} for s in (1, 2)} for _ in range(count)
    ]
    settings = {"atol": float(rng.choice([0, 1e-9, 1e-3])), "rtol": float(rng.choice([0, 1e-9]))}
    for step, name in ((1, "x"), (2, "y")):
        everywhere = rng.random() < 0.3
        where, value = rng.integers(size), rng.choice([np.nan, np.inf, 1e300])
        for k in range(count):
            if everywhere or (k >= 4 and rng.random() < 0.6) or rng.random() < 0.05:
                runs[k][step][name][where] = value if rng.random() < 0.7 else np.nan
    kept = captured(tmp_path / "kept", runs, **settings)
    bare = captured(tmp_path / "bare", runs, keep_data=False, **settings)

    def verdict(paths):
        try:
            return twinrun.accept(paths[:4], paths[4:])
        except Incomparable as error:
            return error

    data, alone = verdict(kept), verdict(bare)
    assert not isinstance(data, Incomparable) or isinstance(alone, Incomparable) or data_is_unjudged(data)
    if isinstance(alone, Incomparable):
        assert "only its metadata is there" in str(alone)
        return
    assert alone.verdict == "rejected" and math.isnan(alone.p) and alone.alarms is None
    if not isinstance(data, Incomparable):
        assert data.verdict == "rejected"
        found = {(e.step, e.field, e.run.split("/")[-1]) for e in data.excesses if e.kind == "no number"}
        assert {(e.step, e.field, e.run.split("/")[-1]) for e in alone.excesses} <= found


def data_is_unjudged(error):
    """With data, another field or step ends the judgement: a reference run holds values that are no numbers there."""
    return "are not numbers" in str(error)


def test_nan_of_a_new_run_shows_in_metadata(tmp_path):
    rng = np.random.default_rng(3)
    runs = [{s: {"x": rng.normal(0, 1, 50), "y": rng.normal(0, 1, 50)} for s in (1, 2)} for _ in range(5)]
    runs[4][2]["y"][[3, 8]] = np.nan
    paths = captured(tmp_path, runs, atol=1e-6, keep_data=False)
    facts, page = tmp_path / "facts.json", tmp_path / "page.html"
    outcome = command("accept", *paths[:4], "--new", paths[4], "--json", facts, "--html", page)
    assert outcome.status == 1, outcome.err
    assert outcome.out.startswith(
        "rejected: 1 new run does not belong to the distribution of 4 reference runs; step 2, y: "
    )
    assert "2 values are NaN" in outcome.out and "nothing else was tested" in outcome.out
    document = json.loads(facts.read_text())
    assert document["steps"] == [2] and [f["field"] for f in document["fields"]] == ["y"]
    assert "rejected" in page.read_text()
    # at tolerance 0 nothing has a cell: a reference run may be infinite there
    exact = captured(tmp_path / "exact", runs, keep_data=False)
    with pytest.raises(Incomparable, match="only its metadata is there"):
        twinrun.accept(exact[:4], exact[4:])
    # a field that was not chosen rejects nothing
    with pytest.raises(Incomparable, match="only its metadata is there"):
        twinrun.accept(paths[:4], paths[4:], fields=["x"])


def test_damaged_and_missing_files(ensemble, tmp_path):
    broken = tmp_path / "broken.npy"
    broken.write_bytes(b"\x93NUMPY")
    outcome = command("accept", *ensemble["reference"], "--new", broken)
    assert outcome.status == 2 and outcome.err.count("\n") == 1
    outcome = command("accept", *ensemble["reference"], "--new", tmp_path / "nowhere")
    assert outcome.status == 2 and "no such file" in outcome.err
    assert command("accept", *ensemble["reference"], "--new").status == 2
