"""twinrun: run it twice, and know where, when and why it differs.

with twinrun.Run("runs/a", atol=1e-6) as run:      # in the simulation
    run.capture(step, {"x": x, "v": v})

result = twinrun.compare("runs/a", "runs/b")        # afterwards; also files, folders and arrays
print(result.verdict, result.first_divergence)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._core import __version__, release_device_memory
    from .aggregation import AggregationPlan, plan_aggregation
    from .asserting import NotSame, assert_same
    from .capture import CaptureFacts, Divergence, Run
    from .comparison import Comparison, FieldComparison, compare
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
    from .indexing import index
    from .recording import (
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
    from .sketching import FieldSketchComparison, Sketch, SketchComparison, sketch, sketch_of
    from .verification import verify

__all__ = [
    "AggregationPlan",
    "CaptureFacts",
    "CompactFacts",
    "Comparison",
    "DamagedFile",
    "Divergence",
    "FieldComparison",
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
    "TwinrunError",
    "Unsupported",
    "__version__",
    "assert_same",
    "compact",
    "compare",
    "index",
    "pack",
    "plan_aggregation",
    "read_part",
    "release_device_memory",
    "restore",
    "sketch",
    "sketch_of",
    "verify",
    "write_part",
]

# Loaded at first use: the command line must be able to say that it was interrupted while numpy was still loading.
_PLACES = {
    "AggregationPlan": "aggregation",
    "CaptureFacts": "capture",
    "CompactFacts": "recording",
    "Comparison": "comparison",
    "Divergence": "capture",
    "FieldComparison": "comparison",
    "FieldSketchComparison": "sketching",
    "NotSame": "asserting",
    "PackFacts": "recording",
    "PackedStep": "recording",
    "RecordOptions": "recording",
    "Run": "capture",
    "Sketch": "sketching",
    "SketchComparison": "sketching",
    "__version__": "_core",
    "assert_same": "asserting",
    "compact": "recording",
    "compare": "comparison",
    "index": "indexing",
    "pack": "recording",
    "plan_aggregation": "aggregation",
    "read_part": "recording",
    "release_device_memory": "_core",
    "restore": "recording",
    "sketch": "sketching",
    "sketch_of": "sketching",
    "verify": "verification",
    "write_part": "recording",
}


def __getattr__(name: str) -> object:
    if name in ("_core", "golden"):
        return importlib.import_module(f".{name}", __name__)
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module("." + _PLACES.get(name, "errors"), __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
