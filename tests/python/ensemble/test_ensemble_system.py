"""What a task's node and GPUs did meanwhile: counters from files of /proc and /sys as kernels write them, NVML from a library of ours."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from ensemble_support import PYTHON, attempt

from twinrun.ensemble import Options
from twinrun.ensemble.analysis.load import COLUMNS, load
from twinrun.ensemble.analysis.result import FOUND, Judge
from twinrun.ensemble.study.tasks import frame_of
from twinrun.ensemble.watch.gpu import LIBRARY, Gpus, chosen
from twinrun.ensemble.watch.system import counters, since

TREE = {
    "proc/stat": "cpu  9 9 9 9 9 9 9 9\ncpu0 1 0 0 0 0 100 200 300 0 0\ncpu1 1 0 0 0 0 10 20 30 0 0\ncpu2 7 7 7 7 7 7 7 7\nintr 5\n",
    "proc/interrupts": """           CPU0       CPU1       CPU2
  8:          1          2        100   IO-APIC   8-edge      rtc0
 24:         10         20        100   PCI-MSI 0-edge      mlx5_comp0
NMI:          3          4        100   Non-maskable interrupts
LOC:       1000       2000        100   Local timer interrupts
TLB:          5          6        100   TLB shootdowns
ERR:          7
""",
    "proc/softirqs": "                    CPU0       CPU1       CPU2\n       TIMER:         11         22     100\n      NET_RX:          1          2    100\n",
    "proc/schedstat": "version 15\ntimestamp 4\ncpu0 0 0 0 0 0 0 5 3000000000 7\ncpu1 0 0 0 0 0 0 5 1000000000 7\ncpu2 0 0 0 0 0 0 5 90 7\n",
    "proc/vmstat": "nr_free_pages 9\npgfault 500\npgmajfault 6\npswpin 7\npswpout 8\ncompact_stall 2\n",
    "proc/net/dev": """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 900 9 9 9 9 9 9 9 900 9 9 9 9 9 9 9
  eth0: 1000 5 1 2 0 0 0 0 2000 6 3 4 0 0 0 0
  ib0:  10 5 0 0 0 0 0 0 20 6 0 0 0 0 0 0
