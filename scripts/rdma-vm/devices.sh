#!/usr/bin/env bash
# Makes $1 verbs devices, rxe0 to rxeN, each on a network interface of its own with the address
# 10.77.0.(N+1), all behind one bridge: as many hosts on one switch. For the guest, as root.
#
# All of them are in one network namespace, because Soft-RoCE works in no other. The kernel would
# therefore deliver what one sends to another within itself, past the devices: so what leaves
# through an interface is routed by a table of its own, which knows only the network behind it.
set -euo pipefail
hosts=$1
sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0
sysctl -qw net.ipv4.conf.all.accept_local=1 net.ipv4.conf.default.accept_local=1
ip rule add pref 200 lookup local
ip rule del pref 0
ip link add switch type bridge
ip link set switch mtu 4200 up
for ((host = 0; host < hosts; host++)); do
    ip link add "host$host" mtu 4200 type veth peer name "port$host" mtu 4200
    ip link set "port$host" master switch up
    ip link set "host$host" up
    ip addr add "10.77.0.$((host + 1))/24" dev "host$host" noprefixroute
    ip route add 10.77.0.0/24 dev "host$host" table $((1000 + host))
    ip rule add pref 100 oif "host$host" lookup $((1000 + host))
done
# Nobody has to ask for addresses, least of all for its own.
for ((host = 0; host < hosts; host++)); do
    for ((other = 0; other < hosts; other++)); do
        ip neigh add "10.77.0.$((other + 1))" dev "host$host" nud permanent \
            lladdr "$(cat "/sys/class/net/host$other/address")"
    done
    rdma link add "rxe$host" type rxe netdev "host$host"
done
