#!/usr/bin/env bash
# Builds everything on a machine with a GPU and runs all tests that need one: the C++ suites Device*, the Python tests with
# the marker gpu, and the C++ ones once more under each tool of compute-sanitizer. The summary comes last; exit status 1 if
# anything failed.
#
#   tools/gpu_tests.sh LOGS [STEP...]      steps: build cpp python sanitizer; all by default
#
# Needs no network and no root: CMake, Ninja, nvcc, and a python3 with nanobind, scikit-build-core, pytest, hypothesis and any
# of cupy, torch, jax and numba. From the environment:
#
#   TWINRUN_DEPS      a folder with unpacked Debian packages (usr/include, usr/lib/x86_64-linux-gnu): xxHash, nlohmann-json,
#                     GoogleTest, Google Benchmark, and liburing if reads should go through it. CMAKE_PREFIX_PATH works too
#   BUILD             build folder (build/gpu)
#   PYTHON            interpreter (python3)
#   JOBS              compilers at a time (all cores)
#   SANITIZER_TOOLS   (memcheck racecheck initcheck)
#   SANITIZER_FILTER  tests under the sanitizer, as a filter of GoogleTest (Device*:*/Device*)
#   SANITIZER_TIME    seconds for one program under one tool (240)
#
# Under the sanitizer TWINRUN_TEST_ROUNDS=1 is set: fewer rounds of random inputs.
set -uo pipefail

logs=${1:?usage: gpu_tests.sh LOGS [STEP...]}
shift
steps=${*:-build cpp python sanitizer}
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
mkdir -p "$logs" || exit 2
logs=$(cd "$logs" && pwd)
build=${BUILD:-$PWD/build/gpu}
python=${PYTHON:-python3}
jobs=${JOBS:-$(nproc)}
tools=${SANITIZER_TOOLS:-memcheck racecheck initcheck}
filter=${SANITIZER_FILTER:-Device*:*/Device*}
sanitizer_time=${SANITIZER_TIME:-240}
export PYTHONDONTWRITEBYTECODE=1
command -v nvcc >/dev/null || export PATH=$PATH:/usr/local/cuda/bin

if [[ -n ${TWINRUN_DEPS:-} ]]; then
    deps=$(cd "$TWINRUN_DEPS" && pwd) || exit 2
    export CMAKE_PREFIX_PATH=$deps/usr${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}
    libraries=$deps/usr/lib/$(uname -m)-linux-gnu
    export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    # A shared library there may need another one from there.
    export LDFLAGS="${LDFLAGS:-} -Wl,-rpath-link,$libraries"
fi

summary=$logs/summary.txt
: >"$summary"
failed=0
note() { # note ok|FAILED|skipped WHAT SECONDS DETAILS
    [[ $1 == FAILED ]] && failed=1
    printf '%-8s %-28s %5s s  %s\n' "$1" "$2" "$3" "$4" | tee -a "$summary"
}
has() { [[ " $steps " == *" $1 "* ]]; }

# ---- build ------------------------------------------------------------------------------------------------------------

# The architecture of the first device: compiling for others would only take time.
architecture() {
    local capability
    capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d '. ')
    if [[ $capability =~ ^[0-9]+$ ]]; then echo "$capability-real"; else echo native; fi
}

# Whether what a compiler makes uses the shared libstdc++.
links_shared() { # COMPILER
    printf '#include <iostream>\nint main() { std::cout << 1; }\n' | "$1" -x c++ - -o "$build/links" 2>/dev/null &&
        ldd "$build/links" | grep -q 'libstdc++\.so'
}

# Some images have a compiler that puts libstdc++ into every program. NVIDIA's cuFile brings the shared one into the process, and
# with both of them cuFileDriverOpen crashes: another compiler, then, if the system has one.
choose_compiler() {
    mkdir -p "$build"
    links_shared "${CXX:-c++}" && return
    local other
    for other in /usr/bin/g++ /usr/bin/clang++; do
        links_shared "$other" || continue
        note ok "compiler: $other" 0 "as ${CXX:-c++} puts libstdc++ into programs, beside cuFile's shared one"
        export CXX=$other CUDAHOSTCXX=$other CC=/usr/bin/clang
        if [[ $other == */g++ ]]; then CC=/usr/bin/gcc; fi
        return
    done
}

build_programs() {
    cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTWINRUN_CUDA=ON \
        -DTWINRUN_CUDA_ARCHITECTURES="${TWINRUN_CUDA_ARCHITECTURES:-$(architecture)}" \
        -DTWINRUN_BUILD_TESTS=ON -DTWINRUN_BUILD_BENCH=ON -DTWINRUN_BUILD_FUZZ=OFF -DTWINRUN_BUILD_APPS=OFF &&
        cmake --build "$build" -j "$jobs"
}

