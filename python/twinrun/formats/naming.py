"""Step, rank and field name from the path of a file of another program.

    step-0000000010/x.f32      step 10, rank 0, x
    plt00010.h5                step 10, rank 0, plt
    out_250.npy                step 250, rank 0, out
    step-10/rank-00003/x.npy   step 10, rank 3, x
    snap_010.3.hdf5            step 10, rank 3, snap
    output_00010/part/x1.f32   step 10, rank 0, part/x1
    epoch=3-step=1000.ckpt     step 1000, rank 0, no name: parts that change from file to file are
                               not part of the name

Rules, in this order:

Rank: a number after the word rank, proc or mpi in any part of the path; otherwise a number between dots in
the file's name (`.3.`), if the path has a step without it.

Step: a number after a word such as step, iter, plt, dump, out or snap, in the innermost part of the path that
has one; otherwise the last number of the file's name that follows a separator (`_250`, `.250`) or has three
digits or more; otherwise the last number of the innermost folder that has one; otherwise the last number of
the file's name.

Name: the file's stem without rank and step, after the folders that contain neither.

Times: a number with a point or an exponent, and a date, are no steps. They stay in the name, which tells the
place:

    0.25/T.npy                 no step, rank 0, 0.25/T
    out_t2.0e-03.npz           no step, rank 0, out_t2.0e-03
    wrfout_2020-01-03_12:00    no step, rank 0, wrfout_2020-01-03_12:00

`snap_010.3.hdf5` may be either. It is a step and a rank if the number before the point begins with 0. So it
is if the numbers behind it are all from 0 on, in all files that are called like this one, and are no tenths.
Beside times, whole numbers (`0/`, `0.5/`, `1/`) are times, too.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Place", "field_name", "in_natural_order", "natural", "parse_path", "place_among", "times_among"]


@functools.cache
def _patterns() -> tuple[re.Pattern[str], ...]:
    """Of ranks, steps, numbers between dots, numbers that stand apart, numbers, and pairs. Compiled
    for the first path that has a number.
    """
    rank = r"(?i)(?<![a-z])(?:rank|proc|mpi)[-_.=]?(\d{1,18})(?!\d)"
    step = (
        r"(?i)(?<![a-z])(?:time_?step|step|iteration|iter|it|cycle|cyc|ts|plt|plot|chk|checkpoint|ckpt|snapshot"
        r"|snapdir|snap|dump|restart|output|out|frame|epoch|gen)[-_.=]?(\d{1,18})(?!\d)"
    )
    dotted = r"\.(\d{1,18})(?=\.|$)"
    apart = r"(?<=[-_.])\d{1,18}(?!\d)|(?<!\d)\d{3,18}(?!\d)"
    number = r"(?<!\d)\d{1,18}(?!\d)"
    pair = r"[A-Za-z][A-Za-z0-9_]*=[^-=]*(?=-|$)"
    return tuple(map(re.compile, (rank, step, dotted, apart, number, pair)))


@functools.cache
def _usual() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Step and rank of a file's name whose only numbers are a step behind a separator and perhaps a rank
    (`x_250.npy`, `x.250.3.npy`); and of what ends with a word for a step or a rank.
    """
    words = r"(?i)(?<![a-z])(?:rank|proc|mpi|time_?step|step|iteration|iter|it|cycle|cyc|ts|plt|plot|chk|checkpoint|ckpt"
    words += r"|snapshot|snapdir|snap|dump|restart|output|out|frame|epoch|gen)[-_]*$"
    return re.compile(r"([A-Za-z][A-Za-z_-]*)[-_.]([0-9]{1,18})(?:\.([0-9]{1,18}))?\.[A-Za-z]+"), re.compile(
        words
    )


@functools.cache
def _token() -> re.Pattern[str]:
    """A date, with the time of day or without (group 1), or a number that stands apart: what comes before the
    point, what comes behind it, and the exponent (groups 2 to 4).
    """
    day = r"(?<!\d)\d{4}-\d{2}-\d{2}(?!\d)(?:[T_ ]\d{2}[-:.]?\d{2}(?:[-:.]?\d{2}(?:\.\d+)?)?Z?(?!\d))?"
    number = r"(?<![\d.])(\d{1,18})(?:\.(\d{1,18}))?([eE][-+]?\d{1,3}(?![\da-zA-Z]))?(?!\d|\.\d)"
    return re.compile(f"({day})|{number}")


_DOUBLE_SUFFIX = (".gz", ".bz2", ".xz", ".zst")


@dataclass(frozen=True)
class Place:
    """Step, rank and name of a file.

    step: None if the path has no number that can be a step. rank: 0 if the path names none. name: may be ''.
    """

    step: int | None
    rank: int
    name: str


