//! The locks configured for the cluster, from the view of one coordinator.
//!
//! Locks on memory nodes are those of `lotus-locks`, fenced: a lost node's locks and requests are
//! taken from it once the node is settled ([`crate::node::peers::lock_peers`]). The idealized lock
//! (`ideal`) takes their place in the same way.
//!
//! # A lost memory node
//! Locks are not copied. They lie on the primary in use of their shard's group, and move with the
//! primary while all nodes stop ([`crate::memory_nodes::changes`]). A coordinator stops for the
//! loss by abandoning the locks on the memory node, and acknowledges the loss when none of their
//! uses is under way. Attempts with abandoned locks will not commit, unless already committing; a
//! later release of an abandoned lock posts no verb. So the memory node has only free locks when
//! used again, with zeroed memory.

#[cfg(feature = "sabotage")]
mod ideal;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lotus_fabric::exec::Handle;
use lotus_fabric::ids::{Epoch, NodeId, RemoteAddr};
use lotus_fabric::rpc::{Rpc, Service};
use lotus_fabric::verbs::MAX_VERB_BYTES;
use lotus_locks::systems::Visitor;
use lotus_locks::{Client, Identity, Limits, LockSystem, MemoryLocks, Mode, ObjectOf, Wait};
use lotus_locktable::{HeldLocks, LockError, LockKey, LockRequest, LockService, LotusLocks};

use lotus_recovery::membership::returns::Life;

use crate::api::config::{Config, LockKind};
use crate::node::memory::configuration::Configuration;
use crate::node::peers::lock_peers::LockPeers;
use crate::node::shared::{ComputeNode, LOCK_REGION, Shared};

/// Service for the coordinators' messages about resets and their uses of locks.
const SERVICE: Service = Service(7);
/// Longest time after which a waiter asks whether it waits for a lost node.
const STALL: Duration = Duration::from_millis(50);
/// Minimum number of lock objects on a memory node, so that two locks seldom share an object.
const OBJECTS: u64 = 1 << 16;
/// Minimum size of the region of lock objects.
const REGION_BYTES: u64 = 8 << 20;

/// Size of the region of lock objects on each memory node, for objects of `object_bytes` bytes.
/// Backed only as used.
pub(crate) const fn region_bytes(object_bytes: u64) -> u64 {
    let least = OBJECTS * object_bytes;
    if least > REGION_BYTES { least } else { REGION_BYTES }
}

/// Size of the region of lock objects on each memory node; `None` if locks are not on memory nodes.
pub(crate) fn lock_region_bytes(config: &Config) -> Option<u64> {
    let bytes = config.memory_locks().map(|choice| region_bytes(choice.object_bytes()))?;
    match config.locks {
        LockKind::IdealRdma => Some(bytes + MAX_VERB_BYTES as u64),
        _ => Some(bytes),
    }
}

/// Place behind the words of the idealized lock, written by attempts and never read.
#[cfg(feature = "sabotage")]
pub(crate) const SCRATCH_OFFSET: u64 = region_bytes(8);

/// The locks of one coordinator.
pub(crate) enum Locks {
    Lotus(LotusLocks<ComputeNode>),
    OnMemory(LocksOnMemory),
}

/// Locks of a coordinator on the primaries in use, for a given lock system.
pub(crate) struct LocksOnMemory {
    pub(crate) system: Box<dyn OnMemory>,
    homes: Homes,
    /// Memory nodes that are lost, or were lost before their lives in use began.
    left: RefCell<BTreeMap<NodeId, LostMemoryState>>,
}

/// Memory node of each group's locks.
type Homes = Rc<RefCell<Vec<NodeId>>>;

/// A coordinator's dealings with a memory node lost at least once.
enum LostMemoryState {
    /// The locks on the memory node are abandoned; the flag says that no use of them is under way.
    Abandoned(Rc<Cell<bool>>),
    /// The locks of this life are in use.
    Resumed(Life),
}

impl LocksOnMemory {
    fn follow(&self, configuration: &Configuration, executor: &Handle) {
        let (left, lost) = (&mut *self.left.borrow_mut(), configuration.lost());
        for memory in &*lost {
            if !matches!(left.get(memory), Some(LostMemoryState::Abandoned(_))) {
                let is_over = Rc::new(Cell::new(false));
                left.insert(*memory, LostMemoryState::Abandoned(Rc::clone(&is_over)));
                let abandoning = self.system.abandon(*memory);
                executor.spawn(async move {
                    abandoning.await;
                    is_over.set(true);
                });
            }
        }
        for (memory, life) in configuration.lives().iter().filter(|(node, _)| !lost.contains(node))
        {
            let is_due = match left.get(memory) {
                Some(LostMemoryState::Abandoned(is_over)) => is_over.get(),
                Some(LostMemoryState::Resumed(known)) => known != life,
                None => true,
            };
            if is_due {
                left.insert(*memory, LostMemoryState::Resumed(*life));
                self.system.resume(*memory, life.epoch());
            }
        }
        let placement = configuration.placement();
        let homes = placement.groups().map(|(_, replicas)| replicas.primary().node);
        let homes: Vec<NodeId> = homes.collect();
        let is_used =
            |home: &NodeId| !matches!(left.get(home), Some(LostMemoryState::Abandoned(_)));
        debug_assert!(
            !configuration.is_open() || homes.iter().all(is_used),
            "I309: transactions run by locks on memory nodes in use"
        );
        self.homes.replace(homes);
    }

