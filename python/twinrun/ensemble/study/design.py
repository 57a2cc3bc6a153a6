"""Which cells a study has, and in which order tasks run.

Blocks: every block holds every cell once, so that slow changes affect all cells alike. Within blocks the
order is random, and balanced: over as many blocks as there are cells, each cell comes once at each position
and, where their number is even, once after each other cell (E. J. Williams, Experimental designs balanced for
the estimation of residual effects of treatments, 1949); the roles of cells and the order of blocks are
random. With named nodes, each cell comes to each node once in as many blocks as there are nodes.

Fractional designs are two-level factorials: a generator D = A B C gives the last factor the product of others
(levels as -1 and +1), and each effect then has the same estimate as others, its aliases: `aliases` says
which.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import TwinrunError
from .interposition import OFF
from .study import INTERPOSE, Study

__all__ = ["Fraction", "Task", "cells", "fraction_of", "plan", "warmups"]

Cell = dict[str, str]
_MOST_CELLS = 100_000


@dataclass(frozen=True)
class Task:
    """A line of the plan. warmup: its measurements do not count. replica: among the identical tasks
    of a workload, None where cells are single tasks.
    """

    task: int
    block: int
    order: int
    factors: Cell
    seed: int
    repetition: int
    node: str | None = None
    warmup: bool = False
    replica: int | None = None

    def json(self) -> dict:
        """The task as a line of plan.jsonl."""
        line: dict = {
            "task": self.task,
            "block": self.block,
            "order": self.order,
            "factors": self.factors,
            "seed": self.seed,
            "repetition": self.repetition,
        }
        if self.node is not None:
            line["node"] = self.node
        if self.replica is not None:
            line["replica"] = self.replica
        if self.warmup:
            line["warmup"] = True
        return line


@dataclass(frozen=True)
class Fraction:
    """A two-level fractional factorial. words: products of factors that are constant, with their sign."""

    factors: tuple[str, ...]
    generators: dict[str, tuple[int, tuple[str, ...]]]
    words: tuple[tuple[int, frozenset[str]], ...]

    @property
    def resolution(self) -> int:
        """Length of the shortest word: III: main effects are aliased with interactions of two."""
        return min((len(w) for _, w in self.words), default=len(self.factors) + 1)

    def aliases(self, longest: int = 2) -> dict[str, list[str]]:
        """{effect: its aliases}, for effects of up to `longest` factors; '-' marks an alias of
        opposite sign.
        """
        found = {}
        for n in range(1, longest + 1):
            for effect in itertools.combinations(self.factors, n):
                others = []
                for sign, word in self.words:
                    other = word ^ set(effect)
                    if 0 < len(other) <= longest:
                        others.append(("" if sign > 0 else "-") + self._name(other))
                found["*".join(effect)] = sorted(others, key=lambda x: (x.count("*"), x))
        return found

    def _name(self, word: frozenset[str] | set[str]) -> str:
        return "*".join(f for f in self.factors if f in word)

    def said(self) -> list[str]:
        """Lines for people."""
        lines = [
            f"generator {name} = {'-' if sign < 0 else ''}{' * '.join(word)}"
            for name, (sign, word) in self.generators.items()
        ]
        roman = {1: "I", 2: "II", 3: "III", 4: "IV", 5: "V", 6: "VI", 7: "VII", 8: "VIII"}
        lines.append(f"resolution {roman.get(self.resolution, self.resolution)}")
        for effect, others in self.aliases().items():
            if others:
                lines.append(f"{effect} is aliased with {', '.join(others)}")
        return lines


def _relation(
    generators: dict[str, tuple[int, tuple[str, ...]]],
) -> tuple[tuple[int, frozenset[str]], ...]:
    """All products of the generators' words: I = sign * word."""
    own = [(sign, frozenset(word) | {name}) for name, (sign, word) in generators.items()]
    words = []
    for n in range(1, len(own) + 1):
        for chosen in itertools.combinations(own, n):
            sign, word = 1, frozenset[str]()
            for s, w in chosen:
                sign, word = sign * s, word ^ w
            words.append((sign, word))
    return tuple(words)


def _parsed(generators: Sequence[str], names: Sequence[str]) -> dict[str, tuple[int, tuple[str, ...]]]:
    found: dict[str, tuple[int, tuple[str, ...]]] = {}
    for text in generators:
        match = re.fullmatch(r"\s*([\w-]+)\s*=\s*(-?)\s*([\w-]+(?:\s*\*\s*[\w-]+)*)\s*", text)
        word = tuple(re.split(r"\s*\*\s*", match[3])) if match else ()
        if match is None or len(set(word)) != len(word) or match[1] in word:
            raise TwinrunError(
                f"generator {text!r} is not understood", fix="write D = A*B*C, with factors' names"
            )
        for name in (match[1], *word):
            if name not in names:
                raise TwinrunError(f"generator {text!r} names {name}, which is no factor")
        if match[1] in found:
            raise TwinrunError(f"two generators define {match[1]}")
        found[match[1]] = (-1 if match[2] else 1, word)
    for name, (_, word) in found.items():
        for other in word:
            if other in found:
                raise TwinrunError(f"the generator of {name} names {other}, which has a generator itself")
    return found


