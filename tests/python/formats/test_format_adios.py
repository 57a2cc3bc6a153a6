import contextlib
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from format_checks import check_content, check_field, not_numbers, texts, written_now

import twinrun
from twinrun.errors import DamagedFile, FormatError, MissingPackage
from twinrun.formats import adios, adios_worker, detect, open_file, worker
from twinrun.formats.adios_files import check_files
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


def test_numbers_above_127_of_8_bits(tmp_path):
    """The package takes the largest of them for a letter."""
    adios2 = pytest.importorskip("adios2")
    image = np.random.default_rng(1).integers(0, 256, (5, 7), dtype="u1")
    image[2, 3] = 200
    with adios2.Stream(str(tmp_path / "u8.bp"), "w") as stream:
        for step in range(2):
            stream.begin_step()
            stream.write("image", image + step, [5, 7], [0, 0], [5, 7])
            for count in (2, 3):
                stream.write("part", np.full(count, 250 + step, "u1"), [], [], [count])
            stream.end_step()
    with open_file(tmp_path / "u8.bp") as content:
        expected = {f"step-{s}/image": image + s for s in range(2)}
        for number, count in enumerate((2, 3)):
            expected |= {f"step-{s}/part/block-{number}": np.full(count, 250 + s, "u1") for s in range(2)}
        check_content(content, expected)
    assert twinrun.compare(tmp_path / "u8.bp", tmp_path / "u8.bp").same


def test_a_folder_of_files(tmp_path):
    for step in (10, 20):
        shutil.copytree(FILES / "bp5.bp", tmp_path / f"out_{step}.bp")
    assert [(f.format, f.step) for f in list_folder(tmp_path).files] == [("adios", 10), ("adios", 20)]


def test_the_folder_beside_a_bp3_file_is_part_of_it(tmp_path):
    adios2 = pytest.importorskip("adios2")
    io = adios2.Adios().declare_io("bp3")
    io.set_engine("BP3")
    with adios2.Stream(io, os.fspath(tmp_path / "out_7.bp"), "w") as file:
        file.begin_step()
        file.write("x", np.arange(10.0), [10], [0], [10])
        file.end_step()
    if not (tmp_path / "out_7.bp.dir").is_dir():
        pytest.skip("this version of adios2 writes one file")
    data = tmp_path / "out_7.bp.dir" / "out_7.bp.0"
    with open_file(tmp_path / "out_7.bp") as content:
        assert content.files() == (os.fspath(tmp_path / "out_7.bp"), os.fspath(data))
    listing = list_folder(tmp_path)
    assert [f.relative for f in listing.files] == ["out_7.bp"]
    assert "out_7.bp.dir/out_7.bp.0" in dict(listing.ignored)
    assert {why for _, why in listing.ignored} == {"a part of out_7.bp, and read with it"}


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


def copy(tmp_path, kind="bp5.bp"):
    shutil.rmtree(tmp_path / "x.bp", ignore_errors=True)
    return Path(shutil.copytree(FILES / kind, tmp_path / "x.bp"))


def read_all(path, **options):
    with open_file(path, format="adios", **options) as content:
        for field in content.fields.values():
            assert field.elements().size == field.size


