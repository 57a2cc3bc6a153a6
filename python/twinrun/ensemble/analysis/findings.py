"""All analyses of one study, with one rate of false alarms, and a verdict.

An alarm is any claim of any analysis: that blocks, nodes, conditions, ... do something. Each
analysis corrects its own claims (Benjamini-Hochberg and the largest of all over nodes, Holm
elsewhere), and Holm's method applies over analyses: a study in which nothing is wrong raises any
alarm with a probability of at most alpha. Findings compete, so that one cause is one finding.
Descriptions do not count: they claim nothing beyond their intervals (spread, makespan,
decomposition, regimes, planning).

    findings = analyse("STUDY")
    findings.verdict           'reproducible', 'not reproducible' or 'undecided'
    findings.headline          the verdict as a sentence: what explains it, and how sure that is
    findings.sentences         one for each analysis
    findings.tables            {name of the analysis: DataFrame}
    findings.lines()           a summary for a terminal
    findings.to_html(path)     one file with everything, pictures inside
    findings.to_json(path)     all numbers; '-' is standard output
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from ..._core import __version__
from ...arguments import names_given, paths_given
from ...exports import Exports
from ...report import ensemble
from ..study.covariates import PREFIX, with_covariates
from ..study.tasks import load_tasks, statuses, usable
from .compare import compare
from .competition import ANALYSES, competing, judge_together
from .extras import of_folder
from .model import span
from .moments import shared_moments
from .needs import takes
from .remarks import remarks
from .result import FOUND, NONE, Analysis, Options

__all__ = ["ANALYSES", "Findings", "analyse", "analyse_frame"]

# Analyses whose claims explain why tasks differ, with the words of the headline.
_EXPLAIN = {
    "factors": "the conditions", "variation_factors": "the conditions (how much the time varies)", "nodes": "the node",
    "blocks": "the block", "time_of_day": "the time of day", "periods": "periodic noise", "trend": "a trend", "changes": "a change during the study",
    "load": "the load", "covariates": "a covariate", "tail": "a slow group", "scaling": "the problem size",
    "outcome": "what the tasks computed",
}  # fmt: skip


def _plain(value: Any) -> Any:
    """A value for strict JSON: no numpy, no NaN (null), infinities as "inf" and "-inf"."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, np.ndarray)):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return str(value)


