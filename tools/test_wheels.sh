#!/usr/bin/env bash
# Tests the wheels of build/dist as a new user meets them: in bare trees of Debian 12 and 13 that have python3-venv and nothing else,
# no compiler. Root makes the trees, with debootstrap, under build/trees (200 MB each), and enters them by chroot.
#
#   tools/test_wheels.sh [SUITE...]     default: bookworm trixie
#
# Dependencies are fetched from PyPI before the clock starts. It prints the size of each wheel, and of each tree the time from `pip install` to
# the first verdict. A wheel twinrun-cuda12 or twinrun-cuda13 in build/dist (tools/cuda_wheel.sh) is tried too, without a GPU.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
dist=$root/build/dist
trees=${TREES:-$root/build/trees}
work=$root/.cache/wheels
export PIP_CACHE_DIR=${PIP_CACHE_DIR:-$root/.cache/pip} PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

say() { printf 'test-wheels: %s\n' "$*"; }
fail() {
    printf 'test-wheels: %s\n' "$@" >&2
    exit 2
}

((EUID == 0)) || fail "root is needed: trees are made by debootstrap and entered by chroot"
compgen -G "$dist/*.whl" >/dev/null || fail "there is no wheel in build/dist: run make wheels"
command -v debootstrap >/dev/null || fail "debootstrap is not there: apt-get install debootstrap"

limit=25000000
for wheel in "$dist"/*.whl; do
    size=$(stat -c %s "$wheel")
    say "$(basename "$wheel"): $size bytes"
    ((size <= limit)) || fail "$(basename "$wheel") has $size bytes: more than $((limit / 1000000)) MB"
done

suites=("$@")
((${#suites[@]})) || suites=(bookworm trixie)
for suite in "${suites[@]}"; do
    tree=$trees/$suite
    if [[ ! -e $tree/usr/bin/python3 ]]; then
        say "making a tree of $suite"
        mkdir -p "$trees"
        # A suite that is newer than this debootstrap is made as sid is.
        if [[ ! -e /usr/share/debootstrap/scripts/$suite ]]; then
            rm -rf "$work/debootstrap" && cp -r /usr/share/debootstrap "$work/debootstrap"
            ln -s sid "$work/debootstrap/scripts/$suite"
            export DEBOOTSTRAP_DIR=$work/debootstrap
        fi
        debootstrap --variant=minbase --include=python3-venv "$suite" "$tree" >"$work/debootstrap-$suite.log" 2>&1 ||
            fail "debootstrap failed: see $work/debootstrap-$suite.log"
    fi
    for compiler in cc gcc g++ c++ clang cmake ninja make; do
        ! chroot "$tree" sh -c "command -v $compiler" >/dev/null || fail "$tree has $compiler: it is not bare"
    done
    version=$(chroot "$tree" python3 -c 'import sys; print(*sys.version_info[:2], sep=".")')
    house=$work/house-$version
    mkdir -p "$house"
    # Only wheels: nothing that had to be compiled would be a test of installing.
    "$work/tools/bin/pip" download --quiet --only-binary :all: --python-version "$version" --platform manylinux_2_28_x86_64 \
        --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --find-links "$dist" \
        --dest "$house" "twinrun[plot,ensemble]" >"$work/download-$version.log" 2>&1 || {
        tail -n 5 "$work/download-$version.log" >&2
        fail "the dependencies for Python $version could not be fetched (above)"
    }
    rm -rf "$tree/wheels" "$tree/try" && mkdir -p "$tree/try"
    cp -r "$house" "$tree/wheels"
    rm -f "$tree/wheels"/twinrun-*
    cp "$dist"/*.whl "$tree/wheels/"
    cp "$root/tools/test_wheel_inside.sh" "$tree/try/run.sh"
    mountpoint -q "$tree/proc" || mount -t proc proc "$tree/proc"
    mountpoint -q "$tree/dev" || mount --bind /dev "$tree/dev"
    say "$suite, Python $version, glibc $(chroot "$tree" ldd --version | sed -n '1s/.* //p')"
    status=0
    env -i HOME=/try PATH=/usr/bin:/bin LC_ALL=C.UTF-8 "$(command -v chroot)" "$tree" bash /try/run.sh || status=$?
    umount "$tree/dev" "$tree/proc"
    ((status == 0)) || fail "the wheel failed in $tree (above)"
done
say "all passed"
