# All that needs RDMA devices, for the guest. The programs are in target/rdma-vm/bin.
set -uo pipefail
scripts/rdma-vm/devices.sh 5
cp target/rdma-vm/bin/* /tmp
cd /tmp
failures=0

# Runs a step, and counts it if it fails.
step() {
    local name=$1 began=$SECONDS
    shift
    echo "== $name"
    if "$@"; then
        echo "passed after $((SECONDS - began)) s"
    else
        echo "FAILED: $name"
        failures=$((failures + 1))
    fi
}

# Expects exit code 2 and one sentence that contains the first argument.
refuses() {
    local part=$1 said status
    shift
    said=$("$@" 2>&1 >/dev/null)
    status=$?
    echo "$said"
    [ $status = 2 ] && [ "$(wc -l <<<"$said")" = 1 ] && grep -qF "$part" <<<"$said"
}

bank() {
    ./lotus bench smallbank --fabric rdma --accounts 400 --memory-limit 64000000 --coroutines 4 \
        --secs 4 "$@"
}

with_little_memory() {
    chmod a+rw /dev/infiniband/*
    setpriv --reuid=65534 --regid=65534 --clear-groups bash -c 'ulimit -l 64; "$@"' - "$@"
}

# While the switch loses one packet of fifty on their way to the first device.
losing_packets() {
    tc qdisc add dev port0 root netem loss 2%
    "$@"
    local status=$?
    tc qdisc del dev port0 root
    return $status
}

without_devices() {
    for device in /sys/class/infiniband/*; do
        rdma link del "${device##*/}"
    done
    "$@"
}

step "conformance" ./fabric-tests --ignored conformance --nocapture --test-threads 1
step "error paths" ./fabric-tests --ignored rdma --skip conformance --skip verbs_that_get_lost \
    --test-threads 1
step "lost packets" losing_packets \
    ./fabric-tests --ignored verbs_that_get_lost --test-threads 1
step "verbs as on local and sim" ./engine-tests --ignored verb_counts --nocapture
# Broken locks may also wait for ever.
step "locks" timeout 240 ./locks-tests --ignored network_cards --nocapture
step "SmallBank: 3 memory nodes, 2 compute nodes" \
    bank --mns 3 --cns 2 --history "$OUT/history.jsonl" --json "$OUT/result.json"
step "its history" ./lotus check "$OUT/history.jsonl"

step "wrong device name" refuses "no RDMA device rxe9; this machine has rxe0" \
    bank --rdma-devices rxe9
step "wrong port" refuses "rxe0 has no port 2" bank --rdma-devices rxe0:2
step "GID index out of range" refuses "GID index 200; it has entries at" bank --rdma-gid-index 200
step "packet size" refuses "1500 bytes" bank --rdma-mtu 1500
step "memory-lock limit" refuses "the limit is 65536 bytes; raise it" with_little_memory \
    ./lotus bench smallbank --fabric rdma --accounts 400
ip link set host4 down
step "port down" refuses "port 1 of RDMA device rxe4 is down" bank --rdma-devices rxe4
step "no device" refuses "this machine has no RDMA device" without_devices bank

echo "$failures steps failed"
[ "$failures" = 0 ]
