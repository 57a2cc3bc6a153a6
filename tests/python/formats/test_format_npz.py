import threading
import zipfile

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
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twinrun.errors import DamagedFile, FormatError, Unsupported
from twinrun.formats import open_file


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


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damage_ends_in_format_errors(tmp_path, data):
    path = tmp_path / "x.npz"
    save = data.draw(st.sampled_from([np.savez, np.savez_compressed]))
    save(path, a=array_of("<f4", (5, 3)), b=np.arange(4), c=array_of([("p", "<f4"), ("q", "<i8")], (3,)))
    survives(path, data.draw(mutations(path.read_bytes())), format="npz")
