#!/usr/bin/env bash
# Installs the build into a temporary folder, moves that folder, and builds and runs programs with it that know nothing of this
# tree. Needs from tests/CMakeLists.txt: CMAKE, BUILD, SOURCE, LIBDIR, CC, CXX, FC (empty: no Fortran), KOKKOS (1 or empty).
#
# usage: install_test.sh find_package|pkg_config|headers|files
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
cd "$work"

# simulate NAME PROGRAM: a run in one go, and one that stops half-way and goes on, end alike.
simulate() {
    local name=$1 program=$2 straight resumed
    straight=$("$program" "$work/$name-straight" 40) || fail "$name: the run failed"
    "$program" "$work/$name-resumed" 20 >/dev/null || fail "$name: the first half failed"
    resumed=$("$program" "$work/$name-resumed" 40) || fail "$name: the second half failed"
    [[ -n $straight && $straight == "$resumed" ]] || fail "$name: '$straight' in one go, '$resumed' in two"
    [[ -d $work/$name-straight/step-0000000040 ]] || fail "$name: step 40 is not there"
    # Whatever the language: within the tolerance it is the run of the C program. The settings come from outside.
    if [[ $name != c && -d $work/c-straight ]]; then
        printf 'reference = %s\nstop_on_divergence = true\n' "$work/c-straight" >"$work/against-c"
        TWINRUN_SETTINGS=$work/against-c "$program" "$work/$name-against-c" 40 >/dev/null || fail "$name: differs from C"
    fi
    echo "$name: $straight"
}

case $1 in
find_package)
    options=(-DWITH_FORTRAN=OFF -DWITH_KOKKOS=OFF)
    [[ -z $FC ]] || options+=(-DWITH_FORTRAN=ON "-DCMAKE_Fortran_COMPILER=$FC")
    [[ -z $KOKKOS ]] || options+=(-DWITH_KOKKOS=ON)
    "$CMAKE" -S programs -B out -DCMAKE_BUILD_TYPE=Release "-DCMAKE_C_COMPILER=$CC" "-DCMAKE_CXX_COMPILER=$CXX" \
        "-DCMAKE_PREFIX_PATH=$prefix" "${options[@]}" >configure.log 2>&1 || { cat configure.log; fail "configure failed"; }
    "$CMAKE" --build out >build.log 2>&1 || { cat build.log; fail "build failed"; }
    simulate c out/capture_c
    simulate cpp out/capture_cpp
    [[ -z $FC ]] || simulate fortran out/capture_f
    [[ -z $KOKKOS ]] || simulate kokkos out/capture_kokkos
    ;;
pkg_config)
    export PKG_CONFIG_PATH=$prefix/$LIBDIR/pkgconfig LD_LIBRARY_PATH=$prefix/$LIBDIR
    [[ $(pkg-config --variable=prefix twinrun | xargs realpath) == "$(realpath "$prefix")" ]] || fail "twinrun.pc: wrong prefix"
    # shellcheck disable=SC2046  # flags are words
    "$CC" programs/capture.c -o capture_c $(pkg-config --cflags --libs twinrun)
    simulate c ./capture_c
    # shellcheck disable=SC2046
    "$CXX" -std=c++17 programs/capture.cpp -o capture_cpp $(pkg-config --cflags --libs twinrun)
    simulate cpp ./capture_cpp
    if [[ -n $FC ]]; then
        # shellcheck disable=SC2046
        "$FC" programs/capture.f90 -o capture_f $(pkg-config --cflags --libs twinrun-fortran)
        simulate fortran ./capture_f
        # A compiler that cannot read our .mod file has the source.
        # shellcheck disable=SC2046
        "$FC" "$prefix/share/twinrun/fortran/twinrun.f90" programs/capture.f90 -o capture_f_source \
            $(pkg-config --libs twinrun)
        simulate fortran-source ./capture_f_source
    fi
    ;;
headers)
    strict=(-Wall -Wextra -pedantic -Werror -fsyntax-only "-I$prefix/include")
    for standard in c99 c11 c17 gnu17; do
        "$CC" "-std=$standard" "${strict[@]}" programs/capture.c || fail "twinrun.h as $standard"
        # Twice, and after nothing else.
        printf '#include <twinrun/twinrun.h>\n#include <twinrun/twinrun.h>\ntwr_array a = TWR_ARRAY_INIT;\n' |
            "$CC" "-std=$standard" "${strict[@]}" -x c - || fail "twinrun.h alone as $standard"
    done
    for standard in c++17 c++20 c++2b; do
        printf '#include <twinrun/twinrun.h>\ntwr_array a = TWR_ARRAY_INIT;\n' |
            "$CXX" "-std=$standard" "${strict[@]}" -x c++ - || fail "twinrun.h as $standard"
        "$CXX" "-std=$standard" "${strict[@]}" -Wshadow -Wconversion programs/capture.cpp || fail "twinrun.hpp as $standard"
    done
    for standard in c++98 c++11; do
        printf '#include <twinrun/twinrun.h>\n' | "$CXX" "-std=$standard" "${strict[@]}" -x c++ - || fail "twinrun.h as $standard"
    done
    ;;
files)
    # No header of the core, no path of the build, none of the place it was installed to first.
    for wanted in include/twinrun/twinrun.h include/twinrun/twinrun.hpp include/twinrun/kokkos.hpp "$LIBDIR/libtwinrun.so" \
        "$LIBDIR/pkgconfig/twinrun.pc" "$LIBDIR/cmake/twinrun/twinrunConfig.cmake" \
        "$LIBDIR/cmake/twinrun/twinrunConfigVersion.cmake"; do
        [[ -e $prefix/$wanted ]] || fail "$wanted is not installed"
    done
    if grep -rlE "$work/first|$BUILD" "$prefix" --include='*.cmake' --include='*.pc'; then fail "these hold absolute paths"; fi
    [[ -z $(find "$prefix" -name '*.a' -o -name 'result.hpp') ]] || fail "the core is installed"
    while IFS= read -r library; do
        path=$(readelf -d "$library" | sed -n 's/.*\(RUNPATH\|RPATH\).*\[\(.*\)\]/\2/p')
        [[ $path != *"$BUILD"* ]] || fail "$library looks for libraries in the build folder: $path"
    done < <(find "$prefix" -name '*.so.*.*' -type f)
    ;;
*) fail "what is '$1'?" ;;
esac
