"""What to do is said in the words of the caller: options on the command line, parameters in Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from commands import check_error, command

import twinrun
from twinrun.errors import TwinrunError, in_words_of_the_caller, name_options


def saved(folder: Path, **fields: np.ndarray) -> Path:
    folder.mkdir()
    np.savez(folder / "x.npz", **fields)
    return folder / "x.npz"


def test_options_and_parameters(tmp_path: Path) -> None:
    a = saved(tmp_path / "a", x=np.zeros(3), y=np.zeros(3))
    b = saved(tmp_path / "b", x=np.zeros(3))
    check_error(command("compare", a, b), "compare the common ones with --common, or choose with --field")
    with pytest.raises(
        twinrun.Incomparable, match="compare the common ones with common=True, or choose with fields"
    ):
        twinrun.compare(a, b)
    noted = command("compare", a, b, "--common")
    assert noted.status == 0 and "field 'y'" in noted.out and "--common" not in noted.out


def test_only_what_to_do_is_worded() -> None:
    """Names of files may look like options, and command lines are for everybody."""
    said = str(TwinrunError("--common is odd", where="--steps", fix="use --common or --level 3"))
    assert said == "--steps: --common is odd; use common=True or --level 3"
    assert in_words_of_the_caller("run: twinrun index a --atol 1") == "run: twinrun index a --atol 1"
    before = name_options(True)
    try:
        assert in_words_of_the_caller("use --common") == "use --common"
    finally:
        name_options(before)


def test_fields_that_are_there_are_named(tmp_path: Path) -> None:
    a = saved(tmp_path / "a", velocity_x=np.zeros(3), velocity_y=np.zeros(3), mass=np.zeros(3))
    check_error(command("compare", a, a, "--field", "velocty_x"), "did you mean 'velocity_x'")
    check_error(
        command("compare", a, a, "--field", "zzz"), "the fields are: 'velocity_x', 'velocity_y', 'mass'"
    )


def test_what_is_no_array_is_said(tmp_path: Path) -> None:
    for name, said in (
        ("x.png", "a picture has no arrays: --format bytes compares its bytes"),
        ("x.pkl", "a pickle has no arrays: --format bytes compares its bytes"),
        (
            "x.dat",
            "give --dtype f32 (if need be --shape 100x200, --offset 512, --format-option order=F), or write x.dat.json",
        ),
        ("x.xyz1", "of a raw file give --dtype (f32, f64, i32, ...) and, if it has axes, --shape"),
    ):
        (tmp_path / name).write_bytes(bytes(range(256)))
        check_error(command("compare", tmp_path / name, tmp_path / name), said)
        if name.endswith(("png", "pkl")):
            assert command("compare", tmp_path / name, tmp_path / name, "--format", "bytes").status == 0
    with pytest.raises(twinrun.FormatError, match=r"of a raw file give dtype .*else format, one of: "):
        twinrun.compare(tmp_path / "x.xyz1", tmp_path / "x.xyz1")


def test_arrays_have_no_paths() -> None:
    with pytest.raises(twinrun.Incomparable, match=r"shape \[3\] in the first run, \[4\] in the second"):
        twinrun.compare(np.zeros(3), np.zeros(4))


def test_a_sentence_about_twinrun_is_no_command_line(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "x.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(8))
    with pytest.raises(
        twinrun.MissingFile, match=r"it has x\.png; format='bytes' compares files of any kind"
    ):
        twinrun.compare(tmp_path / "pictures", tmp_path / "pictures")
    said = str(TwinrunError("x", fix="a history that twinrun captured, or --method direct"))
    assert said == "x; a history that twinrun captured, or options=CompareOptions(method='direct')"
    assert in_words_of_the_caller("twinrun golden save a --atol 1") == "twinrun golden save a --atol 1"


def test_what_compares_other_types_is_said(tmp_path: Path) -> None:
    single = saved(tmp_path / "single", x=np.zeros(3, np.float32))
    double = saved(tmp_path / "double", x=np.zeros(3))
    check_error(
        command("compare", single, double), "types must agree, or --cast compares the numbers that they hold"
    )
    assert command("compare", single, double, "--cast").status == 0
    with pytest.raises(
        twinrun.Incomparable, match="types must agree, or types='values' compares the numbers"
    ):
        twinrun.compare(single, double)
    with pytest.raises(twinrun.Incomparable, match=r"types must agree$"):  # casting would not help
        twinrun.compare(single, {"x": np.zeros(3, complex)})


def test_what_is_there_is_named(tmp_path: Path) -> None:
    """Instead of the steps, ranks, fields and periods that were asked for."""
    for run in "ab":
        (tmp_path / run).mkdir()
        for step in (5, 10, 15):
            np.savez(tmp_path / run / f"x_{step}.npz", density=np.zeros(3))
    pair = (tmp_path / "a", tmp_path / "b")
    check_error(command("compare", *pair, "--steps", "7"), "--steps takes from these: 5, 10, 15")
    check_error(command("compare", *pair, "--ranks", "3"), "--ranks takes from these: 0")
    check_error(
        command("compare", *pair, "--field", "densty"),
        "no field that matches 'densty'; did you mean 'density'?",
    )
    check_error(command("compare", *pair, "--period", "pos=10"), "no name matches 'pos'")
    check_error(command("compare", *pair, "--period", "10"), "no name is that of positions")
    with pytest.raises(
        twinrun.Incomparable, match="no step is among those asked for; steps takes from these: 5, 10"
    ):
        twinrun.compare(*pair, steps="7")
    assert command("golden", "save", pair[0], "-o", tmp_path / "kept").status == 0
    check_error(
        command("golden", "check", tmp_path / "kept", pair[1], "--field", "densty"),
        "no field that matches 'densty'; the golden files have 'density'",
    )
    check_error(
        command("golden", "check", tmp_path / "kept", pair[1], "--steps", "7"), "from these: 5, 10, 15"
    )


def test_the_only_problem_is_said_once_in_the_report(tmp_path: Path) -> None:
    a = saved(tmp_path / "a", x=np.zeros(3), y=np.zeros(3), z=np.zeros(3))
    b = saved(tmp_path / "b", x=np.zeros(3), z=np.zeros(4))
    one = command("compare", a, b, "--field", "[xy]")
    assert one.status == 2 and one.out.count("field 'y'") == 1 and "field 'y'" in one.last
    several = command("compare", a, b)
    assert several.out.count("not compared: ") == 2 and several.last.startswith("incomparable: 2 things")


def test_a_run_against_itself_is_said(tmp_path: Path) -> None:
    """By whatever name: that it agrees with itself says nothing."""
    a = saved(tmp_path / "a", x=np.zeros(3))
    b = saved(tmp_path / "b", x=np.zeros(3))
    (tmp_path / "link").symlink_to("a")
    for other in (a, tmp_path / "link" / "x.npz"):
        assert twinrun.compare(a, other).notes == [
            f"both runs are the same path: {a}; name two different runs"
        ]
    assert (
        f"note: both runs are the same path: {tmp_path / 'a'}; name two different runs"
        in command("compare", tmp_path / "a", tmp_path / "link").out
    )
    assert twinrun.compare(a, b).notes == []
    x = np.zeros(3)
    assert twinrun.compare(x, x).notes == []  # arrays may change meanwhile


def test_arrays_are_the_first_and_the_second_run() -> None:
    with pytest.raises(twinrun.Incomparable, match="the second run: field 'x' of the first run: not there"):
        twinrun.compare({"x": np.zeros(3), "y": np.zeros(3)}, {"y": np.zeros(3)})


def test_a_field_is_three_lines() -> None:
    c = twinrun.compare(
        {"x": np.zeros(4), "y": np.zeros(2)}, {"x": np.array([0, 0, 1.0, 3]), "y": np.zeros(2)}
    )
    x, y = c.fields
    assert repr(x).splitlines() == [
        "<FieldComparison of x",
        "  f64, 2 of 4 elements differ, max |a-b| = 3",
        "  different: first at x[2]: 0 against 1, |a-b| = 1 > 0>",
    ]
    assert repr(y).splitlines()[1:] == ["  f64, 0 of 2 elements differ, max |a-b| = 0", "  same>"]


def test_labels_that_agree_share_a_line(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.0, 2.0]}, index=["u", "v"])
    said = str(twinrun.compare(frame, frame))
    assert "labels agree too: @" in said and "\n@" not in said
    other = pandas.DataFrame({"a": [1.0, 2.0]}, index=["u", "w"])
    said = str(twinrun.compare(frame, other))
    assert "\n@index" in said and said.splitlines()[-1].startswith("different: first at @index")


def test_options_of_formats_are_those_of_the_caller(tmp_path: Path) -> None:
    (tmp_path / "x.data").write_bytes(bytes(100))
    check_error(
        command("compare", tmp_path / "x.data", tmp_path / "x.data", "--dtype", "u8", "--shape", "50"),
        "correct the shape, or say --format-option partial=true",
    )
    with pytest.raises(twinrun.FormatError, match="correct the shape, or say partial=True"):
        twinrun.compare(tmp_path / "x.data", tmp_path / "x.data", options={"dtype": "u8", "shape": "50"})
    np.save(tmp_path / "x.npy", np.zeros(3))
    check_error(
        command("compare", tmp_path / "x.npy", tmp_path / "x.npy", "--dtype", "f64"), "add --format raw"
    )


def test_wrong_numbers_of_options_are_said_plainly(tmp_path: Path) -> None:
    """In words that are not those of the library that parses options."""
    run = saved(tmp_path / "a", x=np.zeros(3))
    for verb in (("compare", run, run), ("golden", "save", run, "-o", tmp_path / "g")):
        check_error(
            command(*verb, "--ulp", "1.5"), "Invalid value for '--ulp': '1.5' is no whole number. (see: "
        )
        check_error(command(*verb, "--atol", "x"), "Invalid value for '--atol': 'x' is no number. (see: ")
        for little in ("0", "1", "63K"):
            check_error(
                command(*verb, "--memory", little), f"'{little}' is too small: give at least 64K (see: "
            )
    bisected = command("compare", run, run, "--bisect", "--ulp", "1.5")
    assert bisected.status == 129 and "'1.5' is no whole number." in bisected.err
    for verb in (("restore", "r", "to"), ("verify", "r"), ("accept", "r", "--new", "n")):
        check_error(command(*verb, "--memory", "1"), "'1' is too small: give at least 64K (see: ")
    assert command("compare", run, run, "--memory", "64K").status == 0
    with pytest.raises(twinrun.TwinrunError, match="memory must be a number of bytes above 0, not 0"):
        twinrun.compare(run, run, options=twinrun.CompareOptions(memory=0))


def test_several_fields_and_steps_are_several(tmp_path: Path) -> None:
    for run, fields, steps in (("a", "uvw", (1, 2, 3)), ("b", "v", (1,))):
        (tmp_path / run).mkdir()
        for step in steps:
            np.savez(tmp_path / run / f"x_{step}.npz", **{name: np.zeros(3) for name in fields})
    out = command("compare", tmp_path / "a", tmp_path / "b").out
    assert ": fields 'u', 'w' of " in out and ": steps 2, 3 of " in out
    assert "field 'u', " not in out and "step 2, " not in out
    (tmp_path / "c").mkdir()
    np.savez(tmp_path / "c" / "x_1.npz", v=np.zeros(3), w=np.zeros(3))
    assert ": field 'w' of " in command("compare", tmp_path / "c", tmp_path / "b").out


def test_a_long_value_is_cut(tmp_path: Path) -> None:
    x = {"x": np.zeros(3)}
    for wrong in (10**400, 10**5000, -(10**400), "9" * 5000):
        for name in ("atol", "rtol", "ulp"):
            with pytest.raises(twinrun.TwinrunError) as caught:
                twinrun.compare(x, x, **{name: wrong})
            assert name in str(caught.value) and len(str(caught.value)) < 200
