"""What a call of `check` compares, and what it finds: of one place, or of several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ..comparison.attributes import AttributeDifference
from ..comparison.settings import Decision, Settings
from ..comparison.tolerances import Periods
from ..errors import Incomparable
from ..remote import Copies
from ..runs.fields import FieldRef
from ..runs.subject import Place, Subject
from .digests import Digests
from .elements import check_values, kept_ref, kept_refs
from .fields import check_field
from .folder import open_place
from .manifest import GoldenFieldFacts, GoldenPlace, Manifest
from .result import GoldenField, GoldenProblem
from .rules import needs_values
from .selection import is_chosen
from .values import KeptValues

__all__ = ["Found", "Kept", "Request", "check_saved"]


@dataclass(frozen=True)
class Request:
    """What a call of `check` compares: see its parameters.

    reading: how data is read, and how much is listed (`check_field`).
    """

    folder: str
    manifest: Manifest
    subject: Subject
    fields: tuple[str, ...] | None
    ignored_attributes: tuple[str, ...]
    reading: Mapping[str, Any]
    key: str | None = None
    ulp: int | None = None
    periods: Periods = field(default_factory=Periods)
    name: str | None = None  # of the golden files, where the folder has copies of them
    copies: Copies | None = None  # of golden files in a store: each is copied when it is needed
    on_circles: set[str] = field(default_factory=set)  # fields that `periods` gives lengths, as they are met

    @property
    def label(self) -> str:
        return self.folder if self.name is None else self.name

    def kept(self, place: GoldenPlace) -> Kept:
        """What is kept of a place. Raises an error unless the files are those that the manifest lists."""
        if self.copies is not None:
            self.copies.bring(file.file for file in place.files())
        return Kept(*open_place(self.folder, place))

    def decision(self, saved: GoldenFieldFacts, ref: FieldRef) -> Decision:
        """What counts as different in a field, element by element row by row."""
        found = saved.decision
        if ref.unit is not None and (found.atol or found.rtol):  # NaT may lie within it
            raise Incomparable(
                "was saved with a tolerance, and no tolerance holds for dates", fix="save again"
            )
        if self.ulp is None and not (self.periods.axes or self.periods.named):
            return found
        ulps = found.ulps if self.ulp is None else self.ulp
        settings = Settings(atol=found.atol, rtol=found.rtol, equal_nan=found.equal_nan, ulps=ulps,
                            integers=True, periods=self.periods)  # fmt: skip
        own = settings.decision(ref, ref, None)
        if own.period:
            self.on_circles.add(saved.name)
        return replace(own, period=own.period or found.period, component_stride=1)

    @property
    def named(self) -> bool:
        """Whether fields were chosen by name, by this call or when the golden files were saved."""
        return self.fields is not None or self.manifest.chosen_fields is not None

    def compares(self, name: str) -> bool:
        """Whether a field of the run must be in the golden files."""
        return is_chosen(name, self.fields) and self.manifest.keeps(name)

    def compared_of(self, places: Iterable[GoldenPlace]) -> Callable[[str], bool]:
        """Whether a field of the run is compared, or must be in these places."""
        saved = {f.name for place in places for f in place.fields}
        return lambda name: self.compares(name) or (name in saved and is_chosen(name, self.fields))


@dataclass(frozen=True)
class Kept:
    """What is kept of a place: digests and values."""

    digests: Digests
    values: Mapping[str, KeptValues]

    def elements(self, name: str) -> FieldRef:
        """The values of a field. Raises DamagedFile where its digests are of others."""
        return kept_ref(self.digests, name, self._elements)

    @cached_property
    def _elements(self) -> dict[str, FieldRef]:
        return kept_refs(self.digests, self.values)


@dataclass
class Found:
    """What is known of one place, or of several."""

    fields: list[GoldenField] = field(default_factory=list)
    problems: list[GoldenProblem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    attributes: list[AttributeDifference] = field(default_factory=list)
    attributes_compared: int = 0

    def add(self, other: Found) -> None:
        """Adds what is known of another place."""
        self.fields += other.fields
        self.problems += other.problems
        self.notes += other.notes
        self.attributes += other.attributes
        self.attributes_compared += other.attributes_compared


def check_saved(
    request: Request, saved: GoldenFieldFacts, kept: Kept, ref: FieldRef, place: Place
) -> GoldenField:
    """Compares a field with what is kept of it. Raises TwinrunError where that cannot be."""
    decision = request.decision(saved, ref)
    if saved.name in kept.values:
        return check_values(kept.digests, kept.elements(saved.name), ref, place, decision,
                            label=request.subject.label, **request.reading)  # fmt: skip
    if needed := needs_values(decision):
        raise Incomparable(
            f"{needed} needs values, and only digests are kept of this field",
            fix=f"save again with --keep-values {ref.items * ref.itemsize}, or check without it",
        )
    return check_field(kept.digests, kept.digests.numbers[saved.name], ref, place, saved.atol, saved.rtol,
                       label=request.subject.label, **request.reading)  # fmt: skip
