#!/usr/bin/env bash
# usage: exported_symbols.sh libtwinrun.so twinrun.h
# The library shows every function that the header declares, and nothing else.
set -euo pipefail
exported=$(nm --dynamic --defined-only --format=posix "$1" | awk '$2 != "A" { sub(/@.*/, "", $1); print $1 }' | LC_ALL=C sort)
declared=$(grep -oE 'TWR_API[^;(]*\b(twr_[a-z_]+)\(' "$2" | grep -oE 'twr_[a-z_]+\($' | tr -d '(' | LC_ALL=C sort)
[[ -n $declared ]] || { echo "no function found in $2" >&2; exit 1; }
diff <(printf '%s\n' "$declared") <(printf '%s\n' "$exported")
