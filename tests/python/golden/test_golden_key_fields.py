"""Chosen fields of particles: what `save` leaves out, `check` leaves out too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from commands import command

from twinrun import golden
from twinrun.comparison.settings import Decision
from twinrun.comparison.tolerances import Rule, Tolerances
from twinrun.golden import writer


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


@pytest.mark.parametrize("rows", [100, 9000])
@pytest.mark.parametrize(
    "how",
    [
        {"rtol": 1e-3},
        {"atol": 1000.0},
        {"ulp": 4, "keep_values": 1 << 20},
        {"tolerances": Tolerances((Rule(atol=1000.0, integers=True),))},
        {"tolerances": Tolerances((Rule(fields=("id",), equal_nan=False),))},
        {"tolerances": lambda step, name: (1000.0, 0.0)},
    ],
    ids=["rtol", "atol", "ulp", "rule", "nan", "function"],
)
def test_no_tolerance_holds_for_ids(tmp_path: Path, how: dict, rows: int) -> None:
    run = {"id": np.arange(rows), "x": np.linspace(0, 1, rows)}
    golden.save(run, tmp_path / "g", key="id", **{"tolerate_integers": True, "keep_values": 0, **how})
    backwards = {name: values[::-1].copy() for name, values in run.items()}
    assert golden.check(tmp_path / "g", backwards).same
    other = {**run, "id": run["id"] + (run["id"] == rows - 1)}
    result = golden.check(tmp_path / "g", other)
    assert not result.same and result.fields[0].verdict == "different"


def test_ids_of_files_that_were_saved_with_a_tolerance_are_named(tmp_path: Path, monkeypatch) -> None:
    run = {"id": np.arange(9000), "x": np.zeros(9000)}
    monkeypatch.setattr(writer, "Decision", lambda: Decision(atol=1000.0))
    golden.save(run, tmp_path / "g", key="id", keep_values=0)
    result = golden.check(tmp_path / "g", run)
    assert [(p.field, p.text) for p in result.problems] == [
        ("id", "IDs were saved with a tolerance, and no tolerance holds for IDs; save again")
    ]


@pytest.mark.parametrize(("saved", "now", "fate"), [(0, 5, "new"), (5, 0, "lost")])
def test_particles_that_are_all_new_or_lost(tmp_path: Path, saved: int, now: int, fate: str) -> None:
    then, run = ({"id": np.arange(n), "x": np.zeros(n)} for n in (saved, now))
    golden.save(then, tmp_path / "g", key="id", keep_values=0)
    (problem,) = golden.check(tmp_path / "g", run).problems
    assert problem.text == f"{saved} particles in the golden files, {now} in arrays: all of them are {fate}"


def test_fields_of_missing_ids_are_named(tmp_path: Path) -> None:
    run = {"id": np.arange(5), "x": np.zeros(5)}
    for more in ({}, {"other": np.zeros(3)}):
        golden.save({**run, **more}, tmp_path / "g", key="id")
        result = golden.check(tmp_path / "g", {"ID": run["id"], "x": run["x"], **more})
        assert {p.field: p.text for p in result.problems} == {
            "id": "not in arrays",
            "ID": f"not in {tmp_path / 'g'}: save again, or choose fields",
            "x": "its rows were saved by the IDs 'id', and have none in arrays",
        }


def test_lost_ids_do_not_make_a_chosen_field_unknown(tmp_path: Path) -> None:
    golden.save({"x": np.ones((300, 2), "f4"), "id": np.arange(300)}, tmp_path / "g", key="id", keep_values=0)
    found = golden.check(tmp_path / "g", {"x": np.ones((299, 2), "f4"), "id": np.arange(299)}, fields=["x"])
    assert [problem.field for problem in found.problems] == ["id"]


def folder_of_ranks(path: Path, ranks: int, lost: int = 0, **more: np.ndarray) -> Path:
    """300 particles in files of so many ranks, in an order of each number's own. more: fields of the last."""
    path.mkdir()
    ids = np.random.default_rng(ranks).permutation(300)[lost:]
    for rank, part in enumerate(np.array_split(ids, ranks)):
        fields = more if rank == ranks - 1 else {}
        np.savez(path / f"step_1_rank_{rank}.npz", id=part, x=np.sqrt(part), **fields)
    return path


@pytest.mark.parametrize("key", ["id", None])
def test_rows_may_lie_in_another_number_of_files(tmp_path: Path, key: str | None) -> None:
    two, three = (folder_of_ranks(tmp_path / str(n), n) for n in (2, 3))
    lost = folder_of_ranks(tmp_path / "lost", 3, lost=1)
    more = folder_of_ranks(tmp_path / "more", 3, w=np.arange(4.0))
    for name, saved, now in (("a", two, three), ("b", three, two)):
        golden.save(saved, tmp_path / name, key=key)
        assert golden.check(tmp_path / name, now, key="id").same
        assert not golden.check(tmp_path / name, lost, key="id").same
    # What only one file has is told, on either side.
    assert golden.check(tmp_path / "a", more, key="id").verdict == "incomparable"
    golden.save(more, tmp_path / "c", key=key)
    assert golden.check(tmp_path / "c", two, key="id").verdict == "incomparable"


def test_attributes_of_files_that_only_one_side_has(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")

    def written(name: str, *ranks: dict) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        for rank, part in enumerate(np.array_split(np.arange(300), len(ranks))):
            with h5py.File(folder / f"step_1_rank_{rank}.h5", "w") as file:
                file["id"], file["x"] = part, np.sqrt(part)
                file["x"].attrs.update(ranks[rank])
        return folder

    one, two = written("1", {"units": "m"}), written("2", *[{"units": "m"}] * 2)
    missing = written("missing", {"units": "m"}, {})
    more = written("more", {"units": "m"}, {"units": "m", "rank": 1})
    golden.save(one, tmp_path / "of_one", key="id")
    golden.save(more, tmp_path / "of_more", key="id")
    assert golden.check(tmp_path / "of_one", two).same
    for other in (missing, more):
        assert golden.check(tmp_path / "of_one", other).verdict == "incomparable"
    assert golden.check(tmp_path / "of_one", more, ignore_attributes=["*rank"]).same
    assert golden.check(tmp_path / "of_more", one).verdict == "incomparable"
    assert golden.check(tmp_path / "of_more", one, ignore_attributes=["*rank"]).same
