#!/usr/bin/env bash
# Builds the rdma back end and runs all of its tests on Soft-RoCE devices, in a virtual machine that
# it makes from Debian packages. Exits with 0, and says so, where the machine cannot be made.
set -euo pipefail
cd "$(dirname "$0")/.."
started=$SECONDS

if ! scripts/rdma-vm/make.sh; then
    echo "rdma: NOT TESTED: the virtual machine cannot be made here (is this Debian, and can it" \
        "download packages?)" >&2
    exit "${RDMA_TEST_REQUIRED:-0}"
fi
echo "rdma: the machine is there after $((SECONDS - started)) s"

# All programs are built with the same features, so that no crate is built twice.
built=(--workspace --features "${RDMA_FEATURES:-lotus-cli/rdma,lotus-lab/rdma,lotus-txn/rdma,lotus-locksystems/rdma}")

# The path of a package's test program, as cargo reports it.
program() {
    local package=$1
    shift
    cargo test "${built[@]}" "$@" --no-run --message-format json 2>/dev/null |
        grep -F "/$package/" |
        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1
}
bin=target/rdma-vm/bin
mkdir -p "$bin"
cargo test "${built[@]}" --test all --no-run
cp "${CARGO_TARGET_DIR:-target}/debug/lotus" "$bin/lotus"
cp "$(program fabric --lib)" "$bin/fabric-tests"
cp "$(program engine --test all)" "$bin/engine-tests"
cp "$(program locksystems --test conformance)" "$bin/locks-tests"
echo "rdma: the programs are built after $((SECONDS - started)) s"

RDMA_VM_LIMIT_S=${RDMA_VM_LIMIT_S:-600} scripts/rdma-vm/run.sh scripts/rdma-vm/tests.sh
echo "rdma: all tests passed after $((SECONDS - started)) s"
