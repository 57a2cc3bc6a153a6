"""Containers of packages (pandas, xarray, Polars, Arrow, SciPy, PyTorch): what is in them is compared under names and labels exactly."""

from __future__ import annotations

import copy
import datetime
import decimal
import fractions
import uuid
from pathlib import PurePosixPath

import numpy as np
import pytest
from container_checks import check_differ, verdict

import twinrun
from twinrun.runs.containers import flattened


def test_frames_of_pandas() -> None:
    pd = pytest.importorskip("pandas")

    def frame(**change: object) -> object:
        made = {
            "x": [1.0, 2.0, np.nan], "n": [1, 2, 3], "name": ["a", "b", None],
            "kind": pd.Categorical(["u", "v", "u"]), "when": pd.to_datetime(["2000-01-01"] * 3),
            "maybe": pd.array([1, None, 3], dtype="Int64"),
        }  # fmt: skip
        made.update(change)
        return pd.DataFrame(made)

    a = frame()
    for b in (
        frame(x=[1.0, 2.0, 3.0]),
        frame(name=["a", "b", "None"]),
        frame(n=np.array([1, 2, 3], np.int32)),
        frame(kind=pd.Categorical(["u", "v", "u"], ["u", "v", "w"])),
        frame(kind=pd.Categorical(["u", "v", "u"], ordered=True)),
        frame(kind=["u", "v", "u"]),
        frame(when=pd.to_datetime(["2000-01-01"] * 3).tz_localize("UTC")),
        frame(maybe=pd.array([1, 0, 3], dtype="Int64")),
        frame(maybe=pd.array([1, 2, 3], dtype="Int64")),
        frame().rename(columns={"x": "y"}),
        frame()[["n", "x", "name", "kind", "when", "maybe"]],
        frame().set_index(pd.Index([1, 2, 3])),
        frame().set_index(pd.Index(["a", "b", "c"])),
        frame().rename_axis(index="row"),
        frame().rename_axis(columns="column"),
        frame().set_index(pd.MultiIndex.from_tuples([(0, "a"), (0, "b"), (1, "a")])),
    ):
        check_differ(a, b)
    missing = [frame(name=pd.Series(["a", "b", m], dtype=object)) for m in (None, np.nan, pd.NA, pd.NaT)]
    for n, one in enumerate(missing):
        for m, other in enumerate(missing):
            assert (verdict(one, other) == "same") == (n == m)
    check_differ(
        pd.Series(["a", None], dtype=object).rename("s"), pd.Series(["a", np.nan], dtype=object).rename("s")
    )
    check_differ(pd.DataFrame({1: [1.0]}), pd.DataFrame({"1": [1.0]}))
    check_differ(pd.DataFrame({"index": [1.0]}), pd.DataFrame({"index": [1.0]}, index=[4]))
    s = pd.Series([1.0, 2.0], name="s")
    check_differ(s, s.rename("t"))
    check_differ(s, s.set_axis([2, 3]))
    check_differ(s.set_axis([2, 3]), s.set_axis([2, 4]))
    check_differ(pd.Index([1, 2]), pd.Index([1, 2], name="i"))
    assert verdict(pd.Series([1.0, 2.0]), np.array([1.0, 2.0])) == "same"  # nothing is labelled
    assert verdict(pd.DataFrame({"x": [1]}, index=[0]), pd.DataFrame({"x": [1]})) == "same"
    with pytest.raises(twinrun.TwinrunError, match="two fields of the name"):
        twinrun.compare(pd.DataFrame([[1, 2]], columns=["x", "x"]), a)


def test_labels_can_be_left_out() -> None:
    pd = pytest.importorskip("pandas")
    a = pd.DataFrame({"x": [1.0, 2.0]}, index=[3, 4])
    b = pd.DataFrame({"x": [1.0, 2.0]}, index=[5, 6])
    assert verdict(a, b) == "different" and verdict(a, b, fields=["x"]) == "same"


