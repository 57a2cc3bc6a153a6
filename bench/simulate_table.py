"""The figures of the paper that need a machine, simulated: a Blue Gene/Q, a dragonfly and a fat tree, in SimGrid.

    make build                                                      # builds build/release/bin/simulate_flows
    tools/unpack_packages.sh build/simgrid libsimgrid-dev           # SimGrid of Debian; nothing is installed
    python bench/simulate_table.py [--only figures,machines] [--known]

It prints tables of Markdown. What was simulated already is taken from build/simulate/journal.jsonl; remove it to begin anew. It takes
ten minutes of a core. bench/simulate/README.md says what is modelled, and what is not.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import twinrun
from twinrun.aggregate.plan import PARTICLE

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import docs_benchmarks  # noqa: E402
from simulation import PLAYER, JobOutcome, Journal, Missing  # noqa: E402
from table import markdown, number  # noqa: E402

MIRA = "torus:4x4x4x8x2"  # 1024 nodes, 8 Psets
PSET = "torus:2x2x4x4x2"  # 128 nodes
# Bytes a second of a link to storage, as the library's models have it (src/aggregate/topology/models.cpp).
STORAGE = {"torus": 1.8e9, "dragonfly": 5.25e9, "fat tree": 12.5e9}
SIZES = (5_000, 25_000, 100_000)  # particles of a rank
# mira-fs0: 16 storage arrays, 240 GB/s together by IOR (ALCF's page on its storage).
ARRAYS = {"servers": "16,15e9"}
# Other programs of the machine: on each array a burst every 10 s, of 60 GB, by 64 clients. An assumption.
BURSTS = "10000,60e9,64"
WAYS: dict[str, dict[str, object]] = {
    "C1 + C2": {"placement": "cost"},
    "rank order": {"placement": "rank"},
    "random": {"placement": "random"},
    "one a node": {"placement": "nodes"},
    "ROMIO": {"method": "calls", "placement": "bridge"},
    "POSIX": {"method": "posix"},
}


def stored(machine: str, topology: str, factor: int) -> str:
    """The topology with links to storage that are so many times as fast. The election is told of it too."""
    return topology if factor == 1 else f"{topology},gateway_bandwidth={factor * STORAGE[machine]:g}"


def rate(outcome: JobOutcome) -> str:
    """GB/s."""
    return number(outcome.rate / 1e9)


def heading(title: str, text: str, header: list[str], rows: list[list[str]]) -> str:
    """A table below its title."""
    return "\n\n".join([f"#### {title}", *([text] if text else []), markdown(header, rows), ""])


def figures(journal: Journal) -> str:
    """Figures 4 and 5: by the size of the data."""
    parts = []
    for title, files in (("Figure 4: one file", 0), ("Figure 5: a file a Pset", 128)):
        rows = []
        for layout in ("records", "variables"):
            for name, way in WAYS.items():
                if name == "one a node" and layout == "variables":
                    continue  # a thousand aggregators with ten thousand flows at a time take hours
                cells = []
                for particles in SIZES:
                    job = {
                        "particles": particles,
                        "layout": layout,
                        "nodes_per_file": files,
                        "aggregators": 8 if files else 64,
                        **way,
                    }
                    (found,) = journal.outcome(MIRA, {}, job)
                    cells.append(rate(found))
                rows.append([f"{layout}: {name}", *cells, found.binding])
        header = ["GB/s", *(f"{p // 1000}k" for p in SIZES), "bound by"]
        parts.append(heading(title, "", header, rows))
    return "\n".join(parts)


def sweep(journal: Journal) -> str:
    """By the number of aggregators, and by how fast storage is."""
    rows = []
    for factor in (1, 16):
        for name in ("C1 + C2", "rank order"):
            cells = []
            for aggregators in (1, 2, 4, 8, 16):
                job = {
                    "particles": 25_000,
                    "nodes_per_file": 128,
                    "aggregators": aggregators,
                    **WAYS[name],
                }
                (found,) = journal.outcome(stored("torus", MIRA, factor), {}, job)
                cells.append(rate(found))
            rows.append([f"{factor} times: {name}", *cells])
    return heading(
        "Aggregators a Pset",
        "Rows: how many times faster the links to storage are than Blue Gene/Q's.",
        ["GB/s", "1", "2", "4", "8", "16"],
        rows,
    )


MACHINES: dict[str, dict[int, str]] = {
    "torus": {1_024: "torus:2x2x4x2x2,pset=32", 16_384: MIRA, 100_000: "torus:8x8x8x8x2"},
    "dragonfly": {1_024: "dragonfly:4x4x4", 16_384: "dragonfly:8x16x8", 100_000: "dragonfly:17x96x4"},
    "fat tree": {1_024: "fattree:8x8,gateways=4", 16_384: "fattree:16,3", 100_000: "fattree:32,3"},
}
PLACEMENTS = {
    "C1 + C2": "cost",
    "rank order": "rank",
    "random": "random",
    "first nodes": "first",
    "one a node": "nodes",
}
KINDS: list[tuple[str, dict[str, object]]] = [
    ("records", {"layout": "records"}),
    ("variables", {"layout": "variables"}),
]


def _of_placement(
    journal: Journal, machine: str, topology: str, ranks: int, factor: int, words: dict
) -> float:
    """GB/s."""
    job = {
        "particles": 25_000,
        "ranks": ranks,
        "aggregators": max(1, ranks // 256),
        "gateway": "own" if machine == "torus" else "partition",
        "seed": 1,
        **words,
    }
    return journal.outcome(stored(machine, topology, factor), {}, job)[0].rate / 1e9


def machines(journal: Journal) -> str:
    """By the machine and the number of ranks: as it is, and with storage that is no bottleneck."""
    rows = []
    for machine, sizes in MACHINES.items():
        for ranks, topology in sizes.items():
            for name, words in KINDS if ranks == 16_384 else KINDS[:1]:
                for factor in (1, 16):
                    cells = []
                    for placement in PLACEMENTS.values():
                        # Thousands of aggregators, or of gathering nodes for each, take hours.
                        if placement == "nodes" and (ranks == 100_000 or name == "variables"):
                            cells.append("")
                            continue
                        chosen = words | {"placement": placement}
                        try:
                            found = _of_placement(journal, machine, topology, ranks, factor, chosen)
                        except LookupError:
                            cells.append("")
                        else:
                            cells.append(number(found))
                    storage = "as it is" if factor == 1 else f"{factor} times"
                    if any(cells):
                        rows.append([f"{machine}, {ranks:,} ranks, {name}, storage {storage}", *cells])
    return heading(
        "Placements by machine",
        "Storage: how fast the links to it are. Empty cells were not simulated.",
        ["GB/s", *PLACEMENTS],
        rows,
    )


def spread_of(rates: list[float]) -> tuple[str, str, str]:
    """Mean and standard deviation in GB/s, and the coefficient of variation."""
    mean, deviation = statistics.mean(rates), statistics.stdev(rates)
    return f"{mean:.2f}", f"{deviation:.2f}", f"{100 * deviation / mean:.1f}%"


# Particles of 0.2 to 4 MB a rank, as the paper's other jobs have.
OTHERS = {"0.2": 5_263, "0.5": 13_158, "1": 26_316, "2": 52_632, "4": 105_263}


def _beside(journal: Journal, placement: Mapping[str, object], other: int, seed: int) -> list[JobOutcome]:
    """The job on one half of a Pset, and another job on the other half, which begin together."""
    common = {"aggregators": 8, "start_ms": 60_000, "seed": seed}
    own = {"particles": 52_632, "nodes": "0-31+64-95", **common, **placement}
    settings = ARRAYS | {"noise": f"{BURSTS},{seed}"}
    if other == 0:
        return journal.outcome(PSET, settings, own)
    beside = {"particles": other, "nodes": "32-63+96-127", **common, "placement": "rank"}
    return journal.outcome(PSET, settings, own, beside)


def beside(journal: Journal) -> str:
    """Table II: a job alone on half a Pset, and beside another one."""
    rows = []
    for name in ("C1 + C2", "rank order"):
        alone = [_beside(journal, WAYS[name], 0, seed)[0].rate / 1e9 for seed in range(1, 11)]
        rows.append([f"{name}: alone", *spread_of(alone), "", "", ""])
        everything: list[float] = []
        others: list[float] = []
        for megabytes, particles in OTHERS.items():
            pairs = [_beside(journal, WAYS[name], particles, seed) for seed in range(1, 11)]
            own, other = ([pair[k].rate / 1e9 for pair in pairs] for k in (0, 1))
            everything += own
            others += other
            rows.append([f"{name}: beside {megabytes} MB a rank", *spread_of(own), *spread_of(other)])
        rows.append([f"{name}: beside any of them", *spread_of(everything), *spread_of(others)])
    return heading(
        "Table II: 64 nodes of a Pset, 2 MB a rank",
        "Ten seeds of bursts each.",
        ["", "GB/s", "deviation", "CoV", "the other, GB/s", "deviation", "CoV"],
        rows,
    )


def _times(journal: Journal, particles: int, way: Mapping[str, object]) -> list[float]:
    """Seconds of ten runs of a file a Pset, by seed; fewer, if only known ones count."""
    times = []
    for seed in range(1, 11):
        job = {
            "particles": particles,
            "nodes_per_file": 128,
            "aggregators": 8,
            "start_ms": 60_000,
            "seed": seed,
            **way,
        }
        try:
            (found,) = journal.outcome(MIRA, ARRAYS | {"noise": f"{BURSTS},{seed}"}, job)
        except LookupError:
            continue
        times.append(found.seconds)
    return times


def variability(journal: Journal) -> str:
    """Figure 8: ten runs of a file a Pset, by the size of the data."""
    rows = []
    for particles in SIZES:
        times = _times(journal, particles, WAYS["C1 + C2"])
        mean, deviation = statistics.mean(times), statistics.stdev(times)
        spread = f"{1000 * deviation:.0f}"
        rows.append(
            [
                f"{particles // 1000}k",
                str(len(times)),
                f"{1000 * mean:.0f}",
                spread,
                f"{100 * deviation / mean:.1f}%",
            ]
        )
    return heading(
        "Figure 8: the spread of runs, a file a Pset",
        "C1 + C2, seeds of bursts. Milliseconds.",
        ["particles of a rank", "runs", "mean", "deviation", "CoV"],
        rows,
    )


def paper(journal: Journal) -> str:
    """What the paper says in words, and the same of the simulation."""

    def figure(particles: int, way: str, files: int) -> float:
        job = {
            "particles": particles,
            "layout": "records",
            "nodes_per_file": files,
            "aggregators": 8 if files else 64,
            **WAYS[way],
        }
        return journal.outcome(MIRA, {}, job)[0].rate / 1e9

    def variation(particles: int) -> str:
        times = _times(journal, particles, WAYS["C1 + C2"])
        return f"{100 * statistics.stdev(times) / statistics.mean(times):.1f}%"

    alone = [_beside(journal, WAYS["C1 + C2"], 0, seed)[0].rate / 1e9 for seed in range(1, 11)]
    pairs = [_beside(journal, WAYS["C1 + C2"], p, seed) for p in OTHERS.values() for seed in range(1, 11)]
    together = [own.rate / 1e9 for own, _ in pairs]
    loss = 1 - statistics.mean(together) / statistics.mean(alone)
    rows = [
        [
            "Figure 4, records, 5k: times MPI I/O",
            "15",
            number(figure(5_000, "C1 + C2", 0) / figure(5_000, "ROMIO", 0)),
        ],
        ["Figure 4: the fastest, GB/s", "under 5", number(figure(100_000, "C1 + C2", 0))],
        ["Figure 5: the fastest, GB/s", "20 (90% of 22.4)", number(figure(100_000, "C1 + C2", 128))],
        [
            "Table II: alone, GB/s",
            "2.20, deviation 0.10",
            f"{statistics.mean(alone):.2f}, deviation {statistics.stdev(alone):.2f}",
        ],
        [
            "Table II: beside others, GB/s",
            "1.92, deviation 0.16",
            f"{statistics.mean(together):.2f}, deviation {statistics.stdev(together):.2f}",
        ],
        ["Table II: loss", "13%", f"{100 * loss:.0f}%"],
        ["Figure 8: CoV, 5k", "almost 30%", variation(5_000)],
        ["Figure 8: CoV, 100k", "close to 5%", variation(100_000)],
    ]
    return heading("Beside the paper", "", ["", "Mira, measured", "simulated"], rows)


def predictions(journal: Journal) -> str:
    """What the library predicts for its plans, which knows no link that pairs share but those of nodes and gateways."""
    rows = []
    for machine in MACHINES:
        topology = MACHINES[machine][16_384]
        for layout in ("records", "variables"):
            plan = twinrun.plan_aggregation(
                topology,
                ranks_per_node=16,
                aggregators=64,
                bytes_per_rank=25_000 * 38,
                layout=layout,
                item_bytes=PARTICLE,
                block=8 << 20,
                placements=["cost", "rank", "random"],
            )
            cells = []
            for placement in ("cost", "rank", "random"):
                words = {"layout": layout, "placement": placement}
                simulated = plan.bytes / 1e9 / _of_placement(journal, machine, topology, 16_384, 1, words)
                cells.append(f"{plan.placement(placement).seconds / simulated:.2f}")
            rows.append([f"{machine}, {layout}", *cells])
    return heading(
        "Predicted seconds of the planner, over the simulated ones",
        "16,384 ranks.",
        ["", "C1 + C2", "rank order", "random"],
        rows,
    )


def _measured(line: str, column: int = 1) -> float:
    """MB/s of 16 ranks on one node, MPICH, from docs/benchmark-tables.md."""
    text = (ROOT / "docs/benchmark-tables.md").read_text("utf-8")
    found = docs_benchmarks.tables(text)
    (name,) = (name for name in found if name.startswith("MPICH 5"))
    return found[name][0].value(line, column)


def one_node(journal: Journal) -> str:
    """Where simulation and measurement meet: one node, with the ceilings of the same run as its rates."""
    rows = []
    for layout, simulated_layout in (("blocks", "records"), ("variables", "variables")):
        for particles in (5, 25, 100):
            case = f"{layout}, {particles}k"
            memory, storage = (_measured(f"{case}: ceiling-{name}") * 1e6 for name in ("copy", "write"))
            # Two cores write at a time.
            topology = f"flat:1,memory={memory:g},gateway_bandwidth={2 * storage:g}"
            job = {"particles": particles * 1000, "layout": simulated_layout, "block": 4096}
            (ours,) = journal.outcome(topology, {}, job | {"aggregators": 2})
            (calls,) = journal.outcome(topology, {}, job | {"method": "calls", "placement": "nodes"})
            measured = [_measured(f"{case}: {name}") for name in ("aggregate", "mpiio-two-phase")]
            rows.append(
                [
                    case,
                    number(ours.rate / 1e6),
                    number(measured[0]),
                    f"{measured[0] / (ours.rate / 1e6):.2f}",
                    number(ours.rate / calls.rate),
                    number(measured[0] / measured[1]),
                ]
            )
    return heading(
        "One node: 16 ranks, simulated and measured",
        "",
        [
            "",
            "simulated, MB/s",
            "measured, MB/s",
            "measured / simulated",
            "times ROMIO, simulated",
            "times ROMIO, measured",
        ],
        rows,
    )


SECTIONS: dict[str, Callable[[Journal], str]] = {
    "figures": figures,
    "sweep": sweep,
    "machines": machines,
    "beside": beside,
    "variability": variability,
    "paper": paper,
    "predictions": predictions,
    "one_node": one_node,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(SECTIONS), help="some of: " + ", ".join(SECTIONS))
    parser.add_argument("--journal", type=Path, default=PLAYER.parent / "journal.jsonl")
    parser.add_argument(
        "--known", action="store_true", help="only what the journal has; cells may stay empty"
    )
    given = parser.parse_args()
    chosen = given.only.split(",")
    if unknown := [name for name in chosen if name not in SECTIONS]:
        parser.error(f"--only {unknown[0]}: there are {', '.join(SECTIONS)}")
    given.journal.parent.mkdir(parents=True, exist_ok=True)
    journal = Journal(given.journal, given.known)
    try:
        for name in chosen:
            print(SECTIONS[name](journal), flush=True)
    except Missing as missing:
        print(f"simulate_table.py: {missing}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
