#!/usr/bin/env python3
"""Programs whose calls are known, run with the interposition library; what their profiles say must be exact.

usage: check.py --library libtwinrun_interpose.so --program calls CASE               files threads fork exec cancel ends
       (and those of CASES below)
       check.py --library ... --program calls_mpi --mpiexec "mpiexec ..." --ranks N mpi
       check.py --library ... --program fortran_calls --mpiexec ... --ranks N fortran

Exit status 1, and what differs, where they are not.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Calls of `calls FOLDER files`: count, bytes.
FILES = {
    "open": (6, 0),
    "write": (5, 68),
    "pwrite": (2, 14),
    "writev": (1, 11),
    "pwritev": (1, 11),
    "lseek": (2, 0),
    "fsync": (1, 0),
    "fdatasync": (1, 0),
    "read": (3, 82),
    "pread": (1, 40),
    "readv": (1, 11),
    "preadv": (1, 11),
    "truncate": (2, 0),
    "stat": (2, 0),
    "rename": (1, 0),
    "access": (1, 0),
    "mkdir": (1, 0),
    "rmdir": (1, 0),
    "close": (7, 0),
    "unlink": (3, 0),
    "write_stream": (1, 9),
    "read_stream": (1, 9),
    "fopen": (1, 0),
    "fwrite": (1001, 8008),
    "fprintf": (1, 11),
    "fputs": (1, 7),
    "fflush": (1, 0),
    "fseek": (3, 0),
    "ftell": (1, 0),
    "fread": (2, 36),
    "fscanf": (1, 0),
    "fgets": (1, 7),
    "getline": (1, 8009),
    "fdopen": (1, 0),
    "fclose": (2, 0),
}
GROUPS = {
    "posix_read", "posix_write", "posix_meta", "posix_stream", "stdio", "mpi_point_to_point", "mpi_collective", "mpi_wait",
    "mpi_file", "mpi_one_sided", "mpi_other",
}  # fmt: skip


class Failed(Exception):
    """What is not as it should be."""


def expect(truth: bool, what: str) -> None:
    if not truth:
        raise Failed(what)


def run(library: str, folder: Path, command: list[str], wait: bool = True, **variables: str):
    """Runs a command with the library; (exit status, profiles) or the process itself."""
    profiles = folder / "profiles"
    profiles.mkdir(exist_ok=True)
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("TWINRUN_")},
        "LD_PRELOAD": library,
        "TWINRUN_INTERPOSE_FOLDER": str(profiles),
        **variables,
    }
    # `env`, so that this process's own environment has no part in it.
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    if not wait:
        return process
    try:
        status = process.wait(timeout=1200)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise Failed("it did not end") from None
    return status, read(folder)


def read(folder: Path, *, running: bool = False) -> dict[str, dict]:
    """Profiles by name, each checked by itself. running: they may have been written within a call."""
    found = {}
    for path in sorted((folder / "profiles").iterdir()):
        expect(path.name.startswith("PROFILE-") and path.name.endswith(".json"), f"left behind: {path.name}")
        profile = json.loads(path.read_text())
        consistent(profile, path.name, running)
        found[path.name] = profile
    return found


def consistent(profile: dict, name: str, running: bool) -> None:
    """What holds of every profile. One that was written within a call may have counted it in part."""
    expect(profile["version"] == 1, f"{name}: version")
    expect(
        0 <= profile["wall"] and abs(profile["end"] - profile["start"] - profile["wall"]) < 1e-6,
        f"{name}: wall",
    )
    expect(profile["own_cost_seconds"] >= 0 and profile["cpu"] >= 0, f"{name}: cost")
    for call, facts in profile["calls"].items():
        expect(facts["group"] in GROUPS, f"{name}: {call}: group")
        within = facts["count"] - sum(facts["histogram"])
        expect(0 <= within <= running, f"{name}: {call}: histogram")
        if within:
            continue
        expect(0 <= facts["largest_seconds"] <= facts["seconds"] + 1e-9, f"{name}: {call}: largest")
        # Bins are powers of two of nanoseconds; 2%, for the scale of the clock is known better at the end than at first.
        low = sum(n * 2**i for i, n in enumerate(facts["histogram"])) * 0.98e-9
        high = sum(n * 2 ** (i + 1) for i, n in enumerate(facts["histogram"])) * 1.02e-9
        least = facts["histogram"][0] if facts["histogram"] else 0
        expect(low - least * 1e-9 <= facts["seconds"] <= high + 1e-9, f"{name}: {call}: {facts}")


def equal(profile: dict, wanted: dict[str, tuple[int, int]], *, only: bool = True) -> None:
    """Counts and bytes are those, and there are no other calls."""
    got = {k: (v["count"], v["bytes"]) for k, v in profile["calls"].items()}
    for call, facts in wanted.items():
        expect(got.get(call) == facts, f"{call}: {got.get(call)}, not {facts}")
    if only:
        expect(set(got) == set(wanted), f"besides: {sorted(set(got) - set(wanted))}")
        expect(all("nested" not in v for v in profile["calls"].values()), "nested calls")


def writes(number: int) -> dict[str, tuple[int, int]]:
    """Of the function of that name."""
    return {"open": (1, 0), "pwrite": (number, 4 * number), "close": (1, 0)}


def one(found: dict[str, dict]) -> dict:
    expect(len(found) == 1, f"profiles: {sorted(found)}")
    return next(iter(found.values()))


def files(library: str, program: str, folder: Path) -> None:
    status, found = run(library, folder, [program, str(folder), "files"])
    expect(status == 0, f"status {status}")
    equal(one(found), FILES)
    profile = one(found)
    expect(profile["rank"] is None and profile["other_preloads"] == [] and profile["errors"] == [], "facts")
    expect(profile["program"] == os.path.realpath(program), "program")


def threads(library: str, program: str, folder: Path) -> None:
    status, found = run(library, folder, [program, str(folder), "threads"])
    expect(status == 0, f"status {status}")
    equal(one(found), {"open": (1, 0), "pwrite": (1200, 1200)})


def cancel(library: str, program: str, folder: Path) -> None:
    """Calls in which a thread was cancelled never end and are not counted; the threads after it are counted as ever."""
    status, found = run(library, folder, [program, str(folder), "cancel"])
    expect(status == 0, f"status {status}")
    profile = one(found)
    calls = {k: v["count"] for k, v in profile["calls"].items()}
    expect(calls.pop("read_stream", 0) <= 3, f"{calls}")
    expect(calls == {"open": 1, "pwrite": 100, "write_stream": 3}, f"{calls}")
    expect(all("nested" not in v for v in profile["calls"].values()), "a later thread's calls seem nested")


def fork(library: str, program: str, folder: Path) -> None:
    status, found = run(library, folder, [program, str(folder), "fork"])
    expect(status == 0, f"status {status}")
    own = [p for p in found.values() if Path(p["program"]).name == Path(program).name]
    others = [p for p in found.values() if p not in own]
    expect(len(own) == 2 and len(others) == 2, f"{[(p['program'], p['pid']) for p in found.values()]}")
    parent, child = sorted(own, key=lambda p: p["calls"]["open"]["count"], reverse=True)
    equal(parent, {"open": (2, 0), "pwrite": (6, 24), "close": (2, 0)})
    equal(child, writes(5))


def exec_(library: str, program: str, folder: Path) -> None:
    status, found = run(library, folder, [program, str(folder), "exec"])
    expect(status == 0, f"status {status}")
    expect(len(found) == 2 and len({p["pid"] for p in found.values()}) == 1, f"{sorted(found)}")
    first, second = sorted(found.values(), key=lambda p: len(p["calls"]))
    equal(first, writes(3))
    equal(second, FILES)


def ends(library: str, program: str, folder: Path) -> None:
    """Every way to end leaves a profile; what was killed outright leaves the last one that was written on the way."""
    for mode, wanted in (("exit", 0), ("_exit", 0), ("quick_exit", 0), ("abort", -signal.SIGABRT)):
        place = folder / mode
        place.mkdir()
        status, found = run(library, place, [program, str(place), mode])
        expect(status == wanted, f"{mode}: status {status}")
        equal(one(found), writes(3) if mode != "nothing" else {})
    place = folder / "nothing"
    place.mkdir()
    status, found = run(library, place, [program, str(place), "nothing"])
    expect(status == 0 and one(found)["calls"] == {}, "nothing")
    for number, flush in ((signal.SIGTERM, "0"), (signal.SIGKILL, "1")):
        place = folder / number.name
        place.mkdir()
        process = run(
            library, place, [program, str(place), "endless"], wait=False, TWINRUN_INTERPOSE_FLUSH=flush
        )
        deadline = time.monotonic() + 600
        while not (place / "going").exists() or (
            flush != "0" and not any((place / "profiles").glob("PROFILE*"))
        ):
            expect(process.poll() is None and time.monotonic() < deadline, "it does not get going")
            time.sleep(0.01)
        os.kill(process.pid, number)
        expect(process.wait(timeout=600) == -number, f"{number.name}: status {process.returncode}")
        for path in (place / "profiles").glob(".profile-*"):
            path.unlink()  # killed while it wrote
        calls = one(read(place, running=True))["calls"]
        expect(calls["open"]["count"] == 1 and calls["pwrite"]["count"] > 100, f"{number.name}: {calls}")
        beside = 4 * calls["pwrite"]["count"] - calls["pwrite"]["bytes"]
        expect(0 <= beside <= 4, f"{number.name}: bytes")


def delayed(library: str, program: str, folder: Path) -> None:
    """A delay is no point at which threads are cancelled: mkdir is none."""
    rules = "mkdir:delay=300ms"
    status, found = run(library, folder, [program, str(folder), "delayed"], TWINRUN_INTERPOSE_INJECT=rules)
    expect(status == 0, f"status {status}")
    injected = one(found)["injected"]["rules"][0]
    expect(injected["count"] == 1 and injected["seconds"] >= 0.3, f"{injected}")


def memory(library: str, program: str, folder: Path) -> None:
    """Streams without a descriptor: errno stays the program's."""
    status, found = run(library, folder, [program, str(folder), "memory"])
    expect(status == 0, f"status {status}")
    calls = {k: v["count"] for k, v in one(found)["calls"].items()}
    wanted = {
        "getline": 3,
        "fseek": 1,
        "fgets": 1,
        "fread": 1,
        "ftell": 1,
        "fclose": 2,
        "fprintf": 1,
        "fputs": 1,
        "fflush": 1,
    }
    expect(calls == wanted, f"{calls}")


