"""Other names for the second run: the result is that of a run that was written with these names."""

from __future__ import annotations

import concurrent.futures
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from commands import check_error, command, load_json
from hypothesis import given, settings
from hypothesis import strategies as st
from support import run_of_ranks

import twinrun
from twinrun.comparison.renames import Rename, Renamed, _matched, parse_rename, renames_of
from twinrun.runs.opening import open_subject

NAME = st.text("abx.*?[]/_=", min_size=1, max_size=8)


@given(name=NAME, old=NAME, new=NAME)
def test_a_rule_without_wildcards_is_the_name_itself(name: str, old: str, new: str) -> None:
    if any(c in old + new for c in "*?"):
        return
    rule = Rename(old, new)
    assert rule.of(name) == (new if name == old else None)


@given(front=st.text("ab.", max_size=4), middle=st.text("ab.*\n", max_size=6), end=st.text("ab.", max_size=4))
def test_stars_take_over_what_they_matched(front: str, middle: str, end: str) -> None:
    rule = parse_rename(f"{front}*{end}=<*>")
    assert rule.of(front + middle + end) == f"<{middle}>"
    assert rule.of(f"{front}{middle}{end}!") is None or end == ""
    assert Rename("l?.*", "m?/*").of("l7.w.b") == "m7/w.b"
    assert pickle.loads(pickle.dumps(rule)) == rule


@given(st.text("ab*?", max_size=8), st.text("ab?*", max_size=9))
def test_wildcards_take_what_those_of_a_regular_expression_take(pattern: str, name: str) -> None:
    parts = ("(.*)" if c == "*" else "(.)" if c == "?" else re.escape(c) for c in pattern)
    found = re.fullmatch("".join(parts), name)
    assert _matched(pattern, name) == (None if found is None else list(found.groups()))


def test_many_wildcards_take_no_longer_than_few() -> None:
    """A regular expression tries 10^13 ways here."""
    assert Rename("*a" * 15 + "*c", "x").of("a" * 60) is None
    assert Rename("*a" * 15 + "*", "*b" * 15 + "*").of("a" * 60) == "a" * 45 + "b" * 15


@pytest.mark.parametrize("text", ["", "a", "=b", "a=", "*=*", "a*=*b*", "a*=b?c*", "a=b*", "a?=?*"])
def test_rules_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(twinrun.TwinrunError, match="rename"):
        parse_rename(text)
    with pytest.raises(twinrun.TwinrunError, match="rename"):
        twinrun.compare({"x": np.zeros(2)}, {"x": np.zeros(2)}, rename=text)


def fields(rng: np.random.Generator) -> tuple[dict, dict]:
    """Two runs with the same names: equal, different, and fields that one of them lacks."""
    names = [f"h.{i}.{w}" for i in range(rng.integers(1, 5)) for w in ("weight", "bias")]
    a = {n: rng.normal(size=rng.integers(1, 6)) for n in names}
    b = {n: v + (rng.random(v.shape) < 0.2) for n, v in a.items() if rng.random() < 0.9}
    b |= {"wte": np.arange(3.0)}
    a |= {"wte": np.arange(3.0)}
    return a, b


