"""Designs of studies: what blocks, orders and fractions promise, held against brute force; studies that are refused."""

from __future__ import annotations

import collections
import itertools
from pathlib import Path

import numpy as np
import pytest
from commands import command
from hypothesis import given, settings
from hypothesis import strategies as st

from twinrun.ensemble.study.design import cells, fraction_of, orders, plan, warmups
from twinrun.ensemble.study.study import parse_study, read_study
from twinrun.ensemble.study.templates import fill
from twinrun.errors import DamagedFile, MissingFile, TwinrunError


def study(levels: dict[str, list[str]], **keys: object):
    """A study with these factors."""
    return parse_study(
        {
            "command": [f"{{{name}}}" for name in levels] or ["true"],
            "factors": {name: {"levels": own} for name, own in levels.items()},
            **keys,
        }
    )


FACTORS = st.lists(st.integers(1, 4), min_size=0, max_size=3).map(
    lambda sizes: {f"f{i}": [f"l{k}" for k in range(n)] for i, n in enumerate(sizes)}
)


@settings(max_examples=60)
@given(FACTORS, st.integers(1, 12), st.integers(0, 1000))
def test_every_block_holds_every_cell_once(levels: dict, blocks: int, seed: int) -> None:
    given = study(levels, repetitions=blocks, design={"order": seed})
    tasks = plan(given)
    everything = sorted(tuple(c.values()) for c in cells(given))
    assert len(set(everything)) == len(everything) == np.prod([len(x) for x in levels.values()] or [1])
    assert [t.task for t in tasks] == list(range(len(tasks))) and len(tasks) == blocks * len(everything)
    for block, own in itertools.groupby(tasks, key=lambda t: t.block):
        own = list(own)
        assert sorted(tuple(t.factors.values()) for t in own) == everything
        assert [t.order for t in own] == list(range(len(own)))
        assert {t.repetition for t in own} == {block}
    # A longer study begins as the shorter one did: that is what lets one be amended.
    longer = plan(study(levels, repetitions=blocks + 3, design={"order": seed}))
    assert longer[: len(tasks)] == tasks


@settings(max_examples=60)
@given(st.integers(1, 12), st.integers(1, 3), st.integers(0, 10_000))
def test_positions_and_neighbours_are_balanced(cell_count: int, cycles: int, seed: int) -> None:
    found = np.array(orders(cell_count, cell_count * cycles, seed))
    for position in range(cell_count):
        counts = np.bincount(found[:, position], minlength=cell_count)
        assert (counts == cycles).all(), "each cell at each position equally often"
    # Within an unfinished round nothing comes twice at a position.
    part = found[: max(cell_count // 2, 1)]
    assert all(len(set(part[:, p])) == len(part) for p in range(cell_count))
    if cell_count % 2 == 0:
        for cycle in range(cycles):
            rows = found[cycle * cell_count : (cycle + 1) * cell_count]
            pairs = collections.Counter((a, b) for row in rows for a, b in itertools.pairwise(row))
            assert set(pairs.values()) <= {1} and len(pairs) == cell_count * (cell_count - 1)


def test_odd_numbers_balance_neighbours_over_two_rounds() -> None:
    for n in (3, 5, 7):
        # The cells' parts are drawn anew each round, so that only sums over many rounds can be even.
        pairs = collections.Counter(
            (a, b)
            for seed in range(200)
            for row in orders(n, 2 * n, seed)
            for a, b in itertools.pairwise(row)
        )
        expected = 200 * 2 * n * (n - 1) / (n * (n - 1))
        assert max(abs(c - expected) for c in pairs.values()) < 6 * np.sqrt(2 * expected)


def test_order_is_random_and_hides_no_level_in_time() -> None:
    """Over seeds, a level's mean place in a block is the middle; and orders differ."""
    seen = set()
    places = []
    for seed in range(300):
        tasks = plan(study({"a": ["x", "y"], "b": ["1", "2", "3"]}, repetitions=1, design={"order": seed}))
        seen.add(tuple(tuple(t.factors.values()) for t in tasks))
        places += [t.order for t in tasks if t.factors["a"] == "x"]
    assert len(seen) > 200
    # Six places, three of them each time: standard error 1.7 / sqrt(900).
    assert abs(np.mean(places) - 2.5) < 4 * 1.71 / np.sqrt(900)


@settings(max_examples=40)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 100))
def test_each_cell_comes_to_each_node_once_a_round(cell_count: int, nodes: int, seed: int) -> None:
    names = [f"n{i}" for i in range(nodes)]
    given = study(
        {"f": [str(i) for i in range(cell_count)]},
        repetitions=2 * nodes,
        design={"order": seed, "nodes": names},
    )
    tasks = plan(given)
    for first in (0, nodes):
        pairs = collections.Counter(
            (t.factors["f"], t.node) for t in tasks if first <= t.block < first + nodes
        )
        assert set(pairs.values()) == {1} and len(pairs) == cell_count * nodes
    if cell_count >= nodes:
        for block in range(2 * nodes):
            counts = collections.Counter(t.node for t in tasks if t.block == block)
            assert max(counts.values()) - min(counts.get(n, 0) for n in names) <= 1


