"""What files say beside their elements: compared, reported apart, and left out only by a rule; in every way to compare."""

from __future__ import annotations

import shutil
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from commands import command, load_json
from many_ranks import ManyRanks

import twinrun
from twinrun import golden
from twinrun.comparison.attributes import AttributeDifference
from twinrun.formats.facts import Fact, code, codes, encoded, shown


def write(path: Path, x: object = (1, 2, 3), **attributes: object) -> Path:
    """A file with attributes of x; those of the file begin with `file_`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file["x"] = np.asarray(x)
        file["y"] = np.arange(4.0)
        for name, value in attributes.items():
            (file if name.startswith("file_") else file["x"]).attrs[name.removeprefix("file_")] = value
    return path


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    a = write(tmp_path / "a.h5", units="m", note="one", file_history="now")
    b = write(tmp_path / "b.h5", units="km", note="one", file_history="then")
    return a, b


def test_meaning_comes_first_and_both_values_are_told(pair: tuple[Path, Path]) -> None:
    result = twinrun.compare(*pair)
    assert result.verdict == "different" and not result.same and result.different == 0
    assert result.first is None and result.first_divergence is None
    assert result.attributes == [
        AttributeDifference(None, 0, "x", "units", "'m'", "'km'", True),
        AttributeDifference(None, 0, "", "history", "'now'", "'then'", False),
    ]
    assert result.attributes_compared == 3
    said = command("compare", *pair)
    assert said.status == 1 and "attributes: 2 of 3 differ" in said.out
    assert "x@units: 'm' against 'km' (changes what its numbers mean)" in said.out
    assert said.last == (
        "different: all elements agree, attributes do not: x@units: 'm' against 'km' (and 1 more)"
    )


def test_no_attribute_changes_the_meaning_of_texts(tmp_path: Path) -> None:
    for name, unit in (("a", "m"), ("b", "km")):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["number"] = [1.0]
            file["fixed"] = np.array([b"x", b"y"])
            file["any"] = np.array(["x", "y"], h5py.string_dtype())
            for owner in file.values():
                owner.attrs["units"] = unit
    said = command("compare", tmp_path / "a.h5", tmp_path / "b.h5")
    assert said.out.count("changes what its numbers mean") == 1
    for line in (
        "  number@units: 'm' against 'km' (changes what its numbers mean)\n",
        "  fixed@units: 'm' against 'km'\n",
        "  any@units: 'm' against 'km'\n",
    ):
        assert line in said.out
    assert said.status == 1


def test_every_report_tells(pair: tuple[Path, Path], tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("r.json", "r.xml", "r.html")]
    done = command("compare", *pair, "-q", "--json", files[0], "--junit", files[1], "--html", files[2])
    assert done.status == 1 and not done.out
    document = load_json(files[0].read_text())
    assert document["verdict"] == "different" and document["attributes_compared"] == 3
    assert document["attributes"][0] == {
        "step": None, "rank": 0, "owner": "x", "name": "units", "a": "'m'", "b": "'km'", "meaning": True, "attribute": "x@units",
    }  # fmt: skip
    suite = ET.parse(files[1]).getroot()
    assert suite.get("failures") == "1" and "x@units" in ET.tostring(suite, encoding="unicode")
    page = files[2].read_text()
    assert (
        '<section id="attributes">' in page and "x@units" in page and "changes what its numbers mean" in page
    )
    assert "x@units" in twinrun.compare(*pair)._repr_html_()


def test_rules_leave_attributes_out(pair: tuple[Path, Path], tmp_path: Path) -> None:
    assert command("compare", *pair, "--ignore-attribute", "history").status == 1
    assert (
        command("compare", *pair, "--ignore-attribute", "x@unit?", "--ignore-attribute", "history").status
        == 0
    )
    assert twinrun.compare(*pair, ignore_attributes=["units", "@history"]).same
    assert twinrun.compare(*pair, ignore_attributes="*").same
    assert not twinrun.compare(*pair, ignore_attributes=["y@*", "@history"]).same
    rules = tmp_path / "rules.toml"
    rules.write_text('[[tolerance]]\nattribute = ["units", "@history"]\nskip = true\n')
    result = twinrun.compare(*pair, tolerances=rules)
    assert result.same and any("left out on request" in note and "x@units" in note for note in result.notes)
    rules.write_text('[[tolerance]]\nattribute = "nothing"\nskip = true\n')
    result = twinrun.compare(*pair, tolerances=rules)
    assert not result.same and any("matched no attribute" in note for note in result.notes)
    for wrong in ('attribute = "units"\natol = 1.0', 'attribute = "units"', "attribute = 3\nskip = true"):
        rules.write_text(f"[[tolerance]]\n{wrong}\n")
        with pytest.raises(twinrun.TwinrunError, match="attribute"):
            twinrun.compare(*pair, tolerances=rules)


def test_only_what_belongs_to_chosen_fields_counts(pair: tuple[Path, Path]) -> None:
    assert twinrun.compare(*pair, fields=["y"]).same
    chosen = twinrun.compare(*pair, fields=["x"])
    assert [d.label for d in chosen.attributes] == ["x@units"]
    assert [d.label for d in twinrun.compare(*pair, leave_out=["x"]).attributes] == ["@history"]


def test_what_groups_above_chosen_fields_mean_counts(tmp_path: Path) -> None:
    def made(name: str, root: str, group: str, note: str) -> Path:
        path = tmp_path / name
        with h5py.File(path, "w") as file:
            file["T"] = file["g/T"] = np.ones(3)
            file.attrs["units"], file.attrs["note"], file["g"].attrs["units"] = root, note, group
        return path

    a, other_note = made("a.h5", "cgs", "m", "one"), made("b.h5", "cgs", "m", "two")
    root, group = made("c.h5", "SI", "m", "one"), made("d.h5", "cgs", "km", "one")
    for name in ("T", "g/T"):
        assert twinrun.compare(a, other_note, fields=[name]).same
        said = twinrun.compare(a, root, fields=[name])
        assert said.verdict == "different" and said.attributes[0].label == "@units"
        kept = tmp_path / f"golden{len(name)}"
        golden.save(a, kept, fields=[name])
        assert golden.check(kept, other_note) and not golden.check(kept, root)
    assert twinrun.compare(a, group, fields=["T"]).same
    assert twinrun.compare(a, group, fields=["g/T"]).verdict == "different"


def test_what_only_one_file_says(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.h5"), write(tmp_path / "b.h5", units="m")
    for first, second in ((a, b), (b, a)):
        (found,) = twinrun.compare(first, second).attributes
        assert {found.a, found.b} == {None, "'m'"} and "not there" in found.text()
        common = twinrun.compare(first, second, common=True)
        assert common.same and any("x@units: only in" in note for note in common.notes)


def test_numbers_may_have_tolerances_as_fields(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.h5", dt=0.5, units="m"), write(tmp_path / "b.h5", dt=0.5001, units="m")
    assert [d.label for d in twinrun.compare(a, b, atol=1.0).attributes] == ["x@dt"]
    as_fields = twinrun.compare(a, b, rtol=1e-2, options={"attributes": True})
    assert as_fields.same and "x@dt" in {f.field for f in as_fields.fields}
    assert not twinrun.compare(a, b, options={"attributes": True}).same
    assert twinrun.compare(a, b, options={"attributes": True}, leave_out=["x@dt"]).same
    assert twinrun.compare(a, b, options={"attributes": True}, ignore_attributes=["dt"]).same


def test_steps_and_ranks(tmp_path: Path) -> None:
    for run in "ab":
        for step in (1, 2):
            for rank in (0, 1):
                units = "km" if (run, step, rank) == ("b", 2, 1) else "m"
                write(tmp_path / run / f"out_{step}.rank-{rank}.h5", units=units)
    result = twinrun.compare(tmp_path / "a", tmp_path / "b")
    assert [(d.step, d.rank, d.label) for d in result.attributes] == [(2, 1, "x@units")]
    assert command("compare", tmp_path / "a", tmp_path / "b", "--steps", "1").status == 0
    last = command("compare", tmp_path / "a", tmp_path / "b").last
    assert "step 2, rank 1: x@units: 'm' against 'km'" in last


def test_metadata_takes_nothing_away(tmp_path: Path) -> None:
    """Of indexed files attributes are read from the files; where these are gone, metadata has the code of all of them.

    Rules leave out attributes of files that are at hand, whether these or their metadata are named.
    """
    names = {"a": "m", "b": "km", "c": "m"}
    for name, units in names.items():
        write(tmp_path / name / "x.h5", np.arange(100), units=units)
        twinrun.index(tmp_path / name / "x.h5")
    a, b, c = (tmp_path / name / "x.h5" for name in names)
    assert [d.label for d in twinrun.compare(a, b).attributes] == ["x@units"] and twinrun.compare(a, c).same
    assert not twinrun.index(a)[0].fresh
    metadata = [tmp_path / name / "x.h5.twm" for name in names]
    for at_hand in (True, False):
        if not at_hand:
            for path in (a, b, c):
                path.rename(path.with_suffix(".away"))
        assert command("compare", metadata[0], metadata[2]).status == 0
        # The code alone says that some attribute differs, and not whether that one counts.
        done = command("compare", metadata[0], metadata[1])
        assert done.status == (1 if at_hand else 2)
        assert ("x@units: 'm' against 'km'" if at_hand else "(attributes)") in done.last
        # A rule may leave out what differs.
        for rule in (("--ignore-attribute", "units"), ("--leave-out", "x"), ("--field", "y")):
            done = command("compare", metadata[0], metadata[1], *rule)
            assert done.status == (0 if at_hand or rule[0] == "--field" else 2), (at_hand, rule)
        assert command("compare", metadata[0], metadata[1], "--leave-out", "(attributes)").status == 0
    with pytest.raises(
        twinrun.Incomparable, match=r"only the files could say.*'\(attributes\)' with leave_out"
    ):
        twinrun.compare(metadata[0], metadata[1])
    other = write(tmp_path / "d.h5", np.arange(100), units="m")
    assert twinrun.compare(metadata[0], other).same
    assert command("compare", metadata[1], other).status == 2


def test_attributes_that_only_one_file_has_of_two_with_metadata(tmp_path: Path) -> None:
    """The verdicts are those of the files, whichever of them are named by their metadata."""
    with_units, without = write(tmp_path / "a.h5", units="m"), write(tmp_path / "b.h5")
    np.savez(tmp_path / "c.npz", x=np.array([1, 2, 3]), y=np.arange(4.0))
    for other, plain in ((without, (1, 0)), (tmp_path / "c.npz", (1, 0))):
        twinrun.index(with_units, other)
        for a, b in ((with_units, other), (other, with_units)):
            for named in ((f"{a}.twm", f"{b}.twm"), (f"{with_units}.twm", other), (a, b)):
                assert command("compare", *named).status == plain[0], named
                assert command("compare", *named, "--ignore-attribute", "units").status == plain[1], named


def test_a_file_that_was_renamed_with_its_metadata(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.h5", units="m"), write(tmp_path / "b.h5", units="km")
    twinrun.index(a, b)
    away = tmp_path / "there"
    away.mkdir()
    for path in (a, b):
        path.rename(away / path.name)
        Path(f"{path}.twm").rename(away / f"{path.name}.twm")
    result = twinrun.compare(away / "a.h5.twm", away / "b.h5.twm")
    assert [d.label for d in result.attributes] == ["x@units"]


def test_a_field_with_the_name_of_the_code_of_all_attributes(tmp_path: Path) -> None:
    """It is a field like any other: exact digests that differ decide it."""
    for name, value in (("a", 0.0), ("b", 1.0)):
        with twinrun.Run(tmp_path / name, atol=0, keep_data=False) as run:
            run.capture(1, {"(attributes)": np.full(10, value), "x": np.zeros(10)})
    found = twinrun.compare(tmp_path / "a", tmp_path / "b")
    assert found.verdict == "different" and found.first.field == "(attributes)"


def test_metadata_that_keeps_no_attributes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As older ones: what the file that it was made from said is not known."""
    a, b = write(tmp_path / "a.h5", units="m"), write(tmp_path / "b.h5", units="m")
    with monkeypatch.context() as patch:
        patch.setattr("twinrun.runs.index.summary_fields", lambda *_: [])
        twinrun.index(a)
    done = command("compare", f"{a}.twm", b)
    assert done.status == 2 and "has no attributes" in done.last
    assert command("compare", f"{a}.twm", b, "--common").status == 0
    assert command("compare", a, b).status == 0
    assert twinrun.index(a)[0].fresh and command("compare", f"{a}.twm", b).status == 0


