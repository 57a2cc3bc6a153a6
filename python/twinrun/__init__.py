"""twinrun: run it twice, and know where, when and why it differs.

>>> x = np.linspace(0, 1, 1000)
>>> with twinrun.Run("runs/a", atol=1e-6) as run:  # in the simulation
...     facts = run.capture(0, {"x": x})
>>> with twinrun.Run("runs/b", atol=1e-6) as run:
...     facts = run.capture(0, {"x": x + 1e-3})

>>> result = twinrun.compare("runs/a", "runs/b")  # afterwards; also files, folders and arrays
>>> result.verdict, result.first_divergence["field"]
('different', 'x')

`twinrun.golden` has golden checks, `twinrun.torch` traces of trainings, `twinrun.formats` the file
formats, `twinrun.ensemble` analyses of times, `twinrun.acceptance` tests of new runs against many,
and `twinrun.noise` the noise of the operating system. All errors are subclasses of
`twinrun.TwinrunError`.
Examples in docstrings assume `import numpy as np` and `import twinrun`, and write to the working folder.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from .views import views_are

if TYPE_CHECKING:
    from ._core import __version__, release_device_memory
    from .acceptance.perturbation import perturb
    from .acceptance.result import Acceptance
    from .acceptance.work import accept
    from .aggregate.plan import AggregationPlan, plan_aggregation
    from .assertion import NotSame, assert_same
    from .capture.facts import CaptureFacts, Divergence
    from .capture.records import (
        CompactFacts,
        PackedStep,
        PackFacts,
        RecordOptions,
        compact,
        pack,
        read_part,
        restore,
        write_part,
    )
    from .capture.run import Run
    from .comparison.distances import Distance, Distances, FieldDistances, compare_distances
    from .comparison.options import CompareOptions
    from .comparison.work import Comparison, FieldComparison, compare
    from .errors import (
        DamagedFile,
        FormatError,
        Incomparable,
        MissingFile,
        MissingPackage,
        Stale,
        StepLost,
        TwinrunError,
        Unsupported,
    )
    from .runs.digest import Digest, digest
    from .runs.index import index
    from .runs.sketch import FieldSketchComparison, Sketch, SketchComparison, sketch, sketch_of
    from .runs.verify import verify
    from .trace.comparison import compare_traces
    from .trace.result import TraceComparison

__all__ = [
    "Acceptance",
    "AggregationPlan",
    "CaptureFacts",
    "CompactFacts",
    "CompareOptions",
    "Comparison",
    "DamagedFile",
    "Digest",
    "Distance",
    "Distances",
    "Divergence",
    "FieldComparison",
    "FieldDistances",
    "FieldSketchComparison",
    "FormatError",
    "Incomparable",
    "MissingFile",
    "MissingPackage",
    "NotSame",
    "PackFacts",
    "PackedStep",
    "RecordOptions",
    "Run",
    "Sketch",
    "SketchComparison",
    "Stale",
    "StepLost",
    "TraceComparison",
    "TwinrunError",
    "Unsupported",
    "__version__",
    "accept",
    "assert_same",
    "compact",
    "compare",
    "compare_distances",
    "compare_traces",
    "digest",
    "index",
    "pack",
    "perturb",
    "plan_aggregation",
    "read_part",
    "release_device_memory",
    "restore",
    "sketch",
    "sketch_of",
    "verify",
    "write_part",
]

# Loaded at first use: the command line must be able to say that it was interrupted while numpy was
# still loading.
_PLACES = {
    "Acceptance": "acceptance.result",
    "AggregationPlan": "aggregate.plan",
    "CaptureFacts": "capture.facts",
    "CompactFacts": "capture.records",
    "CompareOptions": "comparison.options",
    "Comparison": "comparison",
    "Digest": "runs.digest",
    "Distance": "comparison.distances",
    "Distances": "comparison.distances",
    "Divergence": "capture.facts",
    "FieldComparison": "comparison",
    "FieldDistances": "comparison.distances",
    "FieldSketchComparison": "runs.sketch",
    "NotSame": "assertion",
    "PackFacts": "capture.records",
    "PackedStep": "capture.records",
    "RecordOptions": "capture.records",
    "Run": "capture.run",
    "Sketch": "runs.sketch",
    "SketchComparison": "runs.sketch",
    "TraceComparison": "trace.result",
    "__version__": "_core",
    "accept": "acceptance.work",
    "assert_same": "assertion",
    "compact": "capture.records",
    "compare": "comparison",
    "compare_distances": "comparison.distances",
    "compare_traces": "trace.comparison",
    "digest": "runs.digest",
    "index": "runs.index",
    "pack": "capture.records",
    "perturb": "acceptance.perturbation",
    "plan_aggregation": "aggregate.plan",
    "read_part": "capture.records",
    "release_device_memory": "_core",
    "restore": "capture.records",
    "sketch": "runs.sketch",
    "sketch_of": "runs.sketch",
    "verify": "runs.verify",
    "write_part": "capture.records",
}


views_are(lambda: importlib.import_module(".report.views", __name__))


def __getattr__(name: str) -> object:
    if name in ("_core", "golden", "jax", "torch", "xarray"):
        return importlib.import_module(f".{name}", __name__)
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module("." + _PLACES.get(name, "errors"), __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
