"""All fields of a place are compared by one call of the core: what is found is what comparing them one by one finds."""

from __future__ import annotations

import copy
import dataclasses
import gc
import pickle
import tempfile
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_containers import changed, random_pair

import twinrun
from twinrun import _core
from twinrun.comparison import place
from twinrun.errors import Incomparable, TwinrunError
from twinrun.runs.containers import flattened


def listed(container: object) -> _core.FieldList | None:
    """What the core takes of a container."""
    return _core.FieldList.of_arrays(container, flattened, True)


def facts(result: twinrun.Comparison) -> dict:
    """All that a comparison says but its times."""
    said = {
        part.name: getattr(result, part.name)
        for part in dataclasses.fields(result)
        if part.name not in ("seconds", "fields", "_again", "_found")
    }
    said["fields"] = []
    for field in result.fields:
        own = dataclasses.asdict(field)
        for stage in own["stages"].values():
            stage.pop("seconds")
        for time in ("seconds", "device_seconds"):
            own.pop(time)
        if own["device"] != "cpu":  # sums depend on how the work is divided there
            own |= {name: f"{own[name]:.10g}" for name in ("rms_diff", "rms_diff_all")}
        said["fields"].append(own)
    said |= {name: getattr(result, name) for name in ("device", "different", "same", "first_divergence")}
    return said


