"""A callback for Transformers' Trainer: `Trainer(…, callbacks=[TraceCallback("runs/a")])`."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from .tracer import Trace, trace

__all__ = ["TraceCallback"]


class TraceCallback(TrainerCallback):
    """Traces `trainer.train`. Parameters: the run, and those of `trace` but `model` and `optimizer`."""

    def __init__(self, run: Any, **options: Any) -> None:
        self._run, self._options, self._trace = run, options, None

    _trace: Trace | None

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        optimizer = getattr(given["optimizer"], "optimizer", given["optimizer"])
        self._trace = trace(given["model"], self._run, optimizer=optimizer, **self._options).__enter__()

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        made, self._trace = self._trace, None
        if made is not None:
            made.__exit__(None, None, None)
