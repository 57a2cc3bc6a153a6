"""Files of two formats with the same arrays: what both formats can say is compared, and how each stores it is
not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import twinrun
from twinrun import golden
from twinrun.formats import open_file
from twinrun.formats.facts import Fact
from twinrun.formats.facts_between import equal_between, texts_apart

netCDF4 = pytest.importorskip("netCDF4")
h5py = pytest.importorskip("h5py")

CLASSIC, FOUR = "NETCDF3_CLASSIC", "NETCDF4"
VALUES = np.arange(9.0).reshape(3, 3)


def write(
    path: Path,
    kind: str,
    dimensions: tuple[str, ...] = ("x", "y"),
    *,
    sizes: dict[str, int | None] | None = None,
    coordinate: str = "",
    fill: float | None = None,
    of_file: dict[str, Any] | None = None,
    **attributes: Any,
) -> Path:
    with netCDF4.Dataset(path, "w", format=kind) as file:
        for name, size in (sizes or {"x": 3, "y": 3}).items():
            file.createDimension(name, size)
        array = file.createVariable("T", "f8", dimensions, fill_value=fill)
        array[:] = VALUES
        if coordinate:
            file.createVariable(coordinate, "f8", (coordinate,))[:] = [1, 2, 3]
        array.setncatts(attributes)
        file.setncatts(of_file or {})
    return path


def zarr_store(path: Path, dimensions: list[str], version: int = 2, **attributes: Any) -> Path:
    """A store of one array T of one chunk that is not compressed."""
    (path / "T").mkdir(parents=True)
    if version == 2:
        (path / ".zgroup").write_text('{"zarr_format": 2}')
        array: dict[str, Any] = {"zarr_format": 2, "shape": [3, 3], "chunks": [3, 3], "dtype": "<f8"}
        array |= {"compressor": None, "filters": None, "fill_value": None, "order": "C"}
        (path / "T" / ".zarray").write_text(json.dumps(array))
        (path / "T" / ".zattrs").write_text(json.dumps({"_ARRAY_DIMENSIONS": dimensions, **attributes}))
        (path / "T" / "0.0").write_bytes(VALUES.tobytes())
        return path
    (path / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group", "attributes": {}}')
    array = {"zarr_format": 3, "node_type": "array", "shape": [3, 3], "data_type": "float64", "fill_value": 0}
    array |= {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [3, 3]}}}
    array |= {"chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}}}
    array |= {"codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]}
    (path / "T" / "zarr.json").write_text(
        json.dumps({**array, "dimension_names": dimensions, "attributes": attributes})
    )
    (path / "T" / "c" / "0").mkdir(parents=True)
    (path / "T" / "c" / "0" / "0").write_bytes(VALUES.tobytes())
    return path


def differing(a: Path, b: Path) -> list[str]:
    """What differs, in both directions the same."""
    forth, back = twinrun.compare(a, b), twinrun.compare(b, a)
    assert forth.verdict == back.verdict
    labels = [d.label for d in forth.attributes]
    assert sorted(labels) == sorted(d.label for d in back.attributes)
    assert forth.verdict == ("different" if labels else "same"), (forth.problems, forth.notes)
    assert all(d.a != d.b and "()" not in d.text() for d in (*forth.attributes, *back.attributes))
    return sorted(labels)


@pytest.mark.parametrize("kind", [FOUR, "NETCDF4_CLASSIC", "NETCDF3_64BIT_DATA"])
def test_dimensions_of_both_netcdf_formats(tmp_path: Path, kind: str) -> None:
    a = write(tmp_path / "a.nc", CLASSIC)
    assert differing(a, write(tmp_path / "same.nc", kind)) == []
    assert differing(a, write(tmp_path / "swapped.nc", kind, ("y", "x"))) == ["T@(dimensions)"]
    other = write(tmp_path / "named.nc", kind, ("x", "z"), sizes={"x": 3, "z": 3})
    assert differing(a, other) == ["@(dimension y)", "@(dimension z)", "T@(dimensions)"]
    assert differing(a, write(tmp_path / "record.nc", kind, sizes={"x": None, "y": 3})) == ["@(dimension x)"]
    unused = write(tmp_path / "unused.nc", kind, sizes={"x": 3, "y": 3, "z": 3})
    assert differing(a, unused) == ["@(dimension z)"]
    longer = write(tmp_path / "longer.nc", kind, sizes={"x": 3, "y": 3, "z": 4})
    both = write(tmp_path / "both.nc", CLASSIC, sizes={"x": 3, "y": 3, "z": 3})
    assert differing(both, longer) == ["@(dimension z)"]


def test_unlimited_dimensions(tmp_path: Path) -> None:
    sizes = {"x": None, "y": 3}
    a, b = (write(tmp_path / f"{kind}.nc", kind, sizes=sizes) for kind in (CLASSIC, FOUR))
    assert differing(a, b) == []


def test_dimensions_with_values(tmp_path: Path) -> None:
    a, b = (write(tmp_path / f"{kind}.nc", kind, coordinate="x") for kind in (CLASSIC, FOUR))
    assert differing(a, b) == []
    swapped = write(tmp_path / "swapped.nc", FOUR, ("y", "x"), coordinate="x")
    assert differing(a, swapped) == ["T@(dimensions)"]


def test_dimensions_without_lists_of_scales(tmp_path: Path) -> None:
    """The NetCDF library can leave the lists out: then a variable has the numbers of its dimensions."""
    a, b = write(tmp_path / "a.nc", CLASSIC), write(tmp_path / "b.nc", FOUR)
    with h5py.File(b, "a") as file:
        del file["T"].attrs["DIMENSION_LIST"]
    assert differing(a, b) == []
    with h5py.File(b, "a") as file:
        file["T"].attrs.modify("_Netcdf4Coordinates", np.array([1, 0], "i4"))
    assert differing(a, b) == ["T@(dimensions)"]


def with_coordinate_of_two_axes(path: Path, second: str, kind: str = FOUR) -> Path:
    with netCDF4.Dataset(path, "w", format=kind) as file:
        for name in "xyz":
            file.createDimension(name, 3)
        file.createVariable("x", "f8", ("x", second))[:] = VALUES
    return path


def test_coordinates_of_two_axes(tmp_path: Path) -> None:
    """HDF5 has no list of scales for them, so two files of NetCDF-4 showed no difference either."""
    a, b = (with_coordinate_of_two_axes(tmp_path / f"{axis}.nc", axis) for axis in "yz")
    assert differing(a, b) == ["x@(dimensions)"]
    assert differing(with_coordinate_of_two_axes(tmp_path / "c.nc", "y", CLASSIC), a) == []


def test_dimensions_of_groups(tmp_path: Path) -> None:
    """A dimension has its plain name where that leads to it, and its path where a nearer one has the name."""
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("x", 3)
        group = file.createGroup("g")
        group.createVariable("far", "f8", ("x",))
        group.createDimension("y", 3)
        group.createVariable("near", "f8", ("y",))
    with h5py.File(tmp_path / "a.nc", "a") as file:
        hidden = file.create_dataset("g/x", data=np.zeros(3))
        hidden.make_scale("x")
    with open_file(tmp_path / "a.nc") as content:
        said = {label: f.text for label, f in content.facts.items() if f.between}
    assert said["g/far@(dimensions)"] == "['/x']" and said["g/near@(dimensions)"] == "['y']"
    assert said["@(dimension x)"] == said["g@(dimension y)"] == "3"


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("kind", [CLASSIC, FOUR])
def test_dimensions_of_zarr(tmp_path: Path, kind: str, version: int) -> None:
    a = write(tmp_path / "a.nc", kind)
    assert differing(a, zarr_store(tmp_path / "same.zarr", ["x", "y"], version)) == []
    assert differing(a, zarr_store(tmp_path / "b.zarr", ["y", "x"], version)) == ["T@(dimensions)"]


def test_dimension_scales_in_groups(tmp_path: Path) -> None:
    """Such a file is no NetCDF-4."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["g/T"] = VALUES
        for axis, name in enumerate("xy"):
            file[f"g/{name}"] = np.arange(3.0)
            file[f"g/{name}"].make_scale(name)
            file["g/T"].dims[axis].attach_scale(file[f"g/{name}"])
    for name, dimensions, same in (("a", ["x", "y"], True), ("b", ["y", "x"], False)):
        (tmp_path / name).mkdir()
        zarr_store(tmp_path / name / "g", dimensions)
        (tmp_path / name / ".zgroup").write_text('{"zarr_format": 2}')
        result = twinrun.compare(tmp_path / "a.h5", tmp_path / name, common=True)
        assert result.same is same
        assert [d.label for d in result.attributes] == ([] if same else ["g/T@(dimensions)"])


