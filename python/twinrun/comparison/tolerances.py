"""Which tolerance holds for which field and step: rules of a TOML file.

    [[tolerance]]
    field = "velocity_*"      # a glob, or a list of them; the first rule that matches holds
    steps = "100:"            # these steps only
    atol = 1e-6
    rtol = 1e-5               # differs: |a - b| > atol + rtol |a|
    ulp = 4                   # and more than 4 representable values apart
    period = 62.5             # on a circle of this circumference; [10, 10, 20]: by component
    nan_differs = true        # a NaN differs from a NaN
    integers = true           # holds for integers and booleans too; else as --tolerate-integers says

    [[tolerance]]
    field = "timers/*"
    skip = true               # left out

    [[tolerance]]
    attribute = "*@history"   # a glob, or a list of them, over path@name: attributes have no tolerance
    skip = true

    [[rename]]                # of the second run's fields, before they are matched: see `renames`
    from = "transformer.*"
    to = "*"

Fields that no rule matches get the tolerance of the caller (--atol, --rtol), else what their metadata was
made for, else equality.
"""

from __future__ import annotations

import fnmatch
import functools
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..arguments import Globs, tolerance_number
from ..documents import nearest, read_toml
from ..errors import Incomparable, TwinrunError, in_short, in_words_of_the_caller
from ..formats.element_types import FLOATING
from .renames import Rename

__all__ = [
    "Met",
    "Rule",
    "RulesInUse",
    "Tolerances",
    "attribute_glob",
    "parse_periods",
    "parse_steps",
    "periods_of",
    "read_tolerances",
]

_KEYS = frozenset(
    {
        "field",
        "attribute",
        "steps",
        "atol",
        "rtol",
        "ulp",
        "period",
        "nan_differs",
        "integers",
        "skip",
        "comment",
    }
)
_MOST_ULPS = (1 << 64) - 2
_MOST_COMPONENTS = 4
# Of a circle. Below it float64 has fewer digits than usual, and no turn can be counted.
_LEAST_LENGTH = sys.float_info.min


@dataclass(frozen=True)
class _Steps:
    """Steps in any of these spans, (first, last), both ends included; None: no end."""

    spans: tuple[tuple[int | None, int | None], ...]

    def __call__(self, step: int | None) -> bool:
        return step is not None and any(
            (low is None or step >= low) and (high is None or step <= high) for low, high in self.spans
        )


def missing_steps(chosen: Callable[[int | None], bool] | None, present: Iterable[int | None]) -> list[int]:
    """Steps that were chosen by number and do not exist. chosen: as `parse_steps` gives it."""
    spans = getattr(chosen, "spans", ())
    return sorted({first for first, last in spans if first is not None and first == last} - {*present})


def parse_steps(text: str, what: str = "steps") -> Callable[[int | None], bool]:
    """A test for steps, or other numbers, from '10', '10,20', '100:200' (both ends included),
    ':50', '100:'.
    """
    if not isinstance(text, str):
        raise TwinrunError(
            f"{what}={text!r:.60} is no text", fix="write '10', or '10,20', or '100:200', in quotes"
        )
    spans: list[tuple[int | None, int | None]] = []
    for part in text.split(","):
        low, colon, high = part.strip().partition(":")
        try:
            if "_" in part:  # Python takes 1_0 for 10
                raise ValueError
            first = int(low) if low.strip() else None
            last = (int(high) if high.strip() else None) if colon else first
        except ValueError:
            first = last = None
            colon = ""
        if not colon and first is None:
            raise TwinrunError(f"{what} {text!r} are not understood", fix="write 10, or 10,20, or 100:200")
        spans.append((first, last))
    return _Steps(tuple(spans))


@dataclass(frozen=True)
class Rule:
    """What counts as different in the fields that it matches. None: not given.

    fields: globs; of fields, or of attributes where `of_attributes`, which leaves them out. steps: as
    `parse_steps` takes them; None: all. ulps: representable values between a and b that are forgiven. period:
    lengths by component; (): on a line. label: for messages.
    """

    fields: tuple[str, ...] = ("*",)
    steps: str | None = None
    atol: float | None = None
    rtol: float | None = None
    ulps: int | None = None
    period: tuple[float, ...] = ()
    equal_nan: bool | None = None
    integers: bool | None = None
    skip: bool = False
    label: str = ""
    of_attributes: bool = False
    said: bool = True  # from a file of tolerances: fields without a rule are then reported
    _chosen: Callable[[int | None], bool] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.fields, str):  # a list of one, and not its letters
            object.__setattr__(self, "fields", (self.fields,))
        for name, value in (("atol", self.atol), ("rtol", self.rtol), ("ulps", self.ulps)):
            if value is not None:
                tolerance_number(name, value)
        if self.steps is not None:  # parsed once, not for each field
            object.__setattr__(self, "_chosen", parse_steps(self.steps))

    def holds_at(self, step: int | None) -> bool:
        """Whether it holds at this step."""
        return self._chosen is None or self._chosen(step)


