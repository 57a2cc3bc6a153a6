"""Places that one run alone has, such as an empty list, and values that are kept: what is said of them."""

from __future__ import annotations

import numpy as np
import pytest

import twinrun
from twinrun.runs.events import Event, Traced, encoded_events
from twinrun.runs.structure import CLASS, lines
from twinrun.trace.distance import measure
from twinrun.trace.reading import Kept, RankOfTrace
from twinrun.trace.result import ValueDifference


def recorded(value: object) -> Event:
    """An event that records a value of lists, tuples, mappings and numbers, as the tracers see it."""
    event = Event("record", 0, "", "", "r", -1, -1, [])
    facts = []

    def see(name: str, one: object) -> None:
        if isinstance(one, (list, tuple, dict)):
            facts.append((name, CLASS, type(one).__name__))
            for key, item in one.items() if isinstance(one, dict) else enumerate(one):
                see(f"{name}.{key}", item)
        else:
            event.values.append(Traced(name, True, "value", "python", (), digest=hash(one)))

    see("r", value)
    event.structure = lines(facts, True)
    return event


def compared(tmp_path, a: object, b: object) -> twinrun.TraceComparison:
    for name, value in (("a", a), ("b", b)):
        with twinrun.Run(
            tmp_path / name, existing="replace" if (tmp_path / name).exists() else "refuse"
        ) as run:
            run.capture(0, encoded_events([recorded(value), recorded(1)], ()))
    return twinrun.compare_traces(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize(("a", "b", "said"), [
    ({"a": []}, {"b": []}, ["r.a is a list in a and not in b", "r.b is a list in b and not in a"]),
    ({"a": {}}, {}, ["r.a is a dict in a and not in b"]),
    ([1, []], [1], ["r.1 is a list in a and not in b"]),
    ([[]], [[], []], ["r.1 is a list in b and not in a"]),
    (((),), (), ["r.0 is a tuple in a and not in b"]),
    ({"a.b": 1}, {"a": {"b": 1}}, ["r.a is a dict in b and not in a"]),
])  # fmt: skip
def test_a_place_that_one_run_alone_has_is_never_the_same(tmp_path, a, b, said) -> None:
    found = compared(tmp_path, a, b)
    assert found.verdict == "incomparable" and found.unmatched == len(said)
    assert found.problems == [f"iteration 0, record: r: {one}" for one in said]
    assert not found.structure and not any("beside" in note for note in found.notes)


def test_of_a_container_with_values_the_values_are_told(tmp_path) -> None:
    found = compared(tmp_path, {"a": [1]}, {"b": [1]})
    assert found.verdict == "different" and found.unmatched == 2
    assert [p.rpartition(": ")[2] for p in found.problems] == ["r.a.0 is only in a", "r.b.0 is only in b"]


def test_another_class_alone_is_told_beside_the_values(tmp_path) -> None:
    found = compared(tmp_path, [1, []], [1, ()])
    assert found.verdict == "same" and "r.1 is a list in a and a tuple in b" in found.notes[0]
    assert not found.problems and found.unmatched == 0


def test_a_missing_iteration_leaves_open_where_a_difference_comes_from(tmp_path) -> None:
    def run(name: str, iterations: list[int], wrong: int) -> str:
        with twinrun.Run(tmp_path / name) as run:
            for n in iterations:
                event = Event("record", 0, "", "", "r", -1, -1, [])
                event.values.append(Traced("x", True, "value", "float32", (2,), digest=1 + (n == wrong)))
                run.capture(n, encoded_events([event], ()))
        return str(tmp_path / name)

    found = twinrun.compare_traces(run("a", [0, 1, 2], -1), run("b", [0, 2], 2))
    first = found.first_divergence
    assert found.verdict == "different" and first.site.iteration == 2 and first.reason == "unknown"
    assert "because of iteration 1: only in a" in str(first) and "everything before agrees" not in str(first)


# ---- kept values ----


class Kepts:
    def __init__(self, values: np.ndarray, kind: str) -> None:
        self.values, self.kind = values, kind

    def kept(self, rank: int, iteration: int, name: str) -> Kept:
        return Kept(self.values, self.kind, None)


def measured(a: np.ndarray, b: np.ndarray, kind: str, form: str) -> ValueDifference:
    found = ValueDifference("x", "value", True, form, form, _kept=("a", "b"))
    measure(found, *(RankOfTrace(Kepts(v, kind), 0, "a") for v in (a, b)), 0)
    return found


def test_no_distance_is_told_beside_a_nan() -> None:
    found = measured(np.array([1.0, 2, 3]), np.array([1.0, np.nan, 3]), "f64", "float64[3]")
    assert (found.different, found.infinite, found.max_abs_diff) == (1, 1, None)
    found = measured(np.array([1.0, 2, 3]), np.array([1.5, np.nan, 3]), "f64", "float64[3]")
    assert (found.different, found.infinite, found.max_abs_diff) == (2, 1, 0.5)
    assert measured(np.array([0.0]), np.array([-0.0]), "f64", "float64[1]").max_abs_diff == 0


@pytest.mark.parametrize(("kind", "codes", "values"), [
    ("float8_e4m3fn", (192, 126), (-2.0, 448.0)),
    ("float8_e5m2", (0xC0, 0x7B), (-2.0, 57344.0)),
])  # fmt: skip
def test_numbers_of_8_bits_are_told_as_numbers(kind, codes, values) -> None:
    a, b = np.array([7, codes[0]], np.uint8), np.array([7, codes[1]], np.uint8)
    found = measured(a, b, "u8", f"{kind}[2]")
    assert (found.first_a, found.first_b) == values and found.max_abs_diff == values[1] - values[0]
    assert found.max_ulp is None
    assert measured(a, b, "u8", "uint8[2]").first_a == codes[0]
