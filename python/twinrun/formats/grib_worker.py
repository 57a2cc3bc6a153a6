"""How the process that reads GRIB files (see `worker`) asks eccodes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

# Keys of a field. A key that eccodes does not have for a field is left out.
KEYS = (
    "shortName name units paramId centre typeOfLevel level topLevel bottomLevel number totalNumber stepRange stepType dataDate "
    "dataTime gridType Ni Nj packingType bitmapPresent discipline parameterCategory parameterNumber table2Version "
    "indicatorOfParameter"
).split()
# By these fields are told apart that the keys above do not tell apart, and the keys of MARS.
MORE = (
    "stepRange centre dataType typeOfProcessedData generatingProcessIdentifier derivedForecast percentileValue "
    "quantileValue probabilityType scaledValueOfLowerLimit scaledValueOfUpperLimit scaledValueOfFirstWavelength "
    "aerosolType constituentType directionNumber frequencyNumber gridType Ni Nj"
).split()
# What stands for a missing value while eccodes decodes. It has more bits than an f32, which the
# reference values of packings are.
_MISSING = -1.2345678901234567e300


def opened(
    path: str, report_progress: Callable[[], None]
) -> tuple[dict[str, Any], Callable[[dict[str, Any]], bytes]]:
    """No facts, and a function that answers requests: `describe`, a list of messages, and `values`, some
    values of one message. A message is {"pieces": [[offset, bytes], …], "cut": whether section 0 is
    missing}.
    """
    import eccodes

    reader = _Reader(eccodes, path, report_progress)

    def answer(request: dict[str, Any]) -> bytes:
        if "describe" in request:
            return json.dumps([reader.describe(message) for message in request["describe"]]).encode()
        return reader.values(request["values"], request["first"], request["count"])

    return {}, answer


class _Reader:
    def __init__(self, eccodes: Any, path: str, report_progress: Callable[[], None]) -> None:
        self._eccodes, self._report_progress = eccodes, report_progress
        self._file = open(path, "rb", buffering=0)
        self._last: tuple[str, Any] = ("", None)

    def _handle(self, message: dict[str, Any]) -> Any:
        parts = []
        for offset, count in message["pieces"]:
            while count > 0:
                part = os.pread(self._file.fileno(), min(count, 1 << 26), offset)
                if not part:
                    raise ValueError("the file became shorter")
                parts.append(part)
                offset += len(part)
                count -= len(part)
        data = b"".join(parts)
        if message["cut"]:
            length = 16 + len(data) + 4
            start = b"GRIB\0\0" + bytes([message["discipline"], 2]) + length.to_bytes(8, "big")
            data = start + data + b"7777"
        return self._eccodes.codes_new_from_message(data)

    def describe(self, message: dict[str, Any]) -> dict[str, Any]:
        """The keys of a message as texts; `size`, the number of its values; `mars` and `geography`, all
        keys of these kinds; `error`, if eccodes cannot read it.
        """
        self._report_progress()
        try:
            handle = self._handle(message)
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"[:300]}
        try:
            facts: dict[str, Any] = {}
            for key in (*KEYS, *MORE):
                value = self._text(handle, key)
                if value is not None:
                    facts[key] = value
            facts["size"] = int(self._eccodes.codes_get_size(handle, "values"))
            for space in ("mars", "geography"):
                facts[space] = self._space(handle, space)
            return facts
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"[:300]}
        finally:
            self._eccodes.codes_release(handle)

    def _text(self, handle: Any, key: str) -> str | None:
        try:
            if not self._eccodes.codes_is_defined(handle, key):
                return None
            return str(self._eccodes.codes_get_string(handle, key))
        except self._eccodes.CodesInternalError:
            return None

    def _space(self, handle: Any, space: str) -> dict[str, str]:
        found = {}
        keys = self._eccodes.codes_keys_iterator_new(handle, space)
        while self._eccodes.codes_keys_iterator_next(keys):
            key = self._eccodes.codes_keys_iterator_get_name(keys)
            value = self._text(handle, key)
            if value is not None:
                found[key] = value
        self._eccodes.codes_keys_iterator_delete(keys)
        return found

    def values(self, message: dict[str, Any], first: int, count: int) -> bytes:
        """Values of a message as f64 in native byte order; NaN where they are missing."""
        import numpy as np

        name = json.dumps(message)
        if self._last[0] != name:
            self._last = ("", None)
            handle = self._handle(message)
            try:
                self._eccodes.codes_set(handle, "missingValue", _MISSING)
                values = np.array(self._eccodes.codes_get_values(handle), np.float64)
                if not self._eccodes.codes_get_string(handle, "packingType").startswith("grid_ieee"):
                    values[values == _MISSING] = np.nan
            finally:
                self._eccodes.codes_release(handle)
            self._last = (name, values)
        part = self._last[1][first : first + count]
        if part.size != count:
            raise ValueError(f"eccodes decodes {self._last[1].size} values")
        return part.tobytes()
