"""Simulated machines: what bench/simulate/ prints, played in SimGrid. simulate_table.py has the tables.

SimGrid is optional: Debian's libsimgrid-dev, installed or unpacked by tools/unpack_packages.sh into build/simgrid.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "bench/simulate"
UNPACKED = ROOT / "build/simgrid"
PLAYER = ROOT / "build/simulate/play"


class Missing(Exception):
    """SimGrid is not here, or a program is not built: says what to do."""


def _libraries(folder: Path) -> Path | None:
    """Where libsimgrid.so lies below a folder of unpacked packages."""
    return next((found.parent for found in sorted(folder.glob("usr/lib/*/libsimgrid.so"))), None)


def player() -> Path:
    """The program that plays flows, compiled if it is older than its source. Missing: there is no SimGrid."""
    source = SOURCES / "play.cpp"
    if PLAYER.exists() and PLAYER.stat().st_mtime > source.stat().st_mtime:
        return PLAYER
    command = [*shlex.split(os.environ.get("CXX", "g++")), "-std=c++17", "-O2", "-Wall", "-Wextra"]
    libraries = _libraries(UNPACKED)
    if libraries is not None:
        command += ["-isystem", str(UNPACKED / "usr/include"), f"-L{libraries}"]
        # RPATH, not RUNPATH: what the libraries need is looked for there too.
        command += [f"-Wl,-rpath-link,{libraries},--disable-new-dtags,-rpath,{libraries}"]
    elif not Path("/usr/include/simgrid/s4u.hpp").exists():
        raise Missing("SimGrid is not here: tools/unpack_packages.sh build/simgrid libsimgrid-dev")
    PLAYER.parent.mkdir(parents=True, exist_ok=True)
    made = PLAYER.with_suffix(f".{os.getpid()}")
    done = subprocess.run(
        [*command, str(source), "-o", str(made), "-lsimgrid"], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise Missing(f"{source.name} does not compile:\n{done.stderr[-2000:]}")
    made.replace(PLAYER)
    return PLAYER


def flows_program() -> Path:
    """simulate_flows, which the build of twinrun makes."""
    named = os.environ.get("TWINRUN_SIMULATE_FLOWS")
    places = (
        [Path(named)]
        if named
        else [ROOT / f"build/{preset}/bin/simulate_flows" for preset in ("release", "ci")]
    )
    for place in places:
        if place.exists():
            return place
    raise Missing(f"{places[0]} is not built: make build")


@dataclass(frozen=True)
class Bound:
    """The link of a kind that needs longest for what a job moves over it: no schedule is faster."""

    seconds: float
    link: str


@dataclass(frozen=True)
class JobOutcome:
    """What became of a job."""

    bytes: int
    seconds: float
    bounds: Mapping[str, Bound] = field(default_factory=dict)  # by kind of link

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.bytes / self.seconds

    @property
    def binding(self) -> str:
        """The kind of link that bounds it."""
        return max(self.bounds, key=lambda kind: self.bounds[kind].seconds)

    @property
    def bound(self) -> float:
        """No schedule takes fewer seconds than this."""
        return self.bounds[self.binding].seconds


def words_of(settings: Mapping[str, object]) -> list[str]:
    """NAME=VALUE for a command line."""
    return [f"{name}={value}" for name, value in settings.items()]


def flows(topology: str, settings: Mapping[str, object], jobs: Iterable[Mapping[str, object]]) -> str:
    """The text of what jobs move. ValueError: the program refuses, and why."""
    command = [str(flows_program()), topology, *words_of(settings)]
    command += ["job:" + ",".join(words_of(job)) for job in jobs]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError(done.stderr.strip())
    return done.stdout


def bounds_of(text: str) -> list[dict[str, Bound]]:
    """The lines `bound` of each job."""
    found: list[dict[str, Bound]] = []
    for line in text.splitlines():
        word = line.split()
        if word[0] == "job":
            found.append({})
        elif word[0] == "bound":
            found[int(word[1])][word[2]] = Bound(float(word[3]), word[4])
    return found


def play(text: str) -> list[JobOutcome]:
    """The simulated times of all jobs in a text of flows."""
    program = player()
    done = subprocess.run([program], input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{program.name} failed: {done.stderr[-2000:]}")
    return [
        JobOutcome(job["bytes"], job["seconds"], bounds)
        for job, bounds in zip(json.loads(done.stdout)["jobs"], bounds_of(text), strict=True)
    ]


class Journal:
    """Outcomes that were simulated already, in a file. It knows no sources: remove it when one changes."""

    def __init__(self, path: Path, known_only: bool = False) -> None:
        self.path, self.known_only = path, known_only
        self._known: dict[str, list] = {}
        if path.exists():
            for line in path.read_text("utf-8").splitlines():
                entry = json.loads(line)
                self._known[entry["key"]] = entry["jobs"]

    def outcome(
        self, topology: str, settings: Mapping[str, object], *jobs: Mapping[str, object]
    ) -> list[JobOutcome]:
        """Of a machine with these settings, and jobs that run at the same time. LookupError: `known_only`, and it is not."""
        key = json.dumps([topology, dict(settings), [dict(job) for job in jobs]])
        if key not in self._known and self.known_only:
            raise LookupError(f"not simulated yet: {key}")
        if key not in self._known:
            outcomes = play(flows(topology, settings, jobs))
            self._known[key] = [
                [o.bytes, o.seconds, {kind: [b.seconds, b.link] for kind, b in o.bounds.items()}]
                for o in outcomes
            ]
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, "jobs": self._known[key]}) + "\n")
        return [
            JobOutcome(count, seconds, {kind: Bound(*bound) for kind, bound in bounds.items()})
            for count, seconds, bounds in self._known[key]
        ]
