#!/usr/bin/env bash
# usage: test_framework.sh torch|jax JOBS [ARGUMENTS OF PYTEST]    runs the tests that need PyTorch or JAX, with that of PyPI
#
# It goes into an environment of its own, build/torch (several GB) or build/jax (0.7 GB): `make test` does without. twinrun and what
# its tests need come from .venv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
framework=${1:-}
jobs=${2:-1}
shift $(($# < 2 ? $# : 2))
case $framework in
torch)
    # expecttest: what PyTorch's own list of operations needs.
    packages='torch transformers accelerate lightning expecttest'
    tests='tests/python/trace tests/python/runs/test_digest.py tests/python/project/test_docs.py tests/python/capture/test_shared_memory.py'
    ;;
jax)
    packages='jax flax'
    tests='tests/python/trace/test_jax_tracer.py tests/python/trace/test_jax_vmap.py tests/python/trace/test_jax_several_devices.py'
    ;;
*)
    echo "usage: test_framework.sh torch|jax JOBS [ARGUMENTS OF PYTEST]" >&2
    exit 2
    ;;
esac
environment=build/$framework
python=$environment/bin/python
ours=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
stamp=$environment/made-by-test-$framework
if [[ $(cat "$stamp" 2>/dev/null) != "$packages" ]]; then
    echo "test-$framework: installing from PyPI into $environment: $packages"
    .venv/bin/python -m venv --clear "$environment"
    # shellcheck disable=SC2086
    "$python" -m pip install --quiet $packages
    echo "$packages" >"$stamp"
fi
# After its own packages: those of .venv, with twinrun.
echo "$ours" >"$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/twinrun.pth"
# shellcheck disable=SC2086
exec env --default-signal "$python" -m pytest -n "$jobs" --dist worksteal $tests "$@"
