"""Pictures of a page, which takes its colours: lines on a logarithmic axis, maps, bars, densities.

Drawn here, without a plotting library: they are small, follow the reader's light or dark scheme, and show
their numbers in tooltips and to screen readers. What is made here is shapes; templates/charts.svg.j2 writes
them as SVG.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from ..words import number

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

__all__ = ["COLOURS", "NARROW", "Line", "Picture", "bars", "density", "heat_map", "line_chart"]

COLOURS = 8  # --line0 to --line7 of the page
_WIDTH = 900
NARROW = 360  # of a picture that fits a telephone
_MOST_MARKED = 60  # points of a line with a mark each
_MOST_POINTS = 600
_FEW = 40  # points that are drawn larger
_RED = (196, 56, 44)
_GREY = (128, 136, 144)


@dataclass
class Line:
    """A line of a chart.

    points: (x, y, whether y is a bound, tooltip); y may be 0 or infinite. colour: 0 to 7.
    """

    name: str
    colour: int
    points: list[tuple[float, float, bool, str]]
    dashed: bool = False


@dataclass
class Text:
    """Words at a point. anchor: which part of them is there."""

    kind: ClassVar = "text"
    x: float
    y: float
    text: str
    anchor: str = "middle"
    style: str = ""
    upwards: bool = False  # they run up the page, and (x, y) is their middle


@dataclass
class Rule:
    """A straight line."""

    kind: ClassVar = "rule"
    x1: float
    y1: float
    x2: float
    y2: float
    style: str = "stroke:var(--rule)"


@dataclass
class Path:
    """A line through points."""

    kind: ClassVar = "path"
    points: list[tuple[float, float]]
    style: str


@dataclass
class Mark:
    """A point with a tooltip: a circle, or a triangle that points down, for a bound."""

    kind: ClassVar = "mark"
    x: float
    y: float
    bound: bool
    style: str
    said: str


@dataclass
class Box:
    """A rectangle; with a tooltip, unless it is part of a group."""

    kind: ClassVar = "box"
    x: float
    y: float
    width: float
    height: float
    style: str
    said: str = ""


@dataclass
class Group:
    """Boxes with one tooltip."""

    kind: ClassVar = "group"
    said: str
    boxes: list[Box]


@dataclass
class Pixels:
    """A picture of pixels, in a frame. png: its file in base64."""

    kind: ClassVar = "pixels"
    x: float
    y: float
    width: float
    height: float
    png: str


@dataclass
class Picture:
    """Shapes in a frame with a title. small: in its own width, not in that of the page."""

    width: float
    height: float
    title: str
    small: bool = False
    shapes: list[Text | Rule | Path | Mark | Box | Group | Pixels] = field(default_factory=list)


def _ticks(low: float, high: float, most: int = 8) -> list[float]:
    """Round numbers from low to high."""
    if high <= low:
        return [low]
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next((m * power for m in (1, 2, 5, 10) if m * power >= raw), 10 * power)
    step = max(step, 1.0)  # steps are integers
    first = math.ceil(low / step)
    return [k * step for k in range(first, math.floor(high / step) + 1)]


class _Scales:
    """Where steps and values lie in a chart of lines: the y axis is logarithmic, with a place of its own for
    0 and one for infinity.

    zero, infinite: whether these places are there. first, last: exponents at the ends of the axis.
    """

    def __init__(
        self, values: Sequence[float], rules: Iterable[float], steps: Sequence[float], width: float
    ) -> None:
        narrow = width < _WIDTH
        self.left, self.right, self.top, self.bottom = 44 if narrow else 62, 12, 12, 34
        self.width, self.height = width, 270 if narrow else 330
        finite = [y for y in (*values, *rules) if 0 < y < math.inf]
        low, high = (min(finite), max(finite)) if finite else (0.1, 1.0)
        # Of doubles: 10**309 is none.
        self.first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        self.last = max(last, self.first + 1)
        self.zero, self.infinite = any(y == 0 for y in values), any(y == math.inf for y in values)
        self._y0 = self.height - self.bottom - (24 if self.zero else 0)
        self._y1 = self.top + (22 if self.infinite else 0)
        self.x_low, self.x_high = min(steps), max(steps)

    def x(self, step: float) -> float:
        """Where a step lies."""
        low, high = self.x_low, self.x_high
        share = (step - low) / (high - low) if high > low else 0.5
        return self.left + 8 + share * (self.width - self.left - self.right - 16)

    def of_exponent(self, exponent: float) -> float:
        """Where a power of ten lies."""
        return self._y0 - (exponent - self.first) / (self.last - self.first) * (self._y0 - self._y1)

    def y(self, value: float) -> float:
        """Where a value lies."""
        if value == 0:
            return self.height - self.bottom - 6
        if value == math.inf:
            return self.top + 6
        return self.of_exponent(math.log10(value))

    def across(self, y: float, style: str = "") -> Rule:
        """A line from the left to the right."""
        right = self.width - self.right
        return Rule(self.left, y, right, y, style) if style else Rule(self.left, y, right, y)


def line_chart(
    lines: Sequence[Line],
    rules: Sequence[tuple[float, str, int | None]],
    title: str,
    width: float = _WIDTH,
) -> Picture:
    """Lines over steps, the y axis logarithmic, with a place of its own for 0 and one for infinity.

    rules: (y, label, colour or None) of dashed lines across.
    """
    values = [y for line in lines for _, y, _, _ in line.points]
    steps = [x for line in lines for x, *_ in line.points]
    scales = _Scales(values, [y for y, _, _ in rules], steps, width)
    picture = Picture(width, scales.height, title)
    out = picture.shapes
    out += _axes(scales, steps)
    labels: list[Text] = []
    for y, label, colour in rules:
        stroke = "var(--text)" if colour is None else f"var(--line{colour})"
        at = scales.y(y)
        out.append(scales.across(at, f"stroke:{stroke};stroke-width:1.3;stroke-dasharray:7 4"))
        # Lines end at the right, and begin low: there is room at the left. A halo hides what still
        # runs behind.
        halo = "paint-order:stroke;stroke:var(--page);stroke-width:4;stroke-linejoin:round"
        labels.append(Text(scales.left + 4, at - 5, label, "start", f"fill:{stroke};{halo}"))
    for line in lines:
        points = _thinned(line.points)
        stroke = f"stroke:var(--line{line.colour})"
        dash = ";stroke-dasharray:2 3;stroke-width:1.4" if line.dashed else ";stroke-width:2"
        out.append(Path([(scales.x(x), scales.y(y)) for x, y, _, _ in points], stroke + dash))
        if line.dashed or len(points) > _MOST_MARKED:
            continue
        for x, y, bound, said in points:
            inside = "var(--page)" if bound else f"var(--line{line.colour})"
            style = f"fill:{inside};{stroke};stroke-width:1.4"
            out.append(Mark(scales.x(x), scales.y(y), bound, style, said))
    out += labels
    return picture


def _axes(scales: _Scales, steps: Sequence[float]) -> list[Rule | Text]:
    """Powers of ten, 0 and infinity at the left; steps below."""
    out: list[Rule | Text] = []
    beside = scales.left - 6
    for exponent in range(scales.first, scales.last + 1, max(1, math.ceil((scales.last - scales.first) / 7))):
        y = scales.of_exponent(exponent)
        out += [scales.across(y), Text(beside, y + 4, f"1e{exponent}", "end")]
    for shown, value, text in ((scales.zero, 0.0, "0"), (scales.infinite, math.inf, "∞")):
        if shown:
            at = scales.y(value)
            out += [
                scales.across(at, "stroke:var(--rule);stroke-dasharray:1 4"),
                Text(beside, at + 4, text, "end"),
            ]
    # As many labels as there is room for.
    low, high = scales.x_low, scales.x_high
    room = scales.width - scales.left - scales.right
    most = min(12, int(room / (9 * max(len(f"{x:.15g}") for x in (low, high)))))
    marks = sorted(set(steps)) if len(set(steps)) <= most else _ticks(low, high, max(1, min(8, most)))
    for x in marks:
        out.append(Text(scales.x(x), scales.height - scales.bottom + 16, f"{x:.15g}"))
    out.append(Text((scales.left + scales.width) / 2, scales.height - 3, "step"))
    return out


def _thinned(points: list[tuple[float, float, bool, str]]) -> list[tuple[float, float, bool, str]]:
    """At most a few hundred points: the largest of each stretch."""
    if len(points) <= _MOST_POINTS:
        return points
    size = math.ceil(len(points) / _MOST_POINTS)
    return [max(points[i : i + size], key=lambda p: p[1]) for i in range(0, len(points), size)]


def heat_map(
    rows: Sequence[str],
    columns: Sequence[str],
    cells: dict[tuple[int, int], tuple[float | None, str]],
    title: str,
    x_label: str = "step",
    whole: float = _WIDTH,
) -> Picture:
    """A map with a cell for each row and column.

    cells: (strength from 0 to 1, or None where nothing differs; tooltip). whole: width of the picture.
    """
    left = min(190, 20 + 7 * max((len(r[:24]) for r in rows), default=0))
    top, bottom, right = 4, 36, 8
    width = (whole - left - right) / max(len(columns), 1)
    width = min(width, 90)
    high = max(9.0, min(24.0, 420 / max(len(rows), 1)))
    height = top + bottom + high * len(rows)
    picture = Picture(whole, height, title)
    out = picture.shapes
    gap = 1 if width > 5 and high > 5 else 0.2
    for (r, c), (strength, said) in sorted(cells.items()):
        fill = "var(--same)" if strength is None else "var(--bad)"
        opacity = "" if strength is None else f";fill-opacity:{0.25 + 0.75 * min(max(strength, 0), 1):.2f}"
        x, y = left + c * width, top + r * high
        out.append(Box(x, y, width - gap, high - gap, f"fill:{fill}{opacity}", said))
    every = max(1, math.ceil(len(rows) * 12 / (high * len(rows))))
    for r in range(0, len(rows), every):
        name = rows[r] if len(rows[r]) <= 24 else rows[r][:11] + "…" + rows[r][-12:]
        out.append(Text(left - 6, top + r * high + high / 2 + 4, name, "end"))
    room = max((len(c) for c in columns), default=1) * 7 + 10
    every = max(1, math.ceil(room / width))
    for c in range(0, len(columns), every):
        out.append(Text(left + c * width + width / 2, height - bottom + 15, columns[c]))
    out.append(Text(left + width * len(columns) / 2, height - 4, x_label))
    return picture


def bars(
    labels: Sequence[str],
    counts: Sequence[int],
    parts: Sequence[int],
    title: str,
    x_label: str,
    marks: Sequence[str] | None = None,
) -> Picture:
    """Bars on a logarithmic axis, each with a red part.

    parts: at most counts. marks: labels at the axis, if shorter.
    """
    left, right, top, bottom, height = 62, 12, 10, 38, 250
    most = max(max(counts, default=1), 1)
    decades = max(1, math.ceil(math.log10(most) + 1e-9))
    base = height - bottom

    def at_y(n: float) -> float:  # a bar of height one is visible
        return base - (math.log10(n) + 0.35) / (decades + 0.35) * (base - top) if n > 0 else base

    width = min((_WIDTH - left - right) / max(len(counts), 1), 70)
    end = left + width * max(len(counts), 3)
    marks = labels if marks is None else marks
    picture = Picture(_WIDTH, height, title)
    out = picture.shapes
    for exponent in range(0, decades + 1, max(1, math.ceil(decades / 6))):
        y = at_y(10.0**exponent)
        out += [
            Rule(left, y, end, y),
            Text(left - 6, y + 4, f"{10**exponent:,}" if exponent < 5 else f"1e{exponent}", "end"),
        ]
    for at, (label, n, part) in enumerate(zip(labels, counts, parts, strict=True)):
        x = left + at * width
        said = f"{label}: {n} elements, {part} of them differ"
        group = Group(said, [])
        for value, fill in ((n, "var(--line0)"), (part, "var(--bad)")):
            if value:
                y = at_y(value)
                group.boxes.append(Box(x + 1, y, max(width - 2, 1), base - y, f"fill:{fill}"))
        out.append(group)
    every = max(1, math.ceil((14 + 7 * max((len(m) for m in marks), default=0)) / width))
    for at in range(0, len(marks), every):
        out.append(Text(left + at * width + width / 2, base + 15, marks[at]))
    out += [Rule(left, base, end, base, "stroke:var(--faint)"),
            Text((left + end) / 2, height - 5, x_label)]  # fmt: skip
    return picture


def _png(pixels: np.ndarray) -> str:
    """RGBA (height, width, 4) uint8 as a PNG in base64."""
    height, width = pixels.shape[:2]
    raw = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1).tobytes()

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    png = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(raw, 9))
        + chunk(b"IEND", b"")
    )
    return base64.b64encode(png).decode("ascii")


def _shades(counts: np.ndarray, colour: tuple[int, int, int], least: int) -> np.ndarray:
    """Counts as shades of one colour; a count of 0 is transparent."""
    shade = np.zeros((*counts.shape, 4), np.uint8)
    most = counts.max(initial=0)
    if most > 0:
        strength = np.log1p(counts) / np.log1p(most)
        shade[..., :3] = colour
        shade[..., 3] = np.where(counts > 0, least + (255 - least) * strength, 0).astype(np.uint8)
    return shade


def _widened(counts: np.ndarray) -> np.ndarray:
    """Enlarges points by their neighbours, where single points would hardly be visible."""
    wide = np.pad(counts, 1)
    rows, columns = counts.shape
    return np.max([wide[i : i + rows, j : j + columns] for i in range(3) for j in range(3)], axis=0)


def density(
    counts: np.ndarray,
    ranges: tuple[tuple[float, float], tuple[float, float]],
    labels: tuple[str, str],
    title: str,
    behind: np.ndarray | None = None,
    upwards: bool = False,
) -> Picture:
    """Where differences lie in a plane: counts (rows, columns), the first row on top, or below where
    `upwards`.

    ranges: of columns and rows. behind: counts of all there is, in grey.
    """
    few = 0 < np.count_nonzero(counts) < _FEW and min(counts.shape) >= 64
    pixels = _shades(_widened(counts) if few else counts, _RED, 90)
    red = pixels[..., 3] > 0
    if behind is not None:
        grey = _shades(behind, _GREY, 30)
        grey[..., 3] //= 2
        pixels = np.where(red[..., None], pixels, grey)
    if upwards:
        pixels = pixels[::-1]
    rows, columns = counts.shape
    left, top, bottom, right = 56, 6, 40, 10
    side = 300.0
    wide = side if columns >= rows else max(60.0, side * columns / rows)
    high = side if rows >= columns else max(60.0, side * rows / columns)
    picture = Picture(left + wide + right, top + high + bottom, title, small=True)
    (x0, x1), (y0, y1) = ranges
    above, below = (y1, y0) if upwards else (y0, y1)
    picture.shapes += [
        Pixels(left, top, wide, high, _png(np.ascontiguousarray(pixels))),
        Text(left, top + high + 15, number_text(x0), "start"),
        Text(left + wide, top + high + 15, number_text(x1), "end"),
        Text(left + wide / 2, top + high + 32, labels[0]),
        Text(left - 5, top + 11, number_text(above), "end"),
        Text(left - 5, top + high, number_text(below), "end"),
        Text(12, top + high / 2, labels[1], upwards=True),
    ]
    return picture


def number_text(value: float) -> str:
    """A number as an axis shows it."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e7 else number(float(value))
