"""GPUs as Python sees them, on any machine: which arrays are taken and how, and what is said where there is no GPU.

What needs one: test_device_gpu.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import io
import os
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from commands import check_error, command, load_json, process
from rich.console import Console

import twinrun
from twinrun import _core
from twinrun import arguments as settings
from twinrun.report import document, print_comparison
from twinrun.runs.arrays import ArrayView, DeviceArrayView, stream_handle, taken, view, writable

ADDRESS = 0x7F0000001000  # carried, never read
NO_GPU = _core.devices().reason


# ---- fakes: objects that carry the interfaces -----------------------------------------------------------------------------


class CudaArray:
    """An object with `__cuda_array_interface__`."""

    def __init__(self, shape: tuple, typestr: str, address: int = ADDRESS, **more: object) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": typestr, "data": (address, False), "version": 3, **more
        }  # fmt: skip


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64), ("tensor", _Tensor),
    ]  # fmt: skip


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class DLPackArray:
    """An object with `__dlpack__`; `asked` is what its stream argument was."""

    def __init__(
        self, shape: tuple, code: int, bits: int, strides: tuple | None = None, *, lanes: int = 1, address: int = ADDRESS,
        byte_offset: int = 0, device: tuple[int, int] = (2, 0), versioned: bool = True, major: int = 1,
    ) -> None:  # fmt: skip
        sizes = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        steps = None if strides is None else (ctypes.c_int64 * max(len(strides), 1))(*strides)
        tensor = _Tensor(
            address, *device, len(shape), code, bits, lanes, sizes, steps, byte_offset
        )  # fmt: skip
        self._keep = (sizes, steps)
        self._versioned = versioned
        if versioned:
            self._managed = _Versioned(major, 0, None, None, 1, tensor)
        else:
            self._managed = _Managed(tensor, None, None)
        self._device = device
        self.asked: list[object] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, **options: object) -> object:
        if "max_version" in options and not self._versioned:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        self.asked.append(options.get("stream"))
        name = b"dltensor_versioned" if self._versioned else b"dltensor"
        return _new_capsule(ctypes.addressof(self._managed), name, None)


@pytest.fixture
def on_device_3(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses are the memory of cuda:3."""
    monkeypatch.setattr(_core, "device_of", lambda address: 3)


# ---- what is taken, and how -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("on_device_3")
def test_cuda_array_interface() -> None:
    x = CudaArray((4, 5), "<f4", strides=None, stream=None)
    v = view("x", x)
    assert isinstance(v, DeviceArrayView)
    assert (v.dtype, v.shape, v.strides, v.address, v.device, v.stream) == ("f32", (4, 5), (), ADDRESS, 3, 0)
    assert not v.swap and not v.fortran_order and v.owner is x and v.items == 20
    # Dense in words is dense; column-major is taken as on the host; anything else keeps its strides.
    assert view("x", CudaArray((4, 5), "<f8", strides=(40, 8))).strides == ()
    f = view("x", CudaArray((4, 5), "<f8", strides=(8, 32)))
    assert (f.shape, f.strides, f.fortran_order) == ((5, 4), (), True)
    for shape, strides in (
        ((4, 5), (80, 8)),
        ((4, 5), (-40, 8)),
        ((7,), (16,)),
        ((2, 3, 4), (96, 8, 24)),
        ((3,), (0,)),
    ):
        v = view("x", CudaArray(shape, "<f8", strides=strides))
        assert (v.shape, v.strides, v.fortran_order) == (shape, strides, False)
    # Dimensions of one element have no stride to speak of; nor have arrays without elements.
    assert view("x", CudaArray((1, 5), "<f8", strides=(999, 8))).strides == ()
    assert view("x", CudaArray((1, 5, 1), "<f8", strides=(1, 8, 2))).strides == ()
    assert view("x", CudaArray((), "<f8", strides=())).items == 1
    empty = view("x", CudaArray((3, 0), "<f8", 0, strides=(8, 8)))
    assert (empty.items, empty.address, empty.strides) == (0, 0, ())
    none = CudaArray((0,), "<f8")
    none.__cuda_array_interface__["data"] = (None, True)
    assert view("x", none).address == 0
    old = CudaArray((4,), "<f4", version=2)
    assert view("x", old).items == 4


