import shutil
from pathlib import Path

import numpy as np
import pytest
from format_checks import check_field, mutations, survives, written_now
from hypothesis import given, settings
from hypothesis import strategies as st

from twinrun.errors import DamagedFile
from twinrun.formats import open_file
from twinrun.formats.folder import list_folder

h5py = pytest.importorskip("h5py")
FILES = Path(__file__).parent / "fixtures" / "hdf5"


def expected(step: int) -> dict[str, np.ndarray]:
    """What fixtures/hdf5/make.py wrote."""
    grid = np.arange(12.0).reshape(3, 4)
    row = np.arange(6) * 3 + step
    return {
        "meshes/E/x": grid + step,
        "meshes/E/y": grid + step + 1000,
        "meshes/E/z": np.full((3, 4), 2.5),
        "meshes/rho": np.arange(5, dtype="f4") + step,
        "particles/electrons/id": row.astype("u8"),
        "particles/electrons/position/x": row.astype("f8"),
        "particles/electrons/position/y": row.astype("f8"),
        "particles/electrons/positionOffset/x": np.zeros(6),
        "particles/electrons/positionOffset/y": np.zeros(6),
    }


def check_steps(path, steps):
    with open_file(path) as content:
        several = len(steps) > 1
        assert content.steps() == steps and content.times == {s: s * 0.5 for s in steps}
        assert content.time == (None if several else steps[0] * 0.5)
        arrays = {(s, n): a for s in steps for n, a in expected(s).items()}
        assert {(f.step, f.series) for f in content.fields.values()} == set(arrays)
        for field in content.fields.values():
            prefix = f"step-{field.step}/" if several else ""
            assert field.name == prefix + field.series
            constant = "Offset" in field.name or field.name.endswith("/z")
            check_field(field, arrays[field.step, field.series], in_extents=not constant)
            species = field.series.startswith("particles")
            assert field.group == ("particles/electrons" if species else None)
            assert field.key == (prefix + "particles/electrons/id" if species else None)


def test_several_iterations_in_a_file():
    check_steps(FILES / "openpmd.h5", [100, 200])


def test_one_iteration_a_file(tmp_path):
    for step in (100, 200):
        check_steps(FILES / f"openpmd_000{step}.h5", [step])
        shutil.copy(FILES / f"openpmd_000{step}.h5", tmp_path)
    assert list_folder(tmp_path).steps() == [100, 200]


def test_files_of_the_library_that_is_here(tmp_path):
    written_now(FILES, "openpmd", "openpmd_api", tmp_path)
    check_steps(tmp_path / "openpmd.h5", [100, 200])


def test_as_plain_hdf5_and_with_attributes():
    with open_file(FILES / "openpmd.h5", convention="none") as content:
        assert "data/100/meshes/E/x" in content.fields and not content.steps()
    with open_file(FILES / "openpmd.h5", attributes=True) as content:
        assert content.fields["step-100/meshes/E@gridSpacing"].elements().tolist() == [1, 1]


def copy_with(tmp_path, change):
    path = Path(shutil.copy(FILES / "openpmd.h5", tmp_path / "x.h5"))
    with h5py.File(path, "a") as file:
        change(file)
    return path


def test_what_is_odd(tmp_path):
    def base(file):
        file.attrs["basePath"] = "/data/"

    with open_file(copy_with(tmp_path, base)) as content:
        assert "plain HDF5" in content.notes[0] and "data/100/meshes/E/x" in content.fields

    def shape(file):
        file["data/100/meshes/E/z"].attrs["shape"] = np.array([1 << 40, 1 << 40], "u8")

    with pytest.raises(DamagedFile, match=r"2\^63"):
        open_file(copy_with(tmp_path, shape))

    def values(file):
        file["data/100/meshes/E/z"].attrs["value"] = "text"
        file["data/200/meshes/E/z"].attrs["value"] = [1.0, 2.0]
        file.create_group("data/notes")
        file["other"] = np.arange(3)

    with open_file(copy_with(tmp_path, values)) as content:
        assert {n.split("/", 1)[1] for n, _ in content.skipped} == {"meshes/E/z"} and len(
            content.skipped
        ) == 2
        assert content.fields["other"].step is None


@settings(max_examples=100)
@given(st.data())
def test_damage_ends_in_format_errors(tmp_path, data):
    survives(
        tmp_path / "x.h5", data.draw(mutations((FILES / "openpmd_000100.h5").read_bytes())), format="hdf5"
    )
