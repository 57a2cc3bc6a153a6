"""Imports measurements of other programs as a study.

    hyperfine   --export-json: a task for each time of each command; parameters are factors
    google-benchmark   --benchmark_out_format=json: a task for each repetition; aggregates are left out
    caliper     cali-query's json or json-split, and records of Thicket's frames: a task for each profile;
                times by region as metrics
    radical     .prof files of RADICAL-Pilot: a task for each with a start and a stop of its execution
    reframe, sacct, csv   tables: `foreign`

Facts that a format lacks are null. Blocks: the n-th time of each cell is block n, the best guess of the
order.
"""

from __future__ import annotations

import codecs
import csv
import itertools
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ...arguments import paths_given
from ...errors import DamagedFile, MissingFile, TwinrunError, Unsupported
from ...outputs import write_whole
from .command_line import toml_of
from .foreign import number, read_csv, read_reframe, read_sacct, seconds_in, task_of, time_of
from .shown import shown_line

__all__ = ["FORMATS", "import_tasks", "read_foreign"]

FORMATS = ("hyperfine", "google-benchmark", "caliper", "radical", "reframe", "sacct", "csv")
_TABLES = {"reframe": read_reframe, "sacct": read_sacct, "csv": read_csv}
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


_COMMAND = "command"  # the factor of several commands
_GUESSES = 4096  # at how commands were written


def _objects(items: Iterable[object], what: str) -> list[Mapping]:
    """The items of a list, each an object of JSON. Raises ValueError."""
    found = []
    for place, item in enumerate(items, 1):
        if not isinstance(item, Mapping):
            raise ValueError(f"entry {place} of {what} is no object")
        found.append(item)
    return found


def _list(entry: Mapping, key: str) -> list:
    """The list of this name; empty where there is none. Raises ValueError."""
    value = entry.get(key)
    if value is not None and not isinstance(value, list):
        raise ValueError(f"{key} is {value!r:.40}, and no list")
    return value or []


def _template(own: Sequence[tuple[str, Mapping[str, object]]]) -> str | None:
    """A command as it was written, {NAME} for parameters, of what it became with each of them; None where
    none gives them all.
    """
    command, parameters = own[0]
    values = sorted({str(v) for v in parameters.values()} - {""}, key=len, reverse=True)
    pieces = re.split(f"({'|'.join(map(re.escape, values))})", command) if values else [command]
    choices = [
        [*(f"{{{name}}}" for name, value in parameters.items() if str(value) == piece), piece]
        for piece in pieces[1::2]
    ]
    for chosen in itertools.islice(itertools.product(*choices), _GUESSES):
        text = "".join(a + b for a, b in zip(pieces[::2], (*chosen, ""), strict=True))

        def filled(values: Mapping[str, object], text: str = text) -> str:
            for name, value in values.items():
                text = text.replace(f"{{{name}}}", str(value))
            return text

        if all(filled(values) == line for line, values in own):
            return text
    return None


def _commands_of(results: Sequence[Mapping]) -> list[str]:
    """A name for the command of each result. hyperfine runs each of several commands with the same
    parameters, and writes what they become: those of one place among the same parameters are one command.
    """
    places: list[tuple] = []
    seen: dict[str, int] = {}
    groups: dict[tuple, list[tuple[str, Mapping[str, object]]]] = {}
    for result in results:
        parameters = result.get("parameters") or {}
        if not isinstance(parameters, Mapping):
            raise ValueError(f"parameters are {parameters!r:.40}, and no object")
        key = json.dumps(parameters, sort_keys=True)
        place = (tuple(sorted(parameters)), seen.get(key, 0))
        seen[key] = place[1] + 1
        places.append(place)
        groups.setdefault(place, []).append((str(result[_COMMAND]), parameters))
    names: dict[tuple, str] = {}
    times: dict[str, int] = {}
    for place, own in groups.items():
        name = shown_line(_template(own) or f"command {place[1] + 1}")
        times[name] = times.get(name, 0) + 1
        # The same command again is a condition of its own, as on the command line.
        names[place] = name if times[name] == 1 else f"{name} ({times[name]})"
    return [names[place] for place in places]


