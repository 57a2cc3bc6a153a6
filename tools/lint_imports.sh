#!/usr/bin/env bash
# usage: lint_imports.sh [ROOT]    checks what may import what in the Python package, by the contracts in ROOT/pyproject.toml; exit
#                                  status 1, and the broken contracts with the lines that break them, if there are any
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "${1:-$here}"
# The sources, not the package that is installed.
found=$(PYTHONPATH=python "$here/.venv/bin/lint-imports" --no-logo --cache-dir .cache/import-linter 2>&1) || {
    printf '%s\n' "$found" >&2
    exit 1
}
echo "layers of Python: in order"