@pytest.mark.usefixtures("on_device_3")
@pytest.mark.parametrize(
    ("typestr", "name", "swap"),
    [("<f2", "f16", False), (">f4", "f32", True), ("|b1", "bool", False), ("|u1", "u8", False), ("|i1", "i8", False),
     (">u8", "u64", True), ("<c8", "c64", False), ("<c16", "c128", False), ("<i2", "i16", False), ("<M8[s]", "i64", False)],
)  # fmt: skip
def test_types_of_the_cuda_array_interface(typestr: str, name: str, swap: bool) -> None:
    v = view("x", CudaArray((3,), typestr))
    assert (v.dtype, v.swap) == (name, swap)


@pytest.mark.usefixtures("on_device_3")
def test_bf16_of_the_cuda_array_interface() -> None:
    x = CudaArray((3,), "<V2")
    with pytest.raises(twinrun.TwinrunError, match="x: arrays of '<V2' are not supported"):
        view("x", x)
    x.dtype = "torch.bfloat16"
    assert view("x", x).dtype == "bf16"


@pytest.mark.usefixtures("on_device_3")
def test_what_is_refused() -> None:
    for typestr in ("|V12", "<U4", "|O", "<f16", "nonsense"):
        with pytest.raises(twinrun.TwinrunError, match=r"x: arrays of .* are not supported"):
            view("x", CudaArray((3,), typestr))
    with pytest.raises(twinrun.TwinrunError, match="x: has a mask"):
        view("x", CudaArray((3,), "<f4", mask=CudaArray((3,), "|b1")))
    for code, bits, lanes in ((2, 8, 1), (9, 8, 1), (2, 128, 1), (2, 32, 4), (3, 64, 1), (5, 32, 1)):
        with pytest.raises(twinrun.TwinrunError, match="x: arrays of DLPack's type"):
            view("x", DLPackArray((3,), code, bits, lanes=lanes))
    with pytest.raises(twinrun.TwinrunError, match="x: is on a device of DLPack's kind 10"):
        view("x", DLPackArray((3,), 2, 32, device=(10, 0)))
    with pytest.raises(twinrun.TwinrunError, match="x: cannot be taken: DLPack of another version"):
        view("x", DLPackArray((3,), 2, 32, major=2))


def test_an_address_of_the_host_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "device_of", lambda address: -1)
    with pytest.raises(twinrun.TwinrunError, match="x: its address is not in a device's memory"):
        view("x", CudaArray((3,), "<f4"))
    assert view("x", CudaArray((0,), "<f4", 0)).device == 0  # nothing there to be anywhere


def test_the_device_that_an_array_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody can say which device an address belongs to."""
    monkeypatch.setattr(_core, "device_of", lambda address: None)
    x = CudaArray((3,), "<f4")
    assert view("x", x).device == 0
    for attribute in ("id", "index"):
        x.device = type("Device", (), {attribute: 5})()
        assert view("x", x).device == 5


@pytest.mark.parametrize("versioned", [True, False])
def test_dlpack(versioned: bool) -> None:
    x = DLPackArray((4, 5), 2, 32, device=(2, 1), versioned=versioned)
    v = view("x", x)
    assert isinstance(v, DeviceArrayView)
    assert (v.dtype, v.shape, v.strides, v.address, v.device, v.stream) == ("f32", (4, 5), (), ADDRESS, 1, 0)
    assert x.asked == [1] and not v.swap
    make = lambda *a, **k: view("x", DLPackArray(*a, versioned=versioned, **k))  # noqa: E731
    assert make((4, 5), 2, 32, (5, 1)).strides == ()
    assert make((4, 5), 2, 32, (10, 2)).strides == (40, 8)
    f = make((4, 5), 2, 64, (1, 4))
    assert (f.shape, f.strides, f.fortran_order) == ((5, 4), (), True)
    assert make((7,), 2, 32, (-1,)).strides == (-4,)
    assert make((7,), 2, 32, byte_offset=64).address == ADDRESS + 64
    assert make((), 2, 32).items == 1
    empty = make((0, 3), 2, 32, (3, 1), address=0, byte_offset=8)
    assert (empty.items, empty.address) == (0, 0)
    assert make((3,), 2, 32, device=(13, 0)).device == 0  # managed memory


@pytest.mark.parametrize(
    ("code", "bits", "name"),
    [(2, 16, "f16"), (4, 16, "bf16"), (2, 64, "f64"), (0, 8, "i8"), (0, 64, "i64"), (1, 16, "u16"), (6, 8, "bool"),
     (5, 64, "c64"), (5, 128, "c128")],
)  # fmt: skip
def test_types_of_dlpack(code: int, bits: int, name: str) -> None:
    assert view("x", DLPackArray((3,), code, bits)).dtype == name


def test_dlpack_keeps_its_memory() -> None:
    v = view("x", DLPackArray((3,), 2, 32))
    assert "dltensor_versioned" in repr(
        v.owner
    )  # the capsule, not yet consumed: it frees what it holds when it goes


def test_capsules_that_numpy_makes() -> None:
    """Somebody else's idea of the structures."""
    x = np.arange(60, dtype="f4").reshape(3, 4, 5)
    for a in (x, x.T, x[1:, ::2, 1], x[0, 0, 0:0], x[::-1]):
        for options in ({}, {"max_version": (1, 0)}):
            try:
                facts = _core.dlpack_facts(a.__dlpack__(**options))
            except TypeError:  # an older numpy
                continue
            strides = facts.strides
            assert (facts.device_type, facts.code, facts.bits, facts.lanes) == (1, 2, 32, 1)
            assert tuple(facts.shape) == a.shape
            assert strides is None or not a.size or tuple(4 * s for s in strides) == a.strides
            assert not a.size or facts.address == a.ctypes.data
    for wrong in (x, None, ctypes.pythonapi):
        with pytest.raises((BufferError, TypeError)):
            _core.dlpack_facts(wrong)