@pytest.mark.parametrize("kind", ["repetition", "task", "fixed"])
def test_seeds(kind: str) -> None:
    tasks = plan(study({"a": ["x", "y"]}, repetitions=4, seeds={"kind": kind, "first": 10}))
    if kind == "fixed":
        assert {t.seed for t in tasks} == {10}
    elif kind == "task":
        assert [t.seed for t in tasks] == list(range(10, 18))
    else:
        assert [t.seed for t in tasks] == [10 + t.block for t in tasks]


def test_one_at_a_time() -> None:
    levels = {"a": ["1", "2", "3"], "b": ["x", "y"], "c": ["on"]}
    found = cells(study(levels, design={"kind": "one-at-a-time", "base": {"a": "2"}}))
    base = {"a": "2", "b": "x", "c": "on"}
    assert found[0] == base and len(found) == 4
    assert all(sum(c[k] != base[k] for k in base) == 1 for c in found[1:])


def test_warmups_come_first_and_do_not_count() -> None:
    found = warmups(study({"a": ["x", "y"]}, warmup=2))
    assert [t.task for t in found] == [-1, -2, -3, -4] and all(t.json()["warmup"] for t in found)
    assert "warmup" not in plan(study({"a": ["x"]}))[0].json()


# Fractions ---------------------------------------------------------------------------------------------------------------


def columns(given) -> dict[str, np.ndarray]:
    """The factors of a design as columns of -1 and +1."""
    return {
        f.name: np.array([1 if c[f.name] == f.levels[1] else -1 for c in cells(given)]) for f in given.factors
    }


def check_aliases(given) -> None:
    """What is said to be aliased is what has the same column, up to its sign, and nothing else."""
    fraction = fraction_of([f.name for f in given.factors], given.design.generators, given.design.fraction)
    own = columns(given)
    products = {}
    for n in (1, 2):
        for effect in itertools.combinations(own, n):
            products["*".join(effect)] = np.prod([own[f] for f in effect], axis=0)
    for effect, said in fraction.aliases().items():
        same = {o for o, c in products.items() if o != effect and (c == products[effect]).all()}
        reverse = {f"-{o}" for o, c in products.items() if o != effect and (c == -products[effect]).all()}
        assert set(said) == same | reverse
    assert all(abs(c.sum()) == 0 for c in own.values()), "both levels equally often"


@pytest.mark.parametrize(
    "count, fraction, resolution",
    [(3, 1, 3), (4, 1, 4), (5, 1, 5), (5, 2, 3), (6, 2, 4), (6, 3, 3), (7, 3, 4), (7, 4, 3), (8, 4, 4)],
)
def test_fractions_are_of_the_best_resolution(count: int, fraction: int, resolution: int) -> None:
    """As in Box, Hunter and Hunter, Statistics for Experimenters, table of two-level fractional factorials."""
    given = study(
        {c: ["-", "+"] for c in "ABCDEFGH"[:count]}, design={"kind": "fractional", "fraction": fraction}
    )
    found = fraction_of([f.name for f in given.factors], (), fraction)
    assert found.resolution == resolution
    assert len(cells(given)) == len({tuple(c.values()) for c in cells(given)}) == 2 ** (count - fraction)
    check_aliases(given)


@settings(max_examples=40)
@given(st.data())
def test_aliases_of_any_generators(data: st.DataObject) -> None:
    own, more = data.draw(st.integers(2, 4)), data.draw(st.integers(1, 3))
    names = "ABCDEFG"[: own + more]
    generators = []
    for name in names[own:]:
        word = data.draw(st.lists(st.sampled_from(names[:own]), min_size=1, max_size=own, unique=True))
        generators.append(f"{name} = {data.draw(st.sampled_from(['', '-']))}{'*'.join(word)}")
    check_aliases(
        study({c: ["-", "+"] for c in names}, design={"kind": "fractional", "generators": generators})
    )


