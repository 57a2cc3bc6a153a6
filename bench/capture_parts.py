#!/usr/bin/env python3
"""Measures captures of a part of a global array on a GPU: the whole call, beside reading the part once.

    python bench/capture_parts.py                      a part of 4 GiB of each type; needs PyTorch
    python bench/capture_parts.py --bytes 268435456    less

Digests alone are kept. The lines of a type take turns: without a place, and with one, for an absolute and a relative
tolerance. Two libraries are compared by two runs with TWINRUN_CUDA_LIBRARY, in turns. A JSON object a line; medians, with
fastest and slowest.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable

import torch

import twinrun

RULES = {"atol": (1e-3, 0.0), "atol + rtol": (1e-6, 1e-6)}


def timed(work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bytes", type=int, default=1 << 32, help="of the part")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--folder", help="where histories are written; default: a temporary one")
    options = parser.parse_args()
    print(json.dumps({"device": torch.cuda.get_device_name(), "bytes": options.bytes}), flush=True)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        columns = 4096
        rows = options.bytes // dtype.itemsize // columns
        x = torch.empty(rows, columns, dtype=dtype, device="cuda").normal_()
        place = (2 * rows + 3, columns), (3, 0)  # of whole rows, and not where a chunk begins
        times: dict[str, list[float]] = {}
        for number in range(options.rounds + 1):
            works: dict[str, Callable[[], object]] = {"read": lambda x=x: x.view(torch.int32).sum()}
            runs, folders = [], []
            for rule, (atol, rtol) in RULES.items():
                for placed in (False, True):
                    folders.append(tempfile.mkdtemp(dir=options.folder))
                    run = twinrun.Run(f"{folders[-1]}/run", atol=atol, rtol=rtol, keep_data=False)
                    runs.append(run)
                    where = {"x": place} if placed else None
                    name = f"{rule}, {'with' if placed else 'no'} place"
                    works[name] = lambda run=run, where=where, x=x: run.capture(
                        1, {"x": x}, global_place=where
                    )
            keys = list(works)
            for key in keys[number % len(keys) :] + keys[: number % len(keys)]:
                took = timed(works[key])
                if number:  # the first round makes room
                    times.setdefault(key, []).append(took)
            for run, folder in zip(runs, folders, strict=True):
                run.close()
                shutil.rmtree(folder)
        for key, took in times.items():
            entry = {"type": str(dtype).removeprefix("torch."), "line": key}
            entry |= {"ms": round(statistics.median(took) * 1e3, 3), "fastest": round(min(took) * 1e3, 3),
                      "slowest": round(max(took) * 1e3, 3),
                      "GBps": round(options.bytes / statistics.median(took) / 1e9, 1)}  # fmt: skip
            print(json.dumps(entry), flush=True)


if __name__ == "__main__":
    main()
