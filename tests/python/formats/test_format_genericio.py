"""fixtures/genericio holds files that GenericIO itself wrote, and the program that did."""

import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from format_checks import check_content, mutations, survives
from hypothesis import given, settings
from hypothesis import strategies as st

from twinrun.errors import DamagedFile, FormatError, MissingFile, Unsupported
from twinrun.formats import detect, open_file
from twinrun.formats.folder import list_folder
from twinrun.formats.genericio import crc64

FIXTURES = Path(__file__).parent / "fixtures" / "genericio"


BOX = {"PhysOrigin": np.zeros(3), "PhysScale": np.full(3, 256.0)}


def written(ranks: int = 3, factor: int = 1) -> dict[str, np.ndarray]:
    k = np.concatenate([1000 * r + np.arange(0 if r == 1 else factor * (5 + 3 * r)) for r in range(ranks)])
    return {
        "x": (k * 0.5).astype("f4"),
        "y": (-k).astype("f4"),
        "phi": k / 7.0,
        "id": k.astype("i8"),
        "mask": k.astype("u2"),
        "ab": np.stack([k, k + 0.25], axis=1).astype("f4"),
    }


def sealed(header: bytearray) -> bytes:
    """The header with its CRC."""
    return bytes(header) + struct.pack("<Q", crc64(bytes(header)) ^ (2**64 - 1))


def swapped(good: bytes) -> bytes:
    """The same file as a big-endian machine writes it; of a file without a table of blocks."""
    little = np.frombuffer(good, np.uint8)

    def turn(at: int, count: int, item: int) -> bytes:
        return little[at : at + count * item].reshape(count, item)[:, ::-1].tobytes()

    length, _, _, _, _, nvars, _, start, nranks, _, ranks, _ = struct.unpack_from("<12Q", good, 8)
    header = bytearray(b"HACC01B\0" + turn(8, 20, 8) + good[168:start])
    sizes = []
    for v in range(nvars):
        at = start + v * (256 + 24)
        header += good[at : at + 256] + turn(at + 256, 3, 8)
        sizes.append(struct.unpack_from("<2Q", good, at + 264))
    header += turn(ranks, 6 * nranks, 8)
    assert len(header) == length
    out = bytes(header) + struct.pack("<Q", crc64(bytes(header)) ^ (2**64 - 1))
    for r in range(nranks):
        count, at = struct.unpack_from("<2Q", good, ranks + 48 * r + 24)
        for size, item in sizes:
            block = turn(at, count * size // item, item)
            out += block + struct.pack("<Q", crc64(block) ^ (2**64 - 1))
            at += count * size + 8
    return out


@pytest.mark.parametrize("name", ["plain.gio", "blocks.gio", "split.gio"])
def test_files_of_genericio_itself(name):
    with open_file(FIXTURES / name, verify=True) as content:
        assert content.format == "genericio" and content.period == (256, 256, 256)
        arrays = written()
        if name == "split.gio":  # ranks 0 and 2 are in one part, rank 1 has nothing
            assert [Path(s).name for s in content.sources] == ["split.gio#0", "split.gio#1"]
        check_content(content, arrays | BOX, in_extents=True)
        of_particles = [f for f in content.fields.values() if f.group == "particles"]
        assert {f.key for f in of_particles} == {"id"} and {f.name for f in of_particles} == set(arrays)
        assert {len(f.extents) for f in of_particles} == {2}


def test_compressed_blocks_are_told():
    with open_file(FIXTURES / "compressed.gio", verify="yes") as content:
        kept = set(content.fields) - set(BOX)
        reasons = dict(content.skipped)
        assert reasons and all("BLOSC" in text for text in reasons.values())
        assert kept | set(reasons) == set(written())
        check_content(content, {k: v for k, v in written(1, 40).items() if k in kept} | BOX)


def test_the_other_byte_order(tmp_path):
    (tmp_path / "big.gio").write_bytes(swapped((FIXTURES / "plain.gio").read_bytes()))
    with open_file(tmp_path / "big.gio", verify=True) as content:
        assert content.fields["x"].byte_order == "big"
        check_content(content, written() | BOX, in_extents=True)


def test_a_folder_takes_parts_once(tmp_path):
    for step in (5, 10):
        for path in FIXTURES.glob("split.gio*"):
            shutil.copy(path, tmp_path / path.name.replace("split.gio", f"m000p.full.{step}"))
    listing = list_folder(tmp_path)
    assert [(f.step, f.rank, f.relative) for f in listing.files] == [
        (5, 0, "m000p.full.5"),
        (10, 0, "m000p.full.10"),
    ]
    assert len(listing.ignored) == 4 and "part of" in listing.ignored[0][1]


def test_sums():
    assert crc64(b"123456789") == 0x995DC9BBDF1939FA  # the check value of CRC-64/XZ
    assert crc64(b"") == 0
    rng = np.random.default_rng(1)

    def slowly(data: bytes) -> int:
        state = 2**64 - 1
        for byte in data:
            state ^= byte
            for _ in range(8):
                state = (state >> 1) ^ (0xC96C5795D7870F42 if state & 1 else 0)
        return state ^ (2**64 - 1)

    for size in [1, 7, 1000, 65535, 65536, 65537, 65536 + 63, 100_001]:
        data = rng.bytes(size)
        assert crc64(data) == slowly(data)


def test_a_flipped_bit_is_found_where_asked(tmp_path):
    good = (FIXTURES / "plain.gio").read_bytes()
    data = bytearray(good)
    data[-9] ^= 1  # the last byte of data
    path = tmp_path / "x.gio"
    path.write_bytes(data)
    open_file(path).close()
    with pytest.raises(DamagedFile, match=r"'ab'.*CRC"):
        open_file(path, verify=True)
    data = bytearray(good)
    data[300] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedFile, match="CRC of its header"):
        open_file(path)
    for size in (5, 100, 500, len(good) - 1):
        path.write_bytes(good[:size])
        with pytest.raises(DamagedFile, match=r"bytes|begin"):
            open_file(path, format="genericio")
    with pytest.raises(FormatError, match="verify must be"):
        open_file(FIXTURES / "plain.gio", verify="perhaps")


