//! Checks that the host has enough memory for a cluster's memory nodes.
//!
//! A process may have less memory than its host: control groups (containers, units of an init
//! system) limit the process, and a group's limit includes all groups below. The kernel kills a
//! process that exceeds the limit, without a warning; so the lowest limit on the way from the
//! process's group to the root counts.

use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::config::file::ClusterFile;

/// Bytes of a gibibyte.
const GIB: f64 = (1_u64 << 30) as f64;
/// Paths of groups of version 2, alone or beside version 1, and the file with a group's limit.
const UNIFIED: [&str; 2] = ["sys/fs/cgroup", "sys/fs/cgroup/unified"];
const UNIFIED_LIMIT: &str = "memory.max";
/// The same paths for version 1, which has a separate tree for memory.
const OLD: [&str; 1] = ["sys/fs/cgroup/memory"];
const OLD_LIMIT: &str = "memory.limit_in_bytes";

/// Memory available to a process.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Room {
    bytes: u64,
    /// The limiting control group; `None` for the host itself.
    group: Option<PathBuf>,
}

/// Checks this host's memory against the memory of `memory_nodes` nodes. `Some` is a warning: the
/// nodes fit individually, but not together. Passes if the host does not tell its memory.
///
/// # Errors
/// A sentence: no node fits.
pub fn check_memory(file: &ClusterFile, memory_nodes: usize) -> Result<Option<String>, String> {
    let wanted = file.settings.memory_bytes;
    room(Path::new("/")).map_or(Ok(None), |room| fits(file, wanted, memory_nodes, &room))
}

fn fits(
    file: &ClusterFile,
    wanted: u64,
    memory_nodes: usize,
    room: &Room,
) -> Result<Option<String>, String> {
    let in_gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / GIB);
    let (path, each, there) = (file.path.display(), in_gib(wanted), in_gib(room.bytes));
    let host = match &room.group {
        None => format!("this host has {there}"),
        Some(group) => format!("the limit of the control group {} is {there}", group.display()),
    };
    if wanted > room.bytes {
        return Err(format!(
            "{path}: memory is {each} for each memory node, and {host}: lower memory"
        ));
    }
    let all = wanted.saturating_mul(memory_nodes as u64);
    Ok((all > room.bytes).then(|| {
        format!(
            "{path}: memory is {each} for each of the {memory_nodes} memory nodes here, and \
             {host}: they do not fit when they are full"
        )
    }))
}

