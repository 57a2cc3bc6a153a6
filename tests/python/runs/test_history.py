"""Histories: what is captured comes back, and nothing half-done is ever seen."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import cannot_compare, check_error, command
from histories import arrays, steps_of
from support import step_files

import twinrun
from twinrun import _core


@pytest.mark.parametrize("digest", ["linear", "published"])
def test_every_kind_of_array(digest: str, tmp_path: Path) -> None:
    fields = arrays(1)
    for name in ("a", "b"):
        with twinrun.Run(tmp_path / name, atol=1e-3, digest=digest) as run:
            run.capture(7, fields)
    assert twinrun.verify(tmp_path / "a")[0] == []
    for method in ("auto", "direct"):
        result = twinrun.compare(
            tmp_path / "a", tmp_path / "b", options=twinrun.CompareOptions(method=method)
        )
        assert result.same and len(result.fields) == len(fields)
        for f in result.fields:
            assert f.shape == fields[f.field].shape
            assert f.elements == fields[f.field].size * (2 if fields[f.field].dtype.kind == "c" else 1)
    # A history holds what the arrays held: the one element that is changed is found where it is.
    changed = {}
    for name, x in fields.items():
        y = x.copy(order="K")
        if x.size:
            y.reshape(-1, order="A")[x.size // 2] += 1 if x.dtype.kind != "b" else True
        changed[name] = y
    with twinrun.Run(tmp_path / "c", atol=1e-3, digest=digest) as run:
        run.capture(7, changed)
    result = twinrun.compare(tmp_path / "a", tmp_path / "c")
    for f in result.fields:
        truth = np.argwhere(fields[f.field] != changed[f.field])
        assert f.different == len(truth), f.field
        if len(truth):
            index = tuple(int(i) for i in truth[0])
            assert f.first_index == ((*index, 0) if f.dtype.startswith("c") else index), f.field


def test_appending_replacing_refusing(tmp_path: Path) -> None:
    path = tmp_path / "run"
    x = np.arange(100.0)
    with twinrun.Run(path, atol=1e-3) as run:
        run.capture(1, {"x": x})
    with pytest.raises(
        twinrun.TwinrunError, match="holds a history already; give existing='append' to go on"
    ):
        twinrun.Run(path, atol=1e-3)
    with pytest.raises(twinrun.Incomparable, match="other settings"):
        twinrun.Run(path, atol=1e-4, existing="append")
    with twinrun.Run(path, atol=1e-3, existing="append") as run:
        assert run.steps == [1]
        run.capture(3, {"x": x})
        run.capture(2, {"x": x})
        assert run.steps == [1, 2, 3]
    assert steps_of(path) == [1, 2, 3]
    (path / "notes.txt").write_text("mine")
    with twinrun.Run(path, atol=1.0, existing="replace") as run:
        assert run.steps == []
        run.capture(9, {"y": x})
    assert steps_of(path) == [9]
    assert sorted(os.listdir(path)) == ["manifest.jsonl", "notes.txt", "step-0000000009"]
    assert twinrun.verify(path)[0] == []


def test_negative_and_large_steps(tmp_path: Path) -> None:
    steps = [-(1 << 63), -5, 0, 12345678901, (1 << 63) - 1]
    with twinrun.Run(tmp_path / "run") as run:
        for step in reversed(steps):
            run.capture(step, {"x": np.zeros(3)})
    assert steps_of(tmp_path / "run") == steps
    result = twinrun.compare(tmp_path / "run", tmp_path / "run")
    assert [f.step for f in result.fields] == steps


def test_a_torn_last_line(tmp_path: Path) -> None:
    """What a crash leaves of a line, at any byte: the steps before it are whole, and capture goes on."""
    path, intact = tmp_path / "run", tmp_path / "intact"
    x = np.arange(100.0)
    for p in (path, intact):
        with twinrun.Run(p) as run:
            run.capture(1, {"x": x})
            run.capture(2, {"x": x})
    manifest = path / "manifest.jsonl"
    whole = manifest.read_bytes()
    begin = whole.rindex(b"\n", 0, -1) + 1
    for end in (begin + 1, begin + 50, len(whole) - 2, len(whole) - 1):
        manifest.write_bytes(whole[:end])
        assert steps_of(path) == [1]
        done = command("compare", path, intact, "--steps", "1")
        assert done.status == 0 and "its last step was being committed when the run ended" in done.out
        cannot_compare(path, intact, tmp_path, "step 2")
        assert "being committed" in command("log", path).out
        with twinrun.Run(path, existing="append") as run:
            assert run.steps == [1]
            run.capture(2, {"x": x})
        assert command("compare", path, intact).status == 0
        assert manifest.read_bytes().count(b'"step":') == 2


def test_a_crash_before_the_first_line(tmp_path: Path) -> None:
    """Manifests are begun whole: a part of one is somebody else's file, or an older twinrun's, and stays as it is."""
    for left in (b"", b'{"atol":0.0'):
        for existing in ("refuse", "append", "replace"):
            path = tmp_path / f"run{len(left)}{existing}"
            path.mkdir()
            (path / "manifest.jsonl").write_bytes(left)
            said = "manifest.jsonl: damaged: line 1: it is not complete" if left else "manifest.jsonl: empty"
            check_error(command("log", path), said)
            with pytest.raises(twinrun.TwinrunError, match=rf"{said}|is no manifest of a history"):
                twinrun.Run(path, existing=existing)
            assert (path / "manifest.jsonl").read_bytes() == left
            assert os.listdir(path) == ["manifest.jsonl"]


def test_a_folder_with_the_manifest_of_another_program_is_a_folder(tmp_path: Path) -> None:
    """A file of this name is nothing special: JSON lines of downloads, of tables, of anything."""
    said = {
        "object": b'{"file": "x.npy", "md5": "%d"}\n{"file": "y.npy"}\n',
        "list": b"[%d]\n",
        "without an end": b'{"xxh3": "0", "digest": %d, "path": "out/twinrun"}',
    }
    for name, line in said.items():
        a, b = tmp_path / name / "a", tmp_path / name / "b"
        for folder, content in ((a, line % 1), (b, line % 2)):
            folder.mkdir(parents=True)
            (folder / "manifest.jsonl").write_bytes(content)
            np.save(folder / "x.npy", np.arange(3.0))
        assert command("compare", a, a).status == 0
        assert command("compare", a, b).status == 1
        result = twinrun.compare(a, b)
        assert [f.field for f in result.fields if not f.same] == ["manifest.jsonl"]
        assert twinrun.compare(a, b, leave_out=["manifest.jsonl"]).verdict == "same"
        twinrun.pack(a, tmp_path / name / "record")
        twinrun.restore(tmp_path / name / "record", tmp_path / name / "back", flat=True)
        assert (tmp_path / name / "back/manifest.jsonl").read_bytes() == line % 1
        assert command("index", a).status == 0
        # A report replaces what is read as little as in any folder of files.
        check_error(command("compare", a, b, "--json", a / "x.npy"), "is read here")
        with pytest.raises(twinrun.TwinrunError, match="is no manifest of a history"):
            twinrun.Run(a)


def test_files_beside_a_history_are_told(tmp_path: Path) -> None:
    """They are not compared, and `same` must not be read as if they were."""
    a, b = tmp_path / "a", tmp_path / "b"
    for path in (a, b):
        with twinrun.Run(path) as run:
            for step in (1, 2):
                run.capture(step, {"x": np.arange(3.0)})
    assert twinrun.compare(a, b).notes == []
    # What twinrun keeps there is not told, whatever state it is in.
    (a / ".twinrun-0123456789abcdef.tmp").touch()
    (a / "step-0000000009").mkdir()
    (a / "step-leftovers").mkdir()
    assert twinrun.compare(a, b).notes == [] and twinrun.pack(a, tmp_path / "record").notes == []
    (a / "log.txt").write_text("1")
    (b / "log.txt").write_text("2")
    (a / "sub").mkdir()
    (a / "step-7").mkdir()
    (a / "rank-00001.jsonl").write_text("mine")
    (a / "step-0000000009" / "x.npy").touch()
    (b / os.fsdecode(b"\xff.txt")).touch()
    (b / "rank-1.jsonl").touch()
    of_a = (
        f"{a}: 5 other files and folders beside the history are not compared: log.txt, rank-00001.jsonl, step-0000000009 and "
        "2 more; name them to compare them"
    )
    result = twinrun.compare(a, b)
    assert result.verdict == "same" and result.notes[0] == of_a
    assert result.notes[1].startswith(
        f"{b}: 3 other files and folders beside the history are not compared: log.txt, rank-1.jsonl"
    )
    report = tmp_path / "r.json"
    done = command("compare", a, b, "-v", "--json", report)
    assert done.status == 0 and of_a in done.out and f"{b}: 3 other files" in done.out
    assert json.loads(report.read_text())["notes"][0] == of_a
    (b / "rank-1.jsonl").unlink()
    (b / os.fsdecode(b"\xff.txt")).unlink()
    said = f"{b}: 1 other file or folder beside the history is not compared: log.txt; name it to compare it"
    assert said in twinrun.compare(a, b).notes
    packed = twinrun.pack(a, tmp_path / "record-2").notes
    why = "left out: it lies beside the history and is no part of it"
    assert packed == [
        (name, why) for name in ("log.txt", "rank-00001.jsonl", "step-0000000009", "step-7", "sub")
    ]
    done = command("pack", a, tmp_path / "record-3")
    assert done.status == 0 and f"log.txt: {why}" in done.out


def test_a_damaged_manifest_is_no_other_programs(tmp_path: Path) -> None:
    """Whatever byte of its first line is another one; and where this line is gone, the steps tell."""
    run, path = tmp_path / "run", tmp_path / "run/manifest.jsonl"
    with twinrun.Run(run) as writing:
        writing.capture(1, {"x": np.arange(3.0)})
    whole = path.read_bytes()
    end = whole.index(b"\n")
    contents = [b'{"x": 1}\n' + whole, whole[end + 1 :]]
    mark = next((run / "step-0000000001").glob(".twinrun-*"))
    for at in range(end):
        for byte in b'x1"':
            contents.append(whole[:at] + bytes([byte]) + whole[at + 1 :])
    for at, content in enumerate(contents):
        if content == whole:
            continue
        path.write_bytes(content)
        if at == 2:  # the first line alone is enough
            mark.unlink()
        check_raises_damaged(run)
    path.write_bytes(contents[2])
    check_error(command("compare", run, run), "manifest.jsonl: damaged: line 1")
    check_error(command("pack", run, tmp_path / "record"), "manifest.jsonl: damaged: line 1")


def check_raises_damaged(run: Path) -> None:
    with pytest.raises(twinrun.errors.DamagedFile, match="damaged: line 1"):
        twinrun.runs.opening.open_subject(run)


def test_nothing_is_begun_over_what_is_left_of_a_history(tmp_path: Path) -> None:
    """With its manifest back from a copy it can be read again: no capture, pack or flush takes that place."""
    path, record, local = tmp_path / "run", tmp_path / "record", tmp_path / "local"
    with twinrun.Run(path, local=local) as run:
        run.capture(1, {"x": np.arange(100.0)})
    assert command("pack", path, record).status == 0
    kept = {folder: (folder / "manifest.jsonl").read_bytes() for folder in (path, record)}
    source = tmp_path / "source"
    with twinrun.Run(source) as run:
        run.capture(2, {"x": np.arange(100.0)})
    for folder in (path, record):
        (folder / "manifest.jsonl").unlink()
        names = sorted(os.listdir(folder))
        said = f"{folder / 'manifest.jsonl'}: missing, and step-0000000001"
        for existing in ("refuse", "append", "replace"):
            with pytest.raises(twinrun.TwinrunError, match=re.escape(said)):
                twinrun.Run(folder, existing=existing)
        check_error(command("pack", source, folder, "--append"), said)
        check_error(command("pack", source, folder), said)
        check_error(command("flush", local, "--to", folder), said)
        assert sorted(os.listdir(folder)) == names
        (folder / "manifest.jsonl").write_bytes(kept[folder])
        assert steps_of(folder) == [1] and not twinrun.verify(folder).problems


def test_leftovers_of_an_interrupted_capture(tmp_path: Path) -> None:
    """A step's folder without a line: not there, and no obstacle. It goes if it says that a run of the history had begun it."""
    path, other = tmp_path / "run", tmp_path / "other"
    x = np.arange(100.0)
    for p in (path, other):
        with twinrun.Run(p) as run:
            run.capture(1, {"x": x})
    for name in ("step-0000000002", "step-0000000004"):
        shutil.copytree(path / "step-0000000001", path / name)
    (path / "step-0000000002" / "rank-00000.begun").touch()
    shutil.copytree(path / "step-0000000001", path / ".step-0000000003.tmp")
    assert steps_of(path) == [1]
    assert command("compare", path, other).status == 0
    assert twinrun.verify(path) == ([], 3)
    with twinrun.Run(path, existing="append") as run:
        run.capture(2, {"x": x + 1})
        run.capture(3, {"x": x + 2})
    assert steps_of(path) == [1, 2, 3]
    theirs = [".step-0000000003.tmp"]
    assert sorted(os.listdir(path)) == [*theirs, "manifest.jsonl", *(f"step-{s:010}" for s in (1, 2, 3, 4))]
    assert twinrun.verify(path) == ([], 7)


