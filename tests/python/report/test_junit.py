"""Reports for machines that run tests: JUnit XML as its readers' schema wants it, and what GitHub takes."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from commands import check_error, command
from hypothesis import given, settings
from hypothesis import strategies as st

import twinrun
from twinrun import golden
from twinrun.report.github import annotation_lines, error_annotation, summary, write_summary
from twinrun.report.junit import _cases_of_attributes, junit_text, junit_text_of_error, write_junit

# The schema of Jenkins' xUnit plugin (junit-10.xsd), as far as it binds these reports: {element: (attributes that it must
# have, others that it may have, children)}.
SCHEMA = {
    "testsuites": (set(), {"name", "time", "tests", "failures", "errors"}, {"testsuite"}),
    "testsuite": (
        {"name", "tests", "failures", "errors"},
        {"time", "skipped", "timestamp", "hostname", "id", "package", "file"},
        {"testsuite", "properties", "testcase", "system-out", "system-err"},
    ),
    "testcase": (
        {"name"},
        {"time", "classname", "group"},
        {"skipped", "error", "failure", "system-out", "system-err"},
    ),
    "failure": (set(), {"type", "message"}, set()),
    "error": (set(), {"type", "message"}, set()),
    "system-out": (set(), set(), set()),
}


def parsed(text: str) -> ET.Element:
    """The document, after a look at its form and its counts."""
    root = ET.fromstring(text)
    assert root.tag == "testsuites"
    for element in root.iter():
        must, may, children = SCHEMA[element.tag]
        assert must <= set(element.keys()) <= must | may, element.attrib
        assert {child.tag for child in element} <= children
    for suite in root.iter("testsuite"):
        cases = suite.findall("testcase")
        counted = {"tests": len(cases)}
        counted |= {f"{kind}s": sum(c.find(kind) is not None for c in cases) for kind in ("failure", "error")}
        for name, n in counted.items():
            assert int(suite.get(name)) == int(root.get(name)) == n
        names = [(c.get("classname"), c.get("name")) for c in cases]
        assert len(set(names)) == len(names)
    for element in root.iter():
        if "time" in element.keys():
            assert re.fullmatch(r"[0-9]+\.[0-9]+", element.get("time"))
    return root


X = np.linspace(0.0, 1.0, 500).reshape(20, 25)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    golden.save({"x": X, "y": X}, tmp_path / "golden", atol=1e-3, keep_values=0)
    return tmp_path / "golden"


def bumped(amount: float) -> np.ndarray:
    y = X.copy()
    y[3, 7] += amount
    return y


def test_golden_check(kept: Path, tmp_path: Path) -> None:
    result = golden.check(kept, {"x": bumped(0.5), "z": X})
    write_junit(str(tmp_path / "junit.xml"), result)
    root = parsed((tmp_path / "junit.xml").read_text(encoding="utf-8"))
    cases = {c.get("name"): c for c in root.iter("testcase")}
    assert set(cases) == {"x", "y", "z"}
    failure = cases["x"].find("failure")
    assert failure.get("message").startswith("x[3, 7] = ") and failure.get("type") == "different"
    assert "> 0.001, the golden value is smaller" in failure.text
    assert cases["y"].find("error").get("message").startswith("not in")
    assert cases["x"].get("classname") == "arrays.rank_0"


def test_what_cannot_be_told(kept: Path) -> None:
    near = {"x": bumped(0.999e-3), "y": X}
    result = golden.check(kept, near)
    assert result.verdict == "undecided"
    failure = next(parsed(junit_text(result)).iter("failure"))
    assert failure.get("type") == "undecided within one cell"
    passed = golden.check(kept, near, undecided="pass")
    assert next(parsed(junit_text(passed)).iter("failure"), None) is None
    assert [line.split(" ")[0] for line in annotation_lines(result)] == ["::error"]
    assert [line.split(" ")[0] for line in annotation_lines(passed)] == ["::warning"]


def test_comparison() -> None:
    result = twinrun.compare({"x": X, "y": X}, {"x": X, "y": bumped(0.5)}, atol=1e-3)
    root = parsed(junit_text(result))
    assert [c.get("name") for c in root.iter("testcase")] == ["x", "y"]
    (failure,) = root.iter("failure")
    assert failure.get("message") == "1 of 500 elements differ, first at y[3, 7]"
    assert parsed(junit_text(twinrun.compare(X, X))).get("failures") == "0"


def test_nothing_could_be_compared(tmp_path: Path) -> None:
    root = parsed(junit_text_of_error("a", "b", "b: no such file\x00\x1b[31m"))
    assert root.get("errors") == "1" and "no such file" in next(root.iter("error")).get("message")
    report = tmp_path / "junit.xml"
    report.write_text("of an earlier check")
    (tmp_path / "run").mkdir()
    done = command("golden", "check", tmp_path / "nowhere", tmp_path / "run", "--junit", report, "--github")
    assert done.status == 2
    assert parsed(report.read_text()).get("errors") == "1"
    lines = done.err.splitlines()
    assert lines[0].startswith("::error title=golden check of ") and lines[1].startswith("twinrun: ")


def test_names_in_files_are_no_commands_of_github(kept: Path, tmp_path: Path) -> None:
    """A field at the start of a line of the table: GitHub obeys no such line between these two."""
    name = "::add-mask::x"
    golden.save({name: X}, tmp_path / "golden", atol=1e-3)
    with h5py.File(tmp_path / "run.h5", "w") as file:
        file[name] = bumped(1.0)
    for json, stream in (("j.json", "out"), ("-", "err")):
        done = command("golden", "check", tmp_path / "golden", tmp_path / "run.h5", "--github", "--json",
                       json if json == "-" else tmp_path / json)  # fmt: skip
        assert done.status == 1
        lines = getattr(done, stream).splitlines()
        named = [n for n, line in enumerate(lines) if line.strip().startswith(name)]
        token = lines[0].removeprefix("::stop-commands::")
        assert lines[0] != token and len(token) == 32
        assert named and all(at < lines.index(f"::{token}::") for at in named)
        assert all(line.startswith("::error ") for line in lines[lines.index(f"::{token}::") + 1 :])


def test_a_report_that_cannot_be_written(kept: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "run.npz", x=X, y=X)
    done = command("golden", "check", kept, tmp_path / "run.npz", "--junit", tmp_path / "no" / "junit.xml")
    check_error(done, "cannot write the JUnit report")


@settings(max_examples=40)
@given(name=st.text(st.characters(codec="utf-8"), min_size=1, max_size=20), other=st.text(max_size=5))
def test_any_name_of_a_field(tmp_path_factory: pytest.TempPathFactory, name: str, other: str) -> None:
    """Control characters, markup and signs that mean something to GitHub."""
    folder = tmp_path_factory.mktemp("names") / "golden"
    golden.save({name: X}, folder, atol=1e-3)
    for now in ({name: bumped(1.0)}, {f"{name}{other}x": X}):
        result = golden.check(folder, now)
        parsed(junit_text(result))
        for line in annotation_lines(result):
            assert re.fullmatch(r"::error title=[^:,\r\n]*::[^\r\n]*", line), line
        assert len(summary(result).splitlines()) <= 12


def test_escapes() -> None:
    assert error_annotation("50% of a:b,c", "first\nsecond 100%") == (
        "::error title=50%25 of a%3Ab%2Cc::first\\nsecond 100%25"
    )


def test_at_most_ten_annotations(tmp_path: Path) -> None:
    many = {f"f{i:02}": np.float64(i) for i in range(25)}
    golden.save(many, tmp_path / "golden")
    result = golden.check(tmp_path / "golden", {n: v + 1 for n, v in many.items()})
    lines = annotation_lines(result)
    assert len(lines) == 10 and lines[-1].endswith("and 16 more: see the job's summary")
    assert summary(result).count("❌") == 25


def test_summary(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = golden.check(kept, {"x": bumped(0.5), "y": X})
    page = tmp_path / "summary.md"
    page.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    assert write_summary(result)
    lines = page.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "before"
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 4 and "❌ different" in rows[2] and "✅ same" in rows[3]  # what differs comes first
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 7 for row in rows)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY")
    assert not write_summary(result)


@pytest.mark.parametrize("number, said", [(1, "1 attribute agrees"), (2, "2 attributes agree")])
def test_attributes_are_counted(number: int, said: str) -> None:
    (case,) = _cases_of_attributes(SimpleNamespace(attributes_compared=number, attributes=[]), "run")
    assert case.output == (said,)
