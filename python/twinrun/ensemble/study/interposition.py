"""The interposition library, which counts and times a task's calls of MPI, POSIX and stdio: where it is, and
how it is loaded.

docs/reference/interpose.md says what it counts, and how rules for injection are written. Nothing here needs
more than the standard library.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import MissingFile, TwinrunError

if TYPE_CHECKING:
    from .study import Study

__all__ = [
    "OFF",
    "calls",
    "check",
    "check_rules",
    "library",
    "read_profiles",
    "unfinished",
    "variables",
    "variables_of_task",
    "verified",
]

LIBRARY = "TWINRUN_INTERPOSE_LIBRARY"  # the file of the library, instead of the installed one
NAME = "libtwinrun_interpose.so"
OFF = "off"  # the level of tasks without the library
_TOLD = 512


def library(given: str | os.PathLike[str] | None = None) -> Path:
    """The file of the library: `given`, the environment's, or the installed one.

    Raises MissingFile where there is none.
    """
    chosen = given or os.environ.get(LIBRARY) or Path(__file__).resolve().parents[2] / NAME
    path = Path(os.path.abspath(chosen))
    if not path.is_file():
        raise MissingFile(
            "there is no interposition library",
            where=path,
            fix=f"install twinrun on Linux (x86-64 or aarch64), or set {LIBRARY} to {NAME}",
        )
    if any(c in str(path) for c in ": \t\n"):
        raise TwinrunError("a path with spaces or colons cannot be preloaded", where=path)
    return path


@functools.lru_cache(maxsize=4)
def _opened(path: Path) -> ctypes.CDLL:
    # Only its functions are called; it counts only where it is preloaded with a folder to write to.
    kept = {
        k: os.environ.pop(k) for k in ("TWINRUN_INTERPOSE_FOLDER", "TWINRUN_TASK_FOLDER") if k in os.environ
    }
    try:
        opened = ctypes.CDLL(str(path))
        opened.twr_interpose_call.restype = opened.twr_interpose_group.restype = ctypes.c_char_p
    except (OSError, AttributeError) as e:
        raise TwinrunError(f"is not the interposition library: {e}", where=path) from None
    finally:
        os.environ.update(kept)
    return opened


def check_rules(rules: str, path: Path | None = None) -> int:
    """The number of rules, as the library reads them. Raises TwinrunError for a rule with an error."""
    said = ctypes.create_string_buffer(_TOLD)
    if "\0" in rules:
        raise TwinrunError("rules of injection hold a byte 0")
    number = _opened(path or library()).twr_interpose_check(os.fsencode(rules), said, _TOLD)
    if number < 0:
        raise TwinrunError(
            f"injection: {os.fsdecode(said.value)}",
            fix="write as write:delay=1ms..5ms,path=*.cpt; docs/reference/interpose.md has all of it",
        )
    return int(number)


def calls(path: Path | None = None) -> dict[str, str]:
    """{call: group} of all calls that the library counts."""
    opened = _opened(path or library())
    found: dict[str, str] = {}
    number = 0
    while (name := opened.twr_interpose_call(number)) is not None:
        found[name.decode()] = opened.twr_interpose_group(number).decode()
        number += 1
    return found


def variables(
    path: Path,
    folder: str | os.PathLike[str],
    *,
    rules: str = "",
    seed: int = 0,
    flush: float = 0.0,
    preloaded: str | None = None,
) -> dict[str, str]:
    """The environment of a counted program, with profiles in `folder`. preloaded: LD_PRELOAD without this;
    flush: seconds between profiles while it runs (whole ones; 0: none)."""
    found = {
        "LD_PRELOAD": f"{path}:{preloaded}" if preloaded else str(path),
        "TWINRUN_INTERPOSE_FOLDER": str(folder),
        "TWINRUN_INTERPOSE_FLUSH": f"{flush:.0f}",
    }
    if rules:
        found |= {"TWINRUN_INTERPOSE_INJECT": rules, "TWINRUN_INTERPOSE_SEED": str(seed)}
    return found


def check(study: Study) -> None:
    """Raises TwinrunError where the tasks of the study could not be counted as it demands."""
    if study.interpose is not None:
        path = library(study.here / study.interpose.library if study.interpose.library else None)
        for level in next((f.levels for f in study.factors if f.kind == "interpose"), ()):
            check_rules(_rules_of(study, level), path)


def _rules_of(study: Study, level: str) -> str:
    factor = next((f for f in study.factors if f.kind == "interpose"), None)
    return "" if factor is None else factor.values.get(level, "")


def variables_of_task(
    study: Study, level: str | None, seed: int, folder: Path, preloaded: str | None
) -> dict[str, str]:
    """The variables for the library in a task's environment; empty where the task runs without it."""
    if study.interpose is None or level is None or level == OFF:
        return {}
    given = study.interpose.library
    path = library(study.here / given if given else None)
    return variables(
        path,
        folder,
        rules=_rules_of(study, level),
        seed=seed,
        flush=study.interpose.flush,
        preloaded=preloaded,
    )


