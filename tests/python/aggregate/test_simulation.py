"""The flows of simulated machines: they are the library's plans, no byte is lost, and no time is below its bound."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
from fluid import Flows, Part, Window, read_flows, seconds

import twinrun

# At the end: tests' support has a module that is called as one of bench is.
sys.path.append(str(Path(__file__).resolve().parents[3] / "bench"))

import simulation

TORUS, DRAGONFLY, TREE = "torus:2x2x4x2,pset=16", "dragonfly:3x4x2", "fattree:4x2x3,gateways=2"
MACHINES = (TORUS, DRAGONFLY, TREE)
SMALL = {"particles": 500, "ranks_per_node": 2, "aggregators": 4, "block": 4000, "buffer": 16000}


def flows(topology: str, settings: dict | None = None, **job: object) -> Flows:
    return read_flows(simulation.flows(topology, settings or {}, [SMALL | job]))


def moved(found: Flows, what: str) -> int:
    return sum(count for part in found.parts for w in part.windows for _, count in getattr(w, what))


@pytest.mark.parametrize("topology", MACHINES)
@pytest.mark.parametrize("placement", ["cost", "rank", "bridge", "random", "worst"])
@pytest.mark.parametrize("layout", ["records", "variables"])
def test_aggregators_are_those_of_the_plan(topology: str, placement: str, layout: str) -> None:
    found = flows(topology, placement=placement, layout=layout, seed=3, gateway="partition")
    plan = twinrun.plan_aggregation(
        topology,
        ranks_per_node=2,
        aggregators=4,
        bytes_per_rank=500 * 38,
        layout=layout,
        item_bytes=twinrun.aggregate.plan.PARTICLE,
        placements=[placement],
        block=4000,
        seed=3,
    )
    assert [part.rank for part in found.parts] == [a.rank for a in plan.placements[0].aggregators]
    assert [part.gateway for part in found.parts] == [a.gateway for a in plan.placements[0].aggregators]


@pytest.mark.parametrize("topology", MACHINES)
@pytest.mark.parametrize("layout", ["records", "variables"])
@pytest.mark.parametrize("volumes", ["uniform", "skewed", "lognormal:2"])
def test_every_byte_is_gathered_and_written_once(topology: str, layout: str, volumes: str) -> None:
    found = flows(topology, layout=layout, volumes=volumes)
    assert found.bytes > 0
    assert moved(found, "gather") == moved(found, "write") == found.bytes
    assert moved(found, "read") == 0


def test_calls_over_records_read_and_write_all_nine_times() -> None:
    found = flows(TORUS, method="calls", layout="records")
    assert found.rounds
    assert moved(found, "read") == moved(found, "write") == 9 * found.bytes
    # A node's part of a window is rounded up to bytes.
    pieces = sum(len(w.gather) for part in found.parts for w in part.windows)
    assert found.bytes <= moved(found, "gather") <= found.bytes + pieces


def test_calls_over_variables_read_nothing() -> None:
    found = flows(TORUS, method="calls", layout="variables")
    assert moved(found, "gather") == moved(found, "write") == found.bytes
    assert moved(found, "read") == 0


def test_without_aggregation_nodes_write_their_own() -> None:
    found = flows(TORUS, method="posix", layout="variables")
    assert [part.node for part in found.parts] == list(range(32))
    assert moved(found, "write") == found.bytes and moved(found, "gather") == 0


def test_the_first_nodes_and_every_node() -> None:
    assert [part.node for part in flows(TORUS, placement="first").parts] == [0, 1, 2, 3]
    assert [part.node for part in flows(TORUS, placement="nodes").parts] == list(range(32))


def test_files_have_partitions_of_their_own() -> None:
    found = flows(TORUS, nodes_per_file=16, aggregators=2)
    assert [part.node // 16 for part in found.parts] == [0, 0, 1, 1]
    assert moved(found, "write") == found.bytes


@pytest.mark.parametrize("topology", MACHINES)
@pytest.mark.parametrize("job", [{}, {"method": "calls"}, {"method": "posix"}])
def test_bounds_are_bytes_over_capacity(topology: str, job: dict) -> None:
    found = flows(topology, {"servers": "3,1e9,4096"}, **job)
    load: Counter[int] = Counter()
    for part in found.parts:
        for window in part.windows:
            for route, count in window.read + window.gather + window.write:
                load.update(dict.fromkeys(found.routes[route], count))
    most: dict[str, float] = {}
    for link, count in load.items():
        kind = found.names[link].split(":")[0]
        most[kind] = max(most.get(kind, 0), count / found.capacities[link])
    assert {kind: bound for kind, (bound, _) in found.bounds.items()} == pytest.approx(most)
    assert {"server", "gateway-in"} <= most.keys()


@pytest.mark.parametrize("topology", MACHINES)
def test_no_route_uses_a_link_twice(topology: str) -> None:
    found = flows(topology, layout="variables", placement="first")
    assert found.routes
    assert all(len(set(route)) == len(route) for route in found.routes)


def test_halves_of_a_pset_use_their_bridge_node() -> None:
    found = flows(TORUS, method="posix")
    ends = {part.node: found.names[found.routes[part.windows[0].write[0][0]][-1]] for part in found.parts}
    assert len({ends[node] for node in range(8)}) == 1
    assert len(set(ends.values())) == 4  # two of each Pset
    assert Counter(ends.values()).most_common()[-1][1] == 8


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("torus:2x2", {}, {"particles": 0}), "needs particles"),
        (("torus:2x2", {}, {"placement": "best"}), "placement=best"),
        (("torus:2x2", {"taper": "x"}, {}), "taper=x"),
        (("torus:2x2", {}, {"nodes": "0-4"}), "nodes=0-4"),
        (("torus:2x2", {}, {"ranks": 100}), "more ranks"),
        (("ring:4", {}, {}), "ring:4"),
    ],
)
def test_refusals_name_the_word(words: tuple[str, dict, dict], message: str) -> None:
    topology, settings, job = words
    with pytest.raises(ValueError, match=message):
        simulation.flows(topology, settings, [SMALL | job])


# ---- times -------------------------------------------------------------------------------------------------------------


def tiny(*windows: Window, buffers: int = 2, rounds: bool = False, parts: int = 1) -> Flows:
    """Nodes with a link of 100 bytes a second to the aggregator, and storage behind a link of 50."""
    made = Flows([100.0, 50.0], ["in:0", "out:0"], [[0], [1]])
    made.buffers, made.rounds = buffers, rounds
    made.parts = [Part(k, k, 0, list(windows)) for k in range(parts)]
    return made


def window(gather: int, write: int, number: int = 0) -> Window:
    return Window(number, [], [(0, gather)], [(1, write)])


def written(found: Flows) -> str:
    """The text of flows, for SimGrid's player."""
    lines = ["flows 1", "latency 0"]
    lines += [
        f"link {k} {capacity!r} {name}"
        for k, (capacity, name) in enumerate(zip(found.capacities, found.names, strict=True))
    ]
    lines += [f"route {k} a{k} b{k} " + " ".join(map(str, route)) for k, route in enumerate(found.routes)]
    order = "rounds" if found.rounds else "pipelined"
    lines.append(f"job 0 {found.bytes} 1 0 {found.buffers} {order} {len(found.parts)}")
    for part in found.parts:
        lines.append(f"part 0 {part.rank} {part.node} {part.gateway} {len(part.windows)}")
        for one in part.windows:
            words = [f"window {one.round}"]
            for name in ("read", "gather", "write"):
                words += [name, *(f"{route}:{count}" for route, count in getattr(one, name))]
            lines.append(" ".join(words))
    return "\n".join([*lines, "end", ""])


