import datetime
import io
import pickle
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from commands import HANG
from format_checks import check_content, check_field, mutations, not_numbers, survives
from hypothesis import given, settings
from hypothesis import strategies as st

import twinrun
from twinrun.errors import DamagedFile, FormatError, Unsupported
from twinrun.formats import detect, open_file
from twinrun.formats.pickles import Global, Opaque, Pairs, load
from twinrun.formats.pytorch import _told

FILES = Path(__file__).parent / "fixtures" / "torch"
FAST = settings(max_examples=300)


def values(name: str, shape=(3, 4), kind: str = "f4") -> np.ndarray:
    """What fixtures/torch/make.py put into the tensor `name`."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    count = int(np.prod(shape, dtype=np.int64))
    if kind == "?":
        return rng.integers(0, 2, count).astype(bool).reshape(shape)
    return rng.integers(-100, 100, count).astype(kind).reshape(shape)


def brain(array: np.ndarray) -> np.ndarray:
    """As bf16: small integers lose nothing."""
    return (array.astype("f4").view("u4") >> 16).astype("u2")


def expected_state() -> dict[str, np.ndarray]:
    base = values("base", (6, 4), "f8")
    kinds = {"f2": "half", "f8": "double", "i1": "int8", "i2": "short", "i4": "int", "i8": "long", "u1": "byte",
             "?": "bool", "c8": "c64", "c16": "c128"}  # fmt: skip
    return {
        "model.layer1.weight": values("model.layer1.weight"),
        "model.layer1.bias": values("model.layer1.bias", (3,)),
        "optimizer.state.0.step": np.array(7, "f4"),
        "optimizer.state.0.exp_avg": values("optimizer.state.0.exp_avg"),
        **{f"kinds.{name}": values(f"kinds.{name}", (5,), kind) for kind, name in kinds.items()},
        "bf16": brain(values("bf16")),
        "views.whole": base,
        "views.transposed": base.T,
        "views.rows": base[1:3],
        "views.column": base[:, 2],
        "views.every_other": base[::2, 1:3],
        "views.broadcast": np.full(5, base[0, 0]),
        "empty": np.empty((0, 3), "f4"),
        "scalar": np.array(3.5),
        "parameter": values("parameter"),
        "list.0": values("list.0", (2,)),
        "list.1.deep": values("list.1.deep", (2,)),
    }


def check_state(path, in_extents=True):
    with open_file(path) as content:
        assert content.format == "pytorch" and not content.skipped and not content.one_array
        check_content(content, expected_state())
        assert content.fields["bf16"].dtype == "bf16"
        assert content.facts["optimizer.param_groups.0.lr@(value)"].text and not content.notes
        assert content.facts["epoch@(value)"].text == "12"
        for name, field in content.fields.items():
            dense = name not in ("views.transposed", "views.every_other", "views.broadcast")
            if field.size:
                assert (field.extents is not None) == (dense and in_extents), name
    with open_file(path, attributes=True) as content:
        assert content.fields["epoch"].elements().tolist() == [12]
        assert content.fields["optimizer.param_groups.0.betas.1"].elements().tolist() == [0.999]


@pytest.mark.parametrize("name", ["state.pt", "state_1.13.pt"])
def test_files_of_pytorch(name):
    check_state(FILES / name)


def test_a_file_of_the_pytorch_that_is_here(tmp_path):
    for python in dict.fromkeys([sys.executable, "/usr/bin/python3"]):
        if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0:
            break
    else:
        pytest.skip("no Python here has PyTorch")
    subprocess.run(
        [python, str(FILES / "make.py"), str(tmp_path)], check=True, capture_output=True, timeout=HANG
    )
    check_state(tmp_path / "state.pt")
    check_state(tmp_path / "deflated.pt", in_extents=False)


def rewritten(source: Path, target: Path, change=lambda name, data: data, method=zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", method) as new:
        for info in old.infolist():
            new.writestr(info.filename, change(info.filename, old.read(info)))
    return target


def test_compressed_members_are_decoded(tmp_path):
    check_state(
        rewritten(FILES / "state.pt", tmp_path / "x.pt", method=zipfile.ZIP_DEFLATED), in_extents=False
    )


def test_a_file_of_a_big_endian_machine(tmp_path):
    def swap(name, data):
        if name.endswith("/byteorder"):
            return b"big"
        return np.frombuffer(data, "<f4").byteswap().tobytes() if "/data/" in name else data

    rewritten(FILES / "only.pt", tmp_path / "only.pt", swap)
    with open_file(tmp_path / "only.pt") as content:
        check_content(content, {"only": values("only")}, in_extents=True)
        assert content.fields["only"].byte_order == "big" and content.one_array
    rewritten(FILES / "only.pt", tmp_path / "bad.pt", lambda n, d: b"middle" if n.endswith("order") else d)
    with pytest.raises(DamagedFile, match="byte order"):
        open_file(tmp_path / "bad.pt")


def test_modules_scripts_and_special_tensors():
    for name in ("module.pt", "script.pt"):
        with open_file(FILES / name) as content:
            check_content(
                content,
                {
                    "linear.weight": values("linear.weight", (2, 2)),
                    "linear.bias": values("linear.bias", (2,)),
                },
            )
    with open_file(FILES / "special.pt") as content:
        arrays = {"plain": values("plain"), "sparse.values": np.ones(3, "f4")}
        arrays["sparse@indices"] = np.array([[0, 1, 2]] * 2)
        arrays["u16"] = values("u16", (4,), "i2").view("u2")
        check_content(content, arrays)
        assert not_numbers(content) == {"f8": "float8_e4m3fn"} and content.fields["f8"].dtype == "u8"
        assert [name for name, _ in content.skipped] == ["quantized"]
        assert "qtensor" in dict(content.skipped)["quantized"]


def test_detection_and_what_is_not_read(tmp_path):
    for name in ("state.pt", "script.pt"):
        (tmp_path / "x").write_bytes((FILES / name).read_bytes())
        assert detect(tmp_path / "x").name == "pytorch"
    for name, data in {"legacy": (FILES / "legacy.pt").read_bytes(), "plain": pickle.dumps({"a": 1})}.items():
        (tmp_path / "x.pt").write_bytes(data)
        with pytest.raises(
            Unsupported, match=r"before PyTorch 1\.6|before 1\.6|plain pickle.*torch.save|torch.save"
        ):
            open_file(tmp_path / "x.pt")
        assert name


class _Pickler(pickle.Pickler):
    def persistent_id(self, value):
        return value.identity if isinstance(value, _Storage) else None


class _Storage:
    def __init__(self, key="0", kind="FloatStorage", numel=12):
        self.identity = ("storage", _Named("torch", kind), key, "cpu", numel)


class _Named:
    """Pickles as a class of a module that is not here."""

    def __init__(self, module, name):
        self.module, self.name = module, name


class _Call:
    def __init__(self, module, name, *args):
        self.function, self.args = _Named(module, name), args


def _pickled(value, protocol=2) -> bytes:
    """By hand where Python's pickler would want to import."""
    out = io.BytesIO()

    def put(v):
        if isinstance(v, _Named):
            out.write(f"c{v.module}\n{v.name}\n".encode())
        elif isinstance(v, _Storage):
            put(v.identity)
            out.write(b"Q")
        elif isinstance(v, _Call):
            put(v.function)
            put(v.args)
            out.write(b"R")
        elif isinstance(v, tuple):
            out.write(b"(")
            for item in v:
                put(item)
            out.write(b"t")
        elif isinstance(v, dict):
            out.write(b"}(")
            for key, item in v.items():
                put(key)
                put(item)
            out.write(b"u")
        else:
            out.write(pickle.dumps(v, 2)[2:-1])

    out.write(b"\x80\x02")
    put(value)
    return out.getvalue() + b"."


