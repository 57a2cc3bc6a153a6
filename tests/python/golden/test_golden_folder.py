"""Folders of golden files: saved again, interrupted, damaged, and what is not in them."""

from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path

import numpy as np
import pytest
from commands import check_error, command

import twinrun
from twinrun import golden


def test_the_docs_name_every_key(tmp_path: Path) -> None:
    """Each key of golden.json, of a place and of a field stands in a table of the reference."""
    with twinrun.Run(tmp_path / "run") as run:
        run.capture(1, {"x": np.arange(9.0), "pos": np.arange(9.0), "id": np.arange(9)}, ids={"pos": "id"})
    rules = '[[tolerance]]\nfield = "x"\nulp = 2\nnan_differs = true\n[[tolerance]]\nfield = "pos"\nperiod = 1.0\natol = 1e-6\n'
    (tmp_path / "rules.toml").write_text(rules)
    golden.save(tmp_path / "run", tmp_path / "g", tolerances=tmp_path / "rules.toml", key="id")
    document = json.loads((tmp_path / "g" / "golden.json").read_text())
    (place,) = document["places"]
    keys = {*document, *place, *place["values"]}.union(*place["fields"], *(place["attributes"] or ()))
    assert {"twinrun", "left_out", "one_array", "key", "by_id", "ulp", "period", "nan_differs"} <= keys
    page = Path(__file__).parents[3] / "docs" / "reference" / "golden.md"
    tables = [line for line in page.read_text().splitlines() if line.startswith("|")]
    said = set(re.findall(r"`(\w+)`", "\n".join(tables)))
    assert keys - said == set()


def test_saving_again_takes_away_what_the_manifest_lists_and_no_more(tmp_path: Path) -> None:
    target = tmp_path / "golden"
    runs = [tmp_path / "one", tmp_path / "two"]
    for number, run in enumerate(runs):
        with twinrun.Run(run) as r:
            for step in (1, 2):
                r.capture(step, {"x": np.arange(9.0) + step + number})
    golden.save(runs[0], target, keep_values=0)
    own = (target / "step_1_rank_0.twm").read_bytes()
    (target / "step_99_rank_0.twm").write_bytes(own)  # somebody's, by a name as ours
    (target / "rank_7.twm").write_bytes(own)
    (target / "step_2_rank_0.twm").write_bytes(own)  # and one by the name of a file that is listed
    before = {f.name: f.read_bytes() for f in target.iterdir()}
    for run, options in ((runs[1], {}), (runs[0], {}), (runs[1], {"steps": "2"})):
        with pytest.raises(twinrun.TwinrunError, match=r"step_2_rank_0\.twm: is there already.*move it away"):
            golden.save(run, target, keep_values=0, **options)
        assert {f.name: f.read_bytes() for f in target.iterdir()} == before
    golden.save(runs[1], target, steps="1", keep_values=0)
    after = {f.name: f.read_bytes() for f in target.iterdir()}
    assert sorted(after) == sorted(before) and golden.check(target, runs[1], steps="1").same
    for name in ("step_99_rank_0.twm", "rank_7.twm", "step_2_rank_0.twm"):
        assert after[name] == before[name]


@pytest.mark.parametrize("name", ["step_1_rank_0.twm", "step_2_rank_0.twm"])
def test_what_changes_during_a_save_is_not_replaced_or_removed(name: str, tmp_path: Path) -> None:
    """The first would be written over, and the second taken away: it is not listed any more."""
    target, run = tmp_path / "golden", tmp_path / "run"
    with twinrun.Run(run) as r:
        for step in (1, 2):
            r.capture(step, {"x": np.arange(9.0) + step})
    golden.save(run, target)
    before = {f.name: f.read_bytes() for f in target.iterdir()}

    def somebody(*_: object) -> None:
        (target / name).write_bytes(b"precious")

    with pytest.raises(twinrun.TwinrunError, match=f"{name}: is there already.*move it away"):
        golden.save(run, target, steps="1", residue_bits=2, progress=somebody)
    assert {f.name: f.read_bytes() for f in target.iterdir()} == {**before, name: b"precious"}


