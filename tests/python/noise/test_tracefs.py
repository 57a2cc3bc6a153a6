"""What the kernel's trace says of a core: spans that add up, nested interrupts, lost events; then a real trace where root may mount one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("scipy")
pytest.importorskip("pandas")

from commands import COMMAND, HANG, command

from twinrun.errors import TwinrunError
from twinrun.noise import tracefs

HEAD = """# tracer: nop
#
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
#              | |         |   |||||     |         |
"""


def line(us: float, event: str, rest: str, core: int = 0, who: str = "loop one-77") -> str:
    return f"  {who:>14}   [{core:03}] d.h1.  {100 + us / 1e6:.6f}: {event}: {rest}\n"


def switch(us: float, comm: str, thread: int, core: int = 0) -> str:
    return line(us, "sched_switch", f"prev_comm=loop one prev_pid=77 prev_prio=120 prev_state=R+ ==> next_comm={comm} next_pid={thread} next_prio=120", core)  # fmt: skip


def rounded(found: tracefs.Took) -> dict[tuple[str, str], tuple[int, int]]:
    """{(kind, name): (microseconds, how often)}."""
    return {
        (kind, name): (round(1e6 * s), found.count[kind][name])
        for kind, own in found.seconds.items()
        for name, s in own.items()
    }


def test_time_is_of_the_innermost() -> None:
    lines = [
        switch(0, "loop one", 77),
        line(10, "local_timer_entry", "vector=236"),
        line(14, "local_timer_exit", "vector=236"),
        line(14, "softirq_entry", "vec=1 [action=TIMER]"),
        line(20, "irq_handler_entry", "irq=36 name=virtio1 req.0"),
        line(23, "irq_handler_exit", "irq=36 ret=handled"),
        line(30, "softirq_exit", "vec=1 [action=TIMER]"),
        line(41, "nmi_handler", "perf_event_nmi_handler() delta_ns: 1000 handled: 1"),
        switch(50, "kworker/0:1", 5),
        line(60, "local_timer_entry", "vector=236"),
        line(62, "local_timer_exit", "vector=236"),
        switch(70, "swapper/0", 0),
        switch(90, "loop one", 77),
    ]
    assert rounded(tracefs.took([HEAD, *lines], {77})[0]) == {
        ("irq", "local_timer"): (6, 2), ("irq", "virtio1 req.0"): (3, 1), ("softirq", "TIMER"): (13, 1),
        ("nmi", "perf_event_nmi_handler"): (1, 1), ("thread", "kworker"): (18, 1),
    }  # fmt: skip
    # Without its threads named, all of the time that the core was not idle is of somebody.
    every = rounded(tracefs.took(lines)[0])
    assert sum(us for us, _ in every.values()) == 70
    assert every["thread", "loop one"] == (50 - 4 - 16 - 1, 2)


def test_cores_are_apart() -> None:
    lines = [
        line(0, "softirq_entry", "vec=9 [action=RCU]", 0),
        line(1, "softirq_entry", "vec=4 [action=BLOCK]", 1),
        line(5, "softirq_exit", "vec=9 [action=RCU]", 0),
        line(8, "softirq_exit", "vec=4 [action=BLOCK]", 1),
    ]
    found = tracefs.took(lines)
    assert rounded(found[0]) == {("softirq", "RCU"): (5, 1)}
    assert rounded(found[1]) == {("softirq", "BLOCK"): (7, 1)}


def test_what_was_lost_is_counted_and_not_guessed() -> None:
    lines = [
        line(0, "softirq_entry", "vec=9 [action=RCU]"),
        "CPU:0 [LOST 12 EVENTS]\n",
        line(5000, "softirq_exit", "vec=9 [action=RCU]"),
        line(5010, "local_timer_exit", "vector=236"),
        line(5020, "irq_handler_entry", "irq=1 name=a"),
        line(5021, "irq_handler_exit", "irq=1 ret=handled"),
    ]
    found = tracefs.took(lines)[0]
    assert found.lost == 12
    assert rounded(found) == {("softirq", "RCU"): (0, 1), ("irq", "a"): (1, 1)}


def test_an_end_without_a_begin_takes_nothing() -> None:
    assert rounded(tracefs.took([line(0, "irq_handler_exit", "irq=1 ret=handled"), line(9, "softirq_exit", "vec=1 [action=TIMER]")])[0]) == {}  # fmt: skip


def test_lines_that_are_no_events() -> None:
    assert tracefs.took(["", "# comment\n", "no event at all\n", "a-1 [x] d 1.0: softirq_entry: v\n"]) == {}


def test_the_document_and_its_sentence() -> None:
    found = tracefs.took(
        [
            line(0, "softirq_entry", "vec=1 [action=TIMER]"),
            line(500, "softirq_exit", "vec=1 [action=TIMER]"),
        ]
    )[0]
    told = tracefs.document(found, 0, 0.05)
    assert told["softirq"] == {"TIMER": {"share": pytest.approx(0.01, rel=1e-3), "per_s": 20.0}}
    assert (
        tracefs.sentence(told)
        == "By the kernel's trace, right after, these took time from core 0, in %: TIMER (softirq) 1."
    )
    found.lost = 3
    assert "3 events were lost" in tracefs.sentence(tracefs.document(found, 0, 0.05))
    assert tracefs.sentence(tracefs.document(tracefs.Took(), 1, 1.0)).endswith("in %: nothing.")


def fake(tmp_path: Path) -> Path:
    (tmp_path / "instances").mkdir()
    return tmp_path


def test_a_kernel_that_refuses_leaves_nothing_behind(tmp_path: Path) -> None:
    """A folder that is no tracefs has none of the files of an instance."""
    with pytest.raises(TwinrunError, match="tracing cannot begin"), tracefs.Trace([0], fake(tmp_path)):
        pass
    assert list((tmp_path / "instances").iterdir()) == []


_TRACED = """
import os, pathlib, signal, sys
from twinrun.noise import tracefs
tracefs._put = lambda path, text: None
folder, number, moment = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
mkdir = pathlib.Path.mkdir
def made(path):
    mkdir(path)
    if moment == path.name.rpartition("-")[2]:
        os.kill(os.getpid(), number)
