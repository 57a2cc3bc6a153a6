"""Records: pack, restore, compact, log, verify and compare, as a user types them."""

from __future__ import annotations

import filecmp
import json
import os
import random
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import check_error, command
from twinrun_spec.record import Record

import twinrun
from twinrun import RecordOptions
from twinrun.capture.record_options import offer_packing_library

METHODS = ("runs", "tree", "list", "basic", "full")


def states(steps: int, seed: int = 1, size: int = 20_003) -> list[dict[str, np.ndarray]]:
    """A run whose fields change a little from step to step; one grows, one comes late."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(size)
    counts = np.zeros((50, 73), np.uint32)
    found = []
    for step in range(steps):
        x[rng.integers(0, size, 20)] += 1
        counts[step % 50] += np.arange(73, dtype=np.uint32)
        fields = {"x": x.copy(), "counts": counts.copy(), "t": np.float64(step)}
        if step >= 2:
            fields["late"] = np.arange(100 + 40 * step, dtype=np.int16)
        found.append(fields)
    return found


def captured(path: Path, fields: list[dict[str, np.ndarray]], **settings: object) -> Path:
    with twinrun.Run(path, atol=1e-6, **settings) as run:
        for step, one in enumerate(fields):
            run.capture(10 * step, one)
    return path


def without_first_line(path: Path) -> bytes:
    """All of a journal but what is each history's own: its ID."""
    return path.read_bytes().partition(b"\n")[2]


def same_tree(a: Path, b: Path) -> None:
    """Every file of a is in b, bit for bit, and nothing else."""

    def files(of: Path) -> list[Path]:  # whose folders they are is each history's own
        found = [p.relative_to(of) for p in of.rglob("*") if p.is_file()]
        return sorted(p for p in found if not p.name.startswith(".twinrun-"))

    names = files(a)
    assert names == files(b)
    for name in names:
        if name.name == "manifest.jsonl" and without_first_line(a / name) == without_first_line(b / name):
            continue
        assert filecmp.cmp(a / name, b / name, shallow=False), name


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("compress", ["none", "zstd"])
def test_a_history_comes_back_as_it_was(tmp_path: Path, method: str, compress: str) -> None:
    run = captured(tmp_path / "run", states(6))
    facts = twinrun.pack(run, tmp_path / "record", options=RecordOptions(method, 128, compress))
    assert [s.step for s in facts.steps] == [0, 10, 20, 30, 40, 50]
    if method not in ("full", "basic"):
        assert facts.ratio(without_first=True) > 10
    twinrun.restore(tmp_path / "record", tmp_path / "back")
    same_tree(run, tmp_path / "back")
    assert twinrun.verify(tmp_path / "record") == ([], 13)
    assert twinrun.verify(tmp_path / "back")[0] == []
    result = twinrun.compare(run, tmp_path / "record")
    assert result.verdict == "same"


def test_a_record_compares_like_the_run_that_it_is_of(tmp_path: Path) -> None:
    first = states(5)
    other = states(5)
    other[3]["x"][1234] += 1e-3
    a, b = captured(tmp_path / "a", first), captured(tmp_path / "b", other)
    twinrun.pack(a, tmp_path / "ra")
    twinrun.pack(b, tmp_path / "rb")
    plain = twinrun.compare(a, b)
    for left, right in ((tmp_path / "ra", tmp_path / "rb"), (a, tmp_path / "rb"), (tmp_path / "ra", b)):
        found = twinrun.compare(left, right)
        assert found.verdict == "different"
        assert found.first_divergence == plain.first_divergence
    assert plain.first_divergence["index"] == [1234]


