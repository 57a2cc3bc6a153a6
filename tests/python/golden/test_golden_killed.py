"""A save that ends at any of its file operations: golden files are the old ones or the new ones, whole, and the next save works."""

from __future__ import annotations

import errno
import os
import pickle
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import twinrun
from twinrun import golden
from twinrun.golden.manifest import Manifest

CHANGES = {"open", "os.chmod", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate"}
# How a child ends, if not by a signal: without a fault, though there was one, with an error that says where, otherwise.
FINISHED, SURVIVED, TOLD, FAILED = 0, 2, 3, 4


def run(folder: Path, steps: tuple[int, ...], moved: float) -> Path:
    with twinrun.Run(folder) as r:
        for step in steps:
            r.capture(step, {"small": np.arange(9.0) + step + moved, "large": np.arange(9000.0) + moved})
    return folder


def changes(event: str, args: tuple) -> bool:
    """Whether an event of Python's audit changes files."""
    if event == "open":
        how, flags = args[1], args[2]
        return isinstance(args[0], (str, bytes)) and (
            any(c in "wax+" for c in how) if how else bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        )
    return event in CHANGES


def saved_until(source: Path, target: Path, number: int, fault: Callable[[], None]) -> int:
    """Saves in a process of its own, where `fault` happens before change number `number`: how that ends."""
    child = os.fork()
    if child == 0:
        status = FAILED
        try:
            seen = 0

            def audit(event: str, args: tuple) -> None:
                nonlocal seen
                if changes(event, args):
                    seen += 1
                    if seen == number:
                        fault()

            sys.addaudithook(audit)
            golden.save(source, target, threads=1, keep_values=100)
            status = SURVIVED if seen >= number else FINISHED
        except KeyboardInterrupt:
            status = TOLD
        except twinrun.TwinrunError as e:
            status = TOLD if e.where else FAILED
        finally:
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    return -os.WTERMSIG(ended) if os.WIFSIGNALED(ended) else os.WEXITSTATUS(ended)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fill() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def interrupt() -> None:
    raise KeyboardInterrupt


def alone(call: Callable[..., None], *given: object) -> None:
    """Calls a function of this module in a new process: the child of one that has threads, as other tests leave
    them, may wait for ever.
    """
    script = "import pickle, sys; call, given = pickle.load(sys.stdin.buffer); call(*given)"
    path = os.pathsep.join(sys.path)
    subprocess.run(
        [sys.executable, "-c", script],
        input=pickle.dumps((call, given)),
        check=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": path},
    )


def passing(target: Path, *runs: Path) -> list[Path]:
    return [r for r in runs if golden.check(target, r, threads=1).status == 0]


def content(folder: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in folder.iterdir()}


@pytest.mark.parametrize("fault", [kill, fill, interrupt])
def test_a_save_ends_at_any_operation(fault: Callable[[], None], tmp_path: Path) -> None:
    alone(a_save_ends_at_any_operation, fault, tmp_path)


def a_save_ends_at_any_operation(fault: Callable[[], None], tmp_path: Path) -> None:
    old, new = run(tmp_path / "old", (1, 2), 0.0), run(tmp_path / "new", (2, 3), 1.0)
    golden.save(new, tmp_path / "whole", keep_values=100)
    whole = content(tmp_path / "whole")
    found, ended = set(), -1
    for number in range(1, 1000):
        beside = tmp_path / str(number)
        target = beside / "golden"
        golden.save(old, target, keep_values=100)
        (target / "mine").write_text("mine")
        mine = (target / "step_1_rank_0.twm").read_bytes()
        (target / "step_9_rank_0.twm").write_bytes(mine)
        (target / "rank_0-0123456789abcdef.twm").write_bytes(mine)  # named like a file of ours
        (beside / ".twinrun-golden-somebody").mkdir()
        (beside / ".twinrun-golden-somebody" / "mine").write_text("mine")
        foreign = {"mine": b"mine", "step_9_rank_0.twm": mine, "rank_0-0123456789abcdef.twm": mine}
        for _ in range(2):  # the second meets what the first left
            ended = saved_until(new, target, number, fault)
            (passes,) = passing(target, old, new)
            found.add(passes)
            assert foreign.items() <= content(target).items()
            if ended == FINISHED:
                break
            # Not everything is needed: a file system without locks, or whose leftovers stay, is no error.
            assert ended in ({fill: (TOLD, SURVIVED), kill: (-signal.SIGKILL,), interrupt: (TOLD,)}[fault])
        golden.save(new, target, keep_values=100)
        assert content(target) == {**whole, **foreign}
        assert {p.name for p in beside.iterdir()} == {"golden", ".twinrun-golden-somebody"}
        assert content(beside / ".twinrun-golden-somebody") == {"mine": b"mine"}
        if ended == FINISHED:
            break
    assert ended == FINISHED and number > 20 and found == {old, new}


@pytest.mark.parametrize("there", [False, True])
def test_a_first_save_ends_at_any_operation(there: bool, tmp_path: Path) -> None:
    alone(a_first_save_ends_at_any_operation, there, tmp_path)


def a_first_save_ends_at_any_operation(there: bool, tmp_path: Path) -> None:
    new = run(tmp_path / "new", (2, 3), 1.0)
    golden.save(new, tmp_path / "whole", keep_values=100)
    ended = -1
    for number in range(1, 1000):
        target = tmp_path / str(number) / "golden"
        if there:
            target.mkdir(parents=True)
        ended = saved_until(new, target, number, kill)
        if (target / "golden.json").exists():
            assert passing(target, new) == [new]
        golden.save(new, target, keep_values=100)
        assert content(target) == content(tmp_path / "whole")
        if ended == FINISHED:
            break
        assert [p.name for p in target.parent.iterdir()] == ["golden"]
    assert ended == FINISHED and number > 5


def test_manifests_of_a_killed_save_are_read_by_version_1(tmp_path: Path) -> None:
    """Files have other names then, which its readers know; what else the manifest says they leave out."""
    alone(manifests_of_a_killed_save_are_read_by_version_1, tmp_path)


def manifests_of_a_killed_save_are_read_by_version_1(tmp_path: Path) -> None:
    old, new = run(tmp_path / "old", (1, 2), 0.0), run(tmp_path / "new", (2, 3), 1.0)
    between = []
    for number in range(1, 1000):
        target = tmp_path / str(number)
        golden.save(old, target, keep_values=100)
        if saved_until(new, target, number, kill) == FINISHED:
            break
        between += [m for m in [Manifest.read(str(target))] if m.replacing]
    assert between and all(m.version == 1 for m in between)


def test_a_full_disk_is_told_with_the_file(tmp_path: Path) -> None:
    alone(a_full_disk_is_told_with_the_file, tmp_path)


def a_full_disk_is_told_with_the_file(tmp_path: Path) -> None:
    golden.save({"x": np.arange(10.0)}, tmp_path / "golden")
    before = content(tmp_path / "golden")
    child = os.fork()
    if child == 0:
        status = FAILED
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
            golden.save({"x": np.arange(100.0), "y": np.zeros(8000)}, tmp_path / "golden", threads=1)
        except twinrun.TwinrunError as e:
            there = str(tmp_path / "golden" / "rank_0.twv")
            status = TOLD if there in str(e) and "cannot be written" in str(e) else FAILED
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == TOLD
    assert content(tmp_path / "golden") == before
