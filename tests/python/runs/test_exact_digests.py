"""Exact digests of scalars that stand for themselves, beside those of tokens that earlier versions of metadata had."""

from pathlib import Path

import numpy as np
import pytest
from commands import command

import twinrun
from twinrun import _core, golden
from twinrun.errors import TwinrunError
from twinrun.golden import fields as golden_fields
from twinrun.runs.index import build, field_plan
from twinrun.runs.opening import open_subject

FLOATS = ["f2", "f4", "c8", "f8", "c16"]
INTEGERS = ["i8", "u8", "i4", "u4", "i2", "u2", "i1", "u1", "?"]
KINDS = FLOATS + INTEGERS
CELLS = {"f2": "binary32", "f4": "binary32", "c8": "binary32", "f8": "words", "c16": "words", "i8": "words",
         "u8": "words"}  # fmt: skip


def values(kind: str) -> np.ndarray:
    rng = np.random.default_rng(1)
    if kind in FLOATS:
        x = rng.normal(size=3000).astype(kind)
        x[5], x[6], x[7] = np.nan, np.inf, -0.0
        return x
    if kind == "?":
        return rng.integers(0, 2, 3000).astype(kind)
    x = rng.integers(0, 256, 3000 * np.dtype(kind).itemsize, np.uint8).view(kind)
    x[5], x[6], x[7] = np.iinfo(kind).max, np.iinfo(kind).min, 0
    return x


def changed(x: np.ndarray) -> np.ndarray:
    return ~x if x.dtype.kind == "b" else x + 1


EARLIER = Path(__file__).parents[2] / "golden" / "tokens"


def earlier_values() -> dict[str, np.ndarray]:
    """The arrays of which `tokens/exact` has the digests."""
    n = np.arange(3000)
    x = (n * 7919 % 1000) / 8 - 40
    return {
        "f8": x, "c16": x[:1500] + 1j * x[1500:], "i8": n * 7919 - 5, "i4": (n % 97).astype("i4"),
        "u1": (n % 251).astype("u1"), "mask": n % 3 == 0, "f4": x.astype("f4"),
    }  # fmt: skip


def earlier_particles(seed: int) -> dict[str, np.ndarray]:
    """Those of `tokens/particles_a` and `_b`, in another order."""
    ids = np.arange(5000)
    order = np.random.default_rng(seed).permutation(5000)
    return {"x": ((ids * 7919 % 1000) / 8)[order], "id": ids[order]}


def index_as_before(path: Path) -> None:
    """Metadata of a .npy file with exact digests of tokens, beside it."""
    subject = open_subject(path, {})
    with subject.open(subject.places[0]) as opened:
        refs = list(opened.values())
        build(f"{path}.twm", refs, [str(path)],
              lambda ref: field_plan(ref, [str(path)], atol=0.0, rtol=0.0, residue_bits=0, chunk_bytes=4096,
                                     digest="linear", format="npy", tokens=True))  # fmt: skip


@pytest.mark.parametrize("kind", FLOATS)
def test_equal_numbers_have_equal_digests(kind: str) -> None:
    x = values(kind)
    same = x.copy()
    scalar, bits = {"f2": ("f2", "u2"), "f8": ("f8", "u8"), "c16": ("f8", "u8")}.get(kind, ("f4", "u4"))
    sign = np.array(1, bits) << np.array(8 * np.dtype(bits).itemsize - 1, bits)
    same.view(bits)[np.isnan(same.view(scalar))] |= sign | np.array(1, bits)
    same[7] = 0
    a = twinrun.sketch({"x": x})
    assert a.compare(twinrun.sketch({"x": same})).verdict == "same"
    for at in (0, 5, 6, 7, x.size - 1):
        other = x.copy()
        other[at] = 1.5
        assert a.compare(twinrun.sketch({"x": other})).verdict == "different"
    swapped = x.copy()
    swapped[[100, 200]] = swapped[[200, 100]]
    assert a.compare(twinrun.sketch({"x": swapped})).verdict == "different"


@pytest.mark.parametrize("kind", INTEGERS)
def test_equal_integers_have_equal_digests(kind: str) -> None:
    x = values(kind)
    a = twinrun.sketch({"x": x})
    assert a.compare(twinrun.sketch({"x": x.copy()})).verdict == "same"
    for at in (0, 5, 6, 7, x.size - 1):
        other = x.copy()
        other[at] = not other[at] if kind == "?" else other[at] ^ np.array(1, kind)
        assert a.compare(twinrun.sketch({"x": other})).verdict == "different"
    # Beyond 2^53, where float64 takes neighbours for equal, and so far apart that only one half differs.
    if kind in ("i8", "u8"):
        for bit in range(64):
            other = x.copy()
            other.view("u8")[9] ^= np.uint64(1) << np.uint64(bit)
            assert a.compare(twinrun.sketch({"x": other})).verdict == "different"


@pytest.mark.parametrize("kind", KINDS)
def test_captured_facts(tmp_path: Path, kind: str) -> None:
    with twinrun.Run(tmp_path / "run", keep_data=False) as run:
        run.capture(1, {"x": values(kind), "d": np.arange(5.0), "n": np.arange(5, dtype="i4")})
    (file,) = (tmp_path / "run").glob("step-*/rank-00000.twm")
    facts = {f.name: f for f in _core.Metadata(str(file)).fields}
    assert [(facts[n].cells, facts[n].exact, facts[n].outdated) for n in "xdn"] == [
        (CELLS.get(kind, "integers"), True, False), ("words", True, False), ("integers", True, False)
    ]  # fmt: skip
    assert (facts["x"].nans, facts["x"].tokens) == (int(kind in FLOATS), 0)
    assert twinrun.verify(tmp_path / "run") == ([], 2)
    assert "exact, 0 bits" in " ".join(command("show", file).out.split())


