"""Whether a launcher of MPI started this process, and as which rank: from the environment, without MPI."""

from __future__ import annotations

import os
from collections.abc import Mapping

__all__ = ["alone", "launched"]

# (launcher, ranks, this rank, MPI library that belongs to it): what launchers put into the
# environment. Not SLURM_NTASKS: a script of sbatch has it too, and runs once.
_LAUNCHERS = (
    ("Open MPI's mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "Open MPI"),
    ("srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", None),
    ("MVAPICH's mpirun", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", "MPICH"),
    ("mpiexec", "PMI_SIZE", "PMI_RANK", "MPICH"),
    ("flux run", "FLUX_JOB_SIZE", "FLUX_TASK_RANK", None),
)


def launched(environment: Mapping[str, str] | None = None) -> tuple[str, int, int, str | None] | None:
    """(launcher, ranks, this rank, MPI library) from the environment; None without a launcher."""
    environment = os.environ if environment is None else environment
    for launcher, size, rank, library in _LAUNCHERS:
        if environment.get(size, "").isdigit() and int(environment[size]) > 0:
            number = environment.get(rank, "")
            return launcher, int(environment[size]), int(number) if number.isdigit() else 0, library
    return None


def alone(mode: str) -> bool:
    """Whether this process works alone. mode: 'on', 'off', or 'auto' for where a launcher started
    several ranks.
    """
    found = launched()
    return mode == "off" or (mode == "auto" and (found is None or found[1] == 1))