@dataclasses.dataclass
class Findings(Exports):
    """All analyses of a study, judged together.

    >>> import pandas as pd
    >>> from twinrun.ensemble.analysis.findings import analyse_frame
    >>> wall = 1.0 + 0.001 * np.random.default_rng(1).normal(size=40)
    >>> tasks = pd.DataFrame({"task": range(40), "wall": wall})
    >>> from twinrun.ensemble.study.tasks import frame_of
    >>> found = analyse_frame(frame_of(tasks.to_dict("records")), only=["spread"])
    >>> found.verdict, found.names
    ('reproducible', ['spread'])

    Attributes
    ----------
    study : str
        The name of the study.
    analyses : list of Analysis
        In the order of the report.
    options : Options
        What they share.
    attempts : dict of str to int
        {status: how many attempts ended so}.
    tasks : int
        Tasks with a good attempt.
    remarks : list of str
        What a reader must know of the tasks before any analysis: that all failed, that a clock was set, ...
    names : list of str
        Names of the analyses.
    sentences : list of str
        One for each analysis: what it shows, and how sure that is.
    tables : dict of str to pandas.DataFrame
        By name of the analysis; empty tables are left out.
    alarms : list of Analysis
        The analyses with a claim that holds.
    verdict : {'reproducible', 'not reproducible', 'undecided'}
        The coefficient of variation against `options.matters`.
    headline : str
        The verdict as a sentence: what explains it, and how sure that is.

    Notes
    -----
    Holm's method over analyses: a study in which nothing is the matter raises any alarm with a
    probability of at most alpha (docs/reference/ensemble.md). Findings compete: what the best one explains is
    taken out before the others look again.
    """

    study: str
    analyses: list[Analysis]
    options: Options
    attempts: dict[str, int]
    tasks: int
    remarks: list[str] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        judge_together(self.analyses, self.options)

    def __getitem__(self, name: str) -> Analysis:
        """The analysis of this name; KeyError."""
        for a in self.analyses:
            if a.name == name:
                return a
        raise KeyError(name)

    @property
    def names(self) -> list[str]:
        """Names of the analyses, in order."""
        return [a.name for a in self.analyses]

    @property
    def sentences(self) -> list[str]:
        """The sentence of each analysis: what it shows, and how sure that is."""
        return [a.sentence for a in self.analyses]

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """The tables by name of the analysis; empty ones are left out."""
        return {a.name: a.table for a in self.analyses if not a.table.empty}

    @property
    def alarms(self) -> list[Analysis]:
        """The analyses with a claim that holds."""
        return [a for a in self.analyses if a.found]

    @property
    def verdict(self) -> str:
        """'reproducible', 'not reproducible' or 'undecided': the coefficient of variation against
        options.matters.
        """
        state = self["spread"].state if "spread" in self.names else None
        return {NONE: "reproducible", FOUND: "not reproducible"}.get(state or "", "undecided")

    @property
    def headline(self) -> str:
        """The verdict as a sentence: what explains it, and how sure that is."""
        o = self.options
        limit = f"{100 * o.matters:g}%"
        first = {
            "reproducible": f"The time is reproducible to {limit}",
            "not reproducible": f"The time is not reproducible to {limit}",
            "undecided": f"Whether the time is reproducible to {limit} cannot be decided",
        }[self.verdict]
        facts = self["spread"].facts.get("cov") if "spread" in self.names else None
        if facts and math.isfinite(facts["value"]):
            interval = (" " + span(facts["low"], facts["high"], unit="", marks=(o.matters,))
                        if math.isfinite(facts["low"]) and math.isfinite(facts["high"]) else "")  # fmt: skip
            why = self["spread"].facts.get("no_interval")
            why = f" (no interval: {why})" if why and not interval else ""
            first += (
                f": coefficient of variation {100 * facts['value']:.3g}%{interval}{why}, {self.tasks} tasks"
            )
        tests = sum(a.p is not None for a in self.analyses)
        answered = self._answered()
        nothing = f"nothing {'else ' if answered else ''}that was looked at is shown to matter"
        why = "; ".join(self._shown()) or (nothing if tests else "nothing could be tested")
        return f"{first}; {answered}{why} (at most {100 * o.alpha:g}% false alarms over all analyses that test something, {tests} here)."

    def _shown(self) -> list[str]:
        """What the headline says of all claims that hold."""
        said = []
        if explained := [_EXPLAIN[a.name] for a in self.alarms if a.name in _EXPLAIN]:
            said.append(f"shown to matter: {', '.join(explained)}")
        for a in self.alarms:
            if a.name == "compare":
                said.append(f"it differs from the earlier study ({', '.join(c.what for c in a.found)})")
            elif a.name not in _EXPLAIN:
                said.append(f"{a.title}: {', '.join(c.what for c in a.found)}")
        return said

    def _answered(self) -> str:
        """'hypotheses: 2 of 3 supported; '; they have a rate of false answers of their own."""
        if "hypotheses" not in self.names:
            return ""
        answers = [row["answer"] for row in self["hypotheses"].facts["hypotheses"]]
        decided = [
            f"{answers.count(answer)} of {len(answers)} {answer}"
            for answer in ("supported", "refuted")
            if answer in answers
        ]
        return f"hypotheses: {', '.join(decided)}; " if decided else ""

    def takes(self, name: str) -> str:
        """What the analysis of this name would take to decide.

        Parameters
        ----------
        name : str
            Of an analysis.

        Returns
        -------
        str
            Empty where it decided, or describes.
        """
        return takes(self[name], self.options)

    def lines(self, verbose: bool = False) -> list[str]:
        """The summary for a terminal: the conditions first, the verdict last.

        Parameters
        ----------
        verbose : bool, default False
            Whole sentences of analyses that could not decide; otherwise only what a decision would need.

        Returns
        -------
        list of str
            The lines.
        """
        return ensemble.summary_lines(self, verbose)

    def document(self) -> dict:
        """Everything, for JSON.

        Returns
        -------
        dict
            As `twinrun ensemble report --json` writes it.
        """
        return _plain(
            {
                "twinrun": __version__,
                "kind": "ensemble report",
                "version": 1,
                "study": self.study,
                "verdict": self.verdict,
                "headline": self.headline,
                "options": dataclasses.asdict(self.options),
                "attempts": self.attempts,
                "tasks": self.tasks,
                "remarks": self.remarks,
                "alarms": [a.name for a in self.alarms],
                "analyses": [
                    {
                        "name": a.name,
                        "title": a.title,
                        "sentence": a.sentence,
                        "state": a.state,
                        "description": a.description or None,
                        "tasks": a.tasks,
                        "p": a.p,
                        "p_report": None if a.p is None else a.judged_by.adjusted(a.p),
                        "could_see": a.seen,
                        "takes": takes(a, self.options) or None,
                        "after": a.after,
                        "claims": [
                            {"what": c.what, "p": c.p, "p_report": a.judged_by.adjusted(c.p),
                             "holds": a.judged_by.holds(c), **c.facts}
                            for c in a.claims
                        ],
                        "facts": a.facts,
                        "notes": a.notes,
                        "table": a.table.to_dict("records"),
                    }
                    for a in self.analyses
                ],
            }
        )  # fmt: skip

    def _report(self) -> Any:
        return ensemble