/// Memory of the host, or of the process's narrowest control group, if less; read from `/proc` and
/// `/sys` below `root`.
fn room(root: &Path) -> Option<Room> {
    let host = fs::read_to_string(root.join("proc/meminfo")).ok().and_then(|text| total(&text))?;
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let limits = groups.lines().filter_map(group).flat_map(|(version, group)| {
        let (places, file): (&[&str], _) = match version {
            Version::Unified => (&UNIFIED, UNIFIED_LIMIT),
            Version::Old => (&OLD, OLD_LIMIT),
        };
        places.iter().flat_map(move |place| limits(root, place, group, file))
    });
    let narrowest = limits.min_by_key(|room| room.bytes).filter(|room| room.bytes < host);
    Some(narrowest.unwrap_or(Room { bytes: host, group: None }))
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Version {
    Unified,
    Old,
}

/// The group of a line of `/proc/self/cgroup`, if the group may limit memory.
fn group(line: &str) -> Option<(Version, &str)> {
    let mut fields = line.splitn(3, ':');
    let (number, controllers, group) = (fields.next()?, fields.next()?, fields.next()?);
    if controllers.is_empty() {
        return (number == "0").then_some((Version::Unified, group));
    }
    controllers.split(',').any(|one| one == "memory").then_some((Version::Old, group))
}

/// Limits of a group and its ancestors. A container may see its own group as the root of the tree,
/// and be given a path on its host: missing groups are skipped.
fn limits(root: &Path, place: &str, group: &str, file: &str) -> Vec<Room> {
    let tree = root.join(place);
    let names = Path::new(group).components().filter_map(|part| match part {
        Component::Normal(name) => Some(name),
        _ => None,
    });
    let mut at = names.fold(tree.clone(), |at, name| at.join(name));
    let mut found = Vec::new();
    loop {
        let limit = fs::read_to_string(at.join(file)).ok();
        // "max" means no limit.
        if let Some(bytes) = limit.and_then(|text| text.trim().parse().ok()) {
            found.push(Room { bytes, group: Some(at.clone()) });
        }
        if at == tree || !at.pop() {
            return found;
        }
    }
}

/// Total memory from `/proc/meminfo`, in bytes.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// The room of a host of 1 GiB with these files.
    fn room_of(files: &[(&str, &str)]) -> Room {
        let root = tempfile::tempdir().expect("there is room");
        let host = [("proc/meminfo", "MemTotal:     1048576 kB\n")];
        for (path, text) in host.iter().chain(files) {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("there is room");
            fs::write(path, text).expect("there is room");
        }
        let mut found = room(root.path()).expect("the host tells");
        if let Some(group) = &mut found.group {
            *group = group.strip_prefix(root.path()).expect("below it").to_owned();
        }
        found
    }

    #[test]
    fn the_narrowest_group_on_the_way_to_the_root_counts() {
        let unified = ("proc/self/cgroup", "0::/system.slice/lotus.service\n");
        let old =
            ("proc/self/cgroup", "5:cpu,cpuacct:/\n4:hugetlb,memory:/docker/abc\n1:name=x:/\n");
        let at = |path: &'static str, mib: u64| (path, (mib * MIB).to_string());
        let unlimited = |path: &'static str| (path, "9223372036854771712".to_owned());
        let cases = [
            // No limit anywhere, and no groups at all.
            (unified, vec![("sys/fs/cgroup/system.slice/memory.max", "max\n".to_owned())], None),
            (("proc/self/cgroup", ""), vec![at("sys/fs/cgroup/memory.max", 5)], None),
            // Its own group, one above it, and the root as a container sees it.
            (
                unified,
                vec![at("sys/fs/cgroup/system.slice/lotus.service/memory.max", 300)],
                Some(300),
            ),
            (
                unified,
                vec![
                    at("sys/fs/cgroup/system.slice/lotus.service/memory.max", 300),
                    at("sys/fs/cgroup/system.slice/memory.max", 200),
                ],
                Some(200),
            ),
            (unified, vec![at("sys/fs/cgroup/memory.max", 100)], Some(100)),
            (
                ("proc/self/cgroup", "0::/../../other\n"),
                vec![at("sys/fs/cgroup/memory.max", 9)],
                Some(9),
            ),
            // A group beside it is another's.
            (unified, vec![at("sys/fs/cgroup/user.slice/memory.max", 1)], None),
            // Both versions at once.
            (
                ("proc/self/cgroup", "2:memory:/a\n0::/a\n"),
                vec![
                    at("sys/fs/cgroup/unified/a/memory.max", 70),
                    at("sys/fs/cgroup/memory/a/memory.limit_in_bytes", 60),
                ],
                Some(60),
            ),
            // Version 1: its own group, and that of a container that is told of its host's path.
            (old, vec![at("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", 50)], Some(50)),
            (old, vec![at("sys/fs/cgroup/memory/memory.limit_in_bytes", 40)], Some(40)),
            (old, vec![unlimited("sys/fs/cgroup/memory/memory.limit_in_bytes")], None),
            // More than the host has is no limit.
            (unified, vec![at("sys/fs/cgroup/memory.max", 4096)], None),
        ];
        for (groups, limits, expected) in cases {
            let files: Vec<_> = limits.iter().map(|(path, text)| (*path, &**text)).collect();
            let found = room_of(&[&[groups][..], &files].concat());
            assert_eq!(found.bytes, expected.unwrap_or(1024) * MIB, "{groups:?} {files:?}");
            assert_eq!(found.group.is_some(), expected.is_some(), "{groups:?} {files:?}");
        }
    }

    #[test]
    fn the_kernel_says_what_there_is() {
        assert_eq!(total("MemTotal:        1024 kB\nMemFree: 1 kB\n"), Some(1 << 20));
        assert_eq!(total("MemFree: 1 kB\n"), None);
        assert!(room(Path::new("/")).is_some_and(|room| room.bytes > 1 << 20));
    }

    #[test]
    fn memory_that_the_host_has_not_is_refused_or_warned_of() {
        let path = std::env::temp_dir().join(format!("lotus-host-{}.toml", std::process::id()));
        fs::write(&path, "fabric = \"shm\"\n[[memory_node]]\n[[compute_node]]\n").unwrap();
        let file = ClusterFile::read(Path::new(&path), None);
        fs::remove_file(&path).unwrap();
        let file = file.expect("sound");
        let gib = |count: u64| count << 30;
        let host = Room { bytes: gib(24), group: None };
        assert_eq!(fits(&file, gib(8), 3, &host), Ok(None));
        let warned = fits(&file, gib(9), 3, &host).expect("one fits").expect("three do not");
        assert!(warned.contains("9.0 GiB for each of the 3 memory nodes"), "{warned}");
        let group = Room { bytes: 300 * MIB, group: Some("/sys/fs/cgroup/a".into()) };
        let refused = fits(&file, gib(1), 1, &group).expect_err("it does not fit");
        assert!(refused.contains("control group /sys/fs/cgroup/a is 0.3 GiB"), "{refused}");
        let refused = fits(&file, gib(1000), 1, &host).expect_err("it does not fit");
        assert!(refused.contains("1000.0 GiB") && refused.contains("24.0 GiB"), "{refused}");
    }
}
