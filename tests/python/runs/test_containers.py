"""Containers, and arrays that are more than their numbers: what is in them is compared under names, labels and texts exactly."""

from __future__ import annotations

import ctypes
import dataclasses
import datetime
import decimal
import enum
import gc
import hashlib
import mmap
import re
import warnings
from array import array as buffer
from collections import OrderedDict, UserList, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from container_checks import check_differ, verdict

import twinrun
from twinrun import golden
from twinrun.comparison.words import verdict_line
from twinrun.errors import TwinrunError
from twinrun.formats.texts import text_digests
from twinrun.golden.single import NotReproduced, Reproducible
from twinrun.runs.containers import flattened

Moments = namedtuple("Moments", "mu nu")


@dataclasses.dataclass
class Config:
    rate: float
    name: str | None
    weights: np.ndarray


def state() -> dict:
    return {
        "model": OrderedDict(
            {"layer.weight": np.arange(6.0).reshape(2, 3), "layer.bias": np.zeros(2, np.float32)}
        ),
        "optimizer": {
            "state": {0: {"exp_avg": np.ones(3), "step": 7}, 1: {"exp_avg": np.ones(2), "step": 7}},
            "param_groups": [
                {"lr": 0.1, "betas": (0.9, 0.999), "params": [0, 1], "name": "adam", "maximize": False}
            ],
        },
        "moments": Moments(np.zeros(2), np.ones(2)),
        "config": Config(1e-3, None, np.eye(2)),
        "epoch": 3,
        "big": 1 << 70,
        "nothing": {},
        "none": [],
        "callbacks": ["a", "b"],
    }


def test_names_are_joined_by_dots() -> None:
    assert list(flattened("", state())) == [
        "model.layer.weight", "model.layer.bias",
        "optimizer.state.0.exp_avg", "optimizer.state.0.step", "optimizer.state.1.exp_avg", "optimizer.state.1.step",
        "optimizer.param_groups.0.lr", "optimizer.param_groups.0.betas", "optimizer.param_groups.0.params",
        "optimizer.param_groups.0.name@text", "optimizer.param_groups.0.maximize",
        "moments.mu", "moments.nu", "config.rate", "config.name@text", "config.weights", "epoch", "big@text",
        "nothing@text", "none", "callbacks@text",
    ]  # fmt: skip


CHANGES = {
    "a tensor": lambda s: s["model"]["layer.weight"].__setitem__((1, 2), 9),
    "a number": lambda s: s["optimizer"]["state"][0].update(step=8),
    "a number in a tuple": lambda s: s["optimizer"]["param_groups"][0].update(betas=(0.9, 0.99)),
    "a text": lambda s: s["optimizer"]["param_groups"][0].update(name="sgd"),
    "a truth": lambda s: s["optimizer"]["param_groups"][0].update(maximize=True),
    "None": lambda s: setattr(s["config"], "name", "None"),
    "a number for None": lambda s: setattr(s["config"], "name", 0),
    "a large integer": lambda s: s.update(big=(1 << 70) + 1),
    "the type of a number": lambda s: s.update(epoch=3.0),
    "an empty mapping": lambda s: s.pop("nothing"),
    "an empty list": lambda s: s.update(none={}),
    "a list of texts": lambda s: s["callbacks"].append("c"),
    "a new key": lambda s: s["model"].update(extra=np.zeros(1)),
    "a named tuple": lambda s: s.update(moments=Moments(np.zeros(2), np.zeros(2))),
}


@pytest.mark.parametrize("what", CHANGES)
def test_every_leaf_counts(what: str, tmp_path: Path) -> None:
    a, b = state(), state()
    assert verdict(a, b) == "same"
    CHANGES[what](b)
    check_differ(a, b)
    with twinrun.Run(tmp_path / "a") as run:
        run.capture(1, a)
    with twinrun.Run(tmp_path / "b") as run:
        run.capture(1, b)
    assert verdict(tmp_path / "a", a) == verdict(tmp_path / "b", b) == "same"
    for x, y in ((tmp_path / "a", tmp_path / "b"), (tmp_path / "a", b)):
        assert verdict(x, y) != "same"
    golden.save(a, tmp_path / "golden")
    assert golden.check(tmp_path / "golden", a) and not golden.check(tmp_path / "golden", b)
    Reproducible(tmp_path, ["test"], update=True).check("state", a)
    Reproducible(tmp_path, ["test"]).check("state", state())
    with pytest.raises(NotReproduced):
        Reproducible(tmp_path, ["test"]).check("state", b)
    try:
        assert not twinrun.sketch(a).compare(twinrun.sketch(b))
    except twinrun.Incomparable:
        pass


