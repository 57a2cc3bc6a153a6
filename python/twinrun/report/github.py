"""A golden check for GitHub: annotations on the run, and the summary of the job."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from typing import TextIO

from ..errors import TwinrunError, one_line
from ..golden import GoldenCheck, GoldenField
from .golden import field_text, golden_line, without_rank

__all__ = ["annotation_lines", "error_annotation", "summary", "write_summary"]

MOST_ANNOTATIONS = 10  # annotations of each kind in a step: GitHub drops the rest
_MOST_ROWS = 50
_SIGNS = {"same": "✅ same", "different": "❌ different", "undecided": "⚠️ undecided"}


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _command(kind: str, title: str, message: str) -> str:
    return f"::{kind} title={_property(one_line(title))}::{_data(one_line(message))}"


@contextlib.contextmanager
def uninterpreted(stream: TextIO) -> Iterator[None]:
    """Stops workflow commands inside the block: a name from a file at the start of a line could be
    a command.
    """
    token = secrets.token_hex(16)
    print(f"::stop-commands::{token}", file=stream, flush=True)
    try:
        yield
    finally:
        print(f"::{token}::", file=stream, flush=True)


def error_annotation(title: str, message: str) -> str:
    """The command for an error that ended the check."""
    return _command("error", title, message)


def _said(c: GoldenCheck) -> Iterator[tuple[str, str, str]]:
    """(kind, title, message) of everything that does not agree, the most important first."""
    for f in (f for f in c.fields if f.verdict == "different"):
        yield "error", f"different: {without_rank(c, f.place())}", field_text(f)
    for d in c.attributes:
        yield "error", f"different: {without_rank(c, d.place()) or 'attributes'}", d.text()
    for p in c.problems:
        yield "error", f"not compared: {without_rank(c, p.place()) or c.run}", p.text
    for f in (f for f in c.fields if f.verdict == "undecided"):
        kind = "warning" if c.undecided_passes else "error"
        yield kind, f"undecided: {without_rank(c, f.place())}", field_text(f)


def annotation_lines(c: GoldenCheck) -> list[str]:
    """Workflow commands to print, at most ten of a kind; the last one counts the rest."""
    lines: list[str] = []
    for kind in ("error", "warning"):
        said = [(title, message) for k, title, message in _said(c) if k == kind]
        shown = said if len(said) <= MOST_ANNOTATIONS else said[: MOST_ANNOTATIONS - 1]
        lines += [_command(kind, title, message) for title, message in shown]
        if len(said) > len(shown):
            lines.append(
                _command(kind, "twinrun", f"and {len(said) - len(shown)} more: see the job's summary")
            )
    return lines


def _cell(text: str) -> str:
    text = one_line(text)
    for sign in "\\`*_{}[]<>#|~":
        text = text.replace(sign, f"\\{sign}" if sign not in "<>" else f"&{'lt' if sign == '<' else 'gt'};")
    return text


def _row(f: GoldenField) -> str:
    different = ("" if f.different_is_exact else "at least ") + str(f.different)
    cells = ["" if f.step is None else str(f.step), str(f.rank), _cell(f.field), _SIGNS[f.verdict],
             f"{different} of {f.elements}", "" if f.verdict == "same" else _cell(field_text(f))]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def summary(c: GoldenCheck) -> str:
    """The check as Markdown: what does not agree comes first."""
    order = {"different": 0, "undecided": 1, "same": 2}
    fields = sorted(c.fields, key=lambda f: order[f.verdict])
    lines = [
        f"### twinrun: {_cell(os.path.basename(os.path.normpath(c.run)))}",
        "",
        _cell(golden_line(c)),
        "",
    ]
    for p in c.problems[:_MOST_ROWS]:
        lines.append("- not compared: " + _cell(": ".join(t for t in (p.place(), p.text) if t)))
    for d in c.attributes[:_MOST_ROWS]:
        lines.append("- attribute: " + _cell(f"{d.place()}: {d.text()}"))
    if c.problems or c.attributes:
        lines.append("")
    if fields:
        lines += ["| step | rank | field | verdict | different | first |", "|---|---|---|---|---|---|"]
        lines += [_row(f) for f in fields[:_MOST_ROWS]]
        if len(fields) > _MOST_ROWS:
            lines += ["", f"… and {len(fields) - _MOST_ROWS} more fields"]
    return "\n".join([*lines, ""])


def write_summary(c: GoldenCheck, path: str | None = None) -> bool:
    """Appends the summary to a file, by default that of the job ($GITHUB_STEP_SUMMARY); False where there is
    none.
    """
    path = path or os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return False
    try:
        with open(path, "a", encoding="utf-8") as out:
            out.write(summary(c))
    except OSError as e:
        raise TwinrunError(f"cannot write the job's summary: {e.strerror or e}", where=path) from None
    return True
