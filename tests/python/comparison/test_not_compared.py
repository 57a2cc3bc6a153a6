"""What cannot be compared is said, or refused: it never passes silently."""

from __future__ import annotations

import copy
import os
from pathlib import Path

import h5py
import numpy as np
import pytest
from commands import command, load_json

import twinrun
from twinrun import golden
from twinrun.comparison.words import verdict_line
from twinrun.errors import Uncompared
from twinrun.report import document
from twinrun.runs.opening import open_subject


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Files that are the same, as far as they can be compared: both have a link that leads nowhere."""
    for name in ("a", "b"):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["x"] = np.arange(5.0)
            file["gone"] = h5py.ExternalLink("gone.h5", "/y")
    return tmp_path / "a.h5", tmp_path / "b.h5"


def test_what_cannot_be_compared_makes_the_verdict(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(Uncompared, match="'gone' cannot be compared: a link to"):
        twinrun.compare(*pair)
    result = twinrun.compare(*pair, partial=True)
    assert result.verdict == "incomparable" and result.not_compared == 2 and len(result.problems) == 1
    assert document(result)["not_compared"] == 2 and document(result)["problems"] == result.problems
    done = command("compare", *pair, "--json", tmp_path / "r.json")
    assert done.status == 2 and done.last.startswith("incomparable: 1 thing could not be compared: ")
    assert load_json((tmp_path / "r.json").read_text())["verdict"] == "incomparable"
    quiet = command("compare", *pair, "-q")
    assert quiet.status == 2 and not quiet.out and "'gone'" in quiet.err


def test_rules_and_common_leave_it_out(pair: tuple[Path, Path], tmp_path: Path) -> None:
    common = twinrun.compare(*pair, common=True)
    assert common.same and common.not_compared == 2 and "not compared: 2 things" in verdict_line(common)
    assert any("'gone'" in note for note in common.notes)
    for options in ({"fields": ["x"]}, {"leave_out": ["gone"]}, {"leave_out": "g*"}):
        left_out = twinrun.compare(*pair, **options)
        assert left_out.same and left_out.not_compared == 0, options
    rules = tmp_path / "rules.toml"
    rules.write_text('[[tolerance]]\nfield = "gone"\nskip = true\n')
    assert command("compare", *pair, "--tolerances", rules).status == 0
    assert command("compare", *pair, "--leave-out", "gone").status == 0
    assert command("compare", *pair, "--leave-out", "other").status == 2


def test_metadata_knows_of_it(pair: tuple[Path, Path]) -> None:
    twinrun.index(*pair)
    assert command("compare", *pair).status == 2
    for path in pair:
        path.unlink()
    metadata = [f"{path}.twm" for path in pair]
    assert command("compare", *metadata).status == 2
    assert command("compare", *metadata, "--common").status == 0


def test_golden_files_refuse_it(pair: tuple[Path, Path], tmp_path: Path) -> None:
    kept = tmp_path / "golden"
    with pytest.raises(Uncompared, match="'gone' cannot be compared"):
        golden.save(pair[0], kept)
    golden.save(pair[0], kept, leave_out=["gone"])
    assert golden.check(kept, pair[1]).same
    with h5py.File(pair[1], "a") as file:
        file["lost"] = h5py.SoftLink("/none")
    result = golden.check(kept, pair[1])
    assert result.status == 2 and [p.field for p in result.problems] == ["lost"]


def test_files_that_are_none(tmp_path: Path) -> None:
    for run in "ab":
        (tmp_path / run).mkdir()
        np.save(tmp_path / run / "x_1.npy", np.arange(3))
        (tmp_path / run / "link").symlink_to("nowhere")
    done = command("compare", tmp_path / "a", tmp_path / "b")
    assert done.status == 2 and "a link that leads nowhere" in done.last
    assert command("compare", tmp_path / "a", tmp_path / "b", "--leave-out", "link").status == 0
    kept = tmp_path / "golden"
    with pytest.raises(Uncompared, match="leads nowhere"):
        golden.save(tmp_path / "a", kept)
    golden.save(tmp_path / "a", kept, leave_out=["link"])
    assert golden.check(kept, tmp_path / "b").same


def test_unknown_files_are_compared_byte_by_byte(tmp_path: Path) -> None:
    for run in "ab":
        for step in (1, 2):
            folder = tmp_path / run / f"step-{step}"
            folder.mkdir(parents=True)
            np.save(folder / "x.npy", np.arange(3.0) + step)
        (tmp_path / run / "log.txt").write_text("begin\nand one\n")
    a, b = tmp_path / "a", tmp_path / "b"
    same = twinrun.compare(a, b)
    assert same.same and any("log.txt is compared as bytes" in note for note in same.notes)
    (b / "log.txt").write_text("begin\nand 0ne\n")
    done = command("compare", a, b, "--atol", "100", "--tolerate-integers")
    assert done.status == 1 and done.last == "different: first at log.txt[10]: 111 against 48"
    for options in (("--leave-out", "*.txt"), ("--steps", "1:2"), ("--field", "x")):
        assert command("compare", a, b, *options).status == 0, options
    golden.save(a, tmp_path / "golden")
    assert golden.check(tmp_path / "golden", b).verdict == "different"
    facts = twinrun.index(a)
    assert [Path(f.path).name for f in facts] == ["x.npy", "x.npy"] and not (a / "log.txt.twm").exists()
    assert twinrun.compare(a, b, leave_out=["log.txt"]).same
    arrays = {"x": np.arange(3.0) + 1}
    assert twinrun.compare(a, arrays, steps="1").same


def test_a_name_that_is_not_utf8_is_said_once(tmp_path: Path) -> None:
    """Such a file is not compared, and no note says that it is."""
    for name in "ab":
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "x.npy", np.zeros(3))
        (tmp_path / name / "x.bin").write_bytes(b"text")
        Path(os.fsdecode(os.fsencode(tmp_path / name) + b"/\xff.bin")).write_bytes(b"text")
    found = twinrun.compare(tmp_path / "a", tmp_path / "b", partial=True)
    assert found.verdict == "incomparable" and len(found.problems) == 2
    assert all("its name is not UTF-8" in problem for problem in found.problems)
    assert [note.split(" ")[0] for note in found.notes] == [f"{tmp_path}/{name}/x.bin" for name in "ab"]


def test_files_of_any_kind_alone(tmp_path: Path) -> None:
    for run in "ab":
        (tmp_path / run).mkdir()
        (tmp_path / run / "x.xyz").write_bytes(bytes(range(100)))
        (tmp_path / run / "t.txt").write_text("a text")
    a, b = tmp_path / "a", tmp_path / "b"
    for part in ("", "x.xyz"):
        done = command("compare", a / part, b / part)
        assert done.status == 2 and "format" in done.err
        assert command("compare", a / part, b / part, "--format", "bytes").status == 0
    assert command("compare", a / "t.txt", b / "t.txt").status == 0
    (b / "x.xyz").write_bytes(bytes(100))
    for part in ("", "x.xyz"):
        assert command("compare", a / part, b / part, "--format", "bytes").status == 1
    for run in "cd":
        (tmp_path / run).mkdir()
    assert command("compare", tmp_path / "c", tmp_path / "d", "--format", "bytes").status == 2


def test_masked_elements_are_not_those_of_a_plain_array() -> None:
    masked = np.ma.masked_array([1.0, 2.0], mask=[False, True])
    assert twinrun.compare(masked, np.array([1.0, 2.0])).verdict == "different"
    unmasked = np.ma.masked_array([1.0, 2.0], mask=False)
    assert twinrun.compare(unmasked, np.array([1.0, 2.0])).same


def test_appending_with_another_keep_data_is_refused(tmp_path: Path) -> None:
    with twinrun.Run(tmp_path / "run", atol=1e-3) as run:
        run.capture(1, {"x": np.arange(5.0)})
    with pytest.raises(twinrun.TwinrunError, match="other settings"):
        twinrun.Run(tmp_path / "run", atol=1e-3, keep_data=False, existing="append")


def test_what_cannot_be_compared_in_one_run_is_there(pair: tuple[Path, Path]) -> None:
    """It is not called missing, and neither is what would lie within it."""
    with h5py.File(pair[1], "a") as file:
        del file["gone"]
        file["gone/deep"] = np.arange(3.0)
    for a, b in (pair, pair[::-1]):
        result = twinrun.compare(a, b, partial=True)
        assert len(result.problems) == 1 and "'gone' cannot be compared" in result.problems[0]
        assert "not there" not in verdict_line(result)
        # nothing says why where the link was not asked for
        with pytest.raises(twinrun.TwinrunError, match=r"field 'gone/deep' of .*: not there"):
            twinrun.compare(a, b, fields=["gone/*"])


def test_steps_of_a_run_without_any(tmp_path: Path) -> None:
    for name, steps in (("a", (3, 5)), ("b", ()), ("c", (4, 6))):
        with twinrun.Run(tmp_path / name) as run:
            for step in steps:
                run.capture(step, {"x": np.arange(3.0)})
    a, b, c = (tmp_path / name for name in "abc")
    for pair in ((a, b), (b, a)):
        with pytest.raises(
            twinrun.TwinrunError, match=r"steps 3, 5 of .*: not there; it has no steps: none was"
        ):
            twinrun.compare(*pair)
    with pytest.raises(twinrun.TwinrunError, match=r"count their steps otherwise"):
        twinrun.compare(a, c)
    with pytest.raises(twinrun.TwinrunError, match=r"step 3 of .*: not there; compare the common ones"):
        twinrun.compare(a, c, steps="3")
    journal = (a / "manifest.jsonl").read_bytes()
    (a / "manifest.jsonl").write_bytes(journal.splitlines(keepends=True)[0])
    with pytest.raises(twinrun.TwinrunError, match=r"steps 4, 6 of .* no journal names them"):
        twinrun.compare(c, a)


def test_records_of_other_files_are_restored_first(tmp_path: Path) -> None:
    for step in (3, 5):
        (tmp_path / "run" / f"step-{step}").mkdir(parents=True)
        np.save(tmp_path / "run" / f"step-{step}" / "x.npy", np.arange(3.0))
        (tmp_path / "run" / f"step-{step}" / "notes.txt").write_text("one")
    record, back = tmp_path / "record", tmp_path / "back"
    twinrun.pack(tmp_path / "run", record)
    twinrun.restore(record, back)
    for pair in ((record, back), (back, record), (record, record), (tmp_path / "run", record)):
        with pytest.raises(twinrun.FormatError, match="record: holds packed files of another program"):
            twinrun.compare(*pair)


def test_a_chosen_step_that_no_run_has(tmp_path: Path) -> None:
    for run in "ab":
        (tmp_path / run).mkdir()
        np.save(tmp_path / run / "x_1.npy", np.arange(3))
    pair = tmp_path / "a", tmp_path / "b"
    with pytest.raises(twinrun.TwinrunError, match="step 7: not there"):
        twinrun.compare(*pair, steps="1,7")
    assert twinrun.compare(*pair, steps="1,5:9").same  # a span names none
    common = twinrun.compare(*pair, steps="1,7", common=True)
    assert common.same and any("step 7" in note for note in common.notes)
    twinrun.golden.save(pair[0], tmp_path / "G")
    assert twinrun.golden.check(tmp_path / "G", pair[1], steps="1").same
    assert twinrun.golden.check(tmp_path / "G", pair[1], steps="1,7").status == 2


def _empty_hdf5(path: Path) -> None:
    h5py.File(path, "w").close()


def _empty_zip(path: Path) -> None:
    np.savez(path)


def _empty_netcdf(path: Path) -> None:
    path.write_bytes(b"CDF\x01" + bytes(28))


def _empty_safetensors(path: Path) -> None:
    path.write_bytes((2).to_bytes(8, "little") + b"{}")


def _empty_zarr(path: Path) -> None:
    path.mkdir()
    (path / ".zgroup").write_text('{"zarr_format": 2}')


def _empty_parquet(path: Path) -> None:
    pytest.importorskip("pyarrow.parquet").write_table(pytest.importorskip("pyarrow").table({}), path)


EMPTY = {
    "e.h5": _empty_hdf5,
    "e.npz": _empty_zip,
    "e.nc": _empty_netcdf,
    "e.safetensors": _empty_safetensors,
    "e.zarr": _empty_zarr,
    "e.parquet": _empty_parquet,
}


@pytest.mark.parametrize("name", EMPTY)
def test_a_file_without_fields_that_one_run_has(name: str, tmp_path: Path) -> None:
    a, b = tmp_path / "a" / "step-1", tmp_path / "b" / "step-1"
    for folder in (a, b):
        folder.mkdir(parents=True)
        np.save(folder / "x.npy", np.arange(3.0))
    EMPTY[name](b / name)
    golden.save(a.parent, tmp_path / "golden")
    for pair in ((a.parent, b.parent), (b.parent, a.parent)):
        with pytest.raises(twinrun.Incomparable, match=name):
            twinrun.compare(*pair)
    assert twinrun.compare(a.parent, b.parent, common=True)
    assert twinrun.compare(a.parent, b.parent, leave_out=[name])
    assert golden.check(tmp_path / "golden", b.parent).verdict != "same"
    EMPTY[name](a / name)
    assert twinrun.compare(a.parent, b.parent)
    golden.save(a.parent, tmp_path / "both")
    assert golden.check(tmp_path / "both", b.parent).verdict == "same"


@pytest.mark.parametrize("kind", ["hdf5", "table", "type", "memory"])
def test_common_with_no_field_in_common(kind: str, tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    if kind == "hdf5":
        for path, name in ((a, "x"), (b, "y")):
            with h5py.File(path, "w") as file:
                file[name], file.attrs["t"] = np.ones(3), 1
    elif kind == "table":
        pytest.importorskip("pandas")
        a, b = tmp_path / "a.csv", tmp_path / "b.csv"
        a.write_text("x,z\n1,2\n")
        b.write_text("y,w\n1,2\n")
    elif kind == "type":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        pq.write_table(pa.table({"x": [1, 2]}), a)
        pq.write_table(pa.table({"x": ["1", "2"]}), b)
    else:
        a, b = {"x": np.ones(3)}, {"y": np.ones(3)}  # type: ignore[assignment]
    for partial in (False, True):
        with pytest.raises(twinrun.Incomparable, match="nothing was compared"):
            twinrun.compare(a, b, common=True, partial=partial)
    if kind == "hdf5":
        assert command("compare", a, b, "--common").status == 2


@pytest.mark.parametrize("beside", ["attribute", "empty group", "attribute of a group"])
def test_attributes_alone_are_no_comparison_of_files_with_fields(beside: str, tmp_path: Path) -> None:
    for name, value in (("a", 0.0), ("b", 1.0)):
        for fields in (("T",), ()):
            with h5py.File(tmp_path / f"{name}{len(fields)}.h5", "w") as file:
                for field in fields:
                    file[field] = np.full(3, value)
                where = file if beside == "attribute" else file.create_group("g")
                if beside != "empty group":
                    where.attrs["k"] = 1
    rules = tmp_path / "rules.toml"
    rules.write_text('[[tolerance]]\nfield = "T"\nskip = true\n')
    a, b = tmp_path / "a1.h5", tmp_path / "b1.h5"

    def check_refused(a: Path, b: Path) -> None:
        for options in (["--leave-out", "T"], ["--leave-out", "T", "--common"], ["--tolerances", rules]):
            said = command("compare", a, b, *options)
            assert said.status == 2 and "nothing was compared" in said.err, options

    check_refused(a, b)
    check_refused(a, tmp_path / "b0.h5")
    twinrun.index(a, b)
    check_refused(a, b)
    check_refused(tmp_path / "a1.h5.twm", tmp_path / "b1.h5.twm")
    only = tmp_path / "a0.h5", tmp_path / "b0.h5"  # nothing but attributes is what they hold
    assert twinrun.compare(*only).same and twinrun.compare(*only, leave_out=["T"]).same


def test_comparing_changes_nothing_of_opened_runs(tmp_path: Path) -> None:
    """Notes, things that are left out and dropped places are of a comparison, not of the runs."""
    for run in "ab":
        (tmp_path / run).mkdir()
        np.save(tmp_path / run / "x.1.npy", np.zeros(3))
        with h5py.File(tmp_path / run / "links.1.h5", "w") as file:
            file["gone"] = h5py.SoftLink("/nowhere")
        (tmp_path / run / "log.txt").write_text(f"{run} was here")
        twinrun.index(tmp_path / run / "x.1.npy")
        os.utime(tmp_path / run / "x.1.npy", (1, 1))
    a, b = (open_subject(tmp_path / run) for run in "ab")
    before = [copy.deepcopy((s.notes, s.places, s.skipped)) for s in (a, b)]
    found = [twinrun.compare(a, b, common=True, fields=["x", "gone"]) for _ in range(2)]
    assert found[0].notes == found[1].notes and any("touched" in note for note in found[0].notes)
    assert found[0].not_compared == found[1].not_compared == 2
    assert [(s.notes, s.places, s.skipped) for s in (a, b)] == before


@pytest.mark.parametrize(
    "settings",
    [{}, {"common": True}, {"partial": True}, {"fields": ["x"]}, {"fields": ["x"], "common": True}],
)
def test_no_value_is_no_number(settings: dict) -> None:
    """A masked element holds some number; that the other run has that very number says nothing."""
    a = {"x": np.ma.masked_array([1.0, 0.0, 3.0], [False, True, False]), "y": np.ones(3)}
    b = {"x": np.ma.masked_array([1.0, 0.0, 3.0], False), "y": np.ones(3)}
    for one, other in ((a, b), (b, a)):
        found = twinrun.compare(one, other, **settings)
        assert found.verdict == "different" and not found.problems
        told = {
            f.field: (f.different, f.first_index, f.first_a, f.first_b) for f in found.fields if not f.same
        }
        values = (1, 0) if one is a else (0, 1)
        assert told == {"x@mask": (1, (1,), *values)}


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("atol", [0.0, 10.0])
def test_where_one_run_has_no_value_no_distance_is_told(tmp_path: Path, kept: bool, atol: float) -> None:
    """What is stored in the place of a value means nothing, also where it is the farthest and not the first."""
    runs = {
        "a": [1.0, 2.0, 0.0, 4.0],  # the last two have no value
        "b": [1.0, 2.5, 1e9, 4.0],
    }
    sides: list[Path] = []
    for name, values in runs.items():
        mask = [False, False, name == "a", name == "a"]
        with twinrun.Run(tmp_path / name, keep_data=kept, atol=atol) as run:
            run.capture(1, {"x": np.ma.masked_array(values, mask) if name == "a" else np.array(values)})
        sides.append(tmp_path / name)
    for one, other in (sides, sides[::-1]):
        if not kept:  # digests do not say which values lack, nor that any does
            with pytest.raises(
                twinrun.Incomparable, match="'x@mask': only in .*, and no value is known to lack"
            ):
                twinrun.compare(one, other)
            continue
        found = twinrun.compare(one, other, partial=True)
        assert found.verdict == "different"
        told = {f.field: f for f in found.fields}
        assert told["x@mask"].different == 2
        assert (told["x"].different, told["x"].kind) == (1 if atol else 3, "value")
        assert told["x"].max_abs_diff is None and told["x"].first_abs_diff is None


@pytest.mark.parametrize("dtype", ["U1", "S1", object])
@pytest.mark.parametrize(
    "options", [{}, {"common": True}, {"partial": True}, {"fields": "x"}, {"fields": "x@text"}]
)
def test_a_text_that_one_run_lacks_is_no_empty_text(dtype: object, options: dict) -> None:
    a = {"x": np.ma.masked_array(np.array(["u", "v"], dtype), [True, False]), "y": np.ones(2)}
    for words in (["", "v"], ["u", "v"]):
        b = {"x": np.array(words, dtype), "y": np.ones(2)}
        for one, other in ((a, b), (b, a)):
            assert twinrun.compare(one, other, **options).verdict == "different"
    assert twinrun.compare(a, a, **options).same


@pytest.mark.parametrize("options", [{}, {"common": True}, {"key": "id"}])
def test_a_mask_by_which_nothing_lacks_is_a_field_like_any_other(tmp_path: Path, options: dict) -> None:
    """A run that has such a data set and one that has none are not the same. Nor are those with other texts."""
    base = {"id": np.arange(3), "x": np.arange(3.0)}
    for name, more in (
        ("plain", {}),
        ("mask", {"x@mask": np.zeros(3, bool)}),
        ("numbers", {"x@mask": np.ones(3)}),
        ("text", {"x@text": np.zeros(3)}),
    ):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            for field, values in (base | more).items():
                file[field] = values
    for name in ("mask", "numbers", "text"):
        for pair in ((name, "plain"), ("plain", name)):
            a, b = (tmp_path / f"{one}.h5" for one in pair)
            if name == "text" and options.get("common"):
                assert twinrun.compare(a, b, **options).notes  # what the caller asked for
                continue
            found = twinrun.compare(a, b, partial=True, **options)
            assert found.verdict == "incomparable", (name, pair)
            assert any(f"x@{'text' if name == 'text' else 'mask'}" in str(p) for p in found.problems)


def test_choosing_a_field_chooses_where_it_has_values(tmp_path: Path) -> None:
    """In metadata, golden files, sketches and distributions, too: what stands in the place of a value is 0."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for name, x in (("zero", [0.0, 1, 2]), ("lacks", [None, 1.0, 2.0])):
        pq.write_table(pa.table({"x": pa.array(x, pa.float64())}), tmp_path / f"{name}.parquet")
    zero, lacks = (tmp_path / f"{name}.parquet" for name in ("zero", "lacks"))
    for one, other in ((zero, lacks), (lacks, zero)):
        assert twinrun.compare(one, other, fields="x").verdict == "different"
        golden = tmp_path / f"golden-{one.stem}"
        twinrun.golden.save(one, golden, fields="x")
        assert not twinrun.golden.check(golden, other).same
        assert twinrun.golden.check(golden, one).same
    for side in (zero, lacks):
        twinrun.index(side, fields="x")
    assert twinrun.compare(f"{zero}.twm", f"{lacks}.twm", fields="x").verdict == "different"
    masked = np.ma.masked_array([5.0, 1, 2], [True, False, False])
    with pytest.raises(twinrun.Incomparable, match="x@mask"):
        twinrun.sketch({"x": masked}).compare(twinrun.sketch({"x": np.array([0.0, 1, 2])}), fields="x")


