"""Other names for the modules and values of the second trace, by the rules of `compare(rename=…)`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from ..comparison.renames import Rename
from ..errors import Incomparable
from ..runs.events import Event
from ..runs.structure import renamed

__all__ = ["NewNames"]


class NewNames:
    """Rules, and which of them matched a name. label: of the trace.

    Rules are for paths of modules, for names of parameters, and for names of values that stand for
    themselves: what a training records, and fields of simulations. A parameter, its gradient and its states
    go with the module that holds it, unless a rule is for the parameter.
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
            old = event.module
            if old:
                event.module = self._new(old)
                self._one(self._modules, old, event.module)
            what, of, parameter = event.operation.rpartition(" of ")
            if (
                of
                and event.phase in ("backward", "optimizer")
                and (not old or parameter.startswith(f"{old}."))
            ):
                new = self._of_parameter(parameter, old, event.module)
                event.operation = f"{what}{of}{new}"
                self._rename_values(event, partial(_with_prefix, parameter, new))
            elif not old:
                self._rename_values(event, self._new)
                if event.phase == "record":
                    event.operation = self._new(event.operation)

    def _of_parameter(self, name: str, old: str, new: str) -> str:
        """The new name of a parameter: by a rule of its own, or else by that of its module."""
        own = self._new(name)
        return f"{new}{name[len(old) :]}" if own == name and old else own

    def _rename_values(self, event: Event, new: Callable[[str], str]) -> None:
        for value in event.values:
            old, value.name = value.name, new(value.name)
            self._one(self._values, old, value.name)
        if event.structure:
            event.structure = renamed(event.structure, new)

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


def _with_prefix(old: str, new: str, name: str) -> str:
    """The name of a parameter's value, as its gradient: other values, as settings, keep theirs."""
    return f"{new}{name[len(old) :]}" if name == old or name.startswith(f"{old}.") else name