@pytest.mark.parametrize("kind", KINDS)
def test_digests_of_earlier_versions(tmp_path: Path, kind: str) -> None:
    for name, x in (("a", values(kind)), ("b", values(kind)), ("c", changed(values(kind)))):
        np.save(tmp_path / f"{name}.npy", x)
    a, b, c = (tmp_path / f"{name}.npy" for name in "abc")
    for path in (a, b, c):
        index_as_before(path)
    # Among themselves they prove as before.
    assert twinrun.compare(a, b).verdict == "same" and twinrun.compare(a, c).verdict == "different"
    assert twinrun.compare(a, b).fields[0].method == "staged"
    # Beside those of now they say nothing, and the elements decide.
    assert twinrun.index(b)[0].fresh
    result = twinrun.compare(a, b)
    assert result.verdict == "same" and result.fields[0].method == "direct"
    assert "an earlier kind" in str(result.fields[0].reason)
    # Made again, they prove.
    assert twinrun.index(a)[0].fresh and not twinrun.index(a)[0].fresh
    assert twinrun.compare(a, b).fields[0].method == "staged"
    assert twinrun.compare(a, c).verdict == "different"


def test_golden_files_of_earlier_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [*FLOATS, "u1", "?"]  # wider integers have cells in golden files
    x = {kind: values(kind) for kind in kinds}
    with monkeypatch.context() as patched:
        patched.setattr(golden_fields, "field_plan", lambda *a, **k: field_plan(*a, **{**k, "tokens": True}))
        golden.save(x, tmp_path / "before", keep_values=0)
    (file,) = (tmp_path / "before").glob("*.twm")
    assert {f.cells for f in _core.Metadata(str(file)).fields} == {"tokens"}
    assert golden.check(tmp_path / "before", x).verdict == "same"
    for kind in kinds:
        other = {**x, kind: changed(x[kind])}
        found = golden.check(tmp_path / "before", other)
        assert found.verdict == "different" and [f.field for f in found.fields if f.verdict != "same"] == [
            kind
        ]


@pytest.mark.parametrize("size", [3000, 300_000])
def test_earlier_digests_alone_beside_data(tmp_path: Path, size: int) -> None:
    """Where one run has nothing but digests of an earlier kind, those of the other are made like them."""
    x = np.resize(values("f8"), size)
    for name, array in (("a", x), ("b", x), ("c", changed(x))):
        np.save(tmp_path / f"{name}.npy", array)
    a, b, c = (tmp_path / f"{name}.npy" for name in "abc")
    index_as_before(a)
    for path in (b, c):
        twinrun.index(path)
    both = twinrun.compare(a, b)
    assert both.verdict == "same"
    if size > 200_000:  # both runs' data is at hand: the earlier digests are made anew
        assert both.fields[0].method == "staged" and "built anew" in str(both.fields[0].reason)
    a.unlink()
    metadata = f"{a}.twm"
    for first, second in ((metadata, b), (b, metadata)):
        found = twinrun.compare(first, second)
        assert found.verdict == "same" and found.fields[0].method == "staged"
        assert "of an earlier kind: the other's were built on the fly" in str(found.fields[0].reason)
    assert twinrun.compare(metadata, c).verdict == "different"
    b.unlink()
    with pytest.raises(TwinrunError, match="one run's exact digests are of an earlier kind"):
        twinrun.compare(metadata, f"{b}.twm")
    assert "exact (an earlier kind)" in " ".join(command("show", metadata).out.split())


def test_earlier_history_beside_a_new_one(tmp_path: Path) -> None:
    with twinrun.Run(tmp_path / "new") as run:
        for step in (1, 2):
            run.capture(step, earlier_values())
    assert twinrun.compare(EARLIER / "exact", tmp_path / "new").verdict == "same"
    for name, array in earlier_values().items():
        with twinrun.Run(tmp_path / f"other_{name}") as run:
            run.capture(1, earlier_values())
            run.capture(2, {**earlier_values(), name: changed(array)})
        found = twinrun.compare(EARLIER / "exact", tmp_path / f"other_{name}")
        assert [(f.field, f.step) for f in found.fields if f.different] == [(name, 2)]


def test_earlier_history_as_a_reference(tmp_path: Path) -> None:
    with twinrun.Run(tmp_path / "same", reference=EARLIER / "exact", stop_on_divergence=True) as run:
        for step in (1, 2):
            assert run.capture(step, earlier_values()).divergence is None
    # Its digests are of the reference's kind.
    assert twinrun.compare(tmp_path / "same", EARLIER / "exact").verdict == "same"
    with twinrun.Run(tmp_path / "other", reference=EARLIER / "exact", stop_on_divergence=True) as run:
        other = {**earlier_values(), "i8": earlier_values()["i8"] + 1}
        found = run.capture(1, other).divergence
        assert found is not None and (found.field, found.fields, found.reason) == ("i8", 1, "")


def test_earlier_particles_by_id(tmp_path: Path) -> None:
    pair = EARLIER / "particles_a", EARLIER / "particles_b"
    found = twinrun.compare(*pair, key="id")
    assert found.verdict == "same" and {f.elements_read for f in found.fields} == {0}
    with twinrun.Run(tmp_path / "new") as run:
        run.capture(1, earlier_particles(3), ids={"x": "id", "id": "id"})
    again = twinrun.compare(tmp_path / "new", tmp_path / "new", key="id")
    assert again.verdict == "same" and {f.elements_read for f in again.fields} == {0}
