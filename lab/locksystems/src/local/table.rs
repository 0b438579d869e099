//! The locks that a node's clients want or hold, in stripes, and messages between the node's lanes:
//! all state shared by threads.
//!
//! Each stripe is a mutex over a short list, searched linearly: a node uses few locks at one time.
//! The list keeps its capacity, so a warm stripe does not allocate. Tasks are woken outside of the
//! mutexes.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::RemoteAddr;
use lotus_locks::NotHeld;
use lotus_locks::word::Mode;
use lotus_sabotage::{Rule, broken};

use super::clock::Clock;
use super::lock::{Answer, Home, LocalLock, LockEffects, Ticket, WaiterState};
use super::policy::{Policy, QueuedRequest};
use super::primitive::{Mutex, MutexGuard};

/// Number of stripes of a node: several for each core of a large machine.
const STRIPES: usize = 256;

/// Lock state shared by the lanes of a node, in one life of the node (DecLock §5.1).
#[derive(Debug)]
pub struct LocalTable {
    policy: Policy,
    clock: Clock,
    is_expelled: AtomicBool,
    stripes: Box<[Mutex<Stripe>]>,
    inboxes: Box<[Mutex<Inbox>]>,
}

type Stripe = Vec<LocalLock>;

/// Locks that a lane must give up, by the lane's own numbers.
#[derive(Debug, Default)]
struct Inbox {
    keys: Vec<u32>,
    waker: Option<Waker>,
}

/// Wakes the tasks, and returns the remaining effects.
fn woken(mut outcome: LockEffects) -> LockEffects {
    outcome.wakes.drain(..).for_each(Waker::wake);
    outcome
}

impl LocalTable {
    /// Returns a table without locks, for a node with this number of lanes.
    pub fn new(policy: Policy, lanes: u16) -> Self {
        Self::with_stripes(policy, lanes, STRIPES)
    }

    /// Returns a table without locks, with this number of stripes.
    pub fn with_stripes(policy: Policy, lanes: u16, stripes: usize) -> Self {
        Self {
            policy,
            clock: Clock::default(),
            is_expelled: AtomicBool::new(false),
            stripes: (0..stripes).map(|_| Mutex::default()).collect(),
            inboxes: (0..lanes).map(|_| Mutex::default()).collect(),
        }
    }

    /// The policy.
    pub const fn policy(&self) -> Policy {
        self.policy
    }

    /// The node's clock.
    pub const fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Number of lanes.
    pub const fn lanes(&self) -> usize {
        self.inboxes.len()
    }

    /// Whether a lane has learnt of the node's expulsion.
    pub fn is_expelled(&self) -> bool {
        self.is_expelled.load(Ordering::Relaxed)
    }

    /// Records that the node was expelled.
    pub fn expel(&self) {
        self.is_expelled.store(true, Ordering::Relaxed);
    }

    /// Number of locks that the node's clients want or hold.
    pub fn count(&self) -> usize {
        self.stripes.iter().map(|stripe| enter(stripe).len()).sum()
    }

