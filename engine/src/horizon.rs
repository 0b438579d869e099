//! Exchanges floors between nodes, so that all know the horizon ([`lotus_mvcc::horizon`], H13).
//!
//! # What it is
//! Every coordinator publishes its floor, the oldest snapshot it may read from, to its node now and
//! then. Coordinator 0 writes the smallest of these to the node's word on a memory node, reads the
//! words of all nodes in the same batch, and computes the horizon, which all coordinators of its
//! node use. The words are in the header page of the first group's primary only: a horizon that was
//! read stays true when that node is lost, and a missing word only stops the horizon until it is
//! written again.
//!
//! # What it is not
//! A clock. It counts in issued timestamps; when it runs decides how old the horizon is, never
//! whether it is right. A silent node, paused or dead, holds the horizon back; then versions are
//! overwritten as soon as the slots that may wait for it are used up. The word of an expelled node
//! is removed with its recovery ([`crate::recover`]), and whenever it reappears
//! ([`crate::configuration`]).
//!
//! # Readers of all rows
//! A snapshot that is written to a file ([`crate::snapshot`]) is in use for seconds. The top bit of
//! its node's word tells all nodes to keep more displaced versions meanwhile
//! ([`NodeTable::patient_limit`](crate::shared::NodeTable)).
//!
//! # Idle nodes
//! While no transaction begins the exchange becomes less frequent, up to [`MAX_INTERVALS`]
//! intervals apart. It never stops, since other nodes depend on it. No caller waits for it.

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

/// Limit of the intervals between two turns of an idle coordinator.
const MAX_INTERVALS: u32 = 8;
/// Flag in a node's word: one of its coordinators reads all rows. Timestamps have 63 bits.
const READS_ALL: u64 = 1 << 63;
/// Number of exchanges after which the owners of shards are read even if no change was counted.
const UNMOVED: u32 = 64;

const _: () = assert!(MAX_COMPUTE_NODES <= MAX_FLOORS, "each has a word");
const _: () = assert!(CHANGES_OFFSET + WORD_BYTES as u64 == FLOORS_OFFSET, "one READ brings both");

/// State of the horizon, shared by the coordinators of a node.
pub(crate) struct NodeHorizon {
    /// Floor of each coordinator; 0 until it has published one.
    floors: Box<[AtomicU64]>,
    /// The horizon; only grows.
    horizon: AtomicU64,
    /// Number of this node's coordinators that read all rows.
    reading_all: AtomicUsize,
    /// Whether a coordinator of any node reads all rows, as far as this node knows.
    patient: AtomicBool,
    /// Words of all nodes, by place, as read last; empty at first.
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

    /// The horizon: no snapshot lies before it.
    #[inline]
    pub(crate) fn get(&self) -> Timestamp {
        // Relaxed: a horizon stays true for ever, and no other memory is read on account of it.
        Timestamp::new(self.horizon.load(Ordering::Relaxed)).unwrap_or(Timestamp::ZERO)
    }

    // Relaxed as well: a floor is a promise of its own coordinator, which alone keeps it.
    fn set_floor(&self, thread: usize, floor: Timestamp) {
        self.floors[thread].store(floor.raw(), Ordering::Relaxed);
    }

    fn node_floor(&self) -> Timestamp {
        horizon(self.floors.iter().map(|floor| floor.load(Ordering::Relaxed)))
    }

    /// This node's word for the other nodes: its floor, and whether it reads all rows.
    pub(crate) fn word(&self) -> u64 {
        let reads_all = self.reading_all.load(Ordering::Relaxed) > 0;
        self.node_floor().raw() | if reads_all { READS_ALL } else { 0 }
    }

    /// Word of the node at this place, as read last; `None` before the first exchange.
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

    /// Counts a coordinator that begins to read all rows.
    pub(crate) fn begin_reading_all(&self) {
        self.reading_all.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends [`Self::begin_reading_all`].
    pub(crate) fn end_reading_all(&self) {
        self.reading_all.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether some node reads all rows, so that more displaced versions are kept.
    #[inline]
    pub(crate) fn is_patient(&self) -> bool {
        self.patient.load(Ordering::Relaxed)
    }

    pub(crate) fn raise(&self, to: Timestamp) {
        self.horizon.fetch_max(to.raw(), Ordering::Relaxed);
    }
}

/// Publishes this coordinator's floor, again and again until its node is out.
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

/// Decides when to read the owners of shards; see [`crate::ownership`].
#[derive(Default)]
struct OwnersSeen {
    changes: u64,
    exchanges: u32,
}

impl OwnersSeen {
    /// Whether to read the owners, now that `changes` changes are counted.
    fn are_due(&mut self, changes: u64) -> bool {
        self.exchanges = (self.exchanges + 1) % UNMOVED;
        std::mem::replace(&mut self.changes, changes) != changes || self.exchanges == 0
    }
}

impl Coordinator {
    /// Time after which all nodes that are not held up know what this one has published.
    pub(crate) fn notice(&self) -> Duration {
        // One delay until this node's turn, one until theirs.
        self.shared.config.horizon_interval * (2 * MAX_INTERVALS)
    }

    /// Writes this node's floor and reads all floors; returns the count of ownership changes.
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
            // The known horizon stays true; the next turn finds the connection working again.
            Err(error) => {
                let _ = self.after_failure(error).await;
                None
            }
        }
    }
}
