"""Options of formats that no file takes: each is told, in the words of the caller."""

from pathlib import Path

import numpy as np
import pytest
from commands import check_error, command

import twinrun

DTYPE = "--dtype has no effect: no file here has a format that takes it (raw)"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "x.npy", np.arange(10.0))
        with twinrun.Run(tmp_path / f"h{name}", atol=1e-6) as run:
            run.capture(0, {"x": np.arange(10.0)})
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ["compare", "a", "b"],
        ["compare", "ha", "hb"],
        ["index", "a", "b"],
        ["show", "a"],
        ["show", "ha"],
        ["tolerances", "a", "b"],
        ["golden", "save", "a", "-o", "kept"],
    ],
    ids=" ".join,
)
def test_an_option_that_no_file_takes_is_told(runs: Path, words: list[str]) -> None:
    done = command(*words, "--dtype", "f32")
    assert done.status == 0 and (done.out + done.err).count(DTYPE) == 1, done
    assert "no effect" not in command(*words, *(["--force"] if words[0] == "golden" else [])).out


def test_an_option_that_one_file_takes_is_not_told(runs: Path) -> None:
    for name in "ab":
        np.arange(10.0).tofile(runs / name / "y.bin")
    assert "no effect" not in (done := command("compare", "a", "b", "--dtype", "f64")).out + done.err, done
    for option in ("--offset", "--shape"):  # without a type, y.bin is compared as bytes
        said = command("compare", "a", "b", option, "8").out
        assert f"{option} has no effect" in said
        assert "y.bin is compared as bytes: raw without a description: give --dtype" in said
    (runs / "z.bin").write_bytes(np.arange(10.0).tobytes())
    done = command("compare", "z.bin", "a", "--dtype", "f64", "--rename", "x=z")
    assert "no effect" not in done.out + done.err, done


@pytest.mark.parametrize(("option", "value"), [("--offset", "8"), ("--shape", "2x5")])
def test_a_place_without_a_type_is_an_error(runs: Path, option: str, value: str) -> None:
    """It says which option is missing; and where the suffix tells the type, none is."""
    for name in ("a", "b"):
        for suffix in ("bin", "f64"):
            np.arange(10.0).tofile(runs / f"{name}.{suffix}")
    said = (
        f"a.bin: {option} is given without --dtype, and the element type is not known; "
        "add --dtype, such as f32; or describe the file in a.bin.json, and give no options"
    )
    for words in (
        ["compare", "a.bin", "b.bin"],
        ["show", "a.bin"],
        ["compare", "a.bin", "b.bin", "--format", "raw"],
    ):
        check_error(command(*words, option, value), said)
    name = option.removeprefix("--")
    with pytest.raises(twinrun.FormatError) as caught:
        twinrun.compare("a.bin", "b.bin", options={name: value})
    assert str(caught.value) == said.replace("--", "")
    with pytest.raises(twinrun.FormatError, match="the option 'order' is given without dtype"):
        twinrun.compare("a.bin", "b.bin", options={"order": "big"})
    assert command("compare", "a.f64", "b.f64", option, value).last.startswith("same: 1 field")
    plain = command("compare", "a/x.npy", "b/x.npy", option, value)
    check_error(
        plain,
        f"format npy has no option '{name}'; it takes none; to read it as raw all the same, add --format raw and --dtype",
    )
    with_type = command("compare", "a/x.npy", "b/x.npy", option, value, "--dtype", "f64")
    assert with_type.err.endswith("add --format raw\n")


def test_each_option_has_its_reason(runs: Path) -> None:
    options = ("--format", "npy", "--format-option", "order=F", "--format-option", "delimiter=x")
    said = command("compare", "ha", "hb", *options).out
    assert "--format has no effect: no file of another program is read here" in said
    assert "the option 'order' has no effect: no file here has a format that takes it (raw)" in said
    assert "the option 'delimiter' has no effect: no format has such an option" in said


def test_in_the_words_of_python(runs: Path) -> None:
    x = {"x": np.arange(10.0)}
    expected = [DTYPE.removeprefix("--")]
    assert twinrun.compare("a", "b", options={"dtype": "f32"}).notes == expected
    assert twinrun.compare(x, x, options={"dtype": "f32"}).notes == expected
    twinrun.golden.save("a", "kept")
    assert twinrun.golden.check("kept", "a", options={"dtype": "f32"}).notes == expected
    assert twinrun.compare("a", "b").notes == twinrun.compare(x, x).notes == []


def test_files_without_a_step_have_no_time(runs: Path) -> None:
    done = command("compare", "a", "b", "--align", "time")
    assert done.status == 2 and "a: files without a step have no time; align by step" in done.err, done


def test_of_traces_it_is_an_error(runs: Path) -> None:
    for name in ("ta", "tb"):
        with twinrun.Run(runs / name) as run:
            run.capture(0, {"x": np.arange(10.0)}, phase="one")
            run.capture(0, {"x": np.arange(10.0)}, phase="two")
    assert command("compare", "ta", "tb").status == 0
    for options in (("--dtype", "f32"), ("--format-option", "order=F")):
        done = command("compare", "ta", "tb", *options)
        assert done.status == 2 and f"{options[0]} is not for traces" in done.err, done