def test_texts_are_told(tmp_path: Path) -> None:
    result = twinrun.compare({"name": ["heat", "flow"]}, {"name": ["heat", "rain"]})
    assert result.verdict == "different" and result.first_divergence["index"][0] == 1
    assert any(
        "name@text[1] is 'flow' in the first run, 'rain' in the second run" in note for note in result.notes
    )


@pytest.mark.parametrize(
    "a, b",
    [
        ({"name": "heat"}, {"name": "flow"}),
        (np.array(["a", "b"]), np.array(["a", "c"])),
        (np.ma.array([1, 2], mask=[0, 1]), np.ma.array([1, 2], mask=[1, 0])),
    ],
)
def test_no_tolerance_holds_for_texts_and_masks(a: object, b: object, tmp_path: Path) -> None:
    wide = {"tolerate_integers": True, "rtol": 1.0, "atol": 1e300}
    assert verdict(a, b, **wide) == "different"
    a, b = {"x": a}, {"x": b}
    for name, x in (("a", a), ("b", b)):
        with twinrun.Run(tmp_path / name) as run:
            run.capture(1, x)
    assert verdict(tmp_path / "a", tmp_path / "b", **wide) == "different"
    golden.save(a, tmp_path / "golden", tolerate_integers=True, atol=1e15)
    assert golden.check(tmp_path / "golden", a) and not golden.check(tmp_path / "golden", b)


def test_names_that_collide_are_an_error() -> None:
    for what in ({"a": {"b": 1.0}, "a.b": 2.0}, {1: 1.0, "1": 2.0}, {"a": [1.0, {}], "a.0": 1.0}):
        with pytest.raises(twinrun.TwinrunError, match="two fields of the name"):
            twinrun.compare(what, what)
        with pytest.raises(twinrun.TwinrunError, match="two fields of the name"):
            twinrun.sketch(what)


def test_cycles_and_depth_are_an_error() -> None:
    cycle: dict = {"x": np.zeros(2)}
    cycle["self"] = [cycle]
    with pytest.raises(twinrun.TwinrunError, match="contains itself"):
        twinrun.compare(cycle, cycle)
    deep: dict = {}
    for _ in range(200):
        deep = {"d": deep}
    with pytest.raises(twinrun.TwinrunError, match="nested more than 100 deep"):
        twinrun.compare(deep, deep)
    shared = np.ones(3)
    assert verdict({"a": [shared, shared], "b": shared}, {"a": [shared, shared], "b": shared}) == "same"


def test_what_cannot_be_compared_is_named() -> None:
    for what in (object(), {1, 2}, np.array([object()]), lambda: 0):
        with pytest.raises(twinrun.TwinrunError, match=r"^here\.0: "):
            twinrun.compare({"here": [what, 1]}, {"here": [what, 1]})
    with pytest.raises(twinrun.TwinrunError, match="nothing to compare"):
        twinrun.compare({}, {})


@pytest.mark.parametrize("odd", [{1, 2}, object(), np.array([object()]), lambda: 0])
@pytest.mark.parametrize(
    "within", [lambda v: v, lambda v: [v, 1.5], lambda v: {"u": {"v": v}, "w": np.ones(2)}]
)
def test_what_cannot_be_compared_can_be_left_out(odd: object, within: Callable) -> None:
    x = np.arange(3.0)
    a, b, other = {"x": x, "s": within(odd)}, {"x": x, "s": within(odd)}, {"x": x + 1, "s": within(odd)}
    name = "s" + {0: "", 1: ".0", 2: ".u.v"}[0 if within(0) == 0 else 1 if isinstance(within(0), list) else 2]
    for how in ({}, {"fields": "s*"}, {"leave_out": "x"}):
        with pytest.raises(twinrun.Incomparable, match=rf"^{re.escape(name)}: "):
            twinrun.compare(a, b, **how)
    for how in ({"fields": "x"}, {"leave_out": name}, {"leave_out": "s*"}, {"common": True}):
        assert twinrun.compare(a, b, **how).same
        assert twinrun.compare(a, other, **how).verdict == "different"
    assert any(name in note for note in twinrun.compare(a, b, common=True).notes)
    found = twinrun.compare(a, b, partial=True)
    assert (
        found.verdict == "incomparable"
        and [str(p) for p in found.problems if not str(p).startswith(f"{name}: ")] == []
    )
    assert len(found.problems) == 1 and "x" in [f.field for f in found.fields]
    # Where one run alone has it, the other's entry has no match.
    for one, two in ((a, {"x": x, "s": within(np.ones(2))}), ({"x": x, "s": within(np.ones(2))}, a)):
        with pytest.raises(twinrun.Incomparable):
            twinrun.compare(one, two)
        assert twinrun.compare(one, two, partial=True).verdict == "incomparable"
    for verb in (twinrun.sketch, twinrun.digest):
        with pytest.raises(twinrun.TwinrunError):
            verb(a)


