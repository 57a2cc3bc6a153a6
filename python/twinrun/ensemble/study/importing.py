"""Imports measurements of other programs as a study: hyperfine, Caliper, Thicket, RADICAL.

    hyperfine   --export-json: a task for each time of each command; parameters are factors
    caliper     cali-query's json or json-split, and records of Thicket's frames: a task for each profile;
                times by region as metrics
    radical     .prof files of RADICAL-Pilot: a task for each with a start and a stop of its execution

Facts that a format lacks are null. Blocks: the n-th time of each cell is block n, the best guess of the
order.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ...errors import DamagedFile, MissingFile, TwinrunError, Unsupported
from .templates import PLACES

__all__ = ["FORMATS", "import_tasks", "read_foreign"]

FORMATS = ("hyperfine", "caliper", "radical")
_REGIONS = ("path", "region", "name", "function", "annotation")
# Pairs of events (start, stop), the narrowest first: the first pair that a file has counts.
_SPANS = (
    ("app_start", "app_stop"),
    ("rank_start", "rank_stop"),
    ("exec_start", "exec_stop"),
    ("cu_exec_start", "cu_exec_stop"),
    ("cu_start", "cu_stop"),
    ("launch_start", "launch_stop"),
    ("task_run_start", "task_run_stop"),
)


def _name(name: object) -> str:
    """A valid name of a factor."""
    text = re.sub(r"[^A-Za-z0-9_-]", "_", str(name))
    text = text if re.match(r"[A-Za-z_]", text) else f"_{text}"
    return f"{text}_" if text in PLACES else text


def _task(factors: Mapping[str, object], **known: object) -> dict:
    line: dict = {
        "version": 1, "attempt": 1, "seed": 0, "factors": {_name(k): str(v) for k, v in factors.items()},
        "verified": {_name(k): None for k in factors}, "contradicted": [], "status": "ok", "exit": None, "signal": None,
        "submit": None, "start": None, "end": None, "wall": None, "user": None, "system": None, "run_queue_delay": None,
        "node": None, "cores": [], "engine": "imported", "context_switches": None, "page_faults": None,
        "max_memory_bytes": None, "io": None, "pressure": None, "frequency_hz": None, "temperature_c": None,
        "environment": None, "metrics": {}, "metrics_missing": [], "profiles": [], "capture": None, "results": None,
        "sampling": None, "interrupted": False,
    }  # fmt: skip
    return {**line, **known}


def _number(value: object) -> float | None:
    return (
        float(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        else None
    )


def _hyperfine(document: object) -> list[dict]:
    if not isinstance(document, Mapping) or not isinstance(document.get("results"), list):
        raise ValueError("there is no list of results")
    results = document["results"]
    names = {k for r in results for k in r.get("parameters") or {}}
    several = len({r.get("command") for r in results}) > 1 and not names
    found = []
    for result in results:
        factors = dict(result.get("parameters") or {})
        if several:
            factors = {"command": result["command"]}
        codes = result.get("exit_codes") or []
        memory = result.get("memory_usage_byte") or []
        for i, wall in enumerate(result["times"]):
            code = codes[i] if i < len(codes) else None
            # null: ended by a signal
            status = "killed" if codes and code is None else "failed" if code else "ok"
            found.append(
                _task(
                    factors,
                    wall=_number(wall),
                    exit=code,
                    status=status,
                    max_memory_bytes=memory[i] if i < len(memory) else None,
                )
            )
    return found


def _records(document: object) -> tuple[list[dict], dict]:
    """Records of a Caliper profile, and its facts about the run."""
    if isinstance(document, list):
        return [r for r in document if isinstance(r, Mapping)], {}  # type: ignore[misc]
    if not isinstance(document, Mapping):
        raise ValueError("it is neither a list nor an object")
    if "data" in document and "columns" in document:  # json-split
        columns, nodes = document["columns"], document.get("nodes") or []
        about = document.get("column_metadata") or []

        def path(node: object) -> str | None:
            labels: list[str] = []
            while isinstance(node, int) and 0 <= node < len(nodes) and len(labels) < 1000:
                labels.append(str(nodes[node].get("label")))
                node = nodes[node].get("parent")
            return "/".join(reversed(labels)) or None

        records = []
        for row in document["data"]:
            record = {}
            for i, name in enumerate(columns):
                value = row[i]
                if i < len(about) and not about[i].get("is_value", True):
                    value = path(value)
                record[name] = value
            records.append(record)
        known = {"columns", "data", "column_metadata", "nodes"}
        return records, {k: v for k, v in document.items() if k not in known}
    for key in ("records", "dataframe"):
        if isinstance(document.get(key), list):
            about = document.get("globals") or document.get("metadata") or {}
            return list(document[key]), dict(about)
    raise ValueError("there are no records")


def _caliper(document: object) -> list[dict]:
    records, about = _records(document)
    profiles: dict[object, list[dict]] = {}
    for record in records:
        profiles.setdefault(record.get("profile"), []).append(record)
    found = []
    for own in profiles.values():
        sums: dict[str, float] = {}
        inclusive: dict[str, float] = {}  # of a column: the longest region outside all others
        own_time: dict[str, float] = {}  # of a column: all regions together
        for record in own:
            path = next((str(record[k]) for k in _REGIONS if record.get(k)), None)
            for key, value in record.items():
                seconds = _number(value)
                if (
                    seconds is None
                    or not re.search(r"time|duration", key, re.I)
                    or re.search(r"percent|%", key)
                ):
                    continue
                if key.endswith(".ns"):
                    seconds /= 1e9
                name = f"{path}.{key}" if path else key
                sums[name] = sums.get(name, 0.0) + seconds
                if re.search(r"inclusive|\(I\)", key):
                    if path is None or "/" not in path:
                        inclusive[key] = max(inclusive.get(key, 0.0), seconds)
                else:
                    own_time[key] = own_time.get(key, 0.0) + seconds
        whole = next(iter(inclusive.values()), None) or next(iter(own_time.values()), None)
        facts = {
            k: v
            for k, v in about.items()
            if isinstance(v, (str, int, float)) and not str(k).startswith("cali.")
        }
        node = facts.pop("hostname", None)
        found.append(_task(facts, wall=whole, metrics=sums, node=node))
    return found


def _radical(path: Path) -> list[dict]:
    events: dict[str, dict[str, float]] = {}
    names: list[str] | None = None
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        for row in csv.reader(file):
            if not row:
                continue
            if row[0].startswith("#"):
                header = [c.strip().lstrip("#").strip() for c in row]
                if "time" in header and ("event" in header or "name" in header):
                    names = ["event" if c == "name" else c for c in header]
                continue
            entry = dict(
                zip(names or ["time", "event", "comp", "thread", "uid", "state", "msg"], row, strict=False)
            )
            try:
                moment = float(entry["time"])
            except (KeyError, ValueError):
                continue
            if entry.get("uid"):
                events.setdefault(entry["uid"], {}).setdefault(entry.get("event", ""), moment)
    found = []
    for uid, own in sorted(events.items()):
        span = next(((a, b) for a, b in _SPANS if a in own and b in own), None)
        if span is None:
            begun = any(a in own for a, _ in _SPANS)
            if begun:  # started, without an end
                start = min(own[a] for a, _ in _SPANS if a in own)
                found.append(
                    _task({}, status="killed", start=start, reason=f"{uid}: no stop", imported_name=uid)
                )
            continue
        found.append(
            _task(
                {}, start=own[span[0]], end=own[span[1]], wall=own[span[1]] - own[span[0]], imported_name=uid
            )
        )
    return found


def _guess(path: Path, document: object) -> str:
    if document is None:
        return "radical"
    if isinstance(document, Mapping) and isinstance(document.get("results"), list):
        return "hyperfine"
    return "caliper"


def read_foreign(path: str | os.PathLike[str], form: str | None = None) -> list[dict]:
    """Reads the lines of tasks from a file of another program; `import_tasks` adds numbers and blocks.

    Raises MissingFile, DamagedFile where the content does not fit the format, Unsupported where it holds no
    tasks.
    """
    path = Path(path)
    if not path.is_file():
        raise MissingFile("there is no such file", where=path)
    document = None
    if form != "radical":
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError):
            if form is not None or path.suffix == ".json":
                raise DamagedFile("is not JSON", where=path) from None
    form = form or _guess(path, document)
    try:
        found = (
            _radical(path)
            if form == "radical"
            else {"hyperfine": _hyperfine, "caliper": _caliper}[form](document)
        )
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as e:
        raise DamagedFile(f"is not of {form}: {e}", where=path) from None
    if not found:
        raise Unsupported(f"holds no tasks of {form}", where=path, fix=f"give --format: {', '.join(FORMATS)}")
    return found


def _numbered(lines: Iterable[dict]) -> list[dict]:
    """Adds numbers, blocks and orders."""
    lines = sorted(lines, key=lambda x: x["start"] if x["start"] is not None else 0.0)
    times: dict[str, int] = {}
    sizes: dict[int, int] = {}
    for line in lines:
        cell = json.dumps(line["factors"], sort_keys=True)
        line["block"] = line["repetition"] = times.get(cell, 0)
        times[cell] = line["block"] + 1
    lines.sort(key=lambda x: x["block"])
    for number, line in enumerate(lines):
        line["task"] = number
        line["order"] = sizes.get(line["block"], 0)
        sizes[line["block"]] = line["order"] + 1
    return lines


def import_tasks(
    files: Sequence[str | os.PathLike[str]], folder: str | os.PathLike[str], form: str | None = None
) -> int:
    """Makes the folder of a study from files of one format; returns how many tasks.

    Raises as `read_foreign`, and where the folder is in use.
    """
    target = Path(folder)
    if target.exists() and any(target.iterdir()):
        raise TwinrunError("is not empty", where=target, fix="give another --output")
    lines = _numbered(x for file in files for x in read_foreign(file, form))
    if len({tuple(sorted(x["factors"])) for x in lines}) > 1:  # files with other keys
        every = sorted({k for x in lines for k in x["factors"]})
        for line in lines:
            line["factors"] = {k: line["factors"].get(k, "") for k in every}
            line["verified"] = dict.fromkeys(every)
    names = list(lines[0]["factors"])
    levels = {n: list(dict.fromkeys(x["factors"][n] for x in lines)) for n in names}
    target.mkdir(parents=True, exist_ok=True)
    study = [
        f"# Imported from {', '.join(Path(f).name for f in files)}: it cannot be run.",
        f"name = {json.dumps(Path(files[0]).stem)}",
        f"command = {json.dumps(['false', *('{' + n + '}' for n in names)])}",
        f"repetitions = {1 + max(x['block'] for x in lines)}",
    ]
    for name in names:
        study += ["", f"[factors.{name}]", f"levels = {json.dumps(levels[name])}"]
    (target / "study.toml").write_text("\n".join(study) + "\n", encoding="utf-8")
    keys = ("task", "block", "order", "factors", "seed", "repetition")
    (target / "plan.jsonl").write_text("".join(json.dumps({k: x[k] for k in keys}) + "\n" for x in lines))
    (target / "tasks.jsonl").write_text("".join(json.dumps(x, allow_nan=False) + "\n" for x in lines))
    return len(lines)
