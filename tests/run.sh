#!/usr/bin/env bash
# Set-up, build, every test. See --help.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'TEXT'
usage: bash tests/run.sh [--quick] [--no-sanitizers] [--only REGEX] [--jobs N] [--no-setup] [--fuzz MINUTES]
                         [--torch-latest]

Installs what is missing, builds into build/, build-asan/ and build-tsan/, and runs every test;
the sanitizer builds (address + undefined behaviour with g++, thread with clang++) run the unit, sim and
conformance tiers, the first one the fuzz tier, too.

  --quick          no sanitizers and none of the tests labelled `long`: for daily use
  --no-sanitizers  only build/, all its tests
  --only REGEX     only the tests whose ctest name matches; everything is still built
  --jobs N         compile and test N at a time (default: number of CPUs)
  --no-setup       do not look for missing packages
  --fuzz MINUTES   instead of the tests: libFuzzer on every target of tests/fuzz, so long each, in build-fuzz/
  --torch-latest   those of client/python that use PyTorch also with the newest one that pip finds (python_*_latest), in
                   build/torch-latest: 5 GB, which takes some minutes; they do not run where pip finds none
  -h, --help       this text

Exit status: 0 when every test passed, 64 for a wrong flag, else that of the step that failed.
TEXT
}

quick=0 sanitizers=1 setup=1 only='' fuzz='' torch_latest=0 jobs=$(nproc)
need_value() { (($# >= 2)) || { echo "run.sh: $1 needs a value" >&2; usage >&2; exit 64; }; }
while (($#)); do
  case $1 in
    --quick) quick=1 sanitizers=0 ;;
    --no-sanitizers) sanitizers=0 ;;
    --no-setup) setup=0 ;;
    --torch-latest) torch_latest=1 ;;
    --only) need_value "$@"; only=$2; shift ;;
    --fuzz) need_value "$@"; fuzz=$2; shift ;;
    --jobs) need_value "$@"; jobs=$2; shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "run.sh: unknown argument: $1" >&2; usage >&2; exit 64 ;;
  esac
  shift
done
[[ $jobs =~ ^[1-9][0-9]*$ ]] || { echo "run.sh: --jobs $jobs: not a number above 0" >&2; exit 64; }

[[ $fuzz =~ ^([1-9][0-9]*)?$ ]] || { echo "run.sh: --fuzz $fuzz: not a number above 0" >&2; exit 64; }

# Tests say what they need themselves: neither our settings nor a launcher's rank variables leak in.
for variable in ${!BPS_@} ${!SLURM_@} ${!OMPI_@} RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE \
  JOB_COMPLETION_INDEX; do
  unset "$variable"
done
export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1

step() { echo "== $* (after ${SECONDS}s)"; }

# configure_and_build DIRECTORY TARGET [CMAKE-ARGUMENT...]
configure_and_build() {
  local directory=$1 target=$2
  shift 2
  step "build $directory"
  rm -f "$directory/compile.log"
  cmake -S . -B "$directory" -G Ninja -DCMAKE_UNITY_BUILD=ON -DBPS_COMPILE_LOG="$PWD/$directory/compile.log" "$@"
  cmake --build "$directory" --target "$target" -j "$jobs"
}

sanitized=(-DBPS_EXAMPLES=OFF -DBPS_BENCH=OFF -DCMAKE_BUILD_TYPE=Debug
  -DCMAKE_CXX_FLAGS_DEBUG="-O1 -g1 -D_GLIBCXX_ASSERTIONS" -DCMAKE_C_FLAGS_DEBUG="-O1 -g1")
with_clang=(-DCMAKE_CXX_COMPILER=clang++ -DCMAKE_C_COMPILER=clang)