def _hyperfine(document: object) -> list[dict]:
    if not isinstance(document, Mapping) or not isinstance(document.get("results"), list):
        raise ValueError("there is no list of results")
    results = _objects(document["results"], "results")
    commands = _commands_of(results)
    several = len(set(commands)) > 1
    found = []
    for result, command in zip(results, commands, strict=True):
        parameters = dict(result.get("parameters") or {})
        factors = {_COMMAND: command, **parameters} if several and _COMMAND not in parameters else parameters
        if several and _COMMAND in parameters:  # a parameter has that name
            factors = {**parameters, f"{_COMMAND}_line": command}
        codes, memory, times = (_list(result, key) for key in ("exit_codes", "memory_usage_byte", "times"))
        if "times" not in result:
            raise KeyError("times")
        for i, wall in enumerate(times):
            where = f"{shown_line(str(result.get('command', '')))!r:.60}, time {i + 1}"
            time = time_of(wall, where)
            code = codes[i] if i < len(codes) else None
            if code is not None and (not isinstance(code, int) or isinstance(code, bool)):
                raise ValueError(f"{where}: {code!r:.40} is no exit status")
            # null: ended by a signal
            status = "killed" if codes and code is None else "failed" if code else "ok"
            found.append(
                task_of(
                    factors,
                    wall=time,
                    exit=code,
                    status=status,
                    max_memory_bytes=number(memory[i]) if i < len(memory) else None,
                    command_line=command,
                )
            )
    return found


# Of an entry, what is no counter.
_OWN_KEYS = {
    "family_index",
    "per_family_instance_index",
    "repetitions",
    "repetition_index",
    "threads",
    "real_time",
    "cpu_time",
}


def _google_benchmark(document: object) -> list[dict]:
    if not isinstance(document, Mapping) or not isinstance(document.get("benchmarks"), list):
        raise ValueError("there is no list of benchmarks")
    entries = _objects(document["benchmarks"], "benchmarks")
    context = document.get("context")
    node = context.get("host_name") if isinstance(context, Mapping) else None
    single = [
        e for e in entries if e.get("run_type", "iteration") == "iteration" and "aggregate_name" not in e
    ]
    if entries and not single:
        raise ValueError("it has aggregates only: run without --benchmark_report_aggregates_only")
    found = []
    for entry in single:
        factors = {"benchmark": entry.get("run_name") or entry["name"]}
        if entry.get("error_occurred"):
            found.append(
                task_of(factors, status="failed", node=node, reason=str(entry.get("error_message"))[:200])
            )
            continue
        scale = seconds_in(str(entry.get("time_unit", "ns")))
        wall, cpu = (
            time_of(entry.get("real_time"), f"{factors['benchmark']!r:.60}"),
            number(entry.get("cpu_time")),
        )
        if scale is None:
            raise ValueError(f"{entry['time_unit']!r:.20} is not a unit of time")
        metrics = {k: float(v) for k, v in entry.items() if k not in _OWN_KEYS and number(v) is not None}
        if cpu is not None:
            metrics["cpu_time"] = cpu * scale
        found.append(task_of(factors, wall=wall * scale, node=node, metrics=metrics))
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
                seconds = number(value)
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
        if whole is None:
            raise ValueError("a profile has no numbers in a column that is named time or duration")
        facts = {
            k: v
            for k, v in about.items()
            if isinstance(v, (str, int, float)) and not str(k).startswith("cali.")
        }
        node = facts.pop("hostname", None)
        found.append(task_of(facts, wall=whole, metrics=sums, node=node))
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
                    task_of({}, status="killed", start=start, reason=f"{uid}: no stop", imported_name=uid)
                )
            continue
        found.append(
            task_of(
                {}, start=own[span[0]], end=own[span[1]], wall=own[span[1]] - own[span[0]], imported_name=uid
            )
        )
    return found


def _guess(path: Path, document: object, text: str) -> str:
    if isinstance(document, Mapping) and isinstance(document.get("results"), list):
        return "hyperfine"
    if isinstance(document, Mapping) and isinstance(document.get("benchmarks"), list):
        return "google-benchmark"
    records = isinstance(document, list) and any(isinstance(r, Mapping) for r in document)
    if records or (isinstance(document, Mapping) and _CALIPER & document.keys()):
        return "caliper"
    if document is not None:
        raise Unsupported(
            f"is JSON, and has no keys of a program that is known ({_KEYS})",
            where=path,
            fix=f"give --format: {', '.join(_JSON)}",
        )
    head = set(text.split("\n", 1)[0].strip().split("|"))
    if "JobID" in head:
        return "sacct"
    if any(name.endswith("_value") for name in head) and len(head) > 1:
        return "reframe"
    return "csv" if path.suffix in (".csv", ".tsv") else "radical"