@pytest.mark.parametrize("kind", ["history", "folder"])
def test_a_name_that_no_run_has_is_said(tmp_path: Path, kind: str) -> None:
    """y is only at steps 0 and 2, in both runs."""
    sides = [tmp_path / "a", tmp_path / "b"]
    for side in sides:
        fields = [{"x": np.arange(5.0)} | ({"y": np.zeros(3)} if step % 2 == 0 else {}) for step in range(4)]
        if kind == "history":
            with twinrun.Run(side) as run:
                for step, own in enumerate(fields):
                    run.capture(step, own)
        else:
            side.mkdir()
            for step, own in enumerate(fields):
                np.savez(side / f"out_{step}.npz", **own)
    name = "y"
    some = twinrun.compare(
        *sides, fields=name, options=twinrun.CompareOptions(threads=1 if kind == "folder" else 2)
    )
    assert some.same and {f.step for f in some.fields} == {0, 2}
    assert f"neither run has a field that matches {name!r} at step 1 and 1 more place" in some.notes
    with pytest.raises(twinrun.Incomparable, match="no field of either run matches 'typo'"):
        twinrun.compare(*sides, fields=[name, "typo"])
    found = twinrun.compare(*sides, fields=[name, "typo"], partial=True)
    assert found.verdict == "incomparable" and len(found.problems) == 1
    with pytest.raises(twinrun.Incomparable, match="no field that matches 'typo'"):
        twinrun.compare(*sides, fields="typo")
    other = twinrun.compare(*sides, fields=[name, "*x"])
    assert other.same and not any("neither run" in note for note in other.notes)


