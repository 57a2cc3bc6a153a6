"""Pages and pictures: text stays text, whoever wrote it, in every place where a report shows some."""

from __future__ import annotations

import ast
import dataclasses
import html.parser
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import jinja2
import numpy as np
import pytest

import twinrun
from twinrun.aggregate.report import save_html, svg
from twinrun.comparison.attributes import AttributeDifference
from twinrun.errors import one_line
from twinrun.markup import environment, render
from twinrun.report.html import error_html
from twinrun.report.html import html as page_of
from twinrun.report.places import look
from twinrun.report.trace import trace_html
from twinrun.runs.provenance import Provenance
from twinrun.trace.result import Around, Origin, Passed, StructureDifference, TraceComparison, ValueDifference
from twinrun.trace.site import Site

PLAIN = "plain"
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)' x='",
    "</style></title></svg></text><b>",
    "]]>--><!--<![CDATA[",
    "a&b;&lt;&#60;script&#62;",
    "{{ 7 * 7 }}{% raw %}{# x #}",
    "new\nline\ttab\r\x1b[31m\x00\x9b",
    "\u202etfel ot thgir\u2066\u200b\ufeff",
    "\udc80raw",
]


PICTURES = ("ensemble", "noise")  # reports with pictures of matplotlib


class Text:
    """Texts of an author: each begins with the name of the place where it is put."""

    def __init__(self, written: str) -> None:
        self.written = written
        self.places: list[str] = []

    def __call__(self, place: str) -> str:
        self.places.append(place)
        return f"[{place}] {self.written}"


