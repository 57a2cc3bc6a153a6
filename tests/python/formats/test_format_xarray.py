"""Files that xarray opens by a backend, against what the same backend shows."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from format_checks import check_field, texts

import twinrun
from twinrun.errors import DamagedFile, FormatError, MissingPackage, Unmatched
from twinrun.formats import detect, formats, open_file, xarray_worker

xarray = pytest.importorskip("xarray")


def write(path, change: float = 0.0, group: bool = True, **attributes: object) -> None:
    netCDF4 = pytest.importorskip("netCDF4")
    with netCDF4.Dataset(path, "w") as file:
        file.title = attributes.pop("title", "a run")
        file.createDimension("x", 40)
        file.createDimension("y", 30)
        packed = file.createVariable("packed", "i2", ("x", "y"), zlib=True, chunksizes=(8, 7), fill_value=-1)
        packed.scale_factor, packed.units = 0.5, attributes.pop("units", "K")
        packed.set_auto_maskandscale(False)
        packed[:] = np.arange(1200).reshape(40, 30) % 100 - 1
        real = file.createVariable("real", "f8", ("y",))
        values = np.linspace(0, 1, 30)
        values[3] = np.nan
        values[5] += change
        real[:] = values
        names = file.createVariable("names", str, ("x",))
        for at in range(40):
            names[at] = f"row {at}"
        time = file.createVariable("time", "i8", ("x",))
        time.units = "days since 2000-01-01"
        time[:] = np.arange(40)
        if group:
            inner = file.createGroup("inner")
            inner.createVariable("z", "f4", ("x",))[:] = np.arange(40.0)
            inner.note = "within"


def options(engine: str, **more: object) -> dict[str, object]:
    return {"format": "xarray", "engine": engine, **more}


def test_nan_for_what_is_missing_is_no_note(tmp_path):
    """Each file of xarray says so of its floating-point variables, and no number means another thereby."""
    data = xarray.Dataset({"T": ("x", [1.0, np.nan]), "n": ("x", np.array([1, -1], "i2"))})
    data["n"].attrs["scale_factor"] = 0.5
    data.to_netcdf(tmp_path / "a.nc", engine="h5netcdf", encoding={"T": {"_FillValue": np.nan}})
    for how in ({}, options("h5netcdf")):
        with open_file(tmp_path / "a.nc", **how) as content:
            assert content.notes == ["values are compared as stored: n (scale_factor 0.5)"], how


def test_variables_of_all_groups_are_fields_as_stored(tmp_path):
    write(tmp_path / "a.nc")
    with open_file(tmp_path / "a.nc", format="xarray", engine="netcdf4") as content:
        numbers = np.arange(1200, dtype="i2").reshape(40, 30) % 100 - 1
        check_field(content.fields["packed"], numbers)
        check_field(content.fields["time"], np.arange(40))
        check_field(content.fields["inner/z"], np.arange(40, dtype="f4"))
        assert texts(content.fields["names"])[:2] == ["'row 0'", "'row 1'"]
        assert content.facts["packed@units"].text == "'K'" and content.facts["inner@note"].text == "'within'"
        assert content.facts["packed@(dimensions)"].text == "['x', 'y']"
        assert not content.skipped and "packed (scale_factor 0.5, _FillValue -1)" in content.notes[0]
    with open_file(tmp_path / "a.nc", format="xarray", engine="netcdf4", attributes=True) as content:
        assert content.fields["packed@scale_factor"].elements().tolist() == [0.5]


def test_without_an_engine_all_groups_are_compared(tmp_path):
    for name, group in (("a", True), ("b", True), ("c", False)):
        write(tmp_path / f"{name}.nc", group=group)
    netCDF4 = pytest.importorskip("netCDF4")
    with netCDF4.Dataset(tmp_path / "b.nc", "a") as file:
        file["inner/z"][3] = 9.0
    how = {"format": "xarray"}
    found = [twinrun.compare(tmp_path / "a.nc", tmp_path / f"{b}.nc", options=how).verdict for b in "ab"]
    assert found == ["same", "different"]
    with pytest.raises(Unmatched, match="field 'inner/z'"):
        twinrun.compare(tmp_path / "a.nc", tmp_path / "c.nc", options=how)
    write(tmp_path / "text", group=False)
    (tmp_path / "text").write_text("no data")
    with pytest.raises(FormatError, match="no engine of xarray opens it"):
        open_file(tmp_path / "text", format="xarray")


@pytest.mark.parametrize("engine", [None, "netcdf4"])
def test_an_xarray_that_shows_the_root_alone_is_an_error(engine):
    class Old:
        def guess_can_open(self, path: str) -> bool:
            return True

    old = SimpleNamespace(
        backends=SimpleNamespace(list_engines=lambda: {"netcdf4": Old()}), __version__="2023.1"
    )
    with pytest.raises(ValueError, match=r"shows the root group alone; run: pip install 'xarray>=2024\.10'"):
        xarray_worker._groups(old, "a.nc", engine)


@pytest.mark.parametrize("form", ["zarr", "xarray"])
def test_characters_that_unicode_lacks(tmp_path, form):
    """NumPy makes U+1D11E of 0x0201D11E beside another character."""
    zarr = pytest.importorskip("zarr")
    for name, point in (("a", 0x1D11E), ("b", 0x0201D11E)):
        points = np.array([point, ord("\xe9")], "<u4")
        group = zarr.open_group(tmp_path / f"{name}.zarr", mode="w", zarr_format=2)
        text = group.create_array("t", shape=(1,), dtype="<U2", chunks=(1,), compressors=None)
        text.attrs["_ARRAY_DIMENSIONS"] = ["d"]
        text[:] = points.view("<U2")
    with pytest.raises(DamagedFile, match="0x201d11e, which Unicode does not have"):
        twinrun.compare(tmp_path / "a.zarr", tmp_path / "b.zarr", options={"format": form})


@pytest.mark.parametrize("engine", [None, "zarr"])
def test_a_store_of_zarr_is_one_file(tmp_path, engine):
    pytest.importorskip("zarr")
    for name, value in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
        data = xarray.Dataset({"x": ("n", [0.0, value])}, attrs={"title": "a run"})
        data.to_zarr(tmp_path / f"{name}.zarr", zarr_format=2)
    how = {"format": "xarray"} | ({"engine": engine} if engine else {})
    found = [
        twinrun.compare(tmp_path / "a.zarr", tmp_path / f"{other}.zarr", options=how).verdict
        for other in "bc"
    ]
    assert found == ["same", "different"]


def test_files_of_cfgrib_are_read_and_nothing_is_written_beside_them(tmp_path):
    pytest.importorskip("cfgrib")
    eccodes = pytest.importorskip("eccodes")
    handle = eccodes.codes_grib_new_from_samples("regular_ll_pl_grib2")
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.grib").write_bytes(eccodes.codes_get_message(handle))
    found = twinrun.compare(tmp_path / "a/x.grib", tmp_path / "b/x.grib", options=options("cfgrib"))
    assert found.verdict == "same"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["x.grib"]


def test_the_report_is_that_of_the_format_itself(tmp_path):
    pytest.importorskip("h5py")
    write(tmp_path / "a.nc")
    for name, how in {"b": {"change": 1.0}, "c": {"units": "C"}, "d": {"title": "another"}, "e": {}}.items():
        write(tmp_path / f"{name}.nc", **how)
        by_itself = twinrun.compare(tmp_path / "a.nc", tmp_path / f"{name}.nc")
        by_xarray = twinrun.compare(tmp_path / "a.nc", tmp_path / f"{name}.nc", options=options("netcdf4"))
        assert by_itself.verdict == by_xarray.verdict
        for one in by_xarray.fields:
            other = next((f for f in by_itself.fields if f.field == one.field), None)
            if other is not None:
                assert (one.different, one.first_index) == (other.different, other.first_index)


def test_a_backend_without_groups_says_so(tmp_path):
    from scipy.io import netcdf_file

    with netcdf_file(tmp_path / "a.nc", "w") as file:
        file.createDimension("x", 5)
        file.createVariable("v", "f8", ("x",))[:] = np.arange(5.0)
    with open_file(tmp_path / "a.nc", format="xarray", engine="scipy") as content:
        check_field(content.fields["v"], np.arange(5.0))
        assert "one group" in content.notes[0]


def test_a_format_that_twinrun_does_not_know(tmp_path, monkeypatch):
    """A backend of another package, in a module that the reading process finds as ours does."""
    package = tmp_path / "packages"
    (package / "mine-1.dist-info").mkdir(parents=True)
    (package / "mine-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    (package / "mine-1.dist-info" / "entry_points.txt").write_text("[xarray.backends]\nmine = mine:Backend\n")
    (package / "mine.py").write_text(
        "import numpy as np, xarray\n"
        "from xarray.backends import BackendEntrypoint\n"
        "class Backend(BackendEntrypoint):\n"
        "    def open_dataset(self, filename_or_obj, *, drop_variables=None):\n"
        "        values = np.fromfile(filename_or_obj, 'f4')\n"
        "        if values.size == 7: import os; os.abort()\n"
        "        return xarray.Dataset({'values': ('n', values, {'odd': [1, 2]})}, attrs={'kind': 'mine'})\n"
        "    def guess_can_open(self, filename_or_obj):\n"
        "        return str(filename_or_obj).endswith('.mine')\n"
    )
    monkeypatch.syspath_prepend(str(package))
    for name, size in (("a", 10), ("b", 10), ("c", 7)):
        values = np.arange(size, dtype="f4")
        values[3] += name == "b"
        values.tofile(tmp_path / f"{name}.mine")
    result = twinrun.compare(tmp_path / "a.mine", tmp_path / "b.mine", options=options("mine"))
    assert [(f.field, f.different, f.first_index) for f in result.fields] == [("values", 1, (3,))]
    with open_file(tmp_path / "a.mine", format="xarray") as content:  # xarray guesses
        assert "values@odd" in content.facts and "@kind" in content.facts
    with pytest.raises(FormatError, match="xarray package crashed on it"):
        open_file(tmp_path / "c.mine", format="xarray", engine="mine")


def test_large_variables_are_read_in_pieces(tmp_path, monkeypatch):
    """The backend refuses to give more than 5 million elements at once, of 12 million."""
    package = tmp_path / "packages"
    (package / "lazy-1.dist-info").mkdir(parents=True)
    (package / "lazy-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: lazy\nVersion: 1\n")
    (package / "lazy-1.dist-info" / "entry_points.txt").write_text("[xarray.backends]\nlazy = lazy:Backend\n")
    (package / "lazy.py").write_text(
        "import numpy as np, xarray\n"
        "from xarray.backends import BackendArray, BackendEntrypoint\n"
        "from xarray.core import indexing\n"
        "class Part(BackendArray):\n"
        "    shape, dtype = (12_000_000,), np.dtype('f4')\n"
        "    def __init__(self, path): self.path = path\n"
        "    def __getitem__(self, key):\n"
        "        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.BASIC, self.get)\n"
        "    def get(self, key):\n"
        "        first, stop, _ = key[0].indices(self.shape[0])\n"
        "        if stop - first > 5_000_000: raise MemoryError('too much at once')\n"
        "        return np.fromfile(self.path, 'f4', stop - first, offset=4 * first)\n"
        "class Backend(BackendEntrypoint):\n"
        "    def open_dataset(self, filename_or_obj, *, drop_variables=None):\n"
        "        data = indexing.LazilyIndexedArray(Part(filename_or_obj))\n"
        "        return xarray.Dataset({'values': (('n',), data)})\n"
    )
    monkeypatch.syspath_prepend(str(package))
    for name in ("a", "b"):
        with open(tmp_path / name, "wb") as file:
            file.truncate(48_000_000)
            if name == "b":
                file.seek(4 * 11_000_000)
                file.write(np.array([1], "f4").tobytes())
    result = twinrun.compare(tmp_path / "a", tmp_path / "b", options=options("lazy"))
    assert [(f.different, f.first_index) for f in result.fields] == [(1, (11_000_000,))]


def test_engines_and_files_that_are_not_there(tmp_path, monkeypatch):
    (tmp_path / "a.nc").write_bytes(b"nothing that anybody opens" * 100)
    assert detect(tmp_path / "a.nc").name != "xarray" and "xarray" in formats()
    with pytest.raises(FormatError, match="has no engine 'nobody'"):
        open_file(tmp_path / "a.nc", format="xarray", engine="nobody")
    for engine in ("scipy", None):
        with pytest.raises(FormatError):
            open_file(tmp_path / "a.nc", format="xarray", engine=engine)
    with pytest.raises(FormatError, match="engine must be"):
        open_file(tmp_path / "a.nc", format="xarray", engine=3)
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(MissingPackage, match="pip install"):
        open_file(tmp_path / "a.nc", format="xarray", engine="scipy")


@pytest.mark.parametrize("engine", ["netcdf4", "h5netcdf"])
def test_a_file_that_is_written_again_in_its_place_shows_what_it_is_now(tmp_path, engine):
    netCDF4 = pytest.importorskip("netCDF4")
    pytest.importorskip("netCDF4" if engine == "netcdf4" else engine)
    write(tmp_path / "a.nc", group=False)
    write(tmp_path / "b.nc", group=False)
    assert twinrun.compare(tmp_path / "a.nc", tmp_path / "b.nc", options=options(engine)).same
    with netCDF4.Dataset(tmp_path / "b.nc", "a") as file:  # the same file, with another number in it
        file["real"][7] = 5.0
    result = twinrun.compare(tmp_path / "a.nc", tmp_path / "b.nc", options=options(engine))
    assert [(f.field, f.different, f.first_index) for f in result.fields if f.different] == [
        ("real", 1, (7,))
    ]


def test_cut_chunks_of_zarr(tmp_path):
    zarr = pytest.importorskip("zarr")
    numcodecs = pytest.importorskip("numcodecs")
    array = np.random.default_rng(0).integers(0, 10**6, (100, 37))
    group = zarr.open_group(tmp_path / "x.zarr", mode="w", zarr_format=2)
    made = group.create_array("x", data=array, chunks=(50, 37), compressors=numcodecs.Blosc("lz4"))
    made.attrs["_ARRAY_DIMENSIONS"] = ["a", "b"]
    with open_file(tmp_path / "x.zarr", "xarray") as content:
        check_field(content.fields["x"], array)
    chunk = tmp_path / "x.zarr" / "x" / "1.0"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    with (
        open_file(tmp_path / "x.zarr", "xarray") as content,
        pytest.raises(DamagedFile, match="its header says"),
    ):
        content.fields["x"].elements()