""",
    "proc/self/cgroup": "0::/job\n",
    "sys/fs/cgroup/job/cpu.stat": "usage_usec 5\nnr_periods 9\nnr_throttled 4\nthrottled_usec 2500000\n",
    "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "3\n",
    "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_total_time_ms": "1500\n",
    "sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count": "2\n",
    "sys/devices/system/cpu/cpu2/thermal_throttle/core_throttle_count": "50\n",
    "sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data": "25\n",
    "sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_wait": "9\n",
}


def planted(folder: Path, **changed: str) -> str:
    for name, text in {**TREE, **{k.replace("__", "/"): v for k, v in changed.items()}}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(folder)


def test_counters_are_those_of_the_cores_and_the_node(tmp_path: Path) -> None:
    tick = os.sysconf("SC_CLK_TCK")
    found = counters([0, 1], planted(tmp_path))
    assert found == {
        "irq_seconds": 110 / tick,
        "softirq_seconds": 220 / tick,
        "steal_seconds": 330 / tick,
        "interrupts": 3 + 30 + 7 + 3000 + 11,
        "device_interrupts": 33,
        "interrupts_LOC": 3000,
        "interrupts_NMI": 7,
        "interrupts_TLB": 11,
        "softirqs": 36,
        "cores_run_queue_seconds": 4.0,
        "throttled": 5.0,
        "throttled_seconds": 1.5,
        "quota_throttled": 4.0,
        "quota_seconds": 2.5,
        "node_page_faults": 500.0,
        "node_major_page_faults": 6.0,
        "pages_swapped_in": 7.0,
        "pages_swapped_out": 8.0,
        "memory_compactions": 2.0,
        "network_received_bytes": 1010.0,
        "network_sent_bytes": 2020.0,
        "network_dropped": 6.0,
        "network_errors": 4.0,
        "fabric_received_bytes": 100.0,
        "fabric_send_waits": 9.0,
    }
    assert counters([1], str(tmp_path))["device_interrupts"] == 22


def test_control_groups_of_version_one(tmp_path: Path) -> None:
    root = planted(tmp_path, proc__self__cgroup="9:name=systemd:/x\n4:cpu,cpuacct:/job\n")
    path = tmp_path / "sys/fs/cgroup/cpu,cpuacct/job/cpu.stat"
    path.parent.mkdir(parents=True)
    path.write_text("nr_periods 1\nnr_throttled 6\nthrottled_time 500000000\n")
    found = counters([0], root)
    assert (found["quota_throttled"], found["quota_seconds"]) == (6.0, 0.5)


@pytest.mark.parametrize("name", sorted(TREE))
@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "cpu0\n",
        "cpu0 x y z 1 2 3 4 5 6 7 8 9\n",
        "CPU0\n:\n1:\n",
        "\x00\xff -1 999999999999999999999\n" * 3,
    ],
)
def test_files_that_are_written_otherwise_leave_their_counters_out(
    name: str, text: str, tmp_path: Path
) -> None:
    whole = counters([0, 1], planted(tmp_path))
    (tmp_path / name).write_text(text)
    found = counters([0, 1], str(tmp_path))
    assert set(found) <= set(whole)
    unlike = {k for k in whole if found.get(k) != whole[k]}
    assert len(unlike) <= 6, "other files say what they said"


def test_a_node_without_any(tmp_path: Path) -> None:
    assert counters([0], str(tmp_path)) == {}


def test_differences_and_counters_that_were_set_back() -> None:
    assert since({"a": 1, "b": 5, "c": 2, "d": 0}, {"a": 4, "b": 3, "d": 0, "e": 9}) == {"a": 3, "d": 0}


def test_a_task_has_its_counters(tmp_path: Path) -> None:
    record = attempt(
        tmp_path, [*PYTHON, "x = bytearray(64 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1"]
    )
    found = record["counters"]
    assert found["seconds"] >= record["wall"]
    if os.path.exists("/proc/vmstat"):
        assert found["node_page_faults"] >= 1000
    assert all(value >= 0 for value in found.values())
    assert isinstance(record["system"], float), "the CPU time in the kernel keeps its name"
    assert record["gpu"] is None or "devices" in record["gpu"]


# GPUs ---------------------------------------------------------------------------------------------------------------

FAKE = r"""
#include <stdlib.h>
#include <string.h>
static int reads;
int nvmlInit_v2(void) { return getenv("FAKE_BROKEN") ? 9 : 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned* n) { *n = 3; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned k, void** device) { *device = (void*)(size_t)(k + 1); return k == 2 ? 15 : 0; }
int nvmlDeviceGetUUID(void* device, char* text, unsigned n) {
  strncpy(text, device == (void*)1 ? "GPU-aaaa-1" : "GPU-bbbb-2", n); return 0; }
