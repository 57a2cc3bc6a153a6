"""Records whose difference files were changed or exchanged after they were written: never *same* by metadata alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import xxhash
from commands import command
from support import in_options
from twinrun_spec.record import Record, RecordError, read_difference

import twinrun

STEPS = (1, 2, 3)


def _data(step: int, seed: int) -> np.ndarray:
    x = np.random.default_rng(seed).random(5000)
    x[: 10 * step] += step
    return x


def _capture(path: Path, seed: int, **settings: object) -> None:
    with twinrun.Run(path, atol=1e-6, **settings) as run:
        for step in STEPS:
            run.capture(step, {"x": _data(step, seed)})


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A history, a record of the same numbers, and a record of others."""
    _capture(tmp_path / "plain", 0)
    _capture(tmp_path / "record", 0, record="runs")
    _capture(tmp_path / "other", 1, record="runs")
    return tmp_path


def _difference(run: Path, step: int) -> Path:
    return run / f"step-{step:010}" / "rank-00000.twr"


def _make_newer(path: Path, run: Path) -> None:
    """As any change after the run does; file systems' clocks are coarse."""
    written = (run / "manifest.jsonl").stat().st_mtime_ns
    os.utime(path, ns=(written + 10**6, written + 10**6))


def _verdict(a: Path, b: Path, **options: object) -> str:
    try:
        return twinrun.compare(a, b, partial=True, **in_options(options)).verdict
    except twinrun.TwinrunError as error:  # nothing could be compared
        assert "rank-00000.twr" in str(error), error
        return "incomparable"


# ---- files whose times tell nothing ----


def _exchange(how: str, source: Path, target: Path) -> None:
    """Puts a file in the place of another. No time tells of it: the file is older than the journal."""
    older = (target.parent.parent / "manifest.jsonl").stat().st_mtime_ns - 10**9
    os.utime(source, ns=(older, older))
    if how == "mv":
        os.replace(source, target)
    else:
        shutil.copy2(source, target)
    assert target.stat().st_mtime_ns == older


def _never_the_same(plain: Path, record: Path, named: Path) -> None:
    """Every way to read it says what is wrong, and none finds the runs the same or reads other bytes."""
    text = str(named)
    for options in ({}, {"method": "direct"}, {"use_metadata": False}):
        for a, b in ((plain, record), (record, plain)):
            try:
                result = twinrun.compare(a, b, partial=True, **in_options(options))
            except twinrun.TwinrunError as error:
                assert text in str(error), error
            else:
                assert result.verdict == "incomparable"
                assert any(text in str(problem) for problem in result.problems), result.problems
    for options in ((), ("--method", "direct")):
        done = command("compare", plain, record, *options)
        assert done.status == 2
        assert text in done.out + done.err
    golden = record.parent / "golden"
    if not golden.exists():
        assert command("golden", "save", plain, "--output", golden, "--atol", "1e-6").status == 0
    done = command("golden", "check", golden, record)
    assert done.status == 2 and text in done.out + done.err, done
    done = command("verify", record)
    assert done.status in (1, 2) and text in done.out + done.err, done
    back = record.parent / "back"
    with pytest.raises(twinrun.TwinrunError, match="is not the "):
        twinrun.restore(record, back)
    shutil.rmtree(back, ignore_errors=True)
    if program := os.environ.get("TWINRUN_COMPARE_C"):
        for options in ((), ("--direct",)):
            done = subprocess.run(
                [program, *options, plain, record], capture_output=True, text=True, timeout=60, check=False
            )
            assert done.returncode not in (0, 1) and text in done.stdout + done.stderr, done


def _load(record: Path, step: int) -> None:
    with twinrun.Run(record, atol=1e-6, record="runs", existing="append") as run:
        run.load(step)


