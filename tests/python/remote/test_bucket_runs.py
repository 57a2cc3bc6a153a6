"""Runs whose last tier is a bucket: what is there at each moment, after errors, and for who goes on."""

import contextlib
import fnmatch
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import HANG, command
from s3_bucket import Bucket

import twinrun
from twinrun import FormatError, Incomparable, StepLost, TwinrunError, _core, remote
from twinrun.capture.local_folder import LocalFolder
from twinrun.capture.mirror import Mirror
from twinrun.capture.run import RankRun

SIZE = 3_000
ACCESS = "403 AccessDenied"  # a reply that is not tried again


def state(step: int) -> np.ndarray:
    return np.arange(float(SIZE)) + step


def captured(run: twinrun.Run, *steps: int) -> None:
    for step in steps:
        run.capture(step, {"x": state(step)})


def run_at(url: str, local: Path, **options: object) -> twinrun.Run:
    return twinrun.Run(url, atol=1e-6, local=local, **options)


def steps_in(url: str) -> list[int]:
    """The steps that a reader sees, each of which is whole."""
    same = twinrun.compare(url, url)
    assert same.verdict == "same"
    return sorted({field.step for field in same.fields})


def folder_of(local: Path) -> Path:
    (found,) = local.iterdir()
    return found / "history"


@pytest.mark.parametrize("record", [None, "runs"])
@pytest.mark.parametrize("gone", ["manifest.jsonl", "step-0000000001/rank-00000.*", "*"])
def test_the_local_folder_stays_where_the_bucket_lost_something(
    bucket: Bucket, tmp_path: Path, gone: str, record: str | None
) -> None:
    url = f"s3://bucket/gone/{record}-{len(gone)}"
    run = run_at(url, tmp_path, record=record)
    captured(run, 0, 1, 2)
    run.wait()
    key = url.removeprefix("s3://")
    found = [path for path in bucket.fs.find(key) if fnmatch.fnmatch(path, f"{key}/{gone}")]
    assert found
    bucket.fs.rm(found)
    with pytest.raises(StepLost, match="somebody removed objects") as raised:
        run.close()
    assert 1 in raised.value.steps
    assert twinrun.verify(folder_of(tmp_path)).problems == []
    assert sorted(s.step for s in _core.open_history(str(folder_of(tmp_path))).steps) == [0, 1, 2]


def test_steps_that_the_bucket_lost_can_be_captured_again(bucket: Bucket, tmp_path: Path) -> None:
    url = "s3://bucket/again/a"
    with run_at(url, tmp_path / "first") as run:
        captured(run, 0, 1)
    run = run_at(url, tmp_path / "second", existing="append")  # has the journals of 0 and 1 only
    bucket.refuse = lambda method, path: ACCESS if method == "PUT" else ""
    with pytest.raises(StepLost):
        captured(run, 2)
        run.close()
    bucket.reset()
    with contextlib.suppress(StepLost):
        run.close()
    bucket.fs.rm("bucket/again/a", recursive=True)
    with run_at(url, tmp_path / "second", existing="append", replace_steps=True) as run:
        with pytest.raises(StepLost, match="replace_steps"):
            run.wait()
        with contextlib.suppress(StepLost):
            captured(run, 0)
        captured(run, 1)
    assert steps_in(url) == [0, 1, 2]


def test_stores_with_a_bucket_of_one_name_have_local_folders_of_their_own(tmp_path: Path) -> None:
    folders = [LocalFolder("s3://bucket/a", str(tmp_path), store) for store in ("", "http://a", "http://b")]
    assert len({folder.path for folder in folders}) == 3
    for folder in folders:
        folder.close()


