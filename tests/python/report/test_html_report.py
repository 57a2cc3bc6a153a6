"""The page of a comparison: what it says, what it must not do, and how it looks in a browser; results in notebooks."""

from __future__ import annotations

import base64
import copy
import dataclasses
import gc
import html
import html.parser
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from browser import open_page
from commands import check_error, command
from hypothesis import given, settings
from hypothesis import strategies as st
from support import run_of_ranks

import twinrun
from twinrun.comparison.work import Comparison
from twinrun.errors import MissingPackage
from twinrun.markup import environment
from twinrun.report import charts, places
from twinrun.report.html import error_html, write_html
from twinrun.report.html import html as page_of

VOID = {"meta", "br", "img", "hr"}
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style></title><b>",
    "a&b;&lt;",
    "new\nline\x1b[31m\x00",
    "\udc80raw",
    "x" * 3000,
    "]]>--><!--",
]


class Page(html.parser.HTMLParser):
    """Elements and attributes of a page; fails where they do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.text: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data

    def named(self, tag: str) -> list[dict]:
        return [attrs for name, attrs in self.tags if name == tag]


def check_page(text: str) -> Page:
    """Whole in itself, nothing that runs, everything named."""
    page = Page(text)
    used = {tag for tag, _ in page.tags}
    assert not used & {"script", "iframe", "object", "embed", "link", "img", "form", "base", "video"}
    for tag, attrs in page.tags:
        for name, value in attrs.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("href", "src", "xlink:href", "action", "data"):
                assert value.startswith(("data:image/png;base64,", "data:application/json;base64,", "#")), (
                    value
                )
    assert not re.findall(r"url\(|@import|https?:", text)
    for attrs in page.named("svg"):
        assert attrs["role"] == "img" and attrs["aria-label"]
    assert all(attrs.get("scope") == "col" for attrs in page.named("th"))
    assert page.named("html")[0]["lang"] == "en" and any("viewport" in a.values() for a in page.named("meta"))
    return page


def saved(page: Page) -> dict:
    """The file of rows that the page holds."""
    (link,) = [a["href"] for a in page.named("a") if "download" in a]
    return json.loads(base64.b64decode(link.split(",", 1)[1]))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two histories of two ranks and eight steps that part at step 30: a grid, a box, particles."""
    folder = tmp_path_factory.mktemp("runs")
    random = np.random.default_rng(4)
    y, x = np.mgrid[-1:1:50j, -1:1:70j]
    box = random.normal(size=(12, 10, 8))
    pos = random.normal(size=(900, 3))
    for run in "ab":
        ranks: list[dict] = [{}, {}]
        for rank, step in ((r, s) for r in range(2) for s in range(0, 80, 10)):
            grow = 1e-7 * 4 ** (step // 10) if run == "b" and step >= 30 else 0.0
            ranks[rank][step] = {
                "T": np.cos(3 * x + step) * y + grow * (x**2 + y**2 < 0.1),
                "box": box + grow * (rank == 1),
                "pos": pos + grow * (pos[:, :1] > 1),
                "constant": box,
            }
        run_of_ranks(folder / run, ranks, atol=1e-6)
    return folder


@pytest.fixture(scope="module")
def found(runs: Path) -> Comparison:
    return twinrun.compare(runs / "a", runs / "b")


def test_the_page_says_what_the_comparison_found(found: Comparison) -> None:
    text = page_of(found)
    page = check_page(text)
    said = " ".join(" ".join(page.text).split())
    first = found.first
    assert first is not None and first.step == 30
    assert text.index('class="verdict bad"') < text.index('id="first-divergence"') < text.index("<svg")
    for value in (first.first_a, first.first_b):
        assert repr(value) in said
    for section in ("growth", "maps", "where", "histogram", "fields", "rows", "read"):
        assert f'<section id="{section}">' in text
    for f in ("T", "box", "pos"):
        of_field = [g for g in found.fields if g.field == f]
        rows = [r for r in page.rows if r[:1] == [f] and len(r) == 7]
        assert [r[1:3] for r in rows] == [
            [f"{sum(g.different for g in of_field):,}", f"{sum(g.elements for g in of_field):,}"]
        ]
    # The growth's table holds the largest difference of all ranks by step and field.
    for step in (30, 70):
        largest = max(g.max_abs_diff for g in found.fields if (g.step, g.field) == (step, "T"))
        row = next(r for r in page.rows if r[:2] == [str(step), "T"] and len(r) == 6)
        assert float(row[2].removeprefix("≤ ")) == pytest.approx(largest, rel=0.01)
    rows = saved(page)
    assert rows["rows_in_all"] == len(found.fields) == len(rows["rows"])
    at = {name: i for i, name in enumerate(rows["columns"])}
    assert sum(r[at["different"]] for r in rows["rows"]) == found.different


def test_without_ranks_none_is_named(tmp_path: Path) -> None:
    """Of a run of one process 'rank 0' says nothing."""
    x = np.linspace(0, 1, 5000)
    for name in "ab":
        with twinrun.Run(tmp_path / name, atol=1e-3) as run:
            for step, shift in ((1, 0.0), (2, 4e-4), (3, 0.1)):
                run.capture(step, {"x": x + shift * (name == "b"), "y": x})
    page = check_page(page_of(twinrun.compare(tmp_path / "a", tmp_path / "b")))
    said = " ".join(" ".join(page.text).split())
    assert "rank" not in said.split("Growth of the difference")[1] and "compared on cpu" not in said
    assert "of 5,000 elements differ." in said and " 5000; " not in said
    # Both places: where the runs part at all, and where they leave the tolerance.
    assert "The runs first part at step 2: largest" in said and "first at step 3, x" in said


def test_what_was_read_is_what_was_compared(tmp_path: Path) -> None:
    """Of decoded files too, which are not read in place."""
    for name in "ab":
        np.savez_compressed(tmp_path / f"{name}.npz", x=np.arange(5000.0))
    said = " ".join(check_page(page_of(twinrun.compare(tmp_path / "a.npz", tmp_path / "b.npz"))).text)
    assert re.search(r"of it read\s+100%", said)
    assert "All elements were compared one by one. Nothing was read in place: elements were decoded" in said
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", np.linspace(0, 1, 50000))
    twinrun.index(tmp_path / "a.npy", tmp_path / "b.npy", atol=1e-3)
    said = " ".join(check_page(page_of(twinrun.compare(tmp_path / "a.npy", tmp_path / "b.npy"))).text)
    assert "0 B of them were compared one by one." in said and re.search(r"of it read\s+0%", said)


def test_bounds_of_the_mean_are_no_line(tmp_path: Path) -> None:
    """A root mean square that metadata bounds is marked in the table, and no point of the dotted line."""
    x = np.linspace(0, 1, 50000)
    for name in "ab":
        with twinrun.Run(tmp_path / name, atol=1e-3) as run:
            for step, shift in ((1, 4e-4), (2, 5e-4), (3, 0.1)):
                run.capture(step, {"x": x + shift * (name == "b")})
    text = page_of(twinrun.compare(tmp_path / "a", tmp_path / "b"))
    rows = [r for r in check_page(text).rows if len(r) == 6 and r[:2] in (["1", "x"], ["2", "x"], ["3", "x"])]
    assert [r[3].startswith("≤ ") for r in rows] == [True, True, False]
    dotted = re.findall(r'<polyline points="([^"]*)" fill="none" style="[^"]*dasharray:2 3', text)
    assert dotted and all(len(points.split()) == 1 for points in dotted)


def test_labels_of_rules_are_read(found: Comparison) -> None:
    """They are drawn last, over lines that pass behind them."""
    picture = drawn(
        charts.line_chart(
            [charts.Line("x", 0, [(0.0, 1.0, False, ""), (1.0, 2.0, False, "")])], [(1.5, "limit", None)], "t"
        )
    )
    assert picture.index("<polyline") < picture.index(">limit<") and "paint-order:stroke" in picture


def test_the_same_runs_and_runs_that_cannot_be_compared(runs: Path, tmp_path: Path) -> None:
    same = check_page(page_of(twinrun.compare(runs / "a", runs / "a")))
    assert any("verdict good" in a.get("class", "") for a in same.named("p"))
    assert "First divergence" not in same.text
    a = {"x": np.zeros(4), "y": np.ones(3), "only": np.ones(2)}
    np.savez(tmp_path / "a.npz", **a)
    np.savez(tmp_path / "b.npz", x=np.ones(4), y=np.ones(5))
    partly = twinrun.compare(tmp_path / "a.npz", tmp_path / "b.npz", partial=True)
    assert partly.verdict == "incomparable"
    text = page_of(partly)
    page = check_page(text)
    assert 'class="verdict open"' in text and text.index("incomparable") < text.index('id="problems"')
    assert all(any(problem in t for t in page.text) for problem in partly.problems)
    assert "First divergence" in text  # of what was compared
    error = check_page(error_html("a<b", "c", "shape [3] in a<b & c"))
    assert any("shape [3] in a<b & c" in t for t in error.text)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_text(name: str, tmp_path: Path) -> None:
    a, b = {name: np.zeros((30, 20)), "x": np.zeros(3)}, {name: np.ones((30, 20)), "x": np.zeros(3)}
    one = twinrun.compare(a, b)
    found = dataclasses.replace(
        one, a=f"/runs/{name}/a", b=f"/runs/{name}/b", notes=[name], problems=[name], verdict="incomparable"
    )
    found._again = one._again
    write_html(found, tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    page = check_page(text)
    assert "\x1b" not in text and "\x00" not in text and len(text) < 300_000
    assert saved(page)["rows"][0][2] == name
    for shown in (one._repr_html_(), one.fields[0]._repr_html_()):
        notebook = Page(shown)
        assert {t for t, _ in notebook.tags} <= {"div", "p", "b", "table", "thead", "tbody", "tr", "th", "td"}


@given(name=st.text(st.characters(exclude_categories=()), max_size=30))
@settings(max_examples=40)
def test_any_name_stays_text(name: str) -> None:
    one = twinrun.compare({name: np.zeros(8)}, {name: np.ones(8)})
    check_page(page_of(dataclasses.replace(one, notes=[name])))
    Page(one._repr_html_())


def many(template: Comparison, steps: int, ranks: int, fields: int) -> Comparison:
    """A comparison of as many, made of one field."""
    f = template.fields[0]
    made = []
    for s, r, n in np.ndindex(steps, ranks, fields):
        g = copy.copy(f)
        g.step, g.rank, g.field = s, r, f"field {n}"
        if s <= steps // 2 or (s + r + n) % 3:
            g.different, g.first_index = 0, None
        made.append(g)
    return dataclasses.replace(template, fields=made, notes=[f"note {i}" for i in range(5000)])


def test_very_many_fields_make_no_very_large_page() -> None:
    one = twinrun.compare({"x": np.arange(6.0)}, {"x": np.arange(6.0) + 0.5})
    found = many(one, 100, 10, 100)
    assert len(found.fields) == 100_000
    text = page_of(found)
    page = check_page(text)
    assert len(text) < 4_000_000
    assert "field 50" in text and saved(page)["rows_in_all"] == 100_000
    assert all(f["rows_in_all"] >= len(f["rows"]) for f in [saved(page)])
    deep = page_of(many(one, 3, 1000, 1))
    assert len(check_page(deep).named("rect")) < 500


def test_all_steps_ranks_and_fields_are_in_the_maps() -> None:
    """Whatever was put together: what differs is red, and the numbers are those of the comparison."""
    one = twinrun.compare({"x": np.arange(6.0)}, {"x": np.arange(6.0) + 0.5})
    for shape in ((5, 3, 4), (200, 2, 50), (1, 90, 1)):
        found = many(one, *shape)
        different = sum(f.different for f in found.fields)
        page = Page(page_of(found))
        for what, kind in (("field", "field"), ("rank", "rank")):
            # A map that fits a telephone is there twice: each cell counts once.
            cells = dict.fromkeys(
                t for t in page.text if t.startswith("step ") and f", {what} " in t and " differ, max" in t
            )
            if cells:
                sums = [re.search(r": ([\d,]+) of ([\d,]+) differ", t) for t in cells]
                assert sum(int(m[1].replace(",", "")) for m in sums) == different, kind
                assert sum(int(m[2].replace(",", "")) for m in sums) == sum(f.elements for f in found.fields)
            else:
                assert shape[0] == 1 or shape[1] == 1


@given(
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    large=st.integers(0, 300),
    fortran=st.booleans(),
    seed=st.integers(0, 999),
)
@settings(max_examples=60)
def test_densities_count_every_difference(shape: list[int], large: int, fortran: bool, seed: int) -> None:
    random = np.random.default_rng(seed)
    shape[seed % len(shape)] += large
    shape = shape[: max(1, 5 - (large > 50))]
    a = np.zeros(shape, order="F" if fortran else "C")
    wrong = random.random(a.shape) < random.choice([0.01, 0.5])
    b = np.where(wrong, 1.0, a)
    b = np.asfortranarray(b) if fortran else b
    found = twinrun.compare(a, b)
    if not wrong.any() or a.size < 2:
        return
    seen, said = places.look(found)
    assert not said and len(seen) == 1 and seen[0].seen == int(wrong.sum()) == found.different
    place = seen[0]
    names = [f"axis {d}" for d in range(a.ndim)]
    assert place.planes or place.line is not None
    for plane in place.planes:
        columns, rows = (names.index(n) for n in plane.labels)
        assert plane.counts.sum() == found.different and max(plane.counts.shape) <= 128
        along = np.moveaxis(wrong, rows, 0).reshape(wrong.shape[rows], -1).sum(axis=1)
        size = -(-wrong.shape[rows] // 128)
        binned = [along[i : i + size].sum() for i in range(0, along.size, size)]
        assert plane.counts.sum(axis=1).tolist() == binned
        assert plane.ranges == ((0, a.shape[columns] - 1), (0, a.shape[rows] - 1))
    if place.line is not None:
        assert place.line.sum() == found.different
    assert [entry[1] for entry in place.listed] == [tuple(i) for i in np.argwhere(wrong).tolist()[:20]]


@pytest.mark.parametrize("key", [None, "id"])
@pytest.mark.parametrize("split", [False, True])
def test_particles_are_shown_where_they_are(tmp_path: Path, key: str | None, split: bool) -> None:
    random = np.random.default_rng(2)
    pos = random.uniform(0, 10, size=(500, 3)).astype(np.float32)
    energy = random.normal(size=500)
    hot = (pos[:, 0] > 8) & (pos[:, 1] < 2)
    order = random.permutation(500) if key else np.arange(500)
    position = {f"pos_{n}": pos[:, i].copy() for i, n in enumerate("xyz")} if split else {"Coordinates": pos}
    np.savez(tmp_path / "a.npz", id=np.arange(500), energy=energy, **position)
    moved = {n: v[order] for n, v in position.items()}
    np.savez(tmp_path / "b.npz", id=np.arange(500)[order], energy=(energy + hot)[order], **moved)
    found = twinrun.compare(tmp_path / "a.npz", tmp_path / "b.npz", key=key)
    (place,), said = places.look(found)
    assert not said and len(place.planes) == 3
    plane = place.planes[0]
    assert plane.labels == ("x", "y") and plane.behind is not None
    assert plane.counts.sum() == hot.sum() == place.seen and plane.behind.sum() == 500
    (x0, x1), (y0, y1) = plane.ranges
    rows, columns = np.nonzero(plane.counts)
    assert (x0 + columns / 96 * (x1 - x0)).min() > 7.7 and (y0 + rows / 96 * (y1 - y0)).max() < 2
    page = check_page(page_of(found))
    assert ("Particles, by ID" in " ".join(page.text)) == (key is not None)


def test_looking_is_bounded_and_says_so(tmp_path: Path) -> None:
    a = np.zeros(3_000_000)
    b = a.copy()
    b[::1000] = 1
    found = twinrun.compare(a, b)
    (place,), _ = places.look(found, bytes_each=9 << 20)
    assert 0 < place.seen < found.different and f"{place.seen:,} of {found.different:,}" in place.note
    assert place.line is not None and place.line.sum() == place.seen
    (place,), said = places.look(found, seconds=-1.0)
    assert place.seen == 0 and not said and "0 of 3,000" in place.note
    check_page(page_of(found))
    del b
    gc.collect()
    page = check_page(page_of(found))
    assert any("arrays that were compared are gone" in t for t in page.text)
    assert any("verdict bad" in attrs.get("class", "") for attrs in page.named("p"))


@pytest.mark.parametrize("most", [1, 20_000, 1 << 28])
def test_looking_at_particles_is_bounded_too(tmp_path: Path, most: int) -> None:
    random = np.random.default_rng(2)
    for run, order in (("a", np.arange(2000)), ("b", random.permutation(2000))):
        fields = {
            n: np.arange(2000.0)[order] + (run == "b") * np.arange(1, 2001)[order] % 2 for n in ("u", "v")
        }
        np.savez(tmp_path / f"{run}.npz", id=np.arange(2000)[order], **fields)
    found = twinrun.compare(tmp_path / "a.npz", tmp_path / "b.npz", key="id")
    seen, said = places.look(found, bytes_each=most)
    assert not said and [p.field.field for p in seen] == ["u", "v"]
    for place in seen:
        assert place.seen == (1000 if most > 1 << 20 else 0)
        assert bool(place.note) == (place.seen == 0)


def test_a_page_needs_no_plotting_library(found: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert len(check_page(page_of(found)).named("svg")) >= 5


def drawn(picture: charts.Picture) -> str:
    """The SVG of a picture."""
    return environment().get_template("report/charts.svg.j2").module.chart(picture)


def test_lines_keep_their_extremes() -> None:
    values = [(float(i), 1.0 + (i == 777) * 1e6, False, "") for i in range(10_000)]
    picture = drawn(charts.line_chart([charts.Line("x", 0, values)], [(0.5, "tolerance", None)], "t"))
    points = re.search(r'points="([^"]*)"', picture)[1].split()
    heights = [float(p.split(",")[1]) for p in points]
    assert len(points) <= 600 and min(heights) < min(h for h in heights if h != min(heights)) - 100
    extreme = [
        (0.0, 0.0, False, "none"),
        (1.0, 5e-324, False, "tiny"),
        (2.0, 1.7e308, True, "huge"),
        (3.0, float("inf"), False, "inf"),
    ]
    picture = drawn(charts.line_chart([charts.Line("x", 1, extreme)], [], "t"))
    assert "nan" not in picture and all(
        f"<title>{w}</title>" in picture for w in ("none", "tiny", "huge", "inf")
    )


def test_the_command_writes_the_page(runs: Path, tmp_path: Path) -> None:
    target = tmp_path / "r.html"
    assert command("compare", runs / "a", runs / "b", "-q", "--html", target).status == 1
    assert 'class="verdict bad"' in target.read_text(encoding="utf-8")
    check_error(command("compare", runs / "a", tmp_path / "none", "--html", target))
    text = target.read_text(encoding="utf-8")
    check_page(text)
    assert 'class="verdict open"' in text and "no such file" in text and "First divergence" not in text
    line = check_error(command("compare", runs / "a", runs / "b", "-q", "--html", tmp_path / "no" / "r.html"))
    assert "cannot write the HTML report" in line
    junit = tmp_path / "r.xml"
    assert command("compare", runs / "a", runs / "b", "-q", "--junit", junit).status == 1
    assert "<testsuite" in junit.read_text() and 'failures="0"' not in junit.read_text()
    check_error(command("compare", runs / "a", tmp_path / "none", "--junit", junit))
    assert "<error" in junit.read_text()
    np.savez(tmp_path / "a.npz", x=np.zeros(4), y=np.ones(3))
    np.savez(tmp_path / "b.npz", x=np.zeros(4))
    partly = command(
        "compare", tmp_path / "a.npz", tmp_path / "b.npz", "-q", "--junit", junit, "--html", target
    )
    assert partly.status == 2 and 'errors="1"' in junit.read_text() and 'tests="2"' in junit.read_text()
    assert 'id="problems"' in target.read_text(encoding="utf-8")


# ---- in a notebook, and as tables ----


def test_results_show_themselves(found: Comparison) -> None:
    text = found._repr_html_()
    assert ">different</b>" in text and "more rows" in text and len(Page(text).rows) == 16
    field = found.first._repr_html_()
    assert found.first.place() in html.unescape(field)
    same = twinrun.compare(np.zeros(2), np.zeros(2))
    assert ">same</b>" in same._repr_html_() and ">same</b>" in same.fields[0]._repr_html_()


def test_tables_of_other_packages(found: Comparison) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    big = twinrun.compare(
        {"n": np.array([2**63 - 1]), "u": np.array([2**64 - 1], np.uint64), "x": np.array([np.nan])},
        {"n": np.array([2**63 - 2]), "u": np.array([0], np.uint64), "x": np.array([1.0])},
    )
    for c in (found, big):
        frame, table = c.to_pandas(), c.to_arrow()
        assert len(frame) == table.num_rows == len(c.fields)
        assert frame["different"].sum() == c.different == sum(table["different"].to_pylist())
        assert table["field"].to_pylist() == frame["field"].tolist() == [f.field for f in c.fields]
        assert table["shape"].to_pylist() == [list(f.shape) for f in c.fields]
        steps = [None if s is pd_na() else s for s in frame["step"].tolist()]
        assert steps == table["step"].to_pylist() == [f.step for f in c.fields]
    by_name = big.to_pandas().set_index("field")
    assert by_name.loc["n", "first_a"] == 2**63 - 1 and by_name.loc["u", "first_abs_diff"] == 2**64 - 1
    assert big.to_arrow()["first_a_exact"].to_pylist()[:2] == [str(2**63 - 1), str(2**64 - 1)]


def pd_na() -> object:
    import pandas

    return pandas.NA


def test_without_these_packages_the_command_is_named(
    found: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("pandas", "pyarrow"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackage, match="pip install pandas"):
        found.to_pandas()
    with pytest.raises(MissingPackage, match=r"pip install 'twinrun\[parquet\]'"):
        found.to_arrow()


# ---- in a browser ----

LOOK = """(() => {
  const inside = e => { const r = e.getBoundingClientRect(); return r.top >= 0 && r.bottom <= innerHeight && r.left >= 0 && r.right <= innerWidth };
  const seen = [...document.querySelectorAll('svg')].filter(s => s.getClientRects().length);
  const first = document.querySelector('#first-divergence'), verdict = document.querySelector('.verdict');
  return {width: innerWidth, height: innerHeight, wide: document.documentElement.scrollWidth,
    first: first && inside(first), verdict: inside(verdict),
    loaded: performance.getEntriesByType('resource').map(e => e.name).filter(n => !n.startsWith('data:')),
    flat: seen.filter(s => s.getBoundingClientRect().height < 40).length,
    maps: [...document.querySelectorAll('#maps svg')].filter(s => s.getClientRects().length).map(s => 12 * s.getBoundingClientRect().width / s.viewBox.baseVal.width),
    growth: [...document.querySelectorAll('#growth svg')].filter(s => s.getClientRects().length).map(s => { const r = s.getBoundingClientRect(),
      b = s.parentElement; return [r.left >= 0 && r.right <= innerWidth && b.scrollWidth <= b.clientWidth, 12 * r.width / s.viewBox.baseVal.width] }),
    pictures: seen.length,
    outside: seen.flatMap(s => [...s.querySelectorAll('text')]).filter(t => { const r = t.getBoundingClientRect(), s = t.closest('svg').getBoundingClientRect();
      return r.left < s.left - 2 || r.right > s.right + 2 || r.bottom > s.bottom + 2 }).map(t => t.textContent),
    background: getComputedStyle(document.body).backgroundColor}
})()"""


SIZES = [(1280, 800), (390, 844), (1920, 1080)]


def check_answers(answers: list, sizes: list) -> None:
    for answer, (width, height) in zip(answers, sizes, strict=True):
        assert "error" not in answer, answer
        assert (answer["width"], answer["height"]) == (width, height)
        assert answer["wide"] <= width  # only tables and pictures scroll sideways, each in itself
        assert answer["verdict"] and answer["loaded"] == [] and answer["flat"] == 0


@pytest.mark.parametrize("dark", [False, True])
def test_the_first_divergence_is_seen_without_scrolling(
    found: Comparison, tmp_path: Path, dark: bool
) -> None:
    write_html(found, tmp_path / "r.html")
    seen = open_page(tmp_path / "r.html", LOOK, SIZES, dark)
    assert seen.console == []
    check_answers(seen.answers, SIZES)
    for answer in seen.answers:
        assert answer["first"] and answer["pictures"] >= 5 and answer["outside"] == []
        ((whole, letters),) = answer["growth"]  # one of its two pictures, whole, and large enough to read
        assert whole and letters >= 9
        assert answer["maps"] and min(answer["maps"]) >= 9
        assert is_dark(answer) == dark


def test_hostile_names_do_nothing_in_a_browser(tmp_path: Path) -> None:
    a = {name: np.zeros((30, 40)) for name in HOSTILE}
    b = {name: np.ones((30, 40)) for name in HOSTILE}
    one = twinrun.compare(a, b)
    found = dataclasses.replace(one, notes=HOSTILE, problems=HOSTILE, verdict="incomparable")
    write_html(found, tmp_path / "r.html")
    seen = open_page(tmp_path / "r.html", LOOK, SIZES[:1])
    assert seen.console == []
    check_answers(seen.answers, SIZES[:1])


def is_dark(answer: dict) -> bool:
    red, green, blue = map(int, re.findall(r"\d+", answer["background"])[:3])
    return red + green + blue < 150


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_of_an_ensemble_in_a_browser(tmp_path: Path, dark: bool) -> None:
    for package in ("pandas", "scipy", "statsmodels", "matplotlib"):
        pytest.importorskip(package)
    from ensemble_simulation import study

    from twinrun.ensemble import Options
    from twinrun.ensemble.analysis.findings import analyse_frame
    from twinrun.report.ensemble import write_html as write_ensemble

    write_ensemble(
        analyse_frame(study(3, sigma=0.15), Options(permutations=1999, resamples=499), only=["spread"]),
        str(tmp_path / "e.html"),
    )
    seen = open_page(tmp_path / "e.html", LOOK, SIZES, dark)
    assert seen.console == [] and [a["pictures"] for a in seen.answers] == [1] * len(SIZES)
    check_answers(seen.answers, SIZES)
    assert [is_dark(a) for a in seen.answers] == [dark] * len(SIZES)


PLAN = (
    """(() => { const look = """
    + LOOK
    + """; const text = document.querySelector('svg text'), svg = document.querySelector('svg');
  return {...look, filter: getComputedStyle(svg).filter, text: getComputedStyle(text).fill, heading: document.querySelector('h1').textContent,
    ground: [...document.querySelectorAll('svg rect')].filter(r => getComputedStyle(r).fill === 'rgb(255, 255, 255)').length}
})()"""
)


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_of_a_plan_in_a_browser(tmp_path: Path, dark: bool) -> None:
    from twinrun.aggregate.report import save_html

    plan = twinrun.plan_aggregation(
        "torus:4x4x2", ranks_per_node=4, aggregators=8, placements=("cost", "rank")
    )
    save_html(plan, str(tmp_path / "p.html"))
    check_page(re.sub(r' xmlns="[^"]*"', "", (tmp_path / "p.html").read_text()))
    seen = open_page(tmp_path / "p.html", PLAN, SIZES, dark)
    assert seen.console == []
    check_answers(seen.answers, SIZES)
    for answer in seen.answers:
        assert (
            answer["heading"].startswith("Plan of aggregation: torus 4x4x2: 128 ranks")
            and answer["pictures"] == 2
        )
        assert answer["filter"] == "none" and answer["ground"] == 0 and answer["outside"] == []
        assert is_dark(answer) == dark
        light = sum(map(int, re.findall(r"\d+", answer["text"])[:3])) > 500
        assert light == dark


def test_the_browser_would_tell(tmp_path: Path) -> None:
    """What the other tests rest on: a script that fails and a picture from elsewhere are seen."""
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<!DOCTYPE html><html><body style='width:3000px'><p class=verdict style='margin-top:2000px'>x</p>"
        "<img src='http://nowhere.invalid/x.png'><script>missing()</script></body></html>"
    )
    seen = open_page(bad, LOOK, SIZES[1:2])
    assert any("missing is not defined" in line for line in seen.console)
    (answer,) = seen.answers
    assert (
        answer["loaded"] == ["http://nowhere.invalid/x.png"]
        and not answer["verdict"]
        and answer["wide"] >= 3000
    )
