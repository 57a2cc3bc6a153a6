#!/usr/bin/env bash
# Installs the build into a temporary folder, moves that folder, and builds and runs programs with it that know nothing of this
# tree. Needs from tests/CMakeLists.txt: CMAKE, BUILD, SOURCE, LIBDIR, CC, CXX, FC (empty: no Fortran), KOKKOS (1 or empty), MPICC (empty:
# no MPI), MPIEXEC, MPI_INCLUDE (folders of mpi.h, with : between them); for docs also PYTHON, whose twinrun compares.
#
# usage: install_test.sh find_package|pkg_config|headers|files|docs
set -euo pipefail

work=$(mktemp -d "${TMPDIR:-/tmp}/twinrun-install.XXXXXX")
trap 'rm -rf "$work"' EXIT
fail() {
    echo "install_test: $*" >&2
    exit 1
}

"$CMAKE" --install "$BUILD" --prefix "$work/first" >"$work/install.log" || { cat "$work/install.log"; fail "install failed"; }
mv "$work/first" "$work/prefix"  # nothing may remember where it was installed
prefix=$work/prefix
cp -r "$SOURCE/tests/install/programs" "$work/programs"
# The examples as whoever installed twinrun has them.
capture=$prefix/share/twinrun/examples/capture
compare=$prefix/share/twinrun/examples/compare
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe MPIR_CVAR_POLLS_BEFORE_YIELD=1
cd "$work"

# simulate NAME PROGRAM: a run in one go, and one that stops half-way and goes on, end alike.
simulate() {
    local name=$1 program=$2 straight resumed
    straight=$("$program" "$work/$name-straight" 40) || fail "$name: the run failed"
    "$program" "$work/$name-resumed" 20 >/dev/null || fail "$name: the first half failed"
    resumed=$("$program" "$work/$name-resumed" 40) || fail "$name: the second half failed"
    [[ -n $straight && $straight == "$resumed" ]] || fail "$name: '$straight' in one go, '$resumed' in two"
    [[ -d $work/$name-straight/step-0000000040 ]] || fail "$name: step 40 is not there"
    # Whatever the language: within the tolerance it is the run of the C program. The settings come from outside. Ranks have the same sum.
    if [[ $name == *-ranks ]]; then
        [[ $straight == "$("$work/out/capture_c" "$work/$name-c" 40)" ]] || fail "$name: '$straight' is not the sum of one process"
    elif [[ $name != c && -d $work/c-straight ]]; then
        printf 'reference = %s\nstop_on_divergence = true\n' "$work/c-straight" >"$work/against-c"
        TWINRUN_SETTINGS=$work/against-c "$program" "$work/$name-against-c" 40 >/dev/null || fail "$name: differs from C"
    fi
    echo "$name: $straight"
}

# compare NAME PROGRAM: two runs of the same program are the same, one of fewer steps cannot be compared, and status says so.
compare() {
    local name=$1 program=$2 status=0
    "$program" "$work/c-straight" "$work/c-resumed" >compare.out || fail "$name: status $? of runs that are the same: $(cat compare.out)"
    grep -q '^same: ' compare.out || fail "$name: $(cat compare.out)"
    [[ -d $work/c-shorter ]] || $3 "$work/c-shorter" 30 >/dev/null || fail "c: the shorter run failed"
    "$program" "$work/c-straight" "$work/c-shorter" >compare.out 2>&1 || status=$?
    [[ $status == 2 ]] && grep -q 'step 40' compare.out || fail "$name: status $status of runs of other lengths: $(cat compare.out)"
    status=0
    "$program" "$work/c-straight" "$work/nothing" >compare.out 2>&1 || status=$?
    [[ $status == 2 ]] && grep -q 'nothing' compare.out || fail "$name: status $status without a history: $(cat compare.out)"
    echo "$name: compares"
}

