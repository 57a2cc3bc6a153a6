import json
import shutil
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from format_checks import array_of, check_content, check_field, mutations, not_numbers, texts
from hypothesis import given, settings
from hypothesis import strategies as st

import twinrun
from twinrun.errors import DamagedFile, FormatError, MissingPackage
from twinrun.formats import detect, open_file
from twinrun.formats.folder import list_folder
from twinrun.formats.zarr import crc32c

FILES = Path(__file__).parent / "fixtures" / "zarr"


def arrays_of_fixtures():
    flat = np.arange(48)
    return {
        "plain": flat.reshape(8, 6).astype("f4"),
        "rows": flat.reshape(8, 6).astype(">i2"),
        "part/holes": np.where(flat.reshape(8, 6) < 24, flat.reshape(8, 6), -1).astype("f8"),
        "part/packed": flat.astype("i8"),
        "sharded": flat.reshape(8, 6).astype("f8"),
    }


@pytest.mark.parametrize("name", ["v2.zarr", "v3.zarr", "v3.zarr.zip"])
def test_files_of_the_package(name):
    package = True
    try:
        import zarr  # noqa: F401
    except ImportError:
        package = False
    expected = arrays_of_fixtures()
    if name == "v2.zarr":
        del expected["sharded"]
    with open_file(FILES / name) as content:
        assert content.format == "zarr" and set(content.fields) == {*expected, "text"}
        for label, array in expected.items():
            field = content.fields[label]
            if label == "part/packed" and not package:
                assert isinstance(field.problem, MissingPackage) and "twinrun[zarr]" in str(field.problem)
                continue
            check_field(field, array, in_extents=label == "rows")
        assert len(content.fields["rows"].extents) == 3
        assert not content.skipped and set(not_numbers(content)) == {"text"}
        if package:
            assert len(set(texts(content.fields["text"]))) > 1
        else:
            assert isinstance(content.fields["text"].problem, MissingPackage)


@pytest.fixture(scope="module")
def zarr():
    return pytest.importorskip("zarr")


LAYOUTS = {
    "one chunk": lambda shape: {"chunks": shape},
    "rows": lambda shape: {"chunks": (2, *shape[1:])},
    "boxes": lambda shape: {"chunks": tuple(max(1, n - 2) for n in shape)},
    "shards": lambda shape: {"chunks": (2,) * len(shape), "shards": (4,) * len(shape)},
}


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("packed", [False, True])
def test_every_type_order_and_shape(zarr, tmp_path, version, layout, packed):
    if version == 2 and layout == "shards":
        pytest.skip("version 2 has no shards")
    group = zarr.open_group(tmp_path / "x.zarr", mode="w", zarr_format=version)
    arrays = {}
    for code in ("f2", "f4", "f8", "i1", "i4", "u8", "?", "c8"):
        for shape in [(7,), (5, 4), (3, 2, 4)][:: 1 if layout == "one chunk" else 2]:
            for order in "<>":
                name = f"{len(shape)}/{code.replace('?', 'bool')}_{'lb'[order == '>']}"
                array = arrays[name] = array_of(order + code, shape)
                options = LAYOUTS[layout](shape) | {"compressors": "auto" if packed else None}
                if version == 3 and np.dtype(order + code).itemsize > 1:
                    endian = "big" if order == ">" else "little"
                    options["serializer"] = zarr.codecs.BytesCodec(endian=endian)
                kind = array.dtype if version == 2 else array.dtype.newbyteorder("=")
                options["config"] = {"write_empty_chunks": True}
                made = group.create_array(name, shape=shape, dtype=kind, **options)
                made[...] = array
    with open_file(tmp_path / "x.zarr") as content:
        assert not content.skipped
        in_extents = {"boxes": None, "shards": None}.get(layout, not packed)
        check_content(content, arrays, in_extents=in_extents)
        if packed or layout == "shards":
            assert content.fields["3/f4_l"].read is not None


