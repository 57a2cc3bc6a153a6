#!/usr/bin/env bash
# Installs the build into a temporary folder, and builds and runs the example for VELOC with it. Needs from CMakeLists.txt:
# CMAKE, BUILD, SOURCE, LIBDIR, CC, MPICC, MPIEXEC.
set -euo pipefail

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe MPIR_CVAR_POLLS_BEFORE_YIELD=1
work=$(mktemp -d "${TMPDIR:-/tmp}/twinrun-veloc.XXXXXX")
trap 'rm -rf "$work"' EXIT
fail() {
    echo "install_test: $*" >&2
    exit 1
}

prefix=$work/prefix
"$CMAKE" --install "$BUILD" --prefix "$prefix" >"$work/install.log" || { cat "$work/install.log"; fail "install failed"; }
cp "$prefix/share/twinrun/examples/veloc/heatdis.c" "$work"
cd "$work"
export PKG_CONFIG_PATH=$prefix/$LIBDIR/pkgconfig

run() { # NAME PROGRAM: it checkpoints, and goes on from there
    printf 'scratch = %s/scratch\npersistent = %s\nmode = sync\ntwinrun_type_1 = f64\n' "$work/$1" "$work/$1" >"$1.cfg"
    "$MPIEXEC" -n 2 "$2" "$1.cfg" 40 30 20 10 >"$1.out" || fail "$1: the first run failed"
    "$MPIEXEC" -n 2 "$2" "$1.cfg" 40 30 20 10 >>"$1.out" || fail "$1: the second run failed"
    grep -q "restarted from step 20" "$1.out" || fail "$1: it did not restart"
    [[ $(grep -c "^$(grep -m 1 fingerprint "$1.out")" "$1.out") == 2 ]] || fail "$1: another result"
    [[ -d $work/$1/heatdis/step-0000000020 ]] || fail "$1: there is no history"
}

# shellcheck disable=SC2046  # flags are words
"$MPICC" -std=gnu11 heatdis.c -o with_pkg_config $(pkg-config --cflags --libs twinrun-veloc) "-Wl,-rpath,$prefix/$LIBDIR"
run pkg_config ./with_pkg_config

cat >CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.16)
project(heat LANGUAGES C)
find_package(MPI REQUIRED COMPONENTS C)
find_package(twinrun REQUIRED COMPONENTS veloc)
add_executable(with_cmake heatdis.c)
target_link_libraries(with_cmake PRIVATE twinrun::veloc MPI::MPI_C)
END
"$CMAKE" -S . -B out "-DCMAKE_C_COMPILER=$CC" "-DMPI_C_COMPILER=$MPICC" "-DCMAKE_PREFIX_PATH=$prefix" >configure.log 2>&1 ||
    { cat configure.log; fail "configure failed"; }
"$CMAKE" --build out >build.log 2>&1 || { cat build.log; fail "build failed"; }
run find_package out/with_cmake

# A program that was linked to VELOC's own library, here one that can do nothing.
nm -D --defined-only "$prefix/$LIBDIR/libtwinrun_veloc.so" | sed -n 's/.* T \(VELOC_.*\)/int \1(void);\nint \1(void) { return -1; }/p' >other.c
"$CC" -shared -fPIC other.c -o libveloc-client.so
"$MPICC" -std=gnu11 "-I$prefix/include/twinrun/veloc" heatdis.c -o linked_to_other -L. -lveloc-client "-Wl,-rpath,$work"
if "$MPIEXEC" -n 2 ./linked_to_other pkg_config.cfg 40 30 20 10 >/dev/null 2>&1; then fail "the other library did its work"; fi
printf '#!/bin/sh\nLD_PRELOAD=%s exec %s "$@"\n' "$prefix/$LIBDIR/libtwinrun_veloc.so" "$work/linked_to_other" >preloaded
chmod +x preloaded
run preload ./preloaded
echo done