_CALIPER = frozenset({"data", "records", "dataframe"})
_JSON = {"hyperfine": _hyperfine, "google-benchmark": _google_benchmark, "caliper": _caliper}
_KEYS = (
    "results: hyperfine; benchmarks: google-benchmark; data, records, dataframe or a list of records: caliper"
)
_LOOKED = {"hyperfine": "each of the times of results", "google-benchmark": "each of benchmarks", "caliper": "each profile of the records",
           "radical": "each pair of a start and a stop event", "sacct": "each job that has ended"}  # fmt: skip
_DIGITS = 400  # of an integer; one with more is larger than any float
_LARGEST = 1 << 30  # bytes of a file
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_foreign(
    path: str | os.PathLike[str], form: str | None = None, value: str = "", factors: Sequence[str] = ()
) -> list[dict]:
    """Reads the lines of tasks from a file of another program; `import_tasks` adds numbers and blocks.

    value, factors: columns of CSV. Raises MissingFile, DamagedFile where the content does not fit the format,
    Unsupported where it holds no tasks.
    """
    path = Path(path)
    if not path.exists():
        raise MissingFile("there is no such file", where=path)
    if not path.is_file():
        raise Unsupported("is not a regular file", where=path)
    if path.stat().st_size > _LARGEST:
        raise Unsupported(f"has more than {_LARGEST} bytes", where=path)
    raw = path.read_bytes()
    document, text = None, raw.decode(errors="replace").removeprefix("\ufeff")
    if form is None or form in _JSON:
        try:
            # A float takes any number of digits, an int 4300.
            document = json.loads(text, parse_int=lambda x: int(x) if len(x) < _DIGITS else float(x))
        except RecursionError:
            raise DamagedFile("is JSON whose brackets are nested too deeply", where=path) from None
        except ValueError:
            if form is not None or path.suffix == ".json":
                raise DamagedFile("is not JSON", where=path) from None
    if not text.strip():
        raise Unsupported("is empty: there are no tasks in it", where=path)
    form = form or ("csv" if value or factors else _guess(path, document, text))
    if form != "radical":
        try:
            raw.decode()
        except UnicodeDecodeError as e:
            raise DamagedFile(
                f"is not UTF-8: byte {e.start} is {raw[e.start]:#04x}", where=path,
                fix=f"convert it, for example with iconv -f {'UTF-16' if raw[:2] in _UTF_16 else 'LATIN1'} -t UTF-8",
            ) from None  # fmt: skip
    if (value or factors) and form != "csv":
        raise TwinrunError(
            f"columns can be named for csv only, and this is {form}", where=path, fix="leave them out"
        )
    try:
        if form == "radical":
            found = _radical(path)
        elif form == "csv":
            found = read_csv(text, value, factors)
        else:
            found = _TABLES[form](text) if form in _TABLES else _JSON[form](document)
    except KeyError as e:
        raise DamagedFile(f"is not of {form}: there is no {e}", where=path) from None
    except (TypeError, AttributeError, IndexError):
        raise DamagedFile(
            f"is not of {form}: a value is of another kind than {form} writes", where=path
        ) from None
    except (ValueError, OverflowError, csv.Error) as e:
        raise DamagedFile(f"is not of {form}: {e}", where=path) from None
    for line in found:
        if line["wall"] is not None and line["wall"] < 0:
            what = line.get("imported_name") or ", ".join(line["factors"].values())
            what = f"{what!r:.60}" if what else "a task"
            raise DamagedFile(f"{what} took {line['wall']:g} s, which is no time", where=path)
    if not found:
        looked = f"it was read as {form}, of which {_LOOKED.get(form, 'each row below the header')} is a task"
        raise Unsupported(f"holds no tasks: {looked}", where=path, fix=f"give --format: {', '.join(FORMATS)}")
    return found


