//! Compute nodes without a beat: never started, or ended during their join.
//!
//! # Why beats are not enough
//! A process claims its node's place at the authority before the node's first beat, and other nodes
//! expel by beats only. A beat of zero belongs to a node that was never started as well as to a
//! node that ended between claim and first beat. The word at the authority distinguishes the two
//! cases, so coordinator 0 reads the word now and then:
//!
//! | `joined/N` | means | the others |
//! |---|---|---|
//! | nothing yet | no process of the node has come | wait, for a bounded time |
//! | the name of a process | that process takes the place | expel it some leases later |
//! | [`NOBODY`] | the process did not come in time | expel the node at once |
//!
//! # Nodes that do not come
//! Every member counts: the cluster waits for all members when a table is dropped or a memory node
//! is lost, an absent member's floor holds back the horizon, and its rows cannot be used. So [some
//! leases](WAITED_LEASES) after the cluster has all its data, a member writes [`NOBODY`] into the
//! place of every absent node (I344). The word is written once, by the node's process or by a
//! member, so a process that takes its place is never expelled for being late; a later process is
//! admitted like a returning life ([`crate::cluster::rejoin`]).
//!
//! # If it stops anywhere
//! If a member ends after writing [`NOBODY`], the remaining members read the word and expel the
//! node.
//!
//! # What it does not cover
//! Returning lives: a returning life beats before it becomes a member ([`crate::cluster::rejoin`]).
//! Clusters still loading data: such a cluster does not serve yet.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lotus_authority::{Authority, AuthorityError, Version};
use lotus_fabric::env::Nanos;
use lotus_recovery::Beat;
use lotus_sabotage::{Rule, broken};

use crate::membership::members::BeatReport;
use crate::node::coordinator::Coordinator;
use crate::node::peers::members::Suspect;

/// Number of leases for which a joined node may go without beating (I173). Joining and the first
/// beat are a batch of verbs and an answer of the authority apart.
const JOINING_LEASES: u32 = 8;
/// Number of leases for which a node may stay away, from the moment the data is known to be
/// complete.
const WAITED_LEASES: u32 = 8;
/// Name in the place of a node that did not come in time. No process has this name.
const NOBODY: &[u8] = b"nobody";
/// Key for whether the cluster's data is complete, and the value if complete.
pub(crate) const LOADED_KEY: &str = "loaded";
pub(crate) const LOADED: &str = "loaded";

/// Compute nodes without a beat; see the module docs.
#[derive(Debug, Default)]
pub(crate) struct Absent {
    looked: Option<Nanos>,
    /// Time at which a node without a beat was first known to have joined, by place.
    joined: BTreeMap<usize, Nanos>,
    /// Places known to be given up.
    vacant: BTreeSet<usize>,
    /// Time at which the data was first known to be complete.
    loaded: Option<Nanos>,
}

impl Absent {
    /// Adds nodes that have been absent for too long to the suspects. Returns the places of nodes
    /// to [look](Self::look) up at the authority.
    pub(crate) fn judge(
        &mut self,
        coordinator: &Coordinator,
        heard: &mut BeatReport,
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
        self.vacant.retain(|index| unseen.contains(index));
        let is_late = |since: &Nanos| asked.since(*since) >= lease * JOINING_LEASES;
        let late = self.joined.iter().filter(|(_, since)| is_late(since));
        let mut late: Vec<usize> = late.map(|(index, _)| *index).collect();
        late.extend(&self.vacant);
        let is_known =
            |index: &usize| self.joined.contains_key(index) || self.vacant.contains(index);
        let mut unknown: Vec<usize> =
            unseen.iter().copied().filter(|index| !is_known(index)).collect();
        match self.looked.is_none_or(|looked| asked.since(looked) >= lease) {
            true if !unknown.is_empty() => self.looked = Some(asked),
            _ => unknown.clear(),
        }
        Absentees { late, unknown }
    }

    /// Whether nodes that have not come by `now` are given up.
    fn is_over(&self, now: Nanos, lease: Duration) -> bool {
        self.loaded.is_some_and(|loaded| now.since(loaded) >= lease * WAITED_LEASES)
    }

    /// Asks the authority which of the `unknown` nodes have joined, and gives up the places of the
    /// rest once their time is over. Waits for the answer.
    pub(crate) async fn look(
        &mut self,
        coordinator: &Coordinator,
        unknown: Vec<usize>,
        lease: Duration,
    ) {
        if unknown.is_empty() {
            return;
        }
        let is_over = self.is_over(coordinator.executor.now(), lease);
        let knows_data = self.loaded.is_some();
        let look = move |authority: &dyn Authority| {
            let held = |index: &usize| match is_over {
                true => give_to_nobody(authority, *index),
                false => holder_of(authority, *index),
            };
            let held = unknown.iter().filter_map(|index| held(index).ok().map(|by| (*index, by)));
            let held: Vec<(usize, Holder)> = held.collect();
            (held, knows_data || has_all_data(authority))
        };
        let Ok((held, has_all_data)) = coordinator.shared.async_authority.ask(look).await else {
            return;
        };
        let now = coordinator.executor.now();
        self.learn(now, &held, has_all_data);
    }