@functools.lru_cache(1 << 15)  # both runs have the same names, as a rule
def parse_path(path: str) -> Place:
    """Place of a file, from its path relative to the folder of the run, by the rules above."""
    usual, words = _usual()
    found = usual.fullmatch(path)
    if (
        found is not None
        and words.search(found[1]) is None
        and not path.lower().endswith((".ckpt", *_DOUBLE_SUFFIX))
    ):
        # The result of the rules below.
        return Place(int(found[2]), int(found[3] or 0), found[1].rstrip("-_"))
    folders, stem, suffix = _split(path)
    if suffix != ".ckpt" and not any(map(str.isdecimal, path)):  # most single files: nothing to look for
        return Place(None, 0, "/".join([*_named(folders), *([stem] if stem else [])]))
    numbers = _Numbers(folders, stem, suffix == ".ckpt")
    step, rank = numbers.step_and_rank()
    return Place(step, rank, numbers.name())


@functools.cache
def _hint() -> re.Pattern[str]:
    """Found in every path that has a number with a point or an exponent, or a date."""
    return re.compile(r"\d\.\d|\d[eE][-+]?\d|\d-\d{2}-\d")


Times = Mapping[str, frozenset[int]]
"""Which numbers are times: by what a file is called besides its numbers, their places among these."""


def times_among(paths: Iterable[str]) -> Times:
    """Which numbers in the names of a folder's files are times, for `place_among`."""
    pairs: dict[tuple[str, int], set[tuple[str, str]]] = {}  # numbers before and behind a point
    times: dict[str, set[int]] = {}
    for path in paths:
        if _hint().search(path) is None:  # most files
            continue
        kind = _token().sub("#", path)
        for at, m in enumerate(_token().finditer(path)):
            if m[1] is not None or m[4] is not None or (m[3] is not None and _is_folder(m)):
                times.setdefault(kind, set()).add(at)
            elif m[3] is not None:
                pairs.setdefault((kind, at), set()).add((m[2], m[3]))
    for (kind, at), found in pairs.items():
        if not any(re.fullmatch(r"0\d+", before) for before, _ in found) and not _are_ranks(found):
            times.setdefault(kind, set()).add(at)
    return {kind: frozenset(places) for kind, places in times.items()}


def _is_folder(number: re.Match[str]) -> bool:
    """Whether a number is the whole name of a folder."""
    begin, end = number.span()
    return number.string[end : end + 1] == "/" and number.string[max(begin - 1, 0) : begin] in ("", "/")


def _are_ranks(pairs: set[tuple[str, str]]) -> bool:
    """Whether numbers behind points are ranks: all from 0 on. (step, rank), or whole part and fraction."""
    ranks = {int(rank) for _, rank in pairs}
    if ranks != set(range(len(ranks))):
        return False
    steps = sorted({int(step) for step, _ in pairs})
    # 0.0, 0.1, ..., 0.9, 1.0: tenths of something
    tenths = len(ranks) == 10 and all(len(rank) == 1 for _, rank in pairs)
    return not (tenths and len(steps) > 1 and steps == [*range(steps[0], steps[0] + len(steps))])


def place_among(path: str, times: Times) -> Place:
    """Place of a file of a folder in whose names these numbers are times."""
    places = times.get(_token().sub("#", path)) if times else None
    if places is None:
        return parse_path(path)
    signs = (sign for sign in map(chr, _MEANINGLESS) if sign not in path)
    hidden: dict[str, str] = {}  # for each time a sign that is no number
    masked = path
    for at, m in reversed([*enumerate(_token().finditer(path))]):
        if at in places:
            sign = next(signs)
            hidden[sign] = m[0]
            masked = masked[: m.start()] + sign + masked[m.end() :]
    folders, stem, suffix = _split(masked)
    numbers = _Numbers(folders, stem, suffix == ".ckpt")
    step, rank = numbers.marked_step_and_rank()
    return Place(step, rank, "".join(hidden.get(c, c) for c in numbers.name()))


_MEANINGLESS = range(0xE000, 0xF900)  # signs of Unicode


def natural(path: str) -> list[tuple[int, float, str]]:
    """A key that sorts by the numbers in paths.

    >>> sorted(["step_10/u", "step_4/u", "t1.5", "t5e-1"], key=natural)
    ['step_4/u', 'step_10/u', 't5e-1', 't1.5']
    """
    key: list[tuple[int, float, str]] = []
    end = 0
    for m in _token().finditer(path):
        key.append((1, 0.0, path[end : m.start()]))
        key.append((1, 0.0, m[1]) if m[1] is not None else (0, float(m[0]), ""))
        end = m.end()
    return [*key, (1, 0.0, path[end:]), (1, 0.0, path)]


def in_natural_order(names: Sequence[str]) -> list[str]:
    """Names of which those that differ in numbers alone are in the order of these; others stay in place.

    >>> in_natural_order(["z", "step_10/u", "step_10/v", "step_4/u", "step_4/v"])
    ['z', 'step_4/u', 'step_4/v', 'step_10/u', 'step_10/v']
    """
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(_token().sub("#", name), []).append(name)
    ordered = {kind: iter(sorted(alike, key=natural)) for kind, alike in kinds.items()}
    return [next(ordered[_token().sub("#", name)]) for name in names]


