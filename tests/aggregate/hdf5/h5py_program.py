"""A parallel program of h5py that knows nothing of twinrun.

usage: h5py_program.py write|read PATH"""

import sys

import h5py
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
scenario, path = sys.argv[1:]
ROWS, COLUMNS = 100, 30  # rows of each rank that writes


def rows_of(rank: int) -> np.ndarray:
    return np.arange(float(ROWS * COLUMNS)).reshape(ROWS, COLUMNS) + rank * 10000


if scenario == "write":
    with h5py.File(path, "w", driver="mpio", comm=comm) as file:
        rows = file.create_dataset("rows", (comm.size * ROWS, COLUMNS), dtype="f8")
        with rows.collective:
            rows[comm.rank :: comm.size] = rows_of(comm.rank)
        chunked = file.create_dataset("chunked", (64, 64), chunks=(16, 16), dtype="i4")
        if comm.rank == 0:
            chunked[:] = np.arange(4096).reshape(64, 64)
        file.attrs["ranks"] = comm.size
else:
    with h5py.File(path, "r", driver="mpio", comm=comm) as file:
        ranks = int(file.attrs["ranks"])
        with file["rows"].collective:
            for rank in range(ranks):
                assert np.array_equal(file["rows"][rank::ranks], rows_of(rank))
        assert np.array_equal(file["chunked"][...], np.arange(4096).reshape(64, 64))
comm.Barrier()
if comm.rank == 0:
    print("done")
