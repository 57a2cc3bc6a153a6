"""What the processes of a job share."""

import subprocess
import sys
from pathlib import Path

import pytest
from commands import HANG

torch = pytest.importorskip("torch", minversion="2.4", reason="needs PyTorch 2.4: make test-torch")


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")
def test_a_process_ends_before_python_does() -> None:
    program = "import atexit, os, ranks; atexit.register(os.abort); print('said'); ranks.end(3)"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "said\n", "")


@pytest.mark.parametrize("program", ["parallel_checks", "parallel_training", "restored_runs", "sharded_runs"])
def test_every_program_of_a_job_ends_so(program: str) -> None:
    last = Path(__file__).with_name(f"{program}.py").read_text("utf-8").splitlines()[-1]
    assert last.startswith("    end(main(")
