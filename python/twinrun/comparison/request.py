"""What a comparison was asked for: two runs, and how to compare them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from .. import _core
from ..arguments import Globs
from ..errors import Incomparable, TwinrunError
from ..formats.texts import names_to_choose
from ..runs.subject import Subject
from .matching import StepMatch
from .renames import Renamed
from .settings import Settings
from .tolerances import Met, RulesInUse

__all__ = ["Request", "Selection"]


@dataclass(frozen=True)
class Request:
    """Two runs, and how to compare them.

    globs: of the fields that were chosen by name; None for all. key: the field with the IDs of particles.
    partial: what cannot be compared becomes a problem. common: what only one run has is left out. With
    neither, the first problem raises. by_time: steps are matched by their time.
    progress: called with a label, what is done and the total. started: pairs of arrays that are
    compared already.
    """

    a: Subject
    b: Subject
    settings: Settings
    globs: list[str] | None = None
    key: str | None = None
    use_metadata: bool = True
    partial: bool = False
    common: bool = False
    by_time: bool = False
    progress: Callable[[str, int, int], None] | None = None
    started: _core.StartedPairs | None = None

    @cached_property
    def chosen(self) -> Globs | None:
        """`globs`, to be asked for one name after another."""
        return None if self.globs is None else Globs(self.globs)

    @property
    def labels(self) -> str:
        """Both runs, for messages."""
        return f"{self.a.label}, {self.b.label}"

    @property
    def goes_on(self) -> bool:
        """Whether the rest is compared where something cannot be."""
        return self.partial or self.common

    def kept(self, problem: TwinrunError, match: StepMatch | None = None) -> TwinrunError:
        """The problem, to be reported; raises it where the caller wants all or nothing.

        match: the step that it is of.
        """
        problem = self._explained(problem, match)
        if not self.goes_on:
            raise problem
        return problem

    def _explained(self, problem: TwinrunError, match: StepMatch | None) -> TwinrunError:
        """The problem itself; or, where a run that is still written dropped the step meanwhile, an error that
        says so.
        """
        if match is None or isinstance(problem, Incomparable):
            return problem
        for subject, step in ((self.a, match.step_a), (self.b, match.step_b)):
            why = subject.explained(problem, step)
            if why is not problem:
                return why
        return problem


class Selection:
    """Which fields and attributes of a step are compared: chosen by name, and left out by no rule.

    It remembers which rules and names that took: see `met`.
    """

    def __init__(self, request: Request, step: int | None) -> None:
        self._request = request
        self._globs, self._step = request.chosen, step
        self._tolerances = request.settings.tolerances
        self._rules = RulesInUse(self._tolerances)
        self._asked: set[int] = set()  # numbers of the globs that matched

    def __call__(self, name: str) -> bool:
        """Whether to compare a field: by --field, and by rules that leave fields out."""
        if not self.asks_for(name):
            return False
        if "@" in name and self.ignores(name):  # an attribute that is a field
            return False
        return not self.skips(name)

    def asks_for(self, name: str) -> bool:
        """Whether the caller chose this field, by --field or as one of all."""
        if self._globs is None:
            return True
        # A field is chosen with what says something of it: where it has values, and its units.
        met = {at for one in names_to_choose(name) for at in self._globs.met(one)}
        self._asked |= met
        return bool(met)

    def skips(self, name: str) -> bool:
        """Whether a field's rule leaves it out."""
        rule = self._rules.find(name, self._step)
        return rule is not None and rule.skip

    def ignores(self, label: str) -> bool:
        """Whether a rule leaves out the attribute of this label, `path@name`."""
        return self._rules.ignores(label, self._step)

    def leaves_out(self, name: str) -> bool:
        """Whether a rule leaves this name out. Is not remembered."""
        return self._tolerances.leaves_out(name, self._step)

    def met(self) -> Met:
        """Which rules matched, and which names met none, so far."""
        met = replace(self._rules.met(), asked=frozenset(self._asked))
        other = self._request.b
        return replace(met, renamed=frozenset(other.used)) if isinstance(other, Renamed) else met
