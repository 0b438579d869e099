#!/usr/bin/env bash
# Counts the instructions of the rdma data path with callgrind, against a device that only remembers
# what it is asked: 1000 batches of 16 WRITEs of a word, each completed by one completion. What the
# fake device itself takes is included.
set -euo pipefail
cd "$(dirname "$0")/.."

program=$(cargo test --release -p lotus-fabric --features rdma --lib --no-run \
    --message-format json 2>/dev/null |
    sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
for part in post poll; do
    collected=$(valgrind --tool=callgrind --callgrind-out-file=/dev/null \
        --toggle-collect="*rdma::connection::tests::Bench::$part*" \
        "$program" --ignored --exact rdma::connection::tests::many_batches 2>&1 |
        sed -n 's/.*Collected : \([0-9]*\).*/\1/p')
    echo "$part: $((collected / 1000)) instructions a batch, $((collected / 16000)) a verb"
done
