"""A plan of aggregators: as a table, as JSON, and as a picture of the machine (SVG by itself, PNG and PDF by
matplotlib).
"""

from __future__ import annotations

import colorsys
import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from rich.console import Console

from .._core import __version__
from ..errors import MissingPackage, one_line
from ..markup import render
from ..outputs import picture_form, save_figure
from ..report.document import write_whole
from ..report.parts import Table
from ..words import aligned, byte_size
from .plan import AggregationPlan, Aggregator, PlacementPlan

__all__ = ["plan_document", "print_plan", "save_html", "save_picture", "svg"]

_WIDTH = 1180  # of a picture, in its own units
_MOST_ROWS = 200  # partitions in the table of a page
_MOST_TITLES = 4000  # nodes with a tooltip: more would make files too large


def _seconds(value: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if value * factor >= 1 or unit == "us":
            return f"{value * factor:.3g} {unit}"
    raise AssertionError


def _compared(plan: AggregationPlan) -> list[tuple[PlacementPlan, float | None]]:
    """Placements, and the ratio of their costs to those of rank order, if that was planned."""
    ranks = next((p for p in plan.placements if p.placement == "rank"), None)
    return [(p, p.sum / ranks.sum if ranks and ranks.sum > 0 else None) for p in plan.placements]


def _headline(plan: AggregationPlan) -> str:
    files = f", {plan.files} files" if plan.files > 1 else ""
    return (
        f"{plan.topology}: {plan.ranks} ranks, {plan.ranks_per_node} a node, {byte_size(plan.bytes)} in {len(plan.partitions)} "
        f"partitions{files}, {plan.layout}"
    )


def print_plan(console: Console, plan: AggregationPlan, rows: int = 20) -> None:
    """Partitions with the aggregators of the first placement, at most `rows` of them, and the predicted time
    of each placement.
    """
    first = plan.placements[0]
    shown = min(rows, len(plan.partitions)) if rows else len(plan.partitions)
    table = [
        ["partition", "bytes", "ranks", "nodes", "aggregator", "node", "gateway", "C1 gather", "C2 write"]
    ]
    for part, a in zip(plan.partitions[:shown], first.aggregators[:shown], strict=True):
        among = f"{part.first_rank}-{part.last_rank}"
        if part.last_rank - part.first_rank + 1 != part.ranks:
            among += f" ({part.ranks})"
        name = str(part.number) if plan.files == 1 else f"{part.file}.{part.number}"
        cells = [name, byte_size(part.bytes), among, part.nodes, a.rank, a.node, a.gateway]
        table.append([*map(str, cells), _seconds(a.gather), _seconds(a.write)])
    if plan.places:
        table[0].append("where")
        for row, a in zip(table[1:], first.aggregators, strict=False):
            row.append(_node_name(plan, a.node))
    lines = [one_line(_headline(plan)), "", *aligned(table)]
    if shown < len(plan.partitions):
        lines.append(f"… {len(plan.partitions) - shown} more partitions (--rows 0: all; --json)")
    table = [
        ["placement", "sum of C1+C2", "of rank's", "largest C1+C2", "all at once", "nodes that aggregate"]
    ]
    for p, ratio in _compared(plan):
        share = "" if ratio is None else f"{ratio:.3f}"
        nodes = len({a.node for a in p.aggregators})
        table.append([p.placement, _seconds(p.sum), share, _seconds(p.most), _seconds(p.seconds), str(nodes)])
    for line in [*lines, "", *aligned(table, left=1)]:
        console.print(line, soft_wrap=True)


def plan_document(plan: AggregationPlan) -> dict:
    """A plan for JSON: keys are those of AggregationPlan; placements have `of_rank_order` too."""
    d = dataclasses.asdict(plan)
    for entry, (_, ratio) in zip(d["placements"], _compared(plan), strict=True):
        entry["of_rank_order"] = ratio
    return {"twinrun": __version__, **d}


@dataclass
class _Box:
    kind: ClassVar = "box"
    x: float
    y: float
    width: float
    height: float
    fill: str
    edge: str = ""  # "": none
    title: str = ""


@dataclass
class _Dot:
    kind: ClassVar = "dot"
    x: float
    y: float
    radius: float
    fill: str
    edge: str


@dataclass
class _Words:
    kind: ClassVar = "words"
    x: float
    y: float
    size: float
    text: str
    bold: bool = False
    inside: bool = False  # a coloured shape, which they must stand out from


_Shape: TypeAlias = _Box | _Dot | _Words


@dataclass
class _Picture:
    width: float
    height: float
    shapes: list[_Shape]


def _colour(k: int) -> str:
    """A colour for a number: consecutive numbers get distinct hues, by the golden section."""
    r, g, b = colorsys.hls_to_rgb(k * 0.61803398875 % 1, (0.72, 0.6, 0.8)[k % 3], 0.55)
    return f"#{round(r * 255):02x}{round(g * 255):02x}{round(b * 255):02x}"


def _panel(plan: AggregationPlan, node: int, gateway: int) -> tuple[int, ...]:
    """The nodes of each panel: nodes of a gateway, or cores of a NUMA node."""
    if not plan.places:
        return (gateway,)
    place = plan.places[node]
    return (place.host, *(-1 if part is None else part for part in (place.package, place.numa)))


def _panel_name(plan: AggregationPlan, panel: tuple[int, ...]) -> str:
    if not plan.places:
        return f"gateway {panel[0]}"
    hosts = {place.host for place in plan.places}
    names = [f"host {panel[0]}"] if len(hosts) > 1 else []
    names += [f"{name} {k}" for name, k in zip(("package", "NUMA"), panel[1:], strict=True) if k >= 0]
    return ", ".join(names) or "host"


def _node_name(plan: AggregationPlan, node: int) -> str:
    """The name of a node; for a core also its place: "core 5 (host 0, package 0, NUMA 1, L3 2)"."""
    if not plan.places:
        return f"node {node}"
    place = plan.places[node]
    parts = [("host", place.host), ("package", place.package), ("NUMA", place.numa), ("L3", place.cache)]
    where = ", ".join(f"{name} {k}" for name, k in parts if k is not None)
    return f"core {node if place.core is None else place.core} ({where})"


def _drawn(plan: AggregationPlan, placement: str, machine_only: bool = False) -> _Picture:
    """Draws the machine. And, unless `machine_only`, a heading, and what the placements cost."""
    if machine_only:
        panels = _Panels(plan, top=2.0)
        return _Picture(max(20 + panels.width, 160.0), panels.bottom - 24, panels.shapes(placement))
    panels = _Panels(plan, top=62.0)
    squares = "a square a core; " if plan.places else ""
    words = f"{placement} placement: {squares}a colour a partition; ring: its aggregator; dot: node linked to its gateway directly"
    costs, bottom = _costs(plan, placement, panels.bottom)
    heading: list[_Shape] = [_Words(10, 26, 18, _headline(plan), True), _Words(10, 46, 12, words)]
    return _Picture(_WIDTH, bottom + 16, [*heading, *panels.shapes(placement), *costs])


class _Panels:
    """The machine: a panel for each gateway (NUMA node, where nodes are cores), a square for each node in the
    colour of its partition, a ring for an aggregator.
    """

    _GAP = 14.0

    def __init__(self, plan: AggregationPlan, top: float) -> None:
        self._plan, self._top = plan, top
        panels: dict[tuple[int, ...], list[int]] = {}
        for node, gateway in enumerate(plan.gateway_of):
            panels.setdefault(_panel(plan, node, gateway), []).append(node)
        self._panels = sorted(panels.items())
        largest = max(map(len, panels.values()))
        # Squares are as large as the width allows, and panels are nearly square.
        self._columns = min(len(panels), max(1, round(math.sqrt(len(panels) * 1.8))))
        across = max(1, math.ceil(math.sqrt(largest * 1.6)))
        self._across = 1 << max(0, round(math.log2(across)))
        self._cell = max(1.0, min(34.0, ((_WIDTH - 20) / self._columns - self._GAP) / self._across))
        self._down = math.ceil(largest / self._across)
        self._bridges = frozenset(plan.bridges)

    @property
    def width(self) -> float:
        """Of all panels side by side."""
        return self._columns * (self._across * self._cell + self._GAP)

    @property
    def _height(self) -> float:
        """Of a row of panels."""
        return self._down * self._cell + self._GAP + 12

    @property
    def bottom(self) -> float:
        """Where what stands below the panels begins."""
        return self._top + math.ceil(len(self._panels) / self._columns) * self._height + 16

    def shapes(self, placement: str) -> list[_Shape]:
        """All panels, with the aggregators of a placement."""
        aggregators = self._plan.placement(placement).aggregators
        by_node: dict[int, list[int]] = {}
        for k, a in enumerate(aggregators):
            by_node.setdefault(a.node, []).append(k)
        shapes: list[_Shape] = []
        for k, (panel, nodes) in enumerate(self._panels):
            left = 10 + k % self._columns * (self._across * self._cell + self._GAP)
            upper = self._top + k // self._columns * self._height
            shapes.append(_Words(left, upper + 8, 10, _panel_name(self._plan, panel)))
            for j, node in enumerate(nodes):
                x = left + j % self._across * self._cell
                y = upper + 12 + j // self._across * self._cell
                shapes += self._square(x, y, node, by_node.get(node, []), aggregators)
        return shapes

    def _square(
        self, x: float, y: float, node: int, mine: list[int], aggregators: Sequence[Aggregator]
    ) -> list[_Shape]:
        """A node. mine: the partitions that it aggregates."""
        plan, cell = self._plan, self._cell
        part = plan.partition_of_node[node]
        title = self._title(node, mine, aggregators) if plan.nodes <= _MOST_TITLES or mine else ""
        colour = "#eeeeee" if part is None else _colour(part)
        shapes: list[_Shape] = [_Box(x, y, cell * 0.94, cell * 0.94, colour, "", title)]
        middle = x + cell * 0.47, y + cell * 0.47
        if mine:
            shapes.append(_Dot(*middle, cell * 0.34, _colour(mine[0]), "#000000"))
            if len(mine) > 1 and cell >= 8:
                at = middle[0] - cell * 0.15, middle[1] + cell * 0.16
                shapes.append(_Words(*at, cell * 0.45, str(len(mine)), inside=True))
        if node in self._bridges and len(self._bridges) < plan.nodes:
            shapes.append(_Dot(*middle, cell * 0.1, "#ffffff", "#000000"))
        return shapes

    def _title(self, node: int, mine: list[int], aggregators: Sequence[Aggregator]) -> str:
        part = self._plan.partition_of_node[node]
        title = f"{_node_name(self._plan, node)}, " + (f"partition {part}" if part is not None else "no data")
        for p in mine:
            a = aggregators[p]
            title += (
                f"; rank {a.rank} aggregates partition {p}: C1 {_seconds(a.gather)}, C2 {_seconds(a.write)}"
            )
        return title


def _costs(plan: AggregationPlan, placement: str, y: float) -> tuple[list[_Shape], float]:
    """(what the placements cost, from y on; where that ends)."""
    shapes: list[_Shape] = [
        _Words(10, y, 13, "Sum of C1 + C2 over partitions, and all partitions at once", True)
    ]
    longest = max([p.sum for p in plan.placements] + [1e-30])
    slowest = max([p.seconds for p in plan.placements] + [1e-30])
    for choice, ratio in _compared(plan):
        y += 22
        beside = f"{_seconds(choice.sum)}" + (f", {ratio:.2f} of rank order's" if ratio is not None else "")
        chosen = choice.placement == placement
        summed, at_once = choice.sum / longest * 330, choice.seconds / slowest * 330
        shapes += [
            _Words(10, y, 12, choice.placement, chosen),
            _Box(80, y - 11, max(1.0, summed), 14, "#4878a8" if chosen else "#b0c4d8"),
            _Words(86 + summed, y, 11, beside),
            _Box(640, y - 11, max(1.0, at_once), 14, "#a87848" if chosen else "#d8c4b0"),
            _Words(646 + at_once, y, 11, _seconds(choice.seconds)),
        ]
    return shapes, y


def svg(plan: AggregationPlan, placement: str | None = None) -> str:
    """The picture of a placement (the first one) as SVG."""
    return render("aggregate/plan.svg.j2", picture=_drawn(plan, placement or plan.placements[0].placement))


def _placements(plan: AggregationPlan) -> Table:
    """What the placements cost."""
    head = (
        "placement",
        "sum of C1 + C2",
        "of rank order's",
        "largest C1 + C2",
        "all at once",
        "nodes that aggregate",
    )
    rows = [
        (
            p.placement,
            _seconds(p.sum),
            "" if ratio is None else f"{ratio:.3f}",
            _seconds(p.most),
            _seconds(p.seconds),
            len({a.node for a in p.aggregators}),
        )
        for p, ratio in _compared(plan)
    ]
    return Table(head, rows, text=(0,))


def _partitions(plan: AggregationPlan) -> Table:
    """The partitions, with the aggregators of the first placement."""
    head = ("partition", "bytes", "ranks", "nodes", "aggregator", "where", "C1 gather", "C2 write")
    rows = [
        (
            part.number if plan.files == 1 else f"{part.file}.{part.number}",
            byte_size(part.bytes),
            f"{part.first_rank} to {part.last_rank}",
            part.nodes,
            f"rank {a.rank}",
            _node_name(plan, a.node),
            _seconds(a.gather),
            _seconds(a.write),
        )
        for part, a in zip(plan.partitions, plan.placements[0].aggregators, strict=True)
    ]
    return Table(head, rows, text=(0, 4, 5)).first(_MOST_ROWS)


def _sentence(plan: AggregationPlan) -> str:
    best = min(plan.placements, key=lambda p: p.sum)
    said = f"Placement “{best.placement}” costs least: {_seconds(best.sum)} over all partitions"
    ratio = next(r for p, r in _compared(plan) if p is best)
    if ratio is None or best.placement == "rank":
        return f"{said}."
    if ratio > 0.995:
        return f"{said}, as much as rank order."
    return f"{said}, {ratio:.2f} of what rank order costs."


def save_html(plan: AggregationPlan, path: str) -> None:
    """A page with what the placements cost, the picture of each, and the partitions."""
    pictures = [_drawn(plan, p.placement, machine_only=True) for p in plan.placements]
    page = render(
        "aggregate/plan.html.j2",
        title=f"twinrun: plan of aggregation: {_headline(plan)}",
        headline=_headline(plan),
        sentence=_sentence(plan),
        placements=_placements(plan),
        partitions=_partitions(plan),
        square="core" if plan.places else "node",
        first=plan.placements[0].placement,
        pictures=list(zip([p.placement for p in plan.placements], pictures, strict=True)),
    )
    write_whole(path, page, "HTML")


def save_picture(
    plan: AggregationPlan, path: str, placement: str | None = None, form: str | None = None
) -> None:
    """Draws a placement (the first one) into the file of exactly this name: .svg, or what matplotlib writes
    (.png, .pdf).

    form: "svg" whatever the name; None: by the suffix, and PNG without one. Raises MissingPackage without
    matplotlib, TwinrunError where it cannot write.
    """
    if (form or picture_form(path)) == "svg":
        write_whole(path, svg(plan, placement), "SVG")
        return
    try:
        from matplotlib.collections import PatchCollection
        from matplotlib.figure import Figure
        from matplotlib.patches import Circle, Rectangle
    except ImportError:
        raise MissingPackage.of("matplotlib", "twinrun[plot]") from None
    picture = _drawn(plan, placement or plan.placements[0].placement)
    figure = Figure(figsize=(picture.width / 100, picture.height / 100))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, picture.width)
    axes.set_ylim(picture.height, 0)
    axes.axis("off")
    boxes = [s for s in picture.shapes if isinstance(s, _Box)]
    dots = [s for s in picture.shapes if isinstance(s, _Dot)]
    axes.add_collection(
        PatchCollection(
            [Rectangle((s.x, s.y), s.width, s.height) for s in boxes],
            facecolors=[s.fill for s in boxes],
            edgecolors="none",
        )
    )
    axes.add_collection(
        PatchCollection(
            [Circle((s.x, s.y), s.radius) for s in dots],
            facecolors=[s.fill for s in dots],
            edgecolors=[s.edge for s in dots],
            linewidths=[max(0.5, s.radius / 4) for s in dots],
        )
    )
    for s in picture.shapes:
        if isinstance(s, _Words):
            axes.text(
                s.x, s.y, one_line(s.text), fontsize=s.size * 0.72, weight="bold" if s.bold else "normal"
            )
    save_figure(figure, path, dpi=120)