def test_a_save_that_was_interrupted_is_made_again(tmp_path: Path) -> None:
    """New files lie there, and the old manifest, which lists others."""
    target, new = tmp_path / "golden", tmp_path / "new"
    golden.save({"x": np.arange(9.0)}, target)
    golden.save({"x": np.arange(9.0) + 1}, new)
    (target / "rank_0.twm").write_bytes((new / "rank_0.twm").read_bytes())
    golden.save({"x": np.arange(9.0) + 1}, target)
    assert {f.name: f.read_bytes() for f in target.iterdir()} == {
        f.name: f.read_bytes() for f in new.iterdir()
    }


def test_a_wrong_bit_in_digests_is_an_error(runs: Path, tmp_path: Path) -> None:
    """Whichever byte of a digest file it is in."""
    for name in os.listdir(runs / "golden"):
        (tmp_path / name).write_bytes((runs / "golden" / name).read_bytes())
    file = tmp_path / "step_10_rank_0.twm"
    whole = file.read_bytes()
    chance = random.Random(8)
    for _ in range(40):
        at = chance.randrange(len(whole))
        file.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << chance.randrange(8))]) + whole[at + 1 :])
        result = golden.check(tmp_path, runs / "a")
        assert result.status == 2 and "step_10_rank_0.twm" in result.problems[0].text
    for cut in (0, 1, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:cut])
        assert golden.check(tmp_path, runs / "a").status == 2
    file.unlink()
    assert golden.check(tmp_path, runs / "a").status == 2


def test_a_damaged_manifest_is_an_error(runs: Path, tmp_path: Path) -> None:
    for name in os.listdir(runs / "golden"):
        (tmp_path / name).write_bytes((runs / "golden" / name).read_bytes())
    file = tmp_path / "golden.json"
    whole = file.read_bytes()
    chance = random.Random(9)
    for _ in range(300):
        kind = chance.randrange(4)
        at = chance.randrange(len(whole))
        if kind == 0:
            broken = whole[:at]
        elif kind == 1:
            broken = whole[:at] + bytes([chance.randrange(256)]) + whole[at + 1 :]
        elif kind == 2:
            broken = whole[:at] + whole[at + chance.randrange(1, 30) :]
        else:
            broken = whole[:at] + whole[chance.randrange(len(whole)) :][:50] + whole[at:]
        file.write_bytes(broken)
        try:
            same = json.loads(broken) == json.loads(whole)
        except (ValueError, RecursionError):
            same = False
        if same:
            continue
        with pytest.raises(twinrun.TwinrunError):
            golden.check(tmp_path, runs / "a")


def test_a_manifest_with_wrong_content_is_an_error(runs: Path, tmp_path: Path) -> None:
    """Content that a checksum does not give away, because whoever wrote it knew how."""
    from twinrun.golden.manifest import Manifest, _checksum

    good = json.loads((runs / "golden" / "golden.json").read_text())
    good.pop("checksum")

    def parsed(change: object) -> Manifest:
        d = json.loads(json.dumps(good))
        change(d)
        return Manifest.parse(json.dumps({**d, "checksum": _checksum(d)}).encode(), "golden.json")

    assert len(parsed(lambda d: None).places) == 2
    wrong = [
        lambda d: d["places"][0].update(file="../../etc/passwd.twm"),
        lambda d: d["places"][0].update(file="/etc/x.twm"),
        lambda d: d["places"][0].update(file=d["places"][1]["file"]),
        lambda d: d["places"][0].update(step=True),
        lambda d: d["places"][0].update(step=2**70),
        lambda d: d["places"][0].update(rank=-1),
        lambda d: d["places"][0].update(bytes=-1),
        lambda d: d["places"][0].update(xxh3="zz"),
        lambda d: d["places"][0].update(fields=[]),
        lambda d: d["places"][0]["fields"][0].update(atol="1"),
        lambda d: d["places"][0]["fields"][0].update(atol=-1.0),
        lambda d: d["places"][0]["fields"][0].update(rtol=10**400),
        lambda d: d["places"][0]["fields"][0].update(dtype="f128"),
        lambda d: d["places"][0]["fields"][0].update(shape=[2**59, 2**59]),
        lambda d: d["places"][0]["fields"][0].update(shape=None),
        lambda d: d["places"][0]["fields"].append(d["places"][0]["fields"][0]),
        lambda d: d["places"].append(d["places"][0]),
        lambda d: d.update(places=[]),
        lambda d: d.update(version=3),
        lambda d: d.update(version=2, key=7),
        lambda d: d.update(version=2, key=""),
        lambda d: d["places"][0].update(values=[]),
        lambda d: d["places"][0].update(values={"file": "rank_0.twm", "bytes": 1, "xxh3": "0" * 16}),
        lambda d: d["places"][0].update(values={"file": "../x.twv", "bytes": 1, "xxh3": "0" * 16}),
        lambda d: (d.update(version=2), d["places"][0].update(by_id=True)),
        lambda d: (d.update(version=2), d["places"][0].update(by_id=1)),
        lambda d: (d.update(version=2), d["places"][0]["fields"][0].update(ulp=-1)),
        lambda d: (d.update(version=2), d["places"][0]["fields"][0].update(ulp=True)),
        lambda d: (d.update(version=2), d["places"][0]["fields"][0].update(period=[1.0] * 5)),
        lambda d: (d.update(version=2), d["places"][0]["fields"][0].update(period=["1"])),
        lambda d: (d.update(version=2), d["places"][0]["fields"][0].update(nan_differs=1)),
        lambda d: (d.update(version=2), d["places"][0]["fields"][0].update(key="id")),
        lambda d: d.update(version=True),
        lambda d: d.update(format="else"),
        lambda d: d.update(residue_bits=3),
        lambda d: d.update(chosen_fields="x"),
        lambda d: d.update(chosen_steps=7),
    ]  # fmt: skip
    for change in wrong:
        with pytest.raises(twinrun.TwinrunError):
            parsed(change)


