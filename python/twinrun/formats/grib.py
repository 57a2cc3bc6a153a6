"""GRIB, editions 1 and 2: every field of every message, through eccodes (an optional package).

Fields are named by the keys that users of eccodes know: `t/isobaricInhPa/500`, then `number-3` for a member
of an ensemble and `accum` for a value over a time. So the order of messages in a file is no difference. The
forecast step is the step, in hours where all steps are whole hours. In a file of several base times the
step is the base time (`2026010106`), and the forecast step belongs to the name. Missing values are NaN.

Lengths are checked here, see `grib_messages`. A process of its own decodes, because eccodes may crash on
damaged files, see `worker_client`.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import DamagedFile, FormatError, Unsupported
from . import grib_worker
from .blocks import BandReader, Box
from .facts import Fact
from .files import open_regular
from .frames import Frame, add_frames
from .grib_messages import MAGIC, Message, read_messages
from .model import Field, FileContent, Format, decoded, unreadable
from .worker_client import PATIENCE, Worker, check_installed, seconds_of

if TYPE_CHECKING:
    import numpy as np
else:
    from ..later import numpy as np

_MOST_VALUES = 1 << 27  # of a field: eccodes decodes all of them at once
_AT_ONCE = 200  # messages that one request describes
_PIECE = 1 << 21  # values that one request reads
_SECONDS = {"": 3600, "s": 1, "m": 60, "h": 3600, "D": 86400}
_UNITS = ((3600, "h"), (60, "m"), (1, "s"))


def open_grib(path: str, patience: object = PATIENCE) -> FileContent:
    """Opens a GRIB file without decoding its values.

    patience: seconds without progress after which reading fails.

    Raises FormatError if the file is damaged, MissingPackage without eccodes.
    """
    seconds = seconds_of(patience, path)
    file, size = open_regular(path)
    with file:
        messages, between = read_messages(file, size, path)
    check_installed("eccodes", "twinrun[grib]", path)
    content = FileContent(path, "grib")
    editions = {message.edition for message in messages}
    content.dialect = f"grib{editions.pop()}" if len(editions) == 1 else "grib"
    if between:
        content.say("", "(bytes between messages)", between)
    worker = Worker(path, grib_worker.__file__, "eccodes", seconds, again=True)
    content.on_close = worker.close
    try:
        worker.open()
        add_frames(content, _frames(worker, messages, content))
    except BaseException:
        worker.close()
        raise
    return content


class _Item:
    """A message and its keys."""

    def __init__(self, message: Message, keys: dict[str, Any]) -> None:
        self.message, self.keys = message, keys
        self.base = f"{keys.get('dataDate', '?')}T{keys.get('dataTime', '0').zfill(4)}"
        self.seconds = _seconds(keys.get("stepRange", "0"))
        self.name = _name(keys)
        self.step = 0


def _frames(worker: Worker, messages: Sequence[Message], content: FileContent) -> list[Frame]:
    """The steps of a file, with their fields."""
    items = [
        _Item(message, keys)
        for start in range(0, len(messages), _AT_ONCE)
        for message, keys in _described(worker, messages[start : start + _AT_ONCE])
    ]
    _set_steps(items, content)
    together: dict[tuple[int, str], list[_Item]] = {}
    for item in items:
        together.setdefault((item.step, item.name), []).append(item)
    frames: dict[int, Frame] = {}
    numbered = []
    for (step, name), group in together.items():
        if len(group) > 1:
            numbered += [name] if _tell_apart(group) else []
        frame = frames.setdefault(step, Frame(step, []))
        for item in group:
            frame.fields.append(_field(worker, item))
            frame.facts += _facts(item)
    if numbered:
        content.notes.append(
            f"{numbered[0]} and {len(set(numbered)) - 1} more are there several times: they are told apart by their order"
            if len(set(numbered)) > 1
            else f"{numbered[0]} is there several times: these are told apart by their order"
        )
    return [frames[step] for step in sorted(frames)]


def _described(worker: Worker, messages: Sequence[Message]) -> list[tuple[Message, dict[str, Any]]]:
    _, answer = worker.ask({"describe": [_request(message) for message in messages]})
    found = json.loads(answer)
    for message, keys in zip(messages, found, strict=True):
        if "error" in keys:
            what = f"message at byte {message.offset} cannot be read by eccodes: {keys['error']}"
            raise DamagedFile(what, where=worker.path)
    return list(zip(messages, found, strict=True))


def _request(message: Message) -> dict[str, Any]:
    request: dict[str, Any] = {"pieces": message.pieces, "cut": message.cut}
    if message.cut:
        request["discipline"] = message.head[0][0]
    return request


def _seconds(step_range: str) -> int | None:
    """The end of a range of forecast steps in seconds; None if its unit has no fixed length."""
    found = re.fullmatch(r"(?:-?\d+[a-zA-Z]?-)?(-?\d{1,12})([a-zA-Z]?)", step_range)
    if found is None or found[2] not in _SECONDS:
        return None
    return int(found[1]) * _SECONDS[found[2]]


def _name(keys: dict[str, Any]) -> str:
    short = keys.get("shortName", "unknown")
    if short in ("unknown", "~"):
        numbers = [keys[k] for k in ("discipline", "parameterCategory", "parameterNumber") if k in keys] or [
            keys.get(k, "?") for k in ("table2Version", "indicatorOfParameter")
        ]
        short = "unknown-" + ".".join(numbers)
    level = keys.get("level", "0")
    top, bottom = keys.get("topLevel", level), keys.get("bottomLevel", level)
    if top != bottom:
        level = f"{top}-{bottom}"
    parts = [short, keys.get("typeOfLevel", "unknown"), level]
    # Edition 1 of ECMWF has the number 0 of 0 where there is no ensemble.
    if "number" in keys and (keys["number"], keys.get("totalNumber")) != ("0", "0"):
        parts.append(f"number-{keys['number']}")
    if keys.get("stepType", "instant") != "instant":
        parts.append(keys["stepType"])
    return "/".join(part.replace("/", "-").replace("@", "_") for part in parts)


def _set_steps(items: Sequence[_Item], content: FileContent) -> None:
    """Sets the step of every message: the forecast step, or the base time in a file that has several."""
    bases = {item.base for item in items}
    seconds = {item.seconds for item in items}
    if len(bases) == 1 and all(s is not None and s >= 0 for s in seconds):
        size, unit = next((n, u) for n, u in _UNITS if all(s is not None and s % n == 0 for s in seconds))
        if unit != "h":
            content.say("", "(unit of steps)", unit)
        for item in items:
            item.step = (item.seconds or 0) // size
        return
    on_the_hour = all(base.endswith("00") for base in bases)
    for item in items:
        digits = re.sub(r"\D", "", item.base)
        item.step = int((digits[:-2] if on_the_hour else digits) or 0)
        if item.seconds != 0:
            item.name += f"/step-{item.keys.get('stepRange', '?')}"


def _tell_apart(group: list[_Item]) -> bool:
    """Adds to the names of messages of one name what they differ in; True if that leaves some of one name."""
    for key in dict.fromkeys([*grib_worker.MORE, *sorted({k for item in group for k in item.keys["mars"]})]):
        values = [str(item.keys.get(key, item.keys["mars"].get(key, ""))) for item in group]
        if len(set(values)) > 1:
            for item, value in zip(group, values, strict=True):
                item.name += f"/{key}-{value}".replace("@", "_")
        if len({item.name for item in group}) == len(group):
            return False
    seen: dict[str, int] = {}
    for item in group:
        number = seen[item.name] = seen.get(item.name, 0) + 1
        if number > 1:
            item.name += f"#{number}"
    return True


def _facts(item: _Item) -> list[Fact]:
    """What the keys of a message say beside its values."""
    keys, name = item.keys, item.name
    facts = [Fact.of(name, key, keys[key]) for key in ("units", "name", "paramId", "centre") if key in keys]
    facts.append(Fact.of(name, "(base time)", item.base))
    facts.append(Fact.of(name, "(steps)", keys.get("stepRange", "")))
    facts.append(Fact.of(name, "(grid)", keys["geography"]))
    # All that the sections hold, also what no key above shows.
    head = sorted(item.message.head.items())
    joined = b"".join(
        number.to_bytes(1, "big") + len(part).to_bytes(4, "big") + part for number, part in head
    )
    short = hashlib.blake2b(joined, digest_size=8).hexdigest()
    facts.append(
        Fact(name, "(sections)", joined, f"sections {', '.join(str(n) for n, _ in head)} of digest {short}")
    )
    return facts


def _field(worker: Worker, item: _Item) -> Field:
    count, keys = int(item.keys["size"]), item.keys
    shape: tuple[int, ...] = (count,)
    if keys.get("Ni", "").isdecimal() and keys.get("Nj", "").isdecimal():
        shape = (int(keys["Nj"]), int(keys["Ni"]))
        if math.prod(shape) != count:
            shape = (count,)
    problem = _problem(keys, count, worker.path)
    if problem is not None:
        return unreadable(item.name, "f64", "little", shape, problem)
    if count == 0:
        return Field(item.name, "f64", "little", shape, extents=())
    request = _request(item.message)

    def read_box(box: Box) -> np.ndarray:
        first, stop = box[0].start, box[0].stop
        _, data = worker.ask({"values": request, "first": first, "count": stop - first})
        return np.frombuffer(data, np.float64)

    reader = BandReader((count,), (min(count, _PIECE),), np.dtype("f8"), read_box, worker.cache)
    read = decoded(item.name, "f64", count, worker.path, reader.read)
    return Field(item.name, "f64", "little", shape, read=read)


def _problem(keys: dict[str, Any], count: int, path: str) -> FormatError | None:
    """Why the values of a message cannot be read; None if they can."""
    if count > _MOST_VALUES:
        return Unsupported(f"a field of {count} values, more than {_MOST_VALUES}", where=path)
    if keys.get("packingType", "").startswith("grid_ieee") and keys.get("bitmapPresent") == "1":
        # A missing value would be a NaN as one that is stored.
        fix = "pack them in another way: grib_set -r -s packingType=grid_simple"
        return Unsupported("IEEE numbers with a bitmap of missing values", where=path, fix=fix)
    return None


FORMAT = Format(
    "grib",
    "GRIB",
    open_grib,
    suffixes=(".grib", ".grib1", ".grib2", ".grb", ".grb1", ".grb2", ".gb1", ".gb2"),
    magic=(MAGIC,),
    options=frozenset({"patience"}),
    aside=frozenset({"patience"}),
    many_steps=True,
)
