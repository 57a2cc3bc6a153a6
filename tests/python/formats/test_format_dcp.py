import shutil
from pathlib import Path

import numpy as np
import pytest
from format_checks import check_content, mutations, not_numbers
from hypothesis import given, settings
from hypothesis import strategies as st
from test_format_pytorch import brain, values

from twinrun.errors import DamagedFile, FormatError, MissingFile
from twinrun.formats import detect, open_file
from twinrun.formats.folder import list_folder

FOLDER = Path(__file__).parent / "fixtures" / "torch" / "dcp"


def expected():
    return {
        "model.rows": values("model.rows", (5, 3)),
        "model.columns": values("model.columns", (4, 5), "f8"),
        "model.replicated": values("model.replicated"),
        "model.bf16": brain(values("model.bf16", (4, 2))),
        "model.plain": values("model.plain", (7,), "i8"),
        "optimizer.state.rows.step": np.array(3, "f4"),
    }


@pytest.fixture
def copy(tmp_path):
    return Path(shutil.copytree(FOLDER, tmp_path / "step-12"))


def test_a_folder_of_two_ranks(copy):
    assert detect(copy).name == "dcp"
    with open_file(copy) as content:
        assert content.format == "dcp" and not content.skipped
        check_content(content, expected())
        assert content.fields["model.bf16"].dtype == "bf16"
        # Cut along the first axis: one extent a rank. Along the second: put together.
        assert len(content.fields["model.rows"].extents) == 2
        assert content.fields["model.columns"].extents is None
        assert not_numbers(content) == {"optimizer.lr": "bytes", "epoch": "bytes"} and not content.notes
        assert str(copy / ".metadata") in content.files()


def test_it_is_one_data_set_in_a_folder_of_steps(copy):
    listing = list_folder(copy.parent)
    assert [(f.relative, f.format, f.step) for f in listing.files] == [("step-12", "dcp", 12)]


def test_a_lost_file_costs_its_tensors_only(copy):
    (copy / "__0_0.distcp").unlink()
    with open_file(copy) as content:
        assert isinstance(content.fields["model.rows"].problem, MissingFile)
        with pytest.raises(MissingFile, match="__0_0"):
            content.fields["model.rows"].elements()
        readable = [n for n, f in content.fields.items() if f.problem is None]
        assert readable and set(readable) < {*expected(), "optimizer.lr", "epoch"}


def test_files_elsewhere_are_not_opened(copy):
    data = (copy / ".metadata").read_bytes()
    (copy.parent / "__0_0.distcp").write_bytes((copy / "__0_0.distcp").read_bytes())
    assert data.count(b"\x0c__0_0.distcp") == 1
    (copy / ".metadata").write_bytes(data.replace(b"\x0c__0_0.distcp", b"\x0c/tmp_0.distc"))
    with open_file(copy) as content:
        problems = [f.problem for f in content.fields.values() if f.problem is not None]
        assert problems and all("not beside the metadata" in str(p) for p in problems)


def test_other_metadata(copy):
    (copy / ".metadata").write_bytes(b"\x80\x02}.")
    with pytest.raises(DamagedFile, match="metadata"):
        open_file(copy)
    (copy / ".metadata").write_bytes(b"")
    with pytest.raises(DamagedFile):
        open_file(copy)
    with pytest.raises(FormatError):
        open_file(copy.parent, format="dcp")


@settings(max_examples=300)
@given(st.data())
def test_damage_ends_in_format_errors(tmp_path, data):
    folder = tmp_path / "x"
    if not folder.exists():
        shutil.copytree(FOLDER, folder)
    name = data.draw(st.sampled_from([".metadata", "__0_0.distcp", "__1_0.distcp"]))
    try:
        (folder / name).write_bytes(data.draw(mutations((FOLDER / name).read_bytes())))
        with open_file(folder, format="dcp") as content:
            for field in content.fields.values():
                try:
                    field.elements(0, min(field.size, 1000))
                except FormatError as error:
                    assert str(error).isprintable()
    except FormatError as error:
        assert str(error).isprintable()
    finally:
        shutil.copy(FOLDER / name, folder / name)
