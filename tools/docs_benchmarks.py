"""Makes docs/benchmarks.md's ratios and pictures from the tables of docs/benchmark-tables.md.

usage: docs_benchmarks.py           writes the ratios into the page, and docs/pictures/bench-*.svg
       docs_benchmarks.py --check   says whether they are up to date

No number stands here: each is read from a table, by the heading, the line and the column that it stands in.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLES = ROOT / "docs/benchmark-tables.md"
PAGE = ROOT / "docs/benchmarks.md"
PICTURES = ROOT / "docs/pictures"
BEGIN = "<!-- ratios: begin; tools/docs_benchmarks.py rewrites this -->"
END = "<!-- ratios: end -->"


@dataclass(frozen=True)
class Table:
    columns: list[str]
    lines: dict[str, list[str]]

    def value(self, line: str, column: int) -> float:
        """A median: the number that a cell begins with."""
        cell = self.lines[line][column]
        found = re.match(r"\**([\d][\d, ]*\.?\d*(?:e-?\d+)?)", cell.replace("\u00a0", " "))
        if found is None:
            raise ValueError(f"{line}, column {column}: {cell!r} has no number")
        return float(found[1].replace(" ", "").replace(",", ""))


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def tables(text: str) -> dict[str, list[Table]]:
    """The tables of a page, by the heading that they stand below."""
    found: dict[str, list[Table]] = {}
    heading = ""
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        if title := re.match(r"#+ (.*)|\*\*(MPICH[^*]*|Open MPI[^*]*)\*\*$", lines[at]):
            heading = (title[1] or title[2]).strip()
        elif lines[at].startswith("|") and re.match(r"\|[-:| ]+\|$", lines[at + 1]):
            columns = _cells(lines[at])
            at += 2
            body: dict[str, list[str]] = {}
            while lines[at].startswith("|"):
                cells = _cells(lines[at])
                body.setdefault(cells[0] if cells[0] not in body else " ".join(cells[:2]), cells)
                body.setdefault(" / ".join(cells[:2]), cells)
                at += 1
            found.setdefault(heading, []).append(Table(columns, body))
            continue
        at += 1
    return found


# ---- pictures ----------------------------------------------------------------------------------------------------------

STYLE = """text { fill: #1f2328 } .soft { fill: #656d76 } .line { stroke: #d1d9e0; stroke-width: 1 } .us { fill: #0969da } .other { fill: #8c959f } .best { fill: #1f883d }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .soft { fill: #9198a1 } .line { stroke: #3d444d } .us { fill: #4493f8 } .other { fill: #6e7681 } .best { fill: #3fb950 } }"""


def shown(value: float) -> str:
    """Three digits, as the tables have them."""
    if value >= 1000:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.3g}"


def bars(title: str, unit: str, groups: list[tuple[str, list[tuple[str, float]]]]) -> str:
    """Bars on a logarithmic axis: groups of lines, twinrun's in blue. Each bar has its number."""
    label, width, row, gap = 190, 470, 22, 30
    values = [value for _, lines in groups for _, value in lines]
    low, high = math.floor(math.log10(min(values)) - 0.15), math.ceil(math.log10(max(values)))
    height = 56 + sum(gap + row * len(lines) for _, lines in groups) + 26

    def x(value: float) -> float:
        return label + width * (math.log10(value) - low) / (high - low)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {height}" font-family="sans-serif" font-size="13" role="img" aria-label="{escape(title)}">',
        f"<style>{STYLE}</style>",
        f'<text x="8" y="22" font-weight="bold" font-size="15">{escape(title)}</text>',
        f'<text x="8" y="42" class="soft">{escape(unit)}, logarithmic axis</text>',
    ]
    bottom = height - 24
    for power in range(low, high + 1):
        at = x(10.0**power)
        out.append(f'<path class="line" d="M{at:.1f} 54 V{bottom}"/>')
        out.append(
            f'<text x="{at:.1f}" y="{bottom + 16}" text-anchor="middle" class="soft">{shown(10.0**power)}</text>'
        )
    y = 56
    for name, lines in groups:
        out.append(f'<text x="8" y="{y + 18}" font-weight="bold">{escape(name)}</text>')
        y += gap
        for line, value in lines:
            kind = "us" if line.startswith("twinrun") else "other"
            out.append(f'<text x="{label - 8}" y="{y + 13}" text-anchor="end">{escape(line)}</text>')
            out.append(
                f'<rect class="{kind}" x="{label}" y="{y}" width="{max(1.0, x(value) - label):.1f}" height="16" rx="2"/>'
            )
            out.append(f'<text x="{x(value) + 6:.1f}" y="{y + 13}">{shown(value)}</text>')
            y += row
    return "\n".join([*out, "</svg>", ""])


