"""All fields of a place are compared by one call of the core: what is found is what comparing them
one by one finds.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_containers import changed, random_pair
from support import in_options

import twinrun
from twinrun import _core, formats
from twinrun.comparison import pairs, place, schedule
from twinrun.comparison.field import FieldGroup
from twinrun.comparison.result import Interrupted
from twinrun.comparison.tolerances import Rule, Tolerances
from twinrun.errors import Incomparable, TwinrunError
from twinrun.runs.containers import flattened
from twinrun.runs.fields import FieldRef
from twinrun.runs.opening import open_subject


def listed(container: object) -> _core.FieldList | None:
    """What the core takes of a container."""
    return _core.FieldList.of_arrays(container, flattened, True)


def facts(result: twinrun.Comparison) -> dict:
    """All that a comparison says but its times."""
    said = {
        part.name: getattr(result, part.name)
        for part in dataclasses.fields(result)
        if part.name not in ("seconds", "fields", "_again", "_found")
    }
    said["fields"] = []
    for field in result.fields:
        # dataclasses.asdict would copy each list and number, which took most of these tests' time.
        own = {part.name: getattr(field, part.name) for part in dataclasses.fields(field)}
        own["stages"] = {
            name: {fact: value for fact, value in stage.items() if fact != "seconds"}
            for name, stage in own["stages"].items()
        }
        for time in ("seconds", "device_seconds"):
            own.pop(time)
        if own["device"] != "cpu":  # sums depend on how the work is divided there
            sums = (name for name in ("rms_diff", "rms_diff_all") if own[name] is not None)
            own |= {name: f"{own[name]:.10g}" for name in sums}
        said["fields"].append(own)
    said |= {name: getattr(result, name) for name in ("device", "different", "same", "first_divergence")}
    return said


def one_by_one(a: object, b: object, **how: object) -> twinrun.Comparison:
    """The same comparison, field after field."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, "compare_lists", lambda *_: None)
        patch.setattr(schedule, "compare_places", lambda *_: None)
        patch.setattr(pairs, "_LEAST", 1 << 60)
        return twinrun.compare(a, b, **how)


