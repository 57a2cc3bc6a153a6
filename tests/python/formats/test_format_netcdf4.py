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
