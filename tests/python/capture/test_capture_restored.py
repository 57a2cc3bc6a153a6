"""Run and back: steps that come back into arrays, IDs and places."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from capture_checks import fields, same
from histories import arrays, steps_of

import twinrun

# ---- back into arrays ----


def test_load_and_restore_give_back_what_was_captured(tmp_path: Path) -> None:
    given = arrays(3)
    with twinrun.Run(tmp_path / "run", atol=1e-3) as run:
        run.capture(1, given)
        loaded = run.load(1)
        assert list(loaded) == list(given)
        for name, x in given.items():
            y = loaded[name]
            assert y.dtype == x.dtype.newbyteorder("=") and y.shape == x.shape and np.array_equal(x, y), name
        assert list(run.load(1, ["f8[5, 7]"])) == ["f8[5, 7]"] and run.load(1, []) == {}
        # Into arrays of every layout: dense, column-major, strided, backwards, byte-swapped.
        x = given["f8[5, 7]"]
        layouts = {
            "dense": np.empty(x.shape),
            "column-major": np.empty(x.shape, order="F"),
            "strided": np.full((10, 14), -1.0)[::2, ::2],
            "backwards": np.empty(x.shape)[::-1, ::-1],
            "swapped": np.empty(x.shape, x.dtype.newbyteorder("S")),
        }
        for name in ("f8[5, 7]", "f8[5, 7]F", "f8[5, 7]S", "f8[5, 7]R", "f8[5, 7]B"):
            for layout, into in layouts.items():
                into[...] = 0
                run.restore(1, {name: into})
                assert np.array_equal(into, given[name]), (name, layout)
        assert (layouts["strided"].base[1::2] == -1).all() and (layouts["strided"].base[:, 1::2] == -1).all()
        zero = np.empty(())
        run.restore(1, {"f8[]": zero, "f8[0]": np.empty(0)})
        assert zero == given["f8[]"]
        buffer = bytearray(given["u1[1025]"].size)
        run.restore(1, {"u1[1025]": memoryview(buffer)})
        assert bytes(buffer) == given["u1[1025]"].tobytes()


class Shown:
    """An object that gives numpy its array, or a copy."""

    def __init__(self, copies: bool) -> None:
        self.array = np.zeros(3)
        self._copies = copies

    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray:
        return self.array.copy() if self._copies else self.array

    def __dlpack__(self) -> object:
        raise BufferError


def test_restore_refuses_what_cannot_be_written(tmp_path: Path) -> None:
    """Numpy makes an array of it: a copy, which is written and thrown away."""
    x = np.arange(3.0)
    given = {
        "s": np.float64(3.5),
        "x": x,
        "t": np.datetime64("2020-01-01"),
        "b": x.astype("u1"),
        "0": x[:1][0],
    }
    with twinrun.Run(tmp_path / "run") as run:
        run.capture(1, given)
        scalar = "scalar of numpy .*read-only; give an array"
        for name, target, said in (
            ("s", np.float64(0), scalar),
            ("0", np.zeros(1)[0], scalar),
            ("t", np.datetime64("1999-01-01"), scalar),
            ("s", np.zeros((), "f8,f8")[()], scalar),
            ("s", 0.0, "float is no array that can be written"),
            ("x", [0.0] * 3, "list is no array"),
            ("x", (0.0,) * 3, "tuple is no array"),
            ("x", {0: 0.0}, "dict is no array"),
            ("b", bytes(3), "read-only"),
            ("b", memoryview(bytes(3)), "read-only"),
            ("x", np.broadcast_to(np.zeros(1), 3), "read-only"),
            ("x", np.lib.stride_tricks.as_strided(np.zeros(1), (3,), (0,)), "several elements in one place"),
            ("x", np.ma.array(np.zeros(3), mask=[0, 1, 0]), "masked elements, which would hide"),
            ("x", Shown(copies=True), "Shown gives numpy a copy"),
        ):
            into = np.zeros(3)
            with pytest.raises(twinrun.TwinrunError, match=f"^{name}: .*{said}"):
                run.restore(1, {"x": into, name: target} if name != "x" else {name: target})
            assert not into.any()  # nothing was written
        # All that is memory is written.
        shown, masked, zero = Shown(copies=False), np.ma.array(np.zeros(3)), np.zeros(())
        run.restore(1, {"x": shown, "s": zero})
        assert np.array_equal(shown.array, x) and zero == 3.5
        run.restore(1, {"x": masked, "0": np.zeros((2, 2))[1:, 1:].reshape(())})
        assert np.array_equal(masked, x)
        day = np.zeros((), "M8[D]")
        run.restore(1, {"t": day})
        assert day == given["t"]


class Counted:
    """A session that counts its calls."""

    def __init__(self, session: object) -> None:
        self._session = session
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> object:
        self.calls.append(name)
        return getattr(self._session, name)


@pytest.mark.parametrize("record", [None, "runs"])
def test_work_grows_with_the_number_of_fields_and_no_faster(record: str | None, tmp_path: Path) -> None:
    """As many questions to the core for many fields as for few; and so many fields that looking through all for each of them
    would not end."""
    calls = {}
    for n in (1, 20_000 if record is None else 5_000):
        given = {f"layer{i}.weight": np.full(3, float(i)) for i in range(n)}
        with twinrun.Run(tmp_path / f"run{n}", record=record) as run:
            run.capture(1, given)
            run._session = Counted(run._session)
            loaded = run.load(1)
            assert list(loaded) == list(given) and same(loaded, given)
            into = {name: np.zeros(3) for name in given}
            run.restore(1, into)
            assert same(into, given)
            calls[n] = run._session.calls
    few, many = calls.values()
    assert few == many and len(few) == 5  # each time: what is stored, and the bytes; and the end
    with twinrun.Run(tmp_path / "run1", existing="append", record=record) as run:
        with pytest.raises(twinrun.TwinrunError, match="no field of the name 'none'"):
            run.load(1, ["none"])


def test_restore_refuses_what_does_not_fit(tmp_path: Path) -> None:
    with twinrun.Run(tmp_path / "run") as run:
        run.capture(1, fields(1))
        read_only = np.empty(3000)
        read_only.flags.writeable = False
        for target, said in (
            (
                {"x": np.empty(2999)},
                "x: step 1: f64 of shape .3000. was captured, the array is f64 of shape .2999.",
            ),
            ({"x": np.empty(3000, "f4")}, "the array is f32"),
            ({"n": np.empty((30, 20), "i8")}, "shape"),
            ({"x": read_only}, "read-only"),
            ({"x": [0.0] * 3000}, "list is no array that can be written"),
            ({"y": np.empty(3)}, "no field of the name 'y'"),
        ):
            with pytest.raises(twinrun.TwinrunError, match=said):
                run.restore(1, target)
        with pytest.raises(twinrun.TwinrunError, match="step 2"):
            run.restore(2, {"x": np.empty(3000)})
        data = tmp_path / "run/step-0000000001/rank-00000.data"
        content = bytearray(data.read_bytes())
        content[5] ^= 1
        data.write_bytes(content)
        with pytest.raises(twinrun.DamagedFile, match="field 'x', items from 0 on"):
            run.load(1)
        with pytest.raises(twinrun.DamagedFile):
            run.restore(1, {"n": np.empty((20, 30), int), "x": np.empty(3000)})
        assert same(run.load(1, ["n"]), {"n": fields(1)["n"]})


def test_restart(tmp_path: Path) -> None:
    """A run that goes on from its newest step ends as the one that was never interrupted."""

    def advance(x: np.ndarray) -> None:
        x[...] = 3.9 * x * (1 - x)

    for name, stops in (("a", (6,)), ("b", (3, 6))):
        for stop in stops:
            x = np.linspace(0.1, 0.9, 1000)
            with twinrun.Run(tmp_path / name, atol=1e-9, existing="append", background=True) as run:
                last = run.latest()
                if last is not None:
                    run.restore(last, {"x": x})
                for step in range(0 if last is None else last + 1, stop):
                    advance(x)
                    run.capture(step, {"x": x})
    assert steps_of(tmp_path / "b") == list(range(6))
    assert twinrun.compare(
        tmp_path / "a", tmp_path / "b", options=twinrun.CompareOptions(method="direct"), atol=0.0
    ).same


# ---- IDs and places ----


def test_ids_make_the_order_in_memory_irrelevant(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    ids = rng.permutation(5000)[:1000].astype(np.int64)
    position = rng.normal(size=(1000, 3))
    mass = rng.normal(size=1000)
    by = {"position": "id", "mass": "id"}
    for name in ("a", "b", "c"):
        order = np.arange(1000) if name == "a" else rng.permutation(1000)
        as_given = np.asfortranarray if name == "c" else np.ascontiguousarray
        with twinrun.Run(tmp_path / name, atol=1e-6) as run:
            run.capture(
                1, {"position": as_given(position[order]), "id": ids[order], "mass": mass[order]}, ids=by
            )
            back = run.load(1)
            rising = np.argsort(ids)
            assert np.array_equal(back["id"], ids[rising])
            assert np.array_equal(back["position"], position[rising]) and np.array_equal(
                back["mass"], mass[rising]
            )
    for other in ("b", "c"):
        assert twinrun.compare(
            tmp_path / "a", tmp_path / other, options=twinrun.CompareOptions(method="direct"), atol=0.0
        ).same
    with twinrun.Run(tmp_path / "d") as run:
        for wrong in ({"position": "nobody"}, {"nobody": "id"}):
            with pytest.raises(twinrun.TwinrunError, match="ids names 'nobody'"):
                run.capture(1, {"position": position, "id": ids}, ids=wrong)
        with pytest.raises(twinrun.TwinrunError):
            run.capture(1, {"position": position, "id": ids[:-1]}, ids={"position": "id"})


def test_the_place_in_the_global_array_is_kept(tmp_path: Path) -> None:
    """By the specification's reader: slowest dimension first, as the shape."""
    x = np.arange(12.0).reshape(3, 4)
    with twinrun.Run(tmp_path / "run") as run:
        place = ((30, 4), (6, 0))
        run.capture(1, {"c": x, "f": np.asfortranarray(x), "none": x}, global_place={"c": place, "f": place})
        with pytest.raises(twinrun.TwinrunError):
            run.capture(2, {"c": x}, global_place={"c": ((30, 4), (28, 0))})
        with pytest.raises(twinrun.TwinrunError, match="global_place names 'd'"):
            run.capture(2, {"c": x}, global_place={"d": place})
    from twinrun_spec.metadata import parse_file

    found = {f.name: f for f in parse_file(tmp_path / "run/step-0000000001/rank-00000.twm").fields}
    assert (
        found["c"].shape == (3, 4)
        and found["c"].global_shape == (30, 4)
        and found["c"].global_offset == (6, 0)
    )
    assert (
        found["f"].shape == (4, 3)
        and found["f"].global_shape == (4, 30)
        and found["f"].global_offset == (0, 6)
    )
    assert found["none"].global_shape is None


