//! Interface between a transaction and its locks, independent of their implementation.
//!
//! [`LockService`] is implemented by [`crate::LotusLocks`], and by `lotus-locks` for locks in words
//! of memory nodes. The interface also fits locks that queue, live on memory nodes, pass messages,
//! expire or reset (`docs/locks.md`): acquiring is asynchronous and has a time limit, and the
//! interface does not require that holders can be enumerated.
//!
//! A transaction's locks are recorded in a [`HeldLocks`], *before* a request is sent to a remote
//! node. So a lock acquisition that is dropped half-way, times out or fails is released like a
//! successful acquisition.

use std::any::Any;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::{NodeId, ShardId, TxnId};

use crate::lock_key::{LockKey, LockRequest};
use crate::lotus::RemoteRequest;

/// Value of [`LockRoutes::owner`] for a shard without an owner.
pub const NO_OWNER: NodeId = NodeId(u16::MAX);

/// Owners of the locks of shards. Implemented by the holder of the shard map.
pub trait LockRoutes {
    /// Returns the id of this compute node.
    fn this_node(&self) -> NodeId;
    /// Returns the owner of `shard` and the first epoch of its ownership, as far as this node
    /// knows. [`NO_OWNER`] if the owner was lost, or is about to change.
    fn owner(&self, shard: ShardId) -> (NodeId, u32);
    /// Records that `owner` has `shard` since `shard_epoch`, according to a node that was asked for
    /// a lock of the shard.
    fn learn(&self, shard: ShardId, owner: NodeId, shard_epoch: u32);
    /// Records that a coordinator of this node suspects `owner` of being dead, or no longer
    /// suspects it.
    fn suspect(&self, owner: NodeId, suspicion: Suspicion) {
        let _ = (owner, suspicion);
    }
    /// Whether this node has left the cluster, so that its own requests should not wait.
    fn is_out(&self) -> bool {
        false
    }
}

/// What a request does when another transaction holds the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LockWait {
    /// The request waits in a queue at the lock's owner if the lock is above all locks of the
    /// transaction, in an order shared by all nodes; otherwise the request is refused. Deadlock is
    /// impossible, and a retry takes its locks in that order.
    Ordered,
    /// The request is refused, as in LOTUS §4.1.
    #[default]
    None,
}

/// Start or end of a suspicion that a node is dead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Suspicion {
    /// The node has not answered for a while.
    Begins,
    /// The node has answered, or has been expelled.
    Ends,
}

/// One granted lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TakenLock {
    /// The lock and its mode.
    pub request: LockRequest,
    /// Node that granted the lock.
    pub owner: NodeId,
    /// Shard epoch under which the lock was granted.
    pub shard_epoch: u32,
}

const ONE_TYPE: &str = "an attempt has locks of one service";

/// Locks that one attempt holds, or may hold. Reused by successive attempts to keep its capacity.
#[derive(Debug, Default)]
pub struct HeldLocks {
    txn: Option<TxnId>,
    pub(crate) taken: Vec<TakenLock>,
    /// Remote nodes that were asked for locks, granted or not: each hears of the end (I162).
    pub(crate) contacted: Vec<NodeId>,
    /// Locks of the current round that remote nodes own.
    pub(crate) remote: Vec<TakenLock>,
    /// Questions to these owners in the current round.
    pub(crate) asked: Vec<RemoteRequest>,
    /// Locks of a service outside this crate, a `Vec` of the service's lock type, and their number.
    kept: Option<Box<dyn Any>>,
    kept_count: usize,
    /// Start of the transaction's first attempt; `None` if this is the first attempt.
    pub(crate) since: Option<Nanos>,
    /// Whether the first acquisition takes its locks in order, waiting for each lock.
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

    /// Makes the attempt just begun a retry of a transaction that was refused a lock. The
    /// transaction's first attempt began at `since`. The first acquisition should request all locks
    /// that earlier attempts held or requested, and takes them in order.
    pub fn retry(&mut self, since: Nanos) {
        (self.since, self.in_order) = (Some(since), true);
    }