@pytest.mark.parametrize("how", ["mv", "cp -p"])
@pytest.mark.parametrize("step", STEPS)
def test_a_moved_difference_of_another_run(runs: Path, how: str, step: int) -> None:
    record = runs / "record"
    _exchange(how, _difference(runs / "other", step), _difference(record, step))
    _never_the_same(runs / "plain", record, _difference(record, step))
    with pytest.raises(twinrun.TwinrunError, match="is not the difference that the journal names"):
        _load(record, 3)


def test_a_moved_difference_of_the_same_run(runs: Path) -> None:
    record = runs / "record"
    _exchange("cp -p", _difference(record, 1), _difference(record, 2))
    _never_the_same(runs / "plain", record, _difference(record, 2))


def test_a_difference_of_a_run_at_the_same_time(tmp_path: Path) -> None:
    """Two runs with the same steps: only a few numbers of one step are others."""
    _capture(tmp_path / "plain", 0)
    with (
        twinrun.Run(tmp_path / "record", atol=1e-6, record="runs") as run,
        twinrun.Run(tmp_path / "twin", atol=1e-6, record="runs") as twin,
    ):
        for step in STEPS:
            x = _data(step, 0)
            run.capture(step, {"x": x})
            if step == 2:
                x[7] += 1
            twin.capture(step, {"x": x})
    record = tmp_path / "record"
    _exchange("cp -p", _difference(tmp_path / "twin", 2), _difference(record, 2))
    _never_the_same(tmp_path / "plain", record, _difference(record, 2))


def test_the_same_file_put_back(runs: Path) -> None:
    record = runs / "record"
    shutil.copy2(_difference(record, 2), runs / "kept")
    _exchange("mv", _difference(runs / "other", 2), _difference(record, 2))
    _exchange("mv", runs / "kept", _difference(record, 2))
    result = twinrun.compare(runs / "plain", record)
    assert (result.verdict, result.notes) == ("same", [])


def test_after_a_compaction(runs: Path) -> None:
    record, other = runs / "record", runs / "other"
    for path in (record, other):
        twinrun.compact(path, keep_last=2)
    last = runs / "last"
    with twinrun.Run(last, atol=1e-6) as run:
        for step in STEPS[1:]:
            run.capture(step, {"x": _data(step, 0)})
    assert twinrun.compare(last, record).verdict == "same"
    files = [file.relative_to(record) for file in sorted(record.glob("*/*.twr"))]
    assert any(file.parent.name == "step-leftovers" for file in files)
    for file in files:
        shutil.copy2(record / file, runs / "kept")
        _exchange("cp -p", other / file, record / file)
        _never_the_same(last, record, record / file)
        _exchange("mv", runs / "kept", record / file)
    assert twinrun.compare(last, record).verdict == "same"


@pytest.mark.parametrize("before", [True, False])
def test_a_tier_of_the_node(tmp_path: Path, before: bool) -> None:
    """A difference that was exchanged on the node is not brought on; one in the history is noticed."""
    _capture(tmp_path / "plain", 0)
    _capture(tmp_path / "record", 0, record="runs", local=tmp_path / "node", flusher="none")
    _capture(tmp_path / "other", 1, record="runs")
    (part,) = (tmp_path / "node").glob("**/manifest.jsonl")
    record = tmp_path / "record"
    if before:
        target = _difference(part.parent, 2)
        _exchange("cp -p", _difference(tmp_path / "other", 2), target)
        _never_the_same(tmp_path / "plain", part.parent, target)
        done = command("flush", part.parent)
        assert done.status != 0 and "is not the difference that the journal names" in done.out + done.err
        assert not _difference(record, 2).exists()
    else:
        assert command("flush", part.parent).status == 0
        assert twinrun.compare(tmp_path / "plain", record).verdict == "same"
        _exchange("cp -p", _difference(tmp_path / "other", 2), _difference(record, 2))
        _never_the_same(tmp_path / "plain", record, _difference(record, 2))


