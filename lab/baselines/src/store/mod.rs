//! What both engines store their rows in: tables on memory nodes, their index, and what a thread
//! of a compute node needs to reach them.
//!
//! [`System`] is what an engine says of its rows: how many words a slot has, and how a loaded row
//! looks in it; [`Protocol`](attempt::Protocol) is what it does with those of a transaction. All
//! else here is the same for all.
//!
//! * `placement`: which memory nodes a row is on;
//! * `index`: its bucket and slot;
//! * `addresses`: slots that a thread knows;
//! * `search`: a row in a bucket that was read;
//! * `load`: fills a table; `sight`: reads whole tables, for audits;
//! * `attempt`: a transaction until its commit; `rows`: its rows, as its workload has declared
//!   them; `log`: its log entries;
//! * `seat`: a thread of a compute node.

pub(crate) mod addresses;
pub(crate) mod attempt;
pub(crate) mod index;
pub(crate) mod load;
pub(crate) mod log;
pub(crate) mod placement;
pub(crate) mod rows;
pub(crate) mod search;
pub(crate) mod seat;
pub(crate) mod sight;

use std::sync::atomic::{AtomicU64, Ordering};

use lotus_benchmarks::deployment::DeployError;
use lotus_fabric::ids::{NodeId, NodeSet, RegionId, RemoteAddr, TxnId};
use lotus_mvcc::timestamp::{SharedClock, Timestamp};
use lotus_mvcc::{PrimaryKey, TableSpec};

use addresses::{Known, TableSlots};
use index::{Geometry, SlotNumber};
use placement::{Homes, Placement};

/// Region of each memory node that belongs to no table: Motor's deltas, and logs.
pub(crate) const SHARED_REGION: RegionId = RegionId(u8::MAX);
/// Bytes of address space of that region; memory is taken as it is used.
pub(crate) const SHARED_BYTES: u64 = 64 << 30;
/// Most tables.
pub(crate) const MAX_TABLES: usize = 200;

/// Whether the engine has the faults that its publication has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Faults {
    /// It does not: the default.
    #[default]
    Mended,
    /// It has them.
    AsPublished,
}

/// Options of an engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// What decides the primary of a row.
    pub primaries: placement::Primaries,
    /// Addresses that threads know from the start.
    pub known: Known,
    /// Whether the engine is as published, faults included.
    pub faults: Faults,
    /// Whether locks are taken.
    pub locking: Locking,
    /// When the rows of Motor get their bars of deltas.
    pub deltas: Deltas,
    /// Where Motor has the values of versions.
    pub records: Records,
    /// How a transaction of Motor commits.
    pub commit: CommitSteps,
    /// What is FORD's own.
    pub ford: FordOptions,
}

/// Whether an engine takes locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Locking {
    /// It does: the default.
    #[default]
    On,
    /// No compare-and-swap is posted, and every lock counts as got. Updates are lost: this is to
    /// measure what the compare-and-swaps cost (LOTUS §2.2, Figure 3).
    Off,
}

/// When a row of Motor gets the bar in which the deltas of its versions lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Deltas {
    /// With its first update, as published: the default.
    #[default]
    AtFirstUpdate,
    /// When it is loaded. A short run then writes what a long one does, in which hardly any update
    /// is a row's first.
    Loaded,
}

/// Where Motor has the values of a row's versions: the first step from Motor to LOTUS (LOTUS §7.1,
/// Figure 14).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Records {
    /// The newest value, and deltas by which newer versions are taken back, as published: the
    /// default.
    #[default]
    Deltas,
    /// A full record for each version, as LOTUS has it.
    Full,
}

/// How a transaction of Motor commits: the second step from Motor to LOTUS (LOTUS §5.1, Figure 14).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CommitSteps {
    /// One doorbell for each row and replica, and nothing is awaited, as published: the default.
    #[default]
    AtOnce,
    /// A log entry and INVISIBLE versions, awaited; then the timestamp makes all of them visible,
    /// awaited; then the locks are freed. It takes [`Records::Full`].
    LogAndVisible,
}

impl Options {
    /// Refuses what does not go together.
    ///
    /// # Errors
    /// [`DeployError::Refused`].
    pub(crate) fn check(&self) -> Result<(), DeployError> {
        match (self.commit, self.records) {
            (CommitSteps::LogAndVisible, Records::Deltas) => {
                Err(refused("a commit with a log and a visible step needs full records"))
            }
            _ => Ok(()),
        }
    }
}

/// Options of FORD.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FordOptions {
    /// Least bytes of an item; more if the longest value of the workload needs them.
    pub item_bytes: usize,
    /// Whether commits read back what they have written to backups, so that it is known to have
    /// left the network card ("selective remote flush").
    pub flush: bool,
}

/// A row as it is found in memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Stored {
    pub(crate) key: PrimaryKey,
    /// Newest committed value and its writer; `None` if there is no such row.
    pub(crate) value: Option<(Vec<u8>, Option<TxnId>)>,
}

