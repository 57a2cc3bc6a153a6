"""Which engine runs the tasks of a study."""

from __future__ import annotations

from pathlib import Path

from ..study.study import Study
from .engines import EngineBase
from .local import LocalEngine, MpiEngine

__all__ = ["engine_of"]


def engine_of(study: Study, folder: Path) -> EngineBase:
    """The engine that a study names, for its folder.

    Raises MissingPackage for PSI/J without psij-python, TwinrunError for impossible settings.
    """
    if study.engine.kind == "psij":
        from .batch import BatchEngine

        return BatchEngine(study, folder)
    if study.engine.kind == "srun":
        from .steps import StepEngine

        return StepEngine(study)
    return (MpiEngine if study.engine.kind == "mpirun" else LocalEngine)(study)