def tensor(offset=0, size=(3, 4), stride=(4, 1), storage=None, *more):
    return _Call(
        "torch._utils", "_rebuild_tensor_v2", storage or _Storage(), offset, size, stride, False, None, *more
    )


def write(path, root, data=None, raw=None, **members):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x/data.pkl", _pickled(root) if raw is None else raw)
        if raw is None:
            file.writestr("x/data/0", np.arange(12, dtype="<f4").tobytes() if data is None else data)
        for name, content in members.items():
            file.writestr(name, content)
    return path


def test_files_by_hand(tmp_path):
    with open_file(write(tmp_path / "x.pt", {"a": tensor(), "b": tensor(4, (2,), (3,))})) as content:
        flat = np.arange(12, dtype="<f4")
        check_content(content, {"a": flat.reshape(3, 4), "b": flat[4:8:3]}, in_extents=True)
    with open_file(write(tmp_path / "x.pt", {"a": {"b": tensor()}, "a.b": tensor(0, (1,), (1,))})) as content:
        assert sorted(content.fields) == ["a.b", "a.b#2"]
    with open_file(write(tmp_path / "x.pt", {"a": tensor(0, (1 << 40,), (0,)), "b": tensor()})) as content:
        assert "broadcast" in dict(content.skipped)["a"] and list(content.fields) == ["b"]


