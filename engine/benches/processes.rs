//! What dies and returns as a process on this host, over shared memory: how long others are without
//! it, and what filling a memory node costs.
//!
//! Not by criterion: each figure takes a cluster of its own. The processes are those of
//! `tests/processes`, with this program in the place of the test's.

#[path = "../tests/all/processes/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the tests are left out")]
mod processes;

fn main() -> std::io::Result<()> {
    if processes::children::play_role() {
        return Ok(());
    }
    // Whoever only wants to know whether it runs does not ask for a benchmark.
    processes::speed::measure(std::env::args().any(|arg| arg == "--bench"))
}
