"""Fields of different types, compared by their values: against fractions, for all pairs of types."""

import itertools
import json
import math
import random
import struct
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from commands import command

import twinrun
from twinrun import _core
from twinrun.capture.run import RankRun
from twinrun.runs.values import SMALL_FLOATS, small_values

# Names in safetensors: how a value is stored.
INTEGERS = {
    "I8": (1, True), "I16": (2, True), "I32": (4, True), "I64": (8, True),
    "U8": (1, False), "U16": (2, False), "U32": (4, False), "U64": (8, False),
}  # fmt: skip
SMALL = {"F8_E4M3": (4, 3, 7, False), "F8_E5M2": (5, 2, 15, True)}
TYPES = ("F16", "BF16", "F32", "F64", *INTEGERS, "BOOL", *SMALL)
SIZES = {"F16": 2, "BF16": 2, "F32": 4, "F64": 8, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1}


def value_of(kind, code):
    """What stored bits mean: a Fraction, or 'nan', 'inf', '-inf'. Independent of the package."""
    if kind in INTEGERS:
        size, signed = INTEGERS[kind]
        return Fraction(int.from_bytes(code.to_bytes(size, "little"), "little", signed=signed))
    if kind == "BOOL":
        return Fraction(int(code != 0))
    bits, fraction, bias, infinities = {
        "F16": (16, 10, 15, True), "BF16": (16, 7, 127, True), "F32": (32, 23, 127, True), "F64": (64, 52, 1023, True),
        "F8_E4M3": (8, 3, 7, False), "F8_E5M2": (8, 2, 15, True),
    }[kind]  # fmt: skip
    sign = -1 if code >> (bits - 1) else 1
    exponent = (code >> fraction) & ((1 << (bits - 1 - fraction)) - 1)
    rest = code & ((1 << fraction) - 1)
    largest = (1 << (bits - 1 - fraction)) - 1
    if exponent == largest and infinities:
        return "nan" if rest else ("inf" if sign > 0 else "-inf")
    if exponent == largest and rest == (1 << fraction) - 1:
        return "nan"
    if exponent == 0:
        return sign * Fraction(rest) * Fraction(2) ** (1 - bias - fraction)
    return sign * Fraction(rest + (1 << fraction)) * Fraction(2) ** (exponent - bias - fraction)


def code_near(kind, value):
    """Bits of a value of the type that is near a float or an integer."""
    if kind == "BOOL":
        return int(value == value and value != 0)
    if kind in INTEGERS:
        size, signed = INTEGERS[kind]
        if isinstance(value, float) and not math.isfinite(value):
            value = 0
        low, high = (
            (-(1 << (8 * size - 1)), (1 << (8 * size - 1)) - 1) if signed else (0, (1 << (8 * size)) - 1)
        )
        return min(max(round(value), low), high) & ((1 << (8 * size)) - 1)
    if kind in SMALL:
        if value != value:
            return 0x7F
        table = [(c, value_of(kind, c)) for c in range(256)]
        if math.isinf(value):
            return 0x7C if kind == "F8_E5M2" and value > 0 else 0xFC if kind == "F8_E5M2" else 0x7E
        if value == 0:
            return 0x80 if math.copysign(1, value) < 0 else 0
        return min((abs(v - Fraction(value)), c) for c, v in table if isinstance(v, Fraction))[1]
    with np.errstate(all="ignore"):
        if kind == "F64":
            return struct.unpack("<Q", struct.pack("<d", float(value)))[0]
        if kind == "F16":
            return int(np.float64(value).astype(np.float16).view(np.uint16))
        word = int(np.float64(value).astype(np.float32).view(np.uint32))
    return word if kind == "F32" else (word >> 16) | (0x40 if value != value else 0)


