"""Conditions of traces: what differs between two runs, and between the ranks of one."""

from __future__ import annotations

import json
import types
from pathlib import Path

import pytest
from commands import command
from said_conditions import histories_say

import twinrun
from twinrun.runs.events import Event, Traced, encoded_events
from twinrun.trace.online import Reference, TraceDiverged

Facts = dict[str, dict[str, str]]


def traced(path: Path, ranks: int) -> str:
    """A trace of several ranks, which agree."""
    weight = Traced("weight", False, "parameter", "float32", (2,), "", "", 1)
    for rank in range(ranks):
        with twinrun.Run(path / f"rank{rank:05d}") as run:
            run.capture(
                0, encoded_events([Event("forward", 0, "layer", "Linear", "forward", 0, -1, [weight])])
            )
    return str(path)


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch):
    """The ranks of these traces say so of their conditions: each in a history of its own, as rank 0."""
    said = histories_say(monkeypatch)

    def set_facts(path: str, *facts: Facts | None) -> None:
        for rank, one in enumerate(facts):
            text = "damaged" if one is None else json.dumps(one)
            said[f"{path}/rank{rank:05d}"] = [types.SimpleNamespace(rank=0, json=text)]

    return set_facts


def facts(rank: int, **python: str) -> Facts:
    return {"host": {"name": f"n{rank}"}, "gpu": {"driver": "580"}, "python": {"torch": "2.15", **python}}


def test_a_replica_under_other_conditions_is_named(tmp_path: Path, say) -> None:
    path = traced(tmp_path / "a", 4)
    say(path, *(facts(r, cudnn_benchmark=str(r == 2)) for r in range(4)))
    found = twinrun.compare_traces(path, replicas=True)
    line = "condition python.cudnn_benchmark: False (rank 0-1, 3) | True (rank 2)"
    assert found.same and len(found.conditions) == 1
    done = command("compare", path, "--replicas", "--json", tmp_path / "out.json")
    assert done.status == 0 and [x for x in done.out.splitlines() if x.startswith("condition")] == [line]
    assert json.loads((tmp_path / "out.json").read_text())["conditions"] == [
        {"group": "python", "name": "cudnn_benchmark", "a": "False (rank 0-1, 3)", "b": "True (rank 2)"}
    ]
    # Ranks that were not chosen do not count.
    assert twinrun.compare_traces(path, replicas=[0, 1, 3]).conditions == []


def test_a_replica_without_conditions_is_noted(tmp_path: Path, say) -> None:
    path = traced(tmp_path / "a", 3)
    say(path, facts(0), facts(1))
    found = twinrun.compare_traces(path, replicas=True)
    assert "conditions were not compared: rank 2 recorded none" in found.notes and found.conditions == []
    say(path, facts(0), None, facts(2))
    found = twinrun.compare_traces(path, replicas=True)
    assert found.same and "conditions were not compared: rank 1 recorded none" in found.notes
    assert any("provenance is not an object" in note for note in found.notes)
    none = traced(tmp_path / "none", 2)
    say(none)
    found = twinrun.compare_traces(none, replicas=True)
    assert found.conditions is None and any("rank" in n and "0, 1 recorded none" in n for n in found.notes)


def test_two_traces_compare_the_conditions_of_all_ranks(tmp_path: Path, say) -> None:
    a, b = traced(tmp_path / "a", 2), traced(tmp_path / "b", 2)
    say(a, facts(0), facts(1))
    say(b, facts(0), facts(1, torch="2.14"))
    (told,) = twinrun.compare_traces(a, b).conditions
    assert (told.name, told.a, told.b) == ("torch", "2.15", "2.15 (rank 0); 2.14 (rank 1)")


# ---- traces of two versions of twinrun ----

OPERATION = Event("forward", 0, "layer", "", "aten.mm.default", 1, 0, [])


def of_version(path: Path, version: str, say, *, more: bool) -> str:
    """A trace that a version of twinrun wrote. more: with kinds of records that another one does not write."""
    weight = Traced("weight", False, "parameter", "float32", (2,), "", "", 1)
    mean = Traced("mean", True, "buffer", "float32", (2,), "", "", 2)
    given = Traced("output", True, "value", "float32", (2,), "", "", 3)
    events = [Event("forward", 0, "layer", "Linear", "forward", 0, -1, [weight])]
    events += [OPERATION] * more
    events.append(Event("forward", 0, "layer", "Linear", "forward", 0, -1, [given, *[mean] * more]))
    with twinrun.Run(path / "rank00000") as run:
        run.capture(0, encoded_events(events))
    say(str(path), {"compiler": {"twinrun_version": version}})
    return str(path)


def test_kinds_of_records_that_another_version_does_not_write_are_noted(tmp_path: Path, say) -> None:
    old = of_version(tmp_path / "old", "0.1.0", say, more=False)
    new = of_version(tmp_path / "new", "0.2.0", say, more=True)
    note = (
        f"{old} was written by twinrun 0.1.0 (format 2), and has none of these records: operations in forward "
        "passes, buffers that come out of forward passes of modules. "
        f"Those of {new}, written by twinrun 0.2.0 (format 2), have no counterpart: "
        "make both traces with one version of twinrun"
    )
    for pair in ((old, new), (new, old)):
        found = twinrun.compare_traces(*pair)
        # It is a problem as ever, and never the same.
        assert found.verdict == "different" and found.unmatched == 2 and len(found.problems) == 2
        assert [n for n in found.notes if "was written by" in n] == [note]
    assert f"twinrun: {note}" in command("compare", old, new).out


def test_one_version_needs_no_such_note(tmp_path: Path, say) -> None:
    paths = [of_version(tmp_path / f"{more}", "0.2.0", say, more=more) for more in (False, True)]
    found = twinrun.compare_traces(*paths)
    assert not found.same and not any("was written by" in n for n in found.notes)
    # Nor do two versions that wrote the same.
    again = of_version(tmp_path / "again", "0.1.0", say, more=True)
    found = twinrun.compare_traces(paths[1], again)
    assert found.same and not any("was written by" in n for n in found.notes)


def test_an_older_format_is_named_where_the_version_of_the_program_is_the_same(
    tmp_path: Path, say, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = of_version(tmp_path / "new", "0.1.0", say, more=True)
    monkeypatch.setattr("twinrun.runs.events.VERSION", 1)
    old = of_version(tmp_path / "old", "0.1.0", say, more=False)
    monkeypatch.undo()
    found = twinrun.compare_traces(old, new)
    assert any(f"{old} was written by twinrun 0.1.0 (format 1)" in n for n in found.notes), found.notes


def test_a_reference_of_another_version_is_named(tmp_path: Path, say) -> None:
    events = [
        Event("forward", 0, "layer", "Linear", operation, n, -1, [])
        for n, operation in enumerate(("forward", "aten.sin.default"))
    ]
    for version, named in ((twinrun.__version__, False), ("0.0.1", True)):
        reference = Reference(of_version(tmp_path / version, version, say, more=True), 0)
        found = reference.first(0, events, [])
        assert found is not None
        error = TraceDiverged.at(found, reference.path, reference.other_version())
        assert (f"written by twinrun {version} (format 2)" in str(error)) == named, error
        assert (f"this is twinrun {twinrun.__version__} (format 2)" in str(error)) == named
