//! Compute nodes that have joined and have never beaten.
//!
//! # What it is
//! A process takes its node's place at the authority before the node's first beat, and others expel
//! by beats only. A process that ends in between would keep the place for ever: a beat of zero is
//! also that of a node that was never started, which is expelled by no one. So coordinator 0 looks
//! now and then which members without a beat have joined, and suspects those that have not beaten
//! [some leases](JOINING_LEASES) later.
//!
//! # What it is not
//! Of any use for lives that return: those beat before they are members ([`crate::rejoin`]).

use std::collections::BTreeMap;
use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_recovery::Beat;
use lotus_router::Authority;
use lotus_sabotage::{Rule, broken};

use crate::coordinator::Coordinator;
use crate::members::{Heard, Suspect};
use crate::part::joined_key;

/// For so many leases a node may have joined and not beaten. A batch of verbs is between the two,
/// and an answer of the authority.
const JOINING_LEASES: u32 = 8;

/// See the module's essay.
#[derive(Debug, Default)]
pub(crate) struct Absent {
    looked: Option<Nanos>,
    /// By place: since when a node without a beat is known to have joined.
    joined: BTreeMap<usize, Nanos>,
}

impl Absent {
    /// Adds those to the suspects who are absent for too long. Those of which it is to be found out
    /// whether they have joined.
    pub(crate) fn judge(
        &mut self,
        coordinator: &Coordinator,
        heard: &mut Heard,
        lease: Duration,
    ) -> Vec<usize> {
        let Some(asked) = heard.asked else { return Vec::new() };
        let (peers, members) = (&coordinator.shared.peers, &coordinator.node.members);
        let first_life = |index: usize| Suspect::at(peers[index].id, Beat::NONE);
        // Whoever is out has been waited for.
        let unseen = heard.unseen.iter().copied().filter(|index| members.knows(first_life(*index)));
        let Verdict { late, unknown } = self.decide(asked, &unseen.collect::<Vec<_>>(), lease);
        let late = late.into_iter().filter(|_| !broken(Rule::TheAbsentAreExpelled));
        heard.suspects.extend(late.map(first_life));
        unknown
    }

    /// What follows from `unseen` members' having no beat in what was asked for then.
    fn decide(&mut self, asked: Nanos, unseen: &[usize], lease: Duration) -> Verdict {
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
        Verdict { late, unknown }
    }

    /// Finds out which of these have joined. It may take as long as the authority does.
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

/// See [`Absent::decide`].
#[derive(PartialEq, Eq, Debug)]
struct Verdict {
    /// The places of those who are absent for too long.
    late: Vec<usize>,
    /// Of those who are not known to have joined, once in a lease.
    unknown: Vec<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(1);

    fn at(leases: u32) -> Nanos {
        Nanos(1).after(LEASE * leases)
    }

    fn verdict(late: &[usize], unknown: &[usize]) -> Verdict {
        Verdict { late: late.to_vec(), unknown: unknown.to_vec() }
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