def test_scalars_empty_arrays_and_fill_values(zarr, tmp_path, monkeypatch):
    for version in (2, 3):
        path = tmp_path / f"{version}.zarr"
        filled = {}
        group = zarr.open_group(path, mode="w", zarr_format=version)
        group.create_array("scalar", shape=(), dtype="f8", compressors=None)[...] = 2.5
        group.create_array("never", shape=(), dtype="f8", compressors=None, fill_value=0.5)
        group.create_array("empty", shape=(0, 3), dtype="i4")
        group.create_array("unwritten", shape=(6,), chunks=(2,), dtype="f4", compressors=None, fill_value=1.5)
        values = {
            "f2": np.nan,
            "f4": -np.inf,
            "f8": np.inf,
            "i1": -7,
            "u8": (1 << 64) - 1,
            "?": True,
            "c8": 1 - 2j,
        }
        for kind, value in values.items():
            made = group.create_array(
                f"filled_{kind}", shape=(3, 4), chunks=(2, 3), dtype=kind, compressors=None, fill_value=value
            )
            made[0, 0] = 0
            filled[f"filled_{kind}"] = made[...]
        if version == 3:
            made = group.create_array(
                "shards", shape=(8,), chunks=(2,), shards=(4,), dtype="i4", compressors=None
            )
            made[:2] = [1, 2]
        with open_file(path) as content:
            assert content.fields["scalar"].elements().tolist() == [2.5]
            assert content.fields["never"].elements().tolist() == [0.5]
            assert content.fields["empty"].extents == ()
            assert content.fields["unwritten"].elements().tolist() == [1.5] * 6
            if version == 3:
                assert content.fields["shards"].elements().tolist() == [1, 2, 0, 0, 0, 0, 0, 0]
            monkeypatch.setitem(sys.modules, "zarr", None)  # all of that without the package
            for name, array in filled.items():
                check_field(content.fields[name], array)
        with open_file(path) as content:
            for name, array in filled.items():
                assert content.fields[name].problem is None
                check_field(content.fields[name], array)
        monkeypatch.undo()


def test_one_array_column_major_and_nested_keys(zarr, tmp_path):
    array = array_of("<f4", (5, 4))
    made = zarr.create_array(
        tmp_path / "x.zarr", shape=(5, 4), chunks=(3, 2), dtype="f4", compressors=None, zarr_format=2, order="F",
        chunk_key_encoding={"name": "v2", "separator": "/"}, fill_value=0,
    )  # fmt: skip
    made[...] = array
    assert (tmp_path / "x.zarr" / "0" / "0").exists()
    assert detect(tmp_path / "x.zarr").name == "zarr"
    with open_file(tmp_path / "x.zarr") as content:
        assert content.one_array
        check_content(content, {"data": array})


@pytest.mark.parametrize("version", [2, 3])
def test_units_of_dates(zarr, tmp_path, version):
    group = zarr.open_group(tmp_path / "x.zarr", mode="w", zarr_format=version)
    for unit in ("s", "10ms"):
        for packed in ("auto", None):
            name = f"{unit}{packed}"
            group.create_array(name, shape=(3,), dtype=f"M8[{unit}]", compressors=packed)[...] = np.arange(3)
    with open_file(tmp_path / "x.zarr") as content:
        assert {n: f.unit for n, f in content.fields.items()} == {
            f"{u}{p}": f"M8[{u}]" for u in ("s", "10ms") for p in ("auto", None)
        }


def test_dates_of_both_versions_are_the_same(zarr, tmp_path):
    for version in (2, 3):
        group = zarr.open_group(tmp_path / f"{version}.zarr", mode="w", zarr_format=version)
        group.create_array("t", shape=(3,), dtype="M8[s]")[...] = np.arange(3)
    assert twinrun.compare(tmp_path / "2.zarr", tmp_path / "3.zarr").same


