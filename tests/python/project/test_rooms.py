"""Rooms have a README that is true: it names files that exist, and in Python every module."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CXX_ROOMS = sorted(
    p
    for base in (ROOT / "src/core", ROOT / "src/aggregate", ROOT / "src")
    for p in base.iterdir()
    if p.is_dir() and p != ROOT / "src/core"
)
PYTHON_ROOMS = sorted(p.parent for p in (ROOT / "python/twinrun").rglob("*/__init__.py"))
SUFFIXES = "cpp|hpp|cu|cuh|inc|py|h|\\*"


def read_me(room: Path) -> str:
    path = room / "README.md"
    assert path.is_file(), (
        f"{room.relative_to(ROOT)} has no README.md: say what it is for, and what always holds"
    )
    return path.read_text(encoding="utf-8")


def room_name(room: Path) -> str:
    return str(room.relative_to(ROOT))


def test_rooms_are_found() -> None:
    assert ROOT / "src/core/digest" in CXX_ROOMS and ROOT / "src/aggregate/plan" in CXX_ROOMS
    assert (
        ROOT / "python/twinrun/formats" in PYTHON_ROOMS
        and ROOT / "python/twinrun/ensemble/watch" in PYTHON_ROOMS
    )


@pytest.mark.parametrize("room", CXX_ROOMS, ids=room_name)
def test_named_files_exist(room: Path) -> None:
    places = (room, ROOT, ROOT / "src", ROOT / "src/core", ROOT / "include/twinrun")
    for name in re.findall(rf"`([\w./*]+\.(?:{SUFFIXES}))`", read_me(room)):
        assert name == "mpi.h" or any(any(place.glob(name)) for place in places), name


def test_every_file_of_the_bindings_is_named() -> None:
    text = read_me(ROOT / "python/bindings")
    assert [
        p.name for p in sorted((ROOT / "python/bindings").glob("*.?pp")) if f"`{p.name}`" not in text
    ] == []


@pytest.mark.parametrize("room", PYTHON_ROOMS, ids=room_name)
def test_every_module_is_named(room: Path) -> None:
    text = read_me(room)
    missing = [
        p.stem
        for p in sorted(room.glob("*.py"))
        if p.stem != "__init__" and not re.search(rf"`{p.stem}`", text)
    ]
    assert not missing
