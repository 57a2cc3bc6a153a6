"""JUnit XML, as GitLab, Jenkins, GitHub actions and others read it: a test case for each step, rank and
field.
"""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from dataclasses import dataclass

from ..comparison.words import difference_text, verdict_line
from ..comparison.work import Comparison, FieldComparison
from ..errors import one_line
from ..golden import GoldenCheck, GoldenField
from ..golden.words import distance, element_text, largest_text, span_text
from ..golden.words import tolerance_text as golden_tolerance
from ..words import number
from .document import write_whole
from .golden import field_text, golden_line

__all__ = ["junit_text", "junit_text_of_error", "write_junit", "write_junit_error"]

_MOST_LINES = 50  # of a test case's output
# Characters that XML 1.0 does not allow.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _legal(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)


@dataclass
class _Case:
    """A test case. classname: run and rank; name: step and field.

    kind: None (passed), 'failure' or 'error'.
    """

    classname: str
    name: str
    seconds: float
    kind: str | None = None
    what: str = ""
    message: str = ""
    lines: tuple[str, ...] = ()
    output: tuple[str, ...] = ()


def _label(run: str, rank: int | None) -> str:
    # Readers of JUnit take dots for separators of packages and classes.
    name = os.path.basename(os.path.normpath(run)) or run
    return name.replace(".", "_") + ("" if rank is None else f".rank_{rank}")


def _name(step: int | None, field: str | None) -> str:
    parts = ([] if step is None else [f"step {step}"]) + ([] if field is None else [field])
    return " ".join(parts) or "all"


def _case_of_field(c: Comparison, f: FieldComparison) -> _Case:
    case = _Case(_label(c.b, f.rank), _name(f.step, f.field), f.seconds)
    bound = "at most " if f.max_abs_diff_is_bound else ""
    counted = f"{'' if f.different_is_exact else 'at least '}{f.different} of {f.elements} elements differ"
    if f.kind is not None or not f.different_is_exact:
        case.output = (counted, *([] if f.kind is None else [f"of the kind: {f.kind}"]), *f.warnings)
        if not f.same:
            case.kind, case.what = "failure", "different"
            case.message = f"{counted}, first at {f._place(f.rank != 0)}"
            case.lines = (f"first at {difference_text(f, f.rank != 0)}",)
        return case
    case.output = (
        counted,
        f"max |a-b|: {bound}{number(f.max_abs_diff)}",
        f"tolerance: {f.atol:g} + {f.rtol:g} |a|",
        *f.warnings,
    )
    if not f.same:
        case.kind, case.what = "failure", "different"
        case.message = f"{counted}, first at {f._place(f.rank != 0)}"
        case.lines = (
            f"first at {f._place(f.rank != 0)}: a = {f.first_a!r}, b = {f.first_b!r}, |a-b| = {number(f.first_abs_diff)}",
            f"largest at {list(f.global_index(f.max_abs_index) or ())}: |a-b| = {number(f.max_abs_diff)}",
        )
    return case


def _cases_of_attributes(c: Comparison | GoldenCheck, run: str) -> list[_Case]:
    """A test case for each place with attributes that differ; one for all where none differs."""
    if not c.attributes_compared:
        return []
    if not c.attributes:
        case = _Case(_label(run, None), "attributes", 0.0)
        case.output = (
            "1 attribute agrees"
            if c.attributes_compared == 1
            else f"{c.attributes_compared} attributes agree",
        )
        return [case]
    places: dict[tuple[int | None, int], list[str]] = {}
    for d in c.attributes:
        places.setdefault((d.step, d.rank), []).append(d.text())
    cases = []
    for (step, rank), lines in places.items():
        message = f"{len(lines)} attribute{'s differ' if len(lines) > 1 else ' differs'}, first {lines[0]}"
        case = _Case(_label(run, rank), _name(step, "attributes"), 0.0, "failure", "different", message)
        case.lines = tuple(lines[:_MOST_LINES])
        if len(lines) > _MOST_LINES:
            case.lines += ("… and more: --json has all",)
        cases.append(case)
    return cases


def _bounds(f: GoldenField) -> str:
    """'max |a-b|: at least 0.1, at most 0.2'; of elements without distance, what they are."""
    if f.kind is not None:
        return f"of the kind: {f.kind}"
    if f.values_kept and f.unit is not None:
        return f"max |a-b|: {largest_text(f)}"
    most = "" if f.at_most is None else f", at most {distance(f.at_most, f)}"
    return f"max |a-b|: at least {distance(f.at_least, f)}{most}"


