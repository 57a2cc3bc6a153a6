"""The folder of a study: its plan, its results, and its lock.

    STUDY/
      study.toml      the study as it was given
      plan.jsonl      tasks in their order; warm-ups have "warmup": true
      tasks.jsonl     a line for each ended attempt, on storage before any use of it; warmup.jsonl likewise
      environments/   conditions, named by the SHA-256 of their content
      output/TASK-ATTEMPT/   files of an attempt: stdout, stderr, profiles, requested files
      lock            held by the only runner

A crash leaves a torn last line at worst, which is cut off. An attempt whose record (the watcher's) is in its
folder but whose line is missing is added when the study goes on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from msgspec import structs

from ...errors import Incomparable, MissingFile, TwinrunError
from ...marks import STUDY_FILES, STUDY_FOLDERS, STUDY_KEYS
from ...outputs import write_whole
from ..watch import VERSION
from ..watch.cores import list_of_numbers
from . import interposition
from .attempts import Attempts
from .design import Task, plan, warmups
from .lines import Lines, hold, read_lines
from .study import Metric, Study, read_study

__all__ = ["StudyFolder", "files_of_study", "named", "read_lines", "task_line", "unfinished"]

_LARGEST_TEXT = 64 << 20  # bytes of a file that is searched for metrics


# Readings of a task before threads that were not seen count as absent.
_LOOKS = 8


# Files and folders of a study, except study-N.toml and the lock.
_FILES, _FOLDERS, _KEYS = STUDY_FILES, STUDY_FOLDERS, STUDY_KEYS


def files_of_study(folder: str | os.PathLike[str]) -> list[Path]:
    """The files of a study, and the file that it was started from where known; reports may lie
    beside them.
    """
    path = Path(folder).absolute()
    files = [path / name for name in (*_FILES, "lock", *_FOLDERS)]
    files += [*path.glob("study-*.toml"), path.parent / f"{path.name}.toml"]
    noted = [path / "study.toml", path / "here"]
    if not all(p.is_file() for p in noted):  # reading a pipe of this name would block
        return files
    with contextlib.suppress(OSError):
        given, here = noted[0].read_bytes(), Path(os.fsdecode(noted[1].read_bytes()))
        files += [
            p
            for p in here.glob("*.toml")
            if p.is_file() and p.stat().st_size == len(given) and p.read_bytes() == given
        ]
    return files


def _is_study_file(path: Path) -> bool:
    """Whether a file of lines was written by a study, as its lines say; an empty one may have been.

    Damage further on is reported when the file is read.
    """
    keys = _KEYS[path.name]
    text = path.read_bytes()
    whole = text.rfind(b"\n") + 1
    for number, line in enumerate(text[:whole].splitlines()):
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        ours = keys <= value.keys() if isinstance(value, dict) else number > 0
        if not ours:
            return False
    torn = text[whole:]
    return any(torn.startswith(begin) or begin.startswith(torn) for begin in (b'{"version": ', b'{"task": '))


def _is_place(path: Path) -> bool:
    """Whether a file holds only the path of a folder, or nothing."""
    text = path.read_bytes()
    return not text or (text.startswith(b"/") and b"\n" not in text and b"\0" not in text)


def _check_own(folder: Path, study_file: str | os.PathLike[str] | None) -> None:
    """TwinrunError where an entry of the folder has a name that a study uses, and no study made it: it would
    be written over, or taken for what a study says.
    """

    def refuse(path: Path, why: str) -> TwinrunError:
        return TwinrunError(
            f"is there already, and {why}: it is left alone",
            where=path,
            fix="move it away, or give another folder",
        )

    if os.path.lexists(folder) and not folder.is_dir():
        raise TwinrunError("is not a folder", where=folder, fix="give another folder")
    for name in (*_FILES, "lock", *_FOLDERS):
        path = folder / name
        if not os.path.lexists(path):
            continue
        mode = os.lstat(path).st_mode
        if not (stat.S_ISDIR(mode) if name in _FOLDERS else stat.S_ISREG(mode)):
            raise refuse(path, "is not a regular file" if name not in _FOLDERS else "is not a folder")
        if name in _KEYS and not _is_study_file(path):
            raise refuse(path, "is not a study's")
        if (name == "lock" and path.stat().st_size) or (name == "here" and not _is_place(path)):
            raise refuse(path, "is not a study's")
    if (folder / "plan.jsonl").exists() and (folder / "plan.jsonl").stat().st_size != 0:
        return
    # A study whose start was interrupted has only files that would be written now.
    for name in (*_FILES, *_FOLDERS):
        path = folder / name
        if not path.exists():
            continue
        if name in _FOLDERS:
            same = not any(path.iterdir())
        elif study_file is None or name in _KEYS:
            same = path.stat().st_size == 0
        elif name == "study.toml":
            same = path.read_bytes() == Path(study_file).read_bytes()
        else:
            same = path.read_bytes() == os.fsencode(Path(study_file).resolve().parent)
        if not same:
            raise refuse(path, "the folder is not a study's (it has no plan.jsonl)")


class StudyFolder:
    """Opens or makes the folder of a study, for one process at a time.

    amend: a study that differs from the folder's is taken over where what has run is still part of it.
    Raises TwinrunError where another runner has it, Incomparable where it is of another study.
    """

    def __init__(
        self, path: str | os.PathLike[str], study_file: str | os.PathLike[str] | None, amend: bool = False
    ) -> None:
        self.path = Path(os.path.abspath(path))
        if study_file is None and not (self.path / "plan.jsonl").is_file():
            raise MissingFile("is not a folder of a study: there is no plan.jsonl", where=path)
        if study_file is not None:
            read_study(study_file)  # a folder is made for a valid study only
        _check_own(self.path, study_file)
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(
            self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644
        )
        try:
            hold(self._lock, TwinrunError("another runner is at work on this study", where=path))
            self.notes: list[str] = []
            self.study = self._take(study_file, amend)
            (self.path / "environments").mkdir(exist_ok=True)
            self.output = self.path / "output"
            self.output.mkdir(exist_ok=True)
            self._tasks = Lines.of(self.path / "tasks.jsonl")
            self._warmups = Lines.of(self.path / "warmup.jsonl")
            recorded = ((x["task"], x["attempt"]) for x in self.lines())
            self.attempts = Attempts(self.output, recorded, self.study.keep)
            self.attempts.clear_recorded()
        except BaseException:
            os.close(self._lock)
            raise

    # -- the plan

    def _take(self, study_file: str | os.PathLike[str] | None, amend: bool) -> Study:
        kept = self.path / "study.toml"
        if study_file is not None and (not kept.exists() or not os.path.samefile(kept, study_file)):
            given = Path(study_file).read_bytes()
            if not kept.exists():
                write_whole(kept, given)
            elif given != kept.read_bytes():
                self._amend(kept, study_file, given, amend)
        study = read_study(kept)
        # Relative paths begin at the folder of the study file, which a resumed study remembers.
        place = self.path / "here"
        if study_file is not None and not os.path.samefile(kept, study_file):
            write_whole(place, os.fsencode(Path(study_file).resolve().parent))
        if place.exists():
            study = structs.replace(study, here=Path(os.fsdecode(place.read_bytes())))
        self.tasks = [*warmups(study), *plan(study)]
        planned = [t.json() for t in self.tasks]
        there, _ = read_lines(self.path / "plan.jsonl")
        if there != planned:
            write_whole(self.path / "plan.jsonl", "".join(json.dumps(x) + "\n" for x in planned).encode())
        return study

    def _amend(self, kept: Path, study_file: str | os.PathLike[str], given: bytes, amend: bool) -> None:
        before, now = read_study(kept), read_study(study_file)
        if before.document != now.document:
            if not amend:
                changed = next(
                    k
                    for k in sorted({*before.document, *now.document})
                    if before.document.get(k) != now.document.get(k)
                )
                raise Incomparable(
                    f"is the folder of a study that differs from {study_file} in {changed}",
                    where=self.path,
                    fix="give another folder, or --amend to go on with what was changed",
                )
            lines = {t.task: t.json() for t in (*warmups(now), *plan(now))}
            for line in [
                *read_lines(self.path / "tasks.jsonl")[0],
                *read_lines(self.path / "warmup.jsonl")[0],
            ]:
                task = lines.get(line["task"], {})
                if any(line[k] != task.get(k) for k in ("factors", "block", "order", "seed")):
                    raise Incomparable(
                        f"task {line['task']} has run, and {study_file} now describes it differently",
                        where=self.path,
                        fix="make only changes that leave earlier tasks as they are, such as more repetitions, or give another folder",
                    )
            number = 1
            while os.path.lexists(old := self.path / f"study-{number}.toml"):
                number += 1
            write_whole(old, kept.read_bytes())
            self.notes.append(f"the study was amended; what it was is kept as {old.name}")
        write_whole(kept, given)

    # -- results

    def lines(self) -> list[dict]:
        """Lines of ended attempts, warm-ups included."""
        return [*self._warmups.lines, *self._tasks.lines]

    def add(self, line: Mapping, facts: Mapping | None) -> None:
        """Adds the line of an attempt, once."""
        if (line["task"], line["attempt"]) in self.attempts.recorded:
            return
        if facts is not None:
            name, data = named(facts)
            path = self.path / "environments" / f"{name}.json"
            if not path.exists():
                write_whole(path, data)
            line = {**line, "environment": name}
        (self._warmups if line["task"] < 0 else self._tasks).add(line)
        self.attempts.recorded.add((line["task"], line["attempt"]))

    def close(self) -> None:
        """Releases the study, so that another process can run it."""
        self._tasks.close()
        self._warmups.close()
        os.close(self._lock)

    def __enter__(self) -> StudyFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def named(facts: Mapping) -> tuple[str, bytes]:
    """Conditions as JSON, and their name: the SHA-256 of that."""
    data = json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(data).hexdigest(), data


def unfinished(tasks: Iterable[Task], lines: Iterable[Mapping], retries: int) -> list[Task]:
    """Tasks that remain: without an attempt that ended by itself, or with fewer failures than allowed."""
    ended: dict[int, list[str]] = {}
    for line in lines:
        if not line.get("interrupted"):
            ended.setdefault(line["task"], []).append(line["status"])
    return [
        t
        for t in tasks
        if t.task not in ended or ("ok" not in ended[t.task] and len(ended[t.task]) <= retries)
    ]


# ---- lines ---------------------------------------------------------------------------------------


def _numbers(text: str, metric: Metric) -> list[float]:
    found = []
    for match in re.finditer(metric.regex, text, re.M):
        with contextlib.suppress(ValueError, TypeError):
            found.append(float(match[1]))
    return found


def _read_output(folder: Path, name: str) -> str | None:
    """The text of a file of the attempt, its end where it is large; None where there is no file."""
    path = folder / name
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(file.tell() - _LARGEST_TEXT, 0))
            return file.read().decode(errors="replace")
    except OSError:
        return None


def metrics(study: Study, folder: Path) -> tuple[dict[str, float], list[str]]:
    """Metrics of an attempt, and names of those that it did not report."""
    found: dict[str, float] = {}
    missing = []
    for metric in study.metrics:
        text = _read_output(folder, metric.file)
        values: list[float] = []
        if text is not None and metric.regex:
            values = _numbers(text, metric)
        elif text is not None:
            with contextlib.suppress(ValueError, KeyError, IndexError, TypeError):
                value: Any = json.loads(text)
                for key in metric.json.split("."):
                    value = value[int(key)] if isinstance(value, list) else value[key]
                values = [float(value)] if not isinstance(value, (bool, str)) else []
        values = [v for v in values if math.isfinite(v)]
        if metric.which == "count" and text is not None:  # of all matches; zero is a valid count
            found[metric.name] = float(sum(1 for _ in re.finditer(metric.regex, text, re.M)))
            continue
        if not values:
            missing.append(metric.name)
            continue
        found[metric.name] = {
            "first": values[0],
            "last": values[-1],
            "sum": math.fsum(values),
            "mean": math.fsum(values) / len(values),
            "largest": max(values),
            "smallest": min(values),
        }[metric.which]
    return found, missing


def _document(folder: Path, name: str) -> dict | None:
    """A JSON object that the task wrote, without NaN."""
    text = _read_output(folder, name) if name else None
    if text is None:
        return None

    def refuse(_: str) -> None:
        return None

    def finite(number: str) -> float | None:
        return float(number) if math.isfinite(float(number)) else None  # 1e999

    try:
        value = json.loads(text, parse_constant=refuse, parse_float=finite)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _node(folder: Path, name: str) -> str | None:
    """The node that a task names."""
    text = _read_output(folder, name) if name else None
    words = (text or "").strip().splitlines()
    return words[0].strip()[:255] or None if words else None


def _expected(study: Study, task: Task, record: Mapping) -> dict[str, str | None]:
    """The values of `verified`, for factors with a known value."""
    found: dict[str, str | None] = {}
    for factor in study.factors:
        level = task.factors[factor.name]
        if factor.kind == "cores":
            found[factor.name] = list_of_numbers(record.get("cores") or [])
        elif factor.kind == "interpose":
            found[factor.name] = level
        elif factor.kind == "threads" or factor.check or factor.match:
            found[factor.name] = factor.value(level)
        elif factor.variables:
            found[factor.name] = factor.value(level)
    return found


def _verified(study: Study, task: Task, record: Mapping, folder: Path) -> dict[str, str | None]:
    """What was seen of each factor; None where nothing was."""
    verified: dict[str, str | None] = dict.fromkeys(task.factors)
    verified.update({k: v for k, v in record.get("verified", {}).items() if k in verified})
    for factor in study.factors:
        if factor.kind == "interpose":
            level = task.factors[factor.name]
            verified[factor.name] = interposition.verified(study, folder, level, record["status"])
        if factor.match:
            text = _read_output(folder, factor.match_file)
            match = re.search(factor.match, text, re.M) if text is not None else None
            verified[factor.name] = match[1] if match else None
    return verified


def _contradicted(study: Study, task: Task, record: Mapping, verified: dict[str, str | None]) -> list[str]:
    """The factors of which something else was seen than their level says.

    What was seen of threads becomes None where the task was too short to see them all.
    """
    contradicted = []
    for name, expected in _expected(study, task, record).items():
        seen = verified.get(name)
        if seen is None or expected is None:
            continue
        if study.factor(name).kind == "threads":
            wrong = seen.isdigit() and expected.isdigit() and int(seen) < int(expected)
            if wrong and (record.get("sampling") or {}).get("samples", 0) < _LOOKS:
                verified[name], wrong = None, False  # threads of a short task may have been missed
        else:
            wrong = seen not in (expected, task.factors[name])
        if wrong:
            contradicted.append(name)
    return contradicted


def _where_known(study: Study, task: Task, record: Mapping, folder: Path) -> dict[str, Any]:
    """What only some lines have."""
    line: dict[str, Any] = {}
    if killed := interposition.unfinished(folder):
        line["not_in_profiles"] = killed  # or only up to a flush
    if study.covariates:
        line["covariates"] = {name: (record.get("covariates") or {}).get(name) for name in study.covariates}
    if task.replica is not None:
        line |= {"replica": task.replica, "slot": record.get("slot"), "released": record.get("released")}
    if task.node is not None:
        line["intended_node"] = task.node
    if record.get("reason"):
        line["reason"] = record["reason"]
    return line


def task_line(
    study: Study, task: Task, attempt: int, record: Mapping, folder: Path, engine: str
) -> tuple[dict, dict | None]:
    """The line of tasks.jsonl for an attempt, and the facts of its environment."""
    verified = _verified(study, task, record, folder)
    contradicted = _contradicted(study, task, record, verified)
    values, missing = metrics(study, folder)
    line = {
        "version": VERSION,
        "task": task.task,
        "attempt": attempt,
        "block": task.block,
        "order": task.order,
        "repetition": task.repetition,
        "seed": task.seed,
        "factors": task.factors,
        "verified": verified,
        "contradicted": contradicted,
        "status": record["status"],
        "exit": record.get("exit"),
        "signal": record.get("signal"),
        "submit": record.get("submit"),
        "start": record.get("start"),
        "end": record.get("end"),
        "clock": record.get("clock"),
        "wall": record.get("wall"),
        "user": record.get("user"),
        "system": record.get("system"),
        "run_queue_delay": record.get("run_queue_delay"),
        "node": _node(folder, study.record.node) or record.get("node"),
        "cores": record.get("cores") or [],
        "engine": engine,
        "context_switches": record.get("context_switches"),
        "page_faults": record.get("page_faults"),
        "max_memory_bytes": record.get("max_memory_bytes"),
        "io": record.get("io"),
        "pressure": record.get("pressure"),
        "frequency_hz": record.get("frequency_hz"),
        "temperature_c": record.get("temperature_c"),
        "counters": record.get("counters"),
        "gpu": record.get("gpu"),
        "environment": None,
        "metrics": values,
        "metrics_missing": missing,
        "profiles": sorted(f"output/{folder.name}/{p.name}" for p in folder.glob("PROFILE-*.json")),
        "capture": _document(folder, study.record.capture),
        "results": _document(folder, study.record.results),
        "sampling": record.get("sampling"),
        "interrupted": bool(record.get("interrupted")),
    }
    line |= _where_known(study, task, record, folder)
    return line, record.get("facts")