BY_HAND = [
    (tiny(window(1000, 1000)), 10 + 20),  # one flow is as fast as its link
    (tiny(window(1000, 1000), parts=2), 20 + 40),  # two share it
    (tiny(*[window(1000, 1000)] * 4), 10 + 4 * 20),  # gathered while the one before is written
    (tiny(*[window(1000, 1000)] * 4, buffers=1), 4 * 30),  # one buffer: one after the other
    (tiny(window(1000, 1000, 0), window(1000, 1000, 1), rounds=True, parts=2), 2 * (20 + 40)),
]


@pytest.fixture(scope="module")
def simgrid() -> None:
    """The player, compiled; without SimGrid its tests are skipped."""
    try:
        simulation.player()
    except simulation.Missing as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize(("case", "expected"), BY_HAND)
def test_times_by_hand(case: Flows, expected: float) -> None:
    assert seconds(case) == pytest.approx(expected)


@pytest.mark.parametrize(("case", "expected"), BY_HAND)
@pytest.mark.usefixtures("simgrid")
def test_times_by_hand_in_simgrid(case: Flows, expected: float) -> None:
    (outcome,) = simulation.play(written(case))
    assert outcome.seconds == pytest.approx(expected)


JOBS = [
    {},
    {"layout": "variables", "placement": "random"},
    {"volumes": "skewed", "placement": "worst"},
    {"method": "calls"},
    {"method": "posix", "layout": "variables"},
]


