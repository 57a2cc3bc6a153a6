#!/usr/bin/env bash
# usage: test_torch.sh JOBS [ARGUMENTS OF PYTEST]    runs the tests that need PyTorch, with that of PyPI
#
# PyTorch goes into an environment of its own, build/torch: it is several GB, and `make test` does without. twinrun and what its tests
# need come from .venv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
jobs=$1
shift
environment=build/torch
python=$environment/bin/python
ours=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
stamp=$environment/made-by-test-torch
# expecttest: what PyTorch's own list of operations needs.
packages='torch transformers accelerate lightning expecttest'
if [[ $(cat "$stamp" 2>/dev/null) != "$packages" ]]; then
    echo "test-torch: installing PyTorch from PyPI into $environment"
    .venv/bin/python -m venv --clear "$environment"
    # shellcheck disable=SC2086
    "$python" -m pip install --quiet $packages
    echo "$packages" >"$stamp"
fi
# After its own packages: those of .venv, with twinrun.
echo "$ours" >"$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/twinrun.pth"
exec env --default-signal "$python" -m pytest -n "$jobs" --dist worksteal tests/python/trace tests/python/runs/test_digest.py tests/python/project/test_docs.py "$@"