def test_a_flush_takes_no_file_that_only_has_the_place(tmp_path: Path) -> None:
    """A file that a flush finds in the history is the step's own, or is in the way."""
    _capture(tmp_path / "plain", 0)
    _capture(tmp_path / "record", 0, record="runs", local=tmp_path / "node", flusher="none")
    _capture(tmp_path / "other", 1, record="runs")
    (part,) = (tmp_path / "node").glob("**/manifest.jsonl")
    record = tmp_path / "record"
    journal = record / "manifest.jsonl"
    before = journal.read_bytes()
    assert command("flush", part.parent).status == 0
    journal.write_bytes(before)  # restored from an older copy
    _exchange("mv", _difference(tmp_path / "other", 2), _difference(record, 2))
    done = command("flush", part.parent)
    assert done.status == 2 and f"{_difference(record, 2)}: is there already" in done.out + done.err
    _difference(record, 2).unlink()
    assert command("flush", part.parent).status == 0
    assert twinrun.compare(tmp_path / "plain", record).verdict == "same"
    assert twinrun.verify(record).problems == []


def _as_before(journal: Path) -> None:
    """Makes a journal what an earlier release wrote."""
    text = re.sub(r',"difference_xxh3":"[0-9a-f]{16}"', "", journal.read_text())
    lines = [line.partition(',"xxh3":')[0] for line in text.splitlines()]
    sealed = (f'{line},"xxh3":"{xxhash.xxh3_64_hexdigest(line.encode())}"}}\n' for line in lines)
    journal.write_text("".join(sealed))


def test_a_record_of_an_earlier_release(runs: Path) -> None:
    """Its journal does not name the files: it is read as before."""
    record = runs / "record"
    journal = record / "manifest.jsonl"
    _as_before(journal)
    result = twinrun.compare(runs / "plain", record)
    assert (result.verdict, result.notes) == ("same", [])
    assert twinrun.verify(record).problems == []
    with twinrun.Run(record, atol=1e-6, record="runs", existing="append") as run:
        run.capture(4, {"x": _data(4, 0)})
    assert journal.read_text().count("difference_xxh3") == 1
    shutil.copyfile(_difference(runs / "other", 2), _difference(record, 2))
    _make_newer(_difference(record, 2), record)
    assert _verdict(runs / "plain", record) == "incomparable"


def test_the_independent_reader(runs: Path) -> None:
    record = runs / "record"
    lines = [json.loads(line) for line in (record / "manifest.jsonl").read_text().splitlines()[1:]]
    steps = [line["ranks"][0] for line in lines if "step" in line]
    seals = {files["difference"]: files["difference_xxh3"] for files in steps}
    places = dict(zip(seals, (_difference(record, step) for step in STEPS), strict=True))
    assert all(read_difference(places[ordinal]).seal == seal for ordinal, seal in seals.items())
    assert Record(places.__getitem__, seals=seals).read_segment(max(seals), "x") == _data(3, 0).tobytes()
    _exchange("mv", _difference(runs / "other", 3), _difference(record, 3))
    with pytest.raises(RecordError, match="that the journal names"):
        Record(places.__getitem__, seals=seals).read_segment(max(seals), "x")


# ---- the record that one is against ----


@pytest.mark.parametrize("levels", [1, 2])
def test_another_record_in_the_place_of_a_parent(runs: Path, levels: int) -> None:
    record, parent = runs / "record", runs / "parent"
    _capture(parent, 0, record="runs")
    children = [runs / f"child-{level}" for level in range(1, levels + 1)]
    for above, child in zip([parent, *children], children, strict=False):
        _capture(child, 0, record="runs", record_against=above)
    last = children[-1]
    assert twinrun.compare(runs / "plain", last).verdict == "same"
    parent.rename(runs / "kept")
    (runs / "other").rename(parent)
    _never_the_same(runs / "plain", last, parent)
    assert twinrun.compare(runs / "plain", record).verdict == "same"
    with pytest.raises(twinrun.TwinrunError, match="is not the record that"):
        _capture(children[0], 0, record="runs", record_against=parent, existing="append")
    parent.rename(runs / "other")
    (runs / "kept").rename(parent)
    assert twinrun.compare(runs / "plain", last).verdict == "same"
    assert twinrun.verify(last).problems == []


