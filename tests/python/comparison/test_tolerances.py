"""Rules by field and step."""

from __future__ import annotations

import fnmatch
import pathlib
import pickle
import re

import numpy as np
import pytest
from commands import command, process
from hypothesis import given, settings
from hypothesis import strategies as st

import twinrun
from twinrun.arguments import Globs
from twinrun.comparison.proposal import propose
from twinrun.comparison.tolerances import (
    Periods,
    Rule,
    Tolerances,
    is_position,
    parse_periods,
    parse_steps,
    read_tolerances,
)
from twinrun.errors import Incomparable, TwinrunError


def rules(folder: pathlib.Path, text: str) -> pathlib.Path:
    path = folder / "tolerances.toml"
    path.write_text(text)
    return path


def test_the_first_rule_that_matches_holds(tmp_path: pathlib.Path) -> None:
    path = rules(
        tmp_path,
        """
        [[tolerance]]
        field = ["velocity_x", "pressure"]
        atol = 1e-3
        [[tolerance]]
        field = "velocity_*"
        rtol = 0.1
        [[tolerance]]
        field = "timer*"
        skip = true
        [[tolerance]]
        field = "nothing*"
        atol = 1
        """,
    )
    a = {"velocity_x": np.ones(9), "velocity_y": np.ones(9), "timer": np.ones(9), "other": np.ones(9)}
    b = {
        "velocity_x": a["velocity_x"] + 0.05,
        "velocity_y": a["velocity_y"] + 0.05,
        "timer": a["timer"] * 7,
        "other": a["other"],
    }
    found = twinrun.compare(a, b, tolerances=path)
    assert {f.field: (f.same, f.atol, f.rtol) for f in found.fields} == {
        "velocity_x": (False, 1e-3, 0.0),
        "velocity_y": (True, 0.0, 0.1),
        "other": (True, 0.0, 0.0),
    }
    said = "\n".join(found.notes)
    assert "rule 4 (nothing*) matched no field" in said
    assert "no rule for other" in said
    assert "left out on request: timer" in said


def test_rules_by_step(tmp_path: pathlib.Path) -> None:
    path = rules(tmp_path, '[[tolerance]]\nfield = "x"\nsteps = "100:"\natol = 1\n')
    for name, shift in (("a", 0.0), ("b", 0.5)):
        with twinrun.Run(tmp_path / name, atol=0.1) as run:
            for step in (50, 100, 150):
                run.capture(step, {"x": np.arange(10.0) + shift})
    found = twinrun.compare(tmp_path / "a", tmp_path / "b", tolerances=path)
    assert [(f.step, f.same, f.atol) for f in found.fields] == [
        (50, False, 0.1),
        (100, True, 1.0),
        (150, True, 1.0),
    ]


