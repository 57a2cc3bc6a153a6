"""Closed and full standard streams: the status is the verdict's, or 2 where a result could not be printed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import click
import numpy as np
import pytest
from commands import COMMAND, HANG

import twinrun

CLOSED_OUT, FULL_OUT, CLOSED_ERR, FULL_ERR = ">&-", ">/dev/full", "2>&-", "2>/dev/full"


def redirected(how: str, *arguments: object, **options: object) -> subprocess.CompletedProcess:
    """Runs a verb with a shell's redirection."""
    return subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {how}', "sh", *COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=HANG,
        **options,
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("streams")
    for name, last in (("a", 0.0), ("same", 0.0), ("b", 1.0)):
        with twinrun.Run(folder / name, atol=0.1) as run:
            run.capture(0, {"x": np.array([0.0, last])})
    return folder


@pytest.mark.parametrize("how", [CLOSED_OUT, FULL_OUT])
@pytest.mark.parametrize(
    "verb",
    [
        ["compare", "a", "same"],
        ["compare", "a", "b"],
        ["compare", "a", "b", "--json", "-"],
        ["verify", "a"],
        ["log", "a"],
        ["show", "a"],
        ["--version"],
        ["--help"],
    ],
)
def test_a_result_that_cannot_be_printed_is_status_2(verb, how, runs):
    done = redirected(how, *verb, cwd=runs)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("twinrun: standard output cannot be written: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("how", [CLOSED_OUT, FULL_OUT, "<&- >&- 2>&-", CLOSED_ERR, FULL_ERR])
@pytest.mark.parametrize(("other", "status"), [("same", 0), ("b", 1), ("absent", 2)])
def test_a_verdict_that_prints_nothing_needs_no_stream(other, status, how, runs):
    done = redirected(how, "compare", "-q", "a", other, cwd=runs)
    assert done.returncode == status
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("how", [CLOSED_ERR, FULL_ERR])
@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["compare", "a", "same"], 0),
        (["compare", "a", "b"], 1),
        (["compare", "a", "b", "--json", "-"], 1),  # the text goes to standard error then
        (["compare", "a", "absent"], 2),
        (["no-such-verb"], 2),
    ],
)
def test_the_status_does_not_depend_on_standard_error(arguments, status, how, runs):
    assert redirected(how, *arguments, cwd=runs).returncode == status


def test_no_file_takes_the_number_of_a_closed_stream(runs, tmp_path):
    """What is printed would go into it, which may be the user's file."""
    report = tmp_path / "report.json"
    done = redirected("<&- >&- 2>&-", "compare", "a", "b", "--json", report, cwd=runs)
    assert done.returncode == 2  # the text could not be printed
    assert report.read_text().startswith("{") and report.read_text().endswith("}\n")
    program = "from twinrun.streams import prepare; prepare(); import os; print(os.open('/', os.O_RDONLY))"
    shell = ["/bin/sh", "-c", 'exec "$0" -c "$1" <&- 2>&-', COMMAND[0], program]
    done = subprocess.run(shell, capture_output=True, text=True, timeout=HANG)
    assert int(done.stdout) > 2


def test_a_closed_output_stays_closed_under_its_other_name(runs):
    done = redirected(CLOSED_OUT, "compare", "a", "b", "-q", "--json", "/dev/stdout", cwd=runs)
    assert done.returncode == 2 and "cannot write the JSON report" in done.stderr


@pytest.mark.parametrize("how", [CLOSED_OUT, FULL_OUT])
def test_the_same_without_buffers(how, runs):
    done = redirected(how, "compare", "a", "b", cwd=runs, env=os.environ | {"PYTHONUNBUFFERED": "1"})
    assert done.returncode == 2 and done.stderr.count("\n") == 1


@pytest.mark.skipif(
    not hasattr(click.exceptions, "NoArgsIsHelpError"), reason="click before 8.2 prints the help itself"
)
def test_a_result_of_which_only_a_part_is_written_is_status_2(runs, tmp_path):
    # Without buffers a write that ends at the limit writes a part, and is no error of the system.
    done = subprocess.run(
        [
            *("/bin/sh", "-c", 'ulimit -f 1; out=$1; shift; exec "$@" >"$out"', "sh", str(tmp_path / "out")),
            *(*COMMAND, "compare", "a", "b", "--json", "-"),
        ],
        cwd=runs,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert done.returncode == 2, done.stderr
    assert "standard output cannot be written: File too large" in done.stderr
    assert 0 < (tmp_path / "out").stat().st_size <= 1024


@pytest.mark.parametrize("group", ["golden", "ensemble"])
def test_a_group_without_a_verb_prints_its_help_as_lines(group, runs):
    done = redirected("", group, cwd=runs)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith(f"Usage: twinrun {group}") and "\\n" not in done.stderr
