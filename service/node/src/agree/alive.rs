//! Checks whether a cluster with its life in etcd still lives, by asking the compute nodes.
//!
//! etcd outlives clusters, so the values in etcd cannot distinguish a killed cluster from a cluster
//! that goes on without memory node 0. Participating compute nodes poll for a question, and answer
//! it.

use std::time::Duration;

use lotus_authority::{Authority, AuthorityError};
use lotus_fabric::env::Env;
use lotus_recovery::membership::{self, MembershipError};

use super::mailbox::{Mailbox, Pending};
use super::mailbox_server::MailboxServer;
use super::records::{Record, Stage};
use crate::config::file::ClusterFile;
use crate::config::name::{NodeKind, NodeName};
use crate::host::polling::wait_until;

fn mailbox(node: NodeName) -> Mailbox {
    Mailbox::new("alive", node)
}

/// The node's side: confirms that the compute node takes part.
pub struct Alive(Mailbox);

impl Alive {
    /// Creates the answering side of a node.
    pub fn new(node: NodeName) -> Self {
        Self(mailbox(node))
    }
}

impl MailboxServer for Alive {
    fn look(&mut self, authority: &dyn Authority) {
        if let Some((question, ())) = self.0.next(authority) {
            self.0.answer(authority, question, &());
        }
    }
}

/// State of the compute nodes of a life.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Others {
    /// These nodes have answered.
    Answer(Vec<NodeName>),
    /// No remaining node may take part.
    Gone,
    /// These nodes may take part, and do not answer. They may be dead, or unable to reach the
    /// authority, or not serving yet.
    Silent(Vec<NodeName>),
}

/// Looks for compute nodes that take part in the current life, or may join. Asks compute nodes
/// without a report of their end, and waits for answers; skips expelled nodes, and nodes whose
/// processes have ended on this host. A silent authority is asked again.
///
/// # Errors
/// The authority does not answer within `patience`.
pub fn look(
    file: &ClusterFile,
    authority: &dyn Authority,
    env: &Env,
    patience: Duration,
    is_told: impl Fn() -> bool,
) -> Result<Others, AuthorityError> {
    let mut asked: Result<Vec<(NodeName, Pending)>, _> = Err(AuthorityError::Unavailable);
    let mut answer = Vec::new();
    wait_until(env, patience, || {
        if asked.is_err() {
            asked = ask(file, authority);
        }
        let Ok(asked) = &asked else { return is_told() };
        let has_answered =
            |(_, question): &&(NodeName, Pending)| question.is_answered::<()>(authority);
        answer = asked.iter().filter(has_answered).map(|(node, _)| *node).collect();
        !answer.is_empty() || asked.is_empty() || is_told()
    });
    let silent: Vec<NodeName> = asked?.into_iter().map(|(node, _)| node).collect();
    Ok(match (answer.is_empty(), silent.is_empty()) {
        (false, _) => Others::Answer(answer),
        (true, true) => Others::Gone,
        (true, false) => Others::Silent(silent),
    })
}

fn ask(
    file: &ClusterFile,
    authority: &dyn Authority,
) -> Result<Vec<(NodeName, Pending)>, AuthorityError> {
    let members = match membership::read(authority) {
        Ok(members) => Some(members),
        Err(MembershipError::Authority(error)) => return Err(error),
        // No cluster founded yet in the current life.
        Err(_) => None,
    };
    let mut asked = Vec::new();
    for node in NodeName::all(file).filter(|node| node.kind == NodeKind::Compute) {
        let Some(record) = Record::read(node, authority)? else { continue };
        let is_live = members.as_ref().is_some_and(|members| members.is_live(node.id(file)));
        if may_take_part(&record, is_live) {
            asked.push((node, mailbox(node).put(authority, &(), Duration::ZERO)?));
        }
    }
    Ok(asked)
}

