"""Files are laid out here as VELOC's client.cpp (checkpoint_mem) and posix_agg_module.cpp write them: VELOC itself needs its backend."""

import hashlib
import json
import struct

import numpy as np
import pytest
from format_checks import check_content, mutations, survives
from hypothesis import given, settings
from hypothesis import strategies as st

from twinrun.errors import DamagedFile, FormatError, MissingFile
from twinrun.formats import detect, open_file
from twinrun.formats.folder import list_folder


def checkpoint(regions: dict[int, bytes]) -> bytes:
    """A std::map of regions: ascending ids, the header without padding, then the bytes."""
    ordered = sorted(regions.items())
    header = struct.pack("<Q", len(ordered)) + b"".join(struct.pack("<iQ", i, len(d)) for i, d in ordered)
    return header + b"".join(data for _, data in ordered)


def regions_of(rank: int, version: int) -> dict[int, np.ndarray]:
    return {
        -2: np.arange(3 + rank, dtype="u1"),
        0: np.array([version], "<i4"),
        1: np.arange(5.0) * version + rank,
        7: np.zeros(0, "u1"),
    }


def bytes_of(regions: dict[int, np.ndarray]) -> dict[int, bytes]:
    return {i: a.tobytes() for i, a in regions.items()}


def test_bytes_and_typed_regions(tmp_path):
    path = tmp_path / "heat-3-10.dat"
    arrays = regions_of(3, 10)
    path.write_bytes(checkpoint(bytes_of(arrays)))
    assert detect(path).name == "veloc"
    with open_file(path) as content:
        plain = {f"region-{i}": np.frombuffer(a.tobytes(), "u1") for i, a in arrays.items()}
        check_content(content, plain, in_extents=True)
        assert list(content.fields) == ["region--2", "region-0", "region-1", "region-7"]
    typed = {f"region-{i}": a for i, a in arrays.items()}
    for types in ("0:i32,1:f64", {"0": "<i4", 1: "float64"}):
        with open_file(path, types=types) as content:
            check_content(content, typed, in_extents=True)
    (tmp_path / "veloc.json").write_text(json.dumps({"types": {"0": "i32", "1": "f64"}}))
    with open_file(path) as content:
        check_content(content, typed, in_extents=True)
    with pytest.raises(FormatError, match="region-0: 4 bytes are not a multiple of 8"):
        open_file(path, types="0:f64")
    for wrong in ("f64", "x:f64", "1:f65", "1:>f8", 5):
        with pytest.raises(FormatError):
            open_file(path, types=wrong)


def test_an_aggregated_file_and_its_map(tmp_path):
    parts = [checkpoint(bytes_of(regions_of(rank, 20))) for rank in range(4)]
    path = tmp_path / "heat-agg-20.dat"
    path.write_bytes(b"".join(parts))
    (tmp_path / "meta").mkdir()
    offsets = [sum(map(len, parts[:r])) for r in range(4)]
    map_path = tmp_path / "meta" / "heat-agg-20.dat"
    map_path.write_bytes(struct.pack("<5q", 4, *offsets))
    expected = {f"rank-{r}/region-{i}": a for r in range(4) for i, a in regions_of(r, 20).items()}
    for more in ({}, {"meta": str(tmp_path / "meta")}):
        with open_file(path, types={0: "i32", 1: "f64"}, **more) as content:
            check_content(content, expected, in_extents=True)
    for bad in (struct.pack("<5q", 3, *offsets), struct.pack("<4q", 3, *offsets[:3]), b""):
        map_path.write_bytes(bad)
        with pytest.raises(DamagedFile, match=r"heat-agg-20\.dat"):
            open_file(path, meta=str(tmp_path / "meta"))
    path.write_bytes(b"".join(parts) + b"\1")
    with pytest.raises(DamagedFile, match="rank 4"):
        open_file(path, format="veloc")


def test_checksums_are_checked_where_asked(tmp_path):
    path = tmp_path / "heat-0-1.dat"
    data = checkpoint(bytes_of(regions_of(0, 1)))
    path.write_bytes(data)
    (tmp_path / "heat-0-1.dat.chksum").write_bytes(hashlib.sha256(data).digest())
    open_file(path, verify=True).close()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    open_file(path).close()
    with pytest.raises(DamagedFile, match="SHA-256"):
        open_file(path, verify="true")
    with pytest.raises(MissingFile):
        open_file(path, verify=True, meta=str(tmp_path / "gone"))


def test_a_folder_of_checkpoints(tmp_path):
    for version in (10, 20):
        for rank in (0, 11):
            (tmp_path / f"heat-{rank}-{version}.dat").write_bytes(
                checkpoint(bytes_of(regions_of(rank, version)))
            )
    (tmp_path / "heat-0-30.dat").write_bytes(b"a file that the code itself wrote, and VELOC only moved")
    listing = list_folder(tmp_path)
    assert [(f.step, f.rank, f.prefix) for f in listing.data()] == [
        (v, r, "heat") for v in (10, 20) for r in (0, 11)
    ]
    assert [name for name, _ in listing.unknown] == ["heat-0-30.dat"]


def test_what_contradicts_itself(tmp_path):
    path = tmp_path / "x-0-1.dat"
    good = checkpoint({1: b"abc", 2: b"de"})
    for data, words in {
        good[:-1]: "region 2 has 2 bytes, 1 are left",
        good + b"\0": "1 bytes after",
        checkpoint({1: b"abc"})[:12]: "claims 1 regions",
        struct.pack("<QiQiQ", 2, 5, 0, 5, 0): "region 5 after region 5",
        b"\0\0\0": "no VELOC header",
        struct.pack("<Q", 1 << 63): "more than fit",
    }.items():
        path.write_bytes(data)
        with pytest.raises(DamagedFile, match=words):
            open_file(path, format="veloc")
        assert detect(path).name == "raw"  # by its suffix only


@settings(max_examples=300)
@given(st.data())
def test_damage_ends_in_format_errors(tmp_path, data):
    parts = [checkpoint(bytes_of(regions_of(rank, 1))) for rank in range(2)]
    if data.draw(st.booleans()):
        survives(tmp_path / "x-agg-1.dat", data.draw(mutations(b"".join(parts))), format="veloc")
    else:
        survives(tmp_path / "x-0-1.dat", data.draw(mutations(parts[0])), format="veloc")


def test_a_description_with_keys_that_mean_nothing(tmp_path):
    region = np.arange(3.0)
    (tmp_path / "x-0-1.dat").write_bytes(struct.pack("<QiQ", 1, 0, region.nbytes) + region.tobytes())
    (tmp_path / "veloc.json").write_text('{"types": {"0": "f64"}, "comment": "temperatures"}')
    assert open_file(tmp_path / "x-0-1.dat").fields["region-0"].elements().tolist() == [0, 1, 2]
    (tmp_path / "veloc.json").write_text('{"types": {"0": "f64"}, "verify": "yes"}')
    with pytest.raises(FormatError, match=r"veloc\.json: unknown key 'verify'"):
        open_file(tmp_path / "x-0-1.dat")
