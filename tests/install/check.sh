#!/usr/bin/env bash
# Installs into a prefix, moves it, and builds and runs outside programs against it.
# usage: check.sh BUILD-DIRECTORY CMAKE CXX-COMPILER C-COMPILER
set -euo pipefail
(($# == 4)) || { sed -n 2,3p "$0" >&2; exit 64; }
build=$1 cmake=$2 cxx=$3 cc=$4
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "install: $*" >&2; exit 1; }

"$cmake" --install "$build" --prefix "$work/first" >"$work/log" || { cat "$work/log"; fail "cmake --install failed"; }
mv "$work/first" "$work/moved"
prefix=$work/moved
library=$(find "$prefix" -name 'libbpsclient.so.0')
[[ $library ]] || fail "no libbpsclient.so.0"
libdir=$(dirname "$library")

# What is there, and nothing more.
for program in bps-server bps-scheduler bpsctl bps-run bps-bench; do
  [[ -x $prefix/bin/$program ]] || fail "no bin/$program"
  env -i PATH="$PATH" "$prefix/bin/$program" --help >"$work/help" || fail "$program --help failed"
  grep -qi usage "$work/help" || fail "$program --help says no usage"
done
headers=$(cd "$prefix/include" && find . -type f | sort | tr '\n' ' ')
[[ $headers == "./bps/bps.h ./bps/calls.h ./bps/client.hpp ./bps/group.hpp ./bps/handle.hpp ./bps/values.hpp " ]] || fail "unexpected headers: $headers"
archives=$(find "$prefix" -name '*.a')
[[ -z $archives ]] || fail "static libraries were installed: $archives"

# Exactly the C API is exported, and third-party code neither shows nor is needed at run time.
readelf -d "$library" >"$work/dynamic"
grep -q 'SONAME.*\[libbpsclient\.so\.0\]' "$work/dynamic" || fail "SONAME is not libbpsclient.so.0"
needed=$(sed -nE 's/.*NEEDED.*\[(.*)\]/\1/p' "$work/dynamic" | grep -Ev '^(lib(stdc\+\+|gcc_s|m|c|pthread|dl|rt)|ld-linux.*)\.so' || true)
[[ -z $needed ]] || fail "libbpsclient needs $needed at run time"
if grep -E 'R(UN)?PATH' "$work/dynamic"; then fail "libbpsclient has a run path"; fi
nm -D --defined-only "$library" | awk '{ print $3 }' | sort >"$work/exported"
sed -nE 's/^BPS_API [^(]*\b(bps_[a-z_0-9]+)\(.*/\1/p' "$prefix"/include/bps/*.h | sort >"$work/declared"
[[ -s $work/declared ]] || fail "no BPS_API function found in bps.h and calls.h"
diff "$work/declared" "$work/exported" || fail "declared (<) and exported (>) symbols differ"

# GPUs are found when a program runs: nothing names CUDA or NCCL to the loader.
for file in "$library" "$prefix"/bin/*; do
  readelf -d "$file" >"$work/dynamic" 2>/dev/null || continue  # a script
  if grep -Ei 'NEEDED.*(cuda|nccl|nvtx|nvToolsExt)' "$work/dynamic"; then fail "$file needs a library of NVIDIA's"; fi
  symbols=$(nm -D --undefined-only "$file" | awk '{ print $NF }' | grep -E '^(cu[A-Z]|cuda|nccl|nvtx)' || true)
  [[ -z $symbols ]] || fail "$file wants $symbols of a library of NVIDIA's"
done

# pkg-config, from C.
export PKG_CONFIG_PATH=$libdir/pkgconfig
[[ $(pkg-config --modversion bpsclient) == 0.* ]] || fail "pkg-config does not find bpsclient"
read -ra flags < <(pkg-config --cflags --libs bpsclient)
"$cc" -std=c11 -Wall -Wextra -Wpedantic -Werror "$here/consumer/consumer.c" -o "$work/by_pkg_config" \
  "${flags[@]}" "-Wl,-rpath,$libdir"
"$work/by_pkg_config"

# find_package, from C and C++.
"$cmake" -S "$here/consumer" -B "$work/build" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_CXX_COMPILER="$cxx" \
  -DCMAKE_C_COMPILER="$cc" >"$work/log" 2>&1 || { cat "$work/log"; fail "find_package(bpsclient) failed"; }
"$cmake" --build "$work/build" >"$work/log" 2>&1 || { cat "$work/log"; fail "the outside project does not build"; }
for program in consumer_c consumer_cxx17 consumer_cxx20; do "$work/build/$program"; done

# The public headers, with all warnings of every compiler that is here.
for compiler in g++ clang++; do
  command -v "$compiler" >/dev/null || { echo "install: no $compiler here, its part is left out"; continue; }
  for standard in c++17 c++20; do
    "$compiler" -std=$standard -Wall -Wextra -Wpedantic -Wshadow -Wold-style-cast -Wconversion -Werror \
      -I "$prefix/include" -fsyntax-only "$here/consumer/consumer.cc" || fail "client.hpp warns as $standard with $compiler"
  done
done
echo "install: ok"