def test_fields_that_the_manifest_does_not_tell_are_an_error(tmp_path: Path) -> None:
    golden.save({"x": np.arange(4.0)}, tmp_path / "one")
    golden.save({"y": np.arange(4.0)}, tmp_path / "two")
    from twinrun.golden.manifest import _checksum, checksum

    other = (tmp_path / "two" / "rank_0.twm").read_bytes()
    (tmp_path / "one" / "rank_0.twm").write_bytes(other)
    d = json.loads((tmp_path / "one" / "golden.json").read_text())
    d.pop("checksum")
    d["places"][0].update(xxh3=checksum(other), bytes=len(other))
    (tmp_path / "one" / "golden.json").write_text(json.dumps({**d, "checksum": _checksum(d)}))
    result = golden.check(tmp_path / "one", {"x": np.arange(4.0)})
    assert result.status == 2 and "other fields than golden.json says" in result.problems[0].text


def test_a_step_that_is_not_there_is_not_saved(runs: Path, tmp_path: Path) -> None:
    """Nothing is written: neither a folder, nor over golden files of before."""
    for steps, missing in (("10,11", "11"), ("11", "11"), ("9,10,12", "9, 12"), ("10:20,12", "12")):
        for target in (tmp_path / "new" / "golden", tmp_path / "old"):
            if target.name == "old":
                golden.save(runs / "a", target)
            before = {p: p.read_bytes() for p in target.rglob("*")}
            done = command("golden", "save", runs / "a", "-o", target, "--steps", steps)
            check_error(done, f"has no step {missing}: nothing was saved")
            assert {p: p.read_bytes() for p in target.rglob("*")} == before
            assert not (tmp_path / "new").exists()


def test_a_check_does_not_say_that_nothing_was_saved(tmp_path):
    names = []
    for name, steps in (("a", (1, 2)), ("b", (1,))):
        names.append(tmp_path / name)
        with twinrun.Run(names[-1]) as run:
            for step in steps:
                run.capture(step, {"x": np.zeros(4)})
    golden.save(names[0], tmp_path / "g", steps="1,2")
    with pytest.raises(twinrun.Incomparable, match="has no step 2: nothing was compared"):
        golden.check(tmp_path / "g", names[1])


def test_golden_files_do_not_lie_in_the_run(tmp_path: Path) -> None:
    """Each later check would find them among the files of its run."""
    run = tmp_path / "run"
    run.mkdir()
    np.save(run / "x.npy", np.zeros(3))
    check_error(command("golden", "save", run, "-o", run / "golden"), "which is read here", "--output")
    assert [f.name for f in run.iterdir()] == ["x.npy"]
    golden.save(run, tmp_path / "golden")
    assert golden.check(tmp_path / "golden", run).same


