//! State shared by all threads of a process: the nodes, and the layout of memory.
//!
//! Everything here is immutable after start, atomic, or behind a lock not taken by transactions.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use async_channel::{Receiver, Sender};
use lotus_fabric::env::Env;
use lotus_fabric::ids::{Epoch, Incarnation, NodeId, RegionId, ShardId};
use lotus_fabric::transport::Fabric;
use lotus_locktable::{LockHost, LockKey, LockSpace, LockTable, WaitOutcome};
use lotus_mvcc::TableDef;
use lotus_mvcc::address_cache::AddressCache;
use lotus_mvcc::layout::region::RegionLayout;
use lotus_mvcc::timestamp::SharedClock;
use lotus_recovery::Beat;
use lotus_recovery::membership::FIRST_EPOCH;
use lotus_recovery::{LogGeometry, Membership, membership};
use lotus_router::placement::LOG_REGION;
use lotus_router::{Owner, Placement, Router, ShardEpoch, ShardMap};
use lotus_sabotage::{Rule, broken};

use crate::api::config::Config;
use crate::api::coordinator_id::HeldUp;
use crate::api::error::TxnError;
use crate::api::moves::MoveCounters;
use crate::node::agreed::async_authority::AsyncAuthority;
use crate::node::agreed::catalogue_lookups::CatalogueLookups;
use crate::node::agreed::counted::LastCount;
use crate::node::agreed::names::Names;
use crate::node::agreed::tables::KnownTables;
use crate::node::caches::version_tables::VersionTables;
use crate::node::control::Control;
use crate::node::memory::configuration::{NodeConfiguration, SlabAllocations};
use crate::node::memory::filled::Filled;
use crate::node::memory::silent::Silent;
use crate::node::memory::slots::NodeSlots;
use crate::node::peers::load_counts::NodeCounts;
use crate::node::peers::members::NodeMembers;
use crate::node::peers::moves::Order;
use crate::node::peers::nodes::Nodes;
use crate::node::peers::suspects::Suspects;
use crate::node::threads::poll_tracker::CurrentPoll;
use crate::node::time::horizon::NodeHorizon;
use crate::node::time::oracle::Oracle;

/// Region of lock objects on every memory node, after the logs.
pub(crate) const LOCK_REGION: RegionId = RegionId(LOG_REGION.0 + 1);

pub(crate) struct Shared {
    pub(crate) config: Config,
    /// Fabric on which coordinators open their lanes.
    pub(crate) fabric: Arc<dyn Fabric>,
    pub(crate) control: Control,
    /// The initial placement. Memory accesses use the current placement instead
    /// ([`crate::memory_nodes::changes`]).
    pub(crate) placement: Placement,
    /// Control threads taking slabs.
    pub(crate) slab_allocations: SlabAllocations,
    /// Access to the authority, which stores the membership and the tables.
    pub(crate) async_authority: AsyncAuthority,
    /// The routing layer's copy of the shard map, kept up to date by all nodes of this process.
    pub(crate) shards: Arc<ShardMap>,
    pub(crate) router: Router,
    pub(crate) log: LogGeometry,
    /// Layout of every replica group's region.
    pub(crate) region: RegionLayout,
    pub(crate) clock: SharedClock,
    pub(crate) tables: RwLock<KnownTables>,
    /// Whether coordinators are threads, which application code may block.
    pub(crate) has_threads: bool,
    /// Code currently holding up its coordinators.
    pub(crate) held_up: Mutex<Vec<HeldUp>>,
    /// Closed when the cluster is stopped.
    pub(crate) stopping: (Sender<()>, Receiver<()>),
    /// Work not ended by itself when the cluster was stopped.
    pub(crate) unended: Mutex<Vec<String>>,
    /// Naming of the rows.
    pub(crate) names: Names,
    /// Closed when this process drops a table for the first time.
    pub(crate) drops: (Sender<()>, Receiver<()>),
    /// Lookups, in the catalogue, of tables of other processes.
    pub(crate) catalogue_lookups: CatalogueLookups,
    /// Number that distinguishes this process from earlier and concurrent processes.
    pub(crate) process: u64,
    /// Number of rows loaded by this process.
    pub(crate) rows_loaded: AtomicU64,
    /// Users of names, with the idealized lock.
    #[cfg(feature = "sabotage")]
    pub(crate) exclusion: Arc<lotus_locks::ideal::Exclusion>,
    /// All compute nodes.
    pub(crate) peers: Vec<Peer>,
    /// Compute nodes of this process, in order.
    pub(crate) nodes: Nodes,
}

/// Compute node of any process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) id: NodeId,
    /// Place among the compute nodes, from zero.
    pub(crate) index: usize,
}

