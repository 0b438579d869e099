//! Resources used by a process of this host, as counted by the kernel.

use std::fs;
use std::time::Duration;

/// Processor time of a process's live threads; `None` where the kernel does not report it.
pub fn processor_time(process: u32) -> Option<Duration> {
    let mut total = Duration::ZERO;
    for thread in fs::read_dir(format!("/proc/{process}/task")).ok()? {
        let counts = fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        total += Duration::from_nanos(counts.split(' ').next()?.parse().ok()?);
    }
    Some(total)
}
