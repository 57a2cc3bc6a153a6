"""What is measured of a task, against programs that know what they did."""

from __future__ import annotations

import json
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import HANG
from ensemble_support import PYTHON, attempt, start_watch, within
from hypothesis import given
from hypothesis import strategies as st

from twinrun import _core
from twinrun.ensemble.run.engines import WATCH
from twinrun.ensemble.run.work import variable_rules
from twinrun.ensemble.watch import sampling
from twinrun.ensemble.watch.conditions import keeps_variable, without_secrets
from twinrun.ensemble.watch.cores import cores_of_level, list_of_numbers, numbers_of_list
from twinrun.ensemble.watch.ends import ExitListener
from twinrun.ensemble.watch.figures import most_memory
from twinrun.ensemble.watch.sampling import Pace, Sampler

CORES = sorted(os.sched_getaffinity(0))
BURN = "import time\ndef burn(s):\n    while time.process_time() < s: pass\n"


@pytest.fixture(autouse=True)
def limited() -> Iterator[None]:
    with within(HANG):
        yield


def test_the_watcher_needs_its_own_folder_and_the_standard_library(tmp_path: Path) -> None:
    """Copied to where no twinrun is, it runs; and it imports nothing else, which would make each task start later."""
    shutil.copytree(WATCH.parent, tmp_path / "elsewhere" / "watch")
    start_watch(tmp_path / "a", ["/bin/true"]).wait(timeout=HANG)
    for left in ("claim", "lock", "record.json"):
        (tmp_path / "a" / left).unlink()
    program = tmp_path / "elsewhere" / "watch" / "__main__.py"
    words = [sys.executable, "-I", "-S", "-X", "importtime", str(program), str(tmp_path / "a")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=HANG, cwd=tmp_path)
    assert done.returncode == 0
    assert json.loads((tmp_path / "a" / "record.json").read_text())["status"] == "ok"
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()[1:]}
    assert "watch" in imported and imported <= {"watch", *sys.stdlib_module_names, "zipimport"}


def exact() -> bool:
    """Whether the kernel tells of threads that end."""
    try:
        ExitListener()
    except OSError:
        return False
    return True


@given(st.sets(st.integers(0, 300)))
def test_lists_of_cores(cores: set[int]) -> None:
    assert numbers_of_list(list_of_numbers(cores)) == sorted(cores)


@given(st.lists(st.integers(0, 64), min_size=2, max_size=9, unique=True), st.data())
def test_levels_of_cores(share: list[int], data: st.DataObject) -> None:
    spare = data.draw(st.sampled_from([None, *share]))
    assert cores_of_level("all", share) == sorted(share)
    but_one = cores_of_level("all-but-one", share, spare)
    assert set(share) - set(but_one) == {min(share) if spare is None else spare}
    n = data.draw(st.integers(1, len(share)))
    assert len(cores_of_level(str(n), share)) == n
    some = data.draw(st.lists(st.sampled_from(share), min_size=2, unique=True))
    assert cores_of_level("list:" + list_of_numbers(some), share) == sorted(some)
    for wrong in (str(len(share) + 1), "0", "list:65"):
        with pytest.raises(ValueError):
            cores_of_level(wrong, share)


def test_ends(tmp_path: Path) -> None:
    record = attempt(tmp_path / "ok", ["/bin/sh", "-c", "echo out; echo err >&2"])
    assert (record["status"], record["exit"], record["signal"]) == ("ok", 0, None)
    assert (tmp_path / "ok" / "stdout").read_text() == "out\n"
    assert (tmp_path / "ok" / "stderr").read_text() == "err\n"
    record = attempt(tmp_path / "failed", ["/bin/sh", "-c", "exit 7"])
    assert (record["status"], record["exit"]) == ("failed", 7)
    assert attempt(tmp_path / "good 7", ["/bin/sh", "-c", "exit 7"], success=[0, 7])["status"] == "ok"
    record = attempt(tmp_path / "killed", ["/bin/sh", "-c", "kill -9 $$"])
    assert (record["status"], record["exit"], record["signal"]) == ("killed", None, 9)
    for name, command in (("none", ["no-such-program"]), ("folder", ["/tmp"])):
        record = attempt(tmp_path / name, command)
        assert (
            record["status"] == "failed"
            and record["exit"] is None
            and "cannot be started" in record["reason"]
        )
    record = attempt(tmp_path / "prepare", ["/bin/true"], prepare=[["/bin/false"]])
    assert record["status"] == "failed" and "prepare" in record["reason"]