def one_by_one(a: object, b: object, **how: object) -> twinrun.Comparison:
    """The same comparison, field after field."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, "compare_lists", lambda *_: None)
        return twinrun.compare(a, b, **how)


def outcome(compare: Callable, a: object, b: object, **how: object) -> str:
    """What it finds, as text: a NaN equals itself there."""
    try:
        return "\n".join(f"{name}: {value!r}" for name, value in facts(compare(a, b, **how)).items())
    except TwinrunError as e:
        return f"{type(e)} {e}"


HOW = {
    "atol": st.sampled_from([0.0, 1e-3, 2.0]),
    "rtol": st.sampled_from([0.0, 1e-5]),
    "ulp": st.sampled_from([0, 4]),
    "equal_nan": st.booleans(),
    "tolerate_integers": st.booleans(),
    "method": st.sampled_from(["auto", "direct", "staged"]),
    "threads": st.sampled_from([0, 1, 3]),
    "partial": st.booleans(),
    "common": st.booleans(),
    "device": st.sampled_from(["auto", "cpu"]),
}


@settings(max_examples=250, deadline=None)
@given(seed=st.integers(0, 1 << 32), count=st.integers(1, 12), how=st.fixed_dictionaries({}, optional=HOW))
def test_arrays_are_compared_as_one_by_one(seed, count, how):
    a, b = random_pair(np.random.default_rng(seed), count, True, 0.03)
    assert outcome(twinrun.compare, a, b, **how) == outcome(one_by_one, a, b, **how)
    assert listed(a) is not None


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    count=st.integers(1, 8),
    steps=st.integers(1, 3),
    kept=st.sampled_from([{}, {}, {"keep_data": False}, {"keep_data_steps": 1}, {"record": "runs"}]),
    made=st.sampled_from(
        [{}, {"atol": 1e-3}, {"atol": 1e-3, "rtol": 1e-5}, {"digest": "published", "atol": 1e-3}]
    ),
    other=st.sampled_from([{}, {}, {}, {"atol": 1.0}, {"residue_bits": 0}, {"chunk_bytes": 8192}]),
    how=st.fixed_dictionaries({}, optional=HOW),
)
def test_histories_are_compared_as_one_by_one(seed, count, steps, kept, made, other, how):
    random = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        with (
            twinrun.Run(f"{folder}/a", **kept, **made) as first,
            twinrun.Run(f"{folder}/b", **kept, **{**made, **other}) as second,
        ):
            shapes = random_pair(random, count, False, 0.02)
            for step in range(steps):
                for run, fields in zip((first, second), shapes, strict=True):
                    run.capture(step, {str(name): changed(random, x) for name, x in fields.items()})
        assert outcome(twinrun.compare, f"{folder}/a", f"{folder}/b", **how) == outcome(
            one_by_one, f"{folder}/a", f"{folder}/b", **how
        )
        assert outcome(twinrun.compare, f"{folder}/a", f"{folder}/a", **how) == outcome(
            one_by_one, f"{folder}/a", f"{folder}/a", **how
        )


def test_plain_arrays_are_taken_at_once() -> None:
    x = np.arange(6.0)
    taken = listed({"a": x, "b": {"c": x.reshape(2, 3).T, 1: np.int8(x)}})
    assert taken is not None and list(taken.arrays()) == ["a", "b.c", "b.1"] and not taken.rest
    assert all(v is w for v, w in zip(taken.arrays().values(), [x], strict=False))


def test_what_the_core_cannot_take_is_beside_the_list() -> None:
    x = np.arange(6.0)
    taken = listed(
        OrderedDict(n=None, x=x, b=(0.9, 0.999), lr=0.5, s=x[::2], i=3, m=np.ma.masked_equal([1, 2], 2), y=x)
    )
    assert taken is not None
    every = list(taken.arrays())
    assert every == ["n@text", "x", "b", "lr", "s", "i", "m@fill", "m", "m@mask", "y"]
    assert list(taken.rest) == ["n@text", "s", "m@fill", "m", "m@mask"]  # an array stays beside its labels
    assert [every[at] for at in taken.rest_places] == list(taken.rest)


def test_ordered_dictionaries_keep_their_order() -> None:
    a = OrderedDict((name, np.ones(2)) for name in "abc")
    a.move_to_end("a")
    assert [f.field for f in twinrun.compare(a, a).fields] == ["b", "c", "a"]


@pytest.mark.parametrize(
    "container",
    [
        {},
        [np.ones(3)],
        {"x": None},
        {"x": np.float64(1)},
        {"x": np.ones(4)[::2]},
        {"x": np.ones((4, 4))[:, 1:]},
        {"x": np.ones(3, ">f8")},
        {"x": np.ones(3, "M8[s]")},
        {"x": np.array(["a"])},
        {"x": np.array([None])},
        {"x": np.ones(3, np.longdouble)},
        {"x": np.ones(3), "y": np.ones(3, np.longdouble)},
        {"x": np.ones(3), "y": object()},
        {"x": np.ones(3), "y": lambda: None},
        {"x": np.matrix([1.0])},
        {"x@mask": np.ones(3)},
        {"": np.ones(3)},
        {"\udc80": np.ones(3)},
        {"a.b": np.ones(3), "a": {"b": np.ones(3)}},
        {1: np.ones(3), "1": np.ones(3)},
        {True: np.ones(3)},
        {("x",): np.ones(3)},
    ],
)
def test_everything_else_is_left_to_python(container: object) -> None:
    assert outcome(twinrun.compare, container, container) == outcome(one_by_one, container, container)


def test_a_container_that_holds_itself_is_left_to_python() -> None:
    own: dict = {"x": np.ones(2)}
    own["own"] = own
    assert listed(own) is None
    with pytest.raises(TwinrunError, match="contains itself"):
        twinrun.compare(own, own)


def test_fields_are_made_when_they_are_asked_for() -> None:
    a = {str(at): np.full(3, at) for at in range(50)}
    b = {name: x + (name in ("7", "20")) for name, x in a.items()}
    result = twinrun.compare(a, b)
    assert not result and "fields" not in vars(result)
    assert result.different == 6
    first = result.first
    assert first is not None and first.field == "7" and "fields" not in vars(result)
    assert len(result.fields) == 50 and result.fields is result.fields and result.fields[7] is first
    with pytest.raises(AttributeError):
        result.field  # noqa: B018


def test_threads_that_ask_at_once_get_one_list() -> None:
    a = {str(at): np.zeros(3) for at in range(100)}
    for _ in range(20):
        result = twinrun.compare(a, a)
        start = threading.Barrier(4)

        def fields(result: twinrun.Comparison = result, start: threading.Barrier = start) -> list:
            start.wait()
            return result.fields

        with ThreadPoolExecutor(4) as pool:
            lists = [made.result() for made in [pool.submit(fields) for _ in range(4)]]
        assert all(one is lists[0] for one in lists) and len(lists[0]) == 100


def test_a_result_is_copied_and_pickled_whole() -> None:
    a = {"x": np.arange(4.0), "y": np.arange(3)}
    result = twinrun.compare(a, {"x": np.arange(4.0) + 1, "y": np.arange(3)})
    for other in (pickle.loads(pickle.dumps(result)), copy.copy(result), copy.deepcopy(result)):
        assert facts(other) == facts(result)
    assert "Comparison(" in repr(result)
    assert [f["field"] for f in dataclasses.asdict(result)["fields"]] == ["x", "y"]
    fewer = dataclasses.replace(result, fields=result.fields[1:])
    assert fewer.different == 0 and fewer.first is None


def test_arrays_are_not_kept_alive() -> None:
    a = {"x": np.arange(4.0), "y": {"z": np.zeros(5)}}
    b = {"x": np.arange(4.0) + 1, "y": {"z": np.zeros(5)}}
    references = [weakref.ref(x) for x in (a["x"], a["y"]["z"], b["x"])]
    result = twinrun.compare(a, b)
    assert [part.index.ravel().tolist() for part in result.differences()] == [[0, 1, 2, 3]]
    del a, b
    gc.collect()
    assert [reference() for reference in references] == [None] * 3
    with pytest.raises(TwinrunError, match="gone"):
        list(result.differences())
    assert len(result.fields) == 2


def test_names_that_only_one_side_has_are_errors() -> None:
    a, b = {"x": np.ones(2), "y": np.ones(2)}, {"x": np.ones(2), "z": np.ones(2)}
    with pytest.raises(Incomparable, match="'y'"):
        twinrun.compare(a, b)
    assert twinrun.compare(a, b, common=True).verdict == "same"


def test_a_field_beside_the_list_that_cannot_be_compared_is_reported() -> None:
    a = {"x": np.ones(2), "t": ["a", "b"], "y": np.ones(3)}
    b = {"x": np.ones(2), "t": ["a"], "y": np.zeros(3)}
    result = twinrun.compare(a, b, partial=True)
    assert [f.field for f in result.fields] == ["x", "y"] and len(result.problems) == 1
    assert result.verdict == one_by_one(a, b, partial=True).verdict


@pytest.mark.parametrize("lost", ["o0", "o1", "o2"])
def test_fields_keep_their_order_where_one_beside_the_list_has_no_result(lost: str) -> None:
    a = {"o0": ["a"], "x0": np.ones(2), "o1": ["b"], "x1": np.zeros(3), "o2": ["c"]}
    b = {**a, "x1": np.ones(3), lost: ["a", "b"]}
    result = twinrun.compare(a, b, partial=True)
    assert [f.field.removesuffix("@text") for f in result.fields] == [name for name in a if name != lost]
    assert len(result.problems) == 1 and result.first is not None and result.first.field == "x1"
    assert outcome(twinrun.compare, a, b, partial=True) == outcome(one_by_one, a, b, partial=True)


def test_an_interrupt_while_a_container_is_taken_is_one() -> None:
    class Value:
        def __array__(self, *_: object, **__: object) -> np.ndarray:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        twinrun.compare({"x": np.ones(2), "y": Value()}, {"x": np.ones(2), "y": Value()})


def test_arrays_in_a_container_that_was_made_are_opened_again() -> None:
    a = {"x": np.ones(3), "p": {"lr": 0.1, "betas": (0.9, 0.99)}}
    b = {"x": np.ones(3), "p": {"lr": 0.2, "betas": (0.9, 0.98)}}
    result = twinrun.compare(a, b)
    found = [(part.field.field, part.a.tolist()) for part in result.differences()]
    assert found == [("p.lr", [0.1]), ("p.betas", [0.99])]
