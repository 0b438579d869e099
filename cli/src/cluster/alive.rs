//! Whether a cluster lives of which etcd remembers a life: whoever takes part answers.
//!
//! etcd outlives clusters, so what it says cannot tell one that goes on without memory node 0 from
//! one that was killed. Compute nodes look for a question all the time, and answer.

use std::time::Duration;

use lotus_fabric::env::Env;
use lotus_recovery::membership::{self, MembershipError};
use lotus_router::{Authority, AuthorityError};

use super::errands::Look;
use super::file::ClusterFile;
use super::mailbox::{Mailbox, Pending};
use super::node::{Kind, Node};
use super::processes::wait_until;
use super::records::{Record, Stage};

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
/// said last that they serve, and waits; if there are none it is known at once. An authority that
/// does not answer is asked again. Where `is_told` to end, the answer is worth nothing.
#[cfg_attr(not(feature = "etcd"), expect(dead_code, reason = "no authority outlives a cluster"))]
pub fn is_anybody(
    file: &ClusterFile,
    authority: &dyn Authority,
    env: &Env,
    patience: Duration,
    is_told: impl Fn() -> bool,
) -> bool {
    let mut asked: Option<Vec<Pending>> = None;
    let mut answered = false;
    wait_until(env, patience, || {
        if is_told() {
            return true;
        }
        asked = asked.take().or_else(|| ask(file, authority).ok());
        let Some(asked) = &asked else { return false };
        answered = asked.iter().any(|question| question.is_answered::<()>(authority));
        answered || asked.is_empty()
    });
    answered
}

fn ask(file: &ClusterFile, authority: &dyn Authority) -> Result<Vec<Pending>, AuthorityError> {
    let members = match membership::read(authority) {
        Ok(members) => members,
        Err(MembershipError::Authority(error)) => return Err(error),
        // Nobody has founded the cluster.
        Err(_) => return Ok(Vec::new()),
    };
    let mut asked = Vec::new();
    for node in Node::all(file).filter(|node| node.kind == Kind::Compute) {
        let stage = Record::read(node, authority)?.map(|record| record.stage);
        if stage == Some(Stage::Serving) && members.is_live(node.id(file)) {
            asked.push(mailbox(node).put(authority, &(), Duration::ZERO)?);
        }
    }
    Ok(asked)
}