int nvmlDeviceGetClockInfo(void* device, int kind, unsigned* mhz) { *mhz = kind ? 2600 : 1900 - 100 * (unsigned)(size_t)device; return 0; }
int nvmlDeviceGetPowerUsage(void* device, unsigned* mw) { *mw = 400000; return device == (void*)2 ? 3 : 0; }  /* not supported */
int nvmlDeviceGetTemperature(void* device, int sensor, unsigned* c) { *c = 60 + 5 * (unsigned)(size_t)device; return 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* bits) { *bits = device == (void*)1 ? 0x4 : 0x1; return 0; }
int nvmlDeviceGetTotalEnergyConsumption(void* device, unsigned long long* mj) { *mj = 1000000 + 2000ull * reads++; return 0; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("a library to stand in for NVML needs a C compiler")
    folder = tmp_path_factory.mktemp("nvml")
    (folder / "fake.c").write_text(FAKE)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libfake.so", folder / "fake.c"], check=True)
    return str(folder / "libfake.so")


def test_gpus_of_a_task(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIBRARY, library)
    gpus = Gpus({})
    gpus.look()
    gpus.look()
    found = gpus.end()
    assert found is not None
    first, second = found["devices"]
    assert first == {"index": 0, "looks": 2, "clock_mhz": 1800.0, "memory_clock_mhz": 2600.0, "power_w": 400.0,
                     "temperature_c": 65.0, "throttled": 1.0, "reasons": {"power": 1.0}, "energy_j": 4.0}  # fmt: skip
    assert (
        "power_w" not in second and second["throttled"] == 0.0 and second["reasons"] == {}
    )  # idle is no reason
    assert (found["clock_mhz"], found["temperature_c"], found["power_w"], found["throttled"]) == (
        1750.0,
        70.0,
        400.0,
        0.5,
    )
    assert found["energy_j"] == 8.0
    seen = Gpus({"CUDA_VISIBLE_DEVICES": "GPU-bbbb"})
    seen.look()
    only = seen.end()
    assert only is not None and [one["index"] for one in only["devices"]] == [1]


@pytest.mark.parametrize(
    "environment",
    [{"CUDA_VISIBLE_DEVICES": ""}, {"CUDA_VISIBLE_DEVICES": "-1"}, {"CUDA_VISIBLE_DEVICES": "7"}],
)
def test_a_task_that_sees_no_gpu(
    environment: dict[str, str], library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LIBRARY, library)
    gpus = Gpus(environment)
    gpus.look()
    assert gpus.end() is None


def test_libraries_that_fail(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "no.so").write_text("no library")
    for name in (str(tmp_path / "no.so"), str(tmp_path / "nowhere.so"), "libc.so.6"):
        monkeypatch.setenv(LIBRARY, name)
        assert Gpus({}).end() is None
    monkeypatch.setenv(LIBRARY, library)
    monkeypatch.setenv("FAKE_BROKEN", "1")
    assert Gpus({}).end() is None


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (None, [0, 1]),
        ("1", [1]),
        ("1,0", [0, 1]),
        ("0,9,1", [0]),
        ("GPU-b", [1]),
        ("MIG-x", []),
        ("", []),
        ("0,0", [0]),
    ],
)
def test_which_gpus(visible: str | None, found: list[int]) -> None:
    assert chosen(visible, 2, ["GPU-a", "GPU-b"]) == found


def test_an_attempt_with_gpus(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIBRARY, library)
    record = attempt(
        tmp_path, [*PYTHON, "import time\nt = time.monotonic()\nwhile time.monotonic() < t + 0.6: pass"]
    )
    assert [one["index"] for one in record["gpu"]["devices"]] == [0, 1]
    assert record["gpu"]["devices"][0]["looks"] >= 1 and record["gpu"]["clock_mhz"] == 1750.0
    json.dumps(record)


# The analysis -------------------------------------------------------------------------------------------------------


def studied(rng: np.random.Generator, column: str, effect: float, n: int = 60) -> list[dict]:
    """Tasks whose time goes with the rate of a counter, or with a state."""
    lines = []
    part, _, name = column.partition(".")
    for task in range(n):
        z = rng.standard_normal()
        wall = float(np.exp(0.03 * rng.standard_normal() + effect * z))
        rate = float(np.exp(0.5 * z))
        value = 1500 - 50 * z if "clock" in name else rate * (wall + 2 if part == "counters" else 1)
        line = {
            "task": task,
            "status": "ok",
            "wall": wall,
            "start": float(task),
            "block": task // 6,
            "order": task,
            part: {name: value},
        }
        if part == "counters":
            line["counters"]["seconds"] = wall + 2
        lines.append(line)
    return lines


@pytest.mark.parametrize(
    "column", ["counters.irq_seconds", "counters.network_received_bytes", "gpu.clock_mhz", "gpu.throttled"]
)
def test_a_planted_covariate_is_found_as_a_rate(column: str) -> None:
    assert column in COLUMNS
    rng = np.random.default_rng(3)
    found, missed = 0, 0
    for _ in range(6):
        result = load(frame_of(studied(rng, column, 0.03)), Options(permutations=99, resamples=99))
        held = [c for c in result.claims if Judge(0.05).holds(c)]
        found += [c.facts["column"] for c in held] == [column] and result.tell(Judge(0.05))[1] == FOUND
        nothing = load(frame_of(studied(rng, column, 0.0)), Options(permutations=99, resamples=99))
        missed += any(Judge(0.05).holds(c) for c in nothing.claims)
    assert found >= 5 and missed <= 2
