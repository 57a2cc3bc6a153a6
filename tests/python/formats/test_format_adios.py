import random
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from format_checks import check_content, check_field, not_numbers, texts, written_now

from twinrun.errors import DamagedFile, FormatError, MissingPackage
from twinrun.formats import adios, detect, open_file
from twinrun.formats.folder import list_folder

FILES = Path(__file__).parent / "fixtures" / "adios"


def expected(step: int) -> dict[str, np.ndarray]:
    """What fixtures/adios/make.py wrote."""
    arrays = {
        "time": np.array(step * 0.5),
        "grid": np.arange(12.0).reshape(3, 4) + step,
        "long": np.arange(300, dtype="f4") * step,
        "tokens/block-0": np.arange(2.0 + step) + 100 * step,
        "c64": (np.arange(3) + 1j * step).astype("c8"),
    }
    if step % 2:
        arrays["odd"] = np.arange(3 + step, dtype="i4") + step
    return arrays


def check(path):
    assert detect(path).name == "adios"
    with open_file(path) as content:
        assert content.steps() == [0, 1, 2, 3] and content.times == {s: s * 0.5 for s in range(4)}
        arrays = {f"step-{s}/{n}": a for s in range(4) for n, a in expected(s).items()}
        check_content(content, arrays)
        assert {f.series for f in content.fields.values()} == {*expected(1), "name"}
        assert not content.skipped and not_numbers(content) == {f"step-{s}/name": "text" for s in range(4)}
        assert all(len(texts(content.fields[name])) == 1 for name in not_numbers(content))
        assert "@units" in content.facts and "@scale" in content.facts
        assert any(f.endswith("data.0") for f in content.files())
    with open_file(path, attributes=True) as content:
        check_field(content.fields["@scale"], content.fields["@scale"].elements().reshape(()))
        assert content.fields["@scale"].elements().tolist() == [2.5]
        assert "@units" in content.facts and "@scale" not in content.facts


@pytest.mark.parametrize("name", ["bp4.bp", "bp5.bp"])
def test_files_of_the_library(name):
    pytest.importorskip("adios2")
    check(FILES / name)


def test_files_of_the_library_that_is_here(tmp_path):
    written_now(FILES, "all", "adios2", tmp_path)
    for name in ("bp4.bp", "bp5.bp"):
        check(tmp_path / name)


def test_a_folder_of_files(tmp_path):
    for step in (10, 20):
        shutil.copytree(FILES / "bp5.bp", tmp_path / f"out_{step}.bp")
    assert [(f.format, f.step) for f in list_folder(tmp_path).files] == [("adios", 10), ("adios", 20)]


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "adios2", None)
    with pytest.raises(MissingPackage, match=r"pip install 'twinrun\[adios\]'"):
        open_file(FILES / "bp5.bp")


def test_reading_after_it_was_closed():
    pytest.importorskip("adios2")
    content = open_file(FILES / "bp5.bp")
    content.close()
    content.close()
    with pytest.raises(FormatError, match="closed"):
        content.fields["step-0/grid"].elements()


def copy(tmp_path):
    shutil.rmtree(tmp_path / "x.bp", ignore_errors=True)
    return Path(shutil.copytree(FILES / "bp5.bp", tmp_path / "x.bp"))


def read_all(path):
    with open_file(path, format="adios") as content:
        for field in content.fields.values():
            assert field.elements().size == field.size


def test_a_package_that_crashes_or_waits_takes_nothing_with_it(tmp_path, monkeypatch):
    pytest.importorskip("adios2")
    monkeypatch.setattr(adios, "_PATIENCE", 3.0)
    for name, length in {
        "mmd.0": 1046,
        "data.0": 9000,
    }.items():  # a segmentation fault, and a wait without end
        path = copy(tmp_path)
        with open(path / name, "r+b") as file:
            file.truncate(length)
        with pytest.raises(DamagedFile, match=r"crashed|no answer|EXCEPTION"):
            read_all(path)


def test_damage_ends_in_format_errors(tmp_path, monkeypatch):
    pytest.importorskip("adios2")
    monkeypatch.setattr(adios, "_PATIENCE", 1.5)
    for seed in range(8):
        path = copy(tmp_path)
        rng = random.Random(seed)
        place = path / rng.choice(["md.idx", "md.0", "mmd.0"])
        data = bytearray(place.read_bytes())
        for _ in range(3):
            data[rng.randrange(len(data))] = rng.randrange(256)
        place.write_bytes(data)
        try:
            with open_file(path, format="adios") as content:
                for field in list(content.fields.values())[:3]:
                    field.elements(0, min(field.size, 1000))
        except FormatError as error:
            assert str(error).isprintable()
