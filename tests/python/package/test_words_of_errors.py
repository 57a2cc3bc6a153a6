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