    fn stripe(&self, at: RemoteAddr) -> MutexGuard<'_, Stripe> {
        let mut hasher = DefaultHasher::new();
        at.hash(&mut hasher);
        enter(&self.stripes[hasher.finish() as usize % self.stripes.len()])
    }

    /// Runs `act` on a lock in use, and removes the lock from the table if it is unused afterwards;
    /// `None` if the lock is not in the table.
    fn with<T>(&self, at: RemoteAddr, act: impl FnOnce(&mut LocalLock) -> T) -> Option<T> {
        let mut stripe = self.stripe(at);
        let index = stripe.iter().position(|lock| lock.at == at)?;
        let result = act(&mut stripe[index]);
        if stripe[index].is_unused() {
            stripe.swap_remove(index);
        }
        Some(result)
    }

    /// As [`LocalTable::with`], for a lock that must be in the table.
    fn with_used<T: Default>(&self, at: RemoteAddr, act: impl FnOnce(&mut LocalLock) -> T) -> T {
        let result = self.with(at, act);
        let is_there = result.is_some() || broken(Rule::LastSiblingsRelease);
        assert!(is_there, "a lock that a client uses is in the table");
        result.unwrap_or_default()
    }

    /// Handles a new request. `waits` says whether the request may wait.
    pub fn request(
        &self,
        at: RemoteAddr,
        ticket: Ticket,
        wish: QueuedRequest,
        waits: bool,
        now: impl FnOnce() -> Nanos,
    ) -> Answer {
        let mut stripe = self.stripe(at);
        let index = stripe.iter().position(|lock| lock.at == at).unwrap_or_else(|| {
            stripe.push(LocalLock::new(at));
            stripe.len() - 1
        });
        stripe[index].request(self.policy, ticket, wish, waits, now)
    }

    /// Returns a waiter's state; the waiter's task is woken when the state changes. A final state
    /// is returned once.
    pub fn waiter_state(&self, at: RemoteAddr, ticket: Ticket, waker: &Waker) -> WaiterState {
        let waiter_state = self.with(at, |lock| lock.waiter_state(ticket, waker));
        waiter_state.unwrap_or_else(|| unreachable!("a lock that is waited for is in the table"))
    }

    /// Removes a waiter that gives up. Returns whether the waiter was a holder already, and must
    /// leave the lock.
    pub fn cancel(&self, at: RemoteAddr, ticket: Ticket) -> bool {
        let cancelled = self.with(at, |lock| lock.cancel(self.policy, ticket));
        cancelled.is_some_and(|(waiter_state, outcome)| {
            woken(outcome);
            waiter_state == WaiterState::Holds
        })
    }

    /// Handles that the asking client gives up, now or earlier. Returns whether the node's request
    /// goes on nevertheless; if not, the caller gives the request up.
    pub fn desert(&self, at: RemoteAddr, can_leave: bool) -> bool {
        let (goes_on, outcome) = self.with_used(at, |lock| lock.desert(self.policy, can_leave));
        woken(outcome);
        goes_on
    }

    /// Records the node's acquisition of the lock in mode `mode`. `remote` is the time of the
    /// earliest remote waiter, if known.
    pub fn won(
        &self,
        at: RemoteAddr,
        mode: Mode,
        home: Home,
        remote: Option<u16>,
        now: Nanos,
    ) -> LockEffects {
        woken(self.with_used(at, |lock| lock.won(self.policy, mode, home, remote, now)))
    }

    /// Records the failure of the node's request.
    pub fn lost(&self, at: RemoteAddr, why: NotHeld) {
        woken(self.with_used(at, |lock| lock.lost(self.policy, why)));
    }

    /// Removes a holder. Returns the home of the lock if the lock must be given up.
    pub fn leave(&self, at: RemoteAddr) -> Option<Home> {
        woken(self.with_used(at, |lock| lock.leave(self.policy))).gives_up
    }

    /// Records that the node has given the lock up.
    pub fn released(&self, at: RemoteAddr) {
        woken(self.with_used(at, |lock| lock.released(self.policy)));
    }

    /// Makes the node give the lock up as soon as its holders have left.
    pub fn close(&self, at: RemoteAddr) {
        let _unused = self.with(at, LocalLock::close);
    }

    /// Records the time of the earliest remote waiter, as read from the queue.
    pub fn note(&self, at: RemoteAddr, remote: Option<u16>) {
        let _unused = self.with(at, |lock| lock.note(remote));
    }

    /// Tells the home lane of a lock to give it up.
    pub fn order(&self, home: Home) {
        let waker = {
            let mut inbox = enter(&self.inboxes[usize::from(home.lane)]);
            inbox.keys.push(home.key);
            inbox.waker.clone()
        };
        waker.into_iter().for_each(Waker::wake);
    }

    /// Takes the locks that a lane must give up; `waker` is woken when more follow.
    pub fn orders(&self, lane: u16, waker: &Waker) -> Vec<u32> {
        let mut inbox = enter(&self.inboxes[usize::from(lane)]);
        match &mut inbox.waker {
            Some(known) => known.clone_from(waker),
            None => inbox.waker = Some(waker.clone()),
        }
        std::mem::take(&mut inbox.keys)
    }
}

/// # Panics
/// If another thread has panicked inside, which requires a violated assertion of the module: the
/// table's state is then unknown.
fn enter<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics inside a stripe")
}