def analyse_frame(
    frame: pd.DataFrame,
    options: Options = Options(),  # noqa: B008
    *,
    only: Iterable[str] | None = None,
    against: pd.DataFrame | None = None,
    study: str = "study",
) -> Findings:
    """All analyses (or those named) of a table of tasks; against: an earlier study, the base of a
    comparison.
    """
    chosen = list(ANALYSES) if only is None else names_given(only, "only")
    if only is None and any(str(c).startswith(PREFIX) for c in frame):
        chosen.insert(chosen.index("load") + 1, "covariates")
    made = competing(frame, options, chosen)
    folder = frame.attrs.get("study")
    if folder is not None and only is None:
        made += of_folder(folder, frame, options)
    if against is not None:
        made.append(compare(against, frame, options))
    said = remarks(frame, options)
    if (shared := shared_moments(frame, options)) is not None:
        said.append(
            f"{shared.sentence[0].upper()}{shared.sentence[1:]}. So means of workloads are compared, and nothing is said of blocks, "
            "periods, trends, changes and slow groups."
        )
    return Findings(
        study,
        made,
        options,
        statuses(frame),
        len(usable(frame, options.value)),
        said,
    )


def analyse(
    study: str | os.PathLike[str],
    options: Options = Options(),  # noqa: B008
    *,
    only: Iterable[str] | None = None,
    against: str | os.PathLike[str] | None = None,
    covariates: Iterable[str | os.PathLike[str]] = (),
) -> Findings:
    r"""Analyses whether the time of a study is reproducible, and what makes it vary.

    >>> import json, pathlib
    >>> rng = np.random.default_rng(1)
    >>> pathlib.Path("study").mkdir()
    >>> lines = [{"task": k, "status": "ok", "wall": 1 + 0.001 * rng.normal()} for k in range(40)]
    >>> _ = pathlib.Path("study/tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    >>> from twinrun.ensemble import analyse
    >>> analyse("study", only=["spread"]).verdict
    'reproducible'

    Parameters
    ----------
    study : str or path
        The folder of a study. It may still run: the tasks that have ended are analysed.
    options : Options, default Options()
        What all analyses share.
    only : str or iterable of str, default None
        Names of analyses; None for all.
    against : str or path, default None
        The folder of an earlier study, to compare with.
    covariates : path or iterable of paths, default ()
        CSV files with numbers of tasks: a column `task` or `time`, and a column for each covariate.

    Returns
    -------
    Findings
        The analyses and the verdict.

    Raises
    ------
    MissingPackage
        A package of twinrun[ensemble] is not installed.
    MissingFile, DamagedFile, Unsupported
        The study cannot be read.
    TwinrunError
        There is nothing to analyse, or no such column.

    Notes
    -----
    The same data give the same report: random numbers follow `options.seed`. docs/reference/ensemble.md says
    what each analysis tests.
    """
    earlier = None if against is None else load_tasks(against)
    frame = load_tasks(study)
    for path in paths_given(covariates):
        frame = with_covariates(frame, path)
    return analyse_frame(frame, options, only=only, against=earlier, study=frame.attrs["name"])