def test_dlpack_comes_first_and_the_other_interface_is_the_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "device_of", lambda address: 3)

    class Both(DLPackArray):
        __cuda_array_interface__ = CudaArray((3,), "<f4").__cuda_array_interface__

    assert view("x", Both((3,), 2, 32, device=(2, 1))).device == 1
    assert view("x", Both((3,), 2, 32, device=(2, 1), major=9)).device == 3


def test_what_its_library_calls_read_only_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "device_of", lambda address: 3)
    may, may_not = CudaArray((3,), "<f4"), CudaArray((3,), "<f4", data=(ADDRESS, True))
    assert writable("x", may) == view("x", may) and view("x", may_not).read_only
    with pytest.raises(twinrun.TwinrunError, match="x: is read-only"):
        writable("x", may_not)


def test_strides_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """As CuPy exports negative ones: divided by the size of an item as if they were unsigned."""
    monkeypatch.setattr(_core, "device_of", lambda address: 3)
    wrong = ((1 << 64) - 8) // 4

    class Both(DLPackArray):
        __cuda_array_interface__ = CudaArray((3,), "<f4", strides=(-8,)).__cuda_array_interface__

    assert view("x", Both((3,), 2, 32, (wrong,))).strides == (-8,)
    with pytest.raises(twinrun.TwinrunError, match="strides"):
        view("x", DLPackArray((3,), 2, 32, (wrong,)))


class _Streams:
    """Streams as libraries have them."""

    torch = type("Stream", (), {"cuda_stream": 0x51})()
    cupy = type("Stream", (), {"ptr": 0x52})()
    numba = type("Stream", (), {"handle": ctypes.c_void_p(0x53)})()
    numba_default = type("Stream", (), {"handle": ctypes.c_void_p(0)})()
    protocol = type("Stream", (), {"__cuda_stream__": lambda self: (0, 0x54)})()


def test_streams() -> None:
    assert stream_handle(None) is None
    given = (
        0,
        1,
        2,
        0xFFF0,
        _Streams.torch,
        _Streams.cupy,
        _Streams.numba,
        _Streams.numba_default,
        _Streams.protocol,
    )
    assert [stream_handle(s) for s in given] == [0, 0, 2, 0xFFF0, 0x51, 0x52, 0x53, 0, 0x54]
    for wrong in (-1, 1 << 64, "7", 7.0, True, object()):
        with pytest.raises(twinrun.TwinrunError, match="is no stream"):
            stream_handle(wrong)


@pytest.mark.usefixtures("on_device_3")
def test_whose_stream_is_waited_for() -> None:
    for theirs, handle in ((None, 0), (1, 0), (2, 2), (0x77, 0x77)):
        assert view("x", CudaArray((3,), "<f4", stream=theirs)).stream == handle
        assert view("x", CudaArray((3,), "<f4", stream=theirs), 0x99).stream == 0x99
        assert view("x", CudaArray((3,), "<f4", stream=theirs), 0).stream == 0
    x = DLPackArray((3,), 2, 32)
    assert view("x", x).stream == 0
    assert view("x", x, _Streams.torch).stream == 0x51
    assert view("x", x, 0).stream == 0
    assert view("x", x, 2).stream == 2
    assert x.asked == [1, 0x51, 1, 1]  # 0 has no meaning in DLPack, and PyTorch refuses 2


