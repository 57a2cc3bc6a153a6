"""h5py holds its lock while it reads an object of a store: no thread that frees its objects meanwhile stops it."""

import asyncio
import gc
import io
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from object_server import ObjectServer, noise, serving

import twinrun
from twinrun import FormatError
from twinrun.remote import caller, object_of
from twinrun.remote import transport as limits
from twinrun.remote.protocols import transport

pytest.importorskip("fsspec", reason="objects of stores need fsspec: pip install 'twinrun[remote]'")
pytest.importorskip("aiohttp", reason="objects of web servers need aiohttp: pip install 'twinrun[remote]'")
h5py = pytest.importorskip("h5py")

HANG = 120  # seconds; a whole run takes two

# Before each request of h5py's file, fsspec's thread collects garbage in which there is an object of h5py. So
# does the thread that looks for a host.
PROGRAM = """
import gc, faulthandler, socket, sys
faulthandler.dump_traceback_later(int(sys.argv[3]), exit=True)
import fsspec.asyn, h5py
from twinrun.remote import RemoteStream, attach, object_of
from twinrun.remote.objects import RemoteObject

gc.disable()
local = h5py.File(sys.argv[1], "r")
times = {"requests": 0, "hosts": 0}

class Cycle:
    def __init__(self):
        self.itself, self.data = self, local["x"]

def collect(what):
    times[what] += 1
    Cycle()
    return gc.collect

asked, found = RemoteObject._asked, socket.getaddrinfo

def ask(self, offset, count, here):
    garbage = collect("requests")
    fsspec.asyn.get_loop().call_soon_threadsafe(garbage)
    return asked(self, offset, count, here)

def find(*arguments, **options):
    collect("hosts")()
    return found(*arguments, **options)

RemoteObject._asked, socket.getaddrinfo = ask, find
there = h5py.File(RemoteStream(object_of(attach(sys.argv[2]))), "r")
print(all((there[name][:] == local[name][:]).all() for name in local), times["requests"] > 9, times["hosts"] > 1)
"""


def hdf5() -> bytes:
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        for name in ("x", "y"):
            file.create_dataset(name, data=noise(50_000), chunks=(10_000,), compression="gzip")
    return out.getvalue()


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with serving({"bucket/a.h5": hdf5()}) as found:
        yield found


@pytest.mark.parametrize("protocol", ["http", "s3"])
def test_garbage_is_collected_while_h5py_reads(server: ObjectServer, tmp_path: Path, protocol: str) -> None:
    path = tmp_path / "a.h5"
    path.write_bytes(server.objects["bucket/a.h5"])
    host = server.url.replace("127.0.0.1", "localhost")
    if protocol == "s3":
        pytest.importorskip("s3fs")
    url = f"{host}/bucket/a.h5" if protocol == "http" else "s3://bucket/a.h5"
    access = {"ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test", "ENDPOINT_URL": host}
    left_out = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "HTTP_PROXY", "http_proxy")
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, path, url, str(HANG)],
        env={k: v for k, v in os.environ.items() if k not in left_out}
        | {f"AWS_{name}": value for name, value in access.items()},
        capture_output=True,
        text=True,
        timeout=2 * HANG,
    )
    assert run.stdout == "True True True\n", run.stderr


def test_a_program_that_runs_a_loop(server: ObjectServer, tmp_path: Path) -> None:
    """As in a notebook."""
    path = tmp_path / "a.h5"
    path.write_bytes(server.objects["bucket/a.h5"])

    async def compare() -> str:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        verdict = twinrun.compare(path, f"{server.url}/bucket/a.h5").verdict
        assert (loop, task) == (asyncio.get_running_loop(), asyncio.current_task())
        await asyncio.wait_for(asyncio.sleep(0), None)
        return verdict

    assert asyncio.run(compare()) == "same"


def test_threads_read_side_by_side(server: ObjectServer, tmp_path: Path) -> None:
    """Each has a loop of its own while it reads; afterwards others use these."""
    url = f"{server.url}/bucket/a.h5"
    how = transport(url, url)
    first = how.first(10)
    caller._free.clear()
    together = threading.Barrier(2)
    server.before = lambda path: together.wait(HANG)
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(how.here(0, 10, first.size, first.tag)), daemon=True)
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG)
    assert found == 2 * [server.objects["bucket/a.h5"][:10]]
    server.before = lambda path: None
    assert how.here(10, 10, first.size, first.tag) == server.objects["bucket/a.h5"][10:20]
    assert [len(free) for free in caller._free.values()] == [2]


def test_an_interrupt(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It ends the request, and the next one has another loop."""
    how = transport(f"{server.url}/bucket/a.h5", "a.h5")
    first = how.first(10)
    caller._free.clear()
    read = type(how)._body

    async def interrupted(*arguments: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(how), "_body", interrupted)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(KeyboardInterrupt):
            how.here(0, 10, first.size, first.tag)
        gc.collect()
    assert not caplog.records
    assert [len(free) for free in caller._free.values()] == [0]
    monkeypatch.setattr(type(how), "_body", read)
    assert how.here(0, 10, first.size, first.tag) == server.objects["bucket/a.h5"][:10]


def test_a_thread_of_fsspec_that_stands_still(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec.asyn

    how = transport(f"{server.url}/bucket/a.h5", "a.h5")
    ended = threading.Event()
    monkeypatch.setattr(limits, "_MORE", 0.1)
    monkeypatch.setattr(limits, "_LEAST_RATE", 1e9)
    how.limit = 0.1
    fsspec.asyn.get_loop().call_soon_threadsafe(ended.wait, HANG)
    try:
        with pytest.raises(FormatError, match=r"no whole answer within 0\.1 s.*TWINRUN_REMOTE_TIMEOUT"):
            how.first(10)
    finally:
        ended.set()
    assert how.first(10).bytes == server.objects["bucket/a.h5"][:10]


def test_only_libraries_read_in_their_thread(server: ObjectServer) -> None:
    out = io.BytesIO()
    np.save(out, np.arange(3.0))
    server.objects["x.npy"] = out.getvalue()
    caller._free.clear()
    assert twinrun.compare(f"{server.url}/x.npy", {"x": np.arange(3.0)}).verdict == "same"
    assert not caller._free


def test_a_store_is_closed_by_the_thread_that_answers(server: ObjectServer, tmp_path: Path) -> None:
    """As where it frees copies of the store."""
    import fsspec.asyn

    from twinrun.remote.protocols import file_system
    from twinrun.remote.store import RemoteStore

    url = f"{server.url}/bucket"
    fs, path, kind = file_system(url)
    store, closed = RemoteStore(url, fs, path, kind, None), threading.Event()

    def close() -> None:
        store.close()
        closed.set()

    def before(path: str) -> None:
        fsspec.asyn.get_loop().call_soon_threadsafe(close)
        assert closed.wait(HANG)

    server.before = before
    name = store.attach("a.h5")
    assert closed.is_set() and name == f"{url}/a.h5"
    store.close()
    assert object_of(name) is None
