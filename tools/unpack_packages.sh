#!/usr/bin/env bash
# Packages of Debian or Ubuntu, and those they need that are not installed, unpacked into a folder: nothing else on the
# system changes, and nobody has to be root. Afterwards FOLDER/usr has bin, lib, ...; what is there already stays.
#
#   tools/unpack_packages.sh FOLDER PACKAGE...      exit status 3: cannot be had here, and why
set -euo pipefail

folder=$1
shift
mkdir -p "$folder/packages"
folder=$(cd "$folder" && pwd)
stamp="$folder/packages/$(printf '%s+' "$@")unpacked"
# Two at once would unpack into each other.
exec 9>"$folder/packages/lock"
if command -v flock >/dev/null; then flock 9; fi
if [[ -f $stamp ]]; then exit 0; fi

fail() {
    printf 'unpack_packages: %s\n' "$@" >&2
    exit 3
}
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then fail "there is no apt-get here"; fi

# What is installed already is not named. Upgrades of what is installed are not wanted.
wanted() {
    apt-get install --simulate --no-install-recommends --no-upgrade "$@" 2>"$folder/packages/apt.log" |
        awk '$1 == "Inst" && $3 !~ /^\[/ { print $2 }'
}
new=$(wanted "$@" || true)
if [[ -z $new && $EUID == 0 ]]; then # images of containers come without package lists
    env -u TMPDIR apt-get update -qq >/dev/null 2>&1 || true
    new=$(wanted "$@" || true)
fi
if [[ -z $new ]]; then
    dpkg-query -W "$@" >/dev/null 2>&1 && fail "$* is installed: use it from where it is"
    fail "apt-get finds no way to install $*: $(tail -n 1 "$folder/packages/apt.log")"
fi
cd "$folder/packages"
# shellcheck disable=SC2086
env -u TMPDIR apt-get download -qq $new >apt.log 2>&1 || fail "apt-get download: $(tail -n 1 apt.log)"
for package in *.deb; do
    dpkg-deb --extract "$package" "$folder"
    rm "$package"
done
touch "$stamp"
