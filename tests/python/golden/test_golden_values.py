"""Golden files that keep values say what `compare` says; values that do not belong to their digests are never used."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import numpy as np
import pytest
from commands import command, load_json
from hypothesis import given, settings
from hypothesis import strategies as st

import twinrun
from twinrun import _core, golden
from twinrun.golden.manifest import _checksum, checksum
from twinrun.golden.single import NotReproduced, Reproducible
from twinrun.golden.values import parsed_values, read_values

TIMES = settings(max_examples=60)
DTYPES = ["f2", "f4", "f8", "c8", "c16", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "?"]


def random_pair(seed: int, dtype: str, share: float, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """An array with special values, and one that differs from it in a share of its elements."""
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(0, 9, size=rng.integers(0, 4)).tolist())
    d = np.dtype(dtype)
    size = math.prod(shape)
    if d.kind in "iu":
        info = np.iinfo(d)
        a = rng.integers(info.min, info.max, size=size, dtype=d, endpoint=True)
        b = a + rng.integers(-2 if d.kind == "i" else 0, 3, size=size).astype(d) * (rng.random(size) < share)
        return a.reshape(shape), b.astype(d).reshape(shape)
    if d.kind == "b":
        a = rng.random(size) < 0.5
        return a.reshape(shape), (a ^ (rng.random(size) < share)).reshape(shape)
    scalars = size * (2 if d.kind == "c" else 1)
    real = np.dtype(f"f{d.itemsize // 2}") if d.kind == "c" else d
    with np.errstate(all="ignore"):
        a = rng.normal(size=scalars).astype(real)
        b = (a + (rng.normal(size=scalars) * noise * (rng.random(scalars) < share))).astype(real)
        special = np.array([0.0, -0.0, math.nan, math.inf, -math.inf, 65504.0, 5e-324, 1e300]).astype(real)
        for side in (a, b):
            at = rng.random(scalars) < 0.1
            side[at] = rng.choice(special, size=int(at.sum()))
        same = rng.random(scalars) < 0.5
        b[same] = a[same]
    return a.view(d).reshape(shape), b.view(d).reshape(shape)


def as_compared(field: golden.GoldenField, a: np.ndarray, b: np.ndarray, **how: object) -> None:
    """The golden check says what comparing both arrays says, element by element."""
    result = twinrun.compare({"x": a}, {"x": b}, **how)
    (truth,) = result.fields
    assert field.values_kept and field.different_is_exact and not field.undecided
    assert (field.verdict == "same") == truth.same
    assert (field.different, field.elements) == (truth.different, truth.elements)
    assert (field.atol, field.rtol, field.ulps, field.period) == (
        truth.atol,
        truth.rtol,
        truth.ulps,
        truth.period,
    )
    assert field.at_least == field.at_most == truth.max_abs_diff
    parts = list(result.differences())
    index = [tuple(i) for part in parts for i in part.index.tolist()]
    assert [e.index for e in field.listed] == index
    for name in ("a", "b"):
        known = np.concatenate([getattr(part, name) for part in parts]) if parts else np.empty(0)
        told = np.array([getattr(e, name) for e in field.listed], known.dtype)
        assert np.array_equal(told, known, equal_nan=known.dtype.kind == "f")
    apart = [d for part in parts for d in part.abs_diff.tolist()]
    assert [e.at_least for e in field.listed] == [e.at_most for e in field.listed] == apart
    assert sum(s.different for s in field.spans) == field.different


@TIMES
@given(
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from(DTYPES),
    atol=st.sampled_from([None, 0.0, 1e-6, 1e-3, 0.5, 2.0]),
    rtol=st.sampled_from([None, 0.0, 1e-3, 0.3]),
    share=st.sampled_from([0.0, 0.05, 1.0]),
    noise=st.sampled_from([1e-7, 1e-3, 1.0]),
    integers=st.booleans(),
    chunk=st.sampled_from([4096, 16384]),
    bits=st.sampled_from([4, 2, 0]),
)
def test_kept_values_say_what_a_comparison_says(
    tmp_path_factory: pytest.TempPathFactory, seed, dtype, atol, rtol, share, noise, integers, chunk, bits
) -> None:
    folder = tmp_path_factory.mktemp("g")
    a, b = random_pair(seed, dtype, share, noise)
    how = {"atol": atol, "rtol": rtol, "tolerate_integers": integers}
    golden.save({"x": a}, folder / "g", chunk_bytes=chunk, residue_bits=bits, **how)
    result = golden.check(folder / "g", {"x": b}, most_listed=10**6)
    assert result.problems == []
    as_compared(result.fields[0], a, b, **how)
    assert golden.check(folder / "g", {"x": a}).same
    # Digests alone never say otherwise.
    golden.save({"x": a}, folder / "d", chunk_bytes=chunk, residue_bits=bits, keep_values=0, **how)
    (digests,) = golden.check(folder / "d", {"x": b}).fields
    assert digests.verdict in (result.fields[0].verdict, "undecided")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("swapped", [False, True])
def test_layouts_and_byte_orders(order: str, swapped: bool, tmp_path: Path) -> None:
    a = np.arange(24.0).reshape(2, 3, 4)
    b = a.copy()
    b[1, 2, 0] += 1
    given = np.array(a, order=order)
    golden.save({"x": given.astype(">f8") if swapped else given}, tmp_path / "g")
    (field,) = golden.check(tmp_path / "g", {"x": np.asfortranarray(b)}).fields
    as_compared(field, a, b)
    assert [(e.index, e.a, e.b) for e in field.listed] == [((1, 2, 0), 20.0, 21.0)]


def test_how_large_arrays_are_kept(tmp_path: Path) -> None:
    arrays = {
        "small": np.zeros(8192),
        "large": np.zeros(8193),
        "empty": np.zeros((0, 3)),
        "one": np.float32(2),
    }
    golden.save(arrays, tmp_path / "g")
    kept = read_values(str(tmp_path / "g" / "rank_0.twv"), (tmp_path / "g" / "rank_0.twm").read_bytes())
    assert sorted(kept) == ["empty", "one", "small"]
    result = golden.check(tmp_path / "g", arrays)
    assert result.same and {f.field: f.values_kept for f in result.fields} == {
        "small": True, "large": False, "empty": True, "one": True,
    }  # fmt: skip
    facts = golden.save(arrays, tmp_path / "g", keep_values=0)
    assert sorted(f.name for f in (tmp_path / "g").iterdir()) == ["golden.json", "rank_0.twm"]
    assert facts.files == 2 and golden.check(tmp_path / "g", arrays).same
    facts = golden.save(arrays, tmp_path / "g", keep_values=1 << 20)
    on_disk = sum(f.stat().st_size for f in (tmp_path / "g").iterdir())
    assert (facts.files, facts.bytes) == (3, on_disk)
    result = golden.check(tmp_path / "g", arrays)
    assert (
        all(f.values_kept for f in result.fields)
        and result.golden_bytes == facts.bytes - (tmp_path / "g" / "golden.json").stat().st_size
    )


def test_reports_say_where_and_by_how_much(tmp_path: Path) -> None:
    a = np.linspace(0, 1, 600).reshape(20, 30)
    b = a.copy()
    b[3, 7] += 0.25
    b[4, 1] = np.nan
    np.save(tmp_path / "b.npy", b)
    golden.save(a, tmp_path / "g", atol=1e-3)
    report = tmp_path / "r.json"
    done = command(
        "golden", "check", tmp_path / "g", tmp_path / "b.npy", "--json", report, "--junit", tmp_path / "r.xml"
    )
    assert done.status == 1 and "cell" not in done.out and "digest" not in done.out
    assert "array[3, 7] = 0.412, was 0.162: |a-b| = 0.25 > 0.001" in done.out
    assert "array[4, 1] = nan, was 0.202" in done.out
    (field,) = load_json(report.read_text())["fields"]
    assert (
        field["values_kept"] and field["listed"][0]["a"] == a[3, 7] and field["listed"][0]["index"] == [3, 7]
    )
    assert "was 0.162" in (tmp_path / "r.xml").read_text()


def test_digests_give_a_bound_in_the_unit_of_the_field(tmp_path: Path) -> None:
    """Where values are not kept: also of elements whose cells are not known."""
    a = np.zeros(100_000)
    b = a.copy()
    b[[5, 300, 301]] = [1.0, 2.0, 0.0022]
    golden.save({"x": a}, tmp_path / "g", atol=1e-3)
    result = golden.check(tmp_path / "g", {"x": b})
    listed = result.fields[0].listed
    assert result.verdict == "different" and listed
    np.save(tmp_path / "b.npy", b)
    for e in listed:
        assert e.cells is None and 1e-3 <= e.at_least <= abs(b[e.index])
    from twinrun.golden.words import element_text

    said = [element_text(e, result.fields[0]) for e in listed]
    assert all(
        "|a-b| is at least 0.00" in text and "cell" not in text and "digest" not in text for text in said
    )


@TIMES
@given(seed=st.integers(0, 2**32 - 1), dtype=st.sampled_from(["f4", "f8", "i4", "u2"]),
       atol=st.sampled_from([1e-3, 0.5, 2.0]), rtol=st.sampled_from([0.0, 1e-3, 0.05]),
       bits=st.sampled_from([4, 2]))  # fmt: skip
def test_the_least_difference_of_unexplained_elements_is_true(
    tmp_path_factory: pytest.TempPathFactory, seed, dtype, atol, rtol, bits
) -> None:
    rng = np.random.default_rng(seed)
    d = np.dtype(dtype)
    a = (rng.normal(size=3000) * 50 + 200).astype(d)
    b = a.copy()
    at = rng.choice(3000, size=40, replace=False)
    b[at] = (a[at] + rng.normal(size=40) * atol * rng.choice([1.5, 5, 40, 1e4])).astype(d)
    folder = tmp_path_factory.mktemp("g")
    golden.save(
        {"x": a}, folder / "g", atol=atol, rtol=rtol, residue_bits=bits, keep_values=0, tolerate_integers=True
    )
    (field,) = golden.check(folder / "g", {"x": b}, most_listed=5000).fields
    for e in field.listed:
        exact = abs(float(a[e.index]) - float(b[e.index]))
        assert e.at_least <= exact * (1 + 1e-15) and exact <= e.at_most * (1 + 1e-15)


# ---- damage ----


def rewritten(folder: Path, name: str, content: bytes) -> None:
    """Replaces a golden file, with the checksum in golden.json made right."""
    (folder / name).write_bytes(content)
    d = json.loads((folder / "golden.json").read_text())
    d.pop("checksum")
    for place in d["places"]:
        for listed in (place, place.get("values") or {}):
            if listed.get("file") == name:
                listed.update(xxh3=checksum(content), bytes=len(content))
    (folder / "golden.json").write_text(json.dumps({**d, "checksum": _checksum(d)}))


def sealed(content: bytes) -> bytes:
    """A values file with its own checksums made right."""
    body = content[64:]
    head = bytearray(content[:64])
    struct.pack_into("<Q", head, 16, len(content))
    struct.pack_into("<Q", head, 40, _core.xxh3(body))
    struct.pack_into("<Q", head, 56, _core.xxh3(bytes(head[:56])))
    return bytes(head) + body


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, np.ndarray]:
    a = np.linspace(1, 2, 500)
    golden.save({"x": a}, tmp_path / "g", atol=1e-6)
    return tmp_path / "g", a


def damaged(folder: Path, run: object, said: str) -> None:
    result = golden.check(folder, run)
    assert (result.verdict, result.status) == ("incomparable", 2)
    assert said in result.problems[0].text, result.problems[0].text


def test_values_that_do_not_match_their_digests_are_damage(saved: tuple[Path, np.ndarray]) -> None:
    """Whoever changed them knew all checksums. The run agrees with the changed values, and does not pass."""
    folder, a = saved
    b = a.copy()
    b[77] += 1
    content = (folder / "rank_0.twv").read_bytes()
    at = content.index(a.tobytes())
    forged = sealed(content[:at] + b.tobytes() + content[at + b.nbytes :])
    parsed_values(forged, "f", (folder / "rank_0.twm").read_bytes())  # nothing else is wrong with it
    rewritten(folder, "rank_0.twv", forged)
    damaged(folder, {"x": b}, "the kept values are not those of the digests")
    damaged(folder, {"x": a}, "the kept values are not those of the digests")


def test_other_fields_of_a_damaged_file_are_compared(tmp_path: Path) -> None:
    arrays = {name: np.linspace(1, 2, 500) + at for at, name in enumerate("abc")}
    golden.save(arrays, tmp_path / "g", atol=1e-6)
    content = (tmp_path / "g" / "rank_0.twv").read_bytes()
    at = content.index(arrays["b"].tobytes())
    forged = (arrays["b"] + 1).tobytes()
    rewritten(tmp_path / "g", "rank_0.twv", sealed(content[:at] + forged + content[at + len(forged) :]))
    result = golden.check(tmp_path / "g", {**arrays, "c": arrays["c"] + 1})
    assert [(p.field, "are not those" in p.text) for p in result.problems] == [("b", True)]
    assert [(f.field, f.verdict) for f in result.fields] == [("a", "same"), ("c", "different")]


def test_what_fields_share_is_found_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels were looked for in all fields at each field, and each had its own file of digests."""
    from twinrun.golden import digests, fields

    calls = {"labels": 0, "files": 0}

    def counted(what: str, usual):  # type: ignore[no-untyped-def]
        def call(*given, **how):  # type: ignore[no-untyped-def]
            calls[what] += 1
            return usual(*given, **how)

        return call

    golden.save({f"x{n}": np.arange(5.0) + n for n in range(40)}, tmp_path / "g", atol=1e-6)
    monkeypatch.setattr(digests, "labels_told", counted("labels", digests.labels_told))
    monkeypatch.setattr(fields, "build", counted("files", fields.build))
    result = golden.check(tmp_path / "g", {f"x{n}": np.arange(5.0) + n for n in range(40)})
    assert result.verdict == "same" and len(result.fields) == 40
    assert calls["labels"] <= 2 and calls["files"] == 1


