#!/usr/bin/env bash
# Prints the folder in which tests make their files, new and empty. Tests sync thousands of small files, and on a disk they mostly wait for
# that. So it lies in memory, where there is enough of it, and in .cache/tmp elsewhere. What only a disk can show is tested on
# one all the same: tests of the room `platform`.
#
#   tools/test_folder.sh [NAME]      recipes that run at the same time have names of their own
#
# From the environment: TWINRUN_TEST_FOLDER, a folder of your own choice: it is left as it is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ -n ${TWINRUN_TEST_FOLDER:-} ]]; then
    printf '%s\n' "$TWINRUN_TEST_FOLDER"
    exit
fi

memory=/dev/shm
least=$((4 << 20)) # kilobytes
enough() {
    [[ -w $memory && $(stat --file-system --format=%T "$memory") == tmpfs ]] || return 1
    (($(df --output=avail -k "$memory" | tail -n 1) >= least)) || return 1
    (($(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo) >= 2 * least))
}

folder=$PWD/.cache/tmp
if enough; then
    # A checkout has one folder for each name, so that what a run leaves is gone with the next one.
    folder=$memory/twinrun-$(id -u)-$(printf '%s' "$PWD" | cksum | cut -d ' ' -f 1)-${1:-tests}
    mark=$folder/.made-by-test_folder
    if [[ -L $folder || (-e $folder && ! (-O $folder && -f $mark)) ]]; then
        folder=$PWD/.cache/tmp # something else has this name
    else
        chmod -R u+rwx "$folder" 2>/dev/null || true
        rm -rf "$folder"
        mkdir -m 700 "$folder"
        : >"$mark"
    fi
fi
mkdir -p "$folder"
printf '%s\n' "$folder"