def test_a_parent_that_was_captured_again(runs: Path) -> None:
    """A record is captured again against what is at the same path now."""
    parent, child = runs / "parent", runs / "child"
    _capture(parent, 0, record="runs")
    _capture(child, 0, record="runs", record_against=parent)
    with twinrun.Run(child, atol=1e-6, record="runs", record_against=parent, existing="append") as run:
        run.capture(4, {"x": _data(4, 0)})
    shutil.rmtree(parent)
    _capture(parent, 1, record="runs")
    _capture(child, 0, record="runs", record_against=parent, existing="replace")
    assert twinrun.compare(runs / "plain", child).verdict == "same"
    assert twinrun.verify(child).problems == []


def test_metadata_alone_decides_where_nothing_was_changed(runs: Path) -> None:
    result = twinrun.compare(runs / "plain", runs / "record")
    assert (result.verdict, result.notes) == ("same", [])
    assert twinrun.verify(runs / "record").problems == []


@pytest.mark.parametrize("step", STEPS)
def test_a_difference_of_another_run(runs: Path, step: int) -> None:
    record = runs / "record"
    shutil.copyfile(_difference(runs / "other", step), _difference(record, step))
    _make_newer(_difference(record, step), record)
    for options in ({}, {"use_metadata": False}):
        assert _verdict(runs / "plain", record, **options) == "incomparable"
        assert _verdict(record, runs / "plain", **options) == "incomparable"
    problems = twinrun.verify(record).problems
    assert problems and all(str(record) in problem for problem in problems)


def test_verify_needs_no_times(runs: Path) -> None:
    record = runs / "record"
    before = _difference(record, 3).stat()
    shutil.copyfile(_difference(runs / "other", 3), _difference(record, 3))
    os.utime(_difference(record, 3), ns=(before.st_atime_ns, before.st_mtime_ns))
    (problem,) = twinrun.verify(record).problems
    assert str(_difference(record, 3)) in problem, problem
    _as_before(record / "manifest.jsonl")
    (problem,) = twinrun.verify(record).problems
    assert str(record) in problem and "'x'" in problem, problem


@pytest.mark.parametrize("place", [200, 3000, 20_000, -1])
def test_a_flipped_bit(runs: Path, place: int) -> None:
    record = runs / "record"
    file = _difference(record, 1)
    content = bytearray(file.read_bytes())
    content[place % len(content)] ^= 16
    file.write_bytes(content)
    _make_newer(file, record)
    assert _verdict(runs / "plain", record) == "incomparable"
    assert _verdict(record, record) == "incomparable"
    assert twinrun.verify(record).problems


def test_a_copy_is_read_and_is_the_same(runs: Path) -> None:
    record = runs / "record"
    for step in STEPS:
        _make_newer(_difference(record, step), record)
    result = twinrun.compare(runs / "plain", record)
    assert result.verdict == "same"
    assert any("read to make sure" in str(note) for note in result.notes)
    assert twinrun.verify(record).problems == []


def test_from_c(runs: Path) -> None:
    program = os.environ.get("TWINRUN_COMPARE_C")
    if not program:
        pytest.skip("TWINRUN_COMPARE_C names no program")
    record = runs / "record"

    def verdict() -> str:
        done = subprocess.run(
            [program, runs / "plain", record], capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout + done.stderr

    assert verdict().startswith("same")
    shutil.copyfile(_difference(runs / "other", 2), _difference(record, 2))
    _make_newer(_difference(record, 2), record)
    assert not verdict().startswith("same"), verdict()


def test_the_command(runs: Path) -> None:
    record = runs / "record"
    shutil.copyfile(_difference(runs / "other", 2), _difference(record, 2))
    _make_newer(_difference(record, 2), record)
    report = runs / "report.json"
    assert command("compare", runs / "plain", record, "--json", report).status == 2
    assert json.loads(report.read_text())["verdict"] == "incomparable"
    assert command("verify", record).status == 1
