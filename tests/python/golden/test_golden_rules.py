"""`key`, `ulp`, `period` and rules of files mean in golden checks what they mean in `compare`; nothing passes without proof."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from commands import check_error, command, load_json
from hypothesis import given, settings
from hypothesis import strategies as st
from support import run_of_ranks

import twinrun
from twinrun import golden
from twinrun.comparison.settings import Decision, Settings

TIMES = settings(max_examples=50)


def checked(
    folder: Path, a: object, b: object, check: dict | None = None, **save: object
) -> golden.GoldenCheck:
    golden.save(a, folder / "g", **save)
    return golden.check(folder / "g", b, most_listed=10**6, **(check or {}))


@TIMES
@given(
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from(["f2", "f4", "f8"]),
    ulp=st.sampled_from([None, 0, 1, 4, 1000]),
    period=st.sampled_from([None, 1.0, 0.3]),
    atol=st.sampled_from([None, 0.0, 1e-3]),
    at_check=st.booleans(),
)
def test_ulp_and_period_say_what_a_comparison_says(
    tmp_path_factory: pytest.TempPathFactory, seed, dtype, ulp, period, atol, at_check
) -> None:
    folder = tmp_path_factory.mktemp("g")
    rng = np.random.default_rng(seed)
    a = rng.random((40, 3)).astype(dtype)
    b = a.copy()
    for _ in range(int(rng.integers(0, 6))):
        b = np.where(rng.random(b.shape) < 0.3, np.nextafter(b, np.dtype(dtype).type(9)), b)
    b[rng.random(b.shape) < 0.1] += np.dtype(dtype).type(1.0)
    a[0, 0] = b[0, 0] = np.nan
    how = {"ulp": ulp, "period": period}
    truth = twinrun.compare({"pos": a}, {"pos": b}, atol=atol, **how)
    saved, at = ({}, how) if at_check else (how, {})
    if at_check and atol is None and ulp is not None:
        atol = 0.0
    result = checked(folder, {"pos": a}, {"pos": b}, at, atol=atol, **saved)
    assert result.problems == []
    (field,) = result.fields
    assert (field.verdict == "same") == truth.fields[0].same
    assert field.different == truth.fields[0].different
    index = [tuple(i) for part in truth.differences() for i in part.index.tolist()]
    assert [e.index for e in field.listed] == index
    version = json.loads((folder / "g" / "golden.json").read_text())["version"]
    assert version == (1 if at_check or not (ulp or period) else 2)


def test_a_distance_of_many_turns_is_the_one_on_the_circle(tmp_path: Path) -> None:
    """1e15 + 0.125 less 0.1 is a whole number of turns in float64."""
    a, b = np.array([0.1, 1.0, np.nan]), np.array([1e15 + 0.125, 1.0, np.nan])
    golden.save({"pos": a}, tmp_path / "g", atol=1e-3, period=1.0)
    (field,) = golden.check(tmp_path / "g", {"pos": b}).fields
    assert field.different == 1 and field.at_least == field.at_most == pytest.approx(0.025, rel=1e-9)
    (element,) = field.listed
    assert element.at_least == element.at_most == field.at_most
    assert "|a-b| = 0.025 > 0.001" in str(command("golden", "check", tmp_path / "g", saved(tmp_path, b)).out)
    (field,) = golden.check(tmp_path / "g", {"pos": a + np.array([0.0, 5e-4, 0.0])}).fields
    assert field.verdict == "same" and field.at_most == pytest.approx(5e-4)
    (field,) = golden.check(tmp_path / "g", {"pos": np.array([0.1, np.inf, 1.0])}).fields
    assert field.different == 2 and field.at_least == np.inf


def saved(folder: Path, values: np.ndarray) -> Path:
    np.savez(folder / "run.npz", pos=values)
    return folder / "run.npz"


def test_what_digests_cannot_prove_is_refused(tmp_path: Path) -> None:
    x = {"pos": np.linspace(0, 1, 20_000)}
    for how, said in (({"ulp": 4}, "ulp needs values"), ({"period": 1.0}, "period needs values")):
        with pytest.raises(twinrun.Incomparable, match=f"{said}.*give keep_values 160000"):
            golden.save(x, tmp_path / "g", **how)
        assert not (tmp_path / "g").exists()
        golden.save(x, tmp_path / "d")
        result = golden.check(tmp_path / "d", x, **how)
        assert result.status == 2 and said in result.problems[0].text
        assert checked(tmp_path / "kept", x, {"pos": x["pos"] + 0}, keep_values=160_000, **how).same
    # Integers have no such rule: their digests suffice.
    assert checked(tmp_path / "i", {"i": np.arange(90_000)}, {"i": np.arange(90_000)}, ulp=4).same


def test_values_that_a_rule_needs_must_be_there(tmp_path: Path) -> None:
    """Whoever takes them out of the manifest does not get what digests say of another rule."""
    from twinrun.golden.manifest import _checksum

    x = np.linspace(0, 1, 100)
    golden.save({"x": x}, tmp_path / "g", ulp=4)
    d = json.loads((tmp_path / "g" / "golden.json").read_text())
    d.pop("checksum")
    d["places"][0].pop("values")
    (tmp_path / "g" / "golden.json").write_text(json.dumps({**d, "checksum": _checksum(d)}))
    result = golden.check(tmp_path / "g", {"x": x})
    assert result.status == 2 and "ulp needs values" in result.problems[0].text


def test_rules_of_files_hold(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(
        '[[tolerance]]\nfield = "u"\nulp = 2\n[[tolerance]]\nfield = "p"\nperiod = 1.0\natol = 1e-6\n'
        '[[tolerance]]\nfield = "n"\nnan_differs = true\natol = 1.0\n[[tolerance]]\nfield = "i"\nintegers = true\natol = 3\n'
    )
    x = np.linspace(0.1, 0.9, 50)
    a = {"u": x, "p": x, "n": x, "i": np.arange(50)}
    near = {"u": np.nextafter(x, 1), "p": x + 1, "n": x + 0.5, "i": np.arange(50) + 3}
    far = {
        "u": x + 1e-6,
        "p": x + 0.5,
        "n": np.where(x < 0.2, np.nan, x),
        "i": np.arange(50) + 4,
    }
    np.savez(tmp_path / "a.npz", **a)
    np.savez(tmp_path / "near.npz", **near)
    assert (
        command("golden", "save", tmp_path / "a.npz", "-o", tmp_path / "g", "--tolerances", rules).status == 0
    )
    done = command("golden", "check", tmp_path / "g", tmp_path / "near.npz")
    assert done.status == 0 and "2 ulp" in done.out
    for name, array in far.items():
        np.savez(tmp_path / "far.npz", **{**near, name: array})
        done = command("golden", "check", tmp_path / "g", tmp_path / "far.npz")
        assert done.status == 1 and f"{name}[" in done.last, done.out
        assert not twinrun.compare(tmp_path / "a.npz", tmp_path / "far.npz", tolerances=rules)
    np.savez(tmp_path / "nan.npz", **{**a, "n": np.full(50, np.nan)})
    assert (
        command("golden", "save", tmp_path / "nan.npz", "-o", tmp_path / "g", "--tolerances", rules).status
        == 0
    )
    assert golden.check(tmp_path / "g", tmp_path / "nan.npz").fields[2].different == 50


# ---- particles ----


def particles(rng: np.random.Generator, n: int) -> dict[str, np.ndarray]:
    return {
        "id": rng.permutation(10 * n)[:n].astype(np.int64),
        "x": rng.random(n),
        "v": rng.random((n, 3)).astype(np.float32),
        "time": np.array(1.5),
    }


def shuffled(p: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    order = rng.permutation(p["id"].size)
    return {n: a[order] if n != "time" else a for n, a in p.items()}


@TIMES
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 60),
    keep=st.sampled_from([65536, 0, 300]),
    change=st.sampled_from(["none", "value", "lost", "born", "doubled", "both", "id"]),
    at_check=st.booleans(),
)
def test_a_key_says_what_a_comparison_says(
    tmp_path_factory: pytest.TempPathFactory, seed, n, keep, change, at_check
) -> None:
    folder = tmp_path_factory.mktemp("g")
    rng = np.random.default_rng(seed)
    a = particles(rng, n)
    if change == "doubled":
        a["id"][-1] = a["id"][0]
    b = shuffled(a, rng) if change != "doubled" else {k: v.copy() for k, v in a.items()}
    if change in ("value", "both"):
        b["x"][rng.integers(n)] += 1
    if change in ("lost", "both"):
        b = {k: v[1:] if k != "time" else v for k, v in b.items()}
    if change == "born":
        a = {k: v[1:] if k != "time" else v for k, v in a.items()}
    if change == "id":
        b["id"] = b["id"].copy()
        b["id"][0] = 10**9
    truth = twinrun.compare(a, b, key="id", atol=1e-6, partial=True)
    key = {"key": "id"}
    saved, at = ({}, key) if at_check else (key, {})
    result = checked(folder, a, b, at, atol=1e-6, keep_values=keep, **saved)
    assert not result.same or truth.same  # never a false "same"
    if truth.same and not (at_check and keep < 65536):
        assert result.same
    if at_check and keep == 0:
        assert result.status == 2
    fields = {f.field: f for f in result.fields}
    if keep == 65536:
        assert result.problems == []
        assert (result.verdict == "same") == truth.same
        for f in truth.fields:
            assert fields[f.field].different == f.different, f.field
            if f.particles is None and f.key and f.different:
                first = fields[f.field].first
                assert (first.id, first.index) == (f.first_id, f.first_index)
        if change in ("lost", "born", "both", "id"):
            assert any(note.startswith("id: particles ") for note in result.notes)


def split(p: dict[str, np.ndarray], cuts: list[int]) -> list[dict[int, dict[str, np.ndarray]]]:
    """The particles of step 5 on several ranks."""
    ends = [0, *cuts, p["id"].size]
    return [
        {5: {n: v[first:last] for n, v in p.items() if n != "time"} | {"time": p["time"]}}
        for first, last in pairwise(ends)
    ]


def test_particles_on_other_ranks(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    p = particles(rng, 1000)
    q = shuffled(p, rng)
    run_of_ranks(tmp_path / "a", split(p, [400]))
    run_of_ranks(tmp_path / "b", split(q, [300, 900]))
    r = {**q, "v": q["v"].copy()}
    r["v"][950, 2] += 1
    run_of_ranks(tmp_path / "c", split(r, [700]))
    for keep in ("64K", "0"):
        save = ("golden", "save", tmp_path / "a", "-o", tmp_path / "g", "--key", "id", "--atol", "1e-6")
        assert (
            command(*save, "--keep-values", keep, "--field", "id", "--field", "x", "--field", "v").status == 0
        )
        done = command("golden", "check", tmp_path / "g", tmp_path / "b")
        assert done.status == 0 and done.last.startswith("same: 3 fields, 1 step, 5000 elements"), done.out
        done = command("golden", "check", tmp_path / "g", tmp_path / "c", "--key", "id")
        assert done.status == 1 and f"v[id {q['id'][950]}, 2] = " in done.last, done.last
    assert command("golden", "save", tmp_path / "a", "-o", tmp_path / "w", "--atol", "1e-6").status == 0
    only = {"fields": ["id", "x", "v"], "key": "id"}
    assert golden.check(tmp_path / "w", tmp_path / "b", **only).same
    assert [f.field for f in golden.check(tmp_path / "w", tmp_path / "c", **only).fields if not f] == ["v"]
    assert golden.check(tmp_path / "w", tmp_path / "c", key="id").status == 1
    assert golden.check(tmp_path / "w", tmp_path / "b", key="id").status == 2  # a rank more, with its time
    # Fields without IDs belong to their ranks.
    assert command(*save).status == 0
    result = golden.check(tmp_path / "g", tmp_path / "b")
    assert result.status == 2 and [(p.step, p.rank, p.field) for p in result.problems] == [(5, 2, "time")]
    assert golden.check(tmp_path / "g", tmp_path / "c", fields=["x", "time"]).same
    result = golden.check(tmp_path / "g", tmp_path / "c", fields=["v"])
    assert result.verdict == "different" and [f.field for f in result.fields] == ["id", "v"]
    (tmp_path / "few").mkdir()
    run_of_ranks(tmp_path / "few" / "d", split(p, []))
    result = golden.check(tmp_path / "g", tmp_path / "few" / "d")
    assert [(p.step, p.rank, p.text.split()[0]) for p in result.problems] == [(5, 1, "not")]


def test_new_and_missing_particle_fields(tmp_path: Path) -> None:
    p = particles(np.random.default_rng(6), 30)
    golden.save(p, tmp_path / "g", key="id")
    result = golden.check(tmp_path / "g", {**p, "w": p["x"]})
    assert result.status == 2 and [(q.field, "save again" in q.text) for q in result.problems] == [
        ("w", True)
    ]
    result = golden.check(tmp_path / "g", {n: v for n, v in p.items() if n != "x"})
    assert result.status == 2 and [q.field for q in result.problems] == ["x"]
    result = golden.check(tmp_path / "g", {n: v for n, v in p.items() if n != "id"})
    assert result.status == 2 and "id" in {q.field for q in result.problems}
    result = golden.check(tmp_path / "g", {**p, "id": p["id"].astype(np.uint64)})
    assert result.status == 2 and "IDs are i64 in the golden files" in result.problems[0].text
    result = golden.check(tmp_path / "g", {**p, "x": p["x"][:7]})
    assert result.status == 2


def test_rows_of_which_a_rank_keeps_no_values_are_not_forgotten(tmp_path: Path) -> None:
    """The run lost just these rows: what is left agrees, and is not all."""
    p = particles(np.random.default_rng(12), 100)
    run_of_ranks(tmp_path / "a", split(p, [20]))
    run_of_ranks(tmp_path / "b", [split(p, [20])[0], split(p, [100])[1]])
    golden.save(tmp_path / "a", tmp_path / "g", keep_values=20 * 12)
    for fields in (None, ["id", "x"], ["x"], ["id"]):
        result = golden.check(tmp_path / "g", tmp_path / "b", key="id", fields=fields)
        assert result.status == 2 and {q.rank for q in result.problems} == {1}
    assert golden.check(tmp_path / "g", tmp_path / "a", key="id").status == 2
    golden.save(tmp_path / "a", tmp_path / "g")
    assert golden.check(tmp_path / "g", tmp_path / "a", key="id").same
    assert golden.check(tmp_path / "g", tmp_path / "b", key="id").status == 1


def test_chosen_fields_bring_their_ids(tmp_path: Path) -> None:
    rng = np.random.default_rng(10)
    p = particles(rng, 30)
    golden.save(p, tmp_path / "g", key="id", fields=["x"])
    q = shuffled(p, rng)
    result = golden.check(tmp_path / "g", {**q, "v": q["v"] + 1})
    assert result.same and [f.field for f in result.fields] == ["id", "x"]
    assert golden.check(tmp_path / "g", {**q, "x": q["x"] + 1}).verdict == "different"
    with pytest.raises(twinrun.Incomparable, match="no field"):
        golden.save(p, tmp_path / "g", key="id", fields=["nothing"])
    assert golden.check(tmp_path / "g", q).same
    # Columns that are stored by column have no rows, as in a comparison.
    golden.save({**p, "v": np.asfortranarray(p["v"])}, tmp_path / "g", key="id")
    assert golden.check(tmp_path / "g", {**p, "v": np.asfortranarray(p["v"])}).same


def test_lost_particles_in_reports(tmp_path: Path) -> None:
    p = particles(np.random.default_rng(11), 30)
    np.savez(tmp_path / "b.npz", **{n: v[2:] if n != "time" else v for n, v in p.items()})
    golden.save(p, tmp_path / "g", key="id")
    report = tmp_path / "j.json"
    done = command("golden", "check", tmp_path / "g", tmp_path / "b.npz", "--json", report, "--junit", tmp_path / "j.xml",
                   "--github")  # fmt: skip
    assert (
        done.status == 1
        and "id: particles 2 lost (" in done.out
        and "2 of id[0] to id[29] differ" in done.out
    )
    assert load_json(report.read_text())["different"] == 2
    golden.save(p, tmp_path / "g", key="id", keep_values=0)
    done = command("golden", "check", tmp_path / "g", tmp_path / "b.npz")
    assert done.status == 2 and "save again" in done.out


def test_two_kinds_of_particles(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    gas, stars = particles(rng, 50), particles(rng, 20)

    def of(gas: dict, stars: dict) -> dict:
        parts = {"gas": gas, "stars": stars}
        return {f"{k}/{n}": v for k, p in parts.items() for n, v in p.items() if n != "time"}

    for keep in (65536, 0):
        golden.save(of(gas, stars), tmp_path / "g", key="id", keep_values=keep)
        assert golden.check(tmp_path / "g", of(shuffled(gas, rng), shuffled(stars, rng))).same
        other = shuffled(stars, rng)
        other["x"] = other["x"] + 1
        result = golden.check(tmp_path / "g", of(shuffled(gas, rng), other))
        assert [f.field for f in result.fields if not f] == ["stars/x"]


def test_keys_that_are_not_there(tmp_path: Path) -> None:
    p = particles(np.random.default_rng(8), 30)
    np.savez(tmp_path / "p.npz", **p)
    save = ("golden", "save", tmp_path / "p.npz", "-o", tmp_path / "g")
    check_error(command(*save, "--key", "nothing"), "no field of IDs matches the key 'nothing'")
    assert not (tmp_path / "g").exists()
    assert command(*save).status == 0
    assert command("golden", "check", tmp_path / "g", tmp_path / "p.npz", "--key", "id").status == 0
    done = command("golden", "check", tmp_path / "g", tmp_path / "p.npz", "--key", "nothing")
    assert done.status == 2 and "save again with --key nothing" in done.err
    assert command(*save, "--keep-values", 0).status == 0
    done = command("golden", "check", tmp_path / "g", tmp_path / "p.npz", "--key", "id")
    assert done.status == 2 and "save again with --key id" in done.err
    assert command(*save, "--key", "id").status == 0
    assert command("golden", "check", tmp_path / "g", tmp_path / "p.npz", "--key", "id").status == 0
    check_error(
        command("golden", "check", tmp_path / "g", tmp_path / "p.npz", "--key", "x"),
        "saved with the key 'id'",
    )


def test_older_readers_refuse_what_they_would_misread(tmp_path: Path) -> None:
    p = particles(np.random.default_rng(9), 30)
    for how in ({"key": "id"}, {"ulp": 3}, {"period": "x=1"}):
        golden.save(p, tmp_path / "g", **how)
        assert json.loads((tmp_path / "g" / "golden.json").read_text())["version"] == 2
    golden.save(p, tmp_path / "g", atol=1e-6)
    assert json.loads((tmp_path / "g" / "golden.json").read_text())["version"] == 1


def test_a_name_that_nothing_has_is_said(tmp_path: Path) -> None:
    run = {"x": np.zeros(3), "y": np.zeros(2)}
    with pytest.raises(twinrun.Incomparable, match="no field to save matches 'typo'"):
        golden.save(run, tmp_path / "golden", fields=["x", "typo"])
    assert not (tmp_path / "golden").exists()
    golden.save(run, tmp_path / "golden")
    result = golden.check(tmp_path / "golden", run, fields=["x", "typo"])
    assert result.verdict == "incomparable" and "no field that matches 'typo'" in str(result.problems[0])
    assert golden.check(tmp_path / "golden", run, fields=["x*", "y"]).same


@pytest.mark.parametrize(
    ("period", "why"), [("zz=10", "no name matches 'zz'"), ("10", "no name is that of positions")]
)
def test_a_period_that_no_field_has_is_refused(tmp_path: Path, period: str, why: str) -> None:
    x = {"v": np.linspace(0, 1, 10)}
    with pytest.raises(twinrun.Incomparable, match=f"no field for the period: {why}"):
        golden.save(x, tmp_path / "g", period=period)
    assert not (tmp_path / "g").exists()
    golden.save(x, tmp_path / "g")
    result = golden.check(tmp_path / "g", x, period=period)
    assert result.status == 2 and why in result.problems[0].text
    assert golden.check(tmp_path / "g", x, period="v=10").same


def test_a_field_that_a_rule_leaves_out_is_met(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(3.0), y=np.arange(3.0))
    (tmp_path / "rules.toml").write_text('[[tolerance]]\nfield = "x"\nskip = true\n')
    save = ("golden", "save", tmp_path / "a.npz", "-o", tmp_path / "g")
    chosen = ("--field", "x", "--field", "y")
    assert command(*save, *chosen, "--tolerances", tmp_path / "rules.toml").status == 0
    assert command("golden", "check", tmp_path / "g", tmp_path / "a.npz").status == 0
    golden.save(tmp_path / "a.npz", tmp_path / "g", fields=["x", "y"], leave_out="x")
    with pytest.raises(twinrun.Incomparable, match="no field to save matches 'z'"):
        golden.save(tmp_path / "a.npz", tmp_path / "g", fields=["x", "y", "z"], leave_out="x")


def test_save_takes_a_file_of_rules(tmp_path: Path) -> None:
    a = {"x": np.arange(3.0), "y": np.arange(3.0), "z": np.arange(3.0)}
    rules = tmp_path / "rules.toml"
    rules.write_text(
        '[[tolerance]]\nfield = "x"\natol = 0.5\n[[tolerance]]\nfield = "y"\nskip = true\n'
        '[[tolerance]]\nfield = "nothing"\natol = 1\n'
    )
    for named in (rules, str(rules)):
        facts = golden.save(a, tmp_path / "g", tolerances=named, leave_out="z")
        assert facts.names == 1 and any("matched no field" in note for note in facts.notes)
        assert golden.check(tmp_path / "g", {**a, "x": a["x"] + 0.25, "y": a["y"] + 9}).same
        assert not golden.check(tmp_path / "g", {**a, "x": a["x"] + 0.75}).same
    with pytest.raises(twinrun.TwinrunError, match="tolerances must be a file of rules or a function, not 3"):
        golden.save(a, tmp_path / "g", tolerances=3)


def test_save_counts_fields_and_steps(tmp_path: Path) -> None:
    with twinrun.Run(tmp_path / "a") as run:
        for step in (1, 2, 3):
            run.capture(step, {"v": np.arange(3.0)})
    out = command("golden", "save", tmp_path / "a", "-o", tmp_path / "g").out
    assert ": 7 files for 1 field at 3 steps, " in out
    answer = command("golden", "check", tmp_path / "g", tmp_path / "a", "--field", "w")
    assert answer.status == 2
    assert answer.out.count("no field that matches 'w'; the golden files have 'v'") == 1


@pytest.mark.parametrize("keep_values", [0, 65536])
def test_dates_that_were_saved_with_a_tolerance_are_saved_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep_values: int
) -> None:
    """As it once was possible."""
    run = {"t": np.arange(100).astype("M8[s]")}
    with monkeypatch.context() as once:
        once.setattr(Settings, "decision", lambda *_: Decision(1e19, 0.0))
        golden.save(run, tmp_path / "golden", keep_values=keep_values)
    result = golden.check(tmp_path / "golden", run)
    assert result.verdict == "incomparable" and "save again" in str(result.problems[0])
