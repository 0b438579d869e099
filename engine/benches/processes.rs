//! Failures and returns of processes on this host, over shared memory: the length of the outage,
//! and the cost of filling a memory node.
//!
//! Not a criterion benchmark: each measurement takes a cluster of its own. The processes are those
//! of `tests/all/processes`, started from this program instead of the test's.

#[path = "../tests/all/processes/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the tests are left out")]
mod processes;

fn main() -> std::io::Result<()> {
    if processes::children::play_role() {
        return Ok(());
    }
    // Without `--bench` one run of each kind shows that it works.
    processes::speed::measure(std::env::args().any(|arg| arg == "--bench"))
}
