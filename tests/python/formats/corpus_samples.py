"""What a sample of a format is: how it is written, and how it is written in other ways."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

Write = Callable[[Path], object]


STEPS = np.linspace(0.0, 1.0, 12).reshape(3, 4)


@dataclass
class Sample:
    """base: writes a run into an empty folder. changes, storage: write it in other ways, each by its own name."""

    base: Write
    changes: dict[str, Write] = field(default_factory=dict)
    storage: dict[str, Write] = field(default_factory=dict)
    needs: str = ""


def edited(base: Write, edit: Callable[[Path], object]) -> Write:
    def write(folder: Path) -> None:
        base(folder)
        edit(folder)

    return write


def beside(base: Write, name: str, data: bytes = b"hello") -> Write:
    """The same with one file more in it."""

    def edit(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)

    return edited(base, edit)


# ---- formats of which there are fixtures ----

FIXTURES = Path(__file__).parent / "fixtures"


def copied(name: str, to: str = "") -> Write:
    def write(folder: Path) -> None:
        source, target = FIXTURES / name, folder / (to or Path(name).name)
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)

    return write


def replaced(base: Write, file: str, old: bytes, new: bytes) -> Write:
    """The same with other bytes, the first time that they come."""

    def edit(folder: Path) -> None:
        data = (folder / file).read_bytes()
        assert old in data
        (folder / file).write_bytes(data.replace(old, new, 1))

    return edited(base, edit)


def patched(base: Write, file: str, at: int, new: bytes) -> Write:
    def edit(folder: Path) -> None:
        data = bytearray((folder / file).read_bytes())
        assert data[at : at + len(new)] != new
        data[at : at + len(new)] = new
        (folder / file).write_bytes(data)

    return edited(base, edit)
