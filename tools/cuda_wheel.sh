#!/usr/bin/env bash
# Packs a built library for GPUs as the wheel twinrun-cuda12 or twinrun-cuda13, which `twinrun` finds beside itself. A machine with nvcc
# builds the library, in half an hour on two cores:
#
#   cmake --preset release -DTWINRUN_CUDA=ON -DTWINRUN_CUDA_ARCHITECTURES= && cmake --build --preset release --target twinrun_cuda
#   tools/cuda_wheel.sh build/release/bin/libtwinrun_cuda.so 13 build/dist
#
# usage: tools/cuda_wheel.sh LIBRARY TOOLKIT FOLDER     TOOLKIT: 12 or 13, the CUDA that compiled it
#
# PYTHON (default: .venv/bin/python, else python3) needs pip; where it has scikit-build-core, nothing is fetched. Where auditwheel is
# found, the wheel gets the tag of the oldest C library that will do; otherwise it is for this system (linux_x86_64).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
limit=25000000 # bytes, as for the wheels of tools/wheels.sh
fail() {
    printf 'cuda_wheel: %s\n' "$@" >&2
    exit 2
}

(($# == 3)) || fail "usage: tools/cuda_wheel.sh LIBRARY TOOLKIT FOLDER"
library=$(realpath -e "$1") || fail "$1 is not there: build the target twinrun_cuda"
toolkit=$2
[[ $toolkit == 12 || $toolkit == 13 ]] || fail "'$toolkit' is no toolkit that twinrun takes: 12 or 13"
mkdir -p "$3"
out=$(realpath "$3")
version=$(sed -n 's/^project(twinrun VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")
python=${PYTHON:-$root/.venv/bin/python}
[[ -x $python ]] || python=$(command -v python3)
# Both are there in libraries of twinrun's for devices: the function, and the version as a text.
LC_ALL=C grep -q twinrun_device_table "$library" || fail "$library is no library for GPUs of twinrun's: it has no twinrun_device_table"
# Of a C++ library that is linked into it nothing may be seen: libraries that are loaded later would take it for their own.
if command -v nm >/dev/null; then
    others=$(nm -D --defined-only "$library" | awk '$NF != "twinrun_device_table" {print $NF}' | head -n 3 | tr '\n' ' ')
    [[ -z $others ]] || fail "$library shows more than twinrun_device_table: $others"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$root/packaging/cuda/CMakeLists.txt" "$root/packaging/cuda/README.md" "$root/LICENSE" "$root/NOTICE" "$work"
sed "s/@TOOLKIT@/$toolkit/g; s/@VERSION@/$version/g" "$root/packaging/cuda/pyproject.toml.in" >"$work/pyproject.toml"
isolation=()
if "$python" -c 'import scikit_build_core' 2>/dev/null; then isolation=(--no-build-isolation); fi
(cd "$work" && "$python" -m pip wheel --quiet --no-deps "${isolation[@]}" --wheel-dir raw \
    --config-settings "cmake.define.TWINRUN_CUDA_LIBRARY=$library" .) || fail "the wheel could not be built (above)"

auditwheel=$(command -v "$root/.cache/wheels/tools/bin/auditwheel" || command -v auditwheel || true)
if [[ -n $auditwheel && -z ${NO_AUDIT:-} ]]; then
    # --only-plat: no older tag is claimed. Nothing is copied into the wheel: the driver is the machine's.
    PATH="$(dirname "$auditwheel"):$PATH" "$auditwheel" repair --only-plat --wheel-dir "$work/audited" "$work"/raw/*.whl >"$work/audit.log" 2>&1 || {
        cat "$work/audit.log" >&2
        fail "auditwheel found no tag for it (above)"
    }
    wheel=$(echo "$work"/audited/*.whl)
else
    wheel=$(echo "$work"/raw/*.whl)
fi
size=$(stat -c %s "$wheel")
((size <= limit)) || fail "$(basename "$wheel") has $size bytes: more than $((limit / 1000000)) MB"
cp "$wheel" "$out/"
echo "$(basename "$wheel"): $size bytes"