def facts(result: twinrun.Comparison) -> tuple:
    return (
        result.verdict,
        [(f.field, f.step, f.rank, f.different, f.first_index, f.max_abs_diff) for f in result.fields],
        sorted(result.problems),
    )


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), way=st.sampled_from(["arrays", "npz", "folder", "history"]))
def test_the_result_is_that_of_a_run_with_these_names(
    tmp_path_factory: pytest.TempPathFactory, seed: int, way: str
) -> None:
    folder = tmp_path_factory.mktemp("r")
    a, b = fields(np.random.default_rng(seed))
    other = {f"transformer.{n}": v for n, v in b.items()}

    def made(name: str, arrays: dict) -> object:
        if way == "arrays":
            return arrays
        path = folder / name
        path.parent.mkdir(exist_ok=True, parents=True)
        if way == "npz":
            np.savez(f"{path}.npz", **arrays)
            return f"{path}.npz"
        if way == "folder":
            path.mkdir()
            for n, v in arrays.items():
                np.save(path / f"{n}.npy", v)
            return path
        with twinrun.Run(path) as run:
            run.capture(1, arrays)
            run.capture(2, {n: v * 2 for n, v in arrays.items()})
        return path

    rule = "transformer.*=*"
    expected = twinrun.compare(made("a", a), made("one/b", b), partial=True)
    result = twinrun.compare(made("c", a), made("two/b", other), partial=True, rename=rule)
    said = [p.replace("two/b", "one/b").replace(f"{folder}/c", f"{folder}/a") for p in result.problems]
    assert facts(result)[:2] == facts(expected)[:2] and sorted(said) == sorted(expected.problems)
    same = twinrun.compare(made("d", a), made("three/b", other), partial=True, rename={"transformer.*": "*"})
    assert facts(same)[:2] == facts(result)[:2]
    parts = [(p.field.field, p.index.tolist(), p.b.tolist()) for p in result.differences()]
    assert parts == [(p.field.field, p.index.tolist(), p.b.tolist()) for p in expected.differences()]


def test_the_first_rule_that_matches_counts() -> None:
    x = np.arange(3.0)
    a, b = {"p": x, "q": x + 1, "r": x}, {"old.p": x, "old.special": x + 1, "r": x}
    result = twinrun.compare(a, b, rename=["old.special=q", "old.*=*"])
    assert result and len(result.fields) == 3
    with pytest.raises(twinrun.Incomparable):
        twinrun.compare(a, b, rename=["old.*=*", "old.special=q"])


def test_what_matches_nothing_is_a_problem() -> None:
    x = {"x": np.zeros(3)}
    with pytest.raises(twinrun.Incomparable, match=r"'y\*=\*' matches no field"):
        twinrun.compare(x, x, rename="y*=*")
    for common in (False, True):
        result = twinrun.compare(x, x, rename="y*=*", partial=True, common=common)
        assert result.verdict == "incomparable" and "matches no field" in result.problems[0]
    # One step that has a match is enough.
    assert twinrun.compare(x, {"z": x["x"]}, rename="z=x")


@pytest.mark.parametrize("b", [{"m.x": 1.0, "x": 1.0}, {"m.x": 1.0, "n.x": 1.0}])
def test_names_that_two_fields_get_are_a_problem(b: dict[str, float]) -> None:
    """Though each of the two agrees."""
    arrays = {n: np.full(3, v) for n, v in b.items()}
    rules = ["m.*=*", "n.*=*"] if "n.x" in b else ["m.*=*"]
    a = {"x": np.full(3, 1.0), "y": np.zeros(2)}
    b = {**arrays, "y": np.zeros(2)}
    for how in (
        {},
        {"partial": True},
        {"common": True},
        {"partial": True, "common": True},
        {"leave_out": "x"},
    ):
        with pytest.raises(
            twinrun.Incomparable, match=r"several fields get the name 'x' by rename: 'm\.x', '"
        ):
            twinrun.compare(a, b, rename=rules, **how)


def test_a_step_in_which_names_collide_is_not_compared(tmp_path: Path) -> None:
    for name, prefix in (("a", ""), ("b", "m.")):
        with twinrun.Run(tmp_path / name) as run:
            run.capture(1, {f"{prefix}x": np.zeros(3)})
            run.capture(2, {f"{prefix}x": np.zeros(3)} | ({"x": np.zeros(3)} if name == "b" else {}))
    result = twinrun.compare(tmp_path / "a", tmp_path / "b", rename="m.*=*", partial=True, common=True)
    assert result.verdict == "incomparable" and [f.step for f in result.fields] == [1]
    assert ["several fields get the name 'x'" in p for p in result.problems] == [True]


