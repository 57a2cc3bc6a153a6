"""Arrays that the core takes as one list are captured and sketched as those that are taken one by one."""

from __future__ import annotations

import tempfile
from types import MappingProxyType
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_containers import odd_value, random_pair

import twinrun
from twinrun.runs import entries


def one_by_one():
    """Within it, every array is taken by Python."""
    return mock.patch.object(entries, "state_of", MappingProxyType)


def described(sketch: twinrun.Sketch) -> list[tuple]:
    return [(name, sketch._facts(name)) for name in sketch.names]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32), count=st.integers(1, 12))
def test_lists_are_sketched_and_captured_as_one_by_one(seed: int, count: int) -> None:
    random = np.random.default_rng(seed)
    a, _ = random_pair(random, count, True, 0.0)
    for at in range(3):
        a[f"date{at}"] = np.arange(4).astype(f"M8[{random.choice(['s', 'ms'])}]")
        a[f"last{at}"] = odd_value(random)
    own = {str(name): 0.5 for name in a if random.random() < 0.3}
    listed = twinrun.sketch(a, atol=1e-3, tolerances=own)
    with one_by_one():
        single = twinrun.sketch(a, atol=1e-3, tolerances=own)
    assert described(listed) == described(single) and listed.compare(single).same
    with tempfile.TemporaryDirectory() as folder:
        with twinrun.Run(f"{folder}/listed", atol=1e-3, tolerances=own) as run:
            run.capture(1, a)
        with one_by_one(), twinrun.Run(f"{folder}/single", atol=1e-3, tolerances=own) as run:
            run.capture(1, a)
        for how in ({"atol": 0}, {}):
            result = twinrun.compare(f"{folder}/listed", f"{folder}/single", **how)
            assert result.same, result.first


def test_the_arrays_of_a_list_live_until_they_are_read() -> None:
    made = twinrun.sketch({"x": np.arange(1e5), "y": {"z": 3, "w": (1.0, 2.0)}})
    assert made.names == ["x", "y.z", "y.w"]
    assert made.compare(twinrun.sketch({"x": np.arange(1e5), "y": {"z": 3, "w": (1.0, 2.0)}})).same
    assert not made.compare(twinrun.sketch({"x": np.arange(1e5), "y": {"z": 4, "w": (1.0, 2.0)}}))["y.z"].same


def test_two_names_for_one_field_are_refused() -> None:
    with pytest.raises(twinrun.TwinrunError, match="two fields of the name"):
        twinrun.sketch({"a": {"b": np.ones(2)}, "a.b": np.ones(2)})
