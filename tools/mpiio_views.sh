#!/usr/bin/env bash
# MPI-IO through twinrun beside plain MPI-IO over random views, on 1 to 13 ranks: what `make test` does a few hundred times, until so
# many views of ranks are done. Takes an hour on two cores.
#
#   tools/mpiio_views.sh BUILD [VIEWS] [SEED]      default: 10000 views, seed 100
#
# Exit status 1 at the first view that differs: its seed and round are printed, and `aggregate/mpiio/scenarios.py` repeats it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=$(cd "$1" && pwd)
wanted=${2:-10000}
seed=${3:-100}
mpiexec=$(sed -n 's/^MPIEXEC_EXECUTABLE:[A-Z]*=//p' "$build/CMakeCache.txt")
export TWINRUN_MPIIO_LIBRARY=$build/bin/libtwinrun_mpiio.so
views=0
calls=0
while ((views < wanted)); do
    for ranks in 1 2 3 4 5 6 7 8 9 10 11 12 13; do
        seed=$((seed + 1))
        said=$("${PYTHON:-python3}" tests/aggregate/mpiio/scenarios.py --program "$build/bin/mpiio_views" --mpiexec "$mpiexec" \
            --ranks "$ranks" views "$seed" 40)
        views=$((views + $(sed -n 's/^views //p' <<<"$said")))
        calls=$((calls + $(sed -n 's/^calls //p' <<<"$said")))
        printf '%d ranks, seed %d: %d views and %d calls of ranks so far, all equal\n' "$ranks" "$seed" "$views" "$calls"
        if ((views >= wanted)); then break; fi
    done
done