/// One life of a compute node of this process: the state shared by the node's coordinators.
pub(crate) struct ComputeNode {
    pub(crate) id: NodeId,
    /// Place among the compute nodes, from zero.
    pub(crate) index: usize,
    pub(crate) incarnation: Incarnation,
    /// Admission epoch.
    pub(crate) epoch: Epoch,
    /// Clock and randomness.
    pub(crate) env: Env,
    pub(crate) locks: Arc<LockTable>,
    /// Uses of the idealized lock, once a coordinator has begun to use it.
    #[cfg(feature = "sabotage")]
    pub(crate) ideal: std::sync::OnceLock<Arc<lotus_locks::ideal::Counters>>,
    pub(crate) versions: VersionTables,
    /// Shard owners, as far as this node knows.
    pub(crate) shards: Arc<ShardMap>,
    /// The routing layer's copy of the shard map.
    pub(crate) routes: Arc<ShardMap>,
    /// Load counts; `None` without load balancing.
    pub(crate) counts: Option<NodeCounts>,
    /// Hand-over counters.
    pub(crate) moves: Mutex<MoveCounters>,
    /// Move requests for shards owned by this node.
    pub(crate) orders: (Sender<Order>, Receiver<Order>),
    /// Move requests to forward to the shards' owners.
    pub(crate) passed_on: (Sender<Order>, Receiver<Order>),
    pub(crate) tables: RwLock<Vec<Arc<NodeTable>>>,
    pub(crate) horizon: NodeHorizon,
    /// Free slots shared by the coordinators.
    pub(crate) slots: NodeSlots,
    pub(crate) members: NodeMembers,
    /// State for serving timestamps.
    pub(crate) oracle: Oracle,
    pub(crate) configuration: NodeConfiguration,
    /// Shards filled on returning memory nodes.
    pub(crate) filled: Filled,
    /// Whether the node takes work: `SERVES`, `SUSPENDED` or `OUT`.
    standing: AtomicU8,
    /// Memory nodes not answering this node.
    pub(crate) silent: Silent,
    /// Compute nodes not answering this node.
    pub(crate) suspects: Suspects,
    /// Row counts of the last count.
    pub(crate) counted: LastCount,
    /// Activity of each coordinator's thread.
    pub(crate) current_polls: Box<[Arc<CurrentPoll>]>,
    /// Latest beat, as a word.
    beat: AtomicU64,
    /// Closed to end the coordinators at once.
    killed: (Sender<()>, Receiver<()>),
}

const SERVES: u8 = 0;
/// The lease has run out, so the node may have been expelled: the node begins no transaction until
/// its membership is certain. A newcomer is suspended too, until every member knows of it.
const SUSPENDED: u8 = 1;
/// A coordinator has panicked (H21), or the node was fenced (H2): the node's locks and writes are
/// in doubt, so it takes no more work.
const OUT: u8 = 2;

/// Parts that make a [`ComputeNode`].
pub(crate) struct NodeParts<'a> {
    pub(crate) id: NodeId,
    pub(crate) index: usize,
    pub(crate) incarnation: Incarnation,
    pub(crate) epoch: Epoch,
    pub(crate) env: Env,
    pub(crate) locks: Arc<LockTable>,
    pub(crate) shards: Arc<ShardMap>,
    pub(crate) routes: Arc<ShardMap>,
    /// Membership that includes the node.
    pub(crate) members: &'a Membership,
    pub(crate) threads: usize,
    pub(crate) coroutines: usize,
    /// The initial placement.
    pub(crate) placement: Placement,
    /// Number of version tables to cache.
    pub(crate) cached: usize,
    /// Whether the load is balanced.
    pub(crate) balanced: bool,
}

/// Table, with a compute node's state for the table.
pub(crate) struct NodeTable {
    pub(crate) def: Arc<TableDef>,
    pub(crate) addresses: AddressCache,
    /// Maximum of displaced versions kept for snapshots by each coordinator.
    pub(crate) retired_limit: usize,
    /// The same maximum while a snapshot reads all rows, which takes seconds.
    pub(crate) patient_limit: usize,
    /// Whether the table was dropped.
    pub(crate) is_dropped: AtomicBool,
    /// Whether the root of an ordered table was a leaf at this node's last read, as in a new table.
    pub(crate) root_is_leaf: AtomicBool,
}

impl NodeTable {
    /// Whether version tables of the table's rows are cached: not if the records lie beside the
    /// cells.
    #[inline]
    pub(crate) fn may_be_cached(&self) -> bool {
        self.def.cvt().home_words() == 0
    }
}

impl Shared {
    /// Returns the node's place among the compute nodes.
    pub(crate) fn index_of(&self, node: NodeId) -> Option<usize> {
        self.peers.iter().position(|known| known.id == node)
    }

    /// Returns the compute node at a place, if it is in this process.
    pub(crate) fn hosted(&self, index: usize) -> Option<Arc<ComputeNode>> {
        self.nodes.iter().find(|node| node.index == index)
    }

