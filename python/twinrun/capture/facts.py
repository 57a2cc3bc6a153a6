"""What a capture tells its caller: its cost, and where the run leaves its reference."""

from __future__ import annotations

from dataclasses import dataclass

from .. import _core

__all__ = ["CaptureFacts", "Divergence", "divergence_of"]


@dataclass(frozen=True)
class Divergence:
    """A step of a run that is not proven equal to the same step of the reference run.

    >>> run = twinrun.Run("runs/a", atol=1e-6)
    >>> _ = run.capture(0, {"x": np.zeros(1000)})
    >>> run.close()
    >>> run = twinrun.Run("runs/b", atol=1e-6, reference="runs/a", stop_on_divergence=True)
    >>> found = run.capture(0, {"x": np.ones(1000)}).divergence
    >>> run.close()
    >>> found.step, found.field, found.first_item
    (0, 'x', 0)

    Attributes
    ----------
    step, rank : int
        Where the runs diverge.
    field : str
        The first field that is not proven equal, in the order of capture.
    first_item : int
        Where the first open chunk of this field begins: an element, in the order of storage.
    chunks : int
        Chunks of this field that are not proven equal.
    chunks_in_all : int
        Chunks of this field.
    fields : int
        Fields of this step that are not proven equal.
    reason : str
        Why the steps could not be compared (another shape, a field that one run lacks), or "".
    text : str
        All of it as one sentence; `str(divergence)` gives it.

    Notes
    -----
    Only metadata was read. The difference is above the tolerance or, rarely, just below it: `compare`
    decides.
    """

    step: int
    rank: int
    field: str
    first_item: int
    chunks: int
    chunks_in_all: int
    fields: int
    reason: str
    text: str

    def __str__(self) -> str:
        return self.text


def divergence_of(d: _core.Divergence) -> Divergence:
    """What the core says, as a Divergence."""
    return Divergence(
        d.step, d.rank, d.field, d.first_item, d.chunks, d.chunks_in_all, d.fields, d.reason, d.text
    )


@dataclass(frozen=True)
class CaptureFacts:
    """What one capture cost.

    >>> with twinrun.Run("runs/a") as run:
    ...     facts = run.capture(7, {"x": np.zeros(1000)})
    >>> facts.step, facts.data_bytes
    (7, 8000)

    Attributes
    ----------
    step : int
        The step that was captured.
    seconds : float
        Time for which the call blocked the caller, in seconds.
    data_bytes : int
        Bytes of data that were written, or will be in the background.
    metadata_bytes : int
        Bytes of metadata; 0 where the number is not known yet.
    waited_seconds : float
        The part of `seconds` in which the call waited for memory that earlier steps held.
    staged_bytes : int
        Bytes of memory that steps under way hold now.
    divergence : Divergence or None
        Where the step diverges from the reference. None where it does not, or where it is not known yet
        (`stop_on_divergence=True` waits for it).
    """

    step: int
    seconds: float
    data_bytes: int
    metadata_bytes: int
    waited_seconds: float = 0.0
    staged_bytes: int = 0
    divergence: Divergence | None = None
