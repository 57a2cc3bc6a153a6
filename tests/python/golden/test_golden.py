"""Golden files: what they say of a run equals brute force, wherever they say it; what is damaged or missing is never the same."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from commands import check_error, command, load_json
from golden_checks import checked, hold_against_brute_force
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import brute_force, exceeds
from twinrun_spec import digest as spec
from twinrun_spec.metadata import verify

import twinrun
from twinrun import golden
from twinrun.golden.fields import _residues, values_of
from twinrun.golden.plan import digest_settings
from twinrun.golden.proof import SMALLEST_SUM, TOKEN_LIMIT, P, Rule, weights
from twinrun.golden.proof import _values as cells_of
from twinrun.golden.words import span_text

TIMES = settings(max_examples=80)


SPECIAL = [0.0, -0.0, 1.0, -1.0, math.nan, math.inf, -math.inf, 1e30, -1e30, 5e-324, -5e-324, 1e-310, 0.1, 3.0,
           1e-3, -1e-3, 65504.0, 2.0**24, -(2.0**53)]  # fmt: skip
TOLERANCES = [0.0, 1e-3, 1e-7, 0.37, 3.0, 2.0**-10, 4.0, 7.0, 1.75, 1e-300, 1e20, 0.5]


@TIMES
@given(
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from(["f2", "f4", "f8", "c8", "c16"]),
    atol=st.sampled_from(TOLERANCES),
    rtol=st.sampled_from(
        [0.0, 0.0, 0.0, 1e-3, 1e-6, 0.1, 1e-15, 2.0**-40, 1e-16, 1e-30, 1e-307, 1e-310, 5e-324]
    ),
    noise=st.sampled_from([0.0, 0.05, 0.5, 0.8, 1.0, 1.02, 1.1, 1.3, 2.0, 9.0, 1e3]),
    share=st.sampled_from([0.002, 0.1, 1.0]),
    size=st.sampled_from([1, 3, 700, 2500]),
    bits=st.sampled_from([4, 4, 4, 2, 0]),
    special=st.booleans(),
    scale=st.sampled_from([1.0, 1e-12, 1e12]),
)
def test_equals_brute_force_on_floats(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    dtype: str,
    atol: float,
    rtol: float,
    noise: float,
    share: float,
    size: int,
    bits: int,
    special: bool,
    scale: float,
) -> None:
    rng = np.random.default_rng(seed)
    d = np.dtype(dtype)
    n = size * (2 if d.kind == "c" else 1)
    with np.errstate(all="ignore"):
        base = rng.uniform(-4, 4, n) * scale
        if special:
            at = rng.integers(0, n, max(n // 20, 1))
            base[at] = rng.choice(SPECIAL, at.size)
        allowed = np.nan_to_num(atol + rtol * np.abs(base), posinf=1.0)
        moved = base + rng.uniform(-1, 1, n) * noise * allowed * (rng.random(n) < share)
        if special:
            at = rng.integers(0, n, max(n // 40, 1))
            moved[at] = rng.choice(SPECIAL, at.size)
        real = d if d.kind != "c" else np.dtype(f"f{d.itemsize // 2}")
        a, b = base.astype(real).view(d), moved.astype(real).view(d)
    folder = tmp_path_factory.mktemp("golden")
    hold_against_brute_force(a, b, checked(a, b, folder, bits, atol=atol, rtol=rtol))


@pytest.mark.parametrize("bits", [4, 2, 0])
@pytest.mark.parametrize("rtol", [0.0, 1e-3, 0.2])
@pytest.mark.parametrize("atol", [0.0, 1e-3, 1.0])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i8"])
def test_near_the_tolerance(tmp_path: Path, dtype: str, atol: float, rtol: float, bits: int) -> None:
    """Differences a little below and above it, in chunks whose cells are all known; both zeros, tiny values and NaN too."""
    rng = np.random.default_rng(11)
    for low, high in ((0.8, 1.2), (0.99, 1.01), (0.0, 2.0)):
        a = rng.uniform(-40, 40, 1200)
        a[::50] = rng.choice([0.0, -0.0, 1e-310, -1e-310, -1e-30, 1e-30, np.nan, 1e18], a[::50].size)
        noise = rng.uniform(low, high, a.size) * rng.choice([-1, 1], a.size)
        with np.errstate(all="ignore"):
            a = np.nan_to_num(a).astype(dtype) if dtype == "i8" else a.astype(dtype)
            b = a + noise * (atol + rtol * np.abs(a.astype(float)))
            b = np.round(b).astype(dtype) if dtype == "i8" else b.astype(dtype)
        if dtype != "i8":
            b[7::100] = a[7::100]
            b[10:20], a[10:20] = -1e-320, rng.choice([0.0, 1e-320, -atol, atol], 10).astype(dtype)
        field = checked(a, b, tmp_path / f"{high}", bits, atol=atol, rtol=rtol, tolerate_integers=True)
        hold_against_brute_force(a, b, field)


@TIMES
@given(
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from(["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "?"]),
    atol=st.sampled_from([0.0, 0.0, 1.0, 3.0, 7.5, 100.0, 0.25]),
    rtol=st.sampled_from([0.0, 0.0, 1e-3]),
    change=st.sampled_from([0, 1, 2, 7, 9, 1000]),
    wide=st.booleans(),
    tolerate=st.booleans(),
    bits=st.sampled_from([4, 2, 0]),
)
def test_equals_brute_force_on_integers(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    dtype: str,
    atol: float,
    rtol: float,
    change: int,
    wide: bool,
    tolerate: bool,
    bits: int,
) -> None:
    rng = np.random.default_rng(seed)
    d = np.dtype(dtype)
    n = 3000
    if d.kind == "b":
        a = rng.random(n) < 0.5
        b = a ^ (rng.random(n) < change / 1000)
    else:
        info = np.iinfo(d)
        low, high = (info.min, info.max) if wide else (0, 100)
        a = rng.integers(low, high, n, dtype=d, endpoint=True)
        step = rng.integers(0, change + 1, n) * (rng.random(n) < 0.01)
        b = (a.astype(object) + step).astype(object)
        b = np.array([min(v, info.max) for v in b.tolist()], dtype=d)
    folder = tmp_path_factory.mktemp("golden")
    field = checked(a, b, folder, bits, atol=atol, rtol=rtol, tolerate_integers=tolerate)
    assert tolerate or (field.atol, field.rtol) == (0.0, 0.0)
    hold_against_brute_force(a, b, field)


@settings(max_examples=150)
@given(
    seed=st.integers(0, 2**32 - 1),
    atol=st.floats(1e-30, 1e30),
    rtol=st.sampled_from([0.0, 1e-3, 1e-6, 0.05]),
    bits=st.sampled_from([2, 4]),
    dtype=st.sampled_from(["f32", "f64"]),
)
@example(seed=0, atol=7.5, rtol=0.0, bits=4, dtype="f64")
@example(seed=0, atol=2.0**-20, rtol=0.0, bits=2, dtype="f32")
def test_cells_are_those_of_the_specification_and_few(
    seed: int, atol: float, rtol: float, bits: int, dtype: str
) -> None:
    """Cells as the independent reader makes them; within the tolerance of a value lie no more than residues can tell."""
    wide_atol, wide_rtol, kept = digest_settings(dtype, atol, rtol, bits)
    of_spec = spec.rule_for(wide_atol, wide_rtol, kept)
    rule = Rule(of_spec.kind, kept, of_spec.fine_exponent, of_spec.key_origin)
    rng = np.random.default_rng(seed)
    x = np.concatenate([rng.normal(size=60) * atol * 10.0 ** rng.integers(-3, 6, 60), SPECIAL])
    with np.errstate(over="ignore"):
        x = x.astype({"f32": np.float32, "f64": np.float64}[dtype])
    v = cells_of(x, rule, atol, rtol)
    for i, value in enumerate(x.tolist()):
        want = spec.cell(value, of_spec)
        assert bool(v.token[i]) == want.is_token
        assert want.is_token or int(v.cell[i]) == want.value
    assert ((v.high - v.low + 1)[~v.token] <= 1 << kept).all()
    assert v.complete[~v.token & (np.abs(x) > 1e-200)].all() or rtol > 0


def test_digests_of_small_numbers_are_those_of_the_specification() -> None:
    assert (P, TOKEN_LIMIT, SMALLEST_SUM) == (spec.P, spec.TOKEN_LIMIT, spec.SMALLEST_SUM)
    for scalars_in_chunk, block in ((2048, 1024), (1500, 1024), (512, 512), (1, 1024), (4096, 512)):
        values = [(i * 7) % 31 - 15 for i in range(scalars_in_chunk)]
        blocks = [
            spec.block_digest([spec.Cell(v) for v in values[at : at + block]])
            for at in range(0, scalars_in_chunk, block)
        ]
        mine = sum(w * v for w, v in zip(weights(scalars_in_chunk, block), values, strict=True)) % spec.P
        assert mine == spec.horner(blocks)


@pytest.mark.parametrize(
    ("bits", "scalars_in_block"), [(4, 1024), (2, 1024), (4, 512), (4, 4096), (2, 2048), (2, 512)]
)
def test_residues_are_unpacked_as_the_specification_packs_them(bits: int, scalars_in_block: int) -> None:
    values = random.Random(bits).choices(range(1 << bits), k=2 * scalars_in_block - 5)
    lines = b"".join(
        spec.residue_lines(values[at : at + scalars_in_block], bits)
        for at in range(0, len(values), scalars_in_block)
    )
    unpacked = _residues(np.frombuffer(lines, np.uint8), len(values), scalars_in_block, bits)
    assert unpacked.tolist() == values


def test_values_of_every_type() -> None:
    assert values_of(np.array([0x3F80, 0xC000], np.uint16).tobytes(), "bf16").tolist() == [1.0, -2.0]
    assert values_of(bytes([0, 1, 7]), "bool").tolist() == [0, 1, 1]
    assert values_of(np.array([1 + 2j], np.complex64).tobytes(), "c64").tolist() == [1.0, 2.0]


@TIMES
@given(
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from(["f2", "f4", "f8", "c8", "i1", "i4", "u2", "i8"]),
    atol=st.one_of(st.just(0.0), st.floats(-320, 300).map(lambda e: 10.0**e), st.floats(0.01, 100)),
    rtol=st.one_of(st.just(0.0), st.floats(-17, 2).map(lambda e: 10.0**e), st.floats(1e-4, 0.5)),
    bits=st.sampled_from([4, 2, 0]),
    noise=st.sampled_from([0.0, 0.3, 1.5, 40.0]),
)
def test_an_unchanged_run_agrees_whatever_the_tolerance(
    tmp_path_factory: pytest.TempPathFactory, seed, dtype, atol, rtol, bits, noise
) -> None:
    rng = np.random.default_rng(seed)
    d = np.dtype(dtype)
    with np.errstate(all="ignore"):
        if d.kind in "iu":
            top = np.iinfo(d).max
            a = rng.integers(0, top, 1500, dtype=d)
            b = np.minimum(a.astype(object) + rng.integers(0, 3, a.size), top).astype(d)
        else:
            real = np.dtype("f4") if d.kind == "c" else d
            base = rng.normal(size=3000) * 10.0 ** rng.choice([0, 1, 4])
            moved = base + np.nan_to_num(noise * rng.uniform(-1, 1, base.size) * (atol + rtol * np.abs(base)))
            a, b = base.astype(real).view(d), moved.astype(real).view(d)
    folder = tmp_path_factory.mktemp("golden")
    field = checked(a, a, folder, bits, atol=atol, rtol=rtol, tolerate_integers=True)
    assert field.verdict == "same", (field.undecided, field.residue_bits)
    result = golden.check(folder / "golden", {"x": b}, most_listed=10**6)
    hold_against_brute_force(a, b, result.fields[0])


def test_four_bits_are_kept_where_two_prove_nothing(tmp_path: Path) -> None:
    a = np.linspace(1, 2, 20_000)
    for at, (how, bits) in enumerate([({"rtol": 1e-3}, 4), ({"atol": 0.8}, 4), ({"atol": 1.2}, 2)]):
        field = checked(a, a, tmp_path / str(at), 2, **how)
        assert (field.verdict, field.residue_bits) == ("same", bits)


@pytest.mark.parametrize("atol", [1e-6, 2.0**-10, 3e-3, 7.5, 0.9, 1.75])
@pytest.mark.parametrize("rtol", [0.0, 1e-4])
def test_noise_below_the_provable_share_never_alarms(tmp_path: Path, atol: float, rtol: float) -> None:
    """With 4 bits cells are at most atol / 3.75 wide: |a-b| <= (1 - 1 / 3.75) atol is always proven. Relative: a half."""
    rng = np.random.default_rng(3)
    a = rng.uniform(-1e3, 1e3, 40_000)
    noise = rng.uniform(-1, 1, a.size)
    noise[::3] = np.sign(noise[::3])
    share = 0.733 if rtol == 0 else 0.45
    b = a + noise * share * (atol + rtol * np.abs(a) * 0.999)
    field = checked(a, b, tmp_path, atol=atol, rtol=rtol)
    assert field.verdict == "same"
    assert rtol > 0 or field.at_most <= atol * (1 + 1e-12)


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i4", "i8", "u2"])
@pytest.mark.parametrize("rtol", [0.0, 1e-3])
def test_gross_differences_are_proven_and_counted_from_below(tmp_path: Path, dtype: str, rtol: float) -> None:
    rng = np.random.default_rng(4)
    a = (rng.normal(size=9_000) * 100).astype(dtype)
    b = (rng.normal(size=9_000) * 100).astype(dtype)
    field = checked(a, b, tmp_path, atol=1e-3, rtol=rtol)
    assert field.verdict == "different" and field.chunks_different == field.chunks
    hold_against_brute_force(a, b, field)


def test_cells_apart_are_exact(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    a = rng.normal(size=(70, 90))
    b = a.copy()
    b[3, 7] += 0.0131
    b[60, 1] -= 4.0
    b[60, 2:20] += rng.uniform(-1e-3, 1e-3, 18)
    field = checked(a, b, tmp_path, atol=1e-3)
    assert {(3, 7), (60, 1)} <= {e.index for e in field.listed if e.verdict == "different"}
    assert field.different == 2 and field.different_is_exact
    for e in field.listed:
        apart = math.floor(Fraction(a[e.index]) / Fraction(field.cell)) - math.floor(
            Fraction(b[e.index]) / Fraction(field.cell)
        )
        assert e.cells == apart
    assert any(s.located for s in field.spans)


def test_several_outliers_in_a_chunk_are_a_lower_bound(tmp_path: Path) -> None:
    a = np.zeros(1024)
    b = a.copy()
    b[[5, 300]] = 1.0
    field = checked(a, b, tmp_path, atol=1e-3)
    assert field.verdict == "different" and not field.different_is_exact
    assert 1 <= field.different <= 2
    assert [(s.first, s.last, s.exact) for s in field.spans] == [(0, 511, False)]


def test_without_residues_only_chunks_are_named(tmp_path: Path) -> None:
    a = np.linspace(0, 1, 5000, dtype=np.float32)
    b = a.copy()
    b[3000] += 1
    field = checked(a, b, tmp_path, bits=0, atol=1e-3)
    assert field.verdict == "undecided" and not field.listed
    assert [(s.first, s.last) for s in field.spans] == [(2048, 3071)]
    exact = checked(a, b, tmp_path / "exact", bits=0)
    assert exact.verdict == "different" and exact.spans[0].different == 1
    assert checked(a, a.copy(), tmp_path / "same", bits=0, atol=1e-3).verdict == "same"


@pytest.mark.parametrize(("bits", "most"), [(4, 0.13), (2, 0.067), (0, 0.004)])
def test_sizes(tmp_path: Path, bits: int, most: float) -> None:
    a = np.random.default_rng(6).normal(size=250_000).astype(np.float32)
    facts = golden.save({"x": a}, tmp_path / "golden", atol=1e-5, residue_bits=bits)
    on_disk = sum(f.stat().st_size for f in (tmp_path / "golden").iterdir())
    assert facts.bytes == on_disk and facts.data_bytes == 1_000_000
    assert on_disk <= most * 1_000_000


def test_equal_runs_make_equal_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the layout in memory, the threads, the backend and the machine's load: diffs in a repository are calm."""
    a = np.random.default_rng(7).normal(size=(300, 200)).astype(np.float32)
    padded = np.zeros((300, 400), np.float32)
    padded[:, ::2] = a
    golden.save({"x": a}, tmp_path / "1", atol=1e-5)
    golden.save({"x": padded[:, ::2]}, tmp_path / "2", atol=1e-5, threads=1, memory=1 << 20)
    golden.save({"x": a.astype(">f4")}, tmp_path / "3", atol=1e-5)
    np.save(tmp_path / "x.npy", a.astype(">f4"))
    monkeypatch.setenv("TWINRUN_BACKEND", "portable")
    assert (
        command("golden", "save", tmp_path / "x.npy", "-o", tmp_path / "4", "--atol", "1e-5", "-q").status
        == 0
    )
    files = [{f.name: f.read_bytes() for f in (tmp_path / n).iterdir()} for n in "123"]
    assert files[0] == files[1] == files[2]
    assert (tmp_path / "4" / "rank_0.twm").read_bytes() == files[0]["rank_0.twm"]


