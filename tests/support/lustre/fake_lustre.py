"""Lustre's library and command, replaced by those of this folder: what they were asked for."""

from __future__ import annotations

import os
from pathlib import Path

HERE = Path(__file__).resolve().parent


def environment(by: str, log: Path) -> dict[str, str]:
    """For a program whose folders named ...-lustre are on Lustre. by: library, command, or nothing (there is neither)."""
    log.touch()
    library = os.environ["TWINRUN_FAKE_LUSTREAPI"] if by == "library" else "/nonexistent/liblustreapi.so"
    path = f"{HERE}:{os.environ['PATH']}" if by == "command" else os.environ["PATH"]
    return {"TWINRUN_LUSTRE_LIBRARY": library, "TWINRUN_FAKE_LUSTRE": str(log), "PATH": path}


def expected(by: str, factor: int, unit: int, name: str) -> list[str]:
    """What is asked for a file of this name."""
    if by == "library":
        return [f"library {factor} {unit} -1 0 0 {name}"]
    return [f"command preload=none setstripe -c {factor} -S {unit} {name}"] if by == "command" else []