# collective NAME PROGRAM: collective writes of three ranks are aggregated, and the file has every rank's numbers.
collective() {
    local name=$1 program=$2
    TWINRUN_MPIIO_REPORT=1 "$MPIEXEC" -n 3 "$program" "$work/$name.bin" 2>"$name.err" || { cat "$name.err"; fail "$name: the program failed"; }
    grep -q ': 1 collective calls aggregated by 1 plans, 0 by MPI-IO$' "$name.err" || fail "$name: MPI-IO without twinrun: $(cat "$name.err")"
    [[ $(od -An -v -w4 -t d4 "$work/$name.bin" | tr -d ' ') == "$(seq 0 2999)" ]] || fail "$name: another file"
}

case $1 in
find_package)
    options=(-DCMAKE_BUILD_TYPE=Release "-DCMAKE_C_COMPILER=$CC" "-DCMAKE_CXX_COMPILER=$CXX" "-DCMAKE_PREFIX_PATH=$prefix")
    [[ -z $FC ]] || options+=("-DCMAKE_Fortran_COMPILER=$FC")
    [[ -z $MPICC ]] || options+=("-DMPI_C_COMPILER=$MPICC")
    build() { # SOURCE OUT [OPTION...]: in a folder of its own
        local source=$1 out=$2
        shift 2
        "$CMAKE" -S "$source" -B "$out" "${options[@]}" "$@" >configure.log 2>&1 || { cat configure.log; fail "$source: configure failed"; }
        "$CMAKE" --build "$out" >build.log 2>&1 || { cat build.log; fail "$source: build failed"; }
    }
    build "$capture" out
    simulate c out/capture_c
    simulate cpp out/capture_cpp
    [[ -z $FC ]] || simulate fortran out/capture_f
    [[ -z $KOKKOS ]] || simulate kokkos out/capture_kokkos
    if [[ -n $MPICC ]]; then
        simulate mpi out/capture_mpi
        printf '#!/bin/sh\nexec "%s" -n 3 "%s" "$@"\n' "$MPIEXEC" "$work/out/capture_mpi" >mpi_ranks
        chmod +x mpi_ranks
        simulate mpi-ranks ./mpi_ranks
    fi
    build "$compare" out-compare
    compare c out-compare/compare_c out/capture_c
    compare cpp out-compare/compare_cpp out/capture_c
    [[ -z $FC ]] || compare fortran out-compare/compare_f out/capture_c
    build programs out-programs "-DWITH_MPI=$([[ -n $MPICC ]] && echo ON || echo OFF)"
    if [[ -n $MPICC ]]; then
        out-programs/error_text || fail "the aggregation alone: not one text of errors"
        out-programs/error_text_all || fail "all libraries: not one text of errors"
        collective find_package out-programs/collective_write
    fi
    ;;
pkg_config)
    export PKG_CONFIG_PATH=$prefix/$LIBDIR/pkgconfig LD_LIBRARY_PATH=$prefix/$LIBDIR
    [[ $(pkg-config --variable=prefix twinrun | xargs realpath) == "$(realpath "$prefix")" ]] || fail "twinrun.pc: wrong prefix"
    # shellcheck disable=SC2046  # flags are words
    "$CC" "$capture"/capture.c -o capture_c $(pkg-config --cflags --libs twinrun)
    simulate c ./capture_c
    # shellcheck disable=SC2046
    "$CXX" -std=c++17 "$capture"/capture.cpp -o capture_cpp $(pkg-config --cflags --libs twinrun)
    simulate cpp ./capture_cpp
    # shellcheck disable=SC2046
    "$CC" "$compare"/compare.c -o compare_c $(pkg-config --cflags --libs twinrun)
    compare c ./compare_c ./capture_c
    if [[ -n $FC ]]; then
        # shellcheck disable=SC2046
        "$FC" "$capture"/capture.f90 -o capture_f $(pkg-config --cflags --libs twinrun-fortran)
        simulate fortran ./capture_f
        # A compiler that cannot read our .mod file has the source.
        # shellcheck disable=SC2046
        "$FC" "$prefix/share/twinrun/fortran/twinrun.f90" "$capture"/capture.f90 -o capture_f_source \
            $(pkg-config --libs twinrun)
        simulate fortran-source ./capture_f_source
    fi
    if [[ -n $MPICC ]]; then
        # shellcheck disable=SC2046
        "$MPICC" programs/error_text.c -o error_text $(pkg-config --cflags --libs twinrun-aggregate)
        ./error_text || fail "the aggregation alone: not one text of errors"
        # shellcheck disable=SC2046
        "$MPICC" programs/collective_write.c -o collective_write $(pkg-config --cflags --libs twinrun-mpiio)
        collective pkg_config ./collective_write
        # Whatever comes first.
        for order in "twinrun-aggregate twinrun-mpi twinrun-veloc" "twinrun-veloc twinrun twinrun-aggregate"; do
            # shellcheck disable=SC2046,SC2086
            "$MPICC" -DWITH_RUN programs/error_text.c -o error_text_all $(pkg-config --cflags --libs $order)
            ./error_text_all || fail "$order: not one text of errors"
        done
    fi
    ;;
