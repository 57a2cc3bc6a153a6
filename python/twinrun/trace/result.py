"""What a comparison of two traces found: where differences enter, and what lies around the first one."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ..runs.provenance import Difference, Provenance, difference, rank_difference
from ..views import views
from .site import Site

__all__ = ["Around", "Origin", "Passed", "StructureDifference", "TraceComparison", "ValueDifference"]


@dataclass
class ValueDifference:
    """A value of an event that differs.

    Attributes
    ----------
    name : str
        What the event calls it.
    role : str
        'value', 'parameter', 'buffer', 'gradient', 'state', 'setting' or 'rng'.
    out : bool
        Whether it came out of the operation, or went in.
    a, b : str
        Type and shape in both runs.
    elements, different : int or None
        Where both runs kept the data: how many elements there are, and how many differ.
    max_abs_diff : float or None
        The largest |a - b|.
    max_ulp : int or None
        The largest distance in representable numbers; None where it has no meaning.
    first_index : list of int or None
        The first element that differs; `first_a` and `first_b` are its values.
    first_a, first_b : object
        See `first_index`.
    max_index : list of int or None
        Where |a - b| is largest; `max_a` and `max_b` are the values there.
    max_a, max_b : object
        See `max_index`.
    box : list of (int, int) or None
        The smallest box that holds all elements that differ: along each axis the first index, and the one
        behind the last.
    infinite : int or None
        Elements that differ where one run or both have a NaN or an infinity.
    overflowing : int or None
        Elements of two finite numbers whose difference is larger than any float64.
    whole, offset : list of int or None
        Of a part of a global tensor: the shape of that tensor, and where the part of this rank begins in it.
        All indices are then those of the global tensor.
    """

    name: str
    role: str
    out: bool
    a: str
    b: str
    elements: int | None = None
    different: int | None = None
    max_abs_diff: float | None = None
    max_ulp: int | None = None
    first_index: list[int] | None = None
    first_a: object = None
    first_b: object = None
    max_index: list[int] | None = None
    max_a: object = None
    max_b: object = None
    box: list[tuple[int, int]] | None = None
    infinite: int | None = None
    overflowing: int | None = None
    whole: list[int] | None = None
    offset: list[int] | None = None
    _kept: tuple[str, str] = field(default=("", ""), repr=False, compare=False)


class StructureDifference(NamedTuple):
    """What differs beside a value whose bits may agree: code that looks at it may give another result.

    Attributes
    ----------
    site : Site
        Where it was seen.
    name, role : str
        The value, or what holds values. See `ValueDifference`. Of the module itself: '' and 'module'.
        Of the plain values that an operation takes: '' and 'operation'.
    out : bool
        Whether it came out of the operation, or went in.
    what : str
        Of the module itself: 'class', 'device', or the name of a plain attribute. Of an operation: the name
        of an argument. Of values:
        'class': of a list, tuple, mapping, data class, tensor, or object that is not looked into. 'keys':
        those of a mapping, in their order. 'attributes': those of a data class that are no fields.
        'requires_grad': of a tensor. 'strides': of a tensor. 'same': as which other value it is
        the same tensor. 'weak_type': of an array of JAX.
    a, b : str
        What it is in both runs; '' for strides that are row-major, and for what one run does not have.
    """

    site: Site
    name: str
    role: str
    out: bool
    what: str
    a: str
    b: str

    def __str__(self) -> str:
        from .words import structure_text

        return structure_text(self)


@dataclass
class Origin:
    """A place at which a difference enters a run.

    Attributes
    ----------
    rank : int
        The rank.
    site : Site
        Iteration, microbatch, phase, module and operation.
    reason : {'operation', 'input', 'unknown', 'unmatched', 'generator'}
        'operation': its outputs differ, and none of its inputs does; all of them agree where
        `inputs_not_compared` is 0, and in more than their values where `structure` is empty. 'input':
        something that it takes differs, and nothing before it does: it was changed outside of what is
        traced. 'unknown': something differs, and it may come from a value that was not digested, see
        `unknown`. 'unmatched': one run does here what the other one does not. 'generator': a random
        number generator has another state, and no value differs.
    module : str
        The module whose code is meant; '' for the model itself. Of an input it is the module that called.
    kind : str
        The class of the module at the site; of an operation whose data was kept, the kernels that ran it.
    number : int
        The place in the order of events of this iteration.
    values : list of ValueDifference
        What differs there.
    generator : str
        Where the state of a random number generator differed first, if it did before; or ''.
    only_in : str
        For 'unmatched': 'a' or 'b'.
    names_rank : bool
        Whether the text names rank 0, too: ranks of one run were compared.
    unknown : str
        For 'unknown': which value was not digested, and why.
    signature : str
        Of an operation: what it takes and gives, with types and shapes; else ''.
    inputs_agree, inputs_not_compared : int
        How many of its inputs were compared and agree, and how many were not compared: they were not
        digested, or are memory that nobody wrote, or objects that are not looked into.
    not_compared : str
        Why they were not; or ''.
    structure : list of StructureDifference
        What differs beside the values that go in, and beside those that the module's own code took from
        others: it may be the reason.
    call, calls : int
        Where a module or an operation ran several times there: which of these it is, from 1 on, and how many
        there are. Otherwise 0.
    """

    rank: int
    site: Site
    reason: Literal["operation", "input", "unknown", "unmatched", "generator"]
    module: str
    kind: str
    number: int
    values: list[ValueDifference]
    generator: str = ""
    only_in: str = ""
    names_rank: bool = False
    unknown: str = ""
    signature: str = ""
    inputs_agree: int = 0
    inputs_not_compared: int = 0
    not_compared: str = ""
    structure: list[StructureDifference] = field(default_factory=list)
    call: int = 0
    calls: int = 0
    # Whether traced code made the input: a model may call itself.
    _within: bool = field(default=False, repr=False, compare=False)

    def __str__(self) -> str:
        from .words import origin_text

        return origin_text(self)


class Passed(NamedTuple):
    """A value of an event near the first divergence.

    Attributes
    ----------
    name, role : str
        See `ValueDifference`.
    out : bool
        Whether it came out of the event.
    form : str
        Type and shape.
    differs : bool
        Whether it differs between the runs.
    producer : Site or None
        Of what went in: the last event before that gave these bits, in the same run; None where none did.
    not_compared : str
        Why it was not compared; '' where it was.
    """

    name: str
    role: str
    out: bool
    form: str
    differs: bool
    producer: Site | None
    not_compared: str = ""


@dataclass
class Around:
    """An event near the first divergence, and whether it differs.

    Attributes
    ----------
    site : Site
        Where it is.
    kind : str
        The class of its module.
    values : list of Passed
        What went in and came out.
    state : str
        What the comparison found: 'inputs agree', 'outputs agree', 'all agree', 'inputs differ' (and what
        comes out may), 'outputs differ' (and no input does), 'not all compared' (nothing differs, and some
        values cannot be compared, such as memory that nobody wrote), 'not known' (a value was not
        digested), 'only in a' or 'only in b'. That something agrees ends with 'in value' where more than
        values differs, see `structure`.
    text : str
        The same as a report says it: with how many values were not compared, and why.
    inputs_agree, inputs_not_compared, not_compared
        See `Origin`.
    structure : list of StructureDifference
        What differs beside the values of this event.
    """

    site: Site
    state: str
    kind: str = ""
    values: list[Passed] = field(default_factory=list)
    text: str = ""
    inputs_agree: int = 0
    inputs_not_compared: int = 0
    not_compared: str = ""
    structure: list[StructureDifference] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.text = self.text or self.state


@dataclass
class TraceComparison:
    """The result of `compare_traces`.

    >>> for path in ("runs/a", "runs/b"):
    ...     with twinrun.Run(path) as run:
    ...         _ = run.capture(0, {"x": np.ones(4)}, phase="begin")
    >>> result = twinrun.compare_traces("runs/a", "runs/b")
    >>> result.verdict, result.first_divergence, result.values
    ('same', None, 1)

    Attributes
    ----------
    a, b : str
        The two traces.
    replicas : tuple of int
        Where ranks of one trace were compared among themselves: these ranks, the reference first; else empty.
    verdict : {'same', 'different', 'incomparable'}
        'same': every value of both traces was compared, and agrees bit by bit. 'incomparable':
        nothing differs, and something was not compared, see `problems`.
    first_divergence : Origin or None
        The earliest of `firsts`: by iteration, then by its place in the order of execution, then by rank.
    firsts : dict of int to Origin
        The first divergence of each rank.
    origins : list of Origin
        Every place at which a difference enters, in the order of execution of each rank; at most 1000.
    around : list of Around
        Events around the first divergence.
    events, values : int
        How many events were matched, and how many values of them were compared.
    iterations : list of int
        The iterations that were compared, ascending. A run that was killed lacks its last ones.
    different_values : int
        How many of these differ.
    unmatched : int
        Events and values that only one run has.
    problems : list of str
        What could not be compared; at most 1000 lines.
    notes : list of str
        What the user should know.
    beside : str
        Where fields that a run captured beside its trace differ, in words; empty where none does.
    structure : list of StructureDifference
        What differs beside the values, up to the first divergence of each rank; at most 1000. It makes no
        trace different: a note tells it.
    by_module : dict of (int, str) to (int, int)
        {(iteration, module): (values, values that differ)}.
    provenance_a, provenance_b : Provenance or None
        Under which conditions the runs ran.
    conditions : list of Difference or None
        Conditions in which the runs differ, the likeliest explanation first. Of ranks of one run: those in
        which others differ from the reference, each value with its ranks.
    seconds : float
        Time of the comparison.
    same : bool
        True only if the verdict is 'same'; `bool(comparison)` gives it.
    """

    a: str
    b: str
    verdict: str = "incomparable"
    first_divergence: Origin | None = None
    firsts: dict[int, Origin] = field(default_factory=dict)
    origins: list[Origin] = field(default_factory=list)
    around: list[Around] = field(default_factory=list)
    events: int = 0
    values: int = 0
    different_values: int = 0
    unmatched: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    replicas: tuple[int, ...] = ()
    structure: list[StructureDifference] = field(default_factory=list)
    by_module: dict[tuple[int, str], tuple[int, int]] = field(default_factory=dict)
    provenance_a: Provenance | None = field(default=None, repr=False)
    provenance_b: Provenance | None = field(default=None, repr=False)
    seconds: float = 0.0
    iterations: list[int] = field(default_factory=list)
    beside: str = ""

    @property
    def conditions(self) -> list[Difference] | None:
        """Conditions in which the runs or ranks differ, the likeliest explanation first; None where a run
        does not say.
        """
        if self.replicas:
            return None if self.provenance_a is None else rank_difference(self.provenance_a, self.replicas)
        if self.provenance_a is None or self.provenance_b is None:
            return None
        return difference(self.provenance_a, self.provenance_b)

    @property
    def same(self) -> bool:
        """True only if the verdict is 'same'."""
        return self.verdict == "same"

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Writes the page that `twinrun compare --html` writes.

        Parameters
        ----------
        path : path
            The file; it is replaced.

        Raises
        ------
        TwinrunError
            The file cannot be written.
        """
        views().write_trace_html(self, path)

    def __bool__(self) -> bool:
        return self.same

    def __str__(self) -> str:
        from .words import verdict_text

        return verdict_text(self)
