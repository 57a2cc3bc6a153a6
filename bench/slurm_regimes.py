"""Fewer, as many, and more identical tasks than slots in a Slurm of many nodes, which are faked on this host.

python bench/slurm_regimes.py [--nodes 256] [--tasks 128,256,384] [--blocks 2] [--seconds 0.5] [--keep FOLDER]

A study of replicas runs in one allocation of all nodes, a slot a node. Each task says on which node it is, and sleeps. Each
row of the table is of the workloads of one size. It ends with 1 if a task failed, ran elsewhere than its line says, began
before its moment, or shared its slot with another.

nodes: that had a task, in each workload; most on one: tasks that one node had, one after another; placement: nodes that the
same replicas had in two workloads; begin after: start less the moment that all were given, of tasks that had a slot at once.
Needs root, and Debian's packages of Slurm (installed, or unpacked under MPI_FOLDER).
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import slurm

STUDY = """
name = "regimes"
command = ["/bin/sh", "-c", "uname -n; sleep {seconds:g}"]
repetitions = {blocks}
[factors.replicas]
levels = [{levels}]
[engine]
kind = "srun"
"""


def wrong(lines: list[dict], folder: Path, slots: int) -> list[str]:
    """What is not as it should be in one workload."""
    found = [f"task {x['task']}: {x['status']}" for x in lines if x["status"] != "ok"]
    for x in lines:
        said = (folder / "output" / f"{x['task']}-{x['attempt']}" / "stdout").read_text().strip()
        if said != x["node"]:
            found.append(f"task {x['task']} ran on {said}, and its line says {x['node']}")
    at_once = [x for x in lines if x["released"] is not None]
    if len(at_once) != min(slots, len(lines)) or len({x["released"] for x in at_once}) != 1:
        found.append(f"{len(at_once)} tasks of {len(lines)} were released together")
    found += [f"task {x['task']} began before its moment" for x in at_once if x["start"] < x["released"]]
    by_slot = defaultdict(list)
    for x in sorted(lines, key=lambda x: x["start"]):
        by_slot[x["slot"]].append(x)
    found += [
        f"tasks {a['task']} and {b['task']} shared slot {slot}"
        for slot, own in by_slot.items()
        for a, b in itertools.pairwise(own)
        if a["end"] > b["start"]
    ]
    return found


def row(size: int, workloads: list[list[dict]]) -> str:
    """A row of the table: the workloads of one size."""
    nodes = ", ".join(str(len({x["node"] for x in lines})) for lines in workloads)
    most = max(max(Counter(x["node"] for x in lines).values()) for lines in workloads)
    placed = [{x["replica"]: x["node"] for x in lines} for lines in workloads]
    same = [sum(a[k] == b[k] for k in a) for a, b in itertools.combinations(placed, 2)]
    late = [x["start"] - x["released"] for lines in workloads for x in lines if x["released"] is not None]
    spans = ", ".join(f"{max(x['end'] for x in y) - min(x['start'] for x in y):.1f} s" for y in workloads)
    moved = f"{same[0]} of {size} the same" if same else ""
    begun = f"{1e3 * statistics.median(late):.0f} ms, {1e3 * max(late):.0f} ms"
    return f"| {size} | {nodes} | {most} | {moved} | {begun} | {spans} |"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=256)
    parser.add_argument("--tasks", default="128,256,384")
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--keep", type=Path)
    a = parser.parse_args()
    sizes = [int(x) for x in a.tasks.split(",")]
    with tempfile.TemporaryDirectory(prefix="twinrun-slurm-") as short:
        place = Path(short) / "slurm"
        place.mkdir()
        begun = time.monotonic()
        with slurm.Slurm.start(place, nodes=a.nodes, cpus=1) as running:
            print(f"{a.nodes} nodes are idle after {time.monotonic() - begun:.0f} s", flush=True)
            study = Path(short) / "study.toml"
            study.write_text(
                STUDY.format(seconds=a.seconds, blocks=a.blocks, levels=", ".join(map(str, sizes)))
            )
            folder = a.keep or Path(short) / "study"
            begun = time.monotonic()
            done = subprocess.run(
                ["salloc", "--quiet", f"-N{a.nodes}", "--ntasks-per-node=1", sys.executable, "-m", "twinrun",
                 "ensemble", "run", str(study), "--folder", str(folder), "-q"],
                env=running.environment, capture_output=True, text=True,
            )  # fmt: skip
            print(f"the study took {time.monotonic() - begun:.0f} s, status {done.returncode}", flush=True)
            if done.returncode != 0:
                print(done.stdout, done.stderr, running.logs(), sep="\n", file=sys.stderr)
                return 1
        lines = [json.loads(x) for x in (folder / "tasks.jsonl").read_text().splitlines()]
        print("| tasks | nodes | most on one | placement | begin after: median, last | makespan |")
        print("|---|---|---|---|---|---|")
        bad = []
        for size in sizes:
            own = [x for x in lines if int(x["factors"]["replicas"]) == size]
            workloads = [[x for x in own if x["block"] == block] for block in range(a.blocks)]
            bad += [y for each in workloads for y in wrong(each, folder, a.nodes)]
            print(row(size, workloads), flush=True)
        for x in bad:
            print(x)
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
