#!/usr/bin/env bash
# usage: exported_symbols.sh LIBRARY HEADER...
# The library shows every function that the headers declare, and nothing else.
set -euo pipefail
library=$1
shift
exported=$(nm --dynamic --defined-only --format=posix "$library" | awk '$2 != "A" { sub(/@.*/, "", $1); print $1 }' | LC_ALL=C sort)
declared=$(grep -ohE 'TWR_API[^;(]*\b(twr_[a-z_]+)\(' "$@" | grep -oE 'twr_[a-z_]+\($' | tr -d '(' | LC_ALL=C sort)
[[ -n $declared ]] || { echo "no function found in $*" >&2; exit 1; }
diff <(printf '%s\n' "$declared") <(printf '%s\n' "$exported")