def test_arrays_of_xarray() -> None:
    xr = pytest.importorskip("xarray")

    def array(values: object = ((1.0, 2.0), (3.0, 4.0)), dims: tuple = ("y", "x"), **told: object) -> object:
        coords = {"x": [10, 20], "y": ["n", "s"], "level": 5.0}
        coords.update(told.pop("coords", {}))
        return xr.DataArray(
            np.array(values), dims=dims, coords=coords, **{"name": "T", "attrs": {"units": "K"}, **told}
        )

    a = array()
    others = [
        array(((1.0, 2.0), (3.0, 5.0))), array(dims=("x", "y")), array(coords={"x": [10, 21]}),
        array(coords={"y": ["n", "w"]}), array(coords={"level": 6.0}), array(attrs={"units": "C"}), array(attrs={}),
        array(attrs={"units": "K", "more": [1, 2]}), array(name="U"), array(name=None), a.drop_vars("x"), a.variable,
        a.values,
    ]  # fmt: skip
    for b in others:
        check_differ(a, b)
    labelled = array()
    labelled.coords["x"].attrs["units"] = "m"
    check_differ(a, labelled)
    for x, y in ((a, labelled), *((a, b) for b in others[:8])):
        check_differ(x.to_dataset(name="v"), y.to_dataset(name="v") if hasattr(y, "to_dataset") else y)
    ds = a.to_dataset(name="v")
    check_differ(ds, ds.rename(v="w"))
    check_differ(ds, ds.assign_attrs(title="t"))
    check_differ(ds, ds.reset_coords("level"))
    check_differ(ds, ds.assign(other=1))
    stored = array()
    stored.encoding["scale_factor"] = 2.0
    assert verdict(a, stored) == "same"  # how it was stored is no part of it
    assert verdict(xr.DataArray(np.ones(3)), np.ones(3)) == "same"
    assert verdict(a, array(((1.0, 2.0), (3.0, 4.1))), atol=0.2) == "same"


def test_indexes_are_labels() -> None:
    """What xarray and pandas show of an index beside its values: that there is one, and its frequency."""
    xr = pytest.importorskip("xarray")
    pd = pytest.importorskip("pandas")
    ds = xr.Dataset({"v": ("t", [1.0, 2.0])}, coords={"t": [10, 20], "s": ("t", ["a", "b"])})
    for one, other in ((ds, ds.drop_indexes("t")), (ds, ds.set_xindex("s"))):
        for a, b in ((one, other), (one.v, other.v)):
            check_differ(a, b)
            assert verdict(a, b, leave_out=["*@indexes@text"]) == "same"
            assert verdict(b, b.copy()) == "same"
    for index in (pd.date_range("2020", periods=3, freq="D"), pd.timedelta_range(0, periods=3, freq="h")):
        bare = type(index)(index.to_numpy())
        assert (index.freqstr, bare.freqstr) != (None, None) and bare.freqstr is None
        for make in (
            lambda i: i,
            lambda i: pd.Series([1, 2, 3], i),
            lambda i: pd.DataFrame({"x": [1, 2, 3]}, i),
        ):
            check_differ(make(index), make(bare))
            assert verdict(make(index), make(bare), leave_out=["*@index.freq@text"]) == "same"
            assert verdict(make(bare), make(bare.copy())) == "same"
    plain = np.arange(3)
    for index in (
        plain.astype("i4"),
        plain.astype("u8"),
        pd.array(plain, "Int64"),
        plain.astype(object),
        pd.Categorical(plain),
    ):
        check_differ(pd.Series([1, 2, 3]), pd.Series([1, 2, 3], index))
        check_differ(pd.DataFrame([[1, 2, 3]]), pd.DataFrame([[1, 2, 3]], columns=pd.Index(index)))
    assert verdict(pd.Series([1, 2, 3]), pd.Series([1, 2, 3], plain)) == "same"  # a range is one of int64
    words = pd.DataFrame([[1, 2]], columns=["a", "b"])
    assert verdict(words, words.set_axis(pd.Index(["a", "b"], dtype=object), axis=1)) == "same"
    check_differ(words, words.set_axis(pd.CategoricalIndex(["a", "b"]), axis=1))
    pairs = [("a", "b"), ("a", "c")]
    check_differ(pd.DataFrame([[1, 2]], columns=pd.MultiIndex.from_tuples(pairs)),
                 pd.DataFrame([[1, 2]], columns=pd.Index(pairs, tupleize_cols=False)))  # fmt: skip


@pytest.mark.parametrize("package", ["astropy.units", "unyt"])
def test_units_of_other_packages(package: str) -> None:
    unit = pytest.importorskip(package)
    check_differ(np.ones(3) * unit.m, np.ones(3) * unit.km)
    check_differ(np.ones(3) * unit.m, np.ones(3))


def test_a_size_of_torch_is_no_tuple() -> None:
    torch = pytest.importorskip("torch")
    check_differ({"a": torch.Size([2, 3])}, {"a": (2, 3)})


