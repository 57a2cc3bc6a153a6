"""Samples of folders and of tables, each changed in one thing at a time."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from corpus_samples import STEPS, Sample, Write, edited


def folder_of_files(folder: Path) -> None:
    """Data of two steps beside files that are no data."""
    for step in (10, 20):
        np.save(folder / f"x_{step}.npy", STEPS + step)
    (folder / "log.txt").write_text("all is well\n")
    (folder / "deep").mkdir()
    (folder / "deep" / "notes").write_bytes(bytes(range(256)))
    (folder / ".hidden").write_text("kept")
    (folder / "x_10.npy.json").write_text("{}")


def linked_folders(folder: Path, to: str = "p", loop: str = ".", as_path: bool = False) -> None:
    for name in "pq":
        (folder / name).mkdir()
        np.save(folder / name / "a.npy", STEPS + (name == "q"))
    for name, target in (("latest", to), ("loop", loop)):
        (folder / name).symlink_to((folder / target).resolve() if as_path else target)


LINKS = Sample(
    linked_folders,
    {
        "where a link leads": lambda d: linked_folders(d, "q"),
        "where a loop leads": lambda d: linked_folders(d, loop="q"),
        "link less": edited(linked_folders, lambda d: (d / "latest").unlink()),
    },
    {"absolute links": lambda d: linked_folders(d, as_path=True)},
)


FOLDER = Sample(
    folder_of_files,
    {
        "value": edited(folder_of_files, lambda d: np.save(d / "x_20.npy", STEPS)),
        "text of an unknown file": edited(folder_of_files, lambda d: (d / "log.txt").write_text("all is Well\n")),
        "length of an unknown file": edited(folder_of_files, lambda d: (d / "log.txt").write_text("all is well")),
        "byte of an unknown file": edited(folder_of_files, lambda d: (d / "deep/notes").write_bytes(bytes(256))),
        "unknown file more": edited(folder_of_files, lambda d: (d / "deep/more").write_text("")),
        "unknown file less": edited(folder_of_files, lambda d: (d / "log.txt").unlink()),
        "unknown file elsewhere": edited(folder_of_files, lambda d: (d / "log.txt").rename(d / "deep/log.txt")),
        "hidden file": edited(folder_of_files, lambda d: (d / ".hidden").write_text("lost")),
        "file called like metadata": edited(folder_of_files, lambda d: (d / "x_10.npy.twm").write_text("my own")),
        "file called like metadata of nothing": edited(folder_of_files, lambda d: (d / "mine.twm").write_text("my own")),
        "file beside data": edited(folder_of_files, lambda d: (d / "x_10.npy.json").write_text("[]")),
        "link that leads nowhere": edited(folder_of_files, lambda d: (d / "log2").symlink_to("none")),
        "pipe": edited(folder_of_files, lambda d: os.mkfifo(d / "pipe")),
        "step more": edited(folder_of_files, lambda d: np.save(d / "x_30.npy", STEPS)),
        "link to a folder": edited(folder_of_files, lambda d: (d / "latest").symlink_to("deep")),
    },
    {
        "empty folder": edited(folder_of_files, lambda d: (d / "nothing").mkdir()),
        "link to the same": edited(
            folder_of_files, lambda d: ((d / "log.txt").rename(d.parent / "log"), (d / "log.txt").symlink_to(d.parent / "log"))
        ),
    },
)  # fmt: skip


# ---- tables ----


def table(folder: Path, columns: tuple[str, ...] = ("a", "b"), last: str = "1,2", text: str = "") -> None:
    """Longer than what is looked at first, to know its layout."""
    rows = "".join(f"{n},{n}.5\n" for n in range(20000))
    (folder / "a.csv").write_text(text or ",".join(columns) + "\n" + rows + last + "\n")


def frame(folder: Path, columns: tuple[str, ...] = ("a", "b"), **how: object) -> None:
    import pandas

    pandas.DataFrame({name: np.arange(5) for name in columns}).to_parquet(folder / "a.parquet", **how)


TABLE = Sample(
    table,
    {
        "value": lambda d: table(d, last="1,3"),
        "order of columns": lambda d: table(d, ("b", "a")),
        "row more": lambda d: table(d, last="1,2\n1,2"),
        "short row": lambda d: table(d, last="1"),
        "long row": lambda d: table(d, last="1,2,"),
    },
    {"empty line": lambda d: table(d, last="1,2\n"), "quotes": lambda d: table(d, last='"1","2"')},
    needs="pandas",
)


SHORT_ROW = Sample(
    lambda d: table(d, last="1"), {"an empty cell": lambda d: table(d, last="1,")}, needs="pandas"
)


PARQUET = Sample(
    frame,
    {"order of columns": lambda d: frame(d, ("b", "a")), "column more": lambda d: frame(d, ("a", "b", "c"))},
    {"compression": lambda d: frame(d, compression="gzip")},
    needs="pyarrow",
)


# ---- types of Parquet ----


def arrow(folder: Path, metadata: dict[str, str] | None = None, **other: tuple[object, str]) -> None:
    """other: (values, type as an expression) of columns in place of the base's."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {
        "when": ([[1000]], "pa.list_(pa.timestamp('ms'))"),
        "floats": ([[1.5]], "pa.list_(pa.float32())"),
        "ints": ([[1]], "pa.list_(pa.int32())"),
        "none": ([[]], "pa.list_(pa.string())"),
        "pair": ([[1, 2]], "pa.list_(pa.int32(), 2)"),
        "struct": ([{"x": 1, "y": 2}], "pa.struct([('x', pa.int32()), ('y', pa.int32())])"),
        "null member": ([{"x": None}], "pa.struct([('x', pa.int32())])"),
        "map": ([[("k", 1)]], "pa.map_(pa.string(), pa.int32())"),
        "money": ([1], "pa.decimal128(10, 1)"),
        "bytes": ([b"ab"], "pa.binary(2)"),
        "nothing": ([None], "pa.null()"),
        "word": (["a"], "pa.string()"),
        "blob": ([b"a"], "pa.binary()"),
        "kind": (["a"], "pa.dictionary(pa.int32(), pa.string())"),
        "missing": ([None], "pa.int64()"),
    } | other
    if columns["missing"] is None:  # what looks like the mask of a column
        columns["missing"] = ([0], "pa.int64()")
        columns["missing@mask"] = ([True], "pa.bool_()")
    arrays = {name: pa.array(values, eval(kind, {"pa": pa})) for name, (values, kind) in columns.items()}
    made = pa.table(arrays).replace_schema_metadata({"run": "1"})
    at = made.schema.get_field_index("word")
    made = made.set_column(
        at, made.schema.field(at).with_metadata({"units": "m"} | (metadata or {})), made.column(at)
    )
    pq.write_table(made, folder / "a.parquet")