SPECIAL = [
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, 1 / 3, -2 / 3, math.nan, math.inf, -math.inf, 5e-324, -5e-324, 2.0**-1022,
    2.0**-149, -(2.0**-149), 2.0**-126, 2.0**-133, 2.0**-24, 2.0**-14, 6.1e-5, 2.0**-9, 2.0**-16, 448.0, 57344.0, 65504.0,
    65520.0, 3.3895313892515355e38, 3.4028234663852886e38, 1.7976931348623157e308, -1.7976931348623157e308, 127, 128,
    255, 256, 32767, 65535, 2**31 - 1, 2**31, -(2**31), 2**32 - 1, 2**52 + 1, 2**53 - 1, 2**53, 2**53 + 1, -(2**53) - 1,
    2**62 + 1, 2**63 - 1, 2**63, -(2**63), 2**64 - 1, 2**64 - 2**11, 1e-3, 3.1415926, 100.25, 16777217, 257, 2049,
]  # fmt: skip


def stored(kind, seed):
    """Codes of the special values, and of others at random."""
    rng = random.Random(seed)
    codes = [code_near(kind, v) for v in SPECIAL]
    shuffled = codes[:]
    rng.shuffle(shuffled)
    codes += shuffled
    size = SIZES.get(kind) or INTEGERS[kind][0]
    codes += [rng.getrandbits(8 * size) if kind != "BOOL" else rng.getrandbits(1) for _ in range(40)]
    # Near integers of 64 bits, halves, and the same value in both types.
    near = random.Random(11)
    for _ in range(40):
        codes.append(
            code_near(kind, near.choice([near.randrange(-(2**63), 2**64), near.randrange(-300, 300) / 2]))
        )
    return codes


def write(path, fields):
    """A safetensors file. fields: {name: (kind, shape, codes)}."""
    header, data = {}, b""
    for name, (kind, shape, codes) in fields.items():
        size = SIZES.get(kind) or INTEGERS[kind][0]
        own = b"".join(c.to_bytes(size, "little") for c in codes)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(own)]}
        data += own
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return str(path)


def expected(a, b, atol, rtol, nan_equal=True):
    """(which differ, the largest |a - b|, how many infinite) of lists of values."""
    differ, largest, infinite = [], 0.0, 0
    for at, (x, y) in enumerate(zip(a, b, strict=True)):
        if isinstance(x, str) or isinstance(y, str):
            same = x == y and (x != "nan" or nan_equal)
            if not same:
                differ.append(at)
                largest, infinite = math.inf, infinite + 1
            continue
        apart = abs(x - y)
        try:
            rounded = float(apart)
        except OverflowError:
            rounded = math.inf
            infinite += apart > Fraction(atol) + Fraction(rtol) * abs(x)
        largest = max(largest, rounded)
        if apart > Fraction(atol) + Fraction(rtol) * abs(x):
            differ.append(at)
    return differ, largest, infinite


def is_value(found, value):
    if isinstance(value, str):
        return math.isnan(found) if value == "nan" else found == float(value)
    return Fraction(found) == value


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("types")
    made = {}
    for which, kind in itertools.product("ab", TYPES):
        codes = stored(kind, f"{which}{kind}")
        path = write(folder / f"{which}{kind}.safetensors", {"x": (kind, [len(codes)], codes)})
        made[which, kind] = path, [value_of(kind, c) for c in codes]
    return made


@pytest.mark.parametrize("kind_a", TYPES)
def test_every_pair_of_types_is_compared_as_fractions_are(files, kind_a):
    path_a, a = files["a", kind_a]
    for kind_b, (atol, rtol) in itertools.product(
        TYPES, ((0.0, 0.0), (0.5, 0.0), (0.0, 2.0**-9), (1e-3, 1e-3), (1.0, 0.0), (0.0, 1.0))
    ):
        path_b, b = files["b", kind_b]
        differ, largest, infinite = expected(a, b, atol, rtol)
        found = twinrun.compare(
            path_a,
            path_b,
            types="values",
            atol=atol,
            rtol=rtol,
            tolerate_integers=True,
            options=twinrun.CompareOptions(use_metadata=False),
        )
        said = (kind_a, kind_b, atol, rtol)
        (field,) = found.fields
        assert field.different == len(differ), said
        assert found.verdict == ("different" if differ else "same"), said
        assert field.max_abs_diff == largest, said
        assert field.infinite == infinite, said
        if differ:
            assert field.first_index == (differ[0],), said
            assert is_value(field.first_a, a[differ[0]]) and is_value(field.first_b, b[differ[0]]), said
            listed = [at for part in found.differences() for at in part.index[:, 0].tolist()]
            assert listed == differ, said


