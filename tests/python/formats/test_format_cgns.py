"""CGNS files that pyCGNS writes: names, texts and arrays of nodes."""

from pathlib import Path

import numpy as np
import pytest
from format_checks import check_field, damaged_versions, no_false_same

import twinrun
from twinrun.errors import Unmatched
from twinrun.formats import detect, open_file

h5py = pytest.importorskip("h5py")
cgns_map = pytest.importorskip("CGNS.MAP")

SHAPE = (4, 3, 2)


def node(name: str, value: object, children: list[object], kind: str) -> list[object]:
    return [name, value, children, kind]


def text(name: str, words: str, kind: str) -> list[object]:
    return node(name, np.array(list(words.encode()), "u1").view("S1"), [], kind)


def array(name: str, value: np.ndarray) -> list[object]:
    return node(name, np.asfortranarray(value), [], "DataArray_t")


def write(
    path: Path,
    change: float = 0.0,
    location: str = "Vertex",
    names: tuple[str, str] = ("Pressure", "Density"),
):
    grid = np.arange(24.0).reshape(SHAPE)
    solution = [text("GridLocation", location, "GridLocation_t")]
    solution += [array(name, grid * number + 0.5) for number, name in enumerate(names, 1)]
    solution[1][1][2, 1, 1] += change
    coordinates = [array(f"Coordinate{axis}", grid + number) for number, axis in enumerate("XYZ")]
    sizes = np.array([[4, 3, 0], [3, 2, 0], [2, 1, 0]], "i4", order="F")
    zone = node(
        "Zone 1",
        sizes,
        [
            text("ZoneType", "Structured", "ZoneType_t"),
            node("GridCoordinates", None, coordinates, "GridCoordinates_t"),
            node("Solution", None, solution, "FlowSolution_t"),
        ],
        "Zone_t",
    )
    base = node("Base", np.array([3, 3], "i4"), [zone], "CGNSBase_t")
    version = node("CGNSLibraryVersion", np.array([3.4], "f4"), [], "CGNSLibraryVersion_t")
    cgns_map.save(str(path), node("CGNSTree", None, [version, base], "CGNSTree_t"))


def test_fields_are_named_by_nodes(tmp_path):
    write(tmp_path / "a.cgns")
    assert detect(tmp_path / "a.cgns").name == "hdf5"
    grid = np.arange(24.0).reshape(SHAPE)
    with open_file(tmp_path / "a.cgns") as content:
        check_field(content.fields["Base/Zone 1/Solution/Pressure"], grid + 0.5)
        check_field(content.fields["Base/Zone 1/Solution/Density"], grid * 2 + 0.5)
        check_field(content.fields["Base/Zone 1/GridCoordinates/CoordinateZ"], grid + 2)
        assert not any(" data" in name for name in content.fields) and not content.skipped
        location = content.facts["Base/Zone 1/Solution/GridLocation@(text)"]
        assert location.text == "'Vertex'" and location.meaning
        assert content.facts["Base/Zone 1/ZoneType@(text)"].text == "'Structured'"
        assert content.facts["Base/Zone 1/Solution@label"].text == "'FlowSolution_t'"
        assert not any(label.endswith(("@flags", "@name")) for label in content.facts if label[0] != "@")
    with open_file(tmp_path / "a.cgns", convention="none") as content:
        assert "Base/Zone 1/Solution/Pressure/ data" in content.fields


def test_a_difference_is_reported_at_its_place(tmp_path):
    write(tmp_path / "a.cgns")
    write(tmp_path / "b.cgns", change=1.0)
    result = twinrun.compare(tmp_path / "a.cgns", tmp_path / "b.cgns")
    found = [(f.field, f.different, f.first_index) for f in result.fields if f.different]
    assert found == [("Base/Zone 1/Solution/Pressure", 1, (2, 1, 1))]


def test_a_text_of_another_length_is_a_difference(tmp_path):
    write(tmp_path / "a.cgns")
    write(tmp_path / "b.cgns", location="CellCenter")
    result = twinrun.compare(tmp_path / "a.cgns", tmp_path / "b.cgns")
    assert result.verdict == "different"
    assert "GridLocation" in str(result) and "changes what its numbers mean" in str(result)


def test_a_node_that_one_lacks_is_said(tmp_path):
    write(tmp_path / "a.cgns")
    write(tmp_path / "b.cgns", names=("Pressure", "Mach"))
    with pytest.raises(Unmatched, match="field 'Base/Zone 1/Solution/Density'"):
        twinrun.compare(tmp_path / "a.cgns", tmp_path / "b.cgns")


def test_a_link_to_another_file_is_followed(tmp_path):
    write(tmp_path / "a.cgns")
    with h5py.File(tmp_path / "grid.cgns", "w") as other, h5py.File(tmp_path / "a.cgns", "a") as file:
        file.copy("Base/Zone 1/GridCoordinates", other, "grid")
        attributes = dict(file["Base/Zone 1/GridCoordinates"].attrs)
        del file["Base/Zone 1/GridCoordinates"]
        # As the CGNS library lays out a link.
        link = file.create_group("Base/Zone 1/GridCoordinates")
        link.attrs.update({**attributes, "type": np.bytes_(b"LK")})
        link[" path"] = np.frombuffer(b"/grid\0", "i1")
        link[" file"] = np.frombuffer(b"grid.cgns\0", "i1")
        link[" link"] = h5py.ExternalLink("grid.cgns", "/grid")
    with open_file(tmp_path / "a.cgns") as content:
        check_field(content.fields["Base/Zone 1/GridCoordinates/CoordinateX"], np.arange(24.0).reshape(SHAPE))
        assert content.facts["Base/Zone 1/GridCoordinates@(path)"].text == "'/grid'"
        assert any(path.endswith("grid.cgns") for path in content.files())


def shown(path: Path) -> object:
    """What h5py shows of the nodes: CGNS.MAP would crash on damaged files."""
    found = {}

    def visit(name: str, item: object) -> None:
        own = {k: repr(v) for k, v in item.attrs.items() if k != "flags"}
        found[name] = (own, item[()].tobytes() if isinstance(item, h5py.Dataset) else None)

    with h5py.File(path) as file:
        file.visititems(visit)
    return found


def test_damage_is_never_the_same(tmp_path):
    write(tmp_path / "a.cgns")
    versions = damaged_versions((tmp_path / "a.cgns").read_bytes(), 4, cuts=8, flips=60)
    assert no_false_same(tmp_path / "a.cgns", versions, shown)["error"] >= 8
