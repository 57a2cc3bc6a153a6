"""Running the command line: in this process where that is enough, as a process where signals and pipes matter."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from twinrun.cli import main

# Seconds. What takes so long hangs: ten times what the slowest of these takes on a quiet machine, so that a busy one fails nothing.
HANG = 1200

COMMAND = [sys.executable, "-m", "twinrun"]


@dataclass
class Outcome:
    """What a command did."""

    status: int
    out: str
    err: str

    @property
    def last(self) -> str:
        """Last line of standard output."""
        return self.out.splitlines()[-1]


def command(*arguments: object) -> Outcome:
    """Runs a verb in this process."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)]
    handler = signal.getsignal(signal.SIGINT)
    try:
        with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
            main([os.fspath(a) if isinstance(a, Path) else str(a) for a in arguments])
    except SystemExit as e:
        out, err = (s.buffer.getvalue().decode() for s in streams)
        return Outcome(e.code, out, err)
    finally:
        signal.signal(signal.SIGINT, handler)
    raise AssertionError("main() must exit")


def process(*arguments: object, python: tuple = ("-m", "twinrun"), **options: object) -> Outcome:
    """Runs a verb as a process."""
    p = subprocess.run(
        [sys.executable, *map(str, (*python, *arguments))],
        capture_output=True,
        text=True,
        timeout=HANG,
        **options,
    )
    return Outcome(p.returncode, p.stdout, p.stderr)


def load_json(text: str) -> dict:
    """Strict JSON: no NaN, no Infinity."""

    def refuse(name: str) -> object:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def check_error(outcome: Outcome, *said: str) -> str:
    """It was an error as errors are: status 2, one clear line, nothing that looks like a result. Returns the line."""
    assert outcome.status == 2, outcome
    assert outcome.err.startswith("twinrun: ") and outcome.err.endswith("\n"), outcome
    assert outcome.err.count("\n") == 1, outcome
    assert "Traceback" not in outcome.err and "defect of twinrun" not in outcome.err, outcome
    for word in ("same", "different", "intact"):
        assert not any(line.startswith(word) for line in outcome.out.splitlines()), outcome
    for text in said:
        assert text in outcome.err, (text, outcome)
    return outcome.err


def cannot_compare(a: object, b: object, folder: Path, *said: str, options: tuple = ()) -> str:
    """`twinrun compare a b` fails as `check_error` says, and its JSON says so too."""
    report = folder / "report.json"
    report.write_text('{"verdict": "same"}')  # of an earlier comparison
    line = check_error(command("compare", a, b, "--json", report, *options), *said)
    document = load_json(report.read_text())
    assert document["verdict"] == "incomparable" and document["error"]
    # Nothing was compared, or the problem is named beside what was.
    assert document.get("problems") or (document["fields"] == [] and document["first_divergence"] is None)
    return line
