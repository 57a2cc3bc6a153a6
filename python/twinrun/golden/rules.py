"""What counts as different in golden fields: as for `compare`, and what of it needs values."""

from __future__ import annotations

from collections.abc import Iterable

from ..arguments import tolerance_number
from ..comparison.matching import names
from ..comparison.settings import Decision, Settings
from ..comparison.tolerances import Periods, periods_of
from ..errors import Incomparable, TwinrunError, in_short

__all__ = ["needs_values", "rule_settings", "without_circle"]


def needs_values(decision: Decision) -> str:
    """What digests alone cannot prove of a decision: 'ulp'; '' where they can prove all of it."""
    if decision.ulps:
        return "ulp"
    if any(decision.period):
        return "period"
    return "" if decision.equal_nan else "nan_differs"


def rule_settings(
    atol: float | None,
    rtol: float | None,
    ulp: int | None,
    period: str | float | Iterable[float] | None,
    tolerate_integers: bool,
) -> Settings:
    """The settings that decide about fields. Raises TwinrunError where a parameter has no meaning."""
    if ulp is not None and not (type(ulp) is int and 0 <= ulp < (1 << 64) - 1):
        raise TwinrunError(f"ulp must be a number of representable values, not {in_short(ulp)}")
    return Settings(
        atol=None if atol is None else tolerance_number("atol", atol),
        rtol=None if rtol is None else tolerance_number("rtol", rtol),
        ulps=ulp,
        periods=periods_of(period),
        integers=tolerate_integers,
    )


def without_circle(periods: Periods, label: str) -> Incomparable:
    """The error where no field of a run lies on the circles that a call gives."""
    named = [glob for glob, _ in periods.named]
    why = f"no name matches {names(map(repr, named))}" if named else "no name is that of positions"
    return Incomparable(
        f"there is no field for the period: {why}", where=label, fix="say which: --period field=10x10x20"
    )
