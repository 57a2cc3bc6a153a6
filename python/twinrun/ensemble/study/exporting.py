"""Tasks for other programs: Parquet, hyperfine's JSON and CSV, OpenMetrics.

option, of writers of text: the option that named the target, for messages; empty where none did.
"""

from __future__ import annotations

import io
import json
import os
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import MissingFile, MissingPackage
from ...outputs import csv_writer, replacing
from .design import cells
from .record import read_lines
from .shown import shown_line, shown_words
from .study import COMMAND, Study, read_study
from .templates import fill

__all__ = [
    "WRITERS",
    "flat_rows",
    "hyperfine_results",
    "write_csv",
    "write_hyperfine",
    "write_hyperfine_csv",
    "write_openmetrics",
    "write_parquet",
]


def _written(target: str | os.PathLike[str], text: str, kind: str, option: str) -> None:
    """`write_whole`. Reports, and the comparisons that they know, are imported where something is exported:
    otherwise they are a quarter of what a study takes to start.
    """
    from ...report.document import write_whole

    write_whole(os.fspath(target), text, kind, option)


def _flat(value: Mapping, prefix: str, row: dict) -> None:
    for key, item in value.items():
        name = f"{prefix}{key}"
        if isinstance(item, Mapping) and key not in ("capture", "results"):
            _flat(item, f"{name}.", row)
        elif isinstance(item, (Mapping, list)) and key not in ("cores", "frequency_hz"):
            row[name] = json.dumps(item)
        else:
            row[name] = item


def flat_rows(folder: str | os.PathLike[str]) -> list[dict]:
    """A row for each attempt: nested keys joined by dots, lists of numbers unchanged, other values as JSON.

    Raises MissingFile.
    """
    path = Path(folder) / "tasks.jsonl"
    if not path.is_file():
        raise MissingFile("there are no tasks", where=path)
    rows = []
    for line in read_lines(path)[0]:
        row: dict = {}
        _flat(line, "", row)
        rows.append(row)
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: row.get(name) for name in names} for row in rows]


def write_parquet(folder: str | os.PathLike[str], target: str | os.PathLike[str]) -> int:
    """Writes the tasks of a study; returns how many. Raises MissingPackage without pyarrow."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise MissingPackage.of("pyarrow", "twinrun[parquet]", target) from None
    rows = flat_rows(folder)
    for name in rows[0] if rows else ():
        kinds = {type(r[name]) for r in rows if r[name] is not None}
        if kinds == {int, float}:
            for row in rows:
                row[name] = None if row[name] is None else float(row[name])
    table = pyarrow.Table.from_pylist(rows)
    with replacing(target) as temporary:
        pyarrow.parquet.write_table(table, temporary)
    return len(rows)


# ---- hyperfine -----------------------------------------------------------------------------------


def _command_of(study: Study, cell: Mapping[str, str]) -> str:
    """The command of a cell as a line, or the name that was given to it."""
    values = {f.name: f.value(cell[f.name]) for f in study.factors}
    # Places of single tasks stay as they are.
    kept = {name: "{" + name + "}" for name in ("task", "seed", "folder", "repetition", "block", "attempt", "study", "here",
                                                 "cores", "core_count", "node", "rank", "replica")}  # fmt: skip
    chosen = study.commands.get(cell.get(COMMAND, ""))
    if chosen is None:
        words: str | Sequence[str] = study.command[0] if study.shell else study.command
    else:
        words = chosen.words
        name = cell[COMMAND]
        # A command without a name of its own is named after its text, braces as they were typed.
        typed = [
            w.replace("{{", "{").replace("}}", "}") for w in ([words] if isinstance(words, str) else words)
        ]
        if name != (shown_line(typed[0]) if isinstance(words, str) else shown_words(typed)):
            return name
    if isinstance(words, str):
        return shown_line(fill(words, {**kept, **values}).replace("{{", "{").replace("}}", "}"))
    return shown_words([fill(w, {**kept, **values}) for w in words])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def hyperfine_results(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """An entry for each condition with a run that ended well, with hyperfine's keys. Raises MissingFile."""
    path = Path(folder)
    if not (path / "tasks.jsonl").is_file():
        raise MissingFile("there are no tasks", where=path / "tasks.jsonl")
    study = read_study(path / "study.toml")
    lines = [
        x for x in read_lines(path / "tasks.jsonl")[0] if x["status"] == "ok" and x.get("wall") is not None
    ]
    found = []
    for cell in cells(study):
        own = sorted((x for x in lines if x["factors"] == cell), key=lambda x: x["task"])
        if not own:
            continue
        times = [x["wall"] for x in own]
        entry: dict[str, Any] = {
            "command": _command_of(study, cell),
            "mean": statistics.fmean(times),
            "stddev": statistics.stdev(times) if len(times) > 1 else None,
            "median": statistics.median(times),
            "user": _mean([x.get("user") for x in own]),
            "system": _mean([x.get("system") for x in own]),
            "min": min(times),
            "max": max(times),
            "times": times,
            "exit_codes": [x.get("exit") for x in own],
        }
        if parameters := {k: v for k, v in cell.items() if k != COMMAND}:
            entry["parameters"] = parameters
        found.append(entry)
    return found