def test_time_limit_ends_all_of_it(tmp_path: Path) -> None:
    """A task that ignores SIGTERM, with a child in a session of its own."""
    program = f"""
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    open({str(tmp_path / "child")!r}, "w").write(str(os.getpid()))
while True: signal.pause()
"""
    record = attempt(tmp_path / "a", [*PYTHON, program], time_limit=0.5, grace=0.2)
    assert record["status"] == "timeout" and record["signal"] == signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "child").read_text()), 0)


def test_what_it_leaves_behind_is_ended_and_counted(tmp_path: Path) -> None:
    program = f"""
import os, signal
r, w = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(w, str(os.getpid()).encode())
        while True: signal.pause()
    os._exit(0)
open({str(tmp_path / "daemon")!r}, "wb").write(os.read(r, 64))
"""
    record = attempt(tmp_path / "a", [*PYTHON, program])
    assert record["status"] == "ok" and record["sampling"]["left_behind"] == 1
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "daemon").read_text()), 0)


def test_cpu_time_of_all_descendants(tmp_path: Path) -> None:
    """Of a child, its child, a thread, and an orphan that outlives all of them."""
    program = (
        BURN
        + """
import os, threading, sys
if os.fork() == 0:
    if os.fork() == 0:
        burn(0.15)
        os._exit(0)
    burn(0.1)
    os.wait()
    os._exit(0)
if os.fork() == 0:
    if os.fork() == 0:
        burn(0.2)
        os._exit(0)
    os._exit(0)
t = threading.Thread(target=burn, args=(0.1,))
t.start()
t.join()
os.wait()
os.wait()
"""
    )
    record = attempt(tmp_path / "a", [*PYTHON, program])
    used = record["user"] + record["system"]
    assert 0.55 <= used < 0.85, "0.55 s were burnt; starting Python takes some"
    # It looks again and again as long as the task lives, which on a busy machine is longer.
    assert record["sampling"]["own_seconds"] < 0.1 * max(used, record["wall"])


def test_io_is_exact(tmp_path: Path) -> None:
    """The difference of two runs is what one wrote and read more, in a grandchild, to the byte and the call."""
    program = """
import os, sys
n, size = int(sys.argv[1]), 1000
if os.fork() == 0:
    if os.fork() == 0:
        f = os.open("data", os.O_CREAT | os.O_RDWR)
        for i in range(n): os.write(f, bytes(size))
        os.lseek(f, 0, 0)
        for i in range(n): os.read(f, size)
        os._exit(0)
    os.wait()
    os._exit(0)
os.wait()
"""
    few, many = (attempt(tmp_path / str(n), [*PYTHON, program, str(n)])["io"] for n in (10, 47))
    difference = {k: many[k] - few[k] for k in few}
    assert difference["write_chars"] == difference["read_chars"] == 37_000
    assert difference["write_calls"] == difference["read_calls"] == 37
    assert few["write_chars"] == 10_000 and few["write_calls"] == 10, "nothing of the watcher's own"


def test_io_is_not_that_of_checks(tmp_path: Path) -> None:
    check = {"kind": "check", "command": ["/bin/sh", "-c", "head -c 50000 /dev/zero; : {pid}"], "after": 0.0}
    record = attempt(tmp_path / "a", [*PYTHON, BURN + "burn(0.3)"], verify={"f": check})
    assert record["verified"]["f"] is not None
    assert record["io"]["write_chars"] == 0


