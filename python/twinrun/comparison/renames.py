"""Other names for the fields of the second run: 'transformer.*=*', before fields are matched.

[[rename]]                # in a file of tolerances
from = "transformer.*"    # a name of the second run; * and ? stand for what the first run's name takes over
to = "*"
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import Incomparable, TwinrunError, in_short
from ..formats.facts import NOT_COMPARED, SUMMARY, Fact
from ..formats.texts import MASK, SUFFIX, column_name, text_array
from ..runs.arrays import taken
from ..runs.fields import FieldRef
from ..runs.subject import Opened, Place, Subject, Wrapped

__all__ = ["Rename", "Renamed", "parse_rename", "renames_of", "unused"]

_WILDCARD = re.compile(r"[*?]")
_COLUMNS = "@columns" + SUFFIX  # names of columns of a data frame: runs/containers.py
_OWN_NAMES = frozenset({SUMMARY, NOT_COMPARED})  # of twinrun's, in metadata


@dataclass(frozen=True)
class Rename:
    """A rule: names of the second run that match `pattern` become `target`.

    The n-th * or ? of the target stands for what the n-th of the pattern matched.
    """

    pattern: str
    target: str

    def __post_init__(self) -> None:
        given, asked = (len(_WILDCARD.findall(text)) for text in (self.pattern, self.target))
        if not self.pattern or not self.target or asked not in (0, given):
            raise TwinrunError(
                f"rename {str(self)!r} is not understood",
                fix="write OLD=NEW, with as many * and ? in NEW as in OLD, or none: 'transformer.*=*'",
            )
        if _WILDCARD.sub("", self.pattern) == "" and self.pattern == self.target:
            raise TwinrunError(f"rename {str(self)!r} changes no name", fix="write OLD=NEW")

    def __str__(self) -> str:
        return f"{self.pattern}={self.target}"

    def __reduce__(self) -> tuple:
        return Rename, (self.pattern, self.target)

    def of(self, name: str) -> str | None:
        """The new name; None where the rule does not match."""
        found = _matched(self.pattern, name)
        if found is None:
            return None
        taken = iter(found)
        return _WILDCARD.sub(lambda _: next(taken), self.target)


def _matched(pattern: str, name: str) -> list[str] | None:
    """What the wildcards of a pattern stand for; None where it does not match the whole name.

    The first * takes as much as it can, then the second, and so on: what is between two * lies as far to the
    right as possible, and is placed from the last to the first. A regular expression finds the same, but may
    try exponentially many ways.
    """
    first, *others = pattern.split("*")
    if not others:
        return _marks(first, name) if len(first) == len(name) and _fits(first, name, 0) else None
    *middle, last = others
    end = len(name) - len(last)
    if end < len(first) or not _fits(first, name, 0) or not _fits(last, name, end):
        return None
    found = _marks(last, name[end:])
    for piece in reversed(middle):
        begin = end - len(piece)
        while begin >= len(first) and not _fits(piece, name, begin):
            begin -= 1
        if begin < len(first):
            return None
        found = [*_marks(piece, name[begin:]), name[begin + len(piece) : end], *found]
        end = begin
    return [*_marks(first, name), name[len(first) : end], *found]


def _fits(piece: str, name: str, begin: int) -> bool:
    """Whether a piece of a pattern without * stands in a name at this place."""
    if "?" not in piece:
        return name.startswith(piece, begin)
    return all(c in ("?", x) for c, x in zip(piece, name[begin : begin + len(piece)], strict=True))


def _marks(piece: str, name: str) -> list[str]:
    """What each ? of a piece stands for, in a name that begins where it does."""
    return [x for c, x in zip(piece, name, strict=False) if c == "?"]


def parse_rename(text: str) -> Rename:
    """'transformer.*=*'. Raises TwinrunError."""
    pattern, equals, target = text.partition("=")
    if not equals:
        raise TwinrunError(f"rename {text!r} is not understood", fix="write OLD=NEW, as in 'transformer.*=*'")
    return Rename(pattern, target)


def renames_of(given: str | Mapping[str, str] | Iterable[str] | None) -> tuple[Rename, ...]:
    """The rules that a caller gave: one text, several, or {old: new}. Raises TwinrunError."""
    if given is None:
        return ()
    if isinstance(given, str):
        return (parse_rename(given),)
    if isinstance(given, Mapping):
        return tuple(Rename(str(old), str(new)) for old, new in given.items())
    if isinstance(given, (bytes, bytearray)) or not isinstance(given, Iterable):
        raise _no_renames(given)
    try:
        rules = list(given)
    except TypeError:  # an array of NumPy without dimensions says that it can be iterated over
        raise _no_renames(given) from None
    for one in rules:
        if not isinstance(one, (str, Rename)):
            raise _no_renames(one)
    return tuple(one if isinstance(one, Rename) else parse_rename(one) for one in rules)


def _no_renames(given: object) -> TwinrunError:
    return TwinrunError(
        f"rename must be a text, a list of texts or a mapping, not {in_short(given)}",
        fix="write rename='OLD=NEW' or rename={'OLD': 'NEW'}",
    )


def unused(renames: Sequence[Rename], used: frozenset[int], label: str) -> list[Incomparable]:
    """Problems for rules that matched no name. used: the numbers of those that did. label: of the run."""
    return [
        Incomparable(
            f"rename {str(rule)!r} matches no field", where=label, fix="check the pattern, or leave it out"
        )
        for at, rule in enumerate(renames)
        if at not in used
    ]


class Renamed(Wrapped):
    """A run whose fields have other names.

    used: the numbers of the rules that matched a name, in this process.
    """

    def __init__(self, inner: Subject, renames: Sequence[Rename]) -> None:
        super().__init__(inner)
        self.renames = tuple(renames)
        # Of thousands of names, each is looked up.
        self._plain: dict[str, int] = {}
        self._wild: list[tuple[int, Rename]] = []
        for at, rule in enumerate(self.renames):
            if _WILDCARD.search(rule.pattern):
                self._wild.append((at, rule))
            else:
                self._plain.setdefault(rule.pattern, at)
        self.used: set[int] = set()
        self.skipped = [(self.new_name(name), where, why) for name, where, why in inner.skipped]
        self.unknown_names = [self.new_name(name) for name in inner.unknown_names]

    def _first(self, name: str) -> tuple[int, str] | None:
        """The number of the first rule that matches, and the new name."""
        plain = self._plain.get(name)
        for at, rule in self._wild:
            if plain is not None and plain < at:
                break
            new = rule.of(name)
            if new is not None:
                return at, new
        return None if plain is None else (plain, self.renames[plain].target)

    def new_name(self, name: str) -> str:
        """The name that the first matching rule gives; the name itself where none matches."""
        if name in _OWN_NAMES:
            return name
        base = name.removesuffix(MASK)
        if (first := self._first(base)) is not None:
            self.used.add(first[0])
            return first[1] + name[len(base) :]
        owner, at_sign, attribute = name.partition("@")
        if at_sign and base == name:  # an attribute that is a field goes with its owner
            return self.new_name(owner) + at_sign + attribute
        return name

    def _group_name(self, owner: str, separator: str, groups: Mapping[str, str | None]) -> str:
        """The new name of a group: that of a rule for it, else that of the group into which all fields below
        it go, else that of a rule that renames everything below it.

        groups: as `_moved_groups` gives them.
        """
        new = self.new_name(owner)
        if new != owner:
            return new
        if (moved := groups.get(owner)) is not None:
            return moved
        if (first := self._first(owner + separator)) is not None:
            at, found = first
            if not found.endswith(separator) or found == separator:
                return owner
            self.used.add(at)  # also where the group has no field
            return found.removesuffix(separator)
        return owner

    def _owners(self, facts: Iterable[Fact], fields: Mapping[str, str]) -> dict[str, str]:
        """The new names of the owners of facts. A group does not get the name of another owner.

        fields: their new names by the old ones.
        """
        moved = _moved_groups(fields, "/")
        names = {fact.owner: self.new_name(fact.owner) if fact.owner else "" for fact in facts}
        return _with_groups(names, {old: self._group_name(old, "/", moved) for old in names if old})

    def _new_names(self, names: Iterable[str]) -> dict[str, str]:
        """The new names of fields. Labels of a container are fields, and go with it as facts do."""
        new = {name: self.new_name(name) for name in names}
        moved = _moved_groups(new, ".")
        groups: dict[str, str] = {}
        for name in new:
            owner, at_sign, label = name.partition("@")
            if new[name] == name and at_sign and owner:
                groups[name] = self._group_name(owner, ".", moved) + at_sign + label
        return _with_groups(new, groups)

    def _columns(self, name: str, ref: FieldRef) -> FieldRef:
        """The names of the columns of a data frame, which are a field: renamed as the columns are."""
        if not name.endswith(_COLUMNS):
            return ref
        from ..runs.containers import Texts  # few comparisons need it, and it needs NumPy

        texts = getattr(ref.text, "__self__", None)
        if not isinstance(texts, Texts) or texts.source is None:
            return ref
        owner = name.removesuffix(_COLUMNS)
        old, new = (f"{frame}." if frame else "" for frame in (owner, self.new_name(owner) if owner else ""))
        source = texts.source.copy()
        for at, column in enumerate(source):
            if isinstance(column, str) and column_name(column) == column:
                renamed = self.new_name(old + column)
                if renamed != old + column and renamed.startswith(new):
                    source[at] = renamed.removeprefix(new)
        made = text_array(source).view(Texts)
        made.source = source
        return replace(ref, memory=taken(ref.name, made), text=made.text)

    def _new_fact(self, fact: Fact, owner: str) -> Fact:
        if not fact.order:
            return replace(fact, owner=owner)
        old, new = (f"{name}/" if name else "" for name in (fact.owner, owner))
        order = (self.new_name(old + name) for name in fact.order)
        return replace(fact, owner=owner, order=tuple(name.removeprefix(new) for name in order))

    @contextlib.contextmanager
    def open(self, place: Place, use_metadata: bool = True, whole: bool = True) -> Iterator[Opened]:
        with self.inner.open(place, use_metadata, whole) as opened:
            by_name: dict[str, list[FieldRef]] = {}
            names = self._new_names(opened)
            for name, ref in opened.items():
                by_name.setdefault(names[name], []).append(self._columns(name, ref))
            for new, refs in by_name.items():
                if len(refs) > 1:
                    said = ", ".join(repr(ref.name) for ref in refs[:5])
                    at = "" if place[0] is None else f"step {place[0]}: "
                    raise Incomparable(
                        f"{at}several fields get the name {new!r} by rename: {said}",
                        where=self.label,
                        fix="give them different names",
                    )
            made = opened.with_fields({new: _called(ref, new) for new, (ref,) in by_name.items()})
            made.skipped = [(self.new_name(name), where, why) for name, where, why in opened.skipped]
            # A rule may give fields of one file names that begin in different ways.
            made.unopened = [replace(file, name="") for file in opened.unopened]
            if opened.facts is not None:
                made.facts, made.format_of = {}, {}
                owners = self._owners(opened.facts.values(), names)
                for label, fact in opened.facts.items():
                    renamed = self._new_fact(fact, owners[fact.owner])
                    new = f"{renamed.owner}@{renamed.name}" + "'" * (len(label) - len(label.rstrip("'")))
                    while new in made.facts:
                        new += "'"
                    made.facts[new] = renamed
                    if label in opened.format_of:
                        made.format_of[new] = opened.format_of[label]
            yield made

    def copy_of(self, inner: Subject) -> Renamed:
        return Renamed(inner, self.renames)


def _moved_groups(fields: Mapping[str, str], separator: str) -> dict[str, str | None]:
    """The groups into which all fields of a group go, by the group; None where they go into several.

    fields: their new names by the old ones.
    """
    found: dict[str, str | None] = {}
    for old, new in fields.items():
        at = old.rfind(separator)
        while at > 0:
            rest = old[at:]
            group = new.removesuffix(rest) if new.endswith(rest) and new != rest else None
            if found.setdefault(old[:at], group) != group:
                found[old[:at]] = None
            at = old.rfind(separator, 0, at)
    return found


def _with_groups(names: Mapping[str, str], groups: Mapping[str, str]) -> dict[str, str]:
    """New names by old ones; those of groups in place of their own, unless two would get one name. The names
    that groups leave are free: two groups can swap theirs.
    """
    moved = {old: new for old, new in groups.items() if new != names[old]}
    while True:
        made = {**names, **moved}
        times = Counter(made.values())
        clashing = [old for old, new in moved.items() if times[new] > 1]
        if not clashing:
            return made
        for old in clashing:
            del moved[old]


def _called(ref: FieldRef, name: str) -> FieldRef:
    """A field by another name; what its file calls it stays known."""
    if ref.name == name:
        return ref
    return replace(ref, name=name, own_name=ref.own_name or ref.name, stored_name=ref.stored_name or ref.name)
