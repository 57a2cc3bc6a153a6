"""Images of FITS: arrays as they lie in the file, and compressed ones, which astropy decodes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..errors import DamagedFile, Unsupported
from . import fits_worker
from .blocks import BandReader, Box
from .element_types import ITEMSIZE, storage_dtype
from .fits_header import Header
from .model import Extent, Field, FileContent, checked_shape, decoded
from .worker_client import Worker, check_installed

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

__all__ = ["TYPES", "Decoder", "add_compressed", "add_image", "is_shift", "note_scale", "shifted"]

TYPES = {8: "u8", 16: "i16", 32: "i32", 64: "i64", -32: "f32", -64: "f64"}  # by BITPIX
_OTHER_SIGN = {"u8": "i8", "i16": "u16", "i32": "u32", "i64": "u64"}
_LARGEST_TILE = 1 << 27  # elements; astropy decodes a tile as a whole


class Decoder:
    """The process that decodes the compressed images of a file. It is started with the first of them."""

    def __init__(self, path: str, patience: float) -> None:
        self._path, self._patience = path, patience
        self._worker: Worker | None = None

    def worker(self) -> Worker:
        if self._worker is None:
            check_installed("astropy", "twinrun[fits]", self._path)
            self._worker = Worker(self._path, fits_worker.__file__, "astropy", self._patience, again=True)
            self._worker.open()
        return self._worker

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()


def is_shift(code: str, scale: object, zero: object) -> bool:
    """Whether a scale is the one by which FITS stores integers of the other sign: 1, and half of their
    range."""
    if code not in _OTHER_SIGN or (scale is not None and scale != 1):
        return False
    half = 1 << (8 * ITEMSIZE[code] - 1)
    return zero == (-half if code == "u8" else half)


def shifted(old: Field, where: str) -> Field:
    """A field of integers with the other sign than those that the file stores, which differ in one bit."""
    code = _OTHER_SIGN[old.dtype]
    native = storage_dtype(code)
    sign = native.type(1 << (8 * native.itemsize - 1)) if native.kind == "u" else native.type(-128)

    def read(first: int, count: int) -> np.ndarray:
        return old.elements(first, count).view(native) ^ sign

    if old.size == 0:
        return Field(old.name, code, "little", old.shape, extents=())
    return Field(old.name, code, "little", old.shape, read=decoded(old.name, code, old.size, where, read))


def note_scale(name: str, scale: object, zero: object, scaled: list[str]) -> None:
    """Notes an array whose numbers have a scale."""
    words = [f"{w} {v}" for w, v, none in (("scale", scale, 1), ("zero", zero, 0)) if v not in (None, none)]
    if words:
        scaled.append(f"{name} ({', '.join(words)})")


def add_image(content: FileContent, name: str, header: Header, at: int, scaled: list[str]) -> None:
    """Adds the image whose data begin at offset `at`."""
    path = content.path
    code = TYPES[header.number("BITPIX", path)]
    axes = header.size("NAXIS", path)
    sizes = [header.size(f"NAXIS{axes - n}", path) for n in range(axes)]
    if not sizes:
        return
    if header.size("PCOUNT", path, 0) or header.size("GCOUNT", path, 1) != 1:
        content.skipped.append((name, "an image with parameters or groups: not supported"))
        return
    shape = checked_shape(sizes, ITEMSIZE[code], path, f"image {name!r:.60}")
    count = math.prod(shape)
    extents = (Extent(path, at, count, ITEMSIZE[code]),) if count else ()
    _add(content, Field(name, code, "big", shape, extents=extents), header, scaled)


def _add(content: FileContent, new: Field, header: Header, scaled: list[str]) -> None:
    scale, zero = header.values.get("BSCALE"), header.values.get("BZERO")
    if is_shift(new.dtype, scale, zero):
        new = shifted(new, content.path)
        for keyword in ("BSCALE", "BZERO"):
            header.values.pop(keyword, None)
            header.comments.pop(keyword, None)
    else:
        note_scale(new.name, scale, zero, scaled)
    content.add(new)


def add_compressed(
    content: FileContent,
    name: str,
    header: Header,
    number: int,
    scaled: list[str],
    decoder: Decoder,
) -> None:
    """Adds the compressed image of unit `number`."""
    path = content.path
    bits = header.number("ZBITPIX", path)
    if bits not in TYPES:
        raise DamagedFile(
            f"image {name!r:.60} has ZBITPIX = {bits}, none of {', '.join(map(str, TYPES))}", where=path
        )
    code = TYPES[bits]
    axes = header.size("ZNAXIS", path)
    if not 0 < axes < 1000:
        raise DamagedFile(f"image {name!r:.60} has {axes} dimensions, not 1 to 999", where=path)
    shape = checked_shape(
        [header.size(f"ZNAXIS{axes - n}", path) for n in range(axes)],
        ITEMSIZE[code],
        path,
        f"image {name!r:.60}",
    )
    # Rows of the first axis of FITS, which is the last one here, unless the header says otherwise.
    usual = [1] * (axes - 1) + [shape[-1]]
    tile = [header.size(f"ZTILE{axes - n}", path, usual[n]) for n in range(axes)]
    if 0 in tile or math.prod(tile) > _LARGEST_TILE:
        raise Unsupported(f"image {name!r:.60} has tiles of shape {tile}", where=path)
    tiles = math.prod(-(-n // t) for n, t in zip(shape, tile, strict=True))
    if tiles != header.size("NAXIS2", path):
        message = f"image {name!r:.60} has {tiles} tiles, and its table {header.size('NAXIS2', path)} rows"
        raise DamagedFile(message, where=path)
    worker = decoder.worker()
    native = storage_dtype(code)

    def read_box(box: Box) -> np.ndarray:
        request: dict[str, Any] = {"unit": number, "shape": list(shape), "type": native.str}
        request["box"] = [[b.start, b.stop] for b in box]
        _, data = worker.ask(request)
        return np.frombuffer(data, native).reshape([b.stop - b.start for b in box])

    count = math.prod(shape)
    if count == 0:
        _add(content, Field(name, code, "little", shape, extents=()), header, scaled)
        return
    limits = tuple(min(t, n) for t, n in zip(tile, shape, strict=True))
    reader = BandReader(shape, limits, native, read_box, worker.cache)
    read = decoded(name, code, count, path, reader.read)
    _add(content, Field(name, code, "little", shape, read=read), header, scaled)
