"""Jobs of several ranks, for tests of everything that uses MPI: whatever the library, with more ranks than cores, as root in a
container, on nodes that are faked."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

SKIPPED = 77  # exit status of a test that cannot be made here

# More ranks than cores: who waits must give way. And root may do it, in containers. Open MPI's windows through UCX need a
# network that is not there, and say so in each run.
ENVIRONMENT = {
    "MPIR_CVAR_POLLS_BEFORE_YIELD": "1",
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE": "1",
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_osc": "^ucx",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}

# All ranks on this host: UCX looks for no network, which is a fifth of what the start of a small job costs.
ONE_HOST = {"UCX_TLS": "sm,self"}


class Skipped(Exception):
    """Why a test cannot be made here."""


def expect(condition: bool, *what: object) -> None:
    if not condition:
        raise AssertionError(" ".join(str(w) for w in what))


def shared_segments() -> set[Path]:
    """Files of memory that ranks of MPICH share. Who is killed leaves its own."""
    found = set()
    for path in Path("/dev/shm").glob("mpich_sh*"):
        with contextlib.suppress(FileNotFoundError):  # of a job that ends just now
            if path.lstat().st_uid == os.getuid():
                found.add(path)
    return found


def in_use() -> str:
    """What the processes of this machine have open or mapped, as far as we may see it: one line each, and more."""
    seen = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            seen.append((process / "maps").read_text(errors="replace"))
            seen += [os.readlink(file) for file in (process / "fd").iterdir()]
    return "\n".join(seen)


_left: set[Path] = set()  # segments that killed jobs of this process may have left


def remove_left_segments(before: set[Path], at_most: int = 8) -> None:
    """Of those that came since: what no process has any more. Else the killed jobs of one run of the tests keep 600 MB of memory.
    To look at every process is as long as a small job is: so up to at_most wait for the next time, and go at the end."""
    _left.update(shared_segments() - before)
    if len(_left) <= at_most:
        return
    used = in_use()
    for segment in _left:
        if str(segment) not in used:
            segment.unlink(missing_ok=True)
    _left.clear()


atexit.register(remove_left_segments, shared_segments(), 0)


class Job:
    """A job that has ended: its exit status, and what it said. One that has not, after `limit` seconds, fails the test
    (TWINRUN_TEST_PATIENCE: so many times as long, for libraries that are known to be slow)."""

    def __init__(self, command: list[str], environment: dict[str, str] | None = None, limit: float = 600):
        self.command = command
        limit *= float(os.environ.get("TWINRUN_TEST_PATIENCE", "1"))
        before = shared_segments()
        with subprocess.Popen(
            command,
            env={**os.environ, **ENVIRONMENT, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                self.out = process.communicate(timeout=limit)[0]
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                self.out = process.communicate()[0]
                raise AssertionError(f"no end after {limit:g} s: {self}") from None
        self.status = process.returncode
        remove_left_segments(before)

    def __str__(self) -> str:
        return f"{shlex.join(self.command)}\n{self.out}"

    __repr__ = __str__  # what pytest shows of a failed assertion

    def numbers(self, word: str) -> list[int]:
        """Of the lines "<word> <number>"."""
        return [int(n) for n in re.findall(rf"^{word} (\d+)$", self.out, re.MULTILINE)]


def version(mpiexec: list[str]) -> str:
    """What mpiexec says of itself: with "HYDRA" it is MPICH's, with "Open MPI" or "prte" that of Open MPI 4 or 5."""
    done = subprocess.run([mpiexec[0], "--version"], capture_output=True, text=True, timeout=600)
    return done.stdout + done.stderr


def is_hydra(mpiexec: list[str]) -> bool:
    return "HYDRA" in version(mpiexec)


