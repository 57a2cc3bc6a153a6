"""Times in whole seconds: groups whose tasks all took equal times have no variance inside."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinrun.ensemble import Options
from twinrun.ensemble.analysis.blocks import blocks
from twinrun.ensemble.analysis.findings import ANALYSES, analyse_frame
from twinrun.ensemble.analysis.hypotheses import hypotheses
from twinrun.ensemble.analysis.nodes import nodes
from twinrun.ensemble.analysis.spread import spread
from twinrun.ensemble.study.document import Hypothesis
from twinrun.ensemble.study.tasks import frame_of
from twinrun.words import estimate

_QUICK = Options(permutations=199, resamples=99)
_ABSURD = re.compile(r"\d{8,}|\de[+-]?\d\d|nan|inf(?!o)|\[\?")


def study(times: list[float], *, levels: int = 1, block: int = 0, places: int = 1) -> pd.DataFrame:
    """Tasks with these times, one after another; `levels` conditions in turn, `block` tasks a block (0: all)."""
    lines: list[dict[str, Any]] = []
    start = 1.7e9
    for k, wall in enumerate(times):
        lines.append({
            "task": k, "attempt": 1, "block": k // block if block else 0, "order": k, "status": "ok", "node": f"n{k % places}",
            "start": start, "end": start + wall, "wall": wall, "factors": {"cond": "ABCD"[k % levels]} if levels > 1 else {},
        })  # fmt: skip
        start += wall + 1
    return frame_of(lines)


_BLOCKS = [
    ([1.0, 1, 2, 2, 3, 3], 2),
    ([float(t) for t in (10, 11, 12, 10) * 3 for _ in "AB"], 2),
    ([float(t) for t in (60, 67, 74, 81, 60, 67, 74, 81, 60, 67) for _ in "ABC"], 3),
    ([float(t) for t in (10, 11, 12, 10, 13, 11, 12, 14, 10, 12, 11, 13) for _ in "AB"], 2),
]  # fmt: skip


@pytest.mark.parametrize(("times", "size"), _BLOCKS)
def test_blocks_of_equal_times_are_said_to_differ_or_not_to_be_known(times: list[float], size: int) -> None:
    analysis = blocks(study(times, levels=size, block=size), Options())
    means = np.log(np.array(times)[::size])
    apart = float(means.std(ddof=1))
    assert analysis.state == ("found" if len(means) >= 10 else "open"), analysis.sentence
    assert analysis.facts["between"] == pytest.approx(apart, rel=1e-6)
    # Three blocks bound a deviation by little.
    assert (
        apart / 8
        < analysis.facts["low"]
        < apart
        < analysis.facts["high"]
        < (3 if len(means) > 3 else 30) * apart
    )
    assert not _ABSURD.search(analysis.sentence), analysis.sentence
    if analysis.state == "found":
        assert "none within: tasks of a block took equal times" in analysis.sentence


def test_blocks_of_times_that_vary_little_are_as_those_of_times_that_vary_not() -> None:
    times = np.array([float(t) for t in (10, 11, 12, 10, 13, 11, 12, 14, 10, 12, 11, 13) for _ in "AB"])
    noisy = times * np.exp(1e-6 * np.random.default_rng(1).standard_normal(len(times)))
    flat, little = (blocks(study(list(t), levels=2, block=2), Options()) for t in (times, noisy))
    for end in ("between", "low", "high"):
        assert flat.facts[end] == pytest.approx(little.facts[end], rel=1e-4)


def test_nodes_of_equal_times_have_no_interval() -> None:
    analysis = nodes(study([10.0, 11.0] * 12, places=2), Options())
    assert analysis.state == "found"
    assert "n1 is 10% slower than the rest (no interval: beside it all times are equal)" in analysis.sentence


def test_a_hypothesis_on_equal_times_is_undecided() -> None:
    named = Hypothesis(factor="cond", level="B", base="A", expect="slower")
    analysis = hypotheses(study([10.0, 11.0] * 8, levels=2, block=2), [named], Options())
    assert "undecided" in analysis.sentence
    assert not _ABSURD.search(analysis.sentence), analysis.sentence


def test_conditions_of_equal_times_are_not_said_to_be_equal_to_a_billionth() -> None:
    found = analyse_frame(study(_BLOCKS[1][0], levels=2, block=2), _QUICK, only=["factors", "planning"])
    assert found["factors"].state == "open"
    assert "beside it" not in found["planning"].sentence
    assert "equal" in found["planning"].sentence
    assert found["factors"].sentence.startswith("Whether a condition changes the time cannot be decided")


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    steps=st.sampled_from([1, 2, 4]),
    tasks=st.sampled_from([8, 24, 48]),
    levels=st.sampled_from([1, 2, 3]),
    block=st.sampled_from([0, 2, 6]),
    places=st.sampled_from([1, 2, 4]),
    by=st.sampled_from(["task", "block", "node", "condition", "half", "all"]),
)
def test_no_analysis_of_rounded_times_says_what_is_absurd(
    seed: int, steps: int, tasks: int, levels: int, block: int, places: int, by: str
) -> None:
    """by: the groups whose tasks all take equal times."""
    rng = np.random.default_rng(seed)
    k = np.arange(tasks)
    group = {"task": k, "block": k // (block or 4), "node": k % places, "condition": k % levels, "half": k * 2 // tasks, "all": 0 * k}[by]  # fmt: skip
    times = 10.0 + rng.integers(0, steps, tasks)[group]
    frame = study(list(times), levels=levels, block=block, places=places)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for name, analysis in ANALYSES.items():
            said = analysis(frame, _QUICK).sentence
            assert not _ABSURD.search(said), f"{name}: {said}"


def test_blocks_of_the_same_rounded_times_have_a_p_that_can_be_read() -> None:
    said = blocks(study([10.0, 12.0, 10.0, 12.0] * 10, block=4), _QUICK).sentence
    assert "by less than independent tasks would (p < 0.0001)" in said and not _ABSURD.search(said)


def test_an_interval_of_rounding_has_no_digits_of_its_own() -> None:
    assert estimate(2.0, 2.0 - 4e-16, 2.0 + 4e-16, least=3) == ("2.000", "2.000", "2.000")


def test_the_fastest_is_told_as_it_was_measured_too() -> None:
    times = [10.0, 12, 11, 14, 13, 15, 10.5, 11, 14, 18, 12, 13]
    analysis = spread(study(times, levels=2, block=2), _QUICK)
    assert " s, 10 s as measured)" in analysis.sentence
    assert "as measured" not in spread(study(times), _QUICK).sentence