@dataclass(frozen=True)
class Met:
    """What a comparison met of its rules.

    matched: numbers of the rules that matched. without: fields that no rule matched. skipped: names
    that a rule left out. left_out: whether one of these is no attribute. renamed: numbers of the
    renames that matched. asked: numbers of the globs that choose fields, of those that matched.
    """

    matched: frozenset[int] = frozenset()
    without: frozenset[str] = frozenset()
    skipped: frozenset[str] = frozenset()
    left_out: bool = False
    renamed: frozenset[int] = frozenset()
    asked: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        return bool(
            self.matched or self.without or self.skipped or self.left_out or self.renamed or self.asked
        )

    def __or__(self, other: Met) -> Met:
        if not other:  # most parts of a comparison
            return self
        return Met(
            self.matched | other.matched,
            self.without | other.without,
            self.skipped | other.skipped,
            self.left_out or other.left_out,
            self.renamed | other.renamed,
            self.asked | other.asked,
        )


@dataclass(frozen=True)
class Tolerances:
    """Rules in their order. renames: other names for the fields of the second run."""

    rules: tuple[Rule, ...] = ()
    source: str = ""
    renames: tuple[Rename, ...] = ()

    def find(self, name: str, step: int | None) -> Rule | None:
        """The first rule that matches a field."""
        at = self.number(name, step)
        return None if at is None else self.rules[at]

    def number(self, name: str, step: int | None) -> int | None:
        """The number of the first rule that matches a field."""
        return self._first(False, name, step)

    def number_of_attribute(self, label: str, step: int | None) -> int | None:
        """The number of the first rule that leaves out the attribute of this label, `path@name`."""
        return self._first(True, label, step)

    def _first(self, of_attributes: bool, name: str, step: int | None) -> int | None:
        rules, globs = self._globs[of_attributes]
        return next((rules[g] for g in globs.met(name) if self.rules[rules[g]].holds_at(step)), None)

    @functools.cached_property
    def _globs(self) -> dict[bool, tuple[list[int], Globs]]:
        """The globs of all rules of fields, and of those of attributes, with the numbers of their rules."""
        of: dict[bool, tuple[list[int], Globs]] = {}
        for kind in (False, True):
            every = [(at, g) for at, r in enumerate(self.rules) if r.of_attributes == kind for g in r.fields]
            of[kind] = [at for at, _ in every], Globs(glob for _, glob in every)
        return of

    def leaves_out(self, name: str, step: int | None) -> bool:
        """Whether a rule leaves this field out."""
        first = self.find(name, step)
        return first is not None and first.skip

    def ignored(self) -> list[str]:
        """Globs of the rules that leave attributes out at every step."""
        return [g for rule in self.rules if rule.of_attributes and rule.steps is None for g in rule.fields]

    def with_left_out(self, fields: Iterable[str], attributes: Iterable[str]) -> Tolerances:
        """These rules, after new rules that leave out fields and attributes by globs."""
        front = [Rule(fields=(glob,), skip=True, label=f"--leave-out {glob}", said=False) for glob in fields]
        front += [
            Rule(
                fields=(attribute_glob(glob),),
                skip=True,
                label=f"--ignore-attribute {glob}",
                of_attributes=True,
                said=False,
            )
            for glob in attributes
        ]
        return Tolerances((*front, *self.rules), self.source, self.renames)

    def skipped(self) -> list[str]:
        """Globs of the rules that leave fields out at every step.

        `find` decides for a field: an earlier rule may match.
        """
        return [
            glob
            for rule in self.rules
            if rule.skip and rule.steps is None and not rule.of_attributes
            for glob in rule.fields
        ]

    def notes(self, met: Met) -> list[str]:
        """Rules that matched nothing, fields that no rule matched, fields that were left out."""
        where = f"{self.source}: " if self.source else ""
        found = [
            f"{where if rule.said else ''}{in_words_of_the_caller(rule.label) or ', '.join(rule.fields)} matched "
            + ("no attribute" if rule.of_attributes else "no field")
            for at, rule in enumerate(self.rules)
            if at not in met.matched
        ]
        if met.without:
            found.append(f"{where}no rule for {_listed(met.without)}")
        if met.skipped:
            found.append(f"{where}left out on request: {_listed(met.skipped)}")
        return found


