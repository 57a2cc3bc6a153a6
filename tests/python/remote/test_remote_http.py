"""Objects on a web server: what is compared, which bytes are asked for, and what is an error."""

import contextlib
import io
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from pathlib import Path

import numpy as np
import pytest
from commands import HANG, command
from object_server import ObjectServer, noise, npy, serving

import twinrun
from twinrun import FormatError, MissingFile, TwinrunError, Unsupported, _core, golden
from twinrun.capture.run import RankRun
from twinrun.remote.protocols import file_system
from twinrun.remote.store import Copies, RemoteStore

pytest.importorskip("fsspec", reason="objects of stores need fsspec: pip install 'twinrun[remote]'")
pytest.importorskip("aiohttp", reason="objects of web servers need aiohttp: pip install 'twinrun[remote]'")

BLOCK = 32 << 10  # headers are read in blocks of so many bytes


@pytest.mark.parametrize("how", ["auto", "pread"])
def test_arrays_are_compared_and_only_their_bytes_are_asked_for(how: str) -> None:
    x = noise(400_000)
    y = x.copy()
    y[123_456] += 1
    with serving({"a/x.npy": npy(x), "b/x.npy": npy(y)}) as server:
        result = twinrun.compare(
            f"{server.url}/a/x.npy",
            f"{server.url}/b/x.npy",
            atol=1e-6,
            options=twinrun.CompareOptions(io=how),
        )
        asked = server.bytes_asked
    assert result.verdict == "different"
    assert result.first.first_index == (123_456,)
    assert x.nbytes * 2 <= asked <= x.nbytes * 2 + 8 * BLOCK


def test_the_same_and_against_a_file_of_this_machine(tmp_path: Path) -> None:
    x = noise(100_000)
    np.save(tmp_path / "x.npy", x)
    with serving({"x.npy": npy(x)}) as server:
        assert twinrun.compare(tmp_path / "x.npy", f"{server.url}/x.npy").verdict == "same"
        assert twinrun.compare(f"{server.url}/x.npy", {"x": x}).verdict == "same"
        assert twinrun.compare(f"{server.url}/x.npy", f"{server.url}/x.npy").verdict == "same"


def test_small_and_empty_objects() -> None:
    with serving({"x.npy": npy(np.arange(3.0)), "none.npy": npy(np.empty(0)), "bytes.npy": b""}) as server:
        assert twinrun.compare(f"{server.url}/x.npy", {"x": np.arange(3.0)}).verdict == "same"
        assert twinrun.compare(f"{server.url}/x.npy", {"x": np.arange(3.0) + 1}).verdict == "different"
        assert twinrun.compare(f"{server.url}/none.npy", {"none": np.empty(0)}).verdict == "same"
        with pytest.raises(FormatError):
            twinrun.compare(f"{server.url}/bytes.npy", {"bytes": np.empty(0)})


def test_raw_bytes_with_a_type() -> None:
    x = noise(50_000).astype("f4")
    with serving({"x.bin": x.tobytes(), "x.f32": x.tobytes()}) as server:
        told = {"dtype": "f32", "shape": "500x100"}
        assert twinrun.compare(f"{server.url}/x.bin", f"{server.url}/x.bin", options=told).verdict == "same"
        assert twinrun.compare(f"{server.url}/x.f32", {"x": x}).verdict == "same"
        with pytest.raises(FormatError, match=r"not recognised|type is not known"):
            twinrun.compare(f"{server.url}/x.bin", {"x": x})


def test_raw_bytes_with_a_description_beside_them() -> None:
    x = noise(50_000).astype(">f4")
    told = json.dumps({"dtype": "f32", "order": "big", "shape": [500, 100]}).encode()
    with serving(
        {"x.bin": x.tobytes(), "x.bin.json": told, "y.f32": x.tobytes(), "y.f32.json": told}
    ) as server:
        for name in ("x.bin", "y.f32"):
            url = f"{server.url}/{name}?token=1"
            result = twinrun.compare(url, {name[0]: x.astype("f4").reshape(500, 100)})
            assert result.verdict == "same"


