#!/usr/bin/env bash
# setup.sh [PACKAGE...]: installs the Debian 12 packages that bps needs to be built and tested, and further ones that
# are named. Quiet when all are there.
set -euo pipefail

packages=(
  # build
  build-essential g++ cmake ninja-build ccache pkg-config git python3
  # libraries
  libboost1.81-dev libflatbuffers-dev flatbuffers-compiler libspdlog-dev libfmt-dev libcli11-dev
  libtomlplusplus-dev nlohmann-json3-dev libhwy-dev libssl-dev libibverbs-dev librdmacm-dev
  # tests and benchmarks; openssl makes certificates, the thread sanitizer build is clang's, hosts are network namespaces
  catch2 libbenchmark-dev openssl clang libclang-rt-14-dev clang-format clang-tidy iproute2
  "$@"
)

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "setup: no apt here; install the equivalents of these Debian 12 packages by hand: ${packages[*]}" >&2
  exit 0
fi

missing=()
for package in "${packages[@]}"; do
  state=$(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null || true)
  [[ $state == ?i* ]] || missing+=("$package")
done
if ((${#missing[@]} == 0)); then
  exit 0
fi

as_root=()
if ((EUID != 0)); then
  if ! command -v sudo >/dev/null; then
    echo "setup: these packages are missing and neither root nor sudo is at hand: ${missing[*]}" >&2
    echo "setup: as root run: apt-get update && apt-get install ${missing[*]}" >&2
    exit 71
  fi
  as_root=(sudo)
fi

echo "setup: installing with apt-get: ${missing[*]}"
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=120 "$@"; }
if ! apt update || ! apt install -y --no-install-recommends "${missing[@]}"; then
  echo "setup: apt-get failed; bps is built on Debian 12 (bookworm), see the message above" >&2
  exit 71
fi
