//! Losses of a cluster when some of its nodes end.
//!
//! Once all compute nodes have ended, or rest behind the last snapshot, ending the rest of the
//! cluster loses no more than the operator has agreed to: so the parts of several hosts end in
//! sequence, compute nodes first, without a question.

use std::fmt;

use lotus_authority::{Authority, AuthorityError};
use lotus_recovery::Membership;
use lotus_recovery::membership::{self, MembershipError};
use lotus_router::Placement;

use super::records::{Record, Stage};
use super::rest::Rest;
use crate::config::file::ClusterFile;
use crate::config::name::{NodeKind, NodeName};

/// Loss for the surviving nodes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Loss {
    /// The only authority, and the whole cluster with it.
    Authority {
        /// Compute nodes that serve, and do not end.
        serving: Vec<NodeName>,
    },
    /// The last copies of some rows.
    LastCopies {
        /// Memory nodes that end.
        memory: Vec<NodeName>,
        /// Compute nodes that serve, and do not end.
        serving: Vec<NodeName>,
    },
    /// Perhaps `Authority` or `LastCopies`: the authority does not answer.
    Unknown,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let in_words = |nodes: &[NodeName]| {
            let nodes: Vec<String> = nodes.iter().map(|node| node.in_words()).collect();
            nodes.join(", ")
        };
        match self {
            Self::Authority { serving } => write!(
                f,
                "the cluster's only authority ends with memory node 0, and all that is committed \
                 with it, while {} serves",
                in_words(serving)
            ),
            Self::LastCopies { memory, serving } => write!(
                f,
                "the last copies of some rows end with {}, while {} serves",
                in_words(memory),
                in_words(serving)
            ),
            Self::Unknown => f.write_str(
                "the authority does not answer, so nobody can say whether other nodes need these",
            ),
        }
    }
}

/// Finds out what the cluster would lose if the nodes `ending` ended now; `None` if nothing.
///
/// # Errors
/// [`AuthorityError::Unavailable`].
pub fn look(
    file: &ClusterFile,
    authority: &dyn Authority,
    ending: &[NodeName],
) -> Result<Option<Loss>, AuthorityError> {
    let members = match membership::read(authority) {
        Ok(members) => members,
        Err(MembershipError::Authority(error)) => return Err(error),
        // No cluster was founded yet.
        Err(_) => return Ok(None),
    };
    let rests_for_good = Rest::read(authority)?.is_some_and(|rest| rest.secs.is_none());
    let mut serving = Vec::new();
    for node in NodeName::all(file).filter(|node| node.kind == NodeKind::Compute) {
        let record = Record::read(node, authority)?;
        let serves = record.is_some_and(|record| {
            let is_open = matches!(record.stage, Stage::Opening | Stage::Serving);
            is_open && record.runs() != Some(false)
        });
        if serves && members.is_live(node.id(file)) && !ending.contains(&node) {
            serving.push(node);
        }
    }
    let serving = if rests_for_good { Vec::new() } else { serving };
    let takes_authority = !file.authority.outlives_the_cluster()
        && ending.iter().any(|node| node.kind == NodeKind::Memory && node.index == 0);
    Ok(judge(takes_authority, last_copies(file, &members, ending), serving))
}

/// Memory nodes in use among `ending`, if they have the last copies of some rows; otherwise empty.
fn last_copies(file: &ClusterFile, members: &Membership, ending: &[NodeName]) -> Vec<NodeName> {
    let memory = NodeName::all(file).filter(|node| node.kind == NodeKind::Memory);
    let all: Vec<_> = memory.map(|node| node.id(file)).collect();
    // The copies are unknown without the memory nodes that the cluster was founded with.
    let Ok(first) = Placement::new(&all, file.settings.replicas) else { return Vec::new() };
    let kept = members.kept(&first);
    let in_use =
        |node: &&NodeName| node.kind == NodeKind::Memory && kept.nodes().contains(node.id(file));
    let ending: Vec<NodeName> = ending.iter().filter(in_use).copied().collect();
    let without: Vec<_> = ending.iter().map(|node| node.id(file)).collect();
    if kept.without(&without).is_some() { Vec::new() } else { ending }
}

