"""GRIB files that eccodes writes, against what eccodes reads of them."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import numpy as np
import pytest
from format_checks import check_field, damaged_versions, mutations, no_false_same
from hypothesis import given, settings
from hypothesis import strategies as st

import twinrun
from twinrun.errors import DamagedFile, FormatError, MissingPackage, Unsupported
from twinrun.formats import detect, open_file
from twinrun.formats.grib_messages import read_messages

eccodes = pytest.importorskip("eccodes")

NI, NJ = 16, 31  # of eccodes' sample of a regular grid


def numbers(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(280, 10, NI * NJ)


def message(
    edition: int = 2,
    values: np.ndarray | None = None,
    missing: tuple[int, ...] = (),
    packing: str = "grid_simple",
    **keys: object,
) -> bytes:
    handle = eccodes.codes_grib_new_from_samples(f"regular_ll_pl_grib{edition}")
    for key, value in {"shortName": "t", "level": 500, "step": 0, **keys}.items():
        eccodes.codes_set(handle, key, value)
    values = numbers(1) if values is None else values.copy()
    if missing:
        eccodes.codes_set(handle, "bitmapPresent", 1)
        eccodes.codes_set(handle, "missingValue", 9999.0)
        values[list(missing)] = 9999.0
    eccodes.codes_set(handle, "packingType", packing)
    eccodes.codes_set_values(handle, values)
    data = eccodes.codes_get_message(handle)
    eccodes.codes_release(handle)
    return data


def several(*fields: bytes) -> bytes:
    """One message of several fields, as the specification lays it out: sections 2 to 7 repeated."""
    parts = []
    for number, data in enumerate(fields):
        at = 16
        while data[at : at + 4] != b"7777":
            length = int.from_bytes(data[at : at + 4], "big")
            if number == 0 or data[at + 4] not in (1, 3):
                parts.append(data[at : at + length])
            at += length
    body = b"".join(parts)
    return fields[0][:8] + (16 + len(body) + 4).to_bytes(8, "big") + body + b"7777"


def eccodes_reads(data: bytes) -> np.ndarray:
    handle = eccodes.codes_new_from_message(data)
    eccodes.codes_set(handle, "missingValue", -1e300)
    values = np.array(eccodes.codes_get_values(handle))
    eccodes.codes_release(handle)
    return np.where(values == -1e300, np.nan, values)


# Edition 1 has no grid_ccsds.
PACKINGS = [
    (2, "grid_ccsds"),
    *((e, p) for e in (1, 2) for p in ("grid_simple", "grid_second_order", "grid_ieee")),
]


@pytest.mark.parametrize(("edition", "packing"), PACKINGS)
def test_values_of_every_packing(tmp_path, edition, packing):
    missing = () if packing == "grid_ieee" else (3, 100)
    data = message(edition, missing=missing, packing=packing)
    (tmp_path / "a.grib").write_bytes(data)
    assert detect(tmp_path / "a.grib").name == "grib"
    with open_file(tmp_path / "a.grib") as content:
        assert list(content.fields) == ["t/isobaricInhPa/500"] and not content.skipped
        field = content.fields["t/isobaricInhPa/500"]
        expected = eccodes_reads(data).reshape(NJ, NI)
        assert np.isnan(expected).sum() == len(missing)
        check_field(field, expected)
        assert content.facts["t/isobaricInhPa/500@units"].text == "'K'"
        assert content.dialect == f"grib{edition}"


def many(seed: int = 0) -> list[bytes]:
    found = []
    for step in (0, 6, 12):
        for level in (500, 850):
            for name in ("t", "u"):
                values = numbers(seed + step * 100 + level * 10 + ord(name))
                found.append(message(values=values, shortName=name, level=level, step=step))
    return found


def test_messages_are_named_by_their_keys_and_compared_in_any_order(tmp_path):
    messages = many()
    (tmp_path / "a.grib").write_bytes(b"".join(messages))
    (tmp_path / "b.grib").write_bytes(b"".join(messages[::-1]))
    with open_file(tmp_path / "a.grib") as content:
        assert content.steps() == [0, 6, 12]
        names = [f"step-{s}/{n}/isobaricInhPa/{lev}" for s in (0, 6, 12) for lev in (500, 850) for n in "tu"]
        assert sorted(content.fields) == sorted(names)
        expected = eccodes_reads(messages[5]).reshape(NJ, NI)
        check_field(content.fields["step-6/u/isobaricInhPa/500"], expected)
    assert twinrun.compare(tmp_path / "a.grib", tmp_path / "b.grib").same


def test_the_report_is_that_of_numpy(tmp_path):
    a, b = many(), many()
    changed = {2: 5, 7: 1}
    for number, count in changed.items():
        values = eccodes_reads(b[number])
        values[:count] += 3
        keys = {"level": (500, 500, 850, 850)[number % 4], "step": (0, 6, 12)[number // 4]}
        b[number] = message(values=values, shortName="tu"[number % 2], **keys)
    (tmp_path / "a.grib").write_bytes(b"".join(a))
    (tmp_path / "b.grib").write_bytes(b"".join(b[::-1]))
    result = twinrun.compare(tmp_path / "a.grib", tmp_path / "b.grib", atol=0.5)
    found = {(f.step, f.field): (f.different, f.max_abs_diff) for f in result.fields if f.different}
    expected = {}
    for number in changed:
        apart = np.abs(eccodes_reads(a[number]) - eccodes_reads(b[number]))
        name = f"{'tu'[number % 2]}/isobaricInhPa/{(500, 500, 850, 850)[number % 4]}"
        expected[(0, 6, 12)[number // 4], name] = (int((apart > 0.5).sum()), apart.max())
    assert found == expected and result.verdict == "different"


def test_missing_values_are_nan_and_a_new_one_is_a_difference(tmp_path):
    (tmp_path / "a.grib").write_bytes(message(missing=(3,)))
    (tmp_path / "b.grib").write_bytes(message(missing=(3,)))
    (tmp_path / "c.grib").write_bytes(message(missing=(3, 4)))
    assert twinrun.compare(tmp_path / "a.grib", tmp_path / "b.grib").same
    result = twinrun.compare(tmp_path / "a.grib", tmp_path / "c.grib", atol=100.0)
    assert [f.different for f in result.fields] == [1]


def test_a_message_of_several_fields(tmp_path):
    one, two = message(level=500, missing=(3,)), message(level=850, values=numbers(2))
    (tmp_path / "a.grib").write_bytes(several(one, two))
    (tmp_path / "b.grib").write_bytes(two + one)
    with open_file(tmp_path / "a.grib") as content:
        assert sorted(content.fields) == ["t/isobaricInhPa/500", "t/isobaricInhPa/850"]
        check_field(content.fields["t/isobaricInhPa/500"], eccodes_reads(one).reshape(NJ, NI))
        check_field(content.fields["t/isobaricInhPa/850"], eccodes_reads(two).reshape(NJ, NI))
    assert twinrun.compare(tmp_path / "a.grib", tmp_path / "b.grib").same


def test_a_bitmap_that_is_used_again(tmp_path):
    one = message(level=500, missing=(3, 4))
    two = message(level=850, values=numbers(2), missing=(3, 4))
    # Section 6 of the second field refers to the first one's bitmap.
    at = 16
    while two[at + 4] != 6:
        at += int.from_bytes(two[at : at + 4], "big")
    length = int.from_bytes(two[at : at + 4], "big")
    short = two[:at] + b"\0\0\0\6\6\xfe" + two[at + length :]
    (tmp_path / "a.grib").write_bytes(several(one, short))
    with open_file(tmp_path / "a.grib") as content:
        check_field(content.fields["t/isobaricInhPa/850"], eccodes_reads(two).reshape(NJ, NI))


def test_members_levels_and_times_have_names_of_their_own(tmp_path):
    def names(*messages: bytes) -> list[str]:
        (tmp_path / "a.grib").write_bytes(b"".join(messages))
        with open_file(tmp_path / "a.grib") as content:
            return sorted(content.fields)

    member = {"productDefinitionTemplateNumber": 1, "numberOfForecastsInEnsemble": 4}
    assert names(*(message(**member, number=n) for n in (0, 3))) == [
        "t/isobaricInhPa/500/number-0",
        "t/isobaricInhPa/500/number-3",
    ]
    assert names(
        message(dataDate=20260101), message(dataDate=20260102), message(dataDate=20260102, step=6)
    ) == [
        "step-2026010112/t/isobaricInhPa/500",
        "step-2026010212/t/isobaricInhPa/500",
        "step-2026010212/t/isobaricInhPa/500/step-6",
    ]
    assert names(message(), message()) == ["t/isobaricInhPa/500", "t/isobaricInhPa/500#2"]
    accumulated = {"shortName": "tp", "typeOfLevel": "surface", "level": 0}
    assert names(message(**accumulated, stepRange="0-6")) == ["tp/surface/0/accum"]


@pytest.mark.parametrize(
    ("keys", "step", "name"),
    [
        ({"step": 6}, 6, "t/isobaricInhPa/500"),
        ({"stepUnits": "m", "forecastTime": 90}, 90, "t/isobaricInhPa/500"),
        ({"stepUnits": "m", "forecastTime": 120}, 2, "t/isobaricInhPa/500"),
        # A step is not negative: then the base time takes its place.
        ({"forecastTime": -6}, 2007032312, "t/isobaricInhPa/500/step--6"),
    ],
)
def test_steps_are_hours_or_minutes_and_not_negative(tmp_path, keys, step, name):
    (tmp_path / "a.grib").write_bytes(message(**keys))
    with open_file(tmp_path / "a.grib") as content:
        assert content.steps() == [step] and list(content.fields) == [name]
        assert ("@(unit of steps)" in content.facts) == (step == 90)


def test_keys_and_grids_are_attributes(tmp_path):
    (tmp_path / "a.grib").write_bytes(message())
    changes = {
        "dataDate": 20200101,
        "latitudeOfFirstGridPointInDegrees": 59.0,
        "generatingProcessIdentifier": 99,
        "centre": 7,
    }
    for key, value in changes.items():
        (tmp_path / "b.grib").write_bytes(message(**{key: value}))
        assert twinrun.compare(tmp_path / "a.grib", tmp_path / "b.grib").verdict == "different", key


def test_how_values_are_packed_is_no_difference(tmp_path):
    for edition in (1, 2):
        values = np.round(numbers(3))
        for name, packing in (("a", "grid_simple"), ("b", "grid_second_order")):
            data = message(edition, values=values, packing=packing, bitsPerValue=16, decimalScaleFactor=0)
            (tmp_path / f"{name}.grib").write_bytes(data)
        with open_file(tmp_path / "a.grib") as a, open_file(tmp_path / "b.grib") as b:
            equal = (
                a.fields["t/isobaricInhPa/500"].elements() == b.fields["t/isobaricInhPa/500"].elements()
            ).all()
        assert twinrun.compare(tmp_path / "a.grib", tmp_path / "b.grib").same == equal


def test_what_cannot_be_compared_is_said(tmp_path):
    (tmp_path / "a.grib").write_bytes(message(missing=(3,), packing="grid_ieee"))
    with pytest.raises(Unsupported, match="bitmap of missing values; pack them"):
        twinrun.compare(tmp_path / "a.grib", tmp_path / "a.grib")


def test_bytes_between_messages(tmp_path):
    a, b = message(level=500), message(level=850)
    (tmp_path / "a.grib").write_bytes(a + b)
    (tmp_path / "b.grib").write_bytes(a + b"\0" * 100 + b + b"\0\0")
    assert twinrun.compare(tmp_path / "a.grib", tmp_path / "b.grib").same
    (tmp_path / "b.grib").write_bytes(a + b"a heading" + b)
    assert twinrun.compare(tmp_path / "a.grib", tmp_path / "b.grib").verdict == "different"
    for wrong in (a + b"GRI" + b[4:], a + b + b"rest", a + b[:-4] + b"7776", b"", a[:-1]):
        (tmp_path / "b.grib").write_bytes(wrong)
        with pytest.raises(DamagedFile):
            open_file(tmp_path / "b.grib", format="grib")


def test_without_the_package(tmp_path, monkeypatch):
    (tmp_path / "a.grib").write_bytes(message())
    monkeypatch.setitem(sys.modules, "eccodes", None)
    with pytest.raises(MissingPackage, match=r"pip install 'twinrun\[grib\]'"):
        open_file(tmp_path / "a.grib")


def shown(path: Path) -> object:
    """What eccodes shows: all keys but sums, places and packing, and values."""
    found = []
    with open(path, "rb") as file:
        while (handle := eccodes.codes_grib_new_from_file(file)) is not None:
            keys = {}
            for space in ("ls", "mars", "time", "geography", "vertical", "parameter"):
                iterator = eccodes.codes_keys_iterator_new(handle, space)
                while eccodes.codes_keys_iterator_next(iterator):
                    key = eccodes.codes_keys_iterator_get_name(iterator)
                    if key != "packingType":
                        keys[key] = eccodes.codes_get_string(handle, key)
                eccodes.codes_keys_iterator_delete(iterator)
            values = eccodes.codes_get_values(handle) + 0.0
            found.append((keys, values.tobytes()))
            eccodes.codes_release(handle)
    return sorted(found, key=repr)


@pytest.mark.parametrize("edition", [1, 2])
def test_damage_is_never_the_same(tmp_path, edition):
    small = np.zeros(NI * NJ)
    small[::7] = 3.0
    data = b"".join(message(edition, values=small + level, level=level, missing=(3,)) for level in (500, 850))
    (tmp_path / "a.grib").write_bytes(data)
    # Most of the file are values; what is in front of them matters more.
    versions = damaged_versions(data, 3, cuts=6, flips=8)
    versions += [
        data[:n] + part[:1] + data[n + 1 :] for n in range(8, 200, 9) if (part := bytes([data[n] ^ 0x41]))
    ]
    verdicts = no_false_same(tmp_path / "a.grib", versions, shown)
    assert verdicts["error"] >= 8 and verdicts["different"] >= 5


@functools.cache
def good_ones() -> list[bytes]:
    return [message(1), message(2), several(message(2), message(2, level=850))]


@settings(max_examples=200)
@given(st.data())
def test_lengths_are_checked_before_the_package_sees_a_message(tmp_path, data):
    good = data.draw(st.sampled_from(good_ones()))
    path = tmp_path / "x.grib"
    path.write_bytes(data.draw(mutations(good)))
    size = path.stat().st_size
    try:
        with open(path, "rb", buffering=0) as file:
            found, _ = read_messages(file, size, "x.grib")
        for each in found:
            assert each.pieces and all(
                0 <= at and count > 0 and at + count <= size for at, count in each.pieces
            )
    except FormatError as error:
        assert str(error).isprintable()
