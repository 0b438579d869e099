//! Carries floors from node to node, so that all know the horizon ([`lotus_mvcc::horizon`], H13).
//!
//! # What it is
//! Every coordinator says now and then which snapshots it may read from, in a word of its node; its
//! number 0 writes the smallest of these to the node's word in a memory node, reads the words of
//! all nodes in the same batch, and thereby knows the horizon, which all of its node's coordinators
//! use. The words are in the header page of the first group's primary, and nowhere else: what was
//! known stays true when that node is lost, and a word that is not there only means that the
//! horizon stands still until it is written again.
//!
//! # What it is not
//! A clock. It counts in timestamps that were issued; when it runs decides how old the horizon is,
//! never whether it is right. A node that says nothing, because it is paused or dead, holds the
//! horizon back; then versions are overwritten as soon as the slots that may wait for it are used
//! up. The word of a node that is out goes with its recovery ([`crate::recover`]), and whenever it
//! is there again ([`crate::configuration`]).
//!
//! # Whoever reads all rows
//! A snapshot that is written to a file ([`crate::snapshot`]) is in use for seconds. The top bit of
//! its node's word tells all nodes to keep more displaced versions meanwhile
//! ([`NodeTable::patient_limit`](crate::shared::NodeTable)).
//!
//! # Idle nodes
//! Where no transaction begins it runs less and less often, up to [`MAX_INTERVALS`] intervals
//! apart. It never stops: others depend on what it says. It is no work that anybody waits for.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lotus_mvcc::Timestamp;
use lotus_mvcc::horizon::horizon;
use lotus_mvcc::layout::WORD_BYTES;
use lotus_mvcc::layout::region::{CHANGES_OFFSET, FLOORS_OFFSET, MAX_FLOORS};
use lotus_router::MAX_COMPUTE_NODES;

use crate::configuration::{FLOORS_GROUP, NO_FLOOR, floor_word};
use crate::coordinator::Coordinator;

/// How many intervals an idle coordinator lets pass at most.
const MAX_INTERVALS: u32 = 8;
/// In the word of a node: one of its coordinators reads all rows. Timestamps have 63 bits.
const READS_ALL: u64 = 1 << 63;
/// After how many exchanges the owners of shards are read although none is known to have changed.
const UNMOVED: u32 = 64;

const _: () = assert!(MAX_COMPUTE_NODES <= MAX_FLOORS, "each has a word");
const _: () = assert!(CHANGES_OFFSET + WORD_BYTES as u64 == FLOORS_OFFSET, "one READ brings both");

/// What the coordinators of a node tell each other.
pub(crate) struct NodeHorizon {
    /// The floor of each, in its turn; 0 until it has said something.
    floors: Box<[AtomicU64]>,
    /// The horizon; only grows.
    horizon: AtomicU64,
    /// How many of this node's coordinators read all rows.
    reading_all: AtomicUsize,
    /// Whether some node's do, as far as is known.
    patient: AtomicBool,
    /// The words of all nodes, by place, as they were read last; none before.
    heard: Mutex<Vec<u64>>,
}

impl NodeHorizon {
    pub(crate) fn new(threads: usize) -> Self {
        let floors = (0..threads).map(|_| AtomicU64::new(0)).collect();
        Self {
            floors,
            horizon: AtomicU64::new(0),
            reading_all: AtomicUsize::new(0),
            patient: AtomicBool::new(false),
            heard: Mutex::default(),
        }
    }

    /// No snapshot lies before this.
    #[inline]
    pub(crate) fn get(&self) -> Timestamp {
        // Relaxed: a number that was true once is true for ever, and nothing else is read by it.
        Timestamp::new(self.horizon.load(Ordering::Relaxed)).unwrap_or(Timestamp::ZERO)
    }

    // Relaxed, here too: a floor is a promise about its own coordinator, kept by that alone.
    fn set_floor(&self, thread: usize, floor: Timestamp) {
        self.floors[thread].store(floor.raw(), Ordering::Relaxed);
    }