def test_ids_that_are_asked_for_by_name_are_met() -> None:
    a = {"id": np.arange(4), "x": np.zeros(4)}
    b = {"id": np.arange(4)[::-1].copy(), "x": np.zeros(4)}
    assert twinrun.compare(a, b, key="id", fields=["id", "x"]).same


def test_a_field_is_chosen_with_what_says_something_of_it(tmp_path: Path) -> None:
    """Also where its attributes are fields, and where the name of another field has an @ within it."""
    for name, scale in (("a", 1.0), ("b", 2.0)):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["T"] = np.arange(4.0)
            file["T"].attrs["scale_factor"] = scale
            file["T@2/x"] = np.zeros(2)
            file["U"] = np.zeros(2)
    files = tmp_path / "a.h5", tmp_path / "b.h5"
    for options in ({}, {"attributes": True}):
        assert (
            twinrun.compare(*files, fields="T", options=twinrun.CompareOptions(formats=options)).verdict
            == "different"
        )
        assert twinrun.compare(*files, fields="U", options=twinrun.CompareOptions(formats=options)).same
        golden.save(files[0], tmp_path / f"golden{len(options)}", fields="T", options=options)
        result = golden.check(tmp_path / f"golden{len(options)}", files[1], options=options)
        assert result.verdict == "different"
    chosen = twinrun.compare(
        files[0], files[0], fields="T", options=twinrun.CompareOptions(formats={"attributes": True})
    )
    assert [f.field for f in chosen.fields] == ["T", "T@scale_factor"]


def test_advice_where_all_that_was_asked_for_is_left_out() -> None:
    a = {"x": np.zeros(3), "y": np.zeros(3)}
    with pytest.raises(twinrun.Incomparable, match="every field that matches 'x' is left out; ask for"):
        twinrun.compare(a, a, fields="x", leave_out=["x"])


def test_no_tolerance_is_named_where_something_cannot_be_compared() -> None:
    a, b = {"x": np.zeros(3), "y": np.zeros(3)}, {"x": np.ones(3), "y": np.zeros(4)}
    assert "would pass" not in str(twinrun.compare(a, b, partial=True))