@pytest.mark.parametrize("topology", MACHINES)
@pytest.mark.parametrize("job", JOBS)
def test_no_time_is_below_its_bound(topology: str, job: dict) -> None:
    found = flows(topology, {"servers": "3,1e9,4096"}, **job)
    assert seconds(found) >= max(bound for bound, _ in found.bounds.values()) * (1 - 1e-9)


@pytest.mark.parametrize("topology", MACHINES)
@pytest.mark.parametrize("job", JOBS)
@pytest.mark.usefixtures("simgrid")
def test_simgrid_gives_the_times_of_the_second_player(topology: str, job: dict) -> None:
    text = simulation.flows(topology, {"servers": "3,1e9,4096"}, [SMALL | job])
    latency = next(line for line in text.splitlines() if line.startswith("latency"))
    (outcome,) = simulation.play(text.replace(latency, "latency 0"))
    # SimGrid rounds times to nanoseconds.
    assert outcome.seconds >= outcome.bound - 1e-8
    assert outcome.seconds == pytest.approx(seconds(read_flows(text)), rel=1e-4)


@pytest.mark.usefixtures("simgrid")
def test_bursts_repeat_by_their_seed_and_cost_time() -> None:
    def times(noise: dict) -> float:
        settings = {"servers": "2,1e8,4096", **noise}
        return simulation.play(simulation.flows(TORUS, settings, [SMALL | {"start_ms": 50}]))[0].seconds

    alone, first, again, other = (
        times(noise)
        for noise in (
            {},
            {"noise": "10,1e6,4,1"},
            {"noise": "10,1e6,4,1"},
            {"noise": "10,1e6,4,2"},
        )
    )
    assert first == again != other
    assert min(first, other) > alone


@pytest.mark.usefixtures("simgrid")
def test_two_jobs_share_a_gateway() -> None:
    one, two = SMALL | {"nodes": "0-3+8-11"}, SMALL | {"nodes": "4-7+12-15"}
    (alone,) = simulation.play(simulation.flows(TORUS, {}, [one]))
    both = simulation.play(simulation.flows(TORUS, {}, [one, two]))
    assert both[0].seconds > 1.5 * alone.seconds and both[1].seconds > 1.5 * alone.seconds


@pytest.mark.usefixtures("simgrid")
def test_a_cut_text_is_an_error() -> None:
    text = simulation.flows(TORUS, {}, [SMALL])
    with pytest.raises(RuntimeError, match="cut"):
        simulation.play(text.removesuffix("end\n"))