@pytest.mark.parametrize("name", ["golden.json", "step_1_rank_0.twm", "step_1_rank_0.twv"])
def test_a_file_that_git_lfs_keeps_elsewhere_is_named(name: str, tmp_path: Path) -> None:
    """To save again would replace what is right, and only not there."""
    target, run = tmp_path / "golden", tmp_path / "run"
    with twinrun.Run(run) as r:
        r.capture(1, {"x": np.arange(9.0)})
    golden.save(run, target)
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 1234\n"
    (target / name).write_text(pointer)
    try:
        found = golden.check(target, run)
    except twinrun.TwinrunError as e:
        said = str(e)
    else:
        assert not found.same
        said = str(found)
    assert f"{name}: is not the file itself" in said and "git lfs pull" in said


def some_steps(path: Path, *, ids: bool = False, named: tuple[int, ...] = (2,)) -> Path:
    """A folder of steps 1 to 3, of which only some have the field `only`."""
    path.mkdir()
    for step in (1, 2, 3):
        fields = {"id": np.arange(4), "x": np.arange(4.0)} if ids else {"x": np.arange(4.0)}
        fields |= {"only": np.arange(4.0) + step} if step in named else {}
        np.savez(path / f"out_{step}.npz", **fields)
    return path


@pytest.mark.parametrize("ids", [False, True])
def test_a_field_that_only_some_steps_have_is_saved_there(tmp_path: Path, ids: bool) -> None:
    key = ("--key", "id") if ids else ()
    run = some_steps(tmp_path / "run", ids=ids)
    save = ("golden", "save", run, "-o", tmp_path / "g", "--field", "only", *key)
    answer = command(*save)
    assert answer.status == 0, answer.err
    assert "note: the run has no field that matches 'only' at steps 1, 3" in answer.out
    result = golden.check(tmp_path / "g", run)
    assert result.same and {f.step for f in result.fields} == {2}
    assert golden.check(tmp_path / "g", run, steps="2", fields="only").same
    for n, named in enumerate([(), (1, 2), (2, 3), (1, 2, 3), (1,)]):
        other = golden.check(tmp_path / "g", some_steps(tmp_path / f"b{n}", ids=ids, named=named))
        assert other.status == 2
        assert {p.step for p in other.problems if p.field == "only"} >= {*named} ^ {2}, other.problems
    assert command(*save, "--field", "typo").status == 2
    assert command("golden", "check", tmp_path / "g", run, "--steps", "1").status == 2


def test_a_key_of_a_check_meets_steps_without_the_named_field(tmp_path: Path) -> None:
    run = some_steps(tmp_path / "run", ids=True)
    golden.save(run, tmp_path / "g", fields=["id*", "only"], steps="2,3")
    golden.save(run, tmp_path / "h", fields=["only", "id"], steps="2,3")
    for folder in "gh":
        assert golden.check(tmp_path / folder, run, key="id").same
    os.remove(run / "out_3.npz")
    np.savez(run / "out_3.npz", y=np.zeros(2))
    golden.save(run, tmp_path / "g", fields=["only", "id"], steps="2,3")
    assert golden.check(tmp_path / "g", run, key="id").same


def test_a_step_whose_fields_are_left_out_is_still_refused(tmp_path: Path) -> None:
    run = some_steps(tmp_path / "run")
    with pytest.raises(twinrun.Incomparable, match="step 2, rank 0: no field to save"):
        golden.save(run, tmp_path / "g", fields=["only"], keep=lambda step, name: False)
    with pytest.raises(twinrun.Incomparable, match="no field to save"):
        golden.save(run, tmp_path / "g", fields=())


def test_the_fields_of_the_chosen_steps_are_named(tmp_path: Path) -> None:
    run = some_steps(tmp_path / "run")
    golden.save(run, tmp_path / "g")
    for fields in (["x", "only"], ["only"]):
        (problem,) = golden.check(tmp_path / "g", run, fields=fields, steps="1,3").problems
        assert problem.text == "no field that matches 'only'; the golden files have 'x' at these steps"
    golden.save(run, tmp_path / "g", fields=["only"])
    (problem,) = golden.check(tmp_path / "g", run, steps="1").problems
    assert problem.text == "no field to check; the golden files have no field at these steps"
