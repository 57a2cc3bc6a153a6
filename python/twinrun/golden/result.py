"""What `save` and `check` return."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from ..comparison.attributes import AttributeDifference

__all__ = ["GoldenCheck", "GoldenElement", "GoldenField", "GoldenProblem", "GoldenSpan", "SaveFacts"]


@dataclass(frozen=True)
class SaveFacts:
    """What `save` kept.

    >>> from twinrun import golden
    >>> facts = golden.save({"x": np.zeros(100_000, np.float32)}, "golden/x", atol=1e-6)
    >>> facts.fields, facts.files, facts.data_bytes, facts.bytes < 0.2 * facts.data_bytes
    (1, 2, 400000, True)

    Attributes
    ----------
    path : str
        The folder of the golden files.
    files : int
        How many files it has.
    fields : int
        How many fields were kept, over all steps and ranks.
    names : int
        How many names they have: a field that was kept at several steps or ranks counts once.
    steps : int
        How many steps were kept; 0 where the run has none.
    data_bytes : int
        Bytes of the elements that the digests stand for.
    bytes : int
        Bytes of all files.
    notes : list of str
        What the user should know, such as left-out data sets.
    """

    path: str
    files: int
    fields: int
    names: int
    steps: int
    data_bytes: int
    bytes: int
    notes: list[str]


@dataclass(frozen=True)
class GoldenElement:
    """An element that differs, or that is undecided.

    >>> from twinrun import golden
    >>> facts = golden.save({"x": np.zeros(4)}, "golden/x", atol=1.0)
    >>> element = golden.check("golden/x", {"x": np.array([0, 0, 8.0, 0])}).fields[0].first
    >>> element.index, element.b, element.at_least <= 8 <= element.at_most
    ((2,), 8.0, True)

    Attributes
    ----------
    index : tuple of int
        Where it is in the array, as the user knows it.
    b : float, int or str
        Its value now.
    cells : int or None
        How many cells the golden value lies above b; None where only the residue is known, or where the
        golden value itself is.
    at_least, at_most : float
        Bounds of |a - b|. `at_most` may be infinite, and is for elements that are no numbers. Both are where
        b is NaN or infinite and the golden value another. Where the golden value is kept, both are |a - b|,
        rounded to the nearest number.
    verdict : {'different', 'undecided'}
        Whether it is known to differ.
    a : float, int or None
        The golden value; None where only its digest is kept.
    id : int or None
        Of a particle that was matched by its ID: the ID. `index` is then that of the component.
    """

    index: tuple[int, ...]
    b: float | int | str
    cells: int | None
    at_least: float
    at_most: float
    verdict: str
    a: float | int | None = None
    id: int | None = None


@dataclass(frozen=True)
class GoldenSpan:
    """A chunk that differs, or may differ.

    Attributes
    ----------
    first, last : int
        Its first and last scalar, both included, in the order of the array.
    first_index, last_index : tuple of int
        The same, as indices.
    different : int
        Scalars that differ, at least. It is their number where `exact` is True and `undecided` is 0.
    exact : bool
        True: it is known of each scalar how many cells apart it is. Of `undecided` ones that does not say
        whether they differ.
    located : bool
        True: the digests are explained by one outlier, which is wrong with a probability of 2^-23.
    verdict : {'different', 'undecided'}
        Whether the chunk is known to differ.
    undecided : int
        Undecided scalars, if `exact`.
    """

    first: int
    last: int
    first_index: tuple[int, ...]
    last_index: tuple[int, ...]
    different: int
    exact: bool
    located: bool
    verdict: str
    undecided: int = 0


def brackets(index: tuple[int, ...], id: int | None = None) -> str:
    """'[3, 7]', '[id 12, 0]', ''."""
    at = [*([] if id is None else [f"id {id}"]), *map(str, index)]
    return f"[{', '.join(at)}]" if at else ""


@dataclass
class GoldenField:
    """What golden digests show of one field at one step and rank.

    >>> from twinrun import golden
    >>> facts = golden.save({"x": np.zeros(4)}, "golden/x", atol=1e-6)
    >>> field = golden.check("golden/x", {"x": np.array([0, 0, 1.0, 0])}).fields[0]
    >>> field.verdict, field.different, field.different_is_exact, field.place(field.first.index)
    ('different', 1, True, 'rank 0, x[2]')

    Attributes
    ----------
    step, rank : int or None
        Where the field is; None where the run has no steps.
    field, dtype, shape : str, str, tuple of int
        Name, element type and shape of the field.
    atol, rtol : float
        The tolerance that the golden files were saved for.
    elements : int
        Scalars; a complex number counts twice.
    bytes : int
        Bytes of the field.
    chunks : int
        Chunks of the field.
    residue_bits : int
        Bits an element in the golden files.
    cell : float
        Width of a cell; 0 where the rule has none, or where values are kept.
    different : int
        Scalars that differ, at least.
    different_is_exact : bool
        True: the count is exact, because nothing is undecided.
    undecided : int
        Scalars whose cells are known, but not whether they agree.
    chunks_different : int
        Chunks that differ.
    chunks_undecided : int
        Chunks whose cells are unknown.
    spans, listed : list of GoldenSpan, list of GoldenElement
        Chunks and elements that differ or may differ, in order, up to `most_listed`.
    spans_left_out, listed_left_out : int
        How many more there are.
    at_least, at_most : float or None
        Bounds of the largest |a - b|. `at_most` is None where none is known. Where `kind` is set and
        something differs: 0 and None, because there is no distance.
    kind : str or None
        What elements are that are no numbers, as 'text'; `listed` then has them as text where the run
        says it.
    values_kept : bool
        True: the golden files keep the values, and the result is that of `twinrun.compare`. Nothing is
        undecided.
    ulps : int or None
        Representable values between a and b that still count as the same.
    period : tuple of float
        Lengths of the circles that values lie on, by component; empty on a line.
    unit : str or None
        Of dates and time spans, which compare as integers: NumPy's name of their type, as 'M8[ns]'.
    verdict : {'same', 'different', 'undecided'}
        'undecided': cannot be decided within one cell.
    first : GoldenElement or None
        The first element that is known to differ; else the first that is undecided.
    """

    step: int | None
    rank: int
    field: str
    dtype: str
    shape: tuple[int, ...]
    atol: float
    rtol: float
    elements: int
    bytes: int
    chunks: int
    residue_bits: int
    cell: float
    different: int = 0
    different_is_exact: bool = True
    undecided: int = 0
    chunks_different: int = 0
    chunks_undecided: int = 0
    spans: list[GoldenSpan] = dataclasses.field(default_factory=list)
    spans_left_out: int = 0
    listed: list[GoldenElement] = dataclasses.field(default_factory=list)
    listed_left_out: int = 0
    at_least: float = 0.0
    at_most: float | None = 0.0
    kind: str | None = None
    values_kept: bool = False
    ulps: int | None = None
    period: tuple[float, ...] = ()
    unit: str | None = None

    @property
    def verdict(self) -> str:
        """'same', 'different' or 'undecided' (within one cell)."""
        if self.different:
            return "different"
        return "undecided" if self.undecided or self.chunks_undecided else "same"

    def __bool__(self) -> bool:
        return self.verdict == "same"

    @property
    def first(self) -> GoldenElement | None:
        """The first element that is known to differ; else the first that is undecided."""
        return next(
            (e for e in self.listed if e.verdict == "different"), self.listed[0] if self.listed else None
        )

    def place(self, index: tuple[int, ...] | None = None) -> str:
        """Where the field is, as text: 'step 500, rank 0, x[1234, 2]'.

        Parameters
        ----------
        index : tuple of int, default None
            An element of the field; None for the field.

        Returns
        -------
        str
            The place.
        """
        parts = [] if self.step is None else [f"step {self.step}"]
        parts.append(f"rank {self.rank}")
        return ", ".join([*parts, self.field + brackets(index or ())])


@dataclass(frozen=True)
class GoldenProblem:
    """Something that was not compared, and why.

    >>> from twinrun import golden
    >>> facts = golden.save({"x": np.zeros(10)}, "golden/x")
    >>> problem = golden.check("golden/x", {"x": np.zeros(9)}).problems[0]
    >>> problem.field, problem.place()
    ('x', 'rank 0, x')

    Attributes
    ----------
    step, rank : int or None
        Where it belongs; None where it is not of one step or rank.
    field : str or None
        The field; None where it is a whole step or rank.
    text : str
        Why it was not compared.
    """

    step: int | None
    rank: int | None
    field: str | None
    text: str

    def place(self) -> str:
        """Where it belongs, as text: 'step 500, rank 0, x'.

        Returns
        -------
        str
            The place; '' where it is not of one step or rank.
        """
        parts = [] if self.step is None else [f"step {self.step}"]
        parts += [] if self.rank is None else [f"rank {self.rank}"]
        return ", ".join(parts + ([] if self.field is None else [self.field]))


@dataclass
class GoldenCheck:
    """The result of `check`: a verdict, and what is known of each field.

    >>> from twinrun import golden
    >>> facts = golden.save({"x": np.zeros(10)}, "golden/x", atol=1e-6)
    >>> x = np.zeros(10)
    >>> x[3] = 1e-3
    >>> result = golden.check("golden/x", {"x": x})
    >>> result.verdict, result.different, result.status
    ('different', 1, 1)

    Attributes
    ----------
    golden, run : str
        The folder of golden files and the run, as messages call them.
    fields : list of GoldenField
        One for each step, rank and field, in this order.
    problems : list of GoldenProblem
        What was not compared, and why.
    notes : list of str
        What the user should know.
    seconds : float
        Time of the check, in seconds.
    undecided_passes : bool
        Whether `check` was called with undecided='pass'.
    golden_bytes : int
        Bytes of the golden files.
    provenance : dict or None
        Conditions of the saved run: {group: {name: text}}.
    attributes : list of AttributeDifference
        What files say otherwise than when they were saved: a is saved, b is now.
    attributes_compared : int
        How many attributes were compared.
    verdict : {'same', 'different', 'undecided', 'incomparable'}
        'incomparable' if anything was not compared; else 'different' if anything differs; else 'undecided' if
        something cannot be decided within one cell.
    same : bool
        True where `status` is 0; `bool(result)` gives it.
    status : {0, 1, 2}
        Exit status: 0 the same, 1 different or undecided, 2 something was not compared.
    first : GoldenField or None
        The first field that differs; else the first that is undecided.
    different : int
        Elements that differ, at least.
    """

    golden: str
    run: str
    fields: list[GoldenField]
    problems: list[GoldenProblem]
    notes: list[str]
    seconds: float
    undecided_passes: bool = False
    golden_bytes: int = 0
    provenance: dict[str, dict[str, str]] | None = dataclasses.field(default=None, repr=False)
    attributes: list[AttributeDifference] = dataclasses.field(default_factory=list)
    attributes_compared: int = 0

    @property
    def verdict(self) -> str:
        """'same', 'different', 'undecided' or 'incomparable'."""
        if self.problems or not self.fields:
            return "incomparable"
        verdicts = {f.verdict for f in self.fields} | ({"different"} if self.attributes else set())
        return next((v for v in ("different", "undecided") if v in verdicts), "same")

    @property
    def same(self) -> bool:
        """Every element of every field was compared and agrees, or is undecided where `undecided_passes`."""
        return self.status == 0

    def __bool__(self) -> bool:
        return self.same

    @property
    def status(self) -> int:
        """Exit status: 0 the same, 1 different, 2 something could not be compared."""
        return {"same": 0, "different": 1, "undecided": 0 if self.undecided_passes else 1}.get(
            self.verdict, 2
        )

    @property
    def first(self) -> GoldenField | None:
        """The first field that differs; else the first that is undecided."""
        return next(
            (f for v in ("different", "undecided") for f in self.fields if f.verdict == v),
            None,
        )

    @property
    def different(self) -> int:
        """Elements that differ, at least."""
        return sum(f.different for f in self.fields)
