#!/usr/bin/env bash
# IOR with MPI-IO, for the tests and the table of libtwinrun_mpiio. The tests skip without it.
#
#   tools/build_ior.sh PREFIX SOURCE [CONFIGURE_OPTION...]
#
# SOURCE is a folder or an archive of IOR's source, version 4. PREFIX gets bin/ior; the build is made in a new folder of PREFIX, which is
# removed, and SOURCE stays as it is. MPICC names the MPI compiler (mpicc on the PATH, otherwise that of .venv). A source without the file
# configure, as in IOR's repository, needs autoconf and automake. Then run the tests with it:
#
#   TWINRUN_IOR=PREFIX/bin/ior ctest --test-dir build/release -R mpiio/ior
#
# With HDF5 (its `-a HDF5`), for the HDF5 that tools/build_hdf5.sh made in HDF5: --with-hdf5 CPPFLAGS=-IHDF5/include
# LDFLAGS="-LHDF5/lib -Wl,-rpath,HDF5/lib"
set -euo pipefail

if (($# < 2)); then
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2
    exit 2
fi
fail() {
    printf 'build_ior: %s\n' "$*" >&2
    exit 1
}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source=$(realpath "$2")
mkdir -p "$1"
prefix=$(cd "$1" && pwd)
shift 2
mpicc=${MPICC:-$(command -v mpicc || echo "$root/.venv/bin/mpicc")}
if [[ ! -x $mpicc ]]; then fail "no MPI compiler at $mpicc: put mpicc on the PATH, or name it in MPICC"; fi
build=$(mktemp -d "$prefix/build-XXXXXX")
trap 'rm -rf "$build"' EXIT
if [[ -d $source ]]; then
    cp -R "$source/." "$build"
else
    tar -x -f "$source" -C "$build"
    # Archives of releases have one folder.
    if [[ ! -f $build/configure.ac ]]; then
        inner=("$build"/*)
        build_in=${inner[0]}
    fi
fi
cd "${build_in:-$build}"
if [[ ! -f src/aiori-MPIIO.c ]]; then fail "$source is not the source of IOR"; fi
if [[ ! -f configure ]]; then
    if ! command -v autoreconf >/dev/null || ! command -v automake >/dev/null; then
        fail "$source has no configure: install autoconf and automake, which make it"
    fi
    ./bootstrap >bootstrap.log 2>&1 || { tail -n 20 bootstrap.log >&2 && fail "bootstrap failed"; }
fi
./configure --prefix="$prefix" CC="$mpicc" MPICC="$mpicc" CFLAGS=-O2 --with-mpiio --with-posix --without-ncmpi "$@" >configure.out 2>&1 ||
    { tail -n 20 configure.out >&2 && fail "configure failed"; }
make -j "${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}" -C src ior >make.out 2>&1 || { tail -n 40 make.out >&2 && fail "make failed"; }
mkdir -p "$prefix/bin"
cp src/ior "$prefix/bin/ior"
printf 'build_ior: %s\n' "$prefix/bin/ior"
