"""Provenance: conditions of a run, in which two runs differ, and where that is shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from commands import check_error, command, load_json
from hypothesis import given
from hypothesis import strategies as st
from said_conditions import histories_say

import twinrun
from twinrun import _core
from twinrun.errors import DamagedFile
from twinrun.runs.provenance import (
    Difference,
    ProvenanceOfRank,
    difference,
    digest_between_ranks,
    python_facts,
    rank_difference,
    read_provenance,
)

Facts = dict[str, dict[str, str]]


def history(*sessions: list[Facts]) -> list[types.SimpleNamespace]:
    """As a history's `provenance` has it: a list of facts a session, one for each rank."""
    return [
        types.SimpleNamespace(rank=rank, json=json.dumps(f)) for s in sessions for rank, f in enumerate(s)
    ]


def read(*sessions: list[Facts]):
    found = read_provenance(history(*sessions))
    assert found is not None
    return found


def env(**variables: str) -> Facts:
    return {"environment": variables}


def names(differences: list[Difference]) -> list[str]:
    return [f"{d.group}.{d.name}" for d in differences]


# ---- reading -----------------------------------------------------------------------------------------------------------


def test_no_provenance() -> None:
    assert read_provenance([]) is None
    assert difference(None, read([env(A="1")])) == []


def test_facts_are_said_once_where_all_agree() -> None:
    p = read([{"cpu": {"model": "M"}, "host": {"name": f"n{r // 2}"}} for r in range(4)])
    assert p.ranks == (0, 1, 2, 3) and p.sessions == 1
    assert p.facts() == {"cpu": {"model": "M"}, "host": {"name": "n0 (rank 0-1); n1 (rank 2-3)"}}


def test_many_values_are_capped() -> None:
    p = read([env(X=str(r)) for r in range(100)])
    assert p.text("environment", "X") == "0 (rank 0); 1 (rank 1); 2 (rank 2); and 97 more"
    odd = read([env(X=str(r % 2)) for r in range(100)])
    assert odd.text("environment", "X") == "0 (rank 0, 2, 4, 6, …); 1 (rank 1, 3, 5, 7, …)"


def test_a_rank_that_lacks_a_fact() -> None:
    p = read([env(X="1"), env(), env(X="1")])
    assert p.text("environment", "X") == "1 (rank 0, 2); (none) (rank 1)"


def test_a_resumed_run_says_its_first_and_last_session() -> None:
    p = read([env(X="1", Y="5")], [env(X="2", Y="5")], [env(X="3", Y="5")])
    assert p.sessions == 3
    assert p.facts()["environment"] == {"X": "1, then 3", "Y": "5"}
    later = read([env()], [env(X="3")])
    assert later.text("environment", "X") == "(none), then 3"


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", '{"a": 1}', '{"a": {"b": 1}}', '{"a": {"b": {}}}', '{"a": {"b"', "[" * 100000, '{"a":' * 100000],
)  # fmt: skip
def test_hostile_json(text: str) -> None:
    with pytest.raises(DamagedFile, match="provenance"):
        read_provenance([types.SimpleNamespace(rank=0, json=text)])


# ---- differences -------------------------------------------------------------------------------------------------------

TEXT = st.text(max_size=5)
FACTS = st.dictionaries(TEXT, st.dictionaries(TEXT, TEXT, max_size=3), max_size=3)


@given(st.lists(FACTS, min_size=1, max_size=4), st.lists(FACTS, min_size=1, max_size=4))
def test_differences_are_those_of_the_facts(a: list[Facts], b: list[Facts]) -> None:
    assert difference(read(a), read(a)) == []
    found, back = difference(read(a), read(b)), difference(read(b), read(a))
    assert found == [Difference(d.group, d.name, d.b, d.a) for d in back]
    if len(a) == len(b) == 1:
        pairs = {(g, n) for f in (*a, *b) for g, m in f.items() for n in m}
        wanted = {
            (g, n)
            for g, n in pairs
            if a[0].get(g, {}).get(n) != b[0].get(g, {}).get(n)
        }  # fmt: skip
        assert {(d.group, d.name) for d in found} == wanted


def test_the_likeliest_comes_first() -> None:
    expected = [
        "floating_point.flush_to_zero",
        "environment.NVIDIA_TF32_OVERRIDE",
        "python.torch_tf32_matmul",
        "environment.OMP_NUM_THREADS",
        "threads.openmp",
        "mpi.ranks",
        "environment.OMPI_MCA_coll",
        "libraries.libopenblas",
        "python.numpy",
        "cpu.model",
        "cpu.microcode",
        "compiler.program",
        "program.build",
        "python.script_digest",
        "new_group.new_fact",
        "program.arguments",
        "host.kernel",
        "program.working_directory",
        "python.script",
        "host.name",
        "environment.SLURM_JOB_NODELIST",
        "environment.TWINRUN_IO",
    ]
    sides: list[Facts] = [{}, {}]
    for key in sorted(expected):
        group, name = key.split(".")
        for value, side in enumerate(sides):
            side.setdefault(group, {})[name] = str(value)
    assert names(difference(read([sides[0]]), read([sides[1]]))) == expected


