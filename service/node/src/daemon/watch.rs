//! Log lines about other nodes: changes of the membership, silent memory nodes, cut paths, and
//! waits of all nodes.

use std::time::Duration;

use lotus::{Authority, Cluster, MemoryStanding, MemoryStatus};
use lotus_fabric::env::Nanos;
use lotus_fabric::ids::{Epoch, NodeId};
use lotus_recovery::Membership;
use lotus_recovery::membership::cuts::Cut;
use lotus_recovery::membership::{self, FIRST_EPOCH};
use tracing::{error, info, warn};

use crate::config::file::ClusterFile;
use crate::config::name::NodeName;

/// Time without new transactions before a log line.
const LONG_WAIT: Duration = Duration::from_secs(5);

/// Names of nodes, as commands take them.
fn names(file: &ClusterFile, nodes: &[NodeId]) -> String {
    let names: Vec<String> =
        nodes.iter().map(|node| NodeName::of(*node, file).to_string()).collect();
    format!("[{}]", names.join(", "))
}

/// Logs changes of other nodes.
pub(super) struct Watch<'a> {
    file: &'a ClusterFile,
    authority: &'a dyn Authority,
    epoch: Epoch,
    /// Expelled compute nodes and lost memory nodes.
    out: (Vec<NodeId>, Vec<NodeId>),
    /// Number of dropped tables whose memory has been given back.
    cleared: u32,
    pub(super) answered: bool,
    /// Whether the authority has been silent for a lease, or is known to have ended.
    lacks_authority: bool,
    /// Silent memory nodes.
    pub(super) silent: Vec<usize>,
    /// Paths between compute nodes that are cut, as reported.
    cuts: Vec<Cut>,
    /// Lost memory nodes.
    lost: Vec<usize>,
    /// Memory nodes that have last copies, and do not answer.
    last: Vec<usize>,
    /// Since when no transaction begins, and whether that was logged.
    waits: Option<(Nanos, bool)>,
}

impl<'a> Watch<'a> {
    /// Creates a watch before its first look.
    pub(super) fn new(file: &'a ClusterFile, authority: &'a dyn Authority) -> Self {
        Self {
            file,
            authority,
            epoch: FIRST_EPOCH,
            out: Default::default(),
            cleared: 0,
            answered: true,
            lacks_authority: false,
            silent: Vec::new(),
            cuts: Vec::new(),
            lost: Vec::new(),
            last: Vec::new(),
            waits: None,
        }
    }

    /// Logs which memory nodes stop answering, or answer again.
    pub(super) fn look_at_memory(&mut self, cluster: &Cluster, compute_node: usize) {
        if !self.silent.is_empty() {
            cluster.look_for_memory();
        }
        let MemoryStatus { nodes, copies } = cluster.memory_known(compute_node);
        let all = |what: MemoryStanding| -> Vec<usize> {
            (0..nodes.len()).filter(|node| nodes[*node] == what).collect()
        };
        let (lost, last) = (all(MemoryStanding::Lost), all(MemoryStanding::OutOfReach));
        let left = copies.into_iter().min().unwrap_or(0);
        for node in lost.iter().filter(|node| !self.lost.contains(node)) {
            error!("memory node {node} is lost: copies of each row left: {left} at least");
        }
        for node in last.iter().filter(|node| !self.last.contains(node)) {
            error!(
                "memory node {node} does not answer and has the last copies of some rows: they are \
                 lost, and cannot be read or written, unless it comes back with its memory"
            );
        }
        for node in self.last.iter().filter(|node| !last.contains(node)) {
            info!("memory node {node}, with the last copies of some rows, answers again");
        }
        for node in self.lost.iter().filter(|node| !lost.contains(node)) {
            info!("memory node {node} is back, and is given what it missed");
        }
        let silent = cluster.silent_memory(compute_node);
        for node in silent.iter().filter(|node| !self.silent.contains(node)) {
            error!("memory node {node} does not answer: nothing can be written without it");
        }
        let kept = self.silent.iter().filter(|node| !lost.contains(node));
        for node in kept.filter(|node| !silent.contains(node)) {
            info!("memory node {node} answers again");
        }
        (self.silent, self.lost, self.last) = (silent, lost, last);
    }

    /// Logs a long wait between nodes, during which no transaction begins.
    pub(super) fn look_at_waits(&mut self, cluster: &Cluster, compute_node: usize, now: Nanos) {
        match (cluster.is_open(compute_node), self.waits) {
            (true, Some((_, told))) => {
                if told {
                    info!("transactions begin again");
                }
                self.waits = None;
            }
            (true, None) => {}
            (false, None) => self.waits = Some((now, false)),
            (false, Some((since, false))) if now.since(since) >= LONG_WAIT => {
                error!(
                    "no transaction begins: not all nodes have let go of a memory node that was \
                     lost or came back, or of a dropped table"
                );
                self.waits = Some((since, true));
            }
            (false, Some(_)) => {}
        }
    }

    /// Logs which compute nodes do not reach each other.
    fn look_at_paths(&mut self, now: &Membership) {
        let named = |id| NodeName::all(self.file).find(|node| node.id(self.file) == id);
        for cut in now.cuts().iter().filter(|cut| !self.cuts.contains(cut)) {
            let (Some(by), Some(to)) = (named(cut.by), named(cut.to)) else { continue };
            let (by, to) = (by.in_words(), to.in_words());
            error!("{by} does not reach {to}, though both take part: one of them is to give way");
        }
        self.cuts = now.cuts().to_vec();
    }

    /// Logs changes of the membership.
    pub(super) fn look(&mut self) {
        let members = membership::read(self.authority);
        if members.is_ok() != self.answered {
            self.answered = members.is_ok();
            match self.answered {
                true => info!("the authority answers again"),
                false => warn!("the authority does not answer"),
            }
        }
        let lease = self.file.settings.lease;
        let lacks_authority = lease.is_some_and(|lease| self.authority.silence() >= lease);
        if lacks_authority && !self.lacks_authority {
            error!(
                "the authority has ended, or has been silent for a lease: nothing is committed \
                 until it answers"
            );
        }
        self.lacks_authority = lacks_authority;
        let Ok(now) = members else { return };
        self.look_at_paths(&now);
        if now.epoch() > self.epoch {
            self.epoch = now.epoch();
            let expelled: Vec<NodeId> = now.expelled().map(|(member, _)| member.node).collect();
            let lost: Vec<NodeId> = now.lost_memory().iter().map(|lost| lost.node).collect();
            let cleared = now.cleared() - std::mem::replace(&mut self.cleared, now.cleared());
            let clearing = now.clearing().map(|clearing| clearing.table().0);
            let out = (expelled, lost);
            let epoch = self.epoch.0;
            if out != self.out {
                let [expelled, lost] = [&out.0, &out.1].map(|nodes| names(self.file, nodes));
                warn!(epoch, %expelled, %lost, "the membership has changed");
            } else if let Some(table) = clearing {
                info!(epoch, table, "all nodes let go of a dropped table");
            } else if cleared > 0 {
                info!(epoch, tables = cleared, "the memory of dropped tables has been given back");
            } else {
                info!(epoch, "the membership has changed; as many nodes take part as before");
            }
            self.out = out;
        }
    }
}
