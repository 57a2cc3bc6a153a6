"""Files as other programs wrote them: the same numbers arrive. Exports as other programs read them."""

from __future__ import annotations

import csv
import datetime
import json
import math
from collections import Counter
from pathlib import Path

import pytest
from commands import command
from ensemble_support import lines, write_study

from twinrun.ensemble.run import runner
from twinrun.ensemble.study import exporting
from twinrun.ensemble.study.foreign import read_csv, read_sacct
from twinrun.ensemble.study.importing import import_tasks, read_foreign
from twinrun.ensemble.study.tasks import load_tasks
from twinrun.errors import DamagedFile, TwinrunError, Unsupported

# Written by hyperfine 1.15, Google Benchmark 1.7 (bench_kernels of this repository) and ReFrame 4.10.
FILES = Path(__file__).resolve().parent / "foreign"

# As sacct(1) of Slurm 22.05 describes --parsable2. Job 10 has one step, job 11 two; 12 is an element of an array.
SACCT = """\
JobID|JobName|Partition|State|ExitCode|Elapsed|Start|End|NodeList|UserCPU|SystemCPU|MaxRSS|NNodes
10|sim|all|COMPLETED|0:0|1-02:03:04|2026-11-20T10:00:00|2026-11-21T12:03:04|n1|01:00.500|00:02||1
10.batch|batch||COMPLETED|0:0|1-02:03:04|2026-11-20T10:00:00|2026-11-21T12:03:04|n1|01:00.500|00:02|100K|1
10.extern|extern||COMPLETED|0:0|1-02:03:04|2026-11-20T10:00:00|2026-11-21T12:03:04|n1|00:00|00:00||1
10.0|sim||COMPLETED|0:0|1-02:03:00|2026-11-20T10:00:00|2026-11-21T12:03:04|n1|01:00.500|00:02|2M|1
11|many|all|COMPLETED|0:0|00:10:00|2026-11-20T10:00:00|2026-11-20T10:10:00|n[1-2]||||2
11.0|a||COMPLETED|0:0|00:01:00|2026-11-20T10:00:00|2026-11-20T10:01:00|n1||||1
11.1|a||FAILED|3:0|00:01:30|2026-11-20T10:01:00|2026-11-20T10:02:30|n2||||1
12_3|sim|all|CANCELLED by 0|0:15|00:00:05|2026-11-20T10:00:00|2026-11-20T10:00:05|None assigned||||1
13|sim|all|TIMEOUT|0:0|01:00|2026-11-20T10:00:00|2026-11-20T10:01:00|n2||||1
14|sim|all|RUNNING|0:0|00:01:00|2026-11-20T10:00:00|Unknown|n2||||1
15|sim|all|PENDING|0:0|00:00:00|Unknown|Unknown|None assigned||||1
"""


def test_hyperfine() -> None:
    theirs = json.loads((FILES / "hyperfine.json").read_text())["results"]
    found = read_foreign(FILES / "hyperfine.json")
    assert [x["wall"] for x in found] == [t for r in theirs for t in r["times"]]
    assert [x["factors"] for x in found] == [r["parameters"] for r in theirs for _ in r["times"]]


def test_google_benchmark() -> None:
    """Repetitions are tasks; mean, median, stddev and cv are not."""
    entries = json.loads((FILES / "google_benchmark.json").read_text())["benchmarks"]
    single = [e for e in entries if e["run_type"] == "iteration"]
    assert {e["aggregate_name"] for e in entries if e["run_type"] == "aggregate"} == {
        "mean",
        "median",
        "stddev",
        "cv",
    }
    found = read_foreign(FILES / "google_benchmark.json")
    assert len(found) == len(single) == 6 and len(entries) == 14
    for line, entry in zip(found, single, strict=True):
        assert line["wall"] == pytest.approx(entry["real_time"] * 1e-3) and entry["time_unit"] == "ms"
        assert line["factors"] == {"benchmark": entry["run_name"]}
        assert line["metrics"]["bytes_per_second"] == entry["bytes_per_second"]
        assert line["metrics"]["cpu_time"] == pytest.approx(entry["cpu_time"] * 1e-3)


