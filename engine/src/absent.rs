//! Compute nodes that have joined and have never beaten.
//!
//! # What it is
//! A process takes its node's place at the authority before the node's first beat, and others expel
//! by beats only. A process that ends in between would keep the place for ever: a beat of zero is
//! also that of a node that was never started, which is expelled by no one. So coordinator 0 looks
//! now and then which nodes without a beat have joined, and suspects those that have not beaten
//! [some leases](JOINING_LEASES) later.
//!
//! # What it is not
//! Of any use for lives that return: those beat before they are members ([`crate::rejoin`]).

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_recovery::Beat;
use lotus_router::Authority;

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
    /// Adds those to the suspects who are absent for too long.
    pub(crate) async fn judge(
        &mut self,
        coordinator: &Rc<Coordinator>,
        heard: &mut Heard,
        lease: Duration,
    ) {
        let Some(asked) = heard.asked else { return };
        self.joined.retain(|index, _| heard.unseen.contains(index));
        let is_late = |since: &Nanos| asked.since(*since) >= lease * JOINING_LEASES;
        let late = self.joined.iter().filter(|(_, since)| is_late(since));
        let peers = &coordinator.shared.peers;
        heard.suspects.extend(late.map(|(index, _)| Suspect::at(peers[*index].id, Beat::NONE)));
        let unknown: Vec<usize> =
            heard.unseen.iter().copied().filter(|index| !self.joined.contains_key(index)).collect();
        let is_due = self.looked.is_none_or(|looked| asked.since(looked) >= lease);
        if unknown.is_empty() || !is_due {
            return;
        }
        self.looked = Some(asked);
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