def test_a_nan_differs_where_it_should(files):
    for kind_a, kind_b in itertools.product(("BF16", "F8_E5M2", "F32"), ("F64", "F8_E4M3", "F16")):
        a, b = files["a", kind_a], files["b", kind_b]
        field = twinrun.compare(a[0], b[0], types="values", equal_nan=False).fields[0]
        assert field.different == len(expected(a[1], b[1], 0, 0, nan_equal=False)[0])


def test_integers_are_exact_without_being_told_otherwise(files):
    (_, a), (_, b) = files["a", "I64"], files["b", "U64"]
    field = twinrun.compare(files["a", "I64"][0], files["b", "U64"][0], types="values", atol=1e30).fields[0]
    assert field.different == len(expected(a, b, 0, 0)[0])


@pytest.mark.parametrize("signed", ["i1", "i2", "i4", "i8"])
@pytest.mark.parametrize("other", ["u1", "u2", "u4", "u8", "?"])
def test_integers_with_and_without_a_sign_are_exact(signed, other):
    a, b = np.array([1, 0, 1], signed), np.array([1, 1, 1], other)
    for x, y in ((a, b), (b, a)):
        for method in ("auto", "direct"):
            found = twinrun.compare(
                {"x": x},
                {"x": y},
                types="values",
                atol=1.0,
                rtol=1.0,
                options=twinrun.CompareOptions(method=method),
            )
            assert found.different == 1 and found.first.first_index == (1,)
        told = twinrun.compare({"x": x}, {"x": y}, types="values", atol=1.0, tolerate_integers=True)
        assert told.same
    assert twinrun.compare({"x": a}, {"x": a.astype(other)}, types="values").same
    assert not twinrun.compare(
        {"x": np.array([-1], signed)}, {"x": np.array([2**64 - 1], "u8")}, types="values"
    ).same


