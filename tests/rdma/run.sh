#!/usr/bin/env bash
# The tests that need RDMA, in a guest with soft RDMA devices. See --help.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)

usage() {
  cat <<'TEXT'
usage: bash tests/rdma/run.sh [--only REGEX] [--transport rdma|tcp] [--keep] [--build-dir DIR] [--no-setup] [--no-build]
                              [--seconds N] [-- COMMAND [ARG...]]

Builds bps, boots an emulated machine (QEMU) with Debian's kernel and six soft RDMA devices (Soft-RoCE) on six
emulated hosts, and runs in it: bpsctl doctor; the conformance suite on real verbs; jobs of 2 servers and 4 workers
whose sums are checked, with servers and workers killed, a cable cut, a device removed; goodput against perftest's;
and, after each of these, a look at what the devices hold. Nothing is changed on this machine but packages that are
installed and a cache (~/.cache/bps/rdma).

  --only REGEX      only tests whose name matches
  --transport T     what the jobs run over: rdma (default), or tcp, to see what the guest itself does to them
  --keep            leave the folder with the kernel's messages, and say where it is
  --build-dir DIR   instead of build/
  --no-setup        install and download nothing
  --no-build        DIR is up to date
  --seconds N       end a guest that takes longer (600)
  -- COMMAND        run this as root in the guest, in the root of the tree, instead of the tests
  -h, --help        this text

Exit status: 0 passed, 1 a test failed, 64 wrong flag, 71 the guest did not come to an end, 77 not run: what is
missing is said; with COMMAND, that of COMMAND.
TEXT
}

only='' transport=rdma keep=0 build=$root/build setup=1 make=1 seconds=600 command=()
refuse() { echo "run.sh: $1" >&2; usage >&2; exit 64; }
need_value() { (($# >= 2)) || refuse "$1 needs a value"; }
while (($#)); do
  case $1 in
    --only) need_value "$@"; only=$2; shift ;;
    --transport) need_value "$@"; transport=$2; shift ;;
    --build-dir) need_value "$@"; build=$2; shift ;;
    --seconds) need_value "$@"; seconds=$2; shift ;;
    --keep) keep=1 ;;
    --no-setup) setup=0 ;;
    --no-build) make=0 ;;
    -h | --help) usage; exit 0 ;;
    --) shift; command=("$@"); break ;;
    *) refuse "unknown argument: $1" ;;
  esac
  shift
done
[[ $transport =~ ^(rdma|tcp)$ ]] || refuse "--transport $transport: neither rdma nor tcp"
[[ $seconds =~ ^[1-9][0-9]*$ ]] || refuse "--seconds $seconds: not a number above 0"

arguments=()
((setup)) || arguments=(--no-packages)
kernel=$(bash "$here/setup.sh" "${arguments[@]}") || exit

if ((make)); then
  if ((setup)); then bash "$root/cmake/setup.sh"; fi
  [[ -f $build/build.ninja ]] || cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo
  targets=(bps-scheduler bps-server bpsctl bps-bench process_worker goodput)
  known=$(cmake --build "$build" --target help)
  if [[ $known == *conformance_rdma:* ]]; then targets+=(conformance_rdma); fi
  cmake --build "$build" --target "${targets[@]}"
fi
[[ -d $build ]] || refuse "--build-dir $build: no such folder"
build=$(cd "$build" && pwd)
# Its processor is emulated, and has less than this machine's.
if grep -qE -- ' -m(arch|cpu)=' "$build/compile_commands.json"; then
  echo "rdma: not run: $build is compiled with -march or -mcpu, for a processor that the guest may not have" >&2
  exit 77
fi

exchange=$(mktemp -d)
guest=''
leave() {
  if [[ $guest ]]; then
    kill "$guest" 2>/dev/null && wait "$guest" || true
  fi
  if ((keep)); then
    echo "rdma: the guest's folder is $exchange"
  else
    rm -rf "$exchange"
  fi
}
trap leave EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

boot() {
  local ended=0
  bash "$here/boot.sh" "$kernel" "$exchange" "$seconds" "$root" "$@" &
  guest=$!
  wait "$guest" || ended=$?
  guest=''
  return "$ended"
}
if ((${#command[@]})); then
  status=0
  boot "${command[@]}" || status=$?
  exit "$status"
fi
status=0
boot python3 tests/rdma/suite.py "$build" --transport "$transport" --only "$only" || status=$?
if ((status != 0 && status != 64)); then
  echo "rdma: the guest's kernel said last:"
  tail -n 30 "$exchange/console.log" || true
fi
result=passed
((status == 0)) || result="FAILED (status $status)"
echo "rdma: $result in $SECONDS s, of these $(cat "$exchange/seconds" 2>/dev/null || echo '?') in the guest"
exit "$status"