def test_what_cannot_be_compared_is_not_lost_among_other_odd_values() -> None:
    """Those that the core does not take, and that can be compared."""
    a = {"x": np.arange(3.0), "s": {1}, "t": np.ones(6)[::2], "n": None, "l": np.ones(2, np.longdouble)}
    for b in (a, {**a, "s": {2}}):
        for one, two in ((a, b), (list(a.values()), list(b.values()))):
            with pytest.raises(twinrun.Incomparable, match=r"^(s|1): "):
                twinrun.compare(one, two)
            found = twinrun.compare(one, two, partial=True)
            assert found.verdict == "incomparable" and len(found.problems) == 1 and len(found.fields) == 4
        assert twinrun.compare(a, b, leave_out="s").same
    with pytest.raises(twinrun.Incomparable, match=r"^s: "):  # nothing is compared
        twinrun.compare({"s": {1}}, {"s": {1}}, partial=True)


def test_lists_of_numbers_are_arrays() -> None:
    assert verdict([1, 2, 3], np.array([1, 2, 3])) == "same"
    assert verdict({"x": [[1, 2], [3, 4]]}, {"x": np.array([[1, 2], [3, 4]])}) == "same"
    assert verdict({"x": [1, 2.5]}, {"x": np.array([1, 2.5])}) == "same"
    check_differ([(1 << 53) + 1, 0.5], [1 << 53, 0.5])  # not rounded to one number
    check_differ([True, 2], [1, 2])
    check_differ([[1, 2], [3]], [[1, 2], [4]])
    check_differ([1 << 64, 1], [(1 << 64) + 1, 1])


def test_containers_are_not_kept_alive() -> None:
    a, b = {"x": {"y": np.zeros(3)}}, {"x": {"y": np.ones(3)}}
    result = twinrun.compare(a, b)
    assert [part.count for part in result.differences()] == [3]
    del a
    gc.collect()
    with pytest.raises(twinrun.TwinrunError, match="are gone"):
        list(result.differences())


# ---- arrays that are more than their numbers ----


def test_texts_and_objects_of_numpy() -> None:
    assert verdict(np.array(["a", "bc"]), np.array(["a", "bc"], "U10")) == "same"  # padding is storage
    check_differ(np.array(["a", "b"]), np.array(["a", "B"]))
    check_differ(np.array([b"a"]), np.array(["a"]))
    check_differ(np.array(["a", None], object), np.array(["a", "None"], object))
    check_differ(np.array([1, "1"], object), np.array([1, 1], object))
    check_differ(np.array([1.0], object), np.array([1], object))
    check_differ(np.array([datetime.date(2000, 1, 1)]), np.array([datetime.date(2000, 1, 2)]))
    check_differ(np.array([decimal.Decimal("1.0")]), np.array([decimal.Decimal("1.00")]))
    for words in ([None, "a"], ["a", None]):
        check_differ(np.array(words, object), np.array([np.nan if w is None else w for w in words], object))
    check_differ(np.array([(1, "a")], "i4,U3"), np.array([(1, "b")], "i4,U3"))
    check_differ(np.array([(1, 2.0)], "i4,f4"), np.array([(1, 3.0)], "i4,f4"))
    check_differ(np.zeros(2, "V3"), np.frombuffer(b"000001", "V3"))
    check_differ(np.array(["2000"], "M8[s]"), np.array(["2001"], "M8[s]"))
    check_differ(np.zeros(2, "M8[s]"), np.zeros(2, "M8[D]"))


class Name(str):
    pass


class Colour(str, enum.Enum):
    red = "a"

    def __str__(self) -> str:
        return "red"


class Level(enum.IntEnum):
    low = 1


class Pair(tuple):
    pass


# Each is another value or of another type than all others.
UNLIKE = ["a", Name("a"), Colour.red, b"a", np.void(b"a"), 1, Level.low, True, np.int8(1), np.uint64(1), 1.0, np.float32(1),
          np.float16(1), np.longdouble(1), 1 + 0j, np.complex64(1), None, np.datetime64(1, "s"), [1], Pair([1]), Moments(1, 2),
          {"mu": 1}, defaultdict(int, mu=1)]  # fmt: skip


