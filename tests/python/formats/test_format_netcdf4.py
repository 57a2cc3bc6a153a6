from pathlib import Path

import numpy as np
import pytest
from format_checks import check_field, not_numbers, written_now

from twinrun.formats import detect, open_file

pytest.importorskip("h5py")
FILE = Path(__file__).parent / "fixtures" / "hdf5" / "netcdf4.nc"


def check(path):
    arrays = {
        "time": np.array([0.5, 1.5, 2.5]),
        "x": np.arange(4, dtype="i4"),
        "grid": np.arange(12, dtype="f4").reshape(3, 4),
        "group/packed": np.arange(4, dtype="i2"),
        "plain": np.arange(12.0).reshape(4, 3),
    }
    assert detect(path).name == "hdf5"
    with open_file(path) as content:
        assert set(content.fields) == {*arrays, "words"} and not_numbers(content) == {"words": "text"}
        for name, array in arrays.items():
            check_field(content.fields[name], array)
        assert not content.skipped and "nothing@(dimension)" in content.facts
        assert content.facts["grid@_FillValue"].meaning
        assert "time" in content.facts["grid@DIMENSION_LIST"].label or content.facts["grid@DIMENSION_LIST"]
        (note,) = content.notes
        assert (
            "grid (_FillValue -99.0)" in note and "group/packed (scale_factor 0.5, add_offset 10.0)" in note
        )
        assert "compared as stored" in note
    with open_file(path, attributes=True) as content:
        assert content.fields["group/packed@add_offset"].elements().tolist() == [10.0]
        assert not any("_Netcdf4" in name or "DIMENSION" in name for name in content.fields)


def test_a_file_of_the_library():
    check(FILE)


def test_a_file_of_the_library_that_is_here(tmp_path):
    written_now(FILE.parent, "netcdf4", "netCDF4", tmp_path)
    check(tmp_path / "netcdf4.nc")


def test_the_name_of_a_dimension_is_looked_up_once(tmp_path, monkeypatch):
    """HDF5 searches the whole file for it."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.nc", "w") as file:
        file["x"] = np.arange(3.0)
        file["x"].make_scale("x")
        for number in range(20):
            file[f"v{number}"] = np.arange(3.0)
            file[f"v{number}"].dims[0].attach_scale(file["x"])
        file["gone"] = 1
        file.attrs["gone"] = file["gone"].ref
        del file["gone"]
    asked, get_name = [], h5py.h5r.get_name

    def counted(*arguments):
        asked.append(1)
        return get_name(*arguments)

    monkeypatch.setattr(h5py.h5r, "get_name", counted)
    with open_file(tmp_path / "a.nc") as content:
        assert content.facts["v7@DIMENSION_LIST"].text == "[['reference to /x']]"
        assert content.facts["v7@(dimensions)"].text == "['x']"
        assert "@gone" in content.facts or any(name == "@gone" for name, _ in content.skipped)
    assert len(asked) <= 6