headers)
    strict=(-Wall -Wextra -pedantic -Werror -fsyntax-only "-I$prefix/include")
    alone=(twinrun/status.h twinrun/twinrun.h twinrun/compare.h)
    if [[ -n $MPICC ]]; then
        alone+=(twinrun/mpi.h twinrun/aggregate.h twinrun/veloc/veloc.h)
        strict+=(-DOMPI_SKIP_MPICXX=1 -DMPICH_SKIP_MPICXX=1)
        while IFS= read -r folder; do strict+=(-isystem "$folder"); done < <(tr ':' '\n' <<<"$MPI_INCLUDE")
    fi
    # Each header after nothing else, and twice.
    for header in "${alone[@]}"; do
        for standard in c99 c11 c++11 c++17 c++20; do
            language=c compiler=$CC
            if [[ $standard == c++* ]]; then language=c++ compiler=$CXX; fi
            printf '#include <%s>\n#include <%s>\nint main(void) { return 0; }\n' "$header" "$header" |
                "$compiler" "-std=$standard" "${strict[@]}" -x "$language" - || fail "$header alone as $standard"
        done
    done
    # The version is written in headers and in the Fortran module too: the build notices one that was forgotten.
    has_version() { # MAJOR MINOR PATCH
        "$CMAKE" "-DPROJECT_SOURCE_DIR=$SOURCE" "-DPROJECT_VERSION=$1.$2.$3" "-DPROJECT_VERSION_MAJOR=$1" \
            "-DPROJECT_VERSION_MINOR=$2" "-DPROJECT_VERSION_PATCH=$3" -P "$SOURCE/cmake/TwinrunVersion.cmake" >/dev/null 2>&1
    }
    IFS=. read -r major minor patch < <(sed -n 's/^Version: //p' "$prefix/$LIBDIR/pkgconfig/twinrun.pc")
    has_version "$major" "$minor" "$patch" || fail "headers or the Fortran module are not of version $major.$minor.$patch"
    for other in "$((major + 1)) $minor $patch" "$major $((minor + 1)) $patch" "$major $minor $((patch + 1))"; do
        # shellcheck disable=SC2086
        if has_version $other; then fail "headers pass for those of version $other"; fi
    done
    # Structures lie as in version 0.1, for C and for C++.
    pins=(core/capi/pins.h)
    [[ -z $MPICC ]] || pins+=(aggregate/mpi/pins.h)
    for pin in "${pins[@]}"; do
        "$CC" -std=c11 "${strict[@]}" "-I$SOURCE/tests" -x c "$SOURCE/tests/$pin" || fail "$pin in C"
        "$CXX" -std=c++17 "${strict[@]}" "-I$SOURCE/tests" -x c++ "$SOURCE/tests/$pin" || fail "$pin in C++"
    done
    for standard in c99 c11 c17 gnu17; do
        "$CC" "-std=$standard" "${strict[@]}" "$capture"/capture.c || fail "twinrun.h as $standard"
        # Twice, and after nothing else.
        printf '#include <twinrun/twinrun.h>\n#include <twinrun/twinrun.h>\ntwr_array a = TWR_ARRAY_INIT;\n' |
            "$CC" "-std=$standard" "${strict[@]}" -x c - || fail "twinrun.h alone as $standard"
    done
    for standard in c++17 c++20 c++2b; do
        printf '#include <twinrun/twinrun.h>\ntwr_array a = TWR_ARRAY_INIT;\n' |
            "$CXX" "-std=$standard" "${strict[@]}" -x c++ - || fail "twinrun.h as $standard"
        "$CXX" "-std=$standard" "${strict[@]}" -Wshadow -Wconversion "$capture"/capture.cpp || fail "twinrun.hpp as $standard"
    done
    "$CC" -std=c99 "${strict[@]}" "$compare"/compare.c || fail "compare.h as c99"
    for standard in c++17 c++20 c++2b; do
        "$CXX" "-std=$standard" "${strict[@]}" -Wshadow -Wconversion "$compare"/compare.cpp || fail "compare.hpp as $standard"
    done
    for standard in c++98 c++11; do
        printf '#include <twinrun/twinrun.h>\n#include <twinrun/compare.h>\n' | "$CXX" "-std=$standard" "${strict[@]}" -x c++ - || fail "twinrun.h as $standard"
    done
    ;;
