"""What an import refuses, and what an export and an import keep."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from twinrun.ensemble import Options, load_tasks
from twinrun.ensemble.analysis.conditions import conditions_of
from twinrun.ensemble.study.exporting import write_csv
from twinrun.ensemble.study.importing import import_tasks, read_foreign
from twinrun.errors import TwinrunError

REFUSED = {
    "letters": (b"cond,wall\ncaf\xe9,1\ncaf\xe8,2\n", "is not UTF-8: byte 13 is 0xe9"),
    "order": (b"wall,start,end\n1,5,3\n", "row 2: it ends 2 s before it starts"),
    "start": (b"wall,start,end\n1,1,3\n1,abc,4\n", "row 3, column 'start': 'abc' is no moment"),
    "longer": (b"wall,start,end\n100,1000,1050\n", "row 2: it took 100 s, and there are 50 s between"),
    "status": (
        b"wall,status\n1,ok\n3,weird\n",
        "row 3, column 'status': 'weird' is no status: write one of ok, failed",
    ),
    "exit": (b"wall,exit\n1,bad\n", "row 2, column 'exit': 'bad' is no number"),
    "block": (b"wall,block\n1,x\n", "row 2, column 'block': 'x' is no number"),
    "user": (b"wall,user\n1,x\n", "row 2, column 'user': 'x' is no number"),
    "ages": (b"wall\n1e300\n", "row 2, column 'wall': '1e300' is no time"),
    "no time": (b"wall\n5e-324\n", "row 2, column 'wall': '5e-324' is no time"),
    "cores": (b"factors.a,wall,cores\nx,1,many\n", "row 2, column 'cores': 'many' is no list of cores"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_cell_that_is_none_of_what_its_column_has_is_refused(tmp_path: Path, name: str) -> None:
    content, said = REFUSED[name]
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(TwinrunError, match=r"a\.csv") as raised:
        read_foreign(tmp_path / "a.csv")
    assert said in str(raised.value)


def test_states_of_slurm_are_statuses(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("wall,status\n1,COMPLETED\n1,CANCELLED by 7\n1,OK\n1,\n1,timeout\n")
    assert [x["status"] for x in read_foreign(tmp_path / "a.csv")] == ["ok", "killed", "ok", "ok", "timeout"]


def test_a_time_may_be_shorter_than_from_start_to_end(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("wall,start,end\n1.5,1000,1050\n50.4,1000,1050\n")
    assert [x["wall"] for x in read_foreign(tmp_path / "a.csv")] == [1.5, 50.4]


def test_cores_of_other_tables_are_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("wall,cores\n1,4\n1,8\n")
    assert [x["metrics"]["cores"] for x in read_foreign(tmp_path / "a.csv")] == [4, 8]


def test_the_same_command_twice_is_two_conditions(tmp_path: Path) -> None:
    results = [{"command": "./a", "times": [1.0, 1.1]}, {"command": "./a", "times": [2.0, 2.1]}]
    (tmp_path / "h.json").write_text(json.dumps({"results": results}))
    found = [(x["factors"]["command"], x["wall"]) for x in read_foreign(tmp_path / "h.json")]
    assert found == [("./a", 1.0), ("./a", 1.1), ("./a (2)", 2.0), ("./a (2)", 2.1)]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[1, 2]", "has no keys of a program that is known (results: hyperfine; benchmarks"),
        ('{"results": []}', "holds no tasks: it was read as hyperfine, of which each of the times of results is a task"),
        ('{"results": [{"command": "a", "times": [1e308]}]}', "'a', time 1: 1e+308 is no time"),
        ('{"results": [{"command": "a", "times": [' + "9" * 5000 + "]}]}", "'a', time 1: inf is no time"),
        ("[" * 100_000, "is JSON whose brackets are nested too deeply"),
        ("{", "is not JSON"),
    ],
)  # fmt: skip
def test_json_is_told_what_was_looked_for(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "h.json").write_text(content)
    with pytest.raises(TwinrunError) as raised:
        read_foreign(tmp_path / "h.json")
    assert said in str(raised.value)


def test_csv_keeps_cores_and_the_base_of_conditions(tmp_path: Path) -> None:
    first = tmp_path / "first"
    rows = "".join(
        f'{cond},{at},{wall},{1000 + 10 * k},{1000 + 10 * k + wall},n1,"[0, {k}]",{k // 2}\n'
        for k, (cond, at, wall) in enumerate([("a", 1, 2), ("z", 0, 1), ("z", 0, 1), ("a", 1, 2)])
    )
    (tmp_path / "a.csv").write_text(f"factors.cond,level_of.cond,wall,start,end,node,cores,block\n{rows}")
    import_tasks([tmp_path / "a.csv"], first)
    write_csv(first, tmp_path / "b.csv")
    import_tasks([tmp_path / "b.csv"], tmp_path / "second")
    for folder in (first, tmp_path / "second"):
        frame = load_tasks(folder)
        assert frame["cores"].tolist() == [[0, 0], [0, 1], [0, 2], [0, 3]]
        assert frame["cores.count"].tolist() == [2, 2, 2, 2]
        assert [row.name for row in conditions_of(frame, Options()).rows] == ["cond = z", "cond = a"]
