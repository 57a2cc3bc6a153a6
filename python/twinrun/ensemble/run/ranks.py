"""Ranks of MPI that share cores."""

from __future__ import annotations

__all__ = ["OVERSUBSCRIBED", "sharing"]

# More ranks than cores: waiting ranks must let others run. Names that an MPI library does not know
# do nothing.
OVERSUBSCRIBED = {
    "MPIR_CVAR_POLLS_BEFORE_YIELD": "1",
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE": "1",
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def sharing(ranks: int, cores: int) -> dict[str, str]:
    """Variables for this number of ranks on this number of cores."""
    return dict(OVERSUBSCRIBED) if ranks > cores else {}
