# `just verify` is the read-only gate; `just fix` is the one command that changes files.

_default:
    @just --list --unsorted

# The gate: tests, format, lints, docs, interleavings. Changes nothing.
verify:
    .ci/run gate

# Format, and apply what the lints can mend by themselves.
fix:
    cargo fmt --all
    cargo clippy --workspace --all-targets --fix --allow-dirty --allow-staged

# Every interleaving of a few threads, for what is built on atomics and mutexes.
loom:
    .ci/run loom

# Whole clusters on virtual time, with faults; then with every rule of the protocol broken in turn.
simulate:
    .ci/run simulation

# All tests beside busy loops, as on a machine that compiles something else meanwhile.
busy:
    scripts/busy-tests.sh

# The rdma back end on Soft-RoCE devices, in a virtual machine made from Debian packages.
rdma-test:
    RDMA_TEST_REQUIRED=1 scripts/rdma-test.sh

# A real Prometheus scrapes a cluster, and promtool checks its metrics. Needs Debian's `prometheus`.
prometheus:
    cargo build --release -p lotus-cli
    scripts/prometheus.sh

# Made-up bytes for all that decodes what strangers send, or reads files and what the authority has,
# a minute each, with memory bounded: 1 GiB in all, 64 MiB at once. Needs cargo-fuzz
# (`cargo install cargo-fuzz`).
fuzz seconds="60":
    just fuzz-one tcp_verbs {{seconds}}
    just fuzz-one tcp_handshake {{seconds}}
    just fuzz-one datagrams {{seconds}} 65536
    just fuzz-one client_frames {{seconds}}
    just fuzz-one snapshots {{seconds}}
    just fuzz-one catalogue {{seconds}}
    just fuzz-one cluster_file {{seconds}} 4096 examples
    just fuzz-one state_files {{seconds}}

# One of these targets; `samples` is a folder to begin from besides what earlier runs have found.
fuzz-one target seconds="60" max_len="4096" samples="":
    mkdir -p proof/fuzz/corpus/{{target}}
    RUSTC_BOOTSTRAP=1 cargo fuzz run --fuzz-dir proof/fuzz {{target}} proof/fuzz/corpus/{{target}} {{samples}} -- \
        -max_total_time={{seconds}} -max_len={{max_len}} -rss_limit_mb=1024 -malloc_limit_mb=64

# Instructions of a committed transaction, by workload and layer, against those on record. Needs
# valgrind.
instructions:
    cargo bench --bench instructions

# Packs all crates and builds them as their users would get them; uploads nothing.
publishable:
    cargo publish --workspace --dry-run

# Micro-benchmarks, then the whole engine on SmallBank.
bench:
    cargo bench --workspace
    cargo run --release -- bench smallbank
