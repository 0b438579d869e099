//! Resources of a process on this host, as counted by the kernel.

use std::fs;

/// The anonymous memory of a process of this host, in bytes.
pub fn anonymous_bytes(process: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}
