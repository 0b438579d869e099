//! Floors of a node's coordinators, and the horizon of all nodes (H13;
//! [`crate::membership::floors`]).

use crate::node::memory::configuration::NO_FLOOR;
use lotus_mvcc::Timestamp;
use lotus_mvcc::horizon::horizon;
use lotus_sabotage::any_broken;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Flag in a node's word: a coordinator reads all rows. Timestamps have 63 bits.
const READS_ALL: u64 = 1 << 63;

/// State of the horizon, shared by the coordinators of a node.
pub(crate) struct NodeHorizon {
    /// Floor of each coordinator; 0 until published.
    floors: Box<[AtomicU64]>,
    /// The horizon; only grows.
    horizon: AtomicU64,
    /// Number of local coordinators reading all rows.
    reading_all: AtomicUsize,
    /// Whether a coordinator of any node is known to read all rows.
    patient: AtomicBool,
    /// Words of all nodes, by place, from the last read; empty at first.
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
        // Relaxed: a horizon stays true for ever, and guards no other memory.
        Timestamp::new(self.horizon.load(Ordering::Relaxed)).unwrap_or(Timestamp::ZERO)
    }

    // Relaxed as well: a floor is a promise kept by its coordinator alone.
    pub(crate) fn set_floor(&self, thread: usize, floor: Timestamp) {
        debug_assert!(
            self.floors[thread].load(Ordering::Relaxed) <= floor.raw() || any_broken(),
            "I61: no snapshot to come lies before a published floor"
        );
        self.floors[thread].store(floor.raw(), Ordering::Relaxed);
    }

    /// Last floor published by the coordinator; zero before the first.
    pub(crate) fn floor(&self, thread: usize) -> Timestamp {
        Timestamp::new(self.floors[thread].load(Ordering::Relaxed)).unwrap_or(Timestamp::ZERO)
    }

    fn node_floor(&self) -> Timestamp {
        horizon(self.floors.iter().map(|floor| floor.load(Ordering::Relaxed)))
    }

    /// This node's word for its peers: the floor, and the flag for reading all rows.
    pub(crate) fn word(&self) -> u64 {
        let reads_all = self.reading_all.load(Ordering::Relaxed) > 0;
        let floor = self.node_floor().raw();
        debug_assert!(floor & READS_ALL == 0, "I151: the flag is no part of a floor");
        floor | if reads_all { READS_ALL } else { 0 }
    }

    /// Word of the node at this place, from the last read; `None` before the first exchange.
    pub(crate) fn heard(&self, index: usize) -> Option<u64> {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.get(index).copied()
    }

    /// Takes in the words of all nodes.
    pub(crate) fn learn(&self, words: &[u64]) {
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
        let before = self.reading_all.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "I151: a coordinator ends the reading that it began");
    }

    /// Whether a node reads all rows: more displaced versions are kept then.
    #[inline]
    pub(crate) fn is_patient(&self) -> bool {
        self.patient.load(Ordering::Relaxed)
    }

    pub(crate) fn raise(&self, to: Timestamp) {
        self.horizon.fetch_max(to.raw(), Ordering::Relaxed);
    }
}

/// Limit of the intervals between two turns of an idle coordinator.
pub(crate) const MAX_INTERVALS: u32 = 8;
