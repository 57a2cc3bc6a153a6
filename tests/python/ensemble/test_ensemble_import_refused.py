"""What an import refuses, and what an export and an import keep."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import check_error, command

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
    "huge block": (
        b"wall,block\n1,0\n1,1e15\n",
        "row 3, column 'block': '1e15' is none of the numbers 0, 1, ..., 999999",
    ),
    "half a block": (b"wall,block\n1,0.5\n", "row 2, column 'block': '0.5' is none of the numbers"),
    "huge exit": (b"wall,exit\n1,1e300\n", "row 2, column 'exit': '1e300' is no exit status"),
    "milliseconds": (
        b"wall,start\n1,1700000000000\n",
        "row 2, column 'start': '1700000000000' is no moment: write seconds",
    ),
    "open quote": (b'wall,a\n1,"x\n2,y\n', "line 3: a quotation mark is not closed"),
    "UTF-16": ("wall\n1\n".encode("utf-16"), "iconv -f UTF-16 -t UTF-8"),
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
        ('{"results": [null]}', "entry 1 of results is no object"),
        ('{"results": [{"command": "a", "times": "abc"}]}', "times is 'abc', and no list"),
        ('{"results": [{"command": "a", "times": [1], "exit_codes": {"0": 1}}]}', "exit_codes is {'0': 1}, and no list"),
        ('{"results": [{"command": "a", "times": [1], "exit_codes": ["b"]}]}', "'a', time 1: 'b' is no exit status"),
        ('{"results": [{"command": "a", "times": [1], "parameters": [1]}]}', "parameters are [1], and no object"),
        ('{"benchmarks": [null]}', "entry 1 of benchmarks is no object"),
        ('{"benchmarks": [{"name": "a", "real_time": 1, "time_unit": 5}]}', "5 is not a unit of time"),
        ('{"data": 5, "columns": ["time"]}', "is not of caliper: a value is of another kind than caliper writes"),
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


def hyperfine(path: Path, *results: tuple[str, dict[str, str], list[float]]) -> Path:
    entries = [
        {"command": command, "times": times, **({"parameters": own} if own else {})}
        for command, own, times in results
    ]
    path.write_text(json.dumps({"results": entries}))
    return path


def told(folder: Path) -> list[tuple[str, int]]:
    return [(row.name, row.n) for row in conditions_of(load_tasks(folder), Options()).rows]


def test_several_commands_with_one_parameter_are_conditions(tmp_path: Path) -> None:
    """hyperfine -L n 1,2 'a 0.0{n}' 'b {n}{n}' x x"""
    results = [
        (line.replace("N", n), {"n": n}, [t, t]) for n in "12"
        for t, line in enumerate(("a 0.0N", "b NN", "x", "x"), 1)
    ]  # fmt: skip
    import_tasks([hyperfine(tmp_path / "h.json", *results)], tmp_path / "s")
    assert sorted(told(tmp_path / "s")) == sorted(
        (f"{command}, n = {n}", 2) for command in ("a 0.0{n}", "b {n}{n}", "x", "x (2)") for n in "12"
    )
    # A command that no text gives has its place as a name; a parameter may have the name of the factor.
    odd = hyperfine(tmp_path / "o.json", ("first", {"command": "1"}, [1.0]), ("second", {"command": "2"}, [1.0]), ("x", {"command": "1"}, [2.0]))  # fmt: skip
    assert [x["factors"] for x in read_foreign(odd)] == [
        {"command": "1", "command_line": "command 1"}, {"command": "2", "command_line": "command 1"}, {"command": "1", "command_line": "x"},
    ]  # fmt: skip


def test_files_of_one_command_each_are_conditions(tmp_path: Path) -> None:
    files = [
        hyperfine(tmp_path / "a.json", ("a", {}, [1.0, 1.0])),
        hyperfine(tmp_path / "b.json", ("b", {}, [2.0, 2.0])),
    ]
    import_tasks(files, tmp_path / "s")
    assert told(tmp_path / "s") == [("a", 2), ("b", 2)]
    import_tasks([files[0], files[0]], tmp_path / "one")
    assert told(tmp_path / "one") == [("a", 4)]
    assert "command_line" not in (tmp_path / "one" / "tasks.jsonl").read_text()


def test_two_names_that_become_one_stay_two_factors(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("wall,a b,a_b\n1,x,u\n2,y,u\n")
    assert [x["factors"] for x in read_foreign(tmp_path / "a.csv")] == [
        {"a_b": "x", "a_b_": "u"}, {"a_b": "y", "a_b_": "u"},
    ]  # fmt: skip


def test_marks_of_quotation_are_plain_in_tables_of_slurm_and_reframe(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(
        'JobID|JobName|State|Elapsed\n1|"x|COMPLETED|00:05\n2|y|COMPLETED|00:06\n'
    )
    assert [(x["factors"]["job"], x["wall"]) for x in read_foreign(tmp_path / "a.txt")] == [
        ('"x', 5.0),
        ("y", 6.0),
    ]
    (tmp_path / "a.log").write_text('name|info|t_value|t_unit\nx|"|1|s\ny|z|2|s\n')
    assert [x["wall"] for x in read_foreign(tmp_path / "a.log")] == [1.0, 2.0]


def test_lines_may_end_as_on_old_systems(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"wall,a\r1,x\r2,y\r")
    assert [x["factors"]["a"] for x in read_foreign(tmp_path / "a.csv")] == ["x", "y"]


def test_csv_keeps_replicas(tmp_path: Path) -> None:
    rows = "".join(
        f"{b},{c},{r},{r},{1000 + 9 * b},{1 + r},{1000 + 9 * b},{1001 + 9 * b + r}\n"
        for b in range(2)
        for c in "xy"
        for r in range(2)
    )
    (tmp_path / "a.csv").write_text(f"block,factors.c,replica,slot,released,wall,start,end\n{rows}")
    import_tasks([tmp_path / "a.csv"], tmp_path / "s")
    frame = load_tasks(tmp_path / "s")
    assert frame["replica"].tolist() == [0, 1] * 4 and frame["slot"].tolist() == [0, 1] * 4
    assert frame["released"].tolist() == [1000.0] * 4 + [1009.0] * 4


def test_a_report_says_what_a_file_leaves_open(tmp_path: Path) -> None:
    """The order of conditions, and numbers that may be conditions."""
    rows = "".join(f"{n},{10 / n + k / 100}\n" for k in range(3) for n in (1, 2, 4))
    (tmp_path / "a.csv").write_text(f"threads,time\n{rows}")
    done = command("ensemble", "report", tmp_path / "a.csv")
    assert (
        "The column threads has 3 different numbers, each several times, and counts as a measure. "
        "If it is a condition, say so: --factor threads."
    ) in done.out
    done = command("ensemble", "report", tmp_path / "a.csv", "--factor", "threads")
    assert "threads = 4" in done.out and "counts as a measure" not in done.out
    assert "In which order the conditions ran is not known" in done.out
    import_tasks([tmp_path / "a.csv"], tmp_path / "s", factors=["threads"])
    write_csv(tmp_path / "s", tmp_path / "again.csv")
    assert (
        "In which order the conditions ran is not known"
        in command("ensemble", "report", tmp_path / "again.csv").out
    )
    check_error(command("ensemble", "report", tmp_path / "s", "--factor", "threads"), "columns of a CSV file")
    # Whoever names the blocks knows the order.
    rows = "".join(f"{c},{b},{1 + b / 100}\n" for b in range(6) for c in "xy")
    (tmp_path / "b.csv").write_text(f"c,block,time\n{rows}")
    assert "In which order" not in command("ensemble", "report", tmp_path / "b.csv").out


def test_a_ratio_of_conditions_with_nodes_of_their_own_is_not_left_alone(tmp_path: Path) -> None:
    rows = "".join(f"{c},n{c},{b},{t + b / 100}\n" for b in range(8) for c, t in (("x", 1), ("y", 2)))
    (tmp_path / "a.csv").write_text(f"c,node,block,time\n{rows}")
    done = command("ensemble", "report", tmp_path / "a.csv")
    assert "Levels of c had nodes of their own: what differs may be the nodes." in done.out
    # Each on each node: they can be told apart.
    (tmp_path / "b.csv").write_text(f"c,node,block,time\n{rows}".replace("nx", "n1").replace("ny", "n1"))
    assert "nodes of their own" not in command("ensemble", "report", tmp_path / "b.csv").out
