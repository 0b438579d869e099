#!/usr/bin/env bash
# A cluster on seven hosts: three memory nodes, three compute nodes and a client, each in a network
# namespace of its own, with TLS everywhere. Starts every node by hand, as an operator would, drives
# the cluster from the client's host, and sees that certificates of another authority open nothing.
# Nothing is left, however it ends. Needs root for namespaces; without, the hosts are loopback
# addresses. The argument is the program, by default that of the release build.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/cables.sh

lotus=$(realpath "${1:-${CARGO_TARGET_DIR:-target}/release/lotus}")
mine=lotus-$$
work=$(mktemp -d)
hosts=(mn-0 mn-1 mn-2 cn-0 cn-1 cn-2 client)
processes=()

# Asks processes to end, and makes those that have not after ten seconds.
end() {
    kill "$@" 2>/dev/null || true
    for process in "$@"; do
        for _ in {1..100}; do
            kill -0 "$process" 2>/dev/null || break
            sleep 0.1
        done
        kill -KILL "$process" 2>/dev/null || true
        wait "$process" 2>/dev/null || true
    done
}

# Compute nodes were started last, and end first: they need the others for that.
clean_up() {
    trap '' INT TERM
    end "${processes[@]:3}"
    end "${processes[@]:0:3}"
    remove_cables
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

fail() {
    echo "FAILED: $*" >&2
    tail -n 5 "$work"/*/log >&2 2>/dev/null || true
    exit 1
}

if lay_cables "$mine" "${hosts[@]}"; then
    network=10.90.0
    enter() { exec ip netns exec "$mine-$1" "${@:2}"; }
else
    echo "no network namespaces on this machine: the hosts are loopback addresses"
    network=127.90.0
    enter() { exec "${@:2}"; }
fi

# Becomes a command on a host, in the directory that has this host's files; runs one and returns.
become() { cd "$work/$1" && enter "$@"; }
on() { (become "$@"); }

# The commands of docs/security.md, word for word: an authority, and what nodes and applications show.
certificates() {
    mkdir "$1"
    awk '/^```/ { if (on) exit; if ($0 == "```sh") { on = 1; next } } on' docs/security.md \
        >"$1/commands"
    (cd "$1" && sh -eu commands) >/dev/null 2>&1 || fail "openssl makes no certificates"
}
certificates "$work/ours"
certificates "$work/theirs"

describe() {
    cat <<TOML
fabric = "tcp"
authority = "$network.11:7400"
memory = "128M"
lock_table = "4M"
lease_ms = 5000
[tls]
ca = "ca.pem"
certificate = "node.pem"
key = "node.key"
cluster = "orders.lotus"
client_certificate = "client.pem"
client_key = "client.key"
TOML
    for at in 11 12 13; do
        printf '[[memory_node]]\naddress = "%s.%s:7401"\n' "$network" "$at"
    done
    for at in 14 15 16; do
        printf '[[compute_node]]\naddress = "%s.%s:7401"\nclient = "%s.%s:7500"\n' \
            "$network" "$at" "$network" "$at"
    done
    printf '[load.smallbank]\naccounts = 10_000\n'
}

# Every host has the same file. A node's key is on nodes only; but the client's host is an operator's
# as well, who asks the authority.
for host in "${hosts[@]}"; do
    mkdir "$work/$host"
    describe >"$work/$host/orders.toml"
    cp "$work"/ours/{ca.pem,node.pem,node.key} "$work/$host"
done
cp "$work"/ours/client.{pem,key} "$work/client"

for host in "${hosts[@]:0:6}"; do
    become "$host" "$lotus" "${host%-*}" --file orders.toml --node "${host#*-}" \
        >"$work/$host/log" 2>&1 &
    processes+=($!)
done

status() { on client "$lotus" cluster status --file orders.toml "$@"; }
bench() { on client "$lotus" bench smallbank --cluster orders.toml --warmup 0.5 --secs "$1"; }

for _ in {1..300}; do
    healthy=no
    status >/dev/null 2>&1 && healthy=yes && break
    for process in "${processes[@]}"; do
        kill -0 "$process" 2>/dev/null || fail "a node has ended"
    done
    sleep 0.1
done
test "$healthy" = yes || fail "the cluster does not serve"
bench 3 || fail "the benchmark, or its audit"
status || fail "a node does not serve any more"

# Certificates of another authority: as a node's, where the authority is asked first, and as an
# application's.
refused() {
    local said
    said=$(bench 1 2>&1) && fail "$1 of another authority was let in"
    grep -q "^error: .*$2" <<<"$said" || fail "$1 of another authority: $said"
    echo "refused: $said"
}
cp "$work"/theirs/client.{pem,key} "$work/client"
refused "an application" "another authority has signed"
cp "$work"/theirs/{ca.pem,node.pem,node.key} "$work/client"
refused "a node" "signed by another authority"
status >/dev/null 2>&1 && fail "status believes another authority"

echo "seven hosts, TLS on every connection, strangers kept out"