files)
    # No header of the core, no path of the build, none of the place it was installed to first.
    for wanted in include/twinrun/status.h include/twinrun/twinrun.h include/twinrun/twinrun.hpp \
        include/twinrun/compare.h include/twinrun/compare.hpp include/twinrun/kokkos.hpp "$LIBDIR/libtwinrun.so" \
        "$LIBDIR/pkgconfig/twinrun.pc" "$LIBDIR/cmake/twinrun/twinrunConfig.cmake" \
        "$LIBDIR/cmake/twinrun/twinrunConfigVersion.cmake" \
        share/twinrun/examples/{capture,compare}/CMakeLists.txt share/twinrun/examples/veloc/heatdis.c; do
        [[ -e $prefix/$wanted ]] || fail "$wanted is not installed"
    done
    if [[ -n $MPICC ]]; then
        for wanted in mpi veloc aggregate mpiio; do
            [[ -e $prefix/$LIBDIR/libtwinrun_$wanted.so && -e $prefix/$LIBDIR/pkgconfig/twinrun-$wanted.pc &&
                -e $prefix/$LIBDIR/cmake/twinrun/twinrun-${wanted}Targets.cmake ]] || fail "$wanted is not installed whole"
        done
        # HDF5 opens each file of this folder.
        [[ $(ls "$prefix/$LIBDIR/twinrun/hdf5") == libtwinrun_hdf5.so ]] || fail "the HDF5 driver is not installed alone in its folder"
    fi
    if grep -rlE "$work/first|$BUILD" "$prefix" --include='*.cmake' --include='*.pc'; then fail "these hold absolute paths"; fi
    [[ -z $(find "$prefix" -name '*.a' -o -name 'result.hpp') ]] || fail "the core is installed"
    while IFS= read -r library; do
        path=$(readelf -d "$library" | sed -n 's/.*\(RUNPATH\|RPATH\).*\[\(.*\)\]/\2/p')
        [[ $path != *"$BUILD"* ]] || fail "$library looks for libraries in the build folder: $path"
    done < <(find "$prefix" -name '*.so.*.*' -type f)
    ;;
docs)
    # The tutorials that need what is installed print what they say. Those whose compiler or MPI is not there are named, and left out.
    [[ -z $MPIEXEC ]] || PATH=$(dirname "$MPIEXEC"):$PATH
    TWINRUN_PREFIX=$prefix "$PYTHON" "$SOURCE/tools/docs_run.py" "$SOURCE"/docs/tutorials/{c-mpi,fortran}.md ||
        fail "a tutorial does not print what it says (above)"
    ;;
*) fail "what is '$1'?" ;;
esac
