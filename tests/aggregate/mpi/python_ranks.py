"""One rank of a job that moves arrays of numpy by twinrun.aggregate.parallel_files, and holds them against numpy's own.

usage: python_ranks.py FOLDER SEED ROUNDS, under mpiexec; TWINRUN_AGGREGATE_LIBRARY names the library. Exit status 0, and "done" by rank 0,
if all is as it should be; otherwise what is not, on standard error, and MPI_Abort. 77: mpi4py has no MPI of this launcher.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import sys
import traceback
from pathlib import Path

import numpy as np

try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as e:
    print(f"skipped: {e}")
    sys.exit(77)

from twinrun import TwinrunError
from twinrun.aggregate.parallel_files import Aggregate, Block, Variable
from twinrun.aggregate.sub_files import join_sub_files

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "spec" / "reader"))
from twinrun_spec.sub_files import whole as whole_by_spec

WORLD = MPI.COMM_WORLD
DTYPES = (
    "u1",
    "f4",
    "f8",
    "c16",
    ">i4",
    "S3",
    [("id", "i8"), ("x", "f4", 3), ("kind", "u1")],
)


def whole_array(draw: random.Random) -> np.ndarray:
    """Random bytes as an array of a random type, shape and order: the same on all ranks."""
    dtype = np.dtype(draw.choice(DTYPES))
    shape = tuple(draw.randint(1, 13) for _ in range(draw.randint(1, 4)))
    data = draw.randbytes(int(np.prod(shape)) * dtype.itemsize)
    return np.frombuffer(data, dtype).reshape(shape, order=draw.choice("CF"))


def cuts(draw: random.Random, shape: tuple[int, ...], ranks: int) -> list[list[tuple[slice, ...]]]:
    """A grid of blocks over the array, dealt out to ranks: some have several, some none."""
    blocks: list[tuple[slice, ...]] = [()]
    for length in shape:
        bounds = sorted([0, length, *(draw.randint(0, length) for _ in range(draw.randint(0, 2)))])
        parts = [slice(a, b) for a, b in itertools.pairwise(bounds)]
        blocks = [(*block, part) for block in blocks for part in parts]
    mine: list[list[tuple[slice, ...]]] = [[] for _ in range(ranks)]
    for block in blocks:
        mine[draw.randrange(ranks)].append(block)
    return mine


def in_memory(
    draw: random.Random, whole: np.ndarray, cut: tuple[slice, ...]
) -> tuple[Block, np.ndarray, tuple]:
    """A block's declaration, an array for it with a halo, and the block's place there."""
    order = "F" if whole.flags.f_contiguous and not whole.flags.c_contiguous else "C"
    shape = tuple(part.stop - part.start for part in cut)
    before = tuple(draw.randint(0, 2) for _ in cut)
    local = tuple(a + n + draw.randint(0, 2) for a, n in zip(before, shape, strict=True))
    array = np.zeros(local, whole.dtype, order=order)
    block = Block(whole.dtype, whole.shape, tuple(p.start for p in cut), shape, order, 0, local, before)
    return block, array, tuple(slice(a, a + n) for a, n in zip(before, shape, strict=True))


def raw(array: np.ndarray) -> bytes:
    return array.tobytes("A")


def round_of(folder: Path, draw: random.Random, number: int) -> None:
    """Writes an array in one cutting, by some ranks; reads it in another, by others."""
    path = folder / f"whole-{number}"
    whole = whole_array(draw)
    writers, readers = draw.randint(1, WORLD.size), draw.randint(1, WORLD.size)
    files, again = draw.choice(["one", "node", "rank"]), draw.choice(["one", "rank"])
    background, remove = draw.random() < 0.5, draw.random() < 0.3
    written, read = cuts(draw, whole.shape, writers), cuts(draw, whole.shape, readers)
    own = random.Random(draw.getrandbits(32) * 100 + WORLD.rank)

    few = WORLD.Split(0 if WORLD.rank < writers else MPI.UNDEFINED)
    if few != MPI.COMM_NULL:
        with Aggregate(few, files=files, offsets="whole", buffer_bytes=4096, block_bytes=512) as aggregate:
            parts = [in_memory(own, whole, cut) for cut in written[few.rank]]
            aggregate.declare_blocks([block for block, _, _ in parts])
            for (_, array, place), cut in zip(parts, written[few.rank], strict=True):
                array[place] = whole[cut]
            arrays = [array for _, array, _ in parts]
            if background:
                aggregate.write_begin(path, arrays)
                for array in arrays:
                    array[...] = np.zeros((), whole.dtype)
                aggregate.wait()
            else:
                aggregate.write(path, arrays)
            assert aggregate.report()["write"]["bytes"] == whole.nbytes
            place = aggregate.place
            assert (place.files, place.ranks) == ((few.size, 1) if files == "rank" else (1, few.size))
        few.Free()
    WORLD.Barrier()
    index = Path(f"{path}.twr-index")
    if WORLD.rank == 0:
        if index.exists():
            assert whole_by_spec(path) == raw(whole), f"{path}: what spec/sub-files.md says differs"
            join_sub_files(path, remove=remove)
        assert path.read_bytes() == raw(whole), f"{path} differs from numpy's bytes"
        if index.exists():
            path.unlink()
    WORLD.Barrier()
    few = WORLD.Split(0 if WORLD.rank < readers else MPI.UNDEFINED)
    if few != MPI.COMM_NULL:
        with Aggregate(few, files=again, offsets="whole", buffer_bytes=4096, block_bytes=512) as aggregate:
            parts = [in_memory(own, whole, cut) for cut in read[few.rank]]
            aggregate.declare_blocks([block for block, _, _ in parts])
            aggregate.read(path, [array for _, array, _ in parts])
            for (_, array, place), cut in zip(parts, read[few.rank], strict=True):
                expected = np.zeros_like(array)
                expected[place] = whole[cut]
                assert array.tobytes() == expected.tobytes(), f"block {cut} of {whole.shape}, or its halo"
        few.Free()
    WORLD.Barrier()


def halos(folder: Path) -> None:
    """Each rank reads its rows and those beside them, which others read too."""
    path = folder / "halos"
    rows = 4 * WORLD.size
    whole = np.arange(rows * 10, dtype="f8").reshape(rows, 10)
    with Aggregate(WORLD, files="rank", offsets="whole") as aggregate:
        aggregate.declare_blocks([Block("f8", whole.shape, (4 * WORLD.rank, 0), (4, 10))])
        aggregate.write(path, [whole[4 * WORLD.rank : 4 * WORLD.rank + 4]])
    for files in ("one", "rank"):
        with Aggregate(WORLD, files=files, offsets="whole", overlap=True) as aggregate:
            first, end = max(0, 4 * WORLD.rank - 2), min(rows, 4 * WORLD.rank + 6)
            own = np.zeros((end - first, 10))
            aggregate.declare_blocks([Block("f8", whole.shape, (first, 0), own.shape)])
            aggregate.read(path, [own])
            assert (own == whole[first:end]).all()
            for call in (aggregate.write, aggregate.write_begin):
                fails(functools.partial(call, folder / "none", [own]), "overlap is set")
            assert not (folder / "none").exists()
    fails(lambda: Aggregate(WORLD, overlap=True, update=True), "contradict")


def fails(call: object, *words: str, rank: int | None = None) -> None:
    """The call raises TwinrunError on all ranks; on others than `rank` with its number."""
    try:
        call()  # type: ignore[operator]
    except TwinrunError as e:
        wanted = words if rank is None or WORLD.rank == rank else (f"rank {rank}",)
        assert all(word in str(e) for word in wanted), (wanted, str(e))
    else:
        raise AssertionError(f"no error: {words}")


def refusals(folder: Path) -> None:
    """Wrong arguments of one rank are errors of all, and the aggregate works on."""
    last = WORLD.size - 1
    mine = WORLD.rank == last
    fails(lambda: Aggregate(WORLD, **({"colour": "red"} if mine else {})), *(["colour"] if mine else []))
    fails(
        lambda: Aggregate(WORLD, library=folder / "none.so"), "cannot be loaded", "TWINRUN_AGGREGATE_LIBRARY"
    )
    path = folder / "records"
    with Aggregate(WORLD, time_limit=60) as aggregate:
        aggregate.declare_records([8, 4], 100, "variables")
        a, b = np.full(100, WORLD.rank, "i8"), np.full(100, -WORLD.rank, "i4")
        aggregate.write(path, [a, b])
        expected = [
            np.repeat(np.arange(WORLD.size), 100).astype("i8"),
            -np.repeat(np.arange(WORLD.size), 100).astype("i4"),
        ]
        if WORLD.rank == 0:
            assert path.read_bytes() == b"".join(x.tobytes() for x in expected)
        short = a[:50] if mine else a
        fails(lambda: aggregate.write(path, [short, b]), "400 bytes, and 800", rank=last)
        fails(lambda: aggregate.write(path, [a] if mine else [a, b]), "1 arrays are given", rank=last)
        fails(lambda: aggregate.write(path, [a, b[::-1] if mine else b]), "not contiguous", rank=last)
        locked = np.zeros(100, "i8")
        locked.flags.writeable = not mine
        fails(lambda: aggregate.read(path, [locked, b]), "read-only", rank=last)
        fails(lambda: aggregate.declare_records([8], -1 if mine else 1), "must not be negative", rank=last)
        block = Block("f8", (4, WORLD.size), (0, WORLD.rank), (4, 1))
        wrong = Block("f8", (4, WORLD.size), (0,), (4, 1))
        fails(lambda: aggregate.declare_blocks([wrong if mine else block]), "as many numbers", rank=last)
        fails(lambda: aggregate.declare([Variable(0, 1, 0)] if mine else []), "item", rank=last)
        fails(lambda: aggregate.read(folder / "none", []), "nothing is declared")
        aggregate.declare([Variable(4, 10, 40 * WORLD.rank)])
        fails(lambda: aggregate.read(folder / "none", [np.zeros(10, "f4")]), "none")
        assert aggregate.test()
    fails(aggregate.wait, "closed")
    reasons(folder, last)
    aggregate.close()


def reasons(folder: Path, last: int) -> None:
    """All ranks read what is wrong on one of them, in the same words; and no file is changed."""
    path, mine = folder / "reasons", WORLD.rank == last
    square = np.arange(6, dtype="i4").reshape(2, 3)
    with Aggregate(WORLD, time_limit=60) as aggregate:

        def both(call: object, words: str) -> None:
            try:
                call()  # type: ignore[operator]
            except TwinrunError as e:
                assert words in str(e), (words, str(e))
                assert mine or f"rank {last}" in str(e), str(e)
            else:
                raise AssertionError(f"no error: {words}")

        block = Block("i4", (2 * WORLD.size, 3), (2 * WORLD.rank, 0), (2, 3))
        aggregate.declare_blocks([block])
        aggregate.write(path, [square])
        wrong = np.asfortranarray(square)
        for call in (aggregate.write, aggregate.read):
            both(functools.partial(call, path, [wrong if mine else square.copy()]), "the other order")
            both(functools.partial(call, f"{path}\0x" if mine else path, [square.copy()]), "zero byte")
            both(functools.partial(call, "" if mine else path, [square.copy()]), "not empty")
            both(functools.partial(call, 3 if mine else path, [square.copy()]), "a path is a text")
        both(lambda: aggregate.write(path, [square.astype("f4") if mine else square]), "float32")
        background = functools.partial(aggregate.write_begin, path)
        background([square])
        aggregate.wait()
        if mine:
            both(lambda: background([wrong]), "the other order")
        else:
            background([square])
        both(aggregate.wait, "the other order")
        WORLD.Barrier()
        assert path.read_bytes() == square.tobytes() * WORLD.size, "a refused write changed the file"
        both(lambda: aggregate.declare_blocks("abc" if mine else [block]), "no Block")
        both(lambda: aggregate.declare_blocks([Block("O", (2,), (0,), (2,)) if mine else block]), "objects")
        both(lambda: aggregate.declare([Variable(8, 2, 1 << 64 if mine else 0)]), "2^63")
        both(lambda: aggregate.declare([5] if mine else []), "no Variable")
        both(lambda: aggregate.declare_records([8], 2, "columns" if mine else "records"), "columns")
        both(lambda: aggregate.declare_records(8 if mine else [8], 2), "TypeError")
    both(lambda: Aggregate(WORLD, **({"colour": "red"} if mine else {})), "colour")
    both(lambda: Aggregate(WORLD, **({"plan": "a\0b"} if mine else {})), "zero byte")
    old_index(folder)


def old_index(folder: Path) -> None:
    """A write without an index over files that have one, with other places: nobody reads by the old ones."""
    path = folder / "old"
    with Aggregate(WORLD, files="rank", offsets="whole") as aggregate:
        aggregate.declare([Variable(8, 6, 8 * WORLD.rank, 8 * WORLD.size)])
        aggregate.write(path, [np.arange(6.0)])
    with Aggregate(WORLD, files="rank", no_index=True) as aggregate:
        aggregate.declare([Variable(8, 6, 0)])
        aggregate.write(path, [np.full(6, float(WORLD.rank))])
    WORLD.Barrier()
    with Aggregate(WORLD, offsets="whole") as aggregate:
        aggregate.declare([Variable(8, 6, 48 * WORLD.rank)])
        if WORLD.size == 1:
            aggregate.read(path, [np.zeros(6)])
        else:
            fails(lambda: aggregate.read(path, [np.zeros(6)]), "old")


def leave(why: str) -> None:
    """Ends the job: it cannot be made here."""
    print(f"skipped: {why}", flush=True)
    MPI.Finalize()
    sys.exit(77)


def main() -> None:
    """All rounds."""
    if WORLD.size != int(os.environ.get("TWINRUN_TEST_RANKS", WORLD.size)):
        leave("mpi4py loads another MPI than the launcher's")
    try:
        Aggregate(WORLD).close()
    except TwinrunError as e:
        if "MPI is not initialised" not in str(e):
            raise
        leave("the library is built for another MPI than mpi4py's")
    folder, seed, rounds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    for number in range(rounds):
        round_of(folder, random.Random(seed * 1000 + number), number)
    halos(folder)
    refusals(folder)
    WORLD.Barrier()
    if WORLD.rank == 0:
        print("done", flush=True)


if __name__ == "__main__":
    try:
        main()
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        WORLD.Abort(1)