@pytest.mark.parametrize("url", ["s3://bucket/a?b", "s3://bucket/a#b", "s3://bucket/a\nb", "s3://bucket/?b"])
def test_prefixes_that_other_urls_cut_are_refused(bucket: Bucket, tmp_path: Path, url: str) -> None:
    with pytest.raises(TwinrunError, match="choose another prefix"):
        run_at(url, tmp_path)
    assert list(tmp_path.iterdir()) == []
    twinrun.Run(tmp_path / "run").close()
    done = command("flush", tmp_path / "run", "--to", url)
    assert done.status == 2 and "choose another prefix" in done.err, done
    assert bucket.keys("") == set() or not any("?" in k or "#" in k for k in bucket.keys(""))


def test_steps_are_uploaded_and_compared(bucket: Bucket, tmp_path: Path) -> None:
    with run_at("s3://bucket/up/a", tmp_path / "local") as run:
        assert run.path == "s3://bucket/up/a" and run.steps == []
        captured(run, 0, 10, 20)
        run.wait()
        assert run.steps == [0, 10, 20] and run.local_steps == [] and run.latest() == 20
        assert steps_in("s3://bucket/up/a") == [0, 10, 20]
        run.capture(30, {"x": state(30)})
    assert list((tmp_path / "local").iterdir()) == []
    with run_at("s3://bucket/up/b", tmp_path / "local", background=True) as run:
        captured(run, 0, 10, 20)
        run.capture(30, {"x": state(30) + (np.arange(SIZE) == 77)})
    result = twinrun.compare("s3://bucket/up/a", "s3://bucket/up/b")
    assert result.verdict == "different"
    assert (result.first.step, result.first.first_index) == (30, (77,))


def test_a_step_is_committed_by_the_journal_which_comes_last(bucket: Bucket, tmp_path: Path) -> None:
    with run_at("s3://bucket/order", tmp_path) as run:
        captured(run, 0)
        run.wait()
        bucket.requests.clear()
        captured(run, 1)
        run.wait()
        puts = [path.rpartition("/bucket/order/")[2] for method, path in bucket.requests if method == "PUT"]
    assert puts[-1] == "manifest.jsonl" and puts.count("manifest.jsonl") == 1
    assert sorted(puts[:-1])[1:] == ["step-0000000001/rank-00000.data", "step-0000000001/rank-00000.twm"]


def test_a_reader_of_a_run_that_goes_on(bucket: Bucket, tmp_path: Path) -> None:
    """A step is committed after the reader listed the objects, and before it reads the journal."""
    with run_at("s3://bucket/live", tmp_path, existing="append") as run:
        captured(run, 0)
        run.wait()
        committed = False

        def commit(method: str, path: str) -> str:
            nonlocal committed
            if not committed and (method, path) == ("GET", "/bucket/live/manifest.jsonl"):
                committed = True
                captured(run, 1)
                run.wait()
            return ""

        bucket.refuse = commit
        assert steps_in("s3://bucket/live") == [0, 1] and committed


@pytest.mark.parametrize("record", [None, "runs"])
def test_an_upload_that_ends_anywhere_leaves_whole_steps(
    bucket: Bucket, tmp_path: Path, record: str | None
) -> None:
    """The upload ends after n PUTs: with the manifest, within a step, before its journal, within the next step.
    The next run goes on from there.
    """
    for n in (1, 3, 4, 7):
        url, local = f"s3://bucket/ends-{record}/{n}", tmp_path / str(n)
        puts = 0

        def refuse(method: str, path: str, n: int = n) -> str:
            nonlocal puts
            puts += method == "PUT"
            return ACCESS if puts > n else ""

        bucket.refuse = refuse
        run = run_at(url, local, record=record)
        with pytest.raises(StepLost, match="refuses access") as error:
            captured(run, 0, 1)
            run.close()
        assert set(error.value.steps) <= {0, 1}
        with contextlib.suppress(StepLost):  # again, if it was a capture that said it
            run.close()
        bucket.refuse = lambda method, path: ""
        journal = bucket.get(f"ends-{record}/{n}/manifest.jsonl").decode().splitlines()
        there = [json.loads(line)["step"] for line in journal if '"step":' in line]
        assert (steps_in(url) if there else []) == there == ([0] if n == 7 else [])
        with run_at(url, local, record=record, existing="append") as run:
            captured(run, *{0, 1, 2} - set(run.steps))
        assert steps_in(url) == [0, 1, 2]
        with run_at(url, tmp_path / f"{n}-other", record=record, existing="append") as run:
            for step in (0, 1, 2):
                assert np.array_equal(run.load(step)["x"], state(step))


