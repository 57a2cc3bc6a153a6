"""An accessor of xarray's: `ds.twinrun.compare(other)`, once this module is imported.

>>> import xarray
>>> import twinrun.xarray
>>> ds = xarray.Dataset({"t": ("x", np.zeros(4))})
>>> ds.twinrun.compare(ds + 1e-9, atol=1e-6).verdict
'same'

`import twinrun` does not load it, nor xarray.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .assertion import assert_same
from .comparison.work import compare
from .errors import MissingPackage

try:
    import xarray as _xarray
except ImportError:
    raise MissingPackage.of("xarray", "xarray") from None

if TYPE_CHECKING:
    from .comparison.work import Comparison

__all__ = ["TwinrunAccessor"]


class TwinrunAccessor:
    """What `.twinrun` of a Dataset, DataArray or DataTree is.

    Parameters
    ----------
    held : Dataset, DataArray or DataTree
        The object that has the accessor; it is the reference.
    """

    def __init__(self, held: Any) -> None:
        self._held = held

    def compare(self, other: object, **options: Any) -> Comparison:
        """Compares this object with another one: values, coordinates and attributes.

        >>> import xarray, twinrun.xarray
        >>> a = xarray.DataArray(np.zeros(3), dims="x")
        >>> a.twinrun.compare(a + 1).different
        3

        Parameters
        ----------
        other : Dataset, DataArray, DataTree or path
            The other run, as `twinrun.compare` takes it.
        **options : object
            Parameters of `twinrun.compare`.

        Returns
        -------
        Comparison
            What `twinrun.compare` finds.

        Raises
        ------
        TwinrunError
            As `twinrun.compare`.
        """
        return compare(self._held, other, **options)

    def assert_same(self, other: object, **options: Any) -> Comparison:
        """Raises `twinrun.NotSame` unless this object and another one are the same; for tests.

        >>> import xarray, twinrun.xarray
        >>> a = xarray.DataArray(np.zeros(3), dims="x")
        >>> a.twinrun.assert_same(a + 1e-9, atol=1e-6).verdict
        'same'

        Parameters
        ----------
        other : Dataset, DataArray, DataTree or path
            The other run.
        **options : object
            Parameters of `twinrun.compare`.

        Returns
        -------
        Comparison
            What `twinrun.compare` finds; its verdict is 'same'.

        Raises
        ------
        NotSame
            Something differs, or something could not be compared.
        TwinrunError
            Any other error of `twinrun.compare`.
        """
        __tracebackhide__ = True
        return assert_same(self._held, other, **options)


for _kind in ("dataset", "dataarray", "datatree"):  # trees are younger than the others
    _register = getattr(_xarray, f"register_{_kind}_accessor", None)
    if _register is not None:
        _register("twinrun")(TwinrunAccessor)