def test_indexed_files_are_verified_with_their_attributes(tmp_path: Path) -> None:
    path = write(tmp_path / "x.h5", np.arange(100), units="m")
    with h5py.File(path, "a") as file:
        file["text"] = ["a", "b"]
        file["gone"] = h5py.SoftLink("/none")
    two_steps = tmp_path / "two.h5"
    with h5py.File(two_steps, "w") as file:
        file.attrs.update({"openPMD": "1.1.0", "basePath": "/data/%T/"})
        for step in (1, 2):
            file[f"data/{step}/x"] = np.arange(4.0)
            file[f"data/{step}/x"].attrs["unitSI"] = float(step)
    twinrun.index(path, two_steps)
    for name in (path, f"{path}.twm", two_steps, f"{two_steps}.twm"):
        assert command("verify", name).status == 0, name


def test_golden_files_keep_attributes(pair: tuple[Path, Path], tmp_path: Path) -> None:
    a, b = pair
    kept = tmp_path / "golden"
    golden.save(a, kept)
    assert golden.check(kept, a).same
    result = golden.check(kept, b)
    assert result.verdict == "different" and result.status == 1
    assert [d.label for d in result.attributes] == ["@history", "x@units"]
    done = command(
        "golden", "check", kept, b, "--json", tmp_path / "r.json", "--junit", tmp_path / "r.xml", "--github"
    )
    assert done.status == 1 and "x@units: 'm' against 'km'" in done.out
    assert load_json((tmp_path / "r.json").read_text())["attributes"][1]["attribute"] == "x@units"
    assert ET.parse(tmp_path / "r.xml").getroot().get("failures") == "1"
    assert (
        command(
            "golden", "check", kept, b, "--ignore-attribute", "units", "--ignore-attribute", "history"
        ).status
        == 0
    )
    assert command("golden", "check", kept, b, "--field", "y").status == 0
    golden.save(a, kept, ignore_attributes=["history"])
    assert [d.label for d in golden.check(kept, b).attributes] == ["x@units"]
    rules = tmp_path / "rules.toml"
    rules.write_text('[[tolerance]]\nattribute = ["units", "history"]\nskip = true\n')
    assert command("golden", "save", a, "--output", kept, "--tolerances", rules).status == 0
    assert golden.check(kept, b).same