def test_memory(tmp_path: Path) -> None:
    record = attempt(tmp_path / "large", [*PYTHON, "x = bytearray(96 << 20)"])
    assert 96 << 20 <= record["max_memory_bytes"] < 130 << 20


@pytest.mark.skipif(not exact(), reason="the kernel tells nothing of threads that end")
@pytest.mark.parametrize("size", [1, 5])
def test_memory_of_what_is_smaller_than_the_watcher(size: int, tmp_path: Path) -> None:
    """A program that is over at once, often before it was looked at."""
    for at in range(5):
        command = ["/bin/dd", "if=/dev/zero", "of=/dev/null", f"bs={size}M", "count=1"]
        found = attempt(tmp_path / str(at), command)["max_memory_bytes"]
        assert size << 20 <= found < (size + 5) << 20, "not what the watcher held"


@pytest.mark.parametrize("reaped, told, read, expected", [
    (100, 0, 0, 100),  # MiB: more than the watcher had is the program's
    (100, 5, 4, 100),
    (13, 5, 4, 5),
    (13, 5, 0, 5),  # it was over before it was looked at
    (13, 0, 4, 4),
    (13, 0, 0, None),  # all that is known is the watcher's
    (15, 0, 0, None),
])  # fmt: skip
def test_what_says_how_much_memory_it_was(reaped: int, told: int, read: int, expected: int | None) -> None:
    found = most_memory(*(n << 20 for n in (reaped, 13, told, read)))
    assert found == (None if expected is None else expected << 20)


def test_memory_that_is_read_is_not_the_watchers() -> None:
    """A child counts from when it is its program, and one that is no program yet does not.

    In a process of its own: other tests leave children, as multiprocessing's tracker of resources.
    """
    script = "import test_ensemble_watch; test_ensemble_watch.memory_that_is_read()"
    path = os.pathsep.join(sys.path)
    subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ, "PYTHONPATH": path})


