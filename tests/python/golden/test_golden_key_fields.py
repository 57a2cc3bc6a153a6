"""Chosen fields of particles: what `save` leaves out, `check` leaves out too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from commands import command

from twinrun import golden


def parquet(path: Path, x: np.ndarray, ids: str = "int64") -> None:
    arrow = pytest.importorskip("pyarrow")
    table = {"id": np.arange(5, dtype=ids)[::-1].copy(), "x": x, "w": np.arange(5.0)}
    pytest.importorskip("pyarrow.parquet").write_table(arrow.table(table), path)


def csv(path: Path, x: np.ndarray) -> None:
    rows = [f"{4 - n},{value},{n / 2}" for n, value in enumerate(x)]
    path.write_text("\n".join(["id,x,w", *rows]) + "\n")


def folder_of_steps(path: Path, x: np.ndarray) -> None:
    path.mkdir()
    for step in (1, 2, 3):
        np.savez(path / f"out_{step}.npz", id=np.arange(5)[::-1], x=x, w=np.arange(5.0))


@pytest.mark.parametrize("saved", [("x",), ("x", "id"), ("id",), ("*",), ()])
@pytest.mark.parametrize(
    ("write", "suffix"),
    [(parquet, ".parquet"), (csv, ".csv"), (folder_of_steps, "")],
    ids=["parquet", "csv", "folder"],
)
def test_a_run_agrees_with_the_fields_that_were_chosen_from_it(tmp_path: Path, write, suffix, saved) -> None:
    a, b = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    write(a, np.arange(5.0))
    write(b, np.array([0.0, 1.0, 3.0, 3.0, 4.0]))
    chosen = [word for name in saved for word in ("--field", name)]
    assert command("golden", "save", a, "-o", tmp_path / "g", "--key", "id", *chosen).status == 0
    for asked in ((), ("--field", "id"), *([] if saved == ("id",) else [("--field", "x")])):
        answer = command("golden", "check", tmp_path / "g", a, *asked)
        assert answer.status == 0, answer.out
    assert command("golden", "check", tmp_path / "g", b).status == int(saved != ("id",))


def test_attributes_of_chosen_fields_and_of_their_ids_are_compared(tmp_path: Path) -> None:
    a, b = tmp_path / "a.parquet", tmp_path / "b.parquet"
    parquet(a, np.arange(5.0))
    parquet(b, np.arange(5.0), "uint64")
    golden.save(a, tmp_path / "g", key="id", fields="x")
    result = golden.check(tmp_path / "g", b)
    assert not result.same and [d.label for d in result.attributes] == ["id@(type)"]


def test_a_step_that_was_not_saved_is_a_problem(tmp_path: Path) -> None:
    folder_of_steps(tmp_path / "a", np.arange(5.0))
    golden.save(tmp_path / "a", tmp_path / "g", key="id", fields="x", steps="1,2")
    assert golden.check(tmp_path / "g", tmp_path / "a").same
    golden.save(tmp_path / "a", tmp_path / "g", key="id", fields="x")
    np.savez(tmp_path / "a" / "out_4.npz", id=np.arange(5), x=np.arange(5.0))
    result = golden.check(tmp_path / "g", tmp_path / "a")
    assert [p.text for p in result.problems] == [f"not in {tmp_path / 'g'}: save again, or choose steps"]