def test_golden_files_of_an_older_twinrun(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """They know nothing of attributes: what has any was not compared with them, and what has none was."""
    from twinrun.golden.manifest import Manifest

    np.savez(tmp_path / "x.npz", x=np.arange(3))
    for run, status in ((pair[0], 2), (tmp_path / "x.npz", 0)):
        kept = tmp_path / f"golden-{status}"
        golden.save(run, kept)
        known = Manifest.read(str(kept))
        old = [replace(place, attributes=None, knows_attributes=False) for place in known.places]
        (kept / "golden.json").write_text(replace(known, places=tuple(old)).text())
        assert '"attributes"' not in (kept / "golden.json").read_text()
        result = golden.check(kept, run)
        assert result.status == status and all("save again" in p.text for p in result.problems)


def test_formats_say_what_they_can(tmp_path: Path) -> None:
    """Between two formats only what both can say is compared, and what changes the meaning of numbers."""
    np.savez(tmp_path / "x.npz", x=np.array([1, 2, 3]), y=np.arange(4.0))
    plain = write(tmp_path / "a.h5", note="one")
    result = twinrun.compare(plain, tmp_path / "x.npz")
    assert result.same and any("several formats" in note for note in result.notes)
    packed = write(tmp_path / "b.h5", scale_factor=0.5)
    assert [d.label for d in twinrun.compare(packed, tmp_path / "x.npz").attributes] == ["x@scale_factor"]
    arrays = twinrun.compare(packed, {"x": np.array([1, 2, 3]), "y": np.arange(4.0)})
    assert arrays.same and any("has no attributes" in note for note in arrays.notes)


def test_a_file_that_one_run_lacks_hides_nothing(tmp_path: Path) -> None:
    for run, names in (("a", {"RED": 0, "BLUE": 1}), ("b", {"RED": 1, "BLUE": 0})):
        path = write(tmp_path / run / "x.h5", note="one")
        with h5py.File(path, "a") as file:
            file.create_dataset("colours", data=np.array([0, 1]), dtype=h5py.enum_dtype(names))
    np.save(tmp_path / "a" / "more.npy", np.arange(3))
    runs = tmp_path / "a", tmp_path / "b"
    result = twinrun.compare(*runs, common=True, partial=True)
    assert result.verdict == "different" and [d.name for d in result.attributes] == ["(enum)"]
    assert twinrun.compare(*runs, common=True, leave_out=["*colours"]).same


def test_one_array_files_under_other_names(tmp_path: Path) -> None:
    np.save(tmp_path / "this.npy", np.array(["a", "b"]))
    np.save(tmp_path / "that.npy", np.array(["a", "b"]))
    assert twinrun.compare(tmp_path / "this.npy", tmp_path / "that.npy").same


@pytest.mark.parametrize(("kind", "wider"), [("U1", "U2"), ("S1", "S2")])
@pytest.mark.parametrize("indexed", [False, True])
def test_what_a_lone_array_says_counts_whatever_its_file_is_called(
    tmp_path: Path, kind: str, wider: str, indexed: bool
) -> None:
    for name, of in (("a", kind), ("b", wider), ("c", kind)):
        np.save(tmp_path / f"{name}.npy", np.array(["a"], of))
    if indexed:
        twinrun.index(tmp_path / "b.npy", tmp_path / "c.npy")
    (different,) = twinrun.compare(tmp_path / "a.npy", tmp_path / "b.npy").attributes
    assert (different.label, different.a, different.b) == ("a@(type)", f"'{kind}'", f"'{wider}'")
    found = twinrun.compare(tmp_path / "a.npy", tmp_path / "c.npy")
    assert found.verdict == "same" and found.attributes_compared == 1
    if indexed:  # metadata keeps what was said under the name that its file had
        assert twinrun.compare(tmp_path / "a.npy", tmp_path / "c.npy.twm").verdict == "same"
        assert twinrun.compare(tmp_path / "c.npy.twm", tmp_path / "a.npy").verdict == "same"
        assert twinrun.compare(tmp_path / "a.npy", tmp_path / "b.npy.twm").verdict == "different"


def test_a_lone_struct_is_compared_whatever_its_file_is_called(tmp_path: Path) -> None:
    kind = np.dtype([("x", "f8"), ("n", "i4")])
    np.save(tmp_path / "a.npy", np.array([(1.5, 2), (2.5, 3)], kind))
    shutil.copy(tmp_path / "a.npy", tmp_path / "b.npy")
    np.save(tmp_path / "c.npy", np.array([(1.5, 2), (2.5, 4)], kind))
    np.save(tmp_path / "d.npy", np.array([(1.5, 2), (2.5, 3)], np.dtype([("x", "f8"), ("m", "i4")])))
    same = twinrun.compare(tmp_path / "a.npy", tmp_path / "b.npy")
    assert same.verdict == "same" and {f.field for f in same.fields} == {"a.x", "a.n"}
    changed = twinrun.compare(tmp_path / "a.npy", tmp_path / "c.npy")
    assert {f.field: f.different for f in changed.fields} == {"a.x": 0, "a.n": 1}
    assert len(list(changed.differences())) == 1
    with pytest.raises(twinrun.TwinrunError, match=r"'a.n' of .*a.npy: not there"):
        twinrun.compare(tmp_path / "a.npy", tmp_path / "d.npy")


def test_alignment_by_time_has_compared_the_times(tmp_path: Path) -> None:
    text = (
        "ITEM: TIMESTEP\n{step}\nITEM: TIME\n{time!r}\nITEM: NUMBER OF ATOMS\n1\nITEM: BOX BOUNDS pp pp pp\n0 1\n0 1\n0 1\n"
        "ITEM: ATOMS id x\n1 0.5\n"
    )
    for run, late in (("a", 0.0), ("b", 1e-12)):
        steps = [(1, 0.5 + late), (2, 1.0 + late)]
        (tmp_path / f"{run}.lammpstrj").write_text("".join(text.format(step=s, time=t) for s, t in steps))
    a, b = tmp_path / "a.lammpstrj", tmp_path / "b.lammpstrj"
    assert {d.label for d in twinrun.compare(a, b).attributes} == {"@time"}
    assert twinrun.compare(a, b, align="time").same


def test_characters_of_netcdf(tmp_path: Path) -> None:
    from scipy.io import netcdf_file

    for name, word in (("a", b"hello"), ("b", b"hellO")):
        with netcdf_file(tmp_path / f"{name}.nc", "w") as file:
            file.createDimension("n", 5)
            file.createVariable("word", "c", ("n",))[:] = np.frombuffer(word, "S1")
    last = command(
        "compare", tmp_path / "a.nc", tmp_path / "b.nc", "--atol", "99", "--tolerate-integers"
    ).last
    assert last == "different: first at word[4]: 'o' against 'O'"


def test_shared_work_says_the_same(tmp_path: Path) -> None:
    for run in "ab":
        for step in (1, 2):
            write(tmp_path / run / f"out_{step}.h5", np.arange(5000), units="m" if run == "a" else "km")
    paths = tmp_path / "a", tmp_path / "b"
    alone = twinrun.compare(*paths, partial=True)
    shared = twinrun.comparison.work.compare(
        *paths, partial=True, options=twinrun.CompareOptions(team=ManyRanks(3, 1))
    )
    assert len(alone.attributes) == 2 and shared.attributes == alone.attributes
    assert shared.attributes_compared == alone.attributes_compared


def test_encoded_values_are_equal_where_the_values_are() -> None:
    same = [
        (np.array([1, 2], "<i4"), np.array([1, 2], ">i4")),
        (np.float64(0.0), np.float64(-0.0)),
        (np.array([np.nan]), -np.array([np.nan])),
        ({"a": 1, "b": [2]}, {"b": [2], "a": 1}),
        (np.array([b"a"], "S1"), np.array([b"a"], "S9")),
        (np.array(["a"], "<U1"), np.array(["a"], ">U9")),
        (np.longdouble(1), np.array(1, np.longdouble)),
    ]
    different = [
        (1, 1.0), (1, True), ("1", b"1"), ("a", ["a"]), (["ab", "c"], ["a", "bc"]), ({"a": 1}, {"a": 2}), (None, ""),
        (np.array([1, 2], "i4"), np.array([1, 2], "i8")), (np.array([1, 2]), np.array([[1, 2]])),
        (np.array([1], "i4"), np.array([1], "u4")), (np.datetime64(1, "s"), np.datetime64(1, "ms")),
        (np.zeros(1, [("a", "f4")]), np.zeros(1, [("b", "f4")])), (np.void(b"ab"), np.void(b"ab\\0")),
    ]  # fmt: skip
    for a, b in same:
        assert encoded(a) == encoded(b) and code(a) == code(b), (a, b)
    for a, b in different:
        assert encoded(a) != encoded(b) and code(a) != code(b), (a, b)
    assert codes(np.array(["a", "b", "a"])).tolist() == [code(t) for t in ("a", "b", "a")]
    deep: list = []
    deep.append(deep)
    for value in (object(), {1: object()}, np.array([object()]), deep):
        with pytest.raises(TypeError):
            Fact.of("x", "y", value)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "c8", "c16"])