class RulesInUse:
    """Rules that are asked for one field after another. It remembers what they met, so that reports
    can say it.
    """

    def __init__(self, tolerances: Tolerances) -> None:
        self.tolerances = tolerances
        self._told = any(not rule.of_attributes and rule.said for rule in tolerances.rules)
        self._matched: set[int] = set()
        self._without: set[str] = set()
        self._skipped: set[str] = set()
        self._left_out = False

    def find(self, name: str, step: int | None) -> Rule | None:
        """The first rule that matches a field."""
        at = self.tolerances.number(name, step)
        if at is None:
            if self._told:
                self._without.add(name)
            return None
        self._matched.add(at)
        rule = self.tolerances.rules[at]
        if rule.skip:
            self._skipped.add(name)
            self._left_out = True
        return rule

    def ignores(self, label: str, step: int | None) -> bool:
        """Whether a rule leaves out the attribute of this label, `path@name`."""
        at = self.tolerances.number_of_attribute(label, step)
        if at is None:
            return False
        self._matched.add(at)
        self._skipped.add(label)
        return True

    def met(self) -> Met:
        """What the rules met so far."""
        return Met(
            frozenset(self._matched), frozenset(self._without), frozenset(self._skipped), self._left_out
        )


def attribute_glob(text: str) -> str:
    """A glob over path@name; a name alone is that attribute of any owner."""
    return text if "@" in text else f"*@{text}"


def _listed(names: Iterable[str], most: int = 8) -> str:
    given = sorted(names)
    more = f" and {len(given) - most} more" if len(given) > most else ""
    return ", ".join(given[:most]) + more


def read_tolerances(path: str | os.PathLike[str]) -> Tolerances:
    """Reads rules from a TOML file.

    Raises TwinrunError: no such file, not TOML, an unknown key, a wrong value.

    Keys are checked here and not by a class as studies are (`documents.checked`): a comparison
    should not wait for msgspec to be imported, and most keys have forms and rules of their own
    (globs, steps, up to 2^64 - 2 ulp).
    """
    path = os.fspath(path)
    document = read_toml(path, "file of tolerances")
    wrong = sorted(set(document) - {"tolerance", "rename", "comment"})
    if wrong:
        raise TwinrunError(
            f"{wrong[0]!r} is not understood",
            where=path,
            fix="rules are [[tolerance]] tables, and other names [[rename]] tables",
        )
    given = document.get("tolerance", [])
    if not isinstance(given, list) or not all(isinstance(entry, dict) for entry in given):
        raise TwinrunError("tolerance must be tables", where=path, fix="write [[tolerance]] above each rule")
    return Tolerances(
        tuple(_rule(entry, n + 1, path) for n, entry in enumerate(given)), path, _renames(document, path)
    )


def _renames(document: Mapping[str, Any], path: str) -> tuple[Rename, ...]:
    given = document.get("rename", [])
    if not isinstance(given, list) or not all(isinstance(entry, dict) for entry in given):
        raise TwinrunError("rename must be tables", where=path, fix="write [[rename]] above each rule")
    found = []
    for number, entry in enumerate(given):
        where = f"{path}: rename {number + 1}"
        unknown = sorted(set(entry) - {"from", "to", "comment"})
        if unknown:
            raise TwinrunError(
                f"{unknown[0]!r} is not understood", where=where, fix="known are comment from to"
            )
        if not all(isinstance(entry.get(key), str) for key in ("from", "to")):
            raise TwinrunError(
                "needs from and to", where=where, fix='write from = "transformer.*" and to = "*"'
            )
        try:
            found.append(Rename(entry["from"], entry["to"]))
        except TwinrunError as e:
            raise TwinrunError(e.what, where=where, fix=e.fix) from None
    return tuple(found)


