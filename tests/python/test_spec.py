"""The specification, its reader, the test vectors and the golden files agree with each other.

That twinrun agrees with them is for the C++ tests and for those that index files.
"""

from __future__ import annotations

import json
import math
import struct
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "spec" / "reader"))

from twinrun_spec import FormatError, parse, verify  # noqa: E402
from twinrun_spec.__main__ import main  # noqa: E402
from twinrun_spec.digest import (  # noqa: E402
    BY_NAME,
    COEFFICIENTS,
    NAN_TOKEN,
    NEGATIVE_INFINITY_TOKEN,
    POSITIVE_INFINITY_TOKEN,
    RHO,
    P,
    cell,
    check_chunk,
    digest_array,
    horner,
    node_count,
    rule_for,
    tree_nodes,
)

GOLDEN = ROOT / "tests" / "golden"
BAD = json.loads((GOLDEN / "bad" / "manifest.json").read_text())


@pytest.mark.parametrize("path", sorted((GOLDEN / "v1").glob("*.twm")), ids=lambda p: p.stem)
def test_good_files_are_right(path, capsys):
    assert verify(path) == []
    assert main([str(path), "--verify"]) == 0
    assert "right: equal to what the data gives" in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(BAD))
def test_bad_files_are_wrong_as_the_manifest_says(name, capsys):
    problems = verify(GOLDEN / "bad" / name)
    assert any(BAD[name]["spec"] in p for p in problems), problems
    assert main([str(GOLDEN / "bad" / name), "--verify"]) == 1
    assert "wrong: " in capsys.readouterr().out


def test_every_bad_file_is_in_the_manifest():
    assert {p.name for p in (GOLDEN / "bad").glob("*.twm")} == set(BAD)


def test_golden_files_are_small():
    assert sum(p.stat().st_size for p in GOLDEN.rglob("*") if p.is_file()) < 200 * 1024


@pytest.mark.parametrize("generator", ["vectors", "golden"])
def test_files_are_those_of_their_generator(generator):
    script = ROOT / "tests" / generator / "generate.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_changed_data_byte_is_found(tmp_path):
    path = tmp_path / "packed.twm"
    path.write_bytes((GOLDEN / "v1" / "packed.twm").read_bytes())
    data = (GOLDEN / "v1" / "values.bin").read_bytes()
    (extent,) = parse(path.read_bytes()).fields[0].extents
    for byte in range(extent.offset, extent.offset + 8):
        (tmp_path / "values.bin").write_bytes(data[:byte] + bytes([data[byte] ^ 1]) + data[byte + 1 :])
        assert verify(path)
    (tmp_path / "values.bin").write_bytes(data[:-1])
    assert any("when it was indexed" in p for p in verify(path))
    (tmp_path / "values.bin").unlink()
    assert verify(path)


def test_every_flipped_bit_of_a_file_is_found(tmp_path):
    raw = (GOLDEN / "v1" / "packed.twm").read_bytes()
    (tmp_path / "values.bin").write_bytes((GOLDEN / "v1" / "values.bin").read_bytes())
    path = tmp_path / "x.twm"
    for at in range(len(raw)):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ (1 << at % 8)]) + raw[at + 1 :])
        assert verify(path), at


@pytest.mark.parametrize("length", [0, 7, 8, 63, 64, 100, 487])
def test_truncated_files_are_refused(length):
    raw = (GOLDEN / "v1" / "packed.twm").read_bytes()
    with pytest.raises(FormatError):
        parse(raw[:length])


def test_fields_without_extents_need_their_elements(tmp_path):
    sys.path.insert(0, str(GOLDEN))
    from generate import Draft, add, encode

    raw = struct.pack("<3f", 1, 2, 3)
    draft = Draft()
    add(draft, "x", "f32", (3,), raw, [], 0.1, form="zarr")
    path = tmp_path / "x.twm"
    path.write_bytes(encode(draft))
    assert any("not verified" in p for p in verify(path))
    assert verify(path, {"x": raw}) == []
    assert verify(path, {"x": raw[:8]}) == ["field 'x': the elements given have another size"]
    assert verify(path, {"x": struct.pack("<3f", 1, 2, 4)})


# ---- the document ----


def test_numbers_of_the_document():
    text = (ROOT / "spec" / "digest.md").read_text()
    for number in (NAN_TOKEN, POSITIVE_INFINITY_TOKEN, NEGATIVE_INFINITY_TOKEN, *COEFFICIENTS[:3]):
        assert f"0x{number:016X}" in text
    assert f"0x{RHO:X}" in text