def test_attributes_are_equal_where_elements_are(kind: str, tmp_path: Path) -> None:
    """-0.0, NaNs with other signs and payloads, those that signal too: the verdict on attributes is that on the field."""
    h5py = pytest.importorskip("h5py")
    real = np.zeros(1, kind).real.dtype
    top = {"f2": 0x7C00, "f4": 0xFF << 23, "f8": 0x7FF << 52}[real.str[1:]]  # of infinity
    sign, quiet = 1 << 8 * real.itemsize - 1, top | top >> 1
    numbers = [quiet, sign | quiet | 7, top | 1, 0, sign, top, 1]
    values = np.array(numbers, f"u{real.itemsize}").view(real)

    def array(at: int) -> np.ndarray:
        made = np.zeros(3, kind)
        made.real[1:2] = values[at : at + 1]
        if kind[0] == "c":
            made.imag[:1] = values[at : at + 1]
        return made

    for i in range(len(values)):
        for j in range(len(values)):
            a, b = array(i), array(j)
            same = twinrun.compare({"x": a}, {"x": b}).same
            pairs = [(a, b), (a[1], b[1]), (a.tolist(), b.tolist()), ({"k": [a]}, {"k": [b]})]
            pairs.append((a.view([("m", kind)]), b.view([("m", kind)])))
            for one, other in pairs:
                assert (encoded(one) == encoded(other)) == same, (one, other)
    for name, at in zip("abcde", (0, 1, 3, 4, 6), strict=True):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["x"] = np.arange(3.0)
            file["x"].attrs["limit"] = array(at)
    for a, b, status in (("a", "b", 0), ("c", "d", 0), ("a", "c", 1), ("d", "e", 1)):
        for options in ((), ("--nan-differs",)):
            assert command("compare", tmp_path / f"{a}.h5", tmp_path / f"{b}.h5", *options).status == status