# Without the library for GPUs, which the other build makes: it is put beside the module afterwards.
build_package() {
    rm -rf "$build/site"
    CMAKE_ARGS="${CMAKE_ARGS:-} -DTWINRUN_CUDA=OFF" SKBUILD_BUILD_DIR=$build/python CMAKE_BUILD_PARALLEL_LEVEL=$jobs \
        "$python" -m pip install --no-build-isolation --no-deps --no-index --disable-pip-version-check \
        --target "$build/site" .
}

if has build; then
    choose_compiler
    began=$SECONDS
    build_package >"$logs/build_package.part" 2>&1 &
    package=$!
    build_programs >"$logs/build.log" 2>&1
    status=$?
    note "$([[ $status == 0 ]] && echo ok || echo FAILED)" "build of C++ and CUDA" $((SECONDS - began)) \
        "$(grep -c -i 'warning' "$logs/build.log") lines with warnings"
    wait "$package"
    package_status=$?
    cat "$logs/build_package.part" >>"$logs/build.log"
    rm -f "$logs/build_package.part"
    note "$([[ $package_status == 0 ]] && echo ok || echo FAILED)" "build of the Python package" $((SECONDS - began)) ""
    if [[ $status != 0 || $package_status != 0 ]]; then
        grep -n -i -B2 -A6 'error' "$logs/build.log" | head -n 60
        exit 1
    fi
fi
if [[ -e $build/bin/libtwinrun_cuda.so && -d $build/site/twinrun ]]; then
    ln -sfn "$build/bin/libtwinrun_cuda.so" "$build/site/twinrun/libtwinrun_cuda.so"
fi
export PYTHONPATH=$build/site${PYTHONPATH:+:$PYTHONPATH}

# ---- C++ tests --------------------------------------------------------------------------------------------------------

# Reasons of skipped tests, the first of them once; nothing if one of them is the want of a GPU.
skip_reason() { # LOG
    local reasons
    reasons=$(sed -n '/: Skipped$/{n;p}' "$1")
    grep -q -E "$no_gpu" <<<"$reasons" || head -n 1 <<<"$reasons"
}
no_gpu='libtwinrun_cuda|TWINRUN_CUDA_LIBRARY|NVIDIA driver|update the driver|devices cannot be counted|finds no device'
no_gpu+='|no device can be used|belongs to another version'

programs=()
for program in "$build"/bin/test_*; do
    [[ -x $program ]] || continue
    if "$program" --gtest_list_tests --gtest_filter='Device*:*/Device*' 2>/dev/null | grep -q '^ '; then
        programs+=("$program")
    fi
done

