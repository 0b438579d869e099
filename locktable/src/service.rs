//! Interface between a transaction and its locks, independent of their implementation.
//!
//! [`LockService`] is implemented by [`crate::LotusLocks`], and by `lotus-locks` for locks in words
//! of memory nodes. It is shaped so that locks that queue, live on memory nodes, pass messages,
//! expire or reset fit (DESIGN §5): acquiring is asynchronous and has a time limit, and nothing
//! assumes that holders can be enumerated.
//!
//! A transaction's locks are recorded in a [`HeldLocks`]. That is written *before* another node is
//! asked for anything, so an acquisition that is dropped half-way, times out or fails is released
//! like any other.

use std::any::Any;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::{NodeId, ShardId, TxnId};

use crate::lotus::Asked;
use crate::name::{LockName, LockRequest};

/// Node named by [`LockRoutes::owner`] for a shard without an owner.
pub const NO_OWNER: NodeId = NodeId(u16::MAX);

/// Owners of the locks of shards. Implemented by the holder of the shard map.
pub trait LockRoutes {
    /// This compute node.
    fn this_node(&self) -> NodeId;
    /// Owner of `shard` and the epoch since which it is, as far as this node knows. [`NO_OWNER`] if
    /// the owner was lost, or is about to change.
    fn owner(&self, shard: ShardId) -> (NodeId, u32);
    /// Records that `owner` has `shard` since `shard_epoch`, according to a node that was asked for
    /// a lock of it.
    fn learn(&self, shard: ShardId, owner: NodeId, shard_epoch: u32);
    /// Records that a coordinator of this node suspects `owner` of being dead, or does so no more.
    fn suspect(&self, owner: NodeId, suspicion: Suspicion) {
        let _ = (owner, suspicion);
    }
    /// Whether this node takes no part in the cluster any more, so that no request of its own
    /// should wait.
    fn is_out(&self) -> bool {
        false
    }
}

/// Treatment of a request that meets a lock held by another transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LockWait {
    /// The request waits in a queue at the lock's owner if it is above all locks that the
    /// transaction holds, in an order that all nodes share; otherwise it is refused. There is no
    /// deadlock, and a retry takes its locks in that order.
    Ordered,
    /// The request is refused, as in LOTUS §4.1.
    #[default]
    None,
}

/// Change of a suspicion that a node is dead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Suspicion {
    /// The node has not answered for a while.
    Begins,
    /// The node has answered, or has been expelled.
    Ends,
}

/// One lock that was granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TakenLock {
    /// The lock and its mode.
    pub request: LockRequest,
    /// Node that granted it.
    pub owner: NodeId,
    /// Epoch of the shard under which it was granted.
    pub shard_epoch: u32,
}

const ONE_TYPE: &str = "an attempt has locks of one service";

/// Locks that one attempt holds, or may hold. Reused from attempt to attempt for its capacity.
#[derive(Debug, Default)]
pub struct HeldLocks {
    txn: Option<TxnId>,
    pub(crate) taken: Vec<TakenLock>,
    /// Other nodes that were asked for locks, granted or not.
    pub(crate) contacted: Vec<NodeId>,
    /// Locks of the round under way that other nodes own.
    pub(crate) remote: Vec<TakenLock>,
    /// Questions to their owners in the round under way.
    pub(crate) asked: Vec<Asked>,
    /// Locks of a service outside this crate, a `Vec` of its own type, and their number.
    kept: Option<Box<dyn Any>>,
    kept_count: usize,
    /// Begin of the transaction's first attempt; `None` if that is this one.
    pub(crate) since: Option<Nanos>,
    /// Whether the first acquisition takes its locks in order, waiting for each.
    pub(crate) in_order: bool,
    abandoned: Rc<Cell<bool>>,
}

impl HeldLocks {
    /// Begins a new attempt.
    ///
    /// # Panics
    /// If the previous attempt's locks were not released.
    pub fn begin(&mut self, txn: TxnId) {
        assert!(self.is_empty(), "the previous attempt still holds locks");
        (self.txn, self.since, self.in_order) = (Some(txn), None, false);
    }

    /// Makes the attempt just begun a retry of a transaction that was refused a lock. Its first
    /// attempt began at `since`. The first acquisition should want all locks that the attempts
    /// before held or wanted, and takes them in order.
    pub fn retry(&mut self, since: Nanos) {
        (self.since, self.in_order) = (Some(since), true);
    }

    /// Flag that ends a wait of the attempt when it is set and the waiting task is woken.
    pub fn abandonment(&self) -> Rc<Cell<bool>> {
        Rc::clone(&self.abandoned)
    }