def test_an_empty_key_counts(tmp_path):
    a, b = (write(tmp_path / f"{n}.pt", v) for n, v in (("a", {"": {"a": tensor()}}), ("b", {"a": tensor()})))
    assert not verdict(a, b) and not verdict(b, a) and verdict(a, a)


def test_members_that_no_tensor_shows_are_compared(tmp_path):
    more = [
        {},
        {"x/extra/config.json": '{"threshold": 0.5}'},
        {"x/extra/config.json": '{"threshold": 0.9}'},
        {"x/attributes.pkl": "1234"},
        {"x/data/1": "1234"},
        {"x/data/1": "1235"},
        {"x/unknown.bin": "1"},
        {"unknown.bin": "1"},
        {"y/code/a.py": "1"},
        {"code/a.py": "1"},
        {"x/constants.pkl": "N.", "x/version": "3"},
        {"x/constants.pkl": "N.", "x/version": "4"},
    ]
    files = [write(tmp_path / f"{n}.pt", {"a": tensor()}, **members) for n, members in enumerate(more)]
    for n, a in enumerate(files):
        for m, b in enumerate(files):
            assert verdict(a, b) == (n == m), (more[n], more[m])
    with open_file(files[1]) as content:
        assert set(content.fields) == {"a", "extra/config.json"} and "config.json" in content.notes[0]
    alone = [write(tmp_path / f"alone{n}.pt", tensor(), **more[n]) for n in (1, 1, 2)]
    assert verdict(*alone[:2]) and not verdict(*alone[1:])


def test_what_only_says_how_an_archive_is_stored_is_not_looked_at(tmp_path):
    stored = {"x/version": "3", "x/byteorder": "little", "x/.format_version": "1", "x/.storage_alignment": "64",
              "x/.data/serialization_id": "12", "x/code/a.py.debug_pkl": "N.", "x/data/": ""}  # fmt: skip
    a = write(tmp_path / "a.pt", {"a": tensor(0, (0,), (1,)), "b": tensor(0, (2,), (1,))})
    b = write(tmp_path / "b.pt", {"a": tensor(0, (0,), (1,)), "b": tensor(0, (2,), (1,))}, **stored)
    assert verdict(a, b)


def test_storages_without_a_tensor_are_compared(tmp_path):
    first = np.arange(12, dtype="<f4")
    second = np.append(first[:-1], np.float32(7))
    in_arguments = _Call("own", "Thing", tensor())
    for n, root in enumerate(({"s": _Storage()}, {"t": in_arguments})):
        files = [
            write(tmp_path / f"{n}{m}.pt", root, d.tobytes()) for m, d in enumerate((first, first, second))
        ]
        assert verdict(*files[:2]) and not verdict(*files[1:])
    both = [
        write(tmp_path / f"both{m}.pt", (_Storage(), _Storage("1")), **{"x/data/1": d.tobytes()})
        for m, d in enumerate((first, first, second))
    ]
    assert verdict(*both[:2]) and not verdict(*both[1:])
    a = write(tmp_path / "kind.pt", {"s": _Storage(kind="IntStorage")}, first.tobytes())
    assert not verdict(a, tmp_path / "00.pt")


def sparse(size=(2, 2), layout="torch.sparse_coo", *more):
    kind = _Call("torch.serialization", "_get_layout", layout)
    parts = (tensor(0, (2, 1), (1, 1)), tensor(0, (1,), (1,)), *more, size, *([True] if not more else []))
    return _Call("torch._utils", "_rebuild_sparse_tensor", kind, parts)


def test_sizes_and_layouts_of_sparse_tensors(tmp_path):
    extra = tensor(0, (1,), (1,))
    roots = [sparse(), sparse((2, 3)), sparse((2, 2), "torch.sparse_csr", extra), sparse((2, 3), "torch.sparse_csr", extra),
             sparse((2, 2), "torch.sparse_csc", extra)]  # fmt: skip
    files = [write(tmp_path / f"{n}.pt", {"x": root}) for n, root in enumerate(roots)]
    names = [{"x@indices", "x.values"}] * 2 + [{"x@compressed", "x@plain", "x.values"}] * 3
    for n, a in enumerate(files):
        with open_file(a) as content:
            assert set(content.fields) == names[n] and not content.skipped
        for m, b in enumerate(files):
            if names[n] == names[m]:
                assert twinrun.compare(a, b).same == (n == m)


