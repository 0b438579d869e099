#!/usr/bin/env bash
# Builds from nothing: wall time, processor time, and the compilations that take longest. Each build
# has a folder of its own, which is removed afterwards; crates of the registry are fetched before.
#
# usage: scripts/build-times.sh [program|workspace|tests|client]... (all, without arguments)
#
#   program    what the first command of the README builds: `cargo build --release --bin lotus`
#   workspace  all programs and libraries: `cargo build --release --workspace`
#   tests      what the second command builds: `cargo test --workspace --no-run`
#   client     the client library alone: `cargo build --release -p lotus-client`
set -euo pipefail
cd "$(dirname "$0")/.."

command_of() {
    case "$1" in
        program) echo build --release --bin lotus ;;
        workspace) echo build --release --workspace ;;
        tests) echo test --workspace --no-run ;;
        client) echo build --release -p lotus-client ;;
        *)
            echo "usage: scripts/build-times.sh [program|workspace|tests|client]..." >&2
            exit 2
            ;;
    esac
}

# The ten longest compilations, from the data in cargo's report.
longest() {
    python3 - "$1" <<'PYTHON'
import json, re, sys
text = open(sys.argv[1]).read()
units = json.loads(re.search(r"const UNIT_DATA = (\[.*?\]);\n", text, re.S).group(1))
for unit in sorted(units, key=lambda unit: -unit["duration"])[:10]:
    print(f"  {unit['duration']:7.1f} s  {unit['name']}{unit['target']}")
PYTHON
}

cargo fetch --quiet
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
builds=("$@")
((${#builds[@]})) || builds=(program workspace tests client)
for build in "${builds[@]}"; do
    words=$(command_of "$build")
    # shellcheck disable=SC2086 # The words of the command.
    CARGO_INCREMENTAL=0 CARGO_TARGET_DIR=$folder \
        bash -c 'TIMEFORMAT="%R %U %S"; time cargo "$@" --timings >"$0/log" 2>&1' \
        "$folder" $words 2>"$folder/times" || { tail "$folder/log" >&2; exit 1; }
    read -r wall user system <"$folder/times"
    awk -v name="cargo $words" -v wall="$wall" -v user="$user" -v kernel="$system" 'BEGIN {
        printf "%s: %.0f s, %.0f s of processor time\n", name, wall, user + kernel }'
    longest "$folder/cargo-timings/cargo-timing.html"
    test "$build" != program || du -h "$folder/release/lotus" | awk '{ print "  " $1 " program" }'
    rm -rf "${folder:?}"/*
done
