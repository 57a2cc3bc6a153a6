"""Histories in Google's store, against a server that plays it: which bytes of them are asked for.

The server keeps one generation of an object and gives it for any: test_remote_gs.py has what changes.

The server and gcsfs bring 40 packages, so that the project's own requirements do not have them:
pip install gcsfs gcp-storage-emulator
"""

import gc
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from object_server import noise

import twinrun
from twinrun import DamagedFile

_RUN = "run: pip install gcsfs gcp-storage-emulator"
SIZE = 500_000  # elements of a step
STEPS = 3
BYTES = STEPS * SIZE * 8  # of data, of one run


class Google:
    """A bucket, and what was asked of it."""

    def __init__(self, fs: object) -> None:
        self.fs = fs
        self.asked: list[tuple[str, int]] = []  # names of objects, and bytes

    def bytes_of(self, end: str) -> int:
        return sum(count for name, count in self.asked if name.endswith(end))


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    found = pytest.importorskip(
        "gcp_storage_emulator.server", reason=f"Google's store is played by gcp-storage-emulator; {_RUN}"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = found.create_server("127.0.0.1", port, in_memory=True)
    running.start()
    yield f"http://127.0.0.1:{port}"
    running.stop()


@pytest.fixture
def google(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Google]:
    # Without it gcsfs asks another server, by gRPC, what kind of bucket this is.
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server)
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    gcsfs = pytest.importorskip("gcsfs", reason=f"Google's store needs gcsfs; {_RUN}")
    import fsspec

    monkeypatch.setitem(fsspec.config.conf, "gs", {"token": "anon", "project": "test"})
    monkeypatch.setitem(fsspec.config.conf, "gcs", {"token": "anon", "project": "test"})
    gcsfs.GCSFileSystem.clear_instance_cache()
    collects = gc.isenabled()
    gc.disable()  # see `object_server.serving`
    found = Google(fsspec.filesystem("gs", **fsspec.config.conf["gs"]))
    if not found.fs.exists("bucket"):
        found.fs.mkdir("bucket")
    call = gcsfs.GCSFileSystem._call

    async def noted(self: object, method: str, path: str, *parts: str, **options: object) -> object:
        answer = await call(self, method, path, *parts, **options)
        if method == "GET" and "alt=media" in path:
            name = path.partition("?")[0].rpartition("/")[2].replace("%2F", "/")
            found.asked.append((name, len(answer[1])))
        return answer

    monkeypatch.setattr(gcsfs.GCSFileSystem, "_call", noted)
    yield found
    if collects:
        gc.enable()
    gcsfs.GCSFileSystem.clear_instance_cache()


def captured(url: str, local: Path, more: float = 0.0) -> None:
    """more: this is added to one element of the last step."""
    with twinrun.Run(url, atol=1e-6, local=local) as run:
        for step in range(STEPS):
            x = noise(SIZE, step)
            x[7_777] += more * (step == STEPS - 1)
            run.capture(step, {"x": x})


def test_histories_are_read_by_ranges(google: Google, tmp_path: Path) -> None:
    captured("gs://bucket/ranges/a", tmp_path / "a")
    captured("gs://bucket/ranges/b", tmp_path / "b")
    captured("gs://bucket/ranges/c", tmp_path / "c", 1.0)
    google.asked.clear()
    assert twinrun.compare("gs://bucket/ranges/a", "gs://bucket/ranges/b").same
    assert google.bytes_of(".data") == 0 and 0 < google.bytes_of(".twm") < 120_000
    google.asked.clear()
    result = twinrun.compare("gs://bucket/ranges/a", "gs://bucket/ranges/c")
    assert (result.first.step, result.first.first_index) == (STEPS - 1, (7_777,))
    assert 0 < google.bytes_of(".data") < 20_000 and google.bytes_of(".twm") < 140_000
    # Every element, by ranges too: the answer is the same.
    google.asked.clear()
    options = twinrun.CompareOptions(method="direct")
    direct = twinrun.compare("gs://bucket/ranges/a", "gs://bucket/ranges/c", options=options)
    assert direct.first_divergence == result.first_divergence
    assert 2 * BYTES <= google.bytes_of(".data") <= 2 * BYTES + 1024
    assert max(count for _, count in google.asked) <= 1 << 20


def test_data_that_somebody_put_there_is_read_whole(google: Google, tmp_path: Path) -> None:
    for name in "ab":
        captured(f"gs://bucket/changed/{name}", tmp_path / name)
    data = "bucket/changed/b/step-0000000001/rank-00000.data"
    whole = google.fs.cat_file(data)
    google.fs.pipe_file(data, whole)  # without the mark of twinrun
    google.asked.clear()
    assert twinrun.compare("gs://bucket/changed/a", "gs://bucket/changed/b").same
    assert google.bytes_of("b/step-0000000001/rank-00000.data") == len(whole)
    assert google.bytes_of("a/step-0000000001/rank-00000.data") == 0
    google.fs.pipe_file(data, whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    with pytest.raises(DamagedFile, match=rf"gs://{data}: does not hold what its metadata"):
        twinrun.compare("gs://bucket/changed/a", "gs://bucket/changed/b")


def test_files_and_golden_files_are_read_too(google: Google, tmp_path: Path) -> None:
    x = noise(SIZE)
    np.save(tmp_path / "x.npy", x)
    google.fs.put_file(str(tmp_path / "x.npy"), "bucket/files/x.npy")
    assert twinrun.compare(tmp_path / "x.npy", "gs://bucket/files/x.npy").same
    twinrun.golden.save(tmp_path / "x.npy", tmp_path / "golden", atol=1e-6)
    google.fs.put(f"{tmp_path}/golden/", "bucket/files/golden/", recursive=True)
    assert twinrun.golden.check("gs://bucket/files/golden", "gs://bucket/files/x.npy").verdict == "same"
