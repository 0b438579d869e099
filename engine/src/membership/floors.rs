//! Exchanges floors between nodes, so that every node knows the horizon ([`lotus_mvcc::horizon`],
//! H13).
//!
//! # What it is
//! Every coordinator periodically publishes its floor, the oldest snapshot it may read from, to its
//! node. Coordinator 0 writes the smallest floor to the node's word on a memory node, reads the
//! words of all nodes in the same batch, and computes the horizon for all coordinators of the node.
//! The words are in the header page of the first group's primary only: a horizon stays true after
//! the loss of that memory node, and a missing word only stops the horizon until the word is
//! written again.
//!
//! # What it is not
//! A clock. The horizon counts in issued timestamps; the time of an exchange decides how old the
//! horizon is, never whether the horizon is right. A silent node, paused or dead, holds the horizon
//! back; versions are then overwritten as soon as the slots that may wait for the horizon are used
//! up. The word of an expelled node is removed with the node's recovery
//! ([`crate::membership::recover`]), and whenever the word reappears
//! ([`crate::memory_nodes::changes`]).
//!
//! # Readers of all rows
//! A snapshot being written to a file ([`crate::snapshot`]) is in use for seconds. The top bit of
//! its node's word tells all nodes to keep more displaced versions meanwhile
//! ([`NodeTable::patient_limit`](crate::node::shared::NodeTable)).
//!
//! # Idle nodes
//! While no transaction begins the exchange becomes less frequent, up to [`MAX_INTERVALS`]
//! intervals apart. The exchange never stops, since other nodes depend on it. No caller waits for
//! it.

use lotus_mvcc::layout::WORD_BYTES;
use lotus_mvcc::layout::region::{CHANGES_OFFSET, FLOORS_OFFSET, MAX_FLOORS};
use lotus_router::MAX_COMPUTE_NODES;

use crate::node::coordinator::Coordinator;
use crate::node::memory::configuration::{FLOORS_GROUP, floor_word};
use crate::node::time::horizon::MAX_INTERVALS;

/// Number of exchanges after which the owners of shards are read even if no change was counted.
const UNMOVED: u32 = 64;

const _: () = assert!(MAX_COMPUTE_NODES <= MAX_FLOORS, "each has a word");
const _: () = assert!(CHANGES_OFFSET + WORD_BYTES as u64 == FLOORS_OFFSET, "one READ brings both");

/// Publishes this coordinator's floor periodically until its node is out.
pub(crate) async fn keep(coordinator: &Coordinator) {
    let (mut intervals, mut begun) = (1, 0);
    let mut owners = OwnersSeen::default();
    while !coordinator.node.has_failed() {
        let interval = coordinator.shared.config.horizon_interval;
        coordinator.executor.sleep(interval * intervals).await;
        let idle = coordinator.begun.get() == begun;
        begun = coordinator.begun.get();
        intervals = if idle { (intervals * 2).min(MAX_INTERVALS) } else { 1 };
        if idle {
            coordinator.timestamps.refresh().await;
        }
        let issued = coordinator.timestamps.issued();
        let floor = coordinator.snapshots.borrow().floor(issued);
        debug_assert!(floor <= issued, "I61: a floor is a time that was issued");
        coordinator.node.horizon.set_floor(coordinator.thread, floor);
        if coordinator.thread == 0 {
            let changes = exchange_floors(coordinator).await;
            let due = changes.is_some_and(|changes| owners.are_due(changes));
            if due && coordinator.refresh_owners(|_, _| ()).await.is_err() {
                coordinator.node.expel();
            }
        }
    }
}

/// Decides when to read the owners of shards; see [`crate::shards::ownership`].
#[derive(Default)]
struct OwnersSeen {
    changes: u64,
    exchanges: u32,
}

impl OwnersSeen {
    /// Whether to read the owners, given a count of `changes` changes.
    fn are_due(&mut self, changes: u64) -> bool {
        self.exchanges = (self.exchanges + 1) % UNMOVED;
        std::mem::replace(&mut self.changes, changes) != changes || self.exchanges == 0
    }
}

/// Writes this node's floor and reads all floors; returns the count of ownership changes.
pub(crate) async fn exchange_floors(coordinator: &Coordinator) -> Option<u64> {
    let (shared, node) = (&coordinator.shared, &coordinator.node);
    let primary = coordinator.primary(FLOORS_GROUP);
    let mut batch = coordinator.lane.batch();
    batch.write_word(primary.at(floor_word(node.index)), node.horizon.word());
    // The count of changes precedes the floors.
    let all = batch.read(primary.at(CHANGES_OFFSET), (1 + shared.peers.len()) * WORD_BYTES);
    match batch.post().await {
        Ok(done) => {
            let (changes, floors) = done.words(all).split_first().expect("it was read");
            node.horizon.learn(floors);
            Some(*changes)
        }
        // The known horizon stays true; the next turn finds the connection working again.
        Err(error) => {
            let _ = coordinator.after_failure(error).await;
            None
        }
    }
}