def test_classes_of_tensors(tmp_path):
    def wrapped(kind, *state):
        return _Call("torch._tensor", "_rebuild_from_type_v2", _Named("torch._utils", "_rebuild_tensor_v2"), kind,
                     tensor().args, *state)  # fmt: skip

    roots = [
        tensor(),
        _Call("torch._utils", "_rebuild_parameter", tensor(), False, None),
        _Call("torch._utils", "_rebuild_parameter", tensor(), True, None),
        _Call("torch._utils", "_rebuild_parameter_with_state", tensor(), False, None, {"scale": 1}),
        _Call("torch._utils", "_rebuild_parameter_with_state", tensor(), False, None, {"scale": 2}),
        wrapped(_Named("own", "Tensor"), {}),
        wrapped(_Named("own", "Other"), {}),
        wrapped(_Named("own", "Other"), {"scale": tensor(1, (1,), (1,))}),
        wrapped(_Named("own", "Other"), {"scale": tensor(2, (1,), (1,))}),
    ]
    files = [write(tmp_path / f"{n}.pt", {"x": root}) for n, root in enumerate(roots)]
    for n, a in enumerate(files):
        for m, b in enumerate(files):
            assert verdict(a, b) == (n == m)


def verdict(a, b):
    try:
        return twinrun.compare(a, b).same
    except twinrun.Incomparable:
        return False


@pytest.mark.parametrize(
    "bad",
    [
        tensor(offset=1),
        tensor(offset=-1),
        tensor(size=(-3, -4)),
        tensor(size=(1 << 62, 1 << 62)),
        tensor(size=(3, 4, 1)),
        tensor(stride=(-4, 1)),
        tensor(stride=(1 << 61, 1)),
        tensor(size=[3, 4]),
        tensor(size=(3.0, 4)),
        tensor(offset=True),
        tensor(storage=_Storage("1")),
        tensor(storage=_Storage("../data.pkl")),
        tensor(storage=7),
        _Call("torch._utils", "_rebuild_tensor_v2"),
        _Call("torch._utils", "_rebuild_parameter"),
        _Call("torch._utils", "_rebuild_tensor_v3", _Storage(), 0, (3,), (1,), False, None, 3),
        _Call("torch._utils", "_rebuild_from_type_v2", 3),
    ],
)
def test_hostile_tensors(tmp_path, bad):
    with pytest.raises(DamagedFile):
        open_file(write(tmp_path / "x.pt", {"bad": bad}))


class Payload:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        import os

        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_of_a_pickle_runs(tmp_path, protocol):
    mark = tmp_path / "ran"
    data = pickle.dumps({"a": Payload(f"touch {mark}")}, protocol)
    root = load(data, "x")
    assert isinstance(root.find("a"), Opaque) and root.find("a").maker.name == "system"
    with open_file(write(tmp_path / "x.pt", None, raw=data)) as content:
        assert not content.fields
    for raw in (
        b"cos\nsystem\n(S'touch %s'\ntR." % str(mark).encode(),
        b"(S'touch %s'\nios\nsystem\n." % str(mark).encode(),
        b"(cos\nsystem\nS'touch %s'\no." % str(mark).encode(),
        b"cbuiltins\nexec\n(S'open(%r, \"w\")'\ntR." % str(mark).encode(),
        b"\x80\x02cbuiltins\neval\n(S'1'\nt\x81.",
    ):
        load(raw, "x")
        open_file(write(tmp_path / "x.pt", None, raw=raw)).close()
    assert not mark.exists()
    pickle.loads(data)  # the payload is a real one
    assert mark.exists()