@pytest.mark.parametrize("text", ["K", "", "é", "degrees\0", "two\nlines", "x" * 5000])
def test_texts_of_both_netcdf_formats(tmp_path: Path, text: str) -> None:
    a, b = (write(tmp_path / f"{kind}.nc", kind, units=text) for kind in (CLASSIC, FOUR))
    assert differing(a, b) == []
    assert differing(write(tmp_path / "c.nc", CLASSIC, units=text + "!"), b) == ["T@units"]


def test_texts_of_any_length(tmp_path: Path) -> None:
    """NetCDF-4 has another type of text, which classic files lack."""
    a, b = write(tmp_path / "a.nc", CLASSIC, note="one"), write(tmp_path / "b.nc", FOUR)
    with netCDF4.Dataset(b, "a") as file:
        file["T"].setncattr_string("note", "one")
    assert differing(a, b) == []
    with netCDF4.Dataset(b, "a") as file:
        file["T"].setncattr_string("note", ["one", "two"])
    assert differing(a, b) == ["T@note"]


@pytest.mark.parametrize("value", [2.5, [1.0, 2.0], np.float32(2), np.int16([3, 4]), np.nan, np.int8(1)])
def test_numbers_of_both_netcdf_formats(tmp_path: Path, value: Any) -> None:
    a, b = (write(tmp_path / f"{kind}.nc", kind, n=value, fill=1e20) for kind in (CLASSIC, FOUR))
    assert differing(a, b) == []
    other = np.asarray(value).astype("f8" if np.asarray(value).dtype != np.float64 else "f4")
    assert differing(a, write(tmp_path / "type.nc", FOUR, n=other, fill=1e20)) == ["T@n"]
    assert differing(a, write(tmp_path / "more.nc", FOUR, n=[7, 7, 7], fill=1e20)) == ["T@n"]