def test_byte_swapped_arrays_keep_shape_and_order(tmp_path: Path) -> None:
    x = np.arange(12.0).reshape(3, 4)
    swapped = x.dtype.newbyteorder("S")
    with twinrun.Run(tmp_path / "run") as run:
        run.capture(
            1,
            {"c": x.astype(swapped), "f": np.asfortranarray(x.astype(swapped)), "s": x.astype(swapped)[:, 1]},
        )
        back = run.load(1)
    assert (
        np.array_equal(back["c"], x) and np.array_equal(back["f"], x) and np.array_equal(back["s"], x[:, 1])
    )


@pytest.mark.parametrize("keep_data", [True, False])
def test_units_of_time_are_kept(tmp_path: Path, keep_data: bool) -> None:
    kinds = ("M8[s]", "M8[ms]", "m8[s]", "i8")
    values = [np.array([1, -(1 << 63)]).astype(kind) for kind in kinds]
    names = [tmp_path / str(n) for n in range(len(kinds))]
    for name, array in zip(names, values, strict=True):
        with twinrun.Run(name, keep_data=keep_data) as run:
            run.capture(1, {"t": array, "parts": array.view([("begin", array.dtype)]), "x": np.zeros(2)})
    for n, a in enumerate(names):
        for m, b in enumerate(names):
            if n == m:
                assert twinrun.compare(a, b).same
                assert {f.field for f in twinrun.compare(a, b).fields} == {"t", "parts.begin", "x"}
            else:
                with pytest.raises(twinrun.TwinrunError, match="units of time must agree"):
                    twinrun.compare(a, b)
    for m, array in enumerate(values):
        there = twinrun.sketch({"t": array})
        here = twinrun.sketch_of(names[0], 1, fields=["t"])
        assert here.names == there.names == ["t"]
        if m:
            with pytest.raises(twinrun.TwinrunError, match="units of time must agree"):
                here.to("cpu").compare(there, fields="t")
        else:
            assert here.compare(there)


