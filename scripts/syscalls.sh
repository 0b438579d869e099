#!/usr/bin/env bash
# How many system calls a transaction costs: none, on a warm coordinator.
#
# Two runs of one workload that differ only in their length are counted by strace. Starting,
# loading and stopping cost the same in both, so what the longer run has more of belongs to the
# transactions that it committed more of.
#
# usage: scripts/syscalls.sh [kvs|smallbank] [flags of `lotus bench`]
#
# The default is one compute node, whose only coordinator never runs out of work. With --cns 2
# clients change compute nodes between transactions, and a coordinator that has none left spins
# for a while, then parks: those futex calls are the price of idleness, and of strace itself,
# which slows every one of them down. LIMIT, 0.001 by default, is the most that passes.
#
# Needs strace. Builds the release binary unless LOTUS names one.
set -euo pipefail
cd "$(dirname "$0")/.."

workload="${1:-kvs}"
shift || true
limit="${LIMIT:-0.001}"
if [ -z "${LOTUS:-}" ]; then
    cargo build --release --quiet -p lotus-cli
    LOTUS="${CARGO_TARGET_DIR:-target}/release/lotus"
fi
command -v strace > /dev/null || { echo "strace is not installed" >&2; exit 2; }
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT

flags=("$@")
[[ " $* " == *" --cns"* ]] || flags+=(--cns 1)

# Prints how many calls were made and how many transactions were committed in $1 seconds.
measure() {
    strace -f -c -U calls,name -o "$folder/calls" \
        "$LOTUS" bench "$workload" --audit no --warmup 0.5 "${flags[@]}" \
        --secs "$1" --json "$folder/result" > /dev/null 2> "$folder/errors" ||
        { cat "$folder/errors" >&2; return 1; }
    local committed
    committed="$(grep -oE '"committed": *[0-9]+' "$folder/result" | head -1 | grep -oE '[0-9]+')"
    echo "$(awk '$2 == "total" { print $1 }' "$folder/calls") $committed"
}

short="$(measure 1)"
long="$(measure 3)"
read -r calls_short committed_short <<< "$short"
read -r calls_long committed_long <<< "$long"
awk -v calls="$((calls_long - calls_short))" -v limit="$limit" \
    -v transactions="$((committed_long - committed_short))" \
    -v short="$calls_short in 1 s ($committed_short transactions)" \
    -v long="$calls_long in 3 s ($committed_long transactions)" 'BEGIN {
        if (transactions <= 0) { print "the longer run committed no more"; exit 1 }
        each = calls / transactions
        printf "%s\n%s\n%.6f system calls a transaction\n", short, long, each
        exit (each > limit)
    }'