def test_what_a_fraction_says() -> None:
    said = fraction_of("ABCD", ["D = A*B*C"]).said()
    assert "resolution IV" in said and "A*B is aliased with C*D" in said
    assert not any(line.startswith("A cannot") for line in said)
    assert "C is aliased with -A*B" in fraction_of("ABC", ["C = -A*B"]).said()


def test_plan_of_a_fractional_study_says_its_aliases(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(
        'command = "true {a} {b} {c}"\n[design]\nkind = "fractional"\nfraction = 1\n'
        + "".join(f"[factors.{name}]\nlevels = [0, 1]\n" for name in "abc")
    )
    done = command("ensemble", "plan", path)
    assert done.status == 0 and "resolution III" in done.out and "a is aliased with b*c" in done.out
    path.write_text(path.read_text().replace("kind", "kin"))
    done = command("ensemble", "plan", path)
    assert done.status == 2 and "design.kin is not understood; did you mean kind?" in done.err


# What is refused -----------------------------------------------------------------------------------------------------------

GOOD = {"command": ["true", "{a}"], "factors": {"a": {"levels": ["x", "y"]}}}


@pytest.mark.parametrize(
    "change, said",
    [
        ({"command": []}, "no command"),
        ({"command": ["{b}"]}, "means nothing"),
        (
            {"engine": {"kind": "mpirun", "launcher": ["mpiexec", "-n", "{ranks}"]}},
            "{ranks} means nothing in",
        ),
        ({"command": ["true"]}, "changes nothing"),
        ({"comand": "true"}, "not understood"),
        ({"factors": {"a": {"levels": ["x", "x"]}}}, "each once"),
        ({"factors": {"a": {"levels": []}}}, "at least one"),
        ({"factors": {"seed": {"levels": ["1"]}}, "command": ["{seed}"]}, "meaning of its own"),
        ({"factors": {"a": {"levels": ["x"], "values": {"z": "1"}}}}, "not a level"),
        ({"factors": {"a": {"levels": ["x"], "match": "("}}}, "regular expression"),
        ({"factors": {"a": {"levels": ["x"], "match": "nogroup"}}}, "no group"),
        ({"factors": {"a b": {"levels": ["x"]}}}, "name"),
        ({"repetitions": 0}, "from 1"),
        ({"repetitions": True}, "repetitions must be an integer from 1 to 1000000, not true"),
        ({"time_limit": "long"}, "must be"),
        ({"design": {"kind": "latin"}}, "one of"),
        ({"design": {"kind": "fractional"}}, "needs generators"),
        ({"design": {"kind": "fractional", "generators": ["a = q"]}}, "no factor"),
        ({"design": {"generators": ["a = b"]}}, "fractional"),
        ({"design": {"kind": "one-at-a-time", "base": {"a": "z"}}}, "which does not exist"),
        ({"metrics": {"m": {}}}, "give one of them"),
        ({"metrics": {"m": {"regex": "(x)", "json": "a"}}}, "give one of them"),
        ({"stopping": {"metric": "metrics.m"}}, "not measured"),
        ({"stopping": {"least": 9, "most": 3}}, "less than least"),
        ({"engine": {"kind": "cloud"}}, "one of"),
        ({"success": [0, 300]}, "success[2] must be an exit status from 0 to 255, not 300"),
        ({"shell": True}, "one text"),
        ({"hypotheses": ["x"]}, "tables"),
    ],
)
def test_bad_studies_are_refused(change: dict, said: str) -> None:
    with pytest.raises(TwinrunError) as e:
        given = parse_study({**GOOD, **change})
        cells(given)
    assert said in str(e.value)


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(MissingFile):
        read_study(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("command = [")
    with pytest.raises(DamagedFile):
        read_study(tmp_path / "bad.toml")


@given(st.text(max_size=30), st.text(max_size=10))
def test_braces(text: str, value: str) -> None:
    escaped = text.replace("{", "{{").replace("}", "}}")
    assert fill(escaped, {}) == text
    assert fill(escaped + "{a}" + escaped, {"a": value}) == text + value + text
