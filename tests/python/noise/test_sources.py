"""What took the time, by name: from files as kernels write them, from threads of ours, and from what rtla prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from twinrun import noise
from twinrun.errors import TwinrunError
from twinrun.noise import sources

CORES = sorted(os.sched_getaffinity(0))

BEFORE = {
    "proc/interrupts": """           CPU0       CPU2
 24:         10         20   PCI-MSIX-0000:00:03.0   0-edge      virtio1-req.0
NMI:          1          0   Non-maskable interrupts
LOC:       1000       2000   Local timer interrupts
ERR:          0
""",
    "proc/softirqs": "                    CPU0       CPU2\n       TIMER:         11         22\n",
    "proc/stat": "cpu  9 9 9 9 9 9 9 9\ncpu0 1 0 0 0 0 100 200 300 0 0\ncpu2 1 0 0 0 0 0 0 0 0 0\n",
}
AFTER = {
    "proc/interrupts": BEFORE["proc/interrupts"].replace("1000 ", "1500 ").replace(" 10  ", " 14  "),
    "proc/softirqs": BEFORE["proc/softirqs"].replace("11", "31"),
    "proc/stat": BEFORE["proc/stat"].replace("100 200 300", "150 200 400"),
}


def tree(folder: Path, files: dict[str, str], threads: list[tuple[int, int, str, int, int]]) -> str:
    """threads: (process, thread, name, core, CPU time in ns)."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for process, thread, name, core, used in threads:
        place = folder / f"proc/{process}/task/{thread}"
        place.mkdir(parents=True, exist_ok=True)
        numbers = ["0"] * 50
        numbers[0], numbers[19], numbers[36] = "R", str(1000 + thread), str(core)
        (place / "stat").write_text(f"{thread} ({name}) {' '.join(numbers)}\n")
        (place / "schedstat").write_text(f"{used} 0 1\n")
    return str(folder)


def test_what_came_between_two_looks(tmp_path: Path) -> None:
    first = [(7, 7, "kworker/0:1-events", 0, 10**9), (8, 8, "db) (x", 2, 5 * 10**9), (9, 9, "me", 0, 0)]
    then = [(7, 7, "kworker/0:1-events", 0, 3 * 10**9), (8, 8, "db) (x", 0, 6 * 10**9), (9, 9, "me", 0, 10**9),
            (10, 10, "kworker/0:2", 0, 10**9)]  # fmt: skip
    before = sources.Snapshot(tree(tmp_path / "a", BEFORE, first), without=[9])
    after = sources.Snapshot(tree(tmp_path / "b", AFTER, then), without=[9])
    tick = os.sysconf("SC_CLK_TCK")
    found = sources.since(before, after, [0])
    assert found == {
        0: {
            "interrupts": {"Local timer interrupts": 500.0, "virtio1-req.0": 4.0},
            "softirqs": {"TIMER": 20.0},
            "times": {"interrupts": 50 / tick, "hypervisor": 100 / tick},
            "threads": {"kworker": 3.0, "db) (x": 1.0},
        }
    }
    told = sources.figures(0, [found[0], found[0]], 10.0)
    assert told["interrupts"]["Local timer interrupts"] == 100.0 and told["threads"]["kworker"] == 0.6
    assert told["seconds"] == 10.0
    said = sources.sentence(told)
    # A thread may have used other cores before: more than 100% is possible, and is no share of this core.
    assert (
        "threads that were last there used, in % of one core's time and on any core: kworker 60, db) (x 20;"
        in said
    )
    assert "Local timer interrupts 100, virtio1-req.0 0.8" in said
    assert sources.sentence({"core": 0}) == ""


@pytest.mark.parametrize("name", sorted(BEFORE))
@pytest.mark.parametrize(
    "text", ["", "CPU0\n", "cpu0 a b c d e f g h\n", "   CPU0 CPU1\n 1: 5\n", "\x00\n:\n"]
)
def test_files_that_are_written_otherwise(name: str, text: str, tmp_path: Path) -> None:
    before = sources.Snapshot(tree(tmp_path / "a", BEFORE, []))
    after = sources.Snapshot(tree(tmp_path / "b", {**AFTER, name: text}, []))
    kind = {"proc/interrupts": "interrupts", "proc/softirqs": "softirqs", "proc/stat": "times"}[name]
    assert sources.since(before, after, [0])[0][kind] == {}


