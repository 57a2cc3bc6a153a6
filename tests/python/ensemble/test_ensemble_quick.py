"""twinrun ensemble -- COMMAND --vs COMMAND: what runs, what it says, and what it leaves."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import COMMAND, HANG, command, load_json
from ensemble_support import lines, within

pytest.importorskip("scipy")
pytest.importorskip("pandas")

from twinrun.ensemble.study.command_line import CommandLine, commands_of, scan, study_text
from twinrun.ensemble.study.shown import shown_command
from twinrun.errors import TwinrunError


@pytest.fixture(autouse=True)
def limited() -> Iterator[None]:
    with within(HANG):
        yield


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands run where they are given."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def log(name: str) -> str:
    return f"echo {name} >> log"


def said(here: Path) -> list[str]:
    return (here / "log").read_text().split()


def test_two_commands(here: Path) -> None:
    done = command(
        "ensemble",
        "--runs",
        6,
        "--keep",
        "kept",
        "--seed",
        1,
        "--",
        log("A"),
        "--vs",
        f"sleep 0.5; {log('B')}",
    )
    assert done.status == 0, done.err
    table, sentence = done.out.split("\n\n")
    assert re.search(r"^echo A >> log +6 ", table, re.M)
    # Real times: on a busy machine the blocks may resemble each other, and then the report gives no interval.
    with_interval = r"B >> log is [\d.]+ times \[[\d.]+, [\d.]+\] slower than echo A >> log \(6 blocks"
    without = r"B >> log was slower than echo A >> log in all 6 blocks \(ratio [\d.]+\), and the interval cannot be given"
    assert re.search(f"{with_interval}|{without}", sentence), sentence
    # A warm-up of each, then blocks of both, in an order that changes.
    assert Counter(said(here)) == {"A": 7, "B": 7}
    blocks = ["".join(said(here)[k : k + 2]) for k in range(2, 14, 2)]
    assert set(blocks) == {"AB", "BA"}
    assert len(lines(here / "kept")) == 12 and len(lines(here / "kept", "warmup.jsonl")) == 2
    report = command("ensemble", "report", "kept")
    assert report.status == 0 and "slower than echo A" in report.out
    again = command("ensemble", "--runs", 6, "--keep", "kept", "--", "true")
    assert again.status == 2 and "kept: is there already, and is not an empty folder" in again.err


def test_nothing_is_left_without_keep(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = here / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    assert command("ensemble", "-r", 1, "-q", "--", "true").status == 0
    assert command("ensemble", "-r", 1, "-q", "--", "false").status == 2
    assert not list(temporary.iterdir())


def test_parameters(here: Path) -> None:
    done = command("ensemble", "-r", 2, "-w", 0, "--export-json", "out.json", "--export-csv", "out.csv", "--export-markdown", "out.md",
                   "-L", "word", r"a,b\,c", "-P", "n", "1", "2", "-D", "0.5", "--", "echo {word} {n} >> log")  # fmt: skip
    assert done.status == 0, done.err
    assert Counter((here / "log").read_text().splitlines()) == {
        f"{w} {n}": 2 for w in ("a", "b,c") for n in ("1.0", "1.5", "2.0")
    }
    results = load_json((here / "out.json").read_text())["results"]
    assert [r["parameters"] for r in results] == [
        {"word": w, "n": n} for w in ("a", "b,c") for n in ("1.0", "1.5", "2.0")
    ]
    assert results[0]["command"] == "echo a 1.0 >> log" and results[0]["exit_codes"] == [0, 0]
    with open(here / "out.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(r["parameter_word"], r["parameter_n"]) for r in rows] == [
        (r["parameters"]["word"], r["parameters"]["n"]) for r in results
    ]
    assert [float(r["mean"]) for r in rows] == [r["mean"] for r in results]
    assert (here / "out.md").read_text().count("\n") == 8


@pytest.mark.skipif(shutil.which("hyperfine") is None, reason="there is no hyperfine")
def test_the_exports_have_the_form_of_hyperfine(here: Path) -> None:
    given = [
        "--runs",
        "3",
        "--warmup",
        "0",
        "-L",
        "n",
        "1,2",
        "--export-json",
        "{}.json",
        "--export-csv",
        "{}.csv",
    ]
    theirs = [w.replace("{}", "theirs") for w in given]
    ours = [w.replace("{}", "ours") for w in given]
    subprocess.run(["hyperfine", "-N", *theirs, "echo {n}", "true {n}"], check=True, capture_output=True)
    assert command("ensemble", "-N", *ours, "--", "echo {n}", "--vs", "true {n}").status == 0
    found = {name: load_json((here / f"{name}.json").read_text())["results"] for name in ("theirs", "ours")}

    def shape(results: list[dict]) -> list:
        return sorted(
            [
                (
                    {k: type(v) for k, v in r.items() if k != "memory_usage_byte"},
                    len(r["times"]),
                    r["command"],
                    r["parameters"],
                )
                for r in results
            ],
            key=lambda x: x[2],
        )

    assert shape(found["ours"]) == shape(found["theirs"])
    heads = [(here / f"{name}.csv").read_text().splitlines()[0] for name in ("theirs", "ours")]
    assert heads[0] == heads[1]


def test_around_the_runs(here: Path) -> None:
    done = command("ensemble", "-r", 2, "-w", 1, "--setup", log("setup-{n}"), "--prepare", log("prepare-A"), "--prepare", log("prepare-B"),
                   "--cleanup", log("cleanup-{n}"), "-L", "n", "1,2", "--", log("A{n}"), "--vs", log("B{n}"))  # fmt: skip
    assert done.status == 0, done.err
    words = said(here)
    # Once for each combination: two commands and two values.
    assert words[:4] == ["setup-1", "setup-2", "setup-1", "setup-2"]
    assert words[-4:] == ["cleanup-1", "cleanup-2", "cleanup-1", "cleanup-2"]
    runs = words[4:-4]
    assert len(runs) == 2 * 4 * 3
    assert all(prepare == f"prepare-{run[0]}" for prepare, run in zip(runs[::2], runs[1::2], strict=True))
    done = command("ensemble", "-r", 1, "--setup", "echo no >&2; exit 4", "--", log("never"))
    assert done.status == 2 and "ended with status 4: no" in done.err and "never" not in said(here)


def test_cleanup_after_a_failure(here: Path) -> None:
    done = command("ensemble", "-r", 1, "--cleanup", log("cleanup"), "--", "false")
    assert done.status == 2 and said(here) == ["cleanup"]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--", "exit 3"], "'exit 3' ended with status 3, and printed nothing"),
        (["--", "echo why >&2; exit 3"], "ended with status 3: why; see to it that it works, or give --ignore-failure"),
        (["--", "kill -9 $$"], "was ended by signal 9"),
        (["--", "no-such-program 1"], "no-such-program cannot be started: No such file or directory"),
        (["--", "no-such-program | cat; exit 3"], "no-such-program: not found"),
        (["--"], "there is no command"),
        (["--", ""], "a command is empty"),
        (["--", "true", "--vs"], "--vs stands between two commands, and none follows the last one"),
        (["--vs", "true", "--", "false"], "--vs stands before --: write twinrun ensemble -- 'cmd A' --vs 'cmd B' (see: twinrun ensemble --help)"),
        (["--vss", "--", "true"], "(see: twinrun ensemble --help)"),
        (["--", "--vs", "true"], "--vs stands between two commands"),
        (["--", "true", "--vs", "--vs", "true"], "--vs stands between two commands"),
        (["--", "sleep 1", "sleep 2"], "'sleep 2' follows it; put --vs between commands"),
        (["--", "'"], "cannot be split into words"),
        (["-L", "x", "1,2", "--", "true"], "twinrun: the parameter x changes nothing; write {x} in a command"),
        (["-L", "x", "1,1", "--", "true {x}"], "x needs values, each once"),
        (["-L", "9", "1,2", "--", "true {9}"], "'9' is not a name of a parameter"),
        (["-L", "command", "1,2", "--", "true {command}"], "factors.command is the factor of [commands]"),
        (["-P", "x", "2", "1", "--", "true {x}"], "has no values"),
        (["-P", "x", "a", "1", "--", "true {x}"], "needs numbers"),
        (["-N", "--shell", "bash", "--", "true"], "contradict each other"),
        (["--shell", "bash", "--", "echo", "a"], "a shell takes one line"),
        (["--min-runs", 5, "--max-runs", 4, "--", "true"], "--min-runs 5 is more than --max-runs 4"),
        (["-n", "a", "--", "true", "--vs", "false"], "there are 2 commands and 1 names"),
        (["-p", "true", "-p", "true", "--", "true"], "there are 1 commands and 2 of --prepare"),
        (["true"], "there is no verb 'true'; put -- before a command"),
    ],
)  # fmt: skip
def test_one_clear_line(words: list[str], error: str) -> None:
    done = command("ensemble", *words)
    assert done.status == 2 and not done.out
    assert error in done.err and len(done.err.splitlines()) == 1


def test_failures_that_are_ignored(here: Path) -> None:
    done = command("ensemble", "-i", "-r", 2, "--export-json", "out.json", "--", "exit 3")
    assert done.status == 0
    assert load_json((here / "out.json").read_text())["results"][0]["exit_codes"] == [3, 3]
    done = command("ensemble", "-i", "-r", 2, "--", "kill -9 $$")
    assert done.status == 2 and "No run ended well" in done.out and "no run ended by itself" in done.err


def test_few_runs_say_what_it_takes() -> None:
    done = command("ensemble", "-r", 1, "-q", "--", "true")
    assert done.status == 0 and "(1 run); too few for an interval: it takes 6 or more" in done.out
    done = command("ensemble", "-r", 1, "-q", "--", "true", "--vs", "true")
    assert (
        done.status == 0
        and "cannot be decided: 1 block is too few for an interval; it takes 6 or more" in done.out
    )


def test_it_stops_when_it_knows(here: Path) -> None:
    done = command("ensemble", "--precision", 10, "--min-runs", 6, "-o", "kept", "--", "true", "--vs", "true")
    # Real times: on a busy machine six blocks may not be enough.
    assert done.status == 0 and 12 <= len(lines(here / "kept")) < 2 * 1000


def test_the_time_ends_it_between_blocks(here: Path) -> None:
    done = command(
        "ensemble",
        "--precision",
        1e-4,
        "--time",
        1e-3,
        "-w",
        0,
        "-o",
        "kept",
        "--",
        "true",
        "--vs",
        "false || true",
    )
    assert done.status == 0 and "note: the time was up" in done.out
    assert [x["block"] for x in lines(here / "kept")] == [0, 0]


def test_the_usual_time_waits_for_the_least_runs() -> None:
    assert CommandLine((("true",),)).time_after == 10
    text = command("ensemble", "init", "-o", "-", "--min-runs", 7, "--", "true").out
    assert "time = 60.0\ntime_after = 7\n" in text
    assert "time = 5.0\ntime_after = 1\n" in command("ensemble", "init", "-o", "-", "-t", 5, "--", "true").out
    assert "[stopping]" not in command("ensemble", "init", "-o", "-", "-r", 5, "--", "true").out


@pytest.mark.parametrize(
    ("when", "status"),
    [("warm-up", "before the first run ended"), ("run", "interrupted: 1 of at most 10 runs ended")],
)
def test_ctrl_c(here: Path, when: str, status: str) -> None:
    """The signal comes from the command itself, at a run that is known."""
    warmup = ["-w", "1" if when == "warm-up" else "0"]
    words = ["ensemble", *warmup, "-r", "10", "--", f"echo x >> log; kill -INT $RUNNER; {log('end')}"]
    done = subprocess.run(
        ["/bin/sh", "-c", 'export RUNNER=$$; exec "$@"', "sh", *COMMAND, *words],
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert done.returncode == 2 and status in done.stderr and len(done.stderr.splitlines()) == 1
    assert said(here) == ["x", "end"]
    assert ("median" in done.stdout) == (when == "run")


def test_shells(here: Path) -> None:
    def words(*given: object) -> list[str]:
        assert command("ensemble", "-r", 1, "-w", 0, "-o", "kept", *given).status == 0
        specs = [x for x in (here / "kept" / "study.toml").read_text().splitlines() if x.startswith("shell")]
        shutil.rmtree(here / "kept")
        return specs

    assert words("--", "true 'a b'") == []
    assert words("--", "true", "--vs", "true | true") == ["shell = true"]
    assert words("-N", "--", "true | true") == []
    assert words("-S", "bash -e", "--", "true") == ['shell = "bash -e"']
    # Braces are no sign of a shell where they are those of a parameter.
    assert words("-L", "x", "1,2", "--", "true {x}") == []
    note = command("ensemble", "-r", 1, "--", "true | true").out
    assert "/bin/sh ran the commands" in note


def test_words_are_run_as_they_are(here: Path) -> None:
    assert (
        command(
            "ensemble", "-r", 1, "-w", 0, "-o", "kept", "--", "printf", "%s\n", "a  b", "{c}", "$d"
        ).status
        == 0
    )
    assert (here / "kept" / "output" / "0-1" / "stdout").read_text() == "a  b\n{c}\n$d\n"


def test_levels_stand_in_a_line_as_they_are(here: Path) -> None:
    for shell in ("none", "sh"):
        done = command(
            "ensemble",
            "-r",
            1,
            "-w",
            0,
            "-S",
            shell,
            "-o",
            shell,
            "-L",
            "flags",
            "-a -b,-c",
            "--",
            "echo {flags} {{flags}} '{x}'",
        )
        assert done.status == 0, done.err
        texts = {(here / shell / "output" / f"{k}-1" / "stdout").read_text() for k in range(2)}
        assert texts == {"-a -b {-a -b} {x}\n", "-c {-c} {x}\n"}


def test_export_is_of_json(here: Path) -> None:
    assert command("ensemble", "-r", 2, "--export", "out.json", "--", "true").status == 0
    assert len(load_json((here / "out.json").read_text())["results"][0]["times"]) == 2


def test_init(here: Path) -> None:
    done = command(
        "ensemble",
        "init",
        "-r",
        2,
        "-L",
        "n",
        "1,2",
        "-n",
        "first",
        "-n",
        "ünï \U0001f600",
        "--",
        "true {n}",
        "--vs",
        "false {n}",
    )
    assert done.status == 0, done.err
    again = command("ensemble", "init", "--", "true")
    assert again.status == 2 and "study.toml: is there already" in again.err
    nowhere = command("ensemble", "init", "-o", "none/study.toml", "--", "true")
    assert nowhere.status == 2 and nowhere.err.startswith("twinrun: none/study.toml: No such file")
    assert command("ensemble", "run", "study.toml", "-q").status == 0
    assert Counter((x["factors"]["command"], x["status"]) for x in lines(here / "study")) == {
        ("first", "ok"): 4,
        ("ünï \U0001f600", "failed"): 4,
    }
    bad = command("ensemble", "init", "-o", "-", "-L", "n", "1,2", "--", "true")
    assert bad.status == 2 and "the parameter n changes nothing" in bad.err


def test_the_same_command_twice_has_two_names() -> None:
    text = study_text(CommandLine((("true",), ("true",), ("true",))))
    assert [x for x in text.splitlines() if x.startswith("[commands")] == [
        '[commands."true"]',
        '[commands."true (2)"]',
        '[commands."true (3)"]',
    ]


def test_text_that_is_no_unicode() -> None:
    with pytest.raises(TwinrunError, match="is not UTF-8"):
        study_text(CommandLine((("true \udcff",),)))


def test_scans() -> None:
    assert scan("x", "0", "1", "0.25") == ["0.00", "0.25", "0.50", "0.75", "1.00"]
    assert scan("x", "0.1", "0.3", "0.1") == ["0.1", "0.2", "0.3"]
    with pytest.raises(TwinrunError, match="more than 1000"):
        scan("x", "0", "1", "1e-9")


def test_commands() -> None:
    assert commands_of(["a b", "--vs", "c", "d"]) == (("a b",), ("c", "d"))


def test_help() -> None:
    done = command("ensemble", "--help")
    assert done.status == 0 and "[OPTIONS] -- COMMAND [--vs COMMAND]..." in done.out
    for word in ("--warmup", "--prepare", "--export-json", "report", "init"):
        assert word in done.out
    assert command("ensemble", "--warmup", 1, "--help").status == 0


def test_outputs_are_checked_before_anything_runs(here: Path) -> None:
    done = command("ensemble", "--export-json", "same", "--export-csv", "same", "--", log("never"))
    assert done.status == 2 and not (here / "log").exists()
    done = command("ensemble", "-o", "kept", "--export-json", "kept/study.toml", "--", log("never"))
    assert done.status == 2 and not (here / "log").exists()
    assert json.dumps(os.listdir(here)) == "[]"


def test_what_was_measured_is_said_where_something_after_it_fails(here: Path) -> None:
    done = command("ensemble", "-r", 3, "--cleanup", "false", "--", log("A"), "--vs", log("B"))
    assert done.status == 2 and "cleanup" in done.err and "ended with status 1" in done.err
    assert re.search(r"^echo A >> log +3 ", done.out, re.M)
    # The command makes a folder of the name, where there was nothing when the options were looked at.
    for option in ("--export-json", "--export-csv", "--export-markdown"):
        out = option[2:]
        done = command("ensemble", "-r", 1, "-w", 0, option, out, "--", f"{log('A')}; mkdir {out}")
        assert done.status == 2 and f"name another file with {option}" in done.err and out in done.err
        assert re.search(r"^echo A >> log; mkdir \S+ +1 ", done.out, re.M)


def test_a_line_that_cannot_be_split_is_named(here: Path) -> None:
    done = command("ensemble", "-r", 1, "--", "echo 'x")
    assert done.status == 2 and "cannot be split into words: no closing quotation" in done.err
    assert "study.toml" not in done.err


@pytest.mark.parametrize("option", ["--export-json", "--export-csv", "--export-markdown"])
def test_an_output_in_no_folder_is_refused_before_anything_runs(here: Path, option: str) -> None:
    done = command("ensemble", "-r", "2", option, here / "none" / "a", "--", "touch ran")
    assert done.status == 2 and "lies in a folder that is not there: nothing was done" in done.err, done.err
    assert not (here / "ran").exists()


def test_a_command_before_the_runs_that_fails_is_named(here: Path) -> None:
    done = command("ensemble", "-r", "2", "-q", "-p", "false", "--", "true")
    assert done.status == 2 and "prepare '/bin/sh -c false' ended with status 1" in done.err, done.err


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("true  a",), "true  a"),
        (("true --token SEC in.dat",), "true --token ... in.dat"),
        (("true https://u:SEC@h/x?sig=SEC --token SEC",), "true https://h/x --token ..."),
        (("true --password 'a SEC' | wc",), "true --password ..."),
        (("true --token $(cat SEC) b",), "true --token ..."),
        (('true --tok""en SEC b',), "true --token ... b"),
        (("true", "--token", "SEC", "a b"), "true --token ... 'a b'"),
        (("true", "token", "=", "SEC"), "true token = ..."),
        (("true", "Authorization:", "Bearer", "SEC"), "true Authorization: Bearer ..."),
        (("sh", "-c", "true --token SEC; SEC"), "sh -c 'true --token ...'"),
        (("true", "--key", "id", "--token", "--n", "2"), "true --key id --token --n 2"),
        (("true", "a b"), "true 'a b'"),
    ],
)
def test_a_command_is_named_without_its_secrets(words: tuple[str, ...], shown: str) -> None:
    assert shown_command(words) == shown
    document = pytest.importorskip("tomllib").loads(study_text(CommandLine((words,))))
    assert [*document["commands"]] == [shown]
    run = document["commands"][shown]["command"]
    assert run == (words[0] if len(words) == 1 else list(words)), "it is run as it is"


def test_no_output_shows_a_secret_of_a_command(here: Path) -> None:
    url = "true https://u:SECA@h/x?sig=SECB --token"
    outputs = ("--export-json", "h.json", "--export-csv", "h.csv", "--export-markdown", "h.md")
    done = command(
        "ensemble", "-r", 2, "-w", 0, "-o", "s", *outputs, "--", f"{url} SECC", "--vs", f"{url} SECD"
    )
    assert done.status == 0, done.err
    name = "true https://h/x --token ..."
    assert [x["command"] for x in load_json((here / "h.json").read_text())["results"]] == [
        name,
        f"{name} (2)",
    ]
    assert "SECC" in (here / "s" / "study.toml").read_text(), "which is what runs again"
    told = [done, command("ensemble", "plan", "s/study.toml"), command("ensemble", "report", "s", "--json", "r.json", "--html", "r.html")]  # fmt: skip
    told += [command("ensemble", "export", "s", f"x.{ending}") for ending in ("csv", "prom", "json")]
    texts = [x.out + x.err for x in told] + [p.read_text() for p in here.iterdir() if p.is_file()]
    texts += [p.read_text() for p in (here / "s").rglob("*") if p.is_file() and p.name != "study.toml"]
    assert len(texts) > 10 and any(name in text for text in texts)
    assert [text for text in texts if "SEC" in text] == []


@pytest.mark.parametrize(
    "words",
    [
        ["--", "false --token SEC"],
        ["-p", "false --token SEC", "--", "true"],
        ["-s", "false --token SEC", "--", "true"],
        ["-c", "false --token SEC", "--", "true"],
        ["--", "true --token SEC '"],
        ["--", "true --token", "SEC"],
        ["--shell", "bash", "--", "true", "--token", "SEC"],
        ["-N", "--", "token=SEC"],
        ["true --token SEC"],
    ],
)
def test_no_message_shows_a_secret_of_a_command(words: list[str]) -> None:
    done = (
        command("ensemble", "-r", 1, "-w", 0, *words) if words[0][0] == "-" else command("ensemble", *words)
    )
    assert done.status == 2 and done.err and "SEC" not in done.out + done.err
    assert "..." in done.err
