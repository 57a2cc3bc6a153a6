"""A comparison as a JSON document.

Keys: docs/reference/reports.md. Infinite numbers and NaNs are the strings "inf", "-inf", "nan".
"""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
from typing import Any

from .._core import __version__
from ..comparison.attributes import AttributeDifference
from ..comparison.work import Comparison, FieldComparison, histogram_edges
from ..errors import TwinrunError, one_line
from ..outputs import replacing

__all__ = [
    "attribute_document",
    "document",
    "field_document",
    "incomparable_document",
    "write_json",
    "write_text",
    "write_whole",
]


_AS_IT_IS = frozenset({int, str, bool, type(None)})


def _plain(value: Any) -> Any:
    """A value without numbers that JSON cannot express."""
    if type(value) in _AS_IT_IS:
        return value
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value


def field_document(f: FieldComparison) -> dict:
    """One entry of `fields`."""
    d = {part.name: getattr(f, part.name) for part in dataclasses.fields(f) if part.name[0] != "_"}
    d["verdict"] = "same" if f.same else "different"
    return d


def attribute_document(d: AttributeDifference) -> dict:
    """One entry of `attributes`: what differs. a, b: values for people, null where a run has none."""
    return {**dataclasses.asdict(d), "attribute": d.label}


def _provenance(c: Comparison) -> dict | None:
    """The conditions of both runs, and where they differ; None where a run has none."""
    if c.provenance_a is None or c.provenance_b is None or c.conditions is None:
        return None
    return {
        "differences": [d._asdict() for d in c.conditions],
        "a": c.provenance_a.facts(),
        "b": c.provenance_b.facts(),
    }


def document(c: Comparison) -> dict:
    """All facts of a comparison."""
    return _plain(
        {
            "twinrun": __version__,
            "verdict": c.verdict,
            "a": c.a,
            "b": c.b,
            "different": c.different,
            "first_divergence": c.first_divergence,
            "fields": [field_document(f) for f in c.fields],
            "attributes": [attribute_document(d) for d in c.attributes],
            "attributes_compared": c.attributes_compared,
            "histogram_edges": histogram_edges(),
            "stages": c.stages,
            "bytes_compared": c.bytes_compared,
            "bytes_read": c.bytes_read,
            "seconds": c.seconds,
            "device": c.device,
            "device_seconds": c.device_seconds,
            "not_compared": c.not_compared,
            "notes": c.notes,
            "problems": c.problems,
            "error": c.problems[0] if c.problems else None,
            "provenance": _provenance(c),
        }
    )


def incomparable_document(a: str, b: str, error: str) -> dict:
    """The document of two runs that could not be compared."""
    return {
        "twinrun": __version__,
        "verdict": "incomparable",
        "a": a,
        "b": b,
        "error": one_line(error),
        "first_divergence": None,
        "fields": [],
    }


def _text(content: dict) -> str:
    """JSON with a line for each key and each field. (Full indentation takes Python five times as long.)"""
    lines = []
    for key, value in content.items():
        if isinstance(value, list) and any(isinstance(entry, dict) for entry in value):
            entries = ",\n  ".join(json.dumps(entry, allow_nan=False) for entry in value)
            text = f"[\n  {entries}\n ]"
        else:
            text = json.dumps(value, allow_nan=False)
        lines.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}"


def write_json(path: str, content: dict) -> None:
    """Writes the document whole or not at all; '-' is standard output."""
    write_text(path, _text(content) + "\n")


def write_text(path: str, text: str) -> None:
    """Writes text that is JSON as `write_json` does."""
    if path == "-":
        print(text, end="")
        return
    write_whole(path, text, "JSON")


def _open_read(path: str, flags: int) -> int:
    """Opens a pipe or a device; a pipe without a reader is an error, and does not block."""
    try:
        number = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as e:
        if e.errno != errno.ENXIO:
            raise
        raise OSError(e.errno, "it is not a regular file, and no process reads from it") from None
    os.set_blocking(number, True)
    return number


def write_whole(path: str, text: str, kind: str, option: str | None = None) -> None:
    """Writes a report of this kind (JSON, HTML) whole or not at all.

    Raises TwinrunError. option: the option that named the file, by default --KIND; empty: none did.
    """
    option = f"--{kind.lower()}" if option is None else option
    try:
        # a pipe or a device cannot be replaced by renaming
        if os.path.exists(path) and not os.path.isfile(path):
            with open(path, "w", encoding="utf-8", opener=_open_read) as out:
                out.write(text)
            return
        with replacing(path, durable=True) as temporary, open(temporary, "w", encoding="utf-8") as out:
            out.write(text)
    except OSError as e:
        raise TwinrunError(
            f"cannot write the {kind} report: {e.strerror or e}",
            where=path,
            fix=f"name another file{' with ' + option if option else ''}",
        ) from None
