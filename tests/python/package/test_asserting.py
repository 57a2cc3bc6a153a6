"""Results are true only where all is the same, and `assert_same` raises with the report."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import twinrun
from twinrun import golden

ZEROS, ONES = np.zeros(5), np.ones(5)


def test_a_comparison_is_true_only_if_all_is_the_same(tmp_path: Path) -> None:
    assert twinrun.compare(ZEROS, ZEROS)
    assert not twinrun.compare(ZEROS, ONES)
    assert twinrun.compare(ZEROS, ZEROS).fields[0] and not twinrun.compare(ZEROS, ONES).fields[0]
    left = twinrun.compare({"x": ZEROS, "y": ONES}, {"x": ZEROS, "y": ONES[:3]}, partial=True)
    assert left.verdict == "incomparable" and not left
    assert not any(f.different for f in left.fields)


def test_other_results_too(tmp_path: Path) -> None:
    a, b, c = (twinrun.sketch({"x": x}) for x in (ZEROS, ZEROS, ONES))
    assert a.compare(b) and a.compare(b)["x"]
    assert not a.compare(c) and not a.compare(c)["x"]
    golden.save({"x": ZEROS}, tmp_path / "golden")
    assert golden.check(tmp_path / "golden", {"x": ZEROS})
    assert not golden.check(tmp_path / "golden", {"x": ONES})
    assert golden.check(tmp_path / "golden", {"x": ZEROS}).fields[0]
    assert not golden.check(tmp_path / "golden", {"x": ONES}).fields[0]
    assert not golden.check(tmp_path / "golden", {"y": ZEROS})
    with twinrun.Run(tmp_path / "run") as run:
        run.capture(1, {"x": ZEROS})
    assert twinrun.verify(tmp_path / "run")
    problems, files = twinrun.verify(tmp_path / "run")
    assert problems == [] and files > 0
    (data,) = (tmp_path / "run").rglob("*.data")
    content = bytearray(data.read_bytes())
    content[5] ^= 1
    data.write_bytes(content)
    assert not twinrun.verify(tmp_path / "run")


def test_assert_same_gives_the_comparison() -> None:
    assert twinrun.assert_same(ZEROS, ZEROS + 1e-12, atol=1e-9).verdict == "same"


def test_assert_same_says_what_differs() -> None:
    with pytest.raises(AssertionError) as caught:
        twinrun.assert_same({"v": ZEROS, "w": ONES}, {"v": ONES, "w": ONES}, atol=1e-9)
    assert isinstance(caught.value, twinrun.NotSame) and caught.value.comparison.different == 5
    last = str(caught.value).splitlines()[-1]
    assert last == "different: first at v[0]: 0 against 1, |a-b| = 1 > 1e-09"


def test_assert_same_says_what_could_not_be_compared(tmp_path: Path) -> None:
    with pytest.raises(twinrun.NotSame, match=r"incomparable: .*shape \[5\]") as caught:
        twinrun.assert_same(ZEROS, np.zeros(4))
    assert caught.value.comparison is None
    with pytest.raises(twinrun.NotSame, match=r"incomparable: .*'y'") as caught:
        twinrun.assert_same({"x": ZEROS, "y": ZEROS}, {"x": ZEROS})
    assert caught.value.comparison.verdict == "incomparable"
    with pytest.raises(twinrun.MissingFile):
        twinrun.assert_same(tmp_path / "gone.npy", ZEROS)
