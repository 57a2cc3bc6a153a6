#!/usr/bin/env bash
# usage: fuzz.sh FOLDER_OF_FUZZERS SECONDS
# Runs every fuzzer for SECONDS, from the inputs saved in fuzz/corpus/<name>/. New inputs that reach new code go to
# .cache/fuzz/<name>/, findings to fuzz/findings/<name>/: after the fix, move a finding to fuzz/corpus/<name>/, and it
# is a test from then on.
set -euo pipefail
fuzzers=$(realpath "${1:?usage: fuzz.sh FOLDER SECONDS}")
seconds=${2:?usage: fuzz.sh FOLDER SECONDS}
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export ASAN_OPTIONS=${ASAN_OPTIONS:-allocator_may_return_null=1:detect_leaks=1}

status=0
shopt -s nullglob
for fuzzer in "$fuzzers"/fuzz_*; do
    name=$(basename "$fuzzer")
    name=${name#fuzz_}
    found=.cache/fuzz/$name
    findings=fuzz/findings/$name/
    mkdir -p "$found" "$findings"
    corpus=("$found")
    if [[ -d fuzz/corpus/$name ]]; then corpus+=("fuzz/corpus/$name"); fi
    echo "fuzz: $name for $seconds s"
    if ! "$fuzzer" -max_total_time="$seconds" -rss_limit_mb=4096 -print_final_stats=1 \
        -artifact_prefix="$findings" "${corpus[@]}" >"$found.log" 2>&1; then
        tail -n 40 "$found.log" >&2
        status=1
    fi
    grep -E 'stat::number_of_executed_units|cov: ' "$found.log" | tail -n 2 || true
    rmdir --ignore-fail-on-non-empty "$findings"
done
rmdir --ignore-fail-on-non-empty fuzz/findings 2>/dev/null || true
if ((status)); then echo "fuzz: findings lie in fuzz/findings/" >&2; fi
exit $status