def test_sparse_arrays() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    dense = np.array([[0, 1.0, 0], [2.0, 0, 3.0]])
    a = sparse.csr_array(dense)
    zero = a.copy()
    zero.data[0] = 0.0
    zero = zero.tolil()
    zero[0, 1] = 1.0
    for same in (sparse.coo_array(dense), sparse.csc_array(dense), sparse.lil_array(dense), zero):
        assert verdict(a, same) == "same"  # one array, stored otherwise
    double = sparse.coo_array((np.array([0.5, 0.5, 2.0, 3.0]), ([0, 0, 1, 1], [1, 1, 0, 2])), shape=(2, 3))
    assert verdict(a, double) == "same"
    assert verdict(sparse.csr_matrix(dense), sparse.csc_matrix(dense)) == "same"
    check_differ(a, sparse.csr_matrix(dense))
    dense[0, 0] = 9.0
    check_differ(a, sparse.csr_array(dense))
    check_differ(a, sparse.csr_array(a.toarray() * 2))
    check_differ(a, sparse.csr_array((a.data, a.indices, a.indptr), shape=(2, 4)))


def test_tables_of_polars() -> None:
    pl = pytest.importorskip("polars")
    a = pl.DataFrame({"x": [1.0, 2.0], "name": ["a", None], "n": [1, None]})
    check_differ(a, a.with_columns(x=pl.Series([1.0, 3.0])))
    check_differ(a, a.with_columns(name=pl.Series(["a", "b"])))
    check_differ(a, a.with_columns(n=pl.Series([1, 0])))
    check_differ(a, a.rename({"x": "y"}))
    check_differ(a, a.select("n", "name", "x"))
    check_differ(a, a.with_columns(x=pl.Series([1, 2])))
    check_differ(pl.Series("s", [1, 2]), pl.Series("t", [1, 2]))


def test_tables_of_arrow() -> None:
    pa = pytest.importorskip("pyarrow")
    a = pa.table({"x": [1.0, 2.0], "name": ["a", None], "n": [1, None]})
    check_differ(a, pa.table({"x": [1.0, 3.0], "name": ["a", None], "n": [1, None]}))
    check_differ(a, pa.table({"x": [1.0, 2.0], "name": ["a", "b"], "n": [1, None]}))
    check_differ(a, pa.table({"x": [1.0, 2.0], "name": ["a", None], "n": [1, 0]}))
    check_differ(a, a.rename_columns(["y", "name", "n"]))
    check_differ(a, a.select(["n", "x", "name"]))


def test_dates_and_decimals_are_entries() -> None:
    pd = pytest.importorskip("pandas")
    zone = datetime.timezone(datetime.timedelta(hours=1))
    values = [
        decimal.Decimal("1"), decimal.Decimal("1.0"), decimal.Decimal("2"), fractions.Fraction(1, 2), uuid.UUID(int=1),
        datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1), datetime.datetime(2020, 1, 1, tzinfo=zone),
        datetime.time(1), datetime.timedelta(1), pd.Timestamp("2020-01-01"), pd.Timestamp("2020-01-01", tz="UTC"),
        pd.Timestamp("2020-01-01").as_unit("s"), pd.Timedelta("1D"), pd.Timedelta("1D").as_unit("ms"), pd.Period("2020"), pd.NaT, pd.NA, slice(1), PurePosixPath("x"), 1, "1",
    ]  # fmt: skip
    assert list(flattened("", {"a": [{"q": values[0]}]})) == ["a.0.q@text"]
    for at, value in enumerate(values):
        for where, other in enumerate(values):
            found = verdict({"x": np.ones(1), "q": value}, {"x": np.ones(1), "q": copy.deepcopy(other)})
            assert (found == "same") == (at == where), (value, other)
    assert verdict({"x": range(3)}, {"x": np.arange(3)}) == "same"
    assert verdict(values[0], values[0]) == "same" != verdict(values[0], values[1])