def words(library: str, program: str, folder: Path) -> None:
    status, found = run(library, folder, [program, str(folder), "words"])
    expect(status == 0, f"status {status}")
    expect(len(found) == 2 and all(p["calls"] == {} for p in found.values()), f"{sorted(found)}")


def numbers(library: str, program: str, folder: Path) -> None:
    status, found = run(library, folder, [program, str(folder), "numbers"])
    expect(status == 0, f"status {status}")
    equal(one(found), {"open": (2, 0), "write": (1, 2), "write_stream": (1, 3), "read_stream": (1, 3)})


def signals(library: str, program: str, folder: Path) -> None:
    """No call is lost where a signal handler's comes in between."""
    status, found = run(library, folder, [program, str(folder), "signals"])
    expect(status == 0, f"status {status}")
    facts = one(found)["calls"]["lseek"]
    made = int((folder / "calls").read_text())
    expect(facts["count"] + facts.get("nested", {"count": 0})["count"] == made, f"{facts}, of {made}")


def ending(library: str, program: str, folder: Path) -> None:
    status, found = run(library, folder, [program, str(folder), "ending"])
    expect(status == 0, f"status {status}")
    equal(one(found), {"open": (1, 0), "pwrite": (6, 6)})


def taken(library: str, program: str, folder: Path) -> None:
    """Processes of other nodes with the same number write their profiles at the same time."""
    place = folder / "profiles"
    process = run(library, folder, [program, str(folder), "taken"], wait=False)
    status = process.wait(timeout=1200)
    expect(status == 0, f"status {status}")
    for path in place.glob(".profile-*.tmp"):
        path.rmdir()
    equal(one(read(folder)), writes(3))