@pytest.mark.parametrize("kind", ["F8_E8M0", "F8_E4M3"])
@pytest.mark.parametrize(
    ("shape", "of_scales"), [((4, 8), (4, 2)), ((8, 16), (2, 2)), ((32, 64), (32, 2)), ((4, 8), (1, 8))]
)
def test_scales_of_8_bits_have_the_shape_that_their_file_tells(tmp_path, kind, shape, of_scales):
    one, two = (127, 128) if kind == "F8_E8M0" else (0x38, 0x40)
    codes = [two if n % 3 == 1 else one for n in range(math.prod(of_scales))]
    scales = np.where(np.array(codes) == two, 2.0, 1.0).reshape(of_scales)
    for axis, (n, s) in enumerate(zip(shape, of_scales, strict=True)):
        scales = np.repeat(scales, n // s, axis=axis)
    whole = {"w": ("F8_E4M3", list(shape), [0x38] * math.prod(shape))}
    a = write(tmp_path / "a.safetensors", {**whole, "w_scale": (kind, list(of_scales), codes)})
    for exact in (True, False):
        b = tmp_path / "b.npz"
        np.savez(b, w=scales if exact else scales[::-1, ::-1])
        assert twinrun.compare(a, b, types="values").same is (
            exact or np.array_equal(scales, scales[::-1, ::-1])
        )
    # The same scales as float32.
    floats = [code_near("F32", 2.0 if c == two else 1.0) for c in codes]
    c = write(tmp_path / "c.safetensors", {**whole, "w_scale": ("F32", list(of_scales), floats)})
    assert twinrun.compare(a, c, types="values").same


def test_differences_between_integers_and_numbers_are_rounded_once():
    """|a - b| is exact before it is rounded: where float64 holds neither, and on ties."""
    rng = random.Random(5)
    a, b = [], []
    for _ in range(4000):
        x = rng.choice(
            [rng.randrange(-(2**63), 2**63), 2**62 + rng.randrange(5000), rng.randrange(-1000, 1000)]
        )
        y = rng.choice(
            [float(x), x * 2.0**-20, float(x) + rng.random(), rng.random() * 2.0 ** rng.randrange(-60, 70)]
        )
        a.append(x)
        b.append(math.nextafter(y, rng.choice([-math.inf, math.inf])))
    whole, numbers = np.array(a, np.int64), np.array(b)
    for first, second, flip in ((whole, numbers, False), (numbers, whole, True)):
        found = twinrun.compare({"x": first}, {"x": second}, types="values")
        exact = [float(abs(Fraction(x) - Fraction(y))) for x, y in zip(a, b, strict=True)]
        part = list(found.differences())
        assert np.concatenate([p.abs_diff for p in part]).tolist() == [d for d in exact if d]
        assert found.fields[0].max_abs_diff == max(exact)
        # One by one: the largest hides no other.
        for at in range(0, 4000, 40):
            one = twinrun.compare(
                {"x": first[at : at + 1]}, {"x": second[at : at + 1]}, types="values"
            ).fields[0]
            assert one.max_abs_diff == exact[at], (a[at], b[at], flip)
            assert one.same == (exact[at] == 0)


@pytest.mark.parametrize("kind", sorted(SMALL_FLOATS))
def test_tables_of_small_floats(kind):
    """By the definitions: OCP 8-bit floating point 1.0, and the types without a negative zero."""
    table = small_values(kind)
    if kind in ("F8_E8M0", "float8_e8m0fnu"):
        assert [*table[:255]] == [2.0 ** (c - 127) for c in range(255)] and math.isnan(table[255])
        return
    if "UZ" in kind.upper():
        bias, fraction = (8, 3) if "4" in kind else (16, 2)
        assert math.isnan(table[0x80]) and np.isfinite(np.delete(table, 0x80)).all()
        assert table[0x7F] == ((1 << fraction) * 2 - 1) * 2.0 ** ((0x7F >> fraction) - bias - fraction)
        return
    name = "F8_E4M3" if "4" in kind else "F8_E5M2"
    assert all(is_value(table[c], value_of(name, c)) for c in range(256))
    assert math.copysign(1, table[0x80]) == -1


def scaled(tmp_path, scales, shape=(4, 6), name="w_scale", kind="F32"):
    rng = random.Random(3)
    codes = [rng.randrange(0x7E) for _ in range(math.prod(shape))]
    of = [code_near(kind, float(s)) for s in np.ravel(scales)]
    path = write(
        tmp_path / "q.safetensors",
        {"w": ("F8_E4M3", list(shape), codes), name: (kind, list(np.shape(scales)), of)},
    )
    values = np.array([float(value_of("F8_E4M3", c)) for c in codes]).reshape(shape)
    return path, values


@pytest.mark.parametrize(
    "scales",
    [0.3, [0.7], [[0.1], [0.2], [0.3], [0.4]], [[0.1, 2, 3, 4, 5, 6]], [0.1, 0.2, 0.3, 0.4], [1, 2, 3, 4, 5, 6.5],
     [[0.5, 0.25, 7], [3, 1e-30, 9]]],
)  # fmt: skip
@pytest.mark.parametrize("name", ["w_scale", "w_scale_inv"])
def test_scales_multiply(tmp_path, scales, name):
    path, values = scaled(tmp_path, scales, name=name)
    wide = np.asarray(scales, np.float32).astype(np.float64)
    if wide.shape == (4,):
        wide = wide[:, None]
    if wide.shape == (2, 3):
        wide = np.repeat(np.repeat(wide, 2, 0), 2, 1)
    found = twinrun.compare(path, {"w": values * wide}, types="values")
    assert found.verdict == "same" and f"times {name}" in " ".join(found.notes)
    off = values * wide
    off[2, 3] = math.nextafter(off[2, 3], 9)
    found = twinrun.compare(path, {"w": off}, types="values")
    assert found.different == 1 and found.fields[0].first_index == (2, 3)
    assert found.fields[0].types == ("F8_E4M3", "f64")


def test_blocks_of_128(tmp_path):
    """As DeepSeek-V3 has them: the last block of an axis is shorter."""
    rng = np.random.default_rng(1)
    scales = rng.random((2, 2)).astype(np.float32)
    path, values = scaled(tmp_path, scales, shape=(200, 130), name="w_scale_inv")
    # 200 rows of 2 scales are 100 each, or 128 and 72: not clear.
    with pytest.raises(twinrun.TwinrunError, match="may lie in several ways"):
        twinrun.compare(path, {"w": values}, types="values")
    scales = rng.random((2, 3)).astype(np.float32)
    path, values = scaled(tmp_path, scales, shape=(129, 320), name="w_scale_inv")
    wide = np.repeat(np.repeat(scales.astype(float), 128, 0)[:129], 128, 1)[:, :320]
    assert twinrun.compare(path, {"w": values * wide}, types="values").same


@pytest.mark.parametrize(
    ("scales", "shape", "kind", "why"),
    [
        ([1.0, 2, 3, 4], (4, 4), "F32", "the rows and the columns"),
        ([1.0, 2, 3], (4, 6), "F32", "neither"),
        ([[1.0], [2], [3]], (4, 6), "F32", "do not fit"),
        ([[[1.0]], [[2.0]]], (4, 6), "F32", "of shape"),
    ],
)
def test_scales_that_are_not_clear_are_refused(tmp_path, scales, shape, kind, why):
    path, values = scaled(tmp_path, scales, shape=shape, kind=kind)
    with pytest.raises(twinrun.TwinrunError, match=why):
        twinrun.compare(path, {"w": values}, types="values")


def test_scales_whose_products_would_be_rounded_are_refused(tmp_path):
    path, values = scaled(tmp_path, [0.5], kind="F64")
    found = twinrun.compare(path, {"w": values, "w_scale": np.array([0.5])}, types="values", partial=True)
    assert found.verdict == "incomparable" and "are 1 of f64, and are not taken" in str(found.problems)


def test_two_small_floats_of_other_scales_hold_the_same_numbers(tmp_path):
    a = write(
        tmp_path / "a.safetensors",
        {"w": ("F8_E4M3", [2, 2], [0x38, 0x40, 0x48, 0]), "w_scale": ("F32", [], [code_near("F32", 2.0)])},
    )
    b = write(tmp_path / "b.safetensors", {"w": ("F8_E5M2", [2, 2], [0x40, 0x44, 0x48, 0])})
    assert twinrun.compare(a, b, types="values").same
    with pytest.raises(twinrun.Incomparable):
        twinrun.compare(a, b)


def test_other_types_stay_a_problem_without_being_asked_for():
    with pytest.raises(twinrun.Incomparable, match="types must agree"):
        twinrun.compare({"x": np.zeros(3, np.float32)}, {"x": np.zeros(3)})


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (np.zeros(3, np.complex64), np.zeros(3)),
        (np.zeros(3, "M8[s]"), np.zeros(3)),
        (np.array(["a", "b", "c"]), np.zeros(3)),
    ],
)
def test_what_is_no_real_number_is_not_cast(x, y):
    n = np.zeros(2)
    found = twinrun.compare({"x": x, "n": n}, {"x": y, "n": n}, types="values", partial=True)
    assert found.verdict == "incomparable" and [f.field for f in found.fields] == ["n"]