def test_metadata_only(tmp_path: Path) -> None:
    x = np.random.default_rng(2).normal(size=5000)
    noise = np.random.default_rng(3).uniform(-1, 1, x.size)
    y = x.copy()
    y[77] += 1
    for name, v in (("a", x), ("same", x), ("near", x + 4e-4 * noise), ("far", y)):
        with twinrun.Run(tmp_path / name, atol=1e-3, keep_data=False) as run:
            run.capture(1, {"x": v, "n": np.arange(3)})
        assert step_files(tmp_path / name / "step-0000000001") == ["rank-00000.twm"]
        assert twinrun.verify(tmp_path / name) == ([], 2)
    assert command("compare", tmp_path / "a", tmp_path / "same").status == 0
    assert command("compare", tmp_path / "a", tmp_path / "near").status == 0
    said = "field 'x': the metadata cannot decide from element 0 on, and the data is not at hand"
    cannot_compare(tmp_path / "a", tmp_path / "far", tmp_path, "step 1, rank 0", said)
    for options in (("--method", "direct"), ("--method", "published"), ("--no-metadata",)):
        cannot_compare(
            tmp_path / "a", tmp_path / "same", tmp_path, "only its metadata is available", options=options
        )
    cannot_compare(tmp_path / "a", tmp_path / "near", tmp_path, options=("--atol", "1e-6"))
    with twinrun.Run(tmp_path / "full", atol=1e-3) as run:
        run.capture(1, {"x": x, "n": np.arange(3)})
    assert command("compare", tmp_path / "full", tmp_path / "a").status == 0
    cannot_compare(tmp_path / "full", tmp_path / "far", tmp_path, said)