def memory_that_is_read() -> None:
    sampler = Sampler()
    ready, said = os.pipe()
    gate, opened = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(said, b"r")
        os.read(gate, 1)
        os._exit(0)
    assert os.read(ready, 1) == b"r"
    sampler.sample()
    assert sampler.most_memory == 0
    os.write(opened, b"g")
    os.waitpid(child, 0)
    script = "echo ready; read line"
    with subprocess.Popen(["/bin/sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as shell:
        assert shell.stdout.readline() == b"ready\n"
        sampler.sample()
        shell.communicate(b"\n")
    assert 1 << 19 < sampler.most_memory < 10 << 20
    for number in (ready, said, gate, opened):
        os.close(number)


def test_context_switches_and_faults(tmp_path: Path) -> None:
    program = """
import os
import re
import select
a, b = os.pipe(), os.pipe()
if os.fork() == 0:
    for i in range(500):
        os.read(a[0], 1); os.write(b[1], b"x")
    os._exit(0)
for i in range(500):
    os.write(a[1], b"x"); os.read(b[0], 1)
os.wait()
x = bytearray(4096 * 3000)
for i in range(0, len(x), 4096): x[i] = 1
"""
    record = attempt(tmp_path / "a", [*PYTHON, program])
    assert record["context_switches"]["voluntary"] >= 500
    assert record["page_faults"]["minor"] >= 3000 or record["facts"]["host"]["huge_pages"].startswith(
        "[always]"
    )


# Two burners on one core: each waits while the other runs, and knows from its own clocks for how long. What all three processes waited,
# with their beginnings, the kernel says: on a busy machine that is much more.
CONTEND = (
    BURN
    + """
import os
import re
import select
def in_queue(): return int(open("/proc/self/schedstat").read().split()[1]) / 1e9
pids = []
alone = time.process_time()
for i in range(2):
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        begin, used = time.monotonic(), time.process_time()
        burn(0.25)
        waited = time.monotonic() - begin - (time.process_time() - used)
        os.write(w, f"{waited!r} {in_queue()!r}".encode())
        os._exit(0)
    pids.append(r)
told = [[float(x) for x in os.read(r, 128).split()] for r in pids]
os.wait(), os.wait()
print(sum(t[0] for t in told), sum(t[1] for t in told) + in_queue(), alone)
"""
)


@pytest.mark.parametrize("listen", [True, False])
def test_run_queue_delay(listen: bool, tmp_path: Path) -> None:
    if listen and not exact():
        pytest.skip("the kernel does not tell of threads that end: needs root and CONFIG_TASKSTATS")
    record = attempt(tmp_path / "a", [*PYTHON, CONTEND], cores=CORES[:1], listen=listen, period=0.02)
    truth, most, alone = map(float, (tmp_path / "a" / "stdout").read_text().split())
    assert truth > 0.1, "they were in each other's way"
    assert record["sampling"]["run_queue_delay"] == ("exact" if listen else "sampled")
    if listen:
        # What they wait after they have told comes on top: their ends.
        assert 0.98 * truth <= record["run_queue_delay"] <= 1.1 * most + 0.15
        assert record["sampling"]["threads"] == 3
    else:
        # A reading may come late where cores are busy: what it missed, it says. Nothing waits before there are two.
        assert record["run_queue_delay"] <= 1.1 * most + 0.15
        whole = record["user"] + record["system"]
        seen = max(record["sampling"]["coverage"] * whole - alone, 0) / (whole - alone)
        assert record["run_queue_delay"] >= 0.5 * truth * seen


# Threads that live some milliseconds and say, as the last thing that they do, for how long they waited.
SHORT = """
import threading, time
waited = []
def work():
    end = time.thread_time() + 0.002
    while time.thread_time() < end: pass
    waited.append(int(open("/proc/thread-self/schedstat").read().split()[1]))
for i in range(30):
    own = [threading.Thread(target=work) for _ in range(4)]
    for t in own: t.start()
    for t in own: t.join()
print((sum(waited) + int(open("/proc/thread-self/schedstat").read().split()[1])) / 1e9)
"""


def test_run_queue_delay_of_threads_that_live_briefly(tmp_path: Path) -> None:
    if not exact():
        pytest.skip("the kernel does not tell of threads that end: needs root and CONFIG_TASKSTATS")
    record = attempt(tmp_path / "a", [*PYTHON, SHORT], cores=CORES[:1])
    truth = float((tmp_path / "a" / "stdout").read_text())
    assert record["sampling"]["threads"] == 121
    assert record["run_queue_delay"] >= 0.999 * truth
    # And what reading at intervals loses, it says by its coverage.
    assert record["sampling"]["sampled_run_queue_delay"] <= record["run_queue_delay"] + 1e-6
    assert record["sampling"]["coverage"] < 0.95


def test_what_is_verified(tmp_path: Path) -> None:
    program = (
        BURN
        + """
import threading
t = [threading.Thread(target=burn, args=(0.3,)) for _ in range(3)]
for x in t: x.start()
for x in t: x.join()
"""
    )
    record = attempt(
        tmp_path / "a",
        [*PYTHON, program],
        cores=CORES,
        cores_level="all-but-one" if len(CORES) > 1 else "all",
        environment={"TWINRUN_A": "1", "HOME": None},
        verify={
            "cores": {"kind": "cores"},
            "a": {"kind": "environment", "variable": "TWINRUN_A"},
            "home": {"kind": "environment", "variable": "HOME"},
            "threads": {"kind": "threads"},
            "check": {"kind": "check", "command": ["readlink", "/proc/{pid}/exe"], "after": 0.0},
            "none": {"kind": "check", "command": ["/bin/false"], "after": 0.0},
        },
    )
    seen = record["verified"]
    assert seen["cores"] == list_of_numbers(CORES[1:] or CORES)
    assert record["cores"] == (CORES[1:] or CORES)
    assert (seen["a"], seen["home"], seen["threads"]) == ("1", "(unset)", "4")
    assert seen["check"] == os.path.realpath(sys.executable) and seen.get("none") is None


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_a_program_that_moves_is_seen(tmp_path: Path) -> None:
    program = BURN + f"import os\nos.sched_setaffinity(0, {{{CORES[0]}}})\nburn(0.3)"
    record = attempt(tmp_path / "a", [*PYTHON, program], cores=CORES, verify={"cores": {"kind": "cores"}})
    assert record["verified"]["cores"] == str(CORES[0])


def test_environment_facts_hold_no_secrets(tmp_path: Path) -> None:
    secret = {"TWINRUN_API_TOKEN": "hunter2", "OMP_NUM_THREADS": "3", "MY_NOTE": "hunter2"}
    record = attempt(tmp_path / "a", ["/bin/true"], environment=secret)
    assert "hunter2" not in json.dumps(record)
    assert record["facts"]["environment"]["OMP_NUM_THREADS"] == "3"
    assert record["facts"]["host"]["name"] and record["facts"]["program"]["sha256"]
    assert all(isinstance(v, str) for group in record["facts"].values() for v in group.values())


def test_watcher_and_core_keep_the_same_variables() -> None:
    rules = variable_rules()
    # As launchers set them: partly keys, and other in every run.
    launcher = ["OMPI_MCA_orte_precondition_transports", "OMPI_MCA_ess_base_jobid", "PRTE_MCA_ess_base_vpid", "I_MPI_HYDRA_PORT"]  # fmt: skip
    others = ["PATH", "HOME", "OMP", "XOMP_X", "OMP_", "LANG", "LANGUAGE", "FI_API_KEY", "FI_KEYS_", "KMP_MONKEY", "MKL_PASS", "MKL_PASSES",
              "ucx_token", "UCX_Token1", "UCX_tokenß", "UCX_Kez", "UCX_\u212aey", "GMX_AUTH_X", "GMX_AUTHOR"]  # fmt: skip
    draw = random.Random(7)
    starts = [*rules["names"], *rules["prefixes"], *rules["bookkeeping"], "", "X_"]
    words = [*rules["secret_words"], *rules["secret_variable_words"], "THREADS", "max", "s", "_", "-", "1"]
    made = [
        draw.choice(starts) + "".join(draw.choice([w, w.lower()]) for w in draw.choices(words, k=draw.randrange(3)))
        for _ in range(6000)
    ]  # fmt: skip
    kept = {name for name in [*launcher, *others, *made] if _core.keeps_variable(name)}
    assert {name for name in [*launcher, *others, *made] if keeps_variable(name, rules)} == kept
    assert not kept & {*launcher, "PATH", "FI_API_KEY", "MKL_PASS", "ucx_token", "UCX_Token1", "GMX_AUTH_X"}
    assert kept >= {"OMP_", "LANG", "KMP_MONKEY", "MKL_PASSES", "GMX_AUTHOR"} and len(kept) > 500


def test_keys_of_launchers_are_not_kept(tmp_path: Path) -> None:
    own = {"OMPI_MCA_orte_precondition_transports": "hunter2-1", "SLURM_JOB_ID": "hunter2-2"}
    record = attempt(tmp_path / "a", ["/bin/true"], environment={**own, "OMPI_MCA_coll": "basic"})
    assert "hunter2" not in json.dumps(record["facts"])
    assert record["facts"]["environment"]["OMPI_MCA_coll"] == "basic"


def test_only_one_runs_an_attempt(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = ["/bin/sh", "-c", f"echo x >> {log}"]
    folder = tmp_path / "a"
    watchers = [start_watch(folder, command) for _ in range(4)]
    assert {w.wait(timeout=HANG) for w in watchers} <= {0, 3}
    assert log.read_text() == "x\n"
    # Withdrawn before it began.
    folder = tmp_path / "b"
    folder.mkdir()
    (folder / "claim").touch()
    assert start_watch(folder, command).wait(timeout=HANG) == 0
    assert log.read_text() == "x\n" and not (folder / "record.json").exists()


def test_sigterm_ends_it_with_a_record(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    watcher = start_watch(tmp_path / "a", ["/bin/sh", "-c", f"echo > {fifo}; exec cat {fifo}"])
    fifo.read_text()  # it runs
    (tmp_path / "a" / "stop").touch()
    watcher.terminate()
    assert watcher.wait(timeout=HANG) == 0
    record = json.loads((tmp_path / "a" / "record.json").read_text())
    assert (record["status"], record["signal"], record["interrupted"]) == ("killed", signal.SIGTERM, True)


@pytest.mark.parametrize("cost", [1e-6, 1e-4, 1e-3, 0.02, 1.0])
def test_readings_take_at_most_a_two_hundredth_of_a_core(cost: float) -> None:
    """Whatever a reading costs: the more it costs, the later the next one is due."""
    pace, now, readings = Pace(0.05, 0.0), 0.0, 0
    for _ in range(1000):
        now = max(now, pace.due)
        pace.took(now, cost)
        assert pace.due - now >= 200 * cost * (1 - 1e-9)
        readings += 1
    assert readings * cost <= (pace.due + 1e-9) / 200
    assert pace.due >= 900 * 0.05, "readings of no cost are no more frequent than the period"


def test_a_reading_opens_few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of threads stay open between readings; lists of children and limits are read seldom."""
    threads, readings = 8, 100
    program = f"""
import sys, threading
ends = threading.Event()
for _ in range({threads}): threading.Thread(target=ends.wait).start()
print(flush=True)
sys.stdin.read()
ends.set()
"""
    sampler = Sampler()
    sampler.not_the_task.update(sampler.descendants())
    with subprocess.Popen([*PYTHON, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as task:
        assert task.stdout is not None
        task.stdout.readline()  # all threads are there
        sampler.sample()
        count = {"open": 0, "pread": 0, "read_text": 0}

        def counted(where: object, name: str) -> None:
            real = getattr(where, name)

            def call(*args: object) -> object:
                count[name] += 1
                return real(*args)

            monkeypatch.setattr(where, name, call)

        counted(os, "open")
        counted(os, "pread")
        counted(sampling, "read_text")
        for _ in range(readings):
            sampler.sample()
        monkeypatch.undo()
        task.communicate()
    assert count["pread"] == (threads + 1) * readings, "one call for each thread"
    # Each reading asks for the children of the watcher and of the main thread; each tenth, of all threads.
    assert count["open"] == 2 * readings + threads * readings // 10
    assert count["read_text"] <= 3 * 20, "three files, in ever longer intervals"


def test_the_task_dies_with_its_watcher(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    watcher = start_watch(tmp_path / "a", ["/bin/sh", "-c", f"echo $$ > {fifo}; exec cat {fifo}"])
    task = os.pidfd_open(int(fifo.read_text()))
    watcher.kill()
    watcher.wait(timeout=HANG)
    poll = select.poll()
    poll.register(task, select.POLLIN)
    assert poll.poll(30_000), "it has ended"
    os.close(task)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("https://u:SEC@h/x?s=SEC z", "https://h/x z"),
        ("s3://a:SE/C@b/x", "s3://b/x"),
        ("token=SEC --n=2", "token=... --n=2"),
        ('--a=1 --api_key="SEC C" --b', "--a=1 --api_key=... --b"),
        ("Authorization: SEC", "Authorization: ..."),
        ("/opt/auth:/lib", "/opt/auth:/lib"),
        ("--header=Authorization: Bearer SEC", "--header=Authorization: Bearer ..."),
        ("--header=PRIVATE-TOKEN: SEC", "--header=PRIVATE-TOKEN: ..."),
        ("-DTOKEN=SEC --n=2", "-DTOKEN=... --n=2"),
        ("password SEC --n 2", "password ... --n 2"),
        ("'Bearer SEC' --n 2", "'Bearer ...' --n 2"),
        ("--token SEC --privatekey SEC", "--token ... --privatekey ..."),
        ("--tokens 128 --token-count 3 --key id", "--tokens 128 --token-count 3 --key id"),
        ("--signal 9 --sig-figs 3 --token --n 2", "--signal 9 --sig-figs 3 --token --n 2"),
        ("-Dpassword=SEC --oauth=SEC --mytoken SEC", "-Dpassword=... --oauth=... --mytoken ..."),
        ("//u:SEC@h/x a//b@c", "//h/x a//b@c"),
        ("hf_SECSECSECSECSEC12 hf_model_of_a_long_name", "hf_... hf_model_of_a_long_name"),
        ("max_tokens=2,a=b", "max_tokens=2,a=b"),
        ("https://h:80/x,a@b", "https://h:80/x,a@b"),
    ],
)
def test_values_of_variables_have_no_secrets(value: str, shown: str) -> None:
    assert without_secrets(value, variable_rules()) == shown


def examples_of_secrets(kind: str) -> list[str]:
    """Texts that the core's function must pass, too: tests/vectors/secrets.txt."""
    lines = (Path(__file__).parents[2] / "vectors" / "secrets.txt").read_text().splitlines()
    texts = [line.removeprefix(f"{kind}\t") for line in lines if line.startswith(f"{kind}\t")]
    return [re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], text) for text in texts]


@pytest.mark.parametrize("value", examples_of_secrets("hide"))
def test_whatever_stands_behind_the_name_of_a_secret_is_hidden(value: str) -> None:
    shown = without_secrets(value, variable_rules())
    assert "SEC" not in shown


@pytest.mark.parametrize("value", examples_of_secrets("keep"))
def test_values_without_secrets_stay(value: str) -> None:
    assert without_secrets(value, variable_rules()) == value


def test_a_long_value_is_cleaned_fast_enough() -> None:
    """The work grows with the length: these would take hours otherwise."""
    for part in 'token=a |--n |token\\|"| |%22|a_|eyJa.|eyJ|SG.a.|Basic a|authkey'.split("|"):
        assert "SEC" not in without_secrets(part * (100_000 // len(part)) + " token=SEC", variable_rules())


def test_a_variable_with_the_name_of_a_secret_has_no_value(tmp_path: Path) -> None:
    """Some names are kept by the rules of a history, and are those of secrets nevertheless."""
    given = {"OMP_secretKey": "hunter2", "OMP_ACCESSKEY": "hunter2", "GMX_DBPASS": "hunter2", "UCX_DB_PWD": "hunter2", "GMX_BYPASS": "1",
             "UCX_AUTHKEY": "hunter2", "CUDA_A": '{"token":"hunter2"}', "OMP_MAX_TOKENS": "3"}  # fmt: skip
    record = attempt(tmp_path / "a", ["/bin/true"], environment=given)
    shown = record["facts"]["environment"]
    hidden = ("OMP_secretKey", "OMP_ACCESSKEY", "GMX_DBPASS", "UCX_DB_PWD", "UCX_AUTHKEY")
    assert [shown[name] for name in hidden] == ["..."] * len(hidden)
    assert (shown["CUDA_A"], shown["GMX_BYPASS"]) == ('{"token":...', "1")


def test_a_reason_has_no_secrets(tmp_path: Path) -> None:
    prepare = [["/bin/sh", "-c", "false --token hunter2"]]
    record = attempt(tmp_path / "a", ["/bin/true"], prepare=prepare)
    assert record["reason"] == "prepare \"/bin/sh -c 'false --token ...'\" ended with status 1"
    record = attempt(tmp_path / "b", ["token=hunter2"])
    assert record["reason"].startswith("token=... cannot be started")