def test_files_of_another_program(tmp_path: Path) -> None:
    rng = random.Random(3)
    source = tmp_path / "out"
    source.mkdir()
    body = bytearray(rng.randbytes(100_001))
    (source / "notes.txt").write_text("of the run, and of no step")
    for step in (5, 10, 15):
        body[rng.randrange(len(body))] ^= 1
        (source / f"state_{step:04}.bin").write_bytes(body)
        os.makedirs(source / f"step-{step}")
        (source / f"step-{step}" / "empty.dat").write_bytes(b"")
    facts = twinrun.pack(source, tmp_path / "record")
    assert [s.step for s in facts.steps] == [5, 10, 15]
    assert all(s.bytes < 2000 for s in facts.steps[1:])
    twinrun.restore(tmp_path / "record", tmp_path / "one", steps=[10], flat=True)
    assert (tmp_path / "one" / "state_0010.bin").read_bytes() == (source / "state_0010.bin").read_bytes()
    assert (tmp_path / "one" / "step-10" / "empty.dat").read_bytes() == b""
    twinrun.restore(tmp_path / "record", tmp_path / "all")
    assert (tmp_path / "all" / "step-0000000005" / "notes.txt").read_text() == "of the run, and of no step"
    assert twinrun.verify(tmp_path / "record")[0] == []
    with pytest.raises(twinrun.FormatError, match="twinrun restore"):
        twinrun.compare(tmp_path / "record", tmp_path / "record")
    with pytest.raises(twinrun.TwinrunError, match="is there already"):
        twinrun.restore(tmp_path / "record", tmp_path / "one", steps=[10], flat=True)


@pytest.mark.parametrize("background", [False, True])
def test_a_run_records_itself(tmp_path: Path, background: bool) -> None:
    fields = states(8)
    plain = captured(tmp_path / "plain", fields)
    recorded = captured(
        tmp_path / "recorded", fields, record=RecordOptions("runs", 64), background=background
    )
    with twinrun.Run(recorded, atol=1e-6, existing="append", record=RecordOptions("runs", 64)) as run:
        for step, one in enumerate(fields):
            back = run.load(10 * step)
            assert list(back) == list(one)
            assert all(np.array_equal(back[name], one[name]) for name in one)
        run.capture(80, fields[-1])
    history = twinrun._core.open_history(str(recorded))
    kept = [step.ranks[0].data_bytes for step in history.steps]
    assert all(size < kept[0] / 10 for size in kept[1:])
    assert kept[-1] < 400  # nothing had changed since step 70
    assert twinrun.verify(recorded)[0] == []
    assert twinrun.compare(plain, recorded, steps=":70").verdict == "same"


def test_a_second_run_against_the_first(tmp_path: Path) -> None:
    fields = states(6)
    other = [{name: value.copy() for name, value in one.items()} for one in fields]
    for one in other[4:]:
        one["x"][77] += 1e-9
    captured(tmp_path / "first", fields, record="runs")
    captured(tmp_path / "second", other, record="runs", record_against=tmp_path / "first")
    sizes = [step.ranks[0].data_bytes for step in twinrun._core.open_history(str(tmp_path / "second")).steps]
    assert max(sizes) < 1500 and sizes[0] < 400
    with twinrun.Run(
        tmp_path / "second", atol=1e-6, existing="append", record="runs", record_against=tmp_path / "first"
    ) as run:
        for step, one in enumerate(other):
            back = run.load(10 * step)
            assert all(np.array_equal(back[name], one[name]) for name in one)
    with pytest.raises(twinrun.TwinrunError, match="recorded against it"):
        twinrun.compact(tmp_path / "first", keep_last=1)
    with pytest.raises(twinrun.TwinrunError, match="recorded against it"):
        twinrun.Run(tmp_path / "first", atol=1e-6, existing="replace")
    twinrun.compact(tmp_path / "second", keep_last=2)
    assert twinrun.verify(tmp_path / "second")[0] == []
    back = twinrun.restore(tmp_path / "second", tmp_path / "back")
    assert len(back) == 4


def test_steps_leave_and_others_stay(tmp_path: Path) -> None:
    run = captured(tmp_path / "run", states(40))
    twinrun.pack(run, tmp_path / "record")
    facts = twinrun.compact(tmp_path / "record", drop=[0, 10, 20, 200])
    assert facts.dropped_steps == 4
    facts = twinrun.compact(tmp_path / "record", keep_last=5)
    assert facts.dropped_steps == 31 and facts.bytes_after < facts.bytes_before
    assert twinrun.verify(tmp_path / "record")[0] == []
    twinrun.restore(tmp_path / "record", tmp_path / "back")
    for step in range(350, 400, 10):
        same_tree(run / f"step-{step:010}", tmp_path / "back" / f"step-{step:010}")
    with pytest.raises(twinrun.MissingFile, match="no step 340"):
        twinrun.restore(tmp_path / "record", tmp_path / "more", steps=[340])
    assert twinrun.compare(tmp_path / "record", run, steps="350,390").verdict == "same"