@pytest.mark.parametrize("one, other, same", [
    ("0", "0.0", True), ("0", "-0.0", True), ('"NaN"', '"0x7ff8000000000001"', True), ('"NaN"', "0", False), ("1", "1.0", True),
    ("1", "2", False), ("null", "0", False),
])  # fmt: skip
def test_fill_values_of_zarr_are_numbers(one: str, other: str, same: bool, tmp_path: Path) -> None:
    for name, fill in (("a", one), ("b", other)):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".zarray").write_text(
            '{"zarr_format": 2, "shape": [5], "chunks": [5], "dtype": "<f8", "compressor": null, '
            f'"fill_value": {fill}, "order": "C", "filters": null}}'
        )
        (tmp_path / name / "0").write_bytes(np.arange(5.0).tobytes())
    assert command("compare", tmp_path / "a", tmp_path / "b").status == (0 if same else 1)


def test_shown_is_short_and_on_one_line() -> None:
    for value in (
        "a\nb",
        b"\xff" * 500,
        np.arange(1000),
        {"a": "b" * 500},
        np.array(["x" * 500]),
        1.5,
        np.void(b"ab"),
    ):
        text = shown(value)
        assert 0 < len(text) <= 80 and "\n" not in text, value
    assert shown(np.float32(0.1)) == "0.1" and shown(np.array([1, 2])) == "[1, 2]" and shown("m") == "'m'"