def test_a_missing_part(tmp_path):
    shutil.copy(FIXTURES / "split.gio", tmp_path)
    with pytest.raises(MissingFile, match=r"split\.gio#0"):
        open_file(tmp_path / "split.gio")


@settings(max_examples=200)
@given(st.data())
def test_damage_ends_in_format_errors(tmp_path, data):
    good = (FIXTURES / data.draw(st.sampled_from(["plain.gio", "blocks.gio", "compressed.gio"]))).read_bytes()
    survives(tmp_path / "x.gio", data.draw(mutations(good)), format="genericio")


@settings(max_examples=250)
@given(st.data())
def test_lies_in_a_header_with_a_right_crc(tmp_path, data):
    good = (FIXTURES / data.draw(st.sampled_from(["plain.gio", "blocks.gio"]))).read_bytes()
    (length,) = struct.unpack_from("<Q", good, 8)
    header = bytearray(good[:length])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(2, length // 8 - 1)) * 8
        old = int.from_bytes(header[at : at + 8], "little")
        value = data.draw(st.sampled_from([0, 1, old + 1, old - 1, old + 8, 1 << 31, 1 << 61, (1 << 64) - 8]))
        header[at : at + 8] = (value % 2**64).to_bytes(8, "little")
    survives(tmp_path / "x.gio", sealed(header) + good[length + 8 :], format="genericio", verify=True)


def test_detection():
    assert detect(str(FIXTURES / "plain.gio")).name == "genericio"


def test_too_long_a_header(tmp_path):
    path = tmp_path / "x.gio"
    path.write_bytes(b"HACC01L\0" + struct.pack("<Q", 1 << 29))
    with open(path, "r+b") as file:
        file.truncate(1 << 30)
    with pytest.raises(Unsupported, match="header of"):
        open_file(path)
