#!/usr/bin/env bash
# The whole suite beside busy loops: a newcomer's machine compiles something else meanwhile. Builds
# the tests first, then runs them beside loops of normal priority: 4 for each core once, 2 for each
# core twice. Says how long each run took. Arguments go to the tests, as in `busy-tests.sh cluster::`.
set -euo pipefail
cd "$(dirname "$0")/.."
cores=$(nproc)
loops=()

stop_loops() {
    ((${#loops[@]} == 0)) || kill "${loops[@]}" 2>/dev/null || true
    loops=()
}
trap stop_loops EXIT

# Runs the suite beside so many loops for each core.
beside() {
    local each=$1 began=$SECONDS
    shift
    for ((loop = 0; loop < each * cores; loop++)); do
        (while :; do :; done) &
        loops+=("$!")
    done
    echo "== beside $((each * cores)) busy loops on $cores cores"
    # All that fails is shown: a run takes long.
    cargo test --workspace --no-fail-fast -- "$@"
    stop_loops
    echo "== beside $((each * cores)) busy loops: passed in $((SECONDS - began)) s"
}

cargo test --workspace --no-run
beside 4 "$@"
beside 2 "$@"
beside 2 "$@"