def test_what_always_differs_is_left_out() -> None:
    a = {"time": {"start": "1"}, "environment": {"SLURM_JOB_ID": "1"}, "mpi": {"rank": "0", "ranks": "1"}}
    b = {"time": {"start": "2"}, "environment": {"SLURM_JOB_ID": "2"}, "mpi": {"rank": "1", "ranks": "2"}}
    assert difference(read([a]), read([b])) == [Difference("mpi", "ranks", "1", "2")]


def test_a_library_is_its_build_not_its_place() -> None:
    def library(text: str) -> list[Facts]:
        return [{"libraries": {"libm": text}}]

    here, there = "/usr/lib/libm.so.6, build 0a1b", "/opt/lib/libm.so.6, build 0a1b"
    assert difference(read(library(here)), read(library(there))) == []
    assert difference(read(library(here)), read(library(here.replace("0a", "0b")))) != []
    assert difference(read(library("/a/libm.so")), read(library("/b/libm.so"))) != []
    assert difference(read(library("/a/libm.so; " + here)), read(library("/b/libm.so; " + here))) != []


def test_runs_of_other_sizes_compare_by_their_values() -> None:
    small, large = [env(X=str(r % 2)) for r in range(2)], [env(X=str(r % 2)) for r in range(6)]
    assert difference(read(small), read(large)) == []
    assert names(difference(read(small), read([env(X="0")]))) == ["environment.X"]
    # As many ranks: who says what counts.
    assert names(difference(read(small), read(small[::-1]))) == ["environment.X"]


# ---- ranks of one run --------------------------------------------------------------------------------------------------


def test_ranks_that_differ_from_the_first_one_are_named() -> None:
    p = read([{"gpu": {"driver": "570" if r == 2 else "580"}, "cpu": {"model": "M"}} for r in range(4)])
    assert rank_difference(p, range(4)) == [Difference("gpu", "driver", "580 (rank 0-1, 3)", "570 (rank 2)")]
    assert rank_difference(p, (2, 0)) == [Difference("gpu", "driver", "570 (rank 2)", "580 (rank 0)")]
    assert rank_difference(p, (0, 1, 3)) == [] == rank_difference(None, (0, 1))
    # One that has no such condition; one that said nothing at all is left out.
    p = read([env(X="1"), env()])
    assert rank_difference(p, (0, 1, 7)) == [Difference("environment", "X", "1 (rank 0)", "(none) (rank 1)")]


def test_what_each_rank_has_of_its_own_is_left_out() -> None:
    def facts(r: int) -> Facts:
        return {
            "time": {"start": str(r)},
            "mpi": {"rank": str(r)},
            "host": {"name": f"node{r}"},
            "environment": {"CUDA_VISIBLE_DEVICES": str(r), "SLURM_JOB_ID": str(r)},
            "program": {"arguments": f"python t.py --local_rank={r % 2} {r} --pipe_handle {r + 4} --lr 0.5"},
            "libraries": {"libm": f"/{r}/libm.so.6, build 0a1b"},
        }

    assert rank_difference(read([facts(r) for r in range(4)]), range(4)) == []
    other = facts(1)
    other["program"]["arguments"] = other["program"]["arguments"].replace("0.5", "0.1")
    other["environment"]["NCCL_ALGO"] = "Ring"
    assert names(rank_difference(read([facts(0), other]), (0, 1))) == [
        "environment.NCCL_ALGO",
        "program.arguments",
    ]


def test_ranks_that_differ_only_after_a_resumption_are_named() -> None:
    p = read([env(X="1"), env(X="1")], [env(X="1"), env(X="2")])
    assert rank_difference(p, (0, 1)) == [Difference("environment", "X", "1 (rank 0)", "2 (rank 1)")]


@given(st.lists(FACTS, min_size=2, max_size=4))
def test_ranks_differ_in_what_two_runs_of_one_rank_would(facts: list[Facts]) -> None:
    found = set(names(rank_difference(read(facts), range(len(facts)))))
    digests = {digest_between_ranks(ProvenanceOfRank(0, json.dumps(f))) for f in facts}
    assert bool(found) == (len(digests) > 1)
    pairs = [names(difference(read([facts[0]]), read([other]))) for other in facts[1:]]
    assert found == {name for pair in pairs for name in pair}


