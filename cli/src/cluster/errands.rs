//! What `lotus bench --cluster` asks of compute nodes beside transactions: counts, and an audit.
//! The questions go by [`Mailbox`].

use std::sync::Arc;
use std::time::Duration;

use lotus::{Cluster, Machines};
use lotus_benchmarks::audit::{Check, Effects};
use lotus_benchmarks::deployment::{Deployment, Ownership, Traffic};
use lotus_benchmarks::lotus::Embedded;
use lotus_benchmarks::workload::Workload;
use lotus_router::Authority;
use serde::{Deserialize, Serialize};

use super::mailbox::Mailbox;
use super::node::Node;
use super::rest::Rest;
use crate::applications::{AbortCounts, Aborts};

/// What a node is asked for.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Errand {
    /// What it has counted, once its transactions have settled.
    Count,
    /// Whether all data is as it must be after transactions of this effect. Nothing else may run.
    Audit(Effects),
}

/// What came of it.
#[derive(Debug, Serialize, Deserialize)]
pub enum Done {
    /// Since the node was started.
    Counted(Counted),
    /// The checks.
    Audited(Vec<Check>),
    /// It could not be done.
    Failed(String),
}

/// What a node has counted.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Counted {
    /// What it has sent.
    pub traffic: Traffic,
    /// Attempts that were aborted.
    pub aborts: AbortCounts,
    /// Where its transactions took locks, and the shards that it gave away.
    pub ownership: Ownership,
}

/// Where a node is sent on errands.
pub fn mailbox(node: Node) -> Mailbox {
    Mailbox::new("errand", node)
}

/// Asks a node, and waits.
///
/// # Errors
/// A sentence.
pub fn ask(
    authority: &dyn Authority,
    node: Node,
    errand: Errand,
    patience: Duration,
) -> Result<Done, String> {
    let asked = mailbox(node).put(authority, &errand, patience);
    match asked.map_err(|error| error.to_string())?.wait(authority, patience)? {
        Done::Failed(why) => Err(format!("{}: {why}", node.in_words())),
        done => Ok(done),
    }
}

/// The side of a node.
pub struct Errands<M: Machines, W> {
    /// Where it looks for errands.
    pub mailbox: Mailbox,
    /// Its part of the cluster.
    pub cluster: Arc<Cluster<M>>,
    /// What it was loaded with.
    pub workload: Arc<W>,
    /// What its stored transactions count.
    pub aborts: Arc<Aborts>,
}

/// Somebody who looks for questions.
pub trait Look {
    /// It is said that all nodes rest, before this one has begun to serve. Nothing is done unless
    /// it looks after that.
    fn find(&mut self, _rest: Rest) {}

    /// Answers what is asked, if anything is that was not answered.
    fn look(&mut self, authority: &dyn Authority);
}

impl<M: Machines + 'static, W: Workload> Look for Errands<M, W>
where
    Cluster<M>: Send + Sync,
{
    fn look(&mut self, authority: &dyn Authority) {
        let Some((version, errand)) = self.mailbox.next(authority) else { return };
        let done = self.carry_out(errand).unwrap_or_else(Done::Failed);
        self.mailbox.answer(authority, version, &done);
    }
}

impl<M: Machines + 'static, W: Workload> Errands<M, W> {
    fn carry_out(&self, errand: Errand) -> Result<Done, String> {
        let sentence = |error: &dyn std::fmt::Display| error.to_string();
        self.cluster.settle().map_err(|error| sentence(&error))?;
        let mut deployment = Embedded::around(Arc::clone(&self.cluster));
        Ok(match errand {
            Errand::Count => Done::Counted(Counted {
                traffic: deployment.traffic(),
                aborts: self.aborts.counts(),
                ownership: deployment.ownership(),
            }),
            Errand::Audit(effects) => {
                let checks = self.workload.audit(&mut deployment, &effects);
                let mut checks = checks.map_err(|error| sentence(&error))?;
                checks.extend(deployment.audit().map_err(|error| sentence(&error))?);
                Done::Audited(checks)
            }
        })
    }
}
