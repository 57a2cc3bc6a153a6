"""Histories that say of their conditions what a test wants."""

from __future__ import annotations

import types

import pytest

from twinrun import _core


def histories_say(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[types.SimpleNamespace]]:
    """What histories say from now on, by their path: empty, for those that are not in it."""
    said: dict[str, list[types.SimpleNamespace]] = {}
    real = _core.open_history

    class Said:
        def __init__(self, path: str) -> None:
            self.provenance, self._real = said.get(str(path), []), real(path)

        def __getattr__(self, name: str) -> object:
            return getattr(self._real, name)

    monkeypatch.setattr(_core, "open_history", Said)
    return said
