"""PyTorch's .pt and .pth files: a zip archive of a pickle and the bytes of each storage.

The pickle is read by `pickles`, which runs no code. Tensors are named by their path: `model.layer1.weight`,
`optimizer.state.0.exp_avg`. PyTorch does not compress the members of the archive, so most tensors are extents
of the file. A tensor without a constant stride is read box by box.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from ..errors import DamagedFile, Unsupported
from .archives import Archive, first_member
from .blocks import BandCache
from .element_types import ITEMSIZE
from .facts import encoded, shown
from .files import open_regular, read_exact
from .layout import add_other, bytes_field
from .model import Field, FileContent, Format, checked_shape, decoded, flag
from .naming import field_name
from .pickles import Global, Opaque, Pairs, Persistent, load
from .strided import Strided, field_of_strided

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

# The magic number of files before PyTorch 1.6.
LEGACY = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19"
_CACHE_BYTES = 64 << 20
_LONGEST_PICKLE = 1 << 28
_MOST_VALUES = 1_000_000
_DEEPEST = 100
_MOST_TOLD, _DEEPEST_TOLD = 120, 12  # of a value in a message: characters, levels
_LONGEST_NAME = 4096
_MOST_BROADCAST = 1 << 24  # most elements of a tensor that has more elements than its storage

_STORAGES = {
    "HalfStorage": "f16", "BFloat16Storage": "bf16", "FloatStorage": "f32", "DoubleStorage": "f64",
    "CharStorage": "i8", "ShortStorage": "i16", "IntStorage": "i32", "LongStorage": "i64",
    "ByteStorage": "u8", "BoolStorage": "bool", "ComplexFloatStorage": "c64", "ComplexDoubleStorage": "c128",
}  # fmt: skip
DTYPES = {
    "float16": "f16", "half": "f16", "bfloat16": "bf16", "float32": "f32", "float": "f32", "float64": "f64",
    "double": "f64", "int8": "i8", "int16": "i16", "short": "i16", "int32": "i32", "int": "i32", "int64": "i64",
    "long": "i64", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64", "bool": "bool",
    "complex64": "c64", "cfloat": "c64", "complex128": "c128", "cdouble": "c128",
}  # fmt: skip
# Types that the core does not have; their elements are compared as bytes.
SMALL = dict.fromkeys(
    ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"), "u8"
)
# Members that describe how the archive is stored.
_STORAGE_MEMBERS = (".format_version", ".storage_alignment", ".data/serialization_id", "byteorder")
_DEBUGGER = ".debug_pkl"  # suffix of members for debuggers
# Attributes of a module that do not appear in names: its weights are named as in its state_dict.
_TRANSPARENT = frozenset({"_parameters", "_buffers", "_modules"})


class _Skip(Exception):
    """This tensor cannot be compared; the message says why."""


@dataclass(frozen=True)
class _Tensor:
    storage: str
    dtype: str
    offset: int  # in elements
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    kind: str | None = None  # the name of a type that the core does not have
    has_gradient: bool = False


class TensorFile:
    """A zip archive that torch.save wrote, at bytes [base, base + length) of a file.

    The caller closes `archive`.
    """

    def __init__(self, path: str, base: int = 0, length: int | None = None) -> None:
        self.path = path
        self.archive = Archive(path, base, length)
        try:
            pickles = [
                name for name in self.archive.members if name.count("/") == 1 and name.endswith("/data.pkl")
            ]
            if len(pickles) != 1:
                raise DamagedFile(
                    f"is not a PyTorch file: a zip archive with {len(pickles)} members data.pkl", where=path
                )
            self.prefix = pickles[0].removesuffix("data.pkl")
            self.byte_order = "little"
            if self.prefix + "byteorder" in self.archive.members:
                order = self.archive.read(self.prefix + "byteorder", 16)
                if order not in (b"little", b"big"):
                    raise DamagedFile(f"its byte order is {order!r}", where=path)
                self.byte_order = order.decode()
            self.root = load(self.archive.read(pickles[0], _LONGEST_PICKLE), path, "data.pkl")
            self.used = {pickles[0]}  # members that were read, or that hold a tensor
        except BaseException:
            self.archive.close()
            raise

    def strided(self, tensor: _Tensor, what: str) -> Strided | None:
        """Where the elements of a tensor are; None if it has no elements.

        Raises DamagedFile if its storage does not hold them. what: names the tensor in messages.
        """
        size = ITEMSIZE[tensor.dtype]
        member = f"{self.prefix}data/{tensor.storage}"
        self.used.add(member)
        if math.prod(tensor.shape) == 0:
            return None
        info = self.archive.members.get(member)
        if info is None:
            raise DamagedFile(f"{what}: its storage {member!r:.80} is not in the archive", where=self.path)
        last = tensor.offset + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.strides, strict=True))
        if (last + 1) * size > info.file_size:
            raise DamagedFile(
                f"{what} needs {(last + 1) * size} bytes of a storage of {info.file_size}", where=self.path
            )
        count = math.prod(tensor.shape)
        if count > info.file_size // size and count > _MOST_BROADCAST:
            raise _Skip(f"a broadcast tensor of {count} elements from {info.file_size // size} stored ones")
        source = self.archive.source(member)
        return Strided(
            source, tensor.offset * size, tensor.dtype, self.byte_order, tensor.shape, tensor.strides
        )


def tensor_of(made: Opaque, where: str, what: str) -> _Tensor | Opaque | None:
    """The tensor that a call of torch._utils would rebuild; None if the object is not such a call.

    For a parameter, and for a tensor of a subclass, returns the inner call that rebuilds its data. Raises
    _Skip for tensors that are not supported, DamagedFile for invalid arguments. what: names the tensor in
    messages.
    """
    maker, args = made.maker, made.args
    if not isinstance(maker, Global) or maker.module not in ("torch._utils", "torch._tensor"):
        return None
    if maker.name in ("_rebuild_parameter", "_rebuild_parameter_with_state"):
        if not args or not isinstance(args[0], Opaque):
            raise DamagedFile(f"{what} is a parameter without data", where=where)
        return args[0]
    if maker.name == "_rebuild_from_type_v2":
        if len(args) < 3 or not isinstance(args[2], tuple):
            raise DamagedFile(f"{what} is a tensor without arguments", where=where)
        return Opaque(args[0], args[2])
    if maker.name not in ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3"):
        if maker.name.startswith("_rebuild"):
            kind = maker.name.removeprefix("_rebuild_")
            raise _Skip(f"a tensor of the kind {kind!r} is not supported")
        return None
    storage = args[0].identity if args and isinstance(args[0], Persistent) else None
    if len(args) < 4 or not isinstance(storage, tuple) or len(storage) < 5 or storage[0] != "storage":
        raise DamagedFile(f"{what} is a tensor without a storage", where=where)
    if len(storage) > 5 and storage[5] is not None:
        raise _Skip("a view of a storage as old PyTorch wrote it is not supported")
    kind, key = storage[1], storage[2]
    if not isinstance(kind, Global) or not isinstance(key, str):
        raise DamagedFile(f"{what}: its storage has no type or no name", where=where)
    if maker.name == "_rebuild_tensor_v3":
        if len(args) < 7 or not isinstance(args[6], Global):
            raise DamagedFile(f"{what} has no type", where=where)
        title, metadata = args[6].name, args[7:8]
        code = DTYPES.get(title) or SMALL.get(title)
    else:
        code, title, metadata = _STORAGES.get(kind.name), kind.name, args[6:7]
    flags = metadata[0] if metadata else None
    if isinstance(flags, Pairs) and (flags.find("conj") or flags.find("neg")):
        raise _Skip("a tensor with a lazy conjugation or negation is not supported")
    shape, strides, offset = args[2], args[3], args[1]
    if not isinstance(shape, tuple) or not isinstance(strides, tuple) or len(shape) != len(strides):
        raise DamagedFile(f"{what}: its shape or strides are invalid", where=where)
    if code is None:
        raise _Skip(f"elements of type {title!r:.40} are not supported")
    sizes = checked_shape(shape, ITEMSIZE[code], where, what)
    if any(type(n) is not int or not 0 <= n < 1 << 62 for n in (offset, *strides)):
        raise DamagedFile(f"{what}: an offset or a stride is out of range", where=where)
    small = title if title in SMALL else None
    return _Tensor(key, code, offset, sizes, strides, small, len(args) > 4 and args[4] is True)


class Walker:
    """Walks the values of a pickle and yields its tensors.

    Afterwards `numbers`, `others` (texts, classes, empty containers, …) and `skipped` hold the other values.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.skipped: list[tuple[str, str]] = []
        self.not_read: list[Opaque] = []  # the skipped tensors
        self.numbers: list[tuple[str, bool | int | float | complex]] = []
        self.others: list[tuple[str, str, Any]] = []  # owner and name of a fact, value
        self.visited = 0
        self.names: dict[str, int] = {}

    def walk(self, name: str, value: Any, depth: int = 0) -> Iterator[tuple[str, _Tensor]]:
        """(name, tensor) of all tensors in `value`, depth first in the order of the pickle."""
        self.visited += 1
        if self.visited > _MOST_VALUES:
            raise Unsupported(f"more than {_MOST_VALUES} values", where=self.where)
        if depth > _DEEPEST:
            raise Unsupported(f"values nested more than {_DEEPEST} deep (or in themselves)", where=self.where)
        if isinstance(value, Opaque):
            try:
                found = tensor_of(value, self.where, f"tensor {name!r:.80}")
            except _Skip as reason:
                if _sparse(value):
                    yield from self._sparse(name, value, depth)
                else:
                    self.skipped.append((name, str(reason)))
                    self.not_read.append(value)
                return
            if isinstance(found, _Tensor):
                yield name, found
            elif found is not None:
                yield from self.walk(name, found, depth + 1)
                yield from self._wrapped(name, value, depth)
            else:
                yield from self._object(name, value, depth)
        elif isinstance(value, Pairs):
            self._say_empty(name, "mapping", value)
            for key, entry in value.last():
                if isinstance(key, (str, int, float, bytes, tuple, type(None))):
                    # Keys 1 and '1' give the same name, and an empty one none.
                    if not isinstance(key, str) or not (key or name):
                        self.others.append((_joined(name, str(key)), "(key)", key))
                    yield from self.walk(_joined(name, str(key)), entry, depth + 1)
                else:
                    self.skipped.append((name, "a dictionary with a key that is neither text nor number"))
        elif isinstance(value, (list, tuple)):
            self._say_empty(name, "list", value)
            if isinstance(value, tuple):
                self.others.append((name, "(class)", "tuple"))
            for number, entry in enumerate(value):
                yield from self.walk(_joined(name, str(number)), entry, depth + 1)
        elif isinstance(value, (bool, int, float, complex)):
            self.numbers.append((name, value))
        elif (key := _storage_key(value)) is not None:
            # A storage without a tensor: its bytes are a member of their own.
            self.others.append((name, "(storage)", [key, value.identity[1], *value.identity[4:]]))
        else:
            self.others.append((name, "(value)", value))

    def _wrapped(self, name: str, value: Opaque, depth: int) -> Iterator[tuple[str, _Tensor]]:
        """Adds the facts of a parameter, or of a tensor of a subclass, beside its data.

        Yields the tensors of its state.
        """
        parameter = value.maker.name.startswith("_rebuild_parameter")
        self.others.append((name, "(class)", "Parameter" if parameter else value.args[1]))
        if parameter and value.args[1:2] == (True,):
            self.others.append((name, "(requires_grad)", True))
        state = value.args[3] if len(value.args) > 3 else None
        if state:
            yield from self.walk(_joined(name, "(state)"), state, depth + 1)

    def _say_empty(self, name: str, kind: str, value: list | tuple) -> None:
        """Adds a fact for a container without entries, which has no values that would show it."""
        if not value:
            self.others.append((name, "(empty)", kind))

    def unique(self, name: str) -> str:
        """The name, or `name#2` if it was used before: {"a": {"b": …}, "a.b": …} has the name a.b twice."""
        while True:
            number = self.names[name] = self.names.get(name, 0) + 1
            if number == 1:
                return name
            name = f"{name}#{number}"

    def _object(self, name: str, value: Opaque, depth: int) -> Iterator[tuple[str, _Tensor]]:
        """Adds the class and arguments of an object as facts; yields the tensors of its state and entries."""
        if isinstance(value.maker, Global) and value.maker.module.startswith("numpy"):
            # Compared by its class, arguments and state.
            self.others.append((name, "(value)", value))
            return
        if not str(value.maker).endswith("OrderedDict"):
            self.others.append((name, "(class)", value.maker))
            if not isinstance(value.state, Pairs):
                self.others.append((name, "(arguments)", value.args))
        state = value.state[0] if isinstance(value.state, tuple) and value.state else value.state
        if isinstance(state, Pairs):
            for key, entry in state.last():
                if isinstance(key, str):
                    if key in _TRANSPARENT and not isinstance(entry, Opaque) and not entry:
                        continue  # an empty container that every module has
                    label = name if key in _TRANSPARENT else _joined(name, key)
                    yield from self.walk(label, entry, depth + 1)
        if value.items:
            yield from self.walk(name, value.items, depth + 1)
        if value.pairs:
            yield from self.walk(name, value.pairs, depth + 1)

    def _sparse(self, name: str, value: Opaque, depth: int) -> Iterator[tuple[str, _Tensor]]:
        """Yields the parts of a sparse tensor, which are tensors; adds its size and layout as facts."""
        parts = value.args[1]
        tensors = [part for part in parts if isinstance(part, Opaque)]
        # A bool says whether the indices are coalesced, which is storage.
        rest = [part for part in parts if not isinstance(part, (Opaque, bool))]
        self.others.append((name, "(size)", rest))
        self.others.append((name, "(layout)", value.args[0]))
        labels = ("indices", "values") if isinstance(parts[1], Opaque) and not isinstance(parts[2], Opaque) else (
            "compressed", "plain", "values")  # fmt: skip
        for label, entry in zip(labels, tensors, strict=False):
            part = _joined(name, label) if label == "values" else f"{name}@{label}"
            yield from self.walk(part, entry, depth + 1)


