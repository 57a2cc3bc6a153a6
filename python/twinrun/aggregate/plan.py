"""Who would aggregate for whom on a machine, and what that would take: placements on a model, without MPI.

plan = twinrun.plan_aggregation("torus:4x4x4x4x2", ranks_per_node=16, aggregators=64, bytes_per_rank=950_000)
plan.placement("cost").aggregators[0].rank
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .. import _core
from ..arguments import checked_path, utf8
from ..errors import MissingFile, TwinrunError

__all__ = [
    "LAYOUTS",
    "PARTICLE",
    "PLACEMENTS",
    "AggregationPlan",
    "Aggregator",
    "Partition",
    "Place",
    "PlacementPlan",
    "plan_aggregation",
    "read_volumes",
]

PLACEMENTS = ("cost", "rank", "bridge", "random", "worst")
LAYOUTS = ("records", "blocks", "variables", "interleaved")
PARTICLE = (4, 4, 4, 4, 4, 4, 4, 8, 2)
"""Bytes of the nine variables of HACC's particles: xx yy zz vx vy vz phi, pid, mask."""

_MOST_RANKS = 1 << 26
_MOST_BYTES = 1 << 62


@dataclass(frozen=True)
class Partition:
    """Consecutive bytes of a file, which one aggregator gathers and writes. ranks, nodes: how many bring data."""

    file: int
    number: int  # in the file
    offset: int
    bytes: int
    ranks: int
    first_rank: int
    last_rank: int
    nodes: int
    gateway: int


@dataclass(frozen=True)
class Aggregator:
    """The rank that was elected, and its cost in seconds: C1 to gather, C2 to write."""

    rank: int
    node: int
    gather: float
    write: float


@dataclass(frozen=True)
class PlacementPlan:
    """The aggregators of all partitions, and what they take, in seconds.

    sum: of C1 + C2 of all partitions, which is what the election minimizes, one by one. most: the largest C1 + C2. seconds: all
    partitions at once, where those that share a node or a gateway share its bandwidth.
    """

    placement: str
    sum: float
    most: float
    seconds: float
    aggregators: list[Aggregator]


class Place(NamedTuple):
    """Where in a host, by hwloc's numbers; None: no one part of that level has it all."""

    host: int
    package: int | None
    numa: int | None
    cache: int | None  # L3
    core: int | None


@dataclass(frozen=True)
class AggregationPlan:
    """A plan: partitions of the files, and for each placement their aggregators."""

    topology: str
    nodes: int
    gateways: int
    ranks: int
    ranks_per_node: int
    files: int
    bytes: int
    layout: str
    partitions: list[Partition]
    placements: list[PlacementPlan]
    partition_of_node: list[int | None]  # the one with the most of its bytes
    gateway_of: list[int]  # by node
    bridges: list[int]  # nodes
    places: list[Place]  # by node, where nodes are cores (hwloc); else empty

    def placement(self, name: str) -> PlacementPlan:
        """The plan of this placement."""
        for one in self.placements:
            if one.placement == name:
                return one
        raise TwinrunError(
            f"the plan has no placement {name!r}", fix=f"ask for it in placements=, of {PLACEMENTS}"
        )


def read_volumes(path: str | os.PathLike[str]) -> list[int]:
    """Bytes by rank from a file: a JSON array (or {"volumes": [...]}), or CSV with a rank and its bytes, or just bytes, a line."""
    path = checked_path(path)
    try:
        with open(path, encoding="utf-8", newline="") as file:
            text = file.read()
    except FileNotFoundError:
        raise MissingFile("no such file", where=path, fix="check the path") from None
    except (OSError, UnicodeDecodeError) as e:
        raise TwinrunError(f"cannot be read: {e}", where=path) from None
    if text.lstrip()[:1] in ("[", "{"):
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as e:
            raise TwinrunError(f"is not JSON: {e}", where=path) from None
        if isinstance(values, dict):
            values = values.get("volumes")
        if not isinstance(values, list) or not all(type(v) is int for v in values):
            raise TwinrunError('must be an array of whole numbers, or {"volumes": [...]}', where=path)
        return _checked(values, path)
    rows = [row for row in csv.reader(text.splitlines()) if row and not row[0].lstrip().startswith("#")]
    if rows and not rows[0][-1].strip().lstrip("-").isdigit():
        rows = rows[1:]  # a header
    found: dict[int, int] = {}
    for number, row in enumerate(rows):
        try:
            cells = [int(cell) for cell in row]
        except ValueError:
            raise TwinrunError(f"line {','.join(row)!r} is not a rank and its bytes", where=path) from None
        if len(cells) not in (1, 2):
            raise TwinrunError(f"line {','.join(row)!r} is not a rank and its bytes", where=path)
        rank = cells[0] if len(cells) == 2 else number
        if rank in found:
            raise TwinrunError(f"rank {rank} is there twice", where=path)
        found[rank] = cells[-1]
    if set(found) != set(range(len(found))):
        raise TwinrunError("ranks must be 0, 1, … without gaps", where=path)
    return _checked([found[rank] for rank in range(len(found))], path)


def _checked(volumes: Sequence[int], where: str | None = None) -> list[int]:
    if not volumes or len(volumes) > _MOST_RANKS:
        raise TwinrunError(f"volumes of 1 to {_MOST_RANKS} ranks are needed, not {len(volumes)}", where=where)
    if not all(0 <= v < _MOST_BYTES for v in volumes):
        raise TwinrunError("volumes must not be negative, nor 2^62 bytes or more", where=where)
    return [int(v) for v in volumes]


