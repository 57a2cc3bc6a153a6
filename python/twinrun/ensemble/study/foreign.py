"""Lines of tasks from what other programs measured: what all readers share, and the readers of tables.

    reframe   performance logs of ReFrame 4, with their header: a task for each line
    sacct     Slurm's sacct --parsable2: a task for each job, or for each step of jobs with several steps
    csv       any table with a header and a column of times

Facts that a table lacks are null.
"""

from __future__ import annotations

import csv
import datetime
import io
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence

from ...arguments import names_given
from .templates import PLACES

__all__ = [
    "TIME_NAMES",
    "cells_in",
    "moment",
    "name_of",
    "number",
    "number_of",
    "read_csv",
    "read_reframe",
    "read_sacct",
    "seconds_in",
    "task_of",
    "time_of",
]

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "secs": 1.0, "second": 1.0, "seconds": 1.0,
          "m": 60.0, "min": 60.0, "minutes": 60.0, "h": 3600.0, "hours": 3600.0}  # fmt: skip
TIME_NAMES = (
    "wall",
    "time",
    "seconds",
    "elapsed",
    "runtime",
    "duration",
    "real_time",
    "wall_time",
    "walltime",
)
_SHORTEST, _LONGEST = 1e-12, 1e12  # seconds
_YEARS = 1e9  # seconds since 1970 from 2001 on: a column `time` of such numbers has moments
_LATEST = 1e11  # seconds since 1970: later ones are no seconds, but milliseconds or the like
_BLOCKS = 1_000_000  # as many as a study may have
_STATES = {"COMPLETED": "ok", "FAILED": "failed", "TIMEOUT": "timeout", "DEADLINE": "timeout", "CANCELLED": "killed",
           "NODE_FAIL": "killed", "REQUEUED": "killed", "PREEMPTED": "killed", "OUT_OF_MEMORY": "killed", "BOOT_FAIL": "killed"}  # fmt: skip


def name_of(name: object) -> str:
    """A valid name of a factor."""
    text = re.sub(r"[^A-Za-z0-9_-]", "_", str(name))
    text = text if re.match(r"[A-Za-z_]", text) else f"_{text}"
    # Names with a meaning of their own would be read as that.
    return f"{text}_" if text in (*PLACES, "interpose") else text


def _named(factors: Mapping[str, object]) -> dict[str, str]:
    """The factors by valid names. Two names that become one stay two factors."""
    found: dict[str, str] = {}
    for name, level in factors.items():
        valid = name_of(name)
        while valid in found:
            valid += "_"
        found[valid] = str(level)
    return found


def task_of(factors: Mapping[str, object], **known: object) -> dict:
    """A line with these factors and facts; all others are null."""
    named = _named(factors)
    line: dict = {
        "version": 1, "attempt": 1, "seed": 0, "factors": named,
        "verified": dict.fromkeys(named), "contradicted": [], "status": "ok", "exit": None, "signal": None,
        "submit": None, "start": None, "end": None, "wall": None, "user": None, "system": None, "run_queue_delay": None,
        "node": None, "cores": [], "engine": "imported", "context_switches": None, "page_faults": None,
        "max_memory_bytes": None, "io": None, "pressure": None, "frequency_hz": None, "temperature_c": None,
        "environment": None, "metrics": {}, "metrics_missing": [], "profiles": [], "capture": None, "results": None,
        "sampling": None, "interrupted": False,
    }  # fmt: skip
    return {**line, **known}


