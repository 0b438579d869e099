//! Open files of this process: a node raises the limit as needed, or does not start.
//!
//! Distributions start a process with a limit of 1,024 open files, for programs that still use
//! `select`, and allow several hundred thousand. A node without a file left would go on without new
//! connections, including its own connections to other nodes, and look healthy.

use lotus_authority::remote::{MAX_CONNECTIONS, MAX_GUESTS};
use lotus_fabric::tcp;
use lotus_server::{Limits, METRICS_CONNECTIONS};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::info;

use crate::config::file::{ClusterFile, Net};
use crate::config::name::{NodeKind, NodeName};

/// Files beside connections: the program, logs, snapshots, regions, epoll, timers.
const OTHERS: u64 = 256;
/// Lanes of a compute node beside its coordinators' lanes: for membership and operators.
const OWN_LANES: u64 = 2;

/// Ensures that this process, the future `node`, may have enough open files.
///
/// # Errors
/// A sentence: the system refuses.
pub fn provide(file: &ClusterFile, node: NodeName) -> Result<(), String> {
    let (needed, now) = (needed(file, node), getrlimit(Resource::Nofile));
    let soft = raised(needed, now.current, now.maximum).map_err(|hard| {
        let (path, node) = (file.path.display(), node.in_words());
        let clients = match node_clients(file) {
            0 => "raise the limit".to_owned(),
            clients => format!(
                "raise the limit, or set connections in [clients] lower, which is {clients}"
            ),
        };
        format!(
            "{path}: {node} needs {needed} open files, and this process may have {hard} (the hard \
             limit, ulimit -Hn): {clients}"
        )
    })?;
    let Some(soft) = soft else { return Ok(()) };
    setrlimit(Resource::Nofile, Rlimit { current: Some(soft), maximum: now.maximum })
        .map_err(|error| format!("the limit of open files cannot be raised to {soft}: {error}"))?;
    info!(from = now.current, to = soft, "raised the limit of open files");
    Ok(())
}

/// The soft limit to set, if it must be raised; the hard limit if too low. `None` means no limit.
fn raised(needed: u64, soft: Option<u64>, hard: Option<u64>) -> Result<Option<u64>, u64> {
    match (soft, hard) {
        (_, Some(hard)) if hard < needed => Err(hard),
        (Some(soft), _) if soft < needed => Ok(Some(needed)),
        _ => Ok(None),
    }
}

/// Maximum number of clients of a compute node.
fn node_clients(file: &ClusterFile) -> usize {
    if file.serves_applications() { file.applications.connections } else { 0 }
}

/// Open files that a node may need: the maximum of concurrent connections at its ports, and
/// connections to other nodes, where every lane reaches a lane of each remote node.
fn needed(file: &ClusterFile, node: NodeName) -> u64 {
    let settings = &file.settings;
    let lanes = settings.coordinators as u64 + OWN_LANES;
    let compute_nodes = settings.compute_nodes as u64;
    let metrics = METRICS_CONNECTIONS as u64;
    let (at_the_fabric, authority) = match &file.net {
        Net::Shm { .. } => (u64::from(file.node_count()), 0),
        Net::Tcp { .. } => (tcp::Limits::default().guests as u64, 1),
    };
    let others = match node.kind {
        NodeKind::Memory if node.index == 0 => {
            2 * lanes * compute_nodes + (MAX_CONNECTIONS + MAX_GUESTS) as u64
        }
        NodeKind::Memory => 2 * lanes * compute_nodes,
        NodeKind::Compute => {
            let guests = Limits::default().guests.places as u64;
            // Network clients and clients of this host have separate doors.
            let guests = if file.serves_applications() { 2 * guests } else { 0 };
            2 * lanes * u64::from(file.node_count()) + node_clients(file) as u64 + guests
        }
    };
    OTHERS + metrics + at_the_fabric + authority + others
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn file(clients: &str) -> ClusterFile {
        let text = format!(
            "fabric = \"shm\"\n[[memory_node]]\n[[compute_node]]\nclient = \"127.0.0.1:7500\"\n\
             {clients}"
        );
        ClusterFile::parse(Path::new("/etc/c.toml"), &text, None).expect("sound")
    }

    #[test]
    fn a_limit_is_raised_as_far_as_is_needed_or_the_node_refuses() {
        let cases = [
            ((100, Some(1024), Some(4096)), Ok(None)),
            ((1024, Some(1024), Some(1024)), Ok(None)),
            ((2000, Some(1024), Some(4096)), Ok(Some(2000))),
            ((2000, Some(1024), None), Ok(Some(2000))),
            ((2000, None, None), Ok(None)),
            ((5000, Some(1024), Some(4096)), Err(4096)),
        ];
        for ((needed, soft, hard), expected) in cases {
            assert_eq!(raised(needed, soft, hard), expected, "{needed} {soft:?} {hard:?}");
        }
    }

    #[test]
    fn clients_need_files_at_compute_nodes_and_the_authority_at_memory_node_0() {
        let (usual, more) = (file(""), file("[clients]\nconnections = 3024\n"));
        let of = |file, name: &str| needed(file, name.parse().expect("a name"));
        assert_eq!(usual.applications.connections, 1024);
        assert_eq!(of(&more, "cn-0") - of(&usual, "cn-0"), 2000);
        assert!(of(&usual, "cn-0") > 1024 + 2 * 1024);
        assert!(of(&usual, "mn-0") >= 256 + 64);
        assert_eq!(of(&more, "mn-0"), of(&usual, "mn-0"));
    }

    #[test]
    fn a_setting_that_cannot_hold_is_refused_with_what_to_do() {
        let most = file("[clients]\nconnections = 1048576\n");
        if getrlimit(Resource::Nofile).maximum.is_some_and(|hard| hard < 1 << 20) {
            let why = provide(&most, NodeName::compute(0)).expect_err("there are fewer files");
            assert!(why.contains("connections in [clients]") && why.contains("1048576"), "{why}");
        }
    }
}
