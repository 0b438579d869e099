//! Requests of `lotus bench --cluster` to compute nodes besides transactions: counts and audits.
//! They go through a [`Mailbox`].

use std::sync::Arc;
use std::time::Duration;

use lotus::Cluster;
use lotus_authority::Authority;
use lotus_benchmarks::audit::{Check, Effects};
use lotus_benchmarks::deployment::{Deployment, Ownership, Traffic};
use lotus_benchmarks::lotus::Embedded;
use lotus_benchmarks::workload::Workload;
use serde::{Deserialize, Serialize};

use lotus_node::agree::mailbox::{Mailbox, may_take_part};
use lotus_node::agree::mailbox_server::MailboxServer;
use lotus_node::config::file::ClusterFile;
use lotus_node::config::name::NodeName;
use lotus_runner::applications::load::{AbortCounts, Aborts};

/// Time limit for an audit by one node.
const AUDITING: Duration = Duration::from_secs(600);
/// Maximum number of audits by one node.
const LOOKS: usize = 3;
/// Checks that fail while a transaction is in progress.
const UNDER_WAY: [&str; 7] = [
    "every replica is byte for byte the same",
    "no cell is left INVISIBLE or torn",
    "every version has its record, whole and its own",
    "nothing is unresolved in the logs",
    "no lock is left held",
    "a lock slot without a holder is all zeroes",
    "every lock object is free",
];

/// Request to a node.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum NodeTask {
    /// Report the node's counts, once its transactions have settled.
    Count,
    /// Audit the data after transactions with these effects. Nothing else may run.
    Audit(Effects),
}

/// A node's answer.
#[derive(Debug, Serialize, Deserialize)]
pub enum Done {
    /// Counts since the node was started.
    Counted(Counted),
    /// Results of the audit's checks.
    Audited(Vec<Check>),
    /// The request failed; the text says why.
    Failed(String),
}

/// Counts of a node.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Counted {
    /// Messages and verbs sent by the node.
    pub traffic: Traffic,
    /// Aborted attempts.
    pub aborts: AbortCounts,
    /// Locks by the place where they were granted, and counters of hand-overs.
    pub ownership: Ownership,
}

/// Mailbox for tasks of `node`.
pub fn mailbox(node: NodeName) -> Mailbox {
    Mailbox::new("errand", node)
}

/// Has `node`, one of the serving nodes, audit all data after transactions with the given effects.
///
/// Servers run transactions of their own (`service/server/src/call_time.rs`), and on a busy machine
/// a request may still wait at a node after its client has given up. To an audit, a transaction in
/// progress looks like a transaction that never ends: log, locks and writes are left over. So an
/// audit is repeated if only checks of [`UNDER_WAY`] have failed; of [`LOOKS`] audits one must find
/// no fault.
///
/// # Errors
/// A sentence: a serving node does not answer, or `node` cannot read the data.
pub fn audit(
    file: &ClusterFile,
    authority: &dyn Authority,
    serving: &[NodeName],
    node: NodeName,
    effects: Effects,
) -> Result<Vec<Check>, String> {
    let mut checks = Vec::new();
    for _ in 0..LOOKS {
        // A node settles only its own transactions before an audit, but audits the rows of all
        // nodes: another node may still be purging deleted rows.
        for other in serving {
            ask(file, authority, *other, NodeTask::Count, AUDITING)?;
        }
        checks = match ask(file, authority, node, NodeTask::Audit(effects), AUDITING)? {
            Done::Audited(checks) => checks,
            _ => return Err(format!("{} has looked at nothing", node.in_words())),
        };
        let mut failed = checks.iter().filter(|check| check.has_failed()).peekable();
        let may_be_under_way = |check: &Check| UNDER_WAY.contains(&check.name.as_str());
        if failed.peek().is_none() || !failed.all(may_be_under_way) {
            break;
        }
    }
    Ok(checks)
}

/// Sends a request to a node, and waits for the answer while the node may take part.
///
/// # Errors
/// A sentence.
fn ask(
    file: &ClusterFile,
    authority: &dyn Authority,
    node: NodeName,
    task: NodeTask,
    patience: Duration,
) -> Result<Done, String> {
    let may_answer = || may_take_part(file, authority, node);
    let asked = mailbox(node).put_while(authority, &task, patience, may_answer);
    let asked = asked.map_err(|error| error.to_string())?;
    match asked.wait_while(authority, patience, may_answer)? {
        Done::Failed(why) => Err(format!("{}: {why}", node.in_words())),
        done => Ok(done),
    }
}

/// The node's side: carries out the requests in its mailbox.
pub struct NodeTaskServer<W> {
    /// Mailbox from which the node takes requests.
    pub mailbox: Mailbox,
    /// The node's part of the cluster.
    pub cluster: Arc<Cluster>,
    /// Workload that the node was loaded with.
    pub workload: Arc<W>,
    /// Aborts counted by the node's stored transactions.
    pub aborts: Arc<Aborts>,
}

impl<W: Workload> MailboxServer for NodeTaskServer<W> {
    fn look(&mut self, authority: &dyn Authority) {
        let Some((version, task)) = self.mailbox.next(authority) else { return };
        let done = self.carry_out(task).unwrap_or_else(Done::Failed);
        self.mailbox.answer(authority, version, &done);
    }
}

impl<W: Workload> NodeTaskServer<W> {
    fn carry_out(&self, task: NodeTask) -> Result<Done, String> {
        let sentence = |error: &dyn std::fmt::Display| error.to_string();
        self.cluster.settle().map_err(|error| sentence(&error))?;
        let mut deployment = Embedded::around(Arc::clone(&self.cluster));
        Ok(match task {
            NodeTask::Count => Done::Counted(Counted {
                traffic: deployment.traffic(),
                aborts: self.aborts.counts(),
                ownership: deployment.ownership(),
            }),
            NodeTask::Audit(effects) => {
                let checks = self.workload.audit(&mut deployment, &effects);
                let mut checks = checks.map_err(|error| sentence(&error))?;
                checks.extend(deployment.audit().map_err(|error| sentence(&error))?);
                Done::Audited(checks)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus::LockKind;

    #[test]
    fn checks_of_transactions_under_way_are_checks_of_audits() {
        let mut names = Vec::new();
        for locks in [LockKind::Lotus, LockKind::Dslr] {
            let cluster = Cluster::embedded().memory_nodes(1).replicas(1).locks(locks);
            let cluster = cluster.start().expect("it starts");
            let checks = Embedded::around(Arc::new(cluster)).audit().expect("it looks");
            names.extend(checks.into_iter().map(|check| check.name));
        }
        for name in UNDER_WAY {
            assert!(names.iter().any(|known| known == name), "{name}: {names:?}");
        }
    }
}
