"""Objects in a bucket of S3, which moto's server plays: what is compared, and which bytes are asked for."""

import re
from pathlib import Path

import numpy as np
import pytest
from commands import command
from object_server import noise, npy
from s3_bucket import Bucket

import twinrun
from twinrun import FormatError, MissingFile, TwinrunError, Unsupported, golden

BLOCK = 32 << 10


def test_arrays_and_the_bytes_that_are_asked_for(bucket: Bucket) -> None:
    x = noise(300_000)
    y = x.copy()
    y[77] += 1
    bucket.put("a/x.npy", npy(x))
    bucket.put("b/x.npy", npy(y))
    bucket.asked.clear()
    result = twinrun.compare("s3://bucket/a/x.npy", "s3://bucket/b/x.npy", atol=1e-6)
    assert result.verdict == "different" and result.first.first_index == (77,)
    assert 2 * x.nbytes <= sum(n for _, n in bucket.asked) <= 2 * x.nbytes + 8 * BLOCK
    bucket.put("none.npy", b"")
    with pytest.raises(FormatError):
        twinrun.compare("s3://bucket/none.npy", {"none": x})
    with pytest.raises(MissingFile):
        twinrun.compare("s3://bucket/a/x.npy", "s3://bucket/other.npy")


def test_an_object_that_changes_is_an_error(bucket: Bucket) -> None:
    from twinrun.remote import attach, detach, object_of

    x = noise(100_000)
    bucket.put("c.npy", npy(x))
    name = attach("s3://bucket/c.npy")
    try:
        found = object_of(name)
        assert found.read(200_000, 10) == npy(x)[200_000:200_010]
        bucket.put("c.npy", npy(x + 1))
        with pytest.raises(FormatError, match=r"s3://bucket/c\.npy: was changed while it was read"):
            found.read(200_000, 10)
        bucket.put("c.npy", npy(x)[:1000])  # shorter: the range is not there any more
        with pytest.raises(FormatError, match="was changed while it was read"):
            found.read(200_000, 10)
    finally:
        detach(name)
    assert object_of(name) is None


