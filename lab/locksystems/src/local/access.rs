//! A common interface for locks shared by a node's clients and for locks that clients request
//! separately, so that a load runs on both kinds.

use std::future::Future;
use std::sync::Arc;

use lotus_fabric::ids::RemoteAddr;
use lotus_locks::word::Mode;
use lotus_locks::{Acquiring, Client, Hold, Limits, LockSystem, NotHeld, Releasing, Wait};

use super::{
    Counters, LocalAcquiring, LocalClient, LocalHold, LocalReleasing, LocalTable, Transfers,
    synchronise,
};

/// A lane's client of locks: a [`Client`] or a [`LocalClient`].
pub trait Access: Clone + 'static {
    /// The lock system.
    type System: LockSystem;
    /// State shared by the lanes of a node.
    type Table: Clone + Send + 'static;
    /// A held lock.
    type Held: Held;
    /// Whether a holder may post a release behind its verbs, before their answers: see
    /// [`LockSystem::RELEASES_IN_ORDER`].
    const RELEASES_IN_ORDER: bool;
    /// An acquisition under way.
    type Acquiring: Future<Output = Result<Self::Held, NotHeld>>;
    /// A release under way.
    type Releasing: Future<Output = Result<(), NotHeld>>;

    /// Returns the interface for a lane of a node.
    fn of(client: Client<Self::System>, table: Self::Table) -> Self;

    /// The client for requests to the memory node.
    fn client(&self) -> &Client<Self::System>;

    /// See [`Client::acquire`] and [`LocalClient::acquire`].
    fn acquire(&self, at: RemoteAddr, mode: Mode, limits: Limits) -> Self::Acquiring;

    /// See [`Client::is_valid`].
    fn is_valid(&self, held: &Self::Held) -> bool;

    /// See [`Client::release`] and [`LocalClient::release`].
    fn release(&self, held: Self::Held) -> Self::Releasing;

    /// See [`Client::forget`].
    ///
    /// # Panics
    /// Also if the clients of a node share the lock.
    fn forget(&self, held: Self::Held);

    /// See [`LocalClient::transfers`]. Without sharing, all transfers are remote.
    fn transfers(&self) -> Transfers;

    /// Synchronises the node's clock with the other nodes' from now on, if the policy needs clocks
    /// and the lane is the node's first.
    fn keep_time(&self, _counters: Counters) {}
}

/// A held lock.
pub trait Held {
    /// The lock.
    fn at(&self) -> RemoteAddr;

    /// Mode of the hold.
    fn mode(&self) -> Mode;

    /// See [`Hold::upgrade`]. Shared by a node's clients, update locks are exclusive.
    ///
    /// # Errors
    /// See [`Hold::upgrade`].
    fn upgrade(&mut self, wait: Wait) -> impl Future<Output = Result<(), NotHeld>>;
}

impl<S: LockSystem> Access for Client<S> {
    const RELEASES_IN_ORDER: bool = S::RELEASES_IN_ORDER;
    type System = S;
    type Table = ();
    type Held = Hold<S>;
    type Acquiring = Acquiring<S>;
    type Releasing = Releasing<S>;

    fn of(client: Self, (): ()) -> Self {
        client
    }

    fn client(&self) -> &Self {
        self
    }

    #[inline]
    fn acquire(&self, at: RemoteAddr, mode: Mode, limits: Limits) -> Acquiring<S> {
        self.acquire(at, mode, limits)
    }

    fn is_valid(&self, held: &Hold<S>) -> bool {
        self.is_valid(held)
    }

    #[inline]
    fn release(&self, held: Hold<S>) -> Releasing<S> {
        self.release(held)
    }

    fn forget(&self, held: Hold<S>) {
        self.forget(held);
    }

    fn transfers(&self) -> Transfers {
        Transfers { local: 0, remote: self.counts().acquired }
    }
}

impl<S: LockSystem> Held for Hold<S> {
    fn at(&self) -> RemoteAddr {
        self.at()
    }

    fn mode(&self) -> Mode {
        self.mode()
    }

    async fn upgrade(&mut self, wait: Wait) -> Result<(), NotHeld> {
        self.upgrade(wait).await
    }
}

impl<S: LockSystem> Access for LocalClient<S> {
    // The next holder may be on another lane of the node, whose verbs are ordered behind this
    // lane's verbs only after the answers.
    const RELEASES_IN_ORDER: bool = false;
    type System = S;
    type Table = Arc<LocalTable>;
    type Held = LocalHold<S>;
    type Acquiring = LocalAcquiring<S>;
    type Releasing = LocalReleasing<S>;

    fn of(client: Client<S>, table: Arc<LocalTable>) -> Self {
        Self::new(client, table)
    }

    fn client(&self) -> &Client<S> {
        self.client()
    }

    fn acquire(&self, at: RemoteAddr, mode: Mode, limits: Limits) -> LocalAcquiring<S> {
        self.acquire(at, mode, limits)
    }

    fn is_valid(&self, held: &LocalHold<S>) -> bool {
        self.is_valid(held)
    }

    fn release(&self, held: LocalHold<S>) -> LocalReleasing<S> {
        self.release(held)
    }

    fn forget(&self, _held: LocalHold<S>) {
        panic!("a lock that others share is released");
    }

    fn transfers(&self) -> Transfers {
        self.transfers()
    }

    fn keep_time(&self, counters: Counters) {
        let client = self.client();
        if self.table().policy().uses_times() && client.lane_number() == 0 {
            client.executor().spawn(synchronise(self.clone(), counters));
        }
    }
}

impl<S: LockSystem> Held for LocalHold<S> {
    fn at(&self) -> RemoteAddr {
        self.at()
    }

    fn mode(&self) -> Mode {
        self.mode()
    }

    async fn upgrade(&mut self, _wait: Wait) -> Result<(), NotHeld> {
        if self.mode() == Mode::Shared { Err(NotHeld::Unsupported) } else { Ok(()) }
    }
}
