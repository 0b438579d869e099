//! Storage shared by both engines: tables on memory nodes, their index, and the state that a thread
//! of a compute node needs to reach them.
//!
//! [`System`] describes an engine's rows: the number of words of a slot, and the layout of a loaded
//! row in the slot. [`Protocol`](attempt::Protocol) describes an engine's transactions. The rest of
//! the module is common to all engines.
//!
//! * `placement`: the memory nodes of a row;
//! * `index`: a row's bucket and slot;
//! * `addresses`: slots that a thread knows;
//! * `search`: lookup of a row in a bucket that was read;
//! * `load`: fills a table; `sight`: reads whole tables, for audits;
//! * `attempt`: a transaction until its commit; `rows`: the rows that its workload has declared;
//!   `log`: its log entries;
//! * `thread_context`: a thread of a compute node.

pub(crate) mod addresses;
pub(crate) mod attempt;
pub(crate) mod index;
pub(crate) mod load;
pub(crate) mod log;
pub(crate) mod placement;
pub(crate) mod rows;
pub(crate) mod search;
pub(crate) mod sight;
pub(crate) mod thread_context;

use std::sync::atomic::{AtomicU64, Ordering};

use lotus_benchmarks::deployment::DeployError;
use lotus_fabric::ids::{NodeId, NodeSet, RegionId, RemoteAddr, TxnId};
use lotus_mvcc::timestamp::{SharedClock, Timestamp};
use lotus_mvcc::{PrimaryKey, TableSpec};

use addresses::{Known, TableSlots};
use index::{Geometry, SlotNumber};
use placement::{Homes, Placement};

/// Region of each memory node outside of all tables, for Motor's deltas and for logs.
pub(crate) const SHARED_REGION: RegionId = RegionId(u8::MAX);
/// Bytes of address space of [`SHARED_REGION`]; memory is allocated as it is used.
pub(crate) const SHARED_BYTES: u64 = 64 << 30;
/// Maximum number of tables.
pub(crate) const MAX_TABLES: usize = 200;

/// Whether the engine has the faults of its published program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Faults {
    /// The engine has no such faults: the default.
    #[default]
    Mended,
    /// The engine has the published faults.
    AsPublished,
}

/// Options of an engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Rule that decides the primary of a row.
    pub primaries: placement::Primaries,
    /// Addresses that threads know from the start.
    pub known: Known,
    /// Whether the engine is as published, faults included.
    pub faults: Faults,
    /// Whether locks are taken.
    pub locking: Locking,
    /// Time at which the rows of Motor get their bars of deltas.
    pub deltas: Deltas,
    /// Form in which Motor stores the values of versions.
    pub records: Records,
    /// Steps of Motor's commit.
    pub commit: CommitSteps,
    /// Options of FORD alone.
    pub ford: FordOptions,
}

/// Whether an engine takes locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Locking {
    /// The engine takes locks: the default.
    #[default]
    On,
    /// No compare-and-swap is posted, and every lock counts as acquired. Updates are lost. The
    /// option measures the cost of the compare-and-swaps (LOTUS §2.2, Figure 3).
    Off,
}

/// Time at which a row of Motor gets its bar, the memory for the deltas of its versions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Deltas {
    /// At the row's first update, as published: the default.
    #[default]
    AtFirstUpdate,
    /// When the row is loaded. A short run then writes as much as a long one, in which hardly any
    /// update is a row's first.
    Loaded,
}

/// Form in which Motor stores the values of a row's versions: the first step from Motor to LOTUS
/// (LOTUS §7.1, Figure 14).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Records {
    /// The newest value, and deltas that undo newer versions, as published: the default.
    #[default]
    Deltas,
    /// A full record for each version, as in LOTUS.
    Full,
}

/// Steps of Motor's commit: the second step from Motor to LOTUS (LOTUS §5.1, Figure 14).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CommitSteps {
    /// One doorbell for each row and replica, without waiting for completion, as published: the
    /// default.
    #[default]
    AtOnce,
    /// A log entry and INVISIBLE versions, awaited; then the timestamp makes the versions visible,
    /// awaited; then the locks are released. Requires [`Records::Full`].
    LogAndVisible,
}

impl Options {
    /// Refuses combinations of options that do not work together.
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
    /// Minimum bytes of an item; more if the longest value of the workload needs more.
    pub item_bytes: usize,
    /// Whether commits read from the backups after their WRITEs, so that the written data is known
    /// to have left the network card ("selective remote flush").
    pub flush: bool,
}

/// A row as read from memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Stored {
    pub(crate) key: PrimaryKey,
    /// Newest committed value and its writer; `None` if the row does not exist.
    pub(crate) value: Option<(Vec<u8>, Option<TxnId>)>,
}