def _rule(entry: Mapping[str, Any], number: int, path: str) -> Rule:
    where = f"{path}: rule {number}"

    def wrong(key: str, must: str) -> TwinrunError:
        return TwinrunError(f"{key} must be {must}, not {in_short(entry[key])}", where=where)

    unknown = sorted(set(entry) - _KEYS)
    if unknown:
        raise TwinrunError(
            f"{unknown[0]!r} is not understood",
            where=where,
            fix=nearest(unknown[0], _KEYS) or "known are " + " ".join(sorted(_KEYS)),
        )
    of = "attribute" if "attribute" in entry else "field"
    if of not in entry:
        raise TwinrunError("names no field", where=where, fix='write field = "name", a glob or a list')
    if of == "attribute" and (
        entry.get("skip") is not True or set(entry) - {"attribute", "steps", "skip", "comment"}
    ):
        raise TwinrunError(
            "attributes have no tolerance: they are compared, or left out",
            where=where,
            fix="write skip = true and nothing else, or read them as fields: --format-option attributes=true",
        )
    globs = entry[of] if isinstance(entry[of], list) else [entry[of]]
    if not globs or not all(isinstance(glob, str) and glob for glob in globs):
        raise wrong(of, "a glob or a list of globs")
    steps = _steps(entry, wrong)
    for key in ("skip", "integers", "nan_differs"):
        if not isinstance(entry.get(key, False), bool):
            raise wrong(key, "true or false")
    values = {key: _length(entry[key], functools.partial(wrong, key, "finite and not negative"))
              for key in ("atol", "rtol") if key in entry}  # fmt: skip
    ulps = entry.get("ulp")
    if ulps is not None and (type(ulps) is not int or not 0 <= ulps <= _MOST_ULPS):
        raise wrong("ulp", "a number of representable values")
    period = _lengths(entry, wrong)
    if entry.get("skip", False) and set(entry) - {"field", "attribute", "steps", "skip", "comment"}:
        raise TwinrunError("leaves fields out, and gives them a tolerance", where=where, fix="do one of them")
    if not set(entry) - {"field", "attribute", "steps", "comment"}:
        raise TwinrunError(
            "has no setting for its fields", where=where, fix="give atol, rtol, ulp, period or skip"
        )
    if of == "attribute":
        globs = [attribute_glob(glob) for glob in globs]
    return Rule(
        fields=tuple(globs),
        steps=steps,
        atol=values.get("atol"),
        rtol=values.get("rtol"),
        ulps=ulps,
        period=period,
        equal_nan=None if "nan_differs" not in entry else not entry["nan_differs"],
        integers=entry.get("integers"),
        skip=entry.get("skip", False),
        label=f"rule {number} ({', '.join(globs)})",
        of_attributes=of == "attribute",
    )


# An error for a key, and what its value must be.
_Wrong = Callable[[str, str], TwinrunError]


def _steps(entry: Mapping[str, Any], wrong: _Wrong) -> str | None:
    steps = entry.get("steps")
    if steps is None:
        return None
    if isinstance(steps, int) and not isinstance(steps, bool):
        steps = str(steps)
    if not isinstance(steps, str):
        raise wrong("steps", "such as '10,20' or '100:200'")
    parse_steps(steps)
    return steps


def _lengths(entry: Mapping[str, Any], wrong: _Wrong) -> tuple[float, ...]:
    """The lengths of the circles of a rule."""
    if "period" not in entry:
        return ()
    lengths = entry["period"] if isinstance(entry["period"], list) else [entry["period"]]
    refuse = functools.partial(wrong, "period", "a length above 0, or 1 to 4 of them by component")
    if not 1 <= len(lengths) <= _MOST_COMPONENTS:
        raise refuse()
    found = tuple(_length(length, refuse) for length in lengths)
    if not any(found):
        raise refuse()
    if any(0 < length < _LEAST_LENGTH for length in found):
        raise wrong("period", f"at least {_LEAST_LENGTH:.3g}: no circle can be shorter")
    return found


def _length(value: object, error: Callable[[], TwinrunError]) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise error()
    try:
        number = float(value)
    except OverflowError:
        raise error() from None
    if not (math.isfinite(number) and number >= 0):
        raise error()
    return number


# Names that codes give to fields of positions: a period without a name is for these. A letter below
# another name is a component of that field ("momentum/x"), so it is a position only below a name of
# positions.
_POSITIONS = (
    "pos",
    "pos_[xyz]",
    "position",
    "positions",
    "position_[xyz]",
    "coordinates",
    "coords",
    "points",
)
_AXES = {"x": 0, "y": 1, "z": 2, "xx": 0, "yy": 1, "zz": 2, "x1": 0, "x2": 1, "x3": 2}


def is_position(name: str) -> bool:
    """Whether a field's name is one that codes give to positions."""
    *above, last = name.lower().split("/")
    if last in _AXES:
        return not above or _is_position_word(above[-1])
    return _is_position_word(last)


def _is_position_word(word: str) -> bool:
    return any(fnmatch.fnmatchcase(word, p) for p in _POSITIONS)