def test_complex_numbers_of_two_precisions():
    x = np.array([1 + 2j, 0.1j, np.nan, 3])
    found = twinrun.compare({"x": x}, {"x": x.astype(np.complex64)}, types="values")
    assert found.different == 1 and found.fields[0].first_index == (1, 1)
    assert found.fields[0].types == ("c128", "c64")


def test_representable_values_have_no_meaning_between_types():
    with pytest.raises(twinrun.Incomparable, match="representable values are those of one type"):
        twinrun.compare({"x": np.zeros(3, np.float32)}, {"x": np.zeros(3)}, types="values", ulp=1)
    assert twinrun.compare({"x": np.zeros(3)}, {"x": np.zeros(3)}, types="values", ulp=1).same


@pytest.mark.parametrize("ending", ["npy", "h5", "npz"])
def test_files(tmp_path, ending):
    x = np.random.default_rng(2).random((30, 40))
    paths = []
    for at, values in enumerate(
        (x.astype(np.float32), x.astype(np.float32).astype(">f8"), x.astype(np.float16))
    ):
        path = str(tmp_path / f"{at}.{ending}")
        if ending == "npy":
            np.save(path, values)
        elif ending == "npz":
            np.savez_compressed(path, x=values)
        else:
            h5py = pytest.importorskip("h5py")
            with h5py.File(path, "w") as f:
                f.create_dataset("x", data=values, chunks=(7, 9), compression="gzip")
        paths.append(path)
    assert twinrun.compare(paths[0], paths[1], types="values").same
    found = twinrun.compare(paths[0], paths[2], types="values")
    narrow = x.astype(np.float16).astype(float)
    assert found.different == int((x.astype(np.float32) != narrow).sum())
    assert found.fields[0].max_abs_diff == np.abs(x.astype(np.float32) - narrow).max()