def as_arrow(**other: tuple[object, str]) -> Write:
    return lambda folder: arrow(folder, **other)


ARROW = Sample(
    arrow,
    {
        "unit in a list": as_arrow(when=([[1000000]], "pa.list_(pa.timestamp('us'))")),
        "width of floats in a list": as_arrow(floats=([[1.5]], "pa.list_(pa.float64())")),
        "width of integers in a list": as_arrow(ints=([[1]], "pa.list_(pa.int64())")),
        "sign of integers in a list": as_arrow(ints=([[1]], "pa.list_(pa.uint32())")),
        "empty list of another type": as_arrow(none=([[]], "pa.list_(pa.float64())")),
        "list of any length": as_arrow(pair=([[1, 2]], "pa.list_(pa.int32())")),
        "width of a member": as_arrow(struct=([{"x": 1, "y": 2}], "pa.struct([('x', pa.int64()), ('y', pa.int32())])")),
        "order of members": as_arrow(struct=([{"x": 1, "y": 2}], "pa.struct([('y', pa.int32()), ('x', pa.int32())])")),
        "member that is null": as_arrow(**{"null member": ([{"x": None}], "pa.struct([('x', pa.string())])")}),
        "member that is never null": as_arrow(
            struct=([{"x": 1, "y": 2}], "pa.struct([pa.field('x', pa.int32(), False), ('y', pa.int32())])")
        ),
        "values of a map": as_arrow(map=([[("k", 1)]], "pa.map_(pa.string(), pa.int64())")),
        "precision of a decimal": as_arrow(money=([1], "pa.decimal128(12, 1)")),
        "width of a decimal": as_arrow(money=([1], "pa.decimal256(40, 1)")),
        "binary of any length": as_arrow(bytes=([b"ab"], "pa.binary()")),
        "null of a type": as_arrow(nothing=([None], "pa.string()")),
        "text as binary": as_arrow(word=([b"a"], "pa.binary()")),
        "dictionary": as_arrow(kind=(["a"], "pa.string()")),
        "order of a dictionary": as_arrow(kind=(["a"], "pa.dictionary(pa.int32(), pa.string(), True)")),
        "mask as a column": as_arrow(missing=None),
        "units": lambda d: arrow(d, {"units": "km"}),
        "metadata of a column": lambda d: arrow(d, {"more": "1"}),
    },
    {
        "width of offsets": as_arrow(
            word=(["a"], "pa.large_string()"), blob=([b"a"], "pa.large_binary()"), ints=([[1]], "pa.large_list(pa.int32())")
        ),
        "integers of a dictionary": as_arrow(kind=(["a"], "pa.dictionary(pa.int8(), pa.string())")),
        "name of an element": as_arrow(ints=([[1]], "pa.list_(pa.field('item', pa.int32()))")),
    },
    needs="pyarrow",
)  # fmt: skip
