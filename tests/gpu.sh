#!/usr/bin/env bash
# What needs a GPU: builds and runs those tests, and prints what they measured. See --help.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ ${1:-} == --help || ${1:-} == -h ]]; then
  cat <<'TEXT'
usage: bash tests/gpu.sh [BUILD-DIRECTORY]

Builds in BUILD-DIRECTORY (default: build) what needs a GPU, and runs it: tests of client/src/gpu, ranks whose sums
are checked (by NCCL, too, several on one GPU), train_gpu, the same under compute-sanitizer if that is on the PATH, and
bps-bench gpu-floor and pushpull --device cuda. Prints what became of each, and the figures, as Markdown for
bench/RESULTS.md. Without a GPU it says so, and what was not run.

Exit status: 0 when every test that could be run passed.
TEXT
  exit 0
fi
(($# <= 1)) || { echo "gpu.sh: at most one argument; see --help" >&2; exit 64; }

build=${1:-build}
# Also of a folder that was made for the library alone.
cmake -S . -B "$build" -G Ninja -DBPS_TESTS=ON -DBPS_BENCH=ON >/dev/null
targets=(client_cuda_test process_worker bps-run bps-scheduler bps-server bps-bench)
if ninja -C "$build" -t query train_gpu >/dev/null 2>&1; then targets+=(train_gpu); fi
cmake --build "$build" --target "${targets[@]}"
exec python3 tests/gpu/suite.py "$build"