def test_tolerances_of_fields(tmp_path: Path) -> None:
    x = np.arange(1000.0)
    for name, shift in (("a", 0.0), ("b", 1e-4)):
        with twinrun.Run(
            tmp_path / name, atol=1e-3, tolerances={"tight": 1e-6, "relative": (0.0, 1e-2)}
        ) as run:
            run.capture(
                1, {"x": x + shift, "tight": x + shift, "relative": x * (1 + shift), "n": np.arange(5)}
            )
    result = twinrun.compare(tmp_path / "a", tmp_path / "b")
    assert {f.field: f.same for f in result.fields} == {
        "x": True,
        "tight": False,
        "relative": True,
        "n": True,
    }
    assert result.first_divergence["field"] == "tight"


def test_runs_captured_for_different_tolerances(tmp_path: Path) -> None:
    for name, atol in (("a", 1e-3), ("b", 1e-4)):
        with twinrun.Run(tmp_path / name, atol=atol) as run:
            run.capture(1, {"x": np.zeros(5)})
    cannot_compare(tmp_path / "a", tmp_path / "b", tmp_path, "captured for different tolerances", "--atol")
    assert command("compare", tmp_path / "a", tmp_path / "b", "--atol", "1e-3").status == 0


def test_a_copied_history(tmp_path: Path) -> None:
    """Copies with new times compare; with a changed byte they do not pass for the original."""
    x = np.random.default_rng(4).normal(size=5000)
    with twinrun.Run(tmp_path / "a", atol=1e-6) as run:
        run.capture(1, {"x": x})
    shutil.copytree(tmp_path / "a", tmp_path / "b", copy_function=shutil.copyfile)
    data = tmp_path / "b" / "step-0000000001" / "rank-00000.data"
    later = data.stat().st_mtime_ns + 10**10
    os.utime(data, ns=(later, later))
    done = command("compare", tmp_path / "a", tmp_path / "b")
    assert done.status == 0 and "the same content" in done.out
    content = bytearray(data.read_bytes())
    content[8 * 77 + 7] ^= 1
    data.write_bytes(content)
    os.utime(data, ns=(later, later))
    said = f"{data}: does not hold what its metadata {data.with_suffix('.twm')} says"
    cannot_compare(tmp_path / "a", tmp_path / "b", tmp_path, said, "restore the history from a copy")
    data.write_bytes(data.read_bytes() + b"?")
    cannot_compare(tmp_path / "a", tmp_path / "b", tmp_path, said, "restore the history from a copy")
    data.write_bytes(content[:-1])
    cannot_compare(
        tmp_path / "a", tmp_path / "b", tmp_path, "truncated", "now: restore the history from a copy"
    )