class Scenarios:
    """Scenarios of one program's ranks: methods, by name. folder: theirs. A class of them has a file of its own, whose last line is
    sys.exit(start(THAT_CLASS)).

    command line: --program RANKS --mpiexec "MPIEXEC FLAGS" --ranks N [--nodes K] SCENARIO [ARGUMENT ...]
    --nodes: so many nodes, faked, where the MPI can do that (MPICH); else the scenario is skipped."""

    prefix = "twinrun-mpi-"  # of the folder's name
    limit = 600.0  # seconds of a job: only a hang gets there

    def __init__(self, program: str, mpiexec: str, ranks: int, nodes: int, folder: Path):
        self.program, self.mpiexec, self.ranks, self.folder = program, shlex.split(mpiexec), ranks, folder
        self.nodes = nodes
        self.environment = {**ONE_HOST, **({"MPIR_CVAR_NUM_CLIQUES": str(nodes)} if nodes > 1 else {})}
        if nodes > 1 and not is_hydra(self.mpiexec):
            raise Skipped("nodes can be faked with MPICH only")

    def run(self, scenario: str, *arguments: str) -> None:
        """Of the command line."""
        getattr(self, scenario)(*arguments)

    def start(
        self, *arguments: object, environment: dict[str, str] | None = None, ranks: int | None = None
    ) -> Job:
        """A job of all ranks (or another number of them), to its end."""
        command = [*self.mpiexec, "-n", str(ranks or self.ranks), self.program, *map(str, arguments)]
        return Job(command, {**self.environment, **(environment or {})}, self.limit)


def start(tests: type[Scenarios]) -> int:
    """Runs the scenario that the command line names: 0 if all is as it should be, SKIPPED if it cannot be made here; else what is not,
    on standard error."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--mpiexec", required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("scenario")
    parser.add_argument("arguments", nargs="*")
    given = parser.parse_args()
    # Ranks of a job that was ended may write a file more while the folder is removed.
    with tempfile.TemporaryDirectory(
        prefix=tests.prefix, dir=os.environ.get("TWINRUN_TEST_FOLDER"), ignore_cleanup_errors=True
    ) as folder:
        inner = Path(folder) / "run"
        inner.mkdir()
        try:
            tests(given.program, given.mpiexec, given.ranks, given.nodes, inner).run(
                given.scenario, *given.arguments
            )
        except Skipped as why:
            print(f"skipped: {why}")
            return SKIPPED
        except AssertionError as problem:
            print(f"{Path(sys.argv[0]).name}: {problem}", file=sys.stderr)
            return 1
    return 0


class FakedHosts:
    """Hosts on this one: each has a name of its own (a UTS namespace), and so MPI has ranks there share no memory with those
    elsewhere. Needs the right to make namespaces: Skipped says why there are none.

    launch(ranks): the words before a program's, for ranks spread evenly. MPICH's mpiexec (Hydra) and that of Open MPI 4."""

    def __init__(self, mpiexec: list[str], names: list[str], folder: Path):
        self.mpiexec, self.names = mpiexec, names
        allowed = subprocess.run(
            ["unshare", "--uts", "sh", "-c", "hostname twinrun-faked"], capture_output=True, text=True
        )
        if allowed.returncode != 0:
            raise Skipped(f"hosts cannot be faked: {allowed.stderr.strip() or allowed.stdout.strip()}")
        said = version(mpiexec)
        self.hydra = "HYDRA" in said
        if not self.hydra and not re.search(r"\((Open MPI|OpenRTE)\) 4\.", said):
            raise Skipped("hosts are faked with MPICH and Open MPI 4 only")
        # In ssh's place: `launcher [-x] HOST COMMAND...`; the command is a shell's.
        self._launcher = folder / "launcher"
        self._launcher.write_text(
            "#!/bin/sh\n"
            'while [ "${1#-}" != "$1" ]; do shift; done\n'
            "host=$1\n"
            "shift\n"
            'exec unshare --uts sh -c "hostname $host; $*"\n'
        )
        self._launcher.chmod(0o755)

    def launch(self, ranks: int) -> list[str]:
        each = -(-ranks // len(self.names))
        if self.hydra:
            return [
                *self.mpiexec,
                *("-launcher", "ssh", "-launcher-exec", str(self._launcher), "-iface", "lo"),
                *("-hosts", ",".join(f"{name}:{each}" for name in self.names), "-n", str(ranks)),
            ]
        return [
            *self.mpiexec,
            *("--mca", "plm_rsh_agent", str(self._launcher), "--mca", "plm_rsh_no_tree_spawn", "1"),
            *("--mca", "oob_tcp_if_include", "lo", "--mca", "btl_tcp_if_include", "lo"),
            *("--host", ",".join(f"{name}:{each}" for name in self.names), "-n", str(ranks)),
        ]