@pytest.mark.parametrize("method", ["auto", "direct", "staged"])
def test_column_major_arrays_report_the_first_row_by_row(method):
    x = np.asfortranarray(np.random.default_rng(2).random((31, 17)).astype(np.float32))
    for y in (x.astype(np.float64), np.ascontiguousarray(x).astype(np.float64)):
        y[3, 9] += 1
        y[20, 1] += 1
        found = twinrun.compare(
            {"x": x}, {"x": y}, types="values", options=twinrun.CompareOptions(method=method)
        )
        assert found.different == 2 and found.fields[0].first_index == (3, 9)
    whole = np.asfortranarray(np.arange(31 * 17).reshape(31, 17) + 2**60)
    other = whole.astype(np.float64)
    other[3, 9] += 1e6
    other[20, 1] += 1e6
    found = twinrun.compare(
        {"x": whole}, {"x": other}, types="values", options=twinrun.CompareOptions(method=method), atol=1e4
    )
    assert found.different == 2 and found.fields[0].first_index == (3, 9)


def history(path, dtype, cuts, error=0.0, atol=0.0):
    """A global array of 40 rows in the parts of some ranks, in two steps."""
    x = (np.arange(240.0).reshape(40, 6) * 0.25).astype(dtype)
    turns = _core.Turns(len(cuts) - 1)
    for begin, end in itertools.pairwise(cuts):
        with RankRun(path, turns, atol=atol, existing="append") as run:
            for step in (0, 5):
                part = x[begin:end].copy()
                if step == 5 and begin <= 21 < end:
                    part[21 - begin, 2] += error
                run.capture(step, {"x": part}, global_place={"x": ((40, 6), (begin, 0))})
    return str(path)


def test_histories_of_two_precisions_and_divisions(tmp_path):
    a = history(tmp_path / "a", np.float32, (0, 20, 40))
    same = history(tmp_path / "b", np.float64, (0, 40))
    assert twinrun.compare(a, same, types="values").same
    other = history(tmp_path / "c", np.float64, (0, 13, 30, 40), error=1e-12)
    found = twinrun.compare(a, other, types="values")
    assert found.first_divergence["step"] == 5 and found.first_divergence["index"] == [21, 2]
    assert found.different == 1
    assert twinrun.compare(a, other, types="values", atol=1e-9).same
    assert sum(part.count for part in found.differences()) == 1


def test_metadata_of_the_same_type_still_proves(tmp_path):
    a = history(tmp_path / "a", np.float32, (0, 40), atol=1e-3)
    b = history(tmp_path / "b", np.float32, (0, 40), atol=1e-3)
    assert all(f.method == "staged" for f in twinrun.compare(a, b, types="values").fields)
    c = history(tmp_path / "c", np.float64, (0, 40), atol=1e-3)
    found = twinrun.compare(a, c, types="values")
    assert found.same and all(f.elements_read == f.elements and f.atol == 1e-3 for f in found.fields)


def test_particles_of_two_precisions():
    rng = np.random.default_rng(4)
    ids = rng.permutation(500)
    x = rng.random((500, 3)).astype(np.float32)
    order = rng.permutation(500)
    a = {"id": ids.astype(np.int32), "x": x}
    b = {"id": ids[order], "x": x[order].astype(np.float64)}
    assert twinrun.compare(a, b, key="id", types="values").same
    b["x"][7, 1] += 1e-9
    found = twinrun.compare(a, b, key="id", types="values")
    assert found.different == 1 and found.first.first_id == ids[order][7]
    assert [p.ids.tolist() for p in found.differences()] == [[int(ids[order][7])]]


def test_workers_compare_by_values_too(tmp_path):
    from concurrent.futures import ProcessPoolExecutor

    a = history(tmp_path / "a", np.float32, (0, 40))
    b = history(tmp_path / "b", np.float64, (0, 40), error=0.5)
    with ProcessPoolExecutor(1) as executor:
        found = twinrun.compare(a, b, types="values", executor=executor)
    assert found.different == 1 and found.fields[0].types == ("f32", "f64")