variables=()  # for programs of C++
if ((${#programs[@]} > 0)) && { has cpp || has sanitizer; } && ! ldd "${programs[0]}" 2>/dev/null | grep -q 'libstdc++\.so'; then
    variables=(TWINRUN_CUFILE_LIBRARY=/left/out)
    note skipped "GPUDirect Storage" 0 "cuFile cannot be used by programs that hold libstdc++: build them with another compiler"
fi

if has cpp; then
    : >"$logs/cpp.log"
    ((${#programs[@]} > 0)) || note FAILED "C++ tests" 0 "no test of a suite Device* was built"
    for program in "${programs[@]}"; do
        began=$SECONDS
        timeout 180 env "${variables[@]}" "$program" --gtest_filter='Device*:*/Device*' --gtest_color=no >"$logs/one.part" 2>&1
        status=$?
        passed=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) tests*.*/\1/p' "$logs/one.part")
        skipped=$(sed -n 's/^\[  SKIPPED \] \([0-9]*\) tests*, listed below.*/\1/p' "$logs/one.part")
        said="${passed:-0} passed, ${skipped:-0} skipped"
        if [[ $status == 124 ]]; then said+=", ran out of time"; fi
        if ((status > 128)); then said+=", signal $((status - 128)) in $(grep '^\[ RUN' "$logs/one.part" | tail -n 1 | cut -c 14-)"; fi
        # Skipped for want of a GPU is no success here; for want of something else it is neither.
        state=FAILED
        if [[ $status == 0 && ${passed:-0} -gt 0 ]]; then
            state=ok
        elif [[ $status == 0 && ${skipped:-0} -gt 0 ]] && reason=$(skip_reason "$logs/one.part") && [[ -n $reason ]]; then
            state=skipped said+=": $reason"
        fi
        note $state "${program##*/}" $((SECONDS - began)) "$said"
        { echo "==== ${program##*/}: status $status"; cat "$logs/one.part"; } >>"$logs/cpp.log"
    done
    rm -f "$logs/one.part"
    for program in "$build"/bin/bench_device*; do
        [[ -x $program ]] || continue
        began=$SECONDS
        { echo "==== ${program##*/}"; timeout 60 "$program"; } >>"$logs/cpp.log" 2>&1
        status=$?
        note "$([[ $status == 0 ]] && echo ok || echo FAILED)" "${program##*/}" $((SECONDS - began)) "its lines: cpp.log"
    done
fi

# ---- Python tests -----------------------------------------------------------------------------------------------------

if has python; then
    began=$SECONDS
    {
        "$python" -m twinrun show --system --devices
        "$python" - <<'END'
import importlib
for name in ("numpy", "cupy", "torch", "jax", "numba", "h5py", "xxhash"):
    try:
        print(name, importlib.import_module(name).__version__)
    except Exception as e:
        print(name, "is not there:", e)
END
    } >"$logs/python.log" 2>&1
    mapfile -t files < <({ ls tests/python/capture/test_device*.py; grep -rl --include='test_*.py' 'mark\.gpu' tests/python; } | sort -u)
    mkdir -p "$build/tmp"
    TMPDIR=$build/tmp XLA_PYTHON_CLIENT_PREALLOCATE=false timeout 240 "$python" -m pytest -o cache_dir="$build/pytest" \
        --durations=10 "${files[@]}" >>"$logs/python.log" 2>&1
    status=$?
    last=$(grep -E '^(=+ )?[0-9]+ (passed|failed|skipped|error)' "$logs/python.log" | tail -n 1 | tr -d '=')
    gpu_skips=$(grep -c 'SKIPPED.*no GPU can be used' "$logs/python.log")
    if [[ $status == 0 && $gpu_skips == 0 ]]; then state=ok; else state=FAILED; fi
    note $state "Python tests" $((SECONDS - began)) "${last:-status $status}"
    if [[ $state == FAILED ]]; then grep -E '^(FAILED|ERROR)|^E  ' "$logs/python.log" | head -n 40; fi
fi

# ---- the same under compute-sanitizer ---------------------------------------------------------------------------------

if has sanitizer; then
    sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
    if [[ -z $sanitizer ]]; then
        note skipped "compute-sanitizer" 0 "it is not installed"
    else
        began=$SECONDS
        # All at once: most of the time is the sanitizer's own, on one core each.
        # Calls that fail are checked where they are made, some fail on purpose, and one does within NVIDIA's libcufile. The gaps
        # that alignment leaves in what is copied back in one piece are never written.
        declare -A options=([memcheck]="--report-api-errors no" [initcheck]="--check-api-memory-access no")
        for tool in $tools; do
            for program in "${programs[@]}"; do
                name=$tool.${program##*/}
                (
                    # shellcheck disable=SC2086
                    timeout "$sanitizer_time" env TWINRUN_TEST_ROUNDS=1 "${variables[@]}" "$sanitizer" --tool "$tool" ${options[$tool]:-} --error-exitcode 9 \
                        --print-limit 20 "$program" --gtest_filter="$filter" --gtest_color=no >"$logs/$name.part" 2>&1
                    echo "$? $SECONDS" >"$logs/$name.status"
                ) &
            done
        done
        wait
        for tool in $tools; do
            : >"$logs/$tool.log"
            for program in "${programs[@]}"; do
                name=$tool.${program##*/}
                read -r status ended <"$logs/$name.status"
                errors=$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$logs/$name.part" | tail -n 1 | sed 's/^=* *//')
                passed=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) tests*.*/\1/p' "$logs/$name.part")
                case $status in
                0) if [[ ${passed:-0} -gt 0 ]]; then state=ok; elif [[ -n $(skip_reason "$logs/$name.part") ]]; then state=skipped; else state=FAILED; fi ;;
                *) state=FAILED ;;
                esac
                # Tests that pass without a device leave the sanitizer nothing to look at, which it calls an error.
                if [[ ${passed:-0} -gt 0 ]] && grep -q 'terminated before first instrumented API call' "$logs/$name.part"; then
                    state=skipped errors="none of its tests uses a device"
                fi
                if grep -q '^\[=*\] Running 0 tests' "$logs/$name.part"; then state=skipped errors="none of its tests is asked for"; fi
                [[ $status == 124 ]] && errors="ran out of its $sanitizer_time s at $(grep '^\[ RUN' "$logs/$name.part" | tail -n 1 | cut -c 14-)"
                note $state "$tool ${program##*/}" $((ended - began)) "${passed:-0} passed; ${errors:-status $status}"
                { echo "==== $name: status $status"; cat "$logs/$name.part"; } >>"$logs/$tool.log"
                rm -f "$logs/$name.part" "$logs/$name.status"
            done
        done
    fi
fi

echo "---- summary (logs: $logs)"
cat "$summary"
if ((failed)); then echo "gpu tests: FAILED"; else echo "gpu tests: ok"; fi
exit $failed
