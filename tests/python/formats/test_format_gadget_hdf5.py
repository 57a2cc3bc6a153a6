import numpy as np
import pytest
from format_checks import check_content

import twinrun
from twinrun.errors import DamagedFile
from twinrun.formats import open_file
from twinrun.formats.folder import list_folder

h5py = pytest.importorskip("h5py")


def write(path, counts=(5, 7), files=1, box=25.0, rows=None):
    """A snapshot as GADGET-4, AREPO and SWIFT lay it out."""
    rng = np.random.default_rng(3)
    arrays = {}
    with h5py.File(path, "w") as file:
        header = file.create_group("Header")
        header.attrs["NumPart_ThisFile"] = np.array([*counts, 0, 0, 0, 0], "u4")
        header.attrs["NumPart_Total"] = np.array(counts, "u8") * files
        header.attrs["NumFilesPerSnapshot"] = files
        header.attrs["Time"] = 0.25
        header.attrs["BoxSize"] = box
        header.attrs["MassTable"] = np.array([0.0, 0.5, 0, 0, 0, 0])
        for kind, count in enumerate(counts):
            group = f"PartType{kind}"
            count = rows or count
            arrays[f"{group}/Coordinates"] = rng.random((count, 3))
            arrays[f"{group}/ParticleIDs"] = rng.permutation(count).astype("u8")
        arrays["PartType0/Density"] = rng.random(rows or counts[0]).astype("f4")
        for name, array in arrays.items():
            file[name] = array
        arrays |= {f"Header/{n}": np.asarray(header.attrs[n]) for n in ("Time", "BoxSize", "MassTable")}
        file["Cosmology/Table"] = np.arange(3.0)
        arrays["Cosmology/Table"] = np.arange(3.0)
    return arrays


def test_a_snapshot(tmp_path):
    arrays = write(tmp_path / "snap_010.hdf5")
    with open_file(tmp_path / "snap_010.hdf5") as content:
        check_content(content, arrays)
        assert content.time == 0.25 and content.period == (25.0, 25.0, 25.0) and not content.notes
        for name, field in content.fields.items():
            group = name.split("/")[0]
            particles = group.startswith("PartType")
            assert field.group == (group if particles else None)
            assert field.key == (f"{group}/ParticleIDs" if particles else None)
    with open_file(tmp_path / "snap_010.hdf5", attributes=True) as content:
        assert content.fields["Header@Time"].elements().tolist() == [0.25]
    write(tmp_path / "x.hdf5", box=[1.0, 2.0, 3.0])
    with open_file(tmp_path / "x.hdf5") as content:
        assert content.period == (1.0, 2.0, 3.0)
    write(tmp_path / "x.hdf5", box=0.0)
    with open_file(tmp_path / "x.hdf5") as content:
        assert content.period is None


def test_the_other_names_that_swift_gives(tmp_path):
    arrays = write(tmp_path / "x.hdf5")
    with h5py.File(tmp_path / "x.hdf5", "a") as file:
        file["GasParticles"] = h5py.SoftLink("/PartType0")
    with open_file(tmp_path / "x.hdf5") as content:
        check_content(content, arrays)
        assert not content.skipped
        said = [f.text for f in content.facts.values() if f.owner == "GasParticles"]
        assert said == ["\"to '/PartType0'\"", "\"the same as 'PartType0'\""]


def test_a_snapshot_in_several_files(tmp_path):
    folder = tmp_path / "snapdir_010"
    folder.mkdir()
    for part in range(2):
        write(folder / f"snap_010.{part}.hdf5", files=2)
    assert [(f.step, f.rank) for f in list_folder(tmp_path).files] == [(10, 0), (10, 1)]
    with open_file(folder / "snap_010.0.hdf5") as content:
        assert "one of the 2 files" in content.notes[0] and "Header/MassTable" in content.fields
    with open_file(folder / "snap_010.1.hdf5") as content:
        assert "Header/MassTable" not in content.fields  # told once


def test_masses_that_only_the_header_tells(tmp_path):
    for name in ("a", "b"):
        write(tmp_path / f"{name}.hdf5")
    with h5py.File(tmp_path / "b.hdf5", "a") as file:
        file["Header"].attrs["MassTable"] = [0, 0.75, 0, 0, 0, 0]
    result = twinrun.compare(tmp_path / "a.hdf5", tmp_path / "b.hdf5")
    assert (result.different, result.first.field, result.first.first_index) == (1, "Header/MassTable", (1,))


def test_headers_that_lie(tmp_path):
    write(tmp_path / "x.hdf5", rows=4)
    with pytest.raises(DamagedFile, match=r"header says 5 particles.*convention=none"):
        open_file(tmp_path / "x.hdf5")
    with open_file(tmp_path / "x.hdf5", convention="none") as content:
        assert content.fields["PartType0/Density"].size == 4 and content.time is None
    write(tmp_path / "x.hdf5")
    with h5py.File(tmp_path / "x.hdf5", "a") as file:
        file["Header"].attrs["Time"] = "soon"
    with pytest.raises(DamagedFile):
        open_file(tmp_path / "x.hdf5")
