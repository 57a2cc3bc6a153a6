"""What `compare` gives: the verdict on two runs, and what is known of each field."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .. import _core
from ..errors import TwinrunError, one_line
from ..runs.provenance import Difference, Provenance, difference
from ..views import views
from ..words import byte_size, counted, counted_steps
from .again import Again
from .attributes import AttributeDifference
from .field import FieldComparison, FieldGroup
from .overview import differs, size_of
from .words import verdict_line

if TYPE_CHECKING:
    import matplotlib.figure
    import pandas
    import pyarrow

    from .differences import Differences

__all__ = ["Comparison", "Interrupted", "histogram_edges"]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, after some steps were compared.

    Attributes
    ----------
    comparison : Comparison
        What was compared until then. Its verdict is 'incomparable', and `problems` says how far it came.
    """

    def __init__(self, comparison: Comparison) -> None:
        super().__init__("interrupted")
        self.comparison = comparison


STAGES = ("tree", "sketch", "elements")


def histogram_edges() -> list[float]:
    """The edges of the histograms of |a - b|.

    Bin 0 counts |a - b| = 0, and bin 1 what lies below the first edge. The last two bins count 1e40 and
    above, and infinite differences.

    Returns
    -------
    list of float
        The edges, ascending.
    """
    return _core.histogram_edges()