def _model(words: str) -> tuple[str, float, int]:
    """(kind, spread, every) of a model of volumes in words."""
    name, _, rest = words.partition(":")
    if name == "skewed" and not rest:
        name, rest = "heavy", "64,256"
    numbers = rest.split(",") if rest else []
    defaults = {"uniform": [], "linear": [], "lognormal": [1.0], "heavy": [64.0, 256.0]}
    if name not in defaults or len(numbers) > len(defaults[name]):
        raise TwinrunError(
            f"{words!r} are no volumes",
            fix="write uniform, skewed, linear, lognormal:SIGMA, heavy:FACTOR,EVERY, or a .json or .csv file",
        )
    values = list(defaults[name])
    for k, number in enumerate(numbers):
        try:
            values[k] = float(number)
        except ValueError:
            raise TwinrunError(f"volumes {words!r}: {number!r} is no number") from None
    spread = values[0] if values else 1.0
    every = values[1] if len(values) > 1 else 1.0
    if not (every.is_integer() and 1 <= every < 1 << 32):
        raise TwinrunError(f"volumes {words!r}: one rank in how many? A whole number from 1")
    return name, spread, int(every)


def _within(name: str, value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        raise TwinrunError(f"{name} must be {least} to {most}, not {value}")
    return int(value)


def plan_aggregation(
    topology: str,
    *,
    ranks_per_node: int = 1,
    aggregators: int | None = None,
    ranks: int | None = None,
    nodes: int = 0,
    bytes_per_rank: int = 1 << 20,
    volumes: str | Sequence[int] = "uniform",
    layout: str = "records",
    item_bytes: Sequence[int] | None = None,
    nodes_per_file: int = 0,
    block: int = 4096,
    placements: Iterable[str] = PLACEMENTS,
    seed: int = 1,
) -> AggregationPlan:
    """Plans who aggregates for whom.

    topology: "torus:4x4x4x4x2", "dragonfly:9x16x4", "fattree:16,3", "flat:64", "file:PATH", "hwloc" (docs/aggregate.md); nodes: of
    "flat". hwloc's nodes are cores.
    ranks: all that the nodes hold if None; rank r is on node r // ranks_per_node. volumes: bytes of each rank, or a model of
    them with the mean bytes_per_rank: "uniform", "skewed" (one rank in 256 has 64 times the others'), "linear", "lognormal:1.5",
    "heavy:FACTOR,EVERY", or a .json or .csv file. layout: how the file orders variables, whose items have item_bytes each (default:
    one byte; HACC's: PARTICLE). aggregators: a file, one in 16 of its nodes if None; nodes_per_file: 0 for one file. block: partitions begin at its multiples.

    Raises TwinrunError for what makes no plan.
    """
    topology = utf8(topology, "its description", "topology")
    items = [_within("item_bytes", int(b), 0, 1 << 40) for b in (item_bytes or (1,))]
    unit = max(1, sum(items))
    ranks_per_node = _within("ranks_per_node", ranks_per_node, 1, 1 << 20)
    nodes = _within("nodes", nodes, 0, 1 << 20)
    _within("bytes_per_rank", bytes_per_rank, 0, _MOST_BYTES)
    _within("seed", seed, 0, (1 << 64) - 1)
    nodes_per_file = _within("nodes_per_file", nodes_per_file, 0, 1 << 20)
    machine_nodes = _core.topology_nodes(topology, nodes)
    room = machine_nodes * ranks_per_node
    if aggregators is None:
        aggregators = max(1, (nodes_per_file or machine_nodes) // 16)
    if ranks is not None:
        _within("ranks", ranks, 1, room)
    if isinstance(volumes, str) and volumes.lower().endswith((".json", ".csv")):
        volumes = read_volumes(volumes)
    if isinstance(volumes, str):
        kind, spread, every = _model(volumes)
        count = _within("ranks", room if ranks is None else ranks, 1, _MOST_RANKS)
        bytes_of = _core.make_volumes(kind, count, bytes_per_rank, unit, spread, every, seed)
    else:
        bytes_of = _checked(list(volumes))
        if ranks is not None and ranks != len(bytes_of):
            raise TwinrunError(f"volumes of {len(bytes_of)} ranks, and there are {ranks}")
    d = _core.plan_aggregation(
        topology,
        nodes,
        bytes_of,
        ranks_per_node,
        _within("aggregators", aggregators, 1, 1 << 20),
        nodes_per_file,
        layout,
        items,
        _within("block", block, 1, 1 << 40),
        list(placements),
        seed,
    )
    machine = d["topology"]
    return AggregationPlan(
        topology=machine["name"],
        nodes=machine["nodes"],
        gateways=machine["gateways"],
        ranks=d["ranks"],
        ranks_per_node=ranks_per_node,
        files=d["files"],
        bytes=d["bytes"],
        layout=layout,
        partitions=[Partition(**part) for part in d["partitions"]],
        placements=[
            PlacementPlan(**{**one, "aggregators": [Aggregator(*a) for a in one["aggregators"]]})
            for one in d["placements"]
        ],
        partition_of_node=d["partition_of_node"],
        gateway_of=machine["gateway_of"],
        bridges=machine["bridges"],
        places=[Place(*place) for place in machine["places"]],
    )
