"""Facts beside values: the same for what is built alike, and another one for each single change."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nested import changes, made, trees

from twinrun.runs.structure import (
    ATTRIBUTES,
    CLASS,
    GRAD,
    KEYS,
    SAME,
    STRIDES,
    WEAK,
    built,
    canonical,
    facts_of,
    line,
    lines,
    renamed,
    texts_of,
)


def facts(value) -> dict:
    return facts_of(lines(built("x", value), False))


@given(trees())
def test_what_is_built_alike_has_equal_facts(tree) -> None:
    assert facts(made(tree)) == facts(made(tree))


@given(trees(), st.data())
def test_each_single_change_of_a_container_is_the_only_fact_that_differs(tree, data) -> None:
    possible = [c for c in changes(tree, "x") if c.what in (CLASS, KEYS, ATTRIBUTES) and not c.of_object]
    if not possible:
        return
    change = data.draw(st.sampled_from(possible))
    a, b = facts(made(tree)), facts(made(change.tree))
    differ = {key for key in {*a, *b} if a.get(key) != b.get(key)}
    assert differ == {(False, change.name, change.what)}


@pytest.mark.parametrize("key", [1, b"1", 1.0, True, (1,), None])
def test_one_key_is_told_where_it_is_no_text(key) -> None:
    text = facts({str(key): 0})
    assert facts({key: 0}) != text and (False, "x", KEYS) not in text


@given(st.text(), st.sampled_from([CLASS, KEYS, GRAD, STRIDES, SAME, WEAK]), st.text(), st.booleans())
def test_facts_come_back_from_their_line(name, what, text, out) -> None:
    said = line(name, what, text, out)
    assert said.count("\n") == 1 and said.count("\t") == 2
    ((key, read),) = facts_of(said).items()
    assert key[0] is out and key[2] == what
    if name.isprintable():
        assert key[1] == name
    if text.isprintable():
        assert read == text


@given(st.text())
def test_any_text_has_facts(text) -> None:
    """A trace may come from anywhere."""
    assert len(facts_of(text)) <= len(text.split("\n"))


def test_facts_of_one_name_are_all_kept() -> None:
    """Keys 1 and "1" of a mapping look alike."""
    one, other = ({1: [], "1": ()}, {1: (), "1": []})
    assert facts(one) != facts(other)


def test_names_are_changed_and_nothing_else() -> None:
    text = line("old.grad", STRIDES, "(1, 4)", True) + line("other", GRAD, "True", False)
    new = renamed(text, lambda name: name.replace("old", "new"))
    assert new == line("new.grad", STRIDES, "(1, 4)", True) + line("other", GRAD, "True", False)


def test_keys_are_told_as_they_are() -> None:
    class Key:
        pass

    class Named:
        def __str__(self) -> str:
            return "named"

    told = [
        text
        for _, what, text in texts_of({"a": 0, 1: 0, "1": 0, (2, "b"): 0, Key(): 0, Named(): 0}, "x")
        if what == KEYS
    ]
    assert told == ["'a', 1, '1', (2, 'b'), Key, named"]
    assert [what for _, what, _ in texts_of({"a": 0}, "x")] == [CLASS]  # one key has no order


def test_long_lists_of_keys_are_told_in_short_and_still_differ() -> None:
    keys = [f"key {n}" for n in range(1000)]
    one, other = (dict.fromkeys(order) for order in (keys, [*keys[:-2], keys[-1], keys[-2]]))
    assert facts(one) != facts(other)
    assert max(len(text) for text in facts(one).values()) < 400


def test_all_kinds_of_mappings_have_keys() -> None:
    for kind in (dict, OrderedDict, UserDict, MappingProxyType):
        one, other = kind({"a": 1, "b": 2}), kind({"b": 2, "a": 1})
        assert facts(one)[False, "x", KEYS] == "'a', 'b'" and facts(other)[False, "x", KEYS] == "'b', 'a'"


def test_attributes_of_a_data_class_that_are_no_fields_are_told() -> None:
    @dataclasses.dataclass
    class Point:
        x: int = 0

    @dataclasses.dataclass(slots=True)
    class Slotted:
        x: int = 0

    point = Point()
    assert (False, "x", ATTRIBUTES) not in facts(point) and facts(Slotted())[False, "x", CLASS] == "Slotted"
    point.more, point.other = 1, 2
    assert facts(point)[False, "x", ATTRIBUTES] == "more, other"


def test_containers_within_themselves_end() -> None:
    ring: list = []
    ring.append(ring)
    assert len(facts(ring)) < 100


@pytest.mark.parametrize(
    ("strides", "shape", "told"),
    [((1, 4), (4, 2), "(1, 4)"), ((7, 1, 3), (2, 1, 2), "(7, -, 3)"), ((2,), (3,), "(2,)"), ((), (), "()")],
)
def test_the_stride_of_one_element_says_nothing(strides, shape, told) -> None:
    assert canonical(strides, shape) == told