/// Whether the process that reported last for a node may commit in this life, now or later. A
/// starting process may join or return, whether the node is a member yet or not; an expelled
/// process commits no transactions.
fn may_take_part(record: &Record, is_live: bool) -> bool {
    let may = match record.stage {
        Stage::Starting => true,
        Stage::Opening | Stage::Serving | Stage::Ending => is_live,
        Stage::Ended => false,
    };
    may && record.runs() != Some(false)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::path::Path;

    use lotus_authority::EmbeddedAuthority;
    use lotus_fabric::ids::Incarnation;
    use lotus_recovery::membership::Membership;

    use super::*;
    use crate::host::processes::Process;

    const NODE: NodeName = NodeName::compute(1);
    const ALL: [Stage; 5] =
        [Stage::Starting, Stage::Opening, Stage::Serving, Stage::Ending, Stage::Ended];

    fn file() -> ClusterFile {
        let text = "fabric = \"shm\"\n[[memory_node]]\n[[compute_node]]\n[[compute_node]]\n";
        ClusterFile::parse(Path::new("c.toml"), text, None).expect("it is whole")
    }

    /// A life in which compute node 1 has reported this stage, from another host.
    fn life(file: &ClusterFile, stage: Stage, members: &[NodeName]) -> EmbeddedAuthority {
        let authority = EmbeddedAuthority::new();
        let incarnation = Incarnation::new(1).expect("it fits");
        if !members.is_empty() {
            let members = members.iter().map(|node| (node.id(file), incarnation));
            membership::found(&authority, &Membership::new(members)).expect("nobody was faster");
        }
        let record = Record::of_this_process(stage).expect("there is /proc");
        let record = Record { space: "another host".to_owned(), ..record };
        record.write(NODE, &authority).expect("it answers");
        authority
    }

    fn look(file: &ClusterFile, authority: &dyn Authority) -> Others {
        let others = super::look(file, authority, &Env::real(0), Duration::ZERO, || false);
        others.expect("it answers")
    }

    /// Memory node 0 began another life beside one whose compute nodes had joined and filled their
    /// tables: only those that served counted.
    #[test]
    fn a_member_that_has_not_ended_is_not_gone_at_whatever_stage_it_is() {
        let file = file();
        for stage in ALL {
            let expected = match stage {
                Stage::Ended => Others::Gone,
                _ => Others::Silent(vec![NODE]),
            };
            let authority = life(&file, stage, &[NodeName::compute(0), NODE]);
            assert_eq!(look(&file, &authority), expected, "{stage:?}");
        }
    }

    #[test]
    fn a_node_that_starts_is_not_gone_before_it_has_joined_and_one_that_is_out_is() {
        let file = file();
        for (stage, members) in ALL.into_iter().flat_map(|stage| [(stage, 0), (stage, 1)]) {
            let expected = match stage {
                Stage::Starting => Others::Silent(vec![NODE]),
                _ => Others::Gone,
            };
            let authority = life(&file, stage, &[NodeName::compute(0)][..members]);
            assert_eq!(look(&file, &authority), expected, "{stage:?}, {members}");
        }
    }

    #[test]
    fn a_node_whose_process_has_ended_on_this_host_is_gone_and_one_that_answers_is_named() {
        let file = file();
        let authority = life(&file, Stage::Serving, &[NodeName::compute(0), NODE]);
        let node = RefCell::new(Alive::new(NODE));
        let others = super::look(&file, &authority, &Env::real(0), Duration::from_secs(60), || {
            node.borrow_mut().look(&authority);
            false
        });
        assert_eq!(others, Ok(Others::Answer(vec![NODE])));
        let process = Process::parse("4194304 1").expect("an id that no process has");
        let record = Record::of_this_process(Stage::Serving).expect("there is /proc");
        Record { process, ..record }.write(NODE, &authority).expect("it answers");
        assert_eq!(look(&file, &authority), Others::Gone);
    }
}