def safetensors(tensors: dict[str, np.ndarray]) -> bytes:
    header, at = {}, 0
    for name, t in tensors.items():
        header[name] = {"dtype": "F64", "shape": list(t.shape), "data_offsets": [at, at + t.nbytes]}
        at += t.nbytes
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(t.tobytes() for t in tensors.values())


def test_of_safetensors_only_the_chosen_tensor_is_read() -> None:
    tensors = {name: noise(100_000, seed) for seed, name in enumerate("abcd")}
    with serving({"m.safetensors": safetensors(tensors)}) as server:
        url = f"{server.url}/m.safetensors"
        result = twinrun.compare(url, url, fields=["c"])
        assert result.verdict == "same"
        assert 2 * 800_000 <= server.bytes_asked <= 2 * 800_000 + 8 * BLOCK
        changed = {**tensors, "c": tensors["c"] + 1}
        server.objects["n.safetensors"] = safetensors(changed)
        result = twinrun.compare(url, f"{server.url}/n.safetensors")
        assert [f.field for f in result.fields if f.different] == ["c"]


def hdf5(**arrays: np.ndarray) -> bytes:
    h5py = pytest.importorskip("h5py")
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        for name, array in arrays.items():
            if name.startswith("packed"):
                file.create_dataset(
                    name, data=array, chunks=(10_000,), compression="gzip", compression_opts=1
                )
            else:
                file[name] = array
            file[name].attrs["units"] = "m"
    return out.getvalue()


def test_of_hdf5_only_the_chosen_dataset_is_read() -> None:
    x, y = noise(100_000), noise(100_000, 2)
    content = hdf5(x=x, y=y, packed=x)
    with serving({"a.h5": content, "b.h5": hdf5(x=x, y=y, packed=x + 1)}) as server:
        a, b = f"{server.url}/a.h5", f"{server.url}/b.h5"
        assert twinrun.compare(a, b, fields=["x"]).verdict == "same"
        assert 2 * x.nbytes <= server.bytes_asked <= 2 * x.nbytes + 24 * BLOCK < 2 * len(content)
        server.asked.clear()
        result = twinrun.compare(a, b, fields=["packed"])
        assert result.verdict == "different" and result.first.first_index == (0,)
        assert server.bytes_asked < 2 * len(content) - 3 * x.nbytes


def test_netcdf4() -> None:
    h5py = pytest.importorskip("h5py")
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        file.attrs["_NCProperties"] = "version=2,netcdf=4.9.2"
        file["t"] = noise(1000)
        file["time"] = np.arange(1000.0)
        file["time"].make_scale("time")
        file["t"].dims[0].attach_scale(file["time"])
    with serving({"x.nc": out.getvalue()}) as server:
        result = twinrun.compare(f"{server.url}/x.nc", f"{server.url}/x.nc")
        assert result.verdict == "same" and {f.field for f in result.fields} == {"t", "time"}


def test_links_of_hdf5_do_not_lead_to_files_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    h5py = pytest.importorskip("h5py")
    monkeypatch.chdir(tmp_path)
    with h5py.File("other.h5", "w") as file:
        file["x"] = np.arange(5.0)
    np.arange(5.0).tofile("outside.bin")
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        file["own"] = np.arange(3.0)
        file["link"] = h5py.ExternalLink("other.h5", "x")
        layout = h5py.VirtualLayout((5,), "f8")
        layout[:] = h5py.VirtualSource("other.h5", "x", (5,))
        file.create_virtual_dataset("virtual", layout)
        file.create_dataset("outside", (5,), "f8", external=[("outside.bin", 0, 40)])
    with serving({"x.h5": out.getvalue()}) as server:
        result = twinrun.compare(f"{server.url}/x.h5", f"{server.url}/x.h5", partial=True)
    assert result.verdict == "incomparable"
    said = " ".join(str(problem) for problem in result.problems)
    assert all(word in said for word in ("link", "virtual", "outside"))