def _storage_key(value: Any) -> str | None:
    """The name of the storage that a value refers to; None if it does not refer to one."""
    identity = value.identity if isinstance(value, Persistent) else None
    if isinstance(identity, tuple) and len(identity) >= 5 and identity[0] == "storage":
        return identity[2] if isinstance(identity[2], str) else None
    return None


def _storages(values: Iterable[Any]) -> Iterator[str]:
    """The names of the storages that values refer to, at any depth."""
    seen: set[int] = set()
    left = list(values)
    while left:
        value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Opaque):
            left += (value.args, value.state, value.items, value.pairs)
        elif isinstance(value, (list, tuple)):
            left += value
        elif (key := _storage_key(value)) is not None:
            yield key


def _sparse(value: Opaque) -> bool:
    return (
        value.maker.name == "_rebuild_sparse_tensor"
        and len(value.args) >= 2
        and isinstance(value.args[1], tuple)
        and len(value.args[1]) >= 3
        and isinstance(value.args[1][0], Opaque)
    )


def _joined(name: str, key: str) -> str:
    if len(key) + len(name) > _LONGEST_NAME:
        raise ValueError(f"a name of more than {_LONGEST_NAME} characters")
    return f"{name}.{key}" if name else key


def open_pytorch(path: str, attributes: object = False) -> FileContent:
    """Opens a .pt or .pth file without unpickling it.

    attributes: if true, numbers beside the tensors (a learning rate, an epoch) become fields, which may have
    tolerances; otherwise they are facts. Texts and other values are always facts.

    Raises Unsupported for files that are not zip archives: those of PyTorch before 1.6, and plain pickles.
    """
    with_numbers = flag(attributes, "attributes", path)
    file, size = open_regular(path)
    with file:
        start = read_exact(file, 0, min(size, len(LEGACY)), path, "header")
    if start.startswith((b"\x80", b"ustar")) and not start.startswith(b"PK"):
        kind = "in the format of PyTorch before 1.6" if start == LEGACY else "a plain pickle"
        fix = "load it with torch.load(…, weights_only=True) and write it again with torch.save"
        raise Unsupported(f"is {kind}", where=path, fix=fix)
    tensors = TensorFile(path)
    content = FileContent(path, "pytorch")
    try:
        walker = Walker(path)
        cache = BandCache(_CACHE_BYTES)
        add_tensors(content, walker, tensors, cache)
        add_numbers(content, walker, with_numbers)
        content.skipped += walker.skipped
        _say_script(content, tensors)
        content.one_array = list(content.fields) == [""] or not content.fields
        others = _others(tensors, walker)
        if "" in content.fields:
            only = content.fields.pop("")
            only.name = "value" if others else field_name(path)
            content.add(only)
        for member in others:
            _add_member(content, tensors, member)
        content.one_array = content.one_array and len(content.fields) <= 1
    except BaseException:
        tensors.archive.close()
        raise
    content.on_close = tensors.archive.close
    return content