# Every target for MINUTES, also after a finding in another one. The corpus stays for the next time.
fuzz_all() {
  local seconds=$(($1 * 60)) failed=0 program name corpus
  for program in build-fuzz/tests/fuzz/fuzzer_*; do
    name=${program##*/fuzzer_} corpus=build-fuzz/corpus/$name
    mkdir -p "$corpus"
    "build-fuzz/tests/fuzz/fuzz_$name" --write-seeds "$corpus"
    if [[ -d tests/fuzz/findings/$name ]]; then cp "tests/fuzz/findings/$name"/* "$corpus"; fi
    step "fuzz $name for ${seconds}s"
    "$program" -max_total_time="$seconds" -max_len=8192 -timeout=30 -rss_limit_mb=4096 -verbosity=0 \
      -print_final_stats=1 -artifact_prefix="build-fuzz/$name-" "$corpus" || failed=1
  done
  step "done"
  return "$failed"
}

# What only tests of the Python package need.
python_packages=(python3-torch python3-venv)
if [[ $fuzz ]]; then python_packages=(); fi
if ((setup)); then bash cmake/setup.sh "${python_packages[@]}"; fi
# What only the guest of tests/rdma needs; without it that test says that it did not run.
if ((setup && !quick)) && [[ ! $fuzz ]]; then bash tests/rdma/setup.sh >/dev/null || (($? == 77)); fi
if [[ $fuzz ]]; then
  configure_and_build build-fuzz bps_fuzzers -DBPS_FUZZ=ON "${sanitized[@]}" "${with_clang[@]}"
  fuzz_all "$fuzz"
  exit
fi
python=(-UBPS_PYTHON_LATEST)  # what an earlier run with --torch-latest left
if ((torch_latest)); then
  step "install the newest PyTorch"
  /usr/bin/python3 -m venv build/torch-latest
  if build/torch-latest/bin/pip install --quiet --upgrade torch numpy; then
    python=("-DBPS_PYTHON_LATEST=$PWD/build/torch-latest/bin/python")
    build/torch-latest/bin/pip install --quiet --upgrade accelerate transformers lightning ||
      echo "trainers: not run: pip does not find all of accelerate, transformers and lightning"
  else
    echo "torch: not run: pip finds no newer PyTorch"
  fi
fi
configure_and_build build all "${python[@]}" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DBPS_TESTS=ON -DBPS_EXAMPLES=ON -DBPS_BENCH=ON
directories=(build)
if ((sanitizers)); then
  configure_and_build build-asan bps_tests -DBPS_SANITIZE=address "${sanitized[@]}"
  # The other compiler, so that both keep building the tree without a warning.
  configure_and_build build-tsan bps_tests -DBPS_SANITIZE=thread "${sanitized[@]}" "${with_clang[@]}"
  directories+=(build-asan build-tsan)
fi

# One ctest over all builds, so that its summary speaks for everything.
together=build/together
mkdir -p "$together"
printf 'subdirs("%s")\n' "${directories[@]/#/$PWD/}" >"$together/CTestTestfile.cmake"

selection=()
if ((quick)); then selection+=(--label-exclude '^long$'); fi
if [[ $only ]]; then selection+=(--tests-regex "$only"); fi

step "report"
/usr/bin/python3 tests/compile_report.py "${directories[@]}"

step "test"
log=$together/ctest.log summary=$together/summary.txt
status=0
# ctest's summary is held back, so that it comes last; all other lines appear as they come.
show_lines() {
  local line hold=0
  : >"$summary"
  while IFS= read -r line; do
    case $line in *" tests passed, "*" failed out of "* | "No tests were found"*) hold=1 ;; esac
    if ((hold)); then printf '%s\n' "$line" >>"$summary"; else printf '%s\n' "$line"; fi
  done
}
ctest --test-dir "$together" --output-on-failure --no-tests=error -j "$jobs" --output-log "$log" "${selection[@]}" |
  show_lines || status=$?

# A ctest entry holds many test cases (Catch2, unittest); their count is what a reader wants to know.
programs=$(sed -nE 's/.*tests passed, [0-9]+ tests? failed out of ([0-9]+).*/\1/p' "$summary")
cases=$(sed -nE -e 's/.*All tests passed \([0-9]+ assertions? in ([0-9]+) test cases?\).*/\1/p' \
  -e 's/^test cases: +([0-9]+) .*/\1/p' -e 's/^Ran ([0-9]+) tests? in .*/\1/p' \
  "$together/Testing/Temporary/LastTest.log" 2>/dev/null | awk '{ n += $1 } END { print n + 0 }')
step "done"
echo "${programs:-0} tests ran, with $cases test cases in them, in ${#directories[@]} build(s): ${directories[*]}"
cat "$summary"
sed -nE '/^[a-zA-Z0-9 ]+: not run: /p' "$together/Testing/Temporary/LastTest.log" 2>/dev/null || true
exit "$status"
