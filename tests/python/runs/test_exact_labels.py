"""Labels of arrays in memory: no tolerance makes two different ones the same."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import twinrun
from twinrun import golden

LARGE = {"atol": 1e15, "rtol": 1.0, "tolerate_integers": True}


def coo(at: int, value: float = 5.0) -> object:
    sparse = pytest.importorskip("scipy.sparse")
    return sparse.coo_array(([value, 1.0], ([0, 1], [at, 1])), shape=(2, 2))


def arrow(kind: str, second: int) -> object:
    pa = pytest.importorskip("pyarrow")
    kinds = {
        "timestamp": pa.timestamp("s"), "zoned": pa.timestamp("us", tz="UTC"), "date32": pa.date32(),
        "date64": pa.date64(), "time32": pa.time32("s"), "time64": pa.time64("ns"), "duration": pa.duration("ms"),
    }  # fmt: skip
    day = 86_400_000 if kind == "date64" else 1
    return pa.array([0, None, second * day], pa.int64()).cast(
        pa.int32() if kind in ("date32", "time32") else pa.int64()
    ).cast(kinds[kind])  # fmt: skip


def frame(index: object, **attributes: object) -> object:
    pd = pytest.importorskip("pandas")
    made = pd.DataFrame({"T": [1.0, 2.0]}, index=index)
    made.attrs.update(attributes)
    return made


def levels(last: int) -> object:
    pd = pytest.importorskip("pandas")
    return frame(pd.MultiIndex.from_tuples([(1, 2), (1, last)]))


def categories(second: float, ordered: bool = False) -> object:
    pd = pytest.importorskip("pandas")
    return pd.Series(pd.Categorical([1.0, second], categories=[1.0, second], ordered=ordered))


def labelled(value: object, x: object = (1, 2)) -> object:
    xr = pytest.importorskip("xarray")
    return xr.DataArray([1.0, 2.0], dims="x", attrs={"of": value}, coords={"x": list(x)})


def masked(fill: float) -> object:
    values = np.array([1, 2], np.asarray(fill).dtype)
    return np.ma.array(values, mask=[0, 1], fill_value=fill)


def tensor(at: int, compressed: bool) -> object:
    torch = pytest.importorskip("torch")
    made = torch.sparse_coo_tensor(torch.tensor([[0, 1], [at, 1]]), torch.tensor([5.0, 1.0]), (2, 2))
    return made.to_sparse_csr() if compressed else made


PAIRS: dict[str, Callable[[], tuple[object, object]]] = {
    "places of a sparse array": lambda: (coo(0), coo(1)),
    "places of a compressed sparse array": lambda: (coo(0).tocsr(), coo(1).tocsr()),
    "places of a sparse tensor": lambda: (tensor(0, False), tensor(1, False)),
    "places of a compressed sparse tensor": lambda: (tensor(0, True), tensor(1, True)),
    "integers as row labels": lambda: (frame([10, 20]), frame([10, 21])),
    "truths as row labels": lambda: (frame([True, True]), frame([True, False])),
    "levels of row labels": lambda: (levels(3), levels(4)),
    "attributes of a table": lambda: (frame([1, 2], k=1.0), frame([1, 2], k=1.5)),
    "categories": lambda: (categories(2.0), categories(2.5)),
    "whether categories are ordered": lambda: (categories(2.0), categories(2.0, True)),
    "an integer attribute": lambda: (labelled(1), labelled(2)),
    "a number as attribute": lambda: (labelled(1.0), labelled(1.5)),
    "numbers as attribute": lambda: (labelled([1, 2.0]), labelled([1, 2.5])),
    "an array as attribute": lambda: (labelled(np.arange(3.0)), labelled(np.arange(3.0) + 0.5)),
    "numbers within an attribute": lambda: (labelled({"k": [{"v": 1.0}]}), labelled({"k": [{"v": 1.5}]})),
    "a masked array as attribute": lambda: (
        labelled(np.ma.array([1.0, 2.0], mask=[0, 1])),
        labelled(np.ma.array([1.5, 2.0], mask=[0, 1])),
    ),
    "the class of an attribute": lambda: (labelled({"k": 1.0}), labelled(defaultdict(int, {"k": 1.0}))),
    "the type of an attribute": lambda: (labelled(np.float32(1)), labelled(np.float64(1))),
    "integers as coordinates": lambda: (labelled(1, (1, 2)), labelled(1, (1, 3))),
    "a fill value": lambda: (masked(5.0), masked(5.5)),
    "a fill value that is an integer": lambda: (masked(5), masked(6)),
    **{
        f"{kind} of Arrow": lambda kind=kind: (arrow(kind, 5), arrow(kind, 6))
        for kind in ("timestamp", "zoned", "date32", "date64", "time32", "time64", "duration")
    },
}


@pytest.mark.parametrize("what", PAIRS)
def test_no_tolerance_makes_labels_the_same(what: str, tmp_path: Path) -> None:
    a, b = PAIRS[what]()
    assert twinrun.compare({"m": a}, {"m": a}, **LARGE).same
    assert not twinrun.compare({"m": a}, {"m": b}, partial=True, **LARGE).same
    for name, x in (("a", a), ("b", b)):
        with twinrun.Run(tmp_path / name, atol=0) as run:
            run.capture(1, {"m": x})
    assert not twinrun.compare(tmp_path / "a", tmp_path / "b", partial=True, **LARGE).same
    golden.save({"m": a}, tmp_path / "golden", **LARGE)
    assert golden.check(tmp_path / "golden", {"m": a}).verdict == "same"
    assert golden.check(tmp_path / "golden", {"m": b}).verdict != "same"


def test_an_attribute_that_contains_itself_is_named() -> None:
    own: dict = {"k": 1.0}
    own["own"] = own
    with pytest.raises(twinrun.TwinrunError, match="contains itself"):
        twinrun.compare({"m": labelled(own)}, {"m": labelled(own)})


def test_coordinates_of_floating_point_numbers_have_the_tolerance() -> None:
    for a, b in (
        (labelled(1, (1.0, 2.0)), labelled(1, (1.0, 2.25))),
        (frame([1.0, 2.0]), frame([1.0, 2.25])),
    ):
        assert twinrun.compare({"m": a}, {"m": b}, atol=0.25).same
        assert not twinrun.compare({"m": a}, {"m": b}, atol=0.125).same


def test_values_of_a_sparse_array_have_the_tolerance() -> None:
    assert twinrun.compare({"m": coo(0)}, {"m": coo(0, 5.25)}, atol=0.25).same


@pytest.mark.parametrize("module", ["pyarrow", "pyarrow.parquet"])
def test_dates_of_arrow_are_told_as_dates(module: str, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    days = [datetime.date(2026, 2, 3), datetime.date(2026, 2, 4)]
    sides: list[object] = [pa.table({"t": pa.array([days[0], day], pa.date32())}) for day in days]
    if module == "pyarrow.parquet":
        parquet = pytest.importorskip(module)
        for at, table in enumerate(sides):
            parquet.write_table(table, tmp_path / f"{at}.parquet")
        sides = [tmp_path / f"{at}.parquet" for at in range(2)]
    said = str(twinrun.compare(*sides))
    assert "t[1]: 2026-02-03 against 2026-02-04, 1 day apart" in said, said
