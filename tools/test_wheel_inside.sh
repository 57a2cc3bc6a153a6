# What tools/test_wheels.sh runs inside a bare tree: from an empty environment to what a new user tries first.
#
# It runs on any machine with bash, python3 and venv. Where there is a GPU, each wheel for GPUs is used, too:
#
#   WHEELS=build/dist TRY=$(mktemp -d) bash tools/test_wheel_inside.sh
#
# WHEELS: the folder with the wheels, dependencies too; TRY: an empty folder. BARE=no: compilers may be there.
set -euo pipefail
wheels=$(realpath "${WHEELS:-/wheels}")
cd "${TRY:-/try}"

check() { # check STATUS COMMAND...: the command ends with this status
    local wanted=$1 status=0
    shift
    "$@" >out.txt 2>err.txt || status=$?
    if ((status != wanted)); then
        echo "status $status instead of $wanted: $*"
        cat out.txt err.txt
        exit 1
    fi
}

python3 -m venv env
start=$EPOCHREALTIME
env/bin/pip install --quiet --no-index --find-links "$wheels" twinrun
PATH=$PWD/env/bin:$PATH
cat >first.py <<'X'
import numpy as np
x = np.linspace(0, 1, 100_000)
np.save("a.npy", x)
x[1234] += 1e-3
np.save("b.npy", x)
X
env/bin/python first.py
check 1 twinrun compare a.npy b.npy --atol 1e-6
seconds=$(env/bin/python -c "print(round($EPOCHREALTIME - $start, 1))")
tail -n 1 out.txt | grep -q 'different: first at a\[1234\]' || { cat out.txt; exit 1; }
installed=$(du -sm env/lib/python3*/site-packages/twinrun | cut -f1)

start=$EPOCHREALTIME
check 0 twinrun demo
demo=$(env/bin/python -c "print(round($EPOCHREALTIME - $start, 1))")
tail -n 1 out.txt | grep -q '^different: first at step ' || { cat out.txt; exit 1; }
test -s twinrun-demo/report.html
check 1 twinrun compare twinrun-demo/run-a twinrun-demo/run-b --html page.html --json all.json
check 0 twinrun verify twinrun-demo/run-a twinrun-demo/run-b
check 0 twinrun show --system
grep -q 'io_uring' out.txt

cat >capture.py <<'X'
import numpy as np, sys, twinrun
with twinrun.Run(sys.argv[1], atol=1e-9, background=True) as run:
    x = np.random.default_rng(1).random(10_000)
    for step in range(5):
        x = 3.9 * x * (1 - x) if sys.argv[1] == "one" else 3.9 * (x - x * x)
        run.capture(step, {"x": x})
X
check 0 python capture.py one
check 0 python capture.py two
check 0 twinrun compare one two
check 0 twinrun pack one record
check 0 twinrun restore record back --step 3
check 0 twinrun golden save one -o golden
check 0 twinrun golden check golden two
check 2 twinrun golden check golden twinrun-demo/run-a
check 0 twinrun index a.npy
check 0 twinrun interpose -- ls
check 0 twinrun completion bash
check 0 twinrun manual man1
# man looks beside each folder of PATH: the pages that the wheel has are those of its commands.
for page in man1/*; do cmp "$page" "env/share/man/$page"; done

# The library for GPUs, where its wheel is at hand: found, and of this version, also where there is no GPU.
for wheel in "$wheels"/twinrun_cuda*.whl; do
    [[ -e $wheel ]] || continue
    name=$(basename "$wheel") && name=${name%%-*}
    env/bin/pip install --quiet --no-index --find-links "$wheels" "$wheel"
    check 0 twinrun show --devices
    grep -q "/$name/libtwinrun_cuda.so" out.txt && ! grep -q 'belongs to another version' out.txt || { cat out.txt; exit 1; }
    if [[ -e /dev/nvidiactl ]]; then
        ! grep -q 'GPUs are not used' out.txt || { cat out.txt; exit 1; }
        gpu=$(awk -F '  +' '$1 == "cuda:0" {print $2}' out.txt)
        check 1 twinrun compare a.npy b.npy --atol 1e-6 --device cuda
        tail -n 1 out.txt | grep -q 'different: first at a\[1234\]' || { cat out.txt; exit 1; }
        check 0 twinrun compare one two --method direct --device cuda
        echo "$name: used on ${gpu:-a GPU}"
    fi
    env/bin/pip uninstall --quiet --yes "$name"
done

env/bin/pip install --quiet --no-index --find-links "$wheels" 'twinrun[ensemble]'
check 0 twinrun ensemble -r 5 -w 0 -- 'sleep 0.01' --vs 'sleep 0.02'
grep -q 'sleep 0.01' out.txt
[[ ${BARE:-yes} == no ]] || ! command -v cc g++ gcc >/dev/null
echo "from pip install to the first verdict: $seconds s; twinrun demo: $demo s; $installed MB installed"
