"""Where a second run of a trace is to keep its data."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from typing import Any

from ..errors import TwinrunError
from .comparison import compare_traces
from .site import Site

__all__ = ["ESCALATED", "KeptPlaces", "second_run", "sites_of"]

# What follows the name of a trace in that of the second run, which keeps the data of a place.
ESCALATED = ".escalated"


class KeptPlaces:
    """The places whose data a run keeps, and which of them it came to."""

    def __init__(self, sites: Iterable[Site] = ()) -> None:
        self.sites = frozenset(sites)
        self._met: set[Site] = set()

    def __bool__(self) -> bool:
        return bool(self.sites)

    def meets(self, site: Site) -> bool:
        """Whether the data of a place, to which the run came, is to be kept."""
        if site not in self.sites:
            return False
        self._met.add(site)
        return True

    def warn_of_others(self) -> None:
        """At the end of a run: warns of places to which it did not come."""
        for site in sorted(self.sites - self._met):
            warnings.warn(
                f"twinrun: escalate: this run did not come to {site}, whose data was to be kept: none is kept. Run "
                "the program as it was when it made the first trace",
                RuntimeWarning,
                stacklevel=4,
            )


def second_run(
    run: str | os.PathLike[str], reference: str | os.PathLike[str] | None
) -> tuple[str, frozenset[Site]]:
    """Of a training that is run again: the folder of the second trace, and the place whose data it keeps:
    where the traces of the first run and of the reference part. Raises TwinrunError.
    """
    if reference is None:
        raise TwinrunError(
            "escalate=True needs the other trace",
            where=run,
            fix="give it as reference=, or both as escalate=(A, B)",
        )
    first = os.fspath(run)
    return first.rstrip(os.sep) + ESCALATED, sites_of((first, os.fspath(reference)))


def sites_of(what: Any) -> frozenset[Site]:
    """The places that a caller means: sites, the first divergence of a comparison, or of two paths.

    Raises TwinrunError where there is none.
    """
    if isinstance(what, Site):
        return frozenset((what,))
    if isinstance(what, tuple) and len(what) == 2 and all(isinstance(p, (str, os.PathLike)) for p in what):
        what = compare_traces(*what)
    first = getattr(what, "first_divergence", what)
    if first is None:
        raise TwinrunError("the two traces do not part: there is no place to look at")
    site = getattr(first, "site", None)
    if isinstance(site, Site):
        return frozenset((site,))
    if isinstance(first, Iterable) and not isinstance(first, (str, bytes)):
        found = list(first)
        if found and all(isinstance(one, Site) for one in found):
            return frozenset(found)
    raise TwinrunError(
        "what is to be kept is not understood",
        fix="give a result of compare_traces, two paths of traces, or sites",
    )
