"""Tables of what bench_record --json wrote, as docs/benchmark-tables.md has them: python bench/record_table.py FILE..."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

METHODS = ("runs", "tree", "list", "basic", "runs+zstd", "runs+zstd+xor")
WHOLE = ("zstd-1", "xor, zstd-1")


def cell(line: dict | None) -> str:
    if line is None:
        return ""
    return f"{line['ratio']:.4g} / {statistics.median(line['GBps']):.2g}"


def table(head: list[str], rows: list[list[str]]) -> None:
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def main() -> None:
    lines = [json.loads(text) for name in sys.argv[1:] for text in Path(name).read_text().splitlines()]
    found = {(x["workload"], x["checkpoints"], x["chunk"], x["method"]): x for x in lines}
    workloads = list(dict.fromkeys(x["workload"] for x in lines))
    chunks = sorted({x["chunk"] for x in lines} - {0})
    counts = sorted({x["checkpoints"] for x in lines if x["method"] in METHODS})
    print("By size of chunks, 10 checkpoints: ratio / GB/s\n")
    rows = []
    for w in workloads:
        for m in METHODS:
            cells = [cell(found.get((w, 10, c, m))) for c in chunks]
            if any(cells):
                rows.append([w, m, *cells])
        whole = [(m, found.get((w, 10, 0, m))) for m in WHOLE]
        rows += [[w, f"{m}, whole", cell(x), *[""] * (len(chunks) - 1)] for m, x in whole if x]
    table(["workload", "method", *map(str, chunks)], rows)
    print("By number of checkpoints, 128 B: ratio / GB/s\n")
    rows = [
        [w, m, *(cell(found.get((w, n, 128, m))) for n in counts)]
        for w in workloads
        for m in METHODS
        if any((w, n, 128, m) in found for n in counts)
    ]
    table(["workload", "method", *map(str, counts)], rows)
    print("Restore of the last of 20 checkpoints beside a copy of as many bytes: GB/s\n")
    rows = []
    for w in workloads:
        copies = [x for x in lines if x["workload"] == w and x["method"] == "copy"]
        rates = [r for x in copies for r in x["GBps"]]
        if not rates:
            continue
        copy = statistics.median(rates)
        row = [w, f"{copy:.3g}"]
        for m in ("runs", "runs+zstd", "runs+zstd+xor"):
            x = next((x for x in lines if x["workload"] == w and x["method"] == f"restore {m}"), None)
            rate = statistics.median(x["GBps"]) if x else 0
            row.append(f"{rate:.3g} ({rate / copy:.2f})")
        rows.append(row)
    table(["workload", "copy", "runs", "runs+zstd", "runs+zstd+xor"], rows)


main()