@dataclass(repr=False)
class Comparison:
    """The result of `compare`: the verdict, and what is known of each field.

    >>> result = twinrun.compare({"x": np.zeros(4)}, {"x": np.array([0, 0, 1, 0.0])}, atol=0.5)
    >>> result.verdict, result.different
    ('different', 1)
    >>> result.first_divergence
    {'step': None, 'rank': 0, 'field': 'x', 'index': [2], 'a': 0.0, 'b': 1.0, 'abs_diff': 1.0}

    Attributes
    ----------
    a, b : str
        The two runs, as messages call them.
    verdict : {'same', 'different', 'incomparable'}
        'same': everything was compared and agrees. 'incomparable': something was not compared, see
        `problems`.
    fields : list of FieldComparison
        One for each step, rank and field, in this order.
    seconds : float
        Time of all work, in seconds.
    bytes_compared : int
        Bytes of the data that was compared, of one run.
    bytes_read : int
        Bytes that were read: headers, metadata and data of both runs.
    notes : list of str
        What the user should know, such as left-out data sets.
    not_compared : int
        Things of both runs that cannot be compared. They are problems, or `common` left them out.
    device_asked : str
        The parameter `device` of `compare`.
    provenance_a, provenance_b : Provenance or None
        Under which conditions the runs ran. None where a history does not say.
    problems : list of str
        What could not be compared, a line each. A verdict is never 'same' with one of them.
    attributes : list of AttributeDifference
        What differs beside numbers. What changes the meaning of numbers comes first.
    attributes_compared : int
        How many attributes were compared.
    conditions : list of Difference or None
        Conditions in which the runs differ, the likeliest explanation first. None where a run does not say.
    device : str
        Where the fields were compared: 'cpu', 'cuda:0', or several, as 'cpu, cuda:0'.
    device_seconds : float
        Time of copies to devices and of their kernels, in seconds, added up over fields.
    same : bool
        True only if the verdict is 'same'; `bool(comparison)` gives it.
    different : int
        Elements that differ, in all fields; at least so many where a field's `different_is_exact` is False.
    first : FieldComparison or None
        The field in which the runs first differ: the earliest step, then the lowest rank, then the order of
        fields. None where no field differs.
    worst : FieldComparison or None
        The field at the step and rank where |a - b| is largest. None where nothing differs.
    first_divergence : dict or None
        step, rank, field, index, a, b and abs_diff of the first difference; with `key` also key and id; where
        only digests are at hand also first_chunk.
    stages : dict of str to dict
        For each stage (tree, sketch, elements) the sums of chunks_in, chunks_out, bytes_read and seconds.

    Notes
    -----
    A result can be pickled. `differences` then works for paths, and not for arrays.
    """

    a: str
    b: str
    verdict: str
    fields: list[FieldComparison]
    seconds: float
    bytes_compared: int
    bytes_read: int
    notes: list[str]
    not_compared: int = 0
    device_asked: str = "auto"
    provenance_a: Provenance | None = None
    provenance_b: Provenance | None = None
    problems: list[str] = field(default_factory=list)
    attributes: list[AttributeDifference] = field(default_factory=list)
    attributes_compared: int = 0
    _again: Again | None = field(default=None, repr=False, compare=False)
    # What becomes `fields` when they are asked for, where they are not there.
    _found: Sequence[FieldComparison | FieldGroup] = field(default=(), repr=False, compare=False)

    @classmethod
    def _of(cls, found: Sequence[FieldComparison | FieldGroup], **facts: Any) -> Comparison:
        """A comparison with these fields; of groups they are made when they are asked for."""
        if not any(isinstance(one, FieldGroup) for one in found):
            return cls(fields=list(found), **facts)  # type: ignore[arg-type]
        made = cls(fields=[], _found=found, **facts)
        del made.fields
        return made

    def __getattr__(self, name: str) -> Any:
        if name != "fields" or not (found := self.__dict__.get("_found")):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        made = [f for one in found for f in (one.all() if isinstance(one, FieldGroup) else [one])]
        # Of several threads that ask at once all get one list.
        return self.__dict__.setdefault("fields", made)

    def __getstate__(self) -> dict:
        return {**self.__dict__, "fields": self.fields, "_found": ()}

    def done(self) -> bool:
        """Whether the answer is there without waiting.

        False only after `compare(..., wait=False)`, while devices work. This asks and does not wait.

        >>> twinrun.compare({"x": np.zeros(4)}, {"x": np.zeros(4)}, wait=False).done()
        True

        Returns
        -------
        bool
            Whether other attributes and methods answer at once.
        """
        return True

    def result(self) -> Comparison:
        """Waits until the comparison is finished; returns it.

        >>> twinrun.compare({"x": np.zeros(4)}, {"x": np.ones(4)}, wait=False).result().verdict
        'different'

        Returns
        -------
        Comparison
            This comparison.

        Raises
        ------
        TwinrunError
            What `compare` would have raised; every later question raises it again.
        """
        return self

    def _differing(self) -> Iterator[FieldComparison]:
        found = self.fields if "fields" in self.__dict__ else self._found
        for one in found:
            if isinstance(one, FieldGroup):
                yield from one.differing()
            elif not one.same:
                yield one

    def differences(self) -> Iterator[Differences]:
        """Yields every element that differs, a stretch at a time.

        >>> a, b = {"x": np.zeros(4)}, {"x": np.array([0, 2, 0, 3.0])}
        >>> for part in twinrun.compare(a, b).differences():
        ...     print(part.index.ravel(), part.abs_diff)
        [1 3] [2. 3.]

        Both runs are opened again, and only fields that differ are read. Memory stays bounded.

        Returns
        -------
        iterator of Differences
            Stretches, in the order of `fields`.

        Raises
        ------
        TwinrunError
            A run is not there any more (keep the arrays until this is done), or it was seen that it changed
            since it was compared. Only a part is read again: not every change is seen.
        """
        from .differences import differences  # with what opens both runs again

        return differences(self)

    def to_arrow(self) -> pyarrow.Table:
        """Makes a table with a row for each step, rank and field.

        Returns
        -------
        pyarrow.Table
            The table.

        Raises
        ------
        MissingPackage
            pyarrow is not installed.
        """
        from .tables import arrow_table

        return arrow_table(self)

    def to_pandas(self) -> pandas.DataFrame:
        """Makes a table with a row for each step, rank and field.

        >>> table = twinrun.compare({"x": np.zeros(4)}, {"x": np.ones(4)}).to_pandas()
        >>> table[["field", "elements", "different"]].values.tolist()
        [['x', 4, 4]]

        Returns
        -------
        pandas.DataFrame
            The table.

        Raises
        ------
        MissingPackage
            pandas is not installed.
        """
        from .tables import data_frame

        return data_frame(self)

    def __repr__(self) -> str:
        fields, steps = len({f.field for f in self.fields}), counted_steps(f.step for f in self.fields)
        what = f"{counted(fields, 'field')}, {steps}, {byte_size(self.bytes_compared)} a run"
        lines = (
            f"<Comparison of {self.a} and {self.b}",
            f"  {what}, in {self.seconds:.3g} s",
            f"  {verdict_line(self)}>",
        )
        return "\n".join(one_line(line, 400) for line in lines)

    def __str__(self) -> str:
        """The report that `twinrun compare` prints: a row for each field, and the verdict."""
        return views().as_text(self)

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Writes the report as one page, with all pictures inside.

        >>> twinrun.compare({"x": np.zeros(4)}, {"x": np.ones(4)}).to_html("report.html")

        Parameters
        ----------
        path : path
            The file; it is written whole, or not at all.

        Raises
        ------
        TwinrunError
            The file cannot be written.
        """
        views().write_html(self, path)

    def plot(
        self, kind: str = "growth", *, field: str | None = None, step: int | None = None
    ) -> matplotlib.figure.Figure:
        """Draws the growth of |a - b| over steps, or a map of where a field differs. Notebooks show it.

        >>> a, b = np.zeros((30, 40)), np.zeros((30, 40))
        >>> b[5:9, 7:30] = 1
        >>> result = twinrun.compare({"x": a}, {"x": b})
        >>> result.plot().savefig("growth.png")
        >>> result.plot("map").savefig("map.png")

        Parameters
        ----------
        kind : {'growth', 'map'}
            'growth': the largest |a - b| by step, a line for each field. 'map': where one field
            differs, and the largest |a - b| there: of a 2-D field in its plane, of a 3-D field in
            three planes, of a 1-D field along it, of particles in the planes of their positions.
            The runs are read again for it.
        field : str, default None
            For a map: the field; None for the first that differs.
        step : int, default None
            For a map: the step; None for the first in which the field differs.

        Returns
        -------
        matplotlib.figure.Figure
            The figure; it belongs to no window.

        Raises
        ------
        MissingPackage
            matplotlib is not installed.
        TwinrunError
            `kind` is unknown; or there is no map: nothing differs there, or the field has no axes.
        Stale
            The data was changed since the comparison.
        """
        if kind == "map":
            return views().map_figure(self, field, step)
        if kind != "growth" or field is not None or step is not None:
            known = "'growth' or 'map'; field and step are for maps"
            raise TwinrunError(f"plot({kind!r}) is not understood", fix=f"kind is {known}")
        return views().growth_figure(self)

    def _repr_html_(self) -> str:
        from .notebook import comparison_html

        return comparison_html(self)

    @property
    def conditions(self) -> list[Difference] | None:
        """Conditions in which the runs differ, the likeliest explanation first; None where a run does not
        say.
        """
        if self.provenance_a is None or self.provenance_b is None:
            return None
        return difference(self.provenance_a, self.provenance_b)

    @property
    def device(self) -> str:
        """Where fields were compared: 'cpu', 'cuda:0', or several, as 'cpu, cuda:0'."""
        return ", ".join(sorted({f.device for f in self.fields}))

    @property
    def device_seconds(self) -> float:
        """Time of copies to devices and of their kernels, in all fields, in seconds."""
        return sum(f.device_seconds for f in self.fields)

    @property
    def same(self) -> bool:
        """True only if everything was compared and agrees within the tolerance; `bool(comparison)`
        gives it.
        """
        return self.verdict == "same"

    def __bool__(self) -> bool:
        return self.same

    @property
    def different(self) -> int:
        """Elements that differ, in all fields; at least so many where a field's `different_is_exact` is
        False.
        """
        return sum(f.different for f in self._differing())

    @property
    def first(self) -> FieldComparison | None:
        """The field in which the runs first differ: the earliest step, then the lowest rank, then the order
        of fields.

        None where they only differ in `attributes`, or not at all.
        """
        return next(self._differing(), None)

    @property
    def worst(self) -> FieldComparison | None:
        """The field at the step and rank where |a - b| is largest; None where nothing differs."""
        found = max(self.fields, key=size_of, default=None)
        return found if found is not None and differs(found) else None

    @property
    def first_divergence(self) -> dict | None:
        """{step, rank, field, index, a, b, abs_diff} of the first difference."""
        f = self.first
        if f is None:
            return None
        return {
            "step": f.step,
            "rank": f.rank,
            "field": f.field,
            "index": None if f.first_chunk is not None else list(f.first_index or ()),
            **(
                {}
                if f.global_offset is None or f.first_chunk is not None
                else {"global_index": list(f.global_index(f.first_index) or ())}
            ),
            **({} if f.first_ranks is None else {"ranks": list(f.first_ranks)}),
            **({} if f.key is None else {"key": f.key, "id": f.first_id}),
            "a": f.first_a,
            "b": f.first_b,
            "abs_diff": f.first_abs_diff,
            **({} if f.first_chunk is None else {"first_chunk": [list(i) for i in f.first_chunk]}),
        }

    @property
    def stages(self) -> dict[str, dict]:
        """Sums over all fields of each stage's chunks_in, chunks_out, bytes_read and seconds."""
        total = {s: {"chunks_in": 0, "chunks_out": 0, "bytes_read": 0, "seconds": 0.0} for s in STAGES}
        for f in self.fields:
            for name, stage in f.stages.items():
                into = total.setdefault(
                    name, {"chunks_in": 0, "chunks_out": 0, "bytes_read": 0, "seconds": 0.0}
                )
                for key in into:
                    into[key] += stage[key]
        return total
