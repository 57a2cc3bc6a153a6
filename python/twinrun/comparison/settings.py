"""The settings of a comparison, and what they make of one field: what counts as different in it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass

from .. import _core
from ..errors import Incomparable
from ..formats.element_types import COMPLEX, FLOATING
from ..formats.texts import never_tolerated
from ..runs.fields import FieldRef
from .tolerances import Periods, Rule, Tolerances

__all__ = ["Decision", "Settings"]


@dataclass(frozen=True)
class Decision:
    """What counts as different in one field: |a - b| > atol + rtol |a|, and more than `ulps` representable
    values apart.

    period: lengths of circles by component; component_stride: scalars from one component to the next.
    """

    atol: float = 0.0
    rtol: float = 0.0
    ulps: int | None = None
    period: tuple[float, ...] = ()
    component_stride: int = 1
    equal_nan: bool = True

    def period_of(self, scalar: int | None) -> float:
        """Length of the circle that a scalar lies on; 0 for a line."""
        if scalar is None or not self.period:
            return 0.0
        return self.period[scalar // self.component_stride % len(self.period)]

    def rule(self) -> _core.Rule:
        """The decision as the core takes it."""
        return _core.Rule(
            atol=self.atol,
            rtol=self.rtol,
            nan_equal=self.equal_nan,
            ulps=self.ulps,
            period=self.period,
            component_stride=self.component_stride,
        )


@dataclass(frozen=True)
class Settings:
    """The settings of one `compare` call.

    tolerances: rules by field and step; the others apply where no rule matches. by_values: fields of
    different types are compared by the real numbers that they hold.
    """

    atol: float | None = None
    rtol: float | None = None
    equal_nan: bool = True
    method: str = "auto"
    integers: bool = False
    residue_bits: int = 4
    chunk_bytes: int = 4096
    threads: int = 0
    memory: int = 1 << 30
    io: str = "auto"
    cache: str = "auto"
    device: str = "auto"
    devices: list[int] = dataclasses.field(default_factory=list)
    ulps: int | None = None
    tolerances: Tolerances = dataclasses.field(default_factory=Tolerances)
    periods: Periods = dataclasses.field(default_factory=Periods)
    by_values: bool = False

    def options(self, progress: Callable[[int, int], None] | None = None) -> _core.CompareOptions:
        """How fields are compared, as the core takes it. progress: see `_core.CompareOptions`."""
        return _core.CompareOptions(
            method=self.method,
            threads=self.threads,
            memory=self.memory,
            io=self.io,
            cache=self.cache,
            progress=progress,
            device=self.device,
            devices=self.devices,
        )

    @functools.cached_property
    def by_kind(self) -> tuple[Decision, Decision]:
        """The decisions for floating-point fields and for others, whatever their names, without metadata."""
        likes = (FieldRef("", dtype, "little", (1,), False, "") for dtype in ("f64", "i64"))
        floating, others = (self.decision(like, like, None) for like in likes)
        return floating, others

    def rule(self, name: str, step: int | None) -> Rule | None:
        """The rule of a field; its `skip` leaves the field out."""
        return self.tolerances.find(name, step)

    def decision(self, a: FieldRef, b: FieldRef, step: int | None) -> Decision:
        """The tolerance of a field: from its rule, else from the settings, else from its metadata, else
        equality.
        """
        rule = self.rule(a.name, step)
        # No numbers: they are equal or different. A date that is none (NaT) is far from no other.
        if any(ref.kind is not None or ref.unit is not None for ref in (a, b)):
            return Decision()
        equal_nan = self.equal_nan if rule is None or rule.equal_nan is None else rule.equal_nan
        if a.type_in_run != b.type_in_run and (rule.ulps if rule is not None else self.ulps) is not None:
            raise Incomparable(
                f"field {a.name!r}: representable values are those of one type, and these are "
                f"{a.type_in_run} and {b.type_in_run}",
                fix="give atol and rtol: rtol = 2^-8 is a step of bf16, 2^-10 of f16, 2^-23 of f32",
            )
        if a.dtype not in FLOATING and b.dtype not in FLOATING:
            tolerant = self.integers if rule is None or rule.integers is None else rule.integers
            if not tolerant or never_tolerated(a.name):
                return Decision(equal_nan=equal_nan)
        ulps = self.ulps if rule is None else rule.ulps
        if rule is not None and not (rule.atol is None and rule.rtol is None and rule.ulps is None):
            atol, rtol = rule.atol or 0.0, rule.rtol or 0.0
        elif self.atol is not None or self.rtol is not None or self.ulps is not None:
            atol, rtol, ulps = self.atol or 0.0, self.rtol or 0.0, self.ulps
        else:
            made = {(r.facts.atol, r.facts.rtol) for r in (a, b) if r.facts is not None}
            if len(made) > 1:
                raise Incomparable(
                    f"field {a.name!r}: the runs were captured for different tolerances",
                    fix="say which with --atol and --rtol",
                )
            atol, rtol = made.pop() if made else (0.0, 0.0)
        if a.dtype not in FLOATING or b.dtype not in FLOATING:
            if (a.dtype in FLOATING or b.dtype in FLOATING) and self._period(a, rule):
                raise Incomparable(
                    f"field {a.name!r}: {a.type_in_run} and {b.type_in_run} have no type in common, as a circle needs",
                    fix="convert both to float64, or leave the period out",
                )
            return Decision(atol, rtol, None, (), 1, equal_nan)
        return Decision(atol, rtol, ulps, *_circles(a, self._period(a, rule)), equal_nan)

    def period(self, a: FieldRef, b: FieldRef, step: int | None) -> tuple[float, ...]:
        """The lengths of the circles that a field's values lie on, by component; () on a line."""
        if not (
            self.periods.axes or self.periods.named or any(rule.period for rule in self.tolerances.rules)
        ):
            return ()
        if a.kind is not None or b.kind is not None or a.dtype not in FLOATING:
            return ()
        return () if a.dtype in COMPLEX else self._period(a, self.rule(a.name, step))

    def _period(self, a: FieldRef, rule: Rule | None) -> tuple[float, ...]:
        period = rule.period if rule is not None and rule.period else self.periods.of(a.name, a.user_shape)
        return period if any(period) else ()


def _circles(a: FieldRef, period: tuple[float, ...]) -> tuple[tuple[float, ...], int]:
    """The lengths, and scalars from one component to the next."""
    if not period:
        return (), 1
    if a.dtype in COMPLEX:
        raise Incomparable(f"field {a.name!r}: complex numbers have no period")
    if len(period) == 1:
        return period, 1
    shape = a.user_shape
    if len(shape) < 2 or shape[-1] != len(period):
        raise Incomparable(
            f"field {a.name!r} has shape {list(shape)}, and {len(period)} periods were given",
            fix="its last axis must be the components",
        )
    return period, a.items // shape[-1] if a.fortran_order else 1