def write_hyperfine(folder: str | os.PathLike[str], target: str | os.PathLike[str], option: str = "") -> int:
    """Writes what hyperfine's --export-json does; returns how many conditions."""
    found = hyperfine_results(folder)
    _written(target, json.dumps({"results": found}, indent=2, allow_nan=False) + "\n", "JSON", option)
    return len(found)


def write_hyperfine_csv(
    folder: str | os.PathLike[str], target: str | os.PathLike[str], option: str = ""
) -> int:
    """Writes what hyperfine's --export-csv does; returns how many conditions."""
    found = hyperfine_results(folder)
    keys = ("command", "mean", "stddev", "median", "user", "system", "min", "max")
    names = list(dict.fromkeys(n for entry in found for n in entry.get("parameters", {})))
    text = io.StringIO()
    out = csv_writer(text)
    out.writerow([*keys, *(f"parameter_{n}" for n in names)])
    for entry in found:
        values = [entry[k] for k in keys]
        out.writerow(
            [
                *("" if v is None else v for v in values),
                *(entry.get("parameters", {}).get(n, "") for n in names),
            ]
        )
    _written(target, text.getvalue(), "CSV", option)
    return len(found)


# ---- CSV and OpenMetrics -------------------------------------------------------------------------


def write_csv(folder: str | os.PathLike[str], target: str | os.PathLike[str], option: str = "") -> int:
    """Writes a row for each attempt, as in Parquet; lists as JSON. Returns how many.

    `level_of.NAME` is the place at which the study lists the level of a factor: 0 is the base.
    """
    rows = flat_rows(folder)
    if (Path(folder) / "study.toml").is_file():
        for factor in read_study(Path(folder) / "study.toml").factors:
            places = {level: at for at, level in enumerate(factor.levels)}
            for row in rows:
                row[f"level_of.{factor.name}"] = places.get(str(row.get(f"factors.{factor.name}")))
    text = io.StringIO()
    out = csv_writer(text)
    names = list(rows[0]) if rows else []
    out.writerow(names)
    for row in rows:
        out.writerow(
            [
                "" if v is None else json.dumps(v) if isinstance(v, (list, Mapping)) else v
                for v in row.values()
            ]
        )
    _written(target, text.getvalue(), "CSV", option)
    return len(rows)


def _label(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_]", "_", name)


def _labels(pairs: Mapping[str, object]) -> str:
    def text(value: object) -> str:
        return str(value).replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')

    return "{" + ",".join(f'{k}="{text(v)}"' for k, v in pairs.items() if v is not None) + "}"


def write_openmetrics(
    folder: str | os.PathLike[str], target: str | os.PathLike[str], option: str = ""
) -> int:
    """Writes OpenMetrics text: times of attempts that ended well, at their end, and how many ended
    how. Returns how many.
    """
    path = Path(folder) / "tasks.jsonl"
    if not path.is_file():
        raise MissingFile("there are no tasks", where=path)
    lines = read_lines(path)[0]
    study = read_study(Path(folder) / "study.toml")
    name = study.name if "name" in study.document else Path(folder).resolve().name
    times: list[str] = []
    processor: list[str] = []
    counts: dict[tuple, int] = {}
    for line in lines:
        factors: dict[str, object] = {}
        for factor, level in line["factors"].items():
            label = f"factor_{_label(factor)}"
            while label in factors:  # two names that differ by a sign only
                label += "_"
            factors[label] = level
        key = (line["status"], tuple(factors.items()))
        counts[key] = counts.get(key, 0) + 1
        if line["status"] != "ok" or line.get("wall") is None:
            continue
        own = {
            "study": name,
            "task": line["task"],
            "attempt": line["attempt"],
            "block": line["block"],
            "node": line.get("node"),
            **factors,
        }
        moment = "" if line.get("end") is None else f" {line['end']:.3f}"
        times.append(f"twinrun_task_seconds{_labels(own)} {line['wall']!r}{moment}")
        for mode in ("user", "system"):
            if line.get(mode) is not None:
                processor.append(
                    f"twinrun_task_cpu_seconds{_labels({**own, 'mode': mode})} {line[mode]!r}{moment}"
                )
    ended = [
        f"twinrun_attempts{_labels({'study': name, 'status': status, **dict(factors)})} {number}"
        for (status, factors), number in counts.items()
    ]
    families = [
        ("twinrun_task_seconds", "seconds", "Time of a task.", times),
        ("twinrun_task_cpu_seconds", "seconds", "CPU time of a task.", processor),
        ("twinrun_attempts", "", "Attempts by how they ended.", ended),
    ]
    out = []
    for family, unit, what, samples in families:
        out += [
            f"# TYPE {family} gauge",
            *([f"# UNIT {family} {unit}"] if unit else []),
            f"# HELP {family} {what}",
            *samples,
        ]
    _written(target, "\n".join([*out, "# EOF", ""]), "OpenMetrics", option)
    return len(lines)


WRITERS: dict[str, Callable[..., int]] = {
    "parquet": write_parquet,
    "csv": write_csv,
    "hyperfine": write_hyperfine,
    "openmetrics": write_openmetrics,
}