def test_zarr_is_listed(bucket: Bucket, tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    if int(zarr.__version__.split(".")[0]) < 3:
        pytest.skip("this test writes by zarr 3")
    group = zarr.open_group(tmp_path / "g.zarr", mode="w")
    group.create_array("plain", data=noise(30_000).reshape(100, 300), chunks=(10, 300), compressors=None)
    group.create_array("packed", data=noise(30_000, 2), chunks=(3_000,))
    bucket.put_folder(tmp_path / "g.zarr", "a.zarr")
    bucket.put_folder(tmp_path / "g.zarr", "b.zarr")
    bucket.asked.clear()
    result = twinrun.compare("s3://bucket/a.zarr", "s3://bucket/b.zarr")
    assert result.verdict == "same" and {f.field for f in result.fields} == {"plain", "packed"}
    bucket.asked.clear()
    assert twinrun.compare("s3://bucket/a.zarr", tmp_path / "g.zarr", fields=["plain"]).verdict == "same"
    assert not any("/packed/c/" in path for path, _ in bucket.asked)
    bucket.fs.rm("bucket/b.zarr/packed/c/2")
    bucket.put("b.zarr/README", b"of somebody")
    result = twinrun.compare("s3://bucket/a.zarr", "s3://bucket/b.zarr", partial=True)
    assert [f.field for f in result.fields if f.different] == ["packed"]
    assert any("README" in str(problem) for problem in result.problems)


def captured(path: Path, shift: float = 0.0, **options: object) -> None:
    with twinrun.Run(path, atol=1e-6, **options) as run:
        for step in range(4):
            x = noise(20_000, step)
            x[5] += shift if step >= 2 else 0
            run.capture(step, {"x": x})


@pytest.mark.parametrize(
    ("options", "shift"), [({}, 1.0), ({"keep_data": False}, 0.0)], ids=["data", "metadata"]
)
def test_histories(bucket: Bucket, tmp_path: Path, options: dict, shift: float) -> None:
    captured(tmp_path / "a", **options)
    captured(tmp_path / "b", shift, **options)
    key = f"runs{len(options)}"
    bucket.put_folder(tmp_path / "a", f"{key}/a")
    bucket.put_folder(tmp_path / "b", f"{key}/b")
    a, b = f"s3://bucket/{key}/a", f"s3://bucket/{key}/b"
    result = twinrun.compare(a, b)
    here = twinrun.compare(tmp_path / "a", tmp_path / "b")
    assert result.verdict == here.verdict == ("different" if shift else "same")
    assert result.first_divergence == here.first_divergence
    assert twinrun.compare(a, tmp_path / "a").verdict == "same"
    assert result.notes == here.notes == []  # that a copy's times are others says nothing
    assert "twinrun-remote-" not in str(result) + command("compare", a, b).out
    bucket.asked.clear()
    assert twinrun.compare(a, b, steps="0").verdict == "same"
    assert bucket.asked
    assert not any(re.search(r"step-0*[123]/.*\.data", path) for path, _ in bucket.asked)


def test_a_damaged_history_is_named_by_its_url(bucket: Bucket, tmp_path: Path) -> None:
    captured(tmp_path / "a")
    metadata = tmp_path / "a/step-0000000001/rank-00000.twm"
    metadata.write_bytes(b"?" + metadata.read_bytes()[1:])
    data = tmp_path / "a/step-0000000002/rank-00000.data"
    data.write_bytes(bytes(data.stat().st_size))
    bucket.put_folder(tmp_path / "a", "damaged")
    for step in ("1", "2"):
        with pytest.raises(TwinrunError, match=r"s3://bucket/damaged/step-") as error:
            twinrun.compare("s3://bucket/damaged", "s3://bucket/damaged", steps=step)
        assert "twinrun-remote" not in str(error.value)


@pytest.mark.parametrize("method", ["auto", "direct"])
def test_a_difference_of_another_run_in_a_record(bucket: Bucket, tmp_path: Path, method: str) -> None:
    captured(tmp_path / "plain")
    captured(tmp_path / "a", record="runs")
    captured(tmp_path / "b", 1.0, record="runs")
    key = f"exchanged-{method}"
    bucket.put_folder(tmp_path / "a", key)
    url, file = f"s3://bucket/{key}", "step-0000000002/rank-00000.twr"
    assert (
        twinrun.compare(tmp_path / "plain", url, options=twinrun.CompareOptions(method=method)).verdict
        == "same"
    )
    bucket.put(f"{key}/{file}", (tmp_path / "b" / file).read_bytes())
    result = twinrun.compare(
        tmp_path / "plain", url, options=twinrun.CompareOptions(method=method), partial=True
    )
    assert result.verdict == "incomparable"
    assert any(f"{url}/{file}: is not the difference that the journal names" in p for p in result.problems)


@pytest.mark.parametrize("compacted", [False, True])
def test_of_a_record_what_a_step_is_made_of_is_read(bucket: Bucket, tmp_path: Path, compacted: bool) -> None:
    """Differences of later steps, and metadata of others, are not; leftovers of steps that are gone are."""
    with twinrun.Run(tmp_path / "a", atol=1e-6, record="runs") as run:
        parts = [noise(20_000, n) for n in range(7)]
        for step in range(6):  # each begins with what the last one ended with
            run.capture(step, {"x": np.concatenate(parts[step : step + 2])})
    if compacted:
        assert command("compact", tmp_path / "a", "--keep-last", "3").status == 0
    steps = sorted(path.name for path in (tmp_path / "a").glob("step-0*"))
    assert (tmp_path / "a" / "step-leftovers").exists() == compacted == (len(steps) == 3)
    key = f"record-{compacted}"
    bucket.put_folder(tmp_path / "a", key)
    for step in steps:
        bucket.asked.clear()
        here = twinrun.compare(tmp_path / "a", f"s3://bucket/{key}", steps=str(int(step[5:])))
        assert here.verdict == "same" and here.fields[0].elements == 40_000
        read = {path.partition(f"{key}/")[2] for path, count in bucket.asked if count}
        differences = {name for name in read if name.endswith(".twr") and "leftovers" not in name}
        assert max(differences).startswith(f"{step}/")  # and no later one
        # That of the first step says whether this is a trace.
        assert {name for name in read if name.endswith(".twm")} == {
            f"{s}/rank-00000.twm" for s in (steps[0], step)
        }
        assert any("leftovers" in name for name in read) == compacted


def test_damage_of_each_file_is_told_of_its_url(bucket: Bucket, tmp_path: Path) -> None:
    """Metadata that was copied later than its data is no sign that to index it again would help."""
    captured(tmp_path / "a")
    bucket.put_folder(tmp_path / "a", "damage")
    step = "step-0000000001"
    for key in ("manifest.jsonl", f"{step}/rank-00000.twm", f"{step}/rank-00000.data"):
        whole = (tmp_path / "a" / key).read_bytes()
        damaged = bytearray(whole)
        damaged[20 if key.endswith(".twm") else len(whole) // 2] ^= 1  # not every page of metadata is read
        bucket.put(f"damage/{key}", bytes(damaged))
        done = command("compare", tmp_path / "a", "s3://bucket/damage")
        assert done.status == 2 and f"s3://bucket/damage/{key}: " in done.err
        assert "twinrun-remote" not in done.err
        assert key.endswith(".twm") or ("index" not in done.err and "from a copy" in done.err)
        bucket.put(f"damage/{key}", whole)
    assert command("compare", tmp_path / "a", "s3://bucket/damage").status == 0


def test_a_trace_is_refused(bucket: Bucket, tmp_path: Path) -> None:
    with twinrun.Run(tmp_path / "t") as run:
        run.capture(0, {"x": noise(10)}, phase="one")
        run.capture(0, {"x": noise(10)}, phase="two")
    bucket.put_folder(tmp_path / "t", "t")
    with pytest.raises(Unsupported, match="is a trace"):
        twinrun.compare("s3://bucket/t", "s3://bucket/t")


def test_golden_files(bucket: Bucket, tmp_path: Path) -> None:
    x = noise(50_000)
    np.save(tmp_path / "x.npy", x)
    golden.save(tmp_path / "x.npy", tmp_path / "golden", atol=1e-6)
    bucket.put_folder(tmp_path / "golden", "golden")
    bucket.put("x.npy", npy(x + 1e-3))
    assert golden.check("s3://bucket/golden", tmp_path / "x.npy").verdict == "same"
    assert golden.check("s3://bucket/golden", "s3://bucket/x.npy").verdict == "different"
    done = command("golden", "check", "s3://bucket/golden", "s3://bucket/x.npy")
    assert done.status == 1 and "twinrun-remote-" not in done.out + done.err


def test_golden_files_of_steps_that_are_not_checked_are_not_read(bucket: Bucket, tmp_path: Path) -> None:
    with twinrun.Run(tmp_path / "run", atol=1e-6) as run:
        for step in range(4):
            run.capture(step, {"x": noise(50_000, step), "y": noise(100, step)})
    golden.save(tmp_path / "run", tmp_path / "golden", atol=1e-6)
    bucket.put_folder(tmp_path / "golden", "some/golden")
    sizes = {p.name: p.stat().st_size for p in (tmp_path / "golden").iterdir()}
    bucket.asked.clear()
    assert golden.check("s3://bucket/some/golden", tmp_path / "run", steps="2").verdict == "same"
    read = {path.rpartition("/")[2] for path, count in bucket.asked if count}
    assert {name for name in read if name != "golden.json"} == {n for n in sizes if n.startswith("step_2_")}
    assert sum(count for _, count in bucket.asked) < 0.4 * sum(sizes.values())
    (lost,) = (n for n in sizes if n.startswith("step_3_") and n.endswith(".twm"))
    bucket.fs.rm(f"bucket/some/golden/{lost}")
    assert golden.check("s3://bucket/some/golden", tmp_path / "run", steps="2").verdict == "same"
    done = command("golden", "check", "s3://bucket/some/golden", tmp_path / "run", "--steps", "3")
    assert done.status == 2 and f"s3://bucket/some/golden/{lost}: no such file" in done.err


def test_an_object_with_the_name_of_a_history_hides_it_not(bucket: Bucket, tmp_path: Path) -> None:
    x = noise(100)
    with twinrun.Run(tmp_path / "run", atol=1e-6) as run:
        run.capture(1, {"x": x})
    golden.save(tmp_path / "run", tmp_path / "golden", atol=1e-6)
    for name, content in (("hidden/a", b"x,y\n1,2\n3,4\n"), ("hidden/b", b""), ("hidden/g", npy(x))):
        bucket.put(name, content)
    for name in ("a", "b"):
        bucket.put_folder(tmp_path / "run", f"hidden/{name}")
    bucket.put_folder(tmp_path / "golden", "hidden/g")
    found = command("compare", "s3://bucket/hidden/a", "s3://bucket/hidden/b")
    assert found.status == 2 and "is an object, and there is a history below this name" in found.err
    assert "(s3://bucket/hidden/a/)" in found.err
    assert twinrun.compare("s3://bucket/hidden/a/", "s3://bucket/hidden/b/").verdict == "same"
    with pytest.raises(FormatError, match="there are golden files below this name"):
        golden.check("s3://bucket/hidden/g", tmp_path / "run")
    assert golden.check("s3://bucket/hidden/g/", tmp_path / "run").verdict == "same"
    # The object, by its format.
    found = command("compare", "s3://bucket/hidden/a", "s3://bucket/hidden/a", "--format", "table")
    assert found.status == 0, found


def test_a_list_without_end_is_an_error(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    from twinrun.remote import Bucket as Written
    from twinrun.remote import transport

    assert transport._LISTINGS == 10  # as docs/reference/remote.md says
    monkeypatch.setattr(transport, "_LISTINGS", 2)
    monkeypatch.setattr(transport, "time_limit", lambda: 0.5)
    bucket.endless = True
    said = r"within 1 s, 2 times TWINRUN_REMOTE_TIMEOUT; try again, or set TWINRUN_REMOTE_TIMEOUT to more"
    for work in (
        lambda: twinrun.compare("s3://bucket/loop/", {"x": noise(3)}),
        Written("s3://bucket/loop").sizes,
    ):
        with pytest.raises(FormatError, match=said):
            work()


def test_a_bucket_that_is_not_there_is_called_so(bucket: Bucket, tmp_path: Path) -> None:
    said = "there is no such bucket; check its name, AWS_ENDPOINT_URL and the region"
    for url in ("s3://nowhere/x.npy", "s3://nowhere/x/"):
        with pytest.raises(MissingFile, match=said):
            twinrun.compare(url, {"x": noise(3)})
    with pytest.raises(MissingFile, match=said):
        twinrun.Run("s3://nowhere/run", local=tmp_path)
    with pytest.raises(MissingFile, match="nothing there"):
        twinrun.compare("s3://bucket/nowhere/", {"x": noise(3)})