def test_the_independent_reader_finds_digests_of_the_data(tmp_path: Path) -> None:
    a, c = np.random.default_rng(8).normal(size=6000).astype(np.float32), np.arange(900) + 1j
    golden.save({"a": a, "c": c, "i": np.arange(50)}, tmp_path / "golden", atol=1e-5)
    file = tmp_path / "golden" / "rank_0.twm"
    elements = {"a": a.tobytes(), "c": c.tobytes(), "i": np.arange(50).tobytes()}
    assert verify(file, elements) == []
    assert verify(file, {**elements, "i": np.arange(1, 51).tobytes()}) != []


def test_same(runs: Path) -> None:
    done = command("golden", "check", runs / "golden", runs / "noisy")
    assert (done.status, done.err) == (0, "")
    assert done.last.startswith("same: 2 fields, 2 steps, 7000 elements")


def test_different(runs: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = command("golden", "check", runs / "golden", runs / "parted", "--json", report)
    assert done.status == 1
    assert done.last.startswith("different: first at step 20, x[3, 7] = ")
    d = load_json(report.read_text())
    assert (d["verdict"], d["status"], d["different"]) == ("different", 1, 1)
    assert d["first_divergence"]["index"] == [3, 7] and d["first_divergence"]["step"] == 20


def test_what_cannot_be_told_counts_as_different(runs: Path) -> None:
    done = command("golden", "check", runs / "golden", runs / "edge")
    assert done.status == 1
    assert "undecided within one cell" in done.last and "--undecided pass" in done.last
    done = command("golden", "check", runs / "golden", runs / "edge", "--undecided", "pass")
    assert done.status == 0 and "passes, as requested" in done.last


def test_data_is_not_needed_but_the_files_are(runs: Path, tmp_path: Path) -> None:
    check_error(command("golden", "check", runs / "nowhere", runs / "a"), "no such folder")
    check_error(command("golden", "check", runs / "golden", runs / "nowhere"), "no such file or folder")
    check_error(command("golden", "check", runs / "a", runs / "a"), "golden.json: no such file")


def not_compared(golden_folder: Path, run: object, *said: str) -> None:
    """Status 2 by the API, in JSON and in JUnit, though everything else is compared."""
    result = golden.check(golden_folder, run)
    assert (result.verdict, result.status, result.same) == ("incomparable", 2, False)
    text = "\n".join(f"{p.place()}: {p.text}" for p in result.problems)
    for s in said:
        assert s in text, text


def test_missing_and_extra_things_are_not_the_same(tmp_path: Path) -> None:
    x, y = np.arange(10.0), np.arange(20.0)
    golden.save({"x": x, "y": y}, tmp_path / "golden", atol=1e-3)
    assert golden.check(tmp_path / "golden", {"y": y, "x": x}).same
    not_compared(tmp_path / "golden", {"x": x}, "y: not in")
    not_compared(tmp_path / "golden", {"x": x, "y": y, "z": x}, "z: not in")
    not_compared(tmp_path / "golden", {"x": x, "y": y[:19]}, "shape [20]", "[19]")
    not_compared(tmp_path / "golden", {"x": x, "y": y.astype(np.float32)}, "f64 in the golden files, f32")
    not_compared(tmp_path / "golden", {"x": x, "y": y.reshape(4, 5)}, "shape")
    assert golden.check(tmp_path / "golden", {"x": x}, fields=["x"]).same
    assert golden.check(tmp_path / "golden", {"x": x}, fields="nothing").status == 2
    golden.save({"x": x, "y": y}, tmp_path / "only", fields=["x"])
    assert golden.check(tmp_path / "only", {"x": x, "y": y}).same  # y was left out on purpose
    square = np.arange(12.0).reshape(3, 4)
    golden.save({"x": square}, tmp_path / "rows")
    assert golden.check(
        tmp_path / "rows", {"x": np.asfortranarray(square)}
    ).same  # the same elements, stored otherwise


def test_missing_and_extra_steps(runs: Path, tmp_path: Path) -> None:
    with twinrun.Run(tmp_path / "short", atol=1e-6) as run:
        run.capture(10, {"x": np.zeros((50, 60)), "id": np.arange(500)})
    not_compared(runs / "golden", tmp_path / "short", "step 20, rank 0: not in")
    golden.save(runs / "a", tmp_path / "ten", steps="10")
    assert golden.check(tmp_path / "ten", runs / "noisy").same
    golden.save(tmp_path / "short", tmp_path / "of-short")
    not_compared(tmp_path / "of-short", runs / "a", "step 20, rank 0: not in")
    done = command("golden", "check", tmp_path / "of-short", runs / "a")
    assert done.status == 2 and done.last.startswith("could not compare: step 20: not in")
    assert "; different: step 10, x[0, " in done.last


def test_only_metadata_at_hand(tmp_path: Path) -> None:
    with twinrun.Run(tmp_path / "digests", atol=1e-6, keep_data=False) as run:
        run.capture(1, {"x": np.arange(9.0)})
    check_error(
        command("golden", "save", tmp_path / "digests", "-o", tmp_path / "golden"),
        "only its metadata is available",
    )
    assert not (tmp_path / "golden").exists()


def test_files_and_folders(tmp_path: Path) -> None:
    """One array in a file is the array, whatever the file's name; folders have their fields by name."""
    a = np.arange(1000.0)
    np.save(tmp_path / "one.npy", a)
    np.save(tmp_path / "other.npy", a + 1e-9)
    assert command("golden", "save", tmp_path / "one.npy", "-o", tmp_path / "g", "--atol", "1e-6").status == 0
    assert command("golden", "check", tmp_path / "g", tmp_path / "other.npy").status == 0
    (tmp_path / "raw.bin").write_bytes((a + 1).tobytes())
    options = ("--dtype", "f64", "--shape", "1000", "--format", "raw")
    assert command("golden", "check", tmp_path / "g", tmp_path / "raw.bin", *options).status == 1


def test_saving_again_replaces(tmp_path: Path, runs: Path) -> None:
    target = tmp_path / "golden"
    golden.save(runs / "a", target)
    golden.save({"x": np.arange(3.0)}, target)
    assert sorted(f.name for f in target.iterdir()) == ["golden.json", "rank_0.twm", "rank_0.twv"]
    assert golden.check(target, {"x": np.arange(3.0)}).same
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious").write_text("x")
    check_error(command("golden", "save", runs / "a", "-o", tmp_path / "other"), "with other files in it")
    before = {f.name: f.read_bytes() for f in target.iterdir()}
    assert command("golden", "save", runs / "a", "-o", target, "--field", "nothing").status == 2
    assert {f.name: f.read_bytes() for f in target.iterdir()} == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["golden", "other"]
    # What no longer says that it is a manifest may be anybody's; one that does is replaced, whatever else is wrong with it. What it then
    # does not list stays.
    (target / "golden.json").write_text("<<<<<<< a conflict")
    check_error(command("golden", "save", runs / "a", "-o", target), "with other files in it")
    (target / "golden.json").write_text('{"format": "twinrun golden"}')
    (target / "README.md").write_text("kept")
    golden.save(runs / "a", target, steps="10")
    assert golden.check(target, runs / "noisy").same
    assert sorted(f.name for f in target.iterdir()) == [
        "README.md",
        "golden.json",
        "rank_0.twm",
        "rank_0.twv",
        "step_10_rank_0.twm",
        "step_10_rank_0.twv",
    ]


def test_tolerances_of_single_fields(tmp_path: Path) -> None:
    x = np.linspace(0, 1, 100)
    own = {"loose": (1e-2, 0.0), "strict": (0.0, 0.0)}
    golden.save(
        {"loose": x, "strict": x, "common": x},
        tmp_path / "g",
        atol=1e-6,
        tolerances=lambda step, name: own.get(name),
    )
    result = golden.check(tmp_path / "g", {"loose": x + 1e-3, "strict": x, "common": x + 1e-7})
    assert [f.atol for f in result.fields] == [1e-2, 0.0, 1e-6] and result.same
    assert golden.check(tmp_path / "g", {"loose": x, "strict": x + 1e-15, "common": x}).different >= 1


def test_exceeds_is_what_is_checked() -> None:
    assert exceeds(1.0, 1.5, 0.25, 0.0) and not exceeds(1.0, 1.25, 0.25, 0.0)


def test_what_is_listed_is_capped_and_counted(tmp_path: Path) -> None:
    a = np.arange(40_000, dtype=np.int32)
    golden.save({"x": a}, tmp_path / "golden", chunk_bytes=4096)
    (field,) = golden.check(tmp_path / "golden", {"x": a + 1}, most_listed=7).fields
    assert (field.different, field.different_is_exact) == (40_000, True)
    assert (len(field.listed), field.listed_left_out) == (7, 39_993)
    assert (len(field.spans), field.spans_left_out) == (7, field.chunks - 7)
    assert {e.cells for e in field.listed} == {-1}


def test_rules_by_field(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(
        '[[tolerance]]\nfield = "x"\natol = 1e-3\n[[tolerance]]\nfield = "timer*"\nskip = true\n'
        '[[tolerance]]\nfield = "*"\natol = 0.0\n'
    )
    x = np.linspace(0, 1, 5000)
    for name, shift in (("a", 0.0), ("near", 3e-4), ("far", 2e-3)):
        np.savez(tmp_path / f"{name}.npz", x=x + shift, y=x, timer_total=x * 3 + shift * 99)
    done = command("golden", "save", tmp_path / "a.npz", "-o", tmp_path / "g", "--tolerances", rules)
    assert done.status == 0 and "left out on request: timer_total" in done.out
    assert command("golden", "check", tmp_path / "g", tmp_path / "near.npz").status == 0
    assert command("golden", "check", tmp_path / "g", tmp_path / "far.npz").status == 1
    # A field that is new, and that the rules would leave out, is nothing to check.
    np.savez(tmp_path / "more.npz", x=x, y=x, timer_total=x, timer_new=x)
    assert command("golden", "check", tmp_path / "g", tmp_path / "more.npz").status == 0
    rules.write_text('[[tolerance]]\nfield = "x"\nulp = 4\n')
    save = ("golden", "save", tmp_path / "a.npz", "-o", tmp_path / "h", "--tolerances", rules)
    refused = command(*save, "--keep-values", 1000)
    assert refused.status == 2 and "ulp needs values" in refused.err and "--keep-values 40000" in refused.err
    assert not (tmp_path / "h").exists() and command(*save).status == 0


def test_rules_leave_out_what_they_say_and_nothing_else(tmp_path: Path) -> None:
    """A rule for some steps leaves the others in, and an earlier rule holds against a later one that leaves out."""
    rules = tmp_path / "rules.toml"
    rules.write_text(
        '[[tolerance]]\nfield = "timer/total"\natol = 1.0\n[[tolerance]]\nfield = "timer/*"\nskip = true\n'
        '[[tolerance]]\nfield = "x"\nsteps = "2:"\nskip = true\n'
    )
    x = np.linspace(0, 1, 5000)
    for name, step, shifted in (
        ("a", 0, ""),
        ("x1", 1, "x"),
        ("x2", 2, "x"),
        ("total", 1, "timer/total"),
        ("part", 1, "timer/a"),
    ):
        with twinrun.Run(tmp_path / name) as run:
            for at in (1, 2):
                fields = {"x": x.copy(), "y": x, "timer/total": x.copy(), "timer/a": x.copy()}
                if at == step:
                    fields[shifted] += 5
                run.capture(at, fields)
    assert command("golden", "save", tmp_path / "a", "-o", tmp_path / "g", "--tolerances", rules).status == 0
    for name, status in (("a", 0), ("x1", 1), ("x2", 0), ("total", 1), ("part", 0)):
        done = command("golden", "check", tmp_path / "g", tmp_path / name)
        assert done.status == status, (name, done)
        compared = command("compare", tmp_path / "a", tmp_path / name, "--tolerances", rules)
        assert compared.status == status, (name, compared)


def test_a_difference_is_told_however_little_is_listed(tmp_path: Path) -> None:
    """Of a chunk whose elements are not known, behind others that are undecided."""
    a = np.full(3072, 1e-4, np.float32)
    golden.save(a, tmp_path / "g", atol=1e-3, chunk_bytes=4096, keep_values=0)
    b = a.copy()
    b[5] += np.float32(1e-3)
    b[1024:1600:3] += 7
    np.save(tmp_path / "b.npy", b)
    options = ["--list", 1, "--json", tmp_path / "j.json", "--junit", tmp_path / "j.xml", "--github"]
    done = command("golden", "check", tmp_path / "g", tmp_path / "b.npy", *options)
    assert done.status == 1 and "\ndifferent: at least 1 of array[1024] to array[2047]" in done.out
    document = load_json((tmp_path / "j.json").read_text())
    assert document["first_divergence"]["verdict"] == "different"
    assert document["first_divergence"]["index"] is None  # the listed one is undecided
    # Of elements, too: the first that differs is listed, whatever stood before it.
    b[1024:] = a[1024:]
    b[2000] += 7
    (field,) = golden.check(tmp_path / "g", b, most_listed=1).fields
    assert field.first.index == (2000,) and field.first.verdict == "different"
    assert [s.verdict for s in field.spans] == ["different"]
    assert (len(field.listed), field.listed_left_out, field.spans_left_out) == (1, 1, 1)


@pytest.mark.parametrize("rtol", [5e-324, 1e-310, 2.0**-1022, 1e-300, 1e-30, 1e-17])
@pytest.mark.parametrize("atol", [0.0, 5e-324, 1e-310, 1e-3, 1.0, 1e300])
def test_tolerances_of_every_size_are_taken_everywhere(tmp_path: Path, atol: float, rtol: float) -> None:
    """Also where atol / rtol passes what numbers hold: compare, index, capture and golden files agree with exact arithmetic."""
    a = np.array([1.0, -2.0, 3.0, 1e-310, 0.0, 1e300])
    b = a + np.array([0.0, 0.5, 4.0, 1e-311, 5e-324, 0.0])
    truth = len(brute_force(a, b, atol, rtol)["different"])
    for method in ("direct", "staged"):
        assert (
            twinrun.compare(
                a, b, atol=atol, rtol=rtol, options=twinrun.CompareOptions(method=method)
            ).different
            == truth
        )
    for name, x in (("a", a), ("b", b)):
        np.save(tmp_path / f"{name}.npy", x)
        with twinrun.Run(tmp_path / f"run-{name}", atol=atol, rtol=rtol) as run:
            run.capture(1, {"x": x})
        twinrun.index(tmp_path / f"{name}.npy", atol=atol, rtol=rtol)
    assert twinrun.compare(tmp_path / "a.npy", tmp_path / "b.npy").different == truth
    assert twinrun.compare(tmp_path / "run-a", tmp_path / "run-b").different == truth
    for bits in (4, 2, 0):
        hold_against_brute_force(a, b, checked(a, b, tmp_path / str(bits), bits, atol=atol, rtol=rtol))
        same = checked(a, a, tmp_path / f"same-{bits}", bits, atol=atol, rtol=rtol)
        assert same.verdict != "different"


def test_a_tiny_relative_part_costs_golden_files_nothing(tmp_path: Path) -> None:
    """atol decides, and does for 1e-310 what it does for 0."""
    a = np.linspace(0, 1000, 5000)
    for rtol in (1e-310, 1e-30):
        near, far = a.copy(), a.copy()
        near[7] += 0.5
        far[7] += 3.5
        assert checked(a, near, tmp_path / f"near-{rtol}", atol=1.0, rtol=rtol).verdict == "same"
        field = checked(a, far, tmp_path / f"far-{rtol}", atol=1.0, rtol=rtol)
        assert (field.verdict, field.different, field.different_is_exact) == ("different", 1, True)


def test_elements_that_cannot_be_told_are_not_counted_as_agreeing(tmp_path: Path) -> None:
    a = np.linspace(0, 1, 500)
    b = a.copy()
    b[3] += 0.1
    b[400] += 0.01 * 1.01  # within a cell of the tolerance
    field = checked(a, b, tmp_path, atol=0.01)
    assert field.different == 1 and field.undecided == 1 and not field.different_is_exact
    (span,) = field.spans
    assert (span.different, span.undecided, span.exact) == (1, 1, True)
    assert span_text(span, field) == "at least 1 of x[0] to x[499] differs"
    field = checked(a, np.where(np.arange(500) == 400, a, b), tmp_path / "other", atol=0.01)
    assert (field.different, field.undecided, field.different_is_exact) == (1, 0, True)


@pytest.mark.parametrize("quiet", [(), ("-q",), ("--json", "-"), ("-q", "--github")])
def test_what_could_not_be_compared_is_on_stderr(tmp_path: Path, quiet: tuple[str, ...]) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros(3), y=np.zeros(3))
    np.savez(tmp_path / "b.npz", x=np.zeros(3), z=np.zeros(3))
    golden.save(tmp_path / "a.npz", tmp_path / "golden")
    done = command("golden", "check", tmp_path / "golden", tmp_path / "b.npz", *quiet)
    assert done.status == 2
    (line,) = [line for line in done.err.splitlines() if line.startswith("twinrun: ")]
    assert "could not compare" in line and "z: not in" in line and "(and 1 more)" in line
    done = command("golden", "check", tmp_path / "golden", tmp_path / "a.npz", *quiet)
    assert done.status == 0 and "twinrun: " not in done.err


def test_nothing_is_listed_where_no_entry_is_asked_for(tmp_path):
    golden.save({"x": np.zeros(10)}, tmp_path / "g")
    (field,) = golden.check(tmp_path / "g", {"x": np.ones(10)}, most_listed=0).fields
    assert field.verdict == "different" and field.different >= 1
    assert field.listed == [] and field.spans == [] and field.spans_left_out == 1
