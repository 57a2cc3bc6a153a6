"""Files in TOML: what is wrong in one is named by its key, whatever the key."""

from __future__ import annotations

import datetime
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import pytest
from msgspec import Meta, Struct, field, structs

from twinrun.documents import Text, Words, checked, read_toml
from twinrun.ensemble.study.document import Document
from twinrun.errors import DamagedFile, MissingFile, TwinrunError


class Part(Struct, forbid_unknown_fields=True):
    """A table."""

    size: Annotated[int, Meta(ge=1, le=9)]
    share: Annotated[float, Meta(ge=0, le=1)] = 0.5
    kind: Literal["round", "square"] | None = None
    label: Text = Text()
    inner: str = field(name="in", default="")

    def __post_init__(self) -> None:
        if self.kind == "round" and self.share == 1:
            raise ValueError("share of a round part is less than 1")


class Whole(Struct, forbid_unknown_fields=True):
    """A document."""

    parts: dict[Annotated[str, Meta(pattern="^[a-z]+$", description="small letters")], Part] = {}
    row: list[Part] = []
    words: Words = Words()
    number: int | str = 0
    numbers: tuple[Annotated[int, Meta(ge=0, le=3, description="a digit")], ...] = ()
    on: bool = True
    either: Part | None = None


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"word": 1}, "word is not understood; did you mean words?"),
        ({"zzz": 1}, "zzz is not understood; see the list"),
        ({"parts": {"a": {"size": 1}, "b": {"size": 10}}}, "parts.b.size must be an integer from 1 to 9, not 10"),
        ({"parts": {"a": {}}}, "parts.a.size is missing; it is an integer from 1 to 9"),
        ({"parts": {"a": {"size": 1, "siez": 1}}}, "parts.a.siez is not understood; did you mean size?"),
        ({"parts": {"a": {"size": 1, "in": 1}}}, "parts.a.in must be a text, not 1"),
        ({"parts": {"a": {"size": 1, "inner": ""}}}, "parts.a.inner is not understood; see the list"),
        ({"parts": {"A": {"size": 1}}}, "parts has the name 'A', which must be small letters"),
        ({"parts": []}, "parts must be a table, not []"),
        ({"row": [{"size": 1}, {"size": 1, "kind": "rund"}]},
         "row[2].kind must be one of round, square, not 'rund'; did you mean round?"),
        ({"row": [{"size": 1, "kind": "round", "share": 1}]}, "row[1].share of a round part is less than 1"),
        ({"row": [1]}, "row must be tables, [[row]], not [1]"),
        ({"row": [{"size": 1, "share": float("nan")}]}, "row[1].share must be a number from 0 to 1, not nan"),
        ({"row": [{"size": 1, "label": []}]}, "row[1].label must be a text or a number, not []"),
        ({"either": {"size": True}}, "either.size must be an integer from 1 to 9, not true"),
        ({"words": "'"}, "words cannot be split into words: No closing quotation"),
        ({"words": [[]]}, "words must be a text or a number, not []"),
        ({"number": False}, "number must be an integer or a text, not false"),
        ({"numbers": [0, 4]}, "numbers[2] must be a digit from 0 to 3, not 4"),
        ({"on": 1}, "on must be true or false, not 1"),
        ([], "the file must be a table, not []"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(document: object, said: str) -> None:
    with pytest.raises(TwinrunError) as e:
        checked(document, Whole, "x.toml", "see the list")
    assert str(e.value) == f"x.toml: {said}"


def test_what_fits_is_converted() -> None:
    found = checked({"words": "a 'b c'", "row": [{"size": 3, "label": True}], "number": 7}, Whole, "x")
    assert found.words == ("a", "b c") and found.row[0].label == "true" and found.number == 7


def keys_of(kind: type[Struct], before: str = "") -> Iterator[str]:
    """Paths of all keys; NAME is a table with a name of its own."""
    hints = typing.get_type_hints(kind, include_extras=True)
    for own in structs.fields(kind):
        for inner in typing.get_args(hints[own.name]) or [hints[own.name]]:
            name = before + own.encode_name
            if typing.get_origin(hints[own.name]) is dict:
                name += ".NAME"
            if hasattr(inner, "__struct_fields__"):
                yield from keys_of(inner, name + ("[1]." if name == "hypotheses" else "."))
            elif "NAME" not in name.split(".")[-1]:
                yield name


@pytest.mark.parametrize("key", sorted({*keys_of(Document)}))
def test_a_wrong_value_of_any_key_of_a_study_is_named(key: str) -> None:
    """No key takes a date; and the message has the whole path of the key, whichever table it is in."""
    whole: dict = {"command": "true"}
    at = whole
    *tables, last = key.split(".")
    for table in tables:
        inner: dict = {}
        at[table.removesuffix("[1]")] = [inner] if table.endswith("[1]") else inner
        at = inner
    at[last] = datetime.date(2026, 1, 1)
    with pytest.raises(TwinrunError) as e:
        checked(whole, Document, "study.toml")
    assert str(e.value).startswith(f"study.toml: {key} ")


def test_files_that_are_no_toml(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    with pytest.raises(MissingFile, match="there is no such study"):
        read_toml(path, "study")
    for damaged in (b"= 1", b"\xff", b"x = " + b"[" * 20_000, b"x = " + b"1" * 5_000):
        path.write_bytes(damaged)
        with pytest.raises(DamagedFile, match="is not TOML"):
            read_toml(path)
    with pytest.raises(TwinrunError, match="cannot be read"):
        read_toml(tmp_path)
    with pytest.raises(TwinrunError, match="regular file"):
        read_toml("/dev/null")
