"""Results as tables of pandas and Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import MissingPackage

if TYPE_CHECKING:
    import pandas
    import pyarrow

    from .result import Comparison

__all__ = ["arrow_table", "data_frame"]

# Columns of tables: what is a number, a text or a list of integers.
_COLUMNS = (
    "step", "rank", "field", "dtype", "shape", "elements", "different", "infinite", "first_index", "first_id",
    "first_a", "first_b", "first_abs_diff", "max_abs_diff", "max_abs_diff_is_bound", "max_abs_diff_at_least",
    "max_abs_index", "max_abs_id", "max_rel_diff", "rms_diff", "rms_diff_all", "rms_diff_all_is_bound", "atol",
    "rtol", "ulps", "key", "ranks", "method", "bytes", "elements_read", "seconds", "device", "global_shape",
    "global_offset", "different_is_exact", "first_chunk",
)  # fmt: skip


def _columns(c: Comparison) -> dict[str, list[Any]]:
    columns = {}
    for name in _COLUMNS:
        values = [getattr(f, name) for f in c.fields]
        columns[name] = [_lists(v) for v in values]
    return columns


def _lists(value: Any) -> Any:
    """Nested tuples as lists."""
    return [_lists(one) for one in value] if isinstance(value, tuple) else value


def data_frame(c: Comparison) -> pandas.DataFrame:
    """A row for each step, rank and field. 64-bit integers stay exact. Raises MissingPackage."""
    try:
        import pandas as pd
    except ImportError:
        raise MissingPackage.of("pandas", "pandas") from None
    # One column holds integers and floats, unchanged.
    exact = ("first_a", "first_b", "first_abs_diff")
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
    """A row for each step, rank and field.

    first_a and first_b are doubles; first_a_exact and first_b_exact are texts.

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
        elif name == "first_chunk":
            types[name] = pa.list_(pa.list_(pa.int64()))
        elif name.endswith(("index", "shape", "offset")):
            types[name] = pa.list_(pa.int64())
        elif name.endswith(("_is_bound", "_is_exact")):
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
