//! Compute nodes that have joined and have never beaten.
//!
//! # Why beats are not enough
//! A process claims its node's place at the authority before the node's first beat, and other nodes
//! expel by beats only. A process that ends between the two would keep the place for ever: a beat
//! of zero also belongs to a node that was never started, which no node expels. So coordinator 0
//! checks now and then which members without a beat have joined, and suspects those that have not
//! beaten [some leases](JOINING_LEASES) later.
//!
//! # What it does not cover
//! Lives that return: those beat before they become members ([`crate::cluster::rejoin`]).

use std::collections::BTreeMap;
use std::time::Duration;

use lotus_authority::Authority;
use lotus_fabric::env::Nanos;
use lotus_recovery::Beat;
use lotus_sabotage::{Rule, broken};

use crate::membership::members::Heard;
use crate::node::coordinator::Coordinator;
use crate::node::members::Suspect;

/// Number of leases a node may have joined without beating. Joining and the first beat are one
/// batch of verbs and one answer of the authority apart.
const JOINING_LEASES: u32 = 8;

/// Compute nodes that have joined without beating; see the module docs.
#[derive(Debug, Default)]
pub(crate) struct Absent {
    looked: Option<Nanos>,
    /// Time at which a node without a beat was first known to have joined, by place.
    joined: BTreeMap<usize, Nanos>,
}

impl Absent {
    /// Adds nodes that have been absent for too long to the suspects. Returns the places of nodes
    /// to [look](Self::look) up at the authority.
    pub(crate) fn judge(
        &mut self,
        coordinator: &Coordinator,
        heard: &mut Heard,
        lease: Duration,
    ) -> Vec<usize> {
        let Some(asked) = heard.asked else { return Vec::new() };
        let (peers, members) = (&coordinator.shared.peers, &coordinator.node.members);
        let first_life = |index: usize| Suspect::at(peers[index].id, Beat::NONE);
        // Nodes that are out, or in a later life, need no verdict.
        let unseen = heard.unseen.iter().copied().filter(|index| members.knows(first_life(*index)));
        let Absentees { late, unknown } = self.decide(asked, &unseen.collect::<Vec<_>>(), lease);
        let late = late.into_iter().filter(|_| !broken(Rule::TheAbsentAreExpelled));
        heard.suspects.extend(late.map(first_life));
        unknown
    }

    /// Judges the `unseen` members, which had no beat in the words read at time `asked`.
    fn decide(&mut self, asked: Nanos, unseen: &[usize], lease: Duration) -> Absentees {
        self.joined.retain(|index, _| unseen.contains(index));
        let is_late = |since: &Nanos| asked.since(*since) >= lease * JOINING_LEASES;
        let late = self.joined.iter().filter(|(_, since)| is_late(since));
        let late = late.map(|(index, _)| *index).collect();
        let unknown = unseen.iter().copied().filter(|index| !self.joined.contains_key(index));
        let mut unknown: Vec<usize> = unknown.collect();
        match self.looked.is_none_or(|looked| asked.since(looked) >= lease) {
            true if !unknown.is_empty() => self.looked = Some(asked),
            _ => unknown.clear(),
        }
        Absentees { late, unknown }
    }

    /// Asks the authority which of the `unknown` nodes have joined. Waits for its answer.
    pub(crate) async fn look(&mut self, coordinator: &Coordinator, unknown: Vec<usize>) {
        if unknown.is_empty() {
            return;
        }
        let have_joined = move |authority: &dyn Authority| -> Vec<usize> {
            let has = |index: &usize| authority.read(&joined_key(*index));
            unknown
                .into_iter()
                .filter(|index| has(index).is_ok_and(|found| found.is_some()))
                .collect()
        };
        if let Ok(joined) = coordinator.shared.council.ask(have_joined).await {
            let now = coordinator.executor.now();
            self.joined.extend(joined.into_iter().map(|index| (index, now)));
        }
    }
}

/// Result of [`Absent::decide`].
#[derive(PartialEq, Eq, Debug)]
struct Absentees {
    /// Places of the nodes that have been absent for too long.
    late: Vec<usize>,
    /// Places of nodes not known to have joined; filled at most once in a lease.
    unknown: Vec<usize>,
}

/// Key of the name of a compute node's first process.
pub(crate) fn joined_key(index: usize) -> String {
    format!("joined/{index}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(1);

    fn at(leases: u32) -> Nanos {
        Nanos(1).after(LEASE * leases)
    }

    fn verdict(late: &[usize], unknown: &[usize]) -> Absentees {
        Absentees { late: late.to_vec(), unknown: unknown.to_vec() }
    }

    #[test]
    fn who_has_joined_and_is_unseen_for_some_leases_is_late_until_it_is_out() {
        let mut absent = Absent::default();
        assert_eq!(absent.decide(at(0), &[1, 2], LEASE), verdict(&[], &[1, 2]));
        absent.joined.insert(1, at(0));
        assert_eq!(absent.decide(at(0), &[1, 2], LEASE), verdict(&[], &[]), "it was asked for");
        assert_eq!(absent.decide(at(1), &[1, 2], LEASE), verdict(&[], &[2]));
        assert_eq!(absent.decide(at(8), &[1, 2], LEASE), verdict(&[1], &[2]));
        assert_eq!(absent.decide(at(9), &[2], LEASE), verdict(&[], &[2]));
        assert_eq!(absent.decide(at(10), &[], LEASE), verdict(&[], &[]));
    }
}