def test_files_with_attributes_and_groups(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    for name, group, unit in (("a", "gas", "m"), ("b", "PartType0", "m"), ("c", "PartType0", "km")):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file.create_group(group).attrs["count"] = 3
            file[f"{group}/x"] = np.arange(3.0)
            file[f"{group}/x"].attrs["units"] = unit
    rules = ["PartType0/*=gas/*", "PartType0=gas"]
    result = twinrun.compare(tmp_path / "a.h5", tmp_path / "b.h5", rename=rules)
    assert result.verdict == "same" and result.attributes_compared >= 2
    result = twinrun.compare(tmp_path / "a.h5", tmp_path / "c.h5", rename=rules)
    assert result.verdict == "different" and [d.label for d in result.attributes] == ["gas/x@units"]


def test_particles_and_global_arrays(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    ids, x = rng.permutation(100), rng.random(100)
    order = rng.permutation(100)
    run_of_ranks(tmp_path / "a", [{5: {"id": ids[:60], "x": x[:60]}}, {5: {"id": ids[60:], "x": x[60:]}}])
    run_of_ranks(tmp_path / "b", [{5: {"gas.id": ids[order], "gas.x": x[order]}}])
    result = twinrun.compare(tmp_path / "a", tmp_path / "b", key="id", rename="gas.*=*")
    assert result.verdict == "same" and [f.field for f in result.fields] == ["id", "x"]
    shape = (100,)
    run_of_ranks(tmp_path / "c", [{5: {"x": x[:60]}}, {5: {"x": x[60:]}}],
                 places=[{"x": (shape, (0,))}, {"x": (shape, (60,))}])  # fmt: skip
    run_of_ranks(tmp_path / "d", [{5: {"gas.x": x[:30]}}, {5: {"gas.x": x[30:] + 1}}],
                 places=[{"gas.x": (shape, (0,))}, {"gas.x": (shape, (30,))}])  # fmt: skip
    result = twinrun.compare(tmp_path / "c", tmp_path / "d", rename="gas.*=*")
    assert result.fields[0].different == 70
    assert sum(p.count for p in result.differences()) == 70


def test_records_know_their_own_names(tmp_path: Path) -> None:
    for name, prefix, shift in (("a", "", 0.0), ("b", "m.", 0.0), ("c", "m.", 1.0)):
        with twinrun.Run(tmp_path / name, record="runs") as run:
            for step in (1, 2):
                run.capture(step, {f"{prefix}x": np.arange(5000.0) + step + shift * (step == 2)})
    assert twinrun.compare(tmp_path / "a", tmp_path / "b", rename="m.*=*")
    result = twinrun.compare(tmp_path / "a", tmp_path / "c", rename="m.*=*")
    assert result.verdict == "different" and result.first_divergence["step"] == 2


def test_workers_know_the_names(tmp_path: Path) -> None:
    for name, prefix in (("a", ""), ("b", "m.")):
        with twinrun.Run(tmp_path / name) as run:
            for step in range(4):
                run.capture(step, {f"{prefix}{n}": np.arange(3000.0) + step for n in "xyz"})
    with concurrent.futures.ProcessPoolExecutor(2) as executor:
        result = twinrun.compare(tmp_path / "a", tmp_path / "b", rename="m.*=*", executor=executor)
    assert result and len(result.fields) == 12


def test_the_command_and_the_file(tmp_path: Path) -> None:
    x = np.arange(4.0)
    np.savez(tmp_path / "a.npz", x=x, y=x)
    np.savez(tmp_path / "b.npz", **{"m.x": x, "old": x + 1})
    compare = ("compare", tmp_path / "a.npz", tmp_path / "b.npz")
    done = command(*compare, "--rename", "m.*=*", "--rename", "old=y", "--json", tmp_path / "j.json")
    assert done.status == 1 and "y[0]" in done.last
    assert {f["field"] for f in load_json((tmp_path / "j.json").read_text())["fields"]} == {"x", "y"}
    rules = tmp_path / "rules.toml"
    rules.write_text(
        '[[rename]]\nfrom = "m.*"\nto = "*"\n[[rename]]\nfrom = "old"\nto = "y"\n[[tolerance]]\nfield = "y"\natol = 2\n'
    )
    assert command(*compare, "--tolerances", rules).status == 0
    done = command(*compare, "--rename", "m.*=*", "--rename", "old=y", "--rename", "no*=*")
    assert done.status == 2 and "'no*=*' matches no field" in done.err
    check_error(command(*compare, "--rename", "nonsense"), "write OLD=NEW")
    for wrong in ('[[rename]]\nfrom = "m.*"\n', '[[rename]]\nfrom = 1\nto = "x"\n', '[rename]\nfrom = "a"\nto = "b"\n',
                  '[[rename]]\nfrom = "a"\nto = "b"\nat = 1\n', '[[rename]]\nfrom = "a"\nto = "b*"\n'):  # fmt: skip
        rules.write_text(wrong)
        check_error(command(*compare, "--tolerances", rules), "rename")
    rules.write_text('[[rename]]\nfrom = "m.*"\nto = "*"\n')
    check_error(
        command("golden", "save", tmp_path / "a.npz", "-o", tmp_path / "g", "--tolerances", rules), "two runs"
    )


def test_rules_of_callers() -> None:
    assert renames_of(None) == () and renames_of("a=b") == renames_of(["a=b"]) == renames_of({"a": "b"})


def test_columns_of_data_frames() -> None:
    """The names of the columns are a field of their own, and go with the columns."""
    pd = pytest.importorskip("pandas")
    a = pd.DataFrame({"a": [1.0, 2.0], "c": [3.0, 4.0]})
    b = a.rename(columns={"a": "b"})
    assert twinrun.compare(a, b, rename="b=a").verdict == "same"
    assert twinrun.compare({"t": a}, {"u": b}, rename=["u.b=t.a", "u.*=t.*", "u=t"]).verdict == "same"
    assert (
        twinrun.compare(a, b[["c", "b"]], rename="b=a").verdict == "different"
    )  # their order is another one
    assert twinrun.compare(a, a.rename(columns={"a": "d"}), rename="d=a").same


def test_attributes_of_a_group_go_with_all_below_it(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    for name, group, count, top in (("a", "gas", 3, 0), ("b", "PartType0", 3, 0), ("c", "PartType0", 4, 0), ("d", "PartType0", 4, 9)):  # fmt: skip
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file[f"{group}/x"] = np.zeros(3)
            file[group].attrs["count"] = count
            if top:  # another group has the new name already
                file.create_group("gas").attrs["count"] = 3

    def said(b: str) -> list[tuple[str, str | None, str | None]]:
        result = twinrun.compare(tmp_path / "a.h5", tmp_path / f"{b}.h5", rename="PartType0/*=gas/*")
        return [(f"{d.owner}@{d.name}", d.a, d.b) for d in result.attributes if d.name == "count"]

    assert said("b") == []
    assert said("c") == [("gas@count", "3", "4")]
    assert said("d") == [("PartType0@count", None, "4")]


def test_groups_that_swap_names_take_their_attributes_along(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")

    def write(name: str, groups: list[tuple[str, float, str]]) -> Path:
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            for group, first, unit in groups:
                file[f"{group}/u"] = np.arange(3.0) + first
                file[group].attrs["units"] = unit
        return tmp_path / f"{name}.h5"

    a = write("a", [("g", 0, "m"), ("h", 1, "s"), ("k", 2, "kg")])
    # The second run by other names: in a pair, in a circle, and with units that stay behind.
    pair = ["g/*=h/*", "h/*=g/*"]
    circle = ["g/*=h/*", "h/*=k/*", "k/*=g/*"]
    assert twinrun.compare(a, write("b", [("h", 0, "m"), ("g", 1, "s"), ("k", 2, "kg")]), rename=pair).same
    left = twinrun.compare(a, write("d", [("h", 0, "s"), ("g", 1, "m"), ("k", 2, "kg")]), rename=pair)
    assert left.verdict == "different" and {d.owner for d in left.attributes} == {"g", "h"}
    turned = write("e", [("k", 0, "m"), ("g", 1, "s"), ("h", 2, "kg")])
    assert twinrun.compare(a, turned, rename=circle).verdict == "same"
    # Rules that rename each field by itself, or by another pattern, move the groups all the same.
    for rules in (["g/?=h/?", "h/?=g/?"], ["g/u=h/u", "h/u=g/u"], ["g/*u=h/*u", "h/*u=g/*u"]):
        assert twinrun.compare(a, tmp_path / "b.h5", rename=rules).same, rules
        stayed = twinrun.compare(a, tmp_path / "d.h5", rename=rules)
        assert stayed.verdict == "different" and len(stayed.attributes) == 2, rules


def test_attributes_of_a_group_without_fields_go_with_a_rule(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    for name, group in (("a", "new"), ("b", "old")):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["x"] = np.zeros(3)
            file.create_group(group).attrs["units"] = "m"
    assert twinrun.compare(tmp_path / "a.h5", tmp_path / "b.h5", rename="old/*=new/*").same


def test_a_group_whose_fields_part_keeps_its_attributes(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    for name, groups in (("a", ("g", "h")), ("b", ("k", "k"))):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file[f"{groups[0]}/x"], file[f"{groups[1]}/y"] = np.zeros(3), np.ones(3)
            file[groups[0]].attrs["units"] = "m"
    found = twinrun.compare(tmp_path / "a.h5", tmp_path / "b.h5", rename=["k/x=g/x", "k/y=h/y"])
    assert {(d.owner, d.a, d.b) for d in found.attributes} == {("g", "'m'", None), ("k", None, "'m'")}


def test_labels_of_a_container_go_with_all_below_it() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"x": [1.0, 2.0]})
    assert twinrun.compare({"t": frame}, {"u": frame}, rename="u.*=t.*").verdict == "same"
    other = pd.DataFrame({"x": [1.0, 2.0]}, index=["p", "q"])
    swapped = {"u": frame, "t": other}, ["u.*=t.*", "t.*=u.*"]
    assert twinrun.compare({"t": frame, "u": other}, swapped[0], rename=swapped[1]).verdict == "same"
    with pytest.raises(twinrun.Incomparable, match="t@index"):
        twinrun.compare({"t": other, "u": frame}, swapped[0], rename=swapped[1])


def test_a_collision_of_names_says_the_step(tmp_path: Path) -> None:
    for name, prefix in (("a", ""), ("b", "m.")):
        with twinrun.Run(tmp_path / name) as run:
            run.capture(7, {f"{prefix}x": np.zeros(3)} | ({"x": np.zeros(3)} if name == "b" else {}))
    with pytest.raises(twinrun.Incomparable, match="step 7: several fields get the name 'x'"):
        twinrun.compare(tmp_path / "a", tmp_path / "b", rename="m.*=*")


@settings(max_examples=200, deadline=None)
@given(
    rules=st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "a.b", "a*", "*b", "?", "a/", "*/"]),
            st.sampled_from(["x", "y.z", "q/"]),
        ),
        max_size=6,
    ),
    name=st.sampled_from(["a", "b", "a.b", "ab", "c", "a/b", "@a", "a@b"]),
)
def test_a_name_is_that_of_the_first_rule(rules: list[tuple[str, str]], name: str) -> None:
    made = tuple(Rename(*rule) for rule in rules)
    renamed = Renamed(open_subject({"x": np.ones(2)}), made)
    want = next((new for rule in made if (new := rule.of(name)) is not None), None)
    if want is None and "@" in name:
        owner, _, label = name.partition("@")
        want = next((new for rule in made if (new := rule.of(owner)) is not None), owner) + "@" + label
    assert renamed.new_name(name) == (name if want is None else want)
