#!/usr/bin/env bash
# Makes the parts of the virtual machine in $RDMA_VM (target/rdma-vm) from Debian packages: an
# emulator, a kernel, and an initramfs. Nothing is installed and nothing needs root: packages are
# downloaded and unpacked. Does nothing when the machine is there already.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
vm=${RDMA_VM:-$here/../../target/rdma-vm}

# What the guest loads, besides what these need in turn.
modules=(
    virtio_pci 9pnet_virtio 9p overlay                      # the host's files
    veth bridge dummy sch_netem                             # networks, also bad ones
    crc32_generic ib_core ib_uverbs rdma_cm rdma_ucm rdma_rxe # verbs
)

mkdir -p "$vm/packages" "$vm/root"
vm=$(cd "$vm" && pwd)
stamp=$vm/made-from
recipe=$(cat "$here/make.sh" "$here/init" | sha256sum)
if [ "$(cat "$stamp" 2>/dev/null)" = "$recipe" ]; then
    exit 0
fi

# The emulator with the libraries that are not on this machine, the kernel, and a shell.
emulator=()
if ! command -v qemu-system-x86_64 >/dev/null; then
    mapfile -t emulator < <(apt-get install -s --no-install-recommends qemu-system-x86 |
        awk '$1 == "Inst" { print $2 }')
fi
kernel=$(apt-cache depends linux-image-amd64 | awk '$1 == "Depends:" { print $2; exit }')
cd "$vm/packages"
apt-get download -qq "${emulator[@]}" "$kernel" busybox-static 2>/dev/null
for package in *.deb; do
    dpkg -x "$package" "$vm/root"
done
rm -- *.deb

busybox=$vm/root/bin/busybox
version=${kernel#linux-image-}
rm -rf "$vm/initramfs"
mkdir -p "$vm/initramfs"/{bin,dev,proc,sys,modules}
cp "$busybox" "$vm/initramfs/bin/busybox"
install -m 755 "$here/init" "$vm/initramfs/init"

# `modules.dep` names for every module those that it needs, the nearest first.
"$busybox" depmod -b "$vm/root" "$version"
tree=$vm/root/lib/modules/$version
for module in "${modules[@]}"; do
    line=$(grep -E "(^|/)$module\.ko:" "$tree/modules.dep") || {
        echo "the kernel $version has no module $module" >&2
        exit 1
    }
    read -ra files <<<"${line/:/}"
    for ((i = ${#files[@]} - 1; i >= 0; i--)); do
        echo "${files[i]##*/}"
        cp "$tree/${files[i]}" "$vm/initramfs/modules/"
    done
done | awk '!seen[$0]++' >"$vm/initramfs/modules/order"

(cd "$vm/initramfs" && find . | "$busybox" cpio -o -H newc 2>/dev/null) | gzip -1 >"$vm/initramfs.gz"
cp "$vm/root/boot/vmlinuz-$version" "$vm/vmlinuz"
rm -rf "$vm/root/lib/modules" "$vm/root/boot"
echo "$recipe" >"$stamp"