def test_arrays_of_arrow() -> None:
    pa = pytest.importorskip("pyarrow")
    three = [1, 2, 3]
    kinds = {
        "integers": pa.array(three),
        "short": pa.array(three, pa.int32()),
        "missing": pa.array([1, 2, None]),
        "floats": pa.array([1.0, 2.0, None]),
        "nan": pa.array([1.0, 2.0, np.nan]),
        "seconds": pa.array(three, pa.timestamp("s")),
        "zone": pa.array(three, pa.timestamp("s", "UTC")),
        "dates": pa.array(three, pa.date32()),
        "texts": pa.array(["1", "2", "3"]),
        "decimals": pa.array([decimal.Decimal(n) for n in three], pa.decimal128(5, 0)),
        "scale": pa.array([decimal.Decimal(n) for n in three], pa.decimal128(5, 1)),
        "dictionary": pa.array(three).dictionary_encode(),
        "lists": pa.array([[1], [2], None]),
        "member": pa.array([{"a": n} for n in three]),
        "said": pa.array(
            [{"a": n} for n in three], pa.struct([pa.field("a", pa.int64(), metadata={"units": "m"})])
        ),
    }
    for name, array in kinds.items():
        pieces = pa.chunked_array([array.slice(0, 1), array.slice(1)])
        assert verdict(array, pieces) == verdict({"x": array}, {"x": pieces}) == "same", name
        for other, against in kinds.items():
            if other != name:
                assert verdict(array, against) != "same", (name, other)
                assert verdict([{"x": array}], [{"x": pa.chunked_array([against])}]) != "same", (name, other)
    assert verdict(kinds["integers"], np.array(three)) == "same"
    tensors = [pa.Tensor.from_numpy(np.arange(3.0), dim_names=names) for names in (None, ["x"], ["y"])]
    assert verdict(tensors[0], tensors[0]) == verdict(tensors[0], np.arange(3.0)) == "same"
    assert "same" not in (verdict(tensors[1], tensors[2]), verdict(tensors[0], tensors[1]))


def test_single_values_of_arrow() -> None:
    pa = pytest.importorskip("pyarrow")
    kinds = {
        "text": pa.scalar("a"),
        "another text": pa.scalar("b"),
        "bytes": pa.scalar(b"a"),
        "no text": pa.scalar(""),
        "missing": pa.scalar(None, pa.string()),
        "number": pa.scalar(97),
        "short": pa.scalar(97, pa.int8()),
        "missing number": pa.scalar(None, pa.int8()),
        "date": pa.scalar(datetime.date(2000, 1, 1)),
        "texts": pa.scalar(["a"]),
        "other texts": pa.scalar(["b"]),
        "struct": pa.scalar({"a": "x"}),
        "struct of bytes": pa.scalar({"a": b"x"}),
        "category": pa.array(["a"]).dictionary_encode()[0],
        "map": pa.scalar([("k", "v")], pa.map_(pa.string(), pa.string())),
        "array of text": pa.array(["a"]),
        "array of numbers": np.array([97], np.int8),
    }
    for name, one in kinds.items():
        for other, against in kinds.items():
            told = verdict({"x": one}, {"x": against}, atol=200, tolerate_integers=other == name)
            assert (told == "same") == (name == other), (name, other)
            assert (verdict([{"x": one}, "z"], [{"x": against}, "z"]) == "same") == (name == other), (
                name,
                other,
            )
            assert (verdict(one, against) == "same") == (name == other), (name, other)
    for one, against in (("text", "another text"), ("texts", "other texts"), ("struct", "struct of bytes")):
        assert (
            verdict({"x": kinds[one]}, {"x": kinds[against]}, atol=200, tolerate_integers=True) == "different"
        )
    assert verdict(pa.scalar("a"), pa.scalar("a", pa.large_string())) == "same"  # how it is stored
    assert flattened("x", kinds["short"])["x"].shape == ()


def test_the_order_of_ordered_categories_of_arrow() -> None:
    pa = pytest.importorskip("pyarrow")

    def made(ordered: bool, backwards: bool) -> object:
        words, places = ["low", "mid", "high"], [0, 1, 2]
        if backwards:
            words, places = words[::-1], [2, 1, 0]
        return pa.DictionaryArray.from_arrays(pa.array(places), pa.array(words), ordered=ordered)

    def within(array: object) -> list[object]:
        table = pa.table({"x": array})
        struct = pa.StructArray.from_arrays([array], names=["m"])
        rows = pa.ListArray.from_arrays(pa.array([0, 1, 3]), array)
        return [table, array, {"deep": [array]}, struct, rows, table.to_batches()[0]]

    for x, y in zip(within(made(False, False)), within(made(False, True)), strict=True):
        assert verdict(x, y) == "same"  # storage
    for x, y in zip(within(made(True, False)), within(made(True, True)), strict=True):
        check_differ(x, y)
        assert verdict(x, x) == "same"
        sketches = [twinrun.sketch(v if isinstance(v, dict) else {"v": v}) for v in (x, y)]
        assert sketches[0].compare(sketches[1]).verdict == "different"


