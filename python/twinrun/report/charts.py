"""Pictures of a page, as SVG that takes the page's colours: lines on a logarithmic axis, maps, bars,
densities.

Drawn here, without a plotting library: they are small, follow the reader's light or dark scheme, and show
their numbers in tooltips and to screen readers.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..words import escaped, number

__all__ = ["COLOURS", "Line", "bars", "density", "heat_map", "line_chart"]

COLOURS = 8  # --line0 to --line7 of the page
_WIDTH = 900
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


def _open(width: float, height: float, title: str, kind: str = "chart") -> list[str]:
    said = escaped(title, 400)
    return [
        f'<svg class="{kind}" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{said}">',
        f"<title>{said}</title>",
    ]


def _text(x: float, y: float, text: str, anchor: str = "middle", extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>{escaped(text, 60)}</text>'


def _rule(x1: float, y1: float, x2: float, y2: float, style: str = "stroke:var(--rule)") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" style="{style}"/>'


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


def line_chart(lines: Sequence[Line], rules: Sequence[tuple[float, str, int | None]], title: str) -> str:
    """Lines over steps, the y axis logarithmic, with a place of its own for 0 and one for infinity.

    rules: (y, label, colour or None) of dashed lines across.
    """
    left, right, top, bottom, height = 62, 12, 12, 34, 330
    values = [y for line in lines for _, y, _, _ in line.points]
    finite = [y for y in (*values, *(y for y, _, _ in rules)) if 0 < y < math.inf]
    low, high = (min(finite), max(finite)) if finite else (0.1, 1.0)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))  # of doubles: 10**309 is none
    last = max(last, first + 1)
    zero, infinite = any(y == 0 for y in values), any(y == math.inf for y in values)
    y0 = height - bottom - (24 if zero else 0)
    y1 = top + (22 if infinite else 0)
    steps = [x for line in lines for x, *_ in line.points]
    x_low, x_high = min(steps), max(steps)

    def at_x(x: float) -> float:
        share = (x - x_low) / (x_high - x_low) if x_high > x_low else 0.5
        return left + 8 + share * (_WIDTH - left - right - 16)

    def at_exponent(exponent: float) -> float:
        return y0 - (exponent - first) / (last - first) * (y0 - y1)

    def at_y(y: float) -> float:
        if y == 0:
            return height - bottom - 6
        if y == math.inf:
            return top + 6
        return at_exponent(math.log10(y))

    out = _open(_WIDTH, height, title)
    for exponent in range(first, last + 1, max(1, math.ceil((last - first) / 7))):
        y = at_exponent(exponent)
        out += [_rule(left, y, _WIDTH - right, y), _text(left - 6, y + 4, f"1e{exponent}", "end")]
    for shown, y, text in ((zero, 0.0, "0"), (infinite, math.inf, "∞")):
        if shown:
            at = at_y(y)
            out += [
                _rule(left, at, _WIDTH - right, at, "stroke:var(--rule);stroke-dasharray:1 4"),
                _text(left - 6, at + 4, text, "end"),
            ]
    marks = sorted(set(steps)) if len(set(steps)) <= 12 else _ticks(x_low, x_high)
    for x in marks:
        out.append(_text(at_x(x), height - bottom + 16, f"{x:.15g}"))
    out.append(_text((left + _WIDTH) / 2, height - 3, "step"))
    for y, label, colour in rules:
        stroke = "var(--text)" if colour is None else f"var(--line{colour})"
        out += [
            _rule(
                left,
                at_y(y),
                _WIDTH - right,
                at_y(y),
                f"stroke:{stroke};stroke-width:1.3;stroke-dasharray:7 4",
            ),
            _text(_WIDTH - right - 3, at_y(y) - 4, label, "end", f' style="fill:{stroke}"'),
        ]
    for line in lines:
        points = _thinned(line.points)
        stroke = f"stroke:var(--line{line.colour})"
        path = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y, _, _ in points)
        dash = ";stroke-dasharray:2 3;stroke-width:1.4" if line.dashed else ";stroke-width:2"
        out.append(f'<polyline points="{path}" fill="none" style="{stroke}{dash}"/>')
        if line.dashed or len(points) > _MOST_MARKED:
            continue
        for x, y, bound, said in points:
            px, py = at_x(x), at_y(y)
            inside = "var(--page)" if bound else f"var(--line{line.colour})"
            shape = (
                f'<path d="M{px - 4:.1f} {py - 3:.1f}h8l-4 7z"'
                if bound
                else f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3.2"'
            )
            end = "</path>" if bound else "</circle>"
            out.append(
                f'{shape} style="fill:{inside};{stroke};stroke-width:1.4"><title>{escaped(said)}</title>{end}'
            )
    return "".join([*out, "</svg>"])


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
) -> str:
    """A map with a cell for each row and column.

    cells: (strength from 0 to 1, or None where nothing differs; tooltip).
    """
    left = min(190, 20 + 7 * max((len(r[:24]) for r in rows), default=0))
    top, bottom, right = 4, 36, 8
    width = (_WIDTH - left - right) / max(len(columns), 1)
    width = min(width, 90)
    high = max(9.0, min(24.0, 420 / max(len(rows), 1)))
    height = top + bottom + high * len(rows)
    out = _open(_WIDTH, height, title)
    gap = 1 if width > 5 and high > 5 else 0.2
    for (r, c), (strength, said) in sorted(cells.items()):
        fill = "var(--same)" if strength is None else "var(--bad)"
        opacity = "" if strength is None else f";fill-opacity:{0.25 + 0.75 * min(max(strength, 0), 1):.2f}"
        out.append(
            f'<rect x="{left + c * width:.1f}" y="{top + r * high:.1f}" width="{width - gap:.1f}" height="{high - gap:.1f}" '
            f'style="fill:{fill}{opacity}"><title>{escaped(said)}</title></rect>'
        )
    every = max(1, math.ceil(len(rows) * 12 / (high * len(rows))))
    for r in range(0, len(rows), every):
        name = rows[r] if len(rows[r]) <= 24 else rows[r][:11] + "…" + rows[r][-12:]
        out.append(_text(left - 6, top + r * high + high / 2 + 4, name, "end"))
    room = max((len(c) for c in columns), default=1) * 7 + 10
    every = max(1, math.ceil(room / width))
    for c in range(0, len(columns), every):
        out.append(_text(left + c * width + width / 2, height - bottom + 15, columns[c]))
    out.append(_text(left + width * len(columns) / 2, height - 4, x_label))
    return "".join([*out, "</svg>"])


def bars(
    labels: Sequence[str],
    counts: Sequence[int],
    parts: Sequence[int],
    title: str,
    x_label: str,
    marks: Sequence[str] | None = None,
) -> str:
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
    out = _open(_WIDTH, height, title)
    for exponent in range(0, decades + 1, max(1, math.ceil(decades / 6))):
        y = at_y(10.0**exponent)
        out += [
            _rule(left, y, end, y),
            _text(left - 6, y + 4, f"{10**exponent:,}" if exponent < 5 else f"1e{exponent}", "end"),
        ]
    for at, (label, n, part) in enumerate(zip(labels, counts, parts, strict=True)):
        x = left + at * width
        said = f"{label}: {n} elements, {part} of them differ"
        out.append(f"<g><title>{escaped(said)}</title>")
        for value, fill in ((n, "var(--line0)"), (part, "var(--bad)")):
            if value:
                y = at_y(value)
                out.append(
                    f'<rect x="{x + 1:.1f}" y="{y:.1f}" width="{max(width - 2, 1):.1f}" height="{base - y:.1f}" style="fill:{fill}"/>'
                )
        out.append("</g>")
    every = max(1, math.ceil((14 + 7 * max((len(m) for m in marks), default=0)) / width))
    for at in range(0, len(marks), every):
        out.append(_text(left + at * width + width / 2, base + 15, marks[at]))
    out += [_rule(left, base, end, base, "stroke:var(--faint)"),
            _text((left + end) / 2, height - 5, x_label)]  # fmt: skip
    return "".join([*out, "</svg>"])


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
) -> str:
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
    out = _open(left + wide + right, top + high + bottom, title, "chart small")
    out.append(
        f'<image x="{left}" y="{top}" width="{wide:.1f}" height="{high:.1f}" preserveAspectRatio="none" '
        f'style="image-rendering:pixelated" href="data:image/png;base64,{_png(np.ascontiguousarray(pixels))}"/>'
        f'<rect x="{left}" y="{top}" width="{wide:.1f}" height="{high:.1f}" style="fill:none;stroke:var(--rule)"/>'
    )
    (x0, x1), (y0, y1) = ranges
    above, below = (y1, y0) if upwards else (y0, y1)
    out += [
        _text(left, top + high + 15, number_text(x0), "start"),
        _text(left + wide, top + high + 15, number_text(x1), "end"),
        _text(left + wide / 2, top + high + 32, labels[0]),
        _text(left - 5, top + 11, number_text(above), "end"),
        _text(left - 5, top + high, number_text(below), "end"),
        _text(0, 0, labels[1], "middle", f' transform="translate(12 {top + high / 2:.1f}) rotate(-90)"'),
    ]
    return "".join([*out, "</svg>"])


def number_text(value: float) -> str:
    """A number as an axis shows it."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e7 else number(float(value))