def test_types_of_numbers_are_shown(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.nc", CLASSIC, n=2.0), write(tmp_path / "b.nc", FOUR, n=np.float32(2))
    (found,) = twinrun.compare(a, b).attributes
    assert found.text() == "T@n: [2.0] (float of 64 bits) against [2.0] (float of 32 bits)"


def with_characters(path: Path, kind: str, texts: list[str], records: bool = False) -> Path:
    with netCDF4.Dataset(path, "w", format=kind) as file:
        file.createDimension("n", None if records else len(texts))
        file.createDimension("length", 5)
        names = file.createVariable("names", "S1", ("n", "length"))
        names[:] = np.array([text.encode() for text in texts], "S5").view("S1").reshape(-1, 5)
        file.createVariable("x", "f8", ("n",))[:] = np.arange(len(texts))
    return path


@pytest.mark.parametrize("records", [False, True])
def test_characters_of_both_netcdf_formats(tmp_path: Path, records: bool) -> None:
    a = with_characters(tmp_path / "a.nc", CLASSIC, ["one", "\u00e9", "three"], records)
    assert (
        differing(a, with_characters(tmp_path / "same.nc", FOUR, ["one", "\u00e9", "three"], records)) == []
    )
    b = with_characters(tmp_path / "b.nc", FOUR, ["one", "\u00e9", "threw"], records)
    for pair in ((a, b), (b, a)):
        result = twinrun.compare(*pair)
        (found,) = [f for f in result.fields if not f.same]
        assert result.verdict == "different" and (found.field, found.different) == ("names", 1)
        assert {found.first_a, found.first_b} == {"'e'", "'w'"} and found.first_index == (2, 4)
    twinrun.index(a)
    assert twinrun.compare(b, a).verdict == "different"


def test_variables_with_the_name_of_another_dimension(tmp_path: Path) -> None:
    """NetCDF-4 stores them under other names."""

    def written(path: Path, kind: str) -> Path:
        with netCDF4.Dataset(path, "w", format=kind) as file:
            for name in "xy":
                file.createDimension(name, 3)
            made = file.createVariable("x", "f8", ("y",))
            made[:] = [1, 2, 3]
            made.units = "K"
        return path

    a, b = (written(tmp_path / f"{kind}.nc", kind) for kind in (CLASSIC, FOUR))
    assert differing(a, b) == []
    with open_file(b) as content:
        assert list(content.fields) == ["x"] and content.facts["x@units"].text == "'K'"
    with netCDF4.Dataset(b, "a") as file:
        file["x"].units = "m"
    assert differing(a, b) == ["x@units"]


def test_an_attribute_that_one_netcdf_file_lacks(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.nc", CLASSIC, note="one"), write(tmp_path / "b.nc", FOUR)
    assert differing(a, b) == ["T@note"]
    titled = write(tmp_path / "titled.nc", FOUR, of_file={"title": "one"}, note="one")
    assert differing(a, titled) == ["@title"]
    # another format may have no place for it
    assert differing(a, zarr_store(tmp_path / "c.zarr", ["x", "y"])) == []


def test_numbers_of_json_have_no_type(tmp_path: Path) -> None:
    a = write(tmp_path / "a.nc", CLASSIC, scale_factor=np.float32(0.5), n=np.int32(3), units="K")
    same = zarr_store(tmp_path / "same.zarr", ["x", "y"], scale_factor=0.5, n=3, units="K")
    assert differing(a, same) == []
    other = zarr_store(tmp_path / "other.zarr", ["x", "y"], scale_factor=0.25, n=4, units="m")
    assert differing(a, other) == ["T@n", "T@scale_factor", "T@units"]


@pytest.mark.parametrize(
    ("stored", "equal", "others"),
    [
        (np.array([[1.0, 2.0], [3.0, 4.0]]), [[1, 2], [3, 4]], [[1, 2, 3, 4], [[1, 3], [2, 4]], [[1, 2, 3, 4]]]),
        (np.array([[b"a", b"bc"]], "S2"), [["a", "bc"]], [["a", "bc"], [["a"], ["bc"]], "abc"]),
        (np.array([1.5]), 1.5, ["1.5", [1.5, 1.5], True]),
        (np.True_, True, [False, 1, "True", [True, True]]),
        (np.array([True, False]), [True, False], [[1, 0], [False, True]]),
        (np.array([np.nan, np.inf]), [float("nan"), float("inf")], [[float("inf"), float("nan")]]),
        (np.array([2**53 + 1]), 2**53 + 1, [2**53, float(2**53)]),
    ],
)  # fmt: skip
def test_shapes_and_types_of_attributes_count(
    tmp_path: Path, stored: Any, equal: Any, others: list[Any]
) -> None:
    """Between HDF5, which has arrays of any shape, and the JSON of Zarr, which has lists in lists."""
    a = tmp_path / "a.h5"
    with h5py.File(a, "w") as file:
        file["T"] = VALUES
        file["T"].attrs["v"] = stored
    for number, value in enumerate([equal, *others]):
        b = zarr_store(tmp_path / f"{number}.zarr", ["x", "y"], v=value)
        for one, other in ((a, b), (b, a)):
            labels = [d.label for d in twinrun.compare(one, other).attributes]
            assert ("T@v" in labels) == (number != 0), value


def test_dates_in_attributes(tmp_path: Path) -> None:
    """Their types have brackets: a text of a type is no shape."""
    dates = np.arange("2000-01-01", "2002-09-27", dtype="M8[D]").astype("M8[ns]")
    for name, last in (("a", 0), ("b", 1)):
        changed = dates.copy()
        changed[-1] += np.timedelta64(last, "D")
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["T"] = VALUES
            file["T"].attrs["when"] = changed.astype(h5py.opaque_dtype(changed.dtype))
    a = tmp_path / "a.h5"
    (found,) = twinrun.compare(a, tmp_path / "b.h5").attributes
    assert found.label == "T@when" and found.a != found.b
    b = zarr_store(tmp_path / "c.zarr", ["x", "y"], when="2000-01-01")
    for one, other in ((a, b), (b, a)):
        assert [d.label for d in twinrun.compare(one, other).attributes] == ["T@when"]


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
ARRAYS = st.sampled_from(
    ["f8", "f4", "i8", "u1", "b1", "c8", "S3", "U2", "M8[ns]", "m8[25s]", "O", "V3"]
).map(lambda kind: np.zeros(2, kind))
VALUES_OF_FACTS = st.recursive(PLAIN | ARRAYS, lambda inner: st.lists(inner, max_size=3), max_leaves=6)


@given(VALUES_OF_FACTS, VALUES_OF_FACTS)
def test_values_of_all_kinds(x: object, y: object) -> None:
    """None ends in an error, each equals itself, and no two are shown alike."""
    a, b = Fact.of("T", "v", x), Fact.of("T", "v", y)
    assert equal_between([a], [a])
    assert equal_between([a], [b]) == equal_between([b], [a])
    assert a.identity == b.identity or len({*texts_apart(a, b)}) == 2


def test_members_of_a_variable_that_is_no_coordinate(tmp_path: Path) -> None:
    """A compound variable with the name of a dimension: all that is said of it has that name."""
    for name, units in (("a", "K"), ("b", "m")):
        with h5py.File(tmp_path / f"{name}.nc", "w") as file:
            file.attrs["_NCProperties"] = "version=2,netcdf=4.9.2,hdf5=1.14.2"
            file["_nc4_non_coord_x"] = np.zeros(3, [("re", "f8"), ("im", "f8")])
            file["_nc4_non_coord_x"].attrs["units"] = units
    for given_fields in (None, ["x.re"]):
        result = twinrun.compare(tmp_path / "a.nc", tmp_path / "b.nc", fields=given_fields)
        assert result.verdict == "different" and [d.label for d in result.attributes] == ["x@units"]


def test_the_rules_of_a_file_are_no_attribute(tmp_path: Path) -> None:
    """NETCDF4_CLASSIC differs from NETCDF4 in a mark that the library does not show."""
    a, b = (write(tmp_path / f"{kind}.nc", kind, units="K") for kind in (FOUR, "NETCDF4_CLASSIC"))
    assert differing(a, b) == []


def test_facts_between_formats_are_not_kept(tmp_path: Path) -> None:
    """Metadata and golden files of NetCDF-4 hold for later versions, which may say more of them."""
    path = write(tmp_path / "a.nc", FOUR)
    kept = golden.save(path, tmp_path / "golden")
    text = (Path(kept.path) / "golden.json").read_text()
    assert "DIMENSION_LIST" in text and "(dimensions)" not in text and "(dimension x)" not in text
    assert golden.check(kept.path, path).same
    result = twinrun.compare(path, write(tmp_path / "b.nc", FOUR, ("y", "x")))
    assert [d.label for d in result.attributes] == ["T@DIMENSION_LIST"]


def test_long_values_of_golden_files_are_not_shown_alike(tmp_path: Path) -> None:
    a, b = (write(tmp_path / f"{name}.nc", FOUR, note="x" * 500 + name) for name in "ab")
    golden.save(a, tmp_path / "golden")
    (found,) = golden.check(tmp_path / "golden", b).attributes
    assert found.a != found.b and "(digest " in str(found.a)
    (found,) = twinrun.compare(a, b).attributes
    assert found.a != found.b and "(from character 490 of 501)" in str(found.a)


def test_metadata_of_two_formats(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.nc", CLASSIC), write(tmp_path / "b.nc", FOUR, ("y", "x"))
    for path in (a, b):
        twinrun.index(path)
    assert differing(a, b) == ["T@(dimensions)"]
    assert differing(Path(f"{a}.twm"), Path(f"{b}.twm")) == ["T@(dimensions)"]
