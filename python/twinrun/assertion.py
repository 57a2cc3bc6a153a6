"""`assert_same`: a comparison that raises, for tests."""

from __future__ import annotations

from .comparison.work import Comparison, compare
from .errors import Incomparable

__all__ = ["NotSame", "assert_same"]


class NotSame(AssertionError):
    """Two runs are not the same, or a part of them was not compared.

    >>> try:
    ...     twinrun.assert_same({"x": np.zeros(3)}, {"x": np.ones(3)})
    ... except twinrun.NotSame as error:
    ...     print(error.comparison.different)
    3

    Parameters
    ----------
    report : str
        The message: the table that `twinrun compare` prints.
    comparison : Comparison, default None
        What `compare` found. None where nothing could be compared.
    """

    def __init__(self, report: str, comparison: Comparison | None = None) -> None:
        super().__init__(report)
        self.comparison = comparison


def assert_same(a: object, b: object, **options: object) -> Comparison:
    """Raises `NotSame` unless two runs are the same; for tests.

    >>> x = np.linspace(0, 1, 100)
    >>> twinrun.assert_same({"x": x}, {"x": x + 1e-9}, atol=1e-6).verdict
    'same'

    Parameters
    ----------
    a, b : path, array or container of arrays
        The two runs, as `compare` takes them; `a` is the reference.
    **options : object
        Parameters of `compare`. `partial` is True unless given.

    Returns
    -------
    Comparison
        What `compare` found; its verdict is 'same'.

    Raises
    ------
    NotSame
        Something differs, or something could not be compared (another shape, a field that only one run has).
        The message is the report of all differences.
    TwinrunError
        Any other error of `compare`: a missing or damaged file is not a result.

    Examples
    --------
    >>> twinrun.assert_same({"x": x}, {"x": x + 1e-3}, atol=1e-6)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    twinrun.assertion.NotSame: field  different...
    """
    __tracebackhide__ = True
    try:
        result = compare(a, b, **{"partial": True, **options})  # type: ignore[arg-type]
    except Incomparable as e:
        raise NotSame(f"incomparable: {e}") from None
    if not result:
        raise NotSame(str(result), result)
    return result
