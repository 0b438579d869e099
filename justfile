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

# The rdma back end on Soft-RoCE devices, in a virtual machine made from Debian packages.
rdma-test:
    RDMA_TEST_REQUIRED=1 scripts/rdma-test.sh

# A real Prometheus scrapes a cluster, and promtool checks its metrics. Needs Debian's `prometheus`.
prometheus:
    cargo build --release -p lotus-cli
    scripts/prometheus.sh

# Made-up bytes for everything that decodes what strangers send, half a minute each. Needs cargo-fuzz
# (`cargo install cargo-fuzz`).
fuzz seconds="30":
    RUSTC_BOOTSTRAP=1 cargo fuzz run tcp_verbs -- -max_total_time={{seconds}} -max_len=4096
    RUSTC_BOOTSTRAP=1 cargo fuzz run tcp_handshake -- -max_total_time={{seconds}} -max_len=4096
    RUSTC_BOOTSTRAP=1 cargo fuzz run datagrams -- -max_total_time={{seconds}} -max_len=65536
    RUSTC_BOOTSTRAP=1 cargo fuzz run client_frames -- -max_total_time={{seconds}} -max_len=4096

# Micro-benchmarks, then the whole engine on SmallBank.
bench:
    cargo bench --workspace
    cargo run --release -- bench smallbank
