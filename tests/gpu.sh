#!/usr/bin/env bash
# What needs a GPU: builds and runs those tests, and prints what they measured. See --help.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ ${1:-} == --help || ${1:-} == -h ]]; then
  cat <<'TEXT'
usage: bash tests/gpu.sh [BUILD-DIRECTORY]

Builds the tests of client/local/cuda in BUILD-DIRECTORY (default: build) and runs those that use a real GPU. With
compute-sanitizer on the PATH, once more under that. Without a GPU it says so, and how many were not run.

Exit status: 0 when every test that could be run passed.
TEXT
  exit 0
fi
(($# <= 1)) || { echo "gpu.sh: at most one argument; see --help" >&2; exit 64; }

build=${1:-build}
[[ -f $build/build.ninja ]] || cmake -S . -B "$build" -G Ninja >/dev/null
cmake --build "$build" --target client_cuda_test
output=$("$build/client/client_cuda_test" '[gpu]') || { echo "$output"; exit 1; }
grep '^gpu: ' <<<"$output"
not_run=$(grep -c '^gpu: not run' <<<"$output" || true)
if ((not_run > 0)); then
  echo "$not_run of 1 tests were not run"
  exit 0
fi
if command -v compute-sanitizer >/dev/null; then
  compute-sanitizer --error-exitcode 1 "$build/client/client_cuda_test" '[gpu]'
else
  echo "compute-sanitizer is not here, so the tests were not run under it"
fi