def test_tensors_of_another_device_than_the_current(monkeypatch: pytest.MonkeyPatch) -> None:
    current = []

    @contextlib.contextmanager
    def device(number: int) -> Iterator[None]:
        current.append(number)
        yield
        current.pop()

    class Tensor(DLPackArray):
        device = 5

        def __dlpack__(self, **options: object) -> object:
            if current != [5]:
                raise BufferError("Can't export tensors on a different CUDA device index")
            return super().__dlpack__(**options)

    torch = types.SimpleNamespace(Tensor=Tensor, cuda=types.SimpleNamespace(device=device))
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert view("x", Tensor((3,), 2, 32, device=(2, 5))).device == 5


def test_tensors_that_require_gradients_or_wait_for_conjugation() -> None:
    class Tensor(DLPackArray):
        requires_grad = True
        conjugated = True

        def detach(self) -> Tensor:
            self.requires_grad = False
            return self

        def is_conj(self) -> bool:
            return self.conjugated

        def resolve_conj(self) -> Tensor:
            self.conjugated = False
            return self

        def __dlpack__(self, **options: object) -> object:
            if self.requires_grad or self.conjugated:
                raise BufferError("can't export it")
            return super().__dlpack__(**options)

    assert view("x", Tensor((3,), 5, 64)).dtype == "c64"


def test_a_producer_that_refuses_is_a_clear_error() -> None:
    class Sparse(DLPackArray):
        def __dlpack__(self, **options: object) -> object:
            raise BufferError("can't export a sparse tensor")

    with pytest.raises(twinrun.TwinrunError, match="x: cannot be taken: can't export a sparse tensor"):
        view("x", Sparse((3,), 2, 32))
    with pytest.raises(twinrun.TwinrunError, match="x: cannot be taken for an array"):
        view("x", [[1, 2], [3]])


