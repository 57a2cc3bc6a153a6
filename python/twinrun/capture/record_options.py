"""How a record is made: the method, the unit of copies, the compression and its library."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass

from .. import _core
from ..errors import TwinrunError, in_short

__all__ = ["METHODS", "RecordOptions", "offer_packing_library"]

METHODS = ("runs", "tree", "list", "basic", "full")


def offer_packing_library() -> None:
    """Lets the core find nvCOMP where the package nvidia-libnvcomp-cu12 or -cu13 is installed; TWINRUN_NVCOMP
    goes first.
    """
    if os.environ.get("TWINRUN_NVCOMP"):
        return
    try:
        found = importlib.util.find_spec("nvidia.libnvcomp")
    except ImportError:
        return
    folders = found.submodule_search_locations if found is not None else None
    for folder in folders or []:
        for version in (6, 5):
            library = os.path.join(folder, "lib64", f"libnvcomp.so.{version}")
            if os.path.exists(library):
                os.environ["TWINRUN_NVCOMP"] = library
                return


@dataclass(frozen=True)
class RecordOptions:
    """How a record is made: the method, the unit, and the compression.

    >>> with twinrun.Run("runs/a") as run:
    ...     for step in range(3):
    ...         facts = run.capture(step, {"x": np.zeros(100_000)})
    >>> packed = twinrun.pack("runs/a", "records/a", options=twinrun.RecordOptions(chunk=1024))
    >>> packed.ratio() > 100
    True

    Attributes
    ----------
    method : {'runs', 'tree', 'list', 'basic', 'full'}
        How copies of earlier content are found and written down; docs/explanation/records.md has a table.
    chunk : int, default 256
        Bytes of a chunk, the unit of copies: a power of two from 32 to 65536.
    compress : {'zstd', 'none'}, default None
        How new chunks are compressed. None: zstd where this build has it.
    level : int, default 1
        The level of zstd.
    xor : bool, default None
        True: new chunks may be compressed after XOR with what they replace. None: True where new chunks are
        compressed.
    bounded : bool, default False
        True: a chunk that is within the tolerance of its field to what restore gives is not kept again. Only
        for `pack`.
    table : int, default 0
        Bytes that the table of hashes may take; 0 for no limit.
    verify : bool, default False
        True: chunks are compared byte by byte before they count as equal. False trusts 128-bit hashes. Only
        for `pack`.

    Notes
    -----
    'tree' is Algorithm 1 of Tan et al., ICPP 2023.
    """

    method: str = "runs"
    chunk: int = 256
    compress: str | None = None
    level: int = 1
    xor: bool | None = None
    bounded: bool = False
    table: int = 0
    verify: bool = False

    def settled(self) -> _core.RecordSettings:
        """Gives the options as the core takes them; `table` and `verify` are no settings of the record.

        Returns
        -------
        _core.RecordSettings
            The settings of the record.

        Raises
        ------
        TwinrunError
            An option has a value that has no meaning.
        """
        if self.method not in METHODS:
            raise TwinrunError(f"method {self.method!r} is none of {', '.join(METHODS)}")
        if not (isinstance(self.chunk, int) and 32 <= self.chunk <= 65536 and self.chunk.bit_count() == 1):
            raise TwinrunError(
                f"chunk must be a power of two from 32 to 65536 bytes, not {in_short(self.chunk)}"
            )
        if not hasattr(self.table, "__index__") or self.table < 0:
            raise TwinrunError(
                f"table must be a whole number of bytes, 0 for no limit, not {in_short(self.table)}"
            )
        if self.xor and self.method == "full":
            raise TwinrunError("xor needs another method than 'full', which keeps no step to XOR with")
        codec = self.compress or ("zstd" if _core.has_codec("zstd") else "none")
        xor = self.xor if self.xor is not None else codec != "none" and self.method != "full"
        return _core.RecordSettings(
            method=self.method,
            chunk_bytes=self.chunk,
            codec=codec,
            level=self.level,
            xor=xor,
            bounded=self.bounded,
        )
