#!/usr/bin/env bash
# A real training job on this host, checked bit for bit. See --help.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'TEXT'
usage: bash deploy/demo.sh [--workers 4] [--servers 2] [--steps 200] [--build-dir build] [--no-setup]

Installs what is missing, builds what is needed, trains a small language model with several workers
and servers on this host, trains the same model with the same shards of the text in one process, and
compares. Prints PASS and exits 0 if the parameters are bit-identical and the loss has fallen.

  --workers N      processes that train (1 to 64)
  --servers N      processes that sum gradients (1 to 16)
  --steps N        training steps, at least 20
  --build-dir DIR  where to build
  --no-setup       do not look for missing packages
  -h, --help       this text

Exit status: 0 PASS, 64 wrong usage, else FAIL: that of the step that failed, or 1.
TEXT
}

workers=4 servers=2 steps=200 build=build setup=1
refuse() { echo "demo.sh: $1" >&2; usage >&2; exit 64; }
while (($#)); do
  case $1 in
    --workers | --servers | --steps | --build-dir)
      (($# >= 2)) || refuse "$1 needs a value"
      case $1 in
        --workers) workers=$2 ;;
        --servers) servers=$2 ;;
        --steps) steps=$2 ;;
        --build-dir) build=$2 ;;
      esac
      shift
      ;;
    --no-setup) setup=0 ;;
    -h | --help) usage; exit 0 ;;
    *) refuse "unknown argument: $1" ;;
  esac
  shift
done
# in_range FLAG VALUE MIN MAX
in_range() {
  [[ $2 =~ ^[1-9][0-9]{0,5}$ ]] && (($2 >= $3 && $2 <= $4)) || refuse "$1 $2: not a whole number from $3 to $4"
}
in_range --workers "$workers" 1 64
in_range --servers "$servers" 1 16
in_range --steps "$steps" 20 100000

# Settings of somebody else's cluster must not reach this one.
for variable in ${!BPS_@}; do unset "$variable"; done

fail() { echo "FAIL: $1"; exit "${2:-1}"; }
step() { echo "== $* (after ${SECONDS}s)"; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

if ((setup)); then bash cmake/setup.sh || fail "set-up (cmake/setup.sh)" $?; fi

step "build into $build/ (2 to 4 minutes on two cores the first time)"
if [[ ! -f $build/build.ninja ]]; then
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_UNITY_BUILD=ON || fail "configuring $build" $?
fi
cmake --build "$build" --target bps-scheduler bps-server bps-run bpsctl train_lm push_pull || fail "building $build" $?
train_lm=$build/client/examples/train_lm

step "train with $workers workers and $servers servers"
status=0
"$build/bin/bps-run" -n "$workers" -s "$servers" --strict --timeout 1h -- \
  "$train_lm" --steps "$steps" --save "$scratch/cluster" | tee "$scratch/log" || status=$?
((status == 0)) || fail "training on the cluster ended with status $status; the lines above say why" "$status"

step "train the same in one process"
"$train_lm" --reference "$workers" --steps "$steps" --save "$scratch/reference" || fail "the reference" $?

step "compare"
cmp "$scratch/cluster" "$scratch/reference" || fail "the parameters differ"
bytes=$(stat -c %s "$scratch/cluster")
result=$(grep -o 'done steps=.*' "$scratch/log") || fail "no last line from rank 0"
# value NAME: of `name=value` in the last line
value() { sed -nE "s/.* $1=([0-9.]+).*/\1/p" <<<"$result"; }
first=$(value first_loss) last=$(value last_loss)
# A uniform guess costs ln 256 = 5.55; anything that has learnt which bytes are common costs clearly less.
awk -v first="$first" -v last="$last" 'BEGIN { exit !(last > 0 && last < 0.8 * first) }' ||
  fail "the loss has not fallen clearly: $first at first, $last at last"
echo "PASS: $workers workers and $servers servers gave the same $bytes bytes of parameters as one process;" \
  "loss $first -> $last; $(value seconds) s of training, ${SECONDS} s in all"