def cut_somewhere(kind):
    """(file, length) of cuts of every file of a data set: at both ends, and where a seed says."""
    rng = random.Random(21)
    for file in sorted((FILES / kind).iterdir()):
        size = file.stat().st_size
        for length in {0, 1, size // 2, size - 1, *(rng.randrange(size) for _ in range(12))}:
            yield file.name, length


@pytest.mark.parametrize("kind", ["bp4.bp", "bp5.bp"])
def test_files_that_were_cut_short_are_told_before_the_package_sees_them(tmp_path, kind):
    for name, length in cut_somewhere(kind):
        path = copy(tmp_path, kind)
        os.truncate(path / name, length)
        if (kind, name, length) != (
            "bp5.bp",
            "mmd.0",
            0,
        ):  # that one could be whole, for all its lengths tell
            with pytest.raises(DamagedFile, match=f"{name}: .*copy the whole folder"):
                check_files(os.fspath(path))


@pytest.mark.parametrize("kind", ["bp4.bp", "bp5.bp"])
def test_an_index_of_fewer_steps_leaves_bytes_that_are_told(tmp_path, kind):
    """Cut between two records it looks whole: what it does not name is left out, and said."""
    pytest.importorskip("adios2")
    path = copy(tmp_path, kind)
    os.truncate(path / "md.idx", 256 if kind == "bp4.bp" else 228)
    with open_file(path) as content:
        assert content.steps() == [0, 1, 2]
        assert [name for name, why in content.skipped if "unfinished step" in why] == ["md.0"]


@pytest.mark.parametrize("lost", ["md.idx", "md.0", "mmd.0", "data.0"])
def test_a_folder_that_lacks_a_file(tmp_path, lost):
    pytest.importorskip("adios2")
    path = copy(tmp_path)
    os.unlink(path / lost)
    for name in ("y.bp", "renamed"):
        path = path.rename(tmp_path / name)
        assert detect(path).name == "adios"
        with pytest.raises(FormatError, match=f"{lost}: is missing from the data set; copy the whole"):
            open_file(path)
        with pytest.raises(FormatError, match=f"{lost}: is missing from the data set; copy the whole"):
            twinrun.compare(path, path)


def test_files_of_other_layouts_are_left_to_the_package(tmp_path):
    path = copy(tmp_path)
    index = bytearray((path / "md.idx").read_bytes())
    for at, value in ((37, 6), (36, 1), (64, ord("x"))):
        (path / "md.idx").write_bytes(bytes([*index[:at], value, *index[at + 1 :]]))
        assert check_files(os.fspath(path)) == []


def test_a_package_that_crashes_or_waits_takes_nothing_with_it(tmp_path, monkeypatch):
    pytest.importorskip("adios2")
    monkeypatch.setattr(adios, "check_files", lambda path: [])
    for name, length in {
        "mmd.0": 1046,
        "data.0": 9000,
    }.items():  # a segmentation fault, and a wait without end
        path = copy(tmp_path)
        with open(path / name, "r+b") as file:
            file.truncate(length)
        with pytest.raises(DamagedFile, match=r"crashed|no progress.* in 3 s.*patience=SECONDS|EXCEPTION"):
            read_all(path, patience="3")


def test_patience_is_a_number_of_seconds():
    pytest.importorskip("adios2")
    for wrong in ("", "soon", 0, -1, "nan", "inf", None):
        with pytest.raises(FormatError, match="patience must be"):
            open_file(FILES / "bp5.bp", patience=wrong)


# A package that keeps Python's lock and waits for good, as the true one may: the threads of its process stand still.
_WAITS = """
import ctypes, os
with open(os.environ["TEST_FIFO"], "w") as fifo:
    fifo.write(f"{os.getpid()}\\n")
    fifo.flush()
    ctypes.PyDLL(None).pause()
"""
_OPENS = "import sys; from twinrun.formats import open_file; open_file(sys.argv[1])"


def _until_end(fifo, seconds=60):
    """What is written until the last writer is gone. A limit, for a test that would hang, is no measure."""
    found = b""
    poll = select.poll()
    poll.register(fifo, select.POLLIN | select.POLLHUP)
    while poll.poll(seconds * 1000):
        piece = os.read(fifo, 100)
        if not piece:
            return found
        found += piece
    raise AssertionError("the process that reads is still there")


@pytest.mark.parametrize("ending", ["killed", "closed"])
def test_the_process_that_reads_ends_with_the_one_that_asks(tmp_path, ending):
    (tmp_path / "adios2.py").write_text(_WAITS)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    paths = os.pathsep.join([os.fspath(tmp_path), *(p for p in sys.path if p)])
    environment = {**os.environ, "TEST_FIFO": os.fspath(fifo), "PYTHONPATH": paths}
    if ending == "killed":
        command = [sys.executable, "-c", _OPENS, os.fspath(FILES / "bp5.bp")]
    else:
        command = [sys.executable, worker.__file__, adios_worker.__file__, os.fspath(FILES / "bp5.bp")]
    asks = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    if ending == "closed":
        asks.stdin.write(b"{}\n")
        asks.stdin.flush()
    end = os.open(fifo, os.O_RDONLY)  # waits until the package is there
    reads = int(os.read(end, 100))
    try:
        if ending == "killed":
            asks.kill()
        asks.stdin.close()
        assert _until_end(end) == b""
        assert asks.wait(60) == -signal.SIGKILL
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.kill(reads, signal.SIGKILL)
        raise
    finally:
        os.close(end)


def test_progress_is_told_before_an_answer():
    pytest.importorskip("adios2")
    code = Path(worker.__file__).read_text().replace("_PROGRESS_EVERY = 1.0", "_PROGRESS_EVERY = -1.0")
    command = [sys.executable, "-c", code, adios_worker.__file__, os.fspath(FILES / "bp5.bp")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write(b"{}\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline()) == {"progress": True}
        lines = iter(process.stdout.readline, b"")
        assert len(next(facts["steps"] for facts in map(json.loads, lines) if "steps" in facts)) == 4
        process.stdin.close()
        assert process.stdout.read() == b""


def test_progress_is_no_answer(tmp_path, monkeypatch):
    pytest.importorskip("adios2")
    code = Path(worker.__file__).read_text().replace("_PROGRESS_EVERY = 1.0", "_PROGRESS_EVERY = -1.0")
    (tmp_path / "worker.py").write_text(code)
    monkeypatch.setattr(worker, "__file__", os.fspath(tmp_path / "worker.py"))
    check(FILES / "bp5.bp")


def test_damage_ends_in_format_errors(tmp_path, monkeypatch):
    pytest.importorskip("adios2")
    monkeypatch.setattr(adios, "check_files", lambda path: [])
    for seed in range(8):
        path = copy(tmp_path)
        rng = random.Random(seed)
        place = path / rng.choice(["md.idx", "md.0", "mmd.0"])
        data = bytearray(place.read_bytes())
        for _ in range(3):
            data[rng.randrange(len(data))] = rng.randrange(256)
        place.write_bytes(data)
        try:
            with open_file(path, format="adios", patience=1.5) as content:
                for field in list(content.fields.values())[:3]:
                    field.elements(0, min(field.size, 1000))
        except FormatError as error:
            assert str(error).isprintable()


def test_a_step_without_variables_is_a_step(tmp_path):
    adios2 = pytest.importorskip("adios2")
    for count in (1, 2, 3):
        io = adios2.Adios().declare_io("writer")
        io.set_engine("BP5")
        with adios2.Stream(io, str(tmp_path / f"{count}.bp"), "w") as stream:
            for step in range(count):
                stream.begin_step()
                if step == 0:
                    stream.write("x", np.arange(3.0), [3], [0], [3])
                stream.end_step()
    for a in (1, 2, 3):
        for b in (1, 2, 3):
            assert twinrun.compare(tmp_path / f"{a}.bp", tmp_path / f"{b}.bp").same == (a == b)


def _process_that_read(path) -> int:
    """The number of the process that read a data set as a whole."""
    readers = []

    class Watched(adios._Reader):
        def __init__(self, *arguments, **keys):
            super().__init__(*arguments, **keys)
            readers.append(self._process.pid)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adios, "_Reader", Watched)
        read_all(path)
    (found,) = readers
    return found


def test_a_process_reads_one_data_set_after_another(tmp_path):
    pytest.importorskip("adios2")
    first = _process_that_read(FILES / "bp5.bp")
    with open_file(FILES / "bp5.bp") as content:  # while another waits for its turn
        assert _process_that_read(FILES / "bp4.bp") != first
        check_content(content, {f"step-{s}/{n}": a for s in range(4) for n, a in expected(s).items()})
    check(FILES / "bp4.bp")
    # A data set that was written again, by the name of before, is not what was read before.
    path = tmp_path / "again.bp"
    shutil.copytree(FILES / "bp5.bp", path)
    check(path)
    known = _process_that_read(path)
    shutil.rmtree(path)
    shutil.copytree(FILES / "bp4.bp", path)
    assert _process_that_read(path) == known
    check(path)


def test_a_process_that_met_an_error_reads_no_other_data_set():
    pytest.importorskip("adios2")
    reader = adios._Reader(os.fspath(FILES / "bp5.bp"), adios_worker.__file__, "adios2", 60.0, again=True)
    reader.open()
    with pytest.raises(DamagedFile, match="no variable 'x'"):
        reader.ask({"name": "x", "kind": "double"})
    reader.close()
    assert reader._process.poll() is not None