def test_google_benchmark_of_other_forms(tmp_path: Path) -> None:
    path = tmp_path / "x.json"

    def read(*entries: dict) -> list[dict]:
        path.write_text(json.dumps({"context": {}, "benchmarks": entries}))
        return read_foreign(path)

    with pytest.raises(DamagedFile, match="aggregates only: run without --benchmark_report_aggregates_only"):
        read(
            {
                "name": "a_mean",
                "run_name": "a",
                "run_type": "aggregate",
                "aggregate_name": "mean",
                "real_time": 1.0,
            }
        )
    with pytest.raises(Unsupported, match="holds no tasks"):
        read()
    (line,) = read({"name": "a", "run_type": "iteration", "error_occurred": True, "error_message": "no GPU"})
    assert line["status"] == "failed" and line["reason"] == "no GPU"
    (line,) = read(
        {"name": "a", "real_time": 5.0, "cpu_time": 4.0}
    )  # nanoseconds, and before there were run types
    assert line["wall"] == pytest.approx(5e-9)
    with pytest.raises(DamagedFile, match="is not a unit of time"):
        read({"name": "a", "real_time": 5.0, "time_unit": "fortnight"})


def test_reframe() -> None:
    with open(FILES / "reframe.log", newline="") as file:
        theirs = list(csv.DictReader(file, delimiter="|"))
    found = read_foreign(FILES / "reframe.log")
    assert len(found) == len(theirs) == 6
    for line, row in zip(found, theirs, strict=True):
        assert line["wall"] == float(row["t_value"]) and row["t_unit"] == "s"
        assert line["metrics"] == {"t": float(row["t_value"]), "bw": float(row["bw_value"])}
        assert line["factors"] == {
            "test": "sleeper",
            "n": row["n"],
            "system": "generic",
            "partition": "default",
            "environ": "builtin",
        }
        assert line["end"] == float(row["job_completion_time_unix"]) and line["submit"] < line["end"]
        assert line["node"] == "vm" and line["exit"] == 0 and line["status"] == "ok"


REQUEUED = """\
JobID|JobName|NTasks|AllocCPUS|State|Elapsed|Start|End|NodeList
5|sim||4|NODE_FAIL|00:01:00|2026-01-01T00:00:00|2026-01-01T00:01:00|n1
5|sim||4|COMPLETED|00:11:00|2026-01-01T01:00:00|2026-01-01T01:11:00|n1
5.0|sim|4|4|COMPLETED|00:10:50|2026-01-01T01:00:05|2026-01-01T01:10:55|n1
6|sim||4|COMPLETED|00:10:00|2026-01-01T02:00:00|2026-01-01T02:10:00|n1
6.batch|batch|1|4|COMPLETED|00:10:00|2026-01-01T02:00:00|2026-01-01T02:10:00|n1
7|sim||4|COMPLETED|00:10:30|2026-01-01T03:00:00|2026-01-01T03:10:30|n1
7.0|sim|4|4|COMPLETED|00:10:30|2026-01-01T03:00:00|2026-01-01T03:10:30|n1
7|sim||4|COMPLETED|00:10:30|2026-01-01T03:00:00|2026-01-01T03:10:30|n1
"""


def test_jobs_of_sacct_that_ran_again_and_those_without_steps(tmp_path: Path) -> None:
    path = tmp_path / "jobs.txt"
    path.write_text(REQUEUED)
    # Another cluster may have the same numbers.
    (tmp_path / "other.txt").write_text(REQUEUED.replace("00:11:00", "00:12:00"))
    import_tasks([path, tmp_path / "other.txt"], tmp_path / "s")
    frame = load_tasks(tmp_path / "s")
    assert Counter(frame["status"]) == {"ok": 6, "killed": 2}
    assert Counter(frame["attempt"]) == {1: 6, 2: 2} and frame["task"].nunique() == 6
    assert not frame.duplicated(["task", "attempt"]).any()
    again = frame[frame["attempt"] == 2]
    assert sorted(again["wall"]) == [660, 720] and (again["status"] == "ok").all()
    # All are of one condition, with steps and without.
    assert set(frame["factors.tasks"]) == {"4"}
    assert len((tmp_path / "s" / "plan.jsonl").read_text().splitlines()) == 6
    done = command("ensemble", "report", path)
    assert (
        "tasks = " not in done.out
        and "1 of 4 attempts (1 killed) are in no time here; 3 of 3 tasks" in done.out
    )