def test_consolidated_metadata_zip_stores_and_attributes(zarr, tmp_path):
    array = array_of("<f8", (6, 5))
    for version in (2, 3):
        group = zarr.open_group(tmp_path / f"{version}.zarr", mode="w", zarr_format=version)
        group.create_array("a/b", data=array, chunks=(2, 5), compressors=None)
        group["a/b"].attrs.update({"scale_factor": 0.5, "units": "m", "range": [1, 2]})
        zarr.consolidate_metadata(tmp_path / f"{version}.zarr", zarr_format=version)
        with zarr.storage.ZipStore(tmp_path / f"{version}.zip", mode="w") as store:
            made = zarr.open_group(store, mode="w", zarr_format=version)
            made.create_array("a/b", data=array, chunks=(2, 5), compressors=None)
            made.create_array("packed", data=array, chunks=(3, 3))
        with open_file(tmp_path / f"{version}.zarr", attributes=True) as content:
            check_field(content.fields["a/b"], array, in_extents=True)
            assert content.fields["a/b@range"].elements().tolist() == [1, 2]
            assert content.fields["a/b@scale_factor"].elements().tolist() == [0.5]
            assert content.facts["a/b@units"].meaning and "a/b@range" not in content.facts
            assert content.notes == ["values are compared as stored: a/b (scale_factor 0.5)"]
        assert detect(tmp_path / f"{version}.zip").name == "zarr"
        with open_file(tmp_path / f"{version}.zip") as content:
            check_content(content, {"a/b": array, "packed": array})
            assert {e.path for e in content.fields["a/b"].extents} == {str(tmp_path / f"{version}.zip")}


def test_a_folder_of_steps(tmp_path):
    for step in (1, 2):
        shutil.copytree(FILES / "v3.zarr", tmp_path / f"out_{step}.zarr")
    found = list_folder(tmp_path)
    assert [(f.format, f.step) for f in found.files] == [("zarr", 1), ("zarr", 2)] and not found.ignored


def test_the_checksum():
    assert crc32c(b"123456789") == 0xE3069283  # RFC 3720, B.4
    assert crc32c(bytes(32)) == 0x8A9136AA


def test_damage_is_told(tmp_path, monkeypatch):
    def fresh():
        shutil.rmtree(tmp_path / "x.zarr", ignore_errors=True)
        return Path(shutil.copytree(FILES / "v3.zarr", tmp_path / "x.zarr"))

    path = fresh()
    with open(path / "plain" / "c" / "0" / "0", "ab") as file:
        file.write(b"x")
    with pytest.raises(DamagedFile, match="a chunk has"):
        open_file(path)
    shard = next((fresh() / "sharded" / "c").rglob("0"))
    shard = shard if shard.is_file() else next(p for p in shard.rglob("*") if p.is_file())
    data = bytearray(shard.read_bytes())
    data[-10] ^= 1
    shard.write_bytes(data)
    with pytest.raises(DamagedFile, match="checksum"):
        open_file(path)
    for change in (
        {"shape": [1 << 62, 1 << 62]}, {"shape": [-1, 6]}, {"shape": "8"}, {"zarr_format": 9}, {"data_type": 3},
        {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [0, 3]}}}, {"chunk_grid": 3},
        {"chunk_grid": {"name": "odd"}}, {"chunk_key_encoding": {"name": "odd"}}, {"codecs": 3}, {"codecs": [3]},
    ):  # fmt: skip
        place = fresh() / "plain" / "zarr.json"
        place.write_text(json.dumps(json.loads(place.read_text()) | change))
        with pytest.raises(FormatError):
            open_file(path)
    fresh()
    (path / "zarr.json").write_text("[" * 100_000)
    with pytest.raises(DamagedFile):
        open_file(path)
    monkeypatch.setitem(sys.modules, "zarr", None)
    with open_file(fresh()) as content:
        assert isinstance(content.fields["part/packed"].problem, MissingPackage)
        check_field(content.fields["plain"], arrays_of_fixtures()["plain"], in_extents=False)


@settings(max_examples=150)
@given(st.data())
def test_damage_ends_in_format_errors(tmp_path, data):
    version = data.draw(st.sampled_from(["v2.zarr", "v3.zarr"]))
    folder = tmp_path / version
    if not folder.exists():
        shutil.copytree(FILES / version, folder)
    files = sorted(p.relative_to(folder) for p in folder.rglob("*") if p.is_file())
    name = data.draw(st.sampled_from(files))
    try:
        (folder / name).write_bytes(data.draw(mutations((FILES / version / name).read_bytes())))
        with open_file(folder, format="zarr", attributes=True) as content:
            for field in content.fields.values():
                try:
                    field.elements(0, min(field.size, 1000))
                except FormatError as error:
                    assert str(error).isprintable()
    except FormatError as error:
        assert str(error).isprintable()
    finally:
        shutil.copy(FILES / version / name, folder / name)


