"""Parts of arrays that ranks of two runs hold otherwise: nothing of them is passed over."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support import run_of_ranks

import twinrun


def test_parts_of_global_arrays_of_other_shapes_are_incomparable(tmp_path: Path) -> None:
    x = [np.arange(12.0).reshape(3, 4), np.arange(12.0).reshape(3, 4) + 100]
    run_of_ranks(
        tmp_path / "a",
        [{1: {"x": x[0]}}, {1: {"x": x[1]}}],
        places=[{"x": ((6, 4), (0, 0))}, {"x": ((6, 4), (3, 0))}],
    )
    run_of_ranks(
        tmp_path / "b",
        [{1: {"x": x[0]}}, {1: {"x": x[1]}}],
        places=[{"x": ((3, 8), (0, 0))}, {"x": ((3, 8), (0, 4))}],
    )
    with pytest.raises(twinrun.TwinrunError, match=r"\[6, 4\].*\[3, 8\]"):
        twinrun.compare(tmp_path / "a", tmp_path / "b")


def parts(x: np.ndarray, cuts: list) -> tuple:
    return [{1: {"x": np.asfortranarray(x[a:b])}} for a, b in cuts], [
        {"x": (x.shape, (a, 0))} for a, _ in cuts
    ]


def test_a_part_of_one_row_beside_column_major_ones(tmp_path: Path) -> None:
    x = np.arange(28.0).reshape(7, 4)
    for name, cuts in (("a", [(0, 3), (3, 7)]), ("b", [(0, 3), (3, 4), (4, 7)]), ("c", [(0, 1), (1, 7)])):
        data, places = parts(x, cuts)
        run_of_ranks(tmp_path / name, data, places=places)
    assert twinrun.compare(tmp_path / "a", tmp_path / "b").same
    assert twinrun.compare(tmp_path / "a", tmp_path / "c").same


def run(path: Path, parts: list, mass: float) -> None:
    """Particles by ID on any number of ranks; a table of masses that the first of them tells."""
    data = [
        {1: {"id": ids, "x": ids * 0.5} | ({"masses": np.array([mass])} if rank == 0 else {})}
        for rank, ids in enumerate(parts)
    ]
    run_of_ranks(path, data)


@pytest.mark.parametrize("common", [False, True])
def test_what_one_rank_tells_is_compared_whatever_the_number_of_ranks(tmp_path: Path, common: bool) -> None:
    ids = np.arange(30)
    run(tmp_path / "a", np.split(ids, [15]), 2.0)
    run(tmp_path / "b", np.split(ids[::-1].copy(), [10, 20]), 2.0)
    run(tmp_path / "c", np.split(ids[::-1].copy(), [10, 20]), 2.5)
    assert twinrun.compare(tmp_path / "a", tmp_path / "b", key="id", common=common).same
    result = twinrun.compare(tmp_path / "a", tmp_path / "c", key="id", common=common, partial=True)
    assert result.verdict == "different" and result.first.field == "masses"


def test_fields_on_other_ranks_stay_a_problem(tmp_path: Path) -> None:
    ids = np.arange(30)
    for name, cuts in (("a", [15]), ("b", [10, 20])):
        run_of_ranks(
            tmp_path / name,
            [{1: {"id": part, "local": np.ones(3 if name == "a" else 2)}} for part in np.split(ids, cuts)],
        )
    with pytest.raises(twinrun.TwinrunError, match="local"):
        twinrun.compare(tmp_path / "a", tmp_path / "b", key="id", common=True)
