#!/usr/bin/env bash
# Runs what README.md and the pages of docs/ (decisions left out) tell a reader to run: every command
# of every block of the shell (sh or console), in order, in a folder of the document's own that has
# what a checkout has. A command is a line, with the lines in which it goes on. One that takes long is
# run in a shorter form, and one that needs what this machine may not have is skipped, with the reason:
# the tables below say which. Any other must succeed, or its document, line and output are shown.
# Nothing is left, however it ends.
#
# usage: scripts/doc-commands.sh [DOCUMENT...]
# Needs the programs of the release build; with the features sabotage and fault-points
# more commands are run.
set -euo pipefail
cd "$(dirname "$0")/.."

# Shorter forms, as commands of sed, and other ways to the programs that are there.
SHORTER=(
    -e 's/^cargo build [^&]*&& *//'
    -e 's/^cargo run .*(--bin|-p) ([a-z-]+) (.* )?-- /\2 /'
    -e 's/^cargo run (.* )?-- /lotus /'
    -e 's/^cargo run .*--example ([a-z_-]+)/target\/release\/examples\/\1/'
    # Benchmarks: half a second, and in simulation 3 ms, of little data.
    -e '/ bench /s/ --(secs|warmup) [0-9.]+//g'
    -e '/ bench .*--fabric sim/s/$/ --secs 0.003/'
    -e '/ bench /{/--secs/!s/$/ --secs 0.5/}'
    -e '/ bench smallbank/{/--(accounts|cluster)/!s/$/ --accounts 10000/}'
    -e '/ bench kvs/{/--keys/!s/$/ --keys 10000/}'
    -e '/ bench tatp/{/--subscribers/!s/$/ --subscribers 10000/}'
    -e '/ bench tpcc/s/$/ --customers-per-district 300 --items 1000/'
    -e 's/ --(accounts|count|keys) [0-9]+0000/ --\1 10000/'
    # Campaigns: few seeds, one rule, one coordinate.
    -e 's/ --seeds [0-9]{3,}/ --seeds 20/'
    -e 's/ sim sabotage$/ sim sabotage --rule cells-begin-invisible/'
    -e '/--show/!s/ sim matrix.*/ sim matrix --only stop\/pause\/lock-owner/'
    -e 's/ cluster matrix.*/ cluster matrix --only rows-loaded\/kill\/cn-0/'
    # One experiment stands for all: a test compares the names of the others.
    -e 's/ figures run( [^- ][^ ]*)+/ figures run shiftlock-one-lock/'
    -e 's/ figures report/ figures report shiftlock-one-lock/'
    # Hostile applications are judged by a lease, which a busy machine does not keep.
    -e '/ chaos /{s/ --secs [0-9]+//;s/$/ --secs 3 --hostile 0/}'
    # No terminal is needed for one frame.
    -e '/ top /s/$/ --once/'
)

# Commands that are not run, and why.
SKIPPED=(
    '^sudo apt-get => it installs packages'
    '^cargo (build|test|bench)[^&]*$ => the programs are there, and the gate runs the tests'
    '^just verify => that is the gate'
    '--fabric rdma => it needs network cards'
    '--redis => it needs three servers of Redis'
    '^scripts/pgo.sh|^target/pgo/ => it builds the program twice'
    '^scripts/cluster-partitions.sh => it needs root, for hosts that are network namespaces'
)

# Commands, behind their documents, that end with another code than 0, and with which.
ENDINGS=(
    # What Motor loses as published, an audit or a check may find.
    'baselines.md:[0-9]+: lotus(-lab)? (bench .*--as-published|check) => [01]'
    '--scenario [a-z-]+ --as-published => 1'
    ' sim shrink => 2'
)

# Commands that need not be run a second time: they leave nothing that later ones use.
ONCE=' (matrix|sabotage|figures) '

release=$(realpath "${CARGO_TARGET_DIR:-target}/release")
export PATH="$release:$PATH"
checkout=$PWD
work=$(mktemp -d)
# Addresses of this run's own: all of 127/8 is this machine.
host=127.92.$(($$ / 256 % 256)).$(($$ % 255 + 1))

# Whether one of the programs has a command, which depends on the features of its build.
has() {
    lotus "$@" --help >/dev/null 2>&1 || lotus-lab "$@" --help >/dev/null 2>&1
}