def test_options_hold_where_no_rule_does(tmp_path: pathlib.Path) -> None:
    path = rules(tmp_path, '[[tolerance]]\nfield = "x"\nulp = 2\n')
    x = np.array([1.0])
    next_but_one = np.nextafter(np.nextafter(x, 2), 2)
    found = twinrun.compare({"x": x, "y": x}, {"x": next_but_one, "y": x + 0.05}, tolerances=path, atol=0.1)
    assert found.same
    assert [(f.ulps, f.atol) for f in found.fields] == [(2, 0.0), (None, 0.1)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[tolerance]]\natol = 1", "names no field"),
        ('[[tolerance]]\nfield = "x"', "has no setting"),
        ('[[tolerance]]\nfield = "x"\natol = -1', "finite and not negative"),
        ('[[tolerance]]\nfield = "x"\natol = nan', "finite and not negative"),
        ('[[tolerance]]\nfield = "x"\natol = true', "finite and not negative"),
        ('[[tolerance]]\nfield = "x"\nulp = -1', "ulp must be"),
        ('[[tolerance]]\nfield = "x"\nulp = 1.5', "ulp must be"),
        ('[[tolerance]]\nfield = "x"\nabs = 1', "'abs' is not understood"),
        ('[[tolerance]]\nfield = 3\natol = 1', "field must be"),
        ('[[tolerance]]\nfield = []\natol = 1', "field must be"),
        ('[[tolerance]]\nfield = "x"\natol = 1\nsteps = "a:b"', "not understood"),
        ('[[tolerance]]\nfield = "x"\nskip = true\natol = 1', "leaves fields out"),
        ('[[tolerance]]\nfield = "x"\nperiod = [1, 2, 3, 4, 5]', "period must be"),
        ('[[tolerance]]\nfield = "x"\nperiod = 0', "rule 1: period must be a length above 0"),
        ('[[tolerance]]\nfield = "x"\nperiod = [0, 0.0]', "period must be a length above 0"),
        ('[[tolerance]]\nfield = "x"\nperiod = true', "period must be a length above 0"),
        ('tolerance = 3', "must be tables"),
        ('[tolerances]\nx = 1', "'tolerances' is not understood"),
        ("= 1", "is not TOML"),
        ("\xff", "is not TOML"),
        ('[[tolerance]]\nfield = "x"\natol = ' + "1" * 5_000, "is not TOML: an integer has too many digits"),
        ('[[tolerance]]\nfield = "x"\natol = ' + "1" * 500, "finite and not negative"),
        ('[[tolerance]]\nfield = "x"\nulp = ' + "1" * 500, "ulp must be"),
        ('[[tolerance]]\nfield = "x"\nperiod = ' + "1" * 500, "period must be"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused(tmp_path: pathlib.Path, text: str, said: str) -> None:
    path = tmp_path / "t.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(TwinrunError, match=said):
        read_tolerances(path)
    data = tmp_path / "x.npy"
    np.save(data, np.zeros(3))
    assert command("compare", data, data, "--tolerances", path).status == 2


@given(data=st.binary(max_size=200))
@settings(max_examples=200)
def test_any_bytes_are_rules_or_an_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.toml"
    path.write_bytes(data)
    try:
        read_tolerances(path)
    except TwinrunError:
        pass


def test_everything_left_out_is_not_same(tmp_path: pathlib.Path) -> None:
    path = rules(tmp_path, '[[tolerance]]\nfield = "*"\nskip = true\n')
    with pytest.raises(Incomparable, match="nothing was compared"):
        twinrun.compare({"x": np.ones(3)}, {"x": np.zeros(3)}, tolerances=path)


def test_integers_and_nan_by_rule(tmp_path: pathlib.Path) -> None:
    path = rules(
        tmp_path,
        '[[tolerance]]\nfield = "n"\natol = 1\nintegers = true\n[[tolerance]]\nfield = "x"\natol = 1\nnan_differs = true\n',
    )
    a = {"n": np.arange(4), "x": np.array([np.nan]), "m": np.arange(4)}
    b = {"n": np.arange(4) + 1, "x": np.array([np.nan]), "m": np.arange(4)}
    found = {f.field: f.same for f in twinrun.compare(a, b, tolerances=path).fields}
    assert found == {"n": True, "x": False, "m": True}


@pytest.mark.parametrize("said", [None, True, False])
@pytest.mark.parametrize("tolerate", [True, False])
def test_a_rule_that_says_nothing_of_integers_follows_the_caller(
    said: bool | None, tolerate: bool, tmp_path: pathlib.Path
) -> None:
    line = "" if said is None else f"integers = {str(said).lower()}\n"
    path = rules(tmp_path, f'[[tolerance]]\nfield = "n"\natol = 1\n{line}')
    result = twinrun.compare(
        {"n": np.arange(4)}, {"n": np.arange(4) + 1}, tolerances=path, tolerate_integers=tolerate
    )
    assert result.same == (tolerate if said is None else said)


def test_positions_by_name() -> None:
    for name in ("x", "PartType0/Coordinates", "particles/e/position/x", "pos_y", "ZZ", "atoms/pos"):
        assert is_position(name), name
    for name in ("v", "vx", "velocity", "particles/e/momentum/x", "xi", "position_error", "box", "gas/x"):
        assert not is_position(name), name
    periods = parse_periods("10,20,30")
    assert periods == Periods((10.0, 20.0, 30.0))
    assert periods.of("y", (100,)) == (20.0,)
    assert periods.of("Coordinates", (100, 3)) == (10.0, 20.0, 30.0)
    assert periods.of("Coordinates", (100, 2)) == ()
    assert periods.of("velocity", (100, 3)) == ()
    assert periods.of("x", (100, 1)) == periods.of("x", (50, 60)) == (10.0,)
    # All axes, or one of them thrice: a guess would forgive what is no wrap.
    for name, shape in (("x", (100, 3)), ("pos/y", (7, 100, 2)), ("position_z", (5, 4))):
        with pytest.raises(Incomparable, match=r"its last axis may be all axes.*period '.*=10x20x30'"):
            periods.of(name, shape)
    assert parse_periods("10,10").of("x", (100, 2)) == (10.0,)  # the same in both cases
    assert parse_periods("r*=5x6").of("r12", (4, 2)) == (5.0, 6.0)
    for wrong in ("", "a", "-1", "1,2,3,4,5", "inf", "=3", "x=", "nan"):
        with pytest.raises(TwinrunError):
            parse_periods(wrong)
    # One axis may be open; a period that has no length at all is a mistake.
    assert parse_periods("10,10,0").axes == (10.0, 10.0, 0.0)
    assert parse_periods("u=0,v=3").of("u", (3,)) == (0.0,)
    for empty in ("0", "u=0", "0,0,0", "u=0x0,v=0"):
        with pytest.raises(TwinrunError, match="has no length above 0; give the length of the box"):
            parse_periods(empty)
    for negative in ("-3", "u=-3", "u=5x-1", "10,-1,3"):
        with pytest.raises(TwinrunError, match=r"a length must not be negative, and -[13] is"):
            parse_periods(negative)
    for short in ("5e-324", "10,1e-310", "u=2e-308"):
        with pytest.raises(TwinrunError, match=r"no circle can be as short as .*at least 2\.23e-308"):
            parse_periods(short)
    for slip in ("1_0", "x=1_0", "10,1_0"):
        with pytest.raises(TwinrunError, match="is not understood"):
            parse_periods(slip)


@pytest.mark.parametrize(
    "field, values, period, reason",
    [
        ("pos", np.zeros((10, 3)), "10,10", r"'pos' has shape \[10, 3\], and 2 lengths were given"),
        ("x", np.arange(4), "10", "'x' is of type i64, and only floating-point numbers have a period"),
        ("x", np.arange(4), "x=10", "'x' is of type i64, and only floating-point numbers have a period"),
        ("z", np.zeros(4), "10,10", "'z' is along an axis without a length: 2 lengths were given"),
        ("u", np.zeros(4), "10", "no name is that of positions"),
        ("u", np.zeros(4), "x=10", "no name matches 'x'"),
    ],
)
def test_why_a_period_has_no_field(field: str, values: np.ndarray, period: str, reason: str) -> None:
    with pytest.raises(Incomparable, match=f"there is no field for the period: {reason}"):
        twinrun.compare({field: values}, {field: values}, period=period)


@pytest.mark.parametrize("slip", ["1_0", "1,1_0", "1_0:", "0:1_0"])
def test_no_step_is_written_with_an_underscore(slip: str) -> None:
    x = {"x": np.zeros(3)}
    with pytest.raises(TwinrunError, match="are not understood"):
        twinrun.compare(x, x, steps=slip)


@pytest.mark.parametrize("length", ["5e-324", "[10.0, 1e-310]"])
def test_no_rule_has_a_length_that_no_circle_can_have(tmp_path: pathlib.Path, length: str) -> None:
    path = rules(tmp_path, f'[[tolerance]]\nfield = "x"\nperiod = {length}\n')
    with pytest.raises(TwinrunError, match=r"period must be at least 2\.23e-308: no circle can be shorter"):
        read_tolerances(path)


def test_a_period_without_effect_is_noted() -> None:
    fields = {"x": np.zeros(4), "n": np.arange(4)}
    notes = twinrun.compare(fields, fields, period="x=10,n=3,w=2,v=0").notes
    assert notes == [
        "compared on the circle: x (10)",
        "the period for 'n' has no effect: 'n' is of type i64, and only floating-point numbers have a period",
        "the period for 'w' has no effect: no other name matches it",
    ]


def test_periods_given_several_times_all_hold(tmp_path: pathlib.Path) -> None:
    for name, shift in (("a", 0.0), ("b", 1.0)):
        np.savez(tmp_path / f"{name}.npz", pos=np.ones(3) + 10 * shift, vel=np.ones(3) + 3 * shift)
    runs = (str(tmp_path / "a.npz"), str(tmp_path / "b.npz"))
    done = command("compare", *runs, "--period", "pos=10", "--period", "vel=3", "--atol", "1e-9")
    assert done.status == 0 and "pos (10), vel (3)" in done.out, done
    for twice in (["10", "20"], ["pos=10", "20"]):
        done = command("compare", *runs, "--period", twice[0], "--period", twice[1])
        assert done.status == 2 and "--period was given 2 times" in done.err, done


@pytest.mark.parametrize("wrong", [0, 0.0, (0.0, 0.0), "u=0"])
def test_a_period_of_0_is_refused_for_a_field_that_is_there(wrong: object) -> None:
    u = {"u": np.zeros(3)}
    with pytest.raises(TwinrunError, match="has no length above 0"):
        twinrun.compare(u, u, period=wrong)


@pytest.mark.parametrize("wrong", [True, np.True_, [True], (10.0, False), "10,True"])
def test_a_period_is_no_boolean(wrong: object) -> None:
    x = {"x": np.zeros(3)}
    with pytest.raises(
        TwinrunError, match=r"period must be a number, not|period '10,True' is not understood"
    ):
        twinrun.compare(x, x, period=wrong)


@pytest.mark.parametrize("length", [10, 10.0, np.float32(10), np.array(10.0), [10], np.array([10.0])])
def test_all_kinds_of_numbers_are_periods(length: object) -> None:
    assert twinrun.compare({"x": np.array([1.0])}, {"x": np.array([11.0])}, period=length).same


@pytest.mark.parametrize("given", [{"atol": True}, {"rtol": np.True_}, {"ulps": True}])
def test_tolerances_of_rules_are_no_booleans(given: dict) -> None:
    with pytest.raises(TwinrunError, match="must be a number, not"):
        Rule(**given)


@given(seed=st.integers(0, 999), runs=st.integers(2, 4), by_step=st.booleans())
@settings(max_examples=20)
def test_proposals_accept_the_runs_that_they_came_from(
    tmp_path_factory: pytest.TempPathFactory, seed: int, runs: int, by_step: bool
) -> None:
    random = np.random.default_rng(seed)
    folder = tmp_path_factory.mktemp("runs")
    base = {
        "wide": random.normal(size=50) * 1e6,
        "odd [name]*": random.normal(size=9),
        "n": np.arange(9),
        "equal": np.ones(4),
    }
    paths = []
    for run in range(runs):
        path = folder / f"run{run}"
        path.mkdir()
        for step in (1, 2, 30):
            noise = {"wide": 1e-3 * step, "odd [name]*": 1e-9 * step, "n": 1, "equal": 0}
            values = {
                n: v + (random.integers(0, 2, v.size) if n == "n" else random.normal(size=v.size) * noise[n])
                for n, v in base.items()
            }
            np.savez(path / f"step-{step}.npz", **values)
        paths.append(path)
    proposal = propose(paths, by_step=by_step)
    rule_file = folder / "proposed.toml"
    rule_file.write_text(proposal.toml())
    for other in paths[1:]:
        found = twinrun.compare(paths[0], other, tolerances=rule_file)
        assert found.same, found.first_divergence
        assert not any("no rule" in note for note in found.notes)
        assert not any("matched no field" in note for note in found.notes) or by_step
    rules_found = read_tolerances(rule_file)
    spread = max(
        f.max_abs_diff
        for other in paths[1:]
        for f in twinrun.compare(paths[0], other).fields
        if f.field == "wide"
    )
    allowed = rules_found.find("wide", 999)
    assert allowed is not None and allowed.atol is not None and 2 * spread <= allowed.atol <= 4.1 * spread


def test_steps_of_a_rule_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = pickle.loads(
        pickle.dumps(Rule(("x*",), steps="1:5,9"))
    )  # as it goes to the other ranks of a comparison
    assert rule == Rule(("x*",), steps="1:5,9") != Rule(("x*",), steps="1:5")
    monkeypatch.setattr("twinrun.comparison.tolerances.parse_steps", None)
    rules = Tolerances((rule,))
    found = [step for step in (None, *range(12)) if rules.number("x1", step) == 0]
    assert found == [1, 2, 3, 4, 5, 9] and rules.number("y", 1) is None
    monkeypatch.undo()
    with pytest.raises(TwinrunError, match="not understood"):
        Rule(steps="early")


def test_proposals_on_the_command_line(tmp_path: pathlib.Path) -> None:
    for name, shift in (("a", 0.0), ("b", 1e-6)):
        np.save(tmp_path / f"{name}.npy", np.arange(4.0) + shift)
    a, b, out = tmp_path / "a.npy", tmp_path / "b.npy", tmp_path / "t.toml"
    shown = command("tolerances", a, b)
    assert (
        shown.status == 0
        and "1 comparison of f64: max |a-b| 1e-06, in up to 100% of the elements" in shown.out
    )
    assert command("tolerances", a, b, "-o", out).status == 0
    assert command("compare", a, b).status == 1
    assert command("compare", a, b, "--tolerances", out).status == 0
    assert command("tolerances", a, b, "-o", out).status == 2
    assert command("tolerances", a).status == 2
    np.save(b, np.array([0, 1, 2, np.nan]))
    assert "no tolerance allows" in command("tolerances", a, b).out


def test_a_comparison_by_a_file_does_not_wait_for_what_studies_need(tmp_path: pathlib.Path) -> None:
    path = rules(tmp_path, '[[tolerance]]\nfield = "x"\natol = 1\n')
    data = tmp_path / "x.npy"
    np.save(data, np.zeros(3))
    modules = ("-X", "importtime", "-m", "twinrun")
    done = process("compare", data, data, "--tolerances", path, python=modules)
    assert done.status == 0 and not re.search(r"\b(msgspec|difflib)\b", done.err)
    # A study is read by msgspec, and says so in the same way.
    (tmp_path / "study.toml").write_text('command = "true"')
    assert re.search(r"\bmsgspec\b", process("ensemble", "plan", tmp_path / "study.toml", python=modules).err)


@pytest.mark.parametrize("ulp", [-1, 1.5, True, "1", (1 << 64) - 1])
def test_ulps_that_are_no_number_of_values_are_refused(ulp: object) -> None:
    with pytest.raises(TwinrunError, match="ulp must be a number of representable values"):
        twinrun.compare({"x": np.ones(3)}, {"x": np.ones(3)}, ulp=ulp)


def test_files_without_a_step_count_as_none(tmp_path: pathlib.Path) -> None:
    for run in ("a", "b"):
        (tmp_path / run).mkdir()
        for step in (1, 2):
            np.save(tmp_path / run / f"x-{step}.npy", np.ones(3))
        (tmp_path / run / "notes.txt").write_text("equal\n")
    assert "2 fields, 2 steps," in str(twinrun.compare(tmp_path / "a", tmp_path / "b"))
    same = twinrun.compare(tmp_path / "a/x-1.npy", tmp_path / "b/x-1.npy")
    assert "1 field, 1 step," in str(same)


def test_tolerances_by_field() -> None:
    x = np.arange(4.0)
    a, b = {"x": x, "y*": x, "n": np.arange(4)}, {"x": x + 0.5, "y*": x * 1.25, "n": np.arange(4) + 1}
    own = {"x": 0.5, "y*": (0, 0.25), "n": 1}
    assert twinrun.compare(a, b, tolerances=own).same
    for name in own:
        found = twinrun.compare(a, b, tolerances={k: v for k, v in own.items() if k != name})
        assert [f.field for f in found.fields if not f.same] == [name]
    # Names, not globs.
    assert not twinrun.compare({"yz": x}, {"yz": x * 1.25}, tolerances={"y*": (0, 0.25)}).same
    # They come before what holds for all.
    assert not twinrun.compare({"x": x}, {"x": x + 0.5}, atol=1, tolerances={"x": 0.25}).same


@pytest.mark.parametrize("given", [{"x": "1"}, {"x": (1, 2, 3)}, {"x": -1}, {1: 1.0}, ["x"], 1.0])
def test_tolerances_that_are_none_are_refused(given: object) -> None:
    with pytest.raises(twinrun.TwinrunError, match=r"tolerance|atol"):
        twinrun.compare({"x": np.ones(2)}, {"x": np.ones(2)}, tolerances=given)


@settings(max_examples=200, deadline=None)
@given(
    globs=st.lists(st.text("ab*?[]!.@", max_size=5), max_size=8),
    names=st.lists(st.text("ab*?[]!.@", max_size=5), min_size=1, max_size=8),
)
def test_globs_match_as_those_of_python(globs: list[str], names: list[str]) -> None:
    one = Globs(globs)
    for name in names:
        met = [at for at, g in enumerate(globs) if fnmatch.fnmatchcase(name, g)]
        assert one.met(name) == met and one.match(name) == bool(met)


@settings(max_examples=200, deadline=None)
@given(
    rules=st.lists(
        st.builds(
            Rule,
            fields=st.lists(st.sampled_from(["a", "b", "a*", "*", "?", "b.c"]), min_size=1, max_size=3).map(
                tuple
            ),
            steps=st.sampled_from([None, "1", "2:"]),
            of_attributes=st.booleans(),
        ),
        max_size=6,
    ),
    name=st.sampled_from(["a", "b", "ab", "b.c", "c"]),
    step=st.sampled_from([None, 0, 1, 2, 5]),
)
def test_the_first_rule_is_that_of_trying_each(rules: list[Rule], name: str, step: int | None) -> None:
    every = Tolerances(tuple(rules))
    for of_attributes, found in (
        (False, every.number(name, step)),
        (True, every.number_of_attribute(name, step)),
    ):
        assert found == next(
            (
                at
                for at, rule in enumerate(rules)
                if rule.of_attributes == of_attributes
                and (rule.steps is None or parse_steps(rule.steps)(step))
                and any(fnmatch.fnmatchcase(name, g) for g in rule.fields)
            ),
            None,
        )
