#!/usr/bin/env bash
# Builds bps and the drivers of its peers, and measures all of them. See --help.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")

usage() {
  cat <<'TEXT'
usage: bash bench/compare.sh [--only P1,P9] [--quick] [--build-dir DIR] [--json FILE] [--no-setup]

Measures the numbers P1 to P16 (without P14, which is retired) and P24 in one run: bps, the peers that a user would take
instead (OpenMPI and Gloo, over TCP) and the floors (raw TCP, memcpy, a TCP echo) in turns. Prints the table as
Markdown and writes it to build/compare.json.

  --only P1,P9      only these numbers
  --quick           fewer rounds and sizes: less than 5 minutes instead of about 40
  --build-dir DIR   where bps is built; configured for speed if it is new (build)
  --json FILE       where the rows go (build/compare.json)
  --no-setup        do not look for missing packages

Links, and a loopback where everyone uses cubic, are network namespaces: these rows need root, without it they are left
out. The machine should do nothing else meanwhile.

A number passes if the whole 95 % interval of its median is on the right side of its floor. What the numbers are is in
bench/README.md.

Exit status: 0 when every number that was asked for passes, 1 when not, 64 for a wrong flag, 70 when the build fails, else
that of the step that failed.
TEXT
}

build=$root/build setup=1 arguments=() only=''
need_value() { (($# >= 2)) || { echo "compare.sh: $1 needs a value" >&2; exit 64; }; }
while (($#)); do
  case $1 in
    --only) need_value "$@"; only=$2; shift ;;
    --json) need_value "$@"; arguments+=(--json "$2"); shift ;;
    --build-dir) need_value "$@"; build=$2; shift ;;
    --quick) arguments+=(--quick) ;;
    --no-setup) setup=0 ;;
    -h | --help) usage; exit 0 ;;
    *) echo "compare.sh: unknown argument: $1; --help shows all" >&2; exit 64 ;;
  esac
  shift
done

measure=("$here/compare/main.py" --build-dir "$build" --only "$only" "${arguments[@]}")
# What it refuses it refuses before anything is built.
if command -v python3 >/dev/null; then python3 "${measure[@]}" --check; fi
if ((setup)); then
  bash "$root/cmake/setup.sh" libopenmpi-dev openmpi-bin libgloo-dev iperf3 iproute2
fi

[[ -e $build/CMakeCache.txt ]] || cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release >&2
# What the README says for an installation, and what a number cannot be measured without.
if grep -Eq '^BPS_(BENCH|TESTS):BOOL=(OFF|0|FALSE|NO)$' "$build/CMakeCache.txt"; then
  echo "compare.sh: $build was configured without benchmarks or tests; they are switched on" >&2
  cmake -S "$root" -B "$build" -DBPS_BENCH=ON -DBPS_TESTS=ON >&2
fi
if ! grep -Eq '^CMAKE_BUILD_TYPE:[A-Z]+=(Release|RelWithDebInfo)$' "$build/CMakeCache.txt" ||
  ! grep -Eq '^BPS_SANITIZE:[A-Z]+=$' "$build/CMakeCache.txt"; then
  echo "compare.sh: $build is not built for speed; use another --build-dir" >&2
  exit 78
fi
rm -f "$build/compare.json"  # of another run
build() { "$@" >&2 || { echo "compare.sh: the build failed, nothing was measured" >&2; exit 70; }; }
build cmake --build "$build" --target bps-bench bps-scheduler bps-server process_worker
build cmake -S "$here/peers" -B "$build/peers" -G Ninja -DCMAKE_BUILD_TYPE=Release
build cmake --build "$build/peers"

exec python3 "${measure[@]}"
