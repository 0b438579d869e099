//! Whether a cluster lives of which etcd remembers a life: whoever takes part answers.
//!
//! etcd outlives clusters, so what it says cannot tell one that goes on without memory node 0 from
//! one that was killed. Compute nodes look for a question all the time, and answer.

#[cfg(feature = "etcd")]
use std::time::Duration;

#[cfg(feature = "etcd")]
use lotus_fabric::env::Env;
#[cfg(feature = "etcd")]
use lotus_recovery::membership;
use lotus_router::Authority;

use super::errands::Look;
#[cfg(feature = "etcd")]
use super::file::ClusterFile;
use super::mailbox::Mailbox;
use super::node::Node;
#[cfg(feature = "etcd")]
use super::{
    node::Kind,
    processes::wait_until,
    records::{Record, Stage},
};

fn mailbox(node: Node) -> Mailbox {
    Mailbox::new("alive", node)
}

/// The side of a compute node that takes part.
pub struct Alive(Mailbox);

impl Alive {
    /// Of this one.
    pub fn new(node: Node) -> Self {
        Self(mailbox(node))
    }
}

impl Look for Alive {
    fn look(&mut self, authority: &dyn Authority) {
        if let Some((question, ())) = self.0.next(authority) {
            self.0.answer(authority, question, &());
        }
    }
}

/// Whether any compute node takes part in the life that goes on there. Asks the members that have
/// said last that they serve, and waits; if there are none it is known at once.
#[cfg(feature = "etcd")]
pub fn is_anybody(
    file: &ClusterFile,
    authority: &dyn Authority,
    env: &Env,
    patience: Duration,
) -> bool {
    let Ok(members) = membership::read(authority) else { return false };
    let serves = |node: &Node| {
        let record = Record::read(*node, authority).ok().flatten();
        let says_so = record.is_some_and(|record| record.stage == Stage::Serving);
        says_so && members.is_live(node.id(file))
    };
    let asked: Vec<_> = Node::all(file)
        .filter(|node| node.kind == Kind::Compute && serves(node))
        .filter_map(|node| mailbox(node).put(authority, &(), Duration::ZERO).ok())
        .collect();
    let answers = || asked.iter().any(|question| question.is_answered::<()>(authority));
    !asked.is_empty() && wait_until(env, patience, answers)
}
