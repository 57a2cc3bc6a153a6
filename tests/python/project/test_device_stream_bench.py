"""The GPU's benchmark on tiny data: that it works, with a GPU or without, and says what it left out. Never times."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from twinrun import _core

ROOT = Path(__file__).resolve().parents[3]
BENCH = ROOT / "bench"
NO_GPU = _core.devices().reason


def bench(folder: Path, *options: object) -> tuple[list[dict], str]:
    """Its lines of JSON and the document."""
    document = folder / "report.md"
    sys.path.insert(0, str(BENCH))
    try:
        from device_stream_bench import MARKS
    finally:
        sys.path.remove(str(BENCH))
    document.write_text(f"# Before\n\n{MARKS[0]}\nearlier numbers\n{MARKS[1]}\n\nAfter\n")
    output = folder / "results.jsonl"
    command = [sys.executable, BENCH / "device_stream_bench.py", "--tiny", "--data", folder / "data"]
    done = subprocess.run(
        [*command, "--json", output, "--write", document, *options], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert not (folder / "data").exists(), "it leaves nothing behind"
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")] == lines
    text = document.read_text()
    assert text.startswith("# Before\n") and text.endswith("\nAfter\n") and "earlier numbers" not in text
    return lines, text


def test_without_a_gpu_files_are_measured_and_the_rest_has_a_reason(tmp_path: Path) -> None:
    if not NO_GPU:
        pytest.skip("there is a GPU")
    lines, text = bench(tmp_path)
    notes = [x["text"] for x in lines if x["section"] == "note"]
    for what in ("host memory", "arrays on the GPU", "capture and sketches"):
        assert any(note.startswith(f"left out: {what}: ") and NO_GPU in note for note in notes)
        assert f"left out: {what}: {NO_GPU}" in text
    measured = {x["line"]: x for x in lines if x["section"] == "files"}
    if not measured:
        assert any(note.startswith("left out: cold files: ") for note in notes)
        return
    assert {"direct, cpu", "(iv) staged, cpu"} <= set(measured)
    size = measured["direct, cpu"]["bytes"]
    assert measured["direct, cpu"]["bytes_read"] == size
    assert measured["(iv) staged, cpu"]["bytes_read"] < 0.2 * size
    goals = {x["text"]: x["met"] for x in lines if x["section"] == "goal"}
    assert goals["files, cold: direct, cuda, against only reading"] is None
    assert "not measured" in text


@pytest.mark.gpu
@pytest.mark.skipif(bool(NO_GPU), reason=f"no GPU can be used: {NO_GPU}")
def test_gpu_lines_are_measured(tmp_path: Path) -> None:
    lines, _ = bench(tmp_path)
    notes = [x["text"] for x in lines if x["section"] == "note"]
    assert not any("Error" in note for note in notes), notes
    measured = {x.get("line") for x in lines}
    if not any(note.startswith("left out: cold files") for note in notes):
        assert {"direct, cuda", "(iv) staged, cuda"} <= measured
    if not any(note.startswith("left out: host memory") for note in notes):
        assert {"page-locked: direct, cuda", "pageable: direct, cuda", "sketch, one array"} <= measured


def test_bad_options_are_refused(tmp_path: Path) -> None:
    command = [sys.executable, BENCH / "device_stream_bench.py"]
    done = subprocess.run([*command, "--only", "nothing"], capture_output=True, text=True)
    assert done.returncode == 2 and "--only takes" in done.stderr
    document = tmp_path / "d.md"
    document.write_text("no marks")
    done = subprocess.run([*command, "--tiny", "--write", document], capture_output=True, text=True)
    assert done.returncode != 0 and "lacks the lines" in done.stderr