def test_values_of_another_shape_or_type_are_damage(saved: tuple[Path, np.ndarray]) -> None:
    folder, a = saved
    content = (folder / "rank_0.twv").read_bytes()
    for old, new in ((b'"shape": [500]', b'"shape": [5, 100]'), (b'"f64"', b'"i64"')):
        told = content.replace(old, new)
        head = bytearray(told)
        struct.pack_into("<Q", head, 24, struct.unpack_from("<Q", content, 24)[0] + len(new) - len(old))
        rewritten(folder, "rank_0.twv", sealed(bytes(head)))
        damaged(folder, {"x": a}, "the kept values are not those of the digests")


def test_every_flipped_bit_is_found(saved: tuple[Path, np.ndarray]) -> None:
    folder, _ = saved
    content = (folder / "rank_0.twv").read_bytes()
    metadata = (folder / "rank_0.twm").read_bytes()
    for at in [*range(200), *range(200, len(content), 97)]:
        wrong = bytearray(content)
        wrong[at] ^= 1 << (at % 8)
        with pytest.raises(twinrun.TwinrunError):
            parsed_values(bytes(wrong), "f", metadata)
    for cut in range(0, len(content), 61):
        with pytest.raises(twinrun.TwinrunError):
            parsed_values(content[:cut], "f", metadata)
    with pytest.raises(twinrun.DamagedFile, match="other golden digests"):
        parsed_values(content, "f", metadata + b"x")


