"""The messages of GRIB files, editions 1 and 2: where each lies, and its sections. Values are not decoded
here.

A message of edition 2 may hold several fields: its later sections are repeated for each. Each field is then a
message of its own, put together from sections.

Source: WMO Manual on Codes, FM 92 GRIB; for messages of edition 1 that are larger than 8 MB the convention of
ECMWF.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from ..errors import DamagedFile, Unsupported
from .files import MEND, read_exact

__all__ = ["Message", "read_messages"]

MAGIC = b"GRIB"
_END = b"7777"
_LONGEST_GAP = 4096  # bytes between messages: fill, or the heading of a bulletin
_MOST_MESSAGES = 1_000_000
_MOST_SECTIONS = 10_000
_LONGEST_HEAD = 1 << 24  # a section in front of the values
_OWN_BITMAP, _EARLIER_BITMAP = 0, 254


@dataclass
class Message:
    """One field.

    offset: of the message in the file. edition: 1 or 2. pieces: (offset, bytes) of its parts, the sections
    behind section 0 if it was `cut` out of a message of several fields, else the whole message. head: bytes
    of the sections that say what the values are, by number, without those that say how they are packed.
    """

    offset: int
    edition: int
    pieces: list[tuple[int, int]]
    cut: bool
    head: dict[int, bytes]


def read_messages(file: BinaryIO, size: int, path: str) -> tuple[list[Message], bytes]:
    """All messages, and the bytes between them that are neither zeros nor spaces.

    Raises DamagedFile if a message is cut short, or its lengths contradict each other.
    """
    found: list[Message] = []
    between = b""
    at = 0
    while at < size:
        gap = read_exact(file, at, min(_LONGEST_GAP + 4, size - at), path, "bytes in front of a message")
        skip = gap.find(MAGIC)
        if skip < 0:
            if len(gap) <= _LONGEST_GAP and not gap.strip(b"\0 \r\n") and found:
                break
            raise DamagedFile(
                f"no message of GRIB at byte {at}, after {len(found)} fields",
                where=path,
                fix=f"the file is cut short or damaged, or something was added: {MEND}",
            )
        between += gap[:skip].strip(b"\0 \r\n\t\3")
        if len(between) > 1 << 20:
            raise Unsupported("more than 1 MiB between its messages", where=path)
        at += skip
        head = read_exact(file, at, min(16, size - at), path, "message")
        edition = head[7] if len(head) == 16 else 0
        if edition not in (1, 2):
            raise Unsupported(f"message at byte {at} is of edition {edition} of GRIB", where=path)
        reader = _Reader(file, size, path, at)
        found += reader.second(head) if edition == 2 else [reader.first(head)]
        at = reader.end
        if len(found) > _MOST_MESSAGES:
            raise Unsupported(f"more than {_MOST_MESSAGES} fields", where=path)
    if not found:
        raise DamagedFile("it has no message of GRIB", where=path)
    return found, between


class _Reader:
    """Reads the message at offset `at`; `end` is where it ends, once its first bytes were read."""

    def __init__(self, file: BinaryIO, size: int, path: str, at: int) -> None:
        self._file, self._size, self._path, self._at = file, size, path, at
        self.end = at

    def _bytes(self, offset: int, count: int, what: str) -> bytes:
        if offset + count > self.end:
            raise self._damaged(f"{what} reaches behind its end")
        return read_exact(self._file, offset, count, self._path, what)

    def _damaged(self, what: str) -> DamagedFile:
        return DamagedFile(f"message at byte {self._at}: {what}", where=self._path)

    def _set_end(self, length: int) -> None:
        self.end = self._at + length
        if length < 16 or self.end > self._size:
            left = self._size - self._at
            raise DamagedFile(
                f"message at byte {self._at} has {length} bytes, and {left} are left",
                where=self._path,
                fix=f"the file is cut short or damaged: {MEND}",
            )
        if self._bytes(self.end - 4, 4, "its last bytes") != _END:
            raise self._damaged(f"it does not end with {_END.decode()}")

    def _head(self, offset: int, length: int, number: int) -> bytes:
        if length > _LONGEST_HEAD:
            raise self._damaged(f"section {number} has {length} bytes")
        return self._bytes(offset, length, f"section {number}")

    def first(self, head: bytes) -> Message:
        """A message of edition 1."""
        length = int.from_bytes(head[4:7], "big")
        self.end = self._size
        at = self._at + 8
        sections: dict[int, bytes] = {}
        for number in (1, 2, 3, 4):
            if number in (2, 3) and not sections[1][7] & (0x80 if number == 2 else 0x40):
                continue
            count = int.from_bytes(self._bytes(at, 3, f"section {number}"), "big")
            if count < (28 if number == 1 else 6):
                raise self._damaged(f"section {number} has {count} bytes")
            if number < 3:
                sections[number] = self._head(at, count, number)
            if number == 4 and length & 0x800000 and count < 120:
                # ECMWF counts in units of 120 bytes, and section 4 has what is too much.
                length = (length & 0x7FFFFF) * 120 - count + 4
                count = self._at + length - 4 - at
            at += count
        self._set_end(length)
        if at != self.end - 4:
            raise self._damaged(f"its sections end at byte {at - self._at} of {length}")
        # How many digits are kept and whether there is a bitmap is how values are packed.
        packed = bytearray(sections[1])
        packed[7] &= 0x80
        packed[26:28] = b"\0\0"
        sections[1] = bytes(packed)
        return Message(self._at, 1, [(self._at, length)], False, sections)

    def second(self, head: bytes) -> list[Message]:
        """The fields of a message of edition 2."""
        length = int.from_bytes(head[8:16], "big")
        self._set_end(length)
        known: dict[int, tuple[int, int]] = {}
        heads: dict[int, bytes] = {0: head[6:7]}
        bitmap: tuple[int, int] | None = None
        found: list[Message] = []
        last = 0
        for number, at, count in self._sections():
            if (
                number != last + 1
                and not (last == 7 and 2 <= number <= 4)
                and (last, number) not in ((1, 3),)
            ):
                raise self._damaged(f"section {number} after section {last}")
            last = number
            known[number] = (at, count)
            if number <= 4:
                heads[number] = self._head(at, count, number)
            if number == 6:
                indicator = self._bytes(at + 5, 1, "section 6")[0] if count > 5 else 255
                if indicator == _OWN_BITMAP:
                    bitmap = (at, count)
                elif indicator == _EARLIER_BITMAP:
                    if bitmap is None:
                        raise self._damaged("it refers to an earlier bitmap, and there is none")
                    known[6] = bitmap
            if number == 7:
                if not {3, 4, 5, 6} <= set(known):
                    raise self._damaged("section 7 comes too early")
                pieces = [known[n] for n in sorted(known)]
                found.append(Message(self._at, 2, pieces, True, dict(heads)))
        if not found or last != 7:
            raise self._damaged("it has no values, or ends too early")
        if len(found) == 1:
            found[0].pieces, found[0].cut = [(self._at, length)], False
        return found

    def _sections(self) -> Iterator[tuple[int, int, int]]:
        """(number, offset, bytes) of every section behind section 0."""
        at = self._at + 16
        for _ in range(_MOST_SECTIONS):
            if at == self.end - 4:
                return
            start = self._bytes(at, 5, "a section")
            count, number = int.from_bytes(start[:4], "big"), start[4]
            if count < 5 or not 1 <= number <= 7 or at + count > self.end - 4:
                raise self._damaged(f"section {number} at byte {at - self._at} has {count} bytes")
            yield number, at, count
            at += count
        raise self._damaged(f"more than {_MOST_SECTIONS} sections")