pathlib.Path.mkdir = made
with tracefs.Trace([0], folder):
    if moment == "open":
        os.kill(os.getpid(), number)
    print("went on", flush=True)
"""


@pytest.mark.parametrize("moment", ["threads", "open"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_at_any_moment_leaves_no_instance(tmp_path: Path, number: int, moment: str) -> None:
    words = [sys.executable, "-c", _TRACED, str(fake(tmp_path)), str(number), moment]
    done = subprocess.run(words, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == -number and "went on" not in done.stdout, done.stderr
    assert list((tmp_path / "instances").iterdir()) == []


def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    code = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN){_TRACED}"
    words = [sys.executable, "-c", code, str(fake(tmp_path)), str(int(signal.SIGHUP)), "open"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=HANG)
    assert (done.returncode, done.stdout) == (0, "went on\n"), done.stderr
    assert list((tmp_path / "instances").iterdir()) == []


def test_a_trace_gives_the_handlers_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracefs, "_put", lambda path, text: None)
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with tracefs.Trace([0], fake(tmp_path)):
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_instances_of_killed_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a process that lives, of another namespace and of other programs stay."""
    monkeypatch.setattr(tracefs, "_put", lambda path, text: None)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    space = os.stat("/proc/self/ns/pid").st_ino
    own = fake(tmp_path) / "instances"
    stay = {
        f"twinrun-{os.getppid()}-{space}",
        f"twinrun-{gone.pid}-{space + 1}",
        "other",
        f"twinrun-{gone.pid}",
    }
    for name in (
        *stay,
        f"twinrun-{gone.pid}-{space}",
        f"twinrun-{gone.pid}-{space}-threads",
        f"twinrun-{os.getpid()}-{space}",
    ):
        (own / name).mkdir()
    with tracefs.Trace([0], tmp_path):
        pass
    assert {x.name for x in own.iterdir()} == stay


def test_shares_are_of_the_whole_traced_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that has the core all the time has 100% of it, however long the trace lasts."""
    clock = iter([100.0, 102.0])
    monkeypatch.setattr(tracefs, "_put", lambda path, text: None)
    monkeypatch.setattr(tracefs, "place", lambda: fake(tmp_path))
    monkeypatch.setattr(tracefs.time, "monotonic", lambda: next(clock))
    lines = [switch(0, "other", 7), switch(2e6, "swapper/0", 0)]
    monkeypatch.setattr(tracefs.Trace, "lines", lambda self: lines)
    monkeypatch.setattr(tracefs.Trace, "threads", lambda self: set())
    core = tracefs.measured([0], lambda: None)[0]
    assert core["seconds"] == 2.0 and core["thread"]["other"]["share"] == pytest.approx(1.0)
    assert tracefs.sentence(core).endswith("in %: other (thread) 100.")


def test_without_tracefs_it_says_how_to_mount_it(tmp_path: Path) -> None:
    with pytest.raises(TwinrunError, match="mount -t tracefs"):
        tracefs.place([str(tmp_path / "none")])
    assert tracefs.place([str(tmp_path / "none"), str(fake(tmp_path))]) == tmp_path


def test_a_real_trace(tmp_path: Path) -> None:
    """In a namespace of mounts of its own, so that this host's stay as they are."""
    if os.geteuid() != 0:
        pytest.skip("tracing needs root")
    mount = 'mount -t tracefs nodev /sys/kernel/tracing && exec "$@"'
    inside = ["unshare", "--mount", "sh", "-c", mount, "sh"]
    look = "import os; assert os.path.isdir('/sys/kernel/tracing/events/irq')"
    if subprocess.run([*inside, sys.executable, "-c", look], capture_output=True).returncode != 0:
        pytest.skip("this kernel lets nobody mount tracefs here, or has no events of interrupts")
    path = tmp_path / "noise.json"
    words = ["noise", "--seconds", "1", "--rounds", "1", "--no-compare", "--trace", "--json", str(path)]
    done = subprocess.run([*inside, *COMMAND, *words], capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr
    document = json.loads(path.read_text())
    assert document["trace_failed"] is None
    cores = {c["core"]: c for c in document["trace"]}
    assert set(cores) == set(os.sched_getaffinity(0))
    assert "By the kernel's trace, right after, these took time from core" in done.stdout
    for c in cores.values():
        shares = [own["share"] for kind in tracefs.KINDS for own in c[kind].values()]
        assert all(0 <= share <= 1 for share in shares)
        # The core ticks while the loop has it, unless it is told not to.
        assert any(c["irq"].values()) or any(c["softirq"].values())
    left = "import os; assert not [x for x in os.listdir('/sys/kernel/tracing/instances') if x.startswith('twinrun')]"
    assert subprocess.run([*inside, sys.executable, "-c", left], capture_output=True).returncode == 0


def test_the_verb_names_what_is_missing() -> None:
    if os.path.isdir("/sys/kernel/tracing/instances") or os.path.isdir("/sys/kernel/debug/tracing/instances"):
        pytest.skip("tracefs is mounted here")
    done = command("noise", "--seconds", "0.1", "--trace")
    assert done.status == 2 and "tracefs is not mounted here" in done.err and "mount -t tracefs" in done.err