def test_text_that_differs_is_told_with_its_place(tmp_path: Path) -> None:
    for name, words in (("a", ["one", "two", "three"]), ("b", ["one", "two", "Three"])):
        np.savez(tmp_path / f"{name}.npz", x=np.arange(3), label=np.array(words))
    a, b = tmp_path / "a.npz", tmp_path / "b.npz"
    for options in ((), ("--atol", "1e30", "--tolerate-integers")):
        done = command("compare", a, b, *options)
        assert done.status == 1 and done.last == "different: first at label[2]: 'three' against 'Three'"
    result = twinrun.compare(a, b)
    assert result.different == 1 and result.first.kind == "text" and result.first.max_abs_diff is None
    assert result.first_divergence["a"] == "'three'" and result.first_divergence["abs_diff"] is None
    assert len(result.to_pandas()) == 2
    twinrun.index(a)
    twinrun.index(b)
    assert twinrun.compare(a, b).different == 1
    golden.save(a, tmp_path / "golden", atol=1e30, tolerate_integers=True)
    check = golden.check(tmp_path / "golden", b)
    assert check.verdict == "different" and check.first.listed[0].b == "'Three'"
    assert "is not what it was" in command("golden", "check", tmp_path / "golden", b).last
    shutil.copy(a, tmp_path / "c.npz")
    assert golden.check(tmp_path / "golden", tmp_path / "c.npz").same


