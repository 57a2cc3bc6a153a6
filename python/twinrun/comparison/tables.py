"""How results show themselves in a notebook, and as tables of other packages. The one place that knows results and reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import MissingPackage
from .field import FieldComparison

if TYPE_CHECKING:
    import pandas
    import pyarrow

    from .work import Comparison

__all__ = ["arrow_table", "comparison_html", "data_frame", "field_html"]

_ROWS = 15
_NOTES = 5
# Columns of tables: what is a number, a text or a list of integers.
_COLUMNS = (
    "step", "rank", "field", "dtype", "shape", "elements", "different", "infinite", "first_index", "first_id",
    "first_a", "first_b", "first_abs_diff", "max_abs_diff", "max_abs_diff_is_bound", "max_abs_diff_at_least",
    "max_abs_index", "max_abs_id", "max_rel_diff", "rms_diff", "rms_diff_all", "rms_diff_all_is_bound", "atol",
    "rtol", "ulps", "key", "ranks", "method", "bytes", "elements_read", "seconds", "device",
)  # fmt: skip


def _columns(c: Comparison) -> dict[str, list[Any]]:
    columns = {}
    for name in _COLUMNS:
        values = [getattr(f, name) for f in c.fields]
        columns[name] = [list(v) if isinstance(v, tuple) else v for v in values]
    return columns


def data_frame(c: Comparison) -> pandas.DataFrame:
    """A row a step, rank and field. 64-bit integers stay exact. Raises MissingPackage."""
    try:
        import pandas as pd
    except ImportError:
        raise MissingPackage.of("pandas", "pandas") from None
    exact = ("first_a", "first_b", "first_abs_diff")  # integers and floats stand in one column: as they are
    integers = {
        "step": "Int64",
        "first_id": "object",
        "max_abs_id": "object",
        "ulps": "object",
        "ranks": "Int64",
    }
    return pd.DataFrame(
        {
            name: pd.Series(values, dtype="object" if name in exact else integers.get(name))
            for name, values in _columns(c).items()
        }
    )


def arrow_table(c: Comparison) -> pyarrow.Table:
    """A row a step, rank and field. first_a and first_b are doubles, and texts in first_a_exact and first_b_exact.

    Raises MissingPackage.
    """
    try:
        import pyarrow as pa
    except ImportError:
        raise MissingPackage.of("pyarrow", "twinrun[parquet]") from None
    numbers = {"first_a", "first_b", "first_abs_diff", "max_abs_diff", "max_abs_diff_at_least", "max_rel_diff",
               "rms_diff", "rms_diff_all", "atol", "rtol", "seconds"}  # fmt: skip
    texts = {"field", "dtype", "key", "method", "device"}
    columns, types = _columns(c), {}
    for name in list(columns):
        if name in ("first_id", "max_abs_id") and any(v is not None and v >= 1 << 63 for v in columns[name]):
            types[name] = (
                pa.uint64() if all(v is None or v >= 0 for v in columns[name]) else pa.decimal128(20)
            )
        elif name in numbers:
            types[name] = pa.float64()
        elif name in texts:
            types[name] = pa.string()
        elif name.endswith("index") or name == "shape":
            types[name] = pa.list_(pa.int64())
        elif name.endswith("_is_bound"):
            types[name] = pa.bool_()
        elif name in ("ulps",):
            types[name] = pa.uint64()
        else:
            types[name] = pa.int64()
    for name in ("first_a", "first_b"):
        columns[f"{name}_exact"] = [None if v is None else repr(v) for v in columns[name]]
        types[f"{name}_exact"] = pa.string()
    for name in numbers:
        columns[name] = [None if v is None or isinstance(v, str) else float(v) for v in columns[name]]
    for name in texts:
        columns[name] = [
            None if v is None else v.encode("utf-8", "backslashreplace").decode() for v in columns[name]
        ]
    return pa.table({n: pa.array(v, types[n]) for n, v in columns.items()})


_HEAD = "text-align:left;font-weight:600;padding:2px 10px 2px 0"
_CELL = "text-align:left;padding:2px 10px 2px 0"
_COLOURS = {"same": "#2c7a3d", "different": "#c4382c", "incomparable": "#9a6700"}


def _table(head: tuple[str, ...], rows: list[tuple]) -> str:
    from ..report.frame import escaped

    heads = "".join(f'<th scope="col" style="{_HEAD}">{escaped(h)}</th>' for h in head)
    lines = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{escaped(v)}</td>' for v in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>"


def comparison_html(c: Comparison) -> str:
    """For a notebook: the verdict, what could not be compared, the fields that differ."""
    from ..report.frame import escaped
    from ..report.text import number, tolerance_text, verdict_line

    said = escaped(verdict_line(c).removeprefix(c.verdict), 700)
    parts = [f'<div><p><b style="color:{_COLOURS[c.verdict]}">{c.verdict}</b>{said}</p>']
    if c.problems:
        lines = "".join(f"<li>{escaped(p, 400)}</li>" for p in c.problems[:_NOTES])
        more = (
            f"<li>and {len(c.problems) - _NOTES} more in .problems</li>" if len(c.problems) > _NOTES else ""
        )
        parts.append(f"<p>Not compared:</p><ul>{lines}{more}</ul>")
    if c.attributes:
        lines = "".join(f"<li>{escaped(d.text(), 400)}</li>" for d in c.attributes[:_NOTES])
        more = (
            f"<li>and {len(c.attributes) - _NOTES} more in .attributes</li>"
            if len(c.attributes) > _NOTES
            else ""
        )
        parts.append(f"<p>Attributes that differ:</p><ul>{lines}{more}</ul>")
    shown = (
        c.fields
        if len(c.fields) <= _ROWS
        else [*(f for f in c.fields if not f.same), *(f for f in c.fields if f.same)]
    )
    rows = [
        (
            "" if f.step is None else f.step,
            f.rank,
            f.field,
            f"{f.different:,}",
            f"{f.elements:,}",
            ("≤ " if f.max_abs_diff_is_bound else "") + number(f.max_abs_diff),
            number(f.max_rel_diff) if f.different else "",
            tolerance_text(f),
        )
        for f in shown[:_ROWS]
    ]
    parts.append(
        _table(("step", "rank", "field", "different", "of", "max |a − b|", "max rel", "tolerance"), rows)
    )
    if len(c.fields) > _ROWS:
        parts.append(f"<p>{len(c.fields) - _ROWS} more rows: .to_pandas() has all.</p>")
    return "".join([*parts, "</div>"])


def field_html(f: FieldComparison) -> str:
    """For a notebook: one field's facts."""
    from ..report.frame import escaped
    from ..report.text import exact, number, tolerance_text

    word = "same" if f.same else "different"
    rows: list[tuple] = [
        ("different", f"{f.different:,} of {f.elements:,}"),
        ("tolerance", tolerance_text(f)),
    ]
    if not f.same:
        rows += [
            ("first", f.place()),
            ("a", exact(f.first_a)),
            ("b", exact(f.first_b)),
            ("|a − b|", number(f.first_abs_diff)),
        ]
    bound = "at most " if f.max_abs_diff_is_bound else ""
    rows += [("max |a − b|", bound + number(f.max_abs_diff)), ("RMS of what differs", number(f.rms_diff)),
             ("type, shape", f"{f.dtype} {list(f.shape)}"), ("method", f"{f.method} on {f.device}")]  # fmt: skip
    at = f.place() if f.same else f.field
    return f'<div><p><b style="color:{_COLOURS[word]}">{word}</b>: {escaped(at)}</p>{_table(("", ""), rows)}</div>'
