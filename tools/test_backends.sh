#!/usr/bin/env bash
# usage: test_backends.sh BUILD_FOLDER
# Runs the C++ tests once with each backend that this processor can run, by TWINRUN_BACKEND.
set -euo pipefail
build=${1:?usage: test_backends.sh BUILD_FOLDER}
has() { grep -q -m1 -w "$1" /proc/cpuinfo; }

backends=(portable)
if has avx2 && has fma && has f16c && has bmi2; then backends+=(avx2); fi
if has avx512f && has avx512dq && has avx512vl && has avx512bw && has avx512ifma && has avx512_vnni; then backends+=(avx512); fi
for backend in "${backends[@]}"; do
    echo "backend: $backend"
    TWINRUN_BACKEND=$backend ctest --test-dir "$build" --output-on-failure --progress --label-regex 'cpp|fuzz'
done
