"""The specification, its reader, the test vectors and the golden files agree with each other.

That twinrun agrees with them is for the C++ tests and for those that index files.
"""

from __future__ import annotations

import json
import math
import struct
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, product
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[3]
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
    Buckets,
    Digests,
    P,
    add_sums,
    block_digest,
    cell,
    check_bucket,
    check_chunk,
    digest_array,
    horner,
    id_indices,
    node_count,
    place_indices,
    rule_for,
    sum_up,
    sums_of_whole,
    tree_levels,
    tree_nodes,
)

GOLDEN = ROOT / "tests" / "golden"
BAD = json.loads((GOLDEN / "bad" / "manifest.json").read_text())


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("v?/*.twm")), ids=lambda p: f"{p.parent.name}-{p.stem}")
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
    # Python keeps its compiled modules beside generate.py: they are no golden files.
    files = [p for p in GOLDEN.rglob("*") if p.is_file() and p.suffix != ".pyc"]
    assert sum(p.stat().st_size for p in files) < 560 * 1024


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
    text = (ROOT / "spec" / "digest.md").read_text().split("## 12.")[1]
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


# ---- sums ----

whole_shapes = st.lists(st.integers(1, 12), min_size=1, max_size=3).map(tuple)


def cuttings(shape: tuple[int, ...]):
    """Boxes (shape, offset) that fill an array, some of them empty."""

    def boxes(cuts: list[list[int]]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        edges = [sorted([0, *(c % (n + 1) for c in own), n]) for n, own in zip(shape, cuts, strict=True)]
        return [
            (tuple(b - a for a, b in box), tuple(a for a, _ in box))
            for box in product(*(list(pairwise(e)) for e in edges))
        ]

    cut = st.lists(st.integers(0, 12), max_size=2)
    return st.lists(cut, min_size=len(shape), max_size=len(shape)).map(boxes)


@settings(max_examples=60)
@given(
    st.data(),
    whole_shapes,
    st.sampled_from(["f64", "c128", "u8"]),
    st.sampled_from([(0.5, 0.0), (0.0, 1e-3), (0.0, 0.0)]),
)
def test_parts_of_any_cutting_add_up_to_the_whole(data, shape, dtype, tolerance):
    kind = BY_NAME[dtype]
    count = math.prod(shape) * kind.pair
    # Fewer scalars a block than in a file, so that small arrays have several chunks.
    buckets = Buckets(8, 2)
    rule = rule_for(*tolerance, 4)
    values = st.integers(0, 255) if dtype == "u8" else st.floats(-1e3, 1e3) | st.just(math.nan)
    x = data.draw(st.lists(values, min_size=count, max_size=count))
    blocks = [x[i : i + 8] for i in range(0, count, 8)]
    made = Digests([], [], b"")
    for chunk in (blocks[i : i + 2] for i in range(0, len(blocks), 2)):
        for shift, to in ((0, made.fine), (rule.coarse_shift, made.leaves)):
            to.append(horner([block_digest([cell(v, rule, shift) for v in block]) for block in chunk]))
    parts = []
    for own, offset in data.draw(cuttings(shape)):
        indices = place_indices(own, shape, offset, kind.pair)
        height = data.draw(st.integers(0, 2))
        parts.append(
            (sum_up(indices, [x[i] for i in indices], rule, replace(buckets, height=height)), height)
        )
    whole = sums_of_whole(made, count, buckets)
    assert add_sums(parts, 2, 2) == add_sums([(whole, 0)], 2, 2)
    # The nodes of the tree, where chunks are full.
    levels = tree_levels(made.leaves, 2)
    for height in range(min(3, len(levels))):
        added = add_sums([(whole, 0)], height, 2)
        for number in range(count // (16 << height)):
            assert added[number][0] == levels[height][number]


@settings(max_examples=60)
@given(st.data(), st.integers(1, 5), st.sampled_from([0.0, 0.5]))
def test_sums_by_id_do_not_depend_on_order_or_owner(data, width, atol):
    rule, buckets = rule_for(atol, 0.0, 4), Buckets(8, 1, 1)
    ids = data.draw(st.lists(st.integers(0, 60), min_size=1, max_size=12, unique=True))
    value = st.floats(-50, 50)
    rows = {i: data.draw(st.lists(value, min_size=width, max_size=width)) for i in ids}

    def sums(owners: dict[int, int], order: list[int]):
        parts = []
        for owner in set(owners.values()):
            own = [i for i in order if owners[i] == owner]
            numbers = [v for i in own for v in rows[i]]
            parts.append((sum_up(id_indices(own, width), numbers, rule, buckets), 1))
        return add_sums(parts, 1, 1)

    one = sums(dict.fromkeys(ids, 0), ids)
    owners = {i: data.draw(st.integers(0, 3)) for i in ids}
    assert sums(owners, data.draw(st.permutations(ids))) == one
    # Another value shows in its bucket, and there alone, unless its cell stays.
    changed = data.draw(st.sampled_from(ids))
    before = cell(rows[changed][0], rule)
    rows[changed][0] = data.draw(value)
    after = sums(owners, ids)
    bucket = id_indices([changed], width)[0] // buckets.scalars
    assert {b for b in one if one[b][1] != after[b][1]} == (
        {bucket} if cell(rows[changed][0], rule) != before else set()
    )


def test_a_doubled_id_proves_nothing_of_its_rows():
    rule, buckets = rule_for(0.5, 0.0, 4), Buckets(512, 1)
    a = sum_up(id_indices([7, 7], 1), [1.0, 5.0], rule, buckets)
    assert a == sum_up(id_indices([7, 7], 1), [-99.0, 105.0], rule, buckets)
    # Nor does an ID that one run lacks show where the cell of its row is 0; the IDs' own sums show it.
    assert sum_up(id_indices([7, 9], 1), [1.0, 0.0], rule, buckets) == sum_up(
        id_indices([7], 1), [1.0], rule, buckets
    )
    tokens = rule_for(0.0, 0.0, 4)
    own = [
        sum_up(id_indices(ids, 1), ids, tokens, buckets) for ids in ([7, 9], [7], [7, 7], [0, 7], [7, 0, 0])
    ]
    assert all(x != y for i, x in enumerate(own) for y in own[:i])


@settings(max_examples=100)
@given(st.data(), st.sampled_from([2, 4]), st.floats(0.01, 10))
def test_what_sums_and_residues_prove_is_true(data, bits, atol):
    rule, buckets = rule_for(atol, 0.0, bits), Buckets(8, 2)
    ids = data.draw(st.lists(st.integers(0, 15), min_size=1, max_size=6, unique=True))
    indices = id_indices(ids, 1)
    x = data.draw(st.lists(st.floats(-50, 50), min_size=len(ids), max_size=len(ids)))
    factor = st.one_of(st.floats(-1, 1), st.floats(-40, 40), st.just(0.0))
    y = [v + atol * data.draw(factor) for v in x]
    a, b = (sum_up(indices, numbers, rule, buckets)[0] for numbers in (x, y))
    residues = [
        {i: cell(v, rule).value % (1 << bits) for i, v in zip(indices, n, strict=True)} for n in (x, y)
    ]
    proven = check_bucket(a[1], b[1], *residues, bits, rule.widest, buckets)
    if a[0] == b[0] or proven:
        assert all(agree(p, q, atol, 0.0) for p, q in zip(x, y, strict=True))
    apart = [abs(cell(p, rule).value - cell(q, rule).value) for p, q in zip(x, y, strict=True)]
    assert proven == (max(apart) <= rule.widest)
    assert not check_bucket(a[1], b[1], residues[0], {}, bits, rule.widest, buckets)


def test_indices_that_are_too_large():
    assert place_indices((1,), (2**62,), (2**62 - 1,)) == [2**62 - 1]
    assert place_indices((1,), (2**62 + 1,), (0,)) is None
    assert place_indices((1,), (2**61 + 1,), (0,), 2) is None
    assert id_indices([2**62 - 1], 1) == [2**62 - 1]
    assert id_indices([2**62], 1) is None
    assert id_indices([2**60 - 1], 3) == [2**62 - 4, 2**62 - 3, 2**62 - 2]
    assert id_indices([2**60], 3) is None
    assert id_indices([-1], 1) is None


def test_every_flipped_bit_of_a_file_with_sums_is_found(tmp_path):
    raw = (GOLDEN / "v2" / "small.twm").read_bytes()
    (tmp_path / "values.bin").write_bytes((GOLDEN / "v2" / "values.bin").read_bytes())
    path = tmp_path / "x.twm"
    for at in range(len(raw)):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ (1 << at % 8)]) + raw[at + 1 :])
        assert verify(path), at