# ---- where it is shown -------------------------------------------------------------------------------------------------


def captured(path: Path, value: float) -> Path:
    with twinrun.Run(path, atol=1e-6) as run:
        run.capture(10, {"x": np.full(100, value)})
    return path


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch):
    """Histories of these folders say so of their conditions."""
    said = histories_say(monkeypatch)

    def set_provenance(path: Path, *sessions: list[Facts]) -> None:
        said[str(path)] = history(*sessions)

    return set_provenance


def test_compare_shows_what_may_explain_a_difference(tmp_path: Path, say) -> None:
    a, b = captured(tmp_path / "a", 1.0), captured(tmp_path / "b", 2.0)
    say(a, [env(OMP_NUM_THREADS="1", MKL_X="same")])
    say(b, [env(OMP_NUM_THREADS="2\x1b[31m", MKL_X="same")])
    out = command("compare", a, b, "--json", tmp_path / "r.json")
    assert out.status == 1
    (line,) = [line for line in out.out.splitlines() if "OMP_NUM_THREADS" in line]
    assert line.split() == ["environment", "OMP_NUM_THREADS", "1", r"2\x1b[31m"]
    assert "MKL_X" not in out.out
    assert out.out.splitlines()[-1].startswith("different: first at step 10")
    document = load_json((tmp_path / "r.json").read_text())["provenance"]
    assert document["differences"] == [
        {"group": "environment", "name": "OMP_NUM_THREADS", "a": "1", "b": "2\x1b[31m"}
    ]
    assert document["a"] == {"environment": {"MKL_X": "same", "OMP_NUM_THREADS": "1"}}
    assert twinrun.compare(a, b).conditions == [
        Difference("environment", "OMP_NUM_THREADS", "1", "2\x1b[31m")
    ]


def test_compare_caps_and_keeps_the_verdict_last(tmp_path: Path, say) -> None:
    a, b = captured(tmp_path / "a", 1.0), captured(tmp_path / "b", 2.0)
    say(a, [env(**{f"OMP_{i:02}": "1" for i in range(20)})])
    say(b, [env(**{f"OMP_{i:02}": "2" for i in range(20)})])
    lines = command("compare", a, b).out.splitlines()
    assert sum("OMP_" in line for line in lines) == 8
    assert lines[-2] == "… and 12 more: --json has all"
    same = captured(tmp_path / "same", 1.0)
    say(same, [env(OMP_NUM_THREADS="2")])
    lines = command("compare", a, same).out.splitlines()
    assert lines[-2].startswith("conditions that differ: ") and lines[-1].startswith("same: ")


def test_compare_says_that_nothing_recorded_differs(tmp_path: Path, say) -> None:
    a, b = captured(tmp_path / "a", 1.0), captured(tmp_path / "b", 2.0)
    for run in (a, b):
        say(run, [env(OMP_NUM_THREADS="1")])
    assert command("compare", a, b).out.splitlines()[-2] == "conditions: the runs recorded no difference"


def test_without_provenance_nothing_is_shown(tmp_path: Path, say) -> None:
    a, b = captured(tmp_path / "a", 1.0), captured(tmp_path / "b", 2.0)
    say(a, [env(OMP_NUM_THREADS="1")])
    out = command("compare", a, b, "--json", tmp_path / "r.json")
    assert out.status == 1 and "condition" not in out.out and "OMP" not in out.out
    assert load_json((tmp_path / "r.json").read_text())["provenance"] is None
    assert "provenance (" not in command("show", b).out
    assert twinrun.compare(np.zeros(3), np.ones(3)).conditions is None


def test_damaged_provenance_takes_no_verdict_away(
    tmp_path: Path, say, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = captured(tmp_path / "a", 1.0), captured(tmp_path / "b", 2.0)
    say(a, [env(OMP_NUM_THREADS="1")])
    say(b, [{"environment": "no object"}])  # type: ignore[dict-item]
    out = command("compare", a, b)
    assert out.status == 1 and f"note: {b}: provenance is not" in out.out
    check_error(command("show", b), "provenance is not")


def test_show_prints_it(tmp_path: Path, say) -> None:
    a = captured(tmp_path / "a", 1.0)
    say(a, [{"cpu": {"model": "M", "cores": "4"}, "host": {"name": "n"}}] * 2, [{"cpu": {"model": "M"}}] * 2)
    out = command("show", a).out
    assert "provenance (2 ranks, 2 sessions)" in out
    assert [line.split() for line in out.splitlines()[-3:]] == [
        ["cpu", "cores", "4,", "then", "(none)"],
        ["model", "M"],
        ["host", "name", "n,", "then", "(none)"],
    ]


# ---- of this process ---------------------------------------------------------------------------------------------------


def test_python_facts() -> None:
    facts = python_facts()["python"]
    assert facts["version"] == sys.version.split()[0] and facts["numpy"] == np.__version__
    assert all(isinstance(v, str) for v in facts.values())


def test_python_facts_import_nothing_and_know_the_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, json\nfrom twinrun.runs.provenance import python_facts\nbefore = set(sys.modules)\n"
        "facts = python_facts()\n"
        "assert {m.partition('.')[0] for m in set(sys.modules) - before} <= sys.stdlib_module_names\n"
        "print(json.dumps(facts))\n"
    )

    def run() -> dict:
        return json.loads(subprocess.check_output([sys.executable, script], text=True))["python"]

    first = run()
    assert first["script"] == str(script) and "torch" not in first
    assert run()["script_digest"] == first["script_digest"]
    script.write_text(script.read_text() + "# changed\n")
    assert run()["script_digest"] != first["script_digest"]


