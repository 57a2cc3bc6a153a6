"""ADIOS2's BP5 and BP4 folders, and BP3 files, through the adios2 package: every step of a file is a step.

Global arrays are read as a whole, however many processes wrote them. Local arrays, whose blocks have no place
in a global array, become a field for each block, `name/block-3`. The package decompresses data if it was
built with that compressor.

The package crashes on some damaged files and hangs on others. Therefore `adios_files` first checks the files
of a folder against its index, and a process of its own reads them, see `worker_client`. A process that read
a file without an error reads the next one, so that the package is imported once.
"""

from __future__ import annotations

import math
import os
import re
from typing import TYPE_CHECKING, Any

from . import adios_worker
from .adios_files import check_files, looks_like
from .attributes import add_attribute
from .blocks import BandReader, Box
from .element_types import ITEMSIZE, dtype_of, storage_dtype
from .files import reading
from .frames import Frame, add_frames
from .layout import add_others
from .model import Field, FileContent, Format, checked_shape, coded, decoded, flag
from .worker_client import PATIENCE, Worker, check_installed, seconds_of

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

_NOT_DATA = ("profiling.json", "profiling.log")
_OF_FOLDER = re.compile(r"md\.idx|(md|mmd|data)\.\d+|active|\.md\.idx\.lock")


def open_adios(path: str, attributes: object = False, patience: object = PATIENCE) -> FileContent:
    """Opens a BP folder or file.

    attributes: if true, numeric attributes become fields `@attribute`, which may have tolerances; otherwise
    they are facts. patience: seconds without progress (a variable listed, a byte read) after which reading
    fails.

    Raises FormatError if the file is damaged or reading fails, MissingPackage without adios2.
    """
    with_attributes = flag(attributes, "attributes", path)
    seconds = seconds_of(patience, path)
    check_installed("adios2", "twinrun[adios]", path)
    content = FileContent(path, "adios", sources=_sources(path))
    if os.path.isdir(path):
        with reading(path, "ADIOS2"):
            content.skipped += check_files(path)
    reader = _Reader(path, adios_worker.__file__, "adios2", seconds, again=True)
    try:
        with reading(path, "ADIOS2"):
            facts = reader.open()
            frames = []
            for number, variables in enumerate(facts["steps"]):
                frame = Frame(number, [])
                for variable in variables:
                    frame.fields += reader.fields(variable, frame)
                    is_time = variable["single"] and variable["name"].lower() == "time"
                    if is_time and variable["kind"] in ("float", "double"):
                        frame.time = float(frame.fields[-1].elements()[0])
                frames.append(frame)
            add_frames(content, frames)
            names = {variable["name"] for variables in facts["steps"] for variable in variables}
            for name, (kind, value) in facts["attributes"].items():
                # The name of a variable's attribute begins with the variable's name.
                owner, _, word = name.rpartition("/")
                if with_attributes or owner not in names:
                    owner, word = "", name
                if kind != "string":
                    value = np.array(value, adios_worker.DTYPES.get(kind, "f8"))
                    value = value.reshape(-1) if value.size != 1 else value.reshape(())
                add_attribute(content, owner, word, value, with_attributes)
            if os.path.isdir(path):
                add_others(
                    content, path, lambda name: name in _NOT_DATA or _OF_FOLDER.fullmatch(name) is not None
                )
    except BaseException:
        reader.close()
        raise
    content.on_close = reader.close
    return content


def _sources(path: str) -> tuple[str, ...]:
    """The files that hold its data: those of the folder, or of the folder `path.dir` beside a BP3 file."""
    folder = path if os.path.isdir(path) else path + ".dir"
    if not os.path.isdir(folder):
        return ()
    with reading(path):
        names = sorted(n for n in os.listdir(folder) if n not in _NOT_DATA)
    return tuple(p for p in (os.path.join(folder, n) for n in names) if os.path.isfile(p))


def _parts(path: str) -> list[str]:
    """The files of the folder `path.dir` beside a BP3 file."""
    folder = path + ".dir"
    if not os.path.isfile(path) or not os.path.isdir(folder):
        return []
    with reading(path):
        return [os.path.join(folder, name) for name in sorted(os.listdir(folder))]


class _Reader(Worker):
    """The process that reads a data set, and the fields of its variables."""

    def ask(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """As of `Worker`. After an error the process reads no other file: what harm a damaged one did to the
        memory of the package is not known.
        """
        try:
            return super().ask(request)
        except BaseException:
            self._again = False
            raise

    def fields(self, variable: dict[str, Any], frame: Frame) -> list[Field]:
        """The fields of a variable in one step."""
        name, kind = variable["name"], variable["kind"]
        if kind == "string" and "text" in variable:
            return [coded(name, "text", (), self.path, lambda first, count: [variable["text"]] * count)]
        if kind not in adios_worker.DTYPES:
            frame.skipped.append((name, f"type {kind} is not supported"))
            return []
        if variable["shape"] is None:
            return [
                self.field(f"{name}/block-{number}", variable, tuple(count), number, count)
                for number, count in enumerate(variable["blocks"])
            ]
        shape = tuple(variable["shape"])
        blocks = [b for b in variable["blocks"] if len(b) == len(shape)]
        return [self.field(name, variable, shape, None, blocks[0] if blocks else [1] * len(shape))]

    def field(
        self,
        label: str,
        variable: dict[str, Any],
        shape: tuple[int, ...],
        block: int | None,
        chunks: list[int],
    ) -> Field:
        """The field of a global array, or of one block.

        block: the number of the block, None for a global array.
        """
        known = dtype_of(np.dtype(adios_worker.DTYPES[variable["kind"]]))
        assert known is not None
        code = known[0]
        shape = checked_shape(shape, ITEMSIZE[code], self.path, f"variable {label!r:.80}")
        if math.prod(shape) == 0:
            return Field(label, code, "little", shape, extents=())
        native = storage_dtype(code)
        request = {k: variable[k] for k in ("name", "kind", "at", "single")} | {"block": block}

        def read_box(box: Box) -> np.ndarray:
            count = [b.stop - b.start for b in box]
            _, data = self.ask({**request, "start": [b.start for b in box], "count": count})
            return np.frombuffer(data, native).reshape(count)

        limits = tuple(max(1, min(c, n)) for c, n in zip(chunks, shape, strict=True))
        reader = BandReader(shape, limits, native, read_box, self.cache)
        return Field(
            label, code, "little", shape, read=decoded(label, code, math.prod(shape), self.path, reader.read)
        )


FORMAT = Format(
    "adios",
    "ADIOS2 BP",
    open_adios,
    suffixes=(".bp",),
    is_folder=looks_like,
    options=frozenset({"attributes", "patience"}),
    aside=frozenset({"patience"}),
    parts=_parts,
    many_steps=True,
)