def fraction_of(names: Sequence[str], generators: Sequence[str] = (), fraction: int = 0) -> Fraction:
    """The fraction with these generators, or the best with `fraction` of them: highest resolution, then
    fewest shortest words.

    Raises TwinrunError where there is none.
    """
    names = tuple(names)
    if not generators:
        own = names[: len(names) - fraction]
        if fraction < 1 or len(own) < 2:
            raise TwinrunError(
                "a fractional design needs generators, or a fraction that leaves two factors or more"
            )
        products = [w for n in range(len(own), 1, -1) for w in itertools.combinations(own, n)]
        if len(products) < fraction:
            raise TwinrunError(
                f"{len(names)} factors are too many: the fraction leaves {len(own)} with levels of their own,"
                f" which have {len(products)} products for the other {fraction}"
            )
        best: tuple | None = None
        for chosen in itertools.islice(itertools.combinations(products, fraction), 20_000):
            candidate = {n: (1, w) for n, w in zip(names[len(own) :], chosen, strict=True)}
            lengths = sorted(len(w) for _, w in _relation(candidate))
            score = (-lengths[0], lengths.count(lengths[0]))
            if best is None or score < best[0]:
                best = (score, candidate)
        assert best is not None
        found = best[1]
    else:
        found = _parsed(generators, names)
    return Fraction(names, found, _relation(found))


def cells(study: Study) -> list[Cell]:
    """The cells of the design, each once. Raises TwinrunError for an impossible design."""
    factors = study.factors
    if not factors:
        return [{}]
    if study.design.kind == "full":
        number = 1
        for f in factors:
            number *= len(f.levels)
        if number > _MOST_CELLS:
            raise TwinrunError(f"a full factorial of these factors has {number} cells")
        return [
            dict(zip((f.name for f in factors), levels, strict=True))
            for levels in itertools.product(*(f.levels for f in factors))
        ]
    if study.design.kind == "one-at-a-time":
        base = {f.name: study.design.base.get(f.name, f.levels[0]) for f in factors}
        return [base, *({**base, f.name: x} for f in factors for x in f.levels if x != base[f.name])]
    for f in factors:
        if len(f.levels) != 2:
            raise TwinrunError(
                f"a fractional design has two levels of each factor; {f.name} has {len(f.levels)}"
            )
    fraction = fraction_of([f.name for f in factors], study.design.generators, study.design.fraction)
    own = [f for f in factors if f.name not in fraction.generators]
    found = []
    for signs in itertools.product((-1, 1), repeat=len(own)):
        sign = dict(zip((f.name for f in own), signs, strict=True))
        for name, (factor, word) in fraction.generators.items():
            sign[name] = factor * int(np.prod([sign[w] for w in word]))
        found.append({f.name: f.levels[(sign[f.name] + 1) // 2] for f in factors})
    return found


def _williams(n: int, reverse: bool) -> list[list[int]]:
    """Rows with each of 0 to n - 1 once; in n rows each comes once at every position."""
    first = [0]
    for i in range(1, n):
        first.append((i + 1) // 2 if i % 2 else n - i // 2)
    if reverse:
        first.reverse()
    return [[(x + shift) % n for x in first] for shift in range(n)]


def orders(cell_count: int, blocks: int, seed: int) -> list[list[int]]:
    """The order of cells in each block. A longer plan begins like a shorter one."""
    found: list[list[int]] = []
    cycle = 0
    while len(found) < blocks:
        rng = np.random.default_rng([seed, cycle])
        part = rng.permutation(cell_count).tolist()
        # With an odd number, a square and its mirror image together balance neighbours.
        rows = _williams(cell_count, reverse=cell_count % 2 == 1 and cycle % 2 == 1)
        for row in rng.permutation(cell_count).tolist():
            found.append([part[x] for x in rows[row]])
        cycle += 1
    return found[:blocks]


def _node(study: Study, cell: int, block: int) -> str | None:
    """Rotates cells over nodes: each cell runs on each node once in as many blocks as there are nodes."""
    if not study.design.nodes:
        return None
    n = len(study.design.nodes)
    rng = np.random.default_rng([study.design.order, 1 << 20, block // n])
    shifts = rng.permutation(n)
    places = rng.permutation(len(cells(study)))
    return study.design.nodes[int(places[cell] + shifts[block % n]) % n]


def _seed(study: Study, task: int, block: int) -> int:
    return study.seeds.first + {"fixed": 0, "repetition": block, "task": task}[study.seeds.kind]


def plan(study: Study) -> list[Task]:
    """All tasks in the order in which they run, without warm-ups: `warmups`."""
    return list(_tasks(study))


def _tasks(study: Study) -> Iterator[Task]:
    all_cells = cells(study)
    task = 0
    for block, row in enumerate(orders(len(all_cells), study.blocks, study.design.order)):
        if study.interpose is not None and block % study.interpose.every:
            row = [cell for cell in row if all_cells[cell].get(INTERPOSE) != OFF]
        order = 0
        for cell in row:
            for replica in range(study.replicas_of(all_cells[cell])):
                yield Task(
                    task,
                    block,
                    order,
                    all_cells[cell],
                    _seed(study, task, block),
                    block,
                    _node(study, cell, block),
                    replica=replica if study.replicated else None,
                )
                task += 1
                order += 1


def warmups(study: Study) -> list[Task]:
    """Tasks before the first block: all cells, `warmup` times, in order; numbered from -1 down."""
    found: list[Task] = []
    for round_ in range(study.warmup):
        workloads = [(cell, k) for cell in cells(study) for k in range(study.replicas_of(cell))]
        for order, (cell, replica) in enumerate(workloads):
            number = -1 - len(found)
            own = replica if study.replicated else None
            found.append(
                Task(number, -1 - round_, order, cell, study.seeds.first, -1 - round_, None, True, own)
            )
    return found
