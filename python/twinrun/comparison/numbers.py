"""Whether a field holds a number at all, or nothing but NaN."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from .. import _core
from ..errors import TwinrunError
from ..formats.element_types import storage_dtype
from ..runs.opening import open_subject

__all__ = ["holds_no_number"]

_AT_ONCE = 1 << 18  # elements
_SCALARS = {"f16": "f16", "f32": "f32", "f64": "f64", "c64": "f32", "c128": "f64", "bf16": "bf16"}


def _all_nan(raw: np.ndarray, dtype: str) -> bool:
    values = np.frombuffer(raw, storage_dtype(_SCALARS[dtype]))
    if dtype == "bf16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return bool(np.isnan(values).all())


def holds_no_number(
    run: object, name: str, places: Collection[tuple[int | None, int]], options: Mapping[str, object] | None
) -> bool:
    """Whether a field of a run is NaN at all of these places (step, rank). False where that is not known, or
    the field has no element. It is read up to the first number.
    """
    found = False
    try:
        subject = open_subject(run, options)
        for place in subject.places:
            if place not in places:
                continue
            with subject.open(place) as fields:
                if name not in fields:
                    return False
                ref = fields[name]
                if ref.dtype not in _SCALARS:
                    return False
                source = ref.need_source()
                for first in range(0, ref.items, _AT_ONCE):
                    count = min(_AT_ONCE, ref.items - first)
                    if not _all_nan(_core.read_source(source, first, count), ref.dtype):
                        return False
                    found = True
    except TwinrunError:
        return False
    return found
