"""Parts of arrays that ranks of two runs hold otherwise: nothing of them is passed over."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from support import in_options, run_of_ranks

import twinrun
from twinrun.comparison.field import FieldGroup
from twinrun.comparison.overview import of_fields


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


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("fields", [1, 40])  # alone, and in a list of the core
@pytest.mark.parametrize("how", [{}, {"method": "direct"}, {"use_metadata": False}])
def test_places_are_those_of_the_global_array(tmp_path: Path, order: str, fields: int, how: dict) -> None:
    """Whether both runs cut it alike or differently, the report names the same element, and the ranks that hold it."""
    x = np.arange(9 * 8 * 2.0).reshape(9, 8, 2) + 1
    y = x.copy()
    y[5, 6, 1] += 1
    y[7, 3, 0] += 3
    boxes = {
        "rows": [(slice(0, 4), slice(0, 8)), (slice(4, 9), slice(0, 8))],
        "columns": [(slice(0, 9), slice(0, 3)), (slice(0, 9), slice(3, 5)), (slice(0, 9), slice(5, 8))],
    }

    def written(name: str, values: np.ndarray, cuts: str) -> Path:
        data = [
            {
                1: {
                    f"x{n}": np.array(values[box] if n == fields - 1 else x[box], order=order)
                    for n in range(fields)
                }
            }
            for box in boxes[cuts]
        ]
        places = [
            {f"x{n}": (x.shape, (box[0].start, box[1].start, 0)) for n in range(fields)}
            for box in boxes[cuts]
        ]
        return run_of_ranks(tmp_path / name, data, places=places)

    a, alike, other = written("a", x, "rows"), written("b", y, "rows"), written("c", y, "columns")
    found = twinrun.compare(a, alike, **in_options(how))
    first = found.first
    assert first is not None and first.rank == 1 and first.first_index == (1, 6, 1)
    assert (first.global_shape, first.global_offset) == (x.shape, (4, 0, 0))
    assert first.global_index(first.first_index) == (5, 6, 1)
    assert first.global_index(first.max_abs_index) == (7, 3, 0)
    divergence = found.first_divergence
    assert divergence["index"] == [1, 6, 1] and divergence["global_index"] == [5, 6, 1]
    assert f"rank 1, x{fields - 1}[5, 6, 1]: " in str(found)
    assert of_fields(found)[0].place(True) == "rank 1 [7, 3, 0]"
    for field in found.fields:  # the others say where they are, too
        assert field.global_offset == ((0, 0, 0) if field.rank == 0 else (4, 0, 0))
    for group in pickle.loads(pickle.dumps(list(found._found))):
        if isinstance(group, FieldGroup):  # as it comes back from a worker
            assert {f.global_offset for f in group.all()} <= {(0, 0, 0), (4, 0, 0)}
    listed = np.concatenate([part.global_index for part in found.differences()])
    assert listed.tolist() == np.argwhere(x != y).tolist()
    found = twinrun.compare(a, other, **in_options(how))
    assert found.first is not None and found.first.first_index == (5, 6, 1)
    assert found.first.first_ranks == (1, 2) and found.first_divergence["ranks"] == [1, 2]
    assert f"x{fields - 1}[5, 6, 1] (rank 1 of the first run, 2 of the second)" in str(found)


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
