import shutil
from pathlib import Path

import numpy as np
import pytest
from format_checks import check_content, check_field, mutations, survives, written_now
from hypothesis import given, settings
from hypothesis import strategies as st

from twinrun.errors import DamagedFile
from twinrun.formats import open_file

h5py = pytest.importorskip("h5py")
FILES = Path(__file__).parent / "fixtures" / "hdf5"
TIMES = {0: 0.5, 1: 1.5, 2: 2.5}


def grid(step: int) -> dict[str, np.ndarray]:
    """What fixtures/hdf5/make.py wrote: a line of 4 + step points."""
    points = 4 + step
    at = np.arange(points)
    return {
        "Points": np.stack([at, np.full(points, step), np.full(points, 0.5)], 1).astype("f4"),
        "Connectivity": np.stack([at[:-1], at[1:]], 1).reshape(-1),
        "Offsets": 2 * at,
        "Types": np.full(points - 1, 3, "u1"),
        "NumberOfPoints": np.array([points]),
        "NumberOfCells": np.array([points - 1]),
        "NumberOfConnectivityIds": np.array([2 * (points - 1)]),
        "PointData/p": at + 100.0 * step,
        "PointData/ids": at + 7,
        "CellData/c": at[:-1] + 100.0 * step,
    }


def poly(step: int) -> dict[str, np.ndarray]:
    none = np.empty(0, "i8")
    lines = 1 + step
    arrays = {k: v for k, v in grid(step).items() if k in ("Points", "NumberOfPoints", "PointData/p")}
    arrays["CellData/c"] = np.arange(3 + step, dtype="f4") + 100 * step
    ids = {
        "Vertices": (np.arange(2), np.arange(3)),
        "Lines": (np.concatenate([np.arange(a, a + 3) for a in range(lines)]), 3 * np.arange(lines + 1)),
        "Polygons": (none, np.zeros(1, "i8")),
        "Strips": (none, np.zeros(1, "i8")),
    }
    for name, (connectivity, offsets) in ids.items():
        arrays[f"{name}/Connectivity"], arrays[f"{name}/Offsets"] = connectivity, offsets
        arrays[f"{name}/NumberOfCells"] = np.array([len(offsets) - 1])
        arrays[f"{name}/NumberOfConnectivityIds"] = np.array([len(connectivity)])
    return arrays


def image(step: int) -> dict[str, np.ndarray]:
    return {"PointData/p": np.arange(24.0).reshape(2, 3, 4) + 100 * step}


@pytest.mark.parametrize(("name", "expected"), [("grid", grid), ("poly", poly), ("image", image)])
def test_steps_of_a_file(name, expected):
    with open_file(FILES / f"{name}_steps.vtkhdf") as content:
        assert content.times == TIMES and content.steps() == [0, 1, 2]
        arrays = {(s, n): a for s in TIMES for n, a in expected(s).items()}
        assert {(f.step, f.series) for f in content.fields.values()} == set(arrays)
        for field in content.fields.values():
            check_field(field, arrays[field.step, field.series])
            group = field.series.split("/")[0]
            group = {"Points": "PointData"}.get(group, group)
            assert field.group == (group if group in ("PointData", "CellData") else None)
            ids = name == "grid" and group == "PointData"
            assert field.key == (f"step-{field.step}/PointData/ids" if ids else None)


def test_files_of_one_step():
    for name, expected in {"grid": grid, "image": image}.items():
        with open_file(FILES / f"{name}.vtkhdf") as content:
            assert not content.steps()
            check_content(content, expected(2))
    with open_file(FILES / "amr.vtkhdf") as content:
        levels = {f"Level {n}/CellData/c": np.arange(8.0).reshape(2, 2, 2) + 100 * n for n in range(2)}
        check_content(content, levels)


def test_ids_where_older_versions_name_them(tmp_path):
    shutil.copy(FILES / "grid.vtkhdf", tmp_path / "x.vtkhdf")
    with h5py.File(tmp_path / "x.vtkhdf", "a") as file:
        del file["VTKHDF/PointData/ids"].attrs["Attribute"]
        file["VTKHDF/PointData"].attrs["GlobalIds"] = np.bytes_("ids")
    with open_file(tmp_path / "x.vtkhdf") as content:
        assert content.fields["Points"].key == "PointData/ids"


def test_steps_that_lie(tmp_path):
    def changed(source, change):
        shutil.copy(FILES / source, tmp_path / "x.vtkhdf")
        with h5py.File(tmp_path / "x.vtkhdf", "a") as file:
            change(file["VTKHDF"])
        return tmp_path / "x.vtkhdf"

    def one(label, value):
        return lambda root: root[label].__setitem__(1, value)

    for source, change in [
        ("grid_steps.vtkhdf", one("Steps/PointOffsets", 14)),
        ("grid_steps.vtkhdf", one("Steps/PointOffsets", -1)),
        ("grid_steps.vtkhdf", one("NumberOfPoints", 1 << 40)),
        ("grid_steps.vtkhdf", one("NumberOfCells", -5)),
        ("grid_steps.vtkhdf", one("Steps/PartOffsets", 77)),
        ("grid_steps.vtkhdf", lambda root: root["Steps"].attrs.__setitem__("NSteps", 900_000)),
        ("grid_steps.vtkhdf", lambda root: root["Steps"].attrs.__setitem__("NSteps", -1)),
        ("grid_steps.vtkhdf", lambda root: root["Steps"].attrs.__delitem__("NSteps")),
        ("image_steps.vtkhdf", one("Steps/PointDataOffsets/p", 3)),
        ("image_steps.vtkhdf", lambda root: root["Steps"].attrs.__setitem__("NSteps", 9)),
    ]:
        with pytest.raises(DamagedFile):
            open_file(changed(source, change))
        with open_file(tmp_path / "x.vtkhdf", convention="none") as content:
            assert any(name.startswith("VTKHDF/") for name in content.fields)

    def kind(root):
        root.attrs["Type"] = np.bytes_("OverlappingAMR")

    with open_file(changed("grid_steps.vtkhdf", kind)) as content:
        assert "steps are not supported" in content.notes[0]
        check_field(content.fields["PointData/p"], np.concatenate([grid(s)["PointData/p"] for s in TIMES]))


def test_files_of_the_library_that_is_here(tmp_path):
    written_now(FILES, "vtkhdf", "vtk", tmp_path)
    with open_file(tmp_path / "grid_steps.vtkhdf") as content:
        for step in TIMES:
            for name, array in grid(step).items():
                check_field(content.fields[f"step-{step}/{name}"], array)


@settings(max_examples=100)
@given(st.data())
def test_damage_ends_in_format_errors(tmp_path, data):
    name = data.draw(st.sampled_from(["image_steps.vtkhdf", "grid_steps.vtkhdf"]))
    survives(tmp_path / "x.h5", data.draw(mutations((FILES / name).read_bytes())), format="hdf5")
