//! What `lotus bench --cluster` asks of compute nodes beside transactions: counts, and an audit.
//!
//! An errand is a value at the authority, and so is its outcome: a node's daemon looks for a new
//! one every time it looks around. Nobody hurries, and nothing of the cluster rests on it. Of two
//! benchmarks that ask a node at the same time, one finds that the other's errand has taken the
//! place of its own, and asks again.

use std::sync::Arc;
use std::time::Duration;

use lotus::{Cluster, Machines};
use lotus_benchmarks::audit::{Check, Effects};
use lotus_benchmarks::deployment::{Deployment, Traffic};
use lotus_benchmarks::lotus::Embedded;
use lotus_benchmarks::workload::Workload;
use lotus_fabric::env::Env;
use lotus_router::authority::Version;
use lotus_router::{Authority, AuthorityError};
use serde::{Deserialize, Serialize};

use super::node::Node;
use super::processes::wait_until;
use super::records;
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
}

/// An errand's outcome, with the version of the errand.
#[derive(Debug, Serialize, Deserialize)]
struct Outcome {
    of: u64,
    done: Done,
}

fn asked(node: Node) -> String {
    format!("errand/{node}")
}

fn answered(node: Node) -> String {
    format!("errand/{node}/done")
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
    let sentence = |error: AuthorityError| error.to_string();
    let mut version = records::write(authority, &asked(node), &errand).map_err(sentence)?;
    let mut done = None;
    wait_until(&Env::real(0), patience, || {
        let found = records::read::<Outcome>(authority, &answered(node));
        match found.ok().and_then(|(_, outcome)| outcome) {
            Some(outcome) if outcome.of == version.0 => done = Some(outcome.done),
            // Somebody else's, which has taken the place of ours.
            Some(outcome) if outcome.of > version.0 => {
                let again = records::write(authority, &asked(node), &errand);
                version = again.unwrap_or(version);
            }
            _ => {}
        }
        done.is_some()
    });
    match done {
        Some(Done::Failed(why)) => Err(format!("{}: {why}", node.in_words())),
        Some(done) => Ok(done),
        None => Err(format!("{} does not answer after {patience:?}", node.in_words())),
    }
}

/// The side of a node.
pub struct Errands<M: Machines, W> {
    /// Who it is.
    pub node: Node,
    /// Its part of the cluster.
    pub cluster: Arc<Cluster<M>>,
    /// What it was loaded with.
    pub workload: Arc<W>,
    /// What its stored transactions count.
    pub aborts: Arc<Aborts>,
    /// The errand that was done last.
    pub seen: Version,
}

/// Somebody who looks for errands.
pub trait Look {
    /// Does what is asked for, if anything is that has not been done.
    fn look(&mut self, authority: &dyn Authority);
}

impl<M: Machines + 'static, W: Workload> Look for Errands<M, W>
where
    Cluster<M>: Send + Sync,
{
    fn look(&mut self, authority: &dyn Authority) {
        let Ok((version, errand)) = records::read::<Errand>(authority, &asked(self.node)) else {
            return;
        };
        if version <= self.seen {
            return;
        }
        self.seen = version;
        let Some(errand) = errand else { return };
        let done = self.carry_out(errand).unwrap_or_else(Done::Failed);
        // Whoever has asked will say that nobody answered.
        let _ = records::write(authority, &answered(self.node), &Outcome { of: version.0, done });
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
