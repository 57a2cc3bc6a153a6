"""Runs a job while a second one runs: a program of its own, which its watcher can time and end.

usage: python -I -S .../beside.py JSON

JSON: {"job": words, "other": words, "results": the second job's, "stop": a file}

The job starts when the second one has ended its first repetition. At the job's end the file `stop`
is made, which ends the second one. It imports nothing but the standard library, so that it starts
within some 20 ms.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

__all__ = ["main"]


def _begun(results: str) -> bool:
    try:
        with open(results, "rb") as file:
            lines = file.read().split(b"\n")[:-1]
        return any(json.loads(line)["kind"] == "repetition" for line in lines)
    except FileNotFoundError:
        return False


def main(text: str) -> int:
    """The job's exit status, or the second one's where that is not 0."""
    words = json.loads(text)
    other = subprocess.Popen(words["other"])
    while not _begun(words["results"]):
        if other.poll() is not None:
            print(f"haccio: the second job ended early, with status {other.returncode}", file=sys.stderr)
            return 3
        time.sleep(0.02)
    status = subprocess.run(words["job"]).returncode
    with open(words["stop"], "x"):
        pass
    ended = other.wait()
    if ended != 0 and status == 0:
        print(f"haccio: the second job ended with status {ended}", file=sys.stderr)
        return 3
    return status if status >= 0 else 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