    fn have_left_the_lost(&self) -> bool {
        let is_over = |left: &LostMemoryState| match left {
            LostMemoryState::Abandoned(is_over) => is_over.get(),
            LostMemoryState::Resumed(_) => true,
        };
        self.left.borrow().values().all(is_over)
    }
}

/// An acquisition, boxed: its future would enlarge the future of each transaction.
type Acquiring<'a> = Pin<Box<dyn Future<Output = Result<(), LockError>> + 'a>>;

/// Locks on memory nodes, for any lock system. See [`LockService`].
pub(crate) trait OnMemory {
    fn acquire<'a>(
        &'a self,
        held: &'a mut HeldLocks,
        round: u16,
        wanted: &'a [LockRequest],
        timeout: Duration,
    ) -> Acquiring<'a>;

    fn release(&self, held: &mut HeldLocks);

    /// Whether an attempt may rely on its locks.
    fn are_valid(&self, held: &HeldLocks) -> bool;

    /// Whether an attempt goes on although other attempts use its rows.
    #[cfg(feature = "sabotage")]
    fn is_beside(&self, _: &HeldLocks) -> bool {
        false
    }

    /// See [`MemoryLocks::abandon`].
    fn abandon(&self, memory: NodeId) -> Pin<Box<dyn Future<Output = ()>>>;

    /// See [`Client::resume`].
    fn resume(&self, memory: NodeId, life: Epoch);

    /// Whether no release is under way.
    fn is_settled(&self) -> bool;

    /// Takes a lock by its object, and releases the lock. Returns whether the lock was granted
    /// within `patience`.
    fn pass(&self, at: RemoteAddr, patience: Duration) -> Pin<Box<dyn Future<Output = bool>>>;
}

impl<S: LockSystem> OnMemory for MemoryLocks<S> {
    fn acquire<'a>(
        &'a self,
        held: &'a mut HeldLocks,
        round: u16,
        wanted: &'a [LockRequest],
        timeout: Duration,
    ) -> Acquiring<'a> {
        Box::pin(LockService::acquire(self, held, round, wanted, timeout))
    }

    fn release(&self, held: &mut HeldLocks) {
        LockService::release(self, held);
    }

    fn are_valid(&self, held: &HeldLocks) -> bool {
        self.are_valid(held)
    }

    fn abandon(&self, memory: NodeId) -> Pin<Box<dyn Future<Output = ()>>> {
        let abandoning = self.abandon(memory);
        // A silent memory node has lost its memory, or will not be used with the old memory; a
        // refusal by the memory node will be noticed by a beat.
        Box::pin(async move {
            let _ = abandoning.await;
        })
    }

    fn resume(&self, memory: NodeId, life: Epoch) {
        self.client().resume(memory, life.0);
    }

    fn is_settled(&self) -> bool {
        self.client().is_quiet()
    }

    fn pass(&self, at: RemoteAddr, patience: Duration) -> Pin<Box<dyn Future<Output = bool>>> {
        let (client, deadline) = (self.client().clone(), self.deadline(patience));
        Box::pin(async move {
            let limits = Limits { wait: Wait::Until(deadline), terms: 1 };
            match client.acquire(at, Mode::Exclusive, limits).await {
                Ok(hold) => client.release(hold).await.is_ok(),
                Err(_) => false,
            }
        })
    }
}

impl Locks {
    pub(crate) fn new(shared: &Arc<Shared>, node: &Arc<ComputeNode>, rpc: &Rpc) -> Self {
        #[cfg(feature = "sabotage")]
        if shared.config.locks == LockKind::IdealRdma {
            return Self::OnMemory(ideal::begin(shared, node, rpc));
        }
        match shared.config.memory_locks() {
            None => {
                let (table, lease) = (Arc::clone(&node.locks), shared.config.lease);
                let (node, wait) = (Arc::clone(node), shared.config.lock_wait);
                Self::Lotus(LotusLocks::new(table, node, rpc.clone(), lease, wait))
            }
            Some(choice) => {
                let homes = Homes::default();
                let opener = LockOpener { shared, node, rpc, homes: Rc::clone(&homes) };
                let system = choice.visit(opener);
                Self::OnMemory(LocksOnMemory { system, homes, left: RefCell::default() })
            }
        }
    }

