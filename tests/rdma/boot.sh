#!/usr/bin/env bash
# boot.sh KERNEL EXCHANGE SECONDS FOLDER COMMAND [ARG...]
#
# Runs COMMAND as root in FOLDER of a QEMU guest that sees all files of this machine (what it writes is gone with it) under the kernel of
# setup.sh, which has Soft-RoCE, bridges and shaped links. The processor is emulated: that works everywhere. Its output goes to stdout;
# EXCHANGE is a folder that the guest may write to, as /run/bps: the kernel's messages are there in console.log at the end.
#
# Exit status: that of COMMAND; 71 the guest did not start, or was still running after SECONDS.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PATH=$PATH:/usr/sbin:/sbin
kernel=$1 exchange=$(realpath "$2") seconds=$3
shift 3
readonly kMemoryMiB=2048 kProcessors=2
modules=(virtio_pci virtio_rng 9pnet_virtio 9p overlay crc32c_generic crc32_generic veth bridge sch_netem sch_tbf inet_diag tcp_diag
  ib_uverbs rdma_ucm rdma_rxe)

image=$(mktemp -d)
qemu=''
finish() {
  if [[ $qemu ]]; then
    kill "$qemu" 2>/dev/null && wait "$qemu" || true
  fi
  rm -rf "$image"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# The modules and what they depend on, numbered in the order in which they must be loaded.
declare -A file_of=() taken=()
while read -r file; do
  name=$(basename "${file%%.ko*}")
  file_of[${name//-/_}]=$file
done < <(find "$kernel/lib/modules" -name '*.ko*')
number=100
take() {
  local name=${1//-/_} other
  [[ ! ${taken[$name]:-} && ${file_of[$name]:-} ]] || return 0  # one that has no file is built in
  taken[$name]=1
  for other in $(modinfo -F depends "${file_of[$name]}" | tr , ' '); do take "$other"; done
  cp "${file_of[$name]}" "$image/root/modules/$number-$name.ko"
  number=$((number + 1))
}
mkdir -p "$image"/root/{bin,proc,sys,dev,new,lower,written,modules}
cp "$(command -v busybox)" "$image/root/bin/busybox"
for name in "${modules[@]}"; do take "$name"; done
install -m 755 "$here/guest/init" "$image/root/init"
(cd "$image/root" && find . | cpio -o -H newc --quiet) >"$image/initrd"

cp "$here/guest/start" "$exchange/start"
printf '%s\0' "$@" >"$exchange/command"
rm -f "$exchange/status"

# no_timer_check: on a machine that is busy the emulated timer may miss the moment in which the kernel tries it.
timeout --foreground "$seconds" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -m "$kMemoryMiB" -smp "$kProcessors" \
  -nodefaults -no-user-config -display none -no-reboot \
  -kernel "$kernel"/boot/vmlinuz-* -initrd "$image/initrd" \
  -append "console=ttyS0 panic=-1 quiet loglevel=4 mitigations=off random.trust_cpu=on no_timer_check" \
  -chardev file,id=console,path="$exchange/console.log" -device isa-serial,chardev=console,index=0 \
  -chardev stdio,id=output,signal=off -device isa-serial,chardev=output,index=1 \
  -device virtio-rng-pci \
  -virtfs local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap \
  -virtfs local,path="$exchange",mount_tag=exchange,security_model=none,multidevs=remap \
  </dev/null &
qemu=$!
ended=0
wait "$qemu" || ended=$?
qemu=''
if [[ ! -s $exchange/status ]]; then
  if ((ended == 124)); then
    echo "boot.sh: the guest was still running after $seconds s and was ended; its kernel said last:" >&2
  else
    echo "boot.sh: the guest ended without a result (qemu: $ended); its kernel said last:" >&2
  fi
  tail -n 30 "$exchange/console.log" >&2 || true
  exit 71
fi
exit "$(<"$exchange/status")"
