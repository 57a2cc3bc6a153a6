#!/usr/bin/env bash
# Parallel HDF5 with its subfiling driver, for the tests and the table of the HDF5 driver (src/aggregate/hdf5). The tests skip without it.
#
#   tools/build_hdf5.sh PREFIX SOURCE [CMAKE_OPTION...]
#
# SOURCE is an unpacked HDF5 1.14, such as apt-get source hdf5 gives on Debian 13. PREFIX gets bin, include and lib; the build is made in
# a new folder of PREFIX, which is removed. MPICC names the MPI compiler (mpicc on the PATH, otherwise that of .venv). Then run the tests with it:
#
#   cmake --preset release -DTWINRUN_HDF5=PREFIX && cmake --build --preset release && ctest --test-dir build/release -R aggregate/hdf5
#
# For h5py's test, -DTWINRUN_HDF5_PYTHON names a Python with mpi4py and this h5py:
#
#   CC=MPICC HDF5_MPI=ON HDF5_DIR=PREFIX pip install --no-binary=h5py h5py
#
# tools/mpi_matrix.sh calls this for each MPI, where TWINRUN_HDF5_SOURCE names SOURCE.
set -euo pipefail

if (($# < 2)); then
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2
    exit 2
fi
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source=$(cd "$2" && pwd)
mkdir -p "$1"
prefix=$(cd "$1" && pwd)
shift 2
mpicc=${MPICC:-$(command -v mpicc || echo "$root/.venv/bin/mpicc")}
if [[ ! -x $mpicc ]]; then
    printf 'build_hdf5: no MPI compiler at %s: put mpicc on the PATH, or name it in MPICC\n' "$mpicc" >&2
    exit 1
fi
if [[ ! -f $source/src/H5FDmodule.h ]]; then
    printf 'build_hdf5: %s is not the source of HDF5\n' "$source" >&2
    exit 1
fi
build=$(mktemp -d "$prefix/build-XXXXXX")
trap 'rm -rf "$build"' EXIT
cmake -S "$source" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_C_COMPILER="$mpicc" \
    -DMPI_C_COMPILER="$mpicc" -DMPIEXEC_EXECUTABLE="$(dirname "$mpicc")/mpiexec" -DHDF5_ENABLE_PARALLEL=ON -DHDF5_ENABLE_SUBFILING_VFD=ON \
    -DBUILD_SHARED_LIBS=ON -DBUILD_STATIC_LIBS=OFF -DBUILD_TESTING=OFF -DHDF5_BUILD_EXAMPLES=OFF -DHDF5_BUILD_CPP_LIB=OFF \
    -DHDF5_BUILD_FORTRAN=OFF -DHDF5_BUILD_JAVA=OFF -DHDF5_ENABLE_SZIP_SUPPORT=OFF -DHDF5_ENABLE_Z_LIB_SUPPORT=OFF "$@"
cmake --build "$build" --parallel "${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}"
cmake --install "$build" >/dev/null
printf 'build_hdf5: parallel HDF5 is in %s\n' "$prefix"
