#!/usr/bin/env bash
# A real Prometheus (Debian's package `prometheus`) scrapes all nodes of a cluster that is driven, and
# promtool finds nothing to say about what they answer. Nothing is left, however it ends. The
# argument is the program, by default that of the release build. `prometheus` and `promtool` are in
# the path, or in the directory that the variable PROMETHEUS names.
set -euo pipefail
cd "$(dirname "$0")/.."

lotus=$(realpath "${1:-${CARGO_TARGET_DIR:-target}/release/lotus}")
PATH=${PROMETHEUS:+$PROMETHEUS:}$PATH
work=$(mktemp -d)
file=$work/c.toml
prometheus=

clean_up() {
    trap '' INT TERM
    [ -z "$prometheus" ] || { kill "$prometheus" && wait "$prometheus"; } 2>/dev/null || true
    "$lotus" cluster down --no-snapshot --file "$file" >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

fail() {
    echo "FAILED: $*" >&2
    tail -n 5 "$work"/*.log "$work"/*/*.log >&2 2>/dev/null || true
    exit 1
}

for program in prometheus promtool curl; do
    command -v "$program" >/dev/null || fail "there is no $program (apt-get install prometheus curl)"
done

# Addresses of this run's own: all of 127/8 is this machine.
host=127.91.$(($$ / 256 % 256)).$(($$ % 255 + 1))
nodes=("$host:7601" "$host:7602" "$host:7603" "$host:7604")
cat >"$file" <<FILE
fabric = "shm"
client_key_file = "key"
memory = "64M"
lock_table = "1M"
lease_ms = 3000
[[memory_node]]
metrics = "${nodes[0]}"
[[memory_node]]
metrics = "${nodes[1]}"
[[compute_node]]
client = "$host:7501"
metrics = "${nodes[2]}"
[[compute_node]]
client = "$host:7502"
metrics = "${nodes[3]}"
[load.smallbank]
accounts = 200
FILE

"$lotus" cluster up --file "$file" || fail "the cluster does not start"
"$lotus" bench smallbank --cluster "$file" --secs 2 >"$work/bench.log" 2>&1 || fail "the benchmark"

for node in "${nodes[@]}"; do
    curl --silent --show-error --fail "http://$node/metrics" >"$work/metrics" || fail "$node is silent"
    grep -q '^# TYPE lotus_' "$work/metrics" || fail "$node shows nothing of its own"
    promtool check metrics <"$work/metrics" >"$work/said" 2>&1 || fail "$node: $(cat "$work/said")"
    [ ! -s "$work/said" ] || fail "$node: $(cat "$work/said")"
    echo "$node: promtool finds nothing in $(grep -c '^# TYPE' "$work/metrics") metrics"
done

cat >"$work/prometheus.yml" <<FILE
global: { scrape_interval: 1s }
scrape_configs:
  - job_name: lotus
    static_configs: [{ targets: [$(printf '"%s",' "${nodes[@]}" | sed 's/,$//')] }]
FILE
promtool check config "$work/prometheus.yml" >"$work/said" 2>&1 || fail "$(cat "$work/said")"
prometheus --config.file="$work/prometheus.yml" --storage.tsdb.path="$work/data" \
    --web.listen-address="$host:9090" >"$work/prometheus.log" 2>&1 &
prometheus=$!

# The one value that a query answers with.
ask() {
    curl --silent --get "http://$host:9090/api/v1/query" --data-urlencode "query=$1" |
        sed -n 's/.*"value":\[[^,]*,"\([^"]*\)"\].*/\1/p'
}

for _ in {1..60}; do
    up=$(ask 'sum(up{job="lotus"})') || true
    [ "$up" != "${#nodes[@]}" ] || break
    sleep 1
done
[ "$up" = "${#nodes[@]}" ] || fail "Prometheus scrapes ${up:-none} of ${#nodes[@]} nodes"
committed=$(ask 'sum(lotus_transactions_total{outcome="committed"})')
[ "${committed:-0}" -gt 0 ] || fail "Prometheus has seen no transaction"
echo "Prometheus scrapes all ${#nodes[@]} nodes: $committed transactions have committed"