def test_a_damaged_zip_store(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as file:
        file.writestr("zarr.json", "{")
    with pytest.raises(DamagedFile):
        open_file(tmp_path / "x.zip")


def codecs_of_version(version):
    """Compressors of the zarr package, by name, as its `create_array` takes them."""
    numcodecs = pytest.importorskip("numcodecs")
    if version == 3:
        codecs = pytest.importorskip("zarr.codecs")
        made = {f"Blosc {name}": {"compressors": codecs.BloscCodec(cname=name)} for name in ("lz4", "zstd")}
        inner = {"compressors": codecs.BloscCodec(cname="lz4"), "shards": (100, 37)}
        return made | {"Zstd": {"compressors": codecs.ZstdCodec()}, "Blosc in shards": inner}
    made = {}
    for name in ("blosclz", "lz4", "lz4hc", "zlib", "zstd"):
        for shuffle in (0, 1, 2):
            made[f"Blosc {name} {shuffle}"] = {"compressors": numcodecs.Blosc(name, shuffle=shuffle)}
    for name in ("LZ4", "Zstd", "Zlib", "GZip", "BZ2", "LZMA"):
        made[name] = {"compressors": getattr(numcodecs, name)()}
    filters = [numcodecs.Delta("i8"), numcodecs.Shuffle(8)]
    made["filters"] = {"compressors": numcodecs.Blosc("lz4"), "filters": filters}
    made["Blosc as a filter"] = {"compressors": None, "filters": [numcodecs.Blosc("lz4")]}
    made["checksum"] = {"compressors": numcodecs.CRC32()}
    return made


@pytest.mark.parametrize("version", [2, 3])
def test_cut_and_longer_chunks_give_no_other_numbers(zarr, tmp_path, version):
    rng = np.random.default_rng(0)
    values = [
        rng.integers(0, 10**6, (100, 37)),
        rng.integers(0, 1 << 62, (100, 37)),
        np.zeros((100, 37), "i8"),
    ]
    for number, (name, settings_of) in enumerate(codecs_of_version(version).items()):
        for which, array in enumerate(values[: 3 if version == 2 else 2]):
            path = tmp_path / f"{number}-{which}.zarr"
            group = zarr.open_group(path, mode="w", zarr_format=version)
            group.create_array(
                "x", data=array, chunks=(50, 37), config={"write_empty_chunks": True}, **settings_of
            )
            chunks = sorted(p for p in (path / "x").rglob("*") if p.is_file() and p.name[0] not in ".z")
            whole = chunks[-1].read_bytes()
            for cut in (*range(-8, 0), *range(1, 9)):
                chunks[-1].write_bytes(whole[:cut] if cut < 0 else whole + bytes(range(1, cut + 1)))
                try:
                    with open_file(path) as content:
                        found = content.fields["x"].read(0, array.size).reshape(array.shape)
                except FormatError as problem:
                    assert "field 'x'" in str(problem), (name, cut, problem)
                    continue
                np.testing.assert_array_equal(found, array, err_msg=f"{name}, {cut}")


def test_a_cut_chunk_in_a_shard(zarr, tmp_path):
    codecs = pytest.importorskip("zarr.codecs")
    array = np.random.default_rng(0).integers(0, 10**6, (100, 37))
    group = zarr.open_group(tmp_path / "x.zarr", mode="w", zarr_format=3)
    group.create_array(
        "x", data=array, chunks=(50, 37), shards=(100, 37), compressors=codecs.BloscCodec(cname="lz4")
    )
    path = tmp_path / "x.zarr" / "x" / "c" / "0" / "0"
    whole = path.read_bytes()
    index = np.frombuffer(whole[-36:-4], "<u8").reshape(2, 2).copy()
    index[0, 1] -= 1  # the size of the first chunk
    path.write_bytes(whole[:-36] + index.tobytes() + crc32c(index.tobytes()).to_bytes(4, "little"))
    with open_file(tmp_path / "x.zarr") as content, pytest.raises(DamagedFile, match="its header says"):
        content.fields["x"].read(0, array.size)