def test_models_and_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    other = copy.deepcopy(model)
    assert list(flattened("model", model))[:2] == ["model.0.weight", "model.0.bias"]
    assert verdict(model, other) == verdict(model, other.state_dict()) == "same"
    with torch.no_grad():
        other[0].weight[1, 2] += 1
    check_differ(model, other)
    states = []
    for rate in (0.1, 0.2):
        net = copy.deepcopy(model)
        optimizer = torch.optim.Adam(net.parameters(), lr=rate)
        net(torch.ones(5, 3)).sum().backward()
        optimizer.step()
        states.append(optimizer)
    assert "state.0.exp_avg" in flattened("", states[0])
    check_differ(states[0], states[1])
    check_differ(states[0].state_dict(), states[1].state_dict())
    dense = torch.tensor([[0, 1.0], [2.0, 0]])
    for kind in ("to_sparse", "to_sparse_csr", "to_sparse_csc"):
        for other in (dense * 2, dense.T):
            assert verdict(getattr(dense, kind)(), getattr(other, kind)()) == "different"
        assert verdict(getattr(dense, kind)(), getattr(dense, kind)()) == "same"
    wide = torch.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], (2, 3))
    check_differ(dense.to_sparse(), wide)


def test_tables_without_columns() -> None:
    pd = pytest.importorskip("pandas")
    twinrun.assert_same(pd.DataFrame(index=range(3)), pd.DataFrame(index=range(3)))
    with pytest.raises(AssertionError):
        twinrun.assert_same(pd.DataFrame(index=range(3)), pd.DataFrame(index=range(5)))
    pa = pytest.importorskip("pyarrow")
    rows = [pa.table({"a": range(n)}).select([]) for n in (3, 3, 5)]
    twinrun.assert_same(rows[0], rows[1])
    with pytest.raises(AssertionError):
        twinrun.assert_same(rows[0], rows[2])


def test_units_of_arrow() -> None:
    pa = pytest.importorskip("pyarrow")
    tables = [
        pa.table({"a": [1.0]}, schema=pa.schema([pa.field("a", pa.float64(), metadata={"units": unit})]))
        for unit in ("m", "m", "km")
    ]
    twinrun.assert_same(tables[0], tables[1])
    with pytest.raises(AssertionError):
        twinrun.assert_same(tables[0], tables[2])


@pytest.mark.parametrize("name", ["LRScheduler", "_LRScheduler", "ReduceLROnPlateau"])
def test_schedulers_of_pytorch_give_their_state(name: str) -> None:
    """The classes of its releases 1 and 2: subclasses, and one that is none."""

    def scheduler(rate: float) -> object:
        base = type(name, (), {"__module__": "torch.optim.lr_scheduler"})
        kind = base if name == "ReduceLROnPlateau" else type("StepLR", (base,), {})
        made = kind()
        made.state_dict = lambda: {"last_epoch": 3, "_last_lr": [rate]}
        return made

    same = twinrun.compare({"s": scheduler(0.1)}, {"s": scheduler(0.1)})
    assert same.verdict == "same" and [f.field for f in same.fields] == ["s.last_epoch", "s._last_lr"]
    other = twinrun.compare({"s": scheduler(0.1)}, {"s": scheduler(0.2)})
    assert other.first is not None and other.first.field == "s._last_lr"


@pytest.mark.parametrize("options", [{}, {"atol": 1e-3}, {"rtol": 1e-2, "atol": 0.0}, {"ulp": 4}], ids=str)
def test_a_tensor_alone_is_what_it_is_among_others(options: dict) -> None:
    """Whatever its type, shape and strides: its one field says what that of a mapping says, and what NumPy's array does."""
    torch = pytest.importorskip("torch")
    numbers = torch.tensor(np.random.default_rng(3).normal(size=(6, 4)))
    for dtype in (torch.float64, torch.float32, torch.float16, torch.int32, torch.uint8, torch.bool):
        a = (numbers * 40).abs().to(dtype)
        for b in (a.clone(), (numbers * 40).abs().add(1).to(dtype)):
            for cut in (lambda x: x, lambda x: x.T, lambda x: x[::2, 1:], lambda x: x[0, 0], lambda x: x[:0]):
                alone = twinrun.compare(cut(a), cut(b), **options)
                among = twinrun.compare({"x": cut(a)}, {"x": cut(b)}, **options)
                arrays = twinrun.compare(cut(a).numpy(), cut(b).numpy(), **options)
                assert alone.verdict == among.verdict == arrays.verdict
                one, other = alone.fields[0], among.fields[0]
                assert (one.different, one.elements, one.max_abs_diff) == (
                    other.different,
                    other.elements,
                    other.max_abs_diff,
                )
                assert one.field == arrays.fields[0].field
    gradient = torch.nn.Parameter(numbers.clone())
    assert twinrun.compare(gradient, numbers, **options).verdict == "same"
    assert twinrun.compare(numbers.to_sparse(), numbers.to_sparse(), **options).verdict == "same"
    with pytest.raises(twinrun.TwinrunError, match="shape"):
        twinrun.compare(numbers, numbers[:3], **options)
