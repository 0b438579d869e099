//! Resources that a process of this host uses, as the kernel counts them.

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

/// The anonymous memory of a process of this host, in bytes.
#[cfg(feature = "tcp")]
pub fn anonymous_bytes(process: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}
