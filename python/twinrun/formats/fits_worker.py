"""How the process that reads compressed images of FITS (see `worker`) asks astropy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def opened(
    path: str, report_progress: Callable[[], None]
) -> tuple[dict[str, Any], Callable[[dict[str, Any]], bytes]]:
    """No facts, and a function that decodes a box of an image, in native byte order."""
    from astropy.io import fits

    file = fits.open(path, memmap=True, do_not_scale_image_data=True, lazy_load_hdus=False)

    def read(request: dict[str, Any]) -> bytes:
        unit = file[request["unit"]]
        if not isinstance(unit, fits.CompImageHDU) or list(unit.shape) != request["shape"]:
            raise ValueError("astropy does not find the image that the header describes")
        part = unit.section[tuple(slice(*ends) for ends in request["box"])]
        if part.dtype.newbyteorder("=").str != request["type"]:
            raise ValueError(f"astropy decodes numbers of type {part.dtype}")
        result: bytes = part.astype(request["type"], copy=False).tobytes()
        return result

    return {}, read