def test_text_of_particles_is_matched_by_id(tmp_path: Path) -> None:
    head = "ITEM: TIMESTEP\n1\nITEM: NUMBER OF ATOMS\n3\nITEM: BOX BOUNDS pp pp pp\n0 1\n0 1\n0 1\nITEM: ATOMS id element x\n"
    (tmp_path / "a.lammpstrj").write_text(head + "1 H 0.5\n2 O 0.25\n3 C 0.1\n")
    (tmp_path / "b.lammpstrj").write_text(head + "3 C 0.1\n2 N 0.25\n1 H 0.5\n")
    (tmp_path / "c.lammpstrj").write_text(head + "3 C 0.1\n1 H 0.5\n2 O 0.25\n")
    a, b, c = (tmp_path / f"{name}.lammpstrj" for name in "abc")
    assert command("compare", a, c, "--key", "id").status == 0
    for options in ((), ("--atol", "1e30", "--tolerate-integers")):
        done = command("compare", a, b, "--key", "id", *options)
        assert done.status == 1 and done.last == "different: first at step 1, element[id 2]: another text"


def _in_files(folder: Path, files: dict[str, str]) -> Path:
    for name, field in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".npy":
            np.save(path, np.arange(3.0))
        elif path.suffix == ".npz":
            np.savez(path, **{field: np.arange(3.0)})
        else:
            with h5py.File(path, "w") as file:
                file[field] = np.arange(3.0)
    return folder


