#!/usr/bin/env bash
# `lotus chaos` on a cluster of six hosts, which are network namespaces: nodes are killed, paused and
# cut off, and lose the path to one other node, while a seventh host drives them, also while they
# start, take snapshots and restore; then all data is audited, and a bank's history of what was read
# and written is judged; tpcc has one with --history FILE, and fewer calls then. Nothing is left,
# however it ends. Needs root for namespaces; without, it says so and does nothing.
#
# usage: scripts/cluster-partitions.sh [PROGRAM] [FLAGS OF lotus chaos...]
# The program is by default that of the release build; the flags `--schedule random --secs 30`.
# WORKLOAD is smallbank, by default, or tpcc; LOCKS is lotus, by default, or another lock system.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/cables.sh

lotus=$(realpath "${1:-${CARGO_TARGET_DIR:-target}/release/lotus}")
flags=("${@:2}")
test ${#flags[@]} -gt 0 || flags=(--schedule random --secs 30)
workload=${WORKLOAD:-smallbank}
mine=lotus-$$
work=$(mktemp -d)
hosts=(mn-0 mn-1 mn-2 cn-0 cn-1 cn-2 client)

clean_up() {
    trap '' INT TERM
    # Chaos ends what it has started, unless it was cut short itself.
    "$lotus" cluster down --discard --file "$work/bank.toml" >/dev/null 2>&1 || true
    remove_cables
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

case $workload in
    smallbank) memory=256M load='accounts = 1_000' flags+=(--history "$work/history") ;;
    tpcc) memory=1G load=$'warehouses = 4\ncustomers_per_district = 100\nitems = 1_000' ;;
    *) echo "WORKLOAD is smallbank or tpcc, not $workload" >&2 && exit 2 ;;
esac

call_bytes=2048
if [[ $workload == tpcc && " ${flags[*]} " == *" --history "* ]]; then call_bytes=8192; fi

if ! lay_cables "$mine" "${hosts[@]}"; then
    echo "no network namespaces on this machine: nobody can be cut off"
    exit 0
fi

{
    cat <<'TOML'
fabric = "tcp"
key_file = "key"
client_key_file = "client.key"
authority = "10.90.0.11:7400"
replicas = 2
lock_table = "4M"
lease_ms = 1000
TOML
    printf 'memory = "%s"\nlocks = "%s"\n' "$memory" "${LOCKS:-lotus}"
    printf '[[memory_node]]\naddress = "10.90.0.%s:7401"\n' 11 12 13
    for at in 14 15 16; do
        printf '[[compute_node]]\naddress = "10.90.0.%s:7401"\nclient = "10.90.0.%s:7500"\n' $at $at
    done
    printf '[clients]\ncreate_tables = true\n'
    printf '[snapshots]\ndirectory = "snapshots"\n'
    printf '[calls]\nrow_bytes = %s\n[load.%s]\n%s\n' "$call_bytes" "$workload" "$load"
} >"$work/bank.toml"

ip netns exec "$mine-client" "$lotus" chaos --file "$work/bank.toml" --namespaces "$mine" \
    "${flags[@]}"
test ! -e "$work/history" || "$lotus" check --strict "$work/history"
echo "cut off, killed and paused: nothing committed is lost"
