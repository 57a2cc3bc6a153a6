"""Compares the results of a task with those of the first task of its seed.

The results of the first task are the reference of its seed (of all tasks, where nothing uses {seed}): they
are moved to STUDY/results/SEED, where they stay; what lies outside of the attempt's folder is copied. Others
are compared as soon as they have ended, by the runner, on its own cores where tasks leave it any; then they
go, unless the study keeps them. A task's line has

    results: {"verdict": "reference"|"same"|"different"|"undecided", "reference": TASK, "first_step",
    "first_field",
              "different_elements", "max_abs_diff", "why"}

undecided: the two cannot be compared: one has no results, or only digests for a tolerance. Where exact
digests alone differ, different_elements is what is known at least, and max_abs_diff is null.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import TwinrunError, one_line
from ...outputs import write_whole
from .templates import fill

if TYPE_CHECKING:
    from .study import Study

__all__ = ["compare_results", "judge", "reference_place"]

_FIXED = "all"


def _uses_seed(study: Study) -> bool:
    texts = study.texts
    texts += [t for f in study.factors for t in (*f.variables.values(), *f.values.values())]
    return any("{seed}" in t for t in texts)


def reference_place(study: Study, folder: Path, seed: int) -> Path:
    """Where the reference of this seed is kept."""
    return folder / "results" / (str(seed) if _uses_seed(study) else _FIXED)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def compare_results(
    reference: Path, own: Path, atol: float | None = None, rtol: float | None = None
) -> dict[str, Any]:
    """verdict, first_step, first_field, different_elements, max_abs_diff (None: not known), why (where
    undecided).
    """
    from ...comparison.work import compare

    try:
        found = compare(reference, own, atol=atol, rtol=rtol, partial=True, threads=1)
    except TwinrunError as e:
        return {"verdict": "undecided", "why": one_line(e.what if hasattr(e, "what") else str(e))}
    except Exception as e:  # whatever a task wrote: the study goes on, and the line has the error
        return {"verdict": "undecided", "why": one_line(f"{type(e).__name__}: {e}")}
    first = found.first
    largest = [f.max_abs_diff for f in found.fields]
    unknown = not all(f.different_is_exact for f in found.fields)
    undecided = (
        {"why": one_line(found.problems[0])}
        if found.problems and first is None and not found.attributes
        else {}
    )
    return {
        "verdict": "different"
        if first is not None or found.attributes
        else "undecided"
        if undecided
        else "same",
        "first_step": None if first is None else first.step,
        "first_field": None if first is None else first.field,
        "different_elements": found.different,
        # For fields that agree it may only be a bound; the largest of the others counts.
        "max_abs_diff": None
        if unknown
        else _finite(max((x for x in largest if x is not None), default=None)),
        **undecided,
    }


def judge(study: Study, folder: Path, line: Mapping[str, Any], own: Path) -> dict[str, Any] | None:
    """The `results` of a task's line; own: the folder of the attempt.

    None where a task failed or left no results.
    """
    rule = study.results
    if rule is None or line["status"] != "ok":
        return None
    values = {
        **{f.name: f.value(line["factors"][f.name]) for f in study.factors},
        **{k: str(line.get(k, "")) for k in ("task", "seed", "repetition", "block", "attempt", "node")},
        "folder": str(own), "study": str(folder), "here": str(study.here), "cores": "", "core_count": "",
    }  # fmt: skip
    left = own / fill(rule.path, values)
    if rule.reference:
        reference = study.here / fill(rule.reference, values)
        if not left.exists():
            return None
        return {"reference": str(reference), **compare_results(reference, left, rule.atol, rule.rtol)}
    place = reference_place(study, folder, line["seed"])
    says = place.with_name(place.name + ".json")
    owner = _owner(says)
    mine = {"task": line["task"], "attempt": line["attempt"]}
    # The file is written first: a reference without it, or with other content, is not twinrun's.
    if owner is None or (not owner and os.path.lexists(place)):
        foreign = says if owner is None else place
        return {
            "verdict": "undecided",
            "why": one_line(f"{foreign}: is there already, and no task of this study left it: move it away"),
        }
    # Moved before the line was written, and then the runner died.
    if owner == mine and place.exists():
        return {"verdict": "reference", "reference": line["task"]}
    if not left.exists():
        return None
    if not os.path.lexists(place):
        place.parent.mkdir(exist_ok=True)
        write_whole(says, json.dumps(mine).encode())
        if not study.keep and _is_inside(left, own):
            os.rename(left, place)
        else:
            _copy(left, place)
        return {"verdict": "reference", "reference": line["task"]}
    return {"reference": owner.get("task"), **compare_results(place, left, rule.atol, rule.rtol)}


def _owner(says: Path) -> dict[str, Any] | None:
    """The owner of a reference, from its file; {} where there is no file, None where the file is not
    twinrun's.
    """
    if not os.path.lexists(says):
        return {}
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(says.read_text())
        if not says.is_symlink() and isinstance(found, dict) and found.keys() == {"task", "attempt"}:
            return found
    return None


def _is_inside(path: Path, own: Path) -> bool:
    """Whether a path lies in the folder of an attempt without a link: what lies elsewhere is the user's."""
    return os.path.realpath(path).startswith(f"{own.parent.resolve() / own.name}{os.sep}")


def _copy(source: Path, target: Path) -> None:
    """Copies whole or not at all."""
    made = Path(tempfile.mkdtemp(dir=target.parent, prefix=".twinrun-"))
    try:
        half = made / target.name
        if source.is_dir():
            shutil.copytree(source, half)
        else:
            shutil.copyfile(source, half)
        os.rename(half, target)
    finally:
        shutil.rmtree(made, ignore_errors=True)