def in_pairs(a: object, b: object, **how: object) -> twinrun.Comparison:
    """The same comparison, with the fields that Python opened and matched in lists."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, "compare_lists", lambda *_: None)
        patch.setattr(schedule, "compare_places", lambda *_: None)
        return twinrun.compare(a, b, **how)


def groups(result: twinrun.Comparison) -> int:
    """How many fields were compared in lists."""
    return sum(len(one) for one in result._found if isinstance(one, FieldGroup))


def outcome(compare: Callable, a: object, b: object, **how: object) -> str:
    """What it finds, as text: a NaN equals itself there."""
    try:
        return "\n".join(
            f"{name}: {value!r}" for name, value in facts(compare(a, b, **in_options(how))).items()
        )
    except TwinrunError as e:
        return f"{type(e)} {e}"


HOW = {
    "atol": st.sampled_from([0.0, 1e-3, 2.0]),
    "rtol": st.sampled_from([0.0, 1e-5]),
    "ulp": st.sampled_from([0, 4]),
    "equal_nan": st.booleans(),
    "tolerate_integers": st.booleans(),
    "method": st.sampled_from(["auto", "direct", "staged"]),
    "threads": st.sampled_from([0, 1, 3]),
    "partial": st.booleans(),
    "common": st.booleans(),
    "device": st.sampled_from(["auto", "cpu"]),
}
RULES = [
    Rule(fields=("x*",), atol=1e-3),
    Rule(fields=("id*", "*2"), ulps=2, equal_nan=False),
    Rule(fields=("*1",), skip=True),
    Rule(fields=("x3",), steps="1:", rtol=0.5, integers=True),
    Rule(fields=("*",), integers=False),
    Rule(fields=("x*",), period=(7.0,)),
    Rule(fields=("*@*",), of_attributes=True, skip=True),
]
CHOSEN = {
    "fields": st.lists(st.sampled_from(["x*", "id*", "*1", "nothing"]), min_size=1, max_size=2),
    "tolerances": st.lists(st.sampled_from(RULES), max_size=3).map(lambda rules: Tolerances(tuple(rules))),
    "leave_out": st.sampled_from([["x0"], ["*2", "ids"]]),
    "use_metadata": st.booleans(),
    "period": st.sampled_from([None, "x0=10"]),
}


@settings(max_examples=250, deadline=None)
@given(seed=st.integers(0, 1 << 32), count=st.integers(1, 12), how=st.fixed_dictionaries({}, optional=HOW))
def test_arrays_are_compared_as_one_by_one(seed, count, how):
    a, b = random_pair(np.random.default_rng(seed), count, True, 0.03)
    assert outcome(twinrun.compare, a, b, **how) == outcome(one_by_one, a, b, **how)
    assert listed(a) is not None


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 1 << 32), count=st.integers(1, 12), how=st.fixed_dictionaries({}, optional=HOW))
def test_lists_of_arrays_are_compared_as_one_by_one(seed, count, how):
    a, b = random_pair(np.random.default_rng(seed), count, True, 0.03)
    one, two = list(a.values()), tuple(b.values())
    assert outcome(twinrun.compare, one, two, **how) == outcome(one_by_one, one, two, **how)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    count=st.integers(1, 8),
    steps=st.integers(1, 3),
    kept=st.sampled_from([{}, {}, {"keep_data": False}, {"keep_data_steps": 1}, {"record": "runs"}]),
    made=st.sampled_from(
        [{}, {"atol": 1e-3}, {"atol": 1e-3, "rtol": 1e-5}, {"digest": "published", "atol": 1e-3}]
    ),
    other=st.sampled_from([{}, {}, {}, {"atol": 1.0}, {"residue_bits": 0}, {"chunk_bytes": 8192}]),
    how=st.fixed_dictionaries({}, optional=HOW),
)
def test_histories_are_compared_as_one_by_one(seed, count, steps, kept, made, other, how):
    random = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        with (
            twinrun.Run(f"{folder}/a", **kept, **made) as first,
            twinrun.Run(f"{folder}/b", **kept, **{**made, **other}) as second,
        ):
            shapes = random_pair(random, count, False, 0.02)
            for step in range(steps):
                for run, fields in zip((first, second), shapes, strict=True):
                    run.capture(step, {str(name): changed(random, x) for name, x in fields.items()})
        assert outcome(twinrun.compare, f"{folder}/a", f"{folder}/b", **how) == outcome(
            one_by_one, f"{folder}/a", f"{folder}/b", **how
        )
        assert outcome(twinrun.compare, f"{folder}/a", f"{folder}/a", **how) == outcome(
            one_by_one, f"{folder}/a", f"{folder}/a", **how
        )


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    count=st.integers(1, 10),
    how=st.fixed_dictionaries({}, optional={**HOW, **CHOSEN}),
)
def test_chosen_arrays_are_compared_as_one_by_one(seed, count, how):
    a, b = random_pair(np.random.default_rng(seed), count, True, 0.03)
    expected = outcome(one_by_one, a, b, **how)
    assert outcome(twinrun.compare, a, b, **how) == expected
    assert outcome(in_pairs, a, b, **how) == expected


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    count=st.integers(1, 8),
    kept=st.sampled_from([{}, {}, {}, {"keep_data": False}, {"record": "runs"}]),
    made=st.sampled_from([{}, {"atol": 1e-3}, {"atol": 1e-3, "rtol": 1e-5}]),
    other=st.sampled_from([{}, {}, {}, {"atol": 1.0}, {"residue_bits": 0}]),
    how=st.fixed_dictionaries({}, optional={**HOW, **CHOSEN}),
)
def test_chosen_fields_of_histories_are_compared_as_one_by_one(seed, count, kept, made, other, how):
    random = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        with (
            twinrun.Run(f"{folder}/a", **kept, **made) as first,
            twinrun.Run(f"{folder}/b", **kept, **{**made, **other}) as second,
        ):
            shapes = random_pair(random, count, False, 0.02)
            for step in range(2):
                for run, fields in zip((first, second), shapes, strict=True):
                    run.capture(step, {str(name): changed(random, x) for name, x in fields.items()})
        expected = outcome(one_by_one, f"{folder}/a", f"{folder}/b", **how)
        assert outcome(twinrun.compare, f"{folder}/a", f"{folder}/b", **how) == expected
        assert outcome(in_pairs, f"{folder}/a", f"{folder}/b", **how) == expected


def write_files(path: Path, kind: str, fields: dict, texts: dict | None, random: np.random.Generator) -> None:
    """Fields as files of one kind, in a folder, or in one file."""
    if kind == "one file":
        return write_safetensors(path.with_suffix(".safetensors"), fields, texts)
    path.mkdir()
    if kind == "safetensors":
        for at in range(2):
            some = {name: x for place, (name, x) in enumerate(fields.items()) if place % 2 == at}
            write_safetensors(path / f"part-{at}.safetensors", some, texts)
        return None
    for at, (name, x) in enumerate(fields.items()):
        np.save(path / (f"{name}.npy" if kind == "npy" else f"{name}_{at % 3}.npy"), x)
    if kind == "npy" and random.random() < 0.1:
        (path / "x0.npy").write_bytes(b"\x93NUMPY\x01\x00v\x00damaged")
    return None


def write_safetensors(path: Path, fields: dict, texts: dict | None) -> None:
    names = {"f2": "F16", "f4": "F32", "f8": "F64", "c8": "C64", "b1": "BOOL"} | {
        f"{kind}{size}": f"{kind.upper()}{8 * size}" for kind in "iu" for size in (1, 2, 4, 8)
    }
    header: dict = {} if texts is None else {"__metadata__": texts}
    data = b""
    for name, x in fields.items():
        kind = names.get(x.dtype.str[1:])
        if kind is None:  # complex128
            kind, x = "F64", np.ascontiguousarray(x).view("f8") if x.ndim else x.real
        raw = np.ascontiguousarray(x).tobytes()
        header[name] = {
            "dtype": kind,
            "shape": list(x.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


@settings(max_examples=250, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    count=st.integers(1, 9),
    kind=st.sampled_from(["npy", "steps of npy", "safetensors", "one file"]),
    texts=st.lists(
        st.sampled_from([None, {}, {"format": "pt"}, {"format": "np", "x": "\u00e9"}]), min_size=2, max_size=2
    ),
    odd=st.sampled_from([0.0, 0.0, 0.05]),
    how=st.fixed_dictionaries({}, optional={**HOW, **CHOSEN}),
)
def test_files_are_compared_as_one_by_one(seed, count, kind, texts, odd, how):
    random = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        for name, fields, said in zip("ab", random_pair(random, count, False, odd), texts, strict=True):
            write_files(Path(folder, name), kind, fields, said, random)
        a, b = (f"{folder}/{name}{'.safetensors' if kind == 'one file' else ''}" for name in "ab")
        expected = outcome(one_by_one, a, b, **how)
        assert outcome(twinrun.compare, a, b, **how) == expected
        assert outcome(in_pairs, a, b, **how) == expected
        assert outcome(twinrun.compare, a, a, **how) == outcome(one_by_one, a, a, **how)


def test_files_metadata_and_pairs_are_compared_in_lists(tmp_path) -> None:
    fields = {name: np.arange(5.0) for name in ("x", "y", "z")}
    for name in "ab":
        with twinrun.Run(tmp_path / f"history-{name}") as run:
            run.capture(0, fields)
        write_files(tmp_path / f"npy-{name}", "npy", fields, None, np.random.default_rng(1))
        write_safetensors(tmp_path / f"{name}.safetensors", fields, {"format": "pt"})
        np.savez(tmp_path / f"{name}.npz", **fields)
    for kind in ("history-{}", "npy-{}", "{}.safetensors", "{}.npz"):
        a, b = (tmp_path / kind.format(name) for name in "ab")
        assert groups(twinrun.compare(a, b)) == 3
        assert groups(twinrun.compare(a, b, fields=["x", "z"])) == 2
        assert groups(twinrun.compare(a, b, leave_out=["y"])) == 2
        assert groups(twinrun.compare(a, b, tolerances=Tolerances((Rule(fields=("x",), atol=1.0),)))) == 3
        assert groups(one_by_one(a, b)) == 0


def test_steps_of_files_are_compared_together(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(schedule, "_TOGETHER", 7)
    for name in "ab":
        (tmp_path / name).mkdir()
        for step in range(23):
            for field in "xy":
                np.save(tmp_path / name / f"{field}_{step}.npy", np.arange(4.0) + step)
            np.save(tmp_path / name / f"ids_{step}.npy", np.arange(5))
    a, b = tmp_path / "a", tmp_path / "b"
    np.save(b / "y_5.npy", np.arange(4.0))
    np.save(b / "x_20.npy", np.full(4, np.nan))
    result = twinrun.compare(a, b)
    assert [len(one) for one in result._found] == [21, 21, 21, 6] and result.first_divergence["step"] == 5
    assert outcome(twinrun.compare, a, b) == outcome(one_by_one, a, b)
    # Ranks that both runs have, and one that only one has.
    for rank, runs in ((1, (a, b)), (2, (b,))):
        for run in runs:
            np.save(run / f"z.3.{rank}.npy", np.arange(4.0))
        assert outcome(twinrun.compare, a, b, partial=True) == outcome(one_by_one, a, b, partial=True)
    (b / "z.3.2.npy").unlink()
    assert outcome(twinrun.compare, a, b) == outcome(one_by_one, a, b)
    np.save(b / "ids_9.npy", np.arange(5)[::-1])  # the note of another order
    assert outcome(twinrun.compare, a, b) == outcome(one_by_one, a, b)
    assert any("another order" in note for note in twinrun.compare(a, b).notes)
    np.save(b / "ids_9.npy", np.arange(6))
    for how in ({"partial": True}, {}, {"leave_out": ["ids"]}, {"steps": "3:15"}):
        assert outcome(twinrun.compare, a, b, **how) == outcome(one_by_one, a, b, **how)


def test_a_file_is_opened_once_for_all_of_its_fields(tmp_path) -> None:
    fields = {f"x{at}": np.arange(4.0) + at for at in range(300)}
    for name in "ab":
        write_safetensors(tmp_path / f"{name}.safetensors", fields, None)
    program = (
        "import resource, sys, twinrun; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64));"
        "found = twinrun.compare(sys.argv[1], sys.argv[2], fields=['*']); assert found.same and len(found.fields) == 300"
    )
    trace = shutil.which("strace")
    words = [sys.executable, "-c", program, *(str(tmp_path / f"{name}.safetensors") for name in "ab")]
    if trace is None:
        subprocess.run(words, check=True)
        return
    log = tmp_path / "log"
    subprocess.run([trace, "-f", "-qq", "-e", "trace=openat", "-o", str(log), *words], check=True)
    opened = [line for line in log.read_text().splitlines() if "a.safetensors" in line]
    assert 0 < len(opened) < 10, opened


@pytest.mark.parametrize("steps", [1, 3])
def test_a_small_file_is_opened_once(tmp_path, steps: int) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        for step in range(steps):
            for field in "uv":
                np.save(tmp_path / name / f"{field}_{step}.npy", np.arange(9.0) + step)
    program = "import sys, twinrun; assert twinrun.compare(sys.argv[1], sys.argv[2]).same"
    words = [sys.executable, "-c", program, str(tmp_path / "a"), str(tmp_path / "b")]
    trace = shutil.which("strace")
    if trace is None:
        subprocess.run(words, check=True)
        return
    log = tmp_path / "log"
    subprocess.run([trace, "-f", "-qq", "-e", "trace=openat", "-o", str(log), *words], check=True)
    opened = [line for line in log.read_text().splitlines() if ".npy" in line and "resumed" not in line]
    assert len(opened) == 4 * steps, opened


@pytest.mark.parametrize("steps", [1, 3])
def test_what_was_read_with_the_listing_is_compared_once(tmp_path, monkeypatch, steps: int) -> None:
    """A second comparison, and one that does not take it, read the files as they are then."""
    monkeypatch.setattr(formats, "_extra", {})  # where another test registered a format, nothing is at hand
    for name in "ab":
        (tmp_path / name).mkdir()
        for step in range(steps):
            np.save(tmp_path / name / f"x_{step}.npy", np.arange(9.0))
    a, b = (open_subject(tmp_path / name, read_small=True) for name in "ab")
    fresh = open_subject(tmp_path / "a", read_small=True)
    np.save(tmp_path / "a" / "x_0.npy", np.arange(9.0) + 1)
    assert twinrun.compare(a, b).same
    for run in (a, fresh):
        found = twinrun.compare(run, b, options=twinrun.CompareOptions(use_metadata=False))
        assert not found.same and found.fields[0].different == 9
    assert not twinrun.compare(a, b).same
    (tmp_path / "a" / "x_0.npy").write_bytes(b"no array")
    with pytest.raises(TwinrunError, match=r"x_0\.npy"):
        twinrun.compare(a, b)
    assert twinrun.compare(pickle.loads(pickle.dumps(b)), tmp_path / "b").same


def test_names_that_are_not_utf8_are_left_to_python(tmp_path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        for field in (b"x\xff.npy", b"y.npy"):
            with open(os.path.join(os.fsencode(tmp_path / name), field), "wb") as file:
                np.save(file, np.arange(3.0))
        for field in (b"z.npy", b"\xfe.npy"):  # opened by Python
            with open(os.path.join(os.fsencode(tmp_path / name), field), "wb") as file:
                np.save(file, np.zeros(3, [("i", "i4"), ("f", "f8")]))
    a, b = tmp_path / "a", tmp_path / "b"
    for how in ({}, {"fields": ["*"]}, {"use_metadata": False}):
        assert outcome(twinrun.compare, a, b, **how) == outcome(one_by_one, a, b, **how)


def test_a_subject_of_one_file_is_sent_to_other_processes(tmp_path) -> None:
    write_safetensors(tmp_path / "a.safetensors", {"x": np.ones(3)}, None)
    subject = open_subject(tmp_path / "a.safetensors")
    assert groups(twinrun.compare(subject, subject)) == 1
    other = pickle.loads(pickle.dumps(subject))
    assert twinrun.compare(other, copy.deepcopy(subject)).same


def test_one_damaged_file_of_many_is_reported_and_the_others_are_compared(tmp_path) -> None:
    fields = {f"x{letter}": np.arange(6.0) for letter in "abcdefgh"}
    for name in "ab":
        write_files(tmp_path / name, "npy", fields, None, np.random.default_rng(1))
    np.save(tmp_path / "b" / "xc.npy", np.arange(6.0) + 1)
    whole = (tmp_path / "b" / "xf.npy").read_bytes()
    (tmp_path / "b" / "xf.npy").write_bytes(whole[:-8])
    a, b = tmp_path / "a", tmp_path / "b"
    with pytest.raises(TwinrunError, match=r"xf\.npy"):
        twinrun.compare(a, b)
    assert outcome(twinrun.compare, a, b, partial=True) == outcome(one_by_one, a, b, partial=True)


def test_a_source_that_fails_in_a_list_leaves_the_others(tmp_path, monkeypatch) -> None:
    fields = {f"x{at}": np.arange(6.0) + at for at in range(20)}
    for name in "ab":
        np.savez(tmp_path / f"{name}.npz", **fields)
    a, b = tmp_path / "a.npz", tmp_path / "b.npz"
    real = FieldRef.source

    def short(self, *asked: object) -> object:
        if self.name == "x7" and self.extents is not None:
            self.extents = [
                twinrun._core.PathExtent(e.path, offset=e.offset + (1 << 20), stride=e.stride, count=e.count)
                for e in self.extents
            ]
        return real(self, *asked)

    monkeypatch.setattr(FieldRef, "source", short)
    result = in_pairs(a, b, partial=True)
    assert result.verdict == "incomparable" and len(result.problems) == 1 and "'x7'" in result.problems[0]
    assert [f.field for f in result.fields] == [name for name in fields if name != "x7"]
    assert all(f.same for f in result.fields)
    with pytest.raises(TwinrunError, match="x7"):
        in_pairs(a, b)


def test_groups_are_pickled_packed(tmp_path) -> None:
    fields = {f"x{at}": np.arange(6.0) + at for at in range(2000)}
    for name in "ab":
        write_safetensors(
            tmp_path / f"{name}.safetensors", fields | ({"x9": np.zeros(6)} if name == "b" else {}), None
        )
    result = twinrun.compare(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    [group] = result._found
    sent = pickle.dumps(group)
    assert len(sent) < 200 * len(fields)
    other = pickle.loads(sent)
    assert list(map(str, other.all())) == list(map(str, group.all()))
    assert [f.field for f in other.differing()] == ["x9"]
    state = list(group._results.__getstate__())
    for at in (0, 1):
        for where in (0, 8, len(state[at]) // 2, len(state[at]) - 1):
            broken = bytearray(state[at])
            broken[where] ^= 1
            wrong = _core.ListResults.__new__(_core.ListResults)
            with pytest.raises(TwinrunError, match="not the"):
                wrong.__setstate__((*state[:at], bytes(broken), *state[at + 1 :]))


def test_plain_arrays_are_taken_at_once() -> None:
    x = np.arange(6.0)
    taken = listed({"a": x, "b": {"c": x.reshape(2, 3).T, 1: np.int8(x)}})
    assert taken is not None and list(taken.arrays()) == ["a", "b.c", "b.1"] and not taken.rest
    assert all(v is w for v, w in zip(taken.arrays().values(), [x], strict=False))


def test_lists_of_arrays_are_containers() -> None:
    x = np.arange(6.0)
    for container in (
        [x, {"y": x, "z": (x, [x, x])}, 0.5, [1, 2]],
        ([[x, x], [x]], x),
        {"state": [{}, {"x": x}], "w": (x, "text", None)},
        [x, x[::2]],
    ):
        taken = listed(container)
        assert taken is not None
        assert list(taken.arrays()) == list(flattened("", container))
    assert listed([1.0, 2.0]) is None and listed(["a"]) is None and listed([]) is None
    assert list(listed({"x": [1.0, 2.0], "y": [[1, 2], [3, 4]]}).arrays()) == ["x", "y"]


def test_a_list_that_holds_itself_is_left_to_python() -> None:
    own: list = [np.ones(2)]
    own.append(own)
    other: list = []
    other.append(other)
    for container in (own, other, {"x": own}, {"x": other}):
        assert listed(container) is None
        with pytest.raises(TwinrunError, match="contains itself"):
            twinrun.compare(container, container)


def test_differences_of_lists_are_those_of_dictionaries() -> None:
    a = [np.zeros(3), {"y": np.ones(4)}, (np.arange(5), [np.ones(2)])]
    b = copy.deepcopy(a)
    b[1]["y"][2] = 5
    b[2][1][0][1] = 7
    result, flat = twinrun.compare(a, b), twinrun.compare(flattened("", a), flattened("", b))
    found, want = list(result.differences()), list(flat.differences())
    assert [d.field.field for d in found] == [d.field.field for d in want] == ["1.y", "2.1.0"]
    assert all((x.index == y.index).all() and (x.b == y.b).all() for x, y in zip(found, want, strict=True))
    b.pop()
    with pytest.raises(TwinrunError, match="are gone"):
        list(result.differences())


@pytest.mark.parametrize("change", ["clear", "append", "pop", "insert"])
def test_a_list_may_change_while_it_is_looked_at(change: str) -> None:
    container: list = []

    class Changes:
        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
            arguments = {"append": (np.ones(1),), "insert": (0, np.ones(1))}.get(change, ())
            if container:
                getattr(container, change)(*arguments)
            return np.zeros(2)

    for around in (container, {"x": container}, [container, container]):
        container[:] = [*(np.ones(2) for _ in range(20)), Changes(), *(np.ones(2) for _ in range(20))]
        with contextlib.suppress(TwinrunError):
            assert twinrun.compare(around, around).verdict == "same"


def test_what_the_core_cannot_take_is_beside_the_list() -> None:
    x = np.arange(6.0)
    taken = listed(
        OrderedDict(n=None, x=x, b=(0.9, 0.999), lr=0.5, s=x[::2], i=3, m=np.ma.masked_equal([1, 2], 2), y=x)
    )
    assert taken is not None
    every = list(taken.arrays())
    assert every == ["n@text", "x", "b", "lr", "s", "i", "m@fill@text", "m", "m@mask", "y"]
    # An array stays beside its labels.
    assert list(taken.rest) == ["n@text", "s", "m@fill@text", "m", "m@mask"]
    assert [every[at] for at in taken.rest_places] == list(taken.rest)


def test_ordered_dictionaries_keep_their_order() -> None:
    a = OrderedDict((name, np.ones(2)) for name in "abc")
    a.move_to_end("a")
    assert [f.field for f in twinrun.compare(a, a).fields] == ["b", "c", "a"]


@pytest.mark.parametrize(
    "container",
    [
        {},
        [np.ones(3)],
        {"x": None},
        {"x": np.float64(1)},
        {"x": np.ones(4)[::2]},
        {"x": np.ones((4, 4))[:, 1:]},
        {"x": np.ones(3, ">f8")},
        {"x": np.ones(3, "M8[s]")},
        {"x": np.array(["a"])},
        {"x": np.array([None])},
        {"x": np.ones(3, np.longdouble)},
        {"x": np.ones(3), "y": np.ones(3, np.longdouble)},
        {"x": np.ones(3), "y": object()},
        {"x": np.ones(3), "y": lambda: None},
        {"x": np.matrix([1.0])},
        {"x@mask": np.ones(3)},
        {"": np.ones(3)},
        {"\udc80": np.ones(3)},
        {"a.b": np.ones(3), "a": {"b": np.ones(3)}},
        {1: np.ones(3), "1": np.ones(3)},
        {True: np.ones(3)},
        {("x",): np.ones(3)},
    ],
)
def test_everything_else_is_left_to_python(container: object) -> None:
    assert outcome(twinrun.compare, container, container) == outcome(one_by_one, container, container)


def test_a_container_that_holds_itself_is_left_to_python() -> None:
    own: dict = {"x": np.ones(2)}
    own["own"] = own
    assert listed(own) is None
    with pytest.raises(TwinrunError, match="contains itself"):
        twinrun.compare(own, own)


def test_fields_are_made_when_they_are_asked_for() -> None:
    a = {str(at): np.full(3, at) for at in range(50)}
    b = {name: x + (name in ("7", "20")) for name, x in a.items()}
    result = twinrun.compare(a, b)
    assert not result and "fields" not in vars(result)
    assert result.different == 6
    first = result.first
    assert first is not None and first.field == "7" and "fields" not in vars(result)
    assert len(result.fields) == 50 and result.fields is result.fields and result.fields[7] is first
    with pytest.raises(AttributeError):
        result.field  # noqa: B018


def test_threads_that_ask_at_once_get_one_list() -> None:
    a = {str(at): np.zeros(3) for at in range(100)}
    for _ in range(20):
        result = twinrun.compare(a, a)
        start = threading.Barrier(4)

        def fields(result: twinrun.Comparison = result, start: threading.Barrier = start) -> list:
            start.wait()
            return result.fields

        with ThreadPoolExecutor(4) as pool:
            lists = [made.result() for made in [pool.submit(fields) for _ in range(4)]]
        assert all(one is lists[0] for one in lists) and len(lists[0]) == 100


def test_a_result_is_copied_and_pickled_whole() -> None:
    a = {"x": np.arange(4.0), "y": np.arange(3)}
    result = twinrun.compare(a, {"x": np.arange(4.0) + 1, "y": np.arange(3)})
    for other in (pickle.loads(pickle.dumps(result)), copy.copy(result), copy.deepcopy(result)):
        assert facts(other) == facts(result)
    assert "<Comparison of" in repr(result)
    assert [f["field"] for f in dataclasses.asdict(result)["fields"]] == ["x", "y"]
    fewer = dataclasses.replace(result, fields=result.fields[1:])
    assert fewer.different == 0 and fewer.first is None


def test_arrays_are_not_kept_alive() -> None:
    a = {"x": np.arange(4.0), "y": {"z": np.zeros(5)}}
    b = {"x": np.arange(4.0) + 1, "y": {"z": np.zeros(5)}}
    references = [weakref.ref(x) for x in (a["x"], a["y"]["z"], b["x"])]
    result = twinrun.compare(a, b)
    assert [part.index.ravel().tolist() for part in result.differences()] == [[0, 1, 2, 3]]
    del a, b
    gc.collect()
    assert [reference() for reference in references] == [None] * 3
    with pytest.raises(TwinrunError, match="gone"):
        list(result.differences())
    assert len(result.fields) == 2


def test_names_that_only_one_side_has_are_errors() -> None:
    a, b = {"x": np.ones(2), "y": np.ones(2)}, {"x": np.ones(2), "z": np.ones(2)}
    with pytest.raises(Incomparable, match="'y'"):
        twinrun.compare(a, b)
    assert twinrun.compare(a, b, common=True).verdict == "same"


def test_a_field_beside_the_list_that_cannot_be_compared_is_reported() -> None:
    a = {"x": np.ones(2), "t": ["a", "b"], "y": np.ones(3)}
    b = {"x": np.ones(2), "t": ["a"], "y": np.zeros(3)}
    result = twinrun.compare(a, b, partial=True)
    assert [f.field for f in result.fields] == ["x", "y"] and len(result.problems) == 1
    assert result.verdict == one_by_one(a, b, partial=True).verdict


@pytest.mark.parametrize("lost", ["o0", "o1", "o2"])
def test_fields_keep_their_order_where_one_beside_the_list_has_no_result(lost: str) -> None:
    a = {"o0": ["a"], "x0": np.ones(2), "o1": ["b"], "x1": np.zeros(3), "o2": ["c"]}
    b = {**a, "x1": np.ones(3), lost: ["a", "b"]}
    result = twinrun.compare(a, b, partial=True)
    assert [f.field.removesuffix("@text") for f in result.fields] == [name for name in a if name != lost]
    assert len(result.problems) == 1 and result.first is not None and result.first.field == "x1"
    assert outcome(twinrun.compare, a, b, partial=True) == outcome(one_by_one, a, b, partial=True)


def test_an_interrupt_while_a_container_is_taken_is_one() -> None:
    class Value:
        def __array__(self, *_: object, **__: object) -> np.ndarray:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        twinrun.compare({"x": np.ones(2), "y": Value()}, {"x": np.ones(2), "y": Value()})


def test_arrays_in_a_container_that_was_made_are_opened_again() -> None:
    a = {"x": np.ones(3), "p": {"lr": 0.1, "betas": (0.9, 0.99)}}
    b = {"x": np.ones(3), "p": {"lr": 0.2, "betas": (0.9, 0.98)}}
    result = twinrun.compare(a, b)
    found = [(part.field.field, part.a.tolist()) for part in result.differences()]
    assert found == [("p.lr", [0.1]), ("p.betas", [0.99])]


def test_arrays_that_are_remembered_are_those_of_the_call() -> None:
    a = {"x": np.arange(4.0), "inner": {"y": np.arange(3), "lr": 0.5, "steps": 7, "on": True}}
    b = copy.deepcopy(a)
    b["x"][2] += 1
    first = twinrun.compare(a, b)
    assert [part.count for part in first.differences()] == [1]
    again = twinrun.compare(a, b)  # of the same arrays, which are held already
    b["x"] = np.full(4, 9.0)  # another array of that name
    other = twinrun.compare(a, b)
    assert other.different == 4 and [part.count for part in other.differences()] == [4]
    for gone in (first, again):  # the array that they compared
        with pytest.raises(TwinrunError, match="gone"):
            list(gone.differences())
    b["z"] = np.zeros(2)
    assert twinrun.compare(a, b, common=True).different == 4
    b.pop("z")
    b["inner"] = dict(reversed(b["inner"].items()))
    assert [part.count for part in twinrun.compare(a, b).differences()] == [4]
    a["inner"]["lr"] = 0.25
    result = twinrun.compare(a, b)
    assert {part.field.field for part in result.differences()} == {"x", "inner.lr"}


def test_what_is_remembered_keeps_no_array_and_is_bounded() -> None:
    for count in (1, 2, 40):
        states = [{f"x{at}": np.full(2, at) for at in range(count)} for _ in range(30)]
        results = [twinrun.compare(one, one) for one in states]
        assert all(results)
        references = [weakref.ref(x) for one in states for x in one.values()]
        del states, results
        gc.collect()
        assert not any(x() is not None for x in references)


def write_history(path: Path, steps: int, changed: dict[int, dict] | None = None, **kept: object) -> None:
    """A history of three fields; `changed` replaces some of them at some steps."""
    with twinrun.Run(path, atol=1e-3, **kept) as run:
        for step in range(steps):
            fields = {"x": np.arange(40.0) + step, "y": np.arange(3000, dtype="f4"), "ids": np.arange(7)}
            run.capture(step, {**fields, **(changed or {}).get(step, {})})


def test_steps_of_histories_are_compared_together(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(schedule, "_TOGETHER", 7)
    a, b = tmp_path / "a", tmp_path / "b"
    write_history(a, 23)
    write_history(b, 23, {5: {"x": np.arange(40.0)}, 20: {"y": np.full(3000, np.nan, "f4")}})
    result = twinrun.compare(a, b)
    assert [len(one) for one in result._found] == [21, 21, 21, 6] and result.first_divergence["step"] == 5
    for how in (
        {},
        {"atol": 1e-9},
        {"fields": ["x", "i*"]},
        {"leave_out": ["y"]},
        {"steps": "3:15"},
        {"use_metadata": False},
        {"method": "direct"},
        {
            "tolerances": Tolerances(
                (Rule(fields=("x",), steps="4:6", atol=100.0), Rule(fields=("y",), skip=True))
            )
        },
        {"tolerances": Tolerances((Rule(fields=("*",), steps=":10", skip=True),)), "partial": True},
    ):
        assert outcome(twinrun.compare, a, b, **how) == outcome(one_by_one, a, b, **how)


def test_a_step_of_other_fields_is_compared_alone(tmp_path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    write_history(a, 9, {4: {"z": np.ones(3)}})
    write_history(
        b, 9, {4: {"z": np.ones(4)}, 6: {"ids": np.arange(7)[::-1]}, 7: {"ids": np.arange(7)[::-1]}}
    )
    for how in ({"partial": True}, {}, {"common": True}, {"leave_out": ["z"]}):
        assert outcome(twinrun.compare, a, b, **how) == outcome(one_by_one, a, b, **how)
    notes = twinrun.compare(a, b, leave_out=["z"]).notes
    assert sum("another order" in note for note in notes) == 1 and any("step 6" in note for note in notes)


@pytest.mark.parametrize("at", [0, 3, 8])
def test_a_field_that_cannot_be_read_leaves_all_others(tmp_path, monkeypatch, at: int) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    for run in (a, b):
        write_history(run, 9, {2: {"x": np.arange(40.0) + (run == b)}})
    files = sorted(b.glob("*/*.twm"))
    assert len(files) == 9
    metadata = _core.Metadata(str(files[at]))
    [number] = [n for n, field in enumerate(metadata.fields) if field.name == "y"]
    tree = bytes(metadata.section(number, "tree"))
    content = bytearray(files[at].read_bytes())
    content[bytes(content).index(tree)] ^= 1
    files[at].write_bytes(content)
    alone: list[tuple] = []
    real = pairs.compare_entry

    def counted(request: object, match: schedule.StepMatch, x: FieldRef, *rest: object) -> object:
        alone.append((match.step, x.name))
        return real(request, match, x, *rest)

    monkeypatch.setattr(pairs, "compare_entry", counted)
    result = twinrun.compare(a, b, partial=True)
    assert result.verdict == "incomparable" and len(result.problems) == 1 and "'y'" in result.problems[0]
    assert alone == [(at, "y")]
    assert [(f.step, f.field) for f in result.fields] == [
        (step, name) for step in range(9) for name in ("x", "y", "ids") if (step, name) != (at, "y")
    ]
    assert [(f.step, f.field) for f in result.fields if not f.same] == [(2, "x")]
    monkeypatch.undo()
    assert outcome(twinrun.compare, a, b, partial=True) == outcome(one_by_one, a, b, partial=True)
    with pytest.raises(TwinrunError, match="'y'"):
        twinrun.compare(a, b)


def test_an_interrupt_leaves_the_steps_before_it(tmp_path, monkeypatch) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    write_history(a, 9)
    write_history(b, 9, {1: {"x": np.zeros(40)}})
    real = _core.compare_lists

    class Stopped:
        """Results of which those behind the fourth step did not come."""

        def __init__(self, results: _core.ListResults) -> None:
            self._results = results

        def __getattr__(self, name: str) -> object:
            return getattr(self._results, name)

        def __len__(self) -> int:
            return len(self._results)

        def take_interrupt(self) -> BaseException | None:
            return KeyboardInterrupt()

        @property
        def failed(self) -> list[int]:
            return list(range(13, 27))

    monkeypatch.setattr(_core, "compare_lists", lambda *asked: Stopped(real(*asked)))
    with pytest.raises(Interrupted) as interrupted:
        twinrun.compare(a, b)
    result = interrupted.value.comparison
    assert result.verdict == "incomparable" and "4 of 9 steps" in result.problems[0]
    assert [(f.step, f.field) for f in result.fields] == [(s, n) for s in range(4) for n in ("x", "y", "ids")]
    assert result.first_divergence["step"] == 1