@given(st.binary(max_size=300), st.integers(0, 400))
def test_any_directory_is_refused_or_right(told: bytes, tail: int) -> None:
    metadata = b"m"
    head = struct.pack("<8sIIQQQQQQ", b"\x89TWV\r\n\x1a\n", 1, 0, 0, len(told), _core.xxh3(metadata), 0, 0, 0)
    with pytest.raises(twinrun.TwinrunError):
        parsed_values(sealed(head + told + b"\0" * tail) if told != b"[]" else b"", "f", metadata)


def test_missing_and_foreign_values_files(saved: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    folder, a = saved
    content = (folder / "rank_0.twv").read_bytes()
    (folder / "rank_0.twv").unlink()
    damaged(folder, {"x": a}, "no such file")
    # A golden file that somebody keeps under the name of ours is not replaced.
    (folder / "rank_0.twv").write_bytes(b"somebody's")
    with pytest.raises(twinrun.TwinrunError, match="move it away"):
        golden.save({"x": a + 1}, folder)
    (folder / "rank_0.twv").write_bytes(content)
    assert golden.check(folder, {"x": a}).same
    done = command("compare", folder / "rank_0.twm", folder / "rank_0.twm", "--json", folder / "rank_0.twv")
    assert done.status == 2 and (folder / "rank_0.twv").read_bytes() == content


def test_readers_of_version_1_know_golden_files_with_values(saved: tuple[Path, np.ndarray]) -> None:
    """They say what digests prove: the manifest has version 1, and nothing that they refuse."""
    folder, a = saved
    d = json.loads((folder / "golden.json").read_text())
    assert d["version"] == 1 and d["places"][0]["values"]["file"] == "rank_0.twv"
    d.pop("checksum")
    d["places"][0].pop("values")  # what they do not look at
    (folder / "golden.json").write_text(json.dumps({**d, "checksum": _checksum(d)}))
    (folder / "rank_0.twv").unlink()
    assert golden.check(folder, {"x": a + 1e-7}).same
    assert golden.check(folder, {"x": a + 1e-3}).verdict == "different"


# ---- the plugin's files ----


def test_a_failing_test_says_by_how_much(tmp_path: Path) -> None:
    a = np.linspace(0, 1, 300)
    b = a.copy()
    b[9] += 0.5
    Reproducible(tmp_path, ["t"], update=True).check("x", a, atol=1e-6)
    assert sorted(p.name for p in (tmp_path / "t").iterdir()) == ["x.twm", "x.twv"]
    with pytest.raises(NotReproduced, match=r"x\[9\] = 0\.53, was 0\.0301: \|a-b\| = 0\.5 > 1e-06"):
        Reproducible(tmp_path, ["t"]).check("x", b, atol=1e-6)
    written: list = []
    Reproducible(tmp_path, ["t"], update=True, written=written).check("x", a, atol=1e-6)
    assert [changed for _, changed in written] == [False]
    Reproducible(tmp_path, ["t"], update=True).check("x", a, atol=1e-6, keep_values=0)
    assert sorted(p.name for p in (tmp_path / "t").iterdir()) == ["x.twm"]


def test_values_of_an_earlier_update_are_not_used(tmp_path: Path) -> None:
    """An older twinrun writes the digests again, and does not know of the values."""
    a = np.linspace(0, 1, 300)
    Reproducible(tmp_path, ["t"], update=True).check("x", a, atol=1e-6)
    stale = (tmp_path / "t" / "x.twv").read_bytes()
    Reproducible(tmp_path, ["t"], update=True).check("x", a + 1e-9, atol=1e-6)
    (tmp_path / "t" / "x.twv").write_bytes(stale)
    with pytest.raises(twinrun.DamagedFile, match="save again"):
        Reproducible(tmp_path, ["t"]).check("x", a, atol=1e-6)


def test_rules_of_single_checks_need_values(tmp_path: Path) -> None:
    a = np.linspace(0, 1, 300)
    for how in ({"ulp": 4}, {"period": "x=1.0"}):
        make = Reproducible(tmp_path, ["t"], update=True)
        with pytest.raises(twinrun.TwinrunError, match="keep_values=2400"):
            make.check("x", a, keep_values=100, **how)
        Reproducible(tmp_path, ["t"], update=True).check("x", a, **how)
        near = np.nextafter(a, 2) if "ulp" in how else np.where(a == 0, 1.0, a)
        assert Reproducible(tmp_path, ["t"]).check("x", near, **how)[0].verdict == "same"
        with pytest.raises(NotReproduced):
            Reproducible(tmp_path, ["t"]).check("x", near)
        Reproducible(tmp_path, ["t"], update=True).check("x", a, keep_values=0)
        with pytest.raises(NotReproduced, match="keep_values=2400"):
            Reproducible(tmp_path, ["t"]).check("x", a, **how)


@pytest.mark.parametrize("offset", [12, 48])
def test_reserved_bytes_are_zero(saved: tuple[Path, np.ndarray], offset: int) -> None:
    folder, _ = saved
    content = bytearray((folder / "rank_0.twv").read_bytes())
    content[offset] = 1
    content[56:64] = _core.xxh3(bytes(content[:56])).to_bytes(8, "little")
    with pytest.raises(twinrun.DamagedFile, match="header that is not understood"):
        parsed_values(bytes(content), "rank_0.twv", (folder / "rank_0.twm").read_bytes())
