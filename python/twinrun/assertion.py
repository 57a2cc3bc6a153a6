"""`assert_same`: a comparison that raises, for tests."""

from __future__ import annotations

import io

from .comparison.work import Comparison, compare
from .errors import Incomparable

__all__ = ["NotSame", "assert_same"]

_WIDTH = 110


class NotSame(AssertionError):
    """Two runs are not the same, or not all of them was compared.

    comparison: what `compare` found; None where nothing could be compared.
    """

    def __init__(self, report: str, comparison: Comparison | None = None) -> None:
        super().__init__(report)
        self.comparison = comparison


def assert_same(a: object, b: object, **options: object) -> Comparison:
    """Raises NotSame, with the report as its message, unless `compare(a, b, **options)` says that all is the same.

    What cannot be compared, shapes that differ say, is reported beside the rest. Returns the comparison. Raises the other
    TwinrunErrors of `compare` as they are: a file that is missing or damaged is no result.
    """
    __tracebackhide__ = True
    try:
        result = compare(a, b, **{"partial": True, **options})  # type: ignore[arg-type]
    except Incomparable as e:
        raise NotSame(f"incomparable: {e}") from None
    if not result:
        raise NotSame(_report(result), result)
    return result


def _report(result: Comparison) -> str:
    from rich.console import Console

    from .report.text import print_comparison

    out = io.StringIO()
    print_comparison(Console(file=out, width=_WIDTH, no_color=True, highlight=False), result)
    return out.getvalue().rstrip()
