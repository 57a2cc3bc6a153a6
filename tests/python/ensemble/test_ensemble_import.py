"""Measurements of other programs as studies, and studies as Parquet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import HANG, check_error, command
from ensemble_support import lines, within, write_study

from twinrun.ensemble.run import runner
from twinrun.ensemble.study import importing
from twinrun.ensemble.study.exporting import flat_rows, write_parquet
from twinrun.ensemble.study.study import read_study
from twinrun.errors import DamagedFile, MissingFile, Unsupported

# As hyperfine 1.18 --export-json writes it, with --parameter-list.
HYPERFINE = {
    "results": [
        {
            "command": f"sort -n {size}",
            "mean": 0.2,
            "times": [0.1 * size + 0.01 * i for i in range(3)],
            "memory_usage_byte": [1000, 2000, 3000],
            "exit_codes": [0, 1, None],
            "parameters": {"size": str(size), "a b": "x", "seed": "1"},
        }
        for size in (1, 2)
    ]
}
# As cali-query -j (json) and as the json-split writer.
CALIPER = [
    {"path": "main", "sum#time.duration": 1.5, "sum#time.inclusive.duration": 4.0},
    {"path": "main/solve", "sum#time.duration": 2.5, "sum#time.inclusive.duration": 2.5, "count": 7},
]
CALIPER_SPLIT = {
    "data": [[1.5, 0], [2.5, 1]],
    "columns": ["time", "path"],
    "column_metadata": [{"is_value": True}, {"is_value": False}],
    "nodes": [{"label": "main", "column": "path"}, {"label": "solve", "column": "path", "parent": 0}],
    "problem_size": 30,
    "hostname": "n7",
}
RADICAL = """#time,event,comp,thread,uid,state,msg
10.0,sync_abs,agent,main,,,host:1:1
11.0,exec_start,executing,main,task.000000,,
12.5,exec_start,executing,main,task.000001,,
21.5,exec_stop,executing,main,task.000000,,
13.0,exec_start,executing,main,task.000002,,
20.5,exec_stop,executing,main,task.000001,,
"""


def made(tmp_path: Path, name: str, content: object, form: str | None = None) -> list[dict]:
    file = tmp_path / name
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    folder = tmp_path / f"{name}-study"
    number = importing.import_tasks([file], folder, form)
    found = lines(folder)
    assert len(found) == number and [x["task"] for x in found] == list(range(number))
    planned = lines(folder, "plan.jsonl")
    assert [p["factors"] for p in planned] == [x["factors"] for x in found]
    assert [f.name for f in read_study(folder / "study.toml").factors] == list(found[0]["factors"])
    assert runner.status_of(folder)["ended"] == number
    return found


def test_hyperfine(tmp_path: Path) -> None:
    found = made(tmp_path, "h.json", HYPERFINE)
    assert [(x["factors"]["size"], x["block"], round(x["wall"], 6)) for x in found] == [
        (str(s), b, round(0.1 * s + 0.01 * b, 6)) for b in range(3) for s in (1, 2)
    ]
    assert [x["status"] for x in found] == ["ok", "ok", "failed", "failed", "killed", "killed"]
    assert found[0]["max_memory_bytes"] == 1000
    assert set(found[0]["factors"]) == {"size", "a_b", "seed_"}, "names that a study can have"


def test_commands_of_hyperfine_have_no_secrets(tmp_path: Path) -> None:
    results = [
        {"command": f"curl --token SEC{i} https://u:SEC@h/x?sig=SEC", "times": [1.0]} for i in range(2)
    ]
    found = made(tmp_path, "h.json", {"results": results})
    assert [x["factors"]["command"] for x in found] == ["curl --token ...", "curl --token ... (2)"]
    files = [p for p in (tmp_path / "h.json-study").rglob("*") if p.is_file()]
    assert files and not any("SEC" in p.read_text() for p in files)


@pytest.mark.parametrize("content", [CALIPER, {"records": CALIPER, "globals": {"problem_size": 30}}])
def test_caliper(content: object, tmp_path: Path) -> None:
    (task,) = made(tmp_path, "c.json", content)
    assert task["wall"] == 4.0
    assert task["metrics"]["main/solve.sum#time.duration"] == 2.5
    assert task["factors"] == ({"problem_size": "30"} if isinstance(content, dict) else {})


def test_caliper_split(tmp_path: Path) -> None:
    (task,) = made(tmp_path, "c.json", CALIPER_SPLIT)
    assert (task["wall"], task["node"], task["factors"]) == (4.0, "n7", {"problem_size": "30"})
    assert task["metrics"] == {"main.time": 1.5, "main/solve.time": 2.5}


def test_radical(tmp_path: Path) -> None:
    found = made(tmp_path, "agent.prof", RADICAL)
    assert [(x["imported_name"], x["wall"], x["status"]) for x in found] == [
        ("task.000000", 10.5, "ok"),
        ("task.000001", 8.0, "ok"),
        ("task.000002", None, "killed"),
    ]


def test_several_files_are_one_study(tmp_path: Path) -> None:
    files = []
    for i, size in enumerate((30, 30, 60)):
        files.append(tmp_path / f"{i}.json")
        files[-1].write_text(json.dumps({**CALIPER_SPLIT, "problem_size": size}))
    done = command("ensemble", "import", *files, "--output", tmp_path / "s")
    assert (done.status, done.out) == (0, f"{tmp_path / 's'}: 3 tasks\n")
    assert [(x["factors"]["problem_size"], x["block"]) for x in lines(tmp_path / "s")] == [
        ("30", 0),
        ("60", 0),
        ("30", 1),
    ]
    check_error(command("ensemble", "import", *files, "--output", tmp_path / "s"), "not empty")


@pytest.mark.parametrize(
    "content, form, error",
    [
        ("{", None, DamagedFile),
        ('{"results": 3}', "hyperfine", DamagedFile),
        ('{"results": [{}]}', "hyperfine", DamagedFile),
        ('{"data": [[0]], "columns": ["a", "b"]}', "caliper", DamagedFile),
        ("[]", "caliper", Unsupported),
        ("#time,event\n1,x\n", "radical", Unsupported),
        ("3", None, Unsupported),
    ],
)
def test_bad_files(content: str, form: str | None, error: type, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text(content)
    with pytest.raises(error):
        importing.import_tasks([file], tmp_path / "s", form)
    assert not (tmp_path / "s").exists()
    with pytest.raises(MissingFile):
        importing.import_tasks([tmp_path / "none"], tmp_path / "s")


@pytest.mark.parametrize(
    "content, said",
    [
        ("name,time (msec)\na,2\n", "'msec' is not a unit of time"),
        ("name,time [cycles]\na,2\n", "'cycles' is not a unit of time"),
        ("name;time_us\na;1,5\n", "row 2, column 'time_us': '1,5' is no time"),
        ("name,time\na,1\nb,nan\n", "row 3, column 'time': 'nan' is no time"),
        ("name,time\na,abc\n", "'abc' is no time"),
        ("name,time\na,-1\n", "'-1' is no time"),
        ("name,time\na,\n", "row 2, column 'time': a task that succeeded has no time"),
    ],
)
def test_times_that_are_none_are_told(content: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text(content)
    with pytest.raises(DamagedFile) as told:
        importing.import_tasks([file], tmp_path / "s", "csv")
    assert said in str(told.value) and not (tmp_path / "s").exists()


def test_a_task_that_failed_needs_no_time(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text("name,time (ms),status\na,2,ok\nb,,failed\n")
    importing.import_tasks([file], tmp_path / "s", "csv")
    assert [(x["status"], x.get("wall")) for x in lines(tmp_path / "s")] == [("ok", 0.002), ("failed", None)]


def test_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    study = write_study(
        tmp_path,
        command=["/bin/sh", "-c", "echo v: {f}; exit {f}"],
        factors={"f": {"levels": [0, 1]}},
        repetitions=2,
        metrics={"v": {"regex": "v: (\\S+)"}},
    )
    with within(HANG):
        runner.run_study(study, tmp_path / "s")
        assert command("ensemble", "export", tmp_path / "s", tmp_path / "t.parquet").status == 0
    rows = parquet.read_table(tmp_path / "t.parquet").to_pylist()
    assert rows == flat_rows(tmp_path / "s")
    for row, line in zip(rows, lines(tmp_path / "s"), strict=True):
        assert row["factors.f"] == line["factors"]["f"] and row["metrics.v"] == line["metrics"]["v"]
        assert row["io.write_chars"] == line["io"]["write_chars"] and row["status"] == line["status"]
        assert row["cores"] == line["cores"]
    with pytest.raises(MissingFile):
        write_parquet(tmp_path, tmp_path / "x")


def _hyperfine(**changed: object) -> dict:
    return {"results": [{"command": "sort", "times": [0.1, 0.2], **changed}]}


def _benchmark(**changed: object) -> dict:
    return {"benchmarks": [{"name": "b", "run_name": "b", "real_time": 1.5, "time_unit": "ms", **changed}]}


def _sacct(elapsed: str) -> str:
    return f"JobID|JobName|State|Elapsed|ExitCode\n7|a|COMPLETED|{elapsed}|0:0\n"


def _reframe(value: str) -> str:
    return f"name|result|elapsed_value|elapsed_unit\nA|pass|{value}|s\n"


@pytest.mark.parametrize(
    ("form", "content", "said"),
    [
        ("hyperfine", _hyperfine(times=[0.1, None]), "'sort', time 2: there is no time"),
        ("hyperfine", _hyperfine(times=[0.1, "fast"]), "'sort', time 2: 'fast' is no time"),
        ("hyperfine", _hyperfine(times=[-0.1]), "'sort', time 1: -0.1 is no time"),
        ("hyperfine", _hyperfine(times=[float("nan")]), "nan is no time"),
        ("hyperfine", {"results": [{"command": "sort"}]}, "there is no 'times'"),
        ("google-benchmark", _benchmark(real_time="1.5"), "'b': '1.5' is no time"),
        ("google-benchmark", _benchmark(real_time=-1), "'b': -1 is no time"),
        ("google-benchmark", {"benchmarks": [{"name": "b"}]}, "'b': there is no time"),
        ("caliper", [{"path": "main", "count": 3}], "no numbers in a column that is named time"),
        ("caliper", [{"path": "main", "time": -3.0}], "took -3 s, which is no time"),
        ("radical", RADICAL.replace("21.5,exec_stop", "1.5,exec_stop"), "'task.000000' took -9.5 s"),
        ("sacct", _sacct("00:00:0x"), "job 7, column Elapsed: '00:00:0x' is no time"),
        ("sacct", _sacct(""), "job 7 has no time: give sacct --format with Elapsed"),
        ("reframe", _reframe("fast"), "row 2, column elapsed_value: 'fast' is not a number"),
        ("reframe", _reframe("-1"), "took -1 s"),
    ],
)  # fmt: skip
def test_a_time_that_is_none_is_named(form: str, content: object, said: str, tmp_path: Path) -> None:
    """A study without some of its times would answer another question than the file."""
    file = tmp_path / "given"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(DamagedFile) as caught:
        importing.read_foreign(file, form)
    assert said in str(caught.value) and str(file) in str(caught.value)


def test_what_did_not_end_well_needs_no_time(tmp_path: Path) -> None:
    file = tmp_path / "given"
    file.write_text(_sacct("").replace("COMPLETED", "CANCELLED"))
    assert [x["wall"] for x in importing.read_foreign(file, "sacct")] == [None]
    file.write_text(_reframe("null").replace("pass", "fail"))
    assert [x["status"] for x in importing.read_foreign(file, "reframe")] == ["failed"]


def test_json_of_no_known_program_and_what_is_no_file(tmp_path: Path) -> None:
    file = tmp_path / "given.json"
    file.write_text('{"result": []}')
    with pytest.raises(Unsupported, match="has no keys of a program that is known"):
        importing.read_foreign(file)
    with pytest.raises(Unsupported, match="is not a regular file"):
        importing.read_foreign("/dev/null")
