#!/usr/bin/env bash
# Counts the instructions of the rdma data path with callgrind: WRITEs of a word through a lane, on
# a device in software. What the device itself takes is left out, and so is the set-up: each figure
# is a difference between two lengths of the same run.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v valgrind >/dev/null; then
    echo "rdma-instructions: needs valgrind" >&2
    exit 2
fi
program=$(cargo test --release -p lotus-fabric --features rdma --test rdma --no-run \
    --message-format json | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)

# Instructions within a function of the lane and outside of the device: entering a function named by
# `toggle-collect` turns counting on or off, and so does leaving it.
collected() {
    local within=$1 device=$2
    LOTUS_VERBS=$3 LOTUS_BATCHES=$4 valgrind --tool=callgrind --callgrind-out-file=/dev/null \
        --toggle-collect="*RdmaLane*::$within" --toggle-collect="*library::$device" \
        "$program" --ignored --exact data_path::many_batches 2>&1 |
        sed -n 's/.*Collected : \([0-9]*\).*/\1/p'
}

for verbs in 1 16; do
    for part in post:post_send poll:poll_cq; do
        within=${part%:*} device=${part#*:}
        short=$(collected "$within" "$device" "$verbs" 1000)
        long=$(collected "$within" "$device" "$verbs" 3000)
        echo "$within: $(((long - short) / 2000)) instructions a batch of $verbs," \
            "$(((long - short) / 2000 / verbs)) a verb"
    done
done