    /// Returns a flag that, once set, ends a wait of the attempt when the waiting task is woken.
    pub fn abandonment(&self) -> Rc<Cell<bool>> {
        Rc::clone(&self.abandoned)
    }

    /// Whether the flag of [`Self::abandonment`] is set.
    pub fn is_abandoned(&self) -> bool {
        self.abandoned.get()
    }

    /// Records a lock of a service outside this crate. Such a service has a single lock type, and
    /// itself gives up locks that were requested and not yet granted.
    ///
    /// # Panics
    /// If locks of a different type are recorded.
    pub fn keep<T: 'static>(&mut self, lock: T) {
        let kept = self.kept.get_or_insert_with(|| Box::new(Vec::<T>::new()));
        kept.downcast_mut::<Vec<T>>().expect(ONE_TYPE).push(lock);
        self.kept_count += 1;
    }

    /// Returns the locks recorded by [`Self::keep`].
    ///
    /// # Panics
    /// See [`Self::keep`].
    pub fn kept<T: 'static>(&self) -> &[T] {
        match &self.kept {
            None => &[],
            Some(kept) => kept.downcast_ref::<Vec<T>>().expect(ONE_TYPE),
        }
    }

    /// Removes and returns the locks recorded by [`Self::keep`], to be released.
    ///
    /// # Panics
    /// See [`Self::keep`].
    pub fn take_kept<T: 'static>(&mut self) -> impl Iterator<Item = T> {
        self.kept_count = 0;
        let kept = self.kept.as_mut().map(|kept| kept.downcast_mut::<Vec<T>>().expect(ONE_TYPE));
        kept.into_iter().flat_map(|kept| kept.drain(..))
    }

    /// Returns the attempt that holds the locks.
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

    /// Number of remote locks of the last acquisition.
    #[inline]
    pub fn remote_count(&self) -> usize {
        self.remote.len()
    }

    /// Whether no lock needs to be released, here or at a remote node.
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty() && self.contacted.is_empty() && self.kept_count == 0
    }
}

/// Reason why locks were not granted. Locks granted earlier in the same call are held until
/// [`LockService::release`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Another transaction holds the lock. Abort and retry.
    #[error("another transaction holds the lock")]
    Conflict(LockKey),
    /// The time limit passed in a wait for the lock, or for a lock before it. Abort and retry.
    #[error("the time limit passed in a wait for the lock, or for a lock before it")]
    WaitedTooLong(LockKey),
    /// The table has no room for the lock now. Abort and back off.
    #[error("the lock table has no room")]
    Full(LockKey),
    /// The attempt's own locks fill the bucket. Terminal: a retry would fail as well.
    #[error("the transaction's own locks fill a bucket of the lock table")]
    OwnBucketFull(LockKey),
    /// The shard has moved. Abort, look up the owner anew, retry.
    #[error("the shard is owned by another node now")]
    Moved(LockKey),
    /// The shard's owner was lost, and no node has adopted the shard yet; or the owner is about to
    /// change. Abort, back off, retry.
    #[error("no node grants the locks of the shard at the moment")]
    Unowned(LockKey),
    /// The owner has not answered for a while, and may be dead. Abort, do other work, retry; the
    /// release reaches the owner later.
    #[error("the owner of the lock is suspected of being dead")]
    Suspected(LockKey),
    /// The owner did not answer. Abort; the release reaches the owner later.
    #[error("the owner of a lock did not answer in time")]
    TimedOut,
    /// This node has been expelled. Stop.
    #[error("this node has been expelled")]
    Expelled,
}

/// Locks of a cluster, as one coordinator sees them.
#[allow(async_fn_in_trait, reason = "a coordinator's futures stay on its thread")]
pub trait LockService {
    /// Takes all of `wanted` for the attempt in `held`, or fails. `round` is the number of the
    /// attempt's acquisition. An implementation that waits gives up after `timeout`.
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

    /// Releases all locks in `held`. Returns at once; messages to remote nodes are sent and
    /// repeated in the background.
    fn release(&self, held: &mut HeldLocks);

    /// Hints that `name` will be requested soon.
    fn prefetch(&self, name: &LockKey) {
        let _ = name;
    }
}