def test_which_of_two_columns_has_the_times(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("time,wall\n1700000000,2.0\n1700000010,2.5\n")
    done = command("ensemble", "report", path)
    assert (
        done.status == 2 and "which column has the times, 'time' or 'wall'? Name it with --value" in done.err
    )
    assert [x["wall"] for x in read_csv(path.read_text(), "wall")] == [2.0, 2.5]
    with pytest.raises(ValueError, match="'seconds' or 'duration' or 'wall'"):
        read_csv("seconds,duration,wall\n1,2,3\n")
    with pytest.raises(ValueError, match="1700000000' is a moment"):
        read_csv("time,n\n1700000000,2.0\n1700000010,2.5\n")
    assert read_csv("time\n1700000000\n2\n")[0]["wall"] == 1.7e9


def test_sacct(tmp_path: Path) -> None:
    path = tmp_path / "jobs.txt"
    path.write_text(SACCT)
    found = {x["imported_name"]: x for x in read_foreign(path)}
    assert list(found) == ["10", "11.0", "11.1", "12_3", "13"]
    job = found["10"]
    assert job["wall"] == 26 * 3600 + 3 * 60 + 4 == job["end"] - job["start"]
    assert (job["user"], job["system"], job["max_memory_bytes"]) == (60.5, 2.0, 2 << 20)
    assert job["start"] == datetime.datetime(2026, 11, 20, 10).timestamp() and job["node"] == "n1"
    assert [(x["status"], x["exit"], x["signal"]) for x in found.values()] == [
        ("ok", 0, None), ("ok", 0, None), ("failed", 3, None), ("killed", 0, 15), ("timeout", 0, None),
    ]  # fmt: skip
    assert found["12_3"]["node"] is None and found["13"]["wall"] == 60
    # --parsable has a bar at the end of each line; ElapsedRaw is seconds.
    short = "JobID|ElapsedRaw|State|\n7|42|COMPLETED|\n"
    assert read_sacct(short)[0]["wall"] == 42
    assert (
        read_sacct("JobID|Elapsed|State\n7|RUNNING\n".replace("RUNNING", "1:00|COMPLETED"))[0]["wall"] == 60
    )


def test_csv() -> None:
    text = "solver,threads,time (ms),gflops,node\ncg,1,1500,2.5,a\ncg,2,800,4.5,b\ngmres,1,1700,,a\n"
    found = read_csv(text)
    assert [x["wall"] for x in found] == [1.5, 0.8, 1.7]
    assert found[1]["factors"] == {"solver": "cg"} and found[1]["metrics"] == {"threads": 2.0, "gflops": 4.5}
    assert found[2]["metrics"] == {"threads": 1.0} and found[0]["node"] == "a"
    found = read_csv(text, factors=["threads"])
    assert found[1]["factors"] == {"threads": "2"}
    found = read_csv("a;took_us\nx;5\n", value="took_us")
    assert found[0]["wall"] == pytest.approx(5e-6) and found[0]["factors"] == {"a": "x"}


def test_a_factor_that_is_named_leaves_no_condition_out():
    rows = [(c, n, f"note {i}{c}{n}") for i in range(4) for c in "ab" for n in (1, 2)]
    text = "cmd,time,size,remark\n" + "".join(f"{c},{100 + n},{n},{r}\n" for c, n, r in rows)
    found = read_csv(text, factors=["size"])
    assert [x["factors"] for x in found] == [{"cmd": c, "size": str(n)} for c, n, _ in rows]
    with pytest.raises(ValueError, match="'time' has the times"):
        read_csv(text, factors=["time"])
    # A remark for each row is none, unless it is named.
    assert set(read_csv(text, factors=["remark"])[0]["factors"]) == {"cmd", "remark"}
    assert set(read_csv(text)[0]["factors"]) == {"cmd", "remark"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", "which column has the times"),
        ("time,time\n1,2\n", "two columns have one name"),
        ("time,b\n1,2,3\n", "row 2 has 3 cells, and the header 2"),
        ("time\n", "holds no tasks"),
        ("", "is empty: there are no tasks in it"),
        ("\n \n", "is empty: there are no tasks in it"),
        ("time\n1e-320\n", "'1e-320' is no time: write 0, or a number of 1e-12 to 1e\\+12 s"),
        (
            'time,x\n1,"' + "a" * 140_000 + "\n",
            "a cell that ends in line 2 has more than 131072 characters: is a quotation mark not closed",
        ),
    ],
)
def test_csv_that_is_none(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text)
    with pytest.raises(TwinrunError, match=said):
        read_foreign(path)


def test_columns_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("time,a\n1,b\n")
    with pytest.raises(DamagedFile, match="there is no column 'tiem': there are time, a"):
        read_foreign(path, value="tiem")
    with pytest.raises(DamagedFile, match="there is no column 'b'"):
        read_foreign(path, factors=["b"])
    with pytest.raises(TwinrunError, match="columns can be named for csv only"):
        read_foreign(FILES / "hyperfine.json", "hyperfine", value="x")


def test_times_that_are_no_times() -> None:
    for cell in ("nan", "1e999", "-1", ""):
        with pytest.raises(ValueError, match="row 2, column 'time'"):
            read_csv(f"time,start\n{cell},1\n")
    for cell in ("never", "2026-13-01"):
        with pytest.raises(ValueError, match=r"row 3, column 'start': .* is no moment"):
            read_csv(f"time,start\n1,5\n1,{cell}\n")
    assert [x["start"] for x in read_csv("time,start\n2,5\n3,\n")] == [5.0, None]