def with_writable_table(program: str, copy: Path) -> str:
    """A copy of an ELF program whose part to be read-only ends within a page: the loader leaves all of that page writable."""
    data = bytearray(Path(program).read_bytes())
    (table,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    for at in range(table, table + size * count, size):
        if struct.unpack_from("<I", data, at)[0] == 0x6474E552:  # PT_GNU_RELRO
            (length,) = struct.unpack_from("<Q", data, at + 40)
            struct.pack_into("<Q", data, at + 40, length - 16)
            break
    else:
        raise Failed("the program has no part that is read-only")
    copy.write_bytes(data)
    copy.chmod(0o755)
    return str(copy)


def fake_mpi(library: str, program: str, folder: Path, local: list[str]) -> None:
    """An MPI that is none (fake_mpi.c), for what real ones are seldom asked: linked, and loaded by the program itself."""
    writable = with_writable_table(program, folder / "program")
    for mode, command in (
        ("linked", [program, "read-only"]),
        ("writable", [writable, "writable"]),
        ("loaded", local),
    ):
        place = folder / mode
        place.mkdir()
        status, found = run(library, place, command)
        expect(status == 0, f"{mode}: status {status}")
        calls = {k: (v["count"], v["bytes"]) for k, v in one(found)["calls"].items() if k.startswith("MPI_")}
        if mode != "loaded":
            wanted = {
                "MPI_Init": (1, 0),
                "MPI_Send": (2, 8 * (5 + (1 << 33))),
                "MPI_Rsend": (1, 0),
                "MPI_Reduce_scatter": (1, 8 * 7),
                "MPI_Alltoallv": (1, 8 * 9),
                "MPI_Gather": (3, 8 * 2),
                "MPI_Scatter": (1, 0),
                "MPI_Allgatherv": (2, 8 * 2),
                "MPI_Finalize": (1, 0),
            }
            expect(calls == wanted, f"{calls}")
        else:
            expect(len(calls) > 100, f"{sorted(calls)}")


def mpi_calls(rank: int, ranks: int) -> dict[str, tuple[int, int]]:
    """Of calls_mpi.c."""
    first = rank == 0
    wanted = {
        "MPI_Sendrecv": (5, 400),
        "MPI_Irecv": (4, 104),
        "MPI_Isend": (3, 96),
        "MPI_Waitall": (3, 0),
        "MPI_Wait": (1, 0),
        "MPI_Allreduce": (8, 568),
        "MPI_Bcast": (1, 24),
        "MPI_Gather": (1, 0 if first else 16),
        "MPI_Allgather": (1, 32),
        "MPI_Alltoallv": (1, 8 * ranks),
        "MPI_Reduce_scatter": (1, 8 * ranks),
        "MPI_Barrier": (2, 0),
        "MPI_Comm_split": (1, 0),
        "MPI_Comm_free": (1, 0),
        "MPI_Win_create": (1, 0),
        "MPI_Win_fence": (2, 0),
        "MPI_Get_accumulate": (1, 8),
        "MPI_Win_free": (1, 0),
        "MPI_File_open": (1, 0),
        "MPI_File_write_at": (6, 3072),
        "MPI_File_sync": (1, 0),
        "MPI_File_read_at_all": (1, 512),
        "MPI_File_close": (1, 0),
        "MPI_Finalize": (1, 0),
    }
    if first and ranks > 1:
        wanted["MPI_Send"] = (ranks - 1, 16 * (ranks - 1))
    elif not first:
        wanted["MPI_Recv"] = (1, 16)
    return wanted


def ranks_of(library: str, folder: Path, command: list[str], ranks: int) -> list[dict]:
    """The profiles of the ranks, in order."""
    status, found = run(library, folder, command)
    expect(status == 0, f"status {status}")
    own = sorted((p for n, p in found.items() if n.startswith("PROFILE-rank-")), key=lambda p: p["rank"])
    expect([p["rank"] for p in own] == list(range(ranks)), f"{sorted(found)}")
    expect(all(p["ranks"] == ranks for p in own), "ranks")
    expect(all(f"PROFILE-rank-{p['rank']}.json" in found for p in own), f"{sorted(found)}")
    return own


def mpi(library: str, program: str, folder: Path, mpiexec: list[str], ranks: int) -> None:
    for begin in ("plain", "thread"):
        place = folder / begin
        place.mkdir()
        for profile in ranks_of(
            library, place, [*mpiexec, "-n", str(ranks), program, str(place), begin], ranks
        ):
            rank = profile["rank"]
            wanted = mpi_calls(rank, ranks) | {"MPI_Init" if begin == "plain" else "MPI_Init_thread": (1, 0)}
            equal(profile, wanted, only=False)
            mine = {c for c in profile["calls"] if c.startswith("MPI_")}
            expect(mine == set(wanted), f"rank {rank}: {sorted(mine ^ set(wanted))}")
            expect(all("nested" not in profile["calls"][c] for c in mine), "MPI within MPI")
            expect(profile["other_preloads"] == [], f"{profile['other_preloads']}")
            # Whoever writes to the file does so inside calls of MPI: no time is counted twice.
            nested = {c: v["nested"] for c, v in profile["calls"].items() if "nested" in v}
            expect(sum(nested.get(c, {"bytes": 0})["bytes"] for c in ("write", "pwrite", "writev", "pwritev")) >= 3072,
                   f"rank {rank}: nested: {nested}")  # fmt: skip
            total = sum(v["seconds"] for v in profile["calls"].values() if v["group"].startswith("mpi"))
            expect(total <= profile["wall"], f"rank {rank}: {total} s of MPI in {profile['wall']} s")


def fortran(library: str, program: str, folder: Path, mpiexec: list[str], ranks: int) -> None:
    for profile in ranks_of(library, folder, [*mpiexec, "-n", str(ranks), program, str(folder)], ranks):
        wanted = {
            "MPI_Init": (1, 0),
            "MPI_Sendrecv": (5, 400),
            "MPI_Allreduce": (3, 168),
            "MPI_Bcast": (1, 12),
            "MPI_Gather": (1, 0 if profile["rank"] == 0 else 8),
            "MPI_Barrier": (2, 0),
            "MPI_File_open": (1, 0),
            "MPI_File_write_at": (1, 80),
            "MPI_File_close": (1, 0),
            "MPI_Finalize": (1, 0),
        }
        equal(profile, wanted, only=False)
        mine = {c for c in profile["calls"] if c.startswith("MPI_")}
        expect(mine == set(wanted), f"{sorted(mine ^ set(wanted))}")
        expect(all("nested" not in profile["calls"][c] for c in mine), "counted twice")


CASES = {
    "files": files, "threads": threads, "cancel": cancel, "fork": fork, "exec": exec_, "ends": ends, "delayed": delayed,
    "memory": memory, "words": words, "numbers": numbers, "signals": signals, "ending": ending, "taken": taken,
}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--library", required=True)
    parser.add_argument("--program", required=True)
    parser.add_argument("--mpiexec", default="mpiexec")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--local", nargs=3, help="of fake_mpi: the program, and the two libraries it loads")
    parser.add_argument("case", choices=[*CASES, "fake_mpi", "mpi", "fortran"])
    given = parser.parse_args(arguments)
    library, program = os.path.abspath(given.library), os.path.abspath(given.program)
    with tempfile.TemporaryDirectory(prefix="interpose-") as name:
        folder = Path(name)
        try:
            if given.case in CASES:
                CASES[given.case](library, program, folder)
            elif given.case == "fake_mpi":
                fake_mpi(library, program, folder, [os.path.abspath(path) for path in given.local])
            else:
                case = mpi if given.case == "mpi" else fortran
                case(library, program, folder, shlex.split(given.mpiexec), given.ranks)
        except Failed as e:
            print(f"{given.case}: {e}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
