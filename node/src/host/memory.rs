//! Checks that this host has the memory for the memory nodes of a cluster.

use std::fs;

use crate::config::file::ClusterFile;

/// Bytes of a gibibyte.
const GIB: f64 = (1_u64 << 30) as f64;

/// Checks this host's memory against that of `memory_nodes` nodes. `Some` is a warning: each node
/// fits, but not all of them together. Passes where the host does not tell its memory.
///
/// # Errors
/// A sentence: not even one node fits.
pub fn check_memory(file: &ClusterFile, memory_nodes: usize) -> Result<Option<String>, String> {
    let wanted = file.settings.memory_bytes;
    memory_bytes().map_or(Ok(None), |there| fits(file, wanted, memory_nodes, there))
}

fn fits(
    file: &ClusterFile,
    wanted: u64,
    memory_nodes: usize,
    there: u64,
) -> Result<Option<String>, String> {
    let in_gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / GIB);
    let (path, each, host) = (file.path.display(), in_gib(wanted), in_gib(there));
    if wanted > there {
        return Err(format!(
            "{path}: memory is {each} for each memory node, and this host has {host}: lower memory"
        ));
    }
    let all = wanted.saturating_mul(memory_nodes as u64);
    Ok((all > there).then(|| {
        format!(
            "{path}: memory is {each} for each of the {memory_nodes} memory nodes here, and this \
             host has {host}: they do not fit when they are full"
        )
    }))
}

/// Memory of this host, or of the container that this runs in, if that is less.
fn memory_bytes() -> Option<u64> {
    let host = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total(&text))?;
    let container = fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let container = container.and_then(|text| text.trim().parse().ok());
    Some(container.map_or(host, |limit: u64| limit.min(host)))
}

/// Total memory by `/proc/meminfo`, in bytes.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_kernel_says_what_there_is() {
        assert_eq!(total("MemTotal:        1024 kB\nMemFree: 1 kB\n"), Some(1 << 20));
        assert_eq!(total("MemFree: 1 kB\n"), None);
        assert!(memory_bytes().is_some_and(|bytes| bytes > 1 << 20));
    }

    #[test]
    fn memory_that_the_host_has_not_is_refused_or_warned_of() {
        let path = std::env::temp_dir().join(format!("lotus-host-{}.toml", std::process::id()));
        fs::write(&path, "fabric = \"shm\"\n[[memory_node]]\n[[compute_node]]\n").unwrap();
        let file = ClusterFile::read(Path::new(&path), None);
        fs::remove_file(&path).unwrap();
        let file = file.expect("sound");
        let gib = |count: u64| count << 30;
        assert_eq!(fits(&file, gib(8), 3, gib(24)), Ok(None));
        let warned = fits(&file, gib(9), 3, gib(24)).expect("one fits").expect("three do not");
        assert!(warned.contains("9.0 GiB for each of the 3 memory nodes"), "{warned}");
        let refused = fits(&file, gib(1000), 1, gib(24)).expect_err("it does not fit");
        assert!(refused.contains("1000.0 GiB") && refused.contains("24.0 GiB"), "{refused}");
    }
}
