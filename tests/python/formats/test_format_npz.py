import random
import threading
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from format_checks import (
    SCALARS,
    SHAPES,
    array_of,
    check_content,
    mutations,
    not_numbers,
    same,
    survives,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import twinrun
from twinrun.errors import DamagedFile, FormatError, Unsupported
from twinrun.formats import archives, open_file


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_all_types_and_shapes(tmp_path, save):
    arrays = {
        f"{code}{number}{order}": array_of({"l": "<", "b": ">"}[order] + code, shape)
        for code in [*SCALARS[:11], "c8", "c16"]
        for number, shape in enumerate(SHAPES)
        for order in "lb"
    }
    arrays["bool"] = array_of("?", (9,))
    arrays["column_major"] = np.asfortranarray(array_of("<f8", (4, 6)))
    save(tmp_path / "x.npz", **arrays)
    with open_file(tmp_path / "x.npz") as content:
        assert content.format == "npz" and not content.one_array
        check_content(content, arrays)
        assert (content.fields["f83l"].extents is not None) == (save is np.savez or arrays["f83l"].size == 0)


@pytest.mark.parametrize(
    "method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
)
def test_compressions_zip64_prefix_and_other_members(tmp_path, method):
    array = array_of("<f4", (1000, 3))
    path = tmp_path / "x.npz"
    with open(path, "wb") as out:
        out.write(b"#!/bin/sh a self-extracting archive begins like this\n")
        with zipfile.ZipFile(out, "w", method) as archive:
            archive.writestr("readme.txt", "hello")
            with archive.open("group/a.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array)
    with open_file(path, format="npz") as content:
        assert not content.skipped and not_numbers(content) == {"readme.txt": "bytes"}
        assert content.fields["readme.txt"].elements().tobytes() == b"hello"
        check_content(content, {"group/a": array}, in_extents=method == zipfile.ZIP_STORED)


def test_records_in_a_compressed_member(tmp_path):
    kind = np.dtype([("x", "<f4"), ("v", "<f8", (3,))])
    array = array_of(kind, (50_000,))
    np.savez_compressed(tmp_path / "x.npz", p=array)
    with open_file(tmp_path / "x.npz") as content:
        check_content(content, {"p.x": array["x"], "p.v": array["v"]}, in_extents=False)


def test_reads_in_any_order_from_several_threads(tmp_path):
    arrays = {name: array_of("<u4", (300_000,), seed) for seed, name in enumerate("ab")}
    np.savez_compressed(tmp_path / "x.npz", **arrays)
    wrong: list[str] = []
    with open_file(tmp_path / "x.npz") as content:

        def work(name: str, starts: list[int]) -> None:
            for start in starts:
                if not same(content.fields[name].read(start, 1000), arrays[name][start : start + 1000]):
                    wrong.append(f"{name} {start}")

        threads = [
            threading.Thread(target=work, args=(n, s))
            for n in "ab"
            for s in ([0, 200_000, 1000], [299_000, 7])
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        reader = content.fields["a"]
    assert not wrong
    with pytest.raises(FormatError, match="closed"):
        reader.read(0, 1)


class Counted:
    """A decompressor that counts the bytes that it and its copies give."""

    def __init__(self, given, made):
        self.given, self._made = given, made

    def decompress(self, *arguments):
        part = self._made.decompress(*arguments)
        self.given[0] += len(part)
        return part

    def copy(self):
        return Counted(self.given, self._made.copy())

    def __getattr__(self, name):
        return getattr(self._made, name)


@pytest.fixture
def inflated(monkeypatch):
    """A list of one number: bytes that were inflated so far, by anyone."""
    given, made = [0], zlib.decompressobj
    monkeypatch.setattr(zlib, "decompressobj", lambda *a, **k: Counted(given, made(*a, **k)))
    return given


def deflated(path, seed, size=24 << 20):
    """Numbers that deflate shrinks without much work."""
    array = np.arange(size // 4, dtype="<u4") // 256 * (2 * seed + 1)
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("a.npy", "w") as member,
    ):
        np.lib.format.write_array(member, array)
    return array


ORDERS = {
    "in order": lambda n: range(n),
    "backwards": lambda n: reversed(range(n)),
    "in turns": lambda n: [start + step for step in range(n // 4) for start in range(0, n, n // 4)],
    "at random": lambda n: random.Random(5).sample(range(n), n),
}


@pytest.mark.parametrize("order", list(ORDERS))
def test_every_byte_is_decoded_about_once_whatever_the_order(tmp_path, inflated, order, monkeypatch):
    array = deflated(tmp_path / "x.npz", 1)
    monkeypatch.setattr(
        archives, "_KEPT_BYTES", 4 << 20
    )  # as of an archive that is six times as large as what is kept
    with open_file(tmp_path / "x.npz") as content:
        field, part = content.fields["a"], array.size // 24
        assert inflated[0] < 1000  # opening reads headers
        for number in ORDERS[order](24):
            assert same(field.read(number * part, part), array[number * part : (number + 1) * part])
        # A mark lies every 4 MiB: who begins elsewhere decodes half of that on the way.
        most = {"in order": 1.01, "in turns": 3.2, "backwards": 5, "at random": 5}[order]
        assert array.nbytes <= inflated[0] <= most * array.nbytes
        once = inflated[0]
        for number in range(24):
            field.read(number * part, part)
        assert inflated[0] <= once + 1.2 * array.nbytes


@pytest.mark.parametrize("threads", [1, 4, 16])
def test_comparing_decodes_every_byte_about_once(tmp_path, inflated, threads):
    a, b = (deflated(tmp_path / f"{name}.npz", 1) for name in "ab")
    result = twinrun.compare(tmp_path / "a.npz", tmp_path / "b.npz", threads=threads)
    assert result.same and a.nbytes + b.nbytes <= inflated[0] <= 1.1 * (a.nbytes + b.nbytes)
    inflated[0] = 0
    twinrun.index(tmp_path / "a.npz", tmp_path / "b.npz", threads=threads)
    assert inflated[0] <= 1.1 * (a.nbytes + b.nbytes)


def test_threads_that_read_parts_of_a_stream_decode_it_once(tmp_path, inflated):
    array = deflated(tmp_path / "x.npz", 2)
    with open_file(tmp_path / "x.npz") as content, ThreadPoolExecutor(8) as pool:
        part = array.size // 64
        field = content.fields["a"]
        starts = random.Random(3).sample(range(64), 64)
        read = list(pool.map(lambda n: field.read(n * part, part), starts))
        assert all(same(r, array[n * part : (n + 1) * part]) for n, r in zip(starts, read, strict=True))
        assert inflated[0] <= 1.01 * array.nbytes


def test_streams_that_cannot_be_copied_are_read_in_any_order(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "_KEPT_BYTES", 1 << 20)
    array = np.random.default_rng(1).integers(0, 7, 5 << 20, dtype="u1")
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_BZIP2) as archive:
        with archive.open("a.npy", "w") as member:
            np.lib.format.write_array(member, array)
    with open_file(tmp_path / "x.npz") as content:
        for first in (4 << 20, 0, 3 << 20, (1 << 20) - 7):
            assert same(content.fields["a"].read(first, 1 << 20), array[first : first + (1 << 20)])


EMPTY = {
    "numbers": np.zeros((0, 3)),
    "texts": np.zeros(0, "U3"),
    "structs": np.zeros(0, [("a", "f8"), ("b", "i4")]),
    "dates": np.zeros(0, "M8[s]"),
}


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2], ids=["stored", "deflated", "bzip2"])  # fmt: skip
@pytest.mark.parametrize("kind", list(EMPTY))
def test_an_array_without_elements_has_a_checksum_too(tmp_path, kind, method):
    """Nobody reads it: its checksum is checked where those of other members are."""
    for name in "ab":
        with zipfile.ZipFile(tmp_path / f"{name}.npz", "w", method) as archive:
            for member, array in (("x", EMPTY[kind]), ("y", np.ones(3))):
                with archive.open(f"{member}.npy", "w") as file:
                    np.lib.format.write_array(file, array)
            archive.writestr("note.txt", b"")
    a, b = tmp_path / "a.npz", tmp_path / "b.npz"
    assert twinrun.compare(a, b).same
    whole = b.read_bytes()
    for member, at in (("x.npy", whole.index(b"PK\1\2")), ("note.txt", whole.rindex(b"PK\1\2"))):
        data = bytearray(whole)
        data[at + 16] ^= 1
        b.write_bytes(data)
        for options in (None, {"verify": True}):
            with pytest.raises(DamagedFile, match=rf"b\.npz: member '{member}'.*(checksum|CRC)"):
                twinrun.compare(a, b, options=options)
        if method == zipfile.ZIP_DEFLATED:  # the other members are compared
            result = twinrun.compare(a, b, partial=True)
            assert result.verdict == "incomparable" and "y" in {field.field for field in result.fields}


def test_damage_that_only_the_checksum_tells_stays_known(tmp_path):
    deflated(tmp_path / "x.npz", 1, 3 << 20)
    data = bytearray((tmp_path / "x.npz").read_bytes())
    central = data.rindex(b"PK\1\2")
    data[central + 16] ^= 1
    (tmp_path / "x.npz").write_bytes(data)
    with open_file(tmp_path / "x.npz") as content:
        field = content.fields["a"]
        for _ in range(3):
            with pytest.raises(DamagedFile, match="checksum"):
                field.read(field.size - 1, 1)
        with pytest.raises(DamagedFile, match="checksum"):
            twinrun.compare(tmp_path / "x.npz", tmp_path / "x.npz")


def test_out_of_range_reads(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", a=np.arange(4))
    with open_file(tmp_path / "x.npz") as content:
        for first, count in ((-1, 2), (3, 2), (0, 5), (0, -1)):
            with pytest.raises(FormatError, match="'a'"):
                content.fields["a"].read(first, count)


def test_twice_the_same_member(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive, pytest.warns(UserWarning):
        for _ in range(2):
            with archive.open("a.npy", "w") as member:
                np.lib.format.write_array(member, np.arange(3))
    with pytest.raises(DamagedFile, match=r"a\.npy"):
        open_file(tmp_path / "x.npz")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_member_whose_own_header_has_another_name(tmp_path, method):
    with zipfile.ZipFile(tmp_path / "x.npz", "w", method) as archive:
        with archive.open("x.npy", "w") as member:
            np.save(member, np.arange(3))
    bytes_ = bytearray((tmp_path / "x.npz").read_bytes())
    assert bytes_[30:35] == b"x.npy"
    bytes_[30:31] = b"y"
    (tmp_path / "x.npz").write_bytes(bytes_)
    with pytest.raises(DamagedFile, match="no matching header"):
        open_file(tmp_path / "x.npz")


def test_names_of_members_in_other_letters(tmp_path):
    arrays = {"größe": np.arange(3.0), "データ": np.arange(2)}
    np.savez(tmp_path / "x.npz", **arrays)
    with open_file(tmp_path / "x.npz") as content:
        assert content.fields.keys() == arrays.keys()


def test_encrypted_members_are_refused(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.arange(3))
    data = bytearray((tmp_path / "x.npz").read_bytes())
    central = data.rindex(b"PK\1\2")
    data[central + 8] |= 1
    (tmp_path / "x.npz").write_bytes(data)
    with pytest.raises(Unsupported, match="encrypted"):
        open_file(tmp_path / "x.npz")


def test_a_member_that_claims_more_than_it_can_hold(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", a=np.arange(3))
    data = bytearray((tmp_path / "x.npz").read_bytes())
    central = data.rindex(b"PK\1\2")
    data[central + 24 : central + 28] = (1 << 31).to_bytes(4, "little")
    (tmp_path / "x.npz").write_bytes(data)
    with pytest.raises(DamagedFile, match="claims"):
        open_file(tmp_path / "x.npz")


def test_a_flipped_bit_in_a_compressed_member_is_found(tmp_path):
    array = array_of("<f4", (1000,))
    np.savez_compressed(tmp_path / "x.npz", a=array)
    data = bytearray((tmp_path / "x.npz").read_bytes())
    data[len(data) // 2] ^= 4
    (tmp_path / "x.npz").write_bytes(data)
    with open_file(tmp_path / "x.npz") as content, pytest.raises(DamagedFile, match="a"):
        content.fields["a"].elements()


def test_an_empty_archive(tmp_path):
    np.savez(tmp_path / "x.npz")
    assert open_file(tmp_path / "x.npz").fields == {}


@settings(max_examples=400)
@given(st.data())
def test_damage_ends_in_format_errors(tmp_path, data):
    path = tmp_path / "x.npz"
    save = data.draw(st.sampled_from([np.savez, np.savez_compressed]))
    save(path, a=array_of("<f4", (5, 3)), b=np.arange(4), c=array_of([("p", "<f4"), ("q", "<i8")], (3,)))
    survives(path, data.draw(mutations(path.read_bytes())), format="npz")


def damaged_archive(path, arrays, name):
    """An archive of stored members, where one bit of the last element of a member is another one."""
    np.savez(path, **arrays)
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(f"{name}.npy")
        with archive.open(info) as member:
            last = member.read()[-8:]
    raw = bytearray(path.read_bytes())
    at = raw.index(last, info.header_offset) + 4
    raw[at] ^= 1
    path.write_bytes(raw)
    with pytest.raises(zipfile.BadZipFile), np.load(path) as found:
        found[name]


SAID = r"member 'x\.npy': its checksum or its length is wrong"


def test_checksums_of_stored_texts(tmp_path):
    """Python reads them: the last part of a member is not given where its checksum is wrong."""
    texts = np.array([f"text {n}" for n in range(5000)], "S9")
    np.savez(tmp_path / "a.npz", x=texts, y=np.arange(3))
    damaged_archive(tmp_path / "b.npz", {"x": texts, "y": np.arange(3)}, "x")
    with open_file(tmp_path / "a.npz") as content:
        whole = content.fields["x"].elements()
        assert [*content.fields["x"].elements(4000, 500), *content.fields["x"].elements(4500)] == [
            *whole[4000:]
        ]
    with open_file(tmp_path / "b.npz") as content:
        for _ in range(2):
            with pytest.raises(DamagedFile, match=SAID):
                content.fields["x"].elements()
        assert content.fields["x"].elements(0, 4000).tolist() == whole[:4000].tolist()
        with pytest.raises(DamagedFile, match=SAID):
            content.fields["x"].elements(4000)
        assert content.fields["x"].elements(4998).size == 2  # a part tells nothing
    found = twinrun.compare(tmp_path / "a.npz", tmp_path / "b.npz", partial=True)
    assert found.verdict == "incomparable" and [f.field for f in found.fields] == ["y"]
    with pytest.raises(DamagedFile, match=SAID):
        twinrun.index(tmp_path / "b.npz")


def test_checksums_of_stored_numbers_on_request(tmp_path):
    arrays = {"x": np.linspace(1, 2, 300_000), "y": np.arange(3)}
    np.savez(tmp_path / "a.npz", **arrays)
    damaged_archive(tmp_path / "b.npz", arrays, "x")
    for options in ({"verify": True}, {"verify": "yes"}):
        assert twinrun.compare(tmp_path / "a.npz", tmp_path / "a.npz", options=options)
        found = twinrun.compare(tmp_path / "a.npz", tmp_path / "b.npz", options=options, partial=True)
        assert found.verdict == "incomparable" and [f.field for f in found.fields] == ["y"]
        with pytest.raises(DamagedFile, match=SAID):
            twinrun.compare(tmp_path / "a.npz", tmp_path / "b.npz", options=options)
        with pytest.raises(DamagedFile, match=SAID):
            twinrun.index(tmp_path / "b.npz", options=options)
    with pytest.raises(FormatError, match="verify must be"):
        open_file(tmp_path / "a.npz", verify="perhaps")
    twinrun.index(tmp_path / "a.npz")
    assert not twinrun.index(tmp_path / "a.npz", options={"verify": True})[0].fresh


def test_checksums_of_members_that_are_read_whole(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.arange(3))
    archive = archives.Archive(str(tmp_path / "x.npz"))
    archive.read("x.npy", 1 << 20)
    archive.close()
    damaged_archive(tmp_path / "x.npz", {"x": np.arange(3)}, "x")
    archive = archives.Archive(str(tmp_path / "x.npz"))
    with pytest.raises(DamagedFile, match=SAID):
        archive.read("x.npy", 1 << 20)
    archive.close()


def test_long_texts_that_differ_at_the_end_are_not_shown_alike(tmp_path):
    for name in "ab":
        np.savez(tmp_path / f"{name}.npz", t=np.array(["x" * 300 + name]))
    (found,) = twinrun.compare(tmp_path / "a.npz", tmp_path / "b.npz").fields
    assert found.first_a != found.first_b and "(code " in found.first_a