def zarr_group(folder: Path, consolidated: bool = True) -> dict[str, bytes]:
    zarr = pytest.importorskip("zarr")
    if int(zarr.__version__.split(".")[0]) < 3:
        pytest.skip("this test writes by zarr 3")
    group = zarr.open_group(folder, mode="w")
    group.create_array("plain", data=noise(30_000).reshape(100, 300), chunks=(10, 300), compressors=None)
    group.create_array("packed", data=noise(30_000, 2), chunks=(3_000,))
    if consolidated:
        zarr.consolidate_metadata(folder)
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


def test_zarr(tmp_path: Path) -> None:
    keys = zarr_group(tmp_path / "g.zarr")
    objects = {f"{run}.zarr/{key}": content for run in "ab" for key, content in keys.items()}
    with serving(objects) as server:
        a, b = f"{server.url}/a.zarr", f"{server.url}/b.zarr"
        result = twinrun.compare(a, b)
        assert result.verdict == "same" and {f.field for f in result.fields} == {"plain", "packed"}
        assert twinrun.compare(tmp_path / "g.zarr", b).verdict == "same"
        chunk = bytearray(server.objects["b.zarr/plain/c/3/0"])
        chunk[8:16] = np.float64(7).tobytes()
        server.objects["b.zarr/plain/c/3/0"] = bytes(chunk)
        server.asked.clear()
        result = twinrun.compare(a, b, fields=["plain"])
        assert result.verdict == "different" and result.first.first_index == (30, 1)
        assert not any("/packed/c/" in path for path, _, _ in server.asked)
        del server.objects["b.zarr/packed/c/2"]  # a chunk that is not there holds the fill value
        result = twinrun.compare(a, b, fields=["packed"])
        assert result.verdict == "different" and result.first.first_index == (6_000,)


def test_zarr_without_consolidated_metadata_is_refused(tmp_path: Path) -> None:
    keys = zarr_group(tmp_path / "g.zarr", consolidated=False)
    with serving({f"a.zarr/{key}": content for key, content in keys.items()}) as server:
        with pytest.raises(Unsupported, match="consolidate"):
            twinrun.compare(f"{server.url}/a.zarr", f"{server.url}/a.zarr")


@pytest.mark.parametrize("key", ["../out", "a/../../out", "/out", "a//out", "..", "a/./out", "a\0out"])
def test_copies_stay_in_their_folder(tmp_path: Path, key: str) -> None:
    """A manifest on a web server may name any file: none is written outside of the copies."""
    with serving({"golden/x": b"1", "golden/out": b"2", "out": b"3"}) as server:
        store = RemoteStore(f"{server.url}/golden", *file_system(f"{server.url}/golden"), None)
        copies = Copies(store)
        try:
            copies.bring(["x"])
            with pytest.raises(FormatError, match="no path"):
                copies.bring([key])
            assert sorted(os.listdir(copies.folder)) == ["x"]
        finally:
            copies.close()


def test_golden_files_and_their_run(tmp_path: Path) -> None:
    x = noise(100_000)
    np.save(tmp_path / "x.npy", x)
    golden.save(tmp_path / "x.npy", tmp_path / "golden", atol=1e-6)
    objects = {
        f"golden/{p.relative_to(tmp_path / 'golden').as_posix()}": p.read_bytes()
        for p in (tmp_path / "golden").rglob("*")
        if p.is_file()
    }
    y = x.copy()
    y[77] += 1e-3
    with serving({**objects, "x.npy": npy(x), "y/x.npy": npy(y)}) as server:
        url = f"{server.url}/golden/"
        found = golden.check(url, tmp_path / "x.npy")
        assert found.verdict == "same" and "twinrun-remote-" not in repr(found)
        found = golden.check(url, f"{server.url}/y/x.npy")
        assert found.verdict == "different" and found.first.first.index == (77,)
        assert command("golden", "check", url, tmp_path / "x.npy").status == 0
        with pytest.raises(MissingFile, match="no golden files"):
            golden.check(f"{server.url}/x.npy", tmp_path / "x.npy")


