"""Other names for the modules and values of the second trace, by the rules of `compare(rename=…)`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..comparison.renames import Rename
from ..errors import Incomparable
from ..runs.events import Event
from ..runs.structure import renamed

__all__ = ["NewNames"]


class NewNames:
    """Rules, and which of them matched a name. label: of the trace.

    Rules are for paths of modules, and for names of values that stand for themselves: those of events of no
    module, which are parameters, gradients and states at the optimizer's step, and fields of simulations.
    """

    def __init__(self, rules: Sequence[Rename], label: str) -> None:
        self._rules, self._label = tuple(rules), label
        self._used: set[int] = set()
        # Old names by their new ones.
        self._modules: dict[str, str] = {}
        self._values: dict[str, str] = {}

    def apply(self, events: Iterable[Event]) -> None:
        """Changes the events. Raises Incomparable where two names become one."""
        if not self._rules:
            return
        for event in events:
            if event.module:
                old, event.module = event.module, self._new(event.module)
                self._one(self._modules, old, event.module)
            else:
                for value in event.values:
                    old, value.name = value.name, self._new(value.name)
                    self._one(self._values, old, value.name)
                if event.structure:
                    event.structure = renamed(event.structure, self._new)

    def unused(self) -> list[str]:
        """What is wrong with the rules: those that matched nothing."""
        return [
            f"{self._label}: rename {str(rule)!r} matches no module and no value; check the pattern, or leave it out"
            for at, rule in enumerate(self._rules)
            if at not in self._used
        ]

    def _new(self, name: str) -> str:
        for at, rule in enumerate(self._rules):
            new = rule.of(name)
            if new is not None:
                self._used.add(at)
                return new
        return name

    def _one(self, known: dict[str, str], old: str, new: str) -> None:
        if known.setdefault(new, old) != old:
            raise Incomparable(
                f"{known[new]!r} and {old!r} both get the name {new!r} by rename",
                where=self._label,
                fix="give them names of their own",
            )