# ---- what is shown -----------------------------------------------------------------------------------------------------

CASES = {
    "(i) identical": "identical",
    "(ii) 0.1% of the 4 KiB chunks differ": "0.1% of chunks differ",
    "(iii) every element differs by 1% of eps": "all off by 1% of eps",
    "(iv) every element differs by 40% of eps": "all off by 40% of eps",
}
LINES = {
    "numpy: fromfile, allclose": "NumPy allclose",
    "direct, io_uring": "twinrun, direct",
    "published method": "published method",
    "twinrun, 4 residue bits": "twinrun, metadata",
}
Ratio = tuple[str, str, str]


def _files(all_tables: dict[str, list[Table]], column: int, state: str) -> tuple[str, list[Ratio]]:
    groups, ratios = [], []
    for heading, case in CASES.items():
        table = all_tables[heading][0]
        assert table.columns[column] == f"{state}, GB/s", table.columns
        values = {line: table.value(line, column) for line in LINES}
        groups.append((case, [(LINES[line], value) for line, value in values.items()]))
        ours, numpy, direct, published = (
            values[name] for name in ("twinrun, 4 residue bits", "numpy: fromfile, allclose", "direct, io_uring", "published method")
        )  # fmt: skip
        ratios.append(
            (f"two files of 1.07 GB, {state}: {case}", "with metadata, against NumPy", shown(ours / numpy))
        )
        ratios.append(("", "against the published method", shown(ours / published)))
        ratios.append(("", "against reading every element (direct)", shown(ours / direct)))
    return bars(f"Comparing two files of 1.07 GB, {state}", "GB/s of one run", groups), ratios


def _hdf5(all_tables: dict[str, list[Table]]) -> tuple[str, list[Ratio]]:
    table = all_tables["HDF5 files: h5diff, numpy, twinrun"][0]
    groups, ratios = [], []
    for case in ("identical", "0.1% of 4 KiB chunks differ", "noise of 1% of the tolerance"):
        for state in ("warm", "cold"):
            values = [table.value(f"{case} / {state}", column) for column in (2, 3, 4, 5)]
            if state == "warm":
                groups.append(
                    (
                        case,
                        list(
                            zip(
                                ("h5diff", "h5py, allclose", "twinrun, direct", "twinrun, metadata"),
                                values,
                                strict=True,
                            )
                        ),
                    )
                )
            ratios.append(
                (f"HDF5, 1.00 GB, {state}: {case}", "direct, against h5diff", shown(values[0] / values[2]))
            )
            ratios.append(("", "with metadata, against h5diff", shown(values[0] / values[3])))
    return bars("Comparing two HDF5 files of 1.00 GB, warm", "seconds: shorter is better", groups), ratios


def _arrays(all_tables: dict[str, list[Table]]) -> tuple[str, list[Ratio]]:
    table = all_tables["A state of many arrays"][0]
    names = {
        "np.allclose": "`np.allclose` on each",
        "np.array_equal": "`np.array_equal` on each",
        "twinrun.compare": "`twinrun.compare`, `atol=1e-6`",
    }
    groups, ratios = [], []
    for case, column in (("2,000 of 1 KiB", 1), ("2,000 of mixed sizes, 149 MB", 3), ("16 of 16 MiB", 5)):
        values = {name: table.value(line, column) for name, line in names.items()}
        groups.append((case, list(values.items())))
        ratios.append((f"arrays in memory: {case}", "against np.allclose on each", shown(values["np.allclose"] / values["twinrun.compare"])))  # fmt: skip
    return bars("Comparing many arrays in memory", "microseconds an array: shorter is better", groups), ratios


def _records(all_tables: dict[str, list[Table]]) -> tuple[str, list[Ratio]]:
    table = all_tables["Two cores"][0]
    column = table.columns.index("128")
    groups, ratios = [], []
    for case in ("message-race", "unstructured-mesh", "delaunay", "bubbles", "road", "adam", "minihacc"):
        values = {
            "twinrun, runs": table.value(f"{case} / runs", column),
            "twinrun, runs and zstd": table.value(f"{case} / runs+zstd", column),
            "tree (published)": table.value(f"{case} / tree", column),
            "zstd of each, whole": table.value(f"{case} / zstd-1, whole", 2),
        }
        groups.append((case, list(values.items())))
        ratios.append((f"records: {case}", "bytes kept, `runs` against `tree`", shown(values["twinrun, runs"] / values["tree (published)"])))  # fmt: skip
    return bars(
        "Bytes of ten checkpoints, by the bytes that a record keeps", "ratio: longer is better", groups
    ), ratios