@pytest.mark.parametrize(
    ("comm", "name"),
    [("kworker/u8:3+flush", "kworker"), ("ksoftirqd/12", "ksoftirqd"), ("rcu_preempt", "rcu_preempt"), ("worker-17", "worker"), ("kworker/0:1H-kblockd", "kworker"), ("a/b/server", "a/b/server"), ("/usr/bin/x", "/usr/bin/x"),
     ("python3", "python"), ("42", "42"), ("", "")],
)  # fmt: skip
def test_names_without_numbers(comm: str, name: str) -> None:
    assert sources.named(comm) == name


def test_a_thread_that_works_is_named() -> None:
    """A program of ours on one core, seen from here."""
    core = CORES[-1]
    code = "\n".join(
        [
            "import os, sys",
            "os.sched_setaffinity(0, {int(sys.argv[1])})",
            "open('/proc/self/comm', 'w').write('thief')",
            "print(flush=True)",
            "while True: pass",
        ]
    )
    thief = subprocess.Popen([sys.executable, "-I", "-S", "-c", code, str(core)], stdout=subprocess.PIPE)
    try:
        assert thief.stdout is not None
        thief.stdout.readline()
        before = sources.Snapshot()
        used = 0.0
        while used < 0.2:  # of its CPU time, whatever else the machine does
            found = sources.since(before, sources.Snapshot(), [core])[core]["threads"]
            used = found.get("thief", 0.0)
        assert (
            sources.since(before, sources.Snapshot(without=[thief.pid]), [core])[core]["threads"].get("thief")
            is None
        )
    finally:
        thief.kill()
        thief.wait()


RTLA = """                                          Operating System Noise
duration:   0 00:01:00 | time is in us
CPU Period       Runtime        Noise  % CPU Aval   Max Noise   Max Single          HW          NMI          IRQ      Softirq       Thread
  0 #59         53100000       304896    99.42580        6978           56         549            0        53111         1590           13
  1 #59         53100000       338339    99.36282        8092           24         399            0        53130         1448           31
"""


def test_the_table_of_rtla() -> None:
    found = sources.rtla_table(RTLA)
    assert sorted(found) == [0, 1]
    assert found[0] == {"share": 304896 / 53100000, "largest_us": 56.0, "hardware": 549.0, "nmi": 0.0, "irq": 53111.0,
                        "softirq": 1590.0, "thread": 13.0, "seconds": 53.1}  # fmt: skip
    assert sources.rtla_table("CPU Period\n 0 #1 a b c d e f g h i j\n 0 #1 0 0 0 0 0 0 0 0 0 0\n") == {}


def play_rtla(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, status: int = 0) -> None:
    """A program by this name that prints what rtla does."""
    program = folder / "rtla"
    (folder / "table").write_text(text)
    program.write_text(
        f'#!/bin/sh\necho "$@" > "{folder}/words"\ncat "{folder}/table"\necho "no osnoise tracer" >&2\nexit {status}\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_rtla_beside_the_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    core = CORES[0]
    play_rtla(tmp_path, monkeypatch, RTLA.replace("\n  0 #", f"\n  {core} #"))
    found = noise.measure(0.5, [core], rounds=1, rtla=True)
    assert (tmp_path / "words").read_text().split() == ["osnoise", "top", "-q", "-c", str(core), "-d", "1s"]
    assert "rtla osnoise, right after" in found.sentence
    (told,) = found.document["sources"]["all"]
    assert told["core"] == core and told["seconds"] > 0
    if Path("/proc/interrupts").exists():
        assert told["interrupts"] and "By name, the kernel tells" in found.sentence
    found.to_json(str(tmp_path / "n.json"))
    assert noise.read_noise(tmp_path / "n.json").sentence == found.sentence
    older = json.loads((tmp_path / "n.json").read_text())
    for key in ("sources", "rtla", "rtla_failed"):
        del older[key]
    (tmp_path / "old.json").write_text(json.dumps(older))
    assert "By name" not in noise.read_noise(tmp_path / "old.json").sentence


def test_rtla_that_fails_keeps_the_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play_rtla(tmp_path, monkeypatch, "", 1)
    found = noise.measure(0.3, [CORES[0]], rounds=1, rtla=True)
    assert found.document["rtla"] is None and "no osnoise tracer" in found.sentence


def test_rtla_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TwinrunError, match="rtla: is not installed"):
        noise.measure(0.3, [CORES[0]], rounds=1, rtla=True)