def _case_of_golden(c: GoldenCheck, f: GoldenField) -> _Case:
    case = _Case(_label(c.run, f.rank), _name(f.step, f.field), 0.0)
    counted = "" if f.different_is_exact else "at least "
    case.output = (
        f"{counted}{f.different} of {f.elements} elements differ; {f.undecided} undecided",
        f"tolerance: {golden_tolerance(f)}",
        _bounds(f),
    )
    if f.verdict == "different" or (f.verdict == "undecided" and not c.undecided_passes):
        case.kind = "failure"
        case.what = "different" if f.verdict == "different" else "undecided within one cell"
        case.message = field_text(f)
        lines = list(dict.fromkeys(element_text(e, f) for e in f.listed))
        lines += [span_text(s, f) for s in f.spans if not s.exact]
        case.lines = tuple(lines[:_MOST_LINES])
        if len(lines) > _MOST_LINES or f.listed_left_out or f.spans_left_out:
            case.lines += ("… and more: --json has all",)
    return case


def _cases(c: Comparison | GoldenCheck) -> list[_Case]:
    if isinstance(c, Comparison):
        missing = [
            _Case(_label(c.b, None), "not compared", 0.0, "error", "not compared", p, (p,))
            for p in c.problems
        ]
        return [*(_case_of_field(c, f) for f in c.fields), *_cases_of_attributes(c, c.b), *missing]
    cases = [*(_case_of_golden(c, f) for f in c.fields), *_cases_of_attributes(c, c.run)]
    for p in c.problems:
        case = _Case(_label(c.run, p.rank), _name(p.step, p.field), 0.0, "error", "not compared", p.text)
        case.lines = (": ".join(t for t in (p.place(), p.text) if t),)
        cases.append(case)
    return cases


def _document(suite: str, cases: Iterable[_Case], seconds: float, notes: Iterable[str], said: str) -> str:
    cases = list(cases)
    taken: dict[tuple[str, str], int] = {}
    root = ET.Element("testsuites")
    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(c.kind == "failure" for c in cases)),
        "errors": str(sum(c.kind == "error" for c in cases)),
    }
    for name, value in {"name": "twinrun", **counts, "time": f"{seconds:.6f}"}.items():
        root.set(name, value)
    # Attributes and their order as in the schema that Jenkins' xUnit plugin checks with
    # (junit-10.xsd).
    element = ET.SubElement(
        root, "testsuite", {"name": _legal(suite), **counts, "skipped": "0", "time": f"{seconds:.6f}"}
    )
    for case in cases:
        key = (case.classname, case.name)
        taken[key] = taken.get(key, 0) + 1
        name = case.name if taken[key] == 1 else f"{case.name} ({taken[key]})"
        entry = ET.SubElement(
            element,
            "testcase",
            {
                "name": _legal(one_line(name)),
                "classname": _legal(one_line(case.classname)),
                "time": f"{case.seconds:.6f}",
            },
        )
        if case.kind is not None:
            failed = ET.SubElement(
                entry, case.kind, {"message": _legal(one_line(case.message)), "type": _legal(case.what)}
            )
            failed.text = _legal("\n".join(one_line(line) for line in case.lines))
        if case.output:
            out = ET.SubElement(entry, "system-out")
            out.text = _legal("\n".join(one_line(line) for line in case.output))
    out = ET.SubElement(element, "system-out")
    out.text = _legal("\n".join([*(one_line(f"note: {n}") for n in notes), said]))
    ET.indent(root, " ")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def junit_text(c: Comparison | GoldenCheck) -> str:
    """The report of a comparison or a golden check."""
    if isinstance(c, Comparison):
        return _document(f"{c.a} against {c.b}", _cases(c), c.seconds, c.notes, verdict_line(c))
    return _document(f"{c.golden} against {c.run}", _cases(c), c.seconds, c.notes, golden_line(c))


def junit_text_of_error(a: str, b: str, error: str) -> str:
    """The report where nothing could be compared: one test case, with an error."""
    case = _Case(_label(b, None), "all", 0.0, "error", "not compared", error, (error,))
    return _document(f"{a} against {b}", [case], 0.0, (), "could not compare")


def write_junit(path: str, c: Comparison | GoldenCheck) -> None:
    """Writes the report whole or not at all."""
    write_whole(path, junit_text(c), "JUnit")


def write_junit_error(path: str, a: str, b: str, error: str) -> None:
    """Writes the report of a comparison that could not be made."""
    write_whole(path, junit_text_of_error(a, b, error), "JUnit")