    fn node_floor(&self) -> Timestamp {
        horizon(self.floors.iter().map(|floor| floor.load(Ordering::Relaxed)))
    }

    /// The word that tells the others.
    pub(crate) fn word(&self) -> u64 {
        let reads_all = self.reading_all.load(Ordering::Relaxed) > 0;
        self.node_floor().raw() | if reads_all { READS_ALL } else { 0 }
    }

    /// The word of the node at this place, as it was read last.
    pub(crate) fn heard(&self, index: usize) -> Option<u64> {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.get(index).copied()
    }

    /// Takes in the words of all nodes.
    fn learn(&self, words: &[u64]) {
        words.clone_into(&mut self.heard.lock().unwrap_or_else(PoisonError::into_inner));
        let floor = |word: u64| if word == NO_FLOOR { word } else { word & !READS_ALL };
        self.raise(horizon(words.iter().map(|word| floor(*word))));
        let patient = words.iter().any(|word| *word != NO_FLOOR && word & READS_ALL != 0);
        self.patient.store(patient, Ordering::Relaxed);
    }

    /// One of this node's coordinators is about to read all rows.
    pub(crate) fn begin_reading_all(&self) {
        self.reading_all.fetch_add(1, Ordering::Relaxed);
    }

    /// It has read them.
    pub(crate) fn end_reading_all(&self) {
        self.reading_all.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether some node's do, so that more displaced versions are kept than otherwise.
    #[inline]
    pub(crate) fn is_patient(&self) -> bool {
        self.patient.load(Ordering::Relaxed)
    }

    pub(crate) fn raise(&self, to: Timestamp) {
        self.horizon.fetch_max(to.raw(), Ordering::Relaxed);
    }
}

/// Keeps saying what this coordinator reads, until its node is out.
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
        coordinator.node.horizon.set_floor(coordinator.thread, floor);
        if coordinator.thread == 0 {
            let changes = coordinator.exchange_floors().await;
            let due = changes.is_some_and(|changes| owners.are_due(changes));
            if due && coordinator.refresh_owners(|_, _| ()).await.is_err() {
                coordinator.node.expel();
            }
        }
    }
}

/// When to look who owns what; see [`crate::ownership`].
#[derive(Default)]
struct OwnersSeen {
    changes: u64,
    exchanges: u32,
}

impl OwnersSeen {
    /// Whether to look, with so many changes counted.
    fn are_due(&mut self, changes: u64) -> bool {
        self.exchanges = (self.exchanges + 1) % UNMOVED;
        std::mem::replace(&mut self.changes, changes) != changes || self.exchanges == 0
    }
}

impl Coordinator {
    /// After how long all nodes that are not held up know what this one says.
    pub(crate) fn notice(&self) -> Duration {
        // Said in this node's turn, and heard in theirs.
        self.shared.config.horizon_interval * (2 * MAX_INTERVALS)
    }

    /// Writes this node's floor and reads those of all, and how often shards have changed owners.
    pub(crate) async fn exchange_floors(&self) -> Option<u64> {
        let (shared, node) = (&self.shared, &self.node);
        let primary = self.primary(FLOORS_GROUP);
        let mut batch = self.lane.batch();
        batch.write_word(primary.at(floor_word(node.index)), node.horizon.word());
        // The count of changes stands before the floors.
        let all = batch.read(primary.at(CHANGES_OFFSET), (1 + shared.peers.len()) * WORD_BYTES);
        match batch.post().await {
            Ok(done) => {
                let (changes, floors) = done.words(all).split_first().expect("it was read");
                node.horizon.learn(floors);
                Some(*changes)
            }
            // What is known stays true; the next turn finds the connection working again.
            Err(error) => {
                let _ = self.after_failure(error).await;
                None
            }
        }
    }
}