@dataclass(frozen=True)
class Periods:
    """--period: lengths of the periodic box by axis for fields that hold positions, or by field.

    axes: one length for all, or one an axis; () where only `named` is given. named: (glob, lengths).
    """

    axes: tuple[float, ...] = ()
    named: tuple[tuple[str, tuple[float, ...]], ...] = ()

    def of(self, name: str, shape: tuple[int, ...]) -> tuple[float, ...]:
        """Lengths by component of a field of this shape (as the user knows it); () where it is not
        periodic. Raises Incomparable where a name and a shape say different things.
        """
        for glob, lengths in self.named:
            if fnmatch.fnmatchcase(name, glob):
                return lengths
        if not self.axes or not is_position(name):
            return ()
        if len(self.axes) == 1:
            return self.axes
        last = name.lower().rsplit("/", 1)[-1]
        axis = _AXES.get(last.removeprefix("position_").removeprefix("pos_"))
        if axis is not None:
            if len(set(self.axes)) > 1 and len(shape) > 1 and 1 < shape[-1] <= _MOST_COMPONENTS:
                by_axis = "x".join(f"{length:g}" for length in self.axes)
                raise Incomparable(
                    f"field {name!r} has the name of one axis and shape {list(shape)}: its last axis may be all axes",
                    fix=f"say which lengths it has: --period '{name}={by_axis}', or '{name}={self.axes[0]:g}'",
                )
            return (self.axes[axis],) if axis < len(self.axes) else ()
        if len(shape) > 1 and shape[-1] == len(self.axes):
            return self.axes
        return ()

    def why_not(self, name: str, dtype: str, shape: tuple[int, ...], glob: str | None = None) -> str:
        """Why a field that a period is for lies on no circle; "": no period is for it, or it lies on one.

        glob: the period to ask for, of `named`; None: the one by axis.
        """
        if not (fnmatch.fnmatchcase(name, glob) if glob is not None else self.axes and is_position(name)):
            return ""
        if dtype not in FLOATING:
            return f"{name!r} is of type {dtype}, and only floating-point numbers have a period"
        if glob is not None or any(self.of(name, shape)):
            return ""
        given = f"{len(self.axes)} lengths were given, one an axis"
        if name.lower().rsplit("/", 1)[-1].removeprefix("position_").removeprefix("pos_") in _AXES:
            return f"{name!r} is along an axis without a length: {given}"
        return f"{name!r} has shape {list(shape)}, and {given}: its last axis must have as many components"


def parse_periods(text: str) -> Periods:
    """'62.5', '10,10,20' (by axis), 'Coordinates=62.5,pos_*=10x10x20' (by field).

    0: not periodic along it. Raises TwinrunError where nothing is periodic.
    """

    def lengths(part: str, separator: str) -> tuple[float, ...]:
        found = []
        for word in part.split(separator):
            try:
                # Python takes 1_0 for 10, which is more likely a slip.
                value = math.nan if "_" in word else float(word)
            except ValueError:
                value = math.nan
            if not math.isfinite(value):
                raise TwinrunError(
                    f"period {text!r} is not understood", fix="write 62.5, or 10,10,20, or pos=10x10x20"
                )
            if value < 0:
                raise TwinrunError(
                    f"period {in_short(text)}: a length must not be negative, and {word.strip()} is",
                    fix="give the length of the box; 0 is for an axis without one: 10x10x0",
                )
            if 0 < value < _LEAST_LENGTH:
                raise TwinrunError(
                    f"period {in_short(text)}: no circle can be as short as {word.strip()}",
                    fix=f"give the length of the box, at least {_LEAST_LENGTH:.3g}",
                )
            found.append(value)
        if len(found) > _MOST_COMPONENTS:
            raise TwinrunError(f"period {text!r} has more than {_MOST_COMPONENTS} components")
        return tuple(found)

    def too_short() -> TwinrunError:
        return TwinrunError(
            f"period {in_short(text)} has no length above 0",
            fix="give the length of the box, or leave the period out; 0 is for an axis without one: 10x10x0",
        )

    if "=" not in text:
        axes = lengths(text, ",")
        if not any(axes):
            raise too_short()
        return Periods(axes)
    named = []
    for part in text.split(","):
        glob, equals, value = part.partition("=")
        if not equals or not glob.strip():
            raise TwinrunError(f"period {text!r} is not understood", fix="write field=10x10x20,other=5")
        named.append((glob.strip(), lengths(value, "x")))
    if not any(any(found) for _, found in named):
        raise too_short()
    return Periods((), tuple(named))


def periods_of(period: str | float | Iterable[float] | None) -> Periods:
    """The periods that a caller gave: a length, lengths by axis, or text as `parse_periods` takes it."""
    if period is None:
        return Periods()
    if isinstance(period, str):
        return parse_periods(period)
    given: list[object]
    try:
        given = list(period)  # type: ignore[arg-type]
    except TypeError:
        given = [period]
    return parse_periods(",".join(repr(tolerance_number("period", length)) for length in given))