def number(value: object) -> float | None:
    """A finite number; None for anything else."""
    return (
        float(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        else None
    )


def is_time(value: float | None) -> bool:
    """Whether a number is a time that a program may take: 0, or between a picosecond and 30,000 years."""
    return value is not None and (value == 0 or _SHORTEST <= value <= _LONGEST)


def time_of(value: object, place: str) -> float:
    """A time of a program. Raises ValueError, which names the place, for anything else."""
    found = number(value)
    if not is_time(found) or found is None:
        said = "there is no time" if value is None else f"{value!r:.40} is no time"
        raise ValueError(f"{place}: {said}")
    return found


def seconds_in(unit: str) -> float | None:
    """Seconds in a unit of time; None for other units."""
    return _UNITS.get(unit.strip().lower())


def number_of(text: str | None) -> float | None:
    """The finite number that a text is; None for anything else."""
    try:
        return number(float(text or ""))
    except ValueError:
        return None


def moment(text: str | None) -> float | None:
    """Seconds since 1970, of such a number or of a date and time (local, where it names no zone)."""
    if (found := number_of(text)) is not None:
        return found if abs(found) <= _LATEST else None
    try:
        return datetime.datetime.fromisoformat((text or "").strip().replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return None


def cells_in(text: str, delimiter: str, *, quoted: bool = True) -> list[list[str]]:
    """The rows of a table, empty ones left out. quoted: cells may stand in quotation marks; otherwise these
    are characters like others.

    Raises ValueError.
    """
    lines = io.StringIO(text, newline=None)
    # Without `strict` a mark that is never closed would swallow all rows after it.
    if quoted:
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
    else:
        reader = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE, strict=True)
    try:
        return [row for row in reader if row]
    except csv.Error as e:
        if "field limit" in str(e):
            said = f"a cell that ends in line {reader.line_num} has more than {csv.field_size_limit()} characters"
            raise ValueError(f"{said}: is a quotation mark not closed?") from None
        raise ValueError(
            f"line {reader.line_num}: a quotation mark is not closed, or something stands behind it"
        ) from None


def _rows(text: str, delimiter: str, *, quoted: bool = True) -> list[dict[str, str]]:
    """The rows of a table with a header. Raises ValueError where a row has another number of cells."""
    table = cells_in(text, delimiter, quoted=quoted)
    head = [name.strip() for name in table[0]] if table else []
    if len(set(head)) != len(head):
        raise ValueError("two columns have one name")
    for place, row in enumerate(table[1:], 2):
        if len(row) != len(head):
            raise ValueError(f"row {place} has {len(row)} cells, and the header {len(head)}")
    return [dict(zip(head, (cell.strip() for cell in row), strict=True)) for row in table[1:]]


# ---- ReFrame -------------------------------------------------------------------------------------


_NOTHING = frozenset({"", "null", "none", "nan"})  # what a cell of a test that did not measure says


def read_reframe(text: str) -> list[dict]:
    """The time is the first performance variable with a unit of time; all variables are metrics."""
    found = []
    for place, row in enumerate(_rows(text, "|", quoted=False), 2):
        names = [
            key.removesuffix("_value") for key in row if key.endswith("_value") and f"{key[:-6]}_unit" in row
        ]
        metrics: dict[str, float] = {}
        wall = None
        for name in names:
            text = row[f"{name}_value"]
            value = number_of(text)
            if value is None:
                if text.lower() not in _NOTHING:
                    raise ValueError(f"row {place}, column {name}_value: {text!r:.40} is not a number")
                continue
            metrics[name] = value
            scale = seconds_in(row[f"{name}_unit"])
            if wall is None and scale is not None:
                wall = value * scale
        test, *parameters = (row.get("name") or row.get("short_name") or "test").split(" %")
        factors: dict[str, object] = {"test": test.split(" ")[0]}
        factors |= {k: v for k, _, v in (p.partition("=") for p in parameters)}
        factors |= {k: row[k] for k in ("system", "partition", "environ") if row.get(k)}
        status = "ok" if row.get("result", "pass") in ("pass", "xpass") else "failed"
        exit_ = number_of(row.get("job_exitcode"))
        found.append(
            task_of(
                factors,
                wall=wall,
                end=moment(row.get("job_completion_time_unix")) or moment(row.get("job_completion_time")),
                submit=moment(row.get("job_submit_time")),
                node=row.get("job_nodelist") or None,
                exit=None if exit_ is None else int(exit_),
                status=status,
                metrics=metrics,
            )
        )
    return found


# ---- Slurm ---------------------------------------------------------------------------------------


def _elapsed(text: str | None) -> float | None:
    """[days-][hours:]minutes:seconds[.fraction]"""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)", (text or "").strip())
    if match is None:
        return None
    days, hours, minutes, rest = (float(x or 0) for x in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest


def _bytes(text: str | None) -> int | None:
    match = re.fullmatch(r"(\d+(?:\.\d*)?)([KMGTP]?)", (text or "").strip())
    return int(float(match[1]) * 1024 ** " KMGTP".index(match[2] or " ")) if match else None


def _jobs_or_steps(rows: Iterable[dict[str, str]]) -> list[dict[str, str]]:
    """A row for each job; of a job with several steps one for each of these.

    A job that was put back into the queue is listed again (`sacct --duplicates`), before the steps that it
    has then.
    """
    steps: dict[tuple[str, int], list[dict[str, str]]] = {}
    jobs: dict[tuple[str, int], dict[str, str]] = {}
    again: dict[str, int] = {}  # which time the job is listed
    for row in {tuple(row.items()): row for row in rows}.values():  # lists of jobs may overlap
        job, dot, step = row["JobID"].partition(".")
        if not dot:
            again[job] = again.get(job, -1) + 1
            jobs[job, again[job]] = row
        elif step[:1].isdigit():
            steps.setdefault((job, max(again.get(job, 0), 0)), []).append(row)
    tasks = []
    for key in dict.fromkeys([*jobs, *steps]):
        own = steps.get(key, [])
        # Facts that the accounting has for one step only are facts of the job too.
        whole = (
            {**{k: v for k, v in own[0].items() if v}, **{k: v for k, v in jobs[key].items() if v}}
            if key in jobs and own
            else jobs.get(key)
        )
        tasks += own if len(own) > 1 or whole is None else [whole]
    return tasks


def _complete(tasks: Sequence[dict]) -> None:
    """Gives a task without a factor the level that all others like it have.

    The accounting has the number of processes for steps only, and a job may have none.
    """
    for name in dict.fromkeys(name for task in tasks for name in task["factors"]):

        def others(task: Mapping, name: str = name) -> tuple:
            return tuple(sorted((k, v) for k, v in task["factors"].items() if k != name))

        known: dict[tuple, set[str]] = {}
        for task in tasks:
            if name in task["factors"]:
                known.setdefault(others(task), set()).add(task["factors"][name])
        for task in tasks:
            of_like = known.get(others(task), set())
            if name not in task["factors"] and len(of_like) == 1:
                task["factors"][name] = next(iter(of_like))
                task["verified"] = dict.fromkeys(task["factors"])


def _wall(row: dict[str, str], start: float | None, end: float | None) -> float | None:
    """The time of a job in seconds, None where no column has it. Raises ValueError."""
    wall = number_of(row.get("ElapsedRaw"))
    wall = _elapsed(row.get("Elapsed")) if wall is None else wall
    for name in ("ElapsedRaw", "Elapsed"):
        if wall is None and row.get(name):
            raise ValueError(f"job {row['JobID']:.40}, column {name}: {row[name]!r:.40} is no time")
    if wall is None and start is not None and end is not None:
        wall = end - start
    return wall


_SACCT_FACTORS = {
    "JobName": "job",
    "Partition": "partition",
    "NNodes": "nodes",
    "NTasks": "tasks",
    "NCPUS": "cpus",
    "AllocCPUS": "cpus",
}


def read_sacct(text: str) -> list[dict]:
    """Jobs that have ended; of a job with several steps its steps, except `batch`, `extern` and
    `interactive`.
    """
    first = text.split("\n", 1)[0]
    if first.endswith("|"):  # --parsable
        text = "\n".join(line.removesuffix("|") for line in text.splitlines())
    found = []
    attempts: dict[str, int] = {}
    for row in _jobs_or_steps(_rows(text, "|", quoted=False)):
        words = row.get("State", "COMPLETED").split()
        status = _STATES.get(words[0].rstrip("+") if words else "")
        if status is None:  # it runs, or waits
            continue
        start, end = moment(row.get("Start")), moment(row.get("End"))
        wall = _wall(row, start, end)
        if wall is None and status == "ok":
            raise ValueError(
                f"job {row['JobID']:.40} has no time: give sacct --format with Elapsed, or Start and End"
            )
        attempts[row["JobID"]] = attempts.get(row["JobID"], 0) + 1
        code, _, signal = row.get("ExitCode", "").partition(":")
        node = row.get("NodeList", "")
        found.append(
            task_of(
                {name: row[key] for key, name in _SACCT_FACTORS.items() if row.get(key)},
                wall=wall,
                submit=moment(row.get("Submit")),
                start=start,
                end=end,
                user=_elapsed(row.get("UserCPU")),
                system=_elapsed(row.get("SystemCPU")),
                max_memory_bytes=_bytes(row.get("MaxRSS")),
                node=node if node and not re.search(r"[\[,]|None", node) else None,
                exit=int(code) if code.isdigit() else None,
                signal=int(signal) if signal.isdigit() and int(signal) else None,
                status=status,
                attempt=attempts[row["JobID"]],
                imported_name=row["JobID"],
            )
        )
    _complete(found)
    return found


# ---- CSV -----------------------------------------------------------------------------------------


def _time_column(head: Sequence[str], given: str) -> tuple[str, float]:
    """The column of times, and seconds in its unit. Raises ValueError."""
    if given:
        if given not in head:
            raise ValueError(f"there is no column {given!r:.60}: there are {', '.join(head):.200}")
        named = [given]
    else:
        named = [name for name in head if _split(name)[0].lower() in TIME_NAMES]
    if len(named) > 1:
        raise ValueError(
            f"which column has the times, {' or '.join(map(repr, named)):.200}? Name it with --value"
        )
    if not named:
        raise ValueError(
            f"which column has the times? There are {', '.join(head):.200}: name one with --value"
        )
    unit = _split(named[0])[1] or "s"
    scale = seconds_in(unit)
    if scale is None:
        raise ValueError(
            f"column {named[0]!r:.60}: {unit!r:.20} is not a unit of time that is known: there are {', '.join(_UNITS)}"
        )
    return named[0], scale


def _split(name: str) -> tuple[str, str]:
    """'time (ms)', 'time_ms', 'time [ms]' as name and unit."""
    match = re.fullmatch(r"(.*?)\s*[\[(](\S+)[\])]", name) or re.fullmatch(r"(.+)_(ns|us|ms|s|sec|min)", name)
    return (match[1].strip(), match[2]) if match else (name, "")


_STATUSES = ("ok", "failed", "timeout", "killed")
_OTHER_WORDS = {"": "", "success": "ok", "succeeded": "ok", "pass": "ok", "passed": "ok", "fail": "failed", "error": "failed"}  # fmt: skip
# A task may wait inside of its start and end, and clocks are read one after the other: no more.
_CLOCKS = 1.0  # seconds, and
_LONGER = 0.01  # of the span


def _facts(row: Mapping[str, str], place: int) -> dict[str, object]:
    """What a row has of the facts that have a meaning. Raises ValueError for a cell that is none of them."""
    known: dict[str, object] = {}

    def refused(name: str, what: str) -> ValueError:
        return ValueError(f"row {place}, column {name!r}: {row[name]!r:.40} is {what}")

    for name in ("submit", "start", "end"):
        if name in row:
            known[name] = moment(row[name])
            if known[name] is None:
                raise refused(
                    name,
                    "no moment: write seconds since 1970, or a date and time such as 2026-01-31 12:00:00",
                )
    for name in ("user", "system", "released"):
        if name in row:
            known[name] = number_of(row[name])
            if known[name] is None:
                raise refused(name, "no number")
    for name in ("exit", "block", "replica", "slot"):
        if name in row:
            value = number_of(row[name])
            if value is None:
                raise refused(name, "no number")
            if value != int(value) or abs(value) >= _BLOCKS or (value < 0 and name != "exit"):
                what = "no exit status" if name == "exit" else f"none of the numbers 0, 1, ..., {_BLOCKS - 1}"
                raise refused(name, what)
            known[name] = int(value)
    if "node" in row:
        known["node"] = row["node"]
    if "cores" in row:
        try:
            known["cores"] = [int(c) for c in json.loads(row["cores"])]
        except (ValueError, TypeError):
            raise refused("cores", "no list of cores, such as [0, 1]") from None
    said = row.get("status", "")
    status = _STATES.get(said.upper().split(" ")[0].rstrip("+")) or _OTHER_WORDS.get(
        said.lower(), said.lower()
    )
    if status not in ("", *_STATUSES):
        raise refused("status", f"no status: write one of {', '.join(_STATUSES)}, or a state of Slurm")
    known["status"] = status or ("failed" if known.get("exit") else "ok")
    return known


def _lasted(known: Mapping[str, object], wall: float | None, place: int) -> None:
    """Raises ValueError where start and end contradict each other or the time."""
    start, end = known.get("start"), known.get("end")
    if not (isinstance(start, float) and isinstance(end, float)):
        return
    span = end - start
    if span < 0:
        raise ValueError(f"row {place}: it ends {-span:.6g} s before it starts")
    if wall is not None and wall > span + _CLOCKS + _LONGER * span:
        raise ValueError(
            f"row {place}: it took {wall:.6g} s, and there are {span:.6g} s between its start and its end"
        )


def _places(row: Mapping[str, str], conditions: Sequence[str]) -> dict[str, int]:
    """At which place its study lists the level of each factor, as exports of CSV say."""
    found = {}
    for name in (c.removeprefix("factors.") for c in conditions):
        at = number_of(row.get(f"level_of.{name}"))
        if at is not None:
            found[name_of(name)] = int(at)
    return found


def _comes_again(column: str, rows: Sequence[Mapping[str, str]]) -> bool:
    """Whether a column has fewer words than half as many as rows."""
    return 2 * len({row[column] for row in rows}) <= len(rows)


def read_csv(text: str, value: str = "", factors: Sequence[str] = ()) -> list[dict]:
    """value: the column of times; by default one with such a name. factors: columns of conditions, beside
    those of words that come again; by default all those with a cell that is not a number. Columns of numbers
    are metrics.
    """
    first = text.split("\n", 1)[0]
    delimiter = max(",;\t|", key=first.count)
    rows = _rows(text, delimiter)
    if not rows:
        return []
    head = list(rows[0])
    time, scale = _time_column(head, value)
    factors = names_given(factors, "factors")
    for name in factors:
        if name not in head:
            raise ValueError(f"there is no column {name!r:.60}: there are {', '.join(head):.200}")
        if name == time:
            raise ValueError(f"column {name!r:.60} has the times, and is no condition")
    own = (
        {"start", "end", "node", "status", "user", "system", "submit", "exit", "block"}
        - {time}
        - set(factors)
    )
    # Files of `twinrun ensemble export` have names for these, and other facts.
    ours = any(name.startswith("factors.") for name in head)
    own |= {"cores", "replica", "slot", "released"} & set(head) if ours else set()
    conditions = list(factors) or [name for name in head if name.startswith("factors.")]
    if not ours:
        words = [
            n
            for n in head
            if n != time and n not in own and any(r[n] and number_of(r[n]) is None for r in rows)
        ]
        # A condition that is left out counts as noise, and hides what it does. Remarks come once.
        conditions = (
            [n for n in head if n in conditions or (n in words and _comes_again(n, rows))]
            if conditions
            else words
        )
    moments = (_YEARS <= (number_of(r[time]) or 0.0) * scale < _LATEST for r in rows)
    if not value and _split(time)[0].lower() == "time" and all(moments):
        raise ValueError(
            f"column {time!r:.60}: {rows[0][time]!r:.40} is a moment, seconds since 1970, and no time that a task takes: "
            "name that column with --value, and this one start"
        )
    metrics = [
        n
        for n in head
        if n != time and n not in own and n not in conditions and (n.startswith("metrics.") or not ours)
    ]
    found = []
    for place, row in enumerate(rows, 2):
        wall = number_of(row[time])
        if (row[time] and wall is None) or not (wall is None or is_time(wall * scale)):
            raise ValueError(
                f"row {place}, column {time!r:.60}: {row[time]!r:.40} is no time: write 0, or a number of "
                f"{_SHORTEST:g} to {_LONGEST:g} s, or nothing"
            )
        known = _facts({k: row[k] for k in own if row.get(k)}, place)
        if ours and row.get("guessed_block") == "True":
            known.pop("block", None)
        _lasted(known, None if wall is None else wall * scale, place)
        if wall is None and known["status"] == "ok":
            raise ValueError(f"row {place}, column {time!r:.60}: a task that succeeded has no time")
        found.append(
            task_of(
                {name.removeprefix("factors."): row[name] for name in conditions},
                wall=None if wall is None else wall * scale,
                metrics={
                    n.removeprefix("metrics."): v for n in metrics if (v := number_of(row[n])) is not None
                },
                **({"levels": _places(row, conditions)} if ours else {}),
                **known,
            )
        )
    return found