/// Judges an end that takes the authority, or the last copies on the memory nodes `last`, from the
/// compute nodes that are `serving`.
fn judge(takes_authority: bool, last: Vec<NodeName>, serving: Vec<NodeName>) -> Option<Loss> {
    match (serving.is_empty(), takes_authority, last.is_empty()) {
        (true, _, _) | (false, false, true) => None,
        (false, true, _) => Some(Loss::Authority { serving }),
        (false, false, false) => Some(Loss::LastCopies { memory: last, serving }),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use lotus_authority::EmbeddedAuthority;
    use lotus_authority::testing::{QuestionOutcome, TestAuthority};
    use lotus_fabric::ids::Incarnation;

    use super::*;

    const MEMORY: [NodeName; 3] = [memory(0), memory(1), memory(2)];
    const COMPUTE: [NodeName; 2] = [NodeName::compute(0), NodeName::compute(1)];

    const fn memory(index: u16) -> NodeName {
        NodeName { kind: NodeKind::Memory, index }
    }

    fn file() -> ClusterFile {
        let nodes = "[[memory_node]]\n".repeat(3) + &"[[compute_node]]\n".repeat(2);
        let text = format!("fabric = \"shm\"\nreplicas = 2\n{nodes}");
        ClusterFile::parse(Path::new("c.toml"), &text, None).expect("it is whole")
    }

    fn say(authority: &dyn Authority, node: NodeName, stage: Stage) {
        let record = Record::of_this_process(stage).expect("there is /proc");
        record.write(node, authority).expect("it answers");
    }

    /// A cluster in which both compute nodes serve.
    fn cluster(file: &ClusterFile) -> EmbeddedAuthority {
        let authority = EmbeddedAuthority::new();
        let life = Incarnation::new(1).expect("it fits");
        let members = Membership::new(COMPUTE.map(|node| (node.id(file), life)));
        membership::found(&authority, &members).expect("nobody was faster");
        COMPUTE.into_iter().for_each(|node| say(&authority, node, Stage::Serving));
        authority
    }

    #[test]
    fn an_end_that_others_pay_for_is_named() {
        let (file, serving) = (file(), COMPUTE[1..].to_vec());
        let authority = cluster(&file);
        let loss = |ending: &[NodeName]| look(&file, &authority, ending).expect("it answers");
        let copies = |memory: &[NodeName], serving: &[NodeName]| {
            Some(Loss::LastCopies { memory: memory.to_vec(), serving: serving.to_vec() })
        };
        assert_eq!(loss(&MEMORY[1..2]), None, "every row has another copy");
        assert_eq!(loss(&COMPUTE[..1]), None, "the others go on");
        assert_eq!(loss(&MEMORY[1..]), copies(&MEMORY[1..], &COMPUTE));
        assert_eq!(loss(&[MEMORY[1], COMPUTE[0], MEMORY[2]]), copies(&MEMORY[1..], &serving));
        let all = COMPUTE.to_vec();
        assert_eq!(loss(&MEMORY[..1]), Some(Loss::Authority { serving: all }));
        assert_eq!(loss(&[MEMORY[0], COMPUTE[0]]), Some(Loss::Authority { serving }));
        assert_eq!(loss(&[MEMORY[0], COMPUTE[0], COMPUTE[1]]), None, "nobody goes on");
    }

    #[test]
    fn a_cluster_that_rests_or_has_ended_loses_nothing_more() {
        let file = file();
        let authority = cluster(&file);
        let loss = || look(&file, &authority, &MEMORY).expect("it answers");
        let rest = Rest::begin(&authority, 60).expect("it answers");
        assert!(loss().is_some(), "they may serve again");
        let rest = rest.for_good(&authority).expect("nobody has taken it back");
        assert_eq!(loss(), None);
        rest.end(&authority).expect("nobody has said it anew");
        say(&authority, COMPUTE[0], Stage::Ended);
        assert!(loss().is_some());
        say(&authority, COMPUTE[1], Stage::Ended);
        assert_eq!(loss(), None);
        assert_eq!(look(&file, &EmbeddedAuthority::new(), &MEMORY), Ok(None), "none was made");
        let silent = TestAuthority::default();
        silent.turn(QuestionOutcome::QuestionLost);
        assert_eq!(look(&file, &silent, &MEMORY), Err(AuthorityError::Unavailable));
    }
}