def test_types_of_objects_count() -> None:
    def beside_a_text(value: object) -> np.ndarray:
        made = np.array([None, "z"], object)
        made[0] = value
        return made

    pd = pytest.importorskip("pandas")
    for n, x in enumerate(UNLIKE):
        for m, y in enumerate(UNLIKE):
            assert (verdict(beside_a_text(x), beside_a_text(y)) == "same") == (n == m), (x, y)
            frames = [pd.DataFrame({"c": pd.Series(beside_a_text(v), dtype=object)}) for v in (x, y)]
            assert (verdict(*frames) == "same") == (n == m), (x, y)
    for x, y in (("a", Name("a")), ("a", Colour.red), (b"a", np.void(b"a"))):
        check_differ({"k": x}, {"k": y})
    check_differ(np.array([b"a"], "S1"), np.array([b"a"], "V1"))
    note = "k@text is 'a' in the first run, 'a' of the class Name in the second run"
    assert note in twinrun.compare({"k": "a"}, {"k": Name("a")}).notes
    for x, y in (
        (np.str_("a"), "a"),
        (np.bytes_(b"a"), b"a"),
        (np.int64(1), 1),
        (np.float64(1), 1.0),
        (np.bool_(1), True),
    ):
        assert verdict(beside_a_text(x), beside_a_text(y)) == "same"  # numpy's own, as its arrays give them
    endless = Pair([[]])
    endless[0].append(endless)
    with pytest.raises(twinrun.TwinrunError, match="cannot be compared"):
        flattened("x", beside_a_text(endless))


def test_digests_of_texts_stay_as_they_are() -> None:
    """Histories and golden files keep them."""
    values = ["", "a", "é", b"", b"a", 0, 1, -1, 1 << 70, True, 0.0, -0.0, 1.5, float("nan"), float("inf"), 1j, None,
              [1, "a"], (1,), {"a": 1}, np.str_("a"), np.bytes_(b"a"), np.int64(1), np.float64(1.5), np.bool_(1),
              datetime.date(2000, 1, 1), decimal.Decimal("1.0"), np.datetime64("2000", "s"), bytearray(b"a")]  # fmt: skip
    made = text_digests(values).tobytes()
    assert hashlib.sha256(made).hexdigest().startswith("f8a4aeed9c9b9430dc9e59051c07f783")


def test_the_variable_of_a_polynomial_counts() -> None:
    assert (
        verdict(np.poly1d([1, 2]), np.poly1d([1, 2]))
        == verdict(np.poly1d([1, 2]), np.array([1, 2]))
        == "same"
    )
    check_differ(np.poly1d([1, 2]), np.poly1d([1, 2], variable="s"))
    check_differ(np.poly1d([1, 2], variable="t"), np.poly1d([1, 2], variable="s"))


def test_integers_that_no_type_holds_together() -> None:
    for a, b in (([2**64 - 1, -1], [2**64 - 2, -1]), ([[2**64 - 1], [-1]], [[2**64 - 2], [-1]]),
                 ([np.uint64(2**64 - 1), np.int64(-1)], [np.uint64(2**64 - 2), np.int64(-1)])):  # fmt: skip
        assert verdict(a, a) == verdict({"x": a}, {"x": a}) == "same"
        check_differ(a, b)
        check_differ({"x": a}, {"x": b})
    assert set(flattened("x", [2**64 - 1, 1])) == {"x"}


def test_masks() -> None:
    masked = np.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 0])
    assert verdict(masked, np.ma.array([1.0, 99.0, 3.0], mask=[0, 1, 0])) == "same"
    check_differ(masked, np.ma.array([1.0, 2.0, 3.0], mask=[0, 0, 1]))
    check_differ(masked, np.ma.array([1.0, 2.0, 4.0], mask=[0, 1, 0]))
    check_differ(masked, np.array([1.0, 0.0, 3.0]))
    assert verdict(np.ma.array([1.0, 2.0]), np.array([1.0, 2.0])) == "same"


