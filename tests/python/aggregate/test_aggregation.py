"""Plans of aggregators: twinrun.plan_aggregation, and `twinrun aggregate plan` as a user types it."""

from __future__ import annotations

import builtins
import json
import os
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from commands import check_error, command, load_json, process

import twinrun
from twinrun import TwinrunError
from twinrun.aggregate.plan import LAYOUTS, PARTICLE, PLACEMENTS, read_volumes

TORUS = "torus:4x4x4x4x2"
MACHINES = (TORUS, "dragonfly:9x4x2", "fattree:8,3", "flat:32")


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_plan_carries_every_byte_once(machine: str, layout: str) -> None:
    plan = twinrun.plan_aggregation(
        machine,
        ranks_per_node=4,
        aggregators=7,
        bytes_per_rank=38_000,
        item_bytes=PARTICLE,
        volumes="lognormal:1",
        layout=layout,
    )
    assert plan.ranks == 4 * plan.nodes == 4 * len(plan.gateway_of) == 4 * len(plan.partition_of_node)
    assert [p.placement for p in plan.placements] == list(PLACEMENTS)
    offset = 0
    for part in plan.partitions:
        assert part.offset == offset and part.bytes > 0 and part.offset % 4096 == 0
        assert 0 <= part.first_rank <= part.last_rank < plan.ranks
        assert part.ranks <= part.last_rank - part.first_rank + 1
        assert part.gateway < plan.gateways
        offset += part.bytes
    assert offset == plan.bytes == pytest.approx(38_000 * plan.ranks, rel=0.01)
    for one in plan.placements:
        assert len(one.aggregators) == len(plan.partitions)
        for part, a in zip(plan.partitions, one.aggregators, strict=True):
            assert part.first_rank <= a.rank <= part.last_rank and a.node == a.rank // 4
        totals = [a.gather + a.write for a in one.aggregators]
        assert one.sum == pytest.approx(sum(totals), rel=1e-5)
        assert one.most == pytest.approx(max(totals), rel=1e-5)
        assert one.seconds > 0


HWLOC = "hwloc:synthetic:pack:2 numa:2 l3:2 core:2 pu:1"


def _hwloc_or_skip() -> None:
    try:
        twinrun.plan_aggregation(HWLOC)
    except TwinrunError as e:
        pytest.skip(str(e))


