"""A place in a run: which operation, in which iteration."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Site"]


class Site(NamedTuple):
    """A place in a run, the same in every run of the same program.

    >>> from twinrun.trace.site import Site
    >>> print(Site(3, 0, "forward", "layers.1", "forward"))
    iteration 3, forward of layers.1

    Attributes
    ----------
    iteration : int
        The number of the step.
    microbatch : int
        Which run of the model within the iteration, from 0 on.
    phase : str
        'forward', 'backward', 'optimizer', 'recompute', 'record', 'begin' or a phase of a simulation.
    module : str
        The path of the module; '' for the model itself.
    operation : str
        What was done: 'forward', a node of the graph of gradients, an operation.
    """

    iteration: int
    microbatch: int
    phase: str
    module: str
    operation: str

    def __str__(self) -> str:
        micro = f", microbatch {self.microbatch}" if self.microbatch else ""
        module = self.module or "the model"
        if self.phase in ("forward", "recompute") and self.operation == "forward":
            what = f"{self.phase} of {module}"
        elif self.phase in ("record", "begin") or (
            not self.module and self.phase not in ("forward", "backward")
        ):
            what = f"{self.phase}: {self.operation}" if self.operation != self.phase else self.phase
        elif self.phase == "optimizer":
            what = self.operation
        else:
            what = f"{self.phase} of {module}, {self.operation}"
        return f"iteration {self.iteration}{micro}, {what}"