def test_a_listing_keeps_integers_whole(tmp_path):
    a, b = {"x": np.array([2**62 + 1, 7])}, {"x": np.array([2.0**62, 7.5])}
    path = tmp_path / "list.csv"
    from twinrun.report.listing import write_differences

    write_differences(twinrun.compare(a, b, types="values"), str(path))
    rows = path.read_text().splitlines()
    assert str(2**62 + 1) in rows[1] and "1.0" in rows[1] and "0.5" in rows[2]


@pytest.mark.parametrize("wide", ["i8", "u8"])
def test_no_circle_for_integers_of_64_bits_and_numbers(wide):
    """They have no type in common in which to go round: that is said, and nothing is compared without the period."""
    one, other = {"pos": np.array([0.5])}, {"pos": np.array([10], wide)}
    for a, b in ((one, other), (other, one)):
        with pytest.raises(twinrun.Incomparable, match="no type in common, as a circle needs"):
            twinrun.compare(a, b, period=10.0, atol=0.6, types="values")
    narrow = {"pos": np.array([10], "i4")}
    assert twinrun.compare(one, narrow, period=10.0, atol=0.6, types="values").same
    assert not twinrun.compare(one, other, atol=0.6, types="values").same


@pytest.mark.parametrize(
    "a, b, said",
    [
        (
            np.array(["2020-01-01", "2021-02-03"], "M8[D]"),
            np.array(["2020-01-01", "2021-02-06"], "M8[D]"),
            "x[1]: 2021-02-03 against 2021-02-06, 3 days apart",
        ),
        (
            np.array(["1969-12-31T23:59:59.5"], "M8[ms]"),
            np.array(["1970-01-01T00:00:00"], "M8[ms]"),
            "x[0]: 1969-12-31T23:59:59.500 against 1970-01-01T00:00:00.000, 500 ms apart",
        ),
        (np.array(["2020"], "M8[25s]"), np.array(["2020"], "M8[25s]") + 3, ", 75 s apart"),
        (np.array([1], "m8[h]"), np.array([2], "m8[h]"), "x[0]: 1 hour against 2 hours, 1 hour apart"),
        (np.array(["2020-01"], "M8[M]"), np.array(["NaT"], "M8[M]"), "x[0]: 2020-01 against NaT"),
        (
            np.array(["2020"], "M8[ns]"),
            np.array([2**63 - 1]).view("M8[ns]"),
            ", 7645535236854775807 ns apart",
        ),
    ],
    ids=lambda x: getattr(x, "dtype", ""),
)
def test_dates_are_said_as_dates(a: np.ndarray, b: np.ndarray, said: str, tmp_path: Path) -> None:
    """With their difference in the array's unit: a share of the time since 1970 means nothing."""
    runs = {}
    for name, x in (("a", a), ("b", b)):
        runs[name] = tmp_path / f"{name}.npz"
        np.savez(runs[name], x=x, id=np.arange(len(x)))
    for pair, options in (
        (({"x": a}, {"x": b}), {}),
        ((runs["a"], runs["b"]), {}),
        ((runs["a"], runs["b"]), {"key": "id"}),
    ):
        result = twinrun.compare(*pair, **options)
        line = str(result).splitlines()[-1]
        if "key" in options:  # the place is an ID
            assert said.partition("]")[2] in line and "%" not in line
        else:
            assert said in line and "%" not in line
            assert said in repr(result.first)
        # Reports of numbers keep them.
        assert (result.first.first_a, result.first.first_b) == tuple(int(v[-1].astype(int)) for v in (a, b))