def test_hwlocs_cores_are_planned_and_drawn(tmp_path: Path) -> None:
    """Two hosts of two packages, four NUMA nodes and 16 cores: where each aggregator is, is said."""
    _hwloc_or_skip()
    plan = twinrun.plan_aggregation(f"{HWLOC},hosts=2", aggregators=4, volumes=[1000] * 31 + [90_000])
    assert plan.nodes == plan.ranks == len(plan.places) == 32
    assert [(p.host, p.package, p.numa, p.cache, p.core) for p in plan.places] == [
        (k // 16, k % 16 // 8, k % 16 // 4, k % 16 // 2, k % 16) for k in range(32)
    ]
    last = plan.placement("cost").aggregators[-1]
    assert last.rank == 31
    # What it gathers comes from memory of other packages at the worst, not through the network.
    assert last.gather < 100_000 / 10e9
    picture = tmp_path / "plan.svg"
    done = command(
        "aggregate", "plan", "--topology", f"{HWLOC},hosts=2", "--aggregators", "4", "--svg", picture
    )
    assert done.status == 0 and "core 0 (host 0, package 0, NUMA 0, L3 0)" in done.out
    text = picture.read_text()
    ElementTree.fromstring(text)
    assert all(f"host {h}, package {n // 2}, NUMA {n}" in text for h in range(2) for n in range(4))
    slow = twinrun.plan_aggregation(f"{HWLOC},package=1e6", aggregators=1, bytes_per_rank=10_000)
    fast = twinrun.plan_aggregation(HWLOC, aggregators=1, bytes_per_rank=10_000)
    assert slow.placement("cost").sum > 10 * fast.placement("cost").sum


def test_without_libhwloc_it_says_what_to_install(tmp_path: Path) -> None:
    done = process(
        "aggregate",
        "plan",
        "--topology",
        "hwloc",
        env={**os.environ, "TWINRUN_HWLOC_LIBRARY": str(tmp_path / "none.so")},
    )
    assert done.status != 0 and "install hwloc" in done.err


def test_the_heaviest_rank_keeps_its_data() -> None:
    volumes = [1000] * 64
    volumes[37] = 10_000_000
    plan = twinrun.plan_aggregation("torus:4x4x2", ranks_per_node=2, aggregators=1, volumes=volumes)
    assert plan.placement("cost").aggregators[0].rank == 37
    assert plan.placement("cost").sum < 0.2 * plan.placement("rank").sum
    assert plan.placement("worst").sum >= plan.placement("rank").sum


def test_files_of_groups_of_nodes() -> None:
    plan = twinrun.plan_aggregation(TORUS, ranks_per_node=2, nodes_per_file=128, aggregators=8)
    assert plan.files == 4 and len(plan.partitions) == 32
    for part, a in zip(plan.partitions, plan.placement("cost").aggregators, strict=True):
        assert part.file == a.node // 128 == part.gateway


def test_the_same_seed_is_the_same_plan() -> None:
    def planned(seed: int) -> twinrun.AggregationPlan:
        return twinrun.plan_aggregation("flat:64", aggregators=16, volumes="skewed", seed=seed)

    assert planned(5) == planned(5)
    assert planned(5).placement("random") != planned(6).placement("random")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"topology": "ring:5"}, "torus:AxBxC"),
        ({"topology": "flat"}, "flat:NODES"),
        ({"topology": "file:/nowhere"}, "/nowhere"),
        ({"ranks": 0}, "ranks must be"),
        ({"ranks": 33}, "ranks must be"),
        ({"ranks_per_node": 0}, "ranks_per_node must be"),
        ({"aggregators": 0}, "aggregators must be"),
        ({"block": 0}, "block must be"),
        ({"layout": "soa"}, "'soa' is no layout"),
        ({"placements": ["best"]}, "'best' is not a placement"),
        ({"volumes": "normal"}, "write uniform"),
        ({"volumes": "heavy:1,2,3"}, "write uniform"),
        ({"volumes": "heavy:1,0"}, "must be whole"),
        ({"volumes": "lognormal:nan"}, "spread"),
        ({"volumes": "lognormal:x"}, "'x' is not a number"),
        ({"volumes": []}, "ranks are needed"),
        ({"volumes": [1, -1]}, "negative"),
        ({"volumes": [0, 0]}, "no rank has any bytes"),
        ({"volumes": [1] * 40}, "do not fit"),
        ({"volumes": [1, 2], "ranks": 3}, "there are 3"),
        ({"volumes": [7], "layout": "variables", "item_bytes": [3, 5]}, "no multiple"),
        ({"item_bytes": [0]}, "no bytes"),
        ({"topology": "flat:\udcff"}, "UTF-8"),
    ],
)
def test_what_makes_no_plan_says_why(arguments: dict, said: str) -> None:
    with pytest.raises(TwinrunError, match=said):
        twinrun.plan_aggregation(**{"topology": "flat:32", "aggregators": 4, **arguments})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("v.json", "[5, 0, 7]"),
        ("v.json", '{"volumes": [5, 0, 7]}'),
        ("v.csv", "5\n0\n7\n"),
        ("v.csv", "rank,bytes\n2,7\n0,5\n1,0\n"),
        ("v.csv", "# of step 10\nbytes\n5\n0\n\n7"),
    ],
)
def test_volumes_of_files(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    assert read_volumes(file) == [5, 0, 7]
    assert twinrun.plan_aggregation("flat:3", volumes=str(file)).bytes == 12


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "ranks are needed"),
        ("[1, 2.5]", "whole numbers"),
        ("[true]", "whole numbers"),
        ('{"bytes": [1]}', "whole numbers"),
        ("[1,", "JSON"),
        ("[" * 100_000, "JSON"),
        ("[-5]", "negative"),
        ("0,1\n2,1\n", "gaps"),
        ("0,1\n0,1\n", "twice"),
        ("0,1,2\n", "not a rank and its bytes"),
        ("1\nx\n", "not a rank and its bytes"),
        ("\udcff", "cannot be read"),
    ],
)
def test_damaged_files_of_volumes(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "v.csv"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(TwinrunError, match=said):
        read_volumes(file)


def test_the_command_prints_draws_and_tells_all(tmp_path: Path) -> None:
    report, picture, page = tmp_path / "plan.json", tmp_path / "plan.svg", tmp_path / "plan.html"
    done = command(
        "aggregate", "plan", "--topology", TORUS, "--ranks-per-node", 16, "--aggregators", 32, "--particles", 25_000,
        "--volumes", "skewed", "--placement", "cost,rank,worst", "--json", report, "--svg", picture, "--html", page,
    )  # fmt: skip
    assert (done.status, done.err) == (0, "")
    assert "torus 4x4x4x4x2: 8192 ranks, 16 a node" in done.out
    assert "12 more partitions" in done.out
    rows = {line.split()[0]: line.split() for line in done.out.splitlines() if line.strip()}
    assert {"cost", "rank", "worst"} <= set(rows) and "random" not in rows
    d = load_json(report.read_text())
    assert [p["placement"] for p in d["placements"]] == ["cost", "rank", "worst"]
    assert d["placements"][1]["of_rank_order"] == 1
    assert d["placements"][0]["of_rank_order"] < 1
    assert len(d["partitions"]) == len(d["placements"][0]["aggregators"]) == 32
    assert d["bytes"] % 38 == 0
    # A square a node, a ring an aggregator: all on nodes of their own here.
    root = ElementTree.parse(picture).getroot()
    titles = [e.text or "" for e in root.iter("{http://www.w3.org/2000/svg}title")]
    assert sum(t.startswith("node ") for t in titles) == 512
    assert sum("aggregates partition" in t for t in titles) == len(
        {a["node"] for a in d["placements"][0]["aggregators"]}
    )
    assert page.read_text().count("<svg") == 3


def test_all_rows_and_none(tmp_path: Path) -> None:
    plan = ("aggregate", "plan", "--topology", "flat:32", "--aggregators", 30, "--nodes-per-file", 16)
    done = command(*plan, "--rows", 0)
    assert "more partitions" not in done.out and "file" in done.out
    quiet = command(*plan, "-q")
    assert (quiet.status, quiet.out, quiet.err) == (0, "", "")
    told = command(*plan, "--json", "-")
    assert load_json(told.out)["files"] == 2
    assert "placement" in told.err


def test_names_from_files_do_not_reach_the_picture_as_markup(tmp_path: Path) -> None:
    machine = tmp_path / "m.json"
    machine.write_text(json.dumps({"name": "<script>&\x1b[2J", "nodes": 4}))
    page = tmp_path / "plan.html"
    done = command("aggregate", "plan", "--topology", f"file:{machine}", "--html", page)
    assert done.status == 0 and "\x1b" not in done.out
    assert "<script>" not in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--topology"),
        (("--topology", "torus:4xx"), "torus 'torus:4xx'"),
        (("--topology", "flat:2", "--placement", "cost,best"), "'best' is no placement"),
        (("--topology", "flat:2", "--particles", 5, "--bytes-per-rank", 5), "contradict each other"),
        (("--topology", "flat:2", "--items", "4,x"), "--items"),
        (("--topology", "flat:2", "--svg", "/nowhere/plan.svg"), "/nowhere/plan.svg"),
        (("--topology", "flat:2", "--html", "/nowhere/plan.html"), "/nowhere/plan.html"),
        (("--topology", "flat:2", "--json", "/nowhere/plan.json"), "/nowhere/plan.json"),
    ],
)
def test_errors_of_the_command(arguments: tuple, said: str) -> None:
    check_error(command("aggregate", "plan", *arguments), said.replace("torus 'torus", "topology 'torus"))


def test_png_by_matplotlib(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "plan.png"
    done = command("aggregate", "plan", "--topology", "torus:4x4x4", "--aggregators", 8, "--png", picture)
    assert done.status == 0, done
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_png_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: object) -> object:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    done = command("aggregate", "plan", "--topology", "flat:4", "--png", tmp_path / "plan.png")
    check_error(done, "twinrun[plot]")


def test_large_machines_are_drawn(tmp_path: Path) -> None:
    """More than 10^5 ranks."""
    picture = tmp_path / "plan.svg"
    done = process(
        "aggregate", "plan", "--topology", "torus:8x8x8x8x2", "--ranks-per-node", 16, "--aggregators", 512,
        "--layout", "variables", "--particles", 25_000, "--volumes", "lognormal:1", "--svg", picture, "-q",
    )  # fmt: skip
    assert (done.status, done.err) == (0, "")
    assert picture.stat().st_size < 10_000_000
    ElementTree.parse(picture)