    fn learn(&mut self, now: Nanos, held: &[(usize, Holder)], has_all_data: bool) {
        if has_all_data && self.loaded.is_none() {
            self.loaded = Some(now);
        }
        for (index, holder) in held {
            match holder {
                Holder::Free => {}
                Holder::Process => _ = self.joined.insert(*index, now),
                Holder::Nobody => _ = self.vacant.insert(*index),
            }
            debug_assert!(
                !(self.joined.contains_key(index) && self.vacant.contains(index)),
                "I343: a place is a process's or nobody's, for ever"
            );
        }
    }
}

/// State of a place, by the word at the authority.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holder {
    /// No process of the node has come.
    Free,
    /// The node's first process.
    Process,
    /// The process did not come in time.
    Nobody,
}

impl Holder {
    fn named(name: &[u8]) -> Self {
        if name == NOBODY { Self::Nobody } else { Self::Process }
    }
}

fn holder_of(authority: &dyn Authority, index: usize) -> Result<Holder, AuthorityError> {
    let found = authority.read(&joined_key(index))?;
    Ok(found.map_or(Holder::Free, |found| Holder::named(&found.value)))
}

/// Gives up a free place; returns its state afterwards.
fn give_to_nobody(authority: &dyn Authority, index: usize) -> Result<Holder, AuthorityError> {
    match authority.compare_and_swap(&joined_key(index), Version::ABSENT, NOBODY) {
        Ok(_) => Ok(Holder::Nobody),
        Err(AuthorityError::Conflict { .. }) => holder_of(authority, index),
        Err(error) => Err(error),
    }
}

/// Whether the data is known to be complete.
fn has_all_data(authority: &dyn Authority) -> bool {
    let found = authority.read(LOADED_KEY);
    found.is_ok_and(|found| found.is_some_and(|found| found.value == LOADED.as_bytes()))
}

/// Result of [`Absent::decide`].
#[derive(PartialEq, Eq, Debug)]
struct Absentees {
    /// Places of nodes that have been absent for too long, or did not come in time.
    late: Vec<usize>,
    /// Places with an unknown holder; filled at most once in a lease.
    unknown: Vec<usize>,
}

/// Key of the name of a compute node's first process, or of [`NOBODY`].
pub(crate) fn joined_key(index: usize) -> String {
    format!("joined/{index}")
}

#[cfg(test)]
mod tests {
    use lotus_authority::EmbeddedAuthority;

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

    #[test]
    fn a_place_that_is_nobodys_is_late_at_once_and_looked_up_no_more() {
        let mut absent = Absent::default();
        assert_eq!(absent.decide(at(0), &[1, 2], LEASE), verdict(&[], &[1, 2]));
        absent.learn(at(0), &[(1, Holder::Process), (2, Holder::Nobody)], true);
        assert_eq!(absent.decide(at(1), &[1, 2], LEASE), verdict(&[2], &[]));
        assert_eq!(absent.decide(at(2), &[1], LEASE), verdict(&[], &[]), "it is out");
    }

    #[test]
    fn nodes_are_waited_for_while_data_is_loaded_and_for_some_leases_after() {
        let mut absent = Absent::default();
        absent.learn(at(0), &[(1, Holder::Free)], false);
        assert!(!absent.is_over(at(100), LEASE));
        absent.learn(at(100), &[(1, Holder::Free)], true);
        absent.learn(at(103), &[(1, Holder::Free)], true);
        assert!(!absent.is_over(at(107), LEASE) && absent.is_over(at(108), LEASE));
    }

    /// The process and a member write the same word, in either order and with answers lost.
    #[test]
    fn a_place_has_one_holder_for_ever() {
        let authority = EmbeddedAuthority::new();
        assert_eq!(holder_of(&authority, 1), Ok(Holder::Free));
        authority.compare_and_swap(&joined_key(1), Version::ABSENT, b"first").expect("free");
        assert_eq!(give_to_nobody(&authority, 1), Ok(Holder::Process));
        for _ in 0..2 {
            assert_eq!(give_to_nobody(&authority, 2), Ok(Holder::Nobody));
        }
        let late = authority.compare_and_swap(&joined_key(2), Version::ABSENT, b"late");
        late.expect_err("it is nobody's");
        assert_eq!(holder_of(&authority, 2), Ok(Holder::Nobody));
    }
}
