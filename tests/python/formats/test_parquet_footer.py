"""Statistics in the footer of a Parquet file, held against pyarrow; and footers that are damaged in any way."""

from __future__ import annotations

import io
import random
import subprocess
import sys
from pathlib import Path

import pytest

from twinrun.errors import TwinrunError
from twinrun.formats import open_file
from twinrun.formats.parquet_footer import null_counts

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def counts_of(data: bytes) -> dict[str, int | None]:
    return null_counts(io.BytesIO(data), len(data))


def footer_of(data: bytes) -> range:
    """Where the footer of a file lies."""
    return range(len(data) - 8 - int.from_bytes(data[-8:-4], "little"), len(data) - 8)


def table(draw: random.Random) -> pa.Table:
    rows = draw.randrange(200)

    def some(values: list) -> list:
        missing = draw.choice([0.0, 0.3, 1.0])
        return [None if draw.random() < missing else draw.choice(values) for _ in range(rows)]

    columns = {
        "x": pa.array(some([1.5, float("nan")]), pa.float64()),
        "ä.b": pa.array(some([1, -2]), pa.int32()),
        "s": pa.array(some(["a", "b" * 3000]), pa.string()),
        "l": pa.array(some([[1, None], []]), pa.list_(pa.int64())),
        "t": pa.array(some([{"u": 1, "v": None}]), pa.struct({"u": pa.int8(), "v": pa.float32()})),
        "b": pa.array(some([True]), pa.bool_()),
    }
    return pa.table(columns)


@pytest.mark.parametrize("seed", range(40))
def test_counts_are_those_of_pyarrow(seed: int) -> None:
    draw = random.Random(seed)
    to = io.BytesIO()
    pq.write_table(
        table(draw),
        to,
        row_group_size=draw.choice([7, 50, 1000]),
        write_statistics=draw.choice([True, False, ["x", "s"]]),
        compression=draw.choice(["none", "zstd"]),
        version=draw.choice(["1.0", "2.6"]),
        write_page_index=draw.random() < 0.3,
    )
    meta = pq.read_metadata(io.BytesIO(to.getvalue()))
    wanted: dict[str, int | None] = {}
    for group in range(meta.num_row_groups):
        for c in range(meta.num_columns):
            column = meta.row_group(group).column(c)
            told = column.statistics
            count = told.null_count if told is not None and told.has_null_count else None
            known = wanted.get(column.path_in_schema, 0)
            wanted[column.path_in_schema] = None if count is None or known is None else known + count
    assert counts_of(to.getvalue()) == wanted


def test_anything_is_read_to_its_end() -> None:
    draw = random.Random(3)
    to = io.BytesIO()
    pq.write_table(table(draw), to, row_group_size=50)
    good = to.getvalue()
    footer = footer_of(good)
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(draw.choice([1, 1, 2, 8])):
            data[draw.choice(footer)] = draw.choice([0, 0x1C, 0x19, 0xF9, 0xFC, 0xFF, draw.randrange(256)])
        assert all(v is None or isinstance(v, int) for v in counts_of(bytes(data)).values())
    for n in range(len(good)):
        counts_of(good[:n])
    for length in (0, 1, 7, 8, 9, 5000):
        made = bytes(draw.choices(b"\x00\x1c\x19\x29\xf9\xfc\x8c\xff\x0c", k=length))
        counts_of(made + length.to_bytes(4, "little") + b"PAR1")
    assert counts_of(b"\xff" * 40) == counts_of(b"") == {}


def test_no_damage_ends_the_process(tmp_path: Path) -> None:
    """pyarrow ends a process that asks for what some of these footers say of a column."""
    to = io.BytesIO()
    pq.write_table(pa.table({"x": [1.0, None, 3.0] * 100, "l": [[1, 2], None, [3]] * 100}), to, row_group_size=100)  # fmt: skip
    good = to.getvalue()
    draw = random.Random(5)
    spots = draw.sample([(at, bit) for at in footer_of(good) for bit in range(8)], 1500)
    for number, (at, bit) in enumerate(spots):
        data = bytearray(good)
        data[at] ^= 1 << bit
        (tmp_path / f"{number}.parquet").write_bytes(data)
    program = (
        "import sys\n"
        "from test_parquet_footer import read\n"
        "for name in sys.argv[2:]:\n"
        "    print(name, flush=True)\n"
        "    read(sys.argv[1] + '/' + name)\n"
    )
    names = [f"{n}.parquet" for n in range(len(spots))]
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), *names],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parent,
    )  # fmt: skip
    assert ended.returncode == 0, (ended.stdout[-30:], ended.stderr[-2000:])


def read(path: str) -> None:
    """A file's columns, or an error of twinrun's."""
    try:
        with open_file(path) as content:
            for field in content.fields.values():
                field.elements()
    except TwinrunError:
        pass