@pytest.mark.parametrize(
    ("a", "b", "shown"),
    [
        (np.float32(1), np.float64(1), ("dtype('f4'", "dtype('f8'")),
        (np.arange(3), np.arange(1, 4), ("digest", "digest")),
        (np.arange(3, dtype=">i4"), np.arange(3, dtype="<i4"), ("'>'", "'<'")),
        (datetime.date(2024, 1, 1), datetime.date(2024, 1, 2), ("0x07e80101", "0x07e80102")),
        ("a" * 500 + "b", "a" * 500 + "c", ("aaab' (from character 490 of 501)", "aaac'")),
        ("a" * 500, "a" * 501, ("'…aaaaaaaaaa' (from", "'…aaaaaaaaaaa' (from")),
        (b"\xff" * 500 + b"b", b"\xff" * 500 + b"c", ("", "")),
        ({"x" * 90}, {"x" * 90 + "y"}, ("(from character 80 of 90)", "(from character 80 of 91)")),
    ],
)
def test_a_difference_shows_what_differs(tmp_path, a, b, shown):
    files = [
        write(tmp_path / f"{name}.pt", None, raw=pickle.dumps({"v": value}, 2))
        for name, value in (("a", a), ("b", b))
    ]
    result = twinrun.compare(*files)
    assert result.attributes and "()" not in result.attributes[0].text()
    for found in result.attributes:
        assert found.a != found.b
    assert shown[0] in found.a and shown[1] in found.b


def test_a_value_that_holds_others_many_times_is_told(tmp_path):
    """Each level doubles the text of the whole, and only its beginning is made."""
    value = _Call("builtins", "set", 1)
    for _ in range(8):
        value = _Call("builtins", "set", (value, value, value, value))
    assert len(_told(load(_pickled(value), "x"))) == 120


def plain(value):
    """What `load` gives, as Python's own unpickler would."""
    if isinstance(value, Pairs):
        return {plain(k): plain(v) for k, v in value}
    if isinstance(value, (list, tuple)):
        return type(value)(map(plain, value)) if type(value) in (list, tuple) else value
    return value


leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(), inner)
    ),
    max_leaves=20,
)


@settings(max_examples=300)
@given(trees, st.integers(0, 5))
def test_plain_values_are_what_python_reads(value, protocol):
    found = load(pickle.dumps(value, protocol), "x")
    if protocol < 3:  # bytes are calls of _codecs.encode there, or of bytes
        if isinstance(value, bytes) or "Opaque" in repr(found):
            return
    assert plain(found) == value


@settings(max_examples=500)
@given(st.data())
def test_damaged_pickles_end_in_format_errors(data):
    good = zipfile.ZipFile(FILES / "state.pt").read("state/data.pkl")
    if data.draw(st.booleans()):
        good = (FILES / "dcp" / ".metadata").read_bytes()
    try:
        load(data.draw(mutations(good)), "x")
    except FormatError as error:
        assert str(error).isprintable()


@settings(max_examples=300)
@given(st.binary(max_size=60))
def test_any_bytes_are_no_trouble_for_the_pickle_reader(data):
    try:
        load(data, "x")
    except FormatError as error:
        assert str(error).isprintable()


def test_bombs(tmp_path):
    # Each list holds the one before twice: 2^60 values.
    bomb = b"\x80\x02]q\x00" + b"".join(b"](h%ch%ceq%c" % (n, n, n + 1) for n in range(60)) + b"."
    with pytest.raises(Unsupported, match=r"more than 1000000 values|nested"):
        open_file(write(tmp_path / "x.pt", None, raw=bomb))
    loop = b"\x80\x02]q\x00h\x00a."  # a list that holds itself
    with pytest.raises(Unsupported, match="nested"):
        open_file(write(tmp_path / "x.pt", None, raw=loop))
    deep = b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."
    with pytest.raises(Unsupported, match="nested"):
        open_file(write(tmp_path / "x.pt", None, raw=deep))
    for raw in (
        b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7f.",
        b"\x80\x02\x8b\xff\xff\xff\x7f.",
        b"I" + b"9" * 100_000 + b"\n.",
    ):
        with pytest.raises(DamagedFile):
            open_file(write(tmp_path / "x.pt", None, raw=raw))
    assert load(b"\x80\x02cos\nsystem\n.", "x") == Global("os", "system")


@FAST
@given(st.data())
def test_damaged_files_end_in_format_errors(tmp_path, data):
    name = data.draw(st.sampled_from(["state.pt", "special.pt", "module.pt"]))
    survives(
        tmp_path / "x.pt",
        data.draw(mutations((FILES / name).read_bytes())),
        format="pytorch",
        attributes=True,
    )


def test_fields_of_a_shared_storage(tmp_path):
    with open_file(FILES / "state.pt") as content:
        whole, rows = content.fields["views.whole"], content.fields["views.rows"]
        assert rows.extents[0].offset == whole.extents[0].offset + 4 * 8
        check_field(rows, values("base", (6, 4), "f8")[1:3], in_extents=True)
