"""A callback for Transformers' Trainer: `Trainer(…, callbacks=[TraceCallback("runs/a")])`."""

from __future__ import annotations

import contextlib
from typing import Any

from transformers import TrainerCallback

from .tracer import Trace, trace

__all__ = ["TraceCallback"]


class TraceCallback(TrainerCallback):
    """Traces `trainer.train`. Parameters: the run, and those of `trace` but `model` and `optimizer`.

    Trainer tells no callback that a training failed. `with TraceCallback("runs/a") as callback:`
    ends the trace then too; without it, hooks stay until the next training of this callback begins,
    or the callback is freed.
    """

    def __init__(self, run: Any, **options: Any) -> None:
        self._run, self._options, self._trace = run, options, None

    _trace: Trace | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self._end()  # the one before failed
        optimizer = getattr(given["optimizer"], "optimizer", given["optimizer"])
        self._trace = trace(given["model"], self._run, optimizer=optimizer, **self._options).__enter__()

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self._end()

    def _end(self, error: BaseException | None = None) -> None:
        made, self._trace = self._trace, None
        if made is not None:
            made.__exit__(None if error is None else type(error), error, None)

    def __enter__(self) -> TraceCallback:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._end(error)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self._end()