def test_damaged_golden_files_are_told_of_their_url(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", noise(1000))
    golden.save(tmp_path / "x.npy", tmp_path / "golden", atol=1e-6)
    objects = {f"golden/{p.name}": p.read_bytes() for p in (tmp_path / "golden").iterdir()}
    for key, content in objects.items():
        with serving({**objects, key: content[:-9]}) as server:
            done = command("golden", "check", f"{server.url}/golden/", tmp_path / "x.npy")
            assert done.status == 2 and f"{server.url}/{key}: " in done.err
            assert "twinrun-remote" not in done.out + done.err


# ---- objects that change ----


def changing(server: ObjectServer, path: str, content: bytes, after: int) -> None:
    """Replaces an object once it was asked for `after` times."""
    count = iter(range(1, 1 << 30))

    def before(asked: str) -> None:
        if asked == path and next(count) == after + 1:
            server.objects[path] = content

    server.before = before


@pytest.mark.parametrize("after", [1, 2, 4])
def test_an_object_that_changes_is_an_error(after: int) -> None:
    x = noise(1_000_000)
    with serving({"a.npy": npy(x), "b.npy": npy(x)}) as server:
        changing(server, "b.npy", npy(x[::-1].copy()), after)
        with pytest.raises(FormatError, match="was changed while it was read"):
            twinrun.compare(f"{server.url}/a.npy", f"{server.url}/b.npy")


def test_last_modified_counts_where_there_is_no_etag() -> None:
    x = npy(noise(100_000))
    with serving({"a.npy": x}) as server:
        server.validators = {"Last-Modified": formatdate(1_700_000_000, usegmt=True)}
        assert twinrun.compare(f"{server.url}/a.npy", f"{server.url}/a.npy").verdict == "same"
        # A weak ETag stands for other bytes too.
        server.validators = {"ETag": 'W/"1"'}
        with pytest.raises(Unsupported, match="no ETag and no Last-Modified"):
            twinrun.compare(f"{server.url}/a.npy", f"{server.url}/a.npy")
        server.validators = {"Last-Modified": formatdate(4_000_000_000, usegmt=True)}
        with pytest.raises(FormatError, match="within the last second"):
            twinrun.compare(f"{server.url}/a.npy", f"{server.url}/a.npy")


def test_servers_that_cannot_be_used() -> None:
    with serving({"a.npy": npy(noise(10))}) as server:
        url = f"{server.url}/a.npy"
        server.gives_ranges = False
        with pytest.raises(Unsupported, match="no ranges"):
            twinrun.compare(url, url)
        server.gives_ranges = True
        with pytest.raises(MissingFile, match="no such object"):
            twinrun.compare(url, f"{server.url}/b.npy")
        server.statuses = [403]
        with pytest.raises(FormatError, match="refuses access"):
            twinrun.compare(url, url)
        server.statuses = [503, 500]  # it is busy, and then answers
        assert twinrun.compare(url, url).verdict == "same"
    with pytest.raises(FormatError, match="does not answer"):  # nothing listens there
        twinrun.compare("http://127.0.0.1:1/a.npy", url)


def test_answers_with_another_range_are_refused() -> None:
    x = noise(100_000)
    with serving({"a.npy": npy(x)}) as server:
        server.shift = 8
        with pytest.raises(FormatError, match="other bytes than it was asked for"):
            twinrun.compare(f"{server.url}/a.npy", {"a": x})

        def before(path: str) -> None:
            server.shift = 8 if len(server.asked) >= 1 else 0

        server.asked.clear()
        server.before = before
        with pytest.raises(FormatError, match=r"other bytes than it was asked for|was changed"):
            twinrun.compare(f"{server.url}/a.npy", {"a": x})


def test_what_takes_no_urls(tmp_path: Path) -> None:
    x = noise(10)
    with serving({"a.npy": npy(x)}) as server:
        url = f"{server.url}/a.npy"
        with pytest.raises(Unsupported, match="nothing is written to stores"):
            twinrun.index(url)
        with ThreadPoolExecutor(2) as workers, pytest.raises(Unsupported, match="one process alone"):
            twinrun.compare(url, url, options=twinrun.CompareOptions(executor=workers))
        with pytest.raises(FormatError, match="neither a history"):
            twinrun.compare(f"{server.url}/", url)


def test_formats_that_need_files_of_this_machine() -> None:
    pytest.importorskip("pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    out = io.BytesIO()
    pq.write_table(pa.table({"x": [1.0, 2.0]}), out)
    with serving({"x.parquet": out.getvalue()}) as server:
        with pytest.raises(FormatError, match="not read from stores"):
            twinrun.compare(f"{server.url}/x.parquet", f"{server.url}/x.parquet")


def test_tables_and_archives() -> None:
    out = io.BytesIO()
    np.savez(out, x=noise(10_000), y=noise(10))
    with serving({"a.csv": b"a,b\n1,2\n", "b.csv": b"a,b\n1,3\n", "x.npz": out.getvalue()}) as server:
        result = twinrun.compare(f"{server.url}/a.csv", f"{server.url}/b.csv")
        assert result.verdict == "different" and result.first.field == "b"
        assert twinrun.compare(f"{server.url}/a.csv", f"{server.url}/a.csv").verdict == "same"
        result = twinrun.compare(f"{server.url}/x.npz", {"x": noise(10_000), "y": noise(10)})
        assert result.verdict == "same" and {f.field for f in result.fields} == {"x", "y"}


def test_a_table_is_downloaded_once() -> None:
    lines = "".join(f"{v!r},{at}\n" for at, v in enumerate(map(float, noise(40_000))))
    with serving({"a.csv": f"a,b\n{lines}".encode()}) as server:
        size = len(server.objects["a.csv"])
        result = twinrun.compare(f"{server.url}/a.csv", {"a": noise(40_000), "b": np.arange(40_000)})
        assert result.verdict == "same"
        assert server.bytes_asked == size


def test_several_ranges_are_under_way_at_once() -> None:
    x = npy(noise(2_000_000))
    together, met = threading.Barrier(2, timeout=HANG / 10), threading.Event()

    def before(path: str) -> None:
        # The two opening requests come one after the other. One of the data waits for another one.
        if len(server.asked) >= 2 and not met.is_set():
            with contextlib.suppress(threading.BrokenBarrierError):
                together.wait()
                met.set()
                together.abort()

    with serving({"x.npy": x}) as server:
        server.before = before
        assert twinrun.compare(f"{server.url}/x.npy", f"{server.url}/x.npy").verdict == "same"
    assert met.is_set()


# ---- secrets ----


def test_secrets_get_into_no_report(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    x = noise(1000)
    with serving({"a.npy": npy(x), "b.npy": npy(x + 1)}) as server:
        server.asks_password = "me:hidden"
        host = server.url.removeprefix("http://")
        a, b = (f"http://me:hidden@{host}/{name}.npy?X-Sig=hidden" for name in "ab")
        files = [tmp_path / name for name in ("r.json", "r.html", "r.xml", "d.jsonl")]
        options = [
            "--json",
            files[0],
            "--html",
            files[1],
            "--junit",
            files[2],
            "--list-differences",
            files[3],
        ]
        done = command("compare", a, b, *options)
        assert done.status == 1
        result = twinrun.compare(a, b)
        texts = [
            done.out,
            done.err,
            repr(result),
            str(result),
            *(f.read_bytes().decode("latin-1") for f in files),
        ]
        server.statuses = [404] * 99
        done = command("compare", a, b, "--json", files[0], "--html", files[1], "--junit", files[2])
        assert done.status == 2
        texts += [done.out, done.err, *(f.read_text() for f in files[:3]), caplog.text]
        for verb in ("show", "index", "verify", "log"):
            done = command(verb, a)
            assert done.status != 0
            texts += [done.out, done.err]
        with pytest.raises(MissingFile) as error:
            twinrun.compare(a, b)
        texts += [str(error.value), str(error.getrepr(chain=True).reprcrash)]
    for text in texts:
        assert "hidden" not in text
    assert f"http://{host}/a.npy" in texts[0] + texts[4]


def captured(path: Path, shift: float = 0.0, ranks: int = 1, **options: object) -> dict[str, bytes]:
    """A history of three steps, of which the last is shifted; its files by their paths."""
    turns = _core.Turns(ranks)
    for rank in range(ranks):
        begun = RankRun(path, turns, atol=1e-6) if ranks > 1 else twinrun.Run(path, atol=1e-6, **options)
        with begun as run:
            for step in range(3):
                x = noise(20_000, step)
                x[5] += shift * (step == 2 and rank == ranks - 1)
                run.capture(step, {"x": x})
    return {p.relative_to(path.parent).as_posix(): p.read_bytes() for p in path.rglob("*") if p.is_file()}


@pytest.mark.parametrize("ranks", [1, 3])
def test_histories(tmp_path: Path, ranks: int) -> None:
    objects = captured(tmp_path / "a", ranks=ranks) | captured(tmp_path / "b", 1.0, ranks)
    with serving(objects) as server:
        a, b = f"{server.url}/a/", f"{server.url}/b/"
        result, here = twinrun.compare(a, b), twinrun.compare(tmp_path / "a", tmp_path / "b")
        assert result.verdict == here.verdict == "different" and result.notes == []
        assert result.first_divergence == here.first_divergence
        assert "twinrun-remote-" not in str(result)
        server.asked.clear()
        assert twinrun.compare(a, tmp_path / "b", steps="0:1").verdict == "same"
        assert server.asked and not any("step-0000000002/" in path for path, _, _ in server.asked)
        data = "a/step-0000000001/rank-00000.data"
        whole = server.objects[data]
        server.objects[data] = bytes([whole[0] ^ 1]) + whole[1:]
        with pytest.raises(TwinrunError, match=f"{data}: does not hold what its metadata"):
            twinrun.compare(a, a, steps="1")
        del server.objects[data]
        with pytest.raises(TwinrunError):
            twinrun.compare(a, a, steps="1")
        if ranks > 1:  # without a journal no step is whole
            del server.objects["a/rank-00001.jsonl"]
            with pytest.raises(TwinrunError):
                twinrun.compare(a, a)


@pytest.mark.parametrize("ranks", ['"x"', "1000000", "-3", "null"])
def test_a_manifest_that_names_any_number_of_ranks(tmp_path: Path, ranks: str) -> None:
    objects = captured(tmp_path / "a", ranks=2)
    objects["a/manifest.jsonl"] = objects["a/manifest.jsonl"].replace(
        b'"ranks":2', f'"ranks":{ranks}'.encode()
    )
    with serving(objects) as server:
        with pytest.raises(TwinrunError):
            twinrun.compare(f"{server.url}/a/", f"{server.url}/a/")


def test_a_record_on_a_web_server_is_refused(tmp_path: Path) -> None:
    with serving(captured(tmp_path / "a", record="runs")) as server:
        with pytest.raises(Unsupported, match="is a record, and a web server does not say"):
            twinrun.compare(f"{server.url}/a/", f"{server.url}/a/")
