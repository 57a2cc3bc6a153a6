"""Histories that twinrun uploaded: which bytes of them a comparison asks for, and what it does not trust."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from commands import command
from object_server import noise
from s3_bucket import Bucket

import twinrun
from twinrun import DamagedFile, TwinrunError, _core
from twinrun.capture import mirror
from twinrun.capture.run import RankRun

SIZE = 500_000  # elements of a step
STEPS = 3
BYTES = STEPS * SIZE * 8  # of data, of one run


def same(x: np.ndarray) -> None:
    pass


def one(x: np.ndarray) -> None:
    x[7_777] += 1


def hundredth(x: np.ndarray) -> None:
    x[: SIZE // 100] += 1


def captured(url: str, local: Path, change: Callable[[np.ndarray], None] = same, **options: object) -> None:
    """The change is in the last step."""
    with twinrun.Run(url, atol=1e-6, local=local, **options) as run:
        for step in range(STEPS):
            x = noise(SIZE, step)
            if step == STEPS - 1:
                change(x)
            run.capture(step, {"x": x})


def asked(bucket: Bucket, end: str) -> int:
    return sum(count for path, count in bucket.asked if path.endswith(end))


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("local")


@pytest.fixture
def first(bucket: Bucket, local: Path) -> str:
    url = "s3://bucket/ranges/first"
    if not bucket.keys("ranges/first"):
        captured(url, local)
    return url


@pytest.mark.parametrize(
    ("change", "data", "metadata"),
    [(same, 0, 120_000), (one, 20_000, 140_000), (hundredth, 2 * SIZE // 100 * 8 + 20_000, 200_000)],
    ids=["same", "one", "hundredth"],
)
def test_the_bytes_of_a_comparison_are_those_of_its_plan(
    bucket: Bucket, tmp_path: Path, first: str, change: Callable, data: int, metadata: int
) -> None:
    """data, metadata: the most bytes of both runs."""
    second = f"s3://bucket/ranges/{change.__name__}"
    captured(second, tmp_path, change)
    bucket.asked.clear()
    result = twinrun.compare(first, second)
    assert result.verdict == ("same" if change is same else "different")
    assert asked(bucket, ".data") <= data and asked(bucket, ".twm") <= metadata
    if change is one:
        assert (result.first.step, result.first.first_index) == (STEPS - 1, (7_777,))
    # Every element, by ranges too: the answer is the same.
    bucket.asked.clear()
    direct = twinrun.compare(first, second, options=twinrun.CompareOptions(method="direct"))
    assert (direct.verdict, direct.first_divergence) == (result.verdict, result.first_divergence)
    assert 2 * BYTES <= asked(bucket, ".data") <= 2 * BYTES + 1024
    assert max(count for _, count in bucket.asked) <= 1 << 20


def test_metadata_of_a_run_without_data_is_read_by_ranges(bucket: Bucket, tmp_path: Path) -> None:
    for name in ("a", "b"):
        captured(f"s3://bucket/ranges/digests-{name}", tmp_path, keep_data=False)
    bucket.asked.clear()
    assert twinrun.compare("s3://bucket/ranges/digests-a", "s3://bucket/ranges/digests-b").verdict == "same"
    assert asked(bucket, ".twm") < 120_000


def test_data_that_somebody_put_there_is_read_whole(bucket: Bucket, tmp_path: Path, first: str) -> None:
    """Also where the new object kept the mark of the old one, as mounted buckets keep it."""
    url, step = "s3://bucket/ranges/changed", "ranges/changed/step-0000000001/rank-00000"
    captured(url, tmp_path)
    whole = bucket.get(f"{step}.data")
    damaged = whole[:100] + bytes([whole[100] ^ 1]) + whole[101:]
    marks = {}
    for end in ("data", "twm"):
        marks[end] = bucket.fs.call_s3("head_object", Bucket="bucket", Key=f"{step}.{end}")["Metadata"]
    assert len(marks["twm"]["twinrun"].split()) == 4 and len(marks["data"]["twinrun"].split()) == 3
    place = {"Bucket": "bucket", "Key": f"{step}.data", "Metadata": marks["data"]}
    bucket.fs.call_s3("put_object", Body=damaged, **place)
    with pytest.raises(DamagedFile, match=rf"s3://bucket/{step}\.data: does not hold what its metadata"):
        twinrun.compare(first, url)
    assert command("compare", first, url).status == 2
    bucket.put(f"{step}.data", whole)  # the mark is gone, and the content is that of the metadata again
    bucket.asked.clear()
    assert twinrun.compare(first, url).verdict == "same"
    assert (
        asked(bucket, "step-0000000000/rank-00000.data")
        == asked(bucket, "step-0000000002/rank-00000.data")
        == 0
    )
    metadata = bucket.get(f"{step}.twm")
    bucket.put(f"{step}.twm", metadata)  # without a mark that tells the data
    bucket.asked.clear()
    assert twinrun.compare(first, url).verdict == "same"
    assert asked(bucket, "changed/step-0000000001/rank-00000.data") == len(whole)
    bucket.put(f"{step}.twm", metadata[:-1] + bytes([metadata[-1] ^ 1]))
    bucket.put(f"{step}.data", damaged)
    with pytest.raises(TwinrunError, match=r"s3://bucket/ranges/changed/step-0000000001/"):
        twinrun.compare(first, url)


def test_data_that_changed_while_it_was_uploaded_is_not_told(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with twinrun.Run(tmp_path / "h", atol=1e-6) as run:
        run.capture(0, {"x": noise(SIZE)})
    data = tmp_path / "h/step-0000000000/rank-00000.data"
    checked = mirror.damage_of_step

    def check_and_change(folder: str, step: int) -> str:
        found = checked(folder, step)
        content = bytearray(data.read_bytes())
        content[100] ^= 1
        data.write_bytes(content)
        return found

    monkeypatch.setattr(mirror, "damage_of_step", check_and_change)
    mirror.upload_history(str(tmp_path / "h"), "s3://bucket/raced")
    with pytest.raises(DamagedFile, match="does not hold what its metadata"):
        twinrun.compare("s3://bucket/raced", "s3://bucket/raced")


def test_a_bucket_that_fails_at_any_request_never_gives_same(
    bucket: Bucket, tmp_path: Path, first: str
) -> None:
    second = "s3://bucket/ranges/fails"
    captured(second, tmp_path, one)
    bucket.requests.clear()
    assert twinrun.compare(first, second).verdict == "different"
    count = len(bucket.requests)
    assert count > 20
    for last in range(count):
        left = last

        def refuse(method: str, path: str) -> str:
            nonlocal left
            left -= 1
            return "403 AccessDenied" if left < 0 else ""

        bucket.refuse = refuse
        with pytest.raises(TwinrunError, match=r"s3://bucket/ranges.*: the store refuses access"):
            twinrun.compare(first, second)
    # Some values cannot be read, all metadata can.
    bucket.refuse = lambda method, path: "403 AccessDenied" if path.endswith(".data") else ""
    done = command("compare", first, second)
    assert done.status == 2 and "the store refuses access" in done.err and "twinrun-remote" not in done.err
    partial = twinrun.compare(first, second, partial=True)
    assert partial.verdict == "incomparable"


def test_histories_that_flush_brought(bucket: Bucket, tmp_path: Path) -> None:
    """Data of several ranks, and in files that ranks share."""
    turns = _core.Turns(2)
    for rank in range(2):
        with RankRun(tmp_path / "ranks", turns, atol=1e-6) as run:
            run.capture(0, {"x": noise(SIZE) + rank})
    with twinrun.Run(tmp_path / "shared", atol=1e-6, settings={"shared_files": "one"}) as run:
        run.capture(0, {"x": noise(SIZE)})
    for name in ("ranks", "shared"):
        url = f"s3://bucket/flushed-{name}"
        assert command("flush", tmp_path / name, "--to", url).status == 0
        bucket.asked.clear()
        assert twinrun.compare(url, tmp_path / name).verdict == "same"
        assert asked(bucket, ".data") == 0, bucket.asked
        assert (
            twinrun.compare(url, tmp_path / name, options=twinrun.CompareOptions(method="direct")).verdict
            == "same"
        )
    assert any(key.endswith("group.data") for key in bucket.keys("flushed-shared"))


def test_a_manifest_that_is_not_there_is_named(bucket: Bucket, tmp_path: Path, first: str) -> None:
    url = "s3://bucket/ranges/no-manifest"
    captured(url, tmp_path)
    bucket.fs.call_s3("delete_object", Bucket="bucket", Key="ranges/no-manifest/manifest.jsonl")
    with pytest.raises(twinrun.MissingFile, match=r"has the steps of a history, and not its manifest\.jsonl"):
        twinrun.compare(first, url)