def add_tensors(content: FileContent, walker: Walker, tensors: TensorFile, cache: BandCache) -> None:
    """Adds the tensors of a file as fields. The second tensor of the same name is called `name#2`."""
    for name, tensor in walker.walk("", tensors.root):
        unique = walker.unique(name)
        try:
            array = tensors.strided(tensor, f"tensor {name!r:.80}")
        except _Skip as reason:
            walker.skipped.append((unique, str(reason)))
            continue
        if array is None:
            new = Field(unique, tensor.dtype, tensors.byte_order, tensor.shape, extents=())
        else:
            new = field_of_strided(unique, array, content.path, cache)
        new.kind = tensor.kind
        content.add(new)
        if tensor.has_gradient:
            content.say(unique, "(requires_grad)", True)


def add_numbers(content: FileContent, walker: Walker, as_fields: bool) -> None:
    """Adds the numbers beside the tensors as facts, or as fields of shape ().

    Other values always as facts.
    """
    kinds = {bool: "bool", int: "i64", float: "f64", complex: "c128"}
    for name, value in walker.numbers:
        large = isinstance(value, int) and not -(1 << 63) <= value < 1 << 63
        if not as_fields or large:
            content.say(name, "(value)", value)
            continue
        code = kinds[type(value)]
        unique = walker.unique(name or "value")
        read = decoded(unique, code, 1, content.path, _constant(value))
        content.add(Field(unique, code, "little", (), read=read))
    for name, what, value in walker.others:
        content.say(name, what, value, encode=_structure, tell=_told)


