"""What has no number to compare is said, or refused: it never passes silently."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import twinrun
from twinrun.report import document, verdict_line


def test_text_that_is_left_out_is_in_the_verdict(tmp_path: Path) -> None:
    for name in ("a", "b"):
        np.savez(tmp_path / f"{name}.npz", x=np.arange(5.0), label=np.array(["text", name]))
    result = twinrun.compare(tmp_path / "a.npz", tmp_path / "b.npz")
    assert result.same and result.not_compared == 2
    assert "not compared: 2 datasets" in verdict_line(result)
    assert document(result)["not_compared"] == 2
    assert any("label" in note for note in result.notes)
    np.savez(tmp_path / "c.npz", x=np.arange(5.0))
    plain = twinrun.compare(tmp_path / "c.npz", tmp_path / "c.npz")
    assert plain.not_compared == 0 and "not compared" not in verdict_line(plain)


def test_masked_elements_are_not_those_of_a_plain_array() -> None:
    masked = np.ma.masked_array([1.0, 2.0], mask=[False, True])
    with pytest.raises(twinrun.Incomparable, match="mask"):
        twinrun.compare(masked, np.array([1.0, 2.0]))
    unmasked = np.ma.masked_array([1.0, 2.0], mask=False)
    assert twinrun.compare(unmasked, np.array([1.0, 2.0])).same


def test_appending_with_another_keep_data_is_refused(tmp_path: Path) -> None:
    with twinrun.Run(tmp_path / "run", atol=1e-3) as run:
        run.capture(1, {"x": np.arange(5.0)})
    with pytest.raises(twinrun.TwinrunError, match="other settings"):
        twinrun.Run(tmp_path / "run", atol=1e-3, keep_data=False, existing="append")
