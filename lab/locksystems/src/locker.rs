//! Locks by number, behind one interface, for loads that run on any lock system.
//!
//! A [`Locker`] is one lane's use of locks that are numbered from 0, wherever their state is: in
//! words of a memory node ([`Words`]), at a server, or at a switch.

use std::future::Future;
use std::sync::Arc;

use lotus_fabric::ids::RemoteAddr;
use lotus_locks::word::Mode;
use lotus_locks::{Counts, Limits, LockSpace, NotHeld, Wait};

use crate::local::Access;

/// One lane's use of numbered locks. Clones belong to the same lane.
pub trait Locker: Clone + 'static {
    /// A held lock, released by [`Locker::release`] or on drop.
    type Held: 'static;

    /// Acquires the lock numbered `lock`. A dropped acquisition holds nothing in the end.
    ///
    /// # Errors
    /// [`NotHeld`]: the lock is not held, and no remainder of the request keeps others from it.
    fn acquire(
        &self,
        lock: u64,
        mode: Mode,
        wait: Wait,
    ) -> impl Future<Output = Result<Self::Held, NotHeld>>;

    /// Whether a holder may still rely on its lock: a lock with a lease may be lost.
    fn is_valid(&self, _held: &Self::Held) -> bool {
        true
    }

    /// Releases a lock. The release goes on if the future is dropped.
    ///
    /// # Errors
    /// [`NotHeld::Reset`]: the lock was no longer held.
    fn release(&self, held: Self::Held) -> impl Future<Output = Result<(), NotHeld>>;

    /// Counts of the lane so far.
    fn counts(&self) -> Counts;

    /// Waits until the lane has no request, release or leftover under way.
    fn quiet(&self) -> impl Future<Output = ()>;
}

/// Numbered locks split between two lockers at a bound.
#[derive(Clone)]
pub struct Split<A, B> {
    first: A,
    rest: B,
    /// Number of locks of the first locker.
    below: u64,
}

impl<A: Locker, B: Locker> Split<A, B> {
    /// Serves locks below `below` by `first` and the remaining locks by `rest`, under the same
    /// numbers.
    pub const fn new(first: A, rest: B, below: u64) -> Self {
        Self { first, rest, below }
    }
}

/// A held lock of a [`Split`].
pub enum SplitHeld<A, B> {
    /// Held by the first locker.
    First(A),
    /// Held by the second locker.
    Rest(B),
}

impl<A: Locker, B: Locker> Locker for Split<A, B> {
    type Held = SplitHeld<A::Held, B::Held>;

    async fn acquire(&self, lock: u64, mode: Mode, wait: Wait) -> Result<Self::Held, NotHeld> {
        if lock < self.below {
            self.first.acquire(lock, mode, wait).await.map(SplitHeld::First)
        } else {
            self.rest.acquire(lock, mode, wait).await.map(SplitHeld::Rest)
        }
    }

    async fn release(&self, held: Self::Held) -> Result<(), NotHeld> {
        match held {
            SplitHeld::First(held) => self.first.release(held).await,
            SplitHeld::Rest(held) => self.rest.release(held).await,
        }
    }

    fn counts(&self) -> Counts {
        let mut counts = self.first.counts();
        counts += self.rest.counts();
        counts
    }

    async fn quiet(&self) {
        self.first.quiet().await;
        self.rest.quiet().await;
    }
}

/// Locks in words of memory nodes, by the numbers of their objects.
#[derive(Clone)]
pub struct Words<A> {
    access: A,
    /// Spaces with equal numbers of locks, except for the last, which may have fewer.
    spaces: Arc<[LockSpace]>,
}

impl<A: Access> Words<A> {
    /// Creates the locks of `space`, used by one lane.
    pub fn new(access: A, space: LockSpace) -> Self {
        Self { access, spaces: Arc::new([space]) }
    }

    /// Creates the locks of several spaces, numbered one space after another, used by one lane.
    ///
    /// # Panics
    /// If there is no space, or a space before the last has another number of locks than the first,
    /// or the last has more.
    pub fn over(access: A, spaces: Arc<[LockSpace]>) -> Self {
        let each = spaces[0].count();
        let (last, others) = spaces.split_last().expect("there is a space");
        assert!(others.iter().all(|space| space.count() == each) && last.count() <= each);
        Self { access, spaces }
    }

    fn object(&self, lock: u64) -> RemoteAddr {
        let each = self.spaces[0].count();
        self.spaces[(lock / each) as usize].object(lock % each)
    }
}

impl<A: Access> Locker for Words<A>
where
    A::Held: 'static,
{
    type Held = A::Held;

    /// # Panics
    /// If no lock has this number.
    fn acquire(
        &self,
        lock: u64,
        mode: Mode,
        wait: Wait,
    ) -> impl Future<Output = Result<A::Held, NotHeld>> {
        self.access.acquire(self.object(lock), mode, Limits { wait, terms: 1 })
    }

    fn is_valid(&self, held: &A::Held) -> bool {
        self.access.is_valid(held)
    }

    fn release(&self, held: A::Held) -> impl Future<Output = Result<(), NotHeld>> {
        self.access.release(held)
    }

    fn counts(&self) -> Counts {
        self.access.client().counts()
    }

    async fn quiet(&self) {
        self.access.client().quiet().await;
    }
}
