"""One side of a comparison: places (step, rank), and at each of them named fields.

Places are opened one at a time, so that a history of any length needs few open files.
"""

from __future__ import annotations

import contextlib
import copy
import fnmatch
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .. import _core
from ..errors import TwinrunError
from ..formats import FileContent
from ..formats.facts import Fact
from .fields import FieldRef

__all__ = ["Listed", "ListedPlaces", "Opened", "Place", "Subject", "Unopened", "Wrapped"]

Place = tuple[int | None, int]  # step, rank


@dataclass(frozen=True)
class Unopened:
    """A file of a folder that cannot be opened.

    name: of the field that it holds, or what the names of its fields begin with; '': they are not known.
    label: its name without step and rank.
    """

    name: str
    label: str
    error: TwinrunError

    def holds(self, field: str) -> bool:
        """Whether it holds a field of this name, if it holds it."""
        return bool(self.name) and (field == self.name or field.startswith(f"{self.name}/"))

    def may_match(self, glob: str) -> bool:
        """Whether one of its fields may have a name that matches."""
        if not self.name:
            return True
        begins = (glob[:end] for end in range(1, len(glob) + 1))
        return fnmatch.fnmatchcase(self.name, glob) or any(
            fnmatch.fnmatchcase(f"{self.name}/", begin) for begin in begins
        )


class Opened(dict[str, FieldRef]):
    """Fields of a place by name, and the other facts of its files.

    facts: by label; None where a subject cannot have facts, as arrays in memory. skipped: (name, where,
    reason) of what exists and cannot be compared. formats: of the files; models: their data models;
    format_of: the format of the file of a fact, by label. notes: what the user should know about the place.
    one_array: a file of a format that holds one array is among its files. array_name: the name of its only
    array, a prefix of its fields. unopened: its files that cannot be opened. reopen: opens the file whose
    metadata this is, where it is at hand: its facts are read when they are asked for.
    """

    def __init__(self, fields: Mapping[str, FieldRef] | None = None) -> None:
        super().__init__(fields or {})
        self.facts: dict[str, Fact] | None = None
        self.skipped: list[tuple[str, str, str]] = []
        self.formats: set[str] = set()
        self.models: set[str] = set()
        self.format_of: dict[str, str] = {}
        self.notes: list[str] = []
        self.one_array = False
        self.array_name: str | None = None
        self.unopened: list[Unopened] = []
        self.reopen: Callable[[], FileContent] | None = None

    def with_fields(self, fields: Mapping[str, FieldRef]) -> Opened:
        """The same place with other fields."""
        made = Opened(fields)
        vars(made).update(vars(self))
        return made

    def keep(self, fact: Fact, format: str) -> None:
        """Adds a fact to `facts`, which is no None.

        If its label exists, primes (') are appended. format: the format that the fact comes from.
        """
        assert self.facts is not None
        label = fact.label
        while label in self.facts:
            label += "'"
        self.facts[label] = fact
        self.format_of[label] = format


@dataclass
class Listed:
    """Fields of a place as the core takes them, and the rest of its fields.

    kind: 'arrays' in memory, 'metadata', or 'files' that hold elements as they are. bytes_read: to
    open them. rest: the fields that are not in the list; rest_places: their numbers among all
    fields, by name. opened: of files, what they say beside their fields, without these.
    """

    fields: _core.FieldList
    kind: str
    bytes_read: int = 0
    rest: Subject | None = None
    rest_places: Mapping[str, int] = field(default_factory=dict)
    opened: Opened | None = None


@dataclass
class ListedPlaces:
    """Fields of many places as the core takes them.

    kind: as of `Listed`. counts: of the fields of each place. bytes_read: to open each.
    """

    fields: _core.FieldList
    kind: str
    counts: Sequence[int]
    bytes_read: Sequence[int]


_Same = TypeVar("_Same", bound="Subject")


