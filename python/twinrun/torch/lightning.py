"""A callback for Lightning: `Trainer(callbacks=[TraceCallback("runs/a")])`."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.callbacks import Callback

from .tracer import Trace, trace

__all__ = ["TraceCallback"]


class TraceCallback(Callback):
    """Traces `trainer.fit`. Parameters: the run, and those of `trace` but `model` and `optimizer`."""

    def __init__(self, run: Any, **options: Any) -> None:
        self._run, self._options, self._trace = run, options, None

    _trace: Trace | None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        optimizers = [getattr(o, "optimizer", o) for o in trainer.optimizers]
        self._trace = trace(pl_module, self._run, optimizer=optimizers, **self._options).__enter__()

    def _end(self) -> None:
        made, self._trace = self._trace, None
        if made is not None:
            made.__exit__(None, None, None)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._end()