    /// Whether an attempt may rely on its locks on memory nodes, as far as known here: the node is
    /// not expelled, and no memory node concerned has lost its memory (H4).
    #[inline]
    pub(crate) fn are_valid(&self, held: &HeldLocks) -> bool {
        match self {
            Self::Lotus(_) => true,
            Self::OnMemory(locks) => locks.system.are_valid(held),
        }
    }

    /// Whether an attempt goes on although other attempts use its rows.
    #[cfg(feature = "sabotage")]
    pub(crate) fn is_beside(&self, held: &HeldLocks) -> bool {
        matches!(self, Self::OnMemory(locks) if locks.system.is_beside(held))
    }

    /// Number of locks granted by this node itself, in an acquisition of `all` locks.
    #[inline]
    pub(crate) fn count_own(&self, held: &HeldLocks, all: usize) -> usize {
        match self {
            Self::Lotus(_) => all - held.remote_count(),
            Self::OnMemory(_) => 0,
        }
    }

    /// Follows the memory node changes known to the coordinator: abandons locks on lost memory
    /// nodes, uses the locks on the primaries of the placement in use. From now on no lock verb is
    /// posted to a lost memory node.
    pub(crate) fn follow(&self, configuration: &Configuration, executor: &Handle) {
        if let Self::OnMemory(locks) = self {
            locks.follow(configuration, executor);
        }
    }

    /// Whether no use of a lock is under way on lost memory nodes.
    pub(crate) fn have_left_the_lost(&self) -> bool {
        match self {
            Self::Lotus(_) => true,
            Self::OnMemory(locks) => locks.have_left_the_lost(),
        }
    }

    /// Whether no release is under way.
    pub(crate) fn is_settled(&self) -> bool {
        match self {
            Self::Lotus(locks) => locks.unacknowledged_ends() == 0 && locks.suspects() == 0,
            Self::OnMemory(locks) => locks.system.is_settled(),
        }
    }
}

/// A coordinator that begins to use locks on memory nodes.
struct LockOpener<'a> {
    shared: &'a Arc<Shared>,
    node: &'a Arc<ComputeNode>,
    rpc: &'a Rpc,
    homes: Homes,
}

impl Visitor for LockOpener<'_> {
    type Output = Box<dyn OnMemory>;

    fn visit<S: LockSystem>(
        self,
        make: impl Fn() -> S + Send + Sync + 'static,
    ) -> Box<dyn OnMemory> {
        let Self { shared, node, rpc, homes } = self;
        let peers = LockPeers::new(shared, node, rpc.lane().executor());
        let identity = Identity { member: peers.this(), peers: Rc::new(peers), service: SERVICE };
        let system = make();
        let bytes = system.object_bytes();
        let objects = region_bytes(bytes) / bytes;
        let client = Client::new(system, rpc.clone(), identity);
        if let Some(lease) = shared.config.lease {
            // Before a request is given up, so that requests without a queue entry ask too.
            client.stalls_after(lease.min(shared.config.lock_timeout / 2).min(STALL));
        }
        let object_of = objects_of(shared, homes, objects, bytes);
        Box::new(MemoryLocks::new(client, rpc.lane().clone(), object_of))
    }
}

/// Finds the objects of locks, `objects` objects of `bytes` bytes on each home.
fn objects_of(shared: &Arc<Shared>, homes: Homes, objects: u64, bytes: u64) -> ObjectOf {
    let shared = Arc::clone(shared);
    Rc::new(move |name: &LockKey, hash| {
        let group = shared.placement.group_of(name.shard());
        let node = homes.borrow()[usize::from(group.0)];
        RemoteAddr::new(node, LOCK_REGION, hash % objects * bytes)
    })
}

impl LockService for Locks {
    #[inline]
    async fn acquire(
        &self,
        held: &mut HeldLocks,
        round: u16,
        wanted: &[LockRequest],
        timeout: Duration,
    ) -> Result<(), LockError> {
        match self {
            Self::Lotus(locks) => locks.acquire(held, round, wanted, timeout).await,
            Self::OnMemory(locks) => locks.system.acquire(held, round, wanted, timeout).await,
        }
    }

    #[inline]
    fn release(&self, held: &mut HeldLocks) {
        match self {
            Self::Lotus(locks) => locks.release(held),
            Self::OnMemory(locks) => locks.system.release(held),
        }
    }

    #[inline]
    fn prefetch(&self, name: &LockKey) {
        match self {
            Self::Lotus(locks) => locks.prefetch(name),
            // Objects on memory nodes are not in this node's memory.
            Self::OnMemory(_) => {}
        }
    }
}