@dataclass
class Subject:
    """One side of a comparison.

    kind: history, folder, file or arrays. label: for messages. places: (step, rank), sorted. open(place)
    gives the fields there by name, with notes on the place. notes: what the user should know about the whole.
    """

    kind: str
    label: str
    places: list[Place]
    notes: list[str] = field(default_factory=list)
    provenance: list[_core.RankProvenance] = field(default_factory=list)  # of a history
    skipped: list[tuple[str, str, str]] = field(
        default_factory=list
    )  # (name, where, reason) of those that belong to no place
    # Places that hold only files without a step and of no known format; and the names of these
    # files.
    unknown: set[Place] = field(default_factory=set)
    unknown_names: list[str] = field(default_factory=list)
    # Steps that are there and are no places, as not every rank committed them. unnamed: what to do,
    # where that is known.
    incomplete: list[int] = field(default_factory=list)
    unnamed: TwinrunError | None = None
    refusal: TwinrunError | None = None  # why nothing of it can be compared

    @functools.cached_property
    def has_ranks(self) -> bool:
        """Whether ranks are worth a word: rank 0 alone is what runs without ranks have."""
        return any(rank != 0 for _, rank in self.places)

    @contextlib.contextmanager
    def open(self, place: Place, use_metadata: bool = True, whole: bool = True) -> Iterator[Opened]:
        """Fields and facts at a place, valid inside the `with`.

        whole: raises where a file of a folder cannot be opened. Else the others are opened, and it is in
        `Opened.unopened`: who asks for this must report it.
        """
        raise NotImplementedError

    @contextlib.contextmanager
    def listed(self, place: Place) -> Iterator[Listed | None]:
        """The fields at a place as one list, valid inside the `with`; None where they must be
        opened one by one, or where there is anything beside fields.
        """
        yield None

    def listed_together(self, places: Sequence[Place]) -> ListedPlaces | None:
        """The fields of many places as one list, place after place.

        None where they must be listed place by place.
        """
        return None

    def takes(self, option: str) -> bool:
        """Whether an option of formats (format, dtype, …) may change what is read of this run."""
        return False

    def part_of_list(self, place: Place) -> float:
        """Which part a place is of the largest list of many places.

        Fields, memory and open files of a list are bounded.
        """
        return 0.0

    def times(self) -> dict[int | None, float]:
        """Physical time by step, of the steps that have it."""
        return {}

    # ---- for other processes, which open places without listing the run ----

    def size(self, place: Place) -> int:
        """Bytes at a place, as far as known without opening it."""
        return 0

    def entry(self, place: Place) -> object:
        """The entry of a place that `open` needs."""
        return None

    def stamp(self, place: Place) -> str:
        """The identity of a place, as far as it is known without opening it: different for
        different content at the same place of another run.
        """
        return ""

    def stamp_of(self, places: Sequence[Place]) -> str:
        """The stamps of several places; of one that the run does not have, that it does not."""
        known = {*self.places}
        return "\n".join(self.stamp(place) if place in known else "not there" for place in places)

    def know(self, entries: Mapping[Place, Any]) -> None:
        """Replaces the entries of places."""

    def explained(self, error: TwinrunError, step: int | None) -> TwinrunError:
        """The error; or, where a running run removed the data meanwhile, an error that says so."""
        return error

    def without_places(self: _Same) -> _Same:
        """A copy without places, to send to other processes."""
        has_ranks = self.has_ranks  # a word about ranks is the same in all processes
        light = copy.copy(self)
        light.has_ranks = has_ranks
        light.places, light.notes, light.provenance = [], [], []
        light.know({})
        return light


class Wrapped(Subject):
    """A run through which another one is seen. It gives no lists to the core: its fields are compared one by
    one.

    inner: the run itself.
    """

    def __init__(self, inner: Subject) -> None:
        super().__init__(
            inner.kind,
            inner.label,
            inner.places,
            inner.notes,
            inner.provenance,
            inner.skipped,
            inner.unknown,
            inner.unknown_names,
            inner.incomplete,
            inner.unnamed,
            inner.refusal,
        )
        self.inner = inner

    def copy_of(self, inner: Subject) -> Wrapped:
        """The same view of another run."""
        raise NotImplementedError

    def times(self) -> dict[int | None, float]:
        return self.inner.times()

    def takes(self, option: str) -> bool:
        return self.inner.takes(option)

    def size(self, place: Place) -> int:
        return self.inner.size(place)

    def entry(self, place: Place) -> object:
        return self.inner.entry(place)

    def stamp(self, place: Place) -> str:
        return self.inner.stamp(place)

    def know(self, entries: Mapping[Place, Any]) -> None:
        self.inner.know(entries)

    def explained(self, error: TwinrunError, step: int | None) -> TwinrunError:
        return self.inner.explained(error, step)

    def without_places(self) -> Any:
        has_ranks = self.has_ranks
        light = self.copy_of(self.inner.without_places())
        light.has_ranks = has_ranks
        light.places, light.notes, light.provenance = [], [], []
        return light
