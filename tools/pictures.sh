#!/usr/bin/env bash
# Makes docs/pictures/report.png again: the page of a comparison of two runs of the demo's simulation, as a browser shows it.
# Needs Chromium and, as matplotlib does, Pillow.
#
# usage: tools/pictures.sh     with twinrun's environment on the PATH (make setup; PATH=$PWD/.venv/bin:$PATH)
set -euo pipefail

out=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/docs/pictures
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
cd "$work"
for threads in 2 3; do python -m twinrun.cli.particles "$threads-threads" --threads "$threads"; done
python -m twinrun compare 2-threads 3-threads --atol 1e-5 --html report.html >/dev/null || (($? == 1))
chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$work/profile" --window-size=1000,1044 \
    --screenshot=report.png "file://$work/report.html" >/dev/null 2>&1
python - "$out/report.png" <<'END'
import sys
from PIL import Image
Image.open("report.png").convert("RGB").quantize(64).save(sys.argv[1], optimize=True)
END
ls -l "$out/report.png"