def test_files_of_a_step_are_compared_and_sent_to_other_processes(tmp_path: Path) -> None:
    x = np.arange(1000.0)
    for name, record in (("whole", None), ("record", "runs")):
        with twinrun.Run(tmp_path / name, atol=1e-6, record=record) as run:
            run.capture(1, {"x": x})
            run.capture(2, {"x": x + 1})
    whole, record = (_core.open_history(str(tmp_path / name)).steps for name in ("whole", "record"))
    assert [files.difference for step in whole for files in step.ranks] == [None, None]
    assert None not in [files.difference for step in record for files in step.ranks]
    every = [files for step in (*whole, *record) for files in step.ranks]
    for at, files in enumerate(every):
        sent = pickle.loads(pickle.dumps(files))
        assert [sent == other for other in every] == [other is files for other in every], at
        names = [name for name in dir(files) if not name.startswith("_")]
        assert [getattr(sent, name) for name in names] == [getattr(files, name) for name in names]
        assert files != "files" and files is not None


@pytest.mark.parametrize("content", ['{"x": 1}\n', "[1]\n", "", "\x89PNG\0"])
def test_advice_about_a_foreign_manifest_works(content: str, tmp_path: Path) -> None:
    """Neither appending nor replacing helps where the file is another program's."""
    path = tmp_path / "run"
    path.mkdir()
    (path / "manifest.jsonl").write_text(content)
    said = r"holds a file manifest.jsonl that is no manifest of a history; name another folder, or move that file away"
    with pytest.raises(twinrun.TwinrunError, match=said):
        twinrun.Run(path)
    assert (path / "manifest.jsonl").read_text() == content
    (path / "manifest.jsonl").rename(tmp_path / "moved")
    with twinrun.Run(path) as run:
        run.capture(1, {"x": np.zeros(3)})
