"""The process that reads through a package: kept for the next file, ended when it is of no more use."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from twinrun.errors import DamagedFile, FormatError, MissingPackage
from twinrun.formats import worker_client
from twinrun.formats.worker_client import Worker, check_installed, seconds_of

# Reads a file, tells the process, and does what the file says.
MODULE = """
import os

kept = []

def closed():
    kept.clear()

def opened(path, report_progress):
    how = {}
    if isinstance(path, dict):
        path, how = path["path"], path
    kept.append(open(path, "rb"))
    data = kept[-1].read()
    if data == b"refused":
        raise ValueError("refused: not of this kind")

    def read(request):
        if data == b"crash":
            os.abort()
        if request.get("facts"):
            return {"length": len(data)}
        return data[request["first"] : request["first"] + request["count"]]

    return {"pid": os.getpid(), "how": sorted(how)}, read
"""


@pytest.fixture
def module(tmp_path):
    place = tmp_path / "module.py"
    place.write_text(MODULE)
    yield os.fspath(place)
    worker_client._end_waiting()


def file(tmp_path: Path, data: bytes) -> str:
    path = tmp_path / f"{data[:8].hex()}.data"
    path.write_bytes(data)
    return os.fspath(path)


def test_a_closed_process_reads_the_next_file(tmp_path, module):
    pids = []
    for data in (b"first", b"second"):
        worker = Worker(file(tmp_path, data), module, "mine", again=True)
        pids.append(worker.open()["pid"])
        assert worker.ask({"first": 1, "count": 3})[1] == data[1:4]
        assert worker.ask({"facts": True})[0]["length"] == len(data)
        worker.close()
        worker.close()
        with pytest.raises(FormatError, match="closed"):
            worker.ask({"first": 0, "count": 1})
    assert pids[0] == pids[1]


def test_two_files_at_once_have_a_process_each(tmp_path, module):
    workers = [Worker(file(tmp_path, data), module, "mine", again=True) for data in (b"first", b"second")]
    pids = [worker.open()["pid"] for worker in workers]
    assert len(set(pids)) == 2
    assert [worker.ask({"first": 0, "count": 9})[1] for worker in workers] == [b"first", b"second"]
    for worker in workers:
        worker.close()


def test_one_that_is_not_kept_is_another(tmp_path, module):
    pids = []
    for _ in range(2):
        worker = Worker(file(tmp_path, b"first"), module, "mine")
        pids.append(worker.open(engine="x")["pid"])
        worker.close()
    assert pids[0] != pids[1]


def test_a_crash_is_an_error_of_the_file_and_the_process_is_not_kept(tmp_path, module):
    worker = Worker(file(tmp_path, b"crash"), module, "mine", again=True)
    pid = worker.open()["pid"]
    with pytest.raises(DamagedFile, match="the mine package crashed on it"):
        worker.ask({"first": 0, "count": 1})
    worker.close()
    after = Worker(file(tmp_path, b"first"), module, "mine", again=True)
    assert after.open()["pid"] != pid
    after.close()


def test_an_error_leaves_the_process_of_use(tmp_path, module):
    worker = Worker(file(tmp_path, b"refused"), module, "mine", again=True)
    with pytest.raises(DamagedFile, match="not of this kind"):
        worker.open()
    worker.close()
    after = Worker(file(tmp_path, b"first"), module, "mine", again=True)
    after.open()
    assert after.ask({"first": 0, "count": 5})[1] == b"first"
    after.close()


def test_an_interrupted_request_is_not_answered_to_the_next_one(tmp_path, module, monkeypatch):
    worker = Worker(file(tmp_path, b"first"), module, "mine", again=True)
    pid = worker.open()["pid"]

    def interrupted(buffer: bytearray) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(worker, "_more", interrupted)
        with pytest.raises(KeyboardInterrupt):
            worker.ask({"first": 0, "count": 2})
    worker.close()
    after = Worker(file(tmp_path, b"second"), module, "mine", again=True)
    assert after.open()["pid"] != pid
    assert after.ask({"first": 0, "count": 6})[1] == b"second"
    after.close()


def test_a_process_that_died_while_it_waited_is_not_taken(tmp_path, module):
    worker = Worker(file(tmp_path, b"first"), module, "mine", again=True)
    worker.open()
    process = worker._process
    worker.close()
    process.kill()
    process.wait()
    after = Worker(file(tmp_path, b"second"), module, "mine", again=True)
    after.open()
    assert after.ask({"first": 0, "count": 6})[1] == b"second"
    after.close()


def test_another_place_for_packages_is_another_process(tmp_path, module, monkeypatch):
    worker = Worker(file(tmp_path, b"first"), module, "mine", again=True)
    pid = worker.open()["pid"]
    worker.close()
    monkeypatch.syspath_prepend(str(tmp_path))
    after = Worker(file(tmp_path, b"first"), module, "mine", again=True)
    assert after.open()["pid"] != pid
    after.close()


def test_options_and_packages(monkeypatch):
    assert seconds_of("2.5", "x") == 2.5
    with pytest.raises(FormatError, match="patience must be"):
        seconds_of("soon", "x")
    monkeypatch.setitem(sys.modules, "json", None)
    with pytest.raises(MissingPackage, match=r"twinrun\[mine\]"):
        check_installed("json", "twinrun[mine]", "x")
    monkeypatch.undo()
    check_installed("json", "twinrun[mine]", "x")
    assert json.loads("1") == 1


def test_a_process_that_waits_has_no_file_open(tmp_path, module):
    path = file(tmp_path, b"first")
    worker = Worker(path, module, "mine", again=True)
    pid = worker.open()["pid"]

    def is_open() -> bool:
        links = (os.path.join(f"/proc/{pid}/fd", name) for name in os.listdir(f"/proc/{pid}/fd"))
        return any(os.path.realpath(link) == os.path.realpath(path) for link in links)

    assert is_open()
    worker.close()
    assert not is_open()
