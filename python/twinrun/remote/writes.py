"""How objects are written into a store. Each has a mark, by which it is known again."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["MARK", "Held", "Mark", "Upload", "Writes"]

MARK = "twinrun"  # the name of the mark among an object's metadata


class Held(NamedTuple):
    """An object of a bucket. tag: tells its content from others. mark: "" if twinrun did not write it."""

    size: int
    tag: str
    mark: str


class Mark(NamedTuple):
    """The words of a mark: spec/history.md, "In a bucket".

    data: of metadata only, the tag of the object with its data; "": not told.
    """

    history: str
    writer: str
    digest: str
    data: str = ""

    @classmethod
    def read(cls, mark: str) -> Mark:
        """The words of an object's mark, all "" where it is none of ours."""
        words = mark.split(" ")
        return cls(*words) if len(words) in (3, 4) else cls("", "", "")

    @classmethod
    def tag_word(cls, tag: str) -> str:
        """A tag as a word of a mark; "" where it has signs that metadata of an object cannot carry."""
        word = tag.strip('"')
        return word if word.isascii() and word.isprintable() and not {*word} & {" ", '"'} else ""

    def __str__(self) -> str:
        return " ".join(self[: 4 if self.data else 3])


class Upload:
    """A large object on its way, in parts."""

    async def add(self, part: bytes, at: int, size: int) -> None:
        """The next part. at: where it begins. size: of the whole."""
        raise NotImplementedError

    async def end(self, replaces: str | None) -> str:
        """Raises as `Writes.put`. After a Conflict all parts are sent again."""
        raise NotImplementedError

    async def abandon(self) -> None:
        raise NotImplementedError


class Writes:
    """How objects of one kind of store are written. Paths are fsspec's."""

    def __init__(self, fs: Any) -> None:
        self.fs = fs

    async def head(self, path: str) -> Held:
        """Raises FileNotFoundError if there is nothing."""
        raise NotImplementedError

    async def put(self, path: str, content: bytes, mark: str, replaces: str | None) -> str:
        """Raises Taken if the object is not the one to replace, Conflict where it is to be tried again."""
        raise NotImplementedError

    async def begin(self, path: str, mark: str, replaces: str | None) -> Upload:
        raise NotImplementedError

    async def remove(self, path: str) -> None:
        raise NotImplementedError
