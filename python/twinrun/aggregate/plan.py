"""Which ranks would aggregate for which on a machine, and the predicted time: placements on a model, without
MPI.

plan = twinrun.plan_aggregation("torus:4x4x4x4x2", ranks_per_node=16, aggregators=64, bytes_per_rank=950_000)
plan.placement("cost").aggregators[0].rank
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

from .. import _core
from ..arguments import checked_path, names_given, utf8
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
    """Consecutive bytes of a file, which one aggregator gathers and writes.

    >>> twinrun.plan_aggregation("flat:4", ranks_per_node=2, aggregators=2).partitions[1].first_rank
    4

    Attributes
    ----------
    file : int
        The number of the file.
    number : int
        The number of the partition in its file.
    offset, bytes : int
        Where it begins in the file, and how long it is, in bytes.
    ranks : int
        Number of ranks with data in it.
    first_rank, last_rank : int
        The first and the last of these ranks.
    nodes : int
        Number of nodes with data in it.
    gateway : int
        The gateway of the nodes with most of the data. That of an aggregator may be another one.
    """

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
    """The rank that was elected for a partition, and its cost.

    Attributes
    ----------
    rank, node : int
        The rank, and the node that it is on.
    gateway : int
        The gateway that the partition's data leave by. Placement `cost` gives equal gateways equal shares.
    gather : float
        C1: time to gather, in seconds.
    write : float
        C2: time to write, in seconds.

    Notes
    -----
    C1 and C2: Tessier and Vishwanath, section III-B (docs/reference/aggregate.md, "Placements").
    """

    rank: int
    node: int
    gateway: int
    gather: float
    write: float


@dataclass(frozen=True)
class PlacementPlan:
    """The aggregators of all partitions, and the predicted time.

    >>> plan = twinrun.plan_aggregation("flat:4", ranks_per_node=2, aggregators=2)
    >>> [aggregator.rank for aggregator in plan.placement("cost").aggregators]
    [0, 4]

    Attributes
    ----------
    placement : str
        How aggregators were elected.
    sum : float
        C1 + C2 of all partitions, in seconds. Elections minimize it, one by one.
    most : float
        The largest C1 + C2, in seconds.
    seconds : float
        Time of all partitions at once, in seconds; those that share a node or a gateway share its bandwidth.
    aggregators : list of Aggregator
        One for each partition.
    """

    placement: str
    sum: float
    most: float
    seconds: float
    aggregators: list[Aggregator]


class Place(NamedTuple):
    """Where a node lies in a host, by hwloc's numbers.

    Attributes
    ----------
    host : int
        The host.
    package, numa, cache, core : int or None
        Socket, NUMA node, L3 cache and core. None where no single part of that level holds all of it.
    """

    host: int
    package: int | None
    numa: int | None
    cache: int | None  # L3
    core: int | None


@dataclass(frozen=True)
class AggregationPlan:
    """A plan: the partitions of the files, and the aggregators that each placement elects.

    >>> plan = twinrun.plan_aggregation("flat:4", ranks_per_node=2, aggregators=2)
    >>> plan.ranks, plan.bytes, len(plan.partitions)
    (8, 8388608, 2)

    Attributes
    ----------
    topology : str
        The name of the machine.
    nodes, gateways, ranks, ranks_per_node : int
        How many it has, and how many take part.
    files : int
        How many files are written.
    bytes : int
        Bytes of all files.
    layout : str
        How a file orders its variables.
    partitions : list of Partition
        By file, then by offset.
    placements : list of PlacementPlan
        In the order in which they were asked for.
    partition_of_node : list of int or None
        By node: the partition with the most of its bytes; None if it has no data.
    gateway_of : list of int
        By node: its gateway.
    bridges : list of int
        The nodes that are linked to a gateway.
    places : list of Place
        By node, where nodes are cores (hwloc); otherwise empty.
    """

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
    places: list[Place]  # by node, where nodes are cores (hwloc); otherwise empty

    def placement(self, name: str) -> PlacementPlan:
        """The plan of one placement.

        Parameters
        ----------
        name : {'cost', 'rank', 'bridge', 'random', 'worst'}
            The placement.

        Returns
        -------
        PlacementPlan
            Its aggregators.

        Raises
        ------
        TwinrunError
            The plan was made without this placement.
        """
        for one in self.placements:
            if one.placement == name:
                return one
        raise TwinrunError(
            f"the plan has no placement {name!r}", fix=f"ask for it in placements=, of {PLACEMENTS}"
        )


def read_volumes(path: str | os.PathLike[str]) -> list[int]:
    """Bytes by rank from a file: a JSON array (or {"volumes": [...]}), or CSV with a rank and its bytes, or
    just bytes, a line.
    """
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
            raise TwinrunError(f"volumes {words!r}: {number!r} is not a number") from None
    spread = values[0] if values else 1.0
    every = values[1] if len(values) > 1 else 1.0
    if not (every.is_integer() and 1 <= every < 1 << 32):
        raise TwinrunError(
            f"volumes {words!r}: the last number (one rank in how many) must be whole and at least 1"
        )
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
    """Plans which ranks aggregate for which on a machine, and predicts the time; without MPI.

    >>> plan = twinrun.plan_aggregation("torus:4x4x4x4x2", ranks_per_node=16, aggregators=64)
    >>> plan.nodes, plan.ranks, len(plan.partitions)
    (512, 8192, 64)

    Parameters
    ----------
    topology : str
        "torus:4x4x4x4x2", "dragonfly:9x16x4", "fattree:16,3", "flat:64", "file:PATH" or "hwloc"
        (docs/reference/aggregate.md). The nodes of hwloc are cores.
    ranks_per_node : int, default 1
        Rank r is on node r // ranks_per_node.
    aggregators : int, default None
        Aggregators of a file; None for one in 16 of its nodes.
    ranks : int, default None
        How many ranks; None for all that the nodes hold.
    nodes : int, default 0
        Nodes of "flat", where its text has no number.
    bytes_per_rank : int, default 1 MiB
        The mean number of bytes of a rank.
    volumes : str or sequence of int, default 'uniform'
        Bytes of each rank; or a model of them with the mean `bytes_per_rank`: "uniform", "skewed" (one rank
        in 256 has 64 times the others'), "linear", "lognormal:1.5", "heavy:FACTOR,EVERY"; or a .json or .csv
        file.
    layout : {'records', 'blocks', 'variables', 'interleaved'}
        How the file orders variables.
    item_bytes : sequence of int, default None
        Bytes of an item of each variable; None for one variable of single bytes.
        `twinrun.aggregate.plan.PARTICLE` has those of HACC.
    nodes_per_file : int, default 0
        Nodes that share a file; 0 for one file.
    block : int, default 4096
        Partitions begin at multiples of this many bytes.
    placements : str or iterable of str, default all
        The placements to plan: 'cost', 'rank', 'bridge', 'random', 'worst'.
    seed : int, default 1
        For 'random', and for random volumes.

    Returns
    -------
    AggregationPlan
        Partitions, and for each placement the aggregators with their costs.

    Raises
    ------
    TwinrunError
        A parameter has no meaning, or the parameters make no plan.
    MissingFile
        A file of volumes, or of a topology, does not exist.

    Notes
    -----
    Costs are those of Tessier and Vishwanath, 2017, section III-B. docs/reference/aggregate.md says how the
    times are predicted.
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
    made = _core.plan_aggregation(
        topology,
        nodes,
        bytes_of,
        ranks_per_node,
        _within("aggregators", aggregators, 1, 1 << 20),
        nodes_per_file,
        layout,
        items,
        _within("block", block, 1, 1 << 40),
        names_given(placements, "placements"),
        seed,
    )
    return _plan_of(made, ranks_per_node, layout)


def _plan_of(made: _core.AggregationPlan, ranks_per_node: int, layout: str) -> AggregationPlan:
    """The core's plan in the words of this module."""
    machine = made.topology
    return AggregationPlan(
        topology=machine.name,
        nodes=machine.nodes,
        gateways=machine.gateways,
        ranks=made.ranks,
        ranks_per_node=ranks_per_node,
        files=made.files,
        bytes=made.bytes,
        layout=layout,
        partitions=[
            Partition(**{part.name: getattr(one, part.name) for part in fields(Partition)})
            for one in made.partitions
        ],
        placements=[
            PlacementPlan(
                one.placement,
                one.sum,
                one.most,
                one.seconds,
                [Aggregator(a.rank, a.node, a.gateway, a.gather, a.write) for a in one.aggregators],
            )
            for one in made.placements
        ],
        partition_of_node=made.partition_of_node,
        gateway_of=machine.gateway_of,
        bridges=machine.bridges,
        places=[Place(p.host, p.package, p.numa, p.cache, p.core) for p in machine.places],
    )