def _numbered(lines: Iterable[dict]) -> list[dict]:
    """Adds numbers, blocks and orders. A further attempt has those of the first, which comes before it."""
    first: dict[str, dict] = {}
    again: list[tuple[dict, dict]] = []
    for line in (lines := list(lines)):
        if line["attempt"] > 1:
            again.append((line, first[line["imported_name"]]))
        elif "imported_name" in line:
            first[line["imported_name"]] = line
    lines = sorted(
        (line for line in lines if line["attempt"] == 1),
        key=lambda x: x["start"] if x["start"] is not None else 0.0,
    )
    times: dict[str, int] = {}
    sizes: dict[int, int] = {}
    for line in lines:
        cell = json.dumps(line["factors"], sort_keys=True)
        if "block" not in line:
            line["block"], line["guessed_block"] = times.get(cell, 0), True
        line["repetition"] = line["block"]
        times[cell] = times.get(cell, 0) + 1
    lines.sort(key=lambda x: x["block"])
    for place, line in enumerate(lines):
        line["task"] = place
        line["order"] = sizes.get(line["block"], 0)
        sizes[line["block"]] = line["order"] + 1
    for line, of in again:
        line |= {key: of[key] for key in ("task", "block", "order", "repetition", "guessed_block")}
    return [*lines, *(line for line, _ in again)]


def _tell_commands(lines: Iterable[dict]) -> None:
    """Makes the command a factor where files of one command each, which need none, have several."""
    named = [(line, line.pop("command_line", None)) for line in lines]
    if len({command for _, command in named if command is not None}) > 1:
        for line, command in named:
            if command is not None and _COMMAND not in line["factors"]:
                line["factors"] = {_COMMAND: command, **line["factors"]}
                line["verified"] = dict.fromkeys(line["factors"])


def import_tasks(
    files: Sequence[str | os.PathLike[str]],
    folder: str | os.PathLike[str],
    form: str | None = None,
    value: str = "",
    factors: Sequence[str] = (),
) -> int:
    """Makes the folder of a study from files; returns how many tasks. Other parameters: `read_foreign`.

    Raises as `read_foreign`, and where the folder is in use.
    """
    files = paths_given(files)
    target = Path(folder)
    if target.exists() and any(target.iterdir()):
        raise TwinrunError("is not empty", where=target, fix="give another --output")
    lines = [x for file in files for x in read_foreign(file, form, value, factors)]
    _tell_commands(lines)
    lines = _numbered(lines)
    if len({tuple(sorted(x["factors"])) for x in lines}) > 1:  # files with other keys
        every = sorted({k for x in lines for k in x["factors"]})
        for line in lines:
            line["factors"] = {k: line["factors"].get(k, "") for k in every}
            line["verified"] = dict.fromkeys(every)
    names = list(lines[0]["factors"])
    listed: dict[tuple[str, str], int] = {}
    for line in lines:
        for name, at in line.pop("levels", {}).items():
            listed.setdefault((name, line["factors"].get(name, "")), at)
    # As their study lists them, where that is known; otherwise as they come.
    levels = {
        n: sorted(
            dict.fromkeys(x["factors"][n] for x in lines), key=lambda v: listed.get((n, v), len(listed))
        )
        for n in names
    }
    target.mkdir(parents=True, exist_ok=True)
    study = [
        f"# Imported from {', '.join(Path(f).name for f in files)}: it cannot be run.",
        f"name = {toml_of(Path(files[0]).stem)}",
        f"command = {toml_of(['false', *('{' + n + '}' for n in names)])}",
        f"repetitions = {1 + max(0, *(x['block'] for x in lines), 0)}",
    ]
    for name in names:
        study += ["", f"[factors.{name}]", f"levels = {toml_of(levels[name])}", 'kind = "value"']
    keys = ("task", "block", "order", "factors", "seed", "repetition")
    # The tasks come last: a folder with them is complete.
    for name, said in (
        ("study.toml", "\n".join(study) + "\n"),
        (
            "plan.jsonl",
            "".join(json.dumps({k: x[k] for k in keys}) + "\n" for x in lines if x["attempt"] == 1),
        ),
        ("tasks.jsonl", "".join(json.dumps(x, allow_nan=False) + "\n" for x in lines)),
    ):
        write_whole(target / name, said.encode())
    return len(lines)