    /// Whether that flag is set.
    pub fn is_abandoned(&self) -> bool {
        self.abandoned.get()
    }

    /// Records a lock of a service outside this crate, which has one type for all of its locks, and
    /// gives up by itself what it has asked for and does not hold yet.
    ///
    /// # Panics
    /// If there are locks of another type.
    pub fn keep<T: 'static>(&mut self, lock: T) {
        let kept = self.kept.get_or_insert_with(|| Box::new(Vec::<T>::new()));
        kept.downcast_mut::<Vec<T>>().expect(ONE_TYPE).push(lock);
        self.kept_count += 1;
    }

    /// The locks recorded by [`Self::keep`].
    ///
    /// # Panics
    /// See [`Self::keep`].
    pub fn kept<T: 'static>(&self) -> &[T] {
        match &self.kept {
            None => &[],
            Some(kept) => kept.downcast_ref::<Vec<T>>().expect(ONE_TYPE),
        }
    }

    /// Takes the locks recorded by [`Self::keep`] out, to be released.
    ///
    /// # Panics
    /// See [`Self::keep`].
    pub fn take_kept<T: 'static>(&mut self) -> impl Iterator<Item = T> {
        self.kept_count = 0;
        let kept = self.kept.as_mut().map(|kept| kept.downcast_mut::<Vec<T>>().expect(ONE_TYPE));
        kept.into_iter().flat_map(|kept| kept.drain(..))
    }

    /// The attempt that holds these locks.
    ///
    /// # Panics
    /// Before the first [`Self::begin`].
    pub fn txn(&self) -> TxnId {
        self.txn.expect("an attempt has begun")
    }

    /// Granted locks, in the order of the grants.
    pub fn taken(&self) -> &[TakenLock] {
        &self.taken
    }

    /// Number of locks of the last acquisition that other nodes own.
    #[inline]
    pub fn remote_count(&self) -> usize {
        self.remote.len()
    }

    /// Whether there is nothing to release anywhere.
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty() && self.contacted.is_empty() && self.kept_count == 0
    }
}

/// Reason why locks were not granted. Locks that the same call was granted before are still held
/// until [`LockService::release`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Another transaction holds this one. Abort and retry.
    #[error("another transaction holds the lock")]
    Conflict(LockName),
    /// Another transaction still held this one when the time limit of a wait passed. Abort and
    /// retry.
    #[error("another transaction held the lock until the time limit of the wait")]
    WaitedTooLong(LockName),
    /// The table has no room for it now. Abort and back off.
    #[error("the lock table has no room")]
    Full(LockName),
    /// The attempt's own locks fill the bucket. Terminal: a retry would meet the same.
    #[error("the transaction's own locks fill a bucket of the lock table")]
    OwnBucketFull(LockName),
    /// The shard has moved. Abort, look up the owner anew, retry.
    #[error("the shard is owned by another node now")]
    Moved(LockName),
    /// The shard's owner was lost, and no node has adopted the shard yet; or the owner is about to
    /// change. Abort, back off, retry.
    #[error("no node grants the locks of the shard at the moment")]
    Unowned(LockName),
    /// The owner has not answered for a while, and may be dead. Abort, do something else, retry;
    /// the release reaches it later.
    #[error("the owner of the lock is suspected of being dead")]
    Suspected(LockName),
    /// The owner did not answer. Abort; the release reaches it later.
    #[error("the owner of a lock did not answer in time")]
    TimedOut,
    /// This node has been expelled. Stop.
    #[error("this node has been expelled")]
    Expelled,
}

/// Locks of a cluster, as one coordinator sees them.
#[allow(async_fn_in_trait, reason = "a coordinator's futures stay on its thread")]
pub trait LockService {
    /// Takes all of `wanted` for the attempt in `held`, or fails. `round` numbers the attempt's
    /// acquisitions. An implementation that waits gives up after `timeout`.
    ///
    /// # Errors
    /// See [`LockError`]. The caller then releases `held`.
    async fn acquire(
        &self,
        held: &mut HeldLocks,
        round: u16,
        wanted: &[LockRequest],
        timeout: Duration,
    ) -> Result<(), LockError>;

    /// Gives up everything in `held`. Returns at once; messages to other nodes are sent and
    /// repeated in the background.
    fn release(&self, held: &mut HeldLocks);

    /// Hints that `name` will be asked for soon.
    fn prefetch(&self, name: &LockName) {
        let _ = name;
    }
}
