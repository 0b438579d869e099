//! The locks of a node that its clients want or hold, in stripes, and what its lanes tell one
//! another: all that several threads touch.
//!
//! Each stripe is a mutex over a short list, searched from end to end: a node uses few locks at one
//! time. The list keeps its capacity, so a warm stripe does not allocate. Tasks are woken outside
//! of the mutexes.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::RemoteAddr;
use lotus_locks::NotHeld;
use lotus_locks::word::Mode;
use lotus_sabotage::{Rule, broken};

use super::clock::Clock;
use super::lock::{Answer, Fate, Home, LocalLock, Sequel, Ticket};
use super::policy::{Policy, Wish};
use super::primitive::{Mutex, MutexGuard};

/// Number of stripes of a node: several for each core of a large one.
const STRIPES: usize = 256;

/// What the lanes of one node, in one of its lives, share of its locks (DecLock §5.1).
#[derive(Debug)]
pub struct LocalTable {
    policy: Policy,
    clock: Clock,
    is_expelled: AtomicBool,
    stripes: Box<[Mutex<Stripe>]>,
    inboxes: Box<[Mutex<Inbox>]>,
}

type Stripe = Vec<LocalLock>;

/// Locks that a lane is to give up, by its own numbers for them.
#[derive(Debug, Default)]
struct Inbox {
    keys: Vec<u32>,
    waker: Option<Waker>,
}

/// Wakes the tasks, and returns the rest.
fn woken(mut outcome: Sequel) -> Sequel {
    outcome.wakes.drain(..).for_each(Waker::wake);
    outcome
}

impl LocalTable {
    /// A table without locks, for a node with so many lanes.
    pub fn new(policy: Policy, lanes: u16) -> Self {
        Self::with_stripes(policy, lanes, STRIPES)
    }

    /// The same, with so many stripes.
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

    /// Whether a lane has learnt that the node was expelled.
    pub fn is_expelled(&self) -> bool {
        self.is_expelled.load(Ordering::Relaxed)
    }

    /// Notes that the node was expelled.
    pub fn expel(&self) {
        self.is_expelled.store(true, Ordering::Relaxed);
    }

    /// Number of locks that clients of the node want or hold.
    pub fn count(&self) -> usize {
        self.stripes.iter().map(|stripe| enter(stripe).len()).sum()
    }

    fn stripe(&self, at: RemoteAddr) -> MutexGuard<'_, Stripe> {
        let mut hasher = DefaultHasher::new();
        at.hash(&mut hasher);
        enter(&self.stripes[hasher.finish() as usize % self.stripes.len()])
    }

    /// Does something with a lock that a client uses, and forgets it if none does any more; `None`
    /// if none uses it.
    fn with<T>(&self, at: RemoteAddr, act: impl FnOnce(&mut LocalLock) -> T) -> Option<T> {
        let mut stripe = self.stripe(at);
        let index = stripe.iter().position(|lock| lock.at == at)?;
        let result = act(&mut stripe[index]);
        if stripe[index].is_unused() {
            stripe.swap_remove(index);
        }
        Some(result)
    }

    /// The same with a lock that is there.
    fn with_used<T: Default>(&self, at: RemoteAddr, act: impl FnOnce(&mut LocalLock) -> T) -> T {
        let result = self.with(at, act);
        let is_there = result.is_some() || broken(Rule::LastSiblingsRelease);
        assert!(is_there, "a lock that a client uses is in the table");
        result.unwrap_or_default()
    }

    /// Takes in a request. `waits` says whether it may wait.
    pub fn request(
        &self,
        at: RemoteAddr,
        ticket: Ticket,
        wish: Wish,
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

    /// What has become of a waiter, whose task is woken when that changes. Unless it waits still,
    /// it is told once.
    pub fn fate(&self, at: RemoteAddr, ticket: Ticket, waker: &Waker) -> Fate {
        let fate = self.with(at, |lock| lock.fate(ticket, waker));
        fate.unwrap_or_else(|| unreachable!("a lock that is waited for is in the table"))
    }

    /// Takes a waiter out that gives up. Returns whether it holds the lock, and has to leave it.
    pub fn cancel(&self, at: RemoteAddr, ticket: Ticket) -> bool {
        let cancelled = self.with(at, |lock| lock.cancel(self.policy, ticket));
        cancelled.is_some_and(|(fate, outcome)| {
            woken(outcome);
            fate == Fate::Holds
        })
    }

    /// The client that has asked the memory node gives up, or has done so before. Returns whether
    /// the node's request goes on all the same; if not, it is to be given up.
    pub fn desert(&self, at: RemoteAddr, can_leave: bool) -> bool {
        let (goes_on, outcome) = self.with_used(at, |lock| lock.desert(self.policy, can_leave));
        woken(outcome);
        goes_on
    }

    /// The node has the lock, in this mode. `remote` is the time of the earliest remote waiter, if
    /// it is known.
    pub fn won(
        &self,
        at: RemoteAddr,
        mode: Mode,
        home: Home,
        remote: Option<u16>,
        now: Nanos,
    ) -> Sequel {
        woken(self.with_used(at, |lock| lock.won(self.policy, mode, home, remote, now)))
    }

    /// The node's request has failed.
    pub fn lost(&self, at: RemoteAddr, why: NotHeld) {
        woken(self.with_used(at, |lock| lock.lost(self.policy, why)));
    }

    /// A holder leaves. Returns the home of the lock if it is to be given up.
    pub fn leave(&self, at: RemoteAddr) -> Option<Home> {
        woken(self.with_used(at, |lock| lock.leave(self.policy))).gives_up
    }

    /// The node has given the lock up.
    pub fn released(&self, at: RemoteAddr) {
        woken(self.with_used(at, |lock| lock.released(self.policy)));
    }

    /// Has the node give up the lock as soon as its holders have left it.
    pub fn close(&self, at: RemoteAddr) {
        let _unused = self.with(at, LocalLock::close);
    }

    /// Notes the time of the earliest remote waiter, as it was read.
    pub fn note(&self, at: RemoteAddr, remote: Option<u16>) {
        let _unused = self.with(at, |lock| lock.note(remote));
    }

    /// Tells the lane of a lock's home to give it up.
    pub fn order(&self, home: Home) {
        let waker = {
            let mut inbox = enter(&self.inboxes[usize::from(home.lane)]);
            inbox.keys.push(home.key);
            inbox.waker.clone()
        };
        waker.into_iter().for_each(Waker::wake);
    }

    /// Takes what a lane was told to give up; `waker` is woken when there is more.
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
/// If another thread has panicked inside, which only a violated assertion of this room can cause:
/// what the table says is then unknown.
fn enter<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics inside a stripe")
}