end_clusters() {
    local state
    for state in "$work"/*/examples/*.state; do
        [ ! -d "$state" ] ||
            lotus cluster down --discard --file "${state%.state}.toml" >/dev/null 2>&1 || true
    done
}

clean_up() {
    trap '' INT TERM
    end_clusters
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# The commands of a document, each on a line behind the numbers of its block and of its line:
# lines that go on are joined, and comments left out.
commands() {
    awk '
        /^ *```/ {
            inside = !inside
            shell = inside && /```(sh|console)$/
            block += shell
            next
        }
        !shell { next }
        {
            if (text == "") begin = FNR
            line = $0
            sub(/(^| +)#.*$/, "", line)
            sub(/^ +/, "", line)
            text = text line
            if (sub(/\\$/, "", text)) next
            if (text ~ /\|$/) { text = text " "; next }
            if (text != "") print block "\t" begin "\t" text
            text = ""
        }
    ' "$1"
}

# What a table says of a text; fails if it says nothing.
said_of() {
    local text=$1 entry
    shift
    for entry in "$@"; do
        if [[ $text =~ ${entry% => *} ]]; then
            echo "${entry##* => }"
            return
        fi
    done
    return 1
}

# Makes the folder of a document: the files of a checkout that commands name. Files of clusters are
# copies, since the state of a cluster is beside its file.
make_folder() {
    mkdir -p "$1/examples" "$1/target"
    local file
    for file in examples/*.toml; do
        sed "s/127\.0\.0\.1/$host/" "$file" >"$1/$file"
    done
    ln -s "$checkout/lab" "$checkout/scripts" "$1"
    ln -s "$release" "$1/target/release"
}

# Runs one command, in the shell of its document, so that variables stay set for those after it.
run() {
    local place=$1 command=$2 reason expected status=0 began=$SECONDS
    if reason=$(said_of "$command" "${SKIPPED[@]}"); then
        echo "skipped: $place: $command: $reason"
        return
    fi
    command=$(sed -E "${SHORTER[@]}" <<<"$command")
    if reason=$(said_of "$command" "${SKIPPED[@]}"); then
        echo "skipped: $place: $command: $reason"
        return
    fi
    if [[ $command =~ $ONCE ]]; then
        if grep -qxF -- "$command" "$work/ran"; then
            echo "run before: $place: $command"
            return
        fi
        echo "$command" >>"$work/ran"
    fi
    expected=$(said_of "$place: $command" "${ENDINGS[@]}") || expected=0
    eval "$command" </dev/null >"$work/output" 2>&1 || status=$?
    if [[ ! $status =~ ^($expected)$ ]]; then
        tail -n 40 "$work/output" >&2
        echo "FAILED: $place: $command: the exit code is $status, not $expected" >&2
        return 1
    fi
    echo "$((SECONDS - began)) s: $place: $command"
}

# Runs the commands of a document. Clusters end with the block that has started them.
run_document() {
    local document=$1 folder=$work/${1//\//-} block line command last=
    make_folder "$folder"
    commands "$document" >"$folder.commands"
    cd "$folder"
    while IFS=$'\t' read -r -u 3 block line command; do
        [ "$block" = "$last" ] || end_clusters
        last=$block
        if [[ $command == *';'* ]]; then
            echo "FAILED: $document:$line: $command: a line is to be one command" >&2
            return 1
        fi
        run "$document:$line" "$command"
    done 3<"$folder.commands"
    end_clusters
}

touch "$work/ran"
has sim sabotage ||
    SKIPPED+=('sim sabotage|log-and-visible => the program was built without the feature sabotage')
has sim matrix ||
    SKIPPED+=(' matrix|LOTUS_FAULT_POINT => the program was built without the feature fault-points')
command -v openssl >/dev/null || SKIPPED+=('openssl => openssl is not installed')

documents=("$@")
if [ $# -eq 0 ]; then
    mapfile -t documents < <(find docs -name '*.md' -not -path 'docs/decisions/*' | sort)
    documents=(README.md "${documents[@]}")
fi
for document in "${documents[@]}"; do
    # In a shell of its own: what a document sets stays there.
    (
        trap - EXIT
        run_document "$document"
    )
done
echo "the commands of ${#documents[@]} documents succeed; $SECONDS s"