def test_an_error_is_reported_once_and_nothing_is_lost(bucket: Bucket, tmp_path: Path) -> None:
    run = run_at("s3://bucket/full", tmp_path)
    bucket.refuse = lambda method, path: "400 QuotaExceeded" if method == "PUT" else ""
    captured(run, 0)
    with pytest.raises(StepLost, match=r"QuotaExceeded") as error:
        run.wait()
    assert list(error.value.steps) == [0] and str(folder_of(tmp_path)) in str(error.value)
    assert "hidden" not in str(error.value)
    assert run.local_steps == [0] and run.steps == []
    captured(run, 1)  # step 0 was reported
    with pytest.raises(StepLost) as error:
        run.wait()
    assert list(error.value.steps) == [0, 1]
    bucket.refuse = lambda method, path: ""
    run.wait()
    assert run.steps == [0, 1] and run.local_steps == []
    run.close()
    assert steps_in("s3://bucket/full") == [0, 1] and list(tmp_path.iterdir()) == []


def test_capture_reports_an_upload_that_failed_before(bucket: Bucket, tmp_path: Path) -> None:
    run = run_at("s3://bucket/next", tmp_path)
    bucket.refuse = lambda method, path: ACCESS if method == "PUT" else ""
    captured(run, 0)
    run._bucket._uploader.drain()
    with pytest.raises(StepLost) as error:
        run.capture(1, {"x": state(1)})
    assert error.value.facts.step == 1 and 0 in error.value.steps
    bucket.refuse = lambda method, path: ""
    run.close()
    assert steps_in("s3://bucket/next") == [0, 1]


def test_another_machine_restores_and_goes_on(bucket: Bucket, tmp_path: Path) -> None:
    url = "s3://bucket/restart"
    with run_at(url, tmp_path / "a", keep_data=True) as run:
        run.capture(4, {"x": state(4), "n": np.arange(5)})
    with run_at(url, tmp_path / "b", existing="append") as run:
        assert run.latest() == 4
        x = np.zeros(SIZE)
        run.restore(4, {"x": x})
        assert np.array_equal(x, state(4))
        run.capture(5, {"x": state(5), "n": np.arange(5)})
    assert steps_in(url) == [4, 5]
    with pytest.raises(Incomparable):
        twinrun.Run(url, atol=1e-3, local=tmp_path / "c", existing="append")
    with run_at(url, tmp_path / "c", existing="append") as run:
        assert np.array_equal(run.load(5)["n"], np.arange(5))


