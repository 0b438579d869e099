#!/usr/bin/env bash
# Builds lotus guided by a profile of its own benchmarks: the compiler lays out and inlines what
# transactions execute, instead of guessing it. docs/operations.md says what that gains.
#
# In three steps: a build that counts, short runs of the workloads, a build that uses the counts.
# The result is target/pgo/production/lotus; the usual release build stays as it is.
#
# usage: scripts/pgo.sh [ARGUMENT OF cargo build ...]      such as --features rdma
#
# Needs llvm-profdata of LLVM 19 or later: rustup's component llvm-tools, or Debian's package
# llvm-19. LLVM_PROFDATA names another.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")/pgo
# The folder of the profiles is new for each call, or counts of an older build would be merged.
profiles=$(mktemp -d)
trap 'rm -rf "$profiles"' EXIT

profdata() {
    local tools
    tools=$(rustc --print sysroot)/lib/rustlib/$(rustc -vV | sed -n 's/^host: //p')/bin
    for program in "${LLVM_PROFDATA:-}" "$tools/llvm-profdata" llvm-profdata-{22,21,20,19}; do
        if [ -n "$program" ] && command -v "$program"; then return; fi
    done
    echo "pgo: no llvm-profdata of LLVM 19 or later: install rustup's llvm-tools," \
        "or Debian's llvm-19" >&2
    return 1
}

# Builds with these flags of the compiler, in a folder of its own.
build() {
    local folder=$1 flags=$2
    shift 2
    RUSTFLAGS="${RUSTFLAGS:-} $flags" CARGO_TARGET_DIR=$folder \
        cargo build --profile production --bin lotus "$@"
}

merge=$(profdata)
build "$target/counting" "-Cprofile-generate=$profiles" "$@"
for run in \
    "smallbank --accounts 200000" \
    "smallbank --accounts 20000 --fabric tcp" \
    "kvs --keys 200000" \
    "tatp --subscribers 20000" \
    "tpcc --warehouses 2 --customers-per-district 300 --items 10000"; do
    for nodes in 1 2; do
        # The workload and its arguments are words of their own.
        # shellcheck disable=SC2086
        "$target/counting/production/lotus" bench $run --cns "$nodes" --secs 3 >/dev/null
    done
done
"$merge" merge -o "$profiles/merged" "$profiles"
build "$target" "-Cprofile-use=$profiles/merged" "$@"
echo "$target/production/lotus"