    /// Whether a compute node has failed, or a memory node has come back, to the knowledge of this
    /// process or the authority.
    pub(crate) fn has_lost_a_node(&self) -> bool {
        let here = self.nodes.iter().any(|node| node.has_failed());
        let members = || membership::read(self.async_authority.authority());
        // A returned node counts too: its earlier life has left traces.
        let lost = |now: Membership| {
            now.expelled().next().is_some()
                || now.live().any(|one| one.joined != FIRST_EPOCH)
                || !now.returns().is_empty()
        };
        here || members().is_ok_and(lost)
    }

    /// Whether all compute nodes are in this process.
    pub(crate) fn is_whole(&self) -> bool {
        self.nodes.iter().len() == self.peers.len()
    }
}

impl ComputeNode {
    pub(crate) fn new(parts: NodeParts<'_>) -> Self {
        let NodeParts { id, locks, shards, threads, cached, members, .. } = parts;
        debug_assert!(
            members.member(id).is_some_and(|member| member.incarnation == parts.incarnation),
            "I48: a node has the incarnation that the members know"
        );
        let standing = if parts.epoch == FIRST_EPOCH { SERVES } else { SUSPENDED };
        Self {
            id,
            index: parts.index,
            incarnation: parts.incarnation,
            epoch: parts.epoch,
            env: parts.env,
            versions: VersionTables::new(id, Arc::clone(&locks), Arc::clone(&shards), cached),
            locks,
            #[cfg(feature = "sabotage")]
            ideal: std::sync::OnceLock::new(),
            shards,
            routes: parts.routes,
            counts: parts.balanced.then(NodeCounts::new),
            moves: Mutex::default(),
            orders: async_channel::unbounded(),
            passed_on: async_channel::unbounded(),
            tables: RwLock::default(),
            horizon: NodeHorizon::new(threads),
            slots: NodeSlots::new(parts.placement.group_count() as u16),
            members: NodeMembers::new(threads, members),
            oracle: Oracle::new(members, threads),
            configuration: NodeConfiguration::new(&parts.placement, threads),
            filled: Filled::default(),
            silent: Silent::default(),
            counted: LastCount::default(),
            suspects: Suspects::none_of(members.members().iter().map(|member| member.node)),
            standing: AtomicU8::new(standing),
            current_polls: (0..threads).map(|_| CurrentPoll::new(parts.coroutines)).collect(),
            beat: AtomicU64::new(Beat::first(parts.epoch).word()),
            killed: async_channel::bounded(1),
        }
    }

    /// The next beat of this life, sent by coordinator 0 or on its behalf.
    pub(crate) fn next_beat(&self) -> Beat {
        let next = |word| Beat::from_word(word).next();
        let count = |word| Some(next(word).word());
        // Relaxed: only the order of beats within this word matters.
        let counted = self.beat.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count);
        let beat = next(counted.unwrap_or_else(|word| word));
        debug_assert!(
            beat.joined() == self.epoch,
            "I332: whichever thread beats, it is for this life"
        );
        beat
    }

    /// Ends the coordinators at once.
    pub(crate) fn kill(&self) {
        self.killed.0.close();
    }

    /// Waits until [`Self::kill`] is called.
    pub(crate) async fn killed(&self) {
        // Nothing is ever sent.
        let _ = self.killed.1.recv().await;
    }

    /// Takes no more work from now on.
    pub(crate) fn expel(&self) {
        self.standing.store(OUT, Ordering::SeqCst);
        // The node's transactions hold their locks until recovery has settled them: no waiting
        // request will be granted.
        self.locks.dismiss(WaitOutcome::Closed, |_, _| true);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.standing.load(Ordering::Acquire) == OUT
    }

    /// Begins no transactions until [`Self::resume`].
    pub(crate) fn suspend(&self) {
        self.change_standing(SERVES, SUSPENDED);
    }

    /// Takes work again: the lease is held.
    pub(crate) fn resume(&self) {
        self.change_standing(SUSPENDED, SERVES);
    }

    /// Checks that a transaction may begin.
    pub(crate) fn check_standing(&self) -> Result<(), TxnError> {
        match self.standing.load(Ordering::Acquire) {
            SERVES => Ok(()),
            SUSPENDED => Err(self.configuration.why_timeout()),
            _ => Err(TxnError::Fenced),
        }
    }

    fn change_standing(&self, from: u8, to: u8) {
        // An expelled node stays expelled, so a failed exchange is right.
        let _ = self.standing.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
    }
}

impl LockHost for ComputeNode {
    fn owns(&self, shard: ShardId, shard_epoch: u32) -> bool {
        if let Some(counts) = &self.counts {
            counts.count_request(shard);
        }
        self.shards.serves(shard, Owner { node: self.id, epoch: ShardEpoch(shard_epoch) })
    }

    fn owner_known(&self, shard: ShardId) -> (NodeId, u32) {
        let owner = self.shards.owner(shard);
        (owner.node, owner.epoch.0)
    }

    fn configuration_epoch(&self) -> Epoch {
        self.epoch
    }

    fn write_granted(&self, name: &LockKey) {
        if name.space == LockSpace::Row && !broken(Rule::RemoteWritersAreNoticed) {
            self.versions.forget(name.table, name.key);
        }
    }
}
