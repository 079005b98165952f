#!/usr/bin/env bash
# What the guest of tests/rdma needs, installed or downloaded where it is missing, quiet when all is there: the Debian packages below,
# and Debian's own kernel, whose package is unpacked into a cache and never installed. The last line of stdout is the kernel's folder.
#
#   setup.sh [--no-packages]    without: nothing is installed or downloaded, what is missing is an error
#
# Exit status: 0 all there, 64 usage, 77 something cannot be had, said on stderr.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PATH=$PATH:/usr/sbin:/sbin

packages=(
  qemu-system-x86 cpio kmod busybox-static   # the guest
  iproute2 ibverbs-providers                 # what the tests cannot do without in it
  ibverbs-utils rdmacm-utils perftest        # ibv_devinfo, rping, ib_write_bw and ib_read_bw
)
programs=(qemu-system-x86_64 cpio modinfo busybox ip tc rdma ibv_devinfo rping ib_write_bw ib_read_bw)
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/bps/rdma

not_here() { echo "rdma: not run: $*" >&2; exit 77; }

packages_wanted=1
case ${1:-} in
  '') ;;
  --no-packages) packages_wanted=0 ;;
  *) echo "setup.sh: unknown argument: $1" >&2; exit 64 ;;
esac

[[ $(uname -sm) == 'Linux x86_64' ]] || not_here "the guest is an x86-64 Linux, this machine is $(uname -sm)"

if ((packages_wanted)); then
  bash "$here/../../cmake/setup.sh" "${packages[@]}" >&2 || not_here "packages of the guest cannot be installed: ${packages[*]}"
fi
for program in "${programs[@]}"; do
  command -v "$program" >/dev/null || not_here "there is no $program; bash tests/rdma/setup.sh installs ${packages[*]}"
done

# What the guest loads, and what that depends on. The kernels for clouds have no soft RDMA.
unpack() {  # PACKAGE-FILE FOLDER
  dpkg-deb --fsys-tarfile "$1" |
    tar -x -C "$2" --wildcards --no-wildcards-match-slash './boot/vmlinuz-*' \
      './lib/modules/*/kernel/'{arch,crypto,drivers/virtio,fs,lib,net} \
      './lib/modules/*/kernel/drivers/infiniband/'{core,sw} './lib/modules/*/kernel/drivers/net/*.ko'
}

download_kernel() {
  local package new
  package=$(apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends: linux-image/ { print $2; exit }')
  [[ $package ]] || return 1
  echo "rdma: downloading $package into $cache" >&2
  new=$(mktemp -d "$cache/new.XXXXXX")
  if (cd "$new" && apt-get -qq -o APT::Sandbox::User=root download "$package" >&2) && mkdir "$new/kernel" && unpack "$new"/*.deb "$new/kernel"; then
    mv -T "$new/kernel" "$cache/$package" 2>/dev/null || [[ -d $cache/$package ]]  # somebody else was faster
  fi
  rm -rf "$new"
  [[ -d $cache/$package ]]
}

update_lists() {
  local as_root=()
  ((EUID == 0)) || as_root=(sudo -n)
  "${as_root[@]}" apt-get -qq -o DPkg::Lock::Timeout=120 update >&2
}

kernel_folder() { find "$cache" -mindepth 1 -maxdepth 1 -name 'linux-image-*' | sort -V | tail -n 1; }

mkdir -p "$cache"
kernel=$(kernel_folder)
if [[ ! $kernel ]]; then
  ((packages_wanted)) || not_here "there is no kernel for the guest in $cache; bash tests/rdma/setup.sh downloads one"
  command -v apt-get >/dev/null || not_here "the kernel is Debian's linux-image-amd64, and there is no apt here"
  download_kernel || { update_lists && download_kernel; } ||
    not_here "apt has no linux-image-amd64 to download; with Debian's archive in /etc/apt, try again"
  kernel=$(kernel_folder)
fi
echo "$kernel"