def _aggregation(all_tables: dict[str, list[Table]]) -> tuple[str, list[Ratio]]:
    (heading,) = (name for name in all_tables if name.startswith("MPICH 5"))
    table = all_tables[heading][0]
    groups, ratios = [], []
    for case in ("records, 25k", "blocks, 25k", "variables, 25k"):
        values = {"twinrun, aggregate": table.value(f"{case}: aggregate", 1)}
        for name in ("posix", "posix-packed", "mpiio-collective", "mpiio-two-phase"):
            if f"{case}: {name}" not in table.lines:
                continue
            values[name] = table.value(f"{case}: {name}", 1)
            ratios.append((f"16 ranks write one file: {case}" if name == "posix" else "", f"against {name}", shown(table.value(f"{case}: {name}", 3))))  # fmt: skip
        groups.append((case, list(values.items())))
    return bars("16 ranks write one file, in the page cache", "MB/s", groups), ratios


SIMULATED = ("C1 + C2", "rank order", "random", "one a node", "ROMIO", "POSIX")


def _simulated(all_tables: dict[str, list[Table]]) -> tuple[str, list[Ratio]]:
    groups, ratios = [], []
    for heading in ("Figure 4: one file", "Figure 5: a file a Pset"):
        table = all_tables[heading][0]
        column = table.columns.index("25k")
        files = heading.partition(": ")[2]
        for layout in ("records", "variables"):
            lines = [name for name in SIMULATED if f"{layout}: {name}" in table.lines]
            values = {name: table.value(f"{layout}: {name}", column) for name in lines}
            groups.append(
                (
                    f"{files}, {layout}",
                    [("twinrun, " * (k == 0) + n, v) for k, (n, v) in enumerate(values.items())],
                )
            )
            for name in ("rank order", "random", "ROMIO", "POSIX"):
                what = (
                    f"simulated Blue Gene/Q, 16,384 ranks: {files}, {layout}" if name == "rank order" else ""
                )
                ratios.append((what, f"against {name}", shown(values["C1 + C2"] / values[name])))
    return bars("A simulated Blue Gene/Q: 16,384 ranks write 15.6 GB", "GB/s", groups), ratios


def _placements(all_tables: dict[str, list[Table]]) -> tuple[str, list[Ratio]]:
    table = all_tables["Placements by machine"][0]
    groups, ratios = [], []
    for machine in ("torus", "dragonfly", "fat tree"):
        for storage in ("as it is", "16 times"):
            line = f"{machine}, 16,384 ranks, records, storage {storage}"
            values = {name: table.value(line, k) for k, name in enumerate(table.columns) if k > 0}
            groups.append(
                (
                    f"{machine}, storage {storage}",
                    [("twinrun, " * (k == 0) + n, v) for k, (n, v) in enumerate(values.items())],
                )
            )
            for name in ("rank order", "random", "first nodes"):
                what = f"simulated {line}" if name == "rank order" else ""
                ratios.append((what, f"against {name}", shown(values["C1 + C2"] / values[name])))
    return bars("Placements on simulated machines: 16,384 ranks, records", "GB/s", groups), ratios


CHARTS = {
    "warm": lambda t: _files(t, 2, "warm"),
    "cold": lambda t: _files(t, 1, "cold"),
    "hdf5": _hdf5,
    "arrays": _arrays,
    "records": _records,
    "aggregation": _aggregation,
    "simulated": _simulated,
    "placements": _placements,
}


def made() -> dict[Path, str]:
    """The page and the pictures, as the tables say."""
    found = tables(TABLES.read_text("utf-8"))
    files: dict[Path, str] = {}
    lines = ["| what | | times |", "|---|---|---:|"]
    for name, chart in CHARTS.items():
        svg, ratios = chart(found)
        files[PICTURES / f"bench-{name}.svg"] = svg
        lines += [f"| {what} | {against} | {value} |" for what, against, value in ratios]
    page = PAGE.read_text("utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    files[PAGE] = before + BEGIN + "\n\n" + "\n".join(lines) + "\n\n" + END + after
    return files


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; status 1 where something is not up to date"
    )
    given = parser.parse_args(arguments)
    old = [path for path, text in made().items() if not path.exists() or path.read_text("utf-8") != text]
    if given.check:
        for path in old:
            print(
                f"{path.relative_to(ROOT)}: not what the tables say: python tools/docs_benchmarks.py",
                file=sys.stderr,
            )
        return 1 if old else 0
    for path, text in made().items():
        path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