/// An engine's row format.
pub(crate) trait System: Sized + Send + Sync + 'static {
    /// Lengths of the rows of one table.
    type Shape: Copy + Send + Sync;

    /// Shape of the rows of a table. `longest` is the length in bytes of the longest value of all
    /// tables.
    fn shape(spec: &TableSpec, longest: usize, options: &Options) -> Self::Shape;

    /// Index of a table with room for `capacity` rows, whose keys are `dense` or not.
    fn geometry(shape: Self::Shape, capacity: u64, dense: bool) -> Geometry;

    /// Bytes of [`SHARED_REGION`] owned by each loaded row; none by default.
    fn shared_bytes(_shape: Self::Shape, _options: &Options) -> u64 {
        0
    }

    /// Lays out a loaded row: in its slot, and beside the index. The row's part of
    /// [`SHARED_REGION`], if any, begins at `shared`.
    fn lay_out(
        shape: Self::Shape,
        table: usize,
        row: (&PrimaryKey, &[u8], Option<u64>),
        slot: &mut [u64],
        beside: &mut [u64],
    );

    /// The key of a slot; `None` if the slot is free.
    fn key_in(slot: &[u64]) -> Option<PrimaryKey>;

    /// Whether a slot is locked.
    fn is_locked(slot: &[u64]) -> bool;

    /// Contents of a slot that is not free, with the words beside the index.
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
    /// Slots with a key: of loaded rows and of rows inserted later.
    pub(crate) filled: AtomicU64,
    /// Slots of all loaded rows, if threads are to know them from the start.
    pub(crate) loaded: Option<TableSlots>,
}

impl<S: System> StoredTable<S> {
    /// Address of a slot on a node.
    #[inline]
    pub(crate) fn slot(&self, node: NodeId, slot: SlotNumber) -> RemoteAddr {
        RemoteAddr::new(node, self.region, self.geometry.slot_at(slot))
    }

    /// Bytes in use on a node: the whole index, and the words beside the index of slots with a key.
    pub(crate) fn bytes_in_use(&self) -> u64 {
        let index = self.geometry.slots() * self.geometry.slot_bytes() as u64;
        index + self.filled.load(Ordering::Relaxed) * self.geometry.beside_bytes() as u64
    }

    /// Address of the words beside the index that belong to a slot.
    #[inline]
    pub(crate) fn beside(&self, node: NodeId, slot: SlotNumber) -> RemoteAddr {
        RemoteAddr::new(node, self.region, self.geometry.beside_at(slot))
    }
}

/// State shared by the threads of all compute nodes.
pub(crate) struct Store<S: System> {
    pub(crate) options: Options,
    pub(crate) placement: Placement,
    pub(crate) cns: u16,
    pub(crate) tables: Vec<StoredTable<S>>,
    pub(crate) clock: SharedClock,
    /// Bytes of [`SHARED_REGION`] that threads have allocated.
    taken: AtomicU64,
}

impl<S: System> Store<S> {
    pub(crate) fn new(options: Options, placement: Placement, cns: u16) -> Self {
        let clock = SharedClock::after(Timestamp::LOADED);
        Self { options, placement, cns, tables: Vec::new(), clock, taken: AtomicU64::new(0) }
    }

    /// Nodes with a replica of a slot.
    #[inline]
    pub(crate) fn homes(&self, table: &StoredTable<S>, slot: SlotNumber) -> Homes {
        self.placement.homes(table.number, table.geometry.bucket_of_slot(slot))
    }

    /// Nodes with a replica of any row of a table.
    pub(crate) fn nodes(&self, table: &StoredTable<S>) -> NodeSet {
        let buckets = 0..table.geometry.buckets.min(self.placement.nodes().count() as u64);
        let homes = buckets.map(|bucket| self.placement.homes(table.number, bucket).all);
        homes.fold(NodeSet::EMPTY, NodeSet::or)
    }

    /// Allocates `bytes` bytes of [`SHARED_REGION`], at the same offset on all memory nodes; `None`
    /// if the region is full.
    pub(crate) fn take(&self, bytes: u64) -> Option<u64> {
        let at = self.taken.fetch_add(bytes, Ordering::Relaxed);
        (at + bytes <= SHARED_BYTES).then_some(at)
    }

    /// Allocated bytes of [`SHARED_REGION`].
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }
}

/// A refusal with the sentence `why`.
pub(crate) fn refused(why: impl std::fmt::Display) -> DeployError {
    DeployError::Refused(why.to_string())
}

/// A failure with the sentence `why`.
pub(crate) fn failed(why: impl std::fmt::Display) -> DeployError {
    DeployError::Failed(why.to_string())
}