def _told(value: object) -> str:
    """A value for messages: an object of a pickle with what makes it, as far as a line has room."""
    text = ""
    for part in _words(value, 0):
        text += part
        if len(text) > _MOST_TOLD:
            return text[: _MOST_TOLD - 1] + "…"
    return text


def _words(value: object, depth: int) -> Iterator[str]:
    """A value as parts of a text, made one by one: an object may hold many others many times."""
    if depth > _DEEPEST_TOLD:
        yield "…"
    elif isinstance(value, Opaque):
        if str(value.maker) == "_codecs.encode" and value.args and isinstance(value.args[0], str):
            yield shown(value.args[0].encode("latin-1", "replace"))  # how old pickles hold bytes
            return
        maker = value.maker
        yield maker.name if isinstance(maker, Global) and depth else str(maker)
        yield from _row("()", value.args if isinstance(value.args, tuple) else (value.args,), depth)
        for more in (value.state, list(value.items), value.pairs):
            if more is not None and more != []:
                yield " "
                yield from _words(more, depth + 1)
    elif isinstance(value, Pairs):
        yield from _row("{}", [part for pair in value for part in pair], depth)
    elif isinstance(value, (list, tuple)):
        ends = "[]" if isinstance(value, list) else "()" if len(value) != 1 else ("(", ",)")
        yield from _row(ends, value, depth)
    elif isinstance(value, Persistent):
        yield "reference to "
        yield from _words(value.identity, depth + 1)
    else:
        yield shown(value)


