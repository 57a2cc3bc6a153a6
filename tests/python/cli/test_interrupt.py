"""Ctrl-C at any moment: status 2, one line, no half file, and a history that stays whole."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
from commands import HANG, check_error, command, load_json, process

import twinrun
from twinrun.comparison import schedule


class InterruptAt:
    """Ctrl-C at the n-th call of a function inside twinrun, or that it makes; counts them all."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.calls = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        # Not in generators: Python drops what is raised while it throws one away.
        if (
            event in ("call", "c_call")
            and code.co_filename.startswith(os.path.dirname(twinrun.__file__) + os.sep)
            and code.co_name != "<genexpr>"
        ):
            self.calls += 1
            if self.calls == self.n:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGINT)

    def during(self, work: Callable[[], object]) -> object:
        sys.setprofile(self)
        try:
            return work()
        finally:
            sys.setprofile(None)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    x = np.random.default_rng(1).normal(size=3000)
    for name in "ab":
        with twinrun.Run(tmp_path / name, atol=1e-6) as run:
            run.capture(1, {"x": x})
        np.save(tmp_path / f"{name}.npy", x)
    return tmp_path / "a", tmp_path / "b"


def moments(work: Callable[[], object], count: int) -> list[int]:
    """`count` calls spread over all that `work` makes."""
    work()  # what is loaded or cached at first use
    counter = InterruptAt(0)
    counter.during(work)
    assert counter.calls > count
    return [2 + i * (counter.calls - 2) // count for i in range(count)]  # the first is main() itself


def test_a_comparison_of_steps_keeps_what_was_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C after the first step: a partial verdict that says so, and never that the runs are the same."""
    monkeypatch.setattr(schedule, "_TOGETHER", 1)  # a call of the core for each step: all are one otherwise
    for name, error in (("a", 0.0), ("same", 0.0), ("b", 0.5)):
        with twinrun.Run(tmp_path / name, atol=1e-6) as run:
            for step in range(8):
                run.capture(step, {"x": np.arange(100.0) + error * (step == 1)})
    report, page = tmp_path / "r.json", tmp_path / "r.html"
    for other in ("same", "b"):

        def work(other: str = other) -> object:
            return command("compare", tmp_path / "a", tmp_path / other, "--json", report, "--html", page)

        partial = 0
        for n in moments(work, 60):
            report.write_text('{"verdict": "same"}')
            interrupt = InterruptAt(n)
            done = interrupt.during(work)
            if interrupt.calls < n:  # fewer calls than the time before: it came to its end
                continue
            document = load_json(report.read_text())
            assert done.status == 2, (n, done)
            if "steps were compared" not in done.err:
                continue
            count = int(done.err.split("interrupted: ")[1].split(" of 8 steps")[0])
            steps = sorted(f["step"] for f in document["fields"])
            assert steps == list(range(len(steps))) and 0 < count <= len(steps) < 8 + 1, (n, done)
            assert document["verdict"] == "incomparable" and document["problems"]
            assert done.last.startswith(
                f"incomparable: interrupted: {count} of 8 steps were compared; what was compared "
            )
            assert ("differs, first at step 1, x[0]" in done.last) == (other == "b" and len(steps) > 1), (
                n,
                done,
            )
            assert "interrupted: " in page.read_text()
            partial += 1
        assert partial > 0


def test_compare_at_any_moment(files: tuple[Path, Path], tmp_path: Path) -> None:
    report = tmp_path / "r.json"

    def work() -> object:
        return command("compare", *files, "--json", report)

    for n in moments(work, 120):
        report.write_text('{"verdict": "same"}')
        done = InterruptAt(n).during(work)
        assert done.status == 2 and done.err.count("\n") == 1, (n, done)
        assert done.err == "twinrun: interrupted before the work was done\n", (n, done)
        load_json(report.read_text())  # old, new or "incomparable": whole in any case
        assert [name for name in os.listdir(tmp_path) if name.startswith("tmp")] == []
    assert work().status == 0


def test_index_at_any_moment(files: tuple[Path, Path], tmp_path: Path) -> None:
    def work() -> object:
        return command("index", tmp_path / "a.npy", "--atol", "1e-6", "--refresh")

    for n in moments(work, 60):
        Path(tmp_path / "a.npy.twm").unlink(missing_ok=True)
        done = InterruptAt(n).during(work)
        check_error(done, "interrupted")
        left = sorted(p.name for p in tmp_path.iterdir() if "twm" in p.name)
        assert left in ([], ["a.npy.twm"]), n
        if left:
            assert twinrun.verify(tmp_path / "a.npy")[0] == []
    assert work().status == 0


def test_capture_at_any_moment(tmp_path: Path) -> None:
    path = tmp_path / "run"
    x = np.arange(500.0)
    with twinrun.Run(path) as run:
        run.capture(0, {"x": x})

        def work(step: int) -> None:
            run.capture(step, {"x": x, "big-endian": x.astype(">f8"), "strided": x[::2]})

        steps = itertools.count(1000)
        for step, n in enumerate(moments(lambda: work(next(steps)), 40), start=1):
            try:
                InterruptAt(n).during(lambda step=step: work(step))
            except KeyboardInterrupt:
                pass
            assert twinrun.verify(path)[0] == []
            if step not in run.steps:
                work(step)
        assert run.steps == [*range(41), 1000, 1001]
    assert command("compare", path, path).status == 0


def interrupt_when(exists: Callable[[], bool], work: Callable[[], object]) -> bool:
    """Runs `work` and sends Ctrl-C as soon as `exists()`; whether it was interrupted."""
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            if exists():
                os.kill(os.getpid(), signal.SIGINT)
                return

    watcher = threading.Thread(target=watch)
    try:
        watcher.start()
        try:
            work()
        finally:
            done.set()
            watcher.join()
    except KeyboardInterrupt:
        return True
    return False


@pytest.mark.parametrize("background", [False, True])
def test_in_the_middle_of_a_capture(background: bool, tmp_path: Path) -> None:
    """The step is brought to its end: what capture() left half-way would have to be thrown away."""
    path = tmp_path / "run"
    x = np.zeros(1 << 21)
    steps = itertools.count(2)
    with twinrun.Run(path, background=background) as run:
        run.capture(1, {"x": x[:10]})

        def interrupted_at(pattern: str) -> bool:
            """Captures one more step, with Ctrl-C once the pattern is there; whether it came in time."""
            step = next(steps)
            pattern = pattern.format(f"step-{step:010}")

            def work() -> None:
                run.capture(step, {"x": x})
                run.wait()

            interrupted = interrupt_when(lambda: any(path.glob(pattern)), work)
            run.wait()
            assert step in run.steps
            assert twinrun.verify(path)[0] == []
            assert sorted(os.listdir(path)) == ["manifest.jsonl", *(f"step-{s:010}" for s in run.steps)]
            return interrupted

        # A busy machine may let the watcher look only after the step's end: the next step is as good.
        for pattern in ("{}", "{}/rank-00000.data.*.tmp"):
            assert any(interrupted_at(pattern) for _ in range(100)), pattern
        assert run.steps == [*range(1, next(steps))]
    assert command("compare", path, path).status == 0


TRAP = """
import os, sys
import numpy as np
from twinrun.cli import main
from twinrun.formats import Field, FileContent, Format, register

def open_trap(path):
    def read(first, count):
        os.write(2, b"reading\\n")
        os.read(0, 1)  # waits until Ctrl-C
        return np.zeros(count)
    content = FileContent(path, "trap")
    content.add(Field("x", "f64", "little", (1000000,), read=read))
    return content

register(Format("trap", "waits for Ctrl-C", open_trap, suffixes=(".trap",)))
main()
"""


@pytest.mark.parametrize("verb", ["compare", "index"])
@pytest.mark.parametrize("threads", [1, 2])
def test_while_reading(verb: str, threads: int, tmp_path: Path) -> None:
    """A read that Ctrl-C ends is an interrupt, not damage; other threads' reads are waited for."""
    path, report = tmp_path / "x.trap", tmp_path / "r.json"
    path.write_bytes(b"x")
    arguments = ["compare", path, path, "--json", report] if verb == "compare" else ["index", path]
    p = subprocess.Popen(
        [sys.executable, "-c", TRAP, *arguments, "--threads", str(threads)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert p.stderr.readline() == b"reading\n"
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=HANG)  # closes stdin: reads that Ctrl-C cannot end do end
    said = err.replace(b"reading\n", b"")
    assert (p.returncode, out) == (2, b"")
    assert said == b"twinrun: interrupted before the work was done\n"
    left = sorted(os.listdir(tmp_path))
    assert left == (["r.json", "x.trap"] if verb == "compare" else ["x.trap"])
    if verb == "compare":
        assert load_json(report.read_text())["verdict"] == "incomparable"


AT_OPEN = """
import signal, sys
nth = int(sys.argv.pop(1))
seen = 0
def hook(event, args):
    global seen
    if event == "open" and ("twinrun" in str(args[0]) or "numpy" in str(args[0])):
        seen += 1
        if seen == nth:
            signal.raise_signal(signal.SIGINT)
from twinrun.__main__ import main
sys.addaudithook(hook)
main()
"""


@pytest.mark.parametrize("nth", [1, 2, 5, 20, 60])
def test_while_the_program_loads(nth: int, files: tuple[Path, Path]) -> None:
    """At the n-th file of twinrun or numpy that is opened: imports are part of "any moment"."""
    done = process("compare", *files, python=("-c", AT_OPEN, nth))
    check_error(done, "interrupted")


def test_through_a_progress_callback(files: tuple[Path, Path]) -> None:
    """What a callback raises ends the work and comes out unchanged."""

    class Stop(Exception):
        pass

    def progress(*_: object) -> None:
        raise Stop

    big = np.zeros(1 << 23)
    try:
        twinrun.compare(big, big, progress=progress, threads=1)
    except Stop:
        pass
    assert twinrun.compare(*files).same