class Skeleton(html.parser.HTMLParser):
    """Elements of a page with the names of their attributes, and its text. Within pictures of matplotlib: which there are."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, ...]] = []
        self.kinds: set[tuple[str, ...]] = set()
        self.said: list[str] = []
        self.comments: list[str] = []
        self.foreign = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list) -> None:
        element = (tag, *(name for name, _ in attrs))
        assert len(set(element[1:])) == len(attrs), f"an attribute twice: {element}"
        self.foreign = self.foreign or (
            tag == "svg" and ("class", "chart") not in attrs and "xmlns:xlink" in element
        )
        if self.foreign:
            self.kinds.add(element)
        else:
            self.elements.append(element)
        self.said += [value or "" for _, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        if not self.foreign:
            self.elements.append((f"/{tag}",))
        self.foreign = self.foreign and tag != "svg"

    def handle_data(self, data: str) -> None:
        self.said.append(data)

    def handle_comment(self, data: str) -> None:
        if not self.foreign:
            self.comments.append(data)


def of_comparison(text: Text) -> str:
    """The page of a comparison with everything that one can have, and a text of the author wherever there is one."""
    first, second = text("first field"), text("second field")
    a = {first: np.zeros((30, 20)), second: np.arange(300.0), "same": np.zeros(3)}
    b = {first: np.ones((30, 20)), second: np.arange(300.0) + 1, "same": np.zeros(3)}
    one = twinrun.compare(a, b)
    seen, _ = look(one)
    assert seen[0].planes and seen[1].line is not None
    seen[0].note = text("note of places")
    seen[0].planes[0].labels = (text("columns"), text("rows"))
    seen[0].planes[0].behind = seen[0].planes[0].counts
    fields = [
        dataclasses.replace(
            f, step=step, rank=rank, dtype=text("type"), device=text("device"), reason=text("reason"), warnings=[text("warning")]
        )
        for step in (1, 2)
        for rank in (0, 1)
        for f in one.fields
    ]  # fmt: skip
    of_texts = dataclasses.replace(
        fields[0], field=text("field of texts"), kind=text("kind"), first_a=text("a"), first_b=text("b")
    )
    counts = {
        "matched": 1,
        "lost": 1,
        "born": 0,
        "doubled_a": 0,
        "doubled_b": 0,
        "moved": None,
        "lost_ids": [4],
    }
    ids = dataclasses.replace(fields[0], field=text("IDs"), key="id", particles=counts)
    runs = [
        Provenance((0,), 1, facts, facts)
        for run in "ab"
        for facts in [
            {
                text("group"): {
                    f"{at} {text('condition')}": {text(f"value in {run}"): (0,)} for at in range(20)
                }
            }
        ]
    ]
    found = dataclasses.replace(
        one,
        a=f"runs/{text('first run')}",
        b=f"runs/{text('second run')}",
        verdict="incomparable",
        fields=[of_texts, *fields, ids],
        notes=[text("note") for _ in range(20)],
        problems=[text("problem") for _ in range(20)],
        not_compared=2,
        attributes=[
            AttributeDifference(1, 0, text("owner"), text("attribute"), text("units of a"), None, True),
            AttributeDifference(None, 0, "", "x", None, text("units of b"), False),
        ],
        attributes_compared=9,
        provenance_a=runs[0],
        provenance_b=runs[1],
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("twinrun.report.html.look", lambda _: (seen, text("what was not seen")))
        return page_of(found)


def of_error(text: Text) -> str:
    return error_html(text("first run"), text("second run"), text("error"))


def of_notebook(text: Text) -> str:
    found = twinrun.compare({text("field"): np.zeros(3)}, {text("field"): np.ones(3)})
    found = dataclasses.replace(
        found,
        problems=[text("problem")] * 7,
        attributes=[AttributeDifference(1, 0, text("owner"), text("attribute"), text("units"), None, True)]
        * 7,
    )
    return found._repr_html_() + found.fields[0]._repr_html_()


def figure_of(text: Text) -> object:
    from matplotlib.figure import Figure

    figure = Figure()
    axes = figure.add_subplot()
    axes.bar([0, 1], [1, 2], label=text("label"))
    axes.set_xticks([0, 1], [text("node"), text("host")])
    axes.set_title(text("title of the picture"))
    axes.set_xlabel(text("unit"))
    axes.text(0, 0, "two\nlines")
    axes.legend()
    return figure


def of_ensemble(text: Text) -> str:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")
    from twinrun.report.ensemble import page

    table = pandas.DataFrame({text("column"): [text("cell")] * 60, "number": 1.5})
    analyses = [
        SimpleNamespace(
            name=text("name"), title=text("title"), sentence=text("sentence"), description=text("description"), state=state, notes=[text("note")], table=table,
            draw=True, facts={"cells": [{text("factor"): text("level")}], "calls": []}, figure=lambda: figure_of(text),
        )
        for state in ("found", "described")
    ]  # fmt: skip
    analyses[1].draw, analyses[1].table = None, table.iloc[:0]
    conditions = pandas.DataFrame(
        {"condition": [text("condition")], "n": 1, "median": 1.0, "low": 0.5, "high": 2.0, "CoV": 0.1}
    )
    analyses += [
        SimpleNamespace(
            name=name, title=text("title"), sentence=text("sentence"), description=text("description"), state=state, notes=[text("note")], table=rows, draw=True, facts={},
            figure=lambda: figure_of(text),
        )
        for name, state, rows in (("conditions", "described", conditions), ("undecided one", "open", table))
    ]  # fmt: skip
    return page(
        SimpleNamespace(
            study=text("study"), verdict="undecided", headline=text("headline"), attempts={text("status"): 3, "done": 2}, tasks=5,
            options=SimpleNamespace(value=text("value"), confidence=0.95), analyses=analyses, remarks=[text("remark")],
            takes=lambda name: text("what it takes") if name == "undecided one" else "",
        )
    )  # fmt: skip


def of_noise(text: Text) -> str:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")
    from twinrun.report.noise import page

    document = {"host": text("host"), "rounds": 3, "seconds": 1.0, "clock": text("clock"), "threshold": text("threshold"),
                "confidence": 0.95}  # fmt: skip
    table = pandas.DataFrame({text("column"): [text("cell")]})
    return page(
        SimpleNamespace(
            document=document, sentence=text("sentence"), table=table, figure=lambda: figure_of(text)
        )
    )


def of_acceptance(text: Text) -> str:
    pytest.importorskip("scipy")
    from twinrun.acceptance import Acceptance, Excess, FieldAcceptance
    from twinrun.report.acceptance import page

    far = FieldAcceptance(
        text("field"),
        [1, 2],
        [3],
        2.0,
        1,
        1.5,
        1.5,
        3.0,
        3,
        text("statistic"),
        0.01,
        [(1, 0.0, 2.0), (2, 1.0, 2.0)],
        True,
    )
    excesses = [Excess("growth", 1, text("excess"), "distance", text("run"), 20.0)]
    excesses += [Excess("distribution", 3, "x", text("what"), "", 4.0, 3.0, 5.0, 0.01)]
    return page(
        Acceptance("rejected", text("sentence"), [text("reference")], [text("new")], [1, 2, 3], [far], excesses, 0.01,
                   {text("test"): 0.01}, 21, True, 0.05, 10.0, None, 2.0, [text("checked")], [text("note")])
    )  # fmt: skip


def planned(text: Text) -> twinrun.AggregationPlan:
    plan = twinrun.plan_aggregation("flat:8", ranks_per_node=2, aggregators=4)
    placements = tuple(
        dataclasses.replace(p, placement=text(f"placement {at}")) for at, p in enumerate(plan.placements)
    )
    return dataclasses.replace(
        plan, topology=text("machine"), layout=text("layout"), placements=type(plan.placements)(placements)
    )


def of_plan(text: Text) -> str:
    written: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("twinrun.aggregate.report.write_whole", lambda path, page, kind: written.append(page))
        save_html(planned(text), "plan.html")
    return written[0]


def of_traces(text: Text) -> str:
    """The page of two traces with everything that one can have."""

    def value(at: int, **more) -> ValueDifference:
        facts = {
            "elements": 5,
            "different": 2,
            "max_abs_diff": 0.5,
            "max_ulp": 3,
            "first_index": [0, 1],
            **more,
        }
        return ValueDifference(
            text(f"value {at}"), text("role"), True, text("form in a"), text("form in b"), **facts,
            first_a=text("element of a"), first_b=text("element of b"),
        )  # fmt: skip

    def site(name: str) -> Site:
        return Site(3, 1, text(f"phase of {name}"), text(f"module of {name}"), text(f"operation of {name}"))

    def origin(name: str, rank: int = 0) -> Origin:
        module = text("named by the first") if name == "first" else "m"
        return Origin(rank, site(name), "operation", module, text("class"), 4, [value(1), value(2)])

    first, other, later = origin("first"), origin("other", 1), origin("later")
    first.generator = text("generator")
    in_both = text("class in a"), text("class in b")
    first.structure = [
        StructureDifference(site("taken"), text("what holds values"), "value", False, "class", *in_both)
    ]
    passed = [
        Passed(text("what goes in"), text("its role"), False, text("its form"), True, site("producer")),
        *(Passed(f"out {n}", "value", True, "float32[2]", False, None) for n in range(14)),
        Passed(text("the out that differs"), "value", True, "float32[2]", True, None),
    ]
    around = [
        Around(site("before"), "inputs agree", text("its class"), passed),
        Around(first.site, "outputs differ", "", passed),
    ]
    facts = [{text("group"): {text("condition"): {text(f"value in {run}"): (0,)}}} for run in "ab"]
    result = TraceComparison(
        text("run a"), text("run b"), "different", first, {0: first, 1: other}, [first, other, later], around, 9, 8, 7, 6,
        [text("problem") for _ in range(20)], [text("note") for _ in range(20)],
    )  # fmt: skip
    result.provenance_a, result.provenance_b = (Provenance((0,), 1, f, f) for f in facts)
    result.by_module = {
        (n, m): (4, (n + at) % 3)
        for n in range(100)
        for at, m in enumerate([text("module of the map"), "", "x"])
    }
    return trace_html(result)


REPORTS = {
    "traces": of_traces,
    "acceptance": of_acceptance,
    "comparison": of_comparison,
    "error": of_error,
    "notebook": of_notebook,
    "ensemble": of_ensemble,
    "noise": of_noise,
    "plan": of_plan,
}


@pytest.fixture(scope="module")
def plain() -> Callable[[str], Skeleton]:
    """The skeleton of each report whose author means well."""
    made: dict[str, Skeleton] = {}

    def of(report: str) -> Skeleton:
        if report not in made:
            made[report] = Skeleton(REPORTS[report](Text(PLAIN)))
        return made[report]

    return of


def test_the_page_of_a_comparison_has_all_parts(plain: Callable[[str], Skeleton]) -> None:
    """What the next test rests on: no part of the page is left out."""
    source = environment().loader.get_source(environment(), "report/comparison.html.j2")[0]  # type: ignore[union-attr]
    parts = re.findall(r"<section[^>]* id=\"([^\"]+)\"", source)
    assert len(parts) == 12
    assert set(parts) <= set(plain("comparison").said)


def test_the_page_of_traces_has_all_parts(plain: Callable[[str], Skeleton]) -> None:
    source = environment().loader.get_source(environment(), "report/trace.html.j2")[0]  # type: ignore[union-attr]
    parts = re.findall(r"<section[^>]* id=\"([^\"]+)\"", source)
    assert len(parts) == 9 and set(parts) <= set(plain("traces").said)


@pytest.mark.parametrize("written", HOSTILE)
@pytest.mark.parametrize("report", REPORTS)
def test_no_text_becomes_an_element(report: str, written: str, plain: Callable[[str], Skeleton]) -> None:
    if report in PICTURES and "\udc80" in written:
        pytest.skip("neither pandas nor matplotlib takes half a surrogate pair")
    text = Text(written)
    page = REPORTS[report](text)
    found, wanted = Skeleton(page), plain(report)
    assert found.elements == wanted.elements
    assert found.kinds <= wanted.kinds
    assert found.comments == wanted.comments == []
    # Every text is there, as it was written but for controls, and none changed what is printed.
    said = "".join(found.said)
    for place in text.places:
        assert f"[{place}]" in said, place
    assert one_line(written) in said
    if report not in PICTURES:  # matplotlib breaks lines
        assert all(c.isprintable() or c == "\n" for c in page)


def test_a_picture_of_a_plan_is_xml_whatever_its_names_are() -> None:
    shapes = [
        [e.tag for e in ElementTree.fromstring(svg(planned(Text(written)))).iter()]
        for written in (PLAIN, *HOSTILE)
    ]
    assert all(shape == shapes[0] for shape in shapes)


def test_what_a_template_prints_is_text() -> None:
    """The rule itself: in text, in attributes, in numbers that are none, in macros, and joined to markup."""
    template = environment().from_string(
        '{% macro inner(x) %}<b>{{ x }}</b>{% endmacro %}<p title="{{ x }}">{{ x }}{{ inner(x) }}{{ x|cut(9) }}</p>'
    )
    for written in HOSTILE:
        found = Skeleton(template.render(x=written))
        assert found.elements == [("p", "title"), ("b",), ("/b",), ("/p",)]
        clean = one_line(written)
        assert found.said == [clean, clean, clean, one_line(written, 9)]
    with pytest.raises(jinja2.UndefinedError):
        environment().from_string("{{ missing }}").render()
    with pytest.raises(jinja2.TemplateNotFound):
        render("report/missing.html.j2")


def test_no_template_turns_escaping_off() -> None:
    names = environment().list_templates()
    assert {name.split("/")[0] for name in names} == {"aggregate", "comparison", "report"}
    kinds = Counter(name.split(".")[-2] for name in names)
    assert set(kinds) == {"html", "svg", "css"}
    loader = environment().loader
    assert loader is not None
    for name in names:
        source = loader.get_source(environment(), name)[0]
        assert not re.search(r"\|\s*safe\b|autoescape|\|\s*(xmlattr|tojson)\b", source), name
        # An attribute without quotes ends at a blank.
        assert not re.search(r"=\s*\{\{", re.sub(r"\{%.*?%\}|\{#.*?#\}", "", source)), name
        environment().get_template(name)


def test_commands_without_a_page_do_not_wait_for_templates() -> None:
    code = (
        "import sys, numpy as np, twinrun, twinrun.__main__, twinrun.report, twinrun.report.html, twinrun.aggregate.report\n"
        "import twinrun.comparison.notebook\n"
        "twinrun.compare(np.zeros(3), np.ones(3))\n"
        "print(*(name for name in ('jinja2', 'markupsafe') if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_no_markup_stands_in_the_code() -> None:
    """Tags stand in templates alone: a text that is joined to one in Python would escape nothing."""
    folder = Path(twinrun.__file__).parent
    found = []
    for path in sorted(folder.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        described = [n for n in ast.walk(tree) if isinstance(n, (ast.Module, ast.ClassDef, ast.FunctionDef))]
        docs = {id(n.body[0].value) for n in described if n.body and isinstance(n.body[0], ast.Expr)}
        found += [
            f"{path.relative_to(folder)}:{node.lineno}: {node.value!r}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
            if re.search(r"(?<!\(\?P)</?[a-z][a-z0-9]*[\s/>]", node.value)  # a group of a pattern is no tag
        ]
    assert found == []