def test_a_history_of_times_and_arrays_of_them(tmp_path: Path) -> None:
    seconds = np.array([1, 2], "M8[s]")
    with twinrun.Run(tmp_path / "h") as run:
        run.capture(1, {"t": seconds})
        assert list(run.load(1)) == ["t"]
        with pytest.raises(twinrun.TwinrunError, match=r"M8\[s\] was captured"):
            run.restore(1, {"t": np.zeros(2, "M8[ms]")})
        back = np.zeros(2, "M8[s]")
        run.restore(1, {"t": back})
        assert (back == seconds).all()
        numbers = np.zeros(2, "i8")
        run.restore(1, {"t": numbers})
        assert numbers.tolist() == [1, 2]
    assert list(twinrun.Run(tmp_path / "h", existing="append").load(1, ["t"])) == ["t"]


@pytest.mark.parametrize("keep_data", [True, False])
def test_masks_are_stored_by_id_with_their_fields(tmp_path, keep_data: bool) -> None:
    def captured(name: str, x: np.ma.MaskedArray, ids: list[int]) -> str:
        with twinrun.Run(tmp_path / name, keep_data=keep_data) as run:
            run.capture(0, {"x": x, "id": np.array(ids)}, ids={"x": "id"})
        return str(tmp_path / name)

    masked = np.ma.masked_array
    a = captured("a", masked([30.0, 10, 20, 0], [True, False, False, False]), [3, 1, 2, 0])
    b = captured("b", masked([0.0, 10, 20, 99], [False, False, False, True]), [0, 1, 2, 3])
    other = captured("other", masked([99.0, 10, 20, 0], [True, False, False, False]), [0, 1, 2, 3])
    assert twinrun.compare(a, b).same
    assert twinrun.compare(a, other).verdict == "different"
    if keep_data:
        assert twinrun.compare(a, b, key="id").same
        assert twinrun.compare(a, other, key="id").verdict == "different"
        with twinrun.Run(a, existing="append") as run:
            x, ids = np.ma.zeros(4), np.zeros(4, int)
            run.restore(0, {"x": x, "id": ids})
        assert ids.tolist() == [0, 1, 2, 3] and x.tolist() == [0.0, 10.0, 20.0, None]


def test_labels_of_rows_do_not_stay_in_another_order(tmp_path) -> None:
    pandas = pytest.importorskip("pandas")
    rows, ids = pandas.Series([5.0, 6, 7], index=[9, 8, 7]), np.array([2, 1, 0])
    with twinrun.Run(tmp_path / "a") as run:
        with pytest.raises(
            twinrun.TwinrunError, match=r"the label 'x@index' is not; capture the values alone"
        ):
            run.capture(0, {"x": rows, "id": ids}, ids={"x": "id"})
        run.capture(0, {"x": rows, "id": ids}, ids={"x": "id", "x@index": "id"})
        assert run.load(0)["x@index"].tolist() == [7, 8, 9] and run.load(0)["x"].tolist() == [7.0, 6.0, 5.0]
        run.capture(1, {"x": rows.to_numpy(), "id": ids}, ids={"x": "id"})
