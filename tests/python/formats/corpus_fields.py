"""Samples of FITS, GRIB and DCD files; each changed in one thing at a time."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from corpus_samples import Sample

# ---- FITS, GRIB, DCD ----


def fits_file(folder: Path, change: str = "") -> None:
    fits = pytest.importorskip("astropy.io.fits")
    first = fits.PrimaryHDU(np.arange(6, dtype="f4") + (change == "value"))
    first.header["EXPTIME"] = (
        31.0 if change == "card" else 30.0,
        "minutes" if change == "comment" else "seconds",
    )
    first.header["HISTORY"] = "other" if change == "history" else "made"
    if change == "card more":
        first.header["MORE"] = 1
    image = np.arange(200, dtype="u2").reshape(10, 20) + np.uint16(change == "value of an image")
    name = "OTHER" if change == "name" else "SCI"
    second = fits.CompImageHDU(image, name=name) if change == "packed" else fits.ImageHDU(image, name=name)
    words = ["a", "c" if change == "text" else "b"]
    columns = [
        fits.Column(
            "n",
            "J",
            unit="s" if change == "unit" else "m",
            array=[1, 3 if change == "value of a column" else 2],
        ),
        fits.Column("word", "4A" if change == "width of texts" else "3A", array=words),
        fits.Column("flag", "L", array=[True, change == "flag"]),
    ]
    lists = np.empty(2, object)
    lists[:] = [np.array([1, 2], "i4"), np.array([4 if change == "list" else 3], "i4")]
    columns.append(fits.Column("lists", "PJ()", array=lists))
    if change == "order of columns":
        columns.reverse()
    units = [first, second, fits.BinTableHDU.from_columns(columns, name="ROWS")]
    if change == "order of units":
        units[1:] = units[:0:-1]
    if change == "unit more":
        units.append(fits.ImageHDU(name="EMPTY"))
    fits.HDUList(units).writeto(folder / "a.fits", checksum=change == "sums")


FITS = Sample(
    fits_file,
    {
        name: (lambda d, name=name: fits_file(d, name))
        for name in (
            "value", "card", "comment", "history", "card more", "value of an image", "name", "text", "unit", "value of a column",
            "width of texts", "flag", "list", "order of columns", "order of units", "unit more",
        )
    },
    {"packed": lambda d: fits_file(d, "packed"), "sums": lambda d: fits_file(d, "sums")},
    needs="astropy",
)  # fmt: skip


def grib(folder: Path, change: str = "") -> None:
    eccodes = pytest.importorskip("eccodes")
    messages = []
    for level in (500, 850):
        handle = eccodes.codes_grib_new_from_samples("regular_ll_pl_grib2")
        keys = {
            "shortName": "t",
            "level": level,
            "step": 6,
            "bitmapPresent": 1,
            "missingValue": 9999,
            "bitsPerValue": 16,
        }
        values = np.arange(496.0)
        values[3] = 9999
        if level == 850:
            if change in ("value", "missing"):
                values[5] = 700 if change == "value" else 9999
            keys |= {
                "key": {"generatingProcessIdentifier": 77},
                "time": {"dataTime": 600},
                "grid": {"longitudeOfFirstGridPoint": 1},
                "parameter": {"shortName": "u"},
                "step": {"step": 12},
                "packed": {"bitsPerValue": 20},
            }.get(change, {})
        for key, value in keys.items():
            eccodes.codes_set(handle, key, value)
        eccodes.codes_set_values(handle, values)
        messages.append(eccodes.codes_get_message(handle))
        eccodes.codes_release(handle)
    if change == "message more":
        messages.append(messages[0])
    if change == "bytes between":
        messages.insert(1, b"hello")
    (folder / "a.grib2").write_bytes(b"".join(messages[::-1] if change == "order" else messages))


GRIB = Sample(
    grib,
    {
        name: (lambda d, name=name: grib(d, name))
        for name in ("value", "missing", "key", "time", "grid", "parameter", "step", "message more", "bytes between")
    },
    {"order": lambda d: grib(d, "order"), "packed": lambda d: grib(d, "packed")},
    needs="eccodes",
)  # fmt: skip


def dcd(folder: Path, order: str = "<", change: dict[int, bytes] | None = None) -> None:
    """change: bytes by their offset, of the file of this byte order."""

    def record(data: bytes) -> bytes:
        return struct.pack(order + "i", len(data)) + data + struct.pack(order + "i", len(data))

    head = b"CORD" + struct.pack(order + "9if10i", 2, 100, 50, 0, 0, 0, 0, 0, 0, 0.5, 1, *[0] * 8, 24)
    data = (
        record(head)
        + record(struct.pack(order + "i", 1) + b"a title".ljust(80))
        + record(struct.pack(order + "i", 4))
    )
    for step in range(2):
        data += record(np.array([10, 90, 11, 90, 90, 12], order + "f8").tobytes())
        data += b"".join(
            record((np.arange(4) + step + axis).astype(order + "f4").tobytes()) for axis in range(3)
        )
    for at, put in (change or {}).items():
        data = data[:at] + put + data[at + len(put) :]
    (folder / "a.dcd").write_bytes(data)


DCD = Sample(
    dcd,
    {
        "position": lambda d: dcd(d, change={268: struct.pack("<f", 9.0)}),
        "cell": lambda d: dcd(d, change={208: struct.pack("<d", 9.0)}),
        "step": lambda d: dcd(d, change={12: struct.pack("<i", 150)}),
        "time step": lambda d: dcd(d, change={44: struct.pack("<f", 0.25)}),
        "title": lambda d: dcd(d, change={100: b"A TITLE"}),
        "frames that it promises": lambda d: dcd(d, change={8: struct.pack("<i", 3)}),
    },
    {"byte order": lambda d: dcd(d, ">")},
)