@pytest.mark.parametrize(
    ("mine", "theirs", "told"),
    [
        ({"x.npy": "", "e.h5": "v"}, {"x.npy": "", "sub/e.h5": "v"}, ["e.h5", "sub/e.h5"]),
        ({"x.npy": "", "e.npz": "v"}, {"x.npy": "", "f.npz": "v"}, ["e.npz", "f.npz"]),
        ({"step-1/rank-0/e.h5": "v"}, {"step-1/rank-0/f.h5": "v"}, ["e.h5", "f.h5"]),
        ({"step-1/e.h5": "v"}, {"e_1.h5": "v"}, []),
        ({"e.h5": "v"}, {"e.h5": "v"}, []),
    ],
)
def test_files_are_called_otherwise(
    mine: dict[str, str], theirs: dict[str, str], told: list[str], tmp_path: Path
) -> None:
    """Where the names of fields do not tell in which file of a folder they lie, the name of the file is compared."""
    a, b = _in_files(tmp_path / "a", mine), _in_files(tmp_path / "b", theirs)
    found = twinrun.compare(a, b)
    assert found.different == 0 and sorted(d.label for d in found.attributes) == [f"{n}@(file)" for n in told]
    assert twinrun.compare(a, b, ignore_attributes=["(file)"])
    golden.save(a, tmp_path / "golden")
    checked = golden.check(tmp_path / "golden", b)
    assert sorted(d.label for d in checked.attributes) == [f"{n}@(file)" for n in told]
    common = twinrun.compare(a, b, common=True)
    assert common and all(any(f"{n}@(file): only in" in note for note in common.notes) for n in told)


def test_files_of_other_formats_are_noted(tmp_path: Path) -> None:
    a = _in_files(tmp_path / "a", {"v.npy": "", "k.npy": ""})
    b = _in_files(tmp_path / "b", {"a.h5": "v", "k.npy": ""})
    found = twinrun.compare(a, b)
    assert found and any("(a.h5@(file))" in note for note in found.notes)
