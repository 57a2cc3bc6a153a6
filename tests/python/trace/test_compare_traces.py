"""Traces are matched and compared: what one run alone has is never equal, and the first operation is the first."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import re
import shutil
import subprocess
import warnings

import numpy as np
import pytest
from commands import command
from hypothesis import given
from hypothesis import strategies as st

import twinrun
from twinrun.capture.events import EventWriter
from twinrun.runs import gaps
from twinrun.runs.events import DIGESTS, EVENTS, Event, Traced, decoded_events, encoded_events
from twinrun.trace.alignment import aligned
from twinrun.trace.distance import ulps
from twinrun.trace.site import Site
from twinrun.trace.walk import Walk
from twinrun.trace.words import trace_document, trace_lines


def event(module: str, value: int, *, operation: str = "forward", out: bool = True, **more) -> Event:
    facts = {"phase": "forward", "microbatch": 0, "kind": "", "call": -1, "enclosing": -1, **more}
    values = [Traced("x", out, facts.pop("role", "value"), "float32", (2,), "", "", value)]
    return Event(facts["phase"], facts["microbatch"], module, facts["kind"], operation, facts["call"],
                 facts["enclosing"], values)  # fmt: skip


def written(path, iterations: dict[int, list[Event]], problems=()) -> str:
    with twinrun.Run(path) as run:
        for step, events in iterations.items():
            run.capture(step, encoded_events(events, problems))
    return str(path)


def compared(tmp_path, a: list[Event], b: list[Event]) -> twinrun.TraceComparison:
    for name in ("a", "b"):
        shutil.rmtree(tmp_path / name, ignore_errors=True)
    return twinrun.compare_traces(written(tmp_path / "a", {0: a}), written(tmp_path / "b", {0: b}))


@pytest.mark.parametrize("problems", [(), ("backward was not traced",)])
def test_traces_with_equal_bytes_are_not_compared_as_plain_fields(tmp_path, problems) -> None:
    """The same gap in both is no proof that they agree."""
    a, b = (written(tmp_path / name, {0: [event("m", 1)]}, problems) for name in "ab")
    assert twinrun.compare_traces(a, b).verdict == ("incomparable" if problems else "same")
    ranks, damaged = tmp_path / "ranks", tmp_path / "damaged"
    shutil.copytree(a, ranks / "rank0")
    shutil.copytree(a, damaged)
    (damaged / "manifest.jsonl").write_text("{}")
    other, missing = {"x": np.ones(2)}, str(tmp_path / "none")
    for first, second in ((a, b), (a, other), (other, b), (ranks, other), (other, ranks), (a, missing), (missing, b),
                          (damaged, other)):  # fmt: skip
        with pytest.raises(twinrun.Incomparable, match="is a trace"):
            twinrun.compare(first, second, partial=True)
    program = os.environ.get("TWINRUN_COMPARE_C")
    if program:
        done = subprocess.run([program, a, b], capture_output=True, text=True, timeout=600)
        assert done.returncode == 2 and "that of a trace" in done.stdout + done.stderr, done


# ---- alignment ----


@given(st.lists(st.sampled_from("abcd")), st.lists(st.sampled_from("abcd")))
def test_alignment_keeps_everything_and_the_order(a: list[str], b: list[str]) -> None:
    ours, theirs = [event(m, n) for n, m in enumerate(a)], [event(m, n) for n, m in enumerate(b)]
    pairs = aligned(ours, theirs)
    assert [p[0] for p in pairs if p[0] is not None] == ours
    assert [p[1] for p in pairs if p[1] is not None] == theirs
    assert all(x.module == y.module for x, y in pairs if x is not None and y is not None)


@given(st.lists(st.sampled_from("abcd"), min_size=1), st.integers(0, 1 << 30))
def test_a_missing_event_is_the_only_one_that_is_unmatched(a: list[str], at: int) -> None:
    ours = [event(m, n) for n, m in enumerate(a)]
    theirs = ours[: at % len(a)] + ours[at % len(a) + 1 :]
    pairs = aligned(ours, theirs)
    assert sum(x is None or y is None for x, y in pairs) == 1


def test_gradients_of_parameters_are_matched_in_any_order(tmp_path) -> None:
    """Frameworks sum them up in an order that may change. What is only in one run stays a problem."""

    def gradient(name: str, value: int) -> Event:
        return event("m", value, operation=f"gradient of m.{name}", phase="backward")

    def around(*gradients: Event) -> list[Event]:
        return [
            event("m", 1),
            event("n", 2, phase="backward", operation="backward"),
            *gradients,
            event("o", 3),
        ]

    a = around(gradient("w", 4), gradient("v", 5), gradient("w", 6))
    b = [gradient("v", 5), *around(gradient("w", 4), gradient("w", 6))]
    assert compared(tmp_path, a, b).verdict == compared(tmp_path, b, a).verdict == "same"
    found = compared(tmp_path, a, [gradient("v", 7), *around(gradient("w", 4), gradient("w", 6))])
    assert (found.verdict, found.different_values, found.unmatched) == ("different", 1, 0)
    assert found.first_divergence.site.operation == "gradient of m.v"
    lone = compared(tmp_path, a, [gradient("u", 5), *around(gradient("w", 4), gradient("w", 6))])
    assert lone.unmatched == 2
    fewer = compared(tmp_path, a, [gradient("v", 5), *around(gradient("w", 4))])
    assert fewer.unmatched == 1
    other = [event("m", 1, operation="backward", phase="backward"), event("o", 1)]
    assert compared(tmp_path, other, other[::-1]).verdict != "same"


def test_values_of_another_shape_are_still_matched() -> None:
    a, b = [event("a", 1), event("b", 2), event("c", 3)], [event("a", 1), event("b", 2), event("c", 3)]
    b[1].values[0].shape = (3,)
    assert all(x is not None and y is not None for x, y in aligned(a, b))


# ---- what was not digested ----


def call(module: str, value: int | str, *, out: bool, number: int) -> Event:
    """An entry or an exit. value: its digest, or why it has none."""
    made = event(module, 0 if isinstance(value, str) else value, out=out, call=number)
    if isinstance(value, str):
        made.values[0].missing = value
    return made


@pytest.mark.parametrize("sides", [("no memory", "no memory"), ("no memory", 3), (3, "no memory")])
def test_inputs_that_are_not_known_never_agree(tmp_path, sides) -> None:
    """The difference may come from there: no module is named."""

    def run(unknown, result, later):
        return [call("up", 1, out=False, number=0), call("up", unknown, out=True, number=0),
                call("norm", unknown, out=False, number=1), call("norm", result, out=True, number=1),
                call("head", later, out=False, number=2), call("head", result + 1, out=True, number=2)]  # fmt: skip

    found = compared(tmp_path, run(sides[0], 5, 5), run(sides[1], 6, 6))
    first = found.first_divergence
    assert found.verdict == "different" and (first.reason, first.site.module) == ("unknown", "norm")
    assert "agree" not in str(first) and "forward of norm: x was not digested: no memory" in str(first)
    assert trace_document(found)["first_divergence"]["unknown"] == first.unknown
    assert {n.state for n in found.around if n.site.module == "norm"} == {"not known", "outputs differ"}
    # Without a difference after it: not the same, either.
    assert compared(tmp_path, run(sides[0], 5, 5), run(sides[1], 5, 5)).verdict == "incomparable"


def test_not_everything_before_agrees_where_an_output_is_not_known(tmp_path) -> None:
    def run(given):
        return [call("up", 1, out=False, number=0), call("up", "a view", out=True, number=0),
                call("norm", given, out=False, number=1), call("norm", 7, out=True, number=1)]  # fmt: skip

    first = compared(tmp_path, run(5), run(6)).first_divergence
    assert (first.reason, first.site.module) == ("unknown", "norm") and "everything" not in str(first)


def test_an_operation_whose_inputs_are_known_is_still_named(tmp_path) -> None:
    def run(result):
        return [call("up", 1, out=False, number=0), call("up", "a view", out=True, number=0),
                call("norm", 5, out=False, number=1), call("norm", result, out=True, number=1)]  # fmt: skip

    first = compared(tmp_path, run(5), run(6)).first_divergence
    assert (first.reason, first.site.module) == ("operation", "norm")


def test_after_a_problem_of_a_trace_not_everything_before_agrees(tmp_path) -> None:
    a = written(tmp_path / "a", {0: [event("up", 1, out=False)]}, ["a value was lost"])
    b = written(tmp_path / "b", {0: [event("up", 2, out=False)]})
    first = twinrun.compare_traces(a, b).first_divergence
    assert first.reason == "unknown" and "a value was lost" in str(first)


def test_no_event_is_said_to_have_made_a_value_that_is_not_known(tmp_path) -> None:
    events = [call("up", "x", out=True, number=0), call("down", "y", out=False, number=1), event("head", 1)]
    found = compared(tmp_path, events, [*events[:2], event("head", 2)])
    assert [p.producer for n in found.around for p in n.values] == [None] * 3


# ---- what cannot be compared ----

GAPS = [gaps.UNWRITTEN, gaps.NOT_LOOKED_INTO, gaps.ROOM]


def with_input(value: Traced, result: int) -> list[Event]:
    """A call that takes x, which agrees, and another value."""
    into = call("norm", 5, out=False, number=1)
    into.values.append(value)
    return [call("up", 5, out=True, number=0), into, call("norm", result, out=True, number=1)]


@pytest.mark.parametrize("why", [*GAPS, f"in part {gaps.UNWRITTEN}"])
def test_inputs_agree_only_where_all_of_them_were_compared(tmp_path, why) -> None:
    part = Traced(f"rest{gaps.WRITTEN}", False, "value", "uint8", (4,), digest=3)
    value = part if why not in GAPS else gaps.gap_value("rest", False, why)
    found = compared(tmp_path, with_input(value, 6), with_input(value, 7))
    first = found.first_divergence
    said = f"of its inputs, 1 agrees and 1 was not compared ({why})"
    assert (first.reason, first.site.module) == ("operation", "norm")
    assert (first.inputs_agree, first.inputs_not_compared, first.not_compared) == (1, 1, why)
    assert f"{said}, outputs differ: x" in str(first)
    near = found.around[1]
    assert (near.state, near.text) == ("not all compared", said)
    assert (near.inputs_agree, near.inputs_not_compared, near.not_compared) == (1, 1, why)
    assert [p.not_compared for p in near.values] == ["", why]
    a, b, page = str(tmp_path / "a"), str(tmp_path / "b"), tmp_path / "page.html"
    done = command("compare", a, b, "--html", page, "--json", tmp_path / "out.json")
    assert done.out.count(said) == 2 and "inputs agree" not in done.out
    assert page.read_text().count(said) == 2 and "inputs agree" not in page.read_text()
    told = json.loads((tmp_path / "out.json").read_text())
    assert (
        "inputs agree" not in json.dumps(told) and said in told["text"] and told["around"][1]["text"] == said
    )
    for place in (told["first_divergence"], told["around"][1]):
        assert (place["inputs_agree"], place["inputs_not_compared"], place["not_compared"]) == (1, 1, why)
    # What is not compared makes no difference, and is none of the values that were compared.
    same = compared(tmp_path, with_input(value, 6), with_input(value, 6))
    assert same.same and same.values == (3 if why in GAPS else 4)
    # All inputs were compared: they agree.
    known = Traced("rest", False, "value", "float32", (2,), digest=3)
    first = compared(tmp_path, with_input(known, 6), with_input(known, 7)).first_divergence
    assert "norm: inputs agree, outputs differ: x" in str(first)
    assert (first.inputs_agree, first.inputs_not_compared, first.not_compared) == (2, 0, "")


def test_later_places_are_said_to_agree_only_where_all_was_compared(tmp_path) -> None:
    def run(value: Traced, n: int) -> list[Event]:
        return [
            call("up", 5, out=False, number=8),
            call("up", n, out=True, number=8),
            *with_input(value, n)[1:],
        ]

    for value, head in (
        (gaps.gap_value("rest", False, gaps.UNWRITTEN), "no input that was compared does:"),
        (Traced("rest", False, "value", "float32", (2,), digest=3), "inputs agree again and outputs differ:"),
    ):
        found = compared(tmp_path, run(value, 6), run(value, 7))
        assert len(found.origins) == 2 and found.first_divergence.site.module == "up"
        assert any(line.endswith(head) for line in trace_lines(found))
        found.to_html(tmp_path / "page.html")
        assert head[:-1] in (tmp_path / "page.html").read_text()


def test_outputs_agree_only_where_all_of_them_were_compared(tmp_path) -> None:
    gather = call("gather", 1, out=True, number=0)
    gather.values.append(gaps.gap_value("y", True, repr(gaps.UNDER_WAY)))
    found = compared(tmp_path, [gather, event("head", 1)], [gather, event("head", 2)])
    assert found.around[0].text == f"of its outputs, 1 agrees and 1 was not compared ({gaps.UNDER_WAY})"


def test_what_takes_nothing_has_no_inputs_that_agree(tmp_path) -> None:
    first = compared(tmp_path, [event("m", 1)], [event("m", 2)]).first_divergence
    assert "everything before agrees, outputs differ: x" in str(first)
    assert (first.inputs_agree, first.inputs_not_compared) == (0, 0)


def test_a_digest_that_is_missing_is_counted(tmp_path) -> None:
    def run(result: int) -> list[Event]:
        return with_input(Traced("rest", False, "value", "float32", (2,), "", "no memory"), result)

    found = compared(tmp_path, run(6), run(7))
    first, why = found.first_divergence, "not digested: no memory"
    assert first.reason == "unknown"
    assert (first.inputs_agree, first.inputs_not_compared, first.not_compared) == (1, 1, why)
    near = found.around[1]
    assert near.state == "not known"
    assert near.text == f"not known: of its inputs, 1 agrees and 1 was not compared ({why})"


def test_what_stands_for_a_value_is_compared_with_values(tmp_path) -> None:
    """An object in one run and a number in the other differ. Traces of before do not tell of objects, but of
    memory that nobody wrote.
    """
    other = Traced("rest", False, "setting", "python", (), digest=7)
    for why in GAPS:
        value = gaps.gap_value("rest", False, why)
        found = compared(tmp_path, with_input(value, 6), with_input(other, 6))
        assert found.verdict == "different" and found.first_divergence.values[0].name == "rest"
        without = with_input(value, 6)
        del without[1].values[1]
        for sides in ((with_input(value, 6), without), (without, with_input(value, 6))):
            found = compared(tmp_path, *sides)
            assert found.same if why != gaps.UNWRITTEN else found.verdict == "different", (why, str(found))


# ---- the form on storage ----


@given(
    st.lists(st.tuples(st.text(max_size=5), st.integers(0, (1 << 128) - 1)), max_size=8),
    st.lists(st.text(max_size=5)),
)
def test_events_survive_storage(given_: list, problems: list[str]) -> None:
    events = [event(m, d, out=bool(d % 2)) for m, d in given_]
    fields = encoded_events(events, problems)
    again, told, *_ = decoded_events(fields[EVENTS], fields[DIGESTS], "here")
    assert (again, told) == (events, problems)
    assert [e.values[0].digest for e in events] == [d for _, d in given_]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.text(), st.text(), st.text())))
def test_places_whose_data_is_kept_survive_storage(wanted: list) -> None:
    fields = encoded_events([event("m", 1)], (), wanted)
    assert decoded_events(fields[EVENTS], fields[DIGESTS], "here").wanted == wanted
    assert (b"wanted" in fields[EVENTS].tobytes()) == bool(wanted)


@given(st.binary(max_size=200), st.integers(0, 3))
def test_hostile_events_end_in_one_line(text: bytes, rows: int) -> None:
    digests = np.zeros((rows, 2), np.uint64)
    try:
        decoded_events(np.frombuffer(text, np.uint8), digests, "here")
    except twinrun.FormatError as e:
        assert str(e).startswith("here: ")
    else:
        pytest.fail("random bytes are no trace")


@given(st.integers(0, 2**32))
def test_damaged_events_are_refused_or_read(seed: int) -> None:
    rng = random.Random(seed)
    fields = encoded_events([event("a", 5, call=0), event("b", 6)])
    text = bytearray(fields[EVENTS].tobytes())
    for _ in range(rng.randint(1, 3)):
        text[rng.randrange(len(text))] = rng.randrange(256)
    try:
        decoded_events(np.frombuffer(bytes(text), np.uint8), fields[DIGESTS], "here")
    except twinrun.FormatError:
        pass


def test_a_newer_version_is_named() -> None:
    fields = encoded_events([event("a", 5)])
    text = fields[EVENTS].tobytes().replace(b'"version":2', b'"version":9,"new":{}')
    with pytest.raises(twinrun.Unsupported, match="version 9"):
        decoded_events(np.frombuffer(text, np.uint8), fields[DIGESTS], "here")


# ---- the first divergence ----


def test_equal_traces_are_the_same(tmp_path) -> None:
    found = compared(tmp_path, [event("a", 1), event("b", 2)], [event("a", 1), event("b", 2)])
    assert found.verdict == "same" and found and found.first_divergence is None
    assert (found.events, found.values, found.unmatched, found.problems) == (2, 2, 0, [])


def test_the_operation_whose_inputs_agree(tmp_path) -> None:
    def run(differ: set[str]) -> list[Event]:
        def value(name: str) -> int:
            return 100 + (name in differ)

        return [
            event("", value("in"), out=False, call=0),
            event("z", value("in z"), out=False, call=1, enclosing=0), event("z", value("out z"), call=1, enclosing=0),
            event("a", value("in a"), out=False, call=2, enclosing=0), event("a", value("out a"), call=2, enclosing=0),
            event("", value("out"), call=0),
        ]  # fmt: skip

    for differ, module, reason, number in (
        ({"out z", "in a", "out a", "out"}, "z", "operation", 2),
        ({"out a", "out"}, "a", "operation", 4),
        ({"out"}, "", "operation", 5),
        ({"in", "in z", "out z", "in a", "out a", "out"}, "", "input", 0),
        ({"in a", "out a", "out"}, "", "input", 3),
    ):
        found = compared(tmp_path, run(set()), run(differ))
        first = found.first_divergence
        assert found.verdict == "different" and found.different_values == len(differ)
        assert (first.module, first.reason, first.number) == (module, reason, number), differ
        assert found.origins == [first]


def test_a_second_place_is_found_too(tmp_path) -> None:
    def run(x: int, y: int) -> list[Event]:
        return [
            event("a", 1, out=False, call=0), event("a", x, call=0),
            event("b", 3, out=False, call=1), event("b", y, call=1),
        ]  # fmt: skip

    found = compared(tmp_path, run(2, 4), run(20, 40))
    assert [o.module for o in found.origins] == ["a", "b"]


def test_a_generator_that_nobody_asked_is_no_operation(tmp_path) -> None:
    def run(rng: int, value: int) -> list[Event]:
        return [
            event("a", rng, out=False, call=0, role="rng"), event("a", 1, call=0),
            event("b", rng, out=False, call=1, role="rng"), event("b", value, call=1),
        ]  # fmt: skip

    found = compared(tmp_path, run(5, 1), run(6, 1))
    assert found.verdict == "different" and found.first_divergence.reason == "generator"
    found = compared(tmp_path, run(5, 1), run(6, 2))
    assert (found.first_divergence.module, found.first_divergence.reason) == ("b", "operation")
    assert "forward of a" in found.first_divergence.generator and "generator" in str(found)


def test_what_one_run_alone_has_is_a_problem(tmp_path) -> None:
    whole = [event("a", 1), event("b", 2), event("c", 3)]
    for part in ([whole[0], whole[2]], whole[:2], whole[1:]):
        for a, b, only in ((whole, part, "a"), (part, whole, "b")):
            found = compared(tmp_path, a, b)
            assert found.verdict == "incomparable" and not found
            assert found.unmatched == 1 and f"only in {only}" in found.problems[0]
            assert (found.first_divergence.reason, found.first_divergence.only_in) == ("unmatched", only)


def test_a_value_that_one_run_alone_has(tmp_path) -> None:
    more = event("a", 1)
    more.values.append(Traced("y", True, "value", "float32", (2,), "", "", 7))
    found = compared(tmp_path, [event("a", 1)], [more])
    assert found.verdict == "different" and found.unmatched == 1 and "y is only in b" in found.problems[0]


def test_equal_digests_of_other_forms_differ(tmp_path) -> None:
    for change in ({"dtype": "float64"}, {"shape": (1, 2)}):
        other = event("a", 1)
        for name, value in change.items():
            setattr(other.values[0], name, value)
        assert compared(tmp_path, [event("a", 1)], [other]).verdict == "different"


def test_missing_digests_and_problems_are_never_the_same(tmp_path) -> None:
    missing = [event("a", 0)]
    missing[0].values[0].missing = "quantized tensors have no digest"
    found = compared(tmp_path, missing, missing)
    assert found.verdict == "incomparable" and "quantized" in found.problems[0]
    a = written(tmp_path / "c", {0: [event("a", 1)]}, ["the trace stopped"])
    b = written(tmp_path / "d", {0: [event("a", 1)]})
    assert twinrun.compare_traces(a, b).verdict == "incomparable"


def test_nothing_is_not_the_same(tmp_path) -> None:
    assert compared(tmp_path, [], []).verdict == "incomparable"


def test_iterations_of_one_run_alone(tmp_path) -> None:
    a = written(tmp_path / "a", {0: [event("a", 1)], 1: [event("a", 1)]})
    b = written(tmp_path / "b", {0: [event("a", 1)]})
    found = twinrun.compare_traces(a, b)
    assert found.verdict == "incomparable" and found.problems == ["iteration 1: only in a"]


def test_the_iterations_that_both_traces_have(tmp_path) -> None:
    """As where a training was resumed, and where it ended early."""

    def run(name: str, iterations: list[int], wrong: int = -1) -> str:
        return written(tmp_path / name, {n: [event("a", 1 + (n == wrong))] for n in iterations})

    whole = run("whole", [0, 1, 2, 3, 4, 5])
    resumed = run("resumed", [2, 3, 4])
    for a, b, x, y in ((whole, resumed, "a", "b"), (resumed, whole, "b", "a")):
        assert twinrun.compare_traces(a, b).verdict == "incomparable"
        found = twinrun.compare_traces(a, b, common=True)
        assert found.verdict == "same" and found.events == 3 and found.unmatched == 0 and y in "ab"
        assert found.notes == [f"iterations 0 to 1, 5 only in {x}: left out, compared are 2 to 4"]
    found = twinrun.compare_traces(whole, run("wrong", [3, 4, 5, 6], 4), common=True)
    assert found.verdict == "different" and found.first_divergence.site.iteration == 4
    assert found.notes[1] == "iteration 6 only in b: left out, compared are 3 to 5"
    # A gap between them is none of the two ends.
    for gap in ([2, 4, 5], [0, 1, 3, 5]):
        found = twinrun.compare_traces(whole, run(f"gap{len(gap)}", gap), common=True)
        assert found.verdict == "incomparable" and "only in a" in found.problems[0], gap
        found = twinrun.compare_traces(tmp_path / f"gap{len(gap)}", whole, common=True)
        assert found.verdict == "incomparable" and "only in b" in found.problems[0], gap
    # Nothing in common is no agreement.
    found = twinrun.compare_traces(whole, run("later", [6, 7]), common=True)
    assert found.verdict == "incomparable" and len(found.problems) > 8
    # What stopped is still a problem, and so is a rank that one run lacks.
    stopped = written(tmp_path / "stopped", {2: [event("a", 1)]}, ["the trace stopped"])
    assert twinrun.compare_traces(whole, stopped, common=True).verdict == "incomparable"
    done = command("compare", whole, resumed, "--common")
    assert (
        done.status == 0
        and "left out, compared are 2 to 4" in done.out
        and done.last.startswith("same: 3 values")
    )
    assert command("compare", whole, resumed).status == 2


def test_fields_beside_traces_are_compared_in_common_steps(tmp_path) -> None:
    def run(name: str, steps, wrong: int = -1) -> None:
        with twinrun.Run(tmp_path / name) as made:
            for step in steps:
                made.capture(step, {"x": np.zeros(3)}, phase="first")
                made.capture(step, {"end": np.full(3, float(step == wrong))})

    run("a", range(5))
    run("b", (2, 3))
    run("c", (2, 3), 3)
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "b").verdict == "incomparable"
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "b", common=True)
    assert found.verdict == "same", found.problems
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "c", common=True)
    assert found.verdict == "different" and "end" in found.notes[-1]


# ---- data-parallel ranks of one trace ----


def replica(rank: int, weight: int, *, grad: int = 7, state: int = 8, more=()) -> list[Event]:
    """An iteration of a rank: its input is its own, its parameters are those of all."""

    def values(*given) -> list[Traced]:
        return [Traced(n, out, role, "float32", (2,), "", "", d) for n, role, out, d in given]

    return [
        Event("forward", 0, "", "Net", "forward", 0, -1, values(("args.0", "value", False, 100 + rank),
              ("settings", "setting", False, 5), ("torch", "rng", False, 200 + rank))),
        Event("forward", 0, "layer", "Linear", "forward", 1, 0, values(
              ("args.0", "value", False, 100 + rank), ("weight", "parameter", False, weight),
              ("mean", "buffer", False, 300 + rank), ("part@local", "parameter", False, 400 + rank))),
        Event("forward", 0, "layer", "Linear", "forward", 1, 0, values(("output", "value", True, 500 + rank))),
        Event("backward", 0, "layer", "", "gradient of layer.weight", 2, -1,
              values(("layer.weight", "gradient", True, 600 + rank))),
        Event("optimizer", 0, "layer", "", "SGD.step of layer.weight", 3, -1, values(
              ("settings.lr", "setting", False, 9), ("layer.weight.grad", "gradient", False, grad),
              ("layer.weight", "parameter", False, weight), ("layer.weight.state.m", "state", False, state))),
        Event("optimizer", 0, "layer", "", "SGD.step of layer.weight", 3, -1,
              values(("layer.weight", "parameter", True, weight + 1), ("layer.weight.state.m", "state", True, state + 1))),
        *more,
    ]  # fmt: skip


def parallel(path, ranks: int, of: dict[tuple[int, int], list[Event]] = {}) -> str:  # noqa: B006 (read only)
    """A trace of several ranks, three iterations each."""
    path.mkdir()
    for rank in range(ranks):
        steps = {n: of.get((rank, n), replica(rank, 1)) for n in range(3)}
        written(path / f"rank{rank:05d}", steps)
    return str(path)


def test_replicas_that_agree(tmp_path) -> None:
    path = parallel(tmp_path / "a", 3)
    found = twinrun.compare_traces(path, replicas=True)
    assert found.verdict == "same" and found.replicas == (0, 1, 2), (found.problems, str(found))
    # Two ranks, three iterations, and what all hold alike: settings, weight; in the step five; out of it two.
    assert found.values == 2 * 3 * (1 + 1 + 4 + 2) and found.conditions == []
    assert any("parts of distributed tensors" in n for n in found.notes)
    done = command("compare", path, "--replicas", "--json", tmp_path / "out.json")
    assert done.status == 0 and "rank 0 is a, and is compared with rank 1, 2" in done.out
    assert json.loads((tmp_path / "out.json").read_text())["replicas"] == [0, 1, 2]


@pytest.mark.parametrize(
    "change, phase, name",
    [
        ({"weight": 2}, "forward", "weight"),
        ({"weight": 1, "grad": 70}, "optimizer", "layer.weight.grad"),
        ({"weight": 1, "state": 80}, "optimizer", "layer.weight.state.m"),
    ],
)
@pytest.mark.parametrize("odd", [0, 1, 2])
def test_a_replica_that_differs(tmp_path, change: dict, phase: str, name: str, odd: int) -> None:
    wrong = {(odd, n): replica(odd, **change) for n in (1, 2)}
    found = twinrun.compare_traces(parallel(tmp_path / "a", 3, wrong), replicas=True)
    first = found.first_divergence
    # The reference is of the majority, so that the rank that is named is the odd one.
    assert found.verdict == "different" and list(found.firsts) == [odd] and found.replicas[0] != odd
    assert (first.rank, first.site.iteration, first.site.phase, first.module) == (odd, 1, phase, "layer")
    assert first.values[0].name == name
    assert f"rank {odd}, iteration 1" in str(found) and not any("majority" in n for n in found.notes)
    # What each rank has of its own is not said to agree.
    near = next(n for n in found.around if n.site.phase == "forward" and n.site.iteration == 0)
    assert near.text.startswith("of its inputs, ") and "not compared (each rank has its own" in near.text


def test_replicas_without_a_majority(tmp_path) -> None:
    two = parallel(tmp_path / "two", 2, {(1, 2): replica(1, 3)})
    four = parallel(tmp_path / "four", 4, {(r, 2): replica(r, 3) for r in (1, 2)})
    for path, firsts in ((two, [1]), (four, [1, 2])):
        found = twinrun.compare_traces(path, replicas=True)
        assert found.verdict == "different" and list(found.firsts) == firsts
        assert "no majority: it is not known whether rank 0 or another one is right" in found.notes
    # Some of them: the two parts of a model have their own replicas.
    assert twinrun.compare_traces(four, replicas=[1, 2]).same
    assert twinrun.compare_traces(four, replicas=range(2)).verdict == "different"
    assert command("compare", four, "--replicas", "--ranks", "1,2").status == 0
    assert command("compare", four, "--replicas", "--ranks", "1:3", "-q").status == 1
    done = command("compare", four, "--replicas", "--ranks", "1")
    assert done.status == 2 and "fewer than two ranks" in done.err


def test_replicas_that_cannot_be_compared(tmp_path) -> None:
    more = parallel(tmp_path / "more", 2, {(1, 2): replica(1, 1, more=[event("layer", 4, role="parameter")])})
    found = twinrun.compare_traces(more, replicas=True)
    assert found.verdict == "incomparable" and "only in b" in found.problems[0]
    one = written(tmp_path / "one", {0: [event("a", 1)]})
    with pytest.raises(twinrun.Incomparable, match="has one rank"):
        twinrun.compare_traces(one, replicas=True)
    with pytest.raises(twinrun.TwinrunError, match="the ranks of one trace"):
        twinrun.compare_traces(more, one, replicas=True)
    with pytest.raises(twinrun.TwinrunError, match="nothing to compare"):
        twinrun.compare_traces(more)
    with pytest.raises(twinrun.TwinrunError, match="fewer than two"):
        twinrun.compare_traces(more, replicas=[])
    # Ranks that stopped, or have an iteration of their own, are never the same.
    stopped = parallel(tmp_path / "stopped", 2)
    shutil.rmtree(tmp_path / "stopped" / "rank00001")
    written(tmp_path / "stopped" / "rank00001", {n: replica(1, 1) for n in range(3)}, ["the trace stopped"])
    found = twinrun.compare_traces(stopped, replicas=True)
    assert found.verdict == "incomparable" and found.problems[0] == "rank 1: the trace stopped"
    shutil.rmtree(tmp_path / "stopped" / "rank00001")
    written(tmp_path / "stopped" / "rank00001", {n: replica(1, 1) for n in range(2)})
    assert twinrun.compare_traces(stopped, replicas=True).verdict == "incomparable"
    assert twinrun.compare_traces(stopped, replicas=True, common=True).verdict == "same"
    np.save(tmp_path / "x.npy", np.zeros(3))
    for words, said in (
        (["compare", more, one, "--replicas"], "takes one run"), (["compare", more], "RUN_B"),
        (["compare", tmp_path / "x.npy", "--replicas"], "is no trace"),
        (["compare", more, "--replicas", "--atol", "1"], "--atol is not for traces"),
        (["compare", more, "--replicas", "--ranks", "x"], "are not understood"),
    ):  # fmt: skip
        done = command(*words)
        assert done.status == 2 and said in done.err and done.err.count("\n") == 1, done


def test_ranks(tmp_path) -> None:
    for run, values in (("a", (1, 1, 1)), ("b", (1, 2, 3))):
        for rank, value in enumerate(values):
            steps = {n: [event("m", value if n == 3 - rank else 1)] for n in range(4)}
            (tmp_path / run).mkdir(exist_ok=True)
            written(tmp_path / run / f"rank{rank:05d}", steps)
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "b")
    assert sorted(found.firsts) == [1, 2]
    assert (found.first_divergence.rank, found.first_divergence.site.iteration) == (2, 1)
    shutil.rmtree(tmp_path / "b" / "rank00000")
    assert any("rank 0" in p for p in twinrun.compare_traces(tmp_path / "a", tmp_path / "b").problems)


def test_damage_is_seen(tmp_path) -> None:
    a, b = (written(tmp_path / n, {0: [event("a", 1), event("b", 2)]}) for n in "ab")
    data = next((tmp_path / "b").rglob("*.data"))
    raw = bytearray(data.read_bytes())
    at = raw.find((2).to_bytes(8, "little"))
    raw[at] ^= 1
    data.write_bytes(raw)
    with pytest.raises(twinrun.TwinrunError, match="changed"):
        assert twinrun.compare_traces(a, b)


@given(st.integers(0, 2**32))
def test_ulps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(5).astype(np.float32)
    assert ulps(x, x, "f32") == 0
    assert ulps(x, np.nextafter(x, np.float32(9)), "f32") == 1
    assert ulps(np.float32([0.0]), np.float32([-0.0]), "f32") == 0
    assert (
        ulps(
            np.nextafter(np.float32([0]), np.float32(1)), np.nextafter(np.float32([0]), np.float32(-1)), "f32"
        )
        == 2
    )
    assert ulps(np.float64([-1.7e308]), np.float64([1.7e308]), "f64") > 2**63
    assert ulps(np.float32([np.nan]), x[:1], "f32") is None


# ---- phases of a simulation ----


def simulated(path, wrong: str = "", **options) -> None:
    x = np.linspace(0, 1, 100)
    with twinrun.Run(path, **options) as run:
        for step in range(3):
            for phase in ("forces", "positions", "boundary"):
                x = x * 1.5 + 0.25
                if step == 1 and phase == wrong:
                    x[7] = np.nextafter(x[7], 9)
                run.capture(step, {"x": x, "n": np.arange(3)}, phase=phase)


def test_phases_are_ordered(tmp_path) -> None:
    simulated(tmp_path / "a")
    simulated(tmp_path / "b")
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "b").same
    for wrong in ("forces", "positions", "boundary"):
        simulated(tmp_path / wrong, wrong, background=True)
        found = twinrun.compare_traces(tmp_path / "a", tmp_path / wrong)
        first = found.first_divergence
        assert (first.site.iteration, first.site.phase) == (1, wrong)
        value = first.values[0]
        assert (value.name, value.different, value.max_ulp, value.first_index) == ("x", 1, 1, [7])
        assert "1 of 100 elements" in str(found) and "1 ulp" in str(found)


def test_phases_and_a_whole_step(tmp_path) -> None:
    for name, last in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
        with twinrun.Run(tmp_path / name) as run:
            x = np.zeros(3)
            run.capture(0, {"x": x}, phase="first")
            x += 1
            run.capture(0, {"x": x}, phase="second")
            x += 1
            facts = run.capture(0, {"end": np.full(3, last)})  # ends the step
            assert facts.step == 0 and run.steps == [0]
            run.capture(1, {"x": x}, phase="first")
            run.wait()
            assert run.steps == [0, 1]
            assert run.load(0, ["end"])["end"].tolist() == [last] * 3
    assert twinrun.compare_traces(tmp_path / "a", tmp_path / "b").same
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "c")
    assert found.verdict == "different" and "end" in found.notes[-1]
    events = encoded_events([event("a", 1)])
    with twinrun.Run(tmp_path / "d") as run:
        run.capture(0, {"x": x}, phase="first")
        with pytest.raises(twinrun.TwinrunError, match="that of a trace"):
            run.capture(0, events)


def test_phases_that_cannot_be(tmp_path) -> None:
    with twinrun.Run(tmp_path / "a") as run:
        for wrong in ("", 3):
            with pytest.raises(twinrun.TwinrunError, match="phase"):
                run.capture(0, {"x": np.zeros(3)}, phase=wrong)
        with pytest.raises(twinrun.TwinrunError, match="no field"):
            run.capture(0, {}, phase="p")
        with pytest.raises(twinrun.TwinrunError, match="ids"):
            run.capture(0, {"x": np.zeros(3)}, phase="p", ids={"x": "x"})
    with (
        twinrun.Run(tmp_path / "b", keep_data=False) as run,
        pytest.raises(twinrun.TwinrunError, match="keep_data"),
    ):
        run.capture(0, {"x": np.zeros(3)}, phase="p")


def test_a_writer_drops_what_failed() -> None:
    writer = EventWriter("here", True)
    writer.see(writer.add(Event("p", 0, "", "", "p", -1, -1, [])), {"x": np.zeros(3)}, out=True)
    with pytest.raises(OSError):
        writer.capture(_fails)
    assert len(writer) == 0 and writer.capture(_fails) is None


def _fails(fields: dict) -> None:
    raise OSError("no")


# ---- the command ----


def test_the_command(tmp_path) -> None:
    simulated(tmp_path / "a")
    simulated(tmp_path / "b", "positions")
    simulated(tmp_path / "c")
    a, b, c = (str(tmp_path / n) for n in "abc")
    done = command("compare", a, c)
    assert done.status == 0 and done.last.startswith("same: 18 values of 9 events")
    done = command("compare", a, b, "--json", tmp_path / "out.json")
    assert done.status == 1
    assert done.last.startswith(
        "different: first at iteration 1, positions: everything before agrees, outputs differ: x"
    )
    told = json.loads((tmp_path / "out.json").read_text())
    assert told["verdict"] == "different" and told["first_divergence"]["phase"] == "positions"
    assert [n["state"] for n in told["around"]][:5] == ["outputs agree"] * 4 + ["outputs differ"]
    assert command("compare", a, b, "-q").out == ""
    done = command("compare", a, b, "--atol", "1")
    assert done.status == 2 and "--atol is not for traces" in done.err
    with twinrun.Run(tmp_path / "plain") as plain:
        plain.capture(0, {"x": np.zeros(3)})
    done = command("compare", a, tmp_path / "plain")
    assert done.status == 2 and "is no trace" in done.err
    done = command("compare", a, tmp_path / "nope")
    assert done.status == 2 and "no such file or folder" in done.err
    assert command("log", a).status == command("verify", a).status == 0


def test_the_page_of_two_traces(tmp_path) -> None:
    simulated(tmp_path / "a")
    simulated(tmp_path / "b", "positions")
    a, b = tmp_path / "a", tmp_path / "b"
    page = tmp_path / "out.html"
    done = command("compare", a, b, "--html", page)
    assert done.status == 1 and done.err == f"wrote {page}\n"
    text = page.read_text()
    assert "Around the first divergence" in text and "<svg" in text and "prefers-color-scheme:dark" in text
    assert "iteration 1, the model: 1 of 6 values differ" in text
    assert ">100<" in text  # the table of what differs: of so many elements
    twinrun.compare_traces(a, b).to_html(tmp_path / "again.html")
    strip = re.compile(r"<dt>time</dt><dd>[^<]*</dd>")
    assert strip.sub("", (tmp_path / "again.html").read_text()) == strip.sub("", text)
    twinrun.compare_traces(a, a).to_html(page)
    assert "Around" not in page.read_text() and ">same<" in page.read_text()
    # An error replaces what was there: it must not look like the page of this comparison.
    for words in ((a, tmp_path / "none"), (a, b, "--atol", "1"), (a, "--replicas")):
        page.write_text("old")
        (tmp_path / "out.json").write_text("old")
        done = command("compare", *words, "--html", page, "--json", tmp_path / "out.json")
        assert done.status == 2 and "incomparable" in page.read_text(), done
        assert json.loads((tmp_path / "out.json").read_text())["verdict"] == "incomparable"


def test_what_goes_in_comes_from_an_event_before(tmp_path) -> None:
    def run(wrong: int) -> dict[int, list[Event]]:
        def layer(name: str, number: int, given: int, made: int, weight: int) -> list[Event]:
            into = event(name, given, out=False, call=number)
            into.values.append(Traced("weight", False, "parameter", "float32", (2,), "", "", weight))
            return [into, event(name, made, call=number)]

        def step(weight: int) -> Event:
            return event("b", weight, phase="optimizer", operation="SGD.step", role="parameter", call=9)

        return {
            0: [*layer("a", 1, 10, 11, 20), *layer("b", 2, 11, 12, 21), step(31)],
            1: [*layer("a", 1, 10, 13, 20), *layer("b", 2, 13, 14 + wrong, 31), step(41)],
        }

    found = twinrun.compare_traces(written(tmp_path / "a", run(0)), written(tmp_path / "b", run(1)))
    near = next(
        n
        for n in found.around
        if n.site == Site(1, 0, "forward", "b", "forward") and n.state == "inputs agree"
    )
    x, weight = near.values
    assert x.producer == Site(1, 0, "forward", "a", "forward") and not x.differs
    assert weight.producer == Site(0, 0, "optimizer", "b", "SGD.step")
    # What nobody gave before: the batch, and the first weights. Of an earlier iteration only the optimizer's results count.
    first = next(n for n in found.around if n.site == Site(1, 0, "forward", "a", "forward"))
    assert [p.producer for p in first.values] == [None, None]
    at = next(n for n in found.around if n.state == "outputs differ")
    assert [p.differs for p in at.values] == [True]
    told = json.loads(json.dumps(trace_document(found)))
    assert told["around"][0]["values"][0]["producer"] is None


def test_no_file_stays_open(tmp_path) -> None:
    for name in ("a", "b"):
        simulated(tmp_path / name, "forces" if name == "b" else "")
    ranks = parallel(tmp_path / "ranks", 3)

    def compared_all() -> None:
        twinrun.compare_traces(tmp_path / "a", tmp_path / "b").to_html(tmp_path / "page.html")
        twinrun.compare_traces(ranks, replicas=True)
        with contextlib.suppress(twinrun.TwinrunError):
            twinrun.compare_traces(tmp_path / "a", ranks)

    compared_all()  # what is imported stays
    gc.collect()
    before = {
        os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if n.isdigit() and _is_open(n)
    }
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", ResourceWarning)
        compared_all()
        gc.collect()
    assert not [str(w.message) for w in said if issubclass(w.category, ResourceWarning)]
    after = {
        os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if n.isdigit() and _is_open(n)
    }
    assert not [path for path in after - before if str(tmp_path) in path]


def _is_open(number: str) -> bool:
    return os.path.islink(f"/proc/self/fd/{number}")


def test_a_status_for_git_bisect(tmp_path) -> None:
    simulated(tmp_path / "a")
    simulated(tmp_path / "b", "positions")
    simulated(tmp_path / "c")
    for name in ("x", "y"):
        np.save(tmp_path / f"{name}.npy", np.full(3, float(name == "y")))
    np.save(tmp_path / "z.npy", np.zeros(4))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x.npy").write_bytes((tmp_path / "x.npy").read_bytes())
    (tmp_path / "other" / "only.npy").write_bytes((tmp_path / "x.npy").read_bytes())
    (tmp_path / "less").mkdir()
    (tmp_path / "less" / "x.npy").write_bytes((tmp_path / "x.npy").read_bytes())
    for first, second, status in (
        ("a", "c", 0), ("a", "b", 1), ("a", "none", 125), ("a", "x.npy", 125), ("x.npy", "x.npy", 0),
        ("x.npy", "y.npy", 1), ("x.npy", "z.npy", 125), ("none", "x.npy", 125), ("other", "less", 125),
    ):  # fmt: skip
        done = command("compare", tmp_path / first, tmp_path / second, "--bisect")
        assert done.status == status, (first, second, done)
        assert (status == 125) == bool(done.err) and done.err.count("\n") == bool(done.err), done
        plain = command("compare", tmp_path / first, tmp_path / second)
        assert plain.status == min(status, 2)
    # What is no comparison at all ends the search.
    for wrong in (["--typo"], ["--ulp", "-3"], ["--replicas"]):
        done = command("compare", tmp_path / "a", tmp_path / "c", "--bisect", *wrong)
        assert done.status == 129 and done.err.count("\n") == 1, done
    assert command("compare", tmp_path / "a", "--bisect").status == 129


def test_words_of_hostile_names_are_one_line_each(tmp_path) -> None:
    name = "a\n\x1b[31mred"
    found = compared(tmp_path, [event(name, 1)], [event(name, 2)])
    assert all("\n" not in line and "\x1b" not in line for line in trace_lines(found, True))
    assert str(Site(1, 0, "forward", "m", "forward")) == "iteration 1, forward of m"


def held(name: str, shape: tuple[int, ...], digest: int) -> Event:
    values = [Traced(name, False, "parameter", "float32", shape, digest=digest)]
    return Event("forward", 0, "lin", "Linear", "forward", 0, -1, values)


@pytest.mark.parametrize(
    "ours, theirs",
    [
        ([("weight", (8, 4))], [("weight@local", (4, 4))] * 2),
        ([("weight@local", (4, 4))] * 2, [("weight@local", (2, 4))] * 4),
        ([("weight@local", (4, 4))] * 2, [("weight@local", (8, 2))] * 2),
        ([("weight", (8, 4))], [("weight", (4, 4))] * 2),  # parts that no placement describes
    ],
)
def test_other_shardings_are_refused(tmp_path, ours, theirs) -> None:
    for side, ranks in (("a", ours), ("b", theirs)):
        for number, (name, shape) in enumerate(ranks):
            written(tmp_path / side / f"rank{number:05}", {3: [held(name, shape, number + 1)]})
    with pytest.raises(
        twinrun.Incomparable, match=r"cut their tensors differently: lin\.weight is"
    ) as refused:
        twinrun.compare_traces(tmp_path / "a", tmp_path / "b")
    assert f"({len(ours)} and {len(theirs)} ranks)" in str(refused.value) and "ParallelRun" in str(
        refused.value
    )
    said = command("compare", str(tmp_path / "a"), str(tmp_path / "b"))
    assert said.status == 2 and "ParallelRun" in said.out + said.err


def test_another_shape_with_the_same_sharding_is_a_difference(tmp_path) -> None:
    for side, rows in (("a", 4), ("b", 5)):
        for number in range(2):
            written(tmp_path / side / f"rank{number:05}", {0: [held("weight", (rows, 4), number + rows)]})
    found = twinrun.compare_traces(tmp_path / "a", tmp_path / "b")
    assert found.verdict == "different" and found.first_divergence.site.module == "lin"


def test_a_parameter_of_a_layer_that_was_not_called_is_told_of_each_rank() -> None:
    """It is seen when the module around has returned, and takes the place of the value that it made."""

    def events(parameter: int) -> list[Event]:
        made = [event("outer", 1, out=False, call=0)]
        made.append(event("outer.inner", 10 + parameter, out=False, call=1, enclosing=0))
        made.append(event("outer", parameter, out=False, role="parameter", call=0))
        return made

    result = twinrun.TraceComparison("a", "b")
    for rank in (0, 1):
        walk = Walk(result, rank)
        walk.iteration(0, events(1), events(2))
        walk.end()
    told = [(o.rank, o.site.module, [v.role for v in o.values]) for o in result.origins]
    assert told == [(0, "outer", ["parameter"]), (1, "outer", ["parameter"])]
    assert [result.firsts[rank] for rank in (0, 1)] == result.origins


def test_a_difference_beside_the_trace_is_told_with_its_place(tmp_path) -> None:
    for name, more in (("a", 0), ("b", 1)):
        with twinrun.Run(tmp_path / name) as run:
            for step in range(3):
                run.capture(step, {"x": np.ones(4) * step}, phase="forward")
                run.capture(step, {"z": np.ones(4) + (step == 2) * more})
    result = twinrun.compare_traces(tmp_path / "a", tmp_path / "b")
    assert result.verdict == "different" and result.first_divergence is None
    said = "first at step 2, z[0]: 1 against 2, |a-b| = 1"
    assert trace_lines(result)[-1].startswith(f"different: in fields beside the trace: {said}")
    assert any(note.startswith(f"fields beside the trace differ: {said}") for note in result.notes)
    assert not any("{" in note for note in result.notes)


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (1e308, -1e308, "1 of them farther apart than a float64 can say"),
        (float("nan"), -float("nan"), "1 of them NaN or infinite in one run or in both"),
        (float("inf"), -float("inf"), "1 of them NaN or infinite in one run or in both"),
        (1.0, float("inf"), "1 of them NaN or infinite in one run or in both"),
    ],
)
def test_what_is_said_of_values_that_have_no_distance(a: float, b: float, said: str, tmp_path) -> None:
    x = np.array([a, 1.0])
    y = np.array([b, 1.0])
    y[0] = np.copysign(y[0], -1.0) if np.isnan(b) else b
    for name, values in (("a", x), ("b", y)):
        with twinrun.Run(tmp_path / name) as run:
            run.capture(0, {"x": values}, phase="f")
    first = twinrun.compare_traces(tmp_path / "a", tmp_path / "b").first_divergence
    assert first is not None
    text = str(first)
    assert said in text and ("infinite" in text) == ("farther" not in text)
