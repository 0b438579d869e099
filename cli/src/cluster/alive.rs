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

/// What is known of the compute nodes of a life.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Others {
    /// One has answered.
    Answer,
    /// None is left that has said that it serves.
    Gone,
    /// These have said that they serve, and do not answer. They may be dead, or live and not reach
    /// the authority.
    Silent(Vec<Node>),
}

/// Looks for compute nodes that take part in the life that goes on there. Asks the members that
/// have said last that they serve, and waits; those whose processes have ended on this host are
/// not asked. An authority that does not answer is asked again.
///
/// # Errors
/// The authority does not answer for as long.
#[cfg_attr(not(feature = "etcd"), expect(dead_code, reason = "no authority outlives a cluster"))]
pub fn look(
    file: &ClusterFile,
    authority: &dyn Authority,
    env: &Env,
    patience: Duration,
    is_told: impl Fn() -> bool,
) -> Result<Others, AuthorityError> {
    let mut asked: Result<Vec<(Node, Pending)>, _> = Err(AuthorityError::Unavailable);
    let mut answered = false;
    wait_until(env, patience, || {
        if asked.is_err() {
            asked = ask(file, authority);
        }
        let Ok(asked) = &asked else { return is_told() };
        answered = asked.iter().any(|(_, question)| question.is_answered::<()>(authority));
        answered || asked.is_empty() || is_told()
    });
    let silent: Vec<Node> = asked?.into_iter().map(|(node, _)| node).collect();
    Ok(match (answered, silent.is_empty()) {
        (true, _) => Others::Answer,
        (false, true) => Others::Gone,
        (false, false) => Others::Silent(silent),
    })
}

fn ask(
    file: &ClusterFile,
    authority: &dyn Authority,
) -> Result<Vec<(Node, Pending)>, AuthorityError> {
    let members = match membership::read(authority) {
        Ok(members) => members,
        Err(MembershipError::Authority(error)) => return Err(error),
        // No cluster was made in this life.
        Err(_) => return Ok(Vec::new()),
    };
    let mut asked = Vec::new();
    for node in Node::all(file).filter(|node| node.kind == Kind::Compute) {
        let Some(record) = Record::read(node, authority)? else { continue };
        let serves = matches!(record.stage, Stage::Opening | Stage::Serving);
        if serves && members.is_live(node.id(file)) && record.runs() != Some(false) {
            asked.push((node, mailbox(node).put(authority, &(), Duration::ZERO)?));
        }
    }
    Ok(asked)
}
