# Hosts that are network namespaces, each with a cable to a switch, for scripts that read this with
# `source`. Needs root. The machine's own network is not touched.
#
# `lay_cables NAME HOST...` makes them: namespaces NAME-HOST with addresses 10.90.0.11 and on in
# their order, and NAME-switch, where the other end of each cable has its host's name.
# `remove_cables` removes all that was made; nobody may live there any more.

namespaces=()

# Whether there is a namespace of this name now.
add_namespace() {
    ip netns add "$1" 2>/dev/null && namespaces+=("$1") && ip -n "$1" link set lo up
}

# Whether all could be made. Nothing is if namespaces cannot be made here.
lay_cables() {
    local name=$1 at=10 host
    shift
    add_namespace "$name-switch" || return 1
    ip -n "$name-switch" link add bridge type bridge && ip -n "$name-switch" link set bridge up
    for host in "$@"; do
        at=$((at + 1))
        add_namespace "$name-$host"
        ip -n "$name-$host" link add eth0 type veth peer name "$host" netns "$name-switch"
        ip -n "$name-switch" link set "$host" master bridge up
        ip -n "$name-$host" address add "10.90.0.$at/24" dev eth0
        ip -n "$name-$host" link set eth0 up
    done
}

remove_cables() {
    local namespace
    for namespace in "${namespaces[@]}"; do
        ip netns delete "$namespace" || true
    done
}
