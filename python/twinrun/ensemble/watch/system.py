"""What the node did while a task ran, by the kernel's counters: interrupts, throttling, paging, run
queues, networks.

Counters of cores are of the task's cores; those of memory and networks are of the node. What a node
does not say is left out.
"""

from __future__ import annotations

import glob
import os
import re
import time

from .kernel import read_text

__all__ = ["System", "counters", "since"]

_STAT = {"irq_seconds": 6, "softirq_seconds": 7, "steal_seconds": 8}  # columns of /proc/stat
_VMSTAT = {
    "pgfault": "node_page_faults",
    "pgmajfault": "node_major_page_faults",
    "pswpin": "pages_swapped_in",
    "pswpout": "pages_swapped_out",
    "compact_stall": "memory_compactions",
}
# Columns of /proc/net/dev after the name of the interface.
_NET = {
    "network_received_bytes": (0,),
    "network_sent_bytes": (8,),
    "network_dropped": (3, 11),
    "network_errors": (2, 10),
}
# Of InfiniBand and Omni-Path; data counts words of four bytes.
_FABRIC = {
    "port_rcv_data": ("fabric_received_bytes", 4),
    "port_xmit_data": ("fabric_sent_bytes", 4),
    "port_xmit_wait": ("fabric_send_waits", 1),
    "symbol_error": ("fabric_errors", 1),
}


def _stat(root: str, cores: set[int]) -> dict[str, float]:
    ticks = os.sysconf("SC_CLK_TCK")
    found: dict[str, float] = {}
    for line in (read_text(f"{root}/proc/stat") or "").splitlines():
        words = line.split()
        core = re.fullmatch(r"cpu(\d+)", words[0]) if words else None
        if core is None or int(core[1]) not in cores:
            continue
        for name, column in _STAT.items():
            if len(words) > column:
                found[name] = found.get(name, 0.0) + int(words[column]) / ticks
    return found


def _table(text: str | None, cores: set[int]) -> dict[str, int]:
    """{row: its sum over the cores} of /proc/interrupts and /proc/softirqs; their first line names
    the cores.
    """
    lines = (text or "").splitlines()
    if not lines:
        return {}
    columns = [
        k
        for k, word in enumerate(lines[0].split())
        if word[:3] == "CPU" and word[3:].isdigit() and int(word[3:]) in cores
    ]
    found = {}
    for line in lines[1:]:
        name, _, rest = line.partition(":")
        words = rest.split()
        numbers = [int(words[k]) for k in columns if k < len(words) and words[k].isdigit()]
        if numbers:
            found[name.strip()] = sum(numbers)
    return found


def _interrupts(root: str, cores: set[int]) -> dict[str, float]:
    found: dict[str, float] = {}
    rows = _table(read_text(f"{root}/proc/interrupts"), cores)
    if rows:
        local = ("LOC", "NMI", "RES", "CAL", "TLB")
        found["interrupts"] = sum(n for name, n in rows.items() if name not in ("ERR", "MIS"))
        found["device_interrupts"] = sum(n for name, n in rows.items() if name.isdigit())
        found |= {f"interrupts_{name}": rows[name] for name in local if name in rows}
    soft = _table(read_text(f"{root}/proc/softirqs"), cores)
    if soft:
        found["softirqs"] = sum(soft.values())
    return found


def _run_queue(root: str, cores: set[int]) -> dict[str, float]:
    """Seconds that threads waited for these cores, whosever they are; of /proc/schedstat."""
    found: dict[str, float] = {}
    for line in (read_text(f"{root}/proc/schedstat") or "").splitlines():
        words = line.split()
        core = re.fullmatch(r"cpu(\d+)", words[0]) if words else None
        if core is not None and int(core[1]) in cores and len(words) > 8:
            found["cores_run_queue_seconds"] = found.get("cores_run_queue_seconds", 0.0) + int(words[8]) / 1e9
    return found


def _throttling(root: str, cores: set[int]) -> dict[str, float]:
    """Throttling of the processor, for heat or power; and of the task's control group, for its quota."""
    found: dict[str, float] = {}
    for core in cores:
        place = f"{root}/sys/devices/system/cpu/cpu{core}/thermal_throttle"
        for name, key in (
            ("core_throttle_count", "throttled"),
            ("core_throttle_total_time_ms", "throttled_seconds"),
        ):
            text = (read_text(f"{place}/{name}") or "").strip()
            if text.isdigit():
                found[key] = found.get(key, 0.0) + int(text) / (1000 if key == "throttled_seconds" else 1)
    for line in (read_text(f"{root}/proc/self/cgroup") or "").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = f"{root}/sys/fs/cgroup" + (f"/{controllers}" if controllers else "")
        text = read_text(f"{base}{path}/cpu.stat") or ""
        for key, name, scale in (
            ("nr_throttled", "quota_throttled", 1.0),
            ("throttled_usec", "quota_seconds", 1e-6),
            ("throttled_time", "quota_seconds", 1e-9),
        ):
            value = re.search(rf"^{key} (\d+)$", text, re.M)
            if value:
                found[name] = int(value[1]) * scale
    return found


def _memory(root: str) -> dict[str, float]:
    text = read_text(f"{root}/proc/vmstat") or ""
    found = {}
    for key, name in _VMSTAT.items():
        value = re.search(rf"^{key} (\d+)$", text, re.M)
        if value:
            found[name] = float(value[1])
    return found


def _network(root: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for line in (read_text(f"{root}/proc/net/dev") or "").splitlines()[2:]:
        name, _, rest = line.partition(":")
        words = rest.split()
        if name.strip() == "lo" or len(words) < 16 or not all(word.isdigit() for word in words):
            continue
        for key, columns in _NET.items():
            found[key] = found.get(key, 0.0) + sum(int(words[k]) for k in columns)
    for place in glob.glob(f"{root}/sys/class/infiniband/*/ports/*/counters"):
        for file, (key, size) in _FABRIC.items():
            text = (read_text(f"{place}/{file}") or "").strip()
            if text.isdigit():
                found[key] = found.get(key, 0.0) + int(text) * size
    return found


def counters(cores: list[int], root: str = "") -> dict[str, float]:
    """All counters now, since the node started. root: a folder in place of /, for tests."""
    own = set(cores)
    found: dict[str, float] = {}
    for part in (_stat, _interrupts, _run_queue, _throttling):
        try:
            found |= part(root, own)
        except (ValueError, IndexError):  # a kernel that writes otherwise
            pass
    for of_node in (_memory, _network):
        try:
            found |= of_node(root)
        except (ValueError, IndexError):
            pass
    return found


def since(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """The increase of each counter; one that fell was set back, and is left out."""
    return {name: after[name] - before[name] for name in before if after.get(name, -1.0) >= before[name]}


class System:
    """The counters of the node around a task. Its time is longer than the task's where the task
    waits to begin.
    """

    def __init__(self, cores: list[int]) -> None:
        self._cores = cores
        self._begin = time.monotonic()
        self._before = counters(cores)

    def end(self) -> dict[str, float] | None:
        """Their increase, and the seconds of it; None where the node has no counters."""
        seconds = time.monotonic() - self._begin
        found = since(self._before, counters(self._cores))
        return {"seconds": seconds, **found} if found else None
