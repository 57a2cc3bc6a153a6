"""The benchmark on tiny runs: that it works, and the exact counts of what is read and flagged. Never times."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BENCH = ROOT / "bench"
sys.path.insert(0, str(BENCH))

import table  # noqa: E402
from goals import all_goals  # noqa: E402
from measure import Effort, Spread, interleave  # noqa: E402

FIELDS = 7
PER_FIELD = 2 * (512 << 10) // 4  # elements: two of the largest chunks
BYTES = FIELDS * PER_FIELD * 4
CHUNKS = BYTES // 4096
PAGE = 4096
# A field has 256 chunks: its tree's level of leaves is where the walk begins, 8 bytes a leaf of a level.
FINE = CHUNKS // FIELDS * 8


def residues(bits: int) -> int:
    """Bytes of a field."""
    return PER_FIELD * bits // 8


def sums(section: int) -> int:
    """Bytes of checksums that guard a section of this many bytes: 8 a page."""
    return -(-section // PAGE) * 8


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("bench")
    document = folder / "report.md"
    document.write_text(f"# Before\n\n{table.BEGIN}\nearlier numbers\n{table.END}\n\nAfter\n")
    output = folder / "results.json"
    command = [
        sys.executable,
        BENCH / "compare_bench.py",
        "--tiny",
        "--data",
        folder / "data",
        "--json",
        output,
    ]
    done = subprocess.run([*command, "--write", document], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not (folder / "data").exists(), "it leaves nothing behind"
    text = document.read_text()
    assert text.startswith("# Before\n") and text.endswith("\nAfter\n") and "earlier numbers" not in text
    assert "### Goals" in text and "(i) identical" in text
    return json.loads(output.read_text())


def outcomes(results: dict, case: str, line: str) -> list[dict]:
    """Of the cold and the warm repetitions: where the page cache cannot be emptied, only warm."""
    found = [e["outcome"] for e in results["comparisons"] if (e["case"], e["line"]) == (case, line)]
    assert found
    return found


@pytest.mark.parametrize("case", ["identical", "sparse", "noise-1", "noise-40"])
@pytest.mark.parametrize("line", ["numpy", "direct-mmap", "direct-uring", "direct-pread"])
def test_baselines_read_everything_once(results: dict, case: str, line: str) -> None:
    if line == "direct-uring" and results["machine"]["reads"] != "io_uring":
        pytest.skip("io_uring is not available")
    for o in outcomes(results, case, line):
        assert o["bytes_read"] == o["element_bytes"] == 2 * BYTES


@pytest.mark.parametrize("bits", [0, 2, 4])
def test_identical_runs_need_one_level_of_the_tree(results: dict, bits: int) -> None:
    for o in outcomes(results, "identical", f"ours-{bits}-4096"):
        assert o["chunks"] == CHUNKS
        assert o["bytes_read"] <= 2 * FIELDS * (2 * PAGE + sums(FINE * 2))  # header, nodes, their checksums
        assert (o["element_bytes"], o["left"]) == (0, {"tree": 0, "elements": 0})


def test_sparse_differences_are_read_alone(results: dict) -> None:
    for bits in (0, 2, 4):
        for o in outcomes(results, "sparse", f"ours-{bits}-4096"):
            assert o["different"] == o["read_chunks"] == o["left"]["tree"] == 2
            assert o["element_bytes"] == 2 * 2 * 4096
    for o in outcomes(results, "sparse", "published-4096"):
        assert (o["different"], o["left"], o["element_bytes"]) == (
            2,
            {"tree": 2, "elements": 2},
            2 * 2 * 4096,
        )


@pytest.mark.parametrize("case", ["noise-1", "noise-40", "noise-1e-4"])
def test_residues_prove_dense_noise_without_elements(results: dict, case: str) -> None:
    for bits in (2, 4):
        if case == "noise-1e-4" and bits == 2:
            continue
        # Of metadata with as many bits: what opening it reads depends on how large it is.
        tree = outcomes(results, "identical", f"ours-{bits}-4096")[0]["bytes_read"]
        for o in outcomes(results, case, f"ours-{bits}-4096"):
            assert o["left"] == {"tree": CHUNKS, "sketch": 0, "elements": 0}
            assert o["element_bytes"] == 0
            field = residues(bits) + sums(residues(bits)) + FINE + sums(FINE)
            assert o["bytes_read"] - tree == 2 * FIELDS * field


@pytest.mark.parametrize("case", ["noise-1", "noise-40"])
@pytest.mark.parametrize("line", ["published-4096", "ours-0-4096"])
def test_without_residues_dense_noise_is_read(results: dict, case: str, line: str) -> None:
    for o in outcomes(results, case, line):
        # A chunk escapes only if none of its 1024 elements crosses a cell: 1e-5 of all chunks at 1% of eps.
        assert o["left"]["tree"] >= CHUNKS - 2
        assert o["element_bytes"] == 2 * 4096 * o["left"]["tree"]


def test_real_runs_are_judged_alike_by_all_lines(results: dict) -> None:
    found = [e for e in results["comparisons"] if e["case"].startswith("minihacc")]
    if not found:
        assert any("minihacc" in note for note in results["notes"])
        pytest.skip("the program minihacc was not built")
    for case in {e["case"] for e in found}:
        counts = {e["outcome"]["different"] for e in found if e["case"] == case} - {None}
        assert len(counts) == 1
    assert {e["case"] for e in found} == {"minihacc-0.001", "minihacc-1e-05", "minihacc-1e-07"}


def test_index_reads_each_byte_once_and_writes_what_the_format_says(results: dict) -> None:
    sizes = {e["line"]: (e["data_bytes"], e["metadata_bytes"]) for e in results["index"]}
    assert {data for data, _ in sizes.values()} == {BYTES}
    for bits in (2, 4):
        extra = sizes[f"linear-{bits}"][1] - sizes["linear-0"][1]
        # Residues, digests of fine cells, their checksums; large sections begin at pages. The file without them
        # ends with padding, which the digests fill here.
        least = FIELDS * (residues(bits) + FINE)
        assert least - PAGE < extra <= least + FIELDS * PAGE


def test_goals_are_computed_or_not_measured() -> None:
    found = all_goals({}, {}, {}, None)
    assert found and all(g.met is None and g.measured is None for g in found)
    building = {"memory_read": 10e9, "build/linear_4": 6e9, "build/published": 1e9}
    by_text = {g.text: g for g in all_goals({}, {}, building, 2e-3)}
    assert by_text["comparing two 4 KB arrays from Python"].met is False
    measured = [g for g in by_text.values() if g.met is not None]
    assert [g.met for g in measured] == [True, True, False]


def test_lines_take_turns_in_rotating_order() -> None:
    order: list[str] = []
    jobs = [(key, lambda key=key: order.append(key)) for key in "abc"]
    timings = interleave(jobs, Effort(2, 3, 1e9), lambda: None, False, lambda *_: None)
    assert "".join(order) == "abcbcacab"
    assert all(len(t.seconds) == 3 for t in timings.values())
    order.clear()
    timings = interleave(jobs, Effort(2, 9, 0.0), lambda: order.append("-"), True, lambda *_: None)
    assert "".join(order) == "-a-b-c" + "-a-b-c-b-c-a"


def test_numbers_do_not_round_into_lies() -> None:
    assert [table.percent(x) for x in (0, 1e-6, 0.0012, 0.5, 0.99996, 1, 1.02)] == [
        "0", "1.0e-04%", "0.12%", "50.0%", ">99.9%", "100%", "102.0%",
    ]  # fmt: skip
    assert [table.number(x) for x in (0.0123, 1.5, 48.26, 480.4, 1700.2)] == [
        "0.0123",
        "1.50",
        "48.3",
        "480",
        "1 700",
    ]
    assert table.spread(Spread([2.0, 1.0, 4.0])) == "2.00 (1.00 to 4.00)"


def test_a_document_without_marks_is_left_alone(tmp_path: Path) -> None:
    document = tmp_path / "x.md"
    document.write_text("text\n")
    with pytest.raises(ValueError, match="lacks the lines"):
        table.rewrite(document, "new")
    assert document.read_text() == "text\n"


def test_the_users_view_of_a_state_finds_the_right_answer() -> None:
    done = subprocess.run(
        [sys.executable, BENCH / "state_bench.py", "--quick"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("| twinrun.compare, exact |") == 3


def test_what_a_field_costs_is_measured(tmp_path: Path) -> None:
    kept = tmp_path / "found.json"
    done = subprocess.run(
        [sys.executable, BENCH / "entries_bench.py", "--quick", "--json", kept],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(kept.read_text())
    assert len(found) == 12 and all(len(rows) == 3 for case in found.values() for rows in case.values())


@pytest.mark.parametrize(
    "words",
    [
        ["startup_bench.py", "--repeat", "1"],
        ["command_bench.py", "--quick", "--cases", "sparse,noise-40"],
        ["open_bench.py", "--steps", "3", "--fields", "5", "--repeat", "1"],
    ],
)
def test_benchmarks_of_starting_and_opening_run(words: list[str], tmp_path: Path):
    run = subprocess.run(
        [sys.executable, str(BENCH / words[0]), *words[1:]], capture_output=True, text=True, cwd=tmp_path
    )
    assert run.returncode == 0, run.stderr
    assert "| line |" in run.stdout and len(run.stdout.splitlines()) > 4