def test_bf16_on_the_host() -> None:
    """numpy has no such type: its bits come through DLPack."""
    bits = np.arange(0x3F80, 0x3F80 + 12, dtype=np.uint16).reshape(3, 4)

    class Tensor(DLPackArray):
        def __array__(self, *_: object, **__: object) -> np.ndarray:
            raise TypeError("Got unsupported ScalarType BFloat16")

    def tensor(a: np.ndarray) -> Tensor:
        strides = tuple(s // 2 for s in a.strides)
        return Tensor(a.shape, 4, 16, strides, address=a.ctypes.data if a.size else 0, device=(1, 0))

    for a in (bits, bits.T, bits[:, ::2], bits[0], bits[1, 1:2].reshape(()), bits[:0]):
        v = view("x", tensor(a))
        assert isinstance(v, ArrayView) and v.dtype == "bf16" and not v.swap
        stored = v.owner.T if v.fortran_order else v.owner
        assert np.array_equal(stored, a)
    changed = bits.copy()
    changed[1, 2] += 1
    f = twinrun.compare(tensor(bits), tensor(changed), atol=1e-6).fields[0]
    assert (f.dtype, f.different, f.first_index, f.first_a) == ("bf16", 1, (1, 2), 1.046875)


# ---- where no GPU can be used -----------------------------------------------------------------------------------------------


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> str:
    """A machine without one, whatever this is."""
    found = types.SimpleNamespace(
        library="", reason="there is no GPU today", runtime_version=0, driver_version=0, devices=[],
        direct_storage=types.SimpleNamespace(available=False, library="", reason="no GPU"),
    )  # fmt: skip
    monkeypatch.setattr(_core, "devices", lambda: found)
    monkeypatch.setattr(_core, "device_problem", lambda device: "there is no GPU today")
    return "there is no GPU today"


def test_arrays_on_a_gpu_that_cannot_be_used(no_gpu: str, tmp_path: Path) -> None:
    x = DLPackArray((3,), 2, 32, device=(2, 4))
    with pytest.raises(
        twinrun.Unsupported, match=f"x: is on cuda:4, which cannot be used: {no_gpu}; copy it"
    ):
        taken("x", x)
    with pytest.raises(twinrun.Unsupported, match="array: is on cuda:4"):
        twinrun.compare(x, np.zeros(3, "f4"))
    with pytest.raises(twinrun.Unsupported, match="x: is on cuda:4"):
        twinrun.compare({"x": x}, {"x": x})
    both = twinrun.compare({"x": x, "y": 1.0}, {"x": x, "y": 1.0}, common=True, partial=True)
    assert both.verdict == "incomparable"
    assert twinrun.compare({"x": x, "y": 1.0}, {"x": x, "y": 1.0}, leave_out=["x"]).same
    with twinrun.Run(tmp_path / "run") as run:
        with pytest.raises(twinrun.Unsupported, match="x: is on cuda:4"):
            run.capture(1, {"x": x})
        assert run.steps == []

    class Obliging(DLPackArray):  # as JAX: its library copies where it is asked to
        def __array__(self, *_: object, **__: object) -> np.ndarray:
            return np.arange(3, dtype="f4")

    v = taken("x", Obliging((3,), 2, 32))
    assert isinstance(v, ArrayView) and v.owner.tolist() == [0, 1, 2]


@pytest.mark.skipif(not NO_GPU, reason="a GPU can be used here")
def test_the_core_refuses_too() -> None:
    with pytest.raises(twinrun.Unsupported, match="cuda:0 cannot be used"):
        _core.device_source("f32", (3,), (), ADDRESS, 0, 0, False, object())
    a = np.zeros(5)
    source = _core.memory_source("f64", 5, a.ctypes.data, 8, False, a)
    with pytest.raises(twinrun.TwinrunError):
        side = _core.FieldSide(source)
        _core.compare(side, side, _core.Rule(), _core.CompareOptions(device="cuda"))
    assert _core.device_of(ADDRESS) is None


def test_choosing_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = types.SimpleNamespace(name="Some GPU", usable=True, reason="")
    old = types.SimpleNamespace(name="Some GPU", usable=False, reason="too old")
    found = types.SimpleNamespace(reason="", devices=[facts, facts, old, facts])
    monkeypatch.setattr(_core, "devices", lambda: found)
    choose = settings.chosen_devices
    assert [choose(d) for d in ("auto", "cpu", "cuda", "CUDA:1", "cuda:0,1", "cuda:0-1,3")] == [
        ("auto", []), ("cpu", []), ("cuda", []), ("cuda", [1]), ("cuda", [0, 1]), ("cuda", [0, 1, 3])
    ]  # fmt: skip
    assert choose(type("Device", (), {"__str__": lambda self: "cuda:1"})()) == (
        "cuda",
        [1],
    )  # as torch.device
    for wrong in ("gpu", "cuda:", "cuda:x", "cuda:0,", "cuda:-1", "cuda:99999", "", "cuda:1;rm"):
        with pytest.raises(twinrun.TwinrunError, match="is not understood"):
            choose(wrong)
    with pytest.raises(twinrun.Unsupported, match="there is no cuda:7; devices are cuda:0 to cuda:3"):
        choose("cuda:7")
    with pytest.raises(twinrun.Unsupported, match="cuda:2 cannot be used: too old"):
        choose("cuda:2")


def test_asking_for_a_gpu_where_there_is_none(no_gpu: str, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(9))
    for device in ("cuda", "cuda:0"):
        report = tmp_path / "r.json"
        done = command(
            "compare", tmp_path / "a.npy", tmp_path / "a.npy", "--device", device, "--json", report
        )
        check_error(done, f"no GPU can be used: {no_gpu}")
        assert load_json(report.read_text())["verdict"] == "incomparable"
    check_error(command("compare", "a", "b", "--device", "gpu"), "device 'gpu' is not understood")
    for device in ("cpu", "auto"):
        done = command("compare", tmp_path / "a.npy", tmp_path / "a.npy", "--device", device)
        assert done.status == 0 and "device" not in done.out
    with pytest.raises(twinrun.TwinrunError, match="io must be auto, uring, pread or gds, not 'fast'"):
        twinrun.compare(np.zeros(3), np.zeros(3), options=twinrun.CompareOptions(io="fast"))
    with pytest.raises(twinrun.TwinrunError, match="io must be auto, uring or pread, not 'gds'"):
        twinrun.index(tmp_path / "a.npy", io="gds")


def test_the_cpu_is_said_to_be_it() -> None:
    result = twinrun.compare(np.zeros(3), np.ones(3), device="cpu")
    assert (result.device, result.device_asked, result.device_seconds) == ("cpu", "cpu", 0)
    d = document(result)
    assert (d["device"], d["fields"][0]["device"], d["fields"][0]["device_seconds"]) == ("cpu", "cpu", 0)


def test_the_report_says_which_device_and_why() -> None:
    result = twinrun.compare(np.zeros(3), np.ones(3))

    field = result.fields[0]

    def printed(**facts: object) -> str:
        result.fields = [dataclasses.replace(field, **facts)]
        out = io.StringIO()
        print_comparison(Console(file=out, width=200), result)
        return out.getvalue()

    assert "device" not in printed(device="cpu", device_reason="no device is there")
    assert "device: cuda:0-1 (as asked for)\n" in printed(device="cuda:0-1", device_reason="as asked for")
    result.device_asked = "cuda"
    assert "device: cpu (too little to do)\n" in printed(device="cpu", device_reason="too little to do")


def test_show_devices_without_any(no_gpu: str) -> None:
    done = command("show", "--devices")
    assert done.status == 0 and not done.err
    assert done.out.splitlines() == [
        "library: none", f"GPUs are not used: {no_gpu}", "GPUDirect Storage: not used: no GPU"
    ]  # fmt: skip
    assert f"GPUs: none can be used: {no_gpu}" in command("show", "--system").out.splitlines()
    check_error(command("show"), "name a path, --system or --devices")


def test_show_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {
        "name": "NVIDIA H200", "bus": "0000:01:00.0", "compute_major": 9, "compute_minor": 0, "multiprocessors": 132,
        "memory_bytes": 150 * 10**9, "free_bytes": 149 * 10**9, "usable": True, "reason": "",
    }  # fmt: skip
    why_not = "compute capability 7.0: 8.0 or newer is needed"
    old = {**facts, "name": "Old", "usable": False, "reason": why_not}
    found = types.SimpleNamespace(
        library="/x/libtwinrun_cuda.so", reason="", runtime_version=13000, driver_version=13020,
        devices=[types.SimpleNamespace(**facts), types.SimpleNamespace(**old)],
        direct_storage=types.SimpleNamespace(available=True, library="libcufile.so.0", reason="compatibility mode"),
    )  # fmt: skip
    monkeypatch.setattr(_core, "devices", lambda: found)
    done = command("show", "--devices")
    assert done.status == 0
    assert "made for: CUDA 13.0; driver: CUDA 13.2" in done.out
    rows = [line.split() for line in done.out.splitlines() if line.startswith("cuda:")]
    assert rows[0] == [
        "cuda:0",
        "NVIDIA",
        "H200",
        "0000:01:00.0",
        "9.0",
        "132",
        "150",
        "GB",
        "149",
        "GB",
        "yes",
    ]
    assert "cuda:1 is not used: compute capability 7.0: 8.0 or newer is needed" in done.out
    assert "GPUDirect Storage: available (libcufile.so.0): compatibility mode" in done.out
    assert "GPUs: cuda:0 NVIDIA H200 (more: twinrun show --devices)" in command("show", "--system").out


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (None, "is not there"),
        (lambda path: path.write_text("no library"), "cannot be opened"),
        (lambda path: path.symlink_to(_core.__file__), "belongs to another version of twinrun"),
    ],
)
def test_a_library_that_is_not_one(make: Callable | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "libtwinrun_cuda.so"
    if make is not None:
        make(path)
    environment = {**os.environ, "TWINRUN_CUDA_LIBRARY": str(path)}
    done = process("show", "--devices", env=environment)
    assert done.status == 0 and not done.err
    assert f"{path}" in done.out and said in done.out
    check_error(process("compare", "a", "b", "--device", "cuda", env=environment), said)
    # Without a GPU the CPU does it, and nobody is bothered.
    np.save(tmp_path / "a.npy", np.zeros(9))
    done = process("compare", tmp_path / "a.npy", tmp_path / "a.npy", env=environment)
    assert done.status == 0 and "device" not in done.out


def test_arrays_against_one_step_of_a_history(tmp_path: Path) -> None:
    x = np.random.default_rng(1).normal(size=(30, 50))
    with twinrun.Run(tmp_path / "run", atol=1e-6) as run:
        for step in (10, 20):
            run.capture(step, {"x": x + step})
    y = x + 20
    y[3, 4] += 1
    f = twinrun.compare(tmp_path / "run", {"x": y}, steps="20").fields[0]
    assert (f.step, f.different, f.first_index) == (20, 1, (3, 4))
    f = twinrun.compare({"x": y}, tmp_path / "run", steps="20").fields[0]
    assert (f.step, f.different, f.atol) == (20, 1, 1e-6)
    for steps in (None, "10,20", "30"):
        with pytest.raises(twinrun.Incomparable, match="arrays compare with one; choose one with steps"):
            twinrun.compare(tmp_path / "run", {"x": y}, steps=steps)


def test_memory_can_be_given_back() -> None:
    twinrun.release_device_memory()  # without a device there is none, and that is no error