@pytest.mark.parametrize("name", ["hyperfine.json", "google_benchmark.json", "reframe.log"])
def test_a_file_is_reported_as_a_study_is(name: str, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    done = command("ensemble", "import", FILES / name, "--output", tmp_path / "study")
    assert done.status == 0, done.err
    by_folder = command("ensemble", "report", tmp_path / "study", "--json", tmp_path / "folder.json")
    by_file = command("ensemble", "report", FILES / name, "--json", tmp_path / "file.json")
    assert by_file.status == 0 and by_file.out == by_folder.out
    assert json.loads((tmp_path / "file.json").read_text())["tasks"] == len(read_foreign(FILES / name))
    refused = command("ensemble", "report", tmp_path / "study", "--json", tmp_path / "study" / "tasks.jsonl")
    assert refused.status == 2


def test_a_report_does_not_replace_the_file_that_it_is_about(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("time\n1\n2\n")
    assert command("ensemble", "report", path, "--json", path).status == 2
    assert path.read_text() == "time\n1\n2\n"


def test_another_column(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    command("ensemble", "import", FILES / "reframe.log", "--output", tmp_path / "study")
    command("ensemble", "report", tmp_path / "study", "--value", "metrics.bw", "--json", tmp_path / "x.json")
    assert json.loads((tmp_path / "x.json").read_text())["options"]["value"] == "metrics.bw"


@pytest.fixture
def study(tmp_path: Path) -> Path:
    study = write_study(
        tmp_path, command=["/bin/sh", "-c", "exit {code}"], repetitions=2,
        factors={"code": {"levels": [0, 3]}, "a-b": {"levels": ['say "x"\n\\'], "variable": "X"}},
    )  # fmt: skip
    runner.run_study(study, tmp_path / "s")
    return tmp_path / "s"


def test_what_csv_exports_csv_imports(study: Path, tmp_path: Path) -> None:
    assert command("ensemble", "export", study, tmp_path / "x.csv").status == 0
    found = read_foreign(tmp_path / "x.csv")
    kept = ("wall", "start", "end", "user", "system", "node", "status", "exit", "block")
    # A line break of a level is in the cell, and its spaces at the ends are not.
    assert [[x.get(k) for k in kept] for x in found] == [[x.get(k) for k in kept] for x in lines(study)]
    assert [x["factors"]["code"] for x in found] == [x["factors"]["code"] for x in lines(study)]


def test_openmetrics(study: Path, tmp_path: Path) -> None:
    assert command("ensemble", "export", study, tmp_path / "x.om").status == 0
    text = (tmp_path / "x.om").read_text()
    # The study has no name of its own: then it has that of its folder, as in reports.
    assert 'study="s"' in text and 'study="study"' not in text
    assert text.endswith("# EOF\n") and 'factor_a_b="say \\"x\\"\\n\\\\"' in text
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    families = {f.name: f for f in parser.text_string_to_metric_families(text)}
    times = families["twinrun_task_seconds"]
    good = {str(x["task"]): x for x in lines(study) if x["status"] == "ok"}
    assert {s.labels["task"]: s.value for s in times.samples} == {k: x["wall"] for k, x in good.items()}
    assert all(
        math.isclose(float(s.timestamp), good[s.labels["task"]]["end"], abs_tol=1e-3) for s in times.samples
    )
    assert times.unit == "seconds" and times.samples[0].labels["factor_a_b"] == 'say "x"\n\\'
    assert {(s.labels["status"], s.value) for s in families["twinrun_attempts"].samples} == {
        ("ok", 2),
        ("failed", 2),
    }


def test_hyperfine_of_a_study(study: Path, tmp_path: Path) -> None:
    done = command("ensemble", "export", study, tmp_path / "x.json")
    assert done.status == 0 and "1 conditions" in done.out
    (result,) = exporting.hyperfine_results(study)
    assert result["times"] == [x["wall"] for x in lines(study) if x["status"] == "ok"]
    assert read_foreign(tmp_path / "x.json")[0]["wall"] == result["times"][0]


def test_exports_need_a_known_format(study: Path, tmp_path: Path) -> None:
    done = command("ensemble", "export", study, tmp_path / "x.xyz")
    assert done.status == 2 and "does not say which format" in done.err and not (tmp_path / "x.xyz").exists()
    assert command("ensemble", "export", study, tmp_path / "x.xyz", "--format", "csv").status == 0