def _row(ends: Sequence[str], values: Sequence[object], depth: int) -> Iterator[str]:
    """Values between two ends. Keys of a mapping have colons behind them."""
    yield ends[0]
    for at, value in enumerate(values):
        yield ("" if at == 0 else ": " if ends == "{}" and at % 2 else ", ")
        yield from _words(value, depth + 1)
    yield ends[1]


def _structure(value: object, depth: int = 0) -> bytes | None:
    """An encoder for `facts.encoded` that knows the objects of a pickle: by class, arguments, state and
    entries."""
    if depth > _DEEPEST:
        raise TypeError(f"nested more than {_DEEPEST} deep")

    def inner(part: object) -> bytes:
        return encoded(part, lambda v: _structure(v, depth + 1), depth)

    if isinstance(value, Global):
        return str(value).encode()
    if isinstance(value, Persistent):
        return b"persistent" + inner(value.identity)
    if isinstance(value, Pairs):
        return b"pairs" + b"".join(sorted(inner(k) + inner(v) for k, v in value))
    if isinstance(value, Opaque):
        return b"object" + b"".join(
            inner(part) for part in (value.maker, value.args, value.state, list(value.items), value.pairs)
        )
    return None


def _say_script(content: FileContent, tensors: TensorFile) -> None:
    """Adds the code and constants of TorchScript as facts, and the version, which decides what its operators
    do."""
    members = tensors.archive.members
    is_script = tensors.prefix + "constants.pkl" in members
    for name in sorted(members):
        label = name.removeprefix(tensors.prefix)
        if name == tensors.prefix + label and (
            (label.startswith(("code/", "constants/")) and not label.endswith((_DEBUGGER, "/")))
            or label == "constants.pkl"
            or (is_script and label == "version")
        ):
            content.say(label, "(bytes)", tensors.archive.read(name, _LONGEST_PICKLE))
            tensors.used.add(name)