class Gives:
    """An object that gives numpy an array; asked: how often it was asked."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.asked = 0

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        self.asked += 1
        return self.array


def test_masks_of_objects_that_give_numpy_a_masked_array(tmp_path: Path) -> None:
    masked = np.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 0])
    filled = np.ma.array([1.0, 0.0, 3.0], mask=[0, 1, 0], fill_value=-9.0)
    for given in (
        masked,
        filled,
        np.ma.array([1.0, 2.0]),
        np.ma.array([(1, 2.0)], mask=[(1, 0)], dtype="i4,f8"),
    ):
        assert verdict(Gives(given), given) == verdict({"x": Gives(given)}, {"x": given}) == "same"
        assert list(flattened("x", Gives(given))) == list(flattened("x", given))
    check_differ(Gives(masked), Gives(np.ma.array([1.0, 2.0, 3.0], mask=[0, 0, 1])))
    check_differ(Gives(masked), np.array([1.0, 2.0, 3.0]))
    assert verdict(Gives(masked), Gives(np.ma.array([1.0, 99.0, 3.0], mask=[0, 1, 0]))) == "same"
    other = {"x": np.ma.array([1.0, 2.0, 3.0], mask=[0, 0, 1])}
    with twinrun.Run(tmp_path / "run", atol=1e-6) as run:
        run.capture(0, {"x": Gives(masked)})
    assert twinrun.compare(tmp_path / "run", {"x": masked}, steps="0")
    assert not twinrun.compare(tmp_path / "run", other, steps="0")
    golden.save({"x": Gives(masked)}, tmp_path / "golden")
    assert golden.check(tmp_path / "golden", {"x": masked})
    assert not golden.check(tmp_path / "golden", other)
    sketches = [twinrun.sketch({"x": x}, atol=1e-6) for x in (Gives(masked), masked)]
    assert sketches[0].compare(sketches[1]).verdict == "same"
    with pytest.raises(twinrun.TwinrunError, match="has masked elements, which have no value"):
        twinrun.digest(Gives(masked))


def test_objects_are_asked_once_for_their_array() -> None:
    for array in (np.arange(3.0), np.arange(3), np.ones((2, 2), "c8").T):
        a, b = Gives(array), Gives(array)
        assert twinrun.compare({"x": a}, {"x": b})
        assert (a.asked, b.asked) == (1, 1)


def test_masks_of_variables_in_open_netcdf_files(tmp_path: Path) -> None:
    """netCDF4 gives numpy what is missing as masked elements."""
    netcdf = pytest.importorskip("netCDF4")
    for name, missing in (("a", 1), ("b", 2)):
        with netcdf.Dataset(tmp_path / f"{name}.nc", "w") as file:
            file.createDimension("x", 3)
            file.createVariable("t", "f8", ("x",), fill_value=-9.0)[:] = np.ma.array(
                np.zeros(3), mask=np.arange(3) == missing
            )
    with netcdf.Dataset(tmp_path / "a.nc") as a, netcdf.Dataset(tmp_path / "b.nc") as b:
        assert verdict({"t": a["t"]}, {"t": a["t"][:]}) == "same"
        assert verdict({"t": a["t"]}, {"t": b["t"]}) == "different"


def test_texts_and_packed_numbers_of_open_netcdf_files(tmp_path: Path) -> None:
    netcdf = pytest.importorskip("netCDF4")
    for name, last in (("a", "c"), ("b", "C")):
        with netcdf.Dataset(tmp_path / f"{name}.nc", "w") as file:
            file.createDimension("x", 3)
            file.createVariable("s", str, ("x",))[:] = np.array(["a", "b", last], object)
            packed = file.createVariable("p", "i2", ("x",))
            packed.scale_factor = 0.5
            packed[:] = np.ma.array([0.0, 1.0, 2.0], mask=[False, True, False])
    with netcdf.Dataset(tmp_path / "a.nc") as a, netcdf.Dataset(tmp_path / "b.nc") as b:
        assert verdict({"s": a["s"]}, {"s": a["s"][:]}) == "same"
        assert verdict({"s": a["s"]}, {"s": b["s"]}) == "different"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert verdict({"p": a["p"]}, {"p": b["p"]}) == "same"
        with pytest.raises(twinrun.TwinrunError):  # a file that is open is no array
            twinrun.compare(a, b)
        with pytest.raises(twinrun.TwinrunError):
            twinrun.compare({"a": a}, {"a": b})


def test_how_numpy_stores_texts_and_structs_is_no_label(tmp_path: Path) -> None:
    """Widths of texts and the order of members: equal in memory, and of files elements are, wherever they stand."""
    words = ["a", "bcd"]
    kind = [("a", "f8"), ("b", "U3"), ("in", [("c", "i4"), ("d", "S2")], (2,))]
    one = np.zeros(2, kind)
    one["a"], one["b"], one["in"]["d"] = [1, 2], words, b"x"
    other = np.zeros(2, [("in", [("d", "S5"), ("c", ">i4")], (2,)), ("b", "<U9"), ("a", ">f8")])
    for name in ("a", "b"):
        other[name] = one[name]
    other["in"]["d"] = b"x"
    pairs = [(np.array(words, f"{k}3"), np.array(words, f"{k}5")) for k in "US"]
    for a, b in (
        *pairs,
        (one, other),
        *((np.array([x, None]), np.array([y, None])) for x, y in [(one[0], other[0])]),
    ):
        assert verdict({"x": a}, {"x": b}) == "same" and verdict(a, b) == "same"
    np.savez(tmp_path / "a.npz", x=one)
    np.savez(tmp_path / "b.npz", x=other)
    result = twinrun.compare(tmp_path / "a.npz", tmp_path / "b.npz")
    assert all(f.same for f in result.fields) and {d.label for d in result.attributes} == {"x@(members)"}
    other["in"]["c"][1, 1] = 7
    assert verdict({"x": one}, {"x": other}) == "different"


def test_titles_of_members_count(tmp_path: Path) -> None:
    def made(title: str | None, inner: str | None = None) -> np.ndarray:
        def name(of: str, title: str | None) -> object:
            return of if title is None else (title, of)

        return np.zeros(2, [(name("a", title), "f4"), ("in", [(name("b", inner), "i4"), ("c", "i4")])])

    arrays = [made(None), made("metres"), made("feet"), made(None, "metres"), made(None, "feet")]
    files = [tmp_path / f"{n}" / "x.npy" for n in range(len(arrays))]
    for file, array in zip(files, arrays, strict=True):
        file.parent.mkdir()
        np.save(file, array)
        np.savez(file.with_suffix(".npz"), x=array)
    masked = [np.ma.masked_array(array) for array in arrays]
    objects = [np.array([array[0], None], object) for array in arrays]
    archives = [file.with_suffix(".npz") for file in files]
    for given in (arrays, masked, objects, files, archives):
        for n, x in enumerate(given):
            for m, y in enumerate(given):
                assert (verdict(x, y) == "same") == (n == m), (given, n, m)
    assert twinrun.compare(files[1], files[2]).attributes[0].name == "(members)"
    order = np.zeros(2, [("b", "i4"), (("metres", "a"), "f4")])
    assert verdict(order, order[["a", "b"]]) == "same"


def test_units() -> None:
    pint = pytest.importorskip("pint")
    unit = pint.UnitRegistry()
    check_differ(np.ones(3) * unit.m, np.ones(3) * unit.km)
    check_differ(np.ones(3) * unit.m, np.ones(3))
    check_differ(np.ones(3) * unit.m, 2 * np.ones(3) * unit.m)


@pytest.mark.parametrize(
    ("plain", "own"),
    [
        ({"x": np.ones(3)}, defaultdict(int, x=np.ones(3))),
        ((1, 2), Pair((1, 2))),
        ((1.0, "a"), Pair((1.0, "a"))),
        (1, Level.low),
        ((), Pair()),
    ],
)
def test_classes_of_their_own_count(plain: object, own: object) -> None:
    check_differ({"a": plain}, {"a": own})
    assert verdict({"a": own}, {"a": own}) == "same"


def test_plain_containers_are_alike(tmp_path: Path) -> None:
    x = np.ones(3)
    for a, b in (
        ({"x": x}, OrderedDict(x=x)),
        ({"a": [x, 1]}, {"a": (x, 1)}),
        ({"a": [1, 2]}, {"a": np.array([1, 2])}),
    ):
        assert verdict(a, b) == "same" and verdict(b, a) == "same"
    np.savez(tmp_path / "a.npz", x=x)
    with np.load(tmp_path / "a.npz") as loaded:
        assert verdict({"x": x}, loaded) == "same"


class Box:
    """Numpy takes it for a sequence."""

    def __init__(self, held: list) -> None:
        self.held = held

    def __len__(self) -> int:
        return len(self.held)

    def __getitem__(self, at: int) -> object:
        return self.held[at]


@pytest.mark.parametrize("kind", [deque, UserList, Box])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([2**53 + 1, 0.5], [2**53, 0.5]),
        ([2**63 + 1, -1], [2**63, -1]),
        ([True, 2], [1, 2]),
        ([np.zeros(2, "f4"), np.zeros(2)], [np.zeros(2), np.zeros(2)]),
        ([np.ma.masked_array([1.0, 2], [0, 1])], [np.ma.masked_array([1.0, 2], [0, 0])]),
        ([{"a": 1.0}], [{"a": 2.0}]),
        (["a", None], ["a", "None"]),
        ([[1, 2], [3]], [[1], [2, 3]]),
        ([], [1]),
        (["x"], ["y"]),
    ],
)
def test_any_sequence_is_a_list_of_what_it_holds(kind: type, a: list, b: list) -> None:
    """numpy would convert the entries to one type, in which they may be equal."""
    check_differ(kind(a) if a else {"q": kind(a)}, kind(b) if a else {"q": kind(b)})
    for one in (a, b):
        assert list(flattened("", {"q": kind(one)})) == list(flattened("", {"q": one}))
        assert twinrun.compare({"q": kind(one)}, {"q": one}).same


def test_a_sequence_that_cannot_be_listed_is_named() -> None:
    class Fails(Box):
        def __getitem__(self, at: int) -> object:
            raise RuntimeError("no entry")

    with pytest.raises(TwinrunError, match=r"a: its entries cannot be listed: RuntimeError\('no entry'\)"):
        twinrun.compare({"a": Fails([1])}, {"a": [1]})

    class Keyed(Box):
        """As a group of Zarr: a loop gives its keys."""

        def __getitem__(self, key: object) -> object:
            return dict(self.held)[key]

        def __iter__(self) -> Iterator:
            return iter([key for key, _ in self.held])

    for held in ([("a", 1.0)], [("a", 1.0), ("b", np.ones(2))]):
        with pytest.raises(TwinrunError, match="cannot be listed: KeyError"):
            twinrun.compare({"k": Keyed(held)}, {"k": Keyed(held)})
    own: deque = deque()
    own.append(own)
    with pytest.raises(TwinrunError, match="contains itself"):
        twinrun.compare(own, own)


def test_a_mapping_that_cannot_be_listed_is_named() -> None:
    class Fails(dict):
        def items(self) -> object:  # type: ignore[override]
            raise RuntimeError("no entry")

    for what, said in (({"a": Fails(x=1)}, "^a: its entries"), (Fails(x=1), "^its entries")):
        with pytest.raises(twinrun.Incomparable, match=f"{said} cannot be listed: RuntimeError"):
            twinrun.compare(what, what)
    assert twinrun.compare({"a": Fails(x=1), "b": 1}, {"a": Fails(x=1), "b": 1}, leave_out="a").same


def test_sequences_of_numbers_in_memory_are_arrays_as_they_are() -> None:
    for what in (buffer("f", [1, 2]), (ctypes.c_float * 2)(1, 2)):
        assert twinrun.compare({"a": what}, {"a": np.array([1, 2], "f4")}).same
    assert twinrun.compare({"a": range(3)}, {"a": [0, 1, 2]}).same


def test_an_empty_key_is_a_name() -> None:
    x, y = np.arange(3.0), np.ones(3)
    assert list(flattened("", {"": {"a": x, "": {"b": y}}, "a": y})) == [".a", "..b", "a"]
    for a, b in (
        ({"": {"a": x}}, {"a": x}),
        ({"": [x, {"c": y}]}, {"0": x, "1": {"c": y}}),
        ({"a": {"": {"b": x}}}, {"a": {"b": x}}),
        ({"": {}, "a": x}, {"a": x}),
    ):
        for one, two in ((a, b), (b, a)):
            with pytest.raises(TwinrunError, match="not there"):
                twinrun.compare(one, two)
        assert twinrun.compare(a, a).same and twinrun.compare(b, b).same
    for plain in ({"a": {"b": x}, "c": y}, [{"a": x}, y]):  # after an empty key names are as before
        assert list(flattened("", {"": {"q": x}, "p": plain}))[1:] == list(flattened("", {"p": plain}))
    found = twinrun.compare({"": {"a": x}, "a": y}, {"": {"a": y}, "a": y})
    assert [f.field for f in found.fields if not f.same] == [".a"]


def test_what_gives_its_state_has_the_names_of_its_state() -> None:
    state = {"state": {0: {"step": 1.0, "": {"x": np.ones(2)}}}, "empty": {}}
    optimizer = type("Optimizer", (), {"__module__": "torch.optim", "state_dict": lambda self: state})()
    assert list(flattened("", optimizer)) == list(flattened("", state))
    assert list(flattened("", {"o": optimizer})) == list(flattened("", {"o": state}))
    nothing = type("Optimizer", (), {"__module__": "torch.optim", "state_dict": lambda self: {}})()
    assert list(flattened("", nothing)) == []


def test_what_a_masked_array_is_filled_with() -> None:
    a = np.ma.MaskedArray(np.arange(4.0), [0, 1, 0, 0])
    check_differ(a, np.ma.MaskedArray(np.arange(4.0), [0, 1, 0, 0], fill_value=-999.0))
    assert (
        verdict(a, np.ma.MaskedArray(np.arange(4.0), [0, 1, 0, 0], fill_value=1e20)) == "same"
    )  # numpy's own


@pytest.mark.parametrize("kind", ["f8", "i4", "U3", "O", "f8,i4"])
def test_shapes_without_elements_count(kind: str) -> None:
    shapes = [(0,), (0, 3), (0, 4), (3, 0)]
    for a in shapes:
        for b in shapes:
            assert (verdict(np.empty(a, kind), np.empty(b, kind)) == "same") == (a == b)


def test_bytes_of_any_class_are_bytes() -> None:
    numbers = np.array([97, 98], np.uint8)
    same = [b"ab", bytearray(b"ab"), memoryview(b"ab"), memoryview(b"ab").cast("c")]
    try:
        import pyarrow as pa
    except ImportError:
        pass
    else:
        same += [pa.py_buffer(b"ab"), pa.scalar("ab").as_buffer()]
    with mmap.mmap(-1, 2) as mapped:
        mapped[:] = b"ab"
        for one in (*same, mapped):
            assert verdict({"x": one}, {"x": b"ab"}) == verdict([one, "z"], [b"ab", "z"]) == "same"
            for other in (b"ac", "ab", numbers, numbers.view(np.int8)):
                assert verdict({"x": one}, {"x": other}, atol=200, tolerate_integers=True) != "same"
    assert verdict({"x": memoryview(np.arange(3.0))}, {"x": np.arange(3.0)}) == "same"
    released = memoryview(b"ab")
    released.release()
    with pytest.raises(twinrun.TwinrunError, match="bytes cannot be read"):
        flattened("x", released)


def test_a_name_of_the_caller_is_no_label() -> None:
    masked = {"x": np.ma.array([1.0, 0.0], mask=[False, True])}
    plain = {"x": np.array([1.0, 0.0]), "x@mask": np.array([False, True])}
    twinrun.assert_same(plain, plain)
    twinrun.assert_same(masked, masked)
    for pair in ((masked, plain), (plain, masked)):
        with pytest.raises(AssertionError):
            twinrun.assert_same(*pair)
    alone = {"x@mask": np.array([False, True])}
    assert list(flattened("", alone)) == ["x@mask"]


def test_the_verdict_shows_texts() -> None:
    found = twinrun.compare({"s": ["x", "y"]}, {"s": ["x", "z"]})
    assert verdict_line(found) == "different: first at s@text[1]: 'y' against 'z'"


@pytest.mark.parametrize("beside", [{}, {"x": np.arange(3.0)}])
def test_a_struct_without_members_has_a_shape(beside, tmp_path):
    three, four = np.zeros(3, []), np.zeros(4, [])
    assert twinrun.compare({**beside, "o": three}, {**beside, "o": three.copy()}).verdict == "same"
    assert twinrun.compare({**beside, "o": three}, {**beside, "o": four}).verdict == "different"
    masked = np.ma.array(three), np.ma.array(four)
    assert twinrun.compare({**beside, "o": masked[0]}, {**beside, "o": masked[1]}).verdict == "different"
    for name, array in (("a", three), ("b", three), ("c", four)):
        np.save(tmp_path / f"{name}.npy", array)
    assert twinrun.compare(tmp_path / "a.npy", tmp_path / "b.npy").verdict == "same"
    with pytest.raises(twinrun.Incomparable):
        twinrun.compare(tmp_path / "a.npy", tmp_path / "c.npy")


def test_the_masked_constant_is_compared():
    assert twinrun.compare({"a": np.ma.masked}, {"a": np.ma.masked}).verdict == "same"
    with pytest.raises(twinrun.TwinrunError):
        twinrun.compare({"a": np.ma.masked}, {"a": 0.0})


def held(value: object) -> np.ndarray:
    """An array of objects that holds one value."""
    array = np.empty(1, object)
    array[0] = value
    return array


MASKED = [
    np.array([0.0, 1, 2, 3]),
    np.ma.array([0.0, 1, 2, 3], mask=[0, 0, 0, 1]),
    np.ma.array([0.0, 1, 2, 3], mask=[1, 1, 0, 0]),
    np.ma.array([0.0, 1, 2, 3], mask=[0, 0, 0, 0], fill_value=7.0),
    np.ma.array([0.0, 1, 2, 3], mask=[0, 0, 0, 1], fill_value=7.0),
    np.ma.array([(1, 2.0)], mask=[(1, 0)], dtype=[("i", "i4"), ("f", "f8")]),
    np.ma.array([(1, 2.0)], mask=[(0, 1)], dtype=[("i", "i4"), ("f", "f8")]),
    np.array([(1, 2.0)], [("i", "i4"), ("f", "f8")]),
    np.ma.array([(1, 2.0)], mask=[(1, 0)], dtype=[("i", "i4"), ("f", "f8")])[0],
    np.ma.array(3.0, mask=True),
    np.ma.masked,
    np.array(0.0),
    np.ma.array(np.array([None, "a"], object), mask=[1, 0]),
    np.array([None, "a"], object),
]


@pytest.mark.parametrize("at", range(len(MASKED)))
@pytest.mark.parametrize("nested", [False, True])
def test_masks_count_within_objects(at: int, nested: bool) -> None:
    wrap = (lambda x: held({"a": [x]})) if nested else held
    for other in range(len(MASKED)):
        found = twinrun.compare({"x": wrap(MASKED[at])}, {"x": wrap(MASKED[other])})
        assert found.same == (at == other), (MASKED[at], MASKED[other])


def test_what_lies_under_a_mask_is_not_looked_at_within_objects() -> None:
    for a, b in (
        (np.ma.array([0, 1], mask=[0, 1]), np.ma.array([0, 9], mask=[0, 1])),
        (np.ma.array([0, 1], mask=[0, 0]), np.array([0, 1])),
        (np.ma.array([(1, 2)], mask=[(0, 0)], dtype="i4,i4"), np.array([(1, 2)], "i4,i4")),
    ):
        assert twinrun.compare({"x": held(a)}, {"x": held(b)}).same


def test_units_count_within_objects() -> None:
    class Quantity(np.ndarray):
        unit = "m"

    class Other(Quantity):
        unit = "s"

    a, b = (np.ones(2).view(kind) for kind in (Quantity, Other))
    assert not twinrun.compare({"x": held(a)}, {"x": held(b)}).same
    assert twinrun.compare({"x": held(a)}, {"x": held(a.copy())}).same


def test_lists_of_narrow_numbers_warn_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert twinrun.compare({"v": [np.float16(1), np.int8(1)]}, {"v": [np.float16(1), np.int8(1)]}).same
