"""Digests: a number of 128 bits for an array, which sees every bit, every place, the type and the shape.

What the number is made of: spec/digest.md, section 13.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _core
from ..arguments import tolerance_number
from ..errors import TwinrunError
from ..formats.element_types import COMPLEX, dtype_of
from .arrays import ArrayView, DeviceArrayView, row_major, taken
from .containers import flattened, is_container, state_of
from .entries import captured_field

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

__all__ = [
    "Digest",
    "digest",
    "digest_of_text",
    "digests_of",
    "digests_read",
    "digests_started",
    "start_digests",
]

# The size of a chunk is a part of the definition: roots of trees with other chunks are other
# numbers.
_CHUNK = 1 << 16
# Below this a batch is digested by the calling thread alone: to wake others takes longer than the
# work.
_FEW_BYTES = 1 << 20
# A scalar of 8 bytes is two words.
_WORDS = {1: "i8", 2: "i16", 4: "i32", 8: "i32"}
# Under this tolerance a word is its own cell: no two words share one.
_OF_WORDS = _core.Tolerance(1.0, 0.0)
# Names of types as PyTorch and NumPy write them.
_LONG = {
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "c64": "complex64",
    "c128": "complex128", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8",
    "u16": "uint16", "u32": "uint32", "u64": "uint64", "bool": "bool",
}  # fmt: skip
_SIZES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8, "c64": 4, "c128": 8, "bool": 1}


class _Batch:
    """Roots that were made together, and are read together at the first question."""

    __slots__ = ("_forms", "_roots", "_values")

    def __init__(
        self, roots: Callable[[], Sequence[int]], forms: Sequence[tuple[str, tuple[int, ...], str]]
    ) -> None:
        self._roots: Callable[[], Sequence[int]] | None = roots
        self._forms = forms
        self._values: list[int] = []

    def value(self, at: int) -> int:
        if self._roots is not None:
            self._values = [
                _number(*form, root) for form, root in zip(self._forms, self._roots(), strict=True)
            ]
            self._roots = None  # what was made goes
        return self._values[at]


class Digest:
    """The digest of an array: a number of 128 bits that is read from where it was made when it is asked for.

    >>> d = twinrun.digest(np.zeros(4))
    >>> d == twinrun.digest(np.zeros(4)), d == twinrun.digest(np.ones(4))
    (True, False)
    >>> print(d)
    00940bfe71992ca0b199090c04c12e71

    Attributes
    ----------
    hex : str
        The number in 32 hexadecimal digits; `str(digest)` gives it.

    Notes
    -----
    `int(digest)` is the number. Digests are equal where their numbers are, they can be keys of a mapping, and
    `a - b` and `abs(a)` are those of the numbers, because PyTorch's DebugMode asks for them. A pickled digest
    is its number.
    """

    __slots__ = ("_at", "_batch", "_value")

    def __init__(self, value: int) -> None:
        number = operator.index(value)
        if not 0 <= number < 1 << 128:
            raise TwinrunError("a digest is a number of 128 bits")
        self._value: int | None = number
        self._batch: _Batch | None = None
        self._at = 0

    @classmethod
    def _of(cls, batch: _Batch, at: int) -> Digest:
        made = cls.__new__(cls)
        made._value, made._batch, made._at = None, batch, at
        return made

    def __int__(self) -> int:
        if self._value is None:
            assert self._batch is not None
            self._value = self._batch.value(self._at)
            self._batch = None
        return self._value

    __index__ = __int__

    @property
    def hex(self) -> str:
        """The number in 32 hexadecimal digits."""
        return f"{int(self):032x}"

    def __str__(self) -> str:
        return self.hex

    def __repr__(self) -> str:
        return f"<twinrun.Digest {self.hex}>"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (Digest, int)) and not isinstance(other, bool):
            return int(self) == int(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(int(self))

    def __sub__(self, other: object) -> int:
        return int(self) - int(other) if isinstance(other, (Digest, int)) else NotImplemented

    def __rsub__(self, other: object) -> int:
        return other - int(self) if isinstance(other, int) else NotImplemented

    def __abs__(self) -> int:
        return int(self)

    def __reduce__(self) -> tuple:
        return Digest, (int(self),)


def _tensor_type() -> type | None:
    torch = sys.modules.get("torch")
    return getattr(torch, "Tensor", None)


def _words_of_tensor(name: str, tensor: Any) -> tuple[_core.CapturedField, object, str, tuple[int, ...]]:
    """A tensor of PyTorch as words of its bits: (field, what keeps it alive, its type, its shape)."""
    torch: Any = sys.modules["torch"]
    if tensor.is_nested:
        raise TwinrunError(
            "nested tensors have no digest", where=name, fix="give their parts, unbind(), each as a tensor"
        )
    try:
        return _words_of_dense_tensor(torch, name, tensor)
    except RuntimeError as e:  # of PyTorch: it has no memory of its own, as within torch.func.vmap
        said = str(e).split("\n")[0]
        raise TwinrunError(f"a tensor whose values cannot be read: {said}", where=name) from e


def _words_of_dense_tensor(
    torch: Any, name: str, tensor: Any
) -> tuple[_core.CapturedField, object, str, tuple[int, ...]]:
    shape = tuple(tensor.shape)
    kind = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout is not torch.strided:
        raise TwinrunError(
            f"tensors of layout {tensor.layout} have no digest",
            where=name,
            fix="give their indices and values, each as a tensor",
        )
    if tensor.device.type == "meta":
        raise TwinrunError("a tensor on the meta device has no values", where=name)
    if tensor.is_quantized:
        raise TwinrunError("quantized tensors have no digest", where=name, fix="give int_repr()")
    t = tensor.detach()
    if t._is_zerotensor():  # of gradients forwards: it has no memory
        t = torch.zeros(shape, dtype=t.dtype, device=t.device)
    for pending, resolve in (("is_conj", "resolve_conj"), ("is_neg", "resolve_neg")):
        if getattr(t, pending)():
            t = getattr(t, resolve)()
    if t.is_complex():
        t = torch.view_as_real(t)
    width = t.element_size()
    if width not in _WORDS:
        raise TwinrunError(f"tensors of {tensor.dtype} have no digest", where=name)
    words = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[width]
    if t.dtype is not words:
        t = t.view(words)
    if t.device.type == "cuda":
        v = row_major(taken(name, t))
        assert isinstance(v, DeviceArrayView)
        if width == 8:
            v = _as_words(v, v.shape, v.strides, width)
        return captured_field(name, v, _OF_WORDS), v, kind, shape
    t = (t if t.device.type == "cpu" else t.cpu()).contiguous()
    address = t.data_ptr()
    if address == 0 and t.numel():
        raise TwinrunError("a tensor without memory, such as a fake one, has no values", where=name)
    return _field_of_words(name, address, t.numel() * width, width), t, kind, shape


def _words_of_array(
    name: str, array: object, stream: object
) -> tuple[_core.CapturedField, object, str, tuple[int, ...]]:
    """Any other array as words of its bits."""
    unit = ""
    if isinstance(array, np.generic):
        array = np.asarray(array)
    if isinstance(array, np.ndarray) and array.dtype.kind in "mM":
        unit, array = (
            f" {array.dtype.name}",
            array.view(np.dtype(np.int64).newbyteorder(array.dtype.byteorder)),
        )
    if isinstance(array, np.ndarray) and dtype_of(array.dtype) is None and array.dtype.kind in "fV":
        # Types that extend NumPy, as ml_dtypes has for 8 bits: their bits are known, so they have a
        # digest.
        named = array.dtype.name
        if (
            array.dtype.fields is None
            and array.dtype.itemsize == 1
            and named.startswith(("float8", "int", "uint"))
        ):
            unit, array = f" {named}", array.view(np.int8)
    v = row_major(taken(name, array, stream))
    kind = unit.strip() or _LONG[v.dtype]
    shape = v.shape
    width = _SIZES.get(v.dtype) or int(v.dtype[1:]) // 8
    if isinstance(v, DeviceArrayView):
        if v.swap:
            raise TwinrunError("is not in the byte order of this machine", where=name, fix="convert it")
        scalars, strides = shape, v.strides
        if v.dtype in COMPLEX:
            scalars = (*shape, 2)
            strides = (*strides, width) if strides else ()
        v = _as_words(v, scalars, strides, width)
        return captured_field(name, v, _OF_WORDS), v, kind, shape
    owner = v.owner
    if v.swap:
        owner = owner.astype(owner.dtype.newbyteorder("="))
    owner = np.ascontiguousarray(owner)
    address = owner.__array_interface__["data"][0]
    return _field_of_words(name, address, owner.nbytes, width), owner, kind, shape


def _as_words(
    view: DeviceArrayView, scalars: tuple[int, ...], strides: tuple[int, ...], width: int
) -> DeviceArrayView:
    """Scalars of `width` bytes on a device as words."""
    if width == 8:
        scalars = (*scalars, 2)
        strides = (*strides, 4) if strides else ()
    return replace(view, dtype=_WORDS[width], shape=scalars, strides=strides)


def _field_of_words(name: str, address: int, size: int, width: int) -> _core.CapturedField:
    """Dense scalars of `width` bytes in host memory, `size` bytes of them, as words."""
    word = min(width, 4)
    return _core.CapturedField(
        name=name.encode("utf-8", "backslashreplace").decode(),
        dtype=_WORDS[width],
        shape=(size // word,),
        address=address,
        stride=word,
        tolerance=_OF_WORDS,
    )


@functools.lru_cache(4096)
def _form_text(kind: str, shape: tuple[int, ...], how: str) -> bytes:
    return f"twinrun digest 1\n{kind}\n{','.join(map(str, shape))}\n{how}\n".encode()


def _number(kind: str, shape: tuple[int, ...], how: str, root: int) -> int:
    form = _form_text(kind, shape, how)
    return int.from_bytes(hashlib.blake2b(form + root.to_bytes(8, "little"), digest_size=16).digest(), "big")


def digest_of_text(text: str) -> Digest:
    """The digest of a value of Python, such as a setting, as text."""
    made = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return Digest(int.from_bytes(made, "big"))


def digests_of(
    arrays: Mapping[str, object], atol: float = 0.0, rtol: float = 0.0, stream: object = None
) -> list[tuple[Digest, str, tuple[int, ...]]]:
    """(digest, type, shape) of each array, in one batch. Raises TwinrunError."""
    if atol == 0 and rtol == 0:
        names = list(arrays)
        made = digests_started(list(arrays.values()), names.__getitem__, stream)
        facts = [(kind, shape, "bits") for kind, shape in made.facts]
        batch = _Batch(made.roots, facts)
    else:
        batch, facts = _of_values(arrays, atol, rtol, stream)
    return [(Digest._of(batch, at), kind, shape) for at, (kind, shape, _) in enumerate(facts)]


class _OfForm(NamedTuple):
    """Digests of one type and shape. begun: the hash of what stands before a root. numbers: by root."""

    kind: str
    shape: tuple[int, ...]
    begun: Any
    numbers: dict[int, int]

    def number(self, root: int) -> int:
        """As `_number` gives it."""
        whole = self.begun.copy()
        whole.update(root.to_bytes(8, "little"))
        number = self.numbers[root] = int.from_bytes(whole.digest(), "big")
        return number


def digests_read(batches: Sequence[_core.WordDigests]) -> Iterator[tuple[int, str, tuple[int, ...]]]:
    """(number, type, shape) of each array of several batches. Waits for devices. Raises TwinrunError.

    One after the other: thousands of tuples at once would set Python's garbage collector to work.
    """
    # Many values come again, as what one module gives the next one takes: each number is made once.
    roots, numbers_of_forms, told = _core.read_roots(batches)
    forms = []
    for kind, shape in told:
        begun = hashlib.blake2b(_form_text(kind, shape, "bits"), digest_size=16)
        forms.append(_OfForm(kind, shape, begun, {}))
    for root, at in zip(roots, numbers_of_forms, strict=True):
        of = forms[at]
        number = of.numbers.get(root)
        yield of.number(root) if number is None else number, of.kind, of.shape


def digests_started(
    arrays: Sequence[object],
    name_of: Callable[[int], str],
    stream: object = None,
    within: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
) -> _core.WordDigests:
    """Digests that see every bit, of arrays that may change afterwards. Raises TwinrunError.

    The core takes plain arrays and tensors by itself. name_of: what a message calls the array at a place.
    within: makes a context in which the others are brought into another form, by operations of their library.
    """
    # A stream of the caller's is one that the core does not ask for.
    made = _core.WordDigests([None] * len(arrays) if stream is not None else arrays)
    start_digests(made, name_of, stream, within, arrays)
    return made


def start_digests(
    made: _core.WordDigests,
    name_of: Callable[[int], str],
    stream: object = None,
    within: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    arrays: Sequence[object] | None = None,
) -> None:
    """The same of digests that have their arrays already. arrays: in place of these."""
    keep = None
    if not made.is_usual and (missing := made.missing):
        with within():
            keep = _put(made, missing, made.arrays if arrays is None else arrays, name_of, stream)
    made.start(_FEW_BYTES)
    del keep


def _put(
    made: _core.WordDigests,
    missing: Iterable[int],
    arrays: Sequence[object],
    name_of: Callable[[int], str],
    stream: object,
) -> list[object]:
    """Hands over the arrays that the core does not take by itself. Gives what keeps them alive."""
    keep: list[object] = []
    tensor = _tensor_type()
    for at in missing:
        array = arrays[at]
        if tensor is not None and isinstance(array, tensor):
            field, owner, kind, shape = _words_of_tensor(name_of(at), array)
        else:
            field, owner, kind, shape = _words_of_array(name_of(at), array, stream)
        keep.append(owner)
        made.put(at, field, kind, shape)
    return keep


def _of_values(
    arrays: Mapping[str, object], atol: float, rtol: float, stream: object
) -> tuple[_Batch, list[tuple[str, tuple[int, ...], str]]]:
    """Digests that are equal where all elements agree within the tolerance."""
    how = f"atol={float(atol).hex()} rtol={float(rtol).hex()}"
    fields: list[_core.CapturedField] = []
    keep: list[object] = []
    facts: list[tuple[str, tuple[int, ...], str]] = []
    total = 0
    for name, array in arrays.items():
        v = row_major(taken(name, array, stream))
        if isinstance(v, ArrayView) and v.swap:
            native = np.ascontiguousarray(v.owner.astype(v.owner.dtype.newbyteorder("=")))
            address = native.__array_interface__["data"][0]
            v = replace(v, address=address, stride=native.itemsize, swap=False, owner=native)
        total += math.prod(v.shape) * 8
        fields.append(captured_field(name, v))
        keep.append(v)
        facts.append((_LONG[v.dtype], v.shape, how))
    made = _core.sketch_fields(
        _core.CapturedFields(fields),
        float(atol),
        float(rtol),
        0,
        _CHUNK,
        "linear",
        1 if total < _FEW_BYTES else 0,
        tokens=True,  # as the specification of an array's digest has them
    )
    del keep
    return _Batch(lambda: _core.sketch_roots(list(made)), facts), facts


def digest(what: Any, *, atol: float = 0.0, rtol: float = 0.0, stream: object = None) -> Any:
    """Digests an array: 128 bits that depend on every bit, every place, the type and the shape.

    >>> x = np.arange(6.0).reshape(2, 3)
    >>> twinrun.digest(x) == twinrun.digest(x.copy(order="F"))
    True
    >>> twinrun.digest(x) == twinrun.digest(x[::-1]), twinrun.digest(x) == twinrun.digest(x.ravel())
    (False, False)
    >>> list(twinrun.digest({"x": x, "y": x + 1}))
    ['x', 'y']

    Parameters
    ----------
    what : array, dict, list or model
        An array of NumPy, PyTorch, CuPy or JAX; or many: a mapping, a model, a list or a tuple of arrays.
    atol, rtol : float, default 0
        0: of the exact bits. Otherwise of values: equal digests prove that every element agrees within
        |a - b| <= atol + rtol |a|; different digests prove nothing. Integers and booleans have no tolerance:
        equal digests prove that they are equal.
    stream : int or stream object, default None
        The GPU stream whose work makes the array; by default the array itself names it.

    Returns
    -------
    Digest, list of Digest or dict of str to Digest
        As `what` is: a list for a list or tuple, a mapping by name for any other container.

    Raises
    ------
    TwinrunError
        An array has a type without a digest (text, objects, sparse, nested or quantized tensors), its
        values cannot be read, or a tolerance has no meaning.

    Notes
    -----
    Two arrays of the same form that differ have equal digests with a probability of about 2^-60, as
    long as nobody made them to defeat it: the 128 bits are made from a sum of 61 bits over all
    elements. Digests of one array are the same on every device and machine, in every storage order
    and with any number of threads. With a tolerance of 0, -0.0 differs from 0.0, and NaNs of
    different bits differ.

    The array may change when this returns. What was made on a GPU is copied to the host when the digest is
    asked for its number. `digest` serves as `hash_fn` for `DebugMode.log_tensor_hashes` of PyTorch, and for
    anything that takes a function of a tensor.
    """
    atol, rtol = tolerance_number("atol", atol), tolerance_number("rtol", rtol)
    _core.check_tolerance(atol, rtol)
    if isinstance(what, (list, tuple)) and is_container(what):
        numbered = {str(at): one for at, one in enumerate(what)}
        return [d for d, _, _ in digests_of(numbered, atol, rtol, stream)]
    tensor = _tensor_type()
    if not (tensor is not None and isinstance(what, tensor)) and is_container(what):
        arrays = flattened("", state_of(what))
        return {
            name: d for name, (d, _, _) in zip(arrays, digests_of(arrays, atol, rtol, stream), strict=True)
        }
    return digests_of({"array": what}, atol, rtol, stream)[0][0]