def test_example_of_the_document():
    text = (ROOT / "spec" / "digest.md").read_text().split("## 11.")[1]
    rule = rule_for(0.125, 0.0, 4)
    assert (rule.coarse_shift, rule.widest, rule.fine_exponent) == (3, 7, -6)
    made = []
    for numbers in ([0.53125, 1.0, -0.25], [0.5625, 0.9375, -0.1875]):
        d = digest_array(numbers, BY_NAME["f32"], 0.125)
        made.append(d)
        for shift in (0, 3):
            assert ", ".join(str(cell(x, rule, shift).value) for x in numbers) in text
        assert f"0x{d.fine[0]:016X}" in text
        assert f"0x{d.leaves[0]:016X}" in text
        assert ", ".join(f"0x{w:X}" for w in struct.unpack("<3Q", d.residues[:24])) in text
        assert not any(d.residues[24:])
    a, b = made
    assert f"0x{(a.fine[0] - b.fine[0]) % P:016X}" in text
    assert check_chunk(BY_NAME["f32"], 3, 4, 7, a.fine[0], b.fine[0], a.residues, b.residues)


def test_one_factor_for_all_levels_would_be_unsound():
    def one_factor(d):
        return ((d[0] * RHO + d[1]) * RHO + d[2] * RHO + d[3]) % P

    assert one_factor([1, 2, 3, 4]) == one_factor([1, 3, 2, 4])
    assert tree_nodes([1, 2, 3, 4], 1)[0] != tree_nodes([1, 3, 2, 4], 1)[0]
    assert tree_nodes([1, 2, 3, 4], 1)[0] == horner([1, 2, 3, 4])


@given(st.integers(0, 3000))
def test_number_of_nodes(leaves):
    assert len(tree_nodes([1] * leaves, 1)) == node_count(leaves)


# ---- the promise, in exact fractions ----

numbers = st.floats(allow_nan=True, allow_infinity=True, width=64)
tolerances = st.one_of(st.just(0.0), st.floats(1e-12, 1e3), st.floats(0, 1.7e308))


def agree(a: float, b: float, atol: float, rtol: float) -> bool:
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    if math.isinf(a) or math.isinf(b):
        return a == b
    return abs(Fraction(a) - Fraction(b)) <= Fraction(atol) + Fraction(rtol) * abs(Fraction(a))


@settings(max_examples=400)
@given(
    numbers, numbers, st.floats(-1.5, 1.5), st.booleans(), tolerances, tolerances, st.sampled_from([0, 2, 4])
)
@example(1.0, 0.0, 1.0, True, 0.0, 1.7e308, 4)
@example(0.0, 1e-309, 0.0, False, 1e-310, 0.0, 4)
def test_what_digests_prove_is_true(a, b, factor, near, atol, rtol, bits):
    if near and math.isfinite(a):
        b = a + factor * (atol + rtol * abs(a))
    kind = BY_NAME["f64"]
    rule = rule_for(atol, rtol, bits)
    x, y = (digest_array([v], kind, atol, rtol, bits) for v in (a, b))
    if x.leaves == y.leaves or x.fine == y.fine:
        assert agree(a, b, atol, rtol)
    if rule.residue_bits:
        if check_chunk(kind, 1, bits, rule.widest, x.fine[0], y.fine[0], x.residues, y.residues):
            assert agree(a, b, atol, rtol)
        p, q = cell(a, rule), cell(b, rule)
        if not p.is_token and not q.is_token and abs(p.value - q.value) <= rule.widest:
            assert check_chunk(kind, 1, bits, rule.widest, x.fine[0], y.fine[0], x.residues, y.residues)
    x, y = (digest_array([v], kind, atol, published=True) for v in (a, b))
    if x.leaves == y.leaves:
        assert agree(a, b, atol, 0.0)


@given(
    st.integers(-(2**63), 2**63 - 1), st.integers(-20, 20), st.sampled_from([0.0, 0.5, 1.0, 3.0, 1e6, 1e15])
)
def test_what_digests_of_large_integers_prove_is_true(a, step, atol):
    b = a + step
    assume(-(2**63) <= b < 2**63)
    x, y = (digest_array([v], BY_NAME["i64"], atol) for v in (a, b))
    if x.leaves == y.leaves or x.fine == y.fine:
        assert abs(step) <= atol
    elif atol:
        widest = rule_for(atol, 0.0, 4).widest
        if check_chunk(BY_NAME["i64"], 1, 4, widest, x.fine[0], y.fine[0], x.residues, y.residues):
            assert abs(step) <= atol
