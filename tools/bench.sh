#!/usr/bin/env bash
# usage: bench.sh FOLDER_OF_PROGRAMS
# Runs bench/run.py, the comparison that docs/benchmarks.md keeps, if it is there; then the programs bench_*.
set -euo pipefail
programs=$(realpath "${1:?usage: bench.sh FOLDER}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ -f bench/run.py ]]; then .venv/bin/python bench/run.py; fi
shopt -s nullglob
for program in "$programs"/bench_*; do
    echo "== $(basename "$program")"
    "$program"
done