def test_within_the_tolerance(tmp_path: Path) -> None:
    """Noise below the bound is not kept again, and never adds up."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal(10_000)
    with twinrun.Run(tmp_path / "run", atol=1e-3) as run:
        for step in range(50):
            run.capture(step, {"x": x + rng.uniform(-4e-4, 4e-4, x.size) + 1e-4 * step})
    exact = twinrun.pack(tmp_path / "run", tmp_path / "exact")
    bounded = twinrun.pack(tmp_path / "run", tmp_path / "bounded", options=RecordOptions(bounded=True))
    assert bounded.bytes < exact.bytes / 3
    twinrun.restore(tmp_path / "bounded", tmp_path / "back")
    assert twinrun.verify(tmp_path / "back")[0] == [] and twinrun.verify(tmp_path / "bounded")[0] == []
    assert (
        twinrun.compare(
            tmp_path / "run", tmp_path / "back", options=twinrun.CompareOptions(method="direct")
        ).verdict
        == "same"
    )


def test_damage_is_named_with_the_steps_that_it_takes(tmp_path: Path) -> None:
    run = captured(tmp_path / "run", states(6))
    twinrun.pack(run, tmp_path / "record", options=RecordOptions(compress="none"))
    target = tmp_path / "record" / "step-0000000030" / "rank-00000.twr"
    body = bytearray(target.read_bytes())
    body[200] ^= 4  # of its payload
    target.write_bytes(body)
    problems, _ = twinrun.verify(tmp_path / "record")
    assert len(problems) == 1 and "step-0000000030" in problems[0] and "steps that need it: 30" in problems[0]
    twinrun.restore(tmp_path / "record", tmp_path / "back", steps=[0, 10, 20])
    with pytest.raises(twinrun.DamagedFile, match="step-0000000030"):
        twinrun.restore(tmp_path / "record", tmp_path / "more", steps=[30])


def test_the_independent_reader_reads_it(tmp_path: Path) -> None:
    run = captured(tmp_path / "run", states(5))
    twinrun.pack(run, tmp_path / "record")
    history = twinrun._core.open_history(str(tmp_path / "record"))
    paths = {s.ranks[0].difference: tmp_path / "record" / s.folder / s.ranks[0].data for s in history.steps}
    record = Record(lambda ordinal: paths[ordinal])
    for step in history.steps:
        original = (run / step.folder / "rank-00000.data").read_bytes()
        assert record.read_file(step.ranks[0].difference, "rank-00000.data") == original


def test_commands(tmp_path: Path) -> None:
    run = captured(tmp_path / "run", states(4))
    record = str(tmp_path / "record")
    done = command("pack", str(run), record, "--chunk", "128", "--method", "runs")
    assert done.status == 0 and "ratio" in done.out.splitlines()[-1]
    assert done.out.count("% of chunks new") == 4
    assert command("pack", str(run), record).status == 2  # it is there
    again = command("pack", str(run), record, "--chunk", "128", "--append", "--json")
    assert again.status == 0 and again.out == ""
    lines = command("pack", str(run), str(tmp_path / "other"), "--json").out.splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 10, 20, 30]
    listed = command("log", record)
    assert listed.status == 0 and "record: method runs, chunks of 128 bytes" in listed.out
    assert "kept" in listed.out and "ratio" in listed.out
    document = json.loads(command("log", record, "--json").out)
    assert document["record"] == {
        "method": "runs",
        "chunk_bytes": 128,
        "codec": "zstd",
        "level": document["record"]["level"],
        "xor": document["record"]["xor"],
        "bounded": False,
        "against": "",
    }
    assert [step["ranks"][0]["difference"] for step in document["steps"]] == [0, 1, 2, 3]
    assert json.loads(command("log", run, "--json").out)["record"] is None
    assert command("verify", record).status == 0
    assert command("restore", record, str(tmp_path / "back"), "--step", "20").status == 0
    same_tree(run / "step-0000000020", tmp_path / "back" / "step-0000000020")
    assert command("restore", record, str(tmp_path / "back"), "--step", "21").status == 2
    assert command("compact", record, "--keep-last", "2").status == 0
    assert command("compare", record, str(run), "--steps", "20,30").status == 0
    assert command("restore", str(run), str(tmp_path / "no")).status == 2  # no record
    for wrong in (["--chunk", "100"], ["--method", "best"], ["--compress", "none", "--xor"]):
        failed = command("pack", str(run), str(tmp_path / "wrong"), *wrong)
        assert failed.status == 2 and failed.err


@pytest.mark.parametrize("how", ["missing", "longer", "changed", "no folder"])
def test_a_restored_step_that_is_not_whole_any_more_is_said(tmp_path: Path, how: str) -> None:
    twinrun.pack(captured(tmp_path / "run", states(3)), tmp_path / "record")
    back = tmp_path / "back"
    assert len(twinrun.restore(tmp_path / "record", back, steps=[0, 10])) == 4
    assert twinrun.restore(tmp_path / "record", back, steps=[0, 10]) == []
    data = back / "step-0000000010" / "rank-00000.data"
    if how == "missing":
        data.unlink()
    elif how == "longer":
        with data.open("ab") as file:
            file.write(b"??")
    elif how == "changed":
        with data.open("r+b") as file:
            file.seek(100)
            file.write(b"?")
    else:
        shutil.rmtree(data.parent)
    for chosen in ([], ["--step", "10"]):
        done = command("restore", str(tmp_path / "record"), str(back), *chosen)
        assert (done.status, done.out) == (2, ""), done
        assert "step-0000000010/rank-00000." in done.err and "restore again" in done.err
    assert command("restore", str(tmp_path / "record"), str(back), "--step", "20").status == 0
    shutil.rmtree(back)  # as the message says
    assert len(twinrun.restore(tmp_path / "record", back)) == 6
    assert twinrun.verify(back)


def test_nothing_is_restored_into_a_record(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x_0001.bin").write_bytes(b"of a program")
    twinrun.pack(tmp_path / "out", tmp_path / "files")
    twinrun.pack(captured(tmp_path / "run", states(1)), tmp_path / "steps")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "files")
    for record in (tmp_path / "files", tmp_path / "steps"):
        for target in (record, record / "in it", tmp_path / "files", tmp_path / "steps", link):
            before = sorted(tmp_path.rglob("*"))
            with pytest.raises(twinrun.TwinrunError, match="name another folder"):
                twinrun.restore(record, target)
            assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(twinrun.TwinrunError, match="name another folder"):
        twinrun.write_part(tmp_path / "steps", 0, "x", tmp_path / "steps" / "x.bin")
    assert twinrun.verify(tmp_path / "files") and twinrun.verify(tmp_path / "steps")


def test_what_compact_says_and_refuses(tmp_path: Path) -> None:
    run = captured(tmp_path / "run", states(4))
    twinrun.pack(run, tmp_path / "record")
    check_error(command("compact", tmp_path / "record", "--keep-last", "0"), "--keep-last")
    for wrong in (0, -1):
        with pytest.raises(twinrun.TwinrunError, match="keep_last must be 1 or more"):
            twinrun.compact(tmp_path / "record", keep_last=wrong)
    done = command("compact", tmp_path / "record")
    assert done.status == 0 and done.out.startswith("0 steps removed; ")
    done = command("compact", tmp_path / "record", "--keep-last", "3")
    assert done.status == 0 and done.out.startswith("1 step removed; ")
    part = ("--step", "20", "--field", "x", "--bytes")
    size = states(4)[2]["x"].nbytes
    for given in ("0:100000000", f"{size + 1}:"):
        done = command("restore", tmp_path / "record", tmp_path / "no", *part, given)
        check_error(done, f"has {size} bytes", given.rstrip(":"), f"ask for bytes below {size}")
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("how", ["other bytes", "cut", "empty", "a bit of the tree", "gone"])
def test_compact_lets_nothing_leave_where_what_stays_is_damaged(how: str, tmp_path: Path) -> None:
    run = captured(tmp_path / "run", states(4))
    record = tmp_path / "record"
    twinrun.pack(run, record)
    steps = sorted(record.glob("step-*"))
    metadata = steps[2] / "rank-00000.twm"
    whole = metadata.read_bytes()
    changed = {
        "other bytes": bytes(3000),
        "cut": whole[:100],
        "empty": b"",
        "a bit of the tree": whole[:4100] + bytes([whole[4100] ^ 1]) + whole[4101:],
    }
    metadata.write_bytes(changed[how]) if how in changed else metadata.unlink()
    before = {p: p.read_bytes() for p in record.rglob("*") if p.is_file()}
    for options in (("--keep-last", "2"), ("--drop", "0"), ()):
        done = command("compact", record, *options)
        check_error(done, "step 20 would stay, and it is damaged", str(metadata), "nothing was removed")
        assert {p: p.read_bytes() for p in record.rglob("*") if p.is_file()} == before
    assert command("compact", record, "--drop", "20").status == 0  # it leaves itself
    assert twinrun.verify(record)


@pytest.mark.parametrize("how", ["other bytes", "cut", "empty", "gone"])
@pytest.mark.parametrize("suffix", ["twr", "twm"])
def test_show_of_a_step_that_the_record_does_not_have(suffix: str, how: str, tmp_path: Path) -> None:
    run = captured(tmp_path / "run", states(3))
    record = tmp_path / "record"
    twinrun.pack(run, record)
    assert command("show", record, "--step", "10").status == 0
    file = sorted(record.glob("step-*"))[1] / f"rank-00000.{suffix}"
    changed = {"other bytes": bytes(3000), "cut": file.read_bytes()[:100], "empty": b""}
    file.write_bytes(changed[how]) if how in changed else file.unlink()
    check_error(command("show", record, "--step", "10"), str(file))
    assert command("show", record, "--step", "0").status == 0
    if suffix == "twr" and how != "gone":
        check_error(command("show", file))


def test_a_part_of_a_field(tmp_path: Path) -> None:
    fields = states(4)
    run = captured(tmp_path / "run", fields)
    twinrun.pack(run, tmp_path / "record")
    whole = fields[2]["x"].tobytes()
    assert twinrun.read_part(tmp_path / "record", 20, "x") == whole
    assert twinrun.read_part(tmp_path / "record", 20, "x", offset=1001, count=77) == whole[1001:1078]
    assert twinrun.read_part(tmp_path / "record", 20, "x", offset=len(whole)) == b""
    out = tmp_path / "x.bin"
    assert (
        command("restore", tmp_path / "record", out, "--step", "20", "--field", "x", "--bytes", "8:16").status
        == 0
    )
    assert out.read_bytes() == whole[8:24]
    for wrong in (["--bytes", "8:16"], ["--field", "x"], ["--step", "20", "--field", "x", "--bytes", "-1:2"]):
        assert command("restore", tmp_path / "record", tmp_path / "no", *wrong).status == 2
    assert (
        command("restore", tmp_path / "record", out, "--step", "20", "--field", "x").status == 2
    )  # it is there
    with pytest.raises(twinrun.TwinrunError, match="has 160024 bytes"):
        twinrun.read_part(tmp_path / "record", 20, "x", offset=160_000, count=25)
    with pytest.raises(twinrun.MissingFile, match="no 'y'"):
        twinrun.read_part(tmp_path / "record", 20, "y")
    with pytest.raises(twinrun.MissingFile, match="has no step 21; twinrun log lists the steps"):
        twinrun.read_part(tmp_path / "record", 21, "x")
    with pytest.raises(twinrun.TwinrunError, match="a step is an integer, not True"):
        twinrun.read_part(tmp_path / "record", True, "x")


def test_a_missing_part_of_a_record_is_damage(tmp_path: Path) -> None:
    """The step is there: whoever asks for it did not ask for the wrong one."""
    x = np.arange(10_000.0)
    with twinrun.Run(tmp_path / "run", record="runs") as run:
        for step in range(3):
            x[step] += 1
            run.capture(step, {"x": x})
    gone = tmp_path / "run/step-0000000000/rank-00000.twr"
    gone.unlink()
    asked = [
        lambda: twinrun.read_part(tmp_path / "run", 2, "x"),
        lambda: twinrun.restore(tmp_path / "run", tmp_path / "back", steps=[1]),
        lambda: twinrun.compare(tmp_path / "run", {"x": x}, steps="2"),
    ]
    for ask in asked:
        with pytest.raises(twinrun.DamagedFile, match=rf"{gone}: missing, and steps of the record need it"):
            ask()


def test_an_exception_that_is_kept_keeps_no_file_open(tmp_path: Path) -> None:
    """Its traceback has what it came from: the record, whose files were read."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=60 * 32)
    with twinrun.Run(tmp_path / "run", record="runs") as run:
        for step in range(60):
            x[step * 32 : (step + 1) * 32] = rng.normal(size=32)
            run.capture(step, {"x": x})
    damaged = tmp_path / "run/step-0000000030/rank-00000.twr"
    content = bytearray(damaged.read_bytes())
    content[300] ^= 1
    damaged.write_bytes(content)
    before = len(os.listdir("/proc/self/fd"))
    kept = []
    for _ in range(3):
        with pytest.raises(twinrun.DamagedFile) as caught:
            twinrun.read_part(tmp_path / "run", 59, "x")
        kept.append(caught.value)
    assert len(os.listdir("/proc/self/fd")) < before + 10