def _listed(rules: str) -> list[str]:
    return [part.strip() for part in rules.split(";") if part.strip()]


def verified(study: Study, folder: Path, level: str, status: str) -> str | None:
    """The level that a task really ran at, by its profiles. None where a failed task left no profile."""
    paths = sorted(folder.glob("PROFILE-*.json"))
    if not paths:
        return OFF if status == "ok" else None
    try:
        profile = json.loads(paths[0].read_text(encoding="utf-8"))
        if profile.get("errors"):
            return "; ".join(map(str, profile["errors"]))
        rules = [r["rule"] for r in profile["injected"]["rules"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if level != OFF and rules == _listed(_rules_of(study, level)):
        return level
    for factor in study.factors:
        for other in factor.levels if factor.kind == "interpose" else ():
            if other != OFF and rules == _listed(_rules_of(study, other)):
                return other
    return "; ".join(rules) or "on"


def unfinished(folder: Path) -> list[dict]:
    """{pid, host, program} of each process that began a profile in this folder, and has not written its last
    one: it was killed, or runs still.
    """
    found = []
    for path in sorted(folder.glob(".profile-*.begun")):
        try:
            mark = json.loads(path.read_text(encoding="utf-8"))
            found.append({key: mark[key] for key in ("pid", "host", "program")})
        except FileNotFoundError:  # it ended just now
            continue
        except (OSError, ValueError, KeyError, TypeError):  # killed as it wrote this: its name has the number
            pid = path.name.split("-")[1]
            found.append({"pid": int(pid) if pid.isdigit() else None, "host": None, "program": None})
    return found


def _sum(values: Iterable[float | None]) -> float | None:
    every = list(values)
    found = [v for v in every if v is not None]
    return None if not found or len(found) < len(every) else sum(found)


def _added(profiles: list[dict]) -> dict:
    """Joins profiles of one rank: of processes that ran in parallel or one after the other."""
    if len(profiles) == 1:
        return profiles[0]
    made: dict[str, dict] = {}
    for profile in profiles:
        for name, call in profile["calls"].items():
            into = made.setdefault(
                name,
                {"group": call["group"], "count": 0, "seconds": 0.0, "bytes": 0, "largest_seconds": 0.0, "histogram": []},
            )  # fmt: skip
            for key in ("count", "seconds", "bytes"):
                into[key] += call.get(key, 0)
            into["largest_seconds"] = max(into["largest_seconds"], call.get("largest_seconds", 0.0))
            own = call.get("histogram", [])
            longest = max(len(own), len(into["histogram"]))
            into["histogram"] = [
                (own[i] if i < len(own) else 0) + (into["histogram"][i] if i < len(into["histogram"]) else 0)
                for i in range(longest)
            ]
            for key, value in call.get("nested", {}).items():
                nested = into.setdefault("nested", {"count": 0, "seconds": 0.0, "bytes": 0})
                nested[key] = nested.get(key, 0) + value
    whole = {**profiles[0], "calls": made}
    for key in ("cpu", "run_queue_delay", "own_cost_seconds"):
        whole[key] = _sum(p.get(key) for p in profiles)
    times = [(p["start"], p["end"]) for p in profiles if "start" in p and "end" in p]
    if len(times) == len(profiles):
        whole["start"], whole["end"] = min(t[0] for t in times), max(t[1] for t in times)
        whole["wall"] = whole["end"] - whole["start"]
    for key in ("other_preloads", "errors"):
        whole[key] = list(dict.fromkeys(x for p in profiles for x in p.get(key) or []))
    rules = [r for p in profiles for r in (p.get("injected") or {}).get("rules", [])]
    if rules:
        whole["injected"] = {**(profiles[0].get("injected") or {}), "rules": _added_rules(rules)}
    return whole


def _added_rules(rules: list[Mapping]) -> list[dict]:
    found: dict[str, dict] = {}
    for rule in rules:
        into = found.setdefault(rule["rule"], {"rule": rule["rule"]})
        for key, value in rule.items():
            if key != "rule":
                into[key] = into.get(key, 0) + value
    return list(found.values())


def read_profiles(profiles: Iterable[dict]) -> list[dict]:
    """One profile for each rank, in order of rank, from all profiles of a task.

    Where there are ranks of MPI, other processes (launchers, shells) are left out; where there are none,
    processes are taken together, by the rank that a launcher gave them. Raises ValueError where a rank is
    missing.
    """
    given = list(profiles)
    of_ranks = [p for p in given if p.get("rank", 0) is not None]
    key = "rank"
    if not of_ranks:
        of_ranks, key = given, "launcher_rank"
    by_rank: dict[int, list[dict]] = {}
    for profile in of_ranks:
        rank = profile.get(key)
        by_rank.setdefault(int(rank) if rank is not None else 0, []).append(profile)
    found = [_added(by_rank[rank]) for rank in sorted(by_rank)]
    if key == "rank" and any((p.get("ranks") or len(found)) != len(found) for p in found):
        raise ValueError("a rank is missing")
    return found
