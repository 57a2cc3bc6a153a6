"""Comparison from C says what `twinrun.compare` says, fact by fact.

The example `examples/compare/compare.c` compares pairs of histories that are made at random: with missing steps, ranks and fields, other
types, shapes, orders and tolerances, with data and without, as files and as records. Its JSON must be the document of Python's
comparison. What C does not compare must be a problem: then the verdict is `incomparable`.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import in_options, run_of_ranks

import twinrun
from twinrun.report.document import document

PROGRAM = os.environ.get("TWINRUN_COMPARE_C", "")

pytestmark = pytest.mark.skipif(
    not os.path.exists(PROGRAM), reason="needs compare_c: make test builds it, or set TWINRUN_COMPARE_C"
)

NAMES = ("x", "v v", "it's", 'a "b"', "μ", "x@mask", "grid/rho")
TYPES = ("f4", "f8", "f2", "c8", "c16", "i1", "i4", "i8", "u1", "u8", "?")
SHAPES = ((7,), (3000,), (40, 50), (3, 1, 4), (1, 6), (), (0,), (2, 0))
# What C says of what it does not compare.
BEYOND = "this interface does not"


def compare_c(a: Path, b: Path, options: dict[str, Any]) -> tuple[int, dict | None, str]:
    """(exit status, document, error) of the C program."""
    flags: list[str] = []
    for name in ("atol", "rtol", "ulp"):
        if options.get(name) is not None:
            flags += [f"--{name}", repr(options[name])]
    flags += ["--nan-differs"] if not options.get("equal_nan", True) else []
    flags += ["--integers"] if options.get("tolerate_integers") else []
    flags += ["--common"] if options.get("common") else []
    flags += ["--direct"] if options.get("method") == "direct" else []
    done = subprocess.run(
        [PROGRAM, *flags, "--cpu", "--json", str(a), str(b)], capture_output=True, text=True, timeout=120
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


def without_times(facts: Any) -> Any:
    """Facts that are the same whenever they are found."""
    if isinstance(facts, dict):
        return {k: without_times(v) for k, v in facts.items() if k != "seconds"}
    return [without_times(v) for v in facts] if isinstance(facts, list) else facts


def without_fix(problem: str) -> str:
    """What is wrong, and where: options have other names in C."""
    return problem.partition("; ")[0]


# Where parts lie in global arrays, and which ranks hold an element, only Python says.
ONLY_PYTHON = ("global_shape", "global_offset", "first_ranks", "global_index", "ranks")


def without_places(document: dict) -> dict:
    first = document["first_divergence"]
    for said, names in ((first, ONLY_PYTHON), *((f, ONLY_PYTHON[:3]) for f in document["fields"])):
        for name in names if said is not None else ():
            said.pop(name, None)
    return document


def place(field: dict) -> tuple:
    return field["step"], field["rank"], field["field"]


def check_equal(a: Path, b: Path, **options: Any) -> str:
    """Compares with C and with Python. Returns the verdict of C, or 'error'."""
    status, found, error = compare_c(a, b, options)
    try:
        expected = json.loads(
            json.dumps(document(twinrun.compare(a, b, partial=True, device="cpu", **in_options(options))))
        )
    except twinrun.TwinrunError as said:
        assert status == 2 and found is None
        if BEYOND not in error:
            assert without_fix(str(said)) in error
        return "error"
    if found is None:  # nothing but what C does not compare
        assert status == 2 and BEYOND in error, error
        return "error"
    assert status == {"same": 0, "different": 1, "incomparable": 2}[found["verdict"]]
    found, expected = without_times(found), without_places(without_times(expected))
    of_c, of_python = ({place(f): f for f in d["fields"]} for d in (found, expected))
    assert set(of_c) <= set(of_python)
    assert {at: of_python[at] for at in of_c} == of_c
    if any(BEYOND in problem for problem in found["problems"]):
        assert found["verdict"] == "incomparable"
        assert all(
            any(repr(at[2]) in problem for problem in found["problems"]) for at in set(of_python) - set(of_c)
        )
        return "incomparable"
    assert list(of_c) == list(of_python)
    assert list(map(without_fix, found["problems"])) == list(map(without_fix, expected["problems"]))
    # Python looks for particles that only lie in another order.
    notes = [note for note in expected["notes"] if "order" not in note]
    assert list(map(without_fix, found["notes"])) == list(map(without_fix, notes))
    left_out = {"provenance", "fields", "problems", "notes", "error"}
    assert {k: v for k, v in found.items() if k not in left_out} == {
        k: v for k, v in expected.items() if k not in left_out
    }
    assert found["verdict"] == expected["verdict"]
    return found["verdict"]


# ---- histories at random -----------------------------------------------------------------------------------


class Maker:
    """Makes a pair of histories from random numbers."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def chance(self, of: float) -> bool:
        return bool(self.random.random() < of)

    def choice(self, of: Any) -> Any:
        return of[self.random.integers(len(of))]

    def array(self, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        if dtype == "?":
            return self.random.integers(0, 2, shape).astype(bool)
        if dtype[0] in "iu":
            return self.random.integers(0, 100, shape).astype(dtype)
        made = self.random.normal(size=shape) + (
            1j * self.random.normal(size=shape) if dtype[0] == "c" else 0
        )
        return np.array(made, dtype)

    def changed(self, x: np.ndarray) -> np.ndarray:
        """What another run has in its place."""
        how = self.choice(("same", "same", "noise", "one", "all", "nan", "inf"))
        y = np.array(x)
        if how == "same" or not y.size:
            return y
        if how == "noise" and y.dtype.kind in "fc":
            return np.array(y + y.dtype.type(1e-4) * self.random.normal(size=y.shape), y.dtype)
        at = np.unravel_index(self.random.integers(y.size), y.shape)
        if how in ("nan", "inf") and y.dtype.kind in "fc":
            y[at] = np.nan if how == "nan" else np.inf
            if self.chance(0.5):
                x[at] = y[at]
            return y
        if how == "all":
            return np.array(np.logical_not(y) if y.dtype.kind == "b" else y + y.dtype.type(1), y.dtype)
        y[at] = not y[at] if y.dtype.kind == "b" else y[at] + y.dtype.type(3)
        return y

    def fields(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """The fields of one place of both runs."""
        of_a: dict[str, np.ndarray] = {}
        of_b: dict[str, np.ndarray] = {}
        for name in self.random.permutation(NAMES)[: self.random.integers(1, 5)]:
            name = str(name)
            dtype = "?" if name.endswith("@mask") else self.choice(TYPES)
            x = self.array(dtype, self.choice(SHAPES))
            y = self.changed(x)
            if self.chance(0.05):
                y = self.array(self.choice(TYPES), x.shape)
            if self.chance(0.05):
                y = self.array(dtype, self.choice(SHAPES))
            if self.chance(0.3):
                x = np.asfortranarray(x)
                y = np.asfortranarray(y) if self.chance(0.9) else y
            if not self.chance(0.05):
                of_a[name] = x
            if not self.chance(0.05):
                of_b[name] = y
        if not (of_a and of_b):
            of_a["z"] = of_b["z"] = np.zeros(3)
        if self.chance(0.3):
            of_b = dict(reversed(of_b.items()))
        return of_a, of_b

    def settings(self) -> dict[str, Any]:
        made: dict[str, Any] = {
            "atol": self.choice((0.0, 1e-3, 1e-3)),
            "rtol": self.choice((0.0, 0.0, 1e-2)),
            "keep_data": self.chance(0.8),
            "digest": self.choice(("linear", "linear", "published")),
            "residue_bits": self.choice((4, 2, 0)),
        }
        return made | ({"rtol": 0.0} if made["digest"] == "published" else {})

    def pair(self, folder: Path) -> tuple[Path, Path]:
        of_a, of_b = self.settings(), self.settings()
        if self.chance(0.8):
            of_b |= {k: of_a[k] for k in of_a if k != "keep_data"}
        ranks = self.choice((1, 1, 2, 3))
        other = ranks if self.chance(0.85) else self.choice((1, 2, 3))
        if ranks == other == 1:
            for one in (of_a, of_b):
                if one["keep_data"] and self.chance(0.2):
                    one["record"] = "runs"
        a: list[dict] = [{} for _ in range(ranks)]
        b: list[dict] = [{} for _ in range(other)]
        for step in (0, 1, 5):
            for rank in range(max(ranks, other)):
                x, y = self.fields()
                if rank < ranks:
                    a[rank][step] = x
                if rank < other:
                    b[rank][step] = y
        for run in (a, b):
            for step in (0, 1, 5):
                if self.chance(0.1):  # of all ranks, or lost by one
                    lost = run if self.chance(0.7) else run[-1:]
                    for steps in lost:
                        del steps[step]
        run_of_ranks(folder / "a", a, **of_a)
        run_of_ranks(folder / "b", b, **of_b)
        return folder / "a", folder / "b"

    def options(self) -> dict[str, Any]:
        return {
            "atol": self.choice((None, None, None, 1e-3, 0.0)),
            "rtol": self.choice((None, None, None, 1e-2)),
            "ulp": self.choice((None, None, None, 0, 4)),
            "equal_nan": self.chance(0.8),
            "tolerate_integers": self.chance(0.2),
            "common": self.chance(0.3),
            "method": self.choice(("auto", "auto", "direct")),
        }


@given(st.integers(0, 2**40))
@settings(max_examples=75, deadline=None)
def test_random_pairs_of_histories(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    make = Maker(seed)
    a, b = make.pair(tmp_path_factory.mktemp("pair"))
    check_equal(a, b, **make.options())
    check_equal(a, a)


def test_every_verdict_is_met(tmp_path: Path) -> None:
    x = np.linspace(0, 1, 5000)
    run_of_ranks(tmp_path / "a", [{0: {"x": x}, 1: {"x": x}}], atol=1e-6)
    run_of_ranks(tmp_path / "b", [{0: {"x": x + 1e-7}, 1: {"x": x}}], atol=1e-6)
    run_of_ranks(tmp_path / "c", [{0: {"x": x}, 1: {"x": x + 1e-3}}], atol=1e-6)
    run_of_ranks(tmp_path / "d", [{1: {"x": x}}], atol=1e-6)
    run_of_ranks(tmp_path / "e", [{7: {"x": x}}], atol=1e-6)
    assert check_equal(tmp_path / "a", tmp_path / "b") == "same"
    assert check_equal(tmp_path / "a", tmp_path / "c") == "different"
    assert check_equal(tmp_path / "a", tmp_path / "d") == "incomparable"
    assert check_equal(tmp_path / "a", tmp_path / "d", common=True) == "same"
    assert check_equal(tmp_path / "a", tmp_path / "e") == "error"
    assert check_equal(tmp_path / "a", tmp_path / "e", common=True) == "error"


def test_arrays_that_ranks_cut_differently_are_incomparable(tmp_path: Path) -> None:
    x = np.arange(24.0).reshape(6, 4)
    for name, cuts in (("a", [(0, 3), (3, 6)]), ("b", [(0, 2), (2, 6)]), ("c", [(0, 2), (2, 4), (4, 6)])):
        run_of_ranks(
            tmp_path / name,
            [{1: {"x": x[low:high], "t": np.array([1.0])}} for low, high in cuts],
            places=[{"x": (x.shape, (low, 0))} for low, _ in cuts],
        )
    assert twinrun.compare(tmp_path / "a", tmp_path / "b").same
    assert check_equal(tmp_path / "a", tmp_path / "b") == "incomparable"
    status, found, error = compare_c(tmp_path / "a", tmp_path / "c", {})
    assert status == 2 and found is None and "'x'" in error and "twinrun compare" in error
    # The same parts are compared.
    assert check_equal(tmp_path / "a", tmp_path / "a") == "same"


def test_particles_lie_in_the_order_of_their_ids(tmp_path: Path) -> None:
    ids = np.array([5, 3, 9, 1])
    for name, order in (("a", [0, 1, 2, 3]), ("b", [2, 0, 3, 1])):
        fields = {"id": ids[order], "x": ids[order] * 0.5}
        run_of_ranks(tmp_path / name, [{1: fields}], ids={"id": "id", "x": "id"})
    assert check_equal(tmp_path / "a", tmp_path / "b") == "same"


def test_dates_and_texts_keep_their_meaning(tmp_path: Path) -> None:
    seconds = np.array([10, 20], "M8[s]")
    run_of_ranks(tmp_path / "a", [{1: {"t": seconds, "x": np.ones(2)}}])
    run_of_ranks(tmp_path / "b", [{1: {"t": seconds.view("M8[ms]"), "x": np.ones(2)}}])
    assert check_equal(tmp_path / "a", tmp_path / "b") == "incomparable"
    assert check_equal(tmp_path / "a", tmp_path / "a") == "same"


@pytest.mark.parametrize("record", [None, "runs", "tree"])
def test_a_difference_in_a_record_is_found(tmp_path: Path, record: str | None) -> None:
    x = np.arange(20000.0)
    run_of_ranks(tmp_path / "a", [{0: {"x": x}, 1: {"x": x}}], record=record)
    y = x.copy()
    y[12345] += 1
    run_of_ranks(tmp_path / "b", [{0: {"x": x}, 1: {"x": y}}], record="runs")
    assert check_equal(tmp_path / "a", tmp_path / "b") == "different"


@pytest.mark.parametrize("times", ["kept", "later", "earlier"])
@pytest.mark.parametrize("side", ["a", "b"])
@pytest.mark.parametrize("what", ["longer", "shorter", "empty", "other", "gone"])
def test_data_that_was_changed_is_not_compared(tmp_path: Path, what: str, side: str, times: str) -> None:
    for name in "ab":
        run_of_ranks(tmp_path / name, [{1: {"x": np.arange(5000.0)}}])
    data = next((tmp_path / side).glob("*/*.data"))
    before = data.stat()
    content = data.read_bytes()
    if what == "gone":
        data.unlink()
    else:
        changed = {"longer": content + b"zz", "shorter": content[:-8], "empty": b"", "other": content[::-1]}
        data.write_bytes(changed[what])
        if times != "later":
            os.utime(data, ns=(before.st_atime_ns, before.st_mtime_ns - (times == "earlier") * 10**9))
    for method in ("auto", "direct"):
        # Content that was changed with its times set back is met where it is read.
        verdict = check_equal(tmp_path / "a", tmp_path / "b", method=method)
        unseen = what == "other" and times != "later" and method == "auto"
        assert verdict in (("same", "error") if unseen else ("error", "different", "incomparable"))


@given(st.integers(0, 2**40))
@settings(max_examples=60, deadline=None)
def test_damaged_histories(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    make = Maker(seed)
    a, b = make.pair(tmp_path_factory.mktemp("pair"))
    files = sorted(p for side in (a, b) for p in side.rglob("*") if p.is_file())
    at = make.choice(files)
    content = bytearray(at.read_bytes())
    before = at.stat()
    how = make.choice(("flip", "cut", "grow", "empty", "gone"))
    if how == "flip" and content:
        content[make.random.integers(len(content))] ^= 1 << int(make.random.integers(8))
    elif how == "cut":
        del content[len(content) // 2 :]
    elif how == "grow":
        content += b"more"
    elif how == "empty":
        content.clear()
    if how == "gone":
        at.unlink()
    else:
        at.write_bytes(content)
    if how != "gone" and make.chance(0.5):
        os.utime(at, ns=(before.st_atime_ns, before.st_mtime_ns))
    status, found, error = compare_c(a, b, {})
    said = error if found is None else " ".join(found["problems"])
    try:
        verdict = twinrun.compare(a, b, partial=True, device="cpu").verdict
        expected = {"same": 0, "different": 1, "incomparable": 2}[verdict]
    except twinrun.TwinrunError:
        expected = 2
    assert status == expected or (status == 2 and BEYOND in said), (how, at.name, error)


def test_values_that_one_run_lacks(tmp_path: Path) -> None:
    """Python tells which. C compares such a field where both lack the same values."""
    plain, some = np.arange(5.0), np.ma.masked_array(np.arange(5.0), [0, 0, 1, 0, 0])
    for name, x in (
        ("a", plain),
        ("b", some),
        ("c", some),
        ("d", some + 1),
        ("e", np.ma.masked_array(plain, plain == 3)),
    ):
        run_of_ranks(tmp_path / name, [{1: {"x": x, "y": plain}}])
    assert check_equal(tmp_path / "b", tmp_path / "c") == "same"
    assert check_equal(tmp_path / "b", tmp_path / "d") == "different"
    for other in ("a", "e"):
        for pair in (("b", other), (other, "b")):
            a, b = (tmp_path / name for name in pair)
            assert check_equal(a, b) == "incomparable"
            assert twinrun.compare(a, b).verdict == "different"


def test_texts_that_one_run_lacks(tmp_path: Path) -> None:
    words = np.array(["u", "", "w"])
    for name, x in (("a", words), ("b", np.ma.masked_array(words, [False, True, False]))):
        run_of_ranks(tmp_path / name, [{1: {"x": x, "y": np.zeros(3)}}])
    for pair in (("a", "b"), ("b", "a")):
        a, b = (tmp_path / name for name in pair)
        for common in (False, True):
            assert check_equal(a, b, common=common) == "incomparable"
            assert twinrun.compare(a, b, common=common).verdict == "different"


def test_data_that_was_touched_is_read(tmp_path: Path) -> None:
    run_of_ranks(tmp_path / "a", [{1: {"x": np.arange(5000.0)}}])
    run_of_ranks(tmp_path / "b", [{1: {"x": np.arange(5000.0)}}])
    data = next((tmp_path / "b").glob("*/*.data"))
    os.utime(data, (4e9, 4e9))
    assert check_equal(tmp_path / "a", tmp_path / "b") == "same"
    content = bytearray(data.read_bytes())
    content[100] ^= 1
    data.write_bytes(content)
    os.utime(data, (4e9, 4e9))
    assert check_equal(tmp_path / "a", tmp_path / "b") == "error"
