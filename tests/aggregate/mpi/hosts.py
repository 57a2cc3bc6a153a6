#!/usr/bin/env python3
"""Aggregation on several hosts, by haccio, which says what it saw: nodes, aggregators, files; and all bytes are those of POSIX.

usage: hosts.py --program HACCIO [--mpiexec "MPIEXEC FLAGS"] SCENARIO

faked: hosts with names of their own, by MPICH's launcher or Open MPI 4's. cliques: MPICH takes this host for several.
slurm: a Slurm of our own (tests/support/slurm.py), whose tree of switches is the topology. Exit status 0 if all is as it should
be; 77 where there can be no such hosts, and why; else what is not, on standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
from slurm import Slurm

from mpi import SKIPPED, FakedHosts, Job, Skipped, expect, is_hydra

LIMIT = 900
NODES, RANKS = 4, 8


class Tests:
    """Scenarios are the public methods."""

    def __init__(self, program: str, mpiexec: str, folder: Path):
        self.program, self.mpiexec, self.folder = program, shlex.split(mpiexec), folder

    def _haccio(
        self, launch: list[str], *arguments: object, environment: dict[str, str] | None = None
    ) -> list[dict]:
        results = self.folder / "results"
        command = [*launch, self.program, *map(str, arguments), "--json", str(results)]
        job = Job([*command, str(self.folder / "data")], environment, LIMIT)
        expect(job.status == 0, "status", job.status, job)
        return [json.loads(line) for line in results.read_text().splitlines()]

    def _reports(self, lines: list[dict]) -> list[dict]:
        """What twinrun_aggregate said."""
        found = []

        def look(value: object) -> None:
            if isinstance(value, dict):
                if "declared" in value and "nodes" in value:
                    found.append(value)
                else:
                    for inner in value.values():
                        look(inner)

        for line in lines:
            look(line)
        expect(bool(found), "no report in", lines)
        return found

    def _same_bytes(self, files: int) -> None:
        every = {method: sorted(self.folder.glob(f"data-{method}*")) for method in ("posix", "aggregate")}
        posix, aggregate = ([f for f in found if f.suffix != ".twr-index"] for found in every.values())
        expect(
            len(posix) == files and len(aggregate) == files, posix, aggregate, "instead of", files, "files"
        )
        for ours, theirs in zip(aggregate, posix, strict=True):
            expect(ours.read_bytes() == theirs.read_bytes(), ours, "differs from", theirs)
        for file in (*every["posix"], *every["aggregate"]):
            file.unlink()

    def _check(
        self,
        launch: list[str],
        names: list[str] | None = None,
        topology: str = "node",
        environment: dict[str, str] | None = None,
    ) -> list[dict]:
        common = ("--operations", "write,read", "--verify", "--keep", "--topology", topology, "--methods")
        reports = []
        for layout in ("blocks", "records", "variables"):
            lines = self._haccio(
                launch,
                *common,
                *("aggregate,posix-packed", "--layout", layout, "--particles", 1000),
                *("--aggregators", NODES, "--block-bytes", 512, "--buffer-bytes", 8192),
                environment=environment,
            )
            (run,) = (line for line in lines if line["kind"] == "run")
            if names is not None:
                expect(run["hosts"] == dict.fromkeys(names, RANKS // NODES), run["hosts"])
            (report,) = self._reports(lines)
            expect(report["nodes"] == NODES and report["ranks"] == RANKS, report)
            partitions = report["declared"]["partitions"]
            expect(len(partitions) == NODES, partitions)
            if (
                layout != "variables"
            ):  # rank after rank: each node aggregates what it has, and nothing crosses the network
                expect(
                    [p["node"] for p in partitions] == list(range(NODES)), "aggregators on nodes", partitions
                )
            self._same_bytes(1)
            reports.append(report)
        lines = self._haccio(
            launch,
            *common,
            *("aggregate,posix", "--layout", "records", "--particles", "700,0,300"),
            *("--files", "node"),
            environment=environment,
        )
        expect(all(report["files"] == NODES for report in self._reports(lines)), lines)
        self._same_bytes(NODES)
        return reports

    def faked(self) -> None:
        """Four hosts, each with a name: MPI's shared memory ends where a host does."""
        names = [f"host{i}" for i in range(NODES)]
        hosts = FakedHosts(self.mpiexec, names, self.folder)
        self._check(hosts.launch(RANKS), names)

    def cliques(self) -> None:
        """Four nodes of MPICH's imagination."""
        if not is_hydra(self.mpiexec):
            raise Skipped("only MPICH takes one host for several")
        launch = [*self.mpiexec, "-n", str(RANKS)]
        # Ranks in turns belong to nodes: 0, 1, ... and again, or in blocks; both are four nodes.
        environment = {"MPIR_CVAR_NUM_CLIQUES": str(NODES)}
        lines = self._haccio(
            launch,
            *("--methods", "aggregate,posix-packed", "--particles", 1000, "--operations", "write,read"),
            *("--verify", "--keep", "--topology", "node", "--aggregators", NODES, "--block-bytes", 512),
            environment=environment,
        )
        (report,) = self._reports(lines)
        expect(report["nodes"] == NODES, report)
        expect(len({p["node"] for p in report["declared"]["partitions"]}) > 1, report)
        self._same_bytes(1)

    def slurm(self) -> None:
        """srun starts the ranks, and the tree of switches is read from its variable, and from scontrol: both give the costs that
        two switches below one have, and those of a flat network are others."""
        with Slurm.start(self.folder / "slurm", NODES) as slurm:
            said = slurm.said("scontrol", "show", "topology")
            expect("SwitchName=s0" in said and "SwitchName=top" in said, said, slurm.logs())
            launch = ["srun", "--mpi=pmi2", "--nodes", str(NODES), "--ntasks", str(RANKS), "--overcommit"]
            launch += ["--distribution=block", "--chdir", str(self.folder)]
            try:
                by_variable = self._check(launch, slurm.names, "slurm", slurm.environment)
                by_scontrol = self._check(
                    [*launch, "env", "-u", "SLURM_TOPOLOGY_ADDR", "-u", "SLURM_TOPOLOGY_ADDR_PATTERN"],
                    slurm.names,
                    "slurm",
                    slurm.environment,
                )
                flat = self._check(launch, slurm.names, "flat", slurm.environment)
            except AssertionError as problem:
                raise AssertionError(f"{problem}\n{slurm.logs()}") from None
            costs = [
                [[p["cost"] for p in report["declared"]["partitions"]] for report in reports]
                for reports in (by_variable, by_scontrol, flat)
            ]
            expect(costs[0] == costs[1], "SLURM_TOPOLOGY_ADDR and scontrol give other costs:", costs)
            expect(costs[0] != costs[2], "costs as on a flat network:", costs)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--mpiexec", default="")
    parser.add_argument("scenario", choices=["faked", "cliques", "slurm"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="twinrun-", dir=os.environ.get("TWINRUN_TEST_FOLDER")) as name:
        folder = Path(name)
        (folder / "slurm").mkdir()
        try:
            getattr(Tests(given.program, given.mpiexec, folder), given.scenario)()
        except Skipped as why:
            print(f"skipped: {why}")
            return SKIPPED
        except AssertionError as problem:
            print(f"{Path(sys.argv[0]).name}: {problem}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
