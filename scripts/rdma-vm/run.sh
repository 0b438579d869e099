#!/usr/bin/env bash
# Runs a job in the virtual machine: run.sh SCRIPT. Exits with the status of the script.
#
# The guest sees this host's files under a layer of its own: it can write anywhere and changes
# nothing. Only what it puts into $OUT, which is $RDMA_VM_OUT here, comes back. It has no network but
# the one it makes itself. The processor is emulated: what it measures in seconds means nothing.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
"$here/make.sh"
vm=$(cd "${RDMA_VM:-$here/../../target/rdma-vm}" && pwd)
root=$vm/root
out=${RDMA_VM_OUT:-$vm/out}
limit_s=${RDMA_VM_LIMIT_S:-900}

rm -rf "$out"
mkdir -p "$out"
{
    printf 'cd %q\n' "$(cd "$here/../.." && pwd)"
    cat "$1"
} >"$out/job"

qemu=$(command -v qemu-system-x86_64 || true)
firmware=()
if [ -z "$qemu" ]; then
    qemu=$root/usr/bin/qemu-system-x86_64
    firmware=(-L "$root/usr/share/qemu" -L "$root/usr/share/seabios" -L "$root/usr/lib/ipxe/qemu")
    libraries=$root/usr/lib/x86_64-linux-gnu
    export LD_LIBRARY_PATH=$libraries:$root/lib/x86_64-linux-gnu
    export QEMU_MODULE_DIR=$libraries/qemu
fi

timeout "$limit_s" "$qemu" "${firmware[@]}" \
    -accel "${RDMA_VM_ACCEL:-tcg,thread=multi}" -cpu max,-erms,-fsrm -smp 2 -m "${RDMA_VM_MIB:-3072}" \
    -nodefaults -no-user-config -no-reboot -display none -serial stdio -net none \
    -kernel "$vm/vmlinuz" -initrd "$vm/initramfs.gz" \
    -append "console=ttyS0 quiet panic=-1 mitigations=off" \
    -fsdev local,id=host,path=/,security_model=none,readonly=on,multidevs=remap \
    -device virtio-9p-pci,fsdev=host,mount_tag=host \
    -fsdev local,id=out,path="$out",security_model=none \
    -device virtio-9p-pci,fsdev=out,mount_tag=out </dev/null | sed -u 's,\r,,' || true

if [ ! -s "$out/status" ]; then
    echo "the machine stopped before the job ended (limit: $limit_s s)" >&2
    exit 125
fi
exit "$(cat "$out/status")"