def test_what_makes_no_sense_is_said(tmp_path: Path) -> None:
    run = captured(tmp_path / "run", states(2))
    with pytest.raises(twinrun.TwinrunError, match="power of two"):
        twinrun.pack(run, tmp_path / "r", options=RecordOptions(chunk=96))
    with pytest.raises(twinrun.TwinrunError, match="none of"):
        twinrun.pack(run, tmp_path / "r", options=RecordOptions("best"))
    with pytest.raises(twinrun.TwinrunError, match="xor needs another method than 'full'"):
        twinrun.pack(run, tmp_path / "r", options=RecordOptions("full", xor=True))
    for table in ("2 GiB", -1, 1.5):
        with pytest.raises(twinrun.TwinrunError, match="table must be a whole number of bytes"):
            twinrun.pack(run, tmp_path / "r", options=RecordOptions(table=table))
    with pytest.raises(twinrun.MissingFile):
        twinrun.pack(tmp_path / "nowhere", tmp_path / "r")
    with pytest.raises(twinrun.FormatError, match="outside"):
        (tmp_path / "files").mkdir()
        (tmp_path / "files" / "x_1.bin").write_bytes(b"x")
        twinrun.pack(tmp_path / "files", tmp_path / "files" / "r")
    with pytest.raises(twinrun.TwinrunError, match="twinrun compact"):
        twinrun.Run(tmp_path / "q", record="runs", keep_steps=3)
    with pytest.raises(twinrun.TwinrunError, match="no data to record"):
        twinrun.Run(tmp_path / "q", record="runs", keep_data=False)
    with pytest.raises(twinrun.TwinrunError, match="record_against needs record"):
        twinrun.Run(tmp_path / "q", record_against=run)
    with pytest.raises(twinrun.TwinrunError, match="is not a record"):
        twinrun.Run(tmp_path / "q", record="runs", record_against=run)