/// An engine, as far as its rows go.
pub(crate) trait System: Sized + Send + Sync + 'static {
    /// Lengths of the rows of one table.
    type Shape: Copy + Send + Sync;

    /// Shape of the rows of a table, where the longest value of all tables has `longest` bytes.
    fn shape(spec: &TableSpec, longest: usize, options: &Options) -> Self::Shape;

    /// Index of a table with room for `capacity` rows, whose keys are `dense` or not.
    fn geometry(shape: Self::Shape, capacity: u64, dense: bool) -> Geometry;

    /// Bytes of [`SHARED_REGION`] that each loaded row has for its own; none by default.
    fn shared_bytes(_shape: Self::Shape, _options: &Options) -> u64 {
        0
    }

    /// Lays out a row that was loaded: in its slot, and beside the index. Its part of
    /// [`SHARED_REGION`] begins at `shared`, if it has one.
    fn lay_out(
        shape: Self::Shape,
        table: usize,
        row: (&PrimaryKey, &[u8], Option<u64>),
        slot: &mut [u64],
        beside: &mut [u64],
    );

    /// The key of a slot; `None` if it is free.
    fn key_in(slot: &[u64]) -> Option<PrimaryKey>;

    /// Whether a slot is locked.
    fn is_locked(slot: &[u64]) -> bool;

    /// What a slot that is not free holds, with what lies beside the index.
    ///
    /// # Errors
    /// A sentence, if the words are not a row of this engine.
    fn stored(shape: Self::Shape, slot: &[u64], beside: &[u64]) -> Result<Stored, String>;
}

/// One table.
pub(crate) struct StoredTable<S: System> {
    pub(crate) number: usize,
    pub(crate) name: String,
    pub(crate) region: RegionId,
    pub(crate) shape: S::Shape,
    pub(crate) geometry: Geometry,
    /// Length of the longest key and value, in bytes.
    pub(crate) key_bytes: usize,
    pub(crate) record_bytes: usize,
    pub(crate) rows: u64,
    /// Slots with a key: those of the loaded rows, and of rows that came.
    pub(crate) filled: AtomicU64,
    /// Slots of all loaded rows, if threads are to know them.
    pub(crate) loaded: Option<TableSlots>,
}

impl<S: System> StoredTable<S> {
    /// Address of a slot on a node.
    #[inline]
    pub(crate) fn slot(&self, node: NodeId, slot: SlotNumber) -> RemoteAddr {
        RemoteAddr::new(node, self.region, self.geometry.slot_at(slot))
    }

    /// Bytes in use on a node: the whole index, and what lies beside it for slots with a key.
    pub(crate) fn bytes_in_use(&self) -> u64 {
        let index = self.geometry.slots() * self.geometry.slot_bytes() as u64;
        index + self.filled.load(Ordering::Relaxed) * self.geometry.beside_bytes() as u64
    }

    /// Address of what lies beside the index for a slot.
    #[inline]
    pub(crate) fn beside(&self, node: NodeId, slot: SlotNumber) -> RemoteAddr {
        RemoteAddr::new(node, self.region, self.geometry.beside_at(slot))
    }
}

/// All that threads of all compute nodes share.
pub(crate) struct Store<S: System> {
    pub(crate) options: Options,
    pub(crate) placement: Placement,
    pub(crate) cns: u16,
    pub(crate) tables: Vec<StoredTable<S>>,
    pub(crate) clock: SharedClock,
    /// Bytes of [`SHARED_REGION`] that threads have taken for themselves.
    taken: AtomicU64,
}

impl<S: System> Store<S> {
    pub(crate) fn new(options: Options, placement: Placement, cns: u16) -> Self {
        let clock = SharedClock::after(Timestamp::LOADED);
        Self { options, placement, cns, tables: Vec::new(), clock, taken: AtomicU64::new(0) }
    }

    /// Nodes of a slot.
    #[inline]
    pub(crate) fn homes(&self, table: &StoredTable<S>, slot: SlotNumber) -> Homes {
        self.placement.homes(table.number, table.geometry.bucket_of_slot(slot))
    }

    /// Nodes that have a replica of some row of a table.
    pub(crate) fn nodes(&self, table: &StoredTable<S>) -> NodeSet {
        let buckets = 0..table.geometry.buckets.min(self.placement.nodes().count() as u64);
        let homes = buckets.map(|bucket| self.placement.homes(table.number, bucket).all);
        homes.fold(NodeSet::EMPTY, NodeSet::or)
    }

    /// Takes so many bytes of [`SHARED_REGION`], which has the same offsets on all memory nodes;
    /// `None` if there are no more.
    pub(crate) fn take(&self, bytes: u64) -> Option<u64> {
        let at = self.taken.fetch_add(bytes, Ordering::Relaxed);
        (at + bytes <= SHARED_BYTES).then_some(at)
    }

    /// Bytes of [`SHARED_REGION`] that were taken.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }
}

/// A refusal with this sentence.
pub(crate) fn refused(why: impl std::fmt::Display) -> DeployError {
    DeployError::Refused(why.to_string())
}

/// A failure with this sentence.
pub(crate) fn failed(why: impl std::fmt::Display) -> DeployError {
    DeployError::Failed(why.to_string())
}