def test_sums_are_verified_against_elements_and_ids(tmp_path):
    path = tmp_path / "x.twm"
    raw = (GOLDEN / "v2" / "small.twm").read_bytes()
    data = (GOLDEN / "v2" / "values.bin").read_bytes()
    path.write_bytes(raw)
    x, key = parse(raw).fields
    # The exponent of the first value, and the second ID: 69 for 5.
    for field, at in ((x, x.extents[0].offset + 6), (key, key.extents[0].offset + 2)):
        (tmp_path / "values.bin").write_bytes(data[:at] + bytes([data[at] ^ 64]) + data[at + 1 :])
        problems = verify(path)
        assert "field 'x': the sums of bucket 0 are wrong" in problems
        assert f"field '{field.name}': a checksum of the data is wrong" in problems
    # IDs that are no longer those of the buckets, or of no rows at all.
    at = key.extents[0].offset + 5
    (tmp_path / "values.bin").write_bytes(data[:at] + b"\xff" + data[at + 1 :])
    problems = verify(path)
    assert "field 'x': the sums are of other buckets than its elements" in problems
    assert "field 'x': the smallest or the largest ID is wrong" in problems


def test_versions_are_told_from_each_other(capsys):
    for version in (1, 2):
        for path in (GOLDEN / f"v{version}").glob("*.twm"):
            assert parse(path.read_bytes()).version == version
    main([str(GOLDEN / "v2" / "placed.twm")])
    said = capsys.readouterr().out
    assert "version 2" in said
    assert "sums by place: 3 buckets of 4096 bytes" in said