@pytest.mark.parametrize("kind", [np.longdouble, np.clongdouble])
def test_long_doubles_in_memory_compare_as_those_of_files(kind: type, tmp_path: Path) -> None:
    if _core_knows(kind):
        pytest.skip("a long double is a float64 on this machine")
    a = np.arange(6, dtype=kind).reshape(2, 3)
    b = a.copy()
    b[1, 2] += np.finfo(kind).eps * 8  # float64 has no such digit
    assert a[1, 2] != b[1, 2] and complex(a[1, 2]) == complex(b[1, 2])
    np.save(tmp_path / "a.npy", a)
    name = np.dtype(kind).name
    for one, other in ((a, b), ({"x": a}, {"x": b}), (tmp_path / "a.npy", b), (a[1, 2], b[1, 2])):
        assert twinrun.compare(one, one).same
        for options in ({}, {"atol": 1.0}):  # they compare exactly
            result = twinrun.compare(one, other, **options)
            assert not result.same and result.fields[0].different == 1 and result.fields[0].kind == name
        assert "5.00000000000000000" in str(result).splitlines()[-1]
    assert twinrun.compare(a, np.asfortranarray(a)).same
    assert twinrun.compare(a[:, ::2], a[:, ::2].copy()).same
    assert twinrun.compare(a[:0], a[:0]).same
    with pytest.raises(twinrun.Incomparable, match=f"{name} in the first run, f64 in the second"):
        twinrun.compare({"x": a}, {"x": np.zeros((2, 3))})


def _core_knows(kind: type) -> bool:
    return np.finfo(kind).nmant == 52


def test_no_tolerance_holds_for_dates(tmp_path: Path) -> None:
    """NaT is the smallest 64-bit integer: within a large tolerance it would agree with a date."""
    times = np.arange(1000).astype("M8[s]")
    other = times.copy()
    other[3] = "NaT"
    far = times + np.timedelta64(10**7, "s")
    spans = np.array([-(2**63), 5]).view("m8[s]"), np.array([-(2**63) + 1, 5]).view("m8[s]")
    for a, b in ((times, other), (other, times), (times, far), spans):
        for options in ({"atol": 1e30, "tolerate_integers": True}, {"rtol": 1e9, "tolerate_integers": True}):
            assert not twinrun.compare({"t": a}, {"t": b}, **options).same
        assert "would pass" not in str(twinrun.compare({"t": a}, {"t": b}))
        assert "tolerate" not in str(twinrun.compare({"t": a}, {"t": b}, atol=1.0))
    assert twinrun.compare({"t": other}, {"t": other.copy()}).same
    runs = []
    for name, x in (("a", times), ("b", other), ("c", far)):
        runs.append(tmp_path / f"{name}.npz")
        np.savez(runs[-1], time=x)
    rules = tmp_path / "rules.toml"
    assert command("tolerances", runs[0], runs[1], "-o", rules).status == 0
    assert command("compare", runs[0], runs[2], "--tolerances", rules).status == 1
    with twinrun.Run(tmp_path / "h") as run:
        run.capture(0, {"t": times})
    with twinrun.Run(tmp_path / "i") as run:
        run.capture(0, {"t": other})
    assert (
        command("compare", tmp_path / "h", tmp_path / "i", "--atol", "1e30", "--tolerate-integers").status
        == 1
    )


def test_float8_arrays_of_ml_dtypes_in_memory() -> None:
    """NumPy counts float8_e5m2 among its own floating-point types; it is no long double."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    a = np.zeros((8, 8), "u1")
    b = a.copy()
    b[3, 3] = 128  # the zero of the other sign
    for name in ("float8_e5m2", "float8_e4m3fn"):
        x, y = a.view(getattr(ml_dtypes, name)), b.view(getattr(ml_dtypes, name))
        for pair in (({"w": x}, {"w": y}), (x, y)):
            found = twinrun.compare(*pair)
            assert (found.different, found.fields[0].dtype, found.fields[0].elements) == (1, "u8", 64)
        assert twinrun.compare({"w": x}, {"w": y}, types="values").verdict == "same"


def test_only_numpys_own_long_doubles_are_long_doubles() -> None:
    """The same where ml_dtypes is missing: its type has the kind of NumPy's floating-point numbers."""
    from types import SimpleNamespace

    from twinrun.runs.in_memory import _is_wide

    assert not _is_wide(SimpleNamespace(kind="f", char="5", itemsize=1, byteorder="<"))  # type: ignore[arg-type]
    for kind in (np.longdouble, np.clongdouble):
        assert _is_wide(np.dtype(kind)) == (np.dtype(np.longdouble).itemsize > 8)
    assert not _is_wide(np.dtype(np.float64))