def test_flags_of_frameworks(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> bool:
        raise RuntimeError("mixed settings")

    torch = types.ModuleType("torch")
    torch.__version__ = "9.9"
    torch.are_deterministic_algorithms_enabled = lambda: True
    torch.get_num_threads = lambda: 3
    torch.get_default_dtype = broken
    monkeypatch.setitem(sys.modules, "torch", torch)
    facts = python_facts()["python"]
    assert facts["torch"] == "9.9" and facts["torch_num_threads"] == "3"
    assert facts["torch_deterministic_algorithms"] == "True"
    assert "torch_default_dtype" not in facts and "cudnn_benchmark" not in facts


# ---- secrets -----------------------------------------------------------------------------------------------------------

_SECRET_ARGUMENTS = [
    *(
        "--token",
        "SEC",
        "--access_key",
        "SEC",
        "--wandb-key=SEC",
        "--auth=u:SEC",
        "--pw=SEC",
        "--secret",
        "-SEC",
    ),
    *("https://u:SEC@h/x?X-Amz-Signature=SEC", "s3://k:SEC@b/x", "--url=postgres://u:SEC@h/db"),
    *("-H", "Authorization: Bearer SEC", '{"token":"SEC"}', "-n", "3"),
]
_CAPTURE = """
import sys, numpy, twinrun
with twinrun.Run(sys.argv[1]) as run:
    run.capture(1, {"x": numpy.zeros(3)})
"""


def test_no_secret_is_recorded(tmp_path: Path) -> None:
    environment = {**os.environ, "OMPI_MCA_x": "token=SEC", "CUDA_HOME": "s3://a:SEC@b", "NCCL_CRED": "SEC"}
    subprocess.run(
        [sys.executable, "-c", _CAPTURE, str(tmp_path / "run"), *_SECRET_ARGUMENTS],
        check=True,
        env=environment,
    )
    manifest = (tmp_path / "run" / "manifest.jsonl").read_text()
    assert "SEC" not in manifest
    for kept in ("--token ... ", "--wandb-key=... ", "https://h/x ", "postgres://h/db ", "-n 3", "s3://b"):
        assert kept in manifest
    assert "--access_key ... " in command("show", tmp_path / "run").out


def test_no_secret_of_an_earlier_history_is_shown(tmp_path: Path) -> None:
    """Versions before stored some of them."""
    for name, secret in (("a", "SEC1"), ("b", "SEC2")):
        with twinrun.Run(tmp_path / name) as run:
            run.capture(1, {"x": np.zeros(3)})
        manifest = tmp_path / name / "manifest.jsonl"
        lines = manifest.read_text().splitlines()
        at = next(i for i, line in enumerate(lines) if "provenance" in line)
        entry = json.loads(lines[at])
        del entry["xxh3"]
        entry["provenance"]["program"]["arguments"] = f"sim s3://k:{secret}@b/{name} --pw {secret} {name}"
        entry["provenance"]["environment"]["OMPI_MCA_x"] = f"token={secret}"
        text = json.dumps(entry)
        lines[at] = f'{text[:-1]},"xxh3":"{_core.xxh3(text[:-1].encode()):016x}"}}'
        manifest.write_text("\n".join(lines) + "\n")
    paths = {kind: tmp_path / f"report.{kind}" for kind in ("json", "html")}
    found = command(
        "compare", tmp_path / "a", tmp_path / "b", "--json", paths["json"], "--html", paths["html"], "-v"
    )
    said = [
        found.out,
        found.err,
        *(path.read_text() for path in paths.values()),
        command("show", tmp_path / "a").out,
    ]
    assert found.status == 0 and not any("SEC" in text for text in said)
    assert "sim s3://b/a --pw ... a" in said[2] and "sim s3://b/b --pw ... b" in said[2]
    assert "OMPI_MCA_x" not in found.out  # two tokens are no difference
