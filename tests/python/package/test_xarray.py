"""The accessor of xarray's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import HANG

import twinrun

xarray = pytest.importorskip("xarray")

import twinrun.xarray  # noqa: E402


def data() -> object:
    return xarray.Dataset(
        {"t": (("y", "x"), np.arange(12.0).reshape(3, 4), {"units": "K"}), "n": ("x", np.arange(4))},
        coords={"x": np.linspace(0, 1, 4)},
        attrs={"title": "a"},
    )


def test_the_accessor_says_what_compare_says(tmp_path: Path) -> None:
    a, b = data(), data()
    assert a.twinrun.compare(b).same
    b["t"][1, 2] += 1
    for held, other in ((a, b), (a["t"], b["t"])):
        result, truth = held.twinrun.compare(other, atol=0.5), twinrun.compare(held, other, atol=0.5)
        assert result.verdict == truth.verdict == "different"
        assert [(f.field, f.different) for f in result.fields] == [
            (f.field, f.different) for f in truth.fields
        ]
    assert result.first.first_index == (1, 2)
    b = data()
    b["t"].attrs["units"] = "C"
    assert a.twinrun.compare(b).verdict == twinrun.compare(a, b).verdict != "same"
    with pytest.raises(twinrun.TwinrunError):
        a.twinrun.compare(a, atol=-1)


def test_trees() -> None:
    if not hasattr(xarray, "DataTree"):
        pytest.skip("this xarray has no trees")
    tree = xarray.DataTree.from_dict({"/": data(), "/sub": data()})
    assert tree.twinrun.compare(tree.copy(deep=True)).same


def test_assert_same() -> None:
    a = data()
    assert a.twinrun.assert_same(a + 1e-9, atol=1e-6, leave_out="n").verdict == "same"
    with pytest.raises(twinrun.NotSame, match=r"t\[0, 0\]: 0 against 1, \|a-b\| = 1 > 1e-06"):
        a.twinrun.assert_same(a + 1, atol=1e-6)


def test_nothing_is_loaded_before_it_is_asked_for() -> None:
    code = (
        "import sys, twinrun; twinrun.compare; assert 'xarray' not in sys.modules; "
        "import twinrun.xarray; assert 'xarray' in sys.modules; import xarray; "
        "print(xarray.DataArray([1.0]).twinrun.compare(xarray.DataArray([1.0])).verdict)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG, check=True
    )
    assert done.stdout == "same\n"


def test_without_xarray(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys; sys.modules['xarray'] = None\nimport twinrun.xarray"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 1 and "MissingPackage" in done.stderr and "pip install" in done.stderr