def _others(tensors: TensorFile, walker: Walker) -> list[str]:
    """Names of the members that neither were read nor describe storage, sorted."""
    prefix = tensors.prefix
    known = tensors.used | {prefix + name for name in (*_STORAGE_MEMBERS, "version")}
    known |= {f"{prefix}data/{key}" for key in _storages(walker.not_read)}
    return [
        name
        for name, info in sorted(tensors.archive.members.items())
        if name not in known
        and not (name.startswith(prefix + "code/") and name.endswith(_DEBUGGER))
        and not (name.endswith("/") and not info.file_size)
    ]


def _add_member(content: FileContent, tensors: TensorFile, name: str) -> None:
    """Adds a member as bytes, named relative to the folder of the pickle: `extra/config.json`, `../x`."""
    source, size = tensors.archive.source(name), tensors.archive.members[name].file_size
    label = name.removeprefix(tensors.prefix)
    if not name.startswith(tensors.prefix):
        add_other(content, f"../{name}", source, size)
    elif label.startswith("data/") and label not in content.fields:  # a storage without a tensor
        content.add(bytes_field(label, source, size))
    else:
        add_other(content, label, source, size)


def _constant(value: bool | int | float | complex) -> Callable[[int, int], np.ndarray]:
    return lambda first, count: np.full(count, value)


def _sniff(path: str, file: BinaryIO) -> bool:
    folder, _, name = first_member(file).partition(b"/")
    return bool(folder) and (
        name in (b"data.pkl", b"version", b"byteorder", b".format_version", b"constants.pkl")
        or name.startswith((b"data/", b"code/", b"constants/"))
    )


FORMAT = Format(
    "pytorch",
    "PyTorch file",
    open_pytorch,
    suffixes=(".pt", ".pth", ".ckpt"),
    magic=(LEGACY,),
    sniff=_sniff,
    options=frozenset({"attributes"}),
)