def test_a_killed_process_leaves_its_steps_to_the_next_run(bucket: Bucket, tmp_path: Path) -> None:
    url = "s3://bucket/killed"
    program = (
        "import os, signal, sys, numpy as np, twinrun\n"
        "run = twinrun.Run(sys.argv[1], atol=1e-6, local=sys.argv[2], flusher='none')\n"
        "for step in range(3):\n"
        f"    run.capture(step, {{'x': np.arange({SIZE}.0) + step}})\n"
        "assert run.steps == [0, 1, 2] and run.local_steps == [0, 1, 2]\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, url, str(tmp_path)], timeout=HANG)
    assert done.returncode == -signal.SIGKILL
    with pytest.raises(TwinrunError, match="holds steps of a run that were to go to s3://bucket/killed"):
        run_at(url, tmp_path)
    with run_at(url, tmp_path, existing="append") as run:
        assert run.steps == [0, 1, 2]
        captured(run, 3)
    assert steps_in(url) == [0, 1, 2, 3]


def test_flush_brings_what_was_left(bucket: Bucket, tmp_path: Path) -> None:
    with run_at("s3://bucket/flushed", tmp_path, flusher="none") as run:
        captured(run, 0, 1)
    done = command("flush", folder_of(tmp_path), "--to", "s3://bucket/flushed")
    assert done.status == 0 and "2 steps -> s3://bucket/flushed" in done.out
    assert steps_in("s3://bucket/flushed") == [0, 1]
    assert command("flush", tmp_path, "--to", "s3://bucket/flushed").status == 2


@pytest.mark.parametrize("key", ["manifest.jsonl", "step-0000000001/rank-00000.data"])
def test_objects_of_others_stay(bucket: Bucket, tmp_path: Path, key: str) -> None:
    prefix = f"others-{len(key)}"
    bucket.put(f"{prefix}/{key}", b"of somebody")
    bucket.put(f"{prefix}/notes", b"too")
    with pytest.raises((FormatError, StepLost), match="is in the bucket already, and "):
        with run_at(f"s3://bucket/{prefix}", tmp_path) as run:
            captured(run, 0, 1)
    with pytest.raises((FormatError, StepLost), match="is in the bucket already, and "):
        with run_at(f"s3://bucket/{prefix}", tmp_path, existing="replace") as run:
            captured(run, 0, 1)
    assert bucket.get(f"{prefix}/{key}") == b"of somebody" and bucket.get(f"{prefix}/notes") == b"too"


def test_a_history_that_was_copied_there_by_hand_is_not_written(bucket: Bucket, tmp_path: Path) -> None:
    with twinrun.Run(tmp_path / "a", atol=1e-6) as run:
        captured(run, 0)
    bucket.put_folder(tmp_path / "a", "copied")
    for existing in ("append", "replace"):
        with pytest.raises(FormatError, match="was not written there by twinrun"):
            run_at("s3://bucket/copied", tmp_path / "local", existing=existing)
    assert steps_in("s3://bucket/copied") == [0]


def test_refuse_and_replace(bucket: Bucket, tmp_path: Path) -> None:
    url = "s3://bucket/replaced"
    with run_at(url, tmp_path / "a") as run:
        captured(run, 0, 1, 2)
    bucket.put("replaced/step-0000000002/mine", b"of somebody")
    with pytest.raises(TwinrunError, match="s3://bucket/replaced: holds a history"):
        run_at(url, tmp_path / "b")
    with run_at(url, tmp_path / "b", existing="replace") as run:
        assert run.steps == []
        run.capture(1, {"x": state(7)})
    assert steps_in(url) == [1]
    mark = {key for key in bucket.keys("replaced") if ".twinrun-" in key}
    assert bucket.keys("replaced") - mark == {
        "manifest.jsonl",
        "step-0000000001/rank-00000.data",
        "step-0000000001/rank-00000.twm",
        "step-0000000002/mine",
    }
    assert len(mark) == 1
    with run_at(url, tmp_path / "b", existing="append") as run:
        assert np.array_equal(run.load(1)["x"], state(7))


def test_retention_reaches_the_bucket(bucket: Bucket, tmp_path: Path) -> None:
    url = "s3://bucket/kept"
    with run_at(url, tmp_path, keep_steps=3, keep_data_steps=1) as run:
        captured(run, 0)
        run.wait()
        bucket.put("kept/step-0000000000/mine", b"of somebody")
        captured(run, 1, 2, 3)
    data = {key for key in bucket.keys("kept") if key.endswith(".data")}
    metadata = {key for key in bucket.keys("kept") if key.endswith(".twm")}
    assert data == {"step-0000000003/rank-00000.data"}
    assert metadata == {f"step-000000000{n}/rank-00000.twm" for n in (1, 2, 3)}
    assert {key for key in bucket.keys("kept") if "step-0000000000" in key} == {"step-0000000000/mine"}


def test_a_step_may_leave_while_it_is_uploaded(bucket: Bucket, tmp_path: Path) -> None:
    with twinrun.Run(tmp_path / "h", atol=1e-6, keep_steps=1) as run:
        captured(run, 0)
        mirror = Mirror(str(tmp_path / "h"), remote.Bucket("s3://bucket/leaves"))
        left = False

        def leave(method: str, path: str) -> str:
            nonlocal left
            if not left and method == "PUT" and "/.twinrun-" in path:
                left = True
                captured(run, 1)  # and step 0 is removed
            return ""

        bucket.refuse = leave
        mirror.push()
    assert left and steps_in("s3://bucket/leaves") == [1]
    assert not any("step-0000000000" in key for key in bucket.keys("leaves"))


def test_of_two_writers_the_first_one_is_stopped(bucket: Bucket, tmp_path: Path) -> None:
    url = "s3://bucket/two"
    first = run_at(url, tmp_path / "a")
    captured(first, 0)
    first.wait()
    with run_at(url, tmp_path / "b", existing="append") as second:
        captured(second, 1)
        captured(first, 1)
        with pytest.raises(StepLost, match="another process has written it since"):
            first.wait()
        captured(second, 2)
    with pytest.raises(StepLost, match="another process has written it since"):
        first.close()
    assert steps_in(url) == [0, 1, 2]
    with pytest.raises(FormatError, match="has other steps than the local folder"):
        run_at(url, tmp_path / "a", existing="append")
    assert (folder_of(tmp_path / "a") / "step-0000000001/rank-00000.data").exists()


def test_the_local_folder_is_proved_and_locked(bucket: Bucket, tmp_path: Path) -> None:
    with run_at("s3://bucket/own", tmp_path) as run:
        with pytest.raises(TwinrunError, match="another run of this machine writes it"):
            run_at("s3://bucket/own", tmp_path, existing="append")
        base = folder_of(tmp_path).parent
        (base / "mine").write_text("of somebody")
        captured(run, 0)
    assert sorted(p.name for p in base.iterdir()) == ["mine", "twinrun-bucket.json"]
    mark = base / "twinrun-bucket.json"
    mark.write_text(mark.read_text().replace("bucket/own", "bucket/other"))
    with pytest.raises(FormatError, match=r"is not the local folder of s3://bucket/own"):
        run_at("s3://bucket/own", tmp_path, existing="append")
    mark.unlink()
    with pytest.raises(FormatError, match="was not made by twinrun"):
        run_at("s3://bucket/own", tmp_path, existing="append")
    assert (base / "mine").read_text() == "of somebody"


def test_the_default_local_folder_is_among_the_users_caches(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    with twinrun.Run("s3://bucket/default") as run:
        captured(run, 0)
        assert folder_of(tmp_path / "caches/twinrun/buckets").is_dir()
    assert not any((tmp_path / "caches/twinrun/buckets").iterdir())


def test_the_local_folder_keeps_to_its_limit(bucket: Bucket, tmp_path: Path) -> None:
    with run_at("s3://bucket/room", tmp_path, local_limit=200_000) as run:
        for step in range(12):
            captured(run, step)
            files = [p for p in folder_of(tmp_path).rglob("*") if p.suffix in (".data", ".twm")]
            assert sum(p.stat().st_size for p in files) <= 200_000 + 40_000
        run.wait()
        assert run.steps == list(range(12))
        assert not (folder_of(tmp_path) / "step-0000000000/rank-00000.data").exists()
        assert np.array_equal(run.load(0)["x"], state(0))
    assert steps_in("s3://bucket/room") == list(range(12))
    assert list(tmp_path.iterdir()) == []


def test_a_large_file_goes_in_parts(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinrun.remote.bucket._PART", 5 << 20)
    large = np.random.default_rng(1).random(1_500_000)
    url = "s3://bucket/large"
    run = run_at(url, tmp_path)
    parts = 0

    def refuse(method: str, path: str) -> str:
        nonlocal parts
        is_part = method == "PUT" and path.endswith(".data")
        parts += is_part
        return ACCESS if is_part and parts >= 2 else ""  # in whichever upload it is

    bucket.refuse = refuse
    run.capture(0, {"x": large})
    with pytest.raises(StepLost):
        run.wait()
    assert not any(key.endswith(".data") for key in bucket.keys("large"))
    assert "Uploads" not in bucket.fs.call_s3("list_multipart_uploads", Bucket="bucket")
    bucket.reset()
    run.close()
    with run_at(url, tmp_path, existing="append") as run:
        assert np.array_equal(run.load(0)["x"], large)


@pytest.mark.parametrize("record", [None, "runs"])
def test_histories_of_several_ranks(bucket: Bucket, tmp_path: Path, record: str | None) -> None:
    """Ranks write their own files and journals; a step is there when each journal has it."""
    turns = _core.Turns(2)
    for rank in range(2):
        with RankRun(tmp_path / "h", turns, atol=1e-6, record=record) as run:
            for step in range(2):
                run.capture(step, {"x": state(step) + rank})
    url, prefix = f"s3://bucket/ranks-{record}", f"ranks-{record}"
    journals = 0

    def refuse(method: str, path: str) -> str:
        nonlocal journals
        journals += method == "PUT" and path.endswith("rank-00001.jsonl")
        return ACCESS if journals else ""

    bucket.refuse = refuse
    assert command("flush", tmp_path / "h", "--to", url).status == 2
    bucket.refuse = lambda method, path: ""
    assert "rank-00000.jsonl" in bucket.keys(prefix) and "manifest.jsonl" not in bucket.keys(prefix)
    assert command("flush", tmp_path / "h", "--to", url).status == 0
    assert steps_in(url) == [0, 1]
    assert twinrun.compare(url, tmp_path / "h").verdict == "same"
    turns = _core.Turns(2)
    for rank in range(2):  # one part differs
        with RankRun(tmp_path / "plain", turns, atol=1e-6) as run:
            for step in range(2):
                run.capture(step, {"x": state(step) + rank + 2e-6 * (step == rank == 1)})
    result = twinrun.compare(tmp_path / "plain", url, options=twinrun.CompareOptions(method="direct"))
    different = [(f.step, f.rank, f.different) for f in result.fields if not f.same]
    assert different == [(1, 1, SIZE)]


def test_a_step_that_was_damaged_here_is_not_uploaded(bucket: Bucket, tmp_path: Path) -> None:
    url = "s3://bucket/damaged-here"
    with run_at(url, tmp_path, flusher="none") as run:
        captured(run, 0, 1)
    data = folder_of(tmp_path) / "step-0000000001/rank-00000.data"
    data.write_bytes(data.read_bytes()[:-5000] + b"?" + data.read_bytes()[-4999:])
    run = run_at(url, tmp_path, existing="append", flusher="none", replace_steps=True)
    run.close()
    assert command("flush", folder_of(tmp_path), "--to", url).status == 2
    assert steps_in(url) == [0]
    assert "step-0000000001/rank-00000.data" not in bucket.keys("damaged-here")
    run = run_at(url, tmp_path, existing="append", flusher="none", replace_steps=True)
    captured(run, 1)
    run.close()
    assert command("flush", folder_of(tmp_path), "--to", url).status == 0
    assert steps_in(url) == [0, 1]


def test_the_example_goes_on_and_is_compared(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    example = Path(__file__).parents[3] / "examples/bucket/simulate.py"

    def simulate(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, example, *arguments], timeout=HANG, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert simulate("s3://bucket/example/a", "25") == ""
    assert simulate("s3://bucket/example/a", "40") == "going on from step 20\n"
    simulate("s3://bucket/example/b", "40", "1e-12")
    result = twinrun.compare("s3://bucket/example/a", "s3://bucket/example/b")
    assert result.verdict == "different" and result.first.first_index == (77,)


def test_settings_that_do_not_fit(bucket: Bucket, tmp_path: Path) -> None:
    for options, said in (
        ({"flusher": "process"}, "flusher='process' is for folders"),
        ({"record": "runs", "record_against": "r"}, "record_against is for folders"),
        ({"record": "runs", "local_limit": 1000}, "local_limit is not for records"),
    ):
        with pytest.raises(TwinrunError, match=said):
            run_at("s3://bucket/settings", tmp_path, **options)
    with pytest.raises(TwinrunError, match="twinrun writes to s3:// and gs:// only"):
        run_at("https://me:secret@127.0.0.1/x", tmp_path)
    assert os.listdir(tmp_path) == [] and bucket.keys("settings") == set()


def test_a_conflict_of_writes_is_tried_again(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3's 409: a write of the same object was under way. It says nothing about who writes the history."""
    monkeypatch.setattr("twinrun.remote.transport._PAUSE", 0)
    monkeypatch.setattr("twinrun.remote.bucket._PART", 5 << 20)
    seen: set[str] = set()

    def once(method: str, path: str) -> str:
        if method != "PUT" or path in seen:
            return ""
        seen.add(path)
        return "409 ConditionalRequestConflict"

    bucket.refuse = once
    with run_at("s3://bucket/conflict", tmp_path) as run:
        captured(run, 1)
    assert len(seen) > 3 and steps_in("s3://bucket/conflict") == [1]
    bucket.refuse = lambda method, path: "409 ConditionalRequestConflict" if method == "PUT" else ""
    with pytest.raises(FormatError, match="another write of it is under way; try again"):
        remote.Bucket("s3://bucket/conflict").put("x", b"1", "mark", None)


def test_parts_are_sent_again_after_a_conflict(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twinrun.remote.bucket._PART", 5 << 20)
    content = tmp_path / "large"
    content.write_bytes(bytes(11 << 20))
    ends = 0

    def refuse(method: str, path: str) -> str:
        nonlocal ends
        is_end = method == "POST" and bucket.query.startswith("uploadId=")
        ends += is_end
        return "409 ConditionalRequestConflict" if is_end and ends <= most else ""

    bucket.refuse = refuse
    most = 2
    remote.Bucket("s3://bucket/parts").put("x", str(content), "mark", None)
    assert ends == 3 and len(bucket.get("parts/x")) == 11 << 20
    ends, most = 0, 100
    with pytest.raises(FormatError, match="another write of it is under way; try again"):
        remote.Bucket("s3://bucket/parts").put("y", str(content), "mark", None)
    assert not bucket.fs.exists("bucket/parts/y")


def test_a_silent_store_is_waited_for_once(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call gives it all attempts; each further one a short try, until it answers again."""
    monkeypatch.setattr("twinrun.remote.transport._PAUSE", 0)
    run = run_at("s3://bucket/silent", tmp_path)
    captured(run, 0)
    run.wait()
    silent, tries = True, 0
    head = run._bucket._mirror.bucket._writes.head
    limits: list[tuple[float, int]] = []
    waited = remote.bucket.wait

    def wait(
        fs: object, work: object, name: str, seconds: float, attempts: int = 4, **more: object
    ) -> object:
        limits.append((seconds, attempts))
        return waited(fs, work, name, seconds, attempts, **more)

    async def silence(path: str) -> object:
        nonlocal tries
        if silent:
            tries += 1
            raise remote.transport.Again
        return await head(path)

    monkeypatch.setattr(remote.bucket, "wait", wait)
    run._bucket._mirror.bucket._writes.head = silence
    captured(run, 1)
    run._bucket._uploader.drain()
    assert tries in (4, 5) and limits[0] == (60, 4)
    before, first = tries, len(limits)
    with pytest.raises(StepLost, match="the store does not answer") as error:
        run.wait()
    assert tries == before + 1 and limits[first:] == [(10, 1)]
    assert f"twinrun flush {folder_of(tmp_path)} --to s3://bucket/silent" in str(error.value)
    silent = False
    run.wait()
    silent = True
    captured(run, 2)
    run._bucket._uploader.drain()
    before, first = tries, len(limits)
    with pytest.raises(StepLost):
        run.close()
    assert tries == before + 1 and limits[first:] == [(10, 1)]
    assert command("flush", folder_of(tmp_path), "--to", "s3://bucket/silent").status == 0
    assert steps_in("s3://bucket/silent") == [0, 1, 2]
