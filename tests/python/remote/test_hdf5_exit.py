"""HDF5 closes at exit what is still open, and may then call no stream of Python: a damaged file in a store ends in status 2."""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from commands import check_error, process
from object_server import ObjectServer, serving

pytest.importorskip("fsspec", reason="objects of stores need fsspec: pip install 'twinrun[remote]'")
pytest.importorskip("aiohttp", reason="objects of web servers need aiohttp: pip install 'twinrun[remote]'")
h5py = pytest.importorskip("h5py")


def hdf5(user_block: int = 0) -> bytes:
    out = io.BytesIO()
    with h5py.File(out, "w", userblock_size=user_block) as file:
        file["x"] = np.arange(1000.0)
        file["group/chunked"] = np.zeros((50, 40))
        file["group"].attrs["a"] = np.arange(5)
    return out.getvalue()


GOOD = hdf5()
CANNOT_OPEN = {
    "zeros": bytes(600),
    "empty": b"",
    "page": b"<html>signed out</html>" * 100,
    "begun": GOOD[:5],
    "head": GOOD[:40],
    "garbage": GOOD[:8] + bytes(range(256)) * 4,
    "behind": bytes(512) + GOOD[:8] + b"\xff" * 300,
    "half": GOOD[: len(GOOD) // 2],
    "short": GOOD[:-1],
}


def flipped() -> dict[str, bytes]:
    """Files with some bytes that are others, most of them where HDF5 keeps what describes the data."""
    draws = np.random.default_rng(18)
    found = {}
    for number in range(40):
        content = bytearray(GOOD)
        for at in draws.integers(8, [200, 2500, len(GOOD)][number % 3], size=3):
            content[at] ^= 1 << int(draws.integers(8))
        found[f"flipped{number}"] = bytes(content)
    return found


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectServer]:
    contents = {**CANNOT_OPEN, **flipped(), "good": GOOD, "block": hdf5(2048)}
    with serving({f"{name}.h5": content for name, content in contents.items()}) as found:
        yield found


@pytest.fixture
def here(tmp_path: Path) -> Path:
    path = tmp_path / "here.h5"
    path.write_bytes(GOOD)
    return path


@pytest.mark.parametrize("name", ["zeros", "garbage", "half"])
def test_a_command_ends_with_a_message(server: ObjectServer, here: Path, name: str) -> None:
    found = process("compare", here, f"{server.url}/{name}.h5")
    check_error(found, f"{server.url}/{name}.h5: ", "HDF5" if name != "zeros" else "is no HDF5 file")


def test_bisect_is_told_to_skip(server: ObjectServer, here: Path) -> None:
    assert process("compare", here, f"{server.url}/garbage.h5", "--bisect").status == 125


# As the command does: what is garbage at the end stays. Errors, and what was opened, stay too.
PROGRAM = """
import gc, sys
import twinrun
gc.disable()
kept = []
for url in sys.argv[2:]:
    try:
        kept.append(twinrun.compare(sys.argv[1], url))
    except twinrun.TwinrunError as error:
        kept.append(error)
kept.append(kept)
print(len(kept) - 1, sum(isinstance(one, Exception) for one in kept))
gc.freeze()
"""


def test_no_damaged_file_is_open_at_exit(server: ObjectServer, here: Path) -> None:
    names = [*CANNOT_OPEN, *flipped()]
    found = process(here, *(f"{server.url}/{name}.h5" for name in names), python=("-c", PROGRAM))
    assert (found.status, found.err) == (0, "")
    count, failed = map(int, found.out.split())
    assert count == len(names) and failed >= len(CANNOT_OPEN)


# Files that nobody closed, in a cycle that is not collected.
OPEN = """
import gc, sys
import h5py
from twinrun.formats.hdf5_places import opened
from twinrun.remote import attach
gc.disable()
kept = [opened(h5py, attach(url)) for url in sys.argv[1:]]
kept += [kept, kept[0]["x"], kept[0].id]
print(kept[1].userblock_size)
del kept
gc.freeze()
"""


def test_open_files_are_closed_before_exit(server: ObjectServer) -> None:
    found = process(f"{server.url}/good.h5", f"{server.url}/block.h5", python=("-c", OPEN))
    assert (found.status, found.out, found.err) == (0, "2048\n", "")


def test_a_user_block_is_found(server: ObjectServer, here: Path) -> None:
    found = process("compare", f"{server.url}/block.h5", f"{server.url}/block.h5")
    assert found.status == 0, found