def _split(path: str) -> tuple[list[str], str, str]:
    """Folders, stem and suffix in lower case, without the suffix of a compressed file."""
    *folders, base = path.replace(os.sep, "/").split("/")
    if base.lower().endswith(_DOUBLE_SUFFIX):
        base = os.path.splitext(base)[0]
    stem, suffix = os.path.splitext(base)
    # snapshot_010.3, dump.melt.1000: the number is not a suffix
    if not stem or suffix[1:].isdecimal():
        stem = base
    return folders, stem, suffix.lower()


def _named(folders: list[str]) -> list[str]:
    return [f for f in folders if f not in ("", ".")]


_Hit = tuple[int, re.Match[str]]  # the part of the path, and what was found there


class _Numbers:
    """The numbers of a path, and which of them were taken as its rank and its step."""

    def __init__(self, folders: list[str], stem: str, checkpoint: bool) -> None:
        self._rank, self._step, self._dotted, self._apart, self._number, pair = _patterns()
        self._folders, self._stem = folders, stem
        self._parts = [*folders, stem]
        self._last = len(folders)  # the part that is the stem
        self._used: list[set[tuple[int, int]]] = [set() for _ in self._parts]
        # Pairs such as epoch=3, and val_loss=0.25 in the name of a checkpoint, change from file to
        # file.
        self._pairs = {
            m.span() for m in pair.finditer(stem) if checkpoint or self._step.fullmatch(m[0]) is not None
        }

    def step_and_rank(self) -> tuple[int | None, int]:
        """Takes the step and the rank, 0 where there is none, by the rules above."""
        inner_first = range(self._last, -1, -1)
        rank: int | None = None
        if (hit := self._search(self._rank, inner_first)) is not None:
            rank = self._take(hit, 1)
        marked = self._search(self._step, inner_first)
        dotted = self._search(self._dotted, [self._last]) if rank is None else None
        if dotted is not None and self._is_rank(dotted, marked):
            rank = self._take(dotted, 1)
        step = self._unmarked_step() if marked is None else self._take(marked, 1)
        return step, rank or 0

    def marked_step_and_rank(self) -> tuple[int | None, int]:
        """The same of numbers behind a word for a step or a rank alone."""
        inner_first = range(self._last, -1, -1)
        rank = 0
        if (hit := self._search(self._rank, inner_first)) is not None:
            rank = self._take(hit, 1)
        marked = self._search(self._step, inner_first)
        return None if marked is None else self._take(marked, 1), rank

    def _is_rank(self, dotted: _Hit, marked: _Hit | None) -> bool:
        """Whether a number between dots is a rank: the path has a step without it. marked: a step
        that follows a word.
        """
        start, end = dotted[1].span()
        if marked is None:
            apart = self._apart.search(self._stem[:start]) is not None
            return apart or any(folder.isdecimal() for folder in self._folders)
        return not (marked[0] == self._last and marked[1].start() < end and start < marked[1].end())

    def _unmarked_step(self) -> int | None:
        folders_inner_first = range(self._last - 1, -1, -1)
        for pattern, where in (
            (self._apart, [self._last]),
            (self._number, folders_inner_first),
            (self._number, [self._last]),
        ):
            if (hit := self._search(pattern, where)) is not None:
                return self._take(hit, 0)
        return None

    def _search(self, pattern: re.Pattern[str], where: range | list[int]) -> _Hit | None:
        """The last number of the first of these parts that has one which is not taken."""
        anywhere = pattern in (self._rank, self._step)
        for at in where:
            hits = [
                m
                for m in pattern.finditer(self._parts[at])
                if not any(a < m.end() and m.start() < b for a, b in self._used[at])
                and (anywhere or at != self._last or not any(a <= m.start() < b for a, b in self._pairs))
            ]
            if hits:  # prefer a step to the epoch that contains it
                finer = [m for m in hits if not m[0].lower().startswith("epoch")]
                return at, (finer or hits)[-1]
        return None

    def _take(self, hit: _Hit, group: int) -> int:
        self._used[hit[0]].add(hit[1].span())
        return int(hit[1].group(group))

    def name(self) -> str:
        """The path without its rank and step. A word before the step stays ("plt"), but not "step" or
        "rank". Folders that contain a rank or a step are removed whole.
        """
        kept = _named([folder for at, folder in enumerate(self._folders) if not self._used[at]])
        used = self._used[self._last]
        if self._pairs:
            inside = [m for m in used if any(a <= m[0] and m[1] <= b for a, b in self._pairs)]
            used = (used - set(inside)) | self._pairs
        rest = self._stem
        for start, end in sorted(used, reverse=True):
            word = re.match(r"(?i)[a-z_]*", rest[start:end])
            keep = word.group(0).strip("_") if word and "=" not in rest[start:end] else ""
            if re.fullmatch(r"(?i)rank|proc|mpi|time_?step|step|iteration|iter|it|cycle|cyc|ts", keep):
                keep = ""
            rest = rest[:start] + keep + "\0" + rest[end:]
        rest = re.sub(r"[-_.]*\0[-_.]*", "\0", rest).strip("\0")
        return "/".join([*kept, rest.replace("\0", "_")] if rest else kept)


def field_name(path: str) -> str:
    """Name for the only array of a file, from the file's name.

    'data' if that has nothing but rank and step.
    """
    return parse_path(os.path.basename(path)).name or "data"