def test_packing_stops_where_it_is_told(tmp_path: Path) -> None:
    run = captured(tmp_path / "run", states(6))

    def stop(step: twinrun.PackedStep) -> None:
        if step.step == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        twinrun.pack(run, tmp_path / "record", progress=stop)
    facts = twinrun.pack(run, tmp_path / "record", append=True)
    assert [s.step for s in facts.steps] == [30, 40, 50]
    assert all(s.bytes < facts.steps[0].full_bytes / 10 for s in facts.steps)
    twinrun.restore(tmp_path / "record", tmp_path / "back")
    same_tree(run, tmp_path / "back")


def test_the_packing_library_of_a_package_is_found(tmp_path, monkeypatch):
    folder = tmp_path / "nvidia" / "libnvcomp" / "lib64"
    folder.mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [n for n in sys.modules if n == "nvidia" or n.startswith("nvidia.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setenv("TWINRUN_NVCOMP", "")
    offer_packing_library()
    assert os.environ["TWINRUN_NVCOMP"] == ""  # a package without the library
    for version in (5, 6):
        (folder / f"libnvcomp.so.{version}").touch()
        offer_packing_library()
    assert os.environ["TWINRUN_NVCOMP"] == str(folder / "libnvcomp.so.5")  # the first that was found stays
    monkeypatch.setenv("TWINRUN_NVCOMP", "")
    offer_packing_library()
    assert os.environ["TWINRUN_NVCOMP"] == str(folder / "libnvcomp.so.6")


def test_booleans_and_dates_are_exact_whatever_their_tolerance(tmp_path: Path) -> None:
    """Integers have the tolerance that names them."""
    day = np.array(["2024-01-01", "2024-01-05"], "M8[D]")
    own = {"b": 2.0, "t": 5.0, "n": 5.0}
    with twinrun.Run(tmp_path / "h", tolerances=own) as run:
        for step in range(2):
            run.capture(step, {"b": np.full(3, step > 0), "t": day + step, "n": np.arange(3) + step})
    twinrun.pack(tmp_path / "h", tmp_path / "record", options=twinrun.RecordOptions(bounded=True))
    twinrun.restore(tmp_path / "record", tmp_path / "back")
    with twinrun.Run(tmp_path / "back", existing="append", tolerances=own) as back:
        found = back.load(1)
    assert found["b"].all() and np.array_equal(found["t"], (day + 1).view(np.int64))
    assert abs(found["n"] - np.arange(1, 4)).max() <= 5
    a, b = ({"b": np.full(3, one), "t": day + one} for one in (False, True))
    with twinrun.Run(tmp_path / "a", tolerances=own) as run:
        run.capture(0, a)
    told: list[object] = []
    with twinrun.Run(
        tmp_path / "c", tolerances=own, reference=tmp_path / "a", on_divergence=told.append
    ) as run:
        run.capture(0, b)
    assert len(told) == 1


def test_a_field_without_elements_has_no_bytes(tmp_path: Path) -> None:
    with twinrun.Run(tmp_path / "r", record="runs") as run:
        run.capture(7, {"x": np.arange(3.0), "e": np.zeros((0, 3))})
    assert twinrun.read_part(tmp_path / "r", 7, "e") == b""
    assert twinrun.write_part(tmp_path / "r", 7, "e", tmp_path / "e.bin") == 0
    assert (tmp_path / "e.bin").read_bytes() == b""
    with pytest.raises(twinrun.TwinrunError, match="o: cannot be written: No such file"):
        twinrun.write_part(tmp_path / "r", 7, "e", tmp_path / "no" / "o")
    with pytest.raises(twinrun.TwinrunError, match="'e' of step 7 has 0 bytes"):
        twinrun.read_part(tmp_path / "r", 7, "e", offset=1)
    with pytest.raises(twinrun.errors.MissingFile, match="has no 'f'"):
        twinrun.read_part(tmp_path / "r", 7, "f")


def test_arguments_of_records_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "r"
    with twinrun.Run(path, record="runs") as run:
        run.capture(1, {"x": np.arange(3.0)})
    for call, said in (
        (lambda: twinrun.read_part(path, "1", "x"), "a step is an integer"),
        (lambda: twinrun.read_part(path, 2**70, "x"), "does not fit into 64 bits"),
        (lambda: twinrun.read_part(path, 1, "x", rank=-1), "there is no rank -1"),
        (lambda: twinrun.read_part(path, 1, "x", rank="0"), "rank must be a whole number"),
        (lambda: twinrun.read_part(path, 1, "x", offset=1.5), "offset must be a whole number"),
        (lambda: twinrun.read_part(path, 1, "x", count="1"), "count must be a whole number"),
        (lambda: twinrun.restore(path, tmp_path / "o", steps=["1"]), "a step is an integer"),
        (lambda: twinrun.compact(path, drop=["1"]), "a step is an integer"),
        (lambda: twinrun.compact(path, keep_last=1.5), "keep_last must be a whole number"),
    ):
        with pytest.raises(twinrun.TwinrunError, match=said):
            call()


@pytest.mark.parametrize("inside", ["sub", "step-0000000001/sub"])
def test_no_record_within_the_history_that_is_packed(inside: str, tmp_path: Path) -> None:
    with twinrun.Run(tmp_path / "h") as run:
        run.capture(1, {"x": np.arange(3.0)})
    with pytest.raises(twinrun.FormatError, match="would be within what is packed"):
        twinrun.pack(tmp_path / "h", tmp_path / "h" / inside)


def test_a_record_whose_base_was_moved_names_both(tmp_path: Path) -> None:
    x = np.arange(1000.0)
    with twinrun.Run(tmp_path / "base", record="runs") as run:
        run.capture(1, {"x": x})
    with twinrun.Run(tmp_path / "r", record="runs", record_against=tmp_path / "base") as run:
        run.capture(1, {"x": x})
    (tmp_path / "base").rename(tmp_path / "elsewhere")
    for call in (
        lambda: twinrun.read_part(tmp_path / "r", 1, "x"),
        lambda: twinrun.restore(tmp_path / "r", tmp_path / "o"),
    ):
        with pytest.raises(twinrun.errors.MissingFile, match="r: was recorded against"):
            call()
    (tmp_path / "elsewhere").rename(tmp_path / "base")
    assert twinrun.read_part(tmp_path / "r", 1, "x") == x.tobytes()
